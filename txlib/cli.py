"""The command `txlib`: each subcommand is a thin function over the library."""

import codecs
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from txlib.hints import did_you_mean
from txlib.paths import DATA, explain_missing, install

try:
    import typer
except ModuleNotFoundError:
    raise SystemExit(f"txlib: the command needs typer; {install('train')}") from None

import txlib
from txlib.recipe_commands import RecipeGroup, device_named

if TYPE_CHECKING:
    from txlib.music import Piece

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

# The licenses of the data sets; data/README.md and the LICENSE of each folder say it in full.
LICENSES = {
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


def _show_version(value: bool) -> bool:
    if value:
        print(f"txlib {txlib.__version__} ({txlib.DISTRIBUTION})")
        raise typer.Exit
    return value


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and stop.")
    ] = False,
) -> None:
    """Transformers, built by hand."""


def main() -> None:
    """Run the command. A user's error is one line on stderr and exit status 2, never a traceback."""
    _print_any_language()
    try:
        app()
    except ModuleNotFoundError as error:
        fail(explain_missing(error))
    except (ValueError, OSError) as error:
        fail(error)


def _print_any_language() -> None:
    """Print any language: as UTF-8 if the locale is ASCII only, otherwise with ? for characters that it lacks."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii else None, errors="surrogateescape" if ascii else "replace")


def fail(error: object) -> None:
    """Print what is wrong and exit."""
    for line in str(error).splitlines():
        print(f"txlib: {line}", file=sys.stderr)
    sys.exit(2)


@app.command()
def data() -> None:
    """List the data sets, their sizes and licenses."""
    from txlib.data import chorales, digits, fashion, reviews, shakespeare, verses

    _list_translations()
    row = "{:<13} {:<10} {:>9} {:>11} {:>7}  {}".format
    print(row("English only", "", "train", "validation", "test", "license"))
    for load, unit in ((shakespeare, "characters"), (reviews, "texts"), (verses, "pairs")):
        source = load.__name__
        print(row(source, unit, *(f"{len(split):,}" for split in load()), LICENSES[source]))
    print()
    print(row("pictures", "pixels", "train", "validation", "test", "license"))
    for pictures in (digits, fashion):
        source, splits = pictures.__name__, pictures()
        size = " × ".join(str(side) for side in splits.train.pixel_values.shape[2:])
        print(row(source, size, *(f"{len(split):,}" for split in splits), LICENSES[source]))
    print(
        "\nfashion is a part of fashion-mnist, which is read from $TXLIB_DATA/fashion-mnist or from Debian's package."
    )
    print()
    print(row("music", "", "train", "validation", "test", "license"))
    print(row("chorales", "pieces", *(f"{len(split):,}" for split in chorales()), LICENSES["chorales"]))
    print(f"\nTrained models, for --model, in {DATA / 'checkpoints'}:")
    print("  " + ", ".join(sorted(folder.name for folder in (DATA / "checkpoints").glob("*/"))))


def _list_translations() -> None:
    """Print a table of the sentence pairs."""
    from txlib.data.translation import EMBEDDED, translation

    row = "{:<13} {:<6} {:>8} {:>11} {:>6}  {}".format
    print(row("--data", "--pair", "train", "validation", "test", "license"))
    for source, languages in EMBEDDED.items():
        for language in languages:
            sizes = [f"{len(split):,}" for split in translation(source, f"{language}-en")]
            print(row(source, f"{language}-en", *sizes, LICENSES[source]))
    for language in ("de", "fr"):
        sizes = [f"{len(split):,}" for split in translation("games", f"{language}-en")]
        strictest = max(LICENSES[source] for source, languages in EMBEDDED.items() if language in languages)
        print(row("games", f"{language}-en", *sizes, f"{strictest} (all of the above)"))
    for language in ("de", "fr"):
        print(row("multi30k", f"{language}-en", "29,000", "1,014", "1,000", LICENSES["multi30k"]))
    print("\nmulti30k is not bundled: it is read from $TXLIB_DATA/multi30k or from the Hugging Face hub.\n")


for name, summary in (
    ("train", "Train a model on real data, by one of these recipes or by your own: txlib train path/to/recipe.py"),
    ("finetune", "Give a pre-trained model a task."),
):
    app.add_typer(typer.Typer(cls=RecipeGroup, help=summary, no_args_is_help=True), name=name)


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
    network = load_pretrained(folder, device=device_named(device))
    if not isinstance(network, Transformer):
        raise ValueError(
            f"{model} holds a {type(network).__name__}, which does not translate; see txlib train translation"
        )
    translator = Translator(network, load_tokenizer(folder))
    lines = sentences or sys.stdin.read().splitlines()
    translations = iter(translator.translate([line for line in lines if line.strip()]))
    for line in lines:
        print(next(translations) if line.strip() else "")


@app.command()
def generate(
    model: Annotated[
        str, typer.Option(help="A folder as `transformers` or `txlib train shakespeare` writes it, or a hub id.")
    ],
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]…", help="Without: all of stdin.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token, instead of drawing.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder, 0: greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens that make up p.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens at least p times as likely as the first.")
    ] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Above 0: repeat fewer of the new tokens.")] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="The same, once for each time that a token was written.")
    ] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given several times.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="fp16, int8 or int4: fewer bytes for each weight, on an x86 CPU.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Let a language model continue a text."""
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
    network = load_pretrained(folder, device=device_named(device))
    if not isinstance(network, GPT):
        raise ValueError(f"{model} holds a {type(network).__name__}, which does not continue texts; give e.g. a GPT-2")
    if weights is not None:
        pack_weights(network, weights)
    generator = TextGenerator(network, load_tokenizer(folder))
    for prompt in prompts or [sys.stdin.read()]:
        print(prompt, end="", flush=True)
        for piece in generator.stream(prompt, config, stop_strings=stop or ()):
            print(piece, end="", flush=True)
        print()


