# %% [markdown]
# # Exercise 06 · The block
#
# Six tasks, 15 points, about 60 minutes. They belong to lesson [06 The block](../notebooks/06_block.ipynb). Run the
# cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you
# like. Tasks 1 to 3 are the *core*, about 30 minutes; tasks 4 to 6 are *more*.
#
# Write the answers yourself: one that calls txlib, or what a task rules out, is flagged for your teacher, if you have
# one.

# %% tags=["parameters"]
seed = 0

# %%
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · A norm for each head   ●●○○○ · 10 minutes · 3 points
#
# Very large models normalize queries and keys once more, *each head by itself*, so that no score explodes (Dehghani et
# al. 2023 call it QK-norm). `x` holds the queries of all heads side by side: head $t$ has the entries from $t\,d_k$ to
# $(t + 1)\,d_k - 1$, with $d_k$ = `d_model / heads`. Give the part of each head in each word mean 0 and variance 1,
# then apply gain and bias. All heads share them; they are $d_k$ long:
#
# $$\text{gain} \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \text{bias}$$
#
# $\mu$ and $\sigma^2$ are the mean and the variance of these $d_k$ numbers. The variance divides by $d_k$, not by
# $d_k - 1$, and $\epsilon$ is added to it before the root. The result has the shape of `x`. Don't use torch's own norms.
#
# <details><summary>Hint 1: how do I get at a head?</summary>
#
# `x.unflatten(-1, (heads, -1))` turns it into `(batch, n, heads, d_k)`; `flatten(-2)` goes back.
# </details>
# <details><summary>Hint 2: which mean, which variance?</summary>
#
# Those of $d_k$ numbers. The variance is the mean of the squared distances from the mean; what does `torch.var` divide
# by if you don't tell it?
# </details>
# <details><summary>Hint 3: a check of your own</summary>
#
# Multiply one head of one word by 100. Which numbers of the result may change?
# </details>

# %% nbgrader={"grade_id": "head-norm", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def head_norm(
    x: Float[Tensor, "batch n d_model"], heads: int, gain: Float[Tensor, "d_k"], bias: Float[Tensor, "d_k"], eps: float
) -> Float[Tensor, "batch n d_model"]:
    """Each head of each word normalized by itself, times gain, plus bias."""
    ### BEGIN SOLUTION
    x = x.unflatten(-1, (heads, -1))                               # (batch, n, heads, d_k)
    mean = x.mean(dim=-1, keepdim=True)                            # (batch, n, heads, 1)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)      # (batch, n, heads, 1)
    return (gain * (x - mean) / (variance + eps).sqrt() + bias).flatten(-2)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-head-norm", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("head-norm") as show:
    heads, d = show.random_size(2, 3), show.random_size(4, 6)
    gain, bias = 1 + 0.5 * show.randn(d), show.randn(d)
    plain = torch.ones(d), torch.zeros(d)
    x = 3 + 2 * show.randn(1, 2, heads * d)
    show(head_norm(x, heads, *plain, 1e-5), f"two words, {heads} heads, gain 1, bias 0")
    show(head_norm(3 + 2 * show.randn(3, 4, heads * d), heads, gain, bias, 1e-5), "three sentences of four words")
    show(head_norm(0.1 * show.randn(2, 3, heads * d), heads, gain, bias, 0.01), "small vectors, eps = 0.01")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
forbid("head-norm", ("torch.nn.functional.layer_norm", "torch.layer_norm", "LayerNorm", "native_layer_norm", "group_norm",
                      "GroupNorm", "instance_norm", "InstanceNorm1d", "batch_norm", "BatchNorm1d", "rms_norm", "RMSNorm"),
       ("aten.native_layer_norm", "aten.native_group_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit",
        "aten.layer_norm", "aten.group_norm", "aten.instance_norm", "aten.batch_norm", "aten._fused_rms_norm"))


def normalized(x, dim, eps, correction=0):
    mean, variance = x.mean(dim=dim, keepdim=True), x.var(dim=dim, keepdim=True, correction=correction)
    return (x - mean) / (variance + eps).sqrt()


def eps_outside(x, gain, bias, eps):
    return gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + eps) + bias


def over_the_variance(x, gain, bias, eps):
    return gain * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + eps) + bias


def root_mean_square(x, gain, bias, eps):
    return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt() + bias


def over_everything(x, gain, bias, eps):
    return gain * (x - x.mean()) / (x.var(correction=0) + eps).sqrt() + bias


def by_std(x, gain, bias, eps):
    return gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias


def two_roots(x, gain, bias, eps):
    return gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + eps).sqrt() + bias


def mean_inside_only(x, gain, bias, eps):
    return gain * x / (x.var(-1, keepdim=True, correction=0) + eps).sqrt() + bias


def mean_on_top_only(x, gain, bias, eps):
    return gain * (x - x.mean(-1, keepdim=True)) / (x.square().mean(-1, keepdim=True) + eps).sqrt() + bias


def per_head(norm):
    """A norm of the last axis, given heads on an axis of their own."""
    return lambda x, heads, gain, bias, eps: norm(x.unflatten(-1, (heads, -1)), gain, bias, eps).flatten(-2)


def over(dim):
    return per_head(lambda x, gain, bias, eps: gain * normalized(x, dim, eps) + bias)


def woven(x, heads, gain, bias, eps):
    x = x.unflatten(-1, (-1, heads)).mT                             # as if neighbors belonged to different heads
    return (gain * normalized(x, -1, eps) + bias).mT.flatten(-2)


