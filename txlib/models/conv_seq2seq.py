"""A translator made of convolutions, ConvS2S (Gehring et al. 2017), and what it shares with `ByteNet`.

All positions of a layer are computed at once, as in a Transformer; but a layer sees a few neighbors only, and what is
far apart meets only some layers higher.
"""

from dataclasses import dataclass
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

HALF = 0.5**0.5  # times a sum of two things of one variance has that variance (Gehring et al. 2017, §3.4)


@dataclass(frozen=True)
class ConvSeq2SeqConfig(TranslationConfig):
    """Sizes of a ConvS2S; the rest is in `TranslationConfig`. (The paper does not tie its embeddings.)

    Args:
        d_model: width of the convolutions' outputs; 512 in the paper's English–Romanian model (§5.1).
        d_embedding: width of the embeddings, which is also the attention's; d_model unless given.
        encoder_layers, decoder_layers: number of convolutions, each with its gates; 20 in that model.
        encoder_kernel, decoder_kernel: positions that a convolution reads; the encoder's is odd.
        max_length: longest sequence that the learned positions can hold.
        dropout: share of the embeddings, of each convolution's inputs and of the decoder's outputs that is dropped.
        weight_norm: learn length and direction of weights apart (§4.2).
    """

    d_model: int
    d_embedding: int | None = None
    encoder_layers: int = 4
    decoder_layers: int = 4
    encoder_kernel: int = 3
    decoder_kernel: int = 3
    max_length: int = 512
    dropout: float = 0.0
    weight_norm: bool = False

    def __post_init__(self):
        check_sizes(self, "vocab_size", "d_model", "d_embedding", "encoder_layers", "decoder_layers", "max_length")

    @property
    def width(self) -> int:
        """Of the embeddings."""
        return self.d_model if self.d_embedding is None else self.d_embedding

    @property
    def encoder_receptive_field(self) -> int:
        """Source positions, around its own, that the encoder's output depends on."""
        return receptive_field(self.encoder_kernel, [1] * self.encoder_layers)

    @property
    def decoder_receptive_field(self) -> int:
        """Target positions, up to its own, that the decoder's output depends on."""
        return receptive_field(self.decoder_kernel, [1] * self.decoder_layers)


def check_sizes(config: Any, *names: str) -> None:
    """Refuse what no model can be made of.

    Raises:
        ValueError: naming it.
    """
    config.check_at_least_one(*names)
    config.check_special_tokens()
    check_kernel("encoder_kernel", config.encoder_kernel, causal=False)
    check_kernel("decoder_kernel", config.decoder_kernel, causal=True)
    check_dropout(config.dropout)


class ConvolutionalTranslator(TranslationModel):
    """What ConvS2S and ByteNet share."""

    def new_cache(self) -> StackCache:
        """An empty cache for `decode`: it will keep what each convolution sees of the past."""
        decoder: Any = self.decoder
        return StackCache(ConvolutionCache() for _ in decoder.layers)


class GatedBlock(nn.Module):
    """A convolution, its gates, the way around both, and in the decoder attention (Gehring et al. 2017, §3.2 and §3.3).

    Args:
        d_model: width of what the block reads and writes.
        width: the embeddings'; None for a block without attention.
    """

    def __init__(self, d_model: int, kernel: int, share: float, *, causal: bool, width: int | None = None):
        super().__init__()
        self.share = share
        self.convolution = Convolution(d_model, 2 * d_model, kernel, causal=causal)
        nn.init.normal_(self.convolution.weight, std=(4 * (1 - share) / (d_model * kernel)) ** 0.5)  # §3.5
        self.query = None if width is None else linear(d_model, width)
        self.context = None if width in (None, d_model) else linear(width, d_model)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        kept: Bool[Tensor, "batch length"] | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """√0.5 (v(W [x …] + b) + x), where v([a, b]) = a ⊗ σ(b)."""
        gated = F.glu(self.convolution(dropout(x, self.share, self.training), kept, cache), dim=-1)
        return (gated + x) * HALF

    def attend(
        self,
        x: Float[Tensor, "batch target d_model"],
        embedded: Float[Tensor, "batch target width"],
        memory: Float[Tensor, "batch source two_widths"],
        mask: Mask | None,
        scale: Float[Tensor, "batch #one #one"] | float,
    ) -> Float[Tensor, "batch target d_model"]:
        """x + c, the context: an average of z + e, looked up by what x and the last token's embedding ask for.

        Args:
            embedded: g, the decoder's input.
            memory: z, the encoder's output, beside z + e.
            scale: √m for m source tokens.
        """
        assert self.query is not None
        z, values = memory[:, None].chunk(2, dim=-1)  # (batch, 1, source, width): one head
        query = (self.query(x) + embedded)[:, None]  # (batch, 1, target, width), eq. 1
        weights = attention_weights(query, z, mask, scale=1.0)  # (batch, 1, target, source)
        context = (weights @ values)[:, 0] * scale  # (batch, target, width), eq. 2
        return x + (context if self.context is None else self.context(context))


