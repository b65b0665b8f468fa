"""Big Bird against `transformers`: random small models, shaken in every parameter, in both directions; its attention
against the definition."""

import json

import pytest
import torch
import transformers
from oracles import assert_same_output, head_labels, keep, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib import load_pretrained, save_pretrained
from txlib.attention import BigBirdAttention, BigBirdConfig, attention, bigbird, causal, padding, sliding_window
from txlib.layers import BlockConfig
from txlib.models import Encoder, EncoderConfig
from txlib.models.pretrained import PretrainedError

close = {"rtol": 1e-5, "atol": 1e-5}
SMALL = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
    "type_vocab_size": 2,
    "block_size": 4,
    "num_random_blocks": 2,
    "sep_token_id": 2,
}
HEADS = [
    "BigBirdModel",
    "BigBirdForPreTraining",
    "BigBirdForMaskedLM",
    "BigBirdForSequenceClassification",
    "BigBirdForQuestionAnswering",
    "BigBirdForTokenClassification",
    "BigBirdForMultipleChoice",
]
SPARSE_FROM = 4 * (5 + 2 * 2) + 1  # tokens from which transformers leaves blocks out


def make(head, **changes):
    torch.manual_seed(1)
    config = transformers.BigBirdConfig(**SMALL | changes)
    return shake(getattr(transformers, head)._from_config(config, attn_implementation="eager")).eval()


def there(model, folder):
    model.save_pretrained(folder)
    return load_pretrained(folder)


@pytest.mark.parametrize("head, kind", [*((head, "block_sparse") for head in HEADS), ("BigBirdModel", "original_full")])
@torch.no_grad()
def test_big_bird(head, kind, tmp_path):
    """57 tokens: no multiple of a block, and the last block is one sentence's padding."""
    theirs = make(head, attention_type=kind, num_labels=2 if head == "BigBirdForQuestionAnswering" else 5)
    ours = there(theirs, tmp_path / "theirs")
    x = torch.randint(3, 61, (3, 4, 57) if head == "BigBirdForMultipleChoice" else (3, 57))
    x[..., 6] = 2
    mask = keep([57, 50, 42], 57) if x.dim() == 2 else keep([57, 50, 42] * 4, 57).view(3, 4, 57)
    given = {"input_ids": x, "attention_mask": mask}
    labelled = {**given, "token_type_ids": torch.randint(0, 2, x.shape), **head_labels(head, x)}
    for arguments in (given, labelled):
        assert_same_output(ours(**arguments), theirs(**arguments))
    save_pretrained(ours, tmp_path / "ours", model_type="big_bird")
    back, report = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not report["unexpected_keys"]
    assert set(report["missing_keys"]) <= {"bert.pooler.weight", "bert.pooler.bias"}  # which those heads do not read
    assert_same_output(ours(**labelled), back.eval()(**labelled))
    settings = json.loads((tmp_path / "ours/config.json").read_text())
    assert (settings["model_type"], settings["attention_type"]) == ("big_bird", kind)
    assert load_pretrained(tmp_path / "ours").config == ours.config


@pytest.mark.parametrize("length", [1, 4, SPARSE_FROM - 1, SPARSE_FROM, SPARSE_FROM + 3, 80])
@torch.no_grad()
def test_short_texts_are_read_whole_and_long_ones_in_blocks(length, tmp_path):
    theirs, x = make("BigBirdModel"), torch.randint(3, 61, (2, length))
    ours = there(theirs, tmp_path)
    assert_same_output(ours(x), theirs(x))


@torch.no_grad()
def test_the_question_is_no_answer(tmp_path):
    theirs = make("BigBirdForQuestionAnswering")
    ours, x = there(theirs, tmp_path), torch.randint(3, 61, (2, 50))
    x[:, 6] = 2
    given = {"input_ids": x, "question_lengths": torch.tensor([[4], [9]])}
    assert_same_output(ours(**given), theirs(**given))
    assert (ours(x).start_logits[:, 1:7] < -1e5).all() and (ours(x).end_logits[:, 7:] > -1e5).all()
    x[1, 6] = 5
    with pytest.raises(
        ValueError, match="sentence 1 has no separator, sep_id=2, after its question: give question_lengths"
    ):
        ours(x)


