"""The figure of tokens and their experts."""

import torch

from txlib import plots


def test_a_line_in_and_a_line_out_for_each_choice_and_only_one_where_it_is_dropped():
    weights = torch.tensor([[0.7, 0.0, 0.3], [0.0, 1.0, 0.0], [0.5, 0.0, 0.0]])      # (tokens, experts)
    dropped = torch.zeros(3, 3, dtype=torch.bool)
    dropped[2, 0] = True
    picture = plots.experts(weights, list("abc"), dropped=dropped, title="t", alt="a")
    styles = [line.get_linestyle() for line in picture.axes[0].lines]
    assert styles.count("-") == 2 * 3 and styles.count("--") == 1
    assert picture.alt == "a"
    widths = sorted({line.get_linewidth() for line in picture.axes[0].lines if line.get_linestyle() == "-"})
    assert widths == sorted([5 * weights[0, 2].item(), 5 * weights[0, 0].item(), 5.0])


def test_a_token_that_no_expert_takes_has_a_dash_on_the_right():
    picture = plots.experts(torch.zeros(1, 2), ["x"], title="t", alt="a", names=["one", "two"])
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert texts.count("x") == 1 and "–" in texts and "one" in texts
