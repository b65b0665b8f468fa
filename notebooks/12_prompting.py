# %% [markdown] lesson={"part": "II Language models", "builds": "scores of given answers, few-shot prompts, a decoder that learns from its prompt"}
# # 12 · Prompting: a task is a text to continue
#
# **After this lesson you will be able to**
#
# - write a task as a prompt, and use a language model as a classifier by scoring given answers;
# - say what the sum, the mean and the calibrated score each favor;
# - test a prompt honestly: on a test set, next to chance and a simple baseline;
# - measure what a model assumes about people;
# - say what in-context learning is, tell the form that examples teach from the task, and find the heads that copy;
# - compute ROUGE by hand, and say what a high ROUGE does not show.
#
# **You need** lessons 03 to 06, 10 and 11. **It takes** about 50 minutes to read and try; all cells together run in
# about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: one model, many tasks
#
# We have a model that continues any text, and ways to choose its next token (lesson 11). What we don't have is a model
# that answers questions or sorts reviews. Must we train one for each task? Radford et al. (2019) made a bold claim: a
# language model needs no further training. Write the task as a text, the **prompt**, and let the model go on.
# *Sentiment*: "… It was", *good* or *bad*? *Question answering*: "Q: … A:". *Summary*: "… TL;DR:".
#
# We test the claim on the small model of lesson 11, which has read nothing but Lewis Carroll.

# %% tags=["recorded"]
import math
import random
import re
from collections import Counter

import torch

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import load_pretrained, plots
from txlib.data import reviews, shipped
from txlib.text import load_tokenizer
from txlib.training import optimizers, warmup_linear

# %% [markdown]
# The model, its tokenizer, and a name for each token:

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
tokenizer = load_tokenizer(shipped("glassllm-en"))
encode, decode = tokenizer.encode, tokenizer.decode


def name(id):
    return tokenizer.tokenizer.id_to_token(id).replace("▁", "␣")


# %% [markdown]
# Where a task has only a few possible answers, the model need not write: ask which answer it finds likeliest. On paper:
# one answer has two tokens; the model gives the first 0.5 and then the second 0.2. The answer has the probability
# $0.5 \cdot 0.2 = 0.1$. An answer of one token with 0.3 beats it. Products of many small numbers become tiny, so we add
# logarithms instead:
#
# $$\text{score}(\text{answer} \mid \text{prompt}) = \sum_t \ln p(\text{answer}_t \mid \text{prompt}, \text{answer}_{<t})$$


# %%
@torch.no_grad()
def log_p_of(prompt, answer):
    """The log-probability of each token of the answer."""
    before, ids = encode(prompt)[-100:], encode(answer)  # the context is 128 tokens
    log_p = model(torch.tensor([before + ids])).logits[0].log_softmax(dim=-1)
    target = torch.tensor(ids)[:, None]  # (answer's tokens, 1)
    start = len(before) - 1  # row i predicts token i + 1
    return log_p[start:-1].gather(-1, target)[:, 0]  # (answer's tokens,)


def scores(prompt, answers):
    """The sum of log p of each answer, and its number of tokens."""
    each = [log_p_of(prompt, answer) for answer in answers]
    lengths = torch.tensor([len(log_p) for log_p in each])  # (answer,)
    return torch.stack([log_p.sum() for log_p in each]), lengths


# %% [markdown]
# ## 2 The idea in one picture
#
# We have a score. Here it is at work where our model is at home: after *The March*, with four answers to choose from.
# Each box is a token, with its probability after all those to its left; at the end is their product.

# %%
NAMES = [" Rabbit", " Hare", " Turtle", " Queen"]
after_march = {}
for answer in NAMES:
    p = log_p_of("The March", answer).exp().tolist()
    after_march[answer] = list(zip(map(name, encode(answer)), p, strict=True))

# %% jupyter={"source_hidden": true}
figures.answers(
    "The March", after_march, title="The likeliest answer is the model's choice",
    alt="A prompt, The March, and four rows of tokens, one for each answer. "
    + "; ".join(f"{answer.strip()}: {math.prod(p for _, p in tokens):.2g}"
                for answer, tokens in after_march.items()),
)

# %% [markdown]
# The same with other beginnings. The softmax over the four scores says how they compare:

# %%
for prompt in ("The March", "The Mock", "The Red", "The White"):
    p = scores(prompt, NAMES)[0].softmax(dim=-1)  # (answer,)
    compared = zip(NAMES, p.tolist(), strict=True)
    print(f"{prompt:10}", *(f"{answer} {x:4.0%}" for answer, x in compared))

