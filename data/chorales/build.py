"""Rebuild the chorales: `python data/chorales/build.py [--wheels DIR]`. music21 is read, not installed."""

import io
import itertools
import re
import sys
import zipfile
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build, wheel  # noqa: E402  (the folder above is not a package)

VOICES = ["Soprano", "Alto", "Tenor", "Bass"]
STEPS = 4  # of a quarter note: a step is a sixteenth
SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
TURN = 6  # intervals in a row, by which melodies are compared
SAME = 1 / 3  # of the shorter melody's turns: the least that two settings of one tune share

Note = tuple[Fraction, Fraction, int | None, bool]  # begin and end in steps, pitch (None: a rest), begins anew


def make(wheels: Path | None) -> dict[str, str]:
    """The pieces for exactly four voices, with the tune that each belongs to."""
    pieces = {}
    with wheel("music21==10.5.1", wheels) as archive:
        for name in archive.namelist():
            if found := re.fullmatch(r"music21/corpus/bach/(bwv[^/]+)\.(mxl|xml)", name):
                piece = read(score(archive.read(name), found[2]))
                if piece is not None:
                    pieces[found[1]] = piece
    pieces = dict(sorted(pieces.items(), key=lambda item: by_number(item[0])))
    tunes = tunes_of({name: voices[0] for name, (_, voices) in pieces.items()})
    lines = ["\t".join([name, tunes[name], bars, *voices]) for name, (bars, voices) in pieces.items()]
    return {"chorales.tsv.gz": "\n".join(lines) + "\n"}


def score(content: bytes, kind: str) -> ElementTree.Element:
    """The MusicXML of a file, compressed or not."""
    if kind == "mxl":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            (name,) = (each for each in archive.namelist() if not each.startswith(("META-INF", "mimetype")))
            content = archive.read(name)
    return ElementTree.fromstring(content)


def read(root: ElementTree.Element) -> tuple[str, list[str]] | None:
    """Lengths of the bars, and the four voices; None where there are not exactly four."""
    names = [part.findtext("part-name", "").strip() for part in root.iterfind("part-list/score-part")]
    if names != VOICES:
        return None
    voices, bars = [], []
    for part in root.iterfind("part"):
        notes, bars = notes_of(part)
        voices.append(written(notes, sum(bars)))
    return " ".join(runs(bars)), voices


def notes_of(part: ElementTree.Element) -> tuple[list[Note], list[int]]:
    """The notes of a voice, and the lengths of its bars in steps."""
    notes: list[Note] = []
    bars: list[int] = []
    start, divisions = Fraction(0), 1
    for measure in part.iterfind("measure"):
        now = end = start
        for each in measure:
            divisions = int(each.findtext("divisions", str(divisions)))
            length = Fraction(each.findtext("duration", "0")) * STEPS / divisions
            if each.tag in ("backup", "forward"):
                now += length if each.tag == "forward" else -length
            elif each.tag == "note" and length and each.findtext("voice", "1") == "1":  # a grace note has no length
                ties = {tie.get("type") for tie in each.iterfind("tie")}
                notes.append((now, now + length, pitch(each), "stop" not in ties))
                now += length
                end = max(end, now)  # what is skipped after the last note is no music
        if (end - start).denominator != 1:
            raise SystemExit(f"measure {measure.get('number')} does not end on the grid")
        bars.append(int(end - start))
        start = end
    return notes, bars


def pitch(note: ElementTree.Element) -> int | None:
    """MIDI's number, 60 for middle C; None for a rest."""
    step = note.findtext("pitch/step")
    if step is None:
        return None
    octave, alter = int(note.findtext("pitch/octave", "")), float(note.findtext("pitch/alter", "0"))
    return 12 * (octave + 1) + SEMITONES[step] + int(alter)


def written(notes: list[Note], length: int) -> str:
    """The voice on the grid: at each step stands what sounds when it begins. E.g. `67*4 66*2 -*2`; `-` is a rest."""
    sounding: list[tuple[int | None, Fraction]] = []  # pitch, and which note: the place where it began
    for step in range(length):
        now = next((each for each in notes if each[0] <= step < each[1]), (Fraction(step), Fraction(step), None, True))
        begin, _, number, anew = now
        before = sounding[-1] if sounding else None
        goes_on = before is not None and before[0] == number and (number is None or not anew)
        sounding.append(before if goes_on and before is not None else (number, begin))
    groups = [(key[0], len(list(group))) for key, group in itertools.groupby(sounding)]
    return " ".join(f"{'-' if number is None else number}*{steps}" for number, steps in groups)


def runs(bars: list[int]) -> list[str]:
    """E.g. `4*1 16*8`: an upbeat of four steps, then eight bars of sixteen."""
    return [f"{steps}*{len(list(group))}" for steps, group in itertools.groupby(bars)]


def by_number(name: str) -> list[int | str]:
    """BWV 2 before BWV 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def tunes_of(sopranos: dict[str, str]) -> dict[str, str]:
    """For each piece the first of those that set the same tune.

    Bach set many tunes several times, in other keys and with other passing notes. Two sopranos are taken for one tune
    where they share a third of their turns, six intervals in a row; so are those that a third one joins.
    """
    turns = {}
    for name, voice in sopranos.items():
        pitches = [int(note.partition("*")[0]) for note in voice.split() if note[0] != "-"]
        steps = [after - before for before, after in itertools.pairwise(pitches)]
        turns[name] = {tuple(steps[place : place + TURN]) for place in range(len(steps) - TURN + 1)}
    first = {name: name for name in sopranos}
    for one, other in itertools.combinations(sopranos, 2):
        shared = len(turns[one] & turns[other]) / min(len(turns[one]), len(turns[other]))
        if shared >= SAME and first[one] != first[other]:
            kept, joined = first[one], first[other]
            first = {name: kept if tune == joined else tune for name, tune in first.items()}
    return first


if __name__ == "__main__":
    build(__file__, make)
