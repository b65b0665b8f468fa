"""An exercise with everything: partial credit, a plot, weights, a written answer, forbidden calls, a date."""

import base64
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch

from txgrade.authoring import measure as measuring
from txgrade.authoring import record
from txgrade.authoring.check_notebook import check_notebook
from txgrade.authoring.declarations import collect_declarations
from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.measure import measure
from txgrade.authoring.notebooks import LOADED
from txgrade.authoring.read import read_assignment
from txgrade.authoring.release import release
from txgrade.authoring.validate import prove
from txgrade.checking.checks import Checks, collecting
from txgrade.checking.inputs import private_inputs
from txgrade.checking.verdict import Verdict
from txgrade.evidence.recordings import unpack

pytestmark = pytest.mark.slow

FEATURES = Path(__file__).parents[1] / "sample" / "09_features.py"


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """The sample, released, with its solution executed."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "solutions").mkdir()
    source = Path(shutil.copy(FEATURES, folder / "solutions"))
    released = release(source)
    return SimpleNamespace(
        source=source,
        released=released,
        text=released.exercise.read_text(encoding="utf-8"),
        notebook=nbformat.read(released.exercise, as_version=4),
    )


@pytest.fixture
def changed(tmp_path, monkeypatch, in_process):
    """Release the sample in this process, with some text replaced."""
    monkeypatch.setattr("txgrade.authoring.measure.measure", measure_here)

    def write(*replacements: tuple[str, str]) -> Path:
        text = FEATURES.read_text(encoding="utf-8")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "solutions").mkdir(exist_ok=True)
        source = tmp_path / "solutions" / "09_features.py"
        source.write_text(text, encoding="utf-8")
        return source

    return lambda *replacements: release(write(*replacements), run_solution=False)


def measure_here(path, requests, *, variant=None):
    exercise = read_exercise(path, variant)
    functions = record.author_declarations(exercise, record.reference_names(exercise, exercise.seed)).measured
    return [measuring._measured(functions[each["task"]], each) for each in requests]


def recordings(notebook):
    return unpack(next(found[1] for cell in notebook.cells if (found := LOADED.search(cell.source))))


def test_it_releases_without_warnings(features):
    assert (features.released.tasks, features.released.points, features.released.warnings) == (5, 14, ())


def test_nothing_of_the_author_leaves(features):
    text = features.text + json.dumps(recordings(features.notebook), ensure_ascii=False)
    for secret in (
        "SOLUTION",
        "HIDDEN",
        "total of many",
        "on_unseen_points",
        "rubric",
        "copy the next word",
        "1 point: it could copy",
        "load_state_dict",
        "low scores",
        "forbid",
        'float32": "',
        "It is on its way",
    ):
        assert secret not in text
    cells = {cell.id: cell for cell in features.notebook.cells}
    assert cells["explain-mask"].source == "Your answer here."
    assert cells["explain-mask"].cell_type == "markdown"
    assert cells["double-sum"].source.count('raise NotImplementedError("your turn")') == 2


def test_the_recordings_say_who_gives_the_points(features):
    found = recordings(features.notebook)
    assert found["written"] == [{"id": "explain-mask", "title": "Explain the mask", "points": 2}]
    fit = next(each for each in found["tasks"] if each["id"] == "fit-line")
    assert fit["measured"] is True and fit["mistakes"] == []
    assert fit["reference"]["shown"] == [{"label": "the line", "value": {"kind": "weights"}}]


def test_the_solution_notebook_shows_what_is_right_and_what_is_gathered(features):
    notebook = nbformat.read(features.released.solution, as_version=4)
    words = [
        output.data["text/plain"].splitlines()
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/plain" in output.get("data", {}) and "image/png" not in output.data
    ]
    assert [each[0] for each in words] == [
        "✓ Two sums: right (3 of 3 points)",
        "✓ Draw a wave: right (2 of 2 points)",
        "→ Fit a line: ready to be measured (4 points)",
        "✓ Softmax, row by row: right (3 of 3 points)",
        "Exercise 09 · Everything an exercise can ask: 8 of 8 points; 6 more are given by others",
    ]
    assert words[-1][3] == "  → Fit a line: 4 points, measured by the grader"
    assert "  ✎ Explain the mask: 2 points, marked by a person" in words[-1]


ANSWERS = {
    "double-sum": "def double(x):\n    return x.repeat(2)\n\n\ndef total(x):\n    return x.sum()",
    "plot-curve": "def plot_curve(x):\n    pass",
    "fit-line": "def fit_line(x, y):\n    return {'weight': torch.zeros(1, 1), 'bias': torch.zeros(1)}",
    "softmax-rows": "def softmax_rows(x):\n    return x.softmax(-1)",
}


def test_a_learners_notebook(features, tmp_path):
    notebook = nbformat.from_dict(features.notebook)
    for cell in notebook.cells:
        cell.source = ANSWERS.get(cell.id, cell.source)
    path = tmp_path / "09_features.ipynb"
    nbformat.write(notebook, path)
    double, plot, fit, softmax, written = check_notebook(path)
    assert (double.kind, double.points, double.known) == ("partial", 2, True)
    assert double.lines[0].startswith("`repeat` puts the whole behind the whole")
    assert (plot.kind, plot.lines) == (
        "wrong",
        ("Your result: expected a dict, yours is None. Is a `return` missing?",),
    )
    assert (fit.kind, fit.points, fit.max_points) == ("gathered", 0, 4)
    assert softmax.right  # what is forbidden is the grader's affair
    assert (written.kind, written.task, written.max_points) == ("written", "explain-mask", 2)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ("def fit_line(x, y):\n    pass", "wrong", "expected a model's weights, yours is None"),
        ("def fit_line(x, y):\n    return 1 / 0", "error", "ZeroDivisionError"),
        ("def fit_line(x, y):\n    raise NotImplementedError('your turn')", "unanswered", ""),
        ("def fit_line(x, y):\n    return nn.Linear(1, 1)", "gathered", "data that is not in this notebook"),
    ],
)
def test_what_a_learner_hears_of_a_measured_task(features, capsys, answer, kind, words):
    checks = Checks()
    checks._exercise = recordings(features.notebook)
    cell = next(cell for cell in features.notebook.cells if cell.id == "check-fit-line")
    given = next(cell.source for cell in features.notebook.cells if cell.source.startswith("def noisy_points"))
    source = f"import torch\nfrom torch import nn\n{given}\n{answer}\n{cell.source}"
    exec(source, {"__name__": "__main__", "check": checks})
    verdict = checks._verdicts["fit-line"]
    assert (verdict.kind, verdict.points) == (kind, 0)
    assert words in repr(verdict)


def test_verify_proves_it(features):
    reports = {each.task: each for each in prove(features.source, seeds=(7,))}
    assert list(reports) == ["double-sum", "plot-curve", "fit-line", "softmax-rows"]
    for report in reports.values():
        assert report.ok, report.problems
        assert all(report.mistakes) and all(report.alternatives) and report.seconds > 0
    assert reports["double-sum"].mistake_points == (2.25, 0.75, 2.25, 2.25, 0)  # of four parts, one hidden
    assert reports["fit-line"].measured == (1, 1)
    assert reports["fit-line"].mistake_points[2] == 2
    assert reports["softmax-rows"].mistake_points == (0, 0, 0)


def test_the_grader_reads_it_whole(features):
    assignment = read_assignment(features.source)
    assert [(task.id, task.kind, task.points) for task in assignment.tasks] == [
        ("double-sum", "evidence", 3),
        ("plot-curve", "evidence", 2),
        ("fit-line", "evidence", 4),
        ("explain-mask", "written", 2),
        ("softmax-rows", "evidence", 3),
    ]
    written = assignment.task("explain-mask")
    assert written.rubric.startswith("1 point: it could copy") and "next word while it is trained" in written.prompt
    assert assignment.stubs["explain-mask"] == "Your answer here."
    assert not any("copy what it is" in cell.source for cell in assignment.notebook.cells)
    assert [task.hidden for task in assignment.tasks] == [True, False, False, False, True]


def test_a_deadline_stands_below_the_title(features):
    exercise = read_exercise(features.source)
    assert exercise.due == read_assignment(features.source).due
    first = features.notebook.cells[0].source
    assert first.startswith("# ") and first.endswith(
        "**Due:** 2026-12-01 23:59, Europe/Zurich, with 10 minutes of grace. Each day late, once it has begun, costs "
        "10% of the points earned, at most 50%."
    )


def test_what_the_author_said_is_recorded(features):
    found = json.loads(json.dumps(record._record(read_exercise(features.source), [], [3])))
    assert found["measured"] == ["fit-line"] and found["broken"] == {}
    assert found["due"] == {
        "when": "2026-12-01 23:59",
        "timezone": "Europe/Zurich",
        "grace_minutes": 10,
        "per_day": 0.1,
        "at_most": 0.5,
    }
    assert found["forbidden"] == [
        {
            "task": "softmax-rows",
            "names": ["softmax", "log_softmax", "Softmax"],
            "operators": ["aten._softmax", "aten._log_softmax", "aten._safe_softmax"],
        }
    ]


def line(weight, bias):
    """A bundle with a line's weights."""
    with collecting() as collected, Checks()("fit-line") as show:
        show.weights({"weight": torch.tensor([[float(weight)]]), "bias": torch.tensor([float(bias)])})
    return {"task": "fit-line", "seed": 0, "bundle": json.loads(json.dumps(collected.bundles[0]))}


