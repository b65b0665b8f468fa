"""`txgrade return canvas --out results/ --roster gradebook.csv`: what Canvas, Moodle and Gradescope take back.

- Canvas: `canvas.csv` for Grades, Import; `canvas-feedback.zip` for the assignment's *Re-upload Submissions*.
  https://github.com/instructure/canvas-lms, lib/gradebook_importer.rb and app/models/abstract_assignment.rb (2026)
- Moodle: `moodle.csv` for *Upload grading worksheet*; `moodle-feedback.zip` for *Upload multiple feedback files*.
  https://github.com/moodle/moodle, mod/assign/feedback/offline and mod/assign/feedback/file (since 3.1)
- Gradescope: `gradescope.csv`, scores by email and student id, which Gradescope does not read itself;
  `gradescope-autograder.zip`, which shows each learner the grade and runs nothing (see `gradescope`).
  https://gradescope-autograders.readthedocs.io/en/latest/specs/ (2026)
"""

import difflib
import io
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from txgrade.files import Folder
from txgrade.pages import gradescope
from txgrade.pages.exports import csv_text, plain_number
from txgrade.records.gradebook import Gradebook
from txgrade.records.out import need_no_links, path_in, write
from txgrade.records.people import (
    TEST_STUDENT,
    Person,
    Roster,
    canvas_person,
    choices,
    delimiter_of,
    file_name,
    has_decimal_commas,
    lms_of,
    moodle_person,
    numbers_in,
    read_roster,
    read_table,
    safe_name,
    text_of,
    turned,
)
from txgrade.records.result import VERDICTS, Result
from txgrade.submitting.downloads import CANVAS
from txgrade.text import plural, printable

SYSTEMS = ("canvas", "moodle", "gradescope")
ROSTERS = {
    "canvas": "the CSV of Canvas' gradebook (Grades, Export)",
    "moodle": "the worksheet that Moodle gives (Download grading worksheet)",
    "gradescope": "a table with emails or student ids, such as Gradescope's roster",
}
IN_DOUBT = ("owner", "same person")  # kinds of notes which, if they need a look, leave open whose a grade is
MAX_PAGE = 20 * 2**20  # bytes
EPOCH = (2000, 1, 1, 0, 0, 0)  # of all files in a zip file, so that the same grades give the same bytes


class ReturnError(ValueError):
    """Why nothing is returned; one sentence."""


@dataclass
class Returned:
    """The files that were written, the submissions that are in none of them, and what a person should know."""

    files: list[Path] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # submission, and why
    absent: list[str] = field(default_factory=list)  # on the roster, without a grade in these files
    remarks: list[str] = field(default_factory=list)
    grades: int = 0
    pages: int = 0


@dataclass(frozen=True)
class Matched:
    """A grade, and whose it is."""

    person: Person
    result: Result


def give_back(
    system: str, out: Path | str, roster: Path | str | None = None, *, column: str | None = None, anyway: bool = False
) -> Returned:
    """Write the newest grades in a run's folder, and the learners' pages, as another system takes them back.

    `column` names Canvas' column if its title is not the exercise's. `anyway` writes them although answers wait for a
    person, or pages are older than a mark.

    Raises:
        ReturnError: an unknown system, no roster, or answers that wait.
        RosterError: the roster can't be read.
        GradebookError: no gradebook in the folder.
        ValueError: there is a link in place of a file.
    """
    out = Path(out)
    if system not in SYSTEMS:
        raise ReturnError(f"no system {system!r} to return grades to; choose {', '.join(SYSTEMS)}")
    if roster is None:
        raise ReturnError(f"{system} needs --roster: {ROSTERS[system]}")
    if column is not None and system != "canvas":
        raise ReturnError("--column is for Canvas: it names a column of its gradebook")
    need_no_links(out)
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        results, title = book.latest(), book.title()
        if not anyway:
            _need_marked(results, out)
            _need_new_pages(book, out)
    pages = _Pages(out)
    returned = Returned()
    texts: dict[str, str | bytes] = {}
    if system == "canvas":
        table, matched, returned = canvas_csv(results, text_of(roster), title, column)
        texts = {"canvas.csv": table, "canvas-feedback.zip": _zip(canvas_pages(matched, pages, returned))}
    elif system == "moodle":
        table, matched, returned = moodle_csv(results, text_of(roster))
        texts = {"moodle.csv": table, "moodle-feedback.zip": _zip(moodle_pages(matched, pages))}
    else:
        table, matched, returned = gradescope_csv(results, read_roster(roster))
        texts = {"gradescope.csv": table, "gradescope-autograder.zip": _zip(gradescope.autograder(matched))}
    returned.remarks += pages.remarks
    returned.pages = pages.count
    left_out = f"{system}-left-out.csv"
    if returned.left_out:
        texts[left_out] = csv_text([["submission", "why"], *map(list, returned.left_out)])
    else:
        path_in(out, left_out).unlink(missing_ok=True)  # of an earlier time
    for name, text in texts.items():
        write(out, name, text)
    returned.files = [path_in(out, name) for name in texts]
    return returned


