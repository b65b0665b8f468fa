"""The figures of lesson 22: how music quotes itself, how scores are skewed, and where heads look on the score."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from txcourse.figures.positions import rearranging
from txlib.plots.charts import lines, name_mark, ranges
from txlib.plots.matrices import heatmap
from txlib.plots.picture import PALETTE, Picture

BAR = 16  # steps
VOICES = 4


def lag_curve(lags: Sequence[int], percent: Sequence[float], *, title: str) -> Picture:
    """How many voices are alike, by the lag in bars, with a line at each whole bar."""
    at = dict(zip(lags, percent, strict=True))
    bars = [lag for lag in lags if lag % BAR == 0]
    picture = lines(
        {"all chorales": ([lag / BAR for lag in lags], percent)},
        title=title,
        xlabel="lag (bars of 16 steps)",
        ylabel="voices alike (%)",
        alt="Percent of voices alike against the lag, with narrow peaks: "
        + ", ".join(f"{at[lag]:.1f} at {lag // BAR}" for lag in bars)
        + " bars.",
    )
    (axes,) = picture.axes
    axes.set_xticks([lag // BAR for lag in bars])
    for lag in bars:
        axes.axvline(lag / BAR, color="#e4e4e4", linewidth=0.8, zorder=0)
    return picture


def skewing(queries: int, keys: int, *, title: str) -> Picture:
    """Scores by distance become scores by key: pad, drop as many numbers as there are queries, cut rows anew.

    Args:
        queries: the last so many of the keys. The number 32 is query 3 with the key 2 tokens ago.
    """
    by_distance = 10 * torch.arange(1, queries + 1)[:, None] + torch.arange(keys).flip(0)
    padded = torch.nn.functional.pad(by_distance, (1, 0), value=-1)
    line = padded.flatten()
    steps = {"by distance": by_distance, "1 pad left": padded}
    if queries == keys:
        steps["2 reshape"] = line.view(queries + 1, keys)
        last = "3 drop first row"
    else:
        last = f"2 drop {queries}, cut rows of {keys}"
    steps[last] = line[queries:].view(queries, keys)
    groups = {name: torch.where(matrix < 0, -1, matrix % 10) for name, matrix in steps.items()}
    groups[last][torch.ones(queries, keys).triu(keys - queries + 1).bool()] = -2  # keys in the future
    rows = "; ".join(" ".join("0" if n < 0 else str(n) for n in row) for row in steps[last].tolist())
    return rearranging(
        steps,
        groups,
        title=title,
        alt=f"{len(steps)} matrices. By distance, each column has one distance, the farthest first. Then a column of "
        f"zeros on the left. Last, by key: {rows}. Equal distances are on diagonals; above them are leftovers.",
    )


def preferred_distances(
    times: Float[Tensor, "head distance"], names: Sequence[str], *, title: str, farthest: int = 68
) -> Picture:
    """How much weight each head gives to each distance, in doublings of the even weight.

    Args:
        times: the weight as a multiple of the even weight; column 0 is one token ago.
    """
    doublings = times[:, :farthest].log2().clamp(-3, 3)
    picture = heatmap(
        torch.nn.functional.pad(doublings, (1, 0)),
        rows=names,
        size=0.11,
        numbers=False,
        diverging=True,
        ylabel="",
        bar="doublings",
        title=title,
        xlabel="tokens ago (4 are a step, 16 a beat, 64 a bar)",
        alt=f"Eight rows of cells for 1 to {farthest} tokens ago (column 0 is empty). "
        + "; ".join(
            f"{name}: most at {row.argmax() + 1}, {row.max():.1f} times the even weight"
            for name, row in zip(names, times, strict=True)
        )
        + ".",
    )
    picture.axes[0].set_xticks([0, 16, 32, 48, 64], ["0", "16", "32", "48", "64"])
    return picture


def by_shift(keys: Mapping[str, Mapping[str, Any]], tokens_per_note: float, *, title: str) -> Picture:
    """Nats per note of pieces that were transposed, a line for each seed.

    Args:
        keys: training → seed → a run, with its nats per token "by shift".
    """
    shifts = [int(shift) for shift in next(iter(next(iter(keys.values())).values()))["by shift"]]
    runs = {
        f"trained on pieces\n{name}": [
            [run["by shift"][str(shift)] * tokens_per_note for shift in shifts] for run in seeds.values()
        ]
        for name, seeds in keys.items()
    }
    means = {name: torch.tensor(several).mean(dim=0).tolist() for name, several in runs.items()}
    picture = lines(
        {name: (shifts, several) for name, several in runs.items()},
        marker="o",
        title=title,
        xlabel="test pieces moved up by so many semitones",
        ylabel="nats per note",
        alt="; ".join(
            f"{' '.join(name.split())}: "
            + ", ".join(f"{nats:.2f} at {shift:+d}" for shift, nats in zip(shifts, along, strict=True))
            for name, along in means.items()
        )
        + " (means of three seeds).",
    )
    picture.axes[0].set_xticks(shifts)
    return picture


def loss_by_bar(kinds: Mapping[str, Mapping[str, Any]], trained: int, *, title: str) -> Picture:
    """Nats per token of each bar, a line for each seed.

    Args:
        kinds: kind → seed → a run, with its nats "by bar".
        trained: so many bars the models have seen.
    """
    runs = {kind: [run["by bar"] for run in seeds.values()] for kind, seeds in kinds.items()}
    means = {name: torch.tensor(several).mean(dim=0).tolist() for name, several in runs.items()}
    bars = range(1, 1 + len(next(iter(means.values()))))
    picture = lines(
        {name: (bars, several) for name, several in runs.items()},
        marker="o",
        colors={"relative": PALETTE[0], "rotary": PALETTE[5], "learned": PALETTE[1], "sinusoidal": PALETTE[4]},
        mark=("trained to here", trained + 0.5),
        title=title,
        xlabel="bar",
        ylabel="nats per token",
        alt="; ".join(
            f"{name}: {along[trained - 1]:.2f} in bar {trained}, {along[-1]:.2f} in bar {len(along)}"
            for name, along in means.items()
        )
        + " (means of three seeds).",
    )
    picture.axes[0].set_xticks(bars)
    return picture


def faster_tables(
    kinds: Mapping[str, Mapping[str, Mapping[str, float]]], tokens_per_note: float, *, title: str
) -> Picture:
    """Nats per note by how much faster than the rest of the model its tables learn, a line for each seed.

    Args:
        kinds: kind → times as fast → seed → nats per token.
    """
    times = [int(each) for each in next(iter(kinds.values()))]
    runs = {
        kind: [
            [nats * tokens_per_note for nats in line] for line in zip(*(by[each].values() for each in by), strict=True)
        ]
        for kind, by in kinds.items()
    }
    means = {name: torch.tensor(several).mean(dim=0).tolist() for name, several in runs.items()}
    picture = lines(
        {name: (times, several) for name, several in runs.items()},
        marker="o",
        colors={"relative": PALETTE[0], "numbers": PALETTE[2], "learned": PALETTE[1]},
        xscale="log",
        title=title,
        xlabel="the tables learn so many times as fast as the rest",
        ylabel="nats per note",
        alt="; ".join(
            f"{name}: " + ", ".join(f"{nats:.2f} at {each}" for each, nats in zip(times, along, strict=True))
            for name, along in means.items()
        )
        + " times (means of three seeds).",
    )
    picture.axes[0].set_xticks(times, [f"{each}" for each in times])
    picture.axes[0].minorticks_off()
    return picture


def position_costs(per_note: Mapping[str, tuple[float, float, float]], counting: float, *, title: str) -> Picture:
    """Nats per note by kind of positions: least, mean and greatest of the seeds, with a line where counting ends."""
    picture = ranges(
        per_note,
        mark=counting,
        groups={"know the distance": ["relative", "rotary"], "know the position": ["learned", "sinusoidal"]},
        title=title,
        xlabel="nats per note on unseen chorales: least, mean, greatest of three seeds",
        alt="; ".join(f"{kind}: {mean:.2f}" for kind, (_, mean, _) in per_note.items())
        + f"; the best table of counts: {counting:.2f}.",
    )
    name_mark(picture.axes[0], "counting", counting)
    return picture
