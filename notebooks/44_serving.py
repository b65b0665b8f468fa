# %% [markdown] lesson={"part": "V From a model to an assistant", "builds": "a server's loop: continuous batches, a cache in pages, shared prefixes, prompts in pieces"}
# # 44 · Serving
#
# **After this lesson you will be able to**
#
# - say what a static batch wastes, draw it, and count what continuous batching gets back;
# - keep the caches of many texts in pages, with a block table by hand and in code;
# - write a server's loop: which text enters, how much it reads, and which one is put back when memory
#   runs out;
# - share the pages of equal beginnings, and say what breaks without reference counts;
# - trade the time that one user waits against the number of users, with counts and with a clock.
#
# **You need** lessons 11 and 13. **It takes** about 60 minutes to read and try; all cells together run in about a
# minute on a laptop. Nothing is trained here.

# %% [markdown]
# ## 1 The problem: thirty requests, one model
#
# Lesson 13 made one text fast, and put a few prompts into a batch. A server has many, and they do not fit together:
# prompts are short or long, and nobody knows how long an answer will be before it is written.
#
# Here are thirty requests to lesson 13's model: a piece of a book as a prompt, and a number of new tokens. Most answers
# are short, a few are long. A real answer ends when the model says so. We fix the number so that all runs are alike,
# but a fair server **must not look at it** until the text has ended.

# %%
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import mean

import torch
import torch.nn.functional as F

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, prove_equal, show_source
from txlib import generation, load_pretrained
from txlib.attention import attention, causal
from txlib.data import shipped
from txlib.inspect import activations
from txlib.text import load_tokenizer

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# We need the model, and a text to cut prompts from:

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
tokenizer = load_tokenizer(shipped("glassllm-en"))
BOOK = tokenizer.encode("""Alice was beginning to get very tired of sitting by her
sister on the bank, and of having nothing to do: once or twice she had peeped
into the book her sister was reading, but it had no pictures or conversations
in it, “and what is the use of a book,” thought Alice “without pictures or
conversations?” So she was considering in her own mind (as well as she could,
for the hot day made her feel very sleepy and stupid), whether the pleasure of
making a daisy-chain would be worth the trouble of getting up and picking the
daisies, when suddenly a White Rabbit with pink eyes ran close by her.""")

# %% [markdown]
# Now draw the thirty requests. The simplest server answers one after the other. What it writes is right by definition,
# and all others are compared with it.

# %%
MOST = 64  # new tokens, at most: the user's limit
rng = random.Random(0)
requests = []  # (prompt, new tokens)
for _ in range(30):
    start, length = rng.randrange(len(BOOK) - 40), rng.randint(3, 38)
    new = min(MOST, 3 + int(rng.expovariate(1 / 16)))
    requests.append((BOOK[start : start + length], new))
lengths = [new for _, new in requests]
alone = [generation.generate(model, [prompt], max_new_tokens=new)[0]
         for prompt, new in requests]
print("prompts:", *[len(prompt) for prompt, _ in requests])
print("answers:", *lengths)
print(f"one at a time: {sum(lengths)} steps of the model")

# %% [markdown]
# ## 2 Batches
#
# ### 2.1 Three requests on paper
#
# A step for eight texts takes hardly longer than a step for one, as long as memory is what the step waits for (lesson
# 13, section 5). So we count **steps**, the calls of the model; and **cells**, one row of the batch in one step. An
# idle cell is paid for and writes nothing.
#
# Take three requests, A, B and C, of 2, 5 and 3 tokens, and a batch of two rows. A **static batch** begins with A and B
# and runs until the longest ends. A's row is idle for three steps. Then C runs, alone. That is 8 steps, and 6 of 16
# cells are idle. With **continuous batching** (Yu et al. 2022), the batch is put together again at *each step*: as soon
# as A ends, C takes its row.


# %%
def static(lengths, rows):
    pieces, start = [], 0  # (row, first step, steps) for each text
    for first in range(0, len(lengths), rows):
        batch = lengths[first : first + rows]
        pieces += [(row, start, length) for row, length in enumerate(batch)]
        start += max(batch)  # all wait for the longest
    return pieces


def continuous(lengths, rows):
    pieces, free = [], [0] * rows  # from which step on each row is free
    for length in lengths:
        row = free.index(min(free))
        pieces.append((row, free[row], length))
        free[row] += length
    return pieces


# %% [markdown]
# Here are both plans for A, B and C:

# %% jupyter={"source_hidden": true}
figures.batches(
    {"static": static([2, 5, 3], 2), "continuous": continuous([2, 5, 3], 2)},
    names="ABC", title="A row is free again as soon as its text ends",
)

# %% [markdown]
# ### 2.2 Thirty requests
#
# Now all thirty, with eight rows.

