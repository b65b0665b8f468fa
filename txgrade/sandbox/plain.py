"""A kernel with limits and without a sandbox: what is left where bubblewrap can't run and submissions are trusted."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from txgrade.sandbox.jail import HOME, set_limits, start_folder
from txgrade.sandbox.limits import Limits
from txgrade.sandbox.probe import probe
from txgrade.sandbox.view import PACKAGE
from txgrade.sandbox.zygote import SandboxError


def start_plain(home: Path, limits: Limits, pipes: tuple[int, int]) -> subprocess.Popen:
    """A process that runs `cells.py`, with its two pipes.

    Raises:
        SandboxError: the submissions are not said to be trusted.
    """
    if os.environ.get("TXGRADE_TRUST_SUBMISSIONS") != "1":
        raise SandboxError(
            f"a kernel can't be sealed here ({'; '.join(probe().holes)}). Install bubblewrap; or set "
            "TXGRADE_TRUST_SUBMISSIONS=1 if you trust the notebook"
        )
    start = make_home(home, data_from_environment())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TXGRADE_", "TXLIB_"))} | {
        "HOME": str(home),
        "TXGRADE_HOME": str(home),
        "IPYTHONDIR": str(home / ".ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": str(PACKAGE.parent),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "txgrade.sandbox.plain", limits.to_json(), *map(str, pipes)],
        cwd=start,
        env=environment,
        pass_fds=pipes,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def data_from_environment() -> dict[str, str]:
    """The assignment's data, by place, as `$TXGRADE_ASSIGNMENT_DATA` names them."""
    return json.loads(os.environ.get("TXGRADE_ASSIGNMENT_DATA", "{}"))


def make_home(home: Path, data: Mapping[str, Path | str]) -> Path:
    """A home with copies of an assignment's data, placed as in a sandbox; returns the folder to start in."""
    start = Path(str(home) + start_folder(list(data)).removeprefix(HOME))
    start.mkdir(parents=True)
    for place, path in data.items():
        target = Path(os.path.normpath(start / place))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(path, target) if Path(path).is_dir() else shutil.copyfile(path, target)
    return start


def main(limits: str, requests: str, messages: str) -> None:
    bounds, parent = Limits.from_json(limits), os.getppid()

    def watch() -> None:
        """Don't outlive the grader, nor the notebook's time."""
        end = time.monotonic() + bounds.notebook_seconds
        while os.getppid() == parent and time.monotonic() < end:
            time.sleep(0.5)
        os.killpg(0, 9)

    threading.Thread(target=watch, daemon=True).start()
    set_limits(bounds, alone=False)
    from txgrade.sandbox.cells import serve  # IPython, which the grader's own process does without

    serve(int(requests), int(messages))


def cpu_seconds_of(process: int) -> float:
    """Processor time of a plain kernel, of its children that live, and of those that it has waited for."""
    import psutil

    total = 0.0
    with contextlib.suppress(psutil.Error):
        kernel = psutil.Process(process)
        for child in (kernel, *kernel.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(child.cpu_times()[:4])  # user, system, and both of ended children
    return total


if __name__ == "__main__":
    main(*sys.argv[1:])
