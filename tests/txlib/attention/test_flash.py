"""FlashAttention in PyTorch and as a mechanism: against the definition, torch's kernel and finite differences."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import Largest, keep, loop_attention, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import txlib.attention
from txlib.attention import (
    AlibiBias,
    FlashAttention,
    FlashConfig,
    Mask,
    MultiHeadAttention,
    TiledAttention,
    attention,
    causal,
    dilated,
    for_each_head,
    full,
    global_tokens,
    padding,
    recording,
    sliding_window,
)
from txlib.layers import BlockConfig
from txlib.models import GPT, Encoder, EncoderConfig, GPTConfig, Transformer, TransformerConfig

MASKS = {
    "none": lambda n, m: None,
    "everything": lambda n, m: full(),
    "causal": lambda n, m: causal(),
    "window": lambda n, m: sliding_window(2),
    "wide window": lambda n, m: sliding_window(100),
    "causal window": lambda n, m: causal() & sliding_window(3),
    "future only": lambda n, m: ~causal(),
    "nothing": lambda n, m: causal() & ~causal(),
    "in decoding": lambda n, m: (causal() & sliding_window(4)).shift(m - n if m > n else 1),
    "padding": lambda n, m: padding([m, m // 2, 0]),
    "padding, causal": lambda n, m: causal() & padding([m // 2, 1, m]),
    "left padding": lambda n, m: causal() & txlib.attention.padding_from_mask(keep([m, m // 2 + 1, 1], m, left=True)),
    "holes": lambda n, m: sliding_window(3) & txlib.attention.padding_from_mask(torch.arange(3 * m).view(3, m) % 3 > 0),
}


def qkv(heads, kv_heads, query, key, head_dim=4, value_dim=None, batch=3, dtype=torch.float64):
    shapes = (heads, query, head_dim), (kv_heads, key, head_dim), (kv_heads, key, value_dim or head_dim)
    return [torch.randn(batch, *shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_same(mechanism, inputs, mask, **tolerance):
    """Output and gradients as by the definition, in double precision."""
    exact = [each.detach().double().requires_grad_() for each in inputs]
    q, k, v = exact
    expected = attention(q, for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1]), mask)
    out = mechanism(*inputs, mask)
    assert out.dtype == inputs[0].dtype
    grad_out = torch.randn_like(expected)
    assert_close(out.double(), expected, **tolerance)
    gradients = torch.autograd.grad(out, inputs, grad_out.to(out.dtype))
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, exact, grad_out), strict=True):
        assert_close(mine.double(), theirs, **tolerance)


@pytest.mark.parametrize("name", MASKS)
@given(
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(1, 3),
)
def test_equals_the_definition_with_its_gradients(name, heads, query, key, tile, value_dim):
    inputs = qkv(*heads, query, key, value_dim=value_dim)
    assert_same(FlashAttention(tile=tile), inputs, MASKS[name](query, key))


def test_equals_a_plain_loop():
    q, k, v = qkv(2, 2, 7, 7)
    mask = causal() & sliding_window(3)
    assert_close(FlashAttention(tile=2)(q, k, v, mask), loop_attention(q, k, v, mask.dense(7))[0])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [1, 127, 128, 300])
def test_equals_torchs_kernel(is_causal, length):
    q, k, v = qkv(2, 2, length, length, 16, batch=1, dtype=torch.float32)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    assert_close(FlashAttention()(q, k, v, causal() if is_causal else None), expected)
    flat = [each.flatten(0, 1) for each in (q, k, v)]
    assert_close(TiledAttention.apply(*flat, is_causal), expected.flatten(0, 1))


@pytest.mark.parametrize("dtype, close", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-5)])
def test_sums_of_few_bits_are_made_in_32(dtype, close):
    inputs = [each.detach().to(dtype).requires_grad_() for each in qkv(4, 2, 40, 40, 8)]
    assert_same(FlashAttention(tile=16), inputs, causal(), atol=close, rtol=close)


@pytest.mark.parametrize("is_causal", [False, True])
def test_finite_differences(is_causal):
    q, k, v = (each.flatten(0, 1) for each in qkv(2, 1, 5, 6, 2, batch=1))
    assert torch.autograd.gradcheck(lambda *qkv: TiledAttention.apply(*qkv, is_causal, None, 2), (q, k, v))


def test_saves_the_log_of_the_denominator():
    q, k, v = (each.flatten(0, 1) for each in qkv(1, 1, 6, 9))
    out = TiledAttention.apply(q, k, v, True)
    (lse,) = (saved for saved in out.grad_fn.saved_tensors if saved.shape == (3, 6))
    score = (q @ k.mT / 2).masked_fill(~causal().dense(6, 9)[0, 0], -torch.inf)
    assert_close(lse, score.logsumexp(dim=-1))


def test_huge_scores_do_not_overflow():
    q, k, v = qkv(1, 1, 4, 4, dtype=torch.float32)
    out = FlashAttention(tile=2)(q * 1e18, k * 1e18, v, causal())
    assert_close(out, attention(q * 1e18, k * 1e18, v, causal()))


def test_no_tensor_is_n_by_n():
    """Not on the way there, not on the way back, not between them."""
    n, inputs = 600, qkv(1, 1, 600, 600, 8, batch=1, dtype=torch.float32)
    for mechanism, most in ((FlashAttention(tile=64), n * 8), (attention, n * n)):
        with Largest() as seen:
            mechanism(*inputs, causal()).sum().backward()
        assert seen.largest == most


def flops(mechanism, inputs, mask=None, backward=True):
    with FlopCounterMode(display=False) as counter:
        out = mechanism(*inputs, mask)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


def test_operations_are_those_of_the_paper():
    """Dao 2023, §2.3 and §3.1: two products forward, five backward; the definition has two and four."""
    n, d = 256, 8
    inputs, product = qkv(1, 1, n, n, d, batch=1), 2 * n * n * d
    flash = FlashAttention(tile=32)
    assert flops(flash, inputs, backward=False) == 2 * product
    assert flops(flash, inputs) == 7 * product
    assert flops(attention, inputs) == 6 * product
    tiles = n // 32
    assert flops(flash, inputs, causal()) == 7 * product * (tiles + 1) / (2 * tiles)


def test_operations_of_a_window_grow_with_the_length():
    counts = [flops(FlashAttention(tile=16), qkv(1, 1, n, n, 4), sliding_window(16)) for n in (128, 256, 512)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


BLOCK = BlockConfig.of_sizes(16, 4, 20, position="learned", kv_heads=2)
FLASH = BLOCK.replace(mechanism=FlashConfig(tile=3), cross_mechanism=FlashConfig(tile=4))
MODELS = {
    "gpt": lambda block: GPT(GPTConfig(30, block, layers=2, max_length=24)),
    "windows": lambda block: GPT(GPTConfig(30, block.replace(mask=sliding_window(2)), layers=2, max_length=24)),
    "encoder": lambda block: Encoder(EncoderConfig(30, block, layers=2, max_length=24)),
    "transformer": lambda block: Transformer(TransformerConfig(30, block, 2, 2, max_length=24)),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_keyword_in_any_model(name):
    flash, dense = MODELS[name](FLASH), MODELS[name](BLOCK)
    dense.load_state_dict(shake(flash).state_dict())
    ids = torch.randint(3, 30, (3, 8))
    given = {"input_ids": ids, "attention_mask": keep([8, 3, 5], 8, left=name != "transformer")}
    given |= {"decoder_input_ids": ids[:, :5]} if name == "transformer" else {}
    outs = []
    for model in (flash, dense):
        result = model(**given)
        outs.append(getattr(result, "logits", result.last_hidden_state if name == "encoder" else None))
        outs[-1].square().sum().backward()
    assert_close(*outs)
    for mine, theirs in zip(flash.parameters(), dense.parameters(), strict=True):
        assert_close(mine.grad, theirs.grad, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt", "windows"])
def test_decodes_with_a_cache(name):
    model, ids = shake(MODELS[name](FLASH)).eval(), torch.randint(3, 30, (2, 9))
    whole, cache = model(ids).logits, model.new_cache()
    assert_close(torch.cat([model(part, cache=cache).logits for part in ids.split((4, 1, 3, 1), dim=1)], dim=1), whole)


def test_under_autocast_it_computes_in_the_type_that_autocast_names():
    q, k, v = qkv(2, 2, 9, 9, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = FlashAttention(tile=4)(q, k, v.bfloat16(), causal())
    assert out.dtype == torch.bfloat16
    assert_close(out, FlashAttention(tile=4)(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal()))
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_weights_can_be_looked_at():
    layer, x = MultiHeadAttention(12, 4, kv_heads=2, mechanism=FlashAttention()), torch.randn(2, 5, 12)
    with recording(layer) as seen:
        layer(x, mask=causal())
    (weights,) = seen[""]
    assert weights.shape == (2, 4, 5, 5) and (weights.triu(1) == 0).all()
    assert_close(weights.sum(-1), torch.ones(2, 4, 5))


REFUSED = [
    (dilated(1, 2), r"padding, joined by &, and not dilated\(1, 2\); use"),
    (causal() | global_tokens([0]), r"not \(causal\(\) \| global_tokens\(\[0\]\)\)"),
    (causal() & global_tokens([3]), r"not global_tokens\(\[3\]\)"),
    (Mask(lambda query, key: query != key, name="not itself"), "not not itself"),
    (torch.ones(1, 1, 6, 6, dtype=torch.bool), r"masks as rules, got a tensor of shape \(1, 1, 6, 6\); write"),
    (padding([6, 6]), r"shape \(2, 1, 1, 6\)"),
]


@pytest.mark.parametrize("mask, words", REFUSED)
def test_other_masks_are_refused_by_name(mask, words):
    with pytest.raises(ValueError, match=words):
        FlashAttention()(*qkv(1, 1, 6, 6), mask)


def test_a_gap_beyond_the_sequence_is_none():
    inputs = qkv(1, 1, 5, 5)
    assert_same(FlashAttention(tile=2), inputs, sliding_window(1) | ~sliding_window(10))


WRONG = [
    (lambda q: FlashAttention(tile=0), "tile=0 must be at least 1"),
    (lambda q: GPT(GPTConfig(9, FLASH.replace(attention_dropout=0.1))), "attention_dropout=0.1; set it to 0"),
    (lambda q: MultiHeadAttention(8, 2, mechanism=FlashAttention(), position_bias=AlibiBias(2)), "no position bias"),
    (lambda q: FlashAttention()(q, q.to("meta"), q), "q is on cpu, k on meta, v on cpu: move them to one"),
]


@pytest.mark.parametrize("call, words", WRONG)
def test_errors_say_what_to_do(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.randn(1, 1, 2, 2))
