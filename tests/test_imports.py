"""What `import txlib` needs, and which part may import which."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIGHT = {"torch", "numpy", "einops", "jaxtyping"}

MAY_IMPORT = {
    "attention": {"attention", "precision", "hints"},
    "layers": {"layers", "attention", "precision", "hints"},
    "models": {"models", "layers", "attention", "precision", "labels", "hints"},
}
INSIDE_FUNCTIONS = {  # files, too, that only a function imports
    "adapters.py": {"safetensors"},
    "compare.py": {"transformers"},
    "flash_triton.py": {"triton"},
    "pretrained.py": {"safetensors"},
    "stored.py": {"safetensors", "huggingface_hub"},
}
ABOVE = {"txlib": {"txgrade", "txcourse"}, "txgrade": {"txlib", "txcourse"}}
MAY_NOT_IMPORT = {
    "generation": {"models", "recipes"},
    "data": {"recipes"},
    "text": {"data", "recipes"},
    "posttraining": {"models", "text", "recipes"},
    "training": {"models", "text", "data", "generation", "recipes"},  # it knows no model
}
ROOMS = {  # of txgrade, from the ground up: which rooms each may import
    "evidence": set(),
    "records": set(),
    "sandbox": set(),
    "checking": {"evidence"},  # runs in a learner's kernel
    "authoring": {"evidence", "checking", "records"},
    "submitting": {"evidence", "checking", "records", "authoring"},
    "judging": {"evidence", "checking", "records", "authoring", "sandbox"},
    "pages": {"evidence", "checking", "records", "authoring", "submitting"},
    "marking": {"records", "pages"},
    "running": {"evidence", "checking", "records", "authoring", "submitting", "judging", "pages", "sandbox"},
}


def imported(path: Path) -> set[str]:
    """Names of everything that a file imports, also inside its functions: for `from a import b` it is `a.b`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # from .x import y
                package = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
                module = ".".join([*package, *([module] if module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def parts_of_txlib(package: str) -> set[str]:
    """Which parts of txlib a package imports."""
    files = (ROOT / "txlib" / package).rglob("*.py")
    names = [name.split(".") for path in files for name in imported(path)]
    return {name[1] for name in names if name[0] == "txlib" and len(name) > 1}


def imported_rooms(room: str) -> set[str]:
    """Which rooms and modules of txgrade a room imports."""
    names = [name.split(".") for path in (ROOT / "txgrade" / room).rglob("*.py") for name in imported(path)]
    return {name[1] for name in names if name[0] == "txgrade" and len(name) > 1}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package):
    assert parts_of_txlib(package) <= MAY_IMPORT[package]
    assert package in parts_of_txlib(package)  # the search finds something


@pytest.mark.parametrize(("package", "others"), ABOVE.items())
def test_the_three_packages_are_apart(package, others):
    """Neither the library nor the grader knows the other, or the course."""
    names = {name.split(".")[0] for path in (ROOT / package).rglob("*.py") for name in imported(path)}
    assert package in names
    assert not names & others


@pytest.mark.parametrize("package", ["txlib", "txgrade", "txcourse"])
def test_no_import_goes_in_a_circle(package):
    """The modules have an order in which each imports only earlier ones, also inside its functions."""
    files = {module_name(path): path for path in (ROOT / package).rglob("*.py")}
    arrows = {}
    for name, path in files.items():
        found = {each if each in files else each.rpartition(".")[0] for each in imported(path)}
        arrows[name] = found & files.keys() - {name}
    assert sum(map(len, arrows.values())) > len(files)
    graphlib.TopologicalSorter(arrows).prepare()  # CycleError names the circle


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_grader_imports_only_rooms_below(room):
    below = ROOMS.keys() & imported_rooms(room) - {room}
    assert below <= ROOMS[room]


def test_every_room_of_the_grader_has_its_place():
    found = {path.parent.name for path in (ROOT / "txgrade").glob("*/__init__.py")}
    assert found == ROOMS.keys()
    seen = {name for room in ROOMS for name in imported_rooms(room)}
    assert ROOMS.keys() - {"marking", "running"} <= seen  # the search finds something


@pytest.mark.parametrize("package", MAY_NOT_IMPORT)
def test_models_come_by_protocol(package):
    assert not parts_of_txlib(package) & MAY_NOT_IMPORT[package]


def test_only_tensor_parallelism_knows_the_layers_that_it_splits():
    found = {
        path.name
        for path in (ROOT / "txlib" / "training").rglob("*.py")
        if any(name.startswith(("txlib.attention", "txlib.layers")) for name in imported(path))
    }
    assert found == {"tensor_parallel.py"}


def test_the_core_needs_only_four_libraries():
    """Whatever the four load themselves is theirs; on top of it, the core may load only Python's own modules."""
    code = """
import sys
import torch, numpy, einops, jaxtyping
before = set(sys.modules)
import txlib, txlib.attention, txlib.layers, txlib.models, txlib.models.sizes
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    new = set(answer.stdout.split()) - set(sys.stdlib_module_names) - LIGHT
    assert new == {"txlib"}


def test_the_core_names_only_four_libraries():
    files = [ROOT / "txlib" / "__init__.py"]
    files += [path for package in MAY_IMPORT for path in (ROOT / "txlib" / package).rglob("*.py")]
    for path in files:
        named = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names) - {"txlib"}
        assert named <= LIGHT | {"typing_extensions"} | INSIDE_FUNCTIONS.get(path.name, set())  # torch needs it itself
