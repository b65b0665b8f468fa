"""The config of a block, in groups: attention, feed-forward, position, norm, mixer."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch import nn

from txlib.attention import LayerContext, Mask, MechanismConfig
from txlib.attention.config import Config
from txlib.attention.mechanism import check_dropout
from txlib.attention.multihead import Bias, check_heads, check_scores
from txlib.hints import did_you_mean
from txlib.layers.feedforward import FeedForwardConfig
from txlib.layers.moe import MixtureConfig
from txlib.layers.norm import NormConfig
from txlib.layers.position_config import PositionConfig, find_position

GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    **{
        name: (("attention", name),)
        for name in (
            *("heads", "kv_heads", "head_dim", "value_dim", "qk_norm", "qk_norm_whole", "softcap", "sinks", "gate"),
            *("mechanism", "cross_mechanism", "mask"),
        )
    },
    **{f"attention_{field}": (("attention", field),) for field in ("bias", "dropout", "scale")},
    **{name: (("ffn", name),) for name in ("d_ff", "activation")},
    **{field.name: (("ffn", field.name),) for field in fields(MixtureConfig) if field.name not in ("bias",)},
    "norm": (("norm", "kind"),),
    "norm_eps": (("norm", "eps"),),
    "norm_first": (("norm", "placement"),),
    "bias": (("attention", "bias"), ("ffn", "bias"), ("norm", "bias")),
}  # the flat options of `BlockConfig.of_sizes`, and the fields that they set


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """The attention of a block; see `MultiHeadAttention`.

    Args:
        heads, kv_heads: number of heads of queries, and of keys and values; kv_heads=None: as many as heads.
        head_dim, value_dim: width of a head, and of its values; d_model / heads, and head_dim, unless given.
        bias: whether the projections have biases: one for all, or four, for queries, keys, values and the output.
        dropout: on attention weights, as in GPT-2 and BERT.
        scale: factor of the scores; 1 / √head_dim unless given.
        softcap: keeps scores between -softcap and softcap by tanh; None: no cap.
        sinks: whether each head learns the score of a key without a value, which takes a share of the weights.
        gate: multiply the heads' output by the sigmoid of a projection of the input.
        qk_norm: "layer" or "rms", of each head's queries and keys; None for no norm.
        qk_norm_whole: whether that norm is over all heads together.
        mechanism: of self-attention; None for dense attention.
        cross_mechanism: of cross-attention, likewise.
        mask: which positions may see which in self-attention, in addition to the model's own mask.
    """

    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    bias: Bias = True
    dropout: float = 0.0
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    gate: bool = False
    qk_norm: Literal["layer", "rms"] | None = None
    qk_norm_whole: bool = False
    mechanism: MechanismConfig | None = None
    cross_mechanism: MechanismConfig | None = None
    mask: Mask | None = None

    def __post_init__(self):
        check_dropout(self.dropout, "attention_dropout")
        check_scores(None, self.softcap, self.sinks)


@dataclass(frozen=True)
class MixerConfig(Config):
    """A layer that mixes the positions of a block's input instead of `MultiHeadAttention`.

    Its module is called as `mixer(x, mask=mask, cache=cache)`, x (batch, length, d_model) being the normalized input,
    and returns what is added to the residual stream. It may have `new_cache()`, for what it keeps while decoding; the
    cache's length is the position of the next token. Subclasses are frozen dataclasses with a name, see `Config`.
    """

    example: ClassVar[str] = "DeltaConfig()"

    def make(self, block: "BlockConfig", layer: LayerContext) -> nn.Module:
        """Return the module of one layer."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """Config of one block. GPT-2's, Llama's, BERT's and the original Transformer's blocks are values of it.

    `BlockConfig.of_sizes(64, 4, 256, norm="rms", position="rotary")` makes one from flat options.

    Args:
        d_model: width of the residual stream.
        attention: heads, widths, biases, mechanism and mask.
        ffn: the feed-forward network, or a `MixtureConfig` for experts; with d_ff=0 the block only mixes positions.
        position: how the model encodes positions; every model needs one.
        norm: kind and placement of norms.
        dropout: on the output of each sub-layer (Vaswani et al. 2017, §5.4).
        residual_scale: factor of each sub-layer's output, before it is added.
        parallel: attention and the feed-forward network read the same input, and both are added (Black et al. 2022,
            §2.1), instead of one after the other.
        zero_output: start the last matrix of each sub-layer at zero, so that a new block passes its input on.
        mixer: the layer that mixes positions; None for `MultiHeadAttention`.
        layer_pattern: differences between layers: for each layer the flat options that `replace` takes, repeated over
            the stack. Five local layers, then a global one: `({"mask": sliding_window(512)},) * 5 + ({},)`.
    """

    example: ClassVar[str] = "BlockConfig.of_sizes(d_model, heads, d_ff, …)"

    d_model: int
    attention: AttentionConfig
    ffn: FeedForwardConfig
    position: PositionConfig | None = None
    norm: NormConfig = NormConfig()
    dropout: float = 0.0
    residual_scale: float = 1.0
    parallel: bool = False
    zero_output: bool = False
    mixer: MixerConfig | None = None
    layer_pattern: tuple[Mapping[str, Any], ...] = dataclasses.field(default=(), hash=False)

    def __post_init__(self):
        attention = self.attention
        check_heads(self.d_model, attention.heads, attention.kv_heads, attention.head_dim, attention.value_dim)
        check_dropout(self.dropout)
        object.__setattr__(self, "layer_pattern", tuple(dict(options) for options in self.layer_pattern))
        if self.position is not None:
            self.position.check(self)
        if self.parallel and self.ffn.d_ff == 0:
            raise ValueError("parallel=True needs a feed-forward network beside attention, got d_ff=0; give its width")
        if self.parallel and self.norm.placement == "post":
            raise ValueError(
                "parallel=True adds two outputs at once, and post-norm normalizes after each; set norm_first"
            )
        for options in self.layer_pattern:
            if options.keys() & {"d_model", "layer_pattern"}:
                raise ValueError(f"layer_pattern={options}: all layers share d_model; leave it out")
            self.check_position(find_position(options.get("position")))
            self.replace(layer_pattern=(), **options)

    def check_position(self, position: PositionConfig | None) -> None:
        """Refuse positions of single layers that belong to the whole model.

        Raises:
            ValueError: naming them.
        """
        if position is not None and not position.in_attention and position != self.position:
            raise ValueError(
                f"layer_pattern: position={position.name!r} belongs to the whole model; single layers may have rotary "
                "positions, a position bias of their own, or none"
            )

    @classmethod
    def of_sizes(cls, d_model: int, heads: int, d_ff: int, **options: Any) -> "BlockConfig":
        """Return a block config from sizes, as papers give them, and flat options.

        Args:
            options: of attention: kv_heads, head_dim, value_dim, qk_norm, qk_norm_whole, softcap, sinks, gate,
                mechanism, cross_mechanism, mask, attention_bias, attention_dropout, attention_scale; of feed-forward:
                activation, and with experts the fields of `MixtureConfig`; of norms: norm, norm_eps, norm_first (False
                for post-norm); bias, of all three; position, by its name, such as "rotary"; any field of `BlockConfig`.

        Raises:
            TypeError: for an unknown option.
        """
        groups = {"attention": AttentionConfig(heads=heads), "ffn": FeedForwardConfig(d_ff=d_ff), "norm": NormConfig()}
        return cls(**changed({"d_model": d_model, **groups}, options))

    def replace(self, **options: Any) -> "BlockConfig":
        """Return the block with these options of `of_sizes` changed; experts=None makes the plain network again."""
        return type(self)(**changed({field.name: getattr(self, field.name) for field in fields(self)}, options))

    def of_layer(self, layer: LayerContext) -> "BlockConfig":
        """Return the config of this layer, where layers differ.

        Raises:
            ValueError: when the pattern is longer than the stack.
        """
        if not self.layer_pattern:
            return self
        if len(self.layer_pattern) > layer.layers:
            raise ValueError(
                f"layer_pattern has {len(self.layer_pattern)} layers, the stack {layer.layers}; shorten the pattern"
            )
        return self.replace(layer_pattern=(), **self.layer_pattern[layer.number % len(self.layer_pattern)])

    @property
    def head_dim(self) -> int:
        """Width of a head's queries and keys."""
        attention = self.attention
        return self.d_model // attention.heads if attention.head_dim is None else attention.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a head's values."""
        return self.head_dim if self.attention.value_dim is None else self.attention.value_dim


