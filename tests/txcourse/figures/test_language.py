import pytest

from txcourse import figures


def test_next_token_shows_the_text_shifted_by_one():
    picture = figures.next_token("to b\n", highlight=2, title="shifted", alt="a tower")
    shown = [text.get_text() for text in picture.axes[0].texts]
    assert [text for text in shown if len(text) == 1] == ["t", "o", "o", "▁", "▁", "b", "b", "⏎"]
    assert picture.axes[0].get_title(loc="left") == "shifted"
    assert picture.alt == "a tower"


def test_the_highlighted_place_sees_itself_and_the_past():
    picture = figures.next_token("tobe", highlight=1, title="", alt="")
    thick = [line for line in picture.axes[0].lines if line.get_linewidth() > 2]
    assert sorted(line.get_xdata()[0] for line in thick) == [0, 1]


@pytest.mark.parametrize(("tokens", "highlight"), [("t", 0), ("tobe", 3), ("tobe", -1)])
def test_next_token_names_a_place_that_is_not_there(tokens, highlight):
    with pytest.raises(ValueError, match=f"highlight={highlight}"):
        figures.next_token(tokens, highlight=highlight, title="", alt="")
