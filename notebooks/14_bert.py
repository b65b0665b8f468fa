# %% [markdown] lesson={"part": "II Language models", "builds": "masked words and next sentences: pre-training, vectors in context"}
# # 14 · BERT: read both ways
#
# **After this lesson you will be able to**
#
# - say what ELMo, GPT and BERT may look at when they represent a word, and what each can and cannot do for it;
# - explain why a model that reads both ways cannot learn by predicting the next word;
# - build BERT's two pre-training tasks, its input and its encoder, and pre-train a small one on real text;
# - ask a pre-trained BERT for missing words, next to baselines that only count;
# - show that its vectors tell two meanings of one word apart.
#
# **You need** lessons 01 and 03 to 10. **It takes** about 65 minutes to read and try; all cells together run in
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

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txcourse.lesson import show_source
from txlib import load_pretrained, plots
from txlib.attention import Mask, causal, full
from txlib.data import pad, reviews, shipped, verses, word_senses
from txlib.devices import default_device
from txlib.layers import BlockConfig, LayerNorm, LearnedPosition, TokenEmbedding
from txlib.models.stack import Stack
from txlib.text import BytePairEncoder
from txlib.training.optimizers import optimizers

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
# You looked at what stands *before* the gap, and at what stands *after* it. A language model (lesson 10) looks at what
# stands before, and nothing else. How much is lost? Let us not train anything yet, but count. Four readers guess a word
# of a verse that they have not seen:
#
# - **left** knows the word before, and says what most often followed it;
# - **right** knows the word after, and says what most often preceded it;
# - **joined** asks both, and multiplies what they say. Say *left* gives *sea* 0.2 and *land* 0.1, *right* gives them 0.1
#   and 0.3, and both words are equally frequent: 0.02 against 0.03, so *land*. In general
#   $p(w \mid \text{left})\, p(w \mid \text{right}) / p(w)$, which is proportional to the exact answer if, given the
#   word, the two sides have nothing to do with each other;
# - **both** has counted what stood between *these two* neighbors. Where it never saw the two together, it does as
#   *joined*.

# %%
alone, both = Counter(), defaultdict(Counter)
left, right = defaultdict(Counter), defaultdict(Counter)
for _, verse in bible.train:
    for before, word, after in gaps(verse):
        alone[word] += 1
        left[before][word] += 1
        right[after][word] += 1
        both[before, after][word] += 1
usual = max(alone, key=alone.get)


def best(counts):
    return max(counts, key=counts.get, default=usual)


# %% [markdown]
# Ask all of them for words of verses that none has counted; every fourth verse of the test split is enough.

# %%
def joined(before, after):
    shared = sorted(left[before].keys() & right[after].keys())
    return best({w: left[before][w] * right[after][w] / alone[w] for w in shared})


def guesses(before, after):
    seen = both.get((before, after))
    return {"the most frequent": usual, "left": best(left[before]),
            "right": best(right[after]), "joined": joined(before, after),
            "both": best(seen) if seen else joined(before, after)}


asked = [gap for _, verse in bible.test[::4] for gap in gaps(verse)]
filled = Counter(name for before, word, after in asked
                 for name, guess in guesses(before, after).items() if guess == word)
new = sum((before, after) not in both for before, _, after in asked) / len(asked)
print(f"{len(asked):,} gaps; in {new:.0%} the pair of neighbors is new")

# %% jupyter={"source_hidden": true}
plots.bars(
    {name: filled[name] / len(asked) for name in guesses("^", "$")}, xlabel="gaps filled correctly", format="{:.0%}",
    title="The reader that sees both sides guesses best",
    alt="; ".join(f"{name}: {filled[name] / len(asked):.0%}" for name in guesses("^", "$")),
)

# %% [markdown]
# The right side alone tells a little more than the left, and together they are worth far more than either. That *both*
# is hardly ahead of *joined* is the weakness of counting. Of the pairs of neighbors that it has met, it has met five in
# six only once or twice; a quarter of those that it is asked for, never. Few counts say little.
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

# %% jupyter={"source_hidden": true}
figures.readers(
    title="ELMo joins two one-way readers at the end; BERT reads both ways in every layer",
    alt="Three small networks over four words, two layers each. GPT: arrows go from a word to "
    "itself and to those on its right. ELMo: two separate stacks, one with arrows to the right, "
    "one with arrows to the left, joined only at the top. BERT: arrows from every word to every "
    "word in both layers.",
)

