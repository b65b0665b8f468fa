# %% [markdown]
# # Exercise 18 · Mixture of experts
#
# Six tasks, 16 points, about 70 minutes. They belong to lesson [18 Mixture of experts](../notebooks/18_experts.ipynb).
# Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as
# you like. Tasks 1, 3 and 4 are the core, about 30 minutes; the others are for those who want more.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · Gates from scores   ●●○○○ · 7 minutes · 2 points
#
# The router has given each token a score for each expert. Return a whole row of gates for each token, with a number for
# every expert: 0 where the expert is not among the token's `k` best, and for the chosen ones their probabilities,
# *renormalized* to sum to 1, as in Mixtral. (The same rule for `k = 1`: the one gate is then 1.)
#
# <details><summary>Hint 1: which ones are chosen?</summary>
#
# `scores.topk(k)` gives values and indices, along the last axis.
# </details>
# <details><summary>Hint 2: renormalize how?</summary>
#
# Softmax over all experts, then divide the chosen ones by their sum. Is there a shorter way? What does a softmax over
# the `k` chosen scores alone give?
# </details>
# <details><summary>Hint 3: back into a whole row</summary>
#
# `torch.zeros_like(scores).scatter(-1, chosen, gates)` puts each gate in its expert's column.
# </details>

# %% nbgrader={"grade_id": "gates", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gates(scores: Float[Tensor, "tokens experts"], k: int) -> Float[Tensor, "tokens experts"]:
    """Each token's gates for all experts: 0 except for its k best, whose probabilities are rescaled to sum to 1."""
    ### BEGIN SOLUTION
    best, chosen = scores.topk(k)                                  # (tokens, k)
    return torch.zeros_like(scores).scatter(-1, chosen, best.softmax(dim=-1))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-gates", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("gates") as show:
    experts = show.random_size(5, 8)
    scores = 2 * show.randn(4, experts)
    show(gates(scores, 2), f"{experts} experts, two per token")
    show(gates(scores, 3), "the same, three per token")
    show(gates(show.randn(5, 5) - 3, 1), "one per token; as many experts as tokens")
    show(gates(show.randn(3, 4), 4), "four of four experts")

# %% tags=["mistakes"]
from txgrade import alternative, forbid, mistake

forbid("*", "txlib")


def chosen_only(values, scores, k):
    """The values where the expert is chosen, else 0."""
    return torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, values.gather(-1, scores.topk(k).indices))


def by_hand(scores, k):
    p = chosen_only(scores.softmax(-1), scores, k)
    return p / p.sum(-1, keepdim=True)


def lowest(scores, k):
    worst, chosen = scores.topk(k, largest=False)
    return torch.zeros_like(scores).scatter(-1, chosen, worst.softmax(-1))


def masked_with_zero(scores, k):
    return chosen_only(scores, scores, k).softmax(-1)


def over_tokens(scores, k):
    best, chosen = scores.topk(k)
    return torch.zeros_like(scores).scatter(-1, chosen, best.softmax(0))


mistake("gates", lambda scores, k: chosen_only(scores.softmax(-1), scores, k),
        "These are the plain probabilities: a row sums to less than 1. Divide by the sum over the *chosen* experts.")
mistake("gates", lambda scores, k: scores.softmax(-1),
        "Every expert has a gate here, so every expert would be computed. Keep only the k best; the others get 0.")
mistake("gates", lambda scores, k: chosen_only(torch.ones_like(scores) / k, scores, k),
        "All chosen experts have the same gate, 1/k. Then the router's probabilities, and its gradient, are lost.")
mistake("gates", masked_with_zero,
        "You set the other experts' *scores* to 0 before the softmax. But exp(0) = 1, so they still get a weight. Take the "
        "softmax over the chosen scores only (or set the others to −∞).")
mistake("gates", lambda scores, k: chosen_only(scores, scores, k) / chosen_only(scores, scores, k).sum(-1, keepdim=True),
        "The raw scores are divided by their sum. Scores can be negative: turn them into probabilities first, with softmax.")
mistake("gates", lowest, "These are the k *worst* experts.")
mistake("gates", over_tokens,
        "The softmax runs over the tokens. Each token has gates of its own: take it over the last axis, the experts.")
mistake("gates", lambda scores, k: scores.topk(k).values.softmax(-1),
        "The numbers are right, but it is no longer clear whose they are. Return a whole row, with each gate in its expert's "
        "column.")
alternative("gates", by_hand)
alternative("gates", lambda scores, k: scores.masked_fill(scores < scores.topk(k).values[:, -1:], -torch.inf).softmax(-1))

