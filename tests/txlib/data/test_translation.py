"""Loading sentence pairs."""

import gzip
import os
import sys
from pathlib import Path

import pytest

from txlib.data import files, translation
from txlib.data.translation import EMBEDDED, split_of

MODULE = sys.modules["txlib.data.translation"]  # the function of this name hides it in txlib.data
CORPORA = [(source, f"{language}-en") for source, languages in EMBEDDED.items() for language in languages]
ALL = [*CORPORA, ("games", "de-en"), ("games", "fr-en")]
needs_multi30k = pytest.mark.skipif(
    not (Path(os.environ.get("TXLIB_DATA", "nowhere")) / "multi30k").is_dir(), reason="TXLIB_DATA has no multi30k"
)


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.delenv("TXLIB_DATA", raising=False)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def letters(sentence: str) -> str:
    return "".join(character for character in sentence.casefold() if character.isalnum())


@pytest.mark.parametrize(("source", "pair"), ALL)
def test_splits_share_no_sentence_on_either_side(source, pair):
    train, validation, test = translation(source, pair)
    english = [{letters(english) for _, english in split} for split in (train, validation, test)]
    assert not english[0] & english[1] and not english[0] & english[2] and not english[1] & english[2]
    other = {other for other, _ in train}
    assert not other & {other for other, _ in (*validation, *test)}


def test_no_english_sentence_is_in_two_splits_of_any_corpora():
    home = {}
    for source, pair in CORPORA:
        for name, split in translation(source, pair)._asdict().items():
            for _, english in split:
                assert home.setdefault(letters(english), name) == name


@pytest.mark.parametrize(
    ("source", "pair", "all_lengths", "short"),
    [
        ("wesnoth", "de-en", 14_000, 10_000),
        ("wesnoth", "fr-en", 15_500, 11_000),
        ("games", "de-en", 31_000, 22_000),
        ("games", "fr-en", 25_000, 18_000),
    ],
)
def test_sizes(source, pair, all_lengths, short):
    assert sum(map(len, translation(source, pair))) >= all_lengths
    splits = translation(source, pair, max_words=12)
    assert sum(map(len, splits)) >= short
    assert max(len(english.split()) for split in splits for _, english in split) == 12
    assert all(0.03 < len(held_out) / sum(map(len, splits)) < 0.05 for held_out in splits[1:])


def test_known_sentences_are_there_in_both_directions():
    german = [pair for split in translation("wesnoth", "de-en") for pair in split]
    assert ("Du kannst jetzt gehen.", "You may now go.") in german
    assert sorted((b, a) for a, b in german) == sorted(p for split in translation("wesnoth", "en-de") for p in split)


def test_games_holds_every_corpus():
    together = {pair for split in translation("games", "de-en") for pair in split}
    for source in EMBEDDED:
        assert set(translation(source, "de-en").train) <= together


def test_split_depends_on_the_words_alone():
    assert {split_of(text) for text in ("What is it?", "what is IT!", '"What, is it..."')} == {split_of("What is it")}


@needs_multi30k
@pytest.mark.parametrize("pair", ["de-en", "fr-en"])
def test_multi30k(pair):
    splits = translation("multi30k", pair)
    assert [len(split) for split in splits] == [29_000, 1_014, 1_000]
    assert splits.train[0][1] == "Two young, White males are outside near many bushes."
    assert translation("multi30k", "-".join(reversed(pair.split("-")))).test[7] == splits.test[7][::-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "wesnot"}, "unknown source 'wesnot'; choose from wesnoth,"),
        ({"pair": "de-fr"}, "unknown pair 'de-fr'; choose from de-en,"),
        ({"source": "naev", "pair": "fr-en"}, "source 'naev' has no 'fr'; it has de"),
        ({"max_words": 2}, "no train sentences in source 'wesnoth', pair 'de-en', max_words=2: allow more"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError) as error:
        translation(**arguments)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_missing_embedded_file_names_the_remedy(tmp_path, nowhere, monkeypatch):
    with pytest.raises(FileNotFoundError, match=f"de-en.tsv.gz is not in {tmp_path}"):
        translation("wesnoth", folder=tmp_path)
    monkeypatch.setattr(files, "DATA", tmp_path / "site-packages" / "data")
    with pytest.raises(FileNotFoundError, match="set TXLIB_DATA to"):
        translation("wesnoth")


