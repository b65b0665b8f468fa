"""First-order mutants of a solution: one change at a time, as people slip.

Only the lines between BEGIN SOLUTION and END SOLUTION change; texts, types, docstrings, asserts and the messages of
errors stay as they are.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txgrade.authoring.cells import SOLUTION, has_region
from txgrade.authoring.mutation_operators import (
    OPERATORS,
    WITHOUT_EFFECT,
    Above,
    Change,
    axis_argument,
    called,
    number,
    receiver,
    shifted,
)

QUIET = ("print", "warn", "super")  # calls whose statement is not worth deleting
UNCLEAR = (ast.Constant, ast.Name, ast.Slice, ast.Starred, ast.comprehension, ast.arguments, ast.withitem)


@dataclass(frozen=True)
class Mutation:
    """One change of a cell: `line` is its line in the cell, `source` the whole cell with it."""

    line: int
    kind: str
    change: str  # `old → new`, in as few words as tell it from all other changes of the cell
    source: str


def mutations(source: str) -> list[Mutation]:
    """Return every first-order mutant of a cell's solution, equal ones once."""
    tree = ast.parse(source)
    inside = solution_lines(source)
    seen, made = {ast.unparse(tree)}, []
    for slot, above in list(_slots(tree, ())):
        node, line = slot.node, getattr(slot.node, "lineno", 0)
        if line not in inside:
            continue
        for change in _changes(node, above):
            before = _texts(node, above)
            slot.put(change.new)
            mutant = ast.unparse(tree)
            after = [change.words or _deleted(change.new, text) for text in _texts(change.new, above)]
            slot.put(node)
            if calls := _without_object(node, change.new):
                before, after = [calls[0], *before], [calls[1], *after]
            if mutant not in seen and _compiles(mutant):
                seen.add(mutant)
                made.append((line, change.kind, _shown(before, after, (node, *reversed(above))), mutant))
    changes = _told_apart([(line, shown) for line, _, shown, _ in made])
    return [Mutation(line, kind, text, mutant) for (line, kind, _, mutant), text in zip(made, changes, strict=True)]


def solution_lines(source: str) -> set[int]:
    """Return the numbers, from 1, of the lines between the marks."""
    lines, inside = set(), False
    for line_number, line in enumerate(source.splitlines(), 1):
        if has_region(line, SOLUTION):
            inside = not inside
        elif inside:
            lines.add(line_number)
    return lines


@dataclass(frozen=True)
class _Slot:
    """Where a node hangs in its parent."""

    parent: ast.AST
    name: str
    index: int | None
    node: ast.AST

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def _slots(node: ast.AST, above: Above) -> Iterator[tuple[_Slot, Above]]:
    """Yield every node that may change, the outer ones first."""
    above = (*above, node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "format_spec", "decorator_list", "ctx", "op", "ops"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert):
                continue
            yield _Slot(node, name, index, child), above
            if not isinstance(child, ast.Raise):
                yield from _slots(child, above)


def _changes(node: ast.AST, above: Above) -> Iterator[Change]:
    covered = _is_covered(node, above)
    for operator in (*STATEMENTS, *OPERATORS):
        if not covered:
            yield from operator(node, above)


def _is_covered(node: ast.AST, above: Above) -> bool:
    """Return whether an operator of a larger node sees to this one: a number that is an axis or the end of a slice."""
    parent = above[-1]
    if isinstance(parent, ast.keyword) and parent.arg in WITHOUT_EFFECT:
        return True
    if number(node) is None:
        return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    if isinstance(parent, ast.UnaryOp):
        return True
    outer = [ancestor for ancestor in above if not isinstance(ancestor, ast.Tuple)]
    last, before = outer[-1], outer[-2] if len(outer) > 1 else None
    if isinstance(last, ast.Slice):
        return node is not last.step
    if isinstance(last, ast.keyword):
        return last.arg in ("dim", "axis", "dims")
    if isinstance(last, ast.Call):
        index = axis_argument(last)
        argument = last.args[index] if index is not None and index < len(last.args) else None
        return argument is not None and any(ancestor is argument for ancestor in (node, *above))
    in_shape = isinstance(last, ast.Subscript) and isinstance(last.value, ast.Attribute) and last.value.attr == "shape"
    return in_shape or (isinstance(last, ast.Slice) and before is not None)


# What is said of a change.


def _texts(node: ast.AST, above: Above) -> list[str]:
    """Return a node and its ancestors as text, up to the statement that holds it."""
    texts = []
    for ancestor in (node, *reversed(above)):
        texts.append(ast.unparse(ancestor).splitlines()[0] if isinstance(ancestor, ast.stmt) else ast.unparse(ancestor))
        if isinstance(ancestor, ast.stmt):
            break
    return texts


