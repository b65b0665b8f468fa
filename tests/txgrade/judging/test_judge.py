"""The judge, given evidence by hand: what counts, and what does not."""

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from txgrade.authoring.assignment import Assignment, GradedTask
from txgrade.authoring.read import read_assignment
from txgrade.authoring.record import record_evidence
from txgrade.checking.checks import check, collecting
from txgrade.evidence.values import MIME
from txgrade.judging.execute import Executed
from txgrade.judging.judge import judge, one_report, task_result
from txgrade.judging.outcome import Outcome, Reference, Run, messages, quoted_outcome
from txgrade.judging.reference import FailingReference, make_reference, record_known

pytestmark = pytest.mark.slow

SEEDS = (7, 8)


def displayed(bundle):
    return {"output_type": "display_data", "metadata": {}, "data": {MIME: bundle}}


def collected(show):
    """The bundle of a check's block, on seed 7."""
    with collecting() as collected, check("t") as shown:
        show(shown)
    return collected.bundles[0] | {"seed": 7}


@pytest.fixture(scope="module")
def recorded(course):
    return record_evidence(course.source, list(SEEDS), list(SEEDS))["hidden"]


@pytest.fixture(scope="module")
def graded_by(course, recorded):
    """The sample's assignment and its reference, executed by replaying what a plain process recorded."""

    def replay(notebook, seed, private_values=None):
        return Executed(
            {f"check-{task}": [displayed(bundle)] for task, bundle in recorded[str(seed)]["reference"].items()}
        )

    assignment = read_assignment(course.source)
    return make_reference(assignment, SEEDS, replay, lambda: record_known(assignment, SEEDS))


@pytest.fixture
def runs(recorded):
    """A right submission: on each seed, what every check displays."""
    return [
        Run(
            seed,
            Executed(
                {
                    f"check-{task}": [displayed(copy.deepcopy(bundle))]
                    for task, bundle in recorded[str(seed)]["reference"].items()
                }
            ),
            secret=True,  # the sample has hidden tests
        )
        for seed in SEEDS
    ]


def result(graded_by, runs, task="causal-mask"):
    assignment, reference = graded_by
    outcomes, junit = judge(assignment, reference, runs)
    return task_result(assignment.task(task), outcomes, "answer"), junit


def test_the_reference_s_own_evidence_gets_full_points(graded_by, runs):
    assignment, reference = graded_by
    for task in assignment.tasks:
        found, junit = result(graded_by, runs, task.id)
        assert found.verdict == "right" and found.points == task.points
    assert junit.count("<testcase") == len(SEEDS) * len(assignment.tasks)
    assert "<failure" not in junit and "timestamp" not in junit


def test_right_on_one_seed_only_is_not_right(graded_by, runs, recorded):
    wrong = next(each for each in recorded["8"]["known"] if each["task"] == "causal-mask" and each["sentence"])
    runs[1].executed.outputs["check-causal-mask"] = [displayed(wrong["bundle"])]
    found, junit = result(graded_by, runs)
    assert found.points == 0 and found.verdict == "mistake"
    assert found.lines[0] == wrong["sentence"]
    assert junit.count("<failure") == 1
    assert result(graded_by, runs, "attention")[0].points == 3


def forged(name, bundle):
    """Evidence that isn't worth anything, made from the right evidence."""
    shown = bundle["shown"]
    values = shown[-1]["value"]["values"]
    match name:
        case "none":
            return []
        case "twice":
            return [bundle, bundle]
        case "another seed":
            return [bundle | {"seed": 3}]
        case "another task":
            return [bundle | {"task": "attention"}]
        case "a bool for the seed":
            return [bundle | {"seed": True}]
        case "numbers for bools":
            values[:] = [int(value) for value in values]
        case "words for bools":
            values[:] = [str(value) for value in values]
        case "not a number":
            values[:] = [float("nan")] * len(values)
        case "fewer values":
            values.pop()
        case "one more key":
            bundle["points"] = 100
        case "no values shown":
            shown.clear()
        case "not a dict":
            return ["right"]
        case "its own tolerance":
            bundle["rtol"] = bundle["atol"] = 1e9
            values[:] = [not value for value in values]
        case "an endless list":
            for _ in range(500):
                values[:] = [list(values)]
    return [bundle]


