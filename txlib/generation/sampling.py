"""Writing on: greedy or random, one prompt or many, all at once or token by token, for any decoder-only model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Prompts = Int[Tensor, "batch length"] | Sequence[Sequence[int]]
Allow = Callable[
    [list[list[int]]], Bool[Tensor, "batch vocab"]
]  # of the new tokens so far, the tokens that may come next


@runtime_checkable
class Decoder(Protocol):
    """What generation needs of a model; see `txlib.models.GPT`."""

    config: Any

    def decode(self, input_ids: Tensor, attention_mask: Tensor | None, cache: Any) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def new_cache(self, capacity: int | None = None) -> Any: ...
    def parameters(self) -> Iterator[Tensor]: ...


def apply_temperature(logits: Float[Tensor, "*batch vocab"], temperature: int | float) -> Float[Tensor, "*batch vocab"]:
    """Divide: below 1 the likely tokens gain, above 1 the unlikely ones (Ackley et al. 1985)."""
    check_positive("temperature", temperature)
    return logits / temperature


def keep_top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Only the k likeliest tokens, and what is exactly as likely as the last of them (Fan et al. 2018, §5.4)."""
    if k < 1:
        raise ValueError(f"top_k={k} must be at least 1")
    least = logits.topk(min(k, logits.shape[-1])).values[..., -1:]  # (…, 1)
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Float[Tensor, "*batch vocab"], p: int | float) -> Float[Tensor, "*batch vocab"]:
    """Only the nucleus: the fewest tokens whose probabilities sum to at least p (Holtzman et al. 2020, §3.1)."""
    check_share("top_p", p)
    probability, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probability.cumsum(dim=-1) - probability  # what likelier tokens already sum to
    left_out = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(left_out, -torch.inf)


def keep_min_p(logits: Float[Tensor, "*batch vocab"], p: int | float) -> Float[Tensor, "*batch vocab"]:
    """Only tokens with at least p times the likeliest one's probability (Nguyen et al. 2024, §3)."""
    check_share("min_p", p)
    probability = logits.softmax(dim=-1)
    return logits.masked_fill(probability < p * probability.amax(dim=-1, keepdim=True), -torch.inf)


