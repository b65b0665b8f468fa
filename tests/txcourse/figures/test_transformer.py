"""The drawing of the encoder–decoder, and the chart of what translators cost."""

import pytest
from matplotlib.patches import FancyBboxPatch

from txcourse import figures
from txcourse.figures import transformer

SYSTEMS = {"one": (1e18, 25.0), "two ensemble": (9e18, 26.0), "ours": (1e18, 28.0), "near one": (1.1e18, 25.02)}


@pytest.fixture(scope="module")
def drawn():
    picture = figures.encoder_decoder(source="ein Hund", shifted="<bos> a", target="a <eos>", title="t")
    return picture.axes[0]


def test_every_sub_layer_has_its_norm_and_its_sum(drawn):
    words = [text.get_text() for text in drawn.texts]
    assert {"ein Hund", "<bos> a", "a <eos>"} <= set(words)
    sublayers = [word for word in words if "attention" in word or word in ("feed-forward", "sub-layer")]
    assert len(sublayers) == 2 + 3 + 2  # encoder, decoder, and one beside them in either wiring
    assert words.count("norm") == len(sublayers)
    assert words.count("+") == len(sublayers) + 2  # positions are added to both streams
    assert words.count("positions") == words.count("N ×") == 2


def test_the_memory_leaves_the_top_of_the_whole_encoder(drawn):
    outlines = [patch for patch in drawn.patches if isinstance(patch, FancyBboxPatch) and patch.get_zorder() == 0]
    encoder = min(outlines, key=lambda patch: patch.get_x())
    memory = next(line for line in drawn.lines if len(line.get_xdata()) == 4)  # up, across, down
    (x, *_), (y, *_) = memory.get_data()
    assert x == transformer.ENCODER and y >= encoder.get_y() + encoder.get_height()


def test_padding_is_hidden_in_two_masks_and_the_future_in_one():
    tokens = list("abcd")
    picture = figures.three_masks(source=tokens, shifted=tokens, padding=1, title="t", alt="a")
    filled = [int(axes.collections[0].get_array().sum()) for axes in picture.axes]
    assert filled == [4 * 3, 4 + 3 + 2 + 1, 4 * 3]


def test_all_tasks_have_the_same_costs_and_scores_in_the_same_steps():
    tasks = {"low": {"a": (1e18, 20.0), "b": (1e19, 23.0)}, "high": {"a": (1e20, 40.0), "b": (1e21, 41.0)}}
    low, high = figures.costs(tasks, title="t", alt="a").axes
    assert low.get_xlim() == high.get_xlim()
    assert low.get_ylim() == (21.5 - 1.8, 21.5 + 1.8) and high.get_ylim() == (40.5 - 1.8, 40.5 + 1.8)


def test_no_name_of_a_system_covers_another():
    picture = figures.costs({"task": SYSTEMS, "other": SYSTEMS}, highlight="ours", title="t", alt="a")
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["task", "other"]
    for axes in picture.axes:
        assert axes.get_xscale() == "log"
        assert sorted(text.get_text() for text in axes.texts) == sorted(SYSTEMS)
        places = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for number, a in enumerate(places) for b in places[:number])
        assert {tuple(line.get_xydata()[0]) for line in axes.lines} == set(SYSTEMS.values())
