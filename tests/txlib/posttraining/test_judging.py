"""What a score is worth: against counting, and against many tests."""

from itertools import combinations

import numpy as np
import pytest
import torch

from txlib.posttraining import bootstrap_interval, dpo_loss, majority, pass_at_k


@pytest.mark.parametrize(("answers", "right"), [(5, 0), (5, 2), (6, 5), (4, 4)])
def test_pass_at_k_counts_the_choices_with_a_right_answer(answers, right):
    results = [index < right for index in range(answers)]
    for k in range(1, answers + 1):
        choices = list(combinations(results, k))
        assert pass_at_k(answers, right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_the_majority_is_the_first_of_those_tied():
    assert majority(["4", "5", "5"]) == "5"
    assert majority([7, 3, 3, 7]) == 7


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        low, high = bootstrap_interval((rng.random(60) < 0.3).tolist(), level=0.9, draws=300, seed=seed)
        held += low <= 0.3 <= high
    assert 165 <= held <= 195


def test_the_interval_is_of_any_statistic():
    scores = [0.0, 1, 2, 3, 100]
    low, high = bootstrap_interval(scores, statistic=np.median)
    assert low >= 0 and high <= 100 and low < np.median(scores) < high
    assert bootstrap_interval([2.5] * 9) == (2.5, 2.5)


def test_dpo_is_a_logistic_loss_of_the_margin_over_the_reference():
    generator = torch.Generator().manual_seed(0)
    chosen, rejected, reference_chosen, reference_rejected = torch.randn(4, 6, generator=generator)
    loss, count = dpo_loss(chosen, rejected, reference_chosen, reference_rejected, beta=0.3)
    margins = [chosen[i] - reference_chosen[i] - (rejected[i] - reference_rejected[i]) for i in range(6)]
    assert float(loss) == pytest.approx(sum(float(torch.log(1 + torch.exp(-0.3 * margin))) for margin in margins))
    assert count == 6
    same, _ = dpo_loss(chosen, rejected, chosen, rejected)
    assert float(same) == pytest.approx(6 * np.log(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pass_at_k(3, 4, 1), "4 right"),
        (lambda: pass_at_k(3, 1, 5), "pass@5 of 3"),
        (lambda: majority([]), "no answers"),
        (lambda: bootstrap_interval([]), "0 scores"),
        (lambda: bootstrap_interval([1.0], level=1.0), "level=1.0"),
        (lambda: dpo_loss(*torch.zeros(4, 2), beta=0.0), "beta=0.0"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
