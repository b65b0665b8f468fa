"""The command `txlib`: each subcommand is a thin function over the library."""

import codecs
import inspect
import io
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from txlib.paths import DATA, install

try:
    import typer
except ModuleNotFoundError:
    raise SystemExit(f"txlib: the command needs typer; {install('train')}") from None

import txlib

if TYPE_CHECKING:
    import torch

    from txlib.music import Piece
    from txlib.recipes import Recipe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The terms under which the sentences come; data/README.md and the LICENSE of each folder say it in full.
LICENCES = {
    "wesnoth": "GPL-2+",
    "freedroidrpg": "GPL-2+",
    "naev": "GPL-3+",
    "widelands": "GPL-2+",
    "shakespeare": "public domain, MIT",
    "reviews": "CC0, MIT",
    "verses": "public domain",
    "chorales": "public domain, see its LICENSE",
    "multi30k": "non-commercial research",
    "digits": "CC BY 4.0, BSD",
    "fashion": "MIT",
}


def _show_version(asked: bool) -> bool:
    if asked:
        print(f"txlib {txlib.__version__} ({txlib.DISTRIBUTION})")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and stop.")
    ] = False,
) -> None:
    """Transformers, built by hand: the course and its library."""


def main() -> None:
    """Run the command. A user's error is one line on stderr and exit status 2, never a traceback."""
    _say_every_name()
    try:
        app()
    except ModuleNotFoundError as error:
        fail(f"{error}; {install('lab')}")
    except (ValueError, OSError) as error:
        fail(error)


def _say_every_name() -> None:
    """Print names in any language: as UTF-8 where the locale knows ASCII only, elsewhere with ? for what it lacks."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii else None, errors="surrogateescape" if ascii else "replace")


def fail(error: object) -> None:
    """Say what is wrong and stop."""
    for line in str(error).splitlines():
        print(f"txlib: {line}", file=sys.stderr)
    sys.exit(2)


@app.command()
def data() -> None:
    """List the data sets, their sizes and licences."""
    from txlib.data import chorales, digits, fashion, reviews, shakespeare, verses
    from txlib.data.translation import EMBEDDED, translation

    row = "{:<13} {:<6} {:>8} {:>11} {:>6}  {}".format
    print(row("--data", "--pair", "train", "validation", "test", "licence"))
    for source, languages in EMBEDDED.items():
        for language in languages:
            sizes = [f"{len(split):,}" for split in translation(source, f"{language}-en")]
            print(row(source, f"{language}-en", *sizes, LICENCES[source]))
    for language in ("de", "fr"):
        sizes = [f"{len(split):,}" for split in translation("games", f"{language}-en")]
        strictest = max(LICENCES[source] for source, languages in EMBEDDED.items() if language in languages)
        print(row("games", f"{language}-en", *sizes, f"{strictest} (all of the above)"))
    for language in ("de", "fr"):
        print(row("multi30k", f"{language}-en", "29,000", "1,014", "1,000", LICENCES["multi30k"]))
    print("\nmulti30k is not bundled: it is read from $TXLIB_DATA/multi30k or from the Hugging Face hub.\n")
    row = "{:<13} {:<10} {:>9} {:>11} {:>7}  {}".format
    print(row("English only", "", "train", "validation", "test", "licence"))
    for load, unit in ((shakespeare, "characters"), (reviews, "texts"), (verses, "pairs")):
        source = load.__name__
        print(row(source, unit, *(f"{len(split):,}" for split in load()), LICENCES[source]))
    print()
    print(row("pictures", "pixels", "train", "validation", "test", "licence"))
    for pictures in (digits, fashion):
        source, splits = pictures.__name__, pictures()
        size = " × ".join(str(side) for side in splits.train.pixel_values.shape[2:])
        print(row(source, size, *(f"{len(split):,}" for split in splits), LICENCES[source]))
    print(
        "\nfashion is a part of fashion-mnist, which is read from $TXLIB_DATA/fashion-mnist or from Debian's package."
    )
    print()
    print(row("music", "", "train", "validation", "test", "licence"))
    print(row("chorales", "pieces", *(f"{len(split):,}" for split in chorales()), LICENCES["chorales"]))
    print(f"\nTrained models, for --model, in {DATA / 'checkpoints'}:")
    print("  " + ", ".join(sorted(folder.name for folder in (DATA / "checkpoints").glob("*/"))))


class Recipes(typer.core.TyperGroup):
    """The recipes as commands; they are loaded when one is asked for, since they need torch."""

    def list_commands(self, ctx) -> list[str]:
        return list(self.recipes())

    def get_command(self, ctx, name: str):
        recipe = self.recipes().get(name)
        return recipe and recipe_command(recipe)

    def recipes(self) -> dict:
        """By the second word of their commands, those whose first word is this group's name."""
        from txlib.recipes import RECIPES

        words = {command.partition(" ")[::2]: recipe for command, recipe in RECIPES.items()}
        return {name: recipe for (group, name), recipe in words.items() if group == self.name}


