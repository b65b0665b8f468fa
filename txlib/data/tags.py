"""Words with tags: names in the plays of Shakespeare, by a rule, and WikiGold (tagging: Devlin et al. 2018, §5.3)."""

import os
import re
from typing import NamedTuple

from txlib.data.files import Splits, find, read_lines, split_by
from txlib.data.shakespeare import TEST, VALIDATION, plays, speeches

WORD = re.compile(r"'?\w+|[^\w\s]")
SENTENCE = re.compile(r"[^.!?]+[.!?]*")
LENGTH = range(4, 41)  # words of a sentence
HELD_OUT = 10  # percent of WikiGold's sentences that go to test, and as many to validation
OUTSIDE = "O"


class Tagged(NamedTuple):
    """A sentence's words and, for each, "O" or "I-" and what it names."""

    words: list[str]
    tags: list[str]


def tags(source: str = "shakespeare", folder: str | os.PathLike | None = None) -> Splits:
    """Sentences as `Splits(train, validation, test)` of `Tagged(words, tags)`.

    `"shakespeare"`: every sentence of the plays; a word is tagged "I-PER" where it is the name of one of the play's own
    persons. Names are the words of the speakers' names that occur nowhere in the plays in small letters: Hamlet is one,
    King and Ghost are not. Nobody has read these tags: "French" is one for the sake of a French soldier. Split by play,
    as in `shakespeare`: nearly all names in validation and test are new.

    `"wikigold"` (Balasuriya et al. 2009): 1,696 sentences of Wikipedia, tagged by hand with I-PER, I-LOC, I-ORG and
    I-MISC, split by a hash of the words, 80 : 10 : 10. It is not bundled: it is read from `folder` or
    `$TXLIB_DATA/wikigold`, `wikigold.conll.txt.gz`, or fetched.

    Raises ValueError for an unknown source or a damaged file, FileNotFoundError where it is missing.
    """
    if source == "wikigold":
        return _wikigold(folder)
    if source != "shakespeare":
        raise ValueError(f"unknown source {source!r}; choose shakespeare or wikigold")
    texts = plays(folder)
    cast = {
        play: {word for speech in speeches(text) for word in WORD.findall(speech.speaker.title())}
        for play, text in texts.items()
    }
    common = {word for text in texts.values() for word in WORD.findall(text) if word.islower()}
    splits = Splits([], [], [])
    for play, text in texts.items():
        names = {name for name in cast[play] if len(name) > 2 and name.lower() not in common}
        part = splits.validation if play == VALIDATION else splits.test if play == TEST else splits.train
        for speech in speeches(text):
            for sentence in SENTENCE.findall(speech.text):
                words = WORD.findall(sentence)
                if len(words) in LENGTH:
                    part.append(Tagged(words, ["I-PER" if word in names else OUTSIDE for word in words]))
    return splits


def _wikigold(folder: str | os.PathLike | None) -> Splits:
    """A word and its tag a line, an empty line between sentences."""
    path = find("wikigold", "wikigold.conll.txt.gz", folder)
    sentences, rows = [], []
    for number, line in enumerate([*read_lines(path), ""], 1):
        if line.startswith("-DOCSTART-"):
            continue
        if line:
            rows.append(line.split())
            if len(rows[-1]) != 2:
                raise ValueError(f"{path}, line {number}: expected a word and its tag, found {line!r}")
        elif rows:
            words, its_tags = map(list, zip(*rows, strict=True))
            sentences.append(Tagged(words, its_tags))
            rows = []
    return split_by(lambda tagged: " ".join(tagged.words), sentences, HELD_OUT)
