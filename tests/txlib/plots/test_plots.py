"""Figures: each carries its description, and draws what it was given."""

from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO

import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image, ImageChops

from txlib import plots
from txlib.attention import causal, full, sliding_window
from txlib.plots.picture import GRAY, MAX_INCHES, contrast, ink, smaller, words_on

WEIGHTS = torch.tensor([[0.25, 0.75], [0.5, 0.5]])


def png_of(picture: plots.Picture) -> tuple[bytes, dict]:
    data, metadata = picture._repr_mimebundle_()
    return data["image/png"], metadata["image/png"]


@pytest.mark.parametrize(
    "picture",
    [
        plots.heatmap(WEIGHTS, title="A title", alt="A description"),
        plots.heads(WEIGHTS[None], title="A title", alt="A description"),
        plots.mask(causal(), 4, alt="A description"),
        plots.lines(
            {"a": [1.0, 2.0], "b": ([3, 4], [1.0, 2.0])}, title="A title", alt="A description", xlabel="x", ylabel="y"
        ),
        plots.bars({"a": 1.0}, title="A title", alt="A description", xlabel="x"),
        plots.ranges({"a": (0.0, 1.0, 3.0)}, title="A title", alt="A description", xlabel="x", mark=0.5),
        plots.shares({"a": {"x": 1.0, "y": 2.0}}, title="A title", alt="A description", xlabel="x"),
        plots.landscapes({"a": [[0.0, 1.0], [2.0, 3.0]]}, title="A title", alt="A description"),
    ],
)
def test_a_picture_is_a_png_with_its_description(picture):
    png, metadata = png_of(picture)
    assert png.startswith(b"\x89PNG")
    assert metadata["alt"] == "A description"
    assert metadata["width"] == int.from_bytes(png[16:20], "big") // 2
    assert repr(picture) == "Picture: A description"