def recipe_command(recipe: "type[Recipe]") -> Any:
    """A command whose options are the recipe's fields, and how long, where and on what to train."""
    own = [each for each in fields(recipe) if each.name != "seed"]
    seed = next(each for each in fields(recipe) if each.name == "seed")
    length = "Train for this long, measuring not included; the preset's time unless given."
    common = {
        "minutes": (float | None, None, length),
        "steps": (int | None, None, "Train for this many steps instead."),
        "device": (str, "auto", "auto, cpu, cuda or mps."),
        "out": (Path | None, None, "Folder of the run; in runs/ unless given."),
        "resume": (bool, False, "Go on with the run in that folder."),
        "parallel": (
            str,
            "ddp",
            "Under torchrun: ddp, each process has all weights; fsdp, a share; tp, some heads.",
        ),
        "precision": (
            str,
            "auto",
            "auto: bf16 where the device multiplies in it; or fp32, bf16, fp8 (blocks in 8 bits: new GPUs, torchao).",
        ),
        "compile": (str, "off", "on: compile the blocks; reduce-overhead: and play them back as CUDA graphs."),
        "checkpoint_activations": (
            str,
            "none",
            "Compute twice, to save memory: blocks, every-2 (every second block), or matmuls (all but the products).",
        ),
        "profile": (bool, False, "Print where the time goes, and keep a trace of a few steps in the run's folder."),
        "seed": (int, seed.default, seed.metadata["help"]),
    }
    options = {each.name: (each.type, each.default, each.metadata["help"]) for each in own} | common

    def command(ctx, **values) -> None:
        from txlib.recipes import run
        from txlib.training.processes import process_group

        given = {name: value for name, value in values.items() if ctx.get_parameter_source(name).name != "DEFAULT"}
        chosen = {name: value for name, value in given.items() if name not in common or name == "seed"}
        made = recipe(**chosen)
        out = values["out"] or Path("runs") / made.folder_name
        length = {name: values[name] for name in ("minutes", "steps")}
        one_length(**length)
        with process_group() as context:
            device = _device(values["device"])
            how = {
                name: values[name] for name in ("resume", "parallel", "precision", "checkpoint_activations", "profile")
            }
            how |= {"device": device, "compile": {"off": False, "on": True}.get(values["compile"], values["compile"])}
            result = run(recipe, out, **length, **how, **chosen)
        if context.is_main:
            print(made.report(result, str(out)))

    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, (kind, default, about) in options.items():
        flags = [f"--{name}"] if kind is bool else []
        annotation = Annotated[kind, typer.Option(*flags, help=about)]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    what = inspect.cleandoc(recipe.__doc__ or "").partition("\n\n")[0]
    command.__doc__ = f"{what}\n\nStopped by Ctrl-C or a power cut, the same command with --resume goes on."
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(recipe.command.partition(" ")[2])(command)
    return typer.main.get_command(alone)


app.add_typer(typer.Typer(cls=Recipes, help="Train a model on real data.", no_args_is_help=True), name="train")
app.add_typer(typer.Typer(cls=Recipes, help="Give a pre-trained model a task.", no_args_is_help=True), name="finetune")


@app.command()
def translate(
    model: Annotated[str, typer.Option(help="The folder that `txlib train translation` wrote.")],
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="[SENTENCE]…", help="Without: the lines of stdin.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Translate sentences with a trained model."""
    from txlib.data import model_folder
    from txlib.generation import Translator
    from txlib.models import Transformer
    from txlib.models.pretrained import load_pretrained
    from txlib.text import load_tokenizer

    folder = model_folder(model)
    if (Path(folder) / "vocabulary.json").exists():
        raise ValueError(f"{folder} was written by an older txlib; train again: txlib train translation")
    network = load_pretrained(folder, device=_device(device))
    if not isinstance(network, Transformer):
        raise ValueError(
            f"{model} holds a {type(network).__name__}, which does not translate; see txlib train translation"
        )
    translator = Translator(network, load_tokenizer(folder))
    lines = sentences or sys.stdin.read().splitlines()
    filled = [line for line in lines if line.strip()]
    translations = iter(translator.translate(filled) if filled else ())
    for line in lines:
        print(next(translations) if line.strip() else "")


@app.command()
def generate(
    model: Annotated[
        str, typer.Option(help="A folder as `transformers` or `txlib train shakespeare` writes it, or a hub id.")
    ],
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]…", help="Without: all of stdin.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Stop after so many tokens.")] = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token, instead of drawing.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder, 0: greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens that make up p.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens at least p times as likely as the first.")
    ] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Above 0: less of what has been written.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, once per time that it was written.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given several times.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="fp16 or int8: fewer bytes for each weight, for speed on an x86 CPU.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Let a language model write on."""
    from txlib.data import model_folder
    from txlib.generation import GenerationConfig, TextGenerator
    from txlib.layers import pack_weights
    from txlib.models import GPT
    from txlib.models.pretrained import find_folder, load_pretrained
    from txlib.text import load_tokenizer

    config = GenerationConfig(
        temperature=0 if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_new_tokens=max_new_tokens,
        do_sample=True,
        seed=seed,
    )
    folder = find_folder(model_folder(model))
    network = load_pretrained(folder, device=_device(device))
    if not isinstance(network, GPT):
        raise ValueError(f"{model} holds a {type(network).__name__}, which does not write on; give e.g. a GPT-2")
    if weights is not None:
        pack_weights(network, weights)
    generator = TextGenerator(network, load_tokenizer(folder))
    for prompt in prompts or [sys.stdin.read()]:
        print(prompt, end="", flush=True)
        for piece in generator.stream(prompt, config, stop_strings=stop or ()):
            print(piece, end="", flush=True)
        print()


