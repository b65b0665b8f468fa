"""The grader's end of a kernel's pipes: whatever is written into them, it ends in time, with outputs of known forms."""

import json
import os
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txgrade.sandbox import kernel as kernels
from txgrade.sandbox.kernel import FIELDS, Cell, Gone, Kernel, OutOfTime
from txgrade.sandbox.limits import Limits


class Wired(Kernel):
    """A kernel that is nothing but its pipes; `says` is all that it ever writes."""

    def __init__(self, says: bytes, limits: Limits, ends: bool = False):
        self.says, self.ends = says, ends
        super().__init__(limits)

    def _start(self) -> None:
        self.listens, self._requests = os.pipe()
        self._messages, self.speaks = os.pipe()
        self._open = {self.listens, self._requests, self._messages}
        os.set_blocking(self._requests, False)
        threading.Thread(target=self._speak, daemon=True).start()

    def _speak(self) -> None:
        data = memoryview(self.says)
        try:
            while data:
                data = data[os.write(self.speaks, data) :]
        except OSError:  # nobody reads any more
            self.ends = True
        if self.ends:
            os.close(self.speaks)


def ran(says: bytes, seconds: float = 0.2, ends: bool = True, **limits: float) -> tuple[Cell, Exception | None]:
    """What comes of a cell whose kernel says this."""
    cell, reason = Cell(), None
    with Wired(says, Limits(**{"output_mb": 1} | limits), ends) as kernel:
        try:
            kernel.run("1", 7, seconds, cell)
        except (Gone, OutOfTime) as stopped:
            reason = stopped
    return cell, reason


DONE = b'{"done": 7, "error": null}\n'


def line(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def shown(text: str) -> dict:
    return {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}


def test_outputs_come_in_order_until_the_cell_is_done():
    cell, reason = ran(line(output=shown("a")) + line(output=shown("b")) + DONE + line(output=shown("c")))
    assert reason is None and cell.error is None
    assert [each["data"]["text/plain"] for each in cell.outputs] == ["a", "b"]


def test_a_display_is_updated_in_its_own_cell():
    said = line(output=shown("a"), display_id="x") + line(update={"data": {"text/plain": "b"}}, display_id="x")
    said += line(update={"data": {"text/plain": "c"}}, display_id="unknown")
    assert [each["data"]["text/plain"] for each in ran(said + DONE)[0].outputs] == ["b"]


def test_why_a_kernel_ended_does_not_depend_on_how_soon_a_busy_zygote_looks(monkeypatch):
    looked = []
    monkeypatch.setattr(kernels, "cpu_seconds", lambda address, name: looked.append(name))
    with Wired(b"", Limits(), ends=True) as kernel:
        kernel._address, kernel._name = "there", "ab12"
        told = {"ended": "it ended itself (exit status 0)"}
        kernel._lease = SimpleNamespace(read=lambda timeout: told if looked else None, close=lambda: None)
        with pytest.raises(Gone, match="exit status 0"):
            kernel.run("1", 7, 60, Cell())
    assert looked == ["ab12"]


def test_another_cells_end_is_not_this_ones():
    cell, reason = ran(line(done=6, error=None) + line(done=True, error=None) + line(done=7.0, error=None), ends=False)
    assert isinstance(reason, OutOfTime)


@pytest.mark.parametrize(
    ("says", "reason"),
    [(b"", Gone), (b"x" * 3_000_000, Gone), (b"\n" * 3_000_000, Gone), (line(output=shown("x" * 2_000_000)), Gone)],
)
def test_it_ends_with_a_reason(says, reason):
    assert isinstance(ran(says, 20)[1], reason)


def test_a_flood_ends_when_the_time_is_over():
    """Whoever never stops writing: the clock is looked at between any two lines."""
    began = time.monotonic()
    _, reason = ran(b"{}\n" * 5_000_000, seconds=0.5, output_mb=10_000)
    assert isinstance(reason, OutOfTime) and time.monotonic() - began < 5


def test_it_ends_where_nobody_reads_the_request():
    with Wired(b"", Limits()) as kernel, pytest.raises(OutOfTime):
        kernel.run("x" * 1_000_000, 7, 0.3, Cell())


def test_json_that_would_grow_is_passed_over():
    grown = b'{"output": {"output_type": "display_data", "data": {"x+json": [' + b"{}," * 320_000 + b"{}]}}}\n"
    deep = b'{"output": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    digits = b'{"done": ' + b"9" * 10_000 + b"}\n"
    cell, reason = ran(grown + deep + digits + DONE, 20, output_mb=4)
    assert reason is None and cell.outputs == []


def test_half_a_character_becomes_none():
    says = b'{"output": {"output_type": "stream", "name": "stdout", "text": "\\ud800 \\ud83d\\ude00"}}\n' + DONE
    assert ran(says)[0].outputs[0]["text"] == "? \U0001f600"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
)
words = ["output", "update", "display_id", "clear", "done", "error", "output_type", "data", "name", "text", *FIELDS]
messages = st.dictionaries(st.sampled_from(words), json_values, max_size=5)
outputs = st.fixed_dictionaries(
    {"output_type": st.sampled_from(list(FIELDS)) | json_values},
    optional={name: json_values for name in ("data", "metadata", "name", "text", "ename", "evalue", "traceback")},
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=99) | messages | st.fixed_dictionaries({"output": outputs}), max_size=9))
def test_whatever_it_says(said):
    says = b"".join(each if isinstance(each, bytes) else line(**each) for each in said)
    cell, reason = ran(says + b"\n" + DONE, 20)
    assert reason is None  # nonsense is passed over
    for output in cell.outputs:
        for name, kind in FIELDS[output["output_type"]].items():
            assert isinstance(output[name], kind)
    json.dumps(cell.outputs).encode()
    if cell.error is not None:
        assert all(isinstance(each, str) for each in cell.error)
