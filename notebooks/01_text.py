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
# **You need** Python and a little torch. **It takes** about 65 minutes to read and try; all cells together run in about
# a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a network only knows numbers
#
# A neural network multiplies and adds numbers, and text is not made of numbers. The obvious idea is to give each word a
# number. Let us try it with twelve plays by Shakespeare.

# %%
import re
from collections import Counter

import regex  # like re, but knows what a letter is in any language
import torch

from txlib import plots
from txlib.data import plays, shakespeare, translation
from txlib.paths import DATA
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, prove_equal, show_source


def words(text):
    return re.findall(r"\w+(?:'\w+)*", text.lower())


train, _, test = shakespeare()  # the test is a play that is not in train
number = {word: i for i, word in enumerate(dict.fromkeys(words(train)))}
print(f"{len(number):,} words. King is number {number['king']}, "
      f"queen is number {number['queen']}.")

# %% [markdown]
# Here is a line from a play that is not among the twelve, *Julius Caesar*, and the German for *the kings*:

# %%
for text in ("Beware the ides of March.", "Die Könige"):
    print(text, "→", [number.get(word, "unknown") for word in words(text)])

# %% [markdown]
# The one word that matters, *ides*, is lost, and so are the period and the capital letters. You can't get the line back
# from these numbers. And of *Die Könige*, one word is unknown, and the other is mistaken for the English *die*.
#
# We want to write text as integers in a way that **never loses anything**, has **no unknown word**, uses **few
# different** integers, and makes **short** sequences. The last two conflict. This lesson builds the compromise that
# nearly all language models use today.

# %% [markdown]
# ### The idea in one picture
#
# Here is a German sentence, cut in four ways. Each box becomes one integer. `▁` stands for a space, and `c3 bc` are the
# two bytes of *ü* in hexadecimal. (The byte pairs are from a vocabulary that we train in section 5.)

# %% jupyter={"source_hidden": true}
sentence = "Die Brücke des Königs?"
byte_pairs = ["Die", " B", "rück", "e", " des", " König", "s", "?"]
plots.tokens(
    {"words": ["Die", "Brücke", "des", "Königs", "?"], "byte pairs": byte_pairs, "characters": list(sentence),
     "bytes": [chr(byte) if byte < 128 else f"{byte:02x}" for byte in sentence.encode()]},
    title="Few long pieces, or many short ones",
    alt="The sentence Die Brücke des Königs cut into 5 words, 8 byte pairs, 22 characters and 24 bytes.",
)

# %% [markdown]
# A sentence has few words, but there is no end of new ones. It has many bytes, but only 256 different ones exist.
# Byte-pair encoding lies between the two: what is frequent gets a piece of its own, and what is rare is put together
# from smaller pieces, in the worst case from single bytes. A piece is called a **token**, its integer a **token id**,
# and the list of all tokens the **vocabulary**.
#
# Then each id picks a row of a table. That row, a vector, is what the network reads.
#
# $$\text{text} \to \text{bytes} \to \text{tokens} \to \text{ids} \to \text{vectors}$$

# %% [markdown]
# ## 2 Bytes, or words?
#
# We want few different integers. So what is text made of? Unicode gives each character a number, its *code point*,
# which Python's `ord` returns. There are more than 150,000 of them, and new ones keep coming. In files they are
# written as bytes, numbers from 0 to 255, by a rule called UTF-8: one byte for an English letter, up to four for other
# characters.

# %%
for character in "aö—語🙂":
    code_point, utf8 = ord(character), character.encode()
    bits = " ".join(f"{byte:08b}" for byte in utf8)
    print(f"{character}  code point {code_point:6}   bytes {bits}")

# %% [markdown]
# Look at the first bits. A byte that begins with `0` is a whole character. `110`, `1110` and `11110` open a
# character of two, three or four bytes, and each byte that begins with `10` continues it. The other bits, read in
# order, are the code point: *ö* has `00011` and `110110`, together binary 11110110, which is 246. So you can tell where
# a character begins, even in the middle of a file.
#
# How many bytes does real text need? We measure German sentences from games such as *The Battle for Wesnoth*, the
# same sentences in English, and three emoji:

# %%
pairs = translation("games", "de-en")
german, english = ("\n".join(side) for side in zip(*pairs.train))
for name, text in {"German": german, "English": english, "emoji": "🙂🙂🙂"}.items():
    ratio = len(text.encode()) / len(text)
    print(f"{name:8}{len(text):9,} characters, {ratio:.3f} bytes per character")

# %% [markdown]
# In both languages nearly every character is one byte. So why not simply use bytes as tokens?
#
# **For:** 256 different tokens can write every text in every language, and nothing is unknown. **Against:** sequences
# are long. Suppose a network reads 1,000 tokens. If they are words, it sees two pages; if they are bytes, a paragraph.
# And, as lesson 03 shows, twice the tokens can mean four times the work.

# %% [markdown]
# ### Words: a vocabulary without end
#
# Bytes lose nothing, but make long sequences. Words make short ones. How many words are there? We read Shakespeare and
# both sides of the pairs and count the different words seen so far. How many more does twice the text bring?


# %%
def growth(text):
    read, seen, different = words(text), set(), {}
    for i, word in enumerate(read, start=1):
        seen.add(word)
        if i % 2000 == 0:
            different[i] = len(seen)
    return different  # words read: different words among them


grown = {"Shakespeare": train, "German": german, "English": english}
grown = {name: growth(text) for name, text in grown.items()}
for name, different in grown.items():
    more = different[284_000] / different[142_000] - 1
    print(f"{name:11} from 142,000 to 284,000 words: {more:.0%} more different ones")

# %% [markdown]
# Here are all the counts along the way:

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (list(different), list(different.values())) for name, different in grown.items()},
    xscale="log", yscale="log", title="There is always another new word", xlabel="words read", ylabel="different words",
    alt="Different words against words read on logarithmic axes: three rising lines that never level off. German, "
    "with the same sentences as English, rises fastest.",
)

# %% [markdown]
# On logarithmic axes the lines are nearly straight: the number of different words grows like a power of the text's
# length, $K n^\beta$ with an exponent $\beta$ below 1 (*Heaps' law*). German grows fastest, though its sentences say
# the same as the English ones. Our explanation: German builds compound words and has many endings.
#
# How many words occur only once, so that a network sees them only once? And how many words of the unseen play are new?

# %%
frequency, unseen = Counter(words(train)), words(test)
once = sum(times == 1 for times in frequency.values()) / len(frequency)
print(f"{once:.0%} of the {len(frequency):,} words occur only once in the twelve plays")
unknown = [word for word in unseen if word not in frequency]
print(f"{len(unknown) / len(unseen):.1%} of Julius Caesar's words are unknown, e.g.")
print(" ".join(list(dict.fromkeys(unknown))[:14]))

# %% [markdown]
# About one word in 18 is unknown, and those are the words that make the play: its names and rare words. But look at
# them: *workman*, *tradesman's* and *climb'd* are made of pieces that we do know. If only we could use the pieces.
#
# And what is a word? Chinese and Japanese put no spaces between them. To our rule, 我們需要更多的金子 (*We need more
# gold*, nine characters) is a single word, one that will hardly occur again. To cut it, you have to know the language
# already. If you start from bytes, you don't.

# %% [markdown]
# ## 3 Byte-pair encoding by hand
#
# We have bytes, which make long sequences, and words, which have no end. We want something in between. Here is the
# whole idea (Sennrich et al. 2016, section 3.2; with bytes, Radford et al. 2019, section 2.2):
#
# 1. Begin with bytes: each byte is a token.
# 2. Count all pairs of neighboring tokens.
# 3. Join the most frequent pair into a new token, everywhere.
# 4. Go to 2, until you have as many tokens as you want.
#
# **Count.** We start with a line of *Macbeth*.


# %%
def count_pairs(tokens):
    return Counter(zip(tokens, tokens[1:]))


macbeth = b"To-morrow, and to-morrow, and to-morrow,"
tokens = tuple(bytes([byte]) for byte in macbeth)  # 40 tokens of one byte
for pair, times in count_pairs(tokens).most_common(9):
    print(pair, times)

# %% [markdown]
# Eight pairs occur three times. Which comes first? Any fixed rule will do, as long as everyone uses the same one;
# otherwise the same text would get different ids. In ours, ties go to the pair that is last in alphabetical order, as
# Python compares tuples of byte strings.


# %%
def most_frequent(counts):
    return max(counts, key=lambda pair: (counts[pair], pair))


print(most_frequent(count_pairs(tokens)))

# %% [markdown]
# **Join.** Go from left to right. A token that has just been joined cannot be joined again in this pass: in `aaa`, only
# the first two are joined.


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
# **Repeat.** Count, choose, join, and again. Watch how *morrow* grows together, three merges at a time.

# %%
rows, merged = {}, tokens
for step in range(13):
    if step % 3 == 0:
        rows[f"{step} merges"] = [token.decode() for token in merged]
    merged = merge(merged, most_frequent(count_pairs(merged)))
plots.tokens(
    rows, title="What repeats becomes one token",
    alt="The line after 0, 3, 6, 9 and 12 merges: 40 characters become long tokens."
)

# %% [markdown]
# (In the last row, `nd▁to-morrow,` begins in the middle of *and*. The procedure does not know what a word is. Keep that
# in mind for section 4.)
#
# ### On real text
#
# Now all of *Hamlet*. Two things change. First, the text is cut into pieces about as long as words, and no token
# crosses a cut. (Section 4 shows what that is good for.) Second, the same piece occurs many times, so we keep it once,
# with its count.
#
# The pattern that cuts is the one from GPT-2, a language model of 2019: the first of its six parts that matches takes
# the piece. In it, `\p{L}` is any letter, `\p{N}` any digit or other number sign, and `\s` any white space. A space
# goes with the word that *follows* it.

# %%
PATTERN = "|".join([
    r"'(?:[sdmt]|ll|ve|re)",  # endings, such as 'll
    r" ?\p{L}+",  # letters, with a space before them
    r" ?\p{N}+",  # digits, likewise
    r" ?[^\s\p{L}\p{N}]+",  # what is neither, such as a comma
    r"\s+(?!\S)",  # all but the last of several spaces
    r"\s+"])
