# %% [markdown]
# # Exercise 16 · Today's decoder
#
# Four tasks, 12 points, about 40 minutes. They belong to lesson
# [16 Today's decoder](../notebooks/16_todays_decoder.ipynb). Tasks 1 to 3 are the core and take about 30 minutes; task
# 4 is for those who want more. Run the cells from the top; fill in where it says *your turn*, then run the check below
# it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### Task 1 · RMS norm in half precision   ●●○○○ · 8 minutes · 3 points
#
# Divide each vector by the root of the mean of its squares, and multiply by the gain:
#
# $$\text{gain} \odot \frac{x}{\sqrt{\frac{1}{d}\sum_i x_i^2 + \epsilon}}$$
#
# Whatever type $x$ has, compute the root in float32, and return the type that came in. Entries may be as large as 500.
# `F.rms_norm` is not allowed.
#
# <details><summary>Hint 1: what goes wrong in half precision?</summary>
#
# 500² is 250,000, and the largest half-precision number is 65,504. Square *after* `x.float()`.
# </details>
# <details><summary>Hint 2: where does eps go?</summary>
#
# Inside the root, added to the mean of the squares.
# </details>
# <details><summary>Hint 3: which type comes back?</summary>
#
# `x.dtype`. A float32 scale times a half-precision tensor is float32, so convert at the end: `.type_as(x)`.
# </details>

# %% nbgrader={"grade_id": "rms-norm", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def rms_norm(
    x: Float[Tensor, "*batch d_model"], gain: Float[Tensor, "d_model"], eps: float
) -> Float[Tensor, "*batch d_model"]:
    """Each vector along the last axis divided by its root mean square, times gain; x's type comes back."""
    ### BEGIN SOLUTION
    wide = x.float()                                               # (*batch, d_model)
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()         # (*batch, 1)
    return (gain.float() * (wide * scale)).type_as(x)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-rms-norm", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("rms-norm", rtol=2e-3, atol=1e-4) as show:
    d = show.random_size(5, 8)
    gain = 1 + 0.5 * show.randn(d)
    show(rms_norm(3 + show.randn(2, d), torch.ones(d), 1e-6), "gain 1, mean not 0")
    show(rms_norm(0.1 * show.randn(2, 3, d), gain, 0.01), "small vectors, eps = 0.01")
    show(rms_norm(torch.stack([0.01 * show.randn(d), torch.zeros(d)]), gain, 0.01), "a tiny vector, and one of zeros")
    show(rms_norm(2 * show.randn(d), gain, 0.5), "a single vector, eps = 0.5")
    large = 250 + 250 * show.rand(3, d)
    show(rms_norm(large.half(), torch.ones(d).half(), 1e-6), "half precision, up to 500")
    show(rms_norm(large.half(), gain, 1e-6), "half precision, but a gain in float32")

# %% tags=["mistakes"]
from txgrade import alternative, forbid, mistake

forbid("*", "txlib")
forbid("rms-norm", ("rms_norm", "RMSNorm", "_fused_rms_norm"), "aten._fused_rms_norm")


def rms_like(scale):
    """The norm with another scale, computed from x in float32."""
    return lambda x, gain, eps: (gain.float() * x.float() * scale(x.float(), eps)).type_as(x)


def in_its_own_type(x, gain, eps):
    return gain * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def float_comes_back(x, gain, eps):
    return gain.float() * x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()


mistake("rms-norm", rms_like(lambda x, eps: 1 / (x.square().mean(-1, keepdim=True).sqrt() + eps)),
        "`eps` stands outside the root. Add it to the mean of the squares, then take the root.")
mistake("rms-norm", rms_like(lambda x, eps: 1 / (x.square().mean(-1, keepdim=True) + eps)),
        "Divided by the mean square. Divide by its *root*.")
mistake("rms-norm", rms_like(lambda x, eps: (x.square().sum(-1, keepdim=True) + eps).rsqrt()),
        "You took the *sum* of the squares, so each vector has length 1. Take their mean: entries have size 1.")
mistake("rms-norm", rms_like(lambda x, eps: (x.var(-1, keepdim=True, correction=0) + eps).rsqrt()),
        "This divides by the standard deviation, which first takes the mean away. RMS norm does not look at the mean.")
