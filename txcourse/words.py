"""Whole words as numbers, as lesson 03 builds them: 0 is padding, 1 any rare word."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def words(sentence: str) -> list[str]:
    """The words of a sentence in small letters, without punctuation."""
    return re.findall(r"\w+", sentence.lower())


def vocabulary(sentences: Iterable[str], at_least: int = 10) -> dict[str, int]:
    """Each word that occurs at least so often, the most frequent first, with its number from 2."""
    count = Counter(word for sentence in sentences for word in words(sentence))
    common = (word for word, times in count.most_common() if times >= at_least)
    return {word: id for id, word in enumerate(common, start=2)}


def encode(sentences: Iterable[str], ids: Mapping[str, int]) -> Int[Tensor, "sentence word"]:
    """The numbers of the words of each sentence, filled up with 0."""
    rows = [[ids.get(word, 1) for word in words(sentence)] for sentence in sentences]
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
