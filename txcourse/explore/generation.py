"""Views of writing: a sampler's dials on a real distribution."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from txcourse.explore.view import View
from txcourse.figures.generation import candidates
from txlib.generation.sampling import Sampling

SIZES = (1, 2, 3, 4, 5, 8, 12, 20, 35, 50, 100, 200, 500)  # what top-k can be set to
DIGITS = 4  # after the point, of a logit: probabilities are right to 0.01 %


def sampling(
    logits: Mapping[str, Float[Tensor, "vocab"]],
    names: Sequence[str],
    *,
    shown: int = 12,
    start: Sampling | None = None,
) -> View:
    """What temperature, top-k, top-p and min-p make of a distribution, alone and together; see `Sampling`.

    Args:
        logits: of the next token, by the text before it.
        names: of all tokens.
        shown: how many tokens have a row of their own; the others share one.
        start: how the dials stand at first; its `top_k` is one of `SIZES`, and smaller than the vocabulary.

    Raises:
        ValueError: when the dials cannot stand so.
    """
    start = start or Sampling(temperature=0.8, top_p=0.9)
    sizes = [size for size in SIZES if size < min(map(len, logits.values()))]
    if start.top_k not in (None, *sizes) or start != Sampling(start.temperature, start.top_k, start.top_p, start.min_p):
        raise ValueError(f"{start} cannot be set: top_k is one of {sizes}, and there are no penalties")
    prompts, panels = {}, {}
    for prompt, row in logits.items():
        row, order = row.double().sort(descending=True, stable=True)
        model_p = row.softmax(dim=-1)
        drawn = start(row[None], torch.zeros(1, len(row), dtype=torch.bool))[0].softmax(dim=-1)
        tokens = [names[index] for index in order[:shown].tolist()]
        prompts[prompt] = {"tokens": tokens, "logits": [round(logit, DIGITS) for logit in row.tolist()]}
        before, after = ([*part[:shown].tolist(), part[shown:].sum().item()] for part in (model_p, drawn))
        panels[prompt] = [*tokens, f"{len(row) - shown:,} others"], before, after
    kept = "; ".join(
        f"after “{prompt}” "
        + ", ".join(f"{token} {share:.0%}" for token, share in zip(tokens[:3], after, strict=False))
        for prompt, (tokens, _, after) in panels.items()
    )
    setting = ", ".join(
        f"{name} {value:g}"
        for name, value in (("T", start.temperature), ("k", start.top_k), ("p", start.top_p), ("min-p", start.min_p))
        if value is not None
    )
    still = candidates(panels, title=f"What is drawn from, with {setting}", alt=f"With {setting}: {kept}.")
    data = {
        "prompts": prompts,
        "sizes": sizes,
        "start": {
            "temperature": start.temperature,
            "k": start.top_k,
            "p": 1 if start.top_p is None else start.top_p,
            "least": start.min_p or 0,
        },
    }
    return View(still, "sampling", data, title="What may be drawn: turn the dials of a sampler")
