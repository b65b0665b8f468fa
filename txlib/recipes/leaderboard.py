"""All finished runs next to each other, the best first."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txlib.training.checkpoints import read_json

Column = str | Callable[[Mapping[str, Any]], str]  # a format string, or a function of a run's result

COLUMNS: dict[str, Column] = {
    "model": "{model}",
    "preset": "{preset}",
    "parameters": "{parameters:,}",
    "steps": "{steps:,}",
    "CPU s": "{cpu_seconds:,.0f}",
}
"""Of every leaderboard, by title."""


def leaderboard(
    out: Path | str, score: str, columns: Mapping[str, Column], *, descending: bool = True, **settings: Any
) -> str:
    """Return a table of all finished runs in the parent folder of `out` that have this score and these settings.

    Args:
        score: of `result.json`, to sort by.
        columns: by title, what they show of a run's result.
        descending: the highest score is the best.
        settings: entries of `result.json` that all runs share.
    """
    results = [read_json(path) for path in Path(out).absolute().parent.glob("*/model/result.json")]
    results = [
        {"model": "transformer", **result}
        for result in results
        if score in result and all(result.get(name) == value for name, value in settings.items())
    ]
    results.sort(key=lambda result: result[score], reverse=descending)
    cells = [list(columns)]
    for result in results:
        cells.append([show(result) if callable(show) else show.format_map(result) for show in columns.values()])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [title not in ("model", "preset", "augment") for title in columns]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in cells
    )
    return "\n".join(lines)
