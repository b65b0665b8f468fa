"""How good are a model's answers, and how sure can one be? pass@k, the majority's answer, intervals."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np


def pass_at_k(answers: int, right: int, k: int) -> float:
    """Return the probability that at least one of k answers is right, estimated from more of them without bias: 1 minus
    the share of choices of k that hold no right one (Chen et al. 2021, eq. 1).

    Args:
        answers: that were drawn for a task.
        right: how many of them are right.

    Raises:
        ValueError: unless 0 ≤ right ≤ answers and 1 ≤ k ≤ answers.
    """
    if not 0 <= right <= answers or not 1 <= k <= answers:
        raise ValueError(f"pass@{k} of {answers} answers, {right} right: draw at least k, and count no more than those")
    return 1 - math.comb(answers - right, k) / math.comb(answers, k)


def majority(answers: Sequence[Hashable]) -> Hashable:
    """Return the answer that most of a model's samples give, the first of those tied: self-consistency (Wang et al.
    2023).

    Raises:
        ValueError: when there are none.
    """
    if not answers:
        raise ValueError("there are no answers to choose from; draw at least one")
    return Counter(answers).most_common(1)[0][0]


def bootstrap_interval(
    scores: Sequence[int | float],
    *,
    statistic: Callable[[np.ndarray], float] = np.mean,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return an interval for a statistic of the scores: percentiles over tests of the same size, drawn from the scores
    with replacement (Efron 1979).

    Args:
        scores: of each task, or the differences of two models' scores on each task, which is far more precise than
            comparing their intervals.

    Raises:
        ValueError: for no scores, or a level outside (0, 1).
    """
    if not len(scores) or not 0 < level < 1:
        raise ValueError(f"{len(scores)} scores, level={level}: give at least one score, and a level between 0 and 1")
    values = np.asarray(scores, dtype=float)
    rows = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    drawn = [float(statistic(values[row])) for row in rows]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
