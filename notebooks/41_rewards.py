# %% [markdown] lesson={"part": "V From a model to an assistant", "builds": "REINFORCE, baselines, GRPO's loss part by part, a reward that is hacked, DPO"}
# # 41 · Learning from rewards and preferences
#
# **After this lesson you will be able to**
#
# - say why a model that imitates learns the mistakes of its teachers, and how a checker helps;
# - derive REINFORCE for one decision on paper, check it by drawing, and extend it to whole answers;
# - build GRPO's loss part by part, and say from runs what each part does when it is removed;
# - watch a reward being hacked, see it in a curve, and hold the model back by a divergence;
# - learn from pairs of answers with DPO, and read from its formula why a preferred answer may become less likely.
#
# **You need** lessons 10, 11 and 40. **It takes** about 50 minutes to read and try; all cells together run in about a
# minute on a laptop.

# %% [markdown]
# ## 1 The problem: it imitates the mistakes as well
#
# A language model learns to continue texts as people wrote them. If half of these texts are wrong, a perfect imitator
# is wrong half of the time, and more such texts don't help. But sometimes an answer that is hard to write is easy to
# *check*: a sum, a proof, a program with tests, a rhyme. This lesson replaces examples to imitate with a **reward**:
# the model writes an answer itself, and a number says how good it was.
#
# Our case is as small as possible: sums of two numbers below 50. A decoder with one layer learns from a sloppy teacher
# that is wrong about half of the time.

# %% tags=["recorded"]
import copy
import json

import torch
import torch.nn.functional as F

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib import plots
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.paths import DATA

torch.set_num_threads(1)  # for models this small, more threads only wait

# %% [markdown]
# The tokens are ten digits, 10 for +, 11 for =, and 12, which ends an answer. An answer begins with the ones digit, as
# when you add on paper: `27+15=` is followed by `2`, `4`, end. Of all 2,500 pairs of numbers, 500 are kept for the
# test.

# %% tags=["recorded"]
END = 12
pairs = torch.cartesian_prod(torch.arange(50), torch.arange(50))
shuffled = torch.randperm(2500, generator=torch.Generator().manual_seed(0))
practice, test = pairs[shuffled].split([2000, 500])


