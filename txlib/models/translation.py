"""Base of all translation models: one embedding matrix, and the steps from ids to a loss."""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.labels import IGNORE_INDEX
from txlib.layers import TokenEmbedding
from txlib.layers.feedforward import dropout
from txlib.models.inputs import check_ids
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, LossOutput, auxiliary_loss, cross_entropy, output
from txlib.models.stack import ModelConfig


@dataclass(frozen=True)
class TranslationConfig(ModelConfig):
    """Fields that all translation models' configs share.

    Args:
        vocab_size: of the vocabulary that source and target share.
        tie_embeddings: use the embedding's matrix as the output projection as well.
        pad_id, bos_id, eos_id: the vocabulary's special tokens; the decoder starts from bos_id.
        bad_words_ids: sequences of tokens that a search never generates.
    """

    vocab_size: int
    _: KW_ONLY
    tie_embeddings: bool = True
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    def check_special_tokens(self) -> None:
        """Refuse special tokens that are not in the vocabulary.

        Raises:
            ValueError: naming the first.
        """
        for name in ("pad_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not in the vocabulary: vocab_size={self.vocab_size} allows 0 to "
                    f"{self.vocab_size - 1}"
                )


@output
class Seq2SeqOutput(LossOutput[Loss]):
    """Output of an encoder–decoder, under Hugging Face's names.

    logits: (batch, target, vocab_size); encoder_last_hidden_state: (batch, source, d_model); loss: mean over the labels
    that count.
    """

    logits: Float[Tensor, "batch target vocab"]
    encoder_last_hidden_state: Float[Tensor, "batch source d_model"]


class TranslationModel(Model, ABC):
    """An encoder–decoder with one embedding matrix for source, target and output.

    Args:
        config: a `TranslationConfig`. Where it has a max_length, neither source nor target may be longer.
        width: of token vectors and of the decoder's output.
        dropout_p: dropout of the token vectors.
        scaled: multiply token vectors by √width.
        output_bias: add a learned number to each token's logit.
    """

    __call__: LabeledCall[Seq2SeqOutput[Tensor], Seq2SeqOutput]

    def __init__(self, config: Any, width: int, dropout_p: float, *, scaled: bool = True, output_bias: bool = False):
        super().__init__()
        self.config: Any = config
        self.dropout_p = dropout_p
        self.embedding = TokenEmbedding(config.vocab_size, width, scaled=scaled)
        tied = config.tie_embeddings
        self.output = None if tied else nn.Linear(width, config.vocab_size, bias=output_bias)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size)) if tied and output_bias else None

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        labels: Int[Tensor, "batch target"] | None = None,
    ) -> Seq2SeqOutput:
        """Read the source and predict each next token of the target.

        Args:
            attention_mask: 1 = a real token, 0 = padding; None: all are real.
            decoder_input_ids: the target after a start token; None makes it from the labels.
            labels: the target, ending in the end token; -100 is not counted. While training, `auxiliary_loss` is added.
        """
        memory = self.encode(input_ids, attention_mask)
        hidden = self.decode(self.target(decoder_input_ids, labels), memory, attention_mask)
        return self.scored(hidden, memory, labels)

    def target(self, decoder_input_ids: Tensor | None, labels: Tensor | None) -> Int[Tensor, "batch target"]:
        """Return the decoder's input.

        Raises:
            TypeError, ValueError: when there is neither; see also `check_ids`.
        """
        if decoder_input_ids is not None:
            check_ids(decoder_input_ids, "decoder_input_ids")
            return decoder_input_ids
        if labels is None:
            raise ValueError(f"{type(self).__name__} needs decoder_input_ids or labels, got neither")
        check_ids(labels, "labels")
        return shift_right(labels, self.config.bos_id, self.config.pad_id)

    def scored(self, hidden: Tensor, memory: Tensor, labels: Tensor | None) -> Seq2SeqOutput:
        """Return the output for the decoder's vectors."""
        logits = self.logits(hidden)
        loss = None if labels is None else cross_entropy(logits, labels)
        if loss is not None and self.training:
            loss = loss + auxiliary_loss(self)
        return Seq2SeqOutput(logits=logits, encoder_last_hidden_state=memory, loss=loss)

    def embed(
        self, input_ids: Int[Tensor, "batch length"], position: nn.Module | None = None, past: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """Return token vectors, plus positions.

        Args:
            position: adds the positions; None adds none.
            past: number of tokens in the cache.

        Raises:
            TypeError, ValueError: see `check_ids`.
        """
        check_ids(input_ids, past=past, max_length=getattr(self.config, "max_length", None))
        x = self.embedding(input_ids)
        if position is not None:
            x = position(x, past)
        return dropout(x, self.dropout_p, self.training)

    @abstractmethod
    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the memory: one vector for each source token.

        Args:
            attention_mask: 1 = a real token, 0 = padding; None: all are real.
        """

    @abstractmethod
    def decode(
        self, decoder_input_ids: Tensor, memory: Tensor, attention_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        """Return one vector for each target token, from which `logits` predicts the next.

        Args:
            attention_mask: the source's; 1 = may be read.
            cache: from `new_cache`; decoder_input_ids then holds the new tokens only.
        """

    @abstractmethod
    def new_cache(self) -> Any:
        """Return an empty cache for `decode`."""

    def logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Return unnormalized log-probabilities of the next token."""
        return F.linear(hidden, self.embedding.weight, self.output_bias) if self.output is None else self.output(hidden)

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The output projection; tied, it is the embedding's own matrix (Press & Wolf 2017)."""
        return self.embedding.weight if self.output is None else self.output.weight


def shift_right(labels: Int[Tensor, "batch target"], bos_id: int, pad_id: int) -> Int[Tensor, "batch target"]:
    """Return the decoder's input for these labels: the start token, then all labels but the last."""
    shifted = torch.cat([labels.new_full((labels.shape[0], 1), bos_id), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_id)


def check_source(input_ids: Int[Tensor, "batch source"]) -> None:
    """Refuse what is not a batch of ids, and a source of length 0.

    Raises:
        TypeError, ValueError: with the remedy.
    """
    check_ids(input_ids)
    if not input_ids.shape[1]:
        raise ValueError(f"the source has no tokens: input_ids has shape {tuple(input_ids.shape)}; end it with eos_id")
