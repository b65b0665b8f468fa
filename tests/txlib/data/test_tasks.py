"""What BERT is fine-tuned on: reviews, verse pairs, tags and spans."""

import gzip
import hashlib
import json
import os
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from txlib.data import (
    files,
    plays,
    reviews,
    sentence_pairs,
    spans,
    speeches,
    tags,
    verse_endings,
    verses,
    word_senses,
)
from txlib.data.shakespeare import TEST

BY_HAND = Path(os.environ.get("TXLIB_DATA", "nowhere"))
LOADERS = [reviews, lambda: reviews("stars"), verses, sentence_pairs, verse_endings, tags, spans]
NAMES = ["reviews", "stars", "verses", "sentence_pairs", "verse_endings", "tags", "spans"]


@pytest.mark.parametrize("load", LOADERS, ids=NAMES)
def test_splits_repeat_and_are_large_enough(load):
    splits = load()
    assert splits == load()
    assert len(splits.train) > 5 * len(splits.test) > 300 and len(splits.validation) > 80


@pytest.mark.parametrize("load", [reviews, verses], ids=["reviews", "verses"])
def test_splits_share_no_text(load):
    texts = [{text for example in split for text in example if isinstance(text, str)} for split in load()]
    assert not texts[0] & texts[1] and not texts[0] & texts[2]


def test_one_of_four_endings_belongs_to_the_verse():
    whole = {modern.replace(" ", "") for part in verses() for _, modern in part}
    for split in verse_endings():
        labels = Counter(choice.label for choice in split)
        assert labels.keys() == {0, 1, 2, 3} and min(labels.values()) > 0.15 * len(split)
        for beginning, endings, label in split:
            assert len(endings) == 4 and (beginning + endings[label]).replace(" ", "") in whole


def test_each_meaning_of_a_word_has_as_many_sentences():
    senses = word_senses()
    assert senses == word_senses() and {"left", "might", "rest", "like", "fit"} == senses.keys()
    for word, found in senses.items():
        count = Counter(sense.label for sense in found)
        assert count[0] == count[1] >= 12
        assert all(re.search(rf"\b{word}\b", sense.text) for sense in found)


def test_reviews_are_balanced():
    everything = Counter(review.label for split in reviews("stars") for review in split)
    assert everything == dict.fromkeys(range(5), 821)
    two = Counter(review.label for split in reviews() for review in split)
    assert two == {0: 1642, 1: 1642}
    stars = dict(review for split in reviews("stars") for review in split)
    assert all((stars[text] > 2) == bool(label) for split in reviews() for text, label in split)
    for split in reviews():
        assert 0.45 < sum(review.label for review in split) / len(split) < 0.55


def test_reviews_are_plain():
    for split in reviews():
        for text, _ in split:
            assert text == " ".join(text.split()) and not re.search(r"&#?\w+;", text)


def test_verses():
    pairs = [pair for split in verses() for pair in split]
    assert pairs[0] == (
        "In the beginning God created the heaven and the earth.",
        "In the beginning God created the heavens and the earth.",
    )
    for archaic, modern in pairs:
        assert archaic != modern and all(5 <= len(verse.split()) <= 25 for verse in (archaic, modern))
    thou = [sum(bool(re.search(r"\b(thou|thee|hath|unto)\b", pair[side])) for pair in pairs) for side in (0, 1)]
    assert thou[0] > 4000 and thou[1] < 20


def test_sentence_pairs():
    for pairs, split in zip(sentence_pairs(), verses(), strict=True):
        modern = dict(split)
        assert [pair.first for pair in pairs] == [archaic for archaic, _ in split]
        assert 0.4 < sum(pair.label for pair in pairs) / len(pairs) < 0.6
        own = [pair for pair, (_, translation) in zip(pairs, split, strict=True) if pair.second == translation]
        assert all(pair.label == 1 for pair in own) and len(own) == sum(pair.label for pair in pairs)
        assert {pair.second for pair in pairs} <= set(modern.values()) | {pair[1] for pair in split}


def test_tags_are_names_of_persons():
    names = [
        Counter(word for words, marks in split for word, mark in zip(words, marks, strict=True) if mark != "O")
        for split in tags()
    ]
    assert names[0]["Hamlet"] > 40 and names[2]["Brutus"] > 100 and names[1]["Malvolio"] > 20
    assert not {"King", "Lord", "Ghost", "Fool", "Nurse", "First", "Duke"} & set().union(*names)
    for held_out in names[1:]:
        assert sum(held_out[name] for name in held_out.keys() - names[0].keys()) > 0.7 * held_out.total()
    assert sum(names[0].values()) > 1500
    in_play = {speech.speaker.title() for speech in speeches(plays()[TEST])}
    assert all(any(name in speaker for speaker in in_play) for name in names[2])


