"""Lessons: `notebooks/NN_name.py` is the source, and `NN_name.ipynb` beside it the same cells with their outputs.

python -m txcourse.build                              # all lessons; the same as `make notebooks`
python -m txcourse.build notebooks/03_attention.py
"""

import copy
import hashlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from txcourse.lessons import problems, write_tables
from txcourse.paths import course_folder
from txgrade import notebook_runner


def read_lesson(source: Path | str) -> Any:
    """The notebook of a py:percent source, without outputs. Cells have ids made of their text, so ids stay.

    Raises:
        FileNotFoundError: no such source.
    """
    import jupytext

    source = Path(source)
    if not source.is_file():
        raise FileNotFoundError(f"no lesson at {source}: give its source, e.g. notebooks/03_attention.py")
    lesson = jupytext.read(source, fmt="py:percent")
    lesson.nbformat, lesson.nbformat_minor = 4, 5
    lesson.metadata = notebook_runner.metadata()
    seen: Counter[str] = Counter()
    for cell in lesson.cells:
        digest = hashlib.sha256(f"{cell.cell_type} {cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        for layout in ("lines_to_next_cell", "lines_to_end_of_cell_marker"):  # of the .py file
            cell.metadata.pop(layout, None)
    return lesson


def run_lesson(lesson: Any) -> Any:
    """A copy of a lesson with its outputs, run in an empty folder, with no learner's progress.

    Raises:
        notebook_runner.Stopped: a cell failed; its `trace` shows where.
    """
    lesson = copy.deepcopy(lesson)
    with tempfile.TemporaryDirectory() as folder:
        notebook_runner.run(lesson, folder, TXGRADE_HOME=folder)
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _blank(output)]
    return lesson


def build(source: Path | str) -> float:
    """Run a lesson and write its .ipynb, or leave the old one if a cell fails. Returns the seconds it took.

    Raises:
        ValueError: the lesson says something wrong of itself, or links to a lesson that isn't there.
    """
    start, source = time.perf_counter(), Path(source)
    lesson = read_lesson(source)
    if source.parent.name == "notebooks" and (wrong := list(problems(source.parents[1], source.stem, lesson))):
        raise ValueError("\n".join(wrong))
    notebook_runner.write_notebook(source.with_suffix(".ipynb"), run_lesson(lesson))
    return time.perf_counter() - start


def _blank(output: Any) -> bool:
    """What a progress bar leaves behind when it vanishes."""
    return output.output_type == "stream" and not output.text.strip()


def main(arguments: list[str]) -> None:
    failed, course = False, course_folder("`make notebooks`")
    sources = [*map(Path, arguments)] if arguments else sorted(course.glob("notebooks/*.py"))
    for source in sources:
        try:
            print(f"{source.stem}: {build(source):.0f} s")
        except (ValueError, FileNotFoundError, notebook_runner.Stopped) as error:
            failed = True
            print(f"{source.stem}: {getattr(error, 'trace', error)}", file=sys.stderr)
    for path in write_tables(course):
        print(f"{path.name}: the table of the lessons has changed")
        if path.suffix == ".py":
            build(path)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
