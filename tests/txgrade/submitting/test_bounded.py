"""Reading apart: whatever is in a file, it takes no more than its bounds, and the next one is read."""

import copy
import json
import os
import resource
import signal
import time
from pathlib import Path

import nbformat
import pytest

from txgrade.authoring.read import read_assignment
from txgrade.submitting import bounded
from txgrade.submitting.bounded import CPU_SECONDS, MEMORY_MB, BoundedReader
from txgrade.submitting.finding import SubmissionFile, find_submissions
from txgrade.submitting.notebook import MAX_BYTES
from txgrade.submitting.reading import read_submission

pytestmark = pytest.mark.slow

ROOM = MAX_BYTES - 1000
ANSWER = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"


@pytest.fixture(scope="module")
def assignment(course):
    return read_assignment(course.source)


@pytest.fixture(scope="module")
def filled(course):
    notebook = nbformat.read(course.exercise, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "causal-mask").source = ANSWER
    return json.loads(json.dumps(notebook))


@pytest.fixture(scope="module")
def reader(assignment):
    with BoundedReader(assignment) as reader:
        yield reader


@pytest.fixture
def put(tmp_path):
    """Write a submission; returns it as it is found."""

    def put(content):
        path = tmp_path / "ada.ipynb"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return SubmissionFile("ada", path)

    return put


def test_what_is_read_apart_is_what_is_read_here(reader, assignment, filled, put):
    for content in (filled, "", "{", "[]", json.dumps(filled).replace("torch", "\\ud800"), filled | {"cells": []}):
        found = put(content)
        assert reader.read(found) == read_submission(found, assignment)
    gone = SubmissionFile("gone", found.path.with_name("gone.ipynb"))
    assert reader.read(gone) == read_submission(gone, assignment)
    several = SubmissionFile("dan", found.path, "several notebooks")
    assert reader.read(several) == read_submission(several, assignment)


def cell(source="", **more):
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], **more}


def tag(id):
    return {"nbgrader": {"grade_id": id, "solution": True}}


def many(piece, cells):
    """A notebook of as many cells as fit into 10 MB."""
    return cells | {"cells": [piece] * ((MAX_BYTES - 100_000) // (len(json.dumps(piece)) + 2)) + cells["cells"]}


HOSTILE = {
    "cell ids": lambda own: many(cell(id="causal-mask"), own),
    "cell ids, after": lambda own: own | {"cells": own["cells"] + [cell(id="causal-mask")] * 60_000},
    "grade ids": lambda own: own | {"cells": own["cells"] + [cell(metadata=tag("causal-mask"))] * 60_000},
    "a large cell": lambda own: own | {"cells": [cell("a;" * 1_000_000), *own["cells"]]},
    "a larger cell": lambda own: own | {"cells": [cell("a;" * (ROOM // 2 - 50_000)), *own["cells"]]},
    "an answer": lambda own: own | {"cells": [*own["cells"], cell("a\n" * 10**6, id="attention")]},
    "small cells": lambda own: many(cell("x=1"), own),
    "names": lambda own: own | {"cells": [*own["cells"], cell("=".join(f"n{i}" for i in range(8000)) + "=1")]},
    "lines": lambda own: own | {"cells": [cell(["\n"] * 1_500_000), *own["cells"]]},
    "outputs": lambda own: many(cell(outputs=[{"data": {}}] * 50), own),
    "old format": lambda own: {
        "nbformat": 3,
        "worksheets": [{"cells": [{"cell_type": "code", "input": "x"}] * 200_000}],
    },
}
NO_NOTEBOOKS = {
    "empty objects": lambda: "[" + ",".join(["{}"] * (ROOM // 3)) + "]",
    "small objects": lambda: "[" + ",".join(['{"":[]}'] * (ROOM // 8)) + "]",
    "small lists": lambda: "[" + ",".join(["[0]"] * (ROOM // 4)) + "]",
    "integers": lambda: "[" + ",".join(["7" * 4000] * (ROOM // 4001)) + "]",
    "keys": lambda: "{" + ",".join(f'"{i:x}":{{}}' for i in range(800_000)) + "}",
    "far characters": lambda: '["\U0001f600' + "a" * (ROOM - 20) + '"]',
}


QUICK = ("names", "an answer", "integers")  # the others take seconds each


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*HOSTILE, *NO_NOTEBOOKS)],
)
def test_every_file_is_read_within_its_bounds(reader, filled, put, monkeypatch, name):
    """10 MB, whatever it holds: a known status; the answers where there are any; and the next file is read."""
    found = put(HOSTILE[name](copy.deepcopy(filled)) if name in HOSTILE else NO_NOTEBOOKS[name]())
    assert found.path.stat().st_size <= MAX_BYTES
    peaks, end = [], reader._stop

    def stop():
        if reader._process and reader._process.poll() is None:
            status = Path(f"/proc/{reader._process.pid}/status").read_text()
            peaks.extend(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return end()

    monkeypatch.setattr(reader, "_stop", stop)
    spent, own = _spent(), time.process_time()
    submission = reader.read(found)
    assert submission.status in ("graded", "too much", "not a notebook")
    assert submission.status != "graded" or submission.answers["causal-mask"] == ANSWER
    assert time.process_time() - own < 1, "it is not the grader that reads"
    reader._stop()
    assert _spent() - spent < CPU_SECONDS + 2  # its start included
    assert max(peaks, default=0) <= MEMORY_MB * 1024
    assert reader.read(put(filled)).answers["causal-mask"] == ANSWER


def _spent():
    """Seconds of the processor that this process' children have had until their ends."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_usual_hostile_files_are_graded_all_the_same(reader, filled, put):
    """What took minutes takes a moment: these notebooks hold right answers too."""
    for name in ("cell ids, after", "a large cell", "a larger cell", "names", "lines"):
        assert reader.read(put(HOSTILE[name](copy.deepcopy(filled)))).status == "graded"


def test_a_process_that_is_killed_is_replaced(reader, filled, put):
    reader.read(put(filled))
    os.kill(reader._process.pid, signal.SIGKILL)
    assert reader.read(put(filled)).status == "graded"


def test_a_file_that_ends_every_process_ends_nothing_else(assignment, filled, put, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with BoundedReader(assignment) as reader:
        assert reader.read(put(filled)).status == "too much"


def test_nothing_that_lies_about_is_imported(assignment, filled, put, tmp_path, monkeypatch):
    """The grader may be started in the folder of submissions."""
    (tmp_path / "json.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    with BoundedReader(assignment) as reader:
        assert reader.read(put(filled)).status == "graded"
    assert not (tmp_path / "imported").exists()


def test_a_folder_that_does_not_answer_is_given_up(reader, filled, put, monkeypatch):
    reader.read(put(filled))
    monkeypatch.setattr(bounded, "REPLY_SECONDS", 5)
    os.kill(reader._process.pid, signal.SIGSTOP)
    first = reader._process.pid
    assert reader.read(put(filled)).status == "graded"  # by the next one
    assert reader._process.pid != first


@pytest.mark.slow
def test_four_thousand_names_that_are_one(tmp_path):
    for number in range(4000):
        (tmp_path / ("a" * 120 + str(number))).mkdir()
    started = time.process_time()
    found = find_submissions(tmp_path)
    assert time.process_time() - started < 2
    assert len({each.name.casefold() for each in found}) == 4000
