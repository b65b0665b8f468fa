# %% [markdown] lesson={"part": "II Language models", "builds": "masked words and next sentences: pre-training, vectors in context"}
# # 14 · BERT: read both ways
#
# **After this lesson you will be able to**
#
# - say what ELMo, GPT and BERT may look at when they represent a word, and what each can and cannot do for it;
# - explain why a model that reads both ways cannot learn by predicting the next word;
# - build BERT's two pre-training tasks, its input and its encoder, and pre-train a small one on real text;
# - ask a pre-trained BERT for missing words, next to baselines that only count and twins that see one side only;
# - show that its vectors tell two meanings of one word apart.
#
# **You need** lessons 01 and 03 to 10. **It takes** about 60 minutes to read and try; after section 4 is a good place
# for a break. All cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a gap
#
# Here are verses of the Bible in today's English, each with one word missing. Which?

# %%
import re
from collections import Counter, defaultdict

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txcourse.lesson import show_source
from txlib import load_pretrained, plots
from txlib.data import pad, reviews, shipped, verses, word_senses
from txlib.devices import default_device
from txlib.layers import BlockConfig, LayerNorm, LearnedPosition, TokenEmbedding
from txlib.models.stack import Stack

# %% [markdown]
# The verses come in pairs, in the English of 1611 and in today's. `gaps` gives each word with its two neighbors.

# %%
here = default_device()
bible = verses()


def words(text):
    return re.findall(r"[\w’']+|[^\w\s]", text.lower())


def gaps(verse):
    line = ["^", *words(verse), "$"]  # ^ and $ mark start and end
    return list(zip(line, line[1:], line[2:]))


for number, word in ((477, "nets"), (101, "days"), (40, "children")):
    print(bible.test[number][1].replace(word, "____"))

# %% [markdown]
# You looked at the words *before* the gap and *after* it. A language model (lesson 10) sees only the words before. How
# much is lost? Three readers guess a word of a verse that they have not seen:
#
# - **left** knows the word before, and says what most often followed it;
# - **right** knows the word after, and says what most often preceded it;
# - **joined** multiplies the probabilities of both. If *left* gives *sea* 0.2 and *land* 0.1, *right* gives them 0.1
#   and 0.3, and both words are equally frequent, it compares 0.02 with 0.03 and says *land*. In general it compares
#   $p(w \mid \text{left})\, p(w \mid \text{right}) / p(w)$, which is exact if, given the word, the two sides are
#   independent.

# %%
alone, left, right = Counter(), defaultdict(Counter), defaultdict(Counter)
for _, verse in bible.train:
    for before, word, after in gaps(verse):
        alone[word] += 1
        left[before][word] += 1
        right[after][word] += 1
usual = max(alone, key=alone.get)


def best(counts):
    return max(counts, key=counts.get, default=usual)


# %% [markdown]
# Ask all of them about verses that none has counted; every fourth verse of the test split is enough.

# %%
def joined(before, after):
    shared = sorted(left[before].keys() & right[after].keys())
    return best({w: left[before][w] * right[after][w] / alone[w] for w in shared})


def guesses(before, after):
    return {"the most frequent": usual, "left": best(left[before]),
            "right": best(right[after]), "joined": joined(before, after)}


asked = [gap for _, verse in bible.test[::4] for gap in gaps(verse)]
filled = Counter()
for before, word, after in asked:
    for name, guess in guesses(before, after).items():
        filled[name] += guess == word
print(f"{len(asked):,} gaps")

# %% [markdown]
# How many did each get right?

# %% jupyter={"source_hidden": true}
parts = {name: filled[name] / len(asked) for name in guesses("^", "$")}
plots.bars(
    parts, xlabel="gaps filled correctly", format="{:.0%}", title="The reader that sees both sides guesses best",
    alt="Gaps filled: " + "; ".join(f"{name}: {part:.0%}" for name, part in parts.items()),
)

# %% [markdown]
# The right side alone tells a little more than the left, and together they are worth far more than either.
#
# A model that *writes* has only the left. But to decide whether a review is friendly, or which words are names, we have
# the whole text. Why read it with one eye shut?

# %% [markdown]
# ## 2 The idea in one picture
#
# Three models of 2018 differ in what each word's vector may know of the others:
#
# - **GPT** (Radford et al. 2018) is a Transformer with a causal mask: the left, and itself.
# - **ELMo** (Peters et al. 2018) is two recurrent networks (lesson 02). One reads from the left, one from the right,
#   each trained as a separate language model. Their vectors are *joined* at the end.
# - **BERT** (Devlin et al. 2019) is a Transformer without that mask: each word sees all words, in every layer.

# %% jupyter={"source_hidden": true}
figures.readers(
    title="ELMo joins two one-way readers at the end; BERT reads both ways in every layer",
    alt="Three small networks over four words, two layers each. GPT: arrows go from a word to "
    "itself and to those on its right. ELMo: two separate stacks, one with arrows to the right, "
    "one with arrows to the left, joined only at the top. BERT: arrows from every word to every "
    "word in both layers.",
)

# %% [markdown]
# **One word, two meanings.** Lesson 01 gave each word *one* vector. But *they left* and *in her left hand* are two
# words with one spelling. A vector that is computed from the whole sentence, a **contextual** vector, can tell them
# apart; section 6 measures how well ours do.

