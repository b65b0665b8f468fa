"""Serving: which rows of a batch are busy at which step, and which blocks of a cache belong to which text."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch, Rectangle

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.picture import PALETTE, Picture, color_cycle, drawing, headline, ink, panels, words_on

Piece = tuple[int, int, int]  # row, first step, steps
IDLE: dict[str, Any] = {"facecolor": "white", "edgecolor": "#9a9a9a", "hatch": "///", "linewidth": 0.5}


def batches(ways: Mapping[str, Sequence[Piece]], *, title: str, names: Sequence[str] = ()) -> Picture:
    """Rows of a batch against steps: each text a bar, and hatched where a row has nothing to do.

    Args:
        ways: name → for each text, its row, its first step and how many steps it takes.
        names: of the texts, to be written on their bars.
        title: what to see.
    """
    ends = {name: max(start + steps for _, start, steps in pieces) for name, pieces in ways.items()}
    rows = {name: 1 + max(row for row, *_ in pieces) for name, pieces in ways.items()}
    said = []
    with drawing():
        height = 1.0 + sum(0.55 + 0.24 * count for count in rows.values())
        figure, drawn = panels(
            len(ways), width=8.5, height=height, columns=1, gridspec_kw={"height_ratios": [*rows.values()]}
        )
        for axes, (name, pieces) in zip(drawn, ways.items(), strict=True):
            axes.add_patch(Rectangle((0, 0), ends[name], rows[name], **IDLE))
            for index, (row, start, steps) in enumerate(pieces):
                color = PALETTE[index % 6]
                axes.add_patch(Rectangle((start, row + 0.04), steps, 0.92, facecolor=color, edgecolor="white"))
                text = names[index] if names else ""
                axes.text(start + steps / 2, row + 0.5, text, ha="center", va="center", color=words_on(color))
            idle = 1 - sum(steps for *_, steps in pieces) / (rows[name] * ends[name])
            said.append(f"{name}, {ends[name]} steps, {idle:.0%} of the cells idle")
            axes.set(xlim=(0, 1.01 * max(ends.values())), ylim=(rows[name], 0), yticks=[], ylabel="rows")
            axes.spines[:].set_visible(False)
            axes.set_title(said[-1], fontweight="normal", fontsize=11)
        drawn[-1].set_xlabel("step")
        figure.legend(handles=[Patch(label="idle", **IDLE)], loc="outside lower right", frameon=False)
        headline(figure, title)
    return Picture(figure, f"Rows of a batch against steps, a bar for each of {len(pieces)} texts. {'; '.join(said)}.")


def step_mask(texts: Mapping[str, tuple[int, int]], *, title: str) -> Picture:
    """A step's new tokens of all texts against the slots that each may attend to: blocks, each of them causal.

    Args:
        texts: name → how many of its tokens were read before, and how many are new.
        title: what to see.
    """
    colors = dict(zip(texts, color_cycle(), strict=False))
    tokens = [(name, past + i) for name, (past, new) in texts.items() for i in range(new)]
    slots = [(name, place) for name, (past, new) in texts.items() for place in range(past + new)]
    with drawing():
        figure, (axes,) = panels(width=1.6 + 0.3 * len(slots), height=1.1 + 0.3 * len(tokens))
        for row, (name, position) in enumerate(tokens):
            for column, (owner, place) in enumerate(slots):
                seen = owner == name and place <= position
                color = colors[owner] if seen else PALE
                axes.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white"))
        axes.set(xlim=(0, len(slots)), ylim=(len(tokens), 0), aspect="equal")
        axes.set_xticks([i + 0.5 for i in range(len(slots))], [f"{name}{place}" for name, place in slots], fontsize=8)
        axes.set_yticks([i + 0.5 for i in range(len(tokens))], [f"{name}{place}" for name, place in tokens], fontsize=8)
        for labels, names in ((axes.get_xticklabels(), slots), (axes.get_yticklabels(), tokens)):
            for label, (name, _) in zip(labels, names, strict=True):
                label.set_color(ink(colors[name]))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="slots in the cache", ylabel="the step's tokens")
        headline(figure, title)
    counts = "; ".join(f"{name}: {new} new after {past}" for name, (past, new) in texts.items())
    return Picture(figure, f"{title}. Tokens against slots, a block for each text, causal within it. {counts}.")


def pages(states: Mapping[str, Sequence[tuple[str, int] | None]], size: int, *, title: str) -> Picture:
    """The blocks of a cache, a row for each moment: a slot is filled, taken and empty (hatched), or free.

    Args:
        states: name of a moment → for each block, the texts that have it, such as "A" or "AB", and how many of its
            slots are filled; None: the block is free.
        size: slots in a block.
        title: what to see.
    """
    owners = sorted(
        {block[0] for blocks in states.values() for block in blocks if block}, key=lambda name: (len(name), name)
    )
    colors = dict(zip(owners, color_cycle(), strict=False))
    most = max(map(len, states.values()))
    with drawing():
        figure, (axes,) = panels(width=2.2 + 0.3 * size * most, height=1.1 + 0.5 * len(states))
        said = []
        for y, (moment, blocks) in enumerate(states.items()):
            parts = []
            for number, block in enumerate(blocks):
                left = number * (size + 0.4)
                owner, filled = block or ("", 0)
                for slot in range(size):
                    free: dict[str, Any] = {"facecolor": PALE, "edgecolor": "white"}
                    busy: dict[str, Any] = {"facecolor": colors[owner], "edgecolor": "white"} if slot < filled else IDLE
                    axes.add_patch(Rectangle((left + slot, y - 0.38), 1, 0.76, **(busy if block else free)))
                    if block and slot < filled:
                        ground = words_on(colors[owner])
                        axes.text(left + slot + 0.5, y, owner, ha="center", va="center", fontsize=8, color=ground)
                parts.append(f"block {number} {f'{owner} with {filled} of {size}' if block else 'free'}")
            said.append(f"{moment}: {', '.join(parts)}")
        axes.set(xlim=(-0.1, most * (size + 0.4)), ylim=(len(states) - 0.5, -0.5))
        axes.set_xticks([(i + 0.5) * size + 0.4 * i for i in range(most)], [f"block {i}" for i in range(most)])
        axes.set_yticks(range(len(states)), list(states))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title)
        handles = [Patch(label="taken, empty", **IDLE), Patch(label="free", facecolor=PALE)]
        figure.legend(handles=handles, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
        return Picture(figure, f"Blocks of {size} slots. {'; '.join(said)}.")


def block_tables(
    moments: Mapping[str, tuple[Mapping[str, Sequence[int]], Sequence[str]]], *, title: str, wrong: str = ""
) -> Picture:
    """Which text has which blocks: a table for each text, and an arrow from each of its entries to a block.

    Args:
        moments: name → (text → its block table; for each block, whose keys it holds: "A", "AB" for shared ones, or "").
        title: what to see. wrong: said of a block that a table names and that holds another text's keys.
    """
    texts = sorted({text for tables, _ in moments.values() for text in tables})
    colors = dict(zip(texts, color_cycle(), strict=False))
    said = []
    with drawing():
        figure, drawn = panels(len(moments), width=9.6, height=3.3)
        for axes, (moment, (tables, blocks)) in zip(drawn, moments.items(), strict=True):
            axes.set(xlim=(0, 6.2), ylim=(len(blocks) - 0.4, -0.7))
            axes.axis("off")
            axes.set_title(moment, fontweight="normal", fontsize=11)
            for number, holds in enumerate(blocks):
                for part, text in enumerate(holds):
                    left, width = 3.9 + 1.5 * part / len(holds), 1.5 / len(holds)
                    axes.add_patch(Rectangle((left, number - 0.34), width, 0.68, facecolor=colors[text]))
                if not holds:
                    axes.add_patch(Rectangle((3.9, number - 0.34), 1.5, 0.68, facecolor=PALE))
                ground = words_on(colors[holds[0]] if holds else PALE)
                axes.text(4.65, number, f"block {number}", ha="center", va="center", fontsize=10, color=ground)
                count = sum(number in table for table in tables.values())
                axes.text(5.5, number, f"× {count}", ha="left", va="center", fontsize=10)
            entries = [(text, number) for text, table in tables.items() for number in table]
            for row, (text, number) in enumerate(entries):
                y = row * (len(blocks) - 1) / max(1, len(entries) - 1)
                color = colors[text]
                if number == tables[text][0]:
                    axes.text(0.2, y, text, ha="center", va="center", color=ink(color), fontweight="bold")
                box(axes, 0.9, y, 0.5, 0.5, str(number), PALE, fontsize=10)
                arrow(axes, (1.25, y), (3.85, number), color, width=1.8)
                if text not in blocks[number]:
                    axes.text(4.65, number - 0.42, wrong, ha="center", va="bottom", fontsize=10, color=ink(color))
            held = [f"block {number} holds {holds or 'nothing'}" for number, holds in enumerate(blocks)]
            named = [f"{text} has {', '.join(map(str, table))}" for text, table in tables.items()]
            said.append(f"{moment}: {'; '.join(named + held)}")
        headline(figure, title)
        return Picture(figure, f"Block tables. {'. '.join(said)}.")


def tradeoff(points: Mapping[int, Sequence[float]], *, title: str) -> Picture:
    """What all users get against what each one waits, a point for each number of rows.

    Args:
        points: rows → (tokens per second of all texts, milliseconds from token to token of one, …).
        title: what to see.
    """
    with drawing():
        figure, (axes,) = panels(height=3.6)
        waits, speeds = [point[1] for point in points.values()], [point[0] for point in points.values()]
        axes.plot(waits, speeds, marker="o")
        for rows, wait, speed in zip(points, waits, speeds, strict=True):
            label = f"{rows} row{'s' * (rows > 1)}"
            axes.annotate(label, (wait, speed), (7, -4), textcoords="offset points", va="top")
        axes.margins(x=0.12, y=0.12)
        axes.set(xlabel="ms from token to token of one text", ylabel="tokens per second, all texts", title=title)
        listed = ", ".join(
            f"{rows} rows {speed:.0f} at {wait:.1f} ms" for rows, wait, speed in zip(points, waits, speeds, strict=True)
        )
        return Picture(
            figure, f"Tokens per second of all texts against milliseconds from token to token of one: {listed}."
        )
