# %% [markdown] lesson={"part": "II Language models", "builds": "every sampler drawn, tasks as text to continue, in-context learning"}
# # 11 · Sampling: from probabilities to text
#
# **After this lesson you will be able to**
#
# - write with a language model, and say what greedy search, temperature, top-k, top-p, min-p and the three penalties
#   do to one real distribution;
# - show by measurement why the likeliest text is not the best one, and trade quality against diversity on purpose;
# - end a text where it should end, and show it while it is being written;
# - put a task as text to continue, use a language model as a classifier, and find out honestly whether it is one;
# - say what in-context learning is, and measure it.
#
# **You need** lessons 03 to 10. **It takes** about 105 minutes to read and try; section 5 is a good place for a break.
# All cells together run in about a minute on a laptop. Nothing is trained here: the course comes with a small real
# model.

# %% [markdown]
# ## 1 The problem: the model gives probabilities, you want text
#
# The model of this lesson is real, but tiny: a decoder of today's kind with less than a million parameters, trained by
# Oséias Dias de Farias on Lewis Carroll's books. (Lesson 16 takes its parts to pieces. Today it is a box as in lesson
# 10: tokens in, logits for the next token out.) A model this small is fastest on the CPU, so we leave it there.

# %%
import math
import re
import statistics
from collections import Counter

import torch
import torch.nn.functional as F

from txlib import plots
from txcourse import explore, figures
from txcourse.lesson import expect, gpt2, progress, prove_equal, show_source
from txlib.data import shipped
from txlib.models.pretrained import load_pretrained
from txlib.text import BytePairEncoder, load_tokenizer

# %% [markdown]
# It comes with the course:

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
tokenizer = load_tokenizer(shipped("glassllm-en"))
encode, decode = tokenizer.encode, tokenizer.decode
V, context = model.config.vocab_size, model.config.max_length
parameters = sum(weight.numel() for weight in model.parameters())
print(f"{parameters:,} parameters, {len(model.decoder.layers)} blocks,", end=" ")
print(f"a vocabulary of V = {V:,} tokens, {context} of them at a time")

# %% [markdown]
# Give it a beginning, and it says what may come next. In its vocabulary, `▁` stands for a space, and we
# write ⏎ for the end of a line. Many tokens are not words: `▁s` and `▁de` only begin one.


# %%
@torch.no_grad()
def next_logits(prompt):
    ids = encode(prompt)[-context:]                                # what fits
    return model(torch.tensor([ids])).logits[0, -1]                # (vocab,)


def name(id):
    return tokenizer.tokenizer.id_to_token(id).replace("\n", "⏎")


p = next_logits("Alice was").softmax(dim=-1)                       # (vocab,)
likeliest = {name(id): p[id].item() for id in p.topk(10).indices.tolist()}
plots.bars(
    likeliest, title="After “Alice was”, no token is likely", xlabel="probability",
    alt="; ".join(f"{token}: {share:.2f}" for token, share in likeliest.items()),
)

# %% [markdown]
# That is all a language model ever says: one number per token of the vocabulary. Text is made by a loop around it:
# *predict, choose, append*, and again. The obvious choice is the likeliest token. That is **greedy search**:


# %%
@torch.no_grad()
def write(prompt, choose, new=80):
    ids = encode(prompt)
    for _ in range(new):
        logits = model(torch.tensor([ids[-context:]])).logits[0, -1]   # (vocab,): predict
        ids.append(choose(logits, ids))                            # choose, append
    return ids


def greedy(logits, ids):
    return logits.argmax().item()


print(decode(write("Once upon a time", greedy)))

# %% [markdown]
# It goes round in circles. We need a number for that. Of all groups of $n$ tokens that follow one another in some
# texts, how many are different?
#
# $$\text{distinct-}n = \frac{\text{different groups of } n \text{ tokens}}{\text{all groups of } n \text{ tokens}}$$
#
# (After Li et al. 2016, who divide by the number of tokens.) A text that never repeats itself has 1. For comparison,
# the beginning of *Alice's Adventures in Wonderland* itself, which a human wrote.


# %%
HUMAN = """Alice was beginning to get very tired of sitting by her sister on the
bank, and of having nothing to do: once or twice she had peeped into
the book her sister was reading, but it had no pictures or
conversations in it, “and what is the use of a book,” thought Alice
“without pictures or conversations?”

So she was considering in her own mind (as well as she could, for the
hot day made her feel very sleepy and stupid), whether the pleasure of
making a daisy-chain would be worth the trouble of getting up and
picking the daisies, when suddenly a White Rabbit with pink eyes ran
close by her.
"""


# %% [markdown]
# As a function, and for four beginnings:


# %%
def distinct(texts, n=4):                                          # texts: lists of tokens
    groups = [tuple(ids[i : i + n]) for ids in texts for i in range(len(ids) - n + 1)]
    return len(set(groups)) / len(groups)


for prompt in ("Once upon a time", "“I don’t know,” said", "The Queen", "Alice was"):
    written = write(prompt, greedy, new=120)
    print(f"greedy, {prompt + ' …':26} distinct-4: {distinct([written]):.0%}")
print(f"human {'':28} distinct-4: {distinct([encode(HUMAN)]):.0%}")

# %% [markdown]
# Some beginnings are caught at once, others later. You might blame the model's size. But the same happens to models a
# thousand times larger (Holtzman et al. 2020). It is the *choice* that is wrong. This lesson is about better ones.
# (How to do it fast is the next lesson's subject.)

# %% [markdown]
# ## 2 The idea in one picture
#
# At each step there are many ways to go on. Greedy always takes the top row. Here is another way: *draw* the token,
# each with its own probability. The frame shows which was drawn. One token that is not the likeliest, and the whole
# text takes another course.


# %% tags=["nbval-ignore-output"]
torch.manual_seed(4)
steps = []


def draw(logits, ids):
    p = logits.softmax(dim=-1)                                     # (vocab,)
    chosen = torch.multinomial(p, 1).item()
    shown = list(dict.fromkeys([*p.topk(4).indices.tolist(), chosen]))[:5]
    steps.append(({name(id): p[id].item() for id in shown}, name(chosen)))
    return chosen


drawn = decode(write("Alice was", draw, new=10))
figures.choices(
    steps, title="Drawn, not always the likeliest: " + drawn.replace("\n", "⏎"),
    alt="Ten columns, one per step. Each lists the four likeliest next tokens with their "
    "probabilities, and the drawn one in a frame, which is sometimes not among the four. "
    "Together: " + drawn,
)

# %% [markdown]
# ## 3 Choosing: every sampler in a few lines
#
# Drawing from the model's own distribution is called *pure sampling*. It cannot get stuck, but look what it writes:

# %% tags=["nbval-ignore-output"]
for seed in (1, 2):
    torch.manual_seed(seed)
    print(decode(write("Alice was", draw, new=50)), end="\n\n")

# %% [markdown]
# (The same **seed** draws the same numbers, so it gives the same text, on the same machine.)
#
# Livelier, but it often goes off the rails. Why? Each of the thousand tokens has a small probability, even the absurd
# ones. Let us add up what lies outside the twenty likeliest, at each place of the human text:

# %%
ids = torch.tensor([encode(HUMAN)[:context]])                      # (1, n)
with torch.no_grad():
    best = model(ids).logits[0, :-1].softmax(dim=-1).topk(20)      # (n - 1, 20) each
tail = 1 - best.values.sum(dim=-1).mean()
by_human = 1 - (best.indices == ids[0, 1:, None]).any(dim=-1).float().mean()
print(f"outside the 20 likeliest tokens lies on average {tail:.0%}:", end=" ")
print(f"of 50 drawn tokens, about {50 * tail:.0f}")
print(f"of the tokens that the human wrote, {by_human:.0%} are from there")

# %% [markdown]
# A person goes there as often, but picks the rare one that fits. The dice do not. And one absurd token is enough,
# because the model goes on from it. So most samplers below do the same kind of thing: they change the logits $z$ before
# the softmax, so that this **tail** gets less. We will watch each of them at work on one real
# distribution, of which we show the eleven likeliest tokens, and all others in a last row.

# %%
z = next_logits("Alice was")                                       # (vocab,)


