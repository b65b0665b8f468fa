"""docs/teaching.md: its commands run in their order, and its plan has the hours and points that the course has."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import lms
import nbformat
import pytest

from txcourse.lessons import read_lessons
from txgrade.authoring.exercise import read_exercise
from txgrade.sandbox import probe

COURSE = Path(__file__).parents[3]
PAGE = (COURSE / "docs" / "teaching.md").read_text(encoding="utf-8")
NOT_HERE = (  # they need root, the whole course, or a browser
    *("sudo", "install", "for page", "echo", "txcourse", "git"),
    "txgrade review --page",
)


def table(heading):
    """The rows of the first table below a heading or a bold word."""
    below = PAGE[PAGE.index(heading) :]
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def minutes():
    """Of each lesson and its exercise together, by number."""
    return {lesson.number: lesson.reading + lesson.practice for lesson in read_lessons(COURSE)} | {"00": 0}


def numbers(cell):
    return re.findall(r"\b\d\d\b", cell)


def test_the_plan_has_every_lesson_once_and_its_hours_and_points():
    rows = table("## A semester")
    lessons = [number for row in rows for number in numbers(row[2])]
    known = minutes()
    assert sorted(lessons) == sorted({"00", *known})
    assert sum(bool(row[1]) for row in rows) == 5  # lectures
    sources = {path.name[:2]: path for path in (COURSE / "solutions").glob("[0-9]*.py")}
    for week, _, names, hours, points in rows:
        if set(numbers(names)) <= known.keys():
            assert float(hours) == round(2 * sum(known[each] for each in numbers(names)) / 60) / 2, week
        if points != "–":
            exercises = [read_exercise(sources[each]) for each in numbers(names) if each != "00"]
            assert int(points) == sum(each.points for each in exercises), week


def test_the_shorter_courses_have_their_hours():
    known = minutes()
    for course, names, hours in table("**Choosing.**"):
        exact = sum(known.get(each, 165) for each in numbers(names)) / 60
        assert abs(float(hours) - exact) <= 0.5, (course, exact)


def commands():
    """The lines of the page's blocks for a shell, without remarks."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_what_learners_handed_in_stays_out_of_the_clone_s_history():
    if not (COURSE / ".git").exists():
        pytest.skip("not a clone")
    words = {
        word.rstrip("/") for line in commands() for word in line.split() if re.match(r"(inbox|handout|results)", word)
    }
    words |= {"people.secret", "inbox-canvas"}
    ignored = subprocess.run(
        ["git", "-C", COURSE, "check-ignore", *(f"{word}/x" for word in words)], capture_output=True
    )
    assert len(ignored.stdout.split()) == len(words) > 5


def fill(path):
    """Answer the first task rightly but for its labels, the second one rightly, and the open one."""
    notebook = nbformat.read(path, as_version=4)
    cells = read_exercise(COURSE / "solutions" / "14_bert.py").notebook.cells
    right = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell.source for cell in cells}
    answers = {
        "hide-words": "def hide_words(ids, word, pick, dice, other, mask_id):\n"
        "    chosen = (pick < CHOSEN)[word] & (word >= 0)\n"
        "    seen = ids.masked_fill(chosen & (dice < MASKED), mask_id)\n"
        "    seen = torch.where(chosen & (dice >= MASKED) & (dice < RANDOM), other, seen)\n"
        "    return seen, ids.masked_fill(~chosen, 0)",
        "join-pair": right["join-pair"],
        "investigate-reading": "It reads both sides: I measured it.",
    }
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    nbformat.write(notebook, path)


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason="no sealed sandbox here")
def test_the_commands_run_in_their_order(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "exercises").mkdir()
    source = (COURSE / "solutions" / "14_bert.py").read_text(encoding="utf-8")
    mistakes = '# %% tags=["mistakes"]\n'
    due = 'from txgrade import due\ndue("2099-12-01 23:59", timezone="Europe/Zurich")\n'
    (tmp_path / "solutions" / "14_bert.py").write_text(source.replace(mistakes, mistakes + due, 1), encoding="utf-8")
    exercise = COURSE / "exercises" / "exercise_14_bert.ipynb"
    shutil.copy(exercise, tmp_path / "exercises")
    tables = {
        "people.csv": "name,email,slip_days,id\nada,ada@example.edu,3,1001\nBo,bo@example.edu,3,1002\n",
        "extensions.csv": "name,exercise,until\nBo,14_bert,2100-01-01 12:00\n",
        "gradebook.csv": lms.canvas_gradebook([lms.ADA], "Exercise 14 · BERT (4711)", "16.00"),
        "worksheet.csv": lms.moodle_worksheet([lms.ADA], {lms.ADA: "Tuesday, 1 December 2026, 11:58 PM"}, "16.00"),
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    upload = lms.Upload(lms.ADA, exercise.read_bytes(), exercise.name)
    lms.canvas_zip(tmp_path / "submissions.zip", [upload])
    lms.moodle_zip(tmp_path / "moodle.zip", [upload])
    lms.gradescope_zip(tmp_path / "gradescope.zip", [upload])
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    said, ran = {}, [line for line in commands() if not line.startswith(NOT_HERE)]
    assert sum(line.startswith("txgrade") for line in ran) >= 14
    for line in ran:
        words = shlex.split(line)
        if words[:2] == ["txgrade", "submit"]:
            released = (tmp_path / words[2]).read_bytes()
            fill(tmp_path / words[2])
        run = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            input="3 well measured\n",
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, (line, run.stderr)
        said[line] = run.stdout
        if words[:2] == ["txgrade", "submit"]:
            (tmp_path / words[2]).write_bytes(released)
    words = "\n".join(said.values())
    assert "1 of the roster handed in nothing" in words and "1 marked, 0 left" in words
    assert "ada has 2 points for hide-words now" in words and "--on-seeds" in words
    with open(tmp_path / "results" / "14" / "moodle.csv", encoding="utf-8", newline="") as file:
        (exported,) = csv.DictReader(file)
    assert exported["Grade"] == "6"
    returned = ("canvas-feedback.zip", "moodle-feedback.zip", "gradescope-autograder.zip", "gradescope.csv")
    assert all((tmp_path / "results" / "14" / name).is_file() for name in returned)
    assert "1 notebook of 1 learner in inbox-moodle: 1 with their times" in words
    page = (tmp_path / "results" / "14" / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert "changed from 0 to 2" in page and "The masked pieces are right." in page
    changes = (tmp_path / "results" / "14" / "changes.csv").read_text(encoding="utf-8")
    assert "ada,hide-words,0,2,marked by a person: Masked pieces are right" in changes
    page = (tmp_path / "results" / "14-retake" / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert "variant 1" in page
