# %% [markdown]
# # Exercise 04 · Many heads, self- and cross-attention
#
# Six tasks, 16 points, about 75 minutes. They use what [lesson 04](../notebooks/04_heads.ipynb) built, on problems that
# the lesson left out. Tasks 1, 2 and 5 are the *core*, about 37 minutes; tasks 3, 4 and 6 are *more*. Run the cells from
# the top; fill in where it says *your turn*. A check compares what your function returns with what it should return, and
# knows the usual mistakes. Try as often as you like.
#
# Notation: batch $b$, length $n$ (queries), $m$ (keys), $h$ heads of $d_k$ columns. A mask is boolean, and `True` means
# *may attend*. Weight matrices are (in, out): use them as `x @ w`.
#
# Write the answers yourself: one that calls torch's multi-head attention, txlib (except for what is imported below), or
# what a task rules out, is flagged for your teacher, if you have one.

# %% tags=["parameters"]
seed = 0

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention import MultiHeadAttention, attention
from txgrade import check

# %% [markdown]
# You may use three functions. `attention(q, k, v, mask)` is from lesson 03. It takes (batch, heads, length, width), and
# works in each head of each sentence. The mask is `None`, or has four axes, (batch, heads, query, key). The first three
# may be 1: then it is the same for all sentences, heads or queries. `split` and `join` are from lesson 04:

# %%
def split(x: Float[Tensor, "b n width"], heads: int) -> Float[Tensor, "b h n d_k"]:
    """The heads side by side in the last axis, moved to an axis of their own."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join(x: Float[Tensor, "b h n d_k"]) -> Float[Tensor, "b n width"]:
    """The heads' columns side by side again."""
    return x.transpose(1, 2).flatten(2)

# %% [markdown]
# ### Task 1 · One matrix for all   ●●●○○ · 10 minutes · 2 points
#
# Many models make queries, keys and values with one wide matrix, and then take the result apart. The order of its
# columns differs from model to model. GPT-2 has all queries first, then all keys, then all values. GPT-NeoX and
# BLOOM sort by *head*: the first head's query, key and value, then the second head's query, key and value, and so on:
#
# $$\underbrace{q_0\;k_0\;v_0}_{\text{head 0}}\;\underbrace{q_1\;k_1\;v_1}_{\text{head 1}}\;\dots$$
#
# with $d_k$ columns each. Take such an `x` apart. `parts` is how many each head has: 3 for query, key and value, 2
# where only keys and values are fused. Return a tuple of `parts` tensors, each (b, h, n, d_k).
#
# <details><summary>Hint 1: where to begin</summary>
#
# First divide the last axis, then move axes. Into how many axes must it be divided, and which one varies slowest?
# </details>
# <details><summary>Hint 2: which calls</summary>
#
# `x.unflatten(-1, (…, …, …))` divides the last axis in three; `permute` reorders axes; `unbind(0)` splits the first axis
# into a tuple of tensors.
# </details>
# <details><summary>Hint 3: a test of your own</summary>
#
# Let each column hold its own number: `torch.arange(12.0).view(1, 1, 12)`, with 2 heads and 3 parts. The first tensor
# must hold 0 and 1 in head 0, 6 and 7 in head 1.
# </details>

