# %% [markdown] lesson={"part": "II Language models", "builds": "every sampler, a search, and two judges of what they write"}
# # 11 · Sampling: from probabilities to text
#
# **After this lesson you will be able to**
#
# - write with a language model, and say what greedy search, temperature, top-k, top-p, min-p and the three penalties
#   do to one real distribution;
# - show by measurement why the likeliest text is not the best one;
# - trade quality against diversity on purpose, with a judge that is not the model itself;
# - end a text where it should end, and show it while it is being written.
#
# **You need** lessons 03 to 06 and 10. **It takes** about 55 minutes to read and try; section 4 is a good place for a
# break. All cells together run in about a minute on a laptop. Nothing is trained here: a small real model is bundled.

# %% [markdown]
# ## 1 The problem: the model gives probabilities, you want text
#
# In lesson 10 we trained a model to guess the next token. What is missing is a good way to *choose* one. The model of
# this lesson is real, but tiny: a decoder with fewer than a million parameters, trained by Oséias Dias de Farias on
# Lewis Carroll's books. (Lesson 16 takes it apart. Here it is a closed box: tokens in, logits for the next token out.)

# %%
import math
import re
import statistics

import torch
import torch.nn.functional as F

from txcourse import explore, figures
from txcourse.lesson import expect, predict, predicted, prove_equal, show_source
from txlib import plots
from txlib.data import reviews, shakespeare, shipped, translation, verses
from txlib.models.pretrained import load_pretrained
from txlib.text import load_tokenizer

# %% [markdown]
# Give it a beginning, and it says how likely each token is to come next. We write ␣ for a space and ⏎ for the end of a
# line. Many tokens are not words: `␣s` and `␣de` only begin one.

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
tokenizer = load_tokenizer(shipped("glassllm-en"))
encode, decode = tokenizer.encode, tokenizer.decode
V, context = model.config.vocab_size, model.config.max_length  # 1,024 and 128
pieces = map(tokenizer.tokenizer.id_to_token, range(V))
names = [piece.replace("\n", "⏎").replace("▁", "␣") for piece in pieces]


@torch.no_grad()
def next_logits(prompt):
    ids = encode(prompt)[-context:]  # what fits
    return model(torch.tensor([ids])).logits[0, -1]  # (vocab,)


# %% jupyter={"source_hidden": true}
p = next_logits("Alice was").softmax(dim=-1)  # (vocab,)
likeliest = {names[id]: p[id].item() for id in p.topk(10).indices.tolist()}
plots.bars(
    likeliest, title="After “Alice was”, no token is likely", xlabel="probability",
    alt="; ".join(f"{token}: {share:.2f}" for token, share in likeliest.items()),
)

# %% [markdown]
# That is all a language model ever says: one number per token of the vocabulary. A loop around it makes text: *predict,
# choose, append*, again and again. The obvious choice is the likeliest token. That is **greedy search**:


# %%
@torch.no_grad()
def write(prompt, choose, new=80):
    ids = encode(prompt)
    for _ in range(new):
        logits = model(torch.tensor([ids[-context:]])).logits[0, -1]  # predict
        ids.append(choose(logits, ids))  # choose, append
    return ids


def greedy(logits, ids):
    return logits.argmax().item()


print(decode(write("Once upon a time", greedy)))

# %% [markdown]
# It goes in circles. We need a number for that. Of all runs of $n$ consecutive tokens, what fraction is distinct? On
# paper: *a b a b a* has four pairs, *ab*, *ba*, *ab*, *ba*, but only two distinct ones. Its distinct-2 is
# $2 / 4 = 0.5$.
#
# $$\text{distinct-}n = \frac{\text{different runs of } n \text{ tokens}}{\text{all runs of } n \text{ tokens}}$$
#
# (After Li et al. 2016, who divide by the number of tokens.) A text that never repeats itself has 1. Measure it for
# four beginnings, and for a text that a human wrote, the beginning of *Alice's Adventures in Wonderland*:


# %%
HUMAN = """Alice was beginning to get very tired of sitting by her sister on the
bank, and of having nothing to do: once or twice she had peeped into
the book her sister was reading, but it had no pictures or
conversations in it, “and what is the use of a book,” thought Alice
“without pictures or conversations?”
"""


def distinct(texts, n=4):  # texts: lists of tokens
    runs = [tuple(ids[i : i + n]) for ids in texts for i in range(len(ids) - n + 1)]
    return len(set(runs)) / len(runs)


for prompt in ("Once upon a time", "“I don’t know,” said", "The Queen", "Alice was"):
    written = write(prompt, greedy, new=120)
    print(f"greedy, {prompt + ' …':26} distinct-4: {distinct([written]):.0%}")
print(f"human {'':28} distinct-4: {distinct([encode(HUMAN)]):.0%}")

# %% [markdown]
# Is the model too small? The same happens to models a thousand times larger (Holtzman et al. 2020). What is wrong is
# the *choice*.

# %% [markdown]
# ## 2 The idea in one picture
#
# Do not take the top token: *draw* one, each with its own probability.


# %% tags=["nbval-ignore-output"]
torch.manual_seed(26)
steps = []


