# %% [markdown] lesson={"part": "II Language models", "builds": "scores of given answers, few-shot prompts, a decoder that learns from its prompt"}
# # 12 · Prompting: a task is a text to continue
#
# **After this lesson you will be able to**
#
# - put a task as a prompt, and use a language model as a classifier by scoring given answers;
# - say what the sum, the mean and the calibrated score each favor;
# - test a prompt honestly: with a test set, with chance and a simple baseline next to it;
# - measure what a model assumes about people;
# - say what in-context learning is, tell the form that examples teach from the task, and find the heads that copy;
# - compute ROUGE by hand, and say what a high ROUGE does not show.
#
# **You need** lessons 03 to 06, 10 and 11. **It takes** about 55 minutes to read and try; all cells together run in
# about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: one model, many tasks
#
# We have a model that continues any text, and ways to choose its next token (lesson 11). What we don't have is a model
# that answers questions or sorts reviews. Must we train one for each task? Radford et al. (2019) made a bold claim: a
# language model needs no other training. Write the task as a text, the **prompt**, and let the model go on. *Sentiment*:
# "… It was", *good* or *bad*? *Question answering*: "Q: … A:". *Summary*: "… TL;DR:".
#
# We test the claim on the small model of lesson 11, which has read nothing but Lewis Carroll.

# %% tags=["recorded"]
import json
import math
import random
import re
import statistics
from collections import Counter

import torch

from txcourse import figures
from txcourse.lesson import (
    expect, gpt2, predict, predicted, progress, prove_equal, show_source,
)
from txlib import plots
from txlib.attention import recording
from txlib.data import reviews, shipped
from txlib.generation import TextGenerator, score_answers
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import load_pretrained
from txlib.paths import DATA
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
# Where a task has only a few possible answers, the model need not write. Ask which answer it finds likeliest. On paper:
# one answer has two tokens; the model gives the first 0.5, and after it the second 0.2. The answer has the probability
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
# Each box is a token with the probability that it has after all those to its left, and at the end is their product.

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
    + "; ".join(f"{answer.strip()}: {math.prod(p for _, p in tokens):.1g}"
                for answer, tokens in after_march.items()),
)

# %% [markdown]
# The same with other beginnings. The softmax over the four scores says how they compare:

# %%
for prompt in ("The March", "The Mock", "The Red", "The White"):
    p = scores(prompt, NAMES)[0].softmax(dim=-1)  # (answer,)
    shares = zip(NAMES, p.tolist(), strict=True)
    print(f"{prompt:10}", *(f"{answer} {share:4.0%}" for answer, share in shares))

# %% [markdown]
# It knows the first three. After *The White* it prefers the Queen, who exists as well; its second choice is a mistake.

# %% [markdown]
# ## 3 Which answer, and what it says about the model
#
# ### 3.1 Sum, mean, calibrated
#
# Completing a name is remembering. A *question* asks for more: understand it, and find the answer in what was read. Here
# are eight questions about the books, and for each the same eight persons to choose from. Guessing is right one time in
# eight.

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
# Score all of them, and once more after a prompt that asks nothing:

# %%
asked = {question: scores(f"“{question}” said Alice. “It was", PERSONS)[0]
         for question in QUESTIONS}
free, lengths = scores("“It was", PERSONS)  # (answer,) each: without a question
print("answer                tokens   after one question   without a question")
for person, n, own, alone in zip(
    PERSONS, lengths, asked["Who sat on the top of a high wall?"], free, strict=True
):
    print(f"{person:22} {n:4} {own:18.1f} {alone:18.1f}")

# %% [markdown]
# The two columns are nearly the same: what an answer scores depends on the *answer*. The bare sum is unfair in two ways,
# to long answers and to those that are rare with or without the question. So there are three ways to compare:
#
# - **The sum** favors *short* answers: each further token costs.
# - **Length normalization** divides by the number of tokens (Brown et al. 2020, §2.4). It favors names with predictable
#   ends: after *Humpty*, *Dumpty* costs nothing.
# - **Calibration** asks how much likelier the *question* makes an answer: subtract its score after a prompt without
#   content. Brown et al. divide by such a probability on some tasks; Zhao et al. (2021) develop the idea.

# %%
ways = {
    "sum": lambda sums: sums,
    "mean per token": lambda sums: sums / lengths,
    "calibrated": lambda sums: sums - free,
}
for way, score in ways.items():
    said = {question: PERSONS[score(sums).argmax()] for question, sums in asked.items()}
    right = sum(said[question] == answer for question, answer in QUESTIONS.items())
    counts = Counter(person.strip() for person in said.values())
    named = ", ".join(f"{who} ({times})" for who, times in counts.items())
    print(f"{way:14} {right} of 8 right; says {named}")
