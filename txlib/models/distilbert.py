"""The two heads in which DistilBERT differs from BERT: it has no pooler (Sanh et al. 2019)."""

from typing import Any

from torch import Tensor

from txlib.models.bert import BertForMultipleChoice, BertForSequenceClassification
from txlib.models.encoder import EncoderConfig, EncoderHead, EncoderOutput


class FirstTokenHead(EncoderHead):
    """A head with a layer with ReLU of its own, on the first token, instead of the encoder's pooler."""

    pooled = False

    def __init__(self, config: EncoderConfig, *arguments: Any, **keywords: Any):
        super().__init__(config, *arguments, **keywords)
        self.dense = self.linear(config.block.d_model)

    def score(self, out: EncoderOutput) -> Tensor:
        pooled = self.dense(out.last_hidden_state[:, 0]).relu()  # (batch, d_model)
        return super().score(EncoderOutput(last_hidden_state=out.last_hidden_state, pooler_output=pooled))


class DistilBertForSequenceClassification(FirstTokenHead, BertForSequenceClassification, config=EncoderConfig):
    """A label for the whole input, as `BertForSequenceClassification`."""


class DistilBertForMultipleChoice(FirstTokenHead, BertForMultipleChoice, config=EncoderConfig):
    """Choose a continuation, as `BertForMultipleChoice`."""
