"""The contract of a mechanism, by three of one's own: without weights, picky about masks, in need of the length."""

import json
import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from txlib.attention import (
    AlibiBias,
    BigBirdAttention,
    BlockSparseAttention,
    DenseAttention,
    DenseConfig,
    FlashAttention,
    GatedLinearAttention,
    KeyValueCache,
    LayerContext,
    LinearAttention,
    Linformer,
    Mask,
    MechanismConfig,
    MemoryCompressedAttention,
    MultiHeadAttention,
    Nystrom,
    Performer,
    StateCache,
    WindowKeyValueCache,
    as_dense,
    causal,
    for_each_head,
    padding,
    recording,
    sliding_window,
)
from txlib.attention.mechanism import check_inputs
from txlib.layers import BlockConfig, Rotary, TransformerBlock


class MeanOfValues(nn.Module):
    """All keys count alike, so there are no weights worth a name; it knows nothing of biases."""

    def forward(self, q, k, v, mask=None):
        allowed = as_dense(mask, q, k)
        v = for_each_head(v, q.shape[1])
        share = v.new_ones(*q.shape[:-1], k.shape[-2]) if allowed is None else allowed.expand(*q.shape[:-1], -1).to(v)
        return share @ v / share.sum(-1, keepdim=True).clamp(min=1)


class LooksBack(nn.Module):
    """Dense, but it refuses every mask that is not known to be causal."""

    def __init__(self):
        super().__init__()
        self.dense = DenseAttention()

    def forward(self, q, k, v, mask=None, *, bias=None):
        if not isinstance(mask, Mask) or not mask.is_causal(q.shape[-2], k.shape[-2]):
            raise ValueError(
                f"LooksBack is causal, and this mask is not: {mask}; add & causal(), or use DenseAttention"
            )
        return self.dense(q, k, v, mask, bias=bias)


class Projected(nn.Module):
    """Keys and values mixed down to a few, by matrices as long as the longest sequence (Wang et al. 2020, eq. 7)."""

    def __init__(self, max_length, few):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(few, max_length))

    def forward(self, q, k, v, mask=None):
        if mask is not None:
            raise ValueError(f"Projected mixes all positions and cannot honor {mask}; use DenseAttention")
        mix = self.mix[:, : k.shape[-2]].to(k)
        return DenseAttention()(q, mix @ k, mix @ v)


@dataclass(frozen=True)
class ProjectedConfig(MechanismConfig, name="projected, in a test"):
    few: int = 4

    def make(self, block, layer):
        if layer.max_length is None:
            raise ValueError("Projected needs the longest length; the model that holds it must have one")
        return Projected(layer.max_length, min(self.few, layer.max_length))


@dataclass(frozen=True)
class WindowConfig(MechanismConfig, name="window, in a test"):
    """With all that a config may hold: a mask, numbers for each layer, a flag."""

    mask: Mask
    sizes: tuple[int, ...]
    wide: bool = False

    def make(self, block, layer):
        return DenseAttention()


def test_a_mechanism_may_have_no_weights():
    layer = MultiHeadAttention(12, 4, kv_heads=2, mechanism=MeanOfValues())
    x = torch.randn(2, 5, 12)
    values = for_each_head(layer.split(layer.value(x)), 4)
    mean = values.cumsum(2) / torch.arange(1, 6)[:, None]
    assert_close(layer(x, mask=causal()), layer.output(mean.transpose(1, 2).flatten(2)))
    model = nn.ModuleDict({"first": layer})
    with (
        pytest.raises(ValueError, match=r"MeanOfValues in first has none to show.*weights\(q, k, mask\)"),
        recording(model),
    ):
        pass
    with pytest.raises(ValueError, match="MeanOfValues takes no position bias, got AlibiBias"):
        MultiHeadAttention(12, 4, mechanism=MeanOfValues(), position_bias=AlibiBias(4))


def test_a_mechanism_refuses_by_name():
    layer, x = MultiHeadAttention(12, 4, mechanism=LooksBack()), torch.randn(2, 5, 12)
    same = MultiHeadAttention(12, 4)
    same.load_state_dict(layer.state_dict())
    for mask in (causal(), causal() & padding([5, 2]), causal() & sliding_window(2)):
        assert_close(layer(x, mask=mask), same(x, mask=mask))
    with pytest.raises(ValueError, match=r"LooksBack is causal, .* not: sliding_window\(2\); add & causal"):
        layer(x, mask=sliding_window(2))


