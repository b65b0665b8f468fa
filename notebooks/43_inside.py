# %% [markdown] lesson={"part": "V From a model to an assistant", "builds": "hooks that read and replace, a logit taken apart, induction heads watched while they are born, patching, superposition, a sparse autoencoder"}
# # 43 · Looking inside
#
# **After this lesson you will be able to**
#
# - take a logit apart into what each head and each network adds to it, and say what these numbers do not show;
# - watch a circuit of two layers being born, next to the bump that it makes in the loss;
# - replace an activation, and find the part, the place and the path that a prediction depends on;
# - ablate heads, with a control;
# - say why a model can keep more features than it has dimensions, and when it does;
# - train a sparse autoencoder, read its features' texts, and test one by taking it away.
#
# **You need** lessons 04, 06, 10 and 12 (section 5.2). **It takes** about 65 minutes to read and try; all cells
# together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: it works, and nobody wrote down how
#
# In lesson 12 a decoder of two layers learned to repeat a passage that it had read once. We saw where its heads look.
# But a map of attention says where a head *looks*, not what it takes from there, nor whether anything later reads it.
# And in most models we don't even know what to ask. Our small Llama alone has 16 heads in 4 layers and 128 numbers per
# token, none of them labeled.
#
# What we have is unusual for a science: every number inside can be read, and every one can be changed. This lesson does
# both. **Mechanistic interpretability** explains what a network computes by its parts, and tests each explanation by
# changing those parts.

# %% tags=["recorded"]
import json
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib import load_pretrained, plots
from txlib.inspect import ablate, activations, replace

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# ## 2 The residual stream is a sum
#
# ### 2.1 On paper
#
# Each block *adds* to what it has read (lesson 06). So what leaves the last block is the embedding plus everything that
# was added on the way. This sum is called the **residual stream**: all parts read from it, and write into it. Here is
# one block on a stream of two numbers. (Norms are left out until section 3.2.)

# %% jupyter={"source_hidden": true}
figures.one_stream((1, 0), [(0, 2), (1, -1)], (-1, 1), (3, 1),
                   title="Every part reads the stream, and adds to it")

# %% [markdown]
# A token's logit is the dot product of the stream with that token's row of the output matrix, here $(3, 1)$. Since the
# stream is a sum, so is the logit:
#
# | part | adds to the stream | its share of the logit |
# | --- | --- | --- |
# | embedding | $(1, 0)$ | $3 \cdot 1 + 1 \cdot 0 = 3$ |
# | head 0 | $(0, 2)$ | $3 \cdot 0 + 1 \cdot 2 = 2$ |
# | head 1 | $(1, -1)$ | $3 \cdot 1 - 1 \cdot 1 = 2$ |
# | feed-forward network | $(-1, 1)$ | $-3 + 1 = -2$ |
# | together | $(1, 2)$ | $3 \cdot 1 + 1 \cdot 2 = 5$ |
#
# Such a share is called **direct logit attribution** (Elhage et al. 2021). *Direct*, because it counts only what goes
# straight from the part to the logits, and not what other parts make of it.
#
# ### 2.2 Read what a part adds
#
# PyTorch calls a **hook** each time a module has computed something. One line keeps what it returned. The model is
# lesson 12's, which has read Lewis Carroll; the text is *The March*, and *Hare* should follow.

# %%
from txlib.data import shipped
from txlib.text import load_tokenizer

model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
tokenizer = load_tokenizer(shipped("glassllm-en"))
march = torch.tensor([tokenizer.encode("The March")])  # (1, 3)

# %% [markdown]
# The hook, and where it is attached and taken off again:

# %%
kept, hooks = [], []


def keep(module, inputs, output):
    kept.append(output)


for layer in model.decoder.layers:
    for module in (layer.self_attention, layer.feed_forward):
        hooks.append(module.register_forward_hook(keep))
with torch.no_grad():
    model(march)
for hook in hooks:
    hook.remove()  # or it would go on keeping

# %% [markdown]
# These are eight parts, two in each block. Added to the embedding, they are what the last norm reads. In the library,
# `activations(model, name, …)` sets such hooks by name, so we can compare:

# %%
total = model.embed(march) + sum(kept)  # (1, 3, d_model)
with torch.no_grad(), activations(model, "decoder.layers.3") as seen:
    model(march)
prove_equal(total, seen["decoder.layers.3"], tolerance=1e-4, what="Sum and stream")

# %% [markdown]
# ### 2.3 Heads add as well
#
# A layer of attention puts its heads next to each other and multiplies by $W_O$ (lesson 04). On paper, two heads of one
# number each: $(2, 3)$ times $W_O$ is 2 times its first row plus 3 times its second. So each head has rows of its own,
# and what the layer adds is a sum over heads:
#
# $$[h_1, h_2, \dots]\, W_O = \sum_i h_i\, W_O^{(i)}$$

# %%
name = "decoder.layers.2.self_attention"
with torch.no_grad(), activations(model, name, f"{name}.heads") as seen:
    model(march)
heads = seen[f"{name}.heads"]  # (1, heads, 3, head_dim)
weight = model.get_submodule(name).output.weight  # (d_model, heads · head_dim)
rows = weight.T.unflatten(0, (4, -1))  # (heads, head_dim, d_model)
by_head = heads @ rows  # (1, heads, 3, d_model)
prove_equal(by_head.sum(dim=1), seen[name], tolerance=1e-5, what="Heads and layer")