FORGERIES = (
    "none",
    "twice",
    "another seed",
    "another task",
    "a bool for the seed",
    "numbers for bools",
    "words for bools",
    "not a number",
    "fewer values",
    "one more key",
    "no values shown",
    "not a dict",
    "its own tolerance",
    "an endless list",
)


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_evidence_is_worth_nothing(graded_by, runs, name):
    for run in runs:
        (output,) = run.executed.outputs["check-causal-mask"]
        run.executed.outputs["check-causal-mask"] = list(map(displayed, forged(name, output["data"][MIME])))
    found, junit = result(graded_by, runs)
    assert found.points == 0 and found.verdict != "right"
    assert junit.count("<failure") == len(SEEDS)
    assert result(graded_by, runs, "attention")[0].points == 3


def test_printed_words_are_no_evidence(graded_by, runs):
    for run in runs:
        run.executed.outputs["check-causal-mask"] = [
            {"output_type": "stream", "name": "stdout", "text": "right, 2 of 2 points"},
            {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "right"}},
        ]
    assert result(graded_by, runs)[0].points == 0


def test_where_a_run_stopped(graded_by):
    assignment, reference = graded_by
    slow = Run(7, Executed({}, "a cell ran longer than 5 s", "causal-mask", late=True))
    assert quoted_outcome(assignment, assignment.task("causal-mask"), slow, reference).verdict == "timeout"
    assert quoted_outcome(assignment, assignment.task("attention"), slow, reference).verdict == "stopped"
    dead = Run(7, Executed({}, "the kernel died", "causal-mask"))
    assert quoted_outcome(assignment, assignment.task("causal-mask"), dead, reference).verdict == "error"


BROKEN = "def causal_mask(n):\n    rows = (1\n    return rows"
SYNTAX = {
    "output_type": "error",
    "ename": "SyntaxError",
    "evalue": "'(' was never closed (<ipython-input-3-abc>, line 2)",
    "traceback": [],
}


def without_causal_mask(recorded, **more):
    """A run in which the cell of the first answer did not run: what both checks show then."""
    error = {"error": "NameError", "message": "name 'causal_mask' is not defined"}
    outputs = {
        f"check-{task}": [displayed(bundle | {"shown": bundle["shown"][: task == "attention"], "error": error})]
        for task, bundle in recorded["7"]["reference"].items()
    }
    return Run(7, Executed(outputs | {"causal-mask": [SYNTAX]}), answers={"causal-mask": BROKEN}, **more)


def test_a_cell_that_did_not_run_is_named_before_the_name_error(graded_by, recorded):
    assignment, reference = graded_by
    reference = replace(reference, open={})
    found, _ = judge(assignment, reference, [without_causal_mask(recorded)])
    words = "ended with `SyntaxError`: '(' was never closed, in line 2: `rows = (1`"
    mine, later = (found[task, 7, False] for task in ("causal-mask", "attention"))
    assert (mine.verdict, mine.lines) == ("error", (f"The cell of your answer {words}",))
    assert (later.verdict, later.lines) == ("error", (f"The cell of your answer to *The causal mask* {words}",))


def test_nothing_of_how_a_cell_failed_leaves_a_run_with_a_secret(graded_by, recorded):
    assignment, reference = graded_by
    found, _ = judge(assignment, reference, [without_causal_mask(recorded, secret=True)])
    assert [(each.verdict, each.lines) for each in found.values()] == [("wrong", ()), ("wrong", ())]


def test_a_cell_that_failed_below_its_right_function_costs_nothing(graded_by, runs):
    assignment, reference = graded_by
    run = replace(runs[0], secret=False, answers={"causal-mask": "def causal_mask(n): ...\n1 / 0"})
    run.executed.outputs["causal-mask"] = [SYNTAX | {"ename": "ZeroDivisionError", "evalue": "division by zero"}]
    found, _ = judge(assignment, replace(reference, open={}), [run])
    assert found["causal-mask", 7, False].verdict == "right"