print(regex.findall(PATTERN, "They'll pay 300 gold, won't they?"))
hamlet = plays()["hamlet"]
pieces = Counter(regex.findall(PATTERN, hamlet))
print(f"{pieces.total():,} pieces, {len(pieces):,} different:", pieces.most_common(4))

# %% [markdown]
# The rest is as before: count, choose, join, and again. `spell` makes the tuple of a piece's bytes.


# %%
def spell(piece):
    return tuple(bytes([byte]) for byte in piece.encode())


def learn(pieces, count):
    """The first `count` merges, in order."""
    spelled = {spell(piece): times for piece, times in pieces.items()}
    merges = []
    for _ in range(count):
        counts = Counter()
        for tokens, times in spelled.items():
            for pair in zip(tokens, tokens[1:]):
                counts[pair] += times
        merges.append(most_frequent(counts))
        spelled = {merge(tokens, merges[-1]): n for tokens, n in spelled.items()}
    return merges


# %% [markdown]
# What does it find in *Hamlet*? Here are its first merges, and the longest tokens among 200. (This takes a while;
# section 4 makes it faster.)

# %%
import time

start = time.perf_counter()
merges = learn(pieces, 200)
our_seconds = time.perf_counter() - start
learned = [(left + right).decode().replace(" ", "▁") for left, right in merges]
print("first:  ", " ".join(learned[:30]))
print("longest:", " ".join(sorted(learned, key=len)[-15:]))

# %% [markdown]
# First come frequent pairs of letters, then *the* and *you*; after 200 merges, *thou*, *shall* and names from the play.
# In between are fragments on the way to a word, such as `UDIUS`: a piece is what is frequent, not a syllable.
#
# **Encode.** A new text gets the same treatment: bytes first, then merges in the order in which they were learned. The
# number of a merge is its *rank*. As long as any pair in a piece has a rank, join the one with the lowest. A token's id
# is its position in a list: 256 bytes first, then the merges.

# %%
rank = {pair: i for i, pair in enumerate(merges)}
vocabulary = [bytes([byte]) for byte in range(256)]
vocabulary += [left + right for left, right in merges]
id_of = {token: i for i, token in enumerate(vocabulary)}


def encode(text):
    encoded = []
    for piece in regex.findall(PATTERN, text):
        tokens = spell(piece)
        while True:
            known = [pair for pair in zip(tokens, tokens[1:]) if pair in rank]
            if not known:
                break
            tokens = merge(tokens, min(known, key=rank.get))
        encoded += [id_of[token] for token in tokens]
    return encoded

# %% [markdown]
# **Decode.** One line is enough: put the bytes together and read them as text.


# %%
def decode(ids):
    return b"".join(vocabulary[id] for id in ids).decode(errors="replace")


print("The king of Denmark →", encode("The king of Denmark"))

for text in ("The king of Denmark", "Beware the ides.", "Die Könige? 🙂 語 \t x  =  3"):
    print(f"{len(text.encode()):3} bytes, {len(encode(text)):2} tokens, "
          f"back again: {decode(encode(text)) == text}")

# %% [markdown]
# The merges learned from *Hamlet* encode any text at all. They make it much shorter only if it resembles *Hamlet*.

# %% [markdown]
# ## 4 Open the library, and break it
#
# Our encoder works, but it is slow. `txlib` has the same thing, `BytePairEncoder`. Its `encode` cuts the text and
# calls `merge` for each piece. The source of `merge`, read from the installed library, is folded:

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
from txlib.text import BytePairEncoder
from txlib.text.merges import merge as library_merge

show_source(library_merge)

# %% [markdown]
# The rule is the same: always the pair that was learned first. What is new is the bookkeeping. Ours looks through the
# whole piece again after each merge. The library keeps the pairs in a *heap*, a list that always has the lowest rank in
# front. In learning, our `learn` counts *all* pairs anew for each merge; `BytePairEncoder.train` remembers where each
# pair occurs and updates only the counts around those places. (Hugging Face's `tokenizers` does the same in Rust.)
# Does it learn the same merges and give the same ids? We check on a whole play.

# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
library = BytePairEncoder.train([hamlet], vocab_size=456)  # 256 bytes and 200 merges
seconds = time.perf_counter() - start
print(f"200 merges: ours took {our_seconds:.1f} s, the library's {seconds:.2f} s")
print("the same pattern:", library.pattern == PATTERN,
      "- the same 200 merges:", library.merges == merges)
mine = torch.tensor(encode(test))  # (length,)
theirs = torch.tensor(library.encode(test))  # (length,)
prove_equal(mine, theirs, what="Your ids of Julius Caesar and the library's")
print("decoded without loss:", library.decode(theirs) == test)

# %% [markdown]
# ### Special tokens
#
# A model needs marks that no text can contain, for example for the end of a document. They get extra ids, which no
# merge can make. The caller of `encode` decides whether the text `<|endoftext|>` stands for the mark:

# %%
marked = BytePairEncoder.train([hamlet], 457, special_tokens=["<|endoftext|>"])
message = "Good night.<|endoftext|>"
print("as a mark:", marked.encode(message))
print("as text:  ", marked.encode(message, special_tokens=False))

# %% [markdown]
# The second form is for text from strangers. Otherwise anyone could write your mark into a message, and your model
# would take it for the end.

# %% [markdown]
# ### Break it: no cutting into pieces
#
# Why cut the text before we count? Leave the cutting out: a pattern that matches everything makes the whole play a
# single piece. (The library does the counting; our `learn` would go through the whole play for each merge.) How many
# tokens does the unseen play take then, and how well can they be predicted? Guess first:

# %%
predict("uncut-tokens", "Without the cutting, the unseen play takes",
        "more tokens, and is harder to predict",
        "fewer tokens, and is easier to predict",
        "fewer tokens, but is harder to predict")

# %% [markdown]
# Now learn 1,024 tokens both ways:

# %%
cut = BytePairEncoder.train([hamlet], 1024)
uncut = BytePairEncoder.train([hamlet], 1024, pattern=r"(?s:.+)")
for name, encoder in (("cut", cut), ("uncut", uncut)):
    across = [token for token in encoder.tokens if re.search(rb"\w[^\w']", token)]
    print(f"{name:6} {len(test) / len(encoder.encode(test)):.2f} bytes per token; "
          f"{len(across) / 1024:.0%} of the tokens reach over a word's end")
    print("      ", sorted(across, key=len)[-4:])

# %% [markdown]
# Uncut, there are more bytes in a token, so *Julius Caesar* takes *fewer* tokens. But a language model has to predict
# them. The simplest one counts: how often did this token follow the one before it? (A pair that it has never seen gets
# a little, in proportion to how common the token is.) Its *surprise* at a token of probability $p$ is $\log_2 1/p$
# bits: 0 if it was certain, 3 if it was torn between eight. We add up the surprise over *Julius Caesar* and divide by
# the number of bytes, so that both vocabularies are judged on the same text.


# %%
import math


def surprise(encoder, known, unseen):
    """In bits per byte of an unseen text, after counting in a known one."""
    ids, new = encoder.encode(known), encoder.encode(unseen)
    alone, pair = Counter(ids), Counter(zip(ids, ids[1:]))
    bits = 0.0
    for before, token in zip(new, new[1:]):
        little = (alone[token] + 1) / (len(ids) + len(encoder))
        bits -= math.log2((pair[before, token] + 10 * little) / (alone[before] + 10))
    return bits / len(unseen.encode())


for times in (0.25, 1, 4):  # as much as Hamlet
    known = train[: int(times * len(hamlet))]
    print(f"counted in {len(known):7,} characters: "
          f"cut {surprise(cut, known, test):.2f} bits per byte, "
          f"uncut {surprise(uncut, known, test):.2f}")
predicted("uncut-tokens", "fewer tokens, but is harder to predict")

# %% [markdown]
# The play has become shorter, and harder to predict. Why? Take three words that every play has. In how many different
# tokens does each of them occur?


# %%
def ways(encoder, word, text):
    """The tokens that contain the whole word, and how often each occurs."""
    tokens = [encoder.decode([id]) for id in encoder.encode(text)]
    return dict(Counter(token for token in tokens if re.search(rf"\b{word}\b", token)))


for word in ("lord", "what", "thou"):
    print(f"{word}\n   cut:   {ways(cut, word, test)}")
    print(f"   uncut: {ways(uncut, word, test)}")

# %% [markdown]
# Cut, *lord* is always the same token, with everything that has been counted for it. Uncut, `lord`, `my lord` and `, my
# lord` are different tokens, and what follows a lord has to be learned anew for each. That is our explanation. It
# predicts that more text helps, and it does: with four times the text, and four times again, the gap shrinks from 0.23
# bits to 0.18 and 0.12. Without such cuts, GPT-2's authors also saw many versions of common words, such as `dog.`,
# `dog!` and `dog?`.

# %% [markdown]
# ## 5 Real data: the vocabulary of GPT-2
#
# So far our encoder has read one play. What do real ones look like? GPT-2 is a language model by OpenAI; in lesson 10
# you build one of its kind. Its published merges are bundled with this course: 256 bytes, 50,000 merges learned from
# eight million web pages, and one special token. Everything that GPT-2 has ever read came through this table, so its
# oddities are the model's oddities.

# %%
folder = DATA / "gpt2-bpe"
gpt2 = BytePairEncoder.from_gpt2(folder / "encoder.json", folder / "vocab.bpe")
print(f"{len(gpt2):,} tokens; the special one is", gpt2.special_tokens)


def show(text):
    ids = gpt2.encode(text)
    print(f"{text!r:20} {ids!s:28} {' | '.join(gpt2.token(id) for id in ids)}")


for text in ("Hello world", "king", " king", "King", "the king ", "1999", "2026",
             "12345", "🙂", "strawberry", " strawberry", " SolidGoldMagikarp"):
    show(text)

