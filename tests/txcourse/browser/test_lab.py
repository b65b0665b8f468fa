"""A learner's first hour: open the course, run a lesson, give a wrong and then a right answer in exercise 03."""

import pytest

pytestmark = pytest.mark.slow

WRONG = '''def prefix_mask(n: int, prefix: int) -> Bool[Tensor, "query key"]:
    """True where query i may attend to key j."""
    return torch.ones(n, n).triu().bool() | (torch.arange(n) < prefix)'''
RIGHT = WRONG.replace("triu", "tril")


def test_the_course_opens_at_its_start(page, lab, screenshots):
    page.goto(f"{lab}/?token=browser-test")
    page.locator(".jp-Notebook h1").first.wait_for()
    names = page.locator(".jp-DirListing-itemName")
    names.filter(has_text="03_attention").wait_for()
    page.screenshot(path=screenshots / "start.png")
    assert page.url.endswith("/lab/tree/notebooks/00_start_here.ipynb")
    assert not [name for name in names.all_inner_texts() if name.endswith(".py")]
    assert page.locator(".jp-Dialog, .jp-toastContainer").count() == 0, "Lab asks something before the course begins"


def test_a_lesson_runs_and_shows_its_figures(notebook, page, course, screenshots):
    original = (course / "notebooks/34_flash.ipynb").read_bytes()
    lesson = notebook("notebooks/34_flash.ipynb")
    assert lesson.run_all()
    outputs = [output for cell in lesson.cells() for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) >= 3
    images = page.locator(".jp-Notebook:visible .jp-OutputArea img")
    assert images.count() == len(figures)
    assert images.evaluate_all("images => images.map(image => image.alt)") == [
        figure["metadata"]["image/png"]["alt"] for figure in figures
    ]
    assert all(width > 100 for width in images.evaluate_all("images => images.map(image => image.naturalWidth)"))
    assert page.locator(".jp-Notebook:visible mjx-container").count() > 10
    assert page.locator(".jp-Dialog").count() == 0
    lesson.save()
    assert (course / "my_work/notebooks/34_flash.ipynb").read_bytes() != original
    assert (course / "notebooks/34_flash.ipynb").read_bytes() == original, "the course's own file has changed"
    for number in range(images.count()):
        images.nth(number).scroll_into_view_if_needed()
        page.screenshot(path=screenshots / f"lesson-figure-{number + 1}.png")


def test_a_question_stands_clear_of_the_answers_before_it(notebook, page, screenshots):
    notebook("notebooks/03_attention.ipynb")
    question = page.locator(".jp-Notebook:visible details + p").first
    question.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "quiz.png")
    assert question.evaluate("each => parseFloat(getComputedStyle(each).marginTop)") > 10


def test_exercise_03_tells_wrong_from_right(notebook, page, screenshots):
    exercise = notebook("exercises/exercise_03_attention.ipynb")
    assert exercise.run_all(), "the empty exercise must run to its end"
    page.screenshot(path=screenshots / "exercise-empty.png")

    exercise.type("prefix-mask", WRONG)
    exercise.run("prefix-mask")
    said = exercise.run("check-prefix-mask")
    page.screenshot(path=screenshots / "exercise-wrong.png")
    assert "not yet" in said and "The answer's words look at the future." in said

    exercise.type("prefix-mask", RIGHT)
    exercise.run("prefix-mask")
    said = exercise.run("check-prefix-mask")
    page.screenshot(path=screenshots / "exercise-right.png")
    assert "right" in said and "not yet" not in said
