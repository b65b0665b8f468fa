"""One run for every recipe: plan, start, train, measure, save. A run that was stopped at any moment can be resumed, and
a finished one extended.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from txlib.models.pretrained import load_pretrained
from txlib.models.sizes import parameters
from txlib.recipes.recipe import TOKENIZER, Recipe
from txlib.recipes.settings import (
    check_options,
    extended_settings,
    last_progress,
    new_settings,
    require_new,
    save_settings,
    stored_settings,
)
from txlib.text import Tokenizer, load_tokenizer
from txlib.training import Progress, TrainConfig, train
from txlib.training.blocks import blocks_of, check_fp8
from txlib.training.checkpoints import (
    Checkpoints,
    atomic_directory,
    load_weights,
    read_json,
    run_lock,
    write_json,
)
from txlib.training.config import Compile
from txlib.training.distributed import DistributedContext, data_parallel_group
from txlib.training.log import show_progress
from txlib.training.memory import training_memory


def run(
    kind: type[Recipe],
    out: Path | str,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    extend: bool = False,
    start_from: Path | str | None = None,
    parallel: str = "ddp",
    precision: str = "auto",
    compile: Compile = False,
    checkpoint_activations: str = "none",
    profile: bool = False,
    quiet: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train by a recipe, evaluate the model, and save both.

    First the memory that the run needs is estimated, and printed unless `quiet`. All processes that `torchrun` has
    started call it with the same arguments; the first of them prepares, prints, evaluates and saves.

    Args:
        kind: the recipe.
        out: a folder that gets `run/`, how the run was started; `checkpoints/` and `metrics.csv`, the progress; and
            in the end `model/`, which `load_pretrained` and, for text, `load_tokenizer` read.
        minutes, steps: length of the training without the evaluation, one of them; by default the recipe's minutes.
        resume: continue the run in `out`, as it was started. On a CPU it ends as if it had never been stopped.
        extend: continue the run in `out`, finished or not, to more steps or minutes than it was planned for.
        start_from: folder of a finished run, whose final weights and tokenizer the new run begins with.
        precision: see `TrainConfig`; "auto" leaves it to the recipe.
        parallel, compile, checkpoint_activations: see `TrainConfig`; they may change when a run is resumed.
        profile: print where the time goes, and keep a trace; see `train`.
        options: the recipe's; when a run is resumed, they must be those that it was started with.

    Returns:
        what is also written to `model/result.json`: the recipe's measures, the validation loss, times, options; on
        ranks other than the first, nothing.

    Raises:
        ValueError: for options that are wrong or contradict the run, a folder that holds another run or is in use, or
            too little memory; nothing is written then.
        CheckpointError: when there is nothing to resume, or it is damaged.
        KeyboardInterrupt: on Ctrl-C, when the current step is finished and saved.
    """
    check_options(kind, options)
    context = DistributedContext.current()
    if not context.is_main:
        context.barrier()  # until the first has checked everything and written how the run was started
        resume, quiet = True, True
    out, source = Path(out), None if start_from is None else str(start_from)
    repeated = {**options, "start_from": source}
    if extend and context.is_main:
        settings = extended_settings(kind, out, repeated, minutes, steps)
    elif resume:
        settings = stored_settings(kind, out, {**repeated, "minutes": minutes, "steps": steps})
    else:
        settings = new_settings(kind, out, options, minutes, steps, source)
    recipe = kind(**settings["options"])
    changes: dict[str, Any] = {
        "parallel": parallel,
        "compile": compile,
        "checkpoint_activations": checkpoint_activations,
    }
    if recipe.stages:
        common = changes | {"precision": precision, "device": device, "profile": profile, "quiet": quiet}
        return run_stages(recipe, out, settings, context, **common)
    if precision != "auto":
        changes["precision"] = precision
    config = replace(recipe.training, **changes)
    return Run(recipe, config, out, settings, torch.device(device), context, quiet).execute(profile=profile)


class Setup(NamedTuple):
    """What a recipe made before training."""

    splits: Any
    tokenizer: Tokenizer | None
    model: nn.Module
    batches: Callable[[int], Sequence[Any]]


