"""Formatting of text: numbers, plurals, a little markdown, and a submission's text made safe to display."""

import hashlib
import html
import re

# Controls but tab and newline, halves of characters, and the marks that turn the reading direction of what follows.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # what a terminal would show as colour


def printable(text: str) -> str:
    """Return the text without anything that steers a terminal or a page, each of which becomes �; colours just go."""
    return STEERING.sub("�", COLOUR.sub("", text.replace("\r\n", "\n")))


def number(value: int | float) -> str:
    """Return points as a person writes them: 1.5, 0.67, 2."""
    return f"{round(value, 2):g}"


def plural(count: int | float, word: str) -> str:
    return f"{count:g} {word}" if count == 1 else f"{count:g} {word}s"


def minute(time: str | None) -> str:
    """Return a time in ISO 8601 to the minute: `2026-12-02 02:59 UTC`."""
    match = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*(?:\+00:00|Z)?$", time or "")
    return f"{match[1]} {match[2]} UTC" if match else time or ""


def titled(title: str, words: str) -> str:
    """Join a title, which may end in punctuation, and words about it: `The mask: right`, `Which row? Right`."""
    if title.endswith(("?", "!", ".", "…", ":")):
        return f"{title} {words[:1].upper()}{words[1:]}"
    return f"{title}: {words}"


def markup(line: str) -> str:
    """Return the little markdown of a mistake's sentence as HTML: `code`, *emphasis*, **strong**."""
    parts = re.split(r"`([^`]+)`", line)  # text and code by turns
    for i, part in enumerate(parts):
        text = html.escape(part, quote=False)
        if i % 2:
            parts[i] = f"<code>{text}</code>"
            continue
        text = re.sub(r"\*\*([^*\s][^*]*)\*\*", r"<strong>\1</strong>", text)
        parts[i] = re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", text)
    return "".join(parts)


def stub_digest(source: str) -> str:
    """Return what a released answer cell keeps of its source, to tell whether it is still as it was."""
    return hashlib.sha256(source.strip().encode("utf-8", "replace")).hexdigest()[:16]
