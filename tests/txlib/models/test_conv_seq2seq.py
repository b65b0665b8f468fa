"""ConvS2S and ByteNet: against loops over positions, hand counts and themselves with padding and caches."""

import dataclasses
import json
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_chunks_are_the_whole, keep, shake
from torch.testing import assert_close

from txlib.data import Batch
from txlib.generation import Translator, beam_search, generate
from txlib.models import ByteNet, ByteNetConfig, ConvSeq2Seq, ConvSeq2SeqConfig, conv_seq2seq
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.recipes.translation import translation_loss
from txlib.text import Tokenizer
from txlib.training.memory import activation_memory
from txlib.training.optimizers import hidden_matrices

pytestmark = pytest.mark.slow

VOCABULARY = 11
CONV = ConvSeq2SeqConfig(VOCABULARY, d_model=8, d_embedding=6, encoder_layers=2, decoder_layers=3, max_length=64)
BYTE = ByteNetConfig(VOCABULARY, d_model=8, encoder_sets=1, decoder_sets=2, dilations=(1, 2))
KINDS = {"conv": (ConvSeq2Seq, CONV), "byte": (ByteNet, BYTE)}
VARIANTS = {
    "conv": {},
    "conv-one-width": {"d_embedding": None},
    "conv-even-kernel": {"decoder_kernel": 4, "encoder_kernel": 5},
    "conv-weight-norm": {"weight_norm": True, "tie_embeddings": False},
    "byte": {},
    "byte-longer": {"unfold_ratio": 1.5, "unfold_extra": 2, "decoder_kernel": 2},
    "byte-untied": {"tie_embeddings": False, "encoder_kernel": 1},
}
every_kind = pytest.mark.parametrize("name", KINDS)
every_variant = pytest.mark.parametrize("name", VARIANTS)


def make(name, **changes):
    kind, config = KINDS[name.partition("-")[0]]
    changes = VARIANTS.get(name, {}) | changes
    return shake(kind(dataclasses.replace(config, **changes))).double().eval()


def sentences(*shape):
    return torch.randint(3, VOCABULARY, shape)


def decode(model, source, target, attention_mask=None):
    return model(source, attention_mask, target).logits


# Against loops


def project(layer, x):
    return layer.weight @ x + layer.bias


def convolve(layer, xs, t, *, causal):
    """One output: what each place of the kernel reads, times its matrix."""
    middle = layer.kernel - 1 if causal else layer.kernel // 2
    out = layer.bias.clone()
    for place in range(layer.kernel):
        position = t + (place - middle) * layer.dilation
        if 0 <= position < len(xs):
            out += layer.weight[:, place :: layer.kernel] @ xs[position]
    return out


def gated(block, xs, *, causal):
    """√0.5 (a ⊗ σ(b) + x) at each position."""
    out = []
    for t, x in enumerate(xs):
        both = convolve(block.convolution, xs, t, causal=causal)
        a, b = both[: len(x)], both[len(x) :]
        out.append((a / (1 + (-b).exp()) + x) * math.sqrt(0.5))
    return out


def naive_conv_s2s(model, source, target):
    """Logits (target, vocab) of one sentence: Gehring et al. 2017, §3, position by position."""
    words, places = model.embedding.weight, (model.encoder.position.weight, model.decoder.position.weight)
    e = [words[token] + places[0][i] for i, token in enumerate(source)]
    z = [project(model.encoder.enter, x) for x in e]
    for block in model.encoder.layers:
        z = gated(block, z, causal=False)
    z = [project(model.encoder.leave, x) for x in z]
    g = [words[token] + places[1][i] for i, token in enumerate(target)]
    h = [project(model.decoder.enter, x) for x in g]
    m = len(source)
    for block in model.decoder.layers:
        h = gated(block, h, causal=True)
        for i in range(len(target)):
            d = project(block.query, h[i]) + g[i]
            exponentials = [(d @ z[j]).exp() for j in range(m)]
            c = sum(exponentials[j] / sum(exponentials) * (z[j] + e[j]) for j in range(m)) * m * math.sqrt(1 / m)
            h[i] = h[i] + (c if block.context is None else project(block.context, c))
    return torch.stack([model.output_weight @ project(model.decoder.leave, x) for x in h])


