"""The lessons of the course: what each says of itself, and the tables that are made from it.

The first cell of a lesson holds its front matter: `# %% [markdown] lesson={"part": "I Attention", "builds": "masks"}`.
`make notebooks` writes the tables of lesson 00 and of the README.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from txcourse.guess import guesses

START = "00_start_here"
WORDS_PER_MINUTE, SECONDS_PER_LINE = 180, 8  # of prose that is read, of code that is read and run
HEADING = re.compile(r"# +(?:(\d\d) · )?(.+)")
LINK = re.compile(r"\]\(([^)#:]+\.ipynb)")
CLAIM = re.compile(r"\babout (\d+) minutes")
TASK = re.compile(r"^### Task .*· (\d+) minutes", re.MULTILINE)
TABLE = re.compile(r"(<!-- (lessons|tracks) -->\n).*?((?:# )?<!-- end of \2 -->)", re.DOTALL)
TRACKS = {  # numbers of lessons, for those who don't want all of them
    "Attention": "03 04 05 06 08",
    "Language models": "01 03 04 05 06 10 11 12 13 16 17 40",
    "Efficiency": "03 04 10 30 31 32 33 34",
}


@dataclass(frozen=True)
class Lesson:
    """A lesson and its exercise, in minutes of reading and of practice."""

    name: str  # "03_attention": of its notebook, and of its exercise
    title: str  # "03 Attention as a soft lookup"
    part: str  # "I Attention"; empty for lesson 00
    builds: str
    reading: int
    practice: int
    guesses: tuple[str, ...] = ()  # the names of those that it asks for

    @property
    def number(self) -> str:
        return self.name[:2]


def read_lessons(course: Path) -> list[Lesson]:
    """Return the lessons of a course in their order, without lesson 00; notebooks without front matter are left out."""
    lessons = [_read(course, path) for path in sorted(course.glob("notebooks/[0-9]*.ipynb"))]
    return [lesson for lesson in lessons if lesson and lesson.part]


def _read(course: Path, path: Path) -> Lesson | None:
    """Return what a lesson's notebook and its exercise say; None if the notebook can't be read or says nothing."""
    try:
        cells = _cells(path)
        facts = cells[0][2]["lesson"]
        title, practice = _title(cells) or path.stem, 0
        exercise = course / "exercises" / f"exercise_{path.name}"
        if exercise.is_file():
            practice = practice_minutes("\n".join(text for kind, text, _ in _cells(exercise) if kind == "markdown"))
        asked = guesses(source for kind, source, _ in cells if kind == "code")
        return Lesson(path.stem, title, facts["part"], facts["builds"], reading_minutes(cells), practice, tuple(asked))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def title_of(notebook: Path) -> str:
    """Return the title of a notebook, with its number; nothing if it has none."""
    try:
        return _title(_cells(notebook))
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _cells(notebook: Path) -> list[tuple[str, str, dict]]:
    """Return each cell's type, source and metadata."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"]), cell["metadata"]) for cell in cells]


def _title(cells: list[tuple[str, str, dict]]) -> str:
    heading = HEADING.match(cells[0][1])
    return " ".join(filter(None, heading.groups())).strip() if heading else ""


def reading_minutes(cells: Any) -> int:
    """Return the minutes that it takes to read a lesson, to the nearest five: prose by its words, code by its lines.

    Args:
        cells: the type, source and metadata of each. Code that is folded away costs nothing.
    """
    words = lines = 0
    for kind, source, metadata in cells:
        if kind == "markdown":
            words += len(re.findall(r"\w[\w'’-]*", re.sub(r"\$[^$]*\$", " x ", source)))
        elif not metadata.get("jupyter", {}).get("source_hidden"):
            lines += sum(bool(line.strip()) for line in source.splitlines())
    return to_five(words / WORDS_PER_MINUTE + lines * SECONDS_PER_LINE / 60)


def practice_minutes(text: str) -> int:
    """Return the minutes that an exercise's tasks take together, to the nearest five."""
    return to_five(sum(map(int, TASK.findall(text))))


def to_five(minutes: int | float) -> int:
    return max(5, 5 * round(minutes / 5))


