"""Views of attention: a lookup whose query can be dragged, the arithmetic of one query, and what heads look at."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from txcourse.explore.view import View
from txcourse.figures.bert import head_kinds
from txlib.attention import attention_weights
from txlib.plots import matrices
from txlib.plots.picture import PALETTE, Picture, drawing, panels

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
    score = scale * keys @ turned  # (key,)
    hard, soft = torch.nn.functional.one_hot(score.argmax(), len(keys)), score.softmax(dim=0)
    answers = {name: float(weight.float() @ values.float()) for name, weight in (("hard", hard), ("soft", soft))}
    still = matrices.heatmap(
        torch.stack([hard, soft]),
        rows=[f"{name}: answers {answer:.1f}" for name, answer in answers.items()],
        columns=[f"{name} holds {value:g}" for name, value in zip(names, values.tolist(), strict=True)],
        title=f"After the query has turned by {TURN}°",
        xlabel="key",
        ylabel="lookup",
        size=0.7,
        alt=f"Shares of the keys after the query has turned by {TURN}°. Hard: all on {names[int(score.argmax())]}. "
        f"Soft: {_shares(soft, names)}. Answers: {answers['hard']:.1f} and {answers['soft']:.1f}.",
    )
    data = {"keys": keys, "values": values, "query": query, "names": list(names), "scale": scale}
    return View(still, "lookup", data, title="Turn the query: what do a hard and a soft lookup answer?")


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
    still = matrices.heatmap(
        torch.stack([weights[row], without]),
        rows=["all keys", f"{columns[best]} hidden"],
        columns=list(columns),
        title=f"Who gets the share of “{columns[best]}”?",
        ylabel=f"query “{rows[row]}”",
        size=0.7,
        alt=f"Shares of the keys for “{rows[row]}”. With all keys: {_shares(weights[row], columns)}. "
        f"With “{columns[best]}” hidden: {_shares(without, columns)}.",
    )
    data = {"q": q, "k": k, "v": v, "rows": list(rows), "columns": list(columns), "allowed": allowed}
    return View(
        still,
        "arithmetic",
        data | {"query": row, "key": best},
        title="One query's arithmetic: products, score, share, mixture",
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
    layer, head = (first + count - 1 for count in weights.shape[:2])  # the last ones; the view opens with the first
    still = _lines(weights[-1, -1], rows, columns, f"head {head}" + (f" of layer {layer}" if len(weights) > 1 else ""))
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
    still = head_kinds(
        {"largest weight": largest},
        title="All heads: the largest weight of each",
        alt=f"A map with a row per layer and a column per head. The most decided is head {first + head} of layer "
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


def _lines(weights: Tensor, rows: Sequence[str], columns: Sequence[str], name: str) -> Picture:
    """Words that ask on the left, words that answer on the right, joined by lines as strong as the weights."""
    with drawing():
        longest = max(len(rows), len(columns))
        figure, (axes,) = panels(width=4.6, height=0.7 + 0.28 * longest)
        for query, row in enumerate(weights.tolist()):
            for key, weight in enumerate(row):
                axes.plot([0, 1], [query, key], color=PALETTE[0], alpha=min(weight, 1.0), linewidth=1 + 3 * weight)
        for words, place, side in ((rows, -0.05, "right"), (columns, 1.05, "left")):
            for index, word in enumerate(words):
                axes.text(place, index, word, ha=side, va="center")
        axes.set(xlim=(-1, 2), ylim=(longest - 0.5, -0.5))
        axes.axis("off")
        axes.set_title(f"What {name} looks at")
        return Picture(figure, f"Words joined by lines, {name}: {_looks(weights, rows, columns)}.")


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
