"""The page that a learner reads about a submission."""

import base64
import binascii
import json
import os
import re
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from txgrade.authoring.assignment import Assignment
from txgrade.authoring.notebooks import released_name
from txgrade.checking.verdict import side_by_side
from txgrade.files import Folder
from txgrade.pages.page import ISOLATION, MAX_LINE, MAX_NAME, cut, key_of, page
from txgrade.pages.prose import hints, prose, sentence, untitled
from txgrade.records.changes import PENALTY
from txgrade.records.history import History
from txgrade.records.lateness import UNKNOWN, describe_deadline
from txgrade.records.result import VERDICTS, Note, Result, TaskResult
from txgrade.submitting.notebook import STATUSES
from txgrade.text import markup, minute, number, plural

HEAD = 500  # characters of a page that hold its key
MAX_PIXELS = 20_000_000  # of a figure

LOOKS = {  # verdict: symbol, and the tone of its words
    "right": ("✓", "right"),
    "partial": ("◐", "wrong"),
    "mistake": ("✗", "wrong"),
    "wrong": ("✗", "wrong"),
    "error": ("✗", "wrong"),
    "unanswered": ("○", "idle"),
    "missing": ("○", "idle"),
    "timeout": ("✗", "wrong"),
    "stopped": ("○", "idle"),
    "invalid": ("✗", "wrong"),
    "pending": ("…", "wait"),
    "reviewed": ("✎", "wait"),
}
UNSHOWN = (
    "late",
    UNKNOWN,
    "not graded",
    "seeds disagree",
    "call in hidden tests",
    "invalid evidence",
)  # to a learner: shown elsewhere, or not at all
UNTIMED = {
    "late": "Marked as submitted late, but without a time: no late penalty.",
    UNKNOWN: "Time of submission unknown: no late penalty.",
}
NO_HISTORY = History()
DEFAULT_REMEDY = (
    "Open your notebook in JupyterLab, check that it runs from top to bottom, save it, and submit it again."
)


def is_page_of(path: Path, result: Result, assignment: Assignment, history: History = NO_HISTORY) -> bool:
    """Return whether a plain file, not a link, is the page that `feedback_page` would make."""
    try:
        with Folder(path.parent, follow=False) as folder, os.fdopen(folder.file(path.name), encoding="utf-8") as file:
            return _key(result, assignment, history) in file.read(HEAD)
    except (OSError, ValueError):
        return False


def _key(result: Result, assignment: Assignment, history: History) -> str:
    data = [json.dumps(part, sort_keys=True) for part in (result.data() | {"junit": ""}, asdict(history))]
    return key_of(*data, assignment.hash, str(assignment.path))


def feedback_page(result: Result, assignment: Assignment, history: History = NO_HISTORY) -> str:
    """Return the page for a learner: one HTML file."""
    tasks = [_task(task, assignment, history) | _history(task, history) for task in result.tasks]
    late = next((_note(note) for note in result.notes if note.kind == "late"), "") if result.penalty else ""
    untimed = [UNTIMED[note.kind] for note in result.notes if note.kind in UNTIMED and not result.submitted]
    return page(
        "feedback.html",
        {
            "key": _key(result, assignment, history),
            "penalty_change": _changed(PENALTY, history),
            "result": result,
            "assignment": assignment,
            "tasks": tasks,
            "late": late,
            "untimed": untimed[0] if untimed else "",
            "share": round(100 * result.score / result.max_score) if result.max_score else 0,
            "pending": sum(task.max_points for task in result.tasks if task.verdict == "pending"),
            "remedy": STATUSES.get(result.status, DEFAULT_REMEDY),
            "notes": _notes(result),
            "submitted": minute(result.submitted),
            "due": describe_deadline(assignment.due) if assignment.due else "",
            "next": _next(result, assignment),
            "isolation": ISOLATION.get(result.isolation, result.isolation),
        },
    )


def _task(task: TaskResult, assignment: Assignment, history: History) -> dict[str, Any]:
    symbol, tone = LOOKS[task.verdict]
    words = VERDICTS[task.verdict]
    if task.verdict == "reviewed":
        tone = "right" if task.points >= task.max_points else "wait"
    graded_task = assignment.task(task.id)
    if _is_better_alone(task):
        words += " when run by itself"
    heading, prompt = untitled(graded_task.prompt) if graded_task else ("", "")
    return {
        "title": task.title or task.id,
        "symbol": symbol,
        "tone": tone,
        "words": words,
        "points": task.points,
        "max_points": task.max_points,
        "meta": " · ".join(_meta(heading)),
        "alone": _alone(task),
        "lines": [_line(line, task.sentences) for line in _lines(task, history)],
        "matrices": _matrices(task),
        "parts": () if task.verdict == "right" else task.parts,
        "answer": _answer(task),
        "scored": any(part.max_points for part in task.parts),
        "texts": [cut(output["text"]) for output in task.outputs if output.get("text")],
        "figures": [(png, _alt(output.get("alt"))) for output in task.outputs if (png := _figure(output.get("png")))],
        "prompt": Markup(prose(prompt)) if prompt.strip() else "",
    }


def _history(task: TaskResult, history: History) -> dict[str, Any]:
    """Return what has changed of a task since an earlier page, and the answers to requests about it.

    The reason of a change is left out where the page says it anyway: it is the answer to a request, or what a person
    said of the task.
    """
    decisions = [decision for decision in history.decisions if decision.task == task.id]
    changed = _changed(task.id, history, reason=" ".join(task.lines))
    decided = [(number(decision.old), number(decision.new)) for decision in decisions]
    return {
        "changed": None if changed and (changed["old"], changed["new"]) in decided else changed,
        "requests": [
            {
                "words": f"kept at {number(decision.old)}"
                if decision.new == decision.old
                else f"changed from {number(decision.old)} to {number(decision.new)}",
                "request": cut(decision.request, MAX_LINE),
                "reason": Markup(markup(cut(decision.reason, MAX_LINE))),
                "time": minute(decision.time),
            }
            for decision in decisions
        ],
    }