# %% [markdown]
# ## 3 What would it say now?
#
# ### 3.1 The logit lens
#
# We can read the stream at any depth. What does it mean there? One answer: pretend that the model ends here. Apply the
# last norm and the output matrix to the stream after each block, as if it were the last. This is the **logit lens**
# (nostalgebraist 2020).

# %%
from txlib.inspect import logit_attribution, logit_lens


def token(id):
    return tokenizer.tokenizer.id_to_token(int(id)).replace("▁", "␣").replace("\n", "⏎")


for prompt in ("The March", "“Curiouser and"):
    lens = logit_lens(model, torch.tensor([tokenizer.encode(prompt)]))
    p = lens[:, 0, -1].softmax(dim=-1)  # (depth, vocab)
    said = p[-1].argmax()  # by the whole model
    print(f"{prompt:22} likeliest token    p of {token(said)}")
    for depth, row in enumerate(p):
        likeliest = f"{token(row.argmax()):7}{row.max():4.0%}"
        print(f"  after {depth} blocks        {likeliest:18} {row[said]:4.0%}")

# %% [markdown]
# In the first text the answer is *␣H*, the beginning of *␣Hare*. It is there after one block, and the other three
# change little. In the second text the likeliest token changes twice, and the final one leads only from the third block
# on. (Before the first block it is *␣and*, the token just read: one matrix holds this model's embeddings and output
# rows, so a token may fit itself best.)
#
# ### 3.2 Shares of a logit
#
# Which part put *␣H* there? One difficulty is left: the last norm divides the stream by its root mean square. That is
# one number, the same for all parts, so we divide each part by it. The library does this:

# %%
hare = torch.tensor(tokenizer.encode(" Hare", special_tokens=False)[:1])
shares = {part: x.item() for part, x in logit_attribution(model, march, hare).items()}
with torch.no_grad():
    logit = model(march).logits[0, -1, hare].item()
print(f"logit of {token(hare)}: {logit:.2f}; parts: {sum(shares.values()):.2f}")
for part in sorted(shares, key=shares.get, reverse=True)[:5]:
    print(f"{shares[part]:6.2f}  {part}")

# %% jupyter={"source_hidden": true}
predict(
    "share-of-embedding", "The embedding's own share of the logit is 0.04. What happens to the logit without the embedding?",
    "it falls by about 0.04", "it falls by much more", "it rises",
)

# %% [markdown]
# A share is arithmetic. Is it also what would be missing *without* the part? To find out, replace what the part adds by
# zeros, at all positions, and let the rest of the model compute on:

# %%
@torch.no_grad()
def without(part):
    with replace(model, {part: ablate()}):
        return model(march).logits[0, -1, hare].item() - logit


compared = ["embedding", "decoder.layers.0.feed_forward",
            "decoder.layers.2.self_attention.heads.1",
            "decoder.layers.1.self_attention.heads.0"]
for part in compared:
    print(f"{part:40} share {shares[part]:5.2f}, without it {without(part):+6.2f}")
predicted("share-of-embedding", "it falls by much more")

# %% [markdown]
# The embedding adds next to nothing to this logit directly, but everything else reads it: without it the stream is
# zero to its end, and so is the logit. Without head 1 of the third layer, the logit falls by about its share. Head 0
# of the second has no share, and still the logit *rises* without it: the head changes what later parts read. (In every
# row the last norm also divides by another number, as soon as a part is missing; a fall by just the share may be
# chance.) So attribution is a good first list
# of suspects. To learn what a part *does* takes an intervention.

# %% [markdown]
# ## 4 Induction heads are born
#
# ### 4.1 What to measure
#
# Now we take a model that is small enough to be understood as a whole, and lesson 12's task. A passage of 4 to 23
# different symbols, out of 64, is read again and again. Two layers of attention with four heads each, and nothing
# else, have to predict the next symbol.

# %% tags=["recorded"]
from txlib.attention import recording
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.paths import DATA
from txlib.training import optimizers, warmup_linear

KINDS, LENGTH = 64, 48


def repeated(sizes):  # (text, 1): how many symbols each passage has
    """Texts of LENGTH symbols: a passage of different ones, again and again."""
    drawn = torch.rand(len(sizes), KINDS).argsort(dim=1)  # (text, KINDS)
    return drawn.gather(1, torch.arange(LENGTH) % sizes)  # (text, LENGTH)


# %% [markdown]
# An **induction head** asks *what came after this symbol the last time?* It needs help from below: a **previous-token
# head**, which notes in each symbol which one came before it.

# %% jupyter={"source_hidden": true}
figures.induction(
    "dafcda", title="Layer 1 notes what came before; layer 2 looks it up",
    alt="The symbols d a f c d a. Layer 1: from f to the a before it. Layer 2: from the last a to f, which comes next.",
)

# %% [markdown]
# So there are two scores, each a weight of attention. On paper, for *d a f c d a*: the previous-token score of the *f*
# is its weight on the first *a*. The induction score of the last *a* is its weight on the *f*. A mask per score says
# which keys count (several may, if a passage has been read several times):


# %% tags=["recorded"]
def keys_that_count(ids):  # (text, length): two masks (text, query, key)
    before = F.pad(ids[:, :-1], (1, 0), value=-1)  # the symbol before each one
    is_before = ids[:, None, :] == before[:, :, None]
    is_after = before[:, None, :] == ids[:, :, None]
    return is_before, is_after


