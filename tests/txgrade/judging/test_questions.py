"""`txgrade questions`: from a submission's own answers, each learner's own, with what the judge knows of them."""

import re

import nbformat
import pytest
import torch

from txgrade.authoring.example_calls import example_calls
from txgrade.running.grader import grade
from txgrade.sandbox import probe

MINE = {
    "causal-mask": "def causal_mask(n):\n    places = torch.arange(n)\n    return places[:, None] >= places[None, :]",
    "attention": "def attention(q, k, v, mask):\n    likeness = q @ k.T / q.shape[-1] ** 0.5\n"
    "    return likeness.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ v",
}


def test_a_call_is_small_and_its_value_right(course):
    calls = example_calls(course.source, 5)
    n = int(re.fullmatch(r"causal_mask\((\d+)\)", calls["causal-mask"]["call"])[1])
    assert calls["causal-mask"]["kind"] == "value" and n * n <= 12
    assert calls["causal-mask"]["value"] == str((torch.ones(n, n).tril() > 0).tolist())
    sizes = re.findall(r"shape \((\d+), (\d+)\)", calls["attention"]["call"])
    assert len(sizes) == 4 and calls["attention"]["kind"] == "shape"
    assert calls["attention"]["value"] == f"of shape ({sizes[0][0]}, {sizes[2][1]})"


@pytest.fixture(scope="module")
def graded(course, tmp_path_factory):
    """The results of one with own words, one who copied, and one without a right answer."""
    if probe().level != "sealed":
        pytest.skip(f"no sealed sandbox here: {probe().holes}")
    inbox, out = tmp_path_factory.mktemp("inbox"), tmp_path_factory.mktemp("results")
    for name, answers in (("ada", MINE), ("bob", MINE), ("cy", {"causal-mask": "def causal_mask(n):\n    return n"})):
        notebook = nbformat.read(course.exercise, as_version=4)
        for cell in notebook.cells:
            cell.source = answers.get(cell.id, cell.source)
        nbformat.write(notebook, inbox / f"{name}.ipynb")
    grade(course.source, inbox, out, seeds=1)
    return out


@pytest.mark.slow
def test_three_questions_about_ones_own_code(graded, txgrade):
    status, asked, err = txgrade("questions", "ada", "--out", graded)
    assert status == 0, err
    assert len(re.findall(r"^\d\. ", asked, re.M)) == 3
    assert re.search(r"What does `causal_mask\(\d\)` return\?", asked) or "Which shape comes out" in asked
    assert "Suppose it said" in asked and re.search(r"Expect: The check would say: \S", asked)
    assert re.search(r"What does `(places|likeness)` stand for\?", asked)
    assert "BEGIN" not in asked and "position" not in asked  # not of the reference's code
    assert txgrade("questions", "ada", "--out", graded)[1] == asked
    others = txgrade("questions", "bob", "--out", graded)[1]  # the same answers
    same = {*re.findall(r"^   .*", asked, re.M)} & {*re.findall(r"^   .*", others, re.M)}
    assert len(same) <= 2, "two of three questions at least are others, with what to expect"


@pytest.mark.slow
def test_what_cannot_be_asked_is_said_in_a_sentence(graded, txgrade, course):
    for name, problem in (
        ("cy", "cy has no right answer in code to ask about"),
        ("nobody", "no submission 'nobody' in"),
    ):
        status, asked, err = txgrade("questions", name, "--out", graded)
        assert (status, asked) == (2, "") and problem in err and err.count("\n") == 1
    text = course.source.read_text(encoding="utf-8")
    course.source.write_text(text.replace("Each query's weights", "A query's weights"), encoding="utf-8")
    try:
        status, _, err = txgrade("questions", "ada", "--out", graded)
    finally:
        course.source.write_text(text, encoding="utf-8")
    assert status == 2 and "has changed since ada was graded: run txgrade grade again" in err
