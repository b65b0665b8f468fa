"""`txcourse publish --to ../learners`: the repository that learners clone, made from the instructor's, without answers.

Its history is separate and holds no answers either. Run again, the command adds one commit with what has changed.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from txcourse.copies import LEARNERS, Copies
from txcourse.update import Git
from txgrade.authoring.answers import read_answers
from txgrade.authoring.cells import MARK, SOLUTION, has_region, is_answer, region_text, stays_home
from txgrade.authoring.check_notebook import NotebookError, read_notebook
from txgrade.authoring.exercise import read_exercise
from txgrade.text import plural

FOLDERS = ("notebooks", "exercises", "txlib", "txgrade", "txcourse", "data", "lab", "docs")
FILES = {
    *(".gitignore", ".github/workflows/site.yml", "CITATION.cff", "HELP.md", "LICENSE", "Makefile"),
    *("constraints.txt", "environment.yml", "pyproject.toml"),
}
# Sources of lessons, secrets, and variants that were dealt to one learner each.
AT_HOME = re.compile(r"notebooks/.*\.py|.*\.secret|exercises/.*/.*\.ipynb")
MADE = ".learners"  # a file that says which repository publish made, and may change
INSTRUCTORS = re.compile(r"^(?:# |<!-- )instructors: begin\b.*\n((?:.*\n)*?)(?:# |<!-- )instructors: end\b.*\n?", re.M)
TOCTREE_ENTRY = re.compile(r"^[\w/]+$", re.M)
SHORTEST_ANSWER = 30  # characters; anything shorter may also be in a lesson by chance
LONGEST_TEXT = 5_000_000  # bytes of a file that is searched for answers


class PublishError(ValueError):
    """The reason why nothing was published, a line for each problem."""


def publish(course: Path, to: Path) -> list[str]:
    """Write the learners' files into the repository `to`, created if it is missing, and commit what has changed.

    Return the lines to print.

    Raises:
        PublishError: an answer is among the files; `to` is in the course, was not made by `publish`, or has
            uncommitted changes.
        ExerciseError: a source in `solutions/` can't be read, so its answers can't be searched for.
        UpdateError: git is missing or refuses.
    """
    course, to = course.resolve(), to.resolve()
    _need_place(course, to)
    files = learner_files(course)
    need_no_answers(course, files)
    git = Git(to)
    if not (to / ".git").exists():
        to.mkdir(parents=True, exist_ok=True)
        git("init", "--quiet", "--initial-branch", "main")
    for name in sorted(git.names("ls-files") - files.keys()):
        (to / name).unlink(missing_ok=True)
    for name, data in files.items():
        path = to / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    git("add", "--all")
    changed = sorted(git.names("diff", "--cached", "--name-only"))
    if not changed:
        return [f"{to} is up to date."]
    more = f" and {plural(len(changed) - 1, 'other file')}" if len(changed) > 1 else ""
    subject = "Publish the course" if len(changed) == len(files) else f"Update {changed[0]}{more}"
    git("commit", "--quiet", "--message", subject)
    return [f"{to}: {plural(len(changed), 'file')} changed, in one commit.", f"Let learners have it: git -C {to} push"]


def learner_files(course: Path) -> dict[str, bytes]:
    """Return the learners' files by name: what git tracks in the course or would, and what its exercises read.

    Raises:
        PublishError: an exercise holds a learner's answers.
        UpdateError: the course is not a clone.
    """
    git = Git(course)
    at_home = _instructors_pages(course)
    names = {
        name
        for name in git.names("ls-files", "--cached", "--others", "--exclude-standard")
        if (name in FILES or name.startswith(tuple(f"{folder}/" for folder in FOLDERS))) and name not in at_home
    }
    names |= {name for name in Copies(course).originals() if not name.startswith("solutions/")}
    names = {name for name in names if not AT_HOME.fullmatch(name)}
    files = {name: (course / name).read_bytes() for name in sorted(names) if (course / name).is_file()}
    for name in ("Makefile", "docs/index.md"):
        if name in files:
            files[name] = INSTRUCTORS.sub("", files[name].decode()).encode()
    files |= {path.name: path.read_bytes() for path in sorted(LEARNERS.iterdir()) if path.is_file()}
    return files | {MADE: b"Made by `txcourse publish`, which replaces every file here.\n"}


def need_no_answers(course: Path, files: dict[str, bytes]) -> None:
    """Search the files for each answer, mistake and rubric of the course's exercises.

    Raises:
        PublishError: one is there, or an exercise is filled in.
    """
    problems = []
    for name in files:
        if name.startswith("exercises/") and name.endswith(".ipynb") and (tasks := _filled_in(course / name)):
            problems.append(f"{name} is filled in ({', '.join(tasks)}): txgrade release it again")
    answers: dict[str, list[tuple[str, str]]] = {}  # by their first characters
    for where, answer in answers_of(course):
        answers.setdefault(answer[:SHORTEST_ANSWER], []).append((where, answer))
    for name, data in files.items():
        text = squeeze(_text(name, data))
        for i in range(len(text) - SHORTEST_ANSWER + 1):
            for where, answer in answers.get(text[i : i + SHORTEST_ANSWER], ()):
                if text.startswith(answer, i):
                    problems.append(f"{name} holds {where}")
    if problems:
        raise PublishError("\n".join(dict.fromkeys(problems)))


def answers_of(course: Path) -> Iterator[tuple[str, str]]:
    """Yield what learners must not have of the course's exercises: a name for it, and its squeezed text."""
    sources = sorted(course.glob("solutions/*.py"))
    sources += [path for path in sorted(course.glob("solutions/*.ipynb")) if not path.with_suffix(".py").exists()]
    for source in sources:
        name = f"solutions/{source.name}"
        for cell in _cells_of(source):
            if is_answer(cell):
                where = f"the answer of task {cell.metadata.nbgrader.grade_id} in {name}"
                marked = has_region(cell.source, SOLUTION)
                pieces = [region_text(cell.source, SOLUTION), cell.source] if marked else [cell.source]
            elif stays_home(cell):
                where = f"a mistake or a rubric of {name}"
                pieces = _statements(cell.source) if cell.cell_type == "code" else [cell.source]
            else:
                continue
            for piece in dict.fromkeys(map(squeeze, pieces)):
                if len(piece) >= SHORTEST_ANSWER:
                    yield where, piece


