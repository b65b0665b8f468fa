"""Byte-pair encoding: against the definition worked out slowly, published ids, and Hugging Face's tokenizers."""

import copy
import json
import pickle
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

regex = pytest.importorskip("regex")
tokenizers = pytest.importorskip("tokenizers")

from txlib.data import translation  # noqa: E402
from txlib.text import BytePairEncoder  # noqa: E402
from txlib.text import bpe as MODULE  # noqa: E402
from txlib.text.merges import GPT2_PATTERN, merge, train_merges  # noqa: E402

GPT2 = Path(__file__).parents[3] / "data" / "gpt2-bpe"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEXTS = [sentence for pair in translation("wesnoth").train[:400] for sentence in pair]
MARKS = ("<|end|>", "<|end|><|end|>", "<|", "the king")

# Letters that meet every branch of the pattern, and marks that overlap.
WORDS = st.text(st.sampled_from("aelst'dvr 19½Éß一🙂\u0301\u00a0\u2003\u0085\x1c\n\r\t!…<|>"), max_size=12)
TEXT = st.lists(st.one_of(WORDS, st.sampled_from([*MARKS, "  ", "'ll", "don't"])), max_size=12).map("".join)


@pytest.fixture(scope="module")
def encoder():
    return BytePairEncoder.train(TEXTS, 600, MARKS)


@pytest.fixture(scope="module")
def gpt2():
    return BytePairEncoder.from_gpt2(GPT2 / "encoder.json", GPT2 / "vocab.bpe")


def slow_merges(words: dict[bytes, int], count: int) -> list[tuple[bytes, bytes]]:
    """The definition: count all pairs, merge the first, count all pairs again."""
    split = {word: [bytes([byte]) for byte in word] for word in words}
    merges = []
    while len(merges) < count:
        counts = Counter()
        for word, tokens in split.items():
            for pair in pairwise(tokens):
                counts[pair] += words[word]
        if not counts:
            break
        merges.append(max(counts, key=lambda pair: (counts[pair], pair)))
        for tokens in split.values():
            slow_merge(tokens, merges[-1])
    return merges


def slow_merge(tokens: list[bytes], pair: tuple[bytes, bytes]) -> None:
    i = 0
    while i < len(tokens) - 1:
        if (tokens[i], tokens[i + 1]) == pair:
            tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
        i += 1


def slow_encode(encoder: BytePairEncoder, text: str) -> list[int]:
    """Every merge in the order learned, on every piece."""
    ids = []
    for piece in regex.findall(GPT2_PATTERN, text):
        tokens = [bytes([byte]) for byte in piece.encode()]
        for pair in encoder.merges:
            slow_merge(tokens, pair)
        ids += [encoder.tokens[token] for token in tokens]
    return ids


def theirs(path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(path))


# Training


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=9).map(str.encode), st.integers(1, 4), max_size=6),
    st.integers(0, 30),
)
@example({b"aaaaaaaa": 1}, 9)
def test_merges_are_those_of_the_definition(words, count):
    assert train_merges(words, count) == slow_merges(words, count)


@given(st.dictionaries(st.binary(min_size=1, max_size=6), st.integers(1, 3), max_size=8))
def test_merges_of_any_bytes(words):
    assert train_merges(words, 20) == slow_merges(words, 20)


def test_merges_of_real_text():
    words = Counter(piece.encode() for text in TEXTS[:200] for piece in regex.findall(GPT2_PATTERN, text))
    assert train_merges(words, 300) == slow_merges(words, 300)


def test_ties_go_to_the_greatest_pair_of_byte_strings():
    assert train_merges({b"ab": 1, b"cd": 1, b"ce": 1}, 3) == [(b"c", b"e"), (b"c", b"d"), (b"a", b"b")]
    # "ab" is smaller than "abc", and \xff greater than any letter
    assert train_merges({b"ab": 9, b"abc": 8, b"abz": 1, b"abcz": 1, b"\xffa": 1}, 5)[2:] == [
        (b"\xff", b"a"),
        (b"abc", b"z"),
        (b"ab", b"z"),
    ]


