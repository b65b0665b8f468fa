"""Pieces as MIDI files, which every notation program reads."""

import os
from pathlib import Path
from typing import Any

from txlib.music.piece import REST, STEPS_PER_QUARTER, VOICES, Piece

TICKS = 480  # of a quarter note
CHOIR = 52  # General MIDI's "Choir Aahs", counted from 0


def write_midi(piece: Piece, path: str | os.PathLike, *, tempo: int | float = 80, program: int = CHOIR) -> None:
    """A file with a track for each voice.

    Args:
        tempo: quarters per minute.
        program: General MIDI's instrument, counted from 0; 19 is a church organ.

    Raises:
        ValueError: for an empty piece, a tempo or pitch that MIDI does not have, or without mido.
    """
    mido = needs_mido("write_midi")
    if not len(piece):
        raise ValueError(f"{path} would hold no notes: the piece is empty")
    if not 4 <= tempo <= 1000:
        raise ValueError(f"tempo={tempo} must be from 4 to 1000 quarters per minute")
    file = mido.MidiFile(ticks_per_beat=TICKS)
    step = TICKS // STEPS_PER_QUARTER
    for voice in range(piece.pitch.shape[1]):
        name = VOICES[voice] if piece.pitch.shape[1] == len(VOICES) else f"voice {voice + 1}"
        track = file.add_track(name.capitalize())
        if voice == 0:
            track.append(mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(tempo)))
        track.append(mido.Message("program_change", channel=voice % 9, program=program))
        now = 0
        for first, length, pitch in piece.notes(voice):
            if not 0 < pitch < 128:
                raise ValueError(f"step {first}, voice {voice}: MIDI has pitches from 0 to 127, not {pitch}")
            start, end = first * step, (first + length) * step
            track.append(mido.Message("note_on", channel=voice % 9, note=pitch, velocity=80, time=start - now))
            track.append(mido.Message("note_off", channel=voice % 9, note=pitch, time=end - start))
            now = end
        track.append(mido.MetaMessage("end_of_track", time=len(piece) * step - now))
    file.save(path)


def read_midi(path: str | os.PathLike) -> Piece:
    """The piece in a file: each track that has notes is a voice, in the file's order. Times go to the nearest step.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no MIDI file, holds no notes, or a voice sounds two notes at a time; or without
            mido.
    """
    mido = needs_mido("read_midi")
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there; give a MIDI file")
    try:
        file = mido.MidiFile(path)
    except (EOFError, OSError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is no MIDI file that mido reads ({error or type(error).__name__})") from None
    step = file.ticks_per_beat / STEPS_PER_QUARTER
    voices = [voice for track in file.tracks if (voice := notes_of(track, step, str(path)))]
    if not voices:
        raise ValueError(f"{path} holds no notes")
    longest = max(end for notes in voices for _, end, _ in notes)
    rows = []
    for notes in voices:
        row, now = [], 0
        for start, end, pitch in [*notes, (longest, longest, REST)]:
            row += [(REST, start - now)] if start > now else []
            row += [(pitch, end - start)] if end > start else []
            now = end
        rows.append(row)
    return Piece.of(rows, name=Path(path).stem)


def notes_of(track: Any, step: float, where: str) -> list[tuple[int, int, int]]:
    """(first step, step after the last, pitch) of each note; one that would vanish gets a step.

    Raises:
        ValueError: when two sound at a time.
    """
    notes: list[tuple[int, int, int]] = []
    started: dict[int, float] = {}
    now = 0.0
    for message in track:
        now += message.time
        if message.type not in ("note_on", "note_off"):
            continue
        if message.note in started:
            start = round(started.pop(message.note) / step)
            notes.append((start, max(start + 1, round(now / step)), message.note))
        if message.type == "note_on" and message.velocity:
            started[message.note] = now
    notes.sort()
    for (_, end, one), (start, _, other) in zip(notes, notes[1:], strict=False):
        if start < end:
            raise ValueError(
                f"{where}, track {track.name!r}: {one} and {other} sound together at step {start}; "
                "write each voice on a track of its own"
            )
    return notes


def needs_mido(who: str) -> Any:
    """Return the package mido.

    Raises:
        ValueError: when it is not installed.
    """
    try:
        import mido
    except ModuleNotFoundError:
        raise ValueError(f"{who} needs mido, which is not installed: pip install mido") from None
    return mido
