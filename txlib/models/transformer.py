"""The encoder–decoder Transformer (Vaswani et al. 2017)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import Mask, causal
from txlib.labels import IGNORED
from txlib.layers import BlockConfig, TokenEmbedding, make_position
from txlib.layers.feedforward import dropout
from txlib.models.outputs import Output, auxiliary_loss, cross_entropy, output
from txlib.models.stack import DecoderCache, ModelConfig, Stack, real_tokens, together


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Sizes of an encoder–decoder.

    Args:
        vocab_size: of the vocabulary that source and target share.
        block: what each block of both stacks is made of.
        encoder_layers, decoder_layers: number of blocks.
        max_length: longest sequence that learned positions can hold.
        scale_embedding: multiply token vectors by √d_model.
        scale_output: divide the decoder's vectors, which the output projection reads, by √d_model, as T5 does.
        tie_embeddings: use the embedding's matrix as the output projection, too.
        output_bias: add a learned number to each token's logit, as Marian does.
        pad_id, bos_id, eos_id: the vocabulary's special tokens; the decoder starts from bos_id.
        bad_words_ids: sequences of tokens that a search never writes.
    """

    vocab_size: int
    block: BlockConfig
    encoder_layers: int = 6
    decoder_layers: int = 6
    max_length: int = 512
    scale_embedding: bool = True
    output_bias: bool = False
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    scale_output: bool = False
    tie_embeddings: bool = True

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "encoder_layers", "decoder_layers")
        if self.block.position == "skewed":
            raise ValueError("position='skewed' is causal, and an encoder is not; choose 'shaw' or 'alibi'")


@output
class Seq2SeqOutput(Output):
    """What an encoder–decoder returns, under Hugging Face's names.

    logits: (batch, target, vocab_size); encoder_last_hidden_state: (batch, source, d_model); loss: a number, mean over
    the labels that count, or None without labels.
    """

    logits: Float[Tensor, "batch target vocab"]
    encoder_last_hidden_state: Float[Tensor, "batch source d_model"]
    loss: Float[Tensor, ""] | None = None


class Transformer(nn.Module):
    """Encoder, decoder, and one embedding matrix for source, target and output (Vaswani et al. 2017, §3.4)."""

    __call__: Callable[..., Seq2SeqOutput]  # nn.Module's own says Any

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = TransformerConfig.checked(config)
        block = config.block
        self.embedding = TokenEmbedding(config.vocab_size, block.d_model, scaled=config.scale_embedding)
        self.position = make_position(block.position, config.max_length, block.d_model)
        self.encoder = Stack(block, config.encoder_layers, max_length=config.max_length)
        self.decoder = Stack(block, config.decoder_layers, cross=True, causal=True, max_length=config.max_length)
        self.output: Any = None  # None: the embedding's matrix
        self.output_bias = None
        if not config.tie_embeddings:
            self.output = nn.Linear(block.d_model, config.vocab_size, bias=config.output_bias)
        elif config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        labels: Int[Tensor, "batch target"] | None = None,
        mask: Mask | None = None,
        decoder_mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Seq2SeqOutput:
        """Read the source, predict each next token of the target.

        Args:
            attention_mask: 1 = a real token, 0 = padding; None: all are real.
            decoder_input_ids: the target behind a start token; made from the labels unless given.
            labels: the target, ending in the end token; -100 is not counted. While training, the load-balancing loss of
                experts is added.
            mask, decoder_mask, memory_mask: what else a position may not see: source of source, target of target,
                target of source.
        """
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("Transformer needs decoder_input_ids or labels, got neither")
            decoder_input_ids = shift_right(labels, self.config.bos_id, self.config.pad_id)
        memory = self.encode(input_ids, attention_mask, mask)
        hidden = self.decode(decoder_input_ids, memory, attention_mask, mask=decoder_mask, memory_mask=memory_mask)
        logits = self.logits(hidden)
        loss = None if labels is None else cross_entropy(logits, labels)
        if loss is not None and self.training:
            loss = loss + auxiliary_loss(self)
        return Seq2SeqOutput(logits=logits, encoder_last_hidden_state=memory, loss=loss)

    def encode(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch source d_model"]:
        """The memory: one vector for each source token."""
        return self.encoder(self.embed(input_ids), together(real_tokens(attention_mask, input_ids.shape), mask))

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: DecoderCache | None = None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """One vector for each target token, from which `logits` predicts the next.

        Args:
            attention_mask: the source's; 1 = may be read.
            cache: from `new_cache`; decoder_input_ids then holds the new tokens only.
            mask, memory_mask: what else of the target and of the source may not be seen.
        """
        past = cache.length if cache else 0
        memory_mask = together(real_tokens(attention_mask, memory.shape[:2]), memory_mask)
        mask = together(causal(), mask)
        hidden = self.decoder(self.embed(decoder_input_ids, past), mask, memory, memory_mask, cache)
        return hidden * hidden.shape[-1] ** -0.5 if self.config.scale_output else hidden

    def embed(self, input_ids: Int[Tensor, "batch length"], offset: int = 0) -> Float[Tensor, "batch length d_model"]:
        """Token vectors, plus positions where the config adds them."""
        x = self.embedding(input_ids)
        if self.position is not None:
            x = self.position(x, offset)
        return dropout(x, self.config.block.dropout, self.training)

    def logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Unnormalised log-probabilities of the next token."""
        if self.output is not None:
            return self.output(hidden)
        return F.linear(hidden, self.embedding.weight, self.output_bias)

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The output projection; tied, it is the embedding's own matrix (Press & Wolf 2017)."""
        return self.embedding.weight if self.output is None else self.output.weight

    def new_cache(self, capacity: int | None = None) -> DecoderCache:
        """An empty cache for `decode`; see `BlockCache`."""
        return self.decoder.new_cache(capacity)


def shift_right(labels: Int[Tensor, "batch target"], bos_id: int, pad_id: int) -> Int[Tensor, "batch target"]:
    """What the decoder reads while it predicts the labels: the start token, then all labels but the last."""
    shifted = torch.cat([labels.new_full((len(labels), 1), bos_id), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED, pad_id)