def test_spans_are_the_speakers_of_their_lines():
    for split in spans():
        for question, context, answer, start in split:
            assert context[start:].startswith(f"{answer}: ")
            line = re.fullmatch(r'Who says "(.+)"\?', question)[1]
            said = next(part for part in context.split("\n") if line in part)
            assert said.startswith(f"{answer}: ") and context.count(line) == 1
            assert len({part.partition(":")[0] for part in context.split("\n")}) >= 3
    where = Counter(context[:start].count("\n") for _, context, _, start in spans().train)
    assert max(where.values()) < 0.4 * where.total()  # always taking the same speech is no way out


@pytest.mark.skipif(not (BY_HAND / "xquad").is_dir(), reason="TXLIB_DATA has no xquad")
def test_xquad():
    splits = spans("xquad")
    assert sum(map(len, splits)) == 1190 and min(map(len, splits)) > 100
    for split in splits:
        assert all(context[start : start + len(answer)] == answer for _, context, answer, start in split)
    contexts = [{question.context for question in split} for split in splits]
    assert not any(one & other for one, other in combinations(contexts, 2))


@pytest.mark.skipif(not (BY_HAND / "wikigold").is_dir(), reason="TXLIB_DATA has no wikigold")
def test_wikigold():
    splits = tags("wikigold")
    assert sum(map(len, splits)) == 1696 and min(map(len, splits)) > 100
    found = {tag for split in splits for _, its_tags in split for tag in its_tags}
    assert found == {"O", "I-PER", "I-ORG", "I-LOC", "I-MISC"}


def packed(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def test_own_files(tmp_path):
    packed(tmp_path / "wikigold.conll.txt.gz", "-DOCSTART- O\n\nPunk I-MISC\nis O\n\n\nTokyo I-LOC\n")
    found = [tagged for split in tags("wikigold", tmp_path) for tagged in split]
    assert sorted(found) == [(["Punk", "is"], ["I-MISC", "O"]), (["Tokyo"], ["I-LOC"])]


def squad(start: int) -> str:
    asked = {"question": "Who?", "answers": [{"text": "Kawann", "answer_start": start}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "Kawann Short led.", "qas": [asked]}]}]})


@pytest.mark.parametrize(
    ("load", "name", "content", "message"),
    [
        (reviews, "reviews.tsv.gz", "5\tGood.\n6\tBetter.\n", "line 2: '6' is not 1 to 5 stars"),
        (reviews, "reviews.tsv.gz", "5 Good.\n", "line 1: expected 2 columns"),
        (reviews, "reviews.tsv.gz", "", "is empty"),
        (verses, "kjv-web.tsv.gz", "Genesis 1:1\tIn the beginning\n", "line 1: expected 3 columns"),
        (tags, "wikigold.conll.txt.gz", "Tokyo\n", "line 1: expected a word and its tag, found 'Tokyo'"),
        (spans, "xquad.en.json.gz", "[]", "is not SQuAD's format"),
        (spans, "xquad.en.json.gz", squad(3), "the answer to 'Who.' is not at character 3"),
    ],
)
def test_damaged_files(load, name, content, message, tmp_path):
    packed(tmp_path / name, content)
    arguments = {tags: ["wikigold"], spans: ["xquad"]}.get(load, [])
    with pytest.raises(ValueError, match=message):
        load(*arguments, folder=tmp_path)


@pytest.mark.parametrize(
    ("load", "wrong", "message"),
    [
        (reviews, "binary", "labels='binary' is unknown; choose sentiment or stars"),
        (tags, "conll", "unknown source 'conll'; choose shakespeare or wikigold"),
        (spans, "squad", "unknown source 'squad'; choose shakespeare or xquad"),
    ],
)
def test_unknown_choices(load, wrong, message):
    with pytest.raises(ValueError, match=message):
        load(wrong)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A user who has no data folder, and a server that a test fills."""
    monkeypatch.delenv("TXLIB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def serve(source: str, content: bytes | None, expected: bytes) -> Path:
        there = tmp_path / "there"
        if content is not None:
            there.write_bytes(content)
        monkeypatch.setitem(files.DOWNLOADS, source, (there.as_uri(), hashlib.sha256(expected).hexdigest()))
        return there

    return serve


def test_what_does_not_come_along_is_fetched_once(elsewhere, tmp_path):
    content = b"Ada I-PER\nwrote O\n\nParis I-LOC\n"
    there = elsewhere("wikigold", content, content)
    first = tags("wikigold")
    assert sorted(tagged.words for split in first for tagged in split) == [["Ada", "wrote"], ["Paris"]]
    there.unlink()
    assert tags("wikigold") == first
    assert [path.name for path in (tmp_path / "cache/txlib/wikigold").iterdir()] == ["wikigold.conll.txt.gz"]


@pytest.mark.parametrize(("load", "source"), [(tags, "wikigold"), (spans, "xquad")])
@pytest.mark.parametrize("there", [None, b"something else"])
def test_what_cannot_be_fetched_says_where_to_put_it(load, source, there, elsewhere, tmp_path):
    elsewhere(source, there, b"what it was")
    with pytest.raises(FileNotFoundError, match=f"is not bundled.* set TXLIB_DATA to .* has {source}/"):
        load(source)
    assert not list((tmp_path / "cache/txlib" / source).iterdir())
