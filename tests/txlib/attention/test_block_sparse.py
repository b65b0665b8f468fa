"""`BlockSparseAttention` against dense attention, a plain loop, counted operations and the memory that it takes."""

import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_trees import masks
from oracles import loop_attention, shake
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from txlib.attention import (
    AlibiBias,
    BlockSparseAttention,
    BlockSparseConfig,
    BucketBias,
    DenseAttention,
    FlashAttention,
    LayerContext,
    Mask,
    MultiHeadAttention,
    SkewedBias,
    WindowKeyValueCache,
    attention,
    bigbird,
    block_local,
    block_loop,
    block_schedule,
    causal,
    dilated,
    flex,
    for_each_head,
    global_tokens,
    padding,
    padding_from_mask,
    prefix_lm,
    sliding_window,
    strided,
)
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

BATCH, HEADS = 3, 4  # of the masks
CLOSE = {
    torch.float64: ({"atol": 1e-12, "rtol": 1e-11},) * 2,
    torch.float32: ({"atol": 1e-5, "rtol": 1e-5}, {"atol": 1e-4, "rtol": 1e-4}),
}
lengths = st.integers(1, 24)


def qkv(query, key, *, batch=BATCH, heads=HEADS, kv_heads=None, head_dim=4, value_dim=None, dtype=torch.float64):
    kv_heads, value_dim = kv_heads or heads, value_dim or head_dim
    shapes = (batch, heads, query, head_dim), (batch, kv_heads, key, head_dim), (batch, kv_heads, key, value_dim)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_equal_to_dense(mechanism, inputs, mask, bias=lambda: None, parameters=()):
    """Outputs and gradients. `bias` makes it: each way has a graph of its own."""
    dense = DenseAttention(fused=False).train(mechanism.training)
    sources = [*inputs, *parameters]
    outs = [way(*inputs, mask, bias=bias()) for way in (mechanism, dense)]
    forward, backward = CLOSE[inputs[0].dtype]
    assert_close(*outs, **forward)
    grad_out = torch.randn_like(outs[0])
    gradients = [torch.autograd.grad(out, sources, grad_out) if out.requires_grad else None for out in outs]
    if gradients[0] is None:  # nothing is seen at all
        assert all((gradient == 0).all() for gradient in gradients[1])
    else:
        assert_close(*gradients, **backward)


@settings(max_examples=25)
@given(
    masks,
    lengths,
    lengths,
    st.integers(1, 6),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((2, 4)),
    st.sampled_from(list(CLOSE)),
)
def test_equals_dense_attention_for_every_mask(mask, query, key, block_size, kv_heads, value_dim, dtype):
    inputs = qkv(query, key, kv_heads=kv_heads, value_dim=value_dim, dtype=dtype)
    assert_equal_to_dense(BlockSparseAttention(block_size=block_size), inputs, mask)


@given(masks, st.integers(3, 7), st.integers(1, 7))
def test_equals_a_loop_for_every_mask(mask, query, key):
    q, k, v = qkv(query, key, kv_heads=2)
    expected, _ = loop_attention(q, for_each_head(k, HEADS), for_each_head(v, HEADS), mask.dense(query, key))
    assert_close(BlockSparseAttention(block_size=2)(q, k, v, mask), expected)


@given(st.tuples(*(st.booleans(),) * 3), st.sampled_from((0.0, 0.1, 0.6)), st.integers(1, 5))
def test_a_tensor_is_a_mask_too(shared, share, block_size):
    shape = [1 if one else size for one, size in zip(shared, (BATCH, HEADS, 9), strict=True)]
    assert_equal_to_dense(BlockSparseAttention(block_size=block_size), qkv(9, 7), torch.rand(*shape, 7) < share)


WINDOW = causal() & sliding_window(3)
STRIPES = (WINDOW | global_tokens([0, 9])) & padding([12, 5, 0])