# %% tags=["variant"]
from txgrade import variant

# Of task 2: to how many experts a token goes.
K, LIKELIEST = variant((1, "likeliest expert"), (2, "two likeliest experts"), (3, "three likeliest experts"))

# %% [markdown]
# ### Task 2 · The load-balancing loss   ●●○○○ · 8 minutes · 2 points
#
# Each token goes to its {{LIKELIEST}} ($k = {{K}}$). Return
#
# $$N \sum_{i=1}^{N} f_i\, P_i$$
#
# with $f_i$ the fraction of the tokens that go to expert $i$ (so the $f_i$ sum to $k$), and $P_i$ the mean of the
# probabilities that the tokens give to $i$. But some positions are padding: `real` is `False` there. Padding counts neither
# in $f$ nor in $P$.
#
# <details><summary>Hint 1: start with the padding</summary>
#
# `probabilities[real]` keeps the rows of real tokens. Then padding is out of the way.
# </details>
# <details><summary>Hint 2: how do I get f?</summary>
#
# With `chosen` of shape (tokens, k), `F.one_hot(chosen, N).sum(dim=1)` has a 1 where the token goes. The mean over the
# tokens is the fraction.
# </details>
# <details><summary>Hint 3: a number to try</summary>
#
# If all probabilities are `1 / N`, then whatever is chosen, the loss is {{K}}.
# </details>

# %% nbgrader={"grade_id": "balance", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def balance_loss(probabilities: Float[Tensor, "tokens experts"], real: Bool[Tensor, "tokens"]) -> Float[Tensor, ""]:
    """N · Σ f P over the real tokens, each of which goes to its {{LIKELIEST}}."""
    ### BEGIN SOLUTION
    probabilities = probabilities[real]                            # (real tokens, experts)
    experts = probabilities.shape[-1]
    chosen = probabilities.topk(K).indices                         # (real tokens, k)
    share = F.one_hot(chosen, experts).sum(dim=1).float().mean(dim=0)                 # (experts,)
    return experts * (share * probabilities.mean(dim=0)).sum()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-balance", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("balance") as show:
    tokens, experts = show.random_size(10, 16), show.random_size(K + 2, K + 5)
    probabilities = (show.randn(tokens, experts) + 2 * show.randn(experts)).softmax(dim=-1)
    real = show.permutation(tokens) >= 4
    show(balance_loss(probabilities, torch.ones(tokens, dtype=torch.bool)), "no padding")
    show(balance_loss(probabilities, real), "four positions, in any place, are padding")
    show(balance_loss(probabilities, torch.arange(tokens) == show.random_size(0, 3)), "a single real token")
    wanted = probabilities.clone().requires_grad_()
    balance_loss(wanted, real).backward()
    show(wanted.grad, "the gradient at the probabilities")

# %% tags=["mistakes"]
def balance_with(f, P=lambda p: p.mean(0), scale=lambda p: p.shape[-1]):
    """The loss with something wrong, padding taken out."""
    def loss(probabilities, real):
        p = probabilities[real]
        return scale(p) * (f(p) * P(p)).sum()
    return loss


def choices(p):
    chosen = p.argsort(dim=-1, descending=True, stable=True)[:, :K]
    return F.one_hot(chosen, p.shape[-1]).sum(dim=1).float()


def shares(p):
    return choices(p).mean(0)


def with_padding(probabilities, real):
    return balance_with(shares)(probabilities, torch.ones_like(real))


def padding_set_to_zero(probabilities, real):
    return with_padding(probabilities * real[:, None], real)


def padding_in_the_mean(probabilities, real):
    p = probabilities * real[:, None]
    share = (choices(p) * real[:, None]).mean(0)
    return p.shape[-1] * (share * p.mean(0)).sum()


def detached(probabilities, real):
    return balance_with(shares, P=lambda p: p.mean(0).detach())(probabilities, real) + 0 * probabilities.sum()


mistake("balance", with_padding,
        "Padding is counted as well. A batch of short texts would then send all its padding to one expert and look "
        "unbalanced. Begin by taking the rows where `real` is True.")
mistake("balance", padding_set_to_zero,
        "You set the padding's probabilities to 0, but its rows still take part: they choose the first experts, and the mean is "
        "over all rows. Take the rows out: `probabilities[real]`.")
mistake("balance", padding_in_the_mean,
        "The sums leave padding out, but the mean still divides by all rows. Divide by the number of *real* tokens.")
