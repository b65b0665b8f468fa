"""What waits for a reviewer, and how a mark is given: the same for the terminal and the page.

Several reviewers share a results folder. Each write is a transaction of its own; what one person has opened is left
to them for a while; a mark that would replace one which its author has not seen is refused.
"""

import contextlib
import getpass
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from txgrade.records.blind import Pseudonyms
from txgrade.records.claims import Claim, claim, claims_of, holder, keep_draft, release
from txgrade.records.gradebook import Gradebook, Review, RubricItem, Superseded, WrittenAnswer
from txgrade.records.ledger import GradebookError
from txgrade.records.requests import Decision, Request, alike, decide, read_requests
from txgrade.text import plural, printable


@dataclass(frozen=True)
class Item:
    """An answer or a regrade request, as a reviewer sees it."""

    task: str
    key: str  # hash of the answer or of the request
    title: str
    max_points: int | float
    prompt: str
    rubric: str
    answer: str
    learners: tuple[str, ...]  # pseudonyms, or names
    waits: bool
    review: Review | None = None
    request: Request | None = None
    alike: tuple[str, ...] = ()  # of a request: pseudonyms or names of others with the same answer and points
    claims: tuple[Claim, ...] = ()  # the newest of each reviewer, the newest first

    @property
    def id(self) -> tuple[str, str]:
        return self.task, self.key

    def holder(self, by: str) -> Claim | None:
        """Return the claim of another reviewer who is marking it now."""
        return holder(self.claims, by)

    def draft(self, by: str) -> dict:
        """Return what a reviewer has typed here and not saved as a mark."""
        return next((claim.draft for claim in self.claims if claim.by == by), {})

    @property
    def seen(self) -> str:
        """What the newest mark is, for `Desk.mark` to tell whether there is another since."""
        if self.request is not None:
            return "" if self.request.decision is None else self.request.decision.time
        return str(self.review.id if self.review else 0)


@dataclass(frozen=True)
class Points:
    """What a reviewer gives."""

    points: int | float = 0  # besides those of the rubric items
    comment: str = ""
    items: tuple[int, ...] = ()  # numbers of rubric items
    alike: bool = False  # whether others with the same answer and fewer points get them, where a request is answered


class Desk:
    """A results folder as one reviewer sees it.

    `share`, (1, 2) for the first half, leaves the other answers to others; `names` shows the learners' names.
    """

    def __init__(
        self,
        book: Gradebook,
        out: Path,
        by: str = "",
        *,
        task: str | None = None,
        share: tuple[int, int] = (1, 1),
        names: bool = False,
    ):
        self.book, self.out, self.by, self.task, self.share = book, out, printable(by) or user(), task, share
        self.problems: list[str] = []  # requests that can't be understood
        self._name = str if names else Pseudonyms(book)

    def items(self) -> list[Item]:
        """Return all answers, task by task, then all requests; of one's own share.

        They are in the order of their hashes, which tells nothing of the learners.
        """
        part, count = self.share
        return [
            item
            for item in self._everything()
            if self.task in (None, item.task) and int(item.key[:12], 16) % count == part - 1
        ]

    def item(self, task: str, key: str) -> Item | None:
        """Return one answer or request, of any share."""
        return next((item for item in self._everything() if item.id == (task, key)), None)

    def _everything(self) -> list[Item]:
        claims: dict[tuple[str, str], list[Claim]] = defaultdict(list)
        for one in claims_of(self.book):
            claims[one.task, one.key].append(one)
        written = {(answer.task, answer.answer_hash): answer for answer in self.book.written()}
        tasks = list(dict.fromkeys(task for task, _ in written))
        ordered = sorted(written, key=lambda key: (tasks.index(key[0]), key[1]))
        items = [self._of_answer(written[key], claims[key]) for key in ordered]
        requests, self.problems = read_requests(self.out, self.book)
        requests.sort(key=lambda request: (request.task, request.key))
        return items + [self._of_request(request, claims[request.task, request.key]) for request in requests]

    def waiting(self) -> list[Item]:
        return [item for item in self.items() if item.waits]

    def next(self, skip: Collection[tuple[str, str]] = (), after: Item | None = None) -> Item | None:
        """Claim the first that waits and that nobody else has claimed, from `after` on; None if there is none."""
        self.book.newest()  # read now what takes long, not while others wait
        with self.book.transaction(write=True):  # nobody marks or claims in between
            items = self.items()
            index = next((i for i, item in enumerate(items, 1) if after and item.id == after.id), 0)
            for item in items[index:] + items[:index]:
                if item.waits and item.id not in skip and item.holder(self.by) is None:
                    self.open(item)
                    return item
        return None

    def open(self, item: Item, *, anyway: bool = False) -> Claim | None:
        """Claim it; if another reviewer has it, return their claim, unless `anyway`."""
        return claim(self.book, item.task, item.key, self.by, anyway=anyway)

    def keep(self, item: Item, draft: dict) -> None:
        """Keep what was typed; it stays claimed."""
        keep_draft(self.book, item.task, item.key, self.by, draft)

    def leave_all(self) -> None:
        """Let others mark what this reviewer has open; drafts stay."""
        release(self.book, self.by)

    def leave(self, item: Item) -> None:
        """Let others mark it."""
        keep_draft(self.book, item.task, item.key, self.by, {}, released=True)

    def mark(self, item: Item, award: Points, seen: str | None = None) -> int:
        """Give points, unless somebody has since `seen`, which is by default as the item says.

        Return how many others with the same answer got them.

        Raises:
            GradebookError: the points are not within the task's, or a request's answer has no reason.
            Superseded, Decided: somebody was faster.
            Busy: others wrote for too long.
        """
        seen = item.seen if seen is None else seen
        others = 0
        if item.request is not None:
            if not award.comment.strip():
                raise GradebookError("say why: the learner's page shows it")
            self.book.newest()  # read now what takes long, not while others wait
            with self.book.transaction(write=True):
                others = self._decide(self.item(item.task, item.key) or item, award, seen)
        else:
            after = int(seen) if seen.isdigit() else 0
            self.book.review(item.task, item.key, award.points, award.comment, self.by, items=award.items, after=after)
        self.leave(item)
        return others

    def _decide(self, item: Item, award: Points, seen: str) -> int:
        assert item.request is not None
        decision = item.request.decision
        if decision is not None and item.seen != seen:
            if (decision.new, decision.reason, decision.by) == (award.points, award.comment, self.by):
                return 0  # sent twice
            raise Decided(decision)
        also = item.request.alike if award.alike and award.points > item.request.result.points else ()
        decide(self.book, [item.request], award.points, award.comment, self.by, also)
        return len(also)

    def change_item(
        self, task: str, points: int | float, text: str, *, number: int | None = None, version: int | None = None
    ) -> tuple[int, list[str]]:
        """Add or change a rubric item; return its number, and a line for each grade that changes."""
        before = self._points(task)
        number = self.book.write_item(task, points, text, self.by, number=number, version=version)
        now = self._points(task)
        return number, [
            f"{self._name(name)}: {before[name]:g} → {points:g}"
            for name, points in now.items()
            if points != before[name]
        ]

    def rubric(self, task: str) -> list[tuple[RubricItem, int]]:
        """Return the items of a task, each with the number of answers that it applies to."""
        reviews = [answer.review for answer in self.book.written(task) if answer.review]
        numbers = [item.number for review in reviews for item in review.items]
        return [(item, numbers.count(item.number)) for item in self.book.rubric(task)]

    def _points(self, task: str) -> dict[str, int | float]:
        return {
            result.submission: graded.points
            for result in self.book.latest()
            for graded in result.tasks
            if graded.id == task
        }

    def _of_answer(self, answer: WrittenAnswer, claims: Iterable[Claim]) -> Item:
        return Item(
            answer.task,
            answer.answer_hash,
            answer.title or answer.task,
            answer.max_points,
            answer.prompt,
            answer.rubric,
            answer.answer,
            tuple(map(self._name, answer.submissions)),
            answer.waits,
            answer.review,
            claims=tuple(claims),
        )

    def _of_request(self, request: Request, claims: Iterable[Claim]) -> Item:
        task = request.result
        released = self.book.task_data(request.task)
        return Item(
            request.task,
            request.key,
            task.title or task.id,
            task.max_points,
            released.get("prompt", ""),
            released.get("rubric", ""),
            task.answer,
            (self._name(request.submission),),
            request.decision is None,
            None,
            request,
            tuple(map(self._name, request.alike)),
            tuple(claims),
        )


