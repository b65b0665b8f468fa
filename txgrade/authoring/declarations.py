"""What an author declares about a task: the usual wrong answers, other right ones, and how it is graded.

These calls belong in cells tagged `mistakes`, which are never released. They only register; `txgrade release`, the
tests and the grader use what was registered. In a notebook they do nothing.
"""

import ast
import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from txgrade.records.lateness import deadline

ATTENTION = "attention"  # a group of operators that `forbid` knows by name
ATTENTION_PARTS = (  # of their names; _safe_softmax is what torch's unfused attention calls, and nothing else
    "scaled_dot_product",
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "scaled_dot_attention",
    "multi_head_attention",
    "_safe_softmax",
)


@dataclass(frozen=True)
class KnownAnswer:
    """An answer to a task: wrong with a sentence, right without one."""

    task: str
    answer: Any
    sentence: str | None = None


@dataclass(frozen=True)
class Forbidden:
    """What an answer to a task must not call, by name and by operator."""

    task: str
    names: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowed:
    """A library function that answers to a task may call, although it returns the reference's values."""

    task: str
    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Equivalent:
    """A change of the solution that makes no difference, and why."""

    task: str
    change: str
    reason: str


@dataclass
class Declarations:
    """Everything that an author's cells declare."""

    answers: list[KnownAnswer] = field(default_factory=list)
    forbidden: list[Forbidden] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)
    measured: dict[str, Callable] = field(default_factory=dict)  # by task
    equivalent: list[Equivalent] = field(default_factory=list)
    due: dict | None = None  # the arguments of `due`


_declared: Declarations | None = None


def mistake(task: str, answer: Any, sentence: str) -> None:
    """Declare a known wrong answer to a task, and the sentence a good tutor says to it.

    `answer` replaces the function or class that the task's solution cell defines; if the cell defines
    several, it is a dict from names to stand-ins. Inside it every name means the reference's, so that
    `lambda n: ~causal_mask(n)` inverts the right mask.
    """
    if not sentence.strip():
        raise ValueError(f'mistake("{task}", …) needs a sentence that tells the learner what went wrong')
    _declare_answer(KnownAnswer(task, answer, sentence))


def alternative(task: str, answer: Any) -> None:
    """Declare another right answer to a task, written differently: release proves that its check accepts it."""
    _declare_answer(KnownAnswer(task, answer))


def equivalent(task: str, change: str, reason: str) -> None:
    """Declare a change after which the solution is still right.

    For example `equivalent("rows", "dim=-1 → dim=1", "x is a matrix.")`. `change` is what `txgrade validate --mutants`
    prints, `old → new`. A declaration that fits no surviving mutant is reported.
    """
    if not reason.strip():
        raise ValueError(f'equivalent("{task}", "{change}", …) needs a reason')
    if _declared is not None:
        _declared.equivalent.append(Equivalent(task, change, reason))


def forbid(task: str, names: str | Sequence[str] = (), operators: str | Sequence[str] = ()) -> None:
    """Declare what an answer to a task must not call: `forbid("softmax-rows", "softmax", operators="aten._softmax")`.

    A name alone, `softmax`, is found in any form: function, method, import. A dotted one, `torch.nn.Softmax`, is found
    under whatever name it was imported, and where its last part is called as a method. Operators are torch's own, seen
    while the check runs; `"attention"` means all that compute attention, forward or backward. A match is a flag
    for a person: it takes no points off. `forbid("*", …)` applies to every task.
    """
    names, operators = _texts(names), _texts(operators)
    if not names and not operators:
        raise ValueError(f'forbid("{task}") names nothing: give e.g. names="softmax" or operators="aten._softmax"')
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f'forbid("{task}", …): {name!r} is not a name; give e.g. "torch.softmax" or "softmax"')
    for name in operators:
        if name != ATTENTION and not re.fullmatch(r"aten\.\w+", name):
            raise ValueError(
                f'forbid("{task}", …): {name!r} is not an operator; give e.g. "aten._softmax", or "{ATTENTION}" '
                "for all that compute attention"
            )
    if ATTENTION in operators:
        operators = tuple(dict.fromkeys((*(name for name in operators if name != ATTENTION), *attention_operators())))
    if _declared is not None:
        _declared.forbidden.append(Forbidden(task, names, operators))