def draw(logits, ids):
    p = logits.softmax(dim=-1)  # (vocab,)
    chosen = torch.multinomial(p, 1).item()
    steps.append((p, chosen))
    return chosen


print(decode(write("Alice was", draw, new=10)))

# %% [markdown]
# In the picture, each column is one step, and a frame marks the token that was drawn. One token that is not the
# likeliest sends the whole text down another path:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
figures.draws(steps[:10], names, title="Drawn, not always the likeliest")

# %% [markdown]
# ## 3 Choosing: every sampler in a few lines
#
# Drawing from the model's own distribution is called **pure sampling**. It hardly ever goes in circles. But that text
# was a lucky one. Here are two others:

# %% tags=["nbval-ignore-output"]
for seed in (1, 2):  # the same seed draws the same numbers: the same text
    torch.manual_seed(seed)
    print(decode(write("Alice was", draw, new=50)), end="\n\n")

# %% [markdown]
# They make no sense, and some of their words don't exist. The suspects are the absurd tokens: each of the thousand has
# at least a small probability. (Section 5 cuts them off, and counts the words.) Add up what is outside the twenty
# likeliest, at each position of the human text:

# %% tags=["nbval-ignore-output"]
ids = torch.tensor([encode(HUMAN)[:context]])  # (1, n)
with torch.no_grad():
    best = model(ids).logits[0, :-1].softmax(dim=-1).topk(20)  # (n - 1, 20) each
tail = 1 - best.values.sum(dim=-1).mean()
by_human = 1 - (best.indices == ids[0, 1:, None]).any(dim=-1).float().mean()
print(f"{tail:.0%} of the probability lies outside the 20 likeliest tokens;")
print(f"of the tokens that the human wrote, {by_human:.0%} are from there")

# %% [markdown]
# A person goes there about as often, but picks a rare token that fits. Dice do not, and the model goes on from whatever
# they pick. So most samplers change the logits $z$ before the softmax, so that this **tail** gets less. We watch each
# of them on one real distribution, that of *Alice was*.
#
# ### 3.1 Temperature
#
# Two tokens have the logits 2 and 1. Their probabilities have the ratio $e^{2 - 1} = 2.7$. Divide both logits by 0.5:
# now they are 4 and 2, and the ratio is $e^2 = 7.4$. Divide by 2 instead: $e^{0.5} = 1.6$. In general, divide all
# logits by a **temperature** $T > 0$:
#
# $$p_i = \frac{e^{z_i / T}}{\sum_j e^{z_j / T}} \qquad\qquad \frac{p_i}{p_j} = e^{(z_i - z_j)/T}$$
#
# As $T \to 0$, the exponent goes to infinity for the likelier of two tokens: the best takes everything, and we have
# greedy search. As $T \to \infty$, it goes to 0: all ratios go to 1, and each of the $V$ tokens gets $1/V$. At $T = 1$
# nothing changes. (The name is from physics: with energies $E_i = -z_i$ this is Boltzmann's distribution.)


# %%
def temperature(logits, T):  # (..., vocab)
    return logits / T


own = next_logits("Alice was")  # (vocab,)

# %% [markdown]
# Here are three temperatures on the eleven likeliest tokens, gray before and blue after. The last row adds up all the
# others:

# %% jupyter={"source_hidden": true}
heated = {f"T = {T:g}": temperature(own, T) for T in (0.5, 0.8, 1.5)}
figures.reshaped(own, heated, names, title="A low temperature sharpens, a high one feeds the tail")

# %% [markdown]
# How open is the choice? The **entropy** $H = -\sum_i p_i \ln p_i$ says it in one number: 0 when only one token is
# possible, $\ln V$ when all are equally likely. For the probabilities ½, ¼, ¼ it is ½ · 0.69 + ¼ · 1.39 + ¼ · 1.39 =
# 1.04 nats. (It is the cross-entropy of lesson 10 when the tokens are drawn from $p$ itself.)

# %% jupyter={"source_hidden": true}
predict(
    "entropy-and-temperature", "You raise the temperature. What happens to the entropy?",
    "it rises for some prompts, and falls for others", "it never falls", "it rises up to T = 1, then falls",
)

# %% [markdown]
# As a function, checked on ½, ¼, ¼. The last line has the logits after two prompts:


# %%
def entropy(logits):  # (..., vocab)
    p = logits.softmax(dim=-1)  # (..., vocab)
    return -torch.special.xlogy(p, p).sum(dim=-1)  # (...,); xlogy: 0 · ln 0 is 0


print(f"{entropy(torch.tensor([0.5, 0.25, 0.25]).log()):.2f} nats")
flat, peaked = next_logits("Alice was"), next_logits("The March")  # (vocab,) each

# %% [markdown]
# Now raise the temperature from 0.1 to 10:

# %% jupyter={"source_hidden": true}
grid = torch.logspace(-1, 1, 41)  # (41,)
curves = {f"{prompt} …": (grid.tolist(), [entropy(temperature(logits, T)).item() for T in grid])
          for prompt, logits in (("Alice was", flat), ("The March", peaked))}
