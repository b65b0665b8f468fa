"""Views of attention: a lookup whose query can be dragged, the arithmetic of one query, and what heads look at."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from txcourse.explore.view import View
from txcourse.figures.bert import head_maps
from txcourse.figures.shapes import GRAY, arrow
from txlib.attention import attention_weights
from txlib.plots import matrices
from txlib.plots.picture import PALETTE, Picture, drawing, fit, headline, panels

TURN = 15  # degrees, of the query of a still lookup: it shows another place than the figures of a lesson


def lookup(
    keys: Float[Tensor, "key 2"],
    values: Float[Tensor, "key"],
    query: Float[Tensor, "2"],
    *,
    names: Sequence[str],
    scale: float | int = 1,
) -> View:
    """A soft lookup in the plane, beside a hard one. Its query is dragged, or turned and stretched by sliders.

    Args:
        values: one number per key, of which the answers are made.
        names: one per key.
        scale: by which the dot products are multiplied before the softmax.
    """
    _check_names(names, len(keys), "keys")
    cosine, sine = torch.tensor(TURN).deg2rad().cos(), torch.tensor(TURN).deg2rad().sin()
    turned = torch.stack([cosine * query[0] - sine * query[1], sine * query[0] + cosine * query[1]])
    score = scale * torch.stack([query, turned]) @ keys.T  # (query, key): before and after the turn
    hard = torch.nn.functional.one_hot(score.argmax(dim=-1), len(keys))
    shares = {"hard": hard.float(), "soft": score.softmax(dim=-1).float()}
    still = _turned(keys, values.float(), [query, turned], shares, names)
    data = {"keys": keys, "values": values, "query": query, "names": list(names), "scale": scale}
    return View(still, "lookup", data, title="Turn the query: what do a hard and a soft lookup answer?")


def _turned(
    keys: Float[Tensor, "key 2"],
    values: Float[Tensor, "key"],
    queries: Sequence[Float[Tensor, "2"]],
    shares: dict[str, Float[Tensor, "query key"]],
    names: Sequence[str],
) -> Picture:
    """Keys and the query, before and after its turn, as arrows; next to them, each key's weight after it."""
    before, after = (f"{torch.atan2(query[1], query[0]).rad2deg():.0f}°" for query in queries)
    with drawing():
        figure, (plane, bars) = panels(2, width=8.4, height=3.6)
        labels = [f"{name} holds {value:g}" for name, value in zip(names, values.tolist(), strict=True)]
        arrows = [(key, PALETTE[0], 1.0, label) for key, label in zip(keys, labels, strict=True)]
        arrows += [(queries[0], PALETTE[1], 0.35, ""), (queries[1], PALETTE[1], 1.0, "")]
        for vector, color, alpha, label in arrows:
            x, y = vector.tolist()
            arrow(plane, (0, 0), (x, y), color, width=2.5, alpha=alpha)
            side = "left" if x > 0.2 * abs(y) else "right" if x < -0.2 * abs(y) else "center"
            plane.text(1.08 * x, 1.08 * y, label, ha=side, va="bottom")
        ends = torch.stack([*keys, *queries, torch.zeros_like(keys[0])])
        margin = 0.35 * float(ends.norm(dim=-1).max())
        (left, low), (right, high) = (ends.amin(dim=0) - margin).tolist(), (ends.amax(dim=0) + margin).tolist()
        plane.set(xlim=(left, right), ylim=(low, high), aspect="equal")
        plane.axis("off")
        answers = {name: "from {:.1f} to {:.1f}".format(*(share @ values).tolist()) for name, share in shares.items()}
        for offset, (name, share) in zip((-0.2, 0.2), shares.items(), strict=True):
            places = [place + offset for place in range(len(names))]
            color = GRAY if name == "hard" else PALETTE[1]
            bars.bar(places, share[1].tolist(), 0.38, color=color, label=f"{name}: {answers[name]}")
        bars.set(
            ylim=(0, 1.4),
            yticks=[0, 0.5, 1],
            xticks=range(len(names)),
            xticklabels=names,
            xlabel="key",
            ylabel=f"weight at {after}",
        )
        bars.legend(frameon=False)
        headline(figure, f"The query (orange) turns from {before} to {after}")
        soft = zip(names, shares["soft"][1].tolist(), strict=True)
        shown = ", ".join(f"{name} {share:.2f}" for name, share in soft)
        return Picture(
            figure,
            f"Left, arrows from one point: the keys {', '.join(names)} in blue, each with its value; the query in "
            f"orange, at {before} pale and at {after} strong. Right, bars at {after}. Hard: all on "
            f"{names[int(shares['hard'][1].argmax())]}. Soft: {shown}. "
            f"The hard answer goes {answers['hard']}, the soft one {answers['soft']}.",
        )


