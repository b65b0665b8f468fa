"""The delta rule: a state that is corrected at each key instead of added to."""

import torch
from jaxtyping import Float
from torch import Tensor

from txlib.attention.kernelized import CHUNK, faded_products, running_sums


def delta_rule(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch heads length head_dim"],
    v: Float[Tensor, "batch heads length value_dim"],
    beta: Float[Tensor, "batch heads length"],
    *,
    fade: Float[Tensor, "batch heads length"] | Float[Tensor, "batch heads length head_dim"] | None = None,
    state: Float[Tensor, "batch heads head_dim value_dim"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Tensor, "batch heads length value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
    """Return S_tᵀ q_t for each position, and the last state S (Schlag et al. 2021, §4.2; Yang et al. 2025, §3.1):

        S ← α_t S;   written_t = β_t (v_t - Sᵀ k_t);   S ← S + k_t written_tᵀ,   α_t = e^fade_t

    A key first reads what the state returns for it, and only a part β of the difference is written. With |k| = 1 and
    β = 1 the state then returns v_t for k_t. With β = 0 nothing is written. α_t is one number per head, or one for each
    feature of the keys, that is for each row of S (Kimi Team 2025, §3).

    What a chunk writes solves a triangular system, as each key also reads what the earlier ones of the chunk have
    written (Yang et al. 2024b, §3.2). With these values the rest is `running_sums`.

    Args:
        beta: between 0 and 1, how much of the difference is written.
        fade: logarithm, at most 0, of the fraction that each key leaves of the state before it, or of each row; None:
            nothing fades.
        state: the state before these positions; None: zeros.
        chunk: positions at a time; it changes time and memory, not the numbers. By default 64, or 16 where each feature
            fades by itself.
    """
    if state is None:
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    fade = torch.zeros_like(beta) if fade is None else fade
    fade = fade[..., None] if fade.ndim == 3 else fade  # (batch, heads, length, 1 or head_dim)
    chunk = chunk or (CHUNK if fade.shape[-1] == 1 else CHUNK // 4)
    outs = []
    for q_c, k_c, v_c, beta_c, fade_c in zip(*(x.split(chunk, 2) for x in (q, k, v, beta, fade)), strict=True):
        passed = fade_c.cumsum(dim=-2)  # since the chunk began
        overlap = faded_products(k_c, k_c, passed)  # (…, key, earlier key)
        difference = v_c - (k_c * passed.exp()) @ state  # from what the state before the chunk returns
        system, target = beta_c[..., None] * overlap, beta_c[..., None] * difference
        written = torch.linalg.solve_triangular(system, target, upper=False, unitriangular=True)
        out, state = running_sums(q_c, k_c, written, 0, fade=fade_c, state=state, chunk=chunk)
        outs.append(out)
    return torch.cat(outs, dim=2), state
