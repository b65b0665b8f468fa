"""The two heads in which Big Bird's released code differs from BERT's (Zaheer et al. 2020)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txlib.attention import Mask
from txlib.layers.feedforward import find_activation
from txlib.layers.initialize import initialize
from txlib.models.bert import BertForQuestionAnswering, BertForSequenceClassification, Both, SpanOutput
from txlib.models.encoder import Encoder, EncoderConfig, EncoderOutput

FAR_BELOW = 1e6  # taken from the logits of tokens that can't be an answer


class BigBirdForSequenceClassification(BertForSequenceClassification, config=EncoderConfig):
    """A label for the whole input: instead of the pooler, a separate layer with the block's activation reads the first
    token; logits (batch, labels).

    Args:
        labels: number of classes; 1 predicts a number instead, with a squared error.
    """

    pooled = False

    def __init__(self, config: EncoderConfig, labels: int = 2, base: Encoder | None = None):
        super().__init__(config, labels, base)
        self.dense = self.linear(config.block.d_model)
        self.activation = find_activation(config.block.ffn.activation)

    def score(self, out: EncoderOutput) -> Float[Tensor, "batch labels"]:
        first = self.drop(out.last_hidden_state[:, 0])  # (batch, d_model)
        return self.classifier(self.drop(self.activation(self.dense(first))))


class BigBirdForQuestionAnswering(BertForQuestionAnswering, config=EncoderConfig):
    """Find the answer in a text, with one more feed-forward network and no answer within the question. Inputs are
    [CLS] question [SEP] text [SEP].
    """

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__(config, base)
        block = config.block
        self.feed_forward = block.ffn.make(block.d_model)
        self.feed_forward_norm = block.norm.make(block.d_model)
        initialize(self.feed_forward, config)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "#batch length"] | None = None,
        mask: Mask | None = None,
        global_attention_mask: Int[Tensor, "batch length"] | None = None,
        question_lengths: Int[Tensor, "batch 1"] | None = None,
        **labels: Tensor | None,
    ) -> SpanOutput:
        """Return scores as BERT does; where token_type_ids are None, the question is segment 0 and the rest segment 1.

        Args:
            question_lengths: number of tokens up to and including the first separator; None: from the config's sep_id.
        """
        if question_lengths is None:
            question_lengths = self.question_end(input_ids, "question_lengths") + 1
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        question = position < question_lengths  # (batch, length)
        segment = (~question).long() if token_type_ids is None else token_type_ids
        out = self.base(input_ids, attention_mask, segment, position_ids, mask, global_attention_mask)
        start, end = (logits - FAR_BELOW * (question & (position > 0)) for logits in self.score(out))
        targets = self.chosen_labels(labels)
        return self.output((start, end), None if targets is None else self.loss((start, end), targets))

    def score(self, out: EncoderOutput) -> Both:
        hidden = out.last_hidden_state
        read_again = self.drop(self.feed_forward(self.drop(hidden)))  # (batch, length, d_model)
        return super().score(EncoderOutput(last_hidden_state=self.feed_forward_norm(hidden + read_again)))
