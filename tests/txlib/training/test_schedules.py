"""Schedules at points computed by hand."""

import pytest
import torch

from txlib.training import noam, warmup_cosine, warmup_linear


@pytest.mark.parametrize(
    ("step", "d_model", "warmup", "rate"),
    [
        (1, 512, 4000, 1.746928107e-07),  # 512^-0.5 · 4000^-1.5
        (2000, 512, 4000, 3.493856214e-04),
        (4000, 512, 4000, 6.987712430e-04),  # the peak: (512 · 4000)^-0.5
        (16000, 512, 4000, 3.493856214e-04),  # four times as late, half as high
        (100, 1, 100, 0.1),
    ],
)
def test_the_papers_formula(step, d_model, warmup, rate):
    assert noam(step, d_model, warmup) == pytest.approx(rate, rel=1e-8)
    assert noam(step, d_model, warmup) == pytest.approx(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


def test_noam_peaks_at_the_end_of_warm_up():
    rates = [noam(step, 64, 50) for step in range(1, 400)]
    assert max(rates) == rates[49]
    assert rates[:50] == sorted(rates[:50]) and rates[49:] == sorted(rates[49:], reverse=True)


@pytest.mark.parametrize(("total", "warmup"), [(100, 10), (100, 1), (11, 10), (7, 7)])
def test_warmup_linear(total, warmup):
    factors = [warmup_linear(step, total, warmup) for step in range(1, total + 1)]
    assert factors[0] == pytest.approx(1 / warmup)
    assert factors[warmup - 1] == 1 == max(factors)
    assert all(0 < factor <= 1 for factor in factors)  # the last step still learns
    assert warmup_linear(total + 1, total, warmup) == pytest.approx(0, abs=1e-15) or warmup >= total
    changes = [b - a for a, b in zip(factors, factors[1:], strict=False)]
    up, down = changes[: warmup - 1], changes[warmup - 1 :]
    assert up == pytest.approx([1 / warmup] * len(up))
    assert down == pytest.approx([-1 / (total + 1 - warmup)] * len(down))


@pytest.mark.parametrize(("total", "warmup", "last"), [(100, 10, 0.1), (100, 1, 0.0), (11, 10, 0.5), (7, 7, 0.1)])
def test_warmup_cosine_is_torchs(total, warmup, last):
    """The fall of `CosineAnnealingLR`, after a linear rise."""
    factors = [warmup_cosine(step, total, warmup, last) for step in range(1, total + 6)]
    assert factors[:warmup] == pytest.approx([step / warmup for step in range(1, warmup + 1)])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, total - warmup), eta_min=last)
    expected = []
    for _ in range(warmup, total + 1):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert factors[warmup - 1 : total] == pytest.approx(expected)
    assert factors[total:] == pytest.approx([last] * 5)  # and stays there


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert [warmup_linear(step, 3, 10) for step in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("call", [lambda: noam(0, 512), lambda: warmup_linear(0, 10, 5), lambda: noam(3, 512, 0)])
def test_steps_count_from_one(call):
    with pytest.raises(ValueError, match=r"count from 1 .* got step=\d, warmup=\d"):
        call()
