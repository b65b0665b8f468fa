"""Words with two meanings, in real sentences; which is meant, a rule says that reads the words around."""

import os
import random
import re
from typing import NamedTuple

from txlib.data.reviews import reviews
from txlib.data.verses import verses

MOST = 24  # sentences per meaning
RULES = {  # word: source, and what is found around each of its meanings
    "left": ("Bible", r"(?:on the|his|to the|your) left\b", r"\b(?:have|has|is|are|was|he|they) left\b"),
    "might": ("Bible", r"\b(?:your|his|my|all|their|with|own) might\b", r"\b(?:that|they|he|you|it|we) might\b"),
    "rest": ("Bible", r"\bthe rest of\b", r"\b(?:you|them|him|no|have|a|will|to|of|gave|give) rest\b"),
    "like": ("reviews", r"\b(?:looks?|looked|feels?|felt|fits?|just) like\b", r"\b(?:i|really|not|you|didn't) like\b"),
    "fit": (
        "reviews",
        r"\b(?:the|a|good|great|weird|bad|poor) fit\b",
        r"\b(?:not|didn't|to|doesn't|would|should) fit\b",
    ),
}


class Sense(NamedTuple):
    """A sentence with a word that has two meanings; `label` says which is meant, 0 or 1."""

    text: str
    label: int


def word_senses(folder: str | os.PathLike | None = None) -> dict[str, list[Sense]]:
    """Return sentences for each of five words that have two meanings, as many for one meaning as for the other.

    The *left* hand, or they *left*; with all his *might*, or it *might*; the *rest* of it, or no *rest*; looks *like*,
    or I *like*; a good *fit*, or didn't *fit*. The sentences are verses in today's English and reviews.

    Args:
        folder: where else the data lies, with the folders `verses` and `reviews`.
    """
    inside = {name: None if folder is None else os.path.join(folder, name) for name in ("verses", "reviews")}
    bible, clothing = verses(inside["verses"]), reviews("stars", inside["reviews"])
    texts = {
        "Bible": [modern for part in (bible.train, bible.test) for _, modern in part],
        "reviews": [
            sentence
            for review in (*clothing.train, *clothing.test)
            for sentence in re.findall(r"[^.!?]+[.!?]*", review.text.lower())
        ],
    }
    return {word: _choose(texts[source], rules) for word, (source, *rules) in RULES.items()}


def _choose(texts: list[str], rules: list[str]) -> list[Sense]:
    groups = [[Sense(text, label) for text in texts if re.search(rule, text)] for label, rule in enumerate(rules)]
    count = min(MOST, *map(len, groups))
    return [sense for group in groups for sense in random.Random(0).sample(group, count)]
