"""The record of the translators that lessons compare is the benchmark's."""

import json

import contest


def test_the_shipped_record_is_what_the_benchmark_measured():
    assert json.loads(contest.OUT.read_text()) == contest.contest()


def test_every_translator_has_three_seeds():
    assert all(len(row["bleu"]) == 3 for row in contest.contest().values())
