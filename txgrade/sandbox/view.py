"""What exists inside the outer sandbox, as bubblewrap's command line says it; nothing else does.

It is a short list: the parts of the Python environment and of the system that programs need in order to run. Other
folders below the same roots, such as /usr/local/share, where a course may have its exchange, are not among them.
"""

import os
import site
import sys
from pathlib import Path

from txgrade.paths import PACKAGES, course_table
from txgrade.sandbox import jail

PACKAGE = (PACKAGES / "txgrade").resolve()
# Below a root, such as /usr or a virtual environment's folder: programs, libraries, fonts, time zones, terminals.
PARTS: tuple[str, ...] = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "pyvenv.cfg", "ssl")
PARTS += ("etc/fonts", "share/fonts", "share/fontconfig", "share/zoneinfo", "share/terminfo", "share/tcltk")
SYSTEM = (Path("/usr"), Path("/usr/local"))
LINKS = ("bin", "sbin", "lib", "lib32", "lib64")  # of the root folder: into /usr, or folders of their own
FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts")
CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "CHOWN", "DAC_OVERRIDE", "KILL", "SYS_PTRACE", "SYS_NICE")
PASSWD = "root:x:0:0:root:/:/bin/false\n" + (
    f"learner:x:{os.getuid()}:{os.getgid()}:learner:{jail.HOME}:/bin/false\n" if os.getuid() else ""
)


def binds() -> list[Path]:
    """Folders and files that can be read inside: of the system, of Python, of the course. Outer folders first."""
    roots = {*SYSTEM, *map(Path, (sys.prefix, sys.base_prefix)), Path(sys.executable).resolve().parents[1]}
    wanted = {root / part for root in roots for part in PARTS}
    wanted |= {PACKAGE, *map(Path, site.getsitepackages())}
    course = course_table(PACKAGE.parent) or {}  # a clone: what it names, but nothing else of it
    wanted |= {PACKAGE.parent / name for name in course.get("packages", ())}
    there = {path for path in wanted if path.exists()}
    return sorted(path for path in there if not there & set(path.parents))


def arguments(folder: Path, groups: list[Path], data: list[Path], binds: list[Path], root: bool) -> list[str]:
    """bubblewrap's. `folder` and the control groups are the zygote's own: kernels don't see them.

    The assignment's data lie in that folder, too, until each kernel binds them to where its cells look for them.
    """
    words = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
    words += ["--hostname", "sandbox", "--clearenv"]
    if root:
        words += ["--cap-drop", "ALL"]
        for name in CAPABILITIES:
            words += ["--cap-add", f"CAP_{name}"]
    else:
        words += ["--unshare-user"]
    words += ["--perms", "1777", "--tmpfs", "/tmp"]
    # bubblewrap makes missing folders for its own user only; a throwaway user has to pass through them.
    for parent in sorted({Path("/etc"), Path("/run"), *(parent for path in binds for parent in path.parents)}):
        words += ["--perms", "0755", "--dir", str(parent)] if parent != Path("/") else []
    for path in (Path("/", name) for name in LINKS):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    for file in FILES:
        words += ["--ro-bind-try", file, file]
    words += ["--ro-bind", str(folder / "passwd"), "/etc/passwd", "--proc", "/proc", "--dev", "/dev"]
    words += ["--dir", jail.HOME, "--bind", str(folder), jail.RUN]
    for number, group in enumerate(groups):
        words += ["--bind", str(group), f"{jail.RUN}/groups/{number}"]
    for number, path in enumerate(data):
        words += ["--ro-bind", str(path), f"{jail.RUN}/data/{number}"]
    for path in binds:
        words += ["--ro-bind", str(path), str(path)]
    words += ["--remount-ro", "/", "--remount-ro", "/dev"]  # an ordinary user would own them
    for name, value in _environment().items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", "/"]


def _environment() -> dict[str, str]:
    home = jail.HOME
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": home,
        "TXGRADE_HOME": home,
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/.matplotlib",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }
