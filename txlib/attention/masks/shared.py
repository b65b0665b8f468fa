"""What the layers of a stack compute from the same mask, computed once for all of them.

A stack calls its layers within `sharing`; they and their mechanisms call `once`. Outside of a stack, and in code that
is being compiled, `once` simply calls the function.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, TypeVarTuple

import torch
from torch import Tensor

from txlib.attention.masks.mask import Mask

SHARED = (Mask, Tensor)  # compared by identity
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class SharedResults:
    """Results of functions of shared masks and tensors, which are compared by identity."""

    def __init__(self, *shared: Any):
        self.shared = {id(value): value for value in shared}  # referenced, so that no other object gets their ids
        self.results: dict[Hashable, Any] = {}


CURRENT: ContextVar[SharedResults | None] = ContextVar("CURRENT", default=None)


def sharing(*shared: Mask | Tensor | None) -> AbstractContextManager[None]:
    """Within this context `once` remembers what functions return for these masks and tensors.

    Their results are shared as well, so that one function can build on another.
    """
    return nullcontext() if torch.compiler.is_compiling() else remembering(*shared)


@contextmanager
def remembering(*shared: Mask | Tensor | None) -> Iterator[None]:
    """See `sharing`."""
    token = CURRENT.set(SharedResults(*shared))
    try:
        yield
    finally:
        CURRENT.reset(token)


def once(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return `function(*arguments)`, remembered if every mask and tensor among the arguments is shared.

    Args:
        function: a module's function, not a lambda: the result is remembered by the function's identity.
        arguments: masks and tensors, compared by identity, and hashable values, such as lengths.
    """
    if torch.compiler.is_compiling() or (current := CURRENT.get()) is None:
        return function(*arguments)
    key: list[Hashable] = [function]
    for argument in arguments:
        if isinstance(argument, SHARED):
            if id(argument) not in current.shared:
                return function(*arguments)
            key.append(id(argument))
        else:
            key.append(argument)
    name = tuple(key)
    if name not in current.results:
        result = current.results[name] = function(*arguments)
        current.shared[id(result)] = result
    return current.results[name]
