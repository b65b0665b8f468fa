# %% [markdown]
# # Exercise 40 · Instructions
#
# Four tasks, 11 points, about 40 minutes. They belong to lesson
# [40 Instructions](../notebooks/40_instructions.ipynb). Tasks 1 to 3 are the *core*, about 30 minutes; task 4 is *more*.
# Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you
# like.
#
# Write the answers yourself: one that calls txlib or peft is flagged for your teacher, if you have one.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Float
from torch import Tensor, nn

from txgrade import check

# %% [markdown]
# ### Task 1 · What the assistant writes   ●●○○○ · 10 minutes · 3 points
#
# The lesson's mask covered one question and one answer. A conversation has several, and here each message is between
# marks: `start[role]`, the message's tokens, `end`. Return the tokens of the whole conversation and the labels: for every
# message of the `"assistant"` its tokens *and* the `end` after them, and −100 for everything else. `start["assistant"]` is
# written by the program, not by the model. Labels are not shifted: label $t$ belongs to token $t$.
#
# For `turns = [("user", [5, 6]), ("assistant", [7])]`, starts 1 and 2, and end 3:
#
# ```
# tokens     1    5    6    3    2    7    3
# labels  −100 −100 −100 −100 −100    7    3
# ```
#
# <details><summary>Hint 1: one message at a time</summary>
#
# Two lists that grow together: after each message they have the same length.
# </details>
# <details><summary>Hint 2: two kinds of messages</summary>
#
# `[-100]` for the start, and then either the message and its end, or as many times −100.
# </details>

# %% nbgrader={"grade_id": "chat-labels", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def chat_labels(
    turns: list[tuple[str, list[int]]], start: dict[str, int], end: int
) -> tuple[list[int], list[int]]:
    """The tokens of a conversation, and its labels: what the assistant writes, and −100 elsewhere."""
    ### BEGIN SOLUTION
    tokens, labels = [], []
    for role, message in turns:
        written = [*message, end]
        tokens += [start[role], *written]
        labels += [-100, *(written if role == "assistant" else [-100] * len(written))]
    return tokens, labels
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-chat-labels", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("chat-labels") as show:
    start, end = {"user": 1, "assistant": 2, "system": 4}, 3
    message = [10 + token for token in show.permutation(3).tolist()]
    tokens, labels = chat_labels([("user", [5, 6]), ("assistant", message)], start, end)
    show(torch.tensor(tokens), "tokens of one question and one answer")
    show(torch.tensor(labels), "its labels")
    talk = [("system", [9, 8])]
    for number in range(show.random_size(2, 3)):
        for role in ("user", "assistant"):
            talk.append((role, [10 + token for token in show.permutation(show.random_size(2, 5)).tolist()]))
    for turns, what in ((talk, "a system message and several turns"), ([*talk, ("user", [11, 12])], "the user has the last word")):
        tokens, labels = chat_labels(turns, start, end)
        show(torch.tensor(tokens), f"tokens: {what}")
        show(torch.tensor(labels), f"labels: {what}")

# %% tags=["mistakes"]
import torch.nn.functional as F

from txgrade import alternative, equivalent, forbid, mistake

forbid("*", ("txlib", "peft"))


def chat(counts=lambda role: role == "assistant", mark=lambda start, counted: -100, last=lambda end: end,
         change=lambda tokens, labels: (tokens, labels), text=lambda begin, message, end: [begin, *message, end]):
    """The solution with one part exchanged."""
    def answer(turns, start, end):
        tokens, labels = [], []
        for role, message in turns:
            tokens += text(start[role], message, end)
            if counts(role):
                labels += [mark(start[role], True), *message, last(end)]
            else:
                labels += [-100] * (len(message) + 2)
        return change(tokens, labels)
    return answer


def only_last(turns, start, end):
    tokens, labels = chat_labels(turns, start, end)
    final = max(number for number, (role, _) in enumerate(turns) if role == "assistant")
    kept = sum(len(message) + 2 for _, message in turns[:final])
    return tokens, [-100] * kept + labels[kept:]


def one_each(turns, start, end):
    labels = []
    for role, message in turns:
        labels += [-100, *([*message, end] if role == "assistant" else [-100])]
    return chat_labels(turns, start, end)[0], labels


