"""ByteNet: a translator of dilated convolutions (Kalchbrenner et al. 2016)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.layers import LayerNorm
from txlib.layers.convolution import Convolution, ConvolutionCache, StackCache, receptive_field
from txlib.layers.feedforward import dropout
from txlib.models.conv_seq2seq import ConvolutionalConfig, ConvolutionalTranslator, check_batch, real_source


@dataclass(frozen=True)
class ByteNetConfig(ConvolutionalConfig):
    """Sizes of a ByteNet (Kalchbrenner et al. 2016); the other fields are in `ConvolutionalConfig`.

    Args:
        d_model: width of the residual stream, the paper's 2d, which was 1600 (§6); even.
        encoder_sets, decoder_sets: number of sets of dilated blocks; 6 in the paper.
        dilations: of the blocks of a set.
        unfold_ratio, unfold_extra: the encoder represents n tokens at ⌈ratio · n + extra⌉ positions, enough for nearly
            all translations (§3.2's a and b).
        dropout: of the embeddings and of each block's output before it is added.
    """

    encoder_sets: int = 2
    decoder_sets: int = 2
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)
    unfold_ratio: float = 1.2
    unfold_extra: int = 0

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("encoder_sets", "decoder_sets")
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd, and a block halves it; choose e.g. {self.d_model + 1}")
        if not self.dilations or min(self.dilations) < 1:
            raise ValueError(f"dilations={self.dilations} must name one for each block of a set, each at least 1")
        for name, least in ("unfold_ratio", 1), ("unfold_extra", 0):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} must be at least {least}: each source token needs a position")

    @property
    def encoder_receptive_field(self) -> int:
        """Number of source positions, around its own, that an output of the encoder depends on."""
        return receptive_field(self.encoder_kernel, self.dilations * self.encoder_sets)

    @property
    def decoder_receptive_field(self) -> int:
        """Number of target and memory positions, up to its own, that an output of the decoder depends on."""
        return receptive_field(self.decoder_kernel, self.dilations * self.decoder_sets)

    def unfolded(self, length: int) -> int:
        """Return the number of positions of the memory for this many source tokens (eq. 3)."""
        return math.ceil(self.unfold_ratio * length + self.unfold_extra)


class DilatedBlock(nn.Module):
    """A residual block: project down, convolve, project up (Kalchbrenner et al. 2016, §3.6 and Figure 3, left). A layer
    norm and a ReLU precede each of the three.

    Args:
        blocks: number of blocks that add to the same vectors. Initially all of them together double the variance.
    """

    def __init__(self, d_model: int, kernel: int, dilation: int, dropout_p: float, *, causal: bool, blocks: int):
        super().__init__()
        half = d_model // 2
        self.dropout_p = dropout_p
        self.norms: Any = nn.ModuleList(LayerNorm(width) for width in (d_model, half, half))
        self.down_proj = nn.Linear(d_model, half)
        self.convolution = Convolution(half, half, kernel, dilation=dilation, causal=causal)
        self.up_proj = nn.Linear(half, d_model)
        for layer, scale in (self.down_proj, 1), (self.convolution, 1), (self.up_proj, blocks):  # not in the paper
            nn.init.normal_(layer.weight, std=(2 / layer.weight.shape[1] / scale) ** 0.5)  # He et al. 2015, eq. 10
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        real: Bool[Tensor, "batch length"] | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the block's output."""
        hidden = self.down_proj(F.relu(self.norms[0](x)))  # (batch, length, d_model / 2)
        hidden = self.convolution(F.relu(self.norms[1](hidden)), real, cache)
        return x + dropout(self.up_proj(F.relu(self.norms[2](hidden))), self.dropout_p, self.training)


class DilatedStack(nn.Module):
    """Sets of blocks whose dilation grows (Kalchbrenner et al. 2016, §3.5)."""

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
        real: Bool[Tensor, "batch length"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Run one block after another."""
        for number, layer in enumerate(self.layers):
            x = layer(x, real, cache[number] if cache else None)
        return x


class ByteNet(ConvolutionalTranslator, config=ByteNetConfig):
    """Translation in linear time: convolutions only, no attention (Kalchbrenner et al. 2016).

    The decoder is stacked on the encoder: at position t it adds the encoder's vector of position t to the embedding of
    the last token. Information from other positions must come through the convolutions. As translations may be longer
    than sources, the encoder pads each source enough for nearly all translations (§3.2); beyond that the decoder reads
    zeros.

    The paper's model reads and writes characters; this one takes any tokens, with one embedding for source, target and
    output.
    """

    def __init__(self, config: ByteNetConfig):
        super().__init__(config, config.d_model, config.dropout)
        self.encoder = DilatedStack(config, config.encoder_sets, config.encoder_kernel, causal=False)
        self.decoder = DilatedStack(config, config.decoder_sets, config.decoder_kernel, causal=True)
        self.last = nn.Linear(config.d_model, config.d_model)
        self.norm = LayerNorm(config.d_model)

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch unfolded d_model"]:
        """Return the memory: one vector for each position of the unfolded source, then zeros.

        Raises:
            ValueError: when there are no source tokens, or padding precedes one.
        """
        real = real_source(input_ids, attention_mask)
        length = input_ids.shape[1]
        input_ids = F.pad(input_ids, (0, self.config.unfolded(length) - length), value=self.config.pad_id)
        if real is not None:
            check_right(real)
            lengths, position = real.sum(dim=-1), torch.arange(input_ids.shape[1], device=real.device)
            input_ids = input_ids.masked_fill(position >= lengths[:, None], self.config.pad_id)
            ends = torch.tensor([self.config.unfolded(n) for n in range(length + 1)], device=real.device)
            real = position < ends[lengths][:, None]  # (batch, unfolded)
        memory = self.encoder(self.embed(input_ids), real)
        return memory if real is None else memory.masked_fill(~real[..., None], 0.0)

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch unfolded d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return one vector for each target token, as `TranslationModel.decode` says.

        Args:
            attention_mask: ignored, since the memory is zero after the source.
        """
        check_batch(decoder_input_ids, memory)
        past, new = cache.length if cache else 0, decoder_input_ids.shape[1]
        under = memory[:, past : past + new]  # (batch, at most new, d_model)
        x = self.embed(decoder_input_ids) + F.pad(under, (0, 0, 0, new - under.shape[1]))
        return F.relu(self.norm(self.last(self.decoder(x, cache=cache))))


def check_right(real: Bool[Tensor, "batch source"]) -> None:
    """Refuse padding before a token; on the CPU only, where the check needs no synchronization.

    Raises:
        ValueError: naming the row.
    """
    if real.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = (real[:, 1:] & ~real[:, :-1]).any(dim=-1)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(f"attention_mask has padding before a token in row {row}; ByteNet wants it on the right")