# %% [markdown]
# As masks (lesson 03), with a row for each word that asks. ELMo has no attention, but this is what its halves may know:

# %% jupyter={"source_hidden": true}
plots.mask(
    {
        "GPT, and ELMo's left half": causal(),
        "ELMo's right half": Mask(lambda query, key: query <= key),
        "BERT: full()": full(),
    },
    length=8, title="What each word may know of the others",
)

# %% [markdown]
# **Why it matters: one word, two meanings.** Lesson 01 gave each word *one* vector, whatever stands around it. But
# *they left* and *in her left hand* are two words with one spelling. A vector that is computed from the whole sentence
# can tell them apart. ELMo's authors called it a **contextual** vector; section 6 measures how well ours do.

# %% [markdown]
# ## 3 Why not simply drop the mask?
#
# You did, in lesson 10 §5. Without its mask a language model's training loss fell far below the right model's, for it
# learned to copy the character on its right. At the end of a text, where there is nothing on the right, it was far worse than
# the model that had never looked there. There the missing mask was a mistake. Here it is the aim, and so the *task*
# must change.
#
# Could we hide only the word itself, and let it see all others? Forget for a moment that the residual connection
# (lesson 06) carries each word past the attention. In one layer it would do. In two?

# %%
others = torch.ones(6, 6) - torch.eye(6)  # (query, key): all but myself
twice = others @ others  # (query, key): in how many ways, over two layers
print(f"word 0 to itself: {others[0, 0]:.0f} in one layer, {twice[0, 0]:.0f} in two")

# %% [markdown]
# With several layers each word sees itself by way of the others, as the paper says (§3.1). The cure is old. It is what
# a teacher does in a language class, with a *cloze* test (Taylor 1953): take words out of the *input*, and ask for
# them. What is not there cannot leak.

# %% [markdown]
# ## 4 Build it step by step
#
# ### 4.1 Masked language modeling
#
# First we need words as numbers. Lesson 01's byte-pair encoding has a vocabulary of 4,096 tokens here, learned from the
# Bible in both Englishes, from reviews of women's clothing, and from plays of Shakespeare. It comes with a BERT that
# you will meet in section 5. The last five tokens are special. `[UNK]`, *unknown*, is for pieces that a vocabulary
# cannot write; ours is made of bytes and can write everything. The other four you will meet soon.

# %%
clothing = reviews("stars")
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
PAD, UNK, CLS, SEP, MASK = sorted(pieces.special_tokens.values())


def encode(text):
    return pieces.encode(" " + text, special_tokens=False)


print([pieces.token(id) for id in encode("The king's dress was unbelievable.")])
print(len(pieces), "tokens; special:", pieces.special_tokens)

# %% [markdown]
# **Words without spaces.** Chinese and Japanese put none between words. Before BERT's own tokenizer, *WordPiece*, cuts
# a text at its spaces, it puts spaces around every Chinese character, so each is a word of its own. Ours falls back to
# bytes, three for most such characters. What you hide then matters: a missing byte of a character is far easier to
# guess than a missing word. Later versions of BERT hide *whole words*, all pieces of each. That is task 1 of the
# exercise.

# %% [markdown]
# Choose 15% of the tokens. The model is to guess these, and only these count in the loss:
#
# $$\text{loss} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde{x})$$
#
# $M$ is the set of chosen positions, $x$ the text and $\tilde{x}$ the text as the model sees it. **Step 1: choose.**

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
# `corrupt` does both steps. It draws anew, so its choice is not the one above.


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
# Does it do what we said? Check the statistics on a million tokens.

# %%
torch.manual_seed(0)
many = torch.randint(PAD, (1000, 1000))  # (batch, n)
seen, labels = corrupt(many)
in_loss = labels != -100  # (batch, n)
print(f"chosen {in_loss.float().mean():.1%}; of these")
kinds = {"[MASK]": seen == MASK, "the same": seen == many,
         "another token": (seen != many) & (seen != MASK)}
for name, part in kinds.items():
    print(f"{name:14} {part[in_loss].float().mean():5.1%}")

