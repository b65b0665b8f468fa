"""Compare seconds per submission: `txgrade grade` against nbgrader, on the same assignment and the same ten answers.

    python benchmarks/grading.py [--rounds 3] [--save]
    python benchmarks/grading.py --class 20 100 1000 [--workers 1 2 4] [--kill 5] [--save]

Both start from nothing and end with feedback pages: `nbgrader autograde` and `generate_feedback` (one submission at a
time; its tests are asserts in the learner's kernel), and `txgrade grade` (two seeds, sealed, as many processes as it
chooses). The assignment has an import, three answers and three tests. Both must give the scores that the answers
deserve. `--class` measures `txgrade grade` alone, with classes of these sizes: see `classes.py`.
"""

import argparse
import csv
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import classes
import nbformat
from compare import RESULTS, Row, in_turns, median, save, seconds, table

from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.release import release

HERE = Path(__file__).parent
SOURCE = HERE / "assignment" / "attention.py"
NAME = "attention"
LIMIT = 0.8  # seconds a submission on two cores
PACKAGES = ("nbgrader", "nbconvert", "ipykernel", "jupyter-client", "papermill", "nbval", "torch", "txgrade")

# The same tests as asserts.
ASSERTS = {
    "check-scores": """for shape in ((3, 5, 8), (4, 6, 7)):
    n, m, d_k = shape
    q, k = torch.randn(2, n, d_k), torch.randn(2, m, d_k)
    torch.testing.assert_close(scores(q[0], k[0]), torch.einsum("nd,md->nm", q[0], k[0]) / d_k**0.5)
    torch.testing.assert_close(scores(q, k), torch.einsum("bnd,bmd->bnm", q, k) / d_k**0.5)""",
    "check-causal-mask": """for n in (1, 2, 7):
    expected = torch.tensor([[j <= i for j in range(n)] for i in range(n)])
    torch.testing.assert_close(causal_mask(n), expected)""",
    "check-attention": """q, k, v = 2 * torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 3)
for mask in (torch.ones(4, 4).bool(), torch.ones(4, 4).tril().bool()):
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attention(q, k, v, mask), expected)""",
}
RIGHT = {
    "scores": "def scores(q, k):\n    return q @ k.mT / q.shape[-1] ** 0.5",
    "causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()",
    "attention": "def attention(q, k, v, mask):\n"
    "    return scores(q, k).masked_fill(~mask, float('-inf')).softmax(-1) @ v",
}
OTHER = {  # right too, in other words
    "scores": "def scores(q, k):\n    return torch.einsum('...nd,...md->...nm', q / q.shape[-1] ** 0.5, k)",
    "causal-mask": "def causal_mask(n):\n    i = torch.arange(n)\n    return i[None] <= i[:, None]",
    "attention": "def attention(q, k, v, mask):\n    weight = scores(q, k).exp() * mask\n"
    "    return weight / weight.sum(-1, keepdim=True) @ v",
}
# Each submission's answers, and the points that they deserve.
SUBMISSIONS = {
    "ada": (RIGHT, 6),
    "ben": (OTHER, 6),
    "cleo": (RIGHT | {"scores": OTHER["scores"]}, 6),
    "dan": (RIGHT | {"attention": OTHER["attention"]}, 6),
    "eve": (OTHER | {"causal-mask": RIGHT["causal-mask"]}, 6),
    "finn": (RIGHT | {"causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).triu().bool()"}, 4),
    "gil": (RIGHT | {"causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).tril()"}, 4),
    "hana": (RIGHT | {"attention": "def attention(q, k, v, mask):\n    return scores(q, k).softmax(-1) @ v"}, 4),
    "ivo": (RIGHT | {"attention": "def attention(q, k, v, mask):\n    return v @ scores(q, k)"}, 4),
    "jo": ({"scores": RIGHT["scores"]}, 2),
}
# What else a large class hands in: nothing, a notebook that ends its kernel, files that are no notebooks.
STRANGE: list[tuple[dict[str, str] | str, int]] = [
    ({}, 0),
    (RIGHT | {"scores": "import os; os._exit(0)"}, 2),  # the attention uses the scores, so it waits for them
    ("truncated", 0),
    ("I could not do it, sorry.", 0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--class", dest="classes", type=int, nargs="+", metavar="N", help="grade classes of N instead")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4], help="of a Dask cluster, for --class")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill a worker after each N grades, once more")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where classes and their results stay")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/grading.json, or _class.json")
    options = parser.parse_args()
    if options.classes:
        people = [*STRANGE, *SUBMISSIONS.values(), *SUBMISSIONS.values()]
        for run in classes.measure(SOURCE, people, options.classes, options.workers, options.kill, options.keep):
            print(classes.row(run), flush=True)
            if options.save or options.keep:
                classes.save([run], (RESULTS if options.save else options.keep) / "grading_class.json")
        return
    if importlib.util.find_spec("nbgrader") is None:
        raise SystemExit('nbgrader is missing; in the course\'s folder: pip install -c constraints.txt -e ".[bench]"')
    with tempfile.TemporaryDirectory() as folder:
        peer, ours = Peer(Path(folder, "nbgrader")), Ours(Path(folder, "txgrade"))
        measured = in_turns(
            {
                "nbgrader": lambda: seconds(peer.grade) / len(SUBMISSIONS),
                "txgrade": lambda: seconds(ours.grade) / len(SUBMISSIONS),
            },
            options.rounds,
        )
        peer.check_scores()
        ours.check_scores()
    rows = [
        Row(
            "grading a submission, feedback included",
            "s",
            median(measured["nbgrader"]),
            median(measured["txgrade"]),
            LIMIT,
        )
    ]
    print(table(rows))
    if options.save:
        print(save("grading", rows, measured, PACKAGES))


