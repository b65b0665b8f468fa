"""What people read of a grading run: a page for each submission, and one for the whole class.

A page is one file that asks nothing of the network and runs nothing. Whatever came from a submission is text in it:
the templates escape by default, and the few pieces that are HTML are made in this module.
"""

import base64
import binascii
import re
import struct
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from txlib.grading.authoring.assignment import Assignment
from txlib.grading.checking.verdict import side_by_side
from txlib.grading.pages.prose import hints, prose, untitled
from txlib.grading.pages.similar import Similar
from txlib.grading.records.result import VERDICTS, Note, Result, TaskResult
from txlib.grading.submitting.reading import STATUSES
from txlib.grading.text import markup, plural, printable

TEMPLATES = Path(__file__).parent / "templates"
MAX_SOURCE = 20_000  # characters of an answer, or of one text output, that a page shows
MAX_LINE = 2_000  # characters of a line of a diagnosis, or of a note
MAX_NAME = 200  # characters of a name, a title or a label
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
ISOLATION = {
    "sealed": "in a sealed sandbox",
    "limits-only": "under limits of memory and time, not in a sealed sandbox",
    "none": "without a sandbox",
}
ELSE = "Open your notebook in JupyterLab, see that it runs from top to bottom, save it, and hand it in again."


def feedback_page(result: Result, assignment: Assignment) -> str:
    """The page for a learner: one HTML file."""
    tasks = [_task(task, assignment) for task in result.tasks]
    late = next((_sentence(note) for note in result.notes if note.kind == "late"), "") if result.penalty else ""
    return _page(
        "feedback.html",
        {
            "result": result,
            "assignment": assignment,
            "tasks": tasks,
            "late": late,
            "share": round(100 * result.score / result.max_score) if result.max_score else 0,
            "pending": sum(task.max_points for task in result.tasks if task.verdict == "pending"),
            "remedy": STATUSES.get(result.status, ELSE),
            "notes": _notes(result),
            "submitted": _time(result.submitted),
            "next": _next(result, assignment),
            "isolation": ISOLATION.get(result.isolation, result.isolation),
        },
    )


def summary_page(results: list[Result], assignment: Assignment, similar: Iterable[Similar] = ()) -> str:
    """The page for the instructor: one HTML file that links to the learners' pages.

    `similar` lists answers that resemble each other.
    """
    graded = [result for result in results if result.status == "graded"]
    shares = [result.score / result.max_score for result in graded if result.max_score]
    titles = {task.id: task.title or task.id for task in assignment.tasks}
    levels = Counter(result.isolation for result in graded or results)
    return _page(
        "summary.html",
        {
            "assignment": assignment,
            "count": len(results),
            "graded": len(graded),
            "full": sum(s >= 1 for s in shares),
            "median": _percent(median(shares)) if shares else "",
            "mean": _percent(fmean(shares)) if shares else "",
            "chart": _chart(shares),
            "tasks": [_class_task(task, graded) for task in assignment.tasks],
            "look": [
                (result.submission, _link(result), _reasons(result, titles))
                for result in results
                if result.needs_review
            ],
            "failed": [
                (result.submission, _link(result), result.status) for result in results if result.status != "graded"
            ],
            "similar": [_similar(each, titles) for each in similar],
            "levels": [(ISOLATION.get(level, level), number) for level, number in levels.most_common()],
            "sealed": set(levels) <= {"sealed"},
            "in_kernel": any(task.kind == "tests" for task in assignment.tasks),
            "seeds": sorted({result.seeds for result in graded or results}),
        },
    )


def _page(template: str, content: dict[str, Any]) -> str:
    css = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return printable(_templates().get_template(template).render(css=css, **content))


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"points": lambda count: plural(count, "point"), "number": _number}
    environment.filters["short"] = lambda text: _cut(str(text), MAX_NAME)
    return environment


# A learner's page


def _task(task: TaskResult, assignment: Assignment) -> dict[str, Any]:
    symbol, tone = LOOKS[task.verdict]
    words = VERDICTS[task.verdict]
    if task.verdict == "reviewed":
        tone = "right" if task.points >= task.max_points else "wait"
    asked = assignment.task(task.id)
    if _is_apart(task):
        words += " when the earlier tasks are right"
    heading, prompt = untitled(asked.prompt) if asked else ("", "")
    return {
        "title": task.title or task.id,
        "symbol": symbol,
        "tone": tone,
        "words": words,
        "points": task.points,
        "max_points": task.max_points,
        "meta": " · ".join(_meta(heading)),
        "apart": _apart(task),
        "lines": [Markup(markup(line[:MAX_LINE])) for line in task.lines],
        "matrices": _matrices(task),
        "parts": () if task.verdict == "right" else task.parts,
        "answer": _answer(task),
        "scored": any(part.max_points for part in task.parts),
        "texts": [_cut(each["text"]) for each in task.outputs if each.get("text")],
        "figures": [png for each in task.outputs if (png := _figure(each.get("png")))],
        "prompt": Markup(prose(prompt)) if prompt.strip() else "",
    }


