# %% [markdown]
# # Exercise 04 · Many heads, and cross-attention
#
# Five tasks, 12 points, about 55 minutes. [Lesson 04](../notebooks/04_heads.ipynb) has all you need. Run the cells from
# the top; fill in where it says *your turn*. A check compares what your function returns with what it should return,
# and knows the usual mistakes. Try as often as you like.
#
# Notation: batch $b$, length $n$ (queries), $m$ (keys), $h$ heads of $d_k$ columns, $d_{model} = h \cdot d_k$. A mask
# is boolean, and `True` means *may attend*. Weight matrices are (in, out): use them as `x @ w`.
#
# The answers are yours to write: one that calls torch's multi-head attention, txlib (but for what is imported below), or
# what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from txlib.attention import attention
from txlib.grading import check

# %% [markdown]
# `attention(q, k, v, mask)` is the function of lesson 03. It takes (batch, heads, length, d_k), and works in each head
# of each sentence. The mask may be `None`, or has four axes, (batch, heads, query, key). The first three may be 1: then
# it is the same for all sentences, heads or queries.

# %% [markdown]
# ### Task 1 · Split and join   ●●○○○ · 8 minutes · 2 points
#
# `split` gives each head an axis of its own: head 0 gets the first $d_k$ columns of *every* word, head 1 the next
# $d_k$. `join` is the way back: the heads' columns side by side again. Joining what was split gives the original.
#
# <details><summary>Hint 1: where to begin</summary>
#
# First divide the last axis in two, then move an axis. The other way round mixes up words.
# </details>
# <details><summary>Hint 2: which calls</summary>
#
# `x.view(b, n, heads, d_k)` divides; `transpose(1, 2)` swaps two axes. In `join` they come in the opposite order, with
# `reshape`, because after a transpose `view` refuses.
# </details>
# <details><summary>Hint 3: a test of your own</summary>
#
# Fill word $i$ with the number $i$: `torch.arange(n).view(1, n, 1).expand(1, n, d)`. After `split`, each head must read
# 0, 1, 2 … from top to bottom.
# </details>

# %% nbgrader={"grade_id": "split-join", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def split(x: Float[Tensor, "b n d_model"], heads: int) -> Float[Tensor, "b h n d_k"]:
    """The heads side by side in the last axis, moved to an axis of their own."""
    ### BEGIN SOLUTION
    b, n, d_model = x.shape
    return x.view(b, n, heads, d_model // heads).transpose(1, 2)
    ### END SOLUTION


def join(x: Float[Tensor, "b h n d_k"]) -> Float[Tensor, "b n d_model"]:
    """The heads' columns side by side again."""
    ### BEGIN SOLUTION
    b, heads, n, d_k = x.shape
    return x.transpose(1, 2).reshape(b, n, heads * d_k)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-split-join", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("split-join") as show:
    numbered = torch.arange(4.0).view(1, 4, 1).expand(1, 4, 6).contiguous()    # word i is filled with i
    show(split(numbered, 3)[0, 0], "head 0 of 3; word i is filled with the number i")
    b, n, heads, d_k = 2, show.random_size(4, 6), 3, show.random_size(4, 5)
    show(split(show.randn(b, n, heads * d_k), heads), f"split {n} words into {heads} heads")
    show(join(show.randn(b, heads, n, d_k)), f"join {heads} heads of {n} words")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake

forbid("*", "txlib")


def join_without_transpose(x):
    return x.reshape(x.shape[0], x.shape[2], -1)


def split_without_transpose(x, heads):
    return x.reshape(x.shape[0], heads, x.shape[1], -1)


def split_interleaved(x, heads):
    return x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2)


mistake("split-join", {"split": split_without_transpose},
        "`split` views straight to `(b, heads, n, d_k)`. The shape is right, but head 0 then holds the first *words* "
        "instead of the first columns of every word: divide the last axis first, then transpose.")
mistake("split-join", {"join": join_without_transpose},
        "`join` merges before it transposes. Bring the heads behind the words first; only then are the columns "
        "of one word neighbours.")
mistake("split-join", {"split": split_without_transpose, "join": join_without_transpose},
        "Neither function transposes. Joining what was split gives the original, so it looks right; but each head holds "
        "pieces of the wrong words. `view` divides an axis, it never swaps two.")
