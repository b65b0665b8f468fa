"""Answers learned by heart: what stands in for another task's functions where a task is judged alone.

No line of a reference may be in a kernel that runs a learner's code. So the reference's calls of other tasks' functions
are written down while its own check runs (`listening`), as evidence: arguments and values, plain and bounded. In the
learner's kernel a function answers from that list (`by_heart`) and knows nothing else. It answers what one task's check
asks on one seed; of the other task's own check, whose inputs are drawn apart, it knows nothing.
"""

import base64
import contextlib
import functools
import inspect
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from txgrade.evidence.compare import compare
from txgrade.evidence.values import Recorder, TooLarge, restored

MAX_CALLS = 300  # of one task's functions, in one task's check on one seed
MAX_NUMBERS = 50_000  # in all their arguments and values
RTOL, ATOL = 1e-5, 1e-6  # arguments that were computed in another order are the same ones
PLAIN = {"none", "bool", "int", "float", "str", "list", "tuple", "dict", "tensor", "ndarray"}


class NotKnown(LookupError):
    """A call that the reference did not make: this answer can't be judged before the other task is right."""


@dataclass
class Calls:
    """What some functions were asked, and what they said, as far as numbers, texts, lists and tensors can say it."""

    rows: dict[str, dict[str, tuple[dict, dict]]] = field(default_factory=dict)  # by name and arguments as text
    left: int = MAX_NUMBERS

    def add(self, name: str, arguments: dict | None, value: dict | None) -> None:
        """Keep a call, if it is plain and there is room for it; the first ones are the reference's."""
        if arguments is None or value is None:
            return
        known, asked = self.rows.setdefault(name, {}), json.dumps(arguments)
        size = _numbers(arguments) + _numbers(value)
        if asked not in known and size <= self.left and sum(map(len, self.rows.values())) < MAX_CALLS:
            known[asked] = arguments, value
            self.left -= size

    def packed(self) -> dict[str, str]:
        """Each function's calls as a text that a cell's source can hold."""
        plain = {name: list(rows.values()) for name, rows in self.rows.items()}
        return {
            name: base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode() for name, rows in plain.items()
        }


@contextlib.contextmanager
def listening(namespace: dict, names: list[str], calls: Calls) -> Iterator[None]:
    """Within the block, these functions of a namespace write down how they are called from outside themselves."""
    inside = False

    def heard(name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return function(*args, **kwargs)
            arguments = _evidence(_arguments(function, args, kwargs))
            inside = True
            try:
                value = function(*args, **kwargs)
            finally:
                inside = False
            calls.add(name, arguments, _evidence(value))
            return value

        return call

    originals = {name: namespace[name] for name in names if inspect.isfunction(namespace[name])}
    for name, function in originals.items():
        calls.rows.setdefault(name, {})
        namespace[name] = heard(name, function)
    try:
        yield
    finally:
        namespace.update(originals)


def by_heart(function: Callable, packed: str) -> Callable:
    """A function with the same arguments that answers from the list.

    It raises NotKnown for a call that is not in the list.
    """
    rows = json.loads(zlib.decompress(base64.b64decode(packed)))
    exactly = {json.dumps(arguments): value for arguments, value in rows}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = _evidence(_arguments(function, args, kwargs))
        value = exactly.get(json.dumps(asked))
        if value is None and asked is not None:
            value = next((answer for known, answer in rows if not compare(asked, known, RTOL, ATOL)), None)
        if value is None:
            raise NotKnown(f"`{function.__name__}` is called in another way than the reference does")
        return restored(value)

    del call.__wrapped__
    return call


def stand_in(stub: str, packed: dict[str, str]) -> str:
    """The source of a cell that stands in for a solution: the released stub, and what its functions know by heart."""
    lines = [f"{name} = by_heart({name}, {text!r})" for name, text in packed.items()]
    return "\n".join([stub, "", "", "from txgrade.checking.stand_in import by_heart", "", *lines, "del by_heart"])


def _arguments(function: Callable, args: tuple, kwargs: dict) -> dict:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _evidence(value: Any) -> dict | None:
    """A value's evidence, if nothing of it gets lost."""
    try:
        made = Recorder(MAX_NUMBERS)(value)
    except TooLarge:
        return None
    return made if _is_plain(made) else None


def _is_plain(value: dict) -> bool:
    return value["kind"] in PLAIN and all(map(_is_plain, value.get("items", ())))


def _numbers(value: dict) -> int:
    return 1 + len(value.get("values", ())) + sum(map(_numbers, value.get("items", ())))
