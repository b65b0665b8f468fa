"""Assignments of nbgrader's: what is read of them, and that their tests give the points that nbgrader gives."""

import copy
import importlib.util
import re

import nbformat
import nbgrader_course as sums
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbgrader_course import NAME, STUDENTS, Course, cell, downgraded, source_notebook, with_answers

from txgrade.authoring import nbgrader
from txgrade.authoring.assignment import GradedTask
from txgrade.authoring.exercise import ExerciseError
from txgrade.authoring.nbgrader import autograded, read_nbgrader, upgraded
from txgrade.authoring.read import read_assignment
from txgrade.sandbox.limits import Limits

pytestmark = pytest.mark.slow

needs_nbgrader = pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None,
    reason='nbgrader itself is missing, nothing is compared with it: pip install -c constraints.txt -e ".[bench]"',
)


@pytest.fixture
def source(tmp_path):
    """Writes a notebook; returns its path."""

    def write(notebook, name=NAME):
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return path

    return write


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A course in which nbgrader has released one assignment."""
    course = Course(tmp_path_factory.mktemp("nbgrader"))
    course.path = course.add(NAME, source_notebook())
    course.released = course.release(NAME)
    return course


@pytest.fixture(scope="session")
def scores(original):
    """What nbgrader gives each learner, cell by cell."""
    for student, changes in STUDENTS.items():
        original.submit(NAME, student, with_answers(original.released, changes))
    return original.autograde(NAME)


@pytest.fixture(scope="session")
def results(original, tmp_path_factory):
    """What we give the same learners' notebooks, in the sandbox where there is one."""
    from txgrade.running.grader import grade

    folder = tmp_path_factory.mktemp("submissions")
    for student, changes in STUDENTS.items():
        nbformat.write(with_answers(original.released, changes), folder / f"{student}.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nbgrader, "TIMEOUT", sums.TIMEOUT)
        graded = grade(
            original.path,
            folder,
            tmp_path_factory.mktemp("results"),
            jobs=2,
            trust=True,
            limits=Limits(cell_seconds=sums.TIMEOUT),
        )
    return {result.submission: result for result in graded.results}


# The form


def test_every_kind_of_cell(source):
    assignment = read_nbgrader(source(source_notebook()))
    assert (assignment.name, assignment.title, assignment.points) == ("sums", "Sums", 17.5)
    assert {task.id: (task.kind, task.points, task.answers) for task in assignment.tasks} == {
        "test-squares": ("tests", 1, ("squares",)),
        "test-squares-hidden": ("tests", 2.5, ("squares",)),
        "test-total": ("tests", 2, ("total",)),
        "test-mean": ("tests", 3, ("mean",)),
        "test-answer": ("tests", 1, ("constants",)),
        "test-other": ("tests", 1, ("constants",)),
        "test-sign": ("tests", 1, ("constants",)),
        "words": ("written", 2, ("words",)),
        "drawing": ("written", 1, ("drawing",)),
        "effort": ("written", 3, ()),
    }
    assert [task.id for task in assignment.tasks if task.hidden] == ["test-squares-hidden"]
    assert assignment.task("test-total").title == "Problem 2: their sum"
    assert assignment.task("test-squares").title == "Problem 1: squares · test-squares"
    assert assignment.task("effort").rubric == "One point for effort."
    assert assignment.task("words").rubric == "A square grows faster than a line."
    effort = next(each for each in assignment.notebook.cells if each.id == "effort")
    assert "One point" not in effort.source and "One point" not in assignment.task("effort").prompt
    nbformat.validate(assignment.notebook)


def test_tests_at_the_end_belong_to_what_they_use(source):
    notebook = nbformat.v4.new_notebook(
        cells=[
            cell("code", "def f():\n    return 1", "f", "solution"),
            cell("code", "def g():\n    return 2", "g", "solution"),
            cell("code", "x = 3", "x", "solution"),
            cell("code", "assert g() == 2", "test-g", "tests", 1),
            cell("code", "assert f() == 1", "test-f", "tests", 1),
            cell("code", "%time assert True", "test-all", "tests", 1),
        ]
    )
    answers = {task.id: task.answers for task in read_nbgrader(source(notebook)).tasks}
    assert answers == {"test-g": ("g",), "test-f": ("f",), "test-all": ("f", "g", "x")}


def test_an_exercise_of_ours_is_not_taken_for_nbgraders(course):
    assert {task.kind for task in read_assignment(course.solution).tasks} == {"evidence"}


def change(notebook, id, source=None, **metadata):
    """The notebook with another source or other metadata in one cell."""
    notebook = copy.deepcopy(notebook)
    found = next(each for each in notebook.cells if each.metadata.get("nbgrader", {}).get("grade_id") == id)
    found.source = found.source if source is None else source
    for key, value in metadata.items():
        if value is ...:
            del found.metadata["nbgrader"][key]
        else:
            found.metadata["nbgrader"][key] = value
    return notebook


WRONG = [
    ("test-total", {"points": "2"}, "cell 9 (test-total): points = '2'; write a number, 0 or more"),
    ("test-total", {"points": -1}, "cell 9 (test-total): points = -1; write a number, 0 or more"),
    ("test-total", {"points": True}, "cell 9 (test-total): points = True; write a number, 0 or more"),
    ("test-total", {"points": ...}, "cell 9 (test-total): points = None; write a number, 0 or more"),
    ("effort", {"points": ...}, "cell 21 (effort): points = None; write a number, 0 or more"),
    ("total", {"grade_id": ...}, "cell 8: has no grade_id"),
    ("total", {"grade_id": ""}, "cell 8: has no grade_id"),
    ("total", {"grade_id": "a b"}, "cell 8 (a b): a grade_id may hold at most 64 letters, digits, - and _"),
    ("total", {"grade_id": "squares"}, "cell 8 (squares): the grade_id is used twice"),
    ("total", {"schema_version": 4}, "cell 8 (total): schema_version 4 is not known; nbgrader's are 0 to 3"),
    ("total", {"locked": ...}, "cell 8 (total): its metadata has no true or false for locked"),
    ("words", {"grade": False}, "cell 19 (words): this written answer gives no points; mark it as graded as well"),
    (
        "words",
        {"solution": False},
        "cell 19 (words): a tests cell must be code; mark a written answer as a solution too",
    ),
    ("drawing", {"task": True}, "cell 20 (drawing): a task cell must be markdown"),
    ("total", {"source": "### BEGIN SOLUTION"}, "cell 8 (total): BEGIN SOLUTION without its END SOLUTION"),
    (
        "total",
        {"source": "# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION"},
        "cell 8 (total): BEGIN SOLUTION within another one",
    ),
    (
        "setup",
        {"source": "### BEGIN SOLUTION\n### END SOLUTION"},
        "cell 2 (setup): BEGIN SOLUTION in a cell that is no solution cell",
    ),
    (
        "setup",
        {"source": "### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS"},
        "cell 2 (setup): BEGIN HIDDEN TESTS in a cell that is no tests cell",
    ),
    (
        "test-total",
        {"source": "### BEGIN MARK SCHEME\n### END MARK SCHEME"},
        "cell 9 (test-total): BEGIN MARK SCHEME in a cell that is no task cell",
    ),
    (
        "test-total",
        {"source": "### AUTOTEST total(2)"},
        "cell 9 (test-total): AUTOTEST lines become tests in nbgrader only; write the asserts",
    ),
]


@pytest.mark.parametrize(("id", "changes", "line"), WRONG)
def test_a_wrong_form_is_one_line(source, id, changes, line):
    with pytest.raises(ExerciseError) as caught:
        read_nbgrader(source(change(source_notebook(), id, **changes)))
    assert caught.value.problems == [line]


@needs_nbgrader
@pytest.mark.parametrize(
    ("id", "changes", "line"), [each for each in WRONG if "AUTOTEST" not in each[2] and each[1] != {"points": True}]
)
def test_nbgrader_refuses_it_too(original, id, changes, line):
    """All but AUTOTEST, which is its own, and true for points, which its schema takes for 1."""
    original.add("wrong", change(source_notebook(), id, **changes))
    assert not original.accepts("wrong")


@needs_nbgrader
@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("words", "Fast.\n### BEGIN MARK SCHEME\nOne point for the word.\n### END MARK SCHEME"),
        ("total", "### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS"),
        ("total", "x = 1\n### END SOLUTION"),
        ("setup", "### END HIDDEN TESTS"),
    ],
)
def test_what_nbgrader_accepts_is_read(original, source, id, text):
    """A cleared solution takes other marks with it, and an END without its BEGIN is a comment."""
    notebook = change(source_notebook(), id, text)
    original.add("odd", notebook)
    assert original.accepts("odd")
    read_nbgrader(source(notebook))


