"""BERT: an encoder, what it is pre-trained on, and the heads that it is fine-tuned with (Devlin et al. 2019)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.layers import BlockConfig, TokenEmbedding, make_position
from txlib.layers.block import LAST_IN_SUBLAYER
from txlib.layers.feedforward import dropout, find_activation
from txlib.layers.norm import make_norm
from txlib.models.stack import IGNORED, ModelConfig, Stack, source_mask


@dataclass(frozen=True)
class BertConfig(ModelConfig):
    """Sizes of an encoder.

    Args:
        vocab_size: number of tokens.
        block: what each block is made of.
        layers: number of blocks.
        max_length: longest input in tokens.
        segments: kinds of `token_type_ids`: sentence A and sentence B.
        classifier_dropout: before the heads' last layer; None: as the block's `dropout`.
        init_std: spread of the first weights.
        pad_id: the token that fills up short sentences.
    """

    vocab_size: int
    block: BlockConfig
    layers: int = 12
    max_length: int = 512
    segments: int = 2
    classifier_dropout: float | None = None
    init_std: float = 0.02
    pad_id: int = 0

    def __post_init__(self):
        for name in ("vocab_size", "layers", "max_length", "segments"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.block.position == "skewed":
            raise ValueError("position='skewed' is causal, and an encoder is not; choose 'learned' or 'shaw'")


@dataclass(frozen=True)
class EncoderOutput:
    """last_hidden_state: (batch, length, d_model); pooler_output: (batch, d_model), or None without a pooler."""

    last_hidden_state: Float[Tensor, "batch length d_model"]
    pooler_output: Float[Tensor, "batch d_model"] | None = None


@dataclass(frozen=True)
class HeadOutput:
    """logits: of tokens, labels or choices, as the head says; loss: a number, or None without labels."""

    logits: Float[Tensor, "batch *scores"]
    loss: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class PreTrainingOutput:
    """prediction_logits: (batch, length, vocab_size); seq_relationship_logits: (batch, 2), column 0 for "is next"."""

    prediction_logits: Float[Tensor, "batch length vocab"]
    seq_relationship_logits: Float[Tensor, "batch 2"]
    loss: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class SpanOutput:
    """start_logits, end_logits: (batch, length), for each token to be the first or the last of the answer."""

    start_logits: Float[Tensor, "batch length"]
    end_logits: Float[Tensor, "batch length"]
    loss: Float[Tensor, ""] | None = None


class Bert(nn.Module):
    """The encoder: tokens, positions and segments are added and normalised, then go through the blocks (§3).

    Args:
        pooler: also make one vector of the whole input, from its first token.
    """

    def __init__(self, config: BertConfig, *, pooler: bool = True):
        super().__init__()
        self.config = config
        block = config.block
        self.embedding = TokenEmbedding(config.vocab_size, block.d_model, scaled=False)
        self.segment = TokenEmbedding(config.segments, block.d_model, scaled=False)
        self.position = make_position(block.position, config.max_length, block.d_model)
        self.embedding_norm = make_norm(block.norm, block.d_model, eps=block.norm_eps, bias=block.bias)
        self.encoder = Stack(block, config.layers)
        self.pooler = nn.Linear(block.d_model, block.d_model) if pooler else None
        initialise(self, config)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
    ) -> EncoderOutput:
        """Read the input in both directions.

        Args:
            attention_mask: 1 = a real token, 0 = padding; None: all are real.
            token_type_ids: each token's segment; None: all are in segment 0.
        """
        segment = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embedding(input_ids) + self.segment(segment)  # (batch, length, d_model)
        if self.position is not None:
            x = self.position(x)
        x = dropout(self.embedding_norm(x), self.config.block.dropout, self.training)
        hidden = self.encoder(x, source_mask(attention_mask, input_ids.shape))
        pooled = None if self.pooler is None else self.pooler(hidden[:, 0]).tanh()
        return EncoderOutput(last_hidden_state=hidden, pooler_output=pooled)


class MaskedLMHead(nn.Module):
    """One more layer, then the embedding's own matrix as output projection, with a bias (§3.1, Task #1)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        block = config.block
        self.dense = nn.Linear(block.d_model, block.d_model)
        self.activation = find_activation(block.activation)
        self.norm = make_norm(block.norm, block.d_model, eps=block.norm_eps, bias=block.bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialise(self, config)

    def forward(
        self, hidden: Float[Tensor, "*batch d_model"], embedding: Float[Tensor, "vocab d_model"]
    ) -> Float[Tensor, "*batch vocab"]:
        """A logit for each token of the vocabulary."""
        return F.linear(self.norm(self.activation(self.dense(hidden))), embedding, self.bias)


class BertHead(nn.Module):
    """What the models below share: the encoder, and dropout before their last layer.

    Args:
        bert: an encoder to build on, e.g. a pre-trained one; None for a new one.
    """

    pooled = True  # whether the head reads the pooler's vector

    def __init__(self, config: BertConfig, bert: Bert | None = None):
        super().__init__()
        if bert is not None and self.pooled and bert.pooler is None:
            raise ValueError(f"{type(self).__name__} needs an encoder with a pooler: Bert(config, pooler=True)")
        self.config = config
        self.bert = Bert(config, pooler=self.pooled) if bert is None else bert

    def linear(self, outputs: int) -> nn.Linear:
        """A head's last layer."""
        layer = nn.Linear(self.config.block.d_model, outputs)
        initialise(layer, self.config)
        return layer

    def drop(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Dropout, while training."""
        share = self.config.classifier_dropout
        return dropout(x, self.config.block.dropout if share is None else share, self.training)


class BertForPreTraining(BertHead):
    """Guess the masked tokens, and whether sentence B came after sentence A (§3.1)."""

    def __init__(self, config: BertConfig, bert: Bert | None = None):
        super().__init__(config, bert)
        self.predictions = MaskedLMHead(config)
        self.next_sentence = self.linear(2)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch length"] | None = None,
        next_sentence_label: Int[Tensor, "batch"] | None = None,
    ) -> PreTrainingOutput:
        """Both guesses; with both labels, the sum of both losses.

        Args:
            labels: the token that stood there, and -100 where none is asked for.
            next_sentence_label: 0 where B follows A, 1 where it is a random sentence.
        """
        out = self.bert(input_ids, attention_mask, token_type_ids)
        tokens = self.predictions(out.last_hidden_state, self.bert.embedding.weight)
        is_next = self.next_sentence(out.pooler_output)
        loss = None
        if labels is not None and next_sentence_label is not None:
            loss = cross_entropy(tokens, labels) + cross_entropy(is_next, next_sentence_label)
        return PreTrainingOutput(prediction_logits=tokens, seq_relationship_logits=is_next, loss=loss)


class BertForMaskedLM(BertHead):
    """Guess the masked tokens."""

    pooled = False

    def __init__(self, config: BertConfig, bert: Bert | None = None):
        super().__init__(config, bert)
        self.predictions = MaskedLMHead(config)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch length"] | None = None,
    ) -> HeadOutput:
        """logits: (batch, length, vocab_size); labels as in `BertForPreTraining`."""
        hidden = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        logits = self.predictions(hidden, self.bert.embedding.weight)
        return HeadOutput(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))


class BertForNextSentencePrediction(BertHead):
    """Does sentence B come after sentence A?"""

    def __init__(self, config: BertConfig, bert: Bert | None = None):
        super().__init__(config, bert)
        self.next_sentence = self.linear(2)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch"] | None = None,
    ) -> HeadOutput:
        """logits: (batch, 2), column 0 for "is next"."""
        logits = self.next_sentence(self.bert(input_ids, attention_mask, token_type_ids).pooler_output)
        return HeadOutput(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))


class BertForSequenceClassification(BertHead):
    """A label for the whole input: one sentence, or a pair of them (§4.1; Figure 4a, b).

    Args:
        labels: number of classes; 1 predicts a number instead, with a squared error.
    """

    def __init__(self, config: BertConfig, labels: int = 2, bert: Bert | None = None):
        super().__init__(config, bert)
        self.classifier = self.linear(labels)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch"] | Float[Tensor, "batch"] | None = None,
    ) -> HeadOutput:
        """logits: (batch, labels)."""
        logits = self.classifier(self.drop(self.bert(input_ids, attention_mask, token_type_ids).pooler_output))
        loss = None
        if labels is not None and logits.shape[-1] == 1:
            loss = F.mse_loss(logits[:, 0], labels.to(logits.dtype))
        elif labels is not None:
            loss = cross_entropy(logits, labels)
        return HeadOutput(logits=logits, loss=loss)


class BertForQuestionAnswering(BertHead):
    """Where in the text the answer stands: a start and an end (§4.2; Figure 4c)."""

    pooled = False

    def __init__(self, config: BertConfig, bert: Bert | None = None):
        super().__init__(config, bert)
        self.span = self.linear(2)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        start_positions: Int[Tensor, "batch"] | None = None,
        end_positions: Int[Tensor, "batch"] | None = None,
    ) -> SpanOutput:
        """A start and an end logit for each token; positions outside the input are not counted."""
        start, end = self.span(self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = input_ids.shape[1]  # a label that means "outside"
            losses = (
                F.cross_entropy(logits, positions.clamp(0, length), ignore_index=length)
                for logits, positions in ((start, start_positions), (end, end_positions))
            )
            loss = sum(losses) / 2
        return SpanOutput(start_logits=start, end_logits=end, loss=loss)


class BertForTokenClassification(BertHead):
    """A label for each token, such as the kind of name that it belongs to (§5.3; Figure 4d).

    Args:
        labels: number of classes.
    """

    pooled = False

    def __init__(self, config: BertConfig, labels: int = 2, bert: Bert | None = None):
        super().__init__(config, bert)
        self.classifier = self.linear(labels)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch length"] | None = None,
    ) -> HeadOutput:
        """logits: (batch, length, labels); label -100 is not counted."""
        hidden = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        logits = self.classifier(self.drop(hidden))
        return HeadOutput(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))


class BertForMultipleChoice(BertHead):
    """Which of several continuations is right: each is read with the question and gets one score (§4.4)."""

    def __init__(self, config: BertConfig, bert: Bert | None = None):
        super().__init__(config, bert)
        self.classifier = self.linear(1)

    def forward(
        self,
        input_ids: Int[Tensor, "batch choices length"],
        attention_mask: Int[Tensor, "batch choices length"] | None = None,
        token_type_ids: Int[Tensor, "batch choices length"] | None = None,
        labels: Int[Tensor, "batch"] | None = None,
    ) -> HeadOutput:
        """logits: (batch, choices)."""
        batch, choices, _ = input_ids.shape
        flat = (None if each is None else each.flatten(0, 1) for each in (input_ids, attention_mask, token_type_ids))
        logits = self.classifier(self.drop(self.bert(*flat).pooler_output)).view(batch, choices)
        return HeadOutput(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))


def cross_entropy(logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
    """Mean over the labels that count."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED)


def initialise(module: nn.Module, config: BertConfig) -> None:
    """Small random matrices, biases of zero, as in BERT's released code; what the block starts at zero stays so."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and not (config.block.zero_output and name.endswith(LAST_IN_SUBLAYER)):
            nn.init.normal_(part.weight, std=config.init_std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, TokenEmbedding):
            nn.init.normal_(part.weight, std=config.init_std)
