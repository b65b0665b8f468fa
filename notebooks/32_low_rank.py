# %% [markdown] lesson={"part": "IV Efficiency", "builds": "Linformer, Nystr\u00f6m, linear attention, Performer, compression: fitted to real heads and trained from the start"}
# # 32 · Low rank, kernels, compression
#
# **After this lesson you will be able to**
#
# - say how many of a real head's numbers matter, from its singular values, and what a small rank loses;
# - build Linformer, and show why it can't be causal; use landmarks instead (Nyström);
# - take the softmax out of attention, and say what that has to do with a recurrent net;
# - estimate softmax itself with random features (Performer), and say when the estimate is useless;
# - shorten keys and values by a convolution, without a look into the future;
# - compare all of them fairly, and say why dense attention is still what most models use.
#
# **You need** lessons 02 to 04, 10 and 14; 16, 30 and 31 help. **It takes** about 65 minutes to read and try; all cells
# together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a matrix larger than what it is made of
#
# Lesson 31 left scores out. This lesson keeps every pair in play, and asks whether the $n \times n$ matrix has to be
# written down. Look at a real one. The small BERT of lesson 14 reads twelve pieces of *Twelfth Night*, 256 tokens each,
# which it has not seen in training. We record each attention layer's queries, keys and values.

# %% tags=["recorded"]
import json
from functools import partial

import torch
import torch.nn.functional as F
from IPython.display import display
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txcourse import figures
from txcourse.lesson import (
    expect, predict, predicted, progress, prove_equal, show_source)
from txlib import load_pretrained
from txlib import attention as library
from txlib.attention import MultiHeadAttention, recording
from txlib.data import shakespeare, shipped
from txlib.paths import DATA
from txlib.text import BytePairEncoder

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# The model, the text, and a hook on each attention layer:

# %%
n, d = 256, 32  # tokens of a text, width of a head
bert = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).base
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
text = shakespeare().validation[:16000]
ids = torch.tensor(pieces.encode(text)[: 12 * n]).view(12, n)  # (text, n)
recorded = []  # for each of four layers q, k and v: (text, head, n, d)


def keep(mechanism, qkv):
    recorded.append(qkv[:3])


layers = [part for part in bert.modules() if isinstance(part, MultiHeadAttention)]
hooks = [layer.mechanism.register_forward_pre_hook(keep) for layer in layers]
with torch.no_grad():
    bert(ids)
for hook in hooks:
    hook.remove()
print(f"one head: q and k hold {2 * n * d:,} numbers, the weights {n * n:,}")

# %% [markdown]
# The weights are four times as many numbers as the queries and keys that they are computed from. At $n = 4096$ they
# would be 64 times as many. They can contain nothing new, and they are needed only once, to mix the values:

# %% tags=["recorded"]
def attention(q, k, v):  # (…, query, d), (…, key, d) twice
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)  # (…, query, key)
    return weights @ v  # (…, query, d)

# %% [markdown]
# Three ideas promise to avoid it. In each, something small replaces the $n \times n$ numbers:

# %% jupyter={"source_hidden": true}
figures.four_products()

# %% [markdown]
# - **Low rank**: the matrix of weights $P$ has few directions that matter. Keep $k$ of them (sections 2 and 3).
# - **Kernels**: if the weight of a pair were a plain product, $\phi(q) \cdot \phi(k)$, the sum over keys could be taken
#   once, for all queries (4 and 5).
# - **Compression**: make one key of every three neighbors (6).
#
# Each is a claim about real text, so each will be measured there.
#
# ## 2 Is it true that attention has low rank?
#
# ### 2.1 Singular values
#
# We have a matrix; what would it mean that few of its numbers matter? Two small ones: $\begin{pmatrix} 0.5 & 0.5 \\ 0.5
# & 0.5 \end{pmatrix}$ is one column times one row, $\begin{pmatrix} 1 \\ 1 \end{pmatrix} \begin{pmatrix} 0.5 & 0.5
# \end{pmatrix}$: every query wants the same. $\begin{pmatrix} 0 & 1 \\ 1 & 0 \end{pmatrix}$ needs two such products:
# each query wants something else. Any matrix is a sum of products column × row, sorted by size: $P = \sigma_1 u_1
# w_1^\top + \sigma_2 u_2 w_2^\top + \dots$ with $\sigma_1 \ge \sigma_2 \ge \dots \ge 0$, the **singular values**: 1 and
# 0 for the first matrix, 1 and 1 for the second. The first $k$ terms are the nearest matrix of rank $k$, in squared
# error (Eckart and Young 1936). With these $k$ columns and rows, mixing the values would cost $2nkd$ multiplications
# instead of $n^2 d$.
#
# Wang et al. (2020, § 3) made *Linformer* from the observation that the sum of the singular values is nearly all in the
# first few. So: how many does one need for 90% of the sum?

# %%
def needed(P, fraction=0.9):  # (…, n, n): (…)
    s = torch.linalg.svdvals(P)  # (…, n): sorted, the largest first
    reached = s.cumsum(dim=-1) / s.sum(dim=-1, keepdim=True)  # (…, n)
    return 1 + (reached < fraction).sum(dim=-1)


torch.manual_seed(0)
with torch.no_grad(), recording(bert) as seen:
    bert(ids[:4])
weights = torch.stack([layer[0] for layer in seen.values()])  # (layer, text, head, …)
rank = needed(weights).float().mean(dim=1)  # (layer, head)
some = torch.randn(2, 4, n, d)  # random queries and keys: scores of about ±1
chance = needed((some[0] @ some[1].mT / d**0.5).softmax(dim=-1)).float().mean()
print(f"random queries and keys need {chance:.0f} of {n}")

# %% jupyter={"source_hidden": true}
predict(
    "rank-heads", "How many of 256 directions do the sixteen heads of this model need?",
    "a few in all heads", "about as many as random ones, in all heads", "few in the upper layers, many in the first",
)

