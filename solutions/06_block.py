# %% [markdown]
# # Exercise 06 · The block
#
# Five tasks, 13 points, about 45 minutes. They belong to lesson [06 The block](../notebooks/06_block.ipynb). Run the
# cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you
# like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from txlib.grading import check

# %% [markdown]
# ### Task 1 · Layer normalisation   ●●○○○ · 8 minutes · 3 points
#
# Give each word's vector mean 0 and variance 1, then apply the gain and the bias:
#
# $$\text{gain} \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \text{bias}$$
#
# $\mu$ and $\sigma^2$ belong to one word. There may be any number of axes in front of the last one. torch's own norms
# don't count.
#
# <details><summary>Hint 1: which axis?</summary>
#
# The last one, `dim=-1`: it holds one word's vector. With `keepdim=True` the mean can be subtracted from `x` right
# away.
# </details>
# <details><summary>Hint 2: which variance?</summary>
#
# The mean of the squared distances from the mean. `torch.var` divides by $d - 1$ unless you say `correction=0`.
# </details>
# <details><summary>Hint 3: where does eps go?</summary>
#
# Inside the root, added to the variance.
# </details>

# %% nbgrader={"grade_id": "layer-norm", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def layer_norm(
    x: Float[Tensor, "*batch d_model"], gain: Float[Tensor, "d_model"], bias: Float[Tensor, "d_model"], eps: float
) -> Float[Tensor, "*batch d_model"]:
    """Each vector along the last axis normalised by itself, times gain, plus bias."""
    ### BEGIN SOLUTION
    mean = x.mean(dim=-1, keepdim=True)                            # (*batch, 1)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)      # (*batch, 1)
    return gain * (x - mean) / (variance + eps).sqrt() + bias
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-layer-norm", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("layer-norm") as show:
    d = show.random_size(5, 8)
    gain, bias = 1 + 0.5 * show.randn(d), show.randn(d)
    show(layer_norm(3 + 2 * show.randn(2, d), torch.ones(d), torch.zeros(d), 1e-5), "two words, gain 1, bias 0")
    show(layer_norm(3 + 2 * show.randn(3, 4, d), gain, bias, 1e-5), "three sentences of four words")
    show(layer_norm(0.1 * show.randn(2, 3, d), gain, bias, 0.01), "small vectors, eps = 0.01")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake

forbid("*", "txlib")
forbid("layer-norm", ("torch.nn.functional.layer_norm", "torch.layer_norm", "LayerNorm", "native_layer_norm", "group_norm",
                      "GroupNorm", "instance_norm", "InstanceNorm1d", "batch_norm", "BatchNorm1d", "rms_norm", "RMSNorm"),
       ("aten.native_layer_norm", "aten.native_group_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit",
        "aten.layer_norm", "aten.group_norm", "aten.instance_norm", "aten.batch_norm", "aten._fused_rms_norm"))


def normalised(x, dim, eps, correction=0):
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


mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, 0, eps) + bias,
        "Mean and variance run over the *first* axis, the batch. Then a word's result depends on other sentences. "
        "Each word is normalised by itself: use the last axis.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, -2, eps) + bias,
        "Mean and variance run along the sentence. Then a word's result depends on its neighbours and on the padding. "
        "Each word is normalised by itself: use the last axis.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, (-2, -1), eps) + bias,
        "One mean for the whole sentence. Each *word* has a mean and a variance of its own: use the last axis only.")
mistake("layer-norm", over_everything,
        "One mean and one variance for the whole tensor: `mean()` and `var()` without `dim` run over all axes. Each word "
        "has its own: `dim=-1, keepdim=True`.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, -1, eps, correction=1) + bias,
        "The variance is divided by d − 1. Layer norm uses the biased one, divided by d: `correction=0`.")
mistake("layer-norm", eps_outside,
        "`eps` stands outside the root. Add it to the variance first, then take the root: with small vectors that is "
        "a great difference.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, -1, 0.0) + bias,
        "`eps` is not used. With these small vectors it makes a difference: add it to the variance.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, -1, 1e-5) + bias,
        "Your eps is always 0.00001, as `F.layer_norm` has it unless told otherwise. Use the `eps` you are given.")
