# %% [markdown] lesson={"part": "IV Efficiency", "builds": "Linformer, Nystr\u00f6m, linear attention as a recurrent net, Performer, T-DMCA"}
# # 32 · Low rank, kernels, compression
#
# **After this lesson you will be able to**
#
# - say how many of a real head's numbers matter, from its singular values, and what a small rank loses;
# - build Linformer, and show why it can't be causal; use landmarks in its place (Nyström);
# - take softmax out of attention, so that it becomes a recurrent net with a matrix for its state, and prove that both
#   forms give the same numbers;
# - estimate softmax itself with random features (Performer), and say when the estimate is good for nothing;
# - shorten keys and values by a convolution, without a look into the future;
# - put all of them on one plane, error against operations, and say why dense attention is still what most models use.
#
# **You need** lessons 02 to 04, 10 and 14; 16, 30 and 31 help. **It takes** about 95 minutes to read and try; all cells
# together run in about half a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a matrix larger than what it is made of
#
# Lesson 31 left scores out. This lesson keeps every pair in play, and asks whether the $n \times n$ matrix has to be
# written down. Look at a real one. The small BERT of lesson 14 reads twelve pieces of *Twelfth Night*
# and what follows, 256 tokens each. It has not seen them in training. We listen at each attention layer for its
# queries, keys and values.

# %% tags=["recorded"]
import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import load_pretrained, plots
from txlib.attention import MultiHeadAttention, recording
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import shakespeare, shipped, translation
from txlib.text import BytePairEncoder, Tokenizer, load_tokenizer

torch.set_num_threads(1)                                # for tensors this small, more threads only wait

# %% [markdown]
# The model, the text, and a hook on each attention layer that keeps what passes:

# %%
bert = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).base
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
n, text = 256, shakespeare().validation
ids = torch.tensor(pieces.encode(text[:16000])[: 12 * n]).view(12, n)                   # (text, n)
heard = []                                                          # one (q, k, v) per layer
hooks = [layer.mechanism.register_forward_pre_hook(lambda _, qkv: heard.append(qkv[:3]))
         for layer in bert.modules() if isinstance(layer, MultiHeadAttention)]
with torch.no_grad():
    bert(ids)
for hook in hooks:
    hook.remove()
q, k, v = heard[0]                                                  # (text, head, n, d) each
d = q.shape[-1]
print(f"{len(heard)} layers, {q.shape[1]} heads; n = {n}, d = {d}")
print(f"one head: q and k hold {2 * n * d:,} numbers, the weights {n * n:,}")

# %% [markdown]
# The weights are four times as many numbers as the queries and keys that they are calculated from. At $n = 4096$ they
# would be 64 times as many. Nothing new can be in there; and they are needed once only, to mix the values:

# %% tags=["recorded"]
def attention(q, k, v):                                             # (…, query, d), (…, key, d) twice
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)       # (…, query, key)
    return weights @ v                                              # (…, query, d)


# %% [markdown]
# Three ideas promise to do without. In each, something small stands where $n \times n$ numbers stood:

# %%
figures.products(
    {"dense": [("P", 6, 6), ("v", 6, 1)], "low rank": [("P̄", 6, 1.6), ("F v", 1.6, 1)],
     "kernel": [("φ(q)", 6, 1.3), ("φ(k)ᵀ v", 1.3, 1)], "compressed": [("P", 6, 2), ("v", 2, 1)]},
    title="One product, four sizes",
    alt="Four products of matrices to scale. Dense: n × n times n × d. Low rank: n × k times k × d. "
    "Kernel: n × m times m × d, m features. Compressed: n × n/3 times n/3 × d.",
)

# %% [markdown]
# - **Low rank**: the matrix of weights has few directions that matter. Keep $k$ of them (sections 2 and 3).
# - **Kernels**: if the weight of a pair were a plain product, $\phi(q) \cdot \phi(k)$, the sum over keys could be taken
#   once, for all queries (4 and 5).
# - **Compression**: make one key of every three neighbours (6).
#
# ($P$ is the matrix of attention weights. The other letters come with their sections: $\bar P$ and $F$ in 3, $\phi$
# in 4.)
#
# Each is a claim about real text. So each will be measured on real text.

# %% [markdown]
# ## 2 Is it true that attention has low rank?
#
# ### 2.1 Singular values
#
# Any matrix is a sum of products column × row, of rank 1 each, sorted by size:
# $P = \sigma_1 u_1 w_1^\top + \sigma_2 u_2 w_2^\top + \dots$ with $\sigma_1 \ge \sigma_2 \ge \dots \ge 0$, the
# **singular values**. No matrix of rank $k$ is nearer to $P$, in the sum of the squares of what is left out, than the
# first $k$ terms (Eckart and Young 1936). Had we these $k$ columns and rows, mixing the values would cost $2nkd$
# multiplications in place of $n^2 d$.
#
# Wang et al. (2020, § 3) made *Linformer* from the observation that the sum of the singular values is nearly all in the
# first few. Their measure, turned round: how many does one need for 90 % of the sum of all?


# %%
def needed(P, share=0.9):                                           # (…, n, n): (…)
    s = torch.linalg.svdvals(P)                                     # (…, n): sorted, the largest first
    reached = s.cumsum(dim=-1) / s.sum(dim=-1, keepdim=True)        # (…, n)
    return 1 + (reached < share).sum(dim=-1)


torch.manual_seed(0)
with torch.no_grad(), recording(bert) as seen:
    bert(ids[:4])
weights = torch.stack([each[0] for each in seen.values()])          # (layer, text, head, n, n)
some = torch.randn(4, 1, n, d), torch.randn(4, 1, n, d)    # random queries and keys: scores of about ±1
chance = needed((some[0] @ some[1].mT / d**0.5).softmax(dim=-1)).float().mean()

# %% [markdown]
# Guess before you run the next cell. The model has four layers of four heads. What will it be: a few for all heads,
# many for all, or few for some? And if some: which layers?

# %%
for layer, rank in enumerate(needed(weights).float().mean(dim=1), start=1):             # rank: (head,)
    print(f"layer {layer}, its four heads need", "  ".join(f"{each:4.0f}" for each in rank), f"of {n}")
print(f"random queries and keys: {chance:.0f} of {n}")

# %% [markdown]
# In layers 3 and 4 the premise holds: 10 to 44 of 256 directions are enough, where random queries and keys need about
# 140. (Wang et al. found it in RoBERTa, too: in higher layers the rank is lower.) But look at the first layer. Two of
# its heads need about 200: more than random ones! Are they so rich? Here is one of them, its first 16 tokens:

# %%
piece = [pieces.decode([id]).replace("\n", "⏎") for id in ids[0, :16].tolist()]
plots.heatmap(
    weights[0, 0, 0, :16, :16], title="A head of nearly full rank: it looks at the next token",
    rows=piece, columns=piece, numbers=False, size=0.26, bar="weight",
    alt="The weights of head 1 in layer 1 for 16 tokens. Nearly every row has one dark cell, just "
    "right of the diagonal: the next token.",
)

# %% [markdown]
# It is the simplest head there is. Each token looks at the next one. (In this picture two don't seem to: the first one
# looks far to the right, and the token after *of* is just outside. In all, nearly nine tenths of the weight are on the
# next token.) A shifted diagonal matrix has a 1 in each row, in another column each time: all its singular values are
# 1, and no direction can be spared. *Rank does not measure how complicated a pattern is.* It measures how many queries
# want something of their own. The other head of this kind, the third, looks at the previous token.
#
# Lesson 31's windows catch exactly these heads. Keep that in mind for section 7.

# %% [markdown]
# ### 2.2 Does it stay so small when the text grows?
#
# That 30 directions are enough for 256 tokens helps little if 512 tokens need 60. Linformer's claim is stronger: the
# number hardly depends on $n$ (theorems 1 and 2: some multiple of $\log n$, or of $d \log d$, is enough). Give the
# model the beginnings of the same texts:

# %%
lengths, by_length = (32, 64, 128, 256), {}
for length in lengths:
    with torch.no_grad(), recording(bert) as seen:
        bert(ids[:4, :length])
    P = torch.stack([each[0] for each in seen.values()])           # (layer, text, head, length, length)
    by_length[length] = needed(P).float().mean(dim=1)               # (layer, head)