def test_vocabulary_of_a_training(encoder):
    assert len(encoder) == 600 and len(encoder.merges) == 600 - 256 - 4
    assert [encoder.decode_bytes([i]) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert encoder.special_tokens == dict(zip(MARKS, range(596, 600), strict=True))
    assert encoder.decode([256]) == "".join(part.decode() for part in encoder.merges[0])
    assert not any(b"the king" in token for token in encoder.tokens)  # special: left out of the training


def test_texts_are_read_one_by_one_and_not_joined():
    assert len(BytePairEncoder.train((text for text in ("a", "b")), 300)) == 256
    assert BytePairEncoder.train(["ab"], 300).merges == [(b"a", b"b")]
    assert BytePairEncoder.train(["a<x>b"], 300, ["<x>"]).merges == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", 300), "texts is one str"),
        ((["ab"], 256, ["<a>"]), "vocab_size=256 is too small: 256 bytes and 1 special tokens need 257"),
        (([], 300), "the texts are empty"),
        ((["ab"], 300, [""]), "cannot be empty"),
        ((["ab"], 300, ["a"]), "special token 'a' .* is also an ordinary token"),
    ],
)
def test_impossible_training(arguments, message, unchecked):
    with pytest.raises(ValueError, match=message):
        BytePairEncoder.train(*arguments)


# Encoding and decoding


@given(st.one_of(st.text(), TEXT))
def test_round_trip_of_any_text(encoder, text):
    assert encoder.decode(encoder.encode(text)) == text
    assert encoder.decode(encoder.encode(text, special_tokens=False)) == text


@given(st.one_of(st.binary(), TEXT.map(str.encode)))
def test_round_trip_of_any_bytes(encoder, data):
    assert encoder.decode_bytes(encoder.encode(data)) == data


@given(TEXT)
def test_bytes_and_text_give_the_same_ids(encoder, text):
    assert encoder.encode(text.encode()) == encoder.encode(text)


@given(TEXT)
def test_encoding_is_that_of_the_definition(encoder, text):
    assert encoder.encode(text, special_tokens=False) == slow_encode(encoder, text)


def test_encoding_of_real_text(encoder):
    text = "\n".join(TEXTS[:60])
    assert encoder.encode(text, special_tokens=False) == slow_encode(encoder, text)


@given(st.text("ab", max_size=40))
def test_merges_of_a_long_piece(piece):
    encoder = BytePairEncoder.train(["abab aab bbb aaaa abba bab"], 280)
    assert encoder.encode(piece) == slow_encode(encoder, piece)


def test_the_longer_special_token_counts(encoder):
    end, twice, bar, king = (encoder.special_tokens[mark] for mark in MARKS)
    assert encoder.encode("<|end|><|end|><|end|><|the king") == [twice, end, bar, king]
    assert min(encoder.encode("<|end|>", special_tokens=False)) < 596
    assert encoder.decode([twice, *encoder.encode("Go!"), end], skip_special_tokens=True) == "Go!"


STREAMED = {
    pattern: BytePairEncoder.train(TEXTS[:50], 300, MARKS, pattern=pattern) for pattern in (GPT2_PATTERN, LLAMA3)
}


@settings(max_examples=40)
@given(TEXT, st.lists(st.integers(0, 60)), st.integers(1, 40), st.booleans())
@pytest.mark.parametrize("pattern", STREAMED, ids=["GPT-2", "Llama 3"])
def test_a_stream_gives_the_same_ids_wherever_it_is_cut(pattern, text, cuts, block, special_tokens):
    encoder = STREAMED[pattern]
    cuts = [0, *sorted(cuts), len(text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "BLOCK", block)
        stream = encoder.encode_iterable((text[a:b] for a, b in pairwise(cuts)), special_tokens=special_tokens)
        assert list(stream) == encoder.encode(
            "".join(text[a:b] for a, b in pairwise(cuts)), special_tokens=special_tokens
        )


def test_a_stream_is_not_held(encoder):
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield "The king rides. " * 100

    stream = encoder.encode_iterable(endless())
    for _ in range(200_000):
        next(stream)
    assert read * 1600 < 1e6 + 2 * MODULE.BLOCK


def test_one_endless_word_takes_no_quadratic_time(encoder):
    word = "".join(random.Random(0).choices("abcdefgh", k=200_000))
    assert encoder.decode(list(encoder.encode_iterable(word[i : i + 100] for i in range(0, len(word), 100)))) == word


def test_lone_surrogates(encoder):
    assert encoder.encode("a\ud800b") == encoder.encode("a\ufffdb")
    assert list(encoder.encode_iterable(["a\ud83d", "\ude42b"])) == encoder.encode("a\ufffd\ufffdb")
    with pytest.raises(ValueError, match=r"character 1 of the text, U\+D800, is a lone surrogate"):
        encoder.encode("a\ud800b", errors="strict")
    assert BytePairEncoder.train(["a\ud800"], 300).merges == BytePairEncoder.train(["a\ufffd"], 300).merges


def test_one_text_at_a_time(unchecked):
    encoder = BytePairEncoder.train(["a b a b"], 258)
    for wrong in (["a"], 5, None):
        with pytest.raises(TypeError, match="encode takes one text, got .*for each in texts"):
            encoder.encode(wrong)


def test_half_a_character(encoder):
    ids = [b for b in "é🙂".encode()][:-1]
    assert encoder.decode(ids) == "é\ufffd"
    with pytest.raises(ValueError, match="byte 2 of the decoded text, 0xf0 0x9f 0x99, is not UTF-8"):
        encoder.decode(ids, errors="strict")
    with pytest.raises(ValueError, match="errors='ignore' is unknown; choose replace or strict"):
        encoder.decode([0xFF], errors="ignore")


def test_ids_from_a_tensor(encoder):
    import torch

    assert encoder.decode(torch.tensor(encoder.encode("the end"))) == "the end"


@pytest.mark.parametrize("wrong", [600, -1])
def test_unknown_id(encoder, wrong):
    with pytest.raises(ValueError, match=f"token {wrong} is not in this vocabulary of 600"):
        encoder.decode([5, wrong])


def test_a_byte_without_a_token():
    with pytest.raises(ValueError, match="byte 0xc3 .* has no token"):
        BytePairEncoder({b"a": 0}, []).encode("aé")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({b"a": 0, b"b": 0}, []), "id 0 stands for two tokens"),
        (({b"a": 0}, [], {"<x>": 0}), "special token '<x>' .id 0. is also an ordinary token"),
        (({b"a": 0}, [(b"a", b"a")]), "merge 0, b'a' . b'a', needs the token b'aa'"),
        (({b"a": 0}, [], {}, "(a"), "pattern '.a' is not a regular expression"),
        (({b"a": 0}, [], {}, "(a)"), "has groups that capture"),
    ],
)
def test_impossible_encoders(arguments, message):
    with pytest.raises(ValueError, match=message):
        BytePairEncoder(*arguments)