# %% [markdown]
# **Why 80–10–10?** When BERT is *used*, there is no `[MASK]` in its input. A model that is asked only where it sees
# `[MASK]` needs no good vector for any other token. So some of the chosen ones do not look chosen:
#
# - the *random* ones teach it not to trust what it sees. Any token may be wrong, so each vector must hold what the
#   context says;
# - the *kept* ones teach it that what it sees is nevertheless probably right.
#
# The random ones are 1.5% of all tokens, too few to spoil the text. In section 5 you can measure what they taught.
# How much it matters in the end: less than one would think. In the paper's appendix C.2, 100% `[MASK]` is as good
# for sentence pairs, and in tagging it costs half a point with fine-tuning, nearly a whole one with frozen vectors.

# %% [markdown]
# ### 4.2 Next-sentence prediction
#
# Some tasks ask about *two* sentences: does one answer the other, follow from it, say the same? So the second task
# gives the model two sentences, A and B. Half of the time B is the one that came after A, half of the time it is a
# random one. Which?
#
# Our sentences are real. Neighbors are two sentences of one review, or two verses of the Bible, one after the other.
# (The course has only verses of 5 to 25 words, so sometimes a verse or two between them is missing.) A random B comes
# from anywhere, as in the paper. That makes some of them easy: a review does not follow a verse.


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
def draw(sources, count, rng=random):
    found = []
    for _ in range(count):
        (a, b), (_, other) = (rng.choice(rng.choice(sources)) for _ in range(2))
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
# `[SEP]` ends a sentence. `[CLS]` stands in front and means nothing. It has no word of its own to represent, so its
# vector is free for what concerns the input as a whole. The *segment* says to which sentence a token belongs, 0 or 1.


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
# Each token, each position and each segment has a learned vector. The three are *added*, and then normalized:
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
# Nothing new in here: blocks from lesson 06, *post-norm* as in the original Transformer, with gelu. The only mask
# hides padding. What comes out is one vector per token, `hidden`, and one for the whole, `pooled`: the vector of
# `[CLS]` after one more layer with tanh. (The paper does not say why. Our explanation: what a task reads of the text
# may then differ from what other tokens read of `[CLS]`.)


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
# The head for masked tokens: one more layer, then the token embedding once more, as output matrix (lesson 08). Logits
# are computed only where a token is asked for; for the rest they would be thrown away.


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
# And the head for the next sentence: one linear layer on `pooled`. Both losses are simply added.


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
# A small one: two blocks of width 128.

# %%
torch.manual_seed(0)
block = BlockConfig.of_sizes(d_model=128, heads=4, d_ff=512, norm_first=False,
                             norm_eps=1e-12, activation="gelu", position="learned")
model = PreTraining(len(pieces), block).to(here)
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# ## 5 Pre-train it
#
# ### 5.1 Eighty steps
#
# We have a model and two tasks. Every step takes 24 pairs, from the Bible or from the reviews, each sentence cut at 24
# tokens. The corruption is drawn anew each time, so the model hardly ever sees the same gaps twice.


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
    return model.eval(), torch.tensor(history)  # (step, 2)


# %% [markdown]
# Eighty steps, for a first look:

# %% tags=["nbval-ignore-output"]
model, history = pretrain(80)

# %% [markdown]
# What has it learned from them? The two losses apart, each the mean of 20 steps:

# %% tags=["nbval-ignore-output"]
smooth = history.unfold(0, 20, 1).mean(dim=-1)  # (step, 2): mean of 20 steps
expect("Loss of masked tokens at the end", smooth[-1, 0].item(), 5.7, 7)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
line = torch.tensor([id for pairs in sources for a, _ in pairs for id in a])
frequent = line.bincount(minlength=len(pieces)) / len(line)
entropy = -(frequent * frequent.clamp(min=1e-9).log()).sum().item()
plots.lines(
    {name: (range(20, 20 + len(smooth)), values.tolist())
     for name, values in zip(("masked tokens", "next sentence"), smooth.T)}
    | {"frequencies": ([20, 80], [entropy] * 2), "ln 2": ([20, 80], [0.693] * 2)},
    dashed=["frequencies", "ln 2"],
    title="Masked tokens: a start. The next sentence: next to nothing yet", xlabel="training step",
    ylabel="loss (nats), mean of 20",
    alt="Two loss curves and two dashed lines. That of masked tokens falls from 8 to about 6.4, near the line of token "
    "frequencies. That of the next sentence stays at about 0.7, on the line at ln 2.",
)