def panel(before, after, shown=11):                                # logits (vocab,) each
    p, q = before.softmax(dim=-1), after.softmax(dim=-1)           # (vocab,) each
    order = p.topk(shown).indices                                  # (shown,)
    tokens = [*map(name, order.tolist()), f"{len(p) - shown:,} others"]
    shares = ([*each[order].tolist(), 1 - each[order].sum().item()] for each in (p, q))
    return tokens, *shares


# %% [markdown]
# ### 3.1 Temperature
#
# Divide all logits by a number $T > 0$:
#
# $$p_i = \frac{e^{z_i / T}}{\sum_j e^{z_j / T}} \qquad\qquad \frac{p_i}{p_j} = e^{(z_i - z_j)/T}$$
#
# The ratio of two probabilities says it all. As $T \to 0$, the exponent of a likelier against a less likely token
# goes to infinity: the best takes everything, and we have greedy search. As $T \to \infty$, it goes to 0: all ratios
# go to 1, and each of the $V$ tokens gets $1/V$. At $T = 1$ nothing changes.
#
# The name is from physics. A molecule that can be in states of energy $E_i$ is in state $i$ with a probability
# proportional to $e^{-E_i / kT}$ (Boltzmann's distribution; $k$ is a constant). Put $z_i = -E_i$, choose units in
# which $k = 1$, and it is our formula. Cold matter sits in its lowest state, hot matter is everywhere: a crystal, a
# gas. (Ackley, Hinton and Sejnowski took the word over in 1985, for the Boltzmann machine.)


# %%
def temperature(logits, T):                                        # (..., vocab)
    return logits / T


for T in (0.01, 1.0, 100.0, 1e6):
    p = temperature(z, T).softmax(dim=-1)                          # (vocab,)
    print(f"T = {T:<9g} largest {p.max():.5f}   smallest {p.min():.1e}   (1/V = {1 / V:.5f})")

# %% [markdown]
# In between lie the temperatures that people use. The same twelve candidates at three of them:

# %%
figures.candidates(
    {f"T = {T:g}": panel(z, temperature(z, T)) for T in (0.5, 0.8, 1.5)},
    title="A low temperature sharpens, a high one feeds the tail",
    alt="Three panels with the same twelve rows. At T = 0.5 the first tokens gain, and all "
    "others together fall from 0.64 to 0.2; at 0.8 a little of that; at T = 1.5 the row of "
    "others rises to 0.82.",
)

# %% [markdown]
# How open is the choice? The **entropy** $H = -\sum_i p_i \ln p_i$ says it in one number: 0 when it is fixed, $\ln V$
# when all tokens are equal. (It is the cross-entropy of lesson 10 when the tokens are drawn from $p$ itself.) Before
# you look: does it always rise with $T$?

# %%
def entropy(logits):                                               # (..., vocab)
    p = logits.softmax(dim=-1)                                     # (..., vocab)
    return -torch.special.xlogy(p, p).sum(dim=-1)                  # (...,); xlogy: 0 · ln 0 is 0


for T in (0.3, 0.5, 0.7, 1.0, 1.5, 3.0):
    print(f"T = {T}: {entropy(temperature(z, T)):.2f} nats")

# %% [markdown]
# The whole curve, for our flat distribution and for the peaked one of *The March …*:

# %%
grid = torch.logspace(-1, 1, 41)                                   # (41,)
curves = {
    f"“{prompt} …”": (grid.tolist(), [entropy(temperature(logits, T)).item() for T in grid])
    for prompt, logits in (("Alice was", z), ("The March", next_logits("The March")))
}
plots.lines(
    curves | {"ln V": ([0.1, 10], [math.log(V)] * 2)}, xscale="log", dashed=["ln V"],
    title="Entropy against temperature", xlabel="temperature T", ylabel="entropy (nats)",
    alt="Entropy against temperature from 0.1 to 10 for two prompts. Both rise from near 0 to "
    "near ln V = 6.9. The prompt The March stays near 0 much longer.",
)

# %% [markdown]
# It rises everywhere. Is that a law? Yes, and physics knows this one, too. It takes four small steps. They are easier
# with $\beta = 1/T$, so that $p_i = e^{\beta z_i} / Z$ with $Z = \sum_j e^{\beta z_j}$.
#
# 1. *Put the logarithm in.* $\ln p_i = \beta z_i - \ln Z$. So $H = -\sum_i p_i (\beta z_i - \ln Z) =
#    \ln Z - \beta \overline z$, where $\overline z = \sum_i p_i z_i$ is the mean logit.
# 2. *How does $\ln Z$ change with $\beta$?* $\frac{d \ln Z}{d\beta} = \frac1Z \sum_j z_j e^{\beta z_j} =
#    \overline z$.
# 3. *How does $\overline z$ change?* From $\ln p_i = \beta z_i - \ln Z$ and step 2 follows
#    $\frac{d p_i}{d\beta} = p_i (z_i - \overline z)$. So $\frac{d \overline z}{d\beta} = \sum_i p_i (z_i -
#    \overline z) z_i = \overline{z^2} - \overline z^2 = \text{Var}(z)$, the variance of the logits under $p$.
# 4. *Together.* By the product rule $\frac{dH}{d\beta} = \overline z - \overline z - \beta\,\text{Var}(z) =
#    -\beta\,\text{Var}(z)$, and as $\frac{d\beta}{dT} = -\frac{1}{T^2}$,
#
# $$\frac{dH}{dT} = \frac{\text{Var}(z)}{T^3} \ge 0.$$
#
# A variance is never negative, so the entropy never falls. Autograd knows no such formula. Does it agree?

# %%
for T in (0.5, 1.0, 2.0):
    t = torch.tensor(T, requires_grad=True)
    entropy(temperature(z, t)).backward()
    p = temperature(z, T).softmax(dim=-1)                          # (vocab,)
    variance = (p * (z - (p * z).sum()).square()).sum()
    print(f"T = {T}: autograd {t.grad:.3f}, Var(z) / T³ = {variance / T**3:.3f}")

# %% [markdown]
# It does. After *The March* the entropy stays low much longer: the model has read about the March Hare. Remember the
# two prompts, one **flat**, one **peaked**.
#
# ### 3.2 Top-k
#
# Temperature never sets a token to 0. (The 0.0e+00 printed at T = 0.01 is a number too small for float32.) Top-k does
# (Fan et al. 2018): keep the $k$ likeliest, forget the others. A logit of $-\infty$ is a probability of 0, and the
# softmax shares out the rest.


# %%
def top_k(logits, k):                                              # (..., vocab)
    least = logits.topk(k).values[..., -1:]  # (..., 1): the last that may stay
    return logits.masked_fill(logits < least, -torch.inf)


# %% [markdown]
# ### 3.3 Top-p, or nucleus sampling
#
# Holtzman et al. (2020, §3.1) do not fix the *number* of tokens but their *share*: sort them, and keep the fewest
# that have at least $p$ together, the nucleus. Mind the edge: the token that crosses $p$ **stays**. So ask, for each
# token, how much the likelier ones have *before* it. If that is still below $p$, the token is needed.


# %%
def top_p(logits, p):                                              # (..., vocab)
    share, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    before = share.cumsum(dim=-1) - share  # (..., vocab): what likelier ones have
    out = (before >= p).float()  # in the sorted order, so put it back:
    out = torch.zeros_like(out).scatter(-1, order, out).bool()     # (..., vocab)
    return logits.masked_fill(out, -torch.inf)


example = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()               # (vocab,)
for share in (0.4, 0.6, 0.8):
    print(f"p = {share}: {[round(q, 2) for q in top_p(example, share).softmax(dim=-1).tolist()]}")

# %% [markdown]
# Even $p = 0.4$ keeps one token, the one with 0.5. A rule that keeps only what lies *within* $p$ would keep none, and
# divide 0 by 0.
#
# ### 3.4 When is top-k wrong?
#
# Put both on the two real distributions, the flat one and the peaked one. How many tokens would you keep in each?

# %%
flat, peaked = next_logits("Alice was"), next_logits("The March")  # (vocab,) each
figures.candidates(
    {
        "flat, top-k 5": panel(flat, top_k(flat, 5)),
        "flat, top-p 0.8": panel(flat, top_p(flat, 0.8)),
        "peaked, top-k 5": panel(peaked, top_k(peaked, 5)),
        "peaked, top-p 0.8": panel(peaked, top_p(peaked, 0.8)),
    },
    title="One k cannot fit both; p can", width=10.5,
    alt="Four panels. On the flat distribution, top-k with k = 5 cuts off most of the good "
    "candidates, top-p keeps many. On the peaked one, top-k keeps four tokens of next to no "
    "probability, top-p keeps only the first.",
)

