"""Masks against double loops over positions, the laws of logic, and the papers' counts."""

import json
import math
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_trees import every_third, masks, trees, written
from torch.testing import assert_close

from txlib.attention import (
    Mask,
    attention,
    bigbird,
    block_local,
    blocks,
    causal,
    dilated,
    documents,
    full,
    global_tokens,
    padding,
    padding_from_mask,
    sliding_window,
)

lengths = st.integers(1, 12)


def by_loop(allowed, query_length, key_length):
    """The dense mask, asking `allowed(query, key)` for each pair of plain numbers."""
    return torch.tensor([[bool(allowed(i, j)) for j in range(key_length)] for i in range(query_length)])[None, None]


@given(lengths, lengths, st.integers(0, 6), st.integers(1, 4), st.sets(st.integers(0, 14), max_size=3))
def test_each_constructor_equals_its_definition(query_length, key_length, radius, step, tokens):
    cases = [
        (full(), lambda i, j: True),
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


@given(masks, masks, masks, lengths, lengths)
def test_the_laws_of_logic(a, b, c, query_length, key_length):
    def same(left, right):
        left, right = (mask.dense(query_length, key_length) for mask in (left, right))
        return torch.equal(left, right)

    assert same(~(a & b), ~a | ~b) and same(~(a | b), ~a & ~b)  # De Morgan
    assert same(a & (b | c), (a & b) | (a & c))
    assert same(a & b, b & a) and same(a | b, b | a)
    assert same(~~a, a) and same(a & a, a)
    assert same(a & full(), a) and same(a | ~a, full() | a)


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
def test_transposed_masks_are_transposed_tensors(mask, query_length, key_length):
    mask = mask.sized(key_length)
    assert torch.equal(mask.transposed().dense(query_length, key_length), mask.dense(key_length, query_length).mT)


@given(masks, lengths, lengths)
def test_pairs_are_counted(mask, query_length, key_length):
    assert mask.pairs(query_length, key_length) == mask.dense(query_length, key_length).sum()
    assert mask.pairs(query_length) == mask.dense(query_length).sum()


@pytest.mark.parametrize("n, radius", [(1, 0), (10, 3), (64, 16), (500, 63)])
def test_pairs_follow_the_papers(n, radius):
    assert full().pairs(n) == n * n
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


many = settings(max_examples=60)
longer = st.integers(1, 24)


@many
@given(masks, longer, longer, st.integers(1, 9))
def test_blocks_agree_with_the_dense_mask(mask, query_length, key_length, size):
    plan, dense = mask.blocks(query_length, key_length, size=size), mask.dense(query_length, key_length)
    assert plan.shape[:2] == dense.shape[:2] == (mask.batch, mask.heads)
    tiles = [band.split(size, 3) for band in dense.split(size, 2)]
    state = [[tile.any(3).any(2).long() + tile.all(3).all(2) for tile in band] for band in tiles]
    expected = torch.stack([torch.stack(band, dim=2) for band in state], dim=2)
    assert torch.equal(plan.dense(), expected)
    assert plan.live == (expected > 0).sum()
    counts, columns, full = plan.index()
    assert torch.equal(counts, (expected > 0).sum(-1).flatten())
    assert torch.equal(columns, (expected > 0).nonzero()[:, 3])
    assert torch.equal(full, expected[expected > 0] == 2)
    for batch, head in {(0, 0), (mask.batch - 1, mask.heads - 1)}:
        for row in range(plan.shape[2]):
            runs = plan.row(row, batch=batch, head=head)
            states = [0] * plan.shape[3]
            for first, end, whole in runs:
                states[first:end] = [2 if whole else 1] * (end - first)
            assert states == expected[batch, head, row].tolist()


@many
@given(masks, longer, longer)
def test_a_mask_knows_whether_it_is_causal_and_how_far_it_reaches(mask, query_length, key_length):
    dense = mask.dense(query_length, key_length)
    distance = torch.arange(query_length)[:, None] - torch.arange(key_length)
    allowed = distance.expand(dense.shape)[dense]
    assert mask.is_causal(query_length, key_length) == bool((allowed >= 0).all())
    low, high = mask.reach()
    assert not len(allowed) or (low <= allowed.min() and allowed.max() <= high)
    spans = mask.distances()
    if spans is not None:
        by_distance = torch.stack([(low <= distance) & (distance < high) for low, high in spans or [(0, 0)]]).any(0)
        assert torch.equal(dense[0, 0], by_distance)
    if mask.only_keys:
        assert (dense == dense[:, :, :1]).all()
    parts = [part.dense(query_length, key_length) for part in mask.conjuncts()]
    assert torch.equal(torch.stack([part.expand(dense.shape) for part in parts]).all(0), dense)


def test_spans_of_the_papers_masks():
    """Known by heart: what makes kernels quick must not be lost in a tree."""
    assert causal().distances() == ((0, math.inf),)
    assert (causal() & sliding_window(3)).distances() == ((0, 4),)
    assert (causal() & ~sliding_window(3)).shift(2).distances() == ((2, math.inf),)
    assert (causal() & (sliding_window(3) | global_tokens([0]))).reach() == (0, math.inf)
    assert (causal() & sliding_window(3) & padding([2])).reach() == (0, 3)
    assert not (causal() | ~causal() | padding([1])).shift(1).only_keys


def rows_of(lengths, length):
    return torch.tensor([[int(i < real) for i in range(length)] for real in lengths])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), lengths)
