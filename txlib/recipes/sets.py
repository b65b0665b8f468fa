"""The recipe for sets: the largest number, clusters, or digits as clouds of points; by attention, and by its rivals.

All sets are generated, other ones in each epoch. What a model is measured beside knows no training: a constant, what
made the data, or expectation and maximization.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from txlib.data import (
    BatchDict,
    LazyDataset,
    Mixture,
    Splits,
    clustered_points,
    digits,
    fit_mixture,
    largest_numbers,
    point_clouds,
)
from txlib.data.sets import HIGHEST
from txlib.layers import BlockConfig
from txlib.models.set_transformer import DeepSets, DeepSetsConfig, SetModel, SetTransformer, SetTransformerConfig
from txlib.models.sizes import of_size, parameters
from txlib.recipes.leaderboard import COLUMNS, leaderboard
from txlib.recipes.recipe import ModelChoice, Preset, Recipe, Show, choose, option
from txlib.training import TrainConfig

EPOCH = 100  # batches of generated sets
HELD_OUT = 4  # batches to validate with, and as many to measure with


_ADAM = TrainConfig(precision="auto", lr=3e-3, warmup=100, checkpoint_every=200, validate_every=500)

PRESETS = {
    "small": Preset(
        block=BlockConfig.of_sizes(64, 4, 64),
        layers=2,
        sizes={"decoder_layers": 1, "points": 16},
        training=_ADAM,
        minutes=3.0,
    ),
    "paper": Preset(
        block=BlockConfig.of_sizes(128, 4, 128),
        layers=3,
        sizes={"decoder_layers": 2, "points": 32},
        training=replace(_ADAM, lr=5e-4),
        minutes=10.0,
    ),
}
"""`small` is for minutes on one core; `paper` is the network of the authors' code, for a GPU. Width, heads and layers
are the Set Transformer's; its rivals have as many parameters. Each task sets the batch size."""


def _set_transformer(about: str, **options: Any) -> ModelChoice:
    def make(d_model: int, preset: Preset, **sizes: int) -> SetModel:
        config = SetTransformerConfig(
            d_model=d_model,
            heads=preset.block.attention.heads,
            layers=preset.layers,
            **sizes | dict(preset.sizes) | options,
        )
        return SetTransformer(config)

    return ModelChoice(about, make)


def _deep_sets(about: str, **options: Any) -> ModelChoice:
    def make(d_model: int, preset: Preset, **sizes: int) -> SetModel:
        config = DeepSetsConfig(
            d_model=d_model,
            heads=preset.block.attention.heads,
            layers=preset.layers,
            decoder_layers=preset.sizes["decoder_layers"],
            **sizes | options,
        )
        return DeepSets(config)

    return ModelChoice(about, make)


MODELS: dict[str, ModelChoice] = {
    "isab": _set_transformer("elements see each other through points, pooled by attention"),
    "sab": _set_transformer("elements see each other, pooled by attention", points=None),
    "isab-mean": _set_transformer("elements see each other through points, pooled by their mean", pool="mean"),
    "deep-sets": _deep_sets("elements are on their own, pooled by their mean"),
    "deep-sets-max": _deep_sets("elements are on their own, pooled by their maximum", pool="max"),
    "deep-sets-mean": _deep_sets("elements are told the mean of all, pooled by it", equivariant="mean"),
    "deep-sets-attention": _deep_sets("elements are on their own, pooled by attention", pool="attention"),
}
"""The rows of Lee et al. 2019, Tables 1, 3 and 4."""


class Task:
    """What sets are to learn from: where they come from, the loss, and the measures.

    about: for tables; score: which measure decides, and whether more of it is better; batch: sets in one.
    """

    d_in: ClassVar[int]
    d_out: ClassVar[int]
    batch: ClassVar[int]
    score: ClassVar[tuple[str, bool]]
    about: ClassVar[str]

    def __init__(self, clusters: int, splits: Splits | None = None):
        self.clusters, self.splits = clusters, splits

    def batches(self, part: str, size: int, seed: int) -> Callable[[int], Sequence[BatchDict]]:
        """The batches that `train` wants, of so many sets each: new ones in each epoch."""
        number = EPOCH if part == "train" else HELD_OUT

        def epoch(number_of_epoch: int) -> Sequence[BatchDict]:
            seeds = random.Random(f"{seed} {part} {number_of_epoch}")
            return LazyDataset([seeds.getrandbits(48) for _ in range(number)], lambda seed: self.draw(size, seed))

        return epoch

    def draw(self, size: int, seed: int) -> BatchDict:
        """A batch of so many sets."""
        raise NotImplementedError

    def loss(self, logits: Float[Tensor, "batch outputs numbers"], batch: BatchDict) -> tuple[Tensor, Tensor | int]:
        """A sum, and over how many."""
        raise NotImplementedError

    def measure(self, batch: BatchDict, logits: Float[Tensor, "batch outputs numbers"]) -> dict[str, tuple[float, int]]:
        """Sums over a batch, and over how many."""
        raise NotImplementedError


