"""The encoder–decoder Transformer (Vaswani et al. 2017)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from txlib.attention import DecoderCache, Mask, causal
from txlib.layers import BlockConfig, make_position
from txlib.layers.feedforward import dropout
from txlib.layers.position_config import check_two_sided
from txlib.models.inputs import check_ids, real_tokens, together
from txlib.models.stack import Stack
from txlib.models.translation import Seq2SeqOutput, TranslationConfig, TranslationModel


@dataclass(frozen=True)
class TransformerConfig(TranslationConfig):
    """Sizes of an encoder–decoder; the rest is in `TranslationConfig`.

    Args:
        block: config of each block of both stacks.
        encoder_layers, decoder_layers: number of blocks.
        max_length: longest sequence that learned positions can hold.
        scale_embedding: multiply token vectors by √d_model.
        scale_output: divide the decoder's vectors, which the output projection reads, by √d_model, as T5 does.
        output_bias: add a learned number to each token's logit, as Marian does.
    """

    block: BlockConfig
    encoder_layers: int = 6
    decoder_layers: int = 6
    max_length: int = 512
    scale_embedding: bool = True
    output_bias: bool = False
    scale_output: bool = False

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "encoder_layers", "decoder_layers")
        self.check_special_tokens()
        check_two_sided(self.block.position)


class Transformer(TranslationModel, config=TransformerConfig):
    """Encoder, decoder, and one embedding matrix for source, target and output (Vaswani et al. 2017, §3.4)."""

    def __init__(self, config: TransformerConfig):
        TransformerConfig.checked(config)
        block = config.block
        super().__init__(config, block.d_model, scaled=config.scale_embedding, output_bias=config.output_bias)
        self.position = make_position(block.position, config.max_length, block.d_model)
        self.encoder = Stack(block, config.encoder_layers, max_length=config.max_length)
        self.decoder = Stack(block, config.decoder_layers, cross=True, causal=True, max_length=config.max_length)

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
        """Read the source and predict each next token of the target.

        Args:
            attention_mask: 1 = a real token, 0 = padding; None: all are real.
            decoder_input_ids: the target after a start token; made from the labels unless given.
            labels: the target, ending in the end token; -100 is not counted. While training, `auxiliary_loss` is added.
            mask, decoder_mask, memory_mask: further restrictions: of source to source, target to target, and
                target to source.
        """
        memory, target = self.encode(input_ids, attention_mask, mask), self.target(decoder_input_ids, labels)
        hidden = self.decode(target, memory, attention_mask, mask=decoder_mask, memory_mask=memory_mask)
        return self.scored(hidden, memory, labels)

    def encode(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch source d_model"]:
        """Return the memory: one vector for each source token."""
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
        """Return one vector for each target token, from which `logits` predicts the next.

        Args:
            attention_mask: the source's; 1 = may be read.
            cache: from `new_cache`; decoder_input_ids then holds the new tokens only.
            mask, memory_mask: further restrictions of target to target, and of target to source.
        """
        past = cache.length if cache else 0
        memory_mask = together(real_tokens(attention_mask, memory.shape[:2]), memory_mask)
        mask = together(causal(), mask)
        hidden = self.decoder(self.embed(decoder_input_ids, past), mask, memory, memory_mask, cache)
        return hidden * hidden.shape[-1] ** -0.5 if self.config.scale_output else hidden

    def embed(self, input_ids: Int[Tensor, "batch length"], offset: int = 0) -> Float[Tensor, "batch length d_model"]:
        """Return token vectors, plus positions where the config adds them."""
        check_ids(input_ids)
        x = self.embedding(input_ids)
        if self.position is not None:
            x = self.position(x, offset)
        return dropout(x, self.config.block.dropout, self.training)

    def new_cache(self, capacity: int | None = None) -> DecoderCache:
        """Return an empty cache for `decode`; see `TransformerBlock.new_cache`."""
        return self.decoder.new_cache(capacity)