predicted("answers-by-sum", "one")

# %% [markdown]
# One of eight is chance. By the sum the model gives one answer to all questions: the Mock Turtle, which is also first
# without a question. By the mean it gives another one to all. Neither depends on the question. Calibration breaks that
# habit, but it cannot supply knowledge that isn't there.
#
# ### 3.2 Anqi forgot ___
#
# The next word is never only a word. *Anqi forgot all about ___*: her homework? his keys? To fill the gap, a model must
# decide something that it was never told. Put ten subjects into the same sentence, and let it choose between *her* and
# *his*. Guess first: what will it say of Bruno, a boy, and of Anqi, a name that it has never read?

# %%
PEOPLE = ["Alice", "Sylvie", "Bruno", "The Queen", "The King", "The Duchess",
          "The Professor", "The Hatter", "The teacher", "Anqi"]
choice = {}
for who in PEOPLE:
    both = scores(f"{who} forgot all about", [" her", " his"])[0]  # (answer,)
    choice[who] = both.softmax(dim=-1)[0].item()

# %% jupyter={"source_hidden": true}
plots.ranges(
    {who: (share, share, share) for who, share in choice.items()},
    groups={"women and girls": ["Alice", "Sylvie", "The Queen", "The Duchess"],
            "men and boys": ["Bruno", "The King", "The Hatter", "The Professor"],
            "not said": ["The teacher", "Anqi"]},
    mark=0.5,
    title="The choice follows what was read, not who it is",
    xlabel="probability of “her”, against “his”",
    alt="; ".join(f"{who}: {share:.0%}" for who, share in choice.items()),
)

# %% [markdown]
# Bruno is a boy, and gets *her*; perhaps because in his book he is seldom without Sylvie, his sister. Even the Hatter
# and the King lean that way. Of Anqi the model knows nothing, and still it leans a little: to the side of its books,
# which are mostly about a girl called Alice. **A completion is not a fact about Anqi, but about the training text.**
# Where a text says *he* of doctors and *she* of nurses, so does the model, and at a low temperature it says so *more*
# often than the text did, since the likelier word takes all:

# %%
both = scores("Alice forgot all about", [" her", " his"])[0]  # (answer,)
for T in (1.0, 0.7, 0.3):
    print(f"T = {T}: “her” {(both / T).softmax(dim=-1)[0]:.1%}")

# %% [markdown]
# This is **bias**, and its growth **bias amplification**. Measure it like this, with pairs of sentences that differ in
# one word, before you let a model decide anything about people. (Sheng et al. 2019 did it with GPT-2: *The woman worked
# as …*, *The man worked as …*.)

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
found = [scores(review.text.capitalize() + " It was", ANSWERS)
         for review in progress(data.test, "reading reviews")]
sums = torch.stack([each for each, _ in found])  # (review, answer)
answer_lengths = found[0][1]  # (answer,)
neutral = scores("It was", ANSWERS)[0]  # (answer,): without a review
readings = {"sum": sums, "mean per token": sums / answer_lengths,
            "calibrated": sums - neutral}

# %% [markdown]
# How often is each right? With so few reviews luck alone makes a difference, so print that as well:

# %% tags=["nbval-ignore-output"]
for way, score in readings.items():
    said = score.argmax(dim=-1)  # (review,)
    accuracy = (said == labels).float().mean().item()
    expect(f"Accuracy, {way}", accuracy, 0.4, 0.65)
    print(f"   says “very nice” of {said.float().mean():.0%} of the reviews")
spread = 2 * math.sqrt(0.25 / len(labels))
print(f"chance 50%; with {len(labels)} reviews it varies by ± {spread:.1%}")

# %% [markdown]
# All three are at chance. The sum always says *very nice*, which is one word shorter; the mean nearly always does.
# Calibrated, it says both, and is right no more often. Beware of going on from here. You could try ten other prompts and
# keep the best. But of ten prompts that only guess, the luckiest gets about 54%; choose it *on the test set*, and you have
# measured your patience.
#
# Is the task too hard? Try the strongest simple rival: count words. A review's score is the sum over its words of $\ln$
# (how frequent among the good) − $\ln$ (how frequent among the bad): naive Bayes with equal classes.


# %% tags=["recorded"]
def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


