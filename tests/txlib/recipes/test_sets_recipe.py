"""The recipe for sets: each task and each rival trained a little, measured by hand, in one table."""

import json

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch
import torch.nn.functional as F

from txlib.data import BatchDict, Mixture, digits, fit_mixture
from txlib.models import sizes as model_sizes
from txlib.models.pretrained import load_pretrained
from txlib.models.set_transformer import DeepSets, SetTransformer
from txlib.models.sizes import parameters
from txlib.recipes import run
from txlib.recipes.run import score_table
from txlib.recipes.sets import MODELS, PRESETS, TASKS, Sets, comparison, make_model

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def little(monkeypatch):
    tiny.install(monkeypatch)


def recipe(task, **options):
    made = Sets(task=task, preset="mini", **options)
    splits = made.load()
    torch.manual_seed(0)
    return made, splits, made.make_model(splits, None).eval()


@pytest.mark.parametrize("name", MODELS)
def test_rivals_are_as_large_as_the_set_transformer(name):
    task = TASKS["clusters"](4)
    with torch.device("meta"):
        sizes = [parameters(make_model(each, PRESETS["small"], task, 4)) for each in ("isab", name)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_each_rival_learns(name, monkeypatch, tmp_path):
    monkeypatch.setattr(model_sizes, "TOLERANCE", 2.0)  # a few thousand weights are not met exactly
    made, splits, untrained = recipe("max", model=name)
    before = made.measure(untrained, splits, None, 0.0, lambda items, what: items)
    result = run(Sets, tmp_path / "run", steps=20, quiet=True, task="max", model=name, preset="mini")
    assert result["error"] < before["error"] / 2 and result["baseline_error"] == before["baseline_error"]
    assert type(load_pretrained(tmp_path / "run" / "model")) is (DeepSets if "deep" in name else SetTransformer)
    assert not list(tmp_path.glob("run/**/tokenizer.json"))
    report = Sets(task="max", model=name, preset="mini").report(result, str(tmp_path / "run"))
    assert f"{result['error']:.3f}" in score_table(result) + report and "None" not in report


def test_the_largest_number_is_measured_in_numbers():
    made, splits, model = recipe("max")
    (batch,) = made.make_batches(splits, None, "test")(0)
    said = model(batch["inputs"], batch["attention_mask"]).logits[:, 0, 0].tolist()
    true, count = batch["labels"].tolist(), len(batch["labels"])
    result = made.measure(model, splits, None, 0.0, lambda items, what: items)
    assert result["error"] == pytest.approx(100 * sum(abs(a - b) for a, b in zip(said, true, strict=True)) / count)
    constant = sorted(true)[(count - 1) // 2]
    assert result["baseline_error"] == pytest.approx(100 * sum(abs(each - constant) for each in true) / count)
    loss, number = made.loss(model, batch)
    assert number == count and float(loss.detach()) / count == pytest.approx(result["error"] / 100)
    perfect = TASKS["max"](4).measure(batch, batch["labels"][:, None, None])
    assert perfect["error"][0] == 0 and perfect["rounded_right"] == (count, count)


def test_clusters_are_measured_beside_em_and_the_truth():
    made, splits, model = recipe("clusters")
    (batch,) = made.make_batches(splits, None, "test")(0)
    points, real = batch["inputs"], batch["attention_mask"]
    result = made.measure(model, splits, None, 0.0, lambda items, what: items)
    said = Mixture.from_logits(model(points, real).logits)
    each = said, said.improved(points, real), fit_mixture(points, real)
    expected = [float(one.log_likelihood(points, real).sum()) / int(real.sum()) for one in each]
    names = "log_likelihood", "improved_log_likelihood", "em_log_likelihood"
    assert [result[name] for name in names] == pytest.approx(expected)
    assert result["log_likelihood"] < result["improved_log_likelihood"] < result["em_log_likelihood"]
    assert result["true_log_likelihood"] == pytest.approx(result["em_log_likelihood"], abs=0.3)
    loss, number = made.loss(model, batch)
    assert number == int(real.sum()) and float(loss.detach()) / number == pytest.approx(-result["log_likelihood"])


def test_digits_are_counted():
    made, splits, model = recipe("digits")
    batches = made.make_batches(splits, None, "test")(0)
    assert torch.equal(torch.cat([batch["labels"] for batch in batches]), digits().test.labels)
    task = made.make_task(splits)
    batch = batches[0]
    perfect = F.one_hot(batch["labels"], 10)[:, None].float()
    assert task.measure(batch, perfect)["accuracy"] == (len(batch["labels"]), len(batch["labels"]))
    assert task.measure(batch, -perfect)["accuracy"][0] == 0
    logits = model(batch["inputs"], batch["attention_mask"]).logits
    assert float(made.loss(model, batch)[0].detach()) == pytest.approx(
        float(F.cross_entropy(logits[:, 0], batch["labels"])) * len(logits), rel=1e-5
    )


@pytest.mark.parametrize("task", TASKS)
def test_each_epoch_and_part_has_sets_of_its_own(task):
    made, splits, _ = recipe(task)
    firsts = [made.make_batches(splits, None, part)(epoch)[0] for part in ("train", "test") for epoch in (0, 1)]
    again = made.make_batches(splits, None, "train")(0)[0]
    assert all(torch.equal(again[name], firsts[0][name]) for name in again)
    shapes_or_numbers = {(tuple(each["inputs"].shape), float(each["inputs"].sum())) for each in firsts}
    assert len(shapes_or_numbers) == 4


def test_in_an_epoch_each_digit_comes_once():
    made, splits, _ = recipe("digits")
    labels = torch.cat([batch["labels"] for batch in made.make_batches(splits, None)(3)])
    assert torch.equal(labels.bincount(), splits.train.labels.bincount())


def test_a_model_may_have_more_seeds_than_there_are_clusters():
    made, splits, model = recipe("clusters", clusters=2, seeds=5)
    (batch,) = made.make_batches(splits, None, "test")(0)
    assert batch["means"].shape[1] == 2 and model(batch["inputs"]).logits.shape[1] == 5
    assert isinstance(batch, BatchDict)


def test_the_table_has_finished_runs_of_the_same_task(tmp_path):
    common = {"recipe": "train sets", "preset": "small", "parameters": 90000, "steps": 10, "cpu_seconds": 12.3}
    four = common | {"task": "clusters", "clusters": 4}
    others = {
        "low": four | {"model": "deep-sets", "log_likelihood": -2.0},
        "high": four | {"model": "isab", "log_likelihood": -1.5},
        "five": four | {"model": "sab", "clusters": 5, "log_likelihood": -1.0},
        "numbers": common | {"task": "max", "clusters": 4, "model": "sab", "error": 0.5},
        "more numbers": common | {"task": "max", "clusters": 4, "model": "isab", "error": 0.7},
    }
    for name, result in others.items():
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "result.json").write_text(json.dumps(result))
    head, *lines = comparison(tmp_path / "high", others["high"]).splitlines()
    assert head.split()[-2:] == ["log", "likelihood"]
    assert [line.split()[0] for line in lines] == ["isab", "deep-sets"] and lines[0].split()[-1] == "-1.500"
    assert [line.split()[0] for line in comparison(tmp_path / "numbers", others["numbers"]).splitlines()[1:]] == [
        "sab",
        "isab",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sort"}, "task 'sort' is unknown; choose one of max, clusters, digits"),
        ({"model": "gpt"}, "model 'gpt' is unknown; choose one of isab, sab"),
        ({"preset": "huge"}, "preset 'huge' is unknown"),
        ({"clusters": 0}, "clusters=0 must be at least 1"),
        ({"clusters": 6, "seeds": 4}, "clusters=6 are more than seeds=4 can describe; give seeds=6 or more"),
        ({"task": "max", "seeds": 4}, "seeds=4 is for task clusters, not for max; leave it out"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Sets(**options).check()
