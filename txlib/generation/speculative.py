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

from txlib.generation.config import GenerationConfig
from txlib.generation.draft import DraftHead
from txlib.generation.prompts import Decoder, check_prompts, end_tokens

Draft = Callable[[list[int]], Float[Tensor, "vocab"]]  # logits of the next token after these: a table of counts, say


@dataclass(frozen=True)
class Speculation:
    """A text, and what it cost.

    Args:
        tokens: the new ones, without what ended them.
        calls: how often the model was called.
        guessed, accepted: how many tokens the draft proposed, and how many of these the model accepted.
    """

    tokens: list[int]
    calls: int
    guessed: int
    accepted: int


@torch.no_grad()
def speculate(
    model: Decoder,
    draft: Decoder | DraftHead | Draft,
    input_ids: Sequence[int],
    config: GenerationConfig | None = None,
    *,
    ahead: int = 4,
    **options: Any,
) -> Speculation:
    """Continue one prompt in fewer calls of the model: each call adds between 1 and ahead + 1 tokens.

    Without `do_sample` the tokens are those of `generate`. With it they have the same distribution, but a seed draws
    other ones. Prompt and new tokens must fit into the context together.

    Args:
        draft: a decoder with the same vocabulary, a `DraftHead` of this model, or a function from tokens to logits of
            the next one.
        input_ids: the tokens of one prompt.
        config: how to choose tokens, for draft and model alike, and when to stop.
        ahead: how many tokens the draft guesses before the model checks them (γ in the paper).
        options: of `GenerationConfig`, to change some of the config's.

    Raises:
        ValueError: when a number is out of range, the text exceeds a context, or the vocabularies differ.
    """
    config = GenerationConfig.of(config, options)
    check(model, draft, input_ids, ahead, config)
    device = next(iter(model.parameters())).device
    ends, generator = end_tokens(model.config, config.eos_id), torch.Generator(device)
    generator.seed() if config.seed is None else generator.manual_seed(config.seed)
    read = Reader(model, config.use_cache)
    guess: Draft = draft  # type: ignore[assignment]
    if isinstance(draft, DraftHead):
        guess = HeadReader(draft, read)
    elif isinstance(draft, Decoder):
        guess = Reader(draft, config.use_cache)
    ids, start, calls, guessed, accepted = list(input_ids), len(input_ids), 0, 0, 0
    while len(ids) - start < config.max_new_tokens:
        text, rows = list(ids), []
        most = 0 if isinstance(draft, DraftHead) and not read.read else ahead  # it needs a first state
        for _ in range(min(most, start + config.max_new_tokens - len(ids) - 1)):
            logits = guess(text).to(device).view(1, -1)
            rows.append(distribution(logits, text, start, config))  # (1, vocab)
            text.append(int(torch.multinomial(rows[-1][0], 1, generator=generator)))
        guesses = text[len(ids) :]
        p = distribution(read(text, len(guesses) + 1), text, start, config)  # (guess + 1, vocab)
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
    """Return the guesses up to the first one that is rejected, and one token more; together they are drawn from p.

    A guess x is accepted with probability min(1, p(x) / q(x)). Instead of the first that is not, a token is drawn
    from max(0, p − q), normalized; if all are, the last row of p gives one more (Leviathan et al. 2023, algorithm 1).

    Args:
        guesses: tokens, each drawn from its row of q.
        q: the draft's probabilities.
        p: the model's; one row more than q.
    """
    uniform = torch.rand(len(guesses), generator=generator, device=p.device)
    for index, token in enumerate(guesses):
        if uniform[index] * q[index, token] >= p[index, token]:
            residual = (p[index] - q[index]).clamp(min=0)  # (vocab,)
            residual = residual if residual.any() else p[index]  # rejected by a rounding error only
            return [*guesses[:index], int(torch.multinomial(residual, 1, generator=generator))]
    return [*guesses, int(torch.multinomial(p[-1], 1, generator=generator))]


