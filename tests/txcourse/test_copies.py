"""A learner's copies: the newest version comes in, and nothing that somebody did is lost."""

import os
import shutil

import nbformat
import pytest
from small_course import ANSWER, EXERCISE, LESSON, SOLUTION, change, sources, write_exercise, write_lesson

from txcourse.copies import Copies
from txgrade.checking.progress import Row, keep
from txgrade.checking.progress import progress as recorded_progress


def earlier(copies):
    """What has been set aside, by name."""
    return {
        path.relative_to(copies.folder / "earlier").as_posix().partition("/")[2]: path
        for path in (copies.folder / "earlier").rglob("*")
        if path.is_file()
    }


def test_a_copy_of_everything_but_sources(course, copies):
    names = {path.relative_to(copies.folder).as_posix() for path in copies.folder.rglob("[!.]*") if path.is_file()}
    assert names == {LESSON, EXERCISE, SOLUTION, "HELP.md", "AGENTS.md"}
    for name in names:
        assert (copies.folder / name).read_bytes() == copies.originals()[name].read_bytes()


def test_what_is_untouched_follows_the_course(course, copies):
    write_lesson(course / LESSON, "print(2)")
    write_exercise(course / EXERCISE, ("Task 1", "Task one"))
    (course / SOLUTION).unlink()
    assert Copies(course).refresh() == []
    for name in (LESSON, EXERCISE):
        assert (copies.folder / name).read_bytes() == (course / name).read_bytes()
    assert not (copies.folder / SOLUTION).exists() and not earlier(copies)


def test_what_an_exercise_reads_comes_along(course):
    notebook = nbformat.read(course / EXERCISE, as_version=4)
    notebook.cells[0].metadata["data"] = ["../texts", "numbers.txt", "../../elsewhere"]
    nbformat.write(notebook, course / EXERCISE)
    for name in ("texts/one.txt", "exercises/numbers.txt", "../elsewhere", "other/two.txt"):
        (course / name).parent.mkdir(exist_ok=True)
        (course / name).write_text(name)
    copies = Copies(course)
    copies.refresh()
    for name in ("texts/one.txt", "exercises/numbers.txt"):
        assert (copies.folder / name).read_text() == name
    assert not (copies.folder / "other").exists()


def test_what_is_touched_stays_while_the_course_does(course, copies):
    change(copies.folder / LESSON, "cell-0", "print(3)")
    before = (copies.folder / LESSON).read_bytes()
    assert Copies(course).refresh() == []
    assert (copies.folder / LESSON).read_bytes() == before


def test_what_was_only_run_is_set_aside_too(course, copies):
    change(copies.folder / LESSON, "cell-0")
    ran = (copies.folder / LESSON).read_bytes()
    write_lesson(course / LESSON, "print(2)")
    said = Copies(course).refresh()
    assert said[0].startswith(f"my_work/{LESSON} is a fresh copy now; yours is kept as my_work/earlier/")
    assert (copies.folder / LESSON).read_bytes() == (course / LESSON).read_bytes()
    assert earlier(copies)[LESSON].read_bytes() == ran


def test_answers_are_put_into_the_newer_exercise(course, copies):
    mine = copies.folder / EXERCISE
    change(mine, "causal-mask", ANSWER)
    before = mine.read_bytes()
    write_exercise(course / EXERCISE, ("Task 1", "Task one"), ("over the keys", "over all keys"))
    said = Copies(course).refresh()
    assert said[0].startswith(f"my_work/{EXERCISE} is a fresh copy now, with your answers; yours is kept as ")
    assert sources(mine) == sources(course / EXERCISE) | {"causal-mask": ANSWER}  # and the other task's new stub
    assert earlier(copies)[EXERCISE].read_bytes() == before
    assert Copies(course).refresh() == []


def test_half_an_answer_is_one(course, copies):
    mine = copies.folder / EXERCISE
    half = sources(mine)["attention"].replace("raise NotImpl", "scores = q @ k.mT\n    raise NotImpl")
    change(mine, "attention", half)
    write_exercise(course / EXERCISE, ("over the keys", "over all keys"))
    Copies(course).refresh()
    assert sources(mine)["attention"] == half


def test_an_answer_whose_task_is_gone_is_named(course, copies):
    change(copies.folder / EXERCISE, "causal-mask", ANSWER)
    write_exercise(course / EXERCISE, without="causal-mask")
    said = "\n".join(Copies(course).refresh())
    assert "it has no task causal-mask any more: that answer is only in the kept one" in said
    assert sources(earlier(copies)[EXERCISE])["causal-mask"] == ANSWER


@pytest.mark.parametrize("content", [b"", b'{"cells": [', b"\xff"])
def test_a_broken_copy_is_set_aside(course, copies, content):
    (copies.folder / EXERCISE).write_bytes(content)
    write_exercise(course / EXERCISE, ("Task 1", "Task one"))
    Copies(course).refresh()
    assert (copies.folder / EXERCISE).read_bytes() == (course / EXERCISE).read_bytes()
    assert earlier(copies)[EXERCISE].read_bytes() == content


def test_a_deleted_copy_comes_back(course, copies):
    (copies.folder / LESSON).unlink()
    assert Copies(course).refresh() == []
    assert (copies.folder / LESSON).read_bytes() == (course / LESSON).read_bytes()


