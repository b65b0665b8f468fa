"""Figures of training at scale: what is lost, who holds what, who works when."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from txcourse import figures
from txcourse.figures.scale import HATCHES
from txlib.plots.picture import PALETTE


def test_what_is_below_the_limit_lies_in_the_gray():
    values = {"large": [0.5, -0.25, 0.0], "small": [2**-20, 2**-22, -(2**-21)]}
    (axes,) = figures.magnitudes(values, 2**-10, name="lost", title="A title", alt="A description", xlabel="size").axes
    large, small = (patch.get_data() for patch in axes.patches if hasattr(patch, "get_data"))
    for found, inside in ((large, False), (small, True)):
        filled = [edge for edge, share in zip(found.edges, found.values, strict=False) if share]
        assert all((edge < -10) == inside for edge in filled)
        assert sum(found.values) == pytest.approx(100)
    assert [text.get_text() for text in axes.texts] == ["large", "small", "lost"]


def test_a_ring_adds_up_every_chunk_and_hands_it_around():
    picture = figures.ring(3, title="A title", alt="A description")
    numbers = [[int(text.get_text()) for text in axes.texts] for axes in picture.axes]
    assert [axes.get_xlabel() for axes in picture.axes] == ["before", "add", "add", "replace", "replace"]
    assert numbers[0] == [1] * 9 and numbers[-1] == [3] * 9
    assert numbers[2].count(3) == 3 and all(3 in numbers[2][row : row + 3] for row in (0, 3, 6))


def test_bars_end_where_the_sum_of_the_parts_does():
    ways = {"all": [{"a": 3, "b": 5}] * 2, "halves": [{"a": 1.5, "b": 2.5}] * 2}
    picture = figures.shards(ways, title="A title", alt="A description")
    ends = [max(bar.get_x() + bar.get_width() for bar in axes.patches) for axes in picture.axes]
    assert ends == [8, 4]
    assert picture.axes[0].get_xlim() == picture.axes[1].get_xlim()


def test_a_timetable_shows_all_work_and_all_waiting():
    rows = {
        "stage 0": [(0, 1, "a", "forward"), (3, 2, "b", "backward")],
        "wire": [(1, 1, "a", "travels")],
    }
    (axes,) = figures.timetable({"two workers": rows}, title="A title", alt="A description").axes
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(boxes) == 2 + 3
    assert [box.get_width() for box in boxes if box.get_label()] == [1, 2, 1]
    assert max(box.get_x() + box.get_width() for box in boxes) == 5
    assert [text.get_text() for text in axes.texts] == ["a", "b", "a"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "wire"]
    named = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert named == ["forward", "backward", "travels"]


def test_timetables_have_one_scale_of_time():
    whole, halves = {"0": [(0, 4, "", "forward")]}, {"0": [(0, 1, "", "forward"), (1, 1, "", "forward")]}
    picture = figures.timetable({"whole": whole, "halves": halves}, title="A title", alt="A description")
    assert picture.axes[0].get_xlim() == picture.axes[1].get_xlim()


@pytest.mark.parametrize(
    ("way", "model", "batch"),
    [
        ("data", [None] * 4, [0, 0, 1, 1]),
        ("sharded", [0, 1, 1, 0], [0, 0, 1, 1]),
        ("tensor", [0, 1, 0, 1], [None] * 4),
        ("context", [None] * 4, [0, 1, 0, 1]),
        ("pipeline", [0, 0, 1, 1], [None] * 4),
    ],
)
def test_each_way_cuts_model_and_batch_along_its_axis(way, model, batch):
    (axes,) = figures.cuts({"a way": way}, ranks=2, title="A title", alt="A description").axes
    owners = {to_rgba(color): rank for rank, color in enumerate(PALETTE[:2])}
    found = [owners.get(box.get_facecolor()) for box in axes.patches]
    assert found == [*model, *batch]


def test_a_memory_bar_ends_at_the_sum_of_its_parts():
    ways = {"32 bits": {"weights": 4, "blocks": 8}, "16 bits": {"weights": 2, "blocks": 4}}
    (axes,) = figures.memory(ways, ("a device", 10), title="A title", alt="A description").axes
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == 12
    assert [text.get_text() for text in axes.texts] == ["12 GB", "6 GB", "a device"]
    assert axes.lines[0].get_xdata()[0] == 10


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
