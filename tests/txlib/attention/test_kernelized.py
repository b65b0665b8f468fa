"""Linear, gated linear and random-feature attention: against loops over positions, and against softmax."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import shake
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from txlib import load_pretrained, save_pretrained
from txlib.attention import (
    DenseAttention,
    GatedLinearAttention,
    GatedLinearConfig,
    LinearAttention,
    LinearConfig,
    Mask,
    MechanismConfig,
    MultiHeadAttention,
    Performer,
    PerformerConfig,
    StateCache,
    attention,
    causal,
    padding,
    padding_from_mask,
    recording,
    sliding_window,
)
from txlib.attention.kernelized import elu_plus_one, orthogonal_rows
from txlib.generation import beam_search, generate, speculate
from txlib.layers import BlockConfig, TransformerBlock
from txlib.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Transformer,
    TransformerConfig,
    UniversalGPT,
    UniversalGPTConfig,
)

KINDS = ["linear", "performer", "gated", "fixed"]
CONFIGS = [
    LinearConfig("relu", chunk=3),
    PerformerConfig(features=24, chunk=4),
    GatedLinearConfig(chunk=2),
    GatedLinearConfig(gated=False),
]


def make(kind, heads=4, head_dim=3, value_dim=5, chunk=4):
    made = {
        "linear": lambda: LinearAttention(chunk=chunk),
        "performer": lambda: Performer(head_dim, 7, chunk=chunk),
        "gated": lambda: GatedLinearAttention(heads, value_dim, chunk=chunk),
        "fixed": lambda: GatedLinearAttention(heads, chunk=chunk),
    }
    return shake(made[kind]().double(), 2.0)


def tensors(queries, keys=None, *, kv_heads=2, head_dim=3, value_dim=5):
    keys = queries if keys is None else keys
    widths = ((4, queries, head_dim), (kv_heads, keys, head_dim), (kv_heads, keys, value_dim))
    return [torch.randn(2, *shape).double() for shape in widths]


def features(mechanism, x):
    """Of one vector, by the papers' formulas."""
    if isinstance(mechanism, LinearAttention):
        return torch.stack([each + 1 if each > 0 else each.exp() for each in x])
    x = x / len(x) ** 0.25
    return torch.stack([(row @ x - x @ x / 2).exp() for row in mechanism.projection])


def weight(mechanism, q, k, v, head, i, j, ahead, real):
    """Of key j for query i, by the papers' formulas."""
    if not isinstance(mechanism, GatedLinearAttention):
        return features(mechanism, q[i]) @ features(mechanism, k[j])
    between = range(j + 1, i + ahead + 1) if j <= i + ahead else range(i + 1, j + 1)
    alpha = 1.0
    for t in between:
        if t < len(real) and real[t]:
            gate = mechanism.decay[head] + (0 if mechanism.gate is None else mechanism.gate[head] @ v[t])
            alpha = alpha * gate.sigmoid() ** (1 / 16)
    return alpha * (q[i] @ k[j]) / math.sqrt(len(q[i]))