def _need_marked(results: list[Result], out: Path) -> None:
    waiting = [result.waiting for result in results if result.waiting]
    if waiting:
        raise ReturnError(
            f"{plural(sum(waiting), 'answer')} of {plural(len(waiting), 'learner')} "
            f"{'waits' if sum(waiting) == 1 else 'wait'} for a person: mark "
            f"them by txgrade review --out {out}, or say --anyway"
        )


def _need_new_pages(book: Gradebook, out: Path) -> None:
    """Refuse to return pages from before a mark."""
    if book.last_marked() > book.last_finished():
        raise ReturnError(f"marks in {out} are newer than its pages: grade again, or say --anyway")


def canvas_csv(
    results: Iterable[Result], roster: str, title: str, column: str | None = None
) -> tuple[str, list[Matched], Returned]:
    """Return the gradebook file that Canvas imports, and whose the grades in it are.

    `roster` is the text of the CSV that Canvas exports (Grades, Export). A submission belongs to the row whose SIS
    login id, SIS user id, id or name it has, or whose id Canvas put into the name of the downloaded file; if notes
    leave open whose it is, it is left out. Only rows with a grade are written, into the column of the exercise's title
    or of `column`.

    Raises:
        ReturnError: the roster has no columns `Student` and `ID`, no such column but one that is nearly called so, or
            other points for the assignment.
    """
    header, rows = _table_of(roster, ("Student", "ID"), "Canvas' gradebook export")
    own = [name for name in ("Student", "ID", "SIS User ID", "SIS Login ID", "Section") if name in header]
    name = _column(header, column or title)
    people = [row for row in rows if row["ID"].strip().isdigit()]
    matched, returned = _matched(results, _roster_of(map(canvas_person, people)))
    most = {plain_number(one.result.max_score) for one in matched}
    for row in rows:
        if row["Student"].strip() == "Points Possible":
            _same_points(row.get(name, ""), most, "Canvas")
    written = [
        [*own, name],
        ["    Points Possible", *[""] * (len(own) - 1), *(_like(roster, points) for points in most)],
    ]
    for one in matched:
        score = _like(roster, plain_number(one.result.score))
        written.append([*(people[one.person.row][cell] for cell in own), score])
    if name not in header:
        returned.remarks.append(f"Canvas has no column {name!r}, and will ask to make it; or choose one by --column")
    return csv_text(written, delimiter_of(roster)), matched, returned


def _column(header: list[str], wanted: str) -> str:
    """Return the header of the column of an assignment, `title (number)`; a new one if none is nearly called so."""
    if wanted in header:
        return wanted
    titles = {name: re.sub(r" \(\d+\)$", "", name) for name in header}
    same = [name for name, title in titles.items() if title == wanted and title != name]
    if len(same) == 1:
        return same[0]
    plain = {title.casefold(): name for name, title in titles.items()}
    near = same or [plain[title] for title in difflib.get_close_matches(wanted.casefold(), plain, 5, 0.6)]
    if near:
        raise ReturnError(f"Canvas has no column {wanted!r}; say --column with one of: {', '.join(map(repr, near))}")
    return wanted


