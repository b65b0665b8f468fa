"""Figures: each carries its description, and draws what it was given."""

import pytest
import torch

from txlib import plots
from txlib.attention import causal, everything, sliding_window

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
        plots.lines({"a": [1.0, 2.0], "b": ([3, 4], [1.0, 2.0])}, title="A title", alt="A description",
                    xlabel="x", ylabel="y"),
        plots.bars({"a": 1.0}, title="A title", alt="A description", xlabel="x"),
    ],
)  # fmt: skip
def test_a_picture_is_a_png_with_its_description(picture):
    png, metadata = png_of(picture)
    assert png.startswith(b"\x89PNG")
    assert metadata["alt"] == "A description"
    assert metadata["width"] == int.from_bytes(png[16:20], "big") // 2
    assert repr(picture) == "Picture: A description"


def test_a_heatmap_prints_its_numbers_and_names():
    picture = plots.heatmap(WEIGHTS, title="Shares", alt="", rows=["der", "hund"], columns=["the", "dog"])
    (axes,) = picture.axes
    assert [text.get_text() for text in axes.texts] == [".25", ".75", ".50", ".50"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["der", "hund"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["the", "dog"]
    assert axes.get_title(loc="left") == "Shares"


def test_a_mask_is_drawn_as_it_is():
    picture = plots.mask({"causal": causal(), "window": sliding_window(1)}, 5)
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["causal", "window"]
    for axes, mask in zip(picture.axes, (causal(), sliding_window(1)), strict=True):
        drawn = torch.as_tensor(axes.collections[0].get_array()).reshape(5, 5).bool()
        assert torch.equal(drawn, mask.dense(5)[0, 0])
    assert "causal: 15 of 25 pairs" in picture.alt


def test_a_mask_that_allows_everything_is_filled():
    picture = plots.mask({"all": everything(), "none": ~everything()}, 3)
    filled, empty = (axes.collections[0] for axes in picture.axes)
    assert [filled.norm(1), empty.norm(0)] == [1, 0]


def test_lines_are_labelled_at_their_ends_without_overlap():
    picture = plots.lines({"one": [3.0, 1.0], "two": [2.0, 1.0]}, title="", alt="", xlabel="", ylabel="")
    (axes,) = picture.axes
    labels = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert labels.keys() == {"one", "two"}
    assert abs(labels["one"] - labels["two"]) >= 13


def test_save_writes_what_the_name_says(tmp_path):
    plots.bars({"a": 1.0}, title="", alt="", xlabel="").save(str(tmp_path / "bars.svg"))
    assert (tmp_path / "bars.svg").read_text().startswith("<?xml")


def test_a_heatmap_drops_the_zero_before_the_point_only_of_numbers_below_one():
    picture = plots.heatmap(torch.tensor([[0.5, 60.12], [-0.25, 10.04]]), title="t", alt="a")
    assert [text.get_text() for text in picture.axes[0].texts] == [".50", "60.12", "-.25", "10.04"]
