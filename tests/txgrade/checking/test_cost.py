"""What `cost` counts, beside torch's own counter, and what it refuses because it could not be counted."""

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from txgrade import cost
from txgrade.checking.cost import OutsideTorch
from txgrade.checking.operators import watch_threads

X, Y = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)), torch.ones(40, 20)
HEADS = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(1))
PRODUCTS = {
    "matmul": lambda: X @ Y,
    "addmm": lambda: torch.addmm(torch.ones(20), X, Y),
    "bmm": lambda: torch.bmm(X[None], Y[None]),
    "einsum": lambda: torch.einsum("ij,jk->ik", X, Y),
    "linear": lambda: F.linear(X, Y.T),
    "conv1d": lambda: F.conv1d(X[None], torch.ones(5, 30, 3)),
    "attention": lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "softmax": lambda: (X @ X.T).softmax(-1) @ X,
}


def made_by(function) -> int:
    """How many numbers the steps make that are no views, by a count of their own."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    numbers = 0

    class Making(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            nonlocal numbers
            out = operator(*args, **(kwargs or {}))
            leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
            numbers += 0 if operator.is_view else sum(leaf.numel() for leaf in leaves)
            return out

    with torch.no_grad(), Making():
        function()
    return numbers


@pytest.mark.parametrize("function", PRODUCTS.values(), ids=PRODUCTS)
def test_products_are_those_of_torchs_counter(function):
    with torch.no_grad(), FlopCounterMode(display=False) as products:
        expected = function()
    spent = cost(function)
    torch.testing.assert_close(spent.value, expected)
    assert spent.operations == products.get_total_flops() + made_by(function)


def test_inference_mode_hides_nothing():
    with_mode = torch.inference_mode()(lambda: (X @ X.T).softmax(-1) @ X)
    assert cost(with_mode).operations >= 4 * 30 * 30 * 40


def test_products_with_vectors_count_too():
    assert cost(lambda: X @ Y[:, 0]).operations == 2 * 30 * 40 + 30
    assert cost(lambda: X[0] @ Y[:, 0]).operations == 2 * 40 + 1


def test_views_are_free_and_the_largest_is_what_is_held():
    assert cost(lambda: X.T[None].expand(9, 40, 30)).operations == 0
    assert cost(lambda: X.sum(1)).largest == 30
    assert cost(lambda: torch.ones(70, 70).tril().sum()).largest == 4900
    assert cost(lambda: X[:2].T * 2).largest == X.numel()  # a view holds all that it is a view of


TAKEN_OUT = {
    "numpy": lambda x, y: x.numpy() @ y.numpy(),
    "detached": lambda x, y: x.detach().numpy().sum(),
    "an array": lambda x, y: np.asarray(x).sum(),
    "lists": lambda x, y: [sum(row) for row in x.tolist()],
    "items": lambda x, y: [number.item() for row in x for number in row],
    "floats": lambda x, y: [float(number) for row in x for number in row],
    "storage": lambda x, y: list(x.untyped_storage()),
}


@pytest.mark.parametrize("answer", TAKEN_OUT.values(), ids=TAKEN_OUT)
def test_what_leaves_torch_is_refused(answer):
    with pytest.raises(OutsideTorch, match="where no cost is counted"):
        cost(answer, X, Y)


def test_a_few_numbers_may_leave():
    lengths = torch.tensor([3, 9, 4])
    assert cost(lambda x, n: [x[:end].sum().item() for end in n.tolist()], X, lengths).operations > 0


def test_work_in_another_thread_is_refused_where_it_counts(monkeypatch):
    watch_threads()  # as the checks do when they are imported
    monkeypatch.setattr("txgrade.checking.operators._graded", True)

    def in_a_thread(x):
        results = []
        thread = threading.Thread(target=lambda: results.append(x @ x.T))
        thread.start()
        thread.join()
        return results[0]

    with pytest.raises(OutsideTorch, match="another thread"):
        cost(in_a_thread, X)
    assert cost(lambda x: x @ x.T, X).operations > 0


def test_an_error_of_the_answers_passes_through():
    with pytest.raises(ZeroDivisionError):
        cost(lambda x: 1 / 0, X)
