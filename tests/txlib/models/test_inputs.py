"""Wrong inputs of every model are refused in a sentence that names them, their shape and the remedy."""

import pytest
import torch

from txlib.attention import causal
from txlib.layers import BlockConfig
from txlib.models import (
    GPT,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    ConvSeq2Seq,
    ConvSeq2SeqConfig,
    Encoder,
    EncoderConfig,
    GPTConfig,
    PerceiverForMaskedLM,
    PerceiverLMConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    UniversalGPT,
    UniversalGPTConfig,
    UniversalTransformer,
    UniversalTransformerConfig,
)

BLOCK = BlockConfig.of_sizes(16, 4, 24, position="learned")
ROTARY = BlockConfig.of_sizes(16, 4, 24, position="rotary")
PLAIN = BlockConfig.of_sizes(16, 4, 24)
ENCODER = EncoderConfig(30, BLOCK, layers=1, max_length=9)
LATENT = PerceiverLMConfig(block=PLAIN, d_input=16, latents=3, layers=1, decoder=PLAIN, vocab_size=30, max_length=9)
MODELS = {
    "gpt": lambda: GPT(GPTConfig(30, BLOCK, layers=1, max_length=9)),
    "rotary gpt": lambda: GPT(GPTConfig(30, ROTARY, layers=1, max_length=9)),
    "universal gpt": lambda: UniversalGPT(UniversalGPTConfig(30, BLOCK, steps=1, max_length=9)),
    "encoder": lambda: Encoder(ENCODER),
    "rotary encoder": lambda: Encoder(EncoderConfig(30, ROTARY, layers=1, max_length=9)),
    "pre-training": lambda: BertForPreTraining(ENCODER),
    "classifier": lambda: BertForSequenceClassification(ENCODER),
    "spans": lambda: BertForQuestionAnswering(ENCODER),
    "perceiver": lambda: PerceiverForMaskedLM(LATENT),
}
TRANSLATORS = {
    "transformer": lambda: Transformer(TransformerConfig(30, BLOCK, 1, 1, max_length=9)),
    "universal": lambda: UniversalTransformer(UniversalTransformerConfig(30, BLOCK, steps=1, max_length=9)),
    "recurrent": lambda: Seq2Seq(Seq2SeqConfig(30, d_model=16)),
    "convolutions": lambda: ConvSeq2Seq(ConvSeq2SeqConfig(30, d_model=16, max_length=9)),
}
IDS = torch.randint(3, 30, (2, 7))
EVERY = {
    **MODELS,
    **{
        name: lambda make=make: lambda ids, **more: make()(ids, labels=IDS, **more)
        for name, make in TRANSLATORS.items()
    },
}
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "ids, error, words",
    [
        (IDS[0], ValueError, r"input_ids has shape \(7,\), expected \(batch, length\); write input_ids\[None\]"),
        (IDS[None], ValueError, r"input_ids has shape \(1, 2, 7\), expected \(batch, length\)"),
        (IDS.float(), TypeError, r"input_ids has type torch.float32, but ids are whole numbers; write input_ids.long"),
        (IDS.tolist(), TypeError, r"input_ids is a list, not a tensor; write torch.tensor\(input_ids\)"),
        (IDS + 27, ValueError, r"input_ids holds \d+, and vocab_size=30 allows 0 to 29"),
    ],
)
def test_what_is_no_batch_of_ids_is_refused(name, ids, error, words):
    with pytest.raises(error, match=words):
        EVERY[name]()(ids)


@pytest.mark.parametrize("name", EVERY)
def test_an_attention_mask_of_another_batch_or_kind_is_refused(name):
    with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 7\), the tokens \(2, 7\)"):
        EVERY[name]()(IDS, attention_mask=torch.ones(3, 7))
    with pytest.raises(TypeError, match=r"attention_mask=causal\(\) must be a tensor .* write mask=causal\(\)"):
        EVERY[name]()(IDS, attention_mask=causal())


