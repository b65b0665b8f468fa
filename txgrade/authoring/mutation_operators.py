"""The operators of mutation: each names the ways in which people get one kind of node of the syntax tree wrong.

An operator takes a node and its ancestors, outermost first, and gives changes: a kind, and the replacement of the
node. `mutations` applies them one at a time. Those of the COMMON kinds are the slips that people make most.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMMON = ("comparison", "clamp", "axis", "term", "factor", "statement", "arguments")
MODULES = ("torch", "F", "nn", "math", "np", "numpy", "functional", "special", "linalg")

FLIPPED: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OTHER: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TERMS = (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)
FACTORS = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult)

COUNTERPARTS = """sum mean, max min, amax amin, argmax argmin, floor ceil, any all, zeros ones, zeros_like ones_like,
    tril triu, sin cos, maximum minimum, var std, cat stack, cummax cummin, clamp_min clamp_max, log log2"""
PAIRS = [pair.split() for pair in COUNTERPARTS.split(",")]
COUNTERPART = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
BUILTINS = ("max", "min", "any", "all")  # those of these counterparts that are also Python's own functions


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DROPPED = _words(
    """sqrt rsqrt exp log log2 log1p abs square floor ceil round isqrt reciprocal softmax log_softmax tril triu tanh
    sigmoid relu erf cumsum cumprod flip nan_to_num clone detach sorted reversed sort masked_fill"""
)
CLAMPS = _words("clamp clamp_min clamp_max clip")
TRANSPOSES = _words("transpose permute t swapaxes movedim")

# The index of a method's axis argument; a function's is one later.
FIRST = """sum mean softmax log_softmax cumsum cumprod argmax argmin amax amin max min prod var std logsumexp argsort
    sort unsqueeze squeeze flatten unbind any all gather scatter scatter_add index_select index_add flip unfold select
    narrow cat stack size unflatten concatenate"""
SECOND = "topk roll split chunk norm repeat_interleave diff tensor_split"
AXIS = dict.fromkeys(_words(FIRST), 0) | dict.fromkeys(_words(SECOND), 1)
DEFAULT_AXIS = dict.fromkeys(_words("cat stack unbind split chunk"), 0)
DEFAULT_AXIS |= dict.fromkeys(_words("topk sort argsort diff"), -1)

SYMMETRIC = _words("min max maximum minimum equal allclose isclose logaddexp isinstance print transpose swapaxes gcd")
NOT_EXCHANGED = SYMMETRIC + _words("where masked_fill gather scatter unflatten clamp clip topk pad")
NOT_SHORTENED = _words(
    "isinstance zip range arange min max maximum minimum where reshape view permute transpose zeros ones full"
)
WITHOUT_EFFECT = ("strict", "device")  # keywords that change nothing for right inputs, on one machine


@dataclass(frozen=True)
class Change:
    """The replacement of a node; `words` describes it if the node's own text would not."""

    kind: str
    new: ast.AST
    words: str = ""


Above = tuple[ast.AST, ...]
Operator = Callable[[ast.AST, Above], Iterator[Change]]


