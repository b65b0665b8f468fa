import pytest

from txlib import plots
from txlib.music import REST, Piece

DUET = Piece.of([[(67, 4), (67, 2), (REST, 2)], [(60, 8)]])


def test_piano_roll_draws_each_note_where_it_sounds():
    axes = plots.piano_roll(DUET, title="a duet", alt="two voices").axes[0]
    drawn = [(bar.get_x(), bar.get_y() + bar.get_height() / 2, round(bar.get_width())) for bar in axes.patches]
    assert drawn == [(0, pytest.approx(67), 4), (4, pytest.approx(67), 2), (0, pytest.approx(60), 8)]
    assert [text.get_text() for text in axes.texts] == ["voice 0", "voice 1"]


def test_piano_roll_marks_a_step():
    axes = plots.piano_roll(DUET, title="", alt="", mark=("here", 4)).axes[0]
    assert axes.texts[-1].get_text() == "here"
    assert axes.lines[-1].get_xdata()[0] == 4