mistake("balance", balance_with(shares, scale=lambda p: 1), "The factor N is missing: balanced, the loss should be {{K}}.")
mistake("balance", lambda probabilities, real: with_padding(probabilities[:int(real.sum())], real[:int(real.sum())]),
        "You cut off the end, but padding can be anywhere: `probabilities[real]`.")
for f, P in ((lambda p: shares(p).mean(), lambda p: p.mean(0)), (shares, lambda p: p.mean())):
    mistake("balance", balance_with(f, P), "f and P have one number for each *expert*. Take the mean over the tokens only: `dim=0`.")
mistake("balance", balance_with(lambda p: choices(p).sum()),
        "You sum `one_hot` over everything. Sum over a token's choices only, `dim=1`, then take the mean over the tokens.")
mistake("balance", balance_with(lambda p: p.mean(0)),
        "This is N · Σ P². The value may look similar, but what counts is where tokens really *go*: one factor is f.")
mistake("balance", balance_with(shares, P=lambda p: shares(p) + 0 * p.mean(0)),
        "This is N · Σ f². f is counted, so its gradient is 0: the router would learn nothing. One factor is P.")
mistake("balance", balance_with(lambda p: shares(p) * len(p)),
        "f or P is a sum over the tokens. Both are *means*: divide by the number of real tokens.")
mistake("balance", balance_with(lambda p: 1), "f is missing: the mean probabilities alone always sum to 1.")
mistake("balance", detached,
        "The value is right, but P passes no gradient. It is the only path by which the router can learn.")


def by_counting(probabilities, real):
    p, N = probabilities[real], probabilities.shape[-1]
    count = p.topk(K).indices.flatten().bincount(minlength=N)
    return N * torch.dot(count / len(p), p.sum(0) / len(p))


alternative("balance", by_counting)
alternative("balance", lambda probabilities, real: (
    probabilities.shape[-1] * (shares(probabilities[real]) @ probabilities[real].mean(0))))

# %% [markdown]
# ### Task 3 · First come, first served   ●●●○○ · 10 minutes · 3 points
#
# One expert per token. Each expert takes tokens in the order of the text until its room is full; latecomers are dropped.
# Every expert has the same room, $\lceil \text{factor} \cdot \text{tokens} / \text{experts} \rceil$ tokens. Return a mask
# that is `True` where the token is **dropped**.
#
# <details><summary>Hint 1: round which way?</summary>
#
# Up: `math.ceil`. Room for 2.5 tokens is room for 3.
# </details>
# <details><summary>Hint 2: my place in the queue</summary>
#
# `F.one_hot(chosen, experts).cumsum(dim=0)` says, after each token, how often each expert has been asked. Look up the
# column of the token's own expert.
# </details>
# <details><summary>Hint 3: off by one?</summary>
#
# `cumsum` counts the token itself, so the first one in the queue has place 1. With room for 1 it is *not* dropped.
# </details>

# %% nbgrader={"grade_id": "dropped", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def dropped(chosen: Int[Tensor, "tokens"], experts: int, factor: float) -> Bool[Tensor, "tokens"]:
    """True for each token whose expert is already full."""
    ### BEGIN SOLUTION
    room = math.ceil(factor * len(chosen) / experts)
    queue = F.one_hot(chosen, experts).cumsum(dim=0)               # (tokens, experts): how many asked so far
    place = queue.gather(1, chosen[:, None])[:, 0]                 # (tokens,): 1 for the first
    return place > room
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-dropped", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("dropped") as show:
    chosen = show.randint(0, 4, 16)
    show(dropped(chosen, 4, 1.0), "16 tokens, 4 experts, factor 1")
    show(dropped(chosen, 5, 0.5), "the same with 5 experts, of which one is never asked; factor 0.5")
    show(dropped(torch.tensor([2, 2, 0, 2, 1, 2, 2, 0, 2, 2]), 4, 1.25), "one expert that most want, factor 1.25")
    tokens, experts = show.random_size(17, 30), show.random_size(2, 6)
    show(dropped(show.randint(0, experts, tokens), experts, 0.75), f"{tokens} tokens, {experts} experts, factor 0.75")
    show(dropped(show.randint(0, 3, 30), 3, 3.0), "room for all")

# %% tags=["mistakes"]
from collections import Counter

from txgrade import equivalent

equivalent("dropped", "queue.gather(1, chosen[:, None])[:, 0] → queue.gather(1, chosen[:, None])[:, -1]",
           "`gather` gives a single column here: the first is the last.")
equivalent("dropped", "F.one_hot(chosen, experts) → F.one_hot(chosen)",
           "Without `experts` the columns end with the last expert that is asked for. No other column is read.")


