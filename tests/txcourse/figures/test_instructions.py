"""The figures of lesson 40."""

import pytest
from matplotlib.colors import to_hex

from txcourse import figures
from txcourse.figures.instructions import ROLES

TOKENS = ["Q:", "hi", "⏎", "A:", "ho", "⏎"]
WRITERS = ["template", "user", "template", "template", "assistant", "assistant"]


def colors(picture):
    edges = [patch for patch in picture.axes[0].patches if patch.get_edgecolor()[3]]
    return [to_hex(patch.get_edgecolor()).upper() for patch in edges]


def test_a_token_that_counts_is_below_the_one_that_predicts_it():
    labels = [-100, -100, -100, -100, 7, 8]
    picture = figures.conversation(TOKENS, {"reads": WRITERS}, {"writes": labels}, title="A title")
    assert picture.alt == ("A title. reads: (template) Q: (user) hi (template) ⏎ A: (assistant) ho ⏎; writes: ho ⏎.")
    assert colors(picture) == [ROLES[role].upper() for role in [*WRITERS, "assistant", "assistant"]]
    places = {}
    for text in picture.axes[0].texts:
        places.setdefault(text.get_text(), []).append(text.get_position())
    assert places["ho"][1][0] == places["A:"][0][0] and places["⏎"][2][0] == places["ho"][0][0]
    assert len(picture.axes[0].lines) == 4  # a dot where nothing counts


def test_two_opinions_on_who_writes_are_two_rows():
    picture = figures.conversation(TOKENS, {"is": ["user"] * 6, "looks": WRITERS}, title="A title")
    assert colors(picture) == [ROLES[role].upper() for role in ["user"] * 6 + WRITERS]
    assert picture.alt.startswith("A title. is: (user) Q: hi ⏎ A: ho ⏎; looks: (template) Q: (user) hi")
    with pytest.raises(ValueError):
        figures.conversation(TOKENS, {"is": WRITERS[:2]}, title="A title")


def test_an_adapter_is_drawn_to_scale():
    picture = figures.adapter(8, 6, 2, title="A title")
    assert [(patch.get_height(), patch.get_width()) for patch in picture.axes[0].patches] == [(8, 6), (8, 2), (2, 6)]
    assert picture.alt.endswith("plus B of 8 × 2 times A of 2 × 6: 48 frozen numbers and 28 trained ones.")


def test_what_is_forgotten_has_a_mark_for_each_seed_and_a_color_for_each_way():
    ways = {"base": [(2.5, 0.5)], "full": [(3.0, 0.6), (3.25, 0.7)], "LoRA, rank 1": [(2.75, 0.55)]}
    picture = figures.forgotten(ways, title="A title")
    chance, *marks = picture.axes[0].lines
    assert list(chance.get_ydata()) == [50, 50]
    assert [mark.get_marker() for mark in marks] == ["s", "o", "^"]
    assert list(marks[1].get_xdata()) == [3.0, 3.25] and list(marks[1].get_ydata()) == [60, 70]
    assert len({to_hex(mark.get_color()) for mark in marks}) == 3
    assert [text.get_text() for text in picture.axes[0].get_legend().get_texts()] == list(ways)
    assert "full: loss 3.00 to 3.25, 60 to 70%" in picture.alt
    many = {f"way {index}": [(3.0, 0.5)] for index in range(12)}
    assert len(figures.forgotten(many, title="A title").axes[0].lines) == 1 + 12
