"""Sentence pairs for translation: embedded ones from free games, and Multi30k from a folder or the hub."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from txlib.data.files import Splits, find, percentile, read_lines
from txlib.hints import did_you_mean
from txlib.paths import install

Pair = tuple[str, str]  # (source sentence, target sentence)

EMBEDDED = {  # the folders of data/ and the languages that each has beside English
    "wesnoth": ("de", "fr"),
    "freedroidrpg": ("de", "fr"),
    "naev": ("de",),
    "widelands": ("de", "fr"),
}
SOURCES = (*EMBEDDED, "games", "multi30k")
PAIRS = ("de-en", "fr-en", "en-de", "en-fr")
HELD_OUT = 4  # percent of the English sentences that go to validation, and as many again to test
MULTI30K_HUB = "bentrevett/multi30k"


def translation(
    source: str = "wesnoth", pair: str = "de-en", folder: str | os.PathLike | None = None, max_words: int | None = None
) -> Splits:
    """Sentence pairs to learn translation from, as `Splits(train, validation, test)`.

    `source` is `"wesnoth"`, `"freedroidrpg"`, `"naev"` (German only) or `"widelands"`, embedded in `data/`; `"games"`,
    all of them together; or `"multi30k"` (Elliott et al. 2016). `pair` is `"de-en"`, `"fr-en"` or the reverse.
    `max_words` keeps the pairs whose English sentence has at most that many words.

    Embedded pairs are split by a hash of the English sentence's words: a sentence is in the same split in every source,
    language and release. Held-out pairs whose other side also stands in train (one German sentence, two English ones)
    are left out. Multi30k comes with its own splits; its test is test_2016_flickr.

    `folder` holds the files of this source: `LANGUAGE-en.tsv.gz` (for `"games"`: the folders that hold them), or for
    Multi30k `train|val|test_2016_flickr.{de,en,fr}.gz`. Without it they are looked for in the repository's `data/`,
    then in `$TXLIB_DATA/SOURCE`; Multi30k in `$TXLIB_DATA/multi30k`, then on the Hugging Face hub (German only).

    Raises ValueError for an unknown source or pair, and for files that are damaged, empty or of unequal length;
    FileNotFoundError where the files are missing.
    """
    if source not in SOURCES:
        raise ValueError(f"unknown source {source!r}; choose from {', '.join(SOURCES)}{did_you_mean(source, SOURCES)}")
    if pair not in PAIRS:
        raise ValueError(f"unknown pair {pair!r}; choose from {', '.join(PAIRS)}{did_you_mean(pair, PAIRS)}")
    language = pair.replace("en", "").strip("-")
    splits = _multi30k(language, folder) if source == "multi30k" else _split(_embedded(source, language, folder))
    if max_words is not None:
        splits = Splits(*([p for p in split if len(p[0].split()) <= max_words] for split in splits))
    for name, split in splits._asdict().items():
        if not split:
            raise ValueError(
                f"no {name} sentences in source {source!r}, pair {pair!r}, max_words={max_words}: allow more"
            )
    if pair.endswith("-en"):
        splits = Splits(*([(other, english) for english, other in split] for split in splits))
    return splits


def split_of(english: str) -> str:
    """The split that a sentence belongs to, by its words alone: `"What?"` and `"what!"` never part."""
    words = "".join(filter(str.isalnum, english.casefold()))
    percent = percentile(words)
    return "test" if percent < HELD_OUT else "validation" if percent < 2 * HELD_OUT else "train"


def _split(pairs: list[Pair]) -> Splits:
    """Split (English, other) pairs by `split_of`; what is held out shares no sentence with train on either side."""
    splits = Splits([], [], [])
    for pair in pairs:
        getattr(splits, split_of(pair[0])).append(pair)
    for held_out in (splits.validation, splits.test):
        seen = {other for _, other in splits.train}
        held_out[:] = [pair for pair in held_out if pair[1] not in seen]
    return splits


def _embedded(source: str, language: str, folder: str | os.PathLike | None) -> list[Pair]:
    """The (English, other) pairs of one corpus, or of all of them, each pair once."""
    if source == "games":
        parts = [name for name, languages in EMBEDDED.items() if language in languages]
        every = (pair for name in parts for pair in _embedded(name, language, folder and Path(folder) / name))
        return list(dict.fromkeys(every))
    if language not in EMBEDDED[source]:
        raise ValueError(f"source {source!r} has no {language!r}; it has {', '.join(EMBEDDED[source])}")
    path = find(source, f"{language}-en.tsv.gz", folder)
    rows = [line.split("\t") for line in read_lines(path)]
    if broken := next((number for number, row in enumerate(rows, 1) if len(row) != 2), None):
        raise ValueError(f"{path}, line {broken}: expected English, tab, translation; restore the file")
    return [(english, other) for english, other in rows]


def _multi30k(language: str, folder: str | os.PathLike | None) -> Splits:
    """Multi30k's own splits as (English, other) pairs."""
    if not folder and "TXLIB_DATA" in os.environ:
        folder = Path(os.environ["TXLIB_DATA"]) / "multi30k"
    if not folder:
        return Splits(*(list(_multi30k_from_hub(name, language)) for name in ("train", "val", "test")))
    splits = []
    for name in ("train", "val", "test_2016_flickr"):
        paths = [Path(folder) / f"{name}.{side}.gz" for side in ("en", language)]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} does not exist; TXLIB_DATA (or `folder`) must lead to Multi30k's "
                    "train|val|test_2016_flickr.{de,en,fr}.gz"
                )
        english, other = map(read_lines, paths)
        if len(english) != len(other):
            raise ValueError(
                f"{paths[0]} has {len(english)} lines but {paths[1].name} has {len(other)}; "
                "line i of one must translate line i of the other: restore both"
            )
        splits.append(list(zip(english, other, strict=True)))
    return Splits(*splits)


def _multi30k_from_hub(name: str, language: str) -> Iterator[Pair]:
    """One split of the hub's copy: a JSON object a line, `{"en": …, "de": …}`."""
    elsewhere = "or set TXLIB_DATA to a folder that has multi30k/{train,val,test_2016_flickr}.{de,en,fr}.gz"
    if language != "de":
        raise ValueError(
            f"the hub's {MULTI30K_HUB} has German and English only, not {language!r}; choose de, {elsewhere}"
        )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModuleNotFoundError(
            f"Multi30k is on the Hugging Face hub, which needs huggingface_hub: {install('hf')}, {elsewhere}"
        ) from None
    try:
        path = hf_hub_download(MULTI30K_HUB, f"{name}.jsonl", repo_type="dataset")
    except Exception as error:  # no network, a proxy, the hub down: each has an exception of its own
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"cannot fetch {MULTI30K_HUB} from the hub ({reason}); try again online, {elsewhere}"
        ) from None
    for line in Path(path).read_text(encoding="utf-8").split("\n"):
        if line:
            row = json.loads(line)
            yield row["en"].strip(), row["de"].strip()
