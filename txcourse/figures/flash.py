"""The figures of lesson 34: what limits a computation, and a matrix of scores that is walked over in tiles."""

from collections.abc import Collection, Mapping, Sequence

from matplotlib.patches import Rectangle

from txcourse.figures.shapes import PALE, arrow
from txlib.plots.picture import GRAY, PALETTE, Picture, color_cycle, drawing, headline, ink, panels, words_on


def roofline(
    points: Mapping[str, tuple[float, float]], *, peak: float, bandwidth: float, title: str, alt: str = ""
) -> Picture:
    """What a machine can do at most, and what computations reach, both by operations per byte (Williams et al. 2009).

    Args:
        points: name → operations per byte moved, and operations per second.
        peak: operations per second at most; bandwidth: bytes per second at most.
        alt: what is seen; by default, the points.
    """
    ridge = peak / bandwidth
    low = min(min(x for x, _ in points.values()), ridge) / 2
    high = max(max(x for x, _ in points.values()), ridge) * 4
    with drawing():
        figure, (axes,) = panels(width=7.2, height=4.0)
        axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=GRAY)
        axes.text(low, min(low * bandwidth * 12, peak * 1.15), "what memory allows", color=GRAY)
        axes.text(high, peak * 1.4, "what arithmetic allows", color=GRAY, ha="right")
        named: list[tuple[float, float]] = []
        for (name, (x, y)), color in zip(points.items(), color_cycle(), strict=False):
            axes.plot(x, y, "o", color=color, markersize=9)
            near = [b for a, b in named if max(x / a, a / x) < 1.5 and max(y / b, b / y) < 1.5]
            below = (6, -16 * (1 + len(near)))  # names of points that fall together stand in a column
            axes.annotate(name, (x, min([y, *near])), xytext=below, textcoords="offset points", color=ink(color))
            named.append((x, y))
        axes.set(xscale="log", yscale="log", xlabel="operations per byte moved", ylabel="operations per second")
        axes.set_ylim(low * bandwidth / 5, peak * 2.5)
        axes.set_title(title)
    points_told = "; ".join(f"{name} at {x:.1f} per byte: {y:.2g} per second" for name, (x, y) in points.items())
    roof = (
        "Operations per second against operations per byte on logarithmic scales, with a roof that rises, then is flat."
    )
    return Picture(figure, alt or f"{roof} {points_told}")


def two_memories(*, title: str) -> Picture:
    """The slow and the fast memory of a GPU, and what travels between them while a tile of queries is worked on."""
    alt = (
        "Two boxes. On the left the slow memory, HBM, 40 GB, 1.5 TB per second, with q, k, v and the output as columns "
        "of four tiles. On the right the fast memory, SRAM, 192 kB of each processor, 19 TB per second in all, "
        "with one tile of each and the sums m, l and o. Arrows: a tile of q comes once, tiles of k and v come in turn, "
        "the output goes back once. The tile of scores is only on the right."
    )
    with drawing():
        figure, (axes,) = panels(width=9.2, height=3.9)
        axes.set(xlim=(0, 18.4), ylim=(-0.9, 6.6))
        axes.axis("off")
        for left, width, head in (
            (0, 7.4, "slow: HBM, 40 GB, 1.5 TB per second"),
            (11.2, 7.2, "fast: SRAM, 192 kB per processor, 19 TB/s in all"),
        ):
            axes.add_patch(Rectangle((left, 0), width, 5.8, fill=False, edgecolor=GRAY, linewidth=1.2))
            axes.text(left + width / 2, 5.95, head, ha="center", va="bottom", color=GRAY, fontsize=10)
        for column, (name, hot) in enumerate((("q", 2), ("k", 1), ("v", 1), ("output", 2))):
            x = 0.6 + 1.7 * column
            for row in range(4):
                color = PALETTE[1] if row == 3 - hot else PALE
                axes.add_patch(Rectangle((x, 0.8 + 1.1 * row), 1.1, 1.0, facecolor=color, edgecolor="white"))
            axes.text(x + 0.55, 0.35, name, ha="center", va="center", fontsize=10)
        parts = {
            "tile of q": (11.6, 4.2, 1), "tile of k": (11.6, 2.6, 1), "tile of v": (11.6, 1.0, 1),
            "scores": (14.2, 2.9, 0), "m, l, o": (16.3, 2.9, 2),
        }  # fmt: skip
        for name, (x, y, index) in parts.items():
            axes.add_patch(Rectangle((x, y), 1.7, 1.1, facecolor=PALETTE[index], alpha=0.55, edgecolor="none"))
            axes.text(x + 0.85, y + 0.55, name, ha="center", va="center", fontsize=10)
        for start, end in (((13.3, 4.75), (14.6, 4.1)), ((13.3, 3.15), (14.1, 3.4)), ((15.95, 3.45), (16.25, 3.45))):
            arrow(axes, start, end)
        arrow(axes, (13.3, 1.55), (16.5, 2.8))
        arrow(axes, (7.6, 4.75), (11.4, 4.75), PALETTE[1])
        axes.text(9.5, 4.9, "once", ha="center", va="bottom", fontsize=10)
        for y in (3.15, 1.55):
            arrow(axes, (7.6, y), (11.4, y), PALETTE[1])
            axes.text(9.5, y + 0.15, "one tile after another", ha="center", va="bottom", fontsize=10)
        axes.plot([17.15, 17.15, 6.25, 6.25], [2.8, -0.45, -0.45, -0.3], color=PALETTE[2], linewidth=1.5)
        arrow(axes, (6.25, -0.45), (6.25, 0.1), PALETTE[2])
        axes.text(9.5, -0.3, "o / l, once", ha="center", va="bottom", fontsize=10)
        headline(figure, title)
    return Picture(figure, alt)


