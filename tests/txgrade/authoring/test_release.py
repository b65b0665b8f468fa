"""What leaves the instructor's hands, and what is refused."""

import copy
import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest

from txgrade.authoring.cells import strip_hidden, strip_solution
from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.notebooks import LOADED, same_notebook
from txgrade.authoring.release import release
from txgrade.authoring.validate import prove
from txgrade.evidence.recordings import pack, unpack

pytestmark = pytest.mark.slow

CHECK_ID = '"grade_id": "check-attention"'


def recordings(notebook):
    return unpack(next(found[1] for cell in notebook.cells if (found := LOADED.search(cell.source))))


def test_nothing_of_the_answers_leaves(course, notebook):
    text = course.exercise.read_text() + json.dumps(recordings(notebook), ensure_ascii=False)
    for secret in (
        "SOLUTION",
        "HIDDEN",
        "position",
        "masked_fill",
        "einsum",
        "triu",
        "tril",
        "n = 17",
        "unscaled",
        "alternative",
        "mistake(",
    ):
        assert secret not in text
    assert "This lets each query see the *future*." in text


def test_the_released_notebook_is_whole(notebook):
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "jupytext" not in notebook.metadata
    cells = {cell.id: cell for cell in notebook.cells}
    assert cells["causal-mask"].source == (
        'def causal_mask(n: int) -> Bool[Tensor, "query key"]:\n'
        '    """True where query i may attend to key j."""\n'
        '    raise NotImplementedError("your turn")'
    )
    assert cells["check-attention"].metadata.nbgrader == {
        "grade_id": "check-attention",
        "grade": True,
        "points": 3,
        "solution": False,
        "locked": True,
        "schema_version": 3,
        "task": False,
    }
    hidden = [cell for cell in notebook.cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert len(hidden) == 1 and hidden[0].metadata.tags == ["parameters"]
    assert len(hidden[0].source.splitlines()) < 12  # shown raw, the recordings don't hide the first task
    assert hidden[0] is next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")


def test_recordings_hold_the_reference_and_every_mistake(notebook):
    mask, attention = recordings(notebook)["tasks"]
    assert (mask["id"], mask["title"], mask["points"]) == ("causal-mask", "The causal mask", 2)
    assert attention["title"] == "Scaled dot-product attention"
    assert [len(task["mistakes"]) for task in (mask, attention)] == [4, 4]
    size_two = mask["reference"]["shown"][1]["value"]
    assert size_two == {"kind": "tensor", "dtype": "bool", "shape": [2, 2], "values": [True, False, True, True]}


def test_the_solution_notebook_shows_passes(course):
    notebook = nbformat.read(course.solution, as_version=4)
    words = [output.data["text/plain"] for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [line.splitlines()[0] for line in words] == [
        "✓ The causal mask: right (2 of 2 points)",
        "✓ Scaled dot-product attention: right (3 of 3 points)",
        "Exercise 03 · A sample: 5 of 5 points",
    ]
    assert any("### BEGIN SOLUTION" in cell.source for cell in notebook.cells)


def test_the_solution_leads_back_to_the_exercise(course):
    notebook = nbformat.read(course.solution, as_version=4)
    (link,) = re.findall(r"\[Exercise 03 · A sample\]\((.+)\)", notebook.cells[-1].source)
    assert (course.solution.parent / link).resolve() == course.exercise.resolve()


def test_a_solution_can_be_withheld(course, tmp_path):
    source = tmp_path / "solutions" / course.source.name
    source.parent.mkdir()
    shutil.copy(course.source, source)
    source.with_suffix(".ipynb").write_text("from before")
    released = release(source, withhold=True)
    assert released.solution is None
    assert sorted(path.suffix for path in source.parent.glob("*")) == [".py"]
    assert released.exercise.read_bytes() == course.exercise.read_bytes()


@pytest.mark.slow
def test_release_is_deterministic(course, tmp_path):
    again = release(course.source, tmp_path / "again", run_solution=False)
    assert again.exercise.read_bytes() == course.exercise.read_bytes()
    assert (again.tasks, again.points, again.warnings, again.solution) == (2, 5, (), None)


def test_prompts_and_checks_cannot_be_damaged_by_accident(notebook):
    kinds = {}
    for cell in notebook.cells:
        nbgrader = cell.metadata.get("nbgrader", {})
        kind = "answer" if nbgrader.get("solution") else "check" if nbgrader.get("grade") else cell.cell_type
        kind = "recordings" if LOADED.search(cell.source) else kind
        kinds.setdefault(kind, set()).add((cell.metadata.get("editable", True), cell.metadata.get("deletable", True)))
    fixed = {(False, False)}
    assert kinds.pop("answer") == {(True, False)} and kinds.pop("code") == {(True, True)}
    assert kinds == {"check": fixed, "markdown": fixed, "recordings": fixed}


@pytest.mark.slow
def test_answers_are_never_overwritten(txgrade, variant, tmp_path):
    source = variant()
    target = release(source, run_solution=False).exercise
    source.write_text(source.read_text(encoding="utf-8").replace("over the keys", "over all keys"), encoding="utf-8")
    release(source, run_solution=False)  # a newer stub over an older one
    notebook = nbformat.read(target, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == "attention")
    cell.source = "scores = 1\n" + cell.source  # begun, not done
    nbformat.write(notebook, target)
    before = target.read_bytes()
    status, out, err = txgrade("release", source)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{target} holds answers (attention): rename it" in err
    assert target.read_bytes() == before


def test_same_notebook_forgives_rounding_only(notebook):
    def changed(change):
        other = copy.deepcopy(notebook)
        cell = next(cell for cell in other.cells if LOADED.search(cell.source))
        held = recordings(other)
        change(held["tasks"][1]["reference"]["shown"][0]["value"]["values"])
        cell.source = LOADED.sub(f'check.load("""\n{pack(held)}\n""")', cell.source)
        return other

    def shift(amount):
        return lambda values: values.__setitem__(0, values[0] + amount)

    assert same_notebook(notebook, changed(shift(0)))
    assert same_notebook(notebook, changed(shift(1e-7)))
    assert not same_notebook(notebook, changed(shift(0.1)))
    other = copy.deepcopy(notebook)
    other.cells[-1].source += "\n"
    assert not same_notebook(notebook, other)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scores = q @ k.T", "scores = q @ k.TT", "the reference fails: AttributeError"),
        ("import torch\n", "import torch\nassert 1 == 2\n", "the reference fails: cell 3, line 2: AssertionError"),
        (
            "torch.ones(n, n).triu().bool()",
            "torch.ones(n, n).tril().bool()",
            "task causal-mask: a mistake can't be told",
        ),
        ("torch.ones(n, n).tril(-1).bool()", "torch.ones(n, n).triu().bool()", "two mistakes can't be told apart"),
        (
            'alternative("causal-mask", lambda n: torch.ones(n, n).tril().bool())',
            'alternative("causal-mask", lambda n: torch.ones(n, n).bool())',
            "an alternative differs from the reference",
        ),
        (
            "5 minutes · 2 points",
            "5 minutes · 4 points",
            "task causal-mask: the prompt says 4 points, its check cell 2",
        ),
        ("Two tasks, 5 points", "Two tasks, 6 points", "the title cell says 6 points, the check cells give 5 together"),
        (CHECK_ID, '"grade_id": "attention"', "task attention: the grade_id is used twice"),
        (CHECK_ID, '"grade_id": "a b"', "grade_id 'a b' may only hold"),
        (
            '"grade_id": "attention"',
            '"grade_id": "attend"',
            'task attention: its check "check-attention" has no solution',
        ),
        ('with check("attention", rtol=1e-4', 'with check("causal-mask", rtol=1e-4', "more than one check cell"),
        ('with check("attention", rtol=1e-4', "with check(name, rtol=1e-4", "needs exactly one `with check"),
        ('"points": 3', '"points": 0', "points = 0; choose a number above 0"),
        ('"points": 3,', '"points": 3', "the text after its # %% is not JSON: nbgrader={"),
        ("\nseed = 0\n", '\nseed = "0"\n', 'one cell tagged "parameters"'),
        ('tags=["parameters"]', 'tags=["other"]', 'one cell tagged "parameters"'),
        (
            '    ### END SOLUTION\n\n# %% nbgrader={"grade_id": "check-att',
            '\n\n# %% nbgrader={"grade_id": "check-att',
            "### BEGIN SOLUTION without its ### END SOLUTION",
        ),
        ("import torch\n", "%matplotlib inline\nimport torch\n", "cell 3, line 1: not plain Python"),
        ('mistake("attention", unscaled', 'mistake("attend", unscaled', "for the task 'attend', which does not exist"),
        ('mistake("attention", unscaled', 'mistake("attention", {"f": unscaled}', "must be a dict from these names"),
        ("show(attention(q, k, v, torch.ones(n, n, dtype=torch.bool))", "show(object()", "can't be compared"),
    ],
)
def test_what_is_refused(in_process, variant, old, new, message):
    source = variant((old, new))
    with pytest.raises(ExerciseError, match="^03_sample: ") as refused:
        release(source, run_solution=False)
    assert message in str(refused.value)
    assert list(source.parent.parent.rglob("*.ipynb")) == []