def normalized(norm, x):
    """Layer norm and ReLU."""
    scaled = (x - x.mean()) / (x.var(correction=0) + norm.eps).sqrt()
    return (scaled * norm.weight + norm.bias).clamp(min=0)


def dilated(block, xs, *, causal):
    """A residual block: Kalchbrenner et al. 2016, Figure 3, left."""
    inner = [normalized(block.norms[1], project(block.down_proj, normalized(block.norms[0], x))) for x in xs]
    out = [convolve(block.convolution, inner, t, causal=causal) for t in range(len(xs))]
    return [x + project(block.up_proj, normalized(block.norms[2], each)) for x, each in zip(xs, out, strict=True)]


def naive_byte_net(model, source, target):
    """Logits (target, vocab) of one sentence: Kalchbrenner et al. 2016, §3, position by position."""
    words, config = model.embedding.weight * math.sqrt(model.config.d_model), model.config
    unfolded = math.ceil(config.unfold_ratio * len(source) + config.unfold_extra)
    memory = [words[token] for token in [*source, *[config.pad_id] * (unfolded - len(source))]]
    for block in model.encoder.layers:
        memory = dilated(block, memory, causal=False)
    x = [words[token] + (memory[t] if t < unfolded else 0) for t, token in enumerate(target)]
    for block in model.decoder.layers:
        x = dilated(block, x, causal=True)
    return torch.stack([model.output_weight @ normalized(model.norm, project(model.last, each)) for each in x])


@every_variant
@torch.no_grad()
def test_equals_a_loop_over_positions(name):
    model = make(name)
    naive = naive_conv_s2s if name.startswith("conv") else naive_byte_net
    source, target, lengths = sentences(3, 6), sentences(3, 9), [6, 4, 1]
    logits = decode(model, source, target, keep(lengths, 6))
    for row, length in enumerate(lengths):
        assert_close(logits[row], naive(model, source[row, :length].tolist(), target[row].tolist()))


# Padding, caches, causality


@every_variant
def test_more_padding_changes_nothing_at_real_positions(name):
    model = make(name)
    source, target, mask = sentences(2, 5), sentences(2, 4), keep([5, 3], 5)
    wider, wider_mask = torch.cat([source, sentences(2, 3)], dim=1), keep([5, 3], 8)
    longer = torch.cat([target, torch.zeros(2, 2, dtype=torch.long)], dim=1)
    narrow, wide = model(source, mask, target), model(wider, wider_mask, longer)
    assert_close(wide.logits[:, :4], narrow.logits)
    for row, length in enumerate((5, 3)):
        length = model.config.unfolded(length) if "byte" in name else length
        memories = (out.encoder_last_hidden_state[row, :length] for out in (wide, narrow))
        assert_close(*memories)
    assert_close(narrow.logits[1:], decode(model, source[1:, :3], target[1:]))
    assert torch.equal(decode(model, source, target), decode(model, source, target, torch.ones_like(source)))


@every_kind
def test_a_sentence_of_padding_only_gives_no_nan(name):
    model, source = make(name), sentences(2, 5)
    out = model(source, keep([0, 5], 5), labels=sentences(2, 3))
    out.loss.backward()
    assert out.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@settings(max_examples=8)
@every_variant
@given(chunks=st.lists(st.integers(1, 4), min_size=2, max_size=4))
@torch.no_grad()
def test_cached_decoding_equals_all_at_once(name, chunks):
    model = make(name)
    assert_chunks_are_the_whole(model, sentences(3, 5), sentences(3, sum(chunks)), chunks)


