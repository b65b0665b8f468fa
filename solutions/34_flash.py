# %% [markdown]
# # Exercise 34 · FlashAttention
#
# Eight tasks, 22 points, about 105 minutes. They belong to lesson [34 FlashAttention](../notebooks/34_flash.ipynb).
# Tasks 1, 2 and 3 are the *core*, about 30 minutes; the others are *more*. Run the cells from the top; fill in where it
# says *your turn*, then run the check below it. You may check as often as you like.
#
# Memory counts here: three checks watch every tensor that your answer makes, and say so when one of them is too large.
# `spent = cost(answer, *inputs)` runs an answer once: `spent.value` is what it returned, `spent.largest` the size of the largest
# tensor made on the way, in numbers. You may use it yourself. What is moved to NumPy or to Python lists can't be counted, so
# that is refused in tasks 4 and 5. No clock is read. The answers are yours to write: one that calls txlib, or what a task
# rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import gc
import math
import tracemalloc
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### Task 1 · A softmax's denominator in one pass   ●●○○○ · 8 minutes · 2 points
#
# Scores arrive in blocks, once, and are gone. Return their maximum $m$ and $l = \sum_j e^{x_j - m}$, without ever holding
# more than one block: the check looks at what is still held, as tensors or otherwise, when the last one is handed out.
#
# <details><summary>Hint 1: what do I carry along?</summary>
#
# Two numbers: the maximum and the sum so far. Before the first block the maximum is −∞, and the sum is 0.
# </details>
# <details><summary>Hint 2: the maximum rises</summary>
#
# Every term of the old sum was made with the old maximum. All are wrong by the same factor: which?
# </details>
# <details><summary>Hint 3: the factor</summary>
#
# `(m - greater).exp()`, with `greater` the new maximum. It is at most 1.
# </details>