plots.lines(
    curves | {"ln V": ([0.1, 10], [math.log(V)] * 2)}, xscale="log", dashed=["ln V"],
    title="Entropy rises with temperature", xlabel="temperature T", ylabel="entropy (nats)",
    alt="Entropy against temperature from 0.1 to 10 for two prompts. Both rise from near 0 to "
    "near ln V = 6.9. The prompt The March stays near 0 much longer.",
)

# %% jupyter={"source_hidden": true}
predicted("entropy-and-temperature", "it never falls")

# %% [markdown]
# Both rise all the way. After *The March* the entropy stays low much longer: the model has read about the March Hare.
# Remember the two distributions, one **flat**, one **peaked**.
#
# Is the rise a law? Yes. With $\text{Var}(z)$, the variance of the logits when the tokens are drawn from $p$, the slope
# is
#
# $$\frac{dH}{dT} = \frac{\text{Var}(z)}{T^3} \ge 0,$$
#
# and as a variance is never negative, the entropy never falls.
#
# <details><summary>Second reading: the proof, in four small steps</summary>
#
# They are easier with $\beta = 1/T$, so that $p_i = e^{\beta z_i} / Z$ with $Z = \sum_j e^{\beta z_j}$.
#
# 1. *Put the logarithm in.* $\ln p_i = \beta z_i - \ln Z$. So $H = -\sum_i p_i (\beta z_i - \ln Z) =
#    \ln Z - \beta \overline z$, where $\overline z = \sum_i p_i z_i$ is the mean logit.
# 2. *How does $\ln Z$ change with $\beta$?* $\frac{d \ln Z}{d\beta} = \frac1Z \sum_j z_j e^{\beta z_j} =
#    \overline z$.
# 3. *How does $\overline z$ change?* From $\ln p_i = \beta z_i - \ln Z$ and step 2 follows
#    $\frac{d p_i}{d\beta} = p_i (z_i - \overline z)$. So $\frac{d \overline z}{d\beta} = \sum_i p_i (z_i -
#    \overline z) z_i = \overline{z^2} - \overline z^2 = \text{Var}(z)$, the variance of the logits under $p$.
# 4. *Together.* By the product rule $\frac{dH}{d\beta} = \overline z - \overline z - \beta\,\text{Var}(z) =
#    -\beta\,\text{Var}(z)$, and $\frac{d\beta}{dT} = -\frac{1}{T^2}$. Multiply the two.
#
# </details>
#
# ### 3.2 Top-k and top-p
#
# Temperature never sets a token to 0. **Top-k** does (Fan et al. 2018): keep the $k$ likeliest, forget the others. A
# logit of $-\infty$ is a probability of 0, and the softmax makes the rest add up to 1:


# %%
def top_k(logits, k):  # (..., vocab)
    least = logits.topk(k).values[..., -1:]  # (..., 1): the last that may stay
    return logits.masked_fill(logits < least, -torch.inf)


example = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()  # (vocab,)
print([round(q, 2) for q in top_k(example, 2).softmax(dim=-1).tolist()])

# %% [markdown]
# **Top-p**, or **nucleus sampling** (Holtzman et al. 2020, §3.1), does not fix the *number* of tokens, but the
# probability that they have together. On paper, with $p = 0.7$: 0.5, 0.25, 0.15, 0.1. The first has 0.5, which is not
# enough; the first two have 0.75. The token that crosses $p$ **stays**. So ask, for each token, how much the likelier
# ones have *before* it: 0, 0.5, 0.75, 0.9. Where that is below $p$, the token is needed. For this we sort; `scatter`
# then puts each answer back where its token is in the vocabulary.


# %%
def top_p(logits, p):  # (..., vocab)
    probs, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    before = probs.cumsum(dim=-1) - probs  # (..., vocab): what likelier ones have
    needed = torch.zeros_like(before).scatter(-1, order, (before < p).float())
    return logits.masked_fill(needed == 0, -torch.inf)


for p in (0.4, 0.7, 0.8):
    kept = top_p(example, p).softmax(dim=-1).tolist()
    print(f"p = {p}:", [round(q, 2) for q in kept])

# %% [markdown]
# Even $p = 0.4$ keeps one token, the one with 0.5. **Break it**: a tempting rule keeps only what lies *within* $p$.

# %%
probs = torch.tensor([0.5, 0.25, 0.15, 0.1])  # (vocab,): likeliest first
for p in (0.4, 0.7):
    within = probs * (probs.cumsum(dim=-1) <= p)  # (vocab,)
    print(f"within p = {p}:", (within / within.sum()).tolist())

# %% [markdown]
# With 0.7 it keeps too little, one token that has only 0.5. With 0.4 it keeps nothing, and divides 0 by 0. So it fails
# wherever the model is surer of one token than $p$.
#
# When is top-k wrong? Try both rules on the two real distributions. How many tokens would you keep in each?

# %%
for kind, logits in (("flat", flat), ("peaked", peaked)):
    p = logits.softmax(dim=-1)  # (vocab,)
    rules = {"top-k 5": top_k(logits, 5), "top-p 0.8": top_p(logits, 0.8)}
    for rule, changed in rules.items():
        kept = p[changed.isfinite()]  # (kept,)
        print(f"{kind:6} {rule:9} keeps {len(kept):2}, together {kept.sum():.0%};",
              f"the rarest {kept.min():.1%}")

