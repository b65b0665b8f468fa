"""The sealed kernel, tried from inside and shot at from outside. Where it can't be sealed these tests are skipped."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import nbformat
import psutil
import pytest

from txgrade.judging.execute import execute
from txgrade.sandbox import Limits, SandboxError, Zygote, probe
from txgrade.sandbox.kernel import Cell, Kernel
from txgrade.sandbox.probe import waiting_process
from txgrade.sandbox.probe_inside import attempts
from txgrade.sandbox.view import PACKAGE

pytestmark = pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")
LIMITS = Limits(memory_mb=300, cpu_seconds=20, processes=40, disk_mb=20, file_mb=10, cell_seconds=15)


TMP = Path("/tmp")
needs_tmp = pytest.mark.skipif(
    any(each.is_relative_to(TMP) for each in (PACKAGE, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())),
    reason="the environment itself lies under /tmp, so that /tmp is read-only inside",
)


@pytest.fixture(scope="module")
def zygote():
    with pytest.MonkeyPatch.context() as patch, Zygote(["numpy", "torch"]) as zygote:
        patch.setenv("TXGRADE_ZYGOTE", str(zygote.address))
        yield zygote


@pytest.fixture
def run(zygote):
    """Run cells in one sealed kernel; returns what each printed, or the error it raised, and how the run ended."""

    def run(*cells, limits=LIMITS):
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell, id=f"c{i}") for i, cell in enumerate(cells)],
            metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
        )
        executed = execute(notebook, 0, limits)
        said = []
        for i in range(len(cells)):
            outputs = executed.outputs.get(f"c{i}", [])
            said.append("".join(output.get("text", "") or output.get("ename", "") for output in outputs).strip())
        return said, executed.stopped

    return run


def one(run, cell, **settings):
    (said,), stopped = run(cell, **settings)
    assert stopped is None, stopped
    return said


def test_it_computes(run):
    assert one(run, "import torch; print(torch.arange(4).sum().item(), torch.get_num_threads())") == "6 1"


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
        "import socket; socket.getaddrinfo('pypi.org', 443)",
        "import os; os.listdir('{package}/../solutions')",
        "import os; os.listdir('{package}/../tests')",
        "import os; os.listdir('{package}/../.git')",
        "open('{package}/grading/checks.py', 'a')",
        "open('{prefix}/written', 'w')",
        "open('/etc/shadow')",
        "open('/etc/hostname')",
        "open('/learner/../written', 'w')",
        "open('{marker}').read()",
        "import os; os.setuid(0)",
        "import os; os.kill(1, 9); os.chown('/learner', 0, 0)",
        "import socket; socket.socket(socket.AF_UNIX).connect('/run/txgrade/control')",
        "import os; os.listdir('/run/txgrade')[0]",
        "open('/proc/1/mem', 'rb')",
        "open('/proc/1/environ').read()",
        "import os; os.listdir('/proc/1/root')",
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None): raise PermissionError",
    ],
)
def test_what_lies_outside_is_out_of_reach(run, tmp_path, code):
    marker = tmp_path / "marker"
    marker.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = code.format(port=listener.getsockname()[1], package=PACKAGE, prefix=sys.prefix, marker=marker)
        assert one(run, code).endswith(("Error", "gaierror"))


def test_the_probe_finds_each_hole_where_there_is_one(tmp_path):
    """Outside the sandbox every attempt but the last succeeds, so none of them fails for want of a target."""
    (tmp_path / "marker").write_text("")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden.bind("\0txlib-test")
        hidden.listen()
        process = stack.enter_context(waiting_process(words := f"--{os.getpid()}"))
        targets = {
            "listener": listener.getsockname(),
            "abstract": "txlib-test",
            "marker": str(tmp_path / "marker"),
            "private": str(tmp_path / "marker"),
            "solutions": str(PACKAGE.parent / "solutions"),
            "prefix": str(tmp_path),
            "package": str(tmp_path),
            "locked": str(tmp_path / "marker"),
            "process": {"words": words, "pid": process.pid},
        }
        found = []
        for said, attempt in attempts(targets)[:-1]:
            try:
                attempt()
            except Exception as reason:
                found.append((said, reason))
    assert not found


@needs_tmp
def test_each_home_is_empty_private_and_gone(run):
    write = "import os; print(os.getcwd(), os.listdir('.')); open('mine', 'w').write('x'); open('/tmp/mine', 'w')"
    for _ in range(2):
        assert one(run, write) == "/learner ['.ipython']"


def test_no_other_process_is_in_sight(run):
    seen = one(run, "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()), os.getuid())")
    processes, uid = seen.rsplit(" ", 1)
    assert json.loads(processes) == [2]  # itself
    assert int(uid) > 1_000_000_000 or os.getuid() == int(uid) != 0


def test_children_have_random_numbers_of_their_own(run):
    code = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(()).item())"
    first, second = one(run, code).split(), one(run, code).split()
    assert len(first) == 3 and not set(first) & set(second)


def test_memory_is_limited(run):
    for hog in ("x = bytearray(10 * 2**30)", "import torch; x = torch.ones(2**31)"):
        assert one(run, hog) in ("MemoryError", "RuntimeError")
    said, stopped = run(
        "import mmap\nshared = mmap.mmap(-1, 2**30)\nfor i in range(0, 2**30, 4096): shared[i] = 1\n"
        "import time; time.sleep(10)",
        "print('alive')",
    )
    assert stopped and "memory limit of 300 MB" in stopped and said[1] == ""


@pytest.mark.slow
def test_forks_count_what_they_share_once(run):
    code = (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(1); os._exit(0)\n"
        "time.sleep(1)\nprint('fine')"
    )
    assert one(run, code) == "fine"  # six times the zygote's 150 MB, in 300


def test_hidden_memory_is_counted(run, zygote):
    """Shared memory that no process has in its tables any more: only a control group sees it."""
    if not zygote._groups:
        pytest.skip("this user may make no control groups (cgroups)")
    hide = (
        "import mmap\nheld = []\nfor _ in range(16):\n    held.append(mmap.mmap(-1, 2**26))\n"
        "    for i in range(0, 2**26, 4096): held[-1][i] = 1\n    held[-1].madvise(mmap.MADV_DONTNEED)"
    )
    _, stopped = run(hide, "print('alive')")
    assert stopped and "memory limit of 300 MB" in stopped


@pytest.mark.slow
def test_processor_time_is_limited(run):
    _, stopped = run("while True: pass", limits=replace(LIMITS, cpu_seconds=1, cell_seconds=30))
    assert stopped and "processor time" in stopped


@pytest.mark.slow
def test_a_loop_ends(run):
    said, stopped = run("while True: pass", "print(1)", limits=replace(LIMITS, cell_seconds=1))
    assert stopped == "a cell ran longer than 1 s" and said == ["", ""]


def test_processes_are_limited(run):
    bomb = (
        "import os, time\ntry:\n    for _ in range(200):\n        if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "except OSError: print('enough')"
    )
    assert one(run, bomb) == "enough"


@needs_tmp
def test_disk_is_limited(run):
    fill = "try:\n    for i in range(50): open(str(i), 'wb').write(bytes(2**20))\nexcept OSError as e: print(e.errno)"
    assert one(run, fill) == "28"  # no space
    assert (
        one(
            run,
            "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "try: open('/tmp/x', 'wb').write(bytes(15 * 2**20))\nexcept OSError as e: print(e.errno)",
        )
        == "27"
    )


@needs_tmp
def test_home_tmp_and_shared_memory_are_one_disk(run):
    fill = (
        "import os\nfor folder in ('.', '/tmp', '/dev/shm'):\n    try:\n"
        "        for i in range(8): open(f'{folder}/{i}', 'wb').write(bytes(2**20))\n"
        "    except OSError as e: print(e.errno)"
    )
    assert one(run, fill) == "28"  # 24 MB in 20


@needs_tmp
def test_nothing_of_the_machines_own_disk_or_memory_can_be_written(run):
    code = (
        "import os\nfor folder, _, _ in os.walk('/'):\n    if folder.startswith('/proc/'): continue\n    try:\n"
        "        open(folder + '/x', 'x')\n        if not folder.startswith('/learner/'): print(folder)\n"
        "    except OSError: pass"
    )
    patient = replace(LIMITS, cpu_seconds=200, cell_seconds=500)  # a disk may be large
    assert set(one(run, code, limits=patient).split("\n")) == {"/learner", "/tmp", "/dev/shm"}


def test_no_namespace_can_be_made_inside(run):
    code = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.unshare(0x10000000), errno.errorcode[ctypes.get_errno()])\n"
        "print(libc.clone(0, 0, 0x10000000 | 17, 0), libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0), libc.setns(0, 0))"
    )
    before = Path("/proc/sys/user/max_user_namespaces").read_text()
    assert one(run, code).split() == ["-1", "ENOSYS", "-1", "-1", "-1"]
    assert Path("/proc/sys/user/max_user_namespaces").read_text() == before  # the machine's own stays


def test_a_request_that_makes_no_sense_hurts_nobody(run, zygote):
    from txgrade.sandbox.zygote import Lease

    nonsense = ({}, {"limits": "{}"}, {"preload": ["antigravity"]}, {"kernel": "nowhere", "limits": "{}"})
    without_pipes = ({"cells": "x", "limits": "{}"}, {"probe": "x", "limits": "{}"})
    limitless = ({"cells": "x"}, {"cells": "x", "limits": "nonsense"}, {"cells": "x", "limits": "[1]"})
    for request in (*nonsense, *without_pipes, *limitless):
        with Lease.ask(zygote.address, request) as lease:
            assert "ended" in lease.read(10)
    for line in (b"[]\n", b"7\n", b"null\n", b"nonsense\n", b"\xff\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(zygote.address))
            client.sendall(line)
            assert "ended" in Lease(client).read(10)
    assert one(run, "print('fine')") == "fine"


def test_a_kernel_may_end_itself_and_no_other_one_notices(run):
    for end in ("import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
        _, stopped = run(end, "print(1)")
        assert stopped and "the kernel died" in stopped
    assert one(run, "print('fine')") == "fine"


def test_a_kernel_survives_an_interrupt(run):
    code = (
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    assert run(code, "print('fine')") == (["interrupted", "fine"], None)


def test_many_at_once(run, zygote):
    from concurrent.futures import ThreadPoolExecutor

    def start(number):
        cell = Cell()
        with Kernel(LIMITS) as kernel:
            kernel.run(f"print({number})", 0, 30, cell)
        return "".join(output["text"] for output in cell.outputs)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(20))) == [f"{number}\n" for number in range(20)]
    assert one(run, "print('fine')") == "fine"


LEAVE = (
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
    "    os._exit(0)\n"
)


def survivors(family):
    """Those of the processes that still run, given a little time to go."""
    return psutil.wait_procs(family, timeout=10)[1]


def test_no_orphan_is_left_by_a_kernel(run, zygote):
    outer = psutil.Process(zygote._process.pid)
    run(LEAVE)
    own = 2  # bubblewrap's first process, and the zygote
    assert survivors(outer.children(recursive=True)[own:]) == []
    assert len(outer.children(recursive=True)) == own


STARTER = """
import os, sys, time
from txgrade.sandbox import Limits, Zygote
from txgrade.sandbox.kernel import Cell, Kernel
zygote = Zygote(); zygote.start()
os.environ["TXGRADE_ZYGOTE"] = str(zygote.address)
kernel = Kernel(Limits())
kernel.run({leave!r}, 0, 30, Cell())
print("ready", flush=True)
time.sleep(600)
"""


def test_no_orphan_survives_a_killed_client(zygote, run):
    """A worker of the grader's that did not make the zygote: its kernel goes, the zygote stays."""
    client = STARTER.replace("zygote = Zygote(); zygote.start()\n", "").replace("zygote.address", "sys.argv[1]")
    worker = subprocess.Popen(
        [sys.executable, "-c", client.format(leave=LEAVE), str(zygote.address)],
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert worker.stdout.readline() == "ready\n"
    own, family = 2, psutil.Process(zygote._process.pid).children(recursive=True)
    assert len(family) >= own + 4
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert survivors(family[own:]) == []
    assert one(run, "print('fine')") == "fine"


@pytest.mark.parametrize("target", ["grader", "bubblewrap"])
@pytest.mark.slow
def test_no_orphan_survives_a_killed_grader(target):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    grader = subprocess.Popen(
        [sys.executable, "-c", STARTER.format(leave=LEAVE)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert grader.stdout.readline() == "ready\n"
    family = psutil.Process(grader.pid).children(recursive=True)
    assert len(family) >= 7  # bubblewrap's two, the zygote, the kernel's three, and what that left behind
    os.kill(grader.pid if target == "grader" else family[0].pid, signal.SIGKILL)
    left = survivors(family[target == "bubblewrap" :])  # the victim itself waits for the grader to reap it
    grader.kill()
    grader.wait()
    grader.stdout.close()
    assert left == []


def test_cold_without_a_zygote(monkeypatch):
    """papermill, in a kernel that has an outer sandbox of its own."""
    monkeypatch.delenv("TXGRADE_ZYGOTE", raising=False)
    before = psutil.Process().children(recursive=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os\nprint(os.getcwd())", id="where")])
    executed = execute(notebook, None, Limits())
    assert executed.stopped is None and executed.outputs["where"][0]["text"] == "/learner\n"
    assert [process for process in psutil.Process().children(recursive=True) if process not in before] == []


def test_less_than_sealed_is_refused(monkeypatch):
    from txgrade.sandbox import Probe, plain
    from txgrade.sandbox import kernel as kernels
    from txgrade.sandbox.kernel import NoKernel

    monkeypatch.delenv("TXGRADE_ZYGOTE", raising=False)
    for module in (plain, kernels):
        monkeypatch.setattr(module, "probe", lambda: Probe("limits-only", ("bubblewrap is not installed",)))
    refused = "SandboxError: a kernel can't be sealed here .bubblewrap is not installed.*Install bubblewrap"
    with pytest.raises(NoKernel, match=refused):
        Kernel(LIMITS)
    monkeypatch.setenv("TXGRADE_TRUST_SUBMISSIONS", "1")
    with Kernel(LIMITS) as kernel:
        cell = Cell()
        kernel.run("import os; print(os.environ['HOME'] == os.getcwd(), os.listdir('.'))", 0, 30, cell)
        assert "".join(each["text"] for each in cell.outputs).startswith("True [")


def test_without_bubblewrap_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="bubblewrap is not installed"):
        Zygote().start()


@pytest.mark.parametrize("limits", [{"memory_mb": 0}, {"cell_seconds": -1}, {"processes": True}])
def test_limits_are_above_0(limits):
    with pytest.raises(ValueError, match="give a number above 0"):
        Limits(**limits)


def test_unknown_limits_are_named():
    with pytest.raises(ValueError, match="no limit is called memory"):
        Limits.from_json('{"memory": 3}')


def test_as_an_ordinary_user(tmp_path):
    """The other way into the namespaces: by a user namespace."""
    if os.getuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    python = next((each for each in ("/usr/bin/python3", sys.executable) if _runs(each)), None)
    if python is None:
        pytest.skip("another user can run no Python from 3.11 on here")
    code = "from txgrade.sandbox import probe; print(probe())"
    Path(tmp_path).chmod(0o777)
    run = subprocess.run(
        [python, "-c", code],
        **_other_user(),
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert "level='sealed'" in run.stdout, run.stdout + run.stderr


def _other_user():
    return {"user": 61_234, "group": 61_234, "extra_groups": [], "cwd": "/"}


def _runs(python):
    """Whether an ordinary user can run this Python, and read txlib."""
    code = f"import sys, os; sys.exit(sys.version_info < (3, 11) or not os.access({str(PACKAGE)!r}, os.R_OK))"
    try:
        return subprocess.run([python, "-c", code], **_other_user(), timeout=30).returncode == 0
    except OSError:
        return False
