"""Longformer against `transformers`: random small models, shaken in every parameter, in both directions; its attention
against loops."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from oracles import assert_same_output, head_labels, loop_attention, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib import load_pretrained, save_pretrained
from txlib.attention import (
    BlockSparseAttention,
    LongformerAttention,
    MultiHeadAttention,
    causal,
    padding,
    padding_from_mask,
    recording,
    sliding_window,
)
from txlib.layers import BlockConfig, LongformerConfig
from txlib.models import BertForQuestionAnswering, BertForSequenceClassification, Encoder, EncoderConfig
from txlib.models.pretrained import PretrainedError

close = {"rtol": 1e-5, "atol": 1e-5}
SMALL = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 60,
    "type_vocab_size": 2,
    "attention_window": [4, 8, 6],
}
HEADS = [
    "LongformerModel",
    "LongformerForMaskedLM",
    "LongformerForSequenceClassification",
    "LongformerForQuestionAnswering",
    "LongformerForTokenClassification",
    "LongformerForMultipleChoice",
]
PAD, SEP = 1, 2


def make(head, **changes):
    torch.manual_seed(1)
    config = transformers.LongformerConfig(**SMALL | changes)
    return shake(getattr(transformers, head)(config)).eval()


def there(model, folder):
    """The model in txlib, by way of a folder; its texts are short, so blocks are smaller than usual."""
    model.save_pretrained(folder)
    ours = load_pretrained(folder)
    mechanisms = [part for part in ours.modules() if isinstance(part, BlockSparseAttention)]
    assert len(mechanisms) == 3
    for part in mechanisms:
        part.block_size = 8
    return ours


def inputs(*shape):
    """Questions with two separators behind them and one at the end; padding from place 37 on in every second text of
    45 tokens, which is no multiple of a window."""
    ids = torch.randint(3, 61, (*shape, 45))
    ids[..., 6:8], ids[..., -1] = SEP, SEP
    real = torch.ones_like(ids)
    real.view(-1, 45)[1::2, 37:] = 0
    ids[..., 36] = SEP
    return {"input_ids": ids.masked_fill(real == 0, PAD), "attention_mask": real}


def three_separators(given):
    """transformers asks for exactly three where it looks for the question."""
    ids, real = given["input_ids"].view(-1, 45), given["attention_mask"].view(-1, 45)
    for row, length in zip(ids, real.sum(1).tolist(), strict=True):
        row[36] = 5
        row[length - 1] = SEP
    return given


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_longformer(head, tmp_path):
    theirs = make(head, num_labels=2 if head == "LongformerForQuestionAnswering" else 5)
    ours = there(theirs, tmp_path / "theirs")
    given = three_separators(inputs(3, 4) if head == "LongformerForMultipleChoice" else inputs(3))
    x = given["input_ids"]
    marked = torch.zeros_like(x)
    marked.view(-1, 45)[0, [0, 5, 17]] = 1
    marked.view(-1, 45)[2, 44] = 1
    labelled = {**given, "global_attention_mask": marked, "token_type_ids": x % 2, **head_labels(head, x)}
    for arguments in (given, labelled):  # without a global_attention_mask, a head marks what its task needs
        assert_same_output(ours(**arguments), theirs(**arguments))
    save_pretrained(ours, tmp_path / "ours")
    back, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert_same_output(ours(**labelled), back.eval()(**labelled))
    settings = json.loads((tmp_path / "ours/config.json").read_text())
    assert (settings["model_type"], settings["architectures"]) == ("longformer", [head])
    assert load_pretrained(tmp_path / "ours").config == ours.config


@torch.no_grad()
def test_one_window_for_all_layers(tmp_path):
    """As the hub's older files have it, and as transformers no longer writes it."""
    theirs = make("LongformerModel", attention_window=6)
    theirs.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"attention_window": 6}))
    ours, x = load_pretrained(tmp_path), torch.randint(3, 61, (2, 20))
    assert ours.config.block.attention.mask == sliding_window(3)
    assert_same_output(ours(x), theirs(x))
    save_pretrained(ours, tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["attention_window"] == 6


@torch.no_grad()
def test_other_settings(tmp_path):
    """One window for all layers, wider than the text; other paddings; another activation; sizes of one."""
    settings = {"attention_window": 40, "pad_token_id": 0, "hidden_act": "gelu_new", "type_vocab_size": 1}
    theirs = make("LongformerModel", **settings, max_position_embeddings=20)
    ours = there(theirs, tmp_path)
    assert ours.config.block.attention.mask == sliding_window(20) and ours.config.max_length == 19
    for length in (1, 5, 19):
        x = torch.randint(1, 61, (2, length))
        assert_same_output(ours(x), theirs(x))


@torch.no_grad()
def test_a_text_as_long_as_the_table(tmp_path):
    ours = there(make("LongformerModel"), tmp_path)
    longest = torch.randint(3, 61, (1, 58))
    assert ours(longest).last_hidden_state.shape == (1, 58, 16)
    with pytest.raises(ValueError, match="learned positions end at max_length=58, but the sequence has 59 tokens"):
        ours(torch.cat([longest, longest[:, :1]], dim=1))
    padded = torch.cat([longest, torch.full((1, 5), PAD)], dim=1)  # padding takes no position
    out = ours(padded, (padded != PAD).long()).last_hidden_state[:, :58]
    assert_close(out, ours(longest).last_hidden_state, **close)


def layer_and_input():
    torch.manual_seed(0)
    layer = shake(LongformerAttention(8, 2, mask=sliding_window(2)))
    marked = torch.zeros(3, 11, dtype=torch.long)
    marked[0, [0, 7]] = 1
    marked[1, 3] = 1
    return layer, torch.randn(3, 11, 8), marked


@pytest.mark.parametrize("mask", [None, padding([11, 9, 5]), causal() & padding([11, 9, 5])], ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_attention_is_what_the_paper_says(mask, as_tensor):
    layer, x, marked = layer_and_input()
    allowed = (causal() | ~causal() if mask is None else mask).dense(11).expand(3, -1, -1, -1)
    given = None if mask is None else mask.dense(11) if as_tensor else mask
    q, k, v, global_q, global_k, global_v = (
        getattr(layer, name)(x).view(3, 11, 2, 4).transpose(1, 2)
        for name in ("query", "key", "value", "query_global", "key_global", "value_global")
    )
    near = sliding_window(2).dense(11) | marked.bool()[:, None, None, :]
    real = torch.ones(3, 1, 11, 1) > 0
    if mask is not None and not as_tensor:  # padding is known as such
        real = padding([11, 9, 5]).transposed().dense(11)[..., :1]
    local, local_weights = loop_attention(q, k, v, allowed & near & real)
    whole, whole_weights = loop_attention(global_q, global_k, global_v, allowed)
    which = marked.bool()[:, None, :, None]
    expected = torch.where(which, whole, local).transpose(1, 2).flatten(2)
    with recording(layer) as weights:
        out = layer(x, mask=given, global_attention_mask=marked)
    assert_close(out, layer.output(expected))
    assert_close(weights[""][0], torch.where(which, whole_weights, local_weights))


@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"kv_heads": 1}], ids=str)
def test_few_marked_tokens_take_a_shorter_way_to_the_same(settings):
    few = shake(LongformerAttention(8, 2, mask=sliding_window(2), **settings))
    usual = LongformerAttention(8, 2, mask=sliding_window(2), global_mechanism=BlockSparseAttention(), **settings)
    usual.load_state_dict(few.state_dict())
    _, x, marked = layer_and_input()
    for layer in few, usual:
        layer(x, mask=padding([11, 9, 5]), global_attention_mask=marked).square().sum().backward()
    for (name, mine), other in zip(few.named_parameters(), usual.parameters(), strict=True):
        assert_close(mine.grad, other.grad, msg=name)
    work = []
    for layer in few, usual:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(x.repeat(1, 10, 1), global_attention_mask=torch.nn.functional.pad(marked, (0, 99)))
        work.append(counter.get_total_flops())
    assert work[0] < work[1]