# %% [markdown]
# ## 3 Why not simply drop the mask?
#
# You did, in lesson 10 §5. The training loss fell far below that of the masked model, because the model copied the
# character on its right. There the missing mask was a mistake. Here it is the aim, so the *task* must change.
#
# Could we let each word see all others, but not itself? (Forget for a moment that the residual connection, lesson 06,
# carries each word past the attention.) With one layer that would do. With two?

# %%
others = torch.ones(6, 6) - torch.eye(6)  # (query, key): all but myself
twice = others @ others  # (query, key): in how many ways, over two layers
print(f"word 0 to itself: {others[0, 0]:.0f} in one layer, {twice[0, 0]:.0f} in two")

# %% [markdown]
# With two layers each word sees itself by way of the five others (the paper, §3.1). The cure is old, the *cloze* test
# of language classes (Taylor 1953): take words out of the *input*, and ask for them. What is not there cannot leak.

# %% [markdown]
# ## 4 Build it step by step
#
# ### 4.1 Masked language modeling
#
# The task is to fill gaps; the input, the model and the loss are still missing. First the tokens: lesson 01's byte-pair
# encoding, with 4,096 tokens learned from the Bible in both Englishes, from reviews of women's clothing, and from plays
# by Shakespeare. The last five are special. `[UNK]`, *unknown*, stands for what a vocabulary cannot write; ours is made
# of bytes and can write everything. `[MASK]` hides a token; `[CLS]` begins a row, `[SEP]` ends a sentence, and `[PAD]`
# fills a row up (section 4.3).

# %%
from txlib.text import BytePairEncoder

clothing = reviews("stars")
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
PAD, UNK, CLS, SEP, MASK = sorted(pieces.special_tokens.values())


def encode(text):
    return pieces.encode(" " + text, special_tokens=False)


print([pieces.token(id) for id in encode("The king's dress was unbelievable.")])
print(len(pieces), "tokens; special:", pieces.special_tokens)

# %% [markdown]
# Hide the `able` of *unbelievable*, and the rest gives it away. So later versions of BERT hide *whole words* (task 1 of
# the exercise). (Chinese and Japanese put no spaces between words; BERT's own tokenizer, *WordPiece*, makes every
# Chinese character a word.)

# %% [markdown]
# Choose 15% of the tokens. The model must guess these, and only these count in the loss:
#
# $$\text{loss} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde{x})$$
#
# $M$ is the set of chosen positions, $x$ the text and $\tilde{x}$ the text as the model sees it. If two tokens are
# chosen, and the model gives the right ones 0.5 and 0.1, the loss is $(0.69 + 2.30) / 2 = 1.50$. **Step 1: choose.**

# %%
torch.manual_seed(0)
verse = encode("And God called the dry land Earth, "
               "and the gathering together of the waters he called Seas.")
ids = torch.tensor([[CLS, *verse, SEP]])  # (batch, n)
ordinary = ids < PAD  # (batch, n): special tokens have the last numbers
chosen = (torch.rand(ids.shape) < 0.15) & ordinary  # (batch, n)
labels = ids.masked_fill(~chosen, -100)  # (batch, n): −100 is not counted
print("asked for:", [pieces.token(id) for id in ids[chosen].tolist()])

# %% [markdown]
# **Step 2: replace.** Of the chosen ones, 80% become `[MASK]`, 10% become a random token, and 10% stay what they are.
# So draw a number from 0 to 1, a `fate`, for each token: with 0.35 a chosen one is hidden, with 0.85 it becomes another
# one, with 0.95 it stays. `corrupt` does both steps. It draws anew, so its choice is not the one above.


# %%
def corrupt(ids, fraction=0.15):  # (batch, n)
    chosen = (torch.rand(ids.shape) < fraction) & (ids < PAD)  # (batch, n)
    labels = ids.masked_fill(~chosen, -100)  # (batch, n)
    fate = torch.rand(ids.shape)  # (batch, n)
    seen = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (batch, n)
    other = torch.randint(PAD, ids.shape)  # (batch, n): any ordinary token
    replaced = chosen & (fate >= 0.8) & (fate < 0.9)  # (batch, n)
    return torch.where(replaced, other, seen), labels


seen, labels = corrupt(ids)  # (batch, n) each
print("before:", *(pieces.token(id) for id in ids[0].tolist()))
print("after: ", *(pieces.token(id) for id in seen[0].tolist()))

# %% [markdown]
# **Why 80–10–10?** When BERT is *used*, there is no `[MASK]` in its input. A model that is asked only where it sees
# `[MASK]` needs no good vector for any other token. So some of the chosen ones do not look chosen. The *random* ones
# are to teach it that any token may be wrong, so each vector must hold what the context says; the *kept* ones, that
# what it sees is probably right all the same. Section 5.2 looks at what the model does with both. (It matters less than
# you might think: with 100% `[MASK]`, the paper's appendix C.2 loses nothing on sentence pairs, and a point at most in
# tagging.)

# %% [markdown]
# ### 4.2 Next-sentence prediction
#
# Some tasks ask about *two* sentences: does one answer the other, follow from it, say the same? So the second task
# gives the model two sentences, A and B. Half of the time B came after A, half of the time it is a random sentence from
# anywhere. Which? Ours are consecutive sentences of a review, or verses of the Bible:


# %%
def sentences(text):
    parts = re.findall(r"[^.!?]+[.!?]*", text)
    return [encode(each.strip()) for each in parts if len(each.split()) > 2]


def neighbors(documents):
    return [pair for document in documents for pair in zip(document, document[1:])]


chapters = [[encode(verse) for verse in side] for side in zip(*bible.train)]
sources = [neighbors(chapters),
           neighbors(sentences(review.text) for review in clothing.train)]
held_out = [neighbors([[encode(modern) for _, modern in bible.test]]),
            neighbors(sentences(review.text) for review in clothing.test)]
for name, pairs in zip(("Bible", "reviews"), sources):
    print(f"{name}: {len(pairs):,} pairs of neighbors")

# %% [markdown]
# To draw a pair, toss a coin: keep the true neighbor, or put another sentence in its place.

# %%
import random


def draw(sources, count, rng=random):
    found = []
    for _ in range(count):
        a, b = rng.choice(rng.choice(sources))
        _, other = rng.choice(rng.choice(sources))
        is_random = rng.random() < 0.5  # label 0: B follows A, 1: it does not
        found.append((a, other if is_random else b, int(is_random)))
    return found


for a, b, label in draw(sources, 6, random.Random(9)):
    print(["next", "random"][label], pieces.decode(a)[:36], "|", pieces.decode(b)[:36])

# %% [markdown]
# ### 4.3 The input: tokens, segments, positions
#
# One sentence or two, the input is always *one* row of tokens:
#
# $$\texttt{[CLS]}\; A\; \texttt{[SEP]}\; B\; \texttt{[SEP]}$$
#
# `[CLS]` represents no word, so its vector is free for what concerns the input as a whole. The *segment* says to which
# sentence a token belongs, 0 or 1.


# %%
def collate(pairs):  # pairs of (a, b); b is None for one sentence
    rows, segments = [], []
    for a, b in pairs:
        second = [] if b is None else [*b, SEP]
        rows.append([CLS, *a, SEP, *second])
        segments.append([0] * (len(a) + 2) + [1] * len(second))
    input_ids = pad(rows, PAD)  # (batch, n)
    real = (input_ids != PAD).long()  # (batch, n): 1 = a real token
    return input_ids, real, pad(segments, 0)  # (batch, n) each


a = encode("In the beginning was the Word.")
b = encode("The same was in the beginning with God.")
example, real, segments = collate([(a, b), (a, None)])  # (batch, n) each
print("tokens  ", *(pieces.token(id) for id in example[0].tolist()))
print("segments", *segments[0].tolist())
print("real    ", *real[1].tolist(), "  (the second row is one sentence)")

# %% [markdown]
# Each token, each position and each segment has a learned vector. The three are *added*, and then normalized. On paper:
# (1, 0) for the token, (0, 2) for its position and (1, 1) for its segment make (2, 3). The mean is 2.5 and the standard
# deviation 0.5, so the norm makes it (−1, 1).
#
# $$h_i = \text{norm}\big(\text{token}(x_i) + \text{position}(i) + \text{segment}(s_i)\big)$$

# %% jupyter={"source_hidden": true}
figures.input_sum(
    [pieces.token(id) for id in example[0].tolist()], segments[0].tolist(),
    title="The input is a sum of three learned vectors",
    alt="Two lines of boxes, one for each sentence, three rows in each: the token, its segment, A "
    "or B, and its position, counted from 0 through both. Plus signs stand between the rows.",
)

# %% [markdown]
# ### 4.4 The encoder
#
# The parts are the library's, built in lessons 05 to 08: embeddings, learned positions, norm, and a `Stack` of
# `layers` blocks. The blocks are *post-norm* as in the original Transformer, with gelu; `block` holds their sizes. The
# only mask hides padding. What comes out is one vector per token, `hidden`, and one for the whole, `pooled`: the vector
# of `[CLS]` after one more layer with tanh.


# %%
class Bert(nn.Module):
    def __init__(self, vocab_size, block, layers, max_length):
        super().__init__()
        d_model = block.d_model
        self.embedding = TokenEmbedding(vocab_size, d_model, scaled=False)
        self.segment = TokenEmbedding(2, d_model, scaled=False)
        self.position = LearnedPosition(max_length, d_model)
        self.embedding_norm = LayerNorm(d_model, eps=block.norm.eps)
        self.encoder, self.pooler = Stack(block, layers), nn.Linear(d_model, d_model)

    def forward(self, input_ids, attention_mask, token_type_ids):  # (batch, n) each
        x = self.embedding(input_ids) + self.segment(token_type_ids)
        x = self.embedding_norm(self.position(x))  # (batch, n, d_model)
        real = attention_mask.bool()[:, None, None, :]  # (batch, 1, 1, n)
        hidden = self.encoder(x, real)  # (batch, n, d_model)
        return hidden, self.pooler(hidden[:, 0]).tanh()


# %% [markdown]
# The head for masked tokens is one more layer, then the token embedding again, as output matrix (lesson 08):


# %%
class MaskedLMHead(nn.Module):
    def __init__(self, vocab_size, block):
        super().__init__()
        self.dense = nn.Linear(block.d_model, block.d_model)
        self.norm = LayerNorm(block.d_model, eps=block.norm.eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden, embedding):  # (count, d_model), (vocab, d_model)
        hidden = self.norm(F.gelu(self.dense(hidden)))  # (count, d_model)
        return hidden @ embedding.T + self.bias  # (count, vocab)


