"""Which single calls of torch return a reference's values: `forbid` should name them, or `allow` speak of them."""

from pathlib import Path

from txgrade.authoring.record import in_fresh_process

OTHER_SEED = 101


def library_calls(path: Path | str, *, variant: int | None = None) -> dict[str, list[dict]]:
    """Return calls that give the reference's values, by task: `{"function", "names", "operators"}` of each.

    Left out: calls that `forbid` or `allow` name or that the reference makes itself, measured tasks, and functions
    that take no tensors.

    Raises:
        RecordingError: where the source's own code fails.
    """
    return in_fresh_process("txgrade.authoring.library_search", path, {"seed": OTHER_SEED}, variant)


def library_problems(calls: list[dict]) -> list[str]:
    """Return a line for each such call of a task, for its author."""
    return [
        f"{call['names'][0]} returns the values of the reference's {call['function']}: forbid it, "
        f"{_ways(call['operators'][:3])}; or allow(…) it, and say in the prompt that it may be used"
        for call in calls
    ]


def _ways(operators: list[str]) -> str:
    """Return how a call can be forbidden."""
    return f"by name or by operator ({', '.join(operators)})" if operators else "by name"
