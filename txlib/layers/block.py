"""The block that every Transformer stacks: attend, then think, each with a residual connection."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention import (
    AlibiAttention,
    DenseAttention,
    KeyValueCache,
    MultiHeadAttention,
    ShawAttention,
    SkewedAttention,
    StaticKeyValueCache,
)
from txlib.attention.masks import MaskLike
from txlib.attention.multihead import check_heads
from txlib.layers.feedforward import FeedForward, dropout
from txlib.layers.moe import MixtureConfig, MixtureOfExperts
from txlib.layers.norm import make_norm
from txlib.layers.position import Rotary, RotaryScaling

ADDED_POSITIONS = ("none", "sinusoidal", "sinusoidal_concatenated", "learned")  # the model adds them to its input
ROTARY_POSITIONS = {"rotary": "interleaved", "rotary_half": "half"}
LAST_IN_SUBLAYER = ("attention.output", "narrow")  # the layers whose output is added to the residual stream
RELATIVE_POSITIONS = ("shaw", "skewed", "alibi")  # self-attention computes them


@dataclass(frozen=True)
class BlockConfig:
    """What one block is made of. GPT-2, Llama, BERT and the original are values of it.

    Args:
        d_model, heads, d_ff: widths, as in the papers.
        norm_first: normalise the input of each sub-layer (pre-norm, Xiong et al. 2020) instead of its output
            (post-norm, the original).
        norm, norm_eps: "layer" or "rms", and what keeps its root from zero.
        activation: see `FeedForward`.
        bias: whether linear layers and layer norms have biases.
        dropout: on the output of each sub-layer (Vaswani et al. 2017, §5.4).
        attention_dropout: on attention weights, as in GPT-2 and BERT.
        attention_bias: the same for attention's four projections, where they differ from the rest; None: as `bias`.
        kv_heads, qk_norm: see `MultiHeadAttention`.
        position: "none", "sinusoidal", "sinusoidal_concatenated" and "learned" are added by the model; "rotary",
            "rotary_half", "shaw", "skewed" and "alibi" act inside self-attention.
        rotary_base, rotary_scaling: see `Rotary`.
        mechanism: makes the mechanism of self-attention, `mechanism(config) -> module`; None for dense attention.
        ffn: experts in place of the one feed-forward network, each of width d_ff; None for the one.
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
    position: str = "none"
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    mechanism: Callable[["BlockConfig"], nn.Module] | None = None
    ffn: MixtureConfig | None = None
    zero_output: bool = False

    def __post_init__(self):
        check_heads(self.d_model, self.heads)
        known = (*ADDED_POSITIONS, *ROTARY_POSITIONS, *RELATIVE_POSITIONS)
        if self.position not in known:
            raise ValueError(f"position={self.position!r} is unknown; choose one of {', '.join(known)}")
        if self.position in RELATIVE_POSITIONS and self.mechanism is not None:
            raise ValueError(f"position={self.position!r} is itself a mechanism; choose it or mechanism=…, not both")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be in [0, 1)")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @classmethod
    def from_dict(cls, values: dict) -> "BlockConfig":
        """The config that `dataclasses.asdict` wrote."""
        nested = {"ffn": MixtureConfig, "rotary_scaling": RotaryScaling}
        return cls(
            **{
                name: nested[name](**value) if name in nested and value is not None else value
                for name, value in values.items()
            }
        )


