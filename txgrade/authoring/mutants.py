"""`txgrade validate --mutants`: what a check makes of the slips that its author did not list.

The reference answer is changed in one place, as people slip (see `mutations`), and its check runs: on the public seed
as at home, then with the hidden tests, on that seed and on fresh ones. A mutant that still earns all points is a hole,
or equivalent: its author says so in the source, by `equivalent(task, change, reason)`.
"""

import contextlib
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txgrade.authoring.cells import HIDDEN_TESTS, has_region, is_answer, is_check, stays_home
from txgrade.authoring.exercise import Exercise, ExerciseError, Task, read_exercise
from txgrade.authoring.mutant_runs import Ended, in_child
from txgrade.authoring.mutation_operators import COMMON
from txgrade.authoring.mutations import Mutation, mutations
from txgrade.authoring.record import (
    RecordingError,
    author_declarations,
    check_run,
    in_fresh_process,
    record_evidence,
    reference_run,
)
from txgrade.authoring.release import recordings_of
from txgrade.checking.verdict import verdict_of
from txgrade.evidence.recordings import share
from txgrade.text import plural

FRESH_SEEDS = (201, 202, 203)
SLOW = 5.0  # seconds of a check above which only the common slips are tried
SLACK = 0.5  # seconds of the processor beyond three times the reference's
LONGEST = 24 * 3600  # seconds for a whole exercise
LATER = "  (right at home, wrong on another seed or in a hidden test)"


@dataclass(frozen=True)
class Mutant:
    """One changed answer, and what came of it."""

    line: int  # in the source; in a notebook, in the cell
    kind: str
    change: str
    end: str  # how it was killed: result, error, later, time, memory, crash; or survives
    sentences: tuple[str, ...] = ()  # what the learner's check says of it
    shown: str = ""  # a digest of what the check showed at home: mutants that show the same need one sentence

    @property
    def survives(self) -> bool:
        return self.end == "survives"

    @property
    def needs_sentence(self) -> bool:
        """A common slip that shows in a wrong value; where Python raises an error, that is said anyway."""
        return self.kind in COMMON and self.end in ("result", "later")


@dataclass(frozen=True)
class TaskMutants:
    """The mutants of one task."""

    task: str
    difficulty: int | None
    mutants: tuple[Mutant, ...] = ()
    equivalent: dict[str, str] = field(default_factory=dict)  # a change, and why it changes nothing
    only: str = ""  # what was left out, and why
    left_out: tuple[str, ...] = ()  # the changes that were not tried

    @property
    def killed(self) -> int:
        return sum(not mutant.survives for mutant in self.mutants)

    @property
    def survivors(self) -> list[Mutant]:
        """Those that nothing explains."""
        return [mutant for mutant in self.mutants if mutant.survives and mutant.change not in self.equivalent]

    @property
    def stale(self) -> list[str]:
        """The changes that are said to be equivalent, and that no surviving mutant makes."""
        surviving = {mutant.change for mutant in self.mutants if mutant.survives}
        return [change for change in self.equivalent if change not in surviving and change not in self.left_out]

    @property
    def slips(self) -> list[Mutant]:
        """The common slips that a sentence could be said to; of those that show the same, the first."""
        slips = [mutant for mutant in self.mutants if mutant.needs_sentence]
        different = {mutant.shown if mutant.end == "result" else mutant.change: mutant for mutant in slips[::-1]}
        return list(different.values())[::-1]

    @property
    def silent(self) -> list[Mutant]:
        """Those that are told none."""
        return [mutant for mutant in self.slips if not mutant.sentences]

    def counts(self) -> tuple[int, int, int, int, int]:
        """Return mutants, those killed, unexplained survivors, common slips, those told a sentence."""
        slips = len(self.slips)
        return len(self.mutants), self.killed, len(self.survivors), slips, slips - len(self.silent)


