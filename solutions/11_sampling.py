# %% [markdown]
# # Exercise 11 · Sampling
#
# Five tasks, 15 points, about 70 minutes; the last one is an open investigation. They belong to lesson
# [11 Sampling](../notebooks/11_sampling.ipynb). Tasks 1 to 3 are the *core*, tasks 4 and 5 are *more*. Run the cells from the
# top; fill in where it says *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · As open as you like   ●●●○○ · 12 minutes · 2 points
#
# A temperature of 0.7 changes much after one prompt and little after another. So go the other way: say how *open* the choice
# should be, and find the temperature for it. For each row of logits, return the $T$ at which the distribution
# $\text{softmax}(z / T)$ has the entropy `nats`. The lesson proved that entropy never falls when $T$ rises, so there is one such
# temperature; `nats` is above 0 and below the logarithm of the vocabulary's size, which no temperature exceeds. The temperature is
# between 0.01 and 100: halve this interval again and again, on a logarithmic scale: the middle of 0.01 and 100 is 1,
# $\sqrt{\text{low} \cdot \text{high}}$. Each row has its own temperature.
#
# <details><summary>Hint 1: how to halve</summary>
#
# Keep two temperatures, `low` and `high`. Take one between them. Is the entropy there too large? Then it becomes the new
# `high`, else the new `low`.
# </details>
# <details><summary>Hint 2: how often?</summary>
#
# Each halving makes the interval's ratio its square root: from 10,000 to 100, to 10, to 3.2. Forty are plenty.
# </details>
# <details><summary>Hint 3: all rows at once</summary>
#
# `low` and `high` have one number per row; `torch.where(too_open, middle, high)` moves only those that must move.
# `torch.special.xlogy(p, p)` is $p \ln p$, and 0 for $p = 0$.
# </details>

# %% nbgrader={"grade_id": "temperature-for", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def temperature_for(logits: Float[Tensor, "batch vocab"], nats: float) -> Float[Tensor, "batch"]:
    """For each row, the temperature at which its distribution has this entropy."""
    ### BEGIN SOLUTION
    low, high = torch.full((2, len(logits)), 0.01)                 # (batch,) each
    high = 1 / low
    for _ in range(40):
        middle = (low * high).sqrt()                               # (batch,)
        p = (logits / middle[:, None]).softmax(dim=-1)             # (batch, vocab)
        too_open = -torch.special.xlogy(p, p).sum(dim=-1) > nats   # (batch,)
        low, high = torch.where(too_open, low, middle), torch.where(too_open, middle, high)
    return (low * high).sqrt()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-temperature-for", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("temperature-for", rtol=3e-3) as show:
    vocab = show.random_size(8, 12)
    logits = 2 * show.randn(3, vocab)
    for nats in (0.5, 1.5):
        show(temperature_for(logits, nats), f"three distributions, {nats} nats")
    show(temperature_for(torch.cat([0.1 * show.randn(1, vocab), 9 * show.randn(1, vocab)]), 1.0), "one flat, one sharp: 1 nat")
    p = (2 * show.randn(vocab)).softmax(dim=-1)
    scale = torch.tensor([[0.0101], [1.0], [99.7]])                # (3, 1)
    show(temperature_for(scale * p.log(), float((-p * p.log()).sum())), "three that lie far apart")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def halved(measure=None, low=0.01, high=100.0, middle=None, upside_down=False, wanted=None):
    """The search with something changed: measure(logits, T) -> what is compared, middle(low, high)."""
    def entropy(logits, T):
        p = (logits / T[:, None]).softmax(dim=-1)
        return -torch.special.xlogy(p, p).sum(dim=-1)

    def answer(logits, nats):
        below, above = torch.full((len(logits),), low), torch.full((len(logits),), high)
        for _ in range(40):
            between = (below * above).sqrt() if middle is None else middle(below, above)
            found = (entropy if measure is None else measure)(logits, between)
            open_ = found > (nats if wanted is None else wanted(nats))
            open_ = ~open_ if upside_down else open_
            below, above = torch.where(open_, below, between), torch.where(open_, between, above)
        return (below * above).sqrt()
    return answer


