"""The weight average against its recursion, one number at a time."""

import pytest
import torch
from torch import nn

from txlib.training import WeightAverage


def some_steps(model, steps=30):
    for _ in range(steps):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        yield


def test_it_is_the_recursion():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).double()
    average = WeightAverage(model, 0.8)
    by_hand = [parameter.flatten().tolist() for parameter in model.parameters()]
    for step, _ in enumerate(some_steps(model), start=1):
        average.update()
        keep = min(0.8, step / (step + 9))  # 0.1, 2/11, …: 0.8 from step 36 on
        for mine, parameter in zip(by_hand, model.parameters(), strict=True):
            mine[:] = [keep * a + (1 - keep) * b for a, b in zip(mine, parameter.flatten().tolist(), strict=True)]
    for mine, ours in zip(by_hand, average.weights.values(), strict=True):
        assert ours.flatten().tolist() == pytest.approx(mine, rel=1e-12)


def test_late_updates_keep_exactly_the_decay():
    model = nn.Linear(1, 1, bias=False).double()
    average = WeightAverage(model, 0.5)
    for _ in some_steps(model):
        average.update()
    before = average.weights["weight"].item()
    average.update()
    assert average.weights["weight"].item() == pytest.approx(0.5 * before + 0.5 * model.weight.item(), rel=1e-12)


def test_applied_gives_the_average_and_restores_exactly():
    model = nn.Linear(4, 3)
    average = WeightAverage(model, 0.9)
    for _ in some_steps(model):
        average.update()
    own = {name: weight.clone() for name, weight in model.state_dict().items()}
    with average.applied():
        for name, weight in model.state_dict().items():
            assert weight.equal(average.weights[name]) and not weight.equal(own[name])
    assert all(weight.equal(own[name]) for name, weight in model.state_dict().items())
    with pytest.raises(ZeroDivisionError), average.applied():
        1 / 0  # noqa: B018
    assert all(weight.equal(own[name]) for name, weight in model.state_dict().items())
    average.apply()
    assert all(weight.equal(average.weights[name]) for name, weight in model.state_dict().items())


def test_a_tied_weight_is_averaged_once():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    assert list(WeightAverage(nn.Sequential(first, second), 0.5).weights) == ["0.weight"]


@pytest.mark.parametrize("decay", [0, 1, 1.5, -0.1])
def test_decay_out_of_range(decay, unchecked):
    with pytest.raises(ValueError, match=rf"decay={decay} must lie between 0 and 1"):
        WeightAverage(nn.Linear(1, 1), decay)
