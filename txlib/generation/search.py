"""Choosing the words: greedy and beam search, for any encoder–decoder.

A model is anything with `encode`, `decode`, `logits`, `new_cache` and a `config` that names bos_id and eos_id.
"""

from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor


class EncoderDecoder(Protocol):
    """What a search needs of a model; see `txlib.models.Transformer`."""

    config: Any

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor: ...
    def decode(self, decoder_input_ids: Tensor, memory: Tensor, attention_mask: Tensor | None, cache: Any) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def new_cache(self) -> Any: ...


def greedy(
    model: EncoderDecoder,
    input_ids: Int[Tensor, "batch source"],
    attention_mask: Int[Tensor, "batch source"] | None = None,
    *,
    max_length: int = 64,
    use_cache: bool = True,
) -> list[list[int]]:
    """At each step the likeliest word.

    Returns:
        for each sentence its tokens, without the start and end token.
    """
    return beam_search(model, input_ids, attention_mask, max_length=max_length, beams=1, use_cache=use_cache)


@torch.no_grad()
def beam_search(
    model: EncoderDecoder,
    input_ids: Int[Tensor, "batch source"],
    attention_mask: Int[Tensor, "batch source"] | None = None,
    *,
    max_length: int = 64,
    beams: int = 4,
    length_penalty: float = 0.6,
    use_cache: bool = True,
) -> list[list[int]]:
    """Keep the best `beams` beginnings of each sentence, lengthen each by every word, keep the best again.

    A sum of log-probabilities favours short sentences; it is divided by ((5 + length) / 6)^length_penalty (Wu et al.
    2016, §7, eq. 14). A finished sentence stays among the beams and competes with the others.

    Args:
        max_length: longest result, in tokens.
        beams: 1 is greedy search.
        length_penalty: 0 for the plain sum; 0.6 in Vaswani et al. 2017, §6.1.
        use_cache: False computes all steps anew, which is slow and gives the same.

    Returns:
        for each sentence the tokens of its best beam, without the start and end token.
    """
    if beams < 1 or max_length < 1:
        raise ValueError(f"beam_search needs beams >= 1 and max_length >= 1, got beams={beams}, max_length={max_length}")
    bos, eos = model.config.bos_id, model.config.eos_id
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    sentences, device = len(input_ids), input_ids.device
    memory = model.encode(input_ids, attention_mask).repeat_interleave(beams, dim=0)     # (sentence · beam, source, d)
    memory_mask = attention_mask.repeat_interleave(beams, dim=0)                         # (sentence · beam, source)
    cache = model.new_cache() if use_cache else None
    tokens = torch.full((sentences, beams, 1), bos, device=device)                       # (sentence, beam, length)
    score = torch.full((sentences, beams), float("-inf"), device=device)                 # (sentence, beam): sum of log p
    score[:, 0] = 0.0                                                                    # all beams start alike: use one
    length = torch.zeros_like(score)                                                     # tokens, with the end token
    done = torch.zeros_like(score, dtype=torch.bool)
    results: list[list[int]] = [[] for _ in range(sentences)]
    open_sentences = torch.arange(sentences, device=device)                              # rows still searched

    for _ in range(max_length):
        new = tokens.flatten(0, 1)[:, -1:] if use_cache else tokens.flatten(0, 1)
        hidden = model.decode(new, memory, memory_mask, cache)[:, -1]                    # (sentence · beam, d)
        log_p = model.logits(hidden).float().log_softmax(dim=-1).view(*score.shape, -1)  # (sentence, beam, vocab)
        log_p = log_p.masked_fill(done[..., None], float("-inf"))
        log_p[..., eos] = log_p[..., eos].masked_fill(done, 0.0)                         # a finished beam adds nothing
        total = score[..., None] + log_p                                                 # (sentence, beam, vocab)
        longer = length + ~done                                                          # (sentence, beam)
        ranked = (total / _penalty(longer, length_penalty)[..., None]).flatten(1)        # (sentence, beam · vocab)
        best = ranked.topk(beams, dim=-1).indices                                        # (sentence, beam)
        parent, word = best // log_p.shape[-1], best % log_p.shape[-1]
        tokens = torch.cat([tokens.gather(1, parent[..., None].expand(-1, -1, tokens.shape[-1])), word[..., None]], dim=-1)
        score = total.flatten(1).gather(1, best)
        length = longer.gather(1, parent)
        done = done.gather(1, parent) | (word == eos)
        rows = (torch.arange(len(parent), device=device)[:, None] * beams + parent).flatten()

        finished = done.all(dim=-1)                                                      # (sentence,)
        for row in finished.nonzero().flatten().tolist():
            results[int(open_sentences[row])] = _words(tokens[row, 0], eos)
        if finished.all():
            return results
        if finished.any():                                                               # go on with the others only
            left = ~finished
            rows = rows.view(-1, beams)[left].flatten()
            tokens, score, length, done = tokens[left], score[left], length[left], done[left]
            memory, memory_mask = (each.unflatten(0, (-1, beams))[left].flatten(0, 1) for each in (memory, memory_mask))
            open_sentences = open_sentences[left]
        if cache is not None:
            cache.reorder(rows)
    for row, sentence in enumerate(open_sentences.tolist()):
        results[sentence] = _words(tokens[row, 0], eos)
    return results


def _penalty(length: Float[Tensor, "*batch"], power: float) -> Float[Tensor, "*batch"]:
    return ((5 + length) / 6) ** power


def _words(tokens: Int[Tensor, "length"], eos: int) -> list[int]:
    """The tokens between the start token and the first end token."""
    words = tokens[1:].tolist()
    return words[: words.index(eos)] if eos in words else words
