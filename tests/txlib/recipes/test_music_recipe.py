"""Losses that mean what they say: windows against one long look back, a chain against counts by hand."""

import json
import math

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib import load_pretrained
from txlib.data import chorales, shipped
from txlib.layers import BlockConfig
from txlib.models import MusicConfig, MusicTransformer
from txlib.music import GridTokenizer
from txlib.recipes.music import PRESETS, Markov, Music, loss_of, make_model, piece_batches, token_losses, window_loss

GRID = GridTokenizer()
SPLITS = chorales()


def make(position="none", max_length=24):
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(16, 2, 24, position=position)
    return shake(MusicTransformer(MusicConfig(50, block, layers=1, max_length=max_length))).eval()


@pytest.mark.parametrize("steps", [1, 4, 5, 11, 30])
def test_each_token_is_predicted_once_from_at_least_half_a_context(steps):
    """Against a loop that asks for one token at a time, with the past that the rule says."""
    model, ids = make("skewed"), GRID.encode(SPLITS.test[0][:steps])
    losses = token_losses(model, ids)
    assert len(losses) == len(ids) - 4
    for place in range(4, len(ids)):
        start = 0 if place <= 24 else -(-(place - 24) // 12) * 12
        logits = model(torch.tensor([ids[start:place]])).logits[0, -1]
        assert place - start >= min(12, place)
        assert_close(losses[place - 4], -logits.log_softmax(-1)[ids[place]])


def test_a_loss_per_token_and_per_note():
    """Two tokens of four are as likely as not; so a step costs 4 ln 2, and the notes share that of all steps."""
    piece = SPLITS.test[0][:8]
    loss = loss_of(lambda ids: torch.full((len(ids) - 4,), math.log(2)), [piece, piece])
    notes = sum(len(piece.notes(voice)) for voice in range(4))
    assert loss.tokens == 2 * (8 * 4 + 1) and loss.notes == 2 * notes
    assert loss.per_token == pytest.approx(math.log(2))
    assert loss.per_note == pytest.approx(math.log(2) * 33 / notes)


def test_windows_hold_whole_steps_of_pieces_in_keys_that_can_be_sung():
    pieces, starts, moved = SPLITS.train[:5], set(), set()
    whole = [[GRID.encode(piece.transposed(by)) for by in piece.transpositions()] for piece in pieces]
    for epoch in range(3):
        for batch in piece_batches(pieces, 32, 4)(epoch):
            assert batch.shape == (4, 33)
            for window in batch.tolist():
                text = [token for token in window if token >= 0]
                found = [
                    (piece, key, place)
                    for piece, keys in enumerate(whole)
                    for key, ids in enumerate(keys)
                    for place in range(0, len(ids), 4)
                    if ids[place : place + 33] == text
                ]
                assert found
                starts.add(found[0][2])
                moved.add(found[0][1])
    assert len(starts) > 20 and 0 in starts and len(moved) > 2
    assert any(
        GRID.token(int(batch[row, -1])) == "<end>" for batch in piece_batches(pieces, 32, 4)(0) for row in range(4)
    )


def test_an_epoch_is_the_same_each_time_and_another_is_not():
    epochs = [torch.stack(list(piece_batches(SPLITS.train[:4], 32, 4)(epoch))) for epoch in (0, 0, 1)]
    assert torch.equal(epochs[0], epochs[1])
    assert epochs[0].shape != epochs[2].shape or not torch.equal(epochs[0], epochs[2])
    untouched = torch.stack(list(piece_batches(SPLITS.train[:1], 32, 1, transpose=False)(0)))
    assert set(untouched.flatten().tolist()) <= {-100, *GRID.encode(SPLITS.train[0])}


def test_what_fills_up_short_pieces_does_not_count():
    model, ids = make(), torch.tensor(GRID.encode(SPLITS.test[0][:3]))
    filled = torch.nn.functional.pad(ids, (0, 6), value=-100)
    (short, tokens), (long, counted) = window_loss(model, ids[None]), window_loss(model, filled[None])
    assert tokens == counted == len(ids) - 1
    assert_close(short, long)


def test_a_chain_by_hand():
    """Two voices. Witten and Bell: (count + kinds · shorter) / (all + kinds)."""
    heard = [[0, 0, 4, 5, 4, 6, 1], [0, 0, 4, 5, 5, 5, 1]]
    frequency = (3 + 3 / 7) / (6 + 3)  # of 4 among the first voice's 4, 4, 1, 4, 5, 1
    after_five = (1 + 3 * frequency) / (3 + 3)  # where 4, 5 and 1 came once each
    place = [0, 0, 4, 5, 4]
    assert Markov(heard, -1, 2, 7).probability(place, 4) == 1 / 7
    assert Markov(heard, 0, 2, 7).probability(place, 4) == pytest.approx(frequency)
    assert Markov(heard, 1, 2, 7).probability(place, 4) == pytest.approx(after_five)
    assert Markov(heard, 1, 2, 7).probability([0, 0, 4, 3, 4], 4) == pytest.approx(frequency)  # a 3 was never heard


@pytest.mark.parametrize("order", [-1, 0, 1, 3])
def test_a_chain_is_a_distribution(order):
    chain = Markov([GRID.encode(piece) for piece in SPLITS.train[:6]], order, 4, 50)
    ids = GRID.encode(SPLITS.test[0][:3])
    for place in range(4, len(ids)):
        assert sum(chain.probability([*ids[:place], token], place) for token in range(50)) == pytest.approx(1)
    assert len(chain.token_losses(ids)) == len(ids) - 4


def test_presets_and_rivals():
    assert [round(sum(p.numel() for p in make_model(preset).parameters()) / 1e6, 1) for preset in PRESETS.values()] == [
        0.7,
        5.5,
    ]
    assert make_model(PRESETS["tiny"], "sinusoidal").position is not None
    with pytest.raises(ValueError, match="positions='none of them' is unknown; choose one of none, learned"):
        Music(positions="none of them").check()
    with pytest.raises(ValueError, match="no pieces to train on"):
        piece_batches([], 32, 4)


@pytest.mark.slow
def test_the_shipped_model_costs_what_its_result_says():
    """Its weights are in half precision; the result was measured before."""
    model, result = (
        load_pretrained(shipped("bach"), "float32"),
        json.loads((shipped("bach") / "result.json").read_text()),
    )
    measured = loss_of(lambda ids: token_losses(model, ids), SPLITS.test)
    assert measured.per_note == pytest.approx(result["nats_per_note"]["Music Transformer"], abs=0.01)
    assert measured.per_token == pytest.approx(result["nats_per_token"]["Music Transformer"], abs=0.003)
    assert sum(each.numel() for each in model.parameters()) == result["parameters"]
