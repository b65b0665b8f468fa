"""The Transformer block: attention, then feed-forward, each with a residual connection."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import BlockCache, LayerContext, LongformerAttention, MaskLike, PositionBias, causal
from txlib.attention.cache import make_cache
from txlib.layers.config import BlockConfig
from txlib.layers.feedforward import dropout
from txlib.layers.initialize import initialize_block
from txlib.layers.mixer import make_attention, make_mixer


class TransformerBlock(nn.Module):
    """Self-attention, optional cross-attention and feed-forward, each with norm, dropout and residual connection.

    Pre-norm: x + sublayer(norm(x)). Post-norm: norm(x + sublayer(x)) (Vaswani et al. 2017, §3.1). Output: x +
    norm(sublayer(x)). Both: x + norm(sublayer(norm(x))).

    Args:
        cross: add a cross-attention sub-layer, as in a decoder that reads an encoder.
        layer: context of the layer: its number, the number of layers and more; its mechanism may use it.
    """

    def __init__(self, config: BlockConfig, *, cross: bool = False, layer: LayerContext | None = None):
        super().__init__()
        layer = LayerContext() if layer is None else layer
        self.config = config = config.of_layer(layer)
        self.self_attention: Any = make_mixer(config, layer)
        self.add_norms("self_attention")
        self.cross_attention: Any = None
        if cross:
            if config.parallel:
                raise ValueError("parallel=True has no place for cross-attention; leave it out of an encoder–decoder")
            self.cross_attention = make_attention(config, replace(layer, cross=True))
            self.add_norms("cross_attention")
        self.feed_forward: Any = config.ffn.make(config.d_model)
        if self.feed_forward is not None:
            self.add_norms("feed_forward")
        initialize_block(self, zero_output=config.zero_output)

    def add_norms(self, name: str) -> None:
        """Add the norms of the sub-layer of that name."""
        norm = self.config.norm
        if norm.placement != "output":
            self.add_module(f"{name}_norm", norm.make(self.config.d_model))
        if norm.placement in ("output", "both"):
            self.add_module(f"{name}_out_norm", norm.make(self.config.d_model))

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: MaskLike = None,
        memory: Float[Tensor, "batch memory_length d_model"] | None = None,
        memory_mask: MaskLike = None,
        cache: BlockCache | None = None,
        position_bias: PositionBias | None = None,
        global_attention_mask: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the block's output.

        Args:
            mask: which positions of x may see which.
            memory, memory_mask: what cross-attention reads, and which of it may be seen.
            cache: for decoding step by step; x then holds the new positions only.
            position_bias: the first block's, where all blocks share one.
            global_attention_mask: 1 = a global token, where the config has projections for them.
        """
        options: dict[str, Any] = {}
        if self.config.position is not None and self.config.position.shared:
            if position_bias is None and self.self_attention.position_bias is None:
                raise ValueError(
                    f"position={self.config.position.name!r}: the first block owns the position bias; hand its own to "
                    "the later blocks"
                )
            options["position_bias"] = position_bias
        if global_attention_mask is not None:
            options["global_attention_mask"] = self.check_global(global_attention_mask)
        self_cache, cross_cache = (cache.self_attention, cache.cross_attention) if cache else (None, None)
        offset = 0 if self_cache is None else self_cache.length

        def attend_self(y: Tensor) -> Tensor:
            return self.self_attention(y, mask=mask, cache=self_cache, **options)

        def attend_memory(y: Tensor) -> Tensor:
            return self.cross_attention(y, memory, memory_mask, cache=cross_cache, offset=offset)

        if self.config.parallel:
            attended = self.added(x, attend_self, "self_attention")
            return x + attended + self.added(x, self.feed_forward, "feed_forward")
        x = self.residual(x, attend_self, "self_attention")
        if self.cross_attention is not None:
            x = self.residual(x, attend_memory, "cross_attention")
        return x if self.feed_forward is None else self.residual(x, self.feed_forward, "feed_forward")

    def check_global(self, global_attention_mask: Tensor) -> Tensor:
        """Refuse global tokens in a block without projections for them.

        Raises:
            ValueError: with the remedy.
        """
        if not isinstance(self.self_attention, LongformerAttention):
            raise ValueError(
                "global_attention_mask needs a block with projections for global tokens: "
                "BlockConfig(mixer=LongformerConfig(), …); without them, add global_tokens([…]) to its mask"
            )
        return global_attention_mask

    @property
    def window(self) -> int | None:
        """Number of positions that causal self-attention looks back; None for no limit."""
        mask = getattr(self.self_attention, "mask", None)
        farthest = math.inf if mask is None else (mask & causal()).reach()[1]
        return None if farthest == math.inf else max(0, int(farthest))

    def new_cache(self, capacity: int | None = None) -> BlockCache:
        """Return an empty cache for a decoder's block.

        Args:
            capacity: longest text in tokens, to allocate its memory at once; None: the cache grows as needed.
        """
        modules: tuple[Any, ...] = self.self_attention, getattr(self.self_attention, "mechanism", None)
        for module in modules:
            if hasattr(module, "new_cache"):
                return BlockCache(module.new_cache())
        return BlockCache(make_cache(capacity, self.window))

    def residual(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor], name: str
    ) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the output of the sub-layer of that name."""
        x = x + self.added(x, sublayer, name)
        return getattr(self, f"{name}_norm")(x) if self.config.norm.placement == "post" else x

    def added(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor], name: str
    ) -> Float[Tensor, "batch length d_model"]:
        """Return what the sub-layer of that name adds to x."""
        config = self.config
        out = sublayer(getattr(self, f"{name}_norm")(x) if config.norm.placement in ("pre", "both") else x)
        if config.norm.placement in ("output", "both"):
            out = getattr(self, f"{name}_out_norm")(out)
        if config.residual_scale != 1.0:
            out = out * config.residual_scale
        return dropout(out, config.dropout, self.training)


class CrossBlock(nn.Module):
    """Cross-attention and feed-forward: x reads an array that may be of another width (Jaegle et al. 2021, §3.1).

    y = x + attention(norm(x), norm(memory)), out = y + feed_forward(norm(y)).

    Args:
        config: a pre-norm block; d_model is the width of x.
        memory_dim: width of the array.
        query_residual: whether y includes x; False where x is only a query (Jaegle et al. 2022, appendix).
    """

    def __init__(self, config: BlockConfig, memory_dim: int, *, query_residual: bool = True):
        super().__init__()
        if config.norm.placement != "pre":
            raise ValueError("a CrossBlock normalizes x and the memory before attention: set norm_first=True")
        if config.ffn.d_ff == 0:
            raise ValueError("a CrossBlock has a feed-forward network, got d_ff=0; give its width")
        if config.parallel or config.residual_scale != 1.0:
            raise ValueError("a CrossBlock adds one sub-layer after the other; leave out parallel and residual_scale")
        self.config, self.query_residual = config, query_residual
        self.attention = make_attention(config, LayerContext(cross=True), memory_dim)
        self.query_norm, self.memory_norm = config.norm.make(config.d_model), config.norm.make(memory_dim)
        self.feed_forward: Any = config.ffn.make(config.d_model)
        self.feed_forward_norm = config.norm.make(config.d_model)
        initialize_block(self, zero_output=config.zero_output)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch memory_length memory_dim"],
        memory_mask: MaskLike = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return x updated by the array.

        Args:
            memory_mask: which of the array may be seen.
        """
        out = self.attention(self.query_norm(x), self.memory_norm(memory), memory_mask)
        y = dropout(out, self.config.dropout, self.training)
        if self.query_residual:
            y = x + y
        return y + dropout(self.feed_forward(self.feed_forward_norm(y)), self.config.dropout, self.training)
