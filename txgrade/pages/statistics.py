"""Numbers about each task of an exercise: how difficult it was, how well it tells learners apart, and its mistakes."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from txgrade.pages.exports import csv_text, plain_number
from txgrade.records.result import Result, TaskResult

FEWEST = 10  # learners, for a correlation that says anything


@dataclass(frozen=True)
class Item:
    """What the class made of one task. Answers that wait for a person don't count yet."""

    task: str
    title: str
    max_points: int | float
    learners: int
    difficulty: float | None  # the mean fraction of its points; near 1 is easy
    discrimination: float | None  # correlation of its points with those of all other tasks; None for too few learners
    mistakes: tuple[tuple[str, int], ...]  # the author's sentences, and how often each applied


def item_statistics(results: Iterable[Result]) -> list[Item]:
    """Return the statistics of each task, in the order in which the tasks first appear."""
    graded = [result for result in results if result.status == "graded"]
    tasks = {task.id: task for result in graded for task in result.tasks}
    return [_item(task, graded) for task in tasks.values()]


def _item(task: TaskResult, graded: Sequence[Result]) -> Item:
    answers, rests = [], []
    for result in graded:
        marked = [answer for answer in result.tasks if answer.verdict != "pending"]
        for answer in marked:
            if answer.id == task.id:
                answers.append(answer)
                rests.append(float(sum(other.points for other in marked if other.id != task.id)))
    points = [float(answer.points) for answer in answers]
    most = task.max_points or 1
    mistakes = Counter(sentence for answer in answers for sentence in answer.sentences)
    return Item(
        task.id,
        task.title or task.id,
        task.max_points,
        len(answers),
        fmean(points) / most if points else None,
        correlation(points, rests) if len(points) >= FEWEST else None,
        tuple(mistakes.most_common()),
    )


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation of two rows of numbers; None if either is constant."""
    mean_x, mean_y = fmean(xs), fmean(ys)
    spread = math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))
    if spread < 1e-12:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def statistics_csv(items: Iterable[Item]) -> str:
    """Return a row per task."""
    rows = [["task", "title", "points", "learners", "difficulty", "discrimination"]]
    for item in items:
        numbers = ["" if value is None else f"{value:.3f}" for value in (item.difficulty, item.discrimination)]
        rows.append([item.task, item.title, plain_number(item.max_points), str(item.learners), *numbers])
    return csv_text(rows)


def mistakes_csv(items: Iterable[Item]) -> str:
    """Return a row per known mistake that occurred, the most frequent of each task first."""
    rows = [["task", "mistake", "count"]]
    rows += [[item.task, sentence, str(count)] for item in items for sentence, count in item.mistakes]
    return csv_text(rows)
