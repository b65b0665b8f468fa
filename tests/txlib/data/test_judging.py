"""What is kept of the runs of lesson 42, and what its rules, its reader and its lamp do."""

import judging
import torch


def test_the_shipped_runs_have_three_seeds_each():
    kept = judging.RUNS.kept()
    leaks = [seeds for kinds in kept["leak"].values() for seeds in kinds.values()]
    thoughts = [seeds for kinds in kept["thinking"].values() for seeds in kinds.values()]
    runs = [*kept["rules"].values(), *thoughts, *leaks]
    assert {seeds.keys() == {"0", "1", "2"} for seeds in runs} == {True}
    assert kept["thinking"].keys() == judging.THINKING.keys()


def test_each_rule_takes_what_it_says(lesson):
    many, accepted = torch.tensor([[5, 7, 5, 8]]), torch.tensor([[False, True, False, True]])
    found = lesson["scores_of_rules"](many, accepted, torch.tensor([8]), 4)
    assert found == {"majority": 0, "perfect checker": 1, "checker that errs": 0, "majority of accepted": 0}
    by_two = lesson["scores_of_rules"](many, accepted, torch.tensor([8]), 2)
    assert by_two["checker that errs"] == 0.5  # of 5 and 8 it takes 8


def test_an_answer_is_read_as_a_number(lesson):
    end = lesson["END"]
    answers = torch.tensor([[2, 4, end], [2, end, end], [2, 4, 7]])
    assert lesson["number"](answers).tolist() == [42, -1, -1]


def test_a_lamp_follows_its_moves(lesson):
    torch.manual_seed(0)
    moves, states = lesson["lamps"](20, every=1)
    for row, after in zip(moves.tolist(), states.tolist(), strict=True):
        lamp = 0
        for move, state in zip(row[:-1], after, strict=True):
            lamp = 1 - lamp if move == lesson["PRESS"] else move
            assert state == lamp
    assert lesson["lamps"](2, every=4)[1].shape == (2, 2)