class Peer:
    """nbgrader, with its assignment released and the submissions collected."""

    def __init__(self, folder: Path):
        self.fresh, self.folder = folder / "fresh", folder / "course"
        write(self.fresh / "source" / NAME / f"{NAME}.ipynb", with_asserts())
        (self.fresh / "nbgrader_config.py").write_text("c = get_config()\n")
        command("nbgrader", "generate_assignment", NAME, "--create", folder=self.fresh)
        released = nbformat.read(self.fresh / "release" / NAME / f"{NAME}.ipynb", as_version=4)
        for student, (answers, _) in SUBMISSIONS.items():
            write(self.fresh / "submitted" / student / NAME / f"{NAME}.ipynb", answered(released, answers))
        self._clear()

    def grade(self) -> None:
        command("nbgrader", "autograde", NAME, "--create", folder=self.folder)
        command("nbgrader", "generate_feedback", NAME, folder=self.folder)
        pages = list(self.folder.glob("feedback/*/*/*.html"))
        if len(pages) != len(SUBMISSIONS):
            raise SystemExit(f"nbgrader made {len(pages)} pages of {len(SUBMISSIONS)}")
        self._keep()

    def check_scores(self) -> None:
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{self.last / 'gradebook.db'}") as book:
            compare_scores("nbgrader", {each.student.id: each.score for each in book.assignment_submissions(NAME)})

    def _keep(self) -> None:
        """Keep the course that was graded last; the next round has a fresh one."""
        self.last = self.folder.with_name("last")
        shutil.rmtree(self.last, ignore_errors=True)
        self.folder.rename(self.last)
        self._clear()

    def _clear(self) -> None:
        shutil.copytree(self.fresh, self.folder)


class Ours:
    """The same exercise in our form, released, and the same answers."""

    def __init__(self, folder: Path):
        self.folder, self.round = folder, 0
        source = folder / "solutions" / SOURCE.name
        source.parent.mkdir(parents=True)
        shutil.copy(SOURCE, source)
        released = nbformat.read(release(source, run_solution=False).exercise, as_version=4)
        for student, (answers, _) in SUBMISSIONS.items():
            write(folder / "submitted" / f"{student}.ipynb", answered(released, answers))

    def grade(self) -> None:
        self.round += 1  # a new folder: nothing is known of earlier rounds
        command(
            "txgrade",
            "grade",
            "--assignment",
            f"solutions/{SOURCE.name}",
            "--submissions",
            "submitted",
            "--out",
            f"results-{self.round}",
            folder=self.folder,
        )
        pages = list(self.folder.glob(f"results-{self.round}/feedback/*.html"))
        if len(pages) != len(SUBMISSIONS):
            raise SystemExit(f"txgrade made {len(pages)} pages of {len(SUBMISSIONS)}")

    def check_scores(self) -> None:
        with open(self.folder / f"results-{self.round}" / "grades.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        compare_scores("txgrade", {row["submission"]: float(row["score"]) for row in rows})
        if {row["isolation"] for row in rows} != {"sealed"}:
            raise SystemExit("txgrade did not grade in a sealed sandbox: the times mean nothing")


def with_asserts() -> object:
    """nbgrader's source of the same assignment: our exercise with asserts for checks."""
    notebook = read_exercise(SOURCE).notebook
    notebook.cells = [cell for cell in notebook.cells if not cell.metadata.get("tags")]
    for cell in notebook.cells:
        cell.source = cell.source.replace("\n\nfrom txgrade import check", "")
        id = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = ASSERTS.get(id, cell.source)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def answered(notebook: object, answers: dict[str, str]) -> object:
    """A learner's notebook: the released one with these answers."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        cell.source = answers.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
    return notebook


def compare_scores(who: str, found: dict[str, float]) -> None:
    deserved = {student: float(points) for student, (_, points) in SUBMISSIONS.items()}
    if found != deserved:
        raise SystemExit(f"{who} gave {found} instead of {deserved}: the times mean nothing")


def write(path: Path, notebook: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def command(module: str, *words: str, folder: Path) -> None:
    """Run a command of this Python's environment; its last words where it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(words)} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