# %% [markdown]
# It knows the first three. After *The White* it prefers the Queen, and the books do have a White Queen, as they have a
# White Rabbit; its second choice, the Turtle, is a mistake.

# %% [markdown]
# ## 3 Which answer, and what it says about the model
#
# ### 3.1 Sum, mean, calibrated
#
# Completing a name only takes memory. A *question* takes more: understanding it, and finding the answer in what was
# read. Here are eight questions about the books, with the same eight characters to choose from. Guessing is right one
# time in eight.

# %%
QUESTIONS = {
    "Who sat on the top of a high wall?": " Humpty Dumpty",
    "Who took a watch out of his pocket, and hurried on?": " the White Rabbit",
    "Who wept, and sang of beautiful soup?": " the Mock Turtle",
    "Who had a grin, and vanished quite slowly?": " the Cheshire Cat",
    "Who shouted “Off with her head!”?": " the Queen of Hearts",
    "Who nursed a baby in a kitchen full of pepper?": " the Duchess",
    "Who asked why a raven is like a writing-desk?": " the Hatter",
    "Who poured tea on the nose of the Dormouse?": " the March Hare",
}
PERSONS = list(QUESTIONS.values())

# %% jupyter={"source_hidden": true}
predict(
    "answers-by-sum", "Eight questions, and the answer with the highest sum. How many different persons does it name?",
    "one", "about four", "all eight",
)

# %% [markdown]
# Score all of them, then once more after a prompt that asks nothing:

# %%
prompts = [f"“{question}” said Alice. “It was" for question in QUESTIONS]
sums = torch.stack([scores(prompt, PERSONS)[0] for prompt in prompts])
free, lengths = scores("“It was", PERSONS)  # (answer,) each: without a question
print("answer               tokens   after question 1   without a question")
for i, person in enumerate(PERSONS):
    print(f"{person:22} {lengths[i]:4} {sums[0, i]:18.1f} {free[i]:20.1f}")

# %% [markdown]
# The two columns rise and fall together: the score depends mostly on the *answer*. The bare sum is unfair in two ways:
# to long answers, and to those that are rare with or without the question. There are three ways to compare:
#
# - **The sum** favors *short* answers: each further token costs.
# - **Length normalization** divides by the number of tokens (Brown et al. 2020, §2.4). It favors names with predictable
#   ends: after *March*, *H·are* costs little (section 2).
# - **Calibration** asks how much likelier the *question* makes an answer: subtract its score after a prompt without
#   content. For *Humpty Dumpty* above: −9.9 − (−9.0) = −0.9. Brown et al. divide by such a probability on some tasks;
#   Zhao et al. (2021) develop the idea.

# %%
def three_ways(sums, lengths, neutral):  # (prompt, answer), (answer,), (answer,)
    return {"sum": sums, "mean per token": sums / lengths,
            "calibrated": sums - neutral}


for way, score in three_ways(sums, lengths, free).items():
    said = score.argmax(dim=-1)  # (prompt,)
    right = (said == torch.arange(8)).sum()  # question i asks for person i
    named = Counter(PERSONS[i].strip() for i in said)
    print(f"{way:14} {right} of 8 right; says", dict(named))
predicted("answers-by-sum", "one")

# %% [markdown]
# One of eight is chance. By the sum, the model gives one answer to all questions: the Mock Turtle, which is also first
# without a question. By the mean, it gives them all another one. Neither choice depends on the question. Calibration
# breaks that habit, but it cannot supply knowledge that isn't there.
#
# ### 3.2 Anqi forgot ___
#
# The next word is never just a word. *Anqi forgot all about ___*: her homework? his keys? To fill the gap, a model must
# decide something that it was never told. Put ten subjects into the same sentence, and let it choose between *her* and
# *his*. Guess first: what will it say of Bruno, a boy, and of Anqi, a name that it has never read?

# %%
PEOPLE = ["Alice", "Sylvie", "Bruno", "The Queen", "The King", "The Duchess",
          "The Professor", "The Hatter", "The teacher", "Anqi"]
her = {}  # person: the probability of “her”, if the choice is “her” or “his”
for who in PEOPLE:
    pronouns = scores(f"{who} forgot all about", [" her", " his"])[0]  # (answer,)
    her[who] = pronouns.softmax(dim=-1)[0].item()

# %% [markdown]
# Here are the ten, sorted by the probability of *her*:

# %% jupyter={"source_hidden": true}
ranked = sorted(PEOPLE, key=her.get, reverse=True)
plots.ranges(
    {who: (her[who],) * 3 for who in ranked},
    groups={"women and girls": ["Alice", "Sylvie", "The Queen", "The Duchess"],
            "men and boys": ["Bruno", "The King", "The Hatter", "The Professor"],
            "not said": ["The teacher", "Anqi"]},
    mark=0.5,
    title="Eight of ten lean toward “her”, Bruno even more than the Queen",
    xlabel="probability of “her”, against “his”",
    alt="; ".join(f"{who}: {her[who]:.0%}" for who in ranked),
)

# %% [markdown]
# Bruno is a boy, and gets *her*; perhaps because in his book he is seldom without Sylvie, his sister. Even the Hatter
# and the King lean that way. The model knows nothing of Anqi, and still it leans a little toward *her*. But look at the
# sentence: *forgot all about her* can end there, and mean another person; *his* cannot, since that would be *him*. So
# ask with a second sentence, in which both words can stand:

# %%
for who in ("Alice", "Bruno", "The Queen", "The King", "Anqi"):
    reflexive = scores(f"{who} said to", [" herself", " himself"])[0]  # (answer,)
    print(f"{who:10} said to herself: {reflexive.softmax(dim=-1)[0]:.0%}")

# %% [markdown]
# Bruno and the King still say it to *herself*, but Anqi now leans toward *himself*. **A completion is not a fact about
# Anqi, but about the training text**, and about the sentence that you chose.
#
# Where a text says *he* of doctors and *she* of nurses, so does the model. This is **bias**. When what comes out is
# more one-sided than what went in, we speak of **bias amplification**. A low temperature does this, since the likelier
# word takes all. The model is two thirds sure of Anqi's *himself*; what would it write?

# %%
reflexive = scores("Anqi said to", [" herself", " himself"])[0]  # (answer,)
for T in (1.0, 0.7, 0.3):
    print(f"T = {T}: “himself” {(reflexive / T).softmax(dim=-1)[1]:.1%}")

# %% [markdown]
# Before you let a model decide anything about people, measure its bias like this, with sentences that differ in one
# word. (Sheng et al. 2019 did it with GPT-2: *The woman worked as …*, *The man worked as …*.)

# %% [markdown]
# ## 4 A task with a test set
#
# Eight questions are an anecdote. Now a task with a test set: reviews of clothes, about half of them with one or two
# stars, the others with four or five. The prompt is the review's end and *It was*; the answers are *very nice* and *not
# very nice*.

# %% tags=["nbval-ignore-output"]
data = reviews("sentiment")
ANSWERS = [" not very nice", " very nice"]  # label 0, label 1
labels = torch.tensor([review.label for review in data.test])  # (review,)
judged = torch.stack([
    scores(review.text.capitalize() + " It was", ANSWERS)[0]
    for review in progress(data.test, "reading reviews")
])  # (review, answer)
neutral, answer_lengths = scores("It was", ANSWERS)  # (answer,) each: without a review

# %% [markdown]
# How often is each right? With so few reviews, luck alone makes a difference, so print its size as well:

# %% tags=["nbval-ignore-output"]
for way, score in three_ways(judged, answer_lengths, neutral).items():
    said = score.argmax(dim=-1)  # (review,)
    accuracy = (said == labels).float().mean().item()
    expect(f"Accuracy, {way}", accuracy, 0.4, 0.65)
    print(f"   says “very nice” of {said.float().mean():.0%} of the reviews")
margin = 2 * math.sqrt(0.25 / len(labels))  # two standard deviations
print(f"always “not very nice”: {1 - labels.float().mean():.1%}")
print(f"chance 50%; with {len(labels)} reviews it varies by ± {margin:.1%}")

# %% [markdown]
# All three are at chance, and behind the constant answer *not very nice*. By the sum the model always says *very nice*,
# which is one word shorter; by the mean it nearly always does. Calibrated, it says both, and is right no more often.
# You could try ten other prompts now and keep the best. But of ten prompts that only guess, the luckiest gets about
# 54%; choose it *on the test set*, and you have measured your patience.
#
# Is the task too hard? Try a strong simple rival (papers say *baseline*): count words. If *love* makes up 2% of the
# words of good reviews and 1% of those of bad ones, each *love* adds $\ln (0.02 / 0.01) = 0.69$ to a review's score; a
# word that is more frequent in bad reviews subtracts. Good means above 0. This is **naive Bayes** with equal classes.


# %% tags=["recorded"]
def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


# %% [markdown]
# Count in the training reviews, and score the test reviews (the + 1 avoids $\ln 0$ for words seen in one class only):

# %% tags=["nbval-ignore-output"]
bad, good = Counter(), Counter()
for review in data.train:
    counts = good if review.label else bad
    counts.update(words(review.text))
