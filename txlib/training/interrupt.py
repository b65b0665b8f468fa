"""Ctrl-C, as a request."""

import signal
from contextlib import AbstractContextManager
from typing import Any


class Interrupt(AbstractContextManager):
    """Inside, the first Ctrl-C only asks to stop after the current step; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.previous: Any = None

    def __enter__(self) -> "Interrupt":
        try:
            self.previous = signal.signal(signal.SIGINT, self.handle)
        except ValueError:  # Ctrl-C arrives in the main thread, and this is another
            self.previous = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
