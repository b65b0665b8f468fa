"""Tokenizers of checkpoints."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from txlib.text import load_tokenizer


def test_texts_keep_their_lengths_whatever_the_file_says(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
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