# %% [markdown]
# - **The space belongs to the token.** `king` and `▁king` are two ids with nothing in common. So a text that ends with
#   a space is hard for GPT-2 to continue: the space that should begin the next word is already used up. With a capital
#   letter it is yet another token.
# - **Numbers** are cut as they happened to occur on the web: 1999 is one token, 2026 is two, 12345 is 123 and 45.
# - **Nothing is lost:** the emoji becomes two tokens, neither of which is a character. (`�` stands for bytes
#   that do not form one.)
# - **Letters are out of sight.** *strawberry* is `st`, `raw`, `berry`, and after a space a single id. A model that is
#   asked how many *r*s it has sees no letter at all.
# - **Some tokens are hardly ever used.** `▁SolidGoldMagikarp`, a user's name, is one token. Section 6 says what happens
#   to its row.
#
# And other languages? GPT-2's web pages were nearly all English. We count its tokens for the same sentences in German
# and in English. As a control, we learn merges from both sides of the sentence pairs:

# %%
both = BytePairEncoder.train([german, english], 4096)
for name, encoder in (("GPT-2's", gpt2), ("from both", both)):
    tokens_de, tokens_en = (
        sum(len(encoder.encode(text)) for text in side) for side in zip(*pairs.test)
    )
    print(f"{name:9}  German {tokens_de:,} tokens, English {tokens_en:,}")
expect("German tokens for each English one", tokens_de / tokens_en, 1.0, 1.25)
again = [both.decode([id]) for id in both.encode(sentence)]
print("the pieces of section 1:", again == byte_pairs)

# %% [markdown]
# With GPT-2's vocabulary German takes twice as many tokens as English to say the same. If you pay by the token, you pay
# twice as much, and a model's context holds half as much. German is hardly to blame: in the vocabulary that learned
# from both it takes 1.12 times as many. (English pays: it takes 20,187 tokens in this smaller vocabulary instead of
# 15,750.) A vocabulary is good for the texts that it was learned from.

# %% [markdown]
# ### How large should a vocabulary be?
#
# What a larger vocabulary saves is length. What it costs is one row for each token in the table of vectors, the
# *embedding table*. In the smallest GPT-2 a row has $d_\text{model} = 768$ numbers. There is a hidden price as well:
# the rows are learned, and those that are hardly ever used are hardly ever trained.
#
# We learn a vocabulary of 16,384 from the twelve plays. The first merges of the large vocabulary make the smaller ones.
# How many tokens does the unseen play take? How much does each doubling save? And how many tokens are rare, that is,
# occur fewer than ten times in the plays?

# %%
large = BytePairEncoder.train([train], 16384)
before = len(test.encode())
for size in (256, 512, 1024, 2048, 4096, 8192, 16384):
    kept = {token: id for token, id in large.tokens.items() if id < size}
    encoder = BytePairEncoder(kept, large.merges[: size - 256])
    length = len(encoder.encode(test))
    seen = torch.bincount(torch.tensor(encoder.encode(train)), minlength=size)
    rare = (seen < 10).float().mean()
    print(f"{size:6,}: {length:7,} tokens, {1 - length / before:3.0%} saved; "
          f"{size * 768:10,} parameters, {rare:.0%} of the tokens rare")
    before = length
print(f"GPT-2's {len(gpt2):,}: {len(gpt2.encode(test)):,} tokens; {len(gpt2) * 768:,} "
      f"parameters, {len(gpt2) * 768 / 124_439_808:.0%} of its 124 million")

# %% [markdown]
# Each doubling saves less and costs more. For twelve plays a few thousand tokens are plenty: of 16,384, four in five
# are rare. Models that read the whole web use 30,000 to 260,000. (Even of the 256 bytes most are rare: the plays use
# few different characters. And GPT-2's 50,257 tokens do no better on this play than our 16,384; they were learned from
# other texts.)
#
# <details><summary><i>Second reading:</i> unigrams and SentencePiece</summary>
#
# Merging is not the only way to a vocabulary. The *unigram* method (Kudo 2018,
# [arXiv:1804.10959](https://arxiv.org/abs/1804.10959)) works in the opposite direction. It begins with far too many
# pieces, each with a probability, and drops those it can best do without. A text is cut so that the product of its
# pieces' probabilities is largest. *SentencePiece* (Kudo and Richardson 2018,
# [arXiv:1808.06226](https://arxiv.org/abs/1808.06226)) is a program that learns either kind from raw text, with spaces
# written as `▁`. T5 uses its unigrams, the first two Llamas its byte pairs.
# </details>

# %% [markdown]
# ## 6 From ids to vectors
#
# A network multiplies its numbers, but an id is a name, not a quantity: 5822 is not "more" than 3364. The honest way to
# write a choice among $V$ things is a *one-hot* vector: all zeros, and a one at the position of the id. A linear layer
# turns it into a vector of width $d_\text{model}$. Take a vocabulary of three tokens, and a table $E$ with a row of two
# numbers for each:

