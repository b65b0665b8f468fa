"""How a Vision Transformer reads: from a picture's patches to a class."""

from jaxtyping import Float
from matplotlib.patches import Rectangle
from torch import Tensor

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, ink, panels, words_on

CLASS = PALETTE[1]
CHOSEN = [PALETTE[0], PALETTE[2], PALETTE[3]]  # of the patches that are followed


def vision_transformer(
    picture: Float[Tensor, "height width"], patch: int, label: str, *, blocks: int, title: str, alt: str
) -> Picture:
    """A picture, its patches, their tokens, the blocks, and the label; three patches keep their color throughout.

    Args:
        picture: gray values; its sides are divisible by `patch`.
        label: what the class token says in the end. blocks: how many there are.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    height, width = picture.shape
    columns = width // patch
    number = (height // patch) * columns
    chosen = [columns * (height // patch // 2) + column for column in (1, columns // 2, columns - 2)]
    with drawing():
        figure, (axes,) = panels(width=9.6, height=3.3)
        axes.set(xlim=(0, 16.4), ylim=(-0.7, 4.2), aspect="equal")
        axes.axis("off")
        axes.imshow(picture.numpy(), cmap="gray", extent=(0, 4, 0, 4), zorder=1)
        cell = 4 / columns
        for line in range(1, columns):
            axes.plot([line * cell] * 2, [0, 4], color="white", linewidth=0.4, alpha=0.6)
            axes.plot([0, 4], [line * cell] * 2, color="white", linewidth=0.4, alpha=0.6)
        names = ["class", *(str(1 + index) for index in chosen)]
        for row, (color, name) in enumerate(zip([CLASS, *CHOSEN], names, strict=True)):
            y = 3.6 - 1.07 * row
            if row:
                index = chosen[row - 1]
                down, right = index // columns, index % columns
                corner = (right * cell, 4 - (down + 1) * cell)
                axes.add_patch(Rectangle(corner, cell, cell, fill=False, edgecolor=color, linewidth=2, zorder=3))
                part = picture[down * patch : (down + 1) * patch, right * patch : (right + 1) * patch]
                axes.imshow(part.numpy(), cmap="gray", vmin=0, vmax=1, extent=(5.3, 6.1, y - 0.4, y + 0.4), zorder=1)
                frame = Rectangle((5.3, y - 0.4), 0.8, 0.8, fill=False, edgecolor=color, linewidth=2, zorder=3)
                axes.add_patch(frame)
                arrow(axes, (6.3, y), (7.3, y), width=1.2, head=9)
            box(axes, 8.0, y, 1.0, 0.5, name, color, color=words_on(color), fontsize=10)
            axes.text(8.85, y, "+", ha="center", va="center", color=GRAY)
            box(axes, 9.75, y, 1.15, 0.5, f"position {name if row else 0}", PALE, fontsize=8)
            arrow(axes, (10.45, y), (11.15, y), width=1.2, head=9)
            if row == 0:
                arrow(axes, (12.9, y), (13.7, y), CLASS, width=1.5, head=10)
        box(axes, 12.0, 2.0, 1.5, 3.9, f"{blocks} blocks:\nevery token\nlooks at\nevery token", PALE, fontsize=9.5)
        box(axes, 15.0, 3.6, 2.3, 0.6, label, CLASS, color=words_on(CLASS), fontsize=10)
        captions = [(2.0, -0.35, "picture"), (5.7, -0.35, f"{number} patches"), (6.8, 2.8, "× matrix")]
        captions += [(8.9, -0.35, "tokens + positions"), (15.0, 2.85, "label")]
        for x, y, text in captions:
            axes.text(x, y, text, ha="center", va="center", color=ink(GRAY), fontsize=10)
        axes.set_title(title)
        return Picture(figure, alt)