torch.manual_seed(99)
test_sizes = torch.randint(4, 24, (100, 1))
test = repeated(test_sizes)  # (text, LENGTH)
again = torch.arange(LENGTH) >= test_sizes  # where the passage is read again
is_before, is_after = keys_that_count(test)

# %% [markdown]
# Previous-token heads must work while a passage is read for the first time, induction heads when it is read again. We
# measure the loss in both readings:


# %% tags=["recorded"]
@torch.no_grad()
def look(learner):
    with recording(learner) as seen:
        logits = learner(test).logits[:, :-1]
    first, second = (weights[0] for weights in seen.values())
    loss = F.cross_entropy(logits.mT, test[:, 1:], reduction="none")
    before = (first * is_before[:, None]).sum(dim=-1).mT  # (text, LENGTH, head)
    after = (second * is_after[:, None]).sum(dim=-1).mT
    return {"repeat": loss[again[:, :-1]].mean().item(),
            "first": loss[~again[:, :-1]].mean().item(),
            "before": before[:, 1:][~again[:, 1:]].mean(dim=0).tolist(),
            "after": after[again].mean(dim=0).tolist()}


# %% [markdown]
# ### 4.2 The birth
#
# We train for 500 steps, and look every ten.

# %% jupyter={"source_hidden": true}
predict(
    "birth", "How will the loss on repeated symbols fall?",
    "steadily, while both scores grow steadily", "slowly, then suddenly, and both scores rise at that moment",
    "suddenly, and long before any head has a high score",
)


# %% tags=["recorded"]
def train(seed=0, steps=500):
    torch.manual_seed(seed)
    block = BlockConfig.of_sizes(64, 4, d_ff=0, position="rotary")
    sizes = {"layers": 2, "max_length": LENGTH, "init_std": 0.1}
    learner = GPT(GPTConfig(KINDS, block, **sizes, tie_embeddings=False))
    optimizer, rows = optimizers(learner, lr=5e-3), []
    for step in progress(range(1, steps + 1), "training"):
        ids = repeated(torch.randint(4, 24, (32, 1)))  # (text, LENGTH)
        learner(ids, labels=ids).loss.backward()
        optimizer.set_factor(warmup_linear(step, steps, warmup=20))
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            rows.append({"step": step, **look(learner)})
    return learner.eval(), rows


# %% [markdown]
# At the end, each head's score:

# %% tags=["nbval-ignore-output"]
learner, born = train()
for name, kind in {"layer 1, before": "before", "layer 2, after": "after"}.items():
    print(f"{name:15}", *(f"{x:6.2f}" for x in born[-1][kind]))
expect("Loss on repeats", born[-1]["repeat"], 0, 0.3)

# %% [markdown]
# How did they get there? `data/inside.py` has recorded three starts:

# %% jupyter={"source_hidden": true}
recorded = json.loads((DATA / "inside.json").read_text())
display(figures.births(recorded["births"], title="The loss falls when both kinds of heads appear"))
predicted("birth", "slowly, then suddenly, and both scores rise at that moment", "From all three starts.")

# %% [markdown]
# From each start there is a plateau; then within some fifty steps the loss falls to a fraction, and both scores rise in
# the same steps. Neither kind of head helps without the other, so at first there is little to gain from either (our
# explanation of the plateau). The moment differs from start to start. Large models trained on real text have such a
# bump as well, early in training; in-context learning improves during it (Olsson et al. 2022, arguments 1 and 2).
#
# ### 4.3 And a model of real text?
#
# Our small Llama has read a few books. Does it have such heads? Give it random tokens, twice:

# %%
torch.manual_seed(0)
noise = torch.randint(300, 1000, (50, 20)).repeat(1, 2)  # (text, 40)
_, comes_after = keys_that_count(noise)
with torch.no_grad(), recording(model) as seen:
    log_p = model(noise).logits[:, :-1].log_softmax(dim=-1)
for weights in seen.values():
    score = (weights[0] * comes_after[:, None]).sum(dim=-1)  # (text, head, query)
    by_head = score[..., 20:].mean(dim=(0, 2))  # (head,)
    print("induction scores", "  ".join(f"{x:.2f}" for x in by_head))
nats = -log_p.gather(-1, noise[:, 1:, None])[..., 0]  # (text, 39)
print(f"first reading {nats[:, :19].mean():.1f} nats, second {nats[:, 20:].mean():.1f}")

# %% [markdown]
# No head comes near, and the second reading is no easier than the first. (Both are worse than an even guess among its
# 1,024 tokens, $\ln 1024 = 6.9$ nats: such text is far from its books.) The model is small, and little in its books is
# repeated word for word (our explanation). A name for a head is a claim about *one* model: measure it in yours.

# %% [markdown]
# ## 5 Which part does it?
#
# ### 5.1 Where is the answer, and when?
#
# We have scores that rose together. What is missing is a test of what depends on what. Take pairs of texts that differ
# in one symbol. The *clean* text is a passage of 8 symbols followed by its first four; the fifth should come next. In
# the *corrupted* text, the fifth symbol is another one. Run the corrupted text, but replace one vector by that of the
# clean run, and see whether the answer comes back. This is **activation patching** (Meng et al. 2022 call it causal
# tracing).