def test_a_measured_task_says_which_known_mistake_made_the_same_weights():
    def shown(*numbers):
        bundle = collected(lambda show: show.weights({"w": torch.tensor(numbers)}))
        return bundle | {"operators": None}

    mistakes = [{"evidence": shown(1.0, 2.0), "sentence": "The step goes *up*."}]
    recording = {"reference": shown(5.0, 5.0), "mistakes": mistakes}
    task = GradedTask("t", "T", 4, "measured", "check-t", ("t",))

    def told(bundle, secret=False):
        run = Run(7, Executed({"check-t": [displayed(bundle)]}), shares={"t": (0.5, "Half.")}, secret=secret)
        assignment = Assignment("a", "A", Path("a.py"), None, (task,), "hash")
        return quoted_outcome(assignment, task, run, Reference({}, {7: {"t": recording}}))

    same, other, secret = told(shown(1.000001, 2.0)), told(shown(1.0, 3.0)), told(shown(1.0, 2.0), secret=True)
    assert (same.verdict, same.points, same.lines) == ("partial", 2, ("The step goes *up*.", "Half."))
    assert other.lines == ("Half.",) and not other.sentences
    assert (secret.points, secret.lines, secret.sentences) == (2, (), ())


def test_a_task_alone_counts_where_it_is_better(graded_by, runs, recorded):
    alone = [Run(run.seed, run.executed, "attention", secret=True) for run in copy.deepcopy(runs)]
    for run in runs:
        del run.executed.outputs["check-attention"]
    found, _ = result(graded_by, [*runs, *alone], "attention")
    assert (found.in_sequence, found.alone, found.points, found.verdict) == (0, 3, 3, "right")


def test_nothing_leaves_an_alone_run_but_right_or_wrong(graded_by, runs):
    leak = {"error": "ValueError", "message": "the reference of another task"}
    alone = [Run(run.seed, copy.deepcopy(run.executed), "attention", secret=True) for run in runs]
    for run in alone:
        run.executed.outputs["check-attention"][0]["data"][MIME].update(error=leak, shown=[])
    for run in runs:
        run.executed.outputs["check-attention"] = []
    found, _ = result(graded_by, [*runs, *alone], "attention")
    assert found.points == 0 and "reference of another" not in str(found)


def strange(bundle, random):
    """Evidence as hostile code could choose it: right and known values, errors, types, and where they stand."""
    made = copy.deepcopy(bundle)
    made["shown"] = made["shown"][: random.randrange(len(made["shown"]) + 1)]
    for each in made["shown"]:
        if random.random() < 0.5:
            each["value"] = random.choice(
                [
                    {"kind": "str", "value": f"told {random.random()}"},
                    {"kind": "other", "type": f"Told{random.random()}"},
                    {"kind": "error", "error": f"Told{random.random()}", "message": "told"},
                    {"kind": "float", "value": random.random()},
                ]
            )
            each["label"] = f"told {random.random()}"
    if random.random() < 0.5:
        name = random.choice(["ValueError", "NameError", "NotImplementedError", f"Told{random.random()}"])
        made["error"] = {"error": name, "message": random.choice(["your turn", f"told {random.random()}"])}
    made["operators"] = [f"aten.told{random.randrange(10**9)}"]
    return made


