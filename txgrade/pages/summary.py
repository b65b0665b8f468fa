"""The page that an instructor reads about the whole class."""

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
from txgrade.pages.statistics import FEWEST, item_statistics
from txgrade.records.lateness import nobody_s_time
from txgrade.records.result import VERDICTS, Result, TaskResult
from txgrade.submitting.releases import earlier_releases
from txgrade.text import markup, number, titled

ENDED = re.compile(r"(?:(?P<cell>The cell of your answer ended with)|Your answer raised) `(?P<error>\w{1,60})`")


def summary_page(
    results: list[Result], assignment: Assignment, similar: Iterable[Similar] = (), missing: Iterable[str] = ()
) -> str:
    """Return the page for the instructor: one HTML file that links to the learners' pages.

    `similar` lists answers that resemble each other, `missing` people who submitted nothing.
    """
    graded = [result for result in results if result.status == "graded"]
    fractions = [result.fraction for result in graded if result.fraction is not None]
    waiting = [result.waiting for result in graded if result.waiting]
    titles = {task.id: task.title or task.id for task in assignment.tasks}
    levels = Counter(result.isolation for result in graded or results)
    return page(
        "summary.html",
        {
            "assignment": assignment,
            "count": len(results),
            "graded": len(graded),
            "full": sum(result.score >= result.max_score > 0 for result in graded),
            "waiting": sum(waiting),
            "waiting_learners": len(waiting),
            "median": _percent(median(fractions)) if fractions else "",
            "mean": _percent(fmean(fractions)) if fractions else "",
            "chart": _chart(fractions),
            "tasks": [_class_task(task, graded) for task in assignment.tasks],
            "items": item_statistics(results),
            "fewest": FEWEST,
            "look": [(result.name, _link(result), _reasons(result, titles)) for result in results if result.needs_look],
            "whole_class": [
                Markup(markup(text))
                for text in [*(text for _, text in earlier_releases(results)), *nobody_s_time(results)]
            ],
            "failed": [(result.name, _link(result), result.status) for result in results if result.status != "graded"],
            "similar": [_similar(pair, titles) for pair in similar],
            "missing": list(missing),
            "levels": [(ISOLATION.get(level, level), number) for level, number in levels.most_common()],
            "sealed": set(levels) <= {"sealed"},
            "in_kernel": _in_kernel(graded),
            "seeds": sorted({result.seeds for result in graded or results}),
        },
    )


def _in_kernel(graded: list[Result]) -> dict[str, Any] | None:
    """Return how many points, of the assignment's and of what the class earned, come from tests in the kernel."""
    tasks = [task for result in graded for task in result.tasks]
    if not any(task.kind == "tests" for task in tasks):
        return None
    earned = sum(task.points for task in tasks)
    by_tests = sum(task.points for task in tasks if task.kind == "tests" and task.verdict != "reviewed")
    return {
        "most": sum(task.max_points for task in graded[0].tasks if task.kind == "tests"),
        "of": graded[0].max_score,
        "share": _percent(by_tests / earned) if earned else "",
    }


def _class_task(task: Any, graded: list[Result]) -> dict[str, Any]:
    every = [answer for result in graded for answer in result.tasks if answer.id == task.id]
    answers = [answer for answer in every if answer.verdict != "pending"]
    right = sum(answer.points >= answer.max_points for answer in answers)
    wrong = [answer for answer in answers if answer.points < answer.max_points]
    mistakes = Counter(words for answer in wrong for words in _mistakes(answer))
    return {
        "title": task.title or task.id,
        "kind": task.kind,
        "points": task.points,
        "right": right,
        "count": len(answers),
        "share": round(100 * right / len(answers)) if answers else 0,
        "mean": number(fmean(answer.points for answer in answers)) if answers else "",
        "pending": len(every) - len(answers),
        "mistakes": mistakes.most_common(5),
        "others": max(0, len(mistakes) - 5),
    }


def _mistakes(task: TaskResult) -> list[Markup]:
    """Return what went wrong, in words that answers may have in common: the author's sentences, else one of ours."""
    if task.sentences and task.verdict != "reviewed":
        return [Markup(sentence(authors)) for authors in task.sentences]
    ended = ENDED.match(task.lines[0]) if task.lines else None
    if task.verdict == "error" and ended:
        what = "Its cell ended with" if ended["cell"] else "It raised"
        return [Markup("<em>{} <code>{}</code></em>").format(what, ended["error"])]
    words = {
        "wrong": "Another wrong answer",
        "partial": "Some of its checks are wrong",
        "error": "It raised an error",
        "reviewed": "",
    }
    verdict = words.get(task.verdict, VERDICTS[task.verdict].capitalize())
    return [Markup("<em>{}</em>").format(verdict)] if verdict else []


def _reasons(result: Result, titles: dict[str, str]) -> list[Markup]:
    reasons = [
        titled(titles.get(note.task, note.task), note.text) if note.task else note.text
        for note in result.notes
        if note.review
    ]
    return [Markup(markup(cut(reason, MAX_LINE))) for reason in reasons]


def _similar(pair: Similar, titles: dict[str, str]) -> dict[str, Any]:
    return {
        "task": titles.get(pair.task, pair.task),
        "one": (pair.one, _href(pair.one)),
        "other": (pair.other, _href(pair.other)),
        "share": _percent(pair.similarity),
    }


def _chart(fractions: list[int | float]) -> Markup | str:
    """Draw how many submissions reached which part of the points: ten columns."""
    if not fractions:
        return ""
    columns = [0] * 10
    for fraction in fractions:
        columns[min(9, max(0, int(fraction * 10 + 1e-9)))] += 1
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
        'style="max-width: 100%; height: auto"><title id="chart-title">How many submissions reached how many of the '
        f'points</title><desc id="chart-words">{"; ".join(words)}.</desc>{"".join(bars)}'
        f'<line class="axis" x1="6" x2="524" y1="{height + 24.5}" y2="{height + 24.5}"/>'
        '<text class="soft" x="265" y="188" text-anchor="middle">% of the points</text></svg>'
    )


def _link(result: Result) -> str:
    return _href(result.submission)


def _href(submission: str) -> str:
    return f"feedback/{quote(submission.encode('utf-8', 'replace'), safe='')}.html"


def _percent(fraction: int | float) -> str:
    return f"{100 * fraction:.0f} %"
