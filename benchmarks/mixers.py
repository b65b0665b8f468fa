"""Race sequence mixers: what a small decoder learns after equal CPU time, with each of them in the place of attention.

    python benchmarks/mixers.py [--seconds 60] [--seeds 3] [--rates 0.003] [--only softmax delta] [--processes 2]
                                [--save]
    python benchmarks/mixers.py --speed [--save]

All models have two layers of width 64 with four heads; only the mixer differs, so parameters do, too. Each learns five
skills from nothing: to copy a text, to recall values that were written once for a key, to recall the last of several,
to count, and to predict characters of Shakespeare's plays. Of several rates each mixer has the one with the best mean.
A score is the mean over seeds ± the half-width of its 95% interval (Student's t). Each run has one thread, and
`--processes` of them run at a time. `--save` writes results/mixers.json and the table, results/mixers.md, after each
mixer, and keeps the rows that have the same setting.
`--speed` compares milliseconds with transformers' torch code and, if fla-core is installed, with its plain chunks.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from inspect import unwrap
from itertools import product
from multiprocessing import get_context
from statistics import mean, stdev

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
import torch.nn.functional as F
from compare import RESULTS, Row, environment, in_turns, median, save, table
from torch import Tensor

from txlib.attention import (
    ChosenBlocksConfig,
    DifferentialConfig,
    GatedLinearConfig,
    LinearConfig,
    delta_rule,
    global_tokens,
    sliding_window,
)
from txlib.attention.kernelized import running_sums
from txlib.data import shakespeare
from txlib.layers import BlockConfig, DeltaConfig, KimiDeltaConfig, LatentConfig, Mamba2Config
from txlib.models import GPT, GPTConfig

WIDTH, HEADS, D_FF, LAYERS, LENGTH, VOCAB_SIZE = 64, 4, 128, 2, 64, 34
WINDOW, SINKS = 8, 2
BATCH, EXAMPLES, WARMUP = 32, 512, 30
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}  # by number of seeds
GATED_DELTA = DeltaConfig(gated=True, output_gate=True)
MIXERS: dict[str, dict] = {
    "softmax": {"position": "rotary"},
    "window": {"position": "rotary", "mask": sliding_window(WINDOW)},
    "window with sinks": {
        "position": "rotary",
        "mask": sliding_window(WINDOW) | global_tokens(list(range(SINKS))),
    },
    "chosen blocks": {"position": "rotary", "mechanism": ChosenBlocksConfig(block=4, top=3)},
    "linear": {"position": "rotary", "mechanism": LinearConfig()},
    "gated": {"position": "none", "mechanism": GatedLinearConfig()},
    "delta": {"position": "none", "mixer": DeltaConfig()},
    "gated delta": {"position": "none", "mixer": GATED_DELTA},
    "kimi delta": {"position": "none", "mixer": KimiDeltaConfig()},
    "mamba2": {"position": "none", "mixer": Mamba2Config(state_dim=16)},
    "latent": {"position": "rotary", "mixer": LatentConfig(rank=16, rotary_dim=8)},
    "differential": {"position": "rotary", "mechanism": DifferentialConfig()},
    "hybrid": {"position": "rotary", "layer_pattern": ({"mixer": GATED_DELTA}, {})},
}
Batch = tuple[Tensor, Tensor]  # ids (batch, length) and what each position should say; -100 = anything


def copying(rng: torch.Generator, batch: int) -> Batch:
    """16 symbols, a mark, and the same again."""
    symbols = torch.randint(16, (batch, 16), generator=rng)
    ids = torch.cat([symbols, torch.full((batch, 1), 32), symbols[:, :-1]], dim=1)
    return ids, torch.cat([torch.full((batch, 16), -100), symbols], dim=1)


def recalling(rng: torch.Generator, batch: int) -> Batch:
    """8 keys, each followed by its value; then the keys in another order, each of which asks for its value."""
    keys = torch.rand(batch, 16, generator=rng).argsort(dim=1)[:, :8]
    values, order = (
        torch.randint(16, 32, keys.shape, generator=rng),
        torch.rand(keys.shape, generator=rng).argsort(dim=1),
    )
    return asked(keys, values, keys.gather(1, order), values.gather(1, order))


def overwriting(rng: torch.Generator, batch: int) -> Batch:
    """12 values for 4 keys, each of which asks for the last of its own."""
    keys = torch.cat(
        [torch.rand(batch, 4, generator=rng).argsort(dim=1), torch.randint(4, (batch, 8), generator=rng)], 1
    )
    values, last = torch.randint(16, 32, keys.shape, generator=rng), torch.zeros(batch, 4, dtype=torch.long)
    for write in range(keys.shape[1]):
        last.scatter_(1, keys[:, write : write + 1], values[:, write : write + 1])
    return asked(keys, values, torch.arange(4).expand(batch, 4), last)


def asked(keys: Tensor, values: Tensor, questions: Tensor, answers: Tensor) -> Batch:
    """Return keys with their values, then questions, of which only the answers count."""
    pairs = torch.stack([keys, values], dim=-1).flatten(1)
    return torch.cat([pairs, questions], dim=1), torch.cat([torch.full_like(pairs, -100), answers], dim=1)


def counting(rng: torch.Generator, batch: int) -> Batch:
    """32 symbols of four kinds; each position says how often its symbol has occurred so far."""
    symbols = torch.randint(4, (batch, 32), generator=rng)
    counts = F.one_hot(symbols, 4).cumsum(dim=1).gather(2, symbols[..., None])[..., 0]
    return symbols, counts


SKILLS: dict[str, Callable[[torch.Generator, int], Batch]] = {
    "copying": copying,
    "recalling": recalling,
    "overwriting": overwriting,
    "counting": counting,
}


class Plays:
    """Windows of Shakespeare's plays, character by character."""

    def __init__(self) -> None:
        texts = shakespeare()
        numbers = {character: number for number, character in enumerate(sorted(set(texts.train + texts.validation)))}
        self.vocab_size = len(numbers)
        self.train, self.unseen = (
            torch.tensor([numbers[character] for character in text]) for text in (texts.train, texts.validation)
        )

    def __call__(self, rng: torch.Generator, batch: int) -> Batch:
        """Return random windows of the training part."""
        return self.windows(self.train, torch.randint(len(self.train) - LENGTH, (batch, 1), generator=rng))

    def windows(self, ids: Tensor, starts: Tensor) -> Batch:
        """Return a window from each start, and its next characters."""
        windows = ids[starts + torch.arange(LENGTH + 1)]
        return windows[:, :-1], windows[:, 1:]