def _meta(heading: str) -> list[str]:
    """Difficulty and minutes out of a prompt's heading, `Task 2 · Scores   ●●○○○ · 5 minutes · 2 points`."""
    level = re.search("[●○]{2,}", heading)
    minutes = re.search(r"\d+ minutes?", heading)
    said = [f"difficulty {level[0].count('●')} of {len(level[0])}"] if level else []
    return said + ([f"about {minutes[0]}"] if minutes else [])


def _apart(task: TaskResult) -> str:
    """What it means that a task gives more when the earlier ones are right."""
    if not _is_apart(task):
        return ""
    return (
        f"Tried with right answers to those, it earns {_number(task.alone)} of {plural(task.max_points, 'point')}; "
        f"with your own, {_number(task.in_sequence)}. The better one counts."
    )


def _is_apart(task: TaskResult) -> bool:
    return task.alone > task.in_sequence and task.verdict != "reviewed"


def _matrices(task: TaskResult) -> Markup | str:
    if task.matrices is None:
        return ""
    try:
        return Markup(side_by_side(task.matrices))
    except (KeyError, TypeError, ValueError):  # evidence is a learner's: the rest of the page has to stand
        return ""


def _answer(task: TaskResult) -> Markup | str:
    if not task.answer.strip():
        return ""
    if task.kind == "written":
        return Markup('<pre class="wrap">{}</pre>').format(_cut(task.answer))
    return Markup('<pre tabindex="0" aria-label="Your answer"><code>{}</code></pre>').format(_coloured(task.answer))


def _coloured(source: str) -> Markup:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return Markup(highlight(_cut(source), PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)))


def _cut(text: str, most: int = MAX_SOURCE) -> str:
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}\n… and {left:,} more characters"


def _figure(png: Any) -> str:
    """A figure as base64, if that is what it is and a browser can draw it without harm."""
    try:
        data = base64.b64decode("".join(png.split()), validate=True)
    except (AttributeError, ValueError, binascii.Error):
        return ""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return ""
    width, height = struct.unpack(">II", data[16:24])
    return base64.b64encode(data).decode() if 0 < width * height <= MAX_PIXELS else ""


def _notes(result: Result) -> list[dict[str, Any]]:
    titles = {task.id: task.title or task.id for task in result.tasks}
    shown = [note for note in result.notes if note.kind not in ("late", "not graded")]
    return [
        {"title": titles.get(note.task or "", ""), "text": _sentence(note), "review": note.review} for note in shown
    ]


def _sentence(note: Note) -> Markup:
    text = _cut(note.text, MAX_LINE)
    return Markup(markup(text if text.endswith((".", "!", "?", "…")) else f"{text}."))


def _next(result: Result, assignment: Assignment) -> dict[str, Any] | None:
    """The first task that is still open, a hint for it, and how to check it."""
    if result.status != "graded":
        return None
    for index, task in enumerate(result.tasks, 1):
        if task.points < task.max_points and task.verdict not in ("pending", "reviewed"):
            asked = assignment.task(task.id)
            hint = next(iter(hints(asked.prompt)), None) if asked else None
            return {
                "task": task,
                "index": index,
                "hint": hint and [Markup(part) for part in hint],
                "recheck": _recheck(assignment),
            }
    if any(task.verdict == "pending" for task in result.tasks):
        return {"task": None, "words": "Nothing: your written answers are being read."}
    return {"task": None, "words": "Nothing is open here. Well done."}


def _recheck(assignment: Assignment) -> Markup:
    if assignment.path.suffix == ".py":
        command = f"txlib check exercises/{assignment.name}.ipynb"
        return Markup("Run the check below its cell as often as you like, or all of them with <code>{}</code>.").format(
            command
        )
    return Markup("When you have changed it, choose Kernel, Restart Kernel and Run All Cells, and look for errors.")


