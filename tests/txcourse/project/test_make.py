"""The targets of the Makefile."""

import os
import re
import subprocess
from pathlib import Path

COURSE = Path(__file__).parents[3]


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
    assert make("-n", "lab", f"VENV={tmp_path}").stdout == f"{tmp_path}/bin/txcourse lab \n"
