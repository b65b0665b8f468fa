"""Variants of an exercise: what in it may vary, as its source declares it, and how one variant is put in.

A cell tagged `variant` declares constants, `BASE = variant(10_000, 500, 2_000)`, and pools of tasks,
`pool("mask-causal", "mask-window")`. Code uses the constants as they are; a prompt, a docstring or a comment says
`{{BASE}}`, `{{BASE:,}}` for a format, `{{HEADS:words}}` for a number in words, and `{{HEADS - 1}}` for what follows
from it.

The exercise itself has the first of everything. A variant is a number: 0 has the first of everything as well, the
next ones the second, the third, and so on; after these come all other combinations. In a variant the constants are
written into the code as literals, so an answer that names them is right in no other copy of the exercise.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from txgrade.authoring.choices import Choice, read_choices, with_values
from txgrade.authoring.literals import with_literals
from txgrade.authoring.pools import deal_pools

PLACE = re.compile(r"\{\{(?P<value>[\w +\-*/()]*[A-Za-z_][\w +\-*/()]*)(?P<format>:[^{}\n]*)?\}\}")
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ARITHMETIC = (ast.Expression, ast.BinOp, ast.operator, ast.UnaryOp, ast.USub, ast.Constant, ast.Name, ast.Load)


def variant(first: Any, *others: Any) -> Any:
    """Declare the values that a name of an exercise may have: the first in the exercise itself, any in a variant."""
    return first


def pool(first: str, *others: str) -> None:
    """Declare alternative tasks by their grade_ids: the first is in the exercise itself, any one in a variant."""


@dataclass(frozen=True)
class Variants:
    """All variants of an exercise, by number.

    >>> choices = read_choices("A = variant(1, 2, 3)\\npool('x', 'y')")
    >>> [Variants(tuple(choices)).indices(number) for number in range(6)]
    [(0, 0), (1, 1), (2, 0), (0, 1), (1, 0), (2, 1)]
    """

    choices: tuple[Choice, ...] = ()

    @cached_property
    def count(self) -> int:
        """How many there are, the exercise's own values included."""
        return math.prod(self._sizes)

    @cached_property
    def diagonal(self) -> int:
        """How many of the first ones differ from each other wherever they can; together they have every value."""
        return max(self._sizes, default=1)

    @cached_property
    def _sizes(self) -> list[int]:
        return [len(choice.options) for choice in self.choices]

    def indices(self, number: int) -> tuple[int, ...]:
        """Return which option of each choice a variant has."""
        longest = self._sizes.index(self.diagonal) if self.choices else 0
        number, common = divmod(number, self.diagonal)
        indices = []
        for index, size in enumerate(self._sizes):
            offset = 0
            if index != longest:
                number, offset = divmod(number, size)
            indices.append((common + offset) % size)
        return tuple(indices)

    def number(self, indices: tuple[int, ...]) -> int:
        """Return the variant that has these options."""
        longest = self._sizes.index(self.diagonal) if self.choices else 0
        common = indices[longest] if self.choices else 0
        number = 0
        for index, size in reversed(list(enumerate(self._sizes))):
            if index != longest:
                number = number * size + (indices[index] - common) % size
        return number * self.diagonal + common

    def words(self, number: int) -> str:
        """Return what a variant has, for an author: `WIDTH = 8, task mask-window`."""
        return ", ".join(map(Choice.words, self.choices, self.indices(number)))


@dataclass
class Settled:
    """What was found while a variant was put into a notebook."""

    variants: Variants = Variants()
    problems: list[str] = field(default_factory=list)


def is_variant(cell: Any) -> bool:
    """Return whether the cell declares what may vary."""
    return "variant" in cell.metadata.get("tags", [])


