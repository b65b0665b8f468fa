"""What becomes of jobs whose process dies, or never answers."""

import threading
import time
from multiprocessing import popen_forkserver

import psutil
import pytest
from pool_work import Endless, Fatal, hang_the_first_time, length, stop_afterwards, take_time

from txgrade.judging.job import Job
from txgrade.running import pool
from txgrade.running.pool import Failed, on_this_machine
from txgrade.sandbox import Limits

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.slow]


def jobs_for(*submissions):
    return [Job(None, None, each, (1,), Limits(), "sealed", "", "") for each in submissions]


def results(jobs, processes, grade):
    """Of each job what came last, and how often it was begun."""
    done, begun = {}, [0] * len(jobs)
    for job, result in on_this_machine(jobs, processes, grade):
        index = jobs.index(job)
        if result is None:
            begun[index] += 1
        else:
            assert index not in done
            done[index] = result
    return [done[index] for index in range(len(jobs))], begun


def test_an_innocent_job_survives_its_neighbour_s_process():
    done, begun = results(jobs_for("aaa", Fatal(), "a", "aaaa"), 2, length)
    assert done == [3, Failed("its process died"), 1, 4]
    assert begun == [1, 2, 1, 1]


def test_a_job_that_raises_is_tried_once_more():
    (failed,), begun = results(jobs_for(None), 1, length)
    assert isinstance(failed, Failed) and "TypeError" in failed.reason and begun == [2]


def test_a_process_that_outlives_its_deadline_is_ended_by_its_parent(monkeypatch):
    monkeypatch.setattr(pool, "OVERHEAD_SECONDS", 1)
    done, _ = results(jobs_for("aaa", Endless(), "a"), 2, length)
    assert done == [3, Failed("its process outlived its deadline"), 1]


def test_a_process_that_never_answers_is_ended_and_its_job_graded_again(monkeypatch):
    monkeypatch.setattr(pool, "OVERHEAD_SECONDS", 1)
    before = set(psutil.Process().children(recursive=True))
    done, begun = results(jobs_for("aaa", "a"), 2, hang_the_first_time)
    assert done == [3, 1] and begun == [2, 2]
    left = set(psutil.Process().children(recursive=True)) - before
    assert len(psutil.wait_procs(left, timeout=2)[1]) <= 2  # multiprocessing's own two servers


def test_who_says_how_it_gets_on_has_time_for_each_step(monkeypatch):
    monkeypatch.setattr(pool, "OVERHEAD_SECONDS", 2)
    done, begun = results(jobs_for("a" * 8), 1, take_time)  # 4 s in all
    assert done == [8] and begun == [1]


def test_a_process_that_takes_no_more_jobs_is_ended_and_the_job_graded_again(monkeypatch):
    """A pipe holds less than this job: whoever writes it waits until somebody reads."""
    monkeypatch.setattr(pool, "OVERHEAD_SECONDS", 1)
    jobs, done = jobs_for("first", "x" * 10_000_000), []
    for job, process in on_this_machine(jobs, 1, stop_afterwards):
        if process is not None:
            done.append(jobs.index(job))
            if len(done) == 1:
                stopped = psutil.Process(process)
                while stopped.status() != psutil.STATUS_STOPPED:
                    time.sleep(0.02)
    assert done == [0, 1]
    assert process != stopped.pid and not stopped.is_running()


def test_a_process_that_never_starts_is_given_up(monkeypatch):
    """As where the server that forks them hangs."""
    monkeypatch.setattr(pool, "START_SECONDS", 0.2)
    never = threading.Event()
    monkeypatch.setattr(popen_forkserver.forkserver, "connect_to_new_process", lambda _: never.wait() and None)
    done, begun = results(jobs_for("a", "aa"), 2, length)
    assert done == [Failed("its process outlived its deadline")] * 2 and begun == [2, 2]