def allow(task: str, names: str | Sequence[str], *, reason: str) -> None:
    """Declare a library function that may be called.

    For example `allow("counts", "torch.bincount", reason="the task is to find it")`. `txgrade validate` reports
    each function of torch that returns the reference's values and that `forbid` does not name. Here an author says that
    this is intended; the prompt should tell learners as well. `allow("*", …)` applies to every task.
    """
    names = _texts(names)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f'allow("{task}", …): {name!r} is not a name; give e.g. "torch.bincount"')
    if not names or not reason.strip():
        raise ValueError(f'allow("{task}", …) needs names, e.g. "torch.bincount", and a reason why they may be called')
    if _declared is not None:
        _declared.allowed.append(Allowed(task, names, reason))


@cache
def attention_operators() -> tuple[str, ...]:
    """Return this torch's operators that compute attention, forward or backward, fused or not."""
    import torch

    names = {name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    return tuple(f"aten.{name}" for name in sorted(names) if any(part in name for part in ATTENTION_PARTS))


def measured(task: str, function: Callable) -> None:
    """Declare a task whose check shows weights or tokens; `function(shown, private)` says what they are worth.

    It runs in the grader, with the names of the whole source, on data that no submission ever sees. `shown` is the
    list of the values that the check showed: of weights a dict of float32 tensors, of tokens a list of integers or a
    list of such lists. It returns the fraction of the task's points, 0 to 1, or (fraction, sentence for the learner).
    `private` draws as `show` does, from the grader's own seed; it begins where the check's `show.private` began, so
    what that drew can be drawn again, with the truth. What the function raises counts as 0.
    """
    if not callable(function):
        raise ValueError(f'measured("{task}", …) needs a function of what was shown and a seed')
    if _declared is not None:
        if task in _declared.measured:
            raise ValueError(f'measured("{task}", …) is there twice')
        _declared.measured[task] = function


def due(
    when: str,
    *,
    timezone: str = "UTC",
    grace_minutes: int | float = 0,
    per_day: int | float = 0.1,
    at_most: int | float = 1,
) -> None:
    """Declare when the exercise is due: `due("2026-12-01 23:59", timezone="Europe/Zurich", per_day=0.1, at_most=0.5)`.

    A submission more than `grace_minutes` late loses the fraction `per_day` of its points for each day begun since
    the due date, and never more than `at_most`.
    """
    rule = {"when": when, "timezone": timezone, "grace_minutes": grace_minutes, "per_day": per_day, "at_most": at_most}
    deadline(rule)
    if not (math.isfinite(grace_minutes) and grace_minutes >= 0):
        raise ValueError(f"due(…, grace_minutes={grace_minutes}): give minutes, 0 or more")
    for name, fraction in {"per_day": per_day, "at_most": at_most}.items():
        if isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ValueError(f"due(…, {name}={fraction}): give a fraction of the points, from 0 to 1")
    if _declared is not None:
        if _declared.due is not None:
            raise ValueError("due(…) is there twice; an exercise has one date")
        _declared.due = rule


def is_due(statement: ast.stmt) -> bool:
    """Return whether a statement is a call of `due`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in ("due", "txgrade.due")


def read_due(sources: Iterable[str]) -> dict | None:
    """Return the rule that cells tagged `mistakes` declare by `due`, without running them.

    Raises:
        ValueError: the call makes no sense, there are two, or its values are not written as texts and numbers.
    """
    with collect_declarations() as declared:
        for statement in (statement for source in sources for statement in ast.parse(source).body):
            if not is_due(statement):
                continue
            call: Any = statement
            try:
                values = [ast.literal_eval(value) for value in call.value.args]
                named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.value.keywords}
                due(*values, **named)
            except TypeError as reason:
                raise ValueError(f"{ast.unparse(statement)}: {reason}") from None
            except ValueError as reason:
                if "malformed" not in str(reason):
                    raise
                raise ValueError(f"{ast.unparse(statement)}: write its values as texts and numbers") from None
    return declared.due


@contextlib.contextmanager
def collect_declarations() -> Iterator[Declarations]:
    """Collect what the author's cells declare within the block."""
    global _declared
    outer, _declared = _declared, Declarations()
    try:
        yield _declared
    finally:
        _declared = outer


def _declare_answer(answer: KnownAnswer) -> None:
    if _declared is not None:
        _declared.answers.append(answer)


def _texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)
