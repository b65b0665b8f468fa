# %% [markdown]
# # Exercise 33 · A state instead of a cache
#
# Five tasks, 14 points, about 60 minutes. They belong to lesson [33 A state instead of a cache](../notebooks/33_state.ipynb).
# Tasks 1 and 2 are the *core*, about 25 minutes; tasks 3 to 5 are *more*. Run the cells from the top; fill in where it says
# *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher. No check
# looks at a clock. They look at how large the largest tensor gets.

# %% tags=["parameters"]
seed = 0

# %%
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### Task 1 · Fade, correct, read   ●●○○○ · 10 minutes · 2 points
#
# One head with a gate and the delta rule, as a loop. The state $S$, $(d, m)$, begins with zeros. Bring each query and each
# key to length 1 (a key of zeros stays zeros). Then, for each token: the state fades by $\alpha_t$; the key reads what is
# left; of the difference to $v_t$ a part $\beta_t$ is written; the query reads the new state.
#
# $$S \leftarrow \alpha_t S \qquad S \leftarrow S + \beta_t\, k_t \big(v_t - S^\top k_t\big)^\top \qquad o_t = S^\top q_t$$
#
# <details><summary>Hint 1: length 1</summary>
#
# `F.normalize(x, dim=-1)`.
# </details>
# <details><summary>Hint 2: reading</summary>
#
# `k_t @ S` has the shape of a value, $(m,)$.
# </details>
# <details><summary>Hint 3: writing</summary>
#
# `torch.outer(k_t, …)` has the shape of the state.
# </details>

# %% nbgrader={"grade_id": "ledger", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def ledger(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n m"], beta: Float[Tensor, "n"], alpha: Float[Tensor, "n"]
) -> Float[Tensor, "n m"]:
    """What each query reads of a state that fades and is corrected."""
    ### BEGIN SOLUTION
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    S, out = torch.zeros(k.shape[1], v.shape[1]), []
    for q_t, k_t, v_t, beta_t, alpha_t in zip(q, k, v, beta, alpha):
        S = alpha_t * S
        S = S + torch.outer(k_t, beta_t * (v_t - k_t @ S))
        out.append(q_t @ S)
    return torch.stack(out)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-ledger", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("ledger") as show:
    for n in (show.random_size(5, 8), show.random_size(3, 4), 1):
        q, k, v = 2 * show.randn(n, 3), 2 * show.randn(n, 3), show.randn(n, 2)
        show(ledger(q, k, v, show.rand(n), 0.3 + 0.7 * show.rand(n)), f"{n} tokens")
    q, k, v = show.randn(6, 3), show.randn(6, 3), show.randn(6, 2)
    k[2] = 0.0
    show(ledger(q, k, v, torch.ones(6), torch.ones(6)), "β = 1 and α = 1; one key is all zeros")
    wipes = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    show(ledger(q, k, v, 1 - 0.5 * wipes, wipes), "a token that wipes everything out")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def loop(norm_q=lambda q: F.normalize(q, dim=-1), norm_k=lambda k: F.normalize(k, dim=-1), fade=lambda alpha, S: alpha * S,
         missing=lambda v, k, S, before: v - k @ S, strength=lambda beta, x: beta * x, late=False, after=False, keeps=True):
    """The loop with one part exchanged."""
    def answer(q, k, v, beta, alpha):
        q, k = norm_q(q), norm_k(k)
        S, out = torch.zeros(k.shape[1], v.shape[1]), []
        for q_t, k_t, v_t, beta_t, alpha_t in zip(q, k, v, beta, alpha, strict=True):
            before = S
            S = S if after else fade(alpha_t, S)
            read_first = q_t @ S
            S = keeps * S + torch.outer(k_t, strength(beta_t, missing(v_t, k_t, S, before)))
            S = fade(alpha_t, S) if after else S
            out.append(read_first if late else q_t @ S)
        return torch.stack(out)
    return answer


for name in ("q", "k"):
    equivalent("ledger", f"F.normalize({name}, dim=-1) → F.normalize({name})", "By default it is axis 1, the last one of a matrix.")
