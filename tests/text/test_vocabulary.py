"""The subword vocabulary: nothing lost, nothing random, nothing half-written."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from txlib.data import translation  # noqa: E402
from txlib.text import Vocabulary  # noqa: E402

TRAIN, _, TEST = translation("wesnoth", max_words=12)
SENTENCES = [sentence for pair in TRAIN[:3000] for sentence in pair]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(SENTENCES, 2000)


@pytest.mark.parametrize(
    "text",
    [
        "Ein Hund rennt über den Schnee.",
        "„Straße“, sagte er … ‚ja‘!",
        "« L’œuvre est là », dit‑elle ; n'est-ce pas ?",
        "naïve façade, e\u0301 combining, 日本語, 🙂, Ω",
        " two  spaces, a\ttab\nand a line ",
        "<pad> <bos> <eos> <unk>",
        "",
        " ",
    ],
)
def test_round_trip(vocabulary, text):
    assert vocabulary.decode(vocabulary.encode(text)) == text


@given(st.text())
def test_round_trip_of_anything(vocabulary, text):
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_round_trip_of_unseen_sentences(vocabulary):
    texts = [sentence for pair in TEST for sentence in pair]
    encoded = vocabulary.encode_batch(texts)
    assert [vocabulary.decode(ids) for ids in encoded] == texts
    assert encoded[:20] == [vocabulary.encode(text) for text in texts[:20]]


def test_special_tokens(vocabulary):
    assert (vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2, 3)
    assert [vocabulary.token(token) for token in range(4)] == ["<pad>", "<bos>", "<eos>", "<unk>"]
    ids = vocabulary.encode("Go away <eos> now!")
    assert min(ids) > 3  # what a user types is never a mark
    assert vocabulary.decode([1, *ids[:2], 0, *ids[2:], 2, 0, 0]) == "Go away <eos> now!"


def test_size_and_ids(vocabulary):
    assert len(vocabulary) == 2000
    assert max(token for ids in vocabulary.encode_batch(SENTENCES) for token in ids) < 2000
    assert len(Vocabulary.train(["ab ab ab"], 5000)) < 300  # no more merges than the text has


def test_merges_shorten_and_share_words(vocabulary):
    text = "What is the king doing?"
    assert len(vocabulary.encode(text)) < len(text) / 2
    assert vocabulary.encode("king")[0] == vocabulary.encode("the king")[-1]  # at the start and inside: one token
    assert vocabulary.token(vocabulary.encode("king")[0]).startswith("▁")


def test_same_sentences_same_vocabulary_in_another_process(vocabulary):
    script = (
        "from txlib.data import translation; from txlib.text import Vocabulary\n"
        "pairs = translation('wesnoth', max_words=12).train[:3000]\n"
        "print(Vocabulary.train([s for pair in pairs for s in pair], 2000).tokenizer.to_str())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == vocabulary.tokenizer.to_str()
    assert run.stderr == ""


def test_training_is_silent(capfd):
    Vocabulary.train(SENTENCES[:500], 400)
    assert capfd.readouterr() == ("", "")


def test_save_and_load(vocabulary, tmp_path):
    path = tmp_path / "model" / "vocabulary.json"
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    texts = [SENTENCES[3], "<pad> „neu“"]
    assert loaded.encode_batch(texts) == vocabulary.encode_batch(texts) and len(loaded) == len(vocabulary)
    assert os.listdir(path.parent) == ["vocabulary.json"]


def test_failed_save_leaves_the_old_file_and_nothing_else(vocabulary, tmp_path, monkeypatch):
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        vocabulary.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["vocabulary.json"]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no vocabulary at {tmp_path}/v.json; train one"):
        Vocabulary.load(tmp_path / "v.json")


@pytest.mark.parametrize("content", ["", '{"version": "1.0", "trunc', "{}", "not JSON", b"\xff\xfe"])
def test_corrupt_file(tmp_path, content):
    path = tmp_path / "v.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="is not a vocabulary .*; restore it or train it again") as error:
        Vocabulary.load(path)
    assert "\n" not in str(error.value)


def test_foreign_tokenizer_file(tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).save(str(tmp_path / "v.json"))
    with pytest.raises(ValueError, match="tokens 0 to 3 must be <pad> <bos> <eos> <unk>"):
        Vocabulary.load(tmp_path / "v.json")


@pytest.mark.parametrize(
    ("sentences", "size", "message"),
    [
        ([], 300, "from 0 sentences without text"),
        (["", ""], 300, "from 2 sentences without text"),
        (["Go!"], 100, "size=100 is too small: 256 bytes and 4 marks need 260"),
    ],
)
def test_impossible_training(sentences, size, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.train(sentences, size)


def test_unknown_id(vocabulary):
    with pytest.raises(ValueError, match="token 2000 is not in this vocabulary of 2000"):
        vocabulary.decode([5, 2000])
