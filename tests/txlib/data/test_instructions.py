"""Conversations made from the bundled data: right answers, checked in another way; splits share no question."""

import re
from collections import Counter

import pytest

from txlib.data import Splits, reviews, translation
from txlib.data.instructions import KINDS, SMALL_TALK, consecutive, exchange, final_answer, instructions

SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11, "#": 1, "b": -1}


@pytest.fixture(scope="module")
def kinds():
    return {name: load() for name, load in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
def test_splits_share_no_question(kinds, name):
    train, validation, test = ({talk[0]["content"] for talk in split} for split in kinds[name])
    assert train.isdisjoint(validation) and train.isdisjoint(test)
    assert len(train) > 5 * len(test) > 100 and validation
    for talk in (talk for split in kinds[name] for talk in split):
        assert [message["role"] for message in talk] == ["user", "assistant"]
        assert all(message["content"].strip() for message in talk)


def test_sums_are_all_there_and_right(kinds):
    splits = []
    for split in kinds["sums"]:
        numbers = [tuple(map(int, re.findall(r"\d+", talk[0]["content"]))) for talk in split]
        assert [final_answer(talk[1]["content"]) for talk in split] == [str(a + b) for a, b in numbers]
        for talk in split:
            for terms, total in re.findall(r"([\d +]+) = (\d+)", talk[1]["content"]):
                assert sum(map(int, terms.split("+"))) == int(total)
        splits.append(set(numbers))
    assert sum(map(len, splits)) == 90 * 90
    assert all((b, a) in split for split in splits for a, b in split)


def test_stars_are_those_of_the_review(kinds):
    given = {" ".join(review.text.split()[:15]): review.label + 1 for review in reviews("stars").test}
    assert len(kinds["stars"].test) > 0.95 * len(given)
    for question, answer in ((talk[0]["content"], talk[1]["content"]) for talk in kinds["stars"].test):
        stars = given[question.removeprefix("How many stars? ")]
        assert answer == ("1 star" if stars == 1 else f"{stars} stars")


def test_a_phrase_is_the_same_both_ways(kinds):
    there, back = (
        [[message["content"].rpartition(": ")[2] for message in talk] for talk in kinds[name].test]
        for name in ("english", "german")
    )
    assert there[:50] == [pair[::-1] for pair in back[:50]]
    assert set(map(tuple, there[:50])) <= {
        tuple(side.rpartition(": ")[2] for side in pair) for pair in translation("games").test
    }


def test_the_rule_of_voices_is_counted_from_the_names_of_notes(kinds):
    answers = Counter()
    for talk in (talk for split in kinds["voices"] for talk in split):
        upper, lower = (
            [sum(SEMITONES[letter] for letter in note) for note in part.split()[1:]]
            for part in talk[0]["content"].removeprefix("Fifths or octaves? ").split(", ")
        )
        apart = {(high - low) % 12 for high, low in zip(upper, lower, strict=True)}
        expected = {frozenset({7}): "Yes, fifths.", frozenset({0}): "Yes, octaves."}.get(frozenset(apart), "No.")
        assert talk[1]["content"] == expected
        answers[expected] += 1
    assert max(answers.values()) == min(answers.values()) > 700
    assert consecutive(67, 67, 60, 60) == "No."  # nobody moves


def test_a_mixture_keeps_what_is_held_out_and_depends_on_its_seed():
    few = {"voices": Splits(*([exchange(f"{part} {n}?", str(n)) for n in range(6)] for part in "ab"), [])}
    train, validation, test = instructions(few, seed=1)
    asked = Counter(message["content"] for talk in train for message in talk[::2])
    assert {question: times for question, times in asked.items() if question.startswith("a")} == {
        f"a {n}?": 3 for n in range(6)
    }
    assert {question for question, _ in SMALL_TALK} < asked.keys()
    assert sorted(message["content"] for talk in validation for message in talk[::2]) == [f"b {n}?" for n in range(6)]
    assert test == [] and max(map(len, train)) == 6
    assert instructions(few, seed=1).train == train != instructions(few, seed=2).train
