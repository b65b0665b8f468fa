"""Llama, from the first to the third (Touvron et al. 2023; Grattafiori et al. 2024), and what its descendants share."""

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from txlib.attention import LayerContext, sliding_window
from txlib.attention.masks import SlidingWindow
from txlib.layers import BlockConfig, LongRotaryScaling, RotaryConfig, RotaryScaling, YarnScaling
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, head_width, same
from txlib.models.gpt import GPT, GPTConfig

Entry = Setting | Translation


def sizes(
    *,
    eps: float,
    head_dim: int | None = None,
    tied: bool = False,
    dropout: float = 0.0,
    ids: tuple[int | None, int | None, int | None],
) -> tuple[Entry, ...]:
    """Return the settings that all of these decoders have, with the defaults in which they differ.

    Args:
        ids: of the special tokens: beginning, end, padding.
    """
    bos, eos, pad = ids
    return (
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("num_key_value_heads", "block.attention.kv_heads", None, like="block.attention.heads"),
        head_width("head_dim", "hidden_size", "num_attention_heads", head_dim),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length"),
        Setting("rms_norm_eps", "block.norm.eps", eps),
        Setting("attention_dropout", "block.attention.dropout", dropout),
        Setting("tie_word_embeddings", "tie_embeddings", tied),
        Setting("initializer_range", "init_std", 0.02),
        Setting("bos_token_id", "bos_id", bos, null=True),
        Setting("eos_token_id", "eos_id", eos, null=True),
        Setting("pad_token_id", "pad_id", pad, null=True),
    )


def settings(*, base: float, eps: float, ids: tuple[int | None, int | None, int | None] = (1, 2, None), **others: Any):
    """Return the settings of those with one feed-forward width and one kind of rotary positions."""
    width = Setting("intermediate_size", "block.ffn.d_ff")
    return (*sizes(eps=eps, ids=ids, **others), width, ACTIVATION, rotary(base))


# Positions ------------------------------------------------------------------------------------------------------------

ROPES: dict[str, tuple[type, dict[str, str]]] = {
    "linear": (RotaryScaling, {"factor": "factor"}),
    "llama3": (
        RotaryScaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "context",
            "low_freq_factor": "slow",
            "high_freq_factor": "fast",
        },
    ),
    "yarn": (
        YarnScaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "context",
            "beta_slow": "slow",
            "beta_fast": "fast",
            "attention_factor": "attention_factor",
            "truncate": "whole_pairs",
        },
    ),
    "longrope": (
        LongRotaryScaling,
        {
            "short_factor": "short",
            "long_factor": "long",
            "original_max_position_embeddings": "context",
            "attention_factor": "attention_factor",
        },
    ),
}  # rope_type → class, and its entries → fields


def rope_of(settings: Settings, default: Settings = MappingProxyType({})) -> Settings:
    """Return the entries of rotary positions, under the newer or the older name."""
    return settings.get("rope_parameters") or settings.get("rope_scaling") or default