def test_two_mistakes_of_one_sentence_may_show_the_same(in_process, variant):
    """On some seeds too soft is as good as much too soft: whoever made either is told the same."""
    sentence = '"These are numbers. A mask is a matrix of `bool`.")'
    again = f'{sentence}\nmistake("causal-mask", lambda n: 1.0 * causal_mask(n), {sentence}'
    assert release(variant((sentence, again)), run_solution=False).tasks == 2


def test_three_mistakes_are_asked_for(in_process, variant):
    few = [(f'mistake("attention", {each}', f'("attention", {each}') for each in ("unscaled", "over_queries")]
    with pytest.raises(ExerciseError, match="task attention: 2 known mistakes, at least 3 are needed"):
        release(variant(*few), run_solution=False)


def test_inputs_must_be_private(in_process, variant):
    source = variant(
        ("from txgrade import check\n", "from txgrade import check\nK = torch.randn(9, 9)\n"),
        ("    show(attention(q, k, v, causal_mask(n))", "    show(K)\n    show(attention(q, k, v, causal_mask(n))"),
    )
    with pytest.raises(ExerciseError, match="task attention: its check shows other values when it runs again"):
        release(source, run_solution=False)


def test_all_problems_are_listed_at_once(in_process, variant):
    source = variant(("5 minutes · 2 points", "5 minutes · 4 points"), ('"points": 3', '"points": -1'))
    with pytest.raises(ExerciseError) as refused:
        release(source)
    assert len(refused.value.problems) == 3