def entropy_of(p):
    return -torch.special.xlogy(p, p).sum(dim=-1)


def one_for_all(logits, nats):
    return temperature_for(logits, nats)[:1].expand(len(logits)).clone()


mistake("temperature-for", halved(upside_down=True),
        "You go the wrong way: where the entropy is too large, the temperature must become *lower*, so the middle becomes the "
        "new `high`.")
mistake("temperature-for", halved(measure=lambda z, T: entropy_of((z / T[:, None]).softmax(dim=-1)) / torch.tensor(2.0).log()),
        "This entropy is in bits: the logarithm has base 2. Nats use the natural logarithm, `log`.")
mistake("temperature-for", lambda logits, nats: 1 / temperature_for(logits, nats),
        "This is 1/T, by which the logits would be *multiplied*. Return the T that divides them: above 1 the distribution becomes "
        "flatter.")
mistake("temperature-for", one_for_all, "All rows get the temperature of the first one. Each row has its own.")
mistake("temperature-for", halved(low=0.5, high=2.0),
        "The interval is too narrow: the temperature may be anywhere between 0.01 and 100.")
mistake("temperature-for", lambda logits, nats: halved(
            measure=lambda z, T: entropy_of((z / T[:, None]).softmax(dim=-1)).mean().expand(len(z)))(logits, nats),
        "You compare the *mean* entropy of all rows. Each row must have this entropy by itself.")
mistake("temperature-for", halved(wanted=lambda nats: 2.718281828 ** nats),
        "You compare with e to the nats: that is a perplexity, how many equal tokens there would be. Compare entropies.")
def moved(low_moves=True, high_moves=True):
    def answer(logits, nats):
        low, high = torch.full((len(logits),), 0.01), torch.full((len(logits),), 100.0)
        for _ in range(40):
            middle = (low * high).sqrt()
            too_open = entropy_of((logits / middle[:, None]).softmax(dim=-1)) > nats
            low = torch.where(too_open, low, middle) if low_moves else low
            high = torch.where(too_open, middle, high) if high_moves else high
        return (low * high).sqrt()
    return answer


mistake("temperature-for", halved(high=1.0),
        "The interval is too narrow: the temperature may be anywhere between 0.01 and 100.")
mistake("temperature-for", halved(measure=lambda z, T: entropy_of((z / T[:, None]).softmax(dim=0))),
        "Your softmax runs over the rows. Each row is a distribution over the vocabulary, the last axis.")
mistake("temperature-for", halved(measure=lambda z, T: entropy_of(z.softmax(dim=-1))),
        "You measure the same entropy each time. Divide the logits by the temperature in the middle.")
for moves in ((True, False), (False, True), (False, False)):
    mistake("temperature-for", moved(*moves),
            "Each halving moves one end of the interval to the middle: `high` where the entropy is too large, else `low`.")
equivalent("temperature-for", "1 / low → 1 // low", "In float32 0.01 is a little smaller: it goes 100 times into 1.")
equivalent("temperature-for", "1 / low → 2 / low", "The interval may be wider: the temperature is in it.")
for change in ("range(40) → range(39)", "range(40) → range(1, 40)", "range(40) → range(41)"):
    equivalent("temperature-for", change, "The last halvings change less than the check can see.")
equivalent("temperature-for", "-torch.special.xlogy(p, p).sum(dim=-1) > nats → -torch.special.xlogy(p, p).sum(dim=-1) >= nats",
           "Where the middle has just this entropy, either end may move to it.")
alternative("temperature-for", halved(middle=lambda low, high: (low + high) / 2))


def by_newton(logits, nats):
    grid = torch.logspace(-2, 2, 20001)
    found = torch.stack([entropy_of((row / grid[:, None]).softmax(dim=-1)) for row in logits])
    return grid[(found - nats).abs().argmin(dim=1)]


alternative("temperature-for", by_newton)

