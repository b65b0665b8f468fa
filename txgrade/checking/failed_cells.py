"""A cell that ended with an error, named as the cause of what comes of it.

Where the cell of an answer does not run, its function is missing, or an older version of it is still there. A check
that speaks of that alone sends a learner to the wrong place.
"""

import ast
import re
from dataclasses import dataclass
from typing import Any

from txgrade.source import names_bound, names_used, parsed

DEFINED = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)  # also in a cell that is not Python
MISSING = re.compile(r"name '(\w+)' is not defined")
PLACE = re.compile(r" \((?:<[^>]*>|[\w.-]+), line (\d+)\)$")  # what Python adds to a syntax error's message
BEFORE = ("SyntaxError", "IndentationError", "TabError")  # of these no line of the cell was run


@dataclass(frozen=True)
class Failure:
    """How a cell ended that would have defined some names."""

    error: str
    message: str
    line: int | None = None
    code: str = ""

    def words(self, whose: str) -> str:
        """Return a sentence, in markdown, that says whose cell it was."""
        message = f": {self.message.rstrip('.')}" if self.message else ""
        where = f", in line {self.line}" if self.line else ""
        code = f": `{self.code}`" if self.line and self.code else "."
        return f"The cell of {whose} ended with `{self.error}`{message}{where}{code}"

    @property
    def before(self) -> bool:
        """Whether nothing of the cell was run."""
        return self.error in BEFORE


def failure_of(source: str, error: str, message: str, line: int | None = None) -> Failure:
    """Return the failure of a cell with this source; the line of a syntax error is found in its message."""
    if match := PLACE.search(message):
        message, line = message[: match.start()], int(match[1])
    lines = source.splitlines()
    code = lines[line - 1].strip() if line and line <= len(lines) else ""
    return Failure(error, (message.splitlines() or [""])[0][:200], line, code[:100])


def names_defined(source: str) -> set[str]:
    """Return the names that a cell would give to those below it, even where it can't be read."""
    imports = [node for node in parsed(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    return names_bound(source) | imported | set(DEFINED.findall(source))


def missing_name(error: dict | None) -> str:
    """Return the name that a NameError, as evidence has it, speaks of."""
    match = MISSING.match(error["message"]) if error and error["error"] == "NameError" else None
    return match[1] if match else ""


class Cells:
    """The cells of a running notebook whose last run failed, by the names that they would have defined."""

    def __init__(self) -> None:
        self.failed: dict[str, Failure] = {}
        self._running = ""

    def watch(self, shell: Any) -> None:
        """Learn of each cell that IPython runs from now on."""
        shell.events.register("pre_run_cell", lambda info: self.begin(info.raw_cell))
        shell.events.register("post_run_cell", self._ended)

    def begin(self, source: str) -> None:
        self._running = source

    def end(self, source: str, failure: Failure | None) -> None:
        for name in names_defined(source):
            if failure is None:
                self.failed.pop(name, None)
            else:
                self.failed[name] = failure

    def cause(self, missing: str = "") -> tuple[str, Failure] | None:
        """Return which name that the running cell uses is not as its source says, or why `missing` is not there."""
        used = sorted(names_used(self._running))
        return next(((name, self.failed[name]) for name in (missing, *used) if name in self.failed), None)

    def _ended(self, result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        source = result.info.raw_cell
        failure = None
        if isinstance(error, Exception):
            failure = failure_of(source, type(error).__name__, _text(error), _line(error, source))
        self.end(source, failure)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # a learner's own exception may fail to say what it is
        return ""


def _line(error: Exception, source: str) -> int | None:
    """Return the line of the cell at which it ended: of the traceback's frames, the first that is the cell's own."""
    if isinstance(error, SyntaxError):
        return error.lineno
    trace, lines = error.__traceback__, len(source.splitlines())
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "<module>" and trace.tb_frame.f_globals.get("__name__") == "__main__":
            return trace.tb_lineno if trace.tb_lineno <= lines else None
        trace = trace.tb_next
    return None


cells = Cells()
