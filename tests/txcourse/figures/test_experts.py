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


def test_who_finds_no_room_is_dropped():
    asked, room = torch.tensor([1, 1, 0]), torch.tensor([True, False, True])
    picture = figures.served(asked, room, list("abc"), title="t")
    lines = picture.axes[0].lines
    assert [line.get_linestyle() for line in lines].count("--") == [line.get_marker() for line in lines].count("x") == 1
    assert [text.get_text() for text in picture.axes[0].texts].count("–") == 1 and "'b' (token 1)" in picture.alt


def test_each_layout_of_experts_colors_the_same_width():
    (axes,) = figures.expert_layouts().axes
    used = [0.0, 0.0, 0.0]
    for box in axes.patches:
        if box.get_facecolor() != (1, 1, 1, 1):
            used[round(box.get_y() + box.get_height() / 2)] += box.get_width()
    assert used == [0.25, 0.25, 0.25]


def test_the_same_word_goes_to_the_same_two_experts():
    lines = [line for line in figures.two_of_four().axes[0].lines if line.get_xdata()[0] == 0]
    chosen = [[line.get_ydata()[1] for line in lines if line.get_ydata()[0] == word] for word in range(6)]
    assert [len(heights) for heights in chosen] == [2] * 6 and chosen[0] == chosen[4] != chosen[1]


def test_rows_of_specialties_sum_to_one_and_a_line_parts_the_groups():
    tables = torch.tensor([[[1.0, 3.0], [2.0, 2.0], [0.0, 5.0]]])  # (blocks, labels, experts)
    (axes,) = figures.specialties(tables, [["vowel", "space"], ["French"]], title="t").axes
    assert [text.get_text() for text in axes.texts] == [".25", ".75", ".50", ".50", ".00", "1.00"]
    assert [line.get_ydata()[0] for line in axes.lines] == [1.5]


def test_the_busiest_expert_has_a_line_per_seed_and_the_fair_fraction():
    picture = figures.busiest_expert({"block 1": [[0.2, 0.9], [0.3, 0.5]]}, experts=4, title="t")
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in picture.axes[0].lines]
    assert drawn == [([5, 10], [20, 90]), ([5, 10], [30, 50]), ([5, 10], [25, 25])]
    assert "block 1: at most 50% to 90%, at the end 50% to 90%" in picture.alt


def test_each_expert_has_a_line_of_its_load():
    axes = figures.loads(torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]), title="t").axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[75, 50, 25], [25, 50, 75], [50, 50]]