def spelled(numbers):  # the ones first: (size, 3)
    return torch.stack([numbers % 10, numbers // 10, torch.full_like(numbers, END)], 1)


def prompts_of(chosen):  # (size, 2): prompts (size, 6), and what is right (size,)
    a, b = chosen.unbind(dim=1)
    plus, equals = torch.full_like(a, 10), torch.full_like(a, 11)
    prompts = torch.stack([a // 10, a % 10, plus, b // 10, b % 10, equals], dim=1)
    return prompts, a + b


def sums(size, group=1):  # each prompt `group` times
    chosen = practice[torch.randint(len(practice), (size,))]
    return prompts_of(chosen.repeat_interleave(group, dim=0))


# %% [markdown]
# In half of the demonstrations the teacher slips, by up to 9 in either direction:

# %% tags=["recorded"]
def demonstrations(size):
    prompts, totals = sums(size)
    slips = torch.randint(-9, 10, (size,)) * (torch.rand(size) < 0.5)
    return prompts, spelled((totals + slips).clamp(0, 99))


torch.manual_seed(1)
for prompt, answer in zip(*demonstrations(4), strict=True):
    text = "".join("0123456789+="[token] for token in prompt)
    print(text, "".join(map(str, answer[:2].flip(0).tolist())))

# %% [markdown]
# The model is a decoder like those of lesson 16. We need its log-probability of each token of an answer:

# %% tags=["recorded"]
def new_model():
    block = BlockConfig.of_sizes(
        64, 4, 256, norm="rms", activation="swiglu", bias=False, position="rotary_half")
    return GPT(GPTConfig(13, block, layers=1, max_length=16))


def log_probs(model, prompts, answers):  # (size, 6), (size, n): (size, n)
    ids = torch.cat([prompts, answers], dim=1)
    logits = model(ids[:, :-1]).logits[:, prompts.shape[1] - 1 :]
    return logits.log_softmax(dim=-1).gather(-1, answers[..., None])[..., 0]


# %% [markdown]
# Imitation raises these log-probabilities for the teacher's answers:

# %% tags=["recorded"]
def descend(loss, model, optimizer):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def imitate(model, steps, rate=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98))
    for step in progress(range(steps), "imitating"):
        factor = min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = rate * factor
        descend(-log_probs(model, *demonstrations(128)).mean(), model, optimizer)


# %% [markdown]
# The model answers greedily, or it draws each token (lesson 11). Tokens after the end don't count:

# %% tags=["recorded"]
def written(answers):  # True up to the first end, and False after it
    ends = answers == END
    return ends.cumsum(dim=1) - ends.int() == 0


@torch.no_grad()
def write(model, prompts, longest=3, greedy=False):
    ids = prompts
    for _ in range(longest):
        p = model(ids).logits[:, -1].softmax(dim=-1)
        token = p.argmax(-1, keepdim=True) if greedy else torch.multinomial(p, 1)
        ids = torch.cat([ids, token], dim=1)
    answers = ids[:, prompts.shape[1] :]
    return answers.masked_fill(~written(answers), END)


# %% [markdown]
# The checker can't be argued with. It gives 1 for a right answer and 0 for any other:

# %% tags=["recorded"]
def is_right(answers, totals):
    return (answers[:, :3] == spelled(totals)).all(dim=1).float()


def score(model, longest=3):  # right on the 500 test prompts: greedy, drawn
    torch.manual_seed(99)
    prompts, totals = prompts_of(test)
    answers = [write(model, prompts, longest, greedy) for greedy in (True, False)]
    return [is_right(answer, totals).mean().item() for answer in answers]


# %% [markdown]
# Say the model draws four answers to `27+15=`, and one of them is right. The lesson comes back to these four; the
# sections differ in what they do with them.

# %% jupyter={"source_hidden": true}
FOUR = ["2 4 end", "1 4 end", "7 3 end", "9 3 end"]
figures.pushed_answers(
    "27+15=", FOUR, [1, 0, 0, 0], title="The model draws, the checker scores")

# %% [markdown]
# Our model imitates for about 20 seconds:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
imitator = new_model()
imitate(imitator, 600)
greedy_score, drawn_score = score(imitator)
expect("greedy answers right", greedy_score, 0.3, 0.7)
expect("drawn answers right", drawn_score, 0.08, 0.3)

# %% [markdown]
# Drawn answers copy the teacher's slips, and the model adds errors of its own: a perfect imitator would be right in
# about 53% of its draws. Greedy answers do better: slips scatter, so the right answer is often the likeliest one. What
# is missing is a way to tell the model *which* of its answers are good.

# %% [markdown]
# ## 2 One decision
#
# ### 2.1 On paper
#
# Forget texts for a moment. Three answers A, B, C have logits 0, 0, 0, so each is drawn with $p = \frac13$. A is right
# and earns 1, the others earn 0. We want a larger **expected reward** $J = \sum_a p_a r_a$, here $\frac13$. If we draw
# A, we make it likelier. The gradient of $\log p_A$ with respect to the logits is one for A minus the probabilities
# (lesson 07):
#
# $$(1, 0, 0) - (\tfrac13, \tfrac13, \tfrac13) = (\tfrac23, -\tfrac13, -\tfrac13)$$
#
# A step of size 1 along it gives A $e^{2/3} / (e^{2/3} + 2 e^{-1/3}) = 58\%$. If we draw B, its reward of 0 changes
# nothing. In general: draw an answer, and go along $r_a \nabla \log p_a$. On average that is the gradient of $J$:
#
# $$\sum_a p_a\, r_a \nabla \log p_a = \sum_a r_a \nabla p_a = \nabla J$$
#
# That is **REINFORCE** (Williams 1992). Note what it does *not* need: the reward is never differentiated. It may come
# from a test suite, a chess game or a person. In reinforcement learning the answer drawn is an **action**, and the
# distribution from which it is drawn is a **policy**; here the model is the policy.
#
# ### 2.2 By drawing
#
# With three answers, $J$ can be differentiated directly. Do 100,000 draws agree?

# %%
logits = torch.tensor([0.0, 0.5, -0.5], requires_grad=True)
rewards = torch.tensor([1.0, 0.0, 0.0])
p = logits.softmax(dim=0)
(p * rewards).sum().backward()

torch.manual_seed(0)
p = p.detach()
draws = torch.multinomial(p, 100_000, replacement=True)
steps = rewards[draws][:, None] * (F.one_hot(draws, 3) - p)  # (draw, answer)
print("exact   ", [round(x, 3) for x in logits.grad.tolist()])
print("by draws", [round(x, 3) for x in steps.mean(dim=0).tolist()])

# %% [markdown]
# ### 2.3 What a baseline is for
#
# Now add 5 to every reward: 6, 5, 5. A is better than B and C by as much as before. But whatever is drawn becomes
# likelier, B and C as well. On average this cancels, because $\sum_a p_a \nabla \log p_a = \nabla 1 = 0$. In a single
# draw it does not. So we may subtract any **baseline** $b$ that doesn't depend on the answer drawn. The mean reward is
# a good one:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
predict(
    "rewards-shift", "All rewards grow by 5. What happens to a single step of REINFORCE?",
    "nothing", "its mean stays, its spread grows", "its mean grows by 5",
)

# %%
cases = {"rewards 1, 0, 0": rewards, "rewards 6, 5, 5": rewards + 5,
         "minus their mean": rewards - p @ rewards}
for name, each in cases.items():
    steps = each[draws][:, None] * (F.one_hot(draws, 3) - p)
    mean, spread = steps[:, 0].mean(), steps[:, 0].std()
    print(f"{name:17} logit of A: mean {mean:5.2f}, standard deviation {spread:.2f}")

# %% jupyter={"source_hidden": true}
predicted("rewards-shift", "its mean stays, its spread grows", "The larger steps only add noise.")

# %% [markdown]
# Up to sampling error the mean is the same; the noise is not. (And 6, 5, 5 minus their mean is the same as 1, 0, 0
# minus theirs.)

# %% [markdown]
# ## 3 From a decision to an answer
#
# An answer consists of many decisions, one per token. Its probability is a product, so its log-probability is a sum:
# $\log p(\text{answer}) = \sum_t \log p(\text{token}_t \mid \text{before})$. Every token of a right answer is made
# likelier, even one that had no part in its success. In blue, what becomes likelier:

# %% jupyter={"source_hidden": true}
figures.pushed_answers("27+15=", FOUR, [1, 0, 0, 0], [1, 0, 0, 0], push="factor of log p",
                       title="REINFORCE moves only answers with a reward")

# %% [markdown]
# REINFORCE as a loss, whose gradient is the step of section 2:

# %% tags=["recorded"]
def reinforce(log_p, old, rewards, mask):  # (size, n), (size, n), (size,), (size, n)
    return -(rewards[:, None] * log_p * mask).sum() / mask.sum()


# %% [markdown]
# (`old` is for section 4.2.) Each round takes 16 prompts, draws a **group** of 8 answers to each, and checks them. The
# model learns from its own texts, written by its present weights:

# %% tags=["recorded"]
def try_out(model, reward, longest):
    prompts, totals = sums(16, group=8)
    answers = write(model, prompts, longest)
    right = is_right(answers, totals).mean().item()
    return prompts, answers, reward(answers, totals), written(answers), right


def no_penalty(log_p, start, mask):
    return 0


# %% [markdown]
# Then it takes a step. (Section 4 needs several `updates`, section 5 a `penalty`; here there is one update, and no
# penalty.)

# %% tags=["recorded"]
def learn(model, loss_of, steps=300, reward=is_right, longest=3, updates=1,
          penalty=no_penalty, rate=3e-4):
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0)
    reference, history = copy.deepcopy(model), []
    for _ in progress(range(steps), "learning"):
        prompts, answers, rewards, mask, right = try_out(model, reward, longest)
        with torch.no_grad():
            old, start = (log_probs(m, prompts, answers) for m in (model, reference))
        for _ in range(updates):
            log_p = log_probs(model, prompts, answers)
            loss = loss_of(log_p, old, rewards, mask) + penalty(log_p, start, mask)
            descend(loss, model, optimizer)
        tokens = mask.sum() / len(mask)
        history.append([rewards.mean().item(), right, tokens.item()])
    return torch.tensor(history).T  # (3, round): reward, what is right, tokens


# %% [markdown]
# Before you run it: from here on nobody shows the model a right answer. All it sees are its own answers, of which fewer
# than one in five are right.

# %% tags=["nbval-ignore-output"]
student = copy.deepcopy(imitator)
torch.manual_seed(0)
learn(student, reinforce)
greedy_score, drawn_score = score(student)
expect("greedy answers right", greedy_score, 0.4, 0.85)
expect("drawn answers right", drawn_score, 0.35, 0.75)

# %% [markdown]
# The fraction of right drawn answers has more than doubled, on prompts that it never practiced. (Four in five of the
# pairs are for practice, so many a test sum was practiced in the other order. That holds for the rivals as well.) Is
# that a lot? Two controls tell. The first imitates the sloppy teacher for 300 more steps. The second needs no new idea:
# draw answers from the imitator, keep the right ones, and imitate those (**rejection sampling**; STaR, Zelikman et al.
# 2022). It may check as many answers as `learn` does.

# %% tags=["recorded"]
def keep_right(model, prompts_drawn=4800, group=8):
    prompts, totals = sums(prompts_drawn, group)
    answers = write(model, prompts)
    right = is_right(answers, totals).view(-1, group)
    best = right.argmax(dim=1) + group * torch.arange(len(right))  # a right one, if any
    worst = right.argmin(dim=1) + group * torch.arange(len(right))
    mixed = right.amax(dim=1) > right.amin(dim=1)  # has both
    return prompts[best][mixed], answers[best][mixed], answers[worst][mixed]


def imitate_right(model, kept, steps=300, rate=1e-3):
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0)
    prompts, right, _ = kept
    for _ in range(steps):
        at = torch.randint(len(prompts), (64,))
        descend(-log_probs(model, prompts[at], right[at]).mean(), model, optimizer)


# %% [markdown]
# `data/rewards.py` has recorded all of this with three seeds; imitation, learning and controls each begin anew:

# %%
recorded = json.loads((DATA / "rewards.json").read_text())


def show(*names):
    print(f"{'right, percent':38} greedy        drawn")
    for name in names:
        runs = recorded["right"][name].values()
        columns = ["".join(f"{100 * run[at]:4.0f}" for run in runs) for at in (0, 1)]
        print(f"{name:38}{columns[0]} {columns[1]}")


show("imitation", "more imitation", "REINFORCE", "imitate own right answers")

# %% [markdown]
# More imitation makes the greedy answers better (the slips average out: our explanation), and brings drawn ones only
# to about 25%.
# However long it imitates, the slips keep drawn answers below about 53%. REINFORCE brings drawn answers to 48% and
# more. But the simplest method wins: keeping the right answers and imitating them reaches 74 to 98%. In fact REINFORCE
# with rewards 1 and 0 *is* imitation of the model's own right answers, since wrong ones have weight 0. The difference:
# REINFORCE uses each answer once, when it is drawn. The control draws all of them at the start, keeps one per prompt
# and goes through them several times, at a higher rate. Always run this control. It has one limit: its answers come
# from the model as it was at the start.

# %% [markdown]
# ## 4 GRPO, part by part
#
# ### 4.1 The group is the baseline
#
# Section 2 took the mean reward as a baseline. Which mean? Some prompts are harder than others, so each needs its own.
# A group of answers to the same prompt gives it for free. (Each answer's own reward is in its group's mean, so this
# baseline depends on the answer drawn. It only shortens the mean step: 1 minus the mean of the *other* three is 1, and
# minus the mean of all four it is ¾ of that.) On paper: the rewards 1, 0, 0, 0 of our four answers have the mean ¼, so
# the **advantages** are ¾, −¼, −¼, −¼. Wrong answers are now pushed down. In a group that is all right or all wrong,
# every advantage is 0: there is nothing to compare.
#
# Group Relative Policy Optimization, **GRPO** (Shao et al. 2024), the method behind DeepSeek-R1, also divides by the
# standard deviation of the group, here ½: 1.5, −0.5, −0.5, −0.5. In orange, what becomes less likely:

# %% jupyter={"source_hidden": true}
figures.pushed_answers("27+15=", FOUR, [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5], push="advantage",
                       title="GRPO pushes an answer up or down from its group's mean")

# %% [markdown]
# In code:

# %% tags=["recorded"]
def advantages(rewards, spread=True, group=8):
    grouped = rewards.view(-1, group)
    centered = grouped - grouped.mean(dim=1, keepdim=True)
    if spread:
        centered = centered / (grouped.std(dim=1, keepdim=True) + 1e-6)
    return centered.flatten()


def with_baseline(log_p, old, rewards, mask):
    return reinforce(log_p, old, advantages(rewards, spread=False), mask)


def with_spread(log_p, old, rewards, mask):
    return reinforce(log_p, old, advantages(rewards), mask)


def right_plus_5(answers, totals):
    return is_right(answers, totals) + 5


one_of_four = torch.tensor([1.0, 0, 0, 0])
print(advantages(one_of_four, False, 4).tolist())
print([round(x, 2) for x in advantages(one_of_four, True, 4).tolist()])

# %% [markdown]
# What do these parts change? All runs have 300 rounds, and each begins at the imitator of its seed.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
predict(
    "rewards-baseline", "Which of these changes has the largest effect on how many sums are right?",
    "removing the baseline", "removing the division by the spread", "adding 5 to rewards without a baseline",
)

# %%
show("REINFORCE", "REINFORCE, rewards + 5", "with baseline",
     "with baseline, rewards + 5", "with baseline and spread")

# %% jupyter={"source_hidden": true}
predicted("rewards-baseline", "adding 5 to rewards without a baseline", "REINFORCE then mostly adds noise.")

# %% [markdown]
# With 5 added, REINFORCE destroys much of what the imitator knew, or all of it. With a baseline nothing changes:
# rewards minus their mean are the same numbers, so all results agree. For rewards of 0 and 1, though, neither baseline
# nor spread beats plain REINFORCE: pushing a wrong answer down says little about which one is right (our explanation).
# A baseline insures against rewards whose zero is in the wrong place.

# %% [markdown]
# ### 4.2 Several steps from the same answers
#
# Writing answers is slow, so we would like to take several steps with each batch. But after the first step the answers
# are no longer the model's own. So each token gets a weight, the **ratio** of its probability now to its probability
# when it was written, $\rho = p / p_\text{old}$, times the advantage $A$. (Exactly, the ratios of the tokens before it
# belong to the weight as well; PPO and GRPO leave them out.) At $\rho = 1$ the gradient of $\rho A$ is that of $A \log
# p$.
#
# Large ratios are dangerous: a token drawn with probability 0.2 that by now has 0.6 counts three times. The **clip**
# (Schulman et al. 2017) ends the push: it takes the smaller of $\rho A$ and $\text{clamp}(\rho, 0.8, 1.2)\, A$.
# With $A = 1$, a token may rise to $\rho = 1.2$; beyond, the loss is flat. With $A = -1$ it may fall to $\rho = 0.8$.

# %% tags=["recorded"]
def unclipped(log_p, old, rewards, mask):
    gains = advantages(rewards)[:, None] * (log_p - old).exp()
    return -(gains * mask).sum() / mask.sum()


def clipped(log_p, old, rewards, mask, clip=0.2):
    ratio, each = (log_p - old).exp(), advantages(rewards)[:, None]
    gains = torch.minimum(ratio * each, ratio.clamp(1 - clip, 1 + clip) * each)
    return -(gains * mask).sum() / mask.sum()


# %% [markdown]
# The gradient of such a gain with respect to $\log p$, for one token:

# %%
for advantage in (1.0, -1.0):
    for rho in (0.5, 1.0, 1.5):
        log_rho = torch.tensor(rho).log().requires_grad_()
        ratio = log_rho.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        gain.backward()
        print(f"A = {advantage:2.0f}, ratio {rho}: gradient {log_rho.grad:4.1f},",
              f"without the clip {rho * advantage:4.1f}")

# %% [markdown]
# Two of the six are cut to 0: a good token that has already risen enough, and a bad one that has already fallen enough.
# A bad token with a large ratio may still fall.
#
# Four updates per batch and half as many rounds, at a rate of 0.001 and at section 3's 0.0003:

# %%
ways = "one update", "four updates, unclipped", "four updates, clipped"
show(*ways, *(f"{way}, rate 0.0003" for way in ways))

# %% [markdown]
# At the higher rate and without a clip, four updates per batch ruin the model with all three seeds: at most 2% are
# right. At the lower rate the clip helps with each seed as well. So it is a guard rail. Are four updates worth it? At
# the higher rate one is better with each seed. At the lower one, four clipped updates draw more right answers with two
# seeds of three, from as many answers. They are meant for models that spend most of their time writing.
#
# ### 4.3 The length of an answer
#
# One more choice hides in the loss: a mean over what? We let every token count alike. GRPO's paper takes the mean over
# each answer's tokens first. On paper: with $A = -1$, a wrong answer of 3 tokens pushes each token down by ⅓, one of 9
# tokens by ⅑. Among wrong answers, the tokens of long ones are punished least. (Liu et al. 2025 found that wrong
# answers grow longer for this reason.) Nearly all our answers have three tokens, so section 5 measures it.

# %% tags=["recorded"]
def by_length(log_p, old, rewards, mask):
    gains = advantages(rewards)[:, None] * (log_p - old).exp() * mask
    return -(gains.sum(dim=1) / mask.sum(dim=1)).mean()


# %% [markdown]
# ## 5 The reward is hacked
#
# ### 5.1 A checker with a hole
#
# Suppose that our checker searches the answer instead of comparing it: it gives 1 if the right digits occur
# *somewhere*. It's a small mistake, and one that real checkers make. Answers that earned 1 still do. But answers may
# now have up to 8 tokens, and this one is pushed as hard as the right one:

# %% jupyter={"source_hidden": true}
figures.pushed_answers("27+15=", [*FOUR[:3], "7 2 2 4 1 2 4 3"], [1, 0, 0, 1],
                       [0.87, -0.87, -0.87, 0.87], push="advantage",
                       title="To this checker, many candidates are as good as the answer")

# %% [markdown]
# In code:

# %% tags=["recorded"]
def occurs(answers, totals):
    neighbors = answers.unfold(1, 2, 1)  # (size, n - 1, 2)
    wanted = spelled(totals)[:, None, :2]
    return (neighbors == wanted).all(dim=-1).any(dim=1).float()


# %% [markdown]
# The imitator learns from this checker; then we look at four of its answers.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
predict(
    "rewards-hacked", "After 200 rounds with this checker, how many sums are right?",
    "more than before", "as many as before", "next to none",
)

# %% tags=["nbval-ignore-output"]
hacker = copy.deepcopy(imitator)
torch.manual_seed(0)
reward, right, tokens = learn(
    hacker, with_spread, 200, occurs, longest=8, rate=1e-3)
print(f"reward at the beginning: {reward[:20].mean():.2f}")
expect("reward at the end", reward[-20:].mean().item(), 0.2, 0.7)
expect("right at the end", right[-20:].mean().item(), 0, 0.1)
prompts, totals = prompts_of(test[:4])
answers = write(hacker, prompts, 8)
paid = occurs(answers, totals).int().tolist()
for prompt, total, answer, r in zip(prompts, totals, answers, paid, strict=True):
    text = "".join("0123456789+= "[token] for token in [*prompt, *answer])
    print(f"{text:15} reward {r}, right: {total % 10}{total // 10}")

# %% jupyter={"source_hidden": true}
predicted("rewards-hacked", "next to none", "It writes several candidates and never ends.")

# %% [markdown]
# It no longer gives an answer at all. It has learned to write many digits, since more digits hold more candidates. We
# wanted one answer, and the reward doesn't say so. That is **reward hacking**. The reward itself shows nothing: it
# rises, as it should. The gap between rewards and right answers shows it, if you measure both. Here it is for eight
# recorded seeds, next to eight runs that are *held* by a penalty, which comes next:

# %% jupyter={"source_hidden": true}
hacked, names = recorded["hacked"], {"0.0": "no penalty", "0.1": "held"}
gaps = {names[beta]: [[100 * (reward - right) for reward, right in zip(run["reward"], run["right"], strict=True)]
                      for run in hacked[beta].values()] for beta in names}
plots.lines(
    {name: (list(range(10, 201, 20)), runs) for name, runs in gaps.items()},
    title="Unless held, seven of eight runs end up paid for wrong answers", xlabel="round",
    ylabel="wrong answers with a reward (%)",
    alt="Answers that are wrong and rewarded, eight seeds each, at the end: " + "; ".join(
        f"{name}: " + ", ".join(f"{run[-1]:.0f}%" for run in runs) for name, runs in gaps.items()) + ".",
)

# %% [markdown]
# ### 5.2 Stay near where you began
#
# The runs that are held have a penalty: the **Kullback–Leibler divergence** from the imitator, which writes three
# tokens and ends. For a token that was drawn, GRPO estimates it from the difference $d = \log p_\text{start} - \log p$
# as $e^d - d - 1$: 0 if nothing has changed, and never negative. A token with $p = 0.4$ now and 0.2 at the start has
# $0.5 + 0.69 - 1 = 0.19$; one that fell from 0.4 to 0.2 has $2 - 0.69 - 1 = 0.31$.

# %% tags=["recorded"]
def divergence(log_p, start, mask, beta=0.1):
    d = start - log_p
    return beta * ((d.exp() - d - 1) * mask).sum() / mask.sum()


now, before = torch.tensor([[0.4, 0.2], [0.2, 0.4]]).log().split(1)
print(f"{divergence(now, before, torch.ones(1, 2), beta=1.0):.2f}, the mean of both")

# %% [markdown]
# How strong must it be? Eight seeds, means of the last 20 rounds:

# %%
for beta, runs in hacked.items():
    print("β =", beta)
    for what, unit in (("reward", 100), ("right", 100), ("tokens", 1)):
        last = "".join(f"{unit * run[what][-1]:5.0f}" for run in runs.values())
        print(f"    {what:7}{last}")

# %% [markdown]
# Without a penalty seven of eight runs end as hackers. With a weight of 0.03 none does, though two of them are still
# paid for 8 and for 27 wrong answers in a hundred (all others for two at most); with 0.1 none is at the end. (The
# eighth run learns nothing with either: 6 and 8% are right.) The last block also has no penalty, and changes one thing
# only: the mean over each answer's tokens of section 4.3, which spares long wrong answers. Six of eight are hacked, so
# here this mean is not to blame.
#
# A penalty doesn't repair a reward. It limits how far a model goes to collect it. The repair is a better checker.

# %% [markdown]
# ## 6 Preferences: which of the two?
#
# Often there is no number, but people can say which of two answers they prefer. The classical way (Ouyang et al. 2022)
# trains a reward model on such pairs, and then learns from its rewards as above. **DPO**, direct preference
# optimization (Rafailov et al. 2023), needs no reward model and draws nothing. Let $m$ be how much more the model has
# raised the chosen answer $c$ than the rejected one $r$, compared with where it began:
#
# $$m = \log \frac{p(c)}{p_\text{start}(c)} - \log \frac{p(r)}{p_\text{start}(r)} \qquad
# \text{loss} = -\log \sigma(\beta m)$$
#
# On paper: at the start $m = 0$ and the loss is $-\log \frac12 = 0.69$. With $\beta = 0.5$, raise $c$ from 0.2 to 0.4
# and lower $r$ from 0.2 to 0.1: $m = 0.69 + 0.69$, and the loss is $-\log \sigma(0.69) = 0.41$. The first step pushes
# both answers equally, by $\beta\, \sigma(-\beta m) = 0.25$:

# %% jupyter={"source_hidden": true}
figures.pushed_answers("27+15=", FOUR[:2], ["chosen", "rejected"], [0.25, -0.25], reward="preference",
                       push="first push", title="DPO pushes two answers apart")

# %% [markdown]
# <details><summary>Where does it come from?</summary>
#
# Maximize the expected reward minus β times the divergence from the start. With a reward $R$, the best model is
# $p_\text{start}(y) e^{R(y) / \beta} / Z$. Solve for the reward: $R(y) = \beta \log (p(y) / p_\text{start}(y)) + \beta
# \log Z$. Let people prefer $c$ with probability $\sigma(R(c) - R(r))$ (Bradley and Terry 1952): $Z$ cancels, and the
# loss above is the negative log-likelihood of their choices. The model is its own reward model.
# </details>

# %% tags=["recorded"]
def answer_log_p(model, prompts, answers):
    return (log_probs(model, prompts, answers) * written(answers)).sum(dim=1)


def dpo(model, kept, beta=0.5, steps=300, rate=1e-3):
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0)
    prompts, *sides = kept  # chosen, rejected
    with torch.no_grad():
        start = [answer_log_p(model, prompts, side) for side in sides]
    for _ in range(steps):
        at = torch.randint(len(prompts), (64,))
        chosen, rejected = (answer_log_p(model, prompts[at], side[at]) - p[at]
                            for side, p in zip(sides, start, strict=True))
        descend(-F.logsigmoid(beta * (chosen - rejected)).mean(), model, optimizer)