# %% nbgrader={"grade_id": "unfuse", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def unfuse(x: Float[Tensor, "b n width"], heads: int, parts: int) -> tuple[Float[Tensor, "b h n d_k"], ...]:
    """Each part of all heads: with three parts, the queries, the keys and the values."""
    ### BEGIN SOLUTION
    return x.unflatten(-1, (heads, parts, -1)).permute(3, 0, 2, 1, 4).unbind(0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-unfuse", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("unfuse") as show:
    numbered = torch.arange(24.0).expand(2, 3, 24).contiguous()                # column c holds c
    show([part[0, :, 0] for part in unfuse(numbered, 2, 3)], "2 heads, 3 parts; each column holds its number")
    b, n, heads, d_k = 2, show.random_size(5, 6), show.random_size(3, 4), show.random_size(7, 8)
    for parts in (3, 2):
        x = show.randn(b, n, heads * parts * d_k)
        show([*unfuse(x, heads, parts)], f"{heads} heads, {parts} parts of {d_k} columns")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def like_gpt2(x, heads, parts):
    return tuple(split(part, heads) for part in x.chunk(parts, dim=-1))


def not_transposed(x, heads, parts):
    return x.unflatten(-1, (heads, parts, -1)).unbind(3)


def viewed(x, heads, parts):
    b, n, width = x.shape
    return x.reshape(b, heads, n, parts, -1).unbind(3)


def dealt(x, heads, parts):
    return x.unflatten(-1, (heads, -1, parts)).permute(4, 0, 2, 1, 3).unbind(0)


def dealt_heads(x, heads, parts):
    return x.unflatten(-1, (parts, -1, heads)).permute(2, 0, 4, 1, 3).unbind(0)


mistake("unfuse", like_gpt2,
        "You take the parts first, then the heads, as GPT-2 lays them out. Here the *heads* vary slowest: divide into "
        "(heads, parts, d_k).")
mistake("unfuse", not_transposed,
        "The heads stand after the words: `(b, n, heads, d_k)`. Attention works on the last two axes, so bring the heads "
        "before the words.")
mistake("unfuse", viewed,
        "You view words and heads straight into their places. `view` and `reshape` divide an axis, they never swap two: "
        "head 0 then holds the first *words*. Divide the last axis only, then move axes.")
mistake("unfuse", dealt,
        "Within a head, you deal the columns out like cards: query, key, value, query, key, value. Each part has its `d_k` "
        "columns side by side: (heads, parts, d_k).")
mistake("unfuse", dealt_heads,
        "You deal the columns out among the heads like cards. The first head's columns stand side by side, all its parts: "
        "divide into (heads, parts, d_k).")
mistake("unfuse", lambda x, heads, parts: unfuse(x, heads, parts)[::-1],
        "The parts come in the opposite order: queries first, then keys, then values.")
mistake("unfuse", lambda x, heads, parts: tuple(part.transpose(2, 3) for part in unfuse(x, heads, parts)),
        "Your tensors are `(b, heads, d_k, n)`. Words come before columns.")
mistake("unfuse", lambda x, heads, parts: split(x, heads).chunk(1, dim=-1),
        "The heads are right, but each still has its query, key and value side by side: divide it into `parts`.")
mistake("unfuse", lambda x, heads, parts: torch.stack([*unfuse(x, heads, parts)], dim=1).unbind(0),
        "Your tuple has one tensor per *sentence*. Bring the axis of the parts to the front, and unbind that one.")
mistake("unfuse", lambda x, heads, parts: unfuse(x, heads, 3)[:parts],
        "You always divide by 3. `parts` may also be 2, where only keys and values are fused.")
alternative("unfuse", lambda x, heads, parts: split(x, heads).chunk(parts, dim=-1))
alternative("unfuse", lambda x, heads, parts: tuple(
    torch.stack([head.chunk(parts, dim=-1)[part] for head in x.chunk(heads, dim=-1)], dim=1) for part in range(parts)))

# %% [markdown]
# ### Task 2 · Cross-attention with padding   ●●●●○ · 14 minutes · 3 points
#
# English words `x` attend to a German sentence, the `memory`. Its sentences have different lengths and are padded:
# `lengths`, of shape ($b$,), says how many of the $m$ rows of each sentence are real; these come first. No English word
# may attend to padding.
#
# The matrix `w_kv` makes keys and values at once, in the layout of task 1. (Use your `unfuse` for them, and `split` for
# the queries.)
#
# <details><summary>If task 1 does not work yet</summary>
#
# `x.unflatten(-1, (heads, 2, -1))` separates keys and values; then index the axis of size 2.
# </details>
# <details><summary>Hint 1: who is who</summary>
#
# Queries come from `x`; keys *and* values from `memory`.
# </details>
# <details><summary>Hint 2: the mask's shape</summary>
#
# It says which *keys* are real, and is the same for all heads and all queries: (b, 1, 1, m).
# </details>
# <details><summary>Hint 3: from lengths to a mask</summary>
#
# Which of the positions 0 … m − 1 are smaller than the sentence's length? Compare a row of positions with a column of
# lengths, then insert two axes of size 1.
# </details>

# %% nbgrader={"grade_id": "cross-attention", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def cross_attention(
    x: Float[Tensor, "b n d_model"], memory: Float[Tensor, "b m d_model"], lengths: Tensor,
    w_q: Float[Tensor, "d_model d_model"], w_kv: Float[Tensor, "d_model two_d_model"],
    w_o: Float[Tensor, "d_model d_model"], heads: int,
) -> Float[Tensor, "b n d_model"]:
    """Multi-head attention of x to the memory's real rows."""
    ### BEGIN SOLUTION
    k, v = unfuse(memory @ w_kv, heads, 2)
    mask = (torch.arange(memory.shape[1]) < lengths[:, None])[:, None, None]       # (b, 1, 1, m)
    return join(attention(split(x @ w_q, heads), k, v, mask)) @ w_o
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-cross-attention", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("cross-attention") as show:
    heads, d_model = 3, 12
    w_q, w_o = show.randn(2, d_model, d_model) / d_model**0.5
    w_kv = show.randn(d_model, 2 * d_model) / d_model**0.5
    x, memory = show.randn(3, 5, d_model), show.randn(3, 5, d_model)
    show(cross_attention(x, memory, torch.tensor([3, 4, 2]), w_q, w_kv, w_o, heads), "n = 5, m = 5, lengths 3, 4, 2")
    n, m = show.random_size(3, 5), show.random_size(6, 8)
    x, memory = show.randn(2, n, d_model), show.randn(2, m, d_model)
    show(cross_attention(x, memory, torch.tensor([m - 2, m]), w_q, w_kv, w_o, heads),
         f"n = {n}, m = {m}, lengths {m - 2}, {m}")