@dataclass(frozen=True)
class ExerciseMutants:
    """The mutants of an exercise, by task."""

    source: Path
    tasks: tuple[TaskMutants, ...]

    @property
    def problems(self) -> list[str]:
        """A line a task with holes, and a line a note that explains nothing."""
        holes = [(task.task, plural(len(task.survivors), "mutant")) for task in self.tasks if task.survivors]
        lines = [
            f"task {task}: {mutants} still right; fix the check, or declare them equivalent" for task, mutants in holes
        ]
        return lines + [
            f"task {task.task}: no surviving mutant is equivalent({task.task!r}, {change!r}, …)"
            for task in self.tasks
            for change in task.stale
        ]

    def lists(self) -> str:
        """Return a line for each hole, then a line for each common slip without a sentence."""
        lines = []
        for title, attribute in (
            ("These changes earn all points:", "survivors"),
            ("These common slips get no sentence:", "silent"),
        ):
            rows = [
                f"  {self.source}:{mutant.line}  {mutant.change}{LATER if mutant.end == 'later' else ''}"
                for task in self.tasks
                for mutant in getattr(task, attribute)
            ]
            lines += [title, *rows] if rows else []
        return "\n".join(lines)

    def table(self) -> str:
        """Return a line for each task, and one for all."""
        row = "{:<28} {:>10}  {:>7}  {:>6}  {:>9}  {:>10}  {:>14}".format
        lines = [row("task", "difficulty", "mutants", "killed", "survivors", "equivalent", "with sentence")]
        counted = [(task.task, task.difficulty or 0, task.counts()) for task in self.tasks]
        totals = [sum(column) for column in zip(*(counts for _, _, counts in counted), strict=True)]
        for task, difficulty, (mutants, killed, holes, slips, with_sentence) in [*counted, ("all tasks", 0, totals)]:
            lines.append(
                row(
                    task,
                    "●" * difficulty + "○" * (5 - difficulty) if difficulty else "",
                    mutants or "–",
                    f"{killed / mutants:.0%}" if mutants else "–",
                    holes,
                    mutants - killed - holes,
                    f"{with_sentence} of {slips}" if slips else "–",
                )
            )
        return "\n".join([*lines, *(f"{task.task}: {task.only}" for task in self.tasks if task.only)])

    def data(self) -> dict:
        """Return everything, for programs."""
        return {
            "source": str(self.source),
            "tasks": [vars(task) | {"mutants": [vars(mutant) for mutant in task.mutants]} for task in self.tasks],
        }


def mutants_of(
    source: Path | str, watch: Callable[[int, int], None] | None = None, *, recordings: dict | None = None
) -> ExerciseMutants:
    """Try every mutant of an exercise in its own process, and report progress by `watch(done, total)`.

    `recordings` are those of a fresh release; without them, the reference runs once more.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: its form is wrong, or its own code fails.
    """
    exercise = read_exercise(source)
    try:
        if recordings is None:
            evidence = record_evidence(exercise.path, [exercise.seed])
            opened = evidence["open"][str(exercise.seed)]
            recordings = recordings_of(exercise, opened, exercise.seed, evidence["measured"])
        with tempfile.NamedTemporaryFile() as progress, _Watching(progress.name, watch):
            arguments = {"recordings": recordings["tasks"], "progress": progress.name}
            tried = in_fresh_process("txgrade.authoring.mutants", exercise.path, arguments, timeout=LONGEST)
    except RecordingError as reason:
        raise ExerciseError(exercise.name, [f"the reference fails: {reason}"]) from reason
    tasks = [
        TaskMutants(
            task["task"],
            task["difficulty"],
            tuple(Mutant(**mutant | {"sentences": tuple(mutant.get("sentences", ()))}) for mutant in task["mutants"]),
            task["equivalent"],
            task["only"],
            tuple(task["left_out"]),
        )
        for task in tried
    ]
    return ExerciseMutants(Path(source), tuple(tasks))


class _Watching:
    """Tells how many of how many mutants are done, as the process that runs them writes it to a file."""

    def __init__(self, path: str, watch: Callable[[int, int], None] | None):
        import threading

        self.path, self.watch, self.ended = path, watch, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        if self.watch:
            self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        if self.watch:
            self.thread.join()

    def _look(self) -> None:
        while not self.ended.wait(0.5):
            done, _, total = Path(self.path).read_text().partition(" ")
            if total and self.watch:
                self.watch(int(done), int(total))


def report(sources: list[Path], to: Path | None = None) -> int:
    """Print each exercise's table, its holes, and the common slips without a sentence; return 1 if there are holes.

    `to` is a JSON file for all of it.
    """
    problems, tried = [], []
    for source in sources:
        try:
            with _bar(source) as watch:
                mutants = mutants_of(source, watch)
        except ExerciseError as reason:
            problems += str(reason).splitlines()
            continue
        tried.append(mutants)
        problems += [f"{source.stem}: {problem}" for problem in mutants.problems]
        print(f"{source}\n{mutants.table()}\n{mutants.lists()}".rstrip().replace("\n", "\n  "), flush=True)
    if to:
        to.write_text(json.dumps([exercise.data() for exercise in tried], indent=1, ensure_ascii=False))
    for problem in problems:
        print(f"txgrade: {problem}", file=sys.stderr)
    return int(bool(problems))


@contextlib.contextmanager
def _bar(source: Path) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, and nothing otherwise."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(source.name, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


# In the process that runs mutants.


@dataclass(frozen=True)
class _Run:
    """One run of all checks with the reference, and its names, in which mutants run as well."""

    hidden: bool
    namespace: dict
    reference: dict[str, dict]  # bundles, by task
    seconds: dict[str, float]


