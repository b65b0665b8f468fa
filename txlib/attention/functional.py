"""The definition of attention. Every other mechanism is compared with this one."""

import torch
from jaxtyping import Float
from torch import Tensor

from txlib.attention.masks import MaskLike, as_dense


def attention_weights(
    q: Float[Tensor, "batch heads query head_dim"],
    k: Float[Tensor, "batch heads key head_dim"],
    mask: MaskLike = None,
    *,
    bias: Float[Tensor, "#batch #heads query key"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
) -> Float[Tensor, "batch heads query key"]:
    """How much each query takes from each key: softmax(q kᵀ / √d_k) (Vaswani et al. 2017, eq. 1).

    Args:
        mask: True where a query may attend. A query that may attend to nothing gets zeros, not NaN.
        bias: added to the scaled scores, e.g. by ALiBi.
        scale: multiplies the scores; 1 / √head_dim unless given.
        softcap: keeps the scaled scores between -softcap and softcap: softcap · tanh(score / softcap) (Gemma Team 2024,
            §2).
        sinks: the score of one more key in each head, whose value is zero: weights sum to less than 1 (OpenAI 2025,
            §2.2).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    score = (q * scale) @ k.transpose(-2, -1)  # (batch, heads, query, key)
    if softcap is not None:
        score = soft_cap(score, softcap)
    if bias is not None:
        score = score + bias
    allowed = as_dense(mask, q, k)
    if allowed is None:
        return softmax(score, sinks)
    score = score.masked_fill(~allowed, torch.finfo(score.dtype).min)  # before softmax: the rest still sums to 1
    return softmax(score, sinks).masked_fill(~allowed, 0.0)  # after it: an empty row is 0


def soft_cap(score: Tensor, softcap: float) -> Tensor:
    """Return softcap · tanh(score / softcap), which lies between -softcap and softcap (Gemma Team 2024, §2)."""
    return softcap * (score / softcap).tanh()


def softmax(
    score: Float[Tensor, "batch heads query key"], sinks: Float[Tensor, "heads"] | None = None
) -> Float[Tensor, "batch heads query key"]:
    """Return the softmax over the keys, and the sink where there is one, which takes its share."""
    if sinks is None:
        return score.softmax(dim=-1)
    sink = sinks.to(score.dtype)[:, None, None].expand(*score.shape[:-1], 1)
    return torch.cat([score, sink], dim=-1).softmax(dim=-1)[..., :-1]


def attention(
    q: Float[Tensor, "batch heads query head_dim"],
    k: Float[Tensor, "batch heads key head_dim"],
    v: Float[Tensor, "batch heads key value_dim"],
    mask: MaskLike = None,
    *,
    bias: Float[Tensor, "#batch #heads query key"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> (
    Float[Tensor, "batch heads query value_dim"]
    | tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"]]
):
    """Soft lookup: each query's average of the values, weighted by how well keys match (Vaswani et al. 2017, §3.2.1).

    Args:
        mask, bias, scale, softcap, sinks: see `attention_weights`.
        dropout: probability of setting a weight to zero; the caller passes 0 outside training.
        return_weights: also return the weights (before dropout).

    Raises:
        ValueError: when the mask does not fit (batch, heads, query, key).
    """
    weights = attention_weights(q, k, mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    out = torch.nn.functional.dropout(weights, dropout) @ v if dropout else weights @ v
    return (out, weights) if return_weights else out
