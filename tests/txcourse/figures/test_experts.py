"""The figure of tokens and their experts."""

import torch

from txcourse import figures


def test_a_line_in_and_a_line_out_for_each_choice_and_only_one_where_it_is_dropped():
    weights = torch.tensor([[0.7, 0.0, 0.3], [0.0, 1.0, 0.0], [0.5, 0.0, 0.0]])  # (tokens, experts)
    dropped = torch.zeros(3, 3, dtype=torch.bool)
    dropped[2, 0] = True
    picture = figures.experts(weights, list("abc"), dropped=dropped, title="t", alt="a")
    lines = picture.axes[0].lines
    kept, lost = ([line for line in lines if line.get_linestyle() == style] for style in ("-", "--"))
    assert len(kept) == 2 * 3 and len(lost) == 1
    assert lost[0].get_color() not in {line.get_color() for line in kept}  # the color of no expert
    assert [line.get_marker() for line in lines].count("x") == 1
    assert any("dropped" in text.get_text() for text in picture.axes[0].texts)
    assert picture.alt == "a"
    widths = sorted({line.get_linewidth() for line in kept})
    assert widths == sorted([5 * weights[0, 2].item(), 5 * weights[0, 0].item(), 5.0])


def test_a_token_that_no_expert_takes_has_a_dash_on_the_right():
    picture = figures.experts(torch.zeros(1, 2), ["x"], title="t", alt="a", names=["one", "two"])
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert texts.count("x") == 1 and "–" in texts and "one" in texts


def test_each_layout_of_experts_colors_the_same_width():
    (axes,) = figures.expert_layouts(title="t", alt="a").axes
    used = [0.0, 0.0, 0.0]
    for box in axes.patches:
        if box.get_facecolor() != (1, 1, 1, 1):
            used[round(box.get_y() + box.get_height() / 2)] += box.get_width()
    assert used == [0.25, 0.25, 0.25]
