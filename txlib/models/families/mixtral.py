"""Llama with a mixture of experts: Mixtral (Jiang et al. 2024), and Qwen3's (Qwen Team 2025)."""

from collections.abc import Callable
from typing import Any

from txlib.models.families.family import Family, Head, Setting, Settings, Translation, same
from txlib.models.families.llama import (
    ACTIVATION,
    ATTENTION_BIAS,
    EXPERT_NETWORKS,
    FREQUENCIES,
    IMPLIED,
    LAYER,
    NAMES,
    NETWORK,
    OUR_LAYER,
    QK_NORMS,
    blocks_of,
    rotary,
    settings,
    shortest,
    sizes,
    used_width,
    width_entries,
    width_of,
    window,
    window_of_all,
)
from txlib.models.gpt import GPT, GPTConfig

Parts = Callable[[str, tuple[int, ...]], dict[str, tuple[int | slice, ...]]]


def parts_of(module: str, gate: str, up: str, down: str) -> Parts:
    """Return the function that finds experts in one tensor, as transformers holds them in memory and can write them.

    Args:
        module, gate, up, down: names of the network and of an expert's projections in other files.
    """

    def parts(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int | slice, ...]]:
        layer, experts = name.partition(".mlp.experts.")[0], range(shape[0] if shape else 0)
        expert = f"{layer}.{module}.experts."
        if name.endswith(".mlp.experts.gate_up_proj"):
            half = shape[1] // 2
            gates = {f"{expert}{i}.{gate}.weight": (i, slice(half)) for i in experts}
            return gates | {f"{expert}{i}.{up}.weight": (i, slice(half, None)) for i in experts}
        if name.endswith(".mlp.experts.down_proj"):
            return {f"{expert}{i}.{down}.weight": (i,) for i in experts}
        return {}

    return parts


EXPERTS = {**IMPLIED, "block.ffn.bias": False, "block.ffn.type": "mixture"}

MIXTRAL = Family(
    "mixtral",
    GPTConfig,
    heads={"MixtralForCausalLM": Head(GPT)},
    implied={**EXPERTS, "block.attention.bias": False, "block.ffn.normalize": True},
    settings=(
        *settings(base=1e6, eps=1e-5),
        window_of_all(None),
        Setting("num_local_experts", "block.ffn.experts"),
        Setting("num_experts_per_tok", "block.ffn.top_k"),
        Setting("router_aux_loss_coef", "block.ffn.balance", 0.001),
        Setting("router_jitter_noise", "block.ffn.jitter", 0.0),
    ),
    names=(
        *NAMES,
        *same(
            LAYER + "block_sparse_moe.",
            OUR_LAYER + "feed_forward.",
            ("gate", "router"),
            ("experts.{}.w1", "experts.{}.gate_proj"),
            ("experts.{}.w3", "experts.{}.up_proj"),
            ("experts.{}.w2", "experts.{}.down_proj"),
        ),
    ),
    prefix="model.",
    ignored=FREQUENCIES,
    renamed=((".mlp.gate.", ".block_sparse_moe.gate."),),
    parts=parts_of("block_sparse_moe", "w1", "w3", "w2"),
)


def networks_of(settings: Settings) -> list[dict[str, Any]]:
    """Return the options of each layer that has one wide network instead of experts; the others have none."""
    step, only = settings.get("decoder_sparse_step", 1), settings.get("mlp_only_layers") or []
    dense = {"experts": None, "d_ff": settings.get("intermediate_size", 6144)}
    layers = range(settings["num_hidden_layers"])
    return [dense if i in only or (i + 1) % step else {} for i in layers]


def write_dense_layers(config: GPTConfig) -> dict[str, Any]:
    """Return the entries that `networks_of` reads."""
    networks = [block.ffn for block in blocks_of(config)]
    dense = [i for i, network in enumerate(networks) if not hasattr(network, "experts")]
    width = networks[dense[0]].d_ff if dense else config.block.ffn.d_ff
    return {"mlp_only_layers": dense, "decoder_sparse_step": 1, "intermediate_size": width}


def read_window(settings: Settings) -> dict[str, Any]:
    """Return the window of all layers, if it is used."""
    return {"block.attention.mask": window(used_width(settings, 4096))}


def write_window(config: GPTConfig) -> dict[str, Any]:
    """Return the entries of `read_window`."""
    return width_entries(width_of([config.block.attention.mask]))


QWEN3_MOE = Family(
    "qwen3_moe",
    GPTConfig,
    heads={"Qwen3MoeForCausalLM": Head(GPT)},
    implied={**EXPERTS, "block.attention.qk_norm": "rms"},
    settings=(
        ACTIVATION,
        *sizes(eps=1e-6, ids=(None, None, None)),
        rotary(1e4),
        ATTENTION_BIAS,
        Translation(read_window, write_window),
        Translation(lambda settings: {"block.layer_pattern": shortest(networks_of(settings))}, write_dense_layers),
        Setting("moe_intermediate_size", "block.ffn.d_ff", 768),
        Setting("num_experts", "block.ffn.experts", lambda settings: settings.get("num_local_experts", 128)),
        Setting("num_experts_per_tok", "block.ffn.top_k", 8),
        Setting("norm_topk_prob", "block.ffn.normalize", False),
        Setting("router_aux_loss_coef", "block.ffn.balance", 0.001),
    ),
    names=(
        *NAMES,
        *QK_NORMS,
        *NETWORK,
        *EXPERT_NETWORKS,
    ),
    prefix="model.",
    ignored=FREQUENCIES,
    parts=parts_of("mlp", "gate_proj", "up_proj", "down_proj"),
)