def test_a_cell_that_stops_the_learner_is_a_warning(in_process, variant):
    source = variant(("# %%\ncheck.summary()", "# %%\nprint(causal_mask(3))"))
    assert "NotImplementedError: your turn" in release(source, run_solution=False).warnings[0]


def test_a_stub_must_be_noticed(in_process, variant):
    source = variant(
        (
            "    for n in (1, 2, show.random_size(3, 9), show.random_size(10, 40), show.random_size(10, 40)):\n"
            '        show(causal_mask(n), f"n = {n}")',
            "    show(1)",
        )
    )
    with pytest.raises(ExerciseError, match="its check does not notice that the answer is still empty"):
        release(source, run_solution=False)


def test_an_answer_of_several_names_is_a_dict(in_process, variant):
    source = variant(
        (
            "def attention(\n    q: Float",
            "def scale_of(q):\n    return q.shape[-1] ** 0.5\n\n\ndef attention(\n    q: Float",
        ),
        ("q @ k.T / q.shape[-1] ** 0.5\n    return", "q @ k.T / scale_of(q)\n    return"),
        ('mistake("attention", unscaled', 'mistake("attention", {"scale_of": lambda q: 1}'),
        ('mistake("attention", over_queries', 'mistake("attention", {"attention": over_queries}'),
        ('mistake("attention", masked_late', 'mistake("attention", {"attention": masked_late}'),
        (
            'mistake("attention", lambda q, k, v, mask: attention(q, k.T, v, mask)',
            'mistake("attention", {"attention": lambda q, k, v, mask: attention(q, k.T, v, mask)}',
        ),
        ('alternative("attention", by_exponentials)', 'alternative("attention", {"attention": by_exponentials})'),
    )
    assert read_exercise(source).task("attention").names == ("scale_of", "attention")
    assert release(source, run_solution=False).points == 5


