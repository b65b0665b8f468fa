# %% [markdown]
# # Exercise 13 · Decoding fast
#
# Six tasks, 18 points, about 85 minutes. [Lesson 13](../notebooks/13_decoding.ipynb) has the ideas; here you use them
# elsewhere. Tasks 1 and 2 are the *core*, about 30 minutes; tasks 3 to 6 are *more*, and the last is an open
# investigation. Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may
# check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · A cache that forgets   ●●●●○ · 15 minutes · 3 points
#
# The lesson's cache grows with the text. A head with a *window* needs less: token $i$ may see the last `window` tokens up to
# and including itself, so it never needs anything further back. Build one causal head that is called piece by piece. `x`
# holds the vectors of the *new* tokens only, one or several; `cache` is the pair (keys, values) of earlier tokens, or `None`
# at the first call. Scores are divided by $\sqrt{d_k}$ as usual; nothing is rotated. Return the output for the new tokens,
# and the cache for the next call: keys and values of the last `window` tokens of *all* so far, no more.
#
# <details><summary>Hint 1: in which order?</summary>
#
# Join old and new, attend, and only then forget. If you forget first, the first of several new tokens misses keys that
# it may still see.
# </details>
# <details><summary>Hint 2: which token may see which?</summary>
#
# With `past` tokens in the cache, new token $i$ is number past + $i$ of the joined keys, and sees numbers
# past + $i$ − window + 1 to past + $i$.
# </details>
# <details><summary>Hint 3: the mask</summary>
#
# `distance = query[:, None] - key[None, :]`, with these numbers for both. Allowed is
# `(0 <= distance) & (distance < window)`. The last `window` keys are `k[-window:]`.
# </details>

# %% nbgrader={"grade_id": "forgetting-head", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def forgetting_head(
    x: Float[Tensor, "new d"],
    cache: tuple[Tensor, Tensor] | None,
    w_q: Float[Tensor, "d d_k"],
    w_k: Float[Tensor, "d d_k"],
    w_v: Float[Tensor, "d d_k"],
    window: int,
) -> tuple[Float[Tensor, "new d_k"], tuple[Tensor, Tensor]]:
    """Causal attention to the last `window` tokens; output of the new ones, and the keys and values to keep."""
    ### BEGIN SOLUTION
    q, k, v = x @ w_q, x @ w_k, x @ w_v                            # (new, d_k) each
    past = 0 if cache is None else len(cache[0])
    if past:
        k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])  # (past + new, d_k) each
    distance = past + torch.arange(len(x))[:, None] - torch.arange(len(k))       # (new, past + new)
    allowed = (distance >= 0) & (distance < window)                # (new, past + new)
    score = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)     # (new, past + new)
    return score.softmax(dim=-1) @ v, (k[-window:], v[-window:])
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-forgetting-head", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("forgetting-head") as show:
    d, d_k = show.random_size(5, 7), show.random_size(3, 4)
    w = [show.randn(d, d_k) for _ in range(3)]
    for window in (4, 1, show.random_size(7, 9)):
        cache = None
        for new in (6, 1, 3) if window == 4 else (1, 2, 4, 5):
            out, cache = forgetting_head(show.randn(new, d), cache, *w, window)
            show(out, f"window {window}: {new} new token{'s' * (new > 1)}")
        show(list(cache), f"window {window}: the cache at the end: keys, values")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def head_with(rule=None, scale=None, keep=None, before=False, shift=True):
    """The head with something changed: rule(distance, window) -> allowed, scale(d_k), keep(old, k, v, window)."""
    def answer(x, cache, w_q, w_k, w_v, window):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        past = 0 if cache is None else len(cache[0])
        if past:
            k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])
        if before:
            past -= max(0, len(k) - window)
            k, v = k[-window:], v[-window:]
        distance = (past if shift else 0) + torch.arange(len(x))[:, None] - torch.arange(len(k))
        allowed = (distance >= 0) & (distance < window) if rule is None else rule(distance, window)
        score = q @ k.T * (q.shape[-1] ** -0.5 if scale is None else scale(q.shape[-1]))
        out = score.masked_fill(~allowed, -1e9).softmax(dim=-1) @ v
        return out, (k[-window:], v[-window:]) if keep is None else keep(cache, k, v, window)
    return answer


mistake("forgetting-head", head_with(before=True),
        "You forget before you attend. Of several new tokens, the first may still see keys that the last may not: join, "
        "attend, and only then keep the last `window`.")
mistake("forgetting-head", head_with(keep=lambda old, k, v, window: (k[1 - window:], v[1 - window:])),
        "You keep `window` - 1 tokens. The next one needs no more, but the task says the last `window`.")
