"""Figures of learning draw what they were given."""

import pytest
import torch

from txcourse import figures


def test_each_path_has_a_panel_and_starts_where_it_starts():
    paths = {"one": [(1.0, 1.0), (-0.5, 0.9)], "other": [(1.0, 1.0), (0.9, 0.9), (0.8, 0.8)]}
    panels = figures.valley(paths, (25, 1), title="A title", alt="", first="a", second="b").axes
    assert [axes.get_title(loc="left") for axes in panels] == [*paths]
    for axes, points in zip(panels, paths.values(), strict=True):
        drawn = axes.lines[0].get_xydata().tolist()
        assert [tuple(point) for point in drawn] == points


def test_the_parts_of_a_stream_are_stacked():
    heights = {"embedding": [3.0, 2.0], "attention": [0.0, 1.5], "feed-forward": [0.0, 0.5]}
    left, right = figures.stream({"pre": heights, "post": heights}, title="A title", alt="").axes
    tops = [bar.get_y() + bar.get_height() for bar in left.patches]
    assert tops == pytest.approx([3, 2, 3, 3.5, 3, 4])
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("pre", "post")


def test_before_and_after_each_have_a_scale_of_their_own():
    tables = torch.full((3, 3), 0.02), torch.eye(3)
    picture = figures.before_and_after(*tables, names=["b", "a"], xlabel="x", ylabel="y", title="A title", alt="")
    left, right, *_ = picture.axes
    assert [axes.images[0].get_clim() for axes in (left, right)] == [pytest.approx((0, 0.02)), (0, 1)]
