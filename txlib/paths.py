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


def install(extra: str) -> str:
    """Return the command that adds an extra to this installation, from the clone or the wheel that it came from."""
    if CLONE.is_file():
        return f'pip install -e "{PACKAGES}[{extra}]"'
    return f'pip install "txlib-course[{extra}] @ {_origin()}"'


def data_remedy() -> str:
    """Return how to get the bundled data sets and trained models where they are not installed; "" where they are."""
    if DATA.is_dir():
        return ""
    origin = _origin()
    source = f"{origin}#subdirectory=data" if origin.startswith("git+") else "file:///path/to/the/data/wheel"
    return f'; it is in txlib-course-data, which is not installed; pip install "txlib-course-data @ {source}"'


def _origin() -> str:
    """Return the address that this installation came from, as pip takes it."""
    try:
        record = json.loads(metadata.distribution("txlib-course").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        record = {}
    if "url" not in record:
        return "file:///path/to/the/wheel"
    return f"git+{record['url']}" if "vcs_info" in record else record["url"]