def test_a_mechanism_is_told_the_longest_length():
    config = BlockConfig.of_sizes(12, 4, 16, mechanism=ProjectedConfig(few=8))
    block = TransformerBlock(config, layer=LayerContext(max_length=8))
    dense = TransformerBlock(BlockConfig.of_sizes(12, 4, 16))
    dense.load_state_dict({name: each for name, each in block.state_dict().items() if not name.endswith("mix")})
    x = torch.randn(2, 8, 12)
    assert_close(block(x), dense(x))  # as many as there are, unmixed
    with pytest.raises(ValueError, match="Projected needs the longest length"):
        TransformerBlock(config)
    with pytest.raises(ValueError, match=r"cannot honor padding\(\[3, 1\]\)"):
        block(x, padding([3, 1]))


@pytest.mark.parametrize(
    "config",
    [
        DenseConfig(),
        DenseConfig(fused=False),
        ProjectedConfig(3),
        WindowConfig(causal() & sliding_window(2), (1, 2), True),
    ],
)
def test_mechanism_configs_are_written_down_and_read(config):
    again = MechanismConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and hash(again) == hash(config)


class Spy(nn.Module):
    """Dense attention that notes what it was given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, q, k, v, mask=None):
        self.seen.append((mask, k.shape[1], k.shape[-2]))
        return DenseAttention()(q, k, v, mask)


def test_heads_stay_shared_and_masks_stay_rules_with_a_cache():
    spy, cache, x = Spy(), KeyValueCache(), torch.randn(2, 5, 12)
    layer = MultiHeadAttention(12, 4, kv_heads=2, mechanism=spy, mask=sliding_window(2))
    for chunk in x.split((3, 2), dim=1):
        layer(chunk, mask=causal(), cache=cache)
    rule = causal() & sliding_window(2)
    assert spy.seen == [(rule, 2, 3), (rule.shift(3), 2, 5)]


class RunningMean(nn.Module):
    """Each query gets the mean of the values so far; of the past it keeps a sum and a count."""

    def new_cache(self):
        return StateCache()

    def forward(self, q, k, v, mask=None, *, cache=None):
        real = torch.ones(k.shape[0], 1, 1, k.shape[-2], dtype=torch.bool)
        for part in () if mask is None else mask.conjuncts():
            real = real & part.dense(1, k.shape[-2]) if part.only_keys else real
        v = for_each_head(v, q.shape[1]) * real.mT
        both = torch.cat([v, real.mT.expand(*v.shape[:-1], 1).to(v)], dim=-1).cumsum(dim=2)
        if cache is not None:
            both = both + cache.state[0] if cache.state else both
            cache.state = (both[:, :, -1:],)
        return both[..., :-1] / both[..., -1:].clamp(min=1)


@dataclass(frozen=True)
class RunningMeanConfig(MechanismConfig, name="running mean, in a test"):
    def make(self, block, layer):
        return RunningMean()


def test_a_mechanism_may_keep_a_state_in_place_of_keys():
    config = BlockConfig.of_sizes(12, 2, 16, kv_heads=1, position="rotary", mechanism=RunningMeanConfig())
    block, x, real = TransformerBlock(config).double(), torch.randn(3, 9, 12).double(), padding([9, 2, 6])
    cache, rows = block.new_cache(capacity=9), torch.tensor([2, 0, 0])
    outs = [block(chunk, causal() & real, cache=cache) for chunk in x[:, :5].split((1, 4), dim=1)]
    assert_close(torch.cat(outs, dim=1), block(x[:, :5], causal() & real))
    cache.reorder(rows)
    last = block(x[rows, 5:], causal() & padding([6, 9, 9]), cache=cache)
    assert_close(last, block(x, causal() & real)[rows, 5:])
    own = cache.self_attention
    assert own.length == 9 and own.state[0].shape == (3, 2, 1, 7)
    cache.crop(9)
    with pytest.raises(ValueError, match="a state sums up 9 positions and cannot forget only those from 4 on"):
        cache.crop(4)
    cache.crop(0)
    assert_close(block(x, causal() & real, cache=cache), block(x, causal() & real))


WRONG = [
    (lambda layer, x: layer(x, mask=causal), TypeError, r"mask=causal is a function; call it: causal\(…\)"),
    (lambda layer, x: layer(x, mask=[[1]]), TypeError, "a mask is a txlib Mask, a bool tensor or None, got list"),
    (lambda layer, x: layer(x, causal()), TypeError, r"second argument is the memory.*write mask=causal\(\)"),
    (lambda layer, x: layer(x[..., :8]), ValueError, "x has width 8, this layer takes d_model=12"),
    (lambda layer, x: layer(x, x[:1]), ValueError, r"memory has shape \(1, 5, 12\), expected .* \(2, any, 12\)"),
    (lambda layer, x: layer(x, x[..., :8]), ValueError, r"memory has shape \(2, 5, 8\)"),
    (lambda layer, x: MultiHeadAttention("32", 4), TypeError, "d_model='32' must be an integer"),
    (lambda layer, x: MultiHeadAttention(32, 4.0), TypeError, "heads=4.0 must be an integer"),
    (
        lambda layer, x: MultiHeadAttention(32, 4, rotary=Rotary(16)),
        ValueError,
        r"of 16, .* = 8; use Rotary\(8\)",
    ),
    (lambda layer, x: MultiHeadAttention(32, 4, dropout=2), ValueError, r"dropout=2 must be in \[0, 1\)"),
    (lambda layer, x: DenseAttention(1.0), ValueError, r"dropout=1.0 must be in \[0, 1\)"),
    (lambda layer, x: MultiHeadAttention(32, 4, mechanism=Spy(), dropout=0.1), ValueError, "give it to the mechanism"),
    (lambda layer, x: MultiHeadAttention(32, 4, mechanism=Spy), TypeError, "is not a module; give an instance"),
]


@pytest.mark.parametrize("call, error, words", WRONG)
def test_wrong_calls_say_what_to_do(call, error, words, unchecked):
    with pytest.raises(error, match=words):
        call(MultiHeadAttention(12, 4), torch.randn(2, 5, 12))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"v": torch.zeros(2, 4, 3, 8)}, "each key needs a value, got q (2, 4, 5, 8), k (2, 4, 5, 8), v (2, 4, 3, 8)"),
        ({"k": torch.zeros(2, 4, 5, 6)}, "batch and width"),
        ({"k": torch.zeros(3, 4, 5, 8), "v": torch.zeros(3, 4, 5, 8)}, "batch and width"),
        ({"k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 8)}, "heads that divide theirs"),
        ({"q": torch.zeros(4, 5, 8)}, r"takes (batch, heads, length, width), got q (4, 5, 8)"),
        ({"k": torch.zeros(2, 4, 5, 8, device="meta")}, "q is on cpu, k on meta, v on cpu"),
        ({"v": torch.zeros(2, 4, 5, 8, dtype=torch.double)}, "v torch.float64: convert them to one"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_kernel_reads_it(changed, named):
    given = {name: torch.zeros(2, 4, 5, 8) for name in "qkv"} | changed
    with pytest.raises(ValueError, match=re.escape(named)):
        check_inputs(**given)


def test_under_autocast_types_may_differ_and_key_heads_may_be_fewer():
    q, k, v = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 7, 3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        check_inputs(q, k, v)


QUERIES, KEYS = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8)
ALL = {
    "DenseAttention": DenseAttention(),
    "BlockSparseAttention": BlockSparseAttention(block_size=4),
    "FlashAttention": FlashAttention(),
    "LinearAttention": LinearAttention(),
    "Performer": Performer(8),
    "GatedLinearAttention": GatedLinearAttention(4),
    "Linformer": Linformer(16, 4),
    "Nystrom": Nystrom(4),
    "MemoryCompressedAttention": MemoryCompressedAttention(8, 2),
    "BigBirdAttention": BigBirdAttention(4, 2),
}


@pytest.mark.parametrize("mechanism", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    "wrong, words",
    [
        ((QUERIES, KEYS, KEYS, "causal"), "a txlib Mask, a bool tensor or None, got str"),
        ((QUERIES, KEYS, KEYS, causal), r"mask=causal is a function; call it: causal\(…\)"),
        ((QUERIES.long(), KEYS.long(), KEYS.long(), causal()), r"q is torch.int64: .* write q.float\(\)"),
        ((QUERIES, KEYS.numpy(), KEYS), r"k is not a tensor but ndarray; write torch.as_tensor\(k\)"),
        ((QUERIES, KEYS.to("meta"), KEYS), "q is on cpu, k on meta, v on cpu: move them to one"),
        ((QUERIES, KEYS.double(), KEYS), "q is torch.float32, k torch.float64, v torch.float32: convert them"),
        ((QUERIES[0], KEYS[0], KEYS[0]), r"takes \(batch, heads, length, width\), got q \(4, 10, 8\)"),
        ((QUERIES, KEYS[:, :, :, :7], KEYS), "keys need the queries' batch and width"),
    ],
)
def test_each_mechanism_says_what_is_wrong(mechanism, wrong, words, unchecked):
    with pytest.raises((TypeError, ValueError), match=words):
        mechanism(*wrong)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: GatedLinearAttention(3), "GatedLinearAttention was made for heads=3, got 4; set heads"),
        (lambda: MemoryCompressedAttention(8, 4), "made for kv_heads=4, got 2; set kv_heads"),
        (lambda: MemoryCompressedAttention(4, 2), "made for queries of width 4, got 8; set head_dim"),
        (lambda: MemoryCompressedAttention(8, 2, value_dim=4), "made for values of width 4, got 8; set value_dim"),
        (lambda: Linformer(16, 4, sharing="none", kv_heads=3), "made for kv_heads=3, got 2; set kv_heads"),
        (lambda: Nystrom(4, residual=3, heads=3), "made for heads=3, got 4; set heads"),
        (lambda: BlockSparseAttention(block_size=2.5), "block_size=2.5 must be an integer"),
        (lambda: FlashAttention(tile=1.5), "tile=1.5 must be an integer"),
        (lambda: MemoryCompressedAttention(8, 2, factor=2.5), "factor=2.5 must be an integer"),
        (lambda: LinearAttention("elu"), "feature_map='elu' is no function"),
    ],
)
def test_a_mechanism_made_for_other_sizes_says_so(call, words, unchecked):
    with pytest.raises((TypeError, ValueError), match=words):
        call()(QUERIES, KEYS, KEYS)


@pytest.mark.parametrize(
    "bias, words",
    [
        (3, "a bias is a Bias, a tensor or None, got int"),
        (AlibiBias(4), r"AlibiBias makes a bias: call it"),
        (AlibiBias(3)(QUERIES, 10), r"shape \(1, 3, 10, 10\), expected .* = \(2, 4, 10, 10\); each may be 1"),
        (torch.zeros(1, 4, 10, 9), r"shape \(1, 4, 10, 9\), expected"),
    ],
)
def test_what_is_no_bias_of_these_scores_is_refused(bias, words, unchecked):
    with pytest.raises((TypeError, ValueError), match=words):
        DenseAttention()(QUERIES, KEYS, KEYS, bias=bias)


@pytest.mark.parametrize("mechanism", [DenseAttention(), ALL["BlockSparseAttention"], ALL["Linformer"]])
def test_a_mask_on_another_device_is_named(mechanism):
    with pytest.raises(ValueError, match="the mask is on meta, q on cpu: move them to one"):
        mechanism(QUERIES, KEYS, KEYS, torch.ones(1, 1, 1, 10, dtype=torch.bool, device="meta"))


def test_layers_refuse_patterns_and_caches_of_another_kind(unchecked):
    for wrong in (causal, torch.ones(3, 3), "causal"):
        with pytest.raises(TypeError, match="mask is a rule|call it|a txlib Mask"):
            MultiHeadAttention(16, 4, mask=wrong)
        with pytest.raises(TypeError, match="mask=.* must be Mask or None"):
            BlockConfig.of_sizes(16, 4, 24, mask=wrong)
    layer, x = MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
    with pytest.raises(ValueError, match="DenseAttention keeps keys and values"):
        layer(x, mask=causal(), cache=StateCache())
    with pytest.raises(ValueError, match=r"x has shape \(5, 16\), expected \(batch, length, d_model=16\)"):
        layer(x[0])
    with pytest.raises(ValueError, match="window=-1 must be at least 0"):
        WindowKeyValueCache(-1)