def gradients_of(model, source, target, place, of="target"):
    """Which source and which target positions the logits at a place depend on: two lists."""
    vectors = []  # of the source's tokens, and of the target's
    handle = model.embedding.register_forward_hook(lambda module, ids, out: vectors.append(out) or out.retain_grad())
    try:
        if of == "target":
            decode(model, source, target)[0, place].sum().backward()
        else:
            model.encode(source)[0, place].sum().backward()
    finally:
        handle.remove()
    return [[] if x.grad is None else x.grad[0].any(dim=-1).nonzero().flatten().tolist() for x in vectors]


def test_conv_s2s_sees_its_receptive_field():
    model = make("conv", encoder_kernel=5, decoder_kernel=4)
    config, source, target = model.config, sentences(1, 20), sentences(1, 20)
    assert (config.encoder_receptive_field, config.decoder_receptive_field) == (1 + 2 * 4, 1 + 3 * 3)
    (read,) = gradients_of(model, source, target, 11, of="source")
    assert read == list(range(11 - 4, 11 + 4 + 1))
    assert gradients_of(model, source, target, 15) == [list(range(20)), list(range(15 - 9, 15 + 1))]


def test_byte_net_sees_its_receptive_field():
    model = make("byte", decoder_kernel=4)
    config, source, target = model.config, sentences(1, 40), sentences(1, 40)
    assert (config.encoder_receptive_field, config.decoder_receptive_field) == (1 + 2 * 3, 1 + 3 * 6)
    (read,) = gradients_of(model, source, target, 20, of="source")
    assert read == list(range(20 - 3, 20 + 3 + 1))
    first = 30 - 18
    assert gradients_of(model, source, target, 30) == [list(range(first - 3, 30 + 3 + 1)), list(range(first, 30 + 1))]


def test_byte_nets_paper_sees_every_position_of_a_long_sentence():
    config = ByteNetConfig(VOCABULARY, d_model=1600, encoder_sets=6, decoder_sets=6)
    assert config.encoder_receptive_field == config.decoder_receptive_field == 1 + 2 * 6 * 31
    with torch.device("meta"):
        model = ByteNet(config)
    assert len(model.encoder.layers) == len(model.decoder.layers) == 30  # §5


@every_variant
def test_a_token_changes_no_logits_before_it(name):
    model, source, target = make(name), sentences(1, 4), sentences(1, 6)
    before = decode(model, source, target)
    for t in range(6):
        other = target.clone()
        other[0, t] = 3 + (other[0, t] - 2) % (VOCABULARY - 3)
        after = decode(model, source, other)
        assert_close(after[:, :t], before[:, :t])
        assert not torch.allclose(after[:, t], before[:, t])


@pytest.mark.parametrize("length, unfolded", [(1, 2), (5, 6), (10, 12), (15, 18), (11, 14)])
def test_a_source_is_unfolded(length, unfolded):
    model = make("byte")
    assert model.config.unfolded(length) == unfolded  # ⌈1.2 · length⌉
    assert model.encode(sentences(1, length)).shape == (1, unfolded, 8)


def test_beyond_the_unfolded_source_nothing_is_read():
    model, source, target = make("byte"), sentences(2, 5), sentences(2, 9)
    memory = model.encode(source, keep([5, 2], 5))
    assert memory.shape[1] == 6 and not memory[1, 3:].any() and memory[1, 2].any()  # 2 tokens, 3 positions
    longer = F.pad(memory, (0, 0, 0, 7))
    assert_close(model.decode(target, memory), model.decode(target, longer))


# Variance and gradients