class GatedStack(nn.Module):
    """Embeddings in, gated convolutions, as wide as the embeddings out."""

    def __init__(self, config: ConvSeq2SeqConfig, layers: int, kernel: int, *, decodes: bool):
        super().__init__()
        width = config.width
        self.position = LearnedPosition(config.max_length, width)
        nn.init.normal_(self.position.weight, std=0.1)
        self.enter = linear(width, config.d_model, share=config.dropout)
        self.layers: Any = nn.ModuleList(
            GatedBlock(config.d_model, kernel, config.dropout, causal=decodes, width=width if decodes else None)
            for _ in range(layers)
        )
        self.leave = linear(config.d_model, width)


class ConvSeq2Seq(ConvolutionalTranslator, config=ConvSeq2SeqConfig):
    """ConvS2S, convolutional sequence to sequence learning (Gehring et al. 2017).

    Embeddings and learned positions; in the encoder, convolutions around each position, in the decoder, up to it, all
    with gated linear units; and in each layer of the decoder, attention of one head. Instead of being normalized,
    residual sums and contexts are scaled to keep their variance (§3.4). Queries, z + e and what adds a context to x
    stay as the equations have them; the authors' code multiplies these sums by √0.5, too.

    Unlike the paper's, source and target share one embedding, and the output projection adds no bias.
    """

    def __init__(self, config: ConvSeq2SeqConfig):
        super().__init__(config, config.width, scaled=False)
        nn.init.normal_(self.embedding.weight, std=0.1)  # §3.5
        self.encoder = GatedStack(config, config.encoder_layers, config.encoder_kernel, decodes=False)
        self.decoder = GatedStack(config, config.decoder_layers, config.decoder_kernel, decodes=True)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=((1 - config.dropout) / config.width) ** 0.5)
        if config.weight_norm:
            WeightNorm.apply_to(self)

    def encode(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch source two_widths"]:
        """The memory: for each source token what attention compares with, z, and what it fetches, z + e.

        Raises:
            ValueError: when there are no source tokens.
        """
        kept = real(input_ids, attention_mask)
        embedded = self.embed(input_ids, self.encoder)  # (batch, source, width)
        x = self.encoder.enter(embedded)  # (batch, source, d_model)
        for layer in self.encoder.layers:
            x = layer(x, kept)
        z = self.encoder.leave(x)  # (batch, source, width)
        z = scale_gradient(z, 1 / len(self.decoder.layers))  # each attention sends one back (§3.4)
        return torch.cat([z, z + embedded], dim=-1)

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source two_widths"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch target width"]:
        """One vector for each target token, from which `logits` predicts the next.

        Args:
            attention_mask: the source's; 1 = may be read.
            cache: from `new_cache`; decoder_input_ids then holds the new tokens only.
        """
        check_batch(decoder_input_ids, memory)
        embedded = self.embed(decoder_input_ids, self.decoder, cache.length if cache else 0)  # (batch, target, width)
        mask, scale = real_tokens(attention_mask, memory.shape[:2]), memory.shape[1] ** 0.5
        if attention_mask is not None:
            scale = attention_mask.sum(dim=-1)[:, None, None].to(memory.dtype).sqrt()  # (batch, 1, 1)
        x = self.decoder.enter(embedded)  # (batch, target, d_model)
        for number, layer in enumerate(self.decoder.layers):
            x = layer(x, cache=cache[number] if cache else None)
            x = layer.attend(x, embedded, memory, mask, scale)
        return dropout(self.decoder.leave(x), self.config.dropout, self.training)

    def embed(
        self, input_ids: Int[Tensor, "batch length"], stack: GatedStack, offset: int = 0
    ) -> Float[Tensor, "batch length width"]:
        """Token vectors plus those of their positions (§3.1)."""
        return dropout(stack.position(self.embedding(input_ids), offset), self.config.dropout, self.training)


def linear(d_in: int, d_out: int, *, share: float = 0.0) -> nn.Linear:
    """A projection that keeps the variance of its input, of which a share is dropped (Gehring et al. 2017, §3.5)."""
    layer = nn.Linear(d_in, d_out)
    nn.init.normal_(layer.weight, std=((1 - share) / d_in) ** 0.5)
    nn.init.zeros_(layer.bias)
    return layer


def scale_gradient(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """x itself, whose gradient is multiplied."""
    return x.detach() + factor * (x - x.detach())


def real(
    input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None
) -> Bool[Tensor, "batch source"] | None:
    """Which source tokens are real; None where all are.

    Raises:
        ValueError: for an empty source, and a mask of another shape.
    """
    check_source(input_ids)
    padded = real_tokens(attention_mask, input_ids.shape) is not None
    return attention_mask.bool() if padded and attention_mask is not None else None


def check_batch(decoder_input_ids: Int[Tensor, "batch target"], memory: Tensor) -> None:
    """Refuse a memory of other sentences.

    Raises:
        ValueError: when there are more or fewer.
    """
    if len(decoder_input_ids) != len(memory):
        raise ValueError(f"decoder_input_ids has {len(decoder_input_ids)} rows, the memory {len(memory)}")
