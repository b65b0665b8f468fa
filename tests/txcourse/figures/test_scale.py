"""Figures of training at scale: what is lost, who holds what, who works when."""

import pytest
from matplotlib.patches import Rectangle

from txcourse import figures
from txcourse.figures.scale import HATCHES


def test_what_is_below_the_limit_lies_in_the_gray():
    values = {"large": [0.5, -0.25, 0.0], "small": [2**-20, 2**-22, -(2**-21)]}
    (axes,) = figures.magnitudes(values, 2**-10, name="lost", title="A title", alt="A description", xlabel="size").axes
    large, small = (patch.get_data() for patch in axes.patches if hasattr(patch, "get_data"))
    for found, inside in ((large, False), (small, True)):
        filled = [edge for edge, share in zip(found.edges, found.values, strict=False) if share]
        assert all((edge < -10) == inside for edge in filled)
        assert sum(found.values) == pytest.approx(100)
    assert [text.get_text() for text in axes.texts] == ["large", "small", "lost"]


def test_each_rank_says_how_much_of_the_sum_it_holds():
    steps = [[[1, 1], [1, 1]], [[1, 2], [2, 1]], [[2, 2], [2, 2]]]
    picture = figures.ring(steps, ["before", "add", "replace"], title="A title", alt="A description")
    numbers = [[int(text.get_text()) for text in axes.texts] for axes in picture.axes]
    assert numbers == [[count for row in step for count in row] for step in steps]
    assert [axes.get_xlabel() for axes in picture.axes] == ["before", "add", "replace"]


def test_bars_end_where_the_sum_of_the_parts_does():
    ways = {"all": [{"a": 3, "b": 5}] * 2, "halves": [{"a": 1.5, "b": 2.5}] * 2}
    picture = figures.shards(ways, title="A title", alt="A description")
    ends = [max(bar.get_x() + bar.get_width() for bar in axes.patches) for axes in picture.axes]
    assert ends == [8, 4]
    assert picture.axes[0].get_xlim() == picture.axes[1].get_xlim()


def test_a_timetable_shows_all_work_and_all_waiting():
    schedule = [[(0, 1, "0"), (3, 2, "0")], [(1, 1, "0"), (2, 2, "0")]]
    (axes,) = figures.pipeline({"two stages": schedule}, title="A title", alt="A description").axes
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(boxes) == 2 + 4
    assert max(box.get_x() + box.get_width() for box in boxes) == 5
    assert [text.get_text() for text in axes.texts] == ["0"] * 4
    assert [box.get_width() for box in boxes if box.get_label() == "backward"] == [2, 2]


def test_smaller_pieces_of_a_batch_are_drawn_smaller():
    whole, halves = [[(0, 1, "0"), (1, 2, "0")]], [[(0, 0.5, "0"), (0.5, 0.5, "1"), (1, 1.0, "0"), (2, 1.0, "1")]]
    picture = figures.pipeline({"whole": whole, "halves": halves}, title="A title", alt="A description")
    for axes in picture.axes:
        boxes = [box for box in axes.patches if box.get_label() in ("forward", "backward")]
        assert sum(box.get_width() for box in boxes) == 3
        assert sum(box.get_width() for box in boxes if box.get_label() == "forward") == 1
    assert picture.axes[0].get_xlim() == picture.axes[1].get_xlim()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_both_matrices_without_a_gap_and_sum_once(ranks):
    (axes,) = figures.split_network(ranks, title="A title", alt="A description").axes
    hatched = [[box for box in axes.patches if box.get_hatch() == hatch] for hatch in HATCHES[:ranks]]
    wide = [box for box in axes.patches if box.get_width() == 3 * ranks]
    columns = sorted((own[0].get_x(), own[0].get_x() + own[0].get_width()) for own in hatched)
    assert columns[0][0] == wide[0].get_x() and columns[-1][1] == wide[0].get_x() + 3 * ranks
    assert all(one[1] == other[0] for one, other in zip(columns, columns[1:], strict=False))
    rows = [
        own[2].get_y() + 0.5 * own[2].get_height() - (own[1].get_y() + 0.5 * own[1].get_height()) for own in hatched
    ]
    assert rows == pytest.approx([3 * ((ranks - 1) / 2 - rank) for rank in range(ranks)])
    said = [text.get_text() for text in axes.texts]
    assert said.count("GELU\n⟶") == ranks and said.count("+") == 1 and said.count("all-reduce") == 1
    assert all(f"rank {rank}" in said for rank in range(ranks))


def test_budgets_have_points_a_curve_and_a_star():
    points = {"1e9": ([10, 100], [3.0, 2.5]), "1e10": ([100, 1000], [2.4, 2.6])}
    best = {"1e9": (50, 2.6), "1e10": (200, 2.3)}
    (axes,) = figures.isoflops(points, points, best, title="A title", alt="A description").axes
    assert [line.get_marker() for line in axes.lines] == ["o", "None", "*"] * 2
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.texts] == ["1e9", "1e10"]
