"""Which of torch's operators run while a check is open: in its own thread, and in every thread the answer starts."""

import _thread
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_noted: set[str] | None = None  # of the check that is open
_graded = False  # whether this kernel's notebook is graded
_on_other_thread: Callable[[], None] | None = None  # while a cost is counted


class Watching(TorchDispatchMode):
    """A mode that looks on while torch's operators run."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would import its compiler for the first operator, which takes a second

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else flex_attention, which compiles itself, would refuse to run


class Operators(Watching):
    """Within the block, `names` gathers the names of torch's operators, which run as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __enter__(self) -> "Operators":
        global _noted
        _noted = self.names
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        global _noted
        _noted = None
        super().__exit__(*exception)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if _noted is not None:
            _noted.add(str(getattr(function, "overloadpacket", function)))
        return function(*args, **(kwargs or {}))


class _InThread(Operators):
    """The same for another thread, for as long as that lives: it notes for whichever check is open."""

    __enter__, __exit__ = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if _on_other_thread is not None:
            _on_other_thread()
        return super().__torch_dispatch__(function, types, args, kwargs)


@contextlib.contextmanager
def other_threads(note: Callable[[], None]) -> Iterator[None]:
    """Call `note()` whenever another thread of a graded notebook uses torch within the block."""
    global _on_other_thread
    before, _on_other_thread = _on_other_thread, note
    try:
        yield
    finally:
        _on_other_thread = before


def begin_grading() -> None:
    """Have operators of other threads noted from now on."""
    global _graded
    _graded = True


def watch_threads() -> None:
    """Have threads that start from now on noted too, where the notebook is graded: also those of pools."""
    if not hasattr(threading.Thread.run, "__wrapped__"):
        threading.Thread.run = _watched(threading.Thread.run)  # type: ignore[method-assign]
        _thread.start_new_thread = _starting_watched(_thread.start_new_thread)


def _watched(run: Callable) -> Callable:
    @functools.wraps(run)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not _graded:
            return run(*args, **kwargs)
        with _InThread():
            return run(*args, **kwargs)

    return watched


def _starting_watched(start: Callable) -> Callable:
    @functools.wraps(start)
    def started(function: Callable, *args: Any) -> int:
        return start(_watched(function), *args)

    return started
