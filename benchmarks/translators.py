"""Compare eight translators of one size after equal CPU time: recurrent, convolutional, Transformers; one thread.

    python benchmarks/translators.py [--seconds 300] [--seeds 3] [--data multi30k] [--out runs/translators] [--save]

All have the parameters of the preset `tiny` (± 10%), the same sentences, batches and vocabulary, and the training of
`txlib train translation --model …`: Muon for the matrices in their layers, but Adam for ConvS2S. `paper` is the
Transformer with all choices of Vaswani et al. (2017): post-norm, sinusoids, Adam and their schedule. First each is
timed, in turns, on batches from a whole epoch, to compute how many steps fit into the seconds: keep the machine idle
during that minute. The rest depends on the steps, not on the clock. BLEU is sacrebleu's on the test sentences;
training FLOPs are counted on one batch in sixteen of an epoch and scaled to the tokens trained on. After an
interruption, the same command continues.

The sentences are Multi30k's in $TXLIB_DATA, else those of the bundled games.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
from compare import RESULTS, environment
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txlib.data import Batch, Splits
from txlib.generation import Translator
from txlib.models.pretrained import load_pretrained
from txlib.recipes import run
from txlib.recipes.translation import Translation
from txlib.recipes.translators import TRANSLATORS
from txlib.text import Tokenizer, load_tokenizer
from txlib.training import optimizers, training_step

TIMED = 32  # steps of each, in turns
DECODED = 200  # test sentences that are translated on the clock, one by one
PRESETS = {name: "tiny" for name in TRANSLATORS} | {"paper": "paper"}

PUBLISHED = {
    "rnn-plain": "17.8 (EN-FR)",
    "rnn": "26.8 (EN-FR)",
    "bytenet": "23.75",
    "lstm": "24.6, 2.3e19 FLOP",
    "conv": "25.16, 9.6e18 FLOP",
    "paper": "27.3, 3.3e18 FLOP",
    "transformer": "–",
    "universal": "28.9",
}
"""BLEU on WMT 2014, English to German unless said, and training FLOPs. From Bahdanau et al. 2015, table 1 (50 words),
Vaswani et al. 2017, table 2 (`lstm`: GNMT + RL), and Dehghani et al. 2019, table 7."""

ORDERS = [
    ("rnn-plain", "rnn", "Bahdanau et al. 2015"),
    ("bytenet", "lstm", "Vaswani et al. 2017"),
    ("lstm", "conv", "Vaswani et al. 2017"),
    ("conv", "paper", "Vaswani et al. 2017"),
    ("paper", "universal", "Dehghani et al. 2019"),
]
"""Which of two is better, in which paper."""


@dataclass
class Setting:
    """What is compared, and what all of it shares."""

    data: str
    seconds: float
    seeds: int
    out: Path
    models: list[str]

    @cached_property
    def splits(self) -> Splits:
        return self.recipe("transformer").load()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.recipe("transformer").make_tokenizer(self.splits)

    def batches(self) -> Sequence[Batch]:
        """Of the first epoch: the same for all."""
        return self.recipe("transformer").make_batches(self.splits, self.tokenizer)(0)

    def model(self, name: str) -> nn.Module:
        """An untrained one."""
        return self.recipe(name).make_model(self.splits, self.tokenizer).train()

    def recipe(self, name: str, seed: int = 0) -> Translation:
        return Translation(**self.options(name, seed))

    def options(self, name: str, seed: int) -> dict[str, Any]:
        model = "transformer" if name == "paper" else name
        return {"data": self.data, "model": model, "preset": PRESETS[name], "seed": seed}


def seconds_per_step(setting: Setting) -> dict[str, float]:
    """CPU seconds of a training step of each: means over the same batches, in turns; measured once per folder."""
    kept = setting.out / "seconds_per_step.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    epoch = setting.batches()
    batches = [epoch[number * len(epoch) // TIMED] for number in range(TIMED)]
    ways = {}
    for name in setting.models:
        recipe, model = setting.recipe(name), setting.model(name)
        training = recipe.training
        ways[name] = (recipe, model, optimizers(model, lr=training.lr, muon_lr=training.muon_lr))
    took: dict[str, list[float]] = {name: [] for name in ways}
    for batch in batches[:2] + batches:
        for name, (recipe, model, optimizer) in ways.items():
            began = time.process_time()  # of single steps, in turns: `train` would run one model to its end
            training_step(model, [batch], recipe.loss, optimizer, clip=recipe.training.clip)
            took[name].append(time.process_time() - began)
    means = {name: mean(seconds[2:]) for name, seconds in took.items()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(means, indent=2) + "\n")
    return means


def flops_per_token(setting: Setting, name: str) -> float:
    """Forward and backward, per token of the target."""
    recipe, model = setting.recipe(name), setting.model(name)
    tokens = total = 0
    epoch = setting.batches()
    for number in range(0, len(epoch), 16):
        batch = epoch[number]
        # an LSTM in one kernel would not be counted
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            recipe.loss(model, batch)[0].backward()
        total += counter.get_total_flops()
        tokens += int((batch.labels >= 0).sum())
    return total / tokens


def seconds_per_sentence(folder: Path, sentences: list[str]) -> float:
    """CPU time to translate one, greedily, one at a time."""
    translator = Translator(load_pretrained(folder), load_tokenizer(folder))
    began = time.process_time()
    for sentence in sentences:
        translator.translate([sentence], num_beams=1)
    return (time.process_time() - began) / len(sentences)


def measured(setting: Setting) -> dict[str, list[dict[str, Any]]]:
    """The results of all runs, seed by seed; those that are finished are not repeated."""
    took = seconds_per_step(setting)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in setting.models}
    for seed in range(setting.seeds):
        for name in setting.models:
            out = setting.out / f"{name}-{seed}"
            steps = None if (out / "run").is_dir() else max(1, round(setting.seconds / took[name]))
            print(f"{name}, seed {seed}: {TRANSLATORS[setting.recipe(name).model].about}", flush=True)
            result = run(Translation, out, steps=steps, resume=steps is None, **setting.options(name, seed))
            found[name].append(result)
            print(f"BLEU {result['bleu']:.1f} after {result['steps']} steps\n", flush=True)
    return found


def summary(setting: Setting, results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What the table shows of each."""
    sources = [source for source, _ in setting.splits.test[:DECODED]]
    rows = {}
    for name, runs in results.items():
        flops = flops_per_token(setting, name)
        rows[name] = {
            "about": "with all the paper chose" if name == "paper" else TRANSLATORS[name].about,
            "parameters": runs[0]["parameters"],
            "steps": runs[0]["steps"],
            "seconds_per_step": seconds_per_step(setting)[name],
            "bleu": [round(each["bleu"], 2) for each in runs],
            "bleu_greedy": [round(each["bleu_greedy"], 2) for each in runs],
            "validation_loss": [round(each["validation_loss"], 4) for each in runs],
            "training_flops": mean(each["tokens_trained_on"] for each in runs) * flops,
            "seconds_per_sentence": seconds_per_sentence(setting.out / f"{name}-0" / "model", sources),
            "published": PUBLISHED[name],
        }
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    line = "{:<12} {:>10} {:>6} {:>16} {:>7} {:>8} {:>9}   {}".format
    lines = [line("", "parameters", "steps", "BLEU (seeds)", "greedy", "FLOP", "ms/sent.", "published, WMT 2014")]
    for name, row in rows.items():
        bleu = f"{mean(row['bleu']):.1f} ({min(row['bleu']):.1f}–{max(row['bleu']):.1f})"
        greedy, decoding = f"{mean(row['bleu_greedy']):.1f}", f"{1000 * row['seconds_per_sentence']:.0f}"
        flops = f"{row['training_flops']:.1e}"
        lines.append(
            line(name, f"{row['parameters']:,}", row["steps"], bleu, greedy, flops, decoding, row["published"])
        )
    return "\n".join(lines)


