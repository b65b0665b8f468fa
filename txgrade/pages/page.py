"""Templates of the pages, and bounds on how much of a submission they show.

A page is one file that requests nothing from the network and runs nothing. Whatever came from a submission is text in
it: the templates escape by default, and the few pieces that are HTML are made in this folder.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from txgrade import __version__
from txgrade.text import number, plural, printable

TEMPLATES = Path(__file__).parent / "templates"
MAX_SOURCE = 20_000  # characters of an answer, or of one text output, that a page shows
MAX_LINE = 2_000  # characters of a line of a diagnosis, or of a note
MAX_NAME = 200  # characters of a name, a title or a label
ISOLATION = {
    "sealed": "in a sealed sandbox",
    "limits-only": "under limits of memory and time, not in a sealed sandbox",
    "none": "without a sandbox",
}


def key_of(*parts: str) -> str:
    """Return a short hash of what a page is made from: these parts and the templates."""
    whole = sha256()
    for part in (*parts, __version__, *(path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.iterdir()))):
        whole.update(f"{len(part)}:".encode() + part.encode("utf-8", "surrogatepass"))
    return whole.hexdigest()[:32]


def page(template: str, content: dict[str, Any]) -> str:
    """Return a filled template: one HTML file."""
    css = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return printable(_templates().get_template(template).render(css=css, **content))


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"points": lambda count: plural(count, "point"), "plural": plural, "number": number}
    environment.filters["short"] = lambda text: cut(str(text), MAX_NAME)
    return environment


def cut(text: str, most: int = MAX_SOURCE) -> str:
    """Return a text, shortened if it is longer than a page shows."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}\n… and {left:,} more characters"
