"""`with check("causal-mask") as show:` — the check cell of a task.

A check cell only calls the answer and shows what it returns. In a learner's notebook the evidence is compared with
the recordings that came with the notebook, and a verdict is displayed. In a notebook that is graded (`check.begin` has
run) nothing is decided: the evidence alone is displayed, for a judge outside this process.
"""

import contextlib
import json
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txgrade.checking.failed_cells import Failure, cells, missing_name
from txgrade.checking.inputs import Inputs, private_inputs
from txgrade.checking.operators import Operators, begin_grading, watch_threads
from txgrade.checking.plots import DATA, is_plot, picture, plot
from txgrade.checking.progress import Row, keep, now
from txgrade.checking.summary import Summary
from txgrade.checking.verdict import STUB, Verdict, caused, verdict_of
from txgrade.evidence import values
from txgrade.evidence.compare import ATOL, RTOL
from txgrade.evidence.recordings import unpack, unpack_json
from txgrade.evidence.values import MAX_SHOWN, Recorder, TooLarge, writable
from txgrade.seeds import derived_seed, kernel_seed

watch_threads()  # here, in a notebook's first cell, before an answer can start one


@dataclass
class Collection:
    """What checks hand over in the author's own process."""

    seed: int
    operators: bool
    bundles: list[dict] = field(default_factory=list)
    private_values: dict[str, list[dict]] = field(default_factory=dict)  # by task: evidence of what `private` drew


_collection: Collection | None = None


@contextlib.contextmanager
def collecting(operators: bool = False, seed: int = 0) -> Iterator[Collection]:
    """Have checks within the block draw from this seed, and collect what they show instead of displaying it."""
    global _collection
    outer, _collection = _collection, Collection(seed, operators)
    try:
        yield _collection
    finally:
        _collection = outer


class EvidenceCollector(Inputs):
    """What a check cell works with: `show(value)` adds evidence, `show.randn(…)` and the like draw inputs.

    A label (`f"n = {n}"`) tells the learner which case it is. Points make the check partial: the task's points are
    then shared out in these proportions among the values shown.
    """

    def __init__(self, seed: int, task: str, private_values: list[dict] | None = None, grading: bool = False):
        """`seed` is the grader's, or the public one; `private_values` are what `show.private` has to return."""
        super().__init__(kernel_seed(seed), task)
        self.shown: list[dict] = []
        self.drawn: list[dict] = []  # by `private`, as evidence
        self._private = private_inputs(seed, task)
        self._private_values = None if private_values is None else iter(private_values)
        self._recorder = Recorder()
        self._grading = grading

    def __call__(self, value: Any, label: str | None = None, points: int | float | None = None) -> None:
        """Show a value as it is now."""
        self._add(self._recorder(value), label, points)

    def call(
        self, function: Callable, *args: Any, label: str | None = None, points: int | float | None = None, **kwargs: Any
    ) -> None:
        """Call the function and show what it returns, or else the error that it raises; the check goes on.

        Only an empty answer, `raise NotImplementedError("your turn")`, still ends the check.
        """
        _need_points(points)
        budget = self._recorder.left
        try:
            value = self._recorder(function(*args, **kwargs))
        except Exception as exception:
            if isinstance(exception, NotImplementedError) and str(exception) == STUB:
                raise
            value, self._recorder.left = values.error(exception), budget
        self._add(value, label, points)

    def axes(
        self, axes: Any, label: str | None = None, points: int | float | None = None, *, what: tuple[str, ...] = DATA
    ) -> None:
        """Show a plot: what matplotlib's Axes, or each of a figure's, holds (see `txgrade.checking.plots.plot`).

        `what` chooses among lines, scatters, bars, images (these by default), labels, limits, scales, title and
        legend. For a grader's page the figure is also drawn.
        """
        if not is_plot(axes):
            return self(axes, label, points)
        self._add(self._recorder(plot(axes, what)), label, points)
        drawn = picture(axes) if self._grading else None
        if drawn and _collection is None:
            data, alt = drawn
            _display_raw({"image/png": data, "text/plain": "A figure"}, {"image/png": {"alt": alt}})

    def private(self, draw: Callable[[Inputs], Any]) -> Any:
        """Return `draw(private)`: values that depend on what no answer may know.

        In a notebook that is graded they come from the grader, who drew them by the same function from a seed of its
        own; here `draw` is not called. What it knows besides (the truth, data to measure on) never enters the kernel.
        At home they are drawn from the public seed. Tensors, numbers, texts, and lists, tuples and dicts of these.
        """
        if self._private_values is None:
            value = values.evidence(draw(self._private))
            self.drawn.append(value)
        else:
            value = next(self._private_values)
        return values.restored(value)

    def sketch(self, value: Tensor, size: int = 16) -> dict:
        """Return a large tensor's shape and `size` random sums over all its numbers: few, and no other tensor's."""
        flat = value.detach().double().flatten()
        random = np.random.RandomState(derived_seed(self._seed, self._task, "sketch"))
        weights = torch.from_numpy(random.standard_normal((size, len(flat)))) / max(len(flat), 1) ** 0.5
        return {"shape": list(value.shape), "sums": (weights @ flat).float()}

    def weights(self, model: Any, label: str | None = None) -> None:
        """Show a module's weights, or a state dict, for the grader to measure: at most 2 million numbers."""
        self._add(self._recorder.weights(model), label, None)

    def tokens(self, ids: Any, label: str | None = None) -> None:
        """Show token ids, one row or several, for the grader to measure."""
        self._add(self._recorder.tokens(ids), label, None)

    def _add(self, value: dict, label: str | None, points: int | float | None) -> None:
        _need_points(points)
        if len(self.shown) >= MAX_SHOWN:
            raise TooLarge(f"the check shows more than {MAX_SHOWN:,} values")
        self.shown.append({"label": label if label is None else writable(label), "value": value, "points": points})


