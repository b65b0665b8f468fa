"""The proof of all variants of an exercise, `txgrade validate --variants`: each is sound, and none answers another."""

import ast
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txgrade.authoring.exercise import Exercise, ExerciseError, Task, read_exercise
from txgrade.authoring.record import RecordingError, check_run, in_fresh_process, record_evidence, reference_names
from txgrade.authoring.validate import evidence_reports
from txgrade.authoring.variants import Variants
from txgrade.evidence.recordings import first_difference

SEEDS = (1, 2)  # beside each variant's public one
LONGEST = 3600  # seconds that comparing all answers may take
NOTHING_VARIES = (
    "nothing in it varies, so there is no variant of it. Say what may vary in a cell tagged `variant`, e.g. "
    "WINDOW = variant(8, 12, 16): see docs/exercises.md, Variants"
)


@dataclass(frozen=True)
class Varied:
    """Which tasks' answers depend on what varies."""

    variants: Variants
    tasks: dict[str, tuple[int, ...]]  # by task: the choices that change its answer
    only_words: tuple[str, ...]  # names that change no answer, only texts and inputs

    @property
    def answers(self) -> int:
        """How many variants have different right answers."""
        deciding = {index for indices in self.tasks.values() for index in indices}
        return math.prod(len(self.variants.choices[index].options) for index in deciding)

    def __str__(self) -> str:
        words = f"{self.variants.count} variants"
        if self.answers < self.variants.count:
            words += f", {self.answers} of them with different answers ({'; '.join(self.only_words)}: texts only)"
        return f"{words}; tasks that vary: {', '.join(self.tasks) or 'none'}"


def find_varied(exercise: Exercise) -> Varied:
    """Return which tasks' answers depend on what varies in an exercise, by the solutions in its source.

    Raises:
        ExerciseError: nothing varies, or a variant can't be read.
    """
    variants = exercise.variants
    if variants.count == 1:
        raise ExerciseError(exercise.name, [NOTHING_VARIES])
    tasks: dict[str, tuple[int, ...]] = {}
    only_words = []
    for index, choice in enumerate(variants.choices):
        answers = [_answers(read_exercise(exercise.path, number)) for number in _with_one(variants, index)]
        ids = dict.fromkeys(id for in_variant in answers for id in in_variant)
        changed = [id for id in ids if len({in_variant.get(id) for in_variant in answers}) > 1]
        tasks |= {id: (*tasks.get(id, ()), index) for id in changed}
        only_words += [] if changed else [", ".join(choice.names)]
    return Varied(variants, tasks, tuple(only_words))


def _with_one(variants: Variants, index: int) -> list[int]:
    """Return the variants that have the first of everything but of one choice."""
    first = [0] * len(variants.choices)
    options = range(len(variants.choices[index].options))
    return [variants.number((*first[:index], option, *first[index + 1 :])) for option in options]


def _answers(exercise: Exercise) -> dict[str, str]:
    """Return the solutions by task, without comments; written answers don't vary, unless they are in a pool."""
    solutions = {task.id: ast.dump(ast.parse(exercise.notebook.cells[task.answer].source)) for task in exercise.tasks}
    return solutions | {written.id: "" for written in exercise.written}


@dataclass(frozen=True)
class VariantProof:
    """What was found of all variants."""

    varied: Varied
    problems: tuple[str, ...]


def prove_variants(
    source: Path | str, on_variant: Callable[[int, str], None] = lambda number, words: None
) -> VariantProof:
    """Prove every variant of an exercise: its reference and alternatives are right, each known mistake is caught.

    In a variant, the right answer of every other one is wrong, in each task that varies. `on_variant` is called for
    each, with its number and what it has.

    Raises:
        ExerciseError: nothing varies, or the source's form is wrong.
    """
    exercise = read_exercise(source)
    varied = find_varied(exercise)
    problems = []
    for number in range(varied.variants.count):
        words = varied.variants.words(number)
        on_variant(number, words)
        problems += [f"variant {number} ({words}): {line}" for line in _evidence(source, number)]
    if not problems:
        try:
            problems += in_fresh_process("txgrade.authoring.variant_proof", source, {}, timeout=LONGEST)
        except RecordingError as reason:
            problems.append(str(reason))
    return VariantProof(varied, tuple(problems))


def _evidence(source: Path | str, number: int) -> list[str]:
    exercise = read_exercise(source, number)
    try:
        result = record_evidence(exercise.path, [exercise.seed], sorted({exercise.seed, *SEEDS}), variant=number)
    except RecordingError as reason:
        return [f"the reference fails: {reason}"]
    reports = evidence_reports(exercise, result)
    return [f"task {report.task}: {problem}" for report in reports for problem in report.problems]


def answers_in_other_variants(exercise: Exercise) -> list[str]:
    """Return where the right answer of a variant is right in another one, a line each."""
    varied = find_varied(exercise)
    problems = []
    for id, indices in varied.tasks.items():
        combinations = [_number(varied.variants, indices, options) for options in _options(varied.variants, indices)]
        versions = {number: read_exercise(exercise.path, number) for number in combinations}
        holding = {number: version for number, version in versions.items() if id in map(_id, version.tasks)}
        for seed in SEEDS:
            runs = {number: _Run(version, version.task(id), seed) for number, version in holding.items()}
            for one, other in itertools.permutations(runs, 2):
                if runs[one].accepts(runs[other].answer):
                    problems.append(
                        f"task {id}: on seed {seed}, the answer of variant {other} ({varied.variants.words(other)}) "
                        f"is right in variant {one} ({varied.variants.words(one)}) too"
                    )
    return problems


def _options(variants: Variants, indices: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(len(variants.choices[index].options)) for index in indices))


def _number(variants: Variants, indices: tuple[int, ...], options: tuple[int, ...]) -> int:
    """Return the variant that has these options of these choices, and else the first of everything."""
    chosen = dict(zip(indices, options, strict=True))
    return variants.number(tuple(chosen.get(index, 0) for index in range(len(variants.choices))))


def _id(task: Task) -> str:
    return task.id


class _Run:
    """The reference of a variant on one seed, and a task's check in it."""

    def __init__(self, exercise: Exercise, task: Task, seed: int):
        self.exercise, self.task = exercise, task
        self.answer = exercise.notebook.cells[task.answer].source
        self.names = reference_names(exercise, seed)
        self.expected, _ = check_run(exercise, task, self.names, hidden=True)

    def accepts(self, answer: str) -> bool:
        """Return whether another solution cell is right here."""
        names = dict(self.names)
        try:
            exec(compile(answer, "<answer of another variant>", "exec"), names)
        except Exception:  # it does not even run here
            return False
        shown, _ = check_run(self.exercise, self.task, names, hidden=True)
        return first_difference(shown, self.expected) is None


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    try:
        result: Any = answers_in_other_variants(read_exercise(arguments["path"]))
    except RecordingError as reason:
        result = {"failure": str(reason)}
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