def test_without_global_tokens_it_is_a_window():
    layer, x, marked = layer_and_input()
    plain = MultiHeadAttention(8, 2, mask=sliding_window(2))
    plain.load_state_dict({name: value for name, value in layer.state_dict().items() if "_global" not in name})
    assert_close(layer(x), plain(x))
    assert_close(layer(x, global_attention_mask=marked * 0), plain(x))


def test_all_projections_learn():
    layer, x, marked = layer_and_input()
    layer(x, mask=padding_from_mask(torch.ones(3, 11)), global_attention_mask=marked).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for name, parameter in layer.named_parameters() if "key.bias" not in name)


def test_cost_grows_with_the_length_not_its_square():
    layer = LongformerAttention(8, 2, mask=sliding_window(8), mechanism=BlockSparseAttention(block_size=16))
    counts = []
    for length in (256, 512, 1024):
        marked = torch.zeros(1, length).long()
        marked[:, [0, 100]] = 1
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(torch.randn(1, length, 8), global_attention_mask=marked)
        counts.append(counter.get_total_flops())
    assert counts[2] - counts[1] == pytest.approx(2 * (counts[1] - counts[0]), rel=0.05)


CONFIG = EncoderConfig(
    30,
    BlockConfig.of_sizes(8, 2, 8, position="learned", mask=sliding_window(2), mixer=LongformerConfig()),
    layers=2,
    max_length=16,
)


