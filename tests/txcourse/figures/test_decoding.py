"""The figures of lesson 13."""

import pytest
from matplotlib.colors import same_color

from txcourse import figures
from txcourse.figures.decoding import LOOKS


def test_a_token_is_drawn_as_its_kind():
    rows = {"step 1": [("a", "computed")], "step 2": [("a", "reused"), ("b", "computed"), None]}
    kinds = {"computed": "new", "reused": "old"}
    figure = figures.token_grid(rows, kinds, title="A title", alt="A description")
    (axes,) = figure.axes
    colors = [LOOKS[kind]["facecolor"] for kind in ("computed", "reused", "computed")]
    assert len(axes.patches) == 3
    assert all(same_color(box.get_facecolor(), color) for box, color in zip(axes.patches, colors, strict=True))
    assert [text.get_text() for text in axes.texts] == ["a", "a", "b"]
    assert [text.get_text() for text in figure.figure.legends[0].get_texts()] == ["new", "old"]
    assert figure.alt == "A description"


def test_a_kind_without_a_meaning_is_named():
    with pytest.raises(ValueError, match=r"cells of the kind 'kept': kinds explains computed; known: computed, reused"):
        figures.token_grid({"": [("a", "kept")]}, {"computed": "new"}, title="", alt="")


def test_overlap_says_what_is_too_much_and_what_is_missing():
    (axes,) = figures.overlap({"a": 0.6, "b": 0.4}, {"a": 0.25, "b": 0.75}, title="", alt="").axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([0.25, 0.35, 0.4, 0.35])  # shared, too much, shared, missing
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["0.25", "0.35 too much", "0.40", "0.35 missing"]


def kinds_of(picture):
    """The kind of each box, by its looks."""
    return [
        next(
            kind
            for kind, look in LOOKS.items()
            if same_color(look["facecolor"], box.get_facecolor()) and look.get("hatch") == box.get_hatch()
        )
        for box in picture.axes[0].patches
    ]


def test_padding_stands_between_a_prompt_and_its_next_token_only_on_the_right():
    picture = figures.padding_sides("a", "b c", title="", alt="")
    right, left = ["reused", "padding", "kept"], ["padding", "reused", "kept"]
    long = ["reused", "reused", "kept"]
    assert kinds_of(picture) == right + long + left + long


def test_after_a_refusal_the_other_guesses_are_thrown_away():
    picture = figures.checked_guesses(["a", "b", "c"], [["a", "x"], ["a", "b", "c", "x"]], title="", alt="")
    assert [text.get_text() for text in picture.axes[0].texts] == ["a", "b", "x", "c", "a", "b", "c", "x"]
    first, second = ["kept", "refused", "computed", "dropped"], ["kept", "kept", "kept", "computed"]
    assert kinds_of(picture) == first + second


def test_fewer_bits_go_to_the_right():
    picture = figures.fewer_bits([8, 4], {"per row": [20.0, 30.0]}, 19.0, title="t")
    (axes,) = picture.axes
    assert axes.get_xlim()[0] > axes.get_xlim()[1]
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[20, 30], [19, 19]]
    assert picture.alt.endswith("Unrounded: 19. per row: 20 with 8, 30 with 4.")


def test_each_cached_step_computes_its_last_word():
    (axes,) = figures.cached_steps("Alice was not", title="t").axes
    assert [text.get_text() for text in axes.texts] == ["Alice", "Alice", "was", "Alice", "was", "not"]
    computed = [same_color(patch.get_facecolor(), LOOKS["computed"]["facecolor"]) for patch in axes.patches]
    assert computed == [True, False, True, False, False, True]
