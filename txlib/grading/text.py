"""Text out of a submission, made safe to look at."""

import re

# Controls but tab and newline, halves of characters, and the marks that turn the reading direction of what follows.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # what a terminal would show as colour


def printable(text: str) -> str:
    """The text without anything that steers a terminal or a page, each of which becomes �; colours just go."""
    return STEERING.sub("�", COLOUR.sub("", text.replace("\r\n", "\n")))