# %% tags=["mistakes"]
forbid("cross-attention", ("MultiheadAttention", "multi_head_attention_forward"), "aten._native_multi_head_attention")


def real(memory, lengths):
    return torch.arange(memory.shape[1]) < lengths[:, None]


def crossed(x, key_source, value_source, mask, w_q, w_kv, w_o, heads):
    k, v = unfuse(key_source @ w_kv, heads, 2)[0], unfuse(value_source @ w_kv, heads, 2)[1]
    return join(attention(split(x @ w_q, heads), k, v, mask)) @ w_o


def on_queries(x, memory, lengths, *w):
    return crossed(x, memory, memory, real(x, lengths)[:, None, :, None].expand(-1, -1, -1, memory.shape[1]), *w)


def zeroed(x, memory, lengths, *w):
    emptied = memory * real(memory, lengths)[:, :, None]
    return crossed(x, emptied, emptied, None, *w)


def on_heads(x, memory, lengths, *w):
    return crossed(x, memory, memory, real(memory, lengths)[None, :, None], *w)


def after_softmax(x, memory, lengths, w_q, w_kv, w_o, heads):
    k, v = unfuse(memory @ w_kv, heads, 2)
    _, weights = attention(split(x @ w_q, heads), k, v, return_weights=True)
    return join((weights * real(memory, lengths)[:, None, None]) @ v) @ w_o


def parts_first(x, memory, lengths, w_q, w_kv, w_o, heads):
    k, v = (split(part, heads) for part in (memory @ w_kv).chunk(2, dim=-1))
    return join(attention(split(x @ w_q, heads), k, v, real(memory, lengths)[:, None, None])) @ w_o


def exchanged(x, memory, lengths, w_q, w_kv, w_o, heads):
    v, k = unfuse(memory @ w_kv, heads, 2)
    return join(attention(split(x @ w_q, heads), k, v, real(memory, lengths)[:, None, None])) @ w_o


def merged_early(x, memory, lengths, w_q, w_kv, w_o, heads):
    k, v = unfuse(memory @ w_kv, heads, 2)
    mixed = attention(split(x @ w_q, heads), k, v, real(memory, lengths)[:, None, None])
    return mixed.reshape(x.shape) @ w_o