def test_weights_are_measured_on_points_not_seen(features):
    """The error of y = w x + b against the line that was drawn, x standard normal: the squares of both differences."""
    slope, height = (1 + private_inputs(0, "fit-line").rand(2)).tolist()
    wrong_shape = line(slope, height)
    wrong_shape["bundle"]["shown"][0]["value"]["tensors"][1]["shape"] = [1, 1, 1]
    nothing = line(slope, height)
    nothing["bundle"]["shown"] = []
    requests = [
        line(slope, height),
        line(slope + 0.5, height),
        line(0, 0),
        line(float("nan"), height),
        line(float("inf"), 0),
        line(3e38, 0),
        wrong_shape,
        nothing,
        line(slope + 0.5, height),
    ]
    found = measure(features.source, requests)
    assert [each["share"] for each in found] == [1, 0.5, 0, 0, 0, 0, 0, 0, 0.5]
    assert float(found[1]["sentence"].split()[-1].rstrip(".")) == pytest.approx(0.25, abs=0.03)
    assert found[3]["sentence"] == "The weight `weight` holds NaN or infinity."
    assert found[6]["sentence"].startswith("What your answer shows can't be measured: `RuntimeError`")
    assert "IndexError" in found[7]["sentence"]
    assert found[8] == found[1]  # whatever was measured in between


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (0.25, {"share": 0.25, "sentence": ""}),
        (True, {"share": 1.0, "sentence": ""}),
        ((0.5, "Half."), {"share": 0.5, "sentence": "Half."}),
        (torch.tensor(0.5), {"share": 0.5, "sentence": ""}),
        (float("nan"), {"share": 0.0, "sentence": "What your answer shows leads to no number: NaN."}),
    ],
)
def test_what_a_measure_may_give(result, expected):
    assert measuring._measured(lambda shown, private: result, line(0, 0)) == expected


