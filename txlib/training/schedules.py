"""How the learning rate moves, as functions of the step's number, counted from 1."""

import math


def noam(step: int, d_model: int, warmup: int = 4000) -> float:
    """The paper's learning rate: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) (Vaswani et al. 2017, eq. 3).

    It rises linearly for `warmup` steps, then falls with 1 / √step.
    """
    return inverse_sqrt(step, warmup) * (d_model * warmup) ** -0.5


def inverse_sqrt(step: int, warmup: int) -> float:
    """The shape of `noam` as a factor: from 0 to 1 during `warmup` steps, then √(warmup / step)."""
    check(step, warmup)
    return min(step / warmup, (warmup / step) ** 0.5)


def warmup_linear(step: int, total: int, warmup: int) -> float:
    """A factor that rises linearly from 0 to 1 during `warmup` steps, then falls linearly to 0 after step `total`."""
    check(step, warmup)
    if step <= warmup:
        return step / warmup
    return max(0.0, (total + 1 - step) / max(1, total + 1 - warmup))


def warmup_cosine(step: int, total: int, warmup: int, last: float = 0.1) -> float:
    """A factor that rises linearly from 0 to 1 during `warmup` steps, then falls along half a cosine, to `last` in step
    `total` and after it (Loshchilov & Hutter 2017, eq. 5; a tenth of the peak as in Brown et al. 2020, appendix B).
    """
    check(step, warmup)
    if step <= warmup:
        return step / warmup
    along = min(1.0, (step - warmup) / max(1, total - warmup))
    return last + (1 - last) * (1 + math.cos(math.pi * along)) / 2


def check(step: int, warmup: int) -> None:
    if step < 1 or warmup < 1:
        raise ValueError(f"steps count from 1 and warm-up takes at least 1, got step={step}, warmup={warmup}")
