# %% [markdown] lesson={"part": "", "builds": "a tour that runs: a lookup, a translator, a check, a leak; your track and your progress"}
# # Start here: ten minutes
#
# Transformers are the networks behind today's chatbots and translators. This course builds them by hand, from bare
# torch. Before you choose a lesson, here are four things to try right now. Click into a cell and press
# **Shift + Enter**: it runs, and the next cell is selected. Everything runs on your laptop, without a GPU and without
# the internet. The output you see now is from our machine; yours will replace it.

# %% [markdown]
# ## 1 Turn a query
#
# At the heart of a Transformer is *attention*, a lookup. Below, five *keys* are arrows, each with a value, from 10 to
# 50. A *query* is an arrow as well. A hard lookup returns the value of the key closest in direction to the query. A
# soft lookup mixes all the values: the closer a key, the more its value counts. Move the first slider from 74 to 76
# degrees: the hard answer jumps from 30 to 40, the soft one glides. (If you see no sliders, run the cell. The picture
# shows the turn from 74 to 89 degrees.)

# %%
import torch

from txcourse import explore
from txlib import plots


def arrow(degrees):
    angle = torch.as_tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=-1)  # (…, 2), of length 1


key = arrow([0.0, 30.0, 60.0, 90.0, 120.0])  # (key, 2)
value = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])  # (key,)
explore.lookup(key, value, arrow(74.0), scale=4,
               names=["0°", "30°", "60°", "90°", "120°"])

# %% [markdown]
# How much does a key's value count? The dot product of two arrows says how close they are; times 4, so that the
# differences grow, it is the key's score. *Softmax* takes $e$ to the power of each score and divides by the sum of
# these powers. That gives each key its *weight*; all weights add up to 1. Here they are at 74 degrees:

# %%
score = 4 * key @ arrow(74.0)  # (key,)
weight = score.softmax(dim=-1)  # (key,)
print("weights:", [round(each, 2) for each in weight.tolist()])
print(f"soft answer: {weight @ value:.1f}, hard answer: {value[score.argmax()]:.1f}")

# %% [markdown]
# Here are both answers for each direction of the query:

# %% jupyter={"source_hidden": true}
turned = torch.linspace(0, 120, 241)
scores = 4 * arrow(turned) @ key.T  # (query, key)
both = {"hard": value[scores.argmax(dim=-1)], "soft": scores.softmax(dim=-1) @ value}
plots.lines({name: (turned.tolist(), answer.tolist()) for name, answer in both.items()},
            title="A soft answer has a slope everywhere", xlabel="direction of the query (degrees)", ylabel="answer",
            alt="The hard answer is a staircase from 10 to 50, the soft one a smooth curve through it.")

# %% [markdown]
# An answer that moves smoothly can be learned: there is a slope to follow. The hard answer is flat and then jumps.
# [Lesson 03](03_attention.ipynb) builds a soft lookup in four lines. In a model, the arrows are computed from words.

# %% [markdown]
# ## 2 Watch a translator look back
#
# This Transformer was trained with the course's own code, in under two hours on one CPU core, on dialogue from free
# computer games. (This sentence was in it.) Each row is an English word, or a piece of one, at the moment it is
# written. Dark cells show which German words the model looks at. It has many such lookups, called *heads*; we picked
# the one whose picture is easiest to read.

# %%
from txcourse.tour import translate

translate("Die Orks haben die Menschen angegriffen!")

# %% [markdown]
# It was never told which words belong together. Here German puts the main verb last, so the model jumps to the end for
# *have attacked* and back for *the humans*. Try other sentences in the cell above. It knows more about spaceships (*Wo
# ist das Raumschiff?*) than about taxes (*Ich zahle keine Steuern.*). You build such a model in lessons 03 to 09.

# %% [markdown]
# ## 3 Fix a mask
#
# A model that writes must not see what it has not written yet. So each word gets a row that says which words it may
# look at: itself and the words before it. (Itself, because the model guesses the *next* word from it.) The whole grid
# is called a *mask*. Something is wrong with this one:


# %%
from txcourse.tour import show_mask


def may_look(length):
    """True where a word, `query`, may look at a `key`: an earlier word, or itself,
    since it has been written; the words to come must stay hidden."""
    query = torch.arange(length)[:, None]  # (query, 1)
    key = torch.arange(length)[None, :]  # (1, key)
    return key >= query  # (query, key)


show_mask(may_look(4), "I like green tea")

# %% [markdown]
# Every exercise has checks like the next one. Run it and read what it says. Then repair `may_look` and run both cells
# again.

