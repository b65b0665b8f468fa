"""A residual network for images, of convolutions, local attention, or both, with non-local blocks between stages
(He et al. 2016; Ramachandran et al. 2019; Wang et al. 2018), to compare the Vision Transformer with.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention.grid import LocalAttention2d, NonLocalBlock, check_channels
from txlib.layers.convolution import check_kernel
from txlib.models.encoder import HeadOutput
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, cross_entropy
from txlib.models.stack import ModelConfig

Spatial = Literal["convolution", "attention"]


@dataclass(frozen=True)
class ConvNetConfig(ModelConfig):
    """Sizes of a residual network of bottlenecks; the defaults are for 28 × 28 gray pixels.

    For the same width w, local attention over neighborhoods of k × k is cheaper than a convolution where
    6 w > 2 k² + k: from w = 18 on for k = 7. The layers that halve an image are an exception: attention is computed at
    full size and then pooled.

    Args:
        labels: number of classes.
        channels: of the images: 1 for gray, 3 for color.
        widths: number of channels between a block's two 1 × 1 convolutions, for each stage. Stages from the second on
            begin by halving the image's sides.
        blocks: number of blocks in each stage.
        expansion: a block's input and output have this many times its width; 4 in ResNet-50.
        spatial: the layer between the 1 × 1 convolutions: "convolution" or "attention", for all stages or for each.
        kernel: of the convolutions, odd.
        neighborhood: k of local attention, odd.
        heads: of local attention.
        non_local: stages that a non-local block follows, counted from 0.
        form, subsample: see `NonLocalBlock`.
        stem: the first layers: "small", a 3 × 3 convolution, or "large", a 7 × 7 convolution and 3 × 3 pooling that
            halve the sides twice, as in ResNet-50.
    """

    labels: int = 10
    channels: int = 1
    widths: tuple[int, ...] = (16, 32, 64)
    blocks: tuple[int, ...] = (1, 1, 1)
    expansion: int = 2
    spatial: Spatial | tuple[Spatial, ...] = "convolution"
    kernel: int = 3
    neighborhood: int = 5
    heads: int = 4
    non_local: tuple[int, ...] = ()
    form: str = "embedded_gaussian"
    subsample: bool = False
    stem: Literal["small", "large"] = "small"

    def __post_init__(self):
        self.check_at_least_one("labels", "channels", "expansion", "heads")
        check_kernel("kernel", self.kernel, causal=False)
        check_kernel("neighborhood", self.neighborhood, causal=False)
        stages = len(self.widths)
        if not stages or len(self.blocks) != stages or len(self.layers) != stages:
            raise ValueError(
                f"widths={self.widths}, blocks={self.blocks} and spatial={self.spatial!r} must name one for each stage"
            )
        if min(*self.widths, *self.blocks) < 1:
            raise ValueError(f"widths={self.widths} and blocks={self.blocks} must be at least 1")
        if not set(self.non_local) <= set(range(stages)):
            raise ValueError(f"non_local={self.non_local} names a stage that is not there; there are 0 to {stages - 1}")

    @property
    def layers(self) -> tuple[str, ...]:
        """The spatial layer of each stage."""
        return (self.spatial,) * len(self.widths) if isinstance(self.spatial, str) else self.spatial

    def make_spatial(self, stage: int, stride: int) -> nn.Module:
        """Return the layer between two 1 × 1 convolutions."""
        width = self.widths[stage]
        if self.layers[stage] == "attention":
            return LocalAttention2d(width, width, self.neighborhood, heads=self.heads, stride=stride)
        return nn.Conv2d(width, width, self.kernel, stride, padding=self.kernel // 2, bias=False)


class Bottleneck(nn.Module):
    """x + up_proj(spatial(down_proj(x))), each with a batch norm (He et al. 2016, §4.1, figure 5).

    The spatial layer halves the image, as in today's ResNet-50; in the paper the first layer did.

    Args:
        channels: of the input.
        stage: index of the stage, from 0.
        stride: 2 halves the sides.
    """

    def __init__(self, config: ConvNetConfig, channels: int, stage: int, stride: int):
        super().__init__()
        width = config.widths[stage]
        wide = config.expansion * width
        self.down_proj, self.down_norm = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.spatial, self.spatial_norm = config.make_spatial(stage, stride), nn.BatchNorm2d(width)
        self.up_proj, self.up_norm = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        same = stride == 1 and channels == wide
        projection = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch wide rows columns"]:
        """Return the block's output, at least 0."""
        y = F.relu(self.down_norm(self.down_proj(x)))  # (batch, width of the stage, height, width)
        y = F.relu(self.spatial_norm(self.spatial(y)))  # (batch, width of the stage, rows, columns)
        return F.relu(self.shortcut(x) + self.up_norm(self.up_proj(y)))


class ConvNet(Model, config=ConvNetConfig):
    """A classifier of images: a stem, stages of bottlenecks, the mean over all pixels, one linear layer.

    `sizes.parameters(model)` counts its parameters, `sizes.forward_flops(model, pixel_values)` its operations.
    """

    __call__: LabeledCall[HeadOutput[Tensor], HeadOutput]

    def __init__(self, config: ConvNetConfig):
        super().__init__()
        self.config = ConvNetConfig.checked(config)
        channels = config.widths[0]
        large = config.stem == "large"
        stem = (7, 2, 3) if large else (3, 1, 1)  # kernel, stride, padding
        self.stem = nn.Conv2d(config.channels, channels, *stem, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.stages = nn.ModuleList()
        for stage, (width, blocks) in enumerate(zip(config.widths, config.blocks, strict=True)):
            layers: list[nn.Module] = []
            for number in range(blocks):
                layers.append(Bottleneck(config, channels, stage, stride=2 if stage and not number else 1))
                channels = config.expansion * width
            if stage in config.non_local:
                layers.append(NonLocalBlock(channels, config.form, subsample=config.subsample))
            self.stages.append(nn.Sequential(*layers))
        self.classifier = nn.Linear(channels, config.labels)

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, "batch"] | None = None,
    ) -> HeadOutput:
        """Return logits, and with labels their loss.

        Raises:
            ValueError: for images with other channels or dimensions.
        """
        logits = self.classifier(self.features(pixel_values).mean((2, 3)))  # (batch, labels)
        return HeadOutput(logits=logits, loss=None if labels is None else cross_entropy(logits, labels))

    def features(
        self, pixel_values: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch wide rows columns"]:
        """Return the last stage's output."""
        check_channels(pixel_values, self.config.channels, 2, "pixel_values")
        x = self.pool(F.relu(self.stem_norm(self.stem(pixel_values))))
        for stage in self.stages:
            x = stage(x)
        return x