class Tags(HTMLParser):
    """The tags of some HTML with their attributes, as a browser reads them."""

    def __init__(self, html: str):
        super().__init__()
        self.opened: list[tuple[str, dict]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.opened.append((tag, dict(attrs)))


@pytest.mark.parametrize("alt", ["<eos> ends it", "\"double\" and 'single' & more", "two\nlines", "αβγ → √d"])
def test_the_html_is_a_figure_whose_image_has_the_description_and_the_same_pixels(alt):
    data, metadata = plots.bars({"a": 1.0}, title="A title", alt=alt, xlabel="x")._repr_mimebundle_()
    (outer, ground), (inner, image) = Tags(data["text/html"]).opened
    assert (outer, inner) == ("figure", "img")
    assert image["alt"] == alt
    assert b64decode(image["src"].removeprefix("data:image/png;base64,")) == data["image/png"]
    assert int(image["width"]) == metadata["image/png"]["width"]
    assert "background: white" in ground["style"]


def test_a_picture_has_few_colors_and_nobody_sees_it():
    weights = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    figure = plots.heatmap(weights, title="A title", alt="").figure
    file = BytesIO()
    figure.savefig(file, format="png", dpi=144, facecolor="white")
    before, after = (Image.open(BytesIO(png)) for png in (file.getvalue(), smaller(file.getvalue())))
    assert after.mode == "P" and len(smaller(file.getvalue())) < len(file.getvalue()) / 2
    assert after.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    changes = ImageChops.difference(before.convert("RGB"), after.convert("RGB"))
    assert max(most for _, most in changes.getextrema()) <= 16


def test_a_picture_of_very_many_colors_keeps_them():
    noise = torch.randint(256, (64 * 64 * 3,), generator=torch.Generator().manual_seed(0))
    every = Image.frombytes("RGB", (64, 64), bytes(noise.tolist()))
    file = BytesIO()
    every.save(file, "png")
    after = Image.open(BytesIO(smaller(file.getvalue())))
    assert after.mode == "RGB" and not ImageChops.difference(every, after).getbbox()


def test_a_heatmap_prints_its_numbers_and_names():
    picture = plots.heatmap(WEIGHTS, title="Shares", alt="", rows=["der", "hund"], columns=["the", "dog"])
    (axes,) = picture.axes
    assert [text.get_text() for text in axes.texts] == [".25", ".75", ".50", ".50"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["der", "hund"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["the", "dog"]
    assert axes.get_title(loc="left") == "Shares"


def test_colors_without_numbers_have_a_scale():
    signs = torch.tensor([[0.5, -2.0], [1.0, 0.0]])
    for picture, label, lowest, highest in (
        (plots.heatmap(WEIGHTS, title="", alt="", numbers=False), "value", 0, 0.75),
        (plots.heatmap(signs, title="", alt="", diverging=True), "value", -2, 2),
        (plots.heads(WEIGHTS.expand(3, 2, 2), title="", alt=""), "weight", 0, 1),
    ):
        assert picture.axes[-1].get_ylim() == (lowest, highest)
        assert picture.axes[-1].get_ylabel() == label
    for picture in (
        plots.heatmap(WEIGHTS, title="", alt=""),
        plots.heads(WEIGHTS[None], title="", alt="", numbers=True),
        plots.heads(WEIGHTS[None], title="", alt="", bar=False),
    ):
        assert len(picture.axes) == 1


def test_a_range_goes_from_the_least_to_the_greatest_with_a_dot_at_the_mean():
    (axes,) = plots.ranges({"a": (0.0, 1.0, 3.0)}, title="", alt="", xlabel="").axes
    line, dot = axes.lines
    assert list(line.get_xdata()) == [0.0, 3.0] and list(dot.get_xdata()) == [1.0]


def test_ranges_of_a_group_share_a_color_that_the_legend_names():
    values = {name: (0.0, 1.0, 3.0) for name in "abc"}
    (axes,) = plots.ranges(values, groups={"first": ["a", "c"], "second": ["b"]}, title="", alt="", xlabel="").axes
    assert [dot.get_color() for dot in axes.lines[1::2]] == [plots.PALETTE[index] for index in (0, 1, 0)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["first", "second"]


def test_a_line_has_the_color_that_it_is_given():
    (axes,) = plots.lines(
        {"a": [1, 2], "b": [2, 1]}, colors={"a": plots.PALETTE[2]}, title="", alt="", xlabel="", ylabel=""
    ).axes
    assert axes.lines[0].get_color() == ink(plots.PALETTE[2], 3)
    assert axes.lines[1].get_color() == ink(plots.PALETTE[1], 3)


def test_a_heatmap_has_a_color_bar_that_says_what_it_measures_and_spans_what_it_is_told():
    picture = plots.heatmap(WEIGHTS, title="", alt="", bar="loss (nats)", span=(0.25, 0.75), numbers=True)
    axes, bar = picture.axes
    assert bar.get_ylabel() == "loss (nats)"
    assert axes.images[0].get_clim() == (0.25, 0.75)
    assert [text.get_color() for text in axes.texts] == ["black", "white", "black", "black"]


def test_names_of_columns_stand_upright_only_where_cells_are_narrow():
    long, short = ["post-norm,\nwarm-up", "none"], ["a", "⟨end⟩"]
    for columns, size, rotation in ((long, 0.5, 90), (long, 1.0, 0), (short, 0.5, 0), (short, 0.4, 90)):
        picture = plots.heatmap(WEIGHTS, title="", alt="", columns=columns, size=size)
        assert {label.get_rotation() for label in picture.axes[0].get_xticklabels()} == {rotation}


def test_landscapes_share_their_levels_and_mark_the_middle():
    lands = {"bowl": [[2.0, 1.0], [1.0, 2.0]], "hill": [[5.0, 6.0], [6.0, 5.0]]}
    picture = plots.landscapes(lands, title="", alt="")
    bowl, hill, bar = picture.axes
    assert [axes.get_title(loc="left") for axes in (bowl, hill)] == ["bowl", "hill"]
    assert list(bowl.collections[0].levels) == list(hill.collections[0].levels)
    assert (bowl.collections[0].levels.min(), hill.collections[0].levels.max()) == (1, 6)
    for axes in (bowl, hill):
        assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 0]]]
    assert bar.get_ylabel() == "loss (nats)"


def test_shares_fill_a_bar_each_and_the_first_names_them():
    wholes = {"small": {"table": 1.0, "rest": 3.0}, "large": {"table": 1.0, "rest": 99.0}}
    (axes,) = plots.shares(wholes, title="", alt="", xlabel="%").axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 25), (25, 75), (0, 1), (1, 99)]
    assert [text.get_text() for text in axes.texts] == ["table\n25 %", "rest\n75 %", "", "99 %"]