# %% jupyter={"source_hidden": true}
predict(
    "serving-idle", "Static batches of eight: how many of the cells are idle?",
    "about a tenth", "about a third", "more than half",
)

# %% [markdown]
# Two more plans for comparison. The first sorts the requests by the length of their answers, so that those in a batch
# end together. That is cheating, since no server knows these lengths, but it shows how much a good *guess* of the
# length could gain. The second has thirty answers of equal length.


# %%
def report(name, pieces, rows):
    steps = max(start + length for _, start, length in pieces)
    idle = 1 - sum(length for *_, length in pieces) / (rows * steps)
    print(f"{name:36}{steps:5} steps, {idle:4.0%} of the cells idle")


equal = [22] * 30
report("one at a time", static(lengths, 1), 1)
report("static batches of 8", static(lengths, 8), 8)
report("the same, sorted by length (cheating)", static(sorted(lengths), 8), 8)
report("continuous, 8 rows", continuous(lengths, 8), 8)
print(f"{'no plan can do better than':36}{-(-sum(lengths) // 8):5} steps")
report("answers of 22 tokens: static", static(equal, 8), 8)
report("answers of 22 tokens: continuous", continuous(equal, 8), 8)
predicted("serving-idle", "more than half", "One long answer in eight is enough.")

# %% [markdown]
# With continuous batching, the same model writes the same tokens in half the steps. If all answers are equally long, it
# gains nothing: its gain comes from ragged lengths. Idle cells are left only at the end, when the queue is empty.

# %% jupyter={"source_hidden": true}
figures.batches(
    {"static": static(lengths, 8), "continuous": continuous(lengths, 8)},
    title="Static batches wait for their longest text",
)

# %% [markdown]
# ## 3 A cache in pages
#
# ### 3.1 A block table on paper
#
# A text needs more than a row. Its keys and values need memory, one **slot** per token, and again nobody knows how
# many. If you reserve room for the longest possible text, most of it stays empty. If you don't, the next text's slots
# are in the way when this one grows.
#
# Operating systems solved this with pages. Cut the memory into **blocks** of a few slots, and give each text a **block
# table**: which blocks are its own, in order. When its last block is full, a text takes one more, wherever one is free
# (**paged attention**, Kwon et al. 2023, section 4). Two texts, blocks of 4 slots: A reads 6 tokens and takes blocks 0
# and 1, B reads 3 and takes block 2. Then each writes four tokens.

# %% jupyter={"source_hidden": true}
figures.pages(
    {"prompts read": [("A", 4), ("A", 2), ("B", 3), None, None],
     "4 tokens later": [("A", 4), ("A", 4), ("B", 4), ("B", 3), ("A", 2)],
     "A has ended": [None, None, ("B", 4), ("B", 3), None]},
    4, title="A text's blocks may lie anywhere",
)

# %% [markdown]
# B's fourth slot is full one step before A's eighth, so B takes block 3 and A block 4. A's table is now 0, 1, 4, and
# B's is 2, 3. Where is token 9 of A (counted from 0)? It is in block number $9 // 4 = 2$ of its table, which is 4, at
# position $9 \bmod 4 = 1$: slot $4 \cdot 4 + 1 = 17$. At most one block per text is partly
# empty, so a text wastes fewer slots than a block has. In code:


# %%
@dataclass(eq=False)
class Text:
    ids: list[int]
    end: int  # its length when it ends; only the last lines of `serve` may look
    table: list[int] = field(default_factory=list)
    read: int = 0  # how many of its tokens the model has read


# %% [markdown]
# `Pages` keeps the list of free blocks, hands them out and takes them back:


# %%
class Pages:
    def __init__(self, blocks, size):
        self.size, self.free = size, deque(range(blocks))

    def missing(self, text):  # blocks that it still needs for all its tokens
        return -(-len(text.ids) // self.size) - len(text.table)

    def grow(self, text):
        text.table += [self.free.popleft() for _ in range(self.missing(text))]

    def release(self, text):
        self.free.extend(text.table)
        text.table, text.read = [], 0

    def slots(self, text, length):  # of its first tokens
        place = torch.arange(length)
        table = torch.tensor(text.table)
        return table[place // self.size] * self.size + place % self.size  # (length,)


# %% [markdown]
# ### 3.2 The server's loop
#
# Section 2 only planned; now comes the loop. A step *reads* tokens: of a text that writes, the last one it wrote; of a
# new text, its whole prompt (the **prefill**). First each running text gets the blocks that it needs. What if none is
# free? Then the text that came last is **preempted**: its blocks are taken away, and it goes back to the front of the
# queue. What it has written is kept, and read again later.


# %%
def make_room(running, waiting, pages):
    for text in list(running):
        while text in running and pages.missing(text) > len(pages.free):
            last = running.pop()
            pages.release(last)
            waiting.appendleft(last)
        if text in running:
            pages.grow(text)


# %% [markdown]
# Then new texts come in, as long as there is a row and there are blocks for the prompt. Last, the plan: texts that
# write come first, and the `budget` limits how many tokens a step reads. Until section 6 it is 1,000, enough for
# everything.


# %%
def admit(running, waiting, pages, rows):
    while waiting and len(running) < rows:
        if pages.missing(waiting[0]) > len(pages.free):
            break
        running.append(waiting.popleft())
        pages.grow(running[-1])


def planned(running, budget):  # which texts read how many tokens in this step
    plan = []
    for text in sorted(running, key=lambda text: len(text.ids) - text.read > 1):
        new = min(len(text.ids) - text.read, budget)
        budget -= new
        if new:
            plan.append((text, new))
    return plan


# %% [markdown]
# Now the loop itself. `read(plan)` is the model's part: it returns a next token for each text of the plan. A text whose
# prompt has not been read to its end ignores it.


# %%
def serve(texts, pages, read, rows=30, budget=1000):
    waiting, running, log = deque(texts), [], []
    while waiting or running:
        make_room(running, waiting, pages)
        admit(running, waiting, pages, rows)
        plan = planned(running, budget)
        for (text, new), token in zip(plan, read(plan)):
            text.read += new
            if text.read == len(text.ids):
                text.ids.append(token)
        log.append([(new, t.read, len(t.table) * pages.size) for t, new in plan])
        for text in [text for text in running if len(text.ids) == text.end]:
            running.remove(text)
            pages.release(text)
    return log  # of each step and text: tokens read now, slots filled, slots taken


# %% [markdown]
# ### 3.3 Waste, counted
#
# The loop doesn't care what is written, so we can count without the model: let `read` return zeros. All texts together
# have 640 slots, five times this model's context of 128. Reserving the context for each text is the same code with
# blocks of 128. A better rival reserves what the *user* allows, here 64 tokens after the prompt:

# %% jupyter={"source_hidden": true}
predict(
    "serving-waste", "With blocks of 4, how many of the taken slots are empty, on average over all steps?",
    "about 4%", "about 25%", "about half",
)


# %%
class Allowed(Pages):  # blocks of 1; at first all that the text may need
    def missing(self, text):
        return 0 if text.table else len(text.ids) + MOST


def no_model(plan):
    return [0] * len(plan)


def totals(log):  # tokens read, slots filled, slots taken
    return torch.tensor([entry for step in log for entry in step]).sum(dim=0).tolist()


def texts(beginning=()):
    prompts = [[*beginning, *prompt] for prompt, _ in requests]
    return [Text(ids, len(ids) + new) for ids, new in zip(prompts, lengths)]


# %% [markdown]
# Steps, most texts at once, and empty slots:

# %%
SLOTS = 640
memories = {"reserve the context": Pages(SLOTS // 128, 128),
            "reserve what is allowed": Allowed(SLOTS, 1)}
memories |= {f"blocks of {size}": Pages(SLOTS // size, size) for size in (32, 16, 4, 1)}
for name, pages in memories.items():
    log = serve(texts(), pages, no_model)
    read, filled, taken = totals(log)
    print(f"{name:24}{len(log):4} steps, at most {max(map(len, log)):2} texts, "
          f"{1 - filled / taken:4.0%} empty; {read:,} tokens read")
predicted("serving-waste", "about 4%", "Half a block for each text.")

# %% [markdown]
# In the same memory, blocks of 16 hold 22 texts instead of 5, and need less than half the steps; compared with the
# better rival, about half. (64 is the least there can be, since the longest answer has 64 tokens.) The texts have
# 1,234 tokens to read. The last column shows what preemption costs: with
# pages, 69 to 186 tokens are read again. Why not always blocks of 1? Each block is looked up on its own, and hardware
# likes to read neighbors. With 16, tables are short and the waste is moderate.
#
# ## 4 One step for many texts
#
# ### 4.1 The model reads from pages
#
# We have a loop that plans, and need a model that reads such a plan. Texts of a step have different lengths, both what
# they read now and what they have read before. No rectangle fits, and none is needed. Embeddings, norms, matrices and
# feed-forward networks work on each token alone, so **all tokens of the step form one long sequence**, without padding.
# Only attention must know which text a token is from (Yu et al. 2022 call this *selective batching*).
#
# Projections and heads are lesson 13's. The only new thing is that each token brings its own position:


# %%
def project(layer, x, positions):  # x (1, token, d_model)
    q, k = layer.split(layer.query(x)), layer.split(layer.key(x))
    q, k = (layer.rotary(each, offset=positions) for each in (q, k))
    return q, k, layer.split(layer.value(x))  # (1, heads or kv_heads, token, d_k)


def mix(layer, q, k, v, allowed):
    group = layer.heads // layer.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    mixed = attention(q, k, v, allowed)  # (1, heads, new, d_k)
    return layer.output(mixed.transpose(1, 2).flatten(2))  # (1, new, d_model)


# %% [markdown]
# `spans` holds, for each text, how much of it had been read, and the slots of all its tokens, old and new. Write the
# new keys and values where they belong; then let each text attend to its own slots. (`apart=False` is for an
# experiment.)


# %%
def attend(layer, x, cache, spans, apart=True):  # cache (2, kv_heads, slot, d_k)
    positions = torch.cat([torch.arange(read, len(slots)) for read, slots in spans])
    q, k, v = project(layer, x, positions)
    new = torch.cat([slots[read:] for read, slots in spans])  # (token,)
    cache[:, :, new] = torch.cat([k, v])
    queries = q.split([len(slots) - read for read, slots in spans], dim=2)
    out = []
    for mine, (read, slots) in zip(queries, spans):
        allowed = causal().shift(read).dense(mine.shape[2], len(slots))
        if not apart:
            others = [other for _, other in spans if other is not slots]
            slots = torch.cat([slots, *others])
            allowed = F.pad(allowed, (0, len(slots) - allowed.shape[-1]), value=True)
        keys, values = cache[:, None, :, slots]
        out.append(mix(layer, mine, keys, values, allowed))
    return torch.cat(out, dim=1)  # (1, token, d_model)


# %% [markdown]
# A step in which a text reads a prompt of six tokens while two others write one token each:

# %% jupyter={"source_hidden": true}
figures.step_mask(
    {"A": (0, 6), "B": (4, 1), "C": (7, 1)}, title="All tokens in one row; each text attends to its own slots",
)

# %% [markdown]
# Around it, all layers as in lesson 13. The logits are wanted only after each text's last token:


# %%
@torch.no_grad()
def forward(ids, memory, spans, **options):  # ids: the tokens of all texts
    x = model.embedding(torch.tensor([ids]))  # (1, token, d_model)
    for layer, cache in zip(model.decoder.layers, memory):
        normed = layer.self_attention_norm(x)
        x = x + attend(layer.self_attention, normed, cache, spans, **options)
        x = x + layer.feed_forward(layer.feed_forward_norm(x))
    counts = torch.tensor([len(slots) - read for read, slots in spans])
    last = counts.cumsum(dim=0) - 1  # (text,)
    return model.logits(model.decoder.norm(x[0, last]))  # (text, vocab)


# %% [markdown]
# Last, a function that reads plans, with a memory of its own:


# %%
def reader(pages, blocks, **options):
    layers = model.decoder.layers
    kv_heads, d_k = layers[0].self_attention.kv_heads, layers[0].self_attention.head_dim
    memory = [torch.zeros(2, kv_heads, blocks * pages.size, d_k) for _ in layers]

    def read(plan):
        ids, spans = [], []
        for text, new in plan:
            ids += text.ids[text.read : text.read + new]
            spans.append((text.read, pages.slots(text, text.read + new)))
        return forward(ids, memory, spans, **options).argmax(dim=-1).tolist()

    return read


# %% [markdown]
# Does it write what `generate` writes for each request alone? With blocks of 4, in 640 slots, with preemption:


# %%
def written(texts):
    return [text.ids[text.end - new :] for text, new in zip(texts, lengths)]


served, pages = texts(), Pages(SLOTS // 4, 4)
log = serve(served, pages, reader(pages, SLOTS // 4))
prove_equal(torch.tensor(sum(written(served), [])), torch.tensor(sum(alone, [])),
            tolerance=0, what="All thirty answers")
print(f"{len(log)} steps instead of {sum(lengths)}")
print(f"free at the end: {len(pages.free)} of {SLOTS // 4} blocks")

# %% [markdown]
# ### 4.2 Break it: texts that see each other
#
# With `apart=False` each token may also attend to all slots of the step's *other* texts. No shape is wrong, no error is
# raised. We serve request 4 alone, and then together with three others, one at a time:

# %% jupyter={"source_hidden": true}
predict(
    "serving-apart", "Request 4 may see another user's text. What does its own user get?",
    "the same answer", "gibberish", "ordinary words, but other ones with each partner",
)

# %%
for partners in ([], [6], [3], [12]):
    batch, pages = [texts()[number] for number in (4, *partners)], Pages(100, 4)
    serve(batch, pages, reader(pages, 100, apart=False))
    said = batch[0].ids[-lengths[4] :]
    print(f"with {partners or 'nobody'}:", repr(tokenizer.decode(said)))
print("right:", repr(tokenizer.decode(alone[4])))
predicted("serving-apart", "ordinary words, but other ones with each partner")

# %% [markdown]
# Alone, nothing is wrong. Each partner gives a different text, and all of them look like language. That makes such
# bugs dangerous: one user reads an answer that depends on another user's prompt. No error shows it, only the comparison
# with the text alone. So that is the test to write first.
#
# ## 5 Shared beginnings
#
# ### 5.1 Blocks with names
#
# Most requests to an assistant begin with the same instructions, and each turn of a conversation begins with all turns
# before it. The keys and values of equal beginnings are equal. Why compute and keep them thirty times?
#
# To find out whether a block has been read before, give each *full* block a **name**. Would its tokens do as a name?
# Take the same four tokens at the same positions after two different beginnings, and compare their keys:

# %%
one, other = BOOK[:8], BOOK[30:38]
piece = BOOK[100:104]  # four tokens, at positions 8 to 11
with torch.no_grad(), activations(model, "*.self_attention.key") as seen:
    model(torch.tensor([[*one, *piece], [*other, *piece]]))
for name, keys in seen.items():  # (2, 12, kv_heads · d_k)
    moved = (keys[0, 8:] - keys[1, 8:]).norm() / keys[0, 8:].norm()
    print(f"{name}: keys differ by {moved:.0%}")

# %% [markdown]
# In the first layer, keys depend on the tokens and their positions alone. From the second on, they depend on everything
# before (as in lesson 13, section 2.3). So a block's name must contain the name of the block before it: $\text{name}_i
# = \text{hash}(\text{name}_{i-1}, \text{tokens}_i)$. With blocks of 4, *to be or not | to be or not* has two blocks
# with the same tokens and different names:

# %%
def names_of(ids, size):
    names = [None]
    for end in range(size, len(ids), size):
        names.append(hash((names[-1], *ids[end - size : end])))
    return names[1:]


# %% [markdown]
# (A block with the text's last token gets no name: a text must read at least that token, for its prediction.) When a
# text comes in, its table begins with the blocks that already have its names, and they count as read:


# %%
class NamedPages(Pages):
    def __init__(self, blocks, size):
        super().__init__(blocks, size)
        self.named = {}  # name → block

    def grow(self, text):
        names = [] if text.table else names_of(text.ids, self.size)
        for name in names:
            if name not in self.named:
                break
            text.table.append(self.named[name])
            text.read += self.size  # these tokens need not be read again
        super().grow(text)
        self.named |= dict(zip(names, text.table))


# %% [markdown]
# ### 5.2 Break it: who frees a shared block?
#
# Two requests begin alike, so block 0 is in both tables. A is short and ends first. Our `release` gives back *all* of
# its blocks, and C, another text, takes the next that are free. On the left each text's block table, on the right the
# memory, in the color of the text whose keys it holds, and how many tables have it (which no code counts yet):

# %% jupyter={"source_hidden": true}
figures.block_tables(
    {"B shares block 0": ({"A": [0, 1], "B": [0, 2]}, ["AB", "A", "B", ""]),
     "A has ended, C has come": ({"B": [0, 2], "C": [3, 0]}, ["C", "", "B", "C"]),
     "as it should be": ({"B": [0, 2], "C": [3, 1]}, ["B", "C", "B", "C"])},
    title="Block 0 must stay while B needs it", wrong="B reads C's keys")

# %% jupyter={"source_hidden": true}
predict(
    "serving-shared", "C writes into block 0 while B still needs it. What happens to B's text?",
    "nothing: B has read its prompt already", "it stops with an error", "it goes wrong without an error",
)


# %%
def three():
    a, b, c = [*BOOK[:24], *BOOK[40:44]], [*BOOK[:24], *BOOK[60:64]], BOOK[100:130]
    return [Text(a, len(a) + 4), Text(b, len(b) + 20), Text(c, len(c) + 20)]


def text_b(pages):
    a, b, c = three()
    serve([a, b, c], pages, reader(pages, 20), rows=2)
    return b.ids[28:]


right = text_b(Pages(20, 4))
wrong = text_b(NamedPages(20, 4))
print("not shared:       …", repr(tokenizer.decode(right)))
print("freed while used: …", repr(tokenizer.decode(wrong)))
predicted("serving-shared", "it goes wrong without an error", "It reads C's keys now.")

# %% [markdown]
# The cure is to count how many tables hold each block (its **reference count**), and to free a block when the count is
# 0:


# %%
class SharedPages(NamedPages):
    def __init__(self, blocks, size):
        super().__init__(blocks, size)
        self.tables = Counter()  # block → how many tables hold it

    def grow(self, text):
        before = len(text.table)
        super().grow(text)
        self.tables.update(text.table[before:])

    def release(self, text):
        self.tables.subtract(text.table)
        self.free.extend(block for block in text.table if not self.tables[block])
        self.named = {n: block for n, block in self.named.items() if self.tables[block]}
        text.table, text.read = [], 0


print("with counts, B is as it was:", text_b(SharedPages(20, 4)) == right)

# %% [markdown]
# ### 5.3 What it saves
#
# All thirty requests get the same 24 tokens as a beginning. There are 640 slots as before:

# %%
beginning = BOOK[60:84]
ways = {"not shared": Pages(160, 4), "not shared, twice the slots": Pages(320, 4),
        "shared": SharedPages(160, 4)}
for name, pages in ways.items():
    served = texts(beginning)
    log = serve(served, pages, reader(pages, 160) if name == "shared" else no_model)
    print(f"{name:28}{totals(log)[0]:5,} tokens read, {len(log)} steps, "
          f"at most {max(map(len, log))} texts")
expected = [generation.generate(model, [beginning + prompt], max_new_tokens=new)[0]
            for prompt, new in requests]
print("as alone:", written(served) == expected)

# %% [markdown]
# Sharing saves twice: fewer tokens are read, and 29 texts find room instead of 13. Which of the two saves steps? The
# middle row has the room without the sharing, and needs as few steps: it is the room. It also reads each token once,
# 1,954 in all, so sharing by itself saves 676 tokens, about a third.
#
# We name a block when it is taken. That is safe here, where each prompt is read in one step; if prompts are read in
# pieces (section 6), a block may be shared only once it has been read. And we forget a name as soon as its block is
# free. The library keeps it until the block is needed for something else, so that a conversation's next turn finds the
# blocks of the last. It hashes with SHA-256: if two different beginnings had the same name, one user would read the
# other's text. SGLang keeps a tree of beginnings instead of names (*RadixAttention*, Zheng et al. 2024, section 3).
#
# ## 6 Who waits for whom
#
# ### 6.1 A long prompt comes
#
# So far we have looked at the machine. What about *one* user, who watches the words appear? Three texts are writing, a
# fourth ends, and a prompt of 100 tokens takes its row. Its step reads 103 tokens instead of 4. How long do the others
# wait for their next word?
#
# We need a measure of time. On a machine where up to 16 tokens take as long as one, because the weights must be read
# anyway (lesson 13, section 5), and where from there on each token costs the same, a step takes as long as its tokens,
# but at least 16. In this unit we can count. The remedy is to read the prompt in pieces (**chunked prefill**, Agrawal
# et al. 2024): a step has a `budget` of tokens, texts that write go first, and a prompt gets what is left.

# %% jupyter={"source_hidden": true}
predict(
    "serving-chunks", "With 16 tokens per step instead of all at once, the long prompt's own first token comes …",
    "earlier", "a little later", "six times as late",
)


# %%
def cost(step):  # tokens that a step reads, but at least 16
    return max(16, sum(new for new, _, _ in step))


def with_long_prompt(budget):  # the cost of each step; which one ends the prompt
    short = [Text([0, 0, 0], 3 + new) for new in (6, 30, 30, 30)]
    log = serve([*short, Text([0] * 100, 110)], Pages(100, 4), no_model, 4, budget)
    whole = [any(read >= 100 for _, read, _ in step) for step in log]
    return [cost(step) for step in log], whole.index(True)


for budget in (1000, 64, 32, 16, 8):
    costs, first = with_long_prompt(budget)
    print(f"budget {budget:4}: others wait at most {max(costs[6:]):3}; the long text's "
          f"first token after {sum(costs[6 : first + 1])}; all done after {sum(costs)}")
predicted("serving-chunks", "a little later")

# %% [markdown]
# All at once, the others wait six times as long for one word. With 16 per step they notice nothing; the long text's
# first token comes a quarter later, and everything ends sooner, since the room in each step is used. With a budget of
# 8, steps are half empty, and the long text waits longer without helping anyone. The best budget is what a step holds
# for free.

# %% [markdown]
# ### 6.2 Latency and throughput
#
# **Throughput** is how many tokens a machine writes per second, for all users together. **Latency** is how long one
# user waits: for the first token, and then from each token to the next. How do these three numbers change with more
# rows?
#
# We measure it with the library's engine, which section 7 explains. Times are in CPU seconds, and yours will differ.


# %%
def measured(rows):
    engine = generation.Engine(model, max_running=rows, max_waiting=30)
    stamps = [[] for _ in requests]  # when each token came
    for (prompt, new), mine in zip(requests, stamps):
        engine.submit(prompt, max_new_tokens=new,
                      listen=lambda _, mine=mine: mine.append(time.process_time()))
    start = time.process_time()
    engine.run()
    seconds = time.process_time() - start
    first = mean(mine[0] - start for mine in stamps)
    between = mean((mine[-1] - mine[0]) / (len(mine) - 2) for mine in stamps)
    return sum(lengths) / seconds, 1000 * between, 1000 * first


# %% [markdown]
# (The engine calls `listen` with each token, and once more at the end.) From one row to thirty:

# %% tags=["nbval-ignore-output"]
points = {rows: measured(rows) for rows in (1, 4, 8, 30)}
for rows, (speed, between, first) in points.items():
    print(f"{rows:2} rows: {speed:4.0f} tokens a second; {between:4.1f} ms from token",
          f"to token, {first:5.0f} ms to the first one")
expect("Throughput with 30 rows against 1", points[30][0] / points[1][0], 1.5, 30)

# %% [markdown]
# As a curve:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
figures.tradeoff(points, title="More rows: more tokens for all, a slower pace for each")

# %% [markdown]
# From token to token, a user is served best alone. But with few rows, most users wait in the queue, and their *first*
# token comes much later. Which point is right depends on the use: in a chat, tokens need only come faster than one
# reads; a batch job overnight wants throughput.
#
# ## 7 The library
#
# ### 7.1 The same texts
#
# `txlib.generation.Engine` is this lesson's loop. It adds what a real server needs: sampling with a seed per request,
# ends and stop words, requests that come and are canceled while it runs, and attention for all texts with similar
# lengths in one call. Does it write what each request would get alone?

# %%
engine = generation.Engine(model, cache_tokens=SLOTS, block_size=16, step_tokens=64)
submitted = [engine.submit(prompt, max_new_tokens=new) for prompt, new in requests]
engine.run()
tokens = [request.written for request in submitted]
prove_equal(torch.tensor(sum(tokens, [])), torch.tensor(sum(alone, [])),
            tolerance=0, what="Engine and generate")
print(f"{engine.steps} steps, {engine.tokens_read:,} tokens read, "
      f"{engine.preemptions} times a text was put back")

# %% [markdown]
# Its heart is `schedule`, our `make_room`, `planned` and `admit` in one. `reserve` is our `grow`, and `reuse` looks for
# names:

# %%
show_source(generation.Engine.schedule, last=19)

# %% [markdown]
# There are two differences. A new text comes in only if each running one could still take one more block, and none
# comes in during a step in which one was put back. Here, with blocks of 16, that takes more steps, 85 instead of our
# 64, but no token is read twice. (It even reads 16 fewer than there are, since two prompts happen to begin alike.)
#
# `txlib serve --model FOLDER` puts the engine behind a web address, and draws blocks and texts while it works.
#
# ### 7.2 Against others
#
# `benchmarks/serve.py` lets this lesson's ways, transformers' continuous batching and llama.cpp's server (these two can
# share prefixes as well) answer ragged requests to a Llama of 16 million random weights, in 32 bits, on one processor
# core. All have memory for 8 texts of full length, except the static batch with four times as much, and write the same
# tokens. Here are the ratios of the recorded speeds:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
import json

from txlib.paths import DATA

results = DATA.parent / "benchmarks" / "results"
few, many = (json.loads((results / name).read_text()) for name in ("serve.json", "serve_64.json"))
print(f"{'':40}{few['requests']} requests  {many['requests']} requests")
for row, other in zip(few["rows"], many["rows"], strict=True):
    print(f"{row['what']:40}{row['ratio']:11.1f}{other['ratio']:13.1f}")
few, many = (record["engines"]["shared prefixes"]["ratio_of_steps"] for record in (few, many))
print(f"{'shared prefixes / static, in steps':40}{few:11.1f}{many:13.1f}")

# %% [markdown]
# In the same memory, continuous batching is more than twice as fast as static batches, and shared prefixes add to that.
# The strongest static rival has four times the memory; it loses by less. Of the two servers llama.cpp's is nearer: with
# 32 requests it was level in one round of five. The last row says what there is to gain: how many steps static batches
# take for each step of the engine with shared prefixes. No server takes fewer steps than its longest answer has tokens,
# so with few requests the last steps are nearly empty (our explanation of why more requests raise the ratio). All were
# measured in turns. On a GPU a step has another cost, and the ratios would differ.
#
# ### 7.3 Fewer bytes, fewer calls
#
# All of lesson 13 still applies. Weights in fewer bits take less to read, and a cache in fewer bits has more slots in
# the same memory: `Engine(model, kv_cache_dtype="int8")`. What does that cost this lesson's model, on a play that it
# has not seen? `benchmarks/cheaper.py` recorded it:

# %% jupyter={"source_hidden": true}
recorded = json.loads((results / "cheaper.json").read_text())
print(f"{'':22}{'bytes':>10}   nats per token")
for row in recorded["fewer"]:
    print(f"{row['what']:>8} in {row['bits']:>2} bits{row['bytes']:15,.0f}{row['loss']:12.3f}")

# %% [markdown]
# The cache's bytes are those of one token. In 8 bits, each key and each value has a scale of its own (lesson 13), and
# nothing is lost: 3.6 times as many texts fit as in 32 bits. With 4 bits, 32 neighboring weights share a scale; that
# loses less here than 8 bits with one scale per row. (Our 8-bit kernel rounds its inputs too.)
#
# A draft (lesson 13, section 7) makes several tokens per call. No smaller model with our vocabulary is at hand, but
# there is something better to guess from: the model's own last state. A **draft head** is a small network that turns
# this state and the token just chosen into the next state, and so on (Cheng et al. 2024). It is trained on
# texts that the model has written, to give the model's own probabilities. Its rival is a table of pairs, counted in the
# same texts:

# %% jupyter={"source_hidden": true}
for name, draft in recorded["drafts"].items():
    print(f"{name:16}{draft['tokens_per_call']:5.2f} tokens per call, {draft['accepted']:.0%} of the guesses accepted")
minutes = mean(recorded["seconds_of_training"].values()) / 60
print(f"training a head: {minutes:.1f} CPU minutes")
for row in recorded["rows"]:
    print(f"{row['what']:24}{row['ratio']:5.2f} times as fast as the model alone")

# %% [markdown]
# A minute and a half of training nearly halves the calls. But the table, which needs none, comes close: every head
# guesses better, though not by much, and in time they are about equal (our explanation: a look into a table costs next
# to nothing). `speculate(model, head, …)` takes either as a draft, and writes the same tokens with both.
#
# In a server, the cells of refused guesses are paid for. If few texts are running, they would have been idle anyway; in
# a full batch they could have served other texts (by the count of section 6.1; we have not measured it).

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A table is 7, 2, 9, with blocks of 16. In which slot is token 20, counted from 0?**
#
# <details><summary>A. 20</summary>
#
# Only if the text had the blocks 0 and 1.
# </details>
# <details><summary>B. 36</summary>
#
# Right: block number 1 of the table is 2, and $2 \cdot 16 + 4 = 36$.
# </details>
# <details><summary>C. 116</summary>
#
# That is position 4 of block 7: token 4.
# </details>
#
# **2. Two texts have the same 16 tokens at positions 16 to 31, and different ones before. May they share that block?**
#
# <details><summary>A. Yes, tokens and positions agree</summary>
#
# In the first layer their keys agree, from the second on they don't: section 5.1.
# </details>
# <details><summary>B. No</summary>
#
# Right: keys and values depend on all tokens before.
# </details>
# <details><summary>C. Yes, with a reference count</summary>
#
# It says when a block is free, not whether its content is right.
# </details>
#
# **3. Users complain that words sometimes stop for a second, whenever a long document comes in. What helps?**
#
# <details><summary>A. More rows</summary>
#
# Then more users wait for the same step.
# </details>
# <details><summary>B. Smaller blocks</summary>
#
# They save memory.
# </details>
# <details><summary>C. A budget of tokens per step</summary>
#
# Right: the document is read in pieces, next to the words of the others.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A static batch waits for its longest text. With continuous batching the next text takes a free row at once. The more
#   ragged the lengths, the larger the gain.
# - A step needs no rectangle: all its tokens form one long sequence, and only attention keeps the texts apart.
# - A cache in pages wastes less than a block per text. If memory runs out, a text is put back and read again.
# - A full block is named by its tokens and all before them. Equal beginnings share it, and a count says when it is
#   free.
# - A budget per step lets a long prompt in without making others wait.
# - More rows give more tokens per second and an earlier first token; after it, each text's tokens come more
#   slowly.
# - Errors here look like language. Compare with the text alone.
#
# **Read** Yu et al. 2022, [Orca](https://www.usenix.org/conference/osdi22/presentation/yu), section 3. Kwon et al.
# 2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), section 4. Zheng et al. 2024,
# [arXiv:2312.07104](https://arxiv.org/abs/2312.07104), section 3. Agrawal et al. 2024,
# [arXiv:2403.02310](https://arxiv.org/abs/2403.02310), sections 3 and 4. Leviathan et al. 2023,
# [arXiv:2211.17192](https://arxiv.org/abs/2211.17192). Cheng et al. 2024, *Recurrent Drafter*,
# [arXiv:2403.09919](https://arxiv.org/abs/2403.09919).
#
# **Do** the exercise [44_serving](../exercises/exercise_44_serving.ipynb).
