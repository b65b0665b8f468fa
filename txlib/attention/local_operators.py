"""Operators of local attention: sums over the k × k pixels around each pixel.

Σ w[p, o] q[p] · k[p + o], over pixels p and offsets o, is linear in w, q and k. Local attention needs only its three
derivatives, forward and backward, and the derivatives of each are the other two. They loop over the offsets and read
the whole image shifted by each offset: no tensor is larger than the scores or the image. They are custom operators so
that `FlopCounterMode` counts them.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor


def inside(kernel: int, height: int, width: int, device: torch.device) -> Bool[Tensor, "neighbors height width"]:
    """Return whether each pixel of each pixel's neighborhood is inside the image."""
    offset = torch.arange(kernel, device=device)[:, None] - kernel // 2
    row, column = (offset + torch.arange(length, device=device) for length in (height, width))  # (kernel, length)
    row, column = ((row >= 0) & (row < height)), ((column >= 0) & (column < width))
    return (row[:, None, :, None] & column[None, :, None, :]).flatten(0, 1)


def shifted_views(x: Tensor, kernel: int) -> list[Tensor]:
    """Return the image shifted by each offset, row by row: views of one copy with a frame of zeros."""
    height, width = x.shape[3:]
    padded = F.pad(x, (kernel // 2,) * 4)
    return [padded[..., a : a + height, b : b + width] for a in range(kernel) for b in range(kernel)]


def local_scores(q: Tensor, k: Tensor, kernel: int) -> Tensor:
    """Return q[p] · k[p + o] (batch, heads, offsets, height, width), of q and k (batch, heads, d, height, width)."""
    return torch.stack([(q * view).sum(dim=2) for view in shifted_views(k, kernel)], dim=2)


def local_average(weights: Tensor, v: Tensor, kernel: int) -> Tensor:
    """Return Σ_o w[p, o] v[p + o] (batch, heads, d, height, width)."""
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    for weight, view in zip(weights.unbind(2), shifted_views(v, kernel), strict=True):
        out.addcmul_(weight[:, :, None], view)
    return out


def local_spread(weights: Tensor, q: Tensor, kernel: int) -> Tensor:
    """Return Σ_o w[p - o, o] q[p - o] (batch, heads, d, height, width): the transpose of `local_average`."""
    padded = F.pad(torch.zeros_like(q), (kernel // 2,) * 4)
    (height, width), offsets = q.shape[3:], [(a, b) for a in range(kernel) for b in range(kernel)]
    for weight, (a, b) in zip(weights.unbind(2), offsets, strict=True):
        padded[..., a : a + height, b : b + width].addcmul_(weight[:, :, None], q)
    margin = kernel // 2
    return padded[..., margin : margin + height, margin : margin + width].contiguous()


def register() -> None:
    """Register the three as custom operators, with derivatives and shapes."""
    library: Any = torch.library
    operators = {
        function.__name__: library.custom_op(
            f"txlib::{function.__name__}",
            function,
            mutates_args=(),
            schema="(Tensor one, Tensor other, int kernel) -> Tensor",
        )
        for function in (local_scores, local_average, local_spread)
    }
    scores, average, spread = operators.values()

    def save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        *tensors, ctx.kernel = inputs
        ctx.save_for_backward(*tensors)

    def make_backward(grad_one: Any, grad_other: Any) -> Any:
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
            one, other = ctx.saved_tensors
            needed = ctx.needs_input_grad
            return (
                grad_one(grad, one, other, ctx.kernel) if needed[0] else None,
                grad_other(grad, one, other, ctx.kernel) if needed[1] else None,
                None,
            )

        return backward

    scores.register_autograd(
        make_backward(
            lambda grad, q, k, kernel: average(grad, k, kernel),
            lambda grad, q, k, kernel: spread(grad, q, kernel),
        ),
        setup_context=save_inputs,
    )
    average.register_autograd(
        make_backward(
            lambda grad, w, v, kernel: scores(grad, v, kernel),
            lambda grad, w, v, kernel: spread(w, grad, kernel),
        ),
        setup_context=save_inputs,
    )
    spread.register_autograd(
        make_backward(
            lambda grad, w, q, kernel: scores(q, grad, kernel),
            lambda grad, w, q, kernel: average(w, grad, kernel),
        ),
        setup_context=save_inputs,
    )
    scores.register_fake(lambda q, k, kernel: q.new_empty(*q.shape[:2], kernel**2, *q.shape[3:]))
    for operator in (average, spread):
        operator.register_fake(lambda w, x, kernel: x.new_empty(x.shape))


register()


@cache
def make_countable() -> None:
    """Register the three with torch's FLOP counter, whose import also loads Triton: so not before it is needed."""
    from torch.utils.flop_counter import register_flop_formula

    @register_flop_formula(
        [getattr(torch.ops.txlib, function.__name__) for function in (local_scores, local_average, local_spread)]
    )
    def count(one: Any, other: Any, kernel: int, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        """Count a multiplication and an addition for each channel of each pixel and each of its neighbors."""
        batch, heads, channels, height, width = other
        return 2 * batch * heads * channels * height * width * kernel**2