mistake("forgetting-head", head_with(rule=lambda distance, window: distance >= 0),
        "The window is missing from the mask. Where several tokens come at once, a token sees more than `window` keys: "
        "those in the cache *and* those that came with it.")
mistake("forgetting-head", head_with(rule=lambda distance, window: distance < window),
        "There is no causal mask: of several new tokens, none may see those after it.")
mistake("forgetting-head", head_with(rule=lambda distance, window: (distance >= 0) & (distance <= window)),
        "The window is one too wide: a token and the `window` before it are `window` + 1. Itself is one of them.")
mistake("forgetting-head", head_with(rule=lambda distance, window: (distance >= 0) & (distance < window - 1)),
        "The window is one too narrow: a token sees `window` tokens, itself included.")
mistake("forgetting-head", head_with(rule=lambda distance, window: (distance > 0) & (distance < window)),
        "A token may see itself: distance 0 is allowed.")
mistake("forgetting-head", head_with(shift=False),
        "The mask is not moved. New token i is number past + i of the joined keys.")
mistake("forgetting-head", head_with(keep=lambda old, k, v, window: (k, v)),
        "Nothing is forgotten: the cache you return grows with the text. Keep the last `window` keys and values.")
mistake("forgetting-head", head_with(keep=lambda old, k, v, window: (k[:window], v[:window])),
        "You keep the *first* `window` tokens. Later tokens need the last ones.")
mistake("forgetting-head", head_with(keep=lambda old, k, v, window: (k[-window:], v)),
        "Keys are forgotten, values are not. Each key needs its value: cut both.")
mistake("forgetting-head", head_with(keep=lambda old, k, v, window: (v[-window:], k[-window:])),
        "You have swapped keys and values in the cache that you return. The pair is (keys, values).")
mistake("forgetting-head", head_with(scale=lambda d_k: 1.0), "The scores are not divided by √d_k.")
mistake("forgetting-head", head_with(scale=lambda d_k: 1 / d_k), "The scores are divided by d_k. Divide by its *root*.")


def row_by_row(x, cache, w_q, w_k, w_v, window):
    k, v = (torch.empty(0, w_k.shape[1]), torch.empty(0, w_v.shape[1])) if cache is None else cache
    rows = []
    for token in x:
        k, v = torch.cat([k, (token @ w_k)[None]])[-window:], torch.cat([v, (token @ w_v)[None]])[-window:]
        rows.append((k @ (token @ w_q) / w_q.shape[1] ** 0.5).softmax(dim=0) @ v)
    return torch.stack(rows), (k, v)


alternative("forgetting-head", row_by_row)
for change in ("len(cache[0]) → len(cache[1])", "len(cache[0]) → len(cache[-1])"):
    equivalent("forgetting-head", change, "There are as many values as keys.")

# %% [markdown]
# ### Task 2 · No padding at all   ●●●○○ · 12 minutes · 3 points
#
# The lesson padded short prompts. Servers often avoid padding: they put all prompts one after another into **one row**, and a
# mask keeps them apart. Given the lengths of the prompts, return for the row
#
# - `position`: the position of each token *in its own prompt*, counted from 0;
# - `allowed`: `True` where token $i$ (row) may see token $j$ (column): only tokens of its own prompt, up to itself;
# - `last`: the index in the row of each prompt's last token, where the next tokens are predicted.
#
# <details><summary>Hint 1: which prompt does a token belong to?</summary>
#
# `torch.arange(len(lengths)).repeat_interleave(lengths)` gives each token the number of its prompt: 0, 0, 0, 1, 2, 2 …
# </details>
# <details><summary>Hint 2: where does each begin?</summary>
#
# `lengths.cumsum(0)` has the ends. The starts are the ends minus the lengths.
# </details>
# <details><summary>Hint 3: the mask</summary>
#
# Two conditions, joined with `&`: the same prompt, and not later in the row than the token itself.
# </details>