# %% jupyter={"source_hidden": true}
figures.picked_rows(
    ["the", "king", "the"], ids=[1, 0, 1], table=[[1, 2], [3, 4], [5, 6]],
    title="One-hot times the table is a row of the table",
    alt="Three tokens, the, king, the, with the ids 1, 0, 1. Their one-hot vectors, 0 1 0, 1 0 0 and 0 1 0, times the "
    "table with the rows 1 2, 3 4 and 5 6, give 3 4, 1 2 and 3 4: rows 1, 0 and 1 of the table, in the same colors.",
)

# %% [markdown]
# Redo the first row on paper: $0 \cdot 1 + 1 \cdot 3 + 0 \cdot 5 = 3$, and $0 \cdot 2 + 1 \cdot 4 + 0 \cdot 6 = 4$.
# With any table $E$, the vector of a token is
#
# $$x = \text{onehot}(\text{id})\, E \qquad E \in \mathbb{R}^{V \times d_\text{model}}$$

# %%
torch.manual_seed(0)
text = "The king is dead, long live the king!"
input_ids = torch.tensor([library.encode(text)])  # (batch, length)
vocab_size, d_model = len(library), 64
table = torch.randn(vocab_size, d_model)  # E
one_hot = torch.nn.functional.one_hot(input_ids, vocab_size).float()
by_product = one_hot @ table  # (batch, length, d_model)
by_lookup = table[input_ids]  # (batch, length, d_model)
print("one-hot", tuple(one_hot.shape), "→", tuple(by_product.shape))
prove_equal(by_product, by_lookup, what="One-hot times matrix and picking rows")
print(len(input_ids.unique()), "different rows")

# %% [markdown]
# All those products with 0 can be left out. What remains is: **take the row with that number**. The row is called the
# token's *embedding*; torch's `nn.Embedding` and the library's `TokenEmbedding` look it up.

# %%
from txlib.layers import TokenEmbedding

layer = torch.nn.Embedding.from_pretrained(table)
embedding = TokenEmbedding(vocab_size, d_model, scaled=False)
embedding.weight.data = table
prove_equal(by_lookup, layer(input_ids), what="Your rows and torch's nn.Embedding")
prove_equal(by_lookup, embedding(input_ids), what="Your rows and the library's")

# %% [markdown]
# (Lesson 05 explains `scaled`.) The rows start at random and are learned. The lookup sends a gradient only to the rows
# that were looked up: here, to 14 of 456. So the row of a token that hardly ever occurs, such as `▁SolidGoldMagikarp`,
# is hardly trained. (GPT-2 also uses the table for its output, which moves every row a little.)

# %% [markdown]
# ## 7 When are two vectors alike?
#
# We have a vector for each token. What can vectors do that ids can't? They can be compared. The dot product $a \cdot b
# = \sum_i a_i b_i$ is large when two vectors point the same way, and 0 when they are at right angles. It also grows
# with their lengths. Divide by those, and only the direction counts: the *cosine*, between −1 and 1. With $a = (3, 4)$
# and $b = (4, 3)$ it is $24 / (5 \cdot 5) = 0.96$.
#
# $$\cos(a, b) = \frac{a \cdot b}{\lVert a \rVert\, \lVert b \rVert}$$
#
# For random vectors it is near 0: a typical cosine of two random vectors of width $d$ is $1/\sqrt{d}$. So in a wide
# space a high cosine is hardly ever chance.


# %%
def cosine(a, b):
    """Of each row of a with each row of b."""
    a, b = (x / x.norm(dim=-1, keepdim=True) for x in (a, b))  # length 1
    return a @ b.T  # (row of a, row of b)


torch.manual_seed(0)
for d in (4, 64, 1024):
    random = cosine(torch.randn(500, d), torch.randn(500, d))
    print(f"d {d:4}: typical cosine of two random vectors ±{random.std():.2f}")

# %% [markdown]
# ### Vectors learned from real text
#
# "You shall know a word by the company it keeps," wrote J. R. Firth in 1957. We take him at his word: a word's vector
# is what occurs near it. For the 2,000 most common words of the game dialogues, count how often any two of them occur
# at most two words apart. (We use whole words here, so that you can judge the result.)

# %%
dialogue = [words(english) for _, english in pairs.train]  # a list for each sentence
often = Counter(word for said in dialogue for word in said).most_common(2000)
common = [word for word, _ in often]
place = {word: i for i, word in enumerate(common)}
near = Counter()
for said in dialogue:
    row = [place.get(word) for word in said]
    near.update(zip(row, row[1:]))
    near.update(zip(row, row[2:]))
counts = torch.zeros(2000, 2000)  # (word, neighbor)
for (a, b), times in near.items():
    if a is not None and b is not None:
        counts[a, b] += times
        counts[b, a] += times
print("near king:", [common[i] for i in counts[place["king"]].topk(6).indices])