mistake("head-norm", over(0),
        "Mean and variance run over the *first* axis, the batch. Then a word's result depends on other sentences. "
        "Each head of each word is normalized by itself: use the last axis, once heads have an axis of their own.")
mistake("head-norm", over(1),
        "Mean and variance run along the sentence. Then a word's result depends on its neighbors and on the padding. "
        "Each head of each word is normalized by itself.")
mistake("head-norm", over(-2),
        "Mean and variance run over the *heads*: you took the mean of one entry of all heads. It is the entries of one head "
        "that share a mean.")
mistake("head-norm", over((-2, -1)),
        "One mean for the whole word. That is ordinary layer norm; here each *head* has a mean and a variance of its own.")
mistake("head-norm", per_head(over_everything),
        "One mean and one variance for the whole tensor: `mean()` and `var()` without `dim` run over all axes. Each head of "
        "each word has its own: `dim=-1, keepdim=True`.")
mistake("head-norm", woven,
        "You cut the vector the wrong way: as if neighboring entries belonged to different heads. The entries of a head stand "
        "side by side, so the heads are the *first* of the two new axes.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: gain * normalized(x, -1, eps, correction=1) + bias),
        "The variance is divided by $d_k$ − 1. Norms use the biased one, divided by $d_k$: `correction=0`.")
mistake("head-norm", per_head(eps_outside),
        "`eps` stands outside the root. Add it to the variance first, then take the root: with small vectors that is "
        "a great difference.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: gain * normalized(x, -1, 0.0) + bias),
        "`eps` is not used. With these small vectors it makes a difference: add it to the variance.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: gain * normalized(x, -1, 1e-5) + bias),
        "Your eps is always 0.00001, as `F.layer_norm` has it unless told otherwise. Use the `eps` you are given.")
mistake("head-norm", per_head(by_std),
        "Two slips in one: `std` divides by $d_k$ − 1 unless you say `correction=0`, and `eps` is added outside the root. "
        "Take the variance, add `eps`, then take the root.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: (
            gain * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) + bias)),
        "`std` divides by $d_k$ − 1 unless you say `correction=0`, and `eps` is not used. Take the variance, add `eps`, then "
        "take the root.")
mistake("head-norm", per_head(two_roots), "The root is taken twice: `std` is the root of the variance already. Start from the variance.")
mistake("head-norm", per_head(mean_inside_only),
        "The mean is subtracted inside the variance only. What you divide has to lose its mean, too: `x - mean`.")
mistake("head-norm", per_head(mean_on_top_only),
        "The mean is subtracted on top, but not inside the variance. Square the distances *from the mean*.")
mistake("head-norm", per_head(over_the_variance), "Divided by the variance. Divide by its *root*, the standard deviation.")
mistake("head-norm", per_head(root_mean_square),
        "The mean is not subtracted. That is RMS norm; here the mean is taken away first, also inside the variance.")


def flattened(first_axis):
    return lambda *args: per_head(lambda x, gain, bias, eps: gain * normalized(x, -1, eps) + bias)(*args).flatten(first_axis)


for first_axis in (0, 1):
    mistake("head-norm", flattened(first_axis),
            "The numbers are right, but you have joined too many axes. Words stay apart: `flatten(-2)` joins heads and entries.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: gain * (x - x.mean(-1, keepdim=True)) + bias),
        "You subtract the mean, but don't divide by the standard deviation.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: bias - gain * normalized(x, -1, eps)),
        "The sign is turned round: it is `x - mean`, not `mean - x`.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: normalized(x, -1, eps)),
        "Gain and bias are missing: multiply by the one, then add the other.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: normalized(x, -1, eps) + bias),
        "The gain is missing: multiply each entry by it, before the bias is added.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: gain * normalized(x, -1, eps)),
        "The bias is missing: add it at the end.")
mistake("head-norm", per_head(lambda x, gain, bias, eps: gain * (normalized(x, -1, eps) + bias)),
        "The gain multiplies the bias, too. Multiply by the gain first, then add the bias.")
mistake("head-norm", lambda x, heads, gain, bias, eps: per_head(
            lambda y, g, b, e: g * normalized(y, -1, e) + b)(x, heads, gain, bias, eps).unflatten(-1, (heads, -1)),
        "The numbers are right, but the heads still have an axis of their own. Join them again, with `flatten(-2)`.")
alternative("head-norm", per_head(lambda x, gain, bias, eps: F.layer_norm(x, gain.shape, gain, bias, eps)))
alternative("head-norm", per_head(lambda x, gain, bias, eps: gain * normalized(x, -1, eps) + bias))
equivalent("head-norm", "(x - mean).square → (mean - x).square", "A square has no sign.")

# %% [markdown]
# ### Task 2 · Two newer wirings   ●●●○○ · 12 minutes · 3 points
#
# Pre-norm and post-norm are not the only ways to wire a block.
#
# - `"parallel"` (GPT-J; PaLM, Chowdhery et al. 2022): there is *one* norm, `norms[0]`. Attention and the network both
#   read the normalized stream, so they can run at the same time. The outputs of both are added to the stream.
# - `"sandwich"` (Gemma 2 has it): two sub-layers in turn, attention, then the network. Each has a norm before it *and*
#   one after it, both on the branch. Attention has `norms[0]` before and `norms[1]` after it, the network `norms[2]`
#   and `norms[3]`.
#
# In both, `dropout` acts on what each sub-layer adds to the stream, as the last step before the addition. `attention`,
# `network`, `dropout` and the norms are functions from a tensor to a tensor of the same shape. Call `dropout` for
# attention and for the network separately.
#
# <details><summary>Hint 1: what never changes?</summary>
#
# The stream itself passes through no norm and no dropout. Both wirings have the form $x + \dots$
# </details>
# <details><summary>Hint 2: what does the network read?</summary>
#
# In a parallel block, the stream as it came in; in a sandwich, the stream after attention has been added.
# </details>
# <details><summary>Hint 3: draw it</summary>
#
# Draw both like the lesson's picture, and write down what is on the branch, from the stream to the plus.
# </details>