def test_initial_weights_have_the_papers_variance():
    torch.manual_seed(0)
    model = ConvSeq2Seq(
        ConvSeq2SeqConfig(2000, d_model=96, d_embedding=64, encoder_layers=2, decoder_layers=2, dropout=0.2)
    )
    kept = 0.8
    expected = {  # §3.5, with the dropout of what each layer reads
        model.embedding.weight: 0.1,
        model.encoder.position.weight: 0.1,
        model.decoder.position.weight: 0.1,
        model.encoder.enter.weight: math.sqrt(kept / 64),
        model.encoder.layers[1].convolution.weight: math.sqrt(4 * kept / (3 * 96)),
        model.decoder.layers[1].convolution.weight: math.sqrt(4 * kept / (3 * 96)),
        model.decoder.layers[1].query.weight: math.sqrt(1 / 96),
        model.decoder.layers[1].context.weight: math.sqrt(1 / 64),
        model.encoder.leave.weight: math.sqrt(1 / 96),
    }
    for weight, std in expected.items():
        assert weight.std().item() == pytest.approx(std, rel=0.03)
        assert weight.mean().abs() < 0.03 * std
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    assert biases and not any(bias.any() for bias in biases)


def test_byte_nets_blocks_double_the_variance_at_most():
    torch.manual_seed(0)
    model = ByteNet(ByteNetConfig(2000, d_model=128, encoder_sets=2, decoder_sets=2))
    x = torch.randn(4, 60, 128)
    with torch.no_grad():
        assert 1.5 < model.encoder(x).var() / x.var() < 2.5


def gradients(model, *batch):
    """Each parameter's gradient, by name."""
    model.zero_grad(set_to_none=False)
    source, mask, labels = batch
    model(source, mask, labels=labels).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@every_kind
def test_gradients_equal_finite_differences(name, monkeypatch):
    monkeypatch.setattr(conv_seq2seq, "scale_gradient", lambda x, factor: x)
    model = make(name)
    source, mask, labels = sentences(2, 3), keep([3, 2], 3), sentences(2, 3)
    found = gradients(model, source, mask, labels)
    for parameter_name, parameter in model.named_parameters():
        flat, gradient = parameter.data.view(-1), found[parameter_name].view(-1)
        i, losses = int(gradient.abs().argmax()), []
        for step in (1e-5, -2e-5):
            flat[i] += step
            losses.append(model(source, mask, labels=labels).loss.item())
        flat[i] += 1e-5
        expected = (losses[0] - losses[1]) / 2e-5
        assert gradient[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-7), parameter_name


def test_the_encoder_gets_a_share_of_its_gradients(monkeypatch):
    """As many as there are attentions send one; what they fetch of the embeddings is not counted (§3.4)."""
    model, batch = make("conv"), (sentences(2, 5), keep([5, 3], 5), sentences(2, 4))
    shares = gradients(model, *batch)
    monkeypatch.setattr(conv_seq2seq, "scale_gradient", lambda x, factor: x)
    whole = gradients(model, *batch)
    monkeypatch.setattr(conv_seq2seq, "scale_gradient", lambda x, factor: x.detach())
    without = gradients(model, *batch)
    for name, gradient in shares.items():
        assert_close(gradient, without[name] + (whole[name] - without[name]) / 3)
    assert without["encoder.position.weight"].any()


@every_variant
def test_gradients_reach_every_parameter(name):
    model = make(name).train()
    model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4)).loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), parameter_name


@every_kind
def test_dropout_only_while_training(name):
    model, source, target = make(name, dropout=0.5), sentences(2, 5), sentences(2, 3)
    assert torch.equal(decode(model, source, target), decode(model, source, target))
    model.train()
    assert not torch.equal(decode(model, source, target), decode(model, source, target))


@every_kind
def test_mixed_precision_trains(name):
    model = make(name).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4))
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# Sizes


def test_conv_s2s_parameters_by_hand():
    v, d, f, longest, layers = 50, 12, 10, 16, 3
    convolution = 3 * d * 2 * d + 2 * d
    decoder_layer = convolution + (d * f + f) + (f * d + d)
    ends = (f * d + d) + (d * f + f)
    expected = v * f + 2 * longest * f + layers * (convolution + decoder_layer) + 2 * ends
    config = ConvSeq2SeqConfig(v, d, f, layers, layers, max_length=longest)
    assert count(ConvSeq2Seq(config)) == expected
    assert count(ConvSeq2Seq(dataclasses.replace(config, tie_embeddings=False))) == expected + v * f
    lengths = 2 * layers * 2 * d + layers * (f + d) + 2 * (d + f)  # one for each output of a layer
    assert count(ConvSeq2Seq(dataclasses.replace(config, weight_norm=True))) == expected + lengths
    assert count(ConvSeq2Seq(ConvSeq2SeqConfig(v, d, encoder_layers=layers, decoder_layers=layers, max_length=16))) == (
        v * d + 2 * longest * d + layers * 2 * convolution + (layers + 4) * (d * d + d)
    )


