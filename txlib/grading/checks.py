"""`with check("causal-mask") as show:` — the check cell of a task.

A check cell only calls the answer and shows what it returns. In a learner's notebook the evidence is compared with
the recordings that came with the notebook, and a verdict is displayed. In grading mode (`mode = "grade"`, set by
papermill) nothing is decided: the evidence alone is displayed, for a judge outside this process.
"""

import contextlib
import html
import json
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from txlib.grading import evidence
from txlib.grading.evidence import ATOL, RTOL, Recorder
from txlib.grading.inputs import Inputs, derived_seed
from txlib.grading.progress_file import Row, now, record
from txlib.grading.recordings import unpack
from txlib.grading.verdict import STUB, SYMBOL, Verdict, judge, plural

_collected: list[dict] | None = None


@contextlib.contextmanager
def collecting() -> Iterator[list[dict]]:
    """Within the block, checks hand their bundles over instead of displaying anything."""
    global _collected
    outer, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = outer


class Show(Inputs):
    """What a check cell works with: `show(value)` adds evidence, `show.randn(…)` and the like draw inputs."""

    def __init__(self, seed: int, task: str):
        super().__init__(seed, task)
        self.shown: list[dict] = []
        self._recorder = Recorder()

    def __call__(self, value: Any, label: str | None = None) -> None:
        """Show a value as it is now. The label (`f"n = {n}"`) tells the learner which case it is."""
        self.shown.append({"label": label, "value": self._recorder(value)})

    def error(self, function: Callable, *args: Any, label: str | None = None, **kwargs: Any) -> None:
        """Call the function and show the error that it raises, or else its value."""
        try:
            value = function(*args, **kwargs)
        except NotImplementedError as exception:
            if str(exception) == STUB:
                raise
            self.shown.append({"label": label, "value": evidence.error(exception)})
        except Exception as exception:
            self.shown.append({"label": label, "value": evidence.error(exception)})
        else:
            self(value, label)


class Check:
    """One check cell's block. It never raises: an error in it is evidence too."""

    def __init__(self, owner: "Checks", task: str, rtol: int | float, atol: int | float, namespace: dict):
        self.task, self.rtol, self.atol = task, rtol, atol
        self._owner, self._namespace = owner, namespace
        self._grading = _collected is not None or namespace.get("mode") == "grade"
        self._seed = namespace.get("seed", 0) if self._grading else owner.seed
        self._random = torch.random.fork_rng(devices=[])
        self.show = Show(self._seed, task)

    def __enter__(self) -> Show:
        self._random.__enter__()
        torch.manual_seed(derived_seed(self._seed, self.task, "torch"))
        return self.show

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: TracebackType | None) -> bool:
        self._random.__exit__(None, None, None)
        if exception is not None and not isinstance(exception, (Exception, SystemExit)):
            return False      # the learner pressed stop
        error = None
        if exception is not None:
            error = {key: text for key, text in evidence.error(exception).items() if key != "kind"}
        bundle = {"task": self.task, "seed": self._seed, "rtol": self.rtol, "atol": self.atol,
                  "shown": self.show.shown, "error": error}
        if _collected is not None:
            _collected.append(bundle)
        elif self._grading:
            _display_raw({evidence.MIME: bundle})
        else:
            if error is not None:
                error |= _where(trace, self._namespace)
                if error["error"] == "NameError" and not self.show.shown and "function" not in error:
                    error["message"] += ": run the cell that defines it"
            _display(self._owner.verdict(bundle))
        return True


