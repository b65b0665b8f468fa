"""Re-run Table 4 of Liu et al. (2018) at small size: which models use a long input? Equal CPU time, one thread.

    python benchmarks/long_text.py [--data plays] [--seconds 120] [--lengths 128 512 2048] [--out DIR] [--save]

The models are recurrent sequence to sequence with attention, the Transformer with encoder and decoder (T-ED), the
decoder alone, which reads source, separator and target as one text (T-D), and a decoder with alternating local and
memory-compressed layers (T-DMCA), without and with experts. Each trains for the same time at each input length.

`plays`: continue an unseen play of Shakespeare from the tokens before it. `aclsum`: summaries of the
challenge, the approach or the outcome of a paper, from its abstract, introduction and conclusion;
`pip install --no-deps aclsum` installs 250 papers. ROUGE-L is measured only there: a scene may continue in many ways.

--out keeps every finished run, so the same command continues.
"""

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
import torch.nn.functional as F
from compare import RESULTS, environment
from torch import Tensor, nn

from txlib.data.shakespeare import TEST, VALIDATION, plays
from txlib.generation import beam_search
from txlib.labels import IGNORE_INDEX
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig
from txlib.models.sizes import local_and_compressed, parameters
from txlib.text import BytePairEncoder
from txlib.training import optimizers, training_step

VOCABULARY = 2048
SEPARATOR, END, PADDING = VOCABULARY, VOCABULARY + 1, VOCABULARY + 2
TARGET = 128  # tokens of a continuation; and of a summary at most
UNSEEN = 64  # continuations, or summaries, that are measured
BATCH_TOKENS = 4096
WARM_UP = 0.05  # of the seconds
BLOCK = BlockConfig.of_sizes(128, 4, 512, norm="rms", bias=False, qk_norm="layer", zero_output=True, position="learned")
SIZES = {"vocab_size": VOCABULARY + 3, "bos_id": SEPARATOR, "eos_id": END, "pad_id": PADDING}

Row = tuple[list[int], list[int]]  # source and target

PAPER = {
    "seq2seq": (500, 5.04952, 12.7),
    "t-ed": (500, 2.46645, 34.2),
    "t-d": (4000, 2.22216, 33.6),
    "t-dmca": (11000, 2.05159, 36.2),
    "t-dmca-moe": (7500, 1.90325, 38.8),
}
"""Input, "test perplexity" and ROUGE-L of Table 4; with experts, the best (256 of them). The numbers are
log-perplexities: Table 3 prints T-ED's 2.46645 under that name. Their base is not said; read here as nats per
wordpiece."""

ORDERS = [("seq2seq", "t-ed"), ("t-ed", "t-d"), ("t-d", "t-dmca"), ("t-dmca", "t-dmca-moe")]  # the second is better


def make_model(name: str, length: int) -> nn.Module:
    """An untrained model for inputs of so many tokens."""
    longest = length + TARGET + 2
    if name == "seq2seq":
        return Seq2Seq(Seq2SeqConfig(d_model=192, encoder_layers=2, decoder_layers=2, attention="bilinear", **SIZES))
    if name == "t-ed":
        config = TransformerConfig(block=BLOCK, encoder_layers=2, decoder_layers=2, max_length=longest, **SIZES)
        return Transformer(config)
    block = BLOCK if name == "t-d" else local_and_compressed(BLOCK)
    if name == "t-dmca-moe":
        local, compressed = block.layer_pattern
        block = block.replace(layer_pattern=(local, compressed, {**local, "experts": 8}, compressed, local))
    return GPT(GPTConfig(block=block, layers=5, max_length=longest, **SIZES))


@dataclass
class Task:
    """Rows to learn from, and unseen ones.

    learn: an endless supply of rows whose source has at most so many tokens.
    unseen: the same targets for each length.
    summaries: whether what a model writes is compared with the target.
    """

    learn: Callable[[int, torch.Generator], Iterator[Row]]
    unseen: Callable[[int], list[Row]]
    encoder: BytePairEncoder
    summaries: bool = False


