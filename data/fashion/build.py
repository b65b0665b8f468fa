"""Rebuild the clothes: `python data/fashion/build.py [--from DIR]`."""

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import debian  # noqa: E402  (the folder above is not a package)
from pictures import build, idx  # noqa: E402

PACKAGE, INSIDE = "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"
CLASSES, SIZE = 10, 28 * 28
CHOSEN = {  # of each class: how many, from which file, and whether they are its last ones
    "train": (1_000, "train", False),
    "validation": (100, "train", True),
    "test": (200, "t10k", False),
}


def make(folder: Path | None) -> dict[str, bytes]:
    """Of each class the first of the training file, its last ones to validate with, and the first of the test file."""
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return make(download(Path(temporary)))
    files = {}
    for part, (number, source, last) in CHOSEN.items():
        pixels, labels = (read(folder / f"{source}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
        pixels, labels = pixels[16:], labels[8:]
        places = [[place for place, label in enumerate(labels) if label == each] for each in range(CLASSES)]
        kept = sorted(place for each in places for place in (each[-number:] if last else each[:number]))
        content = b"".join(pixels[place * SIZE : (place + 1) * SIZE] for place in kept)
        files[f"{part}-images.idx.xz"] = idx(content, len(kept), 28, 28)
        files[f"{part}-labels.idx.xz"] = idx(bytes(labels[place] for place in kept), len(kept))
    return files


def read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise SystemExit(f"{path.name} is not in {path.parent}; --from names the folder of {PACKAGE}") from None


def download(folder: Path) -> Path:
    """Fetch the Debian package and unpack it into `folder`; nothing is installed."""
    (package,) = debian([PACKAGE], folder, "name the folder of its files with --from DIR")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    return folder / INSIDE


if __name__ == "__main__":
    build(__file__, "from", "take the files of Debian's package from DIR, download nothing", make)
