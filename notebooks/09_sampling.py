# %% [markdown]
# # 09 · Sampling: from probabilities to text
#
# **After this lesson you will be able to**
#
# - write with a language model, and say what greedy search, temperature, top-k, top-p, min-p and a repetition penalty
#   do to one real distribution;
# - show by measurement why the likeliest text is not the best one, and trade quality against diversity on purpose;
# - build a cache of keys and values, prove that it changes nothing, and count what it saves and what it takes;
# - write for several prompts at once without spoiling any of them;
# - use a language model as a classifier, and find out honestly whether it is one.
#
# **You need** lessons 03 to 08. **It takes** about 100 minutes to read and try; section 5 is a good
# place for a break. All cells together run in less than a minute on a laptop. Nothing is trained here: the course comes
# with a small real model.

# %% [markdown]
# ## 1 The problem: the model gives probabilities, you want text
#
# The model of this lesson is real, but tiny: a decoder of today's kind with less than a million parameters, trained by
# Oséias Dias de Farias on Lewis Carroll's books. (Lesson 13 takes its parts to pieces. Today it is a box as in lesson
# 08: tokens in, logits for the next token out.) A model this small is fastest on the CPU, so we leave it there.

# %%
import math
import re
import statistics
import time
from collections import Counter

import torch
import torch.nn.functional as F

from txlib import plots
from txlib.attention import attention, causal
from txlib.course.lesson import expect, progress, prove_equal, shipped, show_source
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import load_pretrained
from txlib.text import BytePairEncoder, load_tokenizer

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
tokenizer = load_tokenizer(shipped("glassllm-en"))
encode, decode = tokenizer.encode, tokenizer.decode
V, context = model.config.vocab_size, model.config.max_length
parameters = sum(weight.numel() for weight in model.parameters())
print(f"{parameters:,} parameters, {len(model.decoder.layers)} blocks, {V:,} different tokens, {context} at a time")

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
# That is all a language model ever says: one number for each token. Text is made by a loop around it. *Predict, choose,
# append*, and again. The obvious choice is the likeliest token. That is **greedy search**:


# %%
@torch.no_grad()
def write(prompt, choose, new=80):
    ids = encode(prompt)
    for _ in range(new):
        logits = model(torch.tensor([ids[-context:]])).logits[0, -1]             # (vocab,): predict
        ids.append(choose(logits, ids))                            # choose, append
    return ids


def greedy(logits, ids):
    return logits.argmax().item()


print(decode(write("Once upon a time", greedy)))

# %% [markdown]
# It goes round in circles. We need a number for that. Of all groups of $n$ tokens that follow one another in some
# texts, how many are different?
#
# $$\text{distinct-}n = \frac{\text{different groups of } n}{\text{all groups of } n}$$
#
# (Li et al. 2016.) A text that never repeats itself has 1. For comparison, the beginning of *Alice's Adventures in
# Wonderland* itself, which a human wrote.


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
    print(f"greedy, {prompt + ' …':26} distinct-4: {distinct([write(prompt, greedy, new=120)]):.0%}")
print(f"human {'':28} distinct-4: {distinct([encode(HUMAN)]):.0%}")

# %% [markdown]
# Some beginnings are caught at once, others later. You might blame the model's size. But the same happens to models a
# thousand times larger (Holtzman et al. 2020). It is the *choice* that is wrong. This lesson is about better ones,
# and about doing all this fast.

# %% [markdown]
# ## 2 The idea in one picture
#
# At each step there are many ways to go on. Greedy always takes the top row. Here is another way: *draw* the token,
# each with its own probability. The frame shows which was drawn. One token that is not the likeliest, and the text is
# another one.


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
plots.choices(
    steps, title="Drawn, not always the likeliest: " + drawn.replace("\n", "⏎"),
    alt="Ten columns, one a step. Each lists the four likeliest next tokens with their probabilities, and the "
    "drawn one in a frame, which is sometimes not among the four. Together: " + drawn,
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
    best = model(ids).logits[0, :-1].softmax(dim=-1).topk(20)      # (n - 1, 20) each: probabilities, tokens
tail = 1 - best.values.sum(dim=-1).mean()
human = 1 - (best.indices == ids[0, 1:, None]).any(dim=-1).float().mean()
print(f"outside the 20 likeliest tokens lies on average {tail:.0%}: of 50 drawn tokens, about {50 * tail:.0f}")
print(f"of the tokens that the human wrote, {human:.0%} are from there")

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
    return tokens, *([*each[order].tolist(), 1 - each[order].sum().item()] for each in (p, q))


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


# %%
def temperature(logits, T):                                        # (..., vocab)
    return logits / T


for T in (0.01, 1.0, 100.0, 1e6):
    p = temperature(z, T).softmax(dim=-1)                          # (vocab,)
    print(f"T = {T:<9g} largest {p.max():.5f}   smallest {p.min():.1e}   (1/V = {1 / V:.5f})")

# %%
plots.candidates(
    {f"T = {T:g}": panel(z, temperature(z, T)) for T in (0.5, 0.8, 1.5)},
    title="A low temperature sharpens, a high one feeds the tail",
    alt="Three panels with the same twelve rows. At T = 0.5 the first tokens gain, and all others together fall "
    "from 0.64 to 0.2; at 0.8 a little of that; at T = 1.5 the row of others rises to 0.82.",
)

# %% [markdown]
# How sharp is it? The *entropy* $H = -\sum_i p_i \ln p_i$ measures how open the choice is: 0 when it is fixed,
# $\ln V$ when all are equal. Between the two it only ever rises with $T$. Here is why. Write $\beta = 1/T$ and
# $\ln Z = \ln \sum_j e^{\beta z_j}$. Then $\ln p_i = \beta z_i - \ln Z$, so $H = \ln Z - \beta\,\overline{z}$, where
# $\overline z$ is the mean of $z$ under $p$. With $\frac{d}{d\beta} \ln Z = \overline z$,
# $\frac{d}{d\beta} \overline z = \text{Var}(z)$ and $\frac{d\beta}{dT} = -\frac{1}{T^2}$,
#
# $$\frac{dH}{d\beta} = \overline z - \overline z - \beta\,\text{Var}(z)
# \qquad\Longrightarrow\qquad \frac{dH}{dT} = \frac{\text{Var}(z)}{T^3} \ge 0.$$
#
# Autograd knows no such formula. Does it agree?


# %%
def entropy(logits):                                               # (..., vocab)
    p = logits.softmax(dim=-1)                                     # (..., vocab)
    return -torch.special.xlogy(p, p).sum(dim=-1)                  # (...,); xlogy: 0 · ln 0 is 0


for T in (0.5, 1.0, 2.0):
    t = torch.tensor(T, requires_grad=True)
    entropy(temperature(z, t)).backward()
    p = temperature(z, T).softmax(dim=-1)                          # (vocab,)
    variance = (p * (z - (p * z).sum()).square()).sum()
    print(f"T = {T}: autograd {t.grad:.3f}, Var(z) / T³ = {variance / T**3:.3f}")

# %% [markdown]
# It does. Here is the entropy over a wide range of temperatures, for two beginnings:

# %%
grid = torch.logspace(-1, 1, 41)                                   # (41,)
curves = {
    f"“{prompt} …”": (grid.tolist(), [entropy(temperature(next_logits(prompt), T)).item() for T in grid])
    for prompt in ("Alice was", "The March")
}
plots.lines(
    curves | {"ln V": ([0.1, 10], [math.log(V)] * 2)}, xscale="log", dashed=["ln V"],
    title="Entropy rises with temperature, up to ln V", xlabel="temperature T", ylabel="entropy (nats)",
    alt="Entropy against temperature from 0.1 to 10 for two prompts. Both rise from near 0 to near ln V = 6.9. The "
    "prompt The March stays near 0 much longer.",
)

# %% [markdown]
# After *The March* there is little choice: the model has read about the March Hare. Remember the two prompts, one
# **flat**, one **peaked**.
#
# ### 3.2 Top-k
#
# Temperature never sets a token to 0. Top-k does (Fan et al. 2018): keep the $k$ likeliest, forget the others. A logit
# of $-\infty$ is a probability of 0, and the softmax shares out the rest.


# %%
def top_k(logits, k):                                              # (..., vocab)
    least = logits.topk(k).values[..., -1:]                        # (..., 1): the last that may stay
    return logits.masked_fill(logits < least, -torch.inf)


# %% [markdown]
# ### 3.3 Top-p, or nucleus sampling
#
# Holtzman et al. (2020, §3.1) do not fix the *number* of tokens but their *share*: sort them, and keep the fewest
# that have at least $p$ together, the nucleus. Mind the edge: the token that crosses $p$ **stays**. So ask, for each
# token, how much the likelier ones have *before* it. If that is still below $p$, the token is needed.


# %%
def top_p(logits, p):                                              # (..., vocab)
    share, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)          # (..., vocab): likeliest first
    before = share.cumsum(dim=-1) - share                          # (..., vocab): what likelier ones have
    out = torch.zeros_like(before).scatter(-1, order, (before >= p).float())     # back in the vocabulary's order
    return logits.masked_fill(out.bool(), -torch.inf)


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
plots.candidates(
    {
        "flat, top-k 5": panel(flat, top_k(flat, 5)),
        "flat, top-p 0.8": panel(flat, top_p(flat, 0.8)),
        "peaked, top-k 5": panel(peaked, top_k(peaked, 5)),
        "peaked, top-p 0.8": panel(peaked, top_p(peaked, 0.8)),
    },
    title="One k cannot fit both; p can", width=10.5,
    alt="Four panels. On the flat distribution, top-k with k = 5 cuts off most of the good candidates, top-p keeps "
    "many. On the peaked one, top-k keeps four tokens of next to no probability, top-p keeps only the first.",
)

