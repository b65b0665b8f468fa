"""Write next_character.json: lesson 10's GPTs without positions, with little text, and trained for longer; three seeds.

    python data/next_character.py 0 1 2

It takes about four CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "10_gpt")
SMALL, LARGE = (32, 2, 1), (128, 4, 3)  # d_model, heads, blocks
SETTINGS = {  # class, sizes, characters of the training text, steps
    "d = 32, all the text": ("GPT", SMALL, None, 300),
    "d = 128, all the text": ("GPT", LARGE, None, 300),
    "d = 128, no positions": ("Unplaced", LARGE, None, 300),
    "d = 32, 8,000 characters": ("GPT", SMALL, 8000, 300),
    "d = 128, 8,000 characters": ("GPT", LARGE, 8000, 300),
    "d = 128, 1,200 steps": ("GPT", LARGE, None, 1200),
}


def run(names: dict[str, Any], setting: str, seed: int) -> dict[str, Any]:
    """Return the training loss of the last 20 steps and the loss on the unseen play, in nats per character.

    Of the longest run, the unseen loss at each position of a window and a text are kept as well.
    """
    kind, sizes, characters, steps = SETTINGS[setting]
    torch.manual_seed(seed)
    model = names[kind](names["V"], *sizes)
    losses = names["train"](model, steps, setting, text=names["train_ids"][:characters], seed=seed)
    by_position = names["unseen_loss"](model)  # (position,)
    result = {"training": sum(losses[-20:]) / 20, "unseen": by_position.mean().item()}
    if steps == 1200:
        torch.manual_seed(seed)
        result["by position"] = by_position.tolist()
        result["text"] = names["write"](model, "ORSINO:\n", temperature=0.5)
    return result


def record(seed: int) -> None:
    names = RUNS.lesson()
    for setting in SETTINGS:
        RUNS.record(partial(run, names, setting, seed), setting, seed)


if __name__ == "__main__":
    record_seeds(record)
