"""Attacks on the wire: messages that the kernel forges, floods, breaks, or leaves out."""

from attacks import RIGHT, WRONG, attack

# A kernel's sockets and key, and how to send any bytes as a signed message of the running cell.
WIRE = """
import hashlib, hmac, json, os, threading, time
import zmq
from ipykernel.kernelapp import IPKernelApp

app = IPKernelApp.instance()
kernel, session = app.kernel, app.kernel.session
iopub = getattr(kernel.iopub_socket, "io_thread", None)
iopub = iopub.socket if iopub is not None else kernel.iopub_socket
MIME = b"application/vnd.txlib.evidence+json"
count = 0


def signed(kind, content, parent=None):
    global count
    count += 1
    header = {"msg_id": "forged-%d" % count, "msg_type": kind, "session": "x", "username": "x", "version": "5.3",
              "date": "2026-01-01T00:00:00Z"}
    parent = kernel.get_parent()["header"]["msg_id"] if parent is None else parent
    parts = [json.dumps(header).encode(), json.dumps({"msg_id": parent}).encode(), b"{}", content]
    sign = hmac.new(session.key, digestmod=hashlib.sha256)
    for part in parts:
        sign.update(part)
    return [b"<IDS|MSG>", sign.hexdigest().encode(), *parts]


def publish(kind, content, parent=None):
    iopub.send_multipart([b"topic", *signed(kind, content, parent)])


def reply(kind, content, parent=None):
    whom = kernel.get_parent()["header"]["session"].encode()
    shell = getattr(getattr(kernel, "shell_stream", None), "socket", None) or app.shell_socket
    shell.send_multipart([whom, *signed(kind, content, parent)])
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
def message_of_many_parts() -> str:
    """Sends one message of a thousand parts, 7 MB each: a reader keeps them all until the last has come."""
    return wired("""
part = bytes(7_000_000)
for number in range(1000):
    iopub.send(part, zmq.SNDMORE, copy=False)
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
    """Sends states of widgets, which nbclient keeps for ever."""
    return wired("""
content = json.dumps({"comm_id": "%s", "target_name": "jupyter.widget", "data": {"state": {"x": "y" * 4_000_000}}})
for number in range(10_000):
    publish("comm_open", content.replace("%s", str(number)).encode())
""")


@attack()
def messages_for_others() -> str:
    """Floods the reader with messages of no cell, so that it never comes to look at the clock."""
    return wired("""
made = [[b"topic", *signed("status", b'{"execution_state": "busy"}', "nobody")] for number in range(20_000)]
while True:
    for each in made:
        iopub.send_multipart(each)
""")


@attack()
def replies_to_nobody() -> str:
    """Floods the reader with replies to questions that nobody asked: nbclient's deadline is never looked at."""
    return wired('while True:\n    reply("execute_reply", b\'{"status": "ok"}\', "nobody")\n')


@attack()
def reply_before_the_end() -> str:
    """Says that its cell is done while it runs, so that the next cells' messages come out of order."""
    return wired("""
reply("execute_reply", b'{"status": "ok", "execution_count": 1}')
publish("status", b'{"execution_state": "idle"}')
time.sleep(0.5)
""")


@attack()
def replies_to_all() -> str:
    """Answers every later question itself, with evidence of its own, and leaves the cells unread."""
    return wired("""
shell = getattr(getattr(kernel, "shell_stream", None), "socket", None) or app.shell_socket
forged = {"task": "target", "seed": seed, "rtol": 1e-4, "atol": 1e-5, "error": None, "shown": []}
content = json.dumps({"metadata": {}, "data": {MIME.decode(): forged}}).encode()
end = time.monotonic() + 1
reply("execute_reply", b'{"status": "ok", "execution_count": 1}')
publish("status", b'{"execution_state": "idle"}')
while time.monotonic() < end:
    try:
        got = shell.recv_multipart(zmq.NOBLOCK)
        asked = json.loads(got[got.index(b"<IDS|MSG>") + 2])["msg_id"]
    except Exception:
        time.sleep(0.01)
        continue
    publish("display_data", content, asked)
    shell.send_multipart([got[0], *signed("execute_reply", b'{"status": "ok", "execution_count": 1}', asked)])
    publish("status", b'{"execution_state": "idle"}', asked)
""")


@attack()
def another_key() -> str:
    """Changes the key with which messages are signed: nobody believes the kernel any more."""
    return wired('session.key = b"mine"\nkernel.session.auth = None\n')


@attack()
def signature_used_twice() -> str:
    """Sends the same signed message twice."""
    return wired("""
message = [b"topic", *signed("stream", b'{"name": "stdout", "text": "x"}')]
for number in range(3):
    iopub.send_multipart(message)
time.sleep(0.2)
""")


@attack()
def not_a_message() -> str:
    """Sends bytes that are no message."""
    return wired("""
for parts in ([b""], [b"\\xff" * 100], [b"<IDS|MSG>"], [b"a", b"<IDS|MSG>", b"", b"{", b"", b"", b""]):
    iopub.send_multipart(parts)
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
    """Sends a message whose content is a list."""
    return displays('b"[1]"')


@attack()
def display_id_is_a_list() -> str:
    """Displays something under an id that is a list."""
    return displays('b\'{"metadata": {}, "data": {}, "transient": {"display_id": [1]}}\'')


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
    """Asks whoever grades to type something."""
    return (
        WRONG
        + """
try:
    input("password: ")
except Exception:
    pass
from IPython import get_ipython

kernel = get_ipython().kernel
kernel._allow_stdin = True
answer = kernel.raw_input("password: ")
"""
    )


@attack()
def speaks_to_itself() -> str:
    """Connects to its own kernel, as the grader does, and tells it to run cells and to shut down."""
    return (
        WRONG
        + """
import threading
from ipykernel.connect import get_connection_file
from jupyter_client import BlockingKernelClient

try:
    client = BlockingKernelClient(connection_file=get_connection_file())
    client.load_connection_file()
    client.start_channels()
    client.execute("seed = 0")
    client.shutdown()
except Exception as reason:
    print(type(reason))
"""
    )


@attack()
def closes_its_sockets() -> str:
    """Closes the kernel's sockets and every other open file."""
    return WRONG + "import os\n\nos.closerange(0, 65536)\n"


@attack()
def rebinds_its_sockets() -> str:
    """Takes the places of the kernel's sockets in the file system: links to other sockets of the machine."""
    return (
        WRONG
        + """
import glob, os

for line in open("/proc/net/unix"):
    path = line.split()[-1]
    if path.startswith("/"):
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
