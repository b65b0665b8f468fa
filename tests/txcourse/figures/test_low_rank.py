"""Products of matrices are drawn to scale."""

from txcourse import figures


def test_factors_stand_side_by_side_with_their_own_sizes():
    rows = {"dense": [("P", 6, 6), ("v", 6, 1)], "short": [("P", 6, 2), ("v", 2, 1)]}
    picture = figures.products(rows, title="A title", alt="A description")
    (axes,) = picture.axes
    assert [(each.get_height(), each.get_width()) for each in axes.patches] == [(6, 6), (6, 1), (6, 2), (2, 1)]
    ends = [each.get_x() + each.get_width() for each in axes.patches]
    assert all(end < each.get_x() for end, each in zip(ends, axes.patches[1:], strict=False))
    assert {"dense", "short", "P", "v", "·"} == {text.get_text() for text in axes.texts}
    assert picture.alt == "A description"
