"""What the author knows about a task: the usual wrong answers, and other right ones.

Both calls stand in cells tagged `mistakes`, which are never released. They only note down; `txlib release` and the
tests run what was noted. In a notebook they do nothing.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownAnswer:
    """An answer to a task: wrong with a sentence, right without one."""

    task: str
    answer: Any
    sentence: str | None = None


_noted: list[KnownAnswer] | None = None


def mistake(task: str, answer: Any, sentence: str) -> None:
    """A known wrong answer to a task, and the sentence a good tutor says to it.

    `answer` stands in for the function or class that the task's solution cell defines; where the cell defines
    several, it is a dict from names to stand-ins. Inside it every name means the reference's, so that
    `lambda n: ~causal_mask(n)` inverts the right mask.
    """
    if not sentence.strip():
        raise ValueError(f'mistake("{task}", …) needs a sentence that tells the learner what went wrong')
    _note(KnownAnswer(task, answer, sentence))


def alternative(task: str, answer: Any) -> None:
    """Another right answer to a task, written differently: release proves that its check accepts it."""
    _note(KnownAnswer(task, answer))


@contextlib.contextmanager
def noting() -> Iterator[list[KnownAnswer]]:
    """Within the block, collect the known answers."""
    global _noted
    outer, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = outer


def _note(answer: KnownAnswer) -> None:
    if _noted is not None:
        _noted.append(answer)