# %% nbgrader={"grade_id": "wired", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def wired(
    kind: str,
    x: Float[Tensor, "batch n d_model"],
    attention: Callable[[Tensor], Tensor],
    network: Callable[[Tensor], Tensor],
    norms: list[Callable[[Tensor], Tensor]],
    dropout: Callable[[Tensor], Tensor],
) -> Float[Tensor, "batch n d_model"]:
    """The stream after one block, wired "parallel" or "sandwich"."""
    ### BEGIN SOLUTION
    if kind == "parallel":
        read = norms[0](x)
        return x + dropout(attention(read)) + dropout(network(read))
    x = x + dropout(norms[1](attention(norms[0](x))))
    return x + dropout(norms[3](network(norms[2](x))))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-wired", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("wired") as show:
    n, d = show.random_size(2, 4), show.random_size(4, 7)
    x, first, second, kept = 2 + show.randn(2, n, d), show.randn(d, d), show.randn(d, d), show.rand(2, n, d) > 0.3
    gains = 0.5 + show.rand(4, d)
    for kind in ("parallel", "sandwich"):
        show(
            wired(kind, x, lambda y: torch.tanh(y @ first), lambda y: torch.relu(y @ second),
                  [lambda y, gain=gain: F.layer_norm(y, (d,), gain) for gain in gains], lambda y: y * kept / 0.7),
            kind,
        )

# %% tags=["mistakes"]
def either(parallel=None, sandwich=None):
    """A block with these two wirings; the right one where none is given."""
    def block(kind, x, attention, network, norms, dropout):
        wiring = parallel if kind == "parallel" else sandwich
        return (wiring or (lambda *rest: wired(kind, *rest)))(x, attention, network, norms, dropout)
    return block


def branches(x, branch, after=lambda y: y):
    """Two sub-layers in turn, each added to the stream."""
    x = after(x + branch(x, 0))
    return after(x + branch(x, 1))


def in_turn(x, a, f, norms, drop):
    return branches(x, lambda y, second: drop((f if second else a)(norms[0](y))))


mistake("wired", either(in_turn),
        "In parallel, the network reads the stream *after* attention was added. Both read the same normalized stream.")
mistake("wired", either(lambda x, a, f, n, drop: x + drop(f(a(n[0](x))))),
        "In parallel, the network reads what attention says. Both read the normalized stream, and both are added to `x`.")
mistake("wired", either(lambda x, a, f, n, drop: drop(a(n[0](x))) + drop(f(n[0](x)))),
        "The parallel block has no residual: `x` itself is not added.")
mistake("wired", either(lambda x, a, f, n, drop: n[0](x) + drop(a(n[0](x))) + drop(f(n[0](x)))),
        "In parallel you add to `norm(x)`. Add to `x` itself: the stream must pass untouched, also by the norm.")
mistake("wired", either(lambda x, a, f, n, drop: 2 * x + drop(a(n[0](x))) + drop(f(n[0](x)))),
        "In parallel `x` is added twice, once with each sub-layer. There is one stream.")
mistake("wired", either(lambda x, a, f, n, drop: x + drop(a(x)) + drop(f(x))),
        "In parallel there is no norm: both sub-layers read the bare `x`. They read `norms[0](x)`.")
mistake("wired", either(lambda x, a, f, n, drop: x + drop(a(n[0](x))) + drop(f(n[1](x)))),
        "In parallel the network has a norm of its own. There is one norm, `norms[0]`, for both.")
mistake("wired", either(lambda x, a, f, n, drop: n[0](x + drop(a(x)) + drop(f(x)))),
        "The parallel block is post-norm: the norm is around the sum. It stands on the branches, before both sub-layers.")
mistake("wired", either(lambda x, a, f, n, drop: x + a(n[0](x)) + f(n[0](x))),
        "In parallel, dropout is missing: it acts on what each sub-layer adds.")
mistake("wired", either(lambda x, a, f, n, drop: drop(x + a(n[0](x)) + f(n[0](x)))),
        "In parallel, dropout acts on the sum. So it also erases parts of the stream, and with them what earlier layers wrote.")
mistake("wired", either(lambda x, a, f, n, drop: x + a(drop(n[0](x))) + f(drop(n[0](x)))),
        "In parallel, dropout comes after the norm, on what the sub-layers *read*. It acts on what they say.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: drop((f if second else a)(n[2 * second](y))))),
        "This sandwich is plain pre-norm: the norms after the sub-layers, `norms[1]` and `norms[3]`, are missing.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: drop(n[2 * second + 1]((f if second else a)(y))))),
        "The norms before the sub-layers, `norms[0]` and `norms[2]`, are missing in your sandwich.")
