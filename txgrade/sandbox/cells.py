"""A kernel of two pipes: it runs cells in IPython's shell, and writes down what they display.

One JSON line each way. The grader writes `{"run": source, "cell": 3}` or `{"interrupt": true}`; the kernel writes

    {"ready": true}                                        once
    {"output": {…}, "display_id": "…" or None}             an output as nbformat has it
    {"update": {"data": …, "metadata": …}, "display_id"}   what takes an earlier display's place
    {"clear": true}                                        outputs of this cell that are to go
    {"done": 3, "error": ["ValueError", "message"] or None}

There are no sockets, no keys and no threads of a library's that hostile code could confuse. It can write whatever
it likes into its pipe: `txgrade.sandbox.kernel` reads lines, within bounds, and nothing else.
"""

import base64
import io
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

FLUSH_SECONDS = 0.1  # that a print may wait
CHUNK_CHARACTERS = 8192  # of prints that are sent as one


class Pipe:
    """The way out. A forked child of a cell says nothing: its lines would fall into ours."""

    def __init__(self, descriptor: int):
        self._descriptor, self._lock, self.process = descriptor, threading.RLock(), os.getpid()

    def send(self, message: dict) -> None:
        if os.getpid() != self.process:
            return
        data = memoryview(json.dumps(message, default=_plain).encode() + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a kernel: texts are gathered, and sent a few times a second."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, pipe: Pipe, name: str):
        super().__init__()
        self.name, self._pipe, self._lock = name, pipe, threading.RLock()
        self._texts: list[str] = []
        self._size, self._sent = 0, 0.0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1 if self.name == "stdout" else 2

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            self._texts.append(text)
            self._size += len(text)
            if self._size > CHUNK_CHARACTERS or time.monotonic() - self._sent > FLUSH_SECONDS:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            text, self._texts, self._size, self._sent = "".join(self._texts), [], 0, time.monotonic()
        if text:
            self._pipe.send({"output": {"output_type": "stream", "name": self.name, "text": text}})


class Publisher(DisplayPublisher):
    """`display(…)`."""

    shell: Any

    def publish(  # noqa: D102
        self,
        data: dict,
        metadata: dict | None = None,
        source: Any = None,
        *,
        transient: dict | None = None,
        update: bool = False,
        **unused: Any,
    ) -> None:
        self.shell.flush_streams()
        shown = {"data": data, "metadata": metadata or {}}
        display_id = (transient or {}).get("display_id")
        if update:
            self.shell.pipe.send({"update": shown, "display_id": display_id})
        else:
            self.shell.pipe.send({"output": {"output_type": "display_data", **shown}, "display_id": display_id})

    def clear_output(self, wait: bool = False) -> None:  # noqa: D102
        self.shell.flush_streams()
        self.shell.pipe.send({"clear": True})


class Hook(DisplayHook):
    """The value of a cell's last line."""

    shell: Any

    def write_output_prompt(self) -> None:
        """There is none."""

    def write_format_data(self, data: dict, metadata: dict | None = None) -> None:
        self.shell.flush_streams()
        shown = {"data": data, "metadata": metadata or {}, "execution_count": self.prompt_count}
        self.shell.pipe.send({"output": {"output_type": "execute_result", **shown}})

    def finish_displayhook(self) -> None:
        """No line of its own ends it."""


class Shell(InteractiveShell):
    """IPython's shell, as a notebook has it, with a pipe for its front end."""

    display_pub_class = Type(Publisher)
    displayhook_class = Type(Hook)
    pipe: Pipe

    def flush_streams(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Stream):
                stream.flush()

    def enable_gui(self, gui: str | None = None) -> None:
        """A notebook has no event loop of a window's."""

    def ask_exit(self) -> None:
        self.exit_now = True

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.flush_streams()
        error = {"ename": str(getattr(etype, "__name__", etype)), "evalue": _words(evalue), "traceback": list(stb)}
        self.pipe.send({"output": {"output_type": "error", **error}})


def serve(requests: int, messages: int) -> None:
    """Run cells until the requests end. `requests` and `messages` are the pipes' descriptors."""
    pipe = Pipe(messages)
    pending: queue.SimpleQueue = queue.SimpleQueue()
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, as long as the process lives
    sys.stdout, sys.stderr = Stream(pipe, "stdout"), Stream(pipe, "stderr")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "Linux"}})
    Shell.pipe = pipe
    shell = Shell.instance(config=settings)
    threading.Thread(target=_listen, args=(requests, pending, threading.main_thread().ident), daemon=True).start()
    pipe.send({"ready": True})
    while not shell.exit_now:
        try:
            request = pending.get()
            if request is None:
                return
            pipe.send({"done": request["cell"], "error": _run(shell, request["run"])})
        except KeyboardInterrupt:  # it came too late
            continue


def _run(shell: Shell, source: str) -> list[str] | None:
    """Run one cell; return the type and the message of what it raised."""
    try:
        result = shell.run_cell(source, store_history=True)
        error = result.error_before_exec or result.error_in_exec
    except KeyboardInterrupt as reason:
        error = reason
    shell.flush_streams()
    return None if error is None else [type(error).__name__, _words(error)]


def _listen(requests: int, pending: queue.SimpleQueue, main: int) -> None:
    """Take requests in, even while a cell runs."""
    with open(requests, encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            if "interrupt" in request:
                signal.pthread_kill(main, signal.SIGINT)
            else:
                pending.put(request)
    pending.put(None)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a cell's own exception may fail to say what it is
        return ""


def _plain(value: Any) -> str:
    """Return what JSON can hold: an image's bytes in base 64, the `repr` of anything else."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)