# %% [markdown]
# Count in the training reviews, and score the test reviews:

# %% tags=["nbval-ignore-output"]
bad, good = Counter(), Counter()
for review in data.train:
    (good if review.label else bad).update(words(review.text))
weight = {}
for word in good | bad:
    frequency = [(counts[word] + 1) / counts.total() for counts in (good, bad)]
    weight[word] = math.log(frequency[0] / frequency[1])
hits = 0
for review in data.test:
    score = sum(weight.get(word, 0) for word in words(review.text))
    hits += (score > 0) == review.label
expect("Accuracy of counting words", hits / len(data.test), 0.8, 0.95)

# %% [markdown]
# Counting words gets nine of ten right. So the task is easy, and our model cannot do it. Is the *method* to blame? Give
# it a task that this model can know something about: which is English, the beginning of a review, or the same words
# shuffled? Chance is one half again. The score is the mean per token.

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
# The method works; what is missing is knowledge. This model has read a few children's books and no review, and it has
# 0.85 million parameters to keep them in. The largest GPT-2 has 1,800 times as many and has read eight million web
# pages; prompted with a text and questions about it, it was as good as, or better than, three of four systems trained
# on 127,000 examples (Radford et al. 2019, CoQA, abstract). So whatever model you use, measure it on a test set, put
# chance next to it, and try a simple baseline.

# %% [markdown]
# ## 5 Learning from the prompt
#
# ### 5.1 The form and the task
#
# So far the prompt only asked. It can also *teach*: show some examples, then ask. No weight changes, and still the model
# may do better. This is **in-context learning** (Brown et al. 2020): **zero-shot** without examples, **one-shot** with
# one, **few-shot** with some. For GPT-3 (175 billion parameters; their tables 3.2 and 3.3):
#
# | | zero-shot | one-shot | few-shot |
# | --- | --- | --- | --- |
# | last word of a story (LAMBADA), accuracy | 76.2 | 72.5 | 86.4 |
# | questions (TriviaQA), accuracy | 64.3 | 68.0 | 71.2 |
#
# Does our model do it? A name, a colon, *he* or *she*; some lines of this, then a name alone. How often is it right after
# 0, 1, 2, 4, 8 examples?

# %%
SHE = "Alice Sylvie Queen Duchess Lady sister Dinah Muriel".split()
HE = "King Hatter Bruno Gardener Professor Gryphon Rabbit Earl".split()
EXAMPLES = [(who, "she") for who in SHE] + [(who, "he") for who in HE]


def few_shot(shots, rng):
    """Accuracy, and the probability of the two answers together, over all 16 names."""
    right, both = [], []
    for who, answer in EXAMPLES:
        shown = rng.sample([each for each in EXAMPLES if each[0] != who], shots)
        lines = [f"{other}: {pronoun}\n" for other, pronoun in shown]
        prompt = "".join(lines) + f"{who}:"
        sums = scores(prompt, [" she", " he"])[0]  # (answer,)
        right.append(sums.argmax().item() == ["she", "he"].index(answer))
        both.append(sums.exp().sum().item())
    return statistics.mean(right), statistics.mean(both)


# %% [markdown]
# Which examples are shown is drawn, so we draw three times:

# %% tags=["nbval-ignore-output"]
for shots in progress([0, 1, 2, 4, 8], "three draws of examples each"):
    runs = [few_shot(shots, random.Random(seed)) for seed in range(3)]
    print(f"{shots} examples: right", *(f"{right:4.0%}" for right, _ in runs), end="; ")
    print(f"she or he at all: {statistics.mean(both for _, both in runs):.0%}")

# %% [markdown]
# The two columns say different things. *She or he at all* rises: from the examples the model has picked up the *form*,
# which words belong here. *Right* stays near chance. With 16 names one draw varies by ± 25 points, so a single 75% proves
# nothing. It has not picked up the *task*. Min et al. (2022) found that large models also owe much of what examples give
# them to the form: labels drawn at random hurt them little. But their answers are far from chance.
#
# ### 5.2 A task that no weight can know
#
# We have a model that picks up the form of its examples. Can a decoder learn something new from its prompt alone? To see it,
# the task must be one that no weight can know. So we draw a passage of different symbols for each text, and repeat it. On
# paper: *d a f c d a f* … After the second *a* comes *f*, and only this text says so. There are 64 symbols, and a passage
# has 4 to 23 of them, so the distance says nothing either.

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
print(*(text[:16].tolist() for text in repeated(torch.tensor([[4], [5], [6]]))), sep="\n")

