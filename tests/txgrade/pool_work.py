"""What the processes of a pool are told to do instead of grading; they import it by name."""

import os
import signal
import threading
import time

from txgrade.judging.job import Job


class Fatal:
    """Ends the process that unpacks it, as a bug in a library would."""

    def __reduce__(self) -> tuple:
        return os._exit, (1,)


class Endless:
    """Never comes to an end where it is unpacked, as hostile data might in a library that nobody suspected."""

    def __reduce__(self) -> tuple:
        return eval, ("__import__('time').sleep(3600)",)


def length(job: Job, begin: object) -> int:
    """Of the submission; None has none."""
    return len(job.submission)


def hang_the_first_time(job: Job, begin: object) -> int:
    if not job.by_itself:
        time.sleep(3600)
    return len(job.submission)


def take_time(job: Job, begin: object) -> int:
    """As many steps as the submission is long, half a second each, of which each is told."""
    for _ in job.submission:
        begin(0.2)
        time.sleep(0.5)
    return len(job.submission)


def stop_afterwards(job: Job, begin: object) -> int:
    """Stops the process, with its pipe open, as soon as it has answered; returns its number."""
    if not job.by_itself:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    return os.getpid()
