"""Extract sentence pairs from the message catalogs of free games: the common part of the games' `build.py`.

A catalog (`.mo`, GNU gettext) maps each English message to its translation. A message is often a whole paragraph:
it is split into sentences, and kept as pairs only if both languages have the same number of them.
"""

import argparse
import gettext
import gzip
import hashlib
import html
import re
import subprocess
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from packages import debian

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
    """The plain text of a message: no markup, one kind of space, one spelling for each mark."""
    text = HELP_LINK.sub(r"\1", MARKUP.sub("", html.unescape(text)))
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    text = re.sub(r"»(?=\S)([^«»]*)(?<=\S)«", r'"\1"', text)  # »German«
    text = re.sub(r"« ?([^«»]*?) ?»", r'"\1"', text)  # « French »
    return re.sub(r" ?(?:…|\.{3,})\.*", "...", text.translate(SPELLINGS)).strip()


def sentences(text: str) -> list[str]:
    """Cut after . ! ? and closing quotes, where a capital or a digit follows."""
    start, found = 0, []
    for boundary in BOUNDARY.finditer(text):
        found.append(text[start : boundary.end()].strip())
        start = boundary.end()
    return [*found, text[start:].strip()]


def balance(english: str, other: str) -> tuple[str, str]:
    """Drop the quotation marks of both sentences where the cut has left one open, or where only one side has them."""
    if english.count('"') != other.count('"') or english.count('"') % 2:
        return tuple(" ".join(text.replace('"', "").split()) for text in (english, other))
    return english, other


def is_pair(english: str, other: str) -> bool:
    """Two whole sentences that can be each other's translation."""
    if len(english.split()) not in WORDS or not SENTENCE.fullmatch(english) or not SENTENCE.fullmatch(other):
        return False
    low, high = LENGTH_RATIO
    if not low <= (len(other) + 8) / (len(english) + 8) <= high:  # + 8: short sentences vary more
        return False
    words = set(re.findall(r"\b[a-z]{4,}", english))
    shared = words.intersection(re.findall(r"\b[a-z]{4,}\b", other))
    return english.casefold() != other.casefold() and (not shared or len(shared) <= SHARED_WORDS * len(words))


def message_pairs(message: str, translation: str) -> Iterator[tuple[str, str]]:
    """The sentence pairs of one message."""
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


def read_catalogue(path: Path) -> Iterator[tuple[str, str]]:
    """The (English, translation) messages of a `.mo` file, without plural forms and message contexts."""
    with path.open("rb") as file:
        catalogue = gettext.GNUTranslations(file)._catalog
    for message, translation in catalogue.items():
        if isinstance(message, str) and message:
            yield message.rpartition("\x04")[2], translation


def download(packages: list[str], folder: Path) -> None:
    """Fetch Debian packages and unpack their catalogues into `folder`; nothing is installed."""
    for package in debian(packages, folder, "name the folder of an installed game with --catalogues DIR"):
        archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder, "--wildcards", "*.mo"], stdin=archive.stdout, check=True)
        package.unlink()


def build(script: str, packages: list[str], languages: list[str]) -> None:
    """Write `LANGUAGE-en.tsv.gz` (English, tab, translation; sorted) and SHA256SUMS next to `script`."""
    home = Path(script).parent
    parser = argparse.ArgumentParser(description=f"Rebuild data/{home.resolve().name} from its message catalogues.")
    parser.add_argument("--catalogues", type=Path, metavar="DIR", help="search DIR for LANGUAGE/LC_MESSAGES/*.mo")
    parser.add_argument("--out", type=Path, default=home, metavar="DIR", help="write here (default: beside the script)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if not arguments.catalogues:
            download(packages, Path(temporary))
        found = arguments.catalogues or Path(temporary)
        sums = [write(found, language, arguments.out) for language in languages]
    (arguments.out / "SHA256SUMS").write_text("".join(sums))


def write(catalogues: Path, language: str, out: Path) -> str:
    """Write one language's pairs; return its line of SHA256SUMS. The same pairs always give the same bytes."""
    files = sorted(catalogues.glob(f"**/{language}/LC_MESSAGES/*.mo"))
    messages = (message for file in files for message in read_catalogue(file))
    pairs = sorted({pair for message in messages for pair in message_pairs(*message)})
    if not pairs:
        raise SystemExit(f"no sentences in {catalogues}/**/{language}/LC_MESSAGES/*.mo ({len(files)} catalogues found)")
    text = "".join(f"{english}\t{other}\n" for english, other in pairs)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    path = out / f"{language}-en.tsv.gz"
    path.write_bytes(packed)
    print(f"{path}: {len(pairs):,} pairs from {len(files)} catalogues, {len(packed) / 1e6:.2f} MB")
    return f"{hashlib.sha256(packed).hexdigest()}  {path.name}\n"
