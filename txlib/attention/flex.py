"""FlexAttention, compiled for masks that are rules: what `BlockSparseAttention` runs on a GPU."""

import warnings
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from txlib.attention.block_schedule import own_copy
from txlib.attention.functional import soft_cap
from txlib.attention.masks import Mask, MaskLike, full

BLOCK_SIZE = 128  # what its kernels are made for
MIN_HEAD_DIM = 16  # of its kernels for GPUs
MAX_KERNELS = 256  # one for each kind of mask, dtype and width; beyond, they are not compiled (torch's own limit is 8)
not_compiled: set[tuple] = set()


def prefers_flex(q: Tensor, mask: MaskLike, dropout: float) -> bool:
    """Return whether FlexAttention is faster: on a GPU, for rules. It drops no weights, can't look into the blocks of a
    tensor, and has no kernels for narrow heads."""
    wide_enough = q.device.type == "cuda" and q.shape[-1] >= MIN_HEAD_DIM
    return wide_enough and not isinstance(mask, Tensor) and not dropout


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: MaskLike,
    bias_by_distance: Tensor | None,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
) -> Float[Tensor, "batch heads query value_dim"] | None:
    """Return attention by FlexAttention, compiled; None, with a warning, where it can't be compiled.

    The kernel knows no sinks, but it returns the logarithm of its softmax's denominator: with a sink, the output is
    multiplied by denominator / (denominator + exp(sink)).
    """
    from torch.nn.attention.flex_attention import AuxRequest

    rule = own_copy(mask) if isinstance(mask, Mask) else full()
    added = bias_by_distance is None, softcap, sinks is None
    kind = kind_of(rule), q.dtype, q.shape[-1], v.shape[-1], q.shape[1] // k.shape[1], *added
    if kind in not_compiled:
        return None
    block_mask = cached_block_mask(rule, q.shape[-2], k.shape[-2], q.device)
    try:
        with torch._dynamo.config.patch(recompile_limit=MAX_KERNELS):
            out = compiled_flex()(
                q,
                k,
                v,
                score_mod=score_mod(bias_by_distance, softcap, k.shape[-2]),
                block_mask=block_mask,
                enable_gqa=k.shape[1] != q.shape[1],
                **({} if sinks is None else {"return_aux": AuxRequest(lse=True)}),
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways
        not_compiled.add(kind)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"FlexAttention can't be compiled for {rule} ({reason}); a loop replaces it", stacklevel=3)
        return None
    if sinks is None:
        return out
    heads, aux = out
    kept = (aux.lse - sinks.to(aux.lse.dtype)[:, None]).sigmoid()  # (batch, heads, query)
    return heads * kept[..., None].to(heads.dtype)


def kind_of(mask: Mask) -> tuple:
    """Return what masks that share a kernel have in common: everything but the tensors that they read."""
    values = (value for _, value in mask.fields())
    parts = (
        kind_of(value) if isinstance(value, Mask) else None if isinstance(value, Tensor) else value for value in values
    )
    return mask.kind, *parts


def score_mod(
    bias_by_distance: Float[Tensor, "heads distance"] | None, softcap: float | None, key_length: int
) -> Callable[..., Tensor] | None:
    """Return FlexAttention's hook that caps scores and adds a bias by distance to them; None where there is neither."""
    if bias_by_distance is None:
        return None if softcap is None else partial(cap, softcap)
    zero = torch.full(
        (), key_length - 1, device=bias_by_distance.device
    )  # of distance 0; a number would be compiled in

    def add_bias(score, batch, head, query, key):
        score = score if softcap is None else soft_cap(score, softcap)
        return score + bias_by_distance[head, query - key + zero]

    return add_bias


def cap(softcap: float, score: Tensor, *position: Tensor) -> Tensor:
    """Return the soft-cap of a score, with the arguments in FlexAttention's order."""
    return soft_cap(score, softcap)


@lru_cache(maxsize=32)
def cached_block_mask(mask: Mask, query_length: int, key_length: int, device: torch.device) -> Any:
    """Return `Mask.block_mask`, kept for the next layer."""
    return mask.block_mask(query_length, key_length, device=device, block_size=BLOCK_SIZE)


@cache
def compiled_flex() -> Callable[..., Any]:
    """Return FlexAttention's kernel. A graph break is an error: outside a graph, it would write out all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)