weight = {}
for word in good | bad:
    in_good = (good[word] + 1) / good.total()
    in_bad = (bad[word] + 1) / bad.total()
    weight[word] = math.log(in_good / in_bad)
right = 0
for review in data.test:
    score = sum(weight.get(word, 0) for word in words(review.text))
    right += (score > 0) == review.label
expect("Accuracy of counting words", right / len(data.test), 0.8, 0.95)

# %% [markdown]
# Counting words gets nearly nine of ten right. (It has learned from labeled reviews; the prompt has seen none.) So the
# task is easy, and our model cannot do it. Is the *method* to blame? Give it a task that this model can know something
# about: which is English, thirteen words from the beginning of a review, or the same words shuffled? Both come after
# *It*, the score is the mean per token, and chance is one half again.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
right = 0
for review in data.test[:150]:
    text = review.text.split()[1:14]
    mixed = [text[i] for i in torch.randperm(len(text))]
    total, n = scores("It", [" " + " ".join(each) for each in (text, mixed)])
    right += (total / n).argmax().item() == 0
expect("Accuracy for the order of words", right / 150, 0.75, 1)

# %% [markdown]
# So the method works where the model knows something. Ours has read a few children's books and no review, and has 0.85
# million parameters to keep them in. The largest GPT-2 has 1,800 times as many and has read eight million web pages;
# prompted with a text and questions about it, it was at least as good as three of four systems trained on 127,000
# examples (Radford et al. 2019, CoQA, abstract). Whatever model you use, measure it on a test set, next to chance and a
# simple baseline.

# %% [markdown]
# ## 5 Learning from the prompt
#
# ### 5.1 The form and the task
#
# So far the prompt only asked. It can also *teach*: show some examples, then ask. No weight changes, and still the
# model may do better. This is **in-context learning** (Brown et al. 2020): **zero-shot** without examples, **one-shot**
# with one, **few-shot** with some. For GPT-3 (175 billion parameters; their tables 3.2 and 3.3):
#
# | | zero-shot | one-shot | few-shot |
# | --- | --- | --- | --- |
# | last word of a story (LAMBADA), accuracy | 76.2 | 72.5 | 86.4 |
# | questions (TriviaQA), accuracy | 64.3 | 68.0 | 71.2 |
#
# Can our model do it? Each line has a name, a colon, and *he* or *she*; the last one stops after the colon. How often
# is the model right after 0, 1, 2, 4 and 8 examples?

# %%
SHE = "Alice Sylvie Queen Duchess Lady sister Dinah Muriel".split()
HE = "King Hatter Bruno Gardener Professor Gryphon Rabbit Earl".split()
EXAMPLES = [(who, "she") for who in SHE] + [(who, "he") for who in HE]


def few_shot(shots, rng):
    """Over all 16 names: how often it is right, and how likely it says she or he."""
    right = form = 0
    for who, answer in EXAMPLES:
        others = [example for example in EXAMPLES if example[0] != who]
        shown = rng.sample(others, shots)
        prompt = "".join(f"{other}: {pronoun}\n" for other, pronoun in shown)
        p = scores(prompt + f"{who}:", [" she", " he"])[0].exp()  # (answer,)
        right += ["she", "he"][p.argmax()] == answer
        form += p.sum().item()
    return right / len(EXAMPLES), form / len(EXAMPLES)


# %% [markdown]
# The examples are drawn at random, so we draw three times:

# %% tags=["nbval-ignore-output"]
print("examples   right, three draws   she or he at all")
for shots in progress([0, 1, 2, 4, 8], "three draws of examples each"):
    draws = [few_shot(shots, random.Random(seed)) for seed in range(3)]
    right = "  ".join(f"{right:4.0%}" for right, _ in draws)
    form = sum(form for _, form in draws) / 3
    print(f"{shots:8}   {right:18}   {form:16.0%}")

# %% [markdown]
# The two columns say different things. *She or he at all* doubles: from the examples the model has picked up the
# *form*, which words belong here. *Right* stays near chance. With 16 names one draw varies by ± 25 points, so a single
# 75% proves nothing. It has not picked up the *task*. Large models also owe much of what examples give them to the
# form: labels drawn at random hurt them little (Min et al. 2022). But unlike ours, large models answer far better than
# chance.
#
# ### 5.2 A task that no weight can know
#
# Can a decoder learn something *new* from its prompt alone? To see, we need a task that no weight can know. So for each
# text we draw a passage of different symbols, and repeat it. On paper: *d a f c d a f* … After the second *a* comes
# *f*, and only this text can tell it. There are 64 symbols, and a passage has 4 to 23 of them, so the distance says
# nothing either.

