"""A grading run: a folder of submissions in, a gradebook and its reports out. Stopped anywhere, it goes on there."""

import contextlib
import os
import platform
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from txgrade.authoring.assignment import Assignment
from txgrade.authoring.read import read_assignment
from txgrade.judging.execute import execute
from txgrade.judging.job import Job
from txgrade.judging.reference import make_reference, record_known
from txgrade.records.gradebook import Gradebook
from txgrade.records.out import allow, need_apart, open_out, path_in, write
from txgrade.records.people import Roster
from txgrade.records.result import Note, Result
from txgrade.running.cluster import Network, cluster, on_cluster
from txgrade.running.pool import Failed, on_this_machine, start_early
from txgrade.running.workspace import workspace
from txgrade.sandbox import Limits
from txgrade.sandbox.warm import required_isolation, warm_kernels
from txgrade.submitting.bounded import BoundedReader
from txgrade.submitting.finding import WHOSE, find_submissions
from txgrade.submitting.reading import Submission

SEEDS = 2
MAX_SEEDS = 100  # each runs every notebook again
JOBS = (os.cpu_count() or 1) + 2  # processes: each waits for its kernel most of the time
READERS = {"me": 0o700, "group": 0o750, "all": 0o755}  # who may enter the folder of pages
Watch = Callable[[str, str, Result | None], None]  # submission, "queued" | "running" | "graded" | "kept", result


@dataclass(frozen=True)
class Graded:
    """What a run gives: all results by name, and how it went."""

    assignment: Assignment
    results: tuple[Result, ...]
    isolation: str
    seeds: tuple[int, ...]
    fresh: int  # graded in this run; the others were in the gradebook already
    missing: tuple[str, ...] = ()  # whom the roster names and who handed in nothing