class Check:
    """One check cell's block. It never raises: an error in it is evidence too."""

    def __init__(
        self, owner: "Checks", task: str, rtol: int | float, atol: int | float, operators: bool, namespace: dict
    ):
        self.task, self.rtol, self.atol = task, rtol, atol
        self._owner, self._namespace = owner, namespace
        self._grading = _collection is not None or owner.begun
        seed, private_values = (_collection.seed if _collection else owner.seed), None
        if _collection is None and owner.begun:
            private_values = owner.private_values.get(task, [])
        watched = operators and (_collection.operators if _collection else self._grading)
        self._seed = kernel_seed(seed)
        self._operators = Operators() if watched else None
        self._block = contextlib.ExitStack()
        self.show = EvidenceCollector(seed, task, private_values, self._grading)

    def __enter__(self) -> EvidenceCollector:
        self._block.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(derived_seed(self._seed, self.task, "torch"))
        if self._operators:
            self._block.enter_context(self._operators)
        return self.show

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: TracebackType | None) -> bool:
        self._block.close()
        if exception is not None and not isinstance(exception, (Exception, SystemExit)):
            return False  # the learner pressed stop
        error = None
        if exception is not None:
            error = {key: text for key, text in values.error(exception).items() if key != "kind"}
        bundle = {
            "task": self.task,
            "seed": self._seed,
            "rtol": self.rtol,
            "atol": self.atol,
            "shown": self.show.shown,
            "error": error,
            "operators": self._names(),
        }
        if _collection is not None:
            _collection.bundles.append(bundle)
            _collection.private_values[self.task] = self.show.drawn
        elif self._grading:
            _display_raw({values.MIME: bundle})
        else:
            cause = cells.cause(missing_name(error))
            if error is not None:
                error |= _where(trace, self._namespace)
                error["message"] += self._owner.remedy(
                    missing_name(error), bool(self.show.shown) or "function" in error
                )
            _display(self._owner.verdict(bundle, cause))
        return True

    def _names(self) -> list[str] | None:
        if self._operators is None:
            return None
        names = sorted(name for name in self._operators.names if values.OPERATOR.fullmatch(name))
        return names[: values.MAX_OPERATORS]


