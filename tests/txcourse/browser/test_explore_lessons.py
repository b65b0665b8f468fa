"""Every view that a lesson ships comes alive, by its keys too, and what it says is there."""

import json
from pathlib import Path

import pytest
from exploring import said

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


class Shipped:
    """An output as it stands in a notebook."""

    def __init__(self, data: dict):
        self.html = "".join(data["text/html"])

    def _repr_mimebundle_(self):
        return {"text/html": self.html}, {}


def shipped(path: Path) -> list[Shipped]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    return [Shipped(data) for data in outputs if any("data-explore" in line for line in data.get("text/html", ()))]


VIEWS = [
    pytest.param(view, id=f"{path.stem}-{number}")
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    for number, view in enumerate(shipped(path), start=1)
]


def test_lessons_have_views():
    sources = [path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.py")]
    assert len(VIEWS) == sum(source.count("explore.") for source in sources) > 8


@pytest.mark.parametrize("view", VIEWS)
def test_a_lessons_view_comes_alive(shown, view):
    page = shown(view)
    assert page.locator("[data-alive]").count() == 1
    assert page.get_by_role("img").count() == 1
    control, texts = page.get_by_role("slider").or_(page.get_by_role("combobox")).first, {said(page)}
    for key in ("End", "Home", "ArrowRight"):
        control.press(key)
        texts.add(said(page))
    assert "" not in texts and len(texts) > 1
