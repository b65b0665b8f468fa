"""The first page: the tour's stills, and the picture that fills up part by part."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from txcourse.site.landing import BOXES, COLORS, STILLS, diagram, stills
from txcourse.site.stage import PARTS

COURSE = Path(__file__).parents[3]


@pytest.mark.parametrize("parts", range(1, len(PARTS) + 1))
def test_what_is_built_has_its_color_and_its_name(parts):
    picture = ElementTree.fromstring(diagram(parts))
    strokes = [box.get("stroke") for box in picture.iter("rect")]
    assert strokes == [COLORS[part] if part <= parts else "currentColor" for part, *_ in BOXES]
    assert [text.text for text in picture.iter("text")] == [text for *_, text in BOXES]
    named = [text for *_, text in BOXES if text in picture.get("aria-label")]
    assert named == [text for part, *_, text in BOXES if part <= parts]


def test_no_box_covers_another():
    places = [(left, left + width, top) for _, left, top, width, _ in BOXES]
    for one in places:
        assert 0 <= one[0] < one[1] <= 650
        assert sum(one[0] < right and left < one[1] and one[2] == top for left, right, top in places) == 1


def test_the_stills_are_the_tours():
    paragraph, pictures = stills(COURSE)
    assert len(pictures) == len(STILLS) == paragraph.count("](#lesson-00-")
    assert all(picture.startswith(b"\x89PNG") and name in paragraph for name, picture in pictures.items())
    assert "[![]" not in paragraph
