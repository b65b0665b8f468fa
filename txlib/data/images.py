"""Small pictures and their classes: handwritten digits, and clothes."""

import gzip
import lzma
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from txlib.data.files import Splits, find

CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
WHOLE = "fashion-mnist"  # the folder of Debian's package, with all pictures
DEBIAN = Path("/usr/share/datasets")
HELD_OUT = 500  # of the whole set's pictures of each class to train: the last ones, to validate with
UNPACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}


@dataclass(frozen=True)
class Pictures:
    """Pictures as a model takes them, and what they show.

    pixel_values: from 0 to 1; labels: the number of each one's class; names: of the classes. A slice, or a tensor of
    positions, gives some of the pictures.
    """

    pixel_values: Float[Tensor, "number channels height width"]
    labels: Int[Tensor, "number"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice | Tensor) -> "Pictures":
        return Pictures(self.pixel_values[index], self.labels[index], self.names)


def digits(folder: str | os.PathLike | None = None) -> Splits:
    """1,797 handwritten digits, (1, 8, 8) pixels each, as `Splits(train, validation, test)` of `Pictures`.

    Split by position, 70 : 10 : 20. Who wrote a digit is not told, but the file goes from one writer to the next, so
    that most of the test is in hands that training has not seen: harder than a split at random.

    Raises ValueError for a damaged file, FileNotFoundError where it is missing.
    """
    images, labels = (find("digits", f"{what}.idx.gz", folder) for what in ("images", "labels"))
    whole = read_pictures(images, labels, 16, tuple("0123456789"))
    train, validation = len(whole) * 7 // 10, len(whole) * 8 // 10
    return Splits(whole[:train], whole[train:validation], whole[validation:])


def fashion(whole: bool = False, folder: str | os.PathLike | None = None) -> Splits:
    """Photographs of clothes, (1, 28, 28) gray pixels each, ten classes of equal size, as `Splits`.

    10,000 to train, 1,000 to validate, 2,000 to test: the part of Fashion-MNIST (Xiao et al. 2017) that is bundled.
    `whole`: all of it, 55,000, 5,000 and 10,000, for comparison with published results, from `folder`, from
    `$TXLIB_DATA/fashion-mnist` or from Debian's package `dataset-fashion-mnist`. Each part of the small set is a part
    of the same one of the whole.

    Raises ValueError for a damaged file, FileNotFoundError where it is missing.
    """
    if whole:
        train, test = (_original(part, folder) for part in ("train", "t10k"))
        last = [(train.labels == label).nonzero()[-HELD_OUT:, 0] for label in range(len(CLOTHES))]
        held_out = torch.zeros(len(train), dtype=torch.bool)
        held_out[torch.cat(last)] = True
        return Splits(train[~held_out], train[held_out], test)
    parts = []
    for part in Splits._fields:
        images, labels = (find("fashion", f"{part}-{what}.idx.xz", folder) for what in ("images", "labels"))
        parts.append(read_pictures(images, labels, 255, CLOTHES))
    return Splits(*parts)


def _original(part: str, folder: str | os.PathLike | None) -> Pictures:
    """The pictures of a part of the whole set, under its own names."""
    names = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
    if folder is None and (DEBIAN / WHOLE).is_dir():
        folder = DEBIAN / WHOLE
    try:
        images, labels = (find(WHOLE, name, folder) for name in names)
    except FileNotFoundError:
        where = folder or f"${{TXLIB_DATA}}/{WHOLE} or {DEBIAN / WHOLE}"
        raise FileNotFoundError(
            f"{names[0]} is not in {where}; the whole of Fashion-MNIST is not bundled: install Debian's "
            "dataset-fashion-mnist, or put its four files there"
        ) from None
    return read_pictures(images, labels, 255, CLOTHES)


def read_pictures(images: Path, labels: Path, white: int, names: tuple[str, ...]) -> Pictures:
    """Pictures and labels out of two files of MNIST's format.

    Args:
        white: the largest pixel, which becomes 1.

    Raises:
        ValueError: when a file is damaged, or they do not belong together.
    """
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.dim() != 3 or classes.shape != pixels.shape[:1] or pixels.max() > white or classes.max() >= len(names):
        raise ValueError(f"{images} and {labels.name} are not {len(names)} classes of pictures; restore both")
    return Pictures((pixels / white)[:, None], classes.long(), names)


def read_idx(path: Path) -> UInt8[Tensor, "*shape"]:
    """The numbers in a packed IDX file of bytes, MNIST's format.

    Raises:
        ValueError: when it is damaged.
    """
    try:
        content = UNPACK[path.suffix](path.read_bytes())
        zero, kind, axes = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{axes}I", content, 4)
        if (zero, kind) != (0, 8) or 0 in shape:
            raise ValueError("it is no IDX file of bytes")
        return torch.frombuffer(bytearray(content[4 + 4 * axes :]), dtype=torch.uint8).view(shape)
    except (EOFError, OSError, RuntimeError, ValueError, struct.error, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({str(error).splitlines()[0]}); download or restore it again") from None