mistake("layer-norm", by_std,
        "Two slips in one: `std` divides by d − 1 unless you say `correction=0`, and `eps` is added outside the root. "
        "Take the variance, add `eps`, then take the root.")
mistake("layer-norm", lambda x, gain, bias, eps: (
            gain * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) + bias),
        "`std` divides by d − 1 unless you say `correction=0`, and `eps` is not used. Take the variance, divided by d, add "
        "`eps`, then take the root.")
mistake("layer-norm", two_roots, "The root is taken twice: `std` is the root of the variance already. Start from the variance.")
mistake("layer-norm", mean_inside_only,
        "The mean is subtracted inside the variance only. What you divide has to lose its mean, too: `x - mean`.")
mistake("layer-norm", mean_on_top_only,
        "The mean is subtracted on top, but not inside the variance. Square the distances *from the mean*.")
mistake("layer-norm", over_the_variance, "Divided by the variance. Divide by its *root*, the standard deviation.")
mistake("layer-norm", root_mean_square,
        "The mean is not subtracted. That is RMS norm; layer norm takes the mean away first, also inside the variance.")
mistake("layer-norm", lambda x, gain, bias, eps: normalised(x, -1, eps),
        "Gain and bias are missing: multiply by the one, then add the other.")
mistake("layer-norm", lambda x, gain, bias, eps: normalised(x, -1, eps) + bias,
        "The gain is missing: multiply each entry by it, before the bias is added.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, -1, eps),
        "The bias is missing: add it at the end.")
mistake("layer-norm", lambda x, gain, bias, eps: gain * (normalised(x, -1, eps) + bias),
        "The gain multiplies the bias, too. Multiply by the gain first, then add the bias.")
alternative("layer-norm", lambda x, gain, bias, eps: F.layer_norm(x, gain.shape, gain, bias, eps))
alternative("layer-norm", lambda x, gain, bias, eps: gain * normalised(x, -1, eps) + bias)

# %% [markdown]
# ### Task 2 · The residual connection, wired both ways   ●●○○○ · 8 minutes · 3 points
#
# Wrap a sub-layer: give the stream `x` to it, and add what it says to `x`. With `norm_first` the block is pre-norm,
# else post-norm. `dropout` acts on what the sub-layer says, before it is added. `sublayer`, `norm` and `dropout` are
# functions from a tensor to a tensor of the same shape.
#
# <details><summary>Hint 1: how is pre-norm wired?</summary>
#
# The norm stands on the branch, in front of the sub-layer. `x` itself goes by untouched.
# </details>
# <details><summary>Hint 2: how is post-norm wired?</summary>
#
# The sub-layer gets the bare `x`. The norm comes last, after the addition.
# </details>
# <details><summary>Hint 3: where does dropout go?</summary>
#
# Around the sub-layer's output in both: `dropout(sublayer(…))`. Not around the sum, and not around `x`.
# </details>

# %% nbgrader={"grade_id": "residual", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def residual(
    x: Float[Tensor, "batch n d_model"],
    sublayer: Callable[[Tensor], Tensor],
    norm: Callable[[Tensor], Tensor],
    dropout: Callable[[Tensor], Tensor],
    norm_first: bool,
) -> Float[Tensor, "batch n d_model"]:
    """The sub-layer's output is added to its input, pre-norm or post-norm."""
    ### BEGIN SOLUTION
    if norm_first:
        return x + dropout(sublayer(norm(x)))
    return norm(x + dropout(sublayer(x)))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-residual", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("residual") as show:
    n, d = show.random_size(2, 4), show.random_size(4, 7)
    x, weight, kept = 2 + show.randn(2, n, d), show.randn(d, d), show.rand(2, n, d) > 0.3
    for norm_first in (True, False):
        show(
            residual(x, lambda y: torch.tanh(y @ weight), lambda y: F.layer_norm(y, (d,)), lambda y: y * kept / 0.7,
                     norm_first),
            "pre-norm" if norm_first else "post-norm",
        )

# %% tags=["mistakes"]
def wired(pre, post):
    """A wrapper with these two wirings."""
    return lambda x, sublayer, norm, dropout, norm_first: (pre if norm_first else post)(x, sublayer, norm, dropout)


