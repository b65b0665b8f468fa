"""Music: who sings what, and when."""

from txlib.music import RANGES, VOICES, Piece
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, ink, panels

BEATS = 4  # of a bar, where a piece does not say
STEPS = 4  # of a beat


def piano_roll(piece: Piece, *, title: str, alt: str, mark: tuple[str, int] | None = None) -> Picture:
    """Each note as a bar at its pitch, as long as it lasts; a voice per color, a fine line where a bar begins.

    Args:
        mark: a name and a step, where a dotted line is drawn.
    """
    bars = piece.bar_lines() or list(range(0, len(piece), BEATS * STEPS))
    named = piece.pitch.shape[1] == len(RANGES)
    with drawing():
        figure, (axes,) = panels(width=8.2, height=3.4)
        for bar in bars:
            axes.axvline(bar, color="#d9d9d9", linewidth=0.8, zorder=0)
        for voice in range(piece.pitch.shape[1]):
            for start, steps, pitch in piece.notes(voice):
                axes.barh(pitch, steps - 0.25, left=start, height=0.8, color=ink(PALETTE[voice % len(PALETTE)], 3))
            if notes := piece.notes(voice):
                name = VOICES[voice] if named else f"voice {voice}"
                place = (len(piece) + 1, notes[-1][2])
                axes.text(*place, name, color=ink(PALETTE[voice % len(PALETTE)]), va="center")
        axes.set(xlabel="step (sixteenths)", ylabel="pitch (semitones, 60 = C4)", xlim=(-0.5, len(piece) + 0.5))
        axes.set_xticks(range(0, len(piece) + 1, 16))
        axes.set_title(title)
        if mark is not None:
            axes.axvline(mark[1], color=GRAY, linestyle=":", linewidth=1.8)
            axes.annotate(
                mark[0],
                (mark[1], 1),
                xycoords=("data", "axes fraction"),
                xytext=(5, -2),
                textcoords="offset points",
                va="top",
                color=GRAY,
            )
        return Picture(figure, alt)