def play_task(longest: int) -> Task:
    """The next `TARGET` tokens of a play, from those before. Two plays are held out, but for their first `longest`."""
    texts = plays()
    held_out = [texts.pop(VALIDATION), texts.pop(TEST)]
    encoder = BytePairEncoder.train(list(texts.values()), VOCABULARY)
    known = [encoder.encode(text) for text in texts.values()]

    def row(tokens: list[int], at: int, length: int) -> Row:
        return tokens[at - length : at], tokens[at : at + TARGET]

    def learn(length: int, generator: torch.Generator) -> Iterator[Row]:
        sizes = torch.tensor([len(tokens) - length - TARGET for tokens in known])
        while True:
            which = int(torch.multinomial(sizes.float(), 1, generator=generator))
            yield row(known[which], length + int(torch.randint(int(sizes[which]), (1,), generator=generator)), length)

    def unseen(length: int) -> list[Row]:
        rows = []
        for tokens in map(encoder.encode, held_out):
            places = torch.linspace(longest, len(tokens) - TARGET, UNSEEN // 2).int().tolist()
            rows += [row(tokens, at, length) for at in places]
        return rows

    return Task(learn, unseen, encoder)


def summary_task(longest: int) -> Task:
    """The aspects of papers. The aspect's name stands first, so that one paper has three summaries."""
    found = importlib.util.find_spec("aclsum")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("--data aclsum needs the papers: pip install --no-deps aclsum (and rouge-score)")
    folder = Path(found.submodule_search_locations[0]) / "dataset"
    papers = {
        split: [json.loads(line) for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        for split in ("train", "val", "test")
    }

    def pairs(split: str) -> Iterator[tuple[str, str]]:
        for paper in papers[split]:
            text = " ".join(chain.from_iterable(paper["sentences"].values()))
            yield from ((f"{aspect}: {text}", summary) for aspect, summary in paper["summary"].items())

    known_pairs = [*pairs("train"), *pairs("val")]
    encoder = BytePairEncoder.train(list(chain.from_iterable(known_pairs)), VOCABULARY)

    def rows(given: Sequence[tuple[str, str]]) -> list[Row]:
        return [
            (encoder.encode(text)[:longest], encoder.encode(summary)[: TARGET - 1] + [END]) for text, summary in given
        ]

    known, test = rows(known_pairs), rows(list(pairs("test"))[:UNSEEN])

    def learn(length: int, generator: torch.Generator) -> Iterator[Row]:
        while True:
            for number in torch.randperm(len(known), generator=generator).tolist():
                yield known[number][0][:length], known[number][1]

    return Task(learn, lambda length: [(source[:length], target) for source, target in test], encoder, summaries=True)


def padded(rows: Sequence[Sequence[int]], filling: int) -> Tensor:
    """(row, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in rows])


def as_one_text(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Source, separator, target (Liu et al. 2018, §4.2.3), and the same with all but the target left out of account."""
    texts = [[*source, SEPARATOR, *target] for source, target in rows]
    counted = [[*[IGNORE_INDEX] * (len(source) + 1), *target] for source, target in rows]
    return padded(texts, PADDING), padded(counted, IGNORE_INDEX)


def as_two(rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Source, which of it is real, target."""
    source = padded([source for source, _ in rows], PADDING)
    return source, (source != PADDING).int(), padded([target for _, target in rows], IGNORE_INDEX)


def training_loss(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """A decoder alone learns from the source, too: it is a language model of the whole text."""
    if isinstance(model, GPT):
        text, _ = as_one_text(rows)
        return model(text, labels=text.masked_fill(text == PADDING, IGNORE_INDEX)).loss
    source, real, target = as_two(rows)
    return model(source, real, labels=target).loss


@torch.no_grad()
def nats(model: nn.Module, rows: Sequence[Row]) -> list[float]:
    """Of each row, the mean of -log p over the tokens of its target."""
    found = []
    for row in rows:
        if isinstance(model, GPT):
            text, counted = as_one_text([row])
            logits, labels = model(text).logits[0, :-1], counted[0, 1:]
        else:
            source, real, target = as_two([row])
            logits, labels = model(source, real, labels=target).logits[0], target[0]
        found.append(F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX).item())
    return found


def summary(model: nn.Module, source: list[int], encoder: BytePairEncoder) -> str:
    """What the model writes, greedily."""
    prompt = torch.tensor([[*source, SEPARATOR] if isinstance(model, GPT) else source])
    return as_text(beam_search(model, prompt, max_new_tokens=TARGET, num_beams=1)[0], encoder)


def as_text(tokens: list[int], encoder: BytePairEncoder) -> str:
    return encoder.decode([token for token in tokens if token < VOCABULARY])


def rouge(model: nn.Module, rows: Sequence[Row], encoder: BytePairEncoder) -> float:
    """Mean ROUGE-L, F1 in percent, of what the model writes, greedily."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer, found = RougeScorer(["rougeL"], use_stemmer=True), []
    for source, target in rows:
        score = scorer.score(as_text(target, encoder), summary(model, source, encoder))
        found.append(100 * score["rougeL"].fmeasure)
    return mean(found)


def trained(name: str, length: int, task: Task, seconds: float, seed: int) -> tuple[nn.Module, int]:
    """A model that has learned for so many CPU seconds, and the number of its steps."""
    torch.manual_seed(seed)
    model, generator = make_model(name, length), torch.Generator().manual_seed(seed)
    optimizer = optimizers(model, lr=3e-3, muon_lr=0.02)
    rows, steps, began = task.learn(length, generator), 0, time.process_time()
    # `train` plans steps or wall-clock minutes; here the end and the schedule follow the CPU time, to compare models
    # whose steps take longer for longer inputs.
    while (progress := (time.process_time() - began) / seconds) < 1 or steps == 0:
        optimizer.set_factor(min(1.0, (progress + 0.2 * WARM_UP) / WARM_UP) * max(0.0, 1 - progress))
        batch = list(islice(rows, max(1, BATCH_TOKENS // (length + TARGET))))
        training_step(model, [batch], lambda model, batch: (training_loss(model, batch), 1), optimizer, clip=1.0)
        steps += 1
    return model.eval(), steps


def learned(name: str, length: int, task: Task, seconds: float, seed: int) -> dict[str, Any]:
    """One run: train, then measure."""
    began = time.process_time()
    model, steps = trained(name, length, task, seconds, seed)
    spent, unseen = time.process_time() - began, task.unseen(length)
    each = nats(model, unseen)
    return {
        "parameters": parameters(model),
        "steps": steps,
        "cpu_seconds": spent,
        "nats": mean(each),
        "each": each,
        "rouge": rouge(model, unseen, task.encoder) if task.summaries else None,
    }


@dataclass
class Setting:
    """What is run, and where its results are kept."""

    data: str
    seconds: float
    lengths: list[int]
    models: list[str]
    seed: int
    out: Path

    @cached_property
    def task(self) -> Task:
        return (play_task if self.data == "plays" else summary_task)(max(self.lengths))

    def run(self, name: str, length: int) -> dict[str, Any]:
        """One run, or what an earlier one of the same setting found."""
        path = self.out / f"{self.data}-{name}-{length}.json"
        setting = {"seconds": self.seconds, "longest": max(self.lengths), "seed": self.seed}
        if path.is_file():
            result = json.loads(path.read_text())
            if result["setting"] != setting:
                raise SystemExit(f"{path} was made with {result['setting']}, not {setting}: give another --out")
            return result
        result = learned(name, length, self.task, self.seconds, self.seed) | {"setting": setting}
        self.out.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result))
        partial.replace(path)
        return result


def heading() -> str:
    return LINE("", "input", "parameters", "steps", "nats", "perplexity", "ROUGE-L", "paper", "input", "ROUGE-L")


LINE = "{:<11} {:>6} {:>11} {:>7} {:>7} {:>11} {:>8}   {:>8} {:>6} {:>8}".format


def line(name: str, length: int, found: dict[str, Any]) -> str:
    """One run of the table, beside the paper's."""
    written = "–" if found["rouge"] is None else f"{found['rouge']:.1f}"
    their_length, their_nats, their_rouge = PAPER[name]
    return LINE(
        name,
        length,
        f"{found['parameters']:,}",
        found["steps"],
        f"{found['nats']:.3f}",
        f"{torch.tensor(found['nats']).exp():.1f}",
        written,
        f"{their_nats:.2f}",
        their_length,
        f"{their_rouge:.1f}",
    )


def compared(worse: list[float], better: list[float]) -> str:
    """Whether the second is better on the same rows, by more than twice the standard error of the difference."""
    gains = [one - other for one, other in zip(worse, better, strict=True)]
    gain, error = mean(gains), stdev(gains) / len(gains) ** 0.5
    verdict = "as in the paper" if gain > 2 * error else "the other way round" if gain < -2 * error else "no difference"
    return f"{gain:+.3f} ± {error:.3f} nats: {verdict}"


def conclusions(found: dict[str, dict[int, dict[str, Any]]]) -> Iterator[str]:
    """Where the order agrees: each model at its best length, and each at its longest against its shortest."""
    best = {name: min(runs, key=lambda length: runs[length]["nats"]) for name, runs in found.items()}
    for worse, better in ORDERS:
        if worse in best and better in best:
            one, other = (found[name][best[name]]["each"] for name in (worse, better))
            yield f"{better} ({best[better]}) over {worse} ({best[worse]}): {compared(one, other)}"
    for name, runs in found.items():
        short, long = min(runs), max(runs)
        if short != long:
            gain = compared(runs[short]["each"], runs[long]["each"]).partition(":")[0]
            yield f"{name}: an input of {long} in place of {short} gains {gain}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", choices=["plays", "aclsum"], default="plays")
    parser.add_argument("--seconds", type=float, default=120, help="CPU seconds of training for each model and length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048], help="tokens of the input")
    parser.add_argument("--models", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/long-text"))
    parser.add_argument("--save", action="store_true", help="write results/long_text_DATA.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = {name: value for name, value in vars(arguments).items() if name != "save"}
    setting, found = Setting(**given), {}
    print(heading())
    for name in setting.models:
        for length in setting.lengths:
            found.setdefault(name, {})[length] = result = setting.run(name, length)
            print(line(name, length, result), flush=True)
    for sentence in conclusions(found):
        print(sentence)
    if arguments.save:
        result = environment(["torch", "txlib-course"]) | {"paper": PAPER, "found": found}
        path = RESULTS / f"long_text_{setting.data}.json"
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
