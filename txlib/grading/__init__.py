"""Exercises that tell a learner what is wrong: written once, released without answers, checked offline.

In a notebook: `from txlib.grading import check`. The format of an exercise is in docs/exercises.md.
"""

from txlib.grading.checks import check
from txlib.grading.known import alternative, mistake
from txlib.grading.progress_file import progress

__all__ = ["alternative", "check", "mistake", "progress"]
