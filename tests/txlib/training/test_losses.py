"""Losses against `torch.nn.functional.cross_entropy`, in value and in gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from txlib.training import label_smoothed_cross_entropy, linear_cross_entropy, linear_divergence, losses

BATCH, LENGTH, D_MODEL, VOCAB = 3, 5, 7, 11


@pytest.fixture
def inputs():
    """hidden, weight, and labels of which some are not counted."""
    hidden = torch.randn(BATCH, LENGTH, D_MODEL, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, D_MODEL, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(VOCAB, (BATCH, LENGTH))
    labels[0, 2:], labels[2, 0] = -100, -100
    return hidden, weight, labels


def by_torch(logits, labels, smoothing):
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), label_smoothing=smoothing, ignore_index=-100, reduction="sum"
    )


def gradients(loss, *leaves):
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothed_loss_is_that_of_torch(inputs, smoothing):
    hidden, weight, labels = inputs
    logits = hidden @ weight.T
    ours, theirs = (f(logits, labels, smoothing) for f in (label_smoothed_cross_entropy, by_torch))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, logits), gradients(theirs, logits))


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_fused_loss_is_that_of_torch_whatever_the_chunk(inputs, smoothing, chunk):
    hidden, weight, labels = inputs
    ours = linear_cross_entropy(hidden, weight, labels, smoothing, chunk=chunk)
    theirs = by_torch(hidden @ weight.T, labels, smoothing)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(3 * ours, hidden, weight), gradients(3 * theirs, hidden, weight))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_on_a_gpu_rows_that_do_not_count_are_zeros(inputs, smoothing, monkeypatch):
    """All rows are computed, as their number is not known; the sums are the same, whatever stands in the others."""
    hidden, weight, labels = inputs
    expected = by_torch(hidden @ weight.T, labels, smoothing)
    wanted = gradients(expected, hidden, weight)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", {})
    monkeypatch.setattr(losses, "VOCAB_MULTIPLE", {})
    ours = linear_cross_entropy(hidden, weight, labels, smoothing, chunk=4)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(gradients(ours, hidden, weight), wanted)
    plain = label_smoothed_cross_entropy(hidden @ weight.T, labels, smoothing)
    torch.testing.assert_close(plain, expected)
    torch.testing.assert_close(gradients(plain, hidden, weight), wanted)
    with torch.no_grad():
        hidden[labels == -100] = float("nan")
    torch.testing.assert_close(linear_cross_entropy(hidden, weight, labels, smoothing), ours)
    rows = losses.counted_rows(hidden, labels)[0]
    assert len(rows) == labels.numel() and linear_divergence(rows, rows.clone(), weight) == 0


def test_fused_gradient_against_finite_differences(inputs):
    hidden, weight, labels = inputs
    assert gradcheck(lambda h, w: linear_cross_entropy(h, w, labels, 0.1, chunk=4), (hidden, weight))


def test_large_logits_do_not_overflow():
    hidden = torch.tensor([[300.0, -300.0]], requires_grad=True)
    weight = torch.eye(2, requires_grad=True) * 10
    labels = torch.tensor([1])
    ours, theirs = linear_cross_entropy(hidden, weight, labels), by_torch(hidden @ weight.T, labels, 0.1)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, hidden), gradients(theirs, hidden))


def test_nothing_counts():
    hidden, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    labels = torch.full((2, 3), -100)
    for loss in (linear_cross_entropy(hidden, weight, labels), label_smoothed_cross_entropy(hidden @ weight.T, labels)):
        assert loss.item() == 0
        for gradient in gradients(loss, hidden, weight):
            assert not gradient.any()


def test_labels_that_do_not_count_get_no_gradient(inputs):
    hidden, weight, labels = inputs
    (gradient,) = gradients(linear_cross_entropy(hidden, weight, labels), hidden)
    assert not gradient[labels == -100].any()
    assert gradient[labels != -100].any(dim=-1).all()


def test_bf16_autocast_stays_close(inputs):
    hidden, weight, labels = (each.detach() for each in inputs)
    hidden, weight = hidden.float().requires_grad_(), weight.float().requires_grad_()
    theirs = by_torch(hidden @ weight.T, labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(hidden, weight, labels, 0.1, chunk=4)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0)
    for mine, exact in zip(gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        assert mine.dtype == torch.float32
        assert (mine - exact).norm() < 0.01 * exact.norm()


def test_second_derivatives_are_refused_not_wrong(inputs):
    hidden, weight, labels = inputs
    loss = linear_cross_entropy(hidden, weight, labels)
    (gradient,) = torch.autograd.grad(loss**2, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


@pytest.fixture
def passes():
    """Two passes over the same tokens, and the output weight."""
    first, second = torch.randn(2, 9, D_MODEL, dtype=torch.float64)
    leaves = first, second, torch.randn(VOCAB, D_MODEL, dtype=torch.float64)
    return tuple(leaf.requires_grad_() for leaf in leaves)


@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_divergence_is_that_of_torch_whatever_the_chunk(passes, chunk):
    first, second, weight = passes
    ours = linear_divergence(first, second, weight, chunk=chunk)
    log_p, log_q = ((x @ weight.T).log_softmax(-1) for x in (first, second))
    theirs = sum(F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((log_p, log_q), (log_q, log_p))) / 2
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(3 * ours, *passes), gradients(3 * theirs, *passes))


def test_gradient_of_the_divergence_against_finite_differences(passes):
    assert gradcheck(lambda *leaves: linear_divergence(*leaves, chunk=4), passes)


def test_divergence_under_autocast_stays_close(passes):
    exact = linear_divergence(*passes)
    single = tuple(leaf.detach().float().requires_grad_() for leaf in passes)
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_divergence(*single)
    torch.testing.assert_close(ours, exact.float(), rtol=0.03, atol=0)
    for mine, true in zip(gradients(ours, *single), gradients(exact, *passes), strict=True):
        assert (mine - true).norm() < 0.03 * true.norm()


def test_passes_that_agree_do_not_diverge(passes):
    first, _, weight = passes
    assert linear_divergence(first, first.clone(), weight) == 0
