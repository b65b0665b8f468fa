"""BERT's pre-training tasks and the heads for fine-tuning (Devlin et al. 2019)."""

from typing import Any, Protocol, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import Mask
from txlib.labels import IGNORE_INDEX
from txlib.layers.feedforward import find_activation
from txlib.layers.initialize import initialize
from txlib.models.encoder import Encoder, EncoderConfig, EncoderHead, EncoderOutput, HeadOutput
from txlib.models.inputs import check_ids, check_shape
from txlib.models.outputs import Loss, LossOutput, output

Both = tuple[Tensor, Tensor]  # scores or labels of a task with two outputs


@output
class PreTrainingOutput(LossOutput[Loss]):
    """prediction_logits: (batch, length, vocab_size); seq_relationship_logits: (batch, 2), column 0 for "is next"."""

    prediction_logits: Float[Tensor, "batch length vocab"]
    seq_relationship_logits: Float[Tensor, "batch 2"]


@output
class SpanOutput(LossOutput[Loss]):
    """start_logits, end_logits: (batch, length), for each token to be the first or the last of the answer."""

    start_logits: Float[Tensor, "batch length"]
    end_logits: Float[Tensor, "batch length"]


class PreTrainingCall(Protocol):
    """As `LabeledCall`, with both tasks' labels."""

    @overload
    def __call__(
        self, *inputs: Any, labels: Tensor, next_sentence_label: Tensor, **options: Any
    ) -> PreTrainingOutput[Tensor]: ...
    @overload
    def __call__(self, *inputs: Any, **options: Any) -> PreTrainingOutput: ...


class SpanCall(Protocol):
    """As `LabeledCall`, with both ends of the answer."""

    @overload
    def __call__(
        self, *inputs: Any, start_positions: Tensor, end_positions: Tensor, **options: Any
    ) -> SpanOutput[Tensor]: ...
    @overload
    def __call__(self, *inputs: Any, **options: Any) -> SpanOutput: ...


class PredictionHead(nn.Module):
    """One more layer, with the activation, biases and norm of the block's feed-forward network."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        block = config.block
        self.dense = nn.Linear(block.d_model, block.d_model, bias=block.ffn.bias)
        self.activation = find_activation(block.ffn.activation)
        self.norm = block.norm.make(block.d_model)
        initialize(self, config)

    def transform(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the layer's output."""
        return self.norm(self.activation(self.dense(hidden)))


class MaskedLMHead(PredictionHead):
    """One more layer, then the embedding's matrix as output projection, with a bias (§3.1, Task #1)."""

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self, hidden: Float[Tensor, "*batch d_model"], embedding: Float[Tensor, "vocab d_model"]
    ) -> Float[Tensor, "*batch vocab"]:
        """Return a logit for each token of the vocabulary."""
        return F.linear(self.transform(hidden), embedding, self.bias)


class BertForPreTraining(EncoderHead, config=EncoderConfig):
    """Predict the masked tokens, and whether sentence B follows sentence A (§3.1). With both labels, the loss is the
    sum of both.

    labels: the original token, and -100 where none is to be predicted; next_sentence_label: 0 where B follows A, 1
    where it is a random sentence.
    """

    label_names = ("labels", "next_sentence_label")

    __call__: PreTrainingCall  # type: ignore[assignment]

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__(config, base)
        self.predictions = MaskedLMHead(config)
        self.next_sentence = self.linear(2)

    def score(self, out: EncoderOutput) -> Both:
        assert out.pooler_output is not None  # `EncoderHead` requires the pooler
        tokens = self.predictions(out.last_hidden_state, self.base.embedding.weight)  # (batch, length, vocab)
        return tokens, self.next_sentence(out.pooler_output)

    def loss(self, logits: Both, labels: Both) -> Float[Tensor, ""]:
        return super().loss(logits[0], labels[0]) + super().loss(logits[1], labels[1])

    def output(self, logits: Both, loss: Float[Tensor, ""] | None) -> PreTrainingOutput:
        return PreTrainingOutput(prediction_logits=logits[0], seq_relationship_logits=logits[1], loss=loss)


class BertForMaskedLM(EncoderHead, config=EncoderConfig):
    """Predict the masked tokens: logits (batch, length, vocab_size), labels as in `BertForPreTraining`."""

    pooled = False

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__(config, base)
        self.predictions = MaskedLMHead(config)

    def score(self, out: EncoderOutput) -> Float[Tensor, "batch length vocab"]:
        return self.predictions(out.last_hidden_state, self.base.embedding.weight)


class BertForNextSentencePrediction(EncoderHead, config=EncoderConfig):
    """Predict whether sentence B follows sentence A; logits: (batch, 2), column 0 for "is next"."""

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__(config, base)
        self.next_sentence = self.linear(2)

    def score(self, out: EncoderOutput) -> Float[Tensor, "batch 2"]:
        return self.next_sentence(out.pooler_output)