class Checks:
    """`check`: the checks of the notebook's exercise, and their verdicts so far."""

    def __init__(self) -> None:
        self._exercise: dict | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._begun: tuple[int, dict] | None = None

    def __call__(
        self, task: str, *, rtol: int | float = RTOL, atol: int | float = ATOL, operators: bool = True
    ) -> Check:
        """Check the answer to a task: `with check("causal-mask") as show: show(causal_mask(3))`.

        Floats agree where |yours - expected| <= atol + rtol * |expected|. In grading mode the block also notes which
        of torch's operators run, unless `operators` is False.
        """
        return Check(self, task, rtol, atol, operators, _notebook())

    def load(self, packed: str) -> None:
        """Take in the recordings that came with the notebook. Says so where they are damaged."""
        self._exercise, self._verdicts = None, {}
        try:
            self._exercise = unpack(packed)
        except ValueError as reason:
            print(reason)

    @property
    def exercise(self) -> dict | None:
        """The recordings in use: those of the notebook, or else the file that `$TXGRADE_RECORDINGS` names."""
        path = os.environ.get("TXGRADE_RECORDINGS")
        if self._exercise is None and path:
            self._exercise = json.loads(Path(path).read_text(encoding="utf-8"))
        return self._exercise

    def begin(self, seed: int, private_values: str | None = None) -> None:
        """Grade this notebook: take its seed, and what the grader has drawn for its checks, only once."""
        if self._begun is None:
            self._begun = seed, unpack_json(private_values) if private_values else {}
            begin_grading()

    @property
    def begun(self) -> bool:
        """Whether the notebook is graded: checks then show evidence, and decide nothing."""
        return self._begun is not None

    @property
    def private_values(self) -> dict[str, list[dict]]:
        """What the grader has drawn for each task's `show.private`, as evidence."""
        return self._begun[1] if self._begun else {}

    @property
    def seed(self) -> int:
        if self._begun:
            return self._begun[0]
        return self.exercise["seed"] if self.exercise else 0

    def verdict(self, bundle: dict, cause: tuple[str, Failure] | None = None) -> Verdict:
        """Judge a bundle by the recordings, and keep the result in the learner's progress.

        `cause` is a name that the check uses, and how the last run of its cell ended, where it failed.
        """
        task = bundle["task"]
        if self.exercise is None:
            return Verdict(
                task,
                task,
                "unknown",
                lines=("The notebook's recordings are not loaded: choose *Run All Cells*, which begins at the top.",),
            )
        recording = next((entry for entry in self.exercise["tasks"] if entry["id"] == task), None)
        if recording is None:
            return Verdict(
                task,
                task,
                "unknown",
                lines=(f"This notebook has no task `{task}`: open a fresh copy of the exercise.",),
            )
        try:
            verdict = verdict_of(recording, bundle)
            verdict = caused(verdict, *cause, missing=bool(missing_name(bundle["error"]))) if cause else verdict
        except Exception as reason:  # a value of the learner's that no one foresaw must not end Run All
            return Verdict(
                task,
                recording["title"],
                "unknown",
                0,
                recording["points"],
                (f"The check itself failed: {type(reason).__name__}: {reason}",),
            )
        self._verdicts[task] = verdict
        notice = self._save(verdict)
        return Verdict(**vars(verdict) | {"lines": (*verdict.lines, notice)}) if notice else verdict

    def remedy(self, name: str, inside: bool) -> str:
        """Return which cell to run if a name is missing, as after a restart; nothing if that is the answer's own fault.

        `inside` says that the answer had begun: then only a name that another task's answer defines is told.
        """
        for task in self.exercise["tasks"] if name and self.exercise else ():
            if name in task.get("names", ()):
                return f": run the cell of your answer to *{task['title']}*, then this one"
        return ": run the cells above this one, from the top" if name and not inside else ""

    def summary(self) -> Summary | None:
        """Return the points so far, and what to do next: the end of an exercise."""
        if self.begun or _collection is not None:
            return None
        return Summary(self.exercise, self._verdicts, learner=self._exercise is not None)

    def _save(self, verdict: Verdict) -> str:
        exercise = self.exercise
        if exercise is None:
            return ""
        name, rows = exercise["exercise"], []
        for entry in (*exercise["tasks"], *exercise.get("written", ())):
            mine = entry["id"] == verdict.task
            tried = mine and verdict.kind != "unanswered"
            if entry.get("measured") or entry not in exercise["tasks"]:  # others give its points
                handed_over = mine and verdict.kind == "gathered"
                rows.append(Row(name, entry["title"], entry["id"], 0, 0, now() if handed_over else None))
                continue
            rows.append(
                Row(
                    name,
                    entry["title"],
                    entry["id"],
                    verdict.points if mine else 0,
                    entry["points"],
                    now() if tried else None,
                )
            )
        return keep(rows)


def _need_points(points: int | float | None) -> None:
    if points is not None and (isinstance(points, bool) or not 0 < points < float("inf")):
        raise ValueError(f"show(…, points={points}): give a number above 0")


def _notebook() -> dict:
    """Return the names of the notebook that called."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    return frame.f_globals


def _where(trace: TracebackType | None, namespace: dict) -> dict:
    """Return the innermost line of the notebook that an error came from: of the learner's code, not of a library's."""
    location: dict = {}
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals is namespace:
            code = frame.f_code
            location = {"line": trace.tb_lineno, "code": linecache.getline(code.co_filename, trace.tb_lineno).strip()}
            if code.co_name != "<module>":
                location["function"] = code.co_qualname
        trace = trace.tb_next
    return location


def _display(value: object) -> None:
    if _in_notebook():
        from IPython.display import display

        display(value)
    else:
        print(value)


def _display_raw(data: dict, metadata: dict | None = None) -> None:
    if _in_notebook():
        from IPython.display import display

        display(data, raw=True, metadata=metadata)
    else:
        print(json.dumps(data))


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


check = Checks()