# %% tags=["recorded"]
KINDS, LENGTH = 64, 48


def repeated(sizes):  # (text, 1): how many symbols each passage has
    """Texts of LENGTH symbols: a passage of different ones, again and again."""
    drawn = torch.rand(len(sizes), KINDS).argsort(dim=1)  # (text, KINDS)
    return drawn.gather(1, torch.arange(LENGTH) % sizes)  # (text, LENGTH)


# %% [markdown]
# Three texts, with passages of 4, 5 and 6 symbols:

# %%
torch.manual_seed(0)
for text in repeated(torch.tensor([[4], [5], [6]])):
    print(text[:16].tolist())

# %% [markdown]
# The decoder is small: 64 wide, four heads, attention only, without feed-forward networks (`d_ff` is 0). It learns to
# predict the next symbol, as in lesson 10. How many layers does it need to repeat a passage?

# %% jupyter={"source_hidden": true}
predict(
    "layers-to-recall", "What does a decoder need to repeat a passage that it has read once?",
    "one layer: attention can look up a symbol", "two layers", "as many layers as there are symbols in the passage",
)

# %% [markdown]
# The training loop is that of lesson 10; each batch has 64 new texts:


# %% tags=["recorded"]
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig


def train(layers, steps=400, seed=0):
    torch.manual_seed(seed)
    block = BlockConfig.of_sizes(64, 4, d_ff=0, position="learned")
    sizes = {"layers": layers, "max_length": LENGTH, "init_std": 0.1}
    learner = GPT(GPTConfig(KINDS, block, **sizes, tie_embeddings=False))
    optimizer = optimizers(learner, lr=3e-3)
    for step in progress(range(1, steps + 1), f"{layers} layer(s)"):
        ids = repeated(torch.randint(4, 24, (64, 1)))  # (text, LENGTH)
        learner(ids, labels=ids).loss.backward()
        optimizer.set_factor(warmup_linear(step, steps, warmup=20))
        optimizer.step()
        optimizer.zero_grad()
    return learner.eval()


# %% [markdown]
# The test: 2,000 new texts. We count from where the repetition begins: after `seen` of its symbols, how often is the
# next one right? On paper, with a passage of 4:
#
# | position | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
# | --- | --- | --- | --- | --- | --- | --- | --- |
# | symbol | *d* | *a* | *f* | *c* | *d* | *a* | *f* |
#
# The repetition begins at position 4. When one of its symbols has been seen, the *d* at position 4, the model must say
# the *a* at position 5, and it says it at position 4. This is `sizes - 1 + seen`, with a size of 4 and 1 seen. With 0
# seen it is position 3, the last of the first reading.


# %% tags=["recorded"]
@torch.no_grad()
def right_by_seen(learner):
    torch.manual_seed(1)
    sizes = torch.randint(4, 24, (2000, 1))
    ids = repeated(sizes)  # (text, LENGTH)
    said = learner(ids[:, :-1]).logits.argmax(dim=-1)  # (text, LENGTH - 1)
    right = (said == ids[:, 1:]).float()  # of symbols 2 to LENGTH
    seen = torch.arange(25)
    return right.gather(1, sizes - 1 + seen).mean(dim=0)  # (seen,)


# %% [markdown]
# Train one with two layers:

# %% tags=["nbval-ignore-output"]
learner = train(2)
right = right_by_seen(learner)  # (seen,)
for seen in (0, 1, 2, 4, 8, 16):
    print(f"{seen:2} symbols seen: the next one right in {right[seen]:.0%}")
expect("Right after one symbol", right[1].item(), 0.9, 1)

# %% [markdown]
# `data/recall.py` has trained both kinds three times each, from different random weights:

# %% jupyter={"source_hidden": true}
import json

from txlib.paths import DATA

recalled = json.loads((DATA / "recall.json").read_text())
plots.lines(
    {label: (range(25), [[100 * part for part in run] for run in recalled[layers].values()])
     for label, layers in (("two layers", "2"), ("one layer", "1"))},
    title="Two layers repeat a passage that they have read once", xlabel="symbols seen of the repetition",
    ylabel="next one right (%)",
    alt="How often the next symbol is right, by the number of symbols seen of the repetition, three starts each. "
    + "; ".join(
        f"{label}: " + " / ".join(", ".join(f"{seen} {run[seen]:.0%}" for seen in (0, 1, 8)) for run in recalled[n].values())
        for label, n in (("two layers", "2"), ("one layer", "1"))
    ) + ".",
)

# %% jupyter={"source_hidden": true}
predicted("layers-to-recall", "two layers", "What each of them does comes next.")