# %% tags=["recorded"]
torch.manual_seed(1)
clean = repeated(torch.full((200, 1), 8))[:, :12]  # (text, 12)
answer = clean[:, 4]  # what should follow
new = (KINDS - 1 - clean[:, 4:5]) % KINDS
is_used = (clean == new).any(dim=1)
clean, answer, new = clean[~is_used], answer[~is_used], new[~is_used]
corrupted = clean.clone()
corrupted[:, 4:5] = new


def lead(output):  # how far the clean text's answer is ahead of the corrupted one's
    last = output.logits[:, -1]  # (text, KINDS)
    return (last.gather(1, answer[:, None]) - last.gather(1, new)).mean().item()


# %% [markdown]
# Both runs:

# %%
stream = ["embedding", "decoder.layers.0", "decoder.layers.1"]
with torch.no_grad(), activations(learner, *stream) as seen:
    low, high = lead(learner(corrupted)), lead(learner(clean))
source = dict(seen)  # of the clean run, the last one: name → (text, 12, d_model)
print(f"lead of the answer: clean {high:.1f}, corrupted {low:.1f}")

# %% [markdown]
# We patch three depths at twelve positions. 0 means that nothing changes, 1 that the clean answer is back:

# %%
def put(name, position, x):  # the clean vector, at one position
    x = x.clone()
    x[:, position] = source[name][:, position]
    return x


back = torch.zeros(3, 12)
for depth, name in enumerate(stream):
    for position in range(12):
        with torch.no_grad(), replace(learner, {name: partial(put, name, position)}):
            back[depth, position] = (lead(learner(corrupted)) - low) / (high - low)

# %% jupyter={"source_hidden": true}
plots.heatmap(
    back, rows=["embedding", "after layer 1", "after layer 2"], columns=list("abcdefghabcd"), size=0.62,
    xlabel="position that is patched (e differs)", ylabel="", span=(0, 1),
    title="The answer waits at its place, and layer 2 fetches it",
    alt="How much of the answer is back, by depth and position. " + "; ".join(
        f"Row {depth}: most at {'abcdefghabcd'[row.argmax()]}, position {int(row.argmax())}" for depth, row in enumerate(back)),
)

# %% [markdown]
# Until layer 1 is done, everything about the answer is where it was read. (After layer 1, *e* brings back 99 to 101%
# from each of three recorded starts, and no other position more than 1%.) After layer 2 it must be at the last
# position, the only one that is read from there. So layer 2 moves it. Which of its heads?
#
# ### 5.2 Which heads?
#
# The library's `patching` does this for any list of names, heads included. We add a second kind of pair, in which the
# symbol *before* the answer is changed. Then the answer is still in the text, but nothing says any more that it comes
# next. It has no rival now, so we measure its $\ln p$.

# %% tags=["recorded"]
key_gone = clean.clone()
key_gone[:, 3:4] = new  # the last symbol of the text has no earlier copy now


def log_p_answer(output):
    log_p = output.logits[:, -1].log_softmax(dim=-1)
    return log_p.gather(1, answer[:, None]).mean().item()


# %% [markdown]
# Each head, for both kinds of pairs:

# %%
from txlib.inspect import patching, path_patching

with torch.no_grad():
    low_2, high_2 = log_p_answer(learner(key_gone)), log_p_answer(learner(clean))
every_head = ["decoder.layers.*.heads.*"]
by_answer = patching(learner, clean, corrupted, every_head, lead)
by_key = patching(learner, clean, key_gone, every_head, log_p_answer)
print("the answer differs   the symbol before it differs   patched head")
for name in by_answer:
    one = (by_answer[name] - low) / (high - low)
    two = (by_key[name] - low_2) / (high_2 - low_2)
    print(f"{one:12.0%} {two:24.0%} {'':17} layer {int(name[15]) + 1}, head {name[-1]}")

# %% [markdown]
# If the symbol before the answer differs, two heads of layer 1 bring the answer back: those with the high scores of
# section 4.2. If the answer itself differs, it is the *other* two. All heads of layer 2 play a part in both. And from
# other starts? Here are layer 1's heads in the record:

# %% jupyter={"source_hidden": true}
print("         scores                the answer differs    the symbol before it differs")
for seed, run in recorded["patched"].items():
    scores = recorded["births"][seed][-1]["before"]
    back_by = [run[what]["heads"] for what in ("answer", "symbol before")]
    print(f"start {seed}", *(f"{x:.2f}" for x in scores),
          *("  " + " ".join(f"{x:4.0%}" for x in heads) for heads in back_by))

# %% [markdown]
# They divide the work each time. If the symbol before the answer differs, the heads with high scores bring it back (in
# the third start only one has such a score); if the answer differs, the others do. So layer 1 has two jobs, and the
# scores showed only one of them.
#
# ### 5.3 By which path? (second reading)
#
# Layer 1 notes what came before. Does layer 2 *look that up*, as our picture claims? Then the note must arrive in its
# **keys**. It could also matter for its queries or its values. **Path patching** (Wang et al. 2022; Goldowsky-Dill et
# al. 2023) puts what a sender adds into *one* receiver only; everything else reads the corrupted text.

# %%
senders = ["embedding"]
senders += [f"decoder.layers.0.self_attention.heads.{head}" for head in range(4)]
pairs = {"answer": (corrupted, lead, low, high),
         "symbol before": (key_gone, log_p_answer, low_2, high_2)}