def one_query(
    q: Float[Tensor, "query head_dim"],
    k: Float[Tensor, "key head_dim"],
    v: Float[Tensor, "key value_dim"],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    mask: Bool[Tensor, "query key"] | None = None,
    query: str | None = None,
) -> View:
    """One query's way through attention, with its numbers: products with a key, scaled, masked, softmax, mixture.

    Keys can be hidden, and the scale left out. (Vig 2019, https://arxiv.org/abs/1906.05714, calls it the neuron view.)

    Args:
        rows, columns: names of the queries and keys.
        mask: True where a query may see a key.
        query: the name of the first one to be shown; the first of all unless given.
    """
    _check_names(rows, len(q), "queries")
    _check_names(columns, len(k), "keys")
    if query is not None and query not in rows:
        raise ValueError(f"query={query!r} is none of the rows: {', '.join(rows)}")
    allowed = torch.ones(len(q), len(k), dtype=torch.bool) if mask is None else mask
    weights = attention_weights(q[None, None], k[None, None], allowed[None, None])[0, 0]  # (query, key)
    row = 0 if query is None else list(rows).index(query)
    best, hidden = int(weights[row].argmax()), allowed.clone()
    hidden[:, best] = False
    without = attention_weights(q[None, None], k[None, None], hidden[None, None])[0, 0, row]  # (key,)
    shares = {"weight": weights[row], f"“{columns[best]}” hidden": without}
    still = _arithmetic(k @ q[row], shares, v, columns, q.shape[-1], rows[row])
    data = {"q": q, "k": k, "v": v, "rows": list(rows), "columns": list(columns), "allowed": allowed}
    return View(
        still,
        "arithmetic",
        data | {"query": row, "key": best},
        title="One query's arithmetic: products, scores, weights, mixture",
    )


def heads(
    weights: Float[Tensor, "head query key"] | Float[Tensor, "layer head query key"],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    first: int = 0,
    title: str = "Who looks at whom: choose a head, and a word",
) -> View:
    """One head at a time: words joined by lines, strong where the weight is large, and a table of all weights.

    (Vig 2019, https://arxiv.org/abs/1906.05714, calls it the attention-head view.)

    Args:
        rows, columns: the words that ask, and those that answer.
        first: the number of the first layer and the first head.
    """
    weights = weights[None] if weights.dim() == 3 else weights
    data = _numbered(weights, rows, columns, first)
    last = f"of layer {data['layers'][-1]} " if len(weights) > 1 else ""  # the view opens with the first
    still = _lines(weights[-1], rows, columns, data["heads"], f"What each head {last}looks at")
    return View(still, "heads", data, title=title, uses=["words"])


def all_heads(
    weights: Float[Tensor, "layer head query key"],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    first: int = 0,
) -> View:
    """All heads of a model as small maps, a row of them per layer; the chosen one as `heads` shows it.

    (Vig 2019, https://arxiv.org/abs/1906.05714, calls it the model view.)

    Args:
        rows, columns: the words that ask, and those that answer.
        first: the number of the first layer and the first head.
    """
    data = _numbered(weights, rows, columns, first)
    largest = weights.amax(dim=(-1, -2))
    layer, head = divmod(int(largest.argmax()), weights.shape[1])
    still = head_maps(
        weights,
        first=first,
        title="All heads: rows ask, columns answer",
        alt=f"Small maps, a row per layer and a column per head. The most decided is head {first + head} of layer "
        f"{first + layer}: {_looks(weights[layer, head], rows, columns)}",
    )
    return View(still, "all_heads", data, title="All heads at a glance: choose one to enlarge it", uses=["words"])