# %% [markdown]
# From every start, two layers need only one symbol of the repetition to know what comes next; one layer, trained just
# as long, is right about one time in six or seven after two or more. (With 0 seen, nothing says yet that the passage
# repeats. The first symbol is then still likelier than any one new symbol, so a perfect learner would always say it,
# and be right here as well; ours do so in 56 to 74% of the texts.) No weight has changed between the texts, and each
# passage is new: all that the model knows of it, it has read in the prompt. (Our explanation of the dip beyond 20: only
# the longest passages have that many symbols, so training seldom asks for them.)
#
# Why two layers? In *d a f c d a*, the second *a* asks: what came after the first *a*? It can only find the *f* if the
# *f* already knows that it follows an *a*. So layer 1 could write into each symbol which one came before it, and layer
# 2 could look that up:

# %% jupyter={"source_hidden": true}
figures.induction(
    "dafcda", title="Layer 1 notes what came before; layer 2 looks it up",
    alt="The symbols d, a, f, c, d, a in a row. An arrow below leads from f to the a before it: layer 1, a came before me. An "
    "arrow above leads from the last a to f: layer 2, what came after a? So the next symbol is f.",
)

# %% [markdown]
# Do they? When a passage comes the second time, how much do its symbols look at the symbol before them (layer 1), and
# at the one *after* their first occurrence (layer 2)? With passages of 8, that one is 7 positions back.

# %% tags=["nbval-ignore-output"]
from txlib.attention import recording

torch.manual_seed(2)
ids = repeated(torch.full((100, 1), 8))[:, :16]  # passages of 8, read twice
with torch.no_grad(), recording(learner) as seen:
    learner(ids)
first, second = (weights[0] for weights in seen.values())  # (text, head, query, key)
at = torch.arange(8, 16)  # the second reading: one query each
before = first[:, :, at, at - 1].mean(dim=(0, 2))  # (head,): the weight on one key
after = second[:, :, at, at - 7].mean(dim=(0, 2))  # (head,)
print("layer 1, heads 1 to 4, at the symbol before:", *(f"{w:.2f}" for w in before))
print("layer 2, at the one after the same symbol:  ", *(f"{w:.2f}" for w in after))
expect("The strongest head of layer 2", after.max().item(), 0.5, 1)

# %% [markdown]
# These are the strongest heads of both layers, in one of the texts:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.heads(
    torch.stack([first[0, before.argmax()], second[0, after.argmax()]]), size=0.24,
    names=["layer 1: what came before me?", "layer 2: what came after me last time?"],
    rows=2 * list("abcdefgh"), columns=2 * list("abcdefgh"),
    xlabel="looked at: a passage of 8, read twice", ylabel="the symbol that looks",
    title="In the second reading, each symbol finds what came after it in the first",
    alt="Two maps of attention over a passage of 8 symbols, read twice. In layer 1 each symbol looks at itself and at the one "
    f"before it, which gets {before.max():.0%} on average. In layer 2 most symbols of the first reading look at "
    f"the very first one, and those of the second at the one after their first occurrence, "
    f"with {after.max():.0%} on average.",
)

# %% [markdown]
# The heads of layer 1 give the symbol before a quarter to two fifths of their weight; all four heads of layer 2 give
# three quarters or more to what came after last time. Such a head, with what it needs from the layer below, is called
# an **induction head** (Elhage et al. 2021; Olsson et al. 2022): *find what came after this the last time, and say it
# again*. Does the model need these heads? Switch them off: set the columns of the output matrix that read them to 0.


# %% tags=["nbval-ignore-output"]
import copy


@torch.no_grad()
def without(learner, layer, heads):
    """How often the next symbol is right without these heads' output."""
    changed = copy.deepcopy(learner)
    attention = changed.decoder.layers[layer].self_attention
    for head in heads:  # each has 16 columns of the output matrix
        attention.output.weight[:, 16 * head : 16 * head + 16] = 0
    return right_by_seen(changed)[1:].mean().item()


print("without head    1    2    3    4    all four")
for layer in (0, 1):
    one = [f"{without(learner, layer, [head]):4.0%}" for head in range(4)]
    print(f"of layer {layer + 1}  ", *one, f"{without(learner, layer, range(4)):11.0%}")

# %% [markdown]
# Neither layer can do without the other. Within a layer the heads share the work: without any one of them, most symbols
# are still right; in layer 2 nearly all are.
#
# In our passages everything is in the prompt. In most tasks the knowledge is in the weights, and the prompt only says
# *which* task it is. In the table of section 5.1, GPT-3 answers 64.3% of TriviaQA's questions without any example, so
# it had those answers already. Examples answer *other* questions; they can only show what is wanted, and add 7 points.

