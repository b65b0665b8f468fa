"""Where the bundled data sets and trained models are, and how to install what is missing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
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


EXTRAS = {
    "hf": ("huggingface_hub", "safetensors", "tokenizers"),
    "serve": ("starlette", "uvicorn"),
    "train": ("mido", "regex", "sacrebleu", "tensorboard", "tqdm", "typer"),
    "plots": ("matplotlib", "PIL"),
    "fp8": ("torchao",),
}
"""By extra, the packages that it adds; those before it in the list are smaller."""


def explain_missing(error: ModuleNotFoundError) -> str:
    """Return the error's message, and how to install the smallest extra that has the package, if one has it."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return str(error) if extra is None or "pip install" in str(error) else f"{package} is missing; {install(extra)}"


@contextmanager
def optional_package() -> Iterator[None]:
    """Let a failing import of a package of an extra say which extra to install.

    Raises:
        ModuleNotFoundError: the package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(explain_missing(error), name=error.name) from None


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
