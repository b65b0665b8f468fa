"""The tour of lesson 00: its check is recorded from its source, its translator looks back, its leak shows."""

import math

import pytest
import torch

from txcourse import tour
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.release import make_recordings
from txgrade.evidence.recordings import pack, unpack


@pytest.mark.slow
def test_the_check_has_the_recordings_of_its_source():
    recordings, warnings = make_recordings(read_exercise(tour.FIRST_CHECK))
    packed = tour.RECORDINGS.read_text(encoding="utf-8")
    assert unpack(packed) == unpack(pack(recordings)), "run `python -m txcourse.tour` and commit"
    assert warnings == []


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (lambda query, key: key >= query, "Turn the comparison around."),
        (lambda query, key: key < query, "use `<=`"),
        (lambda query, key: key <= query, ""),
    ],
)
def test_the_check_names_the_wrong_sign(rule, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TXGRADE_HOME", str(tmp_path))
    tour.check.load(tour.RECORDINGS.read_text(encoding="utf-8"))  # other tests load other recordings
    with tour.check("first-mask") as show:
        for length in (1, 4, show.random_size(6, 9)):
            show(rule(torch.arange(length)[:, None], torch.arange(length)), f"{length} words")
    verdict = capsys.readouterr().out
    assert sentence in verdict
    assert verdict.startswith("✗" if sentence else "✓")


def test_the_translator_looks_at_the_word_that_it_translates(capsys):
    picture = tour.translate("Die Orks haben die Menschen angegriffen!")
    assert capsys.readouterr().out.splitlines()[1] == "The orcs have attacked the humans!"
    assert "orcs at Orks" in picture.alt and "humans at Menschen" in picture.alt


def test_a_mask_is_drawn_with_its_words():
    picture = tour.show_mask(torch.ones(3, 3).tril().bool(), "one two three")
    assert picture.alt.endswith("one: 1 of 3; two: 2 of 3; three: 3 of 3.")


@pytest.mark.slow
def test_a_leak_is_good_in_training_only():
    right, leaky = (tour.train_reader(ahead, steps=100) for ahead in (0, 1))
    assert leaky.training_loss < 1 < right.training_loss
    assert right.writing_loss < 2.6 < math.log(len(leaky.alphabet)) < leaky.writing_loss
    assert leaky.write("To be", 10).startswith("To be") and len(leaky.write("To be", 10)) == 15
