"""Language models that only count: the simplest rivals of the models that lessons train."""

import torch
from jaxtyping import Int
from torch import Tensor

SMALLEST_COUNT = 0.1  # so that nothing has the probability 0


def loss_of_table(train: Int[Tensor, "train"], test: Int[Tensor, "test"], *, last: int) -> float:
    """Count in `train` what follows each run of `last` tokens; return the mean loss on `test`, in nats per token.

    Raises:
        ValueError: if `last` is less than 1, or a text isn't longer than that.
    """
    if last < 1:
        raise ValueError(f"loss_of_table needs last >= 1, got {last}")
    if min(len(train), len(test)) <= last:
        raise ValueError(f"loss_of_table needs texts of more than {last} tokens, got {len(train)} and {len(test)}")
    tokens = 1 + int(max(train.max(), test.max()))

    def rows(text: Tensor) -> Tensor:  # of the table: one for each run of `last` tokens that something follows
        row = torch.zeros(len(text) - last, dtype=torch.long)
        for start in range(last):
            row = tokens * row + text[start : start - last]
        return row

    count = torch.full((tokens**last, tokens), SMALLEST_COUNT)
    count.index_put_((rows(train), train[last:]), torch.tensor(1.0), accumulate=True)
    probability = count / count.sum(dim=-1, keepdim=True)
    return -probability[rows(test), test[last:]].log().mean().item()
