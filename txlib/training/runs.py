"""What all recipes share: a folder for each run, which says how it was started, so that it can go on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from txlib.training.checkpoints import CheckpointError, Checkpoints, read_json, whole_folder, write_json
from txlib.training.loop import TrainConfig, check_length, computes_in_bf16
from txlib.training.memory import training_memory
from txlib.training.state import Progress

Chosen = TypeVar("Chosen")
TOKENIZER = "tokenizer.json"  # in a model's folder, and in a run's


@dataclass(frozen=True)
class Run:
    """A run in a folder: `run/` holds its settings, `checkpoints/` the way so far, `model/` what came out.

    Args:
        out: the folder.
        settings: what the run was started with; resuming takes these, whatever the caller says.
    """

    out: Path
    settings: dict[str, Any]

    @classmethod
    def new(
        cls, out: Path | str, *, minutes: float | None, steps: int | None, default: float, **settings: Any
    ) -> "Run":
        """A run of so many minutes or steps, or of `default` minutes; nothing is written yet.

        Raises:
            ValueError: for a length that is none, and where the folder holds a run already.
        """
        minutes = default if minutes is None and steps is None else minutes
        check_length(steps, minutes)
        run = cls(Path(out), {**settings, "minutes": minutes, "steps": steps})
        run.require_new()
        return run

    def start(self, save: Callable[[Path], None] = lambda folder: None) -> None:
        """Write the settings, and what `save` writes into the folder that it is given.

        Raises:
            ValueError: the folder holds a run already.
        """
        self.require_new()
        with whole_folder(self.folder) as folder:
            write_json(folder / "settings.json", self.settings)
            save(folder)

    @classmethod
    def resume(cls, out: Path | str) -> "Run":
        """The run that was started in this folder.

        Raises:
            CheckpointError: there is none.
        """
        out = Path(out)
        if not (out / "run").is_dir():
            raise CheckpointError(f"{out} holds no run to resume; start one without resume")
        return cls(out, read_json(out / "run" / "settings.json"))

    def require_new(self) -> None:
        """Raises ValueError where the folder holds a run already; ask before anything slow."""
        if self.folder.exists():
            raise ValueError(
                f"{self.out} already holds a run; resume it (--resume), delete it, or choose another folder"
            )

    @property
    def folder(self) -> Path:
        """Where the settings lie, and what else the run needs to go on, such as its vocabulary."""
        return self.out / "run"

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint: a run may be killed before its first."""
        return bool(Checkpoints(self.out / "checkpoints").all())

    def result(self, model: nn.Module, progress: Progress, **found: Any) -> dict[str, Any]:
        """What a run reports: its settings, what was found, and what it took."""
        return {
            **self.settings,
            **found,
            "steps": progress.step,
            "seconds": round(progress.seconds, 1),
            "cpu_seconds": round(progress.cpu_seconds, 1),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "torch": torch.__version__,
        }

    def finish(self, save: Callable[[Path], None], result: dict[str, Any]) -> dict[str, Any]:
        """Fill `model/`, which appears when all is in it, and give the result back.

        Args:
            save: writes the model into the folder that it is given.
        """
        with whole_folder(self.out / "model") as folder:
            save(folder)
            write_json(folder / "result.json", result)
        return result


def model_folder(source: Path | str) -> Path | str:
    """The folder of a run's model, where the folder of a run is given; else what is given, such as a hub id."""
    inside = Path(source) / "model"
    return inside if inside.is_dir() else source


def choose(table: Mapping[str, Chosen], name: str, what: str = "preset") -> Chosen:
    """The preset of that name, or the entry of another table.

    Raises:
        ValueError: when there is none.
    """
    if name not in table:
        raise ValueError(f"{what} {name!r} is unknown; choose one of {', '.join(table)}")
    return table[name]


def plan_memory(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    training: TrainConfig,
    device: torch.device | str,
    *,
    quiet: bool = False,
) -> None:
    """Say what training a model on batches like this one will hold, before anything is written.

    Raises:
        ValueError: when it does not fit; the message says what would.
    """
    memory = training_memory(
        model,
        batch,
        optimizer="muon" if training.muon_lr else "adamw",
        device=device,
        bf16=computes_in_bf16(training, torch.device(device)),
    )
    memory.require(device)
    if not quiet:
        print(f"Memory that training takes, at least:\n{memory}\n", flush=True)


class MadeWhenAsked(Sequence):
    """A list whose items are made when asked for: `make(item)` of each.

    An epoch of batches is one, so that only the batch at hand is in memory.
    """

    def __init__(self, items: Sequence | Tensor, make: Callable):
        self.items, self.make = items, make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index):
        return self.make(self.items[index])