class LargestNumber(Task):
    """Which number is the largest? The loss is the paper's, the absolute error (§5.1)."""

    d_in, d_out, batch = 1, 1, 128
    score = "error", False
    about = "mean distance from the largest number, of 1 to 100; the baseline says the same for all sets"

    def draw(self, size: int, seed: int) -> BatchDict:
        return largest_numbers(size, seed=seed)

    def loss(self, logits: Float[Tensor, "batch outputs numbers"], batch: BatchDict) -> tuple[Tensor, Tensor | int]:
        return (logits[:, 0, 0] - batch["labels"]).abs().sum(), len(logits)

    def measure(self, batch: BatchDict, logits: Float[Tensor, "batch outputs numbers"]) -> dict[str, tuple[float, int]]:
        answer, label = HIGHEST * logits[:, 0, 0], HIGHEST * batch["labels"]
        return {
            "error": (float((answer - label).abs().sum()), len(label)),
            "rounded_right": (float((answer.round() == label.round()).sum()), len(label)),
            "baseline_error": (float((label - label.median()).abs().sum()), len(label)),
        }


class Clusters(Task):
    """Where are the clusters, how wide, how large? The loss is minus the log-likelihood of each point (§5.3)."""

    d_in, d_out, batch = 2, 5, 16
    score = "log_likelihood", True
    about = "log-likelihood of a point; EM: expectation and maximization, the best of 5 starts; truth: what made them"

    def draw(self, size: int, seed: int) -> BatchDict:
        points, mixture = clustered_points(size, clusters=self.clusters, seed=seed)
        return BatchDict(points | {name: getattr(mixture, name) for name in ("weights", "means", "deviations")})

    def loss(self, logits: Float[Tensor, "batch outputs numbers"], batch: BatchDict) -> tuple[Tensor, Tensor | int]:
        points, mask = batch["inputs"], batch["attention_mask"]
        return -Mixture.from_logits(logits).log_likelihood(points, mask).sum(), mask.sum()

    def measure(self, batch: BatchDict, logits: Float[Tensor, "batch outputs numbers"]) -> dict[str, tuple[float, int]]:
        points, mask = batch["inputs"], batch["attention_mask"]
        predicted = Mixture.from_logits(logits)
        mixtures = {
            "log_likelihood": predicted,
            "improved_log_likelihood": predicted.improved(points, mask),
            "em_log_likelihood": fit_mixture(points, mask, clusters=self.clusters),
            "true_log_likelihood": Mixture(batch["weights"], batch["means"], batch["deviations"]),
        }
        count = int(mask.sum())
        return {name: (float(mixture.log_likelihood(points, mask).sum()), count) for name, mixture in mixtures.items()}


class Digits(Task):
    """Which digit is this cloud of points? (§5.5, with digits in place of furniture.)"""

    d_in, d_out, batch = 2, 10, 64
    score = "accuracy", True
    about = "digits told right from 50 to 100 points each; the baseline says the same for all"

    def batches(self, part: str, size: int, seed: int) -> Callable[[int], Sequence[BatchDict]]:
        pictures = getattr(self.splits, part)

        def epoch(number: int) -> Sequence[BatchDict]:
            rng = random.Random(f"{seed} {part} {number}")
            order = list(range(len(pictures)))
            if part == "train":
                rng.shuffle(order)
            groups = [(torch.tensor(order[i : i + size]), rng.getrandbits(48)) for i in range(0, len(order), size)]
            return LazyDataset(groups, lambda group: self.clouds(pictures[group[0]], group[1]))

        return epoch

    @staticmethod
    def clouds(pictures: Any, seed: int) -> BatchDict:
        return BatchDict(point_clouds(pictures.pixel_values, seed=seed) | {"labels": pictures.labels})

    def loss(self, logits: Float[Tensor, "batch outputs numbers"], batch: BatchDict) -> tuple[Tensor, Tensor | int]:
        return F.cross_entropy(logits[:, 0].float(), batch["labels"], reduction="sum"), len(logits)

    def measure(self, batch: BatchDict, logits: Float[Tensor, "batch outputs numbers"]) -> dict[str, tuple[float, int]]:
        labels = batch["labels"]
        assert self.splits is not None
        usual = self.splits.train.labels.mode().values
        return {
            "accuracy": (float((logits[:, 0].argmax(dim=-1) == labels).sum()), len(labels)),
            "baseline_accuracy": (float((labels == usual).sum()), len(labels)),
        }


