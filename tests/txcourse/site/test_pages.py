"""How a lesson's sections are named, and how docstrings are turned into what Sphinx reads."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from txcourse.site import reference
from txcourse.site.docstrings import as_rst
from txcourse.site.places import put_labels, sections


def notebook():
    return new_notebook(
        cells=[
            new_markdown_cell("# 06 · The block\n\nBefore all."),
            new_markdown_cell(
                "## 3 Build it\n\n### 3.1 The residual\n\n### RMS norm\n\nText.\n\n```\n## no heading\n```"
            ),
            new_code_cell("## a comment"),
            new_markdown_cell("### Why not?\n\n## 10 Quiz\n\n### More\n\n## Summary"),
        ]
    )


def test_sections_have_names_that_stay():
    found = sections("06_block", notebook())
    assert [each.label for each in found] == [
        "lesson-06",
        "lesson-06-3",
        "lesson-06-3-1",
        "lesson-06-3-a",
        "lesson-06-3-b",
        "lesson-06-10",
        "lesson-06-10-a",
        "lesson-06-a",
    ]
    assert found[0].text.strip().endswith("Before all.") and "## no heading" in found[3].text
    tasks = new_notebook(cells=[new_markdown_cell("# Exercise 03"), new_markdown_cell("### Task 2 · A mask   ●●○○○")])
    assert sections("exercise_03_attention", tasks)[1].label == "exercise-03-2"


def test_labels_stand_above_headings():
    labeled = notebook()
    put_labels("06_block", labeled)
    assert labeled.cells[1].source.startswith("(lesson-06-3)=\n## 3 Build it\n\n(lesson-06-3-1)=\n### 3.1")
    assert labeled.cells[1].source.endswith("```\n## no heading\n```")
    assert [each.title for each in sections("06_block", labeled)] == [
        each.title for each in sections("06_block", notebook())
    ]


def test_docstrings():
    said = """Soft `Mask`s: a * b | c, `x_`, name_ and **bold**.

    indented | as it is

More.

Args:
    q: of `shape`; 2 * d."""
    assert "\n".join(as_rst(said.splitlines())) == (
        "Soft ``Mask``\\ s: a \\* b \\| c, ``x_``, name\\_ and **bold**.\n"
        "\n::\n\n    indented | as it is\n\nMore.\n\nArgs:\n    q: of ``shape``; 2 \\* d."
    )


def test_every_public_name_has_its_place():
    made = reference.pages()
    for package in reference.packages():
        for file, names in reference.members(package).items():
            text = made[f"reference/{reference.short(package)}/{file}.rst"]
            for name in names:
                directives = (
                    f"autoclass:: {package}.{name}\n",
                    f"autofunction:: {package}.{name}\n",
                    f"py:data:: {name}\n",
                )
                assert any(directive in text for directive in directives), name
    assert "autofunction:: txlib.attention.causal" in made["reference/attention/masks.rst"]
    assert "txlib.plots" in reference.packages()