def _try_all(exercise: Exercise, recordings: dict[str, dict], progress: Path) -> list[dict]:
    import torch

    torch.set_num_threads(1)  # a fork after an operation on several threads hangs
    checks = [exercise.notebook.cells[task.check].source for task in exercise.tasks]
    with_hidden = any(has_region(line, HIDDEN_TESTS) for source in checks for line in source.splitlines())
    seeds = [(exercise.seed, False), *[(exercise.seed, True)] * with_hidden, *((seed, True) for seed in FRESH_SEEDS)]
    runs = [_Run(hidden, *reference_run(exercise, seed, hidden)) for seed, hidden in seeds]
    declared = author_declarations(exercise, runs[0].namespace)
    chosen = {task.id: _chosen(exercise, task, runs, task.id in declared.measured) for task in exercise.tasks}
    total, done, results = sum(len(mutants) for mutants, _, _ in chosen.values()), 0, []
    for task in exercise.tasks:
        mutants, only, left_out = chosen[task.id]
        first_line = _first_line(exercise, task)
        tried = []
        for mutation in mutants:
            ended = _tried(exercise, task, mutation, runs, recordings[task.id])
            tried.append(
                {"line": first_line + mutation.line, "kind": mutation.kind, "change": mutation.change, **ended}
            )
            done += 1
            progress.write_text(f"{done} {total}")
        results.append(
            {
                "task": task.id,
                "difficulty": task.difficulty,
                "mutants": tried,
                "equivalent": {
                    declaration.change: declaration.reason
                    for declaration in declared.equivalent
                    if declaration.task == task.id
                },
                "only": only,
                "left_out": left_out,
            }
        )
    ids = {task.id for task in exercise.tasks}
    if unknown := [declaration.task for declaration in declared.equivalent if declaration.task not in ids]:
        raise RecordingError(f"equivalent(…) is for the task {unknown[0]!r}, which does not exist")
    return results


def _chosen(exercise: Exercise, task: Task, runs: list[_Run], measured: bool) -> tuple[list[Mutation], str, list[str]]:
    """Return a task's mutants, why some are left out, and the changes of those."""
    if measured:
        return [], "measured, so a changed training that still reaches the bar is no hole: no mutants", []
    mutants = mutations(exercise.notebook.cells[task.answer].source)
    seconds = min(run.seconds[task.id] for run in runs)  # the first one also loads and compiles
    if seconds <= SLOW:
        return mutants, "", []
    common = [mutant for mutant in mutants if mutant.kind in COMMON]
    left_out = [mutant.change for mutant in mutants if mutant.kind not in COMMON]
    return (
        common,
        f"its check takes {seconds:.0f} s: only the {len(common)} common slips of {len(mutants)} mutants",
        left_out,
    )


def _tried(exercise: Exercise, task: Task, mutation: Mutation, runs: list[_Run], recording: dict) -> dict:
    """Run a mutant in a child process, so that nothing of it stays, and return how it ends."""
    sources = [mutation.source, *_sources_between(exercise, task)]

    def work(beat: Callable[[], None]) -> Ended:
        digest = ""
        for number, run in enumerate(runs):
            beat()
            try:
                for source in sources:
                    exec(compile(source, f"<a mutant of {task.id}>", "exec"), run.namespace)
                bundle, _ = check_run(exercise, task, run.namespace, run.hidden)
            except Exception:
                return {"end": "error" if number == 0 else "later", "shown": digest}
            if number == 0:
                verdict, digest = verdict_of(recording, bundle), _digest(bundle)
                if not verdict.right:
                    end = _kind_of_end(verdict.kind, bundle)
                    return {"end": end, "sentences": verdict.sentences, "shown": digest}
            elif share(bundle, run.reference[task.id]) < 1:
                return {"end": "later", "shown": digest}
        return {"end": "survives"}

    limit = 3 * max(run.seconds[task.id] for run in runs) + SLACK
    return in_child(work, limit)


def _digest(bundle: dict) -> str:
    return hashlib.sha256(json.dumps([bundle["shown"], bundle["error"]], sort_keys=True).encode()).hexdigest()[:16]


def _kind_of_end(verdict: str, bundle: dict) -> str:
    error = bundle["error"] or {"error": "", "message": ""}
    if error["error"] == "MemoryError" or "allocate memory" in error["message"]:
        return "memory"
    return "error" if verdict == "error" else "result"


def _sources_between(exercise: Exercise, task: Task) -> Iterator[str]:
    """Yield the given cells between a task's answer and its check: they may use the answer."""
    for cell in exercise.notebook.cells[task.answer + 1 : task.check]:
        if cell.cell_type == "code" and not (is_answer(cell) or is_check(cell) or stays_home(cell)):
            yield cell.source


def _first_line(exercise: Exercise, task: Task) -> int:
    """Return the line of the source above the first one of a task's answer; 0 in a notebook."""
    if exercise.path.suffix == ".ipynb":
        return 0
    head = re.compile(rf'# %%.*"grade_id": *"{re.escape(task.id)}"')
    lines = exercise.path.read_text(encoding="utf-8").splitlines()
    return next((line_number for line_number, line in enumerate(lines, 1) if head.match(line)), 0)


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    try:
        recordings = {recording["id"]: recording for recording in arguments["recordings"]}
        result: Any = _try_all(
            read_exercise(arguments["path"], arguments["variant"]), recordings, Path(arguments["progress"])
        )
    except RecordingError as reason:
        result = {"failure": str(reason)}
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