# %% [markdown]
# In numbers: how many tokens each rule keeps, and what they had together:

# %%
for kind, logits in (("flat", flat), ("peaked", peaked)):
    p = logits.softmax(dim=-1)                                     # (vocab,)
    for label, changed in (("top-k 5  ", top_k(logits, 5)), ("top-p 0.8", top_p(logits, 0.8))):
        kept = changed.isfinite()                                  # (vocab,)
        together = f"together {p[kept].sum():.0%}"
        print(f"{kind:6} {label} keeps {kept.sum():2}, {together}; the rarest {p[kept].min():.1%}")

# %% [markdown]
# On the flat one, five tokens are too few: *a*, *not* and dozens of other sensible words are cut off, and the text
# will be dull. On the peaked one, five are too many: after *The March* comes *H·are* and nothing else. The four
# others are rare, but with one such place in each sentence, sooner or later one of them is drawn. Any $k$ is too
# small for some places and too large for others. A *share* adapts.
#
# ### 3.5 Min-p
#
# Top-p has a weakness of its own: at a high temperature the tail is fat, and the nucleus must reach far into it. Nguyen
# et al. (2024) compare with the best token instead: keep what has at least $p_\text{min}$ times *its* probability.


# %%
def min_p(logits, p):                                              # (..., vocab)
    share = logits.softmax(dim=-1)                                 # (..., vocab)
    return logits.masked_fill(share < p * share.amax(dim=-1, keepdim=True), -torch.inf)


for kind, logits in (("flat", flat), ("peaked", peaked)):
    for T in (1.0, 1.5):
        warm = temperature(logits, T)                              # (vocab,)
        nucleus, near_best = (kept.isfinite().sum() for kept in (top_p(warm, 0.8), min_p(warm, 0.1)))
        print(f"{kind:6} at T = {T}: top-p 0.8 keeps {nucleus:3}, min-p 0.1 keeps {near_best:2}")

# %% [markdown]
# On the peaked one, at T = 1.5, the nucleus has grown from one token to two hundred; min-p still keeps the one.
#
# **Order matters.** Here the temperature comes first, so that the filters see the warmed distribution; so it is in
# `transformers` and in ours. llama.cpp, unless told otherwise, filters first and applies the temperature last: its tail
# is cut as the model itself saw it, however hot the rest then becomes. So the same temperature and the same $p$ mean
# different things in the two:

# %%
hot_first = top_p(temperature(flat, 1.5), 0.8)                     # (vocab,) each
filter_first = temperature(top_p(flat, 0.8), 1.5)
orders = {"temperature, then top-p": hot_first, "top-p, then temperature": filter_first}
for label, logits in orders.items():
    print(f"{label}: {logits.isfinite().sum():3} tokens may be drawn, entropy {entropy(logits):.2f}")

# %% [markdown]
# All four dials at once, in both orders, on the same two distributions. Can you set them so that about ten tokens stay
# after *Alice was*, and only one after *The March*? (If you see no dials, run the cell.)

# %%
explore.sampling({"Alice was": flat, "The March": peaked}, [name(id) for id in range(V)])

# %% [markdown]
# <details><summary>The answer</summary>
#
# Min-p does it: 0.2 at temperature 0.8 leaves 9 tokens and 1. A small nucleus does it as well: top-p 0.3 at temperature
# 1 also leaves 9 and 1. Top-k alone can't: it leaves as many tokens here as there.
# </details>

# %% [markdown]
# ### 3.6 Three penalties, and a trap
#
# Another idea: lower only what already stood in the text. Keskar et al. (2019, §4.1) divide the logits of such tokens
# by a penalty of about 1.2. There is a trap. Logits have a sign:

# %%
for prompt in ("Alice was", "The March"):
    z = next_logits(prompt)                                        # (vocab,)
    negative = (z < 0).float().mean()
    print(f"“{prompt} …”: logits from {z.min():.1f} to {z.max():.1f}; {negative:.0%} are negative")

# %% [markdown]
# Divide −5 by 1.2, and it becomes −4.2: *likelier* than before. So a negative logit has to be multiplied.


# %%
def penalize(logits, ids, penalty):                                # (vocab,); ids: the text so far
    seen = torch.zeros(V, dtype=torch.bool)                        # (vocab,)
    seen[ids] = True
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)   # (vocab,)
    return torch.where(seen, lower, logits)


z, ids = next_logits(HUMAN), torch.tensor(encode(HUMAN)).unique()  # (vocab,), (seen,)
right, wrong = penalize(z, ids, 1.5), z.scatter(0, ids, z[ids] / 1.5)  # (vocab,); wrong: just divided
order = ids[z[ids].argsort(descending=True)]                       # (seen,): the likeliest first
for id in order[[0, 1, -2, -1]].tolist():
    print(f"{name(id):5} logit {z[id]:5.1f}   penalized {right[id]:5.1f}", end="   ")
    print(f"just divided {wrong[id]:5.1f}")

# %% [markdown]
# The sign is a problem only because logits have no zero point of their own: add 10 to all of them, and the softmax is
# the same, but this penalty is not. *Subtracting* has no such trap. That is what OpenAI's two penalties do, with $c_i$
# for how often token $i$ has been written:
#
# $$z_i \leftarrow z_i - \text{presence} \cdot [c_i > 0] - \text{frequency} \cdot c_i$$
#
# The **presence penalty** asks whether a token was there, the **frequency penalty** how often.

# %%
def penalize_counts(logits, ids, presence=0.0, frequency=0.0):  # (vocab,); ids: what has been written
    counts = ids.bincount(minlength=V)                             # (vocab,)
    return logits - presence * (counts > 0) - frequency * counts


shift = 10.0  # the same distribution, other logits
written = torch.tensor(encode(HUMAN))                              # (length,)
for label, change in (("repetition 1.5", lambda z: penalize(z, written, 1.5)),
                      ("presence 1", lambda z: penalize_counts(z, written, presence=1.0)),
                      ("frequency 0.2", lambda z: penalize_counts(z, written, frequency=0.2))):
    one, two = change(z).softmax(dim=-1), change(z + shift).softmax(dim=-1)      # (vocab,) each
    print(f"{label:15} moves when 10 is added to all logits: {(one - two).abs().sum() / 2:.0%}")

# %% [markdown]
# All three are blunt tools: a text *needs* its commas and its *the* again and again, and no penalty
# cares how long ago they stood there. But they do get greedy search out of its circles.
#
# Here are five samplers on one distribution, that of *Alice was* after the human text. The penalty spares the words
# that have not been there yet.

# %%
text = HUMAN + "Alice was"
z, ids = next_logits(text), torch.tensor(encode(text))             # (vocab,), (length,)
figures.candidates(
    {
        "temperature 0.7": panel(z, temperature(z, 0.7)),
        "top-k 5": panel(z, top_k(z, 5)),
        "top-p 0.6": panel(z, top_p(z, 0.6)),
        "min-p 0.3": panel(z, min_p(z, 0.3)),
        "penalty 1.5": panel(z, penalize(z, ids, 1.5)),
    },
    title="Five ways to change one distribution", width=11,
    alt="Five panels with the same twelve rows. Temperature 0.7 raises the first tokens a "
    "little. Top-k, top-p and min-p cut the list off at different places. The penalty lowers "
    "tokens that stood in the text and raises the others.",
)

# %% [markdown]
# ### 3.7 All at work
#
# A way to choose is a chain of such changes, and then the dice:


# %%
def sampler(*changes, seed=0):
    """A way to choose: change the logits in this order, then draw."""
    generator = torch.Generator().manual_seed(seed)

    def choose(logits, ids):
        for change in changes:
            logits = change(logits)                                # (vocab,)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).item()

    return choose


# %% [markdown]
# Five settings, one beginning. Which of these texts would you believe to be written by a person? (One text each proves
# nothing; in section 5 we write hundreds.)

# %% tags=["nbval-ignore-output"]
ways = {
    "greedy, penalty 1.3": lambda logits, ids: penalize(logits, ids, 1.3).argmax().item(),
    "T = 0.7": sampler(lambda z: temperature(z, 0.7)),
    "top-k 20": sampler(lambda z: top_k(z, 20)),
    "top-p 0.8": sampler(lambda z: top_p(z, 0.8)),
    "T = 1.5, min-p 0.2": sampler(lambda z: temperature(z, 1.5), lambda z: min_p(z, 0.2)),
}
for label, choose in ways.items():
    print(f"--- {label}\n{decode(write('Alice was', choose, new=40))}\n")