def pre(x, f, norm, dropout):
    return x + dropout(f(norm(x)))


def post(x, f, norm, dropout):
    return norm(x + dropout(f(x)))


mistake("residual", wired(post, pre),
        "Pre- and post-norm are exchanged. With `norm_first` the norm comes before the sub-layer, on the branch.")
mistake("residual", wired(pre, pre), "This is always pre-norm. Without `norm_first` the norm comes after the addition.")
mistake("residual", wired(post, post),
        "This is always post-norm. With `norm_first` the norm stands before the sub-layer.")
mistake("residual", wired(lambda x, f, norm, dropout: norm(x) + dropout(f(norm(x))), post),
        "In pre-norm you add to `norm(x)`. Add to `x` itself: the stream must pass untouched, also by the norm.")
mistake("residual", wired(pre, lambda x, f, norm, dropout: x + norm(dropout(f(x)))),
        "In post-norm the norm is on the branch. It comes after the addition, around the whole sum.")
mistake("residual", wired(lambda x, f, norm, dropout: dropout(f(norm(x))),
                          lambda x, f, norm, dropout: norm(dropout(f(x)))),
        "There is no residual: the sub-layer replaces `x`. Its output has to be *added* to `x`.")
mistake("residual", wired(lambda x, f, norm, dropout: dropout(x + f(norm(x))),
                          lambda x, f, norm, dropout: norm(dropout(x + f(x)))),
        "Dropout acts on the sum. So it also erases parts of the stream, and with them what earlier layers wrote. "
        "Drop from the sub-layer's output only.")
mistake("residual", wired(lambda x, f, norm, dropout: dropout(x) + f(norm(x)),
                          lambda x, f, norm, dropout: norm(dropout(x) + f(x))),
        "Dropout acts on `x`, the residual path. It belongs on the branch: on what the sub-layer says.")
mistake("residual", wired(lambda x, f, norm, dropout: x + f(dropout(norm(x))),
                          lambda x, f, norm, dropout: norm(x + f(dropout(x)))),
        "Dropout acts on the sub-layer's *input*. It belongs on its output, right before the addition.")
mistake("residual", wired(lambda x, f, norm, dropout: x + f(norm(x)), lambda x, f, norm, dropout: norm(x + f(x))),
        "Dropout is missing: apply it to the sub-layer's output.")
mistake("residual", wired(pre, lambda x, f, norm, dropout: dropout(norm(x + f(x)))),
        "In post-norm, dropout comes after the norm, where it erases parts of the stream. It belongs before the "
        "addition: `x + dropout(…)` inside the norm.")
mistake("residual", wired(lambda x, f, norm, dropout: x + f(dropout(norm(x))),
                          lambda x, f, norm, dropout: dropout(norm(x + f(x)))),
        "In both wirings dropout comes right after the norm. It belongs right after the *sub-layer*, before the addition.")
mistake("residual", wired(lambda x, f, norm, dropout: dropout(x + f(norm(x))),
                          lambda x, f, norm, dropout: dropout(norm(x + f(x)))),
        "Dropout comes last of all, so it erases parts of the stream. It belongs on the branch, before the addition.")
mistake("residual", wired(lambda x, f, norm, dropout: x + dropout(norm(f(x))), post),
        "In pre-norm the norm stands *behind* the sub-layer. It comes before it: the sub-layer reads `norm(x)`.")
mistake("residual", wired(lambda x, f, norm, dropout: norm(x) + dropout(f(x)), post),
        "In pre-norm the norm is on the stream, and the sub-layer reads the bare `x`. It is the other way round: the "
        "sub-layer reads `norm(x)`, and `x` goes by untouched.")
mistake("residual", wired(lambda x, f, norm, dropout: norm(x + dropout(f(norm(x)))), post),
        "In pre-norm there is a second norm around the sum. The stream must not pass through any.")
mistake("residual", wired(pre, lambda x, f, norm, dropout: norm(x + dropout(f(norm(x))))),
        "In post-norm the sub-layer reads `norm(x)`. It reads the bare `x`; there is one norm, around the sum.")
