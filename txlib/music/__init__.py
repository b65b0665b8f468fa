"""Music on a grid: pieces for several voices, their tokens, their sound."""

from txlib.music.audio import listen, synthesize, wav
from txlib.music.grid import GridTokenizer, pitch_name
from txlib.music.midi import read_midi, write_midi
from txlib.music.piece import RANGES, REST, STEPS_PER_QUARTER, VOICES, Piece

__all__ = [
    "RANGES",
    "REST",
    "STEPS_PER_QUARTER",
    "VOICES",
    "GridTokenizer",
    "Piece",
    "listen",
    "pitch_name",
    "read_midi",
    "synthesize",
    "wav",
    "write_midi",
]