class BertForSequenceClassification(EncoderHead, config=EncoderConfig):
    """A label for the whole input, one sentence or a pair of them (§4.1; Figure 4a, b): logits (batch, labels).

    Args:
        labels: number of classes; 1 predicts a number instead, with a squared error.
    """

    def __init__(self, config: EncoderConfig, labels: int = 2, base: Encoder | None = None):
        super().__init__(config, base)
        self.classifier = self.linear(labels)

    def arguments(self) -> dict[str, Any]:
        return {"labels": self.classifier.out_features}

    def global_tokens(self, input_ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """Return the first token."""
        return (torch.arange(input_ids.shape[1], device=input_ids.device) == 0).long().expand_as(input_ids)

    def score(self, out: EncoderOutput) -> Float[Tensor, "batch labels"]:
        assert out.pooler_output is not None  # `EncoderHead` requires the pooler
        return self.classifier(self.drop(out.pooler_output))

    def loss(self, logits: Float[Tensor, "batch labels"], labels: Tensor) -> Float[Tensor, ""]:
        if logits.shape[-1] == 1:
            check_shape(labels, "labels", logits.shape[:1])
            return F.mse_loss(logits[:, 0], labels.to(logits.dtype))
        return super().loss(logits, labels)


class BertForTokenClassification(EncoderHead, config=EncoderConfig):
    """A label for each token, such as the kind of name that it belongs to (§5.3; Figure 4d): logits (batch, length,
    labels); label -100 is not counted.

    Args:
        labels: number of classes.
    """

    pooled = False

    def __init__(self, config: EncoderConfig, labels: int = 2, base: Encoder | None = None):
        super().__init__(config, base)
        self.classifier = self.linear(labels)

    def arguments(self) -> dict[str, Any]:
        return {"labels": self.classifier.out_features}

    def score(self, out: EncoderOutput) -> Float[Tensor, "batch length labels"]:
        return self.classifier(self.drop(out.last_hidden_state))


class BertForMultipleChoice(EncoderHead, config=EncoderConfig):
    """Choose the right one of several continuations: each gets one score, read together with the question (§4.4).

    Inputs are (batch, choices, length), logits (batch, choices).
    """

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__(config, base)
        self.classifier = self.linear(1)

    def forward(
        self,
        input_ids: Int[Tensor, "batch choices length"],
        attention_mask: Int[Tensor, "batch choices length"] | None = None,
        token_type_ids: Int[Tensor, "batch choices length"] | None = None,
        position_ids: Int[Tensor, "batch choices length"] | None = None,
        mask: Mask | None = None,
        global_attention_mask: Int[Tensor, "batch choices length"] | None = None,
        **labels: Tensor | None,
    ) -> HeadOutput:
        """Return scores as the other heads do, with one more axis; labels: the index of the right choice."""
        check_ids(input_ids, axes="batch, choices, length")
        targets = self.chosen_labels(labels)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, global_attention_mask)
        *flat, marked = (None if x is None else x.flatten(0, 1) for x in inputs)  # (batch · choices, length)
        marked = self.marked(input_ids.flatten(0, 1)) if marked is None else marked
        scores = self.score(self.base(*flat, mask, marked)).view(input_ids.shape[:2])
        return self.output(scores, None if targets is None else self.loss(scores, targets))

    def global_tokens(self, input_ids: Int[Tensor, "batch_choices length"]) -> Int[Tensor, "batch_choices length"]:
        """Return the choice: all tokens after the two separators that follow the question."""
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        return (position > self.question_end(input_ids) + 1).long()

    def score(self, out: EncoderOutput) -> Float[Tensor, "batch_choices 1"]:
        assert out.pooler_output is not None  # `EncoderHead` requires the pooler
        return self.classifier(self.drop(out.pooler_output))


class BertForQuestionAnswering(EncoderHead, config=EncoderConfig):
    """Find the answer in a text: a start and an end logit for each token (§4.2; Figure 4c).

    With start_positions and end_positions, the loss is the mean of both; positions outside the input are not counted.
    """

    label_names = ("start_positions", "end_positions")

    __call__: SpanCall  # type: ignore[assignment]

    pooled = False

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__(config, base)
        self.span = self.linear(2)

    def global_tokens(self, input_ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """Return the question: all tokens before the first separator."""
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        return (position < self.question_end(input_ids)).long()

    def score(self, out: EncoderOutput) -> Both:
        start, end = self.span(out.last_hidden_state).unbind(dim=-1)  # (batch, length) each
        return start, end

    def loss(self, logits: Both, labels: Both) -> Float[Tensor, ""]:
        length = logits[0].shape[-1]
        inside = [label.masked_fill((label < 0) | (label >= length), IGNORE_INDEX) for label in labels]
        return (super().loss(logits[0], inside[0]) + super().loss(logits[1], inside[1])) / 2

    def output(self, logits: Both, loss: Float[Tensor, ""] | None) -> SpanOutput:
        return SpanOutput(start_logits=logits[0], end_logits=logits[1], loss=loss)
