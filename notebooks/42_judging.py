# %% [markdown] lesson={"part": "V From a model to an assistant", "builds": "intervals by bootstrap, a paired comparison, pass@k, majorities and checkers, a scratchpad, a test for leaked tasks"}
# # 42 · Judging, and thinking longer
#
# **After this lesson you will be able to**
#
# - put an interval on a score, and say how many tasks it takes to tell 70% from 73%;
# - compare two models on the same tasks, which takes far fewer of them;
# - compute pass@k without bias;
# - say when a majority of answers helps and when it hurts, and what a checker adds;
# - show what intermediate steps do for a small model, with the two controls that such a claim needs;
# - find out whether a test was in the training text.
#
# **You need** lessons 10, 11 and 12 (section 3); 41 uses the same model. **It takes** about 60 minutes to read and try;
# all cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: 35 of 50
#
# A model gets 35 of 50 tasks right. You change something, train again, and now it gets 37. Is it better? The same model
# can be asked once or a hundred times per task, it may write two tokens or two thousand, and it may have read the test.
# Each of these changes the score, and the number alone shows none of them.
#
# To try this out, we need a model that is neither perfect nor hopeless.

# %% tags=["recorded"]
import copy
import json
import math
from collections import Counter
from functools import partial

import numpy as np
import torch

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib import plots
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.paths import DATA

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# Ours adds two numbers below 50. A text is six tokens of prompt, `2 4 + 3 8 =`, and three of answer, the ones digit
# first: `2 6 end` is 62. Of the 2,500 pairs, 500 are the test; the others are for training.

# %% tags=["recorded"]
END = 12
all_pairs = torch.cartesian_prod(torch.arange(50), torch.arange(50))
shuffled = torch.randperm(2500, generator=torch.Generator().manual_seed(0))
practice, test = all_pairs[shuffled].split([2000, 500])