# %% [markdown]
# On texts that were held out, how many of the tokens behind a `[MASK]` does it guess right? A number alone says
# nothing, so there are **baselines**, as in section 1: the most frequent token; the token that most often followed the
# one on the left; and left and right, joined. They have counted the same texts, and read the same corrupted input.

# %%
line = torch.tensor([id for pairs in sources for a, _ in pairs for id in (SEP, *a)])
count = torch.full((len(pieces), len(pieces)), 0.01)  # (token, the one after it)
count.index_put_((line[:-1], line[1:]), torch.tensor(1.0), accumulate=True)
frequency = count.sum(dim=0)  # (token,)


def baselines(seen, row, place):  # (batch, n), (gap,), (gap,)
    before, after = seen[row, place - 1], seen[row, place + 1]  # (gap,) each
    from_left, from_right = count[before], count[:, after].T  # (gap, vocab) each
    product = from_left * from_right / frequency  # (gap, vocab)
    return {"most frequent": frequency[:PAD].argmax().expand(len(row)),
            "left": from_left.argmax(dim=-1), "left and right": product.argmax(dim=-1)}


# %% [markdown]
# Ask all of them about the same 600 corrupted pairs, which none of them has read:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
batch, labels, random_b = batch_of(held_out, 600, random.Random(1))
answers = labels[labels != -100]  # (count,)
saw = batch[0][labels != -100]  # (count,): what the model sees there
row, place = (batch[0] == MASK).nonzero().cpu().T  # (gap,) each
true = answers[saw == MASK]  # (gap,)
share = {name: (guess == true.cpu()).float().mean().item()
         for name, guess in baselines(batch[0].cpu(), row, place).items()}


@torch.no_grad()
def guesses_of(model):
    return model(batch, labels)[0].argmax(dim=-1)  # (count,)


hits = (guesses_of(model) == answers)[saw == MASK]  # (gap,)
share["ours, 80 steps"] = hits.float().mean().item()
print(*(f"{name:16} {x:4.0%}" for name, x in share.items()), sep="\n")

# %% [markdown]
# This is a BERT in its first seconds. It has learned which tokens are frequent, and uses their neighbors hardly at all.
# Masked tokens teach slowly: our run asked for some 11,000 of them. The real one made a million steps: nine tenths of
# them at length 128, with about 4,900 questions each, the last tenth at length 512, with about 20,000 (appendix A.2).
#
# ### 5.2 What patience buys
#
# So we took the library's recipe, with four blocks instead of two, and with the same texts and the plays:
#
# ```
# txlib train bert --preset tiny --steps 11017
# ```
#
# It ran for 51 minutes on one processor core, and asked for 5.7 million tokens. The result is in
# `data/checkpoints/bert-tiny`. Its parts have the names of *our* classes, so the weights fit in.

# %%
torch.manual_seed(0)
model = PreTraining(len(pieces), block, layers=4, max_length=256).to(here).eval()
trained = load_pretrained(shipped("bert-tiny"), dtype=torch.float32)
model.load_state_dict(trained.state_dict())
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# And how many of the same masked tokens does this one guess?

# %% tags=["nbval-ignore-output"]
guesses_now = guesses_of(model)  # (count,)
hits = (guesses_now == answers)[saw == MASK]  # (gap,)
share["the recipe's"] = hits.float().mean().item()
expect("Right at [MASK]", share["the recipe's"], 0.37, 0.43)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.bars(
    share, xlabel="tokens behind [MASK] guessed correctly", format="{:.0%}",
    title="Given time, BERT beats counting",
    alt="; ".join(f"{name}: {x:.0%}" for name, x in share.items()),
)

# %% [markdown]
# And the next sentence? A random B may come from the other book, which is easy to see, or from the same, which is
# hard. So we ask twice: B from anywhere, and B from the book of A.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def next_sentence_right(sources, count=300):
    batch, labels, random_b = batch_of(sources, count, random.Random(2))
    return (model(batch, labels)[1].argmax(dim=-1) == random_b).float().mean().item()