# %% nbgrader={"grade_id": "packed", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def packed(
    lengths: Int[Tensor, "prompts"],
) -> tuple[Int[Tensor, "total"], Bool[Tensor, "total total"], Int[Tensor, "prompts"]]:
    """(position, allowed, last) of prompts that follow one another in one row."""
    ### BEGIN SOLUTION
    end = lengths.cumsum(0)                                        # (prompt,)
    owner = torch.arange(len(lengths)).repeat_interleave(lengths)  # (total,)
    place = torch.arange(int(end[-1]))                             # (total,)
    allowed = (owner[:, None] == owner) & (place[:, None] >= place)              # (total, total)
    return place - (end - lengths)[owner], allowed, end - 1
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-packed", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("packed") as show:
    for count in (show.random_size(4, 6), show.random_size(7, 9)):
        lengths = show.randint(1, 10, count)
        position, allowed, last = zip(packed(lengths), packed(lengths[:1]))
        show(position, f"positions of {count} prompts, and of the first alone", points=1)
        show(allowed, f"which token may see which, {count} prompts, and the first alone", points=1)
        show(last, f"where {count} prompts end, and the first alone", points=1)

# %% tags=["mistakes"]
def packed_with(position=None, allowed=None, last=None):
    """One of the three parts changed: each a function of (owner, place, end, lengths)."""
    def answer(lengths):
        right = packed(lengths)
        end = lengths.cumsum(0)
        owner = torch.arange(len(lengths)).repeat_interleave(lengths)
        given = owner, torch.arange(int(end[-1])), end, lengths
        return tuple(old if new is None else new(*given) for old, new in zip(right, (position, allowed, last), strict=True))
    return answer


mistake("packed", packed_with(position=lambda owner, place, end, lengths: place),
        "Positions run on through the row. Each prompt begins at 0, as if it were alone.")
mistake("packed", packed_with(position=lambda owner, place, end, lengths: place - (end - lengths)[owner] + 1),
        "Positions count from 1. The first token of a prompt is at position 0.")
mistake("packed", packed_with(position=lambda owner, place, end, lengths: owner),
        "This is the *number* of each token's prompt. Its position is counted inside that prompt.")
mistake("packed", packed_with(allowed=lambda owner, place, end, lengths: place[:, None] >= place),
        "The mask is causal, but a prompt sees those before it in the row. Only its own tokens are allowed.")
mistake("packed", packed_with(allowed=lambda owner, place, end, lengths: owner[:, None] == owner),
        "Each prompt sees itself, but also its own future: a causal mask is missing.")
mistake("packed", packed_with(allowed=lambda owner, place, end, lengths: (
            (owner[:, None] == owner) & (place[:, None] > place))),
        "A token may see itself: `>=`, not `>`. As it is, the first token of each prompt sees nothing.")
mistake("packed", packed_with(allowed=lambda owner, place, end, lengths: (
            (owner[:, None] == owner) & (place[:, None] <= place))),
        "The mask is transposed: tokens see what comes *after* them. Row i is the token that looks.")
mistake("packed", packed_with(allowed=lambda owner, place, end, lengths: ~(
            (owner[:, None] == owner) & (place[:, None] >= place))),
        "The mask is inverted: `True` means *may see*.")
mistake("packed", packed_with(last=lambda owner, place, end, lengths: end),
        "`last` is one too far: it points at the next prompt's first token. Indices count from 0.")
mistake("packed", packed_with(last=lambda owner, place, end, lengths: lengths - 1),
        "`last` counts inside each prompt. The task asks for indices in the *row*.")
mistake("packed", packed_with(last=lambda owner, place, end, lengths: end - lengths),
        "These are the indices of the *first* tokens. The next token is predicted at the last one.")


def in_loops(lengths):
    position = torch.cat([torch.arange(length) for length in lengths.tolist()])
    allowed = torch.block_diag(*(torch.ones(length, length).tril() for length in lengths.tolist())).bool()
    return position, allowed, torch.tensor([sum(lengths.tolist()[: i + 1]) - 1 for i in range(len(lengths))])


alternative("packed", in_loops)

# %% [markdown]
# ### Task 3 · What will this machine do?   ●●○○○ · 10 minutes · 2 points
#
# Before you rent a machine, do the arithmetic. A model with `parameters` weights of `width` bytes each writes `batch` texts at
# once; each text has a cache of `cache` bytes. At each step, all weights are read *once*, each text's cache is read
# once, and each text takes two operations per weight (ignore those of attention, which are few). The machine computes
# `rate` operations and reads `reading` bytes per second, both at the same time. How many tokens per second do all
# texts get together, at best?
#
# <details><summary>Hint 1: what is shared?</summary>
#
# The weights are read once per step, whatever the batch. Caches are not shared.
# </details>
# <details><summary>Hint 2: both at the same time</summary>
#
# Two times: one for arithmetic, one for reading. The step ends when the slower of the two is done.
# </details>
# <details><summary>Hint 3: per second</summary>
#
# One step gives `batch` tokens. Divide them by the seconds of a step.
# </details>