# %% [markdown]
# Nearly every word is near *the*. So compare each count with chance. Say that *king* has 100 neighbors in all, and one
# word in 1,000 is *queen*. In a shuffled text, we would see 100 · 1/1,000 = 0.1 queens near kings. If we see 2, that is
# 20 times as many, and the pair gets the natural logarithm of 20, about 3. If one word in 20 is *the*, 5 of them near
# kings are just what chance gives, and $\log 1 = 0$. A pair that is rarer than chance gets 0 as well. That is *positive
# pointwise mutual information*, where $\text{count}(a)$ is the number of $a$'s neighbors, and the total is that of all
# words' neighbors:
#
# $$\text{PPMI}(a, b) = \max\left(0, \log \frac{\text{count}(a, b)}{\text{count}(a)\,\text{count}(b) / \text{total}}\right)$$

# %%
neighbors = counts.sum(dim=-1)  # (word,)
chance = neighbors[:, None] * neighbors / neighbors.sum()  # (word, neighbor)
ppmi = (counts / chance).log().clamp(min=0)  # log 0 = −∞ becomes 0
print("compared with chance:", [common[i] for i in ppmi[place["king"]].topk(5).indices])

# %% [markdown]
# *The* is gone; *ii* comes from names such as Haldric II. Each word now has 2,000 numbers, most of them 0. Would fewer
# do? Suppose that three words have (1, 2), (2, 4) and (3, 6) under *crown* and *throne*. Then one number for each word
# is enough: 1, 2 or 3 times the *direction* (1, 2) gives back both columns. The *singular value decomposition* finds
# the directions that give back most of a table. It returns each word's number for each of them, `u`, and their
# strengths, `s`. (We multiply by the square root of a strength only, so that the strongest do not drown out the
# others.) We keep 100 directions. That is our embedding table: 2,000 words, 100 numbers each. (Levy and Goldberg 2014
# showed that *word2vec*, which trains such vectors by gradient descent, does about the same.)

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
u, s, _ = torch.svd_lowrank(ppmi, q=100, niter=4)  # (word, 100), (100,)
vectors = u * s.sqrt()  # (word, 100)

# %% [markdown]
# To *see* them, we choose words of four kinds and draw them in the plane that spreads their vectors most. Only the
# distances mean anything:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
KINDS = {"numbers": "two three four five six ten", "directions": "north south east west",
         "peoples": "orcs elves humans dwarves undead trolls", "family": "father mother brother son"}
rows = torch.stack([vectors[place[word]] for row in KINDS.values() for word in row.split()])
rows = rows / rows.norm(dim=-1, keepdim=True)
rows = rows - rows.mean(dim=0)
plane = iter((rows @ torch.linalg.svd(rows, full_matrices=False).Vh[:2].T).tolist())
figures.plane(
    {kind: {word: next(plane) for word in row.split()} for kind, row in KINDS.items()},
    title="Words of a kind lie together",
    alt="Words as points in a plane, in four colors: " + "; ".join(f"{kind}: {row}" for kind, row in KINDS.items())
    + ". The four kinds form clusters.",
)

# %% [markdown]
# Nothing told the table what a number is (though *four* strays a little). In all 100 directions, which words are
# nearest?

# %% tags=["nbval-ignore-output"]
def nearest(vectors, k):
    """The k words with the highest cosine with each word, without the word itself."""
    alike = cosine(vectors, vectors).fill_diagonal_(-1)  # (word, word)
    return alike.topk(k)  # their cosines, and their indices: each (word, k)


cosines, indices = (found.tolist() for found in nearest(vectors, 8))
for word in ("king", "north", "three", "good", "sword", "right"):
    row = zip(indices[place[word]], cosines[place[word]])
    print(f"{word:6} →", *(f"{common[i]} {alike:.2f}" for i, alike in row))

# %% [markdown]
# *King* has found its relatives, and also Haldric, who is a king in the game's story. But *good* finds *bad*, and
# *south* is near *north*: opposites keep the same company. Alike means "used alike", not "means the same". And what is
# near *sword* is hit or miss: 300,000 words are not much to learn from.
#
# *Right* shows a limit that no larger text would lift. It is near *yes*, and near *click*: the word for *correct*, and
# a mouse button. The table has one row per spelling, so a word with two meanings gets a mixture of both. To separate
# them, a word's vector must depend on its sentence.
#
# A few examples can mislead, so let us count. For 22 pairs of words that belong together, is the second among the ten
# nearest of the first? And does each step of the recipe help?

# %% tags=["nbval-ignore-output"]
related = """king queen, father mother, north south, east west, day night, sword bow,
orcs elves, left right, he she, his her, weapon weapons, attack attacks, ship ships,
two three, man woman, humans elves, river lake, strong powerful, small large,
kill destroy, friend friends, enemy enemies"""
first, second = torch.tensor([[place[word] for word in pair.split()]
                              for pair in related.split(",")]).T  # each (pair,)

torch.manual_seed(0)
for name, each in {"random": torch.randn(2000, 100), "plain counts": counts,
                   "PPMI": ppmi, "PPMI, 100 directions": vectors}.items():
    found = (nearest(each, 10).indices[first] == second[:, None]).any(dim=-1)  # (pair,)
    print(f"{name:22} {found.float().mean():4.0%}")

# %% [markdown]
# Comparing with chance helps. The 100 directions, one number in 20, lose nothing; that they find two more pairs of 22
# can be luck. A Transformer counts no neighbors: its table starts at random, and training moves the rows. But there as
# well, words that are used alike often end up with similar rows.

