# %% [markdown]
# # Exercise 09 · Sampling
#
# Five tasks, 14 points, about 60 minutes. They belong to lesson [09 Sampling](../notebooks/09_sampling.ipynb). Run
# the cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you
# like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
import torch
from jaxtyping import Float, Int
from torch import Tensor

from txlib.grading import check

# %% [markdown]
# ### Task 1 · How open is the choice?   ●●○○○ · 8 minutes · 2 points
#
# Return the entropy, in nats, of the distribution that remains at temperature $T$:
#
# $$p = \text{softmax}(z / T) \qquad\qquad H = -\sum_i p_i \ln p_i$$
#
# Some logits may be $-\infty$: a filter has taken these tokens out. What is not there adds nothing. There may be any
# number of axes in front of the last one.
#
# <details><summary>Hint 1: where does T go?</summary>
#
# Divide the logits by it, before the softmax.
# </details>
# <details><summary>Hint 2: my result is nan</summary>
#
# A token with probability 0 has logarithm $-\infty$, and $0 \cdot (-\infty)$ is `nan`. Its limit is 0.
# </details>
# <details><summary>Hint 3: two ways out</summary>
#
# `torch.special.xlogy(p, p)` is $p \ln p$, and 0 for $p = 0$. Or replace the `nan` by 0 before you sum.
# </details>

# %% nbgrader={"grade_id": "entropy", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def entropy(logits: Float[Tensor, "*batch vocab"], temperature: float) -> Float[Tensor, "*batch"]:
    """Entropy in nats of softmax(logits / temperature); a logit of -inf adds nothing."""
    ### BEGIN SOLUTION
    p = (logits / temperature).softmax(dim=-1)                     # (*batch, vocab)
    return -torch.special.xlogy(p, p).sum(dim=-1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-entropy", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("entropy") as show:
    vocab = show.random_size(5, 9)
    show(entropy(torch.zeros(2, vocab), 1.0), f"{vocab} equal tokens, twice")
    logits = 2 * show.randn(3, vocab)
    for temperature in (0.4, 2.5):
        show(entropy(logits, temperature), f"three distributions at T = {temperature}")
    show(entropy(logits[0].masked_fill(torch.arange(vocab) > 2, -torch.inf), 1.5), "one distribution, three tokens left")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake

forbid("*", "txlib")


def spread(p):
    """-p ln p, summed, without nan."""
    return -torch.special.xlogy(p, p).sum(dim=-1)


def warmed_probabilities(logits, temperature):
    p = logits.softmax(dim=-1) / temperature
    return spread(p)


def with_nan(logits, temperature):
    p = (logits / temperature).softmax(dim=-1)
    return -(p * p.log()).sum(dim=-1)


def mean_entropy(logits, temperature):
    p = (logits / temperature).softmax(dim=-1)
    return -torch.special.xlogy(p, p).mean(dim=-1)


def along_first(logits, temperature):
    return spread((logits / temperature).softmax(dim=0))


def with_small_number(logits, temperature):
    p = (logits / temperature).softmax(dim=-1)
    return -(p * (p + 0.01).log()).sum(dim=-1)


mistake("entropy", with_nan,
        "Where a logit is −∞, p is 0, its logarithm −∞, and the product `nan`. A token that is not there adds 0: "
        "use `torch.special.xlogy(p, p)`.")
mistake("entropy", lambda logits, temperature: entropy(logits, 1 / temperature),
        "The logits are *multiplied* by the temperature. Divide: above 1 the distribution must become flatter.")
mistake("entropy", lambda logits, temperature: entropy(logits, 1.0), "The temperature has no effect.")
mistake("entropy", warmed_probabilities,
        "You divide the *probabilities* by T. Then they do not add up to 1. Divide the logits, before the softmax.")
mistake("entropy", lambda logits, temperature: entropy(logits, temperature) / torch.tensor(2.0).log(),
        "This is in bits: the logarithm has base 2. Nats use the natural logarithm, `log`.")
mistake("entropy", lambda logits, temperature: -entropy(logits, temperature),
        "The sign is missing: logarithms of probabilities are negative, an entropy is not.")
mistake("entropy", mean_entropy, "This is the mean over the vocabulary. The entropy is the *sum*.")
mistake("entropy", lambda logits, temperature: entropy(logits, temperature).sum(),
        "You sum over all axes. Each distribution has an entropy of its own: sum over the last axis.")
mistake("entropy", along_first,
        "The softmax runs along the first axis. Each distribution lies along the *last* one: `dim=-1`.")
mistake("entropy", with_small_number,
        "A number added inside the logarithm avoids the `nan`, but changes every other term. `xlogy` changes none.")
mistake("entropy", lambda logits, temperature: (logits / temperature).softmax(dim=-1).exp().sum(dim=-1).log(),
        "This is not the entropy. It is the sum of −p · ln p over the vocabulary.")
alternative("entropy", lambda logits, temperature: torch.distributions.Categorical(
    logits=(logits / temperature).masked_fill(logits == -torch.inf, -1e9)).entropy())
alternative("entropy", lambda logits, temperature: -(
    (p := (logits / temperature).softmax(dim=-1)) * p.clamp(min=1e-30).log()).sum(dim=-1))

# %% [markdown]
# ### Task 2 · The nucleus, and never fewer than …   ●●●○○ · 12 minutes · 3 points
#
# Given probabilities, keep the nucleus: the fewest likeliest tokens that have *at least* `top_p` together. But keep at
# least `at_least` tokens, even where fewer have `top_p` (a beam search, for example, needs several). All others get 0,
# and what is left is divided by its sum, so that it adds up to 1 again. Each row of the batch has its own nucleus. The
# order of the tokens stays. No two probabilities are equal, and `txlib`'s own filters are not to be used.
#
# <details><summary>Hint 1: the token that crosses</summary>
#
# For each token, sum up what the likelier ones have *before* it. While that is below `top_p`, the token is needed, also
# the one that crosses.
# </details>
# <details><summary>Hint 2: at least so many</summary>
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
    """The fewest likeliest tokens with at least top_p, never fewer than at_least; renormalised, in the old order."""
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
    for top_p, at_least in ((0.3, 1), (0.85, 1), (0.5, 3)):
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


forbid("nucleus", ("keep_top_p", "Sampling"))
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (total <= top_p) | (place < at_least)),
        "The token that crosses `top_p` is cut off. It stays: the nucleus has *at least* `top_p`. Compare what the "
        "likelier tokens have *before* it.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value <= top_p) | (place < at_least))),
        "Where the likelier tokens have exactly `top_p`, they are enough: compare with `<`, not `<=`.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: total - value < top_p),
        "`at_least` has no effect. Of the sorted tokens, the first `at_least` stay, whatever their sum.")
