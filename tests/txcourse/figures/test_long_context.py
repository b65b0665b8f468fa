"""Figures of long texts draw what was measured."""

import torch

from txcourse import figures


def test_each_method_has_a_point_for_each_pair():
    picture = figures.slower_pairs({"as it is": [1.0] * 4, "YaRN": [1.0, 2.0, 4.0, 4.0]}, title="t")
    assert [list(line.get_ydata()) for line in picture.axes[0].lines] == [[1] * 4, [1, 2, 4, 4]]
    assert "YaRN: 1.0, 2.0, 4.0 and 4.0" in picture.alt


def test_a_point_is_the_mean_of_the_positions_up_to_it():
    loss = torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0, 11.0])
    picture = figures.loss_along({"as it is": loss}, 4, window=4, title="t")
    line = picture.axes[0].lines[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([4, 6], [4, 8])
    assert picture.alt.endswith("as it is: 4.0 up to the line, 8.0 at the end")


def test_needles_are_averaged_over_the_models():
    hits = {"YaRN": torch.tensor([[[1.0, 0.5]], [[0.5, 0.0]]])}  # (seed, depth, length)
    picture = figures.needles(hits, ["start"], [64, 128], title="t")
    assert [text.get_text() for text in picture.axes[0].texts] == [".75", ".25"]
    assert picture.alt.endswith("YaRN: 75% at 64 tokens, 25% at 128")
