"""Choosing the words: greedy and beam search, for any encoder–decoder and any decoder-only model.

A model is anything with `decode`, `logits`, `new_cache`, and a `config` that names eos_id; an encoder–decoder also has
`encode` and bos_id, and may have pad_id and bad_words_ids, which are never written.
"""

from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from txlib.generation.sampling import Decoder, check_prompts, end_tokens


@runtime_checkable
class EncoderDecoder(Protocol):
    """What a search needs of a model; see `txlib.models.Transformer`."""

    config: Any

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor: ...
    def decode(self, ids: Tensor, memory: Tensor, attention_mask: Tensor | None, cache: Any) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def new_cache(self) -> Any: ...


class Prompted:
    """A decoder-only model in the place of an encoder–decoder: its memory is the prompt, which stands before each
    result instead of the start token."""

    def __init__(self, model: Decoder, max_length: int):
        self.model, self.max_length = model, max_length
        self.config = SimpleNamespace(bos_id=0, eos_id=model.config.eos_id)  # bos_id: never read
        self.logits, self.new_cache = model.logits, model.new_cache

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None
    ) -> Int[Tensor, "batch source"]:
        """The prompt itself, checked: it must fit into the context, with what is to come."""
        check_prompts(input_ids, attention_mask, self.model.config.max_length - self.max_length + 1, self.max_length)
        return input_ids

    def decode(
        self,
        ids: Int[Tensor, "batch target"],
        memory: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"],
        cache: Any,
    ) -> Tensor:
        """One vector for each token of the prompt and of the beginning of a result, or for the new one."""
        past = cache.length if cache is not None else 0
        new = ids if past else torch.cat([memory, ids[:, 1:]], dim=1)
        written = past + new.shape[1] - memory.shape[1]
        mask = torch.cat([attention_mask, attention_mask.new_ones(len(ids), written)], dim=1)
        return self.model.decode(new, mask, cache)


def greedy(
    model: EncoderDecoder | Decoder,
    input_ids: Int[Tensor, "batch source"],
    attention_mask: Int[Tensor, "batch source"] | None = None,
    *,
    max_length: int = 64,
    use_cache: bool = True,
) -> list[list[int]]:
    """At each step the likeliest token: a beam search with one beam.

    Returns:
        for each sentence its tokens, without the start and end token.
    """
    return beam_search(model, input_ids, attention_mask, max_length=max_length, beams=1, use_cache=use_cache)