def test_copies(encoder):
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert other.encode(TEXTS[0]) == encoder.encode(TEXTS[0])


def test_a_pattern_that_leaves_letters_out_loses_none():
    encoder = BytePairEncoder.train(["aa bb"], 300, pattern=r"\p{L}+")
    assert encoder.decode(encoder.encode("aa, bb!")) == "aa, bb!"


# GPT-2 and Hugging Face


def test_published_gpt2_ids(gpt2):
    assert len(gpt2) == 50_257 and gpt2.special_tokens == {"<|endoftext|>": 50_256}
    # from the README of OpenAI's tiktoken and the documentation of transformers
    assert gpt2.encode("hello world") == [31373, 995]
    assert gpt2.encode(" Hello world") == [18435, 995]
    assert gpt2.encode("Hello world<|endoftext|>") == [15496, 995, 50256]


@pytest.fixture(scope="module")
def gpt2_of_tokenizers():
    files = str(GPT2 / "encoder.json"), str(GPT2 / "vocab.bpe")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


@given(st.one_of(st.text(), TEXT, TEXT.map(lambda text: text.replace("<|end|>", "<|endoftext|>"))))
def test_gpt2_ids_are_those_of_tokenizers(gpt2, gpt2_of_tokenizers, text):
    assert gpt2.encode(text) == gpt2_of_tokenizers.encode(text).ids


def test_gpt2_ids_of_real_text(gpt2, gpt2_of_tokenizers):
    text = "\n".join(TEXTS)
    assert gpt2.encode(text) == gpt2_of_tokenizers.encode(text).ids


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, LLAMA3])
def test_the_file_is_one_that_tokenizers_reads(pattern, tmp_path):
    ours = BytePairEncoder.train(TEXTS, 500, ["<|end|>", "<|end|><|end|>"], pattern=pattern)
    ours.save(tmp_path / "tokenizer.json")
    other, again = theirs(tmp_path / "tokenizer.json"), BytePairEncoder.load(tmp_path / "tokenizer.json")
    assert (again.tokens, again.merges, again.special_tokens, again.pattern) == (
        ours.tokens,
        ours.merges,
        ours.special_tokens,
        pattern,
    )

    @given(st.one_of(st.text(), TEXT))
    def same(text):
        ids = ours.encode(text)
        assert ids == other.encode(text).ids == again.encode(text)
        assert other.decode(ids, skip_special_tokens=False) == ours.decode(ids)

    same()


