# %% [markdown]
# # Exercise 12 · Prompting
#
# Three tasks, 8 points, about 35 minutes, all of them *core*. They belong to lesson
# [12 Prompting](../notebooks/12_prompting.ipynb). Run the cells from the top; fill in where it says *your turn*,
# then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% tags=["variant"]
from txgrade import variant

# Set for your copy: the text and the check of task 1 use it, you need not.
POWER, SCORE = variant(
    (1, "the **mean** log-probability of *its* tokens"),
    (0.5, "the log-probabilities of *its* tokens, added up and divided by the **root** of their number"),
    (0.7, "the log-probabilities of *its* tokens, added up and divided by their number to the power **0.7**"),
)

# %% [markdown]
# ### Task 1 · Which answer does the model prefer?   ●●●●○ · 15 minutes · 3 points
#
# A prompt of `prompt` tokens has several possible answers. Each row of `ids` is the prompt followed by one answer, padded on
# the right; row $i$ has `lengths[i]` real tokens. `logits` are the model's output for these rows. Return, for
# each answer, {{SCORE}} (natural logarithms). Neither the prompt nor the padding
# counts. Remember which logits predict which token.
#
# <details><summary>Hint 1: which logits predict which token?</summary>
#
# The logits at position $i$ predict the token at $i + 1$. So compare `logits[:, :-1]` with `ids[:, 1:]`.
# </details>
# <details><summary>Hint 2: how to pick them out</summary>
#
# `log_p.gather(-1, target[..., None])[..., 0]` picks the log-probability of each target.
# </details>
# <details><summary>Hint 3: which positions count?</summary>
#
# The answer's tokens are at positions `prompt` … `lengths[i] - 1`. With `position = torch.arange(1, length)` for the
# targets: `(position >= prompt) & (position < lengths[:, None])`.
# </details>

# %% nbgrader={"grade_id": "answers", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def answer_scores(
    logits: Float[Tensor, "answer length vocab"],
    ids: Int[Tensor, "answer length"],
    prompt: int,
    lengths: Int[Tensor, "answer"],
) -> Float[Tensor, "answer"]:
    """The score of each answer, given the prompt."""
    ### BEGIN SOLUTION
    log_p = logits[:, :-1].log_softmax(dim=-1)                     # (answer, length - 1, vocab)
    log_p = log_p.gather(-1, ids[:, 1:, None])[..., 0]             # (answer, length - 1): of each next token
    position = torch.arange(1, ids.shape[1])                       # (length - 1,): where that token stands
    counted = (position >= prompt) & (position < lengths[:, None])               # (answer, length - 1)
    return (log_p * counted).sum(dim=-1) / counted.sum(dim=-1) ** POWER
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-answers", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("answers") as show:
    vocab, prompt = show.random_size(6, 9), show.random_size(3, 5)
    ids = show.randint(1, vocab, 1, prompt + 3)
    show(answer_scores(2 * show.randn(1, prompt + 3, vocab), ids, prompt, torch.tensor([prompt + 3])), "one answer of three tokens")
    show(answer_scores(2 * show.randn(1, 4, vocab), ids[:, :4], 1, torch.tensor([3])), "a prompt of one token, an answer of two")
    lengths = prompt + torch.tensor([1, 4, 2])
    ids = show.randint(1, vocab, 3, prompt + 4) * (torch.arange(prompt + 4) < lengths[:, None])
    ids[:, :prompt] = ids[:1, :prompt]
    show(answer_scores(2 * show.randn(3, prompt + 4, vocab), ids, prompt, lengths), "answers of one, four and two tokens, padded with 0")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def scored(counts=None, shift=1, pick=None, total=None):
    """Scores with something changed: which positions count, the shift, the numbers picked, how they are summed up."""
    def answer(logits, ids, prompt, lengths):
        read = logits[:, :-1] if shift == 1 else logits[:, 1:]
        target = ids[:, :-1] if shift == -1 else ids[:, 1:]
        numbers = (read.log_softmax(dim=-1) if pick is None else pick(read)).gather(-1, target[..., None])[..., 0]
        position = torch.arange(1, ids.shape[1])
        start, end = (prompt, lengths[:, None]) if counts is None else counts(prompt, lengths[:, None], ids.shape[1])
        counted = (position >= start) & (position < end)
        summed = (numbers * counted).sum(dim=-1)
        return summed / counted.sum(dim=-1) ** POWER if total is None else total(summed, counted, lengths, ids)
    return answer