mistake("ledger", loop(norm_q=lambda q: q, norm_k=lambda k: k), "Queries and keys keep their lengths. Bring each to length 1.")
mistake("ledger", lambda q, k, v, beta, alpha: ledger(k, q, v, beta, alpha), "Queries and keys are exchanged: the key writes, the query reads.")
mistake("ledger", loop(keeps=False), "The state holds the last token only: *add* what is written.")
mistake("ledger", loop(norm_k=lambda k: k), "The keys keep their length. Bring each to length 1, or the state may explode.")
mistake("ledger", loop(norm_q=lambda q: q), "The queries keep their length. Bring each to length 1, like the keys.")
mistake("ledger", loop(norm_q=lambda q: F.normalize(q, dim=0)), "The queries are normalized over the tokens. Each *row* gets length 1.")
mistake("ledger", loop(norm_k=lambda k: F.normalize(k, dim=0)), "The keys are normalized over the tokens. Each *row* gets length 1.")
mistake("ledger", loop(norm_k=lambda k: k / k.norm(dim=-1, keepdim=True)), "A key of zeros is divided by its length, 0. `F.normalize` leaves it zero.")
mistake("ledger", loop(fade=lambda alpha, S: S), "Nothing fades: multiply the state by $\\alpha_t$ before the token is written.")
mistake("ledger", loop(after=True), "The state fades after the token was written, so the token itself fades, too. First fade, then write.")
mistake("ledger", loop(missing=lambda v, k, S, before: v - k @ before),
        "The key reads the state from before it faded. Fade first: the difference is to what is *left*.")
mistake("ledger", loop(missing=lambda v, k, S, before: v), "This is a sum that fades. The delta rule writes the *difference* to what the key reads.")
mistake("ledger", loop(missing=lambda v, k, S, before: v + k @ S), "What the key reads is added. Write what is missing: $v_t - S^\\top k_t$.")
mistake("ledger", loop(missing=lambda v, k, S, before: k @ S - v), "The difference has the wrong sign: $v_t - S^\\top k_t$.")
mistake("ledger", loop(missing=lambda v, k, S, before: k @ S), "Written is what the key reads already. Write what is missing: $v_t - S^\\top k_t$.")
mistake("ledger", loop(strength=lambda beta, x: x), "You do not use $\\beta_t$: only a part of the difference is written.")
mistake("ledger", loop(strength=lambda beta, x: x / beta), "You divide by $\\beta_t$. It is the part that is written: multiply.")
mistake("ledger", loop(strength=lambda beta, x: (1 - beta) * x), "You write the part $1 - \\beta_t$. At $\\beta = 1$ all of the difference is written.")
mistake("ledger", loop(late=True), "The query reads before its own token is written. Write first, then read.")


def by_projection(q, k, v, beta, alpha):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    S, out = torch.zeros(k.shape[1], v.shape[1]), torch.zeros(len(q), v.shape[1])
    for t in range(len(q)):
        keeps = torch.eye(k.shape[1]) - beta[t] * torch.outer(k[t], k[t])
        S = alpha[t] * keeps @ S + beta[t] * torch.outer(k[t], v[t])
        out[t] = S.T @ q[t]
    return out


alternative("ledger", by_projection)

# %% [markdown]
# ### Task 2 · The delta rule in chunks   ●●●●○ · 16 minutes · 4 points
#
# Without a gate, and with keys that have length 1 already. Start from a given state `S`, go through the text in chunks of
# `chunk` tokens (the last may be shorter), and return all outputs and the last state. What a chunk writes, $u$, solves a
# triangular system:
#
# $$\big(I + \text{tril}(\beta\, k k^\top, -1)\big)\, u = \beta\,(v - k S) \qquad
# o = q S + \text{tril}(q k^\top)\, u \qquad S \leftarrow S + k^\top u$$
#
# All pairs of a chunk at once: no loop over single tokens. And no tensor may hold all pairs of the text, nor a state for
# each token.
#
# <details><summary>Hint 1: β multiplies rows</summary>
#
# `beta_c[:, None] * (k_c @ k_c.T)`: row $i$ is what token $i$ reads of the others, and its own $\beta_i$ belongs to it.
# </details>
# <details><summary>Hint 2: the system</summary>
#
# `torch.linalg.solve_triangular(system, target, upper=False)`. With `unitriangular=True` it takes the diagonal as ones.
# </details>
# <details><summary>Hint 3: the order</summary>
#
# System and outputs use the state from *before* the chunk. It changes last.
# </details>