# %% [markdown]
# ### Task 2 · The nucleus, and never fewer than …   ●●●○○ · 12 minutes · 3 points
#
# Given probabilities, keep the nucleus: as few of the likeliest tokens as have *at least* `top_p` together. But keep at
# least `at_least` tokens, even where fewer have `top_p` (a beam search, for example, needs several). All others get 0, and
# the rest is divided by its sum, so that it adds up to 1 again. Each row of the batch has its own nucleus. Return the tokens
# in their old order. No two probabilities in a row are equal. Don't use `txlib`'s own filters.
#
# <details><summary>Hint 1: the token that crosses</summary>
#
# For each token, sum up what the likelier ones have *before* it. While that is below `top_p`, the token is needed, also
# the one that crosses.
# </details>
# <details><summary>Hint 2: at least that many</summary>
#
# In the sorted order, the first `at_least` are kept whatever their sum. `torch.arange(vocab) < at_least`.
# </details>
# <details><summary>Hint 3: back into the vocabulary's order</summary>
#
# `sort` returns `(values, order)`. `torch.zeros_like(p).scatter(-1, order, values)` puts each value back where it came
# from.
# </details>

# %% nbgrader={"grade_id": "nucleus", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def nucleus(p: Float[Tensor, "batch vocab"], top_p: float, at_least: int = 1) -> Float[Tensor, "batch vocab"]:
    """The fewest likeliest tokens with at least top_p, never fewer than at_least; renormalized, in the old order."""
    ### BEGIN SOLUTION
    value, order = p.sort(dim=-1, descending=True)                 # (batch, vocab): likeliest first
    before = value.cumsum(dim=-1) - value                          # (batch, vocab): what likelier ones have
    kept = (before < top_p) | (torch.arange(p.shape[-1]) < at_least)             # (batch, vocab)
    kept = torch.zeros_like(p).scatter(-1, order, value * kept)    # (batch, vocab): in the vocabulary's order
    return kept / kept.sum(dim=-1, keepdim=True)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-nucleus", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("nucleus") as show:
    show(nucleus(torch.tensor([[0.1, 0.45, 0.15, 0.3]]), 0.7), "0.1, 0.45, 0.15, 0.3 with top_p = 0.7")
    show(nucleus(torch.tensor([[0.0625, 0.5, 0.1875, 0.25]]), 0.75), "two tokens have exactly top_p = 0.75")
    vocab = show.random_size(6, 9)
    places = torch.stack([show.permutation(vocab) for _ in range(4)])            # each row in another order
    p = (2.5 * torch.arange(vocab)[None] / torch.tensor([[1.0], [2.0], [4.0], [8.0]])).softmax(dim=-1).gather(-1, places)
    for top_p, at_least in ((0.3, 1), (0.85, 1), (0.5, 3), (0.5, vocab)):
        show(nucleus(p, top_p, at_least), f"four rows, top_p = {top_p}, at least {at_least}")

# %% tags=["mistakes"]
def nucleus_where(rule, normalise=True):
    """A nucleus with another rule: (sorted values, their running sum, place, top_p, at_least) -> kept."""
    def answer(p, top_p, at_least=1):
        value, order = p.sort(dim=-1, descending=True)
        place = torch.arange(p.shape[-1])
        kept = torch.zeros_like(p).scatter(-1, order, value * rule(value, value.cumsum(dim=-1), place, top_p, at_least))
        return kept / kept.sum(dim=-1, keepdim=True) if normalise else kept
    return answer


def in_sorted_order(p, top_p, at_least=1):
    value = p.sort(dim=-1, descending=True).values
    kept = value * ((value.cumsum(-1) - value < top_p) | (torch.arange(p.shape[-1]) < at_least))
    return kept / kept.sum(dim=-1, keepdim=True)


def gathered_back(p, top_p, at_least=1):
    value, order = p.sort(dim=-1, descending=True)
    kept = (value * ((value.cumsum(-1) - value < top_p) | (torch.arange(p.shape[-1]) < at_least))).gather(-1, order)
    return kept / kept.sum(dim=-1, keepdim=True)


