"""Other numbers for a retake: what is written, what is refused, and by what an answer is judged."""

import csv
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jupytext
import nbformat
import pytest

from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.read import read_assignment
from txgrade.authoring.record import check_run, reference_names
from txgrade.authoring.release import release
from txgrade.authoring.retake import write_variant
from txgrade.authoring.validate import prove
from txgrade.authoring.variants import PLACE, is_variant, settle
from txgrade.evidence.recordings import first_difference
from txgrade.sandbox import probe
from txgrade.source import names_used
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


def test_without_a_seed_each_name_has_its_first_value(windowed):
    exercise = read_exercise(windowed())
    assert exercise.variant is None and exercise.seed == 0
    cells = [cell.source for cell in exercise.notebook.cells]
    assert "WIDTH = 4  # of the window in task 1\nEARLY, LATE = (3, 9)\nSTEADY = 1_000" in cells
    prompt = exercise.task("causal-mask").prompt
    assert "nor look 4 back, or 1,000." in prompt
    assert "{{" not in "".join(cells) and "one of the 4 keys" in "".join(cells)


def test_a_variant_has_other_numbers_and_the_next_one_others_again(windowed):
    source = windowed()
    made = [write_variant(source, seed) for seed in (7, 8, 9, 10)]
    assert [path.name for path, _ in made] == [f"03_sample_variant_{seed}.py" for seed in (7, 8, 9, 10)]
    drawn = [values for _, values in made]
    assert all(values.keys() == {"WIDTH", "EARLY", "LATE"} for values in drawn)
    assert {values["WIDTH"] for values in drawn} == {6, 8, 10} and drawn[0] == {**drawn[3], **_pair(drawn[0])}
    assert all(one["WIDTH"] != two["WIDTH"] and one["EARLY"] != two["EARLY"] for one, two in pairwise(drawn))
    assert all((values["EARLY"], values["LATE"]) in ((4, 10), (5, 11)) for values in drawn)
    exercises = [read_exercise(path) for path, _ in made]
    assert [each.variant for each in exercises] == [7, 8, 9, 10]
    assert len({each.seed for each in exercises} | {0}) == 5, "the numbers at home are drawn from other seeds"
    assert exercises[0].title == "Exercise 03 · A sample · variant 7"
    assert f"nor look {drawn[0]['WIDTH']} back" in exercises[0].task("causal-mask").prompt


def _pair(values):
    return {name: values[name] for name in ("EARLY", "LATE")}


def test_the_same_seed_gives_the_same_bytes_and_never_overwrites_what_was_changed(windowed):
    source = windowed()
    path, values = write_variant(source, 7)
    before = path.read_bytes()
    assert write_variant(source, 7) == (path, values) and path.read_bytes() == before
    path.write_text(path.read_text().replace("2 points", "2 points "))
    with pytest.raises(ExerciseError, match="exists and differs from what this source makes now"):
        write_variant(source, 7)


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
    path, _ = write_variant(windowed(), 7)
    with pytest.raises(ExerciseError, match="is a variant itself"):
        write_variant(path, 8)
    with pytest.raises(ExerciseError, match="whole number from 0 on"):
        write_variant(windowed(), -1)


@pytest.fixture
def two(windowed):
    """The released variants 7 and 8, by seed: one by the command, one by what it calls."""
    source = windowed()
    run = txgrade("release", "--variant", "7", source)
    assert (
        run.returncode == 0 and f"03_sample_variant_7.py: WIDTH = {write_variant(source, 7)[1]['WIDTH']}" in run.stdout
    )
    release(write_variant(source, 8)[0], run_solution=False)
    return {seed: source.parents[1] / "exercises" / f"exercise_03_sample_variant_{seed}.ipynb" for seed in (7, 8)}


@pytest.mark.slow
def test_what_is_released_says_which_variant_it_is_and_holds_one_only(two):
    for seed, path in two.items():
        assert path.name == f"exercise_03_sample_variant_{seed}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        assert [cell.metadata.variant for cell in notebook.cells if "variant" in cell.metadata] == [seed]
        (declared,) = (cell for cell in notebook.cells if "variant" in cell.metadata.get("tags", []))
        assert "variant(" not in declared.source and not declared.metadata.editable
        assert "{{" not in text_of(path)
    assert text_of(two[7]) != text_of(two[8])