mistake("rms-norm", lambda x, gain, eps: F.layer_norm(x.float(), gain.shape, gain.float(), None, eps).type_as(x),
        "This is layer norm: the mean is subtracted. RMS norm leaves it in.")
mistake("rms-norm", rms_like(lambda x, eps: (x.square().mean(dim=0, keepdim=True) + eps).rsqrt()),
        "The mean runs over the first axis. Each vector is normalized by itself: use the last axis.")
mistake("rms-norm", in_its_own_type,
        "The square is computed in half precision, where 300² is infinity already; then x / ∞ = 0. "
        "Convert to float32 *before* squaring.")
mistake("rms-norm", float_comes_back,
        "The numbers are right, but float32 comes back for a half-precision x. Convert the result: `.type_as(x)`.")
mistake("rms-norm", rms_like(lambda x, eps: x.square().mean(-1, keepdim=True).rsqrt()),
        "`eps` is missing: a vector of zeros gives 0 / 0, which is NaN. Add it under the root.")
mistake("rms-norm", rms_like(lambda x, eps: (x.square().mean(dim=min(1, x.dim() - 1), keepdim=True) + eps).rsqrt()),
        "The mean runs over axis 1, which is the last one in a matrix only. Take `dim=-1`.")
mistake("rms-norm", rms_like(lambda x, eps: 1),
        "x is multiplied by the gain, but not divided by its root mean square.")
mistake("rms-norm", lambda x, gain, eps: rms_norm(x, torch.ones_like(gain), eps),
        "The gain is missing: multiply each entry by it.")
mistake("rms-norm", lambda x, gain, eps: rms_norm(x, 1 + gain, eps),
        "You multiply by 1 + gain. Some models store their gain so (Gemma), but here the gain itself is given.")
alternative("rms-norm", lambda x, gain, eps: F.rms_norm(x.float(), gain.shape, gain.float(), eps).type_as(x))
alternative("rms-norm", lambda x, gain, eps: (gain * (x.double() / (x.double() ** 2).mean(-1, True).add(eps).sqrt())
                                              .type_as(x)).type_as(x))

# %% tags=["variant"]
from txgrade import variant

# Of task 2: the network's name, its function, and the formula of that.
NAME, GATE, FORMULA = variant(
    ("SwiGLU", "silu", r"z\,\sigma(z)"), ("GEGLU", "gelu", r"z\,\Phi(z)"), ("ReGLU", "relu", r"\max(0, z)")
)

# %% [markdown]
# ### Task 2 · {{NAME}}, as a checkpoint has it   ●●○○○ · 8 minutes · 3 points
#
# Write the gated network with the three matrices of a file: `gate_proj`, `up_proj` and `down_proj`. A file stores a
# matrix as `nn.Linear` does: (outputs, inputs).
#
# $$\big(\text{{{GATE}}}(x W_\text{gate}^\top) \odot x W_\text{up}^\top\big)\, W_\text{down}^\top
# \qquad \text{{{GATE}}}(z) = {{FORMULA}}$$
#
# <details><summary>Hint 1: which way round are the matrices?</summary>
#
# `x @ gate_proj.T`, or `F.linear(x, gate_proj)`, which does the same.
# </details>
# <details><summary>Hint 2: which of the two passes through {{GATE}}?</summary>
#
# The gate, and only the gate. The other one may be any number, also a negative one.
# </details>
# <details><summary>Hint 3: how do they meet?</summary>
#
# Entry by entry, `*`. Then comes the matrix that leads back to d_model.
# </details>

# %% nbgrader={"grade_id": "gated", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gated(
    x: Float[Tensor, "batch n d_model"],
    gate_proj: Float[Tensor, "d_ff d_model"],
    up_proj: Float[Tensor, "d_ff d_model"],
    down_proj: Float[Tensor, "d_model d_ff"],
) -> Float[Tensor, "batch n d_model"]:
    """The gated feed-forward network, {{NAME}}."""
    ### BEGIN SOLUTION
    hidden = getattr(F, GATE)(x @ gate_proj.T) * (x @ up_proj.T)   # F.{{GATE}}; (batch, n, d_ff)
    return hidden @ down_proj.T
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-gated", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("gated") as show:
    x = torch.linspace(-3, 3, 6).reshape(1, 3, 2)
    show(gated(x, torch.eye(2), torch.ones(2, 2), torch.eye(2)), "simple matrices")
    d, wide = show.random_size(3, 4), show.random_size(5, 9)
    show(gated(show.randn(2, 3, d), show.randn(wide, d), show.randn(wide, d), show.randn(d, wide)), "random matrices")
    square = show.randn(3, 4, 4)
    show(gated(show.randn(1, 2, 4), *square), "square matrices")

