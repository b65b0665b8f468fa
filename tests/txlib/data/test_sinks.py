"""What is kept of the runs on evicted words: those that their script makes."""

import sinks
import torch


def test_the_shipped_runs_are_those_of_the_script():
    kept = sinks.RUNS.kept()
    assert kept.keys() == sinks.KINDS.keys()
    for seeds in kept.values():
        assert seeds.keys() == {"0", "1", "2"}
        assert all(run.keys() == {*sinks.CACHES, "quiet", "repeats"} for run in seeds.values())


def test_after_a_repeating_word_comes_the_one_before_it():
    torch.manual_seed(0)
    ids = sinks.draw(50)
    assert ids.shape == (50, sinks.LENGTH + 1) and (ids[:, 0] == sinks.START).all()
    before, word, after = ids[:, 1:-2], ids[:, 2:-1], ids[:, 3:]
    repeats = word < sinks.REPEATING
    assert repeats.any() and torch.equal(after[repeats], before[repeats])
    assert not torch.equal(after[~repeats], before[~repeats])