mistake("residual", wired(lambda x, f, norm, dropout: x + dropout(f(x)), lambda x, f, norm, dropout: x + dropout(f(x))),
        "There is no norm. Pre-norm has it before the sub-layer, post-norm around the sum.")
mistake("residual", wired(pre, lambda x, f, norm, dropout: x + dropout(f(x))),
        "Post-norm has no norm. It comes last, around the whole sum.")
mistake("residual", wired(pre, lambda x, f, norm, dropout: norm(x) + dropout(f(x))),
        "In post-norm the norm is around `x` alone. It comes last, around the whole sum.")
mistake("residual", wired(pre, lambda x, f, norm, dropout: norm(x + f(x))),
        "Dropout is missing in post-norm. It acts on the sub-layer's output in both wirings.")
mistake("residual", wired(lambda x, f, norm, dropout: x + f(norm(x)), post),
        "Dropout is missing in pre-norm. It acts on the sub-layer's output in both wirings.")
mistake("residual", wired(lambda x, f, norm, dropout: dropout(f(norm(x))), post),
        "Pre-norm has no residual: the sub-layer replaces `x`. Its output has to be *added* to `x`.")
alternative("residual", lambda x, sublayer, norm, dropout, norm_first: (
    dropout(sublayer(norm(x))) + x if norm_first else norm(dropout(sublayer(x)) + x)))

# %% [markdown]
# ### Task 3 · The feed-forward network with gelu   ●●●○○ · 10 minutes · 3 points
#
# Widen, bend, narrow, with the *exact* gelu, $\text{gelu}(x) = x\,\Phi(x)$, where $\Phi(x) = \frac12\left(1 +
# \text{erf}\left(x/\sqrt2\right)\right)$:
#
# $$\text{FFN}(x) = \text{gelu}(x W_1 + b_1)\, W_2 + b_2$$
#
# `F.gelu` doesn't count; `torch.erf` is what you need.
#
# <details><summary>Hint 1: where do I find erf?</summary>
#
# `torch.erf`. Or use `F.gelu`; but look up which form it computes unless told otherwise.
# </details>
# <details><summary>Hint 2: in which order?</summary>
#
# First matrix, first bias, gelu, second matrix, second bias. The last step is linear, so that the network can also say
# negative things.
# </details>
# <details><summary>Hint 3: which way round are the matrices?</summary>
#
# As in the equation: `x @ w1`. The stub names their shapes.
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
        "gelu comes after the *second* matrix. It belongs between the two; behind the second, nothing clearly negative "
        "could be added to the stream.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(F.gelu(x @ w1 + b1) @ w2 + b2),
        "gelu comes twice. After the second matrix there is no activation.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1) @ w2 + b2, "The first bias, `b1`, is missing.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1 + b1) @ w2, "The second bias, `b2`, is missing.")
mistake("feed-forward", lambda x, w1, b1, w2, b2: F.gelu(x @ w1) @ w2 + b1 @ w2 + b2,
        "`b1` is added after gelu. Add it before: it moves the place where gelu bends.")
alternative("feed-forward", network(F.gelu))
alternative("feed-forward", lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1.T, b1)), w2.T, b2))

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
# `d_model=512, heads=8, d_ff=2048` has 3,152,384 without a gate.
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
    show(block_parameters(512, 8, 2048), "512, 8 heads, 2048")
    d, heads, wider = 12 * show.random_size(2, 9), show.choice([2, 3, 4, 6]), show.random_size(5, 90)
    show(block_parameters(d, heads, 2 * d + wider), f"{d}, {heads} heads, {2 * d + wider}")
    show(block_parameters(d, heads, 2 * d + wider, gated=True), f"{d}, {heads} heads, {2 * d + wider}, gated")

# %% tags=["mistakes"]
def miscounted(wrong):
    """The right count plus something wrong."""
    return lambda d_model, heads, d_ff, gated=False: (
        block_parameters(d_model, heads, d_ff, gated) + wrong(d_model, heads, d_ff, gated))


mistake("parameters", miscounted(lambda d, h, f, gated: -d * (d + 1)),
        "One matrix of attention is missing. After the heads are joined, there is the *output* projection.")
