"""One run for every recipe: plan, start, train, measure, save; stopped at any moment, it goes on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.models.pretrained import save_pretrained
from txlib.models.sizes import parameters
from txlib.recipes.recipe import Recipe
from txlib.text import load_tokenizer
from txlib.training import CheckpointError, Progress, TrainConfig, train
from txlib.training.blocks import blocks_of, check_fp8
from txlib.training.checkpoints import (
    Checkpoints,
    atomic_directory,
    check_folder,
    read_json,
    run_lock,
    verify,
    write_json,
)
from txlib.training.distributed import DistributedContext, data_parallel_group
from txlib.training.log import show_progress
from txlib.training.loop import check_length, uses_bf16
from txlib.training.memory import training_memory

TOKENIZER = "tokenizer.json"  # in a model's folder, and in a run's


def run(
    kind: type[Recipe],
    out: Path | str,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    parallel: str = "ddp",
    precision: str = "auto",
    compile: bool | str = False,
    checkpoint_activations: str = "none",
    profile: bool = False,
    quiet: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train by a recipe, measure what came out, and save both.

    Before anything is written, the memory that the run will take is estimated, and printed unless `quiet`. Processes
    that `torchrun` has started all call it alike; the first of them prepares, prints, measures and saves.

    Args:
        kind: the recipe.
        out: a folder that gets `run/`, how the run was started; `checkpoints/` and `metrics.csv`, the way so far; and
            in the end `model/`, which `load_pretrained` and, where there is text, `load_tokenizer` read.
        minutes, steps: length of the training, one of them; the recipe's own minutes unless given. Measuring comes on
            top.
        resume: go on with the run in `out`, as it was started. On a CPU it ends as if it had never been stopped.
        parallel: "ddp", "fsdp" or "tp", for several processes; see `TrainConfig`.
        precision: see `TrainConfig`; "auto" leaves it to the recipe.
        compile, checkpoint_activations: see `TrainConfig`; like `parallel` they may change when a run goes on.
        profile: print where the time goes, and keep a trace; see `train`.
        options: the recipe's; when a run is resumed, they must be those that it was started with.

    Returns:
        what is also written to `model/result.json`: what the recipe measures, the validation loss, times, options; on
        ranks other than the first, nothing.

    Raises:
        ValueError: for options that are wrong or contradict the run, a folder that holds another run or where one is at
            work, or too little memory; nothing is written then.
        CheckpointError: when there is nothing to resume, or it is damaged.
        KeyboardInterrupt: on Ctrl-C, when the current step is finished and saved.
    """
    out = Path(out)
    known = [each.name for each in fields(kind)]
    if wrong := [name for name in options if name not in known]:
        raise ValueError(f"{kind.__name__} has no option {wrong[0]!r}; it has {', '.join(known)}")
    context = DistributedContext.current()
    if not context.is_main:
        context.barrier()  # for the first, who has checked everything and written down how the run was started
        resume, quiet = True, True
    with ExitStack() as stack:
        if resume:
            settings = stored_settings(kind, out, {**options, "minutes": minutes, "steps": steps})
            if context.is_main:
                stack.enter_context(run_lock(out))
        else:
            settings = new_settings(kind, out, options, minutes, steps)
        recipe = kind(**settings["options"])
        training = replace(
            recipe.training,
            parallel=parallel,
            precision=recipe.training.precision if precision == "auto" else precision,
            compile=compile,
            checkpoint_activations=checkpoint_activations,
        )
        splits = recipe.load()
        tokenizer: Any
        if resume:
            tokenizer = load_tokenizer(out / "run") if (out / "run" / TOKENIZER).exists() else None
        else:
            tokenizer = recipe.make_tokenizer(splits)
        torch.manual_seed(recipe.seed)
        model = recipe.make_model(splits, tokenizer)
        batches = recipe.make_batches(splits, tokenizer)
        if context.is_main:
            if precision == "fp8":
                check_fp8(torch.device(device))
            estimate_memory(recipe, training, model, batches, device, context, quiet=quiet)
        if not resume:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(out))
            require_new(out)
            with atomic_directory(out / "run", sums=True) as folder:
                write_json(folder / "settings.json", settings)
                if tokenizer is not None:
                    tokenizer.save(folder / TOKENIZER)
        if context.is_main:
            context.barrier()

        progress = train(
            model.to(device),
            batches,
            recipe.loss,
            training,
            steps=settings["steps"],
            minutes=settings["minutes"],
            out=out,
            resume=bool(Checkpoints(out / "checkpoints").all()),  # it may have been killed before the first
            validate=recipe.make_validation(splits, tokenizer),
            quiet=quiet,
            profile=profile,
        )
        if not context.is_main:
            return {}
        loss = progress.validation[-1][1]
        if not quiet:
            print(f"Trained {progress.step} steps in {progress.seconds:.0f} s; now it is measured.", flush=True)
        measured = recipe.measure(model, splits, tokenizer, loss, no_show if quiet else show_progress)
        result = {**summary(settings, model, progress), **measured, "validation_loss": loss}
        if context.is_distributed:
            result |= {"processes": context.world_size, "parallel": parallel}
        with atomic_directory(out / "model") as folder:
            save_pretrained(model, folder)
            if tokenizer is not None:
                tokenizer.save(folder / TOKENIZER)
            write_json(folder / "result.json", result)
    return result