# %% [markdown]
# ### 3.8 Sample ten, read all ten
#
# When GPT-2 came out, a text about a herd of English-speaking unicorns went round the world. Above it stood, small:
# *machine-written, 10 tries*. Somebody had chosen. That is no lie, as it was said; but a reader who sees one text sees
# the best of ten. So whenever you look at a model's texts: draw ten, and read all ten.

# %% tags=["nbval-ignore-output"]
for seed in range(10):
    ten = write("Alice was", sampler(lambda z: top_p(z, 0.9), seed=seed), new=30)
    print(f"--- {seed}\n{decode(ten)}\n")

# %% [markdown]
# Which one would you show? And how many of the ten would you be ashamed of? The second number is the better description
# of the model. *The best of ten is an advertisement; all ten are a measurement.*

# %% [markdown]
# ## 4 Likelier is not better
#
# If greedy is bad because it never looks back, does a better *search* help? Beam search (lesson 09) was worth a point
# of BLEU in translation. Here it is for a decoder: keep the best few hypotheses, lengthen each by every token, keep
# the best few again.


# %%
@torch.no_grad()
def beam(prompt, beams, new=60):
    going = [(0.0, encode(prompt))]                                # (sum of log p, tokens)
    for _ in range(new):
        batch = torch.tensor([ids for _, ids in going])            # (beam, length)
        log_p = model(batch).logits[:, -1].log_softmax(dim=-1)     # (beam, vocab)
        total = torch.tensor([score for score, _ in going])[:, None] + log_p
        best = total.flatten().topk(beams)  # (beams,): over all beams and tokens
        places = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        going = [(score, [*going[place // V][1], place % V]) for score, place in places]
    return going[0][1]


# %% [markdown]
# Now compare texts of 60 tokens by what the model itself thinks of them: the mean log-probability per token. The
# *perplexity* of lesson 10 is $e$ to the minus that: the model was as unsure as among so many equal choices.


# %%
@torch.no_grad()
def log_p_of(ids, start):  # the first `start` ids are the prompt
    log_p = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)   # (length, vocab)
    written = torch.tensor(ids[start:])                            # (new,)
    return log_p[start - 1 : -1].gather(-1, written[:, None])[:, 0]  # (new,): row i predicts i + 1


prompt = "Alice was"
start = len(encode(prompt))
texts = {"greedy": write(prompt, greedy, new=60)}
texts |= {f"{beams} beams": beam(prompt, beams) for beams in (4, 16)}
texts |= {
    "top-p 0.9": write(prompt, sampler(lambda z: top_p(z, 0.9), seed=3), new=60),
    "pure sampling": write(prompt, sampler(seed=3), new=60),
    "human": encode(HUMAN)[: start + 60],
}

# %% [markdown]
# Two numbers for each text: how likely its tokens are to the model (log p, the mean per token, and its perplexity), and
# how many of its runs of four are different. Which text will be likeliest, and which least?

# %% tags=["nbval-ignore-output"]
measured = {}
for way, ids in texts.items():
    mean = log_p_of(ids, start).mean().item()
    measured[way] = math.exp(-mean), distinct([ids[start:]])
    perplexity, different = measured[way]
    print(f"{way:14} log p {mean:5.2f}   perplexity {perplexity:5.1f}   distinct-4 {different:4.0%}")
print(f"\n16 beams:\n{decode(texts['16 beams'])}")

# %% [markdown]
# Compare with ours. The order matters, not the decimals:

# %% tags=["nbval-ignore-output"]
expect("Perplexity of greedy", measured["greedy"][0], 4, 8)
expect("Perplexity of 16 beams", measured["16 beams"][0], 2, 4)
expect("Perplexity of the human text", measured["human"][0], 25, 45)

# %% [markdown]
# The better the search, the likelier the text, and the more it repeats. What a human wrote is about ten times less
# likely per token than what 16 beams found, although the model was trained on this very author. Where does the
# difference come from? Sort the tokens of each text by the probability that the model gave them (Holtzman et al. show
# them in order, in figure 2).

# %% tags=["nbval-ignore-output"]
plots.lines(
    {way: log_p_of(texts[way], start).exp().sort().values.tolist()
     for way in ("16 beams", "top-p 0.9", "human")},
    title="A person surprises, a beam does not", xlabel="the 60 tokens, least probable first",
    ylabel="probability the model gave it", yscale="log",
    alt="Probability of each of 60 tokens, sorted, logarithmic. The line of the beam lies "
    "highest and never falls below about two percent. The human line begins below one in a "
    "thousand and stays below the others nearly everywhere.",
)

# %% [markdown]
# How many real surprises are there in each text?

# %% tags=["nbval-ignore-output"]
for way in texts:
    rare = (log_p_of(texts[way], start).exp() < 0.02).float().mean()
    print(f"{way:14} {rare:.0%} of the tokens had less than 2 %")

# %% [markdown]
# A person does not write what is most predictable: why say what the reader knows already? And for the circles there
# is a plain reason, too: greedy search has no dice. Where the last tokens are the same as some time ago, the next one
# is likely to be the same again. In large models something is added: they learn to copy, so that each repetition
# makes the next one likelier (Holtzman et al., figure 4). In ours, too? Say a sentence again and again, and ask how
# likely it finds the last copy:

# %%
sentence = encode("The Gardener was looking at the old tower.\n")
for times in range(1, 6):
    p = log_p_of(sentence * times, len(sentence) * (times - 1) or 1).mean().exp()
    print(f"copy {times}: {p:.2f} per token (geometric mean)")

# %% [markdown]
# No. The fifth copy surprises it as much as the first: this model has not learned to copy. Its circles are the plain
# kind.
#
# In a translation the source decides nearly everything, and there a search is right. In open text there are many good
# continuations, and the single likeliest one is like none of them. But do not turn the rule round. Pure sampling is
# *as* unlikely as the human text, and yet it is not like it. The perplexity shows how surprising a text is, not
# whether the surprise makes sense.

# %% [markdown]
# ## 5 Quality against diversity, measured
#
# One text per sampler is an anecdote. Now a lot of them: 32 texts at once, from the same prompt. To be quick we let the
# model keep what it has computed for the tokens before, in a *cache*. It changes nothing but the time; lesson 13 builds
# it.


# %%
@torch.no_grad()
def write_many(change, prompt="Alice was", count=32, new=60, seed=0):
    generator, cache, drawn = torch.Generator().manual_seed(seed), model.new_cache(context), []
    news = torch.tensor([encode(prompt)] * count)                  # (count, prompt)
    for _ in range(new):
        logits = model(news, cache=cache).logits[:, -1]            # (count, vocab)
        news = torch.multinomial(change(logits).softmax(dim=-1), 1, generator=generator)
        drawn.append(news)                                         # (count, 1)
    return torch.cat(drawn, dim=1)                                 # (count, new)


# %% [markdown]
# **Quality**: the perplexity of the texts under the model itself, without any sampler. It is a poor judge: it cannot
# know nonsense that it believes in. But it is at hand, and low means: nothing in the text surprised it.
# **Diversity**: distinct-3 over all 32 texts together.


# %%
@torch.no_grad()
def quality(texts, prompt="Alice was"):                            # (count, new)
    before = torch.tensor([encode(prompt)] * len(texts))           # (count, prompt)
    logits = model(torch.cat([before, texts], dim=1)).logits       # (count, prompt + new, vocab)
    predicting = logits[:, before.shape[1] - 1 : -1]               # (count, new, vocab)
    return F.cross_entropy(predicting.flatten(0, 1), texts.flatten()).exp().item()


# %% [markdown]
# Three dials, each turned in six steps:

# %% tags=["nbval-ignore-output"]
dials = {
    "temperature": {T: lambda z, T=T: temperature(z, T) for T in (0.3, 0.5, 0.6, 0.7, 0.85, 1.0)},
    "top-p": {p: lambda z, p=p: top_p(z, p) for p in (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)},
    "top-k": {k: lambda z, k=k: top_k(z, k) for k in (2, 4, 8, 20, 50, V)},
}

# %% [markdown]
# Each dial, each setting, 32 texts; 576 texts in all. At its last setting each dial does nothing: pure sampling. Which
# dial will be best?

# %% tags=["nbval-ignore-output"]
roads, samples = {}, {}
for dial in progress(dials, "three dials, six settings each, 32 texts"):
    samples[dial] = {value: write_many(change) for value, change in dials[dial].items()}
    found = samples[dial].values()
    roads[dial] = [quality(each) for each in found], [distinct(each.tolist(), 3) for each in found]

# %% [markdown]
# Each setting with its perplexity and distinct-3:

# %% tags=["nbval-ignore-output"]
for dial, values in dials.items():
    found = zip(values, *roads[dial], strict=True)
    print(f"{dial:12}", "   ".join(f"{value:g}: {x:.0f}, {y:.0%}" for value, x, y in found))

# %% [markdown]
# And as three roads through one plane:

# %% tags=["nbval-ignore-output"]
plots.lines(
    roads, marker="o", width=7.6, height=4.4, mark=("human", measured["human"][0]),
    title="Three dials, one road", xlabel="perplexity (left: predictable)",
    ylabel="distinct-3 over 32 texts (up: diverse)",
    alt="Three curves of distinct-3 against perplexity, for temperature, top-p and top-k. All "
    "rise from the lower left, predictable and alike, to the upper right, diverse and "
    "surprising. They nearly coincide, and end in one point, pure sampling. A vertical line "
    "marks the perplexity of the human text, at the right.",
)

# %% [markdown]
# The three curves nearly coincide: with this judge, one dial is as good as another, and only its setting counts. Is one
# of them a little higher? Before you believe a ranking, compare at the same perplexity, here near 13, and draw other
# texts, with three seeds each:

# %% tags=["nbval-ignore-output"]
near = {"temperature": (0.75, lambda z: temperature(z, 0.75)),
        "top-p": (0.75, lambda z: top_p(z, 0.75)), "top-k": (18, lambda z: top_k(z, 18))}
for dial, (value, change) in near.items():
    drawn = [write_many(change, seed=seed) for seed in (1, 2, 3)]
    found = [f"{quality(each):.1f}, {distinct(each.tolist(), 3):.1%}" for each in drawn]
    print(f"{dial:11} {value:4}:  ", "   ".join(found))

# %% [markdown]
# Perplexity and distinct-3 differ between the dials as they do between seeds. So there is no ranking to believe. And
# the road bends. From pure sampling you can go back to a temperature of 0.7, or a nucleus of 0.8, and lose little
# diversity, but half of the perplexity or more. Below that, the texts become more and more alike. Settings like
# $T = 0.7$ or $p = 0.9$, which you will often meet, lie about that bend. (The dotted line is the perplexity of one
# human text of 60 tokens, so a rough mark.)

# %% tags=["nbval-ignore-output"]
cold, warm = (list(zip(*roads["temperature"], strict=True))[place] for place in (0, -1))
expect("Perplexity at T = 0.3", cold[0], 4, 9)
expect("Distinct-3 at T = 0.3", cold[1], 0.4, 0.75)
expect("Perplexity at T = 1", warm[0], 20, 40)
expect("Distinct-3 at T = 1", warm[1], 0.92, 1)

# %% [markdown]
# Another measure of likeness asks how well each text could pass for a "translation" of the others: **self-BLEU** (Zhu
# et al. 2018), the BLEU of lesson 09, from 0 to 100, with all other texts as references. High means: they are all
# alike. Twelve texts of each are enough.


# %% tags=["nbval-ignore-output"]
from sacrebleu import sentence_bleu


def self_bleu(texts):                                              # (count, new)
    them = [decode(ids) for ids in texts.tolist()]
    bleu = [sentence_bleu(each, them[:i] + them[i + 1 :]).score for i, each in enumerate(them)]
    return statistics.mean(bleu)


for dial, value in (("temperature", 0.3), ("temperature", 0.7), ("top-p", 0.8), ("temperature", 1.0)):
    print(f"{dial:11} {value}: self-BLEU {self_bleu(samples[dial][value][:12]):.0f}")

# %% [markdown]
# It tells the same story from the other side. Measure both, quality and diversity, whenever you compare samplers:
# each alone is easily won, by copying one good sentence or by rolling dice.

# %% [markdown]
# ## 6 When to stop, and what to show
#
# **The end token.** A model can end a text itself, if texts in training ended with a special token. This model's
# vocabulary has one. How likely is it, at its best place in 64 of the texts that we have drawn?

# %% tags=["nbval-ignore-output"]
drawn = torch.cat([samples["temperature"][1.0], samples["top-p"][0.9]])          # (64, new)
with torch.no_grad():
    end = model(drawn).logits.softmax(dim=-1)[..., model.config.eos_id].max()
print(f"{name(model.config.eos_id)}: largest probability in {drawn.numel():,} places: {end:.0e}")

# %% [markdown]
# This model would practically never end by itself. So we must stop it ourselves, after a number of tokens or at a
# **stop text**, such as the end of a line. A stop text need not be a token: it may begin inside one and end inside the
# next. So look for it in the *text*, after each token. Here we open a quotation mark, and want one speech, up to the
# mark that closes it. In this vocabulary that mark is mostly part of a token. (We are lazy: we write all 60 tokens
# first, and then look after each.)


# %%
def until(prompt, stop, new=60, **options):
    ids, written = encode(prompt), ""
    choose = sampler(lambda z: top_p(z, 0.8), **options)
    for id in write(prompt, choose, new=new)[len(ids) :]:
        written += decode([id])
        if stop in written:
            return written[: written.index(stop)]
    return written


# %% [markdown]
# Three seeds, three speeches:

# %% tags=["nbval-ignore-output"]
for seed in range(3):
    print(until("“Who are you?” said the Queen.\n\n“", "”", seed=seed), end="\n---\n")

# %% [markdown]
# **Half characters.** Our model's tokens are whole characters or more. Most models' tokens are made of *bytes* (lesson
# 01), and one character may be several tokens. Show a text token by token, and you show rubbish in between. With
# GPT-2's vocabulary:

# %%
gpt2_files = shipped("glassllm-en").parents[1] / "gpt2-bpe"
bytes_encoder = BytePairEncoder.from_gpt2(gpt2_files / "encoder.json", gpt2_files / "vocab.bpe")
ids = bytes_encoder.encode("Tee für 3 € 🫖!")
print([bytes_encoder.decode([id]) for id in ids])

# %% [markdown]
# So decode *all* tokens so far each time, and hold back what ends in the sign for a broken character, until the rest
# has come:


# %%
def readable(ids, decode):
    """The text piece by piece, whole characters only."""
    shown = 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[:end])
        if end == len(ids) or not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)


print(list(readable(ids, bytes_encoder.decode)))

# %% [markdown]
# ## 7 Open the library
#
# `txlib.generation` has all this. You will recognise the filters:

# %%
from txlib.generation import (
    Sampling,
    TextGenerator,
    apply_temperature,
    beam_search,
    generate,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    stream,
)
from txlib.generation import penalize_counts as library_counts

show_source(keep_top_k, keep_top_p, keep_min_p, penalize_repetition, library_counts)

# %% [markdown]
# Fifty random rows of logits, the same for both. What is cut off must be cut off in both, and the rest must agree.

# %%
torch.manual_seed(0)
rows = 3 * torch.randn(50, V)                                      # (batch, vocab)
times = torch.poisson(0.1 * torch.ones(50, V)).long()  # (batch, vocab): how often written
history = [torch.arange(V).repeat_interleave(row) for row in times]      # the tokens themselves
ours = torch.stack([penalize(z, ids, 1.3) for z, ids in zip(rows, history, strict=True)])
counted = [penalize_counts(z, ids, 0.5, 0.2) for z, ids in zip(rows, history, strict=True)]
prove_equal(temperature(rows, 0.7), apply_temperature(rows, 0.7), what="Both temperatures")
for label, mine, theirs in (("top-k", top_k(rows, 20), keep_top_k(rows, 20)),
                            ("top-p", top_p(rows, 0.8), keep_top_p(rows, 0.8)),
                            ("min-p", min_p(rows, 0.1), keep_min_p(rows, 0.1))):
    prove_equal(mine.softmax(dim=-1), theirs.softmax(dim=-1), what=f"Both {label}")
prove_equal(ours, penalize_repetition(rows, times > 0, 1.3), what="Both repetition penalties")
theirs = library_counts(rows, times, 0.5, 0.2)
prove_equal(torch.stack(counted), theirs, what="Both penalties by counts")

# %% [markdown]
# `Sampling` puts them in order, `stream` is the loop, with a cache, ends and seeds. Here is its source.
# Look for predict, choose, append.

# %%
show_source(Sampling.__call__, stream)

# %% [markdown]
# Does it write what ours writes? Greedy, with a seed, and the beam:

# %%
begin = encode("Alice was")
(theirs,) = generate(model, [begin], max_new_tokens=80)
print("greedy, the same tokens as ours:   ", begin + theirs == write("Alice was", greedy))
options = dict(do_sample=True, temperature=0.9, top_p=0.9, max_new_tokens=60, seed=0)
ours = write_many(lambda z: top_p(temperature(z, 0.9), 0.9), count=4)            # (count, new)
drawn = generate(model, [begin] * 4, **options)
print("drawn, the same tokens as ours:    ", drawn == ours.tolist())
print("the same seed, the same text:      ", drawn == generate(model, [begin] * 4, **options))
(found,) = beam_search(model, torch.tensor([begin]), max_new_tokens=20, num_beams=4)
print("the beam, the same tokens as ours: ", begin + found == beam("Alice was", 4, new=20))

# %% [markdown]
# `TextGenerator` joins a model with its tokenizer: text in, text out, also piece by piece, holding back what may yet
# become a stop text or the rest of a character.

# %% tags=["nbval-ignore-output"]
writer = TextGenerator(model, tokenizer)
prompt = "“Who are you?” said the Queen.\n\n“"
pieces = writer.stream(prompt, do_sample=True, top_p=0.8, stop_strings=["”"], seed=0)
print(" · ".join(pieces))

# %% [markdown]
# From the command line, token by token as they come:
#
# ```
# txlib generate --model data/checkpoints/glassllm-en "Alice was"
# txlib generate --model data/checkpoints/glassllm-en "Alice was" --temperature 0.8 --top-p 0.9 --seed 1
# txlib generate --model gpt2 "Alice was" --greedy        # any decoder in the format of transformers
# ```

# %% [markdown]
# ## 8 Tasks as text to continue
#
# Radford et al. (2019) made a bold claim: a language model needs no other training to do other tasks. Put the task
# into the prompt, and let it write on. *Sentiment*: "… It was", *good* or *bad*? *Question answering*: "Q: … A:".
# *Summary*: "… TL;DR:". It does not even have to write: where there are few possible answers, ask which one it finds
# likeliest.
#
# $$\text{score}(\text{answer} \mid \text{prompt}) = \sum_t \ln p(\text{answer}_t \mid \text{prompt}, \text{answer}_{<t})$$
#
# Start where our model is at home. Four beginnings, with the same four names to choose from for each:


# %%
def scores(prompt, answers):
    """The sum of log p of each answer, and its number of tokens."""
    row, parts = encode(prompt)[-100:], [encode(answer) for answer in answers]
    sums = torch.stack([log_p_of(row + part, len(row)).sum() for part in parts])
    return sums, torch.tensor([len(part) for part in parts])       # (answer,) each


NAMES = [" Rabbit", " Hare", " Turtle", " Queen"]
for prompt in ("The March", "The Mock", "The Red", "The White"):
    p = scores(prompt, NAMES)[0].softmax(dim=-1)                   # (answer,)
    shares = zip(NAMES, p.tolist(), strict=True)
    print(f"{prompt:10}", "  ".join(f"{each.strip()} {share:.0%}" for each, share in shares))

# %% [markdown]
# It knows the first three. After *The White* it prefers the Queen, who exists as well; its second choice is a mistake.
#
# ### 8.1 Anqi forgot ___
#
# The next word is never just a word. *Anqi forgot all about ___*: her homework? his keys? To fill the gap, a model must
# decide something that nobody told it. What does it do? Put ten subjects into the same sentence, and let it choose
# between *her* and *his*. Guess first: what will it say of Bruno, a boy, and of Anqi, whom it has never met?

# %%
PEOPLE = ["Alice", "Sylvie", "Bruno", "The Queen", "The King", "The Duchess", "The Professor",
          "The Hatter", "The teacher", "Anqi"]
choice = {}
for who in PEOPLE:
    both = scores(f"{who} forgot all about", [" her", " his"])[0].softmax(dim=-1)    # (answer,)
    choice[who] = both[0].item()
print("her:", ", ".join(f"{who} {share:.0%}" for who, share in choice.items()))

# %% [markdown]
# Side by side:

# %%
plots.bars(
    choice, title="The choice follows what was read, not who it is", format="{:.0%}",
    xlabel="probability of “her”, against “his”",
    alt="; ".join(f"{who}: {share:.0%}" for who, share in choice.items()),
)

# %% [markdown]
# Bruno is a boy, and gets *her*; perhaps because in his book he is seldom without Sylvie, his sister. Even the Hatter
# and the King lean that way. Of Anqi the model knows nothing, and still it leans a little: to the side of its books,
# which are mostly about a girl called Alice. **A completion is not a fact about Anqi, but about the training text.**
# Where a text says *he* of doctors and *she* of nurses, so does the model, and with a low temperature it says so
# *more* often than the text did, since the likelier word takes all:

# %%
both = scores("Alice forgot all about", [" her", " his"])[0]       # (answer,)
for T in (1.0, 0.7, 0.3):
    print(f"T = {T}: “her” {(both / T).softmax(dim=-1)[0]:.1%}")

# %% [markdown]
# This is called **bias**, and *bias amplification*. Measure it like this, with pairs of sentences that differ in one
# word, before you let a model decide anything about people. (Sheng et al. 2019 did it with GPT-2: *The woman worked
# as …*, *The man worked as …*.)
#
# ### 8.2 Question answering
#
# Completing a name is remembering. A *question* asks for more: understand it, find the answer among what was read.
# Eight questions about the books, and for each the same eight persons to choose from. Guessing gives one in eight.

# %%
QUESTIONS = {
    "Who sat on the top of a high wall?": " Humpty Dumpty",
    "Who took a watch out of his pocket, and hurried on?": " the White Rabbit",
    "Who wept, and sang of beautiful soup?": " the Mock Turtle",
    "Who had a grin, and vanished quite slowly?": " the Cheshire Cat",
    "Who shouted “Off with her head!”?": " the Queen of Hearts",
    "Who nursed a baby in a kitchen full of pepper?": " the Duchess",
    "Who asked why a raven is like a writing-desk?": " the Hatter",
    "Who poured tea on the nose of the Dormouse?": " the March Hare",
}
PERSONS = list(QUESTIONS.values())
asked = {question: scores(f"“{question}” said Alice. “It was", PERSONS) for question in QUESTIONS}
free, lengths = scores("“It was", PERSONS)  # (answer,) each: without a question


def right_answers(score):
    said = {question: PERSONS[score(sums).argmax()] for question, (sums, _) in asked.items()}
    return sum(said[question] == answer for question, answer in QUESTIONS.items())


# %% [markdown]
# Three ways to compare answers, because the bare score is unfair in two ways: to long answers, and to those that are
# rare with or without the question.
#
# - **The sum** favours *short* answers: each further token costs.
# - **Length normalisation** divides by the number of tokens (Brown et al. 2020, §2.4). Now it favours names with
#   predictable ends: after *Humpty*, *Dumpty* is for free.
# - **Calibration** asks how much likelier the *question* makes an answer: subtract its score after a prompt without
#   content. Brown et al. divide by such a probability, too; Zhao et al. (2021) go on from there.

# %%
ways = {
    "sum": lambda sums: sums,
    "mean per token": lambda sums: sums / lengths,
    "calibrated": lambda sums: sums - free,
}
for way, score in ways.items():
    said = Counter(PERSONS[score(sums).argmax()].strip() for sums, _ in asked.values())
    answers = ", ".join(f"{who} ({times})" for who, times in said.items())
    print(f"{way:14} {right_answers(score)} of 8 right; says {answers}")

# %% [markdown]
# One of eight is chance. And look at *what* it says. By the sum it gives one answer to all questions, by the mean
# another one to all: neither depends on the question. Calibration breaks the habit, but it cannot put knowledge where
# there is none.
#
# ### 8.3 Sentiment, on real reviews
#
# Now a task with a test set: reviews of clothes, about half of them with one or two stars, the others with four or
# five. The prompt is the review (its end, as the model reads only 128 tokens) and *It was*; the answers are *very nice*
# and *not very nice*.

# %% tags=["nbval-ignore-output"]
from txlib.data import reviews

data = reviews("sentiment")
ANSWERS = [" not very nice", " very nice"]                         # label 0, label 1
labels = torch.tensor([review.label for review in data.test])      # (review,)
found = [scores(review.text.capitalize() + " It was", ANSWERS)
         for review in progress(data.test, "reading reviews")]
sums = torch.stack([each for each, _ in found])                    # (review, answer)
review_lengths = found[0][1]                                       # (answer,)
free_answers = scores("It was", ANSWERS)[0]                        # (answer,): without a review
readings = {"sum": sums, "mean per token": sums / review_lengths, "calibrated": sums - free_answers}

# %% [markdown]
# How often is each way of reading right? With so few reviews chance alone makes a difference, so it is printed, too:

# %% tags=["nbval-ignore-output"]
accuracy = {}
for way, score in readings.items():
    said = score.argmax(dim=-1)                                    # (review,)
    accuracy[way] = (said == labels).float().mean().item()
    often = said.float().mean()
    print(f"{way:14} accuracy {accuracy[way]:.1%}; says “very nice” of {often:.0%} of the reviews")
spread = 2 * math.sqrt(0.25 / len(labels))
print(f"chance 50 %; with {len(labels)} reviews it wanders by ± {spread:.1%}")

# %% [markdown]
# All three are at chance. The sum always says *very nice*, as it is one word shorter. The mean nearly always.
# Calibrated, it says both, and is no more often right. Beware of going on from here. You could try ten other prompts
# and keep the best. But ten prompts that only guess have, by luck, one at about 54 % among them; choose it *on the test
# set*, and you have measured your patience.
#
# Is the task too hard? Count words. A review's score is the sum over its words of $\ln$ (how often among the good) −
# $\ln$ (how often among the bad): naive Bayes, from 1960 or so.

# %% tags=["nbval-ignore-output"]
def words(text):
    return re.findall(r"[a-z']+", text.lower())


bad, good = Counter(), Counter()
for review in data.train:
    (good if review.label else bad).update(words(review.text))
weight = {word: math.log((good[word] + 1) / (bad[word] + 1)) for word in good | bad}
said = [sum(weight.get(word, 0) for word in words(review.text)) > 0 for review in data.test]
by_words = (torch.tensor(said) == labels.bool()).float().mean().item()
expect("Accuracy of counting words", by_words, 0.8, 0.95)
for way in accuracy:
    expect(f"Accuracy of our language model, {way}", accuracy[way], 0.4, 0.65)

# %% [markdown]
# Counting words gets nine of ten right. So the task is easy, and our model cannot do it. Is the method to blame? Give
# it a task that it can know something about: which is English, the beginning of a review, or the same words shuffled?
# Chance is one half again. The score is the mean per token.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
right = 0
for review in data.test[:150]:
    text = review.text.split()[1:14]
    mixed = [text[place] for place in torch.randperm(len(text))]
    sums, lengths = scores("It", [" " + " ".join(each) for each in (text, mixed)])
    right += (sums / lengths).argmax().item() == 0
expect("Accuracy for the order of words", right / 150, 0.75, 1)

# %% [markdown]
# The method works; what is missing is knowledge. This model has read a few children's books and no review, and it has
# 0.85 million parameters to keep them in. The largest GPT-2 has 1,800 times as many and has read eight million web
# pages; prompted with a text and questions about it, it was as good as, or better than, three of four systems trained
# on 127,000 examples (Radford et al. 2019, CoQA, abstract). So whatever model you use, measure it on a test set,
# write chance beside it, and try a simple baseline.
#
# ### 8.4 In-context learning
#
# A prompt can do more than ask. Show some examples in it, *then* ask: no weight changes, and still the model may do
# better. This is **in-context learning** (Brown et al. 2020): *zero-shot* without examples, *one-shot* with one,
# *few-shot* with some. For GPT-3 (175 billion parameters; their tables 3.2 and 3.3):
#
# | | zero-shot | one-shot | few-shot |
# | --- | --- | --- | --- |
# | last word of a story (LAMBADA), accuracy | 76.2 | 72.5 | 86.4 |
# | questions (TriviaQA), accuracy | 64.3 | 68.0 | 71.2 |
#
# Is there any of it in our model? In the simplest sense, it should: *what stands in the context makes what follows
# easier to predict*. Test it on texts that it has never read, Shakespeare's. Always predict the same 16 tokens, with
# more and more of the text before them. A control shows that it is not just length that helps: as many tokens from
# *another* place.

# %%
from txlib.data import shakespeare

play = torch.tensor(encode(shakespeare().test[:250_000].replace("'", "’")))
passages = play[: len(play) // 128 * 128].view(-1, 128)[:200]     # (passage, 128)
target, elsewhere = passages[:, -16:], passages.roll(50, dims=0)   # (passage, 16), (passage, 128)


@torch.no_grad()
def nats(before):                                                  # (passage, k): before the target
    before = torch.cat([before[:, :-1], passages[:, 111:112]], dim=1)  # the last is always its own
    logits = model(torch.cat([before, target], dim=1)).logits[:, -17:-1]   # (passage, 16, vocab)
    each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")     # (passage, 16)
    return each.mean(dim=1)                                        # (passage,)


# %% [markdown]
# From one token of context to 112, own and foreign:

# %% tags=["nbval-ignore-output"]
spans = [1, 2, 4, 8, 16, 32, 64, 112]
losses = {
    "from another place": [nats(elsewhere[:, 112 - k : 112]).mean().item() for k in spans],
    "from the same text": [nats(passages[:, 112 - k : 112]).mean().item() for k in spans],
}
plots.lines(
    {label: (spans, values) for label, values in losses.items()}, xscale="log", marker="o",
    title="It learns from its context, a little", xlabel="tokens of context", ylabel="nats per token",
    alt="Loss on the same 16 tokens against the tokens of context. With context from the same "
    "text it falls steadily; with as much context from another place it hardly changes.",
)

# %% [markdown]
# The same numbers, and what the whole context is worth, with its error over the 200 passages:

# %% tags=["nbval-ignore-output"]
print("tokens of context   ", *(f"{k:5}" for k in spans))
for label, values in losses.items():
    print(f"{label:20}", *(f"{value:.2f}" for value in values), sep="  ")
gain = nats(passages[:, :112]) - nats(passages[:, 111:112])        # (passage,): pairs
error = gain.std() / len(gain) ** 0.5
print(f"112 tokens of context against 1: {gain.mean():.3f} nats per token, ± {2 * error:.3f}")
own = (nats(passages[:, :112]) - nats(elsewhere[:, :112])).mean()
print(f"112 tokens from the same place against 112 from another: {own:.3f}")
expect("Nats per token gained by the context", -gain.mean().item(), 0.08, 0.25)

# %% [markdown]
# That is in-context learning in its first sense: what the passage says before makes the rest easier. Look at the figure
# for where it comes from. About two thirds are there after eight tokens: that is ordinary reading of the last few
# words. The rest comes slowly, from further back. And the control? As many tokens from another place gain only 0.03.
# (It has not learned to repeat whole sentences: in section 4 even a fifth copy surprised the model as much as the
# first.) The second sense is a *task* that only the examples tell. A name, a colon, *he* or *she*; some lines of this,
# then a name alone. The model has read of them all. How often is it right after 0, 1, 2, 4, 8 examples?

# %%
import random

SHE = "Alice Sylvie Queen Duchess Lady sister Dinah Muriel".split()
HE = "King Hatter Bruno Gardener Professor Gryphon Rabbit Earl".split()
EXAMPLES = [(who, "she") for who in SHE] + [(who, "he") for who in HE]


def few_shot(shots, seed):
    """Accuracy, and the probability of the two answers together, over all 16 names."""
    draw, right, both = random.Random(seed), [], []
    for who, answer in EXAMPLES:
        shown = draw.sample([each for each in EXAMPLES if each[0] != who], shots)
        prompt = "".join(f"{name}: {pronoun}\n" for name, pronoun in shown) + f"{who}:"
        sums = scores(prompt, [" she", " he"])[0]                  # (answer,)
        right.append(sums.argmax().item() == ["she", "he"].index(answer))
        both.append(sums.exp().sum().item())
    return statistics.mean(right), statistics.mean(both)


# %% [markdown]
# Which examples are shown is drawn, so we draw three times:

# %% tags=["nbval-ignore-output"]
for shots in progress([0, 1, 2, 4, 8], "three draws of examples each"):
    right, both = zip(*(few_shot(shots, seed) for seed in range(3)), strict=True)
    each = "  ".join(f"{share:.0%}" for share in right)
    print(f"{shots} examples: right {each} (chance 50 %);", end="  ")
    print(f"she or he at all: {statistics.mean(both):.0%}")

# %% [markdown]
# The two columns say different things. *She or he at all* rises: from the examples the model has taken the **form**,
# which words come here. *Right* stays at chance: one draw of 16 names wanders by ± 25 %, so one 75 % among fifteen
# proves nothing, and the three of a row together by ± 14 %. It has not taken the **task**. Min et al. (2022) found
# that large models, too, owe much of what examples give them to the form: labels drawn at random hurt them little.
# But their answers are far from chance.
#
# So let one that can. GPT-2 small has 124 million parameters and has read eight million web pages. It is not part of
# the course (548 MB), but if you are online, load it once, and run the two cells below again:
#
# ```
# hf download openai-community/gpt2 config.json model.safetensors tokenizer.json
# ```

# %% tags=["nbval-ignore-output"]
CAPITALS = dict(
    France="Paris", Germany="Berlin", Spain="Madrid", Russia="Moscow", Japan="Tokyo", Egypt="Cairo",
    England="London", Austria="Vienna", Greece="Athens", Ireland="Dublin", Cuba="Havana", Iran="Tehran",
)


def capitals(writer, shots, seed):
    """How many capitals it writes, greedily, after some lines that show how."""
    draw, prompts = random.Random(seed), []
    for country in CAPITALS:
        shown = draw.sample([each for each in CAPITALS if each != country], shots)
        prompts.append("".join(f"{each}: {CAPITALS[each]}\n" for each in shown) + f"{country}:")
    said = writer.generate(prompts, max_new_tokens=3)
    return sum(answer in text for answer, text in zip(CAPITALS.values(), said, strict=True))


# %% [markdown]
# Our model first, and GPT-2 beside it where it is at hand:

# %% tags=["nbval-ignore-output"]
writers = {"ours": writer}
if folder := gpt2():
    writers["GPT-2 small"] = TextGenerator(load_pretrained(folder), load_tokenizer(folder))
else:
    print("GPT-2 is not here; without it, this cell shows our model alone.")
for label, each in writers.items():
    for shots in (0, 1, 4):
        found = "  ".join(str(capitals(each, shots, seed)) for seed in range(3))
        print(f"{label:12} {shots} examples: {found} of {len(CAPITALS)} right")

# %% [markdown]
# What our model has read of these cities is little help (*London is the capital of Paris*, says Alice, *and Paris is
# the capital of Rome*). With GPT-2, look at how the number changes from 0 examples to 1 to 4: the knowledge is in the
# weights all along, the examples only say what is wanted. And a last surprise of Radford et al. (2019, §3.6): they made
# GPT-2 summarise by writing *TL;DR:* after an article. Nobody had trained it to; the web had.
#
# ## 9 Quiz
#
# Decide first, then open an answer.
#
# **1. Probabilities 0.5, 0.25, 0.15, 0.1. Which tokens does top-p with $p = 0.7$ keep?**
#
# <details><summary>A. The first one</summary>
#
# It has 0.5, and that is less than 0.7. The nucleus must have *at least* $p$.
# </details>
# <details><summary>B. The first two</summary>
#
# Right. Before the second lie 0.5 < 0.7, so it is needed; before the third lie 0.75, so it is not. They are drawn with
# 2/3 and 1/3.
# </details>
# <details><summary>C. The first three</summary>
#
# Two have 0.75 already. The third would be kept with $p = 0.8$.
# </details>
#
# **2. You halve the temperature, from 1 to 0.5. Token A was twice as likely as token B. And now?**
#
# <details><summary>A. Twice as likely, as before</summary>
#
# Only adding a constant to all logits leaves ratios alone. Dividing them does not.
# </details>
# <details><summary>B. Four times</summary>
#
# Right. The ratio is $e^{(z_A - z_B)/T}$; with half the $T$ its exponent doubles, so the ratio is squared.
# </details>
# <details><summary>C. It depends on the other tokens</summary>
#
# Their *probabilities* depend on all others, but the ratio of two does not.
# </details>
#
# **3. One library applies top-p before the temperature, another after it. At T = 1.5 and $p = 0.9$, which one draws
# from more tokens?**
#
# <details><summary>A. The one that filters first</summary>
#
# It filters the model's own distribution, which is sharper, so fewer tokens have 0.9 together.
# </details>
# <details><summary>B. The one that filters last</summary>
#
# Right. Heat fattens the tail, and the nucleus must reach further to have 0.9.
# </details>
# <details><summary>C. Both draw from the same tokens</summary>
#
# The order of the tokens is the same, but not how many are needed.
# </details>
#
# **4. To all logits you add 5. What changes?**
#
# <details><summary>A. The samplers' entropy</summary>
#
# The softmax does not see a constant: all ratios stay.
# </details>
# <details><summary>B. Top-p keeps other tokens</summary>
#
# It looks at probabilities, and these stay.
# </details>
# <details><summary>C. The repetition penalty</summary>
#
# Right. It divides, so it depends on where zero is. Presence and frequency penalties subtract, and don't.
# </details>
#
# **5. A friend tries thirty prompts for a classifier on 400 test texts and reports the best, 56 %. Chance is 50 %. What
# do you say?**
#
# <details><summary>A. Six points above chance: it works</summary>
#
# One prompt wanders by ± 5 points. The best of thirty that only guess lies near 55 %.
# </details>
# <details><summary>B. Choose the prompt on other texts, then test once</summary>
#
# Right. Whatever is chosen on the test set makes its number too good.
# </details>
# <details><summary>C. Use a lower temperature</summary>
#
# The answers are compared, not drawn; no temperature changes which one is first.
# </details>

# %% [markdown]
# ## 10 Summary
#
# - Predict, choose, append. Greedy and beam search find likelier texts, and likelier texts go in circles.
# - Temperature changes ratios of probabilities; top-k keeps a number, top-p a share, min-p what is near the best. Their
#   order matters.
# - Dividing by a repetition penalty depends on the logits' sign; presence and frequency penalties subtract.
# - More diversity costs quality. Choose the place on that road for your purpose, and measure both. Read all ten.
# - Any task can be put as a prompt, with or without examples. Whether a model can do it is a question for a test set,
#   with chance beside it. What it completes about people says what it has read.
#
# **Read** Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
# [arXiv:1904.09751](https://arxiv.org/abs/1904.09751), sections 3 and 4. Li et al. 2016 (distinct-n),
# [arXiv:1510.03055](https://arxiv.org/abs/1510.03055), and Zhu et al. 2018 (self-BLEU),
# [arXiv:1802.01886](https://arxiv.org/abs/1802.01886). Fan et al. 2018, *Hierarchical Neural Story
# Generation*, [arXiv:1805.04833](https://arxiv.org/abs/1805.04833), section 5.4. Nguyen et al. 2024, *Min-p
# Sampling*, [arXiv:2407.01082](https://arxiv.org/abs/2407.01082), section 3. Keskar et al. 2019, *CTRL*,
# [arXiv:1909.05858](https://arxiv.org/abs/1909.05858), section 4.1. Radford et al. 2019, *Language Models are
# Unsupervised Multitask Learners*, section 3. Brown et al. 2020, *Language Models are Few-Shot Learners*,
# [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), sections 2.4 and 3. Min et al. 2022, *Rethinking the Role of
# Demonstrations*, [arXiv:2202.12837](https://arxiv.org/abs/2202.12837). Zhao et al. 2021, *Calibrate Before Use*,
# [arXiv:2102.09690](https://arxiv.org/abs/2102.09690), section 5. Sheng et al. 2019, *The Woman Worked as a
# Babysitter*, [arXiv:1909.01326](https://arxiv.org/abs/1909.01326).
#
# **Do** the exercise [11_sampling](../exercises/exercise_11_sampling.ipynb). Then go on to
# [13 Decoding fast](13_decoding.ipynb).
