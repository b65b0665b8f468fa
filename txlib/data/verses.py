"""Bible verses in the English of 1611 and of today: pairs to translate, and sentence pairs to classify."""

import os
import random
import re
from typing import NamedTuple

from txlib.data.files import Splits, find, percentile, read_columns, split_by

NEAR = 8  # verses to either side whose endings may be wrong answers
HELD_OUT = 5  # percent of the chapters that go to test, and as many to validation


class SentencePair(NamedTuple):
    """Two sentences; `label` is 1 where the second says what the first does."""

    first: str
    second: str
    label: int


class Choice(NamedTuple):
    """The beginning of a text and four endings; `label` says which is its own."""

    beginning: str
    endings: list[str]
    label: int


def verses(folder: str | os.PathLike | None = None) -> Splits:
    """Verses as `Splits(train, validation, test)` of (King James Version, World English Bible), in the Bible's order.

    Split by a hash of the chapter, about 90 : 5 : 5, so that neighbors stay together. Held-out verses of which either
    side also stands in train are left out: the Bible quotes itself.

    Raises ValueError for a damaged file, FileNotFoundError where it is missing.
    """
    return Splits(*([(archaic, modern) for _, archaic, modern in split] for split in _by_chapter(folder)))


def sentence_pairs(folder: str | os.PathLike | None = None) -> Splits:
    """`SentencePair(first, second, label)`: is the second verse the first one in today's English?

    Half of the verses, chosen by a hash, keep their own modern form (label 1). The others get that of the verse next to
    them in the same split (label 0), which is about the same matter and often has the same names. Splits as in
    `verses`.
    """
    return Splits(*(_with_neighbors(split) for split in _by_chapter(folder)))


def verse_endings(folder: str | os.PathLike | None = None) -> Splits:
    """`Choice(beginning, endings, label)`: which of four endings belongs to a verse in today's English?

    A verse is cut at the comma next to its middle. The wrong endings are those of three of the sixteen verses nearest
    to it, in the manner of SWAG (Zellers et al. 2018). Splits as in `verses`.
    """
    return Splits(*(_with_endings([modern for _, modern in split]) for split in verses(folder)))


def _with_endings(texts: list[str]) -> list[Choice]:
    cut, rng, choices = [parts for parts in map(_halves, texts) if parts], random.Random(0), []
    for i in range(NEAR, len(cut) - NEAR):
        near = rng.sample([*range(-NEAR, 0), *range(1, NEAR + 1)], 3)
        endings, label = [cut[i + distance][1] for distance in near], rng.randrange(4)
        choices.append(Choice(cut[i][0], [*endings[:label], cut[i][1], *endings[label:]], label))
    return choices


def _halves(text: str) -> tuple[str, str] | None:
    """The text up to the comma nearest to its middle, and the rest; None without a comma."""
    commas = [comma.end() for comma in re.finditer(r"[,;:]", text[:-1])]
    if not commas:
        return None
    middle = min(commas, key=lambda index: abs(index - len(text) / 2))
    return text[:middle], text[middle:].strip()


def _with_neighbors(rows: list[list[str]]) -> list[SentencePair]:
    pairs = []
    for i, (place, archaic, modern) in enumerate(rows):
        _, _, other = rows[i - 1]
        own = percentile(f"pair {place}") < 50 or other == modern
        pairs.append(SentencePair(archaic, modern if own else other, int(own)))
    return pairs


def _by_chapter(folder: str | os.PathLike | None) -> Splits:
    """Rows of (place, archaic, modern)."""
    rows = read_columns(find("verses", "kjv-web.tsv.gz", folder), 3)
    splits = split_by(lambda row: row[0].partition(":")[0], rows, HELD_OUT)
    seen = {side for _, *sides in splits.train for side in sides}
    for held_out in (splits.validation, splits.test):
        held_out[:] = [row for row in held_out if seen.isdisjoint(row[1:])]
    return splits
