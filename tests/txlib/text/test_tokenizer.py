"""Tokenizers: learned ones lose nothing and are never random or half-written; those of checkpoints are as they say."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from txlib.data import translation  # noqa: E402
from txlib.text import BytePairEncoder, Tokenizer, byte_tokenizer, load_tokenizer  # noqa: E402

TRAIN, _, TEST = translation("wesnoth", max_words=12)
SENTENCES = [sentence for pair in TRAIN[:3000] for sentence in pair]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, 2000)


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
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special_tokens=False)) == text


@given(st.text())
def test_round_trip_of_anything(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special_tokens=False)) == text


def test_round_trip_of_unseen_sentences(tokenizer):
    texts = [sentence for pair in TEST for sentence in pair]
    encoded = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    assert encoded[:20] == [tokenizer.encode(text) for text in texts[:20]]


def test_special_tokens(tokenizer):
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert [tokenizer.token(token) for token in range(4)] == ["<pad>", "<bos>", "<eos>", "<unk>"]
    ids = tokenizer.encode("Go away <eos> now!", special_tokens=False)
    assert min(ids) > 3  # what a user types is no mark
    assert ids == tokenizer.encode_batch(["Go away <eos> now!"], special_tokens=False)[0]
    assert tokenizer.encode("Go away <eos> now!").count(tokenizer.eos_id) == 1
    assert tokenizer.decode([1, *ids[:2], 0, *ids[2:], 2, 0, 0]) == "Go away <eos> now!"


def test_size_and_ids(tokenizer):
    assert len(tokenizer) == 2000
    assert max(token for ids in tokenizer.encode_batch(SENTENCES) for token in ids) < 2000
    assert len(Tokenizer.train(["ab ab ab"], 5000)) < 300  # no more merges than the text has


def test_merges_shorten_and_share_words(tokenizer):
    text = "What is the king doing?"
    assert len(tokenizer.encode(text)) < len(text) / 2
    assert tokenizer.encode("king")[0] == tokenizer.encode("the king")[-1]  # at the start and inside: one token
    assert tokenizer.token(tokenizer.encode("king")[0]).startswith("▁")


@pytest.mark.slow
def test_same_sentences_same_tokenizer_in_another_process(tokenizer):
    script = (
        "from txlib.data import translation; from txlib.text import BytePairEncoder, Tokenizer, load_tokenizer\n"
        "pairs = translation('wesnoth', max_words=12).train[:3000]\n"
        "print(Tokenizer.train([s for pair in pairs for s in pair], 2000).tokenizer.to_str())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == tokenizer.tokenizer.to_str()
    assert run.stderr == ""


def test_training_is_silent(capfd):
    Tokenizer.train(SENTENCES[:500], 400)
    assert capfd.readouterr() == ("", "")


def test_save_and_load(tokenizer, tmp_path):
    path = tmp_path / "model" / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    texts = [SENTENCES[3], "<pad> „neu“"]
    assert loaded.encode_batch(texts) == tokenizer.encode_batch(texts) and len(loaded) == len(tokenizer)
    assert os.listdir(path.parent) == ["tokenizer.json"]


def test_failed_save_leaves_the_old_file_and_nothing_else(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        tokenizer.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["tokenizer.json"]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no tokenizer at {tmp_path}/v.json; give"):
        Tokenizer.load(tmp_path / "v.json")


@pytest.mark.parametrize("content", ["", '{"version": "1.0", "trunc', "{}", "not JSON", b"\xff\xfe"])
def test_corrupt_file(tmp_path, content):
    path = tmp_path / "v.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="is damaged .*; copy it again") as error:
        Tokenizer.load(path)
    assert "\n" not in str(error.value)


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
        Tokenizer.train(sentences, size)


def test_unknown_id(tokenizer):
    with pytest.raises(ValueError, match="token 2000 is not in this vocabulary of 2000"):
        tokenizer.decode([5, 2000])


# Those that come with checkpoints, and encoders of lesson 01


def test_texts_keep_their_lengths_whatever_the_file_says(tmp_path):
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers

    tokenizer = Fast(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(max_length=2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("a b a") == [1, 2, 1]
    assert load_tokenizer(tmp_path).encode("b") == [2]


def test_a_damaged_file_and_a_missing_one_are_named(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is damaged"):
        load_tokenizer(tmp_path)


TEXTS = ["To be, or not to be", "Ä—漢字 🐕 naïve\n\n  x", "<s>who</s> is <s> it"]


def test_an_encoder_of_lesson_01_gives_the_same_ids():
    encoder = BytePairEncoder.train(["to be or not to be, that is the question"] * 3, 290, ["<s>", "</s>"])
    same = Tokenizer.of(encoder)
    assert len(same) == len(encoder) and same.special_tokens == encoder.special_tokens
    for text in TEXTS:
        for special in (True, False):
            assert same.encode(text, special_tokens=special) == encoder.encode(text, special_tokens=special)
        assert same.decode(same.encode(text, special_tokens=False)) == text
        ids = encoder.encode(text, special_tokens=False)
        assert b"".join(map(same.token_bytes, ids)) == text.encode()
        assert [same.token(each) for each in ids] == [encoder.token(each) for each in ids]


def test_bytes_have_the_ids_of_transformers(tmp_path):
    theirs = pytest.importorskip("transformers").PerceiverTokenizer()
    ours = byte_tokenizer()
    assert len(ours) == 262 and ours.special_tokens == {
        mark: number for mark, number in theirs.get_added_vocab().items()
    }
    for text in ("To be, or not: größer, 日本, \t\n🙂", "", "[MASK] is a mark"):
        assert ours.encode(text) == theirs(text).input_ids
        assert ours.decode(ours.encode(text, special_tokens=False)) == text
    assert ours.encode("[MASK]", special_tokens=False) == [byte + 6 for byte in b"[MASK]"]
    ours.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path).encode("größer") == theirs("größer").input_ids
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "perceiver"}')
    assert load_tokenizer(tmp_path).encode("größer") == theirs("größer").input_ids


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<s>", "</s>", *BYTES, *"▁lowerst", "▁l", "▁lo", "▁low"]


@pytest.mark.parametrize("kind", ["Qwen2", "GPTNeoX", "Gemma", "Llama"])
def test_tokenizers_of_todays_decoders_are_read(kind, tmp_path):
    """Pieces of bytes, as in Qwen, OLMo, SmolLM3, Granite, gpt-oss; and pieces after ▁, as in Gemma, Mistral, Phi."""
    if kind in ("Qwen2", "GPTNeoX"):
        learned = BytePairEncoder.train(["low lower lowest it's 12"] * 9, 270).to_dict()["model"]
        vocab, merges = learned["vocab"], [tuple(merge.split(" ")) for merge in learned["merges"]]
    else:
        vocab, merges = {piece: i for i, piece in enumerate(PIECES)}, [("▁", "l"), ("▁l", "o"), ("▁lo", "w")]
    theirs = getattr(pytest.importorskip("transformers"), f"{kind}Tokenizer")(vocab=vocab, merges=merges)
    theirs.save_pretrained(tmp_path)
    text = "lowest low, größer 12 日本 🙂\n  it's"
    ids = load_tokenizer(tmp_path).encode(text)
    assert ids == theirs(text).input_ids
    assert load_tokenizer(tmp_path).decode(ids) == text


def test_gpt2s_two_files_are_read(tmp_path):
    """From a merge list of our own in GPT-2's format."""
    encoder = BytePairEncoder.train(["low lower lowest"] * 9, 262)
    letters = encoder.to_dict()["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(letters["vocab"]), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *letters["merges"]]), encoding="utf-8")
    found = load_tokenizer(tmp_path)
    assert type(found) is Tokenizer and found.encode("lowest low") == encoder.encode("lowest low")


def test_a_mark_that_is_missing_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"the tokenizer has no \[CLS\]; is it another model's\?"):
        tokenizer.mark("[CLS]")


def test_a_wordpiece_token_reads_as_it_is(tmp_path):
    from tokenizers import Tokenizer as Fast
    from tokenizers import models

    found = Tokenizer(Fast(models.WordPiece({"[UNK]": 0, "caf": 1, "##é": 2}, unk_token="[UNK]")))
    assert [found.token(each) for each in found.encode("café")] == ["caf", "##é"]
