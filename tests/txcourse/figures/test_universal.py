"""Figures of recurrence in depth draw what they were given."""

import pytest
import torch
from matplotlib.patches import FancyBboxPatch

from txcourse import figures


@pytest.mark.parametrize("steps", [2, 5])
def test_a_loop_is_drawn_unrolled_beside_the_stack(steps):
    (axes,) = figures.recurrence(steps).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("the block") == steps + 1
    assert [text for text in texts if text.startswith("block ")] == [f"block {step}" for step in range(1, steps + 1)]
    assert f"× {steps}" in texts and f"+ signal of step {steps}" in texts


def test_weights_are_laid_end_to_end_and_the_last_is_hatched():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])
    (axes,) = figures.halting(weights, ["one", "two"], title="A title").axes
    drawn = [(bar.get_x(), bar.get_width(), bool(bar.get_hatch())) for bar in axes.patches]
    assert drawn == [(0, 1, True), (0, 0.25, False), (0.25, 0.5, False), (0.75, 0.25, True)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]


STORIES = [["ann", "bob", "cy"], ["dee", "eve"]]


def test_a_story_goes_from_name_to_name_in_one_color():
    (axes,) = figures.chains(STORIES, title="A title").axes
    texts = [text.get_text() for text in axes.texts]
    assert [name for name in texts if name in sum(STORIES, [])] == ["ann", "bob", "cy", "dee", "eve"]
    colors = [patch.get_facecolor() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert len(set(colors[:3])) == len(set(colors[3:])) == 1 and colors[0] != colors[3]


def test_a_belief_has_the_color_of_the_story_whose_author_it_names():
    named = [["ann", "ann", "bob", "dee", "dee"], ["ann", "ann", "ann", "dee", "dee"]]
    (axes,) = figures.beliefs(named, STORIES, title="A title").axes
    colors = [bar.get_facecolor() for bar in axes.patches]  # line by line
    ann, nobody, dee = colors[0], colors[4], colors[6]
    assert colors == [ann] * 4 + [nobody, ann] + [dee] * 4 and len({ann, nobody, dee}) == 3


def test_a_bar_ends_each_line_and_what_follows_is_pale():
    named = [["ann", "ann", "bob", "dee", "dee"]] * 2
    (axes,) = figures.beliefs(named, STORIES, title="A title", taken=[1, 1, 2, 1, 2]).axes
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5, 1.5, 2.5, 1.5, 2.5]
    pale = [bar.get_alpha() < 1 for bar in axes.patches]
    assert pale == [False, True] * 2 + [False, False] + [False, True] + [False, False]


def test_right_answers_are_drawn_in_percent_next_to_guessing_from_depth_1_on():
    right = {"loop": [1.0, 0.5, 0.25], "stack": [1.0, 0.75, 0.0]}
    picture = figures.right_by_depth(right, [0.3, 0.4], trained=1, title="t")
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in picture.axes[0].lines]
    assert drawn[:3] == [([0, 1, 2], [100, 50, 25]), ([0, 1, 2], [100, 75, 0]), ([1, 2], [30, 40])]
    assert "stack: 75% at depth 1" in picture.alt


def test_a_table_of_depths_prints_percents():
    picture = figures.depth_table({"1": [1.0, 0.5], "2": [0.254, 0.0]}, ylabel="steps", title="t")
    assert [text.get_text() for text in picture.axes[0].texts] == ["100", "50", "25", "0"]
    assert "2: 25% at depth 0, 0% at depth 1" in picture.alt
