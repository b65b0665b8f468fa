"""What is kept of the runs of lesson 10: those that its script makes, and what the lesson says of them."""

import next_character
import pytest
import torch


def test_the_shipped_runs_are_those_of_the_script_and_show_what_the_lesson_says():
    kept = next_character.RUNS.kept()
    tables = [table["unseen"] for table in kept.pop("tables").values()]
    assert len(tables) == next_character.LONGEST + 1 and min(tables) == tables[4]
    assert kept.keys() == next_character.SETTINGS.keys()
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in kept.values())
    for seed in "012":
        runs = [kept[name][seed] for name in next_character.SETTINGS]
        small, large, unplaced, one_block, small_few, large_few, longer = runs
        assert large["unseen"] < min(small["unseen"], unplaced["unseen"])
        assert unplaced["unseen"] < one_block["unseen"] < tables[1]
        assert large_few["training"] < small_few["training"] and large_few["unseen"] > small_few["unseen"]
        assert abs(longer["unseen"] - tables[4]) < 0.03 and longer["unseen"] < tables[3]
        assert sum(longer["by position"][16:]) / 48 < longer["by position"][2] - 0.05


def test_tables_of_counts_mix_each_past_with_the_shorter_one():
    train, text = torch.tensor([0, 1, 0, 1, 0, 0]), torch.tensor([1, 0, 1])  # of two kinds
    frequency = [(4 + 2 / 2) / 8, (2 + 2 / 2) / 8]  # four 0 and two 1 among six; two kinds weigh the start of one half
    pair = [(2 + frequency[0]) / 3, (2 + 2 * frequency[1]) / 5]  # 1 → 0 twice; 0 → 1 twice, 0 → 0 once
    tables = next_character.mixtures(train, text, 2)
    (of_none, _), (of_one, occurred) = next(tables), next(tables)
    assert of_none == pytest.approx(-sum(torch.tensor(frequency).log()) / 2)
    assert of_one == pytest.approx(-sum(torch.tensor(pair).log()) / 2) and occurred == 1
