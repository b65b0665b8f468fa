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
Data = tuple[tuple[str, Path], ...]  # each one's place, as cells name it, and where it lies


def named_data(notebook: Any) -> list:
    """Return the places that a notebook's cells name as data."""
    return [place for cell in notebook.cells for place in cell.metadata.get("data", ())]


def find_data(notebook: Any, source: Path) -> tuple[Data, list[str]]:
    """Return a source's data, and what is wrong with how it names them."""
    data, problems = [], []
    for place in named_data(notebook):
        path = source.parent / str(place)
        if problem := _problem(place, path, source):
            problems.append(f"data {place!r}: {problem}")
        else:
            data.append((posixpath.normpath(place), path.resolve()))
    places = [place for place, _ in data]
    problems += [
        f"data {place!r} is named twice, or lies in {other!r}"
        for i, place in enumerate(places)
        for j, other in enumerate(places)
        if i != j and (place.startswith(f"{other}/") or place == other and i > j)
    ]
    return tuple(data), problems


def digest_of(data: Data) -> list[str]:
    """Return what a grade depends on of the data: each file's place, and a hash of its bytes."""
    hashes = []
    for place, path in data:
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        hashes += [digest(place, str(each.relative_to(path)), sha256(each.read_bytes()).hexdigest()) for each in files]
    return hashes


def hand_out(data: Data, folder: Path) -> list[str]:
    """Put data beside a released exercise, where its cells look for them; what lies above is the author's to bring."""
    warnings = []
    for place, path in data:
        target = Path(os.path.normpath(folder / place))
        if target.exists() and target.samefile(path):
            continue
        if place.startswith("../"):
            if not target.exists():
                warnings.append(f"learners need {path.name} at {place}, seen from {folder}: bring it there")
        elif path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return warnings


def missing_data(notebook: Any, folder: Path) -> list[str]:
    """Return the data that a notebook names and that are not there, seen from its folder."""
    return [place for place in named_data(notebook) if not (folder / place).exists()]


def _problem(place: Any, path: Path, source: Path) -> str | None:
    if not isinstance(place, str) or not place or "\\" in place or "\0" in place:
        return "give a path as a text, with / between folders"
    if posixpath.isabs(place) or place.startswith("~"):
        return "give it as the cells do, relative to the exercise's folder, e.g. ../numbers.txt"
    if posixpath.normpath(place).split("/").count("..") > HIGHEST:
        return f"it leads more than {HIGHEST} folders up"
    if not path.exists():
        return f"there is no {path}"
    if source.resolve().is_relative_to(path.resolve()):
        return "the solution itself lies in it, and nobody may read that; choose a folder of its own"
    return None
