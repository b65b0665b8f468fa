"""What is kept of the runs of lesson 31: those that its script makes."""

import far_away
import pytest
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    runs, kept = far_away.runs(lesson), far_away.RUNS.kept()
    assert kept.keys() == runs.keys()
    for task, patterns in runs.items():
        assert kept[task].keys() == patterns.keys()
        for seeds in kept[task].values():
            assert seeds.keys() == {"0", "1", "2"}
            assert all(
                len(right) == lesson["n"] // 4 and 0 <= min(right) <= max(right) <= 1 for right in seeds.values()
            )


def test_a_fact_is_named_once_and_asked_by_all(lesson):
    who, _, _, right, distance = lesson["one_fact"](50)
    told = who != lesson["NOBODY"]
    assert (told.sum(dim=1) == 1).all() and torch.equal(distance == 0, told)
    assert torch.equal(right, who[told][:, None].expand_as(right))


@pytest.mark.parametrize("asking", [64, 8])
def test_the_answer_stands_where_the_thing_does(lesson, asking):
    n = lesson["n"]
    who, thing, ask, right, distance = lesson["own_question"](20, asking)
    for text in range(20):
        holder = dict(zip(thing[text].tolist(), range(n), strict=True))
        assert len(holder) == n
        for line in range(n):
            if line < n - asking:
                assert ask[text, line] == lesson["NOTHING"] and right[text, line] == -100
            else:
                place = holder[int(ask[text, line])]
                assert right[text, line] == who[text, place] and distance[text, line] == abs(place - line)
