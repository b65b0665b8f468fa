"""The library's source that lessons open, with links to the sections that build its parts."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from txcourse.site.places import sections
from txcourse.site.sources import BUILT, number, parts, put_sources

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
PAGES = {path.stem.split("_")[0]: path.stem for path in NOTEBOOKS.glob("*.ipynb")}


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", BUILT)
def test_each_part_is_in_what_the_lesson_opens(name):
    outputs = [output for cell in read(name).cells for output in cell.get("outputs", [])]
    shown = "\n".join(output.get("data", {}).get("text/markdown", "") for output in outputs)
    assert len(parts(shown, BUILT[name])) == len(BUILT[name])


def test_each_link_leads_to_a_section():
    labels = {label for built in BUILT.values() for label, _ in built.values() if label.count("-") > 1}
    there = {
        section.label
        for page in {number(label) for label in labels}
        for section in sections(PAGES[page], read(PAGES[page]))
    }
    assert labels <= there


def opened(name, pages):
    source = "```python\ndef f(q):\n    score = (q * scale) @ k\n    score = score + bias\n```"
    output = new_output("execute_result", {"text/markdown": source})
    notebook = new_notebook(cells=[new_code_cell("show_source(f)", outputs=[output])])
    put_sources(name, notebook, pages)
    return notebook.cells[0].outputs[0].data


def test_a_link_stands_at_the_height_of_its_line():
    html = opened("03_attention", {"03": "03_attention", "05": "05_positions"})["text/html"]
    assert '<li style="--line: 1"><a href="03_attention.html#lesson-03-3">' in html
    assert '<li style="--line: 2"><a href="05_positions.html#lesson-05-4">' in html


def test_parts_of_lessons_that_are_not_there_have_no_link():
    assert "lesson-05" not in opened("03_attention", {"03": "03_attention"})["text/html"]
    assert "text/html" not in opened("04_heads", {"04": "04_heads"})
