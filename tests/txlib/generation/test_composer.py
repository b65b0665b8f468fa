"""Music written on: what is given stays, no voice leaves its range, nothing is held that did not begin."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from oracles import shake

from txlib.data import chorales
from txlib.generation import Composer, GenerationConfig, generate
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig, MusicConfig, MusicTransformer
from txlib.models.pretrained import save_pretrained
from txlib.music import RANGES, REST, GridTokenizer, Piece, read_midi
from txlib.music.grid import BEGIN, END, HOLD, REST_TOKEN

GRID = GridTokenizer()
CONFIG = MusicConfig(len(GRID), BlockConfig.of_sizes(16, 2, 24, position="skewed"), layers=1, max_length=64)
CHORALE = chorales().validation[0]
DRAW = GenerationConfig(do_sample=True, temperature=1.5)


def make(config=CONFIG):
    torch.manual_seed(0)
    return shake(MusicTransformer(config), 0.5).eval()


def tokens(piece):
    return GRID.encode(piece, special_tokens=False)


def assert_singable(piece):
    for voice, (low, high) in enumerate(RANGES):
        notes = piece.pitch[:, voice]
        assert ((notes == REST) | (notes >= low) & (notes <= high)).all()


@pytest.mark.parametrize("steps", [1, 9])  # a context holds 16 steps
def test_it_goes_on(steps):
    primer = CHORALE[:10]
    piece = Composer(make()).continue_(primer, steps, config=DRAW, seed=1)
    assert len(piece) == 10 + steps
    assert tokens(piece)[:40] == tokens(primer)
    assert_singable(piece)
    assert GRID.decode(tokens(piece)).pitch.equal(piece.pitch)
    again = [Composer(make()).continue_(primer, steps, config=DRAW, seed=seed) for seed in (1, 2)]
    assert tokens(again[0]) == tokens(piece) != tokens(again[1])


def test_without_limits_it_is_the_machinery_of_texts():
    """Greedy, within one context: as `generate` writes, when that may choose among the same tokens."""
    model, primer = make(), CHORALE[:4]
    prompt = [BEGIN] * 4 + tokens(primer)

    def allow(written):
        text = prompt + written[0]
        allowed = GRID.singable()[len(text) % 4]
        if text[-4] in (BEGIN, REST_TOKEN):
            allowed[HOLD] = False
        return allowed[None]

    (new,) = generate(model, [prompt], max_new_tokens=24, allow=allow)
    assert tokens(Composer(model).continue_(primer, 6)) == tokens(primer) + new


def test_longer_than_the_context_whole_steps_are_forgotten():
    """Each token is the likeliest one after the window that is left, in which voices still take their turns."""
    model, primer = make(), CHORALE[:14]
    composer, ids = Composer(model), [BEGIN] * 4 + tokens(primer)
    piece = composer.continue_(primer, 10)
    kept = ids
    while len(ids) < 4 + 24 * 4:
        if len(kept) == 64:
            kept = kept[-32:]
        logits = model(torch.tensor([kept])).logits[0, -1]
        token = int(logits.masked_fill(~composer.allowed(ids, None, False), -torch.inf).argmax())
        ids, kept = [*ids, token], [*kept, token]
    assert tokens(piece) == ids[4:]


@pytest.mark.slow
def test_it_may_end():
    model = make()
    with torch.no_grad():
        model.embedding.weight[END] *= 30
    lengths = [len(Composer(model).continue_(None, 30, config=DRAW, seed=seed, may_end=True)) for seed in range(8)]
    assert min(lengths) < 30 and min(lengths) >= 1
    assert len(Composer(model).continue_(None, 30, config=DRAW, seed=0)) == 30


@pytest.mark.parametrize("given", [(3,), (1, 2)])
def test_given_voices_stay(given):
    melody = CHORALE[:18]  # longer than a context
    piece = Composer(make()).harmonise(melody, fixed_voices=given, config=DRAW, seed=0)
    assert len(piece) == 18
    assert_singable(piece)
    for voice in range(4):
        same = piece.pitch[:, voice].equal(melody.pitch[:, voice]) and piece.onset[:, voice].equal(
            melody.onset[:, voice]
        )
        assert same == (voice in given)


def test_a_melody_alone_is_a_soprano():
    soprano = Piece(CHORALE.pitch[:6, :1], CHORALE.onset[:6, :1])
    piece = Composer(make()).harmonise(soprano, config=DRAW, seed=0)
    assert tokens(piece) == tokens(Composer(make()).harmonise(CHORALE[:6], config=DRAW, seed=0))


def test_nothing_is_held_that_did_not_begin():
    model = make()
    with torch.no_grad():
        model.embedding.weight[HOLD] *= 10
    for seed in range(2):
        steps = torch.tensor(tokens(Composer(model).continue_(None, 10, config=DRAW, seed=seed))).view(-1, 4).tolist()
        assert HOLD not in steps[0]
        for one, two in pairwise(steps):
            assert all(before != REST_TOKEN for before, now in zip(one, two, strict=True) if now == HOLD)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda music: music.continue_(CHORALE[:0], 4), "the primer is empty"),
        (lambda music: music.continue_(None, 0), "steps=0 must be at least 1"),
        (lambda music: music.continue_(CHORALE[:4].transposed(40), 4), "outside .* transpose the piece"),
        (lambda music: music.harmonise(CHORALE[:0]), "the melody is empty"),
        (
            lambda music: music.harmonise(CHORALE[:4], fixed_voices=(4,)),
            r"fixed_voices=\(4,\) must name voices from 0 to 3",
        ),
        (lambda music: music.harmonise(CHORALE[:4], fixed_voices=()), "at least one"),
        (lambda _: Composer(make(replace(CONFIG, vocab_size=11))), "voices=4 and vocab_size=11, and the grid 4 and 50"),
        (lambda _: Composer(GPT(GPTConfig(50, CONFIG.block))), "voices=None"),
    ],
)
def test_what_cannot_be_composed(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(Composer(make()))


def test_a_text_with_nothing_allowed():
    with pytest.raises(ValueError, match="allow leaves text 1 no token to go on with, after 0 new ones"):
        generate(make(), [[5], [6]], allow=lambda written: torch.tensor([[True], [False]]).expand(2, len(GRID)))


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_pretrained(make(), folder)
    return folder


def test_the_command_writes_midi_and_sound(txlib, folder, tmp_path):
    pytest.importorskip("mido")
    out, options = tmp_path / "out.mid", ("--model", folder, "--seed", 3)
    status, said, _ = txlib("compose", out, *options, "--primer", CHORALE.name, "--primer-beats", 4, "--beats", 3)
    piece = read_midi(out)
    assert status == 0 and said.startswith(f"{out}: ") and "quarters, " in said
    assert tokens(piece[:16]) == tokens(CHORALE[:16]) and 16 < len(piece) <= 28
    again = tmp_path / "again.mid"
    status, _, _ = txlib("compose", again, *options, "--primer", out, "--primer-beats", 2, "--beats", 1)
    assert status == 0 and tokens(read_midi(again)[:8]) == tokens(CHORALE[:8])
    status, said, _ = txlib("compose", tmp_path / "out.wav", *options, "--melody", out)
    assert status == 0 and f"{len(piece) / 4:g} quarters" in said
    assert (tmp_path / "out.wav").read_bytes()[:4] == b"RIFF"


@pytest.mark.parametrize(
    "options, message",
    [
        (("out.mp3",), "out.mp3 must end in .mid or .wav"),
        (("out.mid", "--primer", "bwv269", "--melody", "bwv269"), "--primer and --melody can't both"),
        (("out.mid", "--beats", 0), "--beats 0 must be at least 1"),
        (("out.mid", "--primer", "bwv9999"), "'bwv9999' is none of the 365 chorales"),
        (("out.mid", "--primer", "nowhere.mid"), "nowhere.mid is not there"),
        (("out.mid", "--temperature", -1), "temperature=-1.0 must be above 0"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(txlib, folder, tmp_path, monkeypatch, options, message):
    pytest.importorskip("mido")
    monkeypatch.chdir(tmp_path)
    status, _, said = txlib("compose", *options, "--model", folder)
    assert status == 2 and message in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