def test_an_attention_mask_is_a_mask_like_padding_on_either_side(real, query_length):
    right = rows_of(real, 9)
    assert torch.equal(padding_from_mask(right).dense(query_length, 9), padding(real).dense(query_length, 9))
    left = padding_from_mask(right.flip(1)).dense(query_length, 9)
    assert torch.equal(left, padding(real).dense(query_length, 9).flip(3))
    assert torch.equal(
        padding_from_mask(right).shift(keys=4).dense(query_length, 7), padding(real).dense(query_length, 11)[..., 4:]
    )


def test_a_million_positions_are_planned_in_little_memory():
    """Window and global tokens (Beltagy et al. 2020), causal or not: neither pairs nor blocks are ever written out."""
    n, size = 1_000_000, 128
    sizes = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(
                each.nbytes for each in (out if isinstance(out, tuple | list) else [out]) if hasattr(each, "nbytes")
            )
            return out

    tracemalloc.start()
    with Watched():
        plan = (causal() & (sliding_window(512) | global_tokens([0, 1]))).blocks(n, size=size)
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(sizes) < 40e6 and python < 60e6
    rows = -(-n // size)
    assert plan.shape == (1, 1, rows, rows)
    assert plan.row(0) == [(0, 1, False)] and plan.row(1) == [(0, 1, True), (1, 2, False)]
    middle = [(0, 1, False), (4996, 4997, False), (4997, 5000, True), (5000, 5001, False)]
    assert plan.row(5000) == middle
    assert plan.live == 1 + 2 + 3 + 4 + 5 + 6 * (rows - 5)
    held = sum(each.nbytes for each in (plan.runs.first, plan.runs.state))
    assert held < 10e6


@given(masks)
def test_masks_are_values(mask):
    for copy in (pickle.loads(pickle.dumps(mask)), mask.to("cpu")):
        assert copy == mask and hash(copy) == hash(mask) and repr(copy) == repr(mask)
        assert torch.equal(copy.dense(7), mask.dense(7))
    assert mask != ~mask and mask != mask & causal() and mask != "mask"


@given(trees(written))
def test_masks_are_written_down_and_read(mask):
    again = Mask.from_dict(json.loads(json.dumps(mask.to_dict())))
    assert again == mask and repr(again) == repr(mask)
    assert torch.equal(again.dense(6, 9), mask.dense(6, 9))


def test_masks_with_other_numbers_are_not_equal():
    assert sliding_window(2) != sliding_window(3) and causal() != full() and padding([1, 2]) != padding([2, 1])
    assert padding_from_mask(torch.ones(1, 3)) != padding_from_mask(torch.ones(1, 4)) and causal().shift(
        1
    ) != causal().shift(keys=1)
    assert padding([1, 2]) == padding(torch.tensor([1, 2])) and global_tokens([2, 0, 2]) == global_tokens([0, 2])
    assert len({causal(), causal(), sliding_window(2), sliding_window(2) & causal()}) == 3


def test_what_cannot_be_written_down_says_so():
    with pytest.raises(ValueError, match="past is a rule of your own"):
        (causal() & Mask(lambda query, key: query > key, name="past")).to_dict()
    with pytest.raises(ValueError, match="kind 'spiral' is unknown; choose one of and, block_local"):
        Mask.from_dict({"kind": "spiral"})


def test_a_long_mask_is_counted_in_slices():
    n, radius, slices = 5000, 256, []

    def watched(query, key):
        slices.append(torch.broadcast_shapes(query.shape, key.shape).numel())
        return (query >= key) & (query - key <= radius)

    assert Mask(watched).pairs(n) == n * (radius + 1) - radius * (radius + 1) // 2
    assert n * n <= sum(slices) < 1.3 * n * n and max(slices) <= 2**22  # each pair once, but where blocks are mixed
    slices.clear()
    assert (Mask(watched) & sliding_window(9)).pairs(n) == n * 10 - 45
    assert sum(slices) < 0.2 * n * n  # the rule is asked only where the window leaves something


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
def test_flex_attention_sees_the_same_mask(name, unchecked):
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
        (lambda: sliding_window(-1), "radius >= 0, got radius=-1"),
        (lambda: dilated(2, 0), "dilation=0"),
        (lambda: dilated(-2, 1), "radius=-2"),
        (lambda: global_tokens([3, -1]), r"positions >= 0, got \[3, -1\]"),
        (lambda: padding([3, -2]), "lengths >= 0, got -2"),
        (lambda: padding([[1], [2]]), r"one integer length per sentence.*\(2, 1\)"),
        (lambda: padding([1.5]), "one integer length per sentence"),
        (lambda: block_local(0), "size >= 1 .* got size=0"),
        (lambda: blocks(0, torch.ones(1, 1, dtype=torch.bool)), "size >= 1, got size=0"),
        (lambda: Mask(lambda query: query), "takes 1 arguments"),
        (lambda: padding([1, 2]) & padding([1, 2, 3]), "batch=2.*batch=3"),
        (lambda: padding(3), r"got torch.int64 of shape \(\); write e.g. padding\(\[3, 5\]\)"),
        (lambda: Mask(every_third, batch=0), "batch >= 1 and heads >= 1, got batch=0, heads=1"),
    ],
)
def test_wrong_values_are_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: sliding_window(1.5), "sliding_window needs integers, got radius=1.5"),
        (lambda: sliding_window("3"), "sliding_window needs integers, got radius='3'"),
        (lambda: dilated(2, torch.tensor(1.5)), "dilated needs integers, got dilation=tensor"),
        (lambda: block_local(None), "block_local needs integers, got size=None"),
        (lambda: bigbird(4, 1.5), "random_blocks needs integers, got per_row=1.5"),
        (lambda: documents(3), r"the length of each document, got 3; write documents\(\[3\]\)"),
        (lambda: Mask(3), r"a function of \(query, key\), got 3"),
        (lambda: Mask(lambda query, key: True).dense(4), "returns a bool tensor, custom returned bool"),
        (lambda: Mask(lambda query, key: query - key).dense(4), "returns a bool tensor, custom returned torch.int64"),
        (lambda: causal() & causal, r"not with function; call it: causal\(…\)"),
        (lambda: causal & causal(), r"not with function; call it: causal\(…\)"),
        (lambda: causal() | 3, r"not with int; wrap it in Mask\(rule\)"),
    ],
)
def test_what_is_no_number_and_no_mask_is_refused(make, words, unchecked):
    with pytest.raises(TypeError, match=words):
        make()