# %% [markdown]
# ### Whole sentences (second reading)
#
# For a whole sentence, take the mean of its words' vectors. We have three pairs, each with one meaning: *The king is
# dead.* and *Our ruler has died.*; *We need more gold.* and *There is not enough money.*; *The ship is under attack.*
# and *Enemies are firing at our vessel.* Partners do not share a single word. (*Ruler* and *firing* are not among our
# 2,000 words, so our means leave them out.) The rival is **MiniLM**, a small language model trained on a billion
# sentence pairs; `python data/six_sentences.py` recorded its six vectors.

# %%
predict("nearest-sentence", "Which does our table put nearest to “The king is dead.”?",
        "Our ruler has died", "We need more gold", "The ship is under attack")

# %% [markdown]
# Now compare both models' sentences:

# %% tags=["nbval-ignore-output"]
import json

recorded = json.loads((DATA / "six_sentences.json").read_text())
sentences = list(recorded)
known = [[place[word] for word in words(text) if word in place] for text in sentences]
ours = torch.stack([vectors[ids].mean(dim=0) for ids in known])  # (sentence, 100)
rest = [[i for i in ids if common[i] not in ("the", "is")] for ids in known]
without = torch.stack([vectors[ids].mean(dim=0) for ids in rest])  # (sentence, 100)
minilm = torch.tensor(list(recorded.values()))  # (sentence, 384)
partner = torch.tensor([1, 0, 3, 2, 5, 4])  # of each sentence
for name, of_sentences in (
        ("ours", ours), ("without the, is", without), ("MiniLM", minilm)):
    found = nearest(of_sentences, 1).indices[:, 0]  # (sentence,)
    print(f"{name:15} nearest to {sentences[0]!r}: {sentences[found[0]]!r}; "
          f"{(found == partner).sum()} of 6 find their partner")
predicted("nearest-sentence", "The ship is under attack")

# %% [markdown]
# Here are all the cosines, ours and MiniLM's:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
plots.heads(
    torch.stack([cosine(ours, ours), cosine(minilm, minilm)]),
    names=["our table", "MiniLM"], rows=[f"{text}  {i}" for i, text in enumerate(sentences, 1)],
    columns=list("123456"), numbers=True, size=0.5, xlabel="sentence", ylabel="",
    title="Only MiniLM puts each sentence nearest to its partner",
    alt="Cosines of six sentences with each other, twice. Ours: The king is dead and The ship is under attack have the "
    "highest. MiniLM: each sentence is nearest to its partner, with 0.4 to 0.6; all others are at most 0.3.",
)

# %% [markdown]
# In ours *The king is dead.* is nearest to *The ship is under attack.* They share *the … is*, and a mean can't tell
# those words from the ones that matter: leave both words out everywhere, and *Our ruler has died.* is nearest, and four
# of six find their partner. In MiniLM each sentence has found its partner. It was trained
# on far more text, and on pairs of sentences. And before the mean is taken, each token has looked at its neighbors, so
# that a word's vector depends on its sentence. (This comparison can't say which of the two does it.) How does a token
# look at its neighbors? That is what this course is about.

# %% [markdown]
# ## 8 Quiz
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
# Merges only group bytes. Put back together, these are the same bytes.
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
# You stopped too early: (a, bc) has a rank as well.
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
# Only the first doubling came near that. Later merges are rarer and rarer: in section 5 this one saved about 4%.
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
# <details><summary>A. They occur in the same sentences</summary>
#
# They need never meet. What counts is that they have the same *neighbors*.
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
# Perhaps they are only long. Two vectors of length 100 with that dot product are nearly at right angles.
# </details>
# <details><summary>B. You cannot say without their lengths</summary>
#
# Right. Divide by both lengths, and you have the cosine.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Text is bytes; 256 of them write everything, but in long sequences. Words make short ones, but there is always a
#   new one.
# - Byte-pair encoding joins frequent pairs, in a fixed order. Encoding repeats that order; decoding joins bytes.
# - Cutting into pieces first lets a frequent word be one token, whatever is next to it. Without it there are fewer
#   tokens, but they are harder to predict. A vocabulary is good for the texts it was learned from.
# - An embedding is a row of a table, the same as one-hot times matrix. In the smallest GPT-2 the table is nearly a
#   third of all parameters.
# - Words that are used alike get vectors with a high cosine. That is not the same as meaning the same.
#
# **Read** Sennrich et al. 2016, *Neural Machine Translation of Rare Words with Subword Units*,
# [arXiv:1508.07909](https://arxiv.org/abs/1508.07909), section 3.2. Radford et al. 2019, *Language Models are
# Unsupervised Multitask Learners*, section 2.2, for the bytes and the cutting. Levy and Goldberg 2014, *Neural Word
# Embedding as Implicit Matrix Factorization*, for section 7.
#
# **Do** the exercise [01_text](../exercises/exercise_01_text.ipynb). Then go on to
# [02 Sequence to sequence](02_seq2seq.ipynb), where a network reads these vectors one after another and translates.
