"""Compare tokens per second with `transformers`, for a decoder of GPT-2's smallest shape, one text, one thread.

    python benchmarks/decode.py [--tokens 64] [--rounds 7] [--save]

Both have the same random weights, loaded from the same folder, and continue the same 16 tokens greedily, each with
its cache; in float32 they must write the same text. Ours runs in float32, and after `pack_weights` with each weight in
16, 8 and 4 bits. Each token reads all weights, so memory bandwidth is the limit: it is measured too.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
from compare import Row, in_turns, median, save, table
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from txlib import load_pretrained
from txlib.generation import generate
from txlib.layers import pack_weights

PROMPT = 16
LIMITS = {"fp32": None, "fp16": 2.2, "int8": 4.4, "int4": None}  # tokens a second, as multiples of the peer's
BYTES = {"fp32": 4, "fp16": 2, "int8": 1, "int4": 0.625}  # of a weight; in 4 bits with its group's numbers


def peer_model() -> nn.Module:
    """GPT-2 small with random weights, large enough that the likeliest token is not always the same."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(eos_token_id=None, bos_token_id=None)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def reading_speed() -> float:
    """Bytes a second at which one thread reads numbers that no cache holds."""
    numbers = torch.ones(100_000_000)
    began = time.process_time()
    numbers.sum()
    return 4 * len(numbers) / (time.process_time() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=64, help="how many to write each time")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write results/decode.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    theirs = peer_model()
    prompt = torch.randint(theirs.config.vocab_size, (1, PROMPT))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = {kind: load_pretrained(folder) for kind in BYTES}
    for kind in ("fp16", "int8", "int4"):
        pack_weights(ours[kind], kind)
    weights = sum(weight.numel() for weight in ours["fp32"].parameters())

    def write_theirs(tokens: int) -> list[int]:
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        return theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, PROMPT:].tolist()

    def write_ours(kind: str, tokens: int) -> list[int]:
        return generate(ours[kind], prompt, max_new_tokens=tokens, eos_id=())[0]

    def speed(write: Callable[[int], object]) -> Callable[[], float]:
        def measure() -> float:
            began = time.process_time()
            write(arguments.tokens)
            return arguments.tokens / (time.process_time() - began)

        return measure

    wanted = write_theirs(arguments.tokens)
    if write_ours("fp32", arguments.tokens) != wanted:
        raise SystemExit("in float32 ours writes other tokens than transformers")
    print(f"in float32 both write the same {len(wanted)} tokens, {len(set(wanted))} of them different")
    ways = {"peer": speed(write_theirs)}
    ways |= {kind: speed(lambda tokens, kind=kind: write_ours(kind, tokens)) for kind in BYTES}
    measured = in_turns(ways | {"bytes read a second": reading_speed}, arguments.rounds)
    middle = {what: median(values) for what, values in measured.items()}
    rows = [
        Row(
            f"GPT-2 small, {kind} weights",
            "tokens/s",
            middle["peer"],
            middle[kind],
            limit and limit * middle["peer"],
            more_is_better=True,
        )
        for kind, limit in LIMITS.items()
    ]
    print(table(rows))
    for kind, size in BYTES.items():
        share = middle[kind] * size * weights / middle["bytes read a second"]
        print(f"{kind}: {share:.0%} of the speed at which the machine can read the weights")
    if arguments.save:
        print(save("decode", rows, measured, ["torch", "transformers", "txlib-course"]))


if __name__ == "__main__":
    main()
