"""Pieces and their tokens: by hand, there and back over all chorales, and what cannot be written down."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txlib.data import chorales
from txlib.music import REST, GridTokenizer, Piece, pitch_name

SPLITS = chorales()
ALL = [piece for split in SPLITS for piece in split]
GRID = GridTokenizer()
SHORT = Piece.of(
    [
        [(67, 2), (67, 1), (REST, 1)],  # struck twice, then silent
        [(62, 3), (60, 1)],
        [(REST, 2), (59, 2)],
        [(43, 4)],
    ]
)


def same(one: Piece, other: Piece) -> bool:
    return torch.equal(one.pitch, other.pitch) and torch.equal(one.onset, other.onset)


def test_a_grid_by_hand():
    words = [GRID.token(token) for token in GRID.encode(SHORT)]
    assert words == [
        *["<begin>"] * 4,
        *["G4", "D4", "rest", "G2"],
        *["hold", "hold", "rest", "hold"],
        *["G4", "hold", "B3", "hold"],
        *["rest", "C4", "hold", "hold"],
        "<end>",
    ]


@pytest.mark.slow
def test_there_and_back_over_all_chorales():
    assert len(ALL) == 365
    for piece in ALL:
        assert same(GRID.decode(GRID.encode(piece)), piece)
        assert same(GRID.decode(GRID.encode(piece, special_tokens=False)), piece)


voice = st.lists(st.tuples(st.sampled_from([REST, 60, 61, 64]), st.integers(1, 3)), min_size=1, max_size=5)


@given(st.lists(voice, min_size=4, max_size=4))
def test_there_and_back_for_any_notes(voices):
    longest = max(sum(length for _, length in each) for each in voices)
    voices = [each + [(REST, longest + 1 - sum(length for _, length in each))] for each in voices]
    piece = Piece.of(voices)
    assert same(GridTokenizer([(60, 64)] * 4).decode(GridTokenizer([(60, 64)] * 4).encode(piece)), piece)
    for number, notes in enumerate(voices):
        first, expected = 0, []
        for pitch, length in notes:
            expected += [(first, length, pitch)] if pitch != REST else []
            first += length
        assert piece.notes(number) == expected


def test_each_voice_has_notes_of_its_own_range():
    allowed = GRID.singable()
    for number, (low, high) in enumerate(GRID.ranges):
        names = {GRID.token(token) for token in allowed[number].nonzero()[:, 0].tolist()}
        assert names == {"rest", "hold", *(pitch_name(pitch) for pitch in range(low, high + 1))}


def test_ranges_are_those_of_the_chorales():
    for number, (low, high) in enumerate(GRID.ranges):
        sung = torch.cat([piece.pitch[:, number] for piece in ALL])
        assert (int(sung[sung != REST].min()), int(sung.max())) == (low, high)


def test_no_held_out_tune_was_heard():
    tunes = [{piece.tune for piece in split} for split in SPLITS]
    assert not tunes[0] & tunes[1] and not tunes[0] & tunes[2] and not tunes[1] & tunes[2]
    assert all(len(split) > 30 for split in SPLITS)
    bwv = {piece.name: piece for piece in ALL}
    assert (
        bwv["bwv244.54"].tune == bwv["bwv248.5"].tune
    )  # "O Haupt voll Blut und Wunden", "Wie soll ich dich empfangen"


def test_a_chorale_as_printed():
    """BWV 269, Riemenschneider's number 1: "Aus meines Herzens Grunde", in G, three quarters to a bar after an upbeat.

    Its beginning stands in every edition: G G D B | A G, over G G F sharp …
    """
    piece = next(piece for piece in ALL if piece.name == "bwv269")
    assert piece.bars[:3] == (4, 12, 12)
    assert [pitch_name(pitch) for _, _, pitch in piece.notes(0)[:6]] == ["G4", "G4", "D5", "B4", "A4", "G4"]
    assert piece.notes(0)[0] == (0, 4, 67)


def test_transposition():
    piece = ALL[0]
    moves = piece.transpositions()
    assert 0 in moves
    for move in range(min(moves) - 2, max(moves) + 3):
        moved = piece.transposed(move)
        assert torch.equal(moved.onset, piece.onset) and torch.equal(moved.pitch == REST, piece.pitch == REST)
        if move in moves:
            assert same(GRID.decode(GRID.encode(moved)).transposed(-move), piece)
        else:
            with pytest.raises(ValueError, match="transpose the piece"):
                GRID.encode(moved)


def test_a_cut_begins_its_notes():
    cut = SHORT[1:3]
    assert cut.pitch.tolist() == [[67, 62, REST, 43], [67, 62, 59, 43]]
    assert cut.onset.tolist() == [[True, True, False, True], [True, False, True, False]]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: GRID.encode(Piece.of([[(67, 1)]] * 3)), "the piece has 3 voices, this grid 4"),
        (
            lambda: GRID.encode(Piece.of([[(67, 1)]] * 4)),
            r"step 0: bass sings G4 \(67\), outside C2 to E4 \(36 to 64\)",
        ),
        (lambda: Piece.of([[(67, 2)], [(60, 1)]]), "the voices have 2, 1 steps"),
        (lambda: Piece.of([[(67, 0)]]), "no place on the grid"),
        (lambda: Piece(torch.tensor([[60], [62]]), torch.tensor([[True], [False]])), "step 1, voice 0: a note goes on"),
        (lambda: Piece(torch.tensor([[REST]]), torch.tensor([[True]])), "a rest has an onset"),
        (lambda: Piece.of([[(60, 3)]], bars=(4,)), "the bars have 4 steps, the piece 3"),
        (lambda: GRID.decode([5, 6, 7]), "3 tokens are no whole steps of 4 voices; cut off the last 3"),
        (lambda: GRID.decode([5, 6, 7, 50]), "token 50 is not in this vocabulary of 50"),
        (lambda: GridTokenizer([(60, 50)]), "must be pairs of MIDI pitches"),
    ],
)
def test_what_cannot_be_written_down(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_damaged_and_missing_files(tmp_path):
    import gzip

    with pytest.raises(FileNotFoundError, match="chorales.tsv.gz is not in"):
        chorales(tmp_path)
    for line, message in (("bwv1\tbwv1\t4*1\t60*4\t60*4\t60*4\t60*3", "line 1: the voices"), ("bwv1", "7 columns")):
        (tmp_path / "chorales.tsv.gz").write_bytes(gzip.compress((line + "\n").encode()))
        with pytest.raises(ValueError, match=message):
            chorales(tmp_path)