@dataclass(frozen=True)
class Run:
    """A run whose arguments are checked.

    Args:
        settings: how it is started, as in `run/settings.json`.
        device, quiet: as in `run`.
    """

    recipe: Recipe
    config: TrainConfig
    out: Path
    settings: dict[str, Any]
    device: torch.device
    context: DistributedContext
    quiet: bool

    def execute(self, *, profile: bool) -> dict[str, Any]:
        """Prepare, train, evaluate and save."""
        new = not (self.out / "run").exists()
        with ExitStack() as stack:
            if self.context.is_main and not new:
                stack.enter_context(run_lock(self.out))
            setup = self.set_up(new)
            if self.context.is_main:
                self.check_memory(setup)
                if new:
                    self.out.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(run_lock(self.out))
                    require_new(self.out)
                save_settings(self.out, self.settings, setup.tokenizer)
                self.context.barrier()
            step = last_progress(self.out).step  # 0 if it was killed before its first checkpoint
            progress = train(
                setup.model.to(self.device),
                setup.batches,
                self.recipe.loss,
                self.config,
                steps=self.settings["steps"],
                minutes=self.settings["minutes"],
                out=self.out,
                resume=step > 0,
                extend=0 < step == self.settings.get("extended_from"),
                validate=self.recipe.make_validation(setup.splits, setup.tokenizer),
                watch=self.recipe.watch,
                quiet=self.quiet,
                profile=profile,
            )
            return self.evaluate(setup, progress) if self.context.is_main else {}

    def set_up(self, new: bool) -> Setup:
        """Load the data, make tokenizer, model and batches. A run that is continued, or starts from another, has its
        tokenizer already.
        """
        recipe, start_from = self.recipe, self.settings["start_from"]
        splits = recipe.load()
        folder = self.out / "run" if not new else Path(start_from) / "model" if start_from is not None else None
        tokenizer: Tokenizer | None
        if folder is not None and (folder / TOKENIZER).exists():
            tokenizer = load_tokenizer(folder)
        else:
            tokenizer = recipe.make_tokenizer(splits)
        torch.manual_seed(recipe.seed)
        model = recipe.make_model(splits, tokenizer)
        if start_from is not None and not Checkpoints(self.out / "checkpoints").all():
            load_weights(model, load_pretrained(Path(start_from) / "model").state_dict(), start_from)
        return Setup(splits, tokenizer, model, recipe.make_batches(splits, tokenizer))

    def check_memory(self, setup: Setup) -> None:
        """Print how much memory training on the largest batch of the first epoch needs.

        Raises:
            ValueError: when it does not fit; the message says what would. Also when a rank would never have a row, and
                when the device cannot multiply in 8 bits.
        """
        config, context = self.config, self.context
        if config.precision == "fp8":
            check_fp8(self.device)
        inputs, rows = largest_inputs(self.recipe, setup.batches)
        if rows < data_parallel_group(context, config.parallel).world_size:
            raise ValueError(
                f"{context.world_size} processes share out the rows of each batch, and none of the first epoch has "
                f"more than {rows}; start at most {rows}"
            )
        plan = partial(
            training_memory,
            setup.model,
            inputs,
            optimizer="muon" if config.muon_lr else "adamw",
            device=self.device,
            bf16=config.uses_bf16(self.device),
            world_size=context.world_size,
        )
        current: dict[str, Any] = {"checkpoint_activations": config.checkpoint_activations, "parallel": config.parallel}
        alternatives: dict[str, dict[str, Any]] = {}
        if config.checkpoint_activations == "none" and blocks_of(setup.model):
            alternatives["--checkpoint-activations blocks"] = {"checkpoint_activations": "blocks"}
        if config.parallel == "ddp" and context.is_distributed:
            alternatives["--parallel fsdp"] = {"parallel": "fsdp"}
        if len(alternatives) == 2:
            alternatives[" ".join(alternatives)] = {"checkpoint_activations": "blocks", "parallel": "fsdp"}
        memory = plan(**current)
        instead = {flags: partial(plan, **(current | changes)) for flags, changes in alternatives.items()}
        memory.require(self.device, processes=context.world_size, instead=instead)
        if not self.quiet:
            print(f"Memory that training takes, at least:\n{memory}\n", flush=True)

    def evaluate(self, setup: Setup, progress: Progress) -> dict[str, Any]:
        """Measure the trained model, print the numbers, write `model/`, and return the result."""
        loss = progress.validation[-1][1]
        if not self.quiet:
            print(f"Trained {progress.step} steps in {progress.seconds:.0f} s; now it is measured.", flush=True)
        show = (lambda items, title: items) if self.quiet else show_progress
        scores = self.recipe.measure(setup.model, setup.splits, setup.tokenizer, loss, show) | {"validation_loss": loss}
        if not self.quiet:
            print(score_table(scores), flush=True)
        result = {**summary(self.settings, setup.model, progress), **scores}
        if self.context.is_distributed:
            result |= {"processes": self.context.world_size, "parallel": self.config.parallel}
        with atomic_directory(self.out / "model") as folder:
            self.recipe.save(setup.model, setup.tokenizer, folder)
            write_json(folder / "result.json", result)
        return result