def orders(rows: dict[str, dict[str, Any]]) -> list[str]:
    """For each order that a paper found, whether every seed here finds it."""
    found = []
    for worse, better, paper in ORDERS:
        if worse in rows and better in rows:
            low, high = rows[worse]["bleu"], rows[better]["bleu"]
            verdict = "so here" if max(low) < min(high) else "reversed here" if max(high) < min(low) else "open here"
            found.append(f"{better} above {worse} ({paper}): {verdict}, {mean(high) - mean(low):+.1f} BLEU")
    return found


def figure(rows: dict[str, dict[str, Any]], setting: Setting) -> plots.Picture:
    """The BLEU of each, the best on top."""
    by_bleu = sorted(rows.items(), key=lambda item: -mean(item[1]["bleu"]))
    shown = {name: (min(row["bleu"]), mean(row["bleu"]), max(row["bleu"])) for name, row in by_bleu}
    title = f"Translators of one size after {setting.seconds:.0f} CPU seconds"
    alt = "BLEU: " + ", ".join(f"{name} {middle:.1f}" for name, (_, middle, _) in shown.items())
    return plots.ranges(shown, xlabel=f"BLEU on {setting.data}, {setting.seeds} seeds", title=title, alt=alt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = "multi30k" if (Path(os.environ.get("TXLIB_DATA", "-")) / "multi30k").is_dir() else "games"
    parser.add_argument("--data", default=here)
    parser.add_argument("--seconds", type=float, default=300, help="CPU seconds of training for each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--out", type=Path, default=Path("runs/translators"))
    parser.add_argument("--save", action="store_true", help="write results/translators.json and .png")
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = given.out / f"{given.data}-{given.seconds:g}"
    setting = Setting(given.data, given.seconds, given.seeds, out, given.models)
    rows = summary(setting, measured(setting))
    print(table(rows), *orders(rows), sep="\n")
    if given.save:
        content = {**environment(["torch", "sacrebleu"]), "data": given.data, "rows": rows, "orders": orders(rows)}
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "translators.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        figure(rows, setting).save(str(RESULTS / "translators.png"))


if __name__ == "__main__":
    main()
