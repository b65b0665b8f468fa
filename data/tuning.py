"""Write tuning.json: what the base of lesson 40 becomes by fine-tuning, with its controls, three seeds each.

    python data/tuning.py 0 1 2

`recorded.py` does the work.
"""

from collections.abc import Callable
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "40_instructions")


def record(seed: int) -> None:
    """Record the scores of each way to fine-tune, from the same base."""
    names = RUNS.lesson()
    examples = names["encoded"](names["practice"])

    def tuned(model: Any, examples: Any = examples, **options: Any) -> Any:
        return names["tune"](model, examples, **options)

    def low_rank(rank: int) -> Callable[[], Any]:
        return lambda: tuned(names["adapt"](names["load_base"](), rank), rate=names["LORA_RATE"])

    def random_weights() -> Any:
        model = names["load_base"]()
        model.initialize()
        return model

    def linear_maps_only() -> Any:
        model = names["load_base"]().requires_grad_(False)
        for name in names["linear_names"](model):  # the weights that LoRA adds to
            model.get_submodule(name).weight.requires_grad_(True)
        return tuned(model)

    def replayed() -> Any:
        return tuned(names["load_base"](), examples + names["lines_of_base_text"]())

    ways: dict[str, Callable[[], Any]] = {
        "base": names["load_base"],
        "full": lambda: tuned(names["load_base"]()),
        "full, linear maps only": linear_maps_only,
        "full, rate 0.0005": lambda: tuned(names["load_base"](), rate=5e-4),
        "no base": lambda: tuned(random_weights()),
        "no end": lambda: tuned(names["load_base"](), names["no_end"]),
        "LoRA, rank 1": low_rank(1),
        "LoRA, rank 4": low_rank(4),
        "full, replay": replayed,
        "all tokens": lambda: tuned(names["load_base"](), names["all_tokens"]),
        "LoRA, rank 16": low_rank(16),
    }
    for name, way in ways.items():

        def scores(way: Callable[[], Any] = way) -> dict[str, float]:
            torch.manual_seed(seed)
            return names["scores"](way(), requests=400)

        RUNS.record(scores, "scores", name, seed)

    def said_without_end() -> list[str]:
        torch.manual_seed(seed)
        prompts = [f"Q: {question}\nA:" for question, _ in names["asked"][:3]]
        return list(map(names["tokenizer"].decode, names["write"](ways["no end"](), prompts)))

    RUNS.record(said_without_end, "said", "no end", seed)


if __name__ == "__main__":
    record_seeds(record)
