"""Figures of the decoder draw what they are given."""

from txcourse import figures


def test_decoders_show_both_models_with_what_differs():
    left, right = (([text.get_text() for text in axes.texts]) for axes in figures.decoders().axes)
    assert "L ×" in left and "L ×" in right  # N counts parameters
    assert "+ learned position" in left and "+ learned position" not in right
    assert left.count("layer norm") == right.count("RMS norm") == 3


def test_each_query_head_is_joined_to_one_pair():
    picture = figures.shared_heads(8, (8, 2, 1), title="A title", alt="A description", names=["a", "b", "c"])
    for axes, pairs in zip(picture.axes, (8, 2, 1), strict=True):
        drawn = [text.get_text() for text in axes.texts]
        assert drawn.count("q") == 8 and drawn.count("kv") == pairs
        ends = {tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2}
        assert len(ends) == 8 and len({top for _, top in ends}) == pairs
