"""Whole models, put together from the parts."""

from txlib.models.bert import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from txlib.models.big_bird import BigBirdForQuestionAnswering, BigBirdForSequenceClassification
from txlib.models.bytenet import ByteNet, ByteNetConfig
from txlib.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from txlib.models.convnet import ConvNet, ConvNetConfig
from txlib.models.distilbert import DistilBertForMultipleChoice, DistilBertForSequenceClassification
from txlib.models.encoder import Encoder, EncoderConfig, EncoderOutput
from txlib.models.gpt import GPT, CausalLMOutput, GPTConfig
from txlib.models.modernbert import (
    ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)
from txlib.models.music import MusicConfig, MusicTransformer
from txlib.models.perceiver import (
    Perceiver,
    PerceiverClassifier,
    PerceiverClassifierConfig,
    PerceiverConfig,
    PerceiverForMaskedLM,
    PerceiverIO,
    PerceiverIOConfig,
    PerceiverLMConfig,
)
from txlib.models.perceiver_inputs import Modalities, pixel_array
from txlib.models.seq2seq import Seq2Seq, Seq2SeqConfig
from txlib.models.set_transformer import DeepSets, DeepSetsConfig, SetOutput, SetTransformer, SetTransformerConfig
from txlib.models.sizes import from_size
from txlib.models.transformer import Transformer, TransformerConfig
from txlib.models.translation import Seq2SeqOutput
from txlib.models.universal import UniversalGPT, UniversalGPTConfig, UniversalTransformer, UniversalTransformerConfig
from txlib.models.vit import ViT, ViTConfig, ViTForImageClassification, ViTForImageClassificationWithTeacher

__all__ = [
    "GPT",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BigBirdForQuestionAnswering",
    "BigBirdForSequenceClassification",
    "ByteNet",
    "ByteNetConfig",
    "ConvNet",
    "ConvNetConfig",
    "CausalLMOutput",
    "ConvSeq2Seq",
    "ConvSeq2SeqConfig",
    "DeepSets",
    "DeepSetsConfig",
    "DistilBertForMultipleChoice",
    "DistilBertForSequenceClassification",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "GPTConfig",
    "ModernBertForMultipleChoice",
    "ModernBertForQuestionAnswering",
    "ModernBertForSequenceClassification",
    "ModernBertForTokenClassification",
    "MusicConfig",
    "MusicTransformer",
    "Modalities",
    "Perceiver",
    "PerceiverClassifier",
    "PerceiverClassifierConfig",
    "PerceiverConfig",
    "PerceiverForMaskedLM",
    "PerceiverIO",
    "PerceiverIOConfig",
    "PerceiverLMConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Seq2SeqOutput",
    "SetOutput",
    "SetTransformer",
    "SetTransformerConfig",
    "Transformer",
    "TransformerConfig",
    "UniversalGPT",
    "UniversalGPTConfig",
    "UniversalTransformer",
    "UniversalTransformerConfig",
    "ViT",
    "ViTConfig",
    "ViTForImageClassification",
    "ViTForImageClassificationWithTeacher",
    "from_size",
    "pixel_array",
]
