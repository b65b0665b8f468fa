"""The folder of a training run: what it was started with, so that it can go on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlib.training.checkpoints import CheckpointError, Checkpoints, read_json, write_folder


@dataclass(frozen=True)
class Run:
    """A run in a folder: `run/` holds its settings, `checkpoints/` the way so far, `model/` what came out.

    Args:
        out: the folder.
        settings: what the run was started with; resuming takes these, whatever the caller says.
    """

    out: Path
    settings: dict[str, Any]

    def start(self, **files: dict) -> None:
        """Write the settings, and further JSON files by name.

        Raises:
            ValueError: the folder holds a run already.
        """
        self.require_new()
        contents = {"settings": self.settings, **files}
        write_folder(self.folder, {f"{name}.json": content for name, content in contents.items()})

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
