"""What becomes of jobs whose process dies."""

import os
from types import SimpleNamespace

from txlib.grading.running import pool
from txlib.grading.running.pool import Failed, on_this_machine


class Fatal:
    """Ends the process that unpacks it, as a bug in a library would."""

    def __reduce__(self):
        return os._exit, (1,)


def test_an_innocent_job_survives_its_neighbour_s_process(monkeypatch, unchecked):
    monkeypatch.setattr(pool, "grade_submission", len)  # any function that a process can find
    jobs = ["aaa", Fatal(), "a", "aaaa"]
    found = [(job, result) for job, result in on_this_machine(jobs, 2) if result is not None]
    assert sorted(result for job, result in found if isinstance(job, str)) == [1, 3, 4]
    (failed,) = [result for job, result in found if not isinstance(job, str)]
    assert isinstance(failed, Failed) and failed.reason == "its process died"


def test_a_job_that_raises_is_tried_once_more(monkeypatch, unchecked):
    monkeypatch.setattr(pool, "grade_submission", len)
    found = dict(zip(("begun", "begun again", "failed"), on_this_machine([SimpleNamespace()], 1), strict=True))
    assert isinstance(found["failed"][1], Failed) and "TypeError" in found["failed"][1].reason


class Endless:
    """Never comes to an end where it is unpacked, as hostile data might in a library that nobody suspected."""

    def __reduce__(self):
        return eval, ("__import__('time').sleep(3600)",)


def test_a_process_that_outlives_its_deadline_is_ended_by_its_parent(monkeypatch, unchecked):
    monkeypatch.setattr(pool, "grade_submission", len)
    monkeypatch.setattr(pool, "OWN", 2)
    jobs = ["aaa", Endless(), "a"]
    found = [(job, result) for job, result in on_this_machine(jobs, 2) if result is not None]
    assert sorted(result for job, result in found if isinstance(job, str)) == [1, 3]
    (failed,) = [result for job, result in found if not isinstance(job, str)]
    assert failed == Failed("its process outlived its deadline")
