"""Music on a grid: pieces for several voices, and their tokens."""

from txlib.music.grid import GridTokenizer, pitch_name
from txlib.music.piece import RANGES, REST, STEPS_PER_QUARTER, VOICES, Piece

__all__ = ["RANGES", "REST", "STEPS_PER_QUARTER", "VOICES", "GridTokenizer", "Piece", "pitch_name"]
