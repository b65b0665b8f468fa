"""The end of an exercise: its points so far, and what to do next."""

import html
import os
from importlib.metadata import entry_points
from pathlib import Path

from txgrade.checking.verdict import DEFERRED, SYMBOL, Verdict
from txgrade.text import markup, number, plural, titled


def score(points: int | float, best: int | float, deferred: int | float) -> str:
    """Return an exercise's points so far, and how many others give: `2 of 5 points; 4 more are given by others`."""
    more = f"; {deferred:g} more {'is' if deferred == 1 else 'are'} given by others" if deferred else ""
    return f"{number(points)} of {plural(best, 'point')}{more}"


class Summary:
    """The points of an exercise in this notebook, task by task; then those that others give.

    In a learner's notebook it ends with the next step, the worked solution as soon as a task has been tried, and how to
    hand in.
    """

    def __init__(self, exercise: dict | None, verdicts: dict[str, Verdict], learner: bool = False):
        self._next = next_steps(exercise["exercise"]) if learner and exercise else []
        tried = any(verdict.kind != "unanswered" for verdict in verdicts.values())
        self._solution = worked_solution(exercise["exercise"]) if learner and exercise and tried else None
        self._hand_in = learner
        self._title = exercise["title"] if exercise else "The recordings are not loaded: run all cells"
        self.points: int | float = 0
        self.max_points: int | float = 0
        self.deferred: int | float = 0
        self._rows = []
        for task in exercise["tasks"] if exercise else ():
            verdict = verdicts.get(task["id"]) or Verdict(task["id"], task["title"], "unanswered")
            if task.get("measured"):
                self._add_deferred(task, "gathered", SYMBOL[verdict.kind])
                continue
            self._rows.append((SYMBOL[verdict.kind], task["title"], f"{number(verdict.points)} of {task['points']:g}"))
            self.points += verdict.points
            self.max_points += task["points"]
        for task in exercise.get("written", ()) if exercise else ():
            self._add_deferred(task, "written", SYMBOL["written"])

    def _add_deferred(self, task: dict, kind: str, symbol: str) -> None:
        self._rows.append((symbol, task["title"], f"{plural(task['points'], 'point')}, {DEFERRED[kind]}"))
        self.deferred += task["points"]

    def __repr__(self) -> str:
        rows = [f"  {symbol} {titled(title, points)}" for symbol, title, points in self._rows]
        then = [f"Next: {title}" for title, _ in self._next[:1]]
        then += [f"To compare: {self._solution}"] if self._solution else []
        return "\n".join([self._headline(), *rows, *then, *([hand_in()] if self._hand_in else [])])

    def _headline(self) -> str:
        return f"{self._title}: {score(self.points, self.max_points, self.deferred)}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{symbol}</td><td style='text-align: left'>{html.escape(title)}</td><td>{points}</td></tr>"
            for symbol, title, points in self._rows
        )
        head = "<tr><th></th><th scope='col' style='text-align: left'>Task</th><th scope='col'>Points</th></tr>"
        table = f"<table><caption><strong>{html.escape(self._headline())}</strong></caption>{head}{rows}</table>"
        if self._next:
            links = (f"<a href='{html.escape(path)}'>{html.escape(title)}</a>" for title, path in self._next)
            table += f"<p><strong>Next:</strong> {' · '.join(links)}</p>"
        if self._solution:
            table += "<p><strong>To compare</strong>, when you have tried what you want to try: "
            table += f"<a href='{html.escape(self._solution)}'>a worked solution</a></p>"
        return table + (f"<p>{markup(hand_in())}</p>" if self._hand_in else "")


def next_steps(exercise: str) -> list[tuple[str, str]]:
    """Return titles and paths of where to go after an exercise, as seen from its folder; the course knows them.

    A course names its function in the entry point group `txgrade.next_steps`.
    """
    return [step for hook in entry_points(group="txgrade.next_steps") for step in hook.load()(exercise)]


def worked_solution(exercise: str) -> str | None:
    """Return the path of an exercise's executed solution, as seen from the exercise's folder, unless it is withheld."""
    path = Path("../solutions", f"{exercise}.ipynb")
    return path.as_posix() if path.is_file() else None


def hand_in() -> str:
    """Return how to hand this notebook in."""
    named = os.environ.get("TXGRADE_SUBMIT_TO")
    how = "`%submit`" if named else "`%submit --to FOLDER`, with the folder that your instructor names,"
    return f"To hand it in: save (Ctrl+S), then run {how} in a new cell below."
