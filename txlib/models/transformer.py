"""The encoder–decoder Transformer (Vaswani et al. 2017)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from txlib.attention import DecoderCache, Mask, causal
from txlib.layers import BlockConfig, make_position
from txlib.layers.position_config import check_two_sided
from txlib.models.inputs import real_tokens, together
from txlib.models.stack import Stack
from txlib.models.translation import Seq2SeqOutput, TranslationConfig, TranslationModel


@dataclass(frozen=True)
class TransformerConfig(TranslationConfig):
    """Sizes of an encoder–decoder; the rest is in `TranslationConfig`.

    Args:
        block: config of each block of both stacks.
        encoder_layers, decoder_layers: number of blocks.
        max_length: longest source and longest target.
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
        options = {"scaled": config.scale_embedding, "output_bias": config.output_bias}
        super().__init__(config, block.d_model, block.dropout, **options)
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
        """Read the source and predict each next token of the target; other arguments as in `TranslationModel`.

        Args:
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
        """Return the memory, one vector for each source token; arguments as in `forward`."""
        return self.encoder(
            self.embed(input_ids, self.position), together(real_tokens(attention_mask, input_ids.shape), mask)
        )

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: DecoderCache | None = None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return one vector for each target token, as `TranslationModel.decode` says.

        Args:
            mask, memory_mask: further restrictions of target to target, and of target to source.
        """
        past = cache.length if cache else 0
        memory_mask = together(real_tokens(attention_mask, memory.shape[:2]), memory_mask)
        mask = together(causal(), mask)
        hidden = self.decoder(self.embed(decoder_input_ids, self.position, past), mask, memory, memory_mask, cache)
        return hidden * hidden.shape[-1] ** -0.5 if self.config.scale_output else hidden

    def new_cache(self, capacity: int | None = None) -> DecoderCache:
        """Return an empty cache for `decode`; see `TransformerBlock.new_cache`."""
        return self.decoder.new_cache(capacity)
