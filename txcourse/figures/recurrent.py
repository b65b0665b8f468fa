"""Recurrent translators, with one context vector or with attention, and how far nets reach in how many steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from txcourse.figures.shapes import arrow, box
from txlib.plots.charts import lines
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, fit, headline, ink, panels

STATE, CONTEXT, DECODER = PALETTE[5], PALETTE[3], "#a9d8c8"
BESIDE = 1.3  # from one word to the next, in inches
ENCODER_ROW, CONTEXT_ROW, DECODER_ROW = 0.7, 1.85, 3.0  # heights of the rows; the words stand below and above
WIDTH, HEIGHT = 0.62, 0.3  # of a state's box

Node = tuple[int, int]
"""What a net computes: (how many steps it must wait for, position); at step 0 stand the words."""


def recurrent_translator(
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str,
    alt: str,
    weights: Float[Tensor, " source"] | None = None,
    step: int = 0,
) -> Picture:
    """An encoder that reads below, a decoder that writes above, and what passes between them.

    Args:
        source, target: the words.
        weights: of the encoder's states when word `step` of the target is written (Bahdanau et al. 2015, figure 1); the
            decoder's state before it asks; the encoder reads in both directions. None: it reads from the left, and its
            last state is the one vector for all words of the target.
        step: the word that the weights belong to, from 0.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    across = BESIDE * max(len(source), len(target))
    places = [BESIDE * number + (across - BESIDE * len(source)) / 2 for number in range(len(source))]
    with drawing():
        figure, (axes,) = panels(width=across + 1.1, height=4.6)
        axes.set(xlim=(-BESIDE - 0.4, across - BESIDE / 2 + 0.1), ylim=(-0.2, 4.1), aspect="equal")
        axes.axis("off")
        for number, (x, word) in enumerate(zip(places, source, strict=True), start=1):
            axes.text(x, 0, word, ha="center", va="center", style="italic")
            arrow(axes, (x, 0.15), (x, ENCODER_ROW - 0.2), head=9)
            box(axes, x, ENCODER_ROW, WIDTH, HEIGHT, f"$h_{{{number}}}$", STATE)
            if number > 1:
                _between(axes, x, ENCODER_ROW, both=weights is not None)
        box(axes, -BESIDE, DECODER_ROW, WIDTH, HEIGHT, "$s_0$", DECODER)
        for number, word in enumerate(target, start=1):
            x = BESIDE * (number - 1)
            asked = weights is None or number == step + 1
            axes.text(x, 3.75, word, ha="center", va="center", style="italic", color="black" if asked else GRAY)
            arrow(axes, (x, DECODER_ROW + 0.2), (x, 3.6), head=9)
            box(axes, x, DECODER_ROW, WIDTH, HEIGHT, f"$s_{{{number}}}$", DECODER)
            _between(axes, x, DECODER_ROW)
            if number > 1:
                arrow(axes, (x - BESIDE + 0.15, 3.6), (x - 0.32, DECODER_ROW + 0.2), "#bdbdbd", width=1, head=8)
        if weights is None:
            _one_vector(axes, places, [BESIDE * number for number in range(-1, len(target))])
        else:
            _mixture(axes, places, weights, BESIDE * step, step + 1)
        headline(figure, title)
        return Picture(figure, alt)


