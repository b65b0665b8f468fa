"""Attacks on the grader: each is a wrong answer to the task `target` of `sample/09_target.py`, and a payload that wants
points for it, or something else that isn't its author's: a solution, a hidden test, somebody's grade, the machine.

An attack is a function that returns the answer's source, or a dict of answers by task, or a whole notebook, or the
bytes of a file; its docstring says what it tries. `corpus` collects them. Nothing here runs outside a sandbox.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "sample" / "09_target.py"
POINTS = {"before": 2, "target": 5, "after": 3, "rests": 1}
FILES = ("evidence", "kernel", "wires", "cells", "parsing", "pages", "leaks", "resources", "escape")

RIGHT = {
    "before": "def centre(x):\n    return x - x.mean(-1, keepdim=True)",
    "target": "def spread(x):\n    return x.max(-1).values - x.min(-1).values\n\n\ndef winners(x):\n"
    "    return int((x == x.max()).any(-1).sum())",
    "after": "def doubled(x):\n    return x + x",
    "rests": "def widest(x):\n    return int((x.max(-1).values - x.min(-1).values).argmax())",
}
WRONG = """
def spread(x):
    return torch.zeros(len(x))


def winners(x):
    return 0
"""


@dataclass(frozen=True)
class Attack:
    """One attack. `loses` are the tasks that it may not get points for; all others are honest and get theirs."""

    name: str
    says: str
    make: Callable[..., Any]
    loses: tuple[str, ...] = ("target",)
    status: str | None = "graded"  # None: any
    knows: tuple[str, ...] = ()  # what it is given, by name: released, public, earlier, host


_attacks: dict[str, Attack] = {}


def attack(*loses: str, status: str | None = "graded", knows: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
    """Adds a function to the corpus; the first sentence of its docstring says what it tries."""

    def add(make: Callable) -> Callable:
        name = make.__name__.strip("_").replace("_", "-")
        if name in _attacks:
            raise ValueError(f"two attacks are called {name}")
        _attacks[name] = Attack(name, (make.__doc__ or "").strip(), make, loses or ("target",), status, knows)
        return make

    return add


def corpus() -> dict[str, Attack]:
    """All attacks by name."""
    for file in FILES:
        import_module(f"{__name__}.{file}")
    return dict(_attacks)


def filled(released: Any, answers: dict[str, str]) -> Any:
    """A copy of the released notebook with these answers in it."""
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    return notebook
