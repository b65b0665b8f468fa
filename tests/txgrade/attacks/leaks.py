"""Attacks on secrets: solutions, expected values, hidden tests, the author's sentences, what the host knows.

All secrets of the course under attack hold the word that `WORD` spells; so does nothing that an attack may see.
"""

from attacks import RIGHT, WRONG, attack

SEEK = """
import gc, os, re, sys

WORD = "CAN" + "ARY-"


def hits(text):
    return re.findall(WORD + r"[A-Za-z-]{3,}", text)
"""

# What a cell can find out about hidden tests and references: sources, history, code objects and their constants.
SPY = (
    SEEK
    + '''
import linecache, types


def sources():
    """Once; from then on nothing new can come."""
    if "found_before" in globals():
        return found_before
    globals()["found_before"] = found = []
    for name in ("In", "_ih", "_i", "_ii", "_iii"):
        found += hits(str(globals().get(name)))
    for each in linecache.cache.values():
        found += hits(str(each))
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType):
            found += hits(str(each.__code__.co_consts))
    frame = sys._getframe(1)
    while frame:
        found += hits(str(frame.f_code.co_consts))
        frame = frame.f_back
    found[:] = sorted(set(found))
    return found
'''
)


@attack()
def hidden_test_as_an_error() -> str:
    """Reads the hidden test while its check runs, and raises it as an error, to find it in its feedback."""
    return (
        SPY
        + """
def spread(x):
    raise ValueError(" ".join(sources()) or "nothing found")


winners = spread
"""
    )


@attack()
def hidden_test_as_a_type() -> str:
    """Reads the hidden test, and makes it the name of an error and of a type."""
    return (
        SPY
        + """
def spread(x):
    return type(" ".join(sources()) or "nothing", (), {})()


def winners(x):
    raise type(" ".join(sources()) or "nothing", (Exception,), {})
"""
    )


@attack()
def hidden_test_as_a_value() -> str:
    """Reads the hidden test, and returns it where a difference is shown."""
    return (
        SPY
        + """
def spread(x):
    return " ".join(sources()) or "nothing found"


def winners(x):
    return {" ".join(sources()): 1}
"""
    )


@attack()
def hidden_test_as_numbers() -> str:
    """Reads the hidden test, and returns its letters as numbers of the right shape."""
    return (
        SPY
        + """
def spread(x):
    letters = [float(ord(each)) for each in ("".join(sources()) + "?" * 99)[:len(x)]]
    return torch.tensor(letters)


def winners(x):
    return int.from_bytes("".join(sources()).encode()[:30], "big")
"""
    )


@attack()
def hidden_test_as_output() -> str:
    """Reads the hidden test, and prints it, displays it, draws it, and writes it into an earlier display."""
    return (
        SPY
        + """
import base64
from IPython import get_ipython
from IPython.display import display

display("nothing yet", display_id="early")


def spread(x):
    found = " ".join(sources())
    print(found)
    print(found, file=sys.stderr)
    display({"text/plain": found, "image/png": base64.b64encode(found.encode()).decode()}, raw=True)
    get_ipython().display_pub.publish(data={"text/plain": found}, transient={"display_id": "early"}, update=True)
    return torch.zeros(len(x))


def winners(x):
    return 0
"""
    )


@attack("after")
def hidden_test_in_a_later_cell() -> dict[str, str]:
    """Reads a hidden test when it has run: from the cell of the next task, which prints it, and its own hidden test."""
    return {
        "after": SPY
        + """
found = sources()
print(" ".join(found) or "nothing found")


def doubled(x):
    global found_before
    del found_before
    raise ValueError(" ".join(sources()) or "nothing found")
"""
    }


@attack()
def hidden_test_as_a_label() -> str:
    """Reads the hidden test, and writes it into labels, operators and other parts of its bundle."""
    return (
        SPY
        + """
from txgrade.checking import checks

honest = checks._display_raw


def display_raw(data):
    for bundle in data.values():
        found = " ".join(sources())
        if bundle["task"] == "target":
            bundle["operators"] = [found]
            for each in bundle["shown"]:
                each["label"] = found
            bundle["error"] = {"error": "ValueError", "message": "", "function": found, "line": found, "code": found}
    honest(data)


checks._display_raw = display_raw


def spread(x):
    return torch.zeros(len(x))


def winners(x):
    return 0
"""
    )


@attack("target", "rests")
def reference_of_another_task() -> dict[str, str]:
    """Is tested alone with the reference of the task it rests on, and raises that reference's source."""
    return {
        "target": WRONG,
        "rests": SPY
        + """
def widest(x):
    spread(x)
    raise ValueError(" ".join(sources()) or "nothing found")
""",
    }


@attack("target", "rests")
def reference_as_a_value() -> dict[str, str]:
    """The same, by value, by print and by figure."""
    return {
        "target": WRONG,
        "rests": SPY
        + """
import base64
from IPython.display import display


def widest(x):
    spread(x)
    found = " ".join(sources())
    print(found)
    display({"text/plain": found, "image/png": base64.b64encode(found.encode()).decode()}, raw=True)
    return found
""",
    }


@attack("target", "rests")
def reference_in_pieces() -> dict[str, str]:
    """The same, letter by letter, in the numbers that it shows."""
    return {
        "target": WRONG,
        "rests": SPY
        + """
def widest(x):
    spread(x)
    return int.from_bytes("".join(sources()).encode()[:30], "big")
""",
    }


