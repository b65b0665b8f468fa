"""Words cut in more than one way: what stays the same, and what the dropout does."""

from random import Random

import pytest

from txlib.data import translation
from txlib.text import Segmentation, Tokenizer
from txlib.text.merges import merge

TEXTS = ["The lower slopes are slower.", "Zum Öffnen: 12 Türen!", "", "<eos> is text here", "naïve 日本"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    sentences = [side for pair in translation("freedroidrpg").train[:2000] for side in pair]
    return Tokenizer.train(sentences, 1000)


def test_without_dropout_it_is_the_tokenizer(tokenizer):
    cut = Segmentation(tokenizer, TEXTS)
    assert cut.draw(0.0, "0") == tokenizer.encode_batch(TEXTS, special_tokens=False)


def test_merges_by_hand_are_the_tokenizers(tokenizer):
    """So small a dropout leaves out nothing: what is cut here must equal what the library cuts."""
    cut = Segmentation(tokenizer, TEXTS)
    assert cut.draw(1e-12, "0") == cut.draw(0.0, "0")


@pytest.mark.parametrize("dropout", (0.1, 0.5, 1.0))
def test_the_text_stays(tokenizer, dropout):
    for text, tokens in zip(TEXTS, Segmentation(tokenizer, TEXTS).draw(dropout, "1"), strict=True):
        assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == " " * bool(text) + text


def test_more_is_left_out_where_the_dropout_is_greater(tokenizer):
    sentences = [source for source, _ in translation("freedroidrpg").test]
    cut = Segmentation(tokenizer, sentences)
    lengths = [sum(map(len, cut.draw(dropout, "2"))) for dropout in (0.0, 0.1, 0.5, 1.0)]
    assert lengths == sorted(lengths)
    assert lengths[-1] == sum(len(b" " + text.encode()) for text in sentences)  # nothing but bytes


def test_a_seed_repeats_and_another_differs(tokenizer):
    cut = Segmentation(tokenizer, TEXTS)
    assert cut.draw(0.3, "3") == cut.draw(0.3, "3") != cut.draw(0.3, "4")


def test_each_merge_is_left_out_with_its_probability():
    chance, joined = Random(0), {(0, 1): (0, 2)}
    share = sum(merge([0, 1], joined, 0.3, chance) == [0, 1] for _ in range(10_000)) / 10_000
    assert abs(share - 0.3) < 0.02  # four standard errors


def test_a_pair_left_out_may_be_joined_in_the_next_step():
    """After "a b" was passed over and "c d" joined, "a b" is among the choices again (§3.1 chooses anew each time)."""

    class Scripted(Random):
        draws = iter((0.0, 0.9, 0.9))  # leave out the first, then no more

        def random(self) -> float:
            return next(self.draws)

    assert merge([0, 1, 2, 3], {(0, 1): (0, 4), (2, 3): (1, 5)}, 0.5, Scripted()) == [4, 5]


@pytest.mark.parametrize("dropout", (-0.1, 1.5, float("nan")))
def test_no_probability_is_refused(tokenizer, dropout):
    with pytest.raises(ValueError, match=r"bpe_dropout=.* from 0 to 1"):
        Segmentation(tokenizer, TEXTS).draw(dropout, "0")
