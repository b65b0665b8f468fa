"""How tight is the sandbox on this machine? It is tried, not assumed."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from txgrade.sandbox.limits import Limits
from txgrade.sandbox.view import PACKAGE
from txgrade.sandbox.zygote import SandboxError, Zygote, start_kernel

CANARY = ".txgrade-probe-"


@dataclass(frozen=True)
class Probe:
    """`level` is `sealed`, `limits-only` (a process with limits, that can see the machine) or `none`.

    `holes` says what is open, in sentences; nothing where it is sealed.
    """

    level: str
    holes: tuple[str, ...] = ()


@cache
def probe() -> Probe:
    """Try the sandbox from inside, once a process: network, files, environment, processes, system calls.

    Ubuntu 24.04 may refuse user namespaces; macOS has none: both give `limits-only`. Windows gives `none`: use WSL2.
    """
    if os.name != "posix":
        return Probe("none", ("this system has no sandbox; on Windows use WSL2",))
    try:
        with Zygote() as zygote:
            holes = _holes(zygote)
    except (SandboxError, OSError) as reason:
        return Probe("limits-only", (str(reason),))
    return Probe("limits-only", tuple(holes)) if holes else Probe("sealed")


def _holes(zygote: Zygote) -> list[str]:
    """Put things in place that must stay out of reach, and let the probe reach for them."""
    words, abstract = secrets.token_hex(8), f"txgrade-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        if sys.platform == "linux":
            hidden.bind("\0" + abstract)
            hidden.listen()
        marker = _marker(stack, None, words)
        private = _marker(stack, Path.home(), words) or marker
        process = stack.enter_context(waiting_process(words))
        targets = {
            "listener": listener.getsockname(),
            "abstract": abstract,
            "marker": str(marker),
            "prefix": sys.prefix,
            "package": str(PACKAGE),
            "solutions": str(PACKAGE.parent / "solutions"),
            "private": str(private),
            "locked": str(Path(__file__)),
            "process": {"words": words, "pid": process.pid},
        }
        return _reached_inside(zygote, targets)


def visible_inside(zygote: Zygote, folders: Iterable[Path]) -> list[Path]:
    """Those of the folders that a kernel could look into. A file is planted in each for it to find.

    Where none can be planted, any that is there already will do.
    """
    with contextlib.ExitStack() as stack:
        canaries = {}
        for folder in {folder.resolve() for folder in folders}:
            try:
                planted = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=CANARY))
                os.chmod(planted.name, 0o644)  # nothing but the sandbox keeps others out
                canaries[str(folder)] = [planted.name]
            except OSError:
                canaries[str(folder)] = [str(path) for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(map(Path, _reached_inside(zygote, {"canaries": canaries})))


def _reached_inside(zygote: Zygote, targets: dict) -> list[str]:
    """What `probe_inside.py` can reach in a sandbox, of the targets."""
    with tempfile.TemporaryFile("w+") as request, tempfile.TemporaryFile("w+") as answer:
        json.dump(targets, request)
        request.seek(0)
        files, name = (request.fileno(), answer.fileno()), f"probe-{secrets.token_hex(4)}"
        with start_kernel(zygote.address, "probe", name, Limits(), files) as lease:
            ended = lease.read(30)
        answer.seek(0)
        try:
            return json.load(answer)
        except ValueError as reason:
            raise SandboxError(f"the probe did not come back: {ended and ended.get('ended')}") from reason


@contextlib.contextmanager
def waiting_process(words: str) -> Iterator[subprocess.Popen]:
    """A process that does nothing, and has these words on its command line."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # only then is its command line there to see
        yield process
        process.kill()


def _marker(stack: contextlib.ExitStack, folder: Path | None, words: str) -> Path | None:
    """A file that only the sandbox must not read, in a folder of its own; None where none can be made."""
    try:
        made = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=CANARY))
    except OSError:
        return None
    path = Path(made, "marker")
    path.write_text(words)
    os.chmod(made, 0o755)  # nothing but the sandbox keeps others out
    return path
