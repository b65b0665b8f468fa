"""What a page shows of a figure: its pixels and what it says of itself."""

import pytest

from txgrade.judging.displayed import _shown
from txlib.plots.picture import bundle

PNG = "iVBORw0KGgo="


def test_a_lessons_picture_keeps_its_text():
    data, metadata = bundle(b"\x89PNG" + bytes(40), "Two lines cross at <eos>.")
    output = {"data": data | {"image/png": PNG}, "metadata": metadata}
    assert _shown(output, figures_only=True) == {"png": PNG, "alt": "Two lines cross at <eos>."}


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"image/png": None}, {"image/png": {"alt": 3}}, {"image/png": {}}, ["alt"], {"image/png": "alt"}],
)
def test_a_figure_without_a_text_is_shown(metadata):
    assert _shown({"data": {"image/png": PNG}, "metadata": metadata}, figures_only=True) == {"png": PNG}
