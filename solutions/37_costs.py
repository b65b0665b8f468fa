# %% [markdown]
# # Exercise 37 · What training costs
#
# Three tasks, 8 points, about 40 minutes. They belong to lesson [37 What training costs](../notebooks/37_costs.ipynb). Run
# the cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you
# like. Tasks 1 and 2 are the core, about 22 minutes; task 3 is for those who want more.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
from collections.abc import Callable

from txgrade import check

# %% [markdown]
# ### Task 1 · Count a decoder of today   ●●○○○ · 10 minutes · 2 points
#
# On paper, per token, for a decoder of $L$ blocks of width $d$ on texts of $n$ tokens:
#
# - attention has $h$ query heads and $g$ heads for keys and values, so its matrices are $d \times d$ for queries and for the
#   output, and $d \times (d g / h)$ for keys and for values;
# - each query's scores against all $n$ keys, and the weighted sum of $n$ values (counted in full, without regard to the mask);
# - a gated feed-forward network: *three* matrices between $d$ and $f$;
# - at the end the logits, $d \times V$. Reading the embedding costs nothing. Norms, softmax and biases are left out.
#
# A multiplication and an addition are two operations, and backward takes twice as many as forward. Return two whole
# numbers: the operations that training on $D$ tokens **needs**, and those that are **computed** if every block is
# checkpointed, so that its forward pass runs once more. (The logits are not computed again. $d g$ is divisible by $h$.)
#
# <details><summary>Hint 1: a block's weights</summary>
#
# $2 d^2 + 2 d \cdot d g / h + 3 d f$, and two operations for each.
# </details>
# <details><summary>Hint 2: the scores</summary>
#
# $n$ scores of $d$ multiplications over all heads, and as many for the weighted sum: $2 \cdot 2 n d$ operations.
# </details>
# <details><summary>Hint 3: what is computed again?</summary>
#
# One more forward pass of the blocks: $L$ times what hints 1 and 2 give.
# </details>


# %% nbgrader={"grade_id": "operations", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def training_operations(D: int, L: int, d: int, f: int, h: int, g: int, V: int, n: int) -> tuple[int, int]:
    """The operations that training on D tokens needs, and those computed with checkpointing."""
    ### BEGIN SOLUTION
    weights = 2 * d * d + 2 * d * d * g // h + 3 * d * f
    blocks = L * (2 * weights + 4 * n * d)
    needed = 3 * D * (blocks + 2 * d * V)
    return needed, needed + D * blocks
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-operations", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("operations") as show:
    show(
        training_operations(1, 1, 4, 6, 2, 1, 3, 5),
        "one token, one block of width 4, f = 6, 2 heads, 1 for keys and values, V = 3, n = 5",
    )
    show(training_operations(1, 1, 4, 6, 2, 2, 3, 5), "the same with 2 heads for keys and values")
    show(
        training_operations(2_000_000_000_000, 32, 4096, 11_008, 32, 32, 32_000, 4096), "Llama 2 7B, 2 trillion tokens"
    )
    show(
        training_operations(15_000_000_000_000, 32, 4096, 14_336, 32, 8, 128_256, 8192),
        "Llama 3 8B, 15 trillion tokens",
    )
    D, L, n = show.random_size(2, 900), show.random_size(2, 60), show.random_size(2, 5000)
    show(training_operations(D, L, 64, 96, 8, 2, 301, n), f"{D} tokens, {L} blocks of width 64, texts of {n}")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", ("txlib", "__closure__", "cell_contents"))


def counted(products=2, backward=3, square=2, kv=lambda d, g, h: 2 * d * d * g // h, ffn=3, scores=4, logits=2, stack=1,
            again=lambda blocks, logits: blocks, tokens=1):
    """The count with something wrong."""
    def answer(D, L, d, f, h, g, V, n):
        blocks = stack * L * (products * (square * d * d + kv(d, g, h) + ffn * d * f) + scores * n * d)
        needed = backward * (D if tokens else 1) * (blocks + logits * d * V)
        return needed, needed + (D if tokens else 1) * again(blocks, logits * d * V)
    return answer


