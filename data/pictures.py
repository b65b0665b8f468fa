"""Read and write images in MNIST's file format: the common part of the `build.py` of digits and fashion.

IDX: two zero bytes, 8 for "unsigned byte", the number of axes, each axis as a big-endian integer of four bytes, then
the bytes themselves (LeCun et al., yann.lecun.com/exdb/mnist).
"""

import argparse
import gzip
import hashlib
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

PACK = {
    ".gz": lambda content: gzip.compress(content, 9, mtime=0),
    ".xz": lambda content: lzma.compress(content, preset=9 | lzma.PRESET_EXTREME),
}


def idx(content: bytes, *shape: int) -> bytes:
    """An IDX file of bytes in this shape."""
    return struct.pack(f">2xBB{len(shape)}I", 8, len(shape), *shape) + content


def build(script: str, option: str, about: str, make: Callable[[Path | None], dict[str, bytes]]) -> None:
    """Write the files that `make(folder)` gives, and SHA256SUMS, next to `script`.

    Names that end in .gz or .xz are compressed; the same content always gives the same bytes.
    """
    home = Path(script).parent
    parser = argparse.ArgumentParser(description=f"Rebuild data/{home.resolve().name} from the package it comes from.")
    parser.add_argument(f"--{option}", dest="folder", type=Path, metavar="DIR", help=about)
    parser.add_argument("--out", type=Path, default=home, metavar="DIR", help="write here (default: beside the script)")
    arguments = parser.parse_args()
    sums = []
    for name, content in make(arguments.folder).items():
        packed = PACK[Path(name).suffix](content)
        (arguments.out / name).write_bytes(packed)
        sums.append(f"{hashlib.sha256(packed).hexdigest()}  {name}\n")
        print(f"{name}: {len(content):,} bytes, packed {len(packed):,}")
    (arguments.out / "SHA256SUMS").write_text("".join(sums))