# %% [markdown]
# And the head for the next sentence: one linear layer on `pooled`, which gives two scores, for *next* and *random*. If
# it gives the right one of them 0.5, its loss is 0.69. If the loss of the masked tokens is 1.50, the sum is 2.19: both
# losses are simply added.


# %%
class PreTraining(nn.Module):
    def __init__(self, vocab_size, block, layers=2, max_length=224):
        super().__init__()
        self.base = Bert(vocab_size, block, layers, max_length)
        self.predictions = MaskedLMHead(vocab_size, block)
        self.next_sentence = nn.Linear(block.d_model, 2)

    def forward(self, batch, labels):  # labels (batch, n): −100: not asked
        hidden, pooled = self.base(*batch)  # (batch, n, d_model), (batch, d_model)
        asked = hidden[labels != -100]  # (count, d_model)
        tokens = self.predictions(asked, self.base.embedding.weight)
        return tokens, self.next_sentence(pooled)


# %% [markdown]
# ## 5 Pre-train it
#
# ### 5.1 Eighty steps
#
# We have a model and two tasks. Every step takes 24 pairs, each sentence cut at 24 tokens. The corruption is drawn anew
# each time, so the model hardly ever sees the same gaps twice.


# %%
def batch_of(sources, count, rng=random, longest=24):
    drawn = draw(sources, count, rng)
    batch = collate([(a[:longest], b[:longest]) for a, b, _ in drawn])
    seen, labels = corrupt(batch[0])  # (batch, n) each
    random_b = torch.tensor([label for *_, label in drawn])  # (batch,)
    return [x.to(here) for x in (seen, *batch[1:])], labels.to(here), random_b.to(here)


def losses_of(model, batch, labels, random_b):
    tokens, is_random = model(batch, labels)  # (count, vocab), (batch, 2)
    of_tokens = F.cross_entropy(tokens, labels[labels != -100])
    return of_tokens, F.cross_entropy(is_random, random_b)


# %% [markdown]
# The loop is that of lesson 10: Muon for the matrices inside the blocks, AdamW for the rest. The learning rate rises
# for 50 steps, since post-norm needs a warm-up (lesson 07), and then falls to 0.


# %%
from txlib.training import optimizers, warmup_linear


def pretrain(steps):
    torch.manual_seed(0)
    random.seed(0)
    model, history = PreTraining(len(pieces), block).to(here), []
    optimizer = optimizers(model, lr=3e-3, muon_lr=0.02, weight_decay=0.01)
    for step in progress(range(1, steps + 1), "pre-training"):
        optimizer.set_factor(warmup_linear(step, steps, warmup=50))
        both_losses = losses_of(model, *batch_of(sources, 24))
        optimizer.zero_grad()
        sum(both_losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append([loss.item() for loss in both_losses])
    return model.eval(), torch.tensor(history)  # (step, 2)


# %% [markdown]
# A small model, two blocks of width 128, for eighty steps:

# %% tags=["nbval-ignore-output"]
block = BlockConfig.of_sizes(d_model=128, heads=4, d_ff=512, norm_first=False,
                             norm_eps=1e-12, activation="gelu", position="learned")
young, history = pretrain(80)
last = history[-20:, 0].mean().item()  # the mean of the last 20 steps
expect("Loss of masked tokens at the end", last, 5.7, 7)

# %% [markdown]
# What has it learned? Each point is the mean of 20 steps. The dashed lines are the losses of a model that knows only
# how frequent each token is, and of a coin, $\ln 2$ (the axis on the right spans 0.04 nats only):

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
line = torch.tensor([id for pairs in sources for a, _ in pairs for id in a])
frequent = line.bincount(minlength=len(pieces)) / len(line)
entropy = -(frequent * frequent.clamp(min=1e-9).log()).sum().item()
start, end = history[:20].mean(dim=0).tolist(), history[-20:].mean(dim=0).tolist()
figures.pretraining(
    history, {"frequencies only": entropy, "a coin": 0.693},
    title="In eighty steps it learns which tokens are frequent, and next to nothing of sentences",
    alt=f"Two curves. The loss of masked tokens falls from {start[0]:.1f} to {end[0]:.1f}, near a dashed line at "
    f"{entropy:.1f}. That of the next sentence goes from {start[1]:.2f} to {end[1]:.2f}, above a dashed line at 0.69.",
)

# %% [markdown]
# On texts that were held out, how many of the tokens behind a `[MASK]` does it guess right? A number alone says
# nothing, so the **baselines** of section 1 answer as well, counted in the same training texts. `count` is lesson 10's
# table of pairs: a row says what follows the token on the left, a column what precedes the one on the right. (We start
# all counts at 0.01.)

# %%
line = torch.tensor([id for pairs in sources for a, _ in pairs for id in (SEP, *a)])
count = torch.full((len(pieces), len(pieces)), 0.01)  # (token, the one after it)
count.index_put_((line[:-1], line[1:]), torch.tensor(1.0), accumulate=True)
frequency = count.sum(dim=0)  # (token,)


def baselines(seen, row, column):  # (batch, n), (gap,), (gap,)
    before, after = seen[row, column - 1], seen[row, column + 1]  # (gap,) each
    from_left, from_right = count[before], count[:, after].T  # (gap, vocab) each
    product = from_left * from_right / frequency  # (gap, vocab)
    return {"most frequent": frequency[:PAD].argmax().expand(len(row)),
            "left": from_left.argmax(dim=-1), "joined": product.argmax(dim=-1)}


# %% [markdown]
# Ask all of them about the same 600 corrupted pairs, which none of them has read:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
batch, labels, random_b = batch_of(held_out, 600, random.Random(1))
answers = labels[labels != -100]  # (count,)
saw = batch[0][labels != -100]  # (count,): what the model sees there
true = answers[saw == MASK].cpu()  # (gap,)
row, column = (batch[0] == MASK).nonzero().cpu().T  # (gap,) each
hit_rate = {name: (guess == true).float().mean().item()
            for name, guess in baselines(batch[0].cpu(), row, column).items()}

# %% [markdown]
# Ask our model the same, and compare:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def guesses_of(model):
    return model(batch, labels)[0].argmax(dim=-1)  # (count,)


hits = (guesses_of(young) == answers)[saw == MASK]  # (gap,)
hit_rate["ours, 80 steps"] = hits.float().mean().item()
print(*(f"{name:16} {x:4.0%}" for name, x in hit_rate.items()), sep="\n")

# %% [markdown]
# This is a BERT in its first seconds: it does not yet beat the most frequent token. Masked tokens teach slowly. Our run
# asked for some 11,000 of them; the real one made a million steps, with 4,900 to 20,000 questions each (appendix A.2).
#
# ### 5.2 What patience buys
#
# So we ran the library's recipe, with four blocks instead of two, and with the plays added to the texts:
#
# ```
# txlib train bert --preset tiny --steps 11017
# ```
#
# It took 51 minutes on one processor core, and asked for 5.7 million tokens. The result is in
# `data/checkpoints/bert-tiny`; its names are those of *our* classes, so the weights fit. How many of the same masked
# tokens does this one guess?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = PreTraining(len(pieces), block, layers=4, max_length=256).to(here).eval()
trained = load_pretrained(shipped("bert-tiny"), dtype=torch.float32)
model.load_state_dict(trained.state_dict())
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
guesses_now = guesses_of(model)  # (count,)
hits = (guesses_now == answers)[saw == MASK]  # (gap,)
hit_rate["the recipe's"] = hits.float().mean().item()
expect("Right at [MASK]", hit_rate["the recipe's"], 0.37, 0.43)

# %% [markdown]
# Here it is next to the baselines:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.bars(
    hit_rate, xlabel="tokens behind [MASK] guessed correctly", format="{:.0%}",
    title="Given time, BERT beats counting",
    alt="; ".join(f"{name}: {x:.0%}" for name, x in hit_rate.items()),
)