# %% [markdown]
# The decoder is small: 64 wide, four heads, attention only, without feed-forward networks (`d_ff` is 0). It learns to predict the next symbol, as in lesson 10. How many layers does it need to say a passage again?

# %% jupyter={"source_hidden": true}
predict(
    "layers-to-recall", "What does a decoder need to repeat a passage that it has read once?",
    "one layer: attention can look up a symbol", "two layers", "as many layers as there are symbols in the passage",
)


# %% tags=["recorded"]
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
# The test: 2,000 new texts. We count from the place where the repetition begins. With `seen` symbols of it read, how often is
# the next one right?


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
# Train one with two layers now; `data/recall.py` has trained both kinds three times each:

# %% tags=["nbval-ignore-output"]
learner = train(2)
recalled = json.loads((DATA / "recall.json").read_text())
SEEN = [0, 1, 2, 4, 8, 16]
print(f"{'symbols seen of the repetition':32}", *(f"{seen:5}" for seen in SEEN))
mine = {"two layers, trained now": {"0": right_by_seen(learner).tolist()}}
for label, seeds in (mine | {"two layers": recalled["2"], "one layer": recalled["1"]}).items():
    for seed, right in seeds.items():
        name = f"{label}, start {seed}"
        print(f"{name:32}", *(f"{right[seen]:5.0%}" for seen in SEEN))
expect("Right after one symbol of the repetition", mine["two layers, trained now"]["0"][1], 0.9, 1)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
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
# From every start, the two layers need one symbol of the repetition to know what comes next; one layer, trained just as long,
# is right about one time in seven. (With 0 seen, nothing says yet that the passage repeats. The best guess is its first
# symbol: it is far likelier than any one of the new ones.) No weight has changed between the texts, and each passage is new:
# what the model knows of it, it has read in the prompt. (The dip beyond 20: only the longest passages have that many symbols,
# so training seldom asks for them. That is our explanation.)
#
# Why two layers? Look at the question that the second *a* of *d a f c d a* asks: what came after the first *a*? The *f* must
# know that it stands after an *a* before anyone can find it. So layer 1 could write into each symbol which one came before
# it, and layer 2 could look that up. Do they? How much do the symbols of a second reading look at the symbol before them
# (layer 1), and at the one *after* their first occurrence (layer 2)?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(2)
ids = repeated(torch.full((100, 1), 8))[:, :16]  # passages of 8, read twice
with torch.no_grad(), recording(learner) as seen:
    learner(ids)
first, second = (weights[0] for weights in seen.values())  # (text, head, query, key)
at = torch.arange(8, 16)  # the second reading
before = first[:, :, at, at - 1].mean(dim=(0, 2))  # (head,)
after = second[:, :, at, at - 7].mean(dim=(0, 2))  # (head,)
print("layer 1, heads 1 to 4, at the symbol before:", *(f"{w:.2f}" for w in before))
print("layer 2, at the one after the same symbol:  ", *(f"{w:.2f}" for w in after))
expect("The strongest head of layer 2", after.max().item(), 0.5, 1)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.heads(
    torch.stack([first[0, before.argmax()], second[0, after.argmax()]]), size=0.2,
    names=["layer 1: what came before me?", "layer 2: what came after me last time?"],
    title="Layer 2 finds what came next last time",
    alt="Two maps of attention over a passage of 8 symbols, read twice. In layer 1 each symbol looks at itself and at the one "
    f"before it, which gets {before.max():.0%} on average. In layer 2 the symbols of the first reading look at the very first "
    f"one, and those of the second at the one after their first occurrence, with {after.max():.0%} on average.",
)

# %% [markdown]
# All four heads of layer 2 do it. Such a head, with what it needs from the layer below, is called an **induction head**
# (Elhage et al. 2021; Olsson et al. 2022): *find what came after this the last time, and say it again*. Are these heads the
# cause? Switch heads off: set the columns of the output matrix that read them to 0.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def without(learner, layer, heads):
    """How often the next symbol is right, after the first, without these heads' output."""
    output = learner.decoder.layers[layer].self_attention.output.weight  # (64, 4 · 16)
    kept = output.clone()
    for head in heads:
        output[:, 16 * head : 16 * head + 16] = 0
    right = right_by_seen(learner)[1:].mean().item()
    output.copy_(kept)
    return right


for layer in (0, 1):
    found = (f"{without(learner, layer, [head]):4.0%}" for head in range(4))
    print(f"layer {layer + 1}, without head 1, 2, 3, 4:", *found, end="; ")
    print(f"without all four: {without(learner, layer, range(4)):.0%}")