def test_numbers_of_other_libraries_are_numbers(unchecked):
    mask = block_local(np.int64(3), torch.tensor(1))
    assert mask == block_local(3, 1)
    assert json.loads(json.dumps(mask.to_dict())) == block_local(3, 1).to_dict()


@pytest.mark.parametrize("mask", [causal(), padding([2, 3]), bigbird(2), documents([0, 0]), Mask(every_third, heads=4)])
def test_nothing_has_no_pairs(mask):
    assert mask.pairs(0) == mask.pairs(0, 3) == mask.pairs(3, 0) == 0
    assert mask.is_causal(0)


@pytest.mark.parametrize("wrong", [0, 3, "0", [0.5], [[1]]])
def test_global_tokens_are_a_list(wrong, unchecked):
    with pytest.raises(ValueError, match="global_tokens needs a list of positions, got .*; write e.g. "):
        global_tokens(wrong)


@pytest.mark.parametrize(
    "wrong", [lambda: causal() and sliding_window(2), lambda: not causal(), lambda: bool(causal())]
)
def test_a_mask_is_not_true_or_false(wrong):
    with pytest.raises(TypeError, match="a & b, a | b and ~a instead of and, or and not"):
        wrong()


def test_a_mask_does_not_combine_with_a_tensor(unchecked):
    with pytest.raises(TypeError, match="not with Tensor"):
        causal() & torch.ones(2, 2, dtype=torch.bool)


def test_a_mask_shows_how_it_was_made():
    mask = causal() & (sliding_window(2) | ~global_tokens([0]))
    assert repr(mask) == "(causal() & (sliding_window(2) | ~global_tokens([0])))"
    assert repr(padding([3, 1])) == "padding([3, 1])"
    assert repr(Mask(lambda query, key: query > key, name="past")) == "past"
    assert torch.equal(eval(repr(mask)).dense(5), mask.dense(5))  # it can be typed in again
