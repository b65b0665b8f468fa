"""Figures of writing: each choice has its frame, each sampler its bars."""

import torch

from txcourse import figures


def test_choices_frame_what_was_chosen():
    steps = [({"a": 0.7, "b": 0.2}, "b"), ({"c": 0.995, "d": 0.004}, "c")]
    (axes,) = figures.choices(steps, title="Drawn", alt="").axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["a\n70%", "b\n20%", "c\n100%", "d\n0.4%"]
    assert [text.get_text()[0] for text in axes.texts if text.get_fontweight() == "bold"] == ["b", "c"]
    framed = [patch.get_linewidth() > 1 for patch in axes.patches]
    assert framed == [False, True, True, False]


def test_draws_show_the_four_likeliest_and_the_drawn_one():
    p = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    (axes,) = (picture := figures.draws([(p, 5), (p, 0)], "abcdef", title="t")).axes
    assert [text.get_text()[0] for text in axes.texts] == [*"abcdf", *"abcd"]
    assert [text.get_text()[0] for text in axes.texts if text.get_fontweight() == "bold"] == ["f", "a"]
    assert picture.alt.endswith("Drawn were f with 0.04, a with 0.4.")


def test_reshaped_distributions_share_their_rows_and_count_what_is_left():
    before = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    cut = before.masked_fill(before < -1.5, -torch.inf)
    picture = figures.reshaped(before, {"same": before, "cut": cut}, "abcd", shown=3, title="t")
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["b", "d", "c", "1 others"]
    assert "same: 3 of them left, all others together 10%; cut: 2 of them left, all others together 0%." in picture.alt


def test_a_beam_tree_shows_greedys_path_where_the_beams_have_left_it():
    follow = {(): [0.4, 0.35, 0.25], (0,): [0.34, 0.33, 0.33], (1,): [0.48, 0.52, 0.0]}

    def next_p(ids):
        return torch.tensor(follow[tuple(ids[-1:])])

    (axes,) = (picture := figures.beam_tree(next_p, [], "abc", root="", steps=3)).axes
    words = {text.get_text(): text.get_color() for text in axes.texts}
    assert words["b\n0.095"] == "white" and words["a\n0.046"] == "black"
    assert "The likeliest path is b · b · b with 0.095; greedy's, a · a · a with 0.046." in picture.alt


def test_candidates_draw_before_and_after_and_name_tokens_once():
    same = ["x", "y"], [0.6, 0.4], [1.0, 0.0]
    other = ["z", "y"], [0.5, 0.5], [0.5, 0.5]
    picture = figures.candidates({"one": same, "two": same, "three": other}, title="What a filter does", alt="Bars")
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["one", "two", "three"]
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in picture.axes]
    assert names == [["x", "y"], [], ["z", "y"]]
    assert [bar.get_width() for bar in picture.axes[0].patches] == [0.6, 0.4, 1.0, 0.0]
    assert len({axes.get_xlim() for axes in picture.axes}) == 1 and picture.axes[0].get_xlim()[1] > 1
    assert repr(picture) == "Picture: Bars"


def test_candidates_write_the_rest_as_numbers_and_mark_what_is_cut():
    panel = ["x", "y", "9 others"], [0.2, 0.1, 0.7], [1.0, 0.0, 0.0]
    (axes,) = figures.candidates({"one": panel}, title="t", alt="a", rest=True).axes
    assert [bar.get_width() for bar in axes.patches] == [0.2, 0.1, 1.0, 0.0]
    assert [(text.get_text(), round(text.get_position()[1])) for text in axes.texts] == [("70% → 0%", 2), ("cut", 1)]


def test_beams_keep_the_largest_products():
    steps = [[(0, "The", 0.6), (0, "A", 0.4)], [(0, "king", 0.3), (1, "man", 0.9), (1, "ship", 0.05)]]
    (axes,) = figures.beams(steps, num_beams=2, title="t", alt="a").axes
    words = {text.get_text(): text.get_color() for text in axes.texts}
    assert words["man\n0.36"] == words["king\n0.18"] == "white" != words["ship\n0.02"]


def test_beams_lengthen_the_likeliest_as_number_0():
    steps = [[(0, "A", 0.4), (0, "The", 0.6)], [(0, "king", 0.5)]]
    (axes,) = figures.beams(steps, num_beams=2, title="t", alt="a").axes
    assert "king\n0.30" in [text.get_text() for text in axes.texts]


def test_beams_lengthen_a_dropped_one_but_keep_none_of_it():
    steps = [[(0, "A", 0.5), (0, "The", 0.4), (0, "No", 0.1)], [(0, "b", 0.1), (1, "c", 0.1), (2, "d", 0.9)]]
    (axes,) = figures.beams(steps, num_beams=2, title="t", alt="a", decimals=3).axes
    words = {text.get_text(): text.get_color() for text in axes.texts}
    assert words["b\n0.050"] == words["c\n0.040"] == "white" != words["d\n0.090"]


def test_answers_have_their_product_and_the_likeliest_is_bold():
    rows = {"no": [("no", 0.2)], "not at all": [("not", 0.3), ("at", 0.9), ("all", 0.9)]}
    (axes,) = figures.answers("Is it?", rows, title="t", alt="a").axes
    weights = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert weights["= 0.2"] == "normal" and weights["= 0.24"] == "bold" and weights["at\n0.9"] == "normal"


def test_the_nucleus_has_the_token_that_crosses():
    picture = figures.nucleus({"flat": [0.4, 0.3, 0.2, 0.1], "peaked": [0.9, 0.1, 0.0, 0.0]}, 0.75, title="t", alt="a")
    labels = [text.get_text() for text in picture.axes[0].texts]
    assert "flat: 3 tokens" in labels and "peaked: 1 token" in labels


def test_a_word_that_comes_too_often_is_not_counted_and_breaks_the_runs_across_it():
    picture = figures.clipped_counts("abbc", "abc", title="t")
    counted = [text.get_text() for text in picture.axes[0].texts if text.get_fontweight() == "bold"]
    assert counted == ["n = 1: 3 of 4", "n = 2: 2 of 3", "n = 3: 0 of 2", "n = 4: 0 of 1"]
    assert picture.alt.endswith("; ".join(counted) + ".")


def test_smoothed_labels_have_a_best_logit_and_plain_ones_have_none():
    plain, smoothed = figures.label_smoothing(4000).axes[0].lines
    losses = smoothed.get_ydata().tolist()
    assert 9 < smoothed.get_xdata()[losses.index(min(losses))] < 11
    assert plain.get_ydata().argmin() == len(losses) - 1


def test_schedules_are_drawn_with_their_peak_at_1():
    picture = figures.schedules({"rises": lambda step: 2 * step, "falls": lambda step: 1 / step}, steps=200)
    rises, falls = picture.axes[0].lines
    assert rises.get_ydata().tolist() == [0.25, 0.5, 0.75, 1]
    assert falls.get_ydata().tolist()[:2] == [1, 0.5]
    assert picture.alt.endswith("rises: at its peak after 200 steps; falls: at its peak after 50 steps.")


def test_what_the_own_source_saves_is_written_below_each_step():
    picture = figures.sources({40: {"own": 9.0, "another's": 9.0}, 80: {"own": 3.0, "another's": 5.5}})
    (axes,) = picture.axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[9, 5.5], [9, 3]]
    assert "2.5 lower" in [text.get_text() for text in axes.texts]
    assert picture.alt.endswith("40: 9.00 and 9.00; 80: 5.50 and 3.00.")
