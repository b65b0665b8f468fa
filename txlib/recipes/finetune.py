"""Fine-tuning: one pre-trained BERT, and a new last layer for each task (Devlin et al. 2019, §4)."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.data import BatchDict, Splits, model_folder
from txlib.labels import IGNORE_INDEX
from txlib.layers import LoRAConfig, add_lora, merge_lora
from txlib.layers.initialize import initialize
from txlib.models.encoder import Encoder
from txlib.models.pretrained import load_pretrained
from txlib.recipes.reading import LONGEST, Reader, example_batches
from txlib.recipes.recipe import Recipe, Show, choose, option
from txlib.recipes.tasks import TASKS, Tags, Task, answer, head_loss
from txlib.text import Tokenizer, load_tokenizer
from txlib.training import TrainConfig

BATCH_TOKENS = 2_000


class FineTuning(Recipe[Splits, nn.Module]):
    """Train a BERT for a task and measure it."""

    command = "finetune bert"

    model: str | None = option(
        None, "A BERT's folder: what `txlib train bert` wrote, or any other with its tokenizer.json."
    )
    task: str = option(
        "reviews", "reviews: liked or not; pairs: same verse or not; spans: find an answer; tags: find names."
    )
    source: str | None = option(None, "For spans: shakespeare or xquad; for tags: shakespeare or wikigold.")
    lora: int = option(0, "Train adapters of this rank beside queries and values, and the last layer, not all weights.")
    lr: float | None = option(None, "The peak learning rate; by default 1e-4, with adapters 1e-3.")

    default_minutes = 5.0

    @property
    def folder_name(self) -> str:
        return f"bert-{self.task}"

    @property
    def training(self) -> TrainConfig:
        lr = self.lr or (1e-3 if self.lora else 1e-4)
        return TrainConfig(precision="auto", lr=lr, weight_decay=0.01, warmup=50, checkpoint_every=200, seed=self.seed)

    @property
    def kind(self) -> type[Task]:
        return choose(TASKS, self.task, "task")

    def check(self) -> None:
        super().check()
        if self.lora:
            LoRAConfig(self.lora)
        if self.source is not None and self.source not in self.kind.sources:
            raise ValueError(f"source {self.source!r} is none of {self.task}; choose {' or '.join(self.kind.sources)}")
        _ = self.folder

    @property
    def folder(self) -> Path | str:
        """Of the pre-trained model.

        Raises:
            ValueError: it isn't given.
        """
        if self.model is None:
            raise ValueError("model is missing: --model FOLDER, a BERT such as `txlib train bert` writes")
        return model_folder(self.model)

    def load(self) -> Splits:
        return self.kind.load(self.source or self.kind.sources[0])

    def make_tokenizer(self, splits: Splits) -> Tokenizer:
        return load_tokenizer(self.folder)

    @cached_property
    def encoder(self) -> Encoder:
        """The pre-trained encoder."""
        return load_encoder(self.folder)

    def make_task(self, splits: Splits, tokenizer: Tokenizer) -> Task:
        return self.kind(Reader(tokenizer, min(LONGEST, self.encoder.config.max_length)), splits)

    def make_model(self, splits: Splits, tokenizer: Tokenizer) -> nn.Module:
        model = self.make_task(splits, tokenizer).make(self.encoder.config, self.encoder)
        if self.lora:
            add_lora(self.encoder, LoRAConfig(self.lora))
            if self.encoder.pooler is not None:
                self.encoder.pooler.requires_grad_(True)  # it may be new
        return model

    def make_batches(
        self, splits: Splits, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        task = self.make_task(splits, tokenizer)
        encoded = map(task.encode, getattr(splits, part))
        answered = [one for one in encoded if one.labels.get("start_positions") != IGNORE_INDEX]
        return example_batches(answered, BATCH_TOKENS, task.reader.padding, seed=self.seed)

    def loss(self, model: nn.Module, batch: BatchDict) -> tuple[Tensor, Tensor]:
        return head_loss(model, batch)

    def measure(
        self, model: nn.Module, splits: Splits, tokenizer: Tokenizer, loss: float, show: Show
    ) -> dict[str, Any]:
        task = self.make_task(splits, tokenizer)
        if self.lora:
            merge_lora(model)  # so that the saved model is a BERT like any other
        baseline = task.score(task.baseline())
        return {
            "source": self.source or self.kind.sources[0],
            **task.score(answer(model, task, splits.test, show=show)),
            **{f"baseline_{name}": value for name, value in baseline.items()},
            **({"tags": task.names} if isinstance(task, Tags) else {}),
        }

    def report(self, result: Mapping[str, Any], out: str) -> str:
        return f"Test split of {result['source']}: {TASKS[result['task']].about}."


def load_encoder(source: Path | str) -> Encoder:
    """A pre-trained encoder, without the head that it may have.

    Raises:
        ValueError: when the folder holds no BERT.
    """
    folder = model_folder(source)
    model = load_pretrained(folder, dtype=torch.float32)  # also where the file holds halves
    bert = model if isinstance(model, Encoder) else getattr(model, "base", None)
    if bert is None:
        raise ValueError(f"{folder} holds a {type(model).__name__}, not a BERT; give what `txlib train bert` wrote")
    if bert.pooler is None:
        width = bert.config.block.d_model
        bert.pooler = nn.Linear(width, width)  # new: its head had no use for one
        initialize(bert.pooler, bert.config)
    return bert
