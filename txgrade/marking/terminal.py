"""Marks written answers and regrade requests at the terminal, each distinct answer once."""

import re
import sys
from pathlib import Path

from txgrade.marking.desk import FASTER, Desk, Item, Points
from txgrade.records.gradebook import Gradebook, RubricItem
from txgrade.records.ledger import Busy, GradebookError
from txgrade.text import plural, printable

HELP = "points, or points and a comment (`3 clear, but why the root?`); Enter leaves it for later, q ends"
WITH_RUBRIC = (
    "rubric items by number, then points besides them and a comment (`#1 #3 -0.5 why?`); " + HELP.partition("; ")[2]
)


def review_at_terminal(
    out: Path | str,
    task: str | None = None,
    by: str = "",
    share: tuple[int, int] = (1, 1),
    names: bool = False,
) -> None:
    """Show each answer that waits, with its prompt and rubric, and ask for points and a comment; then each request.

    Lines are read from stdin, so you can pipe them in: one line for each answer. Every mark is kept as soon as it is
    given; if a line makes no sense, it is asked for again. Others may mark at the same time.

    Raises:
        GradebookError: no gradebook in the folder.
    """
    with Gradebook(Path(out) / "gradebook.sqlite", create=False) as book:
        desk = Desk(book, Path(out), by, task=task, share=share, names=names)
        waiting = desk.waiting()
        for problem in desk.problems:
            print(f"txgrade: {problem}", file=sys.stderr)
        if not waiting:
            print(f"No written answer waits{f' in task {task}' if task else ''}.")
            return
        requests = sum(item.request is not None for item in waiting)
        answers = [plural(len(waiting) - requests, "answer")] if len(waiting) > requests else []
        print(f"{' and '.join(answers + [plural(requests, 'request')] * bool(requests))} to read. Type {HELP}.")
        marked, shown_task = 0, None
        skipped: set[tuple[str, str]] = set()
        while (item := desk.next(skipped)) is not None:
            if (item.task, item.request is None) != shown_task:
                print(printable(_question(item, book.rubric(item.task))))
                shown_task = (item.task, item.request is None)
            print(printable(_answer(item, len(waiting) - marked - len(skipped))))
            try:
                outcome = _mark(desk, item)
            except BaseException:
                desk.leave(item)
                raise
            if not outcome:
                desk.leave(item)
                skipped.add(item.id)
            if outcome is None:
                break
            marked += bool(outcome)
        left = desk.waiting()
    held = sum(item.holder(desk.by) is not None for item in left)
    others = f" ({held} of them with other reviewers)" if held else ""
    print(
        f"{marked} marked, {len(left)} left{others}." + (" Grade again to renew the tables and pages." * bool(marked))
    )


def _question(item: Item, items: list[RubricItem]) -> str:
    rubric = f"\n\nRubric:\n{item.rubric}" if item.rubric else ""
    if items and item.request is None:
        rubric += "\n\nRubric items:\n" + "\n".join(f"#{one.number}  {one.points:+g}  {one.text}" for one in items)
        rubric += "\n\nName them first: `#1 #3 -0.5 why?`"
    return f"\n{'═' * 72}\n{item.prompt or item.title}{rubric}"


def _answer(item: Item, left: int) -> str:
    names = ", ".join(item.learners[:5]) + (f" and {len(item.learners) - 5} more" if len(item.learners) > 5 else "")
    head = f"\n{'─' * 72}\n{plural(left, 'item')} left: {item.title}, {names}\n\n{item.answer}\n"
    if item.request is None:
        return head
    diagnosis = "\n".join(item.request.result.lines)
    now = f"It has {item.request.result.points:g} of {item.max_points:g}. {diagnosis}".strip()
    also = f"\n{plural(len(item.alike), 'other')} with the same answer and the same points: {', '.join(item.alike[:5])}"
    also += f"{', …' * (len(item.alike) > 5)}. Begin with `all` to give them the same, if it is more.\n"
    return f"{head}\n{now}\n\nA request to grade this again:\n{item.request.reason}\n{also * bool(item.alike)}"


def _mark(desk: Desk, item: Item) -> bool | None:
    """Ask until a mark is given and kept; return whether it is. None: the reviewer ends."""
    line = _read(item)
    while line not in ("", None):
        try:
            award = _points(line, item, desk.book.rubric(item.task))
            others = desk.mark(item, award)
            if award.alike and not others:
                print(printable(f"{plural(len(item.alike), 'other')} not changed: `all` only raises points."))
            return True
        except FASTER as reason:
            theirs = str(reason).rstrip(".")
            print(printable(f"{theirs}. You typed: {line}. Enter keeps theirs; points and a comment replace it."))
            item = desk.item(item.task, item.key) or item
            line = _read(item)
        except Busy as reason:
            print(printable(f"{reason}. Not kept yet: {line}"))
            print("Enter tries again, q gives it up: ", end="", flush=True)
            if (sys.stdin.readline() or "q").strip().lower() == "q":
                return None
        except (GradebookError, ValueError) as reason:
            print(printable(f"{reason}. Type {WITH_RUBRIC if desk.book.rubric(item.task) else HELP}."))
            line = _read(item)
    return None if line is None else False


def _read(item: Item) -> str | None:
    """Read a line; '' to leave this answer for later, None to end."""
    about = " and the reason" if item.request else ""
    print(f"Points, 0 to {item.max_points:g}{about}: ", end="", flush=True)
    line = sys.stdin.readline()
    if not sys.stdin.isatty():
        print()
    return None if not line or line.strip().lower() == "q" else line.strip()


def _points(line: str, item: Item, rubric: list[RubricItem]) -> Points:
    """Read `3 clear`, `#1 #3 -0.5 why?`, or `all 3 clear`.

    Raises:
        ValueError: it is neither.
    """
    numbers, rest = [], line
    while match := re.match(r"#(\d{1,6})(?:\s+|$)", rest):
        if item.request is not None:
            raise ValueError(
                f"#{match[1]} is a rubric item, and those are for answers: a request gets points and a reason"
            )
        if not rubric:
            raise ValueError(
                f"#{match[1]} is a rubric item, and this task has none yet (txgrade review --page makes some)"
            )
        numbers.append(int(match[1]))
        rest = rest[match.end() :]
    alike = bool(item.alike) and rest.lower().startswith("all ")
    first, _, comment = (rest[4:].strip() if alike else rest).partition(" ")
    try:
        points = float(first.replace(",", "."))
    except ValueError:
        if not numbers:
            raise ValueError(f"{first!r} is not a number from 0 to {item.max_points:g}") from None
        points, comment = 0.0, rest
    if not numbers and not 0 <= points <= item.max_points:
        raise ValueError(f"{first!r} is not a number from 0 to {item.max_points:g}")
    return Points(int(points) if points.is_integer() else points, comment.strip(), tuple(numbers), alike)
