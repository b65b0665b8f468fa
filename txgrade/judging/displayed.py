"""What a feedback page shows of a run: prints, values and figures."""

from txgrade.authoring.assignment import Assignment
from txgrade.evidence.values import MIME
from txgrade.judging.execute import Executed

MAX_TEXT, MAX_PNG, MAX_OUTPUTS = 20_000, 2_000_000, 20  # of one task


def displayed(assignment: Assignment, executed: Executed) -> dict[str, tuple[dict, ...]]:
    """What a page shows of a run without secrets, by task: prints, values, figures of its cells and those below it."""
    shown: dict[str, list[dict]] = {}
    checks = {task.check for task in assignment.tasks}
    answers = {id: task.id for task in assignment.tasks for id in task.answers}
    task = None
    for cell in assignment.notebook.cells:
        task = answers.get(cell.id, task)
        if cell.cell_type != "code" or cell.id not in executed.outputs:
            continue
        if task is not None:
            figures_only = cell.id in checks
            outputs = (_shown(output, figures_only) for output in executed.outputs[cell.id])
            shown.setdefault(task, []).extend(filter(None, outputs))
    return {id: tuple(outputs[:MAX_OUTPUTS]) for id, outputs in shown.items() if outputs}


def _shown(output: dict, figures_only: bool) -> dict | None:
    data = output.get("data") or {}
    png = data.get("image/png")
    if isinstance(png, str) and len(png) <= MAX_PNG:
        alt: object = output.get("metadata")
        for key in ("image/png", "alt"):
            alt = alt.get(key) if isinstance(alt, dict) else None
        return {"png": png, "alt": alt[:MAX_TEXT]} if isinstance(alt, str) else {"png": png}
    if figures_only or MIME in data:
        return None
    text = output.get("text") if output.get("output_type") == "stream" else data.get("text/plain")
    if output.get("output_type") == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    return {"text": str(text)[:MAX_TEXT]} if text else None
