"""The source of an exercise's variant: `txgrade release --variant SEED` writes it next to the original.

From then on it is an exercise like any other, to be proved, checked and graded by its own reference.
"""

import re
import zlib
from pathlib import Path
from typing import Any

from txgrade.authoring.cells import is_parameters
from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.variants import settle


def write_variant(source: Path | str, seed: int) -> tuple[Path, dict[str, Any]]:
    """Write `NN_name_variant_SEED.py` next to the source, and return its path and the values drawn.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: nothing in it varies, its form is wrong, or the variant's file exists and differs.
    """
    import jupytext

    source = Path(source)
    exercise = read_exercise(source)  # refuses what has no form
    if exercise.variant is not None:
        raise ExerciseError(source.stem, ["is a variant itself: give the source that it was made of"])
    if seed < 0:
        raise ExerciseError(source.stem, [f"--variant {seed}: choose a whole number from 0 on"])
    notebook = jupytext.read(source, fmt="py:percent" if source.suffix == ".py" else None)
    drawn, _ = settle(notebook, source.stem, seed)
    if not drawn:
        raise ExerciseError(
            source.stem,
            [
                "nothing in it varies, so there is no variant of it. Say what may vary in a cell tagged `variant`, "
                "e.g. WINDOW = variant(8, 12, 16): see docs/exercises.md, Variants"
            ],
        )
    name = f"{source.stem}_variant_{seed}"
    for cell in notebook.cells:
        if is_parameters(cell):
            cell.metadata["variant"] = seed
            cell.source = re.sub(r"^(seed\s*=\s*)\d+", rf"\g<1>{zlib.crc32(name.encode())}", cell.source, flags=re.M)
    first = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    first.source = re.sub(r"^(# .+)$", rf"\1 · variant {seed}", first.source, count=1, flags=re.M)
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": "-all"}
    text = jupytext.writes(notebook, fmt="py:percent" if source.suffix == ".py" else "ipynb")
    path = source.with_name(name + source.suffix)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ExerciseError(
            source.stem,
            [f"{path} exists and differs from what this source makes now: rename or remove it, then release again"],
        )
    path.write_text(text, encoding="utf-8")
    return path, drawn