@pytest.mark.parametrize("use_regex", [True, False])
def test_we_read_what_tokenizers_trains(use_regex, tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
    tokenizer.pre_tokenizer = byte_level if use_regex else tokenizers.pre_tokenizers.Sequence([split, byte_level])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = BytePairEncoder.load(tmp_path / "tokenizer.json")
    text = "<|end|>" + "\n".join(TEXTS[:100]) + "  It's 1234\r\n\n!"
    assert ours.encode(text) == tokenizer.encode(text).ids
    assert len(ours) == tokenizer.get_vocab_size()


def test_same_number_of_tokens_as_their_training(encoder):
    """The ties fall otherwise, so the merges differ; the text must not get longer."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    ours = BytePairEncoder.train(TEXTS, 600)
    lengths = [sum(map(len, ids)) for ids in (map(ours.encode, TEXTS), (tokenizer.encode(t).ids for t in TEXTS))]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.003)


# Files


def test_the_file_is_readable_and_written_whole(encoder, tmp_path, monkeypatch):
    path = tmp_path / "new" / "tokenizer.json"
    encoder.save(path)
    text = path.read_text(encoding="utf-8")
    assert '\n   "Ġt": ' in text and "\\u" not in text.replace("\\u007f", "")
    monkeypatch.setattr("os.replace", lambda *_, **__: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        encoder.save(path)
    assert path.read_text(encoding="utf-8") == text and [file.name for file in path.parent.iterdir()] == [path.name]


def broken(path: Path, **changes) -> Path:
    """A tokenizer.json with some entries changed; a_b means ["a"]["b"]."""
    BytePairEncoder.train(["abab"], 300, ["<x>"]).save(path)
    content = json.loads(path.read_text())
    for place, value in changes.items():
        *outer, last = place.split("__")
        entry = content
        for key in outer:
            entry = entry[key]
        entry[last] = value
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__type": "WordPiece"}, "model type 'WordPiece' is not byte-level BPE"),
        ({"model": None}, "model type None"),
        ({"model__byte_fallback": True}, "byte_fallback=True is not supported"),
        ({"model__end_of_word_suffix": "</w>"}, "end_of_word_suffix='</w>'"),
        ({"normalizer": {"type": "NFC"}}, "normalizer 'NFC' changes the text"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer Whitespace is not supported"),
        ({"pre_tokenizer": None}, "pre-tokenizer None is not supported"),
        ({"pre_tokenizer__add_prefix_space": True}, "add_prefix_space is not supported"),
        ({"pre_tokenizer__use_regex": False}, "pre-tokenizer ByteLevel is not supported"),
        ({"added_tokens": [{"id": 258, "content": "<x>", "lstrip": True}]}, "token '<x>' has lstrip"),
        ({"added_tokens": [{"id": 7, "content": "<x>"}]}, "token '<x>' has two ids, 258 and 7"),
        ({"model__merges": ["a b", "a b b"]}, "merge 1: expected two tokens, found 'a b b'"),
        ({"model__merges": ["a q"]}, "merge 0: token 'aq' has no id"),
        ({"model__vocab__a": "x"}, "token 'a' has the id 'x'"),
        ({"model__vocab__一": 400}, "'一' in '一' stands for no byte"),
        ({"model__ignore_merges": True, "model__vocab__ba": 400}, "a token has no merge, e.g. 'ba'"),
    ],
)
def test_files_that_would_give_other_ids_are_refused(changes, message, tmp_path):
    path = broken(tmp_path / "tokenizer.json", **changes)
    with pytest.raises(ValueError, match=f"^{path}.*{message}") as error:
        BytePairEncoder.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("encoder_json", "vocab_bpe", "message"),
    [
        (b'{"a": 0, "b": 1, "ab": 2}', b"#version: 0.2\na b\na c\n", "vocab.bpe, line 3: token 'c' has no id in"),
        (b'{"a": 0}', b"#version: 0.2\na\n", "vocab.bpe, line 2: expected two tokens, found 'a'"),
        (b'{"a": 0', b"", "encoder.json is not JSON"),
        (b"[1]", b"", "encoder.json holds a JSON list"),
        (b"{}\xff", b"", "encoder.json: byte 2 .0xff. is not UTF-8"),
        (b"{}", b"a \xe9\n", "vocab.bpe: byte 2 .0xe9. is not UTF-8"),
    ],
)
def test_damaged_gpt2_files(encoder_json, vocab_bpe, message, tmp_path):
    (tmp_path / "encoder.json").write_bytes(encoder_json)
    (tmp_path / "vocab.bpe").write_bytes(vocab_bpe)
    with pytest.raises(ValueError, match=message) as error:
        BytePairEncoder.from_gpt2(tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer.json does not exist"):
        BytePairEncoder.load(tmp_path / "tokenizer.json")


def test_a_special_token_that_reads_like_another_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="special token 'Ġ' reads in the file like another token"):
        BytePairEncoder.train(["ab"], 300, ["Ġ"]).save(tmp_path / "tokenizer.json")


def test_merge_leaves_what_was_not_learned():
    assert merge([], {}) == [] and merge([1, 2, 3], {}) == [1, 2, 3]
    assert merge([1, 2, 1, 2], {(1, 2): (0, 9), (9, 9): (1, 10)}) == [10]