# %% [markdown]
# Neither layer can do without the other. Within a layer the heads share the work: without any one of them, most symbols are
# still right, in layer 2 nearly all.
#
# ### 5.3 And with knowledge
#
# In our passages everything is in the prompt. In most tasks the prompt only says *which* task, and the knowledge is in the
# weights. GPT-2 small has 124 million parameters and has read eight million web pages. It is not part of the course (548 MB);
# if you are online, load it once, and run the two cells below again:
#
# ```
# hf download openai-community/gpt2 config.json model.safetensors tokenizer.json
# ```

# %% tags=["nbval-ignore-output"]
CAPITALS = dict(
    France="Paris", Germany="Berlin", Spain="Madrid", Russia="Moscow", Japan="Tokyo",
    Egypt="Cairo", England="London", Austria="Vienna", Greece="Athens", Cuba="Havana",
)


def capitals(writer, shots, rng):
    """How many capitals it writes, greedily, after some lines that show how."""
    asking = []
    for country in CAPITALS:
        shown = rng.sample([each for each in CAPITALS if each != country], shots)
        lines = [f"{each}: {CAPITALS[each]}\n" for each in shown]
        asking.append("".join(lines) + f"{country}:")
    said = writer.generate(asking, max_new_tokens=3)
    pairs = zip(CAPITALS.values(), said, strict=True)
    return sum(capital in text for capital, text in pairs)


# %% [markdown]
# Our model first, then GPT-2 where it is at hand:

# %% tags=["nbval-ignore-output"]
writers = {"ours": TextGenerator(model, tokenizer)}
if folder := gpt2():
    parts = load_pretrained(folder), load_tokenizer(folder)
    writers["GPT-2 small"] = TextGenerator(*parts)
else:
    print("GPT-2 is not here; without it, this cell shows our model alone.")
for label, writer in writers.items():
    for shots in (0, 1, 4):
        right = [capitals(writer, shots, random.Random(seed)) for seed in range(3)]
        print(f"{label:12} {shots} examples:", *right, f"of {len(CAPITALS)} right")

# %% [markdown]
# What our model has read of these cities is little help (*London is the capital of Paris*, says Alice, *and Paris is
# the capital of Rome*). With GPT-2, watch how the number changes from 0 examples to 1 to 4: the examples only say what is
# wanted.

# %% [markdown]
# ## 6 Summaries, and ROUGE
#
# ### 6.1 Counting what two texts share
#
# With given answers we can count how many are right. A summary is free text: there are many good ones. The usual measure
# compares it with a summary by a person, the **reference**. On paper:
#
# - the reference: *the cat sat on the mat* (6 words);
# - the summary: *the cat lay on a mat* (6 words).
#
# They share *the*, *cat*, *on*, *mat*: 4 of 6 words of the reference (the **recall**) and 4 of 6 of the summary (the
# **precision**). Their harmonic mean is the F-score: $2 \cdot \frac46 \cdot \frac46 / (\frac46 + \frac46) = 0.67$. That is
# **ROUGE-1** (Lin 2004). **ROUGE-2** counts pairs of neighbors: only *the cat* is shared, 1 of 5. **ROUGE-L** takes the
# longest sequence that is in both in the same order, gaps allowed: *the cat on mat*, again 4.


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
# (The harmonic mean of $s/r$ and $s/w$ is $2s / (r + w)$.) For the longest common sequence, go through both texts word by
# word. If the two words are equal, the sequence before both of them grows by one; otherwise leave out one of the two:


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
# The example, and then three attempts to break the measure. Which of them gets the highest ROUGE?

# %%
cat = "the cat sat on the mat"
for n in (1, 2):
    print(f"ROUGE-{n} {rouge_n(cat, 'the cat lay on a mat', n):.2f}")
print(f"ROUGE-L {rouge_l(cat, 'the cat lay on a mat'):.2f}\n")
reference = "The new method improves the translation of long sentences."
attempts = {
    "the opposite": "The new method worsens the translation of long sentences.",
    "shuffled": "Sentences long of translation the improves method new the.",
    "another's words": "Our approach makes translating lengthy text better.",
}
for label, text in attempts.items():
    rouge_1, rouge_2 = (rouge_n(reference, text, n) for n in (1, 2))
    print(f"{label:16} {rouge_1:.2f}  {rouge_2:.2f}  {rouge_l(reference, text):.2f}")

