"""Beam search, for any encoder–decoder and any decoder-only model.

A model has `decode`, `logits`, `new_cache`, and a `config` that names eos_id; an encoder–decoder also has `encode` and
bos_id, and may have pad_id and bad_words_ids, which are never written.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txlib.generation.prompts import Decoder, EncoderDecoder, check_prompts, end_tokens
from txlib.generation.sampling import check_at_least


@torch.no_grad()
def beam_search(
    model: EncoderDecoder | Decoder,
    input_ids: Int[Tensor, "batch source"],
    attention_mask: Int[Tensor, "batch source"] | None = None,
    *,
    max_new_tokens: int = 64,
    num_beams: int = 4,
    length_penalty: float = 0.6,
    eos_id: int | Sequence[int] | None = None,
    use_cache: bool = True,
) -> list[list[int]]:
    """Keep the best `num_beams` hypotheses of each text, lengthen each by every token, keep the best again.

    A hypothesis that writes the end token is finished. Its sum of log-probabilities, which would favor short texts, is
    divided by ((5 + length) / 6)^length_penalty (Wu et al. 2016, eq. 14). A text is done when `num_beams` hypotheses
    are finished, or when no other can win any more. Padding and the config's `bad_words_ids` are never written.

    Args:
        input_ids: the source; for a decoder-only model the prompts, padded on the left.
        attention_mask: 1 = a real token, 0 = padding; None: all are real.
        max_new_tokens: longest result, the end token included.
        num_beams: 1 is greedy search.
        length_penalty: 0 for the plain sum; 0.6 in Vaswani et al. 2017, §6.1.
        eos_id: tokens that end a text; the config's by default.
        use_cache: False computes all positions again at each step, which is slow and gives the same tokens.

    Returns:
        for each text the tokens of its best result, without the start and end token.
    """
    check_at_least("num_beams", num_beams, 1)
    check_at_least("max_new_tokens", max_new_tokens, 1)
    check_at_least("length_penalty", length_penalty, 0)
    searched = model if isinstance(model, EncoderDecoder) else Prompted(model, max_new_tokens)
    eos = torch.tensor(end_tokens(searched.config, eos_id), device=input_ids.device, dtype=torch.long)
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    memory = searched.encode(input_ids, attention_mask).repeat_interleave(num_beams, dim=0)  # (text · beam, source, d)
    memory_mask = attention_mask.repeat_interleave(num_beams, dim=0)  # (text · beam, source)
    cache = searched.new_cache() if use_cache else None
    bad_words = forbidden(searched.config, eos)
    beams = Beams(len(input_ids), num_beams, searched.config.bos_id, eos, length_penalty)
    for length in range(1, max_new_tokens + 1):
        new = beams.tokens[:, :, -1:] if use_cache else beams.tokens
        hidden = searched.decode(new.flatten(0, 1), memory, memory_mask, cache)[:, -1]  # (text · beam, d)
        log_p = searched.logits(hidden).log_softmax(dim=-1).unflatten(0, (-1, num_beams))  # (text, beam, vocab)
        for before, last in bad_words:
            if len(before) <= length:
                match = (beams.tokens[..., length - len(before) :] == before).all(dim=-1)  # (text, beam)
                log_p[..., last] = log_p[..., last].masked_fill(match, -torch.inf)
        rows = beams.lengthen(log_p, max_new_tokens)
        if not len(rows):
            break
        memory, memory_mask = memory[rows], memory_mask[rows]
        if cache is not None:
            cache.reorder(rows)
    return beams.results


class Beams:
    """The hypotheses of the texts that are not done yet, and the best finished result of every text.

    text: (text,), which of the results it is.
    tokens: (text, beam, length); score: (text, beam), sums of log-probabilities.
    finished: (text,), how many hypotheses have ended; best: (text,), the penalized score of the best of them.
    """

    def __init__(self, texts: int, num_beams: int, bos_id: int, eos: Int[Tensor, "ends"], length_penalty: float):
        device = eos.device
        self.eos, self.length_penalty = eos, length_penalty
        self.text = torch.arange(texts, device=device)
        self.tokens = torch.full((texts, num_beams, 1), bos_id, device=device)
        self.score = torch.full((texts, num_beams), -torch.inf, device=device)
        self.score[:, 0] = 0.0  # all beams start with the same token: use one
        self.finished = torch.zeros_like(self.text)
        self.best = torch.full((texts,), -torch.inf, device=device)
        self.results: list[list[int]] = [[]] * texts

    def lengthen(self, log_p: Float[Tensor, "text beam vocab"], max_new_tokens: int) -> Int[Tensor, "row"]:
        """Add a token to each hypothesis, keep the best, and drop the texts that are done.

        Returns:
            (text · beam,) which row of text · beam before each of those that are left continues.
        """
        num_beams, length = log_p.shape[1], self.tokens.shape[-1]
        # The best 2 · beams, as at most `beams` of them end, one for each beam; so enough remain to continue.
        total, choice = (self.score[..., None] + log_p).flatten(1).topk(2 * num_beams)  # (text, 2 · beam)
        parent, token = choice // log_p.shape[-1], choice % log_p.shape[-1]  # (text, 2 · beam)
        ends = torch.isin(token, self.eos)
        self.finish(total[:, :num_beams], ends[:, :num_beams], parent)

        self.score, kept = total.masked_fill(ends, -torch.inf).topk(num_beams)  # (text, beam)
        parent, token = parent.gather(1, kept), token.gather(1, kept)
        row = torch.arange(len(self.text), device=token.device)[:, None]  # (text, 1)
        self.tokens = torch.cat([self.tokens[row, parent], token[..., None]], dim=-1)  # (text, beam, length + 1)
        reachable = self.score[:, 0] / penalty(max_new_tokens, self.length_penalty)  # at most, by any hypothesis
        if length == max_new_tokens:
            for index in (reachable > self.best).nonzero().flatten().tolist():
                self.results[self.text[index]] = self.tokens[index, 0, 1:].tolist()
        running = (self.finished < num_beams) & (reachable > self.best)
        for name in ("text", "tokens", "score", "finished", "best"):
            setattr(self, name, getattr(self, name)[running])
        return (row * num_beams + parent)[running].flatten()

    def finish(
        self,
        total: Float[Tensor, "text beam"],
        ends: Bool[Tensor, "text beam"],
        parent: Int[Tensor, "text choices"],
    ) -> None:
        """Compare the hypotheses that end now with the best result so far."""
        ends = ends & total.isfinite()
        score = total.masked_fill(~ends, -torch.inf) / penalty(self.tokens.shape[-1], self.length_penalty)
        best, beam = score.max(dim=-1)
        for index in (best > self.best).nonzero().flatten().tolist():
            self.results[self.text[index]] = self.tokens[index, parent[index, beam[index]], 1:].tolist()
        self.finished, self.best = self.finished + ends.sum(dim=-1), torch.maximum(self.best, best)


class Prompted:
    """A decoder-only model as an encoder–decoder: its memory is the prompt, which precedes each result instead of the
    start token."""

    def __init__(self, model: Decoder, max_new_tokens: int):
        self.model, self.max_new_tokens = model, max_new_tokens
        self.config = SimpleNamespace(bos_id=0, eos_id=model.config.eos_id)  # bos_id is never read
        self.logits, self.new_cache = model.logits, model.new_cache

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None
    ) -> Int[Tensor, "batch source"]:
        """Return the prompt itself, checked: prompt and new tokens must fit into the context."""
        context = self.model.config.max_length - self.max_new_tokens + 1
        check_prompts(input_ids, attention_mask, context, self.max_new_tokens)
        return input_ids

    def decode(
        self,
        ids: Int[Tensor, "batch target"],
        memory: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"],
        cache: Any,
    ) -> Tensor:
        """Return one vector for each token of the prompt and of the hypothesis, or for the new one."""
        past = cache.length if cache is not None else 0
        new = ids if past else torch.cat([memory, ids[:, 1:]], dim=1)
        written = past + new.shape[1] - memory.shape[1]
        mask = torch.cat([attention_mask, attention_mask.new_ones(len(ids), written)], dim=1)
        return self.model.decode(new, mask, cache)


def forbidden(config: Any, eos: Int[Tensor, "ends"]) -> list[tuple[Int[Tensor, "before"], int]]:
    """Return what may not be written, each as the tokens before its last one, and that one.

    Padding is forbidden, unless it ends a text.
    """
    words = [list(word) for word in getattr(config, "bad_words_ids", None) or ()]
    pad = getattr(config, "pad_id", None)
    words += [] if pad is None or pad in eos else [[pad]]
    return [(eos.new_tensor(before), last) for *before, last in words]


def penalty(length: int, power: float) -> float:
    """Return what the score of a result of this length is divided by (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** power
