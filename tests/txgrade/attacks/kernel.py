"""Attacks on the wire: messages that the kernel forges, floods, breaks, or leaves out."""

from attacks import RIGHT, WRONG, attack

# A kernel's pipes, and how to write any line into the one that the grader reads.
WIRE = """
import json, os, sys, threading, time
from txgrade.sandbox.cells import Shell

MIME = b"application/vnd.txgrade.evidence+json"
out = Shell.pipe._descriptor
pipes = []
for name in os.listdir("/proc/self/fd"):
    try:
        if os.readlink("/proc/self/fd/" + name).startswith("pipe:"):
            pipes.append(int(name))
    except OSError:
        pass
(requests,) = [each for each in pipes if each != out]


def send(line):
    with Shell.pipe._lock:
        data = memoryview(line + b"\\n")
        while data:
            data = data[os.write(out, data):]


def publish(kind, content):
    send(b'{"output": {"output_type": "%s", ' % kind.encode() + content.lstrip(b" ")[1:] + b"}")


def number():
    '''That of the cell that runs.'''
    frame = sys._getframe()
    while "request" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["request"]["cell"]
"""


def wired(code: str, answer: str = WRONG) -> str:
    return answer + WIRE + code


def displays(data: str) -> str:
    """A display whose content is these bytes of JSON."""
    return wired(f'publish("display_data", {data})\ntime.sleep(0.2)\n')


@attack()
def infinite_print() -> str:
    """Prints without end."""
    return WRONG + 'while True:\n    print("lorem ipsum " * 1000)\n'


@attack()
def print_in_the_check() -> str:
    """Prints without end while its check runs."""
    return 'def spread(x):\n    while True:\n        print("lorem ipsum " * 1000)\n\n\nwinners = spread\n'


@attack()
def long_line() -> str:
    """Prints one line of five million letters: nbclient's regular expression takes the square of that."""
    return WRONG + 'print("x" * 5_000_000, end="")\n'


@attack()
def carriage_returns() -> str:
    """Prints a million carriage returns and backspaces."""
    return WRONG + 'print("x\\r\\b" * 1_000_000)\n'


@attack()
def one_message_of_100_mb() -> str:
    """Displays 100 MB at once."""
    return WRONG + 'from IPython.display import display\n\ndisplay({"text/plain": "x" * 100_000_000}, raw=True)\n'


@attack()
def line_without_end() -> str:
    """Sends one line of 7 GB: a reader keeps it all until its end has come."""
    return wired("""
part = bytes(7_000_000).replace(b"\\0", b"x")
for number in range(1000):
    os.write(out, part)
""")


@attack()
def json_that_grows() -> str:
    """Sends lists of empty dicts, that take twenty times their size once they are read."""
    return wired("""
content = b'{"metadata": {}, "data": {"%s": [' % MIME + b",".join([b"{}"] * 1_500_000) + b"]}}"
while True:
    publish("display_data", content)
""")


@attack()
def widgets_without_end() -> str:
    """Sends states of widgets, and displays under ids without end, which a reader might keep for ever."""
    return wired("""
content = json.dumps({"comm_id": "%s", "target_name": "jupyter.widget", "data": {"state": {"x": "y" * 4_000_000}}})
for each in range(10_000):
    send(content.replace("%s", str(each)).encode())
    send(b'{"output": {"output_type": "display_data", "data": {}}, "display_id": "%d"}' % each)
""")


@attack()
def lines_of_nothing() -> str:
    """Floods the reader with lines that say nothing, so that it never comes to look at the clock."""
    return wired("""
made = b"{}\\n" * 20_000
while True:
    os.write(out, made)
""")


@attack()
def done_with_others() -> str:
    """Floods the reader with news of other cells' ends."""
    return wired('while True:\n    send(b\'{"done": 999999, "error": null}\')\n')


@attack()
def done_before_the_end() -> str:
    """Says that its cell is done while it runs, so that the next cells' outputs come out of order."""
    return wired("""
send(b'{"done": %d, "error": null}' % number())
time.sleep(0.5)
""")


