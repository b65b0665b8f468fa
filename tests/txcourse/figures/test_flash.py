"""The figures of lesson 34."""

import pytest
from matplotlib.colors import to_hex

from txcourse import figures
from txlib import plots


def test_the_roof_bends_where_both_limits_meet():
    points = {"copy": (0.25, 2e9), "product": (100.0, 5e10)}
    (axes,) = figures.roofline(points, peak=1e11, bandwidth=1e10, title="A title").axes
    roof, *dots = axes.lines
    x, y = roof.get_data()
    assert x[1] == pytest.approx(10) and list(y[1:]) == [1e11, 1e11] and y[0] == pytest.approx(1e10 * x[0])
    assert [(each.get_xdata()[0], each.get_ydata()[0]) for each in dots] == list(points.values())


def test_names_of_points_that_fall_together_stand_in_a_column():
    points = {"q kᵀ": (31.0, 9.0e10), "weights · v": (31.0, 8.9e10), "softmax": (0.6, 1e10)}
    picture = figures.roofline(points, peak=1e11, bandwidth=4e10, title="title")
    (axes,) = picture.axes
    assert len(axes.lines) == 1 + 3  # the roof, three dots
    below = {text.get_text(): text.get_position()[1] for text in axes.texts if hasattr(text, "xyann")}
    assert below == {"q kᵀ": -16, "weights · v": -32, "softmax": -16}
    assert all(name in picture.alt for name in points)


def test_tiles_show_what_is_done_at_hand_and_hidden():
    steps = [(0, 0), (1, 0), (1, 1)]
    axes = figures.tiles((2, 2), steps, ["one", "two", "three"], title="", alt="", hidden=[(0, 1)]).axes
    at_hand, done = plots.PALETTE[1].lower(), plots.PALETTE[0].lower()
    colors = [[to_hex(patch.get_facecolor()) for patch in each.patches] for each in axes]  # row after row
    assert [each.index(at_hand) for each in colors] == [0, 2, 3]
    assert [each.count(done) for each in colors] == [0, 1, 2]
    assert all(each[1] == "#ffffff" for each in colors)
    assert [each.get_xlabel() for each in axes] == ["one", "two", "three"]


def test_tiles_hold_their_texts():
    (axes, _) = figures.tiles((1, 2), [(0, 0), (0, 1)], ["", ""], title="", alt="", texts={(0, 1): "5  3"}).axes
    assert [text.get_text() for text in axes.texts] == ["", "5  3"]


def test_scores_are_in_fast_memory_alone():
    (axes,) = figures.two_memories(title="A title").axes
    (scores,) = [text for text in axes.texts if text.get_text() == "scores"]
    slow, fast = (patch for patch in axes.patches if not patch.get_fill())
    assert fast.get_x() < scores.get_position()[0] < fast.get_x() + fast.get_width()
    assert slow.get_x() + slow.get_width() < fast.get_x()