def served(chosen, room, order=None):
    """True where the token finds its expert full, in this order of tokens."""
    out, asked = torch.zeros(len(chosen), dtype=torch.bool), Counter()
    for token in range(len(chosen)) if order is None else order:
        asked[int(chosen[token])] += 1
        out[token] = asked[int(chosen[token])] > room
    return out


mistake("dropped", lambda chosen, experts, factor: ~dropped(chosen, experts, factor),
        "The mask is inverted: these are the tokens that are *kept*. True means dropped.")
mistake("dropped", lambda chosen, experts, factor: served(chosen, math.floor(factor * len(chosen) / experts)),
        "The room is rounded down. Round up, with `math.ceil`.")
mistake("dropped", lambda chosen, experts, factor: served(chosen, math.ceil(factor * len(chosen) / experts) - 1),
        "One too few. `cumsum` counts the token itself: the first in the queue has place 1. So drop where place > room, not "
        "where place >= room.")
mistake("dropped", lambda chosen, experts, factor: served(chosen, math.ceil(factor * len(chosen) / experts) + 1),
        "One too many. With room for 3, the fourth token is dropped.")
mistake("dropped", lambda chosen, experts, factor: served(chosen, math.ceil(len(chosen) / experts)),
        "The capacity factor is missing from the room.")
mistake("dropped", lambda chosen, experts, factor: served(
            chosen, math.ceil(factor * len(chosen) / experts), range(len(chosen) - 1, -1, -1)),
        "The queue is served from the end: the *first* tokens are dropped. Count from the front.")
mistake("dropped", lambda chosen, experts, factor: torch.arange(1, len(chosen) + 1) > math.ceil(
            factor * len(chosen) / experts),
        "There is one queue for all experts. Give each expert its own: count only the tokens that ask for it.")
mistake("dropped", lambda chosen, experts, factor: torch.bincount(chosen, minlength=experts)[chosen] > math.ceil(
            factor * len(chosen) / experts),
        "Where too many tokens ask for an expert, *all* of them are dropped. The first ones still find room.")
mistake("dropped", lambda chosen, experts, factor: served(
            chosen, math.ceil(factor * len(chosen) / len(set(chosen.tolist())))),
        "The room is divided among the experts that are asked for. Divide by all experts: an idle one keeps its room.")
mistake("dropped", lambda chosen, experts, factor: served(chosen, factor),
        "The room is only the factor. It is ⌈factor · tokens / experts⌉.")
alternative("dropped", lambda chosen, experts, factor: served(chosen, math.ceil(factor * len(chosen) / experts)))


def by_rank(chosen, experts, factor):
    same = (chosen[:, None] == chosen[None, :]).tril()             # (token, earlier token)
    return same.sum(-1) > math.ceil(factor * len(chosen) / experts)


alternative("dropped", by_rank)

# %% [markdown]
# ### Task 4 · Dispatch and combine   ●●●●○ · 13 minutes · 4 points
#
# Run each expert on the tokens that chose it, and on no others, and bring the answers back: a token's row is the sum of
# its experts' answers, each times its weight. A token's choice may be dropped: where `kept` is `False`, the expert must
# not see the token, and adds nothing. Don't rescale the other weights.
#
# An expert is a function from `(its tokens, d_model)` to the same shape. Call it with many tokens at once: once per
# expert, or once per expert and choice. Don't call an expert that has no tokens. We count the calls, and the rows that
# each expert has seen, so an answer that computes everything is caught.
#
# <details><summary>Hint 1: which tokens go to expert i?</summary>
#
# `((chosen == i) & kept).nonzero(as_tuple=True)` gives two lists: which token, and which of its choices this was.
# </details>
# <details><summary>Hint 2: which weight?</summary>
#
# `weights[token, choice]`, one number per row. Add `[:, None]`, and it multiplies the rows of the expert's answer.
# </details>
# <details><summary>Hint 3: bringing the answers back</summary>
#
# A token may have visited several experts, so *add*: `out = out.index_add(0, token, …)`.
# </details>