def unsorted(p, top_p, at_least=1):
    kept = p * ((p.cumsum(-1) - p < top_p) | (torch.arange(p.shape[-1]) < at_least))
    return kept / kept.sum(dim=-1, keepdim=True)


def rarest_first(p, top_p, at_least=1):
    value, order = p.sort(dim=-1)
    kept = torch.zeros_like(p).scatter(
        -1, order, value * ((value.cumsum(-1) - value < top_p) | (torch.arange(p.shape[-1]) < at_least)))
    return kept / kept.sum(dim=-1, keepdim=True)


def by_the_first_row(p, top_p, at_least=1):
    count = int((nucleus(p[:1], top_p, at_least) > 0).sum())
    kept = p * (p >= p.topk(count).values[..., -1:])
    return kept / kept.sum(dim=-1, keepdim=True)


def soft_again(p, top_p, at_least=1):
    return p.masked_fill(nucleus(p, top_p, at_least) == 0, -torch.inf).softmax(dim=-1)


def by_share(p, top_p, at_least=1):
    kept = p * ((p >= top_p * p.amax(dim=-1, keepdim=True)) | (p >= p.topk(at_least).values[..., -1:]))
    return kept / kept.sum(dim=-1, keepdim=True)


def one_sum(p, top_p, at_least=1):
    kept = p * (nucleus(p, top_p, at_least) > 0)
    return kept / kept.sum()


def right_rule(value, total, place, top_p, at_least):
    return (total - value < top_p) | (place < at_least)


forbid("nucleus", ("keep_top_p", "Sampling", "GenerationConfig"))
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (total <= top_p) | (place < at_least)),
        "The token that crosses `top_p` is cut off. It stays: the nucleus has *at least* `top_p`. Compare what the "
        "likelier tokens *before* it have.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value <= top_p) | (place < at_least))),
        "Where the likelier tokens have exactly `top_p`, they are enough: compare with `<`, not `<=`.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: total - value < top_p),
        "`at_least` has no effect. Of the sorted tokens, the first `at_least` stay, whatever their sum.")
mistake("nucleus", nucleus_where(right_rule, normalise=False),
        "What is kept does not add up to 1. Divide each row by its sum.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value < top_p) & (place >= at_least)) | (place == 0)),
        "`at_least` has the opposite effect: it cuts tokens off. Join both rules with `|`, *or*.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value < top_p) | (place <= at_least))),
        "One token too many: ranks count from 0, so the first `at_least` tokens have a rank *below* `at_least`.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value < top_p) & (place < at_least)) | (place < at_least)),
        "This keeps exactly `at_least` tokens everywhere: that is top-k. The nucleus may be larger.")
mistake("nucleus", in_sorted_order,
        "The result is in sorted order. Put each value back where its token is in the vocabulary: `scatter` with "
        "the `order` that `sort` returned.")
mistake("nucleus", gathered_back,
        "`gather` with `order` does not undo the sort; it sorts a second time. Use `scatter` to undo it.")
mistake("nucleus", unsorted,
        "You add up in the vocabulary's order. Sort first: the nucleus takes the *likeliest* tokens.")
mistake("nucleus", rarest_first, "You sorted in rising order, so the rarest tokens are kept: use `descending=True`.")
mistake("nucleus", by_the_first_row,
        "All rows keep as many tokens as the first. Each row has its own nucleus: sum along the last axis only.")
mistake("nucleus", one_sum,
        "You divide by the sum of the whole batch. Each row adds up to 1: `sum(dim=-1, keepdim=True)`.")
mistake("nucleus", soft_again,
        "You took the softmax of probabilities. They are probabilities already: divide by their sum.")
mistake("nucleus", by_share,
        "This keeps what has at least `top_p` times the *largest* probability. That is min-p. The nucleus adds up.")
alternative("nucleus", lambda p, top_p, at_least=1: torch.stack([
    (kept := torch.tensor([
        value if (row[row > value].sum() < top_p or (row > value).sum() < at_least) else 0.0 for value in row]))
    / kept.sum() for row in p]))

