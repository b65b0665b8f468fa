"""The recipe for pictures: what do they show? By a Vision Transformer, or a rival that computes as much, on pictures
as they are, or varied anew in each epoch.

A Vision Transformer is saved as `transformers` writes it. Models take pixels from 0 to 1, as `txlib.data` gives them.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.data import BatchDict, LazyDataset, Pictures, Splits, digits, fashion
from txlib.layers import BlockConfig
from txlib.models.convnet import ConvNet, ConvNetConfig
from txlib.models.sizes import forward_flops, nearest_width
from txlib.models.vit import ViTConfig, ViTForImageClassification
from txlib.recipes.leaderboard import COLUMNS, Column, leaderboard
from txlib.recipes.recipe import ModelChoice, Preset, Recipe, Show, choose, option
from txlib.training import TrainConfig

Pixels = Float[Tensor, "batch channels height width"]
Vary = Callable[[Pixels, torch.Generator], Pixels]
MEASURED = 500  # pictures at a time
WIDTHS = range(4, 257, 4)  # of a rival's first stage: heads of even width


_TINY = BlockConfig.of_sizes(d_model=64, heads=4, d_ff=128, activation="gelu", position="learned", zero_output=True)
_MUON = TrainConfig(precision="auto", lr=2e-3, muon_lr=0.01, warmup=50, checkpoint_every=200, validate_every=500)

PRESETS = {
    "tiny": Preset(block=_TINY, layers=4, batch_size=100, training=_MUON, minutes=1.0),
    "small": Preset(
        block=_TINY.replace(d_model=128, d_ff=512, dropout=0.1), layers=6, batch_size=100, training=_MUON, minutes=15.0
    ),
}
"""`tiny` (0.14 million parameters on clothes) is for a lesson, `small` (1.2 million) for a laptop."""

DATA: dict[str, Callable[[], Splits]] = {
    "digits": digits,
    "fashion": fashion,
    "fashion-mnist": lambda: fashion(whole=True),
}
PATCHES = {8: 2, 28: 4}  # pixels of a picture's side, and of a patch's


def shift(pixels: Pixels, generator: torch.Generator) -> Pixels:
    """Each picture moved down and right by up to a tenth of its side, or up and left; what comes in is black."""
    number, _, height, width = pixels.shape
    max_shift = max(1, width // 10)
    padded = F.pad(pixels, (max_shift,) * 4)
    down, right = torch.randint(2 * max_shift + 1, (2, number, 1), generator=generator)
    rows, columns = down + torch.arange(height), right + torch.arange(width)  # (number, height), (number, width)
    moved = padded[torch.arange(number)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return moved.movedim(-1, 1)  # (number, channels, height, width)


def flip(pixels: Pixels, generator: torch.Generator) -> Pixels:
    """Every other picture, by chance, as in a mirror."""
    mirrored = torch.rand(len(pixels), 1, 1, 1, generator=generator) < 0.5
    return torch.where(mirrored, pixels.flip(-1), pixels)


def erase(pixels: Pixels, generator: torch.Generator) -> Pixels:
    """In each picture a rectangle, of at most half its sides, becomes noise (Zhong et al. 2020, "random erasing")."""
    lines = []
    for size in pixels.shape[2:]:
        length = torch.rand(len(pixels), 1, generator=generator) * size / 2
        start = torch.rand(len(pixels), 1, generator=generator) * (size - length)
        position = torch.arange(size)
        lines.append((position >= start) & (position < start + length))  # (number, size)
    down, across = lines
    erased = (down[:, :, None] & across[:, None, :])[:, None]  # (number, 1, height, width)
    return torch.where(erased, torch.rand(pixels.shape, generator=generator), pixels)


VARIATIONS: dict[str, Vary] = {"shift": shift, "flip": flip, "erase": erase}
USUAL = {"digits": "shift,erase"}  # a digit in a mirror is none; elsewhere all of them
ALL = ",".join(VARIATIONS)


class Vision(Recipe[Splits, nn.Module]):
    """Train a model that says what pictures show, and measure its accuracy."""

    command = "train vision"
    presets = PRESETS

    data: str = option("fashion", "digits; fashion: 10,000 clothes; fashion-mnist: all of them, which are not bundled.")
    model: str = option(
        "vit", "vit; or as costly: conv, local (attention, no convolutions), hybrid (a non-local block)."
    )
    preset: str = option("tiny", "Size: tiny, or small for a laptop.")
    augment: str = option("none", f"How pictures are varied: {ALL}, with commas; usual: what suits the data; none.")
    pictures: int | None = option(None, "Train on so many pictures only.")

    @property
    def folder_name(self) -> str:
        more = [] if self.augment == "none" else [self.augment.replace(",", "-")]
        more += [] if self.pictures is None else [str(self.pictures)]
        return "-".join([self.data, self.model, self.preset, *more])

    @property
    def variations(self) -> list[Vary]:
        """What is done to each picture in training.

        Raises:
            ValueError: for a word that is none of them.
        """
        words = USUAL.get(self.data, ALL) if self.augment == "usual" else self.augment
        return [] if words == "none" else [choose(VARIATIONS, word, "augment") for word in words.split(",")]

    def check(self) -> None:
        super().check()
        choose(DATA, self.data, "data")
        choose(MODELS, self.model, "model")
        _ = self.variations
        if self.pictures is not None and self.pictures < 1:
            raise ValueError(f"pictures={self.pictures} must be at least 1")

    def load(self) -> Splits:
        splits = DATA[self.data]()
        return splits._replace(train=splits.train[: self.pictures])

    def make_model(self, splits: Splits, tokenizer: None) -> nn.Module:
        return MODELS[self.model].make(self.chosen, splits.train)

    def make_batches(
        self, splits: Splits, tokenizer: None, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        pictures: Pictures = getattr(splits, part)
        if part != "train":
            return picture_batches(pictures, MEASURED)
        return picture_batches(pictures, self.chosen.batch_size, self.variations, seed=self.seed)

    def inputs(self, batch: BatchDict) -> dict[str, Tensor]:
        return {"pixel_values": batch["pixel_values"]}

    def loss(self, model: nn.Module, batch: BatchDict) -> tuple[Tensor, int]:
        logits = model(batch["pixel_values"]).logits.float()
        return F.cross_entropy(logits, batch["labels"], reduction="sum"), len(logits)

    @torch.no_grad()
    def measure(self, model: nn.Module, splits: Splits, tokenizer: None, loss: float, show: Show) -> dict[str, Any]:
        device, predicted, nearest = next(model.parameters()).device, [], []
        for batch in show(self.make_batches(splits, None, "test")(0), "measuring"):
            predicted.append(model(batch["pixel_values"].to(device)).logits.argmax(dim=-1).cpu())
            nearest.append(nearest_label(batch["pixel_values"], splits.train))
        labels, answers = splits.test.labels, torch.cat(predicted)
        table = torch.zeros(2 * [len(splits.test.names)], dtype=torch.long)  # (is, predicted)
        table.index_put_((labels, answers), torch.ones_like(labels), accumulate=True)
        wrong = table.clone().fill_diagonal_(0)
        what, taken_for = divmod(int(wrong.argmax()), len(wrong))
        return {
            "operations": forward_flops(model, splits.test.pixel_values[:1].to(device)),
            "accuracy": float((answers == labels).float().mean()),
            "baseline_accuracy": float((torch.cat(nearest) == labels).float().mean()),
            "confused": [splits.test.names[what], splits.test.names[taken_for]],
            "confused_share": float(wrong[what, taken_for] / table[what].sum().clamp(min=1)),
        }

    def report(self, result: Mapping[str, Any], out: str) -> str:
        what, taken_for = result["confused"]
        return (
            "The baseline gives each picture the label of the most similar training picture.\n"
            f"Most often wrong: {what}, taken for {taken_for}, {result['confused_share']:.0%} of them\n\n"
            f"All runs next to it on these pictures:\n{comparison(out, result['data'])}"
        )


def vision_transformer(preset: Preset, pictures: Pictures) -> ViTForImageClassification:
    """An untrained model of the preset's shape, for such pictures."""
    _, channels, _, side = pictures.pixel_values.shape
    config = ViTConfig(side, PATCHES[side], preset.block, layers=preset.layers, channels=channels)
    return ViTForImageClassification(config, labels=len(pictures.names))