# %% nbgrader={"grade_id": "delta-chunks", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def delta_chunks(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n m"], beta: Float[Tensor, "n"], S: Float[Tensor, "d m"],
    chunk: int,
) -> tuple[Float[Tensor, "n m"], Float[Tensor, "d m"]]:
    """What each query reads, and the state after the last token."""
    ### BEGIN SOLUTION
    out = []
    for q_c, k_c, v_c, beta_c in zip(q.split(chunk), k.split(chunk), v.split(chunk), beta[:, None].split(chunk)):
        system = torch.eye(len(k_c)) + (beta_c * (k_c @ k_c.T)).tril(-1)
        u = torch.linalg.solve_triangular(system, beta_c * (v_c - k_c @ S), upper=False)
        out.append(q_c @ S + (q_c @ k_c.T).tril() @ u)
        S = S + k_c.T @ u
    return torch.cat(out), S
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-delta-chunks", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("delta-chunks") as show:
    for n, chunk in ((show.random_size(8, 9), 3), (8, 4), (show.random_size(3, 5), 1), (5, 8)):
        q, k, v = show.randn(n, 4), F.normalize(show.randn(n, 4), dim=-1), show.randn(n, 3)
        out, S = delta_chunks(q, k, v, 0.2 + 0.8 * show.rand(n), show.randn(4, 3), chunk)
        show(out, f"n = {n}, chunks of {chunk}")
        show(S, f"n = {n}, chunks of {chunk}: the state")
    q, k, v = show.randn(256, 8), F.normalize(show.randn(256, 8), dim=-1), show.randn(256, 8)
    spent = cost(delta_chunks, q, k, v, show.rand(256), torch.zeros(8, 8), 16)
    show([show.sketch(spent.value[0]), spent.largest <= 256 * 16], "256 tokens, chunks of 16: no tensor is larger than n × chunk")
    q, k, v = show.randn(64, 2), F.normalize(show.randn(64, 2), dim=-1), show.randn(64, 2)
    spent = cost(delta_chunks, q, k, v, show.rand(64), torch.zeros(2, 2), 64)
    show([show.sketch(spent.value[0]), spent.largest >= 64 * 64], "64 tokens in one chunk: their pairs are computed at once")

# %% tags=["mistakes"]
def chunked(strict=lambda x: x.tril(-1), weigh=lambda beta, x: beta * x, target=lambda v, k, S, beta: beta * (v - k @ S),
            read=lambda q, k, u, S: q @ S + (q @ k.T).tril() @ u, update=lambda S, k, u: S + k.T @ u, first=False,
            solve=lambda A, b: torch.linalg.solve_triangular(A, b, upper=False)):
    """The loop over chunks with one part exchanged."""
    def answer(q, k, v, beta, S, chunk):
        out = []
        for q_c, k_c, v_c, beta_c in zip(*(x.split(chunk) for x in (q, k, v, beta[:, None])), strict=True):
            system = torch.eye(len(k_c)) + strict(weigh(beta_c, k_c @ k_c.T))
            u = solve(system, target(v_c, k_c, S, beta_c))
            before, S = S, update(S, k_c, u)
            out.append(read(q_c, k_c, u, S if first else before))
        return torch.cat(out), S
    return answer


def token_by_token(q, k, v, beta, S, chunk):
    out = []
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta, strict=True):
        S = S + torch.outer(k_t, beta_t * (v_t - k_t @ S))
        out.append(q_t @ S)
    return torch.stack(out), S


def whole_chunks(q, k, v, beta, S, chunk):
    whole = len(q) // chunk * chunk
    if not whole:
        return torch.zeros(len(q), v.shape[1]), S
    out, S = delta_chunks(q[:whole], k[:whole], v[:whole], beta[:whole], S, chunk)
    return torch.cat([out, torch.zeros(len(q) - whole, v.shape[1])]), S


mistake("delta-chunks", lambda q, k, v, beta, S, chunk: delta_chunks(k, q, v, beta, S, chunk),
        "Queries and keys are exchanged: keys write, queries read.")
mistake("delta-chunks", chunked(weigh=lambda beta, x: beta + 0 * x), "The overlaps of the keys are missing in the system: $\\beta\\, k k^\\top$.")
mistake("delta-chunks", chunked(target=lambda v, k, S, beta: beta + 0 * v), "On the right side the values are missing: $\\beta\\,(v - kS)$.")
mistake("delta-chunks", chunked(solve=lambda A, b: torch.linalg.solve_triangular(A - torch.eye(len(A)), b, upper=False)),
        "$I$ is missing: without ones on the diagonal the system has no solution.")
