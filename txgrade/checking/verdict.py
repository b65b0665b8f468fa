"""The verdict on one answer: right, or what differs, in the words a learner reads."""

import html
import re
from dataclasses import dataclass, replace

import numpy as np

from txgrade.checking.failed_cells import Failure
from txgrade.evidence.compare import NAMES, differing, name, spell
from txgrade.evidence.mistakes import exact_mistake, mistakes_by_result
from txgrade.evidence.recordings import Comparison, compared
from txgrade.evidence.shapes import slip
from txgrade.text import markup, number, plural, titled

MIME = "application/vnd.txgrade.verdict+json"
STUB = "your turn"  # what the stub of a task raises: NotImplementedError("your turn")
SYMBOL = {
    "right": "✓",
    "partial": "◐",
    "mistake": "✗",
    "wrong": "✗",
    "error": "✗",
    "unanswered": "○",
    "unknown": "?",
    "gathered": "→",
    "written": "✎",
}
HEADLINE = {
    "right": "right",
    "partial": "partly right",
    "mistake": "not yet",
    "wrong": "not yet",
    "error": "not yet",
    "unanswered": "not yet answered",
    "unknown": "can't be checked",
    "gathered": "ready to be measured",
    "written": "marked by a person",
}
DEFERRED = {"gathered": "measured by the grader", "written": "marked by a person"}  # who gives the points
# The word and the symbol say it too.
COLOUR = {
    "✓": "#2a9d5c",
    "◐": "#b8860b",
    "✗": "#d55e00",
    "○": "#888888",
    "?": "#888888",
    "→": "#0072b2",
    "✎": "#0072b2",
}
MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError", "ArrayMemoryError", "_ArrayMemoryError")
NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Unable to allocate", re.IGNORECASE)
SMALL = 8  # rows and columns of a matrix that is shown side by side


@dataclass(frozen=True)
class Verdict:
    """What a check says.

    `kind` is right, partial, mistake (a known one), wrong, error, unanswered or unknown; or, where no check can tell,
    gathered (the grader measures what was shown) or written (a person marks it).
    """

    task: str
    title: str
    kind: str
    points: int | float = 0
    max_points: int | float = 0
    lines: tuple[str, ...] = ()  # markdown: `code` and *emphasis*
    matrices: tuple[dict, dict] | None = None  # the answer's evidence and the expected, where they are small
    known: bool = False  # one known mistake explains all of it: the first line is its author's sentence
    sentences: tuple[str, ...] = ()  # of the author's, all that apply
    deferred: bool = False  # whether others give the points: the grader's measure, or a person

    @property
    def right(self) -> bool:
        return self.kind == "right"

    def data(self) -> dict:
        """Return the verdict for programs: what `txgrade check` reads."""
        return {
            "task": self.task,
            "title": self.title,
            "kind": self.kind,
            "points": self.points,
            "max_points": self.max_points,
            "lines": list(self.lines),
            "known": self.known,
            "deferred": self.deferred,
        }

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *(f"  {line}" for line in self.lines)])

    def _headline(self) -> str:
        points = f" ({number(self.points)} of {plural(self.max_points, 'point')})" if self.max_points else ""
        if self.kind in DEFERRED:
            points = f" ({plural(self.max_points, 'point')})"
        return f"{SYMBOL[self.kind]} {titled(self.title or self.task, HEADLINE[self.kind])}{points}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict:
        return {"text/plain": repr(self), "text/html": self.html(), MIME: self.data()}

    def html(self) -> str:
        """Return one block that inherits the page's colours: readable in a light and in a dark theme."""
        colour = COLOUR[SYMBOL[self.kind]]
        lines = "".join(f'<p style="margin: 0.3em 0 0 0">{markup(line)}</p>' for line in self.lines)
        return (
            f'<div role="status" style="border-left: 4px solid {colour}; padding: 0.3em 0.8em">'
            f"<strong>{html.escape(self._headline())}</strong>{lines}"
            f"{side_by_side(self.matrices) if self.matrices else ''}</div>"
        )


