"""MIDI there and back, against mido's own clock; sound against its spectrum."""

import io
import sys
import wave

import numpy as np
import pytest
import torch

from txlib.data import chorales
from txlib.music import REST, Piece, read_midi, synthesize, wav, write_midi

mido = pytest.importorskip("mido")

PIECES = chorales().test[:3]
TWO = Piece.of([[(REST, 2), (69, 4), (69, 2), (REST, 1)], [(57, 1), (60, 8)]])


@pytest.mark.parametrize("piece", [*PIECES, TWO])
def test_there_and_back(piece, tmp_path):
    write_midi(piece, tmp_path / "a.mid")
    again = read_midi(tmp_path / "a.mid")
    end = int((piece.pitch != REST).any(1).nonzero().max()) + 1  # silence at the end has no notes
    assert torch.equal(again.pitch, piece.pitch[:end]) and torch.equal(again.onset, piece.onset[:end])


def test_it_lasts_as_long_as_its_tempo_says(tmp_path):
    write_midi(PIECES[0], tmp_path / "a.mid", tempo=60)
    file = mido.MidiFile(tmp_path / "a.mid")
    assert file.length == pytest.approx(len(PIECES[0]) / 4)
    assert [track.name for track in file.tracks] == ["Soprano", "Alto", "Tenor", "Bass"]


def test_times_off_the_grid_go_to_the_nearest_step(tmp_path):
    file = mido.MidiFile(ticks_per_beat=100)  # 25 ticks a step
    track = file.add_track()
    for kind, time, velocity in (("note_on", 12, 64), ("note_on", 26, 0), ("note_on", 10, 64), ("note_off", 3, 0)):
        track.append(mido.Message(kind, note=60, velocity=velocity, time=time))
    file.save(tmp_path / "a.mid")
    assert read_midi(tmp_path / "a.mid").notes(0) == [(0, 2, 60), (2, 1, 60)]


def test_files_that_are_no_piece(tmp_path, monkeypatch):
    path = tmp_path / "a.mid"
    with pytest.raises(FileNotFoundError, match="a.mid is not there"):
        read_midi(path)
    path.write_bytes(b"no music at all")
    with pytest.raises(ValueError, match="a.mid is no MIDI file that mido reads"):
        read_midi(path)
    mido.MidiFile().save(path)
    with pytest.raises(ValueError, match="holds no notes"):
        read_midi(path)
    chord = mido.MidiFile()
    track = chord.add_track("Piano")
    for kind, note, time in (("note_on", 60, 0), ("note_on", 64, 0), ("note_off", 60, 480), ("note_off", 64, 0)):
        track.append(mido.Message(kind, note=note, time=time))
    chord.save(path)
    with pytest.raises(ValueError, match="track 'Piano': 60 and 64 sound together at step 0; write each voice"):
        read_midi(path)
    for piece, options, message in (
        (TWO[:0], {}, "the piece is empty"),
        (TWO, {"tempo": 0}, "tempo=0 must be from 4 to 1000"),
        (Piece.of([[(130, 1)]]), {}, "MIDI has pitches from 0 to 127, not 130"),
    ):
        with pytest.raises(ValueError, match=message):
            write_midi(piece, path, **options)
    monkeypatch.setitem(sys.modules, "mido", None)
    with pytest.raises(ValueError, match="read_midi needs mido, which is not installed: pip install mido"):
        read_midi(path)


def loudest(sound, rate, count):
    """The strongest frequencies, in Hz."""
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    tops = [i for i in range(1, len(spectrum) - 1) if spectrum[i - 1] < spectrum[i] > spectrum[i + 1]]
    return sorted(i * rate / len(sound) for i in sorted(tops, key=lambda i: -spectrum[i])[:count])


def test_the_spectrum_has_the_notes_and_their_partials():
    sound = synthesize(Piece.of([[(69, 16)]]), rate=8_000, partials=4, tempo=60)
    assert len(sound) / 8_000 == pytest.approx(4.08, abs=0.01) and np.abs(sound).max() == pytest.approx(1)
    assert loudest(sound, 8_000, 4) == pytest.approx([440, 880, 1320, 1760], abs=1)
    third = synthesize(Piece.of([[(73, 16)], [(69, 16)]]), rate=8_000, partials=1, tempo=60)
    assert loudest(third, 8_000, 2) == pytest.approx([440, 554.37], abs=1)


def test_no_partial_sounds_as_another_note():
    """1760 Hz at 4000 samples per second: its second partial, 3520 Hz, would be heard as 480."""
    (only,) = loudest(synthesize(Piece.of([[(93, 16)]]), rate=4_000, partials=3), 4_000, 1)
    assert only == pytest.approx(1760, abs=1)


def test_a_repeated_note_is_heard_and_a_rest_is_not():
    held, struck = (synthesize(Piece.of([notes]), rate=8_000, tempo=60) for notes in ([(69, 8)], [(69, 4), (69, 4)]))
    dip = slice(8_000, 8_000 + 80)  # the second note begins: 10 milliseconds
    assert not np.allclose(held[dip], struck[dip], atol=0.05)
    silent = synthesize(Piece.of([[(69, 4), (REST, 4)]]), rate=8_000, tempo=60)
    assert np.abs(silent[8_000 + 700 :]).max() == 0


def test_a_wav_is_the_sound():
    sound = synthesize(TWO, rate=8_000)
    with wave.open(io.BytesIO(wav(sound, 8_000))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 8_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert np.abs(samples / 32_767 - sound).max() < 1e-4


def test_what_makes_no_sound():
    with pytest.raises(ValueError, match="nothing to hear"):
        synthesize(TWO[:0])
    with pytest.raises(ValueError, match="tempo=0 rate=16000 partials=6"):
        synthesize(TWO, tempo=0)
