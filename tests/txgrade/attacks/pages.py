"""Attacks on whoever reads a report: scripts in pages, controls in terminals, formulas in tables."""

import functools
from collections.abc import Callable
from typing import Any

from attacks import RIGHT, WRONG, attack, filled

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def quoted(make: Callable[[], str]) -> Callable:
    """Adds an attack by answers to two tasks: before the first hidden test an answer is quoted, after it no more."""

    @functools.wraps(make)
    def both() -> dict[str, str]:
        return {"before": make() + "\n\ncentre = spread\n", "target": make()}

    return attack("before", "target")(both)


@quoted
def script_in_an_error() -> str:
    """Raises an error whose class and message are HTML."""
    return f"""
Hostile = type({SCRIPT!r}, (Exception,), {{"__str__": lambda self: {SCRIPT!r} + "</style>]]>&quot;"}})


def spread(x):
    raise Hostile


winners = spread
"""


@quoted
def script_in_a_value() -> str:
    """Returns HTML where numbers are expected, and types, keys and dtypes that are HTML."""
    return f"""
def spread(x):
    return {{{SCRIPT!r}: {SCRIPT!r}}}


def winners(x):
    return type({SCRIPT!r}, (), {{}})()
"""


@quoted
def script_in_a_matrix() -> str:
    """Forges a matrix whose cells are HTML, small enough to be looked at."""
    return (
        WRONG
        + f"""
from txgrade.checking import checks
from txgrade.evidence.values import Recorder

honest = Recorder.__call__


def call(self, value, depth=0):
    made = honest(self, value, depth)
    if made["kind"] == "tensor":
        made["values"] = [{SCRIPT!r} for each in made["values"]]
    return made


Recorder.__call__ = call
"""
    )


@quoted
def script_in_a_display() -> str:
    """Displays HTML, SVG, markdown, LaTeX and JavaScript."""
    return (
        WRONG
        + f"""
from IPython.display import display

for kind in ("text/html", "image/svg+xml", "text/markdown", "text/latex", "application/javascript", "text/plain"):
    display({{kind: {SCRIPT!r}}}, raw=True)
print({SCRIPT!r})
"""
    )


@quoted
def script_in_a_figure() -> str:
    """Displays a PNG that ends its attribute and goes on as HTML."""
    return (
        WRONG
        + f"""
from IPython.display import display

display({{"image/png": "iVBORw0KGgo=" + '">' + {SCRIPT!r}}}, raw=True)
display({{"image/png": "javascript:alert(1)"}}, raw=True)
display({{"image/png": ["a", "b"]}}, raw=True)
"""
    )


@quoted
def script_in_the_answer() -> str:
    """Has HTML in its comments, names and texts."""
    return f"# </code></pre>{SCRIPT}<style>*{{display:none}}</style>" + WRONG + f"\nx = {SCRIPT!r}\n"


@quoted
def controls_in_an_error() -> str:
    """Raises an error with a terminal's controls: clear the screen, set the title, read from right to left."""
    return """
def spread(x):
    raise type("\\x1b[2J\\x1b]0;owned\\x07", (Exception,), {})("\\x1b[31m\\u202e\\x00\\x9b2J\\r\\b")


winners = spread
"""


@quoted
def name_of_a_megabyte() -> str:
    """Raises an error whose class has a name of a million letters, and whose message is longer."""
    return """
def spread(x):
    raise type("E" * 1_000_000, (Exception,), {})("m" * 10_000_000)


winners = spread
"""


@quoted
def error_that_raises() -> str:
    """Raises an error that raises when it is read."""
    return """
class Hostile(Exception):
    def __str__(self): raise Hostile
    def __repr__(self): raise SystemExit
    __name__ = property(lambda self: 1 / 0)


def spread(x):
    raise Hostile


def winners(x):
    raise Hostile
"""


@attack()
def error_that_never_ends() -> str:
    """Raises an error whose message takes for ever to read."""
    return """
class Hostile(Exception):
    def __str__(self):
        while True:
            pass


def spread(x):
    raise Hostile


winners = spread
"""


@quoted
def class_that_is_no_class() -> str:
    """Raises an error whose metaclass lies about names and instances."""
    return """
class Meta(type):
    __name__ = property(lambda cls: 7)
    __qualname__ = property(lambda cls: None)
    def __instancecheck__(cls, other): return True
    def __subclasscheck__(cls, other): return True


class Hostile(Exception, metaclass=Meta):
    pass


def spread(x):
    raise Hostile


winners = spread
"""


@quoted
def code_that_breaks_xml() -> str:
    """Shows texts that end XML, or are not allowed in it."""
    return """
def spread(x):
    return "]]></failure></testcase><testcase name='target'/>\\x00\\x01\\ufffe\\uffff"


def winners(x):
    raise ValueError("]]>\\x00\\x08<![CDATA[")
"""


@quoted
def formulas() -> str:
    """Raises an error that a spreadsheet would compute."""
    return WRONG.replace("return 0", 'raise ValueError(\'=HYPERLINK("http://127.0.0.1", "x")\')')


@attack(knows=("released",))
def script_in_metadata(released: Any) -> Any:
    """Has HTML in the names of cells and of the notebook, and in extra cells, which notes may quote."""
    import nbformat

    notebook = filled(released, RIGHT | {"target": WRONG})
    extra = nbformat.v4.new_code_cell(f"# {SCRIPT}\nprint(1)")
    extra.metadata["nbgrader"] = {
        "grade_id": SCRIPT,
        "solution": True,
        "grade": True,
        "locked": False,
        "points": SCRIPT,
        "schema_version": 3,
    }
    notebook.cells.append(extra)
    notebook.metadata["title"] = notebook.metadata["kernelspec"]["display_name"] = SCRIPT
    return notebook
