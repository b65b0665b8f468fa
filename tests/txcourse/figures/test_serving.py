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


def test_a_token_attends_to_its_own_texts_slots_up_to_its_own():
    picture = figures.step_mask({"A": (0, 2), "B": (1, 1)}, title="A title")
    (axes,) = picture.axes
    pale = axes.patches[1].get_facecolor()  # A's first token must not see A's second
    seen = [cell.get_facecolor() != pale for cell in axes.patches]
    assert seen == [True, False, False, False, True, True, False, False, False, False, True, True]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A0", "A1", "B1"]
    assert picture.alt.endswith("A: 2 new after 0; B: 1 new after 1.")


def test_slots_of_a_block_are_filled_empty_or_free():
    picture = figures.pages({"now": [("A", 4), ("AB", 1), None]}, 4, title="A title")
    (axes,) = picture.axes
    assert [bool(cell.get_hatch()) for cell in axes.patches] == [False] * 5 + [True] * 3 + [False] * 4
    assert [text.get_text() for text in axes.texts] == ["A"] * 4 + ["AB"]
    assert picture.alt.endswith("now: block 0 A with 4 of 4, block 1 AB with 1 of 4, block 2 free.")


def test_a_table_whose_block_holds_another_texts_keys_is_marked():
    tables = {"B": [0, 2], "C": [1, 0]}
    picture = figures.block_tables({"now": (tables, ["C", "C", "B", ""])}, title="A title", wrong="wrong keys")
    texts = [text.get_text() for text in picture.axes[0].texts if text.get_text()]
    assert texts.count("wrong keys") == 1
    assert [text for text in texts if text.startswith("×")] == ["× 2", "× 1", "× 1", "× 0"]
    assert "B has 0, 2; C has 1, 0; block 0 holds C" in picture.alt and "block 3 holds nothing" in picture.alt


def test_each_number_of_rows_has_a_label():
    picture = figures.tradeoff({1: (120.0, 8.3), 30: (710.0, 17.4)}, title="A title")
    assert [text.get_text() for text in picture.axes[0].texts] == ["1 row", "30 rows"]
    assert picture.alt.endswith("1 rows 120 at 8.3 ms, 30 rows 710 at 17.4 ms.")
