"""An assignment's data: the files and folders that its cells read, besides what the course itself brings.

They are named in a cell's metadata, by paths as the cells write them: in an exercise of ours in the cell of the
parameters, `# %% tags=["parameters"] data=["numbers.txt", "../texts"]`. A sandbox binds them there, read-only.
"""

import os
import posixpath
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

from txgrade.authoring.assignment import digest

HIGHEST = 2  # how many folders up a path may lead
Data = tuple[tuple[str, Path], ...]  # each path as cells name it, and where the file is


def named_data(notebook: Any) -> list:
    """Return the places that a notebook's cells name as data."""
    return [name for cell in notebook.cells for name in cell.metadata.get("data", ())]


def find_data(notebook: Any, source: Path) -> tuple[Data, list[str]]:
    """Return a source's data, and what is wrong with how it names them."""
    data, problems = [], []
    for name in named_data(notebook):
        path = source.parent / str(name)
        if problem := _problem(name, path, source):
            problems.append(f"data {name!r}: {problem}")
        else:
            data.append((posixpath.normpath(name), path.resolve()))
    names = [name for name, _ in data]
    problems += [
        f"data {name!r} is named twice, or is in {other!r}"
        for i, name in enumerate(names)
        for j, other in enumerate(names)
        if i != j and (name.startswith(f"{other}/") or name == other and i > j)
    ]
    return tuple(data), problems


def digest_of(data: Data) -> list[str]:
    """Return what a grade depends on of the data: each file's place, and a hash of its bytes."""
    hashes = []
    for name, path in data:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        hashes += [digest(name, str(file.relative_to(path)), sha256(file.read_bytes()).hexdigest()) for file in files]
    return hashes


def hand_out(data: Data, folder: Path) -> list[str]:
    """Copy data next to a released exercise, where its cells look for it; files further up are left to the author."""
    warnings = []
    for name, path in data:
        target = Path(os.path.normpath(folder / name))
        if target.exists() and target.samefile(path):
            continue
        if name.startswith("../"):
            if not target.exists():
                warnings.append(f"learners need {path.name} at {name}, relative to {folder}: copy it there")
        elif path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return warnings


def missing_data(notebook: Any, folder: Path) -> list[str]:
    """Return the data that a notebook names and that do not exist, relative to its folder."""
    return [name for name in named_data(notebook) if not (folder / name).exists()]


def _problem(name: Any, path: Path, source: Path) -> str | None:
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        return "give a path as a text, with / between folders"
    if posixpath.isabs(name) or name.startswith("~"):
        return "give it as the cells do, relative to the exercise's folder, e.g. ../numbers.txt"
    if posixpath.normpath(name).split("/").count("..") > HIGHEST:
        return f"it leads more than {HIGHEST} folders up"
    if not path.exists():
        return f"there is no {path}"
    if source.resolve().is_relative_to(path.resolve()):
        return "it contains the solution, which no answer may read; choose a separate folder"
    return None