def canvas_pages(matched: list[Matched], pages: "_Pages", returned: Returned) -> dict[str, bytes]:
    """Return pages by the names that Canvas finds a submission by: those of the download, up to the file's number.

    Canvas shows such a file under the name of the notebook that it belongs to.
    """
    files = {}
    without = []
    for one in matched:
        match = CANVAS.fullmatch(one.result.origin)
        if match is None or match["id"] != one.person.id or not match["file"]:
            without.append(one.result.name)
        elif page := pages.read(one.result):
            files[f"{one.result.origin[: match.start('name')]}feedback.html"] = page
    if without:
        returned.remarks.append(
            f"no feedback file for {plural(len(without), 'submission')} that txgrade collect canvas didn't collect, or "
            f"of another member of the group: {', '.join(without)}"
        )
    return files


def moodle_csv(results: Iterable[Result], roster: str) -> tuple[str, list[Matched], Returned]:
    """Return Moodle's offline grading worksheet, filled in, and whose the grades in it are.

    `roster` is the text of the worksheet from Moodle (Download grading worksheet). All its columns and rows are kept,
    since Moodle refuses a file without `Identifier`, `Grade` and `Last modified (grade)`; `Grade` and `Feedback
    comments` are filled in. A submission belongs to the row whose email address (or its part before the @),
    identifier, ID number or full name it has, or whose number Moodle put into the name of the downloaded folder.

    Raises:
        ReturnError: the roster is not such a worksheet in English, or its highest grade is another one.
    """
    needed = ("Identifier", "Grade", "Last modified (grade)")
    header, rows = _table_of(
        roster, needed, "Moodle's grading worksheet; if it is in another language, export it in English"
    )
    matched, returned = _matched(results, _roster_of(map(moodle_person, rows)))
    for one in matched:
        row = rows[one.person.row]
        most = row.get("Maximum grade") or row.get("Maximum Grade") or ""  # it was spelled so before 4.0
        _same_points(most, {plain_number(one.result.max_score)}, "Moodle")
        row["Grade"] = _like(roster, plain_number(one.result.score))
        if "Feedback comments" in header:
            row["Feedback comments"] = comment(one.result)
    text = csv_text([list(header), *([row[name] for name in header] for row in rows)], delimiter_of(roster))
    return text, matched, returned


def moodle_pages(matched: list[Matched], pages: "_Pages") -> dict[str, bytes]:
    """Return pages in the folders that Moodle finds a participant by: `Name_ID_assignsubmission_file_`."""
    files = {}
    for one in matched:
        name = safe_name(one.person.name).replace("_", " ")
        if page := pages.read(one.result):
            files[f"{name}_{one.person.id}_assignsubmission_file_/feedback.html"] = page
    return files


def gradescope_csv(results: Iterable[Result], roster: Roster) -> tuple[str, list[Matched], Returned]:
    """Return scores by email and student id, and whose they are.

    Raises:
        ReturnError: nobody on the roster has an email address or a student id.
    """
    if not any(one.email or one.student_id for one in roster.people):
        raise ReturnError(f"the roster has no column `email` or `sid`: give {ROSTERS['gradescope']}")
    matched, returned = _matched(results, roster)
    table = [["Name", "SID", "Email", "Total Score", "Max Points"]]
    for one in matched:
        who, result = one.person, one.result
        points = (plain_number(result.score), plain_number(result.max_score))
        table.append([turned(who.name), who.student_id, who.email, *points])
    return csv_text(table), matched, returned


class _Pages:
    """The learners' pages in a results folder."""

    def __init__(self, out: Path):
        self._out = out
        self.remarks: list[str] = []
        self.count = 0

    def read(self, result: Result) -> bytes:
        """Return a page; nothing, and a remark, if there is none."""
        try:
            with Folder(self._out / "feedback", follow=False) as folder:
                page = folder.read(file_name(f"{result.submission}.html"), MAX_PAGE)[0]
        except OSError as reason:
            self.remarks.append(f"{result.name} gets no page ({reason.strerror}): grade again")
            return b""
        self.count += 1
        return page


