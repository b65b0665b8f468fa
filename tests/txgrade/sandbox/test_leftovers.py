"""A grader that is killed, whenever, leaves nothing that the next start doesn't sweep; the living are spared."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from txgrade.sandbox import Zygote, groups, leftovers, owners, probe
from txgrade.sandbox.view import PACKAGE

pytestmark = pytest.mark.slow
sealed = pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")

GRADER = """
import os, sys, time
from txgrade.sandbox import Limits, Zygote
from txgrade.sandbox.kernel import Cell, Kernel

print("started", flush=True)
with Zygote() as zygote:
    print("warm", flush=True)
    os.environ["TXGRADE_ZYGOTE"] = str(zygote.address)
    with Kernel(Limits()) as kernel:
        kernel.run("import os\\nif os.fork() == 0:\\n    os.setsid()\\n    while True: pass", 0, 20, Cell())
        print("busy", flush=True)
        time.sleep(600)
"""


def all_left(process):
    """Folders and control groups that a process has made."""
    tag = f"{process}-"
    found = [*Path("/tmp").glob(f"{leftovers.PREFIX}{tag}*")]
    for parent in groups._parents():
        found += parent.glob(f"{groups.PREFIX}{tag}*")
    return found


@sealed
@pytest.mark.parametrize(
    "moment",
    ["busy", "started", "started+0.02", "started+0.1", "started+0.3", "warm", "warm+0.1"],
)
def test_nothing_stays_after_a_kill(moment):
    word, _, seconds = moment.partition("+")
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    with subprocess.Popen([sys.executable, "-c", GRADER], stdout=subprocess.PIPE, text=True, env=environment) as grader:
        assert word in (line.strip() for line in grader.stdout)  # reads up to there, or to the grader's end
        time.sleep(float(seconds or 0))
        family = psutil.Process(grader.pid).children(recursive=True)
        if moment == "busy":
            assert len(family) >= 6 and all_left(grader.pid)  # so that there is something to sweep
        grader.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(family, timeout=10)[1] == []
    with Zygote():
        assert all_left(grader.pid) == []
        assert all_left(os.getpid())


@sealed
def test_a_sandbox_that_was_started_by_a_dying_grader_ends_itself():
    """bubblewrap asks to die with its parent; it may be too late to ask."""
    with Zygote() as zygote:
        zygote_process = psutil.Process(zygote._process.pid).children(recursive=True)
        zygote._process.stdin.close()  # as it is when the grader is gone
        assert psutil.wait_procs(zygote_process, timeout=10)[1] == []


def test_the_living_are_spared(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))
    mine = leftovers.make_folder()
    (mine / "expected.json").write_text("1")
    process, started, namespace = owners.owner(owners.own_tag())
    others = [
        tmp_path / f"tx-{process}-{started}-{namespace + 1}-a",  # of another container
        tmp_path / f"tx-{os.getppid()}-{owners._started(os.getppid())}-{namespace}-a",
        tmp_path / "tx-what-ever",
    ]
    gone = [
        tmp_path / f"tx-{process}-{started - 1}-{namespace}-a",  # the number has come again
        tmp_path / f"tx-{2**30}-5-{namespace}-a",
    ]
    for path in (*others, *gone):
        path.mkdir()
        (path / "link").symlink_to(mine)
    leftovers.sweep()
    assert (mine / "expected.json").exists() and all(path.exists() for path in others)
    assert not any(path.exists() for path in gone)


def test_only_ones_own_folders_are_swept(tmp_path, monkeypatch):
    """/tmp is everybody's."""
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))
    path = tmp_path / f"tx-{2**30}-5-{owners._namespace()}-a"
    path.mkdir()
    monkeypatch.setattr(leftovers.os, "getuid", lambda: path.stat().st_uid + 1)
    leftovers.sweep()
    assert path.exists()


def test_a_folder_is_its_makers_alone(tmp_path):
    assert leftovers.make_folder(tmp_path).stat().st_mode & 0o777 == 0o700


def test_a_group_that_another_grader_removes_meanwhile_is_no_error(tmp_path, monkeypatch):
    left = tmp_path / f"{groups.PREFIX}{2**30}-5-{owners._namespace()}-a"
    (left / "kernel").mkdir(parents=True)
    monkeypatch.setattr(groups, "_parents", lambda: [tmp_path])

    def removed_while_listing(group, pattern):
        shutil.rmtree(group)
        yield from os.scandir(group)

    monkeypatch.setattr(groups.Path, "rglob", removed_while_listing)
    groups.sweep()
    assert not left.exists()
