"""Memory-compressed attention: no look ahead, equal to dense attention and to loops, padded, cached, in T-DMCA."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import loop_attention, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib import load_pretrained, save_pretrained
from txlib.attention import (
    MemoryCompressedAttention,
    MemoryCompressedConfig,
    NystromConfig,
    attention,
    block_local,
    causal,
    full,
    padding,
    padding_from_mask,
    recording,
    sliding_window,
)
from txlib.layers import BlockConfig, FeedForward, MixtureOfExperts
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
from txlib.models.sizes import local_and_compressed

marks = st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=2, max_size=2)


def heads(queries=7, keys=7, kv_heads=2, dtype=torch.float64):
    """q, k, v of two sentences and two heads; values have a width of their own."""
    return [torch.randn(2, *size, dtype=dtype) for size in ((2, queries, 4), (kv_heads, keys, 4), (kv_heads, keys, 3))]


def compressed(factor=3, kv_heads=2):
    return shake(MemoryCompressedAttention(4, kv_heads, factor=factor, value_dim=3).double())


def loop_compressed(layer, q, k, v, real, nearest):
    """One sentence, head and query at a time. A query sees the real keys up to its position less `nearest`."""
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b in range(len(q)):
        for h in range(q.shape[1]):
            key_head = h * k.shape[1] // q.shape[1]
            w_k, w_v = layer.key.weight[key_head], layer.value.weight[key_head]
            for i in range(q.shape[2]):
                limit = k.shape[2] if nearest is None else i - nearest + 1
                seen = [j for j in range(k.shape[2]) if real[b, j] and j < limit]
                windows = [seen[at : at + layer.factor] for at in range(0, len(seen), layer.factor)]
                if nearest is not None and windows and len(windows[-1]) < layer.factor:
                    windows.pop()
                if seen and not windows:
                    out[b, h, i] = v[b, key_head, seen[0]]
                if not windows:
                    continue

                few = []
                for x, weight in ((k, w_k), (v, w_v)):
                    wide = [torch.cat([x[b, key_head, j] for j in window]) for window in windows]
                    few.append(torch.stack([each @ weight[: len(each)] for each in wide])[None, None])
                out[b, h, i] = loop_attention(q[b : b + 1, h : h + 1, i : i + 1], *few)[0][0, 0, 0]
    return out


@settings(max_examples=15)
@given(marks, st.integers(1, 8), st.sampled_from([1, 2]), st.sampled_from([None, -2, 0, 1]), st.sampled_from([1, 3, 7]))
def test_it_is_what_it_says(real, factor, kv_heads, nearest, queries):
    """Few queries and many take different ways; so do padding and none."""
    layer, (q, k, v) = compressed(factor, kv_heads), heads(queries, kv_heads=kv_heads)
    rule = full() if nearest is None else causal().shift(-nearest)
    real = torch.tensor(real)
    assert_close(layer(q, k, v, rule & padding_from_mask(real)), loop_compressed(layer, q, k, v, real, nearest))
    assert_close(layer(q, k, v, rule), loop_compressed(layer, q, k, v, torch.ones(2, 7), nearest))
    if nearest is None:
        assert_close(layer(q, k, v), layer(q, k, v, full()))
        assert_close(layer(q, k, v, real[:, None, None]), layer(q, k, v, padding_from_mask(real)))


def test_a_window_of_one_key_is_dense_attention():
    layer, (q, k, v) = MemoryCompressedAttention(4, 1, factor=1, value_dim=3).double(), heads(kv_heads=1)
    k_each, v_each = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    left = padding_from_mask(torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]]))
    for mask in (None, causal(), padding([7, 3]), causal() & padding([4, 0]), causal() & left):
        assert_close(layer(q, k, v, mask), attention(q, k_each, v_each, mask))


@pytest.mark.parametrize("factor", [1, 2, 3, 9])
@pytest.mark.parametrize("queries", [7, 2])
def test_no_query_sees_what_comes_later(factor, queries):
    layer, (q, k, v) = compressed(factor), heads(queries)
    first = 7 - queries  # the last queries, as in decoding

    def summed(k, v):
        return layer(q, k, v, causal().shift(first)).sum(dim=(0, 1, 3))  # (query,)

    for gradient in torch.autograd.functional.jacobian(summed, (k, v)):  # (query, batch, heads, key, width)
        reached = gradient.abs().sum(dim=(1, 2, 4)) > 0  # (query, key)
        assert not (reached & ~causal().shift(first).dense(queries, 7)[0, 0]).any()
    for i, row in enumerate(reached.tolist()):  # of the values
        position = first + i
        whole = (position + 1) // factor * factor
        assert row == [j < whole or (whole == 0 and j == 0) for j in range(7)]


def test_padding_may_hold_anything():
    layer, (q, k, v) = compressed(), heads()
    mask = causal() & padding_from_mask(torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]]))
    out = layer(q, k, v, mask)
    for each in (k, v):
        each[0, :, :2] = each[1, :, 3:] = torch.nan
    assert_close(layer(q, k, v, mask), out)
    assert (out[0, :, :2] == 0).all()  # padding sees nothing


def test_it_refuses_other_masks():
    layer, (q, k, v) = compressed(), heads()
    for mask in (sliding_window(2), causal() & block_local(3), causal() & ~padding([3, 2]) & sliding_window(1)):
        with pytest.raises(ValueError, match=r"honors causal\(\) and padding, .* more: .*; use DenseAttention"):
            layer(q, k, v, mask)
    with pytest.raises(ValueError, match=r"more: a tensor of shape \(1, 1, 7, 7\)"):
        layer(q, k, v, causal().dense(7))
    with pytest.raises(ValueError, match="factor=0 must be at least 1"):
        MemoryCompressedAttention(4, 2, factor=0)
    assert_close(layer(q, k, v, causal() & sliding_window(6)), layer(q, k, v, causal()))


def test_the_cost_is_a_third():
    """Of the scores: beside them there is the convolution, which grows with n."""

    layer = MemoryCompressedAttention(8, 2)
    layer.dense.fused = False  # products that are counted

    def operations(queries, length):
        q, k = torch.randn(1, 2, queries, 8), torch.randn(1, 2, length, 8)
        with FlopCounterMode(display=False) as counter:
            layer(q, k, k, causal().shift(length - queries))
        return counter.get_total_flops()

    for n in (96, 192):  # two heads; two operations for a product, of scores and of values, or of keys and of values
        convolution, dense = 2 * 2 * 2 * n * 8 * 8, 2 * 2 * 2 * n * n * 8
        assert operations(n, n) == convolution + dense // 3
    one, dense = operations(1, 192), 2 * 2 * 2 * 192 * 8
    assert one < 1.3 * dense  # a new query does not convolve all the past anew


BLOCK = BlockConfig.of_sizes(16, 4, 20, position="learned", kv_heads=2)
IDS = torch.randint(3, 30, (3, 11), generator=torch.Generator().manual_seed(0))
REAL = torch.tensor([[1] * 11, [0] * 4 + [1] * 7, [0, 1] + [1] * 9])


def gpt(block, layers=5):
    return shake(GPT(GPTConfig(30, block, layers=layers, max_length=24)).double()).eval()


ONLY_COMPRESSED = BLOCK.replace(mechanism=MemoryCompressedConfig())
DMCA = local_and_compressed(BLOCK, size=4)
LOCAL, COMPRESSED = DMCA.layer_pattern
EXPERTS = DMCA.replace(layer_pattern=(LOCAL, COMPRESSED, {**LOCAL, "experts": 4}, COMPRESSED, LOCAL))
DECODERS = {"only compressed": ONLY_COMPRESSED, "T-DMCA": DMCA, "T-DMCA with experts": EXPERTS}


@pytest.mark.parametrize("name", DECODERS)
def test_cached_decoding_equals_the_whole(name):
    model = gpt(DECODERS[name])
    whole = model(IDS, REAL).logits
    for capacity, chunks in ((None, [1] * 11), (16, [4, 1, 1, 5])):
        cache, start, parts = model.new_cache(capacity), 0, []
        for chunk in chunks:
            parts.append(model(IDS[:, start : start + chunk], REAL[:, : start + chunk], cache=cache).logits)
            start += chunk
        assert_close(torch.cat(parts, dim=1)[REAL.bool()], whole[REAL.bool()])
    rows = torch.tensor([2, 0])
    cache.reorder(rows)
    real = torch.cat([REAL, torch.ones(3, 1, dtype=torch.long)], dim=1)
    more = torch.cat([IDS, IDS[:, :1]], dim=1)
    assert_close(model(more[rows, -1:], real[rows], cache=cache).logits[:, 0], model(more, real).logits[rows, -1])


def test_speculation_may_take_back_positions():
    model = gpt(ONLY_COMPRESSED)
    cache = model.new_cache()
    model(IDS, cache=cache)
    cache.crop(7)
    assert_close(model(IDS[:, 7:], cache=cache).logits, model(IDS).logits[:, 7:])


@pytest.mark.parametrize("name", DECODERS)
def test_no_output_depends_on_a_later_token(name):
    model = gpt(DECODERS[name])
    vectors = model.embedding(IDS[:1]).detach().requires_grad_()
    out = model.decoder(model.position(vectors), causal())[0].sum(-1)  # (length,)
    for i in range(11):
        (gradient,) = torch.autograd.grad(out[i], vectors, retain_graph=True)
        reached = gradient[0].abs().sum(-1) > 0
        assert not reached[i + 1 :].any() and reached[i]
    if name != "only compressed":
        assert reached[:9].all()  # the last sees far back, through compressed layers


def test_padding_on_either_side_changes_nothing():
    """Windows are counted in real tokens, and positions, too. (Blocks of local attention stand where they stand.)"""
    model = gpt(ONLY_COMPRESSED, layers=2)
    whole = model(IDS, REAL).logits
    assert_close(whole[1, 4:], model(IDS[1:2, 4:]).logits[0])
    right = padding_from_mask(torch.tensor([[1] * 7 + [0] * 4])).attention_mask.int()
    assert_close(model(IDS[1:2], right).logits[0, :7], model(IDS[1:2, :7]).logits[0])


def test_an_encoder_and_a_translator_take_it():
    model = shake(Encoder(EncoderConfig(30, ONLY_COMPRESSED, layers=2, max_length=12))).eval()
    real = padding([11, 7, 4]).dense(1, 11)[:, 0, 0].int()
    out = model(IDS, real).last_hidden_state
    assert_close(out[1:2, :7], model(IDS[1:2, :7]).last_hidden_state, rtol=1e-4, atol=1e-4)
    both = ONLY_COMPRESSED.replace(cross_mechanism=MemoryCompressedConfig(2))
    model = shake(Transformer(TransformerConfig(30, both, 2, 2, max_length=12))).eval()
    out = model(IDS, real, IDS[:, :6]).logits
    assert_close(out[1:2], model(IDS[1:2, :7], None, IDS[1:2, :6]).logits, rtol=1e-4, atol=1e-4)
    memory, cache = model.encode(IDS, real), model.new_cache()
    steps = [model.decode(IDS[:, i : i + 1], memory, real, cache) for i in range(6)]
    assert_close(model.logits(torch.cat(steps, dim=1)), out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_saved_and_loaded(name, tmp_path):
    model = gpt(DECODERS[name]).float()
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config
    assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=0)


def test_layers_take_turns():
    model = gpt(EXPERTS)
    layers = model.decoder.layers
    kinds = [type(layer.self_attention.mechanism).__name__[:6] for layer in layers]
    assert kinds == ["BlockS", "Memory", "BlockS", "Memory", "BlockS"]
    assert [layer.self_attention.mask for layer in layers] == [block_local(4), None] * 2 + [block_local(4)]
    assert [type(layer.feed_forward) for layer in layers] == [FeedForward] * 2 + [MixtureOfExperts] + [FeedForward] * 2
    assert len(model.routing()) == 0
    model.train()
    with_experts = model(IDS, labels=IDS).loss
    assert len(model.routing()) == 1 and with_experts > model.eval()(IDS, labels=IDS).loss
    assert BlockConfig.from_dict(json.loads(json.dumps(EXPERTS.to_dict()))) == EXPERTS


CONFIGS = [MemoryCompressedConfig(), MemoryCompressedConfig(2)]


REFUSED = [
    (ONLY_COMPRESSED.replace(position="rotary"), "position='rotary' turns neighboring keys .* choose 'sinusoidal'"),
    (ONLY_COMPRESSED.replace(position="alibi"), "takes no position bias, got AlibiBias"),
    (BLOCK.replace(position="t5", layer_pattern=({}, COMPRESSED)), "takes no position bias"),
    (BLOCK.replace(layer_pattern=({}, {"mechanism": NystromConfig()})), "Nystrom is not causal"),
    (BLOCK.replace(layer_pattern=({},) * 3), "layer_pattern has 3 layers, the stack 2; shorten the pattern"),
]


@pytest.mark.parametrize("block, words", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_built(block, words):
    with pytest.raises(ValueError, match=words):
        gpt(block, layers=2)


def test_one_block_for_all_steps_has_one_mechanism():
    with pytest.raises(ValueError, match="one block serves all steps: leave its layer_pattern out"):
        UniversalGPTConfig(30, BLOCK.replace(layer_pattern=({}, COMPRESSED)))
    model = shake(UniversalGPT(UniversalGPTConfig(30, ONLY_COMPRESSED, steps=2, max_length=12))).eval()
    assert_close(model(IDS[:, :6]).logits, model(IDS).logits[:, :6], rtol=1e-4, atol=1e-4)


def test_a_mechanism_in_a_pattern_must_be_one(unchecked):
    with pytest.raises(TypeError, match="mechanism='dense' must be MechanismConfig"):
        BLOCK.replace(layer_pattern=({}, {"mechanism": "dense"}))


def test_recording_says_that_it_has_no_weights():
    model = gpt(ONLY_COMPRESSED, layers=1)
    with pytest.raises(ValueError, match="MemoryCompressedAttention in .* has none to show"), recording(model):
        pass