mistake("split-join", {"split": lambda x, heads: x.view(*x.shape[:2], heads, -1)},
        "`split` leaves the heads behind the words: `(b, n, heads, d_k)`. Attention works on the last two axes, so "
        "transpose words and heads.")
mistake("split-join", {"split": split_interleaved},
        "`split` deals the columns out like cards: head 0 gets columns 0, h, 2h … It should get the first `d_k`: in the "
        "`view`, `heads` comes before `d_k`.")
mistake("split-join", {"split": lambda x, heads: split(x, heads).transpose(2, 3)},
        "`split` returns `(b, heads, d_k, n)`. Words come before columns.")
mistake("split-join", {"join": lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], x.shape[2], -1)},
        "`join` deals the heads' columns out in turn. All of head 0's columns come first, then head 1's: "
        "`transpose(1, 2)` is enough.")
mistake("split-join", {"split": lambda x, heads: x.view(*x.shape[:2], heads, -1), "join": lambda x: x.flatten(2)},
        "Neither function transposes: `split` gives `(b, n, heads, d_k)`. Joining what was split gives the original, so "
        "that test passes. But attention works on the last two axes: it would let the heads of one word attend to each "
        "other.")
mistake("split-join", {"split": split_interleaved, "join": lambda x: x.permute(0, 2, 3, 1).flatten(2)},
        "Both functions deal the columns out like cards: head 0 gets columns 0, h, 2h … One undoes the other, but head 0 "
        "should get the first `d_k` columns: in the `view`, `heads` comes before `d_k`.")
mistake("split-join", {"split": lambda x, heads: x.transpose(1, 2).reshape(x.shape[0], heads, x.shape[1], -1)},
        "`split` transposes before it divides, and so takes several words' entries of one column as one row. Divide the "
        "last axis first, with `view`; then swap words and heads.")
mistake("split-join", {"split": lambda x, heads: torch.stack(x.split(heads, dim=-1), dim=1)},
        "torch's `split` takes the *size* of a piece, not how many there are. Give it `d_k`, or use `chunk(heads, dim=-1)`.")
mistake("split-join", {"split": lambda x, heads: x.view(*x.shape[:2], heads, -1).permute(2, 0, 1, 3)},
        "`split` brings the heads to the very front. The batch stays first: `(b, heads, n, d_k)`.")
mistake("split-join", {"join": lambda x: torch.cat(x.unbind(dim=1), dim=1)},
        "`join` puts the heads one below the other, as if they were more words. They belong side by side: `dim=-1`.")
alternative("split-join", {"split": lambda x, heads: torch.stack(x.chunk(heads, dim=-1), dim=1),
                           "join": lambda x: torch.cat(x.unbind(dim=1), dim=-1)})

# %% [markdown]
# ### Task 2 · Count the parameters   ●●○○○ · 8 minutes · 2 points
#
# How many parameters has a multi-head attention layer? It has four projections with biases: query, key, value and
# output. `kv_heads` is the number of key and value heads: as many as `heads`, or fewer in grouped-query attention. The
# memory that keys and values are made of is as wide as $x$.
#
# <details><summary>Hint 1: one matrix at a time</summary>
#
# Query and output are (d_model, d_model). What is the width of a key head?
# </details>
# <details><summary>Hint 2: the width</summary>
#
# Each head has $d_k = d_{model} / h$ columns, key heads too. So all keys together have `kv_heads * d_k` columns.
# </details>
# <details><summary>Hint 3: the biases</summary>
#
# A projection has one bias for each *output* column.
# </details>

# %% nbgrader={"grade_id": "parameters", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def parameters(d_model: int, heads: int, kv_heads: int) -> int:
    """Weights and biases of the four projections."""
    ### BEGIN SOLUTION
    kv_width = d_model // heads * kv_heads
    return 2 * (d_model * d_model + d_model) + 2 * (d_model * kv_width + kv_width)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-parameters", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("parameters") as show:
    show(parameters(512, 8, 8), "the paper's base model: d_model 512, 8 heads")
    show(parameters(512, 16, 16), "16 heads instead of 8")
    show(parameters(512, 8, 2), "8 heads, 2 of them for keys and values")
    kv_heads = show.random_size(2, 5)
    heads = kv_heads * show.random_size(2, 4)
    d_model = heads * show.random_size(6, 120)
    show(parameters(d_model, heads, kv_heads), f"d_model {d_model}, {heads} heads, {kv_heads} for keys and values")

