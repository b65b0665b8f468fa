"""Measures the weights or tokens that an answer made, on data that no submission ever sees.

The author's `measured(task, function)` does it, in a fresh process, with the names of the author's source.
A submission contributes nothing but numbers.
"""

import base64
import json
import math
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any

from txgrade.authoring.exercise import Exercise, read_exercise
from txgrade.authoring.record import RecordingError, author_declarations, in_fresh_process, reference_names
from txgrade.evidence.values import MAX_MESSAGE, restored, writable

MEMORY = 4096  # MB that measuring may take, where no limits are given


class NotFinite(ValueError):
    """A weight that no measure can take; the message is for the learner."""


def measure(
    path: Path | str,
    requests: list[dict],
    *,
    variant: int | None = None,
    timeout: int | float = 600,
    memory_mb: int = MEMORY,
) -> list[dict]:
    """Return the fraction of the points, 0 to 1, and a sentence or "", for each `{"task", "seed", "bundle"}`.

    The process has `memory_mb` of memory beyond what the source's own code takes: what a learner chose can't swell it.

    Bundles are well formed (`evidence.bundle_problem`). What the author's function raises, and no number at all, is
    0: bad numbers are the answer's. A result outside 0 to 1 is the author's: `{"error": what is wrong}` in its place.

    Raises:
        RecordingError: the source's own code fails.
    """
    run = partial(in_fresh_process, "txgrade.authoring.measure", path, timeout=timeout, variant=variant)
    try:
        return run({"requests": requests, "memory_mb": memory_mb})
    except RecordingError:
        run({"requests": [], "memory_mb": memory_mb})  # is it the source's own code that fails?
    results = []
    for request in requests:
        try:
            results += run({"requests": [request], "memory_mb": memory_mb})
        except RecordingError:
            results.append(
                {"share": 0.0, "sentence": "What your answer shows could not be measured within the limits."}
            )
    return results


def measured_shares(
    exercise: Exercise, measured: list[str], runs: dict[int, dict]
) -> dict[tuple[str, int], list[dict]]:
    """Return what the measured tasks' answers are worth, by (task, seed): the reference's, each known answer's, and
    last that of absurd weights.

    An answer whose check ends in an error is worth 0.
    """
    bundles = {}
    for task in measured:
        for seed, run in runs.items():
            answers = [task_bundles["bundle"] for task_bundles in run["known"] if task_bundles["task"] == task]
            bundles[task, seed] = [run["reference"][task], *answers, _absurd(run["reference"][task])]
    requests = [
        {"task": task, "seed": seed, "bundle": bundle}
        for (task, seed), task_bundles in bundles.items()
        for bundle in task_bundles
        if not bundle["error"]
    ]
    shares = iter(measure(exercise.path, requests, variant=exercise.variant) if requests else ())
    failed = {"share": 0.0, "sentence": "Its check ends in an error."}
    return {
        key: [failed if bundle["error"] else next(shares) for bundle in task_bundles]
        for key, task_bundles in bundles.items()
    }


def _absurd(bundle: dict) -> dict:
    """Return a bundle with weights so large that every number made of them is infinite or NaN."""
    shown, huge = [], struct.pack("<ff", 3e38, -3e38)
    for result in bundle["shown"]:
        if result["value"]["kind"] == "weights":
            sizes = [math.prod(tensor["shape"]) for tensor in result["value"]["tensors"]]
            tensors = [
                tensor | {"float32": base64.b64encode((huge * size)[: 4 * size]).decode()}
                for tensor, size in zip(result["value"]["tensors"], sizes, strict=True)
            ]
            shown.append(result | {"value": {"kind": "weights", "tensors": tensors}})
    return bundle | {"shown": shown}


def shown_values(bundle: dict) -> list:
    """Return what the author's function gets: the shown values, weights as a dict of float32 tensors, tokens as lists.

    Raises:
        NotFinite: a weight is NaN or infinite.
    """
    return [_value(result["value"]) for result in bundle["shown"]]


def _value(evidence: dict) -> Any:
    kind = evidence["kind"]
    if kind == "weights":
        return {tensor["name"]: _weight(tensor) for tensor in evidence["tensors"]}
    if kind == "tokens":
        return evidence["rows"]
    return None if kind in ("other", "error") else restored(evidence)


def _weight(tensor: dict) -> Any:
    import numpy as np
    import torch

    values = np.frombuffer(base64.b64decode(tensor["float32"]), dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise NotFinite(f"The weight `{tensor['name']}` holds NaN or infinity.")
    return torch.from_numpy(values).reshape(tensor["shape"])


def _measured(function: Any, request: dict) -> dict:
    import numpy as np
    import torch

    from txgrade.checking.inputs import private_inputs
    from txgrade.seeds import derived_seed

    task = request["task"]
    seed = derived_seed(request["seed"], task, "measure")
    torch.manual_seed(seed)
    np.random.seed(seed)
    try:
        answer = function(shown_values(request["bundle"]), private_inputs(request["seed"], task))
        share, sentence = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        share = share.item() if hasattr(share, "item") else share
    except NotFinite as reason:
        return {"share": 0.0, "sentence": str(reason)}
    except Exception as reason:
        why = (str(reason).splitlines() or [""])[0]
        sentence = f"What your answer shows can't be measured: `{type(reason).__name__}`: {why}"
        return {"share": 0.0, "sentence": writable(sentence, MAX_MESSAGE)}
    if not isinstance(share, (bool, int, float)) or not isinstance(sentence, str):
        return {
            "error": f'measured("{task}", …) gives {answer!r:.100}; it has to give a share from 0 to 1, or '
            "(share, sentence)"
        }
    if math.isnan(share):
        return {"share": 0.0, "sentence": "What your answer shows leads to no number: NaN."}
    if not 0 <= share <= 1:
        return {
            "error": f'measured("{task}", …) gives {share:g}; keep it from 0 to 1, e.g. '
            "by max(0, min(share, 1)), which makes 0 of NaN; min(1, share) would make 1"
        }
    return {"share": float(share), "sentence": sentence}


def bound_memory(memory_mb: int | float) -> None:
    """Let this process have so much more memory than it has now, where the system can bound it (Linux)."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(memory_mb * 2**20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError):
        return


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    try:
        exercise = read_exercise(arguments["path"], arguments["variant"])
        functions = author_declarations(exercise, reference_names(exercise, exercise.seed)).measured
        bound_memory(arguments["memory_mb"])
        result: Any = [_measured(functions[request["task"]], request) for request in arguments["requests"]]
    except RecordingError as reason:
        result = {"failure": str(reason)}
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
