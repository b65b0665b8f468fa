"""The plays: whole, plain, and split as their loader says."""

import os
from pathlib import Path

import pytest

from txlib.data import plays, shakespeare, speeches
from txlib.data.shakespeare import PLAYS, TEST, VALIDATION

needs_tiny = pytest.mark.skipif(
    not (Path(os.environ.get("TXLIB_DATA", "nowhere")) / "tinyshakespeare").is_dir(),
    reason="TXLIB_DATA has no tinyshakespeare",
)


def test_every_play_is_in_one_split():
    train, validation, test = shakespeare()
    text = plays()
    assert list(text) == sorted(PLAYS) and len(text) == 14
    assert validation == text[VALIDATION] and test == text[TEST]
    assert train == "\n".join(text[play] for play in PLAYS if play not in (VALIDATION, TEST))
    assert len(train + validation + test) == 1_763_540 + 11  # and the empty lines between plays


@pytest.mark.parametrize("play", PLAYS)
def test_plays_are_plain_speeches(play):
    text = plays()[play]
    assert text.isascii() and not set(text) & set("[]_*#\\0123456789\t\r")
    said = speeches(text)
    assert "\n".join(f"{speaker}:\n{words}\n" for speaker, words in said) == text
    assert all(speech.speaker.isupper() and speech.text.strip() == speech.text for speech in said)
    assert len(said) > 400


def test_known_lines():
    assert speeches(plays()["hamlet"])[:2] == [
        ("BERNARDO", "Who's there?"),
        ("FRANCISCO", "Nay, answer me: stand, and unfold yourself."),
    ]
    assert "HAMLET:\nTo be, or not to be: that is the question:\n" in plays()["hamlet"]


@needs_tiny
def test_tiny_shakespeare_is_split_by_position():
    train, validation, test = shakespeare("tinyshakespeare")
    assert (len(train), len(validation), test) == (1_003_854, 111_540, "")
    assert train.startswith("First Citizen:\nBefore we proceed")


def test_a_folder_of_ones_own(tmp_path):
    (tmp_path / "input.txt").write_bytes(b"0123456789\r\n" * 10)
    assert shakespeare("tinyshakespeare", tmp_path).validation == "0123456789\n"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FileNotFoundError, "input.txt is not in"),
        (b"", ValueError, "input.txt is empty"),
        (b"\xff", ValueError, "input.txt is no UTF-8 text"),
    ],
)
def test_broken_files(content, error, message, tmp_path):
    if content is not None:
        (tmp_path / "input.txt").write_bytes(content)
    with pytest.raises(error, match=message):
        shakespeare("tinyshakespeare", tmp_path)


def test_unknown_source():
    with pytest.raises(ValueError, match="unknown source 'marlowe'; choose shakespeare or tinyshakespeare"):
        shakespeare("marlowe")
