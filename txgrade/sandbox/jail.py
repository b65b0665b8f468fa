"""Jails a forked child before it becomes a kernel (Linux only).

A jailed process is alone: it has its own namespaces for mounts, processes, network and shared memory, an empty home,
no rights, and limits. The child of a root process also becomes a user of its own.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
from pathlib import Path
from typing import Any

from txgrade.sandbox.limits import Limits
from txgrade.sandbox.syscall_numbers import numbers

HOME = "/learner"  # inside: the private home, and where a kernel starts
RUN = "/run/txgrade"  # inside, until hidden: the zygote's folder
FILES = 50_000  # in home, /tmp and /dev/shm together
TERMINALS = 16
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")  # as `bwrap --dev` makes them
ADDRESSES_MB = 4096  # what libraries and threads reserve and don't use
FIRST_UID = 1_900_000_000  # throwaway users are numbered from here; no system gives such numbers out

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
SET_PDEATHSIG, SET_DUMPABLE, CAPBSET_DROP, SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITY_VERSION_3 = 0x20080522
JOIN_SESSION_KEYRING = 1  # <linux/keyctl.h>

libc = ctypes.CDLL(None, use_errno=True)


def unshare(root: bool) -> None:
    """Leave the namespaces of the zygote. An ordinary user needs a user namespace to be allowed the others."""
    uid, gid = os.getuid(), os.getgid()
    _call(libc.unshare, NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWPID | NEWNET | (0 if root else NEWUSER))
    if not root:
        _map_own_user(uid, gid)


def start_folder(data_paths: list[str]) -> str:
    """Return where a kernel starts: its home, or so far below it that paths which lead upwards stay in it."""
    return HOME + "/course" * max((path.split("/").count("..") for path in data_paths), default=0)


def make_mounts(uid: int, limits: Limits, tmp_holds_binds: bool, data_paths: list[str]) -> None:
    """Mount an empty home and an empty /tmp, and hide the zygote's folder.

    The assignment's data go to `data_paths`, seen from where the kernel starts.

    A folder replaces /proc (`proc.py`). Home, /tmp and /dev/shm share one file system in memory of `disk_mb`.
    """
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount(f"{RUN}/proc", "/proc", None, MS_BIND)
    mount(None, "/proc", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for device in DEVICES:  # the machine's: a process that may write to one may set its times, for all to see
        mount(None, f"/dev/{device}", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC)
    mount("none", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, f"newinstance,ptmxmode=0666,max={TERMINALS}")
    mount("none", HOME, "tmpfs", MS_NOSUID | MS_NODEV, f"size={limits.disk_mb}m,nr_inodes={FILES},mode=0755")
    for name in ("tmp", "shm", "home"):
        os.mkdir(f"{HOME}/{name}", 0o700)
        os.chown(f"{HOME}/{name}", uid, uid if uid != os.getuid() else -1)
    mount(f"{HOME}/shm", "/dev/shm", None, MS_BIND)
    if tmp_holds_binds:  # the environment itself is under /tmp
        mount(None, "/tmp", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    else:
        mount(f"{HOME}/tmp", "/tmp", None, MS_BIND)
    mount(f"{HOME}/home", HOME, None, MS_BIND)
    _make_folders(start_folder(data_paths), uid)
    for number, path in enumerate(data_paths):
        _bind_data(f"{RUN}/data/{number}", os.path.normpath(f"{start_folder(data_paths)}/{path}"), uid)
    mount("none", RUN, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k")


def _bind_data(source: str, target: str, uid: int) -> None:
    """Bind a file or a folder, read-only, to a path in the home."""
    _make_folders(target if os.path.isdir(source) else os.path.dirname(target), uid)
    if not os.path.isdir(source):
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))
    mount(source, target, None, MS_BIND)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _make_folders(path: str, uid: int) -> None:
    """Make a folder in the home, and those above it; they are the learner's."""
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path), uid)
        os.mkdir(path, 0o700)
        os.chown(path, uid, uid if uid != os.getuid() else -1)


def give_up_rights(root: bool, uid: int) -> None:
    """Become the throwaway user, and drop every capability for good."""
    if root:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    with contextlib.suppress(OSError):  # where ordinary users are refused it, so they are inside
        if root:
            _call(libc.prctl, SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self stays root's
            _call(libc.unshare, NEWUSER)
            _map_own_user(uid, uid)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")  # of our own namespace, never the machine's
    for capability in range(64):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)  # fails beyond the last that this kernel knows
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call(libc.capset, header, (ctypes.c_uint32 * 6)())
    _call(libc.prctl, SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    die_with_parent()  # setuid has cleared it


def leave_keyring() -> None:
    """Join a new session keyring: the grader's is inherited by all that it starts."""
    with contextlib.suppress(KeyError):  # a machine whose system calls are unknown is refused elsewhere
        libc.syscall(numbers(platform.machine())["keyctl"], JOIN_SESSION_KEYRING, None)


def set_limits(limits: Limits, alone: bool = True) -> None:
    """Set the limits that the system enforces for each process; `zygote_process.py` bounds all of them together.

    The number of processes is counted by user: it is limited only if this process is its user's first.
    """
    megabyte = 2**20
    bounds = {
        resource.RLIMIT_DATA: _held("VmData") + limits.memory_mb * megabyte,
        resource.RLIMIT_AS: _held("VmSize") + (limits.memory_mb + ADDRESSES_MB) * megabyte,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_mb * megabyte,
        resource.RLIMIT_CORE: 0,
    }
    if alone:
        bounds[resource.RLIMIT_NPROC] = limits.processes
    for what, bound in bounds.items():
        with contextlib.suppress(ValueError, OSError):  # macOS lacks some, and a lower one may be set already
            resource.setrlimit(what, (bound, bound))


def die_with_parent() -> None:
    """Get SIGKILL when the parent ends, however it ends."""
    libc.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [argument and argument.encode() for argument in (source, target, kind)]
    _call(libc.mount, *encoded, ctypes.c_ulong(flags), data and data.encode())


def unmount(target: str) -> None:
    """Unmount now for every path, and completely when the last process that still uses it is gone."""
    _call(libc.umount2, target.encode(), MNT_DETACH)


def _map_own_user(uid: int, gid: int) -> None:
    """Keep this user's numbers in a new user namespace, in which no other user exists."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _held(what: str) -> int:
    """Return the memory that this process has from its parent, in bytes; 0 if the system doesn't tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(what + ":")), 0)


def _call(function: Any, *arguments: object) -> None:
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")