def scaled_twice(x, memory, lengths, w_q, w_kv, w_o, heads):
    return cross_attention(x, memory, lengths, w_q / (x.shape[-1] // heads) ** 0.5, w_kv, w_o, heads)


def scaled_by_d_model(x, memory, lengths, w_q, w_kv, w_o, heads):
    return cross_attention(x, memory, lengths, w_q / heads**0.5, w_kv, w_o, heads)


mistake("cross-attention", on_queries,
        "The mask is on the query axis. The padding is in the *memory*, so it is the keys that must be masked: "
        "`(b, 1, 1, m)`.")
mistake("cross-attention", lambda x, memory, lengths, *w: crossed(x, memory, memory, None, *w),
        "There is no mask. Every English word spends part of its attention on padding.")
mistake("cross-attention", lambda x, memory, lengths, *w:
        crossed(x, memory, memory, ~real(memory, lengths)[:, None, None], *w),
        "The mask is inverted: `True` means *may attend*. Here the padding is attended to, and the words are not.")
mistake("cross-attention", lambda x, memory, lengths, *w: cross_attention(x, memory, lengths + 1, *w),
        "One row of padding slips through: with `lengths[i] = 3` the real rows are 0, 1 and 2, so it is `<`, not `<=`.")
mistake("cross-attention", lambda x, memory, lengths, *w: cross_attention(x, memory, lengths - 1, *w),
        "One real row too few: with `lengths[i] = 3` the real rows are 0, 1 and 2.")
mistake("cross-attention", lambda x, memory, lengths, *w: cross_attention(x, memory, lengths.max().expand(len(x)), *w),
        "All sentences get the mask of the longest. Each has a length of its own: compare with `lengths[:, None]`.")
mistake("cross-attention", lambda x, memory, lengths, *w: crossed(x, x, x, real(x, lengths)[:, None, None], *w),
        "Keys and values are made of `x`, so this is self-attention. They must come from the `memory`.")
mistake("cross-attention", lambda x, memory, lengths, *w: crossed(x, x, x, real(memory, lengths)[:, None, None], *w),
        "Keys and values are made of `x`, so this is self-attention, and the mask fits only where n and m are equal. They "
        "must come from the `memory`.")
for mask_of in (lambda x, memory, lengths: real(x, lengths)[:, None, None],
                lambda x, memory, lengths: real(memory, lengths)[:, None, None], lambda x, memory, lengths: None):
    mistake("cross-attention", lambda x, memory, lengths, *w, mask_of=mask_of:
            crossed(memory, x, x, mask_of(x, memory, lengths), *w),
            "Queries and memory are swapped: `x` asks, so queries are made of `x`, keys and values of the `memory`.")
mistake("cross-attention", lambda x, memory, lengths, *w: crossed(x, memory, x, real(memory, lengths)[:, None, None], *w),
        "The values are made of `x`. Keys *and* values come from the `memory`: what is found there is handed over. (Where "
        "n and m differ, the shapes don't fit.)")
mistake("cross-attention", lambda x, memory, lengths, *w: crossed(x, x, memory, real(memory, lengths)[:, None, None], *w),
        "The keys are made of `x`. Keys *and* values come from the `memory`. (Where n and m differ, the shapes don't fit.)")
mistake("cross-attention", zeroed,
        "You set the padding rows to zero. A key of zeros has score 0, and e⁰ = 1: it still takes its share. Mask the "
        "scores instead.")
mistake("cross-attention", on_heads,
        "The mask's sentences stand on the axis of the *heads*: (1, b, 1, m). Here b and heads happened to be equal. It "
        "is (b, 1, 1, m).")
mistake("cross-attention", after_softmax,
        "The weights on the padding are set to zero *after* the softmax, so the others no longer add up to 1. Hand the "
        "mask to `attention`.")
mistake("cross-attention", parts_first,
        "You cut `memory @ w_kv` into all keys and all values. Its columns are sorted by head: key and value of head 0, key "
        "and value of head 1. `unfuse` takes them apart.")
mistake("cross-attention", exchanged,
        "Keys and values are exchanged: in each head the key's columns come first, then the value's.")
mistake("cross-attention", merged_early,
        "The heads are merged before they are transposed, so columns of different words stand in one row. Use `join`.")
mistake("cross-attention", scaled_twice, "The scores are divided by √d_k twice: `attention` does it already.")
mistake("cross-attention", scaled_by_d_model,
        "The scores end up divided by √d_model. The dot product of one head adds up only `d_k` products; `attention` "
        "scales by that.")
mistake("cross-attention", lambda x, memory, lengths, w_q, w_kv, w_o, heads:
        cross_attention(x, memory, lengths, w_q, w_kv, torch.eye(x.shape[-1]), heads),
        "The output projection `w_o` is missing. Without it no head hears of another.")


def by_sentences(x, memory, lengths, *w):
    rows = [cross_attention(one[None], words[None, :length], torch.tensor([length]), *w)
            for one, words, length in zip(x, memory, lengths.tolist(), strict=True)]
    return torch.cat(rows)


def queries_unfused(x, memory, lengths, w_q, w_kv, w_o, heads):
    (q,), (k, v) = unfuse(x @ w_q, heads, 1), unfuse(memory @ w_kv, heads, parts=2)
    return join(attention(q, k, v, real(memory, lengths)[:, None, None])) @ w_o


alternative("cross-attention", by_sentences)
alternative("cross-attention", queries_unfused)

# %% [markdown]
# ### Task 3 · Take a head out   ●●●○○ · 10 minutes · 2 points
#
# Michel et al. (2019) found that many heads of trained models can go. Setting a head's answer to zero saves nothing; so
# cut the head out. A layer has `heads` heads. `w_q`, `w_k` and `w_v` are (d_model, heads · d_k), `w_o` is
# (heads · d_k, d_model). Return the four matrices of the layer without head `head` (counted from 0), in the same order.
# Its output must be that of the old layer with this head silenced.
#
# <details><summary>Hint 1: where does a head live?</summary>
#
# In `w_q`, `w_k` and `w_v` a head is a strip of columns. Which numbers of `w_o` is its answer multiplied by?
# </details>
# <details><summary>Hint 2: a boolean index</summary>
#
# `w[:, keep]` keeps the columns where `keep` is `True`, `w[keep]` the rows. To which head does column c belong?
# </details>
# <details><summary>Hint 3: whole numbers</summary>
#
# Column c belongs to head `c // d_k`.
# </details>

# %% nbgrader={"grade_id": "without-head", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def without_head(
    w_q: Float[Tensor, "d_model width"], w_k: Float[Tensor, "d_model width"], w_v: Float[Tensor, "d_model width"],
    w_o: Float[Tensor, "width d_model"], heads: int, head: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same layer with one head fewer: narrower query, key and value matrices, a shorter output matrix."""
    ### BEGIN SOLUTION
    width = w_q.shape[1]
    keep = torch.arange(width) // (width // heads) != head
    return w_q[:, keep], w_k[:, keep], w_v[:, keep], w_o[keep]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-without-head", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("without-head") as show:
    heads, d_k = show.random_size(3, 4), show.random_size(2, 3)
    for d_model, head in ((heads * d_k, show.random_size(1, heads - 1)), (heads * d_k + 3, 0)):
        w = [*show.randn(3, d_model, heads * d_k), show.randn(heads * d_k, d_model)]
        show([*without_head(*w, heads, head)], f"d_model {d_model}, {heads} heads of {d_k}, without head {head}")

# %% tags=["mistakes"]
def kept(w, heads, head):
    return torch.arange(w.shape[1]) // (w.shape[1] // heads) != head


def zeroed_head(w_q, w_k, w_v, w_o, heads, head):
    keep = kept(w_q, heads, head)
    return w_q * keep, w_k * keep, w_v * keep, w_o * keep[:, None]


def only_this(w_q, w_k, w_v, w_o, heads, head):
    keep = ~kept(w_q, heads, head)
    return w_q[:, keep], w_k[:, keep], w_v[:, keep], w_o[keep]


def output_columns(w_q, w_k, w_v, w_o, heads, head):
    keep = kept(w_q, heads, head)
    return w_q[:, keep], w_k[:, keep], w_v[:, keep], w_o[:, keep]


def output_left(w_q, w_k, w_v, w_o, heads, head):
    keep = kept(w_q, heads, head)
    return w_q[:, keep], w_k[:, keep], w_v[:, keep], w_o


def rows_of_all(w_q, w_k, w_v, w_o, heads, head):
    keep = kept(w_q, heads, head)
    return w_q[keep], w_k[keep], w_v[keep], w_o[keep]


def dealt_out(w_q, w_k, w_v, w_o, heads, head):
    keep = torch.arange(w_q.shape[1]) % heads != head
    return w_q[:, keep], w_k[:, keep], w_v[:, keep], w_o[keep]


def one_column(w_q, w_k, w_v, w_o, heads, head):
    keep = torch.arange(w_q.shape[1]) != head
    return w_q[:, keep], w_k[:, keep], w_v[:, keep], w_o[keep]


def values_left(w_q, w_k, w_v, w_o, heads, head):
    keep = kept(w_q, heads, head)
    return w_q[:, keep], w_k[:, keep], w_v, w_o


mistake("without-head", zeroed_head,
        "The head is silent, but it is still there: the matrices are as large as before. Keep the other columns only.")
mistake("without-head", only_this, "You keep this head and drop all the others.")
mistake("without-head", output_columns,
        "In `w_o` a head is a strip of *rows*: its answer comes in there. Columns are the output's. (Where d_model is larger "
        "than the heads together, the index doesn't fit.)")
mistake("without-head", output_left,
        "`w_o` still has rows for the head that is gone. The joined heads are narrower now; take its rows out.")
mistake("without-head", rows_of_all,
        "You take *rows* out of `w_q`, `w_k` and `w_v`. Rows are entries of x, which all heads read; a head is a strip of "
        "columns.")
mistake("without-head", dealt_out,
        "You take every `heads`-th column. A head's columns stand side by side: column c belongs to head `c // d_k`.")
mistake("without-head", one_column,
        "You take out a single column. A head has `d_k` of them: column c belongs to head `c // d_k`.")
mistake("without-head", values_left,
        "Only queries and keys lose the head. Then its values are still there, and the matrices no longer fit together.")
mistake("without-head", lambda *w_heads: without_head(*w_heads[:-1], w_heads[-1] - 1),
        "That is the head before it. Heads are counted from 0.")
mistake("without-head", lambda w_q, w_k, w_v, w_o, heads, head: without_head(
        w_q, w_k, w_v, w_o, heads, head)[:3] + (without_head(w_q, w_k, w_v, w_o, heads, head)[3].T,),
        "`w_o` is turned over. It stays (in, out): rows for the heads, columns for the output.")


def cut_and_joined(w_q, w_k, w_v, w_o, heads, head):
    def rest(w, dim):
        return torch.cat([part for number, part in enumerate(w.chunk(heads, dim=dim)) if number != head], dim=dim)

    return rest(w_q, 1), rest(w_k, 1), rest(w_v, 1), rest(w_o, 0)


alternative("without-head", cut_and_joined)
equivalent("without-head", "width // heads → width / heads",
           "The heads divide the width, and `//` by a float gives the same whole numbers.")

# %% [markdown]
# ### Task 4 · From many key heads to few   ●●●○○ · 8 minutes · 2 points
#
# A model that writes keeps the keys and values of all words so far. With as many key heads as query heads, that is too
# much. Ainslie et al. (2023, section 2.1) let neighboring query heads share: their key heads form a group, and each
# group gets *one* key head, whose matrix is the mean of theirs. Values are treated in the same way. A little more
# training then repairs what was lost. (Lesson 16 calls this grouped queries.) Write the first step: `w` is (d_model,
# heads · d_k); return (d_model, kv_heads · d_k). `kv_heads` divides `heads`.
#
# <details><summary>Hint 1: which heads share?</summary>
#
# With 4 heads and 2 key heads, heads 0 and 1 make the first group, heads 2 and 3 the second.
# </details>
# <details><summary>Hint 2: an axis for the group</summary>
#
# Divide the columns into three axes: the group, the head within its group, and the head's own columns. Over which one
# do you take the mean?
# </details>
# <details><summary>Hint 3: back to a matrix</summary>
#
# `flatten(1)` puts the remaining axes side by side again.
# </details>

# %% nbgrader={"grade_id": "pool-heads", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pool_heads(w: Float[Tensor, "d_model width"], heads: int, kv_heads: int) -> Float[Tensor, "d_model kv_width"]:
    """The mean of each group's key (or value) matrices, side by side."""
    ### BEGIN SOLUTION
    return w.unflatten(1, (kv_heads, heads // kv_heads, -1)).mean(dim=2).flatten(1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-pool-heads", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("pool-heads") as show:
    d_model, d_k = show.random_size(4, 9), show.random_size(3, 8)
    for heads, kv_heads in ((4, 2), (6, 2), (6, 3), (4, 1), (3, 3)):
        w = show.randn(d_model, heads * d_k)
        show(pool_heads(w, heads, kv_heads), f"{heads} heads to {kv_heads}, {d_k} columns each")

# %% tags=["mistakes"]
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (kv_heads, heads // kv_heads, -1)).sum(dim=2).flatten(1),
        "You add the group's matrices up. The mean keeps the keys as large as they were.")
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (heads // kv_heads, kv_heads, -1)).mean(dim=1).flatten(1),
        "You average heads 0, 2, 4 … and 1, 3, 5 … Neighbors make a group: the group is the slower axis, "
        "(kv_heads, heads // kv_heads, d_k).")
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (kv_heads, heads // kv_heads, -1))[:, :, 0].flatten(1),
        "You keep the first head of each group and drop the others. (Ainslie et al. also tried that; the mean was better.)")
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (heads, -1))[:, :kv_heads].flatten(1),
        "You keep the first `kv_heads` heads. Every head should have a part in its group's mean.")
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (heads, -1)).mean(dim=1).repeat(1, kv_heads),
        "All groups get the mean of *all* heads. Each group averages its own.")
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (-1, heads // kv_heads)).mean(dim=2),
        "You average neighboring *columns*. A head's columns are different things; average column c of one head with column c "
        "of the next.")
