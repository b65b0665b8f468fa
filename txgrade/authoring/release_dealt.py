"""`txgrade release --roster people.csv`: a notebook for each learner, of the variant that the course's secret deals."""

import copy
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txgrade import notebook_runner
from txgrade.authoring.cells import is_parameters
from txgrade.authoring.check_notebook import read_notebook
from txgrade.authoring.data import hand_out
from txgrade.authoring.deal import Deal, DealError, make_deal
from txgrade.authoring.exercise import Exercise, ExerciseError, read_exercise
from txgrade.authoring.notebooks import learner_notebook, released_name
from txgrade.authoring.release import make_recordings, need_no_answers
from txgrade.authoring.variant_proof import Varied, find_varied
from txgrade.authoring.variants import copy_of
from txgrade.records.people import Person, Roster, safe_name


@dataclass(frozen=True)
class ReleasedDealt:
    """The notebooks that were written, and how the variants are spread over the learners."""

    folder: Path
    learners: int
    numbers: Counter[int]  # learners by variant
    varied: Varied
    warnings: tuple[str, ...] = ()


def release_dealt(source: Path, out: Path, roster: Roster, secret: Path) -> ReleasedDealt:
    """Write `OUT/LEARNER/exercise_NN_name.ipynb` for everybody on the roster.

    Each variant is recorded once, however many learners have it. The same source, roster and secret give the same
    bytes, so a roster that has grown is released again.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: nothing varies, a variant is not fit for release, or a notebook there holds answers.
        DealError: somebody has no id, or a notebook there was made by another secret.
    """
    exercise = read_exercise(source)
    varied = find_varied(exercise)
    if out.resolve() == source.parent.resolve():
        raise ExerciseError(exercise.name, [f"the notebooks would be written next to their solution, in {out}"])
    if not secret.exists() and (earlier := [*out.glob(f"*/{released_name(exercise.name)}")]):
        raise DealError(
            f"no secret of the course at {secret}, but {earlier[0]} was made by one: put it back, name it with "
            f"--secret FILE, or empty {out} to deal anew"
        )
    deal = make_deal(source, secret, roster)
    by_variant: dict[int, list[Person]] = {}
    for learner in roster.people:
        _need_own(exercise, _target(out, exercise, learner), deal.mark(learner))
        by_variant.setdefault(deal.variant(learner), []).append(learner)
    warnings: list[str] = []
    for number, learners in sorted(by_variant.items()):
        warnings += _release_variant(read_exercise(source, number, dealt=True), learners, deal, out)
    numbers = Counter({number: len(learners) for number, learners in by_variant.items()})
    return ReleasedDealt(out, len(roster.people), numbers, varied, tuple(dict.fromkeys(warnings)))


def _release_variant(exercise: Exercise, learners: list[Person], deal: Deal, out: Path) -> list[str]:
    recordings, warnings = make_recordings(exercise)
    notebook = learner_notebook(exercise, recordings)
    for learner in learners:
        target = _target(out, exercise, learner)
        target.parent.mkdir(parents=True, exist_ok=True)
        notebook_runner.write_notebook(target, _marked(notebook, deal.mark(learner)))
        warnings += hand_out(exercise.data, target.parent)
    return warnings


def _target(out: Path, exercise: Exercise, learner: Person) -> Path:
    return out / safe_name(learner.label or learner.name) / released_name(exercise.name)


def _marked(notebook: Any, mark: str) -> Any:
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if is_parameters(cell):
            cell.metadata["copy"] = mark
    return notebook


def _need_own(exercise: Exercise, target: Path, mark: str) -> None:
    """Refuse to overwrite answers, or a notebook that another secret made."""
    need_no_answers(exercise, target)
    if target.exists() and copy_of(cell.metadata for cell in read_notebook(target).cells) != mark:
        raise DealError(
            f"{target} was made by another secret or for somebody else: put back the secret that made it, or remove it"
        )