# %% [markdown]
# The curves add up the probabilities, likeliest first. A nucleus ends where its curve crosses $p$:

# %% jupyter={"source_hidden": true}
figures.nucleus(
    {f"{label} …": logits.softmax(dim=-1).sort(descending=True).values.tolist()
     for label, logits in (("Alice was", flat), ("The March", peaked))},
    0.8, title="The nucleus: where the curve crosses p",
    alt="Probability of the likeliest tokens together, against their number. After The March the first token alone is above "
    f"0.8. After Alice was the curve rises slowly and crosses 0.8 at {top_p(flat, 0.8).isfinite().sum()} tokens.",
)

# %% [markdown]
# On the flat one, five tokens are too few: *a*, *not* and dozens of other sensible words are cut off, and the text
# will be dull. On the peaked one, five are too many: after *The March* comes *H·are* and nothing else. The four
# others are rare, but with one such position in each sentence, sooner or later one of them is drawn. Any $k$ is too
# small for some positions and too large for others. A nucleus adapts.
#
# ### 3.3 Min-p, and the order of it all
#
# Top-p has a weakness as well: at a high temperature the tail is fat, and the nucleus must reach far into it.
# **Min-p** (Nguyen et al. 2024) compares with the best token instead: keep what has at least $p_\text{min}$ times *its*
# probability. On paper, with 0.5, 0.25, 0.15, 0.1 and $p_\text{min} = 0.4$, the limit is $0.4 \cdot 0.5 = 0.2$, and two
# tokens stay.


# %%
def min_p(logits, p):  # (..., vocab)
    probs = logits.softmax(dim=-1)  # (..., vocab)
    return logits.masked_fill(probs < p * probs.amax(dim=-1, keepdim=True), -torch.inf)


for kind, logits in (("flat", flat), ("peaked", peaked)):
    for T in (1.0, 1.5):
        warm = temperature(logits, T)  # (vocab,)
        nucleus, near = top_p(warm, 0.8).isfinite(), min_p(warm, 0.1).isfinite()
        print(f"{kind:6} at T = {T}: top-p 0.8 keeps {nucleus.sum():3},",
              f"min-p 0.1 keeps {near.sum():2}")

# %% [markdown]
# On the peaked one, at T = 1.5, the nucleus has grown from one token to two hundred; min-p still keeps just one.
#
# Several changes can be combined. Does their **order** matter?

# %%
orders = {"temperature, then top-p": top_p(temperature(flat, 1.5), 0.8),
          "top-p, then temperature": temperature(top_p(flat, 0.8), 1.5)}
for label, logits in orders.items():
    print(f"{label} keeps {logits.isfinite().sum()}, entropy {entropy(logits):.2f}")

# %% [markdown]
# It does. In `transformers` and in our library the temperature comes first, and the filters see the warmed
# distribution. llama.cpp, unless told otherwise, filters first. So the same temperature and the same $p$ mean different
# things in the two.
#
# Here are all four dials at once, in both orders, on the same two distributions. Can you set them so that about ten
# tokens stay after *Alice was*, and only one after *The March*? (If you see no dials, run the cell.)

# %%
explore.sampling({"Alice was": flat, "The March": peaked}, names)

# %% [markdown]
# <details><summary>The answer</summary>
#
# Min-p does it: 0.2 at temperature 0.8 leaves 9 tokens and 1. A small nucleus does it as well: top-p 0.3 at temperature
# 1 also leaves 9 and 1. Top-k alone can't: it leaves as many tokens here as there.
# </details>

# %% [markdown]
# ### 3.4 Three penalties, and a trap
#
# Another idea: lower only what has already been written. Keskar et al. (2019, §4.1) divide the logits of such tokens by
# a **repetition penalty** of about 1.2. There is a trap. Logits have a sign: divide −5 by 1.2, and it becomes −4.2,
# *likelier* than before. So a negative logit has to be multiplied.


# %%
def penalize(logits, ids, penalty):  # (vocab,); ids: the text so far
    seen = torch.zeros(V, dtype=torch.bool)  # (vocab,)
    seen[ids] = True
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)  # (vocab,)
    return torch.where(seen, lower, logits)


z, ids = next_logits(HUMAN), torch.tensor(encode(HUMAN))  # (vocab,), (length,)
right, wrong = penalize(z, ids, 1.5), z / 1.5  # wrong: just divided
for at in (z[ids].argmax(), z[ids].argmin()):  # of the tokens seen
    id = ids[at].item()
    print(f"{names[id]:5} logit {z[id]:5.1f}, penalized {right[id]:5.1f}", end="; ")
    print(f"just divided {wrong[id]:5.1f}")

