"""The figures of lesson 41."""

from matplotlib.colors import to_hex

from txcourse import figures
from txcourse.figures.rewards import LESS_LIKELY, LIKELIER


def test_answers_are_colored_by_what_becomes_of_them():
    picture = figures.pushed_answers(
        "1+1=", ["2 end", "3 end", "2 2"], [1, 0, "?"], [1.5, -0.5, 0], title="A title", push="advantage"
    )
    assert "2 end: reward 1, advantage 1.5, likelier; 3 end: reward 0, advantage -0.5, less likely" in picture.alt
    assert picture.alt.endswith("2 2: reward ?, advantage 0, unchanged.")
    (axes,) = picture.axes
    tints = [patch for patch in axes.patches if patch.get_alpha() and patch.get_alpha() < 1]
    assert [to_hex(patch.get_facecolor()).upper() for patch in tints] == [LIKELIER] * 2 + [LESS_LIKELY] * 2
    assert tints[0].get_alpha() > tints[2].get_alpha()
    assert {"1+1=", "▲ 1.5", "▼ −0.5", "advantage"} <= {text.get_text() for text in axes.texts}


def test_without_pushes_nothing_is_colored():
    picture = figures.pushed_answers("1+1=", ["2 end", "3"], [1, 0], title="A title")
    assert not [patch for patch in picture.axes[0].patches if (patch.get_alpha() or 1) < 1]
    assert picture.alt == "Answers to 1+1= – 2 end: reward 1; 3: reward 0."
