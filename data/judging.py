"""Write judging.json: what the small models of lesson 42 get right, three seeds each.

    python data/judging.py 0 1 2

`recorded.py` does the work.
"""

import copy
from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "42_judging")
THINKING = {
    "answer alone, 1 token": {"every": 8},
    "two states, 2 tokens": {"every": 4},
    "four states, 4 tokens": {"every": 2},
    "all states, 8 tokens": {"every": 1},
    "7 dots, 8 tokens": {"every": 8, "dots": 7},
    "answer alone, 2 layers": {"every": 8, "layers": 2},
    "7 dots, 2 layers": {"every": 8, "dots": 7, "layers": 2},
}


def record(seed: int) -> None:
    """Record each way to choose an answer, what a leak does, and each way to think."""
    names = RUNS.lesson()
    torch.manual_seed(seed)
    model = names["imitate"](names["new_model"](), 600)
    for rule, scores in rules(names, model).items():
        RUNS.record(partial(list, scores), "rules", rule, seed)
    torch.manual_seed(seed)
    models = {
        "no leak": names["imitate"](copy.deepcopy(model), 150, rate=1e-3),
        "leak": names["imitate"](copy.deepcopy(model), 150, names["with_leak"], rate=1e-3),
    }
    tests = {"the published test": names["leaked"], "rephrased": names["leaked"].flip(1), "fresh tasks": names["fresh"]}
    for test, pairs in tests.items():
        for kind, each in models.items():
            right = names["greedy_right"](each, pairs)
            RUNS.record(right.mean().item, "leak", test, kind, seed)
    for name, options in THINKING.items():
        for kind, steps in (("200 steps", 200), ("as many labels", 200 * options["every"])):
            RUNS.record(partial(thinks, names, options, seed, steps), "thinking", name, kind, seed)


def rules(names: dict[str, Any], model: torch.nn.Module) -> dict[str, list[float]]:
    """Return the scores of each rule, by the number of answers it sees."""
    prompts, totals = names["prompts_of"](names["test"])
    greedy = names["greedy_right"](model, names["test"]).mean().item()
    torch.manual_seed(7)  # of the drawing
    many = names["draw"](model, prompts)
    by_rule = names["rules_by_k"](many, totals, torch.rand(many.shape) < 0.2)
    consistent = names["rules_by_k"](many, totals, names["consistent_errors"](many))
    checked = ("checker that errs", "majority of accepted")
    return {"greedy": [greedy], **by_rule, **{f"{rule}, consistent": consistent[rule] for rule in checked}}


def thinks(names: dict[str, Any], options: dict[str, Any], seed: int, steps: int) -> float:
    """Return how often a model is right that thinks in this way after so many steps of training."""
    small = names["thinker"](seed=seed, steps=steps, **options)
    return names["right_at_last"](small, options["every"], options.get("dots", 0))


if __name__ == "__main__":
    record_seeds(record)
