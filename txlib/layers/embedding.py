"""From token ids to vectors."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A learned vector for each token id, multiplied by √d_model (Vaswani et al. 2017, §3.4).

    The vectors start with variance 1 / d_model. The product then has variance 1, like a normalised activation, and
    the same matrix, unscaled, can serve as the output projection.

    Args:
        scaled: False leaves the product out, as GPT and BERT do.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = True):
        super().__init__()
        self.scale = d_model**0.5 if scaled else 1.0
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * d_model**-0.5)

    def forward(self, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """The vector of each id, scaled."""
        vectors = nn.functional.embedding(input_ids, self.weight)
        return vectors if self.scale == 1.0 else vectors * self.scale