# %% [markdown]
# The zero of logits means nothing: add 10 to all of them, and the softmax is the same, but this penalty is not.
# *Subtracting* has no such trap. That is what OpenAI's two penalties do, where $c_i$ says how often token $i$ has been
# written, and $[c_i > 0]$ is 1 if it has been and 0 if not:
#
# $$z_i \leftarrow z_i - \text{presence} \cdot [c_i > 0] - \text{frequency} \cdot c_i$$
#
# The **presence penalty** asks whether a token was there, the **frequency penalty** how often. With the penalties 1 and
# 0.2, the logit 3 of a token that was written twice becomes $3 - 1 - 0.4 = 1.6$. How much probability moves to other
# tokens (half the sum of all changes) if we first add 10 to all logits?


# %%
def penalize_counts(logits, ids, presence=0.0, frequency=0.0):  # (vocab,)
    counts = ids.bincount(minlength=V)  # (vocab,)
    return logits - presence * (counts > 0) - frequency * counts


ways = {"repetition": (penalize, {"penalty": 1.5}),
        "presence": (penalize_counts, {"presence": 1.0}),
        "frequency": (penalize_counts, {"frequency": 0.2})}
for way, (change, options) in ways.items():
    one, two = (change(z + add, ids, **options).softmax(dim=-1) for add in (0, 10))
    moved = (one - two).abs().sum() / 2
    print(f"{way:10} moves {moved:.0%} when 10 is added to all logits")

# %% [markdown]
# All three are blunt tools: a text *needs* its commas and its *the* again and again.
#
# Here are five samplers on one distribution, that of *Then she* after the human text. Three of them cut, each at
# a different place. The penalty leaves little of *was*, *had* and *thought*, which the text has used, so all others
# together rise:

# %% jupyter={"source_hidden": true}
text = HUMAN + "Then she"
then = next_logits(text)  # (vocab,)
after = {"temperature 0.7": temperature(then, 0.7), "top-k 3": top_k(then, 3), "top-p 0.4": top_p(then, 0.4),
         "min-p 0.5": min_p(then, 0.5), "penalty 1.5": penalize(then, torch.tensor(encode(text)), 1.5)}
figures.reshaped(then, after, names, title="Three cut, each elsewhere; the penalty lowers what was said", width=11)

# %% [markdown]
# ### 3.5 All together, and read all ten
#
# A complete sampler is a chain of such changes, and then the dice:


# %% tags=["nbval-ignore-output"]
def sampler(*changes, seed=0):
    """A way to choose: change the logits in this order, then draw."""
    generator = torch.Generator().manual_seed(seed)

    def choose(logits, ids):
        for change in changes:
            logits = change(logits)  # (vocab,)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).item()

    return choose


# %% [markdown]
# When GPT-2 came out, a text about English-speaking unicorns circulated widely. Above it, in small print, was
# *machine-written, 10 tries*: someone had picked one. So whenever you judge a model's texts, draw ten, and read all
# ten.

# %% tags=["nbval-ignore-output"]
for seed in range(10):
    ten = write("Alice was", sampler(lambda z: top_p(z, 0.9), seed=seed), new=30)
    print(f"--- {seed}\n{decode(ten)}\n")

# %% [markdown]
# Which one would you show? *The best of ten is an advertisement; all ten are a measurement.*

# %% [markdown]
# ## 4 Likelier is not better
#
# We have drawn. Now search instead: if greedy is bad because it never looks ahead, is a better **search** better?
# **Beam search** (lesson 09) keeps the best few beginnings, lengthens each by every token, and keeps the best few
# again. On paper, with a vocabulary of three tokens, and two beams that have 0.5 and 0.4 so far:
#
# | | token 0 | token 1 | token 2 |
# | --- | --- | --- | --- |
# | beam 0 | 0.5 · 0.6 = **0.30** | 0.5 · 0.3 = 0.15 | 0.5 · 0.1 = 0.05 |
# | beam 1 | 0.4 · 0.1 = 0.04 | 0.4 · 0.8 = **0.32** | 0.4 · 0.1 = 0.04 |
#
# Write the table as one row (`flatten`): 0.30, 0.15, 0.05, 0.04, 0.32, 0.04. Its two best are at the indices 4 and 0.
# With a vocabulary of $V = 3$, index 4 is beam $4 // 3 = 1$ and token $4 \bmod 3 = 1$. In the code `total` is this
# table, with logarithms:


# %%
@torch.no_grad()
def beam(prompt, beams, new=60):
    """The best texts as (sum of log p, tokens), the likeliest first."""
    going = [(0.0, encode(prompt))]
    for _ in range(new):
        batch = torch.tensor([ids for _, ids in going])  # (beam, length)
        log_p = model(batch).logits[:, -1].log_softmax(dim=-1)  # (beam, vocab)
        total = torch.tensor([score for score, _ in going])[:, None] + log_p
        best = total.flatten().topk(beams)  # (beams,): over all beams and tokens
        kept = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        going = [(score, [*going[index // V][1], index % V]) for score, index in kept]
    return going


# %% [markdown]
# Here are three steps with two beams, after *There was*. Greedy takes *no*, the likeliest token; the likelier *path*
# begins with another one. Each line has the token's probability, each box the product so far. The gray boxes at the
# top are the rest of greedy's path, which both beams have left:

# %% jupyter={"source_hidden": true}
@torch.no_grad()
def next_p(ids):
    return model(torch.tensor([ids])).logits[0, -1].softmax(dim=-1)  # (vocab,)


figures.beam_tree(next_p, encode("There was"), names, root="There\nwas")

# %% [markdown]
# Compare texts of 60 tokens by what the model itself thinks of them: their mean log-probability per token. With a minus
# sign, it is the exponent of $e$ in lesson 10's *perplexity*.

# %% jupyter={"source_hidden": true}
predict(
    "likeliest-text", "Which of these texts is the likeliest to the model that wrote it?",
    "what a human wrote, in a book that it was trained on", "what greedy search finds",
    "what a wide beam finds",
)

# %% [markdown]
# A function gives each token of a text the log-probability that the model gave it. Then the texts:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def log_p_of(ids, start):  # the first `start` ids are the prompt
    log_p = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)  # (length, vocab)
    written = torch.tensor(ids[start:])  # (new,)
    predicting = log_p[start - 1 : -1]  # (new, vocab): row i predicts i + 1
    return predicting.gather(-1, written[:, None])[:, 0]  # (new,)


start = len(encode("Alice was"))
texts = {"greedy": write("Alice was", greedy, new=60)}
texts |= {f"{beams} beams": beam("Alice was", beams)[0][1] for beams in (4, 16)}
texts |= {
    "top-p 0.9": write("Alice was", sampler(lambda z: top_p(z, 0.9), seed=3), new=60),
    "pure sampling": write("Alice was", sampler(seed=3), new=60),
    "human": encode(HUMAN)[: start + 60],
}

# %% [markdown]
# Two numbers for each text: its perplexity, and what fraction of its runs of four is distinct.

# %% tags=["nbval-ignore-output"]
perplexity = {}
for way, found in texts.items():
    perplexity[way] = math.exp(-log_p_of(found, start).mean().item())
    print(f"{way:14} perplexity {perplexity[way]:5.1f}", end="   ")
    print(f"distinct-4 {distinct([found[start:]]):4.0%}")
print(f"\n16 beams:\n{decode(texts['16 beams'])}\n")
expect("Perplexity of the human text", perplexity["human"], 25, 45)
predicted("likeliest-text", "what a wide beam finds")

# %% [markdown]
# Here, the better the search, the likelier the text, and the more it repeats. Do other beginnings agree?

# %% tags=["nbval-ignore-output"]
for prompt in ("Once upon a time", "The Queen"):
    for beams in (1, 4, 16):  # one beam is greedy search
        score, found = beam(prompt, beams)[0]
        print(f"{prompt:16} {beams:2} beams: perplexity {math.exp(-score / 60):.1f}",
              f"  distinct-4 {distinct([found[len(encode(prompt)):]]):.0%}")

# %% [markdown]
# The search finds likelier texts there as well, but not all of them repeat more. What a human wrote is about ten times
# less likely per token than what 16 beams found, although the model has learned from this very page. Where does the
# difference come from? Sort the tokens of each text by the probability that the model gave them (Holtzman et al. show
# them in order, in figure 2).

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.lines(
    {way: log_p_of(texts[way], start).exp().sort().values.tolist()
     for way in ("16 beams", "top-p 0.9", "human")},
    title="A person surprises, a beam does not", xlabel="the 60 tokens, least probable first",
    ylabel="probability the model gave it", yscale="log",
    alt="Probability of each of 60 tokens, sorted, logarithmic. The line of the beam is highest and never falls below about "
    "two percent. The human line begins below one in a thousand and is nearly everywhere the lowest.",
)

# %% [markdown]
# People do not write what is most predictable: why say what the reader already knows? And once greedy search repeats
# itself, it has no dice to get it out. (Large models also learn to copy, so that each repetition makes the next one
# likelier: Holtzman et al., figure 4.)
#
# In a translation the source decides nearly everything, and there a narrow beam works well (a wide one does not, lesson
# 09). Open text has many good
# continuations, and the single likeliest text is not typical of them. But do not turn the rule around: pure sampling is
# *as* unlikely as the human text, and makes no sense. Perplexity shows how surprising a text is, not whether the
# surprise makes sense.

# %% [markdown]
# ## 5 Quality against diversity, measured
#
# One text per sampler is an anecdote. We need many: 32 texts at once, from the same prompt. To save time, the model
# keeps what it has computed for earlier tokens in a *cache* (lesson 13).


# %%
@torch.no_grad()
def write_many(change, prompt="Alice was", count=32, new=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    cache, drawn = model.new_cache(context), []
    latest = torch.tensor([encode(prompt)] * count)  # (count, prompt)
    for _ in range(new):
        logits = model(latest, cache=cache).logits[:, -1]  # (count, vocab)
        p = change(logits).softmax(dim=-1)  # (count, vocab)
        latest = torch.multinomial(p, 1, generator=generator)
        drawn.append(latest)  # (count, 1)
    return torch.cat(drawn, dim=1)  # (count, new)


# %% [markdown]
# **Diversity** is distinct-3 over all 32 texts together. For **quality** we ask two judges.
#
# - *The model itself*, without any sampler: the perplexity of the texts. But this judge loves repetition (section 4).
# - *A judge from outside*: what fraction of the written words exists? A word exists if it occurs in the English texts
#   that are bundled with the course, none of them by Carroll: Shakespeare, Bible verses, reviews and computer games.


# %%
def words(text):
    return re.findall(r"[a-z]+", text.lower())


english = [shakespeare().train, *(review.text for review in reviews("sentiment").train)]
english += [text for pair in verses().train for text in pair]
english += [pair[1] for pair in translation("games").train]
known = {word for text in english for word in words(text)}


def real_words(texts):  # (count, new)
    written = [word for ids in texts.tolist() for word in words(decode(ids))[1:-1]]
    return sum(word in known for word in written) / len(written)


exist = statistics.mean(word in known for word in words(HUMAN))
print(f"{len(known):,} words; of the human text's, {exist:.0%}")

# %% [markdown]
# (A text's first and last word may be cut in two, so they don't count.) The perplexity comes next, and three dials with
# six settings each. At its last setting each does nothing: pure sampling.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def perplexity_of(texts, prompt="Alice was"):  # (count, new)
    before = torch.tensor([encode(prompt)] * len(texts))  # (count, prompt)
    logits = model(torch.cat([before, texts], dim=1)).logits  # (count, length, vocab)
    predicting = logits[:, before.shape[1] - 1 : -1]  # (count, new, vocab)
    return F.cross_entropy(predicting.flatten(0, 1), texts.flatten()).exp().item()


dials = {
    "temperature": (temperature, (0.3, 0.5, 0.6, 0.7, 0.85, 1.0)),
    "top-p": (top_p, (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)),
    "top-k": (top_k, (2, 4, 8, 20, 50, V)),
}

# %% [markdown]
# That makes 576 texts. Which dial will be best?

# %% tags=["nbval-ignore-output"]
measured = {}
print("                  perplexity   distinct-3   real words")
for dial, (turn, values) in dials.items():
    for value in values:
        drawn = write_many(lambda z: turn(z, value))
        surprise, diversity = perplexity_of(drawn), distinct(drawn.tolist(), 3)
        real = real_words(drawn)
        measured[dial, value] = surprise, diversity, real
        print(f"{dial:12} {value:5g} {surprise:9.0f} {diversity:12.0%} {real:12.0%}")
expect("Real words at T = 1", measured["temperature", 1.0][2], 0.83, 0.93)

# %% [markdown]
# Draw diversity against perplexity, one curve for each dial. Further right is more surprising, further up more diverse:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
curves = {dial: tuple(zip(*(measured[dial, value][:2] for value in values), strict=True))
          for dial, (_, values) in dials.items()}
plots.lines(
    curves, marker="o", width=7.6, height=4.2, mark=("human", perplexity["human"]),
    title="Three dials, one road", xlabel="perplexity (left: predictable)",
    ylabel="distinct-3 over 32 texts (up: diverse)",
    alt="Three curves of distinct-3 against perplexity, for temperature, top-p and top-k. All rise from the lower left, "
    "predictable and alike, to the upper right, and nearly coincide. They end in one point, pure sampling. A vertical line "
    "marks the perplexity of the human text, at the right.",
)

# %% [markdown]
# The three curves nearly coincide: with the first judge, the setting counts far more than the dial. (To tell whether a
# sampler such as min-p leaves this road takes more texts, from several seeds: the exercise does that.) The second judge
# sees what you see when you read: the more diverse, the more words that don't exist, from one in fifty at $T = 0.3$ to
# one in ten when nothing is cut. The human text, though it is only one, surprises the model at least as much as pure
# sampling does (35 against 29), and nearly all of its words exist.
#
# The road bends. From pure sampling you can go back to a temperature of 0.7, or a nucleus of 0.8, and lose little
# diversity, while the perplexity falls by half or more. Below that, the texts become more and more alike. Measure both
# whenever you compare samplers. Either one alone is easily won, by copying one good sentence or by rolling dice.

# %% [markdown]
# ## 6 When to stop, and what to show
#
# How does a text end? A model can end it itself if texts in training ended with a special token. This model's
# vocabulary has one. How likely is it, at best, over the 3,840 positions in 64 texts?

# %% tags=["nbval-ignore-output"]
drawn = write_many(lambda z: z, count=64)  # (64, new): pure sampling
with torch.no_grad():
    end = model(drawn).logits.softmax(dim=-1)[..., model.config.eos_id].max()
print(f"{names[model.config.eos_id]}: at most {end:.0e}, in {drawn.numel():,} positions")

# %% [markdown]
# This model would practically never end a text by itself. So we must stop it, after a number of tokens or at a
# **stop string**, such as the end of a line. It may begin inside one token and end inside the next, so look for it in
# the *text*, after each token. Here we open a quotation mark, and want one speech, up to the mark that closes it. (To
# keep `write` as it is, we write all 60 tokens first, and then look after each.)


# %% tags=["nbval-ignore-output"]
def until(prompt, stop, seed, new=60):
    choose, written = sampler(lambda z: top_p(z, 0.8), seed=seed), ""
    for id in write(prompt, choose, new=new)[len(encode(prompt)) :]:
        written += decode([id])
        if stop in written:
            return written[: written.index(stop)]
    return written


for seed in range(3):
    print(until("“Who are you?” said the Queen.\n\n“", "”", seed), end="\n---\n")

# %% [markdown]
# **Half characters.** Most models' tokens are made of *bytes*, and an emoji may be two tokens, neither of which is a
# character (lesson 01). Print such a text token by token, and `�` appears in between. So decode *all* tokens so far
# each time, and hold back what ends in `�` until the rest has come.

# %% [markdown]
# ## 7 Open the library
#
# `txlib.generation` has all of this. `Sampling` puts the changes in order: penalties first, then the temperature, then
# the filters.

# %%
from txlib import generation

show_source(generation.Sampling.__call__, last=17)

# %% [markdown]
# Do its filters agree with ours, on fifty random rows of logits?

# %%
torch.manual_seed(0)
rows = 3 * torch.randn(50, V)  # (batch, vocab)
for ours, theirs, value in (
    (top_k, generation.keep_top_k, 20),
    (top_p, generation.keep_top_p, 0.8),
    (min_p, generation.keep_min_p, 0.1),
):
    one, two = ours(rows, value).exp(), theirs(rows, value).exp()  # (batch, vocab)
    prove_equal(one, two, what=f"Both {ours.__name__}")

# %% [markdown]
# Does it write what ours writes, drawn and with a beam? `TextGenerator` joins a model with its tokenizer: text in, text
# out, also piece by piece, holding back what may yet become a stop string or the rest of a character.

# %% tags=["nbval-ignore-output"]
begin = encode("Alice was")
options = dict(do_sample=True, temperature=0.9, top_p=0.9, max_new_tokens=60, seed=0)
ours = write_many(lambda z: top_p(temperature(z, 0.9), 0.9), count=4)  # (count, new)
theirs = generation.generate(model, [begin] * 4, **options)
print("drawn, as ours: ", theirs == ours.tolist())
theirs = generation.generate(model, [begin], max_new_tokens=20, num_beams=4)
print("a beam, as ours:", begin + theirs[0] == beam("Alice was", 4, new=20)[0][1])
writer = generation.TextGenerator(model, tokenizer)
prompt = "“Who are you?” said the Queen.\n\n“"
speech = writer.stream(prompt, stop_strings=["”"], do_sample=True, top_p=0.8, seed=0)
print(" · ".join(speech))

# %% [markdown]
# From the command line, token by token as they come:
#
# ```
# txlib generate --model glassllm-en "Alice was"
# txlib generate --model glassllm-en "Alice was" --temperature 0.8 --top-p 0.9 --seed 1
# txlib generate --model gpt2 "Alice was" --greedy        # any decoder in the format of transformers
# ```

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. You halve the temperature, from 1 to 0.5. Token A was twice as likely as token B. And now?**
#
# <details><summary>A. Twice as likely, as before</summary>
#
# Adding a constant to all logits leaves ratios alone. Dividing them does not.
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
# **2. One library applies top-p before the temperature, another after it. At T = 1.5 and $p = 0.9$, which one draws
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
# **3. To all logits you add 5. What changes?**
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
# **4. Of two samplers, A has a perplexity of 9 and B of 14, both under the model that wrote. Which one writes better?**
#
# <details><summary>A. A: its texts are likelier</summary>
#
# Likelier is not better: a beam of 16 has a perplexity near 3, and goes in circles.
# </details>
# <details><summary>B. B: its texts are more surprising</summary>
#
# So is pure sampling, with words that don't exist.
# </details>
# <details><summary>C. These two numbers can't tell</summary>
#
# Right. Compare at equal perplexity or equal diversity, ask a judge other than the model, and read ten of each.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Predict, choose, append. Greedy and beam search find texts that are likelier than a person's, and tend to go in
#   circles.
# - Temperature changes ratios of probabilities; top-k keeps a number of tokens, top-p the fewest that have $p$
#   together, min-p the tokens that come near the best. Their order matters.
# - Dividing by a repetition penalty depends on the logits' sign; presence and frequency penalties subtract.
# - With any dial, more diversity brings more words that don't exist; the model itself is a doubtful judge. Choose the
#   point on that road for your purpose, and measure both quality and diversity. Read all ten.
#
# **Read** Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
# [arXiv:1904.09751](https://arxiv.org/abs/1904.09751), sections 3 and 4. Li et al. 2016 (distinct-n),
# [arXiv:1510.03055](https://arxiv.org/abs/1510.03055); Zhu et al. 2018 have another measure of likeness, self-BLEU,
# [arXiv:1802.01886](https://arxiv.org/abs/1802.01886). Fan et al. 2018, *Hierarchical Neural Story Generation*,
# [arXiv:1805.04833](https://arxiv.org/abs/1805.04833), section 5.4. Nguyen et al. 2024, *Min-p Sampling*,
# [arXiv:2407.01082](https://arxiv.org/abs/2407.01082), section 3. Keskar et al. 2019, *CTRL*,
# [arXiv:1909.05858](https://arxiv.org/abs/1909.05858), section 4.1.
#
# **Do** the exercise [11_sampling](../exercises/exercise_11_sampling.ipynb). Then go on to
# [12 Prompting](12_prompting.ipynb).
