"""Write next_character.json: lesson 10's tables of counts, and GPTs of three seeds: no positions, little text, longer.

    python data/next_character.py 0 1 2

The tables take seconds, the GPTs about four CPU-minutes per seed. `recorded.py` does the work.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds
from torch import Tensor

RUNS = Runs(__file__, "10_gpt")
SMALL, LARGE = (32, 2, 1), (128, 4, 3)  # d_model, heads, blocks
SETTINGS = {  # class, sizes, characters of the training text, steps
    "d = 32, all the text": ("GPT", SMALL, None, 300),
    "d = 128, all the text": ("GPT", LARGE, None, 300),
    "d = 128, no positions": ("Unplaced", LARGE, None, 300),
    "d = 128, no positions, one block": ("Unplaced", (128, 4, 1), None, 300),
    "d = 32, 8,000 characters": ("GPT", SMALL, 8000, 300),
    "d = 128, 8,000 characters": ("GPT", LARGE, 8000, 300),
    "d = 128, 1,200 steps": ("GPT", LARGE, None, 1200),
}

LONGEST = 6  # characters that a table looks back


def tables(names: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Count what follows each past of 0 to LONGEST characters, and mix as the lesson does (Witten and Bell 1991).

    The lesson's tables hold all pasts; these hold the pasts that occur, so they can be longer.

    Returns:
        for each length the loss on the characters that `unseen_loss` uses and on the whole play, in nats per character,
        and how many of the pasts in the former occurred in the training text.
    """
    scored, played = names["unseen"], names["encode"](names["texts"].validation)
    on_scored = mixtures(names["train_ids"], scored, names["V"])
    on_played = mixtures(names["train_ids"], played, names["V"])
    return {
        length: {"unseen": unseen, "whole play": whole, "occurred": occurred}
        for length, ((unseen, occurred), (whole, _)) in enumerate(zip(on_scored, on_played, strict=True))
    }


def mixtures(train: Tensor, text: Tensor, vocab: int) -> Iterator[tuple[float, float]]:
    """Yield the loss of the table of each length on a text, and the fraction of its pasts that occurred."""
    p = torch.full((len(text) - 1,), 1 / vocab, dtype=torch.float64)  # of each character of the text but the first
    for length in range(LONGEST + 1):
        runs, count = numbers_of(train, length + 1, vocab).unique(return_counts=True)  # (run,) each
        pasts, past = (runs // vocab).unique(return_inverse=True)  # (past,), (run,)
        total = torch.zeros(len(pasts), dtype=torch.long).index_add(0, past, count)
        kinds = past.bincount(minlength=len(pasts))  # different followers
        scored = numbers_of(text, length + 1, vocab)[length == 0 :]  # the first characters keep their shorter pasts
        all_of = looked_up(scored // vocab, pasts, total)
        weight = looked_up(scored // vocab, pasts, kinds).clamp(min=1)
        shorter = p[-len(scored) :]
        p[-len(scored) :] = (looked_up(scored, runs, count) + weight * shorter) / (all_of + weight)
        yield -p.log().mean().item(), (all_of > 0).double().mean().item()


def numbers_of(ids: Tensor, length: int, vocab: int) -> Tensor:
    """Return one number for each run of `length` ids."""
    return ids.unfold(0, length, 1) @ vocab ** torch.arange(length).flip(0)


def looked_up(wanted: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the value of each wanted key, 0 without one. `keys` ascend."""
    index = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return values[index].where(keys[index] == wanted, 0)


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
    RUNS.record(partial(tables, names), "tables")
    for setting in SETTINGS:
        RUNS.record(partial(run, names, setting, seed), setting, seed)


if __name__ == "__main__":
    record_seeds(record)