# %% [markdown]
# And the next sentence? We ask twice: with B from anywhere, and with B from the book of A (Bible or reviews), which
# should be harder.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def next_sentence_right(sources, count=300):
    batch, labels, random_b = batch_of(sources, count, random.Random(2))
    return (model(batch, labels)[1].argmax(dim=-1) == random_b).float().mean().item()


expect("Next sentence, B from anywhere", next_sentence_right(held_out), 0.58, 0.74)
same_book = sum(next_sentence_right([each]) for each in held_out) / 2
expect("Next sentence, B from the same book", same_book, 0.54, 0.7)

# %% [markdown]
# About two thirds are right, where a coin gets half, and hardly fewer within one book. (With 300 pairs the standard
# deviation is three points.) The recipe drew its random sentences from the book of A, so style alone did not help it.
#
# But a coin is a weak rival, since neighbors share words. Count those: add up how rare each token is that A and B
# share, and say *next* where the sum reaches its median over training pairs. Ask about the same pairs:

# %% tags=["nbval-ignore-output"]
rarity = -(frequency / frequency.sum()).log()  # (token,)


def overlap(drawn):  # (pair,): how rare the tokens are that A and B share, in all
    both = [list({*a[:24]} & {*b[:24]}) for a, b, _ in drawn]
    return torch.tensor([rarity[shared].sum() for shared in both])


def overlap_right(train, test, count=300):
    least = overlap(draw(train, 2000, random.Random(1))).median()
    drawn = draw(test, count, random.Random(2))  # the pairs that the model got
    is_random = torch.tensor([label == 1 for *_, label in drawn])  # (pair,)
    return ((overlap(drawn) < least) == is_random).float().mean().item()


expect("Shared tokens, B from anywhere", overlap_right(sources, held_out), 0.58, 0.74)
same_book = sum(overlap_right([a], [b]) for a, b in zip(sources, held_out)) / 2
expect("Shared tokens, B from the same book", same_book, 0.54, 0.7)

# %% [markdown]
# Shared words do as well as BERT. So its two thirds are no sign that it follows what the sentences *say*.
#
# What does it do with random and kept tokens? Split the questions by what the model saw at the position:

# %% tags=["nbval-ignore-output"]
kinds = {"[MASK]": saw == MASK, "the token itself": saw == answers,
         "another token": (saw != answers) & (saw != MASK)}
for name, part in kinds.items():
    hit = (guesses_now == answers)[part].float().mean()
    repeated = (guesses_now == saw)[part].float().mean()
    print(f"saw {name:17} {part.float().mean():5.1%} of the questions:",
          f"right {hit:4.0%}, repeats what it saw {repeated:4.0%}")

