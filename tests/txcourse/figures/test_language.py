import pytest

from txcourse import figures


def test_next_token_shows_the_text_shifted_by_one():
    picture = figures.next_token("to b\n", highlight=2, title="shifted", alt="a tower")
    shown = [text.get_text() for text in picture.axes[0].texts]
    assert [text for text in shown if len(text) == 1] == ["t", "o", "o", "␣", "␣", "b", "b", "⏎"]
    assert picture.axes[0].get_title(loc="left") == "shifted"
    assert picture.alt == "a tower"


@pytest.mark.parametrize(("at", "leak", "seen"), [(1, False, [0, 1]), (1, True, [0, 1, 2]), (2, True, [0, 1, 2])])
def test_the_highlighted_position_sees_itself_and_the_past_and_what_leaks(at, leak, seen):
    picture = figures.next_token("tobe", highlight=at, leak=leak, title="", alt="")
    thick = [line for line in picture.axes[0].lines if line.get_linewidth() > 2]
    assert sorted(line.get_xdata()[0] for line in thick) == seen


@pytest.mark.parametrize(("tokens", "highlight"), [("t", 0), ("tobe", 3), ("tobe", -1)])
def test_next_token_names_a_place_that_is_not_there(tokens, highlight):
    with pytest.raises(ValueError, match=f"highlight={highlight}"):
        figures.next_token(tokens, highlight=highlight, title="", alt="")


def test_falling_losses_are_means_up_to_each_step_next_to_dashed_levels():
    (axes,) = (
        picture := figures.falling_losses({"ours": [4.0, 2.0, 3.0, 1.0]}, {"pairs": 2.5}, title="t", window=2)
    ).axes
    curve, level = axes.lines[:2]
    assert curve.get_xdata().tolist() == [2, 3, 4] and curve.get_ydata().tolist() == [3, 2.5, 2]
    assert list(level.get_xdata()) == [2, 4] and level.get_linestyle() == "--"
    assert picture.alt.endswith("At the end: ours 2.00. Dashed lines: pairs 2.50.")
    assert figures.falling_losses({"ours": [4.0, 2.0]}, title="t", window=2).alt.endswith("ours 3.00.")


def test_the_loss_by_past_averages_more_positions_the_further_back_they_are():
    (axes,) = (
        picture := figures.loss_by_past({"ours": [5.0, 4.0, 3.0, 1.0, 2.0, 2.0]}, {"pairs": 2.5}, title="t")
    ).axes
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3, 5, 6]
    assert list(axes.lines[0].get_ydata()) == [5, 4, 3, 1.5, 2]
    assert "ours: 5.00 with 1, 3.00 with 3, 2.00 with 6. Dashed lines: pairs 2.50." in picture.alt


def test_words_of_a_kind_have_its_color():
    kinds = {"numbers": {"two": (0.0, 1.0), "three": (0.5, 1.0)}, "peoples": {"orcs": (3.0, 0.0)}}
    (axes,) = figures.plane(kinds, title="kinds", alt="a plane").axes
    points = {tuple(line.get_xydata()[0]): line.get_color() for line in axes.lines if len(line.get_xdata())}
    assert points.keys() == {(0.0, 1.0), (0.5, 1.0), (3.0, 0.0)}
    assert points[0.0, 1.0] == points[0.5, 1.0] != points[3.0, 0.0]
    places = {text.get_text(): text.xy for text in axes.texts}
    assert places == kinds["numbers"] | kinds["peoples"] | {"numbers": (0.25, 1.0), "peoples": (3.0, 0.0)}
    assert axes.get_legend() is None


def test_labels_of_neighbors_do_not_overlap():
    crowd = {"peoples": {"trolls": (0.0, 0.0), "humans": (0.02, 0.01), "orcs": (0.01, -0.02), "elves": (1.0, 1.0)}}
    (axes,) = figures.plane(crowd, title="crowd", alt="a plane").axes
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_induction_looks_from_the_last_token_to_what_followed_it_the_last_time():
    (axes,) = figures.induction("dafcda", title="copy", alt="an arc").axes
    assert [text.get_text() for text in axes.texts][:7] == ["d", "a", "f", "c", "d", "a", "f"]
    ends = [(text.xyann[0], text.xy[0]) for text in axes.texts if text.get_text() == ""][-2:]
    assert ends == [(2, 1), (5, 2)]


def test_induction_needs_a_token_that_returns():
    with pytest.raises(ValueError, match="'c' does not occur before"):
        figures.induction("abc", title="", alt="")


def test_a_token_and_its_row_have_one_color():
    table = [[1, 2], [3, 4], [5, 6]]
    picture = figures.picked_rows(["the", "king", "the"], ids=[1, 0, 1], table=table, title="rows", alt="three tables")
    (axes,) = picture.axes
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    one_hot, rows, products = "010100010", "123456", "341234"
    assert "".join(numbers) == one_hot + rows + products
    colors = [patch.get_facecolor() for patch in axes.patches]
    vectors = colors[-6:]
    assert vectors[0] == vectors[1] == colors[1] == colors[9 + 2] != vectors[2] == colors[3] == colors[9]