# %% nbgrader={"grade_id": "mixture", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def mixture(
    tokens: Float[Tensor, "tokens d_model"],
    experts: Sequence[Callable[[Tensor], Tensor]],
    weights: Float[Tensor, "tokens k"],
    chosen: Int[Tensor, "tokens k"],
    kept: Bool[Tensor, "tokens k"],
) -> Float[Tensor, "tokens d_model"]:
    """The weighted sum of each token's experts' answers, where they had room for it."""
    ### BEGIN SOLUTION
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(experts):
        token, choice = ((chosen == i) & kept).nonzero(as_tuple=True)       # (its tokens,)
        if len(token):
            out = out.index_add(0, token, weights[token, choice, None] * expert(tokens[token]))
    return out
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-mixture", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("mixture") as show:
    def counted(matrices):
        """Experts, and a function that reports which of them were called, with how many rows and calls each."""
        rows, calls = [0] * len(matrices), [0] * len(matrices)

        def make_expert(number, matrix):
            def expert(x):
                rows[number] += len(x)
                calls[number] += 1
                return torch.tanh(x @ matrix)
            return expert

        experts = [make_expert(number, matrix) for number, matrix in enumerate(matrices)]
        return experts, lambda: [(number, rows[number], calls[number]) for number in range(len(rows)) if calls[number]]

    d, N, idle = show.random_size(3, 5), 5, show.random_size(0, 4)
    asked = torch.tensor([number for number in range(N) if number != idle])
    for n, k, case in ((7, 2, "none dropped"), (7, 2, "some dropped"), (show.random_size(4, 6), 3, "some dropped"),
                       (show.random_size(8, 10), 1, "some dropped"), (3, 2, "all dropped")):
        chosen = torch.stack([asked[show.permutation(N - 1)[:k]] for _ in range(n)])
        kept = {"none dropped": torch.ones(n, k).bool(), "all dropped": torch.zeros(n, k).bool()}.get(case, show.rand(n, k) > 0.3)
        if case == "some dropped":
            kept[show.random_size(0, n - 1)] = False                       # a token that loses all its experts,
            kept[chosen == asked[show.random_size(0, N - 2)]] = False      # an expert that loses all its tokens
        experts, report = counted(show.randn(N, d, d))
        case = f"{n} tokens, {k} of {N} experts each, {case}"
        show(mixture(show.randn(n, d), experts, show.rand(n, k), chosen, kept), case)
        seen = report()
        show([(number, rows) for number, rows, _ in seen], f"{case}: which expert has seen how many rows")
        show(all(calls <= k for _, _, calls in seen), f"{case}: no expert is called more often than a token has choices")

# %% tags=["mistakes"]
def mixed(combine, ask=lambda chosen, kept, i: (chosen == i) & kept):
    """The mixture with another way of asking or combining."""
    def answer(tokens, experts, weights, chosen, kept):
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(experts):
            token, choice = ask(chosen, kept, i).nonzero(as_tuple=True)
            if len(token):
                out = combine(out, token, weights[token, choice, None], expert(tokens[token]))
        return out
    return answer


def overwritten(out, token, weight, said):
    return out.index_copy(0, token, weight * said)


def everything(tokens, experts, weights, chosen, kept):
    row = torch.zeros(len(tokens), len(experts)).scatter(1, chosen, weights * kept)
    return sum(row[:, i, None] * expert(tokens) for i, expert in enumerate(experts))


def rescaled(tokens, experts, weights, chosen, kept):
    weights = weights * kept
    total = weights.sum(-1, keepdim=True)
    return mixture(tokens, experts, weights / total.where(total > 0, torch.ones(())), chosen, kept)


def called_with_nothing(tokens, experts, weights, chosen, kept):
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(experts):
        token, choice = ((chosen == i) & kept).nonzero(as_tuple=True)
        out = out.index_add(0, token, weights[token, choice, None] * expert(tokens[token]))
    return out


def dropped_at_full_price(tokens, experts, weights, chosen, kept):
    return mixture(tokens, experts, weights * kept, chosen, torch.ones_like(kept))


def weight_at_the_input(tokens, experts, weights, chosen, kept):
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(experts):
        token, choice = ((chosen == i) & kept).nonzero(as_tuple=True)
        if len(token):
            out = out.index_add(0, token, expert(weights[token, choice, None] * tokens[token]))
    return out


def one_by_one(tokens, experts, weights, chosen, kept):
    rows = []
    for t in range(len(tokens)):
        parts = [weights[t, c] * experts[int(chosen[t, c])](tokens[t][None])[0]
                 for c in range(chosen.shape[1]) if kept[t, c]]
        rows.append(sum(parts, torch.zeros(tokens.shape[1])))
    return torch.stack(rows)


mistake("mixture", mixed(overwritten),
        "The second expert's answer *overwrites* the first's. A token has several experts: add, with `index_add`.")
mistake("mixture", mixed(lambda out, token, weight, said: out.index_add(0, token, said)),
        "The weights are missing: each answer counts in full. (And without them the router would get no gradient.)")