def verdict_of(recording: dict, bundle: dict, comparison: Comparison | None = None) -> Verdict:
    """Return the verdict on a task's bundle by the task's recording (see `txgrade.evidence.recordings`).

    `comparison` is the bundle's with the recording's reference, if it was made already.
    """
    task, title, points = recording["id"], recording["title"], recording["points"]
    reference = recording["reference"]
    if recording.get("measured"):
        kind, lines = ("unanswered", _stub_lines(bundle)) if is_stub(bundle) else _gathered(recording, bundle)
        return Verdict(task, title, kind, 0, points, lines, deferred=True)
    comparison = comparison or compared(bundle, reference)
    earned, differs = comparison.share, comparison.differs
    if earned == 1 or differs is None:
        return Verdict(task, title, "right", points, points)
    if is_stub(bundle) and not earned:
        return Verdict(task, title, "unanswered", 0, points, _stub_lines(bundle))
    mistake = exact_mistake(bundle, recording)
    by_result = {} if mistake else mistakes_by_result(bundle, recording, comparison)
    if mistake:
        lines = (mistake, *_difference(bundle, reference, differs))
    else:
        lines = _several(bundle, reference, comparison, by_result)
    if earned:
        right = f"{comparison.right} of {len(comparison.parts)} results are right."
        lines = (*lines[:1], right, *lines[1:]) if mistake else (right, *lines)
    kind = "partial" if earned else "mistake" if mistake or by_result else "wrong"
    if kind == "wrong" and bundle["error"] and differs[0] >= len(bundle["shown"]):
        kind = "error"
    sentences = (mistake,) if mistake else tuple(by_result)
    matrices = _matrices(bundle, reference, differs[0])
    return Verdict(task, title, kind, earned * points, points, lines, matrices, bool(mistake), sentences)


def caused(verdict: Verdict, name: str, failure: Failure, missing: bool) -> Verdict:
    """Return the verdict for a check whose name's cell failed on its last run; `missing`: the name does not exist."""
    sentence = failure.words(f"`{name}`")
    if missing:
        return replace(verdict, kind="error", lines=(sentence, "So there is nothing to check yet."))
    older = (
        "None of it ran, so this checks an older version."
        if failure.before
        else ("The lines below that one did not run.")
    )
    if verdict.kind == "unanswered":  # the older version is the empty stub
        return replace(verdict, kind="error", lines=(sentence, older))
    return replace(verdict, lines=(sentence, older, *verdict.lines))


def _several(bundle: dict, reference: dict, comparison: Comparison, by_result: dict[str, tuple]) -> tuple[str, ...]:
    """Return the lines where no known mistake explains everything: which results show one, and what else is wrong."""
    lines = tuple(f"{_results(reference, indices)}: {sentence}" for sentence, indices in by_result.items())
    explained = {index for indices in by_result.values() for index in indices}
    unexplained = next((difference for difference in comparison.differences if difference[0] not in explained), None)
    if unexplained is None:
        return lines
    lines_of_rest = (*_difference(bundle, reference, unexplained), *_slip(bundle, reference, unexplained[0]))
    if not by_result:
        return lines_of_rest
    another = "There is another mistake" if len(by_result) == 1 else "There is one more mistake"
    return (*lines, f"{another}. {lines_of_rest[0]}", *lines_of_rest[1:])


def _difference(bundle: dict, reference: dict, difference: tuple[int, str]) -> tuple[str, ...]:
    """Return what differs in one result, or why there is none."""
    index, what = difference
    if bundle["error"] and index >= len(bundle["shown"]):
        return _stub_lines(bundle) if is_stub(bundle) else _error_lines(bundle)
    return (_sentence(reference, index, what),)


def _slip(bundle: dict, reference: dict, index: int) -> tuple[str, ...]:
    """Return the usual slip that one result looks like, where it looks like one."""
    if not _both(bundle, reference, index):
        return ()
    yours, expected = (shown["shown"][index]["value"] for shown in (bundle, reference))
    sentence = slip(yours, expected, reference["rtol"], reference["atol"])
    return (sentence,) if sentence else ()


def _both(bundle: dict, reference: dict, index: int) -> bool:
    """Return whether both show a result of this number."""
    return index < min(len(bundle["shown"]), len(reference["shown"]))


