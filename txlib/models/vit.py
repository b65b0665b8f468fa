"""The Vision Transformer: the encoder's blocks on the patches of a picture (Dosovitskiy et al. 2021)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import Mask
from txlib.layers import BlockConfig
from txlib.layers.feedforward import dropout
from txlib.layers.patches import Grid, PatchEmbedding
from txlib.layers.position_config import POSITIONS, name_of
from txlib.models.encoder import EncoderOutput
from txlib.models.inputs import together
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, LossOutput, cross_entropy, output
from txlib.models.stack import ModelConfig, Stack


@dataclass(frozen=True)
class ViTConfig(ModelConfig):
    """Sizes of a Vision Transformer.

    Args:
        image_size: pixels of a side, or (height, width).
        patch_size: pixels of a patch's side; a patch is a token.
        block: config of each block. Its position is that of a patch in the grid: "learned", or by row and column
            "sinusoidal", "sinusoidal_concatenated", "rotary", "rotary_half" (Heo et al. 2024 take
            `RotaryConfig(base=100)`), or "none".
        layers: number of blocks.
        channels: of a picture: 3 for color, 1 for gray.
        pool: the vector of the whole picture: "class", a learned token before the patches, as in BERT, or
            "mean", of all patches, without such a token (Dosovitskiy et al. 2021, §3.1 and appendix D.3; Zhai et al.
            2022, §3.2).
        distillation: whether to add a second token, which learns a teacher's labels (Touvron et al. 2021, §4).
    """

    image_size: int | tuple[int, int]
    patch_size: int
    block: BlockConfig
    layers: int = 12
    channels: int = 3
    pool: Literal["class", "mean"] = "class"
    distillation: bool = False

    def __post_init__(self):
        self.check_at_least_one("patch_size", "layers", "channels")
        if self.distillation and self.pool != "class":
            raise ValueError(f"distillation adds a token to the class token: pool='class', not {self.pool!r}")
        if self.block.position is None or not self.block.position.on_grid:
            names = (word for word, position in POSITIONS.items() if position.on_grid)
            raise ValueError(
                f"position={name_of(self.block.position)!r} does not know rows and columns; choose one of "
                f"{', '.join(names)}"
            )
        self.grid_of(*self.sides)

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.image_size if isinstance(self.image_size, tuple) else (self.image_size, self.image_size)

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches."""
        return self.grid_of(*self.sides)

    @property
    def special(self) -> int:
        """Tokens before the patches."""
        return (self.pool == "class") + self.distillation

    def grid_of(self, height: int, width: int) -> Grid:
        """Return rows and columns of a picture's patches.

        Raises:
            ValueError: when the patch size does not divide height and width.
        """
        for name, size in ("height", height), ("width", width):
            if size < 1 or size % self.patch_size:
                near = max(1, round(size / self.patch_size)) * self.patch_size
                raise ValueError(
                    f"{name}={size} is not divisible by patch_size={self.patch_size}; choose e.g. {near}, or cut or "
                    "pad the picture"
                )
        return height // self.patch_size, width // self.patch_size


@output
class ImageOutput(LossOutput[Loss]):
    """logits: (batch, labels); last_hidden_state: (batch, length, d_model), special tokens first.

    distillation_logits: of the distillation token, if there is one; `logits` is then the mean of both tokens'.
    """

    logits: Float[Tensor, "batch labels"]
    last_hidden_state: Float[Tensor, "batch length d_model"]
    distillation_logits: Float[Tensor, "batch labels"] | None = None