def problems(course: Path, name: str, lesson: Any) -> Iterator[str]:
    """Yield what a lesson says wrongly of itself or of the course, each with its place."""
    facts = lesson.cells[0].metadata.get("lesson", {}) if lesson.cells else {}
    if not {"part", "builds"} <= facts.keys():
        line = '# %% [markdown] lesson={"part": …, "builds": …}'
        yield f"notebooks/{name}.py has no front matter: begin it with `{line}`"
    elif facts["part"]:
        minutes = reading_minutes((cell.cell_type, cell.source, cell.metadata) for cell in lesson.cells)
        claims = CLAIM.findall(re.sub(r"\s+", " ", lesson.cells[0].source))
        if claims != [str(minutes)]:
            yield f"notebooks/{name}.py, first cell: claims {claims or 'no'} minutes; write “about {minutes} minutes”"
    yield from _guessing(course, name, lesson)
    for number, cell in enumerate(lesson.cells, start=1):
        for link in LINK.findall(cell.source) if cell.cell_type == "markdown" else []:
            source = (course / "notebooks" / link).resolve()
            if source.parent.name == "exercises":
                source = course / "solutions" / source.name.removeprefix("exercise_")
            if not source.with_suffix(".py").is_file():
                yield f"notebooks/{name}.py, cell {number}: links to {link}, which isn't there"


def _guessing(course: Path, name: str, lesson: Any) -> Iterator[str]:
    """Yield what is wrong with a lesson's guesses: each has one question and one result, and a name of its own."""
    code = [cell.source for cell in lesson.cells if cell.cell_type == "code"]
    asked, resolved = Counter(guesses(code)), Counter(guesses(code, "predicted"))
    for guess in sorted(asked | resolved):
        if (asked[guess], resolved[guess]) != (1, 1):
            calls = f'{asked[guess]} predict("{guess}", …) and {resolved[guess]} predicted("{guess}", …)'
            yield f"notebooks/{name}.py: has {calls}; write one of each"
    for path in sorted(course.glob("notebooks/[0-9]*.py")):
        for guess in sorted(asked.keys() & guesses([path.read_text("utf-8")])) if path.stem != name else []:
            yield f"notebooks/{name}.py: the guess {guess!r} is also asked in {path.name}; give it another name"


def overview(lessons: list[Lesson]) -> str:
    """Return the README's table of the course: a row per lesson."""
    rows = ["| Lesson | What you build | | Minutes |", "| --- | --- | --- | ---: |"]
    for part, members in groupby(lessons, key=lambda lesson: lesson.part):
        rows.append(f"| **{part}** | | | |")
        rows += [
            f"| [{lesson.title}](notebooks/{lesson.name}.ipynb) | {lesson.builds} "
            f"| [exercise](exercises/exercise_{lesson.name}.ipynb) | {lesson.reading} + {lesson.practice} |"
            for lesson in members
        ]
    return "\n".join(rows)


def tracks(lessons: list[Lesson], folder: str = "notebooks/") -> str:
    """Return the table of shorter ways through the course, with their hours; `folder` is where its links lead."""
    by_number = {lesson.number: lesson for lesson in lessons}
    chosen = {name: [by_number[number] for number in numbers.split()] for name, numbers in TRACKS.items()}
    rows = ["| Track | Lessons | Hours to read | with exercises |", "| --- | --- | ---: | ---: |"]
    for name, members in [*chosen.items(), ("Everything", lessons)]:
        links = ", ".join(f"[{lesson.number}]({folder}{lesson.name}.ipynb)" for lesson in members)
        links = "all" if members is lessons else links
        reading = sum(lesson.reading for lesson in members) / 60
        practice = sum(lesson.practice for lesson in members) / 60
        rows.append(f"| {name} | {links} | {reading:.0f} | {reading + practice:.0f} |")
    return "\n".join(rows)


def with_tables(course: Path) -> dict[Path, str]:
    """Return the files that hold tables of the lessons, with the tables as they should be."""
    lessons = read_lessons(course)
    in_cell = re.sub("^", "# ", tracks(lessons, ""), flags=re.MULTILINE)
    tables = {
        course / "README.md": {"lessons": overview(lessons), "tracks": tracks(lessons)},
        course / "notebooks" / f"{START}.py": {"tracks": in_cell},
    }
    files = {}
    for path, own in tables.items():
        parts = TABLE.split(path.read_text(encoding="utf-8"))  # text, mark, a table's name, mark, text …
        files[path] = "".join(f"{own[part]}\n" if index % 4 == 2 else part for index, part in enumerate(parts))
    return files


def write_tables(course: Path) -> list[Path]:
    """Write those tables of the lessons that are not up to date, and return their files."""
    files = {path: text for path, text in with_tables(course).items() if text != path.read_text(encoding="utf-8")}
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return [*files]
