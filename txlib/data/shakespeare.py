"""Plays of Shakespeare to learn writing from: fourteen embedded ones, and the file of published results."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from txlib.data.files import find

VALIDATION, TEST = "twelfth-night", "julius-caesar"
PLAYS = (
    "a-midsummer-night-s-dream",
    "as-you-like-it",
    "hamlet",
    "henry-v",
    "julius-caesar",
    "king-lear",
    "macbeth",
    "much-ado-about-nothing",
    "othello",
    "richard-iii",
    "romeo-and-juliet",
    "the-merchant-of-venice",
    "the-tempest",
    "twelfth-night",
)
SPEECH = re.compile(r"([^\n]+):\n(.+)", re.DOTALL)


class Texts(NamedTuple):
    """Three texts that share no line."""

    train: str
    validation: str
    test: str


class Speech(NamedTuple):
    """What one person says, lines joined by line breaks; `speaker` in capitals, as it stands in the text."""

    speaker: str
    text: str


def shakespeare(source: str = "shakespeare", folder: str | os.PathLike | None = None) -> Texts:
    """Text to learn a language model from, as `Texts(train, validation, test)`.

    `"shakespeare"`: 14 plays, 1.76 million characters, split by whole plays: Twelfth Night is for validation, Julius
    Caesar for the test, twelve are for training. A model has to write on in a play, and with persons, that it has not
    seen: harder than the split by position.

    `"tinyshakespeare"`: the 1,115,394 characters (Karpathy 2015) that published losses were measured on, split by
    position as there: the first 90% are for training, the rest for validation; test is empty. It is not bundled:
    it is read from `folder` or `$TXLIB_DATA/tinyshakespeare`, `input.txt`, or fetched.

    Raises ValueError for an unknown source or a damaged file, FileNotFoundError where a file is missing.
    """
    if source == "tinyshakespeare":
        return text_file(find(source, "input.txt", folder))
    if source != "shakespeare":
        raise ValueError(f"unknown source {source!r}; choose shakespeare or tinyshakespeare")
    texts = plays(folder)
    held_out = texts.pop(VALIDATION), texts.pop(TEST)
    return Texts("\n".join(texts.values()), *held_out)


def text_file(path: str | os.PathLike) -> Texts:
    """Any text, split by position: the first 90% are for training, the rest for validation; test is empty.

    Raises ValueError for a file that is empty or no UTF-8 text.
    """
    text = _read(Path(path))
    cut = int(len(text) * 0.9)
    return Texts(text[:cut], text[cut:], "")


def plays(folder: str | os.PathLike | None = None) -> dict[str, str]:
    """The embedded plays by name, in the order of the alphabet."""
    return {name: _read(find("shakespeare", f"{name}.txt", folder)) for name in PLAYS}


def speeches(text: str) -> list[Speech]:
    """Cut a text into its speeches."""
    return [Speech(*match.groups()) for part in text.strip().split("\n\n") if (match := SPEECH.fullmatch(part))]


def _read(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error}); restore it, or save it as UTF-8") from None
    if not text.strip():
        raise ValueError(f"{path} is empty; restore it, or put text into it")
    return text
