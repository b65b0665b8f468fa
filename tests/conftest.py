"""Shapes written in annotations are checked at run time while the tests run; random numbers repeat."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import isgeneratorfunction
from pathlib import Path
from types import FunctionType
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook, jaxtyped
from xdist.scheduler import LoadScopeScheduling


def checked(annotated: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped`, which the import hook puts above each function and class, with half of its work.

    jaxtyped binds the arguments of each call and checks them twice. Only generators, properties, names in quotes
    that only type checkers import, and shapes such as "batch {heads}", which read an argument's value, need that; any
    other function needs what jaxtyping calls a context, and beartype to check once.
    """
    if annotated is None:
        return partial(checked, typechecker=typechecker)
    if getattr(annotated, "__no_type_check__", False):
        return annotated
    if isinstance(annotated, type):
        if is_dataclass(annotated) and "__init__" in vars(annotated):
            annotated.__init__ = checked(annotated.__init__, typechecker=typechecker)
        return annotated
    plain = isinstance(annotated, FunctionType) and not isgeneratorfunction(annotated)
    hints = [*annotated.__annotations__.values()] if plain else []
    if not plain or "{" in str(hints) or any(isinstance(hint, str) for hint in hints):
        return jaxtyped(annotated, typechecker=typechecker)
    typed = typechecker(annotated)

    @wraps(annotated)
    def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return annotated(*args, **kwargs)
        with jaxtyped("context"):
            return typed(*args, **kwargs)

    return annotated if typed is annotated else function


jaxtyping.jaxtyped = checked
install_import_hook(("txlib", "txgrade", "txcourse"), "beartype.beartype")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anybody imports Triton, which parts of torch do

from txlib.training.memory import available_memory, readable  # noqa: E402

LONGEST_LESSON = 90  # seconds
LONGEST_FILE = 30
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ROOM = 2 * 10**9  # bytes of memory for a process of tests and the kernels that it starts


class TorchRandom:
    """Lets hypothesis seed torch for each example, so that a failure can be repeated and shrunk."""

    seed = staticmethod(torch.manual_seed)

    def getstate(self) -> bytes:
        return torch.get_rng_state().numpy().tobytes()

    def setstate(self, state: bytes) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


TORCH_RANDOM = TorchRandom()  # hypothesis holds it weakly
hypothesis.register_random(TORCH_RANDOM)
hypothesis.settings.register_profile("txlib", max_examples=10, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("txlib-long", max_examples=500, deadline=None)
hypothesis.settings.load_profile("txlib")  # pytest --hypothesis-profile=txlib-long looks harder


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: a process for each core that this one may use, if there is memory for it."""
    cores = usable_cores()
    free = available_memory()
    processes = max(1, min(cores, cores if free is None else free // ROOM))
    print(f"{processes} processes: {cores} cores, {readable(free or 0)} of free memory, {readable(ROOM)} for each")
    return processes


def usable_cores() -> int:
    """The cores of this process's affinity, or of its container where that has fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no limit: "max"
        return cores


class Scheduling(LoadScopeScheduling):
    """A file's tests run in one process, for they share what they set up; a lesson shares nothing."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith("tests/notebooks/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list) -> None:
    """What takes longest begins: with several processes, all are busy to the end."""
    items.sort(key=lambda item: (item.path.parent.name != "notebooks", item.get_closest_marker("slow") is None))


def pytest_terminal_summary(terminalreporter) -> None:
    """How long each lesson took (its test's report brings it here, from whichever process ran it), and each file."""
    reports = [each for kind in ("", "passed", "failed", "skipped") for each in terminalreporter.getreports(kind)]
    of_files = Counter()
    for each in reports:
        of_files[each.nodeid.partition("::")[0]] += each.duration
    for file, seconds in of_files.most_common(60):
        if seconds > LONGEST_FILE:
            terminalreporter.write_line(f"file {file}: {seconds:.0f} s")
    lessons = [dict(each.user_properties)["lesson"] for each in reports if each.when == "call" and each.user_properties]
    for lesson, seconds in sorted(lessons):
        slow = f"  longer than {LONGEST_LESSON} s" if seconds > LONGEST_LESSON else ""
        terminalreporter.write_line(f"lesson {lesson}: {seconds:.0f} s{slow}", yellow=bool(slow))


@pytest.fixture(autouse=True)
def seed():
    """Each test starts from the same random numbers, whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def left_as_found():
    """What a test changes of its process would meet the tests that happen to come after it, and fail them, not it."""
    found = state_of_the_process()
    yield
    left = state_of_the_process()
    names = sorted(name for name in found.keys() | left.keys() if found.get(name) != left.get(name))
    assert not names, "the test left changed " + ", ".join(
        f"{name}: {found.get(name)!r}, now {left.get(name)!r}" for name in names
    )


def state_of_the_process() -> dict[str, object]:
    """What tests have in common, by name."""
    shell = sys.modules.get("IPython.core.interactiveshell")
    theirs = "PYTEST_", "TORCHINDUCTOR_"  # what pytest and torch's compiler note there for themselves
    environment = {f"${name}": value for name, value in os.environ.items() if not name.startswith(theirs)}
    return environment | {
        "working directory": os.getcwd(),
        "search path": list(sys.path),
        "threads": torch.get_num_threads(),
        "default type": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "process group": torch.distributed.is_initialized(),
        "checks of annotations": jaxtyping.config.jaxtyping_disable,
        "IPython's shell": shell is not None and shell.InteractiveShell.initialized(),
    }


@pytest.fixture
def unchecked():
    """As users run txlib: without the checks of annotations, so that its own errors speak; or its numbers, where a test
    repeats one call hundreds of times, as finite differences do.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def command(monkeypatch, capsys):
    """`command("txlib", …)` runs a command in this process: (exit status, stdout, stderr)."""

    def run(name: str, *arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            import_module(f"{name}.cli").main()
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def txlib(command):
    """`txlib …` in this process: (exit status, stdout, stderr)."""
    return partial(command, "txlib")


@pytest.fixture
def txgrade(command):
    """`txgrade …` in this process: (exit status, stdout, stderr)."""
    return partial(command, "txgrade")


@pytest.fixture
def txcourse(command):
    """`txcourse …` in this process: (exit status, stdout, stderr)."""
    return partial(command, "txcourse")


@pytest.fixture(scope="module")  # while it runs, nothing else in this process can use asyncio
def chromium():
    """A headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium: apt install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()