def every_end(turns, start, end):
    tokens, labels = chat_labels(turns, start, end)
    return tokens, [token if token == end else label for token, label in zip(tokens, labels, strict=True)]


mistake("chat-labels", chat(counts=lambda role: True),
        "The labels count the prompt as well: the model would learn to write the user's questions. Only the assistant's messages count.")
mistake("chat-labels", lambda turns, start, end: 2 * (chat_labels(turns, start, end)[0],),
        "All tokens count, marks and questions included. Put −100 wherever the model doesn't write.")
mistake("chat-labels", chat(last=lambda end: -100),
        "The `end` after an answer is missing in the labels: the model would never learn to stop.")
mistake("chat-labels", chat(mark=lambda start, counted: start),
        "`start[\"assistant\"]` is in the labels. The program writes it, so that the model knows that it is its turn.")
mistake("chat-labels", chat(counts=lambda role: role == "user"), "It is the wrong side: you count what the user writes.")
mistake("chat-labels", chat(counts=lambda role: role != "user"), "The system's message counts as well. Nobody but the assistant is to be imitated.")
mistake("chat-labels", every_end, "The `end` of every message counts. Only those that the assistant writes do.")
mistake("chat-labels", only_last, "Only the last answer counts. Each message of the assistant does.")
mistake("chat-labels", chat(change=lambda tokens, labels: (tokens, [*labels[1:], -100])),
        "The labels are shifted by one. Label $t$ belongs to token $t$; the loss shifts them.")
mistake("chat-labels", chat(change=lambda tokens, labels: (tokens, [0 if label == -100 else label for label in labels])),
        "What doesn't count has label 0, a token like any other. PyTorch leaves out −100.")
mistake("chat-labels", chat(change=lambda tokens, labels: (tokens, [-1 if label == -100 else label for label in labels])),
        "What doesn't count has label −1. PyTorch leaves out −100.")
mistake("chat-labels", chat(change=lambda tokens, labels: (tokens, [label for label in labels if label != -100])),
        "The labels lack the places that don't count. There is one label for each token.")
mistake("chat-labels", one_each, "A message that doesn't count gets a single −100. It needs one for each of its tokens.")
mistake("chat-labels", chat(change=lambda tokens, labels: (tokens, [])), "The labels are empty. Let them grow together with the tokens.")
mistake("chat-labels", chat(change=lambda tokens, labels: ([], labels)), "The tokens are missing. Let them grow together with the labels.")
mistake("chat-labels", chat(text=lambda begin, message, end: [begin, *message]), "The tokens lack `end` after each message.")
mistake("chat-labels", chat(text=lambda begin, message, end: [*message, end]), "The tokens lack `start[role]` before each message.")


def by_place(turns, start, end):
    tokens = [token for role, message in turns for token in (start[role], *message, end)]
    writers = [role if place else "mark" for role, message in turns for place in range(len(message) + 2)]
    return tokens, [token if writer == "assistant" else -100 for token, writer in zip(tokens, writers, strict=True)]


alternative("chat-labels", by_place)

# %% [markdown]
# ### Task 2 · A low-rank layer   ●●●○○ · 12 minutes · 3 points
#
# Build LoRA for a layer that may have a bias: $y = Wx + b + \frac{\alpha}{r} BAx$. `A` has the shape (rank, in) and random
# entries of any size; `B` has the shape (out, rank) and is 0. Both are `nn.Parameter`, and the *only* ones that are trained: freeze
# weight and bias of `linear`, but keep the layer itself in `self.linear`, and don't copy it.
#
# <details><summary>Hint 1: freezing</summary>
#
# `linear.requires_grad_(False)` freezes all its parameters, in place.
# </details>
# <details><summary>Hint 2: the shapes</summary>
#
# `x` is (…, in). `x @ A.T` is (…, rank), and that times `B.T` is (…, out).
# </details>