def test_txlib_data_stands_in_where_there_is_no_checkout(tmp_path, monkeypatch):
    pairs = "".join(f"This is number {number}.\tDas ist Nummer {number}.\n" for number in range(200))
    write(tmp_path / "data" / "wesnoth" / "de-en.tsv.gz", pairs)
    monkeypatch.setattr(files, "DATA", tmp_path / "site-packages" / "data")
    monkeypatch.setenv("TXLIB_DATA", str(tmp_path / "data"))
    assert sum(map(len, translation("wesnoth"))) == 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"Where is he?\tWo ist er?\n" * 50)[:-9], "is damaged"),
        (b"Where is he?\tWo ist er?\n", "is damaged"),
        (gzip.compress(b"\xff\xfe\xff\n"), "is damaged"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(b"Where is he?\tWo ist er?\nWho?\n"), "line 2: expected English, tab, translation"),
    ],
    ids=["cut off", "not compressed", "not UTF-8", "empty", "a line without a tab"],
)
def test_broken_embedded_file(tmp_path, content, message):
    (tmp_path / "de-en.tsv.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        translation("wesnoth", folder=tmp_path)
    assert str(tmp_path) in str(error.value) and "restore" in str(error.value) and "\n" not in str(error.value)


def multi30k(folder: Path, **changed: str) -> Path:
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            write(folder / f"{name}.{language}.gz", changed.get(f"{name}_{language}", "eins .\nzwei .\n"))
    return folder


def test_multi30k_from_a_folder(tmp_path):
    multi30k(tmp_path, train_de="Ein Hund .\nZwei\u2028Hunde .\n", train_en="A dog .\nTwo dogs .\n")
    assert translation("multi30k", folder=tmp_path).train == [
        ("Ein Hund .", "A dog ."),
        ("Zwei\u2028Hunde .", "Two dogs ."),
    ]


def test_multi30k_of_unequal_length(tmp_path):
    multi30k(tmp_path, val_de="eins .\n")
    with pytest.raises(ValueError, match=r"val.en.gz has 2 lines but val.de.gz has 1; .*restore both"):
        translation("multi30k", folder=tmp_path)


def test_multi30k_truncated(tmp_path):
    path = multi30k(tmp_path) / "train.de.gz"
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(ValueError, match="train.de.gz is damaged .*again"):
        translation("multi30k", folder=tmp_path)


def test_multi30k_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("TXLIB_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="train.en.gz does not exist; TXLIB_DATA"):
        translation("multi30k")


def test_multi30k_from_the_hub(tmp_path, nowhere, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def download(repo_id, filename, repo_type):
        assert (repo_id, repo_type) == ("bentrevett/multi30k", "dataset")
        (tmp_path / filename).write_text(f'{{"en": "A dog in {filename}.", "de": "Ein Hund\\u2028hier."}}\n')
        return tmp_path / filename

    monkeypatch.setattr(hub, "hf_hub_download", download)
    splits = translation("multi30k")
    assert splits.validation == [("Ein Hund\u2028hier.", "A dog in val.jsonl.")] and len(splits.test) == 1
    with pytest.raises(ValueError, match="German and English only, not 'fr'.*TXLIB_DATA"):
        translation("multi30k", "fr-en")

    def offline(*_, **__):
        raise ConnectionError("no route to the hub\nand more")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    with pytest.raises(FileNotFoundError, match=r"\(no route to the hub\).*TXLIB_DATA") as error:
        translation("multi30k")
    assert "\n" not in str(error.value)
