"""Other numbers for a retake: what of an exercise may vary, as its source declares it, and how a value is put in.

A cell tagged `variant` declares names: `BASE = variant(10_000, 500, 2_000)`. Code uses them as they are; a prompt, a
docstring or a comment says `{{BASE}}`, `{{BASE:,}}` for a format, `{{HEADS:words}}` for a number in words, and
`{{HEADS - 1}}` for what follows from it. The first value is the exercise's own; a variant has one of the others (see
`retake`).
"""

import ast
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

PLACE = re.compile(r"\{\{(?P<value>[\w +\-*/()]*[A-Za-z_][\w +\-*/()]*)(?P<format>:[^{}\n]*)?\}\}")
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ARITHMETIC = (ast.Expression, ast.BinOp, ast.operator, ast.UnaryOp, ast.USub, ast.Constant, ast.Name, ast.Load)
FORM = "a cell tagged `variant` holds lines like WINDOW = variant(8, 12, 16), of different constants, and nothing else"


def variant(first: Any, *others: Any) -> Any:
    """Declare the values that a name of an exercise may have: the first as it is, one of the others in a variant."""
    return first


@dataclass(frozen=True)
class Choice:
    """One line of a `variant` cell: `names = variant(value, …)`, or one value that stays."""

    names: tuple[str, ...]
    sources: tuple[str, ...]  # each value, as it is written
    place: tuple[int, int]  # the range of the right-hand side in the cell

    def of(self, exercise: str, seed: int | None) -> str:
        """Return the value in a variant: never the first where there are others, and with `seed + 1` the next one."""
        if seed is None or len(self.sources) == 1:
            return self.sources[0]
        others = self.sources[1:]
        return others[(seed + zlib.crc32(f"{exercise}/{self.names}".encode())) % len(others)]

    def bound(self, source: str) -> dict[str, Any]:
        """Return the names with what a value gives them."""
        value = ast.literal_eval(source)
        return {self.names[0]: value} if len(self.names) == 1 else dict(zip(self.names, value, strict=True))


def is_variant(cell: Any) -> bool:
    """Return whether the cell declares what may vary."""
    return "variant" in cell.metadata.get("tags", [])


def settle(notebook: Any, exercise: str, seed: int | None = None) -> tuple[dict[str, Any], list[str]]:
    """Put one variant's values into a notebook of an exercise, in its cells and in its prompts.

    Returns the names that really had a choice, with their values, and what is wrong. Without a `seed`, each has its
    first value.
    """
    values: dict[str, Any] = {}
    drawn: dict[str, Any] = {}
    problems = []
    declared = [(number, cell) for number, cell in enumerate(notebook.cells, 1) if is_variant(cell)]
    for number, cell in declared:
        try:
            choices = _choices(cell.source)
        except ValueError as reason:
            problems.append(f"cell {number}: {reason}")
            continue
        picked = [(choice, choice.of(exercise, seed)) for choice in choices]
        for choice, source in picked:
            values |= choice.bound(source)
            drawn |= choice.bound(source) if len(choice.sources) > 1 else {}
        cell.source = _written(cell.source, picked)
    for number, cell in enumerate(notebook.cells if declared and not problems else (), 1):
        spelled = partial(_spelled, values=values, code=cell.cell_type == "code")
        try:
            cell.source = PLACE.sub(spelled, cell.source)
        except ValueError as reason:
            problems.append(f"cell {number}: {reason}")
    return drawn, problems


def variant_of(metadata: Iterable[Any]) -> int | None:
    """Return which variant a notebook is, by its cells' metadata; None where it is none."""
    for entry in metadata:
        tags = entry.get("tags") if isinstance(entry, dict) else None
        if isinstance(tags, list) and "parameters" in tags:
            number = entry.get("variant")
            return number if type(number) is int else None
    return None


def _choices(source: str) -> list[Choice]:
    """Return what a `variant` cell declares.

    Raises:
        ValueError: it contains something else.
    """
    lengths = [0, *(len(line.encode()) for line in source.splitlines(keepends=True))]
    begins = [sum(lengths[: number + 1]) for number in range(len(lengths))]

    def place(node: Any) -> tuple[int, int]:
        return begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset

    choices = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "txgrade":
            continue
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise ValueError(f"{FORM}; not: {ast.unparse(statement)}")
        target, value = statement.targets[0], statement.value
        call = value if isinstance(value, ast.Call) and ast.unparse(value.func) == "variant" else None
        nodes = call.args if call else [value]
        try:
            choice = Choice(
                tuple(_name(each) for each in (target.elts if isinstance(target, ast.Tuple) else [target])),
                tuple(source.encode()[slice(*place(node))].decode() for node in nodes),
                place(value),
            )
            bound = [repr(choice.bound(each)) for each in choice.sources]
        except (ValueError, TypeError):
            raise ValueError(f"{FORM}; not: {ast.unparse(statement)}") from None
        if call and (len(nodes) < 2 or len(set(bound)) < len(bound) or call.keywords):
            raise ValueError(f"{ast.unparse(statement)}: give at least two different values")
        choices.append(choice)
    return choices


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise ValueError(ast.unparse(node))
    return node.id


def _written(source: str, picked: list[tuple[Choice, str]]) -> str:
    """Return a `variant` cell with values instead of choices, and without imports."""
    plain = source.encode()
    for choice, value in reversed(picked):
        begin, end = choice.place
        plain = plain[:begin] + value.encode() + plain[end:]
    lines = plain.decode().splitlines()
    return "\n".join(line for line in lines if not line.startswith("from txgrade import")).strip()


def _spelled(match: re.Match, values: dict[str, Any], code: bool) -> str:
    """Return a value in words. In code, double braces may mean something else.

    Raises:
        ValueError: a name is not declared, it is no arithmetic, or the format is none of its value's.
    """
    names = set(re.findall(r"\b[A-Za-z_]\w*", match["value"]))
    if not names <= values.keys():
        if code:
            return match[0]
        raise ValueError(f"{match[0]} is not declared in a cell tagged `variant`: there are {', '.join(values)}")
    try:
        return _formatted(_computed(match["value"], values), (match["format"] or ":")[1:])
    except (ValueError, TypeError, SyntaxError, ArithmeticError) as reason:
        raise ValueError(f"{match[0]}: {reason}") from None


def _computed(expression: str, values: dict[str, Any]) -> Any:
    tree = ast.parse(expression.strip(), mode="eval")
    if not all(isinstance(node, ARITHMETIC) for node in ast.walk(tree)):
        raise ValueError("write names, numbers, + - * / ( ) only")
    return eval(compile(tree, "<place>", "eval"), {"__builtins__": {}}, values)


def _formatted(value: Any, form: str) -> str:
    """Format a value as Python does, or a number up to twelve by `words`, or by `Words` at the start of a sentence."""
    if form.lower() != "words":
        return format(value, form)
    if type(value) is not int or not 0 <= value < len(WORDS):
        raise ValueError(f"in words are the whole numbers 0 to {len(WORDS) - 1}, not {value!r}")
    return WORDS[value].capitalize() if form == "Words" else WORDS[value]
