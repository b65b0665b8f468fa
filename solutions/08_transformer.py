# %% [markdown]
# # Exercise 08 · The Transformer, built from its parts
#
# Three tasks, 7 points, about 30 minutes. [Lesson 08](../notebooks/08_transformer.ipynb) has the ideas; here you use them
# elsewhere. All three tasks are *core*. Run the cells from the top; fill in where it says *your turn*. A check compares
# what your function returns with what it should return, and knows the usual mistakes. Try as often as you like.
#
# The special tokens are defined below: padding is `PAD`, which is {{PAD}}, start is `BOS`, {{BOS}}, and end is `EOS`, {{EOS}}.
# A label of −100 is not counted. A mask is boolean, and `True` means *may attend*.
#
# Write the answers yourself: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check

# %% tags=["variant"]
from txgrade import variant

PAD, BOS, EOS = variant((0, 1, 2), (1, 0, 2), (3, 1, 2), (0, 2, 1))  # they differ between tokenizers

# %% [markdown]
# ### Task 1 · Read your own words   ●●○○○ · 10 minutes · 2 points
#
# With teacher forcing the decoder reads only perfect beginnings. When it writes by itself, it meets its own mistakes,
# and has never learned to go on from them. *Scheduled sampling* (Bengio et al. 2015) lets it read, now and then, its
# own guess instead of the right token.
#
# A first pass has made a guess for each label: `guesses[b, t]` is what the model would write where `labels[b, t]` is
# right. Where `own[b, t]` is true, the decoder is to *read* that guess instead of that label, even if the label is `EOS`.
# Return the decoder's input: `BOS` first, everything else shifted right by one, the last position left off. Where the
# label is −100 the sentence is over: put `PAD`, whatever was guessed.
#
# <details><summary>Hint 1: what first?</summary>
#
# Mix first, then shift. Otherwise the decoder reads a guess at the very position it was made for.
# </details>
# <details><summary>Hint 2: mixing</summary>
#
# `torch.where(condition, a, b)`. Which positions take the guess? Those with `own`, where there is a word at all.
# </details>
# <details><summary>Hint 3: shifting</summary>
#
# A column of `BOS`, then all columns but the last.
# </details>

