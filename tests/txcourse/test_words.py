"""Words as numbers: those that lesson 03 builds."""

from pathlib import Path

import jupytext

from txcourse.words import encode, vocabulary, words

LESSON = Path(__file__).parents[2] / "notebooks" / "03_attention.py"
SENTENCES = ["Der König ist tot.", "Es lebe der König, der König!"]


def test_rare_words_are_one_and_short_sentences_are_filled_up():
    ids = vocabulary(SENTENCES, at_least=2)
    assert ids == {"der": 2, "könig": 3}
    assert encode(SENTENCES, ids).tolist() == [[2, 3, 1, 1, 0, 0], [1, 1, 2, 3, 2, 3]]


def test_lesson_03_builds_the_same():
    cells = [cell.source for cell in jupytext.read(LESSON).cells if cell.cell_type == "code"]
    built: dict = {}
    for source in (cells[0], next(source for source in cells if "def vocabulary(" in source)):
        exec(source.partition("\n\npairs = ")[0], built)
    ids = vocabulary(SENTENCES, at_least=1)
    assert built["words"](SENTENCES[1]) == words(SENTENCES[1])
    assert built["vocabulary"](SENTENCES, at_least=1) == ids
    assert built["encode"](SENTENCES, ids).tolist() == encode(SENTENCES, ids).tolist()
