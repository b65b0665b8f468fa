"""Write five_words.json: the vectors of five words, for lesson 04, and how much all words look at themselves.

    python data/five_words.py

Lesson 01 builds such vectors step by step: counts of neighbors at most two words apart, positive pointwise mutual
information, a singular value decomposition. Here all vectors get the same length.
"""

import json
import re
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlib.data import translation
from txlib.files import write_atomically

FILE = Path(__file__).with_suffix(".json")
WORDS = "the", "orcs", "have", "attacked", "humans"
D = 64
LEAST = 10  # times that a word occurs; rarer ones are all word 1, and 0 is padding


def encode(sentences: list[str], ids: dict[str, int]) -> Tensor:
    """Return the words' numbers, (sentence, longest)."""
    rows = [torch.tensor([ids.get(word, 1) for word in words(sentence)]) for sentence in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+", sentence.lower())


def vectors_of(text: Tensor, size: int) -> Tensor:
    """Return one vector of length √D for each of `size` words, (word, D)."""
    near = torch.zeros(size, size)  # (word, neighbor)
    for apart in (1, 2):
        both = text[:, :-apart].flatten(), text[:, apart:].flatten()  # (pair,) twice
        near.index_put_(both, torch.ones(len(both[0])), accumulate=True)
    near = near + near.T
    near[0] = near[:, 0] = 0
    by_chance = near.sum(dim=0) * near.sum(dim=1, keepdim=True) / near.sum()
    ppmi = (near / by_chance).log().nan_to_num(0.0, neginf=0.0).clamp(min=0)  # (word, neighbor)
    u, s, _ = torch.svd_lowrank(ppmi, q=D, niter=4)  # (word, D), (D,)
    return F.normalize(u * s.sqrt(), dim=-1) * D**0.5


def own_weight(vectors: Tensor, text: Tensor) -> float:
    """Return the mean weight of a word on itself, where the words are compared as they are."""
    x, real = vectors[text], text > 0  # (sentence, n, D), (sentence, n)
    score = (x @ x.mT / D**0.5).masked_fill(~real[:, None], -1e9)  # (sentence, n, n)
    return score.softmax(dim=-1).diagonal(dim1=1, dim2=2)[real].mean().item()


def main() -> None:
    train, test = (
        [english for german, english in pairs if all(3 <= len(words(side)) <= 12 for side in (german, english))]
        for pairs in translation("games", max_words=12)[:2]
    )
    count = Counter(word for sentence in train for word in words(sentence))
    common = [word for word, times in count.most_common() if times >= LEAST]
    ids = {word: number for number, word in enumerate(common, start=2)}
    torch.manual_seed(0)
    vectors = vectors_of(encode(train, ids), len(ids) + 2)
    rows = [[round(number, 4) for number in vectors[ids[word]].tolist()] for word in WORDS]
    facts = {"sentences": len(test), "own": round(own_weight(vectors, encode(test, ids)), 4)}
    parts = [
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in [*facts.items(), *zip(WORDS, rows, strict=True)]
    ]
    write_atomically(FILE, "{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