# %% nbgrader={"grade_id": "roofline", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def tokens_per_second(
    parameters: float, width: float, cache: float, batch: int, rate: float, reading: float
) -> float:
    """At best, for all texts together."""
    ### BEGIN SOLUTION
    arithmetic = 2 * parameters * batch / rate                     # seconds per step
    memory = (parameters * width + batch * cache) / reading        # seconds per step
    return batch / max(arithmetic, memory)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-roofline", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("roofline") as show:
    for batch in (1, 8, 512):
        parameters, width = 1e9 * show.random_size(2, 70), show.choice([2, 4])
        cache, rate, reading = 1e6 * show.random_size(100, 900), 1e12 * show.random_size(100, 900), 1e12 * show.random_size(1, 4)
        show(tokens_per_second(parameters, width, cache, batch, rate, reading), f"a batch of {batch}")
    rate = 1e12 * show.random_size(1, 3)
    show(tokens_per_second(1e9, 2, 0.0, 64, rate, 2e12), "no cache, slow arithmetic")

# %% tags=["mistakes"]
def speed(memory=None, arithmetic=None, join=max, tokens=None):
    """The estimate with something changed."""
    def answer(parameters, width, cache, batch, rate, reading):
        work = 2 * parameters * batch / rate if arithmetic is None else arithmetic(parameters, batch, rate)
        read = (parameters * width + batch * cache) / reading if memory is None else (
            memory(parameters, width, cache, batch) / reading)
        return (batch if tokens is None else tokens(batch)) / join(work, read)
    return answer


mistake("roofline", speed(join=lambda work, read: work + read),
        "You add both times. Machines compute while they read: the step takes as long as the slower of the two.")
mistake("roofline", speed(join=min), "You take the *faster* of the two. The step is not done before the slower one is.")
mistake("roofline", speed(memory=lambda parameters, width, cache, batch: batch * (parameters * width + cache)),
        "The weights are read once per *step*, not once per text. That is what a batch is for.")
mistake("roofline", speed(memory=lambda parameters, width, cache, batch: parameters * width + cache),
        "One cache is read per step, but each text has its own: `batch` times `cache`.")
mistake("roofline", speed(memory=lambda parameters, width, cache, batch: parameters * width),
        "The caches are missing: at each step every text's keys and values are also read.")
mistake("roofline", speed(memory=lambda parameters, width, cache, batch: parameters + batch * cache),
        "A weight is `width` bytes, not one.")
mistake("roofline", speed(arithmetic=lambda parameters, batch, rate: parameters * batch / rate),
        "Each weight takes two operations per text: a multiplication and an addition.")
mistake("roofline", speed(arithmetic=lambda parameters, batch, rate: 2 * parameters / rate),
        "The arithmetic of one text only. Each of the `batch` texts takes two operations per weight.")
mistake("roofline", speed(tokens=lambda batch: 1),
        "These are *steps* per second, what one text gets. All texts together get `batch` times as many tokens.")
mistake("roofline", speed(arithmetic=lambda parameters, batch, rate: 2 * parameters * batch),
        "One of your two times is not in seconds: divide operations by `rate`, and bytes by `reading`.")
mistake("roofline", lambda parameters, width, cache, batch, rate, reading: (
            batch / max(2 * parameters * batch / rate, parameters * width + batch * cache)),
        "One of your two times is not in seconds: divide operations by `rate`, and bytes by `reading`.")
mistake("roofline", speed(memory=lambda parameters, width, cache, batch: batch * cache),
        "The weights are missing: at each step all of them are also read.")
mistake("roofline", speed(join=lambda work, read: work),
        "You count only the time for arithmetic. Reading also takes time: take the slower of the two.")
alternative("roofline", lambda parameters, width, cache, batch, rate, reading: min(
    rate / (2 * parameters), batch * reading / (parameters * width + batch * cache)))

# %% tags=["variant"]
from txgrade import variant

BITS = variant(4, 3, 5, 6)  # set for your copy: the text and the check of task 4 use it; you may

