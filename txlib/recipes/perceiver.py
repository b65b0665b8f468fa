"""The Perceiver recipe: one model for digits' pixels, verses' bytes, and both at once (Jaegle et al. 2022, §3).

Nothing in the model changes between the three: what is there is one array, and each question, which digit it is and
whether the verse is in today's English, is an output query.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txlib.data import BatchDict, LazyDataset, Splits, batches_by_length, digits, pad, verses
from txlib.labels import IGNORE_INDEX
from txlib.layers import BlockConfig
from txlib.models import PerceiverClassifier, PerceiverClassifierConfig
from txlib.recipes.recipe import Preset, Recipe, Show, choose, option
from txlib.text import Tokenizer, byte_tokenizer
from txlib.training import TrainConfig

KINDS = {"digits": ("digits",), "verses": ("verses",), "both": ("digits", "verses", "both")}  # of batches
QUESTIONS = {"digit": 10, "modern": 2}  # and how many answers each has
PIXELS = 64  # of a digit: as many inputs as bytes
Rows = tuple[list[int] | None, list[int] | None]  # of digits and of verses, in one batch

_SMALL = BlockConfig.of_sizes(d_model=64, heads=4, d_ff=128, activation="gelu", dropout=0.1)
_ADAM = TrainConfig(precision="auto", lr=3e-3, weight_decay=0.01, checkpoint_every=200, validate_every=250)

PRESETS: dict[str, Preset] = {
    "small": Preset(block=_SMALL, layers=2, vocab_size=262, batch_size=6_000, context=160, training=_ADAM, minutes=1.0),
}
"""`small` (0.18 million parameters) is for a minute of one core."""


class Sources(NamedTuple):
    """Both data sets."""

    digits: Splits
    verses: Splits


class Arrays(Recipe[Sources, PerceiverClassifier]):
    """Train a Perceiver on pixels, on bytes, or on both at once."""

    command = "train perceiver"
    presets = PRESETS

    data: str = option(
        "both", "digits: which one is it? verses: of 1611, or in today's English? both: in turns, and together."
    )
    preset: str = option("small", "Size: small.")

    @property
    def folder_name(self) -> str:
        return f"perceiver-{self.data}-{self.preset}"

    def check(self) -> None:
        super().check()
        choose(KINDS, self.data, "data")

    def load(self) -> Sources:
        return Sources(digits(), verses())

    def make_tokenizer(self, splits: Sources) -> Tokenizer:
        return byte_tokenizer()

    def make_model(self, splits: Sources, tokenizer: Tokenizer) -> PerceiverClassifier:
        preset = self.chosen
        width = preset.block.d_model
        return PerceiverClassifier(
            PerceiverClassifierConfig(
                block=preset.block,
                decoder=preset.block,
                d_input=width,
                latents=16,
                layers=preset.layers,
                labels=tuple(QUESTIONS.values()),
                vocab_size=len(tokenizer),
                max_length=preset.context,
                d_bytes=width - 8,
                byte_kernel=5,
                image_size=(8, 8),
                bands=width // 16,
                pad_id=tokenizer.pad_id,
            )
        )

    def make_batches(
        self, splits: Sources, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        pictures, pairs = getattr(splits.digits, part), getattr(splits.verses, part)
        modern = torch.arange(len(pairs)) % 2  # of each pair one side, in turns
        texts = [pair[side] for pair, side in zip(pairs, modern.tolist(), strict=True)]
        ids = [row[: self.chosen.context] for row in tokenizer.encode_batch(texts, special_tokens=False)]
        size = self.chosen.batch_size

        def plan(epoch: int) -> list[Rows]:
            """Of each batch, which digits and which verses."""
            rng = random.Random(f"{self.seed} {epoch}")
            every, step = range(len(pictures)), size // PIXELS
            verse_batches = batches_by_length([len(row) for row in ids], size, seed=self.seed, epoch=epoch)
            rounds = 1  # through the digits: as many batches of them as of verses, where both are trained on
            if self.data == "both" and part == "train":
                rounds = -(-len(verse_batches) * step // len(pictures))
            groups: list[Rows] = []
            for kind in KINDS[self.data]:
                if kind == "digits":
                    orders = [rng.sample(every, len(pictures)) for _ in range(rounds)]
                    groups += [(order[at : at + step], None) for order in orders for at in every[::step]]
                elif kind == "verses":
                    groups += [(None, verse_rows) for verse_rows in verse_batches]
                else:
                    groups += [(rng.choices(every, k=len(verse_rows)), verse_rows) for verse_rows in verse_batches]
            rng.shuffle(groups)
            return groups

        def make(group: Rows) -> BatchDict:
            digit_rows, verse_rows = group
            labels = torch.full((len(digit_rows or verse_rows or ()), len(QUESTIONS)), IGNORE_INDEX)
            batch = BatchDict(labels=labels)
            if digit_rows is not None:
                batch["pixel_values"], labels[:, 0] = pictures.pixel_values[digit_rows], pictures.labels[digit_rows]
            if verse_rows is not None:
                batch["input_ids"] = pad([ids[row] for row in verse_rows], tokenizer.pad_id)
                batch["attention_mask"] = pad([[1] * len(ids[row]) for row in verse_rows], 0)
                labels[:, 1] = modern[verse_rows]
            return batch

        return lambda epoch: LazyDataset(plan(epoch), make)

    def inputs(self, batch: BatchDict) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in batch.items() if name in ("pixel_values", "input_ids")}

    def loss(self, model: PerceiverClassifier, batch: BatchDict) -> tuple[Tensor, Tensor]:
        count = (batch["labels"] != IGNORE_INDEX).sum()
        out: Any = model(**batch)
        return count * out.loss, count

    @torch.no_grad()
    def measure(
        self, model: PerceiverClassifier, splits: Sources, tokenizer: Tokenizer, loss: float, show: Show
    ) -> dict[str, Any]:
        right: Counter[str] = Counter()
        total: Counter[str] = Counter()
        device = next(model.parameters()).device
        for batch in show(self.make_batches(splits, tokenizer, "test")(0), "measuring"):
            kind = "with_both" if {"pixel_values", "input_ids"} <= batch.keys() else "alone"
            logits = model(**batch.to(device)).logits
            for question, answers, labels in zip(QUESTIONS, logits, batch["labels"].T, strict=True):
                name = f"{question}_{kind}"
                right[name] += int((answers.argmax(dim=-1).cpu() == labels).sum())
                total[name] += int((labels != IGNORE_INDEX).sum())
        return {f"{name}_accuracy": right[name] / number for name, number in total.items() if number}