def make(name: str, vocab_size: int, seed: int) -> GPT:
    """Return a new model with this mixer."""
    torch.manual_seed(seed)
    options = {"norm": "rms", "activation": "swiglu", "bias": False, **MIXERS[name]}
    return GPT(
        GPTConfig(vocab_size, BlockConfig.of_sizes(WIDTH, HEADS, D_FF, **options), layers=LAYERS, max_length=LENGTH)
    )


def train(model: GPT, draw: Callable[[torch.Generator, int], Batch], seconds: float, rate: float, seed: int) -> int:
    """Train for so many CPU seconds, with a rate that falls to zero over them; return the number of steps."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    model(draw(rng, BATCH)[0]).logits.sum().backward()  # the first step takes longer
    optimizer.zero_grad(set_to_none=True)
    began, steps = time.process_time(), 0
    while (past := (time.process_time() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (steps + 1) / WARMUP) * (1 - past)
        ids, labels = draw(rng, BATCH)
        F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
    return steps


@torch.no_grad()
def run(name: str, skill: str, plays: Plays, seconds: float, rate: float, seed: int) -> dict[str, float]:
    """Train a model and return its score: how much of unseen examples it gets right, or nats per character."""
    is_text = skill == "plays"
    model = make(name, plays.vocab_size if is_text else VOCAB_SIZE, seed).train()
    with torch.enable_grad():
        steps = train(model, plays if is_text else SKILLS[skill], seconds, rate, seed)
    if is_text:
        starts = torch.linspace(0, len(plays.unseen) - LENGTH - 1, EXAMPLES).long()[:, None]
        ids, labels = plays.windows(plays.unseen, starts)
    else:
        ids, labels = SKILLS[skill](torch.Generator().manual_seed(10_000 + seed), EXAMPLES)
    logits = model.eval()(ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    right = (logits.argmax(dim=-1) == labels)[labels != -100].float().mean().item()
    return {"score": loss if is_text else right, "steps": steps}


def race(
    names: list[str], seconds: float, seeds: int, rates: list[float], processes: int
) -> Iterator[tuple[str, dict]]:
    """Yield for each mixer its parameters, and each skill's scores at its best rate."""
    plays = Plays()
    skills = (*SKILLS, "plays")
    options = {"mp_context": get_context("spawn"), "initializer": torch.set_num_threads, "initargs": (1,)}
    pool = ProcessPoolExecutor(processes, **options)
    runs = {
        case: pool.submit(run, case[0], case[1], plays, seconds, *case[2:])
        for case in product(names, skills, rates, range(seeds))
    }
    try:
        for name in names:
            parameters = sum(weight.numel() for weight in make(name, VOCAB_SIZE, 0).parameters())
            row = {}
            for skill in skills:
                tries = {rate: [runs[name, skill, rate, seed].result() for seed in range(seeds)] for rate in rates}
                means = {rate: mean(one["score"] for one in tried) for rate, tried in tries.items()}
                best = (min if skill == "plays" else max)(means, key=means.__getitem__)
                scores, steps = ([one[what] for one in tries[best]] for what in ("score", "steps"))
                row[skill] = {"rate": best, "scores": scores, "steps": steps}
                print(f"{name}, {skill}: {written(scores, skill)}", flush=True)
            yield name, {"parameters": parameters, "skills": row}
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C no more runs begin


