"""Compare GPT-2's recipe with `txlib train shakespeare` on characters of tiny Shakespeare: equal CPU time, one thread.

    python benchmarks/charlm.py [--seconds 20] [--rounds 1] [--save]

The setting is the one that nanoGPT's README gives for a CPU: 4 layers, 4 heads, width 128, context 64, 0.80 million
parameters. The peer is that recipe with our modules (GPT-2's block without biases, AdamW at 1e-3 with a cosine schedule
to 1e-4, 100 steps of warm-up, weight decay 0.1, 2000 batches of 12 random windows, float32); ours is the preset
`small`, given as many CPU seconds as the peer took. The loss is the mean over all windows of 64 characters in the last
tenth of the text. Without $TXLIB_DATA/tinyshakespeare, it uses the bundled plays.
"""

import argparse
import math
import os
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
import torch.nn.functional as F
from compare import Row, median, save, table

from txlib.data import shakespeare
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.recipes.language import PRESETS, make_model, make_tokenizer, validation_loss, window_batches, window_loss
from txlib.training import train

ITERATIONS, BATCH, CONTEXT = 2000, 12, 64
WARMUP, RATE, LAST_RATE, DECAY, BETAS = 100, 1e-3, 1e-4, 0.1, (0.9, 0.99)
TIMED = 20  # steps that tell how many fit into given seconds
LIMIT = 1.65  # nats per character, where the peer has 1.90
SOONER = 0.3  # share of the time after which ours should have the peer's loss

Outcome = tuple[float, float, int]  # validation loss, CPU seconds, steps


def peer_model(vocabulary: int) -> GPT:
    """GPT-2 of that size; nanoGPT leaves the biases out and counts characters."""
    block = BlockConfig.of_sizes(128, 4, 512, activation="gelu", bias=False, position="learned")
    return GPT(GPTConfig(vocabulary, block, layers=4, max_length=CONTEXT))


def peer(train_ids: torch.Tensor, unseen: torch.Tensor, vocabulary: int, seconds: float | None, seed: int) -> Outcome:
    """GPT-2's recipe: 2000 iterations, or as many as fit into the seconds. The loop is nanoGPT's, not `train`: it is
    what ours is compared with.
    """
    torch.manual_seed(seed)
    model = peer_model(vocabulary)
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)

    def run(iterations: int) -> float:
        began = time.process_time()
        for step in range(iterations):
            warmup = min(WARMUP, iterations // 10 + 1)
            along = max(0.0, (step - warmup) / max(1, iterations - warmup))
            rate = LAST_RATE + 0.5 * (RATE - LAST_RATE) * (1 + math.cos(math.pi * along))
            for group in optimizer.param_groups:
                group["lr"] = rate if step >= warmup else RATE * (step + 1) / (warmup + 1)
            starts = torch.randint(len(train_ids) - CONTEXT, (BATCH, 1))
            windows = train_ids[starts + torch.arange(CONTEXT + 1)]  # (batch, context + 1)
            logits = model(windows[:, :-1]).logits  # (batch, context, vocab)
            F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return time.process_time() - began

    iterations = ITERATIONS
    if seconds is not None:
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        iterations = max(1, int(seconds / (run(TIMED) / TIMED)))
        model.load_state_dict(start)
        optimizer.state.clear()
    took = run(iterations)
    return validation_loss(model.eval(), unseen, CONTEXT), took, iterations


def ours(train_ids: torch.Tensor, unseen: torch.Tensor, vocabulary: int, seconds: float, seed: int) -> Outcome:
    """The preset `small`, as many steps as fit into the seconds."""
    preset = PRESETS["small"]

    def run(steps: int) -> tuple[GPT, float]:
        torch.manual_seed(seed)
        model = make_model(preset, vocabulary)
        batches = window_batches(train_ids, preset.context, preset.batch_size // preset.context, seed=seed)
        progress = train(model, batches, window_loss, preset.training, steps=steps, quiet=True)
        return model, progress.cpu_seconds

    run(TIMED)  # the first steps are slower
    steps = max(1, int(seconds / (run(TIMED)[1] / TIMED)))
    model, took = run(steps)
    return validation_loss(model, unseen, CONTEXT), took, steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, help="CPU seconds for each, instead of the peer's 2000 iterations")
    parser.add_argument("--rounds", type=int, default=1, help="seeds")
    parser.add_argument("--save", action="store_true", help="write results/charlm.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        source, texts = "tinyshakespeare", shakespeare("tinyshakespeare")
    except FileNotFoundError:
        source, texts = "shakespeare", shakespeare()
    print(f"text: {source}, {len(texts.train):,} characters; validation {len(texts.validation):,}")
    numbers = {character: number for number, character in enumerate(sorted(set(texts.train + texts.validation)))}
    tokenizer = make_tokenizer("characters", texts.train, 0)
    their_ids = [torch.tensor([numbers[character] for character in text]) for text in (texts.train, texts.validation)]
    our_ids = [torch.tensor(tokenizer.encode(text)) for text in (texts.train, texts.validation)]

    measured: dict[str, list[float]] = {}

    def note(way: str, run: Callable[[], Outcome]) -> float:
        """Run once, keep loss, time and steps; returns the time."""
        loss, took, steps = run()
        for what, value in ("loss", loss), ("CPU s", took), ("steps", steps):
            measured.setdefault(f"{way}, {what}", []).append(value)
        print(f"{way}: {loss:.4f} nats per character, {took:.0f} CPU seconds, {steps} steps", flush=True)
        return took

    for seed in range(arguments.rounds):
        took = note("peer", lambda: peer(*their_ids, len(numbers), arguments.seconds, seed))  # noqa: B023
        note("ours", lambda: ours(*our_ids, len(tokenizer), took, seed))  # noqa: B023
        note("ours sooner", lambda: ours(*our_ids, len(tokenizer), SOONER * took, seed))  # noqa: B023
    middle = {what: median(values) for what, values in measured.items()}
    sizes = [
        sum(weight.numel() for weight in model.parameters()) / 1e6
        for model in (peer_model(len(numbers)), make_model(PRESETS["small"], len(tokenizer)))
    ]
    limit = None if arguments.seconds or source != "tinyshakespeare" else LIMIT
    rows = [
        Row("parameters", "millions", *sizes, sizes[0]),
        Row("training", "CPU s", middle["peer, CPU s"], middle["ours, CPU s"]),
        Row("validation loss", "nats per character", middle["peer, loss"], middle["ours, loss"], limit),
        Row(
            f"validation loss after {SOONER:g} of the time",
            "nats",
            middle["peer, loss"],
            middle["ours sooner, loss"],
            middle["peer, loss"],
        ),
    ]
    print(table(rows))
    if arguments.save:
        print(save("charlm", rows, measured, ["torch", "txlib-course"]))


if __name__ == "__main__":
    main()
