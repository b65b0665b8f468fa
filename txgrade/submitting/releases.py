"""Tells a cell that was corrected since a learner got the exercise from one that the learner has changed.

Whatever a submission's checks and given cells are, the assignment's own are run. So a cell of an earlier release is
nothing for a person to look at, and is counted once for the class.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from txgrade.records.result import Note, Result
from txgrade.submitting.reading import Submission
from txgrade.text import plural

CHANGED = ("changed check", "changed cell")  # kinds of notes
EARLIER = "earlier release"
ALIKE, ALIKE_FRACTION = 3, 0.1  # of a class with the same other cell: beyond both it was released so


class Releases:
    """Which cells of submissions are of an earlier release: graded before, or the same in a good part of the class."""

    def __init__(self, submissions: Iterable[Submission], earlier: Iterable[tuple[str, str]]):
        self._changed = {submission.name: submission.changed for submission in submissions}
        counts = Counter(cell for changed in self._changed.values() for cell in changed.items())
        alike = max(ALIKE, ALIKE_FRACTION * len(self._changed))
        self._earlier = {cell for cell, count in counts.items() if count >= alike} | set(earlier)

    def notes(self, name: str, notes: Iterable[Note]) -> tuple[Note, ...]:
        """Return a submission's notes; those on cells of an earlier release are for nobody to look at."""
        return tuple(self._note(note, self._changed.get(name, {})) for note in notes)

    def _note(self, note: Note, changed: dict[str, str]) -> Note:
        for id, hash in changed.items() if note.kind in CHANGED else ():
            if f"`{id}`" in note.text and (id, hash) in self._earlier:
                text = f"the cell `{id}` is that of an earlier release: the current one was run"
                return replace(note, kind=EARLIER, text=text, review=False)
        return note


def earlier_releases(results: Iterable[Result]) -> list[tuple[str | None, str]]:
    """Return a line for each cell that some submissions have from an earlier release, with its task."""
    counts = Counter((note.task, note.text) for result in results for note in result.notes if note.kind == EARLIER)
    return [(task, f"in {plural(count, 'submission')} {text}") for (task, text), count in counts.items()]
