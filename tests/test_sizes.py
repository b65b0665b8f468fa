"""A file or function that one cannot take in at a glance is split. Ruff holds the complexity of functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_LINES = 450
FUNCTION_LINES = 60  # below the signature and the docstring


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function's name and the number of lines of its body, docstring excluded."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1


@pytest.mark.parametrize("package", ["txlib", "txgrade", "txcourse"])
def test_files_and_functions_are_short(package):
    paths = sorted((ROOT / package).rglob("*.py"))
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES} == {}
    long = {f"{path.stem}.{name}": n for path in paths for name, n in functions(path) if n > FUNCTION_LINES}
    assert paths and long == {}
