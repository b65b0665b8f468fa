"""Explains how a grade came about: `txgrade explain`."""

from txgrade.records.gradebook import Gradebook
from txgrade.records.grades import LedgerEntry
from txgrade.records.result import VERDICTS, Note, TaskResult
from txgrade.text import plural, printable


def explain(book: Gradebook, name: str) -> str:
    """Return how a submission's grades came about, oldest first, and how to repeat the last one; for a terminal.

    Raises:
        GradebookError: no such submission.
    """
    entries = book.history(book.submission_named(name))
    blocks = [_entry(book, entry, i, len(entries)) for i, entry in enumerate(entries, 1)]
    last = entries[-1]
    variant = "" if last.result.variant is None else f" --variant {last.result.variant}"
    repeat = (
        "To repeat the last grade, with the same file, assignment and versions as above:\n"
        f"  txgrade grade --assignment {last.path}{variant} --submissions FOLDER --out NEW_FOLDER "
        f"--on-seeds {','.join(map(str, last.result.seeds))}"
    )
    return printable("\n\n".join([*blocks, repeat]))


def _entry(book: Gradebook, entry: LedgerEntry, number: int, count: int) -> str:
    result = entry.result
    final = book.with_reviews(result)
    reviewed = f", {final.score:g} with reviews" if final.score != result.score else ""
    lines = [
        f"{result.submission}: {result.score:g} of {result.max_score:g}{reviewed}; {result.status}",
        f"  entry {number} of {count}, written {entry.time} in run {entry.run}",
        f"  file        {result.submission_hash or 'could not be read'}",
        f"  assignment  {result.assignment_hash}",
        f"  isolation   {result.isolation}",
        f"  seeds       {', '.join(map(str, result.seeds)) or 'none'}",
        f"  versions    {result.environment}",
    ]
    if result.variant is not None:
        lines.append(f"  variant     {result.variant}")
    lines.append(f"  submitted   {result.submitted or 'nobody knows when'}")
    if result.learner not in ("", result.submission):
        lines.append(f"  learner     {result.learner}")
    if result.allowance.until:
        lines.append(f"  extended    to {result.allowance.until}")
    for task in result.tasks:
        lines += ["", *_task(task)]
        for review in book.reviews(task.id, task.answer_hash, result):
            by = f" by {review.by}" if review.by else ""
            alone = ", for this submission only" if review.submission else ""
            lines.append(
                f"      review {review.time}{by}{alone}: {review.points:g} of {task.max_points:g}"
                + (f": {review.comment}" if review.comment else "")
            )
    if final.penalty:
        lines += ["", f"  late: {plural(final.penalty, 'point')} taken off"]
    if result.notes:
        lines += ["", "  notes", *(f"    {_note(note)}" for note in result.notes)]
    return "\n".join(lines)


def _task(task: TaskResult) -> list[str]:
    points = f"{task.points:g} of {task.max_points:g}"
    if task.kind != "written":
        points += f" ({task.in_sequence:g} in sequence, {task.alone:g} alone)"
    lines = [f"  {task.id} ({task.kind}): {VERDICTS[task.verdict]}, {points}"]
    lines += [f"      answer {task.answer_hash}"] * bool(task.answer_hash)
    lines += [f"      {line}" for line in task.lines]
    for part in task.parts:
        points = f": {part.points:g} of {part.max_points:g}" if part.max_points else ""
        lines.append(f"      {'✓' if part.right else '✗'} {part.label}{points}")
    return lines


def _note(note: Note) -> str:
    about = f"{note.task}: " if note.task else ""
    return f"{about}{note.kind}: {note.text}" + (" (needs a look)" if note.review else "")
