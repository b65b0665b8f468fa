"""Write tiny_qwen3/: a random Qwen 3 of transformers, and what it makes of a text, for lesson 17.

    python data/tiny_qwen3.py

It needs transformers. Gains and head size are those that a careless port gets wrong: no gain is 1, and
head_dim is not hidden_size / num_attention_heads.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

FOLDER = Path(__file__).with_suffix("")
KEPT = (
    *("architectures", "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
    *("attention_bias", "tie_word_embeddings"),
)


def main() -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=64,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            around = 1.0 if parameter.dim() == 1 else 0.0  # gains, matrices
            parameter.copy_(around + 0.4 * torch.randn_like(parameter))
        ids = torch.randint(32, (2, 12))
        out = model(ids, output_hidden_states=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, FOLDER / "model.safetensors", metadata={"format": "pt"})
    entries = config.to_dict()
    entries["architectures"] = ["Qwen3ForCausalLM"]
    settings = {name: entries[name] for name in KEPT} | {"rope_theta": 10_000.0, "dtype": "float32"}
    (FOLDER / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    reference = {"ids": ids, "logits": out.logits.contiguous()}
    for layer, state in enumerate(out.hidden_states[1:-1]):  # the last one has been normed
        reference[f"layers.{layer}"] = state.contiguous()
    save_file(reference, FOLDER / "reference.safetensors")


if __name__ == "__main__":
    main()
