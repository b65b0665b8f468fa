"""What is kept of two runs, for a lesson that compares them."""

import importlib.util
import json

import pytest

from txlib.data import shipped
from txlib.paths import DATA


@pytest.fixture(scope="module")
def two_recipes():
    spec = importlib.util.spec_from_file_location("two_recipes", DATA / "two_recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_curve_is_the_means_of_whole_stretches(two_recipes, tmp_path):
    (tmp_path / "model").mkdir()
    result = dict.fromkeys(two_recipes.KEPT, 1.0) | {"seconds": 3.0}
    (tmp_path / "model" / "result.json").write_text(json.dumps(result))
    rows = [f"{step},{step},0,0.1," for step in range(1, 121)]
    (tmp_path / "metrics.csv").write_text("\n".join(["step,loss,tokens,seconds,validation", *rows]) + "\n")
    kept = two_recipes.summary(tmp_path)
    assert (kept["step"], kept["loss"]) == ([50, 100], [25.5, 75.5])  # the last 20 steps are no whole stretch
    assert "seconds" not in kept and kept["bleu"] == 1.0


def test_the_shipped_runs_differ_in_their_recipe_only(two_recipes):
    runs = json.loads((shipped("games-de-en") / "recipes.json").read_text())
    assert runs.keys() == {"tiny", "paper", "paper-long"}
    tiny, paper, longer = runs.values()
    assert (tiny["steps"], tiny["seed"], tiny["step"]) == (paper["steps"], paper["seed"], paper["step"])
    assert {name: longer[name] for name in ("preset", "parameters", "seed")} == {
        name: paper[name] for name in ("preset", "parameters", "seed")
    }
    of_longer, of_tiny = longer["steps"] * paper["cpu_seconds"] / paper["steps"], tiny["cpu_seconds"]
    assert of_longer == pytest.approx(of_tiny, rel=0.02), "the same time for both recipes"
    assert shipped("games-de-en") / "recipes.json" == two_recipes.OUT
