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

    ids, kinds: tokens, and whether each is of the first text (0) or the second (1).
    labels: by name, what the model's argument of that name is to be; a list where each token has one.
    places: of each token, from where to where it stands in the text that answers are taken from; None elsewhere.
    """

    ids: list[int]
    kinds: list[int]
    labels: dict[str, int | list[int]]
    places: list[tuple[int, int] | None]


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
        texts = [self.tokenizer.encode_with_places(text) for text in (first, second) if text is not None]
        room = self.longest - 1 - len(texts)
        lengths = [len(ids) for ids, _ in texts]
        while sum(lengths) > room:
            lengths[lengths.index(max(lengths))] -= 1
        ids, kinds = [self.cls], [0]
        places: list[tuple[int, int] | None] = [None]
        for kind, ((tokens, where), length) in enumerate(zip(texts, lengths, strict=True)):
            last = kind == len(texts) - 1
            ids += [*tokens[:length], self.sep]
            kinds += [kind] * (length + 1)
            places += [*(where[:length] if last else [None] * length), None]
        return Encoded(ids, kinds, {}, places)


def collate(encoded: Sequence[Encoded], padding: int) -> BatchDict:
    """Examples as one batch, padded."""
    labels: dict[str, list[Any]] = {name: [one.labels[name] for one in encoded] for name in encoded[0].labels}
    mask = pad([[1] * len(one.ids) for one in encoded], 0)
    return BatchDict(
        input_ids=pad([one.ids for one in encoded], padding),
        attention_mask=mask,
        token_type_ids=pad([one.kinds for one in encoded], 0),
        **{
            name: pad(values, IGNORE_INDEX) if isinstance(values[0], list) else torch.tensor(values)
            for name, values in labels.items()
        },
    )


def example_batches(
    encoded: Sequence[Encoded], max_tokens: int, padding: int, *, seed: int = 0
) -> Callable[[int], Sequence[BatchDict]]:
    """The batches that `train` wants: for each epoch the same examples, dealt anew, those of like length together."""
    lengths = [len(one.ids) for one in encoded]

    def batches(epoch: int) -> Sequence[BatchDict]:
        groups = batches_by_length(lengths, max_tokens, seed=seed, epoch=epoch)
        return LazyDataset(groups, lambda group: collate([encoded[index] for index in group], padding))

    return batches