# %% [markdown]
# ### Task 4 · {{BITS:Words}} bits, group by group   ●●●●○ · 15 minutes · 3 points
#
# The lesson's 8 bits had one scale per row, and levels on both sides of zero. {{BITS:Words}} bits are only {{2**BITS}} levels, so use all of
# them: in each row, cut the weights into **groups** of `size` neighbors; in each group, put level 0 at its smallest
# weight and level {{2**BITS - 1}} at its largest, with equal steps between. Round each weight to the nearest level. Return the
# levels (whole numbers 0 to {{2**BITS - 1}}, int64) and the weights that they stand for, both in the weight's own shape. In a group
# whose weights are all equal, every level is 0, and the weights come back as they are: no `nan`. `size` divides the
# rows' length.
#
# <details><summary>Hint 1: groups</summary>
#
# `weight.unflatten(-1, (-1, size))` is (out, groups, size); `amin(-1, keepdim=True)` and `amax` give each group's ends.
# </details>
# <details><summary>Hint 2: how many steps?</summary>
#
# From level 0 to level {{2**BITS - 1}} there are {{2**BITS - 1}} steps, not {{2**BITS}}.
# </details>
# <details><summary>Hint 3: all equal</summary>
#
# The step is 0 there, and 0 / 0 is `nan`. Divide by 1 instead: `torch.where(step > 0, step, 1.0)`.
# </details>

# %% nbgrader={"grade_id": "few-bits", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def few_bits(weight: Float[Tensor, "out in_"], size: int) -> tuple[Int[Tensor, "out in_"], Float[Tensor, "out in_"]]:
    """(levels 0 … {{2**BITS - 1}}, the weights they stand for); each `size` neighbors in a row have their own {{2**BITS}} levels."""
    ### BEGIN SOLUTION
    groups = weight.unflatten(-1, (-1, size))                      # (out, group, size)
    low = groups.amin(-1, keepdim=True)                            # (out, group, 1)
    step = (groups.amax(-1, keepdim=True) - low) / (2**BITS - 1)   # (out, group, 1)
    level = ((groups - low) / torch.where(step > 0, step, 1.0)).round()          # (out, group, size)
    return level.long().flatten(-2), (low + level * step).flatten(-2)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-few-bits", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("few-bits") as show:
    out, size = show.random_size(2, 4), show.random_size(5, 8)
    weight = show.randn(out, 3 * size) * (1 + 4 * show.rand(out, 3 * size))
    level, back = few_bits(weight, size)
    show(level, f"levels, three groups of {size} in each row")
    show(back, "the weights that they stand for")
    weight = show.randn(2, 8)
    weight[1, 4:] = show.randn(1)
    show(list(few_bits(weight, 4)), "four equal weights in the last group: levels, weights")
    show(list(few_bits(weight, 8)), "one group in each row: levels, weights")
    show(list(few_bits(weight, 1)), "each weight a group of its own: levels, weights")

# %% tags=["mistakes"]
def rounded_with(levels=2**BITS - 1, low=None, high=None, rounding=torch.round, group=None, zero=True, back=None, safe=True):
    """Few bits, with something changed."""
    def answer(weight, size):
        groups = weight.unflatten(-1, (-1, size)) if group is None else group(weight, size)
        bottom = groups.amin(-1, keepdim=True) if low is None else low(groups)
        top = groups.amax(-1, keepdim=True) if high is None else high(groups)
        step = (top - bottom) / levels
        level = rounding((groups - bottom) / (torch.where(step > 0, step, 1.0) if safe else step))
        given = bottom + level * step if back is None else back(bottom, level, step)
        level = level.nan_to_num(0) if not safe else level
        return level.long().reshape(weight.shape), given.reshape(weight.shape)
    return answer


def by_columns(weight, size):
    level, back = few_bits(weight.T.contiguous(), weight.shape[0])
    return level.T.contiguous(), back.T.contiguous()


def symmetric(weight, size):
    groups = weight.unflatten(-1, (-1, size))
    step = groups.abs().amax(-1, keepdim=True) / (2 ** (BITS - 1) - 1)
    level = (groups / step).round()
    return level.long().flatten(-2), (level * step).flatten(-2)


mistake("few-bits", rounded_with(levels=2**BITS),
        "You divide the range by {{2**BITS}}. From level 0 to level {{2**BITS - 1}} there are {{2**BITS - 1}} steps; with {{2**BITS}} the "
        "largest weight gets level {{2**BITS}}, which {{BITS}} bits cannot hold.")
mistake("few-bits", rounded_with(group=lambda weight, size: weight),
        "Each *row* has its own levels, but each group should. Cut the rows into groups of `size` first.")
mistake("few-bits", rounded_with(group=lambda weight, size: weight.flatten()[None]),
        "The whole matrix shares {{2**BITS}} levels. Each group of `size` neighbors in a row has its own.")
mistake("few-bits", by_columns, "The levels belong to columns. Groups are neighbors in a *row*: the last axis.")
mistake("few-bits", symmetric,
        "These are levels on both sides of zero, as in the lesson. Here level 0 is the group's smallest weight and level {{2**BITS - 1}} "
        "its largest.")
