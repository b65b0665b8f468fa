"""Digits and clothes: what is bundled, its splits, and files that are damaged or missing."""

import gzip
import lzma
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from txlib.data import digits, fashion, images
from txlib.data.images import read_idx

DATA = Path(__file__).parents[3] / "data"
SETS = {"digits": digits, "fashion": fashion}


def idx(content: bytes, *shape: int) -> bytes:
    """An IDX file of bytes, by its description."""
    return b"\0\0\x08" + bytes([len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + content


@pytest.mark.parametrize("name", SETS)
def test_splits_share_no_picture(name):
    splits = SETS[name]()
    seen = [{picture.numpy().tobytes() for picture in part.pixel_values} for part in splits]
    assert [len(each) for each in seen] == [len(part) for part in splits]
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]
    for part in splits:
        assert part.pixel_values.min() == 0 and part.pixel_values.max() == 1 and len(part.names) == 10


def test_digits():
    splits = digits()
    assert [len(part) for part in splits] == [1257, 180, 360]
    assert splits.train.pixel_values.shape == (1257, 1, 8, 8)
    assert splits.train.labels[:20].tolist() == 2 * list(range(10))  # as they were asked for
    first = splits.train.pixel_values[0, 0] * 16
    assert first[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0] and splits.train.names[3] == "3"
    for part in splits:
        assert part.labels.bincount().min() > 0.8 * len(part) / 10


def test_clothes_have_classes_of_equal_size():
    splits = fashion()
    for part, each in zip(splits, (1000, 100, 200), strict=True):
        assert part.pixel_values.shape == (10 * each, 1, 28, 28)
        assert part.labels.bincount().tolist() == [each] * 10
    ink = [splits.train.pixel_values[splits.train.labels == label].mean() for label in range(10)]
    assert splits.train.names[int(torch.stack(ink).argmin())] == "sandal"  # straps are thin


def test_a_part_of_the_pictures():
    test = digits().test
    few, chosen = test[10:14], test[torch.tensor([3, 11])]
    assert len(few) == 4 and torch.equal(chosen.pixel_values[1], few.pixel_values[1]) and few.names == test.names


@pytest.fixture
def original(tmp_path):
    """A set like the whole one, of pictures of one pixel: its number among those of its file."""
    for part, each in ("train", 502), ("t10k", 3):
        number = 10 * each
        labels = bytes(place % 10 for place in range(number))
        pixels = b"".join((place // 10 % 256).to_bytes() for place in range(number))
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels, number, 1, 1)))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels, number)))
    return tmp_path


def test_the_whole_set(original, monkeypatch):
    splits = fashion(whole=True, folder=original)
    assert [len(part) for part in splits] == [20, 5000, 30]
    assert all(part.labels.bincount().unique().numel() == 1 for part in splits)
    assert (splits.train.pixel_values.flatten() * 255).round().tolist() == [0] * 10 + [1] * 10
    monkeypatch.setenv("TXLIB_DATA", str(original.parent))
    monkeypatch.setattr(images, "WHOLE", original.name)
    assert len(fashion(whole=True).test) == 30
    monkeypatch.setattr(images, "DEBIAN", original.parent)
    monkeypatch.delenv("TXLIB_DATA")
    assert len(fashion(whole=True).test) == 30


def test_what_is_missing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("TXLIB_DATA", raising=False)
    monkeypatch.setattr(images, "DEBIAN", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"install Debian's dataset-fashion-mnist, or put its four files there$"
    ):
        fashion(whole=True)
    for load, words in (
        (lambda: fashion(True, tmp_path), f"train-images-idx3-ubyte.gz is not in {tmp_path}; the whole of"),
        (lambda: fashion(folder=tmp_path), f"train-images.idx.xz is not in {tmp_path}$"),
        (lambda: digits(tmp_path), f"images.idx.gz is not in {tmp_path}$"),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            load()


def test_any_number_of_axes(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(bytes(range(24)), 2, 3, 4)))
    assert torch.equal(read_idx(tmp_path / "a.gz"), torch.arange(24).view(2, 3, 4).to(torch.uint8))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        lzma.compress(idx(bytes(4), 1, 2, 2))[:-20],
        gzip.compress(idx(bytes(4), 1, 2, 2)),  # packed otherwise than its name says
        lzma.compress(b"\0\0"),
        lzma.compress(idx(bytes(3), 1, 2, 2)),
        lzma.compress(idx(b"", 0, 2, 2)),
        lzma.compress(struct.pack(">4B3I", 0, 0, 13, 3, 1, 1, 1) + bytes(4)),  # floats
    ],
    ids=["empty", "cut off", "gzip", "no header", "too few", "none", "floats"],
)
def test_damaged_files_are_named(content, tmp_path):
    (tmp_path / "a.xz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a.xz is damaged \(.+\); download or restore it again$"):
        read_idx(tmp_path / "a.xz")


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [((2, 8, 8), (3,)), ((2, 64), (2,)), ((2, 8, 8), (2, 1))],
)
def test_files_that_do_not_belong_together(pixels, labels, tmp_path):
    for name, shape in ("images", pixels), ("labels", labels):
        content = idx(bytes(torch.Size(shape).numel()), *shape)
        (tmp_path / f"{name}.idx.gz").write_bytes(gzip.compress(content))
    with pytest.raises(
        ValueError, match="images.idx.gz and labels.idx.gz are not 10 classes of pictures; restore both"
    ):
        digits(tmp_path)


# The scripts


def test_the_script_of_digits_reads_the_packages_table(script, tmp_path):
    rows = [[*range(16), *[0] * 48, 7], [*[16] * 64, 0]]
    table = "".join(",".join(f"{number:.1f}" for number in row) + "\n" for row in rows)
    with zipfile.ZipFile(tmp_path / "scikit_learn-1.7.2-none-any.whl", "w") as wheel:
        wheel.writestr("sklearn/datasets/data/digits.csv.gz", gzip.compress(table.encode()))
    files = script("digits").make(tmp_path)
    assert files["labels.idx.gz"] == idx(bytes([7, 0]), 2)
    assert files["images.idx.gz"] == idx(bytes([*range(16), *[0] * 48, *[16] * 64]), 2, 8, 8)


def test_the_script_of_clothes_takes_what_it_says(script, original):
    fashion = script("fashion")
    chosen = {"train": (2, "train", False), "validation": (3, "train", True), "test": (1, "t10k", False)}
    fashion.CHOSEN.clear()
    fashion.CHOSEN.update(chosen)
    fashion.make.__globals__["SIZE"] = 1
    files = fashion.make(original)
    assert files["train-labels.idx.xz"] == idx(bytes([*range(10), *range(10)]), 20)
    assert files["validation-labels.idx.xz"] == idx(bytes(list(range(10)) * 3), 30)
    pixels = [content[16:] for name, content in files.items() if "images" in name]
    assert pixels == [
        bytes([0] * 10 + [1] * 10),
        bytes(place % 256 for place in (499, 500, 501) for _ in range(10)),
        bytes(10),
    ]