def changed(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a block with flat options changed; a whole group may be given as a config.

    Raises:
        TypeError: for an unknown option.
    """
    names = {field.name for field in fields(BlockConfig)}
    result = dict(values)
    groups: dict[str, dict[str, Any]] = {"attention": {}, "ffn": {}, "norm": {}}
    for option, value in sorted(options.items(), key=lambda item: item[0] != "bias"):  # first: others refine it
        if option in names and (option not in GROUPS or isinstance(value, Config)):
            result[option] = find_position(value) if option == "position" else value
        elif option in GROUPS:
            for group, name in GROUPS[option]:
                groups[group][name] = ("pre" if value else "post") if option == "norm_first" else value
        else:
            raise TypeError(f"a block has no {option!r}{did_you_mean(option, names | GROUPS.keys())}")
    for group in ("attention", "norm"):
        result[group] = dataclasses.replace(result[group], **groups[group])
    result["ffn"] = changed_ffn(result["ffn"], groups["ffn"])
    return result


def changed_ffn(ffn: FeedForwardConfig, options: dict[str, Any]) -> FeedForwardConfig:
    """Return a feed-forward config with options changed; experts make it a mixture, experts=None the plain network."""
    experts = options.get("experts", getattr(ffn, "experts", None))
    kind = FeedForwardConfig if experts is None else MixtureConfig
    old = {field.name: getattr(ffn, field.name) for field in fields(kind) if hasattr(ffn, field.name)}
    return kind(**old | {name: value for name, value in options.items() if name != "experts" or value is not None})