def new_settings(
    kind: type[Recipe], out: Path, options: Mapping[str, Any], minutes: float | None, steps: int | None
) -> dict[str, Any]:
    """What a new run is started with, all of it; it is checked before anything slow.

    Raises:
        ValueError: for wrong options, no length, and a folder that cannot be a new run's.
    """
    recipe = kind(**options)
    recipe.check()
    minutes = recipe.default_minutes if minutes is None and steps is None else minutes
    check_length(steps, minutes)
    check_folder(out)
    require_new(out)
    return {"recipe": kind.command, "options": asdict(recipe), "minutes": minutes, "steps": steps}


def stored_settings(kind: type[Recipe], out: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the run in a folder was started with.

    Args:
        given: options that the caller names again; None is not given.

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
    if options.keys() != {each.name for each in fields(kind)}:
        raise CheckpointError(f"{out} was started by another version of txlib; finish it with that, or start anew")
    verify(out / "run")
    stored = {**options, "minutes": settings["minutes"], "steps": settings["steps"]}
    other = [name for name, value in given.items() if value is not None and value != stored[name]]
    if other:
        then, now = (", ".join(f"{name}={values[name]}" for name in other) for values in (stored, given))
        raise ValueError(f"{out} was started with {then}, not {now}: leave that out to go on, or start another run")
    return settings


def require_new(out: Path) -> None:
    """Refuse a folder that holds a run already."""
    if (out / "run").exists():
        raise ValueError(f"{out} already holds a run; resume it (--resume), delete it, or choose another folder")


def estimate_memory(
    recipe: Recipe,
    training: TrainConfig,
    model: nn.Module,
    batches: Callable[[int], Iterable[Any]],
    device: torch.device | str,
    context: DistributedContext,
    *,
    quiet: bool = False,
) -> None:
    """Say what training on the largest batch of the first epoch will hold.

    Raises:
        ValueError: when it does not fit; the message says what would. Also when a rank would never have a row.
    """
    inputs: dict[str, Tensor] | None = None
    numbers = rows = 0  # at most in a batch
    for each in map(recipe.inputs, batches(0)):
        rows = max(rows, *map(len, each.values()))
        if (size := sum(map(Tensor.numel, each.values()))) > numbers:
            inputs, numbers = each, size
    if inputs is None:
        raise ValueError("there are no batches to train on: the corpus is empty, or all of it was filtered out")
    if rows < data_parallel_group(context, training.parallel).world_size:
        raise ValueError(
            f"{context.world_size} processes share out the rows of each batch, and none of the first epoch has more "
            f"than {rows}; start at most {rows}"
        )
    plan = partial(
        training_memory,
        model,
        inputs,
        optimizer="muon" if training.muon_lr else "adamw",
        device=device,
        bf16=uses_bf16(training, torch.device(device)),
        world_size=context.world_size,
    )
    now: dict[str, Any] = {
        "checkpoint_activations": training.checkpoint_activations,
        "parallel": training.parallel,
    }
    ways: dict[str, dict[str, Any]] = {}
    if training.checkpoint_activations == "none" and blocks_of(model):
        ways["--checkpoint-activations blocks"] = {"checkpoint_activations": "blocks"}
    if training.parallel == "ddp" and context.is_distributed:
        ways["--parallel fsdp"] = {"parallel": "fsdp"}
    if len(ways) == 2:
        ways[" ".join(ways)] = {"checkpoint_activations": "blocks", "parallel": "fsdp"}
    memory = plan(**now)
    instead = {words: partial(plan, **(now | way)) for words, way in ways.items()}
    memory.require(device, processes=context.world_size, instead=instead)
    if not quiet:
        print(f"Memory that training takes, at least:\n{memory}\n", flush=True)


def summary(settings: Mapping[str, Any], model: nn.Module, progress: Progress) -> dict[str, Any]:
    """How the run was started, and what it took."""
    return {
        "recipe": settings["recipe"],
        **settings["options"],
        "minutes": settings["minutes"],
        "steps": progress.step,
        "tokens_trained_on": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "cpu_seconds": round(progress.cpu_seconds, 1),
        "parameters": parameters(model),
        "torch": torch.__version__,
    }


def no_show(items: Sequence, what: str) -> Iterable:
    return items
