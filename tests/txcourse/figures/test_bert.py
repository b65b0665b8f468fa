"""The figures of lessons 14 and 15."""

import pytest
import torch

from txcourse import figures
from txlib.attention import causal, full


def arrows(axes):
    return sum(getattr(text, "arrow_patch", None) is not None for text in axes.texts)


def test_readers_draws_an_arrow_for_all_that_is_read():
    figure = figures.readers(words=3, title="A title", alt="A description")
    gpt, elmo, bert = figure.axes

    assert arrows(gpt) == 2 * 6  # two layers; word j reads the words up to j
    assert arrows(bert) == 2 * 9
    assert arrows(elmo) == 2 * 2 * (3 + 2) + 2  # two readers, two layers: up and along; and the two that are joined
    assert figure.alt == "A description"


def test_the_input_is_drawn_as_three_rows():
    (axes,) = figures.input_sum(["[CLS]", "dog", "[SEP]", "cat"], [0, 0, 0, 1], title="", alt="").axes
    texts = [text.get_text() for text in axes.texts]
    assert [text for text in texts if text in ("A", "B")] == ["A", "A", "A", "B"]
    assert [text for text in texts if text.isdigit()] == ["0", "1", "2", "3"]
    assert texts.count("+") == 2 * 4


def test_a_long_input_has_a_row_of_boxes_for_each_segment():
    (axes,) = figures.input_sum(["token"] * 20, [0] * 8 + [1] * 12, title="", alt="").axes
    drawn = [text for text in axes.texts if text.get_text() == "token" and text.get_ha() == "center"]
    heights = [text.get_position()[1] for text in drawn]
    assert len(set(heights[:8])) == len(set(heights[8:])) == 1 and heights[0] > heights[8]


def test_head_maps_has_a_row_per_layer():
    weights = torch.zeros(2, 3, 4, 4)
    weights[1, 0, 2, 3] = 1
    axes = figures.head_maps(weights, first=1, title="", alt="").axes
    assert [panel.get_ylabel() for panel in axes] == ["layer 1", "", "", "layer 2", "", ""]
    assert axes[3].images[0].get_array()[2, 3] == 1
    assert axes[3].images[0].get_clim() == (0, 1)


def test_pretraining_draws_the_mean_of_a_window():
    losses = torch.tensor([[8.0, 1.0], [6.0, 0.0], [4.0, 1.0]])
    tokens, sentence = figures.pretraining(losses, {"counts": 5.0, "a coin": 0.7}, window=2, title="", alt="").axes
    assert tokens.lines[0].get_ydata() == pytest.approx([7, 5])
    assert sentence.lines[0].get_xdata() == pytest.approx([2, 3])
    assert [text.get_text() for text in (*tokens.texts, *sentence.texts)] == ["counts", "a coin"]


@pytest.mark.parametrize("words", [2, 6])
def test_readers_fits_its_words(words):
    for axes in figures.readers(words=words, title="", alt="").axes:
        low, high = axes.get_xlim()
        assert all(low < circle.center[0] < high for circle in axes.patches)


def test_a_head_is_drawn_where_it_reads():
    tasks = {"tags": (["[CLS]", "Rome"], ["", "name"]), "label": (["[CLS]", "yes"], ["good", ""])}
    tags, label = figures.task_heads(tasks).axes
    assert arrows(tags) == arrows(label) == 2 + 2  # into the encoder; out of it, and out of the linear layer
    heights = {text.get_text(): text.get_position() for text in tags.texts}
    assert heights["name"][1] > heights["the pre-trained encoder"][1] > heights["Rome"][1]
    assert heights["name"][0] == heights["Rome"][0]


def test_three_architectures_read_as_their_masks_say():
    figure = figures.architectures(["a", "b"], ["c", "d", "e"])
    encoder, decoder, both = figure.axes
    assert arrows(encoder) == full().pairs(2)
    assert arrows(decoder) == causal().pairs(5)
    assert arrows(both) == full().pairs(2) + causal().pairs(3) + 3 * 2 + 3  # and cross-attention, and upwards
