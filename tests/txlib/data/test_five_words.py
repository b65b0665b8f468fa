"""The vectors of lesson 04's five words: what is kept, and what its script counts."""

import json

import five_words
import pytest
import torch


def test_the_kept_vectors_are_equally_long():
    kept = json.loads(five_words.FILE.read_text())
    vectors = torch.tensor([kept[word] for word in five_words.WORDS])
    assert vectors.shape == (5, five_words.D)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.full((5,), five_words.D**0.5), atol=1e-3, rtol=0)
    assert 0.5 < kept["own"] < 1.0


def test_words_with_the_same_neighbors_get_the_same_vector(monkeypatch):
    monkeypatch.setattr(five_words, "D", 4)
    text = torch.tensor([[2, 5, 6], [3, 5, 6], [4, 6, 5], [4, 5, 7]])
    torch.manual_seed(0)
    vectors = five_words.vectors_of(text, 8)
    torch.testing.assert_close(vectors[2], vectors[3], atol=1e-4, rtol=0)
    assert vectors[2] @ vectors[4] < vectors[2] @ vectors[3]


def test_padding_has_no_part_in_a_words_weight_on_itself():
    vectors = torch.eye(4) * 8.0
    full, padded = torch.tensor([[1, 2]]), torch.tensor([[1, 2, 0, 0]])
    assert five_words.own_weight(vectors, full) == pytest.approx(five_words.own_weight(vectors, padded))