@pytest.mark.slow
def test_a_variant_stands_its_own_proof(windowed):
    assert [each.problems for each in prove(write_variant(windowed(), 7)[0])] == [(), ()]


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
def test_another_variant_s_notebook_is_told(two, tmp_path):
    solutions = two[7].parents[1] / "solutions"
    assignments = {seed: read_assignment(solutions / f"03_sample_variant_{seed}.py") for seed in two}
    answered(two[7], path := tmp_path / "ada.ipynb", "WIDTH")
    file = SubmissionFile("ada", path)
    kinds = [[note.kind for note in read_submission(file, each).notes] for each in assignments.values()]
    assert kinds[0] == [] and "other variant" in kinds[1]
    (note,) = (each for each in read_submission(file, assignments[8]).notes if "other" in each.kind)
    assert note.text == "the notebook was made with variant 7, and is judged by variant 8" and note.review


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
def test_a_submission_is_judged_by_its_own_variant(two, tmp_path):
    """Whoever writes the numbers of variant 7 into the answers has all points by it, and not those of task 1 by 8."""
    solutions, inbox = two[7].parents[1] / "solutions", tmp_path / "inbox"
    width = next(values["WIDTH"] for path, values in [write_variant(solutions / "03_sample.py", 7)])
    answered(two[7], inbox / "by name.ipynb", "WIDTH")
    answered(two[7], inbox / "by number.ipynb", width)
    found = {}
    for seed in two:
        out, source = tmp_path / f"results-{seed}", solutions / f"03_sample_variant_{seed}.py"
        run = txgrade("grade", "--assignment", source, "--submissions", inbox, "--out", out)
        assert run.returncode == 0, run.stderr
        with open(out / "grades.csv", encoding="utf-8", newline="") as file:
            found[seed] = {row["submission"]: row["score"] for row in csv.DictReader(file)}
    assert found == {7: {"by name": "5", "by number": "5"}, 8: {"by name": "5", "by number": "3"}}
    assert "other variant" in (tmp_path / "results-8" / "review.csv").read_text(encoding="utf-8")


def settled(source, seed=None):
    """A shipped source with the values of a variant, or with places; and these values."""
    notebook = jupytext.read(source, fmt="py:percent")
    values, problems = settle(notebook, source.stem, seed)
    assert problems == []
    return [cell for cell in notebook.cells if not is_variant(cell)], values


@pytest.mark.parametrize("source", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_variant_asks_for_other_numbers_and_for_no_old_ones(source):
    cells = [cell for cell in jupytext.read(source, fmt="py:percent").cells if not is_variant(cell)]
    original, first = settled(source)
    for seed in (1, 2, 3):
        new, values = settled(source, seed)
        assert values.keys() == first.keys()
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
def test_numbers_of_one_shipped_variant_fail_in_another(source, tmp_path):
    source = Path(shutil.copy(source, tmp_path))
    made = [write_variant(source, seed) for seed in (1, 2, 3)]
    exercises = [read_exercise(source), *(read_exercise(path) for path, _ in made)]
    names = [reference_names(each, seed=5) for each in exercises]
    cells = exercises[0].notebook.cells
    varied = [task for task in exercises[0].tasks if names_used(cells[task.answer].source) & made[0][1].keys()]
    assert varied, "no answer depends on what varies"
    for task in varied:
        for (one, mine), (other, theirs) in pairwise(zip(exercises, names, strict=True)):
            expected, _ = check_run(other, other.task(task.id), theirs, hidden=True)
            brought, _ = check_run(other, other.task(task.id), theirs | {each: mine[each] for each in task.names}, True)
            assert first_difference(brought, expected) is not None, (task.id, one.variant, other.variant)


@pytest.mark.slow
def test_a_shipped_variant_stands_its_own_proof(tmp_path):
    source = next(path for path in SHIPPED if path.stem == "15_universal")
    path, _ = write_variant(shutil.copy(source, tmp_path), 1)
    reports = prove(path)
    assert len(reports) == 5 and [report.problems for report in reports] == [()] * 5


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
    assert read_exercise(write_variant(source, 7)[0]).due is None
    assert read_exercise(write_variant(source, 8, "2027-01-20 12:00")[0]).due == first | {"when": "2027-01-20 12:00"}
    with pytest.raises(ExerciseError, match="give date and time like"):
        write_variant(source, 9, "soon")
    source.write_text(text)
    with pytest.raises(ExerciseError, match=r"its source has no due\(…\)"):
        write_variant(source, 9, "2027-01-20 12:00")
