"""The whole Transformer: against nn.Transformer, against itself with padding and caches, and against hand counts."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_chunks_are_the_whole, keep, load_norm, shake, torch_layer
from torch import nn
from torch.testing import assert_close

from txlib.attention import Mask, recording
from txlib.layers import BlockConfig, sinusoidal
from txlib.models.sizes import VASWANI
from txlib.models.transformer import Transformer, TransformerConfig
from txlib.models.translation import shift_right

POSITIONS = ["none", "sinusoidal", "sinusoidal_concatenated", "learned", "rotary", "rotary_half", "shaw", "alibi", "t5"]
BLOCK = BlockConfig.of_sizes(d_model=16, heads=4, d_ff=24, position="none")
VOCABULARY = 11


def make(*, encoder_layers=2, decoder_layers=2, max_length=32, **block):
    config = TransformerConfig(
        VOCABULARY, BLOCK.replace(**block), encoder_layers, decoder_layers, max_length=max_length
    )
    return shake(Transformer(config).double()).eval()


def sentences(*shape):
    return torch.randint(3, VOCABULARY, shape)


def decode(model, source, target, attention_mask=None):
    return model(source, attention_mask, target).logits


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_equals_torch(norm_first, layout):
    position = "sinusoidal" if layout == "interleaved" else "sinusoidal_concatenated"
    model = make(norm_first=norm_first, position=position, encoder_layers=3)

    def stack(ours, kind):  # nn.Transformer would add a norm to post-norm, too
        theirs = kind(torch_layer(ours.layers[0]), len(ours.layers))
        theirs.layers = nn.ModuleList(torch_layer(block) for block in ours.layers)
        if norm_first:
            theirs.norm = nn.LayerNorm(16, dtype=torch.float64)
            load_norm(theirs.norm, ours.norm)
        return theirs

    theirs = nn.Transformer(16, 4, 1, 1, batch_first=True)
    theirs.encoder = stack(model.encoder, partial(nn.TransformerEncoder, enable_nested_tensor=False))
    theirs.decoder = stack(model.decoder, nn.TransformerDecoder)
    source, target, mask = sentences(3, 6), sentences(3, 5), keep([6, 4, 1], 6)

    def embed(ids):
        table = sinusoidal(ids.shape[1], 16, layout=layout)
        return F.embedding(ids, model.embedding.weight) * 4 + table

    hidden = theirs(
        embed(source),
        embed(target),
        tgt_mask=torch.ones(5, 5).triu(1).bool(),
        src_key_padding_mask=mask == 0,
        memory_key_padding_mask=mask == 0,
    )
    assert_close(decode(model, source, target, mask), hidden @ model.embedding.weight.T)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_more_padding_changes_nothing_at_real_positions(position, norm_first):
    model = make(position=position, norm_first=norm_first)
    source, target, mask = sentences(2, 5), sentences(2, 4), keep([5, 3], 5)
    wider, wider_mask = torch.cat([source, sentences(2, 3)], dim=1), keep([5, 3], 8)
    longer = torch.cat([target, torch.zeros(2, 2, dtype=torch.long)], dim=1)
    narrow, wide = model(source, mask, target), model(wider, wider_mask, longer)
    assert_close(wide.logits[:, :4], narrow.logits)
    for row, length in enumerate((5, 3)):
        assert_close(wide.encoder_last_hidden_state[row, :length], narrow.encoder_last_hidden_state[row, :length])
    alone = model(source[1:, :3], None, target[1:])
    assert_close(narrow.logits[1:], alone.logits)


def test_no_mask_and_a_mask_of_ones_are_the_same():
    model, source, target = make(), sentences(2, 5), sentences(2, 4)
    assert torch.equal(decode(model, source, target), decode(model, source, target, torch.ones_like(source)))


def test_a_sentence_of_padding_only_gives_no_nan():
    model, source = make(norm_first=False), sentences(2, 5)
    out = model(source, keep([0, 5], 5), labels=sentences(2, 3))
    out.loss.backward()
    assert out.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@settings(max_examples=2)
@pytest.mark.parametrize("position", POSITIONS)
@given(
    chunks=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    norm_first=st.booleans(),
    kv_heads=st.sampled_from([None, 2, 1]),
    qk_norm=st.sampled_from([None, "layer", "rms"]),
)
def test_cached_decoding_equals_all_at_once(position, chunks, norm_first, kv_heads, qk_norm):
    model = make(position=position, norm_first=norm_first, kv_heads=kv_heads, qk_norm=qk_norm)
    assert_chunks_are_the_whole(model, sentences(3, 5), sentences(3, sum(chunks)), chunks)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_token_changes_no_logits_before_it(position):
    model, source, target = make(position=position), sentences(1, 4), sentences(1, 6)
    before = decode(model, source, target)
    for t in range(6):
        other = target.clone()
        other[0, t] = 3 + (other[0, t] - 2) % (VOCABULARY - 3)
        after = decode(model, source, other)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.allclose(after[:, t], before[:, t])


@pytest.mark.parametrize("position", POSITIONS[1:])
def test_the_order_of_the_source_matters(position):
    source, other, target = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[4, 3, 5, 6]]), sentences(1, 3)
    model = make(position=position)
    assert not torch.allclose(decode(model, source, target), decode(model, other, target))


def test_alibi_cannot_tell_a_source_from_its_mirror_image():
    model, source, target = make(position="alibi"), sentences(1, 4), sentences(1, 3)
    assert_close(decode(model, source, target), decode(model, source.flip(1), target))


def test_without_positions_the_order_of_the_source_does_not_matter():
    model, source, target = make(position="none"), sentences(1, 4), sentences(1, 3)
    assert_close(decode(model, source, target), decode(model, source.flip(1), target))


def count_by_hand(d, d_ff, layers, vocabulary):
    """Parameters of Vaswani et al. 2017 with biases and one embedding matrix, post-norm."""
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * d_ff + d_ff + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return vocabulary * d + layers * (encoder + decoder)


@pytest.mark.parametrize("name, printed, millions", [("base", 63_082_496, 65), ("big", 214_245_376, 213)])
def test_sizes(name, printed, millions):
    config = VASWANI[name]
    with torch.device("meta"):
        model = Transformer(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == printed == count_by_hand(config.block.d_model, config.block.ffn.d_ff, 6, 37_000)
    assert count == pytest.approx(millions * 1e6, rel=0.04)  # Table 3


def test_labels_are_shifted_right():
    labels = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100]])
    expected = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    assert torch.equal(shift_right(labels, bos_id=1, pad_id=0), expected)


def test_loss_equals_the_formula():
    model, source = make(), sentences(2, 5)
    labels = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100]])
    out = model(source, labels=labels)
    logits = decode(model, source, torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]))
    assert_close(out.logits, logits)
    terms = [-logits[b, t].log_softmax(-1)[labels[b, t]] for b, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))]
    assert_close(out.loss, sum(terms) / 5)
    assert model(source, decoder_input_ids=labels.clamp(min=0)).loss is None
    given_inputs = model(source, decoder_input_ids=labels.clamp(min=0), labels=labels)
    assert_close(given_inputs.logits, decode(model, source, labels.clamp(min=0)))


def test_one_matrix_serves_three_times():
    model = make(encoder_layers=1, decoder_layers=1)
    assert model.output_weight is model.embedding.weight
    names = [name for name, parameter in model.named_parameters() if VOCABULARY in parameter.shape]
    assert names == ["embedding.weight"]


def test_gradients_reach_every_parameter():
    model = make(position="shaw", norm_first=False, encoder_layers=1, decoder_layers=1).train()
    model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_gradients_equal_finite_differences(unchecked):
    model = make(encoder_layers=1, decoder_layers=1, position="rotary")
    source, labels = sentences(2, 3), sentences(2, 3)
    model(source, keep([3, 2], 3), labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        i, losses = int(gradient.abs().argmax()), []
        for step in (1e-5, -2e-5):
            flat[i] += step
            losses.append(model(source, keep([3, 2], 3), labels=labels).loss.item())
        flat[i] += 1e-5
        assert gradient[i].item() == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-7), name


def test_recording_names_every_attention():
    model = make()
    with recording(model) as weights:
        model(sentences(2, 5), None, sentences(2, 3))
    shapes = {name: tuple(calls[0].shape) for name, calls in weights.items()}
    encoder = {f"encoder.layers.{i}.self_attention": (2, 4, 5, 5) for i in range(2)}
    decoder = {f"decoder.layers.{i}.self_attention": (2, 4, 3, 3) for i in range(2)}
    assert shapes == encoder | decoder | {f"decoder.layers.{i}.cross_attention": (2, 4, 3, 5) for i in range(2)}
    for calls in weights.values():
        assert_close(calls[0].sum(-1), torch.ones_like(calls[0].sum(-1)))


def test_dropout_only_while_training():
    model, source, target = make(dropout=0.5), sentences(2, 5), sentences(2, 3)
    assert torch.equal(decode(model, source, target), decode(model, source, target))
    model.train()
    assert not torch.equal(decode(model, source, target), decode(model, source, target))


def test_weights_go_to_disk_and_back(tmp_path):
    model = make(position="shaw", qk_norm="layer")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = Transformer(TransformerConfig.from_dict(model.config.to_dict())).double().eval()
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    source, target = sentences(2, 5), sentences(2, 3)
    assert torch.equal(decode(model, source, target), decode(other, source, target))


@given(st.sampled_from(POSITIONS), st.booleans(), st.sampled_from([None, 2]), st.floats(0, 0.9), st.integers(1, 9))
def test_a_config_goes_through_json_and_back(position, norm_first, kv_heads, dropout, layers):
    block = BLOCK.replace(position=position, norm_first=norm_first, kv_heads=kv_heads, dropout=dropout)
    config = TransformerConfig(vocab_size=50, block=block, encoder_layers=layers, bos_id=7)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_config_with_a_rule_of_ones_own_cannot_be_saved():
    config = TransformerConfig(50, BLOCK.replace(mask=Mask(lambda query, key: query > key, name="past")))
    with pytest.raises(ValueError, match="past is a rule of your own"):
        config.to_dict()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"encoder_layers": 0}, "encoder_layers=0 must be at least 1"),
        ({"decoder_layers": -1}, "decoder_layers=-1 must be at least 1"),
        ({"block": BLOCK.replace(position="skewed")}, "position='skewed' is causal"),
    ],
)
def test_wrong_sizes_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        TransformerConfig(**{"vocab_size": 50, "block": BLOCK} | changes)


def test_wrong_calls_are_refused(unchecked):
    model = make(position="learned", max_length=4)
    with pytest.raises(ValueError, match="needs decoder_input_ids or labels"):
        model(sentences(1, 3))
    with pytest.raises(ValueError, match="the model sees max_length=4 positions at a time, but the sequence reaches 5"):
        model(sentences(1, 5), labels=sentences(1, 2))
    for mask in (keep([2], 2), keep([1], 2), keep([3, 2], 3)):
        with pytest.raises(ValueError, match=rf"shape \({len(mask)}, {mask.shape[1]}\), the tokens \(1, 3\)"):
            model(sentences(1, 3), mask, labels=sentences(1, 2))


def test_mixed_precision_trains():
    model = make(norm_first=False).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(sentences(2, 5), keep([5, 3], 5), labels=sentences(2, 4))
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