def test_all_problems_at_once(source):
    notebook = change(change(source_notebook(), "test-total", points="2"), "total", grade_id="squares")
    with pytest.raises(ExerciseError) as caught:
        read_nbgrader(source(notebook))
    assert len(caught.value.problems) == 2


def test_not_a_notebook(tmp_path):
    path = tmp_path / "sums.ipynb"
    path.write_text("{")
    with pytest.raises(ExerciseError, match="sums: can't be read as a notebook"):
        read_nbgrader(path)
    with pytest.raises(FileNotFoundError, match="no assignment at"):
        read_nbgrader(tmp_path / "other.ipynb")


def test_other_languages(source):
    notebook = source_notebook()
    notebook.metadata["kernelspec"] = {"name": "ir", "display_name": "R", "language": "R"}
    with pytest.raises(ExerciseError, match="its language is R; only Python is graded here"):
        read_nbgrader(source(notebook))


def test_a_notebook_without_points(source):
    with pytest.raises(ExerciseError, match="no cell in it gives points"):
        read_nbgrader(source(nbformat.v4.new_notebook(cells=[cell("code", "1")])))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_schemas(source, version):
    new = source_notebook()
    new.cells = [each for each in new.cells if each.metadata.get("nbgrader", {}).get("grade_id") != "effort"]
    old = read_nbgrader(source(downgraded(source_notebook(), version)))
    assert old.tasks == read_nbgrader(source(new)).tasks
    assert old.stubs == read_nbgrader(source(new)).stubs


