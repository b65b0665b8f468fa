"""The examples of CONTRIBUTING.md work, and its paths exist."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from txcourse.build import read_lesson, run_lesson
from txcourse.lessons import problems
from txlib.attention import check_mechanism
from txlib.attention.config import Config
from txlib.models.families import FAMILIES
from txlib.recipes import RECIPES, run

COURSE = Path(__file__).parents[3]
PAGE = (COURSE / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LESSON = "notebooks/36_rms.py"


@pytest.fixture
def example(monkeypatch):
    """Return a function that makes a module of an example, as if its file were there."""

    def load(path: str) -> ModuleType:
        module = ModuleType(path.removesuffix(".py").replace("/", "."))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(EXAMPLES[path], path, "exec"), module.__dict__)
        return module

    return load


def test_paths_exist():
    paths = re.findall(r"`((?:txlib|txgrade|txcourse|tests|notebooks|solutions)/[\w/.]*)`", PAGE)
    paths += re.findall(r" (tests/\S+)", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)))
    named = [path for path in paths if "NAME" not in path and "NN_" not in path and path not in EXAMPLES]
    assert len(named) > 8 and [path for path in named if not (COURSE / path).exists()] == []
    for path in EXAMPLES:
        assert not (COURSE / path).exists() and (COURSE / path).parent.is_dir()


def test_the_mechanism_keeps_the_contract(example, monkeypatch):
    monkeypatch.setattr(Config, "registry", dict(Config.registry))
    report = check_mechanism(example("txlib/attention/cosine.py").CosineConfig())
    assert not report.skipped and not report.refused
    torch.manual_seed(0)
    example("tests/txlib/attention/test_cosine.py").test_it_is_a_softmax_of_cosines()


def test_the_family_gives_the_numbers_of_transformers(example, monkeypatch, tmp_path):
    monkeypatch.setitem(FAMILIES, "mistral", example("txlib/models/families/mistral.py").MISTRAL)
    torch.manual_seed(0)
    example("tests/txlib/models/test_mistral.py").test_mistral_gives_the_same_logits(tmp_path)


def test_the_recipe_is_a_command_and_learns(example, tmp_path):
    recipe = example("txlib/recipes/reverse.py").Reverse
    try:
        assert RECIPES["train reverse"] is recipe
        result = run(recipe, tmp_path / "run", steps=200, quiet=True, length=3)
    finally:
        del RECIPES["train reverse"]
    assert result["accuracy"] > 0.9


def test_the_lesson_has_its_parts(tmp_path):
    spec = importlib.util.spec_from_file_location("lessons", COURSE / "tests" / "notebooks" / "test_lessons.py")
    lessons = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lessons)
    source = tmp_path / "36_rms.py"
    source.write_text(EXAMPLES[LESSON], encoding="utf-8")
    lessons.test_a_lesson_has_its_parts(source)
    lessons.test_a_sentence_stands_between_any_two_cells_of_code(source)
    lessons.test_code_does_not_scroll_sideways(source)
    lessons.test_saving_in_lab_would_not_change_the_source(source)
    assert [
        problem for problem in problems(COURSE, source.stem, read_lesson(source)) if "exercise_36" not in problem
    ] == []


@pytest.mark.slow
def test_the_lesson_runs(tmp_path):
    source = tmp_path / "36_rms.py"
    source.write_text(EXAMPLES[LESSON], encoding="utf-8")
    ran = run_lesson(read_lesson(source))
    assert "✓ Ours and the library's agree" in str([cell.get("outputs") for cell in ran.cells])
