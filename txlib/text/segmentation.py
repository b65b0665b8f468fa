"""Words cut into tokens in more than one way: BPE-dropout (Provilkov et al. 2020)."""

from collections.abc import Iterable
from functools import cached_property
from random import Random

from txlib.text.merges import merge
from txlib.text.tokenizer import Tokenizer


class Segmentation:
    """Texts as tokens, cut anew whenever they are drawn.

    A model that meets "lower" as `low·er`, then as `l·ow·er`, learns what the parts mean, and sees each sentence in
    many forms. In one draw a word is cut the same way wherever it occurs: to cut each distinct word takes a second.

    Args:
        tokenizer: byte-pair encoding on bytes, such as `Tokenizer.train` learns.
        texts: ordinary text; what reads like a special token is text, too.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        self.tokenizer, self.texts = tokenizer, list(texts)

    def draw(self, dropout: float, seed: str) -> list[list[int]]:
        """The tokens of each text; where `dropout` is 0, those that the tokenizer gives.

        Args:
            dropout: the probability that a merge is left out, from 0 to 1; the paper's is 0.1.
            seed: the same seed draws the same tokens.

        Raises:
            ValueError: for another dropout.
        """
        check_bpe_dropout(dropout)
        if not dropout:
            return self._whole
        words, texts = self._words
        rng = Random(seed)
        drawn = [merge(word, self._merges, dropout, rng) for word in words]
        return [[token for word in text for token in drawn[word]] for text in texts]

    @cached_property
    def _whole(self) -> list[list[int]]:
        return self.tokenizer.encode_batch(self.texts, special_tokens=False)

    @cached_property
    def _words(self) -> tuple[list[list[int]], list[list[int]]]:
        """Each word in single bytes, as tokens; and each text as places in that list."""
        fast = self.tokenizer.tokenizer
        normal = fast.normalizer.normalize_str if fast.normalizer else str
        index_of: dict[str, int] = {}
        texts = []
        for text in self.texts:
            pieces = fast.pre_tokenizer.pre_tokenize_str(normal(text))
            texts.append([index_of.setdefault(piece, len(index_of)) for piece, _ in pieces])
        return [[fast.token_to_id(letter) for letter in word] for word in index_of], texts

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        model = self.tokenizer.to_dict()["model"]
        ids = model["vocab"]
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        return {(ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(pairs)}


def check_bpe_dropout(dropout: float) -> None:
    """Refuse what is no probability.

    Raises:
        ValueError: naming it.
    """
    if not 0 <= dropout <= 1:
        raise ValueError(f"bpe_dropout={dropout} must lie from 0 to 1, e.g. 0.1")
