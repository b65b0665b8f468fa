"""Views of attention: a lookup whose query can be dragged, the arithmetic of one query, and what heads look at."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from txcourse.explore.view import View
from txcourse.figures.bert import head_kinds
from txlib.attention import attention_weights
from txlib.plots import matrices


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
    score = scale * keys @ query  # (key,)
    hard, soft = torch.nn.functional.one_hot(score.argmax(), len(keys)), score.softmax(dim=0)
    still = matrices.heatmap(
        torch.stack([hard, soft]),
        rows=["hard", "soft"],
        columns=list(names),
        title="A hard and a soft lookup",
        xlabel="key",
        ylabel="lookup",
        size=0.7,
        alt="Shares of the keys. Hard: all on the best key. Soft: "
        + ", ".join(f"{share:.2f} on {name}" for name, share in zip(names, soft, strict=True)),
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
    still = matrices.heatmap(
        weights,
        rows=list(rows),
        columns=list(columns),
        title="Each query's shares of the keys",
        size=0.7,
        alt=_looks(weights, rows, columns),
    )
    data = {"q": q, "k": k, "v": v, "rows": list(rows), "columns": list(columns), "allowed": allowed}
    return View(
        still,
        "arithmetic",
        data | {"query": row, "key": weights[row].argmax()},
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
    still = matrices.heads(
        weights[0],
        rows=list(rows),
        columns=list(columns),
        names=[f"head {first + head}" for head in range(weights.shape[1])],
        title="What each head looks at" + (f", in layer {first}" if len(weights) > 1 else ""),
        alt=f"Weights of {weights.shape[1]} heads. Head {first}: {_looks(weights[0, 0], rows, columns)}",
    )
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


def _check_names(names: Sequence[str], count: int, what: str) -> None:
    if len(names) != count:
        raise ValueError(f"{count} {what} need a name each, got {len(names)} names: {', '.join(names)}")


def _looks(weights: Tensor, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Where each word looks most, for whoever cannot see it."""
    best = weights.max(dim=-1)
    return "; ".join(
        f"{word} looks most at {columns[key]}, {share:.2f}"
        for word, key, share in zip(rows, best.indices.tolist(), best.values.tolist(), strict=True)
    )
