"""A translator made of convolutions, ConvS2S (Gehring et al. 2017), and its base, which `ByteNet` shares.

As in a Transformer, all positions of a layer are computed at once. But each layer sees only a few neighbors, so distant
tokens meet only some layers higher.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.attention import Mask, attention_weights
from txlib.attention.mechanism import check_dropout
from txlib.layers import LearnedPosition
from txlib.layers.convolution import (
    Convolution,
    ConvolutionCache,
    StackCache,
    WeightNorm,
    check_kernel,
    receptive_field,
)
from txlib.layers.feedforward import dropout
from txlib.models.inputs import real_tokens
from txlib.models.translation import TranslationConfig, TranslationModel, check_source

HALF = 0.5**0.5  # times the sum of two vectors of the same variance has that variance (Gehring et al. 2017, §3.4)


@dataclass(frozen=True)
class ConvolutionalConfig(TranslationConfig):
    """Fields that both convolutional translators' configs share.

    Args:
        d_model: width of the blocks' inputs and outputs.
        encoder_kernel, decoder_kernel: number of positions that a convolution reads; the encoder's is odd.
        dropout: see the config of each.
    """

    d_model: int
    _: KW_ONLY
    encoder_kernel: int = 3
    decoder_kernel: int = 3
    dropout: float = 0.0

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "d_model")
        self.check_special_tokens()
        check_kernel("encoder_kernel", self.encoder_kernel, causal=False)
        check_kernel("decoder_kernel", self.decoder_kernel, causal=True)
        check_dropout(self.dropout)


@dataclass(frozen=True)
class ConvSeq2SeqConfig(ConvolutionalConfig):
    """Sizes of a ConvS2S; the other fields are in `ConvolutionalConfig`. (The paper does not tie its embeddings.)

    Args:
        d_model: width of the convolutions' outputs; 512 in the paper's English–Romanian model (§5.1).
        d_embedding: width of the embeddings, which is also the attention's; d_model unless given.
        encoder_layers, decoder_layers: number of convolutions, each with its gates; 20 in that model.
        max_length: longest source and longest target.
        dropout: of the embeddings, of each convolution's input and of the decoder's output.
        weight_norm: learn the length and the direction of weights separately (§4.2).
    """

    d_embedding: int | None = None
    encoder_layers: int = 4
    decoder_layers: int = 4
    max_length: int = 512
    weight_norm: bool = False

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("d_embedding", "encoder_layers", "decoder_layers", "max_length")

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return self.d_model if self.d_embedding is None else self.d_embedding

    @property
    def encoder_receptive_field(self) -> int:
        """Number of source positions, around its own, that an output of the encoder depends on."""
        return receptive_field(self.encoder_kernel, [1] * self.encoder_layers)

    @property
    def decoder_receptive_field(self) -> int:
        """Number of target positions, up to its own, that an output of the decoder depends on."""
        return receptive_field(self.decoder_kernel, [1] * self.decoder_layers)


class ConvolutionalTranslator(TranslationModel):
    """Base of ConvS2S and ByteNet."""

    def new_cache(self) -> StackCache:
        """Return an empty cache for `decode`, for the past inputs of each convolution."""
        decoder: Any = self.decoder
        return StackCache(ConvolutionCache() for _ in decoder.layers)


class GatedBlock(nn.Module):
    """A convolution with gates and a residual connection, and in the decoder attention (Gehring et al. 2017, §3.2 and
    §3.3).

    Args:
        width: of the embeddings; None for a block without attention.
    """

    def __init__(self, d_model: int, kernel: int, dropout_p: float, *, causal: bool, width: int | None = None):
        super().__init__()
        self.dropout_p = dropout_p
        self.convolution = Convolution(d_model, 2 * d_model, kernel, causal=causal)
        nn.init.normal_(self.convolution.weight, std=(4 * (1 - dropout_p) / (d_model * kernel)) ** 0.5)  # §3.5
        self.query = None if width is None else linear(d_model, width)
        self.context = None if width in (None, d_model) else linear(width, d_model)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        real: Bool[Tensor, "batch length"] | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return √0.5 (v(W [x …] + b) + x), where v([a, b]) = a ⊗ σ(b)."""
        gated = F.glu(self.convolution(dropout(x, self.dropout_p, self.training), real, cache), dim=-1)
        return (gated + x) * HALF

    def attend(
        self,
        x: Float[Tensor, "batch target d_model"],
        embedded: Float[Tensor, "batch target width"],
        memory: Float[Tensor, "batch source two_widths"],
        mask: Mask | None,
        scale: Float[Tensor, "batch #one #one"] | float,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return x + c. The context c is an average of z + e; its query is made of x and the last token's embedding.

        Args:
            embedded: g, the decoder's input.
            memory: z, the encoder's output, concatenated with z + e.
            scale: √m for m source tokens.
        """
        assert self.query is not None
        z, values = memory[:, None].chunk(2, dim=-1)  # (batch, 1, source, width): one head
        query = (self.query(x) + embedded)[:, None]  # (batch, 1, target, width), eq. 1
        weights = attention_weights(query, z, mask, scale=1.0)  # (batch, 1, target, source)
        context = (weights @ values)[:, 0] * scale  # (batch, target, width), eq. 2
        return x + (context if self.context is None else self.context(context))


class GatedStack(nn.Module):
    """Gated convolutions, between two projections: from and to the width of the embeddings."""

    def __init__(self, config: ConvSeq2SeqConfig, layers: int, kernel: int, *, decodes: bool):
        super().__init__()
        width = config.width
        self.position = LearnedPosition(config.max_length, width)
        nn.init.normal_(self.position.weight, std=0.1)
        self.enter = linear(width, config.d_model, dropout_p=config.dropout)
        self.layers: Any = nn.ModuleList(
            GatedBlock(config.d_model, kernel, config.dropout, causal=decodes, width=width if decodes else None)
            for _ in range(layers)
        )
        self.leave = linear(config.d_model, width)


class ConvSeq2Seq(ConvolutionalTranslator, config=ConvSeq2SeqConfig):
    """ConvS2S, convolutional sequence to sequence learning (Gehring et al. 2017).

    The model adds learned positions to its embeddings. The encoder's convolutions are centered on each position, the
    decoder's end there; all have gated linear units, and each layer of the decoder has attention of one head. Instead
    of normalizing them, the model scales residual sums and contexts to keep their variance (§3.4). The sums of queries,
    z + e and x + c are those of the equations; the authors' code also multiplies them by √0.5.

    Unlike in the paper, source and target share one embedding, and the output projection adds no bias.
    """

    def __init__(self, config: ConvSeq2SeqConfig):
        super().__init__(config, config.width, config.dropout, scaled=False)
        nn.init.normal_(self.embedding.weight, std=0.1)  # §3.5
        self.encoder = GatedStack(config, config.encoder_layers, config.encoder_kernel, decodes=False)
        self.decoder = GatedStack(config, config.decoder_layers, config.decoder_kernel, decodes=True)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=((1 - config.dropout) / config.width) ** 0.5)
        if config.weight_norm:
            WeightNorm.apply_to(self)

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch source two_widths"]:
        """Return the memory: for each source token its key, z, and its value, z + e.

        Raises:
            ValueError: when there are no source tokens.
        """
        real = real_source(input_ids, attention_mask)
        embedded = self.embed(input_ids, self.encoder.position)  # (batch, source, width)
        x = self.encoder.enter(embedded)  # (batch, source, d_model)
        for layer in self.encoder.layers:
            x = layer(x, real)
        z = self.encoder.leave(x)  # (batch, source, width)
        z = scale_gradient(z, 1 / len(self.decoder.layers))  # it gets one gradient from each attention (§3.4)
        return torch.cat([z, z + embedded], dim=-1)

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source two_widths"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch target width"]:
        check_batch(decoder_input_ids, memory)
        past = cache.length if cache else 0
        embedded = self.embed(decoder_input_ids, self.decoder.position, past)  # (batch, target, width)
        mask, scale = real_tokens(attention_mask, memory.shape[:2]), memory.shape[1] ** 0.5
        if attention_mask is not None:
            scale = attention_mask.sum(dim=-1)[:, None, None].to(memory.dtype).sqrt()  # (batch, 1, 1)
        x = self.decoder.enter(embedded)  # (batch, target, d_model)
        for number, layer in enumerate(self.decoder.layers):
            x = layer(x, cache=cache[number] if cache else None)
            x = layer.attend(x, embedded, memory, mask, scale)
        return dropout(self.decoder.leave(x), self.config.dropout, self.training)


def linear(d_in: int, d_out: int, *, dropout_p: float = 0.0) -> nn.Linear:
    """Return a projection that keeps the variance of its input after dropout (Gehring et al. 2017, §3.5)."""
    layer = nn.Linear(d_in, d_out)
    nn.init.normal_(layer.weight, std=((1 - dropout_p) / d_in) ** 0.5)
    nn.init.zeros_(layer.bias)
    return layer


def scale_gradient(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """Return x, and multiply its gradient by the factor."""
    return x.detach() + factor * (x - x.detach())


def real_source(
    input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None
) -> Bool[Tensor, "batch source"] | None:
    """Return which source tokens are real; None where all are.

    Raises:
        ValueError: for an empty source, and a mask of another shape.
    """
    check_source(input_ids)
    padded = real_tokens(attention_mask, input_ids.shape) is not None
    return attention_mask.bool() if padded and attention_mask is not None else None


def check_batch(decoder_input_ids: Int[Tensor, "batch target"], memory: Tensor) -> None:
    """Refuse a memory of more or fewer sentences.

    Raises:
        ValueError: naming both numbers.
    """
    if len(decoder_input_ids) != len(memory):
        raise ValueError(f"decoder_input_ids has {len(decoder_input_ids)} rows, the memory {len(memory)}")
