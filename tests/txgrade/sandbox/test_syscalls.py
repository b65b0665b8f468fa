"""The policy on system calls: complete, without contradictions, and turned into the right program."""

import errno
import platform
import re
from pathlib import Path

import pytest

from txgrade.sandbox import filter, probe
from txgrade.sandbox.syscall_numbers import TABLE, numbers
from txgrade.sandbox.syscalls import ALLOWED, REFUSED, RULES, names

MACHINES = ("x86_64", "aarch64")
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
SORTED = [*names(ALLOWED), *names(REFUSED), *RULES]
sealed = pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")


def decide(machine, name=None, arguments=(), number=None, architecture=None):
    """Run the program as Linux does: None where it lets the call through, else the error."""
    number = numbers(machine)[name] if number is None else number
    seen = {filter.NUMBER: number, filter.ARCHITECTURE: architecture or filter.ARCHITECTURES[machine]}
    seen |= {filter.ARGUMENTS + 8 * i: value & 0xFFFFFFFF for i, value in enumerate((*arguments, *[0] * 6))}
    lines, at, held = filter.program(machine), 0, 0
    compare = {filter.EQUAL: int.__eq__, filter.ABOVE: int.__gt__, filter.AT_LEAST: int.__ge__}
    while True:
        line = lines[at]
        at += 1
        if line.code == filter.LOAD:
            held = seen[line.value]
        elif line.code == filter.MASK:
            held &= line.value
        elif line.code == filter.RETURN:
            return None if line.value == filter.ALLOW else line.value & 0xFFFF
        else:
            at += line.then if compare[line.code](held, line.value) else line.otherwise


def test_every_call_is_sorted_once():
    assert len(SORTED) == len(set(SORTED))
    assert set(SORTED) == {row.split()[0] for row in TABLE.split(",")}


@pytest.mark.skipif(not HEADER.is_file(), reason="no headers of x86_64's Linux here")
def test_numbers_are_the_headers():
    known = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", HEADER.read_text()))
    assert numbers("x86_64").items() <= {name: int(number) for name, number in known.items()}.items()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_says_what_the_tables_say(machine):
    known = numbers(machine)
    for name in names(ALLOWED):
        assert name not in known or decide(machine, name) is None, name
    for name in names(REFUSED):
        assert name not in known or decide(machine, name) == errno.ENOSYS, name
    sorted_numbers = set(known.values())
    for number in (*range(600), 2**30, 2**31, 2**32 - 1):
        if number not in sorted_numbers:  # such as Linux has invented since, or x32's
            assert decide(machine, number=number) == errno.ENOSYS, number


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("socket", (1,), None),
        ("socket", (2,), errno.EOPNOTSUPP),  # AF_INET
        ("socket", (40,), errno.EOPNOTSUPP),  # AF_VSOCK
        ("fcntl", (3, 1030), None),  # F_DUPFD_CLOEXEC
        ("fcntl", (3, 6), 0),  # F_SETLK: pretended
        ("fcntl", (3, 5), errno.EINVAL),  # F_GETLK
        ("fcntl", (3, 1024), errno.EINVAL),  # F_SETLEASE
        ("fcntl", (3, 1026), errno.EINVAL),  # F_NOTIFY
        ("flock", (3, 2), 0),
        ("clone", (0x3D0F00,), None),  # as pthread_create calls it
        ("clone", (0x1200011,), None),  # as fork calls it
        ("clone", (0x10000011,), errno.EPERM),  # CLONE_NEWUSER
        ("clone", (0x1011,), errno.EPERM),  # CLONE_PIDFD
        ("ioctl", (0, 0x5413), None),  # TIOCGWINSZ
        ("ioctl", (0, 0x80045430), None),  # TIOCGPTN
        ("ioctl", (0, 0x5412), errno.ENOTTY),  # TIOCSTI
        ("ioctl", (3, 0x40086602), errno.ENOTTY),  # FS_IOC_SETFLAGS
        ("mmap", (0, 4096, 3, 0x22), None),
        ("mmap", (0, 2**21, 3, 0x40022), errno.ENOMEM),  # MAP_HUGETLB
        ("madvise", (0, 4096, 4), None),
        ("madvise", (0, 4096, 12), errno.EINVAL),  # MADV_MERGEABLE
        ("madvise", (0, 4096, 21), errno.EINVAL),  # MADV_PAGEOUT
        ("prctl", (15,), None),  # PR_SET_NAME
        ("prctl", (67,), errno.EINVAL),  # PR_SET_MEMORY_MERGE
        ("getsockopt", (3, 1, 4), None),  # SO_ERROR
        ("getsockopt", (3, 1, 57), errno.EINVAL),  # SO_COOKIE
    ],
)
def test_rules(machine, name, arguments, expected):
    assert decide(machine, name, arguments) == expected


