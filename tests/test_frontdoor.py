"""What a stranger meets first: the README's words, the make targets, the lists of requirements."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from txlib.cli import LICENCES, app

COURSE = Path(__file__).parents[1]
PROJECT = tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (COURSE / "README.md").read_text(encoding="utf-8")
CONDA_NAMES = {"huggingface_hub": "huggingface-hub", "pytorch": "torch", "matplotlib-base": "matplotlib"}


def requirements(*extras: str) -> dict[str, Requirement]:
    """The project's requirements, with those of some extras and of the extras that these name."""
    found, lists = {}, [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    for requirement in (Requirement(line) for each in lists for line in each):
        if requirement.name == PROJECT["name"]:
            found |= requirements(*requirement.extras)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def pins() -> dict[str, Version]:
    lines = (COURSE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): Version(str(each.specifier).removeprefix("==")) for each in pinned}


def test_conda_installs_the_same_requirements():
    *packages, pip = yaml.safe_load((COURSE / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = {CONDA_NAMES.get(each.name, each.name): each.specifier for each in map(Requirement, packages)}
    assert conda.pop("pip") == ""
    assert PROJECT["requires-python"] in str(conda.pop("python"))
    assert conda == {name: each.specifier for name, each in requirements("lab").items()}
    assert pip == {"pip": ["-e ."]}


def test_constraints_pin_every_requirement_and_theirs():
    pinned, waiting, seen = pins(), list(requirements(*PROJECT["optional-dependencies"]).values()), set()
    missing = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in pinned:
            missing.add(name)
        elif name in requirements("dev"):
            assert requirement.specifier.contains(pinned[name]), f"{requirement} against {name}=={pinned[name]}"
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        try:
            lines = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # a peer of the benchmarks, which the tests do without
            assert name in requirements("bench")
            lines = ()
        for line in lines:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    missing = {name for name in missing if not name.startswith(("nvidia-", "cuda-", "triton"))}  # torch pins these
    assert not missing, "add them to constraints.txt"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL))
def test_readme_code_prints_what_it_says(block, capsys):
    code, output = block
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == output


def test_readme_has_code_with_output():
    assert README.count("```python") == README.count("```text") > 0


def test_readme_names_commands_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (COURSE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"lab", "test"} <= targets
    commands = [
        line.partition("  #")[0]
        for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
        for line in block.splitlines()
    ]
    commands += re.findall(r"`((?:make|txlib) [^`]*)`", README)
    assert len(commands) > 10
    for command in commands:
        words = shlex.split(command)
        if words[0] == "make":
            assert words[1] in targets, command
        if words[0] == "txlib":
            check_txlib(words[1:])


def check_txlib(words: list[str]) -> None:
    """The words name a command and its options."""
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    runs_by_itself = getattr(command, "invoke_without_command", False) and words and words[0].startswith("--")
    assert not getattr(command, "commands", None) or runs_by_itself or words in ([], ["--help"]), words
    assert {word for word in words if word.startswith("--")} <= options


def test_readme_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    links += re.findall(r'<img src="([^"]+)"', README)
    assert links
    assert not [link for link in links if not (COURSE / link).exists()]


def test_nobody_is_told_to_install_the_other_txlib():
    for pattern in ("*.md", "docs/*.md", "notebooks/*.py", "solutions/*.py", "txlib/**/*.py"):
        for path in COURSE.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(pip|conda) install [^\n`]*\btxlib\b(?!-course|/)", text), path


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run make as a person would, also when these tests were themselves started by make."""
    outer = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}
    environment = environment or {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(["make", *arguments], cwd=COURSE, capture_output=True, text=True, env=environment)


def test_make_lists_every_target():
    targets = re.search(r"^\.PHONY: (.*)$", (COURSE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    listed = make().stdout.splitlines()
    assert [line.split()[1] for line in listed] == targets
    assert all(len(line.split()) > 3 for line in listed)


def test_make_refuses_an_old_python(tmp_path):
    for name in ("python3", *(f"python3.{minor}" for minor in range(11, 15))):
        (tmp_path / name).write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
        (tmp_path / name).chmod(0o755)
    venv = tmp_path / "venv"
    said = make(f"VENV={venv}", f"{venv}/bin/python", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert said.returncode != 0 and not venv.exists()
    assert "no Python 3.11 to 3.14 found (python3 is Python 3.9.2)" in said.stderr
    assert "make lab PYTHON=" in said.stderr


def test_make_starts_at_once_when_all_is_installed(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", "installed-lab"):
        (tmp_path / name).touch()
    assert make("-n", "lab", f"VENV={tmp_path}").stdout == f"{tmp_path}/bin/txlib lab \n"


def test_the_core_needs_no_extra():
    """`import txlib` and its parts with every package but those of the core out of reach."""
    core = {canonicalize_name(name) for name in requirements()}
    extras = {name.replace("-", "_") for name in requirements("dev") if name not in core} | {"IPython", "yaml"}
    code = f"""
import sys
sys.modules |= dict.fromkeys({sorted(extras)!r})
import txlib, txlib.attention, txlib.layers, txlib.models, txlib.generation
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=COURSE)


def test_licences_are_those_of_the_data():
    table = re.findall(r"^\| `(\w+)/` .*\| ([^|]+) \|$", (COURSE / "data/README.md").read_text(encoding="utf-8"), re.M)
    assert dict(table) == {name: licence for name, licence in LICENCES.items() if name != "multi30k"}
