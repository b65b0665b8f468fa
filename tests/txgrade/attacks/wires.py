"""Attacks on what connects a kernel with its grader: nonsense in every pipe and socket that is open, at any moment."""

from attacks import RIGHT, WRONG, attack

# Every open file that is a pipe or a socket, whatever the grader uses it for.
WIRES = """
import os, random, stat, threading, time

mine = random.Random(1)


def wires():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            found.append(int(name))
    return found


def nonsense(size=64, wires=wires):
    for each in wires():
        try:
            os.write(each, mine.randbytes(size))
        except OSError:
            pass
"""


@attack()
def nonsense_at_once() -> str:
    """Writes 64 bytes of nonsense into each of its kernel's sockets and pipes."""
    return WRONG + WIRES + "\nnonsense()\n"


@attack()
def nonsense_in_lines() -> str:
    """The same, a thousand times, with line ends between."""
    return WRONG + WIRES + "\nfor number in range(1000):\n    nonsense(mine.randrange(1, 200))\n    nonsense(1)\n"


@attack()
def nonsense_in_its_check() -> str:
    """Writes nonsense while its check runs."""
    return WIRES + "\n\ndef spread(x):\n    nonsense()\n    return torch.zeros(len(x))\n\n\nwinners = spread\n"


@attack()
def nonsense_in_a_thread() -> str:
    """Writes nonsense every millisecond, whatever runs, until its kernel ends."""
    return (
        WRONG
        + WIRES
        + """

def forever():
    while True:
        nonsense(mine.randrange(1, 3000))
        time.sleep(0.001)


threading.Thread(target=forever, daemon=True).start()
"""
    )


@attack()
def nonsense_of_a_child() -> str:
    """Has a forked child write nonsense while the kernel goes on."""
    return (
        WRONG
        + WIRES
        + """
if os.fork() == 0:
    while True:
        nonsense(5000)
        time.sleep(0.001)
"""
    )


@attack()
def half_a_line() -> str:
    """Writes the beginning of a line, and then says nothing more."""
    return (
        WRONG
        + WIRES
        + """
for each in wires():
    try:
        os.write(each, b'{"done": 1')
    except OSError:
        pass
time.sleep(1)
"""
    )


@attack()
def reads_all_wires() -> str:
    """Takes away what is sent to its kernel, from a thread that reads every socket and pipe."""
    return (
        WRONG
        + WIRES
        + """

def swallow(wire):
    while True:
        try:
            os.read(wire, 1 << 20)
        except OSError:
            time.sleep(0.01)


for each in wires():
    threading.Thread(target=swallow, args=(each,), daemon=True).start()
"""
    )


@attack()
def does_not_listen() -> str:
    """Stops reading what it is sent, while it goes on living."""
    return (
        WRONG
        + WIRES
        + """
for each in wires():
    try:
        os.set_blocking(each, False)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, each)
    except OSError:
        pass
"""
    )


@attack("nothing")
def honest_threads() -> dict[str, str]:
    """Not an attack: right answers whose threads print while later cells run."""
    return {
        "before": RIGHT["before"]
        + """

import threading, time


def chatter():
    for number in range(50):
        print("still here", number)
        time.sleep(0.01)


threading.Thread(target=chatter, daemon=True).start()
"""
    }