def test_byte_net_parameters_by_hand():
    v, d = 50, 6
    block = (2 * d * d + d) + (3 * d * d + d) + (d * 2 * d + 2 * d) + 2 * (2 * d + d + d)
    expected = v * 2 * d + (2 + 3) * 4 * block + (2 * d * 2 * d + 2 * d) + 2 * 2 * d
    config = ByteNetConfig(v, 2 * d, encoder_sets=2, decoder_sets=3, dilations=(1, 2, 4, 8))
    assert count(ByteNet(config)) == expected
    assert count(ByteNet(dataclasses.replace(config, tie_embeddings=False))) == expected + v * 2 * d


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["conv", "conv-weight-norm", "byte"])
def test_the_blocks_matrices_are_found(name):
    model = make(name)
    found, blocks = hidden_matrices(model), 2 + 3 if name != "byte" else (1 + 2) * 2
    each = {"byte": 3 * blocks}.get(name, blocks + 2 * 3)  # in ConvS2S's decoder also query and context
    assert len(found) == each and all(min(matrix.shape) > 1 for matrix in found.values())


# The common face


@every_kind
def test_loss_equals_the_formula(name, unchecked):
    model, source = make(name), sentences(2, 5)
    labels = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100]])
    batch = Batch(source, torch.ones_like(source), torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]), labels)
    out, logits = model(source, labels=labels), decode(model, source, batch.decoder_input_ids)
    assert_close(out.logits, logits)
    terms = [-logits[b, t].log_softmax(-1)[labels[b, t]] for b, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))]
    assert_close(out.loss, sum(terms) / 5)
    total, tokens = translation_loss(model, batch)
    assert tokens == 5
    assert_close(total, sum(terms))


@every_variant
def test_search_with_a_cache_and_without(name):
    model = make(name)
    source, mask = sentences(4, 6), keep([6, 2, 5, 1], 6)
    for search, options in (generate, {}), (beam_search, {"num_beams": 3}):
        found = search(model, source, mask, max_new_tokens=12, **options)
        assert found == search(model, source, mask, max_new_tokens=12, use_cache=False, **options)
        for row, length in enumerate((6, 2, 5, 1)):
            assert found[row] == search(model, source[row : row + 1, :length], max_new_tokens=12, **options)[0]
        assert any(found)


@every_kind
def test_a_translator_translates(name):
    tokenizer = Tokenizer.train(["das Haus ist klein", "the house is small"], 280)
    kind, config = KINDS[name]
    special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    config = dataclasses.replace(config, vocab_size=len(tokenizer), **special)
    model, source = shake(kind(config)).eval(), "das Haus ist klein"
    ids = torch.tensor([[*tokenizer.encode(source, special_tokens=False), tokenizer.eos_id]])
    (found,) = beam_search(model, ids, max_new_tokens=int(1.5 * ids.shape[1]) + 10, length_penalty=1.0)
    assert found and Translator(model, tokenizer).translate([source]) == [tokenizer.decode(found)]
    with pytest.raises(ValueError, match="the tokenizer has"):
        Translator(make(name), tokenizer)