mistake("delta-chunks", token_by_token,
        "The numbers are right, but they are computed token by token. Solve the system of a chunk, and compute its pairs at once.")
mistake("delta-chunks", lambda q, k, v, beta, S, chunk: delta_chunks(q, k, v, beta, S, len(q)),
        "The numbers are right, but all pairs of the text stand in one matrix. Take `chunk` tokens at a time.")
mistake("delta-chunks", whole_chunks, "The last tokens are left out where the length is no multiple of the chunk.")
mistake("delta-chunks", lambda q, k, v, beta, S, chunk: delta_chunks(q, k, v, beta, 0 * S, chunk),
        "The given state is not used: a text may go on from an earlier one.")
mistake("delta-chunks", chunked(strict=lambda x: x.tril()),
        "The diagonal counts twice: $I$ has it, so the overlaps begin below it. A token does not read what it is about to write.")
mistake("delta-chunks", chunked(strict=lambda x: x.tril(-1), solve=lambda A, b: b),
        "The system is not solved: each token writes as if the others of its chunk wrote nothing.")
mistake("delta-chunks", chunked(solve=lambda A, b: A @ b), "You multiply by the system. $u$ is what the system *times $u$* gives: solve it.")
mistake("delta-chunks", chunked(solve=lambda A, b: torch.linalg.solve_triangular(A.T, b, upper=True)),
        "The system is turned round: token $i$ reads what *earlier* tokens wrote, below the diagonal.")
mistake("delta-chunks", chunked(weigh=lambda beta, x: x), "β is missing in the system: row $i$ of the overlaps is multiplied by $\\beta_i$.")
mistake("delta-chunks", chunked(weigh=lambda beta, x: beta.T * x),
        "β multiplies the columns. It belongs to the token that writes, row $i$: `beta_c[:, None]`.")
mistake("delta-chunks", chunked(target=lambda v, k, S, beta: v - k @ S), "On the right side β is missing: $\\beta\\,(v - kS)$.")
mistake("delta-chunks", chunked(target=lambda v, k, S, beta: beta * v),
        "What the keys read of the state before the chunk is missing: $\\beta\\,(v - kS)$.")
mistake("delta-chunks", chunked(target=lambda v, k, S, beta: beta * v - k @ S), "β multiplies the whole difference: $\\beta\\,(v - kS)$.")
mistake("delta-chunks", chunked(target=lambda v, k, S, beta: beta * (v + k @ S)), "What the keys read is *subtracted*: $\\beta\\,(v - kS)$.")
mistake("delta-chunks", chunked(read=lambda q, k, u, S: q @ S + (q @ k.T) @ u),
        "Inside a chunk each query sees all that is written, also later: the *future*. Keep $j \\le i$, with `tril`.")
mistake("delta-chunks", chunked(read=lambda q, k, u, S: q @ S + (q @ k.T).tril(-1) @ u),
        "A query does not read its own token. It was written before: keep the diagonal.")
mistake("delta-chunks", chunked(read=lambda q, k, u, S: (q @ k.T).tril() @ u), "What the queries read of the state before the chunk is missing: $qS$.")
mistake("delta-chunks", chunked(read=lambda q, k, u, S: q @ S), "What the queries read of their own chunk is missing: $\\text{tril}(q k^\\top)\\, u$.")
mistake("delta-chunks", chunked(read=lambda q, k, u, S: q @ S - (q @ k.T).tril() @ u), "What the chunk wrote is *added* to what the queries read.")
mistake("delta-chunks", chunked(first=True),
        "The state changes before the queries have read it, so the chunk is seen twice. Outputs first, then the state.")
mistake("delta-chunks", chunked(update=lambda S, k, u: k.T @ u), "The state of the earlier chunks is lost: add to it.")
mistake("delta-chunks", chunked(update=lambda S, k, u: S), "The state never changes: later chunks don't see what this one wrote.")
mistake("delta-chunks", chunked(update=lambda S, k, u: S - k.T @ u), "What is written is *added* to the state: $S + k^\\top u$.")


