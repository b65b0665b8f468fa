"""What models return and refuse: outputs as in Hugging Face, seen through by torch; errors that name the value."""

import pytest
import torch
import transformers
from oracles import shake
from torch.testing import assert_close

from txlib.layers import BlockConfig
from txlib.models import (
    GPT,
    BertForMaskedLM,
    BertForTokenClassification,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Transformer,
    TransformerConfig,
    UniversalGPT,
    UniversalGPTConfig,
    ViTConfig,
    ViTForImageClassification,
)
from txlib.models.pretrained import load_pretrained

BLOCK = BlockConfig.of_sizes(16, 4, 20, position="learned")
CONFIG = EncoderConfig(11, BLOCK, layers=2, max_length=8)
MODELS = {
    "gpt": lambda: GPT(GPTConfig(11, BLOCK, layers=2, max_length=8)),
    "encoder": lambda: Encoder(CONFIG),
    "masked": lambda: BertForMaskedLM(CONFIG),
    "translator": lambda: Transformer(TransformerConfig(11, BLOCK, 1, 1, max_length=8)),
    "universal": lambda: UniversalGPT(UniversalGPTConfig(11, BLOCK, steps=3, halting_threshold=0.9, max_length=8)),
}


def given(name, *shape):
    ids = torch.randint(0, 11, shape)
    return {"input_ids": ids, "decoder_input_ids": ids} if name == "translator" else {"input_ids": ids}


def test_outputs_in_brackets():
    ids = torch.randint(0, 11, (2, 5))
    out = BertForMaskedLM(CONFIG)(ids, labels=ids)
    assert out["logits"] is out.logits is out[1] and out["loss"] is out.loss is out[0]
    assert out[:] == out.to_tuple() == (out.loss, out.logits)
    hidden = Encoder(CONFIG, pooler=False)(ids)
    assert hidden[0] is hidden.last_hidden_state and len(hidden.to_tuple()) == 1 and hidden["pooler_output"] is None
    with pytest.raises(KeyError, match="HeadOutput has no 'hidden_states'; choose one of loss, logits"):
        out["hidden_states"]


def test_the_loss_comes_first_as_in_transformers():
    config = transformers.GPT2Config(vocab_size=11, n_embd=16, n_head=4, n_layer=1, n_positions=8)
    theirs, ids = transformers.GPT2LMHeadModel(config), torch.randint(0, 11, (2, 5))
    for labels, names in (None, ["logits"]), (ids, ["loss", "logits"]):
        mine, other = MODELS["gpt"]()(ids, labels=labels), theirs(ids, labels=labels)
        for place, name in enumerate(names):
            assert mine[place] is mine[name] and other[place] is other[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("unchecked")
def test_torch_exports_models(name):
    model = shake(MODELS[name]()).eval()
    with torch.no_grad():
        exported = torch.export.export(model, (), given(name, 2, 5)).module()
        again = given(name, 2, 5)
        mine, other = model(**again), exported(**again)
    assert type(mine) is type(other)
    for one, two in zip(mine.to_tuple(), other.to_tuple(), strict=True):
        assert_close(one, two)


def batch_of(name, size):
    """Inputs of so many examples, with padding where the model takes it."""
    if name == "vit":
        return {"pixel_values": torch.randn(size, 1, 8, 8)}
    more = {} if name == "universal" else {"attention_mask": (torch.arange(5) < 4).long().expand(size, 5)}
    return given(name, size, 5) | more


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "vit"])
@pytest.mark.usefixtures("unchecked")
def test_torch_exports_models_with_a_dynamic_batch(name):
    picture = ViTConfig(8, patch_size=4, block=BLOCK, layers=1, channels=1)
    model = shake(ViTForImageClassification(picture, labels=3) if name == "vit" else MODELS[name]()).eval()
    batch, example = torch.export.Dim("batch"), batch_of(name, 3)
    with torch.no_grad():
        shapes = {key: {0: batch} for key in example}
        exported = torch.export.export(model, (), example, dynamic_shapes=shapes).module()
        for size in (1, 2, 5):
            inputs = batch_of(name, size)
            for one, two in zip(model(**inputs).to_tuple(), exported(**inputs).to_tuple(), strict=True):
                assert_close(one, two)


@torch.no_grad()
def test_position_ids(tmp_path):
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=20
    )
    theirs = shake(transformers.BertForTokenClassification(config)).eval()
    theirs.save_pretrained(tmp_path)
    ours, ids = load_pretrained(tmp_path), torch.randint(0, 11, (2, 5))
    for position in (torch.tensor([[4, 0, 0, 511, 7]]), torch.randint(0, 512, (2, 5))):
        expected = theirs(ids, position_ids=position).logits
        assert_close(ours(ids, position_ids=position).logits, expected, rtol=1e-5, atol=1e-5)
    sines = shake(Encoder(EncoderConfig(11, BlockConfig.of_sizes(16, 4, 20, position="sinusoidal"), layers=1))).eval()
    shifted = sines(ids, position_ids=torch.arange(3, 8)[None]).last_hidden_state
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]] * 2)
    assert_close(sines(padded, mask).last_hidden_state[:, 3:], shifted)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [GPT, Encoder, Transformer])
def test_a_model_is_made_of_its_config(kind):
    with pytest.raises(TypeError, match=r"config=\{'vocab_size': 11\} is no \w+Config; write .*block=BlockConfig"):
        kind({"vocab_size": 11})


@pytest.mark.usefixtures("unchecked")
def test_ids_and_labels_out_of_range():
    ids = torch.tensor([[1, 2, 3]])
    cases = [
        (lambda model: model(torch.tensor([[1, 11, 3]])), "input_ids holds 11, and vocab_size=11 allows 0 to 10"),
        (lambda model: model(torch.tensor([[1, -2, 3]])), "input_ids holds -2"),
        (lambda model: model(ids, token_type_ids=ids), "token_type_ids holds 2, and segments=2 allows 0 to 1"),
        (lambda model: model(ids, position_ids=ids + 5), "position_ids holds 8, and max_length=8 allows 0 to 7"),
        (lambda model: model(ids, labels=ids), "a label is 3, but the 3 classes are 0 to 2; -100 marks"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call(BertForTokenClassification(CONFIG, labels=3))
    for name in ("gpt", "translator"):
        with pytest.raises(ValueError, match="a label is 12, but the 11 classes"):
            MODELS[name]()(**given(name, 1, 3), labels=torch.tensor([[1, 12, -100]]))
    rotary = Encoder(EncoderConfig(11, BlockConfig.of_sizes(16, 4, 20, position="rotary"), layers=1))
    with pytest.raises(ValueError, match="position='rotary' adds no positions: leave position_ids out"):
        rotary(ids, position_ids=ids)
