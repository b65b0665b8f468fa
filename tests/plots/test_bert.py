"""The figures of lesson 11."""

import pytest
import torch

from txlib import plots


def test_readers_draws_an_arrow_for_all_that_is_read():
    figure = plots.readers(words=3, title="A title", alt="A description")
    gpt, elmo, bert = figure.axes

    def arrows(axes):
        return sum(text.arrow_patch is not None for text in axes.texts if hasattr(text, "arrow_patch"))

    assert arrows(gpt) == 2 * 6  # two layers; word j reads the words up to j
    assert arrows(bert) == 2 * 9
    assert arrows(elmo) == 2 * 2 * (3 + 2) + 2  # two readers, two layers: up and along; and the two that are joined
    assert figure.alt == "A description"


def test_the_input_is_drawn_as_three_rows():
    (axes,) = plots.input_sum(["[CLS]", "dog", "[SEP]", "cat"], [0, 0, 0, 1], title="", alt="").axes
    texts = [text.get_text() for text in axes.texts]
    assert [text for text in texts if text in ("A", "B")] == ["A", "A", "A", "B"]
    assert [text for text in texts if text.isdigit()] == ["0", "1", "2", "3"]
    assert texts.count("+") == 2 * 4


def test_a_long_input_has_a_row_of_boxes_for_each_segment():
    (axes,) = plots.input_sum(["token"] * 20, [0] * 8 + [1] * 12, title="", alt="").axes
    drawn = [text for text in axes.texts if text.get_text() == "token" and text.get_ha() == "center"]
    heights = [text.get_position()[1] for text in drawn]
    assert len(set(heights[:8])) == len(set(heights[8:])) == 1 and heights[0] > heights[8]


def test_head_kinds_circles_the_strongest_head():
    values = torch.zeros(2, 3)
    values[1, 2] = 0.5
    (axes,) = plots.head_kinds({"next": values}, title="", alt="").axes
    (circle,) = axes.patches
    assert circle.center == (2, 1)
    assert axes.images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]


@pytest.mark.parametrize("words", [2, 6])
def test_readers_fits_its_words(words):
    for axes in plots.readers(words=words, title="", alt="").axes:
        low, high = axes.get_xlim()
        assert all(low < circle.center[0] < high for circle in axes.patches)
