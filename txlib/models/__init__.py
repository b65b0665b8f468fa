"""Whole models, put together from the parts."""

from txlib.models.bert import (
    Bert,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from txlib.models.gpt import GPT, CausalLMOutput, GPTConfig
from txlib.models.transformer import Seq2SeqOutput, Transformer, TransformerConfig

__all__ = [
    "GPT",
    "Bert",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "CausalLMOutput",
    "GPTConfig",
    "Seq2SeqOutput",
    "Transformer",
    "TransformerConfig",
]