def run_stages(
    recipe: Recipe, out: Path, settings: dict[str, Any], context: DistributedContext, **common: Any
) -> dict[str, Any]:
    """Run a recipe's stages, each in a folder of its own in `out`, and skip those that are finished. The last one's
    model is that of the run.

    Args:
        settings: how the run is started: all its minutes, which the stages share like their own; or each one's steps.
        common: other arguments of `run`.
    """
    if context.is_main:
        out.mkdir(parents=True, exist_ok=True)
        save_settings(out, settings)
        context.barrier()
    options, steps = settings["options"], settings["steps"]
    lengths = [stage(**options).default_minutes for stage in recipe.stages]
    before, results = settings["start_from"], {}
    with run_lock(out) if context.is_main else nullcontext():
        for number, (stage, share) in enumerate(zip(recipe.stages, lengths, strict=True), start=1):
            name = stage.command.removeprefix(f"{recipe.command}-")
            folder = out / f"{number}-{name}"
            if not (folder / "model").is_dir():
                if context.is_main and not common["quiet"]:
                    print(f"Stage {number} of {len(lengths)}: {name}", flush=True)
                minutes = settings["minutes"] and settings["minutes"] * share / sum(lengths)
                begun = (folder / "run").is_dir()
                run(stage, folder, minutes=minutes, steps=steps, resume=begun, start_from=before, **common, **options)
            before = folder
            if context.is_main:
                results[name] = read_json(folder / "model" / "result.json") | {"curve": curve(folder)}
        if not context.is_main:
            return {}
        result = {**results[name], "recipe": recipe.command, "stages": results}
        with atomic_directory(out / "model") as model:
            shutil.copytree(folder / "model", model, dirs_exist_ok=True)
            write_json(model / "result.json", result)
    return result


def curve(out: Path, points: int = 50) -> dict[str, list]:
    """Return the loss of a run, as means of as many steps as give at most so many points."""
    losses = last_progress(out).losses
    width = -(-len(losses) // points)
    ends = range(width, len(losses) + 1, width)
    return {"step": list(ends), "loss": [round(sum(losses[end - width : end]) / width, 4) for end in ends]}


def score_table(scores: Mapping[str, Any]) -> str:
    """Return a line for each number that a recipe has measured; `report` shows the rest."""
    numbers: dict[str, float] = {}
    for name, score in scores.items():
        parts = score.items() if isinstance(score, Mapping) else [("", score)]
        numbers |= {f"{name} {part}".replace("_", " ").strip(): n for part, n in parts if isinstance(n, int | float)}
    width = max(map(len, numbers))
    return "\n".join(f"{name:{width}}  {n:{',' if isinstance(n, int) else '.3f'}}" for name, n in numbers.items())


def largest_inputs(recipe: Recipe, batches: Callable[[int], Iterable[Any]]) -> tuple[dict[str, Tensor], int]:
    """Return the model's inputs in the largest batch of the first epoch, and the most rows that a batch has.

    Raises:
        ValueError: there are no batches.
    """
    largest: dict[str, Tensor] | None = None
    largest_size = rows = 0
    for inputs in map(recipe.inputs, batches(0)):
        rows = max(rows, *map(len, inputs.values()))
        if (size := sum(map(Tensor.numel, inputs.values()))) > largest_size:
            largest, largest_size = inputs, size
    if largest is None:
        raise ValueError("there are no batches to train on: the corpus is empty, or all of it was filtered out")
    return largest, rows


def summary(settings: Mapping[str, Any], model: nn.Module, progress: Progress) -> dict[str, Any]:
    """Return how the run was started, and what it cost."""
    return {
        "recipe": settings["recipe"],
        **settings["options"],
        "minutes": settings["minutes"],
        "start_from": settings["start_from"],
        "steps": progress.step,
        "tokens_trained_on": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "cpu_seconds": round(progress.cpu_seconds, 1),
        "parameters": parameters(model),
        "torch": torch.__version__,
    }