@torch.no_grad()
def beam_search(
    model: EncoderDecoder | Decoder,
    input_ids: Int[Tensor, "batch source"],
    attention_mask: Int[Tensor, "batch source"] | None = None,
    *,
    max_length: int = 64,
    beams: int = 4,
    length_penalty: float = 0.6,
    use_cache: bool = True,
) -> list[list[int]]:
    """Keep the best `beams` beginnings of each sentence, lengthen each by every token, keep the best again.

    What ends with the end token is put aside. Its sum of log-probabilities, which would favour short sentences, is
    divided by ((5 + length) / 6)^length_penalty (Wu et al. 2016, eq. 14). A sentence is done when as many results
    have been put aside as there are beams, or when no beginning can win any more. Padding and the config's
    `bad_words_ids` are never written.

    Args:
        input_ids: the source; for a decoder-only model the prompts, padded on the left.
        attention_mask: 1 = a real token, 0 = padding; None: all are real.
        max_length: longest result in tokens, the end token included.
        beams: 1 is greedy search.
        length_penalty: 0 for the plain sum; 0.6 in Vaswani et al. 2017, §6.1.
        use_cache: False computes all positions anew at each step, which is slow and gives the same.

    Returns:
        for each sentence the tokens of its best result, without the start and end token.
    """
    for name, value, least in ("beams", beams, 1), ("max_length", max_length, 1), ("length_penalty", length_penalty, 0):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    searched = model if isinstance(model, EncoderDecoder) else Prompted(model, max_length)
    bos, device = searched.config.bos_id, input_ids.device
    eos = torch.tensor(end_tokens(searched.config, None), device=device, dtype=torch.long)
    bad = bad_words(searched.config, eos)
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    memory = searched.encode(input_ids, attention_mask).repeat_interleave(beams, dim=0)  # (sentence · beam, source, d)
    memory_mask = attention_mask.repeat_interleave(beams, dim=0)  # (sentence · beam, source)
    cache = searched.new_cache() if use_cache else None

    sentence = torch.arange(len(input_ids), device=device)  # (sentence,): those that are not done
    tokens = torch.full((len(sentence), beams, 1), bos, device=device)  # (sentence, beam, length)
    score = torch.full((len(sentence), beams), -torch.inf, device=device)  # (sentence, beam): sum of log p
    score[:, 0] = 0.0  # all beams start alike: use one
    ended = torch.zeros_like(sentence)  # (sentence,): results put aside
    best = torch.full((len(sentence),), -torch.inf, device=device)  # (sentence,): the best result's score …
    results: list[list[int]] = [[]] * len(sentence)  # … and its tokens

    for length in range(1, max_length + 1):
        new = tokens[:, :, -1:] if use_cache else tokens
        hidden = searched.decode(new.flatten(0, 1), memory, memory_mask, cache)[:, -1]  # (sentence · beam, d)
        log_p = searched.logits(hidden).log_softmax(dim=-1).unflatten(0, (-1, beams))  # (sentence, beam, vocab)
        for before, last in bad:
            if len(before) <= length:
                begun = (tokens[..., length - len(before) :] == before).all(dim=-1)  # (sentence, beam)
                log_p[..., last] = log_p[..., last].masked_fill(begun, -torch.inf)
        # The best 2 · beams, as at most `beams` of them end, one for each beam; so enough remain to go on.
        total, choice = (score[..., None] + log_p).flatten(1).topk(2 * beams)  # (sentence, 2 · beam)
        parent, token = choice // log_p.shape[-1], choice % log_p.shape[-1]  # (sentence, 2 · beam)
        ends = torch.isin(token, eos)

        closing = ends[:, :beams] & total[:, :beams].isfinite()  # (sentence, beam)
        closed = total[:, :beams].masked_fill(~closing, -torch.inf) / penalty(length, length_penalty)
        ended, (closed, beam) = ended + closing.sum(dim=-1), closed.max(dim=-1)
        for row in (closed > best).nonzero().flatten().tolist():
            results[sentence[row]] = tokens[row, parent[row, beam[row]], 1:].tolist()
        best = torch.maximum(best, closed)

        score, kept = total.masked_fill(ends, -torch.inf).topk(beams)  # (sentence, beam)
        parent, token = parent.gather(1, kept), token.gather(1, kept)
        rows = torch.arange(len(sentence), device=device)[:, None]  # (sentence, 1)
        tokens = torch.cat([tokens[rows, parent], token[..., None]], dim=-1)  # (sentence, beam, length + 1)
        hope = score[:, 0] / penalty(max_length, length_penalty)  # what the best can still reach
        if length == max_length:
            for row in (hope > best).nonzero().flatten().tolist():
                results[sentence[row]] = tokens[row, 0, 1:].tolist()
        going = (ended < beams) & (hope > best)
        if not going.any():
            break
        rows = (rows * beams + parent)[going].flatten()  # what each beam continues
        memory, memory_mask = memory[rows], memory_mask[rows]
        sentence, tokens, score, ended, best = (each[going] for each in (sentence, tokens, score, ended, best))
        if cache is not None:
            cache.reorder(rows)
    return results


def bad_words(config: Any, eos: Int[Tensor, "ends"]) -> list[tuple[Int[Tensor, "before"], int]]:
    """What may not be written, each as the tokens before its last one, and that one. Padding is bad, unless it ends a
    text, too.
    """
    words = [list(word) for word in getattr(config, "bad_words_ids", None) or ()]
    pad = getattr(config, "pad_id", None)
    words += [] if pad is None or pad in eos else [[pad]]
    return [(eos.new_tensor(before), last) for *before, last in words]


def penalty(length: int, power: float) -> float:
    """What a result of this length has its score divided by (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** power
