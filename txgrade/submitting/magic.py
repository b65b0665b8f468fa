"""`%submit` in a notebook: hand in the notebook that it stands in."""

import argparse
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from txgrade.submitting.folder import SubmitError
from txgrade.submitting.notebook import MAGIC, Unreadable, read_cells, source_of
from txgrade.submitting.submit import date, read_saved, submit


def submit_line(line: str, shell: Any, runs: Iterable[tuple[float, str]] = ()) -> None:
    """`%submit [NOTEBOOK] [--to FOLDER] [--name NAME] [--anyway]`: hand in the notebook that it stands in.

    What counts is the saved file: save first. Where the notebook's path can't be found, give it. `runs` are the times
    and sources of cells that ran before.
    """
    parser = _Parser(prog="%submit", add_help=False)
    parser.add_argument("notebook", nargs="?")
    parser.add_argument("--to")
    parser.add_argument("--name")
    parser.add_argument("--anyway", action="store_true")
    try:
        try:
            options = parser.parse_args(shlex.split(line, posix=os.name != "nt"))
        except ValueError as reason:
            raise SubmitError(f"%submit {line}: {reason}") from None
        path = options.notebook or _this_notebook(shell)
        if not options.notebook and not options.anyway:
            _need_saved(path, runs)
        print(submit(path, options.to, name=options.name, anyway=options.anyway))
    except SubmitError as reason:
        print(f"Not handed in: {reason}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; write %submit [NOTEBOOK] [--to FOLDER] [--name NAME] [--anyway]")


def _this_notebook(shell: Any) -> Path:
    """The notebook whose kernel this is, as far as JupyterLab or VS Code tell."""
    path = shell.user_ns.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    if not path or Path(path).suffix != ".ipynb":
        raise SubmitError(
            "this kernel doesn't know its notebook: write %submit exercise_03_attention.ipynb, with its name"
        )
    if not Path(path).is_file():
        raise SubmitError(f"{path} is gone: if you have renamed it, write %submit with its new name")
    return Path(path)


def _need_saved(path: Path, runs: Iterable[tuple[float, str]]) -> None:
    """Refuse a file that lacks a cell which ran after it was saved: the notebook in the window is another one."""
    data, saved = read_saved(path)
    try:
        sources = {source_of(cell).strip() for cell in read_cells(data)}
    except Unreadable:  # `submit` says why
        return
    written = path.stat().st_mtime
    for at, source in runs:
        handing_in = all(line.startswith(MAGIC) for line in source.strip().splitlines())
        if at > written and not handing_in and source.strip() not in sources:
            raise SubmitError(
                f"{path.name} was last saved {date(saved)}, and you have run other code since: save it "
                "(Ctrl+S) and run %submit again, or say --anyway"
            )