def _gathered(recording: dict, bundle: dict) -> tuple[str, tuple[str, ...]]:
    """Return what can be said of a measured task without its measure: whether there is something to measure."""
    shown, wanted = bundle["shown"], recording["reference"]["shown"]
    if bundle["error"]:
        return "error", _error_lines(bundle)
    for index, (yours, expected) in enumerate(zip(shown, wanted, strict=False)):
        if yours["value"]["kind"] != expected["value"]["kind"]:
            sentence = f"expected {NAMES[expected['value']['kind']]}, yours is {name(yours['value'])}"
            return "wrong", (_sentence(recording["reference"], index, sentence),)
    sentence = "Your result is complete. The grader measures how good it is, on data that is not in this notebook."
    return "gathered", (sentence,)


def is_stub(bundle: dict) -> bool:
    """Return whether the answer is still the empty stub."""
    error = bundle["error"]
    return bool(error) and error["error"] == "NotImplementedError" and error["message"] == STUB


def side_by_side(matrices: tuple[dict, dict]) -> str:
    """Return an answer's matrix and the expected one as HTML; what differs is bold and underlined."""
    yours, expected = matrices
    wrong = set(differing(yours["values"], expected["values"]))
    tables = (_matrix("expected", expected, set()), _matrix("yours", yours, wrong))
    return f'<div style="display: flex; gap: 2em; margin-top: 0.5em">{"".join(tables)}</div>'


def _stub_lines(bundle: dict) -> tuple[str, ...]:
    unfilled = bundle["error"].get("function")
    return (
        (
            f"`{unfilled}` still says `raise NotImplementedError`: write your answer there, run its cell, then run "
            "this one.",
        )
        if unfilled
        else ()
    )


def _error_lines(bundle: dict) -> tuple[str, ...]:
    error = bundle["error"]
    lines: tuple[str, ...] = (f"Your answer raised `{error['error']}`: {error['message']}".rstrip(": "),)
    if error["error"] in MEMORY_ERRORS or NO_MEMORY.search(error["message"]):
        lines = (
            "Your answer asked for more memory than there is. Does it make a tensor with a row and a column for each "
            "position, n × n, where n is large?",
        )
    if error.get("line"):
        inside = f"In `{error['function']}`, line" if error.get("function") else "In this check, line"
        lines += (f"{inside} {error['line']}: `{error['code']}`",)
    return lines


def _sentence(reference: dict, index: int, difference: str) -> str:
    return f"{_which(reference, index)}: {difference}{'' if difference.endswith('?') else '.'}"


def _which(reference: dict, index: int) -> str:
    """Return which of the shown values: `Result 2 of 3 (n = 5)`."""
    shown = reference["shown"]
    if index >= len(shown):
        return "In this check"
    label = shown[index].get("label")
    number = f"Result {index + 1} of {len(shown)}" if len(shown) > 1 else "Your result"
    return f"{number} ({label})" if label else number


def _results(reference: dict, indices: tuple[int, ...]) -> str:
    """Several of the shown values: `Results 1, 2 and 4 of 5`."""
    if len(indices) == 1:
        return _which(reference, indices[0])
    *first, last = [str(index + 1) for index in indices]
    return f"Results {', '.join(first)} and {last} of {len(reference['shown'])}"


def _matrices(bundle: dict, reference: dict, index: int) -> tuple[dict, dict] | None:
    """Return a result and the expected one, if they are small vectors or matrices of the same shape."""
    if not _both(bundle, reference, index):
        return None
    yours, expected = (shown["shown"][index]["value"] for shown in (bundle, reference))
    shape = expected.get("shape")
    if not shape or len(shape) > 2 or max(shape) > SMALL or yours.get("shape") != shape or 0 in shape:
        return None
    return None if expected["dtype"].startswith("complex") else (yours, expected)


def _matrix(caption: str, value: dict, wrong: set[int]) -> str:
    width = value["shape"][-1]
    cells = [_cell(spell(number), i in wrong) for i, number in enumerate(value["values"])]
    rows = "".join(f"<tr>{''.join(cells[i : i + width])}</tr>" for i in range(0, int(np.prod(value["shape"])), width))
    return f'<table style="font-size: smaller"><caption>{caption}</caption>{rows}</table>'


def _cell(text: str, wrong: bool) -> str:
    number = text if text in ("True", "False") else _short(text)
    return f"<td><strong><u>{number}</u></strong></td>" if wrong else f"<td>{number}</td>"


def _short(text: str) -> str:
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return html.escape(text)