# %% [markdown]
# ## 6 Summaries, and ROUGE
#
# ### 6.1 Counting what two texts share
#
# With given answers we can count how many are right. A summary is free text, and there are many good ones. The usual
# measure compares it with one that a person wrote, the **reference**. On paper:
#
# - the reference: *the cat sat on the mat* (6 words);
# - the summary: *the cat lay on a mat* (6 words).
#
# They share *the*, *cat*, *on*, *mat*: 4 of 6 words of the reference (the **recall**) and 4 of 6 of the summary (the
# **precision**). Their harmonic mean is the F-score: $2 \cdot \frac46 \cdot \frac46 / (\frac46 + \frac46) = 0.67$. That
# is **ROUGE-1** (Lin 2004). **ROUGE-2** counts pairs of neighbors: only *the cat* is shared, 1 of 5. **ROUGE-L** takes
# the longest sequence that is in both in the same order, gaps allowed: *the cat on mat*, again 4.


# %% tags=["recorded"]
def f_score(shared, reference, summary):  # three numbers of words
    return 2 * shared / (reference + summary) if shared else 0.0


def runs_of(text, n):
    split = words(text)
    return Counter(tuple(split[i : i + n]) for i in range(len(split) - n + 1))


def rouge_n(reference, summary, n):
    one, two = runs_of(reference, n), runs_of(summary, n)
    return f_score((one & two).total(), one.total(), two.total())


# %% [markdown]
# (The harmonic mean of $s/r$ and $s/w$ is $2s / (r + w)$.) For the longest common sequence, go through both texts word
# by word. If the two words are equal, the sequence before both of them grows by one; otherwise leave out one of the
# two:


# %% tags=["recorded"]
def rouge_l(reference, summary):
    one, two = words(reference), words(summary)
    longest = [[0] * (len(two) + 1) for _ in range(len(one) + 1)]  # of the first words
    for i, word in enumerate(one):
        for j, other in enumerate(two):
            if word == other:
                longest[i + 1][j + 1] = longest[i][j] + 1
            else:
                longest[i + 1][j + 1] = max(longest[i][j + 1], longest[i + 1][j])
    return f_score(longest[-1][-1], len(one), len(two))


# %% [markdown]
# Compute it for the example:

# %%
def rouge(reference, summary):
    one, two = (rouge_n(reference, summary, n) for n in (1, 2))
    return f"{one:.2f}  {two:.2f}  {rouge_l(reference, summary):.2f}"


print("ROUGE-1     2     L")
print("     ", rouge("the cat sat on the mat", "the cat lay on a mat"))

# %% [markdown]
# Here are three attempts to break the measure. Which will score highest?

# %%
reference = "The new method improves the translation of long sentences."
print("ROUGE-              1     2     L")
attempts = {
    "the opposite": "The new method worsens the translation of long sentences.",
    "shuffled": "Sentences long of translation the improves method new the.",
    "another's words": "Our approach makes translating lengthy text better.",
}
for label, text in attempts.items():
    print(f"{label:16} {rouge(reference, text)}")

# %% [markdown]
# ROUGE counts words, not truth. The opposite of the reference scores high, a good sentence in other words scores 0, and
# ROUGE-1 does not notice shuffling at all. So it may compare systems, on average over many texts; it cannot say that
# one summary is right.
#
# ### 6.2 Models that summarize, and their rivals
#
# Radford et al. (2019, §3.6) made GPT-2 summarize news by writing *TL;DR:* after the article. It had never been trained
# for this. By the mean of ROUGE-1, 2 and L it did hardly better than three sentences drawn at random from the article.
# Without the hint it lost 6.4 points, so the hint did tell it the task.
#
# A small model can also be trained for it. `benchmarks/long_text.py` did so for a minute, on 150 scientific papers
# (Takeshita et al. 2024, the data set ACLSum), and asked for 64 summaries of others. The best of five models, each with
# short and with long inputs, has a ROUGE-L of 17.4. A start? The papers' first sentences have 15.0. And one fixed
# sentence for each kind of summary, whatever the paper, has 17.3 (`data/summaries.py`): it has read nothing. So put
# such rivals into every table.

# %% [markdown]
# ## 7 Open the library
#
# In `txlib.generation`, `score_answers` computes all answers as one batch, padded on the right. With the causal mask no
# token sees the padding, and its log-probabilities are left out of the sum. These are its last lines, where `rows` are
# the prompt with each answer, as lists:

