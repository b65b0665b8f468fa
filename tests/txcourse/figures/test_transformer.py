"""The drawing of the encoder–decoder, and the chart of what translators cost."""

import pytest
from matplotlib.patches import FancyBboxPatch

from txcourse import figures
from txcourse.figures import transformer

SYSTEMS = {"one": (1e18, 25.0), "two ensemble": (9e18, 26.0), "ours": (1e18, 28.0), "near one": (1.1e18, 25.02)}


@pytest.fixture(scope="module")
def drawn():
    picture = figures.encoder_decoder(source="ein Hund", shifted="<bos> a", target="a <eos>", title="t", alt="a")
    return picture.axes[0]


def test_every_sub_layer_has_its_norm_and_its_sum(drawn):
    words = [text.get_text() for text in drawn.texts]
    assert {"ein Hund", "<bos> a", "a <eos>"} <= set(words)
    sublayers = [word for word in words if "attention" in word or word in ("feed-forward", "sub-layer")]
    assert len(sublayers) == 2 + 3 + 2  # encoder, decoder, and one beside them in either wiring
    assert words.count("norm") == len(sublayers)
    assert words.count("+") == len(sublayers) + 2  # positions are added to both streams
    assert words.count("positions") == words.count("N ×") == 2


def test_pre_norm_has_a_norm_on_each_branch_and_on_top_of_each_stack():
    drawn = figures.encoder_decoder(source="s", shifted="i", target="t", title="t", alt="a", norm_first=True).axes[0]
    norms = [text.get_position()[0] for text in drawn.texts if text.get_text() == "norm"]
    on_streams = [x for x in norms if x in (transformer.ENCODER, transformer.DECODER)]
    assert len(norms) == 2 + 3 + 2 and len(on_streams) == 2


def test_the_memory_leaves_the_top_of_the_whole_encoder(drawn):
    outlines = [patch for patch in drawn.patches if isinstance(patch, FancyBboxPatch) and patch.get_zorder() == 0]
    encoder = min(outlines, key=lambda patch: patch.get_x())
    memory = next(line for line in drawn.lines if len(line.get_xdata()) == 4)  # up, across, down
    (x, *_), (y, *_) = memory.get_data()
    assert x == transformer.ENCODER and y >= encoder.get_y() + encoder.get_height()


def test_no_name_of_a_system_covers_another():
    picture = figures.costs({"task": SYSTEMS, "other": SYSTEMS}, highlight="ours", title="t", alt="a")
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["task", "other"]
    for axes in picture.axes:
        assert axes.get_xscale() == "log"
        assert sorted(text.get_text() for text in axes.texts) == sorted(SYSTEMS)
        places = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for number, a in enumerate(places) for b in places[:number])
        assert {tuple(line.get_xydata()[0]) for line in axes.lines} == set(SYSTEMS.values())
