"""Perceivers: a few latents read an array of any length and kind (Jaegle et al. 2021, 2022).

Attention over n inputs costs n². Here m learned vectors, the latents, are the queries: a cross-attention costs n · m,
and each layer after it m², independent of n. `Perceiver` reads its input repeatedly and classifies the mean of the
latents; `PerceiverIO` reads it once and returns one vector for each output query.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import LayerContext
from txlib.attention.masks.shared import sharing
from txlib.labels import IGNORE_INDEX
from txlib.layers import (
    BlockConfig,
    Convolution,
    CrossBlock,
    LearnedPosition,
    NoPosition,
    TokenEmbedding,
    TransformerBlock,
)
from txlib.layers.convolution import check_kernel
from txlib.models.encoder import HeadOutput
from txlib.models.inputs import check_ids, real_tokens
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, LossOutput, cross_entropy, output
from txlib.models.perceiver_inputs import Modalities, pixel_array
from txlib.models.stack import ModelConfig


@dataclass(frozen=True, kw_only=True)
class LatentConfig(ModelConfig):
    """Fields that both Perceivers' configs share.

    Args:
        block: config of each layer of the latents; d_model is the width of a latent.
        d_input: width of the array that is read.
        latents: number of latents.
        layers: number of layers in one block of layers.
        repeats: number of such blocks.
        cross: config of a cross-attention; None: as `block`, with one head as wide as the array (Jaegle et al.
            2021, §4.1; the width as in the released code).
        init_std: standard deviation of the initial latents and output queries (Jaegle et al. 2021, appendix C).
    """

    block: BlockConfig
    d_input: int
    latents: int
    layers: int = 6
    repeats: int = 1
    cross: BlockConfig | None = None
    init_std: float = 0.02

    def __post_init__(self):
        self.check_at_least_one("d_input", "latents", "layers", "repeats")
        if not isinstance(self.block.position, NoPosition | None):
            raise ValueError(
                f"position={self.block.position.name!r} acts on the latents, which have no order; add positions to the "
                "input: fourier_features or LearnedPosition"
            )
        if self.reading.d_model != self.block.d_model:
            raise ValueError(
                f"the cross-attention writes into the latents: cross.d_model={self.reading.d_model} must be "
                f"block.d_model={self.block.d_model}"
            )

    @property
    def reading(self) -> BlockConfig:
        """Config of a cross-attention."""
        if self.cross is not None:
            return self.cross
        return self.block.replace(heads=1, kv_heads=None, head_dim=self.d_input, value_dim=None)


@dataclass(frozen=True, kw_only=True)
class PerceiverConfig(LatentConfig):
    """Sizes of a Perceiver.

    Args:
        labels: number of classes.
        distinct_cross, distinct_blocks: number of cross-attentions and blocks of layers with separate weights; later
            ones share those of the last. Sharing the first cross-attention as well made training unstable (Jaegle et
            al. 2021, §4.1).
    """

    labels: int
    repeats: int = 8
    distinct_cross: int = 2
    distinct_blocks: int = 1

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("labels", "distinct_cross", "distinct_blocks")


@dataclass(frozen=True, kw_only=True)
class PerceiverIOConfig(LatentConfig):
    """Sizes of a Perceiver IO.

    Args:
        decoder: config of the cross-attention of the output queries; d_model is the width of a query.
        query_residual: whether the attention's output is added to the query.
        outputs: width of each answer, by a last linear layer; None: the query's width, without that layer.
    """

    decoder: BlockConfig
    query_residual: bool = False
    outputs: int | None = None

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("outputs")


@output
class PerceiverOutput(LossOutput[Loss]):
    """logits: (batch, labels), or one vector for each output query; last_hidden_state: the latents, (batch, latents,
    d_model).
    """

    logits: Float[Tensor, "batch *query outputs"]
    last_hidden_state: Float[Tensor, "batch latents d_model"]


class LatentEncoder(nn.Module):
    """Latents that read an array: cross-attentions, and blocks of layers among the latents.

    Args:
        cross_attends: number of blocks that begin with a cross-attention to the array.
        distinct_cross, distinct_blocks: see `PerceiverConfig`.
    """

    __call__: Callable[..., Tensor]  # nn.Module's own says Any

    def __init__(
        self, config: LatentConfig, *, cross_attends: int = 1, distinct_cross: int = 1, distinct_blocks: int = 1
    ):
        super().__init__()
        self.config, self.cross_attends = config, cross_attends
        self.latents = nn.Parameter(torch.randn(config.latents, config.block.d_model) * config.init_std)
        self.cross = nn.ModuleList(
            CrossBlock(config.reading, config.d_input) for _ in range(min(distinct_cross, cross_attends))
        )
        self.layers = nn.ModuleList(
            TransformerBlock(config.block, layer=LayerContext(number, config.layers, config.latents))
            for _ in range(min(distinct_blocks, config.repeats))
            for number in range(config.layers)
        )

    def forward(
        self,
        inputs: Float[Tensor, "batch length d_input"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch latents d_model"]:
        """Return the latents after reading the inputs.

        Args:
            attention_mask: 1 = real, 0 = padding.
        """
        if inputs.shape[-1] != self.config.d_input:
            raise ValueError(
                f"the inputs have width {inputs.shape[-1]}, this model reads d_input={self.config.d_input}"
            )
        mask = real_tokens(attention_mask, inputs.shape[:2])
        x = self.latents.expand(inputs.shape[0], -1, -1)  # (batch, latents, d_model)
        with sharing(mask):
            for index in range(self.config.repeats):
                if index < self.cross_attends:
                    x = self.cross[min(index, len(self.cross) - 1)](x, inputs, mask)
                first = min(index * self.config.layers, len(self.layers) - self.config.layers)
                for layer in self.layers[first : first + self.config.layers]:
                    x = layer(x)
        return x


class Perceiver(Model, config=PerceiverConfig):
    """Repeated cross-attention and self-attention; logits are the mean latent, projected (Jaegle et al. 2021, §3)."""

    __call__: LabeledCall[PerceiverOutput[Tensor], PerceiverOutput]

    def __init__(self, config: PerceiverConfig):
        super().__init__()
        self.config = PerceiverConfig.checked(config)
        self.encoder = LatentEncoder(
            config,
            cross_attends=config.repeats,
            distinct_cross=config.distinct_cross,
            distinct_blocks=config.distinct_blocks,
        )
        self.classifier = nn.Linear(config.block.d_model, config.labels)

    def forward(
        self,
        inputs: Float[Tensor, "batch length d_input"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch"] | None = None,
    ) -> PerceiverOutput:
        """Return logits of the array, which must include the positions of its elements.

        Args:
            attention_mask: 1 = real, 0 = padding.
        """
        latents = self.encoder(inputs, attention_mask)
        logits = self.classifier(latents.mean(dim=1))
        loss = None if labels is None else cross_entropy(logits, labels)
        return PerceiverOutput(logits=logits, last_hidden_state=latents, loss=loss)


class PerceiverIO(Model, config=PerceiverIOConfig):
    """Reads its input once; each output query then reads the latents independently (Jaegle et al. 2022, §3)."""

    __call__: Callable[..., PerceiverOutput]  # nn.Module's own says Any

    def __init__(self, config: PerceiverIOConfig):
        super().__init__()
        self.config = PerceiverIOConfig.checked(config)
        self.encoder = LatentEncoder(config)
        self.decoder = CrossBlock(config.decoder, config.block.d_model, query_residual=config.query_residual)
        self.output = None if config.outputs is None else nn.Linear(config.decoder.d_model, config.outputs)

    def forward(
        self,
        inputs: Float[Tensor, "batch length d_input"],
        queries: Float[Tensor, "#batch query d_query"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
    ) -> PerceiverOutput:
        """Return one vector for each query.

        Args:
            queries: such as positions to predict; one set for the batch, or one for each example.
            attention_mask: of the inputs: 1 = real, 0 = padding.
        """
        latents = self.encoder(inputs, attention_mask)
        return PerceiverOutput(logits=self.decode(latents, queries), last_hidden_state=latents)

    def decode(
        self, latents: Float[Tensor, "batch latents d_model"], queries: Float[Tensor, "#batch query d_query"]
    ) -> Float[Tensor, "batch query outputs"]:
        """Return the outputs for these queries, which may come in parts: no query sees another."""
        width = self.config.decoder.d_model
        if queries.shape[-1] != width:
            raise ValueError(
                f"the output queries have width {queries.shape[-1]}, this model's have decoder.d_model={width}"
            )
        out = self.decoder(queries.expand(latents.shape[0], -1, -1), latents)
        return out if self.output is None else self.output(out)


@dataclass(frozen=True, kw_only=True)
class PerceiverLMConfig(PerceiverIOConfig):
    """Sizes of a masked language model on bytes. Queries are as wide as the embedding, which is also the output matrix.

    Args:
        vocab_size: the bytes, after six special tokens; see `byte_tokenizer`.
        max_length: longest input.
        pad_id: the token that pads short texts.
    """

    vocab_size: int = 262
    max_length: int = 2048
    pad_id: int = 0

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("vocab_size", "max_length")
        if self.decoder.d_model != self.d_input or self.outputs is not None:
            raise ValueError(
                "the embedding makes the logits of what the queries read: decoder.d_model must be d_input, and outputs "
                f"None, got {self.decoder.d_model}, {self.d_input} and {self.outputs}"
            )


class PerceiverForMaskedLM(Model, config=PerceiverLMConfig):
    """Predict the masked bytes, with one query for each position (Jaegle et al. 2022, §4.1)."""

    __call__: LabeledCall[HeadOutput[Tensor], HeadOutput]

    def __init__(self, config: PerceiverLMConfig):
        super().__init__()
        self.config = PerceiverLMConfig.checked(config)
        self.embedding = TokenEmbedding(config.vocab_size, config.d_input, scaled=False)
        self.position = LearnedPosition(config.max_length, config.d_input)
        self.base = PerceiverIO(config)
        self.queries = nn.Parameter(torch.randn(config.max_length, config.d_input) * config.init_std)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch length"] | None = None,
    ) -> HeadOutput:
        """Return logits for each position of the input: (batch, length, vocab_size).

        `transformers` returns all max_length positions, whatever the length of the input; these are the first ones.

        Args:
            attention_mask: 1 = a real token, 0 = padding.
            labels: the original token, and -100 where none is to be predicted.

        Raises:
            ValueError: when the input is longer than max_length.
        """
        check_ids(input_ids, max_length=self.config.max_length)
        inputs = self.position(self.embedding(input_ids))  # (batch, length, d_input)
        answers = self.base(inputs, self.queries[None, : input_ids.shape[1]], attention_mask).logits
        logits = F.linear(answers, self.embedding.weight, self.bias)
        return HeadOutput(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))


@dataclass(frozen=True, kw_only=True)
class PerceiverClassifierConfig(PerceiverIOConfig):
    """Sizes of a model that reads images, bytes, or both as one array, and answers one or more questions about it.

    Args:
        labels: number of classes of each question; each has a separate output query.
        vocab_size, max_length: of bytes, see `PerceiverLMConfig`; None: no bytes.
        d_bytes: width of a byte's embedding, to which its learned position is added.
        byte_kernel: of a convolution over the bytes, odd; with it each byte carries its neighbors, so that one
            cross-attention can read words and not only letters; 1: no convolution.
        image_size: points along each dimension; None: no images.
        channels, bands: of an image, and of its positions' `fourier_features`.
        pad_id: the token that pads short texts.
    """

    labels: tuple[int, ...]
    vocab_size: int | None = None
    max_length: int = 2048
    d_bytes: int = 64
    byte_kernel: int = 1
    image_size: tuple[int, ...] | None = None
    channels: int = 1
    bands: int = 8
    pad_id: int = 0

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("vocab_size", "max_length", "d_bytes", "channels", "bands")
        check_kernel("byte_kernel", self.byte_kernel, causal=False)
        if not self.labels or min(self.labels) < 1:
            raise ValueError(f"labels={self.labels} must be the number of classes of each question, such as (10, 2)")
        if self.outputs is not None:
            raise ValueError(f"outputs={self.outputs} with labels={self.labels}: leave it out")
        if not self.widths:
            raise ValueError("a classifier reads bytes, images or both: set vocab_size, image_size or both")

    @property
    def widths(self) -> dict[str, int]:
        """Width of each modality's array."""
        widths = {}
        if self.image_size is not None:
            widths["pixels"] = self.channels + len(self.image_size) * (2 * self.bands + 1)
        if self.vocab_size is not None:
            widths["bytes"] = self.d_bytes
        return widths