# %% [markdown]
# Here are the sixteen heads, a row for each layer:

# %% jupyter={"source_hidden": true}
display(figures.ranks_of_heads(rank))
predicted("rank-heads", "few in the upper layers, many in the first", "Three of the first layer need more than random ones.")

# %% [markdown]
# In layers 3 and 4 the premise holds: 10 to 44 of 256 directions are enough. (Wang et al. found it in RoBERTa as well:
# in higher layers the rank is lower.) But three heads of the first layer need more than random ones, and two of them
# about 200! Are they so rich? Here is one of them, its first 16 tokens:

# %% jupyter={"source_hidden": true}
names = [pieces.decode([token]).replace("\n", "⏎") for token in ids[0, :16].tolist()]
figures.neighbor_head(weights[0, 0, 0, :16, :16], names)

# %%
for head, offset in ((0, 1), (2, -1)):
    near = weights[0, :, head].diagonal(offset, -2, -1).mean()
    print(f"layer 1, head {head + 1}: weight {near:.2f} on the token at {offset:+d}")

# %% [markdown]
# It is the simplest head there is. Nearly every token looks at the next one, and in head 3 at the previous one. (The
# first row is empty: that token looks at one outside the picture.) A shifted diagonal
# matrix has a 1 in each row, in another column each time: all its singular values are 1, and no direction can be
# spared. *Rank does not measure how complicated a pattern is.* It measures how many different things the queries want.
# Lesson 31's windows catch exactly these heads.
#
# ### 2.2 Does it stay so small when the text grows?
#
# That 30 directions are enough for 256 tokens helps little if 512 tokens need 60. Linformer's claim is stronger: the
# number hardly depends on $n$ (theorems 1 and 2: some multiple of $\log n$, or of $d \log d$, is enough). Give the
# model the beginnings of the same texts:

# %%
lengths, by_length = (32, 64, 128, 256), []
for length in lengths:
    with torch.no_grad(), recording(bert) as seen:
        bert(ids[:4, :length])
    P = torch.stack([layer[0] for layer in seen.values()])  # (layer, text, head, …)
    by_length.append(needed(P).float().mean(dim=(1, 2)))  # (layer,)

# %% jupyter={"source_hidden": true}
figures.ranks_by_length(lengths, torch.stack(by_length))

# %% [markdown]
# From 32 to 256 tokens, eight times as many, the first layer needs about seven times as many directions, the deeper
# layers about five times: like $n$ to a power between 0.7 and 0.95. Such a rank makes attention cheaper than quadratic,
# but not linear. (The theorems bound another error, that of the products with the values; section 2.3 turns to it.)
#
# ### 2.3 What a small k loses
#
# Singular values are about $P$. What counts is the head's output, $Pv$. Take the nearest matrix of rank $k$, and
# measure how far the output moves: $\lVert \hat o - o \rVert / \lVert o \rVert$ over all tokens. An error of 1 is as
# bad as answering with zeros.

# %% tags=["recorded"]
def error(estimate, exact):  # (text, head, n, d) twice: (head,)
    wrong = (estimate - exact).square().sum((0, 2, 3))
    return (wrong / exact.square().sum((0, 2, 3))).sqrt()


# %% [markdown]
# Its error is not a lower bound: a matrix that knows $v$ as well can do better. Since $v$ has 32 columns, one of rank
# 32 gives exactly these outputs. For values about which nothing is known, the nearest matrix is the best choice. On two
# of the texts:


# %%
def nearest_of_rank(q, k, v, rank):
    u, s, w = torch.linalg.svd((q @ k.mT / d**0.5).softmax(dim=-1))
    return (u[..., :rank] * s[..., None, :rank]) @ (w[..., :rank, :] @ v)


lost = {}  # rank → (layer, head)
for size in (8, 32, 64):
    few = [(q[:2], k[:2], v[:2]) for q, k, v in recorded]
    lost[f"rank {size}"] = torch.stack(
        [error(nearest_of_rank(*qkv, size), attention(*qkv)) for qkv in few])

# %% jupyter={"source_hidden": true}
figures.errors_of_heads(lost, title="Eight directions are enough for most heads, not in the first layer")

# %% [markdown]
# In layers 2 to 4, eight directions come within 18% for all heads but one: far fewer than 90% of the sum asked for. (An
# error adds up *squares* of singular values, in which small ones hardly count.) In layer 1, 64 of 256 leave three of
# the four heads more than half wrong.
#
# So Linformer's premise is true for most heads of this encoder, and false for most of its first layer. And there is a
# catch: these $k$ directions come from a decomposition of $P$, which has to be computed first.
#
# ## 3 Linformer
#
# ### 3.1 Mix keys before any query sees them
#
# What is missing is a way to the few directions that does not go through $P$. On paper: four keys 1, 3, 5, 7 become
# two, the means 2 and 6, if we multiply by the matrix $E = \begin{pmatrix} ½ & ½ & 0 & 0 \\ 0 & 0 & ½ & ½
# \end{pmatrix}$. Linformer (Wang et al. 2020, §4) learns such recipes, once, for all texts. Two matrices $E_i, F_i$ of
# shape $k \times n$ mix the $n$ keys and the $n$ values of head $i$:
#
# $$\text{head}_i = \underbrace{\text{softmax}\Big(\frac{Q W_i^Q\,(E_i K W_i^K)^\top}{\sqrt{d}}\Big)}_{\bar P:\ n \times k}
# \cdot \underbrace{F_i V W_i^V}_{k \times d}$$
#
# They act on *positions*, from the left. In code it is one line (`F` is the matrix here; later cells write `F_`, since
# `F` is torch's `functional`):

# %%
def linformer(q, k, v, E, F):  # E, F: (keys, n)
    return attention(q, E @ k, F @ v)  # weights of (…, n, keys)


