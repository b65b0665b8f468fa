"""The figures of lesson 44."""

from txcourse import figures


def test_batches_say_how_much_is_idle():
    ways = {"static": [(0, 0, 2), (1, 0, 5), (0, 5, 3)], "continuous": [(0, 0, 2), (1, 0, 5), (0, 2, 3)]}
    picture = figures.batches(ways, title="A title", names="ABC")
    assert "static, 8 steps, 38% of the cells idle" in picture.alt
    assert "continuous, 5 steps, 0% of the cells idle" in picture.alt
    first, second = picture.axes
    assert len(first.patches) == len(second.patches) == 4  # what is idle, and three texts on it
    assert [text.get_text() for text in first.texts] == ["A", "B", "C"]


def test_slots_of_a_block_are_filled_empty_or_free():
    picture = figures.pages({"now": [("A", 4), ("AB", 1), None]}, 4, title="A title")
    (axes,) = picture.axes
    assert [bool(cell.get_hatch()) for cell in axes.patches] == [False] * 5 + [True] * 3 + [False] * 4
    assert [text.get_text() for text in axes.texts] == ["A"] * 4 + ["AB"]
    assert picture.alt.endswith("now: block 0 A with 4 of 4, block 1 AB with 1 of 4, block 2 free.")