for layer, head in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 3)):
    print(f"layer {layer + 1}, head {head + 1}:",
          "  ".join(f"n = {length}: {rank[layer, head]:3.0f}" for length, rank in by_length.items()))

# %% [markdown]
# The same for all heads, each layer's mean:

# %%
grown = {f"layer {layer + 1}": (lengths, [by_length[length][layer].mean().item() for length in lengths])
         for layer in range(4)}
plots.lines(
    grown, title="It grows with the text in every layer, in layer 1 nearly as fast as n",
    xlabel="length of the text n", ylabel="directions for 90 %", marker="o", xscale="log", yscale="log",
    alt="Directions needed over lengths 32 to 256, mean of the heads, both axes logarithmic. "
    + "; ".join(f"{layer}: {each[0]:.0f} to {each[-1]:.0f}" for layer, (_, each) in grown.items()),
)

# %% [markdown]
# From 32 to 256 tokens, eight times as many, the first layer needs about seven times as many directions. In the deeper
# layers the number grows by about five times: more slowly than $n$, but it does grow. A rank that grows like $n$ to
# the power 0.8 makes attention cheaper than quadratic, and not linear.
#
# ### 2.3 Other models
#
# The premise was found in a BERT, which reads both ways. The course has two other Transformers: a small Llama, which is
# causal, and the translator of lesson 09, whose encoder reads German.

# %%
llama = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
translator = load_pretrained(shipped("games-de-en"), dtype=torch.float32).eval()
english = load_tokenizer(shipped("glassllm-en")).encode(text[:3000])
words = Tokenizer.load(shipped("games-de-en") / "tokenizer.json")
german = words.encode(" ".join(pair[0] for pair in translation("games").test[:60]))
for name, model, run, tokens in (("llama", llama, llama, english),
                                 ("German encoder", translator.encoder, translator.encode, german)):
    read = torch.tensor(tokens[: 3 * 128]).view(3, 128)             # (text, n)
    with torch.no_grad(), recording(model) as seen:
        run(read)
    P = torch.stack([each[0] for each in seen.values()])            # (layer, text, head, n, n)
    for layer, rank in enumerate(needed(P).float().mean(dim=1), start=1):
        print(f"{name}, layer {layer}:", "  ".join(f"{each:3.0f}" for each in rank), "of 128")
scores = (some[0] @ some[1].mT / d**0.5)[..., :128, :128]           # (draw, 1, n, n)
future = torch.ones(128, 128).triu(1).bool()                        # (query, key): True = later
for name, each in {"both ways": scores, "causal": scores.masked_fill(future, -torch.inf)}.items():
    print(f"random queries and keys, {name}: {needed(each.softmax(dim=-1)).float().mean():.0f} of 128")

# %% [markdown]
# Not far from chance: below it in most heads, at best by half (32 against 60), and above it in some (74 against 60, 92
# against 72). The German encoder is off its ground here: it has learned from single sentences, and reads about seven in
# a row. (A causal matrix is triangular, and one whose diagonal has no zero always has *all* its $n$ singular values
# above zero; some are just small.)
#
# ### 2.4 What a small k loses
#
# Singular values are about $P$. What counts is the head's output, $Pv$. Take the best $k$ directions that exist, and
# measure how far the output moves: $\lVert \hat o - o \rVert / \lVert o \rVert$ over all tokens. An error of 1 is as
# bad as answering with zeros.


# %%
def error(estimate, exact):                                         # (text, head, n, d) twice: (head,)
    return ((estimate - exact).square().sum((0, 2, 3)) / exact.square().sum((0, 2, 3))).sqrt()


for rank in (8, 32, 64):
    row = []
    for q, k, v in heard:
        q, k, v = q[:2], k[:2], v[:2]                               # (text, head, n, d) each
        u, s, w = torch.linalg.svd((q @ k.mT / d**0.5).softmax(dim=-1))
        best = (u[..., :rank] * s[..., None, :rank]) @ w[..., :rank, :]             # (text, head, n, n)
        row.append("  ".join(f"{each:.2f}" for each in error(best @ v, attention(q, k, v))))
    print(f"k = {rank:2}:", "  |  ".join(row))

# %% [markdown]
# (One column per head, a bar between layers.) In layers 2 to 4, eight directions are enough for all heads but one to
# come within 18 %: far fewer than 90 % of the sum asked for. In that sum each singular value counts as it is; an error
# adds up their squares, in which small ones hardly count. In layer 1, 64 of 256 leave three of the four heads more than
# half wrong.
#
# So, is Linformer's premise true? *For most heads of this encoder, yes, if the rank may differ by layer; for most of
# its first layer, no; for a causal Llama and a German encoder, as far as their singular values tell, hardly.* And even
# where it is true there is a catch: the best $k$ directions come from a decomposition of $P$, which first has to be
# calculated.

# %% [markdown]
# ## 3 Linformer
#
# ### 3.1 Mix keys before anybody looks
#
# Linformer (Wang et al. 2020, §4) learns where to look, once, for all texts. Two matrices $E_i, F_i$ of shape
# $k \times n$ mix the $n$ keys and the $n$ values of head $i$ into $k$ each:
#
# $$\text{head}_i = \underbrace{\text{softmax}\Big(\frac{Q W_i^Q\,(E_i K W_i^K)^\top}{\sqrt{d}}\Big)}_{\bar P:\ n \times k}
# \cdot \underbrace{F_i V W_i^V}_{k \times d}$$
#
# They act on *positions*, from the left; each row of $E$ is a recipe "so much of the first key, so much of the second
# …". Nothing of size $n \times n$ is ever there. In code it is one line (its `F` is the matrix, not torch's
# `functional`; later cells write `F_`):


# %%
def linformer(q, k, v, E, F):                                       # E, F: (keys, n)
    return attention(q, E @ k, F @ v)                               # (…, n, d): weights of (…, n, keys)


q, k, v = heard[2]                                                  # layer 3; (text, head, n, d) each
whole = torch.eye(n)                                                # (n, n)
prove_equal(linformer(q, k, v, whole, whole), attention(q, k, v), what="k = n: Linformer and dense")


