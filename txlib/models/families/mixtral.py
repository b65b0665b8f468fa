"""Mixtral: Llama with a mixture of experts (Jiang et al. 2024)."""

from txlib.models.families.family import Family, Head, Setting, same
from txlib.models.families.llama import FIXED, FREQUENCIES, IMPLIED, NAMES, settings
from txlib.models.gpt import GPT, GPTConfig


def parts(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int | slice, ...]]:
    """Return the experts in one tensor, as transformers holds them in memory and can write them to files."""
    layer, experts = name.partition(".mlp.experts.")[0], range(shape[0] if shape else 0)
    expert = f"{layer}.block_sparse_moe.experts."
    if name.endswith(".mlp.experts.gate_up_proj"):
        half = shape[1] // 2
        gates = {f"{expert}{i}.w1.weight": (i, slice(half)) for i in experts}
        return gates | {f"{expert}{i}.w3.weight": (i, slice(half, None)) for i in experts}
    if name.endswith(".mlp.experts.down_proj"):
        return {f"{expert}{i}.w2.weight": (i,) for i in experts}
    return {}


MIXTRAL = Family(
    "mixtral",
    GPTConfig,
    heads={"MixtralForCausalLM": Head(GPT)},
    implied={
        **IMPLIED,
        "block.attention.bias": False,
        "block.ffn.bias": False,
        "block.ffn.type": "mixture",
        "block.ffn.normalize": True,
    },
    fixed={**FIXED, "sliding_window": None},
    settings=(
        *settings(base=1e6, eps=1e-5),
        Setting("num_local_experts", "block.ffn.experts"),
        Setting("num_experts_per_tok", "block.ffn.top_k"),
        Setting("router_aux_loss_coef", "block.ffn.balance", 0.001),
        Setting("router_jitter_noise", "block.ffn.jitter", 0.0),
    ),
    names=(
        *NAMES,
        *same(
            "model.layers.{}.block_sparse_moe.",
            "decoder.layers.{}.feed_forward.",
            ("gate", "router"),
            ("experts.{}.w1", "experts.{}.gate_proj"),
            ("experts.{}.w3", "experts.{}.up_proj"),
            ("experts.{}.w2", "experts.{}.down_proj"),
        ),
    ),
    prefix="model.",
    ignored=FREQUENCIES,
    renamed=((".mlp.gate.", ".block_sparse_moe.gate."),),
    parts=parts,
)
