"""What fewer bytes cost a real model in loss, and what a draft head saves: the bundled glassllm-en, one thread.

    python benchmarks/cheaper.py [--rounds 5] [--save]

Weights in 32, 16, 8 and 4 bits and a cache in 32 and 8: bytes, and loss on Shakespeare's Julius Caesar, which the model
has not seen (nats per token; 64 pieces of 64 tokens). Then three draft heads, one per seed, each trained for 300 steps
on texts that the model has written itself: tokens per call of the model and CPU time for 24 greedy texts of 64 tokens,
against the model alone and against a table of pairs, counted in the same texts, as a draft. All write the same tokens.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
import torch.nn.functional as F
from compare import Row, in_turns, median, save, table

from txlib import load_pretrained
from txlib.attention import causal
from txlib.attention.paged import MEMORIES, PagedDecoderCache, PagedStep
from txlib.data import shakespeare, shipped
from txlib.generation import DraftHead, generate, speculate
from txlib.layers import pack_weights
from txlib.text import load_tokenizer

BITS = {"32": None, "16": "fp16", "8": "int8", "4": "int4"}  # of a weight
CACHES = {"32": "auto", "8": "int8"}
PIECES, LENGTH, BLOCK = 64, 64, 16
STEPS, AHEAD, NEW = 300, 3, 64
PROMPTS = [[token] for token in range(10, 34)]


def glass() -> Any:
    return load_pretrained(shipped("glassllm-en"), dtype=torch.float32).eval()


@torch.no_grad()
def loss(model: Any, pieces: torch.Tensor, cache: str) -> float:
    """The loss of the pieces in nats per token, read through a paged cache."""
    count, length = pieces.shape
    blocks = -(-length // BLOCK)
    memory = PagedDecoderCache(len(model.decoder.layers), count * blocks, BLOCK, MEMORIES[cache])
    step = PagedStep([(list(range(i * blocks, (i + 1) * blocks)), 0, length) for i in range(count)], BLOCK)
    memory.begin(step)
    x = model.embed(pieces.view(1, -1), position_ids=step.positions[None])
    logits = model.logits(model.decoder(x, causal(), cache=memory)).view(count, length, -1)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), pieces[:, 1:].flatten()).item()


def bytes_of_weights(model: Any, bits: str) -> float:
    """Bytes of all parameters; in 4 bits, each group of 32 has two numbers of 16 bits more."""
    each = {"32": 4, "16": 2, "8": 1, "4": 0.5 + 4 / 32}[bits]
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    return each * matrices + 4 * sum(weight.numel() for weight in model.parameters() if weight.dim() != 2)


def bytes_of_cache(model: Any, bits: str) -> int:
    """Bytes per token: a key and a value for each layer and head; in 8 bits, each with a step of 32 bits."""
    attention = model.decoder.layers[0].self_attention
    vectors = 2 * len(model.decoder.layers) * attention.kv_heads
    return vectors * (4 * attention.head_dim if bits == "32" else attention.head_dim + 4)


def own_texts(model: Any) -> torch.Tensor:
    """256 texts that the model draws: (256, 101)."""
    starts = torch.randint(4, model.config.vocab_size, (256, 1), generator=torch.Generator().manual_seed(0)).tolist()
    texts = generate(model, starts, max_new_tokens=100, do_sample=True, temperature=0.8, seed=0, eos_id=())
    return torch.tensor([start + text for start, text in zip(starts, texts, strict=True)])


def trained_head(model: Any, texts: torch.Tensor, seed: int) -> tuple[DraftHead, float]:
    """A head, and how many CPU seconds it took."""
    torch.manual_seed(seed)
    began, head = time.process_time(), DraftHead(model, 2 * model.config.block.d_model)
    optimizer = torch.optim.AdamW(head.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        value = head.loss(texts[torch.randint(len(texts), (32,))])
        value.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"seed {seed}, step {step + 1} of {STEPS}: loss {value.item():.2f}", flush=True)
    return head, time.process_time() - began


def pairs(texts: torch.Tensor, vocab_size: int) -> Callable[[list[int]], torch.Tensor]:
    """A draft that knows how often each token came after the last one."""
    counts = torch.zeros(vocab_size, vocab_size)
    counts.index_put_(
        (texts[:, :-1].flatten(), texts[:, 1:].flatten()), torch.ones(texts[:, 1:].numel()), accumulate=True
    )
    return lambda ids: (counts[ids[-1]] + 1e-3).log()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write results/cheaper.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer, model = load_tokenizer(shipped("glassllm-en")), glass()
    play = torch.tensor(tokenizer.encode(shakespeare().test[: 8 * PIECES * LENGTH]))
    pieces = play[: PIECES * LENGTH].view(PIECES, LENGTH)
    fewer = []
    for bits, kind in BITS.items():
        packed = glass() if kind is None else pack_weights(glass(), kind)
        fewer.append(
            {
                "what": "weights",
                "bits": bits,
                "bytes": bytes_of_weights(model, bits),
                "loss": loss(packed, pieces, "auto"),
            }
        )
    for bits, cache in CACHES.items():
        fewer.append(
            {"what": "cache", "bits": bits, "bytes": bytes_of_cache(model, bits), "loss": loss(model, pieces, cache)}
        )
    for row in fewer:
        print(f"{row['what']} in {row['bits']:>2} bits: {row['bytes']:9,.0f} bytes, loss {row['loss']:.4f}")

    texts = own_texts(model)
    drafts: dict[str, Any] = {"pairs": pairs(texts, model.config.vocab_size)}
    seconds_of_training = {}
    for seed in range(3):
        drafts[f"head, seed {seed}"], seconds_of_training[seed] = trained_head(model, texts, seed)
    options: dict[str, Any] = {"max_new_tokens": NEW, "eos_id": ()}
    alone = generate(model, PROMPTS, **options)
    calls = {}
    for name, draft in drafts.items():
        found = [speculate(model, draft, prompt, ahead=AHEAD, **options) for prompt in PROMPTS]
        if [each.tokens for each in found] != alone:
            raise SystemExit(f"with {name} as a draft, other tokens come out")
        calls[name] = {
            "tokens_per_call": len(PROMPTS) * NEW / sum(each.calls for each in found),
            "accepted": sum(each.accepted for each in found) / sum(each.guessed for each in found),
        }
        print(name, calls[name])

    def clock(write: Callable[[list[int]], object]) -> Callable[[], float]:
        def measure() -> float:
            began = time.process_time()
            for prompt in PROMPTS:
                write(prompt)
            return time.process_time() - began

        return measure

    ways = {"alone": clock(lambda prompt: generate(model, [prompt], **options))}
    for name in ("pairs", "head, seed 0"):
        draft = drafts[name]
        ways[name] = clock(lambda prompt, draft=draft: speculate(model, draft, prompt, ahead=AHEAD, **options))
    measured = in_turns(ways, arguments.rounds)
    rows = [
        Row(f"draft: {name}", "CPU seconds", median(measured["alone"]), median(measured[name]))
        for name in ("pairs", "head, seed 0")
    ]
    print(table(rows))
    if arguments.save:
        more = {"fewer": fewer, "drafts": calls, "seconds_of_training": seconds_of_training, "ahead": AHEAD}
        print(save("cheaper", rows, measured, ["torch", "txlib-course"], **more))


if __name__ == "__main__":
    main()
