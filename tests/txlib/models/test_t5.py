"""T5 against `transformers`: random small models of both versions, shaken in every parameter, in both directions."""

import json

import pytest
import torch
import transformers
from oracles import shake
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from txlib.generation import beam_search, generate
from txlib.layers import pack_weights
from txlib.models.pretrained import PretrainedError, load_pretrained, save_pretrained

pytestmark = pytest.mark.slow

close = {"rtol": 1e-5, "atol": 1e-5}
VOCABULARY = 61
SMALL = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 6,  # 4 heads of 6 are wider than the model
    "d_ff": 20,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
VERSIONS = {  # settings, and whether the output has a matrix of its own
    "1.0": ({"feed_forward_proj": "relu"}, False),
    "1.1": ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, True),
    "1.1-tied": ({"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "d_kv": 4}, False),
    "1.0-untied": ({"feed_forward_proj": "gelu", "layer_norm_epsilon": 1e-2}, True),
}


def make(version, folder):
    """A shaken model of transformers, read from a folder, which decides about its output matrix.

    More noise makes the unscaled scores so sharp that two orders of adding up differ by more than 1e-5.
    """
    settings, own_output = VERSIONS[version]
    torch.manual_seed(1)
    made = shake(transformers.T5ForConditionalGeneration(transformers.T5Config(**{**SMALL, **settings})), size=0.1)
    made.save_pretrained(folder)
    if own_output:
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = torch.randn(VOCABULARY, 16) * 16**-0.5  # logits of about 1, as in the other cases
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return read(folder)


def read(folder):
    kind = transformers.T5ForConditionalGeneration
    model, report = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"] and not report["unexpected_keys"]
    return model.eval()


def batch(longest=9):
    """Sources of different lengths and targets."""
    lengths = torch.tensor([longest, 5, 2])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return torch.randint(1, VOCABULARY, (3, longest)), mask, torch.randint(1, VOCABULARY, (3, 7))


@pytest.mark.parametrize("version", VERSIONS)
@torch.no_grad()
def test_outputs(version, tmp_path):
    theirs = make(version, tmp_path / "theirs")
    ours, (x, mask, target) = load_pretrained(tmp_path / "theirs"), batch(40)  # beyond the farthest bucket
    mine, other = ours(x, mask, target), theirs(input_ids=x, attention_mask=mask, decoder_input_ids=target)
    assert_close(mine.logits, other.logits, **close)
    real = mask.bool()
    assert_close(mine.encoder_last_hidden_state[real], other.encoder_last_hidden_state[real], **close)
    labels = target.masked_fill(target % 3 == 0, -100)
    expected = theirs(input_ids=x, attention_mask=mask, labels=labels).loss
    assert_close(ours(x, mask, labels=labels).loss, expected, **close)

    save_pretrained(ours, tmp_path / "ours")
    again = load_pretrained(tmp_path / "ours")
    assert again.config == ours.config and torch.equal(again(x, mask, target).logits, mine.logits)
    back = read(tmp_path / "ours")(input_ids=x, attention_mask=mask, decoder_input_ids=target)
    assert_close(back.logits, mine.logits, **close)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@torch.no_grad()
def test_it_writes_what_transformers_writes(version, tmp_path):
    """Greedily, and with beams; both with a cache, and neither writing padding."""
    theirs = make(version, tmp_path)
    ours, (x, mask, _) = load_pretrained(tmp_path), batch()

    def written(**options):
        found = theirs.generate(
            x, attention_mask=mask, max_new_tokens=24, do_sample=False, bad_words_ids=[[0]], **options
        )[:, 1:]
        return [[token for token in row if token not in (0, 1)] for row in found.tolist()]

    assert generate(ours, x, mask, max_new_tokens=24) == written(num_beams=1)
    assert generate(ours, x, mask, max_new_tokens=24, use_cache=False) == written(num_beams=1)
    assert max(map(len, written())) == 24 and len({tuple(row) for row in written()}) > 1
    for use_cache in (True, False):
        found = beam_search(ours, x, mask, max_new_tokens=8, num_beams=3, use_cache=use_cache)
        assert len(found) == 3 and any(found)


@torch.no_grad()
def test_packed(tmp_path):
    make("1.1", tmp_path)
    x, mask, target = batch()
    exact = load_pretrained(tmp_path)(x, mask, target).logits
    assert (pack_weights(load_pretrained(tmp_path), "fp16")(x, mask, target).logits - exact).abs().max() < 0.1


def test_the_first_layer_owns_the_buckets(tmp_path):
    make("1.0", tmp_path)
    model = load_pretrained(tmp_path)
    owners = [name for name, _ in model.named_parameters() if "position_bias" in name]
    assert owners == [f"{side}.layers.0.self_attention.position_bias.weight" for side in ("encoder", "decoder")]
    x, mask, target = batch()
    model(x, mask, target).logits.sum().backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.usefixtures("unchecked")
def test_what_is_refused(tmp_path):
    make("1.1", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for settings, words in [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj='gated-tanh' is not supported, only relu"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"feed_forward_proj": "gelu"}, r"lacks .*DenseReluDense.wi.weight"),
        ({"d_kv": 7}, r"has shape \(24, 16\), config.json asks for \(28, 16\)"),
        ({"num_layers": 4}, r"lacks encoder.block.3"),
    ]:
        path.write_text(json.dumps({**config, **settings}))
        with pytest.raises(PretrainedError, match=words):
            load_pretrained(tmp_path)
