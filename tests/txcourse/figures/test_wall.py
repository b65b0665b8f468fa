"""Figures of the quadratic wall draw areas to scale, and what each family computes."""

import pytest

from txcourse import figures


def test_areas_have_one_scale_and_the_right_size():
    picture = figures.areas((4, 8), 6, title="A title", alt="A description")
    drawn = [[(each.get_width(), each.get_height()) for each in axes.patches] for axes in picture.axes]
    assert drawn == [[(6, 4), (4, 4)], [(6, 8), (8, 8)]]
    assert picture.axes[0].get_xlim() == picture.axes[1].get_xlim()
    assert [text.get_text() for text in picture.axes[1].texts] == ["n × d\n48", "n × n\n64"]
    assert repr(picture) == "Picture: A description"


def test_each_family_leaves_most_of_the_square_out():
    families = figures.ways_round(title="A title", alt="").axes
    names = ["fixed patterns", "learnable patterns", "memory", "recurrence", "low rank", "kernels"]
    assert [axes.get_title(loc="left") for axes in families] == names
    for axes in families[:4]:
        background, computed = (0xEE / 255, 0xEE / 255, 0xEE / 255), axes.images[0].get_array()
        share = (computed != background).any(-1).mean()
        assert 0 < share < 0.5, axes.get_title(loc="left")
        assert computed.shape[0] == computed.shape[1]
    assert [[text.get_text() for text in axes.texts] for axes in families[4:]] == [["n × k"], ["n × r", "r × n"]]


@pytest.mark.parametrize("length", [1, 300])
def test_any_length_is_drawn(length):
    (axes,) = figures.areas((length,), 64, title="A title", alt="").axes
    assert axes.get_title(loc="left") == f"n = {length}, d = 64"