mistake("few-bits", rounded_with(rounding=torch.floor),
        "You round down. The *nearest* level is at most half a step away: `round`.")
mistake("few-bits", rounded_with(low=lambda groups: torch.zeros_like(groups[..., :1])),
        "Level 0 stands for the weight 0, so negative weights get negative levels. Put it at the group's smallest weight.")
mistake("few-bits", rounded_with(back=lambda low, level, step: level * step),
        "You forget to add the smallest weight back: a level stands for low + level · step.")
mistake("few-bits", rounded_with(safe=False),
        "In a group of equal weights the step is 0, and 0 / 0 is `nan`. Divide by 1 there.")
mistake("few-bits", rounded_with(back=lambda low, level, step: level + low),
        "A level is a number of *steps*: the weight is low + level · step.")


def not_from_low(weight, size):
    groups = weight.unflatten(-1, (-1, size))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / (2**BITS - 1)
    level = (groups / torch.where(step > 0, step, 1.0)).round()
    return level.long().flatten(-2), (low + level * step).flatten(-2)


mistake("few-bits", not_from_low,
        "You divide the weights themselves by the step. Level 0 stands at the group's smallest weight: subtract that first.")
mistake("few-bits", rounded_with(high=lambda groups: groups.amax(-1, keepdim=True) + groups.amin(-1, keepdim=True)),
        "The step is too large or too small: from the smallest weight to the largest it is *largest − smallest*.")
for other in (2.0, 0.5, -1.0):
    equivalent("few-bits", f"torch.where(step > 0, step, 1.0) → torch.where(step > 0, step, {other})",
               "Where the step is 0, 0 is divided.")


def in_rows(weight, size):
    level, back = torch.zeros(weight.shape, dtype=torch.long), weight.clone()
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], size):
            group = weight[row, start : start + size]
            low, high = group.min(), group.max()
            if high > low:
                steps = torch.linspace(0, 1, 2**BITS) * (high - low) + low
                level[row, start : start + size] = (group[:, None] - steps).abs().argmin(-1)
                back[row, start : start + size] = steps[level[row, start : start + size]]
    return level, back


alternative("few-bits", in_rows)

# %% [markdown]
# ### Task 5 · Checking many drafts at once   ●●●●○ · 15 minutes · 3 points
#
# The lesson checks one draft, guess by guess. A server has a batch of drafts, and no time for loops. For each row, given its
# guesses, the draft's distributions `q`, the model's `p` (one row more than `q`), and a random number `chance`
# between 0 and 1 for each guess, return
#
# - `kept`: how many guesses stay. Guess $x$ passes where chance · $q(x) < p(x)$; it stays if it and *all before it* pass;
# - `next`: the distribution from which the token after the kept ones is drawn. After a refusal it is
#   $\max(0, p - q)$ at the refused guess, normalized; if all stay, it is the last row of $p$.
#
# Return the distribution itself; draw nothing.
#
# <details><summary>Hint 1: up to the first refusal</summary>
#
# Turn *passes* into 1 and 0 and take `cumprod` along the row: after the first 0 all are 0. Its sum is `kept`.
# </details>
# <details><summary>Hint 2: which row of p?</summary>
#
# The next token comes from row `kept`. `p[torch.arange(batch), kept]` picks a row for each draft.
# </details>
# <details><summary>Hint 3: all stay</summary>
#
# Give `q` one more row, of zeros: then $\max(0, p - 0)$ is $p$ itself, and all cases are the same.
# </details>