def test_calls_by_another_convention_are_refused():
    """32-bit calls of x86, whose numbers mean other things."""
    assert decide("x86_64", number=1, architecture=0x40000003) == errno.ENOSYS


def test_a_machine_whose_numbers_nobody_knows_is_named(monkeypatch):
    from txgrade.sandbox import SandboxError, Zygote

    filter.compiled.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="system calls of riscv64 can't be filtered yet, only of x86_64, aarch64"):
        Zygote().start()
    filter.compiled.cache_clear()


@sealed
def test_a_kernel_is_filtered_and_so_is_what_it_starts(kernel):
    code = (
        "import ctypes, errno, os, subprocess, sys, threading\n"
        "ask = 'import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True); '\n"
        f"ask += 'print(libc.syscall({numbers(platform.machine()).get('keyctl')}, 0, -3, 0), "
        "errno.errorcode[ctypes.get_errno()], flush=True)'\n"
        "exec(ask)\nthreading.Thread(target=exec, args=(ask,)).start()\n"
        "print(subprocess.run([sys.executable, '-c', ask], capture_output=True, text=True).stdout)"
    )
    assert kernel.run(code).split() == ["-1", "ENOSYS"] * 3


@sealed
@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit calls are x86's")
def test_a_32_bit_call_fails(kernel):
    """`mov eax, 20; int 0x80; ret` is getpid in 32 bits: anything but this kernel's number."""
    code = (
        "import ctypes, mmap\nmemory = mmap.mmap(-1, 4096, prot=7)\n"
        "memory.write(bytes.fromhex('53b814000000cd805bc3'))\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())"
    )
    assert int(kernel.run(code)) == -errno.ENOSYS


HONEST = {
    "SQLite": "import sqlite3\nwith sqlite3.connect('x.db') as db: db.execute('create table t (a)'); "
    "db.execute('insert into t values (1)')\nprint(sqlite3.connect('x.db').execute('select a from t').fetchone()[0])",
    "threads": "from concurrent.futures import ThreadPoolExecutor\nprint(sum(ThreadPoolExecutor(4).map(int, '01')))",
    "processes": "import multiprocessing as m\nwith m.Pool(2) as pool: print(sum(pool.map(int, '01')))",
    "loader": "import torch\nfrom torch.utils.data import DataLoader\n"
    "print(sum(int(x.sum()) for x in DataLoader(torch.eye(1).repeat(1, 1), num_workers=2)))",
    "subprocess": "import subprocess\nprint(subprocess.run(['echo', '1'], capture_output=True, text=True).stdout)",
    "shell": "!echo 1",
    "figure": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('x.png')\nplt.close()\n"
    "print(int(open('x.png', 'rb').read(4) == bytes([137]) + b'PNG'))",
    "mapped file": "import numpy as np\nnp.save('x.npy', np.ones(1))\nprint(int(np.load('x.npy', mmap_mode='r')[0]))",
    "shared memory": "from multiprocessing import shared_memory\ns = shared_memory.SharedMemory(create=True, size=4)\n"
    "s.buf[0] = 1\nprint(s.buf[0])\ns.unlink()",
    "asyncio": "import asyncio, sys\nasync def say():\n    child = await asyncio.create_subprocess_exec('echo', '1', "
    "stdout=asyncio.subprocess.PIPE)\n    return (await child.communicate())[0].decode()\nprint(await say())",
    "copies": "import pathlib, shutil, tempfile\npathlib.Path('a').write_text('1')\nshutil.copy2('a', 'b')\n"
    "to = tempfile.mkdtemp() + '/c'\nshutil.copytree('.', to, ignore=shutil.ignore_patterns('.*', 'tmp*'))\n"
    "print(open(to + '/b').read())",
    "training": "import torch\nmodel = torch.nn.Linear(4, 4)\nloss = model(torch.ones(2, 4)).sum()\nloss.backward()\n"
    "torch.save(model.state_dict(), 'w.pt')\ntorch.load('w.pt')\nprint(1)",
    "memory used": "import psutil\nprint(int(psutil.Process().memory_info().rss > 2**20))",
    "processors": "import os\nprint(int(os.cpu_count() > 0 and len(os.sched_getaffinity(0)) > 0))",
}


@sealed
@pytest.mark.parametrize("what", HONEST)
def test_what_honest_notebooks_do(kernel, what):
    assert kernel.run(HONEST[what], timeout=60) == "1"
