"""The stack of blocks, with its cache and masks, that all Transformers share."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import (
    BlockCache,
    DecoderCache,
    LayerContext,
    Mask,
    MaskLike,
)
from txlib.attention.config import AnyConfig, Config
from txlib.attention.masks.shared import sharing
from txlib.layers import BlockConfig, TransformerBlock


@dataclass(frozen=True)
class ModelConfig(Config):
    """The base of all models' configs."""

    if TYPE_CHECKING:  # a field of each subclass whose model has `TransformerBlock`s

        @property
        def block(self) -> BlockConfig: ...

    @classmethod
    def checked(cls: type[AnyConfig], config: Any) -> AnyConfig:
        """Return the config, if it is one of this class.

        Raises:
            TypeError: for anything else, such as a dict.
        """
        if not isinstance(config, cls):
            examples = {"block": "BlockConfig.of_sizes(d_model, heads, d_ff, …)"}
            needed = (field.name for field in fields(cls) if field.default is MISSING)
            raise TypeError(
                f"config={config!r:.80} is no {cls.__name__}; write {cls.__name__}("
                + "".join(f"{name}={examples.get(name, '…')}, " for name in needed)
                + "…)"
            )
        return config


class Stack(nn.Module):
    """Blocks one after another; with pre-norm, a last norm after them.

    Args:
        cross: whether each block also reads a memory.
        causal: whether no position ever sees a later one.
        max_length: longest sequence; None for no limit.
    """

    def __init__(
        self,
        config: BlockConfig,
        layers: int,
        *,
        cross: bool = False,
        causal: bool = False,
        max_length: int | None = None,
    ):
        super().__init__()
        shared: dict[Any, Any] = {}
        self.layers: Any = nn.ModuleList(
            TransformerBlock(config, cross=cross, layer=LayerContext(number, layers, max_length, causal, shared=shared))
            for number in range(layers)
        )
        own_masks: dict[Mask, Mask] = {}  # equal masks become one object, so that `sharing` recognizes them
        module: Any
        for module in self.layers.modules():
            if isinstance(getattr(module, "mask", None), Mask):
                module.mask = own_masks.setdefault(module.mask, module.mask)
        self.own_masks = tuple(own_masks)
        self.shares_bias = config.position is not None and config.position.shared
        self.norm = config.norm.make_last(config.d_model)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: MaskLike = None,
        memory: Float[Tensor, "batch memory_length d_model"] | None = None,
        memory_mask: MaskLike = None,
        cache: DecoderCache | None = None,
        global_attention_mask: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the last block's output; arguments as in `TransformerBlock`."""
        bias = self.layers[0].self_attention.position_bias if self.shares_bias else None
        caches: Sequence[BlockCache | None] = cache or [None] * len(self.layers)
        with sharing(mask, memory_mask, global_attention_mask, *self.own_masks):
            for layer, layer_cache in zip(self.layers, caches, strict=True):
                x = layer(x, mask, memory, memory_mask, layer_cache, bias, global_attention_mask)
        return self.norm(x)

    def new_cache(self, capacity: int | None = None) -> DecoderCache:
        """Return an empty cache for each block; see `TransformerBlock.new_cache`."""
        return DecoderCache(layer.new_cache(capacity) for layer in self.layers)