def parts(length=50, heads=3):
    torch.manual_seed(0)
    return torch.randn(3, 2, heads, length, 8).unbind(0)


def test_while_training_it_is_the_mask():
    q, k, v = parts()
    layer = BigBirdAttention(3, block=4, random=2, seed=7).train()
    drawn, real = bigbird(4, 2, 3, 2, seed=7, heads=3), padding([50, 44])
    assert_close(layer(q, k, v, sliding_window(9)), attention(q, k, v, drawn & sliding_window(9)))
    assert_close(layer(q, k, v, causal().dense(50)), attention(q, k, v, drawn & causal()))
    for mask in real, real.dense(1, 50):
        assert_close(layer(q, k, v, mask), attention(q, k, v, drawn & real & real.transposed()))
    assert_close(layer.weights(q, k) @ v, layer(q, k, v))


def test_in_evaluation_the_first_block_stands_for_each_random_one():
    """Written as in the released code: the keys of that block are there three times."""
    q, k, v = parts()
    layer = BigBirdAttention(3, block=4, random=2).eval()
    many_k, many_v = (torch.cat([x, x[:, :, :4], x[:, :, :4]], dim=2) for x in (k, v))
    allowed = bigbird(4, 0, 3, 2).dense(50)
    between = (torch.arange(50) >= 4) & (torch.arange(50) < 48)
    again = between[None, None, :, None].expand(1, 1, 50, 8)
    expected = attention(q, many_k, many_v, torch.cat([allowed, again], dim=3))
    assert_close(layer(q, k, v), expected)
    weights = layer.weights(q, k)
    assert_close(weights.sum(-1), torch.ones(2, 3, 50))
    assert not weights[~allowed.expand(weights.shape)].any()
    assert_close(BigBirdAttention(3, 4, 0).eval()(q, k, v), attention(q, k, v, allowed))


@pytest.mark.parametrize("training", [True, False])
def test_cost_grows_with_the_length_not_its_square(training):
    layer, counts = BigBirdAttention(2, block=16, random=1).train(training), []
    for length in (512, 1024, 2048):
        q, k, v = torch.randn(3, 1, 2, length, 8).unbind(0)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(q, k, v)
        counts.append(counter.get_total_flops())
    assert counts[2] - counts[1] == pytest.approx(2 * (counts[1] - counts[0]), rel=0.05)


def test_each_layer_draws_for_itself():
    block = BlockConfig.of_sizes(
        12, 3, 8, position="learned", mechanism=BigBirdConfig(4, 2, seed=5), attention_dropout=0.1
    )
    model = Encoder(EncoderConfig(30, block, layers=2, max_length=64))
    drawn = [layer.self_attention.mechanism.drawn for layer in model.encoder.layers]
    assert drawn == [bigbird(4, 2, 3, 2, seed, heads=3) for seed in (5, 6)]
    assert EncoderConfig.from_dict(json.loads(json.dumps(model.config.to_dict()))) == model.config


def test_cross_attention_and_decoding_are_refused():
    q, k, v = parts()
    with pytest.raises(ValueError, match="BigBirdAttention is self-attention, got 9 queries for 50 keys; use Dense"):
        BigBirdAttention(3, 4)(q[:, :, :9], k, v)
    for mask in causal(), causal() & padding([9, 50, 50]):
        with pytest.raises(ValueError, match=r"BigBirdAttention is not causal: .* hides later tokens: .*causal\(\).*;"):
            BigBirdAttention(3, 4)(q, k, v, mask)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"attention_type": "sparse"}, "attention_type='sparse' is not supported, only original_full, block_sparse"),
        ({"is_decoder": True}, "is_decoder=True is not supported"),
        ({"rescale_embeddings": True}, "rescale_embeddings=True is not supported"),
        ({"block_size": 0}, "block_size=0 must be at least 1"),
    ],
)
def test_settings_that_mean_something_else_are_refused(changes, words, tmp_path):
    make("BigBirdModel").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(PretrainedError, match=words):
        load_pretrained(tmp_path)
