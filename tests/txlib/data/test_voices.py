"""What is kept of the runs of lesson 22: those that its script makes, and what they measured, against loops."""

import math

import pytest
import torch
import voices
from torch import nn

from txlib.data import chorales
from txlib.music import GridTokenizer
from txlib.music.grid import MARKS

SPLITS = chorales()
BEGIN = MARKS.index("<begin>")


class Remembers(nn.Module):
    """A stand-in for a trained model: the logits of each token are a table's, by the token before and the place."""

    def __init__(self, tokens: int):
        super().__init__()
        self.table, self.mask, self.seen = torch.randn(600, tokens, tokens), None, []

    def forward(self, ids):
        self.seen.append(self.mask)
        return self.table[torch.arange(ids.shape[1]), ids]

    def nats(self, window: list[int]) -> list[float]:
        """Of each token but the first, one at a time."""
        pairs = enumerate(zip(window, window[1:], strict=False))
        return [-math.log(self.table[place, before].softmax(dim=0)[token]) for place, (before, token) in pairs]


def by_hand(pieces, n: int) -> list[list[int]]:
    """Whole windows of n tokens, each with the token before it."""
    windows = []
    for piece in pieces:
        ids = [BEGIN, *GridTokenizer().encode(piece, special_tokens=False)]
        windows += [ids[start : start + n + 1] for start in range(0, len(ids) - n, n)]
    return windows


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = voices.RUNS.kept()
    faster = kept.pop("faster")
    assert faster.keys() == set(voices.TABLES)
    for speeds in faster.values():
        assert speeds.keys() == set(map(str, voices.FASTER))
        assert all(seeds.keys() == {"0", "1", "2"} for seeds in speeds.values())
    assert kept.keys() == {"positions", "keys", "beyond"}
    assert tuple(kept["positions"]) == voices.KINDS
    assert kept["keys"].keys() == voices.KEYS.keys()
    every = [seeds for question in ("positions", "keys") for seeds in kept[question].values()]
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in every)
    assert all(0 < run["nats"] < math.log(lesson["V"]) for seeds in every for run in seeds.values())


def test_what_is_heard_is_four_bars_of_tokens(lesson):
    kept = voices.RUNS.kept()["beyond"]
    assert tuple(kept) == voices.HEARD
    for written in kept.values():
        tokens = [int(token) for token in written["0"].split()]
        assert len(tokens) == lesson["N"]
        assert all(lesson["REST"] <= token < lesson["V"] for token in tokens)


def test_a_window_of_what_may_be_seen_changes_nothing_where_no_token_is_farther_away():
    for seeds in voices.RUNS.kept()["positions"].values():
        for run in seeds.values():
            assert len(run["by bar"]) == 8
            assert run["by bar"][:4] == run["by bar, window"][:4]
            assert run["by bar"][4:] != run["by bar, window"][4:]


def test_the_same_training_has_the_same_result():
    """Relative, as written: it was run for both comparisons."""
    runs = voices.RUNS.kept()
    for seed, run in runs["keys"]["as written"].items():
        assert run["nats"] == pytest.approx(runs["positions"]["relative"][seed]["nats"], abs=0.02)


def test_windows_are_whole_and_follow_each_other(lesson):
    pieces = SPLITS.test[:6]
    for n in (64, 256):
        assert lesson["windows"](pieces, n).tolist() == by_hand(pieces, n)


def test_nats_of_a_run_are_those_of_its_tokens_one_by_one(lesson):
    model, pieces = Remembers(lesson["V"]), SPLITS.test[:4]
    run = voices.by_length(lesson, model, pieces)
    short = [model.nats(window) for window in by_hand(pieces, 256)]
    assert run["nats"] == pytest.approx(sum(map(sum, short)) / (256 * len(short)), abs=1e-4)
    long = [model.nats(window) for window in by_hand(pieces, 512)]
    for bar, nats in enumerate(run["by bar"]):
        tokens = [each for window in long for each in window[64 * bar : 64 * bar + 64]]
        assert nats == pytest.approx(sum(tokens) / len(tokens), abs=1e-4)
    assert run["by bar, window"] == run["by bar"]  # this model sees only the token before
    *before, windowed = model.seen
    assert before == [None] * len(before)
    assert windowed.dense(300, 300)[0, 0].sum(dim=1).tolist() == [min(i + 1, 256) for i in range(300)]


def test_pieces_are_moved_where_all_of_the_window_has_room(lesson):
    model, pieces = Remembers(lesson["V"]), SPLITS.test[:8]
    run, first = voices.in_keys(lesson, model, pieces), lesson["FIRST"]
    moved = {shift: [] for shift in range(-3, 4)}
    for window in by_hand(pieces, 256):
        notes = [token for token in window if token >= first]
        if min(notes) - 3 >= first and max(notes) + 3 < lesson["V"]:
            for shift, nats in moved.items():
                nats += model.nats([token + shift if token >= first else token for token in window])
    assert run["by shift"] == pytest.approx({str(by): sum(n) / len(n) for by, n in moved.items()}, abs=1e-4)


@pytest.mark.parametrize("transpose", [False, True])
def test_a_batch_holds_windows_of_pieces_in_keys_within_the_pitches_that_occur(lesson, transpose):
    rows, first = lesson["sequences"](SPLITS.train[:3]), lesson["FIRST"]
    rows = [row for row in rows if len(row) > lesson["N"]]
    shifts = set()
    for window in lesson["draw"](rows, 60, transpose):
        found = [
            (window[note] - row[start : start + 257][note])[0].item()
            for row in rows
            for start in range(0, len(row) - 256, 16)
            if (note := (row[start : start + 257] >= first)).any()
            and torch.equal(note, window >= first)
            and torch.equal(row[start : start + 257][~note], window[~note])
            and len((window[note] - row[start : start + 257][note]).unique()) == 1
        ]
        assert found, "a window that no piece has"
        assert window.min() >= 0 and window.max() < lesson["V"]
        shifts.update(found)
    assert len(shifts) > 5 if transpose else shifts == {0}


@pytest.mark.parametrize("kind", voices.KINDS)
def test_no_model_reads_ahead(lesson, kind):
    torch.manual_seed(0)
    model = lesson["ChoraleModel"](kind)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * torch.randn_like(each))
    ids = torch.randint(lesson["V"], (2, 48))
    changed = ids.clone()
    changed[:, 30:] = (changed[:, 30:] + 1) % lesson["V"]
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :30], after[:, :30])
    assert ((before - after)[:, 30:].abs().amax(dim=-1) > 1e-3).all()
