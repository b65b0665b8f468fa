"""The picture of which words reach which output."""

import torch

from txcourse import figures


def test_influence_marks_the_future_that_is_seen_and_the_past_that_is_not():
    right, wrong = torch.ones(3, 3).tril(), torch.eye(3)
    wrong[0, 2] = 1.0
    picture = figures.influence({"right": right, "wrong": wrong}, ["a", "b", "c"], title="t", alt="a")
    marks = [
        {(line.get_xdata()[0], line.get_ydata()[0]): line.get_marker() for line in axes.lines}
        for axes in picture.axes[:2]
    ]
    assert marks == [{}, {(2, 0): "*", (0, 1): "x", (0, 2): "x", (1, 2): "x"}]