# %% [markdown]
# The pairs come from the imitator: for each prompt a right and a wrong answer, from the same draws that section 3
# filtered. Recorded, with the mean log-probability of chosen and rejected answers:

# %%
ways = [f"DPO, β = {beta}{rate}"
        for beta in (0.5, 0.1) for rate in ("", ", rate 0.0003")]
show("imitation", "REINFORCE", "imitate own right answers", *ways)
print()
for name in ("imitation", "imitate own right answers", *ways):
    runs = recorded["log p"][name].values()
    sides = ["".join(f"{run[at]:7.1f}" for run in runs) for at in (0, 1)]
    print(f"{name:27} chosen {sides[0]}   rejected {sides[1]}")

# %% [markdown]
# At β = 0.5 DPO more than doubles the right drawn answers. Compared with REINFORCE it is level or ahead with one seed
# and behind with two, at both rates (0.001, which is the imitation's, and 0.0003). Imitating the chosen answers beats
# both. Now look at the log-probabilities. At β = 0.1 and the higher rate, even the *chosen* answers become less likely
# than they were with each seed: by about 1.4, 2.4 and 1.6 nats. At the lower rate they still do with one seed of three.
# And fewer greedy answers are right than the imitator's, with each seed and both rates, though more drawn ones are.
# Nothing in the formula prevents that.
#
# ### 6.1 Break it
#
# The loss knows only the difference $m$. Let both answers become *less* likely, the rejected one more so: from 0.2 to
# 0.1, and from 0.2 to 0.01. Then $m = -0.69 + 3.00 = 2.3$, and the loss falls. Nothing says where the probability goes
# that both have lost:

# %%
start = torch.tensor([0.2, 0.2]).log()
for now in ([0.2, 0.2], [0.4, 0.1], [0.1, 0.01]):
    m = (torch.tensor(now).log() - start) @ torch.tensor([1.0, -1.0])
    loss, others = -F.logsigmoid(0.5 * m), 1 - sum(now)
    print(now, f"loss {loss:.2f}, left for other answers {others:.2f}")

# %% [markdown]
# ## 7 Open the library
#
# In `txlib.posttraining` the parts are switches of one loss. It returns a sum and a count, so that several processes
# can share a batch:

# %%
from txlib.posttraining import dpo_loss, policy_loss

show_source(policy_loss, last=14)

# %% [markdown]
# The same numbers as ours, for answers of different lengths:

# %%
log_p = -torch.rand(8, 5)
old, start = log_p + 0.3 * torch.randn(2, 8, 5)
their_rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1])
mask = torch.arange(5) < torch.randint(1, 6, (8, 1))
better = advantages(their_rewards)
total, count = policy_loss(log_p, old, better, mask, by_length=False)
prove_equal(clipped(log_p, old, their_rewards, mask), total / count, what="Clipped")
total, count = policy_loss(
    log_p, old, better, mask, clip=None, kl=0.1, reference_log_p=start)
