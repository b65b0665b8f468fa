# %% [markdown] lesson={"part": "II Language models", "builds": "a real Llama loaded by hand, wrong parts found by numbers, YaRN and a needle test, a family ported"}
# # 17 · Real checkpoints: load, doubt, stretch, port
#
# **After this lesson you will be able to**
#
# - read a checkpoint byte by byte, and fill your own model with it;
# - find out which part is wired wrongly when nothing but the text looks odd;
# - make a model read longer texts than it was trained on, and test with a needle whether it uses them;
# - port a family of models that your code does not know yet, and prove it.
#
# **You need** lessons 10, 11, 13 and 16. **It takes** about 65 minutes to read and try; all cells together run in about
# a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a folder from a stranger
#
# Lesson 16 built the parts of today's decoders. A model that someone else has trained comes as a folder, and its
# `config.json` says what to build. First the imports:

# %%
import json
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.data import reviews, shakespeare, shipped
from txlib.models.pretrained import load_pretrained
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal

# %% [markdown]
# This folder, a Llama of 852,608 parameters, is bundled with the course. Its author trained it on the books of Lewis
# Carroll:

# %%
folder = shipped("glassllm-en")
config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
for name, value in vars(config).items():
    print(f"{name:24} {value}")

# %% [markdown]
# With lesson 16 in mind: four blocks, four query heads on two KV heads, a SwiGLU 341 wide, rotary positions with base
# 10,000, one matrix for embedding and output.
#
# The second file needs no library either. A safetensors file is eight bytes that say how long the header is, the
# header, and then nothing but numbers. The header is JSON: name, type, shape, first and last byte. There is no code in
# it, so a file from a stranger cannot run any. (A pickle can.)

# %%
raw = bytearray((folder / "model.safetensors").read_bytes())
length = int.from_bytes(raw[:8], "little")
header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
header.pop("__metadata__", None)
print(f"header: {length:,} bytes, {len(header)} tensors; numbers: {len(data):,} bytes")
print("model.norm.weight", header["model.norm.weight"])


def tensor(entry):  # bytes into numbers
    first, last = entry["data_offsets"]
    numbers = torch.frombuffer(data[first:last], dtype=torch.float16)
    return numbers.view(entry["shape"]).float()


print(tensor(header["model.norm.weight"])[:6])

# %% [markdown]
# 256 bytes for 128 numbers: two bytes each, half precision.

# %% [markdown]
# ## 2 The idea in one picture
#
# Where does each of these tensors belong? Here is the model in the file's names, read from the bottom:

# %% jupyter={"source_hidden": true}
figures.checkpoint()

# %% [markdown]
# A loader is a table that says which name in the file is which part of your model. But a wrong model loads just as
# well. *How do you know that yours is right?* The rest of the lesson is about that question.

# %% [markdown]
# ## 3 Your own model holds it
#
# ### 3.1 The parts of lesson 16, in one piece
#
# Lesson 16 brought in the parts one swap at a time. Here they are again, for Llama alone. First the norm and the gated
# network:


# %%
class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):  # (..., size)
        scale = (x.float().square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return self.weight * (x.float() * scale).type_as(x)


class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):  # (batch, n, d_model), by way of (batch, n, d_ff)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


# %% [markdown]
# Next, how queries and keys are turned, and which query heads share a KV head. Both are functions, so that we can
# exchange them when we break things in section 5.


# %%
def rotate(x, angle):  # (..., n, d_k), (n, d_k / 2): halves
    (first, second), cos, sin = x.chunk(2, dim=-1), angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def turn(q, k, angle):
    return rotate(q, angle), rotate(k, angle)


def groups(kv, heads):  # (batch, kv_heads, n, d_k) to (batch, heads, n, d_k)
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


# %% [markdown]
# Attention gets the angles by which to turn at each position:


# %%
class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.d_k = c.hidden_size, c.head_dim
        wide, kv = c.num_attention_heads * self.d_k, c.num_key_value_heads * self.d_k
        self.query, self.output = nn.Linear(d, wide, False), nn.Linear(wide, d, False)
        self.key, self.value = nn.Linear(d, kv, False), nn.Linear(d, kv, False)
        self.turn, self.share = turn, groups

    def forward(self, x, angle):  # (batch, n, d_model), (n, d_k / 2)
        q, k, v = (make(x).unflatten(-1, (-1, self.d_k)).transpose(1, 2)
                   for make in (self.query, self.key, self.value))
        q, k = self.turn(q, k, angle)  # (batch, heads or kv_heads, n, d_k)
        k, v = self.share(k, q.shape[1]), self.share(v, q.shape[1])
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (batch, n, d_model)


