"""Noting which operators run changes nothing else."""

import _thread
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from txgrade.checking.checks import Checks, collecting
from txgrade.checking.inputs import derived_seed

X = torch.linspace(-2, 2, 2 * 4 * 8).reshape(2, 4, 8)
SEED = derived_seed(0, "t", "torch")


def trained():
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.2), nn.GELU(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def gradient():
    weight = torch.randn(8, 8, requires_grad=True)
    (X @ weight).softmax(-1).square().sum().backward()
    return weight.grad


def fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        return layer(X)


def frozen():
    with torch.inference_mode():
        return X.softmax(-1).clone()


def flexible():
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(X[:, None], X[:, None], X[:, None])


ANSWERS = {
    "random numbers": (lambda: torch.rand(5) + torch.randn(5) + torch.randperm(5), "aten.randperm"),
    "dropout": (lambda: F.dropout(torch.ones(50), 0.5), "aten.bernoulli_"),
    "softmax": (lambda: F.softmax(X, -1), "aten._softmax"),
    "inference mode": (frozen, "aten.softmax"),
    "attention": (
        lambda: F.scaled_dot_product_attention(X[None], X[None], X[None], is_causal=True),
        "aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    "attention with dropout": (lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.2), "aten._safe_softmax"),
    "flex attention": (flexible, None),
    "fast path": (fast_path, "aten._transformer_encoder_layer_fwd"),
    "gradient": (gradient, "aten._softmax_backward_data"),
    "training": (trained, "aten.addmm"),
    "compiled": (lambda: torch.compile(lambda x: x.softmax(-1), backend="eager")(X), "aten._softmax"),
    "vmap": (lambda: torch.func.vmap(lambda x: x.softmax(-1))(X), "aten._softmax"),
    "func.grad": (lambda: torch.func.grad(lambda x: x.softmax(-1).square().sum())(X), "aten._softmax"),
}


def run(answer, operators):
    with collecting(operators=operators) as collected, Checks()("t") as show:
        show(answer())
        show(torch.rand(3))
    return collected.bundles[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("answer", "operator"), ANSWERS.values(), ids=ANSWERS)
def test_values_stay_the_same_bit_for_bit(answer, operator):
    watched, plain = run(answer, True), run(answer, False)
    assert plain["error"] is None
    assert watched["shown"] == plain["shown"]
    torch.manual_seed(SEED)
    assert watched["shown"][0]["value"]["values"] == pytest.approx(answer().flatten().tolist(), abs=0, rel=1e-7)
    assert plain["operators"] is None
    assert operator is None or operator in watched["operators"]


def test_names_are_sorted_and_there_once():
    found = run(lambda: torch.ones(2) + torch.ones(2) + 1, True)["operators"]
    assert found == ["aten.add", "aten.detach", "aten.ones", "aten.rand"]  # show itself detaches


def test_only_grading_looks_on(graded_checks):
    for checks, operators, expected in (
        (graded_checks(0), True, True),
        (graded_checks(0), False, False),
        (Checks(), True, False),
    ):
        assert (checks("t", operators=operators)._operators is not None) == expected, operators


def test_an_error_ends_the_watching():
    with collecting(operators=True) as collected, Checks()("t") as show:
        show(torch.ones(2))
        raise ValueError
    assert collected.bundles[0]["operators"] == ["aten.detach", "aten.ones"]
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    assert _get_current_dispatch_mode_stack() == []


def in_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(X.softmax(-1)))
    thread.start()
    thread.join()
    return found[0]


def in_a_bare_thread():
    found, done = [], threading.Event()

    def work():
        found.append(X.softmax(-1))
        done.set()

    _thread.start_new_thread(work, ())
    done.wait()
    return found[0]


def test_threads_are_watched(monkeypatch):
    """One that starts in the check, a bare one, and a pool that is older than the check."""
    monkeypatch.setattr("txgrade.checking.operators._graded", True)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 2).result()
        ways = {"thread": in_thread, "bare": in_a_bare_thread, "pool": lambda: pool.submit(X.softmax, -1).result()}
        for name, way in ways.items():
            assert "aten._softmax" in run(way, True)["operators"], name
        assert "aten._softmax" not in run(lambda: X, True)["operators"]


def test_a_learners_threads_run_as_they_are():
    assert "aten._softmax" not in run(in_thread, True)["operators"]