mistake("mixture", mixed(lambda out, token, weight, said: out.index_add(0, token, weight * said),
                         ask=lambda chosen, kept, i: chosen == i),
        "`kept` is not used: dropped tokens are computed and added anyway.")
mistake("mixture", mixed(lambda out, token, weight, said: out.index_add(0, token, weight * said),
                         ask=lambda chosen, kept, i: (chosen == i) & ~kept),
        "`kept` is inverted: only the dropped ones are computed.")
mistake("mixture", mixed(lambda out, token, weight, said: out.index_add(0, token, weight * said), ask=lambda chosen, kept, i: kept),
        "Every expert gets every choice that is kept, whichever expert was chosen. Ask for `chosen == i` as well.")
mistake("mixture", everything,
        "The numbers are right, but every expert has computed every token: all the work of a dense model. First gather the "
        "tokens that chose the expert.")
mistake("mixture", dropped_at_full_price,
        "The numbers are right, but the experts have also seen the dropped tokens: their weight is set to 0 only "
        "afterwards. There was no room for them: leave them out before you call the expert.")
mistake("mixture", called_with_nothing,
        "An expert that no token chose is called with zero rows. Skip it.")
mistake("mixture", one_by_one,
        "The numbers are right, but each expert is called once for each token. Give it all its tokens at once: one large "
        "matrix product is far faster than many small ones.")
mistake("mixture", rescaled,
        "The weights are rescaled to sum to 1 after the drop. A dropped choice is simply missing; the residual connection "
        "carries the token past.")
mistake("mixture", weight_at_the_input,
        "The weight multiplies the expert's *input*. An expert is not linear, so that is something else. Weight its answer.")


def choice_by_choice(tokens, experts, weights, chosen, kept):
    out = torch.zeros_like(tokens)
    for choice in range(chosen.shape[1]):
        for i, expert in enumerate(experts):
            (token,) = ((chosen[:, choice] == i) & kept[:, choice]).nonzero(as_tuple=True)
            if len(token):
                out[token] += weights[token, choice, None] * expert(tokens[token])
    return out


alternative("mixture", choice_by_choice)


def with_masks(tokens, experts, weights, chosen, kept):
    parts = [torch.zeros_like(tokens)]
    for i, expert in enumerate(experts):
        asked = (chosen == i) & kept
        rows = asked.any(-1)
        if rows.any():
            part = torch.zeros_like(tokens)
            part[rows] = (weights * asked).sum(-1)[rows, None] * expert(tokens[rows])
            parts.append(part)
    return torch.stack(parts).sum(0)


alternative("mixture", with_masks)

# %% [markdown]
# ### Task 5 · How many parameters work?   ●●●○○ · 10 minutes · 2 points
#
# A decoder like Mixtral. Each of its `layers` blocks has
#
# - attention with grouped queries: matrices for query and output, `d_model` × `d_model`, and for key and value,
#   `d_model` × (`kv_heads` · `d_k`), where `d_k = d_model // heads`;
# - a router, `d_model` × `experts`, and `experts` SwiGLU networks (three matrices of `d_model` · `d_ff` numbers each), of
#   which a token uses `top_k`;
# - two RMS norms, each with a gain of `d_model` numbers.
#
# Around them: an embedding, `vocab` × `d_model`; one last RMS norm; a separate output matrix, as large as the embedding.
# No biases anywhere. Return two numbers: all parameters, and those that are *active* for one token. As in the papers, the
# whole embedding, the router and all norms count as active.
#
# <details><summary>Hint 1: what differs between the two?</summary>
#
# Only the experts: `experts` of them in all, `top_k` active.
# </details>
# <details><summary>Hint 2: is the router active?</summary>
#
# Yes, all of it. To find its best experts, a token needs the scores of all of them.
# </details>
# <details><summary>Hint 3: a number to try</summary>
#
# Mixtral 8x7B: `(32000, 32, 4096, 32, 8, 14336, 8, 2)` gives 46,702,792,704 and 12,879,925,248.
# </details>