mistake("nucleus", nucleus_where(right_rule, normalise=False),
        "What is kept does not add up to 1. Divide each row by its sum.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value < top_p) & (place >= at_least)) | (place == 0)),
        "`at_least` works the wrong way round: it cuts tokens off. Join both rules with `|`, *or*.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value < top_p) | (place <= at_least))),
        "One token too many: places count from 0, so the first `at_least` have a place *below* `at_least`.")
mistake("nucleus", nucleus_where(lambda value, total, place, top_p, at_least: (
            (total - value < top_p) & (place < at_least)) | (place < at_least)),
        "This keeps exactly `at_least` tokens everywhere: that is top-k. The nucleus may be larger.")
mistake("nucleus", in_sorted_order,
        "The result is in sorted order. Put each value back where its token stands in the vocabulary: `scatter` with "
        "the `order` that `sort` returned.")
mistake("nucleus", gathered_back,
        "`gather` with `order` is not the way back; it sorts a second time. To undo a sort, use `scatter`.")
mistake("nucleus", unsorted,
        "You add up in the vocabulary's order. Sort first: the nucleus takes the *likeliest* tokens.")
mistake("nucleus", rarest_first, "You sorted upwards, so the rarest tokens are kept: `descending=True`.")
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
def penalise_recent(
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
    for window in (4, 2, 0, 50):
        show(penalise_recent(logits.clone(), ids, 1.5, window), f"{vocab} tokens, a text of 9, window = {window}")
    kept = logits.clone()
    penalise_recent(kept, ids, 1.5, 4)
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
    logits.copy_(penalise_recent(logits, ids, penalty, window))
    return logits


mistake("penalty", lowered(right_seen, lambda logits, penalty: logits / penalty),
        "Negative logits are divided, too: −5 becomes −4.2, which is *likelier*. Multiply where the logit is negative.")
mistake("penalty", lowered(right_seen, lambda logits, penalty: logits * penalty),
        "Positive logits are multiplied, too, so those tokens become *likelier*. Divide where the logit is positive.")
mistake("penalty", lowered(right_seen, lambda logits, penalty: by_sign(logits, 1 / penalty)),
        "Multiplying and dividing are exchanged: this *rewards* what was just said.")
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
        "Each row is punished for what *other* rows have written. `seen` belongs to its own row.")
mistake("penalty", once_each_time,
        "A token that occurs twice is punished twice. Once is enough: mark the tokens in a boolean matrix first.")