class Checks:
    """`check`: the checks of the notebook's exercise, and their verdicts so far."""

    def __init__(self) -> None:
        self._exercise: dict | None = None
        self._verdicts: dict[str, Verdict] = {}

    def __call__(self, task: str, *, rtol: int | float = RTOL, atol: int | float = ATOL) -> Check:
        """Check the answer to a task: `with check("causal-mask") as show: show(causal_mask(3))`.

        Floats agree where |yours - expected| <= atol + rtol * |expected|.
        """
        return Check(self, task, rtol, atol, _notebook())

    def load(self, packed: str) -> None:
        """Take in the recordings that came with the notebook. Says so where they are damaged."""
        self._exercise, self._verdicts = None, {}
        try:
            self._exercise = unpack(packed)
        except ValueError as reason:
            print(reason)

    @property
    def exercise(self) -> dict | None:
        """The recordings in use: those of the notebook, or else the file that `$TXLIB_RECORDINGS` names."""
        path = os.environ.get("TXLIB_RECORDINGS")
        if self._exercise is None and path:
            self._exercise = json.loads(Path(path).read_text(encoding="utf-8"))
        return self._exercise

    @property
    def seed(self) -> int:
        return self.exercise["seed"] if self.exercise else 0

    def verdict(self, bundle: dict) -> Verdict:
        """Judge a bundle by the recordings, and keep the result in the learner's progress."""
        task = bundle["task"]
        if self.exercise is None:
            return Verdict(task, task, "unknown", lines=(
                "The notebook's recordings are not loaded: choose *Run All Cells*, which begins at the top.",))
        recording = next((each for each in self.exercise["tasks"] if each["id"] == task), None)
        if recording is None:
            return Verdict(task, task, "unknown", lines=(
                f"This notebook has no task `{task}`: open a fresh copy of the exercise.",))
        try:
            verdict = judge(recording, bundle)
        except Exception as reason:      # a value of the learner's that no one foresaw must not end Run All
            return Verdict(task, recording["title"], "unknown", 0, recording["points"],
                           (f"The check itself failed: {type(reason).__name__}: {reason}",))
        self._verdicts[task] = verdict
        notice = self._save(verdict)
        return Verdict(**vars(verdict) | {"lines": (*verdict.lines, notice)}) if notice else verdict

    def summary(self) -> "Summary | None":
        """The points so far: the last line of an exercise."""
        if _notebook().get("mode") == "grade" or _collected is not None:
            return None
        return Summary(self.exercise, self._verdicts)

    def _save(self, verdict: Verdict) -> str:
        name, rows = self.exercise["exercise"], []
        for each in self.exercise["tasks"]:
            mine = each["id"] == verdict.task
            tried = mine and verdict.kind != "unanswered"
            rows.append(Row(name, each["title"], each["id"], verdict.points if mine else 0, each["points"],
                            now() if tried else None))
        return record(rows)


class Summary:
    """The points of an exercise in this notebook, task by task."""

    def __init__(self, exercise: dict | None, verdicts: dict[str, Verdict]):
        self._title = exercise["title"] if exercise else "The recordings are not loaded: run all cells"
        self._rows = []
        for task in exercise["tasks"] if exercise else ():
            verdict = verdicts.get(task["id"]) or Verdict(task["id"], task["title"], "unanswered")
            self._rows.append((SYMBOL[verdict.kind], task["title"], verdict.points, task["points"]))
        self.points = sum(row[2] for row in self._rows)
        self.max_points = sum(row[3] for row in self._rows)

    def __repr__(self) -> str:
        rows = [f"  {symbol} {title}: {points:g} of {best:g}" for symbol, title, points, best in self._rows]
        return "\n".join([self._headline(), *rows])

    def _headline(self) -> str:
        return f"{self._title}: {self.points:g} of {plural(self.max_points, 'point')}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{symbol}</td><td style='text-align: left'>{html.escape(title)}</td>"
            f"<td>{points:g} of {best:g}</td></tr>"
            for symbol, title, points, best in self._rows
        )
        return f"<table><caption><strong>{html.escape(self._headline())}</strong></caption>{rows}</table>"


def _notebook() -> dict:
    """The names of the notebook that called: `seed` and `mode` are there when papermill runs it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    return frame.f_globals


def _where(trace: TracebackType | None, namespace: dict) -> dict:
    """The innermost line of the notebook that an error came from: of the learner's code, not of a library's."""
    place: dict = {}
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals is namespace:
            code = frame.f_code
            place = {"line": trace.tb_lineno, "code": linecache.getline(code.co_filename, trace.tb_lineno).strip()}
            if code.co_name != "<module>":
                place["function"] = code.co_qualname
        trace = trace.tb_next
    return place


def _display(value: object) -> None:
    if _in_notebook():
        from IPython.display import display

        display(value)
    else:
        print(value)


def _display_raw(data: dict) -> None:
    if _in_notebook():
        from IPython.display import display

        display(data, raw=True)
    else:
        print(json.dumps(data))


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


check = Checks()