@pytest.mark.parametrize("result", [1.5, -0.1, float("inf"), None, "1", (1, 2), (0.5, None), [1]])
def test_what_is_the_authors_error(result):
    found = measuring._measured(lambda shown, private: result, line(0, 0))
    assert found["error"].startswith('measured("fit-line", …) gives ')


@pytest.mark.parametrize("draw", [lambda shown, private: float(torch.rand(())), lambda shown, private: private.rand(1)])
def test_a_measure_draws_the_same_numbers_each_time(draw):
    assert measuring._measured(draw, line(0, 0)) == measuring._measured(draw, line(1, 1))
    assert measuring._measured(draw, line(0, 0)) != measuring._measured(draw, line(0, 0) | {"seed": 1})


def test_what_swells_while_it_is_measured_is_worth_nothing(tmp_path):
    """4 GB in a process that may take 1 GB more, and then the next request is measured as ever."""
    source = tmp_path / "greedy.py"
    measure_if = "lambda shown, private: float(torch.ones(int(2e9 * shown[0]['bias'])).sum() > 0)"
    text = FEATURES.read_text(encoding="utf-8").replace('"fit-line", on_unseen_points', f'"fit-line", {measure_if}')
    source.write_text(text, encoding="utf-8")
    swells, fits = measure(source, [line(0, 1), line(0, 1e-3)], memory_mb=1024)
    assert swells["share"] == 0 and "can't be measured" in swells["sentence"]
    assert fits["share"] == 1


