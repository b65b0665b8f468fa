"""A grading run: from a folder of submissions to a gradebook and its reports. If stopped, it goes on where it was."""

import contextlib
import os
import platform
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from txgrade.authoring.assignment import Assignment
from txgrade.authoring.deal import Deal
from txgrade.authoring.read import read_assignment
from txgrade.judging.execute import execute
from txgrade.judging.job import Job
from txgrade.judging.reference import make_reference, record_known
from txgrade.pages.exports import changes_csv
from txgrade.records.changes import Change, Publication
from txgrade.records.extensions import read_allowances
from txgrade.records.gradebook import Gradebook
from txgrade.records.grades import now
from txgrade.records.history import History, histories_of
from txgrade.records.lateness import with_lateness, without_times
from txgrade.records.out import allow, need_apart, open_out, path_in, write
from txgrade.records.people import Roster
from txgrade.records.requests import Request, decisions_of, read_requests
from txgrade.records.result import ARRIVAL, Note, Result
from txgrade.running.cluster import Network, cluster, on_cluster
from txgrade.running.pool import Failed, Progress, on_this_machine, start_early
from txgrade.running.versions import Versions, dealt_versions
from txgrade.running.workspace import workspace
from txgrade.sandbox import Limits
from txgrade.sandbox.warm import required_isolation, warm_kernels
from txgrade.submitting.bounded import BoundedReader
from txgrade.submitting.finding import WHOSE, SubmissionFile, find_submissions
from txgrade.submitting.reading import Submission, cell_hashes
from txgrade.submitting.releases import Releases

SEEDS = 2
MAX_SEEDS = 100  # each runs every notebook again
JOBS = (os.cpu_count() or 1) + 2  # processes: each waits for its kernel most of the time
READERS = {"me": 0o700, "group": 0o750, "all": 0o755}  # who may enter the folder of pages
Watch = Callable[[str, str, Result | None], None]  # submission, "queued" | "running" | "graded" | "kept", result


@dataclass(frozen=True)
class Graded:
    """The outcome of a run: all results by name, and how it went."""

    assignment: Assignment
    results: tuple[Result, ...]
    isolation: str
    seeds: tuple[int, ...]
    fresh: int  # graded in this run; the others were in the gradebook already
    missing: tuple[str, ...] = ()  # people on the roster who submitted nothing
    changes: tuple[Change, ...] = ()  # of points that an earlier run gave
    requests: tuple[Request, ...] = ()  # to grade again, that wait for a person


