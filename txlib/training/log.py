"""What a run shows and writes: a progress bar, `metrics.csv`, events for TensorBoard."""

import csv
import io
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from txlib.training.checkpoints import reporting_write_errors
from txlib.training.state import Progress

COLUMNS = ("step", "loss", "tokens", "seconds", "validation")


class Log:
    """The log of a run, step by step.

    Args:
        out: folder for `metrics.csv` and events; None keeps nothing.
        progress: how far the run is; rows of later steps are dropped from the file.
        quiet: no progress bar.
        tensorboard: also write events.
    """

    def __init__(self, out: Path | None, progress: Progress, *, quiet: bool, tensorboard: bool):
        self.file = self.events = self.bar = None
        self.logged = len(progress.losses)  # number of steps in the log
        if out:
            out.mkdir(parents=True, exist_ok=True)
            with reporting_write_errors(out):
                self.file = open_rows(out / "metrics.csv", progress.step)
        if out and tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(out), purge_step=progress.step + 1)
        if not quiet:
            self.bar = make_bar("training", total=progress.total, initial=progress.step, unit="step")

    def step(self, progress: Progress) -> None:
        """Log the last step whose loss is known, unless it is logged already."""
        if len(progress.losses) == self.logged:
            return
        step = self.logged = len(progress.losses)
        loss: float = progress.losses[-1]
        validation: float | str = ""
        if progress.validation and progress.validation[-1][0] == step:
            validation = progress.validation[-1][1]
        if self.file:
            row = (step, loss, progress.tokens, f"{progress.seconds:.2f}", validation)
            with reporting_write_errors(Path(self.file.name)):
                csv.writer(self.file, lineterminator="\n").writerow(row)
                self.file.flush()
        if self.events:
            self.events.add_scalar("loss", loss, step)
            if validation != "":
                self.events.add_scalar("validation", validation, step)
        if self.bar is not None:
            self.bar.total = progress.total
            recent = progress.losses[-20:]
            self.bar.set_postfix_str(f"loss {sum(recent) / len(recent):.3f}", refresh=False)
            self.bar.update(1)

    def say(self, text: str) -> None:
        """Print a text above the progress bar."""
        (print if self.bar is None else self.bar.write)(text)

    def close(self) -> None:
        """Close file, events and progress bar; a full disk was reported already."""
        for output in (self.file, self.events, self.bar):
            if output is not None:
                with suppress(OSError):
                    output.close()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def show_progress(items: Sequence, what: str) -> Iterable:
    """Return the items with a progress bar, which disappears after the last one."""
    return make_bar(what, iterable=items, leave=False)


def make_bar(what: str, **options: Any) -> Any:
    """Return a bar of tqdm on stderr, or under the cell of a notebook, which shows stderr on a red ground."""
    from tqdm import tqdm

    notebook = type(sys.stdout).__module__.startswith("ipykernel")
    options = {"mininterval": 0.5, "leave": not notebook, **options}
    return tqdm(desc=what, file=sys.stdout if notebook else sys.stderr, **options)


def open_rows(path: Path, step: int) -> io.TextIOWrapper:
    """Return a CSV file to append to, cut back to a step: a killed run has logged steps after its last checkpoint."""
    rows = path.read_text(encoding="utf-8").splitlines()[1 : step + 1] if step and path.exists() else []
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return open(path, "a", newline="", encoding="utf-8")