mistake("operations", counted(backward=1), "Only the forward pass is counted. Backward takes twice as many again.")
mistake(
    "operations", counted(backward=2), "Backward takes twice as many operations as forward: three times forward in all."
)
mistake(
    "operations",
    counted(kv=lambda d, g, h: 2 * d * d),
    "Keys and values have g of h heads: their matrices are d × (d · g / h).",
)
mistake(
    "operations",
    counted(kv=lambda d, g, h: d * d * g // h),
    "There are two such matrices, one for keys and one for values.",
)
mistake("operations", counted(ffn=2), "A gated feed-forward network has three matrices, not two.")
mistake(
    "operations",
    counted(scores=0),
    "The scores are missing, and the weighted sum of the values: 4 · n · d for each block and token.",
)
mistake(
    "operations",
    counted(scores=2),
    "There are two products without weights: the scores, and the weighted sum of the values.",
)
mistake(
    "operations", counted(logits=4), "Reading the embedding is no product: it costs nothing. Only the logits count."
)
mistake("operations", counted(logits=0), "The logits are missing: d · V weights at the end.")
mistake(
    "operations",
    counted(again=lambda blocks, logits: 0),
    "With checkpointing each block's forward pass is computed once more.",
)
mistake(
    "operations",
    counted(again=lambda blocks, logits: blocks + logits),
    "The logits are not computed again: only blocks are checkpointed.",
)
mistake(
    "operations", counted(again=lambda blocks, logits: 3 * blocks), "Only the *forward* pass of the blocks runs again."
)
mistake(
    "operations",
    lambda *given: counted()(*given)[::-1],
    "The two are exchanged: first what is needed, then what is computed.",
)
mistake(
    "operations",
    lambda D, L, d, f, h, g, V, n: counted()(D, 1, d, f, h, g, V, n),
    "Only one block is counted. There are L.",
)


mistake("operations", counted(products=1), "Each weight of a block takes two operations per token: a multiplication and an addition.")
mistake("operations", counted(products=0), "The blocks' weights are missing: two operations for each.")
for square in (0, 1):
    mistake("operations", counted(square=square), "Queries have a d × d matrix, and so has the output.")
mistake("operations", counted(kv=lambda d, g, h: 0), "The matrices of keys and values are missing.")
mistake("operations", counted(kv=lambda d, g, h: 2 * d * d * g), "Keys and values together are d · g / h wide: divide by the h heads.")
mistake("operations", counted(kv=lambda d, g, h: 2 * d * d // h), "This is the width of one head. There are g of them for keys, and g for values.")
for ffn in (0, 1):
    mistake("operations", counted(ffn=ffn), "The feed-forward network has three matrices of d × f.")
mistake("operations", counted(logits=1), "The d · V weights of the logits take two operations each.")
mistake("operations", counted(stack=0), "The blocks are missing: this is the logits alone.")
mistake("operations", counted(tokens=0), "This is for one token. There are D of them.")


def list_of_matrices(D, L, d, f, h, g, V, n):
    matrices = [(d, d), (d, d), (d, d * g // h), (d, d * g // h), (d, f), (d, f), (f, d), (d, n), (n, d)]
    block = sum(2 * a * b for a, b in matrices)
    forward = D * (L * block + 2 * d * V)
    return 3 * forward, 3 * forward + D * L * block


alternative("operations", list_of_matrices)

# %% [markdown]
# ### Task 2 · What can you afford?   ●●●○○ · 12 minutes · 2 points
#
# You have a budget of $C$ operations, a text of $U$ tokens, some sizes to choose from, and a function `law(N, D)` that
# predicts the loss of $N$ parameters trained on $D$ tokens. A model reads as much as the budget pays for ($C = 6ND$), but never
# more than four rounds of the text: what is left of the budget is then not spent.
#
# Return two sizes: that with the lowest loss, and, because a small model is cheaper to use, the *smallest* whose loss is at
# most `margin` above the lowest.
#
# <details><summary>Hint 1: how much does it read?</summary>
#
# `min(C / (6 * N), 4 * U)`.
# </details>
# <details><summary>Hint 2: the lowest loss</summary>
#
# Put the losses into a dictionary, size → loss. `min(losses, key=losses.get)` is the best size.
# </details>
# <details><summary>Hint 3: the second answer</summary>
#
# The least of all sizes with `loss <= losses[best] + margin`. The list may have any order.
# </details>


# %% nbgrader={"grade_id": "afford", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def affordable(
    sizes: list[int], C: float, U: float, margin: float, law: Callable[[float, float], float]
) -> tuple[int, int]:
    """The size with the lowest loss, and the smallest that is hardly worse."""
    ### BEGIN SOLUTION
    losses = {N: law(N, min(C / (6 * N), 4 * U)) for N in sizes}
    best = min(losses, key=losses.get)
    return best, min(N for N, loss in losses.items() if loss <= losses[best] + margin)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-afford", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("afford") as show:

    def chinchilla(N, D):
        return 1.82 + 482 / N**0.35 + 2085 / D**0.37

    smallest = 1e6 * show.random_size(50, 150)
    ladder = [round(smallest * 1.3**step) for step in range(24)]
    show(affordable(ladder, 1e22, 1e15, 0.0, chinchilla), "more text than can be read, no margin")
    show(affordable(ladder[::-1], 1e22, 1e15, 0.02, chinchilla), "a margin of 0.02, the largest size first")
    show(affordable(ladder, 1e22, 1e10, 0.02, chinchilla), "a text of 10 billion tokens")
    show(affordable(ladder, 1e22, 3e9, 0.005, chinchilla), "a text of 3 billion tokens")
    middle = ladder[7:] + ladder[:7]
    for C in (1e20, 1e21, show.random_size(2, 90) * 1e21):
        U = show.random_size(5, 60) * 1e9
        show(affordable(middle, C, U, 0.01, chinchilla), f"C = {C:.1e}, a text of {U:.1e} tokens, another order")
    k = show.random_size(2, 90)
    whole = [40 * k, 20 * k, 10 * k], 2400.0 * k**2, 1e9
    show([affordable(*whole, k * margin, lambda N, D: float(D - N)) for margin in (29, 30, 31, 61)],
         "a law of whole numbers: margins at and next to a loss")


# %% tags=["mistakes"]
def chosen(
    reads=lambda C, N, U: min(C / (6 * N), 4 * U),
    pick=min,
    small=min,
    within=lambda loss, least, margin: loss <= least + margin,
    end=lambda best, small: (best, small),
):
    """The choice with something wrong."""

    def answer(sizes, C, U, margin, law):
        losses = {N: law(N, reads(C, N, U)) for N in sizes}
        best = pick(losses, key=losses.get)
        fits = [N for N in sizes if within(losses[N], losses[best], margin)]
        return end(best, small(fits) if fits else best)

    return answer


mistake("afford", chosen(reads=lambda C, N, U: C / (6 * N)), "The text runs out: nothing is read more than four times.")
mistake("afford", chosen(reads=lambda C, N, U: min(C / (6 * N), U)), "A text may be read four times, not once.")
mistake(
    "afford",
    chosen(reads=lambda C, N, U: 4 * U),
    "How much is read depends on the budget: C / 6N, and at most four rounds.",
)
mistake(
    "afford",
    chosen(reads=lambda C, N, U: min(C / (2 * N), 4 * U)),
    "A token costs 6N operations in training: forward 2N, backward 4N.",
)
mistake("afford", chosen(reads=lambda C, N, U: min(C / N, 4 * U)), "A token costs 6N operations, not N.")
mistake(
    "afford",
    chosen(reads=lambda C, N, U: max(C / (6 * N), 4 * U)),
    "The *smaller* of the two is read: what the budget pays for, and four rounds.",
)
mistake("afford", chosen(pick=max), "This is the size with the *highest* loss.")
mistake("afford", chosen(small=max), "This is the *largest* size within the margin. A small one is cheaper to use.")
mistake(
    "afford",
    chosen(small=lambda fits: fits[0]),
    "This is the first size within the margin. The list may have any order: take the smallest.",
)
mistake(
    "afford",
    chosen(within=lambda loss, least, margin: loss < least + margin),
    "At most `margin` above: a loss that is exactly so far above is allowed.",
)
mistake(
    "afford",
    chosen(within=lambda loss, least, margin: loss <= margin),
    "The margin is counted from the lowest loss, not from 0.",
)
mistake(
    "afford",
    chosen(within=lambda loss, least, margin: loss <= least * (1 + margin)),
    "The margin is in nats, not a fraction of the loss.",
)
mistake(
    "afford",
    chosen(end=lambda best, small: (small, best)),
    "The two are exchanged: first the best, then the smallest within the margin.",
)
mistake(
    "afford",
    chosen(end=lambda best, small: (best, best)),
    "The second is the smallest size within the margin, not the best one again.",
)


mistake("afford", lambda sizes, C, U, margin, law: affordable(sizes, C, U, margin, lambda N, D: law(D, N)),
        "The two are exchanged: it is law(N, D), the size first.")
mistake("afford", chosen(within=lambda loss, least, margin: True), "This is the smallest of all sizes. It has to be within the margin.")
mistake("afford", chosen(within=lambda loss, least, margin: loss >= least + margin), "These are the sizes *beyond* the margin.")
equivalent("afford", "C / (6 * N) → C // (6 * N)", "A part of a token more or less changes no choice.")


def in_order(sizes, C, U, margin, law):
    found = sorted((law(N, C / 6 / N if C < 24 * U * N else 4 * U), N) for N in sizes)
    least, best = found[0]
    return best, sorted(N for loss, N in found if loss - least <= margin)[0]


alternative("afford", in_order)

# %% [markdown]
# ### Task 3 · Investigate: how large may a batch be?   ●●●●● · 20 minutes · 4 points
#
# Data parallel training wants large batches: each rank needs rows to compute with. But for the same text, a batch that is
# twice as large means half as many steps. At which size does the model begin to learn less from the same text?
#
# Train a small GPT on the plays, always on the same number of letters, with batches of very different sizes. Choose the
# learning rate for each size anew (why?), and use at least three seeds. (`climb` in section 4 of the lesson is a start. A model of
# about 25,000 parameters and some hundred thousand letters take seconds per run.) Say up to which size a larger batch costs (almost) nothing,
# what happens beyond, and how the best learning rate moves. What would you tell somebody who has 64 GPUs for this model?
#
# Measure in cells of your own below this one; here you may use all of `txlib`. Hand in what you found as text, with a table
# of your numbers. A person reads it.

# %% [markdown] nbgrader={"grade_id": "batches", "solution": true, "grade": true, "points": 4, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# 131,072 letters for all, windows of 64, a GPT of width 32 with two blocks, AdamW falling to zero. For each batch four rates
# (0.002, 0.005, 0.012, 0.03) with one seed; the best one again with two more. Nats per letter on the unseen play:
#
# | windows in a batch | steps | best rate | loss, three seeds | at 0.005, one seed |
# | --- | --- | --- | --- | --- |
# | 1 | 2,048 | 0.012 | 2.516–2.534 | 2.519 |
# | 2 | 1,024 | 0.005 | 2.522–2.544 | 2.522 |
# | 4 | 512 | 0.005 | 2.558–2.570 | 2.570 |
# | 16 | 128 | 0.005 | 2.707–2.845 | 2.845 |
# | 64 | 32 | 0.005 | 3.144–3.203 | 3.198 |
# | 256 | 8 | 0.03 | 3.357–3.371 | 3.614 |
#
# From 1 to 2 windows a larger batch costs 0.01 nats, no more than seeds differ; with 4 it is 0.04. From there each factor of 4 costs more
# (0.2, then 0.4 nats). A gradient of many letters has less noise, but once it is clear where to go, making it clearer does not help: what is
# lacking then is steps. The very largest batch wants the largest rate, as few steps have to be large ones; with 0.005, the best for those in the
# middle, it would have looked 0.25 nats worse than it is. (In between the best rate hardly moves on so coarse a grid: larger ones became
# unstable.)
#
# For 64 GPUs: with this model and this text data parallel ends at about 4 windows. Beyond, more ranks finish sooner, with a worse model.
# Longer training moves the limit up, since late gradients are noisier. Otherwise use the GPUs for a larger model, or for 16 runs side by
# side: seeds and rates have to be tried anyway.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table over at least four sizes of batch with the same number of letters, three seeds, and their range. 1 point: the
# learning rate is chosen for each size, and it is said how it moves (larger batches want a larger one, up to a limit), and
# why one rate for all would be unfair. 1 point: a size is named up to which a larger batch costs little, with the numbers;
# beyond it, fewer steps cost more than less noise gains. 1 point: the conclusion for 64 GPUs: beyond that size more ranks
# do not shorten training at the same quality; a larger model, tensor parallel or several runs side by side are better uses.

# %%
check.summary()
