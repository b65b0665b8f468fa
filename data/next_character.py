"""Write next_character.json: lesson 10's tables of counts, and GPTs of three seeds: no positions, little text, longer.

    python data/next_character.py 0 1 2

The tables take half a minute, the GPTs about four CPU-minutes per seed. `recorded.py` does the work.
"""

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

LONGEST = 8  # characters that a table looks back


def tables(names: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Count what follows each past of 0 to LONGEST characters, and mix long and short pasts in two ways.

    The lesson's tables hold all pasts; these hold the pasts that occur, so they can be longer.

    Returns:
        for each length how many of the pasts of the characters that `unseen_loss` uses occurred in the training text,
        and the loss on these characters and on the whole play, in nats per character, for both ways of mixing.
    """
    texts = {"unseen": names["unseen"], "whole play": names["encode"](names["texts"].validation)}
    kept: dict[int, dict[str, float]] = {}
    for length in range(LONGEST + 1):
        kept[length] = {}
        for name, text in texts.items():
            mixed, known = mixture(names["train_ids"], text, names["V"], length)
            kneser_ney, _ = mixture(names["train_ids"], text, names["V"], length, kneser_ney=True)
            kept[length][name] = -mixed.log().mean().item()
            kept[length][f"{name}, Kneser-Ney"] = -kneser_ney.log().mean().item()
            if name == "unseen":
                kept[length]["occurred"] = known.double().mean().item()
    return kept


def mixture(train: Tensor, text: Tensor, vocab: int, longest: int, kneser_ney: bool = False) -> tuple[Tensor, Tensor]:
    """Return the probability of each character of a text but the first, and whether its longest past is known.

    Each table mixes its counts with the next shorter one: p(next | past) = (kept + lent · shorter p) / (all kept + all
    lent). The lesson (Witten and Bell 1991) keeps the counts, and lends 1 for each different follower of the past.
    Interpolated modified Kneser-Ney (Chen and Goodman 1998) lends a part of each count, and the shorter tables count
    after how many different characters a run came, not how often.
    """
    p = torch.full((len(text) - 1,), 1 / vocab, dtype=torch.float64)  # (character,)
    for length in range(longest + 1):
        runs = numbers_of(train, length + 1, vocab)
        if kneser_ney and length < longest:
            runs = numbers_of(train, length + 2, vocab).unique() % vocab ** (length + 1)
        runs, count = runs.unique(return_counts=True)  # (run,) each
        lent = discounts(count) if kneser_ney else torch.ones(len(count), dtype=torch.float64)
        kept = count - lent if kneser_ney else count.double()
        pasts, past = (runs // vocab).unique(return_inverse=True)  # (past,), (run,)
        all_kept, all_lent = (torch.zeros(len(pasts), dtype=torch.float64).index_add(0, past, x) for x in (kept, lent))
        scored = numbers_of(text, length + 1, vocab)[length == 0 :]  # the first characters keep their shorter pasts
        weight = looked_up(scored // vocab, pasts, all_lent)
        known = weight > 0
        weight = weight.where(known, 1)
        shorter = p[-len(scored) :]
        total = looked_up(scored // vocab, pasts, all_kept) + weight
        p[-len(scored) :] = (looked_up(scored, runs, kept) + weight * shorter) / total
    return p, known


def discounts(count: Tensor) -> Tensor:
    """Return what modified Kneser-Ney takes from each count: one number for 1, 2, and 3 and more."""
    n = [int((count == k).sum()) for k in (1, 2, 3, 4)]
    taken = [0.5, 1, 1.5]  # where one of these counts does not occur, as in KenLM
    if all(n):
        y = n[0] / (n[0] + 2 * n[1])
        taken = [max(0, k - (k + 1) * y * n[k] / n[k - 1]) for k in (1, 2, 3)]
    return torch.tensor(taken, dtype=torch.float64)[count.clamp(max=3) - 1]


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