def test_a_cell_whose_name_is_taken(source):
    notebook = source_notebook()
    notebook.cells[3].metadata["nbgrader"]["grade_id"] = "cell-1"
    nbformat.validate(read_nbgrader(source(notebook)).notebook)


# nbgrader as the oracle


@needs_nbgrader
def test_stubs_are_what_nbgrader_releases(original):
    assignment = read_nbgrader(original.path)
    released = {
        each.metadata.nbgrader.grade_id: each.source
        for each in original.released.cells
        if each.metadata.get("nbgrader", {}).get("solution")
    }
    assert assignment.stubs == released


@needs_nbgrader
@pytest.mark.parametrize("student", STUDENTS)
def test_scores_are_nbgraders(scores, results, student):
    """Of each tests cell that nbgrader could grade: where a learner deleted it, nbgrader has no score, we have."""
    theirs = {id: points for id, points in scores[student].items() if id.startswith("test-")}
    deleted = {id for id, text in STUDENTS[student].items() if text is sums.ABSENT and id in theirs}
    assert {id for id, points in theirs.items() if points is None} == deleted
    ours = {task.id: task.points for task in results[student].tasks if task.kind == "tests"}
    assert theirs == ours | dict.fromkeys(deleted)
    assert any(theirs.values()) or student in ("empty", "edits-tests")


@needs_nbgrader
@pytest.mark.parametrize("student", STUDENTS)
def test_what_nbgrader_leaves_to_a_person_waits_for_one(scores, results, student):
    waiting = {id for id, points in scores[student].items() if points is None and not id.startswith("test-")}
    assert {task.id for task in results[student].tasks if task.verdict == "pending"} == waiting


@needs_nbgrader
@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_schemas_as_nbgrader_updates_them(tmp_path, version):
    course = Course(tmp_path)
    path = course.add(NAME, downgraded(source_notebook(), version))
    before = read_nbgrader(path)
    course.run("update", ".")
    after = read_nbgrader(path)
    assert (before.tasks, before.stubs, before.hash) == (after.tasks, after.stubs, after.hash)


points = st.sampled_from(["", "3", "2.5", 0, 1, 2.5, -1, "-3", "1e2"])
flags = st.fixed_dictionaries({}, optional={flag: st.booleans() for flag in ("grade", "solution", "locked")})