@torch.no_grad()
def test_it_is_a_config_of_the_encoder(tmp_path):
    """Any position that is added, any window; saved in our own format where Longformer's can't say it."""
    config = replace(CONFIG, block=CONFIG.block.replace(position="sinusoidal", mask=None))
    model = shake(Encoder(config)).eval()
    save_pretrained(model, tmp_path)
    x, marked = torch.randint(30, (2, 9)), torch.eye(9).long()[:2]
    again = load_pretrained(tmp_path)
    assert again.config == config
    assert_close(
        again(x, global_attention_mask=marked).last_hidden_state,
        model(x, global_attention_mask=marked).last_hidden_state,
    )


def test_what_does_not_fit_is_refused(unchecked):
    x, marked = torch.randint(3, 30, (2, 9)), torch.ones(2, 9).long()
    plain = Encoder(replace(CONFIG, block=CONFIG.block.replace(mixer=None)))
    with pytest.raises(ValueError, match=r"needs a block with projections for global tokens: BlockConfig\(mixer=Longf"):
        plain(x, global_attention_mask=marked)
    with pytest.raises(ValueError, match=r"global_attention_mask has shape \(2, 8\), expected .* = \(2, 9\)"):
        Encoder(CONFIG)(x, global_attention_mask=marked[:, :8])
    with pytest.raises(ValueError, match="position='learned' or 'sinusoidal'"):
        Encoder(replace(CONFIG, block=CONFIG.block.replace(position="rotary")))
    with pytest.raises(ValueError, match="positions_after_pad is for position='learned', not 'alibi'"):
        EncoderConfig(30, BlockConfig.of_sizes(8, 2, 8, position="alibi"), positions_after_pad=True)
    layer, y, some = layer_and_input()
    with pytest.raises(ValueError, match="leave memory and cache out"):
        layer(y, y, global_attention_mask=some)
    asks = BertForQuestionAnswering(CONFIG)
    with pytest.raises(ValueError, match="where the question ends is not known: set sep_id"):
        asks(x)
    asks(x, global_attention_mask=marked)
    x[0, 3] = 2
    with pytest.raises(
        ValueError, match="sentence 1 has no separator, sep_id=2, after its question: give global_attent"
    ):
        BertForQuestionAnswering(replace(CONFIG, sep_id=2))(x)
    assert BertForSequenceClassification(CONFIG)(x).logits.shape == (2, 2)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"attention_window": 5}, "attention_window=5 is not supported, only even numbers from 2 on"),
        ({"attention_window": [4, 8]}, "attention_window has 2 widths for 3 layers; give one each"),
        ({"hidden_act": "silly"}, "hidden_act='silly' is not supported"),
    ],
)
def test_settings_that_mean_something_else_are_refused(changes, words, tmp_path):
    make("LongformerModel").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(PretrainedError, match=words):
        load_pretrained(tmp_path)


def test_what_longformers_format_cannot_say_is_named(tmp_path):
    config = replace(CONFIG, positions_after_pad=True, block=CONFIG.block.replace(mask=causal()))
    with pytest.raises(PretrainedError, match=r"longformer has windows only, not mask=causal\(\)"):
        save_pretrained(Encoder(config), tmp_path, model_type="longformer")