def numbers(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield whole numbers ± 1, and 0 for 2; floats doubled, halved and negated; -inf → 0; True for False."""
    value = number(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield Change("truth", ast.Constant(not node.value))
    elif isinstance(value, float):
        for other in (2 * value, value / 2, -value) if value else (1.0,):
            yield Change("number", ast.Constant(other))
    elif value is not None:
        for other in (value + 1, value - 1, *((2 - value,) if value in (0, 2) else ())):
            if not _is_neutral(other, node, above[-1]):
                yield Change("number", ast.Constant(other))
    elif isinstance(node, ast.expr) and _is_infinity(node) and not (above and isinstance(above[-1], ast.UnaryOp)):
        yield Change("number", ast.Constant(0.0))
        yield Change("sign", ast.UnaryOp(ast.USub(), node))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_infinity(node.operand):
        yield Change("number", ast.Constant(0.0))


def _is_neutral(value: int, node: ast.AST, parent: ast.AST) -> bool:
    """Return whether a number says what a dropped term, factor or power says: + 0, * 1, / 1, ** 1."""
    if not isinstance(parent, ast.BinOp):
        return False
    if isinstance(parent.op, ast.Add | ast.Sub):
        return value == 0
    right = parent.right is node and isinstance(parent.op, ast.Div | ast.FloorDiv | ast.Pow)
    return value == 1 and (right or isinstance(parent.op, ast.Mult))


def number(node: ast.AST | None) -> int | float | None:
    """Return the number that is written here, a minus before it included; None where it is something else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return node.value if is_number else None  # type: ignore[union-attr]


def _is_infinity(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "float":
        return bool(node.args) and "inf" in ast.unparse(node.args[0])
    return isinstance(node, ast.Attribute) and node.attr == "inf"


def comparisons(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield < for <=, and the other way round; == for !=; in for not in."""
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            others = FLIPPED[type(op)]
            for other in others[:1] if len(node.ops) > 1 else others:
                ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                yield Change("comparison", ast.Compare(node.left, ops, node.comparators))


def arithmetic(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield another operation, a term or a factor dropped, operands exchanged, a minus or a `not` dropped."""
    if isinstance(node, ast.UnaryOp) and number(node.operand) is None:
        yield Change("sign" if isinstance(node.op, ast.USub) else "logic", node.operand)
    if isinstance(node, ast.AugAssign):
        if type(node.op) in OTHER:
            yield Change("operation", ast.AugAssign(node.target, OTHER[type(node.op)](), node.value))
        yield Change("operation", ast.Assign([node.target], node.value, lineno=node.lineno))
    if not isinstance(node, ast.BinOp):
        return
    left, op, right = node.left, node.op, node.right
    if type(op) in OTHER:
        yield Change("operation", ast.BinOp(left, OTHER[type(op)](), right))
    if isinstance(op, ast.Div):
        yield Change("operation", ast.BinOp(left, ast.FloorDiv(), right))
    if isinstance(op, (*TERMS, *FACTORS)):
        yield Change("term" if isinstance(op, TERMS) else "factor", left)
    if isinstance(op, ast.Sub) and not _goes_on(left, op):
        yield Change("operation", ast.UnaryOp(ast.USub(), right))
    if isinstance(op, (ast.Add, ast.BitAnd, ast.BitOr, ast.Mult)) and not _goes_on(left, op):
        yield Change("factor" if isinstance(op, ast.Mult) else "term", right)
    if isinstance(op, ast.Pow):
        yield Change("power", left)
    if isinstance(op, (ast.Sub, ast.Div, ast.MatMult)):
        is_usual = not isinstance(op, ast.Div) and number(left) is None and number(right) is None
        yield Change("arguments" if is_usual else "operation", ast.BinOp(right, op, left))


def _goes_on(left: ast.expr, op: ast.operator) -> bool:
    """Return whether this is the end of a longer sum or product, of which an operator drops one part at a time."""
    kin = TERMS if isinstance(op, TERMS) else FACTORS
    return isinstance(left, ast.BinOp) and isinstance(left.op, kin)


def logic(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield `and` for `or`, a condition dropped, one branch of an `… if … else …`."""
    if isinstance(node, ast.BoolOp):
        yield Change("logic", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        for index in range(len(node.values)):
            left = node.values[:index] + node.values[index + 1 :]
            yield Change("term", left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
    if isinstance(node, ast.IfExp):
        yield Change("condition", node.body)
        yield Change("condition", node.orelse)


def axes(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield another axis, no axis, a new axis elsewhere."""
    if isinstance(node, ast.Call):
        for index, argument in enumerate(node.args):
            if index == axis_argument(node):
                for other in _other_axes(argument, above):
                    yield Change("axis", _call(node, args=[*node.args[:index], other, *node.args[index + 1 :]]))
                if index == len(node.args) - 1 and not _is_default_axis(node, argument):
                    yield Change("axis", _call(node, args=node.args[:index]))
        for index, keyword in enumerate(node.keywords):
            if keyword.arg in ("dim", "axis", "dims"):
                rest = [other for other in node.keywords if other is not keyword]
                for other in _other_axes(keyword.value, above):
                    changed = ast.keyword(keyword.arg, other)
                    yield Change("axis", _call(node, keywords=[*rest[:index], changed, *rest[index:]]))
                keeps = any(other.arg == "keepdim" for other in rest)
                if not keeps and not _is_default_axis(node, keyword.value):
                    yield Change("axis", _call(node, keywords=rest))
    if isinstance(node, ast.Subscript):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            for other in _other_axes(node.slice, above):
                yield Change("axis", ast.Subscript(node.value, other, node.ctx))
        yield from _new_axis_moved(node)


def _is_default_axis(call: ast.Call, axis: ast.expr) -> bool:
    return called(call) in DEFAULT_AXIS and DEFAULT_AXIS[called(call)] == number(axis)


def axis_argument(call: ast.Call) -> int | None:
    """Return the index of the axis among the positional arguments, if this call has one."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in AXIS:
        return None
    return AXIS[call.func.attr] + _is_function(call)


def _other_axes(axis: ast.expr, above: Above) -> Iterator[ast.expr]:
    """Yield neighbouring axes, and the far end.

    The same axis counted from the other end is left out, since on matrices it is the same, unless the task is for any
    number of axes.
    """
    if isinstance(axis, ast.Tuple):
        for index, element in enumerate(axis.elts):
            for other in _other_axes(element, above):
                yield ast.Tuple([*axis.elts[:index], other, *axis.elts[index + 1 :]], ast.Load())
        return
    value = number(axis)
    if type(value) is not int:
        return
    others = {-1: (-2, 0), -2: (-1, -3), 0: (1,), 1: (0, 2)}.get(value, (value - 1, value + 1))
    if value in (-1, -2) and _any_axes(above):
        others += (value + 2,)
    yield from map(ast.Constant, others)


def _any_axes(above: Above) -> bool:
    """Return whether a function around this takes tensors with any number of axes, as its types say: `"*batch n d"`."""
    functions = [node for node in above if isinstance(node, ast.FunctionDef)]
    arguments = [argument for function in functions for argument in function.args.args]
    types = [ast.unparse(argument.annotation) for argument in arguments if argument.annotation]
    return any("..." in text or "*" in text for text in types)


def _new_axis_moved(node: ast.Subscript) -> Iterator[Change]:
    """Yield `x[None, :]` for `x[:, None]`."""
    if not isinstance(node.slice, ast.Tuple):
        return
    index = node.slice.elts
    for at, (one, other) in enumerate(zip(index, index[1:], strict=False)):
        new = [isinstance(part, ast.Constant) and part.value is None for part in (one, other)]
        if sum(new) == 1 and isinstance(index[at + new[0]], ast.Slice):
            moved = [*index[:at], other, one, *index[at + 2 :]]
            yield Change("axis", ast.Subscript(node.value, ast.Tuple(moved, ast.Load()), node.ctx))


def transposes(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield a transposition dropped; the first two axes of `permute` exchanged."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H", "mH"):
        yield Change("transpose", node.value)
    if isinstance(node, ast.Call) and called(node) in TRANSPOSES and (inner := receiver(node)):
        yield Change("transpose", inner)


def clamps(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield a clamp dropped, or one end of it; `min(a, b)` → a, → b."""
    if not isinstance(node, ast.Call):
        return
    name, inner = called(node), receiver(node)
    if name in CLAMPS and inner:
        yield Change("clamp", inner)
        bounds = node.args[_is_function(node) :]
        if len(bounds) == 2:
            for end, bound in zip(("min", "max"), bounds, strict=True):
                arguments = node.args[: _is_function(node)]
                yield Change("clamp", _call(node, args=arguments, keywords=[ast.keyword(end, bound)]))
        for keyword in node.keywords if len(node.keywords) > 1 else ():
            yield Change("clamp", _call(node, keywords=[other for other in node.keywords if other is not keyword]))
    of_two = isinstance(node.func, ast.Name) and name in ("min", "max") and len(node.args) > 1
    if (of_two or name in ("maximum", "minimum")) and not node.keywords:
        both = [*node.args] if of_two or _is_function(node) else [inner, *node.args]
        for argument in both:
            if argument is not None and not isinstance(argument, ast.Starred):
                yield Change("clamp", argument)


def calls(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield the counterpart of a function; a function, an argument or a keyword dropped; arguments exchanged."""
    if not isinstance(node, ast.Call):
        return
    name, args = called(node), node.args
    if name in COUNTERPART and (isinstance(node.func, ast.Attribute) or name in BUILTINS):
        yield Change("function", _call(node, func=_renamed(node.func, COUNTERPART[name])))
    if name in DROPPED and (inner := receiver(node)):
        yield Change("mask" if name == "masked_fill" else "function", inner)
    if name == "where" and len(args) == 3:
        yield Change("arguments", _call(node, args=[args[0], args[2], args[1]]))
    if name == "pad" and len(args) > 1 and isinstance(args[1], ast.Tuple):
        pairs = args[1].elts
        sides = ast.Tuple([pairs[index ^ 1] for index in range(len(pairs) // 2 * 2)], ast.Load())
        yield Change("arguments", _call(node, args=[args[0], sides, *args[2:]]))
    if (
        name not in NOT_EXCHANGED
        and len(args) > 1
        and not any(isinstance(argument, ast.Starred) for argument in args[:2])
    ):
        kind = "loop" if name in ("range", "arange") else "arguments"
        yield Change(kind, _call(node, args=[args[1], args[0], *args[2:]]))
    if name not in NOT_SHORTENED and len(args) > 1 and axis_argument(node) is None:
        yield Change("argument", _call(node, args=args[:-1]))
    for keyword in node.keywords:
        is_truth = isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)  # turned over
        if keyword.arg not in {None, "dim", "axis", "dims", *WITHOUT_EFFECT} and not is_truth:
            yield Change("argument", _call(node, keywords=[other for other in node.keywords if other is not keyword]))


def ranges(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield `range` and `arange` that begin one late or end one early; `arange` that counts from 1."""
    if not isinstance(node, ast.Call) or called(node) not in ("range", "arange") or not 1 <= len(node.args) <= 2:
        return
    first, last = (ast.Constant(0), *node.args)[-2:]
    later = ast.Constant(1) if len(node.args) == 1 else shifted(first, 1)
    early = [shifted(last, -1)] if len(node.args) == 1 else [first, shifted(last, -1)]
    yield Change("loop", _call(node, args=early))
    yield Change("loop", _call(node, args=[later, last]))
    if called(node) == "arange":
        yield Change("loop", _call(node, args=[later, shifted(last, 1)]))


def slices(node: ast.AST, above: Above) -> Iterator[Change]:
    """Yield the ends of a slice ± 1, an end dropped, a start counted from the end."""
    if not isinstance(node, ast.Slice):
        return
    for end in ("lower", "upper", "step"):
        bound = getattr(node, end)
        others: list[ast.expr | None] = []
        if bound is not None:
            others = [shifted(bound, 1), shifted(bound, -1)] if end != "step" else []
            others += [None] if number(bound) != 0 else []
        if bound is not None and end == "lower" and number(bound) is None:
            others.append(ast.UnaryOp(ast.USub(), bound))
        for other in others:
            changed = copy.copy(node)
            setattr(changed, end, other)
            yield Change("slice", changed)


def shifted(node: ast.expr, by: int) -> ast.expr:
    """Return a node plus or minus 1: a number computed, anything else as a sum."""
    value = number(node)
    if value is not None:
        return ast.Constant(value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def called(call: ast.Call) -> str:
    """Return the last part of a called function's name."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def receiver(call: ast.Call) -> ast.expr | None:
    """Return what a method is called on, or the first argument of a function."""
    if _is_function(call) or not isinstance(call.func, ast.Attribute):
        return call.args[0] if call.args and not isinstance(call.args[0], ast.Starred) else None
    return call.func.value


def _is_function(call: ast.Call) -> bool:
    """Return whether this is a function's call, `torch.sum(x)` or `sum(x)`, and not a method's."""
    if isinstance(call.func, ast.Name):
        return True
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return (isinstance(owner, ast.Name) and owner.id in MODULES) or (
        isinstance(owner, ast.Attribute) and owner.attr in MODULES
    )


def _call(call: ast.Call, **parts: object) -> ast.Call:
    """Return a call with other parts: func, args, keywords."""
    changed = copy.copy(call)
    for name, part in parts.items():
        setattr(changed, name, part)
    return changed


def _renamed(func: ast.expr, name: str) -> ast.expr:
    new = copy.copy(func)
    if isinstance(new, ast.Attribute):
        new.attr = name
    elif isinstance(new, ast.Name):
        new.id = name
    return new


OPERATORS: tuple[Operator, ...] = (
    axes, transposes, clamps, comparisons, arithmetic, logic, ranges, slices, calls, numbers,
)  # fmt: skip