mistake("wired", either(None, lambda x, a, f, n, drop: n[3]((y := n[1](x + drop(a(n[0](x))))) + drop(f(n[2](y))))),
        "In your sandwich the second norms are around the sums. They stand on the branch: norm what the sub-layer says, then add.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: n[2 * second + 1](drop((f if second else a)(n[2 * second](y)))))),
        "In the sandwich, dropout comes before the second norm, which then scales the gaps away again. It comes last, right "
        "before the addition.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: n[2 * second + 1]((f if second else a)(n[2 * second](y))))),
        "In the sandwich, dropout is missing: it acts on what is added.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: n[2 * second + 1]((f if second else a)(n[2 * second](y))), drop)),
        "In the sandwich, dropout acts on the sums, and erases parts of the stream. It belongs on the branch.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: drop(n[2 * second]((f if second else a)(n[2 * second + 1](y)))))),
        "The norms before and after each sub-layer are exchanged: `norms[0]` and `norms[2]` come before.")
mistake("wired", either(None, lambda x, a, f, n, drop: branches(
            x, lambda y, second: drop(n[1]((f if second else a)(n[0](y)))))),
        "Both sub-layers of your sandwich use `norms[0]` and `norms[1]`. The network has norms of its own, 2 and 3.")
mistake("wired", either(None, lambda x, a, f, n, drop: (
            x + drop(n[1](a(n[0](x)))) + drop(n[3](f(n[2](x)))))),
        "In the sandwich, the network reads the stream as it came in. It reads the stream that attention has been added to.")
mistake("wired", either(None, lambda x, a, f, n, drop: drop(n[3](f(n[2](drop(n[1](a(n[0](x))))))))),
        "Your sandwich has no residual: each sub-layer replaces the stream. What it says has to be *added*.")
for missing in (0, 1):
    mistake("wired", either(lambda x, a, f, n, drop, missing=missing: x + drop((f, a)[missing](n[0](x)))),
            "In parallel, one of the two sub-layers is missing. Attention's *and* the network's answers are added.")
    mistake("wired", either(None, lambda x, a, f, n, drop, missing=missing: x + drop(
                n[3 - 2 * missing]((f, a)[missing](n[2 - 2 * missing](x))))),
            "One of the sandwich's two sub-layers is missing: attention comes first, then the network.")
mistake("wired", either(lambda x, a, f, n, drop: drop(f(n[0](x)))),
        "In parallel, only the network's answer comes back. The stream and what attention says belong to the sum, too.")
mistake("wired", either(None, lambda x, a, f, n, drop: (y := drop(n[1](a(n[0](x))))) + drop(n[3](f(n[2](y))))),
        "In the sandwich, attention's answer *replaces* the stream. Add it: `x + …`.")
mistake("wired", either(None, lambda x, a, f, n, drop: drop(n[3](f(n[2](x + drop(n[1](a(n[0](x))))))))),
        "In the sandwich, the network's answer *replaces* the stream. Add it: `x + …`.")
for kind in ("parallel", "sandwich"):
    mistake("wired", lambda _, *rest, kind=kind: wired(kind, *rest),
            "Both kinds are wired alike. Look at `kind`.")
mistake("wired", lambda kind, *rest: wired("parallel" if kind == "sandwich" else "sandwich", *rest),
        "The two kinds are exchanged.")
alternative("wired", either(lambda x, a, f, n, drop: drop(f(n[0](x))) + (drop(a(n[0](x))) + x),
                            lambda x, a, f, n, drop: branches(
                                x, lambda y, second: drop(n[2 * second + 1]((f if second else a)(n[2 * second](y)))))))

# %% [markdown]
# ### Task 3 · The feed-forward network with gelu   ●●●○○ · 10 minutes · 3 points
#
# Widen, bend, narrow, with the *exact* gelu, $\text{gelu}(x) = x\,\Phi(x)$, where $\Phi(x) = \frac12\left(1 +
# \text{erf}\left(x/\sqrt2\right)\right)$:
#
# $$\text{FFN}(x) = \text{gelu}(x W_1 + b_1)\, W_2 + b_2$$
#
# Don't use `F.gelu`; `torch.erf` is what you need. (In the check, "matrices 1" means identity matrices.)
#
# <details><summary>Hint 1: where do I find erf?</summary>
#
# `torch.erf` works on whole tensors. Its argument is $x/\sqrt2$.
# </details>
# <details><summary>Hint 2: in which order?</summary>
#
# First matrix, first bias, gelu, second matrix, second bias. The last step is linear, so that the network can also
# return negative numbers.
# </details>
# <details><summary>Hint 3: are the matrices transposed?</summary>
#
# No: as in the equation, it is `x @ w1`. The signature gives their shapes.
# </details>

# %% nbgrader={"grade_id": "feed-forward", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def feed_forward(
    x: Float[Tensor, "batch n d_model"],
    w1: Float[Tensor, "d_model d_ff"],
    b1: Float[Tensor, "d_ff"],
    w2: Float[Tensor, "d_ff d_model"],
    b2: Float[Tensor, "d_model"],
) -> Float[Tensor, "batch n d_model"]:
    """gelu(x W₁ + b₁) W₂ + b₂ with the exact gelu."""
    ### BEGIN SOLUTION
    hidden = x @ w1 + b1                                           # (batch, n, d_ff)
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2         # (batch, n, d_ff)
    return hidden @ w2 + b2
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-feed-forward", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("feed-forward", rtol=1e-5, atol=1e-5) as show:
    x = torch.linspace(-4, 4, 9).reshape(1, 3, 3)
    show(feed_forward(x, torch.eye(3), torch.zeros(3), torch.eye(3), torch.zeros(3)), "matrices 1, biases 0")
    d = show.random_size(3, 5)
    w1, b1, w2, b2 = show.randn(d, 4 * d), show.randn(4 * d), 0.2 * show.randn(4 * d, d), show.randn(d)
    show(feed_forward(show.randn(2, 3, d), w1, b1, w2, b2), f"d_model = {d}, d_ff = {4 * d}")

