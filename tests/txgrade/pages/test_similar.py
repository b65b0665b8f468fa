"""Answers that look alike: disguised copies are found, and what a whole class writes does not fill the list."""

import random
import re
import time
from itertools import combinations
from pathlib import Path

import pytest

from txgrade.authoring.read import read_assignment
from txgrade.pages.similar import Similar, similar_answers

STUB = '''def attend(q, k, v, mask):
    """softmax(q kᵀ / √d) v."""
    raise NotImplementedError("your turn")'''
ADA = '''def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v."""
    width = q.shape[-1]
    scores = torch.zeros(len(q), len(k))
    for i, query in enumerate(q):
        for j, key in enumerate(k):
            scores[i, j] = (query * key).sum() / width ** 0.5
    scores = scores.masked_fill(~mask, -1e30)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return weights @ v'''
RENAMED = "".join(
    {"width": "n", "scores": "s", "query": "a", "key": "b", "weights": "w", "i": "row", "j": "column"}.get(word, word)
    for word in re.split(r"(\w+)", ADA.split('"""', 2)[2])
)
COPIES = {
    "the same": ADA,
    "names": f"def attend(q, k, v, mask):{RENAMED}",
    "comments and blanks": ADA.replace("    scores = torch", "\n    # first the scores\n    scores = torch") + "\n\n\n",
    "docstring": ADA.replace("softmax(q kᵀ / √d) v.", "All my own work."),
    "no docstring": ADA.replace('    """softmax(q kᵀ / √d) v."""\n', ""),
    "annotations": ADA.replace("q: Tensor, k: Tensor", 'q, k: Float[Tensor, "key d"]').replace(" -> Tensor", ""),
    "annotated names": ADA.replace("    width =", "    width: int ="),
    "numbers and texts": ADA.replace("1e30", "9.5e29").replace("0.5", "(1 / 2)").replace("(1 / 2)", "0.50"),
    "brackets": ADA.replace("query * key", "(query) * (key)"),
}
CHANGED = {
    "a line more": ADA.replace("    return", "    print(weights)\n    return"),
    "a line less": ADA.replace("    width = q.shape[-1]\n", "").replace("width", "q.shape[-1]"),
    "two lines swapped": ADA.replace(
        "    width = q.shape[-1]\n    scores = torch.zeros(len(q), len(k))\n",
        "    scores = torch.zeros(len(q), len(k))\n    width = q.shape[-1]\n",
    ),
}
OTHER = STUB.replace(
    'raise NotImplementedError("your turn")',
    """
    def one(query):
        energy = [float(query @ key) / len(query) ** 0.5 if allowed else None for key, allowed in zip(k, mask[0])]
        top = max(e for e in energy if e is not None)
        share = [0 if e is None else math.exp(e - top) for e in energy]
        return sum(s * value for s, value in zip(share, v)) / sum(share)

    return torch.stack([one(each) for each in q])""",
)


def alike(*sources: str) -> list[Similar]:
    return similar_answers({f"s{i}": {"attend": source} for i, source in enumerate(sources)}, {"attend": STUB})


@pytest.mark.parametrize("disguise", COPIES)
def test_a_disguised_copy_is_equal(disguise):
    assert alike(ADA, COPIES[disguise]) == [Similar("attend", "s0", "s1", 1.0)]


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_copy_is_near(change):
    (found,) = alike(ADA, CHANGED[change])
    assert 0.8 <= found.similarity < 1


@pytest.mark.parametrize(
    "source",
    [
        OTHER,
        STUB,
        "",
        "def attend(:",
        "x = '\0'",
        "(" * 5000,
        "-" * 50_000 + "1",
        "def attend(q, k, v, mask):\n    return (q @ k.T).softmax(-1) @ v",
        # Two lines with 66 nodes.
        "def attend(q, k, v, mask):\n"
        "    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, float('-inf'))\n"
        "    return torch.nan_to_num(scores.softmax(-1).float(), nan=0.0).to(v.dtype) @ v",
    ],
    ids=lambda source: repr(source[:12]),
)
def test_what_is_no_copy(source):
    assert alike(ADA, source) == []
    assert source == OTHER or alike(source, source) == []


