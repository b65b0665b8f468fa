"""Shows an instructor how grading gets on: how many are queued, what runs, each verdict as it comes."""

import sys
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from txgrade.records.result import Result


class Display:
    """A live display on a terminal, plain lines elsewhere. Call it with each event of `grader.grade`."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(file=sys.stderr, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.bar = self.progress.add_task("grading", total=0)
        self.running: dict[str, None] = {}
        self.queued = self.kept = 0
        self.live = Live(console=self.console, get_renderable=self._table, refresh_per_second=8, transient=True)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.live.stop()
        if self.kept:
            self.console.print(f"= {self.kept} unchanged since an earlier run")

    def __call__(self, name: str, state: str, result: Result | None) -> None:
        if state == "queued":
            self.queued += 1
            self.progress.update(self.bar, total=self.queued)
        elif state == "running":
            self.running[name] = None
        elif state == "kept":
            self.kept += 1
        elif state == "graded" and result is not None:
            self.running.pop(name, None)
            self.progress.advance(self.bar)
            self.console.print(Text(line(result)))

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row(self.progress)
        for name in list(self.running)[:8]:
            table.add_row(Text(f"  running  {name}"))
        return table


def line(result: Result) -> str:
    """Return one submission in one line: `✓ ada  12 of 12`."""
    symbol = "?" if result.status != "graded" else "✓" if result.score == result.max_score else "·"
    status = "" if result.status == "graded" else f"  {result.status}"
    look = f"  {result.waiting} to mark" if result.waiting else ""
    look += "  needs a look" if result.needs_look else ""
    return f"{symbol} {result.submission}  {result.score:g} of {result.max_score:g}{status}{look}"
