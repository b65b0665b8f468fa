"""Pictures in gray, and what is laid over them."""

import pytest
import torch

from txlib import plots


def drawn(**options):
    return plots.pictures(torch.arange(24.0).view(2, 3, 4), title="A title", alt="A description", **options)


def test_each_picture_has_its_own_panel_and_its_own_scale():
    picture = drawn(names=["one", "two"])
    assert [axes.get_title(loc="center") for axes in picture.axes] == ["one", "two"]
    for number, axes in enumerate(picture.axes):
        (image,) = axes.images
        assert image.get_array().tolist() == torch.arange(24.0).view(2, 3, 4)[number].tolist()
        assert image.get_clim() == (12 * number, 12 * number + 11)
    assert picture.alt == "A description"


def test_a_span_is_shared():
    assert [axes.images[0].get_clim() for axes in drawn(span=(-1, 1)).axes] == [(-1, 1), (-1, 1)]


def test_heat_covers_the_whole_picture_whatever_its_size():
    picture = drawn(heat=torch.tensor([[[0.0, 2.0]], [[1.0, 4.0]]]))
    for axes, shares in zip(picture.axes, ([0, 1], [0.25, 1]), strict=True):
        photo, heat = axes.images
        assert list(heat.get_extent()) == list(photo.get_extent()) == [-0.5, 3.5, 2.5, -0.5]
        assert heat.get_array()[0, :, 3].tolist() == shares


def test_arrows_go_from_row_and_column_to_row_and_column():
    picture = drawn(arrows=[[((0, 1), (2, 3), 1.0)], []], marks=[(0, 1), (2, 2)])
    first, second = picture.axes
    (arrow,) = first.texts
    assert (arrow.xyann, arrow.xy) == ((1, 0), (3, 2))
    assert not second.texts
    assert [each.get_xydata().tolist() for each in (first.lines[0], second.lines[0])] == [[[1, 0]], [[2, 2]]]


def test_panels_stand_in_rows():
    picture = plots.pictures(torch.zeros(6, 2, 2), columns=3, title="A title", alt="A description")
    assert len(picture.axes) == 6
    assert picture.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


@pytest.mark.parametrize("what", ["names", "marks", "arrows"])
def test_one_entry_for_each_picture(what):
    given = {"names": ["one"], "marks": [(0, 0)], "arrows": [[]]}[what]
    with pytest.raises(ValueError, match=f"{what} holds 1 entries for 2 pictures: give one for each"):
        drawn(**{what: given})