# %%
for kind, logits in (("flat", flat), ("peaked", peaked)):
    p = logits.softmax(dim=-1)                                     # (vocab,)
    for label, kept in (("top-k 5  ", top_k(logits, 5).isfinite()), ("top-p 0.8", top_p(logits, 0.8).isfinite())):
        print(f"{kind:6} {label} keeps {kept.sum():2}, together {p[kept].sum():.0%}; the rarest {p[kept].min():.1%}")

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
        counts = top_p(warm, 0.8).isfinite().sum(), min_p(warm, 0.1).isfinite().sum()
        print(f"{kind:6} at T = {T}: top-p 0.8 keeps {counts[0]:3}, min-p 0.1 keeps {counts[1]:2}")

# %% [markdown]
# On the peaked one, at T = 1.5, the nucleus has grown from one token to two hundred; min-p still keeps the one. Order
# matters, too: the temperature comes first here, as in most libraries, so the filters see the warmed distribution.
#
# ### 3.6 Repetition penalty, and its trap
#
# Another idea: lower only what already stood in the text. Keskar et al. (2019,
# §4.1) divide the logits of such tokens by a penalty of about 1.2. There is a trap. Logits have a sign:

# %%
for prompt in ("Alice was", "The March"):
    z = next_logits(prompt)                                        # (vocab,)
    print(f"“{prompt} …”: logits from {z.min():.1f} to {z.max():.1f}; {(z < 0).float().mean():.0%} are negative")

# %% [markdown]
# Divide −5 by 1.2, and it becomes −4.2: *likelier* than before. So a negative logit has to be multiplied.


# %%
def penalise(logits, ids, penalty):                                # (vocab,); ids: the text so far
    seen = torch.zeros(V, dtype=torch.bool)                        # (vocab,)
    seen[ids] = True
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)          # (vocab,)
    return torch.where(seen, lower, logits)


z, ids = next_logits(HUMAN), torch.tensor(encode(HUMAN)).unique()  # (vocab,), (seen,)
right, wrong = penalise(z, ids, 1.5), z.scatter(0, ids, z[ids] / 1.5)            # (vocab,) each; wrong: just divided
order = ids[z[ids].argsort(descending=True)]                       # (seen,): the likeliest first
for id in order[[0, 1, -2, -1]].tolist():
    print(f"{name(id):5} logit {z[id]:5.1f}   with the penalty {right[id]:5.1f}   just divided {wrong[id]:5.1f}")

# %% [markdown]
# It is a blunt tool even when it is right: the text *needs* its commas and its *the* again and again, and the penalty
# does not care how long ago they stood there. But it does get greedy search out of its circles.
#
# Here are all five on one distribution, that of *Alice was* behind the human text. The penalty spares the words
# that have not been there yet.

# %%
text = HUMAN + "Alice was"
z, ids = next_logits(text), torch.tensor(encode(text))             # (vocab,), (length,)
plots.candidates(
    {
        "temperature 0.7": panel(z, temperature(z, 0.7)), "top-k 5": panel(z, top_k(z, 5)),
        "top-p 0.6": panel(z, top_p(z, 0.6)), "min-p 0.3": panel(z, min_p(z, 0.3)),
        "penalty 1.5": panel(z, penalise(z, ids, 1.5)),
    },
    title="Five ways to change one distribution", width=11,
    alt="Five panels with the same twelve rows. Temperature 0.7 raises the first tokens a little. Top-k, top-p and min-p "
    "cut the list off at different places. The penalty lowers tokens that stood in the text and raises the others.",
)

# %% [markdown]
# And each of them at work, those that draw with the same seed. One text each proves nothing; in section 6 we write
# hundreds.


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
# Five settings, one beginning. Which of these texts would you believe to be written by a person?

