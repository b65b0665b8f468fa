"""Rebuild the digits: `python data/digits/build.py [--wheels DIR]`."""

import gzip
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build, idx, wheel  # noqa: E402  (the folder above is not a package)

TABLE = "sklearn/datasets/data/digits.csv.gz"


def make(wheels: Path | None) -> dict[str, bytes]:
    """One picture a line: 64 numbers from 0 to 16, and the digit; in the order of the source."""
    with wheel("scikit-learn==1.7.2", wheels) as archive:
        lines = gzip.decompress(archive.read(TABLE)).decode().split()
    rows = [[int(float(number)) for number in line.split(",")] for line in lines]
    pixels, labels = bytes(number for *row, _ in rows for number in row), bytes(row[-1] for row in rows)
    return {"images.idx.gz": idx(pixels, len(rows), 8, 8), "labels.idx.gz": idx(labels, len(rows))}


if __name__ == "__main__":
    build(__file__, make)
