"""A process for each piece of work: what one leaves behind, no other finds; what ends badly is said."""

import os
import sys
import time
from types import ModuleType

import pytest

from txgrade.authoring import fresh_process
from txgrade.authoring.fresh_process import Failed, run_fresh

WORK = """
import builtins, json, os, random, sys, time

def _main(request, answer):
    asked = json.load(open(request))
    if "exit" in asked:
        print("last words", file=sys.stderr, flush=True)
        os._exit(asked["exit"])
    time.sleep(asked.get("sleep", 0))
    found = [getattr(builtins, "left", None), os.environ.get("LEFT"), os.getcwd(), os.environ.get("GIVEN")]
    builtins.left = os.environ["LEFT"] = "here"
    json.dump({"found": found, "drawn": random.random(), "process": os.getpid()}, open(answer, "w"))
"""


@pytest.fixture
def fresh(tmp_path):
    (tmp_path / "some_work.py").write_text(WORK)

    def run(timeout=60, **request):
        return run_fresh("some_work", request, tmp_path, os.environ | {"GIVEN": "this"}, timeout)

    return run


def test_nothing_is_left_for_the_next_one(fresh, tmp_path):
    one, other = fresh(), fresh()
    assert one["found"] == other["found"] == [None, None, str(tmp_path), "this"]
    assert one["process"] != other["process"] and one["drawn"] != other["drawn"]


def test_one_that_ends_badly_or_late_hurts_no_other(fresh):
    with pytest.raises(Failed, match="ended with 3: last words"):
        fresh(exit=3)
    began = time.monotonic()
    with pytest.raises(Failed, match=r"took longer than 0\.5 s"):
        fresh(timeout=0.5, sleep=60)
    assert time.monotonic() - began < 30
    assert fresh()["found"][0] is None


def test_where_nothing_can_be_forked_a_process_is_started(fresh, monkeypatch):
    monkeypatch.setattr(fresh_process, "sys", ModuleType("sys"))
    fresh_process.sys.platform, fresh_process.sys.executable = "darwin", sys.executable
    with pytest.raises(Failed, match="took longer than 0 s"):
        fresh(timeout=0)
