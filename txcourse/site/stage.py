"""What Sphinx reads: the notebooks as they are shipped, the pages of `docs/`, and pages that are made from the two."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txcourse.lessons import Lesson, read_lessons, tracks
from txcourse.site import papers, reference
from txcourse.site.landing import diagram, stills
from txcourse.site.opening import FOLDER, for_colab, put_opening, put_questions
from txcourse.site.places import put_labels
from txcourse.site.sources import put_sources
from txgrade.checking.verdict import MIME as VERDICT

PARTS = {  # of the course, and the page of each
    "I Attention": "1_attention",
    "II Language models": "2_language",
    "III Beyond text": "3_beyond",
    "IV Efficiency": "4_efficiency",
    "V From a model to an assistant": "5_assistant",
}
PAGES = ("HELP", "CHANGELOG", "CONTRIBUTING", "SECURITY")  # in addition to docs/


class NotReady(ValueError):
    """The course cannot be published as it is. `problems` names each place."""

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


def stage(course: Path, out: Path, repository: str = "") -> None:
    """Write into the folder `out` what the site of a course is made from; what has not changed stays as it is.

    Args:
        repository: where the course is hosted, "https://github.com/somebody/txlib"; without, no page leads there.

    Raises:
        NotReady: a notebook has not been run, or shows a picture without an alternative text.
    """
    import nbformat

    files: dict[str, Any] = {}
    problems: list[str] = []
    lesson_names = {path.stem.split("_")[0]: path.stem for path in course.glob("notebooks/*.ipynb")}
    for path in sorted([*course.glob("notebooks/*.ipynb"), *course.glob("exercises/*.ipynb")]):
        name = path.relative_to(course).as_posix()
        notebook = nbformat.read(path, as_version=4)
        if path.parent.name == "notebooks":
            problems += [f"{name}: {problem}" for problem in unfinished(notebook)]
        else:
            promote_headings(notebook)
        prepare(notebook)
        put_sources(path.stem, notebook, lesson_names)
        if repository:
            put_questions(name, notebook, repository)
        put_labels(path.stem, notebook)
        put_opening(name, notebook, repository)
        files[name] = nbformat.writes(notebook)
    if problems:
        raise NotReady(problems)
    for path in sorted([*course.glob("docs/**/*.md"), *_top_pages(course)]):
        name = path.relative_to(course / "docs" if "docs" in path.relative_to(course).parts else course).as_posix()
        files[name] = path.read_text(encoding="utf-8").replace("](docs/", "](")
    lessons = read_lessons(course)
    for number, (part, page) in enumerate(PARTS.items(), start=1):
        title, _, rest = files[f"parts/{page}.md"].partition("\n")
        table = contents([lesson for lesson in lessons if lesson.part == part])
        files[f"parts/{page}.md"] = f"{title}\n\n{diagram(number)}{rest}{table}"
    paragraph, pictures = stills(course)
    shown = {"stills": paragraph, "diagram": diagram(len(PARTS)), "tracks": tracks(lessons)}
    files["index.md"] = re.sub(r"<!-- (stills|diagram|tracks) -->", lambda mark: shown[mark[1]], files["index.md"])
    files |= pictures
    files |= reference.pages()
    files["lookup/papers.md"] += papers.page(course)
    files["lookup/notation.md"] += files["HELP.md"].partition("\n## Notation\n")[2]
    _write(out, files)


def _top_pages(course: Path) -> list[Path]:
    """Return the pages at the top of the course: all of them, or those that the learners' repository has."""
    return [path for name in PAGES if (path := course / f"{name}.md").is_file()]


def write_for_colab(course: Path, html: Path, repository: str) -> None:
    """Put the notebooks that Colab opens into the finished site: they install the course first."""
    import nbformat

    for path in sorted([*course.glob("notebooks/*.ipynb"), *course.glob("exercises/*.ipynb")]):
        copied = html / FOLDER / path.relative_to(course)
        copied.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(for_colab(nbformat.read(path, as_version=4), f"git+{repository}"), copied)


def unfinished(notebook: Any) -> Iterator[str]:
    """What keeps a lesson from being published."""
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        where = f"cell {number}, {cell.source.strip().splitlines()[0][:60]!r}" if cell.source.strip() else ""
        if where and cell.execution_count is None:
            yield f"{where} has not been run: make notebooks"
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"{where} ends with {output.ename}"
            if "image/png" in output.get("data", {}) and not described(output):
                yield f"{where} shows a picture without an alternative text"


def described(output: Any) -> bool:
    """Whether the HTML of a picture, which pages show, carries a text for who cannot see it."""
    html = output.data.get("text/html", "")
    return bool(re.search(r'<img [^>]*alt="\s*[^"\s]', html))


def prepare(notebook: Any) -> None:
    """What Lab folds away, the page leaves out; of a picture and of a verdict it needs the HTML alone."""
    for cell in notebook.cells:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "remove-input"]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                for kind in ("image/png", VERDICT):
                    data.pop(kind, None)
            for kind, end in (("text/markdown", ")"), ("text/html", '"')):
                if kind in data:  # Sphinx follows the links of cells, not those of outputs
                    data[kind] = data[kind].replace(f".ipynb{end}", f".html{end}")


def promote_headings(notebook: Any) -> None:
    """An exercise's tasks are headings of level 3, in Lab for their size: on a page they follow a title of level 1."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"^##(?=#+ )", "#", cell.source, flags=re.MULTILINE)


def contents(lessons: list[Lesson]) -> str:
    """A part's table, and its place in the book: each lesson is followed by its exercise."""
    rows = [
        f"| [{lesson.title}](../notebooks/{lesson.name}.ipynb) "
        f"| [exercise](../exercises/exercise_{lesson.name}.ipynb) | {lesson.reading} + {lesson.practice} |"
        for lesson in lessons
    ]
    pages = [f"/notebooks/{lesson.name}\n/exercises/exercise_{lesson.name}" for lesson in lessons]
    return "\n".join(
        [
            "",
            "| Lesson | | Minutes |",
            "| --- | --- | --- |",
            *rows,
            "",
            "```{toctree}",
            ":hidden:",
            "",
            *pages,
            "```",
            "",
        ]
    )


def _write(out: Path, files: dict[str, str | bytes]) -> None:
    """Sphinx goes by times: a file that is as it should be is left alone, and one that is no longer wanted goes."""
    for path in [path for path in out.rglob("*") if path.is_file()]:
        if path.relative_to(out).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = content if isinstance(content, bytes) else content.encode()
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
