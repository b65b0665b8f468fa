"""Marks written answers at the terminal: each distinct answer once, however many learners gave it."""

import contextlib
import getpass
import os
import sys
from pathlib import Path

from txgrade.records.gradebook import Gradebook, Pending
from txgrade.text import plural, printable

HELP = "points, or points and a comment (`3 clear, but why the root?`); Enter leaves it for later, q ends"


def review_at_terminal(out: Path | str, task: str | None = None, by: str = "") -> None:
    """Show each answer that waits, with its prompt and rubric, and ask for points and a comment.

    Lines are read from stdin, so you can pipe them in: one line for each answer. Every mark is kept as soon as it is
    given; if a line makes no sense, it is asked for again.

    Raises:
        GradebookError: no gradebook in the folder, or in use.
    """
    by = by or _user()
    with Gradebook(Path(out) / "gradebook.sqlite", create=False) as book:
        waiting = book.pending(task)
        if not waiting:
            print(f"No written answer waits{f' in task {task}' if task else ''}.")
            return
        print(f"{plural(len(waiting), 'answer')} to read. Type {HELP}.")
        marked, shown_task = 0, None
        for number, answer in enumerate(waiting, 1):
            if answer.task != shown_task:
                print(printable(_question(answer)))
                shown_task = answer.task
            print(printable(_answer(answer, number, len(waiting))))
            mark = _ask(answer.max_points)
            if mark is None:
                break
            if mark:
                points, comment = mark
                book.review(answer.task, answer.answer_hash, points, comment, by)
                marked += 1
    left = len(waiting) - marked
    print(f"{marked} marked, {left} left." + (" Grade again to renew the tables and pages." if marked else ""))


def override(out: Path | str, name: str, task: str, points: int | float, reason: str, by: str = "") -> str:
    """Change one submission's points for a task; return what to say.

    Raises:
        GradebookError: no gradebook in the folder, or in use; no such submission or task; no reason, or wrong points.
    """
    points = int(points) if float(points).is_integer() else points
    with Gradebook(Path(out) / "gradebook.sqlite", create=False) as book:
        book.override(name, task, points, reason, by or _user())
    return f"{printable(name)} has {plural(points, 'point')} for {task} now. Grade again to renew the tables and pages."


def _question(answer: Pending) -> str:
    rubric = f"\n\nRubric:\n{answer.rubric}" if answer.rubric else ""
    return f"\n{'═' * 72}\n{answer.prompt or answer.title}{rubric}"


def _answer(answer: Pending, number: int, count: int) -> str:
    names = ", ".join(answer.submissions[:5]) + (
        f" and {len(answer.submissions) - 5} more" if len(answer.submissions) > 5 else ""
    )
    return f"\n{'─' * 72}\n{number} of {count}: {answer.title}, {names}\n\n{answer.answer}\n"


def _ask(max_points: int | float) -> tuple[int | float, str] | tuple[()] | None:
    """Ask for points and a comment; return () to leave this answer for later, None to end."""
    while True:
        print(f"Points, 0 to {max_points:g}: ", end="", flush=True)
        line = sys.stdin.readline()
        if not sys.stdin.isatty():
            print()
        if not line or line.strip().lower() == "q":
            return None
        if not line.strip():
            return ()
        first, _, comment = line.strip().partition(" ")
        with contextlib.suppress(ValueError):
            points = float(first.replace(",", "."))
            if 0 <= points <= max_points:
                return int(points) if points.is_integer() else points, comment.strip()
        print(f"{printable(first)!r} is not a number from 0 to {max_points:g}. Type {HELP}.")


def _user() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return f"user {os.getuid()}"
