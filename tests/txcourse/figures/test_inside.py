"""A stream with its parts, heads that are born, features that share a plane."""

import torch
from matplotlib.colors import to_hex

from txcourse import figures
from txlib.plots.picture import GRAY


def test_each_part_reads_the_stream_and_adds_to_it():
    drawn = figures.one_stream((1, 0), [(0, 2), (1, -1)], (-1, 1), (3, 1), title="A title")
    (axes,) = drawn.axes
    texts = {text.get_text() for text in axes.texts}
    assert {"embedding", "head 0", "head 1", "feed-forward", "+(0, 2)", "+(-1, 1)"} <= texts
    assert {"(1, 0)", "(2, 1)", "(1, 2)", "logit\n(3, 1) · (1, 2) = 5"} <= texts  # before, after heads, at the end
    assert drawn.alt.endswith("adds (-1, 1): (1, 2). The logit is (3, 1) times that, 5.")


def test_loss_and_scores_share_their_steps():
    rows = [
        {"step": 0, "repeat": 4.5, "before": [0.1, 0.2], "after": [0.1, 0.0]},
        {"step": 9, "repeat": 0.5, "before": [0.3, 0.9], "after": [0.8, 0.7]},
    ]
    drawn = figures.births({"0": rows, "1": rows}, title="A title")
    above, below = drawn.axes
    assert [list(line.get_ydata()) for line in above.lines] == [[4.5, 0.5], [4.5, 0.5]]
    assert [list(line.get_ydata()) for line in below.lines[:2]] == [[0.2, 0.9], [0.1, 0.8]]
    assert (
        "start 1: loss on repeats from 4.5 to 0.50 nats, best head of layer 1 at 0.90, of layer 2 at 0.80" in drawn.alt
    )


def test_a_feature_is_an_arrow_or_where_it_is_not_kept_a_point():
    directions = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    drawn = figures.planes({"dense": directions, "sparse": directions}, title="A title")
    for axes, name in zip(drawn.axes, ("dense", "sparse"), strict=True):
        assert axes.get_title(loc="left") == name and len(axes.texts) == 2
        assert len(axes.lines) == 2  # the circle, and the point
    assert "lengths 1.0, 1.0, 0.0" in drawn.alt


def test_arrows_near_a_named_direction_have_its_color():
    named = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    learned = torch.tensor([[0.1, 1.0, 1.0], [1.0, 0.0, 1.0]])  # near the second, as the first, between them
    drawn = figures.planes({"named": named, "learned": learned}, title="A title", like=named)
    first, second = ([to_hex(each.arrow_patch.get_edgecolor()) for each in axes.texts] for axes in drawn.axes)
    assert second == [first[1], first[0], GRAY]