# %% nbgrader={"grade_id": "active", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def count(
    vocab: int, layers: int, d_model: int, heads: int, kv_heads: int, d_ff: int, experts: int, top_k: int
) -> tuple[int, int]:
    """All parameters of the decoder, and those that one token uses."""
    ### BEGIN SOLUTION
    attention = 2 * d_model * d_model + 2 * d_model * (kv_heads * d_model // heads)
    shared = attention + d_model * experts + 2 * d_model            # with router and norms
    network = 3 * d_model * d_ff
    around = 2 * vocab * d_model + d_model
    return around + layers * (shared + experts * network), around + layers * (shared + top_k * network)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-active", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("active") as show:
    show(count(32_000, 32, 4096, 32, 8, 14_336, 8, 2), "Mixtral 8x7B")
    heads, N = show.choice([4, 8]), show.random_size(4, 9)
    sizes = show.random_size(90, 120), show.random_size(2, 6), 8 * show.random_size(3, 9), heads, 2, 77, N, 3
    show(count(*sizes), f"vocab, layers, d_model, heads, kv_heads, d_ff, experts, top_k = {sizes}")

# %% tags=["mistakes"]
def miscounted(both=lambda *sizes: 0, active=lambda *sizes: 0):
    """The right counts plus something wrong."""
    def answer(*sizes):
        total, used = count(*sizes)
        return total + both(*sizes), used + both(*sizes) + active(*sizes)
    return answer


mistake("active", miscounted(both=lambda v, L, d, h, kv, f, N, k: L * 2 * d * (d - kv * d // h)),
        "Keys and values are counted at full width. With grouped queries their matrices lead to kv_heads · d_k only.")
mistake("active", miscounted(both=lambda v, L, d, h, kv, f, N, k: -L * d * N), "The router is missing: d_model · experts.")
mistake("active", miscounted(active=lambda v, L, d, h, kv, f, N, k: -L * d * (N - k)),
        "The router is active as a whole: a token needs the scores of *all* experts to know the best.")
mistake("active", lambda v, L, d, h, kv, f, N, k: (
            count(v, L, d, h, kv, f, N, k)[0], count(v, L, d, h, kv, f, N, k)[0] * k // N),
        "Active is not top_k / experts of everything. Each token uses attention, embeddings and norms in full.")
mistake("active", lambda *sizes: (sizes[6] * count(*sizes[:6], 1, 1)[0], sizes[7] * count(*sizes[:6], 1, 1)[0]),
        "Whole models are multiplied, as the name 8x7B suggests. Only the feed-forward networks are multiplied.")
mistake("active", miscounted(lambda v, L, d, h, kv, f, N, k: -L * N * d * f, lambda v, L, d, h, kv, f, N, k: L * (N - k) * d * f),
        "An expert has three matrices, not two: SwiGLU has a gate.")
mistake("active", miscounted(both=lambda v, L, d, h, kv, f, N, k: -v * d),
        "The output matrix is missing: it is not tied to the embedding here.")
mistake("active", miscounted(both=lambda v, L, d, h, kv, f, N, k: -d), "The last norm is missing.")
mistake("active", miscounted(both=lambda v, L, d, h, kv, f, N, k: -L * d), "Each block has *two* norms.")
mistake("active", miscounted(both=lambda v, L, d, h, kv, f, N, k: 2 * L * d + d),
        "RMS norms have only a gain, no bias: d_model numbers each.")
def decoder(kv=lambda d, h, kv: kv * d // h, attention=lambda d, kv: 2 * d * d + 2 * d * kv, router=lambda d, N: d * N,
            norms=lambda d: 2 * d, network=lambda d, f: 3 * d * f, experts=lambda n: n, around=lambda v, d: 2 * v * d + d,
            layers=lambda L: L, wrong=(0, 1)):
    """The counts with one part exchanged, in both numbers or in one of them."""
    def answer(v, L, d, h, kvs, f, N, k):
        shared = attention(d, kv(d, h, kvs)) + router(d, N) + norms(d)
        changed = [around(v, d) + layers(L) * (shared + experts(n) * network(d, f)) for n in (N, k)]
        return tuple(changed[i] if i in wrong else count(v, L, d, h, kvs, f, N, k)[i] for i in (0, 1))
    return answer


mistake("active", decoder(kv=lambda d, h, kv: kv * d), "Keys and values are too wide: a head has d_model / heads entries, not d_model.")
mistake("active", decoder(kv=lambda d, h, kv: d // h), "Keys and values are counted for one head. There are kv_heads of them.")
for wrong in (lambda d, kv: 2 * d + 2 * d * kv, lambda d, kv: 2 * d * d + 2 * d, lambda d, kv: 2 * d * d + 2 * kv):
    mistake("active", decoder(attention=wrong), "You count only one side of one of attention's matrices: it holds rows · columns numbers.")
for wrong in (lambda d, kv: d * d + 2 * d * kv, lambda d, kv: 2 * d * d + d * kv):
    mistake("active", decoder(attention=wrong), "Attention has *four* matrices: for queries, keys, values and the output.")
mistake("active", decoder(attention=lambda d, kv: 2 * d * d), "The matrices of keys and values are missing.")
mistake("active", decoder(attention=lambda d, kv: 2 * d * kv), "The matrices of the queries and of the output are missing.")
mistake("active", decoder(attention=lambda d, kv: 0), "Attention's four matrices are missing.")
for wrong in (lambda d, N: d, lambda d, N: N):
    mistake("active", decoder(router=wrong), "The router is a matrix of d_model · experts numbers: it gives each token a score for each expert.")
mistake("active", decoder(norms=lambda d: 0), "The norms of the blocks are missing: two in each.")
mistake("active", decoder(norms=lambda d: 2), "A gain is a vector: d_model numbers, one for each entry.")
for wrong in (lambda d, f: 3 * d, lambda d, f: 3 * f):
    mistake("active", decoder(network=wrong), "Each matrix of an expert holds d_model · d_ff numbers.")
mistake("active", decoder(around=lambda v, d: d), "The embedding and the output matrix are missing.")
for wrong in (lambda v, d: 2 * v + d, lambda v, d: 2 * d + d):
    mistake("active", decoder(around=wrong), "You count only one side of the embedding: it holds vocab · d_model numbers.")
for wrong, which in (((0,), "In the first number"), ((1,), "In the second number")):
    mistake("active", decoder(around=lambda v, d: 0, wrong=wrong), f"{which} the matrices around the blocks are missing.")
    mistake("active", decoder(layers=lambda L: 0, wrong=wrong), f"{which} the blocks are missing.")
    mistake("active", decoder(layers=lambda L: 1, wrong=wrong), f"{which} you count one block. There are `layers` of them.")
    mistake("active", decoder(experts=lambda n: 0, wrong=wrong), f"{which} the experts are missing.")
    mistake("active", decoder(experts=lambda n: 1, wrong=wrong), f"{which} you count one expert. There are `experts` in all, and `top_k` are active.")
mistake("active", lambda *sizes: count(*sizes)[::-1], "The two numbers are swapped: first all, then the active ones.")


def summed_up(vocab, layers, d_model, heads, kv_heads, d_ff, experts, top_k):
    d_k = d_model // heads
    block = d_model * (2 * d_model + 2 * kv_heads * d_k + experts + 2)
    return tuple(layers * (block + 3 * n * d_model * d_ff) + (2 * vocab + 1) * d_model for n in (experts, top_k))


alternative("active", summed_up)

# %% [markdown]
# ### Task 6 · Investigate: how much room does luck need?   ●●●●● · 20 minutes · 3 points
#
# Suppose that a router is perfectly fair: each token goes to one of $N$ experts by pure chance. Even then some experts
# are chosen more often than others, and with a capacity factor of 1 tokens are dropped.
#
# How large must the factor be so that fewer than 1% are dropped? Measure it for 64, 512 and 4,096 tokens, with 8
# experts and with 64. A few factors are enough, such as 1, 1.25, 1.5, 2 and 3; take the mean over 100 draws or more. Then
# find the rule: which *one* number, made of tokens and experts, decides? Say why in two or three sentences, and what
# follows for a model that writes one token at a time.
#
# Add cells below this one and measure there; your `dropped` of task 3 will do, and you may use all of `txlib`. Hand in
# your findings as text, with a table of your numbers. A person reads it.

# %% [markdown] nbgrader={"grade_id": "room-for-luck", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# The smallest of 1, 1.25, 1.5, 2 and 3 that drops fewer than 1% (mean of 200 draws):
#
# | tokens | 8 experts | 64 experts |
# | --- | --- | --- |
# | 64 | 2 (0.1%; 1.1% at 1.5) | more than 3 (2.4%) |
# | 512 | 1.25 (0.1%) | 2 (0.1%; 1.7% at 1.5) |
# | 4,096 | 1.25 (0.0%) | 1.25 (0.1%) |
#
# Tokens per expert, $M/N$, decides: 64 tokens with 8 experts behave like 512 with 64, and 512 with 8 like 4,096 with 64.
# An expert is chosen $M/N$ times on average, with a spread of about $\sqrt{M/N}$. Relative to the mean the spread is
# $1/\sqrt{M/N}$: 13% with 64 tokens per expert, which a factor of 1.25 covers, and 100% with one. A model that writes
# one token at a time has far fewer tokens than experts. A fixed capacity makes no sense there: let it drop nothing.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table over both numbers of experts and at least three batch sizes, from enough draws (100 or more, or a
# stated spread). 1 point: tokens per expert decides, with numbers that show it (two settings with equal M/N agree). 1
# point: the reason (spread about the square root of the mean), and the consequence for writing.

# %%
check.summary()
