"""Grades on this machine: a pool of processes, each of which has to report its progress in time.

It yields `(job, None)` when a job begins, and `(job, result)` when it is done. If the machine failed, and not the
submission, a job is tried once more; then it is `Failed`, and the others go on.

Nothing here waits without a deadline. What might (a process that starts, a pipe that is full or empty) has its own
thread; the pool waits for what the threads report, until the first deadline of those at work.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection

from txgrade.judging.job import Job, grade_submission
from txgrade.records.result import Result

START_SECONDS = 120  # until a process is there; the first one waits for the import of all that grading needs
OVERHEAD_SECONDS = 150  # that the grader itself may need for one step; the start of a kernel alone may take 120
KILL_SECONDS = 5  # until a process that was killed is given up


@dataclass(frozen=True)
class Failed:
    """The grader itself failed on a job."""

    reason: str


@dataclass(frozen=True)
class _Step:
    """A process begins the next part of its job, which may take so many seconds besides the grader's overhead."""

    seconds: int | float


Progress = Iterator[tuple[Job, Result | Failed | None]]
Grade = Callable[[Job, Callable[[int | float], None]], Result]
Report = _Step | Result | Failed


def on_this_machine(jobs: list[Job], processes: int, grade: Grade = grade_submission) -> Progress:
    """Grade with so many processes at once.

    A job whose process dies, outlives the deadline of a step, or was held up by others is retried by itself when all
    others are done. If that fails too, it was not the submission, and nothing is written down.
    """
    retries: list[tuple[int, Job]] = []
    for index, result in _in_a_pool(list(enumerate(jobs)), processes, grade):
        if isinstance(result, Failed):
            retries.append((index, replace(jobs[index], by_itself=True)))
        else:
            yield jobs[index], result
    for index, result in _in_a_pool(retries, 1, grade):
        yield jobs[index], result


def start_early() -> None:
    """Start the process that the pool's processes are forked from, so that it imports what they need meanwhile."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["txgrade.judging.job"])
    main = threading.current_thread() is threading.main_thread()  # elsewhere Python sets no handler
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        forkserver.ensure_running()  # it leaves Ctrl-C to us from its first moment on
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)


def _in_a_pool(
    jobs: list[tuple[int, Job]], processes: int, grade: Grade
) -> Iterator[tuple[int, Result | Failed | None]]:
    """Grade the list with so many processes. Only what runs is handed out, so that Ctrl-C ends soon."""
    waiting, idle, busy = list(jobs), list[_Worker](), set[_Worker]()
    reports: queue.SimpleQueue[tuple[_Worker, Report]] = queue.SimpleQueue()
    start_early()
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                worker = idle.pop() if idle else _Worker(grade, reports)
                worker.give(*waiting.pop(0))
                busy.add(worker)
                yield worker.index, None
            worker = min(busy, key=lambda worker: worker.deadline)
            report: Report
            try:  # a report that came in time counts, however busy we were
                worker, report = reports.get(timeout=max(0.0, worker.deadline - time.monotonic()))
            except queue.Empty:
                worker.end()
                report = Failed("its process outlived its deadline")
            if worker not in busy:  # the last report of one that was ended
                continue
            if isinstance(report, _Step):
                worker.deadline = time.monotonic() + report.seconds + OVERHEAD_SECONDS
                continue
            busy.remove(worker)
            if not worker.lost:
                idle.append(worker)
            yield worker.index, report
    finally:
        for worker in (*idle, *busy):
            worker.end()


class _Worker:
    """A process of the pool, and the thread that talks to it."""

    def __init__(self, grade: Grade, reports: queue.SimpleQueue):
        context = multiprocessing.get_context("forkserver")
        self.lost, self.index, self.deadline = False, -1, time.monotonic() + START_SECONDS
        self._pipe, self._other_end = context.Pipe()
        arguments = (self._other_end, grade, os.getpid(), dict(os.environ))
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._reports = reports
        threading.Thread(target=self._converse, daemon=True).start()

    def give(self, index: int, job: Job) -> None:
        if self.index >= 0:
            self.deadline = time.monotonic() + OVERHEAD_SECONDS
        self.index = index
        self._jobs.put(job)

    def end(self) -> None:
        """Kill the process; its thread notices, and ends."""
        self.lost = True
        self._jobs.put(None)
        self._kill()

    def _converse(self) -> None:
        """Start the process, then send it one job after the other, and pass on its reports."""
        try:
            self._process.start()
            self._other_end.close()
            self._report(self._pipe.recv())  # that it is there
            while not self.lost and (job := self._jobs.get()) is not None:
                self._pipe.send(job)
                while isinstance(report := self._pipe.recv(), _Step):
                    self._report(report)
                self._report(report)
        except (EOFError, OSError):
            self.lost = True
            self._report(Failed("its process died"))
        except Exception as reason:  # a job that can't be sent
            self.lost = True
            self._report(Failed(in_words(reason)))
        finally:
            self._pipe.close()
            self._kill()  # it may have been given up before it started

    def _kill(self) -> None:
        if self._process.pid is not None and self._process.is_alive():
            self._process.kill()
            self._process.join(KILL_SECONDS)

    def _report(self, report: Report) -> None:
        self._reports.put((self, report))


def _work(jobs: Connection, grade: Grade, parent: int, environment: dict[str, str]) -> None:
    """Grade what comes, in a process of the pool, until its pipe is closed."""
    _begin(parent, environment)
    jobs.send(_Step(0))
    while True:
        try:
            job = jobs.recv()
        except EOFError:
            return
        except Exception as reason:
            jobs.send(Failed(in_words(reason)))
            continue
        try:
            jobs.send(grade(job, lambda seconds: jobs.send(_Step(seconds))))
        except Exception as reason:
            jobs.send(Failed(in_words(reason)))


def _begin(parent: int, environment: dict[str, str]) -> None:
    """Take over the parent's settings in a new process, leave Ctrl-C to it, and don't outlive it, however it dies."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while _alive(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def in_words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:300]
