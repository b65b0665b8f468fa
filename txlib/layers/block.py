"""The block that every Transformer stacks: attend, then think, each with a residual connection."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import (
    AlibiBias,
    BlockCache,
    BucketBias,
    DenseAttention,
    DenseConfig,
    LayerContext,
    LongformerAttention,
    Mask,
    MaskLike,
    MechanismConfig,
    MultiHeadAttention,
    PositionBias,
    ShawAttention,
    SkewedBias,
    causal,
)
from txlib.attention.cache import make_cache
from txlib.attention.mechanism import check_dropout, restored, takes_bias
from txlib.attention.multihead import check_heads, check_rule
from txlib.layers.feedforward import FeedForward, dropout
from txlib.layers.moe import MixtureConfig, MixtureOfExperts
from txlib.layers.norm import make_norm
from txlib.layers.position import POSITIONS, ROTARY_LAYOUTS, Rotary, RotaryScaling

PER_LAYER = ("mechanism", "cross_mechanism", "mask", "ffn")  # may be one for all layers, or a tuple of one for each
LAST_IN_SUBLAYER = ("attention.output", "narrow")  # the layers whose output is added to the residual stream


@dataclass(frozen=True)
class BlockConfig:
    """What one block is made of. GPT-2, Llama, BERT and the original are values of it.

    Args:
        d_model, heads, d_ff: widths, as in the papers.
        d_head, d_value: width of a head, and of its values; d_model / heads, and d_head, unless given.
        norm_first: normalise the input of each sub-layer (pre-norm, Xiong et al. 2020) instead of its output
            (post-norm, the original).
        norm, norm_eps: "layer" or "rms", and what keeps its root from zero.
        activation: see `FeedForward`.
        bias: whether linear layers and layer norms have biases.
        dropout: on the output of each sub-layer (Vaswani et al. 2017, §5.4).
        attention_dropout: on attention weights, as in GPT-2 and BERT.
        attention_bias: the same for attention's four projections, where they differ from the rest; None: as `bias`.
        kv_heads, qk_norm: see `MultiHeadAttention`.
        attention_scale: what scores are multiplied by; 1 / √head_dim unless given.
        position: "none", "sinusoidal", "sinusoidal_concatenated" and "learned" are added by the model; "rotary",
            "rotary_half", "shaw", "skewed", "alibi" and "t5" act inside self-attention. A model asks for one of them.
        rotary_base, rotary_scaling: see `Rotary`.
        position_buckets, position_max_distance: of "t5", see `BucketBias`.
        mechanism: of self-attention: one for all layers, or one for each; None for dense attention.
        cross_mechanism: of cross-attention, likewise.
        mask: which positions may see which in self-attention, beyond what the model itself masks: one for all layers,
            or one for each.
        ffn: experts in place of the one feed-forward network, each of width d_ff: in all layers, or a tuple that says
            it for each; None for the one.
        position_distances: of "skewed": how many distances have a vector, see `SkewedBias`; None: all.
        global_projections: whether tokens that a call marks as global have projections of their own, as in Longformer:
            see `LongformerAttention`.
        zero_output: start the last matrix of each sub-layer at zero, so that a new block passes its input on.
    """

    d_model: int
    heads: int
    d_ff: int
    norm_first: bool = True
    norm: str = "layer"
    norm_eps: float = 1e-5
    activation: str = "relu"
    bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_bias: bool | None = None
    kv_heads: int | None = None
    qk_norm: bool = False
    position: str | None = None
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    mechanism: MechanismConfig | tuple[MechanismConfig | None, ...] | None = None
    ffn: MixtureConfig | tuple[MixtureConfig | None, ...] | None = None
    zero_output: bool = False
    cross_mechanism: MechanismConfig | tuple[MechanismConfig | None, ...] | None = None
    mask: Mask | tuple[Mask | None, ...] | None = None
    attention_scale: float | None = None
    position_buckets: int = 32
    position_max_distance: int = 128
    d_head: int | None = None
    position_distances: int | None = None
    global_projections: bool = False
    d_value: int | None = None

    def __post_init__(self):
        check_heads(self.d_model, self.heads, self.d_head, self.d_value)
        if self.position is not None and self.position not in POSITIONS:
            raise ValueError(f"position={self.position!r} is unknown; choose one of {', '.join(POSITIONS)}")
        if self.position == "shaw" and self.mechanism is not None:
            raise ValueError(
                "position='shaw' adds to the values too, and is itself a mechanism; choose it or mechanism=…, not both"
            )
        if self.position == "shaw" and self.d_value not in (None, self.head_dim):
            raise ValueError(
                f"position='shaw' adds the same vectors to keys and values, got d_value={self.d_value} beside heads of "
                f"{self.head_dim}; leave d_value out"
            )
        for name in PER_LAYER:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("mechanism", "cross_mechanism"):
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None and not isinstance(value, MechanismConfig):
                    raise TypeError(
                        f"{name}={value!r} is no MechanismConfig, which makes a mechanism for each layer; "
                        "give e.g. DenseConfig()"
                    )
        for mask in self.mask if isinstance(self.mask, tuple) else (self.mask,):
            check_rule(mask)
        for name in ("dropout", "attention_dropout"):
            check_dropout(getattr(self, name), name)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads if self.d_head is None else self.d_head

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.d_value is None else self.d_value

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON.

        Raises:
            ValueError: when a mask is a rule of one's own, which is code.
        """
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BlockConfig":
        """The config that `to_dict` wrote."""
        kinds = {
            "ffn": lambda value: MixtureConfig(**value),
            "rotary_scaling": lambda value: RotaryScaling(**value),
            "mechanism": MechanismConfig.from_dict,
            "cross_mechanism": MechanismConfig.from_dict,
            "mask": restored,
        }

        def read(name: str, value: Any) -> Any:
            if isinstance(value, list) and name in PER_LAYER:
                return tuple(read(name, each) for each in value)
            return value if value is None or name not in kinds else kinds[name](value)

        return cls(**{name: read(name, value) for name, value in values.items()})

    def of(self, layer: LayerContext) -> "BlockConfig":
        """What this layer is made of, where layers differ.

        Raises:
            ValueError: when there is one thing for each layer, but not for this one.
        """
        several = {name: getattr(self, name) for name in PER_LAYER if isinstance(getattr(self, name), tuple)}
        for name, each in several.items():
            if len(each) != layer.layers:
                raise ValueError(
                    f"{name} is given for {len(each)} layers of {layer.layers}; give one for all, or one each"
                )
        return replace(self, **{name: each[layer.number] for name, each in several.items()}) if several else self


