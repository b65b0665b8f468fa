"""From one sandbox to another at the same time: a sender does something or doesn't, and a receiver looks.

Whatever the sender does, the receiver must see the same. Each of these told them apart before the channel was closed.
What can't be closed is measured by `benchmarks/channels.py`.
"""

import ast
import contextlib
import textwrap

import pytest

from txgrade.sandbox import probe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}"),
]

BOTH = """
import contextlib, ctypes, fcntl, itertools, mmap, os, platform, socket, struct, threading, time

from txgrade.sandbox.syscall_numbers import numbers

libc, CALL = ctypes.CDLL(None, use_errno=True), numbers(platform.machine())
SHARED = ctypes.__file__                # a file that both sandboxes can read
file = open(SHARED, "rb")
kept = []


def call(name, *given):
    result = libc.syscall(CALL[name], *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def seen_lock(how):
    return struct.unpack("hhqqi", fcntl.fcntl(file, how, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)))[0]
"""

# Name: what the sender does with a bit, what the receiver sees.
CHANNELS = {
    "session keyring": (
        """
        if bit: call("add_key", b"user", b"bit", b"1", 1, -3)
        else: call("keyctl", 5, call("keyctl", 10, -3, b"user", b"bit", 0))
        """,
        """call("keyctl", 10, -3, b"user", b"bit", 0) > 0""",
    ),
    "flock": (
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if bit else fcntl.LOCK_UN)",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB), fcntl.flock(file, fcntl.LOCK_UN)",
    ),
    "POSIX lock": (
        "fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB if bit else fcntl.LOCK_UN)",
        "seen_lock(fcntl.F_GETLK)",
    ),
    "lock of an open file": (
        """fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_RDLCK if bit else fcntl.F_UNLCK, 0, 0, 0, 0))""",
        "seen_lock(36)",
    ),
    "lock of a device": (
        """
        kept.append(open("/dev/null", "wb"))
        fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB if bit else fcntl.LOCK_UN)
        if not bit: kept.clear()
        """,
        """[fcntl.flock(null, fcntl.LOCK_EX | fcntl.LOCK_NB) for null in [open("/dev/null", "wb")]]""",
    ),
    "times of a device": ("""os.utime("/dev/null") if bit else None""", """os.stat("/dev/null").st_mtime_ns"""),
    "notices of a file's use": (
        "open(SHARED).read() if bit else None",
        """
        globals().setdefault("watch", call("inotify_init1", os.O_NONBLOCK))
        globals().setdefault("wd", call("inotify_add_watch", watch, SHARED.encode(), 0x20))
        value = None
        with contextlib.suppress(BlockingIOError): value = len(os.read(watch, 4096)) > 0
        """,
    ),
    "terminals": (
        """
        if bit: kept.append(os.open("/dev/ptmx", os.O_RDWR))
        else: [os.close(each) for each in kept]; kept.clear()
        """,
        """sorted(os.listdir("/dev/pts"))""",
    ),
    "number of processes": (
        """
        stop = globals().setdefault("stop", threading.Event())
        if bit: stop.clear(); [threading.Thread(target=stop.wait).start() for _ in range(40)]
        else: stop.set()
        """,
        """
        memory = ctypes.create_string_buffer(256)
        call("sysinfo", memory)
        value = struct.unpack_from("H", memory, 80)[0] // 40
        """,
    ),
    "open files of the machine": (
        """
        if bit: kept.extend(os.open(SHARED, 0) for _ in range(200))
        else: [os.close(each) for each in kept]; kept.clear()
        """,
        """open("/proc/sys/fs/file-nr").read()""",
    ),
    "load of the machine": ("None", """open("/proc/loadavg").read(), open("/proc/stat").read(), time.sleep(0.05)"""),
    "memory of the machine": (
        "kept.append(bytearray(50_000_000)) if bit else kept.clear()",
        """open("/proc/meminfo").read()""",
    ),
    "how many map a page": (
        """
        if bit:
            kept.append(mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ))
            kept[-1][0]
        else: kept.clear()
        """,
        """
        mine = globals().setdefault("mine", mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ))
        mine[0]
        value = open("/proc/self/smaps").read().split(SHARED)[-1].split("Pss:")[1].split()[0]
        """,
    ),
    "numbers of descriptors": (
        """
        if bit: kept.extend(os.eventfd(0) for _ in range(50))
        else: [os.close(each) for each in kept]; kept.clear()
        """,
        """
        new = os.eventfd(0)
        try: value = [line for line in open(f"/proc/self/fdinfo/{new}") if "id" in line]
        finally: os.close(new)
        """,
    ),
    "numbers of sockets": (
        "[socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 57, 8) for _ in range(bit)]",
        "socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 57, 8)",
    ),
    "numbers of processes": (
        """
        for _ in range(bit):
            if os.fork() == 0: os._exit(0)
            os.wait()
        """,
        """
        child = os.fork()
        if child == 0: os._exit(0)
        try: value = os.fstat(os.pidfd_open(child)).st_ino
        finally: os.waitpid(child, 0)
        """,
    ),
    "pages in memory": (
        """
        other = os.open(contextlib.__file__, os.O_RDONLY)
        os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED) if bit else os.read(other, 4096)
        os.close(other)
        """,
        """
        other = os.open(contextlib.__file__, os.O_RDONLY)
        try: value = os.preadv(other, [bytearray(16)], 0, os.RWF_NOWAIT)
        finally: os.close(other)
        """,
    ),
}
BITS = (0, 1, 0, 1, 1, 0, 1, 0)


def function(code, name):
    """The source of a function of one bit: an expression, or statements that set `value`. An error is a value, too."""
    code = textwrap.dedent(code).strip()
    with contextlib.suppress(SyntaxError):
        ast.parse(code, mode="eval")
        code = f"value = {code}"
    return (
        f"def {name}(bit=None):\n    global mine, watch, wd, stop\n    value = None\n    try:\n"
        f"{textwrap.indent(code, ' ' * 8)}\n"
        "    except Exception as reason: value = type(reason).__name__\n    return value\n"
    )


@pytest.mark.parametrize("channel", CHANNELS)
def test_nothing_comes_through(pair, channel):
    sender, receiver = pair
    send, look = CHANNELS[channel]
    assert not sender.run(BOTH + function(send, "send"))
    assert not receiver.run(BOTH + function(look, "look"))
    receiver.run("look()")
    seen = []
    for bit in BITS:
        assert sender.run(f"_ = send({bit})") == ""
        seen.append(receiver.run("print(look())"))
    assert all(seen) and len(set(seen)) == 1, seen