# %% tags=["mistakes"]
forbid("gated", ("transformers",))

bend = getattr(F, GATE)


def gated_by(join):
    """The network with another way to combine the two projections."""
    return lambda x, gate, up, down: join(x @ gate.T, x @ up.T) @ down.T


mistake("gated", gated_by(lambda gate, up: gate * bend(up)),
        "{{GATE}} acts on `up_proj`. It belongs to the gate; swapped matrices load without any error and write nonsense.")
mistake("gated", gated_by(lambda gate, up: bend(gate) * bend(up)),
        "{{GATE}} acts on both. The second projection is not bent: it may be negative.")
mistake("gated", gated_by(lambda gate, up: bend(gate * up)),
        "{{GATE}} acts on the product. Bend the gate first, then multiply.")
mistake("gated", gated_by(lambda gate, up: torch.sigmoid(gate) * up),
        "This gate is a sigmoid: the older GLU. {{NAME}} has {{GATE}}.")
for name, other in (("SwiGLU", F.silu), ("GEGLU", F.gelu), ("ReGLU", F.relu)):
    if name != NAME:
        mistake("gated", gated_by(lambda gate, up, other=other: other(gate) * up), f"This is {name}. {{NAME}} has {{GATE}}.")
mistake("gated", gated_by(lambda gate, up: bend(gate) + up),
        "The two are added. A gate *multiplies*: where it is 0, nothing passes.")
mistake("gated", gated_by(lambda gate, up: bend(gate)),
        "`up_proj` is not used. The gate has nothing to let through.")
mistake("gated", gated_by(lambda gate, up: up),
        "The gate is not used: multiply `x @ up_proj.T` by {{GATE}} of `x @ gate_proj.T`.")
mistake("gated", lambda x, gate, up, down: bend(x @ gate.T) * (x @ up.T),
        "The last matrix is missing: `down_proj` leads back from d_ff to d_model.")
mistake("gated", lambda x, gate, up, down: bend(gated(x, gate, up, down)),
        "There is one more {{GATE}} at the end. The last matrix is the last step.")
alternative("gated", lambda x, gate, up, down: F.linear(bend(F.linear(x, gate)) * F.linear(x, up), down))
if NAME == "SwiGLU":
    alternative("gated", gated_by(lambda gate, up: gate * up / (1 + torch.exp(-gate))))

# %% [markdown]
# ### Task 3 · Grouped queries, without a copy   ●●●○○ · 12 minutes · 3 points
#
# A decoder writes one token; the cache holds $n$ keys and values for a few KV heads. Attend, with groups of query heads
# sharing them: the first `heads / kv_heads` query heads read KV head 0, the next ones KV head 1, and so on. No mask,
# scores divided by $\sqrt{d_k}$.
#
# `repeat_interleave` and `repeat` would copy the whole cache for every token, so they are not allowed. (`expand` copies
# nothing by itself, but the matrix product after it does; it is not allowed either.) Bring the *queries* into groups
# instead. (`F.scaled_dot_product_attention` is not allowed either.) The check counts how many numbers the largest tensor
# holds that you make (the inputs do not count): never more than the cache's keys. `torch.einsum` is allowed.
#
# <details><summary>Hint 1: what shape do grouped queries have?</summary>
#
# (batch, kv_heads, group, d_k): a group is like several query positions of one head.
# </details>
# <details><summary>Hint 2: how do I get there?</summary>
#
# `rearrange(q, "b (kv group) 1 d -> b kv group d", kv=kv_heads)`. In brackets, the left name varies slowest.
# </details>
# <details><summary>Hint 3: and back?</summary>
#
# The same pattern the other way round, after `weights @ v`.
# </details>