for what, (other, measure, floor, top) in pairs.items():
    print(f"the {what} differs:")
    for reader in ("query", "key", "value"):
        receivers = [f"decoder.layers.1.self_attention.{reader}"]
        found = path_patching(learner, clean, other, senders, receivers, measure)
        shares_back = [(x - floor) / (top - floor) for x in found.values()]
        print(f"  embedding, layer 1's heads 0 to 3, to layer 2's {reader:6}",
              "  ".join(f"{x:4.0%}" for x in shares_back))

# %% [markdown]
# What came before arrives in the keys, and hardly anywhere else. The other two heads work through the values: they
# carry *which symbol is here*, for layer 2 to copy. Another third of the answer comes straight from the embedding, so
# in section 5.2 the heads alone did not bring back everything. (From each recorded start, no head brings back more than
# 2% by another path.) So the picture of section 4.1 has passed its test, and it has grown. Scores say where heads look,
# patching says what depends on them, and paths say how they are connected.
#
# ### 5.4 Break it, with a control
#
# If the two heads with the high scores do it, the model must fail without them. But any model gets worse if you damage
# it. So the claim needs a **control**: remove as many *other* heads of the same layer. Removing a part, an
# **ablation**, needs something in its place: zeros, the mean over texts, or what the head says in *another* text
# (`resample`). Zeros may be far from anything that the next layer ever sees; another text is typical, but says
# something else.

# %% jupyter={"source_hidden": true}
predict(
    "control", "The two heads of layer 1 with the lowest scores are removed (by their mean). How often is the next symbol right?",
    "more than 80% of the time", "about half of the time", "as rarely as without the other two",
)


# %% tags=["recorded"]
@torch.no_grad()
def right(learner, changes):
    with replace(learner, changes):
        said = learner(test).logits[:, :-1].argmax(dim=-1)
    return (said == test[:, 1:])[again[:, :-1]].float().mean().item()


def without_heads(learner, scores, by):
    """Right answers without two heads of layer 1 or some of layer 2."""
    order = torch.tensor(scores).argsort(descending=True).tolist()
    first, second = (f"decoder.layers.{layer}.self_attention.heads" for layer in (0, 1))
    removed = {"layer 1: two with high scores": (first, order[:2]),
               "layer 1: the other two": (first, order[2:]),
               "layer 2: one": (second, [0]), "layer 2: two": (second, [0, 1]),
               "layer 2: all four": (second, [0, 1, 2, 3])}
    return {label: right(learner, {layer: ablate(*chosen, by=by)})
            for label, (layer, chosen) in removed.items()}


# %% [markdown]
# This model, and three recorded ones:

# %% tags=["nbval-ignore-output"]
kinds = ("zero", "mean", "resample")
live = [without_heads(learner, born[-1]["before"], kind) for kind in kinds]
print(f"all heads: {right(learner, {}):.0%}")
print(f"{'without …':28}", " ".join(f"{kind:>8}" for kind in kinds),
      "   three by mean   three by resample")
for label in live[0]:
    starts = [[run[label] for run in recorded[by].values()]
              for by in ("without", "resampled")]
    print(f"{label:28}", " ".join(f"{run[label]:8.0%}" for run in live),
          *("   " + " ".join(f"{x:4.0%}" for x in three) for three in starts))
expect("The control, by its mean", live[1]["layer 1: the other two"], 0.6, 1)
predicted("control", "more than 80% of the time")

# %% [markdown]
# The control gives the first row its meaning: two missing heads need not matter that much. (In the third start, with
# one such head, the first row removes a head of the other kind as well.) But look at `resample`, where the control is
# about as bad as the circuit, from each start. These two heads carry which symbol is here (section 5.3). Taken from
# another text they carry a *wrong* one, which layer 2 may copy (our explanation). Removing a part, and making it say
# something else, are two questions.
#
# Layer 2 holds another surprise: without its first head nearly all symbols are right (by `resample`, only 72% in one
# start), and without all four almost none. If you removed only that *one* head, you would conclude that it doesn't
# matter. The others can do its job.
#
# This is all that `ablate` does:

# %%
show_source(ablate, last=11)

# %% [markdown]
# ## 6 Superposition
#
# ### 6.1 More features than dimensions, on paper
#
# We have named heads. Can we name single *numbers* of the stream? In most models each responds to many unrelated
# things. Elhage et al. (2022) offer a reason. Suppose that a model needs three yes-or-no **features**, and has two
# dimensions. Put their directions at 120° to each other: $(1, 0)$, $(-\frac12, \frac{\sqrt3}2)$, $(-\frac12,
# -\frac{\sqrt3}2)$. The dot product of any two is $-\frac12$.
#
# - Only the first is on: reading along the three directions gives $1, -\frac12, -\frac12$. A ReLU makes $1, 0, 0$.
#   Perfect.
# - The first two are on: $\frac12, \frac12, -1$, and after the ReLU $\frac12, \frac12, 0$. Both are half lost.
#
# So three fit into two, *as long as few are on at once*. This is **superposition**, and what the others add to a
# feature is **interference**.
#
# ### 6.2 Does a model do it by itself?
#
# Take five features, each on with probability $p$, with a strength between 0 and 1. A model squeezes them into two
# dimensions and reads them back along the same directions, with a bias and a ReLU: $\hat x = \text{relu}(W^\top W x +
# b)$. Earlier features count more in the loss (1, 0.9, 0.81 …).