@pytest.mark.parametrize("mask", [None, WINDOW, STRIPES, bigbird(2, 1, 1, 1) & padding([12, 1, 7])], ids=str)
def test_equals_dense_attention_however_it_is_cut(mask, monkeypatch):
    """Few scores at a time, few kept: what long sequences and many heads come to."""
    monkeypatch.setattr(block_schedule, "MAX_SCORES", 10)
    monkeypatch.setattr(block_schedule, "MAX_CACHED_ENTRIES", 20)
    monkeypatch.setattr(block_loop, "SCORES_PER_TILE", 30)
    monkeypatch.setattr(block_schedule, "cached_schedule", block_schedule.new_schedule)
    for inputs in qkv(12, 12), qkv(12, 12, kv_heads=2):
        assert_equal_to_dense(BlockSparseAttention(block_size=4), inputs, mask)


@pytest.mark.parametrize("mask", [bigbird(4, 1, 3, 2, heads=4), causal() & sliding_window(6)], ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_blocks_that_continue_each_other_are_computed_together_where_they_fit(mask, kv_heads, monkeypatch):
    inputs = qkv(64, 64, batch=2, kv_heads=kv_heads)
    mechanism, products = BlockSparseAttention(block_size=4), []
    monkeypatch.setattr(torch, "bmm", lambda a, b, product=torch.bmm: products.append(len(a)) or product(a, b))
    calls = []
    for scores in (1, 500, 2**18):
        monkeypatch.setattr(block_loop, "SCORES_PER_TILE", scores)
        products.clear()
        assert_equal_to_dense(mechanism, inputs, mask)
        calls.append(len(products))
    alone, few, all_of_them = calls
    assert all_of_them < few < alone


def test_what_is_not_kept_is_computed_when_needed(monkeypatch):
    arguments = STRIPES, 12, 12, 4, torch.device("cpu")
    whole = block_schedule.new_schedule(*arguments)
    monkeypatch.setattr(block_schedule, "MAX_CACHED_ENTRIES", 60)
    part = block_schedule.new_schedule(*arguments)
    assert {partial.additive_mask is None for block in part.query_blocks for partial in block.partial_blocks} == {
        True,
        False,
    }
    for one, other in zip(whole.query_blocks, part.query_blocks, strict=True):
        for kept, computed in zip(one.partial_blocks, other.partial_blocks, strict=True):
            assert torch.equal(kept.additive_mask, part.additive_mask(other, computed))


def test_heads_may_come_out_of_a_projection():
    """Side by side in the last axis, as a layer has them: nothing may ask for memory in another order."""
    joined = torch.randn(BATCH, 10, 3 * HEADS * 4, dtype=torch.float64, requires_grad=True)
    mechanism, mask = BlockSparseAttention(block_size=4), WINDOW & padding([9, 10, 3])
    gradients = []
    for way in mechanism, DenseAttention(fused=False):
        out = way(*joined.view(BATCH, 10, 3, HEADS, 4).permute(2, 0, 3, 1, 4), mask)
        gradients += torch.autograd.grad(out.transpose(1, 2).flatten(2).square().sum(), joined)
    assert_close(*gradients)


def test_gradient():
    q, k, v = qkv(7, 8, batch=2, heads=2, kv_heads=1, head_dim=2)
    mask = (causal() & sliding_window(2)).shift(1) & padding([8, 0])
    assert torch.autograd.gradcheck(BlockSparseAttention(block_size=3), (q, k, v, mask))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_close_to_double(dtype):
    exact = qkv(40, 40)
    few = [each.detach().to(dtype).requires_grad_() for each in exact]
    outs = [BlockSparseAttention(block_size=8)(*inputs, STRIPES) for inputs in (exact, few)]
    assert outs[1].dtype == dtype
    assert_close(outs[1].double(), outs[0], atol=0.05, rtol=0.05)
    for out in outs:
        out.sum().backward()
    for one, other in zip(exact, few, strict=True):
        assert other.grad.dtype == dtype
        assert_close(other.grad.double(), one.grad, atol=0.1, rtol=0.05)


def test_autocast_is_honored():
    inputs = qkv(9, 9, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = BlockSparseAttention(block_size=4)(*inputs, WINDOW)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert inputs[0].grad.dtype == torch.float32


# Dropout --------------------------------------------------------------------------------------------------------------


def test_dropout_drops_weights_while_training():
    q, k, _ = qkv(6, 6, batch=1, heads=1, dtype=torch.float32)
    values = torch.eye(6)[None, None]  # the output is then the dropped weights
    mechanism = BlockSparseAttention(0.25, block_size=2)
    weights = mechanism.weights(q, k, WINDOW)
    assert_close(mechanism.eval()(q, k, values, WINDOW), weights)
    mechanism.train()
    draws = torch.stack([mechanism(q, k, values, WINDOW) for _ in range(400)]).detach()
    allowed = WINDOW.dense(6)
    assert_close(draws[draws != 0], (weights / 0.75).expand_as(draws)[draws != 0])
    assert (draws[:, allowed] == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert (draws[:, ~allowed] == 0).all()
    assert_close(draws.mean(0), weights, atol=0.08, rtol=0)


def test_backward_drops_what_forward_dropped():
    mechanism = BlockSparseAttention(0.5, block_size=2)

    def seeded(q, k, v):
        torch.manual_seed(3)
        return mechanism(q, k, v, STRIPES)

    assert torch.autograd.gradcheck(seeded, qkv(5, 5, head_dim=2, heads=1))


# Biases ---------------------------------------------------------------------------------------------------------------


@given(masks, st.integers(1, 12), st.integers(0, 5), st.sampled_from((2, 4)))
def test_biases_by_distance_join_any_mask(mask, query, ahead, kv_heads):
    inputs = qkv(query, query + ahead, kv_heads=kv_heads)
    for part in AlibiBias(HEADS), BucketBias(HEADS, buckets=8, max_distance=10).double():
        parameters = list(part.parameters())
        assert_equal_to_dense(
            BlockSparseAttention(block_size=3),
            inputs,
            mask,
            lambda part=part: part(inputs[0], query + ahead),
            parameters,
        )


def test_a_bias_of_all_pairs_is_refused():
    layer = MultiHeadAttention(
        8, 2, mechanism=BlockSparseAttention(block_size=2), position_bias=SkewedBias(2, 4, max_length=9)
    )
    with pytest.raises(ValueError, match=r"BlockSparseAttention.* \(1, 2, 5, 5\); use DenseAttention, or .*AlibiBias"):
        layer(torch.randn(1, 5, 8), mask=causal())


# Cost -----------------------------------------------------------------------------------------------------------------


def flops(mask, length, *, heads=2, head_dim=8):
    """Of forward, and of both."""
    q, k, v = qkv(length, length, batch=1, heads=heads, head_dim=head_dim, dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        out = BlockSparseAttention()(q, k, v, mask)
        forward = counter.get_total_flops()
        out.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize(
    "mask, most",
    [
        (causal() & sliding_window(256), 1.3),  # blocks of 64 at both ends of the window
        (sliding_window(256), 1.2),
        (sliding_window(256) | global_tokens([0]), 1.3),
        (bigbird(64, 3, 3, 2), 1.01),
        (bigbird(64, 3, 3, 2, heads=2), 1.01),
        (causal(), 1.1),
    ],
    ids=str,
)
def test_products_are_those_of_the_allowed_pairs(mask, most):
    """Two products forward and five backward, of 2 · head_dim operations for a pair."""
    length, head_dim = 1500, 8
    pairs = mask.pairs(length) * 2 // mask.heads
    forward, both = flops(mask, length, head_dim=head_dim)
    assert 1 <= forward / (4 * head_dim * pairs) < most
    assert both == forward * 7 / 2


def test_a_window_costs_linearly():
    mask = causal() & sliding_window(100)
    (once, _), (twice, _) = flops(mask, 1024), flops(mask, 2048)
    assert 1.9 < twice / once < 2.15


class Largest(TorchDispatchMode):
    """How many entries the largest tensor has that is made inside."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, torch.Tensor):
                self.entries = max(self.entries, each.untyped_storage().nbytes() // each.element_size())
        return out


@pytest.mark.parametrize(
    "mask", [causal() & sliding_window(64), sliding_window(31) | global_tokens([0, 5000]), dilated(20, 3)], ids=str
)
def test_nothing_of_all_pairs_is_ever_built(mask):
    length = 8192
    q, k, v = qkv(length, length, batch=1, heads=1, head_dim=16, dtype=torch.float32)
    with Largest() as largest:
        BlockSparseAttention()(q, k, v, mask).sum().backward()
    assert q.numel() <= largest.entries < 5 * q.numel() < length**2 / 100


# In a layer and in a model --------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 5))
def test_a_window_wider_than_the_sequence_is_dense_attention(length, more):
    inputs = qkv(length, length)
    out = BlockSparseAttention(block_size=4)(*inputs, sliding_window(length + more))
    assert_close(out, attention(*inputs))


MASKS = {
    "window": {"mask": WINDOW},
    "window and global": {"mask": sliding_window(2) | global_tokens([0])},
    "one for each layer": {"layer_pattern": ({"mask": sliding_window(1)}, {"mask": dilated(2, 2)})},
}


@pytest.mark.parametrize("position", ["rotary_half", "alibi", "t5"])
@pytest.mark.parametrize("name", MASKS)
def test_a_gpt_with_it_is_the_dense_gpt(name, position):
    options = {"d_model": 16, "heads": 4, "d_ff": 32, "kv_heads": 2, "position": position, **MASKS[name]}
    config = GPTConfig(20, BlockConfig.of_sizes(**options, mechanism=BlockSparseConfig(block_size=4)), layers=2)
    again = GPTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    sparse, dense = GPT(again), GPT(GPTConfig(20, BlockConfig.of_sizes(**options), layers=2))
    assert isinstance(sparse.decoder.layers[0].self_attention.mechanism, BlockSparseAttention)
    dense.load_state_dict(shake(sparse).state_dict())
    ids, attention_mask = torch.randint(20, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    attention_mask[1, 7:] = 0
    outs = [model(ids, attention_mask, labels=ids) for model in (sparse, dense)]
    assert_close(outs[0].logits[0], outs[1].logits[0])
    assert_close(outs[0].logits[1, :7], outs[1].logits[1, :7])
    for out in outs:
        out.loss.backward()
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        assert_close(one.grad, other.grad)


def test_dropout_of_a_block_is_the_mechanisms():
    block = BlockConfig.of_sizes(8, 2, 16, attention_dropout=0.2, mechanism=BlockSparseConfig())
    assert block.attention.mechanism.make(block, LayerContext()).dropout == 0.2


def test_a_windows_cache_decodes_in_constant_memory():
    layer = MultiHeadAttention(8, 2, mechanism=BlockSparseAttention(block_size=4), mask=sliding_window(5)).double()
    x = torch.randn(1, 60, 8, dtype=torch.float64)
    with torch.no_grad():
        whole = layer(x, mask=causal())
        cache, outs, largest = WindowKeyValueCache(5), [], []
        for start, end in [(0, 9), *((i, i + 1) for i in range(9, 50)), (50, 60)]:
            with Largest() as watched:
                outs.append(layer(x[:, start:end], mask=causal(), cache=cache))
            largest.append(watched.entries)
            assert cache.k.shape[-2] == 5
        assert_close(torch.cat(outs, dim=1), whole)
    assert len(set(largest[1:-1])) == 1
    layer.mechanism = DenseAttention()
    assert_close(layer(x, mask=causal()), whole)


def test_without_a_windows_cache_a_new_token_costs_no_more(monkeypatch):
    mechanism, keys = BlockSparseAttention(), []
    dense = mechanism.dense.forward
    monkeypatch.setattr(
        mechanism.dense,
        "forward",
        lambda q, k, *rest, **options: keys.append(k.shape[-2]) or dense(q, k, *rest, **options),
    )
    inputs, mask = qkv(1, 300, batch=1), (causal() & sliding_window(10)).shift(299)
    assert_close(mechanism(*inputs, mask), attention(*inputs, mask))
    assert keys == [11]


# What is kept ---------------------------------------------------------------------------------------------------------


def test_layers_share_what_is_worked_out():
    block_schedule.cached_schedule.cache_clear()
    inputs = qkv(12, 12)
    for _ in range(3):
        BlockSparseAttention(block_size=4)(*inputs, causal() & sliding_window(3) & padding([12, 5, 7]))
    assert block_schedule.cached_schedule.cache_info()[:2] == (2, 1)  # hits, misses


def test_a_mask_that_was_written_into_is_seen():
    inputs, attention_mask = qkv(9, 9), torch.ones(BATCH, 9, dtype=torch.bool)
    mechanism = BlockSparseAttention(block_size=4)
    mechanism(*inputs, padding_from_mask(attention_mask))
    attention_mask[1, 4:] = False
    assert_close(mechanism(*inputs, padding_from_mask(attention_mask)), attention(*inputs, padding([9, 4, 9])))


def test_equal_tiles_are_kept_once():
    made = block_schedule.new_schedule(WINDOW, 400, 400, 4, torch.device("cpu"))
    assert len({id(partial.additive_mask) for block in made.query_blocks for partial in block.partial_blocks}) == 2


SCORES = {
    "capped": {"softcap": 0.7},
    "sinks": {"sinks": True},
    "both": {"softcap": 0.7, "sinks": True},
}


@pytest.mark.parametrize("options", SCORES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    "mask", [None, causal() & sliding_window(5), padding([24, 7, 0]), block_local(4) & causal()], ids=str
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_softcap_and_sinks_equal_dense_attention(options, biased, mask, kv_heads, unchecked):
    """Outputs and gradients, also of the sinks."""
    inputs, options = qkv(24, 24, kv_heads=kv_heads), dict(SCORES[options])
    sources = list(inputs)
    if "sinks" in options:
        options["sinks"] = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
        sources.append(options["sinks"])
    bias = AlibiBias(HEADS)(inputs[0], 24) if biased else None
    ways = BlockSparseAttention(block_size=4), DenseAttention()
    outs = [way(*inputs, mask, bias=bias, **options) for way in ways]
    assert_close(*outs)
    grad_out = torch.randn_like(outs[0])
    assert_close(*[torch.autograd.grad(out, sources, grad_out) for out in outs])


# FlexAttention --------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """torch's compiler writes into the environment where it keeps its files."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


@pytest.fixture
def eager_flex(monkeypatch, unchecked, compiler):
    """FlexAttention as it is without a compiler, and chosen as on a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    calls = []

    def eager(*args, **options):
        calls.append(options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "slow unless compiled"
            return flex_attention(*args, **options)

    monkeypatch.setattr(flex, "compiled_flex", lambda: eager)
    monkeypatch.setattr(flex, "prefers_flex", lambda q, mask, dropout: not dropout)
    monkeypatch.setattr(flex, "BLOCK_SIZE", 16)
    flex.cached_block_mask.cache_clear()
    return calls


FLEX = [
    None,
    causal() & (sliding_window(9) | global_tokens([0, 20])),
    dilated(3, 5) & padding([64, 17, 0]),
    Mask(lambda batch, head, query, key: (query - key).abs() <= 8 * head, heads=HEADS),
]


@pytest.mark.parametrize("mask", FLEX, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_flex_attention_gives_the_same_numbers(mask, biased, eager_flex):
    inputs = [each.detach() for each in qkv(64, 64, kv_heads=2, head_dim=16, dtype=torch.float32)]
    bias = AlibiBias(HEADS)(inputs[0], 64) if biased else None
    mechanism = BlockSparseAttention(block_size=8)
    out = mechanism(*inputs, mask, bias=bias)
    assert len(eager_flex) == 1
    assert_close(out, DenseAttention(fused=False)(*inputs, mask, bias=bias))


@pytest.mark.parametrize("options", SCORES)
@pytest.mark.parametrize("mask", FLEX, ids=str)
def test_softcap_and_sinks_through_flex_attention(options, mask, eager_flex):
    inputs = [each.detach() for each in qkv(64, 64, kv_heads=2, head_dim=16, dtype=torch.float32)]
    options = dict(SCORES[options])
    if "sinks" in options:
        options["sinks"] = torch.randn(HEADS)
    for bias in (None, AlibiBias(HEADS)(inputs[0], 64)):
        out = BlockSparseAttention(block_size=8)(*inputs, mask, bias=bias, **options)
        assert_close(out, DenseAttention()(*inputs, mask, bias=bias, **options))
    assert len(eager_flex) == 2


def test_where_flex_attention_is_not_compiled_the_loop_gives_the_same_numbers(eager_flex, monkeypatch):
    inputs, mask = [each.detach() for each in qkv(20, 20, dtype=torch.float32)], causal() & sliding_window(2)
    mechanism = BlockSparseAttention(block_size=8)
    expected, tried = mechanism(*inputs, mask), []
    assert len(eager_flex) == 1

    def broken(*args, **options):
        tried.append(1)
        raise RuntimeError("no triton here\nand a long trace")

    monkeypatch.setattr(flex, "compiled_flex", lambda: broken)
    monkeypatch.setattr(flex, "not_compiled", set())
    with pytest.warns(UserWarning, match=r"can't be compiled for .*sliding_window\(2\).* \(no triton here\); a loop"):
        assert_close(mechanism(*inputs, mask), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(mechanism(*inputs, mask), expected)  # said once, tried once
    assert len(tried) == 1
    for lengths in ([20, 3, 5], [7, 20, 1]):  # one kind of mask
        with warnings.catch_warnings(record=True) as said:
            mechanism(*inputs, padding(lengths) & causal())
    assert len(tried) == 2 and not said

    def too_large(*args, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(flex, "compiled_flex", lambda: too_large)
    with pytest.raises(torch.OutOfMemoryError):
        mechanism(*inputs, causal() & sliding_window(3))


def test_flex_attention_is_compiled_for_many_masks(eager_flex, monkeypatch):
    """torch's own limit is eight."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, fullgraph=True, backend="eager")
    monkeypatch.setattr(flex, "compiled_flex", lambda: compiled)
    inputs, mechanism = [each.detach() for each in qkv(20, 20, dtype=torch.float32)], BlockSparseAttention(block_size=8)
    masks = [causal(), sliding_window(3), block_local(4), prefix_lm(3), strided(3)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="FlexAttention can't")
        for mask in [*masks, *(~mask for mask in masks)]:
            assert_close(mechanism(*inputs, mask), DenseAttention()(*inputs, mask))


def test_a_compiler_leaves_the_plan_alone(unchecked, compiler):
    inputs = [each.detach() for each in qkv(24, 24, dtype=torch.float32)]
    for mechanism in BlockSparseAttention(block_size=8), FlashAttention(triton=False, tile=8):
        expected = mechanism(*inputs, causal())
        known = block_schedule.cached_schedule.cache_info().misses
        compiled = torch.compile(mechanism, backend="eager")
        assert_close(compiled(*inputs, causal()), expected)
        assert block_schedule.cached_schedule.cache_info().misses == known


def test_flex_attention_is_for_rules_on_a_gpu(unchecked):
    def on(device, head_dim=16):
        return SimpleNamespace(device=torch.device(device), shape=(1, 1, 4, head_dim))

    assert flex.prefers_flex(on("cuda"), causal(), 0.0) and flex.prefers_flex(on("cuda"), None, 0.0)
    assert not flex.prefers_flex(on("cpu"), causal(), 0.0)
    assert not flex.prefers_flex(on("cuda", head_dim=8), causal(), 0.0)  # it can't be compiled
    assert not flex.prefers_flex(on("cuda"), causal(), 0.1)
    assert not flex.prefers_flex(on("cuda"), causal().dense(4), 0.0)


# What is refused ------------------------------------------------------------------------------------------------------


def test_wrong_calls_say_what_to_do(unchecked):
    q, k, v = qkv(5, 5)
    mechanism = BlockSparseAttention(block_size=2)
    with pytest.raises(ValueError, match="padding.* has batch=2, heads=1, .* batch=3, heads=4, or 1"):
        mechanism(q, k, v, padding([1, 2]))
    with pytest.raises(ValueError, match=r"\(3, 4, 5, 4\).*\(3, 4, 5, 5\)"):
        mechanism(q, k, v, torch.ones(3, 4, 5, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask=causal is a function; call it"):
        mechanism(q, k, v, causal)
    with pytest.raises(ValueError, match="block_size=0 must be at least 1"):
        BlockSparseAttention(block_size=0)
    with pytest.raises(ValueError, match=r"dropout=1.0 must be in \[0, 1\)"):
        BlockSparseAttention(1.0)