expect("Next sentence, B from anywhere", next_sentence_right(held_out), 0.58, 0.74)
same_book = sum(next_sentence_right([each]) for each in held_out) / 2
expect("Next sentence, B from the same book", same_book, 0.54, 0.7)

# %% [markdown]
# The next sentence comes harder than the gaps: two thirds, where a coin gets half. (With 300 pairs the standard
# deviation is three points.) It hardly helps when B may come from another book. The recipe drew its random sentences
# from the book of A, so the model had to learn more than style; and it has only begun to.
#
# What did the random and the kept tokens teach it? Split the answers by what the model saw at the place.

# %% tags=["nbval-ignore-output"]
kinds = {"[MASK]": saw == MASK, "the token itself": saw == answers,
         "another token": (saw != answers) & (saw != MASK)}
for name, part in kinds.items():
    hit = (guesses_now == answers)[part].float().mean()
    repeated = (guesses_now == saw)[part].float().mean()
    print(f"saw {name:17} right {hit:4.0%}   repeats what it saw {repeated:4.0%}")

# %% [markdown]
# At a `[MASK]`, two in five are right. Where the token was kept, it repeats it nearly always. Where it sees a random
# token, it hardly ever repeats it; it recovers the original as often as if the place were masked. It has learned to
# doubt what does not fit, which is what the random tokens are for.
#
# Now ask it yourself: one gap, its four best guesses. (A word's token holds the space before it. Where the word is
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
# ### 5.3 ELMo, run once
#
# ELMo's readers are not Transformers but recurrent nets (lesson 02), two *language models* that are trained apart. They
# fit into a few lines: the right one is a left one that gets its text backward.

# %%
class OneWay(nn.Module):
    def __init__(self, vocab_size, d_model=128):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)
        self.output = nn.Linear(d_model, vocab_size)

    def forward(self, ids):  # (batch, n)
        return self.lstm(self.embedding(ids))[0]  # (batch, n, d_model)


# %% [markdown]
# Each predicts the next token in its own direction:


# %% tags=["nbval-ignore-output"]
def language_model(text, steps=100):  # (tokens,)
    torch.manual_seed(0)
    net = OneWay(len(pieces))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in progress(range(steps), "one way"):
        start = torch.randint(len(text) - 21, (24, 1))  # (batch, 1)
        window = text[start + torch.arange(21)]  # (batch, 21)
        logits = net.output(net(window[:, :-1]))  # (batch, 20, vocab)
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


from_left, from_right = language_model(line), language_model(line.flip(0))

# %% [markdown]
# A word's vector is the state of the left one after reading up to it, next to that of the right one. Change the last
# word of a sentence.

# %% jupyter={"source_hidden": true}
predict(
    "elmo-halves", "When the last word changes, which vectors of the words before it move?",
    "none", "all, in one half", "all, in both halves",
)

# %%
@torch.no_grad()
def elmo(ids):  # (1, n)
    halves = from_left(ids), from_right(ids.flip(1)).flip(1)  # (1, n, d_model) each
    return torch.stack(halves)  # (half, 1, n, d_model); ELMo joins them to 2 · d_model


ids = torch.tensor([encode("in her left hand she had a book")])  # (1, n)
other = torch.tensor([[*ids[0, :-1], *encode("fire")]])  # (1, n)
moved = (elmo(ids) != elmo(other)).any(dim=-1)[:, 0]  # (half, n)
print("the left half moves at ", [pieces.token(id) for id in ids[0][moved[0]].tolist()])
print("the right half moves at", [pieces.token(id) for id in ids[0][moved[1]].tolist()])
predicted("elmo-halves", "all, in one half", "BERT's would move whole.")

# %% [markdown]
# The left half of *left* has never seen *hand*, and the right half has never seen *her*: no layer of ELMo can combine
# the two. (The real one has two layers of 4,096 units in each direction, and a task learns how to weigh the layers.)

# %% [markdown]
# ## 6 One word, two vectors
#
# Does our BERT tell meanings apart? `word_senses` has sentences with five words that have two, as many for one meaning
# as for the other, found by a rule that reads a neighbor or two. (Most of them BERT has met in pre-training; nothing
# told it a meaning there.)