@app.command()
def compose(
    out: Annotated[Path, typer.Argument(metavar="OUT.mid", help="The file to write: .mid, or .wav to listen to.")],
    model: Annotated[str, typer.Option(help="The folder that `txlib train music` wrote.")] = "bach",
    primer: Annotated[
        str | None, typer.Option(metavar="BWV|FILE", help="How it begins: a chorale as bwv269, or a MIDI file.")
    ] = None,
    primer_beats: Annotated[int, typer.Option(help="Quarters of the primer that are taken.")] = 16,
    melody: Annotated[
        str | None, typer.Option(metavar="BWV|FILE", help="Instead: a soprano that gets its other voices.")
    ] = None,
    beats: Annotated[int, typer.Option(help="Quarters to write; fewer, where the model comes to an end.")] = 32,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder.")] = 0.9,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens that make up p.")] = None,
    tempo: Annotated[float, typer.Option(help="Quarters per minute.")] = 80,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same music.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "cpu",
) -> None:
    """Compose a chorale: go on with one, or harmonise a melody."""
    from txlib.data import model_folder
    from txlib.generation import Composer, GenerationConfig
    from txlib.models.pretrained import load_pretrained
    from txlib.music import STEPS_PER_QUARTER, synthesise, wav, write_midi
    from txlib.music.midi import needs_mido

    if out.suffix not in (".mid", ".wav"):
        raise ValueError(f"{out} must end in .mid or .wav")
    if primer is not None and melody is not None:
        raise ValueError("--primer and --melody can't both say what to write; give one")
    if primer_beats < 1 or beats < 1:
        raise ValueError(f"--primer-beats {primer_beats} and --beats {beats} must be at least 1")
    if out.suffix == ".mid":
        needs_mido("txlib compose")
    config = GenerationConfig(temperature=temperature, top_p=top_p, do_sample=True, seed=seed)
    composer = Composer(load_pretrained(model_folder(model), device=_device(device)))
    if melody is not None:
        piece = composer.harmonise(_piece(melody), config)
    else:
        beginning = None if primer is None else _piece(primer)[: primer_beats * STEPS_PER_QUARTER]
        piece = composer.continue_(beginning, beats * STEPS_PER_QUARTER, config, may_end=True)
    if out.suffix == ".mid":
        write_midi(piece, out, tempo=tempo)
    else:
        out.write_bytes(wav(synthesise(piece, tempo=tempo)))
    print(f"{out}: {len(piece) / STEPS_PER_QUARTER:g} quarters, {int(piece.onset.sum())} notes")


def _piece(source: str) -> "Piece":
    """A chorale by its number, or the piece in a MIDI file."""
    from txlib.data import chorales
    from txlib.music import read_midi

    if not source.lower().startswith("bwv") or source.endswith(".mid"):
        return read_midi(source)
    named = {piece.name: piece for split in chorales() for piece in split}
    if source.lower() not in named:
        raise ValueError(f"{source!r} is none of the {len(named)} chorales; data/chorales has them, such as bwv269")
    return named[source.lower()]


def one_length(minutes: float | None, steps: int | None) -> None:
    """Refuse two ways to say when to stop."""
    if minutes is not None and steps is not None:
        raise ValueError(f"--minutes {minutes:g} and --steps {steps} can't both say when to stop; give one")


def _device(name: str) -> "torch.device":
    """The torch device of that name; `auto` is the GPU if there is one."""
    import torch

    from txlib.devices import default_device

    if name == "auto":
        return default_device()
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ValueError(f"device {name!r} is not there; choose auto or cpu") from None


if __name__ == "__main__":
    main()
