"""A piece as one row of tokens, and back."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from txlib.music.piece import RANGES, REST, VOICES, Piece, Range

BEGIN, END, REST_TOKEN, HOLD = range(4)
MARKS = ("<begin>", "<end>", "rest", "hold")


class GridTokenizer:
    """The serialized grid: at each step soprano, alto, tenor, bass, one token each (Huang et al. 2019, §4.1).

    A token is a note that begins (its pitch), `hold` (the note before goes on) or `rest`. A step of four `<begin>`
    stands before the piece, one `<end>` after it.

    So that distance means the same everywhere. Token i is voice i mod 4 at step i // 4: one token back is the next
    higher voice at this step (for the soprano: the bass a step ago), four are the same voice a sixteenth ago, 16 a
    quarter, 64 a bar of four quarters. One learned vector per distance can say "the same voice a bar ago" or "the voice
    above now", in any key and at any place. In a list of events (note on, note off, time shift), which is shorter where
    music is sparse, a bar is as many tokens as happen to be in it, and no distance means anything. The price: three of
    four tokens are `hold`, easily guessed, which is why losses are given per note, too.

    Pitches are shared by all voices: a token does not say who sings it, its place does.

    Args:
        ranges: lowest and highest pitch of each voice.
    """

    def __init__(self, ranges: Sequence[Range] = RANGES):
        self.ranges = tuple((int(low), int(high)) for low, high in ranges)
        if not self.ranges or any(not 0 < low <= high < 128 for low, high in self.ranges):
            raise ValueError(f"ranges={ranges} must be pairs of MIDI pitches, lowest and highest, from 1 to 127")
        self.lowest = min(low for low, _ in self.ranges)
        self.highest = max(high for _, high in self.ranges)

    def __len__(self) -> int:
        return len(MARKS) + self.highest - self.lowest + 1

    @property
    def voices(self) -> int:
        return len(self.ranges)

    def token(self, token_id: int) -> str:
        """How one token reads: a pitch as C4, which is middle C."""
        return MARKS[token_id] if token_id < len(MARKS) else pitch_name(self.pitch(token_id))

    def pitch(self, token_id: int) -> int:
        """MIDI's number of a note's token."""
        return token_id - len(MARKS) + self.lowest

    def encode(self, piece: Piece, *, special_tokens: bool = True) -> list[int]:
        """The tokens of a piece, between `<begin>` and `<end>`.

        Raises:
            ValueError: when the piece has another number of voices, or a note is out of its voice's range.
        """
        self.check(piece)
        tokens = torch.where(piece.pitch == REST, REST_TOKEN, HOLD)  # (step, voice)
        tokens = torch.where(piece.onset, piece.pitch - self.lowest + len(MARKS), tokens)
        ids = tokens.flatten().tolist()
        return [BEGIN] * self.voices + ids + [END] if special_tokens else ids

    def check(self, piece: Piece) -> None:
        """Refuse what has no tokens.

        Raises:
            ValueError: naming the first note, its voice and its range.
        """
        if piece.pitch.shape[1] != self.voices:
            raise ValueError(f"the piece has {piece.pitch.shape[1]} voices, this grid {self.voices}")
        for voice, (low, high) in enumerate(self.ranges):
            notes = piece.pitch[:, voice]
            outside = ((notes != REST) & ((notes < low) | (notes > high))).nonzero()
            if len(outside):
                step = int(outside[0])
                name = VOICES[voice] if self.voices == len(VOICES) else f"voice {voice}"
                raise ValueError(
                    f"step {step}: {name} sings {pitch_name(int(notes[step]))} ({int(notes[step])}), outside "
                    f"{pitch_name(low)} to {pitch_name(high)} ({low} to {high}); transpose the piece"
                )

    def decode(self, ids: Sequence[int]) -> Piece:
        """The piece of these tokens; `<begin>`, and what follows `<end>`, are left out.

        What a model may write and no one can sing is mended: a `hold` after nothing is a rest.

        Raises:
            ValueError: when a step is not complete, or an id is no token's.
        """
        ids = [int(token) for token in ids]
        if wrong := [token for token in ids if not 0 <= token < len(self)]:
            raise ValueError(
                f"token {wrong[0]} is not in this vocabulary of {len(self)}: was it made with another one?"
            )
        ids = ids[: ids.index(END)] if END in ids else ids
        ids = [token for token in ids if token != BEGIN]
        if over := len(ids) % self.voices:
            raise ValueError(f"{len(ids)} tokens are no whole steps of {self.voices} voices; cut off the last {over}")
        pitch = torch.zeros(len(ids) // self.voices, self.voices, dtype=torch.long)
        onset = torch.zeros_like(pitch, dtype=torch.bool)
        for index, token in enumerate(ids):
            step, voice = divmod(index, self.voices)
            if token == HOLD and step:
                pitch[step, voice] = pitch[step - 1, voice]
            elif token >= len(MARKS):
                pitch[step, voice], onset[step, voice] = self.pitch(token), True
        return Piece(pitch, onset)

    def singable(self) -> Bool[Tensor, "voice vocab"]:
        """The tokens that each voice may have inside a piece: notes of its range, `hold` and `rest`."""
        pitches = torch.arange(len(self)) - len(MARKS) + self.lowest
        low, high = torch.tensor(self.ranges).T[..., None]  # (voice, 1) each
        allowed = (pitches >= low) & (pitches <= high)
        allowed[:, [REST_TOKEN, HOLD]] = True
        return allowed


def pitch_name(number: int) -> str:
    """C4 for 60, F#4 for 66."""
    return ["C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"][number % 12] + str(number // 12 - 1)
