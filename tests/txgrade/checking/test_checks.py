"""What a learner is told, in a notebook run cell by cell."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch import nn

from txgrade import check
from txgrade.authoring.declarations import alternative, collect_declarations, mistake
from txgrade.checking.checks import Checks, EvidenceCollector, collecting
from txgrade.checking.inputs import Inputs
from txgrade.checking.verdict import Verdict
from txgrade.evidence.recordings import pack_json
from txgrade.evidence.values import MIME, evidence
from txgrade.seeds import kernel_seed
from txgrade.text import markup

MASK = "def causal_mask(n):\n    return "
RIGHT_MASK = MASK + "torch.ones(n, n).tril().bool()"
RIGHT_ATTENTION = """def attention(q, k, v, mask):
    weights = torch.softmax((q @ k.T * q.shape[1] ** -0.5).where(mask, torch.tensor(-1e9)), 1)
    return weights @ v"""


def test_right_answers_pass(study):
    words = study({"causal-mask": RIGHT_MASK, "attention": RIGHT_ATTENTION})
    assert words["check-causal-mask"] == "✓ The causal mask: right (2 of 2 points)\n"
    assert words["check-attention"] == "✓ Scaled dot-product attention: right (3 of 3 points)\n"
    assert repr(check.summary()).splitlines()[:3] == [
        "Exercise 03 · A sample: 5 of 5 points",
        "  ✓ The causal mask: 2 of 2",
        "  ✓ Scaled dot-product attention: 3 of 3",
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("torch.arange(n)[:, None] <= torch.arange(n)", "see the *future*"),
        ("torch.tensor([[j < i for j in range(n)] for i in range(n)])", "the diagonal is `True`"),
        ("torch.ones(n, n).triu(1) > 0", "The mask is inverted"),
        ("(torch.arange(n)[:, None] >= torch.arange(n)).double()", "These are numbers"),
    ],
)
def test_a_known_mistake_is_told_its_sentence_first(study, body, sentence):
    lines = study({"causal-mask": MASK + body})["check-causal-mask"].splitlines()
    assert lines[0] == "✗ The causal mask: not yet (0 of 2 points)"
    assert sentence in lines[1]
    assert lines[2].startswith("  Result ")


def test_an_unknown_wrong_answer_is_told_what_differs(study):
    words = study({"causal-mask": MASK + "torch.zeros(n, n + 1).bool()"})["check-causal-mask"]
    assert words == (
        "✗ The causal mask: not yet (0 of 2 points)\n"
        "  Result 1 of 5 (n = 1): the shape differs: expected (1, 1), yours is (1, 2).\n"
        "  One entry too many along axis 1: does a range end one too late, or begin one too early?\n"
    )
    words = study({"causal-mask": MASK + "torch.ones(n, n).bool()"})["check-causal-mask"]
    assert words.splitlines()[1] == (
        "  Result 2 of 5 (n = 2): the first difference is at [0, 1]: "
        "expected False, yours is True (1 of 4 values differ)."
    )


def test_a_missing_return_is_noticed(study):
    words = study({"causal-mask": "def causal_mask(n):\n    torch.ones(n, n)"})["check-causal-mask"]
    assert "yours is None. Is a `return` missing?" in words


def test_the_stub_is_not_yet_answered(study):
    words = study({})
    assert words["check-causal-mask"].startswith("○ The causal mask: not yet answered (0 of 2 points)")
    assert "`causal_mask` still says" in words["check-causal-mask"]


def test_an_answer_that_waits_for_another_says_which(study):
    words = study({"attention": RIGHT_ATTENTION})["check-attention"]
    assert "not yet answered" in words
    assert "`causal_mask` still says" in words


def test_an_error_shows_the_learners_own_line(study):
    answer = "def causal_mask(n):\n    rows = torch.arange(n)\n    return rows[:, None] @ torch.ones(3, n, n, 7)"
    words = study({"causal-mask": answer})["check-causal-mask"]
    assert "✗ The causal mask: not yet" in words
    assert "Your answer raised `RuntimeError`" in words
    assert "In `causal_mask`, line 3" in words
    assert "site-packages" not in words and "Traceback" not in words and "checks.py" not in words


@pytest.mark.parametrize(
    "answer",
    [
        "def causal_mask(n, m):\n    return n",
        "def causal_mask(n):\n    return causal_mask(n)",
        "def causal_mask(n):\n    raise SystemExit",
        "def causal_mask(n):\n    return object()",
        "def causal_mask(n):\n    return [torch.zeros(10**6)]",
        "def causal_mask(n):\n    return torch.empty(3, 3, device='meta')",
        "def causal_mask(n):\n    raise ValueError(object())",
        "def causal_mask(n):\n    return {None: 1}",
        "causal_mask = 3",
        "class causal_mask(torch.Tensor):\n    pass",
        "del check; from txgrade import check",
    ],
)
def test_no_answer_makes_a_check_raise(study, answer):
    words = study({"causal-mask": answer})["check-causal-mask"]
    assert words.startswith("✗ The causal mask: not yet (0 of 2 points)")
    assert not re.search(r"0x[0-9a-f]", words)


def test_stopping_a_check_stops(study):
    with pytest.raises(KeyboardInterrupt):
        study({"causal-mask": "def causal_mask(n):\n    raise KeyboardInterrupt"})


def test_a_check_without_its_recordings_says_what_to_do(study, capsys):
    words = study({"cell-2": "from txgrade import check\ncheck.load('')"})
    assert "recordings are damaged" in words["cell-2"]
    assert "Run All Cells" in words["check-causal-mask"]
    study({})
    with check("other-task") as show:
        show(1)
    assert "no task `other-task`" in capsys.readouterr().out


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.words = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not any("http" in (value or "") for _, value in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data + " "


def test_the_display_is_self_contained_and_escaped(study):
    study({"causal-mask": MASK + "~(torch.arange(n)[:, None] >= torch.arange(n))"})
    verdict = check._verdicts["causal-mask"]
    page = Tags(verdict.html())
    assert not page.open
    assert "✗ The causal mask: not yet" in page.words and "expected" in page.words and "yours" in page.words
    assert "<em>may attend</em>" in verdict.html() and "<code>True</code>" in verdict.html()
    hostile = Verdict("t", "<b>t</b>", "wrong", 0, 1, ("<script>alert(1)</script> `<img>`",))
    assert "<script" not in hostile.html() and "<img" not in hostile.html() and "<b>" not in hostile.html()
    bundle = verdict._repr_mimebundle_()
    assert bundle["text/plain"] == repr(verdict)
    json.dumps(bundle)


def test_markup():
    assert markup("*a* `b*c*` **d** 2 * 3 * 4") == "<em>a</em> <code>b*c*</code> <strong>d</strong> 2 * 3 * 4"


def run_check(seed):
    namespace = {"__name__": "__main__", "check": check, "torch": torch}
    with collecting(seed=seed) as collected:
        exec("with check('t', rtol=0.5) as show:\n    show(show.randn(2))\n    show(torch.rand(2))", namespace)
    return collected.bundles[0]


def test_the_seed_is_taken_once(capsys, graded_checks):
    """An answer that names its own `seed`, or begins again, changes nothing."""
    source = "seed = 9\ncheck.begin(9)\nwith check('t') as show:\n    show(show.randn(2))"
    exec(source, {"__name__": "__main__", "check": graded_checks(5)})
    bundle = json.loads(capsys.readouterr().out)[MIME]
    assert bundle["seed"] == 5
    assert bundle["shown"][0]["value"] == evidence(EvidenceCollector(5, "t").randn(2))


def test_a_graders_seed_stays_with_the_grader(capsys, graded_checks):
    """Of a grader's seed a hash enters the kernel; what `show.private` drew from the seed itself comes as values."""
    secret = 2**40 + 1
    drawn = []
    with collecting(seed=secret) as collected, check("t") as show:
        drawn.append(show.private(lambda private: private.randn(3)))
    exec(
        "with check('t') as show:\n    show(show.private(print))\n    show(show.randn(2))",
        {"__name__": "__main__", "check": graded_checks(kernel_seed(secret), pack_json(collected.private_values))},
    )
    bundle = json.loads(capsys.readouterr().out)[MIME]
    assert bundle["error"] is None
    assert bundle["seed"] == kernel_seed(secret) != secret
    assert bundle["shown"][0]["value"] == evidence(drawn[0])
    assert not torch.equal(
        EvidenceCollector(kernel_seed(secret), "t").private(lambda private: private.randn(3)), drawn[0]
    )


