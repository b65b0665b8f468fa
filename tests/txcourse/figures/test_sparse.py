"""Patterns as squares and graphs, and the answers of readers."""

import torch

from txcourse import figures
from txcourse.figures.low_rank import random_feature_errors
from txlib.attention import Mask, causal, global_tokens, sliding_window


def test_a_graph_has_a_chord_for_each_pair():
    (window, both) = figures.circle(
        {"window": {"window": sliding_window(1)}, "both": {"window": sliding_window(1), "global": global_tokens([0])}},
        8,
        title="t",
        alt="a",
    ).axes
    assert len(window.lines) == sliding_window(1).pairs(8) + 1  # and the dots
    assert len(both.lines) == sliding_window(1).pairs(8) + global_tokens([0]).pairs(8) + 1
    assert window.lines[1].get_color() == both.lines[1].get_color()


def test_a_cone_is_what_the_product_of_masks_says():
    (axes,) = figures.cone({"window": [sliding_window(1)] * 2}, 9, 4, title="t", alt="a").axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    at_inputs = {line.get_xdata()[0] for line in dots if line.get_ydata()[0] == 0 and line.get_zorder() == 3}
    assert at_inputs == set(range(9))
    colors = {line.get_xdata()[0]: line.get_color() for line in dots if line.get_ydata()[0] == 0}
    lit = {x for x, color in colors.items() if color == colors[4]}
    assert lit == {2, 3, 4, 5, 6}


def test_the_squares_of_three_papers_are_drawn():
    anywhere = Mask(lambda query, key: query + key >= 0)
    parts = {"random": anywhere, "window": sliding_window(1), "global": global_tokens([0])}
    near = {"near": causal() & sliding_window(2), "far": causal()}
    assert len(figures.big_bird(parts).axes) == 4
    assert len(figures.causal_forms(causal(), near["near"], near, near).axes) == 4
    dilated = figures.longformer(sliding_window, lambda radius, gap: sliding_window(radius * gap), global_tokens_at)
    assert len(dilated.axes) == 4


def global_tokens_at(*positions):
    return global_tokens(positions)


def test_answers_have_a_line_per_seed_and_their_means_in_words():
    picture = figures.by_distance({"window": [[100.0] * 8, [50.0] * 8]}, title="t")
    assert "window: 75% at 0–3" in picture.alt
    runs = {"dense": {"8": {"0": 1.0, "1": 0.5}, "64": {"0": 0.5, "1": 0.3}}}
    picture = figures.remembered(runs, (8, 64), xlabel="guests", title="t")
    assert "dense: 75% at 8, 40% at 64" in picture.alt
    assert "orthogonal from 0.50 to 0.25" in random_feature_errors([8, 32], {"orthogonal": [[0.5, 0.25]]}).alt


def test_errors_of_heads_are_written_into_their_squares():
    (axes,) = figures.errors_of_heads({"means": torch.tensor([[0.25, 2.0]])}, title="t").axes
    assert {"0.25", "> 1.5"} == {text.get_text() for text in axes.texts}