@pytest.mark.parametrize("task", ["causal-mask", "attention"])
@pytest.mark.parametrize("only", [False, True])
@pytest.mark.slow
def test_of_a_run_that_held_a_secret_a_page_tells_a_counted_number_of_things(graded_by, recorded, task, only):
    """Whatever hostile code shows, prints, raises, or how it ends: what its page says is one of `messages`."""
    assignment, reference = graded_by
    random, seen = Random(0), set()
    asked = assignment.task(task)
    known = [each["bundle"] for each in recorded["7"]["known"] if each["task"] == task]
    bundles = [recorded["7"]["reference"][task], *known]
    for _ in range(20):  # two known mistakes at once, each in some of the results
        shown = [random.choice(each) for each in zip(*(bundle["shown"] for bundle in bundles), strict=False)]
        bundles.append(bundles[0] | {"shown": shown})
    for trial in range(600):
        bundle = random.choice(bundles)
        bundle = bundle if trial < 200 else strange(bundle, random)
        outputs = {f"check-{task}": [displayed(bundle)] * random.choice([1, 1, 1, 0, 2])}
        stopped = random.choice([None, None, None, "a cell ran longer than 5 s", f"the kernel died: told {trial}"])
        place = stopped and random.choice([task, f"check-{task}", "cell-1"])
        run = Run(7, Executed(outputs, stopped, place, late=trial % 2 == 0), task if only else None, secret=True)
        found = quoted_outcome(assignment, asked, run, reference)
        outcomes = {(task, 7, False): Outcome("wrong"), (task, 7, only): found}
        told = task_result(asked, outcomes, "answer")
        seen.add((told.verdict, told.points, told.lines, told.parts, str(told.matrices)))
    assert not any("told" in str(each).lower() for each in seen)
    assert 4 <= len(seen) <= messages(asked, reference.recordings[7][task])


def test_how_much_the_sample_s_tasks_can_tell(graded_by):
    """Right, wrong, or one of four sentences: 6 things, less than 3 bits."""
    assignment, reference = graded_by
    found = {task.id: messages(task, reference.recordings[7][task.id]) for task in assignment.tasks}
    assert found == {"causal-mask": 2 + 4, "attention": 2 + 4}


def test_one_right_answer_is_read_and_compared_once(graded_by, runs, monkeypatch):
    from txgrade.evidence import recordings
    from txgrade.judging import replay

    counts = Counter()

    def counted(module, name):
        original = getattr(module, name)

        def call(*given):
            counts[name] += 1
            return original(*given)

        monkeypatch.setattr(module, name, call)

    counted(replay, "bundle_problem")
    counted(recordings, "compare")
    assert result(graded_by, runs, "attention")[0].verdict == "right"
    checks = [output["data"][MIME] for run in runs for outputs in run.executed.outputs.values() for output in outputs]
    assert counts == {"bundle_problem": len(checks), "compare": sum(len(each["shown"]) for each in checks)}


@pytest.mark.parametrize("end", ["skipped", "failed", "lost"])
def test_pytest_has_the_last_word(graded_by, runs, monkeypatch, end):
    """What is compared as equal, and not reported as passed, gets nothing; nor does what pytest never ran."""
    from txgrade.judging import judge as judging
    from txgrade.judging.replay import ReplayCell

    original = ReplayCell.runtest

    def run(cell):
        original(cell)
        pytest.skip("not today") if end == "skipped" else pytest.fail("no")

    monkeypatch.setattr(ReplayCell, "runtest", run)
    if end == "lost":
        monkeypatch.setattr(judging, "_pytest", lambda reference, items: "")
    found, _ = result(graded_by, runs)
    assert found.points == 0 and found.verdict in ("wrong", "invalid")


def test_nbvals_comparison_decides(graded_by, runs, monkeypatch):
    """Where nbval's comparison of a cell's outputs says that they differ, nothing else can make the check pass."""
    from txgrade.judging.replay import ReplayCell

    monkeypatch.setattr(ReplayCell, "compare_outputs", lambda cell, test, ref, skip_compare=None: False)
    found, junit = result(graded_by, runs)
    assert found.points == 0 and "<failure" in junit


def test_reports_of_two_sessions_are_one(graded_by, runs):
    alone = [Run(run.seed, run.executed, "attention", secret=True) for run in copy.deepcopy(runs)]
    assignment, reference = graded_by
    reports = [judge(assignment, reference, each)[1] for each in (runs, alone)]
    together = one_report(reports)
    assert together.count("<testcase") == sum(report.count("<testcase") for report in reports)
    assert one_report([reports[0], ""]) == reports[0] and one_report([]) == ""


def test_a_failing_reference_grades_nobody(course, recorded):
    def broken(notebook, seed, private_values=None):
        return Executed({})

    with pytest.raises(FailingReference, match="displayed 0 bundles"):
        make_reference(read_assignment(course.source), SEEDS, broken, lambda: recorded)