# %% [markdown]
# ROUGE counts words, not truth. The opposite of the reference scores high, a good summary in other words scores 0, and
# ROUGE-1 does not notice shuffling at all. So it may compare systems on average over many texts; it says nothing about
# one summary being right.
#
# ### 6.2 A summary written by a model
#
# Radford et al. (2019, §3.6) made GPT-2 summarize by writing *TL;DR:* after a news article. It had never been trained to;
# on the web, a summary follows these letters. Without the hint it lost several points of ROUGE; with it, it was about as
# good as three sentences drawn at random from the article.
#
# A small model can also be trained for it: source, separator, summary as one text. `benchmarks/long_text.py` trained five
# models for a minute each, on 200 scientific papers with three summaries each: the challenge, the approach and the outcome
# (Takeshita et al. 2024, the data set ACLSum). On 64 summaries of papers that they had never seen, with 256 tokens of input:
#
# | | ROUGE-L |
# | --- | ---: |
# | recurrent, with attention | 15.0 |
# | encoder and decoder | 17.4 |
# | a decoder alone | 16.9 |
# | the decoder with compressed memory; with experts as well | 16.3; 17.4 |
# | *the paper's first sentence* | 15.0 |
# | *one sentence for all papers*, the most usual of each kind | 17.3 |
#
# The last two rows read nothing, or one sentence (`data/summaries.py` computes them; the models' rows count *model* and
# *models* as the same word, which helps them a little). *The proposed model outperforms the state-of-the-art models on some
# datasets in different languages* shares as many words with the outcomes of 64 unseen papers as what the best of the models
# wrote. A minute is too short to learn to summarize, and without these two rows a ROUGE of 17 would look like a start. So put
# such rivals into every table.

# %% [markdown]
# ## 7 Open the library
#
# In `txlib.generation`, `score_answers` computes all answers as one batch, padded on the right. With the causal mask no
# token sees the padding, and its log-probabilities are left out of the sum.

# %%
show_source(score_answers)

# %% [markdown]
# Are its scores ours? And for text, `TextGenerator.score`:

# %%
question = "“Who sat on the top of a high wall?” said Alice. “It was"
tokens = [encode(person) for person in PERSONS]
sums, lengths = scores(question, PERSONS)  # (answer,) each
for mine, options in (
    (sums, {}),
    (sums / lengths, {"score": "mean"}),
    (sums - free, {"score": "calibrated", "neutral": encode("“It was")}),
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
# **1. Two answers: *yes* (one token, probability 0.2) and *not at all* (three tokens, 0.3, 0.9 and 0.9). Which one wins by
# the sum, which by the mean?**
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
# **2. A friend tries thirty prompts for a classifier on 400 test texts and reports the best, 56%. Chance is 50%. What do
# you say?**
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
# The answers are compared, not drawn; no temperature changes which one is first.
# </details>
#
# **3. Eight examples with *random* labels in the prompt help a large model nearly as much as eight with the right ones. What
# have the examples taught?**
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
# - A task is a prompt; given answers are scored by the log-probabilities of their tokens. The sum favors short answers, the
#   mean predictable ones; calibration subtracts what an answer scores without the question.
# - Whether a model can do a task is a question for a test set, with chance and a simple rival next to it. What it completes
#   about people says what it has read.
# - In-context learning: examples in the prompt, no weight changes. They may teach only the form, or the task itself.
# - Two layers of attention can find in the prompt what came after the same symbol before: an induction head.
# - ROUGE counts shared words. Compare with the first sentences, and don't take it for truth.
#
# **Read** Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, section 3. Brown et al. 2020,
# *Language Models are Few-Shot Learners*, [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), sections 2.4 and 3. Zhao
# et al. 2021, *Calibrate Before Use*, [arXiv:2102.09690](https://arxiv.org/abs/2102.09690), section 5. Min et al. 2022,
# *Rethinking the Role of Demonstrations*, [arXiv:2202.12837](https://arxiv.org/abs/2202.12837). Olsson et al. 2022,
# *In-context Learning and Induction Heads*, [arXiv:2209.11895](https://arxiv.org/abs/2209.11895). Lin 2004, *ROUGE*,
# sections 2 and 3. Sheng et al. 2019, *The Woman Worked as a Babysitter*,
# [arXiv:1909.01326](https://arxiv.org/abs/1909.01326).
#
# **Do** the exercise [12_prompting](../exercises/exercise_12_prompting.ipynb). Then go on to
# [13 Decoding fast](13_decoding.ipynb).
