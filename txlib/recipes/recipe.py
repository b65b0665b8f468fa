"""What is particular to one kind of training; the rest is `run`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from torch import Tensor, nn

from txlib.devices import to_device
from txlib.hints import did_you_mean
from txlib.layers import BlockConfig
from txlib.models.pretrained import save_pretrained
from txlib.text import Tokenizer
from txlib.training import Progress, TrainConfig

Entry = TypeVar("Entry")
Data = TypeVar("Data")
Model = TypeVar("Model", bound=nn.Module)
Show = Callable[[Sequence, str], Iterable]  # iterates over items, with a progress bar of that title

TOKENIZER = "tokenizer.json"  # in a model's folder, and in a run's

RECIPES: dict[str, type["Recipe"]] = {}
"""By command, e.g. "train bert": every subclass of `Recipe` that names a command of its own."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model's shape and how to train it.

    Args:
        block, layers: the model; the same number of blocks in encoder and decoder, where it has both.
        training: rates, warm-up, averaging.
        minutes: default length of a run, for the hardware that the preset is meant for.
        batch_size: of a batch: tokens, padding included; examples, for pictures and sets. 0: the recipe decides.
        vocab_size: of the byte-pair encoding, special tokens included.
        context: most tokens that the model sees at a time.
        sizes: of the model, that only this recipe's models have.
    """

    block: BlockConfig
    layers: int
    training: TrainConfig
    minutes: float
    batch_size: int = 0
    vocab_size: int = 0
    context: int = 512
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelChoice:
    """One of the models that a recipe can train.

    Args:
        about: for help and tables.
        make: returns the model before training; its arguments are the recipe's choice.
        training: what is trained differently from the preset.
    """

    about: str
    make: Callable[..., nn.Module]
    training: Mapping[str, Any] = field(default_factory=dict)


def option(default: Any, about: str) -> Any:
    """Return the default of a recipe's field that is an option of the command, with its help."""
    return field(default=default, metadata={"help": about})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Options:
    """Makes a dataclass of every subclass."""

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        dataclass(frozen=True, kw_only=True)(cls)


class Recipe(_Options, Generic[Data, Model]):
    """A kind of training, and a dataclass: its fields are the command's options, the first paragraph of its docstring
    is the command's help.

    `Recipe[Data, Model]` names the type of its data, often `Splits`, and its model.

    A subclass has `make_model`, `make_batches` and `loss`; usually also `load`, for its data, `make_tokenizer`, for
    text, and `measure`, for how good the model is in the end. Without `make_tokenizer` the tokenizer is None.

    command: the words after `txlib`, e.g. "train bert", "train" and the class's name by default. Naming it registers
    the recipe in `RECIPES`.
    presets: by name.
    stages: recipes with the same options that `run` goes through instead, each from the weights of the one before.
    """

    command: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Preset]] = {}
    stages: "ClassVar[tuple[type[Recipe], ...]]" = ()

    seed: int = option(0, "Where the random numbers start.")

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        if "command" in vars(cls):
            other = RECIPES.get(cls.command)
            if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(
                    f"{cls.__name__} and {other.__name__} are both `txlib {cls.command}`; choose another command"
                )
            RECIPES[cls.command] = cls
        elif not cls.command:
            cls.command = f"train {cls.__name__.lower()}"

    @property
    def chosen(self) -> Preset:
        """The preset that the field `preset` names.

        Raises:
            ValueError: when it is unknown.
        """
        return choose(self.presets, self.preset)  # type: ignore[attr-defined]  # a field of those that have presets

    @property
    def training(self) -> TrainConfig:
        """How to train: as the preset says, or by the defaults."""
        return replace(self.chosen.training if self.presets else TrainConfig(), seed=self.seed)

    @property
    def default_minutes(self) -> float:
        """Length of a run by default."""
        return self.chosen.minutes if self.presets else 5.0

    @property
    def folder_name(self) -> str:
        """Name of a run's folder in `runs/` by default."""
        return self.command.partition(" ")[2]

    def check(self) -> None:
        """Raise a ValueError for wrong options, before anything slow: the option, its value, what can be chosen."""
        _ = self.training

    def load(self) -> Data:
        """Return the data to train, validate and test with; None for a recipe whose batches are generated."""
        return None  # type: ignore[return-value]

    def make_tokenizer(self, splits: Data) -> Tokenizer | None:
        """Return the tokenizer, which is saved with the run and with the model; None if there is no text."""
        return None

    def make_model(self, splits: Data, tokenizer: Any) -> Model:
        """Return the model before training; random numbers have been seeded."""
        raise NotImplementedError

    def make_batches(self, splits: Data, tokenizer: Any, part: str = "train") -> Callable[[int], Sequence[Any]]:
        """Return the batches of an epoch of one of the splits, as a function of the epoch."""
        raise NotImplementedError

    def inputs(self, batch: Any) -> dict[str, Tensor]:
        """Return the model's arguments whose size decides how much memory training needs."""
        return {"input_ids": batch["input_ids"]}

    def loss(self, model: Model, batch: Any) -> tuple[Tensor, Tensor | int]:
        """Return the loss of a batch as a sum, and over how many."""
        raise NotImplementedError

    def make_validation(self, splits: Data, tokenizer: Any) -> Callable[[Model], float]:
        """Return a function that measures a model in between: the mean loss on the validation split by default."""
        batches = self.make_batches(splits, tokenizer, "validation")(0)

        def mean_loss(model: Model) -> float:
            device, total, count = next(model.parameters()).device, 0.0, 0
            for batch in batches:
                loss, number = self.loss(model, to_device(batch, device))
                if number := int(number):
                    total, count = total + float(loss), count + number
            return total / max(count, 1)

        return mean_loss

    def watch(self, progress: Progress) -> None:
        """Raise a ValueError when training has gone wrong, before a checkpoint is written; called after each step."""

    def measure(self, model: Model, splits: Data, tokenizer: Any, loss: float, show: Show) -> dict[str, Any]:
        """Return how good the trained model is, by name: `run` prints the numbers, and writes all to `result.json`.

        Args:
            loss: of the last validation, which `run` adds.
        """
        return {}

    def save(self, model: Model, tokenizer: Any, folder: Path) -> None:
        """Write what is needed to use the trained model."""
        save_pretrained(model, folder)
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER)

    def report(self, result: Mapping[str, Any], out: str) -> str:
        """Return what to print after the numbers: what explains them, and a command to continue with."""
        return f"The model is in {out}/model"


def choose(table: Mapping[str, Entry], name: str, what: str = "preset") -> Entry:
    """Return the entry of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in table:
        hint = did_you_mean(name, table).partition(";")[2]
        raise ValueError(f"{what} {name!r} is unknown; choose one of {', '.join(table)}{hint and f' ({hint.strip()})'}")
    return table[name]
