"""Extract sentence pairs from the message catalogs of free games: the common part of the games' `build.py`.

A catalog (`.mo`, GNU gettext) maps each English message to its translation. A message is often a whole paragraph:
it is split into sentences, and kept as pairs only if both languages have the same number of them.
"""

import gettext
import html
import re
import subprocess
import tempfile
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import packages

WORDS = range(3, 21)  # on the English side
LENGTH_RATIO = 0.5, 2.2  # of characters, translation to English: outside it is a free retelling or a slip
SHARED_WORDS = 0.5  # of English words in small letters, found again in the other sentence: it is not translated

CONTEXT = re.compile(r"[^\s^]+(?: [^\s^]+){0,2}\^")  # "female^Queen", "unit description^A bat"
MARKUP = re.compile(r"<[^<>]*>")
HELP_LINK = re.compile(r" ?dst='[^']*'|text='([^']*)'")  # Wesnoth's: <ref>dst='unit_elf' text='elves'</ref>
ABBREVIATION = r"(?<!\b\w\.)(?<!\d\.)(?<!\b(?:Mr|Dr|St|Nr|ca|vs)\.)(?<!\b(?:Mrs|usw|bzw|etc|Max|Min)\.)"
BOUNDARY = re.compile(rf"""(?<=[.!?])(["')]*){ABBREVIATION}\s(?=["'(–—-]*[A-ZÀ-ÖØ-ÞŒ0-9])""")
LETTER = "A-Za-zÀ-ÿŒœ0-9"
SENTENCE = re.compile(  # and nothing else: no %s, $name, {x}, no keys, no Cyrillic
    rf"""["'(]*[{LETTER}][{LETTER} .,;:!?'"()–—-]*[.!?]["')]*"""
)
SPELLINGS = str.maketrans({"’": "'", "‘": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "\N{SOFT HYPHEN}": None})


def clean(text: str) -> str:
    """Return the plain text of a message: no markup, one kind of space, one spelling for each mark."""
    text = HELP_LINK.sub(r"\1", MARKUP.sub("", html.unescape(text)))
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    text = re.sub(r"»(?=\S)([^«»]*)(?<=\S)«", r'"\1"', text)  # »German«
    text = re.sub(r"« ?([^«»]*?) ?»", r'"\1"', text)  # « French »
    return re.sub(r" ?(?:…|\.{3,})\.*", "...", text.translate(SPELLINGS)).strip()


def sentences(text: str) -> list[str]:
    """Cut a text after . ! ? and closing quotes, if a capital or a digit follows."""
    ends = [boundary.end() for boundary in BOUNDARY.finditer(text)]
    return [text[start:end].strip() for start, end in pairwise([0, *ends, len(text)])]


def balance(english: str, other: str) -> tuple[str, str]:
    """Drop the quotation marks of both sentences if the cut has left one open, or only one side has them."""
    if english.count('"') != other.count('"') or english.count('"') % 2:
        return tuple(" ".join(text.replace('"', "").split()) for text in (english, other))
    return english, other


def is_pair(english: str, other: str) -> bool:
    """Return whether these are two whole sentences that can be each other's translation."""
    if len(english.split()) not in WORDS or not SENTENCE.fullmatch(english) or not SENTENCE.fullmatch(other):
        return False
    low, high = LENGTH_RATIO
    if not low <= (len(other) + 8) / (len(english) + 8) <= high:  # + 8: short sentences vary more
        return False
    words = set(re.findall(r"\b[a-z]{4,}", english))
    shared = words.intersection(re.findall(r"\b[a-z]{4,}\b", other))
    return english.casefold() != other.casefold() and (not shared or len(shared) <= SHARED_WORDS * len(words))


def message_pairs(message: str, translation: str) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of one message."""
    if context := CONTEXT.match(message):
        message = message[context.end() :]
    paragraphs = message.split("\n\n"), translation.split("\n\n")
    if len(paragraphs[0]) != len(paragraphs[1]):
        paragraphs = [message], [translation]
    for english, other in zip(*paragraphs, strict=True):
        english, other = clean(english), clean(other)
        cut = sentences(english), sentences(other)
        if len(cut[0]) != len(cut[1]):
            cut = [english], [other]
        yield from filter(lambda pair: is_pair(*pair), map(balance, *cut))


def read_catalog(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the (English, translation) messages of a `.mo` file, without plural forms and message contexts."""
    with path.open("rb") as file:
        catalog = gettext.GNUTranslations(file)._catalog
    for message, translation in catalog.items():
        if isinstance(message, str) and message:
            yield message.rpartition("\x04")[2], translation


def download(names: list[str], folder: Path) -> None:
    """Download Debian packages and unpack their catalogs into `folder`; nothing is installed."""
    for package in packages.debian(names, folder, "name the folder of an installed game with --catalogs DIR"):
        archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder, "--wildcards", "*.mo"], stdin=archive.stdout, check=True)
        package.unlink()


def build(script: str, names: list[str], languages: list[str]) -> None:
    """Write `LANGUAGE-en.tsv.gz` (English, tab, translation; sorted) and SHA256SUMS next to `script`.

    Args:
        names: Debian packages that hold the catalogs.
    """

    def make(folder: Path | None) -> dict[str, str]:
        if folder:
            return {f"{language}-en.tsv.gz": pairs_of(folder, language) for language in languages}
        with tempfile.TemporaryDirectory() as temporary:
            download(names, Path(temporary))
            return make(Path(temporary))

    packages.build(script, make, option="catalogs", about="search DIR for LANGUAGE/LC_MESSAGES/*.mo, download nothing")


def pairs_of(folder: Path, language: str) -> str:
    """Return the pairs of one language's catalogs, one per line, sorted."""
    files = sorted(folder.glob(f"**/{language}/LC_MESSAGES/*.mo"))
    messages = (message for file in files for message in read_catalog(file))
    pairs = sorted({pair for message in messages for pair in message_pairs(*message)})
    if not pairs:
        raise SystemExit(f"no sentences in {folder}/**/{language}/LC_MESSAGES/*.mo ({len(files)} catalogs found)")
    return "".join(f"{english}\t{other}\n" for english, other in pairs)
