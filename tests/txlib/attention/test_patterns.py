"""The masks of the papers on sparse attention: against their definitions in loops and their counts of pairs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from txlib import plots
from txlib.attention import (
    MultiHeadAttention,
    bigbird,
    block_local,
    causal,
    documents,
    full,
    global_blocks,
    global_tokens,
    padding,
    prefix_lm,
    random_blocks,
    sliding_window,
    sparse_fixed,
    strided,
    strided_keys,
    summary_columns,
    window_2d,
)
from txlib.attention.masks.grid import Grid

small, lengths = st.integers(1, 5), st.integers(1, 14)


@given(lengths, lengths, small, small, st.integers(0, 2), st.integers(0, 2), st.data())
def test_each_constructor_equals_its_definition(queries, keys, size, stride, first, last, data):
    columns = data.draw(st.integers(1, stride))
    count = -(-keys // size)
    chosen = {*range(first), *range(count - last, count)} & set(range(count))
    cases = [
        (block_local(size, first), lambda i, j: abs(i // size - j // size) <= first),
        (strided_keys(stride), lambda i, j: (i - j) % stride == 0),
        (strided(stride), lambda i, j: j <= i and (i - j <= stride or (i - j) % stride == 0)),
        (summary_columns(stride, columns), lambda i, j: j % stride in range(stride - columns, stride)),
        (
            sparse_fixed(stride, columns),
            lambda i, j: j <= i and (i // stride == j // stride or j % stride in range(stride - columns, stride)),
        ),
        (global_blocks(size, first, last), lambda i, j: i // size in chosen or j // size in chosen),
        (
            window_2d(stride, first),
            lambda i, j: abs(i // stride - j // stride) <= first and abs(i % stride - j % stride) <= first,
        ),
        (prefix_lm(first), lambda i, j: j <= i or j < first),
    ]
    for mask, allowed in cases:
        expected = torch.tensor([[allowed(i, j) for j in range(keys)] for i in range(queries)])
        assert torch.equal(mask.dense(queries, keys), expected[None, None]), repr(mask)


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=3), lengths)
def test_each_position_sees_its_own_document(rows, length):
    rows = [[*row, 1] for row in rows]  # not all empty
    expected = torch.zeros(len(rows), 1, length, length, dtype=torch.bool)
    for allowed, row in zip(expected[:, 0], rows, strict=True):
        start = 0
        for own in row:
            allowed[start : start + own, start : start + own] = True
            start += own
    assert torch.equal(documents(rows).dense(length), expected)
    for row, allowed in zip(rows, expected, strict=True):
        ids = torch.tensor([number % 2 for number, own in enumerate(row) for _ in range(own)])
        if 0 not in row:
            assert torch.equal(documents(ids=ids).dense(length), allowed[None])
        assert torch.equal(documents(row).dense(length), allowed[None])


def test_packed_documents_are_read_as_if_alone():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 12, 8)
    packed = layer(x, mask=causal() & documents([3, 4, 5]))
    alone = torch.cat([layer(part, mask=causal()) for part in x.split([3, 4, 5], dim=1)], dim=1)
    assert_close(packed, alone)


@given(
    st.integers(0, 3),
    small,
    st.integers(1, 40),
    st.sampled_from([0, 1, 3]),
    st.integers(0, 2),
    st.integers(0, 2),
    small,
)
def test_random_blocks_are_different_ones_among_those_left(per_row, size, length, window, first, last, seed):
    mask = random_blocks(size, per_row, seed, window, first, last, heads=2)
    dense, count = mask.dense(length), -(-length // size)
    assert torch.equal(dense, mask.dense(length + size, length)[:, :, :length])  # rows know nothing of later rows
    for head in dense[0]:
        for row in range(count):
            seen = head[row * size]
            assert (head[row * size : (row + 1) * size] == seen).all()  # whole blocks of queries
            blocks = {int(key) // size for key in seen.nonzero()}
            assert seen.sum() == sum(min(size, length - block * size) for block in blocks)  # and of keys
            left = {column for column in range(first, count - last) if not window or abs(row - column) > window // 2}
            assert blocks <= left and len(blocks) == min(per_row, len(left))


def test_random_blocks_are_drawn_evenly():
    """Each of the 17 blocks left is drawn in 3 of 17 rows: 1,000 seeds, within five standard deviations."""
    count, rows, seeds = 22, 11, 1000
    drawn = torch.stack(
        [random_blocks(1, 3, seed, window=3, first=1, last=1).dense(rows, count) for seed in range(seeds)]
    )
    row = drawn[:, 0, 0, 10].float()  # 22 columns less the first, the last, and 9, 10, 11
    share = 3 / 17
    assert (row.mean(0)[[0, 9, 10, 11, 21]] == 0).all()
    others = row[:, [column for column in range(1, 21) if column not in (9, 10, 11)]]
    allowance = 5 * (share * (1 - share) / seeds) ** 0.5
    assert ((others.mean(0) - share).abs() < allowance).all()
    together = others.T @ others / seeds  # two columns in one row
    pair = 3 * 2 / (17 * 16)
    assert ((together - pair).abs() < 5 * (pair / seeds) ** 0.5)[~torch.eye(17, dtype=torch.bool)].all()
    below = drawn[:, 0, 0, 9].float()[:, 15]  # the next row draws for itself
    assert abs((below * row[:, 15]).mean() - share**2) < 5 * share / seeds**0.5


def test_seeds_and_heads_draw_for_themselves():
    drawn = [random_blocks(4, 3, seed, heads=3).dense(400) for seed in (0, 1)]
    patterns = {tuple(head.flatten().tolist()) for each in drawn for head in each[0]}
    assert len(patterns) == 6
    assert torch.equal(random_blocks(4, 3, 1, heads=3).dense(400), drawn[1])


def test_random_blocks_must_know_how_many_there_are():
    mask, zero = causal() & random_blocks(2, 1), torch.tensor(0)
    with pytest.raises(ValueError, match=r"random_blocks\(2, 1, 0\) depends on the number of keys: ask mask.sized"):
        mask.at(zero, zero, zero, zero)
    told = mask.sized(8)
    assert told == told.sized(80) and told != mask and causal().sized(8) == causal()
    assert torch.equal(told.dense(8, 4), mask.dense(8)[..., :4])


@pytest.mark.parametrize("extra", [0, 5])
@pytest.mark.parametrize(
    "block, random, window, globals_, count", [(4, 3, 3, 2, 16), (2, 2, 5, 3, 20), (1, 0, 1, 0, 9)]
)
def test_big_bird_counts_as_its_paper(block, random, window, globals_, count, extra):
    """Zaheer et al. 2020, §2: each query sees g + w + r blocks, global ones see all; ETC adds rows and columns. Where
    the window reaches over an end or into a global block, r + (r - 1) + … + 1 blocks on either side count less."""
    n, radius = block * count, window // 2
    blocks = globals_ * count + (count - globals_) * (globals_ + window + random) - radius * (radius + 1)
    mask = bigbird(block, random, window, globals_, seed=1, extra_tokens=extra)
    assert mask.pairs(n + extra) == blocks * block**2 + (n + extra) ** 2 - n**2
    assert not extra or torch.equal(
        mask.dense(n + extra)[..., extra:, extra:], bigbird(block, random, window, globals_, seed=1).dense(n)
    )


def test_big_bird_grows_with_the_length_not_its_square():
    per_query = 64 * (2 + 3 + 3)
    for n in (1024, 2048, 4096):
        assert abs(bigbird().pairs(n) - (per_query * n + 2 * 64 * n)) < 3 * 64 * per_query


@pytest.mark.parametrize("n, stride, columns", [(1, 1, 1), (30, 4, 1), (128, 16, 3), (500, 30, 30)])
def test_sparse_transformers_count_as_their_paper(n, stride, columns):
    """Child et al. 2019, §4.3, with the sets A⁽¹⁾ and A⁽²⁾ written as numbers of elements."""
    assert strided(stride).pairs(n) == sum(min(i, stride) + 1 + max(0, i // stride - 1) for i in range(n)), stride
    assert sparse_fixed(stride, columns).pairs(n) == sum(i % stride + 1 + columns * (i // stride) for i in range(n))
    assert (causal() & strided_keys(stride)).pairs(n) == sum(i // stride + 1 for i in range(n))


def test_two_steps_of_a_sparse_transformer_reach_everything():
    """Child et al. 2019, §4.2: a path of at most two steps joins each position with each before it."""
    n = 40
    for near, far in (sliding_window(6), strided_keys(6)), (block_local(6), summary_columns(6, 1)):
        step, leap = ((causal() & each).dense(n)[0, 0].float() for each in (near, far))
        assert torch.equal(step + leap @ step > 0, causal().dense(n)[0, 0])


@pytest.mark.parametrize("height, width, radius", [(5, 7, 0), (6, 5, 1), (4, 9, 2), (3, 4, 9)])
def test_squares_are_counted_by_rows_and_by_columns(height, width, radius):
    rows, columns = (sliding_window(radius).pairs(length) for length in (height, width))
    assert window_2d(width, radius).pairs(height * width) == rows * columns


@given(st.integers(1, 7), st.integers(0, 4), st.integers(1, 40), st.integers(1, 40), small, st.data())
def test_blocks_of_squares_are_known_without_a_look(width, radius, queries, keys, size, data):
    later, mask = data.draw(st.tuples(st.integers(-9, 9), st.integers(-9, 9))), window_2d(width, radius)
    grid = Grid(queries, keys, size, *later)
    known = mask.own_runs(grid)
    padded = torch.nn.functional.pad(
        mask.shift(*later).dense(queries, keys)[0, 0], (0, -keys % size, 0, -queries % size)
    )
    count, area = (
        each.unflatten(1, (-1, size)).unflatten(0, (-1, size)).sum(dim=(1, 3))
        for each in (padded, torch.nn.functional.pad(torch.ones(queries, keys), (0, -keys % size, 0, -queries % size)))
    )
    assert torch.equal(
        known.state.repeat_interleave(known.length).view(count.shape), (count > 0).long() + (count == area)
    )


def test_documents_and_prefixes_are_counted():
    own = [3, 10, 1, 50]
    assert documents(own).pairs(64) == sum(n * n for n in own) == documents(own).pairs(200)
    assert (causal() & documents(own)).pairs(64) == sum(n * (n + 1) // 2 for n in own)
    assert prefix_lm([7, 0]).pairs(64) == 2 * 64 * 65 // 2 + 7 * 6 // 2
    assert prefix_lm(64).pairs(64) == full().pairs(64)


@pytest.mark.parametrize(
    "mask, live",
    [
        (bigbird(), 2 * 15625 + 15623 * (2 + 3 + 3) - 2),
        (documents([500] * 2000), None),
        (window_2d(1000, 3), None),
        (causal() & (block_local(1000) | summary_columns(100_000, 64)), None),
    ],
    ids=["bigbird", "documents", "window_2d", "fixed"],
)
def test_a_million_positions_are_planned(mask, live):
    plan = mask.blocks(1_000_000, size=64)
    assert plan.shape[2:] == (15625, 15625) and plan.live < 20 * 15625
    assert live is None or plan.live == live
    assert len(plan.runs.first) < 3 * plan.live


def test_layers_tell_a_mask_how_long_the_text_is():
    torch.manual_seed(0)
    x, mask = torch.randn(2, 24, 8), bigbird(2, 2, 3, 2) & padding([24, 20])
    layer = MultiHeadAttention(8, 2, mask=bigbird(2, 2, 3, 2))
    as_tensor = MultiHeadAttention(8, 2)
    as_tensor.load_state_dict(layer.state_dict())
    assert_close(layer(x, mask=padding([24, 20])), as_tensor(x, mask=mask.dense(24)))


def test_they_can_be_drawn_and_typed_in_again():
    masks = [bigbird(4, 1, 3, 2, seed=2), bigbird(4, 1, extra_tokens=3), strided(5), sparse_fixed(5, 2), prefix_lm(4)]
    for mask in masks:
        assert eval(repr(mask)) == mask
        assert plots.mask(mask, 32).alt
    assert plots.mask({"two documents": documents([20, 12])}, 32).alt.endswith(f"{400 + 144} of 1024 pairs")
    assert repr(random_blocks(4, 1, 0, 3, 1, 1, heads=2)) == "random_blocks(4, 1, 0, 3, 1, 1, heads=2)"
    assert repr(documents([3, 5])) == "documents(1×8)"


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: block_local(2, -1), "radius >= 0, got size=2, radius=-1"),
        (lambda: strided_keys(0), "stride >= 1, got stride=0"),
        (lambda: strided(0), "stride >= 1, got stride=0"),
        (lambda: sparse_fixed(4, 5), "1 <= columns <= stride, got columns=5, stride=4"),
        (lambda: global_blocks(4, -1), "first >= 0 .* first=-1"),
        (lambda: random_blocks(0, 1), "size >= 1 .* got size=0"),
        (lambda: random_blocks(4, 1, window=2), "an odd number of blocks, got window=2"),
        (lambda: bigbird(window=2), "odd window, .* got window=2"),
        (lambda: bigbird(global_blocks=-1), "global_blocks=-1"),
        (lambda: bigbird(block=0), "size >= 1 .* got size=0"),
        (lambda: window_2d(0, 1), "width >= 1 and radius >= 0, got width=0, radius=1"),
        (lambda: documents(), "documents needs either lengths, such as"),
        (lambda: documents([3], ids=torch.zeros(3)), "needs either lengths"),
        (lambda: documents([3, -1]), r"lengths >= 0, got \[3, -1\]"),
        (lambda: documents([]), "the length of at least one document"),
        (lambda: documents(ids=torch.tensor([0, -1])), "ids >= 0, got -1"),
        (lambda: documents(ids=torch.rand(3)), "integers .*float32"),
        (lambda: prefix_lm(-1), "lengths >= 0, got -1"),
    ],
)
def test_wrong_values_are_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_window_is_big_bird_without_the_rest():
    assert bigbird(4, 0, 3, 0) == block_local(4, 1)
    assert torch.equal(bigbird(1, 0, 5, 1).dense(20), (sliding_window(2) | global_tokens([0])).dense(20))
