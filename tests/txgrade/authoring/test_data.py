"""An assignment's data: named once, and then there for release, check, validate and grade."""

import shutil

import nbformat
import pytest

from txgrade.authoring.check_notebook import NotebookError, check_notebook
from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.read import read_assignment
from txgrade.authoring.release import release
from txgrade.judging.rehearsal import rehearse
from txgrade.sandbox import probe

PARAMETERS = '# %% tags=["parameters"]'
READS = (
    "offset = int(Path('numbers.txt').read_text()) + sum(int(each.read_text()) for each in Path('../more').iterdir())"
)
IMPORTS = "import torch\nfrom pathlib import Path\n"


@pytest.fixture
def source(variant):
    """The sample with two pieces of data, beside it and above it, which its first answer uses."""

    def write(named='data=["numbers.txt", "../more"]', reads=READS):
        made = variant(
            (PARAMETERS, f"{PARAMETERS} {named}"),
            ("import torch\n", IMPORTS),
            ("from txgrade import check\n", f"from txgrade import check\n\n{reads}\n"),
            ("position = torch.arange(n)", "position = torch.arange(n) + offset"),
        )
        (made.parent / "numbers.txt").write_text("3")
        (made.parent.parent / "more").mkdir(exist_ok=True)
        (made.parent.parent / "more" / "four").write_text("4")
        return made

    return write


def test_what_is_named_is_found_and_decides_the_grade_s_hash(source):
    path = source()
    folder = path.parent
    before = read_assignment(path)
    assert dict(before.data) == {"numbers.txt": folder / "numbers.txt", "../more": folder.parent / "more"}
    (folder.parent / "more" / "four").write_text("5")
    assert read_assignment(path).hash != before.hash


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ('data=["/etc/passwd"]', "relative to the exercise's folder"),
        ('data=["nothing.txt"]', "there is no"),
        ('data=["../solutions"]', "it contains the solution"),
        ('data=[".."]', "it contains the solution"),
        ('data=["../../../x"]', "more than 2 folders up"),
        ("data=[3]", "as a text"),
        ('data=["numbers.txt", "./numbers.txt"]', "twice"),
    ],
)
def test_what_can_t_be_data_is_refused_by_name(source, named, words):
    with pytest.raises(ExerciseError, match=words):
        read_exercise(source(named))


@pytest.mark.slow
def test_release_hands_it_out_and_check_asks_for_it(source):
    released = release(source(), run_solution=False)
    folder = released.exercise.parent
    assert (folder / "numbers.txt").read_text() == "3" and not released.warnings
    answer = "def causal_mask(n):\n    return torch.ones(n + offset - offset, n).tril().bool()"
    notebook = nbformat.read(released.exercise, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "causal-mask").source = answer
    nbformat.write(notebook, released.exercise)
    assert check_notebook(released.exercise)[0].right
    (folder / "numbers.txt").unlink()
    with pytest.raises(NotebookError, match=r"reads numbers\.txt, which does not exist"):
        check_notebook(released.exercise)


@pytest.mark.slow
def test_what_lies_above_is_the_author_s_to_bring(source, tmp_path):
    released = release(source(), tmp_path / "elsewhere" / "out", run_solution=False)
    assert [words for words in released.warnings if "learners need more at ../more" in words]


@pytest.mark.parametrize("level", ["sealed", "limits-only"])
@pytest.mark.slow
def test_the_reference_finds_its_data_where_it_is_graded(source, level, monkeypatch):
    """So does a rehearsal that nothing is named for fail, and says what to do."""
    if level == "sealed" and probe().level != "sealed":
        pytest.skip("no sealed sandbox here")
    monkeypatch.setattr("txgrade.judging.rehearsal.probe", lambda: type("Found", (), {"level": level}))
    if level != "sealed":
        monkeypatch.setattr("txgrade.sandbox.kernel.probe", lambda: type("Found", (), {"level": level}))
    assert rehearse(read_assignment(source())) == []
    (problem,) = rehearse(read_assignment(source("")))
    assert problem.startswith("its cell cell-3 ended with FileNotFoundError: [Errno 2] No such file or directory: ")
    assert problem.endswith('data=["numbers.txt"] in the metadata of the parameters cell')


WRITES = """
def refused(act):
    try:
        act()
    except OSError:
        return True
    raise SystemError("data could be changed")


for path in (Path("numbers.txt"), Path("../more/four")):
    refused(lambda: path.write_text("9")), refused(lambda: path.unlink())
refused(lambda: Path("../more/five").write_text("5"))
Path("mine.txt").write_text("a place to write")
"""


@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
def test_data_can_be_read_and_not_written_and_nothing_beside_it_is_seen(source):
    path = source(reads=READS + WRITES + "assert sorted(map(str, Path('..').iterdir())) == ['../course', '../more']")
    assert rehearse(read_assignment(path)) == []
    assert (path.parent / "numbers.txt").read_text() == "3"


@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
@pytest.mark.slow
def test_what_comes_with_txlib_is_there_without_a_word(source):
    reads = (
        "import txlib\nfrom txlib.data import shakespeare\nfrom txlib.paths import DATA\n"
        "text, offset = shakespeare().train, 0\n"
        "model = txlib.load_pretrained(sorted((DATA / 'checkpoints').glob('*/'))[0])"
    )
    assert rehearse(read_assignment(source("", reads))) == []


def test_a_source_of_nbgrader_s_names_data_in_any_cell(tmp_path):
    notebook = nbformat.v4.new_notebook()
    meta = {"grade_id": "t", "grade": True, "points": 1, "solution": False, "locked": True, "schema_version": 3}
    notebook.cells = [
        nbformat.v4.new_code_cell("text = open('numbers.txt').read()", metadata={"data": ["numbers.txt"]}),
        nbformat.v4.new_code_cell("assert text == '3'", metadata={"nbgrader": meta | {"task": False}}),
    ]
    (tmp_path / "ps1").mkdir()
    nbformat.write(notebook, tmp_path / "ps1" / "ps1.ipynb")
    (tmp_path / "ps1" / "numbers.txt").write_text("3")
    assert rehearse(read_assignment(tmp_path / "ps1" / "ps1.ipynb")) == []
    shutil.move(tmp_path / "ps1" / "numbers.txt", tmp_path / "numbers.txt")
    with pytest.raises(ExerciseError, match="there is no"):
        read_assignment(tmp_path / "ps1" / "ps1.ipynb")
