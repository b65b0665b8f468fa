"""MAB, SAB, ISAB, PMA: against loops and torch's own attention, in any order, padded, and what they cost."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import load_attention, loop_attention, shake
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib.attention import (
    ISAB,
    MAB,
    PMA,
    SAB,
    AdditiveConfig,
    BlockSparseAttention,
    DenseAttention,
    FlashAttention,
    LayerContext,
    LinearAttention,
    causal,
    padding,
    padding_from_mask,
    recording,
    sliding_window,
)
from txlib.layers import BlockConfig

FORMULAS = ("code", "paper")
BLOCKS = {
    "sab": lambda **options: SAB(8, 2, d_in=3, **options),
    "isab": lambda **options: ISAB(8, 2, 3, d_in=3, **options),
    "pma": lambda **options: PMA(8, 2, 3, d_in=3, **options),
}
MECHANISMS = {
    "dense": DenseAttention,
    "flash": FlashAttention,
    "block sparse": BlockSparseAttention,
    "linear": LinearAttention,
    "additive": lambda: AdditiveConfig().make(BlockConfig.of_sizes(8, 2, 8), LayerContext(cross=True)),
}
every_block = pytest.mark.parametrize("name", BLOCKS)


def make(name, **options):
    return shake(BLOCKS[name](**options).double()).eval()


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def loop_mab(block, x, y, allowed=None, *, paper, scale):
    """The formulas of the docstring, one row and one head at a time."""
    attention, heads = block.attention, block.attention.heads
    q = x @ attention.query.weight.T + attention.query.bias if paper else x @ block.query.weight.T + block.query.bias
    k, v = (y @ each.weight.T + each.bias for each in (attention.key, attention.value))
    split = [torch.stack(each.chunk(heads, dim=-1), dim=1) for each in (q, k, v)]
    found, _ = loop_attention(*split, allowed, scale=scale)
    found = torch.cat(found.unbind(1), dim=-1)  # heads side by side
    h = x + found @ attention.output.weight.T + attention.output.bias if paper else q + found
    h = norm(block.attention_norm, h)
    return norm(block.linear_norm, h + (h @ block.linear.weight.T + block.linear.bias).clamp(min=0))


def norm(layer, x):
    """A layer norm written out, or nothing."""
    if isinstance(layer, nn.Identity):
        return x
    centered = x - x.mean(dim=-1, keepdim=True)
    return centered / (centered.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


# MAB is what its formulas say


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("normed", [True, False])
def test_mab_is_its_formula(formula, normed):
    d_query = 8 if formula == "paper" else 5
    block = shake(MAB(8, 2, d_query=d_query, d_memory=3, formula=formula, norm=normed).double())
    x, y, allowed = numbers(2, 4, d_query), numbers(2, 6, 3), torch.rand(2, 1, 4, 6) < 0.6
    allowed[0, 0, 1] = False  # one that sees nothing
    for mask in None, allowed:
        assert_close(block(x, y, mask), loop_mab(block, x, y, mask, paper=formula == "paper", scale=8**-0.5))


@pytest.mark.parametrize("normed", [True, False])
def test_the_papers_mab_is_torchs_attention_with_residuals(normed):
    block = shake(MAB(8, 2, d_memory=3, formula="paper", norm=normed, scale=4**-0.5).double())
    theirs = nn.MultiheadAttention(8, 2, kdim=3, vdim=3, batch_first=True).double()
    load_attention(theirs, block.attention)
    x, y = numbers(2, 4, 8), numbers(2, 6, 3)
    h = block.attention_norm(x + theirs(x, y, y)[0])
    assert_close(block(x, y), block.linear_norm(h + block.linear(h).relu()))


def test_the_codes_mab_is_torchs_attention_around_projected_queries():
    block = shake(MAB(8, 2, d_query=5, d_memory=3).double())
    theirs = nn.MultiheadAttention(8, 2, kdim=3, vdim=3, batch_first=True).double()
    with torch.no_grad():
        theirs.q_proj_weight.copy_(torch.eye(8) * (4 / 8) ** 0.5)  # theirs divides by the root of one head's width
        theirs.k_proj_weight.copy_(block.attention.key.weight)
        theirs.v_proj_weight.copy_(block.attention.value.weight)
        biases = (torch.zeros(8), block.attention.key.bias, block.attention.value.bias)
        theirs.in_proj_bias.copy_(torch.cat(biases))
        theirs.out_proj.weight.copy_(torch.eye(8))
        theirs.out_proj.bias.zero_()
    x, y = numbers(2, 4, 5), numbers(2, 6, 3)
    q = block.query(x)
    h = q + theirs(q, y, y)[0]
    assert_close(block(x, y), h + F.relu(block.linear(h)))


@pytest.mark.parametrize("formula", FORMULAS)
def test_blocks_are_made_of_mabs(formula):
    x = numbers(2, 6, 8)
    sab, isab, pma = (
        shake(kind(8, 2, *more, formula=formula).double()) for kind, *more in ((SAB,), (ISAB, 3), (PMA, 3))
    )
    paper = formula == "paper"

    def loop(mab, x, y):
        return loop_mab(mab, x, y, paper=paper, scale=8**-0.5)

    assert_close(sab(x), loop(sab.mab, x, x))
    points, seeds = (each.expand(2, 3, 8) for each in (isab.points, pma.seeds))
    assert_close(isab(x), loop(isab.outer, x, loop(isab.inner, points, x)))
    assert_close(pma(x), loop(pma.mab, seeds, pma.before[0](x).clamp(min=0) if paper else x))


def test_isab_with_as_many_points_as_elements_that_copy_them_is_sab():
    """Each point finds one element and hands it on: the elements then look at themselves."""
    n = 4
    x, sab, isab = numbers(1, n, n), SAB(n, 1).double(), ISAB(n, 1, points=n).double()
    isab.outer = shake(sab.mab)
    inner, tiny = isab.inner, 1e-9
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.zero_()
        isab.points.copy_(torch.eye(n))
        inner.query.weight.copy_(tiny * torch.eye(n))  # its residual is nothing
        inner.attention.key.weight.copy_(200 / tiny * torch.linalg.inv(x[0].T))  # point i fits element i alone
        inner.attention.value.weight.copy_(torch.eye(n))
    assert_close(inner(isab.points[None], x), x)
    assert_close(isab(x), sab(x))


# Any order, any size


@given(
    st.sampled_from(list(BLOCKS)),
    st.sampled_from(FORMULAS),
    st.sampled_from(list(MECHANISMS)),
    st.integers(1, 7),
    st.integers(0, 7),
)
def test_elements_in_another_order_give_the_same_in_that_order(name, formula, mechanism, size, hidden):
    block = {"sab": SAB, "isab": ISAB, "pma": PMA}[name]
    more = () if name == "sab" else (3,)
    block = shake(block(8, 2, *more, formula=formula, mechanism=MECHANISMS[mechanism]()).double()).eval()
    x, order, real = numbers(2, size, 8), torch.randperm(size), torch.ones(2, size)
    real[1, torch.randperm(size)[:hidden]] = 0
    given, moved = block(x, padding_from_mask(real)), block(x[:, order], padding_from_mask(real[:, order]))
    assert_close(moved, given if name == "pma" else given[:, order])


def test_another_order_is_noticed_where_attention_may():
    """What the test above would find: a mask of positions."""
    block, x = make("sab"), numbers(1, 5, 3)
    assert not torch.allclose(block(x.flip(1), causal()), block(x, causal()).flip(1))


@given(st.sampled_from(list(BLOCKS)), st.lists(st.integers(1, 6), min_size=3, max_size=3))
def test_sets_of_different_sizes_in_a_batch_are_each_as_if_alone(name, sizes):
    block, x = make(name, norm=True), numbers(3, 6, 3)
    marked = (torch.arange(6) < torch.tensor(sizes)[:, None])[:, None, None]  # (batch, 1, 1, elements)
    for mask in padding(sizes), marked:
        together = block(x, mask)
        for row, size in enumerate(sizes):
            end = None if name == "pma" else size
            assert_close(together[row, :end], block(x[row : row + 1, :size])[0])


@every_block
def test_empty_sets_are_finite_and_all_the_same(name):
    block, x = make(name), numbers(2, 4, 3)
    out = block(x, padding([0, 4]))
    assert out.isfinite().all()
    if name == "pma":
        assert_close(out[0], block(numbers(1, 9, 3), padding([0]))[0])
        assert not torch.allclose(out[0], out[1])


@every_block
@pytest.mark.parametrize("mechanism", ["flash", "block sparse"])
def test_exact_mechanisms_give_dense_attentions_numbers(name, mechanism):
    dense, other = make(name), BLOCKS[name](mechanism=MECHANISMS[mechanism]()).double()
    other.load_state_dict(dense.state_dict())
    x = numbers(2, 7, 3)
    assert_close(other(x, padding([7, 4])), dense(x, padding([7, 4])))


def test_a_pair_of_mechanisms_is_for_points_and_elements():
    block = make("isab", mechanism=(LinearAttention(), None))
    assert isinstance(block.inner.attention.mechanism, LinearAttention)
    assert isinstance(block.outer.attention.mechanism, DenseAttention)
    assert block(numbers(2, 5, 3)).shape == (2, 5, 8)


def test_weights_can_be_looked_at():
    block, x = make("isab"), numbers(2, 5, 3)
    with recording(block) as weights:
        block(x, padding([5, 2]))
    inner, outer = weights["inner.attention"][0], weights["outer.attention"][0]
    assert inner.shape == (2, 2, 3, 5) and outer.shape == (2, 2, 5, 3)
    assert_close(inner.sum(-1), torch.ones(2, 2, 3, dtype=torch.float64))
    assert not inner[1, ..., 2:].any()


# Cost


def operations(block, n):
    with FlopCounterMode(display=False) as counter:
        block(torch.randn(1, n, 8))
    return counter.get_total_flops()


def test_isab_costs_what_its_scores_and_projections_are():
    """2 operations for each product and sum: scores and averages of m points against n elements, twice."""
    d, m = 8, 5
    isab = ISAB(d, 2, m, mechanism=DenseAttention(fused=False))
    sab = SAB(d, 2, mechanism=DenseAttention(fused=False))
    for n in 64, 128, 1024:
        assert operations(isab, n) == 2 * (4 * n * m * d) + 4 * 2 * d * d * (n + m)  # four projections of each
        assert operations(sab, n) == 4 * n * n * d + 4 * 2 * d * d * n


# Refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MAB(8, 2, formula="book"), "formula='book' is unknown; choose 'code' or 'paper'"),
        (lambda: SAB(8, 2, d_in=3, formula="paper"), "its width d_query=3 must be d_model=8; project x first"),
        (lambda: MAB(8, 3), "d_model=8 is not divisible by heads=3"),
        (lambda: ISAB(8, 2, 0), "points=0 must be at least 1"),
        (lambda: PMA(8, 2, 0), "seeds=0 must be at least 1"),
        (lambda: SAB(8, 2)(torch.randn(1, 4, 3)), "x has width 3, this block takes d_query=8"),
        (lambda: MAB(8, 2)(torch.randn(1, 4, 8), torch.randn(1, 4, 3)), "expected .* = \\(1, any, 8\\)"),
        (lambda: ISAB(8, 2, 3)(torch.randn(1, 4, 8), causal()), "ISAB hides elements from all alike, .*: causal()"),
        (
            lambda: PMA(8, 2)(torch.randn(1, 4, 8), sliding_window(1)),
            "PMA hides .*: sliding_window\\(1\\); give padding",
        ),
        (
            lambda: PMA(8, 2)(torch.randn(1, 4, 8), torch.ones(1, 1, 4, 4).bool()),
            "differs from query to query: a tensor of shape \\(1, 1, 4, 4\\)",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_mask_is_refused():
    with pytest.raises(TypeError, match="mask=padding is a function; call it"):
        PMA(8, 2)(torch.randn(1, 4, 8), padding)
