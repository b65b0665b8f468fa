"""Variants of an exercise: what is written, what is refused, and by what an answer is judged."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.literals import with_literals
from txgrade.authoring.read import read_assignment
from txgrade.authoring.record import in_fresh_process
from txgrade.authoring.release import release
from txgrade.authoring.validate import prove
from txgrade.authoring.variant_proof import find_varied, prove_variants
from txgrade.authoring.variants import PLACE, is_variant, settle
from txgrade.sandbox import probe
from txgrade.submitting.finding import SubmissionFile
from txgrade.submitting.reading import read_submission

SHIPPED = [
    path
    for path in sorted((Path(__file__).parents[3] / "solutions").glob("[0-9]*.py"))
    if 'tags=["variant"]' in path.read_text(encoding="utf-8")
]
CELL = """# %% tags=["variant"]
from txgrade import variant

WIDTH = variant(4, 6, 8, 10)  # of the window in task 1
EARLY, LATE = variant((3, 9), (4, 10), (5, 11))
STEADY = 1_000

# %% [markdown]
# ### Task 1"""
SEEN = "position[:, None] >= position[None, :]"
WINDOW = f"({SEEN}) & (position[:, None] < position[None, :] + WIDTH)"
IN_WINDOW = "lambda n: torch.ones(n, n).tril().triu(1 - WIDTH).bool()"


@pytest.fixture
def windowed(variant):
    """The sample with a window whose width may vary; its prompt, a docstring and a sentence say how wide it is."""

    def write(cell=CELL, prompt="not read word 5, nor look {{WIDTH}} back, or {{STEADY:,}}.", name="03_sample"):
        return variant(
            ("# %% [markdown]\n# ### Task 1", cell),
            ("not read word 5.", prompt),
            (
                '"""True where query i may attend to key j."""',
                '"""True where j is one of the {{WIDTH}} keys up to i."""',
            ),
            (SEEN, WINDOW),
            ("show.random_size(3, 9)", "show.random_size(EARLY, LATE)"),
            ("lambda n: torch.ones(n, n).tril().bool()", IN_WINDOW),
            ("torch.ones(n, n).tril(),", "torch.ones(n, n).tril().triu(1 - WIDTH),"),
            ('"These are numbers.', '"These are {{WIDTH}} numbers.'),
            ("show(causal_mask(17)", "show(causal_mask(17)"),
            name=name,
        )

    return write


def text_of(path):
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)


def test_without_a_number_each_name_has_its_first_value(windowed):
    exercise = read_exercise(windowed())
    assert exercise.variant is None and exercise.seed == 0
    cells = [cell.source for cell in exercise.notebook.cells]
    assert "WIDTH = 4  # of the window in task 1\nEARLY, LATE = (3, 9)\nSTEADY = 1_000" in cells
    prompt = exercise.task("causal-mask").prompt
    assert "nor look 4 back, or 1,000." in prompt
    assert "{{" not in "".join(cells) and "one of the 4 keys" in "".join(cells)


def test_a_variant_has_other_numbers_and_the_next_one_others_again(windowed):
    source = windowed()
    exercises = [read_exercise(source, number) for number in range(12)]
    variants = exercises[0].variants
    assert (variants.count, variants.diagonal) == (12, 4)
    values = [
        [choice.values(i) for choice, i in zip(variants.choices, variants.indices(number), strict=True)]
        for number in range(12)
    ]
    assert len({str(each) for each in values}) == 12 and all(
        variants.number(variants.indices(n)) == n for n in range(12)
    )
    assert [window["WIDTH"] for window, _ in values[:4]] == [4, 6, 8, 10]
    assert [tuple(sizes.values()) for _, sizes in values[:4]] == [(3, 9), (4, 10), (5, 11), (3, 9)]
    assert [each.variant for each in exercises] == list(range(12))
    assert len({each.seed for each in exercises} | {0}) == 13, "the numbers at home are drawn from other seeds"
    assert exercises[2].title == "Exercise 03 · A sample · variant 2" and exercises[2].name == "03_sample_variant_2"
    dealt = read_exercise(source, 2, dealt=True)
    assert (dealt.title, dealt.name, dealt.variant) == ("Exercise 03 · A sample", "03_sample", 2)
    assert "nor look 8 back" in exercises[2].task("causal-mask").prompt
    assert variants.words(2) == "WIDTH = 8, EARLY = 5, LATE = 11"