def penalise_repetition(
    logits: Float[Tensor, "batch vocab"], seen: Bool[Tensor, "batch vocab"], penalty: int | float
) -> Float[Tensor, "batch vocab"]:
    """Logits of tokens seen before are divided by the penalty, negative ones multiplied (Keskar et al. 2019, §4.1)."""
    check_positive("repetition_penalty", penalty)
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_counts(
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
class Sampling:
    """How to draw the next token: what is set is applied to the logits, penalties first, then the temperature, then
    the filters.

    Args:
        repetition_penalty: see `penalise_repetition`; 1 is none.
        presence_penalty, frequency_penalty: see `penalise_counts`; 0 is none.
        temperature: see `apply_temperature`; 1 leaves the model's own distribution.
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

    def __call__(
        self,
        logits: Float[Tensor, "batch vocab"],
        seen: Bool[Tensor, "batch vocab"],
        written: Int[Tensor, "batch vocab"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Logits of the distribution to draw from.

        Args:
            seen: True for the tokens of the text so far, the prompt's included.
            written: how often each has been written after the prompt; None: nothing has.
        """
        if self.repetition_penalty != 1:
            logits = penalise_repetition(logits, seen, self.repetition_penalty)
        if written is not None and (self.presence_penalty or self.frequency_penalty):
            logits = penalise_counts(logits, written, self.presence_penalty, self.frequency_penalty)
        if self.temperature != 1:
            logits = apply_temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits


def generate(
    model: Decoder,
    prompts: Prompts,
    attention_mask: Int[Tensor, "batch length"] | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop: Sequence[Sequence[int]] = (),
    eos_id: int | Sequence[int] | None = None,
    seed: int | None = None,
    use_cache: bool = True,
    allow: Allow | None = None,
) -> list[list[int]]:
    """Continue each prompt; the new tokens come back, without what ended them. Arguments as in `stream`."""
    steps = stream(
        model,
        prompts,
        attention_mask,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop,
        eos_id=eos_id,
        seed=seed,
        use_cache=use_cache,
        allow=allow,
    )
    results = [[token for token in row if token is not None] for row in zip(*steps, strict=True)]
    ends = [*([end] for end in end_tokens(model.config, eos_id)), *map(list, stop)]
    return [without(row, ends) for row in results]


@torch.no_grad()
def stream(
    model: Decoder,
    prompts: Prompts,
    attention_mask: Int[Tensor, "batch length"] | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop: Sequence[Sequence[int]] = (),
    eos_id: int | Sequence[int] | None = None,
    seed: int | None = None,
    use_cache: bool = True,
    allow: Allow | None = None,
) -> Iterator[list[int | None]]:
    """Continue prompts token by token: each step yields one new token per prompt, None for those that have ended.

    When the context (`config.max_length`) is full, its older half is forgotten, so that texts can be of any length.

    Args:
        prompts: lists of tokens, of any lengths; or a tensor, padded on the left, with its attention_mask.
        max_new_tokens: stop after so many.
        sampling: how to draw; None is greedy, the likeliest token each time.
        stop: a text ends when it ends with one of these lists of tokens.
        eos_id: tokens that end a text; the config's unless given.
        seed: the same seed draws the same tokens.
        use_cache: False computes all positions anew at each step, which is slow and gives the same.
        allow: is given each text's new tokens, and says which may come next, True for each; the others are never
            written, whatever the model thinks. None: all.

    Raises:
        TypeError: the model is no decoder, or prompts or stop are no lists of tokens.
        ValueError: when a prompt is empty or longer than the context, or padded on the right, or no token is allowed.
    """
    check_decoder(model)
    check_lists("prompts", prompts)
    check_lists("stop", stop)
    device = next(iter(model.parameters())).device
    ids, mask = (prompts, attention_mask) if isinstance(prompts, Tensor) else pad_left(prompts)
    ids, mask = ids.to(device), None if mask is None else mask.to(device)
    context = model.config.max_length
    check_prompts(ids, mask, context, max_new_tokens)
    ends, stops = end_tokens(model.config, eos_id), [list(tokens) for tokens in stop]
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    choose = greedy_choice if sampling is None else drawn_choice(sampling, generator)
    seen = seen_tokens(ids, mask, model.config.vocab_size)  # (batch, vocab)
    counts = torch.zeros_like(seen, dtype=torch.long)  # (batch, vocab): of the new tokens
    written: list[list[int]] = [[] for _ in ids]
    going = [True] * len(ids)
    cache, new = None, ids
    for step in range(max_new_tokens):
        if ids.shape[1] > context:  # full: keep the newer half
            ids, mask = ids[:, -(context // 2 or 1) :], None if mask is None else mask[:, -(context // 2 or 1) :]
            cache = None
        if use_cache and cache is None:
            cache, new = model.new_cache(min(context, ids.shape[1] + max_new_tokens - step)), ids
        hidden = model.decode(new if use_cache else ids, mask, cache)[:, -1]  # (batch, d_model)
        logits = model.logits(hidden).float()  # (batch, vocab)
        if allow is not None:
            logits = only(logits, allow(written), step)
        token = choose(logits, seen, counts)  # (batch,)
        seen.scatter_(1, token[:, None], True)
        counts.scatter_add_(1, token[:, None], torch.ones_like(counts[:, :1]))
        new = token[:, None]
        ids, mask = torch.cat([ids, new], dim=1), None if mask is None else torch.cat([mask, mask[:, -1:]], dim=1)
        tokens = [number if on else None for number, on in zip(token.tolist(), going, strict=True)]
        for row, number in enumerate(tokens):
            if number is not None:
                written[row].append(number)
                going[row] = number not in ends and not any(written[row][-len(each) :] == each for each in stops)
        yield tokens
        if not any(going):
            return


def only(
    logits: Float[Tensor, "batch vocab"], allowed: Bool[Tensor, "batch vocab"], step: int
) -> Float[Tensor, "batch vocab"]:
    """Only the tokens that are allowed.

    Raises:
        ValueError: when for some text none is.
    """
    if not allowed.any(dim=-1).all():
        row = int((~allowed.any(dim=-1)).nonzero()[0])
        raise ValueError(f"allow leaves text {row} no token to go on with, after {step} new ones; allow at least one")
    return logits.masked_fill(~allowed.to(logits.device), -torch.inf)


def greedy_choice(
    logits: Float[Tensor, "batch vocab"], seen: Bool[Tensor, "batch vocab"], written: Int[Tensor, "batch vocab"]
) -> Int[Tensor, "batch"]:
    """The likeliest token."""
    return logits.argmax(dim=-1)


def drawn_choice(sampling: Sampling, generator: torch.Generator | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function that draws a token."""

    def choose(logits: Tensor, seen: Tensor, written: Tensor) -> Tensor:
        return torch.multinomial(sampling(logits, seen, written).softmax(dim=-1), 1, generator=generator)[:, 0]

    return choose


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor | None]:
    """Prompts of different lengths as one tensor that ends with each one's last token, and its attention mask.

    The mask is None when there is no padding.
    """
    longest = max((len(prompt) for prompt in prompts), default=0)
    ids = torch.tensor([[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts], dtype=torch.long)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids.view(len(prompts), longest), None if mask.all() and mask.numel() else mask.view(len(prompts), longest)


def seen_tokens(
    ids: Int[Tensor, "batch length"], mask: Int[Tensor, "batch length"] | None, vocab_size: int
) -> Bool[Tensor, "batch vocab"]:
    """True for the tokens that stand in each prompt."""
    outside = vocab_size  # a column for padding, cut off again
    ids = ids if mask is None else ids.masked_fill(mask == 0, outside)
    seen = torch.zeros(len(ids), vocab_size + 1, dtype=torch.bool, device=ids.device)
    return seen.scatter_(1, ids, True)[:, :outside].contiguous()


def end_tokens(config: Any, eos_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """The tokens that end a text: those given, or the config's."""
    eos_id = config.eos_id if eos_id is None else eos_id
    return () if eos_id is None else (eos_id,) if isinstance(eos_id, int) else tuple(eos_id)


def without(tokens: list[int], ends: list[list[int]]) -> list[int]:
    """The tokens without the end that stopped them."""
    for end in ends:
        if end and tokens[-len(end) :] == end:
            return tokens[: -len(end)]
    return tokens


def check_decoder(model: Any) -> None:
    if not isinstance(model, Decoder):
        raise TypeError(f"{type(model).__name__} can't write: generation needs a decoder-only model, such as txlib.GPT")


def check_lists(name: str, lists: Any) -> None:
    """A list of lists of tokens, or a tensor."""
    wrong = lists if isinstance(lists, str) else next((each for each in lists if isinstance(each, str | int)), None)
    if wrong is not None:
        raise TypeError(
            f"{name} must be a list of lists of tokens, such as [[5, 6]], and holds {wrong!r}; for text use "
            "Writer(model, tokenizer)"
        )


def check_prompts(ids: Tensor, mask: Tensor | None, context: int, max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be at least 1")
    if ids.numel() == 0 or (mask is not None and not mask.any(dim=1).all()):
        raise ValueError("a prompt is empty; give at least one token, such as the one that begins a text")
    if ids.shape[1] > context:
        raise ValueError(f"a prompt has {ids.shape[1]} tokens, the context holds {context}; shorten it")
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, the prompts {tuple(ids.shape)}")
    if mask is not None and not mask[:, -1].all():
        raise ValueError(
            "prompts must be padded on the left, so that each ends where the new tokens begin; "
            "lists of tokens are padded so"
        )


def check_positive(name: str, value: int | float) -> None:
    if not value > 0:
        greedy = "; for the likeliest token each time use greedy search: sampling=None, or --greedy"
        hint = greedy if name == "temperature" else ""
        raise ValueError(f"{name}={value} must be above 0{hint}")


def check_share(name: str, value: int | float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value} must be in (0, 1]; 1 keeps {'all' if name == 'top_p' else 'the likeliest'}")