def read_rope(rope: Settings, settings: Settings, base: float, fraction: float = 1.0) -> RotaryConfig:
    """Return the positions of `rope_parameters`, or of the older `rope_scaling`.

    Args:
        base, fraction: defaults of θ, and of the part of each head that is rotated.

    Raises:
        ValueError: for an unsupported scaling.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = "longrope" if kind == "su" else kind  # its first name
    if kind != "default" and kind not in ROPES:
        raise ValueError(f"rope_type={kind!r} is not supported, only default, {', '.join(ROPES)}")
    return RotaryConfig(
        base=float(rope.get("rope_theta", settings.get("rope_theta", base))),
        layout="half",
        scaling=None if kind == "default" else read_scaling(kind, rope, settings),
        fraction=rope.get("partial_rotary_factor", settings.get("partial_rotary_factor", fraction)),
    )


def read_scaling(kind: str, rope: Settings, settings: Settings) -> Any:
    """Return the scaling. What an entry of YaRN and LongRoPE lacks follows from the lengths before and after it.

    Raises:
        KeyError: for another missing entry.
    """
    scaling, names = ROPES[kind]
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in rope.items() if value is not None
    }
    if kind in ("yarn", "longrope"):
        length = settings["max_position_embeddings"]
        context: Any = settings.get("original_max_position_embeddings") or values.get(
            "original_max_position_embeddings", length
        )
        factor: float = values.setdefault("factor", length / context)
        values["original_max_position_embeddings"] = context
        if kind == "longrope":
            values.setdefault("attention_factor", math.sqrt(1 + math.log(max(factor, 1)) / math.log(context)))
        elif values.get("mscale") and values.get("mscale_all_dim"):
            for_pairs, for_all = (0.1 * values[name] * math.log(factor) + 1 for name in ("mscale", "mscale_all_dim"))
            values.setdefault("attention_factor", for_pairs / for_all)
    elif missing := [name for name in names if name not in values]:
        raise KeyError(missing[0])
    return scaling(**{field: values[name] for name, field in names.items() if name in values})


def write_rope(position: RotaryConfig) -> dict[str, Any]:
    """Return the entry `rope_parameters`."""
    scaling = position.scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        kind = scaling.name or ("linear" if getattr(scaling, "context", None) is None else "llama3")
        values = {name: getattr(scaling, field) for name, field in ROPES[kind][1].items()}
        rope = {"rope_type": kind} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }
    if position.fraction != 1:
        rope["partial_rotary_factor"] = position.fraction
    return {**rope, "rope_theta": position.base}


def rotary(base: float, fraction: float = 1.0) -> Translation:
    """Return the translation of rotary positions, under the newer and the older names.

    Args:
        base, fraction: defaults of θ, and of the part of each head that is rotated.
    """

    def read(settings: Settings) -> dict[str, Any]:
        return {"block.position": read_rope(rope_of(settings), settings, base, fraction)}

    def write(config: GPTConfig) -> dict[str, Any]:
        position = config.block.position
        if not isinstance(position, RotaryConfig):  # which these files cannot describe
            return {}
        entries = {"rope_theta": position.base, "rope_parameters": write_rope(position)}
        if fraction != 1:
            entries["partial_rotary_factor"] = position.fraction
        if isinstance(position.scaling, LongRotaryScaling):  # Phi-3's config prefers this one
            entries["original_max_position_embeddings"] = position.scaling.context
        return entries

    return Translation(read, write)


# Layers that differ ---------------------------------------------------------------------------------------------------


def blocks_of(config: Any) -> list[BlockConfig]:
    """Return the config of each layer."""
    return [config.block.of_layer(LayerContext(number, config.layers)) for number in range(config.layers)]


def shortest(options: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the shortest pattern that gives these options when it is repeated."""
    repeats = (n for n in range(1, len(options) + 1) if all(options[i] == options[i % n] for i in range(len(options))))
    pattern = tuple(options[: next(repeats)])
    return () if pattern == ({},) else pattern


def window(width: int | None) -> Any:
    """Return the rule of Hugging Face's `sliding_window`, which counts the token itself."""
    return None if width is None else sliding_window(width - 1)


def width_of(masks: Sequence[Any], default: int | None = None) -> int | None:
    """Return `sliding_window` for the first of these masks that is a window."""
    return next((mask.radius + 1 for mask in masks if isinstance(mask, SlidingWindow)), default)


def used_width(settings: Settings, default: int | None) -> int | None:
    """Return Qwen's `sliding_window`, which counts only with `use_sliding_window`."""
    return settings.get("sliding_window", default) if settings.get("use_sliding_window", False) else None


def width_entries(width: int | None) -> dict[str, Any]:
    """Return the entries that `used_width` reads."""
    return {"sliding_window": width, "use_sliding_window": width is not None}


def window_of_all(default: int | None) -> Translation:
    """Return the translation of a `sliding_window` that all layers have."""
    return Translation(
        lambda settings: {"block.attention.mask": window(settings.get("sliding_window", default))},
        lambda config: {"sliding_window": width_of([config.block.attention.mask])},
    )


def kinds_of(settings: Settings, default: Callable[[int], bool]) -> list[bool]:
    """Return which layers see a window only.

    Args:
        default: whether the layer of that number does, where the file has no `layer_types`.

    Raises:
        ValueError: for another kind of layer.
    """
    layers = settings["num_hidden_layers"]
    kinds = settings.get("layer_types") or [KINDS[default(number)] for number in range(layers)]
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"layer_types holds {kind!r}, which is not supported, only {', '.join(KINDS)}")
    if len(kinds) != layers:
        raise ValueError(f"layer_types has {len(kinds)} layers, num_hidden_layers={layers}; correct one of them")
    return [kind == KINDS[1] for kind in kinds]


KINDS = "full_attention", "sliding_attention"


def layer_types(every: int, width: int) -> Translation:
    """Return the translation of `layer_types`: windows, and all positions in every n-th layer unless it says others.

    Args:
        width: default of `sliding_window`.
    """

    def read(settings: Settings) -> dict[str, Any]:
        local = {"mask": window(settings.get("sliding_window", width))}
        kinds = kinds_of(settings, lambda number: (number + 1) % settings.get("sliding_window_pattern", every) != 0)
        return {"block.layer_pattern": shortest([local if kind else {} for kind in kinds])}

    def write(config: GPTConfig) -> dict[str, Any]:
        masks = [block.attention.mask for block in blocks_of(config)]
        return {
            "layer_types": [KINDS[mask is not None] for mask in masks],
            "sliding_window": width_of(masks, config.max_length),
        }

    return Translation(read, write)


