"""The drawing of a recurrent translator, and the graphs of who reaches whom."""

import pytest
import torch
from matplotlib.patches import FancyBboxPatch

from txcourse import figures
from txcourse.figures.recurrent import CONTEXT
from txlib.plots.picture import PALETTE

SOURCE, TARGET = ["ein", "Hund", "bellt"], ["a", "dog", "barks", "."]


def labels(axes):
    return [text.get_text() for text in axes.texts]


def arrows(axes, color=None):
    """Those of a color, or all, as (start, end)."""
    found = [text for text in axes.texts if getattr(text, "arrowprops", None)]
    return [(text.xyann, text.xy) for text in found if color in (None, text.arrowprops["color"])]


def test_one_vector_goes_from_the_last_state_to_every_step():
    (axes,) = figures.recurrent_translator(SOURCE, TARGET, title="t", alt="a").axes
    assert {*SOURCE, *TARGET, "$c$", "$h_{3}$", "$s_0$", "$s_{4}$"} <= set(labels(axes))
    (last, _), *given = arrows(axes, CONTEXT)
    states = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    middles = [patch.get_x() + patch.get_width() / 2 for patch in states if patch.get_y() < 1]
    assert last[0] == pytest.approx(max(middles))
    assert len({end[0] for _, end in given}) == len(given) == 1 + len(TARGET)  # s_0 too


def test_a_mixture_is_drawn_as_thick_as_its_weights():
    weights = torch.tensor([0.1, 0.7, 0.2])
    (axes,) = figures.recurrent_translator(SOURCE, TARGET, weights=weights, step=1, title="t", alt="a").axes
    widths = [line.get_linewidth() for line in axes.lines]
    assert sorted(range(3), key=widths.__getitem__) == [0, 2, 1]
    assert {"$c_{2}$", "0.10", "0.70", "0.20"} <= set(labels(axes))
    ((start, end),) = arrows(axes, CONTEXT)  # to the one step that asked
    assert start[0] == end[0] and "$c$" not in labels(axes)
    ((asks, answered),) = arrows(axes, PALETTE[1])  # the state before it
    assert asks[0] < answered[0] < start[0]


def test_only_the_encoder_with_attention_reads_in_both_directions():
    plain = figures.recurrent_translator(SOURCE, TARGET, title="t", alt="a").axes[0]
    attending = figures.recurrent_translator(SOURCE, TARGET, weights=torch.ones(3) / 3, title="t", alt="a").axes[0]

    def backwards(axes):
        return sum(end[0] < start[0] and end[1] < 1 for start, end in arrows(axes))

    assert (backwards(plain), backwards(attending)) == (0, len(SOURCE) - 1)


def test_what_the_last_place_depends_on_is_colored():
    window = {(1, i): [(0, j) for j in (i - 1, i) if j >= 0] for i in range(4)}
    chain = {(t + 1, t): [(0, t)] + [(t, t - 1)] * (t > 0) for t in range(4)}
    picture = figures.reach({"window": window, "chain": chain}, list("abcd"), pair="ad", title="t", alt="a")
    for axes, lit in zip(picture.axes, (3, 8), strict=True):
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert sum(dot.get_color() == PALETTE[1] for dot in dots) == lit
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["window", "chain"]
    weights = [label.get_fontweight() for label in picture.axes[0].get_xticklabels()]
    assert weights == ["bold", "normal", "normal", "bold"]
    assert picture.axes[0].get_ylim()[1] > 4  # one scale: the window's one step beside the chain's four


def test_gradients_of_trained_nets_are_dashed():
    picture = figures.gradients_back({"new": [0.0, -3.0]}, {"trained": [0.0, -0.5]}, title="t")
    (axes,) = picture.axes
    values = {line.get_linestyle(): line.get_ydata()[-1] for line in axes.lines}
    assert values == {"-": pytest.approx(1e-3), "--": pytest.approx(10**-0.5)}
    assert picture.alt.endswith("new 1e-03, trained 3e-01.")