mistake("answers", scored(shift=0),
        "The logits at position i are compared with the token at i itself. They predict the *next* one: "
        "`logits[:, :-1]` with `ids[:, 1:]`.")
mistake("answers", scored(shift=-1), "You shift the wrong way: the logits at position i predict the token at i + 1, not at i − 1.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (1, lengths)),
        "You also count the prompt's tokens. They are the same for all answers; only the answer's tokens count.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt, n)),
        "You also count the padding. Row i ends after `lengths[i]` tokens.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt + 1, lengths), total=lambda summed, counted, lengths, ids: (
            summed / counted.sum(dim=-1).clamp(min=1) ** POWER)),
        "The first token of each answer is missing. It is at position `prompt`, and the last token of the prompt predicts it.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt + 1, lengths)),
        "The first token of each answer is missing, so an answer of one token has none left. It is at position "
        "`prompt`, and the last token of the prompt predicts it.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt - 1, lengths - 1)),
        "You score the prompt's last token and miss the answer's last: the targets begin at position 1, not at 0.")
mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt - 1, lengths)),
        "One token too many: the last one of the prompt is counted. The answer begins at position `prompt`.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed),
        "This is the sum. It favors short answers, because each token makes it smaller: divide it as the task says.")
if POWER != 1:
    mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed / counted.sum(dim=-1)),
            "This is the mean. Here you divide by the number of tokens to the power {{POWER}}.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed / lengths**POWER),
        "You divide by the length of prompt *and* answer. Only the number of the answer's tokens counts.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: summed / (ids.shape[1] - 1) ** POWER),
        "You divide by the length of the padded row. Only the number of each answer's own tokens counts.")
mistake("answers", scored(pick=lambda logits: logits.softmax(dim=-1)),
        "These are probabilities. A text's probability is a *product*, so take logarithms: `log_softmax`.")
mistake("answers", scored(pick=lambda logits: logits), "These are logits, not log-probabilities: `log_softmax` first.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: -summed / counted.sum(dim=-1) ** POWER),
        "The sign is wrong: this is a loss. The score of a likelier answer should be *higher*.")
mistake("answers", scored(total=lambda summed, counted, lengths, ids: (summed / counted.sum(dim=-1) ** POWER).exp()),
        "This is e to the score. The task asks for the logarithm itself.")


def one_by_one(logits, ids, prompt, lengths):
    scores = []
    for row, tokens, length in zip(logits, ids, lengths.tolist(), strict=True):
        values = [row[place - 1].log_softmax(dim=-1)[tokens[place]] for place in range(prompt, length)]
        scores.append(sum(values) / len(values) ** POWER)
    return torch.stack(scores)


mistake("answers", scored(counts=lambda prompt, lengths, n: (prompt, lengths + 1)),
        "One position too many: row i ends at position `lengths[i] - 1`. After that comes padding.")
mistake("answers", scored(pick=lambda logits: logits.log_softmax(dim=1)),
        "Your softmax runs along the text. Each position has a distribution over the vocabulary, the last axis.")
alternative("answers", one_by_one)
equivalent("answers", "logits[:, :-1] → logits[:, :]", "`gather` reads only as many rows as it has indices.")
equivalent("answers", "log_p.gather(-1, ids[:, 1:, None])[..., 0] → log_p.gather(-1, ids[:, 1:, None])[..., -1]",
           "After `gather` that axis has one entry.")
if POWER == 1:
    equivalent("answers", "counted.sum(dim=-1) ** POWER → counted.sum(dim=-1)", "The power is 1.")