# %% nbgrader={"grade_id": "low-rank", "solution": true, "grade": false, "locked": false, "schema_version": 3}
class LowRank(nn.Module):
    """A frozen linear layer with an adapter beside it."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__()
        ### BEGIN SOLUTION
        self.linear = linear.requires_grad_(False)
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.randn(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        ### END SOLUTION

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        ### BEGIN SOLUTION
        return self.linear(x) + self.scale * (x @ self.A.T) @ self.B.T
        ### END SOLUTION

# %% nbgrader={"grade_id": "check-low-rank", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("low-rank") as show:
    for bias in (True, False):
        inner, outer, rank = show.random_size(4, 5), show.random_size(6, 7), show.random_size(2, 3)
        linear = nn.Linear(inner, outer, bias=bias)
        for weight in linear.parameters():
            weight.data = show.randn(*weight.shape)
        x = show.randn(3, 2, inner)
        layer = LowRank(linear, rank, 5.0)
        kind = "with a bias" if bias else "without a bias"
        show(layer(x), f"a new layer {kind}: as the linear one")
        show([float(layer.A.abs().sum() > 0), float(layer.B.abs().sum() > 0)], "is there anything but 0 in A? and in B?")
        show(sorted(name for name, weight in layer.named_parameters() if weight.requires_grad), f"what is trained, {kind}")
        layer.A.data, layer.B.data = show.randn(rank, inner), show.randn(outer, rank)
        show(layer(x), f"A and B drawn, rank {rank}, alpha 5, {kind}")
        show(float(layer.linear is linear), "is it the layer itself, and not a copy?")

# %% tags=["mistakes"]
import copy


def layer(first=lambda rank, n: torch.randn(rank, n), second=lambda n, rank: torch.zeros(n, rank), scale=lambda alpha, rank: alpha / rank,
          freeze=lambda linear: linear.requires_grad_(False), out=lambda self, x: self.linear(x) + self.scale * (x @ self.A.T) @ self.B.T,
          trained=lambda weight: nn.Parameter(weight)):
    """The class with one part exchanged."""
    class Changed(nn.Module):
        def __init__(self, linear, rank, alpha):
            super().__init__()
            self.linear, self.scale = freeze(linear), scale(alpha, rank)
            self.A = trained(first(rank, linear.in_features))
            self.B = trained(second(linear.out_features, rank))

        def forward(self, x):
            return out(self, x)

    return Changed


def weight_only(linear):
    linear.weight.requires_grad_(False)
    return linear


mistake("low-rank", layer(first=lambda rank, n: torch.zeros(rank, n)),
        "A and B are both 0. Then both gradients are 0 as well, and the adapter never learns. Draw A at random.")
mistake("low-rank", layer(second=lambda n, rank: torch.randn(n, rank)),
        "B is random, so the new layer is not the linear one: training would begin at another model. B begins at 0.")
mistake("low-rank", layer(first=lambda rank, n: torch.zeros(rank, n), second=lambda n, rank: torch.randn(n, rank)),
        "A is 0 and B is random. It also begins as nothing, but the convention, which files of adapters follow, is B = 0.")
mistake("low-rank", layer(scale=lambda alpha, rank: 1.0), "The factor α / r is missing.")
mistake("low-rank", layer(scale=lambda alpha, rank: alpha), "The adapter is multiplied by α. Divide it by the rank.")
mistake("low-rank", layer(scale=lambda alpha, rank: 1 / rank), "α is missing: the factor is α / r.")
mistake("low-rank", layer(scale=lambda alpha, rank: alpha * rank), "You multiply by the rank. Divide by it.")
mistake("low-rank", layer(scale=lambda alpha, rank: rank / alpha), "The factor is upside down: α / r.")
mistake("low-rank", layer(scale=lambda alpha, rank: alpha / rank**0.5), "You divide by the root of the rank. Here the factor is α / r.")
mistake("low-rank", layer(freeze=lambda linear: linear), "The linear layer is not frozen: its weight is still trained.")
mistake("low-rank", layer(freeze=weight_only), "The bias is still trained. Freeze all parameters of the linear layer.")
mistake("low-rank", layer(freeze=lambda linear: copy.deepcopy(linear).requires_grad_(False)),
        "This is a copy of the linear layer: the weights would be stored twice. Keep the layer itself.")
mistake("low-rank", layer(trained=lambda weight: nn.Parameter(weight, requires_grad=False)), "A and B are not trained.")
mistake("low-rank", layer(out=lambda self, x: F.linear(x, self.linear.weight) + self.scale * (x @ self.A.T) @ self.B.T),
        "The bias of the linear layer is lost.")
mistake("low-rank", layer(out=lambda self, x: self.linear(x)), "The adapter is never used: `forward` returns the linear layer alone.")
mistake("low-rank", layer(out=lambda self, x: self.scale * (x @ self.A.T) @ self.B.T), "The linear layer is missing: the adapter's output is *added* to its.")
mistake("low-rank", layer(out=lambda self, x: self.linear(x) - self.scale * (x @ self.A.T) @ self.B.T), "The adapter's output is *added*.")
mistake("low-rank", layer(out=lambda self, x: self.scale * (self.linear(x) + (x @ self.A.T) @ self.B.T)),
        "The factor α / r belongs to the adapter alone, and not to the linear layer.")


class Summed(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear, self.factor = linear, alpha / rank
        for weight in linear.parameters():
            weight.requires_grad = False
        self.A, self.B = nn.Parameter(torch.rand(rank, linear.in_features) - 0.5), nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return F.linear(x, self.linear.weight + self.factor * self.B @ self.A, self.linear.bias)


alternative("low-rank", Summed)

# %% [markdown]
# ### Task 3 · Merge, and cut off   ●●○○○ · 8 minutes · 2 points
#
# `merge` returns the weight $W + \frac{\alpha}{r} BA$, as a new tensor. The rank is that of `A`, which has the shape (rank, in).
#
# `cut_off` goes the other way: it turns the update of a full fine-tuning into an adapter. Return $BA$ for the `rank` largest
# singular values, the best approximation of the update with this rank. `torch.linalg.svd(update, full_matrices=False)`
# returns $U$ (out, n), the singular values (n), largest first, and $V^T$ (n, in).
#
# <details><summary>Hint 1: cut off</summary>
#
# The first `rank` columns of U, singular values, and rows of Vᵀ.
# </details>
# <details><summary>Hint 2: multiplying columns</summary>
#
# `U * S` multiplies column $i$ of U by `S[i]`.
# </details>

# %% nbgrader={"grade_id": "merge-cut", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def merge(
    weight: Float[Tensor, "outer inner"], A: Float[Tensor, "rank inner"], B: Float[Tensor, "outer rank"], alpha: float
) -> Float[Tensor, "outer inner"]:
    """One weight that computes what weight and adapter do together."""
    ### BEGIN SOLUTION
    return weight + alpha / len(A) * B @ A
    ### END SOLUTION


def cut_off(update: Float[Tensor, "outer inner"], rank: int) -> Float[Tensor, "outer inner"]:
    """The best approximation of an update that has this rank."""
    ### BEGIN SOLUTION
    U, S, Vt = torch.linalg.svd(update, full_matrices=False)
    return U[:, :rank] * S[:rank] @ Vt[:rank]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-merge-cut", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("merge-cut") as show:
    for rank in (1, show.random_size(2, 3)):
        outer, inner = show.random_size(4, 5), show.random_size(6, 8)
        weight, A, B = show.randn(outer, inner), show.randn(rank, inner), show.randn(outer, rank)
        before = weight.clone()
        show(merge(weight, A, B, 7.5), f"merge: rank {rank}, alpha 7.5")
        show(weight - before, "merge leaves its weight as it was")
        update = show.randn(outer, inner)
        show(cut_off(update, rank), f"cut_off: an update of {outer} × {inner}, rank {rank}")
    show(cut_off(show.randn(5, 2) @ show.randn(2, 6), 2), "cut_off: an update that has rank 2")

# %% tags=["mistakes"]
def both(merged=lambda weight, A, B, alpha: weight + alpha / len(A) * B @ A,
         cut=lambda U, S, Vt, rank: U[:, :rank] * S[:rank] @ Vt[:rank]):
    """Both functions with one part exchanged."""
    return {"merge": merged, "cut_off": lambda update, rank: cut(*torch.linalg.svd(update, full_matrices=False), rank)}


mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight + B @ A), "`merge`: the factor α / r is missing.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight + alpha * B @ A), "`merge`: divide α by the rank, the number of rows of A.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight + alpha / A.shape[1] * B @ A),
        "`merge`: you divide by the width of A. The rank is its number of rows.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight + alpha / len(B) * B @ A),
        "`merge`: you divide by the rows of B. The rank is its number of columns, and the rows of A.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight + alpha * len(A) * B @ A), "`merge`: divide by the rank, instead of multiplying.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: alpha / len(A) * B @ A), "`merge` returns the update alone. Add the weight.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight - alpha / len(A) * B @ A), "`merge`: the update is *added*. This takes an adapter out again.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight), "`merge` leaves out the adapter.")
mistake("merge-cut", both(merged=lambda weight, A, B, alpha: weight.add_(alpha / len(A) * B @ A)),
        "`merge` changes the weight that it was given. Return a new tensor.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U[:, :rank] @ Vt[:rank]), "`cut_off`: the singular values are missing.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U * S @ Vt), "`cut_off` returns the whole update: take the first `rank` directions only.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U[:, -rank:] * S[-rank:] @ Vt[-rank:]),
        "`cut_off` keeps the *smallest* singular values. They are sorted, largest first.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U[:, :rank] * S[:rank].square() @ Vt[:rank]), "`cut_off`: each singular value is multiplied once.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U[:, :rank] * S[:rank].sqrt() @ Vt[:rank]),
        "`cut_off`: the root of the singular values belongs into both B and A, or the whole into one.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U[:, rank:] * S[rank:] @ Vt[rank:]), "`cut_off` returns what is left over. Keep the first `rank` directions.")
mistake("merge-cut", both(cut=lambda U, S, Vt, rank: U[:, : rank + 1] * S[: rank + 1] @ Vt[: rank + 1]), "`cut_off` keeps one direction too many.")


def term_by_term(update, rank):
    U, S, Vt = torch.linalg.svd(update)
    return sum(S[i] * torch.outer(U[:, i], Vt[i]) for i in range(rank))


alternative("merge-cut", {"merge": lambda weight, A, B, alpha: torch.addmm(weight, B, A, alpha=alpha / A.shape[0]), "cut_off": term_by_term})
equivalent("merge-cut", "full_matrices=False → full_matrices=True", "The first directions are the same, and no others are taken.")

# %% [markdown]
# ### Task 4 · Ranks under a budget   ●●●○○ · 12 minutes · 3 points
#
# Must all layers have the same rank? Take the singular values of each layer's update, `values[i]`, sorted, largest first.
# An adapter of rank $r$ for an update of the shape (out, in) stores $r \cdot (\text{out} + \text{in})$ numbers, and keeps the
# squares of the $r$ largest values. All layers here have the same shape. Return the rank of each layer so that together
# they store at most `budget` numbers and keep as much as possible; a layer may have rank 0. No two values are equal. A value
# of 0 is worth nothing: don't store it.
#
# With values (5, 1) and (4, 3), shape (2, 2) and a budget of 12: three directions, the ranks are 1 and 2, and 25 + 16 + 9 of
# 51 are kept. Equal ranks would store 8 numbers and keep 41.
#
# <details><summary>Hint 1: how many?</summary>
#
# Each direction costs the same: `budget // (out + in)` of them can be stored.
# </details>
# <details><summary>Hint 2: which?</summary>
#
# Put all layers' values together, and sort them. Which layer does each one belong to?
# </details>

# %% nbgrader={"grade_id": "rank-budget", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def rank_budget(values: list[Float[Tensor, "n"]], shape: tuple[int, int], budget: int) -> tuple[list[int], float]:
    """The rank of each layer, and which fraction of all squares they keep."""
    ### BEGIN SOLUTION
    directions = budget // sum(shape)
    ranked = sorted(((value, layer) for layer, each in enumerate(values) for value in each.tolist() if value > 0), reverse=True)
    ranks = [0] * len(values)
    for _, layer in ranked[:directions]:
        ranks[layer] += 1
    kept = sum(value**2 for value, _ in ranked[:directions])
    return ranks, kept / sum(value**2 for value, _ in ranked)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-rank-budget", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("rank-budget") as show:
    ranks, kept = rank_budget([torch.tensor([5.0, 1.0]), torch.tensor([4.0, 3.0])], (2, 2), 12)
    show(torch.tensor(ranks), "values (5, 1) and (4, 3), shape (2, 2), a budget of 12: the ranks")
    show(kept, "the fraction that is kept")
    for budget in (0, 35, 60, 1000):
        rows = show.random_size(4, 6)
        values = [(scale * (1 + show.rand(4))).sort(descending=True).values for scale in (0.5, 1.0, 1.7)]
        values[0][-1] = 0.0
        ranks, kept = rank_budget(values, (rows, 5), budget)
        show(torch.tensor(ranks), f"three layers of {rows} × 5, a budget of {budget}: the ranks")
        show(kept, f"the fraction that is kept, a budget of {budget}")

# %% tags=["mistakes"]
def budgeted(cost=lambda shape: sum(shape), order=lambda value: value, whole=lambda total, values: total,
             keep=lambda value: value > 0, power=2, upwards=False, count=lambda budget, cost: budget // cost):
    """The solution with one part exchanged."""
    def answer(values, shape, budget):
        directions = count(budget, cost(shape))
        ranked = sorted(((order(value), layer, value) for layer, each in enumerate(values) for value in each.tolist() if keep(value)),
                        reverse=not upwards)
        ranks = [0] * len(values)
        for _, layer, _ in ranked[:directions]:
            ranks[layer] += 1
        kept = sum(value**power for _, _, value in ranked[:directions])
        return ranks, kept / whole(sum(value**power for _, _, value in ranked), values)
    return answer


def equal_ranks(values, shape, budget):
    rank = budget // (sum(shape) * len(values))
    kept = sum(each[:rank].square().sum().item() for each in values)
    return [min(rank, len(each)) for each in values], kept / sum(each.square().sum().item() for each in values)


def by_layer(values, shape, budget):
    left, ranks, kept = budget // sum(shape), [], 0.0
    for each in values:
        ranks.append(min(left, int((each > 0).sum())))
        left -= ranks[-1]
        kept += each[: ranks[-1]].square().sum().item()
    return ranks, kept / sum(each.square().sum().item() for each in values)


mistake("rank-budget", lambda values, shape, budget: ([0] * len(values), rank_budget(values, shape, budget)[1]),
        "All ranks are 0. Count for each layer how many of its directions are stored.")
mistake("rank-budget", equal_ranks, "All layers have the same rank. Spend each direction where the largest value is left.")
mistake("rank-budget", by_layer, "The first layers take everything. Sort the values of all layers together.")
mistake("rank-budget", budgeted(cost=lambda shape: shape[0]), "A direction costs a column *and* a row: out + in numbers.")
mistake("rank-budget", budgeted(cost=lambda shape: shape[1]), "A direction costs a row *and* a column: out + in numbers.")
mistake("rank-budget", budgeted(cost=lambda shape: shape[0] * shape[1]), "A direction costs out + in numbers, and not out × in.")
mistake("rank-budget", budgeted(cost=lambda shape: 1), "The budget counts numbers, and not directions: each direction costs out + in of them.")
mistake("rank-budget", budgeted(upwards=True), "You keep the smallest values. Sort with the largest first.")
mistake("rank-budget", budgeted(power=1), "What is kept is measured in *squares* of the values.")
mistake("rank-budget", budgeted(keep=lambda value: True), "A value of 0 is stored, and it is worth nothing.")
mistake("rank-budget", budgeted(count=lambda budget, cost: -(-budget // cost)), "One direction too many: round down, so that the budget is not exceeded.")
mistake("rank-budget", budgeted(whole=lambda total, values: 1.0), "This is how much is kept. Divide by the squares of all values: a fraction is asked for.")
mistake("rank-budget", budgeted(whole=lambda total, values: total**0.5), "Divide by the sum of all squares, without a root.")


def one_by_one(values, shape, budget):
    ranks = [0] * len(values)
    while (sum(ranks) + 1) * sum(shape) <= budget:
        best = max(range(len(values)), key=lambda i: values[i][ranks[i]].item() if ranks[i] < len(values[i]) else 0.0)
        if ranks[best] == len(values[best]) or values[best][ranks[best]] == 0:
            break
        ranks[best] += 1
    kept = sum(each[:rank].square().sum() for each, rank in zip(values, ranks, strict=True))
    return ranks, float(kept / sum(each.square().sum() for each in values))


alternative("rank-budget", one_by_one)

# %%
check.summary()
