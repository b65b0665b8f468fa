"""Two translators made of convolutions: ConvS2S (Gehring et al. 2017) and ByteNet (Kalchbrenner et al. 2016).

All positions of a layer are computed at once, as in a Transformer; but a layer sees a few neighbours only, and what is
far apart meets only some layers higher.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.attention import Mask, attention_weights
from txlib.attention.mechanism import check_dropout
from txlib.layers import LayerNorm, LearnedPosition
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


@dataclass(frozen=True)
class ByteNetConfig(TranslationConfig):
    """Sizes of a ByteNet (Kalchbrenner et al. 2016); the rest is in `TranslationConfig`.

    Args:
        d_model: width of what the blocks add to, the paper's 2d, which was 1600 (§6); even.
        encoder_sets, decoder_sets: how often the row of dilations is repeated; 6 times in the paper.
        dilations: of a set's blocks, one after another.
        encoder_kernel, decoder_kernel: positions that a convolution reads; the encoder's is odd.
        unfold_ratio, unfold_extra: the encoder represents n tokens at ⌈ratio · n + extra⌉ positions, enough for nearly
            all translations (§3.2's a and b).
        dropout: share of the embeddings and of what each block adds that is dropped.
    """

    d_model: int
    encoder_sets: int = 2
    decoder_sets: int = 2
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)
    encoder_kernel: int = 3
    decoder_kernel: int = 3
    unfold_ratio: float = 1.2
    unfold_extra: int = 0
    dropout: float = 0.0

    def __post_init__(self):
        check_sizes(self, "vocab_size", "d_model", "encoder_sets", "decoder_sets")
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd, and a block halves it; choose e.g. {self.d_model + 1}")
        if not self.dilations or min(self.dilations) < 1:
            raise ValueError(f"dilations={self.dilations} must name one for each block of a set, each at least 1")
        for name, least in ("unfold_ratio", 1), ("unfold_extra", 0):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} must be at least {least}: each source token has its place")

    @property
    def encoder_receptive_field(self) -> int:
        """Source positions, around its own, that the encoder's output depends on."""
        return receptive_field(self.encoder_kernel, self.dilations * self.encoder_sets)

    @property
    def decoder_receptive_field(self) -> int:
        """Target positions, up to its own, that the decoder's output depends on; it reads the memory at the same."""
        return receptive_field(self.decoder_kernel, self.dilations * self.decoder_sets)

    def unfolded(self, length: int) -> int:
        """Positions of the memory for so many source tokens (eq. 3)."""
        return math.ceil(self.unfold_ratio * length + self.unfold_extra)


def check_sizes(config: ConvSeq2SeqConfig | ByteNetConfig, *names: str) -> None:
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


class ConvSeq2Seq(ConvolutionalTranslator):
    """ConvS2S, convolutional sequence to sequence learning (Gehring et al. 2017).

    Embeddings and learned positions; in the encoder, convolutions around each position, in the decoder, up to it, all
    with gated linear units; and in each layer of the decoder, attention of one head. Instead of being normalised,
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


class DilatedBlock(nn.Module):
    """Narrow, convolve, widen, and add (Kalchbrenner et al. 2016, §3.6 and Figure 3, left).

    Before each of the three stand a layer norm and a ReLU.

    Args:
        share: of what the block adds that is dropped.
        blocks: how many of them add to the same vectors. At the start they double the variance, all together.
    """

    def __init__(self, d_model: int, kernel: int, dilation: int, share: float, *, causal: bool, blocks: int):
        super().__init__()
        half = d_model // 2
        self.share = share
        self.norms: Any = nn.ModuleList(LayerNorm(width) for width in (d_model, half, half))
        self.narrow = nn.Linear(d_model, half)
        self.convolution = Convolution(half, half, kernel, dilation=dilation, causal=causal)
        self.widen = nn.Linear(half, d_model)
        for part, among in (self.narrow, 1), (self.convolution, 1), (self.widen, blocks):  # the paper says nothing
            nn.init.normal_(part.weight, std=(2 / part.weight.shape[1] / among) ** 0.5)  # He et al. 2015, eq. 10
            nn.init.zeros_(part.bias)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        kept: Bool[Tensor, "batch length"] | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """x plus what the block makes of it."""
        hidden = self.narrow(F.relu(self.norms[0](x)))  # (batch, length, d_model / 2)
        hidden = self.convolution(F.relu(self.norms[1](hidden)), kept, cache)
        return x + dropout(self.widen(F.relu(self.norms[2](hidden))), self.share, self.training)


class DilatedStack(nn.Module):
    """Sets of blocks, in each of which the dilation grows (Kalchbrenner et al. 2016, §3.5)."""

    def __init__(self, config: ByteNetConfig, sets: int, kernel: int, *, causal: bool):
        super().__init__()
        dilations = config.dilations * sets
        self.layers: Any = nn.ModuleList(
            DilatedBlock(config.d_model, kernel, dilation, config.dropout, causal=causal, blocks=len(dilations))
            for dilation in dilations
        )

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        kept: Bool[Tensor, "batch length"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """One block after another."""
        for number, layer in enumerate(self.layers):
            x = layer(x, kept, cache[number] if cache else None)
        return x


class ByteNet(ConvolutionalTranslator):
    """Translation in linear time: convolutions only, no attention (Kalchbrenner et al. 2016).

    The decoder stands on the encoder: at position t it reads the encoder's vector of position t, added to the embedding
    of the last token written. What it must know from elsewhere has to come through the convolutions. As translations
    may be longer than sources, the encoder reads each source with so much padding behind it that it nearly always
    suffices (§3.2); beyond that the decoder goes on with no representation.

    The paper's model reads and writes characters; this one, as all here, the tokens it is given, with one embedding for
    source, target and output.
    """

    def __init__(self, config: ByteNetConfig):
        super().__init__(config, config.d_model, scaled=True)
        self.encoder = DilatedStack(config, config.encoder_sets, config.encoder_kernel, causal=False)
        self.decoder = DilatedStack(config, config.decoder_sets, config.decoder_kernel, causal=True)
        self.last = nn.Linear(config.d_model, config.d_model)
        self.norm = LayerNorm(config.d_model)

    def encode(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch unfolded d_model"]:
        """The memory: one vector for each position that the source, unfolded, has; zeros after them.

        Raises:
            ValueError: when there are no source tokens, or padding stands before one.
        """
        kept = real(input_ids, attention_mask)
        length = input_ids.shape[1]
        input_ids = F.pad(input_ids, (0, self.config.unfolded(length) - length), value=self.config.pad_id)
        if kept is not None:
            check_right(kept)
            lengths, position = kept.sum(dim=-1), torch.arange(input_ids.shape[1], device=kept.device)
            input_ids = input_ids.masked_fill(position >= lengths[:, None], self.config.pad_id)
            ends = torch.tensor([self.config.unfolded(n) for n in range(length + 1)], device=kept.device)
            kept = position < ends[lengths][:, None]  # (batch, unfolded)
        memory = self.encoder(self.embed(input_ids), kept)
        return memory if kept is None else memory.masked_fill(~kept[..., None], 0.0)

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch unfolded d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """One vector for each target token, from which `logits` predicts the next.

        Args:
            attention_mask: not needed: where the source ends, the memory shows.
            cache: from `new_cache`; decoder_input_ids then holds the new tokens only.
        """
        check_batch(decoder_input_ids, memory)
        past, new = cache.length if cache else 0, decoder_input_ids.shape[1]
        under = memory[:, past : past + new]  # (batch, at most new, d_model)
        x = self.embed(decoder_input_ids) + F.pad(under, (0, 0, 0, new - under.shape[1]))
        return F.relu(self.norm(self.last(self.decoder(x, cache=cache))))

    def embed(self, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """Token vectors; convolutions need no positions."""
        return dropout(self.embedding(input_ids), self.config.dropout, self.training)


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


def check_right(kept: Bool[Tensor, "batch source"]) -> None:
    """Refuse padding before a token, where that is seen without waiting for a GPU.

    Raises:
        ValueError: saying in which row.
    """
    if kept.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = (kept[:, 1:] & ~kept[:, :-1]).any(dim=-1)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(f"attention_mask has padding before a token in row {row}; ByteNet wants it on the right")


def check_batch(decoder_input_ids: Int[Tensor, "batch target"], memory: Tensor) -> None:
    """Refuse a memory of other sentences.

    Raises:
        ValueError: when there are more or fewer.
    """
    if len(decoder_input_ids) != len(memory):
        raise ValueError(f"decoder_input_ids has {len(decoder_input_ids)} rows, the memory {len(memory)}")