def test_a_sketch_tells_large_tensors_apart():
    show, large = EvidenceCollector(0, "t"), torch.randn(200, 30)
    sketch = show.sketch(large)
    assert sketch["shape"] == [200, 30] and sketch["sums"].shape == (16,)
    torch.testing.assert_close(show.sketch(large.clone())["sums"], sketch["sums"])
    for other in (large.roll(1, 0), large + torch.eye(200, 30) * 0.1, large.index_fill(0, torch.tensor([7]), 0.0)):
        assert not torch.allclose(show.sketch(other)["sums"], sketch["sums"], rtol=1e-3, atol=1e-3)


def test_grading_mode_draws_from_its_seed():
    assert run_check(1) == run_check(1)
    assert run_check(1)["shown"] != run_check(2)["shown"]
    assert (run_check(7)["seed"], run_check(7)["rtol"]) == (7, 0.5)


def test_grading_mode_displays_evidence_only(capsys, graded_checks):
    source = "with check('t') as show:\n    show(3)\n    show(1 / 0)\ncheck.summary()"
    exec(source, {"__name__": "__main__", "check": graded_checks(5)})
    bundle = json.loads(capsys.readouterr().out)[MIME]
    assert bundle["task"] == "t" and bundle["seed"] == 5
    assert bundle["shown"] == [{"label": None, "value": {"kind": "int", "value": 3}, "points": None}]
    assert bundle["error"] == {"error": "ZeroDivisionError", "message": "division by zero"}