def layer_types_and_rotary(every: int, base: float, local_base: float) -> Translation:
    """Return the translation of `layer_types` with rotary positions of their own in layers with a window.

    Args:
        base, local_base: defaults of θ in layers that see all, and in the others.
    """
    types = layer_types(every, 4096)

    def positions(settings: Settings) -> tuple[RotaryConfig, RotaryConfig]:
        rope = settings.get("rope_parameters") or {}
        old = {"rope_theta": settings.get("rope_theta", base), **(settings.get("rope_scaling") or {})}
        local = {"rope_theta": settings.get("rope_local_base_freq", local_base)}
        return (
            read_rope(rope.get(KINDS[0]) or old, settings, base),
            read_rope(rope.get(KINDS[1]) or local, {**settings, "rope_theta": local_base}, local_base),
        )

    def read(settings: Settings) -> dict[str, Any]:
        position, local = positions(settings)
        other = {} if local == position else {"position": local}
        pattern = types.read(settings)["block.layer_pattern"]
        pattern = tuple({**options, **other} if options else options for options in pattern)
        return {"block.position": position, "block.layer_pattern": pattern}

    def write(config: GPTConfig) -> dict[str, Any]:
        blocks = blocks_of(config)
        position = config.block.position
        local = next((block.position for block in blocks if block.attention.mask is not None), position)
        if not isinstance(position, RotaryConfig) or not isinstance(local, RotaryConfig):
            return types.write(config)
        rope = {KINDS[0]: write_rope(position), KINDS[1]: write_rope(local)}
        return {**types.write(config), "rope_parameters": rope}

    return Translation(read, write)


# Tensors --------------------------------------------------------------------------------------------------------------

IMPLIED = {"block.norm.kind": "rms", "block.norm.bias": False}
GATED_ACTIVATIONS = {"gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh", "gelu": "geglu", "silu": "swiglu"}
ACTIVATION = Setting("hidden_act", "block.ffn.activation", "silu", words={"silu": "swiglu"})
LAYER, OUR_LAYER = "model.layers.{}.", "decoder.layers.{}."
ENDS = (
    *same("model.", "", ("embed_tokens", "embedding"), ("norm", "decoder.norm")),
    Name("lm_head", ("output",)),
)
PROJECTIONS = same(
    LAYER + "self_attn.",
    OUR_LAYER + "self_attention.",
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("o_proj", "output"),
)
QK_NORMS = same(LAYER + "self_attn.", OUR_LAYER + "self_attention.", ("q_norm", "query_norm"), ("k_norm", "key_norm"))
PRE_NORMS = same(
    LAYER,
    OUR_LAYER,
    ("input_layernorm", "self_attention_norm"),
    ("post_attention_layernorm", "feed_forward_norm"),
)
OUT_NORMS = same(
    LAYER,
    OUR_LAYER,
    ("post_attention_layernorm", "self_attention_out_norm"),
    ("post_feedforward_layernorm", "feed_forward_out_norm"),
)
BOTH_NORMS = (
    *OUT_NORMS,
    *same(
        LAYER,
        OUR_LAYER,
        ("input_layernorm", "self_attention_norm"),
        ("pre_feedforward_layernorm", "feed_forward_norm"),
    ),
)


def network(theirs: str, ours: str) -> tuple[Name, ...]:
    """Return the table of a layer's gated networks with these prefixes."""
    return same(LAYER + theirs, OUR_LAYER + ours, *((f"{name}_proj",) * 2 for name in ("gate", "up", "down")))


NETWORK = network("mlp.", "feed_forward.")
ROUTER = same(LAYER + "mlp.", OUR_LAYER + "feed_forward.", ("gate", "router"))
EXPERT_NETWORKS = (*ROUTER, *network("mlp.experts.{}.", "feed_forward.experts.{}."))
NAMES = (*ENDS, *PRE_NORMS, *PROJECTIONS)
FREQUENCIES = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)  # in old files
ATTENTION_BIAS = Setting("attention_bias", "block.attention.bias", False, words={True: True, False: False})
NETWORK_BIAS = Setting("mlp_bias", "block.ffn.bias", False)

LLAMA = Family(
    "llama",
    GPTConfig,
    heads={"LlamaForCausalLM": Head(GPT)},
    implied=IMPLIED,
    settings=(*settings(base=10_000.0, eps=1e-6), NETWORK_BIAS, ATTENTION_BIAS),
    names=(*NAMES, *NETWORK),
    prefix="model.",
    ignored=FREQUENCIES,
)
