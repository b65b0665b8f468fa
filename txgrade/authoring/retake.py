"""The source of an exercise's variant: `txgrade release --variant SEED` writes it next to the original.

From then on it is an exercise like any other, to be proved, checked and graded by its own reference.
"""

import ast
import re
import zlib
from pathlib import Path
from typing import Any

from txgrade.authoring.cells import is_mistakes, is_parameters
from txgrade.authoring.declarations import is_due
from txgrade.authoring.exercise import ExerciseError, read_exercise
from txgrade.authoring.variants import settle
from txgrade.records.lateness import deadline


def write_variant(source: Path | str, seed: int, due: str | None = None) -> tuple[Path, dict[str, Any]]:
    """Write `NN_name_variant_SEED.py` next to the source, and return its path and the values drawn.

    The source's deadline is past by then: a variant has none, or is `due` at another time by the same rule.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: nothing in it varies, its form is wrong, or the variant's file exists and differs; a new
            deadline for a source without a rule, or one that is no date.
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
    if due is not None:
        if exercise.due is None:
            raise ExerciseError(source.stem, [f"--due {due}: its source has no due(…) whose rule would hold"])
        try:
            deadline(exercise.due | {"when": due})
        except ValueError as reason:
            raise ExerciseError(source.stem, [str(reason)]) from reason
    for cell in notebook.cells:
        if is_mistakes(cell):
            cell.source = _with_deadline(cell.source, due)
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


def _with_deadline(source: str, due: str | None) -> str:
    """Return a cell's source with its call of `due` for another time, or without it."""
    lines = source.splitlines()
    for statement in reversed(ast.parse(source).body):
        if is_due(statement):
            call: Any = statement
            if due is not None:
                call.value.args = [ast.Constant(due)]
                call.value.keywords = [keyword for keyword in call.value.keywords if keyword.arg != "when"]
            lines[statement.lineno - 1 : statement.end_lineno] = [ast.unparse(call)] if due is not None else []
    return "\n".join(lines)