# %% [markdown]
# It nearly always repeats a token that was kept. It hardly ever repeats a random one, and recovers the original nearly
# as often as at a `[MASK]`: it doubts what does not fit, which is what the random tokens were to teach.
#
# Now ask it yourself: one gap, four guesses. (A word's token holds the space before it. Where the word is
# hidden, this space must go as well: hence `rstrip`.)


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def fill(text, best=4):
    before, after = (pieces.encode(part.rstrip()) for part in text.split("____"))
    batch = [x.to(here) for x in collate([([*before, MASK, *after], None)])]
    tokens, _ = model(batch, torch.where(batch[0] == MASK, 0, -100))  # (1, vocab)
    return [pieces.token(id) for id in tokens[0].topk(best).indices.tolist()]


for text in (" And God ____ unto Moses.", " i love ____ dress!", " it is too ____ for"):
    print(f"{text:28} {'   '.join(fill(text))}")

# %% [markdown]
# Grammar, and the tone of each book: *spake* belongs to the Bible, *short* to the dresses.
#
# ### 5.3 One eye shut
#
# BERT beats counting. Is that due to reading *both ways*, or just to the training? Intervene. `data/one_eye.py` has
# trained **twins** of this model for 150 more steps, from its weights, with the same texts and gaps: one as before, one
# with a causal mask (left only), one with its mirror image (right only). A fourth reader multiplies what the two
# one-sided twins say, as *joined* did in section 1. That is ELMo's way.

# %% jupyter={"source_hidden": true}
predict(
    "one-eye-shut", "Two one-sided readers, joined at the end, against one that reads both ways in every layer:",
    "joined is as good: nothing is lost", "joined is better than one side, but behind both ways",
    "joined is no better than one side",
)

# %% [markdown]
# Gaps filled correctly in held-out texts of the recipe (plays included), after 150 steps, from three seeds:

# %%
import json

from txlib.paths import DATA

recorded = json.loads((DATA / "one_eye.json").read_text())["right"].values()
for side in ("left", "right", "joined", "both sides"):
    print(f"{side:11}", *(f"{run[side]['150']:.0%}" for run in recorded), sep="   ")
predicted("one-eye-shut", "joined is better than one side, but behind both ways")

# %% [markdown]
# With one eye shut, BERT fills only half to three fifths as many gaps, with the same texts, gaps and steps: the rest
# *does* come from the second side. (These texts include the plays, so compare the twins with each other, and not with
# the 40% of section 5.2.) Joined at the end, the two are far better than either alone, but still three to five points
# behind the twin that reads both ways in every layer. (How much is less certain: all began with weights that had read
# both ways, and 150 steps are few to relearn with one eye. Twins that were one-sided from the start may come closer.)
#
# ### 5.4 ELMo, run once (second reading)
#
# ELMo is two recurrent language models. Each is trained to predict the next token in its own direction: the right one
# is a left one that gets its text backward. A word's vector is the left one's state after reading it, joined to the
# right one's. Change the last word of a sentence. Which vectors move, here and in BERT? (That depends on the wiring,
# not on the training, so our two have random weights.)

# %% jupyter={"source_hidden": true}
predict(
    "elmo-halves", "When the last word changes, which vectors of the words before it move?",
    "none", "all, in one half", "all, in both halves",
)

# %% [markdown]
# Here are the two halves of each vector:


# %%
torch.manual_seed(0)
table = nn.Embedding(len(pieces), 64)
from_left, from_right = (nn.LSTM(64, 64, batch_first=True) for _ in range(2))


@torch.no_grad()
def elmo(ids):  # (1, n)
    left, _ = from_left(table(ids))  # (1, n, 64)
    right, _ = from_right(table(ids.flip(1)))  # (1, n, 64), backward
    return torch.stack([left, right.flip(1)])  # (half, 1, n, 64)


# %% [markdown]
# Change the last word, and list those that move:

# %%
ids = torch.tensor([encode("in her left hand she had a book")])  # (1, n)
other = torch.tensor([[*ids[0, :-1], *encode("fire")]])  # (1, n)
moved = (elmo(ids) != elmo(other)).any(dim=-1)[:, 0]  # (half, n)
for side, half in zip(("left", "right"), moved):
    print(f"{side} half:", *(pieces.token(id) for id in ids[0][half].tolist()))
rows = [x.to(here) for x in collate([(row[0].tolist(), None) for row in (ids, other)])]
with torch.no_grad():
    one, two = model.base(*rows)[0]  # (n + 2, d_model) each, with [CLS] and [SEP]
print(f"BERT: {(one != two).any(dim=-1).sum()} of {len(one)} vectors")
predicted("elmo-halves", "all, in one half", "BERT's vectors all move.")

# %% [markdown]
# The left half of *left* has never seen *hand*, and the right half has never seen *her*: no layer of ELMo can combine
# the two. In BERT each layer does. (The real ELMo has two layers of 4,096 units each way; each task learns how to
# weight them.)

# %% [markdown]
# ## 6 One word, two vectors
#
# Our BERT fills gaps. Can its vectors do more, such as tell meanings apart? `word_senses` has sentences with five words
# of two meanings each, as many for one meaning as for the other, found by a rule that reads a neighbor or two. (BERT
# met most of them in pre-training, but nothing told it a meaning.)

