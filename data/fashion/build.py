"""Rebuild the clothes: `python data/fashion/build.py [--from DIR]`."""

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build, debian, idx  # noqa: E402  (the folder above is not a package)

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
        by_class = [[index for index, label in enumerate(labels) if label == name] for name in range(CLASSES)]
        chosen = sorted(index for indices in by_class for index in (indices[-number:] if last else indices[:number]))
        content = b"".join(pixels[index * SIZE : (index + 1) * SIZE] for index in chosen)
        files[f"{part}-images.idx.xz"] = idx(content, len(chosen), 28, 28)
        files[f"{part}-labels.idx.xz"] = idx(bytes(labels[index] for index in chosen), len(chosen))
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
    build(__file__, make, option="from", about="take the files of Debian's package from DIR, download nothing")