@attack()
def everything_it_can_read() -> str:
    """Looks for secrets in all files, processes, environments, sockets, modules, objects and memory within reach."""
    return (
        SEEK
        + """
import ctypes, json, socket, time
from pathlib import Path

OWN = WORD + "own"
found, seen = set(hits(OWN)), {"files": 0, "names": 0, "objects": 0, "megabytes": 0, "processes": 0}
until = time.monotonic() + 2.5


def look(text, where):
    for hit in hits(text):
        if hit != OWN:
            found.add(where + ": " + hit)


# files: every name, and the contents of what is not Python's own
skip = (os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), "/proc", "/sys", "/usr", "/lib", "/dev")
for folder, folders, files in os.walk("/"):
    folders[:] = [each for each in folders if not f"{folder}/{each}".strip("/").startswith(("proc", "sys"))]
    seen["names"] += len(files)
    look(" ".join((folder, *files)), "name")
    if time.monotonic() > until:
        break
    if folder.startswith(skip):
        continue
    for name in files:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                look(file.read(2_000_000).decode("latin-1"), os.path.join(folder, name))
                seen["files"] += 1
        except OSError:
            pass

# processes and environments
look(str(dict(os.environ)), "environment")
for entry in Path("/proc").glob("[0-9]*"):
    seen["processes"] += 1
    for part in ("environ", "cmdline", "maps", "mountinfo", "cgroup", "comm"):
        try:
            look((entry / part).read_bytes().decode("latin-1"), str(entry / part))
        except OSError:
            pass
    try:
        for descriptor in (entry / "fd").iterdir():
            look(os.readlink(descriptor), "descriptor")
    except OSError:
        pass

# objects: whatever a zygote left behind
for each in gc.get_objects():
    seen["objects"] += 1
    if isinstance(each, (dict, list, tuple)) and len(each) < 1000:
        for inner in (list(each.values()) if isinstance(each, dict) else each):
            if isinstance(inner, str):
                look(inner, "object")

# memory: all of this process that can be written
for line in open("/proc/self/maps"):
    span, rights, *rest = line.split()
    begin, end = (int(each, 16) for each in span.split("-"))
    if rights.startswith("rw") and end - begin < 300_000_000 and "[v" not in line:
        try:
            text = ctypes.string_at(begin, end - begin).decode("latin-1")
        except Exception:
            continue
        seen["megabytes"] += (end - begin) / 2**20
        for hit in re.findall("CAN" + r"ARY-(?:solution|sentence|hidden|host|grade)[A-Za-z-]*", text):
            found.add("memory: " + hit)
        del text

print("FOUND", sorted(found))
print("SEEN", json.dumps(seen))


def spread(x):
    raise ValueError("FOUND " + " ".join(sorted(found)) + " SEEN " + json.dumps(seen))


winners = spread
"""
    )


# Everything in a kernel: objects, sources, history, modules, files, and the whole memory of its process.
EVERYTHING = (
    SPY
    + '''
def everything():
    """Every canary that is anywhere."""
    found = set(sources())
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType):
            found.update(hits(str(each.__code__.co_consts) + str(each.__closure__)))
        elif isinstance(each, dict) and len(each) < 5000:
            found.update(hits(" ".join(value for value in [*each, *each.values()] if isinstance(value, str))))
    found.update(hits(" ".join(sys.modules)))
    skip = (os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), "/proc", "/sys", "/usr", "/lib", "/dev")
    for folder, folders, files in os.walk("/"):
        folders[:] = [each for each in folders if not os.path.join(folder, each).startswith(skip)]
        for name in files:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    found.update(hits(file.read(2_000_000).decode("latin-1")))
            except OSError:
                pass
    before = len(found)
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in open("/proc/self/maps"):
            span, rights, *rest = line.split()
            begin, end = (int(each, 16) for each in span.split("-"))
            if not rights.startswith("r") or "[v" in line or end - begin > 2**31:
                continue
            try:
                memory.seek(begin)
                data = memory.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
            found.update(each.decode() for each in re.findall(PATTERN, data))
    return sorted(found)


PATTERN = (WORD + "[A-Za-z-]{3,}").encode()
OWN = WORD + "own"
'''
)


@attack("target", "rests")
def everything_in_its_kernel() -> dict[str, str]:
    """Greps its whole kernel in every run, when its cell runs and when its checks do, and raises what it finds."""
    return {
        "target": EVERYTHING + WRONG + "\nprint('FOUND', *everything())\n",
        "rests": EVERYTHING
        + """
print("FOUND", *everything())


def widest(x):
    print("FOUND", *everything())
    spread(x)
    found = everything()
    print("FOUND", *found)
    raise type("".join(found).replace("-", ""), (Exception,), {})(" ".join(found))
""",
    }


@attack()
def own_notebook() -> str:
    """Reads the requests, the history and the notebook's later cells from inside its kernel."""
    return (
        SPY
        + """
import threading
from IPython import get_ipython

shell = get_ipython()
found = sources() + hits(str(vars(shell))[:5_000_000]) + hits(str(vars(shell.pipe)))
for frame in sys._current_frames().values():
    while frame:
        found += hits(str(frame.f_locals)[:5_000_000])
        frame = frame.f_back
print("FOUND", sorted(set(found)))


def spread(x):
    return torch.zeros(len(x))


def winners(x):
    return 0
"""
    )


@attack("nothing")
def honest_and_curious() -> dict[str, str]:
    """Not an attack: right answers that print and return what they like."""
    return {"target": RIGHT["target"] + '\nprint("looks good")\n'}
