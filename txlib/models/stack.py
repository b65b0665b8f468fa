"""What encoder–decoder, encoder and decoder share: a stack of blocks, its cache and masks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.attention.masks import MaskLike
from txlib.layers import BlockCache, BlockConfig, TransformerBlock
from txlib.layers.norm import make_norm


@dataclass(frozen=True)
class ModelConfig:
    """A model's config: it holds the config of its blocks, and can be written down."""

    def to_dict(self) -> dict:
        """Plain numbers and strings, for JSON.

        Raises:
            ValueError: when the block holds a mechanism, which is code and cannot be written down.
        """
        if self.block.mechanism is not None:
            raise ValueError("a config with mechanism=… cannot be saved: save the weights, rebuild the config in code")
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "ModelConfig":
        """The config that `to_dict` wrote. JSON turns tuples into lists; they are turned back."""
        values = {name: as_tuple(value) for name, value in values.items()}
        return cls(**{**values, "block": BlockConfig.from_dict(values["block"])})


def as_tuple(value: Any) -> Any:
    """Lists as tuples, also inside others."""
    return tuple(as_tuple(each) for each in value) if isinstance(value, list) else value


class Stack(nn.Module):
    """Blocks one after another; with pre-norm, a last norm behind them."""

    def __init__(self, config: BlockConfig, layers: int, *, cross: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(TransformerBlock(config, cross=cross) for _ in range(layers))
        self.norm = (
            make_norm(config.norm, config.d_model, eps=config.norm_eps, bias=config.bias)
            if config.norm_first
            else nn.Identity()
        )

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: MaskLike = None,
        memory: Float[Tensor, "batch memory_length d_model"] | None = None,
        memory_mask: MaskLike = None,
        cache: "list[BlockCache] | None" = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """See `TransformerBlock`."""
        for layer, layer_cache in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            x = layer(x, mask, memory, memory_mask, layer_cache)
        return self.norm(x)


class DecoderCache(list):
    """One `BlockCache` a decoder block."""

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return len(self[0].self_attention)

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        for block in self:
            block.reorder(rows)


def source_mask(
    attention_mask: Int[Tensor, "batch source"] | None, shape: Sequence[int]
) -> Bool[Tensor, "batch 1 1 source"] | None:
    """The field's 1 = keep as a mask for scores; None when there is nothing to hide, which is faster.

    Args:
        shape: (batch, source) of what is to be masked.

    Raises:
        ValueError: when the mask has another shape.
    """
    if attention_mask is not None and attention_mask.shape != shape:
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)}, the source {tuple(shape)}")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask.bool()[:, None, None, :]
