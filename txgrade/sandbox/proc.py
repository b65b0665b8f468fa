"""What a kernel sees of /proc: a few facts that don't change, and some files about itself.

Linux's own /proc tells what the whole machine does (load, memory, interrupts, locks, counters), and of each process how
many others share its pages (`smaps`, `pagemap`) and which number its descriptors have on the machine (`fdinfo`): one
sandbox could speak to another through any of them. So a folder stands in for it. Of itself, a kernel sees the files of
its first process only; the children that it starts see those, too.
"""

import sys
from pathlib import Path

from txgrade.sandbox.jail import MS_BIND, mount, unmount

KERNEL = 2  # the kernel's number in its own namespace; number 1 waits for it
FACTS = ("cpuinfo", "meminfo", "stat", "filesystems", "version")  # as they were when the zygote was started
STILL = {"loadavg": "0.00 0.00 0.00 1/1 1\n", "uptime": "0.00 0.00\n"}
ITSELF: tuple[str, ...] = ("cmdline", "comm", "environ", "io", "limits", "maps", "mem", "mountinfo", "mounts")
ITSELF += ("oom_score_adj", "stat", "statm", "status", "fd")
LINKS = {"self": str(KERNEL), "mounts": "self/mounts", f"{KERNEL}/exe": sys.executable}


def prepare(folder: Path) -> None:
    """Outside: make the folder that will stand in for /proc."""
    own = folder / str(KERNEL)
    own.mkdir(parents=True)
    for name, text in STILL.items() | {(name, Path("/proc", name).read_text()) for name in FACTS}:
        (folder / name).write_text(text)
    for name in ITSELF:
        (own / name).mkdir() if name == "fd" else (own / name).touch()
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the grader's umask is


def uncover(stand_in: int) -> None:
    """Inside, when nobody needs the real /proc any more, take it off the folder, whose descriptor is given."""
    for name in ITSELF:
        mount(f"/proc/{KERNEL}/{name}", f"/proc/self/fd/{stand_in}/{KERNEL}/{name}", None, MS_BIND)
    unmount("/proc")