# %% nbgrader={"grade_id": "grouped", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def grouped_attention(
    q: Float[Tensor, "batch heads 1 d_k"],
    k: Float[Tensor, "batch kv_heads n d_k"],
    v: Float[Tensor, "batch kv_heads n d_k"],
) -> Float[Tensor, "batch heads 1 d_k"]:
    """Attention of one new token, query heads sharing keys and values in groups."""
    ### BEGIN SOLUTION
    q = rearrange(q, "b (kv group) 1 d -> b kv group d", kv=k.shape[1])          # (batch, kv_heads, group, d_k)
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)      # (batch, kv_heads, group, n)
    return rearrange(weights @ v, "b kv group d -> b (kv group) 1 d")
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-grouped", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("grouped") as show:
    n, d = show.random_size(3, 6), show.random_size(3, 5)
    for heads, pairs, keys in ((6, 2, n), (4, 4, n), (4, 1, d), (6, 3, 1)):
        q, k, v = show.randn(2, heads, 1, d), show.randn(2, pairs, keys, d), show.randn(2, pairs, keys, d)
        show(grouped_attention(q, k, v), f"{heads} query heads, {pairs} KV heads, {keys} keys")
    pairs = show.random_size(2, 3)
    q, k, v = show.randn(1, 4 * pairs, 1, 16), show.randn(1, pairs, 300, 16), show.randn(1, pairs, 300, 16)
    spent = cost(grouped_attention, q, k, v)
    show([show.sketch(spent.value), spent.largest <= k.numel()],
         f"300 keys, {4 * pairs} query heads, {pairs} KV heads: the result, and whether the cache was never copied for each head")

# %% tags=["mistakes"]
forbid("grouped", ("repeat_interleave", "repeat", "expand", "scaled_dot_product_attention"),
       "attention")


