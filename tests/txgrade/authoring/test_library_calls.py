"""A call of torch's that returns a reference's values is told to an author who neither forbids nor allows it."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from txgrade.authoring.declarations import allow, attention_operators, collect_declarations, forbid
from txgrade.authoring.library_calls import library_calls, library_problems
from txgrade.authoring.library_search import Call, _tried, matches_of
from txgrade.authoring.record import author_declarations, reference_names
from txgrade.authoring.torch_calls import LEFT_OUT, TorchCall, fillings, torch_library
from txgrade.authoring.validate import prove

CHECK = '"grade": true, "points": 1, "solution": false, "locked": true, "schema_version": 3'
SOURCE = """# %% [markdown]
# # Library

# %% tags=["parameters"]
seed = 0

# %%
import torch
from torch import Tensor

from txgrade import check

# %% nbgrader={"grade_id": "causal", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def causal(q: Tensor, k: Tensor, v: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    ### BEGIN SOLUTION
    scores = q @ k.T / q.shape[-1] ** 0.5
    hidden = torch.arange(len(k)) > torch.arange(len(q))[:, None]
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v, scores.logsumexp(-1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-causal", CHECK}
with check("causal") as show:
    for n in (4, show.random_size(5, 9)):
        show(causal(show.randn(n, 4), show.randn(n, 4), show.randn(n, 4), True))

# %% nbgrader={"grade_id": "counts", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def counts(ids: Tensor) -> list[int]:
    ### BEGIN SOLUTION
    return [int((ids == id).sum()) for id in range(int(ids.max()) + 1)]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-counts", CHECK}
with check("counts") as show:
    for n in (20, show.random_size(30, 40)):
        show(counts(show.randint(0, 5, n)))

# %% nbgrader={"grade_id": "own", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def own(x: Tensor) -> Tensor:
    ### BEGIN SOLUTION
    return torch.cumsum(x, 0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-own", CHECK}
with check("own") as show:
    show(own(show.randn(show.random_size(4, 9))))

# %% tags=["mistakes"]
from txgrade import allow, forbid

RULES
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The names of what is found for a task, where its author's cells say this."""
    searched = {}

    def search(task, rules=""):
        if rules not in searched:
            path = tmp_path_factory.mktemp("library") / "library.py"
            path.write_text(SOURCE.replace("CHECK", CHECK).replace("RULES", rules), encoding="utf-8")
            searched[rules] = library_calls(path)
        return {name for call in searched[rules].get(task, []) for name in call["names"]}

    return search


SDPA = "torch.nn.functional.scaled_dot_product_attention"
BY_OPERATOR = 'forbid("causal", operators="attention")\nforbid("counts", operators="aten.bincount")'
BY_NAME = 'forbid("causal", "scaled_dot_product_attention")\nforbid("counts", "bincount")'
ALLOWED = 'allow("counts", "torch.bincount", reason="it is the lesson\'s")\nallow("*", "cumsum", reason="likewise")'


@pytest.mark.slow
def test_a_call_is_found_until_its_author_speaks_of_it(found):
    assert found("causal") >= {SDPA, "torch._scaled_dot_product_flash_attention_for_cpu"}
    assert found("causal", BY_OPERATOR) == set()
    assert found("causal", BY_NAME) and SDPA not in found("causal", BY_NAME)  # other operators do the same
    assert SDPA in found("causal", ALLOWED)


@pytest.mark.slow
def test_a_call_is_found_for_a_list_of_numbers(found):
    assert "torch.bincount" in found("counts")
    for rules in (BY_OPERATOR, BY_NAME, ALLOWED):
        assert "torch.bincount" not in found("counts", rules)


@pytest.mark.slow
def test_what_the_reference_calls_itself_is_not_told(found):
    assert found("own") == set()


@pytest.mark.slow
def test_validate_reports_it(tmp_path):
    path = tmp_path / "library.py"
    path.write_text(SOURCE.replace("CHECK", CHECK).replace("RULES", ""), encoding="utf-8")
    causal, counts, own = (report.problems for report in prove(path, seeds=()))
    assert any(line.startswith(f"{SDPA} returns the values of the reference's causal") for line in causal)
    assert any(line.startswith("torch.bincount returns the values") for line in counts)
    assert not any("returns the values" in line for line in own)


def test_a_line_for_the_author():
    assert library_problems([]) == []
    (line,) = library_problems(
        [{"function": "f", "names": ["torch.bmm", "torch.Tensor.bmm"], "operators": ["aten.bmm"]}]
    )
    assert line.startswith("torch.bmm returns the values of the reference's f: forbid it") and "(aten.bmm)" in line


def attention_backward(is_causal):
    """What a reference is given for its backward pass, and the gradient of q that it returns."""
    q, k, v, grad = (torch.randn(7, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(4))
    q.requires_grad_()
    scores = q @ k.T / 2
    if is_causal:
        scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    out = scores.softmax(-1) @ v
    (wanted,) = torch.autograd.grad(out, q, grad)
    tensors = tuple(tensor.detach() for tensor in (q, k, v, out, scores.logsumexp(-1), grad))
    return Call(tensors, (is_causal, 3), wanted, 1e-4, 1e-5)


@pytest.mark.slow
def test_fused_backward_passes_are_tried():
    """The gradient stands last among the arguments, and first in torch's operator; two axes are missing."""
    calls = [[attention_backward(True), attention_backward(False)]] * 2
    names = {name for match in matches_of("backward", calls) for name in match.names}
    assert "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward" in names


@pytest.mark.parametrize(
    ("wanted", "tensors", "says"),
    [
        (torch.tensor([1.0, 2.0]), (torch.tensor([3.0, 4.0]),), True),
        (torch.tensor([2.0, 2.0]), (torch.tensor([3.0, 4.0]),), False),  # constant
        (torch.tensor([3.0, 4.0]), (torch.tensor([3.0, 4.0]),), False),  # an argument
        (torch.tensor(3.0), (torch.tensor([3.0, 4.0]),), False),
    ],
)
def test_a_value_that_says_nothing_is_no_evidence(wanted, tensors, says):
    assert Call(tensors, (), wanted, 1e-4, 1e-5).says_something == says


def test_equality_is_that_of_a_check():
    call = Call((), (), torch.tensor([1.0, 2.0]), 1e-4, 1e-5)
    assert call.is_equal(torch.tensor([[1.00001, 2.0]])) and call.is_equal(torch.tensor([1, 2.0], dtype=torch.float64))
    assert not call.is_equal(torch.tensor([1.01, 2.0])) and not call.is_equal(torch.tensor([1, 2]))
    assert not call.is_equal(torch.tensor([[1.0], [2.0]])) and not call.is_equal([1.0, 2.0])


def test_every_order_of_four_tensors_is_tried():
    tensors = tuple(torch.full((2,), float(place)) for place in range(4))
    addcmul = next(call for call in torch_library() if call.names[0] == "torch.addcmul")
    orders = {
        tuple(place for _, (source, place) in filling.parts if source == "tensor")
        for filling in fillings(addcmul, tensors, ())
    }
    assert len(orders) == 24


def test_the_library_leaves_out_what_changes_or_draws():
    names = {name.rpartition(".")[2] for call in torch_library() for name in call.names}
    assert names > {"softmax", "scaled_dot_product_attention", "erf", "inv", "cosine_similarity", "rms_norm", "roll"}
    assert not [name for name in names if name.endswith("_") or LEFT_OUT.fullmatch(name)]
    assert not names & {"save", "load", "randn_like", "empty_like", "dropout", "set_num_threads", "manual_seed"}


@pytest.mark.slow
def test_a_crash_and_a_hang_end_nothing():
    def crash():
        os.kill(os.getpid(), signal.SIGKILL)

    def hang():
        while True:
            pass

    def work():
        return 3

    candidates = [TorchCall((function.__name__,), function, ()) for function in (work, crash, work, hang, work)]
    began = time.monotonic()
    results = list(_tried(candidates, lambda candidate: candidate.function()))
    assert [(candidate.names, result) for candidate, result in results] == [(("work",), 3)] * 3
    assert time.monotonic() - began < 50


def test_attention_is_a_group_of_operators():
    names = set(attention_operators())
    assert names >= {
        "aten.scaled_dot_product_attention",
        "aten._scaled_dot_product_attention_math",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_efficient_attention_backward",
        "aten._scaled_dot_product_cudnn_attention",
        "aten._flash_attention_forward",
        "aten._flash_attention_backward",
        "aten._efficient_attention_forward",
        "aten._safe_softmax",
    }
    assert not names & {"aten._softmax", "aten.bmm", "aten.softmax"}
    with collect_declarations() as notes:
        forbid("t", "softmax", ("attention", "aten._softmax"))
        forbid("t", operators="attention")
    first, second = notes.forbidden
    assert set(first.operators) == names | {"aten._softmax"} and set(second.operators) == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", "torch.soft max", "r"), "is not a name"),
        (("t", (), "r"), "needs names"),
        (("t", "torch.bincount", " "), "a reason"),
    ],
)
def test_allow_is_refused(arguments, message):
    task, names, reason = arguments
    with collect_declarations() as notes, pytest.raises(ValueError, match=message):
        allow(task, names, reason=reason)
    assert notes.allowed == []


def test_allow_is_noted():
    with collect_declarations() as notes:
        allow("t", "torch.bincount", reason="it is the lesson's")
    assert [(rule.task, rule.names) for rule in notes.allowed] == [("t", ("torch.bincount",))]


def test_allow_must_speak_of_a_task(tmp_path):
    from txgrade.authoring.exercise import read_exercise
    from txgrade.authoring.record import RecordingError

    path = tmp_path / "library.py"
    path.write_text(
        SOURCE.replace("CHECK", CHECK).replace("RULES", 'allow("nobody", "bincount", reason="x")'), encoding="utf-8"
    )
    exercise = read_exercise(path)
    with pytest.raises(RecordingError, match=r"allow\(…\) is for the task 'nobody'"):
        author_declarations(exercise, reference_names(exercise, 0))


SOLUTIONS = sorted((Path(__file__).parents[3] / "solutions").glob("[0-9]*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOLUTIONS, ids=lambda path: path.stem)
def test_no_call_of_torch_answers_a_task(source):
    """A call that does is forbidden or allowed in the source: docs/exercises.md."""
    assert [line for calls in library_calls(source).values() for line in library_problems(calls)] == []
