"""Grade a whole class: measure the time by number of processes, and check that nothing is lost when they are killed.

    python benchmarks/grading.py --class 20 100 [--workers 1 2 4] [--kill 5] [--keep FOLDER] [--save]

The class is artificial and the same each time: right answers in two wordings, the usual mistakes, half-empty and empty
notebooks, a kernel that is ended from inside, files that are not notebooks. Local processes grade it, and then Dask
clusters on this machine with each number of workers, on the same two seeds. `--kill 5` adds a run with the most
workers: after every five grades one of them gets kill -9 and is replaced; halfway through, so does the grader itself,
which is then restarted. All runs must end with the same gradebook, with one row per submission, and with the scores
that the answers deserve.
"""

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path

import nbformat
import psutil
from compare import environment

from txgrade.authoring.release import release
from txgrade.records.gradebook import Gradebook
from txlib.plots import Picture, lines

CORES = os.cpu_count() or 1
SEEDS = "17,42"
PACKAGES = ("distributed", "ipykernel", "jupyter-client", "papermill", "nbval", "torch", "txgrade")


@dataclass(frozen=True)
class Run:
    """One run. Seconds are of the clock."""

    submissions: int
    by: str  # "processes", or "dask"
    workers: int
    killed: int  # workers; where any, the grader too, once
    seconds: float  # from the command to its end
    first: float  # until the first grade
    last: float  # from the last grade to the end: tables, summary
    per_minute: float  # grades between the first and the last
    grader_mb: int  # the most that the grader itself held
    inbox_mb: float
    pages_mb: float
    gradebook_mb: float
    date: str
    load: tuple[float, ...]  # of the machine, before and after


