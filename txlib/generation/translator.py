"""A sentence in, its translation out: a model with its tokenizer."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txlib.data import batches_by_length, collate
from txlib.generation.search import beam_search


class Translator:
    """A trained encoder–decoder with its tokenizer.

    Args:
        model: its config says which tokens begin, end and pad a sentence; its other tokens are the tokenizer's.
        tokenizer: from `txlib.text`.

    Raises:
        ValueError: when the two have different numbers of tokens.
    """

    def __init__(self, model: Any, tokenizer: Any):
        if len(tokenizer) != model.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}; take both of one run"
            )
        self.model, self.tokenizer = model.eval(), tokenizer

    def translate(
        self,
        sentences: Sequence[str],
        *,
        num_beams: int = 4,
        batch_tokens: int = 4_000,
        show: Callable[[Sequence, str], Iterable] = lambda batches, what: batches,
    ) -> list[str]:
        """Translate sentences, several at a time.

        Args:
            num_beams: see `beam_search`; 1 beam is greedy.
            batch_tokens: source tokens translated together.
            show: iterates over the batches and shows the progress.
        """
        if not sentences:
            return []
        config, device = self.model.config, next(self.model.parameters()).device
        encoded = self.tokenizer.encode_batch(sentences, special_tokens=False)
        lengths = [len(ids) + 1 for ids in encoded]
        results = [""] * len(encoded)
        for batch in show(batches_by_length(lengths, max(batch_tokens, *lengths, 0)), "translating"):
            pairs = [(encoded[index], ()) for index in batch]
            source = collate(pairs, config.bos_id, config.eos_id, config.pad_id).to(device)
            longest = int(1.5 * source.input_ids.shape[1]) + 10
            translations = beam_search(
                self.model,
                source.input_ids,
                source.attention_mask,
                max_new_tokens=min(longest, getattr(config, "max_length", longest)),
                num_beams=num_beams,
                length_penalty=1.0,
            )
            for index, tokens in zip(batch, translations, strict=True):
                results[index] = self.tokenizer.decode(tokens)
        return results