def test_a_measure_that_kills_its_process_costs_its_own_task(tmp_path):
    source = tmp_path / "killed.py"
    measure_if = "lambda shown, private: shown[0]['bias'].item() and __import__('os')._exit(1) or 1"
    text = FEATURES.read_text(encoding="utf-8").replace('"fit-line", on_unseen_points', f'"fit-line", {measure_if}')
    source.write_text(text, encoding="utf-8")
    killed, fits = measure(source, [line(0, 1), line(0, 0)])
    assert (killed["share"], fits["share"]) == (0, 1)
    assert killed["sentence"] == "What your answer shows could not be measured within the limits."


def test_measures_get_plain_values():
    values = [
        None,
        True,
        3,
        0.5,
        float("-inf"),
        "a",
        [1, (2.0,)],
        {"k": 1},
        torch.ones(2, dtype=torch.bool),
        torch.tensor([1.5, float("nan")]),
        torch.ones(2, dtype=torch.complex64) * 1j,
        torch.ones(1, 2).long(),
    ]
    with collecting() as collected, Checks()("t") as show:
        for value in values:
            show(value)
        show.tokens(torch.tensor([[1, 2]]))
    *found, tokens = measuring.shown_values(json.loads(json.dumps(collected.bundles[0])))
    for mine, theirs in zip(found, values, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
        else:
            assert mine == theirs and type(mine) is type(theirs)
    assert tokens == [[1, 2]]


def test_weights_come_back_bit_for_bit():
    weight = torch.randn(3, 4)
    with collecting() as collected, Checks()("t") as show:
        show.weights({"w": weight, "s": torch.tensor(2.0)})
    found = measuring.shown_values(collected.bundles[0])[0]
    assert torch.equal(found["w"], weight) and found["s"].shape == () and list(found) == ["w", "s"]
    found["w"].zero_()  # its own memory
    assert base64.b64decode(collected.bundles[0]["shown"][0]["value"]["tensors"][0]["float32"])[:4] != bytes(4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('measured("fit-line", on_unseen_points)', "", 'its check shows weights; say by measured("fit-line", …)'),
        (
            'measured("fit-line", on_unseen_points)',
            'measured("fit-line", lambda shown, private: 0.9)',
            "task fit-line: the reference earns 0.9 of the points instead of all",
        ),
        (
            'measured("fit-line", on_unseen_points)',
            'measured("fit-line", lambda shown, private: 1)',
            'a mistake earns all points: "The bias is missing."',
        ),
        (
            'measured("fit-line", on_unseen_points)',
            'measured("fit-line", lambda shown, private: 2)',
            "keep it from 0 to 1",
        ),
        (
            ".mean())\n    share = 1 if error < 0.05 else 0.5 if error < 0.5 else 0",
            ".mean() + 0 * model(x).mean())\n    share = 0 if error > 0.05 else 1",
            "absurd weights, ±3e38, earn all points",
        ),
        (
            'measured("fit-line", on_unseen_points)',
            'measured("fit-lime", on_unseen_points)',
            "measured(…) is for the task 'fit-lime', which does not exist",
        ),
        (
            'forbid("softmax-rows", ("softmax"',
            'forbid("softmax", ("softmax"',
            "forbid(…) is for the task 'softmax', which does not exist",
        ),
        (
            'forbid("softmax-rows", ("softmax"',
            'forbid("softmax-rows", ("amax"',
            "task softmax-rows: the reference itself calls amax, which the task forbids",
        ),
        ('operators=("aten._softmax"', 'operators=("aten.exp"', "the reference itself calls aten.exp"),
        ('label="total", points=1', 'label="total"', "its check gives points to some of the values that it shows"),
        (
            '    show.call(double, x, label="double", points=1)',
            '    show(1, points=1)\n    show.call(double, x, label="double", points=1)',
            "its check gives points before it calls the answer",
        ),
        ('timezone="Europe/Zurich"', 'timezone="Europe/Basle"', 'due(…, timezone="Europe/Basle"): not a time zone'),
        (
            '"grade": true, "points": 2, "locked": false',
            '"grade": true, "points": 3, "locked": false',
            "task explain-mask: the prompt says 2 points, its cell 3",
        ),
        (
            '"grade": true, "points": 2, "locked": false',
            '"grade": true, "locked": false',
            "task explain-mask: its cell gives points = None",
        ),
        ('"solution": true, "grade": true', '"solution": true, "grade": false', "an answer must be a code cell"),
        ("# <!-- END SOLUTION -->\n", "", "task explain-mask: ### BEGIN SOLUTION without its ### END SOLUTION"),
        ("Five tasks, 14 points", "Four tasks, 12 points", "the title cell says 12 points"),
        (
            "# ### Task 4 · Explain the mask",
            '# Marks.\n\n# %% [markdown] tags=["rubric"]\n# For nobody.\n\n'
            "# %% [markdown]\n# ### Task 4 · Explain the mask",
            "a rubric must come below its written answer",
        ),
    ],
)
def test_what_is_refused(changed, old, new, message):
    with pytest.raises(ExerciseError) as refused:
        changed((old, new))
    assert message in str(refused.value)