# %% tags=["mistakes"]
forbid("feed-forward", ("gelu", "GELU", "TransformerEncoderLayer"), ("aten.gelu",))


def network(activation):
    """The network with another activation function."""
    return lambda x, w1, b1, w2, b2: activation(x @ w1 + b1) @ w2 + b2


mistake("feed-forward", network(lambda x: F.gelu(x, approximate="tanh")),
        "This is the tanh *approximation* of gelu. It differs by up to 0.0005. Weights that were trained with one form "
        "need that form. Use erf.")
mistake("feed-forward", network(lambda x: x * torch.sigmoid(1.702 * x)),
        "This is x · sigmoid(1.702 x), a rough approximation of gelu. Use erf.")
mistake("feed-forward", network(F.silu), "This is silu, x · sigmoid(x). gelu is x · Φ(x), with erf.")
mistake("feed-forward", network(F.relu), "This is relu. Asked for is gelu, x · Φ(x), with erf.")
mistake("feed-forward", network(lambda x: (1 + torch.erf(x / 2**0.5)) / 2),
        "This is Φ(x) alone. gelu multiplies it by x.")
mistake("feed-forward", network(lambda x: x * (1 + torch.erf(x)) / 2), "In Φ, x is divided by √2 before erf.")
mistake("feed-forward", network(lambda x: x * (1 + torch.erf(x / 2)) / 2),
        "In Φ, x is divided by √2 before erf, not by 2.")
mistake("feed-forward", network(lambda x: x * (1 + torch.erf(x * 2**0.5)) / 2),
        "In Φ, x is *divided* by √2 before erf, not multiplied.")
mistake("feed-forward", network(torch.sigmoid), "This is the sigmoid alone. gelu is x · Φ(x), with erf.")
mistake("feed-forward", network(torch.tanh), "This is tanh. Asked for is gelu, x · Φ(x), with erf.")
mistake("feed-forward", network(lambda x: x * (1 + torch.erf(x / 2**0.5))),
        "The half of Φ is missing: Φ(x) = ½ (1 + erf(x/√2)), so that it ends at 1.")
mistake("feed-forward", network(lambda x: x * torch.erf(x / 2**0.5)),
        "This is x · erf(x/√2). Φ lies between 0 and 1: add 1 to erf, and halve the sum.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: x + F.gelu(x @ w1 + b1) @ w2 + b2,
        "You add `x`. The residual connection is the block's business; return what the network says, and no more.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1) @ w2, "Both biases, `b1` and `b2`, are missing.")
mistake("feed-forward", network(lambda x: x),
        "There is no activation in the middle. Two matrices in a row are just one matrix: nothing is computed.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu((x @ w1 + b1) @ w2 + b2),
        "gelu comes after the *second* matrix. It belongs between the two; after the second, nothing clearly negative "
        "could be added to the stream.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(F.gelu(x @ w1 + b1) @ w2 + b2),
        "gelu comes twice. After the second matrix there is no activation.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1) @ w2 + b2, "The first bias, `b1`, is missing.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1 + b1) @ w2, "The second bias, `b2`, is missing.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1) @ w2 + b1 @ w2 + b2,
        "`b1` is added after gelu. Add it before: it moves the place where gelu bends.")
alternative("feed-forward", network(F.gelu))
alternative("feed-forward", lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1.T, b1)), w2.T, b2))

# %% tags=["variant"]
from txgrade import variant

D, HEADS, D_FF = variant((512, 8, 2048), (768, 12, 3072), (1024, 16, 4096), (256, 4, 1024))  # an example, of task 4
# Of task 5: attention costs at least TIMES as many operations as the network; AS_MANY says so in words.
TIMES, AS_MANY = variant((1, "as many"), (3, "three times as many"), (4, "four times as many"))

# %% [markdown]
# ### Task 4 · Count a block's parameters   ●●●○○ · 8 minutes · 2 points
#
# How many numbers does a block learn? Count one self-attention layer with `heads` heads, one feed-forward network and
# two layer norms. All matrices have biases, all norms a gain and a bias. With `gated`, the feed-forward network is
# SwiGLU: it has one more matrix, with bias, from `d_model` to `d_ff`.
#
# <details><summary>Hint 1: what does attention have?</summary>
#
# Four matrices: query, key, value, output. The heads share the width among them; how does their number matter?
# </details>
# <details><summary>Hint 2: how long is a bias?</summary>
#
# As long as the *output* of its matrix: `d_ff` for the one that widens, `d_model` for the one that narrows.
# </details>
# <details><summary>Hint 3: a number to try</summary>
#
# `d_model={{D}}, heads={{HEADS}}, d_ff={{D_FF}}` has {{4 * D * D + 2 * D * D_FF + 9 * D + D_FF:,}} without a gate.
# </details>

# %% nbgrader={"grade_id": "parameters", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def block_parameters(d_model: int, heads: int, d_ff: int, gated: bool = False) -> int:
    """How many parameters a block has: self-attention, feed-forward network, two layer norms."""
    ### BEGIN SOLUTION
    attention = 4 * (d_model * d_model + d_model)
    widening = (2 if gated else 1) * (d_model * d_ff + d_ff)
    narrowing = d_ff * d_model + d_model
    norms = 2 * 2 * d_model
    return attention + widening + narrowing + norms
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-parameters", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("parameters") as show:
    show(block_parameters(D, HEADS, D_FF), f"{D}, {HEADS} heads, {D_FF}")
    d, heads, wider = 12 * show.random_size(2, 9), show.choice([2, 3, 4, 6]), show.random_size(5, 90)
    show(block_parameters(d, heads, 2 * d + wider), f"{d}, {heads} heads, {2 * d + wider}")
    show(block_parameters(d, heads, 2 * d + wider, gated=True), f"{d}, {heads} heads, {2 * d + wider}, gated")