# %%
senses = word_senses()
for text, meaning in (senses["left"][0], senses["left"][-1]):
    print(meaning, text)

# %% [markdown]
# For each sentence, take the word's vector after each layer; layer 0 is the normalized sum that goes in. The baseline
# needs no layer: the mean of the two neighbors' rows in the embedding table.


# %%
@torch.no_grad()
def layers_of(text, word):
    input_ids, _, segments = (x.to(here) for x in collate([(encode(text)[:60], None)]))
    i = [pieces.token(id) for id in input_ids[0].tolist()].index("▁" + word)
    base = model.base
    tokens = base.embedding(input_ids)  # (1, n, d_model)
    x = base.embedding_norm(base.position(tokens + base.segment(segments)))
    vectors = [x[0, i]]  # (d_model,) each
    for layer in base.encoder.layers:
        x = layer(x)  # (1, n, d_model)
        vectors.append(x[0, i])
    baseline = (tokens[0, i - 1] + tokens[0, i + 1]) / 2  # (d_model,)
    return torch.stack([*vectors, baseline])  # (layers + 2, d_model)


# %% [markdown]
# Then ask: in which other sentence does the word have the most similar vector, by cosine (lesson 01)? Does it have the
# same meaning there? On paper, with four sentences of the meanings 0, 0, 1 and 1: if their nearest ones are the
# sentences 1, 0, 0 and 2, counted from 0, their meanings are 0, 0, 0 and 1, so three of four are right.


# %%
def same_sense(word):
    vectors = torch.stack([layers_of(text, word) for text, _ in senses[word]], dim=1)
    vectors = F.normalize(vectors, dim=-1)  # (layers + 2, text, d_model)
    cosine = vectors @ vectors.mT  # (layers + 2, text, text)
    cosine.diagonal(dim1=1, dim2=2).fill_(-1)  # no text is its own neighbor
    sense = torch.tensor([label for _, label in senses[word]], device=here)  # (text,)
    return (sense[cosine.argmax(dim=-1)] == sense).float().mean(dim=-1).tolist()


# %% [markdown]
# Print the fractions for each word, and check their means:

# %%
told = torch.tensor([same_sense(word) for word in senses])  # (word, layers + 2)
print(f"{'':7}layer 0  last layer  neighbors' embeddings")
for word, row in zip(senses, told):
    print(f"{word:6} {row[0]:7.0%} {row[-2]:11.0%} {row[-1]:22.0%}")
means = told.mean(dim=0).tolist()  # (layers + 2)
expect("Same meaning, last layer, mean of five words", means[-2], 0.85, 1)
expect("Same meaning, the neighbors' embeddings", means[-1], 0.85, 1)

# %% [markdown]
# The figure has the means after each layer:

# %% jupyter={"source_hidden": true}
picture = plots.lines(
    {"BERT's vector": (range(5), means[:-1]), "neighbors' embeddings": ([0, 4], [means[-1]] * 2)},
    dashed=["neighbors' embeddings"], marker="o",
    title="After one layer, the nearest vector has the same meaning", xlabel="after layer",
    ylabel="same meaning (mean of five words)",
    alt="A line over layers 0 to 4: " + ", ".join(f"{x:.0%}" for x in means[:-1])
    + f". A dashed line at {means[-1]:.0%}, the neighbors' embeddings.",
)
picture.axes[0].lines[1].set_marker("")  # a baseline has no layers
picture

# %% [markdown]
# In layer 0 two vectors of a word differ only by their positions, and even these are right in two cases of three. After
# one layer, the nearest vector nearly always has the same meaning. But so does the baseline's, and no wonder: the rule
# that found the meanings read a neighbor or two. Lesson 15 asks a harder question, with only two labeled sentences
# per meaning. There BERT wins clearly.

# %% [markdown]
# ## 7 The library, and what it costs
#
# `txlib.models` has the encoder and both pre-training heads, with the same names. A head says how to turn the encoder's
# output into scores, and these into a loss:

# %%
from txlib.models import BertForPreTraining, Encoder

show_source(BertForPreTraining.score, BertForPreTraining.loss)

# %% [markdown]
# In section 5.2 the library loaded the recipe's model, `trained`, and ours got its weights. Same weights, same numbers?

# %%
seen, masked = corrupt(example)  # (batch, n) each, the two rows of section 4.3
rows = [x.to(here) for x in (seen, real, segments)]
with torch.no_grad():
    theirs = trained.to(here).eval()(*rows)
    tokens, is_random = model(rows, masked.to(here))
logits = theirs.prediction_logits[masked.to(here) != -100]  # (count, vocab)
found = theirs.seq_relationship_logits  # (batch, 2)
prove_equal(tokens, logits, tolerance=1e-4, what="The logits of the masked tokens")
prove_equal(is_random, found, tolerance=1e-4, what="Those of next sentence")

# %% [markdown]
# And the real sizes? Each block has $12 d^2 + 13 d$ parameters (lesson 06), and each token, position and segment $d$;
# then there are a norm and the pooler. On torch's *meta* device models have shapes, but no memory.

# %%
from txlib.models.sizes import BERT

for name, sizes in BERT.items():
    d, rows = sizes.block.d_model, sizes.vocab_size + 512 + 2
    formula = sizes.layers * (12 * d**2 + 13 * d) + rows * d + 2 * d + d**2 + d
    with torch.device("meta"):
        built = sum(weight.numel() for weight in Encoder(sizes).parameters())
    print(f"BERT-{name:5} formula {formula:11,}   built {built:11,}")