@every_variant
@torch.no_grad()
def test_weights_go_to_disk_and_back(name, tmp_path):
    model = make(name)
    save_pretrained(model, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["model_type"] == "txlib" and settings["architectures"] == [type(model).__name__]
    again, source, target = load_pretrained(tmp_path), sentences(2, 5), sentences(2, 3)
    assert again.config == model.config
    assert torch.equal(decode(model, source, target), decode(again, source, target))


@every_variant
@pytest.mark.usefixtures("unchecked")
@torch.no_grad()
def test_torch_exports_them(name):
    model, ids = make(name), {"input_ids": sentences(2, 5), "decoder_input_ids": sentences(2, 4)}
    exported = torch.export.export(model, (), ids).module()
    again = {"input_ids": sentences(2, 5), "decoder_input_ids": sentences(2, 4)}
    assert_close(exported(**again).logits, model(**again).logits)


@every_kind
def test_their_memory_is_planned(name):
    batches = ({"input_ids": sentences(n, 5), "decoder_input_ids": sentences(n, 4)} for n in (2, 4))
    once, twice = (activation_memory(make(name).train(), batch) for batch in batches)
    assert once < twice <= 2 * once


# Bad input


@pytest.mark.parametrize(
    "name, changes, words",
    [
        ("conv", {"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ("conv", {"d_model": 0}, "d_model=0 must be at least 1"),
        ("conv", {"d_embedding": -1}, "d_embedding=-1 must be at least 1"),
        ("conv", {"encoder_layers": 0}, "encoder_layers=0 must be at least 1"),
        ("conv", {"decoder_layers": 0}, "decoder_layers=0 must be at least 1"),
        ("conv", {"encoder_kernel": 4}, "encoder_kernel=4 has no middle; choose an odd one, e.g. 5"),
        ("conv", {"decoder_kernel": 0}, "decoder_kernel=0 must be at least 1"),
        ("conv", {"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ("byte", {"d_model": 9}, "d_model=9 is odd, and a block halves it; choose e.g. 10"),
        ("byte", {"decoder_sets": 0}, "decoder_sets=0 must be at least 1"),
        ("byte", {"encoder_kernel": 2}, "encoder_kernel=2 has no middle"),
        ("byte", {"dilations": ()}, r"dilations=\(\) must name"),
        ("byte", {"dilations": (1, 0)}, r"dilations=\(1, 0\) must"),
        ("byte", {"unfold_ratio": 0.9}, "unfold_ratio=0.9 must be at least 1"),
        ("byte", {"unfold_extra": -1}, "unfold_extra=-1 must be at least 0"),
    ],
)
def test_wrong_sizes_are_refused(name, changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(KINDS[name][1], **changes)


@every_kind
def test_wrong_calls_are_refused(name, unchecked):
    model = make(name)
    source, target = sentences(2, 3), sentences(2, 2)
    with pytest.raises(ValueError, match=f"{type(model).__name__} needs decoder_input_ids or labels"):
        model(source)
    with pytest.raises(ValueError, match="the source has no tokens"):
        model(source[:, :0], labels=target)
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 2\), the tokens \(2, 3\)"):
        model(source, keep([2, 2], 2), labels=target)
    with pytest.raises(ValueError, match="decoder_input_ids has 1 rows, the memory 2"):
        model(source, decoder_input_ids=target[:1])
    with pytest.raises(ValueError, match=f"input_ids holds {VOCABULARY}, and vocab_size={VOCABULARY}"):
        model(source + VOCABULARY - source.max(), labels=target)
    memory, cache = model.encode(source), model.new_cache()
    model.decode(target[:, :1], memory, cache=cache)
    with pytest.raises(ValueError, match="the cache holds 2 sequences, got 1"):
        model.decode(target[:1, :1], memory[:1], cache=cache)


def test_conv_s2s_positions_end(unchecked):
    model = make("conv", max_length=4)
    with pytest.raises(ValueError, match="the model sees max_length=4 positions at a time, but the sequence reaches 5"):
        model(sentences(1, 5), labels=sentences(1, 2))


def test_byte_net_wants_padding_on_the_right():
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    with pytest.raises(ValueError, match="padding before a token in row 1; ByteNet wants it on the right"):
        make("byte").encode(sentences(2, 3), mask)
