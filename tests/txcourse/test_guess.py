"""A guess before an experiment, and its result: what both show without a script, and what they refuse."""

import json
from pathlib import Path

import nbformat
import pytest

from txcourse.guess import guesses, mark, script
from txcourse.lesson import predict, predicted
from txcourse.lessons import problems

OPTIONS = "falls to almost 0", "stays", "rises <b>"


def test_a_question_is_readable_text_without_a_script():
    question = predict("leak", "What does the loss do?", *OPTIONS)
    assert repr(question) == "Guess: What does the loss do?\n  - falls to almost 0\n  - stays\n  - rises <b>"
    static = question._repr_html_().partition("<script>")[0]
    assert "<p>Guess: What does the loss do?</p><ul><li>falls to almost 0</li>" in static
    assert "<li>rises &lt;b&gt;</li>" in static and "<input" not in static


def test_a_result_is_readable_text_without_a_script():
    predict("leak", "What does the loss do?", *OPTIONS)
    result = predicted("leak", "falls to almost 0", "It reads the answer.")
    assert repr(result) == "Right: falls to almost 0. It reads the answer."
    assert ">Right: falls to almost 0.</span> It reads the answer.</p>" in result._repr_html_()


def test_outputs_are_the_same_each_time():
    first, second = (predict("leak", "What?", *OPTIONS)._repr_html_() for _ in range(2))
    assert first == second


def test_a_result_names_one_of_the_options():
    predict("leak", "What does the loss do?", *OPTIONS)
    with pytest.raises(
        ValueError, match="'falls' is no option of the guess 'leak': choose one of 'falls to almost 0', "
    ):
        predicted("leak", "falls")
    with pytest.raises(ValueError, match=r"the guess 'unasked': first run the cell predict\('unasked', …\)"):
        predicted("unasked", "falls")


@pytest.mark.parametrize("name", ["", "No mask", "no_mask", "a--b", '"'])
def test_a_name_fits_into_the_page(name):
    with pytest.raises(ValueError, match="can't name a guess: use small letters"):
        predict(name, "What?", *OPTIONS)


@pytest.mark.parametrize("options", [(), ("stays",), ("stays", "stays")])
def test_a_question_has_options(options):
    with pytest.raises(ValueError, match="the guess 'leak' needs two or more different options"):
        predict("leak", "What?", *options)


def test_guesses_are_found_in_code():
    code = [
        'predict("a", "What?", "b", "c")\npredicted("a", "b")',
        "x = predict(\n    'd-e', 'f', 'g', 'h')",
        "model.predict('i')",
    ]
    assert guesses(code) == ["a", "d-e"] and guesses(code, "predicted") == ["a"]
    assert guesses(["def predict(theta):", "predict(theta)"]) == []


def test_the_map_counts_them():
    assert mark(["a", "b"]) == '<span data-guesses="a b">2 guesses</span>'
    assert mark(["a"]).endswith(">1 guess</span>")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('predict("a", "?", "b", "c")\npredicted("a", "b")', ""),
        ('predict("a", "?", "b", "c")', 'has 1 predict("a", …) and 0 predicted("a", …); write one of each'),
        ('predicted("a", "b")', 'has 0 predict("a", …) and 1 predicted("a", …); write one of each'),
        ('predict("b", "?", "b", "c")\npredicted("b", "b")', "'b' is also asked in 02_y.py; give it another name"),
    ],
)
def test_a_lesson_resolves_its_guesses_and_names_them_alone(code, said, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_x.py").write_text(code)
    (tmp_path / "notebooks" / "02_y.py").write_text('predict("b", "?", "b", "c")\npredicted("b", "c")')
    first = nbformat.v4.new_markdown_cell(
        "# 01 · X\n\nabout 5 minutes", metadata={"lesson": {"part": "I", "builds": "x"}}
    )
    lesson = nbformat.v4.new_notebook(cells=[first, nbformat.v4.new_code_cell(code)])
    found = list(problems(tmp_path, "01_x", lesson))
    assert len(found) == bool(said) and said in "".join(found)


def test_lessons_carry_the_script_of_today():
    """An output holds the script: after a change of guess.js, `make notebooks` renews the lessons."""
    found = 0
    for path in sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                html = "".join(output.get("data", {}).get("text/html", ()))
                if "txcourse guess" in html:
                    assert html.endswith(script()), f"{path.name}: {cell['source'][-1]} is older; build it anew"
                    found += 1
    assert found >= 7