def test_a_variant_s_code_has_literals_where_the_names_were(windowed):
    cells = [cell.source for cell in read_exercise(windowed(), 1).notebook.cells]
    code = "\n".join(cells)
    assert "WIDTH" not in code and "EARLY" not in code and "STEADY = 1_000" in cells
    assert "position[None, :] + 6)" in code and "show.random_size(4, 10)" in code and "triu(1 - 6)" in code


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("x = -A ** 2  # A", "x = -(-3) ** 2  # A"),
        ("f(A=A, b=x.A, **{'A': A})", "f(A=(-3), b=x.A, **{'A': (-3)})"),
        ('print(f"A {A:+d} {A!r}", "A")', 'print(f"A {-3:+d} {-3!r}", "A")'),
        ("é = 'é'; y = [A, A]", "é = 'é'; y = [(-3), (-3)]"),
    ],
)
def test_literals_stand_for_names_only(code, written):
    assert with_literals(code, {"A": "-3"}) == written


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("A = 4", "A varies, so nothing else may have this name"),
        ("def f(A): pass", "A varies, so nothing else may have this name"),
        ("from b import c as A", "A varies, so nothing else may have this name"),
        ("print(f'{f(\"{\")} {A}')", "A is named within a text where its value can't be written"),
    ],
)
def test_names_that_no_literal_can_stand_for_are_refused(code, words):
    with pytest.raises(ValueError, match=words):
        with_literals(code, {"A": "'x'"})


POOL = """# %% tags=["variant"]
from txgrade import pool

pool("causal-mask", "future-mask")

# %% [markdown]
# ### Task 1"""
OTHER = """# %% [markdown]
# ### Task 1 · The mask of the future   ●●○○○ · 5 minutes · 2 points
#
# Return `True` where key $j$ comes after query $i$.

# %% nbgrader={"grade_id": "future-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def future_mask(n: int) -> Bool[Tensor, "query key"]:
    ### BEGIN SOLUTION
    return torch.ones(n, n).triu(1).bool()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-future-mask", "grade": true, "points": 2, "solution": false, "locked": true}
with check("future-mask") as show:
    for n in (1, 2, show.random_size(3, 9), show.random_size(10, 40), show.random_size(10, 40)):
        show(future_mask(n), f"n = {n}")

# %% tags=["mistakes"]
from txgrade import alternative, mistake

mistake("future-mask", lambda n: torch.ones(n, n).triu().bool(), "A token is not in its own future.")
mistake("future-mask", lambda n: torch.ones(n, n).tril(-1).bool(), "This is the past.")
mistake("future-mask", lambda n: torch.ones(n, n).triu(1), "These are numbers.")

# %% [markdown]
# ### Task 2"""


@pytest.fixture
def pooled(variant):
    """The sample with two alternatives for its first task, of which the second uses no causal mask."""

    def write(other=OTHER):
        return variant(
            ("# %% [markdown]\n# ### Task 1", POOL),
            ("# %% [markdown]\n# ### Task 2", other),
            ("causal_mask(n))", "torch.ones(n, n).tril().bool())"),
        )

    return write


def test_of_a_pool_one_task_is_dealt(pooled):
    source = pooled()
    exercises = [read_exercise(source, number) for number in (None, 0, 1)]
    assert [[task.id for task in each.tasks] for each in exercises] == [
        ["causal-mask", "attention"],
        ["causal-mask", "attention"],
        ["future-mask", "attention"],
    ]
    assert [each.points for each in exercises] == [5, 5, 5] and exercises[0].variants.words(1) == "task future-mask"
    assert "causal_mask" not in "".join(cell.source for cell in exercises[2].notebook.cells)
    assert find_varied(exercises[0]).tasks == {"causal-mask": (0,), "future-mask": (0,)}


