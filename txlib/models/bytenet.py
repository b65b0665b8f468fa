"""ByteNet: a translator of dilated convolutions (Kalchbrenner et al. 2016)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.layers import LayerNorm
from txlib.layers.convolution import (
    Convolution,
    ConvolutionCache,
    StackCache,
    receptive_field,
)
from txlib.layers.feedforward import dropout
from txlib.models.conv_seq2seq import (
    ConvolutionalTranslator,
    check_batch,
    check_sizes,
    real,
)
from txlib.models.translation import TranslationConfig


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
        self.down_proj = nn.Linear(d_model, half)
        self.convolution = Convolution(half, half, kernel, dilation=dilation, causal=causal)
        self.up_proj = nn.Linear(half, d_model)
        for part, among in (self.down_proj, 1), (self.convolution, 1), (self.up_proj, blocks):  # the paper says nothing
            nn.init.normal_(part.weight, std=(2 / part.weight.shape[1] / among) ** 0.5)  # He et al. 2015, eq. 10
            nn.init.zeros_(part.bias)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        kept: Bool[Tensor, "batch length"] | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """x plus what the block makes of it."""
        hidden = self.down_proj(F.relu(self.norms[0](x)))  # (batch, length, d_model / 2)
        hidden = self.convolution(F.relu(self.norms[1](hidden)), kept, cache)
        return x + dropout(self.up_proj(F.relu(self.norms[2](hidden))), self.share, self.training)


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


class ByteNet(ConvolutionalTranslator, config=ByteNetConfig):
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