def _cells_of(source: Path) -> list:
    """Return the cells of a source, with its own numbers and as they are written, all tasks of its pools included."""
    import jupytext

    if source.suffix != ".py":
        return read_notebook(source).cells
    settled = read_exercise(source).notebook.cells
    known = {cell.source for cell in settled}
    return settled + [cell for cell in jupytext.read(source, fmt="py:percent").cells if cell.source not in known]


def squeeze(text: str) -> str:
    """Return a text without comments, blanks, and differences between quotes, to find copies of an answer."""
    lines = (line.partition("#")[0] for line in text.splitlines() if not MARK.fullmatch(line))
    return re.sub(r"\s+", "", "".join(lines)).replace("'", '"')


def _statements(source: str) -> list[str]:
    """Return the statements of a cell of mistakes, but for its imports, which other cells have, too."""
    nodes = [node for node in ast.parse(source).body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return [ast.get_source_segment(source, node) or "" for node in nodes]


def _text(name: str, data: bytes) -> str:
    """Return the text of a file; of a notebook, the text of its cells and of their outputs."""
    if len(data) > LONGEST_TEXT:
        return ""
    try:
        text = data.decode()
        if not name.endswith(".ipynb"):
            return text
        cells = json.loads(text)["cells"]
        return "\n".join(_joined(part) for cell in cells for part in (cell["source"], *_outputs(cell)))
    except (ValueError, LookupError, TypeError):
        return ""


def _outputs(cell: dict) -> Iterable[str | list[str]]:
    for output in cell.get("outputs", ()):
        yield output.get("text", "")
        yield output.get("data", {}).get("text/plain", "")


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _filled_in(path: Path) -> list[str]:
    try:
        return list(read_answers(read_notebook(path)))
    except NotebookError:
        return []


def _instructors_pages(course: Path) -> set[str]:
    """Return the pages of docs/ that its index names for instructors only."""
    index = course / "docs" / "index.md"
    if not index.is_file():
        return set()
    blocks = INSTRUCTORS.findall(index.read_text(encoding="utf-8"))
    return {f"docs/{name}.md" for block in blocks for name in TOCTREE_ENTRY.findall(block)}


def _need_place(course: Path, to: Path) -> None:
    """Refuse a folder that is neither empty, nor a repository that was made here.

    Raises:
        PublishError: it may not be changed.
    """
    if to.is_relative_to(course) or course.is_relative_to(to):
        raise PublishError(f"{to} lies in the course, or around it: choose a folder beside it, e.g. --to ../learners")
    if not to.exists() or (to.is_dir() and not any(to.iterdir())):
        return
    git = Git(to)
    if not (to / ".git").exists():
        raise PublishError(f"{to} is no git repository: choose an empty folder, or one that txcourse publish made")
    if changed := git("status", "--porcelain").splitlines():
        raise PublishError(f"{to} has changes that are not committed ({changed[0][3:]}, …): commit or discard them")
    if git.names("ls-files") and not (to / MADE).is_file():
        raise PublishError(f"{to} was not made by txcourse publish: its files would be replaced; choose another folder")
