"""Reads a submitted notebook without trusting a byte of it: what is wrong becomes a status."""

import errno
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txgrade.files import Folder
from txgrade.records.result import Note

MAX_BYTES = 10 * 2**20  # of a file
MAX_RECEIPT = 10_000  # bytes
MAX_DIGITS = 1000  # of an integer; Python refuses to read one of more than 4300
RECEIPT = ".receipt.json"  # ends the name of what `txgrade submit` leaves beside a notebook
COLLECTED = ".collected.json"  # ends the name of what `txgrade collect` leaves beside a notebook
LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()  # what a date can hold; a file's time can be later
MAGIC = ("%submit", "%load_ext txgrade", "#")  # a line of a cell that hands the notebook in
# Each status but `graded`, and what a learner should do about it.
STATUSES = {
    "no notebook": "There is no notebook in your folder: hand in the exercise's .ipynb file.",
    "several notebooks": "There are several notebooks in your folder: leave the one that counts.",
    "link": "What you handed in is a link, not a file: hand in the notebook itself.",
    "unreadable": "What you handed in is not a file that can be read: hand in the exercise's .ipynb file.",
    "too much": "Your file holds too much to be read: clear its outputs (Edit, Clear Outputs of All Cells), take out "
    "what isn't the exercise's, save it, and hand it in again.",
    "too large": f"Your file is larger than {MAX_BYTES // 2**20} MB: clear its outputs (Edit, Clear Outputs of All "
    "Cells), save it, and hand it in again.",
    "empty": "Your file is empty: save the notebook, and hand it in again.",
    "not text": "Your file is not text in UTF-8: hand in the .ipynb file as JupyterLab saved it.",
    "truncated": "Your file breaks off in the middle: hand it in again, it may not have been copied to its end.",
    "not json": "Your file is not a notebook: hand in the .ipynb file, not an export of it.",
    "not a notebook": "Your file has not the form of a notebook: hand in the .ipynb file as JupyterLab saved it.",
    "other language": "Your notebook is for another language than Python: start from the exercise that was released.",
    "no cells": "Your notebook has no cells: hand in the exercise with your answers.",
    "no answers": "None of this exercise's answer cells is in your notebook: start from the exercise that was "
    "released, and write into its cells.",
    "other exercise": "Your notebook holds answers, but to another exercise than this one.",
    "unknown learner": "The list of participants has nobody of your name, so the grader can't tell which variant of "
    "the exercise is yours. Your instructor sees this.",
    "not graded": "The grader itself failed on your notebook. Your instructor knows.",
}


class Unreadable(Exception):
    """Carries a status, and perhaps a note."""

    def __init__(self, status: str, *notes: Note):
        super().__init__(status)
        self.status, self.notes = status, notes


def read_file(path: Path, most: int = MAX_BYTES) -> tuple[bytes, str]:
    """Return the bytes of a plain file, and when it was last written (UTC). A link, a pipe or a device is never read.

    Raises:
        Unreadable: link, unreadable or too large.
    """
    try:
        with Folder(path.parent, follow=False) as folder:
            data, status = folder.read(path.name, most)
    except NotADirectoryError as reason:  # what Linux says of a link where a folder is wanted
        raise Unreadable("link") from reason
    except OSError as reason:
        raise Unreadable(
            {errno.ELOOP: "link", errno.EFBIG: "too large"}.get(reason.errno or 0, "unreadable")
        ) from reason
    seconds = min(max(status.st_mtime, 0), LAST_SECOND)
    return data, datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def read_cells(data: bytes) -> list[dict]:
    """Return the cells of a Python notebook, of any format version that nbformat can lift to 4.

    Raises:
        Unreadable: with the status that says what is wrong.
    """
    notebook = _notebook(data)
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise Unreadable("not a notebook")
    if "python" not in (_language(notebook.get("metadata")) or "python"):
        raise Unreadable("other language")
    cells = [cell for cell in cells if isinstance(cell, dict)]
    if not cells:
        raise Unreadable("no cells")
    return cells


def _notebook(data: bytes) -> dict:
    """Return the JSON of a notebook of format 4, if it is one."""
    if not data.strip():
        raise Unreadable("empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        cut_off = reason.reason == "unexpected end of data" and data.lstrip().startswith(b"{")
        raise Unreadable("truncated" if cut_off else "not text") from reason
    try:
        notebook = json.loads(text, parse_int=_integer)
    except RecursionError as reason:
        raise Unreadable("not a notebook") from reason
    except MemoryError as reason:
        raise Unreadable("too much") from reason
    except ValueError as reason:
        raise Unreadable("truncated" if _breaks_off(text, reason) else "not json") from reason
    if not isinstance(notebook, dict):
        raise Unreadable("not a notebook")
    if isinstance(notebook.get("worksheets"), list):
        notebook = _lifted(notebook)
    return notebook


def _breaks_off(text: str, reason: ValueError) -> bool:
    """Return whether JSON fails at its very end: where something has to follow, in a text, or in a word."""
    text = text.rstrip()
    if not isinstance(reason, json.JSONDecodeError):
        return False
    at_end = reason.pos >= len(text) or reason.msg.startswith("Unterminated") or text[reason.pos :].isalpha()
    return text.lstrip().startswith("{") and at_end and reason.msg != "Extra data"


def _integer(digits: str) -> int:
    return int(digits[:MAX_DIGITS])  # no answer depends on it


def _lifted(notebook: dict) -> dict:
    """Convert a notebook of format 3, which kept its cells in worksheets."""
    import nbformat

    try:
        return nbformat.convert(nbformat.from_dict(notebook), 4)
    except Exception as reason:  # nbformat raises many kinds
        raise Unreadable("not a notebook") from reason


def _language(metadata: Any) -> str:
    """Return the language that a notebook says its code is in, in lower case; "" if it doesn't say."""
    for key, name in (("kernelspec", "language"), ("language_info", "name")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        language = part.get(name) if isinstance(part, dict) else None
        if isinstance(language, str) and language:
            return language.lower()
    return ""


def grade_id_of(cell: dict) -> str | None:
    """Return the grade_id in a cell's metadata."""
    id = _nbgrader(cell).get("grade_id")
    return id if isinstance(id, str) else None


def is_solution(cell: dict) -> bool:
    return _nbgrader(cell).get("solution") is True


def _nbgrader(cell: dict) -> dict:
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return nbgrader if isinstance(nbgrader, dict) else {}


def source_of(cell: dict) -> str:
    """Return a cell's source, which may be a list of lines, as text that a file can hold."""
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source.encode("utf-8", "replace").decode("utf-8") if isinstance(source, str) else ""
