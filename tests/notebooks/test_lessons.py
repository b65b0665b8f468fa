"""Each lesson runs, gives the outputs that stand in its notebook, and is the notebook of its source."""

import re
import time
from itertools import pairwise
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbval.plugin import coalesce_streams

from txcourse.build import build, read_lesson, run_lesson
from txgrade.judging.replay import EvidenceFile
from txgrade.notebook_runner import Stopped

COURSE = Path(__file__).parents[2]
SOURCES = sorted(COURSE.glob("notebooks/[0-9]*.py"))
NOTEBOOKS = sorted(COURSE.glob("notebooks/*.ipynb"))
SOLUTIONS = sorted(COURSE.glob("solutions/[0-9]*.py"))
LESSONS = [source for source in SOURCES if source.stem != "00_start_here"]
PARTS = {
    "outcomes": r"^\*\*After this lesson you will be able to\*\*",
    "needs": r"\*\*You need\*\*",
    "minutes": r"\*\*It takes\*\* about \d+ minutes",
    "quiz": r"^## \d+ Quiz$",
    "summary": r"^## \d+ Summary$",
    "reading": r"^\*\*Read\*\*",
    "exercise": r"^\*\*Do\*\* the exercise \[\w+\]\(\.\./exercises/exercise_\w+\.ipynb\)",
}
MAX_CHARACTERS = 88  # what the site shows of a line at 1280 pixels
TO_BE_NARROWED = ("1", "2", "3")  # parts II to IV


def differences(committed: Path, ran: nbformat.NotebookNode, session: pytest.Session) -> list[str]:
    """What nbval finds when it compares a notebook's outputs with those of a run, a text for each cell.

    The cells are nbval's own pytest items, so its rules and tags hold (pixels and `nbval-ignore-output` cells are not
    compared); only the outputs come from another run, so that no lesson runs twice.
    """
    fresh = [cell for cell in ran.cells if cell.cell_type == "code"]
    found = []
    for item, cell in zip(EvidenceFile.from_parent(session, path=committed).collect(), fresh, strict=True):
        if item.options["skip"] or not item.options["check"]:
            continue
        if not item.compare_outputs(coalesce_streams(cell.outputs), coalesce_streams(item.cell.outputs)):
            found.append("\n".join([f"Cell {cell.execution_count}:", cell.source, *item.comparison_traceback]))
    return found


def without_outputs(notebook: nbformat.NotebookNode) -> list[dict]:
    return [{key: cell[key] for key in ("id", "cell_type", "source", "metadata")} for cell in notebook.cells]


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_lesson_gives_its_outputs(source, request, record_property):
    start = time.perf_counter()
    try:
        ran = run_lesson(read_lesson(source))
    except Stopped as error:
        pytest.fail(f"{source.name}:\n{error.trace}", pytrace=False)
    record_property("lesson", (source.stem, time.perf_counter() - start))
    if found := differences(source.with_suffix(".ipynb"), ran, request.session):
        advice = "If the new outputs are right, `make notebooks` and commit."
        pytest.fail("\n\n".join([f"{source.name} gives other outputs. {advice}", *found]), pytrace=False)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_notebook_is_its_source(source):
    assert source.with_suffix(".ipynb").is_file(), "run `make notebooks` and commit"
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    lesson = read_lesson(source)
    assert without_outputs(notebook) == without_outputs(lesson), "run `make notebooks` and commit"
    assert notebook.metadata == lesson.metadata
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source)


@pytest.mark.parametrize("source", [*SOURCES, *SOLUTIONS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_saving_in_lab_would_not_change_the_source(source):
    text = source.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": "-all"}  # as lab/author says
    assert jupytext.writes(notebook, fmt="py:percent") == text, "begin the file with its first `# %%`, without a header"


@pytest.mark.parametrize("source", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_parts(source):
    cells = read_lesson(source).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert [name for name, pattern in PARTS.items() if not re.search(pattern, prose, re.MULTILINE)] == []
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert [name for name in ("show_source(", "prove_equal(", "expect(") if name not in code] == []


@pytest.mark.parametrize(
    "source", [each for each in SOURCES if not each.stem.startswith(TO_BE_NARROWED)], ids=lambda path: path.stem
)
def test_code_does_not_scroll_sideways(source):
    code = [cell.source for cell in visible(read_lesson(source)) if cell.cell_type == "code"]
    assert [line for each in code for line in each.splitlines() if len(line) > MAX_CHARACTERS] == []


def visible(lesson):
    """The cells that are not folded away."""
    return [cell for cell in lesson.cells if not cell.metadata.get("jupyter", {}).get("source_hidden")]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_sentence_stands_between_any_two_cells_of_code(source):
    pairs = pairwise(visible(read_lesson(source)))
    pairs = [(one, other) for one, other in pairs if one.cell_type == other.cell_type == "code"]
    assert not [other.source.partition("\n")[0] for _, other in pairs]


def test_every_notebook_has_a_source():
    assert SOURCES
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in SOURCES]


@pytest.fixture
def lesson(tmp_path):
    """A small lesson of one cell: `lesson(code, tags)` gives its source."""

    def write(code: str, tags: str = "") -> Path:
        source = tmp_path / "99_small.py"
        source.write_text(f"# %% [markdown]\n# # Small\n\n# %%{tags}\n{code}\n", encoding="utf-8")
        return source

    return write


@pytest.mark.parametrize(
    ("tags", "found"), [("", 1), (' tags=["nbval-ignore-output"]', 0), (' tags=["nbval-skip"]', 0)]
)
def test_a_changed_output_is_found(lesson, request, tags, found):
    source = lesson("print(6 * 7)", tags)
    ran = run_lesson(read_lesson(source))
    assert ran.cells[1].outputs[0].text == "42\n"
    nbformat.write(ran, source.with_suffix(".ipynb"))
    assert differences(source.with_suffix(".ipynb"), ran, request.session) == []
    ran.cells[1].outputs[0].text = "43\n"
    assert len(differences(source.with_suffix(".ipynb"), ran, request.session)) == found


def test_pixels_may_change_but_not_what_a_picture_tells(lesson, request):
    source = lesson(
        "from txlib import plots\nplots.bars({'a': 1.0, '<eos>': 2.0}, title='Two', xlabel='x', alt='a, <eos>')"
    )
    ran = run_lesson(read_lesson(source))
    nbformat.write(ran, source.with_suffix(".ipynb"))
    (picture,) = ran.cells[1].outputs
    assert 'alt="a, &lt;eos&gt;"' in picture.data["text/html"]
    picture.data["text/html"] = picture.data["text/html"].replace("iVBOR", "other")
    picture.data["image/png"] = picture.data["image/png"].replace("iVBOR", "other")
    assert differences(source.with_suffix(".ipynb"), ran, request.session) == []
    picture.data["text/plain"] = "Picture: something else"
    assert len(differences(source.with_suffix(".ipynb"), ran, request.session)) == 1


def test_a_failing_lesson_is_not_written(lesson):
    source = lesson("1 / 0")
    source.with_suffix(".ipynb").write_text("the old one", encoding="utf-8")
    with pytest.raises(Stopped, match="ZeroDivisionError"):
        build(source)
    assert source.with_suffix(".ipynb").read_text(encoding="utf-8") == "the old one"


def test_ids_stay_when_a_cell_comes_before(lesson):
    source = lesson("print(1)")
    before = [cell.id for cell in read_lesson(source).cells]
    source.write_text("# %%\nprint(0)\n\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    assert [cell.id for cell in read_lesson(source).cells][1:] == before