mistake("penalty", lowered(lambda ids, window, logits: ~right_seen(ids, window, logits), by_sign),
        "The *other* tokens are punished: those that do not occur in the window.")
mistake("penalty", in_place,
        "The result is right, but the `logits` that you were given have changed as well. The caller may still need them.")


def by_loops(logits, ids, penalty, window):
    result = logits.clone()
    for row in range(len(ids)):
        for token in set(ids[row].tolist()[max(0, ids.shape[1] - window):]):
            result[row, token] = result[row, token] / penalty if result[row, token] > 0 else result[row, token] * penalty
    return result


alternative("penalty", by_loops)

# %% [markdown]
# ### Task 4 · A cache for one head   ●●●●○ · 15 minutes · 3 points
#
# One causal head, called piece by piece. `x` holds the vectors of the *new* tokens only: the whole prompt at the
# first call, then one token or several. `cache` is the pair (keys, values) of all tokens before, or `None` at the
# first call. Return the output for the new tokens, and the cache for the next call. Piece by piece must give the same
# as all at once.
#
# <details><summary>Hint 1: what is in the cache?</summary>
#
# Keys and values of *all* tokens so far, the new ones included: `torch.cat` along the first axis. Queries are not
# needed again.
# </details>
# <details><summary>Hint 2: the mask</summary>
#
# `past` old tokens and $m$ new ones: the scores are (m, past + m). New token $i$ stands at position past + $i$ and may
# see every position up to its own.
# </details>
# <details><summary>Hint 3: the mask in one line</summary>
#
# `torch.ones(m, past + m).tril(past).bool()`: the diagonal is moved to the right by `past`.
# </details>

# %% nbgrader={"grade_id": "cached-head", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def cached_head(
    x: Float[Tensor, "new d"],
    cache: tuple[Tensor, Tensor] | None,
    w_q: Float[Tensor, "d d_k"],
    w_k: Float[Tensor, "d d_k"],
    w_v: Float[Tensor, "d d_k"],
) -> tuple[Float[Tensor, "new d_k"], tuple[Tensor, Tensor]]:
    """Causal attention of the new tokens to all tokens so far; output of the new ones, and (keys, values) of all."""
    ### BEGIN SOLUTION
    q, k, v = x @ w_q, x @ w_k, x @ w_v                            # (new, d_k) each
    past = 0 if cache is None else len(cache[0])
    if past:
        k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])  # (past + new, d_k) each
    score = q @ k.T / q.shape[-1] ** 0.5                           # (new, past + new)
    allowed = torch.ones(score.shape).tril(past).bool()            # (new, past + new)
    return score.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ v, (k, v)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-cached-head", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("cached-head") as show:
    d, d_k = show.random_size(5, 7), show.random_size(3, 4)
    w = [show.randn(d, d_k) for _ in range(3)]
    out, cache = cached_head(show.randn(4, d), None, *w)
    show(out, "a prompt of four tokens")
    for new in (1, 1, 3):
        out, cache = cached_head(show.randn(new, d), cache, *w)
        show(out, "one more token" if new == 1 else f"{new} more tokens at once")
    show(list(cache), "the cache at the end: keys, values")

# %% tags=["mistakes"]
def head_with(mask=None, scale=None, keep=None, join=True):
    """The head with something changed: mask(new, past) -> allowed, scale(d_k), keep(old, q, k, v, new k, new v)."""
    def answer(x, cache, w_q, w_k, w_v):
        q, own_k, own_v = x @ w_q, x @ w_k, x @ w_v
        past = 0 if cache is None else len(cache[0])
        k, v = (torch.cat([cache[0], own_k]), torch.cat([cache[1], own_v])) if past and join else (own_k, own_v)
        past = past if join else 0
        score = q @ k.T * (q.shape[-1] ** -0.5 if scale is None else scale(q.shape[-1]))
        allowed = torch.ones(score.shape).tril(past).bool() if mask is None else mask(len(x), past)
        out = score.masked_fill(~allowed, -1e9).softmax(dim=-1) @ v
        return out, (k, v) if keep is None else keep(cache, q, k, v, own_k, own_v)
    return answer


def keep_first(old, q, k, v, own_k, own_v):
    return (k, v) if old is None else old


def scaled_by_width(x, cache, w_q, w_k, w_v):
    return cached_head(x, cache, w_q * (w_q.shape[1] / w_q.shape[0]) ** 0.5, w_k, w_v)