def grade(
    assignment: Path | str,
    submissions: Path | str,
    out: Path | str,
    *,
    jobs: int | None = None,
    seeds: int | tuple[int, ...] = SEEDS,
    scheduler: str | None = None,
    network: Network | None = None,
    trust: bool = False,
    limits: Limits | None = None,
    roster: Roster | None = None,
    pages_for: str = "me",
    watch: Watch = lambda name, state, result: None,
) -> Graded:
    """Grade a folder of notebooks (`NAME.ipynb`, or `NAME/anything.ipynb`) into the folder `out`.

    Every submission has a row in the gradebook as soon as it is graded; the same call goes on where the last one
    ended, and grades again only what has changed. `jobs` processes work at once, two more than cores by default; with
    `scheduler`, the address of a Dask scheduler, its workers do, reached as `network` says. `trust` allows less than a
    sealed sandbox. `seeds` says on how many seeds, drawn here after handed_in was handed in, or on which, to repeat
    a grade. `roster` says who is who, and so who is missing. What is written is for whoever
    grades alone; the learners' pages are for `pages_for`: me, group or all.

    Raises:
        FileNotFoundError: no such assignment or folder.
        ExerciseError, FailingReference: the assignment is not fit to grade by; nobody is graded.
        ValueError: bad options, an isolation that is too weak, or a gradebook in use.
    """
    if seeds in (0, ()) or isinstance(seeds, int) and seeds < 0:
        raise ValueError(f"--seeds {seeds or 0}: grade on at least 1 seed, better on {SEEDS}")
    if isinstance(seeds, int) and seeds > MAX_SEEDS:
        raise ValueError(f"--seeds {seeds}: grade on {MAX_SEEDS} seeds at most; each runs every notebook again")
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs {jobs}: at least 1 process has to work")
    as_written, folder, out = read_assignment(assignment), Path(submissions), Path(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of submissions at {folder}")
    if pages_for not in READERS:
        raise ValueError(f"--pages-for {pages_for}: choose {', '.join(READERS)}")
    need_apart(out, folder, as_written.path)
    open_out(out)
    with contextlib.ExitStack() as stack:
        stack.enter_context(workspace())
        if scheduler is None:
            start_early()
        reader = stack.enter_context(BoundedReader(as_written))
        isolation = required_isolation(trust)
        limits, environment = limits or Limits(), describe_environment()
        client = stack.enter_context(cluster(scheduler, network or Network())) if scheduler else None
        book = stack.enter_context(Gradebook(out / "gradebook.sqlite"))
        _sweep(out)
        results: list[Result] = []
        ungraded: list[Submission] = []
        files = find_submissions(folder, as_written.name, roster)
        for file in files:
            submission = reader.read(file)
            known = book.find(submission.name, submission.hash, as_written.hash, environment, seeds, isolation)
            if known and _is_same(known, submission):
                results.append(known)
                watch(submission.name, "kept", known)
            else:
                ungraded.append(submission)
                watch(submission.name, "queued", None)
        drawn = book.seeds(as_written.hash, seeds, fresh=bool(ungraded)) if isinstance(seeds, int) else seeds
        hidden = (as_written.path.parent, folder, out)
        # Where nobody is to be graded, as after a review, what the reference said of the assignment is known.
        graded_by = None if ungraded else book.as_graded(as_written)
        todo: list[Job] = []
        if graded_by is None:
            evidence = stack.enter_context(ThreadPoolExecutor(1)).submit(record_known, as_written, drawn)
            data = dict(as_written.data)
            stack.enter_context(warm_kernels(as_written.imports, limits, isolation, trust, hidden, data))  # meanwhile
            run_one = partial(execute, limits=limits)
            graded_by, reference = make_reference(as_written, drawn, run_one, evidence.result)
            source = graded_by.path.read_text(encoding="utf-8")
            todo = [
                Job(graded_by, reference, submission, drawn, limits, isolation, environment, source, trust)
                for submission in ungraded
            ]
        run = book.start_run(graded_by, environment, isolation, drawn)
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
            reviewed = book.with_reviews(result)
            write_submission(out, reviewed, graded_by, pages_for)
            results.append(result)
            watch(name, "graded", reviewed)
        results = sorted(map(book.with_reviews, results), key=lambda result: result.submission)
        missing = roster.missing((file.file_name, file.number) for file in files) if roster else []
        write_reports(out, results, graded_by, missing, pages_for)
        graded_ever = {each.submission for each in book.latest(graded_by.hash)}
        _remove_withdrawn(out, graded_ever - {each.submission for each in results})
        book.finish_run(run)
    return Graded(graded_by, tuple(results), isolation, drawn, len(todo), tuple(missing))


def describe_environment() -> str:
    """The versions that can change a number."""
    versions = [f"Python {platform.python_version()}", platform.machine()]
    for package in ("txgrade", "torch", "numpy", "ipykernel", "nbval", "papermill"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return ", ".join(versions)


def write_submission(out: Path, result: Result, assignment: Assignment, pages_for: str = "me") -> None:
    """One submission's page and JUnit report; a page that would be the same stays."""
    from txgrade.pages.feedback import feedback_page, is_page_of

    name, mode = f"feedback/{result.submission}.html", READERS[pages_for]
    if is_page_of(path_in(out, name), result, assignment):
        allow(out, name, mode)
    else:
        write(out, name, feedback_page(result, assignment), mode)
    if result.junit:
        write(out, f"junit/{result.submission}.xml", result.junit)


def write_reports(
    out: Path, results: list[Result], assignment: Assignment, missing: Sequence[str] = (), pages_for: str = "me"
) -> None:
    """The tables, the summary, and every page: marks may have been given since, or an earlier run broke off."""
    from txgrade.pages.exports import grades_csv, review_csv
    from txgrade.pages.similar import similar_answers
    from txgrade.pages.summary import summary_page

    for result in results:
        write_submission(out, result, assignment, pages_for)
    answers = {result.submission: {task.id: task.answer for task in result.tasks if task.answer} for result in results}
    stubs = {task.id: "\n\n".join(assignment.stubs.get(id, "") for id in task.answers) for task in assignment.tasks}
    similar = similar_answers(answers, stubs)
    write(out, "grades.csv", grades_csv(results))
    write(out, "review.csv", review_csv(results, missing))
    write(out, "summary.html", summary_page(results, assignment, similar=similar, missing=missing))
    if pages_for != "me":
        out.chmod(stat.S_IMODE(out.stat().st_mode) | READERS[pages_for] & 0o011)  # to pass through to the pages


def _remove_withdrawn(out: Path, names: set[str]) -> None:
    """Remove the pages and reports of submissions that are not there any more; the gradebook keeps their grades."""
    for name in names:
        path_in(out, f"feedback/{name}.html").unlink(missing_ok=True)
        path_in(out, f"junit/{name}.xml").unlink(missing_ok=True)


def _sweep(out: Path) -> None:
    """Remove what a run that was killed has left half written; no other run writes here now."""
    for folder in (out, out / "feedback", out / "junit"):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _is_same(known: Result, submission: Submission) -> bool:
    """Whether a grade is of this submission as it is now, whose it is included."""
    notes = [{note for note in each.notes if note.kind in WHOSE} for each in (known, submission)]
    return (known.status, known.submitted) == (submission.status, submission.submitted) and notes[0] == notes[1]


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