def sum_of_values(q, k, v, beta, S, chunk):
    out = []
    for q_c, k_c, v_c in zip(q.split(chunk), k.split(chunk), v.split(chunk), strict=True):
        out.append(q_c @ S + (q_c @ k_c.T).tril() @ v_c)
        S = S + k_c.T @ v_c
    return torch.cat(out), S


mistake("delta-chunks", sum_of_values, "This is the sum: values are written as they are. The delta rule writes $u$, which solves the system.")


def by_inverse(q, k, v, beta, S, chunk):
    out = torch.empty(len(q), v.shape[1])
    for start in range(0, len(q), chunk):
        part = slice(start, min(start + chunk, len(q)))
        overlap = torch.tril(torch.diag(beta[part]) @ k[part] @ k[part].T, -1)
        u = torch.linalg.inv(torch.eye(len(overlap)) + overlap) @ (beta[part][:, None] * (v[part] - k[part] @ S))
        out[part] = q[part] @ S + torch.tril(q[part] @ k[part].T) @ u
        S = S + k[part].T @ u
    return out, S


alternative("delta-chunks", by_inverse)

# %% [markdown]
# ### Task 3 · Which rule is it?   ●●●○○ · 12 minutes · 3 points
#
# Somebody hands you a layer's step as a black box: `step(S, k, v)` gives the state $(2, 1)$ after one token, from any state,
# any key of two numbers and any value of one. You can't see inside. Find out by experiments what it is:
#
# | Answer | The state | What is written |
# | --- | --- | --- |
# | `"sum"` | stays | the value |
# | `"gate"` | fades by some $\alpha$ | the value |
# | `"delta"` | stays | a part $\beta$ of the difference |
# | `"gated delta"` | fades | a part $\beta$ of the difference |
# | `"not normalized"` | | one of these four, with a bug: keys keep their length |
#
# $\alpha$ is between 0.3 and 0.9, $\beta$ between 0.3 and 1, and both are the same at every call. All but the last divide keys
# by their length. `rule` below makes such boxes, to try yours on.
#
# <details><summary>Hint 1: the bug first</summary>
#
# Write the same value with a key, and with twice the key, each to an empty state.
# </details>
# <details><summary>Hint 2: does it fade?</summary>
#
# Write with $(1, 0)$, then with $(0, 1)$. Has the first row changed?
# </details>
# <details><summary>Hint 3: does it correct?</summary>
#
# Write 1 with $(1, 0)$, then the value 0 with the same key. A sum adds nothing, a gate only fades. Compare with how much a
# row fades when *another* key is written.
# </details>

