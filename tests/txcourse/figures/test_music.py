"""The figures of lesson 22 draw what was measured."""

import pytest
import torch

from txcourse import figures
from txlib.music import Piece

DUET = Piece.of([[(72, 4)] * 2, [(67, 8)], [(60, 8)], [(48, 2)] * 4])  # eight steps, four voices


def test_a_lag_is_counted_in_bars():
    picture = figures.lag_curve([16, 24, 32], [14.0, 13.0, 17.5], title="t")
    assert list(picture.axes[0].lines[0].get_xdata()) == [1, 1.5, 2]
    assert "14.0 at 1, 17.5 at 2 bars" in picture.alt


@pytest.mark.parametrize("keys", [3, 5])
def test_skewed_scores_have_their_distance_from_the_key(keys):
    """The number 10 · query + distance is under the key that is so far before the query."""
    last = figures.skewing(3, keys, title="t").axes[-1]
    numbers = [int(text.get_text()) for text in last.texts]
    for query in range(3):
        for key in range(keys - 3 + query + 1):
            assert numbers[query * keys + key] == 10 * (query + 1) + keys - 3 + query - key


def test_distances_are_doublings_of_the_even_weight():
    picture = figures.preferred_distances(torch.tensor([[1.0, 2.0, 16.0]]), ["head"], title="t", farthest=3)
    assert picture.axes[0].images[0].get_array().tolist() == [[0, 0, 1, 3]]
    assert "head: most at 3, 16.0 times" in picture.alt


def test_each_seed_has_a_line():
    runs = {"0": {"by bar": [1.0, 0.5]}, "1": {"by bar": [2.0, 0.5]}}
    picture = figures.loss_by_bar({"rotary": runs}, 1, title="t")
    assert [list(line.get_ydata()) for line in picture.axes[0].lines[:2]] == [[1, 0.5], [2, 0.5]]
    assert "rotary: 1.50 in bar 1, 0.50 in bar 2" in picture.alt
    shifted = figures.by_shift({"as written": {"0": {"by shift": {"-1": 1.0, "0": 0.5}}}}, 2.0, title="t")
    assert list(shifted.axes[0].lines[0].get_ydata()) == [2, 1]
    faster = figures.faster_tables({"numbers": {"1": {"0": 1.0, "1": 2.0}, "4": {"0": 0.5, "1": 0.7}}}, 2.0, title="t")
    assert [list(line.get_ydata()) for line in faster.axes[0].lines[:2]] == [[2, 1], [4, 1.4]]
