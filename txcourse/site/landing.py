"""The first page of the site and those of the parts: stills of the tour, and a picture that fills up part by part."""

import base64
from html import escape
from pathlib import Path

from txlib.plots.picture import PALETTE

STILLS = {"1": "Turn a query.", "2": "Watch a translator look back.", "4": "Which of the two models is useless?"}
COLORS = dict(enumerate(PALETTE[:5], start=1))  # of the parts
BOXES = (  # part, left, top, width, text; in rows from the input at the bottom to what is written at the top
    (1, 215, 10, 100, "translate"),
    (2, 325, 10, 90, "continue"),
    (2, 425, 10, 100, "fill in"),
    (3, 535, 10, 100, "classify"),
    (2, 425, 70, 210, "sampling, a cache, drafts"),
    (5, 15, 70, 190, "a look inside"),
    (1, 215, 70, 200, "probabilities"),
    (2, 425, 130, 210, "experts, one block as a loop"),
    (1, 215, 130, 200, "feed-forward"),
    (4, 15, 130, 190, "one device, many devices"),
    (4, 15, 190, 190, "sparse, low rank, flash"),
    (1, 215, 190, 200, "attention, many heads"),
    (2, 425, 190, 210, "grouped and latent queries"),
    (1, 215, 250, 200, "embeddings + positions"),
    (3, 425, 250, 210, "patches, notes, coordinates"),
    (1, 215, 310, 100, "text"),
    (3, 325, 310, 90, "pictures"),
    (3, 425, 310, 100, "music"),
    (3, 535, 310, 100, "sets"),
)


def stills(course: Path) -> tuple[str, dict[str, bytes]]:
    """Return the paragraph with the tour's pictures, and the pictures by name."""
    import nbformat

    tour, section, lines, files = nbformat.read(course / "notebooks/00_start_here.ipynb", as_version=4), "", [], {}
    for cell in tour.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            section = cell.source.split()[1]
        for output in cell.get("outputs", []):
            png, name = output.get("data", {}).get("image/png"), f"stills/{section}.png"
            if png and section in STILLS and name not in files:
                files[name] = base64.b64decode(png)
                alt = output.data["text/plain"].partition(": ")[2]
                lines.append(f'[![{alt}]({name})](#lesson-00-{section} "{STILLS[section]}")')
    return "```{container} stills\n" + "\n".join(lines) + "\n```\n", files


def diagram(parts: int) -> str:
    """Return a picture of a Transformer as SVG; what the first `parts` parts of the course build is in color."""
    built = [text for part, *_, text in BOXES if part <= parts]
    boxes = "".join(_box(*box, built=box[0] <= parts) for box in BOXES)
    arrow = '<path d="M315 {}v-23m-4 6l4 -6l4 6" stroke="currentColor" fill="none"/>'
    arrows = "".join(map(arrow.format, (70, 130, 190, 250, 310)))
    alt = f"A Transformer, from its input at the bottom to what it writes at the top. Built so far: {', '.join(built)}."
    return (
        f'<svg class="parts" viewBox="0 0 650 350" role="img" aria-label="{escape(alt)}" font-size="14">'
        f"{boxes}{arrows}</svg>\n"
    )


def _box(part: int, left: int, top: int, width: int, text: str, built: bool) -> str:
    style = f'stroke="{COLORS[part]}" fill="{COLORS[part]}" fill-opacity="0.2"'
    empty = 'stroke="currentColor" stroke-opacity="0.4" stroke-dasharray="4 4" fill="none"'
    return (
        f'<rect x="{left}" y="{top}" width="{width}" height="36" rx="6" {style if built else empty}/>'
        f'<text x="{left + width / 2}" y="{top + 23}" text-anchor="middle" fill="currentColor" '
        f'opacity="{1 if built else 0.5}">{escape(text)}</text>'
    )
