"""Dense attention: every allowed pair is computed."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.attention.functional import attention_weights, soft_cap, softmax
from txlib.attention.masks import Mask, MaskLike, as_dense
from txlib.attention.masks.primitives import Causal
from txlib.attention.masks.shared import once
from txlib.attention.masks.spans import within
from txlib.attention.mechanism import LayerContext, MechanismConfig, check_dropout, check_inputs, for_each_head
from txlib.attention.relative import BiasLike, as_dense_bias

CAUSAL = Causal()
MAX_HEAD_DIM = 256  # head_dim of torch's FlashAttention on a GPU
HALF_TYPES = torch.bfloat16, torch.float16
MAX_KEYS_UNFUSED = 512  # keys up to which the plain products win on a CPU, in 16 bits


class DenseAttention(nn.Module):
    """`attention` as a module. The default mechanism of every model (Vaswani et al. 2017, §3.2.1).

    It usually runs torch's fused kernel, which never holds the whole matrix of scores, and gets "causal" as a flag
    instead of a matrix. Where that is slow, on a CPU for short sequences in 16 bits and for one query whose heads share
    keys, it runs the two matrix products with a softmax between them (`benchmarks/attention.py` measures both). Both
    give the same numbers. The fused kernel takes neither a soft-cap nor sinks, so the products run for them.

    Args:
        dropout: probability of dropping a weight while training.
        fused: force the fused kernel (True) or the products (False); None chooses.
    """

    def __init__(self, dropout: float = 0.0, *, fused: bool | None = None):
        super().__init__()
        check_dropout(dropout)
        self.dropout, self.fused = dropout, fused

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
        softcap: float | None = None,
        sinks: Float[Tensor, "heads"] | None = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`."""
        check_inputs(q, k, v)
        dropout = self.dropout if self.training else 0.0
        if isinstance(mask, Mask):
            mask = once(what_remains, mask, q.shape[-2], k.shape[-2])
        only_causal = isinstance(mask, Causal)
        dense_bias = as_dense_bias(bias, q, k)
        runs_fused = softcap is None and sinks is None and self.runs_fused(q, k)
        if runs_fused and only_causal and dense_bias is None:
            return fused(q, k, v, None, dropout, is_causal=True)
        allowed = as_dense(mask, q, k)
        if runs_fused and dense_bias is None:
            out = fused(q, k, v, allowed, dropout)
            if q.device.type == "cpu":
                return out  # kernels disagree about queries that see nothing; this one gives zeros
        else:
            if allowed is not None:
                hidden = once(hiding_bias, allowed, q.dtype)
                dense_bias = hidden if dense_bias is None else dense_bias + hidden
            if runs_fused:
                out = fused(q, k, v, dense_bias, dropout)
            else:
                out = plain(q, k, v, dense_bias, dropout, softcap, sinks)
        if allowed is None or only_causal:
            return out
        return out.masked_fill(once(fully_masked, allowed), 0.0)

    def runs_fused(self, q: Tensor, k: Tensor) -> bool:
        """Return whether the fused kernel is faster here."""
        if self.fused is not None:
            return self.fused
        if q.device.type != "cpu":
            return True
        if q.shape[-2] == 1 and not torch.is_grad_enabled():  # decoding
            return k.shape[1] == q.shape[1]
        return q.dtype not in HALF_TYPES or k.shape[-2] > MAX_KEYS_UNFUSED

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
        softcap: float | None = None,
        sinks: Float[Tensor, "heads"] | None = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weights that `forward` averages the values with."""
        k = for_each_head(k, q.shape[1])
        return attention_weights(q, k, mask, bias=as_dense_bias(bias, q, k), softcap=softcap, sinks=sinks)


@dataclass(frozen=True)
class DenseConfig(MechanismConfig, name="dense"):
    """`DenseAttention` in a block's config; the default."""

    fused: bool | None = None

    def make(self, block: Any, layer: LayerContext) -> DenseAttention:
        """Return the mechanism, with the block's dropout."""
        return DenseAttention(block.attention.dropout, fused=self.fused)


def hiding_bias(allowed: Bool[Tensor, "_ _ _ key"], dtype: torch.dtype) -> Float[Tensor, "_ _ _ key"]:
    """Return what is added to scores to hide keys: 0 where allowed, a very negative number where not."""
    low = torch.finfo(dtype).min / 2  # half: a score that is added must not make it infinite
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, low)


def fully_masked(allowed: Bool[Tensor, "_ _ query key"]) -> Bool[Tensor, "_ _ query 1"]:
    """Return which queries see nothing."""
    return ~allowed.any(dim=-1, keepdim=True)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, is_causal: bool = False
) -> Float[Tensor, "batch heads query value_dim"]:
    """Run torch's kernel. On a GPU only FlashAttention takes heads that share keys; where that can't run, torch would
    write out all scores, so the keys are repeated for each head instead."""
    shared = k.shape[1] != q.shape[1]
    if shared and q.device.type != "cpu":
        plain = mask is None and q.dtype in (torch.bfloat16, torch.float16)
        if not (plain and q.shape[-1] == v.shape[-1] <= MAX_HEAD_DIM):
            k, v, shared = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1]), False
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=shared)


def plain(
    q: Float[Tensor, "batch heads query head_dim"],
    k: Float[Tensor, "batch kv_heads key head_dim"],
    v: Float[Tensor, "batch kv_heads key value_dim"],
    bias: Float[Tensor, "_ _ _ key"] | None,
    dropout: float,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
) -> Float[Tensor, "batch heads query value_dim"]:
    """Compute two matrix products and a softmax. Heads that share keys are stacked in one matrix."""
    batch, heads, length, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    group = heads // kv_heads  # that share keys
    rows = q.reshape(batch * kv_heads, group * length, head_dim)  # queries of a group, one head below the other
    columns = k.reshape(batch * kv_heads, keys, head_dim).mT
    scale = head_dim**-0.5
    if bias is not None and bias.shape[:2] == (1, 1) and kv_heads == heads and softcap is None:
        score = torch.baddbmm(bias[0], rows, columns, alpha=scale)  # all in one pass
    else:
        score = torch.bmm(rows * scale, columns)
        if softcap is not None:
            score = soft_cap(score, softcap)
        if bias is not None:
            score = (score.view(batch, heads, length, keys) + bias).view(score.shape)
    weights = softmax(score.view(batch, heads, length, keys), sinks).reshape(score.shape)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights, v.reshape(batch * kv_heads, keys, v.shape[-1])).view(batch, heads, length, v.shape[-1])


def what_remains(mask: Mask, query_length: int, key_length: int) -> Mask | None:
    """Return the mask without the parts that forbid nothing for these lengths; None if no part is left.

    So one new token after a cached past needs no mask, and a part that is equivalent to causal becomes `causal()`.
    While compiling, the code must fit all lengths, and the mask is returned unchanged.
    """
    if torch.compiler.is_compiling():
        return mask
    remains: Mask | None = None
    for part in mask.conjuncts():
        spans = part.distances()
        if spans is not None:
            spans = within(spans, 1 - key_length, query_length - 1)
            if spans == ((1 - key_length, query_length),):  # all distances
                continue
            if spans == ((0, query_length),):
                part = CAUSAL
        remains = part if remains is None or remains == part else remains & part
    return remains