def settle(notebook: Any, number: int | None = None) -> Settled:
    """Put one variant into the notebook of a source, in its cells and in its prompts.

    Without a `number`, each name stays and has its first value. With one, literals stand where the names were.
    """
    settled = Settled()
    cells = [(position, cell) for position, cell in enumerate(notebook.cells, 1) if is_variant(cell)]
    declared: list[tuple[Any, list[Choice]]] = []
    for position, cell in cells:
        try:
            declared.append((cell, read_choices(cell.source)))
        except ValueError as reason:
            settled.problems.append(f"cell {position}: {reason}")
    choices = [choice for _, in_cell in declared for choice in in_cell]
    settled.variants = Variants(tuple(choice for choice in choices if len(choice.options) > 1))
    if number is not None and not 0 <= number < settled.variants.count:
        settled.problems.append(_no_such(number, settled.variants))
    if settled.problems or not choices:
        return settled
    indices = dict(zip(map(id, settled.variants.choices), settled.variants.indices(number or 0), strict=True))
    chosen = {id(choice): indices.get(id(choice), 0) for choice in choices}
    for cell, in_cell in declared:
        cell.source = with_values(cell.source, [(choice, chosen[id(choice)]) for choice in in_cell], number is None)
    values: dict[str, Any] = {}
    literals: dict[str, str] = {}
    for choice in choices:
        values |= choice.values(chosen[id(choice)])
        literals |= choice.literals(chosen[id(choice)]) if len(choice.options) > 1 else {}
    settled.problems += _in_cells(notebook, partial(_fill_places, values=values))
    if number is not None and not settled.problems:
        settled.problems += _in_cells(notebook, partial(_put_literals, literals=literals))
    pools = [(choice, chosen[id(choice)]) for choice in choices if not choice.names]
    settled.problems += deal_pools(notebook, pools)
    notebook.cells = [cell for cell in notebook.cells if not is_variant(cell) or _has_code(cell.source)]
    return settled


def _no_such(number: int, variants: Variants) -> str:
    if variants.count == 1:
        return (
            "nothing in it varies, so there is no variant of it. Say what may vary in a cell tagged `variant`, "
            "e.g. WINDOW = variant(8, 12, 16): see docs/exercises.md, Variants"
        )
    first = f"; 1 to {variants.diagonal - 1} differ most from the exercise itself" if variants.diagonal > 2 else ""
    return f"has no variant {number}: choose a whole number from 0 to {variants.count - 1}{first}"


def _in_cells(notebook: Any, change: Callable[[Any], None]) -> list[str]:
    """Change each cell; return what is wrong, by cell."""
    problems = []
    for position, cell in enumerate(notebook.cells, 1):
        try:
            change(cell)
        except ValueError as reason:
            problems.append(f"cell {position}: {reason}")
    return problems


def _fill_places(cell: Any, values: dict[str, Any]) -> None:
    cell.source = PLACE.sub(partial(_spelled, values=values, code=cell.cell_type == "code"), cell.source)


def _put_literals(cell: Any, literals: dict[str, str]) -> None:
    if cell.cell_type == "code" and not is_variant(cell):
        cell.source = with_literals(cell.source, literals)


def _has_code(source: str) -> bool:
    return any(line.strip() and not line.startswith("#") for line in source.splitlines())


def variant_of(metadata: Iterable[Any]) -> int | None:
    """Return which variant a notebook says that it is, by its cells' metadata; None if it is none."""
    number = _of_parameters(metadata, "variant")
    return number if type(number) is int else None


def copy_of(metadata: Iterable[Any]) -> str:
    """Return the mark of the learner that a notebook was made for, by its cells' metadata."""
    mark = _of_parameters(metadata, "copy")
    return mark if isinstance(mark, str) and re.fullmatch("[0-9a-f]{1,64}", mark) else ""


def _of_parameters(metadata: Iterable[Any], key: str) -> Any:
    for entry in metadata:
        tags = entry.get("tags") if isinstance(entry, dict) else None
        if isinstance(tags, list) and "parameters" in tags:
            return entry.get(key)
    return None


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