def operations(compute, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        compute(*inputs)
    return counter.get_total_flops()


torch.manual_seed(0)
one = torch.randn(3, 1, 1, n, d).unbind()  # q, k, v of one head
same = linformer(*one, torch.eye(n), torch.eye(n))
prove_equal(same, attention(*one), what="k = n and dense")
for keys in (256, 64, 16):
    E = torch.randn(keys, n)  # (keys, n)
    print(f"k = {keys:3}: {operations(linformer, *one, E, E):10,} operations")
print(f"dense:   {operations(attention, *one):10,}")

# %% [markdown]
# With $k = n$ it costs twice as much as dense: mixing $n$ keys into $k$ is itself $2nkd$ operations for $E$ and for $F$
# each. It pays below $k = n/2$, and is linear in $n$ as long as $k$ stays the same. In a model of 12 layers with 12
# heads, an $E$ and an $F$ for each head make 288 matrices; shared by the heads of a layer (*headwise*), 24; with
# $E = F$ (*key-value*), 12; one for the whole model (*layerwise*), 1. The paper finds hardly any difference.
#
# ### 3.2 Break it: why it can't be causal
#
# Change the last token. In a causal model no earlier output may move. Can a mask after the scores save us?

# %%
def means(keys):  # (keys, n): each the mean of n / keys neighbors
    return torch.eye(keys).repeat_interleave(n // keys, dim=1) / (n // keys)


def masked_linformer(q, k, v, E, F):
    first = n // len(E) * torch.arange(len(E))  # of each mixture
    allowed = torch.arange(n)[:, None] >= first  # it has begun
    scores = (q @ (E @ k).mT / d**0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1) @ (F @ v)  # (…, n, d)


# %% jupyter={"source_hidden": true}
predict(
    "rank-causal", "Only the last token changes. With a mask after the scores and any E, how many of 255 earlier outputs move?",
    "none", "those of the last mixture", "all of them",
)

# %% [markdown]
# Change the last token, and count the earlier outputs that move:

# %%
q, k, v = one
other_k, other_v = k.clone(), v.clone()
other_k[..., -1, :] = other_v[..., -1, :] = 5.0  # another last token
for name, compute, E in (("no mask, means", linformer, means(32)),
                         ("masked, means", masked_linformer, means(32)),
                         ("masked, any E", masked_linformer, torch.randn(32, n))):
    change = compute(q, other_k, other_v, E, E) - compute(q, k, v, E, E)
    moved = change.abs().amax(dim=-1)[0, 0] > 1e-6  # (query,)
    print(f"{name:14}: {moved[:-1].sum()} of {n - 1} earlier outputs have moved")
predicted("rank-causal", "all of them", "Each mixture holds some of the last token.")

# %% [markdown]
# A mixture is one number per feature; the future in it can't be taken out again by a mask. Means of eight neighbors
# leak to the seven others only: a mixture of *a few neighbors* could wait until all of them are past. That is what
# section 6 does. **Padding** is the same trap on a smaller scale: unless its keys and values are set to zero *before*
# $E$ and $F$ mix them, they are in every mixture. And $E$ has $n$ columns: a model made for 512 tokens can't read the
# 513th.
#
# ### 3.3 Landmarks instead of learned mixtures
#
# Xiong et al. (2021) let the *text* say which directions matter. Nyströmformer cuts the sequence into $m$ segments.
# Their means are **landmarks**, $\tilde q$ and $\tilde k$. Three small softmaxes replace the large one ($\sqrt d$ is
# left out here):
#
# $$\text{softmax}(q k^\top) \approx \text{softmax}(q \tilde k^\top)\;\text{softmax}(\tilde q \tilde k^\top)^{+}\;
# \text{softmax}(\tilde q k^\top)$$
#
# Read it from the right: each landmark collects what it finds in the text, each token collects from the landmarks, and
# the inverse in the middle takes out what was counted twice. ($^+$ is the pseudo-inverse, which exists even where an
# inverse doesn't.) For a number $a$, $1/a$ is what $z \leftarrow z\,(2 - a z)$ converges to: with $a = 4$, from $z =
# 0.1$: 0.16, 0.218, 0.246, … 0.25. The paper uses such a rule for matrices, products only, six rounds:

# %%
def inverse(A, rounds=6):  # (…, m, m): Xiong et al., eq. 11, of third order
    rows, columns = A.abs().sum(-1).amax(-1), A.abs().sum(-2).amax(-1)
    Z, eye = A.mT / (rows * columns)[..., None, None], torch.eye(A.shape[-1])
    for _ in range(rounds):
        AZ = A @ Z
        Z = 0.25 * Z @ (13 * eye - AZ @ (15 * eye - AZ @ (7 * eye - AZ)))
    return Z


def softmax_of(a, b):
    return (a @ b.mT / a.shape[-1] ** 0.5).softmax(dim=-1)


def nystrom(q, k, v, m, invert=inverse):
    some_q = q.unflatten(-2, (m, -1)).mean(dim=-2)  # (…, m, d): landmarks
    some_k = k.unflatten(-2, (m, -1)).mean(dim=-2)
    collected = softmax_of(some_q, k) @ v  # (…, m, d)
    return softmax_of(q, some_k) @ (invert(softmax_of(some_q, some_k)) @ collected)

# %% [markdown]
# The errors with six rounds, with an exact pseudo-inverse, with one that leaves out singular values below 1% of the
# largest, and with more landmarks:

# %%
cut = partial(torch.linalg.pinv, rtol=0.01)  # small singular values count as 0
tried = {"8 landmarks": (8, inverse), "8, exact inverse": (8, torch.linalg.pinv),
         "8, exact, cut": (8, cut), "32 landmarks": (32, inverse)}
exact = [attention(*qkv) for qkv in recorded]
landmarks = {name: torch.stack([error(nystrom(*recorded[i], *how), exact[i])
                                for i in range(4)]) for name, how in tried.items()}

# %% jupyter={"source_hidden": true}
figures.errors_of_heads(landmarks, title="Landmarks fail in the first layer, and an exact inverse in all")

# %% [markdown]
# Nothing was trained, and yet eight landmarks are only 24 to 31% off in layer 3. More of them help little. The exact
# inverse is worse: where the core has singular values near zero, it makes them huge. Cut these off, and it is as good
# as six rounds, which stop before they count. The neighbor heads of the first layer are lost, as section 2 led us to
# expect. Landmarks are means of whole segments, future included, so Nyström isn't causal either.
#
# ## 4 Kernels: attention without a softmax
#
# ### 4.1 Move one bracket
#
# We have shorter matrices, and $P$ is still a softmax. What if we drop the softmax? Write attention for one query:
#
# $$o_i = \frac{\sum_j e^{q_i \cdot k_j / \sqrt d}\; v_j}{\sum_j e^{q_i \cdot k_j / \sqrt d}}
# \qquad\text{and now suppose}\qquad e^{q \cdot k / \sqrt d} \;\to\; \phi(q) \cdot \phi(k)$$
#
# for some **feature map** $\phi$ from $d$ to $m$ numbers. On paper, with one feature: $\phi(q) = 2$, keys with $\phi(k)
# = 1, 3$, values 10 and 20. Pair by pair: $2 \cdot 1 \cdot 10 + 2 \cdot 3 \cdot 20 = 140$. With the query outside: $2
# \cdot (1 \cdot 10 + 3 \cdot 20) = 140$, and the bracket, 70, serves every other query too. (Divide by $2 \cdot (1 + 3)
# = 8$.) In general:
#
# $$o_i = \frac{\phi(q_i) \cdot \big(\sum_j \phi(k_j)\, v_j^\top\big)}{\phi(q_i) \cdot \big(\sum_j \phi(k_j)\big)}
# \qquad (\phi(q)\,\phi(k)^\top)\,v = \phi(q)\,(\phi(k)^\top v)$$
#
# Nothing but a bracket has moved, and $n \times n$ is gone. Katharopoulos et al. (2020) take
# $\phi(x) = \text{elu}(x) + 1$, which is positive: otherwise the denominator could be zero, and weights negative.

# %% tags=["recorded"]
def phi(x):  # (…, d): as many features
    return F.elu(x) + 1


def linear_attention(q, k, v, features=phi):  # (…, n, d) each
    q, k = features(q), features(k)  # (…, n, m)
    S, z = k.mT @ v, k.sum(dim=-2, keepdim=True)  # (…, m, d), (…, 1, m)
    return (q @ S) / (q @ z.mT)  # (…, n, d) / (…, n, 1)

# %% [markdown]
# With the bracket on the left it must be the same. And the operations?

# %%
def bracket_left(q, k, v):
    weights = phi(q) @ phi(k).mT  # (…, n, n)
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


prove_equal(linear_attention(*one), bracket_left(*one), what="Both brackets")
for length in (256, 1024, 4096):
    qkv = torch.empty(3, 1, length, d, device="meta").unbind()  # shapes are enough
    ours, dense = operations(linear_attention, *qkv), operations(attention, *qkv)
    print(f"n = {length:4}: {ours:10,} operations; dense {dense / ours:3.0f} times")

# %% [markdown]
# And if we put it into our BERT's heads as it is? For comparison, the plain mean of all values:

# %%
plain = [v.mean(dim=-2, keepdim=True).expand_as(v) for _, _, v in recorded]
for name, outs in (("elu + 1", [linear_attention(*qkv) for qkv in recorded]),
                   ("mean of all values", plain)):
    wrong = torch.cat([error(out, right) for out, right in zip(outs, exact)])
    print(f"{name:18}: error {wrong.min():.2f} to {wrong.max():.2f}")

# %% [markdown]
# It is *not* an approximation of softmax attention: it is about as wrong as the plain mean. $e^x$ turns a gap of 5
# between scores into a factor of 150; a product of sums of $\text{elu} + 1$ is far flatter, and no key can take nearly
# everything here. A model can learn to live with this, but it has to learn it.
#
# ### 4.2 Causal: keep two sums
#
# A decoder's token $i$ may use the keys up to $i$ only. The sums become *running* sums, and one loop keeps them:

# %%
def masked(q, k, v):  # (n, d) each: quadratic, for comparison
    weights = (phi(q) @ phi(k).T).tril()  # (n, n)
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


def recurrent(q, k, v):
    S, z, out = torch.zeros(d, d), torch.zeros(d), []  # the state: (m, d) and (m,)
    for q_t, k_t, v_t in zip(phi(q), phi(k), v, strict=True):  # (d,) each
        S, z = S + k_t[:, None] * v_t, z + k_t
        out.append((q_t @ S) / (q_t @ z))
    return torch.stack(out)  # (n, d)


head = [x[0, 0] for x in one]  # (n, d) each
prove_equal(recurrent(*head), masked(*head), what="One token at a time and a mask")

# %% [markdown]
# ### 4.3 The circle closes
#
# Read `recurrent` again, and compare it with lesson 02:
#
# | | the state | one step |
# | --- | --- | --- |
# | recurrent net (lesson 02) | a vector $h$ | $h_t = g(W h_{t-1} + U x_t + b)$ |
# | linear attention | a matrix $S$ (and a vector $z$) | $S_t = S_{t-1} + \phi(k_t)\, v_t^\top$ |
#
# **A Transformer without the softmax is a recurrent net**, with a matrix for its state. Attention was invented because
# one vector was too little to remember a sentence by (lesson 02). Now we are back at a state of fixed size, which costs
# the same at every step. Two things are different. The state has $m \times d$ numbers, not $d$. And the step has no $g$
# and no $W$: it only adds, so no step has to wait for the one before.
#
# ### 4.4 A gate
#
# A sum that only grows remembers everything equally badly. A **gate** multiplies the state by a number
# $0 < \alpha_t \le 1$ before each addition ($\phi$ and the denominator are left out from here on):
#
# $$S_t = \alpha_t\, S_{t-1} + k_t v_t^\top \qquad o_t = S_t^\top q_t$$
#
# What $k_j v_j^\top$ has left at step $i$ is the product of all $\alpha$ in between: with $\alpha = ½$ three times, an
# eighth. So there is a parallel form again, with a mask that holds numbers instead of zeros and ones:
#
# $$o = (L \circ q k^\top)\, v \qquad L_{ij} = \alpha_{j+1} \cdots \alpha_i \ \text{ for } j \le i, \text{ else } 0$$

# %%
def fading(alpha):  # (n,): L, (n, n)
    passed = alpha.log().cumsum(dim=0)  # (n,): logarithm of α_1 … α_i
    return (passed[:, None] - passed).exp().tril()


q, k, v = head
alpha, S, out = torch.sigmoid(torch.randn(n) + 3), torch.zeros(d, d), []
for q_t, k_t, v_t, alpha_t in zip(q, k, v, alpha, strict=True):
    S = alpha_t * S + k_t[:, None] * v_t
    out.append(q_t @ S)
both = (fading(alpha) * (q @ k.T)) @ v, torch.stack(out)
prove_equal(*both, tolerance=1e-4, what="Mask and recurrence")

# %% [markdown]
# Lesson 33 goes on from here.
#
# ## 5 Performer: estimate the softmax at random
#
# ### 5.1 Random features
#
# $\text{elu} + 1$ is another mechanism. Is there a $\phi$ whose products *are* $e^{q \cdot k}$? With finitely many
# features, no. On average, yes. Draw $w$ from a normal distribution, and take
#
# $$\phi_w(x) = e^{\,w \cdot x - |x|^2 / 2} \qquad
# \mathbb{E}_w\big[\phi_w(q)\,\phi_w(k)\big] = e^{-(|q|^2 + |k|^2)/2}\;\mathbb{E}_w\big[e^{\,w \cdot (q + k)}\big]
# = e^{-(|q|^2 + |k|^2)/2}\; e^{|q + k|^2 / 2} = e^{\,q \cdot k}$$
#
# The step in the middle is the mean of a log-normal variable. With numbers, $q = k = 1$ and $w = 1$: $\phi = e^{0.5}$,
# and the product is $e^{1} = 2.7$; with $w = -1$ it is $e^{-3} = 0.05$. The mean over all $w$ is $e^{q \cdot k} = 2.7$.
# So draw $m$ vectors $w$, rows of a matrix $W$, and take the mean of $m$ products. That is the heart of the Performer's
# **FAVOR+** (Choromanski et al. 2021, § 2.3). All features are positive, so no denominator comes near zero. (Cosines
# and sines have the right mean as well, but may be negative; just where weights are small, their error is largest.) The
# usual $\sqrt d$ is divided out beforehand, $\sqrt[4]{d}$ from either side.

# %% tags=["recorded"]
def random_features(x, W):  # (…, n, d), (m, d): logarithms, (…, n, m)
    x = x / x.shape[-1] ** 0.25
    return x @ W.T - x.square().sum(dim=-1, keepdim=True) / 2


def performer(q, k, v, W):
    q, k = random_features(q, W), random_features(k, W)  # (…, n, m)
    q = (q - q.amax(dim=-1, keepdim=True)).exp()  # what is divided out cancels
    k = (k - k.amax(dim=(-1, -2), keepdim=True)).exp()  # one number for all keys
    return (q @ (k.mT @ v)) / (q @ k.sum(dim=-2, keepdim=True).mT)  # (…, n, d)

# %% [markdown]
# Is the mean right? One query, one key, eight features at a time, and 20,000 draws:

# %%
torch.manual_seed(0)
q, k = torch.randn(2, 1, d) / 2  # (1, d) each
W = torch.randn(20_000 * 8, d)
products = (random_features(q, W) + random_features(k, W)).exp()  # (1, 160,000)
estimates = products.view(20_000, 8).mean(dim=-1)  # (draw,)
print(f"exact {(q @ k.T / d**0.5).exp().item():.3f}; mean of 20,000 estimates",
      f"{estimates.mean():.3f} ± {estimates.std() / 20_000**0.5:.3f};",
      f"half of them are below {estimates.median():.3f}")

# %% [markdown]
# **Unbiased**, within what 20,000 draws can tell (± is the standard error of their mean). But the median shows the
# catch: most estimates are too small, and a few are enormous. More features help. How fast? And the paper's second
# trick (§ 2.4): rows of $W$ that are **orthogonal** to each other, in groups of $d$, with the lengths that normal
# vectors have.

# %%
def orthogonal(m, d):  # (m, d)
    groups = [torch.linalg.qr(torch.randn(d, d)) for _ in range((m + d - 1) // d)]
    rows = torch.cat([(Q * R.diagonal().sign()).T for Q, R in groups])[:m]
    return rows * torch.randn(m, d).norm(dim=1, keepdim=True)


torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 64, d).unbind()  # (1, 1, n, d) each
q, k = q / 3, k / 3  # scores of about ±0.1: nearly a mean
sizes, spread = (8, 32, 128, 512), {}
for name, draw in {"independent": torch.randn, "orthogonal": orthogonal}.items():
    spread[name] = [[error(performer(q, k, v, draw(m, d)), attention(q, k, v)).item()
                     for m in sizes] for _ in range(20)]  # draw → a number per size

# %% jupyter={"source_hidden": true}
figures.random_feature_errors(sizes, spread)

# %% [markdown]
# The error falls like $1/\sqrt m$, as any mean of random numbers does. Orthogonal rows lower it
# somewhat, most clearly from a full group of $d = 32$ on.
#
# ### 5.2 Where it fails
#
# These scores were tiny. Measured against the square of what it estimates, the variance of one product is $e^{|q +
# k|^2} - 1$: the exponential of something that attention makes large on purpose, to be sharp. Take our BERT's queries
# and keys, with one draw of 256 features:

# %%
W = orthogonal(256, d)  # (m, d)
for layer, (q, k, v) in enumerate(recorded, start=1):
    score, wrong = q @ k.mT / d**0.5, error(performer(q, k, v, W), attention(q, k, v))
    print(f"layer {layer}: scores ±{score.std():.1f}, least error {wrong.min():.2f}")

# %% [markdown]
# For a finished model that is hopeless: with this draw even its best head is nine tenths wrong. A Performer has to be
# trained as one (section 7.2), so that it can learn to keep its queries and keys short.

# %% [markdown]
# ## 6 Compression: fewer keys, later
#
# Linformer's mixtures could not be causal because each holds the whole text. What if a mixture holds only neighbors?
# Liu et al. (2018) wanted to write the beginnings of Wikipedia articles from the web pages that an article cites and
# from what a search finds: up to 11,000 tokens, in 2018. Their **memory-compressed attention** (§ 4.2.4) makes one key
# of every three, by a convolution of width 3 and stride 3, and one value likewise. Queries stay as they are. A
# convolution whose stride is its width is a product with windows:

# %%
f = 3


def compress(x, weight):  # (…, n, d), (f · d, d): (…, n / f, d)
    return x.unflatten(-2, (-1, f)).flatten(start_dim=-2) @ weight


torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 48, d).unbind()  # (1, 1, n, d) each
weight = torch.randn(f * d, d) / (f * d) ** 0.5  # (f · d, d)
kernel = weight.view(f, d, d).permute(2, 1, 0)  # (out, in, f), as in torch
prove_equal(compress(k, weight), F.conv1d(k[0].mT, kernel, stride=f).mT[None],
            what="Windows and a convolution")

# %% [markdown]
# What may query $i$ see of compressed keys? Window $w$ holds the tokens $3w$, $3w + 1$ and $3w + 2$. A window may be
# seen once it has *begun*, or once it has *ended*. Change the future and watch:

# %%
def memory_compressed(q, k, v, weight, first_seen=f - 1):
    keys, values = compress(k, weight), compress(v, weight)  # (…, n / f, d)
    query, window = torch.arange(q.shape[-2]), torch.arange(keys.shape[-2])
    allowed = query[:, None] >= f * window + first_seen  # (query, window)
    scores = (q @ keys.mT / d**0.5).masked_fill(~allowed, -torch.inf)
    out = scores.softmax(dim=-1) @ values  # nan where no window has ended yet
    return torch.where(allowed.any(dim=-1, keepdim=True), out, v[..., :1, :])


for name, first_seen in {"begun": 0, "ended": f - 1}.items():
    moved = 0
    for i in range(24):
        other_k, other_v = k.clone(), v.clone()
        other_k[..., i + 1 :, :], other_v[..., i + 1 :, :] = 5, 5  # another future
        new = memory_compressed(q, other_k, other_v, weight, first_seen)
        old = memory_compressed(q, k, v, weight, first_seen)
        moved += not torch.equal(new[..., i, :], old[..., i, :])
    print(f"windows that have {name}: another future moves {moved} of 24 outputs")

# %% [markdown]
# A window that has begun holds up to two tokens of the future, and a model that is trained with such a leak learns to
# copy them. Windows must have ended. The price: up to two of the *newest* keys are unseen, the query's own among them.
# (The first two queries see no window at all; ours get the first value.) A good reason not to use this layer alone.
#
# The other layer cuts the text into blocks of 256 tokens, and attends inside each (§ 4.2.4): it sees the newest keys
# exactly, and nothing beyond its block. Five layers, alternating **L**ocal and **M**emory-compressed, L M L M L, make
# the decoder **T-DMCA**. At the paper's 11,000 tokens L has 256/11,000 of a dense layer's operations, one in 43, and M
# a third. Together that is 3/43 + 2/3 = 0.74 instead of 5: nearly seven times fewer. (The convolutions are not
# counted.) M is still quadratic: it moves the wall by a factor, and doesn't take it away. That was enough for their
# GPUs of 16 GB, on which the decoder without it had come to an end at 4,000 tokens (§ 5.3). (Lesson 09 reads their
# table 4.)
#
# ## 7 Which one?
#
# ### 7.1 Fitted to real heads, on equal terms
#
# Now Linformer and compression, made for other models, may learn to imitate the heads of our
# BERT. Each makes 32 keys of 256, begins with means of eight neighbors, and gets 16,384 parameters per head, the same
# queries, keys and values of 148 texts, and the same 150 steps:

# %% tags=["recorded"]
WAYS = "Linformer", "compressed"


def imitator(way):  # two matrices for each of four heads, and what they compute
    if way == "Linformer":  # mix positions: means of eight, to begin with
        start = torch.eye(32).repeat_interleave(8, dim=1) / 8  # (32, n)
    else:  # mix the features of a window of eight
        start = torch.eye(32).repeat(8, 1) / 8  # (8 · d, d)
    A, B = start.repeat(2, 4, 1, 1).unbind()  # (head, …) each

    def compute(q, k, v):
        if way == "Linformer":
            return attention(q, A @ k, B @ v)
        k, v = (x.unflatten(-2, (-1, 8)).flatten(-2) for x in (k, v))  # (…, n/8, 8 · d)
        return attention(q, k @ A, v @ B)

    return (A, B), compute


# %% [markdown]
# `data/imitations.py` fits them, with three seeds. Errors on our twelve texts, which were not used for the fit, means
# of the seeds, next to section 2.3's nearest matrix of rank 32 for each text (on two of the twelve) and to section
# 3.3's 32 landmarks, which are not fitted:

# %% jupyter={"source_hidden": true}
fitted = json.loads((DATA / "imitations.json").read_text())
errors = {"nearest of rank 32": lost["rank 32"], "32 landmarks": landmarks["32 landmarks"]}
runs = {way: torch.tensor(list(seeds.values())) for way, seeds in fitted.items()}
errors |= {way: run.mean(dim=0) for way, run in runs.items()}  # (layer, head) each
apart = max(run.std(dim=0).max() for run in runs.values())
print(f"largest standard deviation between seeds: {apart:.2f}")
figures.errors_of_heads(errors, title="Landmarks, not fitted at all, beat both fits in most heads")

# %% [markdown]
# Of the two fits, compression is ahead in layers 2 to 4, by far in layers 3 and 4. But there the landmarks are nearer
# than both, for every head but one. In layer 1 three of the four heads are lost to all, as section 2 led us to expect;
# in all other heads all three are far from the nearest matrix of rank 32. Our explanation: *which* positions matter
# changes from text to text. $E$ is the same for all; a convolution weighs what the keys *say*; landmarks are made of
# the text itself. For a model trained without it, none of the three is a drop-in replacement.
#
# ### 7.2 Trained from the start
#
# Now each model is trained with its method. The task: $g$ of 64 people come to a feast, and each gets one of 64 rooms
# (some may share one). Eight questions follow: where is Juliet?

# %% tags=["recorded"]
def feast(size, guests, people=64, rooms=64):
    who = torch.rand(size, people).argsort(dim=-1)[:, :guests]  # different people
    room = torch.randint(rooms, (size, guests))  # (size, guests)
    asked = torch.rand(size, guests).argsort(dim=-1)[:, :8]  # (size, 8)
    return who, room, who.gather(1, asked), room.gather(1, asked)


# %% [markdown]
# A host embeds each guest as the sum of two vectors, each question as a name alone, and lets the questions attend to
# the guests:


# %% tags=["recorded"]
class Host(nn.Module):
    def __init__(self, mechanism, heads=2, d_model=64):
        super().__init__()
        self.who, self.room = nn.Embedding(64, d_model), nn.Embedding(64, d_model)
        self.query, self.key, self.value = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.mechanism, self.heads = mechanism, heads
        self.output = nn.Sequential(
            nn.Linear(d_model, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, who, room, asked):  # (batch, guests) twice, (batch, 8)
        x, question = self.who(who) + self.room(room), self.who(asked)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for each in (self.query(question), self.key(x), self.value(x)))
        return self.output(self.mechanism(q, k, v).transpose(1, 2).flatten(start_dim=2))


# %% [markdown]
# Each mechanism is a module that maps `q, k, v` to outputs. Linformer's $E$ and $F$ and the matrices of compression
# belong to the model and are trained with it; the Performer's features are drawn once:


# %% tags=["recorded"]
class Use(nn.Module):  # a function of q, k, v and of matrices that are learned
    def __init__(self, compute, *matrices):
        super().__init__()
        self.compute, self.learned = compute, nn.ParameterList(matrices)

    def forward(self, q, k, v):  # (batch, head, …, d) each
        return self.compute(q, k, v, *self.learned)


def windows_of_4(q, k, v, A, B):  # two matrices of (4 · d, d)
    k, v = (x.unflatten(-2, (-1, 4)).flatten(start_dim=-2) for x in (k, v))
    return attention(q, k @ A, v @ B)


def competing(q, k, v):  # features that compete: φ = softmax
    return linear_attention(q, k, v, lambda x: x.softmax(dim=-1))


# %% [markdown]
# The rivals, by name:


# %% tags=["recorded"] jupyter={"source_hidden": true}
NAMES = ("dense", "linear, elu + 1", "linear, softmax", "Performer, 64 features",
         "Linformer, n/4 keys", "compressed, 4 to 1")


def mechanism_of(name, guests):
    if name == "Performer, 64 features":
        W = torch.randn(64, 32)
        return Use(lambda q, k, v: performer(q, k, v, W))
    if name == "Linformer, n/4 keys":
        E, F_ = torch.randn(2, guests // 4, guests) / guests**0.5
        return Use(lambda q, k, v, E, F_: attention(q, E @ k, F_ @ v), E, F_)
    if name == "compressed, 4 to 1":
        return Use(windows_of_4, *(torch.eye(32).repeat(4, 1) / 4).repeat(2, 1, 1))
    return Use({"dense": attention, "linear, elu + 1": linear_attention,
                "linear, softmax": competing}[name])


# %% [markdown]
# What comes back is the fraction of right answers for 500 new feasts:


# %% tags=["recorded"]
def train(name, guests, seed=0, steps=250, heads=2, lr=4e-3):
    torch.manual_seed(seed)
    model = Host(mechanism_of(name, guests), heads)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), name):
        factor = min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = lr * factor
        *given, answer = feast(32, guests)  # (batch, guests) twice, (batch, 8) twice
        F.cross_entropy(model(*given).flatten(0, 1), answer.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.manual_seed(99)
    *given, answer = feast(500, guests)
    with torch.no_grad():
        return (model(*given).argmax(dim=-1) == answer).float().mean().item()


# %% jupyter={"source_hidden": true}
predict(
    "rank-feast", "With 64 guests, does linear attention with elu + 1 find every guest as dense attention does?",
    "no: their sum in a state can't be taken apart", "yes, but it learns more slowly", "yes, and as quickly",
)

# %% [markdown]
# Two of them live, with 64 guests and 250 batches:

# %% tags=["nbval-ignore-output"]
expect("dense, 64 guests", train("dense", 64), 0.97, 1)
expect("linear, 64 guests", train("linear, elu + 1", 64), 0.05, 0.3)

# %% [markdown]
# Is that the end of it, or only of 250 batches? `data/feast.py` has run all of them for 250 batches and for 1,000, with
# 8 to 64 guests and three seeds. A line is a seed:

# %% jupyter={"source_hidden": true}
feasts = json.loads((DATA / "feast.json").read_text())
titles = {"250": "After 250 batches, linear attention with elu + 1 looks hopeless",
          "1000": "After 1,000 batches, it finds nearly all"}
for batches, title in titles.items():
    display(figures.remembered(feasts["guests"][batches], (8, 16, 32, 64), xlabel="guests", title=title))
predicted("rank-feast", "yes, but it learns more slowly", "About 11% after 250 batches, 98 to 99% after 1,000.")

# %% [markdown]
# Guessing any room is right in 2% of the cases, one of the rooms of eight guests in about 14%. Dense attention looks
# each guest up, however many there are. Linear attention with $\text{elu} + 1$ seemed to have too small a state, and
# was only slow: *a loss that still falls says nothing of capacity*. Features that *compete* (a softmax over the 32 of
# them) make a state of the same size that learns faster. Our explanation: if most features of a key are nearly 0, two
# keys hardly overlap, and a sum is easy to take apart. The Performer, hopeless in a finished model, is good now that it
# is trained as one, with twice as many features; but one of its three draws finds only 77% of 64 guests.
#
# Linformer and compression end at a quarter, with 8 guests and with 64: what you get if you find the right mixture of
# four, and then guess which of its rooms is meant. Our explanation: names are at random positions, and a fixed recipe
# over *positions* can't know what to keep apart. This task is hard for them by design.
#
# So does a state of fixed size cost nothing? Two heads keep $2 \times 32^2$ numbers here. Divide the same width among
# more heads, and fewer are left: $4 \times 16^2$, $8 \times 8^2$, $16 \times 4^2$. With 64 guests, and 4,000 batches,
# so that none is merely slow:

# %% jupyter={"source_hidden": true}
figures.remembered(feasts["heads"], [64**2 // heads for heads in (16, 8, 4, 2)], xlabel="numbers in the state",
                   title="The smaller the state, the fewer guests it holds")

# %% [markdown]
# Dense attention does not mind: its cache holds all guests, whatever its heads. A state of 1,024 numbers loses one
# guest in thirty, one of 512 four in ten, one of 256 nearly three in four. Here the feature map hardly matters. **What
# doesn't fit into the state is gone.**
#
# ### 7.3 The library, and why most models still use dense attention
#
# `txlib.attention` has all of them, with masks, padding, shared heads and caches. The numbers are ours, on the real
# heads of layer 2; below them is how linear attention makes its features.

# %%
q, k, v = (x[:2] for x in recorded[1])  # (text, head, n, d) each
theirs = {"Nyström": library.Nystrom(32), "linear": library.LinearAttention(),
          "Performer": library.Performer(d, features=256)}
with torch.no_grad():
    theirs["Performer"].projection.copy_(W)
    ours = {"Nyström": nystrom(q, k, v, 32), "linear": linear_attention(q, k, v),
            "Performer": performer(q, k, v, W)}
    for name, mechanism in theirs.items():
        prove_equal(ours[name], mechanism(q, k, v), tolerance=1e-4, what=name)
try:
    library.Linformer(n, 32)(*one, library.causal())
except ValueError as message:
    print(message)
show_source(library.LinearAttention.features)

# %% [markdown]
# These methods are from 2018 to 2021, and the large models of the years after had dense attention. Why?
#
# - **Exactness.** What is not kept can't be looked up. Copying, quoting, using what the prompt says, all of that is a
#   feast with many guests.
# - **$n$ was not the problem yet.** A layer's other products cost as much as the square at $n = 6d_{\text{model}}$
#   (lesson 30), some 25,000 tokens for a width of 4096. Far below that, free attention makes a model hardly faster.
# - **The kernel.** FlashAttention (lesson 34) took away the $n \times n$ *memory*, with the exact numbers, and made
#   dense attention so fast that many methods with fewer operations were slower by the clock.
# - **The cost lay elsewhere**: in decoding, the cache hurts. Shared keys and values (lesson 16) often cut it by eight,
#   with hardly any loss and no other change.
#
# And now? Texts have grown to hundreds of thousands of tokens, and the state is back: the gated, forgetting kind. Most
# such models are *mixtures*: several layers with a state, then one with dense attention, which looks up what the others
# have let go (lesson 33).

# %% [markdown]
# ## 8 Quiz
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
# Right. $e^{q \cdot k}$ is not $\phi(q) \cdot \phi(k)$ for any finite number of features.
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
# ## 9 Summary
#
# - Attention of low rank: true for many heads, false for those that look at their neighbors, and the number of
#   directions grows with the text.
# - Linformer mixes keys over positions by a learned $k \times n$ matrix; neither causal nor free of its length. Nyström
#   lets means of the text itself be landmarks.
# - $\phi(q)(\phi(k)^\top v)$: move the bracket, and attention is a recurrent net with a matrix for its state. What
#   doesn't fit into the state is gone.
# - Random features are right on average, with an error of $1/\sqrt m$ that explodes with the size of the scores.
# - A convolution over keys must end before it is seen. It divides the cost by its stride.
# - No shortcut is good everywhere: what works in one layer fails in the next. A state that is large enough finds nearly
#   every guest, given time to learn; the smaller it is, the more it loses. A cache loses none.
#
# **Read** Wang et al. 2020, *Linformer*, [arXiv:2006.04768](https://arxiv.org/abs/2006.04768), sections 3 and 4. Xiong
# et al. 2021, *Nyströmformer*, [arXiv:2102.03902](https://arxiv.org/abs/2102.03902). Katharopoulos et al. 2020,
# *Transformers are RNNs*, [arXiv:2006.16236](https://arxiv.org/abs/2006.16236), section 3. Choromanski et al. 2021,
# *Rethinking Attention with Performers*, [arXiv:2009.14794](https://arxiv.org/abs/2009.14794), section 2. Liu et al.
# 2018, *Generating Wikipedia by Summarizing Long Sequences*, [arXiv:1801.10198](https://arxiv.org/abs/1801.10198),
# section 4.
#
# **Do** the exercise [32_low_rank](../exercises/exercise_32_low_rank.ipynb). Then go on to
# [33 A state instead of a cache](33_state.ipynb), which continues section 4: how to write to a state.
