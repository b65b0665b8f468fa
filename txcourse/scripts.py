"""The JavaScript that outputs of a notebook carry."""

from functools import cache
from importlib.resources import files


@cache
def script_code(name: str) -> str:
    """Return the code of a file of this package, "guess" or "explore/common", without its comments and indents."""
    lines = (line.strip() for line in (files(__package__) / f"{name}.js").read_text("utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
