"""Masks against double loops over positions, the laws of logic, and the papers' counts."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from txlib.attention import (
    Mask,
    attention,
    block_local,
    blocks,
    causal,
    dilated,
    everything,
    global_tokens,
    padding,
    sliding_window,
)

lengths = st.integers(1, 12)


def by_loop(allowed, query_length, key_length):
    """The dense mask, asking `allowed(query, key)` for each pair of plain numbers."""
    return torch.tensor([[bool(allowed(i, j)) for j in range(key_length)] for i in range(query_length)])[None, None]


@given(lengths, lengths, st.integers(0, 6), st.integers(1, 4), st.sets(st.integers(0, 14), max_size=3))
def test_each_constructor_equals_its_definition(query_length, key_length, radius, step, tokens):
    cases = [
        (everything(), lambda i, j: True),
        (causal(), lambda i, j: j <= i),
        (sliding_window(radius), lambda i, j: i - radius <= j <= i + radius),
        (dilated(radius, step), lambda i, j: j in [i + step * t for t in range(-radius, radius + 1)]),
        (global_tokens(sorted(tokens)), lambda i, j: i in tokens or j in tokens),
        (block_local(step), lambda i, j: i // step == j // step),
    ]
    for mask, allowed in cases:
        dense = mask.dense(query_length, key_length)
        assert dense.dtype == torch.bool
        assert torch.equal(dense, by_loop(allowed, query_length, key_length)), repr(mask)


@given(lengths, lengths, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_blocks_equal_a_loop_also_beyond_the_pattern(query_length, key_length, size, rows, columns):
    pattern = torch.rand(rows, columns) < 0.5

    def allowed(i, j):
        return i // size < rows and j // size < columns and pattern[i // size, j // size]

    expected = by_loop(allowed, query_length, key_length)
    assert torch.equal(blocks(size, pattern).dense(query_length, key_length), expected)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), lengths, lengths)
def test_padding_hides_what_lies_behind_each_sentence(real, query_length, key_length):
    expected = torch.cat([by_loop(lambda i, j, n=n: j < n, query_length, key_length) for n in real])
    assert torch.equal(padding(real).dense(query_length, key_length), expected)
    assert torch.equal(padding(torch.tensor(real)).dense(query_length, key_length), expected)


leaves = st.sampled_from(
    [
        causal(),
        everything(),
        sliding_window(2),
        dilated(2, 3),
        global_tokens([]),
        global_tokens([1, 6]),
        block_local(3),
        padding([2, 5, 0]),
        Mask(lambda batch, head, query, key: (query + key) % 4 != head, heads=4),
    ]
)
masks = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda mask: ~mask),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
    ),
    max_leaves=4,
)


@given(masks, masks, masks, lengths, lengths)
def test_the_laws_of_logic(a, b, c, query_length, key_length):
    def same(left, right):
        left, right = (mask.dense(query_length, key_length) for mask in (left, right))
        return torch.equal(left, right)

    assert same(~(a & b), ~a | ~b) and same(~(a | b), ~a & ~b)  # De Morgan
    assert same(a & (b | c), (a & b) | (a & c))
    assert same(a & b, b & a) and same(a | b, b | a)
    assert same(~~a, a) and same(a & a, a)
    assert same(a & everything(), a) and same(a | ~a, everything() | a)


@given(masks, masks, lengths, lengths)
def test_signs_mean_what_they_mean_for_tensors(a, b, query_length, key_length):
    x, y = (mask.dense(query_length, key_length) for mask in (a, b))
    assert torch.equal((a & b).dense(query_length, key_length), x & y)
    assert torch.equal((a | b).dense(query_length, key_length), x | y)
    assert torch.equal((~a).dense(query_length, key_length), ~x)


@given(masks, st.integers(0, 6), lengths, lengths)
def test_shift_gives_the_later_rows(mask, offset, query_length, key_length):
    later = mask.dense(offset + query_length, key_length)[:, :, offset:]
    assert torch.equal(mask.shift(offset).dense(query_length, key_length), later)
    assert torch.equal(
        mask.shift(2).shift(offset).dense(query_length, key_length),
        mask.shift(2 + offset).dense(query_length, key_length),
    )


@given(masks, lengths, lengths)
def test_pairs_are_counted(mask, query_length, key_length):
    assert mask.pairs(query_length, key_length) == mask.dense(query_length, key_length).sum()
    assert mask.pairs(query_length) == mask.dense(query_length).sum()


@pytest.mark.parametrize("n, radius", [(1, 0), (10, 3), (64, 16), (500, 63)])
def test_pairs_follow_the_papers(n, radius):
    assert everything().pairs(n) == n * n
    assert causal().pairs(n) == n * (n + 1) // 2
    window = n * (2 * radius + 1) - radius * (radius + 1)  # n × w, less the two clipped corners
    assert sliding_window(radius).pairs(n) == window
    assert dilated(radius, 2).pairs(n) == n + 2 * sum(max(0, n - 2 * t) for t in range(1, radius + 1))
    assert global_tokens([0]).pairs(n) == 2 * n - 1
    assert (sliding_window(radius) | global_tokens([0])).pairs(n) == window + 2 * n - 1 - (2 * radius + 1)
    assert (causal() & sliding_window(radius)).pairs(n) == (window + n) // 2
    assert padding([n, 1]).pairs(n) == n * n + n


def test_pairs_of_blocks():
    assert block_local(16).pairs(64) == 64 * 16
    assert blocks(8, torch.eye(4, dtype=torch.bool)).pairs(32) == block_local(8).pairs(32)


def test_a_long_mask_is_counted_in_slices():
    n, radius, slices = 5000, 256, []

    def watched(query, key):
        slices.append(torch.broadcast_shapes(query.shape, key.shape).numel())
        return (query >= key) & (query - key <= radius)

    assert Mask(watched).pairs(n) == n * (radius + 1) - radius * (radius + 1) // 2
    assert sum(slices) == n * n and max(slices) <= 2**22


def test_a_mask_has_one_row_a_sentence_and_one_a_head_only_where_it_must():
    per_head = Mask(lambda batch, head, query, key: query - key <= head, heads=3)
    assert causal().dense(4, 6).shape == (1, 1, 4, 6)
    assert (causal() & padding([1, 2])).dense(4).shape == (2, 1, 4, 4)
    both = (per_head | padding([1, 2])).dense(4)
    assert both.shape == (2, 3, 4, 4)
    for b, real in enumerate((1, 2)):
        for h in range(3):
            expected = by_loop(lambda i, j, h=h, real=real: i - j <= h or j < real, 4, 4)[0, 0]
            assert torch.equal(both[b, h], expected)


def test_a_rule_may_ignore_an_axis():
    assert torch.equal(Mask(lambda query, key: key < 2).dense(3, 4), by_loop(lambda i, j: j < 2, 3, 4))
    assert torch.equal(Mask(lambda query, key: query < 2).dense(3, 4), by_loop(lambda i, j: i < 2, 3, 4))


FLEX = {
    "causal": causal(),
    "window and global": causal() & (sliding_window(9) | global_tokens([0, 40])),
    "dilated, not blocks": dilated(3, 5) | ~block_local(20),
    "blocks": blocks(16, torch.eye(4, dtype=torch.bool) | (torch.arange(4) == 0)),
    "padding": causal() & padding([64, 17]),
    "heads": Mask(lambda batch, head, query, key: (query - key).abs() <= 8 * head, heads=3),
    "later queries": causal().shift(32),
}


@pytest.mark.parametrize("name", FLEX)
def test_flex_attention_sees_the_same_mask(name):
    from torch.nn.attention.flex_attention import flex_attention

    mask = FLEX[name]
    query_length, key_length = (32, 64) if name == "later queries" else (64, 64)
    q = torch.randn(2, 3, query_length, 16)
    k, v = torch.randn(2, 2, 3, key_length, 16)
    block_mask = mask.block_mask(query_length, key_length, block_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "slow unless compiled"
        flex = flex_attention(q, k, v, block_mask=block_mask)
    assert_close(flex, attention(q, k, v, mask))
    tiles = mask.dense(query_length, key_length).unflatten(3, (-1, 16)).unflatten(2, (-1, 16))
    assert torch.equal(block_mask.to_dense().bool(), tiles.any(dim=5).any(dim=3))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: sliding_window(-1), "radius >= 0, got -1"),
        (lambda: dilated(2, 0), "dilation=0"),
        (lambda: dilated(-2, 1), "radius=-2"),
        (lambda: global_tokens([3, -1]), r"positions >= 0, got \[3, -1\]"),
        (lambda: padding([3, -2]), "lengths >= 0, got -2"),
        (lambda: padding([[1], [2]]), r"one integer length a sentence.*\(2, 1\)"),
        (lambda: padding([1.5]), "one integer length a sentence"),
        (lambda: block_local(0), "size >= 1, got 0"),
        (lambda: blocks(0, torch.ones(1, 1, dtype=torch.bool)), "size >= 1, got 0"),
        (lambda: Mask(lambda query: query), "takes 1 arguments"),
        (lambda: padding([1, 2]) & padding([1, 2, 3]), "batch=2.*batch=3"),
    ],
)
def test_wrong_values_are_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_mask_does_not_combine_with_a_tensor(unchecked):
    with pytest.raises(TypeError, match="not with Tensor"):
        causal() & torch.ones(2, 2, dtype=torch.bool)


def test_a_mask_shows_how_it_was_made():
    mask = causal() & (sliding_window(2) | ~global_tokens([0]))
    assert repr(mask) == "(causal() & (sliding_window(2) | ~global_tokens([0])))"
    assert repr(padding([3, 1])) == "padding([3, 1])"
    assert repr(Mask(lambda query, key: query > key, name="past")) == "past"
    assert torch.equal(eval(repr(mask)).dense(5), mask.dense(5))  # it can be typed in again
