"""The sections of a lesson or an exercise: a name for each, under which other pages link to it, and its text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HEADING = re.compile(r"^(#{2,6}) +(.+?) *$")


@dataclass
class Section:
    """`label` is "lesson-03-4" for section 4 of lesson 03, "lesson-03-6-a" for the first without a number in its 6."""

    label: str
    title: str
    text: str = ""


def sections(name: str, notebook: Any) -> list[Section]:
    """The sections of a notebook, "03_attention" or "exercise_03_attention"; the first is what precedes them."""
    result = [Section(base(name), "")]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for line, heading in headed(cell.source):
                if heading:
                    result.append(Section(_label(result, *heading), heading[1]))
                else:
                    result[-1].text += line + "\n"
    return result


def put_labels(name: str, notebook: Any) -> None:
    """Write its label above each heading, as MyST has it."""
    labels = iter(sections(name, notebook)[1:])
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            lines = []
            for line, heading in headed(cell.source):
                lines += [f"({next(labels).label})=", line] if heading else [line]
            cell.source = "\n".join(lines)


def base(name: str) -> str:
    kind, number = ("exercise", name.split("_")[1]) if name.startswith("exercise") else ("lesson", name.split("_")[0])
    return f"{kind}-{number}"


def headed(source: str) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """Each line, with the level and the title of the heading that it is."""
    code = False
    for line in source.split("\n"):
        code ^= line.startswith("```")
        heading = None if code else HEADING.match(line)
        yield line, (len(heading[1]), heading[2]) if heading else None


def _label(before: list[Section], level: int, title: str) -> str:
    start = before[0].label
    if number := re.match(r"(?:Task )?(\d+(?:\.\d+)*)\b", title):
        return f"{start}-{number[1].replace('.', '-')}"
    parents = [section.label for section in before if re.fullmatch(rf"{start}-\d+", section.label)] or [start]
    above = parents[-1] if level > 2 else start
    taken = sum(bool(re.fullmatch(rf"{above}-[a-z]", section.label)) for section in before)
    return f"{above}-{chr(ord('a') + taken)}"
