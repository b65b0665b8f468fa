# %% [markdown] lesson={"part": "", "builds": "setup check, map, notation, your progress"}
# # Start here
#
# This course builds Transformers by hand. In each lesson you start from a problem, build the part that solves it out of
# bare torch, watch it work on real text, break it to see what it was good for, and then open the library behind the
# course and prove that both give the same numbers.
#
# **Every cell runs on a laptop**, without a GPU and without the internet. Click into the cell below and press
# **Shift + Enter**. It runs, and the next cell is selected. (What stands below a cell before you run it was printed on
# our machine. Yours takes its place: Lab opens a copy of your own, in `my_work`.)

# %% [markdown]
# ## 1 Is everything in place?

# %% tags=["nbval-ignore-output"]
import platform

import torch

from txlib.data import translation
from txlib.devices import default_device

print(f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
print(f"The lessons will compute on: {default_device()}")

# %% [markdown]
# The data come along as well. These sentences will be with you from lesson 01 on:

# %%
pairs = translation("games", max_words=12)
print(f"{len(pairs.train):,} sentence pairs to learn from, {len(pairs.test):,} to test on. For example:")
print(" | ".join(next(pair for pair in pairs.train if pair[1] == "The orcs have attacked the humans.")))

# %% [markdown]
# Now a computation with an answer that you can check in your head: attention with equal scores is a plain average.

# %%
from txlib.attention import attention

q, k = torch.zeros(1, 1, 1, 4), torch.randn(1, 1, 3, 4)           # (batch, heads, length, head_dim): a query of zeros
v = torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)                 # (batch, heads, length, 1)
print("the average of 1, 2 and 6 is", attention(q, k, v).item())

# %% [markdown]
# If all three cells printed what they promise, you are ready. If one complains, [Help](../HELP.md) has the usual
# reasons.

# %% [markdown]
# ## 2 The course
#
# <!-- lessons -->
# | Lesson | What you build | | Minutes |
# | --- | --- | --- | ---: |
# | **I Attention** | | | |
# | [01 From text to tensors](01_text.ipynb) | bytes, byte-pair encoding, embeddings | [exercise](../exercises/exercise_01_text.ipynb) | 65 + 65 |
# | [02 Sequence to sequence](02_seq2seq.ipynb) | recurrent nets, gates, Bahdanau's attention | [exercise](../exercises/exercise_02_seq2seq.ipynb) | 90 + 75 |
# | [03 Attention as a soft lookup](03_attention.ipynb) | a soft lookup: queries, keys, values, scaling, masks | [exercise](../exercises/exercise_03_attention.ipynb) | 55 + 75 |
# | [04 Many heads, self- and cross-attention](04_heads.ipynb) | multi-head attention and cross-attention | [exercise](../exercises/exercise_04_heads.ipynb) | 100 + 75 |
# | [05 Where am I? Positions](05_positions.ipynb) | sinusoidal, learned, relative, rotary, ALiBi | [exercise](../exercises/exercise_05_positions.ipynb) | 90 + 65 |
# | [06 The block: residual, normalisation, feed-forward](06_block.ipynb) | residuals, normalization, feed-forward | [exercise](../exercises/exercise_06_block.ipynb) | 110 + 65 |
# | [07 The encoder–decoder Transformer, trained on real translation](07_transformer.ipynb) | encoder and decoder, trained to translate | [exercise](../exercises/exercise_07_transformer.ipynb) | 95 + 65 |
# | **II Language models** | | | |
# | [08 GPT: guess the next token](08_gpt.ipynb) | next-token prediction, trained on Shakespeare; GPT-3's table | [exercise](../exercises/exercise_08_gpt.ipynb) | 65 + 80 |
# | [09 Sampling: from probabilities to text](09_sampling.ipynb) | every sampler drawn, tasks as text to continue, in-context learning | [exercise](../exercises/exercise_09_sampling.ipynb) | 105 + 85 |
# | [10 Decoding fast: the same text in less time](10_decoding.ipynb) | the cache, batches, fewer bits, speculative decoding | [exercise](../exercises/exercise_10_decoding.ipynb) | 80 + 85 |
# | [11 BERT: read both ways](11_bert.ipynb) | masked words and next sentences: pre-training, vectors in context | [exercise](../exercises/exercise_11_bert.ipynb) | 70 + 75 |
# | [12 Fine-tuning: one encoder, many tasks](12_finetuning.ipynb) | one encoder, five tasks; what attention looks at; three architectures | [exercise](../exercises/exercise_12_finetuning.ipynb) | 85 + 70 |
# | [13 Today's decoder: from GPT-2 to Llama](13_todays_decoder.ipynb) | RMSNorm, SwiGLU, rotary, grouped and latent queries; a real Llama loaded by hand | [exercise](../exercises/exercise_13_todays_decoder.ipynb) | 100 + 75 |
# | [14 Mixture of experts](14_experts.ipynb) | routing, collapse and its cures, compute per token | [exercise](../exercises/exercise_14_experts.ipynb) | 85 + 70 |
# | [15 The Universal Transformer](15_universal.ipynb) | one block as a loop, halting for each position, chains deeper than in training | [exercise](../exercises/exercise_15_universal.ipynb) | 75 + 75 |
# | **III Beyond text** | | | |
# | [16 Vision: pixels as tokens](16_vision.ipynb) | pixels as tokens, non-local blocks, local attention against convolution, the Vision Transformer; what each is told about pictures | [exercise](../exercises/exercise_16_vision.ipynb) | 105 + 85 |
# | [17 Music: distances that mean something](17_music.ipynb) | chorales as tokens, distances that mean something, skewing as arithmetic on addresses, a chorale finished and heard | [exercise](../exercises/exercise_17_music.ipynb) | 90 + 90 |
# | [18 Sets and arrays](18_arrays.ipynb) | invariance, Deep Sets, the Set Transformer, learned clustering; the Perceiver for pixels, bytes and both; Perceiver IO | [exercise](../exercises/exercise_18_arrays.ipynb) | 100 + 100 |
# | **IV Efficiency** | | | |
# | [19 The quadratic wall](19_wall.ipynb) | what a block costs, counted and measured; the table of 2017 row by row; why contexts ended at 512 | [exercise](../exercises/exercise_19_wall.ipynb) | 80 + 80 |
# | [20 Sparse patterns](20_sparse.ipynb) | windows, gaps, global tokens, random blocks: drawn, counted, run block by block; what each of them loses | [exercise](../exercises/exercise_20_sparse.ipynb) | 90 + 110 |
# | [21 Low rank, kernels, compression](21_low_rank.ipynb) | Linformer, Nyström, linear attention as a recurrent net, Performer, T-DMCA | [exercise](../exercises/exercise_21_low_rank.ipynb) | 95 + 80 |
# | [22 FlashAttention](22_flash.ipynb) | softmax in one pass, tiles, memory measured, a Triton kernel line by line | [exercise](../exercises/exercise_22_flash.ipynb) | 65 + 95 |
# | [23 Training at scale](23_scale.ipynb) | where memory goes, 16 bits, checkpointing; four ways to split a model over processes; scaling laws, and what a run costs | [exercise](../exercises/exercise_23_scale.ipynb) | 130 + 100 |
# <!-- end of lessons -->
#
# Each lesson says which earlier ones it rests on. **You need** Python, some torch (`nn.Module`, `backward()`), matrix
# products and the chain rule. Begin with [01](01_text.ipynb), or, if you came for attention, with [03](03_attention.ipynb).