def grade(
    assignment: Path | str,
    submissions: Path | str,
    out: Path | str,
    *,
    variant: int | None = None,
    due: str | None = None,
    deal: Deal | None = None,
    jobs: int | None = None,
    seeds: int | tuple[int, ...] = SEEDS,
    scheduler: str | None = None,
    network: Network | None = None,
    trust: bool = False,
    limits: Limits | None = None,
    roster: Roster | None = None,
    extensions: Path | None = None,
    term: Path | None = None,
    pages_for: str = "me",
    watch: Watch = lambda name, state, result: None,
) -> Graded:
    """Grade a folder of notebooks (`NAME.ipynb`, or `NAME/anything.ipynb`) into the folder `out`.

    Every submission has a row in the gradebook as soon as it is graded. The same call goes on where the last one
    ended, and grades again only what has changed. `variant` is the variant of the assignment that everybody had, and
    `due` its deadline. `jobs` processes work at once, by default two more than cores; with `scheduler`, the address of
    a Dask scheduler, its workers do, reached as `network` says. `trust` allows less than a sealed sandbox. `seeds` is
    the number of seeds, which are drawn after everything was submitted, or the seeds themselves, to repeat a grade.
    `roster` says who is who, and so who is missing. `extensions` is a table of them; `term` the folder with the
    results of all exercises, by which slip days are counted. Only the person who grades can read what is written; the
    learners' pages are for `pages_for`: me, group or all.

    Raises:
        FileNotFoundError: no such assignment or folder.
        ExerciseError, FailingReference: the assignment is not fit to grade by; nobody is graded.
        ValueError: bad options, an isolation that is too weak, or a gradebook in use.
    """
    _check_options(seeds, jobs, pages_for)
    if deal is None:
        versions = Versions(read_assignment(assignment, variant, due=due))
    else:
        versions = dealt_versions(Path(assignment), deal)
    as_written, folder, out = versions.whole, Path(submissions), Path(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of submissions at {folder}")
    need_apart(out, folder, as_written.path)
    open_out(out)
    with contextlib.ExitStack() as stack:
        stack.enter_context(workspace())
        if scheduler is None:
            start_early()
        isolation = required_isolation(trust)
        client = stack.enter_context(cluster(scheduler, network or Network())) if scheduler else None
        book = stack.enter_context(Gradebook(out / "gradebook.sqlite"))
        _sweep(out)
        run = _GradingRun(versions, out, book, seeds, isolation, limits or Limits(), trust, pages_for, watch)
        allowances = read_allowances(
            as_written.name, as_written.due, extensions=extensions, roster=roster, term=term, out=out
        )
        files = find_submissions(folder, as_written.name, roster)
        allowed = (allowances.of(file.learner, file.file_name) for file in files)
        read = _read(files, versions)
        versions.need_secret(read)
        read = [replace(one, allowance=allowance) for one, allowance in zip(read, allowed, strict=True)]
        ungraded = run.need_grading(read)
        queue = run.make_jobs(stack, ungraded, hidden=(as_written.path.parent, folder, out))
        run.collect(on_cluster(queue, client) if client else on_this_machine(queue, jobs or JOBS))
        return run.finish(roster.missing((file.file_name, file.number) for file in files) if roster else [])


def _read(files: list[SubmissionFile], versions: Versions) -> list[Submission]:
    """Return what was handed in, read by the variant that it is judged by, in the order of the files."""
    numbers = [versions.variant(file) for file in files]
    submissions: dict[int, Submission] = {}
    for number in dict.fromkeys(numbers):
        with BoundedReader(versions.of(number)) as reader:
            for index, file in enumerate(files):
                if numbers[index] == number:
                    submissions[index] = versions.checked(file, reader.read(file))
    return [submissions[index] for index in range(len(files))]


def _check_options(seeds: int | tuple[int, ...], jobs: int | None, pages_for: str) -> None:
    if seeds in (0, ()) or isinstance(seeds, int) and seeds < 0:
        raise ValueError(f"--seeds {seeds or 0}: grade on at least 1 seed, better on {SEEDS}")
    if isinstance(seeds, int) and seeds > MAX_SEEDS:
        raise ValueError(f"--seeds {seeds}: grade on {MAX_SEEDS} seeds at most; each runs every notebook again")
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs {jobs}: at least 1 process has to work")
    if pages_for not in READERS:
        raise ValueError(f"--pages-for {pages_for}: choose {', '.join(READERS)}")


class _GradingRun:
    """One run under way: under which conditions it grades, and what it has graded so far."""

    def __init__(
        self,
        versions: Versions,
        out: Path,
        book: Gradebook,
        seeds: int | tuple[int, ...],
        isolation: str,
        limits: Limits,
        trust: bool,
        pages_for: str,
        watch: Watch,
    ):
        self.versions = versions  # from `make_jobs` on with what their references say of them
        self.out, self.book, self.isolation, self.limits, self.trust = out, book, isolation, limits, trust
        self.pages_for, self.watch, self.environment = pages_for, watch, describe_environment()
        self.wanted_seeds, self.seeds = seeds, seeds if isinstance(seeds, tuple) else ()
        self.results: list[Result] = []
        self.retimed: list[Result] = []  # graded before; only what is known of their time has changed
        self.releases = Releases((), ())
        self.number, self.fresh = 0, 0  # in the gradebook; how many submissions this run grades

    def need_grading(self, submissions: list[Submission]) -> list[Submission]:
        """Return those of all submissions whose grades are not in the gradebook; take over the others'."""
        self.releases = Releases(submissions, self.book.earlier_cells(self.versions.whole))
        return [
            replace(submission, notes=self.releases.notes(submission.name, submission.notes))
            for submission in submissions
            if not self._is_graded(submission)
        ]

    def _is_graded(self, submission: Submission) -> bool:
        result = self.book.find(
            submission.name,
            submission.hash,
            self.versions.whole.hash,
            self.environment,
            self.wanted_seeds,
            self.isolation,
        )
        if result is None or not _is_same(result, submission):
            self.watch(submission.name, "queued", None)
            return False
        arrived = {name: getattr(submission, name) for name in ARRIVAL}
        if arrived != {name: getattr(result, name) for name in ARRIVAL}:
            result = replace(result, **arrived)
            if result.status == "graded":
                result = with_lateness(result, self.versions.whole.due)
            self.retimed.append(result)
        self.results.append(result)
        self.watch(submission.name, "kept", result)
        return True

    def make_jobs(
        self, stack: contextlib.ExitStack, submissions: list[Submission], hidden: tuple[Path, ...]
    ) -> list[Job]:
        """Draw the seeds, run the reference, and return a job for each submission. No kernel sees the `hidden` folders.

        If nobody is to be graded, as after a review, the gradebook knows what the reference says of the assignment.
        """
        as_written, self.fresh = self.versions.whole, len(submissions)
        if isinstance(self.wanted_seeds, int):
            self.seeds = self.book.seeds(as_written.hash, self.wanted_seeds, fresh=bool(submissions))
        if not submissions and (graded_before := self.book.as_graded(as_written)) is not None:
            self.versions.whole = graded_before
            return []
        numbers = dict.fromkeys(submission.variant for submission in submissions if submission.status == "graded")
        needed = {number: self.versions.of(number) for number in numbers or [as_written.variant]}
        recorder = stack.enter_context(ThreadPoolExecutor(1))
        evidence = {number: recorder.submit(record_known, needed[number], self.seeds) for number in needed}
        imports = tuple(dict.fromkeys(module for version in needed.values() for module in version.imports))
        data = dict(as_written.data)  # while the evidence is made, kernels are warmed
        stack.enter_context(warm_kernels(imports, self.limits, self.isolation, self.trust, hidden, data))
        run_one = partial(execute, limits=self.limits)
        made = {
            number: make_reference(version, self.seeds, run_one, evidence[number].result)
            for number, version in needed.items()
        }
        self.versions.learn(version for version, _ in made.values())
        source = as_written.path.read_text(encoding="utf-8")
        settings = (self.seeds, self.limits, self.isolation, self.environment, source, self.trust)
        other = next(iter(made.values()))  # of what can't be graded
        pairs = ((submission, made.get(submission.variant, other)) for submission in submissions)
        return [Job(version, reference, submission, *settings) for submission, (version, reference) in pairs]

    def collect(self, progress: Progress) -> None:
        """Write down each result as it comes, and its page."""
        cells = cell_hashes(self.versions.all())
        self.number = self.book.start_run(self.versions.whole, self.environment, self.isolation, self.seeds, cells)
        self.book.take_over_rubrics()
        for retimed in self.retimed:
            self.book.add(self.number, retimed)
        for job, result in progress:
            name = job.submission.name
            if result is None:
                self.watch(name, "running", None)
                continue
            if isinstance(result, Failed):  # not written down: the next run tries again
                result = job.result("not graded", Note("not graded", f"the grader failed twice on it: {result.reason}"))
            else:
                self.book.add(self.number, result)
            reviewed = self.book.with_reviews(result)
            write_submission(self.out, reviewed, self.versions.of(result.variant), self.pages_for)
            self.results.append(result)
            self.watch(name, "graded", reviewed)

    def finish(self, missing: list[str]) -> Graded:
        """Write the tables and the summary, with everybody who submitted nothing and what has changed."""
        marks_read = now()
        results = [
            replace(result, notes=self.releases.notes(result.submission, result.notes)) for result in self.results
        ]
        results = without_times(self.book.all_with_reviews(results))
        results = sorted(results, key=lambda result: result.submission)
        publication = Publication(self.book, results)
        requests, problems = read_requests(self.out, self.book, results)
        waiting = [request for request in requests if request.decision is None]
        histories = histories_of(publication.earlier + publication.changes, decisions_of(self.book))
        for result in results:  # marks may have changed since, or an earlier run broke off
            history = histories.get(result.submission, History())
            write_submission(self.out, result, self.versions.of(result.variant), self.pages_for, history)
        write_tables(self.out, results, self.versions.whole, missing, waiting, problems)
        write(self.out, "changes.csv", changes_csv(publication.earlier + publication.changes))
        if self.pages_for != "me":
            self.out.chmod(stat.S_IMODE(self.out.stat().st_mode) | READERS[self.pages_for] & 0o011)  # to pass through
        graded_ever = {result.submission for result in self.book.newest(self.versions.whole.hash)}
        _remove_withdrawn(self.out, graded_ever - {result.submission for result in results})
        publication.write(self.number)
        self.book.finish_run(self.number, marks_read)
        return Graded(
            self.versions.whole,
            tuple(results),
            self.isolation,
            self.seeds,
            self.fresh,
            tuple(missing),
            tuple(publication.changes),
            tuple(waiting),
        )


def describe_environment() -> str:
    """Return the versions that can change a number."""
    versions = [f"Python {platform.python_version()}", platform.machine()]
    for package in ("txgrade", "torch", "numpy", "ipykernel", "nbval", "papermill"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return ", ".join(versions)


def write_submission(
    out: Path, result: Result, assignment: Assignment, pages_for: str = "me", history: History | None = None
) -> None:
    """Write one submission's page and JUnit report; a page that would be the same stays."""
    from txgrade.pages.feedback import feedback_page, is_page_of

    name, mode = f"feedback/{result.submission}.html", READERS[pages_for]
    if is_page_of(path_in(out, name), result, assignment, history or History()):
        allow(out, name, mode)
    else:
        write(out, name, feedback_page(result, assignment, history or History()), mode)
    if result.junit:
        write(out, f"junit/{result.submission}.xml", result.junit)


def write_tables(
    out: Path,
    results: list[Result],
    assignment: Assignment,
    missing: Sequence[str],
    requests: Sequence[Request],
    problems: Sequence[str],
) -> None:
    """Write the tables and the summary. `problems` are requests that can't be understood."""
    from txgrade.pages.exports import grades_csv, review_csv
    from txgrade.pages.similar import similar_answers
    from txgrade.pages.statistics import item_statistics, mistakes_csv, statistics_csv
    from txgrade.pages.summary import summary_page

    answers = {result.submission: {task.id: task.answer for task in result.tasks if task.answer} for result in results}
    stubs = {task.id: "\n\n".join(assignment.stubs.get(id, "") for id in task.answers) for task in assignment.tasks}
    similar = similar_answers(answers, stubs)
    write(out, "grades.csv", grades_csv(results))
    write(out, "review.csv", review_csv(results, missing, requests, problems))
    items = item_statistics(results)
    write(out, "statistics.csv", statistics_csv(items))
    write(out, "mistakes.csv", mistakes_csv(items))
    write(out, "summary.html", summary_page(results, assignment, similar=similar, missing=missing))


def _remove_withdrawn(out: Path, names: set[str]) -> None:
    """Remove the pages and reports of submissions that are gone; the gradebook keeps their grades."""
    for name in names:
        path_in(out, f"feedback/{name}.html").unlink(missing_ok=True)
        path_in(out, f"junit/{name}.xml").unlink(missing_ok=True)


def _sweep(out: Path) -> None:
    """Remove what a killed run left half written; no other run writes here now."""
    for folder in (out, out / "feedback", out / "junit"):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _is_same(result: Result, submission: Submission) -> bool:
    """Return whether a grade is of this submission as it is now, whose it is included.

    What could not be read has no hash: it is the same if all that is said of it is.
    """
    before, now = (
        {note for note in graded.notes if note.kind in WHOSE or not submission.hash} for graded in (result, submission)
    )
    return (result.status, result.variant) == (submission.status, submission.variant) and before == now