class Decided(GradebookError):
    """Somebody else has answered the request since it was shown."""

    def __init__(self, decision: Decision):
        by = decision.by or "somebody"
        super().__init__(f"{by} answered meanwhile: {plural(decision.new, 'point')}, {decision.reason}")
        self.decision = decision


FASTER = (Superseded, Decided)


def override(
    out: Path | str, name: str, task: str, points: int | float, reason: str, by: str = "", *, also_alike: bool = False
) -> str:
    """Change one submission's points for a task, which answers requests about it; return what to say.

    With `also_alike`, all who have the same answer and the same points get the same, if it is more.

    Raises:
        GradebookError: no gradebook in the folder; no such submission or task; no reason, or wrong points.
    """
    points = int(points) if float(points).is_integer() else points
    out, by = Path(out), by or user()
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.newest()  # read now what takes long, not while others wait
        with book.transaction(write=True):
            name = book.submission_named(name)
            results = {result.submission: result for result in book.latest()}
            mine = next((one for one in results[name].tasks if one.id == task), None) if name in results else None
            same = alike(results.values(), name, mine) if mine else ()
            requests = [one for one in read_requests(out, book)[0] if (one.submission, one.task) == (name, task)]
            waiting = [request for request in requests if request.decision is None]
            had = mine.points if mine else 0
            also = same if also_alike and points > had else ()
            if waiting:
                decide(book, waiting, points, reason, by, also)
            else:
                book.override(name, task, points, reason, by, also)
    others = f" and {plural(len(also), 'other')} with the same answer" if also else ""
    answered = f"; {plural(len(waiting), 'request')} answered" if waiting else ""
    said = f"{printable(name)}{others} {'have' if also else 'has'} {plural(points, 'point')} for {task} now{answered}."
    if same and not also and points != had:
        said += f" {plural(len(same), 'other')} with the same answer {'keeps' if len(same) == 1 else 'keep'} {had:g}: "
        how = "name {}, and say --alike" if points > had else "--alike only raises, so lower each by name, such as {}"
        said += f"{how.format(printable(same[0]))}."
    return f"{said} Grade again to renew the tables and pages."


def read_share(text: str) -> tuple[int, int]:
    """Read `1/2`.

    Raises:
        ValueError: it is no such share.
    """
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(
            f"--share {text}: give a part of all answers, such as 1/2 to one reviewer and 2/2 to the other"
        )
    return int(match[1]), int(match[2])


def user() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return f"user {os.getuid()}"
