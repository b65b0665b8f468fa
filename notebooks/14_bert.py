# %% [markdown] lesson={"part": "II Language models", "builds": "masked words and next sentences: pre-training, vectors in context"}
# # 14 · BERT: read both ways
#
# **After this lesson you will be able to**
#
# - say what ELMo, GPT and BERT may look at when they represent a word, and what each can and cannot do for it;
# - explain why a model that reads both ways cannot learn by predicting the next word;
# - build BERT's two pre-training tasks, its input and its encoder, and pre-train a small one on real text;
# - ask a pre-trained BERT for missing words, and compare it with readers that only count;
# - show that its vectors tell two meanings of one word apart.
#
# **You need** lessons 01 and 03 to 10. **It takes** about 70 minutes to read and try; all cells together run in
# about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a gap
#
# Here are verses of the Bible in today's English. One word is missing in each. Which?

# %%
import random
import re
from collections import Counter, defaultdict

import torch
import torch.nn.functional as F
from torch import nn

from txlib import load_pretrained, plots
from txlib.attention import Mask, causal, full
from txlib.data import pad, reviews, verses
from txlib.layers import BlockConfig, LayerNorm, LearnedPosition, TokenEmbedding
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import shipped
from txlib.devices import default_device
from txlib.models.stack import Stack
from txlib.text import BytePairEncoder
from txlib.training.optimizers import optimizers

here = default_device()

# %% [markdown]
# The verses come in pairs, in the English of 1611 and in today's. `gaps` gives each word of a verse with its two
# neighbours; it is needed soon:

# %%
bible = verses()                                           # pairs: the English of 1611, and today's


def words(text):
    return re.findall(r"[\w’']+|[^\w\s]", text.lower())


def gaps(verse):                                                 # each word with its two neighbours
    line = ["^", *words(verse), "$"]                               # ^ and $ mark start and end
    return list(zip(line, line[1:], line[2:]))


for number, word in ((477, "nets"), (101, "days"), (40, "children")):
    print(bible.test[number][1].replace(word, "____"))

# %% [markdown]
# You looked at what stands *before* the gap, and at what stands *after* it. A language model (lesson 10)
# looks at what stands before, and nothing else. How much is lost? Let us not train anything yet, but count. Four
# readers guess a word of a verse that they have not seen:
#
# - **left** knows the word before, and says what most often followed it;
# - **right** knows the word after, and says what most often preceded it;
# - **joined** asks both, and multiplies what they say: $p(w \mid \text{left})\, p(w \mid \text{right}) / p(w)$. That
#   would be exact if, given the word, the two sides had nothing to do with each other;
# - **both** has counted what stood between *these two* neighbours. Where it never saw the two together, it does as
#   *joined*.

# %%
alone, left, right, both = Counter(), defaultdict(Counter), defaultdict(Counter), defaultdict(Counter)
for _, verse in bible.train:
    for before, word, after in gaps(verse):
        alone[word] += 1
        left[before][word] += 1
        right[after][word] += 1
        both[before, after][word] += 1
usual = max(alone, key=alone.get)


def best(counts):
    return max(counts, key=counts.get, default=usual)


def joined(before, after):
    shared = sorted(left[before].keys() & right[after].keys())
    return best({word: left[before][word] * right[after][word] / alone[word] for word in shared})


# %% [markdown]
# Ask all of them for words of verses that none has counted:

# %%
def counted(before, after):
    seen = both.get((before, after))
    return best(seen) if seen else joined(before, after)


readers = {
    "the most frequent": lambda before, after: usual,
    "left": lambda before, after: best(left[before]),
    "right": lambda before, after: best(right[after]),
    "joined": joined,
    "both": counted,
}

# %% [markdown]
# Every fourth verse of the test split is enough:

# %%
asked = [gap for _, verse in bible.test[::4] for gap in gaps(verse)]
right_guesses = {
    name: sum(read(before, after) == word for before, word, after in asked) / len(asked)
    for name, read in readers.items()
}
new = sum((before, after) not in both for before, _, after in asked) / len(asked)
print(f"{len(asked):,} gaps in unseen verses; in {new:.0%} the pair of neighbours is new")
plots.bars(
    right_guesses, xlabel="share of gaps filled correctly", format="{:.0%}",
    title="Who sees both sides guesses best",
    alt="; ".join(f"{name}: {share:.0%}" for name, share in right_guesses.items()),
)

# %% [markdown]
# The right side alone tells a little more than the left, and together they are worth far more than one of them. That
# *both* is hardly ahead of *joined* is the weakness of counting. Of the pairs of neighbours that it has met, it has met
# five in six only once or twice; a quarter of those that it is asked for, never. Few counts say little.
#
# For *writing*, only the left is there, and GPT makes the best of it. But to decide whether a review is friendly, or
# which words are names, the whole text is there. Why read it with one eye shut?

# %% [markdown]
# ## 2 The idea in one picture
#
# Three models of 2018, and what each word's vector may know of the other words:
#
# - **GPT** (Radford et al. 2018) is a Transformer with a causal mask: the left, and itself.
# - **ELMo** (Peters et al. 2018) is two recurrent networks: they read word by word, and carry a memory along. One
#   reads from the left, one from the right, and each is trained as a language model of its own. Their vectors are
#   *joined* at the end. Neither ever sees what the other saw.
# - **BERT** (Devlin et al. 2019) is a Transformer without that mask: each word sees all words, in every layer.