def reach(
    nets: Mapping[str, Mapping[Node, Sequence[Node]]],
    words: Sequence[str],
    *,
    title: str,
    alt: str,
    pair: Sequence[str] = (),
    position: int | None = None,
    ylabel: str = "step",
) -> Picture:
    """Nets as graphs, side by side: how high a node stands says how many steps have to wait for one another.

    What the highest node of a position depends on is colored: of the last position unless given.

    Args:
        nets: name → node → the nodes that it is computed from; see `Node`.
        words: what stands at step 0. pair: those of them that are printed in bold.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    steps = max(height for net in nets.values() for height, _ in net)
    with drawing():
        down, across, size = fit(len(nets), len(words), 0.3, smallest=0.2, margin=0.6, gap=0.25)
        width, height = 0.6 + across * (0.25 + size * len(words)), 0.4 + down * (1.3 + 0.28 * steps)
        figure, all_axes = panels(len(nets), width=width, height=height, columns=across, sharey=True)
        for number, (axes, (name, net)) in enumerate(zip(all_axes, nets.items(), strict=True)):
            top = max(node for node in net if node[1] == (len(words) - 1 if position is None else position))
            lit = _depends_on(net, top)
            for node, inputs in net.items():
                for other in inputs:
                    on = node in lit
                    style: dict[str, Any] = {"color": PALETTE[1] if on else "#d0d0d0", "zorder": 2 if on else 1}
                    axes.plot([other[1], node[1]], [other[0], node[0]], linewidth=1.6 if on else 0.8, **style)
            for height, place in [*net, *((0, place) for place in range(len(words)))]:
                on = (height, place) in lit
                axes.plot(place, height, "o", color=PALETTE[1] if on else "#b0b0b0", markersize=6, zorder=3)
            axes.set_xticks(range(len(words)), words, rotation=90 if max(map(len, words)) > 2 else 0)
            for label, word in zip(axes.get_xticklabels(), words, strict=True):
                label.set_fontweight("bold" if word in pair else "normal")
            axes.set_yticks(range(steps + 1))
            axes.set(ylim=(-0.5, steps + 0.5), ylabel="" if number % across else ylabel)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(name, fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)


def four_readers(n: int) -> dict[str, dict[Node, list[Node]]]:
    """The graphs of four nets that read n words, each only the past: see `reach`."""

    def convolution(width: int, gaps: Sequence[int]) -> dict[Node, list[Node]]:
        return {
            (layer, i): [(layer - 1, i - k * gap) for k in range(width) if i - k * gap >= 0]
            for layer, gap in enumerate(gaps, start=1)
            for i in range(n)
        }

    return {
        "recurrent": {(t + 1, t): [(0, t)] + [(t, t - 1)] * (t > 0) for t in range(n)},
        "convolution, width 3": convolution(3, [1, 1, 1, 1]),
        "dilated 1, 2, 4, width 3": convolution(3, [1, 2, 4]),
        "attention": {(1, i): [(0, j) for j in range(i + 1)] for i in range(n)},
    }


def gradients_back(
    new: Mapping[str, Sequence[float]], trained: Mapping[str, Sequence[float]], *, title: str
) -> Picture:
    """The size of a gradient by its distance from the end, on a logarithmic axis; that of trained nets is dashed.

    Args:
        new, trained: name → log10 of the gradient at each distance from 0, relative to that at the end.
        title: what to see.
    """
    sizes = {name: [10**size for size in powers] for name, powers in {**new, **trained}.items()}
    return lines(
        {name: (range(len(values)), values) for name, values in sizes.items()},
        yscale="log",
        dashed=list(trained),
        title=title,
        xlabel="tokens back from the end",
        ylabel="gradient, relative to the end",
        alt="Lines that fall with the distance, on a logarithmic axis. At its end: "
        + ", ".join(f"{name} {values[-1]:.0e}" for name, values in sizes.items())
        + ".",
    )


def _depends_on(net: Mapping[Node, Sequence[Node]], top: Node) -> set[Node]:
    """A node, and all that it is computed from."""
    reached, left = {top}, [top]
    while left:
        new = set(net.get(left.pop(), ())) - reached
        reached |= new
        left += new
    return reached


def _between(axes: Axes, x: float, y: float, *, both: bool = False) -> None:
    """An arrow from the state before to this one, and one back if the net reads in both directions."""
    start, end = x - BESIDE + WIDTH / 2 + 0.07, x - WIDTH / 2 - 0.07
    for shift, (a, b) in {0.07: (start, end), -0.07: (end, start)}.items() if both else [(0.0, (start, end))]:
        arrow(axes, (a, y + shift), (b, y + shift), head=9)


def _one_vector(axes: Axes, places: Sequence[float], targets: Sequence[float]) -> None:
    """The last state, and the one vector that all steps of the decoder read."""
    middle = (places[0] + places[-1]) / 2
    box(axes, middle, CONTEXT_ROW - 0.1, 0.5, 0.36, "$c$", CONTEXT, fontsize=14)
    arrow(axes, (places[-1], ENCODER_ROW + 0.2), (middle + 0.32, CONTEXT_ROW - 0.1), CONTEXT, width=3, head=14)
    rail = CONTEXT_ROW + 0.42
    axes.plot([middle, middle], [CONTEXT_ROW + 0.12, rail], color=CONTEXT, linewidth=3)
    axes.plot([min(targets), max(targets)], [rail, rail], color=CONTEXT, linewidth=3, solid_capstyle="round")
    for x in targets:
        arrow(axes, (x, rail), (x, DECODER_ROW - 0.2), CONTEXT, width=2, head=12)


def _mixture(axes: Axes, places: Sequence[float], weights: Tensor, x: float, number: int) -> None:
    """All states, each as thick as its weight, and their mixture, which one step of the decoder asks for and reads."""
    for place, weight in zip(places, weights.tolist(), strict=True):
        line: dict[str, Any] = {"linewidth": 0.6 + 7 * weight, "alpha": 0.35 + 0.65 * weight, "zorder": 1}
        axes.plot([place, x], [ENCODER_ROW + 0.2, CONTEXT_ROW + 0.05], color=CONTEXT, solid_capstyle="round", **line)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        label = place, ENCODER_ROW + 0.36
        axes.text(*label, f"{weight:.2f}", ha="center", va="center", fontsize=10, zorder=6, bbox=ground)
    box(axes, x, CONTEXT_ROW + 0.15, 0.5, 0.36, f"$c_{{{number}}}$", CONTEXT, fontsize=14)
    arrow(axes, (x - BESIDE, DECODER_ROW - 0.2), (x - 0.32, CONTEXT_ROW + 0.2), PALETTE[1], width=2, head=12)
    axes.text(x - BESIDE + 0.1, CONTEXT_ROW + 0.42, "asks", color=ink(PALETTE[1]), ha="right", va="center")
    arrow(axes, (x, CONTEXT_ROW + 0.4), (x, DECODER_ROW - 0.2), CONTEXT, width=3, head=14)