@app.command()
def chat(
    model: Annotated[
        str,
        typer.Option(
            help="A folder with a chat template, as `txlib train assistant` or `transformers` writes it, or a hub id."
        ),
    ] = "assistant",
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 200,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder, 0: always the likeliest.")] = 0.7,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Talk with a model: each line is a message. Ctrl-C ends an answer, Ctrl-D the conversation."""
    from txlib.data import model_folder
    from txlib.generation import Chat, GenerationConfig, TextGenerator
    from txlib.models.pretrained import find_folder, load_pretrained
    from txlib.text import load_tokenizer
    from txlib.text.chat import ChatTemplate

    config = GenerationConfig(max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, seed=seed)
    folder = find_folder(model_folder(model))
    tokenizer = load_tokenizer(folder)
    template = ChatTemplate.load(folder, tokenizer)
    conversation = Chat(
        TextGenerator(load_pretrained(folder, device=device_named(device)), tokenizer), template, system
    )
    while True:
        try:
            message = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not message.strip():
            continue
        try:
            for piece in conversation.say(message, config):
                print(piece, end="", flush=True)
            print()
        except KeyboardInterrupt:
            print(" …")
        except ValueError as error:  # of this message: the conversation goes on
            print(f"txlib: {error}", file=sys.stderr)


@app.command()
def serve(
    model: Annotated[
        str, typer.Option(help="A folder as `transformers` or `txlib train shakespeare` writes it, or a hub id.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any that is free.")] = 8000,
    cache_tokens: Annotated[int, typer.Option(help="Tokens in the cache, of all texts together.")] = 8192,
    max_running: Annotated[int, typer.Option(help="Most texts that are written at a time.")] = 32,
    max_waiting: Annotated[int, typer.Option(help="Most texts that wait for their turn.")] = 256,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 256,
    weights: Annotated[
        str | None, typer.Option(help="fp16, int8 or int4: fewer bytes for each weight, on an x86 CPU.")
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="int8: keys and values in 8 bits; auto: in the model's type.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Answer many clients at once, by OpenAI's HTTP interface: /v1/chat/completions and /v1/completions."""
    from txlib.data import model_folder
    from txlib.generation.serve import Engine
    from txlib.generation.serve.http import Server, serve_forever
    from txlib.layers import pack_weights
    from txlib.models.pretrained import find_folder, load_pretrained
    from txlib.text import load_tokenizer
    from txlib.text.chat import ChatTemplate

    folder = find_folder(model_folder(model))
    network, tokenizer = load_pretrained(folder, device=device_named(device)), load_tokenizer(folder)
    engine = Engine(
        network,
        cache_tokens=cache_tokens,
        max_running=max_running,
        max_waiting=max_waiting,
        kv_cache_dtype=kv_cache_dtype,
    )
    if weights is not None:
        pack_weights(network, weights)
    try:
        template = ChatTemplate.load(folder, tokenizer)
    except ValueError:  # it has none
        template = None
    serve_forever(Server(engine, tokenizer, Path(folder).name, template, max_new_tokens), host, port)


@app.command()
def compare(
    model: Annotated[str, typer.Argument(help="A folder as `transformers` writes it, a bundled model, or a hub id.")],
    tokens: Annotated[int, typer.Option(help="Length of the random text.")] = 16,
    tolerance: Annotated[
        float, typer.Option(help="The difference that counts as rounding, as a part of a layer's largest value.")
    ] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of the random input.")] = 0,
) -> None:
    """Find the first layer that differs from transformers; the exit status is 1 if one does."""
    from txlib.data import model_folder
    from txlib.models.compare import compare_pretrained

    comparison = compare_pretrained(model_folder(model), tokens=tokens, tolerance=tolerance, seed=seed)
    print(comparison)
    if comparison.first is not None:
        raise typer.Exit(1)


@app.command()
def compose(
    out: Annotated[Path, typer.Argument(metavar="OUT.mid", help="The file to write: .mid, or .wav to listen to.")],
    model: Annotated[str, typer.Option(help="The folder that `txlib train music` wrote.")] = "bach",
    primer: Annotated[
        str | None, typer.Option(metavar="BWV|FILE", help="How it begins: a chorale such as bwv269, or a MIDI file.")
    ] = None,
    primer_beats: Annotated[int, typer.Option(help="Quarters of the primer that are taken.")] = 16,
    melody: Annotated[
        str | None, typer.Option(metavar="BWV|FILE", help="Instead: a soprano, to be harmonised.")
    ] = None,
    beats: Annotated[int, typer.Option(help="Quarters to write; fewer if the model ends the piece.")] = 32,
    temperature: Annotated[float, typer.Option(help="Below 1 safer, above 1 wilder.")] = 0.9,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens that make up p.")] = None,
    tempo: Annotated[float, typer.Option(help="Quarters per minute.")] = 80,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same music.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "cpu",
) -> None:
    """Compose a chorale: continue one, or harmonise a melody."""
    from txlib.data import model_folder
    from txlib.generation import Composer, GenerationConfig
    from txlib.models.pretrained import load_pretrained
    from txlib.music import STEPS_PER_QUARTER, synthesize, wav, write_midi
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
    composer = Composer(load_pretrained(model_folder(model), device=device_named(device)))
    if melody is not None:
        piece = composer.harmonise(_piece(melody), config)
    else:
        beginning = None if primer is None else _piece(primer)[: primer_beats * STEPS_PER_QUARTER]
        piece = composer.continue_(beginning, beats * STEPS_PER_QUARTER, config, may_end=True)
    if out.suffix == ".mid":
        write_midi(piece, out, tempo=tempo)
    else:
        out.write_bytes(wav(synthesize(piece, tempo=tempo)))
    print(f"{out}: {len(piece) / STEPS_PER_QUARTER:g} quarters, {int(piece.onset.sum())} notes")


def _piece(source: str) -> "Piece":
    """Return a chorale by its number, or the piece in a MIDI file."""
    from txlib.data import chorales
    from txlib.music import read_midi

    if not source.lower().startswith("bwv") or source.endswith(".mid"):
        return read_midi(source)
    named = {piece.name: piece for split in chorales() for piece in split}
    if source.lower() not in named:
        hint = did_you_mean(source, named) or "; data/chorales has them, such as bwv269"
        raise ValueError(f"{source!r} is none of the {len(named)} chorales{hint}")
    return named[source.lower()]


if __name__ == "__main__":
    main()