class ViT(Model, config=ViTConfig):
    """The encoder of pictures: a class token and the patches, with positions, pass through the blocks (§3.1).

    Args:
        pooler: whether to also make one vector of the picture, by a tanh layer on its summary.
    """

    __call__: Callable[..., EncoderOutput]  # nn.Module's own says Any

    def __init__(self, config: ViTConfig, *, pooler: bool = True):
        super().__init__()
        self.config = ViTConfig.checked(config)
        block, special = config.block, config.special
        self.patches = PatchEmbedding(config.channels, config.patch_size, block.d_model)
        self.special = nn.Parameter(torch.zeros(1, block.d_model)) if config.pool == "class" else None
        self.distillation_token = nn.Parameter(torch.zeros(1, block.d_model)) if config.distillation else None
        position: Any = block.position
        self.position = position.make_grid_embedding(config.grid, special, block.d_model)
        self.rotary = position.make_grid_rotary(config.grid, special, block.head_dim)
        self.encoder = Stack(block, config.layers, max_length=special + math.prod(config.grid))
        for layer in self.encoder.layers:
            layer.self_attention.rotary = self.rotary
        self.pooler = nn.Linear(block.d_model, block.d_model) if pooler else None

    def arguments(self) -> dict[str, Any]:
        return {"pooler": self.pooler is not None}

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        interpolate_pos_encoding: bool = False,
        mask: Mask | None = None,
    ) -> EncoderOutput:
        """Return the vectors of all tokens.

        Args:
            pixel_values: channels first; scaled as in training, often to mean 0.
            interpolate_pos_encoding: accept pictures of another size, with interpolated positions (§3.2).
            mask: which positions may see which; the special tokens come first, then patches row by row.

        Raises:
            ValueError: for pictures that do not fit the config.
        """
        grid = self.check(pixel_values, interpolate_pos_encoding)
        x = self.patches(pixel_values)  # (batch, patches, d_model)
        special = [token for token in (self.special, self.distillation_token) if token is not None]
        x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in special), x], dim=1)  # (batch, length, d_model)
        if self.position is not None:
            x = self.position(x, grid)
        if self.rotary is not None:
            self.rotary.now = grid
        hidden = self.encoder(dropout(x, self.config.block.dropout, self.training), together(mask))
        pooled = None if self.pooler is None else self.pooler(self.summary(hidden)).tanh()
        return EncoderOutput(last_hidden_state=hidden, pooler_output=pooled)

    def summary(self, hidden: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch d_model"]:
        """Return the vector of the whole picture."""
        return hidden[:, 0] if self.config.pool == "class" else hidden.mean(dim=1)

    def check(self, pixel_values: Tensor, interpolate_pos_encoding: bool) -> Grid:
        """Return the grid of patches of these pictures.

        Raises:
            ValueError: when they do not fit the model.
        """
        shape, channels = tuple(pixel_values.shape), self.config.channels
        expected = f"pixel_values have shape {shape}, expected (batch, channels={channels}, height, width)"
        if len(shape) != 4:
            remedy = "; one picture is a batch of one: pixel_values[None]" if len(shape) == 3 else ""
            raise ValueError(expected + remedy)
        if shape[1] != channels:
            last = "; channels come first: pixel_values.permute(0, 3, 1, 2)" if shape[3] == channels else ""
            raise ValueError(expected + last)
        if not pixel_values.is_floating_point():
            raise ValueError(f"pixel_values are {pixel_values.dtype}; make them floats, e.g. pixel_values / 255")
        if shape[2:] != self.config.sides and not interpolate_pos_encoding:
            height, width = self.config.sides
            raise ValueError(
                f"pictures have {shape[2]} × {shape[3]} pixels, the model takes {height} × {width}; resize them, or "
                "say interpolate_pos_encoding=True"
            )
        return self.config.grid_of(*shape[2:])


class ViTForImageClassification(Model, config=ViTConfig):
    """A label for a picture: one linear layer, which starts at zero (§3.2), on the picture's vector.

    Args:
        labels: number of classes.
        base: a ViT to build on, e.g. a pre-trained one; None for a new one.
    """

    __call__: LabeledCall[ImageOutput[Tensor], ImageOutput]

    def __init__(self, config: ViTConfig, labels: int = 2, base: ViT | None = None):
        super().__init__()
        self.config = ViTConfig.checked(config)
        self.base = ViT(config, pooler=False) if base is None else base
        self.classifier = self.zero_linear(labels)

    def arguments(self) -> dict[str, Any]:
        return {"labels": self.classifier.out_features}

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, "batch"] | None = None,
        interpolate_pos_encoding: bool = False,
        mask: Mask | None = None,
    ) -> ImageOutput:
        """Return logits, and with labels their loss; other arguments as in `ViT`."""
        hidden = self.base(pixel_values, interpolate_pos_encoding, mask).last_hidden_state
        logits = self.classifier(self.base.summary(hidden))
        loss: Any = None if labels is None else cross_entropy(logits, labels)
        return ImageOutput(logits=logits, last_hidden_state=hidden, loss=loss)

    def zero_linear(self, labels: int) -> nn.Linear:
        """Return a linear layer of zeros."""
        layer = nn.Linear(self.config.block.d_model, labels)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer


class ViTForImageClassificationWithTeacher(ViTForImageClassification, config=ViTConfig):
    """Two such layers, on the class token and on the distillation token, which learn from the label and from a
    teacher's label; their logits are averaged (Touvron et al. 2021, §4).

    Raises:
        ValueError: when the config has no distillation token.
    """

    def __init__(self, config: ViTConfig, labels: int = 2, base: ViT | None = None):
        super().__init__(config, labels, base)
        if not config.distillation:
            raise ValueError("a teacher's labels need a token to learn from them: ViTConfig(distillation=True)")
        self.distillation_classifier = self.zero_linear(labels)

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, "batch"] | None = None,
        interpolate_pos_encoding: bool = False,
        mask: Mask | None = None,
        teacher_labels: Int[Tensor, "batch"] | None = None,
    ) -> ImageOutput:
        """Return logits, and with labels their loss; other arguments as in `ViT`.

        Args:
            teacher_labels: a teacher's labels of these pictures, for the distillation token; None: the labels
                themselves.
        """
        out = super().forward(pixel_values, labels, interpolate_pos_encoding, mask)
        distilled = self.distillation_classifier(out.last_hidden_state[:, 1])
        loss: Any = out.loss
        if labels is not None:
            loss = (loss + cross_entropy(distilled, labels if teacher_labels is None else teacher_labels)) / 2
        logits = (out.logits + distilled) / 2
        return ImageOutput(
            logits=logits, last_hidden_state=out.last_hidden_state, loss=loss, distillation_logits=distilled
        )