# %% tags=["mistakes"]
mistake("parameters", lambda d_model, heads, kv_heads: 4 * (d_model * d_model + d_model),
        "Right as long as `kv_heads` equals `heads`. With fewer, the key and value matrices have fewer columns: "
        "`kv_heads * d_k`.")
mistake("parameters", lambda d_model, heads, kv_heads: parameters(d_model, heads, kv_heads)
        - 2 * (d_model + d_model // heads * kv_heads),
        "The biases are missing: one for each output column of each of the four projections.")
mistake("parameters", lambda d_model, heads, kv_heads: heads * 4 * (d_model * d_model + d_model),
        "You count full-size matrices for each head. Heads are strips of one matrix: `d_model / heads` columns each.")
mistake("parameters", lambda d_model, heads, kv_heads: parameters(d_model, heads, kv_heads) - d_model * (d_model + 1),
        "A projection is missing. After the heads are joined, the output projection mixes them.")
mistake("parameters", lambda d_model, heads, kv_heads: parameters(d_model, heads, kv_heads) + 2 * (
        d_model - d_model // heads * kv_heads),
        "The key and value projections have `d_model` biases in your count. A bias belongs to an *output* column, and "
        "those projections have `kv_heads * d_k` of them.")
mistake("parameters", lambda d_model, heads, kv_heads: float(parameters(d_model, heads, kv_heads)),
        "The number is right, but it is a float. `/` always makes one; `//` stays with whole numbers.")
mistake("parameters", lambda d_model, heads, kv_heads: 4 * d_model * d_model,
        "Four full matrices and nothing else. Two things are missing: the biases; and with fewer `kv_heads`, the key and "
        "value matrices have fewer columns.")
mistake("parameters", lambda d_model, heads, kv_heads: 3 * (d_model * d_model + d_model),
        "Three full projections. The fourth is missing, the output; and with fewer `kv_heads`, the key and value matrices "
        "have fewer columns.")
mistake("parameters", lambda d_model, heads, kv_heads: 2 * (d_model + 1) * (d_model + d_model // kv_heads),
        "You divide `d_model` by `kv_heads`. A key head is as wide as a query head, `d_model // heads`, and there are "
        "`kv_heads` of them.")
mistake("parameters", lambda d_model, heads, kv_heads: 2 * (d_model + 1) * (d_model + d_model // heads),
        "That is one key head and one value head. There are `kv_heads` of each.")
mistake("parameters", lambda d_model, heads, kv_heads: 2 * (d_model + 1) * d_model + 2 * (
        d_model // heads * kv_heads + 1) * (d_model // heads * kv_heads),
        "Your key and value matrices are square. They have fewer *columns*, but they still read all of x: `d_model` rows.")
mistake("parameters", lambda d_model, heads, kv_heads: (d_model + 1) * (3 * d_model + d_model // heads * kv_heads),
        "Only one of the two matrices is narrower in your count. Keys *and* values have `kv_heads` heads.")
mistake("parameters", lambda d_model, heads, kv_heads: (d_model + 1) * (2 * d_model + d_model // heads * kv_heads),
        "Keys and values are counted once. Each has a projection of its own.")
mistake("parameters", lambda d_model, heads, kv_heads: 2 * d_model * (d_model + d_model // heads * kv_heads) + 4,
        "Each projection has one bias in your count. It has one for each output *column*.")
alternative("parameters", lambda d_model, heads, kv_heads:
            2 * (d_model + 1) * (d_model + d_model * kv_heads // heads))

# %% [markdown]
# ### Task 3 · Multi-head self-attention   ●●●○○ · 12 minutes · 3 points
#
# Put it together: project `x` with three matrices, split, attend, join, project with the fourth. All four are
# (d_model, d_model), and there are no biases. (Your `split` and `join` of task 1 are at hand.)
#
# <details><summary>Hint 1: the order</summary>
#
# Project, split, attend, join, project: five steps, five short lines.
# </details>
# <details><summary>Hint 2: the mask</summary>
#
# Hand it on to `attention` as it is.
# </details>
# <details><summary>Hint 3: nearly the answer</summary>
#
# `q = split(x @ w_q, heads)`, likewise `k` and `v`; then `attention(q, k, v, mask)`; then `join`, then `@ w_o`.
# </details>

# %% nbgrader={"grade_id": "self-attention", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def self_attention(
    x: Float[Tensor, "b n d_model"], w_q: Float[Tensor, "d_model d_model"], w_k: Float[Tensor, "d_model d_model"],
    w_v: Float[Tensor, "d_model d_model"], w_o: Float[Tensor, "d_model d_model"], heads: int,
    mask: Bool[Tensor, "b|1 h|1 n n"] | None = None,
) -> Float[Tensor, "b n d_model"]:
    """Multi-head attention of x to itself (Vaswani et al. 2017, section 3.2.2)."""
    ### BEGIN SOLUTION
    q, k, v = split(x @ w_q, heads), split(x @ w_k, heads), split(x @ w_v, heads)
    return join(attention(q, k, v, mask)) @ w_o
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-self-attention", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("self-attention") as show:
    n, heads, d_k = show.random_size(4, 6), show.random_size(2, 4), 4
    d_model = heads * d_k
    x, w = show.randn(2, n, d_model), show.randn(4, d_model, d_model) / d_model**0.5
    show(self_attention(x, *w, heads), f"{n} words, {heads} heads, no mask")
    causal = torch.ones(n, n).tril().bool()[None, None]
    show(self_attention(x, *w, heads, causal), "the same with a causal mask")
    show(self_attention(x, *w, 1), "the same with one head")

# %% tags=["mistakes"]
forbid("self-attention", ("MultiheadAttention", "multi_head_attention_forward"), "aten._native_multi_head_attention")


def unsplit(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q, w_k, w_v, w_o, 1, mask)


def unmasked(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q, w_k, w_v, w_o, heads)


def without_output(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q, w_k, w_v, torch.eye(x.shape[-1]), heads, mask)


def output_before_join(x, w_q, w_k, w_v, w_o, heads, mask=None):
    mixed = attention(split(x @ w_q, heads), split(x @ w_k, heads), split(x @ w_v, heads), mask)
    return mixed.reshape(x.shape) @ w_o


def scaled_twice(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q / (x.shape[-1] // heads) ** 0.5, w_k, w_v, w_o, heads, mask)


def scaled_by_d_model(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q / heads**0.5, w_k, w_v, w_o, heads, mask)


def transposed(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q.T, w_k.T, w_v.T, w_o.T, heads, mask)


def viewed(x, w_q, w_k, w_v, w_o, heads, mask=None):
    q, k, v = (split_without_transpose(x @ w, heads) for w in (w_q, w_k, w_v))
    return join_without_transpose(attention(q, k, v, mask)) @ w_o


mistake("self-attention", unsplit,
        "The heads are not split: this is one wide head. Each head must attend with its own weights.")
mistake("self-attention", unmasked, "The mask is not handed on to `attention`.")
mistake("self-attention", without_output, "The output projection `w_o` is missing. Without it no head hears of another.")
mistake("self-attention", output_before_join,
        "The heads are merged before they are transposed, so columns of different words stand in one row. Use `join`.")
mistake("self-attention", scaled_twice,
        "The scores are divided by √d_k twice: `attention` does it already.")
mistake("self-attention", scaled_by_d_model,
        "The scores end up divided by √d_model. The dot product of one head adds up only `d_k` products; `attention` "
        "scales by that.")
mistake("self-attention", transposed,
        "The weight matrices are used as `x @ w.T`, as `nn.Linear` stores them. Here they are (in, out): `x @ w`.")
mistake("self-attention", viewed,
        "The heads are split with a bare `view`, and merged with one: each head holds pieces of the wrong words. The "
        "mask holds, but a word loses most of its past. `view` divides an axis, `transpose` swaps two.")
mistake("self-attention", lambda x, w_q, w_k, w_v, w_o, heads, mask=None:
        self_attention(x, w_k, w_q, w_v, w_o, heads, mask),
        "Queries and keys are swapped: row i then holds how much word i is *found*, not what it looks for.")


def half_viewed(x, w_q, w_k, w_v, w_o, heads, mask=None):
    q, k, v = (split_without_transpose(x @ w, heads) for w in (w_q, w_k, w_v))
    return join(attention(q, k, v, mask)) @ w_o


def own_strip(x, w_q, w_k, w_v, w_o, heads, mask=None):
    blocks = torch.block_diag(*[torch.ones(x.shape[-1] // heads, x.shape[-1] // heads)] * heads)
    return self_attention(x, w_q * blocks, w_k * blocks, w_v * blocks, w_o, heads, mask)


def inverted_mask(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return self_attention(x, w_q, w_k, w_v, w_o, heads, None if mask is None else ~mask)


def without_split(x, w_q, w_k, w_v, w_o, heads, mask=None):
    return attention(x @ w_q, x @ w_k, x @ w_v, mask) @ w_o


mistake("self-attention", half_viewed,
        "The heads are split with a bare `view`: head 0 then holds the first *words*. Divide the last axis, then "
        "transpose, as your `split` of task 1 does.")
mistake("self-attention", own_strip,
        "Each head reads only its own strip of `x`. It reads *all* of x: only the matrices' columns are cut into strips.")
mistake("self-attention", inverted_mask,
        "The mask is inverted. `True` means *may attend*, here and in `attention`: hand it on as it is.")
mistake("self-attention", without_split,
        "The heads are not split: this is one wide head. (`attention` takes three axes too, but a mask has four.)")
mistake("self-attention", lambda x, w_q, w_k, w_v, w_o, heads, mask=None:
        self_attention(x, w_q, w_k, torch.eye(x.shape[-1]), w_o, heads, mask),
        "The values are `x` itself. They have a projection, too: `x @ w_v`.")
mistake("self-attention", lambda x, w_q, w_k, w_v, w_o, heads, mask=None:
        self_attention(x, w_q, w_k, w_k, w_o, heads, mask),
        "The values are made with `w_k`. Use `w_v`: what a word is found by is one thing, what it hands over another.")
mistake("self-attention", lambda x, w_q, w_k, w_v, w_o, heads, mask=None:
        x + self_attention(x, w_q, w_k, w_v, w_o, heads, mask),
        "You add `x` to the result. A block does that (lesson 06), but not attention itself.")
mistake("self-attention", lambda x, w_q, w_k, w_v, w_o, heads, mask=None:
        self_attention(x, w_q * (x.shape[-1] // heads) ** 0.5, w_k, w_v, w_o, heads, mask),
        "The scores are not divided by √d_k. `attention` does that for you.")


def by_strips(x, w_q, w_k, w_v, w_o, heads, mask=None):
    strips = zip(w_q.chunk(heads, 1), w_k.chunk(heads, 1), w_v.chunk(heads, 1), strict=True)
    answers = []
    for head, (a, b, c) in enumerate(strips):
        own = mask if mask is None or mask.shape[1] == 1 else mask[:, head : head + 1]
        answers.append(attention((x @ a)[:, None], (x @ b)[:, None], (x @ c)[:, None], own)[:, 0])
    return torch.cat(answers, dim=-1) @ w_o


alternative("self-attention", by_strips)

# %% [markdown]
# ### Task 4 · Cross-attention with padding   ●●●●○ · 15 minutes · 3 points
#
# English words `x` attend to a German sentence, the `memory`. Its sentences have different lengths and are padded:
# `lengths[i]` of the $m$ rows of sentence $i$ are real, and they come first. No English word may attend to padding.
#
# <details><summary>Hint 1: who is who</summary>
#
# Queries are made of `x`; keys *and* values of `memory`.
# </details>
# <details><summary>Hint 2: the mask's shape</summary>
#
# It says which *keys* are real, and is the same for all heads and all queries: (b, 1, 1, m).
# </details>
# <details><summary>Hint 3: the mask in one line</summary>
#
# `torch.arange(m) < lengths[:, None]` is (b, m): `True` at real rows. Then put in two axes of size 1.
# </details>

# %% nbgrader={"grade_id": "cross-attention", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def cross_attention(
    x: Float[Tensor, "b n d_model"], memory: Float[Tensor, "b m d_model"], lengths: Tensor,
    w_q: Float[Tensor, "d_model d_model"], w_k: Float[Tensor, "d_model d_model"],
    w_v: Float[Tensor, "d_model d_model"], w_o: Float[Tensor, "d_model d_model"], heads: int,
) -> Float[Tensor, "b n d_model"]:
    """Multi-head attention of x to the memory's real rows."""
    ### BEGIN SOLUTION
    q, k, v = split(x @ w_q, heads), split(memory @ w_k, heads), split(memory @ w_v, heads)
    mask = (torch.arange(memory.shape[1]) < lengths[:, None])[:, None, None]       # (b, 1, 1, m)
    return join(attention(q, k, v, mask)) @ w_o
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-cross-attention", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("cross-attention") as show:
    heads, d_model = 3, 12
    w = show.randn(4, d_model, d_model) / d_model**0.5
    x, memory = show.randn(3, 5, d_model), show.randn(3, 5, d_model)
    show(cross_attention(x, memory, torch.tensor([3, 4, 2]), *w, heads), "n = 5, m = 5, lengths 3, 4, 2")
    n, m = show.random_size(3, 5), show.random_size(6, 8)
    x, memory = show.randn(2, n, d_model), show.randn(2, m, d_model)
    show(cross_attention(x, memory, torch.tensor([m - 2, m]), *w, heads), f"n = {n}, m = {m}, lengths {m - 2}, {m}")

# %% tags=["mistakes"]
forbid("cross-attention", ("MultiheadAttention", "multi_head_attention_forward"), "aten._native_multi_head_attention")


def crossed(x, key_source, value_source, mask, w, heads):
    w_q, w_k, w_v, w_o = w
    return join(attention(split(x @ w_q, heads), split(key_source @ w_k, heads), split(value_source @ w_v, heads),
                          mask)) @ w_o


def real(memory, lengths):
    return torch.arange(memory.shape[1]) < lengths[:, None]


def on_queries(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, memory, memory, real(x, lengths)[:, None, :, None].expand(-1, -1, -1, memory.shape[1]), w, heads)


def no_mask(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, memory, memory, None, w, heads)


def inverted(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, memory, memory, ~real(memory, lengths)[:, None, None], w, heads)


def one_too_many(x, memory, lengths, *w_heads):
    return cross_attention(x, memory, lengths + 1, *w_heads)


def from_query_side(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, x, x, real(x, lengths)[:, None, None], w, heads)


def turned_round(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(memory, x, x, real(x, lengths)[:, None, None], w, heads)


def zeroed(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    emptied = memory * real(memory, lengths)[:, :, None]
    return crossed(x, emptied, emptied, None, w, heads)


def values_of_x(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, memory, x, real(memory, lengths)[:, None, None], w, heads)


def keys_of_x(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, x, memory, real(memory, lengths)[:, None, None], w, heads)


def self_attending(x, memory, lengths, *w_heads):
    return self_attention(x, *w_heads, real(memory, lengths)[:, None, None])


def turned_unmasked(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(memory, x, x, None, w, heads)


def turned_mask_of_memory(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(memory, x, x, real(memory, lengths)[:, None, None], w, heads)


def on_heads(x, memory, lengths, *w_heads):
    *w, heads = w_heads
    return crossed(x, memory, memory, real(memory, lengths)[None, :, None], w, heads)


def after_softmax(x, memory, lengths, w_q, w_k, w_v, w_o, heads):
    q, k, v = split(x @ w_q, heads), split(memory @ w_k, heads), split(memory @ w_v, heads)
    _, weights = attention(q, k, v, return_weights=True)
    return join((weights * real(memory, lengths)[:, None, None]) @ v) @ w_o


def same_length(x, memory, lengths, *w_heads):
    return cross_attention(x, memory, lengths.max().expand(len(x)), *w_heads)


def same_projection(x, memory, lengths, w_q, w_k, w_v, w_o, heads):
    return cross_attention(x, memory, lengths, w_q, w_k, w_k, w_o, heads)


mistake("cross-attention", on_queries,
        "The mask is on the query axis. The padding is in the *memory*, so it is the keys that must be masked: "
        "`(b, 1, 1, m)`.")
mistake("cross-attention", no_mask,
        "There is no mask. Every English word spends part of its attention on padding.")
mistake("cross-attention", inverted,
        "The mask is inverted: `True` means *may attend*. Here the padding is attended to, and the words are not.")
mistake("cross-attention", one_too_many,
        "One row of padding slips through: with `lengths[i] = 3` the real rows are 0, 1 and 2, so it is `<`, not `<=`.")
mistake("cross-attention", from_query_side,
        "Keys and values are made of `x`, so this is self-attention. They must come from the `memory`.")
mistake("cross-attention", turned_round,
        "Queries and memory are swapped: your output has one row a *German* word. `x` asks, `memory` answers.")
mistake("cross-attention", zeroed,
        "You set the padding rows to zero. A key of zeros has score 0, and e⁰ = 1: it still takes its share. Mask the "
        "scores instead.")
mistake("cross-attention", same_projection,
        "The values are made with `w_k`. What is found by and what is handed over have separate projections: use `w_v`.")

mistake("cross-attention", values_of_x,
        "The values are made of `x`. Keys *and* values come from the `memory`: what is found there is handed over. (Where "
        "n and m differ, the shapes don't fit.)")
mistake("cross-attention", keys_of_x,
        "The keys are made of `x`. Keys *and* values come from the `memory`. (Where n and m differ, the shapes don't fit.)")
mistake("cross-attention", self_attending,
        "Keys and values are made of `x`, so this is self-attention, and the mask fits only where n and m are equal. They "
        "must come from the `memory`.")
for turned in (turned_unmasked, turned_mask_of_memory):
    mistake("cross-attention", turned,
            "Queries and memory are swapped: `x` asks, so queries are made of `x`, keys and values of the `memory`.")
mistake("cross-attention", on_heads,
        "The mask's sentences stand on the axis of the *heads*: (1, b, 1, m). Here b and heads happened to be equal. It "
        "is (b, 1, 1, m).")
mistake("cross-attention", after_softmax,
        "The weights on the padding are set to zero *after* the softmax, so the others no longer add up to 1. Hand the "
        "mask to `attention`.")
mistake("cross-attention", same_length,
        "All sentences get the mask of the longest. Each has a length of its own: compare with `lengths[:, None]`.")
mistake("cross-attention", lambda x, memory, lengths, w_q, w_k, w_v, w_o, heads:
        cross_attention(x, memory, lengths, w_q, w_k, w_v, torch.eye(x.shape[-1]), heads),
        "The output projection `w_o` is missing.")
mistake("cross-attention", lambda x, memory, lengths, *w_heads: cross_attention(x, memory, lengths - 1, *w_heads),
        "One real row too few: with `lengths[i] = 3` the real rows are 0, 1 and 2.")


def by_sentences(x, memory, lengths, *w_heads):
    rows = [cross_attention(one[None], words[None, :length], torch.tensor([length]), *w_heads)
            for one, words, length in zip(x, memory, lengths.tolist(), strict=True)]
    return torch.cat(rows)


alternative("cross-attention", by_sentences)

# %% [markdown]
# ### Task 5 · Grouped heads   ●●●●○ · 12 minutes · 2 points
#
# Grouped-query attention: there are fewer key and value heads than query heads, and neighbours share. With 4 query
# heads and 2 key heads, query heads 0 and 1 use key head 0, query heads 2 and 3 use key head 1. The heads are already
# split. Return the mixtures, one for each query head. It must also work where the two numbers of heads are equal, and
# for one key head. (`attention` of lesson 03 is at hand; torch's own `enable_gqa` doesn't count.)
#
# <details><summary>Hint 1: how many share</summary>
#
# Read both numbers of heads from the shapes. Each key head serves `h // g` query heads.
# </details>
# <details><summary>Hint 2: repeat in place</summary>
#
# You want key heads 0, 0, 1, 1. `repeat` gives 0, 1, 0, 1. Which call repeats each element in place?
# </details>
# <details><summary>Hint 3: nearly the answer</summary>
#
# `k.repeat_interleave(times, dim=1)`, the same for `v`, then `attention`.
# </details>

# %% nbgrader={"grade_id": "grouped", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def grouped_attention(
    q: Float[Tensor, "b h n d_k"], k: Float[Tensor, "b g m d_k"], v: Float[Tensor, "b g m d_k"],
    mask: Bool[Tensor, "b|1 h|1 n m"] | None = None,
) -> Float[Tensor, "b h n d_k"]:
    """Attention with h query heads on g key and value heads, h / g queries to each."""
    ### BEGIN SOLUTION
    times = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1), mask)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-grouped", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("grouped") as show:
    n, m, d_k = show.random_size(3, 4), show.random_size(5, 6), 4
    for h, g in ((6, 2), (6, 3), (4, 1), (3, 3)):
        q, k, v = show.randn(2, h, n, d_k), show.randn(2, g, m, d_k), show.randn(2, g, m, d_k)
        mask = torch.arange(m) <= torch.arange(n)[:, None] + m - n
        show(grouped_attention(q, k, v, mask[None, None]), f"{h} query heads, {g} key and value heads")

# %% tags=["mistakes"]
forbid("grouped", ("MultiheadAttention", "enable_gqa", "scaled_dot_product_attention"),
       ("aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_fused_attention_overrideable",
        "aten._scaled_dot_product_attention_math", "aten._native_multi_head_attention"))


def grouped_by(q, k, v, mask, repeated):
    return attention(q, repeated(k, q.shape[1] // k.shape[1]), repeated(v, q.shape[1] // v.shape[1]), mask)


def tiled(x, times):
    return x.repeat(1, times, 1, 1)


def averaged(x, times):
    return x.mean(dim=1, keepdim=True).expand(-1, times * x.shape[1], -1, -1)


def only_first(x, times):
    return x[:, :1].expand(-1, times * x.shape[1], -1, -1)


def clamped(x, times):
    return x[:, torch.arange(times * x.shape[1]).clamp(max=x.shape[1] - 1)]


mistake("grouped", lambda q, k, v, mask=None: grouped_by(q, k, v, mask, tiled),
        "`repeat` lays the whole row of key heads out again: 0, 1, 0, 1. Neighbours should share, 0, 0, 1, 1: "
        "`repeat_interleave`.")
mistake("grouped", lambda q, k, v, mask=None: attention(
        q, k.repeat_interleave(q.shape[1] // k.shape[1], dim=1), tiled(v, q.shape[1] // v.shape[1]), mask),
        "Keys and values are repeated in different orders, so a query head finds with one head and takes from another. "
        "Use `repeat_interleave` for both.")
mistake("grouped", lambda q, k, v, mask=None: grouped_by(q, k, v, mask, averaged),
        "You average the key and value heads. They stay different; each serves its own group of query heads.")
mistake("grouped", lambda q, k, v, mask=None: grouped_by(q, k, v, mask, only_first),
        "All query heads use key head 0. That is right for one key head only; with `g` of them, each serves `h // g`.")
mistake("grouped", lambda q, k, v, mask=None: grouped_by(q, k, v, mask, clamped),
        "The last key head is repeated until there are enough: 0, 1, 1, 1. Each should serve equally many query heads.")
mistake("grouped", lambda q, k, v, mask=None: grouped_attention(q, k, v), "The mask is not handed on to `attention`.")
mistake("grouped", lambda q, k, v, mask=None: attention(
        q.unflatten(1, (k.shape[1], -1)).mean(dim=2), k, v, mask),
        "Your result has only as many heads as the keys have. All query heads stay; they share what they look at.")
mistake("grouped", lambda q, k, v, mask=None: attention(q[:, : k.shape[1]], k, v, mask),
        "You keep only as many query heads as there are key heads. All query heads stay; they share keys and values.")
mistake("grouped", lambda q, k, v, mask=None: grouped_attention(q, k, v, None if mask is None else ~mask),
        "The mask is inverted. `True` means *may attend*, here and in `attention`: hand it on as it is.")
mistake("grouped", lambda q, k, v, mask=None: join(grouped_attention(q, k, v, mask)),
        "You have joined the heads. Here they stay apart: return the mixtures, `(b, h, n, d_k)`.")
mistake("grouped", lambda q, k, v, mask=None: grouped_attention(q, k, v, mask).unflatten(1, (k.shape[1], -1)).sum(dim=2),
        "You have added up the query heads of a group. Each keeps its own mixture: the result has `h` heads.")


def in_groups(q, k, v, mask=None):
    b, h, n, d_k = q.shape
    g = k.shape[1]
    folded = q.reshape(b, g, h // g * n, d_k)      # the group's queries one after the other
    own = None if mask is None else mask.expand(b, h, n, k.shape[2]).reshape(b, g, h // g * n, k.shape[2])
    return attention(folded, k, v, own).reshape(b, h, n, d_k)


alternative("grouped", in_groups)

# %% [markdown]
# ## Your result

# %%
check.summary()
