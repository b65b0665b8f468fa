"""Sets of points are drawn with the clusters that somebody sees in them."""

import torch
from matplotlib.patches import Ellipse

from txcourse import figures


def test_each_cluster_is_an_ellipse_of_two_deviations():
    points, mean = torch.randn(2, 7, 2), torch.tensor([[[0.0, 1.0], [2.0, 3.0]], [[-1.0, 0.0], [4.0, 4.0]]])
    deviation = torch.tensor([0.5, 0.25]).expand(2, 2, 2)
    seen = {"truth": (mean, deviation), "net": (mean + 1, deviation)}
    picture = figures.clusters(points, seen, title="A title", alt="A description", names=["one", "two"])
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["one", "two"]
    for number, axes in enumerate(picture.axes):
        assert torch.tensor(axes.lines[0].get_xydata()).float().equal(points[number])
        drawn = [each for each in axes.patches if isinstance(each, Ellipse)]
        centers = [*mean[number].tolist(), *(mean[number] + 1).tolist()]
        assert [list(each.get_center()) for each in drawn] == centers
        assert {(each.width, each.height) for each in drawn} == {(2.0, 1.0)}
    assert {text.get_text() for text in picture.axes[0].texts} == {"truth", "net"}
    assert picture.alt == "A description"


def test_a_point_is_the_larger_the_more_weight_it_has():
    points, weights = torch.randn(1, 3, 2), torch.tensor([[0.1, 0.6, 0.3]])
    cluster = (torch.zeros(1, 1, 2), torch.ones(1, 1, 2))
    (axes,) = figures.clusters(points, {"net": cluster}, title="A title", alt="", weights=weights).axes
    sizes = axes.collections[0].get_sizes().tolist()
    assert sorted(range(3), key=sizes.__getitem__) == [0, 2, 1]


def test_latents_are_few_and_each_query_has_an_answer():
    for asked, latents in (0, 3), (10, 2):
        (axes,) = figures.perceiver(asked=asked, title="A title", alt="").axes
        colors = [each.get_facecolor() for each in axes.patches]
        assert len(axes.patches) == 16 + 4 * latents + asked
        assert len(set(colors)) == 2 + bool(asked)
        assert len(axes.lines) == 16 * 4 + (4 * asked if asked else 1)  # looks; or the way back to the array
        words = {text.get_text() for text in axes.texts}
        assert ("answers\no rows" in words) == bool(asked)