# %%
def draw(p, size):
    return torch.rand(size, 5) * (torch.rand(size, 5) < p)  # (size, feature)


def toy_losses(W, b, x):  # (start, 2, feature), (start, feature): a loss per start
    h = torch.einsum("sdf,nf->snd", W, x)  # (start, size, 2)
    out = (h @ W + b[:, None]).relu()  # (start, size, feature)
    return (0.9 ** torch.arange(5) * (out - x) ** 2).mean(dim=(1, 2))


def toy(p, data=draw, steps=1000):
    """Eight starts learn at once: the directions and the biases of the best."""
    torch.manual_seed(0)
    W, b = nn.Parameter(0.3 * torch.randn(8, 2, 5)), nn.Parameter(torch.zeros(8, 5))
    optimizer = torch.optim.Adam([W, b], lr=1e-2)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
        optimizer.zero_grad()
        toy_losses(W, b, data(p, 256)).sum().backward()
        optimizer.step()
    best = toy_losses(W, b, data(p, 4000)).argmin()
    return W[best].detach(), b[best].detach()


# %% jupyter={"source_hidden": true}
predict(
    "superposed", "Five features, two dimensions. How many does the trained model keep?",
    "always two: there are two dimensions", "two if all are always on, five if each is rarely on",
    "always five, each a little",
)

# %% [markdown]
# We take three probabilities:

# %% tags=["nbval-ignore-output"]
toys = {p: toy(p) for p in progress([1.0, 0.3, 0.1], "training toys")}
for p, (W, _) in toys.items():
    print(f"p = {p}: {(W.norm(dim=0) > 0.5).sum()} features are kept")
expect("kept, if features are rare", int((toys[0.1][0].norm(dim=0) > 0.5).sum()), 4, 5)
predicted("superposed", "two if all are always on, five if each is rarely on")

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
figures.planes({f"each on with p = {p:g}": W for p, (W, _) in toys.items()},
               title="The rarer features are, the more share the plane")

# %% [markdown]
# With all features on, the two most important (blue, vermilion) get a dimension each, and the others are given up. The
# rarer features are, the more of them are kept, in the end as a pentagon. What does each arrangement cost? Give each
# model data of the other kind.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
for p in (1.0, 0.1):
    W, b = (torch.stack(x) for x in zip(*toys.values(), strict=True))
    losses = toy_losses(W, b, draw(p, 20_000))
    print(f"data with p = {p}: ", "  ".join(f"trained at {q}: {loss:.4f}"
                                            for q, loss in zip(toys, losses.tolist())))

# %% [markdown]
# On data where all are on at once, the pentagon's loss is several times that of the model that kept two; where few are
# on, it is less than a tenth. But $p$ changes two things: how often
# a feature is on, and how often features *meet*. Two more data sets separate them: all five are on together, as rarely
# as before, and exactly one is on, always, so each feature is on twice as often as before.

# %% tags=["nbval-ignore-output"]
def together(p, size):
    return torch.rand(size, 5) * (torch.rand(size, 1) < p)


def one_at_a_time(p, size):  # p is not used: one is always on
    return torch.rand(size, 5) * F.one_hot(torch.randint(5, (size,)), 5)


for data in (together, one_at_a_time):
    lengths = toy(0.1, data)[0].norm(dim=0).tolist()
    print(f"{data.__name__:14}", *(f"{length:5.2f}" for length in lengths))

# %% [markdown]
# Rare features that always meet don't make the pentagon: the five arrows are unequal, and none is as long. Features
# that never meet do make it, although they are on more often. So the pentagon comes from not meeting, not from being
# rare.

# %% [markdown]
# ## 7 A sparse autoencoder
#
# ### 7.1 Back to five
#
# Suppose someone hands you the *stream* of the pentagon, pairs of numbers, and not the directions. Can you find them?
# If few features are on at once, look for directions such that each point is a sum of *few* of them. A **sparse
# autoencoder** (Bricken et al. 2023; Cunningham et al. 2023) has more features than dimensions:
#
# $$f = \text{relu}(E\,(x - c) + b) \qquad \hat x = c + \sum_i f_i\, d_i \qquad
# \text{loss} = |x - \hat x|^2 + \lambda \sum_i f_i$$
#
# with directions $d_i$ of length 1. The second term charges for every strength $f_i$, so that most become 0. On paper:
# one of the pentagon's directions is 1 times itself, which costs $1 \lambda$, or 1.62 times the sum of its two
# neighbors ($2 \cdot 1.62 \cdot \cos 72° = 1$), which costs $3.24 \lambda$. Both are exact; the charge prefers the
# first. (The library first divides $x - c$ by its typical length, `scale`.)

# %%
from txlib.inspect import dead_features, fit_autoencoder

W, _ = toys[0.1]
points = draw(0.1, 20_000) @ W.T  # (size, 2): all that the autoencoder gets to see
points = points[points.norm(dim=-1) > 0]
angles = torch.arange(8) * torch.pi / 4
sets = {"evenly spaced": torch.stack([angles.cos(), angles.sin()], dim=1)}
for sparsity in (0.0, 1.0):
    for seed in range(3):
        small = fit_autoencoder(points, 8, sparsity=sparsity, steps=500, lr=1e-2,
                                seed=seed, quiet=True)
        used = (small.encode(points) > 0).float().mean(dim=0) > 0.01  # (feature,)
        sets[f"λ = {sparsity:g}, start {seed}"] = small.directions[used]