def test_answers_to_an_exercise_that_is_gone_stay(course, copies):
    change(copies.folder / EXERCISE, "causal-mask", ANSWER)
    (course / EXERCISE).unlink()
    assert Copies(course).refresh()[0] == f"{EXERCISE} is no longer part of the course; yours stays where it is"
    assert sources(copies.folder / EXERCISE)["causal-mask"] == ANSWER
    assert Copies(course).refresh() == []


def test_answers_and_points_follow_an_exercise_to_its_new_number(course, copies, monkeypatch):
    monkeypatch.setenv("TXGRADE_HOME", str(course / ".txgrade"))
    keep([Row("03_sample", "The mask", "causal-mask", 2, 2, "2026-01-01T00:00:00+00:00")])
    change(copies.folder / EXERCISE, "causal-mask", ANSWER)
    before = (copies.folder / EXERCISE).read_bytes()
    new = "exercises/exercise_13_sample.ipynb"
    (course / EXERCISE).rename(course / new)
    said = "\n".join(Copies(course).refresh())
    assert f"my_work/{new} has your answers to tasks that were in {EXERCISE}: causal-mask" in said
    assert sources(copies.folder / new) == sources(course / new) | {"causal-mask": ANSWER}
    assert not (copies.folder / EXERCISE).exists() and earlier(copies)[EXERCISE].read_bytes() == before
    (row,) = recorded_progress()
    assert (row.exercise, row.task, row.points) == ("13_sample", "causal-mask", 2)
    assert Copies(course).refresh() == []


def test_a_broken_exercise_stops_nothing_when_another_is_new(course, copies):
    change(copies.folder / EXERCISE, "causal-mask", ANSWER)
    (course / "exercises/exercise_12_broken.ipynb").write_text("{")
    new = "exercises/exercise_13_sample.ipynb"
    (course / EXERCISE).rename(course / new)
    Copies(course).refresh()
    assert sources(copies.folder / new)["causal-mask"] == ANSWER


def test_an_answer_follows_its_task_out_of_an_exercise_that_stays(course, copies):
    change(copies.folder / EXERCISE, "causal-mask", ANSWER)
    new = "exercises/exercise_13_sample.ipynb"
    shutil.copy(course / EXERCISE, course / new)
    write_exercise(course / EXERCISE, without="causal-mask")
    said = "\n".join(Copies(course).refresh())
    assert "only in the kept one" not in said and f"my_work/{new} has your answers" in said
    assert sources(copies.folder / new)["causal-mask"] == ANSWER
    assert "causal-mask" not in sources(copies.folder / EXERCISE)


def test_answers_given_in_the_courses_own_file_come_along(course):
    """As in VS Code before the first `txcourse lab`; then a newer archive is unpacked over the course."""
    change(course / EXERCISE, "causal-mask", ANSWER)
    copies = Copies(course)
    copies.refresh()
    write_exercise(course / EXERCISE, ("Task 1", "Task one"))
    assert "with your answers" in copies.refresh()[0]
    assert sources(copies.folder / EXERCISE)["causal-mask"] == ANSWER


def test_a_lost_record_loses_nothing(course, copies):
    change(copies.folder / LESSON, "cell-0", "print(3)")
    (copies.folder / ".taken.json").write_text("{")
    Copies(course).refresh()
    assert sources(earlier(copies)[LESSON]) == {"cell-0": "print(3)"}


@pytest.mark.parametrize("given", ["{course}/my_work/{name}", "{course}/{name}", "{name}"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_fresh_copy(course, copies, given, keep):
    mine = copies.folder / EXERCISE
    change(mine, "causal-mask", ANSWER)
    before = mine.read_bytes()
    said = copies.renew(given.format(course=course, name=EXERCISE), keep_answers=keep)
    assert said[0].startswith(f"my_work/{EXERCISE} is a fresh copy now") and ("with your answers" in said[0]) == keep
    expected = sources(course / EXERCISE) | ({"causal-mask": ANSWER} if keep else {})
    assert sources(mine) == expected
    (kept,) = earlier(copies).values()
    assert kept.read_bytes() == before and said[0].endswith(kept.relative_to(course).as_posix())


def test_a_fresh_copy_of_what_is_fresh(course, copies):
    assert copies.renew(LESSON) == [f"my_work/{LESSON} is as fresh as the course has it"]
    assert not earlier(copies)


def test_a_fresh_copy_of_nothing(course, copies):
    with pytest.raises(FileNotFoundError, match="no notebook nowhere.ipynb: give e.g. exercises/exercise_"):
        copies.renew("nowhere.ipynb")


def test_whose_notebook_is_meant(course, copies):
    """Who says exercises/… means their copy, unless they have worked in the course's own file."""
    original, copy = course / EXERCISE, copies.folder / EXERCISE
    assert copies.yours(original) == copies.yours(copy) == copy
    elsewhere = course / "elsewhere.ipynb"
    shutil.copy(copy, elsewhere)
    assert copies.yours(elsewhere) == elsewhere
    change(original, "causal-mask", ANSWER)
    assert copies.yours(original) == original
    shutil.rmtree(copies.folder)
    assert Copies(course).yours(original) == original


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_course_that_belongs_to_somebody_else(course):
    course.chmod(0o555)
    with pytest.raises(PermissionError, match="into a folder of your own"):
        Copies(course).refresh()