def test_a_check_leaves_the_learners_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    run_check(0)
    assert torch.equal(torch.rand(2), expected)


def test_errors_can_be_shown():
    def refuse(n):
        raise ValueError(f"n={n}")

    with collecting() as collected:
        with Checks()("t") as show:
            show.call(refuse, 3)
            show.call(abs, -3)
        with Checks()("t") as show:
            show.call(exec, "raise NotImplementedError('your turn')")
    first, second = collected.bundles
    assert [each["value"]["kind"] for each in first["shown"]] == ["error", "int"]
    assert first["shown"][0]["value"]["error"] == "ValueError"
    assert second["error"]["error"] == "NotImplementedError"


def test_inputs_are_the_frozen_stream():
    """The documented values of RandomState(0).randn, reached through the task's seed."""
    inputs = Inputs(0, "t")
    inputs._random = np.random.RandomState(0)
    torch.testing.assert_close(inputs.randn(3), torch.tensor([1.76405235, 0.40015721, 0.97873798]))


def test_inputs_have_the_asked_shapes_and_ranges():
    inputs = Inputs(3, "t")
    assert {inputs.random_size(2, 4) for _ in range(100)} == {2, 3, 4}
    assert set(inputs.randint(-1, 2, 10, 20).unique().tolist()) == {-1, 0, 1}
    assert inputs.randn(2, 3).shape == (2, 3) and inputs.randn().shape == ()
    assert inputs.rand(50).min() >= 0 and inputs.rand(50).max() < 1
    assert {inputs.choice("ab") for _ in range(50)} == {"a", "b"}
    assert sorted(inputs.permutation(9).tolist()) == list(range(9))


def test_filled_parameters_do_not_depend_on_the_order_of_creation():
    one = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(3, 2)})
    two = nn.ModuleDict({"b": nn.Linear(3, 2), "a": nn.Linear(2, 3)})
    Inputs(1, "t").fill(one)
    Inputs(1, "t").fill(two)
    assert torch.equal(one["a"].weight, two["a"].weight) and torch.equal(one["b"].bias, two["b"].bias)
    assert not one.training


def test_known_answers_are_noted_only_when_asked():
    mistake("t", 1, "No.")
    with collect_declarations() as known:
        mistake("t", 1, "No.")
        alternative("t", 2)
    assert [(each.answer, each.sentence) for each in known.answers] == [(1, "No."), (2, None)]
    with pytest.raises(ValueError, match="sentence"):
        mistake("t", 1, " ")


def test_the_import_is_light():
    heavy = "IPython nbformat nbclient jupytext papermill rich typer matplotlib"
    code = f"import sys, txgrade; print([m for m in '{heavy}'.split() if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr


def test_after_a_restart_a_check_names_the_cell_to_run(notebook, capsys):
    """Only the cell at the top and the second task's check have run."""
    names: dict = {"__name__": "__main__"}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id not in ("causal-mask", "attention", "check-causal-mask"):
            capsys.readouterr()
            exec(cell.source, names)
            if cell.id == "check-attention":
                told = capsys.readouterr().out
    assert "is not defined: run the cell of your answer to *" in told
    assert "*, then this one" in told


def test_too_much_memory_is_said_in_a_sentence(study):
    words = study({"causal-mask": MASK + "torch.ones(10**8, 10**8)[:n, :n].tril().bool()"})["check-causal-mask"]
    assert "Your answer asked for more memory than there is. Does it make a tensor with a row and a column" in words
    assert "DefaultCPUAllocator" not in words