# %% tags=["nbval-ignore-output"]
ways = {
    "greedy, penalty 1.3": lambda logits, ids: penalise(logits, ids, 1.3).argmax().item(),
    "T = 0.7": sampler(lambda z: temperature(z, 0.7)),
    "top-k 20": sampler(lambda z: top_k(z, 20)),
    "top-p 0.8": sampler(lambda z: top_p(z, 0.8)),
    "T = 1.5, min-p 0.2": sampler(lambda z: temperature(z, 1.5), lambda z: min_p(z, 0.2)),
}
for label, choose in ways.items():
    print(f"{label:20} {decode(write('Alice was', choose, new=40))!r}")

# %% [markdown]
# ## 4 Likelier is not better
#
# If greedy is bad because it never looks back, does a better *search* help? Beam search (lesson 07) was worth a point
# of BLEU in translation. Here it is for a decoder: keep the best few beginnings, lengthen each by every token, keep
# the best few again.


# %%
@torch.no_grad()
def beam(prompt, beams, new=60):
    going = [(0.0, encode(prompt))]                                # (sum of log p, tokens)
    for _ in range(new):
        batch = torch.tensor([ids for _, ids in going])            # (beam, length)
        log_p = model(batch).logits[:, -1].log_softmax(dim=-1)     # (beam, vocab)
        total = torch.tensor([score for score, _ in going])[:, None] + log_p     # (beam, vocab)
        best = total.flatten().topk(beams)                         # (beams,): over all beams and tokens
        going = [
            (score, [*going[index // V][1], index % V])
            for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
    return going[0][1]


# %% [markdown]
# Now compare texts of 60 tokens by what the model itself thinks of them: the mean log-probability a token. The
# *perplexity* of lesson 08 is $e$ to the minus that: the model was as unsure as among so many equal choices.


# %%
@torch.no_grad()
def log_p_of(ids, start):                                          # ids: tokens; the first `start` are the prompt
    log_p = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)             # (length, vocab)
    written = torch.tensor(ids[start:])                            # (new,)
    return log_p[start - 1 : -1].gather(-1, written[:, None])[:, 0]              # (new,): row i predicts token i + 1


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
# Two numbers for each text: how likely its tokens are to the model, and how many of its runs of four are different.

# %% tags=["nbval-ignore-output"]
measured = {}
for way, ids in texts.items():
    mean = log_p_of(ids, start).mean().item()
    measured[way] = math.exp(-mean), distinct([ids[start:]])
    perplexity, different = measured[way]
    print(f"{way:14} log p a token {mean:5.2f}   perplexity {perplexity:5.1f}   distinct-4 {different:4.0%}")
print(f"\n16 beams: {decode(texts['16 beams'])!r}")

# %% tags=["nbval-ignore-output"]
expect("Perplexity of greedy", measured["greedy"][0], 4, 8)
expect("Perplexity of 16 beams", measured["16 beams"][0], 2, 4)
expect("Perplexity of the human text", measured["human"][0], 25, 45)

# %% [markdown]
# The better the search, the likelier the text, and the more it repeats. What a human wrote is about ten times less
# likely a token, although the model was trained on this very author. Where does the difference come from? Sort the
# tokens of each text by the probability that the model gave them (Holtzman et al. show them in order, in figure 2).

# %% tags=["nbval-ignore-output"]
plots.lines(
    {way: log_p_of(texts[way], start).exp().sort().values.tolist() for way in ("16 beams", "top-p 0.9", "human")},
    title="A person surprises, a beam does not", xlabel="the 60 tokens, least probable first",
    ylabel="probability the model gave it", yscale="log",
    alt="Probability of each of 60 tokens, sorted, logarithmic. The line of the beam lies highest and never falls below "
    "about one percent. The human line begins below one in a thousand and stays below the others nearly everywhere.",
)

# %% tags=["nbval-ignore-output"]
for way in texts:
    print(f"{way:14} {(log_p_of(texts[way], start).exp() < 0.02).float().mean():.0%} of the tokens had less than 2 %")

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
    print(f"copy {times}: {p:.2f} a token (geometric mean)")

# %% [markdown]
# No. The fifth copy surprises it as much as the first: this model has not learned to copy. Its circles are the plain
# kind.
#
# In a translation the source decides nearly everything, and there a search is right. In open text there are many good
# continuations, and the single likeliest one is like none of them. But do not turn the rule round. Pure sampling is
# *as* unlikely as the human text, and yet it is not like it. The perplexity shows how surprising a text is, not
# whether the surprise makes sense.

# %% [markdown]
# ## 5 The cache of keys and values
#
# To measure samplers well we need many texts, and our loop is wasteful: to write token 60 it computes all 59 before it
# once more. Is that needed?
#
# ### 5.1 Why the past never changes
#
# Under a causal mask, position $i$ sees positions $0 \dots i$ only. In the first block its key and value are made of
# its own embedding. Its output is a mixture of values up to $i$. So its vector in the stream depends on tokens
# $0 \dots i$ only; that vector is all that the second block makes its key and value from; and so on upwards, block by
# block. Whatever is appended later, **the keys and values of the past stay as they are**. Without the mask this is
# false: each position would see the new token, and everything would change.
#
# To see it, we run the model through its parts by hand (the blocks of lesson 06, the rotation of lesson 05), and note
# the keys. Two heads of queries share one head of keys and values here, `repeat_interleave` hands them out; lesson 13
# explains why.


# %%
def attend(layer, x, allowed, keys):                               # x (batch, n, d_model)
    q, k, v = (layer.split(project(x)) for project in (layer.query, layer.key, layer.value))    # (batch, heads, n, d_k)
    q, k = layer.rotary(q), layer.rotary(k)                        # turned by their positions
    keys.append(k)
    k, v = (each.repeat_interleave(layer.heads // layer.kv_heads, dim=1) for each in (k, v))
    return layer.output(attention(q, k, v, allowed).transpose(1, 2).flatten(2))                 # (batch, n, d_model)


@torch.no_grad()
def keys_of(ids, allowed):
    x, keys = model.embedding(torch.tensor([ids])), []             # (1, n, d_model)
    for block in model.decoder.layers:
        x = x + attend(block.self_attention, block.self_attention_norm(x), allowed, keys)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return torch.stack(keys)[:, 0]                                 # (layer, kv_heads, n, d_k)


# %% [markdown]
# Two texts that differ in their last three tokens only. How far do the keys move, as a share of their length?

# %%
ids = encode("Alice was not a bit hurt, and she")
other = [*ids[:-3], *encode(" very glad to")][: len(ids)]          # the last three tokens differ
n = len(ids)
moved = []
for allowed in (causal().dense(n), torch.ones(1, 1, n, n).bool()):
    one, two = keys_of(ids, allowed), keys_of(other, allowed)      # (layer, kv_heads, n, d_k)
    moved.append((one - two).norm(dim=(1, 3)) / one.norm(dim=(1, 3)))            # (layer, n)
plots.heatmap(
    torch.cat(moved), rows=[f"{kind}, block {i}" for kind in ("causal", "no mask") for i in range(4)],
    columns=[name(id) for id in ids], title="Change the last three tokens: which keys move?", xlabel="token", ylabel="",
    alt="A table of relative changes, rows: four blocks with the causal mask and four without, columns: tokens. With "
    "the causal mask only the last three columns are not 0. Without it the keys of all tokens move from block 1 on.",
)

# %%
print("causal: all earlier keys change by less than a millionth:", bool((moved[0][:, :-3] < 1e-6).all()))
print(f"no mask: above block 0, earlier keys change by {moved[1][1:, :-3].min():.0%} to {moved[1][1:, :-3].max():.0%}")

# %% [markdown]
# ### 5.2 Build it
#
# And what does the new token need of the past? Its own query, compared with all keys, mixes all values. Nothing else.
# Old *queries* have done their work. One head, to see it:

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 6, 32)                              # (batch, heads, n, d_k) each
whole = attention(q, k, v, causal().dense(6))                      # (batch, heads, n, d_k)
newest = attention(q[:, :, -1:], k, v)                             # (batch, heads, 1, d_k): no mask, it may see all
prove_equal(newest[0, 0, 0], whole[0, 0, -1], what="The new query alone and the last row of all")

# %% [markdown]
# So keep $K$ and $V$ of each layer, compute all else for the new tokens only, and append theirs. Two details: the new
# token is turned by *its* position, which is the number of tokens in the cache, not by 0; and where several new
# tokens come at once, as the prompt does, the causal mask must be moved: row $i$ is position past + $i$.


# %%
def attend_cached(layer, x, cache, number, forget=False):          # x (batch, new, d_model); cache: layer → (k, v)
    past = cache[number][0].shape[2] if number in cache else 0
    q, k, v = (layer.split(project(x)) for project in (layer.query, layer.key, layer.value))    # (batch, heads, new, …)
    q, k = (layer.rotary(each, offset=0 if forget else past) for each in (q, k))
    if past:
        k, v = (torch.cat(pair, dim=2) for pair in zip(cache[number], (k, v), strict=True))     # (…, past + new, d_k)
    cache[number] = k, v
    k, v = (each.repeat_interleave(layer.heads // layer.kv_heads, dim=1) for each in (k, v))
    allowed = causal().shift(past).dense(x.shape[1], past + x.shape[1])          # (1, 1, new, past + new)
    return layer.output(attention(q, k, v, allowed).transpose(1, 2).flatten(2))  # (batch, new, d_model)


# %% [markdown]
# The whole model, around it:


# %%
@torch.no_grad()
def forward(ids, cache, forget=False):                             # ids (batch, new)
    x = model.embedding(ids)                                       # (batch, new, d_model)
    for number, block in enumerate(model.decoder.layers):
        x = x + attend_cached(block.self_attention, block.self_attention_norm(x), cache, number, forget)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.logits(model.decoder.norm(x))                     # (batch, new, vocab)


# %% [markdown]
# Does it change anything? The prompt in one piece, then token by token; against all at once, without a cache.

# %%
ids = torch.tensor([encode(HUMAN)[:60]])                           # (1, n)
cache, parts = {}, []
for piece in ids.split([20, 7, *[1] * 33], dim=1):
    parts.append(forward(piece, cache))                            # (1, new, vocab)
with torch.no_grad():
    prove_equal(torch.cat(parts, dim=1), model(ids).logits, tolerance=1e-4, what="Logits with and without the cache")

# %% [markdown]
# **Break it.** The classic error is to `forget` the offset. No shape is wrong, and each new query and key is turned
# as if it stood at position 0. Read what it writes:


# %%
def write_cached(prompt, new=25, forget=False):
    cache, ids = {}, encode(prompt)
    news = torch.tensor([ids])                                     # (1, new): first the prompt, then one token
    for _ in range(new):
        news = forward(news, cache, forget)[:, -1:].argmax(dim=-1)               # (1, 1)
        ids = [*ids, news.item()]
    return ids


print("right:         ", repr(decode(write_cached("The White Rabbit"))))
print("without offset:", repr(decode(write_cached("The White Rabbit", forget=True))))

# %% [markdown]
# ### 5.3 What it saves
#
# Count multiplications and additions. Let $P$ be the number of parameters in matrices: each costs 2 operations a
# token (lesson 06). Scores and mixing cost $4d$ for each pair of query and key, in each of $L$ layers. To write $n$
# tokens from a prompt of one:
#
# $$\text{without: } \sum_{i=1}^{n}\left(2Pi + 4dLi^2\right) \approx Pn^2 + \tfrac43 dLn^3
# \qquad\qquad \text{with: } \sum_{i=1}^{n}\left(2P + 4dLi\right) \approx 2Pn + 2dLn^2$$

# %%
from torch.utils.flop_counter import FlopCounterMode

P = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
d, L = model.config.block.d_model, model.config.layers


def counted(new, cached):
    cache, ids = {}, torch.ones(1, 1, dtype=torch.long)            # (1, 1)
    with FlopCounterMode(display=False) as counter:
        for i in range(1, new + 1):
            forward(ids, cache) if cached else forward(ids.expand(1, i), {})
    return counter.get_total_flops()


# %% [markdown]
# Counted and by the formulas:

# %%
for new in (8, 16, 32):
    without, cached = counted(new, False), counted(new, True)
    formula = (sum(2 * P * i + 4 * d * L * i**2 for i in range(1, new + 1)),
               sum(2 * P + 4 * d * L * i for i in range(1, new + 1)))
    print(f"{new:2} tokens: {without / 1e6:3.0f} MFLOP without, {cached / 1e6:2.0f} with,", end=" ")
    print(f"{without / cached:4.1f} times fewer; the formulas agree: {(without, cached) == formula}")

# %% [markdown]
# Now the clock: milliseconds for *one more* token after $n$. With the cache it rises more slowly: only the one new
# query meets all keys. (Beyond 128 tokens this model has learned nothing, but it computes.)


# %% tags=["nbval-ignore-output"]
def milliseconds(step, repeats=20):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)                                              # the least disturbed


# %% [markdown]
# Now one step with and one without a cache, at growing lengths:

# %% tags=["nbval-ignore-output"]
lengths, without, cached = [64, 128, 256, 512, 1024], [], []
for length in progress(lengths, "timing"):
    ids, cache = torch.randint(V, (1, length)), {}                 # (1, length)
    forward(ids[:, :-1], cache)
    without.append(milliseconds(lambda: forward(ids, {})))
    cached.append(milliseconds(lambda: forward(ids[:, -1:], dict(cache))))
plots.lines(
    {"without cache": (lengths, without), "with cache": (lengths, cached)}, xscale="log", yscale="log", marker="o",
    title="With a cache, the next token costs far less", xlabel="tokens so far",
    ylabel="milliseconds a token",
    alt="Milliseconds for one token against the length, logarithmic. Without a cache it rises with the length, with a "
    "cache it is far lower and rises much less.",
)

# %% tags=["nbval-ignore-output"]
expect("Times faster with the cache, at 1,024 tokens", without[-1] / cached[-1], 4, 200)

# %% [markdown]
# ### 5.4 What it takes
#
# Nothing is free. The cache holds a key and a value, for each layer, each key–value head, each of the $n$ positions:
#
# $$\text{bytes} = 2 \cdot L \cdot \text{kv\_heads} \cdot d_k \cdot n \cdot \text{bytes per number}$$


# %%
def cache_bytes(config, n, each=2):                                # each: bytes per number; 2 in half precision
    block = config.block
    return 2 * config.layers * (block.kv_heads or block.heads) * block.head_dim * n * each


cache = {}
forward(torch.ones(1, 100, dtype=torch.long), cache)
held = sum(each.numel() * each.element_size() for pair in cache.values() for each in pair)
print(f"ours, 100 tokens in 4 bytes: {held:,} bytes; the formula says {cache_bytes(model.config, 100, 4):,}")

# %% [markdown]
# And the large ones? Their sizes are in the library. One text, as long as each model's context:

# %%
from txlib.models.sizes import GPT2, GPT3, LLAMA, MIXTRAL, count_parameters

giants = {"GPT-2 small": GPT2["small"], "GPT-2 XL": GPT2["xl"], "Llama 7B": LLAMA["7b"], "Mixtral 8x7B": MIXTRAL["8x7b"],
          "GPT-3 175B": GPT3["175b"]}
for label, config in giants.items():
    n, weights = config.max_length, 2 * count_parameters(config)
    print(f"{label:13} {cache_bytes(config, 1) / 2**10:5,.0f} KiB a token; {n:6,} tokens take "
          f"{cache_bytes(config, n) / 2**30:4.2f} GiB, the weights {weights / 2**30:5.1f} GiB")

# %% [markdown]
# Half a mebibyte a token for Llama 7B: thirteen texts of full length, and the cache is as large as the model. That,
# not arithmetic, limits how many users a GPU can serve at once. Mixtral has as many layers and a head as wide as
# Llama 7B's, but 8 key–value heads instead of 32, so a quarter of the cache: that is what grouped queries are for
# (lesson 13).

# %% [markdown]
# ## 6 Quality against diversity, measured
#
# Now that writing is cheap, we can write a lot: 32 texts at once, all from the same prompt.


# %%
def write_many(change, prompt="Alice was", count=32, new=60, seed=0):
    generator, cache, written = torch.Generator().manual_seed(seed), {}, []
    news = torch.tensor([encode(prompt)] * count)                  # (count, prompt)
    for _ in range(new):
        p = change(forward(news, cache)[:, -1]).softmax(dim=-1)    # (count, vocab)
        news = torch.multinomial(p, 1, generator=generator)        # (count, 1)
        written.append(news)
    return torch.cat(written, dim=1)                               # (count, new)


# %% [markdown]
# **Quality**: the perplexity of the texts under the model itself, without any sampler. It is a poor judge: it cannot
# know nonsense that it believes in. But it is at hand, and low means: nothing in the text surprised it.
# **Diversity**: distinct-3 over all 32 texts together.


# %%
def quality(texts, prompt="Alice was"):                            # (count, new)
    start = torch.tensor([encode(prompt)] * len(texts))            # (count, prompt)
    logits = forward(torch.cat([start, texts], dim=1), {})         # (count, prompt + new, vocab)
    loss = F.cross_entropy(logits[:, start.shape[1] - 1 : -1].flatten(0, 1), texts.flatten())
    return loss.exp().item()


# %% tags=["nbval-ignore-output"]
dials = {
    "temperature": {T: lambda z, T=T: temperature(z, T) for T in (0.3, 0.5, 0.6, 0.7, 0.85, 1.0)},
    "top-p": {p: lambda z, p=p: top_p(z, p) for p in (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)},
    "top-k": {k: lambda z, k=k: top_k(z, k) for k in (2, 4, 8, 20, 50, V)},
}

# %% [markdown]
# Each dial, each setting, 32 texts; 576 texts in all. At its last setting each dial does nothing: pure sampling.

# %% tags=["nbval-ignore-output"]
curves, samples = {}, {}
for dial in progress(dials, "three dials, six settings each, 32 texts"):
    texts = {value: write_many(change) for value, change in dials[dial].items()}
    samples[dial] = texts
    curves[dial] = [quality(each) for each in texts.values()], [distinct(each.tolist(), 3) for each in texts.values()]
human = measured["human"][0]
plots.lines(
    curves | {"human": ([human, human], [0.5, 0.75])}, marker="o", height=4.4,
    title="Three dials, one road", xlabel="perplexity (left: predictable)",
    ylabel="distinct-3 over 32 texts (up: diverse)",
    alt="Three curves of distinct-3 against perplexity, for temperature, top-p and top-k. All rise from the lower left, "
    "predictable and alike, to the upper right, diverse and surprising. They nearly coincide, and end in one point, pure "
    "sampling. A vertical line marks the perplexity of the human text, at the right.",
)

# %% [markdown]
# The three curves nearly coincide: with this judge, one dial is as good as another, and only its setting counts. And
# the road bends. From pure sampling you can go back to a temperature of 0.7, or a nucleus of 0.8, and lose little
# diversity, but half of the perplexity or more. Below that, the texts become more and more alike. Settings like
# $T = 0.7$ or $p = 0.9$, which you will often meet, lie about that bend. (The human mark is the perplexity of one text
# of 60 tokens, so a rough one. Its height means nothing.) The numbers, perplexity and distinct-3:

# %% tags=["nbval-ignore-output"]
for dial, values in dials.items():
    found = zip(values, *curves[dial], strict=True)
    print(f"{dial:12}", "   ".join(f"{value:g}: {x:.0f}, {y:.0%}" for value, x, y in found))
cold, warm = (list(zip(*curves["temperature"], strict=True))[place] for place in (0, -1))
expect("Perplexity at T = 0.3", cold[0], 4, 9)
expect("Distinct-3 at T = 0.3", cold[1], 0.4, 0.75)
expect("Perplexity at T = 1", warm[0], 20, 40)
expect("Distinct-3 at T = 1", warm[1], 0.92, 1)

# %% [markdown]
# Another measure of likeness asks how well each text could pass for a "translation" of the others: **self-BLEU** (Zhu
# et al. 2018), the BLEU of lesson 07, from 0 to 100, with all other texts as references. High means: they are all
# alike. Twelve texts of each are enough.


# %% tags=["nbval-ignore-output"]
from sacrebleu import sentence_bleu


def self_bleu(texts):                                              # (count, new)
    written = [decode(ids) for ids in texts.tolist()]
    return statistics.mean(sentence_bleu(each, written[:i] + written[i + 1 :]).score for i, each in enumerate(written))


for dial, value in (("temperature", 0.3), ("temperature", 0.7), ("top-p", 0.8), ("temperature", 1.0)):
    print(f"{dial:11} {value}: self-BLEU {self_bleu(samples[dial][value][:12]):.0f}")

# %% [markdown]
# It tells the same story from the other side. Measure both, quality and diversity, whenever you compare samplers:
# each alone is easily won, by copying one good sentence or by rolling dice.
#
# ## 7 Several prompts at once
#
# The 32 texts had one prompt. What if prompts have different lengths? A batch is a rectangle, so the short ones are
# filled up. On which side? In lesson 07 the padding stood on the right. Here the *end* of the prompt is where the
# model goes on, so let us try all ways, and compare each prompt's next-token distribution with what it is alone.

# %%
prompts = ["The", "Alice was beginning to", "“I don’t think they play at all fairly,” said"]
rows = [encode(prompt) for prompt in prompts]
n, PAD = max(map(len, rows)), 0
right = torch.tensor([row + [PAD] * (n - len(row)) for row in rows])             # (batch, n)
left = torch.tensor([[PAD] * (n - len(row)) + row for row in rows])              # (batch, n)
mask = torch.tensor([[0] * (n - len(row)) + [1] * len(row) for row in rows])     # (batch, n): 1 = a real token
alone = torch.stack([next_logits(prompt) for prompt in prompts])                 # (batch, vocab)


@torch.no_grad()
def wrong_by(ids, mask=None):                                      # (batch, n) each
    p, q = model(ids, mask).logits[:, -1].softmax(dim=-1), alone.softmax(dim=-1)             # (batch, vocab) each
    return "  ".join(f"{change:6.1%}" for change in (p - q).abs().sum(dim=-1) / 2)


print("share of the probability that is in the wrong place, for each prompt:")
print(f"padded right, last column    {wrong_by(right)}")
print(f"padded left, no mask         {wrong_by(left)}")
print(f"padded left, with the mask   {wrong_by(left, mask)}")

# %% [markdown]
# The third prompt is the longest; it needs no padding, so nothing happens to it. On the right, the last column of the
# others is padding, and the model continues *that*. You might read the last *real* token
# instead; that is right for the first new token. But where does the new token go? Behind the padding. There it is too
# far away from the prompt, even if the padding is masked:


# %%
@torch.no_grad()
def second_token(row, gap):
    """The distribution after one more token, which stands `gap` places behind the prompt; the gap is masked."""
    ids = torch.tensor([[*row, *[PAD] * gap, *encode(" very")]])   # (1, length)
    mask = torch.tensor([[1] * len(row) + [0] * gap + [1]])        # (1, length)
    return model(ids, mask).logits[0, -1].softmax(dim=-1)          # (vocab,)


for gap in (1, 4, 16, 64):
    change = (second_token(rows[1], gap) - second_token(rows[1], 0)).abs().sum() / 2
    print(f"a gap of {gap:2}: {change:.1%} of the probability in the wrong place")

# %% [markdown]
# So padding goes on the left, with a mask. (On the right it works, too, if each row then writes at its own place.)
# With rotary positions that is all, because they only know distances. With
# *learned* positions (GPT-2) there is one more thing: the first real token must be position 0, wherever it stands.
# Count the real tokens. Here with a GPT-2 in small, with random weights:


# %%
from txlib.layers import BlockConfig

torch.manual_seed(0)
gpt2 = GPT(GPTConfig(V, BlockConfig(64, 4, 256, position="learned"), layers=2, max_length=64, init_std=0.5)).eval()
counts = (mask.cumsum(dim=1) - 1).clamp(min=0)                     # (batch, n): 0 for the first real token
allowed = mask.bool()[:, None, None, :] & causal().dense(n)        # (batch, 1, n, n)
with torch.no_grad():
    alone2 = torch.stack([gpt2(torch.tensor([row])).logits[0, -1] for row in rows])          # (batch, vocab)
    for label, position in (("by columns", torch.arange(n).expand(3, n)), ("by real tokens", counts)):
        x = gpt2.embedding(left) + gpt2.position.weight[position]   # (batch, n, d_model)
        p = gpt2.logits(gpt2.decoder(x, allowed)[:, -1]).softmax(dim=-1)         # (batch, vocab)
        change = (p - alone2.softmax(dim=-1)).abs().sum(dim=-1) / 2              # (batch,)
        print(f"positions counted {label:15}", "  ".join(f"{each:6.1%}" for each in change))

# %% [markdown]
# ## 8 When to stop, and what to show
#
# **The end token.** A model can end a text itself, if texts in training ended with a special token. This model's
# vocabulary has one. How likely is it, at its best place in all the texts we have?

# %% tags=["nbval-ignore-output"]
texts = torch.cat([samples["temperature"][1.0], samples["top-p"][0.9]])          # (64, new)
end = forward(texts, {}).softmax(dim=-1)[..., model.config.eos_id].max()
print(f"{name(model.config.eos_id)}: largest probability in {texts.numel():,} places: {end:.0e}")

# %% [markdown]
# This model would practically never end by itself. So we must stop it ourselves, after a number of tokens or at a
# **stop text**, such as the end of a line. A stop text need not be a token: it may begin inside one and end inside the
# next. So look for it in the *text*, after each token. Here we open a quotation mark, and want one speech, up to the
# mark that closes it. In this vocabulary that mark is mostly part of a token. (We are lazy: we write all 60 tokens
# first, and then look after each.)


# %%
def until(prompt, stop, new=60, **options):
    ids, written = encode(prompt), ""
    for id in write(prompt, sampler(lambda z: top_p(z, 0.8), **options), new=new)[len(ids) :]:
        written += decode([id])
        if stop in written:
            return written[: written.index(stop)]
    return written


# %% tags=["nbval-ignore-output"]
for seed in range(3):
    print(until("“Who are you?” said the Queen.\n\n“", "”", seed=seed), end="\n---\n")

# %% [markdown]
# **Half characters.** Our model's tokens are whole characters or more. Most models' tokens are *bytes* (lesson 01),
# and one character may be several tokens. Show a text token by token, and you show rubbish in between. With GPT-2's
# vocabulary:

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
# ## 9 Open the library
#
# `txlib.generation` has all this. You will recognise the filters:

# %%
from txlib.generation import (
    Sampling,
    Writer,
    apply_temperature,
    beam_search,
    generate,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    stream,
)

show_source(keep_top_k, keep_top_p, keep_min_p, penalise_repetition)

# %% [markdown]
# Fifty random rows of logits, the same for both. What is cut off must be cut off in both, and the rest must agree.

# %%
torch.manual_seed(0)
z = 3 * torch.randn(50, V)                                         # (batch, vocab)
seen = torch.rand(50, V) < 0.1                                     # (batch, vocab)
rows_seen = zip(z, seen, strict=True)
ours = torch.stack([penalise(row, here.nonzero()[:, 0], 1.3) for row, here in rows_seen])    # (batch, vocab)
prove_equal(temperature(z, 0.7), apply_temperature(z, 0.7), what="Both temperatures")
prove_equal(top_k(z, 20).softmax(dim=-1), keep_top_k(z, 20).softmax(dim=-1), what="Both top-k")
prove_equal(top_p(z, 0.8).softmax(dim=-1), keep_top_p(z, 0.8).softmax(dim=-1), what="Both top-p")
prove_equal(min_p(z, 0.1).softmax(dim=-1), keep_min_p(z, 0.1).softmax(dim=-1), what="Both min-p")
prove_equal(ours, penalise_repetition(z, seen, 1.3), what="Both penalties")

# %% [markdown]
# `Sampling` puts them in order, `stream` is the loop, with cache, left padding, ends and seeds. Here is its source.
# Look for predict, choose, append.

# %%
show_source(Sampling.__call__, stream)

# %% [markdown]
# Does it write what ours writes? Greedy, several prompts at once against each alone, with a seed, and the beam:

# %%
(theirs,) = generate(model, [encode("Alice was")], max_new_tokens=80)
print("greedy, the same tokens as ours:   ", encode("Alice was") + theirs == write("Alice was", greedy))
together = generate(model, rows, max_new_tokens=20)
print("together as alone:                 ", together == [generate(model, [row], max_new_tokens=20)[0] for row in rows])
print("with the cache as without:         ", together == generate(model, rows, max_new_tokens=20, use_cache=False))
options = dict(sampling=Sampling(temperature=0.9, top_p=0.9), max_new_tokens=60, seed=0)
ours = write_many(lambda z: top_p(temperature(z, 0.9), 0.9), count=4)            # (count, new)
print("drawn, the same tokens as ours:    ", generate(model, [encode("Alice was")] * 4, **options) == ours.tolist())
print("the same seed, the same text:      ", generate(model, rows, **options) == generate(model, rows, **options))
found = beam_search(model, torch.tensor([encode("Alice was")]), max_length=20, beams=4)
print("the beam, the same tokens as ours: ", encode("Alice was") + found[0] == beam("Alice was", 4, new=20))

# %% [markdown]
# `Writer` joins a model with its tokenizer: text in, text out, also piece by piece, holding back what may yet become a
# stop text or the rest of a character.

# %% tags=["nbval-ignore-output"]
writer = Writer(model, tokenizer)
prompt = "“Who are you?” said the Queen.\n\n“"
print(list(writer.stream(prompt, sampling=Sampling(top_p=0.8), stop=["”"], seed=0)))

# %% [markdown]
# From the command line, token by token as they come:
#
# ```
# txlib generate --model data/checkpoints/glassllm-en "Alice was"
# txlib generate --model data/checkpoints/glassllm-en "Alice was" --temperature 0.8 --top-p 0.9 --seed 1
# txlib generate --model gpt2 "Alice was" --greedy        # any decoder in the format of transformers
# ```

# %% [markdown]
# ## 10 Tasks as conditional generation
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
    sums = torch.stack([log_p_of(row + part, len(row)).sum() for part in parts])             # (answer,)
    return sums, torch.tensor([len(part) for part in parts])       # (answer,), (answer,)


NAMES = [" Rabbit", " Hare", " Turtle", " Queen"]
for prompt in ("The March", "The Mock", "The Red", "The White"):
    p = scores(prompt, NAMES)[0].softmax(dim=-1)                   # (answer,)
    print(f"{prompt:10}", "  ".join(f"{each.strip()} {share:.0%}" for each, share in zip(NAMES, p, strict=True)))

# %% [markdown]
# It knows the first three. After *The White* it prefers the Queen, who exists as well; its second choice is a mistake.
#
# ### Question answering
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
free, counts = scores("“It was", PERSONS)                          # (answer,) each: a prompt without a question


def right_answers(score):
    return sum(PERSONS[score(sums).argmax()] == QUESTIONS[question] for question, (sums, _) in asked.items())


# %% [markdown]
# Three ways to compare answers, because the bare score is unfair twice.
#
# - **The sum** favours *short* answers: each further token costs.
# - **Length normalisation** divides by the number of tokens (Brown et al. 2020, §2.4). Now it favours names with
#   predictable ends: after *Humpty*, *Dumpty* is for free.
# - **Calibration** asks how much likelier the *question* makes an answer: subtract its score behind a prompt without
#   content. Brown et al. divide by such a probability, too; Zhao et al. (2021) go on from there.

# %%
ways = {
    "sum": lambda sums: sums,
    "mean a token": lambda sums: sums / counts,
    "calibrated": lambda sums: sums - free,
}
for way, score in ways.items():
    said = Counter(PERSONS[score(sums).argmax()].strip() for sums, _ in asked.values())
    answers = ", ".join(f"{who} ({times})" for who, times in said.items())
    print(f"{way:13} {right_answers(score)} of 8 right; says {answers}")

# %% [markdown]
# One of eight is chance. And look at *what* it says. By the sum it gives one answer to all questions, by the mean
# another one to all: neither depends on the question. Calibration breaks the habit, but it cannot put knowledge where
# there is none.
#
# ### Sentiment, on real reviews
#
# Now a task with a test set: reviews of clothes, half of them with one or two stars, half with four or five. The prompt
# is the review (its end, as the model reads only 128 tokens) and *It was*; the answers are *very nice* and *not very
# nice*.

# %% tags=["nbval-ignore-output"]
from txlib.data import reviews

data = reviews("sentiment")
ANSWERS = [" not very nice", " very nice"]                         # label 0, label 1
labels = torch.tensor([review.label for review in data.test])      # (review,)
found = [scores(review.text.capitalize() + " It was", ANSWERS) for review in progress(data.test, "reading reviews")]
sums, counts = torch.stack([each for each, _ in found]), found[0][1]             # (review, answer), (answer,)
free = scores("It was", ANSWERS)[0]                                # (answer,): without a review
accuracy = {}
for way, score in {"sum": sums, "mean a token": sums / counts, "calibrated": sums - free}.items():
    said = score.argmax(dim=-1)                                    # (review,)
    accuracy[way] = (said == labels).float().mean().item()
    print(f"{way:13} accuracy {accuracy[way]:.1%}; says “very nice” of {said.float().mean():.0%} of the reviews")
print(f"chance 50 %; with {len(labels)} reviews it wanders by ± {2 * math.sqrt(0.25 / len(labels)):.1%}")

# %% [markdown]
# All three are at chance. The sum always says *very nice*, as one word less is likelier. The mean nearly always.
# Calibrated, it says both, and is no more often right. Beware of going on from here. You could try ten other prompts
# and keep the best. But ten prompts that only guess have, by luck, one at about 54 % among them; choose it *on the test
# set*, and you have measured your patience.
#
# Is the task too hard? Count words. A review's score is the sum over its words of $\ln$ (how often among the good) −
# $\ln$ (how often among the bad): naive Bayes, from 1960 or so.

# %% tags=["nbval-ignore-output"]
def words(text):
    return re.findall(r"[a-z']+", text.lower())


counts = [Counter(), Counter()]                                    # of the bad, of the good
for review in data.train:
    counts[review.label].update(words(review.text))
weight = {word: math.log((counts[1][word] + 1) / (counts[0][word] + 1)) for word in counts[0] | counts[1]}
said = torch.tensor([sum(weight.get(word, 0) for word in words(review.text)) > 0 for review in data.test])   # (review,)
by_words = (said == labels.bool()).float().mean().item()
expect("Accuracy of counting words", by_words, 0.8, 0.95)
for way in accuracy:
    expect(f"Accuracy of our language model, {way}", accuracy[way], 0.4, 0.65)

# %% [markdown]
# Counting words gets nine of ten right. So the task is easy, and our model cannot do it. Is the method to blame? Give
# it a task that it can know something about: which is English, the beginning of a review, or the same words shuffled?
# Chance is one half again. The score is the mean a token.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
right = 0
for review in data.test[:150]:
    text = review.text.split()[1:14]
    mixed = [text[place] for place in torch.randperm(len(text))]
    sums, counts = scores("It", [" " + " ".join(each) for each in (text, mixed)])            # (answer,) each
    right += (sums / counts).argmax().item() == 0
expect("Accuracy for the order of words", right / 150, 0.75, 1)

# %% [markdown]
# The method works; what is missing is knowledge. This model has read a few children's books and no review, and it has
# 0.85 million parameters to keep them in. GPT-2 has 1,800 times as many and has read eight million web pages; asked
# like this about a text, it was as good as, or better than, three of four systems trained on 127,000 examples
# (Radford et al. 2019, CoQA, abstract). So whatever model you use, measure it on a test set, write chance beside it,
# and try a simple baseline.
#
# ### “TL;DR:”
#
# Radford et al. (2019, §3.6) made GPT-2 summarise by writing *TL;DR:* behind an article. We ask our model to do so
# with reviews, and measure something simple: how many of the longer words that it writes stand in the review? For
# comparison: in *another* review.

# %% tags=["nbval-ignore-output"]
some = [review.text for review in data.test if 200 < len(review.text) < 300][:40]
prompts = [encode(text.capitalize() + "\n\nTL;DR:")[-100:] for text in some]
written = [decode(ids) for ids in generate(model, prompts, max_new_tokens=25, sampling=Sampling(top_p=0.8), seed=0)]


def taken(summary, text):
    long = [word for word in words(summary) if len(word) > 3]
    return sum(word in words(text) for word in long) / max(len(long), 1)


own = statistics.mean(map(taken, written, some))
others = statistics.mean(map(taken, written, some[1:] + some[:1]))
print(f"words from the review itself {own:.0%}, from another review {others:.0%}")
print(f"\n{some[0]}\nTL;DR:{written[0]!r}")

# %% [markdown]
# No difference: it does not summarise, it goes on telling about Sylvie and the Gardener, which is what it has learned.
#
# ## 11 Quiz
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
# **3. Why is there no cache of queries?**
#
# <details><summary>A. Queries change when a token is appended</summary>
#
# They do not: what holds for keys and values of the past holds for queries, too.
# </details>
# <details><summary>B. Old queries are never asked again</summary>
#
# Right. A query makes its own position's output, and that has been made.
# </details>
# <details><summary>C. It would take too much memory</summary>
#
# It would take half as much again, or more where heads share keys. But even if it were free, nobody would read it.
# </details>
#
# **4. A model has 40 layers, 8 key–value heads of 128, and numbers of 2 bytes. How large is the cache of one text of
# 8,192 tokens?**
#
# <details><summary>A. 1.25 GiB</summary>
#
# Right: $2 \cdot 40 \cdot 8 \cdot 128 \cdot 2 = 163{,}840$ bytes a token, times 8,192.
# </details>
# <details><summary>B. 0.6 GiB</summary>
#
# You counted keys only. Values are kept, too.
# </details>
# <details><summary>C. It cannot be said without the number of query heads</summary>
#
# Queries are not kept. Only heads of keys and values count.
# </details>
#
# **5. Three prompts of different lengths are padded on the right. The texts come out strange, but there is no error.
# What is wrong?**
#
# <details><summary>A. The padding should have been another token</summary>
#
# It does not matter which token it is, as long as nobody looks at it.
# </details>
# <details><summary>B. The short prompts are continued behind their padding</summary>
#
# Right. The last column is not their last token, and what they write stands too far away. Pad on the left, with a mask.
# </details>
# <details><summary>C. Batches need greedy search</summary>
#
# Any way to choose works, row by row.
# </details>

# %% [markdown]
# ## 12 Summary
#
# - Predict, choose, append. Greedy and beam search find likelier texts, and likelier texts go in circles.
# - Temperature changes ratios of probabilities; top-k keeps a number, top-p a share, min-p what is near the best.
# - More diversity costs quality. Choose the place on that road for your purpose, and measure both.
# - Under a causal mask the past's keys and values never change. Keep them:
#   $2 \cdot L \cdot \text{kv\_heads} \cdot d_k \cdot n$ numbers.
# - Any task can be put as a prompt. Whether a model can do it is a question for a test set, with chance beside it.
#
# **Read** Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
# [arXiv:1904.09751](https://arxiv.org/abs/1904.09751), sections 3 and 4. Li et al. 2016 (distinct-n),
# [arXiv:1510.03055](https://arxiv.org/abs/1510.03055), and Zhu et al. 2018 (self-BLEU),
# [arXiv:1802.01886](https://arxiv.org/abs/1802.01886). Fan et al. 2018, *Hierarchical Neural Story
# Generation*, [arXiv:1805.04833](https://arxiv.org/abs/1805.04833), section 5.4. Nguyen et al. 2024, *Min-p
# Sampling*, [arXiv:2407.01082](https://arxiv.org/abs/2407.01082), section 3. Keskar et al. 2019, *CTRL*,
# [arXiv:1909.05858](https://arxiv.org/abs/1909.05858), section 4.1. Shazeer 2019, *Fast Transformer Decoding*,
# [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), section 2. Radford et al. 2019, *Language Models are
# Unsupervised Multitask Learners*, section 3. Brown et al. 2020, *Language Models are Few-Shot Learners*,
# [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), section 2.4. Zhao et al. 2021, *Calibrate Before Use*,
# [arXiv:2102.09690](https://arxiv.org/abs/2102.09690), section 4.
#
# **Do** the exercise [09_sampling](../exercises/exercise_09_sampling.ipynb). Then go on to
# [11 BERT](11_bert.ipynb).