def tiles(
    shape: tuple[int, int],
    steps: Sequence[tuple[int, int]],
    captions: Sequence[str],
    *,
    title: str,
    alt: str,
    done: Sequence[tuple[int, int]] = (),
    hidden: Collection[tuple[int, int]] = (),
    texts: Mapping[tuple[int, int], str] | None = None,
) -> Picture:
    """The matrix of scores as tiles, once for each step: which tile is at hand, which are done, which never come.

    Args:
        shape: rows and columns of tiles. steps: the tile of each step, in order.
        captions: what stands below each step.
        done: tiles that came before the first step.
        hidden: tiles that the mask forbids.
        texts: what stands in a tile.
    """
    rows, columns = shape
    with drawing():
        figure, drawn = panels(len(steps), width=2.2 * len(steps), height=0.9 + 2.1 * rows / columns)
        for axes, now, caption in zip(drawn, steps, captions, strict=True):
            behind = [*done, *steps[: steps.index(now)]]
            for row in range(rows):
                for column in range(columns):
                    place = (row, column)
                    color = PALETTE[1] if place == now else PALETTE[0] if place in behind else PALE
                    face = "white" if place in hidden else color
                    axes.add_patch(Rectangle((column, row), 0.92, 0.92, facecolor=face, edgecolor=PALE))
                    text = (texts or {}).get(place, "")
                    axes.text(
                        column + 0.46, row + 0.46, text, ha="center", va="center", color=words_on(face), fontsize=8
                    )
            axes.set(xlim=(-0.1, columns + 0.02), ylim=(rows + 0.02, -0.1), aspect="equal", xticks=[], yticks=[])
            axes.set_xlabel(caption, fontsize=10)
            axes.spines[:].set_visible(False)
        if rows > 1:
            drawn[0].set_ylabel("queries ↓   keys →", color=GRAY)
        headline(figure, title)
    return Picture(figure, alt)


def causal_walk(*, title: str) -> Picture:
    """The walk over the tiles of a causal 4 by 4 matrix: the third row of tiles, and the beginning of the fourth."""
    return tiles(
        (4, 4),
        [(2, 0), (2, 1), (2, 2), (3, 0)],
        ["first keys", "next keys", "the diagonal", "next queries"],
        done=[(row, column) for row in range(2) for column in range(row + 1)],
        hidden=[(row, column) for row in range(4) for column in range(row + 1, 4)],
        title=title,
        alt="A causal 4 by 4 matrix of tiles, once for each step. One tile is at hand, from the first keys to the "
        "diagonal, then the next row of queries; tiles right of the diagonal stay white.",
    )