# %% tags=["nbval-ignore-output"]
from txcourse.tour import check

with check("first-mask") as show:
    for length in (1, 4, show.random_size(6, 9)):
        show(may_look(length), f"{length} words")

# %% [markdown]
# A check doesn't just say *wrong*: it names a mistake that it recognizes. Nothing that you write leaves your
# machine.

# %% [markdown]
# ## 4 A loss that is too good to be true
#
# Does a slip in a mask matter? Two small models learn to guess the next character of Shakespeare's plays. They differ
# only in their masks: in one, each character sees itself and everything before it; in the other, it also sees the next
# one. Their *loss* says how surprised they are by the character that comes next: 0 is certainty, and 4.1 is a blind
# guess among all 63 characters.
#
# Choose an answer, then go on.

# %% jupyter={"source_hidden": true}
from txcourse.lesson import predict, predicted

predict(
    "leak", "Which model has the lower loss in training, and which one writes better?",
    "the right one, in both", "the leaky one, in both", "the leaky one has the lower loss, the right one writes better",
    "there is hardly a difference",
)

# %% tags=["nbval-ignore-output"]
from txcourse.tour import train_reader

right = train_reader(ahead=0)
leaky = train_reader(ahead=1)

# %% [markdown]
# Guessed? Run the next cell; its code is folded. If its output is folded as well, click the three dots.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true, "source_hidden": true}
plots.lines({name: (range(20, 201), torch.tensor(reader.losses).unfold(0, 20, 1).mean(dim=-1).tolist())
             for name, reader in (("right", right), ("leaky", leaky))},
            title="The leaky model looks nearly perfect", xlabel="training step", ylabel="training loss (nats)",
            alt="Two training losses. The right model's falls to a little over 2, the leaky one's to about 0.06.")

# %% [markdown]
# Now let both write. This time there is no next character to peek at. A second loss measures just that: each
# model guesses the characters of an unseen play and is shown only what comes before them.

# %% tags=["nbval-ignore-output"]
for name, reader in (("right", right), ("leaky", leaky)):
    print(f"{name}: loss in training {reader.training_loss:.2f}, "
          f"without peeking {reader.writing_loss:.2f}")
    print(reader.write("ROMEO:"), end="\n\n")

# %% jupyter={"source_hidden": true}
predicted("leak", "the leaky one has the lower loss, the right one writes better")

# %% [markdown]
# In training, the leaky model *reads* the character that it should guess. When it writes, there is nothing to read, and
# it does about as badly as a blind guess. No error message warns you. In this course you break every part like this and
# learn to recognize the symptoms.

# %% [markdown]
# ## 5 Choose a track
#
# You need Python, some torch (`nn.Module`, `backward()`), matrix products, and the chain rule. Each lesson builds one
# part from bare torch, breaks and measures it, and checks that the course's library computes the same. Its exercise has
# tasks with hints and checks.
#
# <!-- tracks -->
# | Track | Lessons | Hours to read | with exercises |
# | --- | --- | ---: | ---: |
# | Attention | [03](03_attention.ipynb), [04](04_heads.ipynb), [05](05_positions.ipynb), [06](06_block.ipynb), [08](08_transformer.ipynb) | 5 | 10 |
# | Language models | [01](01_text.ipynb), [03](03_attention.ipynb), [04](04_heads.ipynb), [05](05_positions.ipynb), [06](06_block.ipynb), [10](10_gpt.ipynb), [11](11_sampling.ipynb), [12](12_prompting.ipynb), [13](13_decoding.ipynb), [16](16_todays_decoder.ipynb), [17](17_checkpoints.ipynb), [40](40_instructions.ipynb) | 12 | 25 |
# | Efficiency | [03](03_attention.ipynb), [04](04_heads.ipynb), [10](10_gpt.ipynb), [30](30_wall.ipynb), [31](31_sparse.ipynb), [32](32_low_rank.ipynb), [33](33_state.ipynb), [34](34_flash.ipynb) | 8 | 20 |
# | Everything | all | 37 | 77 |
# <!-- end of tracks -->
#
# If you are undecided, begin with [lesson 03](03_attention.ipynb): it takes the orcs' sentence apart, word by word. If
# you want everything in order, begin with [lesson 01](01_text.ipynb).

# %% [markdown]
# ## 6 Where you are
#
# Run this cell whenever you come back. It draws the map of the course, with your points and the next step.

# %% tags=["nbval-ignore-output"]
from txcourse.progress import progress

progress()

# %% [markdown]
# [Help](../HELP.md) explains how exercises work, where your work is saved, what to do if something fails, and the
# [notation](../HELP.md#notation).
