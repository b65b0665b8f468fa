"""The figures of lesson 34."""

import pytest
from matplotlib.colors import to_hex

from txcourse import figures
from txlib import plots


def test_the_roof_bends_where_both_limits_meet():
    points = {"copy": (0.25, 2e9), "product": (100.0, 5e10)}
    (axes,) = figures.roofline(points, peak=1e11, bandwidth=1e10, title="A title", alt="A description").axes
    roof, *dots = axes.lines
    x, y = roof.get_data()
    assert x[1] == pytest.approx(10) and list(y[1:]) == [1e11, 1e11] and y[0] == pytest.approx(1e10 * x[0])
    assert [(each.get_xdata()[0], each.get_ydata()[0]) for each in dots] == list(points.values())


def test_points_that_fall_together_have_names_apart():
    points = {"q kᵀ": (31.0, 9.0e10), "weights · v": (31.0, 8.9e10), "softmax": (0.6, 1e10)}
    figure = figures.roofline(points, peak=1e11, bandwidth=4e10, title="title", alt="alt").figure
    figure.canvas.draw()
    names = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    boxes = [names[name] for name in points]
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])


def test_tiles_show_what_is_done_at_hand_and_hidden():
    steps = [(0, 0), (1, 0), (1, 1)]
    axes = figures.tiles((2, 2), steps, ["one", "two", "three"], title="", alt="", hidden=[(0, 1)]).axes
    at_hand, done = plots.PALETTE[1].lower(), plots.PALETTE[0].lower()
    colors = [[to_hex(patch.get_facecolor()) for patch in each.patches] for each in axes]  # row after row
    assert [each.index(at_hand) for each in colors] == [0, 2, 3]
    assert [each.count(done) for each in colors] == [0, 1, 2]
    assert all(each[1] == "#ffffff" for each in colors)
    assert [each.get_xlabel() for each in axes] == ["one", "two", "three"]
