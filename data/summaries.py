"""Write summaries.json: ROUGE of two ways to summarize without a model, for lesson 12.

    pip install --no-deps aclsum
    python data/summaries.py 0

The data are ACLSum's: challenge, approach and outcome of 250 papers (Takeshita et al. 2024, MIT), split as
`benchmarks/long_text.py` does it, whose models are the rivals. `recorded.py` does the rest.
"""

import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import mean

import torch
from recorded import Runs, record_seeds

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import long_text

RUNS = Runs(__file__, "12_prompting")
LENGTH = 256  # tokens of a paper that are read
KNOWN = 180  # summaries among which those that stand for all are chosen
EXAMPLE = "The proposed method effectively preserves privacy"  # of Mosallanezhad et al. (2019)

Summarize = Callable[[list[int]], str]


@cache
def task() -> long_text.Task:
    return long_text.summary_task(LENGTH)


def text(tokens: list[int]) -> str:
    return long_text.as_text(tokens, task().encoder)


def aspect_and_paper(source: list[int]) -> tuple[str, str]:
    aspect, _, paper = text(source).partition(": ")
    return aspect, paper


def first_sentence(source: list[int]) -> str:
    return aspect_and_paper(source)[1].split(" . ")[0] + " ."


@cache
def usual_summaries() -> dict[str, str]:
    """For each aspect, the summary of a training paper that shares most with those of the others."""
    rouge_l = RUNS.lesson()["rouge_l"]
    by_aspect: dict[str, list[str]] = {}
    for source, target in islice(task().learn(LENGTH, torch.Generator().manual_seed(0)), KNOWN):
        by_aspect.setdefault(aspect_and_paper(source)[0], []).append(text(target))
    return {
        aspect: max(texts, key=lambda one: mean(rouge_l(other, one) for other in texts))
        for aspect, texts in by_aspect.items()
    }


def usual(source: list[int]) -> str:
    return usual_summaries()[aspect_and_paper(source)[0]]


def rouge(summarize: Summarize) -> dict[str, float]:
    """ROUGE-1, 2 and L in percent, the mean of the unseen summaries."""
    names = RUNS.lesson()
    pairs = [(text(target), summarize(source)) for source, target in task().unseen(LENGTH)]
    measures = {"1": partial(names["rouge_n"], n=1), "2": partial(names["rouge_n"], n=2), "L": names["rouge_l"]}
    return {kind: 100 * mean(measure(*pair) for pair in pairs) for kind, measure in measures.items()}


def record(seed: int) -> None:
    ways: dict[str, Summarize] = {"the paper's first sentence": first_sentence, "one sentence for all papers": usual}
    source, reference = next(row for row in task().unseen(LENGTH) if text(row[1]).startswith(EXAMPLE))
    RUNS.record(lambda: text(reference), "example", "reference")
    for way, summarize in ways.items():
        RUNS.record(partial(summarize, source), "example", way)
        RUNS.record(partial(rouge, summarize), "rouge", way, seed)


if __name__ == "__main__":
    record_seeds(record)