@needs_nbgrader
@given(
    flags,
    st.fixed_dictionaries(
        {}, optional={"points": points, "checksum": st.just("0" * 32), "odd": st.just(1), "grade_id": st.just("a")}
    ),
)
def test_schema_0_is_converted_as_nbgrader_does(flags, more):
    from nbgrader.nbgraderformat import MetadataValidator

    found = nbformat.v4.new_code_cell("", metadata={"nbgrader": flags | more})
    theirs = MetadataValidator().upgrade_cell_metadata(copy.deepcopy(found)).metadata.get("nbgrader")
    ours = upgraded(found.metadata["nbgrader"])
    if theirs is not None:
        theirs = {key: value for key, value in theirs.items() if key not in ("checksum", "cell_type")}
    assert ours == theirs


TASK = GradedTask("t", "T", 2, "tests", "t", ("a",))
texts = ["1", "0", "-0.0", "2", "2.0", " 1 ", "1_0", "1\n", "one", "True", "[1]", "np.float64(1.5)", "١", ""]
numbers = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.sampled_from(texts)
values = st.builds(
    lambda text: {"output_type": "execute_result", "data": {"text/plain": text}, "metadata": {}, "execution_count": 1},
    numbers,
)
streams = st.builds(
    lambda name: {"output_type": "stream", "name": name, "text": "1"}, st.sampled_from(["stdout", "stderr"])
)
errors = st.just({"output_type": "error", "ename": "E", "evalue": "", "traceback": []})
displays = st.just({"output_type": "display_data", "data": {"text/plain": "1"}, "metadata": {}})


@needs_nbgrader
@settings(max_examples=300)
@given(st.lists(values | streams | errors | displays, max_size=4))
def test_a_tests_cell_is_graded_as_nbgrader_does(outputs):
    from nbgrader.utils import determine_grade

    found = nbformat.v4.new_code_cell("", outputs=[nbformat.from_dict(each) for each in outputs])
    found.metadata["nbgrader"] = {"grade": True, "solution": False, "points": 2, "grade_id": "t"}
    try:
        theirs = determine_grade(nbformat.from_dict(found))[0]
    except (ValueError, KeyError):  # nbgrader gives up on the whole submission
        theirs = 0
    assert autograded(outputs, TASK) == theirs


@pytest.mark.parametrize(
    ("outputs", "points"),
    [
        ([], 2),
        ([{"output_type": "stream", "name": "stdout", "text": "1"}], 2),
        ([{"output_type": "stream", "name": "stderr", "text": "a warning"}], 0),
        ([{"output_type": "error", "ename": "AssertionError", "evalue": "", "traceback": []}], 0),
        ([{"output_type": "execute_result", "data": {"text/plain": "0.5"}}], 0.5),
        ([{"output_type": "execute_result", "data": {"text/plain": "well done"}}], 2),
        ([{"output_type": "execute_result", "data": {"text/plain": "3"}}], 0),
        ([{"output_type": "execute_result", "data": {"text/html": "3"}}], 0),
        ([{"output_type": "execute_result", "data": {"text/plain": "nan"}}], 0),  # nbgrader gives all points
        ([{"output_type": "execute_result", "data": {"text/plain": "-NaN"}}], 0),
        ([{"output_type": "execute_result", "data": {"text/plain": "inf"}}], 0),
        ([{"output_type": "execute_result", "data": {"text/plain": "-Infinity"}}], 0),
        ([{"output_type": "execute_result"}], 0),
    ],
)
def test_the_rules_of_a_tests_cell(outputs, points):
    assert autograded(outputs, TASK) == points


def test_marks_are_nbgraders_own_words(source):
    """Any line with the words counts, whatever stands around them."""
    notebook = change(
        source_notebook(),
        "total",
        "def total(n):\n    x = 1  # ## BEGIN SOLUTION (n)\n    return 5\n    # END SOLUTION\n",
    )
    stub = read_nbgrader(source(notebook)).stubs["total"]
    assert re.split("\n", stub) == ["def total(n):", "    # YOUR CODE HERE", "    raise NotImplementedError()", ""]
