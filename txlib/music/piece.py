"""A piece for several voices, on a grid of equal steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

VOICES = ("soprano", "alto", "tenor", "bass")
"""In the order of the grid."""

RANGES = ((57, 81), (53, 74), (48, 69), (36, 64))
"""Lowest and highest note of each voice in Bach's chorales."""

REST = 0
"""In the place of a pitch."""

STEPS_PER_QUARTER = 4
"""A step is a sixteenth."""

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Piece:
    """What each voice sounds at each step, and where notes begin: so a held note is told from a repeated one.

    Args:
        pitch: MIDI's numbers, 60 for middle C; 0 is a rest.
        onset: True where a note begins. A rest has none.
        bars: lengths of the bars in steps, an upbeat's and parts of bars included; empty where they are not known.
        name: such as "bwv227.1".
        tune: pieces of one tune share it.

    Raises:
        ValueError: when a note begins nowhere, a rest begins, or the bars are not as long as the piece.
    """

    pitch: Int[Tensor, "step voice"]
    onset: Bool[Tensor, "step voice"]
    bars: tuple[int, ...] = ()
    name: str = ""
    tune: str = ""

    def __post_init__(self):
        if self.bars and sum(self.bars) != len(self):
            raise ValueError(f"the bars have {sum(self.bars)} steps, the piece {len(self)}; correct one of them")
        before = torch.cat([torch.zeros_like(self.pitch[:1]), self.pitch[:-1]])  # (step, voice)
        wrong = torch.where(self.pitch == REST, self.onset, ~self.onset & (self.pitch != before)).nonzero()
        if len(wrong):
            step, voice = wrong[0].tolist()
            what = "a rest has an onset" if self.pitch[step, voice] == REST else "a note goes on that never began"
            raise ValueError(f"step {step}, voice {voice}: {what}; onsets stand where notes begin")

    def __len__(self) -> int:
        """Steps."""
        return len(self.pitch)

    def __getitem__(self, steps: slice) -> "Piece":
        """Some of the steps. Notes held over the first of them begin there."""
        pitch, onset = self.pitch[steps], self.onset[steps].clone()
        onset[:1] = pitch[:1] != REST
        return Piece(pitch, onset, name=self.name, tune=self.tune)

    @classmethod
    def of(cls, voices: Sequence[Sequence[tuple[int, int]]], **rest) -> "Piece":
        """From the notes of each voice, (pitch, length in steps): `Piece.of([[(67, 4), (66, 2), (REST, 2)], …])`.

        Raises:
            ValueError: when a note has no length, or the voices are not equally long.
        """
        if any(length < 1 for voice in voices for _, length in voice):
            raise ValueError("a note of less than one step has no place on the grid; round its length up")
        totals = [sum(length for _, length in voice) for voice in voices]
        if len(set(totals)) > 1:
            raise ValueError(
                f"the voices have {', '.join(map(str, totals))} steps; fill up the shorter ones with rests"
            )
        pitch = [[number for number, length in voice for _ in range(length)] for voice in voices]
        onset = [
            [number != REST and step == 0 for number, length in voice for step in range(length)] for voice in voices
        ]
        size = (len(voices), totals[0] if totals else 0)
        return cls(
            torch.tensor(pitch, dtype=torch.long).view(size).T.contiguous(),
            torch.tensor(onset, dtype=torch.bool).view(size).T.contiguous(),
            **rest,
        )

    def notes(self, voice: int) -> list[tuple[int, int, int]]:
        """The notes of a voice: (first step, length in steps, pitch). Rests are left out."""
        starts = self.onset[:, voice].nonzero()[:, 0].tolist()
        sounding = (self.pitch[:, voice] != REST).tolist()
        notes = []
        for start, after in pairwise([*starts, len(self)]):
            end = next((step for step in range(start, after) if not sounding[step]), after)
            notes.append((start, end - start, int(self.pitch[start, voice])))
        return notes

    def transposed(self, semitones: int) -> "Piece":
        """Every note so much higher; below 0 lower."""
        pitch = torch.where(self.pitch == REST, REST, self.pitch + semitones)
        return Piece(pitch, self.onset, self.bars, self.name, self.tune)

    def transpositions(self) -> list[int]:
        """By how many semitones the piece can be moved so that each voice stays within `RANGES`."""
        lowest, highest = -128, 128
        for voice, (low, high) in zip(self.pitch.T, RANGES, strict=True):
            sounding = voice[voice != REST]
            if len(sounding):
                lowest, highest = max(lowest, low - int(sounding.min())), min(highest, high - int(sounding.max()))
        return list(range(lowest, highest + 1))

    def bar_lines(self) -> list[int]:
        """The steps at which bars begin, the first included."""
        return [sum(self.bars[:number]) for number in range(len(self.bars))]
