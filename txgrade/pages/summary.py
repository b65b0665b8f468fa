"""What an instructor reads of a grading run: one page about the whole class."""

import re
from collections import Counter
from collections.abc import Iterable
from statistics import fmean, median
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from txgrade.authoring.assignment import Assignment
from txgrade.pages.page import ISOLATION, MAX_LINE, cut, page
from txgrade.pages.prose import sentence
from txgrade.pages.similar import Similar
from txgrade.records.result import VERDICTS, Result, TaskResult
from txgrade.text import markup, number, titled

ENDED = re.compile(r"(?:(?P<cell>The cell of your answer ended with)|Your answer raised) `(?P<error>\w{1,60})`")


def summary_page(
    results: list[Result], assignment: Assignment, similar: Iterable[Similar] = (), missing: Iterable[str] = ()
) -> str:
    """The page for the instructor: one HTML file that links to the learners' pages.

    `similar` lists answers that resemble each other, `missing` whoever handed in nothing.
    """
    graded = [result for result in results if result.status == "graded"]
    shares = [result.score / result.max_score for result in graded if result.max_score]
    titles = {task.id: task.title or task.id for task in assignment.tasks}
    levels = Counter(result.isolation for result in graded or results)
    return page(
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
            "missing": list(missing),
            "levels": [(ISOLATION.get(level, level), number) for level, number in levels.most_common()],
            "sealed": set(levels) <= {"sealed"},
            "in_kernel": _in_kernel(graded),
            "seeds": sorted({result.seeds for result in graded or results}),
        },
    )


def _in_kernel(graded: list[Result]) -> dict[str, Any] | None:
    """How much of an assignment's points, and of what the class has earned, comes from tests beside the answer."""
    tasks = [task for result in graded for task in result.tasks]
    if not any(task.kind == "tests" for task in tasks):
        return None
    earned, beside = (sum(task.points for task in each) for each in (tasks, filter(_beside, tasks)))
    return {
        "most": sum(task.max_points for task in graded[0].tasks if task.kind == "tests"),
        "of": graded[0].max_score,
        "share": _percent(beside / earned) if earned else "",
    }


def _beside(task: TaskResult) -> bool:
    return task.kind == "tests" and task.verdict != "reviewed"


def _class_task(task: Any, graded: list[Result]) -> dict[str, Any]:
    answers = [each for result in graded for each in result.tasks if each.id == task.id]
    right = sum(each.points >= each.max_points for each in answers)
    wrong = [each for each in answers if each.points < each.max_points]
    mistakes = Counter(words for each in wrong for words in _mistakes(each))
    return {
        "title": task.title or task.id,
        "kind": task.kind,
        "points": task.points,
        "right": right,
        "count": len(answers),
        "share": round(100 * right / len(answers)) if answers else 0,
        "mean": number(sum(each.points for each in answers) / len(answers)) if answers else "–",
        "pending": sum(each.verdict == "pending" for each in answers),
        "mistakes": mistakes.most_common(5),
        "others": max(0, len(mistakes) - 5),
    }


def _mistakes(task: TaskResult) -> list[Markup]:
    """What went wrong, in words that many may share: the author's, for as many mistakes as were made; else one."""
    if task.sentences and task.verdict != "reviewed":
        return [Markup(sentence(each)) for each in task.sentences]
    ended = ENDED.match(task.lines[0]) if task.lines else None
    if task.verdict == "error" and ended:
        what = "Its cell ended with" if ended["cell"] else "It raised"
        return [Markup("<em>{} <code>{}</code></em>").format(what, ended["error"])]
    words = {
        "wrong": "Another wrong answer",
        "partial": "Some of its checks are wrong",
        "error": "It raised an error",
        "reviewed": "",
        "pending": "",
    }
    verdict = words.get(task.verdict, VERDICTS[task.verdict].capitalize())
    return [Markup("<em>{}</em>").format(verdict)] if verdict else []


def _reasons(result: Result, titles: dict[str, str]) -> list[Markup]:
    reasons = [
        titled(titles.get(note.task, note.task), note.text) if note.task else note.text
        for note in result.notes
        if note.review
    ]
    waiting = [titles.get(task.id, task.id) for task in result.tasks if task.verdict == "pending"]
    reasons += [titled(title, "a written answer waits for points") for title in waiting]
    return [Markup(markup(cut(reason, MAX_LINE))) for reason in reasons]


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
