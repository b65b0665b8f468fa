"""Speculative decoding: a cheap draft guesses some tokens ahead, and the model checks them all in one call.

What comes out is distributed as if the model had written alone (Leviathan et al. 2023, §2; Chen et al. 2023).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from txlib.generation.sampling import Decoder, Sampling, check_prompts, end_tokens

Draft = Callable[[list[int]], Float[Tensor, "vocab"]]  # logits of the next token after these: a table of counts, say


@dataclass(frozen=True)
class Speculation:
    """A text, and what it took.

    Args:
        tokens: the new ones, without what ended them.
        calls: how often the model was called.
        guessed, accepted: how many tokens the draft proposed, and how many of these the model took.
    """

    tokens: list[int]
    calls: int
    guessed: int
    accepted: int


@torch.no_grad()
def speculate(
    model: Decoder,
    draft: Decoder | Draft,
    prompt: Sequence[int],
    *,
    ahead: int = 4,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    eos_id: int | Sequence[int] | None = None,
    seed: int | None = None,
    use_cache: bool = True,
) -> Speculation:
    """Continue one prompt in fewer calls of the model: each call adds between 1 and ahead + 1 tokens.

    Without sampling the tokens are those of `generate`. With it they have the same distribution, but a seed draws
    other ones. Prompt and new tokens must fit into the context together.

    Args:
        draft: a decoder with the same vocabulary, or a function from tokens to logits of the next one.
        prompt: tokens.
        ahead: how many tokens the draft guesses before the model looks (γ in the paper).
        sampling: how to draw, for draft and model alike; None is greedy.
        max_new_tokens, eos_id, seed, use_cache: as in `stream`.

    Raises:
        ValueError: when a number is out of range, the text exceeds a context, or the vocabularies differ.
    """
    check(model, draft, prompt, ahead, max_new_tokens)
    device = next(iter(model.parameters())).device
    ends, generator = end_tokens(model.config, eos_id), torch.Generator(device)
    generator.seed() if seed is None else generator.manual_seed(seed)
    read = Reader(model, use_cache)
    guess = Reader(draft, use_cache) if isinstance(draft, Decoder) else draft
    ids, start, calls, guessed, accepted = list(prompt), len(prompt), 0, 0, 0
    while len(ids) - start < max_new_tokens:
        text, rows = list(ids), []
        for _ in range(min(ahead, start + max_new_tokens - len(ids) - 1)):
            logits = guess(text).to(device).view(1, -1)
            rows.append(distribution(logits, text, start, sampling))  # (1, vocab)
            text.append(int(torch.multinomial(rows[-1][0], 1, generator=generator)))
        guesses = text[len(ids) :]
        p = distribution(read(text, len(guesses) + 1), text, start, sampling)  # (guess + 1, vocab)
        new = accept(guesses, torch.cat([*rows, p[:0]]), p, generator)
        calls, guessed, accepted = calls + 1, guessed + len(guesses), accepted + len(new) - 1
        kept = list(takewhile(lambda token: token not in ends, new))
        ids += kept
        if len(kept) < len(new):
            break
    return Speculation(ids[start:], calls, guessed, accepted)


def accept(
    guesses: Sequence[int],
    q: Float[Tensor, "guess vocab"],
    p: Float[Tensor, "after vocab"],
    generator: torch.Generator | None = None,
) -> list[int]:
    """The guesses up to the first one that is refused, and one token more; together they are drawn from p.

    A guess x stays with probability min(1, p(x) / q(x)). In the place of the first that does not, a token is drawn
    from max(0, p − q), normalised; if all stay, the last row of p gives one more (Leviathan et al. 2023, algorithm 1).

    Args:
        guesses: tokens, each drawn from its row of q.
        q: the draft's probabilities.
        p: the model's; one row more than q.
    """
    chance = torch.rand(len(guesses), generator=generator, device=p.device)
    for place, token in enumerate(guesses):
        if chance[place] * q[place, token] >= p[place, token]:
            left = (p[place] - q[place]).clamp(min=0)  # (vocab,)
            left = left if left.any() else p[place]  # where rounding alone has refused
            return [*guesses[:place], int(torch.multinomial(left, 1, generator=generator))]
    return [*guesses, int(torch.multinomial(p[-1], 1, generator=generator))]


def distribution(
    logits: Float[Tensor, "row vocab"], text: list[int], start: int, sampling: Sampling | None
) -> Float[Tensor, "row vocab"]:
    """Probabilities to draw from after the text's last tokens, one row for each; its first `start` are the prompt."""
    if sampling is None:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    first = len(text) - len(logits) + 1  # what the first row has seen
    counts = torch.stack([count(text[:end], logits) for end in range(first, len(text) + 1)])  # (row, vocab)
    written = torch.stack([count(text[start:end], logits) for end in range(first, len(text) + 1)])
    return sampling(logits.float(), counts > 0, written).softmax(dim=-1)


def count(tokens: list[int], logits: Float[Tensor, "row vocab"]) -> Tensor:
    """How often each token of the vocabulary is among these: (vocab,)."""
    return torch.tensor(tokens, dtype=torch.long, device=logits.device).bincount(minlength=logits.shape[-1])


class Reader:
    """A model that reads a text again and again while its end changes; what is the same stays in its cache."""

    def __init__(self, model: Decoder, use_cache: bool = True):
        self.model, self.device = model, next(iter(model.parameters())).device
        self.cache: Any = model.new_cache() if use_cache else None
        self.read: list[int] = []

    def __call__(self, ids: list[int], rows: int = 1) -> Float[Tensor, "rows vocab"]:
        """Logits after each of the last `rows` tokens."""
        past = 0
        if self.cache is not None:
            pairs = zip(self.read, ids[: len(ids) - rows], strict=False)
            past = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.cache.crop(past)
        new = torch.tensor([ids[past:]], device=self.device)  # (1, new)
        self.read = list(ids)
        return self.model.logits(self.model.decode(new, None, self.cache)[0, -rows:])


def check(model: Decoder, draft: Decoder | Draft, prompt: Sequence[int], ahead: int, max_new_tokens: int) -> None:
    if ahead < 1:
        raise ValueError(f"ahead={ahead} must be at least 1; without a draft use generate")
    check_prompts(torch.tensor([list(prompt)]), None, model.config.max_length, max_new_tokens)
    for name, each in ("model", model), ("draft", draft):
        if not isinstance(each, Decoder):
            continue
        length, vocab_size = each.config.max_length, each.config.vocab_size
        if len(prompt) + max_new_tokens > length:
            raise ValueError(
                f"the {name}'s context holds {length} tokens, prompt and new ones are {len(prompt)} + "
                f"{max_new_tokens}; shorten the prompt, or lower max_new_tokens"
            )
        if vocab_size != model.config.vocab_size:
            raise ValueError(
                f"the draft's vocabulary has {vocab_size} tokens, the model's {model.config.vocab_size}; "
                "both must mean the same by each number: choose a draft with the model's tokenizer"
            )
