"""Grading by a Dask cluster: what lies with the scheduler, what is tried again, and that kills cost no grade."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")
from txgrade.judging.job import Job
from txgrade.records.gradebook import Gradebook
from txgrade.running import cluster
from txgrade.running.pool import Failed
from txgrade.sandbox import Limits, probe

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "grading.py"


def jobs(count):
    return [Job(None, None, number, (1,), Limits(), "sealed", "", "") for number in range(count)]


@pytest.fixture(scope="module")
def client():
    from distributed import Client

    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        yield client


@pytest.fixture
def graded(client, unchecked):
    """Have the cluster do `work` for so many jobs; returns what came, and how many lay with the scheduler at most."""

    def run(work, count):
        submitted = []

        class Counting:
            def submit(self, function, job, **options):
                submitted.append(job)
                return client.submit(work, job, **options)

            nthreads = client.nthreads

        came, most = [], 0
        for job, result in cluster.on_cluster(jobs(count), Counting()):
            came.append((job, result))
            most = max(most, len(submitted) - len(came) + 1)
        return came, submitted, most

    return run


def test_each_job_comes_once_and_few_lie_with_the_scheduler(graded):
    came, submitted, most = graded(lambda job: job.submission**2, 50)
    assert sorted(result for _, result in came) == [number**2 for number in range(50)]
    assert {job.submission for job, _ in came} == set(range(50)) and len(submitted) == 50
    assert most <= max(cluster.MIN_QUEUED, 2 * cluster.QUEUED_PER_WORKER)


def test_what_failed_is_tried_once_more_at_the_end_by_itself(graded):
    def work(job):
        if job.submission == 3 and not job.by_itself or job.submission == 5:
            raise OSError("no space left")
        return "graded"

    came, submitted, _ = graded(work, 8)
    results = {job.submission: result for job, result in came}
    assert len(came) == 8 and results[5] == Failed("OSError: no space left")
    assert {result for number, result in results.items() if number != 5} == {"graded"}
    assert sorted((job.submission, job.by_itself) for job in submitted[8:]) == [(3, True), (5, True)]


def rows(path):
    with Gradebook(path, create=False) as book:
        return {name: [entry.result for entry in book.history(name)] for name in book.names()}


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
def test_killed_workers_and_a_killed_grader_lose_nothing_and_grade_nothing_twice(tmp_path):
    """Eight submissions, two workers; one is killed after each second grade, and the grader half-way."""
    words = ["--class", "8", "--workers", "2", "--kill", "2", "--keep", tmp_path]
    run = subprocess.run([sys.executable, BENCHMARK, *map(str, words)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    runs = json.loads((tmp_path / "grading_class.json").read_text())["runs"]
    assert sorted((each["by"], each["killed"] > 0) for each in runs) == [
        ("dask", False),
        ("dask", True),
        ("processes", False),
    ]
    assert max(each["killed"] for each in runs) >= 2
    kept = {path.parent.name: rows(path) for path in (tmp_path / "class-8").glob("results-*/gradebook.sqlite")}
    undisturbed, killed = kept["results-8-dask-2"], kept["results-8-dask-2-killed"]
    assert len(killed) == 8 and {len(entries) for entries in killed.values()} == {1}
    assert killed == undisturbed
    assert {entries[0].status for entries in killed.values()} == {"graded", "truncated", "not json"}