# %% [markdown]
# Of the eight features, we compare those that are on for at least 1% of the points, by the cosine with the five. Two
# questions: is a feature near each of the five, and one of the five near each feature? We print the worst case of both.
# There are two controls: no charge ($\lambda = 0$), and no training (evenly spaced arrows).

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
for what, directions in sets.items():
    cosines = F.normalize(W, dim=0).T @ directions.T  # (5, feature)
    five, each = (cosines.amax(dim=dim).min().item() for dim in (1, 0))
    print(f"{what:15} worst of the five {five:.2f},",
          f"of the {len(directions)} compared {each:.2f}")
expect("The worst of the five in the last row", five, 0.97, 1)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
some = ("evenly spaced", "λ = 0, start 0", "λ = 1, start 0")
figures.planes({"the five": W} | {name: sets[name].detach().T for name in some}, like=W,
               title="With the charge, every direction that is used is one of the five")

# %% [markdown]
# Of eight evenly spaced arrows, one is always within 22.5° of any direction, so the first number says little; but some
# point between the five (gray). So do some without the charge, and not all of the five are found. With it, from
# each start, all five are found, and every feature that is used is one of them (some more than once).
#
# ### 7.2 A real stream
#
# Now lesson 10's model, which writes verses: 128 dimensions, and we allow 512 features. What it reads are verses in
# today's English. The stream after its third block, for 63,000 tokens:

# %%
from txlib.data import verses

