"""What a profiled run says about its time: against operations counted by hand, and a clock that is told the time."""

import gzip
import json
import re
from dataclasses import replace

import pytest
import resume_script
import torch
from torch import nn

from txlib import devices
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.recipes.language import window_loss
from txlib.recipes.translation import translation_loss
from txlib.training import profile as MODULE
from txlib.training import train
from txlib.training.profile import StepFlops, Stopwatch

CPU = torch.device("cpu")
BLOCK = BlockConfig.of_sizes(16, 2, 40, bias=False, position="rotary_half", dropout=0.1)
CONFIG = replace(resume_script.CONFIG, checkpoint_every=None, validate_every=None)


def make_gpt(**changes):
    return GPT(GPTConfig(30, BLOCK.replace(**changes), layers=3, max_length=32))


def test_operations_of_a_step():
    """Kaplan et al. 2020, §2.1: 6 for each weight of a matrix and each token; and attention's two products."""
    model, (batch, length) = make_gpt(), (5, 12)
    d, ff, layers = 16, 40, 3
    matrices = layers * (4 * d * d + 2 * d * ff) + 30 * d  # the last: the output projection
    attention = layers * 2 * 2 * length * length * d  # of a sentence, forward
    expected = 6 * matrices * batch * length + 3 * attention * batch
    flops = StepFlops(model, window_loss)
    assert flops(torch.zeros(batch, length + 1, dtype=torch.long)) == expected
    assert all(parameter.grad is None and not parameter.is_meta for parameter in model.parameters())


def test_operations_are_counted_once_for_each_shape(monkeypatch):
    flops, counted = StepFlops(resume_script.make_model(), translation_loss), []
    monkeypatch.setattr(flops, "count", lambda batch: counted.append(batch) or len(counted))
    batches = resume_script.batches(0)
    assert [flops(batch) for batch in [*batches, *batches]] == 2 * list(range(1, len(batches) + 1))
    assert len(counted) == len(batches) and counted[0].labels.is_meta


def test_operations_that_depend_on_numbers_are_not_known():
    model = make_gpt(experts=3)
    assert StepFlops(model, window_loss)(torch.zeros(2, 5, dtype=torch.long)) is None


def test_the_stopwatch_adds_up(monkeypatch):
    times = iter([1.0, 5.0, 5.5, 7.5, 7.75, 10.75])
    monkeypatch.setattr(MODULE.time, "perf_counter", lambda: next(times))
    watch = Stopwatch(CPU)
    watch.mark("before")
    watch.restart()
    for part in ("data", "forward", "data", "forward"):
        watch.mark(part)
    assert watch.seconds() == {"data": 0.5 + 0.25, "forward": 2.0 + 3.0}


@pytest.mark.slow
def test_what_a_run_says(tmp_path, capsys, monkeypatch):
    """A trace that a browser can open, a table whose shares make a whole, and the utilization of each 20 steps."""
    monkeypatch.setattr(MODULE, "peak_flops", lambda device, dtype: (1e9, "somebody says"))
    model = resume_script.make_model()
    straight = train(resume_script.make_model(), resume_script.batches, translation_loss, CONFIG, steps=41, quiet=True)
    assert not capsys.readouterr().out
    options = dict(steps=41, out=tmp_path, profile=True, quiet=True)
    progress = train(model, resume_script.batches, translation_loss, CONFIG, **options)
    assert progress.losses == straight.losses
    said = capsys.readouterr().out
    assert said.startswith("peak 0.001 TFLOP/s (somebody says)\nwhere 3 steps spent their time")
    shares = {name: float(share) for share, name in re.findall(r"^ *([\d.]+)% (.+)$", said, re.MULTILINE)}
    parts = {name: shares.pop(name) for name in MODULE.PARTS}
    assert sum(parts.values()) == pytest.approx(100, abs=0.3) and min(parts["forward"], parts["backward"]) > 0
    assert 0 < sum(shares.values()) <= 100.1 and any("matrix product" in name for name in shares)
    with gzip.open(tmp_path / MODULE.TRACE_FILE) as file:
        events = json.load(file)["traceEvents"]
    assert sum(each.get("name", "").startswith("ProfilerStep") for each in events) == 3
    reports = re.findall(r"steps (\d+) to (\d+): ([\d,]+) tokens per second, (\S+) TFLOP/s, (\S+)% of", said)
    assert [report[:2] for report in reports] == [("1", "20"), ("21", "40")]
    for *_, rate, share in reports:
        assert float(share) == pytest.approx(1e5 * float(rate), rel=0.02, abs=0.1)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    tokens, seconds = (float(rows[40].split(",")[place]) - float(rows[20].split(",")[place]) for place in (2, 3))
    flops = StepFlops(model, translation_loss)
    stream = [batch for epoch in range(12) for batch in resume_script.batches(epoch)][40:80]  # two in each step
    assert float(reports[1][3]) == pytest.approx(sum(map(flops, stream)) / seconds / 1e12, rel=0.1)
    assert float(reports[1][2].replace(",", "")) == pytest.approx(tokens / seconds, rel=0.1)


@pytest.mark.usefixtures("unchecked")
def test_a_short_run_has_no_trace(tmp_path, capsys):
    train(
        resume_script.make_model(), resume_script.batches, translation_loss, CONFIG, steps=2, out=tmp_path, profile=True
    )
    assert "no trace: the run was shorter than 7 steps" in capsys.readouterr().out
    assert not (tmp_path / MODULE.TRACE_FILE).exists()
    with pytest.raises(ValueError, match="profile needs out"):
        train(nn.Linear(1, 1), lambda _: [], translation_loss, steps=1, profile=True)


@pytest.mark.parametrize(
    ("name", "tera"),
    [("NVIDIA H200", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA A100-SXM4-80GB", 312)],
)
def test_peaks_of_data_sheets(name, tera, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    peak, source = devices.peak_flops(torch.device("cuda"), torch.bfloat16)
    assert peak == tera * 1e12 and source.endswith("'s data sheet")


def test_the_peak_of_another_device_is_measured():
    before = torch.get_rng_state()
    peak, source = devices.peak_flops(CPU, torch.float32)
    assert torch.get_rng_state().equal(before)  # a profiled run draws the same dropout
    assert 1e8 < peak < 1e14 and source == "a product of 1024 × 1024, measured"
