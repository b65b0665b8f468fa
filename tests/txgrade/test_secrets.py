"""What is in a kernel that runs a learner's code: looked at from outside, source by source, and from inside, whole.

Unlike `test_attacks.py`, these tests see what a kernel printed in every run, also where no page may show it.
"""

import contextlib
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from attacks import RIGHT, SOURCE, WRONG, corpus

from txgrade.authoring.read import read_assignment
from txgrade.judging import job as jobs
from txgrade.judging.execute import LEAST_CPU_SHARE, execute
from txgrade.judging.job import Job, Preempted, grade_submission
from txgrade.judging.reference import make_reference, record_known
from txgrade.pages.feedback import feedback_page
from txgrade.sandbox import Limits, probe
from txgrade.sandbox.kernel import Cell, Kernel
from txgrade.sandbox.warm import warm_kernels
from txgrade.submitting.reading import Submission

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}"),
]

LIMITS = Limits(memory_mb=2048, cell_seconds=100, notebook_seconds=300)
SOLUTIONS = Path(__file__).parents[2] / "solutions"
SEEDS = (31, 32)


@contextlib.contextmanager
def graders(source, seeds=SEEDS, limits=LIMITS):
    """Grade submissions to an assignment in this process; gives each one's result and all that its kernels had."""
    assignment = read_assignment(source)
    with warm_kernels(assignment.imports, limits, "sealed", False), pytest.MonkeyPatch.context() as patch:
        run = partial(execute, limits=limits)
        graded_by, reference = make_reference(assignment, seeds, run, lambda: record_known(assignment, seeds))

        def graded(answers, by_itself=True):
            kernels = []

            def seen(notebook, *given):
                executed = execute(notebook, *given)
                kernels.append(SimpleNamespace(cells={cell.id: cell.source for cell in notebook.cells}, ran=executed))
                return executed

            patch.setattr(jobs, "execute", seen)
            submission = Submission("ada", "graded", answers)
            text = Path(source).read_text(encoding="utf-8")
            job = Job(graded_by, reference, submission, seeds, limits, "sealed", "", text, by_itself=by_itself)
            result = grade_submission(job)
            return SimpleNamespace(
                kernels=kernels,
                points={task.id: task.points for task in result.tasks},
                tasks={task.id: task for task in result.tasks},
                notes=[(note.kind, note.task) for note in result.notes],
                page=feedback_page(result, graded_by),
            )

        yield graded


@pytest.fixture(scope="module")
def target():
    with graders(SOURCE) as graded:
        yield graded


def canaries(text):
    return set(re.findall(r"CANARY-[A-Za-z-]{3,}", text)) - {"CANARY-own"}


def test_no_kernel_ever_holds_what_only_the_author_may_see(target):
    """Solutions, mistakes, alternatives and their sentences are in no kernel; hidden tests in none that is quoted."""
    found = target(RIGHT | corpus()["everything-in-its-kernel"].make())
    quoted, *secret = found.kernels
    assert len(secret) == 2 * len(SEEDS)  # in sequence, and one wrong task alone; the other waits for it
    for kernel in found.kernels:
        said = [line for line in json.dumps(kernel.ran.outputs).split("FOUND")[1:]]
        assert len(said) >= 1 and all("CANARY-own" in line for line in said)  # it did search, and finds
        sources = "\n".join(kernel.cells.values())
        assert canaries(" ".join(said)) <= canaries(sources)
        hidden = {"CANARY-hidden-target", "CANARY-hidden-after"}
        assert canaries(sources) <= (set() if kernel is quoted else hidden)
    assert found.points == {"before": 2, "target": 0, "after": 3, "rests": 0}
    assert not canaries(found.page)


def test_what_only_a_hidden_test_imports_is_not_there_before(target):
    answer = "import sys\n\nprint('LOADED', 'colorsys' in sys.modules, 'torch' in sys.modules)\n" + RIGHT["target"]
    found = target(RIGHT | {"target": answer})
    assert [re.findall("LOADED (.+?)\\\\n", json.dumps(each.ran.outputs)) for each in found.kernels] == [
        ["False True"]
    ] * 3
    assert found.points["target"] == 5


def test_a_task_that_rests_on_a_wrong_one_waits_until_that_is_right(target):
    answer = "def widest(x):\n    return int(spread(x).argmax())"
    found = target(RIGHT | {"target": WRONG, "rests": answer})
    assert found.points == {"before": 2, "target": 0, "after": 3, "rests": 0}
    assert ("not judged alone", "rests") in found.notes
    assert not [
        kernel for kernel in found.kernels if "check-rests" in kernel.cells and "check-target" not in kernel.cells
    ]
    assert "judged once that is right" in found.tasks["rests"].lines[-1]
    found = target(RIGHT | {"rests": answer})
    assert found.points["rests"] == 1 and not found.notes