def _without_object(old: ast.AST, new: ast.AST) -> tuple[str, str] | None:
    """Return two calls of methods on the same object, as `.sum(dim=0)`."""
    if not (isinstance(old, ast.Call) and isinstance(new, ast.Call)):
        return None
    one, other = old.func, new.func
    if not (isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute) and one.value is other.value):
        return None
    if isinstance(one.value, ast.Name):
        return None
    skipped = len(ast.unparse(one.value)) + 2 * isinstance(one.value, ast.BinOp | ast.UnaryOp | ast.Compare)
    texts = ast.unparse(old)[skipped:], ast.unparse(new)[skipped:]
    return texts if all(text.startswith(".") for text in texts) else None


def _deleted(new: ast.AST, text: str) -> str:
    return "(deleted)" if isinstance(new, ast.Pass) else text


def _shown(before: list[str], after: list[str], nodes: Above) -> list[str]:
    """Return the change at each size, the smallest that can be read first."""
    shown = [f"{old} → {new}" for old, new in zip(before, after, strict=True)]
    outer = (*nodes[1:], None)
    unclear = next(count for count, pair in enumerate(zip(nodes, outer, strict=True)) if not _is_unclear(*pair))
    return shown[min(unclear, len(shown) - 1) :]


def _is_unclear(node: ast.AST, parent: ast.AST | None) -> bool:
    """Return whether a node means little by itself, or has no text of its own."""
    is_index = isinstance(node, ast.Tuple) and isinstance(parent, ast.Subscript)
    return is_index or isinstance(node, UNCLEAR) or number(node) is not None


def _told_apart(changes: list[tuple[int, list[str]]]) -> list[str]:
    """Return each change's smallest unique text; if there is none, with a number."""
    size = [0] * len(changes)
    while True:
        texts = [shown[min(at, len(shown) - 1)] for at, (_, shown) in zip(size, changes, strict=True)]
        twice = Counter(texts)
        wider = [
            index
            for index, (_, shown) in enumerate(changes)
            if twice[texts[index]] > 1 and size[index] < len(shown) - 1
        ]
        if not wider:
            break
        for index in wider:
            size[index] += 1
    lines = sorted({line for line, _ in changes})
    return [
        text if twice[text] == 1 else f"{text} ({lines.index(line) + 1})"
        for text, (line, _) in zip(texts, changes, strict=True)
    ]


def _compiles(source: str) -> bool:
    try:
        compile(source, "<mutant>", "exec")
    except SyntaxError:
        return False
    return True


# Operators of statements, and of what filters.


