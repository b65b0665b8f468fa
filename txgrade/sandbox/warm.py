"""The sandbox for the length of a run: tight enough here, and warm."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from txgrade.sandbox import Limits, Zygote, probe
from txgrade.sandbox.probe import visible_inside


def required_isolation(trust: bool) -> str:
    """The level that a sandbox has here.

    Raises:
        ValueError: it is below `sealed`, and nobody said that the submissions are to be trusted.
    """
    isolation = probe()
    if isolation.level != "sealed" and not trust:
        raise ValueError(
            f"no sealed sandbox here ({isolation.level}): {'; '.join(isolation.holes)}. Install bubblewrap, or "
            "give --trust-submissions if you know everyone who wrote them"
        )
    return isolation.level


@contextlib.contextmanager
def warm_kernels(
    modules: Iterable[str],
    limits: Limits,
    isolation: str,
    trust: bool,
    hidden: Iterable[Path] = (),
    data: Mapping[str, Path] | None = None,
) -> Iterator[None]:
    """Within the block, kernels come from a zygote that holds the `modules`.

    `data` are an assignment's, by place, as its cells name them: each kernel can read them there.

    Raises:
        ValueError: a kernel could look into one of the folders that are to be `hidden`.
    """
    settings = {"OMP_NUM_THREADS": "1"}
    if data:
        settings["TXGRADE_ASSIGNMENT_DATA"] = json.dumps({place: str(path) for place, path in data.items()})
    if trust:
        settings["TXGRADE_TRUST_SUBMISSIONS"] = "1"
    before = dict(os.environ)
    try:
        os.environ.update(settings)
        if isolation != "sealed":
            yield
            return
        with Zygote(modules, data=data) as zygote:
            if seen := visible_inside(zygote, hidden):
                raise ValueError(
                    f"{seen[0]} could be read inside the sandbox, since it lies below a folder that Python or the "
                    "system needs there: move it, e.g. into your home"
                )
            os.environ["TXGRADE_ZYGOTE"] = str(zygote.address)
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