# %%
figures.readers(
    title="ELMo joins two one-way readers at the end; BERT reads both ways in every layer",
    alt="Three small networks over four words, two layers each. GPT: arrows go from a word to "
    "itself and to those on its right. ELMo: two separate stacks, one with arrows to the right, "
    "one with arrows to the left, joined only at the top. BERT: arrows from every word to every "
    "word in both layers.",
)

# %% [markdown]
# As masks (lesson 03), with a row for each word that asks. ELMo has no attention, but this is what it may know:

# %%
plots.mask(
    {
        "GPT: causal()": causal(),
        "ELMo, from the left": causal(),
        "ELMo, from the right": Mask(lambda query, key: query <= key),
        "BERT: full()": full(),
    },
    length=8, title="What each word may know of the others",
)

# %% [markdown]
# **Why it matters: one word, two meanings.** Lesson 01 gave each word *one* vector, whatever stands around it. But the
# *rest* of a dress is not the *rest* after work, and a coat that *fit* you is no bad *fit*. A vector that is computed
# from the whole sentence can tell them apart. ELMo's authors called it a *contextual* vector; section 6 measures how
# well ours do.

# %% [markdown]
# ## 3 Why not simply drop the mask?
#
# You did, in lesson 13 §6. Without its mask a language model's training loss fell to almost nothing, for it had learned
# to copy the character on its right. At the end of a text, where there is nothing on the right, it was far worse than
# the model that had never looked there. There the missing mask was a mistake. Here it is the aim, and so the *task*
# must change.
#
# Could we hide only the word itself, and let it see all others? Forget for a moment that the residual connection
# (lesson 06) carries each word past the attention. In one layer it would do. In two?

# %%
others = torch.ones(6, 6) - torch.eye(6)                         # (query, key): everyone but myself
twice = others @ others                            # (query, key): in how many ways, over two layers
print(f"ways from word 0 to itself: {others[0, 0]:.0f} in one layer, {twice[0, 0]:.0f} in two")

# %% [markdown]
# With several layers each word sees itself by way of the others, as the paper says (§3.1). The cure is old. It is what
# a teacher does in a language class, with a *cloze* test (Taylor 1953): take words out of the *input*, and ask for
# them. What is not there cannot leak.

# %% [markdown]
# ## 4 Build it step by step
#
# ### 4.1 Masked language modelling
#
# First we need words as numbers. Lesson 01's byte-pair encoding has a vocabulary of 4,096 tokens here, learned from the
# Bible in both Englishes, from reviews of women's clothing, and from plays of Shakespeare. It comes with a BERT that
# you will meet in section 5. The last five tokens are special. `[UNK]`, *unknown*, is for pieces that a vocabulary
# cannot write; ours is made of bytes and can write everything. The other four you will meet soon.

# %%
clothing = reviews("stars")                                        # Review(text, label)
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
PAD, UNK, CLS, SEP, MASK = sorted(pieces.special_tokens.values())


def encode(text):
    return pieces.encode(" " + text, special_tokens=False)  # also a first word follows a space


print([pieces.token(id) for id in encode("The king's dress was unbelievable.")])
print(len(pieces), "tokens; special:", pieces.special_tokens)

# %% [markdown]
# **Words without spaces.** Chinese and Japanese put none between words. Before BERT's own tokenizer, *WordPiece*, cuts
# a text at its spaces, it puts spaces around every Chinese character, so each is a word of its own. Ours falls back to
# bytes, three for most such characters. Here is the Bible's first line, *In the beginning God created the heavens and
# the earth*:

# %%
chinese = "起初，神创造天地。"
print(f"{len(chinese)} characters, {len(chinese.encode())} bytes, {len(encode(chinese))} tokens")

# %% [markdown]
# (The 28th token is the space that `encode` puts in front.) What you hide then matters: a missing byte of a character
# is far easier to guess than a missing word. Later versions of BERT hide *whole words*, all pieces of each. That is
# task 1 of the exercise.

# %% [markdown]
# Choose 15 % of the tokens. The model is to guess these, and only these count in the loss:
#
# $$\text{loss} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde{x})$$
#
# $M$ is the set of chosen positions, $x$ the text and $\tilde{x}$ the text as the model sees it. **Step 1: choose.**

# %%
torch.manual_seed(0)
verse = encode("And God called the dry land Earth, "
               "and the gathering together of the waters he called Seas.")
ids = torch.tensor([[CLS, *verse, SEP]])                           # (batch, n)
ordinary = ids < PAD                              # (batch, n): special tokens have the last numbers
chosen = (torch.rand(ids.shape) < 0.15) & ordinary                 # (batch, n)
labels = ids.masked_fill(~chosen, -100)                            # (batch, n): −100 is not counted
print("asked for:", [pieces.token(id) for id in ids[chosen].tolist()])

# %% [markdown]
# **Step 2: replace.** Of the chosen ones, 80 % become `[MASK]`, 10 % become a random token, and 10 % stay what they
# are. `corrupt` does both steps. It draws anew, so its choice is not the one above.


