"""Lessons, exercises and solutions open, whichever file is newer; links lead on; prompts and checks stay whole."""

import os

import pytest
from test_lab import WRONG

pytestmark = pytest.mark.slow

LESSON, EXERCISE = "notebooks/03_attention.ipynb", "exercises/exercise_03_attention.ipynb"


def tabs(page):
    return page.locator(".lm-DockPanel-tabBar .lm-TabBar-tabLabel").all_inner_texts()


@pytest.mark.parametrize("name", [LESSON, EXERCISE, "solutions/03_attention.ipynb"])
def test_a_copy_opens_that_is_newer_or_older(notebook, course, page, name):
    for when in ((0, 0), None):
        os.utime(course / "my_work" / name, when)
        assert notebook(name).cells()
        assert page.locator(".jp-Dialog").count() == 0


def test_tabs_of_lesson_and_exercise_differ(notebook, page, screenshots):
    notebook(LESSON)
    page.locator(".jp-Notebook:visible a", has_text="03_attention").last.click()
    page.get_by_role("heading", name="Exercise 03").first.wait_for()
    page.screenshot(path=screenshots / "tabs.png")
    assert tabs(page) == ["03_attention.ipynb", "exercise_03_attention.ipynb"]


def test_a_double_click_on_a_prompt_opens_no_source(notebook, page, screenshots):
    exercise = notebook(EXERCISE)
    prompt = next(cell["id"] for cell in exercise.cells() if "<summary>Hint 1" in cell["source"])
    exercise.shown(prompt).locator("summary").first.dblclick()
    page.screenshot(path=screenshots / "double-click.png")
    assert exercise.is_rendered(prompt)


def test_a_check_can_be_neither_deleted_nor_changed(notebook, page):
    exercise = notebook(EXERCISE)
    before = exercise.cell("check-prefix-mask")["source"]
    exercise.shown("check-prefix-mask").locator(".cm-content").click()
    page.keyboard.type("x = ")
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    page.keyboard.press("d")
    assert exercise.cell("check-prefix-mask")["source"] == before


def test_an_exercise_leads_to_the_next_lesson(notebook, page, screenshots):
    exercise = notebook(EXERCISE)
    assert exercise.run_all()
    link = page.locator(".jp-OutputArea a", has_text="ead")
    link.scroll_into_view_if_needed()
    assert page.locator(".jp-OutputArea", has_text="%submit --to FOLDER").last.is_visible()
    assert page.locator(".jp-OutputArea a", has_text="worked solution").count() == 0, "nothing has been tried"
    page.screenshot(path=screenshots / "exercise-end.png")
    link.click()
    page.locator(".jp-Notebook:visible h1", has_text="04").first.wait_for()
    assert tabs(page) == ["exercise_03_attention.ipynb", "04_heads.ipynb"]


def test_an_attempt_opens_the_worked_solution_and_that_leads_back(notebook, page, screenshots):
    exercise = notebook(EXERCISE)
    exercise.type("prefix-mask", WRONG)
    assert exercise.run_all()
    link = page.locator(".jp-OutputArea a", has_text="worked solution")
    link.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "exercise-tried.png")
    link.click()
    back = page.locator(".jp-Notebook:visible a", has_text="Exercise 03")
    back.wait_for()
    back.click()
    page.locator(".jp-Notebook:visible .jp-OutputArea a", has_text="worked solution").wait_for()
    assert tabs(page)[:2] == ["exercise_03_attention.ipynb", "03_attention.ipynb"]


def test_the_first_lesson_maps_the_course_with_the_learners_place(notebook, page, screenshots):
    start = notebook("notebooks/00_start_here.ipynb")
    assert start.run_all()
    output = page.locator(".jp-Notebook:visible .jp-OutputArea", has_text="you are here")
    output.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "map.png")
    assert "hours left" in output.inner_text()
    output.locator("a", has_text="the exercise of 03").click()
    page.locator(".jp-Notebook:visible h1", has_text="Exercise 03").first.wait_for()


def test_help_opens_from_the_first_lesson(notebook, page, screenshots):
    notebook("notebooks/00_start_here.ipynb")
    page.locator(".jp-Notebook:visible a", has_text="Help").first.click()
    page.get_by_role("heading", name="Troubleshooting").wait_for()
    page.screenshot(path=screenshots / "help.png")
    assert page.locator(".jp-Dialog").count() == 0