def _lines(task: TaskResult, history: History) -> list[str]:
    """Return what a page says of a task, without what the answer to a request says."""
    reasons = [decision.reason for decision in history.decisions if decision.task == task.id]
    explained = {line for reason in reasons for line in reason.splitlines()} if task.verdict == "reviewed" else ()
    return [line for line in task.lines if line not in explained]


def _changed(id: str, history: History, reason: str = "") -> dict[str, Any] | None:
    """Return the last change of a task's points, or of the late penalty."""
    change = next((change for change in reversed(history.changes) if change.task == id), None)
    if change is None:
        return None
    why = Markup(markup(cut(change.why.removesuffix(f": {reason}"), MAX_LINE)))
    return {"old": number(change.old), "new": number(change.new), "why": why, "time": minute(change.time)}


def _line(line: str, sentences: tuple[str, ...]) -> Markup:
    """Return a line of a diagnosis; dollar signs mean maths only in the author's sentences."""
    for authors in sentences:
        if line.endswith(authors):
            return Markup(markup(line.removesuffix(authors)) + sentence(authors))
    return Markup(markup(line[:MAX_LINE]))


def _meta(heading: str) -> list[str]:
    """Return difficulty and minutes from a prompt's heading, `Task 2 · Scores   ●●○○○ · 5 minutes · 2 points`."""
    level = re.search("[●○]{2,}", heading)
    minutes = re.search(r"\d+ minutes?", heading)
    words = [f"difficulty {level[0].count('●')} of {len(level[0])}"] if level else []
    return words + ([f"about {minutes[0]}"] if minutes else [])


def _alone(task: TaskResult) -> str:
    """Return what it means that a task earns more by itself than in the notebook."""
    if not _is_better_alone(task):
        return ""
    return (
        f"Run without the other tasks' cells, it earns {number(task.alone)} of {plural(task.max_points, 'point')}; "
        f"in your notebook, {number(task.in_sequence)}. The better one counts."
    )


def _is_better_alone(task: TaskResult) -> bool:
    return task.alone > task.in_sequence and task.verdict != "reviewed"


def _matrices(task: TaskResult) -> Markup | str:
    if task.matrices is None:
        return ""
    try:
        return Markup(side_by_side(task.matrices))
    except (KeyError, TypeError, ValueError):  # evidence is a learner's: the page is made without it
        return ""


def _answer(task: TaskResult) -> Markup | str:
    if not task.answer.strip():
        return ""
    if task.kind == "written":
        return Markup('<pre class="wrap">{}</pre>').format(cut(task.answer))
    label = f"Your answer to {cut(task.title or task.id, MAX_NAME)}"
    return Markup('<pre tabindex="0" role="region" aria-label="{}"><code>{}</code></pre>').format(
        label, _coloured(task.answer)
    )


def _coloured(source: str) -> Markup:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    # pygments' time grows with the square of the number of blank lines.
    plain = "\n".join(line.rstrip() for line in cut(source).splitlines())
    return Markup(highlight(plain, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)))


def _figure(png: Any) -> str:
    """Return a figure as base64, if it is one that a browser can draw without harm."""
    try:
        data = base64.b64decode("".join(png.split()), validate=True)
    except (AttributeError, ValueError, binascii.Error):
        return ""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return ""
    width, height = struct.unpack(">II", data[16:24])
    return base64.b64encode(data).decode() if 0 < width * height <= MAX_PIXELS else ""


def _alt(text: Any) -> str:
    """Return a figure's description, for those who cannot see it."""
    return f": {cut(text, MAX_LINE)}" if isinstance(text, str) and text.strip() else ""


def _notes(result: Result) -> list[dict[str, Any]]:
    titles = {task.id: task.title or task.id for task in result.tasks}
    shown = [note for note in result.notes if note.kind not in UNSHOWN]
    return [{"title": titles.get(note.task or "", ""), "text": _note(note), "review": note.review} for note in shown]


def _note(note: Note) -> Markup:
    text = cut(note.text, MAX_LINE)
    return Markup(markup(text if text.endswith((".", "!", "?", "…")) else f"{text}."))


def _next(result: Result, assignment: Assignment) -> dict[str, Any] | None:
    """Return the first task that is still open, a hint for it, and how to check it."""
    if result.status != "graded":
        return None
    for index, task in enumerate(result.tasks, 1):
        if task.points < task.max_points and task.verdict not in ("pending", "reviewed"):
            graded_task = assignment.task(task.id)
            hint = next(iter(hints(graded_task.prompt)), None) if graded_task else None
            return {
                "task": task,
                "index": index,
                "hint": hint and [Markup(part) for part in hint],
                "recheck": _recheck(assignment),
            }
    if any(task.verdict == "pending" for task in result.tasks):
        return {"task": None, "words": "Nothing: your written answers are still to be marked."}
    return {"task": None, "words": "Nothing is left to do. Well done."}


def _recheck(assignment: Assignment) -> Markup:
    if assignment.path.suffix == ".py":
        command = f"txgrade check exercises/{released_name(assignment.name)}"
        return Markup("Run the check below its cell as often as you like, or all of them with <code>{}</code>.").format(
            command
        )
    return Markup("After a change choose Kernel, Restart Kernel and Run All Cells, and look for errors.")
