"""An author's Lab: a notebook opens with its source, whichever of the two is newer, and is saved into both."""

import os

import pytest

pytestmark = pytest.mark.slow

OPTIONS = ("--author",)


@pytest.mark.parametrize("name", ["notebooks/00_start_here", "solutions/03_attention"])
def test_whichever_is_newer(notebook, course, page, name):
    source = course / f"{name}.py"
    text = source.read_text(encoding="utf-8")
    for older in (".py", ".ipynb"):
        for suffix in (".py", ".ipynb"):
            os.utime(course / f"{name}{suffix}", (0, 0) if suffix == older else None)
        opened = notebook(f"{name}.ipynb")
        assert page.locator(".jp-Dialog").count() == 0
        opened.save()
        assert source.read_text(encoding="utf-8") == text and source.stat().st_mtime > 0
