"""Runs and writes the project's own notebooks.

Submissions run elsewhere, sealed and watched: `txgrade.judging.execute`.
"""

import copy
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txgrade.quick_nbformat  # noqa: F401
from txgrade.files import write_atomically
from txgrade.paths import PACKAGES

KERNEL = "python3"
TIMEOUT = 600  # seconds a cell


class Stopped(RuntimeError):
    """A run that ended before the last cell. The message is one line; `trace` shows the cell and its traceback."""

    def __init__(self, why: str, trace: str = ""):
        super().__init__(why)
        self.trace = trace or why


def run(
    notebook: Any,
    folder: Path | str,
    *,
    timeout: int | float = TIMEOUT,
    keep_going: bool = False,
    interrupt: bool = False,
    on_cell: Callable[[int, int], None] | None = None,
    **variables: str,
) -> dict[str, float]:
    """Run a notebook in place, in a fresh kernel that works in `folder`; returns each cell's seconds, by id.

    A cell that raises ends the run; with `keep_going` the error is one of its outputs. A cell that takes longer than
    `timeout` seconds ends it too; with `interrupt` that counts as an error in the cell. `on_cell(number, count)` is
    called before each cell. `variables` are set in the kernel's environment.

    Raises:
        Stopped: a cell raised or took too long, or the kernel died.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    before = copy.deepcopy(notebook.metadata)  # nbclient adds what the kernel says of itself, its version for one
    late = f"longer than {timeout:g} s"
    began, seconds, count = {}, {}, len(notebook.cells)

    def begin(cell: Any, cell_index: int) -> None:
        began[cell.id] = time.perf_counter()
        if on_cell:
            on_cell(cell_index + 1, count)

    def end(cell: Any, cell_index: int, execute_reply: dict) -> None:
        seconds[cell.id] = time.perf_counter() - began[cell.id]

    client = NotebookClient(
        notebook,
        kernel_name=KERNEL,
        timeout=timeout,
        allow_errors=keep_going,
        interrupt_on_timeout=interrupt,
        error_on_timeout={"ename": "Timeout", "evalue": late, "traceback": []},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        on_cell_start=begin,
        on_cell_executed=end,
        extra_arguments=["--log-level=ERROR"],  # a kernel otherwise warns that local sockets aren't encrypted
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(env=environment(**variables))
    except CellExecutionError as reason:
        raise Stopped(f"{reason.ename}: {reason.evalue}", str(reason)) from reason
    except CellTimeoutError as reason:
        raise Stopped(f"a cell ran {late}", str(reason)) from reason
    except DeadKernelError as reason:
        raise Stopped("the kernel died: did a cell use up the memory, or call exit?") from reason
    finally:
        notebook.metadata = before
    return seconds


def environment(**variables: str) -> dict[str, str]:
    """This process's environment for another one, in which the same packages can be imported, and more variables."""
    folders = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)} | variables


def metadata() -> Any:
    """Return the metadata of every notebook that the project writes."""
    import nbformat

    spec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": KERNEL}
    return nbformat.from_dict({"kernelspec": spec, "language_info": {"name": "python"}})


def write_notebook(path: Path, notebook: Any) -> None:
    """Write a notebook in one piece, in nbformat's own layout."""
    import nbformat

    nbformat.validate(notebook)
    write_atomically(path, nbformat.writes(notebook) + "\n")
