"""The lists of requirements agree: pyproject.toml, conda's environment.yml, the exact versions in constraints.txt."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

COURSE = Path(__file__).parents[3]
PROJECT = tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