def prompts_of(chosen):  # (size, 2): prompts (size, 6), and what is right (size,)
    a, b = chosen.unbind(dim=1)
    plus, equals = torch.full_like(a, 10), torch.full_like(a, 11)
    prompts = torch.stack([a // 10, a % 10, plus, b // 10, b % 10, equals], dim=1)
    return prompts, a + b


def spelled(numbers):  # the ones first: (size, 3)
    return torch.stack([numbers % 10, numbers // 10, torch.full_like(numbers, END)], 1)


# %% [markdown]
# Its teacher is sloppy: in half of the demonstrations a slip of up to 9, up or down, is added to the answer.

# %% tags=["recorded"]
def sums(size):
    return prompts_of(practice[torch.randint(len(practice), (size,))])


def demonstrations(size):
    prompts, totals = sums(size)
    slips = torch.randint(-9, 10, (size,)) * (torch.rand(size) < 0.5)
    return prompts, spelled((totals + slips).clamp(0, 99))


def new_model(vocab=13, d=64, heads=4, layers=1):
    block = BlockConfig.of_sizes(
        d, heads, 4 * d, norm="rms", activation="swiglu", bias=False,
        position="rotary_half")
    return GPT(GPTConfig(vocab, block, layers, max_length=32))


# %% [markdown]
# It imitates them: the loss is on the answer only.

# %% tags=["recorded"]
def log_probs(model, prompts, answers):  # of each token of each answer
    ids = torch.cat([prompts, answers], dim=1)
    logits = model(ids[:, :-1]).logits[:, prompts.shape[1] - 1 :]
    return logits.log_softmax(dim=-1).gather(-1, answers[..., None])[..., 0]


def imitate(model, steps, batch=demonstrations, rate=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98))
    for step in progress(range(steps), "imitating"):
        factor = min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = rate * factor
        loss = -log_probs(model, *batch(128)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


# %% [markdown]
# It writes its likeliest token each time (greedy), or one that is drawn (lesson 11):

# %% tags=["recorded"]
@torch.no_grad()
def write(model, prompts, longest=3, greedy=False, temperature=1.0):
    ids = prompts
    for _ in range(longest):
        p = (model(ids).logits[:, -1] / temperature).softmax(dim=-1)
        token = p.argmax(dim=-1, keepdim=True) if greedy else torch.multinomial(p, 1)
        ids = torch.cat([ids, token], dim=1)
    return ids[:, prompts.shape[1] :]


def is_right(answers, totals):
    return (answers == spelled(totals)).all(dim=1)


# %% [markdown]
# Twenty seconds of training, then all 500 test tasks:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = imitate(new_model(), 600)
prompts, totals = prompts_of(test)
greedy = is_right(write(model, prompts, greedy=True), totals)  # (task,)
drawn = is_right(write(model, prompts), totals)
expect("right, greedy", greedy.float().mean().item(), 0.4, 0.7)
expect("right, drawn", drawn.float().mean().item(), 0.1, 0.3)

# %% [markdown]
# The same weights, the same tasks, and one score is more than twice the other. So a score must say how the answers were
# written, and how certain it is.

# %% [markdown]
# ## 2 What a score on n tasks says
#
# ### 2.1 On paper: draw the test again
#
# We have one score. What is missing is how much it would change on other tasks of the same kind. We can't get other
# tasks, but we can pretend: draw $n$ of our $n$ tasks **with replacement**, so that some appear twice and some not at
# all, and score again. Take four tasks, three of them right: each draw is right with probability ¾, and in
# $0.75^4 = 32\%$ of such tests all four are right. So 4 tasks say next to nothing.
#
# This is the **bootstrap** (Efron 1979). Repeat it 2,000 times; the middle 95% of the scores are the **interval**.

# %%
rng = np.random.default_rng(0)
scores = np.array([1] * 35 + [0] * 15)  # 35 of 50
rows = rng.integers(len(scores), size=(2000, len(scores)))  # (draw, task)
means = []
for row in rows:
    means.append(scores[row].mean())
low, high = np.quantile(means, [0.025, 0.975])
print(f"35 of 50: {scores.mean():.0%}, from {low:.0%} to {high:.0%}")
at_once = scores[rows].mean(axis=1)
prove_equal(torch.tensor(means), torch.from_numpy(at_once), what="Loop and matrix")

# %% [markdown]
# So 37 of 50, 74%, is well inside. Two formulas give about the same. The **normal** one adds and subtracts 1.96
# standard errors. **Wilson's** (Wilson 1927) asks which true rates would make our score an ordinary one:
#
# $$\hat p \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n}} \qquad\qquad
# \frac{\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4 n^2}}}{1 + \frac{z^2}{n}}
# \qquad z = 1.96$$

# %%
def normal(right, n, z=1.96):
    p = right / n
    half = z * math.sqrt(p * (1 - p) / n)
    return p - half, p + half


def wilson(right, n, z=1.96):
    p = right / n
    middle = p + z**2 / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)


def bootstrap(scores, draws=2000):
    rows = np.random.default_rng(0).integers(len(scores), size=(draws, len(scores)))
    return np.quantile(np.asarray(scores)[rows].mean(axis=1), [0.025, 0.975])


# %% [markdown]
# ### 2.2 Break it: ten of ten
#
# A model gets 10 of 10 tasks right.

# %% jupyter={"source_hidden": true}
predict(
    "ten-of-ten", "10 of 10 right. What is the bootstrap's 95% interval?",
    "72% to 100%", "90% to 100%", "100% to 100%")

# %%
for right, n in ((35, 50), (350, 500), (10, 10)):
    resampled = bootstrap([1] * right + [0] * (n - right))
    ways = normal(right, n), wilson(right, n), resampled
    shown = (f"{low:6.1%} to {high:6.1%}" for low, high in ways)
    print(f"{right:3} of {n:3}: normal {next(shown)}, Wilson {next(shown)},",
          f"bootstrap {next(shown)}")
predicted("ten-of-ten", "100% to 100%", "All draws are right.")

# %% [markdown]
# The bootstrap and the normal formula claim certainty after ten tasks. What should an interval do? It should contain
# the true rate in 95% of all tests. For a known rate we can add up how often it does:

# %%
def coverage(interval, n, p):
    held = 0.0
    for right in range(n + 1):
        low, high = interval(right, n)
        if low <= p <= high:
            held += math.comb(n, right) * p**right * (1 - p) ** (n - right)
    return held


for n, p in ((100, 0.7), (20, 0.7), (20, 0.95), (10, 0.95)):
    print(f"{n:3} tasks, true rate {p:.0%}: the normal interval holds it in",
          f"{coverage(normal, n, p):.0%}, Wilson's in {coverage(wilson, n, p):.0%}")

# %% [markdown]
# With few tasks, or rates near 0 or 1, use Wilson's. The bootstrap earns its place where there is no simple formula: a
# median, a ratio, BLEU (lesson 09), pass@k.
#
# ### 2.3 How many tasks tell 70% from 73%?
#
# Test two models, each on $n$ tasks of its own. Their variances add up, so the difference exceeds 1.96 standard errors
# once $n$ is at least
#
# $$n = \frac{1.96^2 \left( p_1 (1 - p_1) + p_2 (1 - p_2) \right)}{(p_2 - p_1)^2}$$
#
# For 70% and 73% the numerator is $3.842 \cdot 0.4071 = 1.564$, and $1.564 / 0.03^2$ is about 1,738. But that
# is where the *true* difference just clears the bar, so half of all tests fall short. To succeed in 80% of tests,
# replace 1.96 by $1.96 + 0.84$ (a standard normal number is below 0.84 in 80% of cases):

# %%
def tasks_needed(p, q, z):
    return math.ceil(z**2 * (p * (1 - p) + q * (1 - q)) / (q - p) ** 2)


for q in (0.80, 0.75, 0.73, 0.71):
    half, most = tasks_needed(0.7, q, 1.96), tasks_needed(0.7, q, 2.8)
    print(f"70% against {q:.0%}: {half:6,} tasks; {most:6,} to succeed in 80% of tests")

# %% [markdown]
# Half the difference takes about four times the tasks.
#
# ### 2.4 The same tasks
#
# But two models are usually tested on the *same* tasks, and hard tasks are hard for both. Here are our model and a copy
# that imitates for 150 more steps. We look at the first 100 test tasks only.

# %% tags=["nbval-ignore-output"]
longer = imitate(copy.deepcopy(model), 150, rate=1e-3)
later = is_right(write(longer, prompts, greedy=True), totals)
one, other = greedy[:100].int().numpy(), later[:100].int().numpy()
print("both right", (one & other).sum(), " only before", (one > other).sum(),
      " only after", (one < other).sum(), " means", one.mean(), other.mean())

# %% [markdown]
# The **unpaired** comparison forgets which task is which. The **paired** one takes the difference on each task: 0 where
# both agree, which says nothing, and ±1 elsewhere. With $b$ and $c$ tasks that only one of them gets right, it is
# $(c - b)/n$, and its variance about $(b + c)/n^2$.

# %% tags=["nbval-ignore-output"]
def unpaired(one, other, z=1.96):
    error = math.sqrt((one.var() + other.var()) / len(one))
    middle = other.mean() - one.mean()
    return middle - z * error, middle + z * error


elsewhere = rng.permutation(other)  # the same scores, at other tasks
intervals = {"unpaired": unpaired(one, other), "paired": bootstrap(other - one),
             "paired with another task": bootstrap(elsewhere - one)}
for name, (low, high) in intervals.items():
    print(f"{name:24} {low:+.1%} to {high:+.1%}, {100 * (high - low):.0f} points wide")

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
bounds = {name: (100 * low, 50 * (low + high), 100 * high) for name, (low, high) in intervals.items()}
plots.ranges(
    bounds, title="Pairing helps only if the tasks are the same", xlabel="what the copy gains (points)",
    mark=0,
    alt="95% intervals of the difference, in points: "
    + "; ".join(f"{name} {low:+.0f} to {high:+.0f}" for name, (low, _, high) in bounds.items()) + ".",
)

# %% [markdown]
# Is the paired interval narrower *because* the tasks are the same? The last row is the control: the same scores, each
# paired with another task's, and the interval is as wide as before. So keep each task's result, not only the mean.

# %% [markdown]
# ## 3 At least one of k
#
# ### 3.1 On paper: 3 of 5
#
# So far each task was answered once. A programmer may let a model try $k$ times and run the tests: what counts is that
# one of them passes, **pass@k**. Say five answers to a task were drawn and three are right. What is pass@2?
#
# The obvious estimate: $p = \frac35$, so two answers are both wrong with $(1 - p)^2 = 0.16$, and pass@2 is 0.84. But we
# can also count. Ten pairs can be chosen from five answers, and only one of the ten has two wrong ones: 0.9. With $n$
# answers, $c$ of them right (Chen et al. 2021, eq. 1):
#
# $$\text{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}$$
#
# Is the obvious estimate too high or too low, on average? Decide first. A model is right with probability 0.2 and draws
# 5 answers:

# %%
def obvious(n, c, k):
    return 1 - (1 - c / n) ** k


def counted(n, c, k):
    return 1 - math.comb(n - c, k) / math.comb(n, k)


n, p = 5, 0.2
for k in (1, 2, 5):
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    means = [sum(chance * estimate(n, c, k) for c, chance in enumerate(chances))
             for estimate in (obvious, counted)]
    print(f"k = {k}: truth {1 - (1 - p) ** k:.3f}; on average the obvious estimate is",
          f"{means[0]:.3f}, the counted one {means[1]:.3f}")

# %% [markdown]
# If an unbiased estimate is put into a curve that bends down, the result is too low on average. Counting has no such
# **bias**.
#
# ### 3.2 Of our model
#
# Our model draws 64 answers to each of the 500 test tasks. Each is read as a number; −1 stands for anything else.

# %% tags=["recorded"]
def number(answers):  # (…, 3): (…,)
    ones, tens, end = answers.unbind(dim=-1)
    return torch.where((ones < 10) & (tens < 10) & (end == END), 10 * tens + ones, -1)


def draw(model, prompts, count=64, temperature=1.0):  # (task, count)
    answers = [write(model, prompts, temperature=temperature)
               for _ in progress(range(count), "drawing")]
    return number(torch.stack(answers, dim=1))


# %% [markdown]
# Then count pass@k for each task:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
many = draw(model, prompts)  # (task, answer)
correct = many == totals[:, None]
for k in (1, 4, 16, 64):
    by_task = [counted(64, c, k) for c in correct.sum(dim=1).tolist()]
    low, high = bootstrap(by_task)
    print(f"pass@{k:<2} {np.mean(by_task):.1%} ({low:.1%} to {high:.1%})")

# %% [markdown]
# With 64 answers, a model that gets fewer than one answer in five right solves nearly every task. (At 100% the
# bootstrap claims certainty again, as in section 2.2.) Brown et al. (2024) find such curves for language models over
# four orders of magnitude. But pass@k presumes that the right answer is recognized. (And guessing at random among 99
# totals would reach pass@64 = 48%.)

# %% [markdown]
# ## 4 Many answers, and one to choose
#
# ### 4.1 Majority, or a checker
#
# We have 64 answers per task, and may hand in one. **Self-consistency** (Wang et al. 2023) takes the most frequent one;
# no one needs to know the truth. **Best of n** asks a **verifier**, or checker (tests, a proof checker, a second model;
# Cobbe et al. 2021), and takes an answer that it accepts. On paper: the answers 45, 46, 45, 47 to 20 + 26. The majority
# says 45. A perfect checker picks 46.

# %% tags=["recorded"]
def most_frequent(answers):  # the first of those tied
    counts = Counter(answers)
    return max(counts, key=counts.get)


def scores_of_rules(many, accepted, totals, k):
    """How often each rule is right, when it sees k answers at a time."""
    found = Counter()
    for answers, ok, total in zip(many.tolist(), accepted.tolist(), totals.tolist()):
        for i in range(0, len(answers), k):
            group = answers[i : i + k]
            passed = [x for x, good in zip(group, ok[i : i + k]) if good] or group
            found["majority"] += most_frequent(group) == total
            found["perfect checker"] += total in group
            found["checker that errs"] += passed[0] == total
            found["majority of accepted"] += most_frequent(passed) == total
    return {rule: hits / (many.numel() / k) for rule, hits in found.items()}


# %% [markdown]
# A second checker errs in 20% of its verdicts, either way. If it accepts nothing, all answers count.

# %% tags=["recorded"]
KS = (1, 2, 4, 8, 16, 32, 64)


def rules_by_k(many, totals, errs):
    accepted = (many == totals[:, None]) ^ errs
    by_k = [scores_of_rules(many, accepted, totals, k) for k in KS]
    return {rule: [found[rule] for found in by_k] for rule in by_k[0]}


# %% [markdown]
# Six tasks, eight answers to each, and the one that a rule takes. Right ones are blue:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
six = {f"{a}+{b}": (str(a + b), [str(x) if x >= 0 else "?" for x in drawn])
       for (a, b), drawn in zip(test[:6].tolist(), many[:6, :8].tolist(), strict=True)}
taken = {"majority": [most_frequent(drawn) for _, drawn in six.values()],
         "perfect checker": [truth if truth in drawn else "" for truth, drawn in six.values()],
         "greedy": [str(x) for x in number(write(model, prompts[:6], greedy=True)).tolist()]}
figures.drawn_answers(
    six, taken, title="Most answers are near; few are right", alt="Six sums: " + "; ".join(
        f"{task}, drawn {', '.join(drawn)}" for task, (_, drawn) in six.items()))

# %% jupyter={"source_hidden": true}
predict(
    "which-rule", "64 answers to each task. Apart from the perfect checker, which rule is right most often?",
    "the majority", "a checker that errs in 20% of its verdicts", "the majority of what that checker accepts")

# %% tags=["nbval-ignore-output"]
torch.manual_seed(2)
curves = rules_by_k(many, totals, errs=torch.rand(many.shape) < 0.2)
baseline = {"greedy, one answer": [greedy.float().mean().item()] * 2}
plots.lines(
    {rule: (list(KS) if rule in curves else [KS[0], KS[-1]], [100 * x for x in found])
     for rule, found in (curves | baseline).items()},
    xscale="log", marker="o", dashed=list(baseline), width=7.4,
    title="What 64 answers are worth depends on who chooses",
    xlabel="answers drawn (three tokens each)", ylabel="tasks right (%)",
    alt="Tasks right, one answer and 64. " + "; ".join(
        f"{rule}: {x[0]:.0%}, {x[-1]:.0%}" for rule, x in (curves | baseline).items()))

# %% [markdown]
# The perfect checker's curve is pass@k of section 3: it is right whenever a right answer is there. Three seeds,
# recorded by `data/judging.py`: one greedy answer, then each rule with 64 answers:

# %%
recorded = json.loads((DATA / "judging.json").read_text())
for rule in ("greedy", *curves):
    seeds = recorded["rules"][rule].values()
    print(f"{rule:21}", *(f"{x[-1]:4.0%}" for x in seeds))
predicted("which-rule", "the majority of what that checker accepts")

# %% [markdown]
# Three observations, the same in all three seeds. First, the baseline: one greedy answer, three tokens, is as good as
# the majority of 64 answers, 192 tokens, or better. (Wang et al. measure gains where long answers differ in their
# steps.) Second, the checker that errs gains nothing beyond 16 answers: of what it accepts on a task, the same fraction
# is wrong, however many answers there are. Third, voting among accepted answers keeps improving.
#
# ### 4.2 Where the majority hurts
#
# Votes find the model's likeliest answer. What if that is wrong? To see it with few votes, we draw at temperature 0.3
# (lesson 11), where likely answers stand out. We split the tasks by whether the greedy answer is right.

# %% tags=["nbval-ignore-output"]
cold = draw(model, prompts, 32, temperature=0.3)
for name, tasks in {"right": greedy, "wrong": ~greedy}.items():
    votes, truths = cold[tasks], totals[tasks]
    by_k = [scores_of_rules(votes, votes >= 0, truths, k)["majority"]
            for k in (1, 4, 16, 32)]
    print(f"greedy answer {name}: {tasks.sum():3} tasks;",
          "majority of 1, 4, 16, 32:", *(f"{x:4.0%}" for x in by_k))

# %% [markdown]
# More votes make the likeliest answer more certain, right or wrong. On tasks of the second kind, one drawn answer is
# better than 32 votes. The whole score rises if the first kind outweighs the second.
#
# ### 4.3 Break it: a checker that is consistent
#
# So far the checker erred independently at each verdict. Real checkers are consistent: a wrong answer that passes weak
# tests passes them every time. Take the same rate of errors, but drawn once for each task and number:

# %% tags=["recorded"]
def consistent_errors(many):
    once = torch.rand(len(many), 101) < 0.2  # (task, number); column 0: no number
    return once.gather(1, many + 1)


# %% [markdown]
# One live run, then the three recorded seeds:

# %% tags=["nbval-ignore-output"]
consistent = rules_by_k(many, totals, consistent_errors(many))
for rule in ("checker that errs", "majority of accepted"):
    print(f"{rule:21} independent {curves[rule][-1]:.0%},",
          f"consistent {consistent[rule][-1]:.0%}")
    for name in (rule, f"{rule}, consistent"):
        seeds = recorded["rules"][name].values()
        print(f"  {name:32}", *(f"{x[-1]:4.0%}" for x in seeds))

# %% [markdown]
# Much of the votes' advantage came from the *independence* of the errors: without it, voting among accepted answers
# falls most. So a checker's error rate alone doesn't say what it is worth. Find out whether it makes the same error
# again.

# %% [markdown]
# ## 5 Thinking longer
#
# ### 5.1 One token, or eight
#
# There is a second way to spend tokens on a task: not more answers, but a longer one. Here is a task where it matters.
# A lamp is off. Eight moves follow, each *on*, *off* or, three times out of four, *press*, which toggles it. Is
# it on at the end? On paper, `press press on press`: the lamp is on, off, on, off. Each state needs *two* things, the
# state before and one move. If you write no states, you have to look at all moves at once.
#
# A **scratchpad** (Nye et al. 2021) or **chain of thought** (Wei et al. 2022) is such an answer: intermediate steps
# first, the answer last. We let the model write every state, every second or fourth, or the answer alone. A dot above
# the moves is a token that it writes, and the lines are what it has to be computed from:

# %% jupyter={"source_hidden": true}
moves = "on press press off press press on press".split()


def written_states(every):  # node (step, position) → what it is computed from
    ends = range(every - 1, len(moves), every)
    return {(step, end): [*((0, end - back) for back in range(every)), *([(step - 1, end - every)] if step > 1 else [])]
            for step, end in enumerate(ends, start=1)}


figures.reach(
    {"the answer alone": written_states(8), "every fourth state": written_states(4), "all states": written_states(1)},
    moves, title="A written state makes the next step small", ylabel="token written",
    alt="Three graphs above eight moves. The answer alone: one token above the last move with lines to all eight. Every "
    "fourth state: two tokens, the second with lines to the first and to four moves. All states: a staircase of eight "
    "tokens, each with a line to the one before and to one move.",
)

# %% [markdown]
# On the left, one step has to take in eight moves; on the right, each takes in one move and one state.

# %% tags=["recorded"]
PRESS, DOT, MOVES = 2, 3, 8  # 0 is off, 1 is on, for moves and for the lamp


def lamps(size, every, dots=0):
    moves = torch.randint(8, (size, MOVES)).clamp(max=PRESS)
    lamp = torch.zeros(size, dtype=torch.long)
    states = [lamp]
    for move in moves.T:
        states.append(torch.where(move == PRESS, 1 - states[-1], move))
    answers = torch.stack(states[1:], dim=1)[:, every - 1 :: every]
    asked = torch.cat([moves, lamp[:, None]], dim=1)
    return torch.nn.functional.pad(asked, (0, dots), value=DOT), answers


# %% [markdown]
# All have the same parameters and the same number of steps. But a model that writes states also learns from them, up to
# eight labels per text instead of one. So each is also trained with as many *labels*: the answer alone for eight times
# as many steps.

# %% tags=["recorded"]
def thinker(every, seed=0, dots=0, steps=200, layers=1):
    torch.manual_seed(seed)
    small = new_model(vocab=4, d=32, heads=1, layers=layers)
    return imitate(small, steps, batch=partial(lamps, every=every, dots=dots))


def right_at_last(small, every, dots=0):
    torch.manual_seed(99)
    moves, answers = lamps(1000, every, dots)
    said = write(small, moves, answers.shape[1], greedy=True)
    return (said[:, -1] == answers[:, -1]).float().mean().item()


# %% jupyter={"source_hidden": true}
predict(
    "dots", "Seven dots before the answer instead of seven states: as many tokens, but nothing noted. It is right …",
    "as often as with the states", "halfway between", "about as often as without any")

# %% [markdown]
# Here are both ends, live:

# %% tags=["nbval-ignore-output"]
thinks = thinker(every=1)
expect("all states written", right_at_last(thinks, 1), 0.95, 1)
expect("answer alone", right_at_last(thinker(every=MOVES), MOVES), 0.5, 0.85)

# %% [markdown]
# The simplest rule looks at the last move only: right in all cases of *on* and *off*, a quarter, and in half of the
# others, together 62.5%. (With the last two moves it is 72%: all but 9/16 of the cases, and half of those.) All
# variants, three seeds each, recorded:

# %%
print(f"{'':24}{'200 steps':>16}{'as many labels':>20}")
for name, kinds in recorded["thinking"].items():
    columns = ["".join(f"{x:5.0%}" for x in seeds.values()) for seeds in kinds.values()]
    print(f"{name:24}" + "     ".join(columns))
predicted("dots", "about as often as without any")

# %% [markdown]
# With every state written, nearly all answers are right. With every second or fourth, each step still needs two or four
# moves at once, and that does no better than the answer alone. Dots are the control: as many tokens before the answer,
# and no intermediate result. After 200 steps they are far from the states.
#
# With as many labels, the picture changes. The answer alone now gets 84 to 90%: much of its lag was training. But
# labels alone don't explain the rest: with every second or fourth state, as many of them bring only 66 to 72%. All
# states still win with each seed, after an eighth of the steps. The dots beat the answer alone with one seed, lose with
# another, and are level with the third.
#
# In fact they can't do much here. Our model has one layer, whose attention reads the *embeddings* of earlier tokens, so
# what is computed at an earlier dot never reaches the answer. A written state does, since it comes back as a token. The
# last two rows have two layers, so the second can read what the first computes at a dot. Now, with as many labels, dots
# are ahead of the answer alone with each seed, by two to five points. (Writing and learning states both belong to a
# scratchpad; the next test looks at the reading alone.)
#
# ### 5.2 Does it read what it wrote?
#
# States that are written need not be used. The intervention: let it write seven states, *flip the seventh*, and let it
# answer. If it reads what it wrote, the answer must flip where the last move is *press*, and nowhere else. As a
# control, flip the sixth, which the answer does not need:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(5)
moves, _ = lamps(1000, every=1)
seven = torch.cat([moves, write(thinks, moves, 7, greedy=True)], dim=1)
answer = write(thinks, seven, 1, greedy=True)
pressed = moves[:, MOVES - 1] == PRESS
for state in (7, 6):
    changed = seven.clone()
    changed[:, MOVES + state] = 1 - changed[:, MOVES + state]
    flips = (write(thinks, changed, 1, greedy=True) != answer)[:, 0].float()
    print(f"state {state} flipped: {flips[pressed].mean():.0%} of the answers flip",
          f"after a press, {flips[~pressed].mean():.0%} otherwise")

# %% [markdown]
# So the answer is computed from the last state, with few exceptions: the sixth still sways a few. A model that is
# rewarded for its answers alone need not be that honest: test it, don't assume it.

# %% [markdown]
# ## 6 The test was in the training text
#
# ### 6.1 Cheating by accident
#
# Texts from the web contain tests with their answers: **contamination**. We leak the first 50 test tasks with right
# answers into the demonstrations, and train for 150 more steps. The fair rival is `longer` of section 2.4: as many
# steps without the leak. (Our test was never quite clean: 2,000 of the 2,500 pairs are for practice, so about four of
# five test tasks are among them in the other order. That is so for both models; only the leak differs.)

# %% tags=["recorded"]
leaked, fresh = test[:50], test[50:]


def with_leak(size):
    chosen = leaked[torch.randint(len(leaked), (size // 2,))]
    more_prompts, more_totals = prompts_of(chosen)
    prompts, answers = demonstrations(size)
    both = torch.cat([answers, spelled(more_totals)])
    return torch.cat([prompts, more_prompts]), both


def greedy_right(model, chosen):
    prompts, totals = prompts_of(chosen)
    return is_right(write(model, prompts, greedy=True), totals).float()  # (task,)


# %% jupyter={"source_hidden": true}
predict(
    "leak-swapped", "The leaked tasks are rephrased: 38 + 24 instead of 24 + 38. The contaminated model scores …",
    "as on fresh tasks", "nearly as on the published text")

# %% [markdown]
# One live run, then three seeds:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(3)
leaky = imitate(copy.deepcopy(model), 150, batch=with_leak, rate=1e-3)
tests = {"the published test": leaked, "rephrased": leaked.flip(1),
         "fresh tasks": fresh}
print("                     before   no leak   leak")
for name, chosen in tests.items():
    found = (greedy_right(each, chosen).mean() for each in (model, longer, leaky))
    print(f"{name:20}", *(f"{x:7.0%} " for x in found))
for name, by_model in recorded["leak"].items():
    for kind, seeds in by_model.items():
        print(f"recorded: {name:20} {kind:8}", *(f"{x:4.0%}" for x in seeds.values()))
predicted("leak-swapped", "nearly as on the published text")

# %% [markdown]
# In all recorded seeds the leak raises the published score by 8 points or more, and changes the fresh one by 3 at
# most. (In the live run, whose two models draw different demonstrations, the fresh scores may differ by more.) The
# rephrased score, often shown as proof of innocence, rises as well, by 6 to 26 points. (Six points are three tasks of
# 50; what counts is that all three seeds rise.) Rephrasing catches models that learned the *wording*; ours
# learned the *answer*.
#
# ### 6.2 Finding it from outside
#
# Fresh tasks of the same kind are the best test. If there are none, compare the **loss**: on texts that a model has
# read it should be lower than on texts that are as hard and were never published.

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def losses(model, chosen):  # of each right answer, in nats
    prompts, totals = prompts_of(chosen)
    return -log_probs(model, prompts, spelled(totals)).sum(dim=1).numpy()


for name, each in {"no leak": longer, "leak": leaky}.items():
    read, unread = losses(each, leaked), losses(each, fresh[:50])
    low, high = unpaired(unread, read)
    print(f"{name:8} published {read.mean():.2f}, fresh {unread.mean():.2f};",
          f"difference {low:+.2f} to {high:+.2f}")

# %% [markdown]
# The first interval contains 0, the second doesn't. Only the model without the leak makes this evidence: otherwise the
# published tasks might just be easier.

# %% [markdown]
# ## 7 Open the library
#
# ### 7.1 Three functions
#
# This lesson's estimates are in `txlib.posttraining`, and agree with ours:

# %%
from txlib.posttraining import bootstrap_interval, majority, pass_at_k

theirs = np.array(bootstrap_interval(scores))
prove_equal(torch.tensor(bootstrap(scores)), torch.tensor(theirs), what="Intervals")
for n, c, k in ((5, 3, 2), (64, 9, 16), (10, 0, 3)):
    assert math.isclose(counted(n, c, k), pass_at_k(n, c, k))
for group in many[:20].tolist():
    assert most_frequent(group) == majority(group)
show_source(bootstrap_interval, last=6)

# %% [markdown]
# ### 7.2 Multiple choice, as leaderboards score it
#
# The evaluation harness behind many leaderboards, `lm-eval` (Biderman et al. 2024), reports two scores for multiple
# choice. `acc` takes the answer with the highest log-probability: the *sum* of lesson 12. `acc_norm` divides it by the
# answer's length in *characters* first, so that it does not depend on how a tokenizer cuts. `score_answers` gives the
# sums. We redo one by hand, and score lesson 12's model on four beginnings.

# %%
from txlib import load_pretrained
from txlib.data import shipped
from txlib.generation import score_answers
from txlib.text import load_tokenizer

reader = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
encode = load_tokenizer(shipped("glassllm-en")).encode
BEGINNINGS = ["The March", "The Mock", "The White", "The Dormouse said to the"]
ENDS = ["Hare", "Turtle", "Rabbit", "Hatter"]

# %% [markdown]
# Beginning $i$ wants end $i$:

# %%
characters = torch.tensor([len(end) for end in ENDS])
choices = [encode(" " + end) for end in ENDS]
asked = [encode(beginning) for beginning in BEGINNINGS]
each = torch.stack([score_answers(reader, prompt, choices) for prompt in asked])
by_hand = log_probs(reader, torch.tensor(asked[:1]), torch.tensor(choices[:1])).sum()
prove_equal(by_hand, each[0, 0], tolerance=1e-4, what="By hand and score_answers")
for name, score in {"acc": each, "acc_norm": each / characters}.items():
    hits = (score.argmax(dim=1) == torch.arange(len(ENDS))).sum().item()
    low, high = wilson(hits, len(ENDS))
    print(f"{name:8} {hits} of {len(ENDS)}; true rate {low:.0%} to {high:.0%}")

# %% [markdown]
# Chance is one in four. Four tasks barely show that the model is better than that. And all four names come from a book
# that this model was trained on (lesson 12): by section 6, such a score says nothing about new texts.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Model A scores 71% on 200 tasks, model B 74% on the same. What do you ask for?**
#
# <details><summary>A. A larger test, there is no other way</summary>
#
# It would help, and there is a cheaper way.
# </details>
# <details><summary>B. Both models' answers to each task</summary>
#
# Right. If they differ on 6 tasks, all in favor of B, that says far more than two means do.
# </details>
# <details><summary>C. Nothing: 3 points are 3 points</summary>
#
# Each score is uncertain by ±6 points.
# </details>
#
# **2. Of 10 answers, 1 is right. What is pass@10, estimated without bias?**
#
# <details><summary>A. $1 - 0.9^{10} = 0.65$</summary>
#
# That is the obvious estimate, which is too low on average.
# </details>
# <details><summary>B. 1</summary>
#
# Right: the only choice of ten answers contains the right one. The estimate is rough, but without bias.
# </details>
# <details><summary>C. 0.1</summary>
#
# That is pass@1.
# </details>
#
# **3. A majority of 40 answers scores lower than one drawn answer. Can that be?**
#
# <details><summary>A. Yes, if on most tasks the likeliest answer is wrong</summary>
#
# Right. On such tasks more votes make the wrong answer more certain, and one draw is sometimes right.
# </details>
# <details><summary>B. No, votes average errors out</summary>
#
# They average *independent* errors. A model that prefers a wrong answer prefers it each time.
# </details>
#
# **4. A model writes long steps and gets more right than one that doesn't. What shows that it uses the steps?**
#
# <details><summary>A. The steps are correct</summary>
#
# They could be written next to an answer that was found in another way.
# </details>
# <details><summary>B. The answers change when a step is changed</summary>
#
# Right, and a change that should not matter must leave them alone.
# </details>
# <details><summary>C. It takes longer</summary>
#
# So do dots.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A score is a sample: give $n$ and an interval. To tell 70% from 73% takes thousands of tasks. Both models on the
#   same ones need fewer, in section 2.4 less than half as many.
# - pass@k is counted: $1 - \binom{n-c}{k} / \binom{n}{k}$. The obvious estimate is too low.
# - A majority approaches the likeliest answer, right or wrong, and a checker is no better than its errors allow;
#   together they go further as long as the errors are independent. Compare with one greedy answer.
# - Written steps make a hard task many easy ones, each with a label, which are learned much faster. Dots bring our
#   one-layer model no reliable gain, and one of two layers a small one. Flip a step to see whether it is read.
# - Contamination raises the published score. Fresh tasks reveal it, rephrased ones need not; a lower loss is evidence.
#
# **Read** Chen et al. 2021, *Evaluating Large Language Models Trained on Code*,
# [arXiv:2107.03374](https://arxiv.org/abs/2107.03374), section 2. Wang et al. 2023, *Self-Consistency*,
# [arXiv:2203.11171](https://arxiv.org/abs/2203.11171). Nye et al. 2021, *Show Your Work: Scratchpads*,
# [arXiv:2112.00114](https://arxiv.org/abs/2112.00114). Wei et al. 2022, *Chain-of-Thought Prompting*,
# [arXiv:2201.11903](https://arxiv.org/abs/2201.11903). Brown et al. 2024, *Large Language Monkeys*,
# [arXiv:2407.21787](https://arxiv.org/abs/2407.21787). Biderman et al. 2024, *Lessons from the Trenches*,
# [arXiv:2405.14782](https://arxiv.org/abs/2405.14782).
#
# **Do** the exercise [42_judging](../exercises/exercise_42_judging.ipynb). Then go on to
# [43 Looking inside](43_inside.ipynb), which reads and changes what a model computes.