# %%
def corrupt(ids, share=0.15):                                      # (batch, n)
    chosen = (torch.rand(ids.shape) < share) & (ids < PAD)         # (batch, n)
    labels = ids.masked_fill(~chosen, -100)                        # (batch, n)
    dice = torch.rand(ids.shape)                                   # (batch, n)
    seen = ids.masked_fill(chosen & (dice < 0.8), MASK)            # (batch, n)
    other = torch.randint(PAD, ids.shape)                          # (batch, n): any ordinary token
    return torch.where(chosen & (dice >= 0.8) & (dice < 0.9), other, seen), labels


seen, labels = corrupt(ids)                                        # (batch, n) each
print("before:", *(pieces.token(id) for id in ids[0].tolist()))
print("after: ", *(pieces.token(id) for id in seen[0].tolist()))

# %% [markdown]
# Does it do what we said? Check the statistics on a million tokens.

# %%
torch.manual_seed(0)
many = torch.randint(PAD, (1000, 1000))                            # (batch, n)
seen, labels = corrupt(many)
in_loss = labels != -100                                           # (batch, n)
print(f"chosen {in_loss.float().mean():.1%}")
became = {"[MASK]": seen == MASK, "the same": seen == many,
          "another token": (seen != many) & (seen != MASK)}
for name, part in became.items():
    shares = part[in_loss].float().mean(), part[~in_loss].float().mean()
    print(f"{name:14} {shares[0]:5.1%} of the chosen, {shares[1]:4.0%} of the rest")

# %% [markdown]
# **Why 80–10–10?** When BERT is *used*, there is no `[MASK]` in its input. A model that is asked only where it sees
# `[MASK]` needs no good vector for any other token. So some of the chosen ones do not look chosen:
#
# - the *random* ones teach it not to trust what it sees. Any token may be wrong, so each vector must hold what the
#   context says;
# - the *kept* ones teach it that what it sees is nevertheless probably right.
#
# The random ones are 1.5 % of all tokens, too few to spoil the text. In section 5 you can measure what they taught.
# How much it matters in the end: less than one would think. In the paper's appendix C.2, 100 % `[MASK]` is as good
# for sentence pairs, and in tagging it costs half a point with fine-tuning, nearly a whole one with frozen vectors.

# %% [markdown]
# ### 4.2 Next-sentence prediction
#
# Some tasks ask about *two* sentences: does one answer the other, follow from it, say the same? So the second task
# gives the model two sentences, A and B. Half of the time B is the one that came after A, half of the time it is a
# random one. Which?
#
# Our sentences are real. Neighbours are two sentences of one review, or two verses of the Bible, one after the other.
# (The course has only verses of 5 to 25 words. So in two cases of five something is missing between the two, mostly a
# verse or two.) A random B comes from anywhere, as in the paper.


# %%
def sentences(text):
    parts = re.findall(r"[^.!?]+[.!?]*", text)
    return [encode(each.strip()) for each in parts if len(each.split()) > 2]


def neighbours(documents):
    return [pair for document in documents for pair in zip(document, document[1:])]


chapters = [[encode(verse) for verse in side] for side in zip(*bible.train)]  # two documents
sources = [neighbours(chapters), neighbours(sentences(review.text) for review in clothing.train)]
held_out = [neighbours([[encode(modern) for _, modern in bible.test]]),
            neighbours(sentences(review.text) for review in clothing.test)]
for name, pairs in zip(("Bible", "reviews"), sources):
    tokens = sum(len(a) + len(b) for a, b in pairs) // 2
    print(f"{name}: {len(pairs):,} pairs of neighbours, {tokens:,} tokens")


# %% [markdown]
# Drawing pairs is throwing a coin: keep the true neighbour, or put another sentence in its place.

# %%
def draw(sources, count, chance=random):
    found = []
    for _ in range(count):
        (a, b), (_, other) = (chance.choice(chance.choice(sources)) for _ in range(2))
        is_random = chance.random() < 0.5
        found.append((a, other if is_random else b, int(is_random)))  # 0: B follows A, 1: it does not
    return found


for a, b, label in draw(sources, 6, random.Random(9)):
    print(f"{'random' if label else 'next':6} A {pieces.decode(a)[:52]:53} B {pieces.decode(b)[:45]}")

# %% [markdown]
# ### 4.3 The input: tokens, segments, positions
#
# One sentence or two, the input is always *one* row of tokens:
#
# $$\texttt{[CLS]}\; A\; \texttt{[SEP]}\; B\; \texttt{[SEP]}$$
#
# `[SEP]` ends a sentence. `[CLS]` stands in front and means nothing. It has no word of its own to represent, so its
# vector is free for what concerns the input as a whole. The *segment* says to which sentence a token belongs, 0 or 1.


# %%
def collate(pairs):                                    # pairs of (a, b); b is None for one sentence
    rows = [[CLS, *a, SEP] + ([*b, SEP] if b is not None else []) for a, b in pairs]
    segments = [[0] * (len(a) + 2) + [1] * (len(row) - len(a) - 2) for (a, _), row in zip(pairs, rows)]
    input_ids = pad(rows, PAD)                                     # (batch, n)
    real = (input_ids != PAD).long()                               # (batch, n): 1 = a real token
    return input_ids, real, pad(segments, 0)                       # (batch, n) each


a, b = encode("In the beginning was the Word."), encode("The same was in the beginning with God.")
example, real, segments = collate([(a, b), (a, None)])             # (batch, n) each
print("tokens  ", *(pieces.token(id) for id in example[0].tolist()))
print("segments", *segments[0].tolist())
print("real    ", *real[1].tolist(), "  (the second row is one sentence)")

