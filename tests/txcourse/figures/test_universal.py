"""Figures of recurrence in depth draw what they were given."""

import pytest
import torch

from txcourse import figures


@pytest.mark.parametrize("steps", [2, 5])
def test_a_loop_is_drawn_unrolled_beside_the_stack(steps):
    (axes,) = figures.recurrence(steps, title="A title", alt="").axes
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("the block") == steps + 1
    assert [text for text in texts if text.startswith("block ")] == [f"block {step}" for step in range(1, steps + 1)]
    assert f"× {steps}" in texts and f"+ signal of step {steps}" in texts


def test_weights_are_laid_end_to_end_and_the_last_is_hatched():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])
    (axes,) = figures.halting(weights, ["one", "two"], title="A title", alt="").axes
    drawn = [(bar.get_x(), bar.get_width(), bool(bar.get_hatch())) for bar in axes.patches]
    assert drawn == [(0, 1, True), (0, 0.25, False), (0.25, 0.5, False), (0.75, 0.25, True)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]


def test_a_bar_stands_over_each_token():
    picture = figures.ponder([1, 3, 2], ["a", " ", "b"], title="A title", alt="A description")
    (axes,) = picture.axes
    assert [bar.get_height() for bar in axes.patches] == [1, 3, 2]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "▁", "b"]
    assert repr(picture) == "Picture: A description"
