"""A grading run: a folder of submissions in, a gradebook and its reports out. Stopped anywhere, it goes on there."""

import contextlib
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from txlib.files import write_atomically
from txlib.grading.authoring.assignment import Assignment
from txlib.grading.authoring.read import read_assignment
from txlib.grading.judging.execute import execute
from txlib.grading.judging.job import Job
from txlib.grading.judging.reference import make_reference, record_known
from txlib.grading.records.gradebook import Gradebook
from txlib.grading.records.result import Note, Result
from txlib.grading.running.pool import Failed, cluster, on_cluster, on_this_machine, start_early
from txlib.grading.sandbox import Limits
from txlib.grading.sandbox.warm import required_isolation, warm_kernels
from txlib.grading.submitting.reading import find_submissions, read_submission

SEEDS = 2
JOBS = (os.cpu_count() or 1) + 2  # processes: each waits for its kernel most of the time
Watch = Callable[[str, str, Result | None], None]  # submission, "queued" | "running" | "graded" | "kept", result


@dataclass(frozen=True)
class Graded:
    """What a run gives: all results by name, and how it went."""

    assignment: Assignment
    results: tuple[Result, ...]
    isolation: str
    seeds: tuple[int, ...]
    fresh: int  # graded in this run; the others were in the gradebook already


def grade(
    assignment: Path | str,
    submissions: Path | str,
    out: Path | str,
    *,
    jobs: int | None = None,
    seeds: int | tuple[int, ...] = SEEDS,
    scheduler: str | None = None,
    trust: bool = False,
    limits: Limits | None = None,
    watch: Watch = lambda name, state, result: None,
) -> Graded:
    """Grade a folder of notebooks (`NAME.ipynb`, or `NAME/anything.ipynb`) into the folder `out`.

    Every submission has a row in the gradebook as soon as it is graded; the same call goes on where the last one
    ended, and grades again only what has changed. `jobs` processes work at once, two more than cores by default; with
    `scheduler`, the address of a Dask scheduler, its workers do. `trust` allows less than a sealed sandbox.
    `seeds` says on how many seeds, drawn here after everything was handed in, or on which, to repeat a grade.

    Raises:
        FileNotFoundError: no such assignment or folder.
        ExerciseError, FailingReference: the assignment is not fit to grade by; nobody is graded.
        ValueError: bad options, an isolation that is too weak, or a gradebook in use.
    """
    if seeds in (0, ()) or isinstance(seeds, int) and seeds < 0:
        raise ValueError(f"--seeds {seeds or 0}: grade on at least 1 seed, better on {SEEDS}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs {jobs}: at least 1 process has to work")
    found_assignment, folder, out = read_assignment(assignment), Path(submissions), Path(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of submissions at {folder}")
    if scheduler is None:
        start_early()
    isolation = required_isolation(trust)
    limits, environment = limits or Limits(), describe_environment()
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(cluster(scheduler)) if scheduler else None
        book = stack.enter_context(Gradebook(out / "gradebook.sqlite"))
        results, todo = [], []
        for found in find_submissions(folder, found_assignment.name):
            submission = read_submission(found, found_assignment)
            known = book.find(submission.name, submission.hash, found_assignment.hash, environment, seeds, isolation)
            if known and (known.status, known.submitted) == (submission.status, submission.submitted):
                results.append(known)
                watch(submission.name, "kept", known)
            else:
                todo.append(submission)
                watch(submission.name, "queued", None)
        drawn = book.seeds(found_assignment.hash, seeds, fresh=bool(todo)) if isinstance(seeds, int) else seeds
        hidden = (found_assignment.path.parent, folder, out)
        evidence = stack.enter_context(ThreadPoolExecutor(1)).submit(record_known, found_assignment, drawn)
        stack.enter_context(warm_kernels(found_assignment.imports, limits, isolation, trust, hidden))  # meanwhile
        run_one = partial(execute, limits=limits)
        graded_by, reference = make_reference(found_assignment, drawn, run_one, evidence.result)
        run = book.start_run(graded_by, environment, isolation, drawn)
        source = graded_by.path.read_text(encoding="utf-8")
        todo = [
            Job(graded_by, reference, submission, drawn, limits, isolation, environment, source, trust)
            for submission in todo
        ]
        work = on_cluster(todo, client) if client else on_this_machine(todo, jobs or JOBS)
        for done, result in work:
            name = done.submission.name
            if result is None:
                watch(name, "running", None)
                continue
            if isinstance(result, Failed):  # not written down: the next run tries again
                result = _not_graded(done, result)
            else:
                book.add(run, result)
            write_submission(out, book.with_reviews(result), graded_by)
            results.append(result)
            watch(name, "graded", result)
        results = sorted(map(book.with_reviews, results), key=lambda result: result.submission)
        write_reports(out, results, graded_by)
        book.finish_run(run)
    return Graded(graded_by, tuple(results), isolation, drawn, len(todo))


def describe_environment() -> str:
    """The versions that can change a number."""
    versions = [f"Python {platform.python_version()}", platform.machine()]
    for package in ("txlib-course", "torch", "numpy", "ipykernel", "nbval", "papermill"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return ", ".join(versions)


def write_submission(out: Path, result: Result, assignment: Assignment) -> None:
    """One submission's page and JUnit report."""
    from txlib.grading.pages.feedback import feedback_page

    _write(out / "feedback" / f"{result.submission}.html", feedback_page(result, assignment))
    if result.junit:
        _write(out / "junit" / f"{result.submission}.xml", result.junit)


def write_reports(out: Path, results: list[Result], assignment: Assignment) -> None:
    """The tables, the summary, and every page: marks may have been given since, or an earlier run broke off."""
    from txlib.grading.pages.exports import grades_csv, review_csv
    from txlib.grading.pages.similar import similar_answers
    from txlib.grading.pages.summary import summary_page

    for result in results:
        write_submission(out, result, assignment)
    answers = {result.submission: {task.id: task.answer for task in result.tasks if task.answer} for result in results}
    stubs = {task.id: "\n\n".join(assignment.stubs.get(id, "") for id in task.answers) for task in assignment.tasks}
    similar = similar_answers(answers, stubs)
    _write(out / "grades.csv", grades_csv(results))
    _write(out / "review.csv", review_csv(results))
    _write(out / "summary.html", summary_page(results, assignment, similar=similar))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def _not_graded(job: Any, failed: Failed) -> Result:
    note = Note("not graded", f"the grader failed twice on it: {failed.reason}")
    submission = job.submission
    return Result(
        submission.name,
        "not graded",
        0,
        job.assignment.points,
        job.isolation,
        job.seeds,
        submission.hash,
        job.assignment.hash,
        job.environment,
        notes=(*submission.notes, note),
        submitted=submission.submitted,
    )