@attack()
def answers_for_all() -> str:
    """Reads every later request itself, answers with evidence of its own, and leaves the cells unread."""
    return wired("""
forged = {"task": "target", "seed": seed, "rtol": 1e-4, "atol": 1e-5, "error": None, "shown": []}
content = json.dumps({"metadata": {}, "data": {MIME.decode(): forged}}).encode()
end = time.monotonic() + 1
send(b'{"done": %d, "error": null}' % number())
os.set_blocking(requests, False)
while time.monotonic() < end:
    try:
        asked = json.loads(os.read(requests, 1 << 20))
    except Exception:
        time.sleep(0.01)
        continue
    publish("display_data", content)
    send(b'{"done": %d, "error": null}' % asked["cell"])
""")


@attack()
def says_nothing_more() -> str:
    """Turns every later line of its kernel into nothing."""
    return wired("""
Shell.pipe.send = lambda message: None
""")


@attack()
def done_twice() -> str:
    """Sends the same news several times, each with a display."""
    return wired("""
for each in range(3):
    send(b'{"done": %d, "error": null}' % number())
    publish("display_data", b'{"data": {"text/plain": "again"}}')
time.sleep(0.2)
""")


@attack()
def not_a_line_of_json() -> str:
    """Sends bytes that are no JSON, and JSON that is no message."""
    return wired("""
for line in (b"", b"\\xff" * 100, b"\\0", b"{", b"[]", b"null", b"NaN", b'"done"', b'{"done": true}', b'{"done": []}',
             b'{"done": %d, "error": {}}' % (number() + 1), b'{"output": []}', b'{"output": {"output_type": []}}',
             b'{"update": 1, "display_id": "x"}', b'{"update": {"data": 1}, "display_id": "x"}',
             b'{"output": {"output_type": "stream", "name": [], "text": "x"}}',
             b'{"output": {"output_type": "error", "ename": 1, "evalue": 2, "traceback": 3}}'):
    send(line)
time.sleep(0.2)
""")


@attack()
def nested_message() -> str:
    """Displays lists in lists, as deep as Python's reader goes and deeper."""
    return displays('b\'{"metadata": {}, "data": {"%s": \' % MIME + b"[" * 100_000 + b"]" * 100_000 + b"}}"')


@attack()
def number_of_10000_digits() -> str:
    """Displays a number that Python refuses to read."""
    return displays('b\'{"metadata": {}, "data": {"%s": \' % MIME + b"9" * 10_000 + b"}}"')


@attack()
def data_is_a_text() -> str:
    """Displays a text that has evidence's name in it, where a dict belongs."""
    return displays('b\'{"metadata": {}, "data": "%s"}\' % MIME')


@attack()
def data_is_a_list() -> str:
    """Displays a list where a dict belongs."""
    return displays('b\'{"metadata": {}, "data": ["%s"]}\' % MIME')


@attack()
def content_is_a_list() -> str:
    """Sends outputs whose contents are lists."""
    return wired("""
for kind in (b"display_data", b"stream", b"error", b"execute_result"):
    send(b'{"output": ["%s"], "display_id": ["x"]}' % kind)
    send(b'{"output": {"output_type": "%s", "data": [1], "name": [1], "text": [1], "ename": [1]}}' % kind)
""")


@attack()
def display_id_is_a_list() -> str:
    """Displays something under an id that is a list."""
    return wired("""
send(b'{"output": {"output_type": "display_data", "data": {}}, "display_id": [1]}')
send(b'{"update": {"data": {}}, "display_id": [1]}')
""")


@attack()
def half_a_character() -> str:
    """Displays half a character, that no file can hold."""
    return displays('b\'{"metadata": {}, "data": {"text/plain": "\\\\ud800", "text/html": "\\\\udfff"}}\'')


@attack()
def half_a_character_as_evidence() -> str:
    """Shows half a character as its answer, and raises an error with one."""
    return """
def spread(x):
    return "\\ud800"


def winners(x):
    raise ValueError("\\udc80\\udfff")
"""


@attack()
def asks_for_input() -> str:
    """Asks whoever grades to type something, and waits for it on every pipe."""
    return wired("""
for ask in (lambda: input("password: "), lambda: sys.stdin.read(), lambda: os.read(0, 100), lambda: os.read(out, 9)):
    try:
        print(ask())
    except (Exception, SystemExit) as reason:
        print(type(reason))
""")


