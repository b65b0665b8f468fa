"""nbval with a tolerance: evidence in a notebook's outputs is compared as numbers, not as text.

    pytest --nbval -p txgrade.judging.replay executed.ipynb        # runs the cells, as nbval does

Pictures are compared by their descriptions: nbval leaves out a PNG, and here also the HTML that holds it.
The judge uses the same comparison without a kernel: `Replay` has nbval compare what sandboxes displayed earlier with
the reference's executed notebook, in a process that student code never enters. That comparison, made once a check,
decides; points, diagnosis and sentences are read from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from txgrade.evidence.recordings import Comparison, compared
from txgrade.evidence.validation import bundle_problem
from txgrade.evidence.values import MIME


def bundles(outputs: list) -> list:
    """Return the evidence among a cell's outputs, as it came."""
    return [output["data"][MIME] for output in outputs if MIME in (output.get("data") or {})]


@dataclass
class Checked:
    """The outputs of one check of one run, and what nbval's comparison with the reference's made of them."""

    outputs: list | None  # None if the check was not reached
    task: str
    seed: int  # the kernel's
    cell: str = ""  # the check cell's id
    item: str = ""  # what pytest calls it
    decide: Callable[["Checked"], str | None] | None = None  # if no reference decides: return None to pass, or why not
    problem: str | None = None  # why the evidence is missing, or not well formed
    comparison: Comparison | None = None
    passed: bool = False  # as pytest reports it

    @property
    def bundle(self) -> dict | None:
        """Return the evidence if it is well formed."""
        return None if self.problem or not self.outputs else bundles(self.outputs)[0]

    def look(self) -> str | None:
        """Return what is wrong; None if there is exactly one bundle, well formed, of this task and seed."""
        displayed = bundles(self.outputs or [])
        if len(displayed) != 1:
            self.problem = f"its check displayed {len(displayed)} bundles of evidence instead of one"
        else:
            self.problem = bundle_problem(displayed[0], self.task, self.seed)
        return self.problem

    def compare(self, expected: dict) -> str | None:
        """Compare the evidence with what is expected; return what differs first, if something does."""
        if self.look():
            return self.problem
        self.comparison = compared(bundles(self.outputs or [])[0], expected)
        return self.comparison.differs and self.comparison.differs[1]


class EvidenceCell(IPyNbCell):
    """nbval's cell; evidence is compared with the reference's tolerance, all other outputs as nbval does."""

    def compare_outputs(self, test: list, ref: list, skip_compare: Any = None) -> bool:
        expected = bundles(ref)
        words = Checked(test, expected[0]["task"], expected[0]["seed"]).compare(expected[0]) if expected else None
        self.comparison_traceback = [words] if words else []
        return not words and super().compare_outputs(_others(test), _others(ref), skip_compare)


class EvidenceFile(IPyNbFile):
    """nbval's notebook, with our cells."""

    def collect(self) -> Iterator[pytest.Item]:
        for cell in super().collect():
            yield EvidenceCell.from_parent(
                self, name=cell.name, cell_num=cell.cell_num, cell=cell.cell, options=cell.options
            )


class ReplayCell(EvidenceCell):
    """One check of one run, already executed."""

    checked: Checked

    def runtest(self) -> None:
        if not self.compare_outputs(self.checked.outputs or [], self.cell.outputs):
            self.raise_cell_error("Evidence differs", " ".join(self.comparison_traceback))

    def compare_outputs(self, test: list, ref: list, skip_compare: Any = None) -> bool:
        """Evidence alone counts: what else an answer displays is its own affair."""
        words: str | None = "the check was not reached"
        if self.checked.outputs is not None:
            words = self._difference(bundles(ref))
        self.comparison_traceback = [words] if words else []
        return not words

    def _difference(self, expected: list) -> str | None:
        checked = self.checked
        if checked.decide:
            return checked.decide(checked)
        if [(bundle["task"], bundle["seed"]) for bundle in expected] != [(checked.task, checked.seed)]:
            return "the reference displayed no evidence of this task and seed"
        return checked.compare(expected[0])

    def reportinfo(self) -> tuple:
        return self.path, 0, f"{self.path.stem}::{self.name}"


class ReplayFile(IPyNbFile):
    """The reference's executed notebook of one seed; its cells are compared with those of `checks`."""

    checks: list[Checked]

    def setup(self) -> None:
        """Starts no kernel."""

    def teardown(self) -> None:
        """Stops none."""

    def collect(self) -> Iterator[pytest.Item]:
        cells = {cell.cell.id: cell for cell in super().collect()}
        for checked in self.checks:
            cell = cells[checked.cell]
            item = ReplayCell.from_parent(
                self, name=checked.item, cell_num=cell.cell_num, cell=cell.cell, options=cell.options
            )
            item.checked = checked
            yield item


class Replay:
    """A pytest plugin for one submission: the checks to compare with each of the reference's notebooks.

    A `Checked` is `passed` if pytest reports its item as passed.
    """

    def __init__(self, checks: dict[Path, list[Checked]]):
        self.checks = checks
        self.by_name = {(path.stem, checked.item): checked for path, several in checks.items() for checked in several}

    def pytest_collect_file(self, file_path: Path, parent: Any) -> ReplayFile | None:
        if file_path not in self.checks:
            return None
        file = ReplayFile.from_parent(parent, path=file_path)
        file.checks = self.checks[file_path]
        return file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.outcome == "passed" and not hasattr(report, "wasxfail"):
            path, name = report.nodeid.rsplit("::", 1)
            self.by_name[Path(path).stem, name].passed = True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collect_file(file_path: Path, parent: Any) -> Any:
    collected = yield
    if any(isinstance(file, IPyNbFile) for file in collected):
        return [EvidenceFile.from_parent(parent, path=file_path)]
    return collected


def _others(outputs: list) -> list:
    """Return the outputs that are no evidence; of a picture, only its description."""
    return [_without_pixels(output) for output in outputs if MIME not in (output.get("data") or {})]


def _without_pixels(output: Any) -> Any:
    data = output.get("data") or {}
    if not {"image/png", "text/html"} <= data.keys():
        return output
    described = {kind: content for kind, content in data.items() if kind != "text/html"}
    return type(output)(output | {"data": described})