def _time(submitted: str | None) -> str:
    """A time in ISO 8601 to the minute: `2026-12-02 02:59 UTC`."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*(?:\+00:00|Z)?$", submitted or "")
    return f"{found[1]} {found[2]} UTC" if found else submitted or ""


# The class's page


def _class_task(task: Any, graded: list[Result]) -> dict[str, Any]:
    found = [each for result in graded for each in result.tasks if each.id == task.id]
    right = sum(each.points >= each.max_points for each in found)
    said = Counter(words for each in found if each.points < each.max_points and (words := _mistake(each)))
    return {
        "title": task.title or task.id,
        "kind": task.kind,
        "points": task.points,
        "right": right,
        "count": len(found),
        "share": round(100 * right / len(found)) if found else 0,
        "mean": _number(sum(each.points for each in found) / len(found)) if found else "–",
        "pending": sum(each.verdict == "pending" for each in found),
        "mistakes": said.most_common(5),
        "others": max(0, len(said) - 5),
    }


def _mistake(task: TaskResult) -> Markup:
    """What went wrong, in words that many may share."""
    if task.verdict == "mistake" and task.lines:
        return Markup(markup(task.lines[0][:MAX_LINE]))
    raised = re.match(r"Your answer raised `(\w{1,60})`", task.lines[0]) if task.lines else None
    if task.verdict == "error" and raised:
        return Markup("<em>It raised <code>{}</code></em>").format(raised[1])
    words = {
        "wrong": "Another wrong answer",
        "partial": "Some of its checks are wrong",
        "error": "It raised an error",
        "reviewed": "",
        "pending": "",
    }
    said = words.get(task.verdict, VERDICTS[task.verdict].capitalize())
    return Markup("<em>{}</em>").format(said) if said else Markup("")


def _reasons(result: Result, titles: dict[str, str]) -> list[Markup]:
    reasons = [
        f"{titles.get(note.task, note.task)}: {note.text}" if note.task else note.text
        for note in result.notes
        if note.review
    ]
    waiting = [titles.get(task.id, task.id) for task in result.tasks if task.verdict == "pending"]
    reasons += [f"{title}: a written answer waits for points" for title in waiting]
    return [Markup(markup(_cut(reason, MAX_LINE))) for reason in reasons]


def _similar(each: Any, titles: dict[str, str]) -> dict[str, Any]:
    return {
        "task": titles.get(each.task, each.task),
        "one": (each.one, _href(each.one)),
        "other": (each.other, _href(each.other)),
        "share": _percent(each.similarity),
    }


def _chart(shares: list[int | float]) -> Markup | str:
    """How many submissions reached which share of the points: ten columns."""
    if not shares:
        return ""
    columns = [0] * 10
    for share in shares:
        columns[min(9, max(0, int(share * 10 + 1e-9)))] += 1
    top, width, height = max(columns), 52, 130
    bars, words = [], []
    for i, count in enumerate(columns):
        label = f"{10 * i}–{10 * i + 10}"
        tall = round(height * count / top)
        x, y = 10 + i * width, 24 + height - tall
        bars.append(f'<rect class="mark" x="{x}" y="{y}" width="{width - 8}" height="{tall}" rx="2"/>')
        if count:
            bars.append(f'<text x="{x + 22}" y="{y - 6}" text-anchor="middle">{count}</text>')
            words.append(f"{count} between {10 * i} and {10 * i + 10} %")
        bars.append(f'<text class="soft" x="{x + 22}" y="{height + 42}" text-anchor="middle">{label}</text>')
    return Markup(
        '<svg viewBox="0 0 530 190" role="img" aria-labelledby="chart-title chart-words" width="530" '
        'style="max-width: 100%; height: auto"><title id="chart-title">How many submissions reached which share of the '
        f'points</title><desc id="chart-words">{"; ".join(words)}.</desc>{"".join(bars)}'
        f'<line class="axis" x1="6" x2="524" y1="{height + 24.5}" y2="{height + 24.5}"/>'
        '<text class="soft" x="265" y="188" text-anchor="middle">% of the points</text></svg>'
    )


def _link(result: Result) -> str:
    return _href(result.submission)


def _href(submission: str) -> str:
    return f"feedback/{quote(submission.encode('utf-8', 'replace'), safe='')}.html"


def _percent(share: int | float) -> str:
    return f"{100 * share:.0f} %"


def _number(value: int | float) -> str:
    """At most two decimals: 3, 2.5, 1.33."""
    return f"{round(value, 2):g}"