# %% tags=["mistakes"]
def miscounted(wrong):
    """The right count plus something wrong."""
    return lambda d_model, heads, d_ff, gated=False: (
        block_parameters(d_model, heads, d_ff, gated) + wrong(d_model, heads, d_ff, gated))


def counted(attention=lambda d, f: 4 * (d * d + d), widening=lambda d, f: d * f + f, narrowing=lambda d, f: f * d + d,
            norms=lambda d, f: 4 * d):
    """A count with other numbers for one of the parts."""
    return lambda d_model, heads, d_ff, gated=False: (
        attention(d_model, d_ff) + (1 + gated) * widening(d_model, d_ff) + narrowing(d_model, d_ff) + norms(d_model, d_ff))


for wrong in ({"widening": lambda d, f: d * f}, {"narrowing": lambda d, f: f * d}):
    mistake("parameters", counted(**wrong), "One of the network's biases is missing.")
for wrong in ({"attention": lambda d, f: 4 * d}, {"widening": lambda d, f: f}, {"narrowing": lambda d, f: d}):
    mistake("parameters", counted(**wrong), "A bias is counted, but the matrix that it belongs to is not.")
for wrong in ({"attention": lambda d, f: 4 * (d + d)}, {"widening": lambda d, f: d + f}, {"widening": lambda d, f: f + f},
              {"narrowing": lambda d, f: f + d}, {"narrowing": lambda d, f: d + d}):
    mistake("parameters", counted(**wrong), "A matrix has rows *times* columns numbers; you count one of its sides only.")
mistake("parameters", counted(attention=lambda d, f: d * d + d),
        "Attention has four matrices, for queries, keys, values and the output. You count one.")
mistake("parameters", counted(norms=lambda d, f: d),
        "There are two norms, each with a gain *and* a bias: four times d_model numbers.")
for wrong in ({"attention": lambda d, f: 0}, {"widening": lambda d, f: 0}):
    mistake("parameters", counted(**wrong),
            "A whole part is missing. Attention, widening, narrowing and the norms are added up.")
mistake("parameters", miscounted(lambda d, h, f, gated: -d * (d + 1)),
        "One matrix of attention is missing. After the heads are joined, there is the *output* projection.")
mistake("parameters", miscounted(lambda d, h, f, gated: (h - 1) * 4 * (d * d + d)),
        "Attention is counted once per head. The heads *share* the width: each takes d_model / heads of it, so their "
        "number does not matter.")
mistake("parameters", miscounted(lambda d, h, f, gated: -(4 * d + (2 if gated else 1) * f + d)),
        "The biases of the matrices are missing.")
mistake("parameters", miscounted(lambda d, h, f, gated: (d - f) * (2 if gated else 1)),
        "The matrix that widens has a bias of `d_ff` numbers: as long as its output, not as its input.")
mistake("parameters", miscounted(lambda d, h, f, gated: f - d),
        "The matrix that narrows has a bias of `d_model` numbers: as long as its output, not as its input.")
mistake("parameters", miscounted(lambda d, h, f, gated: -2 * d),
        "Half of the norms is missing. There are two norms, one for each sub-layer, and each has a gain *and* a bias.")
mistake("parameters", miscounted(lambda d, h, f, gated: -4 * d),
        "This is 4 · d_model too few. Either the two norms are missing, or the biases of attention's four matrices.")
mistake("parameters", miscounted(lambda d, h, f, gated: -(8 * d + (2 if gated else 1) * f + d)),
        "Only matrices are counted. Each has a bias, too, and there are two norms, each with a gain and a bias.")