def distribution(
    logits: Float[Tensor, "row vocab"], text: list[int], start: int, config: GenerationConfig
) -> Float[Tensor, "row vocab"]:
    """Return the probabilities to draw from after the text's last tokens, one row for each.

    The text's first `start` tokens are the prompt.
    """
    seen = written = None
    if config.has_penalties:
        ends = range(len(text) - len(logits) + 1, len(text) + 1)  # what each row has read
        seen = torch.stack([count(text[:end], logits) for end in ends]) > 0  # (row, vocab)
        written = torch.stack([count(text[start:end], logits) for end in ends])
    logits = config(logits.float(), seen, written)
    return logits.softmax(dim=-1) if config.do_sample else F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()


def count(tokens: list[int], logits: Float[Tensor, "row vocab"]) -> Tensor:
    """Return how often each token of the vocabulary is among these: (vocab,)."""
    return torch.tensor(tokens, dtype=torch.long, device=logits.device).bincount(minlength=logits.shape[-1])


class Reader:
    """A model that reads a text again and again while its end changes; the unchanged part stays in its cache."""

    def __init__(self, model: Decoder, use_cache: bool = True):
        self.model, self.device = model, next(iter(model.parameters())).device
        self.cache: Any = model.new_cache() if use_cache else None
        self.read: list[int] = []
        self.states: Tensor  # after the last tokens read, (rows, d_model)

    def __call__(self, ids: list[int], rows: int = 1) -> Float[Tensor, "rows vocab"]:
        """Return the logits after each of the last `rows` tokens."""
        past = 0
        if self.cache is not None:
            pairs = zip(self.read, ids[: len(ids) - rows], strict=False)
            past = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.cache.crop(past)
        new = torch.tensor([ids[past:]], device=self.device)  # (1, new)
        self.read, self.states = list(ids), self.model.decode(new, None, self.cache)[0, -rows:]
        return self.model.logits(self.states)


class HeadReader:
    """A draft head that guesses from the state after the last token but one: the model's, or else its own last one."""

    def __init__(self, head: DraftHead, model: Reader):
        self.head, self.model = head, model
        self.state: Tensor  # (1, 1, d_model)

    def __call__(self, ids: list[int]) -> Float[Tensor, "vocab"]:
        """Return the logits of the next token."""
        *before, last = ids
        if self.model.read[: len(before)] == before:
            self.state = self.model.states[len(before) - 1 - len(self.model.read)].view(1, 1, -1)
        self.state = self.head(self.state, torch.tensor([[last]], device=self.state.device))
        return self.head.logits(self.state[0, 0])


def check(
    model: Decoder, draft: Decoder | DraftHead | Draft, input_ids: Sequence[int], ahead: int, config: GenerationConfig
) -> None:
    """Raise a ValueError for a call that cannot work."""
    if ahead < 1:
        raise ValueError(f"ahead={ahead} must be at least 1; without a draft use generate")
    if config.num_beams > 1 or config.stop:
        raise ValueError("speculate knows neither num_beams nor stop; leave them out, or use generate")
    if isinstance(draft, DraftHead) and draft.decoder[0] is not model:
        raise ValueError("the draft head belongs to another model; make one with DraftHead(model) and train it")
    check_prompts(torch.tensor([list(input_ids)]), None, model.config.max_length, config.max_new_tokens)
    for name, decoder in ("model", model), ("draft", draft):
        if not isinstance(decoder, Decoder):
            continue
        length, vocab_size = decoder.config.max_length, decoder.config.vocab_size
        if len(input_ids) + config.max_new_tokens > length:
            raise ValueError(
                f"the {name}'s context holds {length} tokens, prompt and new ones are {len(input_ids)} + "
                f"{config.max_new_tokens}; shorten the prompt, or lower max_new_tokens"
            )
        if vocab_size != model.config.vocab_size:
            raise ValueError(
                f"the draft's vocabulary has {vocab_size} tokens, the model's {model.config.vocab_size}; "
                "both must mean the same by each number: choose a draft with the model's tokenizer"
            )