mistake("parameters", miscounted(lambda d, h, f, gated: (h - 1) * 4 * (d * d + d)),
        "Attention is counted once a head. The heads *share* the width: each takes d_model / heads of it, so their "
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
# $n \ge 1$ at which self-attention costs at least as many operations as the feed-forward network (without a gate).
# Self-attention has its four projections, the scores and the mixing of the values.
#
# <details><summary>Hint 1: what does each part cost?</summary>
#
# A projection: $2nd^2$. The scores: $2n^2d$. The mixing: the same again. The feed-forward network: two matrices of
# $d \cdot d_\text{ff}$.
# </details>
# <details><summary>Hint 2: the inequality</summary>
#
# $8nd^2 + 4n^2d \ge 4nd\,d_\text{ff}$. Divide by $4nd$.
# </details>
# <details><summary>Hint 3: narrow networks</summary>
#
# What if $d_\text{ff}$ is small, and attention costs more from the first word on? A length below 1 is no length.
# </details>

# %% nbgrader={"grade_id": "crossover", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def crossover(d_model: int, d_ff: int) -> int:
    """The smallest length n >= 1 at which self-attention costs at least as much as the feed-forward network."""
    ### BEGIN SOLUTION
    return max(1, d_ff - 2 * d_model)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-crossover", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("crossover") as show:
    show(crossover(512, 2048), "512, 2048")
    d, wider = show.random_size(20, 900), show.random_size(3, 999)
    show(crossover(d, 4 * d + wider), f"{d}, {4 * d + wider}")
    show(crossover(d, d), f"{d}, {d}")

# %% tags=["mistakes"]
mistake("crossover", lambda d_model, d_ff: d_ff,
        "The four projections of attention are missing: they cost 8nd², whatever the length.")
mistake("crossover", lambda d_model, d_ff: max(1, 2 * (d_ff - 2 * d_model)),
        "Only one of scores and mixing is counted. Each costs 2n²d.")
mistake("crossover", lambda d_model, d_ff: max(1, 2 * d_model),
        "2 · d_model is right for d_ff = 4 · d_model only. Keep `d_ff` in the formula.")
mistake("crossover", lambda d_model, d_ff: max(1, d_ff - d_model),
        "Attention's projections are counted at half their price. There are four, and each costs 2nd²: together 8nd².")
mistake("crossover", lambda d_model, d_ff: max(1, -(-d_ff // 2) - 2 * d_model),
        "Only half of the feed-forward network is counted. It has two matrices of d · d_ff, 2nd·d_ff each.")
mistake("crossover", lambda d_model, d_ff: max(1, 4 * d_model),
        "4 · d_model is where scores and mixing *alone* overtake a network with d_ff = 4 · d_model. Count the projections, "
        "too, and keep `d_ff` in the formula.")
mistake("crossover", lambda d_model, d_ff: max(0, d_ff - 2 * d_model),
        "A length of 0 is no length. Where the feed-forward network is narrow, the answer is 1.")
mistake("crossover", lambda d_model, d_ff: d_ff - 2 * d_model,
        "A length is at least 1. Where the feed-forward network is narrow, attention costs more from the first word.")
mistake("crossover", lambda d_model, d_ff: max(1, -(-(2 * d_ff - 3 * d_model) // 2)),
        "Only three projections are counted. After the heads are joined, there is the *output* projection, too.")
mistake("crossover", lambda d_model, d_ff: max(1, d_ff - 2 * d_model + 1),
        "One too many. *At least as many* operations is enough: at equality you are there.")
mistake("crossover", lambda d_model, d_ff: max(1, 2 * d_ff - 2 * d_model),
        "The feed-forward network is counted twice: two matrices of d · d_ff cost 4nd·d_ff together.")
mistake("crossover", lambda d_model, d_ff: max(1.0, float(d_ff - 2 * d_model)),
        "The number is right, but a length is an `int`.")


def by_search(d_model, d_ff):
    n = 1
    while 8 * n * d_model**2 + 4 * n * n * d_model < 4 * n * d_model * d_ff:
        n += 1
    return n


alternative("crossover", by_search)

# %%
check.summary()