def test_the_most_alike_come_first_and_of_equal_answers_each_is_listed_once():
    found = alike(ADA, OTHER, COPIES["names"], CHANGED["a line more"], OTHER)
    assert {(each.one, each.other) for each in found[:2]} == {("s0", "s2"), ("s1", "s4")}
    assert (found[2].one, found[2].other) == ("s0", "s3")
    assert [each.similarity for each in found] == [1, 1, found[2].similarity] and found[2].similarity < 1


def test_similarity_does_not_depend_on_the_order():
    for changed in CHANGED.values():
        assert [each.similarity for each in alike(ADA, changed)] == [each.similarity for each in alike(changed, ADA)]


def test_missing_tasks_and_names():
    assert similar_answers({}, {"attend": STUB}) == []
    assert similar_answers({"a": {}, "b": {"other": ADA}}, {"attend": STUB}) == []
    assert similar_answers({"a": {"attend": ADA}, "b": {"attend": ADA}}, {}) == []


def test_what_very_many_have_alike_is_not_listed():
    assert len(alike(*[ADA] * 5)) == 4
    assert alike(*[ADA] * 6) == []
    assert alike(*[ADA] * 4, *[CHANGED["a line more"]] * 2) == []
    found = alike(*[ADA] * 20, OTHER, OTHER)
    assert [(each.one, each.other) for each in found] == [("s20", "s21")]


KNOWN = sorted(Path(__file__).parents[3].glob("solutions/0[3-7]_*.py"))


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_class_that_writes_the_known_right_answers_is_not_listed(path):
    """A hundred learners with the reference or the author's alternative each, and two who copied a strange answer."""
    assignment = read_assignment(path)
    cells = {cell.id: cell.source for cell in assignment.notebook.cells}
    references = {task.id: cells[task.answers[0]] for task in assignment.tasks if task.kind == "evidence"}
    alternatives = dict(_alternatives(path.read_text(encoding="utf-8")))
    assert alternatives, "the course knows alternatives"
    random_numbers = random.Random(3)
    answers = {
        f"s{i:03}": {
            task: random_numbers.choice([source, alternatives.get(task, source)]) for task, source in references.items()
        }
        for i in range(100)
    }
    stubs = {task.id: assignment.stubs[task.answers[0]] for task in assignment.tasks}
    assert similar_answers(answers, stubs) == []
    task = next(iter(references))
    answers |= {"x": {task: ADA}, "y": {task: COPIES["names"]}}
    assert similar_answers(answers, stubs) == [Similar(task, "x", "y", 1.0)]


def _alternatives(text):
    """The source of each `alternative(…)` that is written as a lambda."""
    import ast

    plain = "\n".join("" if line.startswith(("%", "!")) else line for line in text.splitlines())
    for node in ast.walk(ast.parse(plain)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "alternative":
            yield node.args[0].value, f"answer = {ast.unparse(node.args[1])}"


@pytest.mark.slow
def test_300_submissions_of_7_tasks_take_seconds():
    """All different, and long enough that each has to be compared with each."""
    random_numbers = random.Random(0)
    head, *lines, last = ADA.replace(":\n        ", ": ").splitlines()
    lines = [line for line in lines if ": " not in line or '"' in line]
    more = [
        f"    x{a} = {a} {b} len(q) if k[{a}] else [{c} for y in range({a})]"
        for a, b, c in zip(range(60), "+-*/%|" * 10, ["y", "-y", "(y, 1)", "y + y", "{y: 1}"] * 12, strict=True)
    ]
    sources = ["\n".join([head, *random_numbers.sample(lines + more, 9), last]) for _ in range(2100)]
    tasks = [f"task {i}" for i in range(7)]
    answers = {f"s{i}": dict(zip(tasks, sources[7 * i : 7 * i + 7], strict=True)) for i in range(300)}
    start = time.process_time()
    found = similar_answers(answers, dict.fromkeys(tasks, STUB))
    assert time.process_time() - start < 10
    assert len(found) <= 200


def test_all_pairs_are_compared():
    """Against every pair taken by itself."""
    sources = [ADA, OTHER, *CHANGED.values(), COPIES["names"]]
    found = {(each.one, each.other) for each in alike(*sources[:5])}
    each_alone = {(f"s{i}", f"s{j}") for i, j in combinations(range(5), 2) if alike(sources[i], sources[j])}
    assert found == each_alone