def written(scores: list[float], skill: str) -> str:
    """Return a mean with the half-width of its interval."""
    half = T95.get(len(scores), 1.96) * stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None
    form = "{:.2f}" if skill == "plays" else "{:.0%}"
    return form.format(mean(scores)) + ("" if half is None else " ± " + form.format(half))


def as_markdown(result: dict[str, dict], setting: str) -> str:
    """Return the table."""
    titles = ["mixer", "parameters", *SKILLS, "Shakespeare, nats"]
    lines = [setting, "", "| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for name, row in result.items():
        cells = [written(found["scores"], skill) for skill, found in row["skills"].items()]
        lines.append("| " + " | ".join([name, f"{row['parameters']:,}", *cells]) + " |")
    return "\n".join(lines) + "\n"


def speed(rounds: int, length: int = 1024, backward: bool = True) -> tuple[list[Row], dict[str, list[float]]]:
    """Return milliseconds of the scans alone, heads of 64, beside other torch code for the same numbers."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    # where fla-core is installed, transformers would run its kernels, which need a GPU
    mamba2_chunk_scan, torch_chunk_gated_delta_rule = map(unwrap, (mamba2_chunk_scan, torch_chunk_gated_delta_rule))
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, 64) for _ in range(3))
    k, beta, fade = F.normalize(k, dim=-1), torch.rand(1, HEADS, length), -torch.rand(1, HEADS, length) / 10
    tensors = [x.requires_grad_(backward) for x in (q, k, v, beta, fade)]
    turned = [x.transpose(1, 2) for x in tensors]  # (batch, length, heads, …)
    minus_one = -torch.ones(HEADS)

    def timed(work: Callable[[], Tensor]) -> Callable[[], float]:
        def once() -> float:
            began = time.process_time()
            out = work()
            if backward:
                torch.autograd.grad(out.sum(), tensors, allow_unused=True)
            return 1000 * (time.process_time() - began)

        return once

    ways = {
        "delta, transformers": lambda: torch_chunk_gated_delta_rule(*turned[:3], turned[4], turned[3])[0],
        "delta, ours": lambda: delta_rule(q * 0.125, k, v, beta, fade=fade)[0],
        "mamba2, transformers": lambda: mamba2_chunk_scan(
            turned[2], -turned[4], minus_one, turned[1], turned[0], chunk_size=64
        ),
        "mamba2, ours": lambda: running_sums(q, k, -fade[..., None] * v, 0, fade=fade)[0],
    }
    for peer, ours in ("delta, transformers", "delta, ours"), ("mamba2, transformers", "mamba2, ours"):
        torch.testing.assert_close(ways[peer]().transpose(1, 2), ways[ours](), rtol=1e-4, atol=1e-4)
    try:
        from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule
    except ImportError:
        pass
    else:
        ways["delta, fla"] = lambda: naive_chunk_gated_delta_rule(*turned[:3], turned[4], turned[3])[0]
    measured = in_turns({name: timed(work) for name, work in ways.items()}, rounds, quiet=True)
    middle = {name: median(values) for name, values in measured.items()}
    rows = [
        Row(f"{name.replace(',', ' beside')}, n = {length}", "CPU ms", value, middle[name.partition(",")[0] + ", ours"])
        for name, value in middle.items()
        if not name.endswith("ours")
    ]
    return rows, measured


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds for each model and skill")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.003])
    parser.add_argument("--only", nargs="+", default=list(MIXERS), choices=list(MIXERS), metavar="MIXER")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time; at most as many as free cores")
    parser.add_argument("--speed", action="store_true", help="milliseconds of the scans instead of the race")
    parser.add_argument("--save", action="store_true", help="write results/mixers.json and .md, or mixers_speed.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.speed:
        rows, measured = speed(rounds=11)
        print(table(rows))
        if given.save:
            print(save("mixers_speed", rows, measured, ["torch", "transformers", "fla-core", "txlib-course"]))
        return
    rates = ", ".join(f"{rate:g}" for rate in given.rates)
    setting = f"{given.seconds:g} CPU seconds for each skill, {given.seeds} seeds, rates {rates}, one thread."
    rows = {}
    for name, row in race(given.only, given.seconds, given.seeds, given.rates, given.processes):
        rows = {**(measured_before(setting) if given.save else rows), name: row}
        rows = {name: rows[name] for name in MIXERS if name in rows}
        if given.save:
            document = {**environment(["torch", "txlib-course"]), "setting": setting, "rows": rows}
            (RESULTS / "mixers.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            (RESULTS / "mixers.md").write_text(as_markdown(rows, setting), encoding="utf-8")
    print(as_markdown(rows, setting))


def measured_before(setting: str) -> dict[str, dict]:
    """Return the rows that results/mixers.json holds of the same setting."""
    path = RESULTS / "mixers.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document["rows"] if document.get("setting") == setting else {}


if __name__ == "__main__":
    main()
