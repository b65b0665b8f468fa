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


def inside(kernel: int, height: int, width: int, device: torch.device) -> Bool[Tensor, "neighbours height width"]:
    """Whether each pixel of each pixel's neighbourhood lies in the image."""
    offset = torch.arange(kernel, device=device)[:, None] - kernel // 2
    row, column = (offset + torch.arange(length, device=device) for length in (height, width))  # (kernel, length)
    row, column = ((row >= 0) & (row < height)), ((column >= 0) & (column < width))
    return (row[:, None, :, None] & column[None, :, None, :]).flatten(0, 1)


def moved(x: Tensor, kernel: int) -> list[Tensor]:
    """The image seen from each pixel at each offset, row by row: views of one copy with a frame of zeros."""
    height, width = x.shape[3:]
    framed = F.pad(x, (kernel // 2,) * 4)
    return [framed[..., a : a + height, b : b + width] for a in range(kernel) for b in range(kernel)]


def local_scores(q: Tensor, k: Tensor, kernel: int) -> Tensor:
    """q[p] · k[p + o] (batch, heads, offsets, height, width), of q and k (batch, heads, d, height, width)."""
    return torch.stack([(q * each).sum(dim=2) for each in moved(k, kernel)], dim=2)


def local_average(weights: Tensor, v: Tensor, kernel: int) -> Tensor:
    """Σ_o w[p, o] v[p + o] (batch, heads, d, height, width)."""
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    for weight, each in zip(weights.unbind(2), moved(v, kernel), strict=True):
        out.addcmul_(weight[:, :, None], each)
    return out


def local_spread(weights: Tensor, q: Tensor, kernel: int) -> Tensor:
    """Σ_o w[p - o, o] q[p - o] (batch, heads, d, height, width): what those gave whose neighbour a pixel is."""
    framed = F.pad(torch.zeros_like(q), (kernel // 2,) * 4)
    (height, width), places = q.shape[3:], [(a, b) for a in range(kernel) for b in range(kernel)]
    for weight, (a, b) in zip(weights.unbind(2), places, strict=True):
        framed[..., a : a + height, b : b + width].addcmul_(weight[:, :, None], q)
    frame = kernel // 2
    return framed[..., frame : frame + height, frame : frame + width].contiguous()


def register() -> None:
    """Make operators of the three, with derivatives and shapes."""
    library: Any = torch.library
    operators = {
        each.__name__: library.custom_op(
            f"txlib::{each.__name__}", each, mutates_args=(), schema="(Tensor one, Tensor other, int kernel) -> Tensor"
        )
        for each in (local_scores, local_average, local_spread)
    }
    scores, average, spread = operators.values()

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        *tensors, ctx.kernel = inputs
        ctx.save_for_backward(*tensors)

    def back(to_one: Any, to_other: Any) -> Any:
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
            one, other = ctx.saved_tensors
            wanted = ctx.needs_input_grad
            return (
                to_one(grad, one, other, ctx.kernel) if wanted[0] else None,
                to_other(grad, one, other, ctx.kernel) if wanted[1] else None,
                None,
            )

        return backward

    scores.register_autograd(
        back(lambda grad, q, k, kernel: average(grad, k, kernel), lambda grad, q, k, kernel: spread(grad, q, kernel)),
        setup_context=keep,
    )
    average.register_autograd(
        back(lambda grad, w, v, kernel: scores(grad, v, kernel), lambda grad, w, v, kernel: spread(w, grad, kernel)),
        setup_context=keep,
    )
    spread.register_autograd(
        back(lambda grad, w, q, kernel: scores(q, grad, kernel), lambda grad, w, q, kernel: average(w, grad, kernel)),
        setup_context=keep,
    )
    scores.register_fake(lambda q, k, kernel: q.new_empty(*q.shape[:2], kernel**2, *q.shape[3:]))
    for operator in (average, spread):
        operator.register_fake(lambda w, x, kernel: x.new_empty(x.shape))


register()


@cache
def make_countable() -> None:
    """Tell torch's FLOP counter about the three. It is loaded for that, and Triton with it: not before it is needed."""
    from torch.utils.flop_counter import register_flop_formula

    @register_flop_formula(
        [getattr(torch.ops.txlib, each.__name__) for each in (local_scores, local_average, local_spread)]
    )
    def count(one: Any, other: Any, kernel: int, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        """A multiplication and an addition for each channel of each pixel and each of its neighbours."""
        batch, heads, channels, height, width = other
        return 2 * batch * heads * channels * height * width * kernel**2