# %%
def rule(fades: bool, corrects: bool, alpha: float, beta: float, normalizes: bool = True) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A black box."""
    def step(S: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = F.normalize(k, dim=-1) if normalizes else k
        S = alpha * S if fades else S
        return S + torch.outer(k, beta * (v - k @ S) if corrects else v)

    return step

# %% nbgrader={"grade_id": "which-rule", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def which_rule(step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """"sum", "gate", "delta", "gated delta" or "not normalized"."""
    ### BEGIN SOLUTION
    one, other = torch.eye(2)
    empty, nothing = torch.zeros(2, 1), torch.zeros(1)
    once = step(empty, one, nothing + 1)
    if not torch.allclose(once, step(empty, 2 * one, nothing + 1)):
        return "not normalized"
    elsewhere, here = step(once, other, nothing)[0], step(once, one, nothing)[0]
    fades, corrects = not torch.allclose(elsewhere, once[0]), not torch.allclose(here, elsewhere)
    return {(False, False): "sum", (True, False): "gate", (False, True): "delta", (True, True): "gated delta"}[fades, corrects]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-which-rule", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("which-rule") as show:
    kinds = [(False, False), (True, False), (False, True), (True, True)]
    for text, beta in (("β below 1", 0.3 + 0.6 * show.rand(1).item()), ("β = 1", 1.0), ("another β below 1", 0.3 + 0.6 * show.rand(1).item())):
        alphas = (0.3 + 0.6 * show.rand(5)).tolist()
        boxes = [rule(*kind, alpha, beta) for kind, alpha in zip(kinds, alphas)]
        boxes.append(rule(*show.choice(kinds), alphas[4], beta, normalizes=False))
        show([which_rule(boxes[i]) for i in show.permutation(5).tolist()], f"five boxes, each kind once, in random order; {text}")
    broken = [rule(*kind, 0.3 + 0.6 * show.rand(1).item(), 0.5, normalizes=False) for kind in kinds]
    boxes = [*broken, *(rule(*kind, 0.3 + 0.6 * show.rand(1).item(), 0.8) for kind in kinds)]
    show([which_rule(boxes[i]) for i in show.permutation(8).tolist()], "eight boxes in random order, half of them with the bug")

# %% tags=["mistakes"]
equivalent("which-rule", "2 * one → 3 * one", "Any other length shows whether keys are divided by it.")
equivalent("which-rule", "torch.zeros(2, 1) → torch.ones(2, 1)", "Other states tell the boxes apart as well.")
for wider in ("torch.zeros(2, 1) → torch.zeros(2, 2)", "torch.zeros(1) → torch.zeros(2)"):
    equivalent("which-rule", wider, "A wider value holds the same number twice.")
NAMES = {(False, False): "sum", (True, False): "gate", (False, True): "delta", (True, True): "gated delta"}


def detective(bug=lambda step, S, a, v: not torch.allclose(step(S, a, v), step(S, 2 * a, v)),
              fades=lambda step, once, a, b, v: not torch.allclose(step(once, b, 0 * v)[0], once[0]),
              corrects=lambda step, once, a, b, v: not torch.allclose(step(once, a, 0 * v)[0], step(once, b, 0 * v)[0]),
              names=NAMES):
    """The experiments with one exchanged."""
    def answer(step):
        a, b = torch.eye(2)
        S, v = torch.zeros(2, 1), torch.ones(1)
        if bug(step, S, a, v):
            return "not normalized"
        once = step(S, a, v)
        return names[fades(step, once, a, b, v), corrects(step, once, a, b, v)]
    return answer


mistake("which-rule", detective(bug=lambda *_: False),
        "Boxes with the bug get another name. Write with a key and with twice the key: without the bug the states are equal.")
mistake("which-rule", detective(bug=lambda *_: True),
        "Every box is said to have the bug. Write the *same* value with a key and with twice the key: without the bug the states are equal.")
mistake("which-rule", detective(fades=lambda step, once, a, b, v: not torch.allclose(step(once, a, 0 * v)[0], once[0])),
        "A box that corrects is taken for one that fades: writing 0 with the *same* key changes the row, too. Write with another key.")
mistake("which-rule", detective(fades=lambda *_: False), "No box is said to fade. Write with (1, 0), then with (0, 1): does the first row change?")
mistake("which-rule", detective(corrects=lambda step, once, a, b, v: not torch.allclose(step(once, a, 0 * v)[0], once[0])),
        "A gate is taken for a correction. Writing 0 with the same key lets its row fade as well: compare with how it fades when "
        "another key is written.")
mistake("which-rule", detective(corrects=lambda *_: False),
        "No box is said to correct. Write 1, then 0 with the same key: the delta rule takes the 1 away, or a part of it.")
mistake("which-rule", detective(corrects=lambda step, once, a, b, v: torch.allclose(step(once, a, 0 * v)[0], 0 * v)),
        "Corrections are recognized only where β = 1. With a smaller β a part of the old value stays.")
mistake("which-rule", detective(corrects=lambda step, once, a, b, v: not torch.allclose(once[0], v)),
        "A correction is recognized only where β < 1: with β = 1 the first value is written whole. Write a second one.")
mistake("which-rule", detective(names=dict(zip(NAMES, ("sum", "delta", "gate", "gated delta"), strict=True))),
        "\"gate\" and \"delta\" are exchanged: a gate lets *other* keys' rows fade.")


def by_two_writes(step):
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])
    S = torch.tensor([[2.0], [0.0]])
    if (step(S, b, torch.ones(1)) - step(S, b / 3, torch.ones(1))).abs().max() > 1e-4:
        return "not normalized"
    alpha = (step(S, b, torch.ones(1))[0] / 2).item()
    kept = (step(S, a, torch.zeros(1))[0] / 2).item()
    return ("gated " if alpha < 0.99 and kept < alpha - 1e-3 else "") + (
        "delta" if kept < alpha - 1e-3 else "gate" if alpha < 0.99 else "sum")


alternative("which-rule", by_two_writes)

# %% [markdown]
# ### Task 4 · When does it explode?   ●●○○○ · 8 minutes · 2 points
#
# On paper first. The pair $(k, v)$ is written again and again to an empty state by the delta rule, with strength β and a key of
# length $\ell$ (not normalized). Each write multiplies the error of what is read by the same number.
#
# `read_after(length, beta, writes)`: what the key reads then, as a multiple of $v$: 0 before the first write, 1 when all is
# right. `limit(keys)`: a layer's keys, one per row; the β below which the state stays finite, whichever of these keys is
# written again and again (one number; no key is zero).
#
# <details><summary>Hint 1: one write</summary>
#
# If $S^\top k = r$, then after the write $S^\top k = r + \beta\, \ell^2 (v - r)$.
# </details>
# <details><summary>Hint 2: the error</summary>
#
# So $v - r$ is multiplied by $1 - \beta \ell^2$, and it begins as $v$.
# </details>
# <details><summary>Hint 3: finite</summary>
#
# $|1 - \beta \ell^2| < 1$, for the longest of the keys.
# </details>

# %% nbgrader={"grade_id": "explodes", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def read_after(length: float, beta: float, writes: int) -> float:
    """What is read after so many writes, as a multiple of the value."""
    ### BEGIN SOLUTION
    return 1 - (1 - beta * length**2) ** writes
    ### END SOLUTION


def limit(keys: Float[Tensor, "n d"]) -> float:
    """The strength below which none of these keys explodes."""
    ### BEGIN SOLUTION
    return 2 / keys.square().sum(dim=-1).max().item()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-explodes", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("explodes") as show:
    for length, beta in ((1.0, 0.5), (2.0, 1.0), (0.5, 0.8), (1.5, 0.6)):
        writes = show.random_size(2, 5)
        show([read_after(length, beta, count) for count in (0, 1, writes)], f"|k| = {length}, β = {beta}: 0, 1 and {writes} writes")
    show([limit(show.randn(show.random_size(3, 6), 4)), limit(2 * show.randn(1, 3))], "the limit for several keys, and for one")

# %% tags=["mistakes"]
def paper(factor=lambda length, beta: 1 - beta * length**2, count=lambda writes: writes, close=lambda error: 1 - error,
          bound=lambda keys: 2 / keys.square().sum(dim=-1).max().item()):
    """Both functions with one part exchanged."""
    return {"read_after": lambda length, beta, writes: close(factor(length, beta) ** count(writes)), "limit": bound}


mistake("explodes", paper(factor=lambda length, beta: 1 - beta * length),
        "The length counts twice, once when the key writes and once when it reads: $\\ell^2$.")
mistake("explodes", paper(factor=lambda length, beta: 1 - beta), "The length of the key is missing: $1 - \\beta \\ell^2$.")
mistake("explodes", paper(factor=lambda length, beta: 1 - length**2), "β is missing: $1 - \\beta \\ell^2$.")
mistake("explodes", paper(factor=lambda length, beta: 1 + beta * length**2), "The sign: a write takes a part of the error *away*, $1 - \\beta \\ell^2$.")
mistake("explodes", paper(factor=lambda length, beta: beta * length**2), "This is the part that is written. What is left of the error is $1 - \\beta \\ell^2$.")
mistake("explodes", paper(close=lambda error: error), "This is the error. What is read is $v$ minus the error.")
mistake("explodes", paper(close=lambda error: error - 1), "The sign: what is read is $v$ minus the error, $1 - (\\dots)$.")
mistake("explodes", paper(close=lambda error: 1 + error), "The error is what is *missing* to $v$: $1 - (\\dots)$.")
mistake("explodes", paper(count=lambda writes: writes - 1 if writes else 0), "One write too few: the first write multiplies the error, too.")
mistake("explodes", paper(count=lambda writes: writes + 1), "One write too many: before the first one nothing is read, 0.")
mistake("explodes", {"read_after": lambda length, beta, writes: beta * length**2 * writes, "limit": limit},
        "Each write adds the same here. It adds a part of what is still *missing*, so the error is multiplied each time.")
mistake("explodes", {"read_after": lambda length, beta, writes: 1 - beta * length**2, "limit": limit},
        "This is what one write leaves of the error. Each write multiplies it; what is read is 1 minus the rest.")
mistake("explodes", {"read_after": lambda length, beta, writes: 1, "limit": limit},
        "The value is right only in the end, if at all. What is missing after each write is a power of $1 - \\beta \\ell^2$.")
mistake("explodes", paper(factor=lambda length, beta: 1), "Nothing is ever written here: each write multiplies the error by $1 - \\beta \\ell^2$.")
mistake("explodes", paper(bound=lambda keys: 2), "That is the limit for keys of length 1. These have other lengths: $2 / \\ell^2$.")
mistake("explodes", paper(bound=lambda keys: 1 / keys.square().sum(dim=-1).max().item()),
        "At this β the longest key is right after one write. Its error only grows beyond $\\beta \\ell^2 = 2$.")
mistake("explodes", paper(bound=lambda keys: 2 / keys.square().sum(dim=-1).min().item()),
        "That is the limit of the shortest key. The *longest* explodes first.")
mistake("explodes", paper(bound=lambda keys: 2 / keys.square().sum(dim=-1).mean().item()),
        "That is the limit of a mean key. The *longest* explodes first.")
mistake("explodes", paper(bound=lambda keys: 2 / keys.norm(dim=-1).max().item()), "The length counts squared: $2 / \\ell^2$.")
mistake("explodes", paper(bound=lambda keys: 2 / keys.square().sum().item()), "You add up all keys. Each key has a length of its own; take the longest.")
mistake("explodes", paper(bound=lambda keys: 2 / keys.square().max().item()), "That is the largest single number. The length of a key sums over its numbers.")
mistake("explodes", paper(bound=lambda keys: 2 / keys.square().sum(dim=0).max().item()),
        "You sum over the keys. A length sums over the numbers of *one* key, its row.")


def in_a_loop(length, beta, writes):
    error = 1.0
    for _ in range(writes):
        error -= beta * length * length * error
    return 1.0 - error


alternative("explodes", {"read_after": in_a_loop, "limit": lambda keys: min(2 / float(key @ key) for key in keys)})

# %% [markdown]
# ### Task 5 · Investigate: written once   ●●●●● · 15 minutes · 3 points
#
# In the lesson guests moved, and the delta rule won. Now nobody moves: $n$ pairs are written once, and then each key is asked
# for. Keys are random, of length 1; values are taken from 64 random vectors of length 1; right is an answer whose nearest of
# the 64 is the one that was written. Compare at least three ways to write: a sum, the delta rule with β = 1, and with one
# smaller β. Use a state of 32 × 32, at least three values of $n$ between 8 and 64, and three seeds. You may use the lesson's
# cells.
#
# Hand in a table, and two or three sentences: which way is best where, what the order in which pairs were written has to do
# with it (measure it), and what your runs can't tell. A person reads it.

# %% [markdown] nbgrader={"grade_id": "written-once", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# 100 states each, three seeds, right answers in percent; in brackets the quarter that was written first, and the last.
#
# | n | sum | delta rule, β = 1 | delta rule, β = 0.5 |
# | --- | --- | --- | --- |
# | 16 | 100, 100, 100 | 95, 97, 97 (91; 100) | 99, 99, 99 (98; 100) |
# | 32 | 96, 96, 97 (96; 96) | 78, 79, 79 (50; 99) | 92, 94, 93 (82; 100) |
# | 48 | 88, 88, 88 (88; 89) | 59, 60, 59 (23; 98) | 81, 81, 80 (57; 99) |
# | 64 | 78, 78, 78 (78; 78) | 45, 46, 47 (10; 95) | 68, 67, 68 (35; 99) |
#
# Written once, the sum recalls most at every n, and β = 1 least. The order is the reason: the delta rule makes the newest pair
# right, at the cost of older ones whose keys overlap with it. The quarter that was written last is nearly perfect even at 64
# pairs, of the first quarter one in ten is left. A sum treats all alike. What the runs can't tell: a trained layer makes its
# keys, and could make them overlap less; only one size; only the nearest value counts, not how far off it is.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table with three ways to write, three n and three seeds, on the same pairs for all ways. 1 point: what it shows:
# written once, the sum recalls at least as many as the delta rule with β = 1, and a smaller β lies between them or equals the
# sum; the delta rule's errors are those of the pairs that were written first, the last ones are right, while a sum's errors
# don't depend on the order. 1 point: caution: random keys (a trained layer chooses its keys), one size, nothing is written
# twice; and the squared error may rank them otherwise than the nearest value does.

# %%
check.summary()
