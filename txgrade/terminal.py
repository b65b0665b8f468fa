"""What the commands `txgrade` and `txcourse` share: one line for a user's error, and names in any language."""

import codecs
import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version as version_of
from typing import Annotated, Never

import typer


def new_app(name: str, about: str) -> typer.Typer:
    """Return a command without subcommands, with the option --version of the distribution of that name."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> bool:
        if wanted:
            print(f"{name} {version_of(name)}")
            raise typer.Exit
        return wanted

    @app.callback(help=about)
    def options(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and stop.")
        ] = False,
    ) -> None:
        pass

    return app


def run(app: typer.Typer, name: str) -> None:
    """Run a command. A user's error is one line on stderr and exit status 2, never a traceback."""
    print_any_name()
    try:
        app()
    except (ImportError, ValueError, OSError) as error:
        fail(name, error)


def print_any_name() -> None:
    """Print names in any language: as UTF-8 where the locale knows ASCII only, elsewhere with ? for what it lacks."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii else None, errors="surrogateescape" if ascii else "replace")


def fail(name: str, error: object) -> Never:
    """Say what is wrong and stop."""
    for line in str(error).splitlines():
        print(f"{name}: {line}", file=sys.stderr)
    sys.exit(2)


@contextlib.contextmanager
def stopping(words: str) -> Iterator[None]:
    """Stop with one sentence if the process is interrupted or asked to end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"txgrade: {words}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