# %% nbgrader={"grade_id": "verify", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def verify(
    guesses: Int[Tensor, "batch guess"],
    q: Float[Tensor, "batch guess vocab"],
    p: Float[Tensor, "batch after vocab"],
    chance: Float[Tensor, "batch guess"],
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch vocab"]]:
    """(how many guesses stay, the distribution of the token after them), for each row."""
    ### BEGIN SOLUTION
    theirs = q.gather(-1, guesses[..., None])[..., 0]              # (batch, guess)
    ours = p[:, :-1].gather(-1, guesses[..., None])[..., 0]        # (batch, guess)
    kept = (chance * theirs < ours).long().cumprod(dim=1).sum(dim=1)             # (batch,)
    row = torch.arange(len(guesses))                               # (batch,)
    padded = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)     # (batch, guess + 1, vocab)
    missing = (p[row, kept] - padded[row, kept]).clamp(min=0)      # (batch, vocab)
    return kept, missing / missing.sum(dim=-1, keepdim=True)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-verify", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("verify") as show:
    vocab, ahead = show.random_size(4, 6), show.random_size(3, 4)
    p = (1.5 * show.randn(12, ahead + 1, vocab)).softmax(-1)
    q = (1.5 * show.randn(12, ahead, vocab)).softmax(-1)
    q[:4] = p[:4, :-1]                                             # four drafts that are always kept
    many = verify(show.randint(0, vocab, 12, ahead), q, p, show.rand(12, ahead))
    order = show.permutation(4)
    p = torch.tensor([[0.25, 0.5, 0.25, 0.0], [0.125, 0.5, 0.25, 0.125]])[:, order].expand(3, -1, -1)       # (3, 2, 4)
    q = torch.tensor([[0.5, 0.125, 0.125, 0.25]])[:, order].expand(3, -1, -1)                               # (3, 1, 4)
    guesses = order.argsort()[torch.tensor([[0], [0], [3]])]       # (3, 1)
    chance = torch.tensor([[0.5], [0.25], [0.0]])                  # (3, 1)
    kept, after = zip(many, verify(guesses, q, p, chance))
    also = "then in three drafts of one: chance · q = p, chance · q < p, and p = 0"
    show(kept, f"how many of {ahead} guesses stay, in 12 drafts; {also}", points=1)
    show(after, "what the next token is drawn from, in all of them", points=2)

# %% tags=["mistakes"]
def verified(passes=None, count=None, missing=None, normalise=True, place=0):
    """Checking with something changed."""
    def answer(guesses, q, p, chance):
        theirs = q.gather(-1, guesses[..., None])[..., 0]
        ours = p[:, :-1].gather(-1, guesses[..., None])[..., 0]
        passed = chance * theirs < ours if passes is None else passes(chance, theirs, ours)
        kept = passed.long().cumprod(dim=1).sum(dim=1) if count is None else count(passed)
        row, padded = torch.arange(len(guesses)), torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
        at = (kept + place).clamp(0, p.shape[1] - 1)
        left = (p[row, at] - padded[row, at]).clamp(min=0) if missing is None else missing(p[row, at], padded[row, at])
        return kept, left / left.sum(dim=-1, keepdim=True) if normalise else left
    return answer


def last_without_zeros(guesses, q, p, chance):
    kept, _ = verify(guesses, q, p, chance)
    row, at = torch.arange(len(guesses)), kept.clamp(max=q.shape[1] - 1)
    left = (p[row, kept] - q[row, at]).clamp(min=0)
    return kept, left / left.sum(dim=-1, keepdim=True)


def always_last(guesses, q, p, chance):
    return verify(guesses, q, p, chance)[0], p[:, -1]


mistake("verify", verified(count=lambda passed: passed.sum(dim=1)),
        "You count all guesses that pass, even those after a refused one. They were made for a text that will not be "
        "written: stop at the first refusal.")
mistake("verify", verified(passes=lambda chance, theirs, ours: theirs <= ours),
        "`chance` has no effect. A guess that the draft likes better than the model does is kept with probability p / q.")
mistake("verify", verified(passes=lambda chance, theirs, ours: theirs < ours),
        "`chance` has no effect. A guess that the draft likes better than the model does is kept with probability p / q.")
mistake("verify", verified(passes=lambda chance, theirs, ours: chance * theirs <= ours),
        "Compare with `<`, not `<=`: a guess that the model gives no probability must never stay.")
mistake("verify", verified(passes=lambda chance, theirs, ours: chance < ours),
        "A guess is kept with probability p(x). It was already drawn with q(x): keep it with p(x) / q(x).")
mistake("verify", verified(passes=lambda chance, theirs, ours: chance * ours < theirs),
        "The ratio is upside down: this keeps with q / p. Keep with p / q, at most 1.")
mistake("verify", verified(passes=lambda chance, theirs, ours: chance * theirs >= ours),
        "These are the guesses that are *refused*. A guess passes where chance · q(x) < p(x).")
mistake("verify", verified(missing=lambda p, q: p),
        "After a refusal you draw from p itself. What was kept already has its share of p: draw from max(0, p − q).")
mistake("verify", verified(missing=lambda p, q: torch.where(q.sum(-1, keepdim=True) > 0, (q - p).clamp(min=0), p)),
        "This is max(0, q − p): what the draft gives too *much* of. Draw from what is missing: max(0, p − q).")
mistake("verify", verified(missing=lambda p, q: (p - q).abs()),
        "Where q is larger than p nothing is missing: negative differences become 0, not positive.")
mistake("verify", verified(normalise=False), "What is missing does not add up to 1. Divide each row by its sum.")
mistake("verify", verified(place=1),
        "You take the distributions one row too far. With `kept` guesses kept, the refused one is in row `kept`.")
