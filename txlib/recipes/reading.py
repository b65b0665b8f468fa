"""Texts as a BERT reads them, one by one and in batches."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from txlib.data import BatchDict, LazyDataset, batches_by_length, pad
from txlib.labels import IGNORE_INDEX
from txlib.text import Tokenizer

LONGEST = 384  # tokens of an input, where the model could read more: what comes after is cut off


class Encoded(NamedTuple):
    """An example as the model reads it.

    ids, token_type_ids: tokens, and whether each is of the first text (0) or the second (1).
    labels: by name, the model's argument of that name; a list if each token has a label.
    offsets: of each token, its start and end in the text that answers are taken from; None elsewhere.
    """

    ids: list[int]
    token_type_ids: list[int]
    labels: dict[str, int | list[int]]
    offsets: list[tuple[int, int] | None]


class Reader:
    """Cuts texts into the tokens of a model, and puts the marks around them that a BERT expects.

    Args:
        tokenizer: from `tokenizer.json`, with the tokens [CLS], [SEP] and [PAD].
        longest: most tokens of an input.

    Raises:
        ValueError: where the tokenizer lacks a mark.
    """

    def __init__(self, tokenizer: Tokenizer, longest: int):
        self.tokenizer, self.longest = tokenizer, longest
        self.cls, self.sep, self.padding = map(tokenizer.mark, ("[CLS]", "[SEP]", "[PAD]"))

    def read(self, first: str, second: str | None = None) -> Encoded:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP]; places are those of the last text.

        What is too long loses tokens at the end of the longer text.
        """
        texts = [self.tokenizer.encode_with_offsets(text) for text in (first, second) if text is not None]
        max_tokens = self.longest - 1 - len(texts)
        lengths = [len(ids) for ids, _ in texts]
        while sum(lengths) > max_tokens:
            lengths[lengths.index(max(lengths))] -= 1
        ids, token_type_ids = [self.cls], [0]
        offsets: list[tuple[int, int] | None] = [None]
        for kind, ((tokens, spans), length) in enumerate(zip(texts, lengths, strict=True)):
            last = kind == len(texts) - 1
            ids += [*tokens[:length], self.sep]
            token_type_ids += [kind] * (length + 1)
            offsets += [*(spans[:length] if last else [None] * length), None]
        return Encoded(ids, token_type_ids, {}, offsets)


def collate(encoded: Sequence[Encoded], padding: int) -> BatchDict:
    """Examples as one batch, padded."""
    labels: dict[str, list[Any]] = {name: [example.labels[name] for example in encoded] for name in encoded[0].labels}
    mask = pad([[1] * len(example.ids) for example in encoded], 0)
    return BatchDict(
        input_ids=pad([example.ids for example in encoded], padding),
        attention_mask=mask,
        token_type_ids=pad([example.token_type_ids for example in encoded], 0),
        **{
            name: pad(values, IGNORE_INDEX) if isinstance(values[0], list) else torch.tensor(values)
            for name, values in labels.items()
        },
    )


def example_batches(
    encoded: Sequence[Encoded], max_tokens: int, padding: int, *, seed: int = 0
) -> Callable[[int], Sequence[BatchDict]]:
    """The batches that `train` wants: for each epoch the same examples, dealt anew, those of like length together."""
    lengths = [len(example.ids) for example in encoded]

    def batches(epoch: int) -> Sequence[BatchDict]:
        groups = batches_by_length(lengths, max_tokens, seed=seed, epoch=epoch)
        return LazyDataset(groups, lambda group: collate([encoded[index] for index in group], padding))

    return batches
