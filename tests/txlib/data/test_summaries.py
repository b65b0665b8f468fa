"""What is kept of lesson 12's summaries, and its ROUGE, by hand."""

import pytest
import summaries


def test_rouge_counts_what_two_texts_share(lesson):
    rouge_n, rouge_l = lesson["rouge_n"], lesson["rouge_l"]
    assert rouge_n("The cat sat on the mat.", "the cat lay on a mat", 1) == pytest.approx(4 / 6)
    assert rouge_n("The cat sat on the mat.", "the cat lay on a mat", 2) == pytest.approx(1 / 5)
    assert rouge_n("the the the", "the", 1) == pytest.approx(2 * 1 / 4)  # a word counts as often as both have it
    assert rouge_l("a b c d e", "c d a b") == pytest.approx(4 / 9)  # in order: c d, or a b
    assert rouge_l("a b", "c d") == rouge_n("a", "a", 2) == 0


def test_the_shipped_numbers_are_those_of_the_script(lesson):
    kept = summaries.RUNS.kept()
    assert kept["example"].keys() == {"reference", *kept["rouge"]} and len(kept["rouge"]) == 2
    assert kept["example"]["reference"].startswith(summaries.EXAMPLE)
    assert all(run["0"].keys() == {"1", "2", "L"} for run in kept["rouge"].values())
