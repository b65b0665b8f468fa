"""What is kept of the runs of lesson 10: those that its script makes, and what the lesson says of them."""

from collections import Counter

import next_character
import pytest
import torch


def test_the_shipped_runs_are_those_of_the_script_and_show_what_the_lesson_says():
    kept = next_character.RUNS.kept()
    rows = list(kept.pop("tables").values())
    tables, kneser_ney = [row["unseen"] for row in rows], [row["unseen, Kneser-Ney"] for row in rows]
    assert len(rows) == next_character.LONGEST + 1 and min(tables) == tables[4] and min(kneser_ney) == kneser_ney[6]
    assert kept.keys() == next_character.SETTINGS.keys()
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in kept.values())
    for seed in "012":
        runs = [kept[name][seed] for name in next_character.SETTINGS]
        small, large, unplaced, one_block, small_few, large_few, longer = runs
        assert large["unseen"] < min(small["unseen"], unplaced["unseen"])
        assert unplaced["unseen"] < one_block["unseen"] < tables[1]
        assert large_few["training"] < small_few["training"] and large_few["unseen"] > small_few["unseen"]
        assert abs(longer["unseen"] - tables[4]) < 0.03 and longer["unseen"] < tables[3]
        assert sum(longer["by position"][16:]) / 48 < longer["by position"][2] - 0.05


def test_tables_of_counts_mix_each_past_with_the_shorter_one():
    train, text = torch.tensor([0, 1, 0, 1, 0, 0]), torch.tensor([1, 0, 1])  # of two kinds
    frequency = [(4 + 2 / 2) / 8, (2 + 2 / 2) / 8]  # four 0 and two 1 among six; two kinds weigh the start of one half
    pair = [(2 + frequency[0]) / 3, (2 + 2 * frequency[1]) / 5]  # 1 → 0 twice; 0 → 1 twice, 0 → 0 once
    of_none, _ = next_character.mixture(train, text, 2, 0)
    of_one, known = next_character.mixture(train, text, 2, 1)
    assert of_none.tolist() == pytest.approx(frequency) and of_one.tolist() == pytest.approx(pair) and known.all()


def by_loop(train: list[int], past: list[int], character: int, vocab: int, longest: int) -> float:
    """Interpolated modified Kneser-Ney as Chen and Goodman write it (1998, section 3), one probability at a time."""
    if len(past) > longest:
        raise ValueError(f"past of {len(past)} characters, longest {longest}")
    length, counts = len(past) + 1, Counter[tuple[int, ...]]()
    if len(past) == longest:
        counts.update(tuple(train[i : i + length]) for i in range(len(train) - length + 1))
    else:  # different characters before the run
        counts.update(run[1:] for run in {tuple(train[i : i + length + 1]) for i in range(len(train) - length)})
    n1, n2, n3, n4 = (sum(c == k for c in counts.values()) for k in (1, 2, 3, 4))
    discount = {1: 0.5, 2: 1.0, 3: 1.5}
    if n1 and n2 and n3 and n4:
        y = n1 / (n1 + 2 * n2)
        discount = {1: 1 - 2 * y * n2 / n1, 2: 2 - 3 * y * n3 / n2, 3: 3 - 4 * y * n4 / n3}
        discount = {k: max(0, d) for k, d in discount.items()}
    shorter = by_loop(train, past[1:], character, vocab, longest) if past else 1 / vocab
    followed = [counts[(*past, next)] for next in range(vocab)]
    if not any(followed):
        return shorter
    taken = [discount[min(c, 3)] if c else 0 for c in followed]
    return (followed[character] - taken[character] + sum(taken) * shorter) / sum(followed)


@pytest.mark.parametrize("longest", [0, 1, 3])
def test_kneser_ney_is_that_of_a_loop(longest):
    generator = torch.Generator().manual_seed(0)
    train = (torch.rand(300, generator=generator) ** 2 * 6).long()  # of six kinds, some of them rare
    text = torch.randint(6, (40,), generator=generator)
    p, known = next_character.mixture(train, text, 6, longest, kneser_ney=True)
    pasts = [text[max(0, i - longest) : i].tolist() for i in range(1, len(text))]
    expected = [by_loop(train.tolist(), past, c, 6, longest) for past, c in zip(pasts, text[1:].tolist(), strict=True)]
    assert p.tolist() == pytest.approx(expected)
    assert longest < 3 or 0 < known.double().mean() < 1
