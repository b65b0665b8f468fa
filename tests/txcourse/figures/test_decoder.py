"""Figures of the decoder draw what they are given."""

from safetensors.torch import load_file

from txcourse import figures
from txlib.data import shipped


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


def test_rotary_layouts_hold_the_same_pairs():
    boxes = {}
    for text in figures.rotary_layouts().axes[0].texts:
        if text.get_text().startswith("row "):
            x, y = text.get_position()
            boxes.setdefault(x, {})[y] = int(text.get_text()[4:])
    neighbors, halves = ([rows[y] for y in sorted(rows)] for _, rows in sorted(boxes.items()))
    assert neighbors == list(range(8))
    assert [neighbors[2 * pair : 2 * pair + 2] for pair in range(4)] == [[halves[i], halves[i + 4]] for i in range(4)]


def test_a_checkpoint_is_drawn_with_the_names_of_its_file():
    drawn = " ".join(text.get_text() for text in figures.checkpoint().axes[0].texts)
    names = load_file(shipped("glassllm-en") / "model.safetensors")
    assert all(name.split(".")[-2] in drawn for name in names)


def test_latent_attention_multiplies_each_key_or_the_query_once():
    drawn = [text.get_text() for text in figures.latent_attention().axes[0].texts]
    assert drawn.count("c") == 6 and drawn.count("k") == 3  # both ways, three tokens each
    assert sum("UK" in text and "top" in text for text in drawn) == 1