mistake("parameters", miscounted(lambda d, h, f, gated: 4 * d * d // h - 4 * d * d),
        "Attention's matrices are divided by the heads. Each *head* has a slice of d_model / heads; all heads together "
        "have the whole matrices, so their number does not matter.")
mistake("parameters", miscounted(lambda d, h, f, gated: d - f if gated else 0),
        "The gate's bias is as long as its *output*: `d_ff` numbers.")
mistake("parameters", miscounted(lambda d, h, f, gated: d * d + d - d * f - f if gated else 0),
        "The gate is counted as a d_model × d_model matrix. It leads from `d_model` to `d_ff`.")
mistake("parameters", lambda d_model, heads, d_ff, gated=False: float(block_parameters(d_model, heads, d_ff, gated)),
        "The number is right, but a count is an `int`. Divide with `//`, or not at all.")
mistake("parameters", miscounted(lambda d, h, f, gated: -f if gated else 0),
        "The gate's bias is missing: `d_ff` more numbers.")
mistake("parameters", miscounted(lambda d, h, f, gated: f * d + d if gated else 0),
        "With `gated` you count a second matrix that narrows. The gate *widens*: it has one more matrix from `d_model` to "
        "`d_ff`, and its bias is `d_ff` long.")
mistake("parameters", miscounted(lambda d, h, f, gated: -(f * d + d)),
        "The matrix that narrows is missing: the result has to come back to `d_model`.")
mistake("parameters", lambda d_model, heads, d_ff, gated=False: block_parameters(d_model, heads, d_ff),
        "The gate is missing. With `gated` there is one more matrix from `d_model` to `d_ff`.")
mistake("parameters", lambda d_model, heads, d_ff, gated=False: 12 * d_model**2,
        "12 · d_model² is the rule of thumb: for d_ff = 4 · d_model, without biases, norms and gate. "
        "Here every number counts.")
mistake("parameters", lambda d_model, heads, d_ff, gated=False: 12 * d_model**2 + 13 * d_model,
        "12 · d_model² + 13 · d_model is right for d_ff = 4 · d_model and without a gate only. Keep `d_ff` in the formula.")
mistake("parameters", lambda d_model, heads, d_ff, gated=False: block_parameters(d_model, heads, 4 * d_model, gated),
        "This takes d_ff = 4 · d_model for granted. Use the `d_ff` you are given.")
alternative("parameters", lambda d_model, heads, d_ff, gated=False: (
    4 * d_model**2 + (3 if gated else 2) * d_model * d_ff + 9 * d_model + (2 if gated else 1) * d_ff))

# %% [markdown]
# ### Task 5 · From which length does attention cost more?   ●●●●○ · 10 minutes · 2 points
#
# Count operations, two for each multiplication with its addition, of matrix products only. Return the *smallest* length
# $n \ge 1$ at which self-attention costs at least {{AS_MANY}} operations as the feed-forward network (without a gate).
# Self-attention consists of its four projections, the scores and the mixing of the values. Return an `int`; nothing needs
# rounding.
#
# <details><summary>Hint 1: what does each part cost?</summary>
#
# A projection: $2nd^2$. The scores: $2n^2d$. The mixing: the same again. The feed-forward network: two matrices of
# $d \cdot d_\text{ff}$.
# </details>
# <details><summary>Hint 2: the inequality</summary>
#
# $8nd^2 + 4n^2d \ge {{4 * TIMES}}nd\,d_\text{ff}$. Divide by $4nd$.
# </details>
# <details><summary>Hint 3: narrow networks</summary>
#
# What if $d_\text{ff}$ is small, and attention costs more from the first word on? The answer is at least 1.
# </details>

# %% nbgrader={"grade_id": "crossover", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def crossover(d_model: int, d_ff: int) -> int:
    """The smallest length n >= 1 at which self-attention costs at least {{AS_MANY}} operations as the network."""
    ### BEGIN SOLUTION
    return max(1, TIMES * d_ff - 2 * d_model)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-crossover", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("crossover") as show:
    show(crossover(D, D_FF), f"{D}, {D_FF}")
    d, wider = show.random_size(20, 900), show.random_size(3, 999)
    show(crossover(d, 4 * d + wider), f"{d}, {4 * d + wider}")
    show(crossover(d, d // TIMES), f"{d}, {d // TIMES}")
    d = TIMES * show.random_size(20, 900)
    narrow = 2 * d // TIMES
    show([crossover(d, narrow - 1), crossover(d, narrow), crossover(d, narrow + 1), crossover(d, narrow + 2)],
         f"{d}, and d_ff = {narrow - 1}, {narrow}, {narrow + 1}, {narrow + 2}")

# %% tags=["mistakes"]
mistake("crossover", lambda d_model, d_ff: TIMES * d_ff,
        "The four projections of attention are missing: they cost 8nd², whatever the length.")
mistake("crossover", lambda d_model, d_ff: max(1, 2 * (TIMES * d_ff - 2 * d_model)),
        "Only one of scores and mixing is counted. Each costs 2n²d.")
mistake("crossover", lambda d_model, d_ff: max(1, (4 * TIMES - 2) * d_model),
        "{{4 * TIMES - 2}} · d_model is right for d_ff = 4 · d_model only. Keep `d_ff` in the formula.")
mistake("crossover", lambda d_model, d_ff: max(1, TIMES * d_ff - d_model),
        "Attention's projections are counted at half their price. There are four, and each costs 2nd²: together 8nd².")
mistake("crossover", lambda d_model, d_ff: max(1, -(-TIMES * d_ff // 2) - 2 * d_model),
        "Only half of the feed-forward network is counted. It has two matrices of d · d_ff, 2nd·d_ff each.")
mistake("crossover", lambda d_model, d_ff: max(1, 4 * TIMES * d_model),
        "{{4 * TIMES}} · d_model compares scores and mixing *alone* with a network of d_ff = 4 · d_model. Count the projections, "
        "too, and keep `d_ff` in the formula.")
mistake("crossover", lambda d_model, d_ff: max(0, TIMES * d_ff - 2 * d_model),
        "A length of 0 is no length. Where the feed-forward network is narrow, the answer is 1.")
mistake("crossover", lambda d_model, d_ff: TIMES * d_ff - 2 * d_model,
        "A length is at least 1. Where the feed-forward network is narrow, attention costs more from the first word.")
mistake("crossover", lambda d_model, d_ff: max(1, -(-(2 * TIMES * d_ff - 3 * d_model) // 2)),
        "Only three projections are counted. After the heads are joined, there is the *output* projection, too.")
mistake("crossover", lambda d_model, d_ff: max(1, TIMES * d_ff - 2 * d_model + 1),
        "One too many. *At least {{AS_MANY}}* operations is enough: at equality you are there.")
mistake("crossover", lambda d_model, d_ff: max(1, 2 * TIMES * d_ff - 2 * d_model),
        "The feed-forward network is counted twice: two matrices of d · d_ff cost 4nd·d_ff together.")
mistake("crossover", lambda d_model, d_ff: max(1.0, float(TIMES * d_ff - 2 * d_model)),
        "The number is right, but a length is an `int`.")
if TIMES == 1:
    equivalent("crossover", "TIMES * d_ff → d_ff", "TIMES is 1 here; in a variant it is not.")
if TIMES > 1:
    mistake("crossover", lambda d_model, d_ff: max(1, d_ff - 2 * d_model),
            "There both cost the same. Asked for is where attention costs {{AS_MANY}} operations.")


def by_search(d_model, d_ff):
    n = 1
    while 8 * n * d_model**2 + 4 * n * n * d_model < TIMES * 4 * n * d_model * d_ff:
        n += 1
    return n


alternative("crossover", by_search)

# %% [markdown]
# ### Task 6 · Where does the gradient go?   ●●●○○ · 8 minutes · 2 points
#
# The lesson measured how large the gradient of each block is. Measure it for any stack. `blocks` are modules, called one
# after the other; `x` goes into the first. The loss is the mean squared difference between what comes out of the last
# one and `target`. Return for each block the norm of its gradient: the root of the sum of the squares of all gradients
# of all its parameters. A block without parameters has the norm 0. You may assume that every parameter takes part in the
# loss, so that no `.grad` is `None` after `backward()`.
#
# Gradients that the blocks hold from before must not count.
#
# <details><summary>Hint 1: where are the gradients?</summary>
#
# After `loss.backward()`, each parameter holds its own in `.grad`.
# </details>
# <details><summary>Hint 2: what was there before?</summary>
#
# `backward` *adds* to what `.grad` holds. Each block has a `zero_grad()`.
# </details>
# <details><summary>Hint 3: one number per block</summary>
#
# Squares are added up over all parameters of the block; the root comes last.
# </details>

# %% nbgrader={"grade_id": "block-gradients", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gradient_norms(
    blocks: list[torch.nn.Module], x: Float[Tensor, "batch d_model"], target: Float[Tensor, "batch d_model"]
) -> list[float]:
    """The norm of each block's gradient."""
    ### BEGIN SOLUTION
    for block in blocks:
        block.zero_grad()
        x = block(x)                                               # (batch, d_model)
    F.mse_loss(x, target).backward()
    return [sum(weight.grad.square().sum().item() for weight in block.parameters()) ** 0.5 for block in blocks]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-block-gradients", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("block-gradients", rtol=1e-4) as show:
    d = show.random_size(3, 5)
    blocks = [torch.nn.Linear(d, d), torch.nn.Tanh(), torch.nn.Linear(d, d), torch.nn.Linear(d, d, bias=False)]
    for block in blocks:
        for weight in block.parameters():
            weight.data = show.randn(*weight.shape)
    x, target = show.randn(4, d), show.randn(4, d)
    show(gradient_norms(blocks[:1], x, target), "one linear layer")
    show(gradient_norms(blocks, x, target), "three linear layers and a tanh")
    show(gradient_norms(blocks, x, target), "the same once more")

# %% tags=["mistakes"]
def norms(loss=F.mse_loss, zero=True, of=lambda grads: sum(g.square().sum().item() for g in grads) ** 0.5):
    """The norms with another part."""
    def measured_norms(blocks, x, target):
        for block in blocks:
            if zero:
                block.zero_grad()
            x = block(x)
        loss(x, target).backward()
        return [of([weight.grad for weight in block.parameters()]) for block in blocks]
    return measured_norms


mistake("block-gradients", norms(zero=False),
        "Gradients from an earlier call are counted again: `backward` adds to what `.grad` holds. Call `zero_grad()` first.")
mistake("block-gradients", norms(of=lambda grads: sum(g.square().sum().item() for g in grads)),
        "The root is missing: the norm is the root of the sum of the squares.")
mistake("block-gradients", norms(of=lambda grads: sum(g.norm().item() for g in grads)),
        "You add up the norms of the parameters. Add up the *squares*, and take the root of the sum.")
mistake("block-gradients", norms(of=lambda grads: grads[0].norm().item() if grads else 0.0),
        "Only the first parameter of each block counts. A linear layer also has a bias.")
mistake("block-gradients", norms(of=lambda grads: (
            torch.cat([g.flatten() for g in grads]).square().mean().sqrt().item() if grads else 0.0)),
        "You take the root of the *mean* square. The norm adds up the squares.")
mistake("block-gradients", norms(loss=lambda x, target: F.mse_loss(x, target, reduction="sum")),
        "The loss is the *mean* of the squared differences, over all numbers. You add them up.")
mistake("block-gradients", norms(loss=F.l1_loss), "The loss is the mean of the *squared* differences.")
mistake("block-gradients", norms(loss=lambda x, target: x.sum()), "The loss is missing: you differentiate the output itself.")
mistake("block-gradients", lambda blocks, x, target: norms()(blocks, x, target)[::-1],
        "The order is turned round. The first number belongs to the block that `x` enters.")
mistake("block-gradients", lambda blocks, x, target: [norm for norm in norms()(blocks, x, target) if norm],
        "A block is missing: one without parameters has the norm 0.")


def by_autograd(blocks, x, target):
    for block in blocks:
        x = block(x)
    weights = [weight for block in blocks for weight in block.parameters()]
    grads = dict(zip(weights, torch.autograd.grad(F.mse_loss(x, target), weights), strict=True))
    return [sum(grads[weight].square().sum().item() for weight in block.parameters()) ** 0.5 for block in blocks]


alternative("block-gradients", by_autograd)
equivalent("block-gradients", "F.mse_loss(x, target) → F.mse_loss(target, x)", "A square has no sign.")

# %%
check.summary()
