"""Lessons: `notebooks/NN_name.py` is the source, and `NN_name.ipynb` beside it the same cells with their outputs.

python -m txlib.course.build                              # all lessons; the same as `make notebooks`
python -m txlib.course.build notebooks/03_attention.py
"""

import copy
import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from txlib.grading.authoring.release import KERNEL, QUIET, kernel_environment, write_notebook

LESSONS = Path(__file__).parents[2] / "notebooks"
TIMEOUT = 600  # seconds a cell; a lesson as a whole should stay under 90


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
    lesson.metadata = type(lesson.metadata)(kernelspec=dict(KERNEL), language_info={"name": "python"})
    seen = Counter()
    for cell in lesson.cells:
        digest = hashlib.sha256(f"{cell.cell_type} {cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        for layout in ("lines_to_next_cell", "lines_to_end_of_cell_marker"):  # of the .py file
            cell.metadata.pop(layout, None)
    return lesson


def run_lesson(lesson: Any) -> Any:
    """A copy of a lesson with its outputs, run by papermill in an empty folder, with no learner's progress.

    Raises:
        papermill.PapermillExecutionError: a cell failed; the message names it and shows its traceback.
    """
    import papermill

    lesson = copy.deepcopy(lesson)
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(kernel_environment(TXLIB_HOME=folder))
        try:
            ran = papermill.execute_notebook(
                lesson,
                None,
                cwd=folder,
                kernel_name=KERNEL["name"],
                progress_bar=False,
                execution_timeout=TIMEOUT,
                extra_arguments=QUIET,
                coalesce_streams=True,
            )
        finally:
            os.environ.clear()
            os.environ.update(before)
    for cell, executed in zip(lesson.cells, ran.cells, strict=True):  # without papermill's times and tags
        if cell.cell_type == "code":
            cell.execution_count = executed.execution_count
            cell.outputs = [output for output in executed.outputs if not _blank(output)]
    return lesson


def build(source: Path | str) -> float:
    """Run a lesson and write its .ipynb, or leave the old one if a cell fails. Returns the seconds it took."""
    start = time.perf_counter()
    write_notebook(Path(source).with_suffix(".ipynb"), run_lesson(read_lesson(source)))
    return time.perf_counter() - start


def _blank(output: Any) -> bool:
    """What a progress bar leaves behind when it vanishes."""
    return output.output_type == "stream" and not output.text.strip()


def main(arguments: list[str]) -> None:
    from papermill import PapermillExecutionError

    failed = False
    for source in arguments or sorted(LESSONS.glob("*.py")):
        try:
            print(f"{Path(source).stem}: {build(source):.0f} s")
        except (FileNotFoundError, PapermillExecutionError) as error:
            failed = True
            print(f"{Path(source).stem}: {error}", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
