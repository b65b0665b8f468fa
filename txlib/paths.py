"""Where the bundled data sets and trained models are, and how to install what is missing."""

import json
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PACKAGES = Path(__file__).parents[1]  # the folder that txlib is imported from: a clone, or site-packages
CLONE = PACKAGES / "data" / "pyproject.toml"


def _data() -> Path:
    if CLONE.is_file():
        return CLONE.parent
    spec = find_spec("txlib_data")
    return Path(spec.origin).parent if spec and spec.origin else PACKAGES / "txlib_data"


DATA = _data()
"""The data sets and trained models: `data/` in a clone, elsewhere the package `txlib_data`, if it is installed."""


def need_data(path: Path) -> Path:
    """Return the path of a bundled file or folder.

    Raises:
        FileNotFoundError: it is not there; where the data package is missing, the message says how to install it.
    """
    if path.exists():
        return path
    if not DATA.is_dir():
        raise FileNotFoundError(
            f"{path.name} is in the package txlib-course-data, which is not installed; {install_data()}"
        )
    raise FileNotFoundError(f"there is no {path}")


def install(extra: str) -> str:
    """Return the command that adds an extra to this installation, from the clone or the wheel that it came from."""
    if CLONE.is_file():
        return f'pip install -e "{PACKAGES}[{extra}]"'
    return f'pip install "txlib-course[{extra}] @ {_origin()}"'


def install_data() -> str:
    """Return the command that installs the bundled data sets and trained models."""
    origin = _origin()
    source = f"{origin}#subdirectory=data" if origin.startswith("git+") else "file:///path/to/the/data/wheel"
    return f'pip install "txlib-course-data @ {source}"'


def _origin() -> str:
    """Return the address that this installation came from, as pip takes it."""
    try:
        record = json.loads(metadata.distribution("txlib-course").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        record = {}
    if "url" not in record:
        return "file:///path/to/the/wheel"
    return f"git+{record['url']}" if "vcs_info" in record else record["url"]
