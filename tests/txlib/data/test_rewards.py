"""What is kept of the runs of lesson 41, and what its checkers count."""

import rewards
import torch


def test_the_shipped_runs_have_three_seeds_each_and_the_hacked_ones_eight():
    kept = rewards.RUNS.kept()
    for name, runs in kept.items():
        seeds = set("01234567" if name == "hacked" else "012")
        assert all(set(each) == seeds for each in runs.values())
    assert (
        kept["right"]["with baseline"] == kept["right"]["with baseline, rewards + 5"]
    )  # the same numbers, less their mean
    assert all(0 <= right <= 1 for runs in kept["right"].values() for seeds in runs.values() for right in seeds)


def test_one_checker_compares_and_the_other_searches(lesson):
    end = lesson["END"]
    answers = torch.tensor([[2, 4, end, end], [9, 2, 4, end], [4, 2, end, end], [2, 4, 7, end]])
    totals = torch.full((4,), 42)
    assert lesson["is_right"](answers, totals).tolist() == [1, 0, 0, 0]
    assert lesson["occurs"](answers, totals).tolist() == [1, 1, 0, 1]
    assert lesson["written"](answers).sum(dim=1).tolist() == [3, 4, 3, 4]
