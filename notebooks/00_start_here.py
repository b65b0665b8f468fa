# %% [markdown] lesson={"part": "", "builds": "a tour that runs: a lookup, a translator, a check, a leak; your track and your progress"}
# # Start here: ten minutes
#
# This course builds Transformers by hand. Before you choose a lesson, see four things that it will let you do. Click into
# a cell and press **Shift + Enter**: it runs, and the next cell is selected. Everything runs on your laptop, without a
# GPU and without the internet. The output you see now is from our machine; yours will replace it.

# %% [markdown]
# ## 1 Turn a query
#
# Attention is a lookup. Below, five keys are arrows, and each holds a value, from 10 to 50. A *query* is an arrow as well.
# A hard lookup returns the value of the nearest key. A soft lookup mixes all values, and the nearer a key, the more its
# value counts. Drag the tip of the query, or use the sliders: the hard answer jumps, the soft one glides.

# %%
import torch

from txcourse import explore

angle = torch.tensor([0.0, 30.0, 60.0, 90.0, 120.0]).deg2rad()
key = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (key, 2)
value = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])  # (key,)
explore.lookup(key, value, torch.tensor([0.45, 0.89]), scale=4,
               names=["0°", "30°", "60°", "90°", "120°"])

# %% [markdown]
# What glides can be learned: a small change of the query changes the answer a little, so there is a slope to follow. That
# is the whole reason for the soft lookup, and [lesson 03](03_attention.ipynb) builds it in five lines.

# %% [markdown]
# ## 2 Watch a translator look back
#
# This is a Transformer that was trained with this course on one CPU core, on dialogues of free computer games. Each row of
# the picture is an English word, at the moment when it was written; dark cells are the German words that one of the
# model's heads looked at.

# %%
from txcourse.tour import translate

translate("Die Orks haben die Menschen angegriffen!")

# %% [markdown]
# Nobody told it which word belongs to which. And the order differs: German puts the verb last, and the model jumps there
# for *attacked* and back for *humans*. Try a sentence of your own in the cell above (it knows orcs, kings and spaceships
# better than taxes). You build such a model in lessons 03 to 07.

# %% [markdown]
# ## 3 Fix one sign
#
# A model that writes must not see what it has not written yet. So each word gets a row that says which words it may look
# at. In the next cell, one sign is wrong.

# %%
from txlib import plots


def may_look(length):
    """True where a word, `query`, may look at another, `key`: an earlier one, or itself."""
    query = torch.arange(length)[:, None]  # (query, 1)
    key = torch.arange(length)[None, :]  # (1, key)
    return key >= query  # (query, key); here is the wrong sign


words = ["I", "like", "green", "tea"]
plots.heatmap(
    may_look(4).float(), rows=words, columns=words, size=0.5,
    title="Dark: the row's word may look there",
    xlabel="word looked at", ylabel="word that looks",
    alt="Four words by four. With the wrong sign, each looks at itself and later words.",
)

# %% [markdown]
# Every exercise has checks like the next one. Run it and read what it says. Then change the sign above, and run both cells
# again.

# %% tags=["nbval-ignore-output"]
from txcourse.tour import check

with check("first-mask") as show:
    for length in (1, 4, show.random_size(6, 9)):
        show(may_look(length), f"{length} words")

# %% [markdown]
# A check doesn't just say *wrong*. It compares your function with numbers recorded from right answers and from usual
# mistakes, and names yours. You may try as often as you like; nothing leaves your machine.

# %% [markdown]
# ## 4 A loss that is too good to be true
#
# Does that one sign matter? Two small models learn to guess the next character of Shakespeare's plays. They are equal but
# for their masks: one sees each character and the past; the other sees one character further. Everything runs without an
# error. **Guess first**: which of them has the lower loss in training? And which one writes better?

# %% tags=["nbval-ignore-output"]
from txcourse.tour import train_reader
from txlib.attention import Mask

right = train_reader(Mask(lambda query, key: key <= query), "right mask")
leaky = train_reader(Mask(lambda query, key: key <= query + 1), "leaky mask")

# %% [markdown]
# Have you decided? Then unfold the result (click on the three dots).

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
for name, reader in (("right", right), ("leaky", leaky)):
    print(f"{name}: loss in training {reader.training_loss:.2f}, "
          f"when nothing comes after {reader.writing_loss:.2f}")
print(f"all characters equally likely: {reader.chance_loss:.2f}")

# %% [markdown]
# The leaky model looks nearly perfect in training, because it *reads* the character that it should guess. When it writes,
# nothing comes after, and it does worse than if it called all characters equally likely. No error message tells you. In
# this course you break each part like this, measure what it was good for, and learn to see the symptom.

# %% [markdown]
# ## 5 Choose a track
#
# You need Python, some torch (`nn.Module`, `backward()`), matrix products and the chain rule. Each lesson builds one part
# from bare torch, breaks and measures it, and proves that the library behind the course computes the same. Its exercise has
# tasks with hints and checks.
#
# <!-- tracks -->
# | Track | Lessons | Hours to read | with exercises |
# | --- | --- | ---: | ---: |
# | Attention in a day | [03](03_attention.ipynb), [04](04_heads.ipynb), [05](05_positions.ipynb), [06](06_block.ipynb), [07](07_transformer.ipynb) | 8 | 13 |
# | Language models | [01](01_text.ipynb), [03](03_attention.ipynb), [04](04_heads.ipynb), [05](05_positions.ipynb), [06](06_block.ipynb), [08](08_gpt.ipynb), [09](09_sampling.ipynb), [10](10_decoding.ipynb), [13](13_todays_decoder.ipynb) | 13 | 24 |
# | Efficiency | [03](03_attention.ipynb), [04](04_heads.ipynb), [08](08_gpt.ipynb), [19](19_wall.ipynb), [20](20_sparse.ipynb), [21](21_low_rank.ipynb), [22](22_flash.ipynb) | 9 | 19 |
# | Everything | all | 34 | 64 |
# <!-- end of tracks -->
#
# All lessons, with the minutes to read + the minutes to practice:
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

# %% [markdown]
# ## 6 Where you are
#
# Run this cell whenever you come back. It draws the map of the course with your points and the next step.

# %% tags=["nbval-ignore-output"]
from txcourse.progress import progress

progress()

# %% [markdown]
# [Help](../HELP.md) explains how to hand in, where your work is, what to do if something fails, and the
# [notation](../HELP.md#notation). On to [lesson 01](01_text.ipynb), or to the first lesson of your track.