mistake("verify", verified(place=-1),
        "You take the distributions one row too early. Rows count from 0: the refused guess is in row `kept`.")
mistake("verify", last_without_zeros,
        "Where all guesses stay, you still subtract a row of q. Nothing was guessed there: the next token is drawn from "
        "the last row of p.")
mistake("verify", always_last,
        "The last row of p is right only where all guesses stay. After a refusal the next token comes from the row of the refused guess.")


def draft_by_draft(guesses, q, p, chance):
    kept, after = [], []
    for g, theirs, ours, dice in zip(guesses.tolist(), q, p, chance, strict=True):
        count = 0
        while count < len(g) and dice[count] * theirs[count, g[count]] < ours[count, g[count]]:
            count += 1
        left = ours[count] - theirs[count] if count < len(g) else ours[count]
        left = torch.where(left > 0, left, 0.0)
        kept.append(count)
        after.append(left / left.sum())
    return torch.tensor(kept), torch.stack(after)


alternative("verify", draft_by_draft)
for change in ("q.gather(-1, guesses[..., None])[..., 0] → q.gather(-1, guesses[..., None])[..., -1]",
               "p[:, :-1].gather(-1, guesses[..., None])[..., 0] → p[:, :-1].gather(-1, guesses[..., None])[..., -1]"):
    equivalent("verify", change, "After `gather` that axis has one entry.")
equivalent("verify", "p[:, :-1] → p[:, :]", "`gather` reads only as many rows as it has indices.")
for rows in (":2", ":"):
    equivalent("verify", f"p[:, :1] → p[:, {rows}]", "More rows of zeros than one are never read.")

# %% [markdown]
# ### Task 6 · Investigate: when does guessing pay?   ●●●●○ · 20 minutes · 4 points
#
# This question is open: several answers can be right. *How does the gain of speculative decoding depend on the sampler?*
# Take the small model, a loop, and a draft. You may copy the lesson's cells: its first ones and 2.2 (the model and its cache), 7.2
# (the table of bigrams), 7.3 (the draft and the check) and 7.4 (the loop). Or use `txlib.generation.speculate(model, draft, ids,
# max_new_tokens=…, ahead=4, do_sample=True, seed=0)`, also with `temperature=…` or `top_p=…`; its result has `.tokens`, `.calls`,
# `.guessed` and `.accepted`. The draft may also be an idea of your own. Vary one thing: the temperature,
# top-p, the number of guesses, the draft, or the kind of text. Measure the share of guesses kept, or the tokens per
# call, with at least three seeds for each setting. A share is worth comparing only from a few hundred guesses on.
# **Guess the outcome before you measure.** Then write here:
#
# 1. what you varied, what you expected, and why;
# 2. a table or a list of what you measured, with its spread over the seeds;
# 3. what you conclude, one reason for it that the measurement supports, and one question that it leaves open.
#
# Put your code into new cells below. Your teacher reads and grades this.

# %% [markdown] nbgrader={"grade_id": "when-it-pays", "solution": true, "grade": true, "points": 4, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# 1. I varied the temperature, of model and draft together: 0.3, 0.7, 1.0, 1.3. The draft was the table of bigrams, with 4
# guesses per call; 100 tokens after *Alice was*, seeds 0 to 2. I expected more guesses to be kept at a low temperature,
# because both then choose among few tokens.
#
# 2. Share of guesses kept, mean (lowest to highest): T = 0.3: 0.14 (0.10 to 0.19); 0.7: 0.18 (0.17 to 0.20); 1.0: 0.17
# (0.15 to 0.18); 1.3: 0.17 (0.13 to 0.20).
#
# 3. My expectation was wrong: no difference is larger than the spread; if anything, fewer guesses are kept at a low
# temperature. A guess is kept with probability Σ min(p, q). Two cold distributions are nearly all on one token each, so this is
# near 1 where they have the same best token and near 0 elsewhere. My explanation is that the table has another best token at
# most positions. The share is below α = 0.4 because after a refusal the other guesses of the call count as not kept. The
# measurement leaves open how a draft would do that is a language model itself: it may have the same best token more often.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: one thing is varied, the rest kept the same, and an expectation with a reason was written down. 1 point: numbers
# for at least three settings and three seeds each, with their spread. 1 point: the conclusion follows from the numbers,
# even where it contradicts the expectation; differences within the spread are not called differences. 1 point: a
# reason in terms of p and q (or of α and γ), and an honest limit of the measurement.

# %%
check.summary()