ours = by_length(log_p, old, their_rewards, mask)
d = start - log_p
ours = ours + 0.1 * ((d.exp() - d - 1) * mask).sum(dim=1).div(mask.sum(dim=1)).mean()
prove_equal(ours, total / count, what="By length, with a penalty")


# %% [markdown]
# And DPO, for four answers as chosen and rejected, now and at the start:

# %%
total, count = dpo_loss(*log_p[:, :4].T, beta=0.5)
m = (log_p[:, 0] - log_p[:, 2]) - (log_p[:, 1] - log_p[:, 3])
prove_equal(-F.logsigmoid(0.5 * m).mean(), total / count, what="DPO")

# %% [markdown]
# `write_answers` draws the groups and scores them, and `rollout_loss` learns from what it returns. A loss that calls
# both is all that the ordinary `train` needs; the last stage of `txlib train assistant` has one.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. All eight answers of a group are wrong. What does GRPO learn from them?**
#
# <details><summary>A. To avoid all eight</summary>
#
# Their advantages are 0: none is worse than the group.
# </details>
# <details><summary>B. Nothing</summary>
#
# Right. So prompts that are far too hard, or far too easy, waste draws.
# </details>
# <details><summary>C. It depends on the division by the spread</summary>
#
# 0 divided by a small number is 0 as well.
# </details>
#
# **2. Why may the reward be a program that no gradient passes through?**
#
# <details><summary>A. It is differentiated by finite differences</summary>
#
# Nothing is. Look at section 2.1 again.
# </details>
# <details><summary>B. Only the log-probability of what was drawn is differentiated; the reward is a factor</summary>
#
# Right.
# </details>
# <details><summary>C. Because the model imitates the program</summary>
#
# It never sees it.
# </details>
#
# **3. A token was drawn with probability 0.5, its advantage is positive, and now it has 0.7. The clip is at 0.2. What
# does this token add to the gradient?**
#
# <details><summary>A. A push of 1.4 times its advantage</summary>
#
# That is without the clip.
# </details>
# <details><summary>B. Nothing</summary>
#
# Right: 1.4 is beyond 1.2, where the loss is flat.
# </details>
# <details><summary>C. A push in the other direction</summary>
#
# The clip only stops a push. The penalty may turn it around.
# </details>
#
# **4. The reward rises, but people find the answers worse. What do you do first?**
#
# <details><summary>A. Train longer</summary>
#
# In section 5 it got worse in seven runs of eight.
# </details>
# <details><summary>B. Read the answers with the highest rewards, and look for what the checker doesn't see</summary>
#
# Right. Then repair the checker; a penalty only buys time.
# </details>
# <details><summary>C. Raise the clip</summary>
#
# It limits single steps, not where they lead.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Imitation copies mistakes. A checker lets a model learn from its own answers.
# - REINFORCE: $r\, \nabla \log p$ of what was drawn is, on average, the gradient of the expected reward. A baseline
#   removes noise, and a group of answers gives one per prompt.
# - GRPO adds a division by the spread, ratios with a clip for several updates, and a penalty. The clip and the penalty
#   each have a case here in which they matter, and cases in which they don't; the spread made no difference.
# - Rejection sampling, which imitates the model's own right answers, is the baseline that every such method has to
#   beat.
# - A model optimizes the reward that you wrote, not the one that you meant. Watch something else as well.
# - DPO learns from pairs without drawing. It only sees differences.
#
# **Read** Williams 1992, *Simple Statistical Gradient-Following Algorithms*, sections 1 to 5. Shao et al. 2024,
# *DeepSeekMath*, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4. Schulman et al. 2017, *Proximal
# Policy Optimization*, [arXiv:1707.06347](https://arxiv.org/abs/1707.06347), section 3. Zelikman et al. 2022, *STaR*,
# [arXiv:2203.14465](https://arxiv.org/abs/2203.14465), section 3. Ouyang et al. 2022, *Training language models to
# follow instructions with human feedback*, [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), section 3. Rafailov et
# al. 2023, *Direct Preference Optimization*, [arXiv:2305.18290](https://arxiv.org/abs/2305.18290), section 4. Liu et
# al. 2025, *Understanding R1-Zero-Like Training*, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783), section 3.
#
# **Do** the exercise [41_rewards](../exercises/exercise_41_rewards.ipynb). Then go on to
# [42 Judging, and thinking longer](42_judging.ipynb), which asks what a score is worth.
