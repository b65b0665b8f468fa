"""What is kept of lesson 12: the runs that its script makes; its measure tells repeating from guessing."""

from types import SimpleNamespace

import pytest
import recall
import torch


def test_the_shipped_runs_are_those_of_the_script():
    kept = recall.RUNS.kept()
    assert kept.keys() == {"1", "2"} and all(seeds.keys() == {"0", "1", "2"} for seeds in kept.values())
    assert all(len(run) == 25 for seeds in kept.values() for run in seeds.values())
    assert max(max(run[1:]) for run in kept["1"].values()) < min(min(run[1:]) for run in kept["2"].values())


@pytest.mark.parametrize("guess", ["what came after the same symbol", "the symbol itself"])
def test_right_is_what_repeats(lesson, guess):
    def learner(ids):
        number, n = ids.shape
        logits = torch.zeros(number, n, 64)
        if guess == "the symbol itself":
            return SimpleNamespace(logits=logits.scatter(2, ids[..., None], 1.0))
        rows = torch.arange(number)
        successor = torch.zeros(number, 64, dtype=torch.long)  # (text, symbol): what came after it
        for at in range(n):
            if at:
                successor[rows, ids[:, at - 1]] = ids[:, at]
            logits[rows, at, successor[rows, ids[:, at]]] = 1.0
        return SimpleNamespace(logits=logits)

    right = lesson["right_by_seen"](learner)
    assert right.shape == (25,)
    assert right[1:].tolist() == [float(guess != "the symbol itself")] * 24 and right[0] < 0.05