def test_a_written_answer_without_a_rubric_is_a_warning(changed):
    assert changed(('tags=["rubric"]', 'tags=["other"]')).warnings == (
        "task explain-mask: no rubric says how to mark it",
    )


def test_a_written_answer_may_be_code(changed):
    old = (
        "# <!-- BEGIN SOLUTION -->\n# It would learn to copy the next word instead of predicting it, and when it "
        "writes, there is no next word to copy.\n# <!-- END SOLUTION -->\n"
    )
    released = changed(
        ("# %% [markdown] nbgrader", "# %% nbgrader"),
        (old, "design = [\n    # BEGIN SOLUTION\n    1, 2,\n    # END SOLUTION\n]\n"),
    )
    cells = {cell.id: cell for cell in nbformat.read(released.exercise, as_version=4).cells}
    assert cells["explain-mask"].source == "design = [\n    ...  # Your answer here.\n]"


def test_a_mark_scheme_is_a_rubric(changed):
    prompt = "# Why may a decoder not see the next word while it is trained? Two or three sentences.\n"
    scheme = "# <!-- BEGIN MARK SCHEME -->\n# One point for each reason.\n# <!-- END MARK SCHEME -->\n"
    begin = "# <!-- BEGIN SOLUTION -->\n"
    released = changed((prompt, prompt + scheme), (begin, scheme + begin))
    text = released.exercise.read_text()
    assert "MARK SCHEME" not in text and "One point for" not in text
    written = read_exercise(released.exercise.parents[1] / "solutions" / "09_features.py").written[0]
    assert written.rubric.startswith("One point for each reason.\n\n1 point: it could copy")
    assert "MARK SCHEME" not in written.prompt


def test_a_verdict_travels_through_a_notebook():
    verdict = Verdict("t", "T", "partial", 0.5, 1, ("Nearly.",), known=True)
    data = json.loads(json.dumps(verdict.data()))
    assert Verdict(**data | {"lines": tuple(data["lines"])}) == verdict


def test_noting_nests():
    with collect_declarations() as outer, collect_declarations() as inner:
        pass
    assert outer is not inner
