"""Questions whose answer is a span of the text: who speaks in Shakespeare, by a rule, and XQuAD (SQuAD's format)."""

import gzip
import json
import os
import zlib
from typing import NamedTuple

from txlib.data.files import Splits, find, percentile, split_by
from txlib.data.shakespeare import TEST, VALIDATION, Speech, plays, speeches

WORDS = 100  # of a context, at most, where its first speech is not longer by itself
SPEAKERS = 3  # of a context, at least
QUOTED = range(4, 13)  # words of the line that is asked for
HELD_OUT = 15  # percent of XQuAD's articles that go to test, and as many to validation


class Question(NamedTuple):
    """`answer` stands in `context` from character `start` on."""

    question: str
    context: str
    answer: str
    start: int


def spans(source: str = "shakespeare", folder: str | os.PathLike | None = None) -> Splits:
    """Questions as `Splits(train, validation, test)` of `Question(question, context, answer, start)`.

    `"shakespeare"`: the context is a stretch of a scene with three speakers or more, the question `Who says "…"?`
    quotes the last line of one of its speeches, and the answer is that speaker's name in front of the speech. Which
    speech is asked for, a hash decides. Split by play, as in `shakespeare`.

    `"xquad"` (Artetxe et al. 2020): the English part, 1,190 questions on Wikipedia written by people, split by a hash
    of the article. It is not bundled: it is read from `folder` or `$TXLIB_DATA/xquad`, `xquad.en.json.gz`,
    or fetched.

    Raises ValueError for an unknown source or a damaged file, FileNotFoundError where it is missing.
    """
    if source == "xquad":
        return _xquad(folder)
    if source != "shakespeare":
        raise ValueError(f"unknown source {source!r}; choose shakespeare or xquad")
    splits = Splits([], [], [])
    for play, text in plays(folder).items():
        part = splits.validation if play == VALIDATION else splits.test if play == TEST else splits.train
        part += filter(None, map(_who_says, _stretches(speeches(text))))
    return splits


def _stretches(all_speeches: list[Speech]) -> list[list[Speech]]:
    """Neighboring speeches that have `WORDS` words together; each speech is in one stretch."""
    stretches: list[list[Speech]] = [[]]
    length = 0
    for speech in all_speeches:
        words = len(speech.text.split()) + 1
        if stretches[-1] and length + words > WORDS:
            stretches.append([])
            length = 0
        stretches[-1].append(speech)
        length += words
    return stretches


def _who_says(speeches: list[Speech]) -> Question | None:
    if len({speech.speaker for speech in speeches}) < SPEAKERS:
        return None
    written = [f"{speech.speaker}: {' '.join(speech.text.split())}" for speech in speeches]
    context = "\n".join(written)
    last_lines = [speech.text.split("\n")[-1] for speech in speeches]
    askable = [i for i, line in enumerate(last_lines) if len(line.split()) in QUOTED and context.count(line) == 1]
    if not askable:
        return None
    chosen = askable[percentile(context) % len(askable)]
    start = sum(len(speech) + 1 for speech in written[:chosen])
    return Question(f'Who says "{last_lines[chosen]}"?', context, speeches[chosen].speaker, start)


def _xquad(folder: str | os.PathLike | None) -> Splits:
    path = find("xquad", "xquad.en.json.gz", folder)
    try:
        articles = json.loads(gzip.decompress(path.read_bytes()))["data"]
        questions = [
            (number, Question(entry["question"], paragraph["context"], answer["text"], answer["answer_start"]))
            for number, article in enumerate(articles)
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
            for answer in entry["answers"][:1]
        ]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not SQuAD's format ({error!r}); download it again") from None
    for _, (question, context, answer, start) in questions:
        if context[start : start + len(answer)] != answer:
            raise ValueError(f"{path}: the answer to {question!r} is not at character {start}; restore the file")
    splits = split_by(lambda item: f"article {item[0]}", questions, HELD_OUT)
    return Splits(*([question for _, question in split] for split in splits))
