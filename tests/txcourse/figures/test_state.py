"""A state is drawn with what is written and read; a text, with its chunks."""

import torch

from txcourse import figures


def test_each_access_shows_its_key_its_value_and_the_state_after_it():
    key, value = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 2.5])
    state = torch.outer(key, value)
    row = [
        figures.Touch("arrives", key, value, state),
        figures.Touch("where?", key, 7 * value, state, reads=True),
    ]
    drawn = figures.state_steps({"sum": row, "gate": row}, title="A title", alt="A description")
    assert drawn.alt == "A description" and len(drawn.axes) == 4
    for axes, (name, access, first) in zip(
        drawn.axes, [("arrives", "write", "3"), ("where?", "read", "21")] * 2, strict=True
    ):
        texts = [text.get_text() for text in axes.texts]
        assert axes.get_title() == name and access in texts and first in texts and texts.count("0") == 3
    assert "gate" in [text.get_text() for text in drawn.axes[2].texts]


def test_pairs_of_a_chunk_and_what_is_older_cover_the_triangle():
    (axes,) = figures.chunks(12, 4, title="A title", alt="A description").axes
    *drawn, outline = axes.patches
    assert sum(patch.get_width() * patch.get_height() for patch in drawn) == 12 * 13 / 2
    assert outline.get_width() == 12
    assert [text.get_text() for text in axes.texts].count("through S") == 2