class Class:
    """A folder with an exercise, released, and an inbox of so many submissions. `people` are kinds of answers."""

    def __init__(self, folder: Path, source: Path, people: list[tuple[dict[str, str] | str, int]], count: int):
        self.folder, self.count = folder, count
        self.source = folder / "solutions" / source.name
        self.source.parent.mkdir(parents=True)
        shutil.copy(source, self.source)
        self.inbox = folder / "submitted"
        self.inbox.mkdir()
        self.deserved: dict[str, float] = {}
        text = release(self.source, run_solution=False).exercise.read_text(encoding="utf-8")
        for number, (answers, points) in enumerate(islice(cycle(people), count), 1):
            name = f"learner-{number:04}"
            self.deserved[name] = float(points)
            (self.inbox / f"{name}.ipynb").write_text(_filled(text, answers, name), encoding="utf-8")

    def grade(self, by: str, workers: int, kill: int = 0) -> tuple[Run, dict[str, dict]]:
        """Grade all; what it took, and each submission's result."""
        out = self.folder / f"results-{self.count}-{by}-{workers}{'-killed' * bool(kill)}"
        words = ["--assignment", str(self.source), "--submissions", str(self.inbox), "--out", str(out)]
        words += ["--on-seeds", SEEDS]
        before, began, time_began = os.getloadavg()[0], time.perf_counter(), time.time()
        killed, most = 0, 0
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(Cluster(workers, self.folder)) if by == "dask" else None
            words += ["--scheduler", cluster.address] if cluster else ["--jobs", str(workers)]
            command = [sys.executable, "-m", "txgrade", "grade", *words]
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            grader = subprocess.Popen(command, cwd=self.folder, stdout=said, stderr=said)
            stack.callback(lambda: grader.poll() is None and grader.kill())
            to_kill = kill > 0
            while grader.poll() is None:
                time.sleep(0.2)
                with contextlib.suppress(psutil.NoSuchProcess):
                    most = max(most, psutil.Process(grader.pid).memory_info().rss)
                graded = len(list((out / "feedback").glob("*.html")))
                if cluster and kill and self.count > graded >= kill * (killed + 1):
                    cluster.kill_one()
                    killed += 1
                if to_kill and graded >= self.count / 2:
                    grader.send_signal(signal.SIGKILL)
                    grader.wait()
                    grader, to_kill = subprocess.Popen(command, cwd=self.folder, stdout=said, stderr=said), False
            if grader.returncode:
                said.seek(0)
                raise SystemExit(f"grading {self.count} by {workers} {by} failed:\n{said.read()[-3000:]}")
            seconds, ended = time.perf_counter() - began, time.time()
        results, times = self._proved(out)
        steady = times[-1] - times[0]
        run = Run(
            self.count,
            by,
            workers,
            killed,
            round(seconds, 1),
            round(times[0] - time_began, 1),
            round(ended - times[-1], 1),
            round(60 * (len(times) - 1) / steady, 1) if steady else 0.0,
            most >> 20,
            _megabytes(self.inbox),
            _megabytes(out / "feedback"),
            _megabytes(out / "gradebook.sqlite"),
            str(environment(())["date"]),
            (round(before, 1), round(os.getloadavg()[0], 1)),
        )
        return run, results

    def _proved(self, out: Path) -> tuple[dict[str, dict], list[float]]:
        """Each submission's result, and when each was written down; each once, and with the score that it deserves."""
        results, times = {}, []
        with Gradebook(out / "gradebook.sqlite", create=False) as book:
            for name in self.deserved:
                entries = book.history(name)
                if len(entries) != 1:
                    raise SystemExit(f"{out}: {name} has {len(entries)} rows in the gradebook instead of one")
                results[name] = entries[0].result.data()
                times.append(datetime.fromisoformat(entries[0].time).timestamp())
        with open(out / "grades.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {row["submission"]: float(row["score"]) for row in rows}
        wrong = {name: (found.get(name), points) for name, points in self.deserved.items() if found.get(name) != points}
        if wrong or len(rows) != len(self.deserved):
            raise SystemExit(f"{out}: {len(rows)} rows; scores and what they should be: {wrong}")
        if {row["isolation"] for row in rows} != {"sealed"}:
            raise SystemExit("not graded in a sealed sandbox: the times mean nothing")
        return results, sorted(times)


class Cluster:
    """A Dask scheduler on this machine, and workers of one thread each, in processes of their own."""

    def __init__(self, workers: int, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.folder = folder
        port = self.address.rpartition(":")[2]
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", port)
        self.workers = [self._worker() for _ in range(workers)]

    def kill_one(self) -> None:
        """Kill the worker that has lived longest; a new one takes its place."""
        worker = self.workers.pop(0)
        worker.kill()
        worker.wait()
        self.workers.append(self._worker())

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        for process in (*self.workers, self.scheduler):
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _worker(self) -> subprocess.Popen:
        options = ("--no-nanny", "--nthreads", "1", "--local-directory", str(self.folder / "dask"))
        return self._start("worker", self.address, *options)

    def _start(self, what: str, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *words, "--no-dashboard"]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(
    source: Path,
    people: list[tuple[dict[str, str] | str, int]],
    counts: list[int],
    workers: list[int],
    kill: int,
    keep: Path | None,
) -> Iterator[Run]:
    """Every run, as it is done. All of a class must come to the same results."""
    with tempfile.TemporaryDirectory() as temporary:
        for count in counts:
            graded = Class((keep or Path(temporary)) / f"class-{count}", source, people, count)
            ways = [("processes", CORES + 2, 0)] + [("dask", each, 0) for each in workers]
            ways += [("dask", max(workers, default=CORES), kill)] if kill else []
            first = None
            for way in ways:
                run, results = graded.grade(*way)
                first = first or results
                if results != first:
                    differ = [name for name in results if results[name] != first[name]]
                    raise SystemExit(f"{count} by {way}: other results than without, of {', '.join(differ)}")
                yield run


def row(run: Run) -> str:
    killed = f", {run.killed} killed" if run.killed else ""
    return (
        f"{run.submissions:5} by {run.workers} {run.by}{killed}: {run.seconds:.0f} s, {run.per_minute:.1f} per minute, "
        f"the first after {run.first:.0f} s, the end {run.last:.1f} s after the last; {run.grader_mb} MB held"
    )


def save(runs: list[Run], path: Path) -> Path:
    """Add runs to a file, in place of earlier ones of the same kind, and draw all of them."""
    rows = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    kinds = {(run.submissions, run.by, run.workers, bool(run.killed)) for run in runs}
    rows = [
        each for each in rows if (each["submissions"], each["by"], each["workers"], bool(each["killed"])) not in kinds
    ]
    rows = sorted([*rows, *map(asdict, runs)], key=lambda each: (each["submissions"], each["by"], each["workers"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**environment(PACKAGES), "runs": rows}, indent=2) + "\n", encoding="utf-8")
    if any(each["by"] == "dask" and not each["killed"] for each in rows):
        figure(rows).save(str(path.with_suffix(".png")))
    return path


def figure(rows: list[dict]) -> Picture:
    """Throughput against workers, a line for each size of class."""
    undisturbed = [each for each in rows if each["by"] == "dask" and not each["killed"]]
    series = {}
    for count in sorted({each["submissions"] for each in undisturbed}):
        points = {each["workers"]: each["per_minute"] for each in undisturbed if each["submissions"] == count}
        series[f"{count:,} submissions"] = ([0, *points], [0.0, *points.values()])  # no worker, no grade
    alt = "Submissions per minute against workers. " + "; ".join(
        f"{name}: {', '.join(f'{rate:g} by {workers}' for workers, rate in zip(*line, strict=True) if workers)}"
        for name, line in series.items()
    )
    return lines(
        series,
        title=f"More workers than the {CORES} cores grade no faster",
        alt=alt + ".",
        xlabel="workers",
        ylabel="submissions per minute",
        marker="o",
        mark=(f"{CORES} cores", CORES),
    )


def _filled(text: str, answers: dict[str, str] | str, name: str) -> str:
    """A learner's notebook; where `answers` is a text, the file that they hand in instead."""
    if isinstance(answers, str):
        return text[: len(text) // 2] if answers == "truncated" else answers
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if id in answers:
            cell.source = f"{answers[id]}\n# {name}"
    return nbformat.writes(notebook)


def _megabytes(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return round(sum(each.stat().st_size for each in files if each.is_file()) / 1e6, 2)
