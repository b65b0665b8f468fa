"""The library's docstrings, plain Markdown with sections as Google has them, in the form that Sphinx reads."""

import re

SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:", "Attributes:", "Example:", "Examples:", "Note:")


def as_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring, with code marked as code, and what reStructuredText would misread escaped."""
    out: list[str] = []
    section, block = False, False  # inside a section, where indents mean something else; inside code
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip():
            if indent == 0:
                section = line.strip() in SECTIONS
            starts = not section and indent >= 4 and (not out or not out[-1].strip())
            if starts and not block:
                out += ["::", ""]
            block = not section and indent >= 4 and (block or starts)
        out.append(line if block else prose(line))
    return out


def prose(line: str) -> str:
    """A line of text: `code` in single backticks, and signs that are only signs."""
    parts = re.split(r"(`+[^`]+`+)", line)  # text and code in turns
    for number, part in enumerate(parts):
        if number % 2:
            ends = re.match(r"\w", parts[number + 1]) is None  # unlike in `Mask`s
            parts[number] = f"``{part.strip('`')}``" + ("" if ends else "\\ ")
        else:
            parts[number] = _escape(part)
    return "".join(parts)


def _escape(text: str) -> str:
    text = re.sub(r"(?<!\*)\*(?!\*)", r"\\*", text)  # **bold** stays
    return re.sub(r"\||_(?=\W|$)|`", r"\\\g<0>", text)
