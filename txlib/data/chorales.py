"""Bach's four-part chorales, on a grid of sixteenths."""

import os

from txlib.data.files import Splits, find, read_columns, split_by
from txlib.music.piece import REST, VOICES, Piece

HELD_OUT = 10  # percent of the tunes that go to test, and as many to validation


def chorales(folder: str | os.PathLike | None = None) -> Splits:
    """365 chorales as `Splits(train, validation, test)` of `Piece`, voices from soprano to bass.

    Bach set many tunes several times, in other keys: three pieces in five share theirs with another one. The split
    is made by a hash of the tune, 80 : 10 : 10, so that no held-out tune was heard in training.

    Raises ValueError for a damaged file, FileNotFoundError where it is missing.
    """
    path = find("chorales", "chorales.tsv.gz", folder)
    pieces = []
    for number, (name, tune, bars, *voices) in enumerate(read_columns(path, 3 + len(VOICES)), 1):
        try:
            lengths = tuple(steps for steps, times in pairs(bars) for _ in range(times))
            pieces.append(Piece.of([pairs(voice) for voice in voices], bars=lengths, name=name, tune=tune))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; restore the file") from None
    return split_by(lambda piece: piece.tune, pieces, HELD_OUT)


def pairs(text: str) -> list[tuple[int, int]]:
    """`67*4 66*2 -*2` as [(67, 4), (66, 2), (REST, 2)]."""
    cut = (note.split("*") for note in text.split(" "))
    return [(REST if first == "-" else int(first), int(second)) for first, second in cut]
