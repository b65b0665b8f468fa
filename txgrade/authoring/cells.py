"""What a cell of an exercise is, and what of it learners are given: no solutions, no hidden tests, no mark schemes."""

import ast
import re
from typing import Any

from txgrade.checking.verdict import STUB
from txgrade.text import stub_digest

SOLUTION, HIDDEN_TESTS, MARK_SCHEME = "SOLUTION", "HIDDEN TESTS", "MARK SCHEME"
# A line that is a comment with a mark's words and nothing else, as nbgrader's authors write them too.
MARK = re.compile(r"\s*(?:#+|<!--)\s*(?P<which>BEGIN|END) (?P<region>SOLUTION|HIDDEN TESTS|MARK SCHEME)\s*(?:-->)?\s*")
HEADING = re.compile(r"^#+ *Task[^·]*·(?P<title>.*)$", re.MULTILINE)  # of a task's prompt
WRITTEN_STUB = "Your answer here."
STUBS = (f'NotImplementedError("{STUB}")', WRITTEN_STUB)


def is_mistakes(cell: Any) -> bool:
    return "mistakes" in cell.metadata.get("tags", [])


def is_rubric(cell: Any) -> bool:
    return "rubric" in cell.metadata.get("tags", [])


def stays_home(cell: Any) -> bool:
    """Return whether only the author may see the cell; it is never executed as part of the notebook."""
    return is_mistakes(cell) or is_rubric(cell)


def is_parameters(cell: Any) -> bool:
    return "parameters" in cell.metadata.get("tags", [])


def is_answer(cell: Any) -> bool:
    """Return whether the learner answers in this cell, by code or in writing."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_written(cell: Any) -> bool:
    return is_answer(cell) and bool(cell.metadata["nbgrader"].get("grade"))


def is_check(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade")) and not is_answer(cell)


def stub(cell: Any) -> str:
    """Return what is released of a cell's source: no solutions, no hidden tests, no mark scheme.

    A written answer without marks is the author's from end to end.
    """
    source = strip_region(strip_region(cell.source, HIDDEN_TESTS), MARK_SCHEME)
    if not is_written(cell):
        return strip_solution(source)
    placeholder = f"...  # {WRITTEN_STUB}" if cell.cell_type == "code" else WRITTEN_STUB
    return strip_region(source, SOLUTION, placeholder) if has_region(source, SOLUTION) else placeholder


def mark_stub(cell: Any) -> None:
    """Store a digest of the stub in a released answer cell, so that a half-finished answer is recognized."""
    cell.metadata["txgrade"] = {"stub": stub_digest(cell.source)}


def is_stub(cell: Any) -> bool:
    """Return whether a learner's answer cell is as it was released, or empty."""
    noted = cell.metadata.get("txgrade", {}).get("stub")
    as_released = any(stub in cell.source for stub in STUBS) if noted is None else stub_digest(cell.source) == noted
    return as_released or not cell.source.strip()


def strip_solution(source: str) -> str:
    """Replace each marked solution by `raise NotImplementedError("your turn")`, as deep as it stood."""
    return strip_region(source, SOLUTION, f'raise NotImplementedError("{STUB}")')


def strip_hidden(source: str) -> str:
    """Remove the marked hidden tests."""
    return strip_region(source, HIDDEN_TESTS)


def has_region(source: str, region: str) -> bool:
    return any((mark := MARK.fullmatch(line)) and mark["region"] == region for line in source.splitlines())


def strip_region(source: str, region: str, instead: str | None = None) -> str:
    """Remove the lines between a region's marks, or replace them by a line, indented as the mark was.

    Raises:
        ValueError: a mark without its counterpart.
    """
    return "\n".join(_split(source, region, instead)[0])


def region_text(source: str, region: str) -> str:
    """Return the lines between a region's marks."""
    return "\n".join(_split(source, region)[1])


def _split(source: str, region: str, instead: str | None = None) -> tuple[list[str], list[str]]:
    """Return the lines outside and inside a region."""
    outside: list[str] = []
    within: list[str] = []
    inside = False
    for line in source.splitlines():
        mark = MARK.fullmatch(line)
        if not mark or mark["region"] != region:
            (within if inside else outside).append(line)
            continue
        if inside == (mark["which"] == "BEGIN"):
            other = "END" if inside else "BEGIN"
            raise ValueError(f"### {mark['which']} {region} without its ### {other} {region}")
        inside = not inside
        if inside and instead:
            outside.append(line[: len(line) - len(line.lstrip())] + instead)
    if inside:
        raise ValueError(f"### BEGIN {region} without its ### END {region}")
    return outside, within


def check_body(source: str) -> ast.Module:
    """Return a check cell as a function that is called at once: its names end with it, and no answer finds them.

    Line numbers stay those of the source.
    """
    tree = ast.parse(source)
    function = ast.parse("def _checked(): pass\n_checked()\ndel _checked")
    function.body[0].body = tree.body or function.body[0].body  # type: ignore[attr-defined]
    return ast.fix_missing_locations(function)


def definitions(source: str) -> str:
    """Return what a given cell defines for good: its imports, functions, classes and constants."""
    body = [node for node in ast.parse(source).body if isinstance(node, DEFINITIONS) or _is_constant(node)]
    return "\n\n".join(map(ast.unparse, body))


DEFINITIONS = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef


def _is_constant(node: ast.stmt) -> bool:
    """Return whether a statement names a number, a text, or a tuple, list or dict of these."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True