# %% [markdown]
# Each token, each position and each segment has a learned vector. The three are *added*, and then normalised:
#
# $$h_i = \text{norm}\big(\text{token}(x_i) + \text{position}(i) + \text{segment}(s_i)\big)$$

# %%
figures.input_sum(
    [pieces.token(id) for id in example[0].tolist()], segments[0].tolist(),
    title="The input is a sum of three learned vectors",
    alt="Two lines of boxes, one for each sentence, three rows in each: the token, its segment, A "
    "or B, and its position, counted from 0 through both. Plus signs stand between the rows.",
)

# %% [markdown]
# ### 4.4 The encoder
#
# Nothing new in here: blocks from lesson 06, *post-norm* as in the original Transformer, with gelu. The only mask
# hides padding. What comes out is one vector per token, `hidden`, and one for the whole, `pooled`: the vector of
# `[CLS]` after one more layer with tanh.


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
        x = self.embedding(input_ids) + self.segment(token_type_ids)           # (batch, n, d_model)
        x = self.embedding_norm(self.position(x))                  # (batch, n, d_model)
        hidden = self.encoder(x, attention_mask.bool()[:, None, None, :])      # (batch, n, d_model)
        return hidden, self.pooler(hidden[:, 0]).tanh()      # (batch, n, d_model), (batch, d_model)


# %% [markdown]
# The head for masked tokens: one more layer, then the token embedding once more, as output matrix (lesson 08). Logits
# are computed only where a token is asked for; for the rest they would be thrown away.


# %%
class MaskedLMHead(nn.Module):
    def __init__(self, vocab_size, block):
        super().__init__()
        self.dense = nn.Linear(block.d_model, block.d_model)
        self.norm = LayerNorm(block.d_model, eps=block.norm.eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden, embedding):                       # (count, d_model), (vocab, d_model)
        return self.norm(F.gelu(self.dense(hidden))) @ embedding.T + self.bias   # (count, vocab)


# %% [markdown]
# And the head for the next sentence: one linear layer on `pooled`. Both losses are simply added.


# %%
class PreTraining(nn.Module):
    def __init__(self, vocab_size, block, layers=2, max_length=224):
        super().__init__()
        self.base = Bert(vocab_size, block, layers, max_length)
        self.predictions = MaskedLMHead(vocab_size, block)
        self.next_sentence = nn.Linear(block.d_model, 2)

    def forward(self, batch, labels):               # labels (batch, n): −100 where nothing is asked
        hidden, pooled = self.base(*batch)                   # (batch, n, d_model), (batch, d_model)
        asked = hidden[labels != -100]                             # (count, d_model)
        return self.predictions(asked, self.base.embedding.weight), self.next_sentence(pooled)


# %% [markdown]
# A small one: two blocks of width 128.

# %%
torch.manual_seed(0)
block = BlockConfig.of_sizes(
    d_model=128, heads=4, d_ff=512, norm_first=False, norm_eps=1e-12, activation="gelu",
    position="learned",
)
model = PreTraining(len(pieces), block).to(here)
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# ## 5 Pre-train it
#
# Every step takes 24 pairs, from the Bible or from the reviews, each sentence cut at 24 tokens. The corruption is
# drawn anew each time, so the model hardly ever sees the same gaps twice.


# %%
def batch_of(sources, count, chance=random, longest=24):
    drawn = draw(sources, count, chance)
    short = [(a[:longest], b[:longest]) for a, b, _ in drawn]
    input_ids, real, segments = collate(short)                     # (batch, n) each
    seen, labels = corrupt(input_ids)                              # (batch, n) each
    random_b = torch.tensor([label for *_, label in drawn])  # (batch,): 1 where B is a random sentence
    return (seen.to(here), real.to(here), segments.to(here)), labels.to(here), random_b.to(here)


def losses_of(model, batch, labels, random_b):
    tokens, is_random = model(batch, labels)                       # (count, vocab), (batch, 2)
    return F.cross_entropy(tokens, labels[labels != -100]), F.cross_entropy(is_random, random_b)


# %% [markdown]
# The optimizer is that of lesson 07: Muon for the matrices inside the blocks, AdamW for the rest. The learning rate
# rises for 50 steps, since post-norm needs a warm-up (lesson 07), and then falls to almost nothing.


