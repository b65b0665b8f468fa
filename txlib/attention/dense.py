"""Dense attention: every allowed pair is computed."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.functional import attention, attention_weights
from txlib.attention.masks import MaskLike, as_dense


class DenseAttention(nn.Module):
    """`attention` as a module. The default mechanism of every model (Vaswani et al. 2017, §3.2.1).

    Short sequences on a CPU run the definition itself, which is the fastest way there to train; long ones, GPUs and
    decoding token by token run torch's fused kernel, which never holds the whole matrix of scores. Both give the same
    numbers.

    Args:
        dropout: share of the weights dropped while training.
        fused: force the fused kernel (True) or the definition (False); None chooses.
    """

    def __init__(self, dropout: float = 0.0, *, fused: bool | None = None):
        super().__init__()
        self.dropout, self.fused = dropout, fused

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        v: Float[Tensor, "batch heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `attention`."""
        dropout = self.dropout if self.training else 0.0
        fused = self.fused
        if fused is None:
            decoding = q.shape[-2] == 1 and not torch.is_grad_enabled()
            fused = q.is_cuda or decoding or q.shape[-2] * k.shape[-2] > 256 * 256
        if not fused:
            return attention(q, k, v, mask, dropout=dropout)
        allowed = as_dense(mask, q, k)
        out = F.scaled_dot_product_attention(q, k, v, allowed, dropout_p=dropout)
        if allowed is None:
            return out
        return out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)  # kernels disagree about empty rows

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights that `forward` averages the values with, for looking at."""
        return attention_weights(q, k, mask)
