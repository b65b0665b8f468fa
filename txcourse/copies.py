"""A learner's own copies of the course's notebooks, in `my_work/`: what JupyterLab opens.

    my_work/notebooks/03_attention.ipynb     a copy, replaced when the course brings a newer one
    my_work/earlier/2026-11-22-101500/…      what the learner had changed in it by then

The course's own files stay as they came. So git, or a newer archive unpacked over them, can replace them at any time.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from txcourse.paths import COURSE
from txgrade.authoring.answers import put_answers, read_answers, read_tasks
from txgrade.authoring.check_notebook import NotebookError, read_notebook
from txgrade.authoring.data import named_data
from txgrade.checking.progress import follow_tasks, home_of
from txgrade.files import Folder, locked, write_atomically, write_together
from txgrade.notebook_runner import write_notebook
from txgrade.paths import course_table

FOLDER, EARLIER = "my_work", "earlier"
PARTS = ("notebooks", "exercises", "solutions")
PAGE = "HELP.md"
ASSISTANTS = "AGENTS.md"  # how an assistant is to help; the learners' repository has its own
LEARNERS = Path(__file__).parent / "learners"  # what the learners' repository has at its top
TAKEN = ".taken.json"  # by name, the hash of the original that a copy was taken of
RELOAD = "Where one of them is open in JupyterLab: File, Reload Notebook from Disk."


class Copies:
    """The copies of one course. Methods return the lines to print for the learner."""

    def __init__(self, course: Path):
        self.course, self.folder = course, course / FOLDER
        self._aside = self.folder / EARLIER / f"{datetime.now():%Y-%m-%d-%H%M%S}"

    def refresh(self) -> list[str]:
        """Copy what is new in the course.

        What the learner has changed is set aside before a newer version takes its place. An exercise's answers are
        put into the newer one, or into the exercise that has their tasks now.
        """
        messages, originals = [], self.originals()
        with self._taken() as taken:
            new = taken and any(map(_is_exercise, originals.keys() - taken.keys()))  # nothing moves at the first start
            moving = self._moving(originals) if new else {}
            moved = {(name, id) for answers in moving.values() for name, id in answers}
            for name, original in originals.items():
                digest, copy = _digest(original), self.folder / name
                if not copy.exists():
                    _copy(original, copy)
                elif digest not in (taken.get(name), _digest(copy)):
                    if _digest(copy) == taken.get(name) and not _answers(copy):
                        _copy(original, copy)
                    else:
                        messages += self._replace(name, keep_answers=True, moved=moved)
                taken[name] = digest
            messages += [message for name, answers in moving.items() for message in self._put(name, answers)]
            for name in sorted(taken.keys() - originals.keys()):
                copy, digest = self.folder / name, taken.pop(name)
                if not copy.exists():
                    continue
                answers = {(name, id) for id in _answers(copy)}
                gone = f"{name} is no longer part of the course"
                if _digest(copy) == digest:
                    copy.unlink()
                elif answers and answers <= moved:
                    messages.append(f"{gone}; yours is kept as {self._keep(copy, name)}")
                    copy.unlink()
                else:
                    messages.append(f"{gone}; yours stays where it is")
        return [*messages, RELOAD] if messages else []

    def renew(self, notebook: Path | str, keep_answers: bool = False) -> list[str]:
        """Replace one copy by a fresh one, and set the old one aside.

        Raises:
            FileNotFoundError: the course has no such notebook.
        """
        name = self._name(notebook)
        if name is None:
            raise FileNotFoundError(
                f"the course has no notebook {notebook}: give e.g. exercises/exercise_03_attention.ipynb"
            )
        self.refresh()
        with self._taken():
            if _digest(self.folder / name) == _digest(self.originals()[name]):
                return [f"{FOLDER}/{name} is as fresh as the course has it"]
            return [*self._replace(name, keep_answers), RELOAD]

    def yours(self, notebook: Path) -> Path:
        """Return the learner's copy for the path of a course's notebook that holds no answers; else the path itself."""
        name = self._name(notebook)
        copy = self.folder / (name or "")
        if name is None or not copy.is_file() or not notebook.is_file() or copy.samefile(notebook):
            return notebook
        return notebook if _answers(notebook) else copy

    def adopt(self, name: str) -> str:
        """Keep a copy of the course's file with the changes made in it, before it is replaced.

        An exercise's answers become the learner's copy, where that has none.
        """
        original, copy = self.course / name, self.folder / name
        backup = self._keep(original, name)
        if _answers(original) and not (copy.exists() and _answers(copy)):
            if copy.exists():
                self._keep(copy, name)
            _copy(original, copy)
        return f"{name} was changed outside {FOLDER}; it is kept as {backup}"

    def originals(self) -> dict[str, Path]:
        """The files that are copied, by name: no source of a lesson or a solution, but what an exercise reads."""
        paths = [self.course / PAGE, *(path for part in PARTS for path in (self.course / part).rglob("*"))]
        paths += [path for notebook in self.course.glob("exercises/*.ipynb") for path in _data(notebook)]
        originals = {
            ASSISTANTS: next(path for path in (self.course / ASSISTANTS, LEARNERS / ASSISTANTS) if path.is_file())
        }
        for path in sorted(path for path in paths if path.is_relative_to(self.course)):
            name = path.relative_to(self.course)
            hidden = any(part.startswith((".", "__")) for part in name.parts)
            source = path.suffix == ".py" and (path.with_suffix(".ipynb").exists() or name.parts[0] == "solutions")
            if path.is_file() and not hidden and not source:
                originals[name.as_posix()] = path
        return originals

    def _name(self, notebook: Path | str) -> str | None:
        """The name of a file whose original is given, or its copy, or this name itself."""
        originals = self.originals()
        for path in (Path(notebook).resolve(), (self.course / notebook).resolve()):
            for folder in (self.folder.resolve(), self.course.resolve()):
                if path.is_relative_to(folder) and (name := path.relative_to(folder).as_posix()) in originals:
                    return name
        return None

    def _moving(self, originals: dict[str, Path]) -> dict[str, dict[tuple[str, str], str]]:
        """Return the answers whose tasks are in another exercise now, by its name; each with its old name and id.

        The learner's progress follows them.
        """
        tasks = {name: _tasks(path) for name, path in originals.items() if _is_exercise(name)}
        follow_tasks(self.course, {Path(name).stem.removeprefix("exercise_"): ids for name, ids in tasks.items()})
        moving: dict[str, dict[tuple[str, str], str]] = {}
        for copy in sorted((self.folder / "exercises").glob("*.ipynb")):
            name, siblings = copy.relative_to(self.folder).as_posix(), _tasks(copy)
            for id, answer in _answers(copy).items():
                home = home_of(id, name, siblings, tasks)
                if home and home != name:
                    moving.setdefault(home, {})[name, id] = answer
        return moving

    def _put(self, name: str, answers: dict[tuple[str, str], str]) -> list[str]:
        """Put answers to tasks that have moved here into a copy, where it has none of its own."""
        copy = self.folder / name
        notebook = read_notebook(copy)
        mine = read_answers(notebook)
        coming = {id: answer for (_, id), answer in answers.items() if id not in mine}
        put_answers(notebook, coming)
        write_notebook(copy, notebook)
        before = ", ".join(sorted({old for old, _ in answers}))
        return [f"{FOLDER}/{name} has your answers to tasks that were in {before}: {', '.join(coming)}"]

    def _replace(self, name: str, keep_answers: bool, moved: Collection[tuple[str, str]] = ()) -> list[str]:
        copy, original = self.folder / name, self.originals()[name]
        answers = _answers(copy) if keep_answers else {}
        backup = self._keep(copy, name)
        if not answers:
            _copy(original, copy)
            return [f"{FOLDER}/{name} is a fresh copy now; yours is kept as {backup}"]
        notebook = read_notebook(original)
        homeless = put_answers(notebook, answers)
        write_notebook(copy, notebook)
        messages = [f"{FOLDER}/{name} is a fresh copy now, with your answers; yours is kept as {backup}"]
        lost = [id for id in homeless if (name, id) not in moved]
        return messages + [f"  it has no task {id} any more: that answer is only in the kept one" for id in lost]

    def _keep(self, path: Path, name: str) -> str:
        """Copy a file into `earlier/`, under a free name; return its name there."""
        first = self._aside / name
        names = (first, *(first.with_stem(f"{first.stem}-{number}") for number in range(2, 1000)))
        backup = next(name for name in names if not name.exists())
        _copy(path, backup)
        return backup.relative_to(self.course).as_posix()

    @contextmanager
    def _taken(self) -> Iterator[dict[str, str]]:
        """The hashes of the originals, by name; written back at the end. One process at a time."""
        try:
            self.folder.mkdir(exist_ok=True)
        except PermissionError:
            raise PermissionError(
                f"{self.folder} can't be made: put the course, or a clone of it, into a folder of your own"
            ) from None
        with locked(self.folder / ".lock"):
            try:
                taken = json.loads((self.folder / TAKEN).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                taken = {}
            try:
                yield taken
            finally:
                write_atomically(self.folder / TAKEN, json.dumps(taken, indent=1) + "\n")


def _answers(path: Path) -> dict[str, str]:
    """The answers in a released exercise; none in anything else."""
    if path.suffix != ".ipynb":
        return {}
    try:
        return read_answers(read_notebook(path))
    except NotebookError:  # broken, so there is nothing to go by
        return {}


def _tasks(path: Path) -> set[str]:
    """The ids of an exercise's tasks; none of a broken one."""
    try:
        return read_tasks(read_notebook(path))
    except NotebookError:
        return set()


def _is_exercise(name: str) -> bool:
    return name.startswith("exercises/") and name.endswith(".ipynb")


def _data(exercise: Path) -> list[Path]:
    """Return the files that an exercise's cells read, also from neighboring folders."""
    try:
        paths = named_data(read_notebook(exercise))
    except NotebookError:
        return []
    absolute = [Path(os.path.normpath(exercise.parent / path)) for path in paths]
    return [path for parent in absolute for path in (parent, *parent.rglob("*"))]


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with Folder(to.parent) as folder:
        write_together([(folder, to.name, path.read_bytes())], sync=False)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def learner_copy(notebook: Path) -> Path:
    """Return the learner's copy, where a path names the course's own notebook: `txgrade check` and `submit` ask."""
    return Copies(COURSE).yours(notebook) if course_table(COURSE) is not None else notebook