# %% [markdown]
# ## 3 Notation
#
# The same letters in the whole course, in formulas and in code. (In attention $V$ is the values; as a size, $V$ is the vocabulary's.)
#
# | Formula | In code | Meaning |
# | --- | --- | --- |
# | $n$ | `n`, `length` | number of tokens in a sequence |
# | $m$ | `m` | number of tokens in the memory, when that is another sequence |
# | $d_{\text{model}}$ | `d_model` | width of a token's vector between the layers |
# | $h$ | `heads` | number of heads |
# | $d_k$ | `d_k`, `head_dim` | width of one head's queries and keys, $d_{\text{model}} / h$ |
# | $d_v$ | `d_v` | width of one head's values, mostly equal to $d_k$ |
# | $d_{\text{ff}}$ | `d_ff` | width in the middle of the feed-forward network |
# | $L$ | `layers` | number of blocks in a stack (the paper's $N$; from lesson 08 on, $N$ counts parameters, in 14 experts) |
# | $V$ | `vocab_size` | number of tokens in the vocabulary |
# | $Q, K, V$ | `q`, `k`, `v` | queries, keys, values, one row per token |
# | logit | `logits` | a score before the softmax: of a key, or of a token of the vocabulary |
# | $\alpha_{ij}$ | `weight[i, j]` | what query $i$ takes from key $j$; each row sums to 1 |
#
# Three habits go with it:
#
# - **The batch comes first**: tensors are (batch, length, d_model), and inside attention (batch, heads, length, head_dim).
# - **The softmax runs along the keys**, the last axis of the scores.
# - **In a mask, `True` means may attend.**
#
# Lines that make a tensor say its shape at their end, like `# (query, key)`.

# %% [markdown]
# ## 4 How exercises work
#
# Each lesson ends with an exercise: a notebook with a few tasks. A task has a prompt, three hints that you may fold out,
# a function to fill in, and a check. **The check does not only say wrong.** It knows the usual mistakes, and tells you
# which one it was. For a mask that is the wrong way
# round it says, for example:
#
# > **✗ The causal mask: not yet (0 of 2 points)**
# >
# > This lets each query see the *future*. Row 0 is the first query: it may see one key only.
#
# Check as often as you like: only your best result counts. Nothing leaves your machine. To check all tasks at once,
# press ▸▸ at the top of the notebook: it restarts the kernel and runs every cell.
#
# The last cell of an exercise counts your points and names the next step. As soon as you have tried a task, it also leads
# to a worked solution. Whether you look, and when, is up to you. If you take the course with somebody, that cell says how
# to hand in: save the notebook (Ctrl+S), then run `%submit` in a cell of its own below.
#
# ## 5 Where are you, and what is next?
#
# Every check writes its result into a file beside the course. Run this cell whenever you come back: it draws the map of
# the course, with your points, your place on it, the next step, and the hours that are left.

# %% tags=["nbval-ignore-output"]
from txcourse.progress import progress

progress()

# %% [markdown]
# Quizzes at the end of each lesson are for you alone. Fold out an answer only after you have chosen one.
#
# On to [lesson 01, from text to tensors](01_text.ipynb).
