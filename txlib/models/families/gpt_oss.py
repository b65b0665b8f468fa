"""gpt-oss: experts with biases, a window in every other layer, and a sink in each head (OpenAI 2025)."""

from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation
from txlib.models.families.llama import (
    IMPLIED,
    LAYER,
    NAMES,
    OUR_LAYER,
    layer_types,
    read_rope,
    rope_of,
    rotary,
    sizes,
)
from txlib.models.gpt import GPT, GPTConfig

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}  # where the file has no positions
EXPERT = OUR_LAYER + "feed_forward.experts.{}."


def read_position(settings: Settings) -> dict[str, object]:
    """Return the positions."""
    return {"block.position": read_rope(rope_of(settings, YARN), settings, 150_000.0)}


GPT_OSS = Family(
    "gpt_oss",
    GPTConfig,
    heads={"GptOssForCausalLM": Head(GPT)},
    implied={
        **IMPLIED,
        "block.attention.sinks": True,
        "block.ffn.type": "mixture",
        "block.ffn.activation": "swiglu_clamped",
        "block.ffn.bias": True,
        "block.ffn.router_bias": True,
        "block.ffn.normalize": True,
    },
    fixed={"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    settings=(
        *sizes(eps=1e-5, head_dim=64, ids=(None, None, None)),
        Translation(read_position, rotary(150_000.0).write),
        layer_types(2, 128),
        Setting("attention_bias", "block.attention.bias", True, words={True: True, False: False}),
        Setting("intermediate_size", "block.ffn.d_ff", 2880),
        Setting("num_local_experts", "block.ffn.experts", 128),
        Setting("num_experts_per_tok", "block.ffn.top_k", 4),
        Setting("router_aux_loss_coef", "block.ffn.balance", 0.001),
    ),
    names=(
        *NAMES,
        Name(LAYER + "self_attn.sinks", (OUR_LAYER + "self_attention.sinks",)),
        Name(LAYER + "mlp.router", (OUR_LAYER + "feed_forward.router",)),
        Name(LAYER + "mlp.experts.gate_up_proj", (EXPERT + "gate_proj.weight", EXPERT + "up_proj.weight"), "experts"),
        Name(LAYER + "mlp.experts.gate_up_proj_bias", (EXPERT + "gate_proj.bias", EXPERT + "up_proj.bias"), "experts"),
        Name(LAYER + "mlp.experts.down_proj", (EXPERT + "down_proj.weight",), "experts"),
        Name(LAYER + "mlp.experts.down_proj_bias", (EXPERT + "down_proj.bias",), "experts"),
    ),
    prefix="model.",
)