def shared(k, heads):
    return k.repeat_interleave(heads // k.shape[1], dim=1)


def attend(q, k, v, scale=None, dim=-1):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return (q @ k.mT * scale).softmax(dim=dim) @ v


def wrong_back(q, k, v):
    q = rearrange(q, "b (pair group) 1 d -> b pair group d", pair=k.shape[1])
    return rearrange(attend(q, k, v), "b pair group d -> b (group pair) 1 d")


def by_broadcasting(q, k, v):
    return attend(q.view(len(q), k.shape[1], -1, 1, q.shape[-1]), k[:, :, None], v[:, :, None]).view(q.shape)


for copying in (lambda q, k, v: attend(q, shared(k, q.shape[1]), shared(v, q.shape[1])), by_broadcasting):
    mistake("grouped", copying,
            "The numbers are right, but keys and values are copied for each query head (a matrix product with expanded "
            "ones copies them, too). Bring the *queries* into groups: (batch, kv_heads, group, d_k).")
mistake("grouped", lambda q, k, v: attend(q, k.repeat(1, q.shape[1] // k.shape[1], 1, 1),
                                          v.repeat(1, q.shape[1] // k.shape[1], 1, 1)),
        "Query heads take turns: head 0 reads KV head 0, head 1 KV head 1, head 2 KV head 0 again. *Neighbors* share one: "
        "in rearrange it is (kv group), not (group kv).")
mistake("grouped", wrong_back,
        "The heads come back in another order. Use the same order of the names as on the way in: (kv group).")
mistake("grouped", lambda q, k, v: attend(q, shared(k, q.shape[1]), shared(v, q.shape[1]), scale=1.0),
        "The scores are not divided by √d_k.")
mistake("grouped", lambda q, k, v: attend(q, shared(k, q.shape[1]), shared(v, q.shape[1]),
                                          scale=(q.shape[-1] * q.shape[1] // k.shape[1]) ** -0.5),
        "You divide by the root of group · d_k. The vectors that meet have d_k entries, however many share a KV head.")
mistake("grouped", lambda q, k, v: shared(v, q.shape[1]).mean(dim=-2, keepdim=True),
        "Every key weighs the same. The softmax must run over the *keys*, the last axis; over the axis of a single "
        "query it gives 1 everywhere.")


def in_groups(q, k, v, scale, dim=-1):
    return attend(q.view(len(q), k.shape[1], -1, q.shape[-1]), k, v, scale, dim).view(q.shape)


for wrong_scale in (lambda group, keys: group**-0.5, lambda group, keys: keys**-0.5, lambda group, keys: 2**-0.5):
    mistake("grouped", lambda q, k, v, wrong_scale=wrong_scale: in_groups(q, k, v, wrong_scale(q.shape[1] // k.shape[1], k.shape[2])),
            "You divide by the root of another size. √d_k is the root of how many numbers a query has: its last axis.")
for axis in (-2, 0):
    mistake("grouped", lambda q, k, v, axis=axis: in_groups(q, k, v, q.shape[-1] ** -0.5, axis),
            "The softmax runs over the wrong axis. Each query's weights add up to 1 over the *keys*, the last axis.")


def averaged(q, k, v):
    group = rearrange(q, "b (pair group) 1 d -> b pair group d", pair=k.shape[1])
    return shared(attend(group.mean(dim=2, keepdim=True), k, v), q.shape[1])


mistake("grouped", averaged,
        "You average the queries of a group. They share keys and values, but each asks its own question.")
mistake("grouped", lambda q, k, v: attend(q, shared(k, q.shape[1]), shared(v, q.shape[1])).squeeze(2),
        "The numbers are right; the axis of the one new token is missing. The result is (batch, heads, 1, d_k).")
mistake("grouped", lambda q, k, v: attend(q.view(len(q), k.shape[1], -1, q.shape[-1]), k, v),
        "The heads are still in groups. Bring them back, KV head by KV head, to (batch, heads, 1, d_k).")
alternative("grouped", lambda q, k, v: torch.cat([
    attend(q[:, pair * (q.shape[1] // k.shape[1]):][:, :q.shape[1] // k.shape[1], 0], k[:, pair], v[:, pair])
    for pair in range(k.shape[1])], dim=1)[:, :, None])
alternative("grouped", lambda q, k, v: attend(q.view(len(q), k.shape[1], -1, q.shape[-1]), k, v).view(q.shape))

# %% [markdown]
# ### Task 4 · What a config costs   ●●●○○ · 12 minutes · 3 points
#
# From the `config.json` of a Llama, count two things, without building it:
#
# - `llama_parameters`: all numbers that it learns. No biases; two gain vectors of `hidden_size` a block, and one at the
#   end; the output matrix counts by itself unless `tie_word_embeddings`.
# - `cache_bytes`: what its cache holds for a batch of texts of `tokens` tokens each, at `bytes_each` bytes per number.
#
# The entries' names: `hidden_size` is $d_\text{model}$, `intermediate_size` is $d_\text{ff}$, `num_key_value_heads` is
# the number of KV heads. A head has hidden_size / num_attention_heads entries.
#
# <details><summary>Hint 1: attention</summary>
#
# Queries and output: hidden × hidden each. Keys and values: hidden × (num_key_value_heads · d_k) each.
# </details>
# <details><summary>Hint 2: a number to try</summary>
#
# Llama 7B (vocab_size 32000, hidden_size 4096, intermediate_size 11008, 32 layers, 32 heads, 32 KV heads, not tied) has
# 6,738,415,616 parameters, and keeps 524,288 bytes per token at 2 bytes per number.
# </details>
# <details><summary>Hint 3: the cache</summary>
#
# In each layer a key *and* a value, for each key-value head, with d_k numbers.
# </details>

# %% nbgrader={"grade_id": "costs", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def llama_parameters(config: dict) -> int:
    """How many numbers a Llama of this config learns."""
    ### BEGIN SOLUTION
    d, d_ff = config["hidden_size"], config["intermediate_size"]
    shared = config["num_key_value_heads"] * d // config["num_attention_heads"]
    block = 2 * d * d + 2 * d * shared + 3 * d * d_ff + 2 * d
    matrices = 1 if config["tie_word_embeddings"] else 2
    return matrices * config["vocab_size"] * d + config["num_hidden_layers"] * block + d
    ### END SOLUTION


def cache_bytes(config: dict, batch: int, tokens: int, bytes_each: int = 2) -> int:
    """How many bytes its cache of keys and values takes."""
    ### BEGIN SOLUTION
    d_k = config["hidden_size"] // config["num_attention_heads"]
    a_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * d_k
    return a_token * batch * tokens * bytes_each
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-costs", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("costs") as show:
    llama = {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
    }
    pairs = show.choice([2, 3, 5])
    small = {
        "vocab_size": show.random_size(100, 900), "hidden_size": pairs * 48,
        "intermediate_size": show.random_size(90, 400), "num_hidden_layers": show.random_size(3, 9),
        "num_attention_heads": pairs * 4, "num_key_value_heads": pairs, "tie_word_embeddings": True,
    }
    batch, tokens = show.random_size(2, 9), show.random_size(100, 900)

    def of_both(function, *more):
        return [function(config, *more) for config in (llama, small)]

    show.call(of_both, llama_parameters, label="parameters of Llama 7B and of a small one", points=2)
    show.call(of_both, cache_bytes, batch, tokens, label=f"cache of both, {batch} texts of {tokens} tokens", points=2)
    show.call(cache_bytes, small, 1, tokens, 4, label="cache of the small one, 4 bytes per number", points=1)

# %% tags=["mistakes"]
def counted(wrong=lambda c: 0, factor=lambda c, batch, tokens, bytes_each: 1):
    """Both answers, one of them wrong."""
    return {
        "llama_parameters": lambda config: llama_parameters(config) + wrong(config),
        "cache_bytes": lambda config, batch, tokens, bytes_each=2: int(
            cache_bytes(config, batch, tokens, bytes_each) * factor(config, batch, tokens, bytes_each)),
    }


def width(c):
    return c["num_key_value_heads"] * c["hidden_size"] // c["num_attention_heads"]


mistake("costs", counted(lambda c: c["num_hidden_layers"] * 2 * c["hidden_size"] * (c["hidden_size"] - width(c))),
        "Keys and values are counted as wide as queries. They have num_key_value_heads · d_k rows.")
mistake("costs", counted(lambda c: -c["num_hidden_layers"] * c["hidden_size"] * c["intermediate_size"]),
        "The feed-forward network has *three* matrices: gate, up and down.")
mistake("costs", counted(lambda c: c["vocab_size"] * c["hidden_size"] * (1 if c["tie_word_embeddings"] else 0)),
        "The output matrix is counted although it is tied: then it is the embedding, and counts once.")
mistake("costs", counted(lambda c: -c["vocab_size"] * c["hidden_size"] * (0 if c["tie_word_embeddings"] else 1)),
        "Where `tie_word_embeddings` is false, the output has a matrix of its own.")
mistake("costs", counted(lambda c: c["vocab_size"] * c["hidden_size"] * (1 if c["tie_word_embeddings"] else -1)),
        "The two cases are exchanged. Tied means *one* matrix for the embedding and the output.")
mistake("costs", counted(lambda c: -2 * c["num_hidden_layers"] * c["hidden_size"]),
        "The gains of the blocks are missing: two norms in each.")
mistake("costs", counted(lambda c: -c["hidden_size"]), "The last norm's gain is missing.")
mistake("costs", counted(lambda c: -(2 * c["num_hidden_layers"] + 1) * c["hidden_size"]),
        "The norms' gains are missing.")
mistake("costs", counted(lambda c: (2 * c["num_hidden_layers"] + 1) * c["hidden_size"]),
        "RMS norm has a gain, but no bias.")
def llama(kv=width, attention=lambda d, kv: 2 * d * d + 2 * d * kv, network=lambda d, d_ff: 3 * d * d_ff, norms=lambda d: 2 * d,
          layers=lambda number: number, around=lambda matrices, vocab, d: matrices * vocab * d):
    """The parameters with one part exchanged."""
    def parameters(c):
        d, matrices = c["hidden_size"], 1 if c["tie_word_embeddings"] else 2
        block = attention(d, kv(c)) + network(d, c["intermediate_size"]) + norms(d)
        return around(matrices, c["vocab_size"], d) + layers(c["num_hidden_layers"]) * block + d
    return {"llama_parameters": parameters, "cache_bytes": cache_bytes}


mistake("costs", llama(kv=lambda c: c["num_key_value_heads"] * c["hidden_size"]),
        "Keys and values are too wide: a head has hidden_size / num_attention_heads entries, not hidden_size.")
mistake("costs", llama(kv=lambda c: c["hidden_size"] // c["num_attention_heads"]),
        "Keys and values are counted for a single head. There are num_key_value_heads of them.")
for attention in (lambda d, kv: 2 * d + 2 * d * kv, lambda d, kv: 2 * d * d + 2 * d, lambda d, kv: 2 * d * d + 2 * kv):
    mistake("costs", llama(attention=attention), "A matrix of attention is counted by one of its sides only: it holds rows · columns numbers.")
for attention in (lambda d, kv: d * d + 2 * d * kv, lambda d, kv: 2 * d * d + d * kv):
    mistake("costs", llama(attention=attention), "Attention has *four* matrices: for queries, keys, values and the output.")
mistake("costs", llama(attention=lambda d, kv: 2 * d * d), "The matrices of keys and values are missing.")
mistake("costs", llama(attention=lambda d, kv: 2 * d * kv), "The matrices of the queries and of the output are missing.")
mistake("costs", llama(attention=lambda d, kv: 0), "Attention's four matrices are missing.")
mistake("costs", llama(network=lambda d, d_ff: 0), "The feed-forward network's three matrices are missing.")
for network in (lambda d, d_ff: 3 * d, lambda d, d_ff: 3 * d_ff):
    mistake("costs", llama(network=network), "Each of the feed-forward network's matrices holds hidden_size · intermediate_size numbers.")
mistake("costs", llama(network=lambda d, d_ff: d * d_ff), "One matrix of the feed-forward network is counted. It has three: gate, up and down.")
mistake("costs", llama(norms=lambda d: d), "A block has *two* norms, each with a gain.")
mistake("costs", llama(norms=lambda d: 2), "A gain is a vector: hidden_size numbers, one for each entry.")
mistake("costs", llama(layers=lambda number: 1), "One block is counted. There are num_hidden_layers of them.")
mistake("costs", llama(layers=lambda number: 0), "The blocks are missing.")
mistake("costs", llama(around=lambda matrices, vocab, d: 0), "The embedding is missing, vocab_size × hidden_size.")
for around in (lambda matrices, vocab, d: matrices * vocab, lambda matrices, vocab, d: matrices * d):
    mistake("costs", llama(around=around), "The embedding is counted by one of its sides only: it holds vocab_size · hidden_size numbers.")
mistake("costs", counted(factor=lambda c, *_: c["num_attention_heads"]),
        "A head's key has hidden_size / num_attention_heads entries, not hidden_size.")
mistake("costs", counted(factor=lambda c, *_: 1 / c["num_key_value_heads"]),
        "One key-value head is counted. Each of the num_key_value_heads keeps keys and values of its own.")
mistake("costs", counted(factor=lambda c, *_: c["num_attention_heads"] / c["hidden_size"]),
        "A key is a vector: multiply by d_k, how many numbers it has.")
mistake("costs", counted(factor=lambda c, batch, tokens, bytes_each: 1 / tokens), "Every token has its own keys and values: multiply by `tokens`.")
mistake("costs", counted(factor=lambda c, batch, tokens, bytes_each: 1 / bytes_each), "That is how many numbers it holds. Multiply by `bytes_each`.")
mistake("costs", counted(factor=lambda c, *_: c["num_attention_heads"] / c["num_key_value_heads"]),
        "The cache is counted for every *query* head. Only the key-value heads are kept.")
mistake("costs", counted(factor=lambda *_: 0.5), "A key *and* a value are kept: twice as much.")
mistake("costs", counted(factor=lambda c, *_: 1 / c["num_hidden_layers"]), "Every layer has a cache of its own.")
mistake("costs", counted(factor=lambda c, batch, *_: 1 / batch), "Every text of the batch has a cache of its own.")
mistake("costs", counted(factor=lambda c, batch, tokens, bytes_each: 2 / bytes_each),
        "You always count 2 bytes per number. Use `bytes_each`.")
alternative("costs", {
    "llama_parameters": lambda config: sum((
        config["vocab_size"] * config["hidden_size"] * (2 - config["tie_word_embeddings"]), config["hidden_size"],
        config["num_hidden_layers"] * config["hidden_size"] * (
            2 + 3 * config["intermediate_size"] + 2 * config["hidden_size"] + 2 * width(config)))),
    "cache_bytes": lambda config, batch, tokens, bytes_each=2: (
        2 * bytes_each * batch * tokens * config["num_hidden_layers"] * width(config)),
})

# %%
check.summary()
