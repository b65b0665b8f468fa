"""Pieces to listen to: each note is a sum of sines."""

import io
import wave
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from txlib.music.piece import STEPS_PER_QUARTER, Piece

if TYPE_CHECKING:
    from IPython.display import Audio

ATTACK, RELEASE = 0.03, 0.08  # seconds


def synthesize(
    piece: Piece, *, tempo: int | float = 80, rate: int = 16_000, partials: int = 6
) -> Float[np.ndarray, "samples"]:
    """The sound of a piece, from -1 to 1: additive synthesis, partial k of a note as loud as 1 / k².

    Args:
        tempo: quarters per minute.
        rate: samples per second. Partials above half of it are left out: they would sound as other notes.

    Raises:
        ValueError: for an empty piece, or numbers that make no sound.
    """
    if not len(piece):
        raise ValueError("the piece is empty, and there is nothing to hear")
    if not tempo > 0 or rate < 4_000 or partials < 1:
        raise ValueError(
            f"tempo above 0, rate from 4000 and partials from 1 make a sound, got {tempo=} {rate=} {partials=}"
        )
    step = 60 / tempo / STEPS_PER_QUARTER  # seconds
    sound = np.zeros(int((len(piece) * step + RELEASE) * rate) + 1)
    for voice in range(piece.pitch.shape[1]):
        for first, length, pitch in piece.notes(voice):
            start, samples = int(first * step * rate), int((length * step + RELEASE) * rate)
            time = np.arange(samples) / rate  # seconds
            frequency = 440 * 2 ** ((pitch - 69) / 12)
            tone = sum(
                np.sin(2 * np.pi * k * frequency * time) / k**2
                for k in range(1, partials + 1)
                if k * frequency < rate / 2
            )
            left = length * step + RELEASE - time
            sound[start : start + samples] += tone * np.minimum(1, time / ATTACK) * np.minimum(1, left / RELEASE)
    loudest = np.abs(sound).max()
    return sound / loudest if loudest else sound


def wav(sound: Float[np.ndarray, "samples"], rate: int = 16_000) -> bytes:
    """A WAV file of one channel with 16 bits per sample."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.clip(sound, -1, 1) * 32_767).astype("<i2").tobytes())
    return file.getvalue()


def listen(piece: Piece) -> "Audio":
    """A player for a notebook, the sound inside: it plays without a network, and takes 43 kB per second."""
    from IPython.display import Audio

    return Audio(data=wav(synthesize(piece)))
