"""Attacks on the machine: time, memory, processes, disk."""

from attacks import WRONG, attack


@attack()
def infinite_loop() -> str:
    """Never ends."""
    return WRONG + "while True:\n    pass\n"


@attack()
def infinite_loop_in_the_check() -> str:
    """Never ends, while its check runs; and lets nobody interrupt it."""
    return """
def spread(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


winners = spread
"""


@attack()
def regular_expression() -> str:
    """Is held up inside C code, where no signal is looked at."""
    return WRONG + '\nimport re\n\nre.match(r"(a*)*b", "a" * 40)\n'


@attack()
def ten_gigabytes() -> str:
    """Fills 10 GB of memory."""
    return WRONG + "\nkept = []\nfor number in range(100):\n    kept.append(bytearray(b'x') * 100_000_000)\n"


@attack()
def ten_gigabytes_in_children() -> str:
    """Fills 10 GB of memory in twenty processes."""
    return (
        WRONG
        + """
import os, time

for number in range(20):
    if os.fork() == 0:
        kept = bytearray(b"x") * 500_000_000
        time.sleep(60)
        os._exit(0)
time.sleep(3)
"""
    )


@attack()
def ten_gigabytes_shared() -> str:
    """Fills shared memory and files in memory."""
    return (
        WRONG
        + """
import mmap, os

kept = []
for number in range(20):
    try:
        file = os.memfd_create("x")
        os.ftruncate(file, 500_000_000)
        memory = mmap.mmap(file, 500_000_000)
        for start in range(0, 500_000_000, 50_000_000):
            memory[start:start + 50_000_000] = b"x" * 50_000_000
        kept.append(memory)
    except (OSError, ValueError) as reason:
        print(reason)
"""
    )


@attack()
def fork_bomb() -> str:
    """Makes processes that make processes."""
    return (
        WRONG
        + """
import os, time

while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)      # it has all it can get, and leaves the others of this corpus some time
"""
    )


@attack()
def fifty_forks() -> str:
    """Makes fifty processes in sessions of their own, that should outlive the notebook."""
    return (
        WRONG
        + """
import os, signal, time

for number in range(50):
    try:
        if os.fork() == 0:
            os.setsid()
            for name in ("SIGTERM", "SIGHUP", "SIGINT"):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
            if os.fork():
                os._exit(0)
            time.sleep(600)
            os._exit(0)
    except OSError as reason:
        print(reason)
        break
"""
    )


@attack()
def threads_without_end() -> str:
    """Starts threads until none is left."""
    return (
        WRONG
        + """
import threading, time

try:
    while True:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
except BaseException as reason:
    print(type(reason))
"""
    )


@attack()
def fills_the_disk() -> str:
    """Writes files without end, everywhere."""
    return (
        WRONG
        + """
import os

block = b"x" * 10_000_000
for folder in (os.getcwd(), os.path.expanduser("~"), "/tmp", "/var/tmp", "/dev/shm", "/run"):
    for number in range(100):
        try:
            with open(f"{folder}/full-{number}", "wb") as file:
                for part in range(100):
                    file.write(block)
        except OSError as reason:
            print(folder, reason)
            break
"""
    )


@attack()
def files_without_end() -> str:
    """Makes a hundred thousand empty files, and folders in folders."""
    return (
        WRONG
        + """
import os

try:
    for number in range(100_000):
        open(f"file-{number}", "w").close()
except OSError as reason:
    print(reason)
try:
    while True:
        os.mkdir("deep")
        os.chdir("deep")
except OSError as reason:
    print(reason)
"""
    )


@attack()
def descriptors_without_end() -> str:
    """Opens files and sockets until none is left."""
    return (
        WRONG
        + """
import os, socket

kept = []
try:
    while True:
        kept += [os.open("/dev/null", os.O_RDONLY), socket.socketpair()]
except OSError as reason:
    print(reason)
"""
    )


@attack()
def recursion() -> str:
    """Takes the bound off recursion, and recurs."""
    return (
        WRONG
        + """
import sys

sys.setrecursionlimit(10**9)


def spread(x):
    return spread(x) + 1
"""
    )


@attack()
def raises_its_limits() -> str:
    """Raises its own limits, and its priority, and moves itself to another group of processes."""
    return (
        WRONG
        + """
import os, resource

for name in dir(resource):
    if name.startswith("RLIMIT_"):
        try:
            resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            if resource.getrlimit(getattr(resource, name))[1] == resource.RLIM_INFINITY:
                print(name, "is free")
        except (OSError, ValueError):
            pass
for attempt in (lambda: os.nice(-20), lambda: os.setpgid(0, 0),
                lambda: open("/proc/self/oom_score_adj", "w").write("-1000"),
                lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write(str(os.getpid()))):
    try:
        attempt()
    except OSError as reason:
        print(reason)
kept = bytearray(b"x") * 3_000_000_000
"""
    )


@attack()
def many_threads_of_torch() -> str:
    """Takes all cores for itself."""
    return WRONG + "\ntorch.set_num_threads(64)\nx = torch.ones(300, 300)\nfor step in range(9):\n    x = x @ x\n"