equivalent("nucleus", "torch.zeros_like(p) → torch.ones_like(p)", "`scatter` writes every entry.")

# %% [markdown]
# ### Task 3 · A penalty that forgets   ●●●○○ · 12 minutes · 3 points
#
# The lesson's repetition penalty never forgets: a *the* at the start of the text counts as much as one just written.
# Build one with a window. In each row of the batch, take the *last* `window` tokens of `ids` (or all, where there are
# fewer). Each token that occurs among them is made less likely, **once**, however often it occurs there: a positive
# logit is divided by the penalty, a negative one is multiplied. A window of 0 changes nothing. Do not change `logits`
# in place.
#
# <details><summary>Hint 1: which tokens?</summary>
#
# `ids[:, -window:]` are the last `window`, except for `window = 0`: `ids[:, -0:]` is *all* of them. Another way to
# write it: `ids[:, max(0, length - window):]`.
# </details>
# <details><summary>Hint 2: once</summary>
#
# Make a boolean matrix `seen` of shape (batch, vocab) first: `zeros(…, dtype=torch.bool).scatter(1, recent, True)`.
# </details>
# <details><summary>Hint 3: the sign</summary>
#
# `torch.where(logits > 0, logits / penalty, logits * penalty)` lowers all of them; another `where` with `seen` chooses.
# </details>

# %% nbgrader={"grade_id": "penalty", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def penalize_recent(
    logits: Float[Tensor, "batch vocab"], ids: Int[Tensor, "batch length"], penalty: float, window: int
) -> Float[Tensor, "batch vocab"]:
    """Logits of the tokens among the last `window` of each row, lowered once: divided, or multiplied if negative."""
    ### BEGIN SOLUTION
    recent = ids[:, max(0, ids.shape[1] - window):]                # (batch, window)
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, recent, True)   # (batch, vocab)
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)          # (batch, vocab)
    return torch.where(seen, lower, logits)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-penalty", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("penalty") as show:
    vocab = show.random_size(8, 10)
    size = 0.5 + show.rand(2, vocab)
    logits = size * torch.where(torch.arange(vocab) % 2 == 0, 1.0, -1.0)          # every other one negative
    places = torch.stack([show.permutation(vocab) for _ in range(2)])
    ids = torch.cat([places[:, :6], places[:, 4:6], places[:, 4:5]], dim=1)      # two tokens occur again at the end
    for window in (4, 2, 0, 9, show.random_size(10, 17), 50):
        show(penalize_recent(logits.clone(), ids, 1.5, window), f"{vocab} tokens, a text of 9, window = {window}")
    kept = logits.clone()
    penalize_recent(kept, ids, 1.5, 4)
    show(kept, "the logits that you were given, afterwards")

# %% tags=["mistakes"]
forbid("penalty", ("transformers",))


def recent_of(ids, window):
    return ids[:, max(0, ids.shape[1] - window):]


def lowered(seen, lower):
    """Another way to lower, or other tokens: seen(ids, window, logits) and lower(logits, penalty)."""
    def answer(logits, ids, penalty, window):
        return torch.where(seen(ids, window, logits), lower(logits, penalty), logits)
    return answer


def marked(ids, logits):
    return torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)


def right_seen(ids, window, logits):
    return marked(recent_of(ids, window), logits)


def by_sign(logits, penalty):
    return torch.where(logits > 0, logits / penalty, logits * penalty)


def once_each_time(logits, ids, penalty, window):
    result = logits.clone()
    for row, tokens in enumerate(recent_of(ids, window).tolist()):
        for token in tokens:
            result[row, token] = by_sign(result[row, token], penalty)
    return result


def in_place(logits, ids, penalty, window):
    logits.copy_(penalize_recent(logits, ids, penalty, window))
    return logits


mistake("penalty", lowered(right_seen, lambda logits, penalty: logits / penalty),
        "You also divide negative logits: −5 becomes −4.2, which is *likelier*. Multiply where the logit is negative.")
mistake("penalty", lowered(right_seen, lambda logits, penalty: logits * penalty),
        "You also multiply positive logits, so those tokens become *likelier*. Divide where the logit is positive.")
