"""What the course's exercises rule out is noticed: by name, and where the name is assembled, by operator."""

import functools
from pathlib import Path

import pytest
import torch

from txgrade.authoring.called_names import forbidden_names
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.record import author_declarations, check_run, reference_names

SOLUTIONS = sorted((Path(__file__).parents[3] / "solutions").glob("*.py"))


@functools.cache
def read(name):
    """An exercise of the course, the names that its reference defines, and what its author's cells say."""
    exercise = read_exercise(next(path for path in SOLUTIONS if path.stem == name))
    namespace = reference_names(exercise, 5)
    return exercise, namespace, author_declarations(exercise, namespace).forbidden


@pytest.mark.parametrize("name", [path.stem for path in SOLUTIONS])
def test_every_task_rules_out_the_library(name):
    exercise, _, forbidden = read(name)
    for task in exercise.tasks:
        names = [each for rule in forbidden if rule.task == task.id for each in rule.names]
        assert forbidden_names("from txlib.anything import everything", names) == ["txlib"], task.id


@pytest.mark.parametrize(
    ("name", "task", "source"),
    [
        ("01_text", "merge", "from txlib.text.merges import merge as m"),
        ("03_attention", "best-few", "import torch.nn.functional as F\nF.scaled_dot_product_attention"),
        ("04_heads", "cross-attention", "torch.nn.MultiheadAttention"),
        ("05_positions", "skew", "import txlib.attention as t\nt.skew(x)"),
        ("06_block", "head-norm", "import torch.nn.functional as F\nF.layer_norm"),
        ("06_block", "head-norm", "getattr(torch, 'group_norm')"),
        ("09_translation", "several-references", "import math\nfrom sacrebleu import corpus_bleu"),
        ("16_todays_decoder", "rms-norm", "F.rms_norm"),
    ],
)
def test_by_name(name, task, source):
    _, _, forbidden = read(name)
    assert forbidden_names(source, [each for rule in forbidden if rule.task == task for each in rule.names])


def assembled(*parts):
    return getattr(torch.nn.functional, "".join(parts))


@pytest.mark.parametrize(
    ("name", "task", "function", "answer"),
    [
        (
            "03_attention",
            "best-few",
            "attention_to_best",
            lambda q, k, v, best: assembled("scaled_dot_", "product_attention")(q, k, v),
        ),
        (
            "06_block",
            "head-norm",
            "head_norm",
            lambda x, heads, gain, bias, eps: assembled("layer", "_norm")(
                x.unflatten(-1, (heads, -1)), gain.shape, gain, bias, eps
            ).flatten(-2),
        ),
        (
            "06_block",
            "feed-forward",
            "feed_forward",
            lambda x, w1, b1, w2, b2: assembled("ge", "lu")(x @ w1 + b1) @ w2 + b2,
        ),
    ],
)
def test_by_operator(name, task, function, answer):
    exercise, namespace, forbidden = read(name)
    operators = {each for rule in forbidden if rule.task == task for each in rule.operators}
    bundle, _ = check_run(exercise, exercise.task(task), namespace | {function: answer}, hidden=True, operators=True)
    assert bundle["error"] is None
    assert operators & set(bundle["operators"])
