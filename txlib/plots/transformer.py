"""The encoder–decoder as a drawing."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from txlib.plots.picture import PALETTE, Picture, drawing, headline, panels
from txlib.plots.shapes import PALE, arrow, box

READ, WRITE, CROSS = PALETTE[5], PALETTE[4], PALETTE[3]
SIZE = 2.86, 0.76  # of a box
ENCODER, DECODER = 0.0, 4.6


def encoder_decoder(*, source: str, shifted: str, target: str, title: str, alt: str) -> Picture:
    """The Transformer from bottom to top: encoder left, decoder right (Vaswani et al. 2017, figure 1).

    Args:
        source: what the encoder reads. shifted: what the decoder reads. target: what the decoder is to write.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=8.4, height=6.0)
        axes.set(xlim=(-2.4, 8.0), ylim=(-0.75, 8.6))
        axes.axis("off")
        for middle, colour, text in ((ENCODER, READ, source), (DECODER, WRITE, shifted)):
            top = 4.9 if middle == ENCODER else 6.2
            outline = (middle - 1.75, 1.75), 3.5, top - 1.75
            axes.add_patch(FancyBboxPatch(*outline, "round,pad=0.1", facecolor=colour, alpha=0.18))
            axes.text(middle, -0.45, text, ha="center", va="center", style="italic")
            arrow(axes, (middle, -0.15), (middle, 0.3))
            box(axes, middle, 0.7, *SIZE, "embedding · √d", PALE)
            arrow(axes, (middle, 1.1), (middle, 1.95))
        _tower(axes, ENCODER, [("self-attention\nsees all words", READ), ("feed-forward", READ)])
        _tower(
            axes,
            DECODER,
            [
                ("causal self-attention\nsees what is written", WRITE),
                ("cross-attention", CROSS),
                ("feed-forward", WRITE),
            ],
        )
        axes.text(ENCODER - 1.95, 3.3, "N ×", ha="right", va="center", fontsize=12)
        axes.text(DECODER + 1.95, 4.0, "× N", ha="left", va="center", fontsize=12)
        axes.plot([ENCODER, ENCODER, 2.3, 2.3], [4.55, 5.6, 5.6, 4.0], color=CROSS, linewidth=2.2)
        arrow(axes, (2.3, 4.0), (DECODER - 1.5, 4.0), CROSS)
        memory = "memory: one vector a source word"
        axes.text(ENCODER, 5.72, memory, ha="center", va="bottom", color=CROSS, fontweight="bold")
        arrow(axes, (DECODER, 6.1), (DECODER, 6.75))
        box(axes, DECODER, 7.15, *SIZE, "embedding again,\ntransposed; softmax", PALE)
        arrow(axes, (DECODER, 7.6), (DECODER, 8.0))
        axes.text(DECODER, 8.25, target, ha="center", va="center", style="italic")
        headline(figure, title)
        return Picture(figure, alt)


def _tower(axes: Axes, middle: float, parts: list[tuple[str, str]]) -> None:
    """The sub-layers of one block, from bottom to top."""
    for number, (text, colour) in enumerate(parts):
        height = 2.4 + 1.6 * number
        box(axes, middle, height, *SIZE, text, colour)
        if number:
            arrow(axes, (middle, height - 1.15), (middle, height - 0.5))