def operations(compute, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        compute(*inputs)
    return counter.get_total_flops()


one = torch.randn(1, 1, n, d), torch.randn(1, 1, n, d), torch.randn(1, 1, n, d)
for keys in (256, 64, 16):
    E = torch.randn(keys, n)                                        # (keys, n)
    print(f"k = {keys:3}: {operations(linformer, *one, E, E):10,} operations")
print(f"dense:   {operations(attention, *one):10,}")

# %% [markdown]
# With $k = n$ it costs twice as much as dense: mixing $n$ keys into $k$ is itself $2nkd$ multiplications and additions,
# for $E$ and for $F$ each. It pays below $k = n/2$, and is linear in $n$ as long as $k$ stays the same.
#
# How many parameters are $E$ and $F$? In a model of 12 layers with 12 heads: an $E$ and an $F$ for each head of each
# layer make 288 matrices; shared by the heads of a layer (*headwise*), 24; with $E = F$ (*key-value*), 12; one for the
# whole model (*layerwise*), 1. The paper finds hardly any difference.
#
# ### 3.2 Does it work on a head that was not trained with it?
#
# Linformer is trained from the beginning with its $E$ and $F$. We have a finished model. So let us do as much as can be
# done for a finished one: start with means of neighbours, and let $E$ and $F$ learn to imitate each layer's own
# attention on eight texts. Measured on the four others:


# %% tags=["nbval-ignore-output"]
def means(keys):                                       # (keys, n): each the mean of n / keys neighbours
    return torch.eye(keys).repeat_interleave(n // keys, dim=1) / (n // keys)


def fitted(layer, keys=32, steps=80):
    q, k, v = (each[:8] for each in heard[layer])                   # (text, head, n, d) each
    exact, E, F = attention(q, k, v), means(keys).requires_grad_(), means(keys).requires_grad_()
    optimizer = torch.optim.Adam([E, F], lr=0.01)
    for _ in progress(range(steps), f"E and F for layer {layer + 1}"):
        (linformer(q, k, v, E, F) - exact).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return E.detach(), F.detach()


# %% [markdown]
# Fit them for two layers, and compare with random matrices and with plain means:

# %% tags=["nbval-ignore-output"]
EF = {layer: fitted(layer) for layer in (0, 2)}
for layer, (E, F_) in EF.items():
    q, k, v = (each[8:] for each in heard[layer])            # (text, head, n, d) each: not learned from
    chance = torch.randn(32, n) / 32**0.5                           # (keys, n)
    tried = {"random": (chance, chance), "means": (means(32), means(32)), "fitted": (E, F_)}
    for name, mixing in tried.items():
        wrong = error(linformer(q, k, v, *mixing), attention(q, k, v))
        print(f"layer {layer + 1}, {name:6}", "  ".join(f"{each:5.2f}" for each in wrong))

# %% [markdown]
# Random mixing is what the paper's proofs are made of. Here, *before* the softmax, it is useless: worse than answering
# zeros, by far. Means of neighbours are better, but in layer 3 still worse than zeros. Fitting helps there a little; in
# layer 1 it does harm, on texts that were not learned from. And in layer 3 all are nowhere near what rank 32 could do
# (0.02). Why? *Which* directions matter changes with the text, and $E$ is the same for all texts. A head that looks at
# the commas would need a recipe that knows where the commas are.
#
# A model that learns *with* $E$ and $F$ can arrange itself with that; section 7 tries it. For one that has been
# trained without, Linformer is no drop-in replacement.

# %% [markdown]
# ### 3.3 Break it: why it can't be causal
#
# Change the last token. In a causal model no earlier output may move. Can a mask after the scores save us?

# %%
q, k, v = one
E = F_ = means(32)                                                  # (keys, n)
changed = k.clone(), v.clone()
for each in changed:
    each[..., -1, :] = 5.0                                          # the last token is another one
allowed = torch.arange(n)[:, None] >= 8 * torch.arange(32)     # (query, keys): mixtures that have begun


def masked_linformer(q, k, v):
    scores = q @ (E @ k).mT / d**0.5                                # (…, query, keys)
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ (F_ @ v)


tried = {"no mask": lambda *qkv: linformer(*qkv, E, F_), "masked scores": masked_linformer}
for name, compute in tried.items():
    moved = (compute(q, *changed) - compute(q, k, v)).abs().amax(dim=-1)[0, 0] > 1e-6   # (query,)
    print(f"{name:13}: {moved[:-1].sum()} of {n - 1} earlier outputs have moved")
E = F_ = torch.randn(32, n)                            # a learned one mixes all positions into each row
moved = (masked_linformer(q, *changed) - masked_linformer(q, k, v)).abs().amax(dim=-1)[0, 0] > 1e-6
print(f"masked scores, any E: {moved[:-1].sum()} of {n - 1}")

# %% [markdown]
# A mixture is one number per feature; the future in it can't be taken out again by a mask. Means of eight neighbours
# leak to the seven others only: a mixture of *a few neighbours* could wait until all of them are past. That is what
# section 6 does. The same trap, smaller: **padding**. If keys of padding are not set to zero *before* $E$ mixes them,
# they are in every mixture, and no mask after that helps.
#
# And $E$ has $n$ columns: a model made for 512 tokens can't read the 513th.
#
# ### 3.4 Landmarks in place of learned mixtures
#
# Xiong et al. (2021) let the *text* say which directions matter. Nyströmformer cuts the sequence into $m$ segments.
# Their means are **landmarks**, $\tilde q$ and $\tilde k$. Three small softmaxes stand for the large one ($\sqrt d$ is
# left out here):
#
# $$\text{softmax}(q k^\top) \approx \text{softmax}(q \tilde k^\top)\;\text{softmax}(\tilde q \tilde k^\top)^{+}\;
# \text{softmax}(\tilde q k^\top)$$
#
# Read it from the right: each landmark collects what it finds in the text, each token collects from the landmarks, and
# the inverse in the middle takes out what was counted twice. ($^+$ is the pseudo-inverse, which a matrix has even where
# it can't be inverted. The paper comes near it by products of matrices alone, six rounds, which a GPU likes.)


# %%
def inverse(A, rounds=6):                                           # (…, m, m): Xiong et al., eq. 11
    Z = A.mT / (A.abs().sum(-2).amax(-1) * A.abs().sum(-1).amax(-1))[..., None, None]
    one = torch.eye(A.shape[-1])                                    # (m, m)
    for _ in range(rounds):
        AZ = A @ Z
        Z = 0.25 * Z @ (13 * one - AZ @ (15 * one - AZ @ (7 * one - AZ)))
    return Z


def nystrom(q, k, v, m, invert=inverse):
    some_q, some_k = (each.unflatten(-2, (m, -1)).mean(dim=-2) for each in (q, k))      # (…, m, d)
    near, core, far = ((a @ b.mT / a.shape[-1] ** 0.5).softmax(dim=-1)
                       for a, b in ((q, some_k), (some_q, some_k), (some_q, k)))
    return near @ (invert(core) @ (far @ v))                        # (…, n, m) · ((m, m) · (m, d))


for name, invert in {"six rounds": inverse, "exact": torch.linalg.pinv}.items():
    for m in (8, 32):
        wrong = [error(nystrom(q, k, v, m, invert), attention(q, k, v)) for q, k, v in heard]
        print(f"{name:10}, {m:2} landmarks:",
              "  |  ".join("  ".join(f"{e:.2f}" for e in layer) for layer in wrong))

# %% [markdown]
# Nobody has trained anything here, and eight landmarks are 24 to 31 % off in layer 3. More of them help little. Is it
# the inverse, which six rounds only approximate? On the contrary: with the exact one layer 3 is wrong by 0.9 to 3.4
# with 8 landmarks and by 0.8 to 1.0 with 32. The core has singular values near zero, and an exact inverse makes them
# huge. Six rounds stop before that. The neighbour heads of the first layer are lost, as section 2 says they must be.
# Landmarks are means of whole segments, future included, so Nyström isn't causal either.
# %% [markdown]
# ## 4 Kernels: attention without a softmax
#
# ### 4.1 Move one bracket
#
# Write attention for one query, with the softmax spelled out:
#
# $$o_i = \frac{\sum_j e^{q_i \cdot k_j / \sqrt d}\; v_j}{\sum_j e^{q_i \cdot k_j / \sqrt d}}
# \qquad\text{and now suppose}\qquad e^{q \cdot k / \sqrt d} \;\to\; \phi(q) \cdot \phi(k)$$
#
# for some **feature map** $\phi$ from $d$ to $m$ numbers. Then $\phi(q_i)$ doesn't depend on $j$ and may leave the sum:
#
# $$o_i = \frac{\phi(q_i) \cdot \big(\sum_j \phi(k_j)\, v_j^\top\big)}{\phi(q_i) \cdot \big(\sum_j \phi(k_j)\big)}$$
#
# The two sums are the same for every query. In matrices: $(\phi(q)\,\phi(k)^\top)\,v = \phi(q)\,(\phi(k)^\top v)$.
# Nothing but a bracket has moved, and $n \times n$ is gone. Katharopoulos et al. (2020) take
# $\phi(x) = \text{elu}(x) + 1$, which is positive: otherwise the denominator could be zero, and weights negative.


# %% tags=["recorded"]
def phi(x):                                                         # (…, d): as many features
    return F.elu(x) + 1


def linear_attention(q, k, v, features=phi):                        # (…, n, d) each
    q, k = features(q), features(k)                                 # (…, n, m)
    S, z = k.mT @ v, k.sum(dim=-2, keepdim=True)                    # (…, m, d), (…, 1, m)
    return (q @ S) / (q @ z.mT)                                     # (…, n, d) / (…, n, 1)


# %% [markdown]
# With the bracket on the left it must be the same. And the operations?


# %%
def quadratic(q, k, v):                                         # the same, with the bracket on the left
    weights = phi(q) @ phi(k).mT                                    # (…, n, n)
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v        # (…, n, d)


prove_equal(linear_attention(*one), quadratic(*one), what="Both brackets")
for length in (256, 1024, 4096):
    qkv = [torch.empty(1, 1, length, d, device="meta") for _ in range(3)]   # shapes are enough to count
    ours, dense = operations(linear_attention, *qkv), operations(attention, *qkv)
    print(f"n = {length:4}: {ours:11,} operations; dense {dense:13,}, {dense / ours:3.0f} times")

# %% [markdown]
# It is *not* an approximation of softmax attention. It is another mechanism, with another kind of weights. How
# different? Put it into our BERT's heads, as they are:

# %%
wrong = [error(linear_attention(q, k, v), attention(q, k, v)) for q, k, v in heard]
mean = [error(v.mean(dim=-2, keepdim=True).expand_as(v), attention(q, k, v)) for q, k, v in heard]
for name, layers in {"elu + 1": wrong, "mean of all values": mean}.items():
    print(f"{name:19}", "  |  ".join("  ".join(f"{each:.2f}" for each in layer) for layer in layers))

# %% [markdown]
# About what the mean of all values would give. $e^x$ turns a gap of 5 between scores into a factor of 150. With
# $\text{elu} + 1$ a product is large or not so large, and a single key hardly ever takes nearly everything. A model can
# learn to live with this, but it has to learn it.
#
# ### 4.2 Causal: keep two sums
#
# A decoder's token $i$ may use the keys up to $i$ only. The sums become *running* sums. Three ways to get them, one
# result:


# %%
def masked(q, k, v):                                         # (…, n, d) each: quadratic, for comparison
    weights = (phi(q) @ phi(k).mT).tril()                           # (…, n, n)
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


def parallel(q, k, v):
    q, k = phi(q), phi(k)                                           # (…, n, m)
    S = (k[..., :, None] * v[..., None, :]).cumsum(dim=-3)   # (…, n, m, d): the sum up to each position
    z = k.cumsum(dim=-2)                                            # (…, n, m)
    return (q[..., None, :] @ S)[..., 0, :] / (q * z).sum(dim=-1, keepdim=True)


def recurrent(q, k, v):
    S, z, out = torch.zeros(d, d), torch.zeros(d), []               # the state: (m, d) and (m,)
    for q_t, k_t, v_t in zip(phi(q[0, 0]), phi(k[0, 0]), v[0, 0], strict=True):         # (d,) each
        S, z = S + k_t[:, None] * v_t, z + k_t
        out.append((q_t @ S) / (q_t @ z))
    return torch.stack(out)[None, None]                             # (1, 1, n, d)


prove_equal(parallel(*one), masked(*one), what="Running sums and a mask")
prove_equal(recurrent(*one), masked(*one), what="One token at a time and a mask")

# %% [markdown]
# ### 4.3 The circle closes
#
# Read `recurrent` again, and lay lesson 02 beside it:
#
# | | the state | one step |
# | --- | --- | --- |
# | recurrent net (lesson 02) | a vector $h$ | $h_t = g(W h_{t-1} + U x_t + b)$ |
# | linear attention | a matrix $S$ (and a vector $z$) | $S_t = S_{t-1} + \phi(k_t)\, v_t^\top$ |
#
# **A Transformer without the softmax is a recurrent net**, with a matrix for its state. Attention was invented in
# lesson 02 because one vector was too little to remember a sentence by. Now we are back at one state of fixed size, for
# the same reason as then: it costs the same at every step. Two things are different from lesson 02. The state is a sum
# of outer products, one per token: $m \times d$ numbers, not $d$. And the step has no $g$ and no $W$: it only adds, so
# all steps can be taken at once, as `parallel` does. Lesson 02's net had to wait for itself; this one trains like a
# Transformer and decodes like a recurrent net.
#
# What does decoding keep?

# %%
for seen_so_far in (100, 1000, 10_000, 100_000):
    print(f"after {seen_so_far:7,} tokens, one head of {d}: cache {2 * d * seen_so_far:10,} numbers, "
          f"state {d * d + d:,}")

# %% [markdown]
# (`parallel` above would be a bad way to train: it holds all $n$ states, $n \cdot m \cdot d$ numbers. Libraries go by
# *chunks* of, say, 64: inside a chunk the masked product, for all that lies before it the state. Same numbers,
# $n/64$ states. You write it in the exercise.)
#
# ### 4.4 Learn to forget
#
# A sum that only grows remembers everything equally badly. Lesson 02's gates had an answer: forget. Multiply the state
# by a number $0 < \alpha_t \le 1$ before each addition ($\phi$ and the denominator are left out from here on):
#
# $$S_t = \alpha_t\, S_{t-1} + k_t v_t^\top \qquad o_t = S_t^\top q_t$$
#
# What $k_j v_j^\top$ has left at step $i$ is the product of all $\alpha$ in between. So there is a parallel form again,
# with a mask that holds numbers instead of zeros and ones:
#
# $$o = (L \circ q k^\top)\, v \qquad L_{ij} = \alpha_{j+1} \cdots \alpha_i \ \text{ for } j \le i, \text{ else } 0$$


# %%
def fading(alpha):                                                  # (n,): (n, n)
    passed = alpha.log().cumsum(dim=0)                              # (n,): logarithm of α_1 … α_i
    return (passed[:, None] - passed[None, :]).exp().tril()         # (query, key)


def forgetful(q, k, v, alpha):                                      # (n, d) three times, (n,)
    S, out = torch.zeros(d, d), []                                  # (d, d)
    for q_t, k_t, v_t, a_t in zip(q, k, v, alpha, strict=True):
        S = a_t * S + k_t[:, None] * v_t
        out.append(q_t @ S)
    return torch.stack(out)                                         # (n, d)


q, k, v = (each[0, 0] / d**0.25 for each in one)                    # (n, d) each
alpha = torch.sigmoid(torch.randn(n) + 3)                  # (n,): each token says how much it wipes out
prove_equal((fading(alpha) * (q @ k.T)) @ v, forgetful(q, k, v, alpha), what="Mask and recurrence")

# %% [markdown]
# A picture of $L$: every token keeps 90 % of what was there, and token 11 only 10 %.

# %%
plots.heatmap(
    fading(torch.tensor([0.9] * 11 + [0.1] + [0.9] * 12)),
    title="A token that forgets ends a paragraph", numbers=False, size=0.13, bar="what is left",
    alt="A lower triangle of 24 tokens. Each row fades from the diagonal to the left. From row 11 on, "
    "everything left of column 11 is nearly white: token 11 has wiped the state out.",
)

# %% [markdown]
# With one constant $\alpha$ per head this is RetNet (Sun et al. 2023). With an $\alpha$ that each token decides, it is
# the heart of Mamba-2's layer: Dao and Gu (2024) call the equality of the two forms **state-space duality**, since the
# one with the mask is attention, and the one with the state a state-space model. Gated linear attention (Yang et al.
# 2024) has an $\alpha$ for each feature. They all drop $\phi$ and the denominator, and normalise the output instead.

# %% [markdown]
# ### 4.5 What a state can't hold
#
# How much can be got back from a sum of $k_j v_j^\top$? Ask with $k_i$: out comes $v_i$ times $|k_i|^2$, *plus* every
# other value times $k_i \cdot k_j$. If keys are orthogonal, nothing else comes along. But in $m$ dimensions there are
# no more than $m$ orthogonal keys. Let us make it a task, with people again, as in lesson 19. To a feast come $g$ of 64
# people, and each gets one of 64 rooms (some may share one). Eight questions follow: where is Juliet?


# %% tags=["recorded"]
def feast(size, guests, people=64, rooms=64):
    who = torch.rand(size, people).argsort(dim=-1)[:, :guests]      # (size, guests): different people
    room = torch.randint(rooms, (size, guests))                     # (size, guests)
    asked = torch.rand(size, guests).argsort(dim=-1)[:, :8]         # (size, 8): which of the guests
    return who, room, who.gather(1, asked), room.gather(1, asked)


# %% [markdown]
# A host embeds each guest as the sum of two vectors, each question as a name alone, and lets the questions attend to
# the guests:


# %% tags=["recorded"]
class Host(nn.Module):
    def __init__(self, mechanism, d_model=64, heads=2):
        super().__init__()
        self.who, self.room, self.heads = nn.Embedding(64, d_model), nn.Embedding(64, d_model), heads
        self.query, self.key, self.value = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.mechanism = mechanism
        self.output = nn.Sequential(nn.Linear(d_model, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, who, room, asked):                            # (batch, guests) twice, (batch, 8)
        x, question = self.who(who) + self.room(room), self.who(asked)             # (batch, …, d_model)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for each in (self.query(question), self.key(x), self.value(x)))
        return self.output(self.mechanism(q, k, v).transpose(1, 2).flatten(start_dim=2))


# %% [markdown]
# Training takes 250 batches; what comes back is the share of right answers for 500 new feasts:


# %% tags=["recorded"]
def train(mechanism, guests, seed=0, steps=250, lr=4e-3, what="training"):
    torch.manual_seed(seed)
    model = Host(mechanism())
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        *given, answer = feast(32, guests)                     # (batch, guests) twice, (batch, 8) twice
        F.cross_entropy(model(*given).flatten(0, 1), answer.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.manual_seed(99)
    *given, answer = feast(500, guests)
    with torch.no_grad():
        return (model(*given).argmax(dim=-1) == answer).float().mean().item()


# %% [markdown]
# Two hosts, one with softmax, one with a state, 64 guests each. (`Use` makes a module of a function.)


# %% tags=["recorded"]
class Use(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.forward = compute


# %% [markdown]
# It takes some seconds:

# %% tags=["nbval-ignore-output"]
expect("dense, 64 guests", train(lambda: Use(attention), 64, what="dense"), 0.97, 1)
expect("linear, 64 guests", train(lambda: Use(linear_attention), 64, what="linear"), 0.05, 0.3)

# %% [markdown]
# Dense attention looks the guest up: it doesn't matter how many there are. The state has two heads of 32 × 32 numbers
# for 64 guests, and mixes them up. Is it too small, or is $\phi$ to blame? $\text{elu} + 1$ adds 1 to every feature, so
# any two keys have much in common, and in a sum of keys that is what counts. Section 7 tells the two apart, with runs
# recorded for three seeds each.
# %% [markdown]
# ## 5 Performer: estimate the softmax by chance
#
# ### 5.1 Random features
#
# Is there a $\phi$ whose products *are* $e^{q \cdot k}$? With finitely many features, no. On average, yes. Draw $w$
# from a normal distribution, and take
#
# $$\phi_w(x) = e^{\,w \cdot x - |x|^2 / 2} \qquad
# \mathbb{E}_w\big[\phi_w(q)\,\phi_w(k)\big] = e^{-(|q|^2 + |k|^2)/2}\;\mathbb{E}_w\big[e^{\,w \cdot (q + k)}\big]
# = e^{-(|q|^2 + |k|^2)/2}\; e^{|q + k|^2 / 2} = e^{\,q \cdot k}$$
#
# The step in the middle is the mean of a log-normal variable. So draw $m$ vectors $w$, rows of a matrix $W$, and take
# the mean of $m$ products. That is the heart of the Performer's **FAVOR+** (Choromanski et al. 2021, § 2.3). All
# features are positive, so no denominator comes near zero. (Cosines and sines have the right mean, too, but may be
# negative; just where weights are small, their error is largest.) The usual $\sqrt d$ is divided out beforehand,
# $\sqrt[4]{d}$ from either side.


# %% tags=["recorded"]
def random_features(x, W):                                    # (…, n, d), (m, d): logarithms, (…, n, m)
    x = x / x.shape[-1] ** 0.25
    return x @ W.T - x.square().sum(dim=-1, keepdim=True) / 2


def performer(q, k, v, W):
    q, k = random_features(q, W), random_features(k, W)             # (…, n, m)
    q = (q - q.amax(dim=-1, keepdim=True)).exp()           # what is divided out cancels in the fraction
    k = (k - k.amax(dim=(-1, -2), keepdim=True)).exp()              # one number for all keys
    return (q @ (k.mT @ v)) / (q @ k.sum(dim=-2, keepdim=True).mT)  # (…, n, d)


# %% [markdown]
# Is the mean right? One query, one key, eight features at a time, and 20,000 draws:

# %%
torch.manual_seed(0)
q, k = torch.randn(1, d) / 2, torch.randn(1, d) / 2                 # (1, d) each
W = torch.randn(20_000, 8, d)                                   # (draw, m, d): eight features at a time
products = (random_features(q, W.flatten(0, 1)) + random_features(k, W.flatten(0, 1))).exp()
estimates = products.view(20_000, 8).mean(dim=-1)                   # (draw,)
exact = (q @ k.T / d**0.5).exp().item()
print(f"exact {exact:.3f}; mean of 20,000 estimates {estimates.mean():.3f} "
      f"± {estimates.std() / 20_000**0.5:.3f}; half of them are below {estimates.median():.3f}")

# %% [markdown]
# **Unbiased**, within what 20,000 draws can tell (± is the standard error of their mean). But the median shows the
# catch: most estimates are too small, and a few are enormous. That is how log-normal variables are. More features help.
# How fast? And the paper's second trick (§ 2.4): rows of $W$ that are **orthogonal** to each other, in groups of $d$,
# with the lengths that normal vectors have. They can't happen to point the same way twice. Guess by how much that
# lowers the error, then run.


# %%
def orthogonal(m, d):                                               # (m, d)
    groups = [torch.linalg.qr(torch.randn(d, d)) for _ in range(-(-m // d))]
    rows = torch.cat([(Q * R.diagonal().sign()).T for Q, R in groups])[:m]         # directions: uniform
    return rows * torch.randn(m, d).norm(dim=1, keepdim=True)


torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 64, d).unbind()                      # (1, 1, n, d) each
q, k = q / 3, k / 3                                                # scores of about ±0.1: nearly a mean
exact = attention(q, k, v)                                          # (1, 1, n, d)
sizes, spread = (8, 16, 32, 64, 128, 256, 512), {}
for name, draw in {"independent": torch.randn, "orthogonal": orthogonal}.items():
    spread[name] = torch.tensor([[error(performer(q, k, v, draw(m, d)), exact).item() for m in sizes]
                                 for _ in range(20)])               # (seed, size)
for m, ours, theirs in zip(sizes, spread["independent"].T, spread["orthogonal"].T, strict=True):
    print(f"{m:3} features: independent {ours.mean():.2f} ({ours.min():.2f} to {ours.max():.2f}), "
          f"orthogonal {theirs.mean():.2f} ({theirs.min():.2f} to {theirs.max():.2f})")

# %% [markdown]
# Drawn, the rate can be read off as a slope:

# %%
drawn = {name: (sizes, each.mean(dim=0).tolist()) for name, each in spread.items()}
plots.lines(
    drawn, title="Four times the features, half the error", xlabel="features m",
    ylabel="error of the output", xscale="log", yscale="log", marker="o",
    alt="Error over the number of features, mean of 20 draws, both axes logarithmic: two falling "
    "lines. " + "; ".join(f"{name} {each[0]:.2f} at 8, {each[-1]:.2f} at 512"
                          for name, (_, each) in drawn.items()),
)

# %% [markdown]
# The error falls like $1/\sqrt m$, as any mean of random numbers does: that is the best one can say of it, and the
# worst. Orthogonal rows save an eighth to a fifth of it, once there are enough of them for a group.
#
# ### 5.2 Where it fails
#
# These scores were tiny: a softmax of them is nearly a plain mean. Measured against the square of what it estimates,
# the variance of one product is $e^{|q + k|^2} - 1$: the exponential of something that attention makes large on
# purpose, to be sharp. Make queries and keys longer, 256 features:

# %%
for longer in (1, 1.5, 2, 3):
    torch.manual_seed(1)
    exact = attention(longer * q, longer * k, v)                    # (1, 1, n, d)
    wrong = [error(performer(longer * q, longer * k, v, orthogonal(256, d)), exact) for _ in range(10)]
    print(f"scores ±{(longer**2 * q @ k.mT / d**0.5).std():.1f}: error {torch.stack(wrong).mean():.2f}")

# %% [markdown]
# At scores of ±1, where a softmax only begins to choose, 256 features are worse than zeros. And our BERT's scores?

# %%
torch.manual_seed(0)
W = orthogonal(256, d)                                              # (m, d)
for layer, (q, k, v) in enumerate(heard, start=1):
    scores, wrong = q @ k.mT / d**0.5, error(performer(q, k, v, W), attention(q, k, v))
    print(f"layer {layer}: scores ±", "  ".join(f"{each:4.1f}" for each in scores.std(dim=(0, 2, 3))),
          "  error", "  ".join(f"{each:4.2f}" for each in wrong))

# %% [markdown]
# Hopeless for a finished model: in layer 3, scores spread by ten and more. Even the head with the smallest scores
# (layer 1, head 2) is four fifths wrong. A Performer has to be trained as one, and then it can keep its
# queries and keys short. (Its authors also draw $W$ anew now and then, so that the model can't rely on one draw.)

# %% [markdown]
# ## 6 Compression: fewer keys, later
#
# ### 6.1 A strided convolution
#
# Liu et al. (2018) wanted to write the beginnings of Wikipedia articles from the web pages that an article cites and
# from what a search finds: up to 11,000 tokens, in 2018. Their **memory-compressed attention** (§ 4.2.4) makes one key
# of every three, by a convolution of width 3 and stride 3, and one value likewise. Queries stay as they are. A
# convolution whose stride is its width is a product with windows:


# %%
f = 3


def compress(x, weight):                                          # (…, n, d), (f · d, d): (…, n / f, d)
    return x.unflatten(-2, (-1, f)).flatten(start_dim=-2) @ weight


torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 48, d).unbind()                      # (1, 1, n, d) each
weight = torch.randn(f * d, d) / (f * d) ** 0.5                     # (f · d, d)
kernel = weight.view(f, d, d).permute(2, 1, 0)             # (out, in, f), as torch's convolution has it
convolved = F.conv1d(k[0].mT, kernel, stride=f).mT[None]            # (1, 1, n / f, d)
prove_equal(compress(k, weight), convolved, what="Windows and torch's convolution")

# %% [markdown]
# What may query $i$ see of compressed keys? Window $w$ holds the tokens $3w$, $3w + 1$ and $3w + 2$. Two rules come to
# mind: a window may be seen once it has *begun*, or once it has *ended*. Decide, then change the future and watch:


# %%
def memory_compressed(q, k, v, weight, first_seen=f - 1):
    k, v_ = compress(k, weight), compress(v, weight)                # (…, n / f, d)
    query, window = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    allowed = query[:, None] >= f * window + first_seen             # (query, window)
    scores = (q @ k.mT / d**0.5).masked_fill(~allowed, -torch.inf)  # (…, query, window)
    nothing = ~allowed.any(dim=-1, keepdim=True)                   # (query, 1): no window has ended yet
    return torch.where(nothing, v[..., :1, :], scores.masked_fill(nothing, 0).softmax(dim=-1) @ v_)


for name, first_seen in {"begun": 0, "ended": f - 1}.items():
    worst = 0
    for i in range(24):
        later = torch.randn(1, 1, 47 - i, d)                        # another future for query i
        other = [torch.cat([each[..., : i + 1, :], later], dim=-2) for each in (k, v)]
        new, old = (memory_compressed(q, *kv, weight, first_seen)[..., i, :] for kv in (other, (k, v)))
        worst = max(worst, (new - old).abs().max().item())
    print(f"windows that have {name}: another future moves a query's output by up to {worst:.2f}")

# %% [markdown]
# A window that has begun holds up to two tokens of the future, and a model that is trained with such a leak learns to
# copy them. Windows must have ended. The price: up to two of the *newest* keys are unseen, the query's own among them.
# (The first two queries see no window at all; ours get the first value.) A good reason not to use this
# layer alone.
#
# ### 6.2 Local blocks beside it: L M L M L
#
# The other layer cuts the text into blocks of 256 tokens, and attends inside each (§ 4.2.4, too). It sees the newest
# keys exactly, and nothing beyond its block. Five layers, alternating **L**ocal and **M**emory-compressed, make the
# decoder **T-DMCA**. What does it save at the paper's 11,000 tokens?


# %%
def local(q, k, v, block):                                       # (…, n, d) each, n a multiple of block
    blocks = (each.unflatten(-2, (-1, block)) for each in (q, k, v))          # (…, n / block, block, d)
    return attention(*blocks).flatten(-3, -2)                       # (…, n, d)


long = 42 * 256                                              # 10,752 tokens: a multiple of 256 and of 3
qkv = [torch.empty(1, 1, long, d, device="meta") for _ in range(3)]
w = weight.to("meta")                                               # shapes are enough to count
L = operations(lambda *qkv: local(*qkv, 256), *qkv)
M = operations(lambda q, k, v: attention(q, compress(k, w), compress(v, w)), *qkv)
D = operations(attention, *qkv)
print(f"operations of a head, in millions: L {L / 1e6:,.0f}, M {M / 1e6:,.0f}, dense {D / 1e6:,.0f}")
mixed = 3 * L + 2 * M
print(f"L M L M L: {mixed / 1e6:,.0f}; five dense: {5 * D / 1e6:,.0f}, {5 * D / mixed:.1f} times")

# %% [markdown]
# M is still quadratic, a third of dense. It moves the wall by a factor; it doesn't take it away. That was enough for
# their GPUs of 16 GB, on which the decoder without it had come to an end at 4,000 tokens (§ 5.3).
#
# Their table 4 compares such models; lesson 09 §7.4 reads it. `benchmarks/long_text.py` runs it again, small: continue a
# play that nobody has seen, a minute of one core for each model and length, one seed. So little training rewards nobody for reading more; every model is best with 128 tokens,
# and the recurrent one is best of all. But look at what 2,048 tokens *cost* them: recurrent 1.40 nats, encoder–decoder
# 0.88, decoder 0.19, with compressed memory 0.08. At that length their order is the paper's: 5.82, 5.43, 4.94, 4.76.
# Experts bring nothing in a minute (4.82).
# %% [markdown]
# ## 7 One plane
#
# ### 7.1 Error against operations, on real heads
#
# All methods, the same queries, keys and values, without training. Two places in our BERT that could not differ more:
# the head that looks at the next token (layer 1), and the four heads of layer 3. Which method is where? Sketch both
# pictures before you look: which method is best, which is hopeless, at little cost, at a high one?


# %%
def shorter(q, k, v, factor):                                     # keys and values: means of neighbours
    return attention(q, *(each.unflatten(-2, (-1, factor)).mean(dim=-2) for each in (k, v)))


torch.manual_seed(0)
drawn = {m: orthogonal(m, d) for m in (16, 64)}                    # (m, d) each
methods = {
    "linear": [linear_attention],
    "Performer": [lambda q, k, v, m=m: performer(q, k, v, drawn[m]) for m in (16, 64)],
    "means of keys": [lambda q, k, v, f=f: shorter(q, k, v, f) for f in (16, 8, 4, 2)],
    "Nyström": [lambda q, k, v, m=m: nystrom(q, k, v, m) for m in (4, 8, 16, 32)],
    "local blocks": [lambda q, k, v, b=b: local(q, k, v, b) for b in (8, 16, 32, 64, 128)],
}


# %% [markdown]
# Each method is a dot or a line of dots on the plane; dense attention is the dotted line, with no error at all:


# %%
def plane(layer, head, title):
    q, k, v = (each[8:, head] for each in heard[layer])             # (text, head, n, d) each
    points = {name: ([operations(each, *one) / 1e6 for each in computes],
                     [error(each(q, k, v), attention(q, k, v)).mean().item() for each in computes])
              for name, computes in methods.items()}
    E, F_ = EF[layer]                                               # (keys, n) twice
    points["Linformer, fitted"] = ([operations(linformer, *one, E, F_) / 1e6],
                                   [error(linformer(q, k, v, E, F_), attention(q, k, v)).mean().item()])
    nearest = {name: min(y) for name, (_, y) in points.items()}
    return plots.lines(
        points, title=title, xlabel="operations of one head (million)", ylabel="error of the output",
        xscale="log", yscale="log", marker="o", mark=("dense", operations(attention, *one) / 1e6),
        alt="Error over operations, both axes logarithmic. Smallest errors: "
        + ", ".join(f"{name} {value:.2f}" for name, value in nearest.items()))


# %% [markdown]
# First the neighbour's head:

# %%
plane(0, slice(0, 1), "A head that looks at its neighbour: only windows see it")

# %% [markdown]
# And the four heads of layer 3:

# %%
plane(2, slice(0, 4), "Heads of low rank: a few landmarks go far")

# %% [markdown]
# (Error 1: as bad as zeros. Points further right have more features, landmarks, keys or longer blocks.)
#
# Nyström is hopeless in the first picture and best in the second, at all but the highest cost. Where a head looks
# nearby, local blocks are best. What do they still get wrong? Two suspects: the last token of a block, whose
# neighbour is in the next, and tokens that give their neighbour less than half of their weight. Each one's share of
# the squared error:

# %%
q, k, v = (each[8:, :1] for each in heard[0])                       # (text, 1, n, d)
exact, n = attention(q, k, v), q.shape[-2]
weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)           # (text, 1, n, n)
far = weights.diagonal(1, -2, -1) < 0.5                             # (text, 1, n - 1)
print(f"{far.float().mean():.0%} of the tokens look elsewhere")
for block in (8, 32, 128):
    squares = (local(q, k, v, block) - exact).square().sum(-1)[..., :-1]       # (text, 1, n - 1)
    last = torch.arange(n - 1) % block == block - 1                 # (n - 1,)
    at_ends, of_far = squares[..., last].sum() / squares.sum(), squares[far].sum() / squares.sum()
    print(f"blocks of {block:3}: {at_ends:4.0%} at a block's last token, "
          f"{of_far:4.0%} at those who look elsewhere")

# %% [markdown]
# Short blocks fail at their ends, long ones at the tokens that look far away. Where a head gathers from
# the whole text, four landmarks are wrong by a third, at a thirtieth of the operations, and blocks get there only when
# they are half as long as the text. Linear attention, means and Linformer are about as wrong as zeros, or worse, and
# the Performer is worst: they answer *something*, but not what softmax would have.
#
# That is the case for mixtures: windows *and* something global (lesson 31's Longformer, L M L M L here), and against
# any single approximation for a model that was trained without it.
#
# ### 7.2 Trained from the beginning
#
# Now fair play: every method is trained itself, on the feast of section 4.5. Linformer learns $E$ and $F$, compression
# its convolution, all in the model's own training.


# %% tags=["recorded"]
class Mixed(nn.Module):                                             # Linformer
    def __init__(self, guests, keys):
        super().__init__()
        self.E, self.F = (nn.Parameter(torch.randn(keys, guests) / guests**0.5) for _ in range(2))

    def forward(self, q, k, v):                                     # (batch, head, …, d) each
        return attention(q, self.E @ k, self.F @ v)


class Shortened(nn.Module):                                         # memory-compressed
    def __init__(self, factor, d=32):
        super().__init__()
        self.factor, start = factor, torch.eye(d).repeat(factor, 1) / factor     # a mean, to begin with
        self.key, self.value = nn.Parameter(start.clone()), nn.Parameter(start.clone())

    def forward(self, q, k, v):
        k, v = (x.unflatten(-2, (-1, self.factor)).flatten(start_dim=-2) for x in (k, v))
        return attention(q, k @ self.key, v @ self.value)


# %% [markdown]
# And the Performer with its random features, drawn once; then everybody who takes part:


# %% tags=["recorded"]
class Random(nn.Module):                                            # Performer
    def __init__(self, features, d=32):
        super().__init__()
        self.register_buffer("W", torch.randn(features, d))         # (m, d)

    def forward(self, q, k, v):
        return performer(q, k, v, self.W)


def competing(q, k, v):                                             # features that compete: φ = softmax
    return linear_attention(q, k, v, lambda x: x.softmax(dim=-1))


def hosts(guests):
    return {"dense": lambda: Use(attention), "linear, elu + 1": lambda: Use(linear_attention),
            "linear, softmax": lambda: Use(competing),
            "Performer, 64 features": lambda: Random(64),
            "Linformer, n/4 keys": lambda: Mixed(guests, guests // 4),
            "compressed, 4 to 1": lambda: Shortened(4)}


# %% [markdown]
# `data/feast.py` has run these cells for 8, 16, 32 and 64 guests, with three seeds each:

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "feast.json").read_text())
for name, by_guests in recorded.items():                        # guests → seed → share of right answers
    shown = [" ".join(f"{each:4.0%}" for each in seeds.values()) for seeds in by_guests.values()]
    lines = zip(by_guests, shown, strict=True)
    print(f"{name:23}", "   ".join(f"{guests:>2}: {three}" for guests, three in lines))

# %% [markdown]
# Their means, over the number of guests:

# %%
remembered = {name: ([int(guests) for guests in by_guests],
                     [100 * sum(seeds.values()) / len(seeds) for seeds in by_guests.values()])
              for name, by_guests in recorded.items()}
plots.lines(
    remembered, title="Only dense attention remembers every guest", xlabel="guests",
    ylabel="right answers (%)", xscale="log", marker="o",
    alt="Right answers over 8 to 64 guests, mean of three seeds. " + "; ".join(
        f"{name}: {each[0]:.0f} % at 8, {each[-1]:.0f} % at 64"
        for name, (_, each) in remembered.items()),
)

# %% [markdown]
# Guessing any room is right in 2 % of the cases, guessing one of the rooms that eight guests have in about 12 %. Read
# the lines from the top. Dense attention looks each guest up, however many there are. Then come two that keep a state
# of fixed size, and lose a guest now and then, the more the fuller the house: linear attention whose features *compete*
# (a softmax over the 32 of them), and the Performer, hopeless in a finished model and good now that it is trained as
# one (with 64 features, twice as many). With $\text{elu} + 1$ a state of the same size forgets most of 64 guests. So at
# this size $\phi$ is to blame, not the state: if most features of a key are nearly 0, two keys hardly overlap, and sums
# can be taken apart again. (64 guests are just as many as the two heads have features. The exercise goes on from here.)
#
# Linformer and compression fail already with eight. Where names stand at random places, no fixed recipe over *places*
# can help: mixed guests can't be taken apart again, and nobody knew who would be asked for. (Compression begins at a
# quarter: what you get if you find the right window, and then guess which of its four rooms is meant.)
#
# It is about the hardest task for them that one can think of. (Language has such moments, a name on page 2 that comes
# back on page 9, but most of its moments are not of this kind.) One size, one recipe, 250 batches: longer training and
# wider heads may well move these lines up. What stays is the shape of the argument: a state of fixed size holds a
# limited number of things, and a cache holds all.

# %% [markdown]
# ## 8 Open the library
#
# `txlib.attention` has all of them, with masks, padding, shared heads and caches. Here is the heart of the linear ones,
# by chunks, with and without fading:

# %%
from txlib.attention import GatedLinearAttention, LinearAttention, Linformer, MemoryCompressedAttention
from txlib.attention import Nystrom, Performer, StateCache, causal
from txlib.attention.kernelized import running_sums

show_source(running_sums)

# %% [markdown]
# The same numbers as ours, on the real heads of layer 2:

# %%
q, k, v = (each[:2] for each in heard[1])                           # (text, head, n, d) each
E, F_ = (torch.randn(2, 32, n) / n**0.5).unbind()                              # (keys, n) each
theirs = {"Linformer": Linformer(n, 32), "Nyström": Nystrom(32), "linear": LinearAttention(),
          "Performer": Performer(d, features=256)}
with torch.no_grad():
    theirs["Linformer"].projection.key.copy_(E[None])
    theirs["Linformer"].projection.value.copy_(F_[None])
    theirs["Performer"].projection.copy_(W)
    ours = {"Linformer": linformer(q, k, v, E, F_), "Nyström": nystrom(q, k, v, 32),
            "linear": linear_attention(q, k, v), "Performer": performer(q, k, v, W)}
    for name, library in theirs.items():
        prove_equal(ours[name], library(q, k, v), tolerance=1e-4, what=name)

# %% [markdown]
# The causal ones. `GatedLinearAttention` divides queries by $\sqrt d$, reads its $\alpha$ from a parameter or from the
# values, and brings its outputs to length $\sqrt d$ (root mean square 1):

# %%
q, k, v = torch.randn(3, 1, 1, 48, d).unbind()                      # (1, 1, n, d) each
gated, squeezed = GatedLinearAttention(1), MemoryCompressedAttention(d, 1, factor=3)
with torch.no_grad():
    alpha = gated.fade(v)[0, 0].exp()                               # (n,)
    squeezed.key.weight.copy_(weight[None])
    squeezed.value.weight.copy_(weight[None])
    faded = forgetful(q[0, 0] / d**0.5, k[0, 0], v[0, 0], alpha)    # (n, d)
    prove_equal(masked(q, k, v), LinearAttention()(q, k, v, causal()), what="linear, causal")
    prove_equal(F.rms_norm(faded, (d,), eps=1e-6), gated(q, k, v, causal())[0, 0], what="gated linear")
    prove_equal(memory_compressed(q, k, v, weight), squeezed(q, k, v, causal()), what="compressed")

# %% [markdown]
# And decoding from a state, a token at a time, equals reading all at once:

# %%
library, cache = LinearAttention(), StateCache()
steps = []
for token in zip(*(each.split(1, dim=-2) for each in (q, k, v)), strict=True):       # (1, 1, 1, d) each
    cache.update(*token[1:])                                        # counts the position
    steps.append(library(*token, causal(), cache=cache))
prove_equal(torch.cat(steps, dim=-2), library(q, k, v, causal()), what="Token by token and at once")
print("what the cache holds after 48 tokens:", [tuple(each.shape) for each in cache.state])
try:
    Linformer(n, 32)(*one, causal())
except ValueError as error_said:
    print(error_said)

# %% [markdown]
# (The state has one column more than $d$: a value of 1 for each key, whose sum is the denominator.) Cost, counted: what
# does a text of twice the length cost? (The counter does not see into torch's fused kernel; we ask for the plain one.)

# %%
from torch.nn.attention import SDPBackend, sdpa_kernel

mechanisms = {"Linformer": (Linformer(4096, 64), None), "Nyström": (Nystrom(64), None),
              "linear": (LinearAttention(), causal()), "Performer": (Performer(d), causal()),
              "memory-compressed": (squeezed, causal())}
for name, (library, mask) in mechanisms.items():
    with sdpa_kernel(SDPBackend.MATH):
        a, b = (operations(library, *torch.randn(3, 1, 1, m, d), mask) / 1e6 for m in (1024, 2048))
    print(f"{name:18} n = 1024: {a:6.1f} million, n = 2048: {b:6.1f} million, {b / a:.1f} times")

# %% [markdown]
# Twice for all that are linear (a part of Nyström's cost, the inverse, doesn't depend on $n$), nearly four times for
# compression, which divides a quadratic cost by a number.

# %% [markdown]
# ## 9 Why most models still use dense attention
#
# Most of this is from 2018 to 2021 (the gates of 4.4 are younger), and the large models of the years after had dense
# attention. Why?
#
# - **Exactness.** You have seen it: what is not kept can't be looked up. Copying, quoting, using what stands in the
#   prompt, all of that is a feast with many guests.
# - **$n$ was not the problem yet.** A layer's other products cost about $24nd_{\text{model}}^2$ operations, its scores
#   and averages $4n^2d_{\text{model}}$: equal only at $n = 6d_{\text{model}}$, some 25,000 tokens for a width of 4096.
#   Far below that, a method that makes attention free makes the model hardly faster.
# - **The kernel.** FlashAttention (lesson 34) took away the $n \times n$ *memory*, with the exact numbers, and made
#   dense attention so fast that many a method with fewer operations was slower by the clock.
# - **The bill came from elsewhere.** In decoding what hurts is the cache. Shared keys and values (lesson 16) often
#   cut it by eight, with hardly any loss and no other change.
#
# And now? Texts have grown to hundreds of thousands of tokens, and the state is back: the gated, forgetting kind. Most
# such models are *mixtures*: several layers with a state, then one with dense attention, which looks up what the others
# have let go. L M L M L again.

# %% [markdown]
# ## 10 Quiz
#
# Decide first, then open an answer.
#
# **1. A head attends, from every token, to the one before with weight 1. Which statement about its matrix is true?**
#
# <details><summary>A. It is simple, so its rank is low</summary>
#
# Each row has its 1 in another column. Simple to say is not low in rank.
# </details>
# <details><summary>B. Its rank is (nearly) n, and a window of width 2 gives it exactly</summary>
#
# Right. Rank and locality are different kinds of simple.
# </details>
# <details><summary>C. Linformer gets it right with k = n/2</summary>
#
# No matrix of rank n/2 is near: half of its equal singular values would be missing.
# </details>
#
# **2. Linformer's E for keys, n = 512 and k = 64. What is its shape, and what does it act on?**
#
# <details><summary>A. 64 × 512, on positions</summary>
#
# Right. It mixes 512 keys into 64. The width of each key stays.
# </details>
# <details><summary>B. 512 × 64, on features</summary>
#
# A matrix on the right of K would mix features. The number of keys would stay 512.
# </details>
# <details><summary>C. 64 × 64, on heads</summary>
#
# Heads are not mixed.
# </details>
#
# **3. Why can linear attention move the bracket, and softmax attention not?**
#
# <details><summary>A. Because elu is cheaper than exp</summary>
#
# The cost of the function hardly counts.
# </details>
# <details><summary>B. Because its weight is a product of something of q and something of k</summary>
#
# Right. $e^{q \cdot k}$ is no product of finitely many features.
# </details>
# <details><summary>C. Because it has no denominator</summary>
#
# It has one: $\phi(q) \cdot z$.
# </details>
#
# **4. A Performer with 64 features has an error of 0.4. How many features for 0.1?**
#
# <details><summary>A. 128</summary>
#
# That gives about 0.28.
# </details>
# <details><summary>B. 256</summary>
#
# That gives about 0.2.
# </details>
# <details><summary>C. About 1,000</summary>
#
# Right. A quarter of the error takes sixteen times the features.
# </details>
#
# **5. Keys are compressed three to one. Query 7 (counted from 0) may see windows 0 and 1, and not window 2. Why?**
#
# <details><summary>A. Window 2 holds tokens 6, 7 and 8, and 8 is the future</summary>
#
# Right. Token 6 and its own key are lost to it in this layer; a local layer has them.
# </details>
# <details><summary>B. Because of the stride, every third query sees less</summary>
#
# Query 8 sees window 2: it has ended then.
# </details>
# <details><summary>C. It could see window 2 if the scores were masked</summary>
#
# Token 8 is *inside* the compressed key. A mask hides a whole key or nothing.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - Attention of low rank: true for many heads, false for those that look at their neighbours, and the number of
#   directions grows with the text.
# - Linformer mixes keys over positions by a learned $k \times n$ matrix; neither causal nor free of its length. Nyström
#   lets means of the text itself be landmarks.
# - $\phi(q)(\phi(k)^\top v)$: move the bracket, and attention is a recurrent net with a matrix for its state. With a
#   gate it forgets. What doesn't fit into the state is gone.
# - Random features are right on average, with an error of $1/\sqrt m$ that explodes with the size of the scores.
# - A convolution over keys must end before it is seen. It divides the cost by its stride.
# - No method is best everywhere: what wins on one head fails on the next.
#
# **Read** Wang et al. 2020, *Linformer*, [arXiv:2006.04768](https://arxiv.org/abs/2006.04768), sections 3 and 4. Xiong
# et al. 2021, *Nyströmformer*, [arXiv:2102.03902](https://arxiv.org/abs/2102.03902). Katharopoulos et al. 2020,
# *Transformers are RNNs*, [arXiv:2006.16236](https://arxiv.org/abs/2006.16236), section 3. Choromanski et al. 2021,
# *Rethinking Attention with Performers*, [arXiv:2009.14794](https://arxiv.org/abs/2009.14794), section 2. Dao and Gu
# 2024, *Transformers are SSMs*, [arXiv:2405.21060](https://arxiv.org/abs/2405.21060), sections 3 to 5. Liu et al. 2018,
# *Generating Wikipedia by Summarizing Long Sequences*, [arXiv:1801.10198](https://arxiv.org/abs/1801.10198), section 4.
#
# **Do** the exercise [32_low_rank](../exercises/exercise_32_low_rank.ipynb). Then go on to
# [34 FlashAttention](34_flash.ipynb), which keeps every score, and never writes them down.
