"""`txlib train` and `txlib finetune`: each recipe as a command, its fields as options."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlib.hints import did_you_mean

if TYPE_CHECKING:
    import torch

    from txlib.recipes import Recipe
    from txlib.training.config import Compile

COMMON: dict[str, tuple[Any, Any, str]] = {
    "minutes": (float | None, None, "Train for this long, without the evaluation; by default the preset's time."),
    "steps": (int | None, None, "Train for this many steps instead."),
    "device": (str, "auto", "auto, cpu, cuda or mps."),
    "out": (Path | None, None, "Folder of the run; by default in runs/."),
    "resume": (bool, False, "Continue the run in that folder."),
    "extend": (bool, False, "Train the run in that folder, finished or not, on to the --steps or --minutes given."),
    "start_from": (Path | None, None, "Begin with the weights and the tokenizer of the finished run in this folder."),
    "parallel": (
        str,
        "ddp",
        "Under torchrun: ddp, each process has all weights; fsdp, a part of each; tp, some heads.",
    ),
    "precision": (
        str,
        "auto",
        "auto: bf16 where the device multiplies in it; or fp32, bf16, fp8 (blocks in 8 bits: new GPUs, torchao).",
    ),
    "compile": (str, "off", "on: compile the blocks; reduce-overhead: and replay them as CUDA graphs."),
    "checkpoint_activations": (
        str,
        "none",
        "Compute twice, to save memory: blocks, every-2 (every second block), or matmuls (all but the products).",
    ),
    "profile": (bool, False, "Print where the time goes, and keep a trace of a few steps in the run's folder."),
}
"""Options of every recipe besides its own: type, default, help."""
COMPILE: "dict[str, Compile]" = {"off": False, "on": True, "reduce-overhead": "reduce-overhead"}


class RecipeGroup(typer.core.TyperGroup):
    """The recipes as commands. They are loaded when one is needed, since they import torch."""

    def list_commands(self, ctx) -> list[str]:
        return list(self.recipes())

    def get_command(self, ctx, name: str):
        if name.endswith(".py") or "/" in name:
            from txlib.recipes.own import load_recipe

            return recipe_command(load_recipe(name), name)
        recipes = self.recipes()
        if name not in recipes:
            hint = did_you_mean(name, recipes) or f"; choose one of {', '.join(recipes)}, or a recipe's FILE.py"
            raise ValueError(f"`txlib {self.name} {name}` is unknown{hint}")
        return recipe_command(recipes[name], name)

    def recipes(self) -> "dict[str, type[Recipe]]":
        """Return the recipes whose command begins with this group's name, by the second word."""
        from txlib.recipes import RECIPES

        words = {command.partition(" ")[::2]: recipe for command, recipe in RECIPES.items()}
        return {name: recipe for (group, name), recipe in words.items() if group == self.name}


def recipe_command(recipe: "type[Recipe]", name: str) -> Any:
    """Return a command whose options are the recipe's fields, and how long, where and on what to train."""
    options = {field.name: (field.type, field.default, field.metadata.get("help", "")) for field in fields(recipe)}
    seed = options.pop("seed")

    def command(ctx, **values) -> None:
        train(recipe, {name for name in values if ctx.get_parameter_source(name).name != "DEFAULT"}, values)

    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for option, (kind, default, about) in (options | COMMON | {"seed": seed}).items():
        flags = [f"--{option}"] if kind is bool else []
        annotation = Annotated[kind, typer.Option(*flags, help=about)]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    summary = inspect.cleandoc(recipe.__doc__ or "").partition("\n\n")[0]
    command.__doc__ = f"{summary}\n\nAfter Ctrl-C or a power cut, the same command with --resume continues."
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name)(command)
    return typer.main.get_command(alone)


def train(recipe: "type[Recipe]", named: set[str], values: dict[str, Any]) -> None:
    """Run a recipe and print its report.

    Args:
        named: options that the user has written; the others have their defaults.
    """
    from txlib.recipes import run
    from txlib.training.processes import process_group

    options = {name: values[name] for name in named if name not in COMMON}
    made = recipe(**options)
    out = values["out"] or Path("runs") / made.folder_name
    if values["minutes"] is not None and values["steps"] is not None:
        raise ValueError(
            f"--minutes {values['minutes']:g} and --steps {values['steps']} can't both say when to stop; give one"
        )
    if values["compile"] not in COMPILE:
        hint = did_you_mean(values["compile"], COMPILE) or f"; choose {', '.join(COMPILE)}"
        raise ValueError(f"--compile {values['compile']} is unknown{hint}")
    common = {name: values[name] for name in COMMON if name not in ("out", "device", "compile")}
    with process_group() as context:
        device, compiled = device_named(values["device"]), COMPILE[values["compile"]]
        result = run(recipe, out, device=device, compile=compiled, **common, **options)
    if context.is_main:
        print(made.report(result, str(out)))


def device_named(name: str) -> "torch.device":
    """Return the torch device of that name; `auto` is the GPU if there is one.

    Raises:
        ValueError: there is no such device.
    """
    import torch

    from txlib.devices import default_device

    if name == "auto":
        return default_device()
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        hint = did_you_mean(name, ("auto", "cpu", "cuda", "mps"))
        raise ValueError(f"device {name!r} is not there; choose auto or cpu{hint and f' ({hint[2:]})'}") from None