@pytest.mark.slow
def test_each_task_of_a_pool_is_proved(pooled):
    assert prove_variants(pooled()).problems == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"points": 2', '"points": 3', "pool: causal-mask, future-mask give 2, 3 points: choose the same for all"),
        ('"future-mask", "solution"', '"other-mask", "solution"', "pool: task 'future-mask' needs its own `### Task`"),
    ],
)
def test_a_pool_of_unlike_tasks_is_refused(pooled, old, new, words):
    with pytest.raises(ExerciseError, match=re.escape(words)):
        read_exercise(pooled(OTHER.replace(old, new)))


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("WIDTH = variant(4)", "at least two different values"),
        ("WIDTH = variant(4, 4)", "at least two different values"),
        ("WIDTH = variant(4, 2 + 3)", "WINDOW = variant"),
        ("WIDTH = variant(4, n)", "WINDOW = variant"),
        ("WIDTH = 2 * variant(4, 5)", "WINDOW = variant"),
        ("WIDTH, B = variant((4, 1), (5, 2, 3))", "WINDOW = variant"),
        ("WIDTH = variant(4, 5)\nprint(WIDTH)", "WINDOW = variant"),
    ],
)
def test_what_can_t_be_read_is_refused(windowed, cell, words):
    with pytest.raises(ExerciseError, match=words):
        read_exercise(windowed(f'# %% tags=["variant"]\n{cell}\nSTEADY = 1\n\n# %% [markdown]\n# ### Task 1'))


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("{{WIDHT}}", "{{WIDHT}} is not declared .* there are WIDTH"),
        ("{{WIDTH - WIDHT}}", "{{WIDTH - WIDHT}} is not declared"),
        ("{{WIDTH:zz}}", "{{WIDTH:zz}}: "),
        ("{{STEADY:words}}", "{{STEADY:words}}: in words are the whole numbers 0 to 12, not 1000"),
        ("{{WIDTH -}}", "{{WIDTH -}}: "),
        ("{{WIDTH / 0}}", "{{WIDTH / 0}}: "),
        ("{{WIDTH (2)}}", "{{WIDTH .2.}}: write names, numbers"),
    ],
)
def test_a_place_without_a_value_is_refused(windowed, prompt, words):
    with pytest.raises(ExerciseError, match=words):
        read_exercise(windowed(prompt=prompt))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("{{STEADY:,}}", "1,000"),
        ("{{WIDTH:words}}", "four"),
        ("{{WIDTH + 8:Words}}", "Twelve"),
        ("{{2**WIDTH - 1}}", "15"),
        ("{{(WIDTH - 1) // 2}}", "1"),
        ("−{{-WIDTH}}", "−-4"),
        (r"$\text{{{WIDTH}}}$", r"$\text{4}$"),
        ("{{64_000 * WIDTH:_}}", "256_000"),
    ],
)
def test_a_place_says_what_follows_from_a_value(windowed, place, said):
    assert f"look {said} back" in read_exercise(windowed(prompt=f"look {place} back")).task("causal-mask").prompt


def txgrade(*words):
    return subprocess.run([sys.executable, "-m", "txgrade", *map(str, words)], capture_output=True, text=True)


def test_what_has_no_variant_says_what_to_do(course, windowed):
    run = txgrade("release", "--variant", "7", course.source)
    assert run.returncode == 2 and "nothing in it varies" in run.stderr and "docs/exercises.md" in run.stderr
    for number in (-1, 12):
        with pytest.raises(
            ExerciseError, match=rf"has no variant {number}: choose a whole number from 0 to 11; 1 to 3"
        ):
            read_exercise(windowed(), number)