def plain(value: Any) -> Any:
    """A config's value as JSON can hold it."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def make_attention(config: BlockConfig, layer: LayerContext, memory_dim: int | None = None) -> MultiHeadAttention:
    """The attention layer that a config describes. Masks and position biases are for self-attention only."""
    if config.position == "shaw" and not layer.cross:
        mechanism: nn.Module = ShawAttention(config.head_dim, dropout=config.attention_dropout)
    else:
        chosen: Any = config.cross_mechanism if layer.cross else config.mechanism
        mechanism = (DenseConfig() if chosen is None else chosen).make(config, layer)
        if config.position == "t5" and not layer.cross and not takes_bias(mechanism):
            raise ValueError(
                f"{type(mechanism).__name__} takes no position bias, which position='t5' adds to its scores"
            )
    kind: Any = MultiHeadAttention
    if config.global_projections and not layer.cross:
        kind = partial(LongformerAttention, global_mechanism=DenseAttention(config.attention_dropout))
    layout, rotary = ROTARY_LAYOUTS.get(config.position or "none"), None
    if layout is not None:
        rotary = Rotary(config.head_dim, base=config.rotary_base, layout=layout, scaling=config.rotary_scaling)
    return kind(
        config.d_model,
        config.heads,
        head_dim=config.d_head,
        value_dim=config.d_value,
        kv_heads=config.kv_heads,
        mechanism=mechanism,
        mask=None if layer.cross else config.mask,
        position_bias=make_position_bias(config, layer),
        rotary=rotary,
        qk_norm=config.qk_norm,
        scale=config.attention_scale,
        bias=config.bias if config.attention_bias is None else config.attention_bias,
        memory_dim=memory_dim,
    )


def make_position_bias(config: BlockConfig, layer: LayerContext) -> PositionBias | None:
    """What the config's positions add to the scores of a layer. The first layer owns T5's buckets, and lends them."""
    if layer.cross:
        return None
    if config.position == "alibi":
        return AlibiBias(config.heads)
    if config.position == "skewed":
        longest = 2048 if layer.max_length is None else layer.max_length
        return SkewedBias(config.heads, config.head_dim, longest, config.position_distances)
    if config.position == "t5" and layer.number == 0:
        return BucketBias(
            config.heads,
            buckets=config.position_buckets,
            max_distance=config.position_max_distance,
            bidirectional=not layer.causal,
        )
    return None


def make_feed_forward(config: BlockConfig) -> nn.Module:
    """The feed-forward network that a config describes, or its mixture of them."""
    experts: Any = config.ffn
    if experts is not None:
        return MixtureOfExperts(experts, config.d_model, config.d_ff, activation=config.activation, bias=config.bias)
    return FeedForward(config.d_model, config.d_ff, activation=config.activation, bias=config.bias)


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention if asked for, feed-forward; each wrapped in norm, dropout and residual.

    Pre-norm: x + sublayer(norm(x)). Post-norm: norm(x + sublayer(x)) (Vaswani et al. 2017, §3.1).

    Args:
        cross: add a cross-attention sub-layer, as in a decoder that reads an encoder.
        layer: which of the model's blocks this is; its mechanism may ask.
    """

    def __init__(self, config: BlockConfig, *, cross: bool = False, layer: LayerContext | None = None):
        super().__init__()
        layer = LayerContext() if layer is None else layer
        self.config = config = config.of(layer)

        def norm() -> nn.Module:
            return make_norm(config.norm, config.d_model, eps=config.norm_eps, bias=config.bias)

        self.self_attention, self.self_attention_norm = make_attention(config, layer), norm()
        self.cross_attention: Any
        if cross:
            self.cross_attention, self.cross_attention_norm = make_attention(config, replace(layer, cross=True)), norm()
        else:
            self.cross_attention = None
        self.feed_forward, self.feed_forward_norm = make_feed_forward(config), norm()
        initialise_block(self, config)

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
        """One block.

        Args:
            mask: which positions of x may see which.
            memory, memory_mask: what cross-attention reads, and which of it may be seen.
            cache: for decoding step by step; x then holds the new positions only.
            position_bias: one that the first block lends.
            global_attention_mask: 1 = a global token, where the config has projections for them.
        """
        if self.config.position == "t5" and position_bias is None and self.self_attention.position_bias is None:
            raise ValueError("position='t5': the first block owns the position bias; hand its own to the later blocks")
        marked = {}
        if global_attention_mask is not None:
            if not self.config.global_projections:
                raise ValueError(
                    "global_attention_mask needs a block with projections for global tokens: "
                    "BlockConfig(global_projections=True, …); without them, add global_tokens([…]) to its mask"
                )
            marked["global_attention_mask"] = global_attention_mask
        own, read = (cache.self_attention, cache.cross_attention) if cache else (None, None)
        offset = 0 if own is None else own.length

        def look_around(y: Tensor) -> Tensor:
            return self.self_attention(y, mask=mask, cache=own, offset=offset, position_bias=position_bias, **marked)

        def look_up(y: Tensor) -> Tensor:
            return self.cross_attention(y, memory, memory_mask, cache=read, offset=offset)

        x = self.residual(x, look_around, self.self_attention_norm)
        if self.cross_attention is not None:
            x = self.residual(x, look_up, self.cross_attention_norm)
        return self.residual(x, self.feed_forward, self.feed_forward_norm)

    @property
    def window(self) -> int | None:
        """How far back a causal self-attention sees; None where there is no limit."""
        mask = self.self_attention.mask
        farthest = math.inf if mask is None else (mask & causal()).reach()[1]
        return None if farthest == math.inf else max(0, int(farthest))

    def new_cache(self, capacity: int | None = None) -> BlockCache:
        """Return an empty cache for a decoder's block.

        Args:
            capacity: longest text, for which memory is allocated at once; None: it grows as needed.
        """
        mechanism = self.self_attention.mechanism
        if hasattr(mechanism, "new_cache"):
            return BlockCache(mechanism.new_cache())
        return BlockCache(make_cache(capacity, self.window))

    def residual(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor], norm: nn.Module
    ) -> Float[Tensor, "batch length d_model"]:
        """The sub-layer's output is added to its input."""
        if self.config.norm_first:
            return x + dropout(sublayer(norm(x)), self.config.dropout, self.training)
        return norm(x + dropout(sublayer(x), self.config.dropout, self.training))


