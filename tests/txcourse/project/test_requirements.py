"""The lists of requirements agree: the four projects, conda's environment.yml, exact versions in constraints.txt."""

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
FOLDERS = {"txlib-course": ".", "txgrade": "txgrade", "txcourse": "txcourse", "txlib-course-data": "data"}
PROJECTS = {
    name: tomllib.loads((COURSE / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, folder in FOLDERS.items()
}
EVERYTHING = {"txlib-course": {"dev", "bench", "fp8"}, "txgrade": {"cluster"}, "txcourse": {"site"}}
DEV = {"txlib-course": {"dev"}, "txgrade": {"cluster"}, "txcourse": {"site"}}
CONDA_NAMES = {"huggingface_hub": "huggingface-hub", "pytorch": "torch", "matplotlib-base": "matplotlib"}


def requirements(name: str, *extras: str) -> dict[str, Requirement]:
    """The requirements of one of our projects with some extras, and of those of ours that it requires."""
    project, found = PROJECTS[name], {}
    optional = project.get("optional-dependencies", {})
    for line in [*project.get("dependencies", []), *(line for extra in extras for line in optional[extra])]:
        requirement = Requirement(line)
        if requirement.name in PROJECTS:
            found |= requirements(requirement.name, *requirement.extras)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def all_requirements(projects: dict[str, set[str]]) -> dict[str, Requirement]:
    return {name: line for project, extras in projects.items() for name, line in requirements(project, *extras).items()}


def test_the_four_projects_have_one_version():
    assert set(PROJECTS) == {project["name"] for project in PROJECTS.values()}
    assert len({project["version"] for project in PROJECTS.values()}) == 1
    assert len({project["requires-python"] for project in PROJECTS.values()}) == 1


def pins() -> dict[str, Version]:
    lines = (COURSE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): Version(str(each.specifier).removeprefix("==")) for each in pinned}


def test_conda_installs_the_same_requirements():
    *packages, pip = yaml.safe_load((COURSE / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = {CONDA_NAMES.get(each.name, each.name): each.specifier for each in map(Requirement, packages)}
    assert conda.pop("pip") == ""
    assert PROJECTS["txcourse"]["requires-python"] in str(conda.pop("python"))
    assert conda == {name: each.specifier for name, each in requirements("txcourse").items()}
    assert pip == {"pip": ["-e .", "-e ./txgrade", "-e ./txcourse"]}


def test_constraints_pin_every_requirement_and_theirs():
    pinned, waiting, seen = pins(), list(all_requirements(EVERYTHING).values()), set()
    missing = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in pinned:
            missing.add(name)
        elif name in all_requirements(DEV):
            assert requirement.specifier.contains(pinned[name]), f"{requirement} against {name}=={pinned[name]}"
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        try:
            lines = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # a peer of the benchmarks, which the tests do without
            assert name in requirements("txlib-course", "bench")
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
    core = {canonicalize_name(name) for name in requirements("txlib-course")}
    extras = {name.replace("-", "_") for name in all_requirements(DEV) if name not in core} | {"IPython", "yaml"}
    code = f"""
import sys
sys.modules |= dict.fromkeys({sorted(extras)!r})
import txlib, txlib.attention, txlib.layers, txlib.models, txlib.generation
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=COURSE)