# %%
senses = word_senses()
for text, meaning in (senses["left"][0], senses["left"][-1]):
    print(meaning, text)

# %% [markdown]
# For each place, take the word's vector after each layer; layer 0 is the normalized sum that goes in. The baseline
# needs no layer: the mean of the two neighbors' rows in the embedding table.


# %%
@torch.no_grad()
def layers_of(text, word):
    ids = encode(text)[:60]
    batch, rows = [x.to(here) for x in collate([(ids, None)])], []
    parts = (model.base.embedding_norm, *model.base.encoder.layers)
    hooks = [part.register_forward_hook(lambda module, given, out: rows.append(out[0]))
             for part in parts]  # rows: (n, d_model) each
    model.base(*batch)
    for hook in hooks:
        hook.remove()
    i = 1 + [pieces.token(id) for id in ids].index("▁" + word)
    table = model.base.embedding.weight[batch[0][0]]  # (n, d_model)
    return torch.stack([*(row[i] for row in rows), (table[i - 1] + table[i + 1]) / 2])


# %% [markdown]
# Then ask: of all other places of the word, which has the most similar vector, by cosine (lesson 01)? Does that one
# have the same meaning?


# %%
def same_sense(word):
    vectors = torch.stack([layers_of(text, word) for text, _ in senses[word]], dim=1)
    vectors = F.normalize(vectors, dim=-1)  # (layers + 2, place, d_model)
    cosine = vectors @ vectors.mT  # (layers + 2, place, place)
    cosine.diagonal(dim1=1, dim2=2).fill_(-1)  # no place is its own neighbor
    sense = torch.tensor([label for _, label in senses[word]], device=here)  # (place,)
    return (sense[cosine.argmax(dim=-1)] == sense).float().mean(dim=-1).tolist()


told = {word: same_sense(word) for word in senses}
print(f"{'':7}layer 0  last layer  the two neighbors")
for word, (first, *_, last, around) in told.items():
    print(f"{word:6} {first:7.0%} {last:11.0%} {around:18.0%}")
means = [sum(column) / len(column) for column in zip(*told.values())]
expect("Same meaning, last layer, mean of five words", means[-2], 0.85, 1)
expect("Same meaning, the two neighbors", means[-1], 0.85, 1)

# %% jupyter={"source_hidden": true}
plots.lines(
    {"mean of five words": (range(5), means[:-1]), "the two neighbors' embeddings": ([0, 4], [means[-1]] * 2)},
    dashed=["the two neighbors' embeddings"], marker="o",
    title="After one layer, the nearest place has the same meaning", xlabel="after layer",
    ylabel="same meaning (mean of five words)",
    alt="A line over layers 0 to 4: " + ", ".join(f"{x:.0%}" for x in means[:-1])
    + f". A dashed line at {means[-1]:.0%}, the two neighbors' embeddings.",
)

# %% [markdown]
# In layer 0 two places of a word differ only in *where* it stands, and even that is right in two cases of three: the
# one meaning tends to stand earlier in its sentences. After the layers, the nearest place has the same meaning nearly
# always. But so has the baseline's: with all these places to choose from, two neighbors are enough, and the figure
# proves only that layer 1 looks aside. (*left* and *rest* have 24 places, so a share moves by chance by some 20 points
# either way; the mean of five, by about 7.) Lesson 15 asks the harder question, with two labeled places per meaning
# instead of 48. There BERT wins clearly.

# %% [markdown]
# ## 7 The library, and what it costs
#
# `txlib.models` has the encoder and both pre-training heads. The parts have the names of our classes above. Every head
# is an `EncoderHead`: it says how it makes scores of what the encoder gives. The shared `forward` does the rest.

# %%
from txlib.models import BertForPreTraining, Encoder, EncoderConfig
from txlib.models.encoder import EncoderHead

show_source(EncoderHead.forward, BertForPreTraining.score, BertForPreTraining.loss)

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
seen, masked = corrupt(example)  # (batch, n) each, the two rows of section 4.3
with torch.no_grad():
    theirs = library(seen, real, segments)
    tokens, is_random = probe((seen, real, segments), masked)
