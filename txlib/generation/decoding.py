"""Continue texts: greedy, random or by beam search, one prompt or many, all at once or token by token."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txlib.generation.config import GenerationConfig
from txlib.generation.prompts import (
    Decoder,
    EncoderDecoder,
    TokenIds,
    as_tensor,
    check_decoder,
    check_lists,
    check_prompts,
    end_tokens,
    without_end,
)
from txlib.generation.search import beam_search

Allow = Callable[
    [list[list[int]]], Bool[Tensor, "batch vocab"]
]  # of the new tokens so far, the tokens that may come next


def generate(
    model: Decoder | EncoderDecoder,
    input_ids: TokenIds,
    attention_mask: Int[Tensor, "batch length"] | None = None,
    config: GenerationConfig | None = None,
    *,
    allow: Allow | None = None,
    **options: Any,
) -> list[list[int]]:
    """Return the new tokens of each text, without what ended them.

    A decoder-only model continues its prompts, with `num_beams` above 1 by beam search; an encoder–decoder writes a
    text for each source, by greedy or beam search. Arguments as in `stream`.

    Example:
        generate(model, [[5, 6, 7]], max_new_tokens=20, do_sample=True, temperature=0.8, seed=0)
    """
    config = GenerationConfig.of(config, options)
    if config.num_beams > 1 or isinstance(model, EncoderDecoder):
        if config.do_sample or config.stop or config.has_penalties or allow is not None:
            raise ValueError(
                "beam search and encoder–decoders know no do_sample, stop, allow or penalties; leave them out, or "
                "use a decoder-only model with num_beams=1"
            )
        ids, mask = as_tensor(input_ids, attention_mask, left=not isinstance(model, EncoderDecoder))
        return beam_search(
            model,
            ids,
            mask,
            max_new_tokens=config.max_new_tokens,
            num_beams=config.num_beams,
            length_penalty=config.length_penalty,
            eos_id=config.eos_id,
            use_cache=config.use_cache,
        )
    steps = stream(model, input_ids, attention_mask, config, allow=allow)
    rows = [[token for token in row if token is not None] for row in zip(*steps, strict=True)]
    ends = [*([end] for end in end_tokens(model.config, config.eos_id)), *map(list, config.stop)]
    return [without_end(row, ends) for row in rows]


@torch.no_grad()
def stream(
    model: Decoder,
    input_ids: TokenIds,
    attention_mask: Int[Tensor, "batch length"] | None = None,
    config: GenerationConfig | None = None,
    *,
    allow: Allow | None = None,
    **options: Any,
) -> Iterator[list[int | None]]:
    """Continue prompts token by token: each step yields one new token per prompt, None for those that have ended.

    When the context (`config.max_length`) is full, its older half is forgotten, so that texts can be of any length.

    Args:
        input_ids: lists of tokens, of any lengths; or a tensor, padded on the left, with its attention_mask.
        config: how to choose tokens and when to stop.
        allow: is called with each text's new tokens and says which may come next, True for each; the others are never
            written, whatever the model thinks. None: all.
        options: of `GenerationConfig`, to change some of the config's.

    Raises:
        TypeError: the model is not a decoder, or input_ids or stop are not lists of tokens.
        ValueError: when a prompt is empty or longer than the context, or padded on the right, or no token is allowed.
    """
    config = GenerationConfig.of(config, options)
    check_decoder(model)
    check_lists("stop", config.stop)
    if config.num_beams > 1:
        raise ValueError(f"num_beams={config.num_beams} can't be streamed, as beams end together; use generate")
    device = next(iter(model.parameters())).device
    ids, mask = as_tensor(input_ids, attention_mask, left=True)
    ids, mask = ids.to(device), None if mask is None else mask.to(device)
    context = model.config.max_length
    check_prompts(ids, mask, context, config.max_new_tokens)
    generator = None if config.seed is None else torch.Generator(device).manual_seed(config.seed)
    texts = Texts(model, ids, mask, config)
    cache, new = None, ids
    for step in range(config.max_new_tokens):
        if ids.shape[1] > context:  # full: keep the newer half
            ids, mask = ids[:, -(context // 2 or 1) :], None if mask is None else mask[:, -(context // 2 or 1) :]
            cache = None
        if config.use_cache and cache is None:
            cache, new = model.new_cache(min(context, ids.shape[1] + config.max_new_tokens - step)), ids
        hidden = model.decode(new if config.use_cache else ids, mask, cache)[:, -1]  # (batch, d_model)
        logits = model.logits(hidden).float()  # (batch, vocab)
        if allow is not None:
            logits = keep_allowed(logits, allow(texts.written), step)
        token = config.next_token(logits, texts.seen, texts.counts, generator)  # (batch,)
        new = token[:, None]
        ids, mask = torch.cat([ids, new], dim=1), None if mask is None else torch.cat([mask, mask[:, -1:]], dim=1)
        yield texts.append(token)
        if texts.ended:
            return


class Texts:
    """What has been written so far.

    seen: (batch, vocab), the tokens of each text, the prompt's included.
    counts: (batch, vocab), how often each token has been written after the prompt.
    written: the new tokens of each text.
    """

    def __init__(
        self,
        model: Decoder,
        ids: Int[Tensor, "batch length"],
        mask: Int[Tensor, "batch length"] | None,
        config: GenerationConfig,
    ):
        self.ends = end_tokens(model.config, config.eos_id)
        self.stops = [list(tokens) for tokens in config.stop]
        self.seen = seen_tokens(ids, mask, model.config.vocab_size)
        self.counts = torch.zeros_like(self.seen, dtype=torch.long)
        self.written: list[list[int]] = [[] for _ in ids]
        self.running = [True] * len(ids)

    @property
    def ended(self) -> bool:
        return not any(self.running)

    def append(self, token: Int[Tensor, "batch"]) -> list[int | None]:
        """Note one new token per text, and return it; None for a text that had ended."""
        self.seen.scatter_(1, token[:, None], True)
        self.counts.scatter_add_(1, token[:, None], torch.ones_like(self.counts[:, :1]))
        tokens = [number if running else None for number, running in zip(token.tolist(), self.running, strict=True)]
        for row, number in enumerate(tokens):
            if number is not None:
                written = self.written[row]
                written.append(number)
                stopped = any(written[-len(stop) :] == stop for stop in self.stops)
                self.running[row] = number not in self.ends and not stopped
        return tokens


def keep_allowed(
    logits: Float[Tensor, "batch vocab"], allowed: Bool[Tensor, "batch vocab"], step: int
) -> Float[Tensor, "batch vocab"]:
    """Return logits of -inf for tokens that are not allowed.

    Raises:
        ValueError: when for some text none is.
    """
    if not allowed.any(dim=-1).all():
        row = int((~allowed.any(dim=-1)).nonzero()[0])
        raise ValueError(f"allow leaves text {row} no token to go on with, after {step} new ones; allow at least one")
    return logits.masked_fill(~allowed.to(logits.device), -torch.inf)


def seen_tokens(
    ids: Int[Tensor, "batch length"], mask: Int[Tensor, "batch length"] | None, vocab_size: int
) -> Bool[Tensor, "batch vocab"]:
    """Return True for the tokens in each prompt."""
    padding = vocab_size  # a column for padding, cut off again
    ids = ids if mask is None else ids.masked_fill(mask == 0, padding)
    if ids.device.type == "cpu" and (wrong := ids[(ids < 0) | (ids > padding)]).numel():
        raise ValueError(f"input_ids holds {wrong[0]}, and vocab_size={vocab_size} allows 0 to {vocab_size - 1}")
    seen = torch.zeros(len(ids), vocab_size + 1, dtype=torch.bool, device=ids.device)
    return seen.scatter_(1, ids, True)[:, :padding].contiguous()
