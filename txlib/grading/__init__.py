"""Exercises that tell a learner what is wrong, and a grader that trusts nothing in a submission.

In a notebook: `from txlib.grading import check`. How to write an exercise is in docs/exercises.md, how grading
works and what it withstands in docs/grading.md.
"""

from importlib import import_module

_HOME = {
    "alternative": "known", "check": "checks", "due": "known", "forbid": "known", "measured": "known",
    "mistake": "known", "progress": "progress_file",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Load a name where it is first used: the grader itself runs without torch, and starts sooner for it."""
    if name in _HOME:
        return getattr(import_module(f"txlib.grading.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
