"""What is kept of the runs of lesson 02: those that its script makes; its letters are reversed."""

import random

import looking_back
import pytest
import torch


def test_the_shipped_runs_are_those_of_the_script():
    kept = looking_back.RUNS.kept()
    assert kept["first token"].keys() == set(looking_back.READERS)
    for runs in kept.values():
        assert all(seeds.keys() == {"0", "1", "2"} for seeds in runs.values())
    assert kept["reversal"].keys() == {"one vector", "wider", "widest", "same weights", "attention"}
    assert kept["reversal, longer"].keys() == {"one vector", "widest"}
    for nets in (kept["reversal"], kept["reversal, longer"]):
        assert all(len(right) == len(looking_back.LENGTHS) for run in nets.values() for right in run.values())


@pytest.mark.slow
def test_the_target_is_the_source_backward(lesson):
    batch = lesson["reversals"]([5, 2], random.Random(0))
    for source, target, mask in zip(batch.input_ids, batch.labels, batch.attention_mask, strict=True):
        letters = int(mask.sum()) - 1
        assert torch.equal(source[:letters].flip(0), target[:letters])


@pytest.mark.slow
def test_gates_are_held_and_shut_by_their_bias(lesson):
    x = torch.zeros(1, 8)
    h = torch.ones(1, 8)
    for name, kept in ("held", 0.95), ("shut", 0.05):
        torch.manual_seed(0)
        cell = lesson[name](8)
        torch.nn.init.zeros_(cell.W.weight)
        z = torch.sigmoid(cell.U(x) + cell.W(h)).chunk(3, dim=-1)[1]
        assert z.mean().item() == pytest.approx(kept, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "factor"), [("damped", 0.5), ("boosted", 2.0), ("cut", 0.0)])
def test_only_the_gradient_of_the_state_is_scaled(lesson, name, factor):
    torch.manual_seed(0)
    scaled = looking_back.cell_maker(lesson, name)(8)
    h, x = torch.randn(2, 8, requires_grad=True), torch.randn(2, 8)
    plain = torch.autograd.grad(scaled.cell(h, x).sum(), h)[0]
    torch.testing.assert_close(scaled(h, x), scaled.cell(h, x))
    torch.testing.assert_close(torch.autograd.grad(scaled(h, x).sum(), h)[0], factor * plain)


@pytest.mark.slow
def test_the_wider_rival_has_more_parameters_than_attention(lesson):
    counts = {
        name: sum(weight.numel() for weight in kind(24, width).parameters())
        for name, (kind, width) in lesson["RIVALS"].items()
    }
    assert counts["one vector"] == counts["same weights"] < counts["attention"] < counts["wider"]


@pytest.mark.slow
def test_equal_weights_do_not_depend_on_what_is_written(lesson):
    torch.manual_seed(0)
    model, h = lesson["Even"](24, 8), torch.randn(2, 5, 8)
    contexts = [model.context(torch.randn(2, 8), h, torch.randn(2, 8)) for _ in range(2)]
    torch.testing.assert_close(*contexts)
    torch.testing.assert_close(contexts[0], h.mean(dim=1))
