"""What an answer costs: `cost(answer, *inputs)` runs it once, and says what came back and what that took.

The counters are locals of one call, so that no answer finds them by a name. What leaves torch can't be counted, so it
is refused: see `OutsideTorch`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, shape_wrapper

from txgrade.checking import operators


@shape_wrapper
def _of_vectors(*shapes: Any, out_shape: Any = None, **options: Any) -> int:
    """Return operations of a product with a vector: two for each number of the largest tensor."""
    return 2 * max(math.prod(shape) for shape in shapes if isinstance(shape, torch.Size))


VECTOR_PRODUCTS = (torch.ops.aten.mv, torch.ops.aten.addmv, torch.ops.aten.dot, torch.ops.aten.vdot)
PRODUCTS = flop_registry | dict.fromkeys(VECTOR_PRODUCTS, _of_vectors)  # torch counts products of matrices only
MAX_UNCOUNTED = 64  # numbers that may leave torch in any counted call: sizes, ends of blocks
LEAVING = ("numpy", "tolist", "__array__", "item", "__float__", "__int__", "__dlpack__", "untyped_storage", "storage")


class OutsideTorch(RuntimeError):
    """A counted answer took its numbers out of torch, where no operation on them is counted."""


@dataclass(frozen=True)
class Cost:
    """One counted call."""

    value: Any  # what the call returned: show it, so that cost and value are of the same call
    operations: int  # of all matrix products, plus one for every number that a step makes; a view makes none
    largest: int  # numbers that the largest tensor holds which was made on the way


_on_value: Callable[[Any], Any] | None = None  # for the author's proof that values of counted calls are shown


@contextmanager
def returning(change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the value of each counted call within the block by `change(value)`."""
    global _on_value
    before, _on_value = _on_value, change
    try:
        yield
    finally:
        _on_value = before


def cost(function: Callable, *args: Any, **kwargs: Any) -> Cost:
    """Run `function(*args, **kwargs)` once, without gradients, and count what torch does meanwhile.

    Raises:
        OutsideTorch: more than a few numbers, and more than a quarter of what the inputs hold, left torch for Python or
            NumPy; or, where the notebook is graded, another thread of the notebook's used torch meanwhile.
    """
    products, largest, elements, exported, in_other_thread = 0, 0, 0, 0, False
    inputs = sum(leaf.numel() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    allowed = max(MAX_UNCOUNTED, inputs // 4) if inputs else float("inf")

    class Made(operators.Watching):
        def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            nonlocal products, largest, elements
            kwargs, packet = kwargs or {}, getattr(operator, "overloadpacket", operator)
            if packet not in PRODUCTS and hasattr(operator, "decompose"):
                with self:  # in inference mode an operator may consist of several
                    out = operator.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            out = operator(*args, **kwargs)
            if packet in PRODUCTS:
                products += PRODUCTS[packet](*args, **kwargs, out_val=out)
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor):
                    largest = max(largest, leaf.untyped_storage().nbytes() // leaf.element_size())
                    elements += 0 if getattr(operator, "is_view", False) else leaf.numel()
            return out

    class Leaving(TorchFunctionMode):
        def __torch_function__(self, method: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            nonlocal exported
            if getattr(method, "__name__", "") in LEAVING and args and isinstance(args[0], Tensor):
                exported += args[0].numel()
                if exported > allowed:
                    raise OutsideTorch(f"{method.__name__}() takes numbers out of torch, where no cost is counted")
            return method(*args, **(kwargs or {}))

    def note_thread() -> None:
        nonlocal in_other_thread
        in_other_thread = True

    with torch.no_grad(), operators.other_threads(note_thread), Made(), Leaving():
        value = function(*args, **kwargs)
    if in_other_thread:
        raise OutsideTorch("it works in another thread, where no cost is counted")
    return Cost(_on_value(value) if _on_value else value, products + elements, largest)