# %% [markdown]
# ### Task 2 · Calibrate before use   ●●○○○ · 8 minutes · 2 points
#
# A prompt with examples makes some answers likely, whatever is asked. Zhao et al. (2021) measure this: they ask about texts
# without content, such as *N/A* and the empty text. `neutral` has the probabilities of the answers after each of
# those prompts, `p` those after each real question. Average the rows of `neutral`, divide each row of `p` by that average, and
# make each row add up to 1 again. (The lesson subtracts logarithms, which is the same division; here you average several prompts.)
#
# <details><summary>Hint 1: which average?</summary>
#
# One number per answer: `neutral.mean(dim=0)`.
# </details>
# <details><summary>Hint 2: how do they add up to 1?</summary>
#
# Divide each row by its own sum, `sum(dim=-1, keepdim=True)`. They are probabilities: no softmax.
# </details>

# %% nbgrader={"grade_id": "calibrate", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def calibrate(
    p: Float[Tensor, "question answer"], neutral: Float[Tensor, "prompt answer"]
) -> Float[Tensor, "question answer"]:
    """Probabilities of the answers, divided by what they are without a question; each row adds up to 1."""
    ### BEGIN SOLUTION
    ratio = p / neutral.mean(dim=0)                                # (question, answer)
    return ratio / ratio.sum(dim=-1, keepdim=True)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-calibrate", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("calibrate") as show:
    half = torch.full((1, 2), 0.5)
    show(calibrate(torch.tensor([[0.75, 0.25]]), torch.tensor([[0.75, 0.25]])), "a question that changes nothing")
    show(calibrate(torch.tensor([[0.75, 0.25]]), half), "a prompt without a preference")
    answers = show.random_size(3, 5)
    p, neutral = (2 * show.randn(4, answers)).softmax(dim=-1), (2 * show.randn(3, answers)).softmax(dim=-1)
    show(calibrate(p, neutral), f"four questions, three neutral prompts, {answers} answers")

# %% tags=["mistakes"]
def rows_of_one(x):
    return x / x.sum(dim=-1, keepdim=True)


mistake("calibrate", lambda p, neutral: p / neutral.mean(dim=0),
        "The rows do not add up to 1. Divide each one by its sum.")
mistake("calibrate", lambda p, neutral: (p / neutral.mean(dim=0)).softmax(dim=-1),
        "You took a softmax of ratios. They are not logits: divide each row by its sum.")
mistake("calibrate", lambda p, neutral: rows_of_one(p * neutral.mean(dim=0)),
        "You multiplied: that doubles the preference. Divide by it.")
mistake("calibrate", lambda p, neutral: rows_of_one(p / neutral[0]),
        "Only the first neutral prompt counts. Average all of them.")
mistake("calibrate", lambda p, neutral: rows_of_one(p / neutral.log().mean(dim=0).exp()),
        "This is the geometric mean of the neutral probabilities. The task asks for the plain average.")
mistake("calibrate", lambda p, neutral: (p / neutral.mean(dim=0)) / (p / neutral.mean(dim=0)).sum(),
        "You divide by the sum of all rows. Each question's row adds up to 1.")
mistake("calibrate", lambda p, neutral: (p / neutral.mean(dim=0)) / (p / neutral.mean(dim=0)).sum(dim=0),
        "The columns add up to 1. Each *row* is a distribution over the answers: `dim=-1`.")
mistake("calibrate", lambda p, neutral: p,
        "Nothing has changed. Divide by one number per answer: the average over the neutral prompts, `dim=0`.")
equivalent("calibrate", "neutral.mean(dim=0) → neutral.sum(dim=0)", "The rows are divided by their sums.")
alternative("calibrate", lambda p, neutral: (p.log() - neutral.mean(dim=0).log()).softmax(dim=-1))

