"""What a stranger meets first: the code of README and docs prints what it says, commands exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from txcourse import cli as course
from txgrade import cli as grader
from txlib import cli as library
from txlib.attention.config import Config

COURSE = Path(__file__).parents[3]
README = (COURSE / "README.md").read_text(encoding="utf-8")
HELP = (COURSE / "HELP.md").read_text(encoding="utf-8")


PAGES = [README, (COURSE / "docs" / "library.md").read_text(encoding="utf-8")]
GUIDES = {name: (COURSE / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("training", "install")}
COMMANDS = {"txlib": library.app, "txgrade": grader.app, "txcourse": course.app}
CODE_AND_OUTPUT = re.compile(r"```python\n(.*?)```\n+```text\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("block", [block for page in PAGES for block in CODE_AND_OUTPUT.findall(page)])
def test_code_prints_what_stands_below_it(block, capsys, monkeypatch):
    code, output = block
    monkeypatch.setattr(Config, "registry", dict(Config.registry))
    exec(compile(code, "page.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == output


@pytest.mark.parametrize("page", PAGES)
def test_all_code_has_output(page):
    assert page.count("```python") == page.count("```text") > 0


@pytest.mark.parametrize("page", [README, HELP, *GUIDES.values()], ids=["README", "HELP", *GUIDES])
def test_the_commands_that_are_named_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (COURSE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"lab", "test"} <= targets
    commands = [
        line.partition("  #")[0]
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
    ]
    commands += re.findall(r"`((?:make|txlib|txgrade|txcourse) [^`]*)`", page)
    assert len(commands) > 5
    for command in commands:
        words = shlex.split(command)
        if words[0] == "make":
            assert words[1] in targets, command
        if words[0] in COMMANDS:
            check_command(COMMANDS[words[0]], words[1:])


def check_command(app: typer.Typer, words: list[str]) -> None:
    """The words name a command and its options."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "get_command") and (found := command.get_command(None, words[0])):
        command, words = found, words[1:]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert not hasattr(command, "get_command") or words in ([], ["--help"], ["--version"]), words
    assert {word for word in words if word.startswith("--")} <= options


def test_help_needs_no_other_file():
    """It lies in my_work/, where the course's other files are not."""
    assert all(link.startswith("http") for link in re.findall(r"\]\(([^)]+)\)", HELP))


def test_nobody_is_told_to_install_the_other_txlib():
    for pattern in ("*.md", "docs/*.md", "notebooks/*.py", "solutions/*.py", "txlib/**/*.py"):
        for path in COURSE.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(pip|conda) install [^\n`]*\btxlib\b(?!-course|/)", text), path