writer = load_pretrained(shipped("verses"), dtype=torch.float32)
words = load_tokenizer(shipped("verses"))
text = "\n".join(modern for _, modern in verses().train[::5])
ids = torch.tensor(words.encode(text))
ids = ids[: len(ids) // 64 * 64].view(-1, 64)[:1000]  # (text, 64)
LAYER = "decoder.layers.2"
parts = []
with torch.no_grad(), activations(writer, LAYER) as seen:
    for some in ids.split(100):
        writer(some)
        parts.append(seen[LAYER])
x = torch.cat(parts)[:, 1:].flatten(0, 1)  # (token, d_model), the first left out

# %% [markdown]
# Three numbers say how good an autoencoder is: how much of the variance it keeps, how many features are on per token,
# and how many are **dead**, never on. They pull in different directions. We take three values of $\lambda$, and the
# same number of steps for each:

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def report(autoencoder, x):
    f = autoencoder.encode(x)  # (token, feature)
    error = (x - autoencoder.decode(f)).square().sum()
    kept = 1 - error / (x - x.mean(dim=0)).square().sum()
    on = (f > 0).float().sum(dim=-1).mean()
    print(f"keeps {max(kept, 0):.0%} with {on:.1f} features on per token,",
          f"{dead_features(autoencoder, x).sum()} of {f.shape[1]} dead")


fitted = {}
for sparsity in progress([0.0, 0.2, 2.0], "training autoencoders"):
    fitted[sparsity] = fit_autoencoder(x, 512, sparsity=sparsity, steps=500, lr=5e-3,
                                       quiet=True)
    print(f"λ = {sparsity}: ", end="")
    report(fitted[sparsity], x)

# %% [markdown]
# Without the second term everything is kept, but more than 300 features are on at once, in 128 dimensions. Then the
# same sum can be made in many ways, so nothing singles out these directions. With a large $\lambda$ all features are
# dead, and nothing is kept. Anything in between is a choice.
#
# ### 7.3 Features and their texts
#
# What is a feature about? Look at the tokens where it is strongest, with the text before them. Of the features that are
# on for fewer than one token in fifty, we take the six strongest, each with its strongest text and those of rank 11,
# 21, 31:

# %% tags=["nbval-ignore-output"]
autoencoder = fitted[0.2]
with torch.no_grad():
    f = autoencoder.encode(x)  # (token, feature)
flat = ids[:, 1:].flatten()  # (token,): the token of each row


def context(row, length=9):
    start = max(row - length, row // 63 * 63)  # not beyond its text
    return words.decode(flat[start : row + 1].tolist()).replace("\n", " / ")


often = (f > 0).float().mean(dim=0)  # (feature,)
typical = f.topk(20, dim=0).values.mean(dim=0) * ((often > 0.001) & (often < 0.02))
strongest = typical.topk(6).indices.tolist()
for feature in strongest:
    rows = f[:, feature].topk(40).indices[::10].tolist()
    print(f"feature {feature}, on for {often[feature]:.1%}:")
    print("   ", "  |  ".join(f"…{context(row)[-34:]}" for row in rows))

# %% [markdown]
# Guess what each is about. Most of these stand for a single token. But a list of texts is again only where a feature
# *looks*.
#
# ### 7.4 Take it away
#
# What does the model *do* with a feature? Take its direction out of the stream, wherever the feature is on, and let the
# last block run. How far do the probabilities of the next token move, where the feature was strongest? We add up
# $p\,(\ln p - \ln p')$ over all tokens, with $p$ before and $p'$ after. This is the **Kullback–Leibler divergence**
# $D(p \,\|\, p')$: 0 if nothing changes. The control takes away as much along another feature's direction.

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def effect(feature, direction):  # where the feature is strongest
    rows = f[:, feature].topk(30).indices
    batch, at = ids[rows // 63], (torch.arange(30), rows % 63 + 1)

    def remove(x):
        strength = autoencoder.encode(x)[..., feature, None]
        return x - autoencoder.scale * strength * direction

    before = writer(batch).logits.log_softmax(dim=-1)[at]  # (30, vocab)
    with replace(writer, {LAYER: remove}):
        after = writer(batch).logits.log_softmax(dim=-1)[at]
    return (before.exp() * (before - after)).mean(dim=0)  # (vocab,)


# %% [markdown]
# The first three features, each with twenty controls, and the tokens that lose most:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
for feature in strongest[:3]:
    lost = effect(feature, autoencoder.directions[feature])
    others = autoencoder.directions[torch.randint(512, (20,))]
    controls = [effect(feature, other).sum().item() for other in others]
    tokens = [words.tokenizer.id_to_token(int(i)) for i in lost.topk(5).indices]
    print(f"feature {feature}: {lost.sum():.2f} nats,",
          f"controls {min(controls):.2f} to {max(controls):.2f};",
          "lose most:", " ".join(tokens).replace("Ġ", "␣"))

# %% [markdown]
# In our run the first feature is a *J* that begins a name. Without it the model expects *J-os-hua*, *J-ose-ph* and
# *J-esus* less, and its predictions move farther than with any of the twenty controls. Without the third, *have*, it
# expects *done* and *heard* less, and again the predictions move farther than with any control. The second, a *W* that
# begins a line, stays within its controls, although texts and lost tokens (*W-ith*, *W-ill*) fit together.
#
# A feature's texts only raise a suspicion, as an attention map does. What it does shows only when it is taken away,
# next to a control.
#
# Nor are these features *the* features of the model: another λ or another start may give others.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A head's direct share of a logit is 0. What follows?**
#
# <details><summary>A. The logit does not depend on it</summary>
#
# It may change what later parts read: section 3.2.
# </details>
# <details><summary>B. It adds nothing along this token's row of the output matrix</summary>
#
# Right, and that is all.
# </details>
# <details><summary>C. It is not needed for any token</summary>
#
# The share is of one logit, in one text.
# </details>
#
# **2. You remove one head at a time, and the loss never changes. What do you conclude?**
#
# <details><summary>A. No head matters</summary>
#
# Layer 2 of section 5.4: one can go, all four can't.
# </details>
# <details><summary>B. No head is needed *alone*: remove several, next to a control</summary>
#
# Right.
# </details>
# <details><summary>C. The measure is wrong</summary>
#
# It may be right: heads can do the same job.
# </details>
#
# **3. A vector of the clean run, put into the corrupted run at one position, brings the answer back. What is shown?**
#
# <details><summary>A. This vector holds what makes the difference between the two texts</summary>
#
# Right: for these pairs. Other pairs ask about other differences, as in section 5.2.
# </details>
# <details><summary>B. The model needs nothing else for the answer</summary>
#
# All that both texts share is there anyway.
# </details>
# <details><summary>C. The part that wrote the vector is the whole circuit</summary>
#
# It may only pass on what others have found.
# </details>
#
# **4. Five features lie in a plane as a pentagon. When is reading one of them most in error?**
#
# <details><summary>A. When it is on alone</summary>
#
# Bias and ReLU then remove most of what the others would read.
# </details>
# <details><summary>B. When several are on at once</summary>
#
# Right: they interfere. Two that point far apart even cancel each other.
# </details>
# <details><summary>C. When it is important</summary>
#
# Importance decides what is kept, not what interferes.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - The residual stream is a sum of all that was written into it; so is a logit. Direct shares are arithmetic, effects
#   need an intervention.
# - The logit lens reads a guess at each depth: what *could* be read there.
# - Previous-token heads in layer 1 and induction heads in layer 2 appear together, within some fifty steps, and the
#   loss falls in these steps. The first write what the second find by their keys.
# - Patching puts an activation of one text into another; path patching, only for one reader.
# - Ablate with a control, and more than one head at a time.
# - Features that rarely meet share dimensions. A sparse autoencoder looks for directions of which few are on at once.
#   What a direction does shows when it is taken away, next to a control.
#
# **Read** nostalgebraist 2020, [interpreting
# GPT](https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens). Elhage et al. 2021, [A
# Mathematical Framework for Transformer Circuits](https://transformer-circuits.pub/2021/framework/index.html). Olsson
# et al. 2022, [arXiv:2209.11895](https://arxiv.org/abs/2209.11895). Meng et al. 2022,
# [arXiv:2202.05262](https://arxiv.org/abs/2202.05262), section 2. Wang et al. 2022,
# [arXiv:2211.00593](https://arxiv.org/abs/2211.00593), section 3. Goldowsky-Dill et al. 2023,
# [arXiv:2304.05969](https://arxiv.org/abs/2304.05969). Elhage et al. 2022,
# [arXiv:2209.10652](https://arxiv.org/abs/2209.10652), sections 1 to 3. Bricken et al. 2023, [Towards
# Monosemanticity](https://transformer-circuits.pub/2023/monosemantic-features/index.html). Cunningham et al. 2023,
# [arXiv:2309.08600](https://arxiv.org/abs/2309.08600).
#
# **Do** the exercise [43_inside](../exercises/exercise_43_inside.ipynb). Then go on to [44 Serving](44_serving.ipynb).