def _deletions(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield a statement deleted: one without which all names are still bound."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if called(node.value) in QUIET or "super()" in ast.unparse(node):
            return
    elif isinstance(node, ast.Return):
        if above and getattr(above[-1], "body", [None])[-1] is node and isinstance(above[-1], ast.FunctionDef):
            return
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        if not _bound_by(node) <= _bound_before(node, above):
            return
    elif not isinstance(node, ast.AugAssign | ast.If | ast.For | ast.While | ast.Raise | ast.Delete):
        return
    yield Change("condition" if isinstance(node, ast.For | ast.While) else "statement", ast.Pass())


def _assignments(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield one of several values not assigned; the values that are returned exchanged."""
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
        for index in range(len(node.value.elts) - 1):
            values = [*node.value.elts]
            values[index : index + 2] = values[index + 1], values[index]
            yield Change("return", ast.Return(ast.Tuple(values, ast.Load())))
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else []
    before = _bound_before(node, above)
    for index, target in enumerate(targets if len(targets) == len(node.value.elts) else ()):
        if not isinstance(target, ast.Name) or target.id in before:
            old_value = copy.deepcopy(target)
            old_value.ctx = ast.Load()  # type: ignore[attr-defined]
            values = [*node.value.elts[:index], old_value, *node.value.elts[index + 1 :]]
            yield Change("statement", ast.Assign(node.targets, ast.Tuple(values, ast.Load()), lineno=node.lineno))


def _bound_by(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _bound_before(node: ast.stmt, above: Above) -> set[str]:
    """Return the names that the functions around a statement have bound above it."""
    names: set[str] = set()
    for function in (ancestor for ancestor in above if isinstance(ancestor, ast.FunctionDef)):
        names |= {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        names |= {
            name.id
            for name in ast.walk(function)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.lineno < node.lineno
        }
    return names


def _conditions(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield a condition always or never true, no else, `break` for `continue`."""
    if isinstance(node, ast.If):
        for value in (True, False):
            text = "if " + str(value)
            yield Change("condition", ast.If(ast.Constant(value), node.body, node.orelse), text)
        if node.orelse:
            yield Change("condition", ast.If(node.test, node.body, []), "(no else)")
    if isinstance(node, ast.While):
        yield Change("condition", ast.While(ast.Constant(False), node.body, node.orelse), "while False")
    if isinstance(node, ast.Continue):
        yield Change("loop", ast.Break())
    if isinstance(node, ast.Break):
        yield Change("loop", ast.Continue())


def _filters(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield what is to be dropped kept, or clamped to the nearest one that stays."""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        for index, loop in enumerate(node.generators):
            if loop.ifs:
                bare = ast.comprehension(loop.target, loop.iter, [], loop.is_async)
                loops = [*node.generators[:index], bare, *node.generators[index + 1 :]]
                yield Change("clamp", type(node)(node.elt, loops))
                if (bounds := _bounds(loop.ifs[0])) and len(loop.ifs) == 1:
                    yield Change("clamp", type(node)(_replaced(node.elt, bounds[0], _clamped(*bounds)), loops))
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_condition(node.slice):
        yield Change("clamp", node.value)
        bounds = _bounds(node.slice)
        if bounds and ast.dump(bounds[0]) == ast.dump(node.value):
            ends = [("min", bounds[1]), ("max", bounds[2])]
            keywords = [ast.keyword(name, end) for name, end in ends if end is not None]
            yield Change("clamp", ast.Call(ast.Attribute(node.value, "clamp", ast.Load()), [], keywords))
    if isinstance(node, ast.If) and not node.orelse:
        yield from _clamped_branch(node)


def _clamped_branch(node: ast.If) -> Iterator[Change]:
    """Yield `i = min(max(i, low), high - 1)` for `if not low <= i < high: continue` or `if low <= i < high: …`."""
    leaves = len(node.body) == 1 and isinstance(node.body[0], ast.Continue | ast.Raise)
    turned = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
    test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
    bounds = _bounds(test)
    if bounds is None or leaves != turned or not isinstance(bounds[0], ast.Name) or None in bounds:
        return
    assigned = ast.Assign([ast.Name(bounds[0].id, ast.Store())], _clamped(*bounds), lineno=node.lineno)
    text = ast.unparse(assigned)
    if turned:
        yield Change("clamp", assigned, text)
    else:
        yield Change("clamp", ast.If(ast.Constant(True), [assigned, *node.body], []), f"{text}; …")


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitAnd | ast.BitOr) and _is_condition(node.left) and _is_condition(node.right)
    return isinstance(node, ast.Compare)


def _bounds(test: ast.expr) -> tuple[ast.expr, ast.expr | None, ast.expr | None] | None:
    """Return what a condition bounds, and its bounds, both included: `0 <= i < n` gives i, 0, n - 1."""
    parts = [test]
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = test.values
    elif isinstance(test, ast.BinOp) and isinstance(test.op, ast.BitAnd):
        parts = [test.left, test.right]
    ends: dict[str, ast.expr] = {}
    bounded: ast.expr | None = None
    for part in parts:
        for left, op, right in _pairs(part):
            upper = isinstance(op, ast.Lt | ast.LtE)
            if not isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                return None
            middle = (
                (part.comparators[0] if len(part.ops) == 2 else part.left) if isinstance(part, ast.Compare) else left
            )
            if bounded is not None and ast.dump(bounded) != ast.dump(middle):
                return None
            bounded = middle
            is_left = left is middle
            end, strict = (right if is_left else left), isinstance(op, ast.Lt | ast.Gt)
            side = "high" if upper == is_left else "low"
            ends[side] = shifted(end, -1 if side == "high" else 1) if strict else end
    return (bounded, ends.get("low"), ends.get("high")) if bounded is not None and ends else None


def _pairs(part: ast.expr) -> list[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Return the comparisons of `a <= b < c`, two by two."""
    if not isinstance(part, ast.Compare) or len(part.ops) > 2:
        return []
    values = [part.left, *part.comparators]
    return list(zip(values, part.ops, values[1:], strict=False))


def _clamped(value: ast.expr, low: ast.expr | None, high: ast.expr | None) -> ast.expr:
    if low is not None:
        value = ast.Call(ast.Name("max", ast.Load()), [value, low], [])
    return value if high is None else ast.Call(ast.Name("min", ast.Load()), [value, high], [])


def _replaced(node: ast.expr, old: ast.expr, new: ast.expr) -> ast.expr:
    """Return the expression with every `old` in it replaced."""
    wanted = ast.dump(old)

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if ast.dump(node) == wanted else self.generic_visit(node)

    replaced: ast.expr = Replace().visit(copy.deepcopy(node))
    return replaced


def _reversed(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield a mask inverted."""
    if isinstance(node, ast.Call) and called(node) == "masked_fill" and receiver(node) is not None:
        index = len(node.args) - 2
        if index in (0, 1) and not isinstance(node.args[index], ast.UnaryOp):
            args = [*node.args]
            args[index] = ast.UnaryOp(ast.Invert(), args[index])
            yield Change("mask", ast.Call(node.func, args, node.keywords))


STATEMENTS = (_deletions, _assignments, _conditions, _filters, _reversed)
