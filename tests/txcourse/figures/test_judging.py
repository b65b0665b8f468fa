"""Answers are drawn with their colors, and next to them what a rule takes."""

from matplotlib.colors import to_rgb

from txcourse import figures
from txlib.plots.picture import PALETTE


def test_right_answers_have_another_color_and_each_rule_a_column():
    tasks = {"1+1": ("2", ["2", "3", "2"]), "2+2": ("4", ["5", "5", "4"])}
    taken = {"majority": ["2", "5"], "check": ["2", ""]}
    drawn = figures.drawn_answers(tasks, taken, title="A title", alt="A description")
    (axes,) = drawn.axes
    colors = [patch.get_facecolor()[:3] for patch in axes.patches]
    right = [to_rgb(PALETTE[0]) == color for color in colors]
    assert drawn.alt == "A description"
    assert right == [True, False, True, True, True, False, False, True, False]
    texts = [text.get_text() for text in axes.texts]
    assert {"1+1", "2+2", "majority", "check", "3 answers", "none"} <= set(texts) and texts.count("5") == 3