class CrossBlock(nn.Module):
    """Cross-attention and feed-forward: x reads an array that may be of another width (Jaegle et al. 2021, §3.1).

    y = x + attention(norm(x), norm(memory)), out = y + feed_forward(norm(y)).

    Args:
        config: of pre-norm; d_model is the width of x.
        memory_dim: width of the array.
        query_residual: False leaves x out of y, where x says only what is asked for (Jaegle et al. 2022, appendix).
    """

    def __init__(self, config: BlockConfig, memory_dim: int, *, query_residual: bool = True):
        super().__init__()
        if not config.norm_first:
            raise ValueError("a CrossBlock normalises x and the memory before attention: set norm_first=True")
        self.config, self.query_residual = config, query_residual

        def norm(width: int) -> nn.Module:
            return make_norm(config.norm, width, eps=config.norm_eps, bias=config.bias)

        self.attention = make_attention(config, LayerContext(cross=True), memory_dim)
        self.query_norm, self.memory_norm = norm(config.d_model), norm(memory_dim)
        self.feed_forward, self.feed_forward_norm = make_feed_forward(config), norm(config.d_model)
        initialise_block(self, config)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch memory_length memory_dim"],
        memory_mask: MaskLike = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """One look at the array.

        Args:
            memory_mask: which of it may be seen.
        """
        read = self.attention(self.query_norm(x), self.memory_norm(memory), memory_mask)
        y = dropout(read, self.config.dropout, self.training)
        if self.query_residual:
            y = x + y
        return y + dropout(self.feed_forward(self.feed_forward_norm(y)), self.config.dropout, self.training)


def initialise_block(block: nn.Module, config: BlockConfig) -> None:
    """Matrices as of Glorot & Bengio 2010; zeros where the config says so."""
    for name, linear in block.named_modules():
        if isinstance(linear, nn.Linear):
            nn.init.xavier_uniform_(linear.weight)
            if config.zero_output and name.endswith(LAST_IN_SUBLAYER):
                nn.init.zeros_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)