# %% [markdown]
# The block is lesson 16's:


# %%
class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention = Attention(c)
        self.feed_forward = SwiGLU(c.hidden_size, c.intermediate_size)
        self.attention_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.feed_forward_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, angle):  # (batch, n, d_model), (n, d_k / 2)
        x = x + self.attention(self.attention_norm(x), angle)
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown]
# In the model, `frequency` is how far each pair of dimensions turns per position; section 6 will change it. Most Llamas
# have a separate output matrix, which the file calls `lm_head`. Ours is tied.


# %%
class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c.vocab_size, c.hidden_size)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        untied = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.output = None if c.tie_word_embeddings else untied
        self.frequency = c.rope_theta ** -(torch.arange(0, c.head_dim, 2) / c.head_dim)

    def forward(self, ids):  # (batch, n)
        angle = torch.arange(ids.shape[1])[:, None] * self.frequency  # (n, d_k / 2)
        x = self.embedding(ids)  # (batch, n, d_model)
        for block in self.blocks:
            x = block(x, angle)
        return self.norm(x) @ (self.output or self.embedding).weight.T


# %% [markdown]
# ### 3.2 A table of names
#
# Each name of the file becomes ours. `load_state_dict` refuses missing names, unknown names and wrong shapes.
# (Some files need more than names. GPT-2's `c_attn` is query, key and value in one matrix, stored as (inputs, outputs):
# transpose it, then cut it in three.)

# %%
NAMES = {
    "model.": "", "embed_tokens": "embedding", "layers": "blocks",
    "self_attn": "attention", "mlp": "feed_forward",
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
}


def our_name(name):
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


# %% [markdown]
# So `model.layers.0.self_attn.q_proj.weight` becomes `blocks.0.attention.query.weight`. Now fill the model.
# `<All keys matched successfully>` says that nothing was missing and nothing was left over.


# %%
weights = {our_name(name): tensor(entry) for name, entry in header.items()}


def load():
    model = Llama(config)
    message = model.load_state_dict(weights)
    return model.eval(), message


real, message = load()
print(message)

# %% [markdown]
# ### 3.3 It writes
#
# The folder's third file is a byte-pair vocabulary of 1,024 tokens (lesson 01). Let your Llama write, at temperature
# 0.7, among the 40 likeliest tokens (lesson 11):

# %% tags=["nbval-ignore-output"]
from txlib.generation import keep_top_k
from txlib.text import load_tokenizer

tokenizer = load_tokenizer(folder)


@torch.no_grad()
def write(model, prompt, tokens=40, seed=0):
    torch.manual_seed(seed)
    ids = tokenizer.encode(prompt)
    for _ in range(tokens):
        logits = keep_top_k(model(torch.tensor([ids]))[0, -1] / 0.7, 40)  # (vocab,)
        ids.append(logits.softmax(dim=-1).multinomial(1).item())
    return tokenizer.decode(ids)


print(write(real, "Alice was beginning to", tokens=100))

# %% [markdown]
# It has spelling, quotation marks, Alice and the Queens, but it makes no sense. Is every part right, then? A text that
# looks right proves nothing, as section 5 will show.
#
# ### 3.4 The same numbers, also in your own file
#
# So compare all logits with those of the library, which reads the same folder. Your model needs nothing but torch:
# `write_module` copies its cells into a file, as in lesson 08, and that file must give the same logits.

# %%
from txcourse.lesson import write_module

library = load_pretrained(folder, dtype=torch.float32)
rhyme = "The Queen of Hearts, she made some tarts, all on a summer day."
ids = torch.tensor([tokenizer.encode(rhyme)])  # (1, n)
parts = RMSNorm, SwiGLU, rotate, turn, groups, Attention, Block, Llama
write_module("my_llama.py", *parts)
import my_llama

again = my_llama.Llama(config)
again.load_state_dict(weights)
with torch.no_grad():
    theirs = library(ids).logits
    prove_equal(real(ids), theirs, tolerance=1e-4, what="Your logits and the library's")
    prove_equal(again(ids), theirs, tolerance=1e-4, what="The file and the library")

