"""An autograder for Gradescope that shows grades which were given here, and runs nothing of what is submitted.

Gradescope runs an autograder in its own container, beside the learner's code, which could lie to it. So this one holds
finished grades, each with the hash of the notebook that it is for, and only looks them up; what it says of the sandbox
is true of where the grade was given. Programs, metadata and results have the form of Gradescope's documentation:
https://gradescope-autograders.readthedocs.io/en/latest/specs/ (2026)
"""

import json
from collections.abc import Iterable
from typing import Any

from txgrade.pages.page import ISOLATION
from txgrade.records.result import VERDICTS, Result, TaskResult
from txgrade.text import printable

PROGRAMS = ("setup.sh", "run_autograder")
SETUP = "#!/bin/sh\ncommand -v python3 > /dev/null || { apt-get update && apt-get install -y python3; }\n"
RUN = """#!/usr/bin/env python3
import hashlib, json, os, pathlib

root = pathlib.Path(os.environ.get("AUTOGRADER_ROOT", "/autograder"))
grades = json.loads((root / "source" / "grades.json").read_text(encoding="utf-8"))
users = json.loads((root / "submission_metadata.json").read_text(encoding="utf-8")).get("users") or []
keys = [str(user.get(key) or "").strip().lower() for user in users for key in ("email", "sid")]
found = next((grades[key] for key in keys if key in grades), None)
files = [path for path in (root / "submission").rglob("*.ipynb") if path.is_file()]
hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
if found and found["sha256"] in hashes:
    results = found["results"]
else:
    results = {"score": 0, "output": "This version is not graded yet. Your instructor grades it, and runs this again."}
(root / "results").mkdir(exist_ok=True)
(root / "results" / "results.json").write_text(json.dumps(results), encoding="utf-8")
"""


def autograder(matched: Iterable[Any]) -> dict[str, bytes]:
    """Return the files of the autograder for some `Matched` grades."""
    grades = {}
    for one in matched:
        grade = {"sha256": one.result.submission_hash, "results": results(one.result)}
        for key in (one.person.email, one.person.student_id):
            if key:
                grades[key.strip().lower()] = grade
    text = json.dumps(grades, indent=1, sort_keys=True) + "\n"
    return {"setup.sh": SETUP.encode(), "run_autograder": RUN.encode(), "grades.json": text.encode()}


def results(result: Result) -> dict:
    """Return one grade as Gradescope's `results.json` has it."""
    where = ISOLATION.get(result.isolation, result.isolation)
    output = [f"Graded by your instructor, {where}. Gradescope ran none of your code."]
    output += [note.text for note in result.notes if note.kind == "late" and result.penalty]
    return {
        "score": result.score,
        "output": printable("\n".join(output)),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(number, task) for number, task in enumerate(result.tasks, 1)],
    }


def _test(number: int, task: TaskResult) -> dict:
    parts = [f"{'right' if part.right else 'not yet'}: {part.label}" for part in task.parts]
    test = {
        "name": printable(task.title or task.id),
        "number": str(number),
        "score": task.points,
        "max_score": task.max_points,
        "output": printable("\n".join([VERDICTS[task.verdict], *task.lines, *parts])),
        "output_format": "text",
        "visibility": "visible",
    }
    if task.verdict != "pending":
        test["status"] = "passed" if task.points >= task.max_points else "failed"
    return test
