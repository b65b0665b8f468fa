"""From token ids to vectors."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A learned vector for each token id, multiplied by √d_model (Vaswani et al. 2017, §3.4).

    The vectors start with variance 1 / d_model. The product then has variance 1, like a normalised activation, and
    the same matrix, unscaled, can serve as the output projection.
    """

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * d_model**-0.5)

    def forward(self, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """The scaled vector of each id."""
        return nn.functional.embedding(input_ids, self.weight) * self.weight.shape[-1] ** 0.5