def make_attention(config: BlockConfig, *, cross: bool = False) -> MultiHeadAttention:
    """The attention layer that a config describes. Relative mechanisms apply to self-attention only."""
    if cross:
        mechanism = DenseAttention(config.attention_dropout)
    elif config.position == "shaw":
        mechanism = ShawAttention(config.head_dim, dropout=config.attention_dropout)
    elif config.position == "skewed":
        mechanism = SkewedAttention(config.heads, config.head_dim, dropout=config.attention_dropout)
    elif config.position == "alibi":
        mechanism = AlibiAttention(config.heads, dropout=config.attention_dropout)
    elif config.mechanism is not None:
        mechanism = config.mechanism(config)
    else:
        mechanism = DenseAttention(config.attention_dropout)
    layout, rotary = ROTARY_POSITIONS.get(config.position), None
    if layout is not None:
        rotary = Rotary(config.head_dim, base=config.rotary_base, layout=layout, scaling=config.rotary_scaling)
    return MultiHeadAttention(
        config.d_model,
        config.heads,
        kv_heads=config.kv_heads,
        mechanism=mechanism,
        rotary=rotary,
        qk_norm=config.qk_norm,
        bias=config.bias if config.attention_bias is None else config.attention_bias,
    )


def make_feed_forward(config: BlockConfig) -> nn.Module:
    """The feed-forward network that a config describes, or its mixture of them."""
    if config.ffn is not None:
        return MixtureOfExperts(config.ffn, config.d_model, config.d_ff, activation=config.activation, bias=config.bias)
    return FeedForward(config.d_model, config.d_ff, activation=config.activation, bias=config.bias)


class BlockCache:
    """What one block keeps while decoding: its own past, and the projected memory.

    Args:
        capacity: longest past, for which room is made at once; None: it grows as needed.
    """

    def __init__(self, capacity: int | None = None):
        self.self_attention = KeyValueCache() if capacity is None else StaticKeyValueCache(capacity)
        self.cross_attention = KeyValueCache(fixed=True)

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        self.self_attention.reorder(rows)
        self.cross_attention.reorder(rows)


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention if asked for, feed-forward; each wrapped in norm, dropout and residual.

    Pre-norm: x + sublayer(norm(x)). Post-norm: norm(x + sublayer(x)) (Vaswani et al. 2017, §3.1).

    Args:
        cross: add a cross-attention sub-layer, as in a decoder that reads an encoder.
    """

    def __init__(self, config: BlockConfig, *, cross: bool = False):
        super().__init__()
        self.config = config

        def norm() -> nn.Module:
            return make_norm(config.norm, config.d_model, eps=config.norm_eps, bias=config.bias)

        self.self_attention, self.self_attention_norm = make_attention(config), norm()
        if cross:
            self.cross_attention, self.cross_attention_norm = make_attention(config, cross=True), norm()
        else:
            self.cross_attention = None
        self.feed_forward, self.feed_forward_norm = make_feed_forward(config), norm()
        for name, linear in self.named_modules():
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
                if config.zero_output and name.endswith(LAST_IN_SUBLAYER):
                    nn.init.zeros_(linear.weight)
                    if linear.bias is not None:
                        nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: MaskLike = None,
        memory: Float[Tensor, "batch memory_length d_model"] | None = None,
        memory_mask: MaskLike = None,
        cache: BlockCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """One block.

        Args:
            mask: which positions of x may see which.
            memory, memory_mask: what cross-attention reads, and which of it may be seen.
            cache: for decoding step by step; x then holds the new positions only.
        """
        own, read = (cache.self_attention, cache.cross_attention) if cache else (None, None)
        offset = len(own) if cache else 0

        def look_around(y: Tensor) -> Tensor:
            return self.self_attention(y, mask=mask, cache=own, offset=offset)

        def look_up(y: Tensor) -> Tensor:
            return self.cross_attention(y, memory, memory_mask, cache=read, offset=offset)

        x = self.residual(x, look_around, self.self_attention_norm)
        if self.cross_attention is not None:
            x = self.residual(x, look_up, self.cross_attention_norm)
        return self.residual(x, self.feed_forward, self.feed_forward_norm)

    def residual(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor], norm: nn.Module
    ) -> Float[Tensor, "batch length d_model"]:
        """The sub-layer's output is added to its input."""
        if self.config.norm_first:
            return x + dropout(sublayer(norm(x)), self.config.dropout, self.training)
        return norm(x + dropout(sublayer(x), self.config.dropout, self.training))
