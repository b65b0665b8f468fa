"""Batches of like length."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txlib.data import batches_by_length, collate, pad, padding_share, translation

BOS, EOS, PAD = 1, 2, 0
ids = st.lists(st.integers(4, 99), min_size=0, max_size=12)
some_pairs = st.lists(st.tuples(ids, ids), max_size=60)


def lengths(pairs):
    """Tokens of sources and targets, end marks included."""
    return [(len(source) + 1, len(target) + 1) for source, target in pairs]


def cost(batch, pairs):
    """Tokens of a padded batch, end marks included, counted one sentence at a time."""
    source = max(len(pairs[index][0]) + 1 for index in batch)
    target = max(len(pairs[index][1]) + 1 for index in batch)
    return len(batch) * (source + target)


@given(some_pairs, st.integers(26, 200), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_every_index_once_within_the_budget_and_repeatable(pairs, max_tokens, seed, epoch, shuffle):
    batches = batches_by_length(lengths(pairs), max_tokens, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(index for batch in batches for index in batch) == list(range(len(pairs)))
    assert all(batch and cost(batch, pairs) <= max_tokens for batch in batches)
    assert batches == batches_by_length(lengths(pairs), max_tokens, seed=seed, epoch=epoch, shuffle=shuffle)


def test_seed_and_epoch_change_the_batches():
    pairs = [([5] * (index % 3), [6] * (index % 2)) for index in range(300)]
    first, *others = (batches_by_length(lengths(pairs), 60, seed=s, epoch=e) for s, e in ((0, 0), (0, 1), (1, 0)))
    for other in others:
        assert other != first
        assert sorted(map(sorted, other)) != sorted(map(sorted, first))  # other company, not only another order


def test_unshuffled_batches_go_from_short_to_long():
    pairs = [([5] * length, [6] * length) for length in (9, 2, 5, 2, 9, 1)]
    batches = batches_by_length(lengths(pairs), 24, shuffle=False)
    found = [len(pairs[index][0]) for batch in batches for index in batch]
    assert found == sorted(found)


def test_a_large_corpus_has_one_source_length_a_batch():
    pairs = [([5] * (1 + index % 4), [6] * (1 + index % 5)) for index in range(4000)]
    batches = batches_by_length(lengths(pairs), 120)
    one = sum(len({len(pairs[index][0]) for index in batch}) == 1 for batch in batches)
    assert one >= 0.97 * len(batches)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(30, 200))
def test_single_lengths_fill_batches_alone(sizes, max_tokens):
    batches = batches_by_length(sizes, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(len(batch) * max(sizes[index] for index in batch) <= max_tokens for batch in batches)
    one = batches_by_length([7] * 100, 70)
    assert sorted(map(len, one)) == [10] * 10  # full batches, where no second text takes room


def test_pairs_beyond_the_budget_are_named():
    pairs = [([5] * 3, [6] * 3), ([5] * 30, [6] * 30), ([5] * 20, [6] * 20)]
    with pytest.raises(ValueError) as error:
        batches_by_length(lengths(pairs), 40)
    assert str(error.value) == (
        "2 of 3 examples exceed max_tokens=40 (the longest, number 1, has 62); raise max_tokens or drop them"
    )


@given(st.lists(ids, min_size=1, max_size=9))
def test_pad(sequences):
    padded = pad(sequences, PAD)
    assert padded.shape == (len(sequences), max(map(len, sequences))) and padded.dtype == torch.long
    for row, sequence in zip(padded.tolist(), sequences, strict=True):
        assert row[: len(sequence)] == sequence and set(row[len(sequence) :]) <= {PAD}


def test_pad_nothing():
    with pytest.raises(ValueError, match="no sequences"):
        pad([], PAD)


def test_collate():
    batch = collate([([5, 6], [7]), ([8], [9, 10, 11])], BOS, EOS, PAD)
    assert batch.input_ids.tolist() == [[5, 6, EOS], [8, EOS, PAD]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.decoder_input_ids.tolist() == [[BOS, 7, PAD, PAD], [BOS, 9, 10, 11]]
    assert batch.labels.tolist() == [[7, EOS, -100, -100], [9, 10, 11, EOS]]
    assert padding_share([batch]) == pytest.approx(3 / 14)
    assert batch.to("meta").labels.device.type == "meta"


@given(some_pairs.filter(bool))
def test_padding_share_counts_what_is_not_a_token(pairs):
    batches = [[pairs[index] for index in batch] for batch in batches_by_length(lengths(pairs), 60)]
    tokens = sum(len(source) + len(target) + 2 for source, target in pairs)
    positions = sum(cost(range(len(batch)), batch) for batch in batches)
    share = padding_share(collate(batch, BOS, EOS, PAD) for batch in batches)
    assert share == pytest.approx(1 - tokens / positions)


def test_padding_share_of_nothing():
    with pytest.raises(ValueError, match="no batches"):
        padding_share([])


@pytest.mark.parametrize("max_tokens", [3000, 600])
@pytest.mark.parametrize(
    ("source", "size", "max_words"),
    [("wesnoth", 4000, None), ("wesnoth", 4000, 12), ("games", 4000, 12), ("multi30k", 8000, None)],
)
@pytest.mark.slow
def test_real_sentences_are_at_least_92_percent_tokens(source, size, max_words, max_tokens):
    tokenizers = pytest.importorskip("tokenizers")  # noqa: F841
    if source == "multi30k" and not (Path(os.environ.get("TXLIB_DATA", "nowhere")) / source).is_dir():
        pytest.skip("TXLIB_DATA has no multi30k")
    pairs = encoded(source, size, max_words)
    for epoch in (0, 1):
        batches = batches_by_length(lengths(pairs), max_tokens, epoch=epoch)
        share = padding_share(collate([pairs[index] for index in batch], BOS, EOS, PAD) for batch in batches)
        assert share <= 0.08


def encoded(source, size, max_words, known={}):  # noqa: B006  (one vocabulary for both budgets)
    from txlib.text import Tokenizer

    if (source, max_words) not in known:
        sources, targets = zip(*translation(source, max_words=max_words).train, strict=True)
        tokenizer = Tokenizer.train([*sources, *targets], size)
        columns = map(tokenizer.encode_batch, (sources, targets))
        known[source, max_words] = list(zip(*columns, strict=True))
    return known[source, max_words]