logits = theirs.prediction_logits[masked != -100]  # (count, vocab)
prove_equal(tokens, logits, tolerance=1e-4, what="The logits of the masked tokens")
prove_equal(is_random, theirs.seq_relationship_logits, what="Those of next sentence")

# %% [markdown]
# And the real sizes? $L$ blocks have $12 d^2 + 13 d$ parameters each (lesson 06). On top come $V$ tokens, 512
# positions and 2 segments of $d$ each, a norm, and the pooler. On torch's *meta* device the models have shapes, but
# no memory.

# %%
from txlib.models.sizes import BERT

for name, sizes in BERT.items():
    d, rows = sizes.block.d_model, sizes.vocab_size + 512 + 2
    formula = sizes.layers * (12 * d**2 + 13 * d) + rows * d + 2 * d + d**2 + d
    with torch.device("meta"):
        built = sum(weight.numel() for weight in Encoder(sizes).parameters())
    print(f"BERT-{name:5} formula {formula:11,}   built {built:11,}")

# %% [markdown]
# The paper rounds to 110 M and 340 M.
#
# **Signal.** A GPT is asked for every token of a text, a BERT for 15% of them: same text, same blocks, nearly the same
# operations. So BERT learns more slowly *per text read*. The paper's appendix C.1 finds that it overtakes a
# left-to-right model almost at once all the same, when both are fine-tuned for a task (MNLI; lesson 15).
#
# **Writing.** A GPT that writes one more token keeps the keys and values of all earlier ones (lesson 13). They cannot
# change, since they have not looked ahead. And BERT? Add one token, and look how far the *earlier* vectors move.

# %%
ids = torch.tensor([[CLS, *encode("In the beginning God created the heavens"), SEP]])


def hidden_of(ids):
    return probe.base(ids, torch.ones_like(ids), torch.zeros_like(ids))[0]


with torch.no_grad():
    before, after = hidden_of(ids[:, :-1]), hidden_of(ids)[:, :-1]  # (1, n, d_model)
moved = (before - after).abs().amax(dim=-1) > 1e-4  # (1, n)
print(f"vectors that moved: {moved.sum()} of {moved.numel()}")

# %% [markdown]
# All. Nothing can be kept, so each new token costs a pass over everything. BERT also has no natural way to say how
# likely a whole text is. It reads; it does not write.
#
# **After BERT.** RoBERTa (Liu et al. 2019) drops the next sentence, draws new masks at each pass, trains longer on
# more text, and is better. ELECTRA (Clark et al. 2020) lets a small model replace tokens, and trains the large one to
# say for *every* token whether it was replaced: signal from 100%, not 15%.
#
# **ModernBERT** (Warner et al. 2024) is what a BERT looks like today: the parts of lesson 16 (pre-norm, rotary
# positions, gated feed-forward, no biases), 30% of the tokens hidden, no next sentence, two trillion tokens of text
# and code, and 8,192 tokens at once, since two layers in three look only 64 tokens to either side. (BERT's table of
# learned positions ends at 512. You will still read that 512 is *the* limit of such models; it was that table's.)
#
# **What are such models for**, when chat models write? For all that needs an answer per *text*, millions of times:
# sort, filter, tag, and above all *find*. An encoder that is trained so that texts about the same matter get similar
# vectors is an *embedding model* (Reimers and Gurevych 2019). A search engine computes the vectors of all its documents
# once, and then only that of the question. MiniLM of lesson 01 is one; lesson 15 looks into it.
#
# To pre-train longer: `txlib train bert`.

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
# Right. Copying solves the task perfectly, and is of no use where there is no right side.
# </details>
# <details><summary>C. Both ways together really know the next token that well</summary>
#
# They know it because they *see* it. Where there is nothing to see, at the end of the text, such a model is worse than
# one that never looks right (lesson 10 §5).
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
# **3. A recipe hides all chosen tokens behind `[MASK]`, with no random and no kept ones. What is lost?**
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
# **4. You append one token to a text. Which vectors of the earlier tokens change, in a GPT and in a BERT?**
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
# ## 9 Summary
#
# - GPT conditions on the left, ELMo joins two one-way readers at the end, BERT reads both ways in every layer.
# - A model that reads both ways sees the next token. So BERT is asked for 15% of the input, which is hidden: 80% of it
#   `[MASK]`, 10% random, 10% kept.
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
