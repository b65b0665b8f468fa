"""From token ids to vectors."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A learned vector for each token id, multiplied by √d_model (Vaswani et al. 2017, §3.4).

    The vectors start with variance 1 / d_model. The product then has variance 1, like a normalized activation, and
    the same matrix, unscaled, can serve as the output projection.

    Args:
        scaled: False omits the product, as GPT and BERT do; a number replaces √d_model.
        ids, size: names of the ids and of their number in error messages.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        scaled: bool | float = True,
        ids: str = "input_ids",
        size: str = "vocab_size",
    ):
        super().__init__()
        self.ids, self.size = ids, size
        self.scale = (d_model**0.5 if scaled else 1.0) if isinstance(scaled, bool) else scaled
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * d_model**-0.5)

    def forward(self, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """Return the vector of each id, scaled.

        Raises:
            ValueError: for an id without a vector, where torch notices it: on the CPU.
        """
        vectors = rows(input_ids, self.weight, self.ids, self.size)
        return vectors if self.scale == 1.0 else vectors * self.scale


def rows(
    ids: Int[Tensor, "*batch length"], table: Float[Tensor, "size d_model"], name: str, size: str
) -> Float[Tensor, "*batch length d_model"]:
    """Return the row of each id.

    Raises:
        ValueError: for an id outside the table, where torch notices it: on the CPU.
    """
    try:
        return nn.functional.embedding(ids, table)
    except IndexError:
        wrong = ids[(ids < 0) | (ids >= len(table))][0].item()
        raise ValueError(
            f"{name} holds {wrong}, and {size}={len(table)} allows 0 to {len(table) - 1}; "
            "were they made for another model?"
        ) from None