def _zip(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if name in gradescope.PROGRAMS else 0o644) << 16
            archive.writestr(info, content)
    return data.getvalue()


def _table_of(text: str, needed: tuple[str, ...], what: str) -> tuple[list[str], list[dict[str, str]]]:
    header, rows = read_table(text)
    missing = [name for name in needed if name not in header]
    if missing:
        raise ReturnError(f"the roster has no column {missing[0]!r}: it should be {what}")
    return header, rows


def _like(table: str, number: str) -> str:
    """Return a number with the decimal mark of a table."""
    return number.replace(".", ",") if has_decimal_commas(table) else number


def _same_points(theirs: str, ours: set[str], system: str) -> None:
    """Refuse to write 10 of 12 points where 10 would be read as 10 of 100."""
    try:
        most = plain_number(float(theirs.replace(",", ".")))
    except ValueError:
        return  # it has no number
    if ours and ours != {most}:
        raise ReturnError(
            f"{system} has {most} as the points possible, the gradebook has "
            f"{', '.join(sorted(ours))}: set it in {system}, then export the roster again"
        )


def _roster_of(people: Iterable[Person]) -> Roster:
    return Roster(replace(one, row=row) for row, one in enumerate(people))


def _matched(results: Iterable[Result], roster: Roster) -> tuple[list[Matched], Returned]:
    """Return each graded result with its person, in the roster's order, and who is left out or absent.

    Of several that are one person's, the one with this person's name goes before one with the number of an LMS; two
    of a kind are left to a person.
    """
    sure, left_out = _sure(results)
    numbers = numbers_in(result.submission for result in sure)
    claimed: dict[int, list[Matched]] = {}
    for result in sure:
        matches = roster.find(result.submission, numbers.get(result.submission, ""), result.learner)
        if result.status != "graded":
            left_out.append((result.submission, f"not graded: {result.status}"))
        elif len(matches) == 1:
            claimed.setdefault(matches[0].row, []).append(Matched(matches[0], result))
        else:
            left_out.append((result.submission, _unknown(result.submission, matches, numbers)))
    matched = []
    for _, several in sorted(claimed.items()):
        named = [one for one in several if one.result.submission not in numbers] or several
        matched += named[:1] if len(named) == 1 else []
        left_out += [
            (one.result.submission, "several submissions of one person")
            for one in several
            if len(named) > 1 or one is not named[0]
        ]
    rows = {one.person.row for one in matched}
    absent = [one.label for one in roster.people if one.row not in rows and one.name != TEST_STUDENT]
    return matched, Returned(left_out=sorted(left_out), absent=absent, grades=len(matched))


def _sure(results: Iterable[Result]) -> tuple[list[Result], list[tuple[str, str]]]:
    """Return the results whose owners are certain, and the others with the notes that say why not."""
    sure: list[Result] = []
    left_out = []
    for result in results:
        doubts = [note.text for note in result.notes if note.kind in IN_DOUBT and note.review]
        if doubts:
            left_out.append((result.submission, "; ".join(doubts)))
        else:
            sure.append(result)
    return sure, left_out


def _unknown(name: str, matches: list[Person], numbers: dict[str, str]) -> str:
    if matches:
        return choices(matches)
    lms = "" if name in numbers else lms_of(name)
    but = f"; its number doesn't count, since most other files are not named as {lms} names files" if lms else ""
    return f"nobody on the roster has this name{but}"


def comment(result: Result) -> str:
    """Return a grade in a few lines of plain text."""
    if result.status != "graded":
        return f"Not graded: {result.status}"
    lines = [
        f"{task.title or task.id}: {plain_number(task.points)} of {plain_number(task.max_points)}, "
        f"{VERDICTS[task.verdict]}"
        for task in result.tasks
    ]
    if result.penalty:
        lines.append(f"Late: {plain_number(result.penalty)} taken off")
    return printable("\n".join(lines))