# %% [markdown]
# ### Task 3 · How much of an induction head is it?   ●●●○○ · 12 minutes · 3 points
#
# An induction head looks from a token to what came *after* the same token the last time. Measure how much it does.
# `weights` are the attention weights of several heads over one text, `ids` are its tokens. For each position $i$ whose token
# has occurred before, take the *latest* earlier position $j$ of that token, and the weight from $i$ to $j + 1$. (Where a token
# comes twice in a row, $j + 1$ is $i$ itself; that also counts.) Return each head's mean over those positions; positions whose
# token is new don't count. At least one token of the text occurs again.
#
# <details><summary>Hint 1: which entry?</summary>
#
# `weights[:, i, j + 1]`: queries are rows, keys columns. One number per head.
# </details>
# <details><summary>Hint 2: the latest one</summary>
#
# Go through the text once and remember, in a dictionary, where each token was last. Look it up *before* you store the new
# position.
# </details>

# %% nbgrader={"grade_id": "induction", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def induction_score(weights: Float[Tensor, "head query key"], ids: Int[Tensor, "length"]) -> Float[Tensor, "head"]:
    """Each head's mean weight from a token that occurs again to what came after it the last time."""
    ### BEGIN SOLUTION
    last, found = {}, []
    for i, token in enumerate(ids.tolist()):
        if token in last:
            found.append(weights[:, i, last[token] + 1])           # (head,)
        last[token] = i
    return torch.stack(found).mean(dim=0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-induction", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("induction") as show:
    def causal_weights(heads, n):
        return show.randn(heads, n, n).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf).softmax(dim=-1)

    show(induction_score(causal_weights(2, 4), torch.tensor([3, 7, 5, 3])), "3 7 5 3: one token occurs again")
    show(induction_score(causal_weights(2, 6), torch.tensor([3, 7, 3, 5, 3, 7])), "3 7 3 5 3 7: 3 occurs three times")
    show(induction_score(causal_weights(2, 4), torch.tensor([4, 4, 4, 1])), "4 4 4 1: the same token in a row")
    n = show.random_size(9, 14)
    show(induction_score(causal_weights(3, n), show.randint(0, 5, n)), f"three heads, {n} random tokens")

# %% tags=["mistakes"]
def induced(earlier=max, offset=1, counted=None, entry=None):
    """Scores with something changed: which earlier position, how far after it, what the sum is divided by."""
    def answer(weights, ids):
        tokens, found = ids.tolist(), []
        for i, token in enumerate(tokens):
            before = [j for j in range(i) if tokens[j] == token]
            if before:
                j = earlier(before) + offset
                found.append(weights[:, i, j] if entry is None else entry(weights, i, j))
        total = torch.stack(found).sum(dim=0)
        return total / (len(found) if counted is None else counted(tokens))
    return answer


def all_twins(weights, ids):
    same = (ids[:, None] == ids[None, :]).tril(-1)
    after = torch.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    returns = same.any(dim=-1)
    return (weights * after).sum(dim=-1)[:, returns].mean(dim=-1)


mistake("induction", induced(earlier=min), "You take the *first* earlier position of the token. Take the latest.")
mistake("induction", induced(offset=0),
        "You measure the weight on the earlier token itself. An induction head looks at what came *after* it: `j + 1`.")
mistake("induction", induced(offset=-1), "You measure the weight on the token *before* the earlier one. Take `j + 1`.")
mistake("induction", induced(counted=len),
        "You divide by the length of the text. Positions whose token is new don't count.")
mistake("induction", induced(counted=lambda tokens: 1), "This is the sum over the positions. Take the mean.")
mistake("induction", induced(entry=lambda weights, i, j: weights[:, j, i]),
        "You have swapped query and key: the later position is the query, `weights[:, i, j + 1]`.")
mistake("induction", all_twins, "You add up the weights after *all* earlier occurrences. Only the latest counts.")
mistake("induction", lambda weights, ids: induced()(weights, ids).mean().expand(len(weights)).clone(),
        "All heads have the same score. Take the mean over positions only.")


def by_matrix(weights, ids):
    n = len(ids)
    same = (ids[:, None] == ids[None, :]).tril(-1)
    latest = torch.where(same, torch.arange(n), -1).max(dim=-1).values
    rows = (latest >= 0).nonzero()[:, 0]
    return weights[:, rows, latest[rows] + 1].mean(dim=-1)


alternative("induction", by_matrix)

# %%
check.summary()