def test_the_exercise_never_lands_on_its_solution(in_process, course):
    with pytest.raises(ExerciseError, match="next to its solution"):
        release(course.source, course.source.parent, run_solution=False)


def test_a_missing_source():
    with pytest.raises(FileNotFoundError, match="no exercise at nowhere.py"):
        release("nowhere.py")


def test_regions():
    text = "def f():\n    a\n    ### BEGIN SOLUTION\n    b\n      c\n    ### END SOLUTION\n    d"
    assert strip_solution(text) == 'def f():\n    a\n    raise NotImplementedError("your turn")\n    d'
    assert strip_hidden("a\n### BEGIN HIDDEN TESTS\nb\n### END HIDDEN TESTS\nc") == "a\nc"
    for broken in (
        "### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION",
        "### BEGIN SOLUTION",
    ):
        with pytest.raises(ValueError, match="without its"):
            strip_solution(broken)


@pytest.mark.parametrize("mark", ["# {}", "### {}", "## {}  ", "#{}", "<!-- {} -->", "    # {}"])
def test_marks_are_comments_with_these_words(mark):
    begin, end = (mark.format(f"{word} SOLUTION") for word in ("BEGIN", "END"))
    found = strip_solution(f"a\n{begin}\nb\n{end}\nc")
    assert [line.strip() for line in found.splitlines()] == ["a", 'raise NotImplementedError("your turn")', "c"]


@pytest.mark.parametrize(
    "line",
    [
        "# BEGIN SOLUTION here",
        "BEGIN SOLUTION",
        "x = 1  # BEGIN SOLUTION",
        "# begin solution",
        "'### BEGIN SOLUTION'",
        "# BEGIN HIDDEN TESTS",
    ],
)
def test_what_is_no_mark_stays(line):
    assert strip_solution(line) == line


def test_damaged_recordings_are_named():
    good = pack({"version": 1, "tasks": []})
    assert unpack(good) == {"version": 1, "tasks": []}
    for bad in (good[:-8], "", "%%%", pack({"no": 1}), pack({"version": 99})):
        with pytest.raises(ValueError, match="recordings"):
            unpack(bad)


@pytest.mark.slow
def test_verify_proves_the_sample(course):
    reports = prove(course.source)
    assert [each.task for each in reports] == ["causal-mask", "attention"]
    assert [(each.points, each.stub_points) for each in reports] == [(2, 0), (3, 0)]
    assert all(each.ok and each.reference for each in reports)
    assert [each.mistakes for each in reports] == [(True,) * 4] * 2
    assert [each.alternatives for each in reports] == [(True,)] * 2


@pytest.mark.slow
def test_verify_finds_what_only_other_seeds_or_hidden_tests_show(in_process, variant):
    source = variant(
        (
            'mistake("causal-mask", lambda n: ~causal_mask(n)',
            'mistake("causal-mask", lambda n: causal_mask(n) ^ (seed == 0)',
        )
    )
    mask = prove(source, seeds=(1,))[0]
    assert not mask.ok and mask.mistakes == (True, True, False, True)
    assert "on seed 1 a mistake can't be told from the reference" in mask.problems[0]
    source = variant(
        ("lambda n: torch.ones(n, n).tril().bool())", "lambda n: torch.ones(n, n).tril().bool() ^ (n == 17))")
    )
    mask = prove(source, seeds=())[0]
    assert mask.alternatives == (False,) and mask.problems == ("an alternative is not accepted",)


@pytest.mark.slow
def test_the_documented_example_releases(in_process, tmp_path):
    page = Path(__file__).parents[3] / "docs" / "exercises.md"
    source = tmp_path / "solutions" / "03_documented.py"
    source.parent.mkdir()
    example = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
    source.write_text(example, encoding="utf-8")
    assert (release(source, run_solution=False).warnings, prove(source)[0].problems) == ((), ())
