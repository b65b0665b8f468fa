"""The files in data/: what they hold, and the rules that made them."""

import gzip
import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "data"
CORPORA = sorted(path.parent for path in DATA.glob("*/SHA256SUMS") if list(path.parent.glob("*-en.tsv.gz")))
FILES = sorted(DATA.glob("*/*-en.tsv.gz"))


def name(path: Path) -> str:
    return str(path.relative_to(DATA))


@pytest.fixture(scope="module")
def catalogs():
    spec = importlib.util.spec_from_file_location("catalogs", DATA / "catalogs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("corpus", CORPORA, ids=name)
def test_every_corpus_says_where_it_comes_from_and_whose_it_is(corpus):
    assert "GNU General Public License" in (corpus / "LICENSE").read_text()
    assert (corpus / "build.py").is_file()
    source = (corpus / "SOURCE.md").read_text()
    for path in corpus.glob("*.tsv.gz"):
        pairs = gzip.decompress(path.read_bytes()).count(b"\n")
        assert f"| `{path.name}` | {pairs:,} |" in source


def test_total_size_stays_small():
    assert sum(path.stat().st_size for path in FILES) < 4e6


@pytest.mark.parametrize("path", FILES, ids=name)
def test_pairs_are_clean(path):
    lines = gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
    assert lines == sorted(set(lines))
    for line in lines:
        english, other = line.split("\t")
        assert 3 <= len(english.split()) <= 20 and english != other
        for sentence in (english, other):
            assert sentence.rstrip("\"')")[-1] in ".!?", line
            assert sentence == " ".join(sentence.split()), line
            assert not set(sentence) & set("<>{}$%|^_=\\@#*\xa0\u202f\xad\ufffd„“”«»’…"), line
            assert sentence.count('"') % 2 == 0, line


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("The <i>old</i>\n  king &amp; his\u00a0men\u2026", "The old king & his men..."),
        ("Die »Ebene der Pferde« ist weit.", 'Die "Ebene der Pferde" ist weit.'),
        ("Il dit « Bonjour » et « Adieu ».", 'Il dit "Bonjour" et "Adieu".'),
        ("Some <ref>dst='unit_elf' text='elves'</ref> wait ....", "Some elves wait..."),
    ],
)
def test_clean(catalogs, message, plain):
    assert catalogs.clean(message) == plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Go away! I said go.", ["Go away!", "I said go."]),
        ("Am 3. Tag kam Dr. Braun. Er lachte.", ["Am 3. Tag kam Dr. Braun.", "Er lachte."]),
        ('"Stay." He went.', ['"Stay."', "He went."]),
        ("Well... maybe not.", ["Well... maybe not."]),
    ],
)
def test_sentences(catalogs, text, expected):
    assert catalogs.sentences(text) == expected


@pytest.mark.parametrize(
    ("english", "other", "kept"),
    [
        ("Where is the king?", "Wo ist der König?", True),
        ("Where is %s now?", "Wo ist %s jetzt?", False),
        ("Where is the king", "Wo ist der König", False),
        ("Old habits.", "Alte Gewohnheiten.", False),  # two words
        ("Run the old script.", "Run the old script!", False),  # not translated
        ("I will deal with you later.", "Ja!", False),  # not the same
        ("It's a troll!", "Es ist ein Troll!", True),
    ],
)
def test_is_pair(catalogs, english, other, kept):
    assert catalogs.is_pair(english, other) == kept


def test_messages_are_cut_only_where_both_sides_have_as_many_sentences(catalogs):
    both = list(catalogs.message_pairs("female^I see you. Now you die!", "Ich sehe dich. Jetzt stirbst du!"))
    assert both == [("I see you.", "Ich sehe dich."), ("Now you die!", "Jetzt stirbst du!")]
    joined = list(catalogs.message_pairs("I see you. Now you die!", "Ich sehe dich, und jetzt stirbst du!"))
    assert joined == [("I see you. Now you die!", "Ich sehe dich, und jetzt stirbst du!")]


def machine_object(messages: dict[str, str]) -> bytes:
    """A `.mo` file, written from the format's description in the gettext manual."""
    items = [
        (key.encode(), value.encode())
        for key, value in sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    ]
    ids, strings, texts = [], [], b""
    start = 28 + 16 * len(items)
    for table, column in ((ids, 0), (strings, 1)):
        for item in items:
            table += [len(item[column]), start + len(texts)]
            texts += item[column] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(items), 28, 28 + 8 * len(items), 0, 0)
    return head + struct.pack(f"<{len(ids + strings)}I", *ids, *strings) + texts


def test_build_reads_catalogs_and_repeats_itself(tmp_path):
    folder = tmp_path / "game" / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    messages = {"help\x04Where is the king?": "Wo ist der König?", "Hello": "Hallo", "Not translated yet.": ""}
    (folder / "game.mo").write_bytes(machine_object(messages))
    script = tmp_path / "build.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(DATA)!r})\nfrom catalogs import build\nbuild(__file__, [], ['de'])\n"
    )
    for out in ("one", "two"):
        (tmp_path / out).mkdir()
        command = [sys.executable, script, "--catalogs", tmp_path / "game", "--out", tmp_path / out]
        subprocess.run(command, check=True, capture_output=True)
    one, two = ((tmp_path / out / "de-en.tsv.gz").read_bytes() for out in ("one", "two"))
    assert one == two and gzip.decompress(one).decode() == "Where is the king?\tWo ist der König?\n"
    empty = subprocess.run([*command[:2], "--catalogs", tmp_path / "one"], capture_output=True, text=True)
    assert empty.returncode and empty.stderr.startswith("no sentences in") and empty.stderr.count("\n") == 1
