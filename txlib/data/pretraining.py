"""What BERT is pre-trained on: text as pairs of sentences with gaps (Devlin et al. 2019, §3.1).

The text is all the English that comes with the course: verses in two Englishes, plays, reviews.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from txlib.data.batching import BatchDict, LazyDataset, batches_by_length, pad
from txlib.data.reviews import reviews
from txlib.data.shakespeare import TEST, VALIDATION, plays, speeches
from txlib.data.verses import verses
from txlib.labels import IGNORE_INDEX
from txlib.text import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASKED = 0.15  # share of the tokens that are asked for (§3.1, Task #1); of these
REPLACED, RANDOM = 0.8, 0.1  # share that becomes [MASK], and that becomes any token; the rest stays as it is
SHORT, PART = 0.9, 4  # share of the inputs that take at most a quarter of the context (appendix A.2: 90% of the
# steps): most is learned from near neighbors, and short inputs cost less
SENTENCE = re.compile(r"[^.!?]+[.!?]*")

Document = list[list[int]]  # the tokens of its sentences, in order


class Pair(NamedTuple):
    """Two texts; `label` is 0 where the second follows the first, 1 where it is from elsewhere (§3.1, Task #2)."""

    first: list[int]
    second: list[int]
    label: int


def corpus(part: str, folder: Path | str | None = None) -> dict[str, list[list[str]]]:
    """All English text of the course by source, as documents of sentences, in order.

    Verses in the English of 1611 and of today are one document each, a sentence a verse; a play is one, a sentence a
    speech with its speaker's name; a review is one. What is for testing elsewhere is in neither part.

    Args:
        part: "train" or "validation".
        folder: where else the data lies, with one folder for each source.
    """

    def of(source: str) -> Path | None:
        return None if folder is None else Path(folder) / source

    archaic, modern = zip(*getattr(verses(of("verses")), part), strict=True)
    chosen = (
        text
        for play, text in plays(of("shakespeare")).items()
        if play != TEST and (play == VALIDATION) == (part == "validation")
    )
    texts = [review.text for review in getattr(reviews("stars", of("reviews")), part)]
    return {
        "archaic": [list(archaic)],
        "modern": [list(modern)],
        "plays": [
            [f"{speech.speaker}: {' '.join(speech.text.split())}" for speech in speeches(text)] for text in chosen
        ],
        "reviews": [list(filter(None, map(str.strip, SENTENCE.findall(text)))) for text in texts],
    }


def encode(documents: Mapping[str, list[list[str]]], tokenizer: Tokenizer) -> dict[str, list[Document]]:
    """Token ids of every sentence; documents of a single one are left out, as nothing follows in them.

    Each begins with a space, as within a text, so that its first word is the same token as everywhere else.
    """
    return {
        source: [
            [tokenizer.encode(" " + sentence, special_tokens=False) for sentence in document]
            for document in of_source
            if len(document) > 1
        ]
        for source, of_source in documents.items()
    }


def make_pairs(documents: Mapping[str, list[Document]], max_tokens: int, rng: random.Random) -> list[Pair]:
    """Cut all documents into pairs of texts, half of which get another second text than the one that follows.

    A text is one or more whole sentences, as many as fit into `max_tokens` tokens for both. The fraction `SHORT` of the
    pairs gets at most a quarter of that, the rest any size, so that the model knows inputs of every length. The other
    second text is from a random position in the same source, so that style does not reveal it; what it replaced
    begins the next pair. What is too long is cut off at the end.
    """
    pairs = []
    for of_source in documents.values():
        for document in of_source:
            start = 0
            while start + 1 < len(document):
                size = (
                    max(2, max_tokens // PART) if rng.random() < SHORT else rng.randint(min(16, max_tokens), max_tokens)
                )
                end = max(start + 2, fill(document, start, size))
                middle = rng.randint(start + 1, end - 1)
                first, label = join(document[start:middle])[: size - 1], int(rng.random() < 0.5)
                if label:
                    other = rng.choice(of_source)
                    start_of_other = rng.randrange(len(other))
                    second, start = join(other[start_of_other : fill(other, start_of_other, size - len(first))]), middle
                else:
                    second, start = join(document[middle:end]), end
                first = first[: max(size // 2, size - len(second))]
                pairs.append(Pair(first, second[: size - len(first)], label))
    return pairs


def fill(document: Document, start: int, max_tokens: int) -> int:
    """Where to stop, so that the sentences from `start` on just fill the room; at least one is taken."""
    end, size = start + 1, len(document[start])
    while end < len(document) and size + len(document[end]) <= max_tokens:
        size += len(document[end])
        end += 1
    return end


def join(sentences: Document) -> list[int]:
    return list(chain.from_iterable(sentences))


def mask_tokens(
    input_ids: Int[Tensor, "batch length"], ordinary: int, mask_id: int, generator: torch.Generator
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]:
    """Hide tokens: the input with gaps, and the labels, which are -100 where nothing is asked for.

    Of the ordinary tokens, those with ids below `ordinary`, each is asked for with probability 0.15. It is replaced by
    [MASK] in 80% of the cases, by any ordinary token in 10%, and left as it is in 10%, so that the model has to know
    each token and not just the gaps (§3.1, Task #1).
    """

    def draw() -> Tensor:
        return torch.rand(input_ids.shape, generator=generator)

    selected = (draw() < MASKED) & (input_ids < ordinary)  # (batch, length)
    labels = input_ids.where(selected, IGNORE_INDEX)
    fate, other = draw(), torch.randint(ordinary, input_ids.shape, generator=generator)
    hidden = input_ids.masked_fill(selected & (fate < REPLACED), mask_id)
    return other.where(selected & (fate >= REPLACED) & (fate < REPLACED + RANDOM), hidden), labels


def collate(pairs: Sequence[Pair], special: Mapping[str, int]) -> BatchDict:
    """[CLS] first [SEP] second [SEP], padded, with `next_sentence_label`."""
    cls, sep, padding = special["[CLS]"], special["[SEP]"], special["[PAD]"]
    input_ids = pad([[cls, *pair.first, sep, *pair.second, sep] for pair in pairs], padding)
    kinds = pad([[0] * (len(pair.first) + 2) + [1] * (len(pair.second) + 1) for pair in pairs], 0)
    return BatchDict(
        input_ids=input_ids,
        attention_mask=(input_ids != padding).long(),
        token_type_ids=kinds,
        next_sentence_label=torch.tensor([pair.label for pair in pairs]),
    )


def pair_batches(
    documents: Mapping[str, list[Document]], tokenizer: Tokenizer, context: int, max_tokens: int, *, seed: int = 0
) -> Callable[[int], Sequence[BatchDict]]:
    """The batches that `train` wants: in each epoch other pairs with other gaps, those of like length together."""
    special = tokenizer.special_tokens
    ordinary = len(tokenizer) - len(special)

    def batches(epoch: int) -> Sequence[BatchDict]:
        pairs = make_pairs(documents, context - 3, random.Random(f"{seed} {epoch}"))
        lengths = [len(pair.first) + len(pair.second) + 3 for pair in pairs]
        groups = batches_by_length(lengths, max_tokens, seed=seed, epoch=epoch)

        def make(group: list[int]) -> BatchDict:
            inputs = collate([pairs[index] for index in group], special)
            generator = torch.Generator().manual_seed(random.Random(f"{seed} {epoch} {group[0]}").getrandbits(63))
            gaps, labels = mask_tokens(inputs["input_ids"], ordinary, special["[MASK]"], generator)
            return BatchDict(inputs, input_ids=gaps, labels=labels)

        return LazyDataset(groups, make)

    return batches
