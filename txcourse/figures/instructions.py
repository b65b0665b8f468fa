"""The figures of lesson 40: whose tokens a conversation has, which ones a loss counts, and what LoRA adds."""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import MultipleLocator

from txcourse.figures.shapes import PALE
from txlib.plots.picture import GRAY, MAX_INCHES, PALETTE, Picture, drawing, headline, ink, panels

ROLES = {"user": PALETTE[0], "template": GRAY, "assistant": PALETTE[1]}
"""Who writes a token, and in which color."""

HIGH, STEP = 0.3, 0.58  # inches: a token, and from row to row


def conversation(
    tokens: Sequence[str],
    roles: Mapping[str, Sequence[str]],
    labels: Mapping[str, Sequence[int]] | None = None,
    *,
    title: str,
) -> Picture:
    """A conversation as a row of tokens in the colors of who writes them, and below each the next, if a loss counts it.

    Args:
        roles: name of a row → who writes each token, a key of `ROLES`; several rows are several opinions.
        labels: name of a row → the label of each token, negative where the loss leaves it out. A token that
            counts is drawn below the one before it, which predicts it, in the color of the first row of roles.
        title: what to see.
    """
    named = labels or {}
    (_, writers), *_ = roles.items()
    longest = [max(map(len, tokens[i : i + 2] if named else tokens[i : i + 1])) for i in range(len(tokens))]
    widths = [0.13 + 0.088 * length for length in longest]
    wide, rows = sum(widths), len(roles) + len(named)
    said = []
    with drawing():
        figure, (axes,) = panels(width=min(MAX_INCHES, max(wide + 0.2, 5.0)), height=0.75 + STEP * rows)
        axes.set(xlim=(-0.05, max(wide, 4.8) + 0.05), ylim=(STEP * rows + 0.22, -0.1))
        axes.axis("off")
        lefts = [sum(widths[:i], 0.0) for i in range(len(tokens))]
        for row, (name, who) in enumerate(roles.items()):
            _name(axes, row, name)
            for left, width, token, role in zip(lefts, widths, tokens, who, strict=True):
                _token(axes, left, STEP * row, width, token, role)
            said.append(f"{name}: {_runs(tokens, who)}")
        for row, (name, wanted) in enumerate(named.items(), start=len(roles)):
            _name(axes, row, name)
            counted = [place for place, label in enumerate(wanted) if place and label >= 0]
            for left, width, place in zip(lefts, widths, range(1, len(tokens) + 1), strict=True):
                if place in counted:
                    _token(axes, left, STEP * row, width, tokens[place], writers[place])
                else:
                    axes.plot(left + width / 2, STEP * row + 0.37, ".", color=GRAY, markersize=3)
            said.append(f"{name}: {' '.join(tokens[place] for place in counted)}")
        x = 0.0
        for role in [role for role in ROLES if any(role in who for who in roles.values())]:
            axes.text(x, STEP * rows + 0.14, f"■ {role}", color=ink(ROLES[role]), fontsize=10, va="center")
            x += 1.1
        headline(figure, title)
        return Picture(figure, f"{title}. {'; '.join(said)}.")


def adapter(outer: int, inner: int, rank: int, *, title: str) -> Picture:
    """A frozen weight, plus the product of a tall and a flat matrix that are trained, all to scale."""
    gap = 0.24 * inner
    green = PALETTE[2]
    parts = {"W": (outer, inner, GRAY), "B": (outer, rank, green), "A": (rank, inner, green)}
    with drawing():
        figure, (axes,) = panels(width=5.6, height=2.7)
        left = 0.0
        for name, (high, wide, color) in parts.items():
            axes.add_patch(Rectangle((left, -high / 2), wide, high, facecolor=color, alpha=0.45, edgecolor=color))
            state = "frozen" if name == "W" else "trained"
            caption = f"{name}, {state}\n{high} × {wide}\n{high * wide:,} numbers"
            middle = left + wide / 2
            axes.text(middle, -0.58 * outer, caption, ha="center", va="top", fontsize=10, color=ink(color))
            left += wide + gap + (0.3 * inner if name != "A" else 0)
            if name != "A":
                sign = "+" if name == "W" else "·"
                axes.text(left - (gap + 0.3 * inner) / 2, 0, sign, ha="center", va="center", fontsize=14)
        axes.set(xlim=(-0.1 * inner, left), ylim=(-1.08 * outer, 0.55 * outer), aspect="equal")
        axes.axis("off")
        headline(figure, title)
        numbers = f"{outer * inner:,} frozen numbers and {rank * (outer + inner):,} trained ones"
        return Picture(
            figure,
            f"{title}. W of {outer} × {inner}, plus B of {outer} × {rank} times A of {rank} × {inner}: {numbers}.",
        )


def forgotten(ways: Mapping[str, Sequence[tuple[float, float]]], *, title: str) -> Picture:
    """What each way to fine-tune costs against what it brings: a mark for each seed, a color for each way.

    Args:
        ways: name → for each seed, the loss on the base's text, and the fraction of requests obeyed. LoRA's marks are
            triangles, the base's squares.
        title: what to see.
    """
    said = []
    with drawing():
        figure, (axes,) = panels(width=7.6, height=3.6)
        axes.axhline(50, color=GRAY, linestyle=":", linewidth=1.2)
        for (name, runs), color in zip(ways.items(), chain([GRAY], cycle(PALETTE)), strict=False):
            losses, fractions = zip(*runs, strict=True)
            mark = "s" if name == "base" else "^" if name.startswith("LoRA") else "o"
            obeyed = [100 * fraction for fraction in fractions]
            axes.plot(losses, obeyed, mark, label=name, color=ink(color, 3), markersize=8, alpha=0.85)
            said.append(f"{name}: loss {min(losses):.2f} to {max(losses):.2f}, {min(obeyed):.0f} to {max(obeyed):.0f}%")
        axes.annotate("chance", (1, 50), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=GRAY)
        axes.set(xlabel="loss on the base's text (nats per token): forgotten", ylabel="requests obeyed (%)")
        axes.yaxis.set_major_locator(MultipleLocator(5))
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set_title(title)
        return Picture(figure, f"{title}. Loss on the base's text and requests obeyed: {'; '.join(said)}.")


def _name(axes: Axes, row: int, name: str) -> None:
    axes.text(0, STEP * row + 0.1, name, color=GRAY, fontsize=10, va="center")


def _token(axes: Axes, left: float, top: float, width: float, token: str, role: str) -> None:
    color = ROLES[role]
    corner, wide = (left + 0.02, top + 0.22), width - 0.04
    rounded = "round,pad=0,rounding_size=0.05"
    inside, alpha = (PALE, 0.8) if role == "template" else (color, 0.25)
    for face, edge, opacity in ((inside, "none", alpha), ("none", color, 1.0)):
        box = FancyBboxPatch(corner, wide, HIGH, boxstyle=rounded, facecolor=face, edgecolor=edge, alpha=opacity)
        box.set(linewidth=1.0, zorder=3)
        axes.add_patch(box)
    middle = (left + width / 2, top + 0.22 + HIGH / 2)
    axes.text(*middle, token, ha="center", va="center", family="monospace", fontsize=10, zorder=5)


def _runs(tokens: Sequence[str], who: Sequence[str]) -> str:
    """The tokens that one writes in a row, after the writer's name."""
    parts: list[str] = []
    for place, (token, role) in enumerate(zip(tokens, who, strict=True)):
        parts.append(token if place and who[place - 1] == role else f"({role}) {token}")
    return " ".join(parts)
