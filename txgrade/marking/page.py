"""The page on which reviewers mark: each request is answered by a view, from the gradebook as it is then.

Nothing is kept in the browser or in this process but messages for the next page, so any number of browsers see the
same, and what was typed is in the gradebook after every click.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup

from txgrade.marking.desk import FASTER, Desk, Item, Points
from txgrade.pages.page import MAX_LINE, cut, page
from txgrade.pages.prose import prose, untitled
from txgrade.records.claims import CLAIM_MINUTES, Claim
from txgrade.records.gradebook import Gradebook
from txgrade.records.ledger import GradebookError
from txgrade.text import markup, number, plural, printable

MAX_NAME = 80  # characters of a reviewer's name
ACTIONS = ("enter", "save", "previous", "next", "queue", "add", "rubric", "take")


@dataclass(frozen=True)
class Reply:
    """An HTML page, or where to go instead."""

    body: str = ""
    status: int = 200
    to: str = ""  # a path below the token
    name: str = ""  # of the reviewer, for the browser to keep


@dataclass
class Form:
    """What was sent by a form: each field's values."""

    fields: dict[str, list[str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, [""])[0].replace("\r\n", "\n")

    def numbers(self, name: str) -> list[int]:
        return [int(value) for value in self.fields.get(name, ()) if value.isdecimal() and len(value) < 10]


class MarkingPage:
    """All views of one results folder; `secret` is in each form, so that no other page can send one."""

    def __init__(
        self,
        book: Gradebook,
        out: Path,
        secret: str,
        *,
        by: str,
        task: str | None = None,
        share: tuple[int, int] = (1, 1),
        names: bool = False,
    ):
        self.book, self.out, self.secret, self.by = book, out, secret, by
        self.options: dict[str, Any] = {"task": task, "share": share, "names": names}
        self.root = "/"  # the path of the first page, in which the server puts its token
        self.messages: dict[str, list[str]] = {}  # for a reviewer's next page

    def get(self, path: str, name: str, query: Form) -> Reply:
        """Answer a request for a page; `path` is what comes after the root."""
        if not name:
            return Reply(self._page("marking_name.html", "", by=self.by, minutes=CLAIM_MINUTES))
        desk = self._desk(name)
        match [unquote(part) for part in path.split("/")]:
            case [""]:
                return self._queue(desk)
            case ["mark", task, key]:
                return self._mark(desk, task, key)
            case ["rubric", task]:
                return self._rubric(desk, task, query["from"])
        return self._missing(desk)

    def post(self, path: str, name: str, form: Form) -> Reply:
        """Do what a form asks for. Whatever goes wrong, what was typed comes back."""
        if path == "name":
            chosen = printable(" ".join(form["name"].split()))[:MAX_NAME]
            return Reply(to="", name=chosen or self.by)
        if not name:
            return self.given_back("The browser has forgotten your name: open the first page again.", form, 403)
        desk = self._desk(name)
        try:
            match [unquote(part) for part in path.split("/")]:
                case ["next"]:
                    return self._next(desk)
                case ["mark", task, key]:
                    return self._marked(desk, task, key, form)
                case ["rubric", task]:
                    return self._rubric_written(desk, task, form)
        except GradebookError as reason:
            return self.given_back(f"Not saved: {reason}.", form, 503, path=path)
        return self.given_back("There is no such page.", form, 404)

    def given_back(self, words: str, form: Form, status: int, path: str = "") -> Reply:
        """Return a page with what was typed, which can be sent again if there is a path."""
        fields = [(name, value) for name, values in form.fields.items() for value in values if name != "secret"]
        typed = [value for name, value in fields if name in ("comment", "points", "text", "points-new", "text-new")]
        typed += [value for name, value in fields if name.startswith("text-") and name != "text-new"]
        page = self._page("marking_returned.html", "", words=words, typed="\n".join(typed), fields=fields, path=path)
        return Reply(page, status)

    # The list

    def _queue(self, desk: Desk) -> Reply:
        desk.leave_all()
        items = desk.items()
        groups: list[tuple[str, list[dict]]] = []
        for item in items:
            title = f"{item.title}: regrade requests" if item.request else item.title
            if not groups or groups[-1][0] != title:
                groups.append((title, []))
            groups[-1][1].append(self._row(desk, item))
        waiting = [item for item in items if item.waits]
        holders = [holder.by for item in waiting if (holder := item.holder(desk.by)) is not None]
        return Reply(
            self._page(
                "marking_queue.html",
                desk.by,
                title=self.book.title(),
                groups=groups,
                waiting=len(waiting),
                count=len(items),
                held=len(holders),
                holders=" and ".join(sorted(set(holders))),
                minutes=CLAIM_MINUTES,
                share="" if desk.share == (1, 1) else f"part {desk.share[0]} of {desk.share[1]}",
                problems=desk.problems,
            )
        )

    def _row(self, desk: Desk, item: Item) -> dict[str, Any]:
        holder = item.holder(desk.by)
        if holder is not None:
            state, tone = f"with {holder.by}", "wait"
        elif item.draft(desk.by):
            state, tone = "your draft", "wait"
        elif item.waits:
            state, tone = "waits", "idle"
        else:
            state, tone = _given(item), "right" if item.review or item.request else "idle"
        text = item.request.reason if item.request else item.answer
        return {
            "path": _path(item),
            "learners": _learners(item),
            "text": " ".join(text.split())[:120],
            "state": state,
            "tone": tone,
        }

    # One answer

    def _mark(self, desk: Desk, task: str, key: str) -> Reply:
        item, holder = desk.item(task, key), None
        if item is None:
            return self._missing(desk)
        try:
            if item.waits or item.draft(desk.by):
                holder = desk.open(item)
        except GradebookError as reason:
            self._say(desk, f"Nobody is told that you are marking this: {reason}.")
        items = desk.items()
        index = next((i for i, other in enumerate(items) if _path(other) == _path(item)), -1)
        draft = _as_draft(item) | item.draft(desk.by)
        rubric = [
            {"item": one, "checked": one.number in draft.get("items", ()), "index": i}
            for i, one in enumerate([] if item.request else self.book.rubric(task), 1)
        ]
        return Reply(
            self._page(
                "marking_mark.html",
                desk.by,
                item=item,
                path=_path(item),
                learners=_learners(item),
                position=f"{index + 1} of {len(items)}" if index >= 0 else "",
                waiting=sum(other.waits for other in items),
                prompt=Markup(prose(untitled(item.prompt)[1])),
                instructions=Markup(prose(item.rubric)),
                answer=cut(item.answer) or "(empty)",
                request=item.request and cut(item.request.reason),
                lines=[Markup(markup(line[:MAX_LINE])) for line in item.request.result.lines] if item.request else [],
                given=_given(item),
                holder=holder and _holder(holder),
                draft=draft,
                is_draft=bool(item.draft(desk.by)),
                rubric=rubric,
                minutes=CLAIM_MINUTES,
            )
        )

    def _marked(self, desk: Desk, task: str, key: str, form: Form) -> Reply:
        item = desk.item(task, key)
        if item is None:
            return self.given_back("This answer is not in the gradebook any more.", form, 404)
        action = form["action"] if form["action"] in ACTIONS else "queue"
        if action == "enter":
            action = "add" if form["text-new"].strip() else "save"
        if action == "take":
            desk.open(item, anyway=True)
            return Reply(to=_path(item))
        draft = {
            "points": form["points"],
            "comment": form["comment"],
            "items": form.numbers("item"),
            "alike": bool(form["alike"]),
        }
        draft = self._with_new_item(desk, item, form, draft)
        if action == "save" and self._saved(desk, item, form["seen"], draft):
            return self._next(desk, item)
        if draft == _as_draft(item):
            desk.leave(item)
        else:
            desk.keep(item, draft)
        if action in ("save", "add"):
            return Reply(to=_path(item))
        if action == "rubric":
            return Reply(to=f"rubric/{quote(task, safe='')}?from={quote(key, safe='')}")
        return Reply(to=self._neighbor(desk, item, {"previous": -1, "next": 1}.get(action, 0)))

    def _with_new_item(self, desk: Desk, item: Item, form: Form, draft: dict) -> dict:
        """Add the rubric item that was typed, and let it apply here."""
        if not form["text-new"].strip() or item.request:
            return draft
        try:
            points = _number(form["points-new"])
            number_, _ = desk.change_item(item.task, points, form["text-new"])
        except (GradebookError, ValueError) as reason:
            self._say(desk, f"The new item “{form['points-new']} {form['text-new']}” is not added: {reason}.")
            return draft
        words = " ".join(form["text-new"].split())
        self._say(desk, f"Item {number_}, “{words}” ({points:+g}), is in the rubric now, and ticked for this answer.")
        return draft | {"items": sorted({*draft["items"], number_})}

    def _saved(self, desk: Desk, item: Item, seen: str, draft: dict) -> bool:
        """Save a mark, or say why not."""
        try:
            points = _number(draft["points"], 0 if draft["items"] else None)
            award = Points(points, draft["comment"].strip(), tuple(draft["items"]), draft["alike"])
            others = desk.mark(item, award, seen)
        except FASTER as reason:
            self._say(desk, f"{str(reason).rstrip('.')}. Yours is below, not saved: save again to replace it.")
            return False
        except (GradebookError, ValueError) as reason:
            self._say(desk, f"Not saved: {reason}.")
            return False
        marked = desk.item(item.task, item.key)
        also = f" and {plural(others, 'other')}" if others else ""
        kept = f" {plural(len(item.alike), 'other')} not changed: only more points are given to all."
        kept = kept if award.alike and item.alike and not others else ""
        self._say(desk, f"Saved: {_given(marked)} for {_learners(item)}{also}.{kept}" if marked else "Saved.")
        return True

    def _next(self, desk: Desk, after: Item | None = None) -> Reply:
        """Go to the next that waits and is free; to the list if there is none."""
        item = desk.next(after=after)
        return Reply(to="" if item is None else _path(item))

    def _neighbor(self, desk: Desk, item: Item, step: int) -> str:
        paths = [_path(other) for other in desk.items()]
        if step == 0 or _path(item) not in paths:
            return ""
        return paths[(paths.index(_path(item)) + step) % len(paths)]

    # The rubric

    def _rubric(self, desk: Desk, task: str, key: str) -> Reply:
        data = self.book.task_data(task)
        if not data:
            return self._missing(desk)
        return Reply(
            self._page(
                "marking_rubric.html",
                desk.by,
                key=key,
                path=f"rubric/{quote(task, safe='')}",
                title=data["title"] or task,
                max_points=data["points"],
                rubric=desk.rubric(task),
            )
        )

    def _rubric_written(self, desk: Desk, task: str, form: Form) -> Reply:
        changes = []
        items = {item.number: item for item in self.book.rubric(task)}
        for number_ in form.numbers("number"):
            typed = f"{form[f'points-{number_}']} {form[f'text-{number_}']}".strip()
            try:
                points = _number(form[f"points-{number_}"], 0)
                text = " ".join(form[f"text-{number_}"].split())
                old = items.get(number_)
                if old is None or (old.points, old.text) != (points, text):
                    version = next(iter(form.numbers(f"version-{number_}")), None)
                    changes += desk.change_item(task, points, text, number=number_, version=version)[1]
            except (GradebookError, ValueError) as reason:
                self._say(desk, f"“{typed}” is not saved: {reason}.")
        if form["text-new"].strip():
            try:
                desk.change_item(task, _number(form["points-new"]), form["text-new"])
            except (GradebookError, ValueError) as reason:
                self._say(desk, f"“{form['points-new']} {form['text-new']}” is not saved: {reason}.")
        self._say_changes(desk, changes)
        key = form["from"]
        if form["action"] == "back":
            return Reply(to=f"mark/{quote(task, safe='')}/{quote(key, safe='')}" if key else "")
        return Reply(to=f"rubric/{quote(task, safe='')}" + (f"?from={quote(key, safe='')}" if key else ""))

    # What all have in common

    def _desk(self, name: str) -> Desk:
        return Desk(self.book, self.out, name, **self.options)

    def _missing(self, desk: Desk) -> Reply:
        words = "There is no such answer (any more)."
        return Reply(self._page("marking_returned.html", desk.by, words=words, typed="", fields=(), path=""), 404)

    def _say(self, desk: Desk, words: str) -> None:
        self.messages.setdefault(desk.by, []).append(words)

    def _say_changes(self, desk: Desk, changes: list[str]) -> None:
        if changes:
            self._say(desk, f"{plural(len(changes), 'grade')} changed: {'; '.join(changes)}.")

    def _page(self, template: str, reviewer: str, **content: Any) -> str:
        messages = self.messages.pop(reviewer, []) if reviewer else []
        return page(
            template, content | {"secret": self.secret, "root": self.root, "reviewer": reviewer, "messages": messages}
        )


def _path(item: Item) -> str:
    return f"mark/{quote(item.task, safe='')}/{quote(item.key, safe='')}"


def _learners(item: Item) -> str:
    first, *others = item.learners
    return f"{first} and {plural(len(others), 'other')} with the same answer" if others else first


def _given(item: Item) -> str:
    """Return in words what mark it has."""
    if item.request is not None:
        decision = item.request.decision
        if decision is None:
            return ""
        return f"answered by {decision.by or 'somebody'}: {number(decision.new)} of {number(item.max_points)}"
    if item.review is None:
        return "" if item.waits else f"0 of {number(item.max_points)}: nothing was written"
    points = min(item.review.points, item.max_points)
    return f"{number(points)} of {number(item.max_points)} by {item.review.by or 'somebody'}"


def _as_draft(item: Item) -> dict:
    """Return the mark that it has, as a form holds it."""
    points, comment, items = "", "", []
    if item.request is not None:
        decision = item.request.decision
        points = f"{item.request.result.points if decision is None else decision.new:.10g}"
        comment = "" if decision is None else decision.reason
    elif item.review is not None:
        items = [one.number for one in item.review.items]
        points = "" if items and not item.review.extra else f"{item.review.extra:.10g}"
        comment = item.review.comment
    return {"points": points, "comment": comment, "items": items, "alike": False}


def _holder(claim: Claim) -> dict[str, str]:
    return {"by": claim.by, "time": claim.time[11:16]}


def _number(text: str, otherwise: int | float | None = None) -> int | float:
    """Read points.

    Raises:
        ValueError: this is no number.
    """
    if not text.strip() and otherwise is not None:
        return otherwise
    try:
        points = float(text.strip().replace(",", ".").replace("−", "-"))
    except ValueError:
        raise ValueError(
            f"“{cut(text.strip(), 40)}” is no number of points" if text.strip() else "give points"
        ) from None
    return int(points) if points.is_integer() else points