# %% nbgrader={"grade_id": "online", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def online(blocks: Iterable[Float[Tensor, "block"]]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The maximum of all scores, and the sum of exp(score - maximum)."""
    ### BEGIN SOLUTION
    m, l = torch.tensor(-torch.inf), torch.tensor(0.0)
    for block in blocks:
        greater = torch.maximum(m, block.max())
        l = l * (m - greater).exp() + (block - greater).exp().sum()
        m = greater
    return m, l
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-online", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("online") as show:
    scores = 2 * show.randn(60)
    m, l = online(scores[i : i + 6].clone() for i in range(0, 60, 6))
    show(m, "the maximum")
    show(l, "the sum")
    show([online(iter(scores.sort().values.split(6))), online(iter(scores.sort(descending=True).values.split(6)))],
         "both, where the scores rise, and where they fall")
    show(online(iter((scores - 50).split(7))), "both, where all scores are far below 0")
    show(online(iter((scores + 200).split(60))), "both, for one block of large scores")
    show(cost(online, iter(scores.round().split(1))).value, "both, for whole numbers in blocks of one")

    def handed_out(blocks):
        """The blocks, one after the other, and what is held beside them when the fourth and the last one are handed out."""
        held, count = [], len(blocks)

        def hand_out():
            while blocks:
                if len(blocks) in (count - 3, 1):
                    gc.collect()
                    tensors = [made.untyped_storage() for made in gc.get_objects() if issubclass(type(made), Tensor)]
                    numbers = sum({memory.data_ptr(): memory.nbytes() // 4 for memory in tensors}.values())
                    held.append((numbers - sum(map(len, blocks)), tracemalloc.get_traced_memory()[0]))
                yield blocks.pop(0)

        return hand_out(), held

    gc.freeze()  # from now on gc sees new objects only
    blocks, held = handed_out([block.clone() for block in (2 * show.randn(50_000)).split(500)])
    tracemalloc.start()
    try:
        spent = cost(online, blocks)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    (early, few), (late, many) = held
    show({"both": spent.value, "no tensor larger than two blocks": spent.largest <= 1000,
          "no more than two blocks kept": late - early <= 1000 and many - few < 100_000}, "100 blocks of 500")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", ("txlib", "gc", "tracemalloc"))


def walked(new=torch.maximum, factor=lambda m, greater: (m - greater).exp(), term=lambda x, m: (x - m).exp().sum(),
           start=-torch.inf):
    """One pass with something wrong."""
    def answer(blocks):
        m, l = torch.tensor(start), torch.tensor(0.0)
        for block in blocks:
            greater = new(m, block.max())
            l = l * torch.nan_to_num(factor(m, greater), nan=1.0, posinf=0.0) + term(block, greater)
            m = greater
        return m, l
    return answer


def all_at_once(blocks):
    scores = torch.cat(list(blocks))
    return scores.max(), (scores - scores.max()).exp().sum()


def bare(blocks):
    m, l = torch.tensor(-torch.inf), torch.tensor(0.0)
    for block in blocks:
        m, l = torch.maximum(m, block.max()), l + block.exp().sum()
    return m, l


def afterwards(blocks):
    m, l = bare(blocks)
    return m, l * (-m).exp()


def own_maximum(blocks):
    m, l = torch.tensor(-torch.inf), torch.tensor(0.0)
    for block in blocks:
        m, l = torch.maximum(m, block.max()), l + (block - block.max()).exp().sum()
    return m, l


def one_pass(new=torch.maximum, old=lambda l, m, greater: l * (m - greater).exp(), term=lambda x, m: (x - m).exp().sum(),
             kept=lambda m, greater: greater):
    """One pass, as it is written in the solution, with something wrong."""
    def answer(blocks):
        m, l = torch.tensor(-torch.inf), torch.tensor(0.0)
        for block in blocks:
            greater = new(m, block.max())
            l = old(l, m, greater) + term(block, greater)
            m = kept(m, greater)
        return m, l
    return answer


def in_a_list(blocks, keep=lambda block: block):
    kept = [keep(block) for block in blocks]
    m = torch.stack([torch.as_tensor(block).max() for block in kept]).max()
    return m, torch.stack([(torch.as_tensor(block) - m).exp().sum() for block in kept]).sum()


def upside_down(blocks):
    m, l = torch.tensor(-torch.inf), torch.tensor(0.0)
    for block in blocks:
        greater = torch.maximum(m, block.max())
        m, l = greater, l * (greater - m).exp() + (block - greater).exp().sum()  # at first 0 times infinity
    return m, l


mistake("online", walked(factor=lambda m, greater: torch.tensor(1.0)),
        "The old sum is not rescaled. When the maximum rises, its terms were made with too small a maximum: multiply by "
        "exp(old maximum − new maximum).")
mistake("online", walked(factor=lambda m, greater: (greater - m).exp()),
        "The old sum is rescaled the wrong way around: its terms shrink when the maximum rises. The factor is exp(old − new).")
mistake("online", upside_down,
        "The old sum is rescaled the wrong way around: its terms shrink when the maximum rises. The factor is exp(old − new).")
mistake("online", own_maximum,
        "Each block is summed up with its *own* maximum, and the sums are added as they are. Bring them to the same maximum "
        "first.")
mistake("online", bare,
        "This sums up exp(x), without taking off the maximum. Large scores overflow; and l is defined with it.")
mistake("online", afterwards,
        "exp(x) is summed up first, and the maximum taken off at the end. That is right on paper, but scores near 200 "
        "overflow before, and small ones vanish. Take it off inside.")
mistake("online", walked(start=0.0),
        "The maximum starts at 0. If all scores are below 0, it stays there, and the sum is far too small. Start at −∞.")
for answer in (all_at_once, in_a_list, lambda blocks: in_a_list(blocks, Tensor.clone), lambda blocks: in_a_list(blocks, Tensor.tolist),
               lambda blocks: in_a_list(blocks, Tensor.numpy)):
    mistake("online", answer,
            "The numbers are right, but all blocks are held at once. Then nothing is gained: a block must be used up before the "
            "next one comes.")
mistake("online", one_pass(new=lambda m, greatest: greatest),
        "This is the maximum of the last block. The maximum so far may be greater: take the larger of the two.")
mistake("online", one_pass(old=lambda l, m, greater: 0),
        "The old sum is lost: only the last block's terms are left. Rescale what was summed up so far, and add.")
mistake("online", one_pass(term=lambda x, m: (m - x).exp().sum()),
        "The sign is reversed: the terms are exp(score − maximum), none of them above 1.")
mistake("online", one_pass(kept=lambda m, greater: m),
        "The maximum is never replaced by the new one, so that it stays at −∞.")
equivalent("online", "torch.tensor(0.0) → torch.tensor(1.0)",
           "Before the first block the maximum is −∞, so whatever the sum is, it is multiplied by 0.")
mistake("online", lambda blocks: walked()(blocks)[::-1], "The two are exchanged: first the maximum, then the sum.")


def with_logs(blocks):
    m, total = torch.tensor(-torch.inf), torch.tensor(-torch.inf)
    for block in blocks:
        m, total = torch.maximum(m, block.max()), torch.logaddexp(total, block.logsumexp(0))
    return m, (total - m).exp()


def one_by_one(blocks):
    m, l = -math.inf, 0.0
    for block in blocks:
        for x in block.tolist():
            l = l * math.exp(m - x) + 1 if x > m else l + math.exp(x - m)
            m = max(m, x)
    return torch.tensor(m), torch.tensor(l)


alternative("online", with_logs)
alternative("online", one_by_one)

# %% [markdown]
# ### Task 2 · Joining what was computed apart   ●●●○○ · 10 minutes · 2 points
#
# A very long text is spread over several machines. For the same queries each has computed attention over *its own* keys: an
# output, complete with its division, and $L$, the log-sum-exp of its scores. Join them: return the output and the $L$ of
# attention over *all* keys. (When a model writes one token at a time, there is only one query:
# this is how many processors can still share the work.)
#
# <details><summary>Hint 1: what is L for?</summary>
#
# $e^{L}$ is the denominator by which that part was divided. Multiply by it, and the division is undone.
# </details>
# <details><summary>Hint 2: add up, divide again</summary>
#
# The joined output is $\sum_p e^{L_p} o_p \,/\, \sum_p e^{L_p}$. But $e^{L}$ overflows.
# </details>
# <details><summary>Hint 3: without overflow</summary>
#
# `total = L.logsumexp(dim=0)`. Then $e^{L_p} / \sum_p e^{L_p} = e^{L_p - total}$.
# </details>

# %% nbgrader={"grade_id": "join", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def join(
    outs: Float[Tensor, "parts n d"], L: Float[Tensor, "parts n"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n"]]:
    """Output and log-sum-exp over the keys of all parts."""
    ### BEGIN SOLUTION
    total = L.logsumexp(dim=0)                                     # (n,)
    share = (L - total).exp()                                      # (parts, n)
    return (share[..., None] * outs).sum(dim=0), total
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-join", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("join") as show:
    parts, n, d = show.random_size(3, 4), 5, 3
    outs, L = show.randn(parts, n, d), 2 * show.randn(parts, n)
    out, total = join(outs, L)
    show(out, "the output")
    show(total, "L")
    show(join(outs, L + 300), "with large scores")
    show(join(outs[:1], L[:1]), "a single part")
    L[0] = -1e30
    show(join(outs, L)[0], "the output, where the first part has seen no key")

# %% tags=["mistakes"]
def joined(share, total=lambda L: L.logsumexp(0)):
    return lambda outs, L: ((share(L)[..., None] * outs).sum(0), total(L))


mistake("join", joined(lambda L: torch.ones_like(L) / len(L)),
        "The outputs are averaged, all alike. A part whose scores are larger has more to say: its share is exp(L − total).")
mistake("join", joined(lambda L: torch.ones_like(L)), "The outputs are added. Their shares must sum to 1.")
mistake("join", joined(lambda L: L.exp()),
        "Each output is multiplied by exp(L), which undoes its division; but then all must be divided by the sum of all exp(L).")
mistake("join", joined(lambda L: L.exp() / L.exp().sum(0), lambda L: L.exp().sum(0).log()),
        "Right on paper, but exp(L) overflows for large scores. Take off the total first: exp(L − total).")
mistake("join", joined(lambda L: L / L.sum(0)),
        "The shares are proportional to L. But L is a logarithm: they are proportional to exp(L).")
mistake("join", joined(lambda L: L.softmax(0), lambda L: L.sum(0)),
        "The output is right. L is not: denominators are added, and L is the logarithm of their sum, not the sum of logarithms.")
mistake("join", joined(lambda L: L.softmax(0), lambda L: L.amax(0)),
        "The output is right. L is not: this is the largest part's alone.")
mistake("join", joined(lambda L: (L.logsumexp(0) - L).exp()),
        "The sign is reversed: a share is exp(L − total), at most 1.")
mistake("join", lambda outs, L: (outs[0], L.logsumexp(0)), "The output is the first part's alone. Add up all of them, by their shares.")
mistake("join", lambda outs, L: (((L - L.logsumexp(0)).exp()[..., None] * outs).sum(1), L.logsumexp(0)),
        "The sum runs over the queries. Each query's output is a sum over the *parts*, the first axis.")
mistake("join", joined(lambda L: L.softmax(-1)),
        "The softmax runs over the queries. Each query shares out 1 among the *parts*.")


def two_at_a_time(outs, L):
    out, total = outs[0], L[0]
    for o, l in zip(outs[1:], L[1:]):
        new = torch.logaddexp(total, l)
        out, total = (total - new).exp()[:, None] * out + (l - new).exp()[:, None] * o, new
    return out, total


alternative("join", joined(lambda L: L.softmax(0)))
alternative("join", two_at_a_time)

# %% [markdown]
# ### Task 3 · Which tiles are alive?   ●●●○○ · 12 minutes · 2 points
#
# A causal window: query $i$ sees the keys $i - w + 1$ to $i$, so $w$ of them with its own. Queries and keys are cut into
# tiles; the last tile may be narrower. For the tile of queries number `row`, list the tiles of keys that hold at least
# one key that some query of the tile sees. With each, say whether it is *whole*: every query sees every key in it, so
# no mask is needed there.
#
# List no tile that is dead: with a window the list must not grow with $n$.
#
# <details><summary>Hint 1: which queries?</summary>
#
# `first = row * tile` to `last = min(n, first + tile) - 1`.
# </details>
# <details><summary>Hint 2: which keys?</summary>
#
# The earliest key that any query sees is the *first* query's: `first - window + 1`, but not below 0. The latest is the last
# query's own. Divide both by `tile`.
# </details>
# <details><summary>Hint 3: when is it whole?</summary>
#
# For keys `left` … `right` two queries decide. The first one must see the latest key: `right <= first`. The last one
# must see the earliest: `last - left < window`.
# </details>

# %% nbgrader={"grade_id": "alive", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def alive(row: int, n: int, tile: int, window: int) -> list[tuple[int, bool]]:
    """(number of a tile of keys, whether every query sees every key in it), in rising order."""
    ### BEGIN SOLUTION
    first, last = row * tile, min(n, (row + 1) * tile) - 1
    tiles = []
    for column in range(max(0, first - window + 1) // tile, last // tile + 1):
        left, right = column * tile, min(n, (column + 1) * tile) - 1
        tiles.append((column, right <= first and last - left < window))
    return tiles
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-alive", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("alive") as show:
    show(alive(2, 16, 4, 100), "the third tile of 4, a window wider than the text")
    show([alive(row, 22, 4, 9) for row in range(6)], "22 positions in tiles of 4, window 9")
    show([alive(row, 22, 4, 8) for row in range(6)], "the same, window 8")
    show([alive(row, 15, 5, 1) for row in range(3)], "each sees itself only")
    show([alive(4, 22, 4, window) for window in range(1, 17)], "22 positions in tiles of 4, windows 1 to 16, the fifth tile")
    show([alive(row, 7, 1, 3) for row in range(7)] + [alive(row, 7, 2, 3) for row in range(4)] + [alive(0, 1, 4, 2)],
         "7 positions, window 3, in tiles of 1 and of 2; a single position")
    n, tile, window = show.random_size(70, 140), show.random_size(4, 9), show.random_size(9, 60)
    show([alive(row, n, tile, window) for row in (0, 4, 7, (n - 1) // tile)], f"n, tile, window = {n}, {tile}, {window}")
    show(sum(len(alive(row, 4000, 10, 25)) for row in range(400)), "live tiles of 4,000 positions")

# %% tags=["mistakes"]
def listed(begin=lambda first, window: max(0, first - window + 1), end=lambda first, last, tile: last // tile + 1,
           whole=lambda first, last, left, right, window: right <= first and last - left < window):
    """The list with something wrong."""
    def answer(row, n, tile, window):
        first, last = row * tile, min(n, (row + 1) * tile) - 1
        columns = range(begin(first, window) // tile, end(first, last, tile))
        return [(c, whole(first, last, c * tile, min(n, (c + 1) * tile) - 1, window)) for c in columns]
    return answer


def ends(last=lambda row, n, tile: min(n, (row + 1) * tile) - 1, right=lambda column, n, tile: min(n, (column + 1) * tile) - 1):
    """The list with a wrong last query, or a wrong last key."""
    def answer(row, n, tile, window):
        first, final = row * tile, last(row, n, tile)
        columns = range(max(0, first - window + 1) // tile, final // tile + 1)
        return [(c, right(c, n, tile) <= first and final - c * tile < window) for c in columns]
    return answer


mistake("alive", listed(begin=lambda first, window: 0),
        "The window's past is not skipped: all earlier tiles are listed, and the work grows with n². Start at the first "
        "query's earliest key.")
mistake("alive", listed(end=lambda first, last, tile: first // tile),
        "The tile on the diagonal is missing. Each query sees itself.")
mistake("alive", listed(whole=lambda first, last, left, right, window: right <= first),
        "The far end of the window is forgotten: a tile may be in the past of all queries, and yet too far back for the last "
        "one.")
mistake("alive", listed(whole=lambda first, last, left, right, window: last - left < window),
        "The tile on the diagonal is called whole. There, the first query does not see the later keys: compare the tile's last "
        "key with the *first* query.")
mistake("alive", listed(whole=lambda first, last, left, right, window: right <= first and first - left < window),
        "The far edge is measured from the first query. The *last* one is farther away from the earliest key.")
mistake("alive", listed(begin=lambda first, window: max(0, first - window),
                        whole=lambda first, last, left, right, window: right <= first and last - left <= window),
        "The window is one too wide: w keys with its own reach back to i − w + 1.")
mistake("alive", ends(last=lambda row, n, tile: min(n, (row + 1) * tile)),
        "One too far: (row + 1) · tile is the *next* tile's first query. The last one here is before it.")
mistake("alive", ends(last=lambda row, n, tile: n - 1),
        "The text's last query is taken for the tile's: the last one of tile `row` is (row + 1) · tile − 1, where the text is long enough.")
mistake("alive", ends(last=lambda row, n, tile: (row + 1) * tile - 1),
        "The last tile may be narrower: no query is beyond n − 1.")
mistake("alive", listed(begin=lambda first, window: first - window + 1),
        "There are no tiles before the first one: where the window reaches beyond the beginning, start at 0.")
mistake("alive", listed(begin=lambda first, window: max(0, first - window)),
        "The list begins one key too early: the first query's window reaches back to i − w + 1, since it also sees itself.")
mistake("alive", listed(begin=lambda first, window: max(0, first - window + 2)),
        "The list begins one key too late: the first query's window reaches back to i − w + 1.")
mistake("alive", listed(begin=lambda first, window: first),
        "Only the tile on the diagonal is listed. Earlier ones hold keys of the window as well.")
mistake("alive", listed(whole=lambda first, last, left, right, window: right >= first and last - left < window),
        "Reversed: a tile is whole where its last key is *not later* than the first query.")
mistake("alive", listed(whole=lambda first, last, left, right, window: right < first and last - left < window),
        "A key at the first query's own position is no future to it: `right <= first`.")
mistake("alive", listed(whole=lambda first, last, left, right, window: right <= first and last - left <= window),
        "The far edge is one too wide: the last query sees keys less than w away, `last - left < window`.")
mistake("alive", listed(whole=lambda first, last, left, right, window: False),
        "No tile is called whole. Then the mask is made everywhere, for nothing.")
mistake("alive", lambda row, n, tile, window: [c for c, _ in listed()(row, n, tile, window)],
        "The numbers of the tiles are right, but each comes with a flag: whether all of its pairs are allowed.")


def by_looking(row, n, tile, window):
    def sees(i, j):
        return 0 <= i - j < window

    queries = range(row * tile, min(n, (row + 1) * tile))
    found = []
    for column in range(max(0, row - window // tile - 1), row + 1):
        pairs = [sees(i, j) for i in queries for j in range(column * tile, min(n, (column + 1) * tile))]
        if any(pairs):
            found.append((column, all(pairs)))
    return found


alternative("alive", by_looking)

# %% [markdown]
# ### Task 4 · Forward   ●●●●○ · 20 minutes · 4 points
#
# Attention of one head, scaled by $1/\sqrt d$, in tiles of `tile` queries and `tile` keys. Return the output and $L$, the
# log-sum-exp of each query's scaled scores. With `is_causal`, query $i$ sees the keys 0 … $i$. There may be more keys than
# queries, and lengths need not be multiples of `tile`.
#
# No tensor may be larger than $q$, $k$, $v$ and the output are themselves (we allow one and a half times as much): not
# $n \times n$, and not `tile` $\times\, n$ either. No ready-made attention, please.
#
# <details><summary>Hint 1: two loops</summary>
#
# Outside over tiles of queries, inside over tiles of keys. Inside, carry along the maximum and the sum of each query
# (columns, one number per row), and the sum of values.
# </details>
# <details><summary>Hint 2: what is rescaled?</summary>
#
# Both sums, by the same factor, as in task 1. Divide once, after the inner loop.
# </details>
# <details><summary>Hint 3: the mask inside a tile</summary>
#
# With `rows` and `columns` the positions of a tile (`torch.arange(n).split(tile)`), what must be hidden is
# `columns > rows[:, None]`. Tiles that begin after the last query need not be made at all.
# </details>

# %% nbgrader={"grade_id": "forward", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def forward(
    q: Float[Tensor, "n d"], k: Float[Tensor, "m d"], v: Float[Tensor, "m d"], is_causal: bool, tile: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n"]]:
    """Attention's output, and the log-sum-exp of each query's scaled scores."""
    ### BEGIN SOLUTION
    out, L = torch.empty_like(q), torch.empty(len(q))              # (n, d), (n,)
    for rows in torch.arange(len(q)).split(tile):
        m = torch.full((len(rows), 1), torch.finfo(q.dtype).min)   # (rows, 1)
        l, o = torch.zeros_like(m), torch.zeros_like(q[rows])      # (rows, 1), (rows, d)
        for columns in torch.arange(len(k)).split(tile):
            if is_causal and columns[0] > rows[-1]:
                break
            S = q[rows] @ k[columns].T * q.shape[-1] ** -0.5       # (rows, columns)
            if is_causal:
                S = S.masked_fill(columns > rows[:, None], -torch.inf)
            greater = torch.maximum(m, S.amax(dim=-1, keepdim=True))
            P, rescale = (S - greater).exp(), (m - greater).exp()  # (rows, columns), (rows, 1)
            m, l, o = greater, rescale * l + P.sum(dim=-1, keepdim=True), rescale * o + P @ v[columns]
        out[rows], L[rows] = o / l, (m + l.log())[:, 0]
    return out, L
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-forward", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("forward") as show:
    q, k, v = show.randn(20, 4), show.randn(20, 4), show.randn(20, 4)
    out, L = forward(q, k, v, False, 6)
    show(out, "the output, 20 positions in tiles of 6")
    show(L, "L")
    out, L = forward(q, k, v, True, 6)
    show(out, "causal: the output")
    show(L, "causal: L")
    show(forward(9 * q, k, v, False, 7)[0], "with larger scores")
    show(forward(9 * q.abs(), k.sort(dim=0).values, v, False, 4)[0], "with scores that rise from tile to tile")
    low = torch.cat([k[:4], k[4:] - 150])
    show([*forward(0.5 + q[:5].abs(), low, v, False, 4), *forward(0.5 + q[:5].abs(), low.flip(0), v, False, 4)],
         "with scores far below those of the first tile, or of the last")
    show([*forward(q[:5], k, v, False, 4), *forward(q[:5], k, v, True, 4)], "five queries, 20 keys; the same, causal")
    show([*forward(q[:7], k[:7], v[:7], True, 3), *forward(q[:1], k[:1], v[:1], True, 6)],
         "causal, 7 positions in tiles of 3; a single position")
    q, k, v = (show.randn(64, 4) for _ in "qkv")
    for is_causal in (False, True):
        spent = cost(forward, q, k, v, is_causal, 8)
        show({"output and L": [show.sketch(part, 8) for part in spent.value], "no tensor is n × n": spent.largest < 64 * 64,
              "no tensor is much larger than q": spent.largest <= 1.5 * q.numel()},
             f"64 positions in tiles of 8{', causal' if is_causal else ''}: a few sums over the results, and how large tensors get")

# %% tags=["mistakes"]
def tiled(scale=lambda d: d**-0.5, hide=lambda rows, columns: columns > rows[:, None], skip=True,
          for_l=lambda r: r, for_o=lambda r: r, log=lambda m, l: m + l.log(), divide=True, wide=False,
          new=torch.maximum, dead=lambda rows, columns: columns[0] > rows[-1]):
    """The tiles with something wrong."""
    def answer(q, k, v, is_causal, tile):
        out, L = torch.empty_like(q), torch.empty(len(q))
        for rows in torch.arange(len(q)).split(tile):
            m = torch.full((len(rows), 1), torch.finfo(q.dtype).min)
            l, o = torch.zeros_like(m), torch.zeros_like(q[rows])
            for columns in torch.arange(len(k)).split(len(k) if wide else tile):
                if is_causal and skip and dead(rows, columns):
                    break
                S = q[rows] @ k[columns].T * scale(q.shape[-1])
                if is_causal:
                    S = S.masked_fill(hide(rows, columns), -torch.inf)
                greater = new(m, S.amax(-1, keepdim=True))
                P, r = (S - greater).exp(), (m - greater).exp()
                m, l, o = greater, for_l(r) * l + P.sum(-1, keepdim=True), for_o(r) * o + P @ v[columns]
            out[rows], L[rows] = o / l if divide else o, log(m, l)[:, 0]
        return out, L
    return answer


def defined(q, k, v, is_causal, tile):
    S = q @ k.T * q.shape[-1] ** -0.5
    if is_causal:
        S = S.masked_fill(torch.ones_like(S).triu(1).bool(), -torch.inf)
    return S.softmax(-1) @ v, S.logsumexp(-1)


def divided_in_each_tile(q, k, v, is_causal, tile):
    out, L = torch.empty_like(q), defined(q, k, v, is_causal, tile)[1]
    for rows in torch.arange(len(q)).split(tile):
        o, tiles = torch.zeros_like(q[rows]), 0
        for columns in torch.arange(len(k)).split(tile):
            if not is_causal or columns[0] <= rows[-1]:
                S = q[rows] @ k[columns].T * q.shape[-1] ** -0.5
                S = S.masked_fill(columns > rows[:, None], -1e9) if is_causal else S
                o, tiles = o + S.softmax(-1) @ v[columns], tiles + 1
        out[rows] = o / tiles
    return out, L


def one(r):
    return torch.ones_like(r)


forbid("forward", ("scaled_dot_product_attention", "multi_head_attention_forward", "MultiheadAttention", "flex_attention"), "attention")
mistake("forward", defined,
        "The numbers are right, but the whole n × n matrix of scores is made. That is the definition: go tile by tile.")
mistake("forward", tiled(wide=True),
        "The numbers are right, but a tile of queries meets *all* keys at once: tile × n scores. With a longer text that is "
        "too much as well. Walk along the keys, tile by tile.")
mistake("forward", tiled(for_l=one, for_o=one),
        "Nothing is rescaled. When a later tile has a greater maximum, both old sums were made with the wrong one.")
mistake("forward", tiled(for_o=one),
        "The sum of the weights is rescaled, the sum of the values is not. They were made with the same maximum.")
mistake("forward", tiled(for_l=one),
        "The sum of the values is rescaled, the sum of the weights is not. They were made with the same maximum.")
mistake("forward", tiled(for_l=lambda r: 1 / r.clamp(min=1e-30), for_o=lambda r: 1 / r.clamp(min=1e-30)),
        "The sums are rescaled the wrong way around. They shrink when the maximum rises: exp(old − new).")
mistake("forward", tiled(for_o=torch.zeros_like, for_l=torch.zeros_like),
        "Each tile replaces the sums of those before it. Rescale them, and add.")
mistake("forward", tiled(new=lambda m, greatest: greatest),
        "This is each tile's own maximum. Where a later tile's scores are much smaller, the factor exp(old − new) overflows: take "
        "the larger of both.")
mistake("forward", tiled(dead=lambda rows, columns: columns[0] >= rows[-1]),
        "A tile is left out that begins at the last query itself. That query sees its own key: only what is *later* is dead.")
mistake("forward", tiled(dead=lambda rows, columns: columns[-1] > rows[-1]),
        "Tiles are left out that begin in the past and end in the future. Only where the first key is later than the last query is "
        "a tile dead.")
for hide in (lambda rows, columns: columns >= rows[:, None], lambda rows, columns: (columns >= rows[:, None]) & (columns > 0)):
    mistake("forward", tiled(hide=hide), "Causal, but no query sees its own key. It may: hide only what is later.")
mistake("forward", tiled(hide=lambda rows, columns: columns < rows[:, None]),
        "The mask is the wrong way around: it hides the past. What is *later* must be hidden.")
mistake("forward", divided_in_each_tile,
        "Each tile has its own softmax, and the tiles' outputs are averaged. Tiles with large scores must count more: "
        "carry the sums along, and divide once at the end.")
mistake("forward", tiled(divide=False),
        "The division by the sum of the weights is missing at the end.")
mistake("forward", tiled(scale=lambda d: 1.0), "The scale 1/√d is missing.")
mistake("forward", tiled(log=lambda m, l: l.log()),
        "The output is right. L lacks the maximum: l is a sum of exp(score − m), so the log-sum-exp is m + log l.")
mistake("forward", tiled(log=lambda m, l: m + l), "The output is right. L is m + *log* l.")
mistake("forward", tiled(hide=lambda rows, columns: columns > rows[-1]),
        "Only whole tiles of the future are skipped. In the tile on the diagonal a query still sees its neighbors' future: "
        "mask inside that tile.")
mistake("forward", tiled(hide=lambda rows, columns: columns > (rows - rows[0])[:, None]),
        "The mask compares a key's position with a query's place *inside its tile*. Both must count from the beginning of "
        "the text.")
mistake("forward", lambda q, k, v, is_causal, tile: forward(q, k, v, False, tile), "`is_causal` is ignored.")


def keys_outside(q, k, v, is_causal, tile):
    m, l, o = torch.full((len(q), 1), -1e30), torch.zeros(len(q), 1), torch.zeros_like(q)
    for columns in torch.arange(len(k)).split(tile):
        for rows in torch.arange(len(q)).split(tile):
            S = q[rows] @ k[columns].T * q.shape[-1] ** -0.5
            S = S.masked_fill(columns > rows[:, None], -torch.inf) if is_causal else S
            greater = torch.maximum(m[rows], S.amax(-1, keepdim=True))
            P, r = (S - greater).exp(), (m[rows] - greater).exp()
            m[rows], l[rows], o[rows] = greater, r * l[rows] + P.sum(-1, keepdim=True), r * o[rows] + P @ v[columns]
    return o / l, (m + l.log())[:, 0]


alternative("forward", tiled(skip=False))
for change in ("torch.zeros_like(m) → torch.ones_like(m)", "torch.zeros_like(q[rows]) → torch.ones_like(q[rows])"):
    equivalent("forward", change, "Every query sees key 0, so the first tile's maximum multiplies whatever was there before by 0.")
for change in ("if is_causal and columns[0] > rows[-1]: → (deleted)", "if is_causal and columns[0] > rows[-1]: → if False",
               "break → continue"):
    equivalent("forward", change, "A tile that is hidden altogether adds nothing; to skip it only saves time.")
equivalent("forward", "rows[-1] → rows[0]", "Tiles of queries and of keys begin at the same positions, so a tile of keys is later than the last query "
           "just where it is later than the first.")
equivalent("forward", "(m + l.log())[:, 0] → (m + l.log())[:, -1]", "That axis has one entry: the first is the last.")
alternative("forward", keys_outside)

# %% [markdown]
# ### Task 5 · Backward   ●●●●○ · 20 minutes · 4 points
#
# From what the forward pass has kept and the gradient `d_out` of its output: the gradients of $q$, $k$ and $v$. The same
# limit for tensors as in task 4, so weights are computed again, tile by tile. No ready-made attention here either.
#
# $$P = e^{S - L} \quad D = \text{rowsum}(dO \circ O) \quad dS = P \circ (dO\, V^\top - D) \quad dV = P^\top dO \quad
# dQ = \tfrac{1}{\sqrt d}\, dS\, K \quad dK = \tfrac{1}{\sqrt d}\, dS^\top Q$$
#
# <details><summary>Hint 1: what is a sum over what?</summary>
#
# A query's gradient collects from all tiles of keys, a key's from all tiles of queries. Start all three at zero, and add.
# </details>
# <details><summary>Hint 2: shapes</summary>
#
# `D` is (n, 1). In a tile, `P` and `dS` are (rows, columns): `dv[columns] += P.T @ d_out[rows]`.
# </details>
# <details><summary>Hint 3: where does 1/√d belong?</summary>
#
# Three times: in `S`, as in the forward pass, and once each in `dq` and `dk`.
# </details>

# %% nbgrader={"grade_id": "backward", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def backward(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n d"], out: Float[Tensor, "n d"],
    L: Float[Tensor, "n"], d_out: Float[Tensor, "n d"], is_causal: bool, tile: int,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """The gradients of q, k and v."""
    ### BEGIN SOLUTION
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = (torch.zeros_like(each) for each in (q, k, v))    # (n, d) each
    D = (d_out * out).sum(dim=-1, keepdim=True)                    # (n, 1)
    for rows in torch.arange(len(q)).split(tile):
        for columns in torch.arange(len(k)).split(tile):
            S = q[rows] @ k[columns].T * scale                     # (rows, columns)
            if is_causal:
                S = S.masked_fill(columns > rows[:, None], -torch.inf)
            P = (S - L[rows, None]).exp()                          # (rows, columns)
            dS = P * (d_out[rows] @ v[columns].T - D[rows])        # (rows, columns)
            dv[columns] += P.T @ d_out[rows]
            dk[columns] += dS.T @ q[rows] * scale
            dq[rows] += dS @ k[columns] * scale
    return dq, dk, dv
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-backward", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("backward") as show:
    def kept(n, is_causal, d=4):
        """What a forward pass hands over, by the definition, and a gradient."""
        q, k, v, d_out = (show.randn(n, d) for _ in range(4))
        S = q @ k.T / d**0.5
        S = S.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf) if is_causal else S
        return q, k, v, S.softmax(-1) @ v, S.logsumexp(-1), d_out, is_causal


    for words, is_causal in (("", False), ("causal: ", True)):
        for name, gradient in zip(("dq", "dk", "dv"), backward(*kept(11, is_causal), 4)):
            show(gradient, f"{words}{name}")
    show([*backward(*kept(5, True, 3), 4), *backward(*kept(1, True, 2), 4)], "causal: 5 positions in tiles of 4; a single position")
    for is_causal in (False, True):
        spent = cost(backward, *kept(64, is_causal), 8)
        show({"gradients": [show.sketch(gradient, 8) for gradient in spent.value],
              "no tensor is much larger than q": spent.largest <= 1.5 * 64 * 4},
             f"64 positions in tiles of 8{', causal' if is_causal else ''}: a few sums over the gradients, and how large tensors get")

# %% tags=["mistakes"]
def back(D=lambda d_out, out: (d_out * out).sum(-1, keepdim=True), inside=lambda d: d**-0.5, outside=lambda d: d**-0.5,
         hidden=True, future=lambda rows, columns: columns > rows[:, None], to_k=None, to_q=None,
         P=lambda S, L: (S - L).exp(), for_v=lambda P, dS: P, for_k=lambda P, dS: dS,
         dS=lambda P, dP, D: P * (dP - D), add=True):
    """The backward pass with something wrong."""
    def answer(q, k, v, out, L, d_out, is_causal, tile):
        d = q.shape[-1]
        dq, dk, dv = (torch.zeros_like(each) for each in (q, k, v))
        delta = D(d_out, out)
        for rows in torch.arange(len(q)).split(tile):
            for columns in torch.arange(len(k)).split(tile):
                S = q[rows] @ k[columns].T * inside(d)
                if is_causal and hidden:
                    S = S.masked_fill(future(rows, columns), -torch.inf)
                weight = P(S, L[rows, None])
                score = dS(weight, d_out[rows] @ v[columns].T, delta[rows])
                parts = for_v(weight, score).T @ d_out[rows], for_k(weight, score).T @ q[rows] * (to_k or outside(d))
                dv[columns] = dv[columns] * add + parts[0]
                dk[columns] = dk[columns] * add + parts[1]
                dq[rows] += score @ k[columns] * (to_q or outside(d))
        return dq, dk, dv
    return answer


def by_autograd(q, k, v, out, L, d_out, is_causal, tile):
    q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
    return torch.autograd.grad(defined(q, k, v, is_causal, tile)[0], (q, k, v), d_out)


forbid("backward", ("scaled_dot_product_attention", "multi_head_attention_forward", "MultiheadAttention", "flex_attention"), "attention")
mistake("backward", by_autograd,
        "The numbers are right, but the whole n × n matrix is made and kept. Compute the weights again, tile by tile.")
mistake("backward", back(D=lambda d_out, out: torch.zeros(len(out), 1)),
        "D is missing. A softmax's weights sum to 1: one can rise only if others fall, and D is what the others lose.")
mistake("backward", back(D=lambda d_out, out: (out * out).sum(-1, keepdim=True)),
        "D multiplies the output with itself. It is a row of the output times the same row of its *gradient*.")
mistake("backward", back(D=lambda d_out, out: (d_out * out).mean(-1, keepdim=True)),
        "D is a mean over the row. It is a sum.")
mistake("backward", back(outside=lambda d: 1.0),
        "dv is right. dq and dk lack a factor 1/√d: the scores were scaled, so their gradient is as well.")
mistake("backward", back(to_k=1.0), "dk lacks the factor 1/√d: the scores were scaled, so their gradient is as well.")
mistake("backward", back(to_q=1.0), "dq lacks the factor 1/√d: the scores were scaled, so their gradient is as well.")
mistake("backward", back(P=lambda S, L: S.exp()), "The weights are exp(S − L). Without L they don't add up to 1.")
mistake("backward", back(dS=lambda P, dP, D: P * (D - dP)), "The sign of dS is reversed: dO Vᵀ − D, not D − dO Vᵀ.")
mistake("backward", back(future=lambda rows, columns: columns >= rows[:, None]),
        "The diagonal is hidden in the backward pass. A query sees its own key: hide only what is later.")
mistake("backward", back(inside=lambda d: 1.0),
        "The scores are not scaled when they are computed again, so the weights are not those of the forward pass.")
mistake("backward", back(hidden=False),
        "The mask is forgotten in the backward pass: future keys get weights again, and a gradient.")
mistake("backward", back(P=lambda S, L: S.softmax(-1).nan_to_num()),
        "The weights are a softmax over the tile. They are exp(S − L), for L knows the whole row.")
mistake("backward", back(for_v=lambda P, dS: dS), "dv is made of dS. The values were averaged with the *weights*: Pᵀ dO.")
mistake("backward", back(for_k=lambda P, dS: P), "dk is made of the weights P. Keys act through the scores: dSᵀ Q.")
mistake("backward", back(dS=lambda P, dP, D: dP - D), "dS lacks the factor P.")
mistake("backward", back(add=False),
        "dk and dv hold what the last tile of queries gave them. All tiles of queries contribute: add.")
mistake("backward", lambda *given: (lambda dq, dk, dv: (dk, dq, dv))(*back()(*given)), "dq and dk are exchanged.")


def columns_outside(q, k, v, out, L, d_out, is_causal, tile):
    dq, dk, dv = (torch.zeros_like(each) for each in (q, k, v))
    for start in range(0, len(k), tile):
        keys, values = k[start : start + tile], v[start : start + tile]
        for first in range(start if is_causal else 0, len(q), 1):
            S = keys @ q[first] / q.shape[-1] ** 0.5
            S[max(0, first + 1 - start) :] = -torch.inf if is_causal else S[max(0, first + 1 - start) :]
            P = (S - L[first]).exp()
            dS = P * (values @ d_out[first] - d_out[first] @ out[first])
            dv[start : start + tile] += P[:, None] * d_out[first]
            dk[start : start + tile] += dS[:, None] * q[first] / q.shape[-1] ** 0.5
            dq[first] += dS @ keys / q.shape[-1] ** 0.5
    return dq, dk, dv


alternative("backward", columns_outside)

# %% tags=["variant"]
from txgrade import variant

KEPT = variant(2, 3, 4, 5)  # of task 6: numbers beside each query

# %% [markdown]
# ### Task 6 · How many numbers travel?   ●●○○○ · 10 minutes · 2 points
#
# Fast memory holds $M$ numbers. In it must lie, at the same time, for tiles of $B$ queries and $B$ keys: a tile of $q$, of
# $k$, of $v$ and of the output ($B \cdot d$ each), the tile of scores ($B \cdot B$), and {{KEPT:words}} numbers per query.
#
# Return the largest $B$ that fits, and how many numbers then travel in a forward pass without a mask: $q$ is read once,
# $k$ and $v$ once per tile of queries, the output and $L$ are written once. (A tile of 1 always fits.)
#
# <details><summary>Hint 1: what must fit?</summary>
#
# $4Bd + B^2 + {{KEPT}}B \le M$.
# </details>
# <details><summary>Hint 2: the largest B</summary>
#
# Try $B$ = 1, 2, 3, … until it does not fit. (Or solve the quadratic equation.)
# </details>
# <details><summary>Hint 3: how often do k and v come?</summary>
#
# Once per tile of queries: $\lceil n / B \rceil$ times. The last tile may be narrower, but it needs all keys.
# </details>

# %% nbgrader={"grade_id": "travel", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def travel(n: int, d: int, M: int) -> tuple[int, int]:
    """The largest tile that fits, and how many numbers travel with it."""
    ### BEGIN SOLUTION
    B = 1
    while 4 * (B + 1) * d + (B + 1) ** 2 + KEPT * (B + 1) <= M:
        B += 1
    return B, 2 * n * d + n + 2 * n * d * math.ceil(n / B)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-travel", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("travel") as show:
    show(travel(4096, 64, 50_000), "n = 4096, d = 64, 50,000 numbers of fast memory")
    show(travel(1000, 128, 50_000), "n = 1000, d = 128")
    almost = 4 * 10 * 8 + 10 * 10 + KEPT * 10 - 1
    show(travel(200, 8, almost), f"n = 200, d = 8, M = {almost}: one number less than a tile of 10 needs")
    show(travel(201, 8, almost + 1), f"n = 201, d = 8, M = {almost + 1}: just what a tile of 10 needs")
    show(travel(50, 8, 4 * 8 + 1 + KEPT), f"n = 50, d = 8, M = {4 * 8 + 1 + KEPT}: just what a tile of 1 needs")
    n, d, M = show.random_size(500, 900), 8 * show.random_size(2, 9), show.random_size(3000, 9000)
    show(travel(n, d, M), f"n, d, M = {n}, {d}, {M}")

# %% tags=["mistakes"]
def counted(room=lambda B, d: 4 * B * d + B * B + KEPT * B, times=lambda n, B: math.ceil(n / B),
            once=lambda n, d: 2 * n * d + n, each=lambda n, d: 2 * n * d):
    """The count with something wrong."""
    def answer(n, d, M):
        B = max([B for B in range(1, M) if room(B, d) <= M], default=1)
        return B, once(n, d) + each(n, d) * times(n, B)
    return answer


mistake("travel", counted(room=lambda B, d: 4 * B * d + KEPT * B), "The tile of scores also needs room: B · B numbers.")
mistake("travel", counted(room=lambda B, d: 4 * B * d),
        "This is the paper's M / 4d: the four tiles of width d. Here the tile of scores, B · B, and what is kept per query also need room.")
mistake("travel", counted(room=lambda B, d: 3 * B * d + B * B + KEPT * B),
        "One tile is missing in fast memory: q, k, v *and* the output that is being summed up.")
mistake("travel", counted(room=lambda B, d: 4 * B * d + B * B), "The {{KEPT:words}} numbers of each query, its maximum and its sum among them, also need room: {{KEPT}}B.")
mistake("travel", counted(room=lambda B, d: 4 * B * d + B * B + KEPT * B - 1 if B > 1 else 0, times=lambda n, B: n // B),
        "The number of tiles is rounded down. The last, narrower tile of queries needs all keys as well.")
for cut in (lambda B, d: 4 * B + B * B + KEPT * B, lambda B, d: B * d + B * B + KEPT * B):
    mistake("travel", counted(room=cut), "Four tiles of B · d lie in fast memory: of q, of k, of v and of the output.")
mistake("travel", counted(room=lambda B, d: B * B + KEPT * B), "The tiles of q, k, v and the output are missing: 4 · B · d.")
mistake("travel", counted(room=lambda B, d: 4 * B * d + B * B + KEPT * B + 1),
        "A tile that just fits, fits: at most M, not less than M.")
mistake("travel", counted(room=lambda B, d: 4 * (B - 1) * d + (B - 1) ** 2 + KEPT * (B - 1)),
        "One too large: this is the first tile that does *not* fit.")
mistake("travel", counted(each=lambda n, d: 0), "Keys and values are missing: 2 · n · d for each tile of queries.")
mistake("travel", counted(once=lambda n, d: 0), "What travels once is missing: q, the output, and L.")
for once in (lambda n, d: n, lambda n, d: 2 * n + n, lambda n, d: 2 * d + n, lambda n, d: d + n):
    mistake("travel", counted(once=once), "q is read once and the output is written once, n · d numbers each, and n for L.")
for wrong in (lambda n, d: 2 * n, lambda n, d: 2 * d, lambda n, d: d, lambda n, d: 1):
    mistake("travel", counted(each=wrong), "Each tile of queries needs *all* keys and values: 2 · n · d numbers.")
mistake("travel", counted(times=lambda n, B: n), "Keys and values come once per *tile* of queries, not once per query.")
mistake("travel", counted(each=lambda n, d: n * d), "Keys *and* values travel once per tile of queries.")
mistake("travel", counted(once=lambda n, d: 2 * n * d), "L is missing: n numbers are written besides the output.")
mistake("travel", counted(once=lambda n, d: n * d + n), "q is read and the output is written: 2 · n · d.")
mistake("travel", counted(times=lambda n, B: 1),
        "Keys and values are read once only. For that, all queries would have to lie in fast memory at the same time.")
mistake("travel", counted(once=lambda n, d: n * d + n, each=lambda n, d: 3 * n * d),
        "q is read again for each tile of queries. With queries outside, each tile of q comes once.")
mistake("travel", lambda n, d, M: counted()(n, d, M)[::-1], "The two are exchanged: first the tile, then what travels.")


def solved(n, d, M):
    B = (math.isqrt((4 * d + KEPT) ** 2 + 4 * M) - (4 * d + KEPT)) // 2        # B² + (4d + {{KEPT}}) B - M = 0
    return B, n * (2 * d + 1 + 2 * d * -(-n // B))


alternative("travel", solved)
equivalent("travel", "B = 1 → B = 0", "A tile of 1 always fits, so the loop takes that step anyway.")

# %% [markdown]
# ### Task 7 · Investigate: how often does the maximum rise?   ●●●●● · 15 minutes · 4 points
#
# In each step all that was summed up is multiplied by $e^{m - m'}$. But where the maximum has not risen, that factor is 1,
# and the work was for nothing. How much of it could be left out?
#
# Draw random queries and keys, $d$ = 64. For one query and tiles of 64 keys, measure in what fraction of the steps after
# the first the maximum rises, for 1,024, 4,096 and 16,384 keys. Average over many draws, and say how far off your means
# may be. Find the rule for the number of rises, and say why. Then do the same for a tile of 64 queries, whose sums can
# only be left alone if *none* of its maxima rises. What would you do about it in a kernel?
#
# Measure in new cells below this one; here you may use all of `txlib`. Hand in what you found as text, with a table
# of your numbers. A person reads it.

# %% [markdown] nbgrader={"grade_id": "rises", "solution": true, "grade": true, "points": 4, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# Means and their standard errors, tiles of 64 keys: 2,000 draws for one query; 400, 300 and 150 for a tile of queries.
# "Rises": in how many of the steps after the first a maximum rises.
#
# | keys | steps | one query | expected | a tile of 64 queries | expected |
# | --- | --- | --- | --- | --- | --- |
# | 1,024 | 15 | 2.43 ± 0.03 (16%) | 2.38 | 14.9 ± 0.0 (99.5%) | 14.9 |
# | 4,096 | 63 | 3.72 ± 0.04 (5.9%) | 3.74 | 53.2 ± 0.2 (84%) | 53.5 |
# | 16,384 | 255 | 5.10 ± 0.05 (2.0%) | 5.12 | 122.8 ± 0.6 (48%) | 122.5 |
#
# Keys come in random order, so of the first $t$ tiles each is as likely as any other to hold the greatest score: the
# newest one does with probability $1/t$. The number of rises is $\frac12 + \frac13 + \dots + \frac1T \approx \ln T - 0.42$,
# for $T$ tiles. Nearly all rescaling of one query is for nothing. But a tile of 64 queries can only be left alone if none of
# its maxima rises, which has the probability $(1 - 1/t)^{64}$ (as if they were independent): with few tiles hardly ever,
# and over 255 steps still only in about half of them.
#
# In a kernel: a program asks once per step whether any of its maxima rises, and skips the multiplication if not. That is
# exact, and pays for long texts. More is gained by seeing that the reference need not be *the* maximum: any number near it
# keeps the exponentials from overflowing. Keep the old reference as long as the new maximum is not greater by more than,
# say, 8, then rescale. The division at the end corrects for whatever reference was used.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table over the three lengths for one query, from many draws. 1 point: the rule, about $\ln(\text{tiles})$
# rises, and the reason: in random order the newest of $t$ tiles holds the greatest with probability $1/t$. 1 point: the
# tile of 64 queries, with numbers that show how much rarer it can be left alone. 1 point: a proposal for a kernel that
# stays exact (skip when no maximum of the tile rises, or keep an old maximum as long as the new one is not much greater,
# since any reference near the maximum will do).

# %% [markdown]
# ### Task 8 · A mask as a rule   ●●○○○ · 8 minutes · 2 points
#
# FlexAttention (section 7.5 of the lesson) asks for a rule, `mask_mod`: a function of the numbers of batch, head, query and
# key, all of them tensors, that is `True` where the query may see the key. Write the rule for several documents in one
# row. `start` holds, for each position, where its document begins: `[0, 0, 0, 3, 3]` for documents of 3 and 2 tokens.
# A query sees, in its own document only and never a later key,
#
# - the last `window` keys, its own among them,
# - and the first `sinks` keys of the document.
#
# Return the rule itself, not a table. (To try it: `create_block_mask(rule, None, None, n, n, device="cpu", BLOCK_SIZE=4)`,
# and `flex_attention(q, k, v, block_mask=...)`, as in the lesson.)
#
# <details><summary>Hint 1: and, or</summary>
#
# Python's `and` and `or` need one truth value, and these are tensors: write `&` and `|`, with parentheses around each
# comparison.
# </details>
# <details><summary>Hint 2: the same document</summary>
#
# Two positions are in the same document where their documents begin at the same position: `start[query] == start[key]`.
# </details>
# <details><summary>Hint 3: the first keys of a document</summary>
#
# `key - start[key]` counts from the beginning of the key's document: 0 is its first token.
# </details>

# %%
def pairs(rule: Callable[..., Tensor], n: int) -> Bool[Tensor, "n n"]:
    """Which query may see which key, as FlexAttention asks: by the numbers of positions."""
    position, zero = torch.arange(n), torch.tensor(0)
    return rule(zero, zero, position[:, None], position).expand(n, n)

# %% nbgrader={"grade_id": "mask-rule", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def packed_rule(start: Int[Tensor, "n"], window: int, sinks: int) -> Callable[..., Tensor]:
    """The rule for several documents in a row: a causal window, and the first keys of each document."""
    ### BEGIN SOLUTION
    def mask_mod(batch, head, query, key):
        near = (query - key < window) | (key - start[key] < sinks)
        return (query >= key) & near & (start[query] == start[key])

    return mask_mod
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-mask-rule", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("mask-rule") as show:
    def begins(*lengths):
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return torch.tensor(starts).repeat_interleave(torch.tensor(lengths))

    n, window, sinks = show.random_size(7, 20), show.random_size(2, 4), show.random_size(1, 3)
    show(pairs(packed_rule(begins(n), window, 0), n), f"one document of {n}, a window of {window}, no sinks")
    n = show.random_size(7, 20)
    show(pairs(packed_rule(begins(n), 1, sinks), n), f"one document of {n}, a window of 1, sinks: {sinks}")
    lengths = show.random_size(3, 12), show.random_size(3, 12)
    show(pairs(packed_rule(begins(*lengths), 99, 0), sum(lengths)), f"documents of {lengths}, a window wider than all")
    for window, sinks in ((3, 1), (2, 3)):
        lengths = show.random_size(5, 14), show.random_size(5, 14), 1, 3
        show(pairs(packed_rule(begins(*lengths), window, sinks), sum(lengths)),
             f"documents of {lengths}, a window of {window}, sinks: {sinks}")

# %% tags=["mistakes"]
def ruled(near=lambda distance, window: distance < window, first=lambda key, start, sinks: key - start[key] < sinks,
          past=lambda query, key: query >= key, same=lambda query, key, start: start[query] == start[key],
          whole=lambda past, near, first, same: past & (near | first) & same):
    """The rule with something wrong."""
    def answer(start, window, sinks):
        def mask_mod(batch, head, query, key):
            return whole(past(query, key), near(query - key, window), first(key, start, sinks), same(query, key, start))
        return mask_mod
    return answer


mistake("mask-rule", ruled(near=lambda distance, window: distance <= window),
        "The window is one too wide: with the query's own, `window` keys reach back to a distance of window − 1.")
mistake("mask-rule", ruled(near=lambda distance, window: distance > window),
        "The comparison is reversed: a key is in the window while its distance is *less* than `window`.")
mistake("mask-rule", ruled(near=lambda distance, window: -distance < window),
        "Every earlier key is in the window here: the distance is `query - key`, not `key - query`.")
mistake("mask-rule", ruled(first=lambda key, start, sinks: key - start[key] > sinks),
        "The comparison is reversed: a sink is *less* than `sinks` away from the start of its document.")
mistake("mask-rule", ruled(first=lambda key, start, sinks: start[key] - key < sinks),
        "Nearly every earlier key counts as a sink: its distance from the start is `key - start[key]`.")
mistake("mask-rule", ruled(same=lambda query, key, start: start[query] != start[key]),
        "Only *other* documents are seen. A pair is allowed where both positions have the same start.")
mistake("mask-rule", ruled(near=lambda distance, window: distance.abs() < window, past=lambda query, key: query >= 0),
        "Later keys are seen. Whatever the window and the sinks allow, the key may not be later than the query.")
mistake("mask-rule", ruled(whole=lambda past, near, first, same: ((past & near) | first) & same),
        "A query before the end of the sinks sees sinks that come later. `query >= key` holds for window and sinks alike.")
mistake("mask-rule", ruled(whole=lambda past, near, first, same: (past & near & same) | first),
        "The sinks of *all* documents are seen, later ones among them. Both conditions hold for sinks as well.")
mistake("mask-rule", ruled(past=lambda query, key: query > key), "No query sees its own key. It may: `query >= key`.")
mistake("mask-rule", ruled(past=lambda query, key: query <= key),
        "The order is exchanged: a query sees itself and what comes *before* it, `query >= key`.")
mistake("mask-rule", ruled(first=lambda key, start, sinks: key - start[key] <= sinks),
        "One sink too many: a document's first key is 0 away from its start, so the distance is *less* than `sinks`.")
mistake("mask-rule", ruled(first=lambda key, start, sinks: key < sinks),
        "Only the first document has sinks. Count from the start of the key's own document: `key - start[key]`.")
mistake("mask-rule", ruled(first=lambda key, start, sinks: key < 0), "The sinks are missing: the first keys of the document.")
mistake("mask-rule", ruled(near=lambda distance, window: distance < 0), "The window is missing: only the sinks are seen.")
mistake("mask-rule", ruled(whole=lambda past, near, first, same: past & near & first & same),
        "A key must be in the window *and* be a sink here. One of the two is enough: `|`.")
mistake("mask-rule", ruled(same=lambda query, key, start: query >= 0),
        "Documents see each other. Allow a pair only where both positions have the same start.")
mistake("mask-rule", ruled(same=lambda query, key, start: start[key] == 0),
        "Keys of the first document are seen by all, others by none. Compare the key's start with the *query's*.")


def by_own_start(start, window, sinks):
    def rule(b, h, i, j):
        begin = start[i]
        in_document = (begin <= j) & (j <= i)
        return in_document & torch.logical_or(i < j + window, j < begin + sinks)
    return rule


alternative("mask-rule", by_own_start)

# %%
check.summary()
