"""How a run is started, and what its folder says about that: `run/settings.json`."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from txlib.hints import did_you_mean
from txlib.recipes.recipe import TOKENIZER, Recipe
from txlib.text import Tokenizer
from txlib.training import CheckpointError, Progress
from txlib.training.checkpoints import Checkpoints, atomic_directory, check_folder, read_json, verify, write_json
from txlib.training.config import check_length

REQUIRED = ("make_model", "make_batches", "loss")  # methods of every recipe


def check_options(kind: type[Recipe], options: Mapping[str, Any]) -> None:
    """Raise a ValueError for an option that the recipe does not have, and for a recipe that lacks a method."""
    missing = [name for name in REQUIRED if not kind.stages and getattr(kind, name) is getattr(Recipe, name)]
    if missing:
        raise ValueError(f"{kind.__name__} lacks {' and '.join(missing)}; define what every recipe needs")
    names = [field.name for field in fields(kind)]
    for name in options:
        if name not in names:
            raise ValueError(
                f"{kind.__name__} has no option {name!r}; it has {', '.join(names)}{did_you_mean(name, names)}"
            )


def new_settings(
    kind: type[Recipe],
    out: Path,
    options: Mapping[str, Any],
    minutes: float | None,
    steps: int | None,
    start_from: str | None,
) -> dict[str, Any]:
    """Return everything that a new run is started with, checked before anything slow.

    Raises:
        ValueError: for wrong options, no length, a folder that cannot be a new run's, and one to start from that holds
            no model.
    """
    recipe = kind(**options)
    recipe.check()
    minutes = recipe.default_minutes if minutes is None and steps is None else minutes
    check_length(steps, minutes)
    check_folder(out)
    require_new(out)
    if start_from is not None and not (Path(start_from) / "model").is_dir():
        raise ValueError(f"{start_from} holds no finished run to start from; give a run's folder with model/ in it")
    return {
        "recipe": kind.command,
        "options": asdict(recipe),
        "minutes": minutes,
        "steps": steps,
        "start_from": start_from,
        "extended_from": None,
    }


def extended_settings(
    kind: type[Recipe], out: Path, repeated: Mapping[str, Any], minutes: float | None, steps: int | None
) -> dict[str, Any]:
    """Return what the run in a folder was started with, its new length, and the step from which that counts.

    Raises:
        CheckpointError, ValueError: as `stored_settings`, and when the run is already longer.
    """
    if minutes is None and steps is None:
        raise ValueError(f"{out} can only be extended to a longer run; give the new steps or minutes, in all")
    if kind.stages:
        last = kind.stages[-1].command
        raise ValueError(
            f"`txlib {kind.command}` has stages; extend one of them, such as `txlib {last}`, in its folder"
        )
    check_length(steps, minutes)
    settings, progress = stored_settings(kind, out, repeated), last_progress(out)
    progress.check_extension(out, steps, minutes)
    return settings | {"minutes": minutes, "steps": steps, "extended_from": progress.step}


def stored_settings(kind: type[Recipe], out: Path, repeated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the run in a folder was started with.

    Args:
        repeated: options that the caller names again; None: not named.

    Raises:
        CheckpointError: there is no run, or it is damaged, or an older txlib's.
        ValueError: it is another recipe's, or was started with other options.
    """
    if not (out / "run").is_dir():
        raise CheckpointError(f"{out} holds no run to resume; start one without resume")
    settings = read_json(out / "run" / "settings.json")
    command, options = settings.get("recipe", kind.command), settings.get("options", {})
    if command != kind.command:
        raise ValueError(f"{out} holds a run of `txlib {command}`, not of `txlib {kind.command}`")
    if options.keys() != {field.name for field in fields(kind)}:
        raise CheckpointError(f"{out} was started by another version of txlib; finish it with that, or start anew")
    verify(out / "run")
    stored = {**options, **{name: settings[name] for name in ("minutes", "steps", "start_from")}}
    changed = [name for name, value in repeated.items() if value is not None and value != stored[name]]
    if changed:
        then, now = (", ".join(f"{name}={values[name]}" for name in changed) for values in (stored, repeated))
        raise ValueError(f"{out} was started with {then}, not {now}: leave that out to go on, or start another run")
    return settings


def save_settings(out: Path, settings: dict[str, Any], tokenizer: Tokenizer | None = None) -> None:
    """Write `run/`, how the run was started, unless it says so already."""
    path = out / "run" / "settings.json"
    if path.exists() and read_json(path) == settings:
        return
    with atomic_directory(out / "run", checksums=True) as folder:
        write_json(folder / "settings.json", settings)
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER)


def last_progress(out: Path) -> Progress:
    """Return how far the newest checkpoint of a run is; at step 0 if there is none."""
    paths = Checkpoints(out / "checkpoints").all()
    return Progress.from_json(read_json(paths[-1] / "state.json")["progress"]) if paths else Progress()


def require_new(out: Path) -> None:
    """Raise a ValueError for a folder that already holds a run."""
    if (out / "run").exists():
        raise ValueError(f"{out} already holds a run; resume it (--resume), delete it, or choose another folder")