mistake("penalty", lowered(right_seen, lambda logits, penalty: by_sign(logits, 1 / penalty)),
        "You have swapped multiplying and dividing: this *rewards* what was just said.")
mistake("penalty", lowered(right_seen, lambda logits, penalty: logits - penalty),
        "You subtract the penalty. That is the presence penalty of other libraries; here divide, or multiply if the "
        "logit is negative.")
mistake("penalty", lowered(lambda ids, window, logits: marked(ids, logits), by_sign),
        "The window has no effect: the whole text counts. Take the last `window` tokens of each row.")
mistake("penalty", lowered(lambda ids, window, logits: marked(ids[:, :window], logits), by_sign),
        "These are the *first* tokens of the text. Take the last ones.")
mistake("penalty", lowered(lambda ids, window, logits: marked(ids[:, -window:], logits), by_sign),
        "A window of 0 takes the *whole* text: `ids[:, -0:]` is `ids[:, 0:]`. Count from the front: "
        "`ids[:, max(0, length - window):]`.")
mistake("penalty", lowered(lambda ids, window, logits: marked(recent_of(ids, window), logits).any(dim=0), by_sign),
        "Each row is penalized for what *other* rows have written. `seen` belongs to its own row.")
mistake("penalty", once_each_time,
        "A token that occurs twice is penalized twice. Once is enough: mark the tokens in a boolean matrix first.")
mistake("penalty", lowered(lambda ids, window, logits: ~right_seen(ids, window, logits), by_sign),
        "You penalize the *other* tokens: those that do not occur in the window.")
mistake("penalty", in_place,
        "The result is right, but the `logits` that you were given have changed as well. The caller may still need them.")


def by_loops(logits, ids, penalty, window):
    result = logits.clone()
    for row in range(len(ids)):
        for token in set(ids[row].tolist()[max(0, ids.shape[1] - window):]):
            result[row, token] = result[row, token] / penalty if result[row, token] > 0 else result[row, token] * penalty
    return result


mistake("penalty", lowered(lambda ids, window, logits: marked(ids[:, ids.shape[1] - window:], logits), by_sign),
        "Where the window is longer than the text, `length - window` is negative, and a negative start counts from the end. "
        "Take `max(0, length - window)`.")
alternative("penalty", by_loops)
equivalent("penalty", "logits > 0 → logits >= 0", "Divided or multiplied, 0 stays 0.")

# %% [markdown]
# ### Task 4 · Typical sampling   ●●●●○ · 15 minutes · 3 points
#
# People do not always say what is likeliest. On average, a token of a human text is about as surprising as the model
# expects it to be. Meister et al. (2023, *Locally Typical Sampling*) turn that into a filter. The surprise of token $i$ is
# $-\ln p_i$; the expected surprise is the entropy $H = -\sum_i p_i \ln p_i$. Rank the tokens by how far their surprise is
# from the expected one,
#
# $$\big|\!-\!\ln p_i - H\,\big|,$$
#
# nearest first, and take tokens in this order until they have *at least* `mass` together. All others get 0, and the rest is
# divided by its sum. So a very likely token can be cut off, because it would be *too* predictable. Do this for each row by
# itself, and return the tokens in their old order. No probability is 0, and no two distances are equal.
#
# <details><summary>Hint 1: what is different from top-p?</summary>
#
# Only the order in which tokens are taken. Sort the distances in rising order, and bring the probabilities into that order.
# </details>
# <details><summary>Hint 2: in that order</summary>
#
# `order = distance.argsort(-1)` and `p.gather(-1, order)`. Then as in the lesson: what do those before it have together?
# </details>
# <details><summary>Hint 3: back</summary>
#
# `torch.zeros_like(p).scatter(-1, order, values)` puts each value back where its token was.
# </details>