mistake("pool-heads", lambda w, heads, kv_heads: w.unflatten(1, (kv_heads, heads // kv_heads, -1)).mean(dim=2),
        "The numbers are right, but your result has three axes: put the groups side by side again, `flatten(1)`.")
mistake("pool-heads", lambda w, heads, kv_heads: pool_heads(w, heads, kv_heads).repeat_interleave(1, dim=1).unflatten(
        1, (kv_heads, -1)).repeat_interleave(heads // kv_heads, dim=1).flatten(1),
        "You repeat each group's mean for all its heads, so the matrix is as wide as before. Each group needs one only.")
alternative("pool-heads", lambda w, heads, kv_heads: torch.cat(
    [torch.stack(group.chunk(heads // kv_heads, dim=1)).mean(dim=0) for group in w.chunk(kv_heads, dim=1)], dim=1))

# %% tags=["variant"]
from txgrade import variant

FAR, TO_THE = variant((1, "on the"), (2, "two places to the"), (3, "three places to the"))  # of task 5: where heads look

# %% [markdown]
# ### Task 5 · Program two heads   ●●●●○ · 13 minutes · 3 points
#
# In the lesson, training found two heads that look left and right. You can also write such heads by hand. Here a sentence
# is a matrix of ones and zeros: row $i$ has a 1 in the column of its *word* (the first `words` columns), and a 1 in the
# column of its *place* (the last `places` columns). Below is attention with two heads. It has no output projection: the
# two answers stay side by side.
#
# Return `w_q` and `w_k`, both (words + places, 2 · places), and `w_v`, (words + places, 2 · words), so that head 0
# hands over the word {{TO_THE}} left, and head 1 the word {{TO_THE}} right. In each of the three matrices, the
# first half of the columns is head 0, the second half head 1. The check asks, for each word that has both, which entry
# of each half of the answer is largest. Keep in mind that the softmax is soft, and that the same word may occur in many
# places.

# %%
def two_heads(x: Float[Tensor, "n d"], w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Float[Tensor, "n two_words"]:
    """Self-attention with two heads, their answers side by side."""
    q, k, v = (split((x @ w)[None], 2) for w in (w_q, w_k, w_v))       # (1, 2, n, width) each
    return join(attention(q, k, v))[0]

# %% [markdown]
# <details><summary>Hint 1: what looks for what</summary>
#
# Word $i$ looks for a place, and is found by its place: queries and keys come from places alone, so the rows for words
# are 0. Which place does head 0 look at?
# </details>
# <details><summary>Hint 2: the table M</summary>
#
# Let keys be the places themselves, an identity matrix. Then the query of place $i$ must be the one-hot row of place
# $i - {{FAR}}$ in head 0. `torch.diag(torch.ones(places - {{FAR}}), -{{FAR}})` has such rows. And in head 1?
# </details>
# <details><summary>Hint 3: sharp enough</summary>
#
# A score of 1 against 0 is a ratio of weights of only $e$, before the division by √d_k. Multiply the queries by a large
# number: 10 is too small, 1,000 is enough.
# </details>

# %% nbgrader={"grade_id": "program-heads", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def left_and_right(words: int, places: int) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices with which head 0 hands over the word {{TO_THE}} left, and head 1 the word {{TO_THE}} right."""
    ### BEGIN SOLUTION
    one = torch.ones(places - FAR)
    place = torch.eye(places)
    word = torch.eye(words)
    w_q = torch.zeros(words + places, 2 * places)
    w_q[words:] = 1000 * torch.cat([one.diag(-FAR), one.diag(FAR)], dim=1)   # place i looks for i - {{FAR}}, and for i + {{FAR}}
    w_k = torch.zeros(words + places, 2 * places)
    w_k[words:] = torch.cat([place, place], dim=1)                      # and is found by its own place
    w_v = torch.zeros(words + places, 2 * words)
    w_v[:words] = torch.cat([word, word], dim=1)                        # and hands over its word
    return w_q, w_k, w_v
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-program-heads", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("program-heads") as show:
    for _ in range(2):
        words, places = show.random_size(4, 15), show.random_size(60, 120)
        ids = show.randint(0, words, places)
        x = torch.cat([F.one_hot(ids, words), torch.eye(places)], dim=1)       # (n, words + places)
        heard = two_heads(x, *left_and_right(words, places))[FAR:-FAR].unflatten(1, (2, words))
        left, right = heard[:, 0].argmax(dim=-1), heard[:, 1].argmax(dim=-1)
        show([left, right], f"{places} places, {words} words: left, and right")

# %% tags=["mistakes"]
def programmed(left=-FAR, right=FAR, sharp=1000.0):
    def answer(words, places):
        def shift(by):
            return torch.ones(places - abs(by)).diag(by)

        w_q, w_k = torch.zeros(2, words + places, 2 * places)
        w_v = torch.zeros(words + places, 2 * words)
        w_q[words:] = sharp * torch.cat([shift(left), shift(right)], dim=1)
        w_k[words:] = torch.eye(places).repeat(1, 2)
        w_v[:words] = torch.eye(words).repeat(1, 2)
        return w_q, w_k, w_v

    return answer


def by_words(words, places):
    w_q, w_k, w_v = left_and_right(words, places)
    w_k = torch.zeros_like(w_k)
    w_k[:words, :words] = w_k[:words, places : places + words] = torch.eye(words)
    return w_q, w_k, w_v


mistake("program-heads", programmed(FAR, -FAR),
        "Left and right are exchanged. Rows are queries: row i of `w_q` says where place i looks, and left is i − {{FAR}}.")
for soft in (1.0, 10.0):
    mistake("program-heads", programmed(sharp=soft),
            "The right places, but too soft: a score of 1 against 0 gives only e times the weight, less after the division by "
            "√d_k, and words that stand in many places add up. Multiply the queries by a large number.")
mistake("program-heads", programmed(0, 0),
        "Every word finds itself: its query is its own place, or queries and keys are shifted alike, which cancels. Shift one "
        "of them.")
mistake("program-heads", programmed(-FAR, -FAR), "Both heads look left. The second half of `w_q`'s columns is head 1.")
mistake("program-heads", programmed(FAR, FAR), "Both heads look right. The first half of `w_q`'s columns is head 0.")
mistake("program-heads", programmed(-FAR - 1, FAR + 1), "The heads look one place too far.")
if FAR > 1:
    mistake("program-heads", programmed(-1, 1), "The heads look at the neighbors. They are to look {{FAR:words}} places away.")
mistake("program-heads", by_words,
        "Queries are made of places, keys of words, so they have nothing to do with each other. Keys are also made of places.")


def keys_shifted(words, places):
    one, place = torch.ones(places - FAR), torch.eye(places)
    w_q, w_k, w_v = left_and_right(words, places)
    w_q, w_k = torch.zeros_like(w_q), torch.zeros_like(w_k)
    w_q[words:] = torch.cat([place, place], dim=1)
    w_k[words:] = 300 * torch.cat([one.diag(FAR), one.diag(-FAR)], dim=1)
    return w_q, w_k, w_v


alternative("program-heads", keys_shifted)
SHARP_QUERIES = "1000 * torch.cat([one.diag(-FAR), one.diag(FAR)], dim=1)"
for sharp in (1001, 999):
    equivalent("program-heads", f"{SHARP_QUERIES} → {SHARP_QUERIES.replace('1000', str(sharp))}", "As sharp as 1000.")
for name in ("w_q", "w_k"):
    equivalent("program-heads", f"{name} = torch.zeros(words + places, 2 * places) → "
               f"{name} = torch.ones(words + places, 2 * places)",
               "Each row of x has one word, so all scores of a query grow by the same number, and the softmax ignores that.")
equivalent("program-heads", "torch.zeros(words + places, 2 * words) → torch.ones(words + places, 2 * words)",
           "Each row of x has one place, so all entries of an answer grow by 1, and the largest stays the largest.")

# %% [markdown]
# ### Task 6 · Investigate: how many heads does it need?   ●●●●● · 20 minutes · 4 points
#
# In the lesson, two heads knew both neighbors from each start, and one head needed a hidden layer. Is that a law: one
# head for each offset? Or are fewer enough, when a head may be wide, or its weights unequal? Below is the lesson's
# experiment with longer texts and more offsets. Each word must name the words at its `offsets`, for example −1 and +1
# for the neighbors. `share_named` trains a layer with `heads` heads for some two seconds, and returns the fraction of
# answers that are right.

# %%
def share_named(offsets: tuple[int, ...], heads: int, seed: int, d_model: int = 48, steps: int = 300) -> float:
    """How many of the words at these offsets are named correctly, on new texts, by a layer with so many heads."""
    torch.manual_seed(seed)
    word, place = nn.Embedding(20, d_model), nn.Embedding(12, d_model)
    layer, name = MultiHeadAttention(d_model, heads), nn.Linear(d_model, 20 * len(offsets))
    parameters = [p for part in (word, place, layer, name) for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.005)
    for step in range(steps + 1):
        text = torch.randint(20, (64 if step < steps else 500, 12))            # (batch, n): new texts each time
        asked = torch.stack([text.roll(-offset, dims=1) for offset in offsets], dim=-1)[:, 3:-3]  # (batch, n - 6, offset)
        logits = name(layer(word(text) + place.weight))[:, 3:-3].unflatten(-1, (len(offsets), 20))
        loss = F.cross_entropy(logits.flatten(0, 2), asked.flatten())
        if step < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return (logits.argmax(dim=-1) == asked).float().mean().item()

# %% [markdown]
# For example `share_named((-1, 1), heads=1, seed=0)`. Offsets go up to 3, and the 48 columns can be cut into 1, 2, 3,
# 4, 6 or 8 heads. First write down what you expect. Then measure, in cells of your own: several numbers of offsets
# against several numbers of heads, three seeds each. Then think of one change that could tell two explanations apart
# (another width, more steps, offsets of another kind …), say what you expect, and measure that.
#
# Write below, in ten lines or a few more: your table, your answer, the evidence for and against it, and what you would
# try next. A person reads it and gives one point each for a table (at least three rows, three numbers of
# heads, three seeds) with an expectation written before it; an answer that the table and its spread between seeds
# support; a reason; and a change of your own, with expectation and result.

# %% [markdown] nbgrader={"grade_id": "how-many-heads", "solution": true, "grade": true, "points": 4, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# Expected: at least one head per offset. Shares of right answers, seeds 0, 1, 2:
#
# | offsets | 1 head | 2 heads | 4 heads | 6 heads |
# | --- | --- | --- | --- | --- |
# | 1 (−1) | 1.00 1.00 1.00 | 1.00 1.00 1.00 | 1.00 1.00 1.00 | 1.00 1.00 1.00 |
# | 2 (−1, 1) | .53 .53 .52 | 1.00 1.00 .80 | 1.00 1.00 1.00 | 1.00 1.00 1.00 |
# | 4 (−2 … 2) | .32 .32 .32 | .74 .74 .54 | 1.00 1.00 1.00 | 1.00 1.00 1.00 |
# | 6 (−3 … 3) | .27 .27 .26 | .58 .61 .59 | .80 .96 .95 | 1.00 1.00 1.00 |
#
# With as many heads as offsets it works, from nearly every start: two heads for two offsets failed once in three (.80),
# four never. One head never serves two offsets: .53 is right once in two, as an average of two words that does not know
# which is which would be. So one head per offset is enough here, and one head is too few for two. But it is no strict
# law: two heads name .74 of four offsets, more than the half that two rows could point out one by one, and four heads
# name up to .96 of six. A head may weigh several words unequally, and the linear layers after it can then tell the
# louder from the softer in part.
#
# Is it the width, then? If the average were only too narrow to read two words out of it, one head of 192 columns should
# do better than one of 48. I expected a little. It does not: .52 .52 .52. Five times as many steps don't help either:
# .52 .53 .53. So it is the row of weights that is missing. Against a law also speaks that these questions are about
# positions; questions that need no order (which words are there at all?) should fit into one head. I would try that next.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table of at least three numbers of offsets and three numbers of heads, three seeds each, and an expectation
# that was written before it.
#
# 1 point: an answer that the table supports, with its numbers, and with the spread between seeds; differences that are
# no larger than that are called none.
#
# 1 point: a reason: one row of weights per head, and an average that forgets which part came from where; or, where
# fewer heads were enough, what makes up for it (unequal weights, width, the linear layer after it).
#
# 1 point: one change of one's own that could have come out otherwise, with the expectation before and the result after
# it, also where the result contradicts it.

# %% [markdown]
# ## Your result

# %%
check.summary()
