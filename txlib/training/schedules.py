"""How the learning rate moves: functions from the number of a step, counted from 1, to a factor or a rate."""


def noam(step: int, d_model: int, warmup: int = 4000) -> float:
    """The paper's learning rate: rises linearly for `warmup` steps, then falls with 1 / √step (Vaswani et al. 2017, eq. 3)."""
    if step < 1 or warmup < 1:
        raise ValueError(f"noam counts steps from 1 and needs warmup >= 1, got step={step}, warmup={warmup}")
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def warmup_linear(step: int, total: int, warmup: int) -> float:
    """A factor that rises linearly from 0 to 1 during `warmup` steps, then falls linearly to 0 after step `total`."""
    if step < 1 or total < 1:
        raise ValueError(f"warmup_linear counts steps from 1 and needs total >= 1, got step={step}, total={total}")
    if step <= warmup:
        return step / warmup
    return max(0.0, (total + 1 - step) / max(1, total + 1 - warmup))