# %% nbgrader={"grade_id": "typical", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def typical(p: Float[Tensor, "batch vocab"], mass: float) -> Float[Tensor, "batch vocab"]:
    """The fewest most typical tokens with at least `mass`; renormalized, in the old order."""
    ### BEGIN SOLUTION
    surprise = -p.log()                                            # (batch, vocab)
    expected = (p * surprise).sum(dim=-1, keepdim=True)            # (batch, 1): the entropy
    order = (surprise - expected).abs().argsort(dim=-1)            # (batch, vocab): most typical first
    value = p.gather(-1, order)                                    # (batch, vocab)
    value = value * (value.cumsum(dim=-1) - value < mass)          # what those before it have
    kept = torch.zeros_like(p).scatter(-1, order, value)           # (batch, vocab): in the vocabulary's order
    return kept / kept.sum(dim=-1, keepdim=True)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-typical", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("typical") as show:
    vocab = show.random_size(8, 11)
    p = (torch.tensor([[0.3], [0.8], [1.5], [2.5]]) * show.randn(4, vocab)).softmax(dim=-1)
    for mass in (0.3, 0.6, 0.9):
        show(typical(p, mass), f"four rows, mass = {mass}")
    likely = 0.2 * show.rand(1, vocab)
    likely[0, 2] = 4.0
    show(typical(likely.softmax(dim=-1), 0.2), "one token far likelier than all others, mass = 0.2")
    p = torch.tensor([[0.5, 0.25, 0.1875, 0.0625]])[:, show.permutation(4)]
    show([typical(p, mass) for mass in (0.25, 0.75)], f"{p[0].tolist()}: one has exactly 0.25, two have exactly 0.75")

# %% tags=["mistakes"]
def typical_with(distance=None, rule=None, normalise=True, place_back=True):
    """Typical sampling with another distance(p, surprise, entropy), or rule(value, total, mass) -> kept."""
    def answer(p, mass):
        surprise = -p.log()
        entropy = (p * surprise).sum(dim=-1, keepdim=True)
        far = (surprise - entropy).abs() if distance is None else distance(p, surprise, entropy)
        order = far.argsort(dim=-1)
        value = p.gather(-1, order)
        total = value.cumsum(dim=-1)
        value = value * (total - value < mass if rule is None else rule(value, total, mass))
        kept = torch.zeros_like(p).scatter(-1, order, value) if place_back else value
        return kept / kept.sum(dim=-1, keepdim=True) if normalise else kept
    return answer


forbid("typical", ("TypicalLogitsWarper", "transformers"))
mistake("typical", typical_with(distance=lambda p, surprise, entropy: surprise),
        "The likeliest tokens come first: that is top-p. Too likely is as bad as too rare: take the *absolute* difference between "
        "surprise and entropy.")
mistake("typical", typical_with(distance=lambda p, surprise, entropy: -(surprise - entropy).abs()),
        "The *least* typical tokens are kept. Sort the distances in rising order: nearest first.")
mistake("typical", typical_with(distance=lambda p, surprise, entropy: (surprise - surprise.mean(-1, keepdim=True)).abs()),
        "This is the plain mean of the surprises. Expected means weighted: each surprise counts with its probability.")
mistake("typical", typical_with(distance=lambda p, surprise, entropy: (surprise - entropy / torch.tensor(2.0).log()).abs()),
        "The entropy is in bits, the surprise in nats. Use one logarithm for both.")
mistake("typical", typical_with(distance=lambda p, surprise, entropy: (surprise - entropy.mean()).abs()),
        "All rows share one entropy. Each row has its own: sum along the last axis, `keepdim=True`.")
mistake("typical", typical_with(rule=lambda value, total, mass: (total <= mass) | (total == value)),
        "The token that crosses `mass` is cut off. It stays: what is kept has *at least* that much.")
mistake("typical", typical_with(rule=lambda value, total, mass: total - value <= mass),
        "Where those before have exactly `mass`, they are enough: compare with `<`, not `<=`.")
mistake("typical", typical_with(normalise=False), "What is kept does not add up to 1. Divide each row by its sum.")
mistake("typical", typical_with(place_back=False),
        "The result is in the order of typicality. Put each value back where its token was: `scatter`.")


