"""Qwen3-Next: three layers with a state, then one of gated attention; experts and a shared one (Qwen Team 2025)."""

from typing import Any

from txlib.layers import DeltaConfig
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.families.llama import (
    ACTIVATION,
    ATTENTION_BIAS,
    ENDS,
    EXPERT_NETWORKS,
    FREQUENCIES,
    LAYER,
    NETWORK,
    OUR_LAYER,
    PRE_NORMS,
    PROJECTIONS,
    QK_NORMS,
    blocks_of,
    network,
    rotary,
    shortest,
    sizes,
)
from txlib.models.families.mixtral import EXPERTS, networks_of, parts_of, write_dense_layers
from txlib.models.gpt import GPT, GPTConfig

KINDS = "linear_attention", "full_attention"
DELTA = {
    "linear_num_value_heads": ("heads", 32),
    "linear_num_key_heads": ("key_heads", 16),
    "linear_key_head_dim": ("head_dim", 128),
    "linear_value_head_dim": ("value_dim", 128),
    "linear_conv_kernel_dim": ("kernel", 4),
}  # entry → field of `DeltaConfig`, and its default


def read_layers(settings: Settings) -> dict[str, Any]:
    """Return the pattern: which layers have a state instead of attention, and which one network instead of experts.

    Raises:
        ValueError: for another kind of layer.
    """
    layers, every = settings["num_hidden_layers"], settings.get("full_attention_interval", 4)
    kinds = settings.get("layer_types") or [KINDS[(number + 1) % every == 0] for number in range(layers)]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or len(kinds) != layers:
        raise ValueError(f"layer_types={kinds} is not supported, only {layers} of {', '.join(KINDS)}")
    sizes = {field: settings.get(entry, default) for entry, (field, default) in DELTA.items()}
    delta = {"mixer": DeltaConfig(gated=True, output_gate=True, **sizes)}
    mixers = [delta if kind == KINDS[0] else {} for kind in kinds]
    pattern = [{**mixer, **network} for mixer, network in zip(mixers, networks_of(settings), strict=True)]
    return {"block.layer_pattern": shortest(pattern)}


def write_layers(config: GPTConfig) -> dict[str, Any]:
    """Return the entries of `read_layers`."""
    mixers = [block.mixer for block in blocks_of(config)]
    delta = next((mixer for mixer in mixers if isinstance(mixer, DeltaConfig)), None)
    entries: dict[str, Any] = {entry: getattr(delta, field, default) for entry, (field, default) in DELTA.items()}
    return {**entries, "layer_types": [KINDS[mixer is None] for mixer in mixers], **write_dense_layers(config)}


QWEN3_NEXT = Family(
    "qwen3_next",
    GPTConfig,
    heads={"Qwen3NextForCausalLM": Head(GPT)},
    implied={
        **EXPERTS,
        "block.norm.zero_centered": True,
        "block.attention.qk_norm": "rms",
        "block.attention.gate": True,
        "block.ffn.shared_gate": True,
    },
    settings=(
        ACTIVATION,
        *sizes(eps=1e-6, head_dim=256, ids=(None, None, None)),
        rotary(1e4, 0.25),
        ATTENTION_BIAS,
        Translation(read_layers, write_layers),
        Setting("moe_intermediate_size", "block.ffn.d_ff", 512),
        Setting("shared_expert_intermediate_size", "block.ffn.shared_d_ff", 512),
        Setting("num_experts", "block.ffn.experts", 512),
        Setting("num_experts_per_tok", "block.ffn.top_k", 10),
        Setting("norm_topk_prob", "block.ffn.normalize", True),
        Setting("router_aux_loss_coef", "block.ffn.balance", 0.001),
    ),
    names=(
        *ENDS,
        *PRE_NORMS,
        *PROJECTIONS,
        *QK_NORMS,
        Name(
            LAYER + "self_attn.q_proj",
            (OUR_LAYER + "self_attention.query", OUR_LAYER + "self_attention.gate"),
            "by_head",
        ),
        *same(
            LAYER + "linear_attn.",
            OUR_LAYER + "self_attention.",
            ("conv1d", "convolution"),
            ("norm", "norm"),
            ("out_proj", "out_proj"),
        ),
        Name(LAYER + "linear_attn", (OUR_LAYER + "self_attention.decay",)),
        Name(
            LAYER + "linear_attn.in_proj_qkvz",
            tuple(f"{OUR_LAYER}self_attention.in_proj.{name}" for name in ("query", "key", "value", "gate")),
            "by_key_head",
        ),
        Name(
            LAYER + "linear_attn.in_proj_ba",
            tuple(f"{OUR_LAYER}self_attention.in_proj.{name}" for name in ("beta", "dt")),
            "by_key_head",
        ),
        *NETWORK,
        *EXPERT_NETWORKS,
        *network("mlp.shared_expert.", "feed_forward.shared."),
        Name(LAYER + "mlp.shared_expert_gate", (OUR_LAYER + "feed_forward.shared_gate",)),
    ),
    prefix="model.",
    ignored=(*FREQUENCIES, r"mtp\..*"),
    parts=parts_of("mlp", "gate_proj", "up_proj", "down_proj"),
)