@pytest.mark.parametrize("name", [name for name in EVERY if name != "recurrent"])
def test_no_sequence_is_longer_than_max_length(name):
    sentence = (
        "the model sees max_length=9 positions at a time, but the sequence reaches 10; raise max_length or shorten"
    )
    long = torch.ones(2, 10, dtype=torch.long)
    with pytest.raises(ValueError, match=sentence):
        EVERY[name]()(long)
    if name in TRANSLATORS:
        with pytest.raises(ValueError, match=sentence):
            TRANSLATORS[name]()(IDS, decoder_input_ids=long)


@pytest.mark.parametrize("name", ["rotary gpt", "universal gpt", "transformer", "universal", "convolutions"])
def test_the_past_counts_too(name):
    model = (MODELS | TRANSLATORS)[name]()
    memory = () if name in MODELS else (model.encode(IDS),)
    cache = model.new_cache()
    model.decode(IDS, *memory, cache=cache)
    with pytest.raises(ValueError, match="max_length=9 positions at a time, but the sequence reaches 14"):
        model.decode(IDS, *memory, cache=cache)


@pytest.mark.parametrize(
    "name, labels",
    [
        ("gpt", {"labels": IDS[:, :6]}),
        ("universal gpt", {"labels": IDS[:, :6]}),
        ("pre-training", {"labels": IDS[:, :6], "next_sentence_label": torch.zeros(2, dtype=torch.long)}),
        ("pre-training", {"labels": IDS, "next_sentence_label": torch.zeros(3, dtype=torch.long)}),
        ("classifier", {"labels": torch.zeros(3, dtype=torch.long)}),
        ("spans", {"start_positions": IDS[0], "end_positions": IDS[0]}),
        ("perceiver", {"labels": IDS[:1]}),
    ],
)
def test_labels_of_another_shape_are_refused(name, labels):
    with pytest.raises(ValueError, match=r"labels have shape \(.*\), expected \(2.*\): one for each row of the logits"):
        MODELS[name]()(IDS, **labels)
    wrong = {key: value.float() for key, value in labels.items()}
    with pytest.raises(TypeError, match=r"labels are torch.float32, but each is the number of a class; write"):
        MODELS[name]()(IDS, **wrong)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translators_refuse_wrong_targets(name):
    model = TRANSLATORS[name]()
    with pytest.raises(ValueError, match=r"labels have shape \(2, 6\), expected \(2, 7\)"):
        model(IDS, decoder_input_ids=IDS, labels=IDS[:, :6])
    with pytest.raises(ValueError, match=r"labels has shape \(7,\), expected \(batch, length\)"):
        model(IDS, labels=IDS[0])
    with pytest.raises(TypeError, match=r"decoder_input_ids has type torch.float32"):
        model(IDS, decoder_input_ids=IDS.float())


def test_what_belongs_to_the_tokens_has_their_shape():
    model = MODELS["encoder"]()
    model(IDS, position_ids=torch.arange(7)[None])
    for name in ("position_ids", "token_type_ids"):
        with pytest.raises(ValueError, match=rf"{name} has shape \(2, 6\), the tokens \(2, 7\)"):
            model(IDS, **{name: torch.zeros(2, 6, dtype=torch.long)})
    with pytest.raises(ValueError, match=r"input_ids has shape \(2, 7\), expected \(batch, choices, length\)"):
        BertForMultipleChoice(ENCODER)(IDS)
    with pytest.raises(ValueError, match=r"labels has shape \(3,\), the tokens \(2,\)"):
        BertForSequenceClassification(ENCODER, labels=1)(IDS, labels=torch.zeros(3))


def test_a_head_names_its_labels():
    with pytest.raises(TypeError, match="QuestionAnswering takes no labels; its labels are start_positions, end_pos"):
        MODELS["spans"]()(IDS, labels=IDS)
    assert MODELS["spans"]()(IDS, start_positions=IDS[:, 0]).loss is None  # one of two