TASKS: dict[str, type[Task]] = {"max": LargestNumber, "clusters": Clusters, "digits": Digits}


class Sets(Recipe[Splits | None, SetModel]):
    """Train a model that reads sets: a Set Transformer, or Deep Sets."""

    command = "train sets"
    presets = PRESETS

    task: str = option("clusters", "max: the largest number; clusters: where they are; digits: clouds of points.")
    model: str = option("isab", f"{', '.join(MODELS)}: each as large as isab.")
    preset: str = option("small", "Size: small; paper for a GPU.")
    clusters: int = option(4, "How many clusters there are, for that task.")
    seeds: int | None = option(None, "Clusters that the model can describe; as many as there are unless given.")

    @property
    def folder_name(self) -> str:
        return f"sets-{self.task}-{self.model}-{self.preset}"

    @property
    def outputs(self) -> int:
        """Vectors that the model makes of a set."""
        return (self.seeds or self.clusters) if self.task == "clusters" else 1

    def check(self) -> None:
        super().check()
        choose(TASKS, self.task, "task")
        choose(MODELS, self.model, "model")
        if self.clusters < 1:
            raise ValueError(f"clusters={self.clusters} must be at least 1")
        if self.seeds is not None and self.task != "clusters":
            raise ValueError(f"seeds={self.seeds} is for task clusters, not for {self.task}; leave it out")
        if self.seeds is not None and self.seeds < self.clusters:
            raise ValueError(
                f"clusters={self.clusters} are more than seeds={self.seeds} can describe; give seeds={self.clusters} "
                "or more"
            )

    def load(self) -> Splits | None:
        return digits() if self.task == "digits" else None

    def make_task(self, splits: Splits | None) -> Task:
        return TASKS[self.task](self.clusters, splits)

    def make_model(self, splits: Splits | None, tokenizer: None) -> SetModel:
        return make_model(self.model, self.chosen, self.make_task(splits), self.outputs)

    def make_batches(
        self, splits: Splits | None, tokenizer: None, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        task = self.make_task(splits)
        return task.batches(part, self.chosen.batch_size or task.batch, self.seed)

    def inputs(self, batch: BatchDict) -> dict[str, Tensor]:
        return {"inputs": batch["inputs"]}

    def loss(self, model: SetModel, batch: BatchDict) -> tuple[Tensor, Tensor | int]:
        return self.make_task(None).loss(answer(model, batch), batch)

    @torch.no_grad()
    def measure(
        self, model: SetModel, splits: Splits | None, tokenizer: None, loss: float, show: Show
    ) -> dict[str, Any]:
        task, device = self.make_task(splits), next(model.parameters()).device
        sums: dict[str, tuple[float, int]] = {}
        for batch in show(self.make_batches(splits, None, "test")(0), "measuring"):
            logits = answer(model, batch.to(device)).cpu()
            for name, (total, count) in task.measure(batch, logits).items():
                before = sums.get(name, (0.0, 0))
                sums[name] = before[0] + total, before[1] + count
        return {name: total / count for name, (total, count) in sums.items()}

    def report(self, result: Mapping[str, Any], out: str) -> str:
        return f"Test sets: {TASKS[self.task].about}.\n\n{comparison(out, result)}"


def answer(model: SetModel, batch: BatchDict) -> Float[Tensor, "batch outputs numbers"]:
    """What a model says about sets."""
    return model(batch["inputs"], batch["attention_mask"]).logits


def make_model(name: str, preset: Preset, task: Task, outputs: int) -> SetModel:
    """Return the model whose number of parameters comes closest to that of the preset's Set Transformer.

    Raises:
        ValueError: when no width comes within a tenth of it.
    """

    def make(name: str, d_model: int) -> Any:
        return MODELS[name].make(d_model, preset, d_in=task.d_in, d_out=task.d_out, outputs=outputs)

    if name == "isab":
        return make(name, preset.block.d_model)
    with torch.device("meta"):
        aim = parameters(make("isab", preset.block.d_model))
    return of_size(lambda d_model: make(name, d_model), aim, preset.block.attention.heads)


def comparison(out: Path | str, result: Mapping[str, Any]) -> str:
    """Return a table of all finished runs next to `out` with the same task, the best first."""
    score, descending = TASKS[result["task"]].score
    settings = {name: result[name] for name in ("recipe", "task", "clusters")}
    columns = COLUMNS | {score.replace("_", " "): f"{{{score}:.3f}}"}
    return leaderboard(out, score, columns, descending=descending, **settings)