def residual(**options: Any) -> Callable[[Preset, Pictures], ConvNet]:
    """A residual network with these options, as wide as lets it compute about as much as the Vision Transformer."""

    def make(preset: Preset, pictures: Pictures) -> ConvNet:
        common: dict[str, Any] = {
            "labels": len(pictures.names),
            "channels": pictures.pixel_values.shape[1],
            "blocks": (2, 2, 2),
        }

        def network(width: int) -> ConvNet:
            return ConvNet(ConvNetConfig(widths=(width, 2 * width, 4 * width), **common, **options))

        with torch.device("meta"):
            picture = torch.empty_like(pictures.pixel_values[:1], device="meta")
            aim = forward_flops(vision_transformer(preset, pictures), picture)
            width = nearest_width(WIDTHS, aim, lambda width: forward_flops(network(width), picture))
        return network(width)

    return make


MODELS: dict[str, ModelChoice] = {
    "vit": ModelChoice("a Vision Transformer", vision_transformer),
    "conv": ModelChoice("convolutions", residual()),
    "local": ModelChoice("local attention instead of convolutions", residual(spatial="attention", heads=2)),
    "hybrid": ModelChoice("convolutions, and a non-local block after the second of 3 stages", residual(non_local=(1,))),
}


def picture_batches(
    pictures: Pictures, size: int, variations: Sequence[Vary] = (), *, seed: int | None = None
) -> Callable[[int], Sequence[BatchDict]]:
    """The batches that `train` wants: for each epoch the same pictures, dealt and varied anew.

    Args:
        seed: None leaves them in their order.
    """

    def batches(epoch: int) -> Sequence[BatchDict]:
        rng = random.Random(f"{seed} {epoch}")
        order = list(range(len(pictures)))
        if seed is not None:
            rng.shuffle(order)
        groups = [(order[start : start + size], rng.getrandbits(48)) for start in range(0, len(order), size)]

        def make(group: tuple[list[int], int]) -> BatchDict:
            indices, number = group
            batch, generator = pictures[torch.tensor(indices)], torch.Generator().manual_seed(number)
            pixels = batch.pixel_values
            for vary in variations:
                pixels = vary(pixels, generator)
            return BatchDict(pixel_values=pixels, labels=batch.labels)

        return LazyDataset(groups, make)

    return batches


def nearest_label(pixels: Pixels, training: Pictures) -> Int[Tensor, "batch"]:
    """The label of the known picture whose pixels differ least."""
    distance = torch.cdist(pixels.flatten(1), training.pixel_values.flatten(1))  # (batch, training)
    return training.labels[distance.argmin(dim=-1)]


def comparison(out: Path | str, data: str) -> str:
    """Return a table of all finished runs next to `out` on these pictures, the best first."""
    columns: dict[str, Column] = {
        "model": "{model}",
        "preset": "{preset}",
        "augment": "{augment}",
        "pictures": lambda result: "all" if result["pictures"] is None else f"{result['pictures']:,}",
        **COLUMNS,
        "operations": "{operations:,.0f}",
        "accuracy": "{accuracy:.1%}",
    }
    return leaderboard(out, "accuracy", columns, recipe=Vision.command, data=data)