# %%
def pretrain(steps, seed=0):
    torch.manual_seed(seed)
    random.seed(seed)
    model, history = PreTraining(len(pieces), block).to(here), []
    optimizer = optimizers(model, lr=3e-3, muon_lr=0.02, weight_decay=0.01)
    for step in progress(range(1, steps + 1), "pre-training"):
        optimizer.set_factor(min(step / 50, (steps + 1 - step) / (steps - 49)))
        both_losses = losses_of(model, *batch_of(sources, 24))
        optimizer.zero_grad()
        sum(both_losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append([loss.item() for loss in both_losses])
    return model.eval(), torch.tensor(history)                     # (step, 2)


# %% [markdown]
# Eighty steps, for a first look.

# %% tags=["nbval-ignore-output"]
model, history = pretrain(80)

# %% [markdown]
# What has it learned from them? The two losses apart, each the mean of 20 steps:

# %% tags=["nbval-ignore-output"]
smooth = history.unfold(0, 20, 1).mean(dim=-1)                     # (step, 2): mean of 20 steps
expect("Loss of masked tokens at the end", smooth[-1, 0].item(), 5.7, 7)
plots.lines(
    {name: (range(20, 20 + len(smooth)), values.tolist())
     for name, values in zip(("masked tokens", "next sentence"), smooth.T)},
    title="Masked tokens: a start. The next sentence: next to nothing yet", xlabel="training step",
    ylabel="loss (nats), mean of 20",
    alt="Two loss curves. That of masked tokens falls from 8 to about 6.4. That of the next "
    "sentence stays at about 0.7, the level of guessing.",
)

# %% [markdown]
# ### What is it worth?
#
# On texts that were held out, we ask how many masked tokens it guesses right. A number alone says nothing, so
# there are rivals, as in section 1: the most frequent token; the token that most often followed the one on the left;
# and left and right, joined. They have counted the same texts, and read the same corrupted input.

# %%
line = torch.tensor([id for pairs in sources for a, _ in pairs for id in (SEP, *a)])  # (tokens,)
count = torch.full((len(pieces), len(pieces)), 0.01)               # (token, the one after it)
count.index_put_((line[:-1], line[1:]), torch.tensor(1.0), accumulate=True)
frequency = count.sum(dim=0)                                       # (token,)


def rivals(seen, labels):                                          # (batch, n) each
    row, place = (labels != -100).nonzero().T  # (count,) each; place is never the first or the last
    before, after = seen[row, place - 1], seen[row, place + 1]    # (count,) each
    from_left, from_right = count[before], count[:, after].T      # (count, vocab) each
    guesses = {"most frequent": frequency[:PAD].argmax().expand(len(row)),
               "left": from_left.argmax(dim=-1),
               "left and right": (from_left * from_right / frequency).argmax(dim=-1)}
    true = labels[row, place]                                      # (count,)
    return {name: (guess == true).float().mean().item() for name, guess in guesses.items()}


# %% [markdown]
# Ask all of them about the same 600 corrupted pairs, which nobody has read:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
batch, labels, random_b = batch_of(held_out, 600, random.Random(1))
answers = labels[labels != -100]                                   # (count,)
share = rivals(batch[0].cpu(), labels.cpu())


@torch.no_grad()
def guesses_of(model):
    return model(batch, labels)[0].argmax(dim=-1)                  # (count,)


share["ours, 80 steps"] = (guesses_of(model) == answers).float().mean().item()
for name, part in share.items():
    print(f"{name:16} {part:4.0%}")
expect("Masked tokens right", share["ours, 80 steps"], 0.05, 0.2)

# %% [markdown]
# Be honest: this is a BERT in its first seconds. It has learned which tokens are frequent, and uses their neighbours
# hardly at all. A reader that only *counts* left and right neighbours guesses far better. Masked tokens teach slowly:
# our run asked for some 11,000 of them. The real one made a million steps: nine tenths of them at length 128, with
# about 4,900 questions each, the last tenth at length 512, with about 20,000 (appendix A.2).
#
# ### What patience buys
#
# So we took the library's recipe, with four blocks instead of two, and with the same texts and the plays:
#
# ```
# txlib train bert --preset tiny --steps 11017
# ```
#
# It ran for 51 minutes on one processor core, and asked for 5.7 million tokens. What came out lies in
# `data/checkpoints/bert-tiny`. Its parts have the names of *our* classes, so the weights fit in. (Section 7 proves that
# both compute the same.)

# %%
torch.manual_seed(0)
model = PreTraining(len(pieces), block, layers=4, max_length=256).to(here).eval()
model.load_state_dict(load_pretrained(shipped("bert-tiny"), dtype=torch.float32).state_dict())
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# And how many of the same masked tokens does this one guess?

# %% tags=["nbval-ignore-output"]
guesses = guesses_of(model)                                        # (count,)
share["the recipe's"] = (guesses == answers).float().mean().item()
plots.bars(
    share, xlabel="share of masked tokens guessed correctly", format="{:.0%}",
    title="Reading both ways beats counting, given time (all three kinds of gap)",
    alt="; ".join(f"{name}: {part:.0%}" for name, part in share.items()),
)

# %% [markdown]
# And the next sentence? A random B may come from the other book, which is easy to see, or from the same, which is
# hard. So we ask twice: B from anywhere, and B from the book of A.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def next_sentence_right(sources, count=300):
    batch, labels, random_b = batch_of(sources, count, random.Random(2))
    return (model(batch, labels)[1].argmax(dim=-1) == random_b).float().mean().item()


expect("Masked tokens right", share["the recipe's"], 0.42, 0.48)
expect("Next sentence right, B from anywhere", next_sentence_right(held_out), 0.58, 0.74)
same_book = sum(next_sentence_right([each]) for each in held_out) / 2
expect("Next sentence right, B from the same book", same_book, 0.54, 0.7)

# %% [markdown]
# The 45 % count all three kinds of gap, the kept tokens too, which BERT can read and its rivals cannot. At `[MASK]`
# alone it fills two in five correctly, where counting gets three in ten. The next sentence comes harder: two thirds,
# where a coin gets half. (With 300 pairs the standard deviation is three points, so six more or less are chance.) It
# hardly helps when B may come from another book. The recipe drew its random sentences from the book of A, so the model
# had to learn more than style; and it has only begun to.
#
# What did the random and the kept tokens teach it? Split the answers by what the model saw at the place.

# %% tags=["nbval-ignore-output"]
saw = batch[0][labels != -100]                                     # (count,): what stood there
places = {"[MASK]": saw == MASK, "the token itself": saw == answers,
          "another token": (saw != answers) & (saw != MASK)}
for name, part in places.items():
    right, repeated = (guesses == answers)[part].float().mean(), (guesses == saw)[part].float().mean()
    print(f"saw {name:17} right {right:4.0%}   repeats what it saw {repeated:4.0%}")

# %% [markdown]
# At a `[MASK]`, two in five are right. Where the token was kept, it repeats it nearly always. Where it sees a random
# token, it hardly ever repeats it; it finds what stood there as often as if the place were masked. It has learned to
# doubt what does not fit, which is what the random tokens are for.
#
# Now ask it yourself: one gap, its four best guesses. (A word's token holds the space before it. Where the word is
# hidden, this space must go, too: hence `rstrip`. Left there, it would be a token of its own, and the guesses
# nonsense.)


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def fill(text, best=4):
    before, after = (pieces.encode(part.rstrip()) for part in text.split("____"))
    ids = [*before, MASK, *after]
    input_ids, real, segments = (each.to(here) for each in collate([(ids, None)]))     # (1, n) each
    labels = torch.where(input_ids == MASK, 0, -100)               # (1, n): ask at the gap
    tokens, _ = model((input_ids, real, segments), labels)         # (gaps, vocab)
    return [[pieces.token(id) for id in row.topk(best).indices.tolist()] for row in tokens]


for text in (" And God ____ unto Moses.", " the king ____ Israel", " i love ____ dress!",
             " it is too ____ for me."):
    print(f"{text:28} {'   '.join(fill(text)[0])}")

# %% [markdown]
# Grammar, and the tone of each book: *spake* belongs to the Bible, *short* to the dresses. What the words stand for, it
# can hardly know from so little text.

# %% [markdown]
# ## 6 One word, two vectors
#
# Does our BERT tell meanings apart? Take words that have two, and places where a rule says which is meant. (The rule
# reads a neighbour or two, and so may BERT. It is no proof of understanding, but a table of vectors reads no neighbour.
# Most of these texts BERT has met in pre-training; nobody told it a meaning there.)

# %%
SENSES = {                                        # word: texts, and what stands around each meaning
    "left": ("Bible", r"(?:on the|his|to the|your) left\b",
             r"\b(?:have|has|is|are|was|he|they) left\b"),
    "might": ("Bible", r"\b(?:your|his|my|all|their|with|own) might\b",
              r"\b(?:that|they|he|you|it|we) might\b"),
    "rest": ("Bible", r"\bthe rest of\b",
             r"\b(?:you|them|him|no|have|a|will|to|of|gave|give) rest\b"),
    "like": ("reviews", r"\b(?:looks?|looked|feels?|felt|fits?|just) like\b",
             r"\b(?:i|really|not|you|didn't) like\b"),
    "fit": ("reviews", r"\b(?:the|a|good|great|weird|bad|poor) fit\b",
            r"\b(?:not|didn't|to|doesn't|would|should) fit\b"),
}

# %% [markdown]
# Equally many places for both meanings, so that a coin is right in half of the cases:

# %%
texts = {"Bible": [modern for side in (bible.train, bible.test) for _, modern in side],
         "reviews": [each for review in (*clothing.train, *clothing.test)
                     for each in re.findall(r"[^.!?]+[.!?]*", review.text.lower())]}


def places_of(word):                                               # [(text, its sense)]
    source, *rules = SENSES[word]
    found = [[(text, sense) for text in texts[source] if re.search(rule, text)]
             for sense, rule in enumerate(rules)]
    count = min(24, *map(len, found))
    return [pair for each in found for pair in random.Random(0).sample(each, count)]


for word in SENSES:
    first, *_, last = places_of(word)
    print(f"{word:6}", *(f"{sense}: …{text[max(0, text.find(word) - 22) : text.find(word) + 22]:44}"
                         for text, sense in (first, last)))

# %% [markdown]
# For each place, take the word's vector after each layer; layer 0 is the normalised sum that goes in. Then ask: of all
# other places of the word, which has the most similar vector? Does that one have the same meaning?


# %%
@torch.no_grad()
def layers_of(text, word):
    ids = [CLS, *encode(text)[:60], SEP]
    rows = []
    parts = (model.base.embedding_norm, *model.base.encoder.layers)
    hooks = [each.register_forward_hook(lambda module, given, out: rows.append(out[0]))
             for each in parts]                                    # rows: (n, d_model) each
    model.base(*(each.to(here) for each in collate([(ids[1:-1], None)])))
    for hook in hooks:
        hook.remove()
    place = [pieces.token(id) for id in ids].index("▁" + word)
    return torch.stack([row[place] for row in rows])               # (layers + 1, d_model)


# %% [markdown]
# Similar means: with a large cosine (lesson 01).


# %%
def same_sense(word):
    found = [pair for pair in places_of(word) if "▁" + word in map(pieces.token, encode(pair[0])[:60])]
    vectors = F.normalize(torch.stack([layers_of(text, word) for text, _ in found], dim=1), dim=-1)
    cosine = vectors @ vectors.transpose(1, 2)                     # (layers + 1, place, place)
    cosine.diagonal(dim1=1, dim2=2).fill_(-1)                      # nobody is a neighbour of itself
    sense = torch.tensor([sense for _, sense in found], device=here)             # (place,)
    return (sense[cosine.argmax(dim=-1)] == sense).float().mean(dim=-1).tolist()


# %% [markdown]
# All five words, after each layer:

# %% tags=["nbval-ignore-output"]
told = {word: same_sense(word) for word in SENSES}
plots.lines(
    {word: (range(len(shares)), shares) for word, shares in told.items()}, marker="o",
    title="The nearest place has the same meaning, once the layers have read", xlabel="after layer",
    ylabel="same meaning (share)",
    alt="Lines for five words over layers 0 to 4. " + "; ".join(
        f"{word}: from {shares[0]:.0%} to {shares[-1]:.0%}" for word, shares in told.items()),
)

# %% [markdown]
# On average:

# %% tags=["nbval-ignore-output"]
means = [sum(layer) / len(layer) for layer in zip(*told.values())]
expect("Same meaning, layer 0, mean of five words", means[0], 0.5, 0.75)
expect("Same meaning, last layer, mean of five words", means[-1], 0.75, 1)

# %% [markdown]
# In layer 0 two places of a word differ only in *where* it stands, and even that is right in two cases of three: the
# one meaning tends to stand earlier in its sentences than the other. After the layers, the nearest place has the same
# meaning nearly always. (With 48 places per word, a share moves by chance by some 14 points either way; with the 32 of
# *might*, by 17; the mean of five, by about 6.)

# %% [markdown]
# ## 7 Open the library
#
# `txlib.models` has the encoder and both pre-training heads. The parts have the names of our classes above, the
# arguments those that are usual in the field. Every head is an `EncoderHead`: it says how it makes scores of what the
# encoder gives, and perhaps what its loss is. The shared `forward` does the rest.

# %%
from txlib.models import BertForPreTraining, Encoder, EncoderConfig
from txlib.models.encoder import EncoderHead

show_source(Encoder.forward, EncoderHead.forward, BertForPreTraining.score, BertForPreTraining.loss)

# %% [markdown]
# Same weights, same numbers? We use a fresh model, and shake all its weights, so that no weight of 0 or 1 hides a
# mistake.

# %%
torch.manual_seed(0)
probe = PreTraining(len(pieces), block).eval()
with torch.no_grad():
    for weight in probe.parameters():
        weight.add_(0.05 * torch.randn_like(weight))
config = EncoderConfig(len(pieces), block, layers=2, max_length=224, pad_id=PAD)
library = BertForPreTraining(config).eval()
library.load_state_dict(probe.state_dict())
seen, labels = corrupt(example)                       # (batch, n) each, the two rows of section 4.3
with torch.no_grad():
    theirs = library(seen, real, segments)
    tokens, is_random = probe((seen, real, segments), labels)      # (count, vocab), (batch, 2)
masked = theirs.prediction_logits[labels != -100]                  # (count, vocab)
prove_equal(tokens, masked, tolerance=1e-4, what="The logits of the masked tokens")
prove_equal(is_random, theirs.seq_relationship_logits, what="The logits of the next sentence")

# %% [markdown]
# And the real sizes? $L$ blocks have $12 d^2 + 13 d$ parameters each (lesson 06). On top come $V$ tokens, 512
# positions and 2 segments of $d$ each, a norm, and the pooler. On torch's *meta* device the models have shapes, but
# no memory.

# %%
from txlib.models.sizes import BERT

for name, sizes in BERT.items():
    d = sizes.block.d_model
    formula = sizes.layers * (12 * d**2 + 13 * d) + (sizes.vocab_size + 512 + 2) * d + 2 * d + d**2 + d
    with torch.device("meta"):
        built = sum(weight.numel() for weight in Encoder(sizes).parameters())
    print(f"BERT-{name:5} formula {formula:11,}   built {built:11,}")

# %% [markdown]
# The paper rounds to 110 M and 340 M.

# %% [markdown]
# ## 8 What it costs
#
# **Signal.** A GPT is asked for every token of a text, a BERT for 15 % of them. Same text, same blocks, nearly the
# same operations. Count what one pass over the verses teaches:

# %%
torch.manual_seed(0)
tokens_read, asked_of_bert = 0, 0
for _, verse in bible.train[:2000]:
    ids = torch.tensor([encode(verse)])                            # (1, n)
    tokens_read += ids.numel()
    asked_of_bert += (corrupt(ids)[1] != -100).sum().item()
share_asked = asked_of_bert / tokens_read
print(f"GPT answers {tokens_read:,} questions, BERT {asked_of_bert:,}: {share_asked:.0%}")

# %% [markdown]
# So BERT learns more slowly *per text read*. The paper's appendix C.1 finds that it overtakes a left-to-right model
# almost at once all the same, when both are fine-tuned for a task (MNLI; lesson 15).
#
# **Writing.** A GPT that writes one more token keeps the keys and values of all earlier ones (lesson 13). They cannot
# change, since they have not looked ahead. And BERT? Add one token, and look how far the *earlier* vectors move.

# %%
ids = torch.tensor([[CLS, *encode("In the beginning God created the heavens and")]])        # (1, n)
one_more = torch.cat([ids, torch.tensor([[SEP]])], dim=1)          # (1, n + 1)


def hidden_of(ids):
    return probe.base(ids, torch.ones_like(ids), torch.zeros_like(ids))[0]       # (1, n, d_model)


with torch.no_grad():
    before, after = hidden_of(ids), hidden_of(one_more)[:, :-1]    # (1, n, d_model) each
print(f"vectors that moved: {((before - after).abs().amax(dim=-1) > 1e-4).sum()} of {ids.shape[1]}")

# %% [markdown]
# All. Nothing can be kept, so each new token costs a pass over everything. BERT also has no natural way to say how
# likely a whole text is. It reads; it does not write.
#
# **After BERT.** RoBERTa (Liu et al. 2019) drops the next sentence, draws new masks at each pass, trains longer on
# more text, and is better. ELECTRA (Clark et al. 2020) lets a small model replace tokens, and trains the large one to
# say for *every* token whether it was replaced: signal from 100 %, not 15 %.
#
# **ModernBERT** (Warner et al. 2024) is what a BERT looks like today: the parts of lesson 16 (pre-norm, rotary
# positions, gated feed-forward, no biases), 30 % of the tokens hidden, no next sentence, two trillion tokens of text
# and code, and 8,192 tokens at once, since two layers in three look only 64 tokens to either side. (BERT's table of
# learned positions ends at 512. You will still read that 512 is *the* limit of such models; it was that table's.)
#
# **What are such models for**, when chat models write? For all that needs an answer per *text*, millions of times:
# sort, filter, tag, and above all *find*. An encoder that is trained so that texts about the same matter get similar
# vectors is an *embedding model* (Reimers and Gurevych 2019). A search engine computes the vectors of all its documents
# once, and then only that of the question. MiniLM of lesson 01 is one; lesson 15 looks into it.
#
# To pre-train longer than a lesson can: `txlib train bert`.

# %% [markdown]
# ## 9 Quiz
#
# Decide first, then open an answer.
#
# **1. A two-layer encoder without any mask is trained to predict the next token. Its training loss goes to 0. Why?**
#
# <details><summary>A. It has overfitted: the text is too small</summary>
#
# It would do the same on an endless text. Nothing is memorised.
# </details>
# <details><summary>B. Each position reads the token on its right, which is its own label</summary>
#
# Right. Copying solves the task perfectly, and is of no use where there is no right side.
# </details>
# <details><summary>C. Both ways together really know the next token that well</summary>
#
# They know it because they *see* it. Where there is nothing to see, at the end of the text, such a model is worse than
# one that never looks right (lesson 13 §6).
# </details>
#
# **2. A batch has 10,000 ordinary tokens. How many become `[MASK]`, on average, and how many count in the loss?**
#
# <details><summary>A. 1,500 and 1,500</summary>
#
# 1,500 are chosen. But only 80 % of those become `[MASK]`.
# </details>
# <details><summary>B. 1,200 and 1,200</summary>
#
# 1,200 become `[MASK]`. The random and the kept ones are asked for, too.
# </details>
# <details><summary>C. 1,200 and 1,500</summary>
#
# Right: 15 % are chosen and count, 80 % of them are masked.
# </details>
#
# **3. Somebody hides all chosen tokens behind `[MASK]`, with no random and no kept ones. What is lost?**
#
# <details><summary>A. Nothing is asked for any more</summary>
#
# All the chosen ones are still asked for.
# </details>
# <details><summary>B. The vectors of tokens that are not <code>[MASK]</code> have never been trained to predict
# anything</summary>
#
# Right, and when the model is used, its input has only such tokens. The paper found the loss small (appendix C.2).
# </details>
# <details><summary>C. The labels leak</summary>
#
# On the contrary: a kept token shows its own label. That is allowed, because the model cannot know that it is one.
# </details>
#
# **4. The vector of *bow* in *a bow and arrows* and in *the bow of the dress*: where are they equal?**
#
# <details><summary>A. In the embedding table, and nowhere else</summary>
#
# Right. The position is added at once, and from the first layer on the neighbours are mixed in.
# </details>
# <details><summary>B. Everywhere: a word is a word</summary>
#
# So it was in lesson 01. In BERT only the table's row is shared.
# </details>
# <details><summary>C. Nowhere: BERT has a row of the table for each meaning</summary>
#
# The table has one row per token. Meanings are not told to it.
# </details>
#
# **5. You append one token to a text. Which vectors of the earlier tokens change, in a GPT and in a BERT?**
#
# <details><summary>A. None in either</summary>
#
# In BERT all earlier tokens see the new one.
# </details>
# <details><summary>B. None in the GPT, all in the BERT</summary>
#
# Right. That is why a GPT can keep its keys and values, and a BERT has to read everything again.
# </details>
# <details><summary>C. All in both</summary>
#
# The causal mask hides the new token from all earlier ones.
# </details>

# %% [markdown]
# ## 10 Summary
#
# - GPT conditions on the left, ELMo joins two one-way readers at the end, BERT reads both ways in every layer.
# - Whoever reads both ways sees the next token. So BERT is asked for 15 % of the input, which is hidden: 80 % of it
#   `[MASK]`, 10 % random, 10 % kept.
# - The input is `[CLS] A [SEP] B [SEP]`, a sum of token, position and segment; the second task asks whether B follows
#   A.
# - Its vectors are contextual: two meanings of one word get two vectors.
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
