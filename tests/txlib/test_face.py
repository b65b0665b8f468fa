"""What `import txlib` shows: packages when they are asked for, one home for each public name, its docstring."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import txlib

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(name for name in txlib.__all__ if isinstance(getattr(txlib, name), ModuleType))


def test_one_import_is_enough():
    code = "import txlib; assert 'torch' not in __import__('sys').modules; print(txlib.attention.causal().dense(2, 2))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "True" in said.stdout


@pytest.mark.parametrize("name", txlib.__all__)
def test_every_name_is_there(name):
    assert getattr(txlib, name) is not None
    assert name in dir(txlib)


def test_a_typo_is_told_what_was_meant():
    with pytest.raises(AttributeError, match="no attribute 'atention'; did you mean 'attention'\\?"):
        txlib.atention  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'xyzzy'$"):
        txlib.xyzzy  # noqa: B018


def test_the_version_has_one_source(request):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == txlib.DISTRIBUTION
    assert txlib.__version__ == project["version"], "pyproject.toml has changed: install again, pip install -e ."
    status, out, _ = request.getfixturevalue("txlib")("--version")
    assert status == 0 and project["version"] in out.split()


def test_editors_see_what_python_finds():
    """The imports under TYPE_CHECKING are what `__getattr__` gives."""
    (block,) = [node for node in ast.parse(inspect.getsource(txlib)).body if isinstance(node, ast.If)]
    shown = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    shown |= {node.target.id for node in block.body if isinstance(node, ast.AnnAssign)}
    assert shown == set(txlib.__all__)


@pytest.mark.slow
def test_a_type_checker_knows_what_a_model_gives(tmp_path):
    (tmp_path / "use.py").write_text(
        "import txlib\n"
        "from txlib.models import GPT, BertForPreTraining\n"
        "def use(gpt: GPT, bert: BertForPreTraining, ids: object) -> None:\n"
        "    reveal_type(gpt(ids))\n"
        "    reveal_type(bert(ids))\n"
        "    reveal_type(txlib.attention.causal())\n"
        "    gpt(ids).logitz\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", tmp_path / "use.py"]
    said = subprocess.run(command, cwd=ROOT, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    kinds = re.findall(r'Revealed type is "([\w.]+)["\[]', said.stdout)
    assert [kind.rpartition(".")[2] for kind in kinds] == ["CausalLMOutput", "PreTrainingOutput", "Mask"]
    assert '"CausalLMOutput[Tensor | None]" has no attribute "logitz"' in said.stdout and "Found 1 error" in said.stdout


def test_each_public_name_has_one_home():
    homes = defaultdict(list)
    for package in ["txlib", *(f"txlib.{name}" for name in PACKAGES)]:
        module = import_module(package)
        assert len(module.__all__) == len(set(module.__all__)), f"{package}.__all__ names something twice"
        for name in module.__all__:
            public = getattr(module, name)
            if isinstance(public, type) or inspect.isfunction(public):
                homes[f"{public.__module__}.{public.__qualname__}"].append(package)
                assert public.__module__.startswith(f"{package}."), f"{package}.{name} lives in {public.__module__}"
    assert len(homes) > 100
    assert not {name: found for name, found in homes.items() if len(found) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_says_what_it_is(package):
    module = import_module(f"txlib.{package}")
    assert module.__doc__
    silent = []
    for name in module.__all__:
        public = getattr(module, name)
        said = vars(public).get("__doc__") if isinstance(public, type) else inspect.getdoc(public)
        if not (isinstance(public, type | ModuleType) or callable(public)):
            said = constants(module).get(name)
        if not said or said.startswith(f"{name}("):  # what a dataclass says by itself
            silent.append(name)
    assert not silent


def constants(package: ModuleType) -> dict[str, str | None]:
    """The constants that a package's files define, with the string below each."""
    found = {}
    for path in Path(package.__file__).parent.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, below in zip(body, body[1:], strict=False):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                found[ast.unparse(target)] = getattr(below.value, "value", None)
    return found