# %% [markdown]
# ## 4 How well does it read?
#
# What does this model know? Measure its loss on three texts: the opening of
# *Alice's Adventures in Wonderland*, which it was trained on, and two that it has never seen. `loss_by_position` cuts a
# text into windows of n tokens and averages over the windows, not over the positions; section 6 needs that.

# %%
opening = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and "
    "of having nothing to do: once or twice she had peeped into the book her sister "
    "was reading, but it had no pictures or conversations in it, “and what is the use "
    "of a book,” thought Alice “without pictures or conversations?”"
)


@torch.no_grad()
def loss_by_position(model, text, n=128):
    ids = torch.tensor(tokenizer.encode(text))
    n = min(n, len(ids) - 1)
    ids = ids[: (len(ids) - 1) // n * n + 1]  # as many whole windows as there are
    logits = model(ids[:-1].view(-1, n)).flatten(0, 1)  # (window · n, vocab)
    losses = F.cross_entropy(logits, ids[1:], reduction="none")  # (window · n,)
    return losses.view(-1, n).mean(dim=0)  # (n,)


# %% [markdown]
# Compare per *character* as well as per token: a text whose words are not in the vocabulary is cut into many small
# tokens, which are easier to guess one by one. (A model that knows nothing has $\ln 1024 = 6.93$ nats per token.)

# %%
play = shakespeare().validation[:20_000]
samples = {
    "Shakespeare": play,
    "reviews": " ".join(review.text for review in reviews().test)[:20_000],
    "Alice, opening": opening,
}
for name, text in samples.items():
    loss = loss_by_position(real, text).mean().item()
    tokens = len(tokenizer.encode(text))
    print(f"{name:15} {loss:.2f} nats per token of {len(text) / tokens:.1f} characters,"
          f" {loss * tokens / len(text):.2f} per character")

# %% [markdown]
# It reads best what it was trained on. Per token the reviews look worst; per character Shakespeare is the hardest. So
# never compare losses per token between two texts, or two vocabularies.

# %% [markdown]
# ## 5 Break it: what a wrong part looks like
#
# ### 5.1 Six faults that load
#
# Now make the model wrong, one part at a time. Each fault below loads without an error, since all shapes fit:
#
# - the rotary **layout**: neighbors instead of halves;
# - the **groups**: `repeat` instead of `repeat_interleave`;
# - the first two matrices of SwiGLU **exchanged**;
# - the blocks' norms without their **gains**;
# - **eps** 1e-5, which many models have, instead of 1e-6; and eps 0.01.

# %% jupyter={"source_hidden": true}
predict("faults", "Which of these costs nothing that you could measure?",
        "the rotary layout", "the groups", "the exchanged matrices",
        "the gains left at 1", "eps 1e-5 instead of 1e-6")

# %% [markdown]
# Two of them need another function:


# %%
def turn_neighbors(q, k, angle):
    turned = []
    for x in (q, k):  # (..., n, d_k)
        first, second, cos, sin = x[..., 0::2], x[..., 1::2], angle.cos(), angle.sin()
        pair = first * cos - second * sin, first * sin + second * cos
        turned.append(torch.stack(pair, dim=-1).flatten(-2))
    return turned


def take_turns(kv, heads):  # query heads read KV heads 0 1 0 1
    return kv.repeat(1, heads // kv.shape[1], 1, 1)


# %% [markdown]
# A fault changes one block.


# %%
def inject(name, block):
    attention, network = block.attention, block.feed_forward
    if name == "layout":
        attention.turn = turn_neighbors
    elif name == "groups":
        attention.share = take_turns
    elif name == "exchanged":
        network.gate_proj, network.up_proj = network.up_proj, network.gate_proj
    for norm in (block.attention_norm, block.feed_forward_norm):
        norm.eps = {"eps 1e-5": 1e-5, "eps 0.01": 0.01}.get(name, norm.eps)
        if name == "no gains":
            nn.init.ones_(norm.weight)


# %% [markdown]
# Load the model once for each fault, put the fault into all four blocks, and measure the loss on the play.

# %%
right = loss_by_position(real, play).mean().item()
broken, cost = {}, {}
for name in ("eps 1e-5", "groups", "no gains", "eps 0.01", "layout", "exchanged"):
    model, _ = load()
    for block in model.blocks:
        inject(name, block)
    broken[name] = model
    cost[name] = loss_by_position(model, play).mean().item() - right

# %% [markdown]
# Each fault costs:

# %% jupyter={"source_hidden": true}
plots.bars(
    {name: round(loss, 3) + 0.0 for name, loss in cost.items()}, format="{:+.3f}",
    title="Only eps 1e-5 goes unpunished",
    xlabel="what the fault adds to the loss on Shakespeare (nats per token)",
    alt="What each fault adds to the loss: "
    + "; ".join(f"{name} {loss:+.2f}" for name, loss in cost.items()),
)

# %% [markdown]
# And what do they write?

# %% tags=["nbval-ignore-output"]
for name, model in {"all right": real, **broken}.items():
    written = write(model, "Alice was beginning to", tokens=20).replace("\n", " ")
    print(f"{name:11} {written}")
square = real.embedding.weight.square().mean(dim=-1)  # (vocab,)
print(f"mean squares of the token vectors: {square.min():.4f} to {square.max():.4f}")
predicted("faults", "eps 1e-5 instead of 1e-6")

# %% [markdown]
# With wrong groups or the wrong layout there are still words and names. If you did not know what the
# right model writes, you might blame the model's size. That is why porting a model ends with a comparison of *numbers*.
#
# And eps? It is added to the mean squares, and the first norm reads the token vectors. Next to their mean squares 1e-5
# vanishes as 1e-6 does, while 0.01 is about as large as they are. So this model's loss cannot tell you whether you have
# read its eps correctly. A model with smaller numbers could.
#
# ### 5.2 Find the fault
#
# A model writes oddly, and another is right. *Where* do they diverge? Run both on the same text, and keep each module's
# output. Look at the first module whose output differs.


# %%
@torch.no_grad()
def outputs(model, ids):
    kept, hooks = {}, []
    for name, module in model.named_modules():
        def keep(module, inputs, output, name=name):
            kept[name] = output

        hooks.append(module.register_forward_hook(keep))
    model(ids)
    for hook in hooks:
        hook.remove()
    return kept  # name → tensor, in the order in which they were made


# %% [markdown]
# Then compare. Where will a wrong layout show first? No module is called "rotation". Guess, then run:


# %%
def first_difference(mine, right, tolerance=1e-4):
    for name in right:
        gap = (mine[name] - right[name]).abs().max().item()
        if gap > tolerance:
            return f"{name}, by {gap:.3f}"
    return "none"


reference = outputs(real, ids)
for name, model in broken.items():
    place = first_difference(outputs(model, ids), reference)
    print(f"{name:11} first differs at {place}")

# %% [markdown]
# All six are found, even eps 1e-5, which neither the loss nor the text could show. A fault *in* a module names that
# module: a norm, `gate_proj`. A fault between modules names the one that reads the wrong result: queries, keys and
# values agree, and the output matrix's result does not. So look at what happens between them: rotation, groups, scale,
# mask.

# %% [markdown]
# ## 6 Longer than it was trained for
#
# ### 6.1 Slower pairs
#
# Our model was trained on 128 tokens. No table ends there, so nothing stops you from giving it 512. In lesson 05 a
# small model failed at that. Does a real one fail, and can it be helped?
#
# A pair of dimensions with frequency $\theta$ turns by $\theta$ radians per position, so it has gone around after
# $2\pi/\theta$ positions: with $\theta = 1$ after 6.3. Within 128 positions the fastest pair of this model goes around
# 20 times, and the slowest hardly moves:

# %%
turns = 128 * real.frequency / (2 * math.pi)  # (d_k / 2,): within the trained length
print("turns of every third pair:", [f"{times:.2f}" for times in turns[::3].tolist()])

# %% [markdown]
# The fast pairs, which tell "one back" from "two back", have been trained on their whole circle. The slow pairs have
# seen only a part of theirs; at position 512 they reach angles that training never showed. There are three proposals:
#
# - **Interpolate** (Chen et al. 2023): divide *all* frequencies by 4. Position 512 is then turned as far as 128 was. No
#   angle is new, but neighbors are a quarter of a step apart.
# - **Raise the base**, which slows the slow pairs most. (Code Llama, Rozière et al. 2023, went from 10,000 to a
#   million. You will also meet the idea as *NTK-aware* scaling.)
# - **YaRN** (Peng et al. 2023) decides pair by pair. A pair that goes around often within the trained length stays. One
#   that goes around less than once is interpolated, and those in between are mixed. The scores are also made a little
#   sharper, since more keys compete.
#
# *Often* is 32 turns in the paper, for lengths of thousands; for our short ones we take 8. Which pair is that? Pair $i$
# turns $128 \cdot 10000^{-i/16} / 2\pi$ times. Solved for $i$, 8 turns are pair 1.6, and one turn is pair 5.2. So pairs
# 0 and 1 stay, all from 6 on are slowed down by 4, and those between are mixed. (For the larger base the exponent 16/15
# makes the last pair, $i = 15$, exactly 4 times slower.)


# %%
def raised(frequency, base, factor):
    pairs = len(frequency)  # the slowest pair becomes `factor` times slower
    return (base * factor ** (pairs / (pairs - 1))) ** (-torch.arange(pairs) / pairs)


def yarn(frequency, base, factor, length, often=8):
    pairs = len(frequency)

    def turning(times):  # the pair that goes around so many times within `length`
        return pairs * math.log(length / (2 * math.pi * times)) / math.log(base)

    first, last = max(math.floor(turning(often)), 0), math.ceil(turning(1))
    slowed = ((torch.arange(pairs) - first) / (last - first)).clamp(0, 1)  # 0 stays
    return (1 - slowed) * frequency + slowed * frequency / factor


# %% [markdown]
# Putting new frequencies into a trained model takes a line per block. `sharper` multiplies queries and keys, so the
# scores grow with its square; YaRN takes $0.1 \ln 4 + 1 = 1.14$.


# %%
def stretch(model, frequency, sharper=1.0):
    def turn_sharper(q, k, angle):
        return turn(sharper * q, sharper * k, angle)

    model.frequency = frequency
    for block in model.blocks:
        block.attention.turn = turn_sharper


def methods(frequency, base, factor, length):  # name → arguments of `stretch`
    return {
        "as it is": (frequency,),
        "interpolated": (frequency / factor,),
        "larger base": (raised(frequency, base, factor),),
        "YaRN": (yarn(frequency, base, factor, length), 0.1 * math.log(factor) + 1),
    }


# %% [markdown]
# How much slower does each pair turn?

# %%
trained = real.frequency  # (d_k / 2,)
ways = methods(trained, 1e4, 4, 128)  # as long as four times 128
figures.slower_pairs(
    {name: (trained / arguments[0]).tolist() for name, arguments in ways.items()},
    title="Interpolation slows all pairs, the others spare the fast ones",
)

# %% [markdown]
# ### 6.2 The checkpoint on 512 tokens
#
# Read windows of 512 tokens in four ways, and note the loss at each position:

# %%
text = shakespeare().validation[:45_000]
by_position = {}
for name, arguments in ways.items():
    stretch(real, *arguments)
    by_position[name] = loss_by_position(real, text, n=512)  # (512,)
stretch(real, trained)
for name, loss in by_position.items():
    near, far = loss[:128].mean(), loss[128:].mean()
    print(f"{name:13} {near:.2f} up to position 128, {far:.2f} beyond")

# %% [markdown]
# Each point is the mean of the 64 positions up to it:

# %% jupyter={"source_hidden": true}
figures.loss_along(by_position, 128, title="Past 128 it fails; only YaRN holds up to 512")

# %% [markdown]
# Untouched, the model is lost beyond its length, as lesson 05 predicted. Interpolation makes it as bad *everywhere*.
# Our explanation: the pairs that tell "one back" from "two back" now turn by a quarter of what it knows. (Chen et al.
# therefore train for a thousand more steps, and then it works.) The larger base costs a little up to 128, and holds to
# about 300 tokens. YaRN costs a little more, and holds all the way, without any training.
#
# But look at *what* holds: from position 100 to 500 YaRN's loss falls by only about 0.1, and so does that of
# interpolation, which reads badly everywhere. The model no longer falls apart, but we have not shown that it uses 500
# tokens. A loss is an average over many tokens, and most of them need
# only the last few words. The question needs another test.
#
# ### 6.3 A needle in a haystack
#
# Hide one fact in a long text, and ask for it at the end: a **needle** in a haystack. Nothing else in the text can
# help. Our checkpoint cannot answer questions, so we need a test that a small model can learn in seconds.
#
# A token is a whole fact, "person 5 likes color 3"; there are 32 persons and 8 colors. A question is a token as well:
# "person 5?". So there are three kinds of ids: 256 facts, 32 questions, and 8 colors as answers.


# %%
def haystack(size, n, depth):  # one needle, facts about others, one question
    asked, answer = torch.randint(32, (size, 1)), torch.randint(8, (size,))
    person = (asked + torch.randint(1, 32, (size, n))) % 32  # (size, n): others
    ids, place = 8 * person + torch.randint(8, (size, n)), round(depth * (n - 2))
    ids[:, place] = 8 * asked[:, 0] + answer
    ids[:, -1] = 256 + asked[:, 0]
    return ids, answer


torch.manual_seed(0)
one, answer = haystack(1, 6, depth=0.5)
print(*(f"person {id // 8} likes {id % 8}." for id in one[0, :-1].tolist()),
      f"Person {one[0, -1] - 256}? {answer[0]}")

# %% [markdown]
# (Guessing finds one needle in eight.) A small model, a *reader*, learns on 64 tokens: 32 facts, one about each person,
# then a question about each:


# %%
def facts_and_questions(size):
    person = torch.rand(size, 32).argsort(dim=1)  # (size, 32): all 32, in random order
    color = torch.randint(8, (size, 32))  # (size, 32)
    order = torch.rand(size, 32).argsort(dim=1)  # (size, 32): of the questions
    asked, answer = person.gather(1, order), color.gather(1, order)
    return torch.cat([8 * person + color, 256 + asked], dim=1), answer


# %% [markdown]
# The reader is one block of your Llama, with base 256:

# %%
small = SimpleNamespace(
    vocab_size=296, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, intermediate_size=64, rms_norm_eps=1e-6,
    rope_theta=256.0, tie_word_embeddings=False)

# %% [markdown]
# Its slowest pair then turns by a third of a radian within 64 positions, about as little as Llama's within 4,096 (half
# a radian, with base 10,000). The training is lesson 16's:


# %% tags=["nbval-ignore-output"]
def train_small(seed, steps=200, rate=6e-3):
    torch.manual_seed(seed)
    model = Llama(small)
    for weight in [weight for weight in model.parameters() if weight.dim() == 2]:
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    for step in progress(range(steps), f"a reader, seed {seed}"):
        now = rate * min((step + 1) / 25, (steps - step) / (steps - 25))
        optimizer.param_groups[0]["lr"] = now
        ids, answers = facts_and_questions(32)  # (batch, 64), (batch, 32)
        optimizer.zero_grad()
        logits = model(ids)[:, 32:, 288:]  # (batch, 32, 8)
        F.cross_entropy(logits.mT, answers).backward()
        optimizer.step()
    return model


# %% [markdown]
# Train three, and put the needle at five depths, from the start to the end:


# %% tags=["nbval-ignore-output"]
readers = [train_small(seed) for seed in range(3)]
LENGTHS, DEPTHS = (64, 128, 256, 512), (0, 0.25, 0.5, 0.75, 1)
own = readers[0].frequency  # (d_k / 2,)


@torch.no_grad()
def found(n, depth):  # (reader,): what fraction of 20 needles
    torch.manual_seed(7)
    ids, answer = haystack(20, n, depth)
    guesses = [reader(ids)[:, -1, 288:].argmax(dim=-1) for reader in readers]
    return (torch.stack(guesses) == answer).float().mean(dim=1)


# %% [markdown]
# ### 6.4 Stretch the readers
#
# Do they find it in texts of one to eight times the length? Try the methods of section 6.1, each for the length that is
# asked for. Guess first:

# %% jupyter={"source_hidden": true}
predict("needle", "Eight times the length: which finds the needle most often?",
        "as it is", "interpolated", "larger base", "YaRN")

# %% [markdown]
# For each method and length, ask at each depth:


# %% tags=["nbval-ignore-output"]
def hits_of(name, n, **sharper):  # (depth, reader)
    for reader in readers:
        stretch(reader, *methods(own, 256, n / 64, 64)[name], **sharper)
    return torch.stack([found(n, depth) for depth in DEPTHS])


hits = {}  # method → (depth, reader, length)
for name in ways:
    hits[name] = torch.stack([hits_of(name, n) for n in LENGTHS], dim=-1)

# %% [markdown]
# The figure has the means over the three readers, 20 texts each:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
figures.needles(
    {name: scores.transpose(0, 1) for name, scores in hits.items()}, ["start", "¼", "½", "¾", "end"], LENGTHS,
    title="Without help, the needle is lost beyond the trained length",
)

# %% [markdown]
# Print one number per reader at 512 tokens. YaRN differs from interpolation in two things, so the last rows are
# controls: scores as sharp as YaRN's, without new frequencies and with interpolation.

# %% tags=["nbval-ignore-output"]
at_512 = {name: scores[..., -1] for name, scores in hits.items()}  # (depth, reader)
sharper = 0.1 * math.log(8) + 1
for name in ("as it is", "interpolated"):
    at_512[f"{name}, sharper"] = hits_of(name, 512, sharper=sharper)
for name, scores in at_512.items():
    print(f"{name:21}", *(f"{each:.0%}" for each in scores.mean(dim=0).tolist()))
gain = (at_512["YaRN"] - at_512["as it is"]).mean().item()
expect("What YaRN finds more than the untouched readers", gain, 0.3, 0.8)
predicted("needle", "YaRN")

# %% [markdown]
# Like the checkpoint, the untouched readers fail beyond their length. All methods help, and YaRN finds four of five. Is
# that due to its choice pair by pair? Mostly not, says the control: interpolation with sharper scores finds nearly as
# many. (Sharper scores alone do nothing.) Our explanation: the softmax has eight times as many keys, so the needle's
# must stand out more. (Needles at the start or the end are found less often, even at 64 tokens; presumably because few
# questions in training were that far from their fact, or that near.)
#
# Interpolation ruins the neighbors (section 6.2), but this test does not need them: a fact is a single token. So no
# single test is enough. The loss asks for the neighbors, the needle for the reach, and only YaRN passes both.

# %% [markdown]
# ## 7 Port a family that your code does not know
#
# ### 7.1 Four steps
#
# New families keep appearing, most of them a Llama with a few parts exchanged (lesson 16). Four steps lead from an
# unknown folder to a model that is right:
#
# 1. **The config.** Which entries does your code never read? Each is a question.
# 2. **The names.** Load, and read what `load_state_dict` has left over. Each is a part that you lack.
# 3. **The numbers.** Run the original once, keep the outputs of its layers, and find the first that differs.
# 4. **Again**, with a longer text: a window or stretched positions may show only there. (Our example has neither.)
#
# Our example is a tiny Qwen 3: two layers, 16 wide, random weights. `data/tiny_qwen3.py` made it with `transformers`,
# and saved what it computes next to it.

# %%
from txlib.paths import DATA

qwen_folder = DATA / "tiny_qwen3"
qwen = SimpleNamespace(**json.loads((qwen_folder / "config.json").read_text()))
used = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps",
        "rope_theta", "tie_word_embeddings"}
for name, value in vars(qwen).items():
    if name not in used:
        print(f"{name:24} {value}")

# %% [markdown]
# All are harmless: no biases, and silu, are what we have. (`head_dim` is 8, though 16 / 4 = 4: queries are 32 wide in a
# stream of 16. A loader that divides `hidden_size` by the number of heads fails here.) Now the names, read by the
# `safetensors` package:

# %%
from safetensors.torch import load_file

qwen_weights = {}
for name, weight in load_file(qwen_folder / "model.safetensors").items():
    qwen_weights[our_name(name)] = weight
model = Llama(qwen).eval()
print(model.load_state_dict(qwen_weights, strict=False))

# %% [markdown]
# Four unexpected names, `q_norm` and `k_norm` in each layer: QK-norm (lesson 16). With `strict=False` torch loads the
# rest and goes on. That is how a port goes wrong silently. Compare two tensors with those of `transformers`, the output
# of its first layer and the logits:

# %%
kept = load_file(qwen_folder / "reference.safetensors")
right = {"layers.0": kept["layers.0"], "logits": kept["logits"]}


def compare(model):
    made = outputs(model, kept["ids"])  # "" is the name of the whole model
    return first_difference({"layers.0": made["blocks.0"], "logits": made[""]}, right)


print("without QK-norm, the first that differs:", compare(model))

# %% [markdown]
# So build the missing part. Are heads normed before they are turned, or after? Try both.


# %%
class QwenAttention(Attention):
    def __init__(self, c):
        super().__init__(c)
        self.q_norm = RMSNorm(self.d_k, c.rms_norm_eps)
        self.k_norm = RMSNorm(self.d_k, c.rms_norm_eps)
        self.turn = self.norm_and_turn

    def norm_and_turn(self, q, k, angle):
        return turn(self.q_norm(q), self.k_norm(k), angle)

    def turn_and_norm(self, q, k, angle):
        q, k = turn(q, k, angle)
        return self.q_norm(q), self.k_norm(k)


# %% [markdown]
# Both load without a complaint, since they have the same names and shapes:

# %%
for order in ("turn_and_norm", "norm_and_turn"):
    model = Llama(qwen).eval()
    for block in model.blocks:
        block.attention = QwenAttention(qwen)
        block.attention.turn = getattr(block.attention, order)
    model.load_state_dict(qwen_weights)
    print(f"{order}: the first that differs: {compare(model)}")

# %% [markdown]
# Norm, then turn: the gains must meet the dimensions they were made for, before the turn mixes them. A tensor of the
# original told you what no text could have.
#
# ### 7.2 Open the library
#
# `txlib` reads its families in the same way: a table of names, a table of settings, and a check that nothing is left
# over. If `transformers` is installed, step 3 is one command: `txlib compare FOLDER` runs a checkpoint in both and
# names the first layer that differs. For this lesson's Llama:
#
# ```text
# layer                      in transformers  difference  of up to
# input of decoder.layers.0  model.layers.0      0.0e+00     0.345
# decoder.layers.0           model.layers.0      2.4e-06      7.68
# …
# logits                                         7.6e-06      21.1
#
# All layers agree: no difference above 0.0001 of the largest value.
# ```
#
# The library has your YaRN as `YarnScaling`, and it reads Qwen 3 as well:

# %%
from txcourse.lesson import show_source
from txlib.layers import YarnScaling

slowed = YarnScaling(factor=4, context=128, fast=8)(trained, 1e4, 512)  # (d_k / 2,)
prove_equal(yarn(trained, 1e4, 4, 128), slowed, what="Your YaRN and ours")
with torch.no_grad():
    theirs = load_pretrained(qwen_folder)(kept["ids"]).logits
    prove_equal(theirs, kept["logits"], what="Our Qwen 3 and transformers'")
show_source(YarnScaling.__call__)

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Of two models, the first tensor that differs is the output matrix's result in block 0. Queries, keys and values
# agree. Which fault fits?**
#
# <details><summary>A. The norm before attention has a wrong eps</summary>
#
# Then the norm's own output would differ, before the queries do.
# </details>
# <details><summary>B. Scores are not divided by √d_k</summary>
#
# Right. Whatever happens between values and output matrix shows there first: scale, mask, rotation, groups.
# </details>
# <details><summary>C. The feed-forward network's matrices are exchanged</summary>
#
# They come after attention. The first difference would be `gate_proj`.
# </details>
#
# **2. With interpolation by 4, a model trained on 128 tokens reads 512. Without more training its loss is worse even on
# the first 128. Why?**
#
# <details><summary>A. Angles appear that it has never seen</summary>
#
# That is what happens *without* interpolation. Squeezed positions stay within 0 … 128.
# </details>
# <details><summary>B. Neighbors are now a quarter of a step apart</summary>
#
# Right. "The token before me" has another angle than the one it has learned. A short training repairs this.
# </details>
#
# **3. A model's loss at position 5,000 is as low as at position 500. What does that say about its use of 5,000
# tokens?**
#
# <details><summary>A. That it uses them all</summary>
#
# Most tokens can be guessed from the last few words. A model that forgets the rest has the same loss.
# </details>
# <details><summary>B. Nothing yet; hide a needle</summary>
#
# Right. The loss says that it does not fall apart. Whether it finds what was far back needs another test.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A checkpoint is names, shapes and numbers. A loader is a table of names.
# - A model that is wired wrongly still loads and still writes: compare numbers, module by module, with one that is
#   right.
# - Beyond the trained length the slow rotary pairs reach angles that the model has not seen. Interpolation slows all
#   pairs, a larger base and YaRN spare the fast ones.
# - A loss shows that a long text does no harm; a needle shows whether it is used.
# - To port a family: config, names, the first number that differs.
#
# **Read** Chen et al. 2023, *Extending Context Window of Large Language Models via Positional Interpolation*,
# [arXiv:2306.15595](https://arxiv.org/abs/2306.15595), section 2. Rozière et al. 2023, *Code Llama*,
# [arXiv:2308.12950](https://arxiv.org/abs/2308.12950), section 2.4. Peng et al. 2023, *YaRN*,
# [arXiv:2309.00071](https://arxiv.org/abs/2309.00071), section 3. Touvron et al. 2023, *LLaMA*,
# [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), section 2.
#
# **Do** the exercise [17_checkpoints](../exercises/exercise_17_checkpoints.ipynb). Then go on to
# [18 Mixture of experts](18_experts.ipynb).