# %% [markdown]
# (The paper rounds to 110 M and 340 M.)
#
# **Signal.** A GPT is asked for every token of a text, a BERT for 15% of them, at nearly the same cost. All the same,
# it overtakes a left-to-right model almost at once when both are fine-tuned for a task (the paper's appendix C.1, on
# MNLI).
#
# **Writing.** A GPT that writes one more token keeps the keys and values of all earlier ones (lesson 13). In BERT a new
# last word moves *all* vectors before it (section 5.4), so each new token costs a pass over everything. Nor can BERT
# easily say how likely a whole text is. It reads; it does not write.
#
# **What are such models for**, when chat models write? For everything that needs one answer per *text*, millions of
# times: sorting, filtering, tagging, and above all *finding*. An encoder that gives texts about the same subject
# similar vectors is an *embedding model* (Reimers and Gurevych 2019), such as MiniLM of lesson 01.
#
# <details><summary>Second reading: after BERT</summary>
#
# **RoBERTa** (Liu et al. 2019) drops the next sentence, draws new masks at each pass, trains longer on more text, and
# is better. **ELECTRA** (Clark et al. 2020) lets a small model replace tokens, and trains the large one to say for
# *every* token whether it was replaced: signal from 100%, not 15%.
#
# **ModernBERT** (Warner et al. 2024) is what a BERT looks like today: the parts of lesson 16 (pre-norm, rotary
# positions, gated feed-forward, no biases), 30% of the tokens hidden, no next sentence, two trillion tokens, and 8,192
# of them at once, since two layers in three look only 64 tokens to either side. (BERT's own limit is 512, the rows of
# its table of positions.)
#
# </details>

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A two-layer encoder without any mask is trained to predict the next token. Its training loss goes to 0. Why?**
#
# <details><summary>A. It has overfitted: the text is too small</summary>
#
# It would do the same on an endless text. Nothing is memorized.
# </details>
# <details><summary>B. Each position reads the token on its right, which is its own label</summary>
#
# Right. Copying solves the task perfectly, and is useless where there is no right side.
# </details>
# <details><summary>C. Both ways together really know the next token that well</summary>
#
# They know it because they *see* it. At the end of the text, where there is nothing to see, they don't.
# </details>
#
# **2. A batch has 10,000 ordinary tokens. How many become `[MASK]`, on average, and how many count in the loss?**
#
# <details><summary>A. 1,500 and 1,500</summary>
#
# 1,500 are chosen. But only 80% of those become `[MASK]`.
# </details>
# <details><summary>B. 1,200 and 1,200</summary>
#
# 1,200 become `[MASK]`. The random and the kept ones are asked for as well.
# </details>
# <details><summary>C. 1,200 and 1,500</summary>
#
# Right: 15% are chosen and count, 80% of them are masked.
# </details>
#
# **3. You append one token to a text. Which vectors of the earlier tokens change, in a GPT and in a BERT?**
#
# <details><summary>A. None in either</summary>
#
# In BERT all earlier tokens see the new one.
# </details>
# <details><summary>B. None in the GPT, all in the BERT</summary>
#
# Right. So only the GPT can keep its keys and values.
# </details>
# <details><summary>C. All in both</summary>
#
# Not in the GPT: the causal mask hides the new token from all earlier ones.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - GPT conditions on the left, ELMo joins two one-way readers at the end, BERT reads both ways in every layer.
# - A model that reads both ways sees the next token. So BERT is asked for 15% of the input, which is hidden: 80% of it
#   `[MASK]`, 10% random, 10% kept.
# - The input is `[CLS] A [SEP] B [SEP]`, a sum of token, position and segment; the second task asks whether B follows
#   A.
# - With one eye shut, and 150 steps to get used to it, a twin of the same model fills little more than half as many
#   gaps; two such twins, joined at the end, make up for most of it, but not for all.
# - Its vectors are contextual: two meanings of one word get two vectors. (For our five words, two neighbors tell them
#   apart as well.)
# - The price: few answers per text read, and no writing.
#
# **Read** Devlin et al. 2019, *BERT*, [arXiv:1810.04805](https://arxiv.org/abs/1810.04805), section 3, figures 2 and 3,
# appendices A and C. Peters et al. 2018, *Deep contextualized word representations* (ELMo),
# [arXiv:1802.05365](https://arxiv.org/abs/1802.05365), section 3. Liu et al. 2019, *RoBERTa*,
# [arXiv:1907.11692](https://arxiv.org/abs/1907.11692), section 4. Clark et al. 2020, *ELECTRA*,
# [arXiv:2003.10555](https://arxiv.org/abs/2003.10555), section 2. Warner et al. 2024, *Smarter, Better, Faster, Longer*
# (ModernBERT), [arXiv:2412.13663](https://arxiv.org/abs/2412.13663), section 2. Reimers and Gurevych 2019,
# *Sentence-BERT*, [arXiv:1908.10084](https://arxiv.org/abs/1908.10084), section 3.
#
# **Do** the exercise [14_bert](../exercises/exercise_14_bert.ipynb). Then go on to
# [15 Fine-tuning](15_finetuning.ipynb), where this encoder goes to work.
