"""From logits to the distribution of the next token: temperature, filters and penalties."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txlib.hints import FieldHints


def apply_temperature(logits: Float[Tensor, "*batch vocab"], temperature: int | float) -> Float[Tensor, "*batch vocab"]:
    """Divide the logits: below 1 the likely tokens gain, above 1 the unlikely ones (Ackley et al. 1985)."""
    check_positive("temperature", temperature)
    return logits / temperature


def keep_top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Keep the k likeliest tokens, and those exactly as likely as the last of them (Fan et al. 2018, §5.4)."""
    check_at_least("top_k", k, 1)
    least = logits.topk(min(k, logits.shape[-1])).values[..., -1:]  # (…, 1)
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Float[Tensor, "*batch vocab"], p: int | float) -> Float[Tensor, "*batch vocab"]:
    """Keep the nucleus: the fewest tokens whose probabilities sum to at least p (Holtzman et al. 2020, §3.1)."""
    check_probability("top_p", p)
    probability, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probability.cumsum(dim=-1) - probability  # the sum over likelier tokens
    removed = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(removed, -torch.inf)


def keep_min_p(logits: Float[Tensor, "*batch vocab"], p: int | float) -> Float[Tensor, "*batch vocab"]:
    """Keep tokens with at least p times the likeliest one's probability (Nguyen et al. 2024, §3)."""
    check_probability("min_p", p)
    probability = logits.softmax(dim=-1)
    return logits.masked_fill(probability < p * probability.amax(dim=-1, keepdim=True), -torch.inf)


def penalize_repetition(
    logits: Float[Tensor, "batch vocab"], seen: Bool[Tensor, "batch vocab"], penalty: int | float
) -> Float[Tensor, "batch vocab"]:
    """Divide the logits of tokens seen before by the penalty, multiply negative ones (Keskar et al. 2019, §4.1)."""
    check_positive("repetition_penalty", penalty)
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalize_counts(
    logits: Float[Tensor, "batch vocab"],
    written: Int[Tensor, "batch vocab"],
    presence: int | float = 0.0,
    frequency: int | float = 0.0,
) -> Float[Tensor, "batch vocab"]:
    """Subtract `presence` once from what has been written, and `frequency` once per time (OpenAI's and vLLM's
    penalties). Logits have no zero point, so subtracting treats all signs alike.

    Args:
        written: how often each token has been written; a prompt's tokens do not count.
    """
    return logits - presence * (written > 0) - frequency * written


@dataclass(frozen=True)
class Sampling(FieldHints):
    """How to draw the next token: penalties are applied to the logits first, then the temperature, then the filters.

    Args:
        repetition_penalty: see `penalize_repetition`; 1 is none.
        presence_penalty, frequency_penalty: see `penalize_counts`; 0 is none.
        temperature: see `apply_temperature`; 1 leaves the model's own distribution, 0 leaves the likeliest token only.
        top_k, top_p, min_p: see `keep_top_k`, `keep_top_p`, `keep_min_p`; None keeps all tokens.

    Raises:
        ValueError: when a number is out of range.
    """

    temperature: int | float = 1.0
    top_k: int | None = None
    top_p: int | float | None = None
    min_p: int | float | None = None
    repetition_penalty: int | float = 1.0
    presence_penalty: int | float = 0.0
    frequency_penalty: int | float = 0.0

    def __post_init__(self):
        self(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool))  # each part checks its number
        for name, value in ("top_p", self.top_p), ("min_p", self.min_p):
            if value is not None:
                check_probability(name, value)
        if self.top_k is not None:
            check_at_least("top_k", self.top_k, 1)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    def __call__(
        self,
        logits: Float[Tensor, "batch vocab"],
        seen: Bool[Tensor, "batch vocab"] | None = None,
        written: Int[Tensor, "batch vocab"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Return the logits of the distribution to draw from.

        Args:
            seen: True for the tokens of the text so far, the prompt's included; None: there are none.
            written: how often each has been written after the prompt; None: nothing has.
        """
        if seen is not None and self.repetition_penalty != 1:
            logits = penalize_repetition(logits, seen, self.repetition_penalty)
        if written is not None and (self.presence_penalty or self.frequency_penalty):
            logits = penalize_counts(logits, written, self.presence_penalty, self.frequency_penalty)
        if self.temperature == 0:
            best = logits.argmax(dim=-1, keepdim=True)  # (batch, 1)
            return torch.full_like(logits, -torch.inf).scatter(-1, best, logits.gather(-1, best))
        if self.temperature != 1:
            logits = apply_temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits


def check_positive(name: str, value: int | float) -> None:
    """Raise a ValueError unless the value is above 0."""
    if not value > 0:
        hint = ", or 0 for the likeliest token each time" if name == "temperature" else ""
        raise ValueError(f"{name}={value} must be above 0{hint}")


def check_at_least(name: str, value: int | float, least: int) -> None:
    """Raise a ValueError for a value that is too small."""
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")


def check_probability(name: str, value: int | float) -> None:
    """Raise a ValueError unless the value is in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value} must be in (0, 1]; 1 keeps {'all' if name == 'top_p' else 'the likeliest'}")