@attack()
def speaks_to_itself() -> str:
    """Writes into the pipe that it is asked by, as the grader does, and tells itself to run cells and to stop."""
    return wired("""
for way in (f"/proc/self/fd/{requests}", f"/dev/fd/{requests}"):
    try:
        with open(way, "w") as itself:
            itself.write(json.dumps({"run": "seed = 0", "cell": number()}) + '\\n{"interrupt": true}\\nnonsense\\n')
    except OSError as reason:
        print(type(reason))
""")


@attack()
def closes_its_pipes() -> str:
    """Closes the kernel's pipes and every other open file."""
    return WRONG + "import os\n\nos.closerange(0, 65536)\n"


@attack()
def rebinds_its_sockets() -> str:
    """Takes the places of sockets in the file system: links to other sockets of the machine."""
    return (
        WRONG
        + """
import glob, os

for path in glob.glob("/kernel/*"):
    try:
        os.unlink(path)
        os.symlink("/run/docker.sock", path)
    except OSError as reason:
        pass
"""
    )


@attack()
def dies_at_once() -> str:
    """Ends the kernel's process."""
    return WRONG + "import os\n\nos._exit(0)\n"


@attack()
def dies_in_its_check() -> str:
    """Ends the kernel's process while its check runs."""
    return "def spread(x):\n    import os\n\n    os._exit(0)\n\n\nwinners = spread\n"


@attack()
def exits() -> str:
    """Calls exit, quit and sys.exit."""
    return """
def spread(x):
    import sys

    sys.exit(0)


def winners(x):
    exit()


quit()
"""


@attack()
def keyboard_interrupt() -> str:
    """Raises KeyboardInterrupt, which its check lets through."""
    return "def spread(x):\n    raise KeyboardInterrupt\n\n\nwinners = spread\n"


@attack()
def segmentation_fault() -> str:
    """Reads memory that is not there."""
    return WRONG + "import ctypes\n\nctypes.string_at(0)\n"


@attack()
def stops_itself() -> str:
    """Stops its own process, which then neither answers nor ends."""
    return WRONG + "import os, signal\n\nos.kill(os.getpid(), signal.SIGSTOP)\n"


@attack()
def stops_after_the_last_cell() -> str:
    """Stops its own process shortly after the last cell."""
    return (
        WRONG
        + """
import os, signal, threading

threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
"""
    )


@attack()
def kills_all() -> str:
    """Sends SIGKILL to its parent, to process 1 and to every process that it may."""
    return (
        WRONG
        + """
import os, signal

for process in (os.getppid(), 1, 0, -1):
    try:
        os.kill(process, signal.SIGKILL)
    except OSError as reason:
        print(reason)
"""
    )


@attack()
def leaves_an_exit_handler() -> str:
    """Leaves code for the end of the process: threads, exit handlers and destructors that work on."""
    return (
        WRONG
        + """
import atexit, threading, time


class Last:
    def __del__(self):
        time.sleep(60)


last = Last()
atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()
"""
    )


@attack()
def many_outputs() -> str:
    """Displays fifty thousand small things."""
    return (
        WRONG
        + """
from IPython.display import display

for number in range(50_000):
    display({"text/plain": ""}, raw=True)
"""
    )


@attack("nothing")
def honest_progress_bar() -> str:
    """Not an attack: a right answer that prints a long line, a progress bar, a figure, and a wide table."""
    return (
        RIGHT["target"]
        + """
import sys

print("-" * 300_000)
for step in range(1000):
    print(f"\\rstep {step}", end="")
print("\\nthe end")
sys.stderr.write("a warning\\n")
"""
    )


@attack("nothing")
def honest_display() -> dict[str, str]:
    """Not an attack: a right answer that changes what an earlier cell has displayed."""
    return {
        "target": RIGHT["target"]
        + """
from IPython.display import display

place = display("wait", display_id=True)
""",
        "after": 'place.update("done")\ndisplay("changed", display_id=place.display_id)\n\n\n' + RIGHT["after"],
    }
