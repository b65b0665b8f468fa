"""The last line of an exercise: its points so far."""

import html

from txlib.grading.checking.verdict import ELSEWHERE, SYMBOL, Verdict
from txlib.grading.text import number, plural


class Summary:
    """The points of an exercise in this notebook, task by task; then those that somebody else gives."""

    def __init__(self, exercise: dict | None, verdicts: dict[str, Verdict]):
        self._title = exercise["title"] if exercise else "The recordings are not loaded: run all cells"
        self.points = self.max_points = self.elsewhere = 0
        self._rows = []
        for task in exercise["tasks"] if exercise else ():
            verdict = verdicts.get(task["id"]) or Verdict(task["id"], task["title"], "unanswered")
            if task.get("measured"):
                self._add_elsewhere(task, "gathered", SYMBOL[verdict.kind])
                continue
            self._rows.append((SYMBOL[verdict.kind], task["title"], f"{number(verdict.points)} of {task['points']:g}"))
            self.points += verdict.points
            self.max_points += task["points"]
        for task in exercise.get("written", ()) if exercise else ():
            self._add_elsewhere(task, "written", SYMBOL["written"])

    def _add_elsewhere(self, task: dict, kind: str, symbol: str) -> None:
        self._rows.append((symbol, task["title"], f"{plural(task['points'], 'point')}, {ELSEWHERE[kind]}"))
        self.elsewhere += task["points"]

    def __repr__(self) -> str:
        rows = [f"  {symbol} {title}: {points}" for symbol, title, points in self._rows]
        return "\n".join([self._headline(), *rows])

    def _headline(self) -> str:
        more = f"; {self.elsewhere:g} more are given by others" if self.elsewhere else ""
        return f"{self._title}: {number(self.points)} of {plural(self.max_points, 'point')}{more}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{symbol}</td><td style='text-align: left'>{html.escape(title)}</td><td>{points}</td></tr>"
            for symbol, title, points in self._rows
        )
        return f"<table><caption><strong>{html.escape(self._headline())}</strong></caption>{rows}</table>"