def newest_first(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    past = 0 if cache is None else len(cache[0])
    if past:
        k, v = torch.cat([k, cache[0]]), torch.cat([v, cache[1]])
    allowed = torch.ones(len(x), past + len(x)).tril(past).bool()
    return (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~allowed, -1e9).softmax(dim=-1) @ v, (k, v)


def keys_only(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    past = 0 if cache is None else len(cache[0])
    if past:
        k = torch.cat([cache[0], k])
        v = torch.cat([k[:past], v])
    allowed = torch.ones(len(x), past + len(x)).tril(past).bool()
    return (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~allowed, -1e9).softmax(dim=-1) @ v, (k, v)


mistake("cached-head", head_with(mask=lambda new, past: torch.ones(new, past + new).bool()),
        "There is no causal mask. One new token may see everything; but of several at once, such as the prompt, none may "
        "see those behind it.")
mistake("cached-head", head_with(mask=lambda new, past: torch.ones(new, past + new).tril().bool()),
        "The causal mask is not moved. Row i is the token at position past + i, and may see the whole past: "
        "`tril(past)`.")
mistake("cached-head", head_with(mask=lambda new, past: torch.ones(new, past + new).tril(past - 1).bool()),
        "A token may see itself: the diagonal belongs to the allowed ones, `tril(past)`.")
mistake("cached-head", head_with(mask=lambda new, past: torch.ones(new, past + new).tril(past + 1).bool()),
        "Each token sees the one behind it. New token i may see positions up to past + i, its own: `tril(past)`.")
mistake("cached-head", head_with(scale=lambda d_k: 1.0), "The scores are not divided by √d_k.")
mistake("cached-head", head_with(scale=lambda d_k: 1 / d_k), "The scores are divided by d_k. Divide by its *root*.")
mistake("cached-head", scaled_by_width,
        "The scores are divided by √d, the width of `x`. Queries and keys have d_k entries: divide by √d_k.")
mistake("cached-head", head_with(join=False),
        "The past is not used: the new tokens see only each other. Join old and new keys, old and new values.")
mistake("cached-head", head_with(keep=keep_first),
        "The cache does not grow: after the first call it stays as it was. Return *all* keys and values, new ones "
        "included.")
mistake("cached-head", head_with(keep=lambda old, q, k, v, own_k, own_v: (own_k, own_v)),
        "The cache holds the new tokens only, so the next call has lost everything before. Return all keys and values.")
mistake("cached-head", head_with(keep=lambda old, q, k, v, own_k, own_v: (v, k)),
        "Keys and values are exchanged in the cache that you return. The pair is (keys, values).")
mistake("cached-head", newest_first,
        "New keys and values are put in *front* of the old ones. Then the mask hides the wrong ones: append at the end.")
mistake("cached-head", keys_only,
        "In place of the old *values*, the old keys are mixed. Keep both: keys to compare with, values to mix.")


def from_the_start(x, cache, w_q, w_k, w_v):
    k = torch.cat([*([] if cache is None else [cache[0]]), x @ w_k])
    v = torch.cat([*([] if cache is None else [cache[1]]), x @ w_v])
    past, rows = len(k) - len(x), []
    for i, query in enumerate(x @ w_q):
        end = past + i + 1
        rows.append((k[:end] @ query / len(query) ** 0.5).softmax(dim=0) @ v[:end])
    return torch.stack(rows), (k, v)


alternative("cached-head", from_the_start)

# %% [markdown]
# ### Task 5 · Which answer does the model prefer?   ●●●●○ · 15 minutes · 3 points
#
# A prompt of `prompt` tokens, and several possible answers. Each row of `ids` is the prompt with one answer behind
# it, padded on the right; row $i$ has `lengths[i]` real tokens. `logits` are the model's for these rows. Return, for
# each answer, the **mean** log-probability of *its* tokens: not the prompt's, not the padding's. Remember which row
# of the logits predicts which token.
#
# <details><summary>Hint 1: who predicts whom?</summary>
#
# The logits at position $i$ predict the token at $i + 1$. So compare `logits[:, :-1]` with `ids[:, 1:]`.
# </details>
# <details><summary>Hint 2: pick out</summary>
#
# `log_p.gather(-1, target[..., None])[..., 0]` picks the log-probability of each target.
# </details>
# <details><summary>Hint 3: which places count?</summary>
#
# Answer tokens stand at positions `prompt` … `lengths[i] - 1`. With `position = torch.arange(1, length)` for the
# targets: `(position >= prompt) & (position < lengths[:, None])`.
# </details>

# %% nbgrader={"grade_id": "answers", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def answer_scores(
    logits: Float[Tensor, "answer length vocab"],
    ids: Int[Tensor, "answer length"],
    prompt: int,
    lengths: Int[Tensor, "answer"],
) -> Float[Tensor, "answer"]:
    """Mean log-probability of each answer's tokens, given the prompt."""
    ### BEGIN SOLUTION
    log_p = logits[:, :-1].log_softmax(dim=-1)                     # (answer, length - 1, vocab)
    log_p = log_p.gather(-1, ids[:, 1:, None])[..., 0]             # (answer, length - 1): of each next token
    position = torch.arange(1, ids.shape[1])                       # (length - 1,): where that token stands
    counted = (position >= prompt) & (position < lengths[:, None])               # (answer, length - 1)
    return (log_p * counted).sum(dim=-1) / counted.sum(dim=-1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-answers", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("answers") as show:
    vocab, prompt = show.random_size(6, 9), show.random_size(3, 5)
    ids = show.randint(1, vocab, 1, prompt + 3)
    show(answer_scores(2 * show.randn(1, prompt + 3, vocab), ids, prompt, torch.tensor([prompt + 3])), "one answer of three tokens")
    lengths = prompt + torch.tensor([1, 4, 2])
    ids = show.randint(1, vocab, 3, prompt + 4) * (torch.arange(prompt + 4) < lengths[:, None])
    ids[:, :prompt] = ids[:1, :prompt]
    show(answer_scores(2 * show.randn(3, prompt + 4, vocab), ids, prompt, lengths), "answers of one, four and two tokens, padded with 0")

# %% tags=["mistakes"]
def scored(counts=None, shift=1, pick=None, total=None):
    """Scores with something changed: which positions count, the shift, the numbers picked, how they are summed up."""
    def answer(logits, ids, prompt, lengths):
        numbers = logits.log_softmax(dim=-1) if pick is None else pick(logits)
        if shift == 1:
            numbers, target = numbers[:, :-1], ids[:, 1:]
        elif shift == 0:
            numbers, target = numbers[:, 1:], ids[:, 1:]
        else:
            numbers, target = numbers[:, 1:], ids[:, :-1]
        numbers = numbers.gather(-1, target[..., None])[..., 0]
        position = torch.arange(1, ids.shape[1])
        start, end = (prompt, lengths[:, None]) if counts is None else counts(prompt, lengths[:, None], ids.shape[1])
        counted = (position >= start) & (position < end)
        summed = (numbers * counted).sum(dim=-1)
        return summed / counted.sum(dim=-1) if total is None else total(summed, counted, lengths, ids)
    return answer


mistake("answers", scored(shift=0),
        "The logits at position i are compared with the token at i itself. They predict the *next* one: "
        "`logits[:, :-1]` with `ids[:, 1:]`.")
mistake("answers", scored(shift=-1), "Shifted the wrong way: the logits at position i predict the token at i + 1, not at i − 1.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (1, lengths)),
        "The prompt's tokens are counted. They are the same for all answers, and nobody asked how likely they are.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt, n)),
        "Padding is counted. Row i ends after `lengths[i]` tokens.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt + 1, lengths), total=lambda summed, counted, lengths, ids: (
            summed / counted.sum(dim=-1).clamp(min=1))),
        "The first token of each answer is missing. It stands at position `prompt`, and the last token of the prompt "
        "predicts it.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt + 1, lengths)),
        "The first token of each answer is missing, so an answer of one token has none left. It stands at position "
        "`prompt`, and the last token of the prompt predicts it.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt - 1, lengths)),
        "One token too many: the last one of the prompt is counted. The answer begins at position `prompt`.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed),
        "This is the sum. It favours short answers, as each token makes it smaller: divide by the number of answer tokens.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed / lengths),
        "You divide by the length of prompt *and* answer. Divide by the number of the answer's tokens.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed / (ids.shape[1] - 1)),
        "You divide by the length of the padded row. Divide by the number of each answer's own tokens.")
mistake("answers", scored(pick=lambda logits: logits.softmax(dim=-1)),
        "This averages probabilities. A text's probability is a *product*, so take logarithms: `log_softmax`.")
mistake("answers", scored(pick=lambda logits: logits), "These are logits, not log-probabilities: `log_softmax` first.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: -summed / counted.sum(dim=-1)),
        "The sign is turned round: this is a loss. The score of a likelier answer should be *higher*.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: (summed / counted.sum(dim=-1)).exp()),
        "This is the probability a token, e to the mean. The task asks for the mean log-probability itself.")


def one_by_one(logits, ids, prompt, lengths):
    means = []
    for row, tokens, length in zip(logits, ids, lengths.tolist(), strict=True):
        values = [row[place - 1].log_softmax(dim=-1)[tokens[place]] for place in range(prompt, length)]
        means.append(sum(values) / len(values))
    return torch.stack(means)


alternative("answers", one_by_one)

# %%
check.summary()
