"""Figures of learning draw what they were given."""

import pytest
import torch
from matplotlib.patches import Rectangle
from torch import nn

from txcourse import figures


def test_each_path_has_a_panel_and_starts_where_it_starts():
    paths = {"one": [(1.0, 1.0), (-0.5, 0.9)], "other": [(1.0, 1.0), (0.9, 0.9), (0.8, 0.8)]}
    panels = figures.valley(paths, (25, 1), title="A title", alt="", first="a", second="b").axes
    assert [axes.get_title(loc="left") for axes in panels] == [*paths]
    for axes, points in zip(panels, paths.values(), strict=True):
        drawn = axes.lines[0].get_xydata().tolist()
        assert [tuple(point) for point in drawn] == points


def test_the_parts_of_a_stream_are_stacked():
    parts = torch.tensor([[[3.0, 0], [0, 0], [0, 0]], [[0, 4], [0, -1], [3, 0]]])  # (step, part, dimension)
    left, right = figures.stream({"pre": parts, "post": parts}, parts=["a", "b", "c"], title="A title", alt="").axes
    tops = [bar.get_y() + bar.get_height() for bar in left.patches]
    whole = (9 + 9) ** 0.5
    assert tops == pytest.approx([3, 12 / whole, 3, 9 / whole, 3, whole])
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("pre", "post")


def test_before_and_after_each_have_a_scale_of_their_own():
    tables = torch.full((3, 3), 0.02), torch.eye(3)
    picture = figures.before_and_after(*tables, names=["b", "a"], xlabel="x", ylabel="y", title="A title", alt="")
    left, right, *_ = picture.axes
    assert [axes.images[0].get_clim() for axes in (left, right)] == [pytest.approx((0, 0.02)), (0, 1)]


def test_the_game_has_a_line_for_each_pair_of_words_and_marks_the_partners():
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    (axes,) = figures.guessing_game(["a", "b"], ["x", "y", "z"], weights, sentences=4, title="A title", alt="").axes
    looks = [line.get_linewidth() for line in axes.lines[::2]]  # every other one carries a value
    assert looks == pytest.approx((5 * weights).flatten().tolist())
    tiles = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    marked = [number for number, tile in enumerate(tiles) if tile.get_facecolor() == tiles[0].get_facecolor()]
    assert (len(tiles), marked) == (16, [0, 5, 10, 15])


def test_a_landscape_is_the_loss_around_weights_that_stay():
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    asked = []

    def loss(model):
        asked.append(model.weight.clone())
        return (model.weight - before).square().sum()

    figures.loss_landscapes({"one": model}, loss, title="A title", alt="", points=3)
    assert torch.equal(model.weight, before)
    assert len(asked) == 9
    torch.testing.assert_close(asked[4], before)  # the middle
    moved = (asked[5] - before).norm(dim=1)  # by 1 along the first direction
    torch.testing.assert_close(moved, before.norm(dim=1))


def test_training_has_a_column_for_each_setting_and_a_row_for_each_quantity():
    run = {"loss": [3.0, 2.0], "apart": [0.5, 0.1]}
    rows = {"loss": "loss (nats)", "apart": "fraction"}
    picture = figures.training(
        {"slow": [run], "fast": [run, run]}, rows=rows, log=["apart"], window=50, title="A title", alt=""
    )
    slow_loss, fast_loss, slow_apart, fast_apart = picture.axes
    assert [len(axes.lines) for axes in picture.axes] == [1, 2, 1, 2]
    assert (slow_loss.get_title(loc="left"), fast_loss.get_title(loc="left")) == ("slow", "fast")
    assert slow_apart.lines[0].get_xydata().tolist() == [[50, 0.5], [100, 0.1]]
    assert (slow_loss.get_yscale(), fast_apart.get_yscale()) == ("linear", "log")


def test_weights_by_distance_are_means_over_queries_that_have_so_many_keys_before_them():
    looks_back = torch.diag(torch.ones(3), -1)  # each query but the first has all its weight one key back
    picture = figures.weight_by_distance({"back": looks_back.expand(2, 1, 4, 4)}, title="A title", alt="", far=2)
    axes = picture.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "-1", "-2"]
    assert axes.images[0].get_array().tolist() == [[0, 1, 0]]


def test_an_ablation_takes_the_better_rate_and_draws_levels_dashed():
    losses = {"whole": {"0.1": [[3.0, 2.0], [3.0, 1.0]], "0.2": [[3.0, 2.5]]}, "part": {"0.1": [[3.0, 3.0]]}}
    colors = {"whole": "#0072B2", "part": "#D55E00"}
    picture = figures.ablation(losses, {"guess": 2.8}, window=50, colors=colors, title="A title")
    drawn = {line.get_label(): line.get_xydata().tolist() for line in picture.axes[0].lines}
    assert drawn["whole, 0.1"] == [[50, 3.0], [100, 1.5]]
    assert drawn["guess"] == [[50, 2.8], [100, 2.8]]
    assert "0.2" not in picture.alt and "whole, 0.1 1.50" in picture.alt
