"""Direct preference optimization, DPO: learn from pairs of answers, one of them preferred (Rafailov et al. 2023)."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def dpo_loss(
    chosen: Float[Tensor, "pair"],
    rejected: Float[Tensor, "pair"],
    reference_chosen: Float[Tensor, "pair"],
    reference_rejected: Float[Tensor, "pair"],
    *,
    beta: float = 0.1,
) -> tuple[Float[Tensor, ""], int]:
    """Return DPO's loss (eq. 7), summed over the pairs, and their number.

    Args:
        chosen, rejected: log-probability of each answer, summed over its tokens, by the model.
        reference_chosen, reference_rejected: the same by the model before training.
        beta: how strongly the model is held to the reference.

    Raises:
        ValueError: when beta is not above 0.
    """
    if beta <= 0:
        raise ValueError(f"beta={beta} must be above 0")
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -F.logsigmoid(beta * margin).sum(), len(margin)