def loop(mechanism, q, k, v, allowed, ahead=0):
    """One query and one key at a time."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    allowed = allowed.expand(batch, 1, queries, keys)[:, 0]
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    for b in range(batch):
        real = allowed[b].any(dim=0)
        for h in range(heads):
            shared = h * k.shape[1] // heads
            for i in range(queries):
                seen = [j for j in range(keys) if allowed[b, i, j]]
                w = [weight(mechanism, q[b, h], k[b, shared], v[b, shared], h, i, j, ahead, real) for j in seen]
                total = sum((each * v[b, shared, j] for each, j in zip(w, seen, strict=True)), out[b, h, i] * 0)
                if isinstance(mechanism, GatedLinearAttention):
                    out[b, h, i] = total / (total.square().mean() + 1e-6).sqrt()
                elif seen:
                    out[b, h, i] = total / sum(w)
    return out.detach()


@pytest.mark.parametrize("kind", KINDS)
@given(
    length=st.integers(1, 7),
    chunk=st.integers(1, 8),
    kv_heads=st.sampled_from([1, 2, 4]),
    is_causal=st.booleans(),
    hidden=st.sampled_from([None, "right", "anywhere", "all of one"]),
)
def test_equals_a_loop_over_positions(kind, length, chunk, kv_heads, is_causal, hidden):
    mechanism, (q, k, v) = make(kind, chunk=chunk), tensors(length, kv_heads=kv_heads)
    real = {
        None: torch.ones(2, length),
        "right": (torch.arange(length) < torch.tensor([[length], [(length + 1) // 2]])),
        "anywhere": torch.rand(2, length) < 0.6,
        "all of one": torch.tensor([[1], [0]]).expand(2, length),
    }[hidden]
    allowed = real[:, None, None].bool().expand(2, 1, length, length)
    mask = None if hidden is None else padding_from_mask(real)
    if is_causal:
        allowed = allowed.tril()
        mask = causal() if mask is None else mask & causal()
    assert_close(mechanism(q, k, v, mask), loop(mechanism, q, k, v, allowed))
    if mask is not None and mask.only_keys:
        assert_close(mechanism(q, k, v, mask.dense(1, length)), mechanism(q, k, v, mask))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries, keys, ahead", [(1, 6, 5), (4, 6, 2), (4, 6, 0), (6, 4, 0), (3, 4, -1), (2, 9, 8)])
def test_queries_may_stand_elsewhere(kind, queries, keys, ahead):
    """As with a cache of keys: query i sees the keys up to i + ahead."""
    if ahead >= keys - 1 and queries > 1 and kind in ("gated", "fixed"):
        pytest.skip("no distance: refused, see below")
    mechanism, (q, k, v) = make(kind, chunk=2), tensors(queries, keys)
    mask = causal().shift(ahead) if ahead >= 0 else causal().shift(0, -ahead)
    expected = loop(mechanism, q, k, v, mask.dense(queries, keys), ahead)
    assert_close(mechanism(q, k, v, mask), expected)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_cross_attention(kind):
    mechanism, (q, k, v) = make(kind), tensors(3, 5)
    for mask in (padding([5, 0]), sliding_window(9)):  # a window that hides nothing
        assert_close(mechanism(q, k, v, mask), loop(mechanism, q, k, v, mask.dense(3, 5)))


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=4), padded=st.booleans())
def test_the_recurrent_form_equals_the_parallel_one(kind, parts, padded):
    """Token by token, or in any parts, with a state of one size; beams are reordered on the way."""
    length = sum(parts)
    mechanism, (q, k, v) = make(kind, chunk=3), tensors(length, kv_heads=4)
    mask = causal() & padding_from_mask(torch.rand(2, length) < 0.5) if padded else causal()
    whole, cache, rows = mechanism(q, k, v, mask), mechanism.new_cache(), torch.tensor([1, 0])
    outs, sizes = [], set()
    for start, part in zip([sum(parts[:i]) for i in range(len(parts))], parts, strict=True):
        here = slice(start, start + part)
        keys, values = cache.update(k[:, :, here], v[:, :, here])
        outs.append(mechanism(q[:, :, here], keys, values, mask.shift(start, start), cache=cache))
        sizes.add(tuple(each.numel() for each in cache.state))
    assert_close(torch.cat(outs, dim=2), whole)
    assert cache.length == length and len(sizes) == 1
    if not padded:
        cache.reorder(rows)
        more = [each[rows][:, :, -1:] for each in (q, k, v)]
        again = mechanism(*(torch.cat([each, each[:, :, -1:]], dim=2)[rows] for each in (q, k, v)), causal())
        assert_close(mechanism(*more, causal(), cache=cache), again[:, :, -1:])


def test_features_of_early_keys_do_not_drown_in_those_of_later_ones():
    """Divided by a maximum over all keys, features of e^-500 would vanish, for queries that see no others."""
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    performer, q = Performer(8, 32, chunk=2), 0.1 * q
    k[:, :, :5] *= 60 / k[:, :, :5].norm(dim=-1, keepdim=True)
    dots, half = performer.project(k)
    logarithms = dots - half
    assert logarithms[:, :, :5].max() < logarithms[:, :, 5:].max() - 100
    out = performer(q, k, v, causal())
    for end in (1, 5, 7):
        assert_close(out[:, :, :end], performer(*(each[:, :, :end] for each in (q, k, v)), causal()))
    assert_close(out[:, :, 0], v[:, :, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_hidden_keys_are_as_good_as_gone(kind, is_causal):
    """Whatever stands there; and where they stood, no gap remains."""
    mechanism, (q, k, v) = make(kind), tensors(11)
    real = torch.tensor([0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0]).bool()
    mask = padding_from_mask(real.expand(2, -1)) & causal() if is_causal else padding_from_mask(real.expand(2, -1))
    out = mechanism(q, k, v, mask)
    without = mechanism(*(each[:, :, real] for each in (q, k, v)), causal() if is_causal else None)
    assert_close(out[:, :, real], without)
    k[:, :, ~real], v[:, :, ~real] = 1e3, -1e6
    assert_close(mechanism(q, k, v, mask)[:, :, real], without)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "mask", [padding([5, 0]), causal() & padding_from_mask(torch.tensor([[0, 0, 1, 1, 1], [0] * 5]))]
)
def test_a_query_that_sees_nothing_gives_zeros_and_no_nan(kind, mask):
    mechanism, inputs = make(kind, chunk=2).float(), [each.float().requires_grad_() for each in tensors(5)]
    out = mechanism(*inputs, mask)
    empty = ~mask.dense(5).any(dim=-1).expand(2, 4, 5)
    assert not out[empty].any() and out[~empty].all()
    gradients = torch.autograd.grad(out.square().sum(), inputs)
    assert all(each.isfinite().all() and not each[1].any() for each in gradients)


# What they approximate or contain ----------------------------------------------------------------------------------


def powers(x):
    """Features of one number whose products are the series of exp(x · y)."""
    exponent = torch.arange(50).to(x)
    return x**exponent / torch.lgamma(exponent + 1).exp().sqrt()


def test_features_whose_products_are_exp_make_it_dense_attention():
    q, k, v = tensors(9, head_dim=1)
    linear = LinearAttention(powers, chunk=4)
    for mask in (None, causal(), causal() & padding([9, 4])):
        assert_close(linear(q, k, v, mask), DenseAttention()(q, k, v, mask))
        assert_close(linear.weights(q, k, mask), DenseAttention().weights(q, k, mask))


def test_random_features_have_no_bias():
    """The mean of φ(x) φ(y) over 2500 groups of orthogonal rows is exp(x · y / √d), within five standard errors."""
    performer, (x, y) = Performer(6, 6 * 2500), torch.rand(2, 6) * 0.8
    logarithms = sum(dots - half for dots, half in map(performer.project, (x, y)))
    products = logarithms.exp().view(2500, 6).mean(dim=1)
    expected, error = (x @ y / 6**0.5).exp(), products.std() / 2500**0.5
    assert (products.mean() - expected).abs() < 5 * error < 0.2


@pytest.mark.parametrize("mask", [None, causal()])
def test_the_error_falls_as_features_grow(mask):
    q, k, v = torch.randn(3, 1, 2, 40, 16).double() * torch.tensor([0.5, 0.5, 1]).view(3, 1, 1, 1, 1)
    softmax = attention(q, k, v, mask)

    def error(features):
        errors = [(Performer(16, features).double()(q, k, v, mask) - softmax).square().mean() for _ in range(8)]
        return torch.stack(errors).mean().sqrt() / softmax.square().mean().sqrt()

    few, some, many = (error(features) for features in (16, 128, 2048))
    assert some < 0.75 * few and many < 0.6 * some and many < 0.2


def test_rows_are_orthogonal_in_groups_and_as_long_as_normal_ones():
    rows = orthogonal_rows(2000, 8)
    group = F.normalize(rows.view(250, 8, 8), dim=-1)
    assert_close(group @ group.mT, torch.eye(8).expand(250, 8, 8), atol=1e-5, rtol=0)
    assert_close(rows.square().sum(-1).mean(), torch.tensor(8.0), atol=0.6, rtol=0)
    assert rows.mean(dim=0).abs().max() < 0.12  # five standard errors: no side is preferred


def test_features_are_redrawn_and_kept():
    performer, again = Performer(8), Performer(8)
    assert performer.projection.shape == (round(8 * math.log(8)), 8)
    again.load_state_dict(performer.state_dict())
    assert torch.equal(again.projection, performer.projection)
    performer.redraw(torch.Generator().manual_seed(1))
    assert not torch.equal(again.projection, performer.projection)
    again.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(again.projection, performer.projection)
    assert not list(performer.parameters())


def test_heads_begin_with_different_memories():
    gated = GatedLinearAttention(8, 5)
    forgotten = 1 - gated.fade(torch.randn(2, 8, 3, 5)).exp()
    assert_close(forgotten[0, :, 0], 2.0 ** -torch.linspace(5, 9, 8), rtol=1e-3, atol=0)
    assert_close(forgotten, forgotten[:1, :, :1].expand(2, 8, 3))  # of what a token says they know nothing yet


# Cost --------------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor holds."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            self.numel = max(self.numel, each.numel() if isinstance(each, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [None, causal()])
def test_operations_and_memory_grow_linearly(kind, mask):
    """Of a step forward and back: each chunk takes as many operations, and tensors are at most twice as large."""
    counts = []
    for length in (128, 256, 512):
        mechanism = make(kind, head_dim=8, value_dim=8, chunk=16)
        inputs = [each.requires_grad_() for each in tensors(length, head_dim=8, value_dim=8)]
        with FlopCounterMode(display=False) as flops, Largest() as largest:
            mechanism(*inputs, mask).sum().backward()
        counts.append((flops.get_total_flops(), largest.numel))
    (flops, numel), (twice, twice_numel), (four_times, four_times_numel) = counts
    assert four_times - twice == 2 * (twice - flops) > 0
    assert twice_numel <= 2 * numel and four_times_numel <= 4 * numel < 4 * 2 * 4 * 128 * 17


# Numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, causal()])
def test_large_scores_overflow_nowhere(kind, dtype, mask):
    mechanism = make(kind).to(dtype)
    q, k, v = (each.to(dtype).requires_grad_() for each in tensors(12))
    for size in (1, 30, 1000):
        out = mechanism(q * size, k * size, v, mask)
        gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
        assert out.dtype == dtype and out.isfinite().all() and all(each.isfinite().all() for each in gradients)


def test_small_features_keep_their_digits():
    x = torch.tensor([-60.0, -20.0, -1.0, 0.0, 2.0], requires_grad=True)
    y = elu_plus_one(x)
    assert_close(y.double(), torch.tensor([-60.0, -20.0, -1.0, 0.0, math.log(3)]).double().exp())
    assert_close(torch.autograd.grad(y.sum(), x)[0], torch.cat([y[:4], torch.ones(1)]).detach())
    q, k, v = torch.full((1, 1, 1, 4), -15.0), torch.full((1, 1, 2, 4), -15.0), torch.tensor([[[[1.0], [3.0]]]])
    assert_close(LinearAttention()(q, k, v), torch.tensor([[[[2.0]]]]))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_in_32_bits(kind):
    """Sums of 3000 terms in bfloat16 would stop growing at 256."""
    mechanism, half = make(kind, chunk=64), torch.bfloat16
    q, k, v = (each.to(half) for each in tensors(3000))
    exact = mechanism(q.double(), k.double(), v.double(), causal())
    mechanism = mechanism.float()
    assert_close(mechanism(q, k, v, causal()).double(), exact, atol=0.02, rtol=0.02)
    wide = [each.float() for each in (q, k, v)]
    with torch.autocast("cpu", half):
        assert torch.equal(mechanism(*wide, causal()), mechanism(*wide, causal()).float())
        within = mechanism(*wide, causal())
    assert torch.equal(within, mechanism(*wide, causal()))


# In models ---------------------------------------------------------------------------------------------------------

BLOCK = BlockConfig.of_sizes(16, 2, 20, kv_heads=1, position="rotary")


def gpt(config, position="rotary"):
    block = BLOCK.replace(mechanism=config, position=position)
    return shake(GPT(GPTConfig(30, block, layers=2, max_length=16, eos_id=2)).double()).eval()


@pytest.mark.parametrize("config", CONFIGS)
def test_a_gpt_decodes_in_constant_memory(config):
    """Prompts padded on the left; greedy and with beams; as without a cache."""
    model = gpt(config)
    prompts = [[3, 4, 5, 6, 7, 8, 9], [10, 11]]
    texts = [generate(model, prompts, max_new_tokens=14, use_cache=each) for each in (True, False)]
    assert texts[0] == texts[1]  # the older half is forgotten on the way
    ids, real = torch.randint(3, 30, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    beams = [beam_search(model, ids, real, max_new_tokens=6, num_beams=3, use_cache=each) for each in (True, False)]
    assert beams[0] == beams[1]
    cache, sizes = model.new_cache(), []
    for length in (1, 15):
        model(torch.randint(3, 30, (1, length)), cache=cache)
        sizes.append(sum(each.numel() for block in cache for each in block.self_attention.state))
        assert all(type(block.self_attention) is StateCache for block in cache)
    assert sizes[0] == sizes[1] and cache.length == 16


@pytest.mark.parametrize("config", CONFIGS)
def test_cached_decoding_equals_the_whole_in_every_model(config):
    cross = LinearConfig() if isinstance(config, GatedLinearConfig) else config
    block = BLOCK.replace(mechanism=config, cross_mechanism=cross)
    ids, real = torch.randint(3, 30, (2, 9)), torch.tensor([[1] * 9, [0, 0] + [1] * 7])
    universal = UniversalGPTConfig(30, block.replace(cross_mechanism=None), steps=3, max_length=40)
    for model in (gpt(config), shake(UniversalGPT(universal).double()).eval()):
        whole, cache = model(ids, real).logits, model.new_cache(9)
        parts = [
            model(ids[:, i:j], real[:, :j], cache=cache).logits for i, j in ((0, 4), (4, 5), (5, 6), (6, 8), (8, 9))
        ]
        assert_close(torch.cat(parts, dim=1), whole)
    model = shake(Transformer(TransformerConfig(30, block, 1, 2, max_length=40)).double()).eval()
    memory, cache = model.encode(ids, real), model.new_cache()
    parts = [model.decode(ids[:, i : i + 3], memory, real, cache) for i in (0, 3, 6)]
    assert_close(torch.cat(parts, dim=1), model.decode(ids, memory, real))


@pytest.mark.parametrize("config", CONFIGS)
def test_an_encoder_does_not_see_padding(config):
    model = shake(Encoder(EncoderConfig(30, BLOCK.replace(mechanism=config), layers=2, max_length=24)).double()).eval()
    ids, real = torch.randint(3, 30, (2, 9)), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    assert_close(model(ids, real).last_hidden_state[1:, :5], model(ids[1:, :5]).last_hidden_state)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_model_is_saved_with_them(config, tmp_path):
    again = MechanismConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and hash(again) == hash(config)
    model, ids = gpt(config).float(), torch.randint(3, 30, (2, 9))
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config
    assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_a_block_makes_them_with_its_sizes():
    def made(config):
        return TransformerBlock(BLOCK.replace(mechanism=config)).self_attention.mechanism

    linear, performer, gated = made(LinearConfig("relu", chunk=3)), made(PerformerConfig()), made(GatedLinearConfig())
    assert linear.feature_map is F.relu and linear.chunk == 3
    assert performer.projection.shape == (round(8 * math.log(8)), 8)
    assert gated.gate.shape == (2, 8) and gated.decay.shape == (2,)
    assert made(GatedLinearConfig(gated=False)).gate is None


@pytest.mark.parametrize("config", [LinearConfig(), PerformerConfig()])
def test_weights_can_be_looked_at(config):
    block, x = TransformerBlock(BLOCK.replace(mechanism=config)).eval(), torch.randn(2, 5, 16)
    with recording(block) as weights:
        block(x, causal() & padding([5, 3]))
        with pytest.raises(ValueError, match="a state has no keys to show weights of; decode without a cache"):
            block(x, causal(), cache=block.new_cache())
    (recorded,) = weights["self_attention"]
    assert_close(recorded.sum(dim=-1), torch.ones(2, 2, 5))
    assert not recorded.triu(1).any() and not recorded[1, :, :, 3:].any()
    layer, x = block.self_attention, block.self_attention_norm(x)
    q, k, v = (layer.split(each) for each in layer.project(x, x))
    q, k = layer.rotary(q), layer.rotary(k)
    assert_close(recorded @ v, layer.mechanism(q, k, v, causal() & padding([5, 3])))


# What they refuse --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "mask, part",
    [
        (sliding_window(2), r"sliding_window\(2\)"),
        (causal() & sliding_window(2), r"sliding_window\(2\)"),
        (~causal(), r"~causal\(\)"),
        (causal() | padding([5, 3]), r"\(causal\(\) \| padding\(\[5, 3\]\)\)"),
        (causal() & Mask(lambda query, key: query >= key, name="mine"), "mine"),
    ],
)
def test_other_masks_are_refused_by_name(kind, mask, part):
    mechanism, (q, k, v) = make(kind), tensors(5)
    name = type(mechanism).__name__
    with pytest.raises(ValueError, match=rf"{name} sums up all keys until now.*and not {part}; use DenseAttention"):
        mechanism(q, k, v, mask)
    with pytest.raises(ValueError, match=rf"{name} takes masks as rules.*\(1, 1, 5, 5\), for which use DenseAttention"):
        mechanism(q, k, v, causal().dense(5))


WRONG = [
    (lambda: MultiHeadAttention(16, 2, mechanism=LinearAttention(), dropout=0.1), "give it to the mechanism"),
    (lambda: LinearConfig("gelu"), "feature_map='gelu' is unknown; choose one of elu, relu, softmax"),
    (lambda: LinearAttention(chunk=0), "chunk=0 must be at least 1"),
    (lambda: Performer(8, 0), "features=0 must be at least 1"),
    (lambda: Performer(0), "head_dim=0 must be at least 1"),
    (lambda: GatedLinearAttention(0), "heads=0 must be at least 1"),
    (lambda: Performer(8)(*tensors(5)), "Performer was made for queries of width 8, got 3; set head_dim"),
    (lambda: GatedLinearAttention(4, 2)(*tensors(5)), "GatedLinearAttention was made for .* 2, got 5; set value_dim"),
    (lambda: GatedLinearAttention(4)(*tensors(3, 5)), "3 queries that see all of 5 keys have none; add & causal"),
    (
        lambda: GatedLinearAttention(4)(*tensors(3), cache=GatedLinearAttention(4).new_cache()),
        "3 queries that see all of 3 keys and a cache have none",
    ),
    (
        lambda: TransformerBlock(BLOCK.replace(cross_mechanism=GatedLinearConfig()), cross=True),
        r"which queries and a memory do not have; use cross_mechanism=LinearConfig\(\)",
    ),
    (
        lambda: TransformerBlock(BLOCK.replace(position="alibi", mechanism=LinearConfig())),
        "LinearAttention takes no position bias, got AlibiBias; use DenseAttention, or rotary positions",
    ),
    *(
        (
            lambda config=config: TransformerBlock(BLOCK.replace(attention_dropout=0.1, mechanism=config)),
            "has no weights to drop, got attention_dropout=0.1; set it to 0",
        )
        for config in CONFIGS[:3]
    ),
    (
        lambda: speculate(gpt(LinearConfig()), gpt(LinearConfig()), [3, 4, 5, 6], ahead=3, max_new_tokens=12),
        "decode without a cache: use_cache=False",
    ),
]


@pytest.mark.parametrize("call, words", WRONG)
def test_wrong_calls_say_what_to_do(call, words, unchecked):
    with pytest.raises(ValueError, match=words):
        call()
