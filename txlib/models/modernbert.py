"""The heads in which ModernBERT differs from BERT: one more layer, on every token (Warner et al. 2024)."""

from typing import Any

from txlib.models.bert import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PredictionHead,
)
from txlib.models.encoder import EncoderConfig, EncoderHead, EncoderOutput


class TransformedHead(EncoderHead):
    """A head that reads a layer, its activation and a norm on top of the encoder, and the first token as the pooler."""

    pooled = False

    def __init__(self, config: EncoderConfig, *arguments: Any, **keywords: Any):
        super().__init__(config, *arguments, **keywords)
        self.predictions = PredictionHead(config)

    def score(self, out: EncoderOutput) -> Any:
        hidden = self.predictions.transform(out.last_hidden_state)  # (batch, length, d_model)
        return super().score(EncoderOutput(last_hidden_state=hidden, pooler_output=hidden[:, 0]))


class ModernBertForSequenceClassification(TransformedHead, BertForSequenceClassification, config=EncoderConfig):
    """A label for the whole input, as `BertForSequenceClassification`."""


class ModernBertForTokenClassification(TransformedHead, BertForTokenClassification, config=EncoderConfig):
    """A label for each token, as `BertForTokenClassification`."""


class ModernBertForQuestionAnswering(TransformedHead, BertForQuestionAnswering, config=EncoderConfig):
    """Find the answer in a text, as `BertForQuestionAnswering`."""


class ModernBertForMultipleChoice(TransformedHead, BertForMultipleChoice, config=EncoderConfig):
    """Choose a continuation, as `BertForMultipleChoice`."""