def _numbered(weights: Tensor, rows: Sequence[str], columns: Sequence[str], first: int) -> dict:
    """The weights in hundredths, to be shown as they are."""
    layers, heads, queries, keys = weights.shape
    _check_names(rows, queries, "queries")
    _check_names(columns, keys, "keys")
    return {
        "weights": (100 * weights.double()).round().int(),
        "rows": list(rows),
        "columns": list(columns),
        "layers": [first + layer for layer in range(layers)],
        "heads": [first + head for head in range(heads)],
    }


def _lines(
    weights: Float[Tensor, "head query key"], rows: Sequence[str], columns: Sequence[str], heads: list[int], title: str
) -> Picture:
    """Per head, words that ask on the left and words that answer on the right, joined as strongly as they look."""
    longest = max(len(rows), len(columns))
    down, across, size = fit(len(heads), 1, 4.4, smallest=3.0, margin=0, gap=0)
    with drawing():
        width, height = size * across, 0.4 + (0.5 + 0.28 * longest) * down
        figure, all_axes = panels(len(heads), width=width, height=height, columns=across)
        for head, axes, table in zip(heads, all_axes, weights.tolist(), strict=True):
            for query, row in enumerate(table):
                for key, weight in enumerate(row):
                    axes.plot([0, 1], [query, key], color=PALETTE[0], alpha=min(weight, 1.0), linewidth=1 + 3 * weight)
            for words, place, side in ((rows, -0.05, "right"), (columns, 1.05, "left")):
                for index, word in enumerate(words):
                    axes.text(place, index, word, ha=side, va="center")
            axes.set(xlim=(-1, 2), ylim=(longest - 0.5, -0.5))
            axes.axis("off")
            axes.set_title(f"head {head}", fontweight="normal", fontsize=11)
        headline(figure, title)
        looks = (f"Head {head}: {_looks(table, rows, columns)}." for head, table in zip(heads, weights, strict=True))
        return Picture(figure, f"Words joined by lines, a drawing per head. {' '.join(looks)}")


def _arithmetic(
    match: Float[Tensor, "key"],
    shares: dict[str, Float[Tensor, "key"]],
    v: Float[Tensor, "key value_dim"],
    columns: Sequence[str],
    width: int,
    word: str,
) -> Picture:
    """A query's products with the keys, plain and scaled; its weights; entries of the values and their mixture."""
    scores = {"q · k": match, f"q · k / √{width}": match / width**0.5}
    mixture = next(iter(shares.values())) @ v  # (value_dim,)
    values = {
        f"value, entry {entry}": torch.cat([v[:, entry], mixture[entry, None]]) for entry in range(min(3, v.shape[-1]))
    }
    with drawing():
        figure, all_axes = panels(3, width=3.4 + 0.8 * len(columns), height=6.4, columns=1)
        for axes, lines, signed in zip(all_axes, (scores, shares, values), (True, False, True), strict=True):
            names = [*columns, "mixture"] if lines is values else list(columns)
            matrices.draw_cells(axes, torch.stack([*lines.values()]), numbers=True, diverging=signed)
            matrices.name_cells(axes, list(lines), names, most_letters=12)
            axes.set_xlim(-0.5, len(columns) + 0.5)  # room for the mixture, in all of them
        all_axes[-1].axvline(len(columns) - 0.5, color="white", linewidth=6)
        headline(figure, f"What “{word}” gets: products, scores, weights, and a mixture of the values")
        numbers = ", ".join(f"{score:.2f} with {name}" for name, score in zip(columns, match.tolist(), strict=True))
        told = "; ".join(f"{name}: {_shares(share, columns)}" for name, share in shares.items())
        return Picture(
            figure,
            f"The query “{word}”. Dot products: {numbers}. Weights of the keys, {told}. Below: the values' mixture.",
        )


def _check_names(names: Sequence[str], count: int, what: str) -> None:
    if len(names) != count:
        raise ValueError(f"{count} {what} need a name each, got {len(names)} names: {', '.join(names)}")


def _shares(weights: Tensor, names: Sequence[str]) -> str:
    return ", ".join(f"{share:.2f} on {name}" for name, share in zip(names, weights.tolist(), strict=True))


def _looks(weights: Tensor, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Where each word looks most, for whoever cannot see it."""
    best = weights.max(dim=-1)
    return "; ".join(
        f"{word} looks most at {columns[key]}, {share:.2f}"
        for word, key, share in zip(rows, best.indices.tolist(), best.values.tolist(), strict=True)
    )