@pytest.fixture
def two(windowed):
    """The released variants 1 and 2, by number: one by the command, one by what it calls."""
    source = windowed()
    run = txgrade("release", "--variant", "1", source)
    assert run.returncode == 0 and "2 tasks, 5 points; WIDTH = 6, EARLY = 4, LATE = 10" in run.stdout
    release(source, variant=2, run_solution=False)
    assert [path.name for path in source.parent.iterdir()] == ["03_sample.py", "03_sample_variant_1.ipynb"]
    return {number: source.parents[1] / "exercises" / f"exercise_03_sample_variant_{number}.ipynb" for number in (1, 2)}


@pytest.mark.slow
def test_what_is_released_says_which_variant_it_is_and_holds_one_only(two):
    for number, path in two.items():
        assert path.name == f"exercise_03_sample_variant_{number}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        assert [cell.metadata.variant for cell in notebook.cells if "variant" in cell.metadata] == [number]
        (declared,) = (cell for cell in notebook.cells if "variant" in cell.metadata.get("tags", []))
        assert declared.source == "STEADY = 1_000" and not declared.metadata.editable
        assert "{{" not in text_of(path)
    assert text_of(two[1]) != text_of(two[2])


@pytest.mark.slow
def test_a_variant_stands_its_own_proof(windowed):
    assert [each.problems for each in prove(windowed(), variant=1)] == [(), ()]


def answered(exercise, path, width):
    """A learner's notebook, right in all but perhaps the width."""
    notebook = nbformat.read(exercise, as_version=4)
    answers = {
        "causal-mask": f"def causal_mask(n):\n    return torch.ones(n, n).tril().triu(1 - {width}).bool()",
        "attention": "def attention(q, k, v, mask):\n    score = q @ k.T / q.shape[-1] ** 0.5\n"
        "    return score.masked_fill(~mask, -torch.inf).softmax(-1) @ v",
    }
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)


@pytest.mark.slow
def test_another_variant_s_notebook_is_told(two, windowed, tmp_path):
    assignments = [read_assignment(windowed(), number) for number in two]
    answered(two[1], path := tmp_path / "ada.ipynb", 6)
    file = SubmissionFile("ada", path)
    kinds = [[note.kind for note in read_submission(file, each).notes] for each in assignments]
    assert kinds[0] == [] and "other variant" in kinds[1]
    (note,) = (each for each in read_submission(file, assignments[1]).notes if "other" in each.kind)
    assert note.text == "the notebook was made with variant 1, and is judged by variant 2" and note.review


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
def test_a_submission_is_judged_by_its_own_variant(two, windowed, tmp_path):
    """An answer with the numbers of variant 1 has all points by it, and not those of task 1 by 2.

    A variant has no names for its numbers, so an answer with one fails, and the task that rests on it waits.
    """
    inbox = tmp_path / "inbox"
    answered(two[1], inbox / "by name.ipynb", "WIDTH")
    answered(two[1], inbox / "by number.ipynb", 6)
    scores = {}
    for number in two:
        out = tmp_path / f"results-{number}"
        run = txgrade("grade", "--assignment", windowed(), "--variant", number, "--submissions", inbox, "--out", out)
        assert run.returncode == 0, run.stderr
        with open(out / "grades.csv", encoding="utf-8", newline="") as file:
            scores[number] = {row["submission"]: row["score"] for row in csv.DictReader(file)}
    assert scores == {1: {"by name": "0", "by number": "5"}, 2: {"by name": "0", "by number": "3"}}
    assert "other variant" in (tmp_path / "results-2" / "review.csv").read_text(encoding="utf-8")
    explained = txgrade("explain", "by number", "--out", tmp_path / "results-1").stdout
    assert "variant     1" in explained and "03_sample.py --variant 1 --submissions" in explained


def values_of(variants, number):
    return {
        name: value
        for choice, index in zip(variants.choices, variants.indices(number or 0), strict=True)
        for name, value in choice.values(index).items()
    }


def settled(source, number=None):
    """A shipped source with the values of a variant; and these values."""
    notebook = jupytext.read(source, fmt="py:percent")
    settled = settle(notebook, number)
    assert settled.problems == []
    return [cell for cell in notebook.cells if not is_variant(cell)], values_of(settled.variants, number)


