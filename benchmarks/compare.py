"""Run a peer and ours in turns, take medians, print one table, write one JSON file: the base of all benchmarks."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One line of the table. `peer` and `ours` are medians of the same quantity, measured in the same run."""

    what: str
    unit: str
    peer: float
    ours: float
    limit: float | None = None  # what ours should stay below, or above where more is better
    more_is_better: bool = False

    @property
    def ratio(self) -> float:
        """How many times better ours is."""
        return self.ours / self.peer if self.more_is_better else self.peer / self.ours


def in_turns(ways: dict[str, Callable[[], float]], rounds: int, *, quiet: bool = False) -> dict[str, list[float]]:
    """Call each way once a round, in turns, so that a busy minute hits all of them; returns what each measured.

    The order turns round from one round to the next.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            found[name].append(ways[name]())
            if not quiet:
                print(f"round {number + 1} of {rounds}, {name}: {found[name][-1]:.3f}", flush=True)
    return found


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def table(rows: Iterable[Row]) -> str:
    """The rows with a heading: peer, ours, ratio, limit."""
    line = "{:<44} {:>9} {:>9} {:>7} {:>8}".format
    lines = [line("", "peer", "ours", "ratio", "limit")]
    for row in rows:
        limit = "–" if row.limit is None else f"{'≥' if row.more_is_better else '≤'} {row.limit:g}"
        lines.append(line(f"{row.what}, {row.unit}", f"{row.peer:.3g}", f"{row.ours:.3g}", f"{row.ratio:.3g}", limit))
    return "\n".join(lines)


def environment(packages: Iterable[str]) -> dict[str, object]:
    """When and on what it was measured: the date, the machine, the versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "load": [round(each, 2) for each in os.getloadavg()],
        },
        "versions": {"python": platform.python_version()} | {each: _version(each) for each in packages},
    }


def save(
    name: str, rows: Iterable[Row], measured: dict[str, list[float]], packages: Iterable[str], **more: object
) -> Path:
    """Write `results/NAME.json`: the rows, every single measurement, the date, the machine, the versions, and more."""
    result = {
        **environment(packages),
        **more,
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
        "measured": measured,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def median(values: list[float]) -> float:
    return statistics.median(values)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