def test_no_part_is_dropped_for_want_of_a_color():
    (axes,) = plots.shares({"whole": {f"part {i}": 1.0 for i in range(20)}}, title="", alt="", xlabel="%").axes
    assert len(axes.patches) == 20


def test_a_mask_is_drawn_as_it_is():
    picture = plots.mask({"causal": causal(), "window": sliding_window(1)}, 5)
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["causal", "window"]
    for axes, mask in zip(picture.axes, (causal(), sliding_window(1)), strict=True):
        drawn = torch.as_tensor(axes.collections[0].get_array()).reshape(5, 5).bool()
        assert torch.equal(drawn, mask.dense(5)[0, 0])
    assert "causal: 15 of 25 pairs" in picture.alt


def test_parts_of_a_mask_have_a_color_each_in_all_squares():
    near, far = sliding_window(1), causal()
    picture = plots.mask({"near": {"near": near}, "both": {"far": far, "near": near}}, 4)
    alone, both = (axes.collections[0] for axes in picture.axes)
    near, far = near.dense(4)[0, 0], far.dense(4)[0, 0]
    drawn = torch.as_tensor(both.get_array()).reshape(4, 4)
    assert torch.equal(drawn == 2, near) and torch.equal(drawn == 1, far & ~near)
    assert both.cmap(2) == alone.cmap(1) != both.cmap(1)
    assert "near: 10 of 16 pairs; both: 13 of 16 pairs" in picture.alt


def test_parts_of_a_mask_are_told_apart_without_colors():
    near, far = sliding_window(1), causal()
    (axes,) = plots.mask({"both": {"far": far, "near": near, "one": full() & near & ~far}}, 4).axes
    markers = {line.get_marker(): line.get_xydata() - 0.5 for line in axes.lines}
    assert len(markers) == 3
    seen = near.dense(4)[0, 0] & far.dense(4)[0, 0]
    assert {(int(row), int(column)) for column, row in markers["o"]} == {
        tuple(each) for each in seen.nonzero().tolist()
    }


@pytest.mark.parametrize("color", [*plots.PALETTE, GRAY, "white", "#ffff00"])
def test_ink_can_be_read_and_stays_where_it_can_be_read_already(color):
    for least in (3, 4.5):
        assert contrast(ink(color, least), "white") >= least
        assert ink(color, least) == to_rgb(color) or contrast(color, "white") < least
    assert contrast(words_on(color), color) >= 4.5


def test_contrast_is_that_of_the_guidelines():
    """The values are those of WebAIM's contrast checker."""
    pairs = {("black", "white"): 21, ("#777777", "white"): 4.48, ("#0000ff", "white"): 8.59, ("red", "blue"): 2.15}
    for pair, value in pairs.items():
        assert contrast(*pair) == pytest.approx(value, abs=0.01)


def test_each_line_and_its_name_stand_out_from_the_page():
    series = {str(number): [1.0 * number, 2.0] for number in range(9)}
    (axes,) = plots.lines(series, title="", alt="", xlabel="", ylabel="").axes
    assert min(contrast(line.get_color(), "white") for line in axes.lines) >= 3


def test_a_mask_that_allows_everything_is_filled():
    picture = plots.mask({"all": full(), "none": ~full()}, 3)
    filled, empty = (axes.collections[0] for axes in picture.axes)
    assert [filled.norm(1), empty.norm(0)] == [1, 0]