# %% nbgrader={"grade_id": "own-words", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def scheduled_inputs(
    labels: Int[Tensor, "batch target"], guesses: Int[Tensor, "batch target"], own: Bool[Tensor, "batch target"]
) -> Int[Tensor, "batch target"]:
    """What the decoder reads: right words, and its own guesses where `own` says so."""
    ### BEGIN SOLUTION
    mixed = torch.where(own, guesses, labels).masked_fill(labels == -100, PAD)
    return torch.cat([torch.full_like(labels[:, :1], BOS), mixed[:, :-1]], dim=1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-own-words", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("own-words") as show:
    n = show.random_size(5, 9)
    labels = show.randint(10, 99, 3, n + 3)                        # (sentence, n + 3)
    labels[0, n], labels[1, n + 1], labels[2, n + 2] = EOS, EOS, EOS
    labels[0, n + 1:], labels[1, n + 2:] = -100, -100
    guesses = show.randint(100, 199, 3, n + 3)                     # (sentence, n + 3)
    own = show.rand(3, n + 3) < 0.5                                # (sentence, n + 3)
    show(scheduled_inputs(labels, guesses, own), f"sentences of {n}, {n + 1} and {n + 2} words, half of them own")
    show([scheduled_inputs(labels, guesses, torch.zeros_like(own)), labels],
         "none own: teacher forcing; the labels afterwards")
    show(scheduled_inputs(labels, guesses, torch.ones_like(own)), "all own")
    show(scheduled_inputs(labels[:, :1], guesses[:, :1], own[:, :1]), "sentences of one token")

# %% tags=["mistakes"]
from txgrade import alternative, forbid, mistake

forbid("*", "txlib")
forbid("own-words", ("transformers",))


def shifted(x, start=BOS):
    return torch.cat([torch.full_like(x[:, :1], start), x[:, :-1]], dim=1)


def mixed(labels, guesses, own):
    return torch.where(own, guesses, labels).masked_fill(labels == -100, PAD)


def shift_first(labels, guesses, own):
    read = shifted(labels).masked_fill(shifted(labels) == -100, PAD)
    return torch.where(own, guesses, read).index_fill(1, torch.tensor([0]), BOS).masked_fill(read == PAD, PAD)


def choose_unshifted(labels, guesses, own):
    read = torch.where(own, shifted(guesses), shifted(labels))
    return read.masked_fill(shifted(labels) == -100, PAD)


def in_place(labels, guesses, own):
    labels[own & (labels != -100)] = guesses[own & (labels != -100)]
    labels[labels == -100] = PAD
    return shifted(labels)


mistake("own-words", shift_first,
        "You shift the labels, and then mix in guesses that are not shifted: the decoder reads the guess for the word that "
        "it is about to write. Mix first, shift afterwards.")
mistake("own-words", choose_unshifted,
        "Labels and guesses are shifted, but `own` is not: it speaks of labels, so it moves with them. Mix first.")
mistake("own-words", lambda labels, guesses, own: shifted(mixed(labels, guesses, ~own)),
        "It is the wrong way round: `own` is true where the *guess* is to be read.")
mistake("own-words", lambda labels, guesses, own: shifted(torch.where(own, guesses, labels.masked_fill(labels == -100, PAD))),
        "After a sentence's end there are guesses. Where the label is −100 put `PAD`, whatever was guessed.")
mistake("own-words", lambda labels, guesses, own: shifted(torch.where(own & (labels != -100), guesses, labels)),
        "A −100 is left in the decoder's input. It is no word: put `PAD` there.")
mistake("own-words", lambda labels, guesses, own: shifted(mixed(labels, guesses, torch.zeros_like(own))),
        "This is plain teacher forcing: the guesses are not used.")
mistake("own-words", lambda labels, guesses, own: shifted(mixed(labels, guesses, torch.ones_like(own))),
        "All words are guesses. Only where `own` is true.")
mistake("own-words", lambda labels, guesses, own: mixed(labels, guesses, own),
        "Nothing is shifted: each position reads the word that it is to write.")
mistake("own-words", lambda labels, guesses, own: shifted(mixed(labels, guesses, own), EOS),
        "The first token is `EOS`. It is the start token, `BOS`, that tells the decoder to begin.")
mistake("own-words", lambda labels, guesses, own: mixed(labels, guesses, own).roll(1, dims=1),
        "`roll` brings the last column to the front. The decoder must begin with `BOS`.")
mistake("own-words", lambda labels, guesses, own: torch.cat(
            [torch.full_like(labels[:, :1], BOS), mixed(labels, guesses, own)], dim=1),
        "The result is one longer than the labels. Leave out the last column.")
mistake("own-words", in_place,
        "The result is right, but your function has overwritten the labels, which the loss still needs. Make a new tensor.")


def word_by_word(labels, guesses, own):
    read = torch.full_like(labels, BOS)
    for b in range(labels.shape[0]):
        for t in range(1, labels.shape[1]):
            over = labels[b, t - 1] == -100
            read[b, t] = PAD if over else guesses[b, t - 1] if own[b, t - 1] else labels[b, t - 1]
    return read


alternative("own-words", word_by_word)

# %% [markdown]
# ### Task 2 · The decoder's mask   ●●○○○ · 8 minutes · 2 points
#
# Sentences of different lengths share one batch, each padded, at the end or in front. (In front is common for writing:
# then the last column holds the last word of every sentence, and all continue from there.) Build the mask for
# the decoder's self-attention: query $i$ may attend to key $j$ if $j$ is not later than $i$, *and* key $j$ of that
# sentence is a real token. `attention_mask` is 1 at real tokens. The result is (batch, 1, n, n): the axis of 1 is for
# the heads.
#
# The lesson's decoder did without the second condition: its padding stands at the end, where no real word looks.
# Padding in front is the past of every real word, and the causal mask alone would let them all look at it. (A query that
# is padding may then see nothing at all. Leave its row empty: its result is thrown away.)
#
# <details><summary>Hint 1: two masks</summary>
#
# One is the same for all sentences, the other is the same for all queries. `&` joins them.
# </details>
# <details><summary>Hint 2: the causal one</summary>
#
# `torch.ones(n, n).tril().bool()` broadcasts against four axes.
# </details>
# <details><summary>Hint 3: the other</summary>
#
# It belongs to the *keys*, the last axis: `attention_mask.bool()[:, None, None, :]`.
# </details>

# %% nbgrader={"grade_id": "decoder-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def decoder_mask(attention_mask: Int[Tensor, "batch n"]) -> Bool[Tensor, "batch 1 n n"]:
    """True where a query may attend to a key."""
    ### BEGIN SOLUTION
    n = attention_mask.shape[1]
    return torch.ones(n, n).tril().bool() & attention_mask.bool()[:, None, None, :]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-decoder-mask", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("decoder-mask") as show:
    n = show.random_size(5, 9)
    lengths = torch.tensor([n, *show.randint(1, n, 4).tolist()])   # (sentence,)
    attention_mask = (torch.arange(n) < lengths[:, None]).long()   # (sentence, n)
    show(decoder_mask(attention_mask), f"lengths {lengths.tolist()}")
    show(decoder_mask(attention_mask.flip(1)), "the same sentences, padded in front")
    show(decoder_mask(torch.cat([attention_mask, attention_mask.flip(1)])), "both kinds in one batch")
    show(decoder_mask(torch.tensor([[1]])), "one sentence of one word")

# %% tags=["mistakes"]
def parts_of(attention_mask):
    n, real = attention_mask.shape[1], attention_mask.bool()
    return torch.ones(n, n).tril().bool(), real[:, None, None, :], real[:, None, :, None]


def causal_only(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past.expand(len(keys), 1, -1, -1).clone()


def padding_only(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return keys.expand(-1, -1, len(past), -1).clone()


def either(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past | keys


def of_queries(attention_mask):
    past, _, queries = parts_of(attention_mask)
    return past & queries


def upper(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past.T & keys


def strict(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past.tril(-1) & keys


mistake("decoder-mask", causal_only, "Padding is not hidden: the keys of short sentences are open to the end.")
mistake("decoder-mask", lambda attention_mask: (
            decoder_mask((torch.arange(attention_mask.shape[1]) < attention_mask.sum(1)[:, None]).long())),
        "You count the real tokens, and take them to stand in front. Where the padding is in front, these are the wrong "
        "ones: read `attention_mask` itself.")
mistake("decoder-mask", padding_only, "The future is not hidden. Join in the causal mask with `&`.")
mistake("decoder-mask", either, "You join with `|`, *or*. A key must be past *and* real: `&`.")
mistake("decoder-mask", of_queries,
        "The rows of padding are empty: the padding mask lies along the *queries*. It is the keys that must not be read: "
        "put `attention_mask` on the last axis, and only there.")
mistake("decoder-mask", upper, "The causal mask is the wrong way round: each query sees the future, and not the past.")
mistake("decoder-mask", strict, "A token may look at itself. The diagonal is `True`; without it the first word sees nothing.")
mistake("decoder-mask", lambda attention_mask: ~decoder_mask(attention_mask),
        "The mask is inverted. Here `True` means *may attend*.")
mistake("decoder-mask", lambda attention_mask: decoder_mask(attention_mask)[:, 0],
        "The axis for the heads is missing: (batch, 1, n, n). Without it, sentences would be taken for heads.")
mistake("decoder-mask", lambda attention_mask: parts_of(attention_mask)[0][None, None],
        "This is the causal mask alone, one for all sentences. Join in the padding of each sentence with `&`.")
mistake("decoder-mask", lambda attention_mask: parts_of(attention_mask)[1],
        "This is the padding mask alone, (batch, 1, 1, n). Join in the causal mask with `&`; that also gives the shape.")
mistake("decoder-mask", lambda attention_mask: parts_of(attention_mask)[0] & ~parts_of(attention_mask)[1],
        "The padding is inverted: you allow *only* padding. `attention_mask` is 1 at real tokens already.")
mistake("decoder-mask", lambda attention_mask: decoder_mask(attention_mask).long(),
        "The numbers are right, but a mask is boolean: use `&` on booleans, or `.bool()` at the end.")
mistake("decoder-mask", lambda attention_mask: torch.zeros(decoder_mask(attention_mask).shape).masked_fill(
            ~decoder_mask(attention_mask), float("-inf")),
        "This is a mask to *add* to the scores, 0 and −∞. In this course a mask is boolean: `True` where a query may look.")
alternative("decoder-mask", lambda attention_mask: torch.stack(
    [torch.ones_like(row).outer(row).tril().bool()[None] for row in attention_mask]))

# %% [markdown]
# ### Task 3 · The paper's wiring   ●●○○○ · 10 minutes · 3 points
#
# The lesson's decoder block is pre-norm. The paper's is post-norm: each sub-layer's output is added to its input, and the
# *sum* is normalized (§3.1). Write the forward pass of the paper's decoder block, without dropout.
#
# The sub-layers are functions: `self_attention(x)`, `cross_attention(x, memory)` and `feed_forward(x)`. `norms` holds
# three functions, one for each sub-layer, in the order in which a decoder block has them.
#
# <details><summary>Hint 1: the order</summary>
#
# First look at what has been written, then at the source, then compute.
# </details>
# <details><summary>Hint 2: one sub-layer</summary>
#
# `norm(x + sublayer(x))`. The next sub-layer reads the result.
# </details>
# <details><summary>Hint 3: a check of your own</summary>
#
# Let all three sub-layers return zeros and all norms double their input. Which multiple of `x` should come out?
# </details>

# %% nbgrader={"grade_id": "paper-wiring", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def post_norm_block(
    x: Float[Tensor, "n d"],
    memory: Float[Tensor, "m d"],
    self_attention: Callable,
    cross_attention: Callable,
    feed_forward: Callable,
    norms: list[Callable],
) -> Float[Tensor, "n d"]:
    """A decoder block as in Vaswani et al. 2017."""
    ### BEGIN SOLUTION
    x = norms[0](x + self_attention(x))
    x = norms[1](x + cross_attention(x, memory))
    return norms[2](x + feed_forward(x))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-paper-wiring", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("paper-wiring") as show:
    n, m, d = show.random_size(2, 4), show.random_size(5, 7), show.random_size(4, 8)
    matrices = show.randn(4, d, d)
    shifts = show.randn(3, d)

    def attend(queries, keys):                                     # (n, d), (m, d)
        return (queries @ matrices[0] @ keys.T).softmax(dim=-1) @ keys @ matrices[1]

    def norm_of(shift):
        return lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]) + shift

    norms = [norm_of(shift) for shift in shifts]
    parts = (lambda x: attend(x, x)), attend, (lambda x: (x @ matrices[2]).relu() @ matrices[3])
    x, memory = show.randn(n, d), show.randn(m, d)
    show(post_norm_block(x, memory, *parts, norms), f"{n} tokens, a memory of {m} vectors of {d} numbers")
    show(post_norm_block(x[:1], memory, *parts, norms), "the first token alone")
    show([post_norm_block(x, memory[:1], *parts, norms), x], "a memory of one vector; x afterwards")

# %% tags=["mistakes"]
def pre_norm(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = x + self_attention(norms[0](x))
    x = x + cross_attention(norms[1](x), memory)
    return x + feed_forward(norms[2](x))


def norm_on_branch(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = x + norms[0](self_attention(x))
    x = x + norms[1](cross_attention(x, memory))
    return x + norms[2](feed_forward(x))


def no_residual(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = norms[0](self_attention(x))
    x = norms[1](cross_attention(x, memory))
    return norms[2](feed_forward(x))


def source_first(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = norms[0](x + cross_attention(x, memory))
    x = norms[1](x + self_attention(x))
    return norms[2](x + feed_forward(x))


def parallel(x, memory, self_attention, cross_attention, feed_forward, norms):
    a, b, c = norms[0](x + self_attention(x)), norms[1](x + cross_attention(x, memory)), norms[2](x + feed_forward(x))
    return a + b + c


def no_memory(x, memory, self_attention, cross_attention, feed_forward, norms):
    return post_norm_block(x, x, self_attention, cross_attention, feed_forward, norms)


def one_norm(x, memory, self_attention, cross_attention, feed_forward, norms):
    return post_norm_block(x, memory, self_attention, cross_attention, feed_forward, [norms[0]] * 3)


def last_norm_only(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = x + self_attention(x)
    x = x + cross_attention(x, memory)
    return norms[2](x + feed_forward(x))


def no_last_norm(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = norms[0](x + self_attention(x))
    x = norms[1](x + cross_attention(x, memory))
    return x + feed_forward(x)


def from_the_input(x, memory, self_attention, cross_attention, feed_forward, norms):
    y = norms[0](x + self_attention(x))
    y = norms[1](x + cross_attention(y, memory))
    return norms[2](x + feed_forward(y))


def no_cross(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = norms[0](x + self_attention(x))
    return norms[2](x + feed_forward(x))


def no_self(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = norms[1](x + cross_attention(x, memory))
    return norms[2](x + feed_forward(x))


def no_feed_forward(x, memory, self_attention, cross_attention, feed_forward, norms):
    x = norms[0](x + self_attention(x))
    return norms[1](x + cross_attention(x, memory))


def in_place(x, memory, self_attention, cross_attention, feed_forward, norms):
    out = post_norm_block(x, memory, self_attention, cross_attention, feed_forward, norms)
    x += self_attention(x)
    return out


mistake("paper-wiring", pre_norm, "This is pre-norm: you normalize what goes into a sub-layer. The paper normalizes the sum.")
mistake("paper-wiring", norm_on_branch,
        "You normalize the sub-layer's output, then add. Add first: the norm is across the stream, not on the branch.")
mistake("paper-wiring", no_residual, "The residual connections are missing: add each sub-layer's output to its input.")
mistake("paper-wiring", source_first, "The order is wrong: a decoder block looks at its own past first, then at the source.")
mistake("paper-wiring", parallel, "All three sub-layers read the block's input. Each must read what the one before it has made.")
mistake("paper-wiring", no_memory, "The cross-attention looks at the target. Its keys and values come from the memory.")
mistake("paper-wiring", one_norm, "You use the first norm three times. Each sub-layer has its own.")
mistake("paper-wiring", last_norm_only, "Only the last sum is normalized. In post-norm each of the three is.")
mistake("paper-wiring", no_last_norm, "The last norm is missing: the feed-forward network's sum is normalized as well.")
mistake("paper-wiring", from_the_input,
        "You add to the block's input each time. A residual connection goes around *one* sub-layer: add to what it read.")
mistake("paper-wiring", no_cross, "The cross-attention is missing.")
mistake("paper-wiring", no_self, "The self-attention is missing.")
mistake("paper-wiring", no_feed_forward, "The feed-forward network is missing.")
mistake("paper-wiring", in_place, "Your function changes `x`. Make a new tensor: `x = norm(x + …)`, not `x += …`.")


def in_a_loop(x, memory, self_attention, cross_attention, feed_forward, norms):
    for sublayer, norm in zip((self_attention, lambda y: cross_attention(y, memory), feed_forward), norms, strict=True):
        x = norm(x + sublayer(x))
    return x


alternative("paper-wiring", in_a_loop)

# %%
check.summary()