@pytest.mark.parametrize("source", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_variant_asks_for_other_numbers_and_for_no_old_ones(source):
    variants = read_exercise(source).variants
    cells = [cell for cell in jupytext.read(source, fmt="py:percent").cells if not is_variant(cell)]
    pools = [choice for choice in variants.choices if not choice.names]
    original, first = settled(source)
    for number in range(1, variants.diagonal):
        new, values = settled(source, number)
        assert values.keys() == first.keys()
        if pools:
            continue
        asked = False
        for place, old, cell in zip(cells, original, new, strict=True):
            assert not re.search(r"{{[A-Z]", cell.source), "a place without a value"
            if cell.cell_type == "markdown":
                asked |= cell.source != old.source
                for name in names_in_places(place.source):
                    gone = str(first[name])
                    if len(gone) > 2 and not any(gone in str(value) for value in values.values()):
                        assert not re.search(rf"(?<!\w){re.escape(gone)}(?!\w)", cell.source), (name, cell.source)
        assert asked, "no prompt differs"


def names_in_places(source):
    return {name for place in PLACE.finditer(source) for name in re.findall(r"\b[A-Za-z_]\w*", place["value"])}


@pytest.mark.slow
@pytest.mark.parametrize("source", SHIPPED, ids=lambda path: path.stem)
def test_the_right_answer_of_a_shipped_variant_is_wrong_in_every_other(source):
    assert find_varied(read_exercise(source)).tasks, "no answer depends on what varies"
    assert in_fresh_process("txgrade.authoring.variant_proof", source, {}) == []


@pytest.mark.slow
def test_all_variants_of_a_shipped_exercise_stand_their_proof():
    proof = prove_variants(next(path for path in SHIPPED if path.stem == "19_universal"))
    assert proof.problems == () and proof.varied.tasks == {"loop-sizes": (0,)}


@pytest.mark.slow
def test_variants_whose_answers_are_the_same_are_found(windowed):
    """10 and 12 are both wider than every text that the check asks for, but for one."""
    source = windowed(CELL.replace("4, 6, 8, 10", "4, 60, 80"))
    run = txgrade("validate", "--variants", source)
    assert run.returncode == 1 and "variant 1: WIDTH = 60, EARLY = 4, LATE = 10" in run.stdout
    assert "a mistake can't be told from the reference" in run.stderr or "is right in variant" in run.stderr
    varied = find_varied(read_exercise(source))
    assert str(varied) == (
        "9 variants, 3 of them with different answers (EARLY, LATE: texts only); tasks that vary: causal-mask"
    )


def test_the_list_of_what_varies_is_that_of_the_sources():
    """docs/teaching.md names each exercise that varies, and no other."""
    page = (SHIPPED[0].parents[1] / "docs" / "teaching.md").read_text(encoding="utf-8")
    table = page[page.index("| Exercise | Different in a variant |") : page.index("## Where it runs")]
    listed = re.findall(r"^\| (\d\d) \|", table, re.M)
    assert listed == [path.stem[:2] for path in SHIPPED] and len(listed) >= 20


def test_a_variant_drops_the_deadline_or_has_another(windowed):
    source = windowed()
    text = source.read_text(encoding="utf-8")
    rule = 'due("2026-12-01 23:59", timezone="Europe/Zurich", per_day=0.2)'
    source.write_text(
        text.replace("from txgrade import alternative, mistake\n", f"from txgrade import due\n\n{rule}\n")
    )
    first = read_exercise(source).due
    assert first["when"] == "2026-12-01 23:59" and first["per_day"] == 0.2
    assert read_exercise(source, 7).due is None and read_exercise(source, 7, dealt=True).due == first
    assert read_exercise(source, 8, due="2027-01-20 12:00").due == first | {"when": "2027-01-20 12:00"}
    with pytest.raises(ExerciseError, match="give date and time like"):
        read_exercise(source, 9, due="soon")
    source.write_text(text)
    with pytest.raises(ExerciseError, match=r"its source has no due\(…\)"):
        read_exercise(source, 9, due="2027-01-20 12:00")