def token_by_token(p, mass):
    rows = []
    for row in p:
        surprise = -row.log()
        order = (surprise - (row * surprise).sum()).abs().argsort().tolist()
        kept, total = torch.zeros_like(row), 0.0
        for token in order:
            if total >= mass:
                break
            kept[token] = row[token]
            total += row[token].item()
        rows.append(kept / kept.sum())
    return torch.stack(rows)


alternative("typical", token_by_token)
equivalent("typical", "-p.log() → p.log()", "Surprise and entropy both change their sign: the distance stays.")
equivalent("typical", "p.log() → p.log2()", "All distances have the same factor: the order stays.")
equivalent("typical", "surprise - expected → expected - surprise", "A distance has no sign.")
equivalent("typical", "torch.zeros_like(p) → torch.ones_like(p)", "`scatter` writes every entry.")

# %% [markdown]
# ### Task 5 · Investigate: which dial would you ship?   ●●●●○ · 20 minutes · 4 points
#
# This question is open: several answers can be right. Lesson 11 found temperature, top-p and top-k on one road between
# quality and diversity. *Does min-p, typical sampling (task 4), or a penalty leave that road?* Choose one of them, or a
# combination. Measure perplexity and distinct-3 as section 5 does, for at least three settings and three seeds each, and do
# the same for one of the lesson's dials. You may use `txlib` and copy cells of the lesson: those of sections 1 (the model, the human
# text, `distinct`), 3 (the samplers) and 5 (`write_many`, `perplexity_of`).
#
# - *Typical sampling* takes probabilities, and `write_many` wants a change of logits:
#   `lambda z: typical(z.softmax(dim=-1), mass).log()` is one (the logarithm of 0 is $-\infty$: cut).
# - *A penalty* must see the text so far: `txlib.generation.generate` with `repetition_penalty=…` does. It returns lists of tokens,
#   and `perplexity_of` wants one tensor: `torch.tensor(…)`. (This model practically never ends a text, so all have the same length.)
#
# **Guess the outcome before you measure.** And read ten texts of your favorite
# setting, all ten. Then write here:
#
# 1. what you compared, what you expected, and why;
# 2. a table or a list of what you measured, with its spread over the seeds;
# 3. what you conclude, what the ten texts show that the numbers do not, and why perplexity under the same model is a
#    doubtful judge.
#
# Put your code into new cells below. Your teacher reads and grades this.

# %% [markdown] nbgrader={"grade_id": "which-dial", "solution": true, "grade": true, "points": 4, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# 1. Min-p against the temperature; 32 texts of 60 tokens after *Alice was*, seeds 0 to 2. I expected both to be on the same
# road, because the lesson's three dials are.
#
# 2. Perplexity and distinct-3 (lowest to highest of three seeds). T = 0.7: 11.3 to 12.2, 88.8% to 90.2%; 0.85: 18.0 to 18.5,
# 94.9% to 95.7%; 1: 28.1 to 30.0, 97.1% to 97.6%. Min-p 0.2: 7.8 to 8.0, 78.4% to 82.1%; 0.1: 9.2 to 9.7, 87.3% to 88.6%;
# 0.05: 11.4 to 12.0, 91.1% to 92.7%.
#
# 3. At a perplexity near 12, distinct-3 is about 2 points higher with min-p than with T = 0.7, and the seeds' ranges do not
# touch. So min-p is a little above the road, but I measured one prompt and one small model. In ten texts at min-p 0.05, two or
# three words do not exist, and no text keeps its subject for more than a sentence. Neither number shows that. The judge is the
# model that wrote the texts: it finds probable what it believes in, nonsense included, and so it is bound to reward a filter
# that cuts its tail.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: one sampler against a dial of the lesson, all else equal, with an expectation and its reason. 1 point: both
# measures for at least three settings and three seeds each, with their spread. 1 point: the conclusion follows from the
# numbers (nearly the same road is a fine answer); differences within the spread are not called differences. 1 point:
# something seen in the ten texts, and that the judge rewards what it finds probable itself, sense or not.

# %%
check.summary()
