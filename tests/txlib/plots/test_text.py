"""Text cut into tokens: each token is drawn, in its row, in order."""

from txlib import plots


def test_each_token_stands_in_its_row_from_left_to_right():
    rows = {"words": ["the", " king"], "bytes": list("the king")}
    (axes,) = plots.tokens(rows, title="Cut", alt="A description").axes
    names = {text.get_position()[1]: text.get_text() for text in axes.texts if text.get_text() in rows}
    drawn = {name: [] for name in rows}
    for text in axes.texts:
        if text.get_text() not in rows:
            drawn[names[text.get_position()[1]]].append(text)
    assert [text.get_text() for text in drawn["words"]] == ["the", "▁king"]
    assert [text.get_text() for text in drawn["bytes"]] == list("the▁king")
    for row in drawn.values():
        places = [text.get_position()[0] for text in row]
        assert places == sorted(places)
    assert len(axes.patches) == 10
    assert axes.get_title(loc="left") == "Cut"
