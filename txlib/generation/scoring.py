"""Which of the given answers does a language model find likeliest?"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from txlib.generation.prompts import Decoder, as_tensor, check_decoder, check_lists

SCORES = "sum", "mean", "calibrated"


@torch.no_grad()
def score_answers(
    model: Decoder,
    prompt: Sequence[int],
    answers: Sequence[Sequence[int]],
    *,
    score: str = "sum",
    neutral: Sequence[int] | None = None,
) -> Float[Tensor, "answer"]:
    """Return the score of each answer after the prompt; the highest is the model's choice.

    Args:
        prompt: its tokens; with the longest answer they must fit into the model's context.
        answers: the tokens of each, at least one.
        score: "sum" of the log-probabilities of the answer's tokens, their "mean" (Brown et al. 2020, §2.4), or the sum
            "calibrated" by `neutral`: minus the answer's sum there, which says how much likelier the prompt makes it.
        neutral: tokens of a prompt without content, for "calibrated".
    """
    check_decoder(model)
    if score not in SCORES or (score == "calibrated") != (neutral is not None):
        given = "a" if neutral is not None else "no"
        raise ValueError(
            f"score={score!r} with {given} neutral prompt: give score='sum', score='mean', or score='calibrated' with "
            "neutral=…"
        )
    check_lists("answers", answers)
    if not prompt or not answers or not all(answers):
        raise ValueError(f"prompt has {len(prompt)} tokens, answers {list(map(len, answers))}: each needs at least one")
    longest, context = len(prompt) + max(map(len, answers)), model.config.max_length
    if longest > context:
        raise ValueError(
            f"prompt and longest answer have {longest} tokens, the context holds {context}; shorten the prompt"
        )
    device = next(iter(model.parameters())).device
    rows, mask = as_tensor([[*prompt, *answer] for answer in answers], None, left=False)
    ids, mask = rows.to(device), None if mask is None else mask.to(device)
    log_p = model.logits(model.decode(ids[:, :-1], None if mask is None else mask[:, :-1], None)).log_softmax(dim=-1)
    each = log_p.gather(-1, ids[:, 1:, None])[..., 0][:, len(prompt) - 1 :]  # (answer, longest answer)
    lengths = torch.tensor(list(map(len, answers)), device=device)
    total = each.masked_fill(torch.arange(each.shape[1], device=device) >= lengths[:, None], 0).sum(dim=-1)
    if score == "mean":
        return total / lengths
    return total if neutral is None else total - score_answers(model, neutral, answers)