def test_a_task_alone_brings_the_right_answers_that_it_uses(target):
    """Another cell ends the kernel: what it left undone runs alone, beside the submission's own right cells."""
    deadly = RIGHT["after"] + "\n\nimport os; os._exit(3)"
    found = target(RIGHT | {"after": deadly, "rests": "def widest(x):\n    return int(spread(x).argmax())"})
    assert found.points == {"before": 2, "target": 5, "after": 0, "rests": 1}
    assert "Right when it runs by itself" in found.tasks["rests"].lines[0]
    alone = [kernel for kernel in found.kernels if "check-target" not in kernel.cells and "check-rests" in kernel.cells]
    assert len(alone) == len(SEEDS)
    assert all(kernel.cells["target"] == RIGHT["target"] and "after" not in kernel.cells for kernel in alone)


@pytest.mark.parametrize("attack", ["patched-generator", "patched-randomstate"])
def test_what_looks_like_a_known_mistake_is_tried_alone_beside_a_suspect(target, attack):
    """Another cell makes all inputs zeros: the right answer then shows what a known mistake shows."""
    found = target(RIGHT | {"target": corpus()[attack].make()})
    assert found.points == {"before": 2, "target": 0, "after": 3, "rests": 1}


def test_a_notebook_s_limit_is_one_limit(target):
    """Answers that sleep: however many tasks there are, alone runs included."""
    limits = Limits(cell_seconds=2, notebook_seconds=8)
    with graders(SOURCE, (5,), limits) as graded:
        sleeping = {task: "import time\n\ntime.sleep(60)\n" for task in RIGHT}
        found = graded(sleeping)
        assert (
            sum(each.ran.seconds for each in found.kernels if each.ran.seconds) < 2 * 8 + 2
        )  # that for the page has its own
        assert sum(found.points.values()) == 0
        honest = graded(RIGHT | {"target": sleeping["target"]})
        assert honest.points == {"before": 2, "target": 0, "after": 3, "rests": 1}
        assert honest.tasks["target"].verdict == "timeout"


WRONG_UNFUSE = "def unfuse(x, heads, parts):\n    return x.chunk(parts, dim=-1)\n"
RIGHT_UNFUSE = "def unfuse(x, heads, parts):\n    return split(x, heads).chunk(parts, dim=-1)\n"
CROSS = """
def cross_attention(x, memory, lengths, w_q, w_kv, w_o, heads):
    key, value = unfuse(x=memory @ w_kv, heads=heads, parts=2)
    real = torch.stack([torch.arange(memory.shape[1]) < length for length in lengths])
    result = attention(split(x @ w_q, heads), key, value, real[:, None, None, :])
    return torch.einsum("bnd,de->bne", join(result), w_o)
"""


def test_an_exercise_of_the_course_whose_tasks_rest_on_another():
    """In 04 the second task uses `unfuse` of the first: it is judged once that is right."""
    with graders(SOLUTIONS / "04_heads.py") as graded:
        found = graded({"unfuse": WRONG_UNFUSE, "cross-attention": CROSS})
        assert (found.points["unfuse"], found.points["cross-attention"]) == (0, 0)
        assert ("not judged alone", "cross-attention") in found.notes
        sources = json.dumps([kernel.cells for kernel in found.kernels])
        assert "permute(3, 0, 2, 1, 4)" not in sources
        assert graded({"unfuse": RIGHT_UNFUSE, "cross-attention": CROSS}).points["cross-attention"] == 3


def test_a_time_out_that_others_caused_is_no_grade(monkeypatch):
    """The first time it is to be graded again, by itself; then it counts, unless the machine is still too busy."""
    slow = RIGHT | {"target": "import time\n\ntime.sleep(60)\n"}
    with graders(SOURCE, (5,), Limits(cell_seconds=2, notebook_seconds=8)) as graded:
        monkeypatch.setattr(Kernel, "starved", lambda self, seconds, least: least >= LEAST_CPU_SHARE)
        with pytest.raises(Preempted):
            graded(slow, by_itself=False)
        assert graded(slow, by_itself=True).tasks["target"].verdict == "timeout"
        monkeypatch.setattr(Kernel, "starved", lambda self, seconds, least: True)
        with pytest.raises(Preempted):
            graded(slow, by_itself=True)


def test_sleep_is_no_waiting_for_a_processor():
    with Kernel(Limits()) as kernel:
        kernel.run("import time; time.sleep(2)", 0, 30, Cell())
        assert not kernel.starved(2, 1)
        assert kernel.cpu_seconds() < 1.5