def test_lines_are_labeled_at_their_ends_without_overlap():
    picture = plots.lines({"one": [3.0, 1.0], "two": [2.0, 1.0]}, title="", alt="", xlabel="", ylabel="")
    (axes,) = picture.axes
    labels = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert labels.keys() == {"one", "two"}
    assert abs(labels["one"] - labels["two"]) >= 13


def test_labels_that_would_overlap_move_apart_both_ways():
    picture = plots.lines(
        {"low": [1.0, 1.0], "one": [1.0, 3.0], "two": [2.0, 3.0], "three": [0.0, 3.0]},
        title="",
        alt="",
        xlabel="",
        ylabel="",
    )
    moved = {text.get_text(): text.xyann[1] for text in picture.axes[0].texts}
    assert moved["low"] == pytest.approx(0)
    assert sorted(moved[name] for name in ("one", "two", "three")) == pytest.approx([-13, 0, 13])


def test_runs_of_one_kind_share_a_color_and_a_name():
    picture = plots.lines(
        {"scaled": (range(3), [[3, 2, 1], [4, 2, 2]]), "other": [1, 2]}, title="t", alt="a", xlabel="x", ylabel="y"
    )
    (axes,) = picture.figure.axes
    first, second, other = (line.get_color() for line in axes.lines)
    assert first == second != other
    assert sorted(text.get_text() for text in axes.texts) == ["other", "scaled"]


def test_a_dashed_line_lies_above_the_other_and_a_mark_has_its_name():
    picture = plots.lines(
        {"over": [1.0, 2.0], "under": [1.0, 2.0]},
        dashed=["over"],
        mark=("end of training", 1.5),
        title="",
        alt="",
        xlabel="",
        ylabel="",
    )
    (axes,) = picture.axes
    over, under, mark = axes.lines
    assert over.is_dashed() and not under.is_dashed() and over.get_zorder() > under.get_zorder()
    assert list(mark.get_xdata()) == [1.5, 1.5]
    assert [text.get_text() for text in axes.texts] == ["over", "under", "end of training"]


@pytest.mark.parametrize("count", [1, 4, 5])
def test_many_panels_stand_in_rows_that_can_be_read_beside_a_text(count):
    weights = torch.full((count, 6, 12), 1 / 12)
    masks = {f"mask {number}": causal() for number in range(count)}
    for picture in (plots.heads(weights, title="", alt=""), plots.mask(masks, 8)):
        panels = [axes for axes in picture.axes if axes.get_subplotspec()]  # not the scale of the colors
        assert len(panels) == count
        assert picture.figure.get_figwidth() <= MAX_INCHES
        first = [axes for axes in panels if axes.get_subplotspec().is_first_col()]
        assert {axes.get_ylabel() for axes in first} == {"query"}


def test_the_title_of_several_panels_stands_clear_of_theirs():
    picture = plots.mask({"a": causal(), "b": causal(), "c": causal(), "d": causal(), "e": causal()}, 12)
    picture.figure.draw_without_rendering()
    title = picture.figure.texts[0].get_window_extent()
    for axes in picture.axes:
        assert axes._left_title.get_window_extent().y1 < title.y0
    above, *_, below = picture.axes
    assert below._left_title.get_window_extent().y1 < above.xaxis.label.get_window_extent().y0


def test_save_writes_what_the_name_says(tmp_path):
    plots.bars({"a": 1.0}, title="", alt="", xlabel="").save(str(tmp_path / "bars.svg"))
    assert (tmp_path / "bars.svg").read_text().startswith("<?xml")


def test_a_heatmap_drops_the_zero_before_the_point_only_of_numbers_below_one():
    picture = plots.heatmap(torch.tensor([[0.5, 60.12], [-0.25, 10.04]]), title="t", alt="a")
    assert [text.get_text() for text in picture.axes[0].texts] == [".50", "60.12", "-.25", "10.04"]
