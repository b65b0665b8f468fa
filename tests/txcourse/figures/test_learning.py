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
        {"slow": [run], "fast": [run, run]}, rows=rows, log=["apart"], window=50, title="A title"
    )
    slow_loss, fast_loss, slow_apart, fast_apart = picture.axes
    assert [len(axes.lines) for axes in picture.axes] == [1, 2, 1, 2]
    assert (slow_loss.get_title(loc="left"), fast_loss.get_title(loc="left")) == ("slow", "fast")
    assert slow_apart.lines[0].get_xydata().tolist() == [[50, 0.5], [100, 0.1]]
    assert (slow_loss.get_yscale(), fast_apart.get_yscale()) == ("linear", "log")
    levels = {"loss": {"chance": 2.5}}
    picture = figures.training({"slow\nrate 1": [run]}, rows=rows, levels=levels, window=50, title="A title")
    assert picture.alt.endswith("At the end: slow rate 1: loss (nats) 2; fraction 0.1.")
    assert set(picture.axes[0].lines[1].get_ydata()) == {2.5} and len(picture.axes[1].lines) == 1


def test_weights_by_distance_are_means_over_queries_that_have_so_many_keys_before_them():
    looks_back = torch.diag(torch.ones(3), -1)  # each query but the first has all its weight one key back
    picture = figures.weight_by_distance({"back": looks_back.expand(2, 1, 4, 4)}, title="A title", alt="", far=2)
    axes = picture.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "-1", "-2"]
    assert axes.images[0].get_array().tolist() == [[0, 1, 0]]


def test_seeds_are_a_dot_at_their_mean_and_a_line_from_the_least_to_the_greatest():
    picture = figures.seeds({"one": [2.0, 1.0, 3.0]}, title="A title", xlabel="loss")
    line, dot = picture.axes[0].lines
    assert (list(line.get_xdata()), list(dot.get_xdata())) == ([1.0, 3.0], [2.0])
    assert picture.alt == "Losses. one: 2.00, from 1.00 to 3.00."


def test_an_ellipse_has_the_singular_values_as_axes():
    matrix = torch.tensor([[0.0, 2.0], [0.5, 0.0]])  # 2 along the first axis, 0.5 along the second
    before, after = figures.ellipses({"before": matrix, "after": matrix / 2}, title="A title").axes
    assert [text.get_text() for text in before.texts if text.get_text()] == ["2.00", "0.50"]
    assert [text.get_text() for text in after.texts if text.get_text()] == ["1.00", "0.25"]
    reached = before.lines[1].get_xydata().max(axis=0)
    assert reached.tolist() == pytest.approx([2, 0.5], rel=1e-2)


def test_dials_have_a_row_for_each_two_positions_and_mark_their_score():
    arrows = torch.tensor([[1.0, 0], [0, 2]])  # two pairs
    turned = {"first": (arrows, arrows), "second": (arrows, -arrows)}
    picture = figures.dials(turned, (range(-2, 3), [0.0, 1.0, 2.0, 3.0, 4.0]), distance=-1, title="A title", alt="")
    first, second, curve = picture.axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["first", "second"]
    assert [patch.get_radius() for patch in first.patches] == [0.5, 1, 0.5, 1]  # of query, then key
    assert curve.lines[1].get_xydata().tolist() == [[-1, 1]]


def test_the_reader_has_four_doors():
    picture = figures.reader()
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert all(door in texts and door in picture.alt for door in ("add", "turn", "bias", "side"))


def test_sinusoids_stand_next_to_the_products_of_their_rows():
    rows = torch.eye(3, 4)
    table, products, *_ = figures.sinusoids(rows).axes
    assert torch.equal(torch.tensor(table.images[0].get_array().tolist()), rows)
    assert torch.equal(torch.tensor(products.images[0].get_array().tolist()), torch.eye(3))


def test_beyond_the_trained_length_each_reader_has_a_line_in_the_panel_of_its_group():
    groups = {"positions": {"table": torch.tensor([2.0, 3.0])}, "distances": {"a": torch.ones(2), "b": torch.ones(2)}}
    picture = figures.beyond(groups, trained=8, level=2.5, title="A title")
    left, right = picture.axes
    assert left.lines[-1].get_xydata().tolist() == [[4, 2], [12, 3]]
    assert [text.get_text() for text in right.texts] == ["a", "b"]
    assert right.texts[1].get_position()[1] > right.texts[0].get_position()[1]  # equal ends, labels apart
    assert picture.alt.endswith("table 3.00 and 3.00; a 1.00 and 1.00; b 1.00 and 1.00.")


def test_seeds_by_rate_have_a_row_for_each_model_and_a_dot_for_each_rate():
    losses = {"one": {"0.1": [1.0, 3.0], "1": [2.0, 2.0]}, "two": {"0.1": [4.0, 4.0], "1": [5.0, 5.0]}}
    picture = figures.seeds_by_rate(losses, levels={"table": 2.5}, title="A title", xlabel="loss")
    (axes,) = picture.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"] == [2, 2, 4, 5]
    assert picture.alt.startswith("Losses (mean, least to greatest). one, rate 0.1: 2.00, 1.00 to 3.00.")
