"""DiffLlama: Llama with differential attention (Ye et al. 2025)."""

from txlib.attention import DifferentialConfig
from txlib.models.families.family import Family, Head, Setting, same
from txlib.models.families.llama import FREQUENCIES, IMPLIED, LLAMA, settings
from txlib.models.gpt import GPT, GPTConfig

DIFFLLAMA = Family(
    "diffllama",
    GPTConfig,
    heads={"DiffLlamaForCausalLM": Head(GPT)},
    implied={**IMPLIED, "block.ffn.bias": False, "block.attention.mechanism.type": DifferentialConfig.name},
    settings=(
        *settings(base=10_000.0, eps=1e-5),
        Setting("attention_bias", "block.attention.bias", False, words={True: True, False: False}),
        Setting("rms_norm_eps", "block.attention.mechanism.eps", 1e-5),
    ),
    names=(*LLAMA.names, *same("model.layers.{}.", "decoder.layers.{}.", ("self_attn", "self_attention.mechanism"))),
    prefix="model.",
    ignored=FREQUENCIES,
)