@output
class AnswersOutput(LossOutput[Loss]):
    """logits: (batch, labels) of each question."""

    logits: tuple[Float[Tensor, "batch _"], ...]


class PerceiverClassifier(Model, config=PerceiverClassifierConfig):
    """One model for images, bytes, or both: the inputs are one array, and each question is an output query."""

    __call__: LabeledCall[AnswersOutput[Tensor], AnswersOutput]

    def __init__(self, config: PerceiverClassifierConfig):
        super().__init__()
        self.config = PerceiverClassifierConfig.checked(config)
        self.modalities = Modalities(config.widths, config.d_input, init_std=config.init_std)
        if config.vocab_size is not None:
            self.embedding = TokenEmbedding(config.vocab_size, config.d_bytes, scaled=False)
            self.position = LearnedPosition(config.max_length, config.d_bytes)
            wide = config.byte_kernel > 1
            self.byte_convolution = Convolution(config.d_bytes, config.d_bytes, config.byte_kernel) if wide else None
        self.base = PerceiverIO(config)
        width = config.decoder.d_model
        self.queries = nn.Parameter(torch.randn(len(config.labels), width) * config.init_std)
        self.classifiers = nn.ModuleList(nn.Linear(width, number) for number in config.labels)

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels *size"] | None = None,
        input_ids: Int[Tensor, "batch length"] | None = None,
        attention_mask: Int[Tensor, "batch length"] | None = None,
        labels: Int[Tensor, "batch questions"] | None = None,
    ) -> AnswersOutput:
        """Return logits for all questions.

        Args:
            pixel_values, input_ids: either, or both.
            attention_mask: of the bytes: 1 = a real one, 0 = padding.
            labels: of each question, -100 for none. The loss is the mean over the labels that count.
        """
        inputs, mask = self.array(pixel_values, input_ids, attention_mask)
        answers = self.base(inputs, self.queries[None], mask).logits  # (batch, questions, d_query)
        logits = tuple(classifier(answers[:, index]) for index, classifier in enumerate(self.classifiers))
        if labels is None:
            return AnswersOutput(logits=logits)
        losses = [cross_entropy(scores, labels[:, index], "sum") for index, scores in enumerate(logits)]
        return AnswersOutput(logits=logits, loss=torch.stack(losses).sum() / (labels != IGNORE_INDEX).sum())

    def array(
        self,
        pixel_values: Float[Tensor, "batch channels *size"] | None,
        input_ids: Int[Tensor, "batch length"] | None,
        attention_mask: Int[Tensor, "batch length"] | None,
    ) -> tuple[Float[Tensor, "batch points d_input"], Int[Tensor, "batch points"] | None]:
        """Return the inputs as one array, and its attention mask."""
        config, arrays = self.config, {}
        if pixel_values is not None:
            expected = (config.channels, *(config.image_size or ()))
            if config.image_size is None or pixel_values.shape[1:] != expected:
                wanted = "image_size=None" if config.image_size is None else f"(channels, *image_size)={expected}"
                raise ValueError(f"pixel_values has shape {tuple(pixel_values.shape)}, and this model has {wanted}")
            arrays["pixels"] = pixel_array(pixel_values, config.bands)
        if input_ids is not None:
            if config.vocab_size is None:
                raise ValueError("input_ids are given, and this model reads no bytes: vocab_size=None")
            check_ids(input_ids, max_length=config.max_length)
            embedded = self.embedding(input_ids)  # (batch, length, d_bytes)
            if self.byte_convolution is not None:
                embedded = self.byte_convolution(embedded, None if attention_mask is None else attention_mask.bool())
            arrays["bytes"] = self.position(embedded)
        inputs = self.modalities(arrays)
        if attention_mask is None or input_ids is None:
            return inputs, None
        real_tokens(attention_mask, input_ids.shape)  # refuses another shape
        real = attention_mask.new_ones(inputs.shape[:2])
        real[:, real.shape[1] - attention_mask.shape[1] :] = attention_mask
        return inputs, real
