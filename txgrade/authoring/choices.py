"""What a cell tagged `variant` declares, and the cell once the choices in it are made."""

import ast
from dataclasses import dataclass
from typing import Any

FORM = (
    "a cell tagged `variant` holds lines like WINDOW = variant(8, 12, 16), of different constants, or "
    'pool("one-task", "another"), and nothing else'
)


@dataclass(frozen=True)
class Choice:
    """One statement of a `variant` cell: `names = variant(value, …)`, one value that stays, or `pool("task", …)`."""

    names: tuple[str, ...]  # of constants; none of a pool
    options: tuple[tuple[str, ...], ...]  # of each value, what each name has, as it is written; of a pool the task
    sources: tuple[str, ...]  # each value, as it is written
    value: tuple[int, int]  # the right-hand side's bytes in the cell
    statement: tuple[int, int]  # the bytes of its lines, those of a comment right above included

    def words(self, index: int) -> str:
        """Return what an option is, for an author: `WIDTH = 8`, or `task mask-window`."""
        if not self.names:
            return f"task {self.options[index][0]}"
        return ", ".join(f"{name} = {value}" for name, value in self.literals(index).items())

    def literals(self, index: int) -> dict[str, str]:
        """Return what each name has, as it is written."""
        return dict(zip(self.names, self.options[index], strict=True)) if self.names else {}

    def values(self, index: int) -> dict[str, Any]:
        """Return what each name has."""
        return {name: ast.literal_eval(literal) for name, literal in self.literals(index).items()}


def read_choices(source: str) -> list[Choice]:
    """Return what a `variant` cell declares.

    Raises:
        ValueError: it contains something else.
    """
    text = _Text(source)
    return [
        _choice(statement, text)
        for statement in ast.parse(source).body
        if not (isinstance(statement, ast.ImportFrom) and statement.module == "txgrade")
    ]


def with_values(source: str, chosen: list[tuple[Choice, int]], keep_names: bool) -> str:
    """Return a `variant` cell with the chosen values, without imports and pools.

    Unless it is to keep names, it holds only those that don't vary; then it may be empty.
    """
    written = source.encode()
    for choice, index in reversed(chosen):
        if choice.names and (keep_names or len(choice.options) == 1):
            begin, end = choice.value
            written = written[:begin] + choice.sources[index].encode() + written[end:]
        else:
            begin, end = choice.statement
            written = written[:begin] + written[end:]
    lines = written.decode().splitlines()
    return "\n".join(line for line in lines if not line.startswith("from txgrade import")).strip()


class _Text:
    """A cell's source, and where things stand in it, in bytes."""

    def __init__(self, source: str):
        self.lines = [line.encode() for line in source.splitlines(keepends=True)]
        self.begins = [sum(map(len, self.lines[:number])) for number in range(len(self.lines) + 1)]

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.begins[node.lineno - 1] + node.col_offset,
            self.begins[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: ast.expr) -> str:
        return b"".join(self.lines)[slice(*self.span(node))].decode()

    def span_with_comment(self, statement: ast.stmt) -> tuple[int, int]:
        first = statement.lineno - 1
        while first > 0 and self.lines[first - 1].startswith(b"#"):
            first -= 1
        return self.begins[first], self.begins[statement.end_lineno or statement.lineno]


def _choice(statement: ast.stmt, text: _Text) -> Choice:
    form = ValueError(f"{FORM}; not: {ast.unparse(statement)}")
    if not isinstance(statement, ast.Assign | ast.Expr):
        raise form
    value, wanted = statement.value, "variant" if isinstance(statement, ast.Assign) else "pool"
    call = value if isinstance(value, ast.Call) and ast.unparse(value.func) == wanted else None
    nodes = call.args if call else [value]
    try:
        names = _names(statement)
        options = tuple(_option(node, names, text) for node in nodes)
    except (ValueError, TypeError, SyntaxError):
        raise form from None
    different = {repr([ast.literal_eval(part) for part in option] if names else option) for option in options}
    if call and (len(different) < max(2, len(nodes)) or call.keywords):
        raise ValueError(f"{ast.unparse(statement)}: give at least two different values")
    return Choice(names, options, tuple(map(text.of, nodes)), text.span(value), text.span_with_comment(statement))


def _names(statement: ast.Assign | ast.Expr) -> tuple[str, ...]:
    """Return the names that a statement declares; none of a pool."""
    if isinstance(statement, ast.Expr):
        return ()
    (target,) = statement.targets
    nodes = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(node, ast.Name) for node in nodes):
        raise ValueError
    return tuple(map(ast.unparse, nodes))


def _option(node: ast.expr, names: tuple[str, ...], text: _Text) -> tuple[str, ...]:
    """Return what a value gives each name, as it is written; without names, the task that it is."""
    value = ast.literal_eval(node)
    if not names:
        if not isinstance(value, str):
            raise ValueError
        return (value,)
    if len(names) == 1:
        return (text.of(node),)
    if not isinstance(node, ast.Tuple) or len(node.elts) != len(names):
        raise ValueError
    return tuple(map(text.of, node.elts))