# %%
from txcourse.lesson import show_source
from txlib.generation import TextGenerator, score_answers

show_source(score_answers, last=9)

# %% [markdown]
# Does it give our scores? And for text there is `TextGenerator.score`:

# %%
question = "“Who sat on the top of a high wall?” said Alice. “It was"
tokens = [encode(person) for person in PERSONS]
total, n = scores(question, PERSONS)  # (answer,) each
for mine, options in (
    (total, {}),
    (total / n, {"score": "mean"}),
    (total - free, {"score": "calibrated", "neutral": encode("“It was")}),
):
    theirs = score_answers(model, encode(question), tokens, **options)
    prove_equal(mine, theirs, tolerance=1e-4, what=options.get("score", "sum"))
writer = TextGenerator(model, tokenizer)
print(writer.score("The March", NAMES))

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Two answers: *yes* (one token, probability 0.2) and *not at all* (three tokens, 0.3, 0.9 and 0.9). Which one wins
# by the sum, which by the mean?**
#
# <details><summary>A. By both, *not at all*</summary>
#
# Right. Its product is 0.24 > 0.2, so its sum is higher; and its mean is $\ln 0.24 / 3$, far above $\ln 0.2$.
# </details>
# <details><summary>B. By the sum *yes*, by the mean *not at all*</summary>
#
# The sum favors short answers, but does not always choose them: $0.3 \cdot 0.9 \cdot 0.9 = 0.24$.
# </details>
# <details><summary>C. By both, *yes*</summary>
#
# 0.3 alone is above 0.2, and the two tokens after it cost little.
# </details>
#
# **2. A friend tries thirty prompts for a classifier on 400 test texts and reports the best, 56%. Chance is 50%. What
# do you say?**
#
# <details><summary>A. Six points above chance: it works</summary>
#
# One prompt varies by ± 5 points. The best of thirty that only guess is near 55%.
# </details>
# <details><summary>B. Choose the prompt on other texts, then test once</summary>
#
# Right. Whatever is chosen on the test set makes its number too good.
# </details>
# <details><summary>C. Use a lower temperature</summary>
#
# The answers are compared, not drawn; no temperature changes which one comes first.
# </details>
#
# **3. Eight examples with *random* labels in the prompt help a large model nearly as much as eight with the right ones.
# What have the examples taught?**
#
# <details><summary>A. The task</summary>
#
# Random labels cannot teach it.
# </details>
# <details><summary>B. The form: which texts and which answers belong here</summary>
#
# Right (Min et al. 2022). The task itself was in the weights.
# </details>
# <details><summary>C. Nothing</summary>
#
# Then the model would be as bad as without examples, and it is not.
# </details>
#
# **4. System A has ROUGE-L 35, system B 33. What do you know?**
#
# <details><summary>A. A's summaries are more often true</summary>
#
# The opposite of a reference can have a high ROUGE.
# </details>
# <details><summary>B. A's share more words in the same order with the references, on average</summary>
#
# Right, and nothing else. Look at the first sentences as a rival, and read some of both.
# </details>
# <details><summary>C. A is better trained</summary>
#
# It may also just be longer, or copy more.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A task is a prompt; given answers are scored by the log-probabilities of their tokens. The sum favors short answers,
#   the mean predictable ones; calibration subtracts what an answer scores without the question.
# - Whether a model can do a task is a question for a test set, with chance and a simple rival next to it. What it
#   completes about people says what it has read.
# - In-context learning: examples in the prompt, no weight changes. They may teach only the form, or the task itself.
# - Two layers of attention can find in the prompt what came after the same symbol before: an induction head.
# - ROUGE counts shared words. Compare with the first sentences, and don't take it for truth.
#
# **Read** Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, section 3. Brown et al. 2020,
# *Language Models are Few-Shot Learners*, [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), sections 2.4 and 3.
# Zhao et al. 2021, *Calibrate Before Use*, [arXiv:2102.09690](https://arxiv.org/abs/2102.09690), section 5. Min et al.
# 2022, *Rethinking the Role of Demonstrations*, [arXiv:2202.12837](https://arxiv.org/abs/2202.12837). Olsson et al.
# 2022, *In-context Learning and Induction Heads*, [arXiv:2209.11895](https://arxiv.org/abs/2209.11895). Lin 2004,
# *ROUGE*, sections 2 and 3. Sheng et al. 2019, *The Woman Worked as a Babysitter*,
# [arXiv:1909.01326](https://arxiv.org/abs/1909.01326).
#
# **Do** the exercise [12_prompting](../exercises/exercise_12_prompting.ipynb). Then go on to
# [13 Decoding fast](13_decoding.ipynb).
