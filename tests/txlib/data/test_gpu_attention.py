"""The record of the kernels that lesson 34 compares is the benchmark's."""

import json

import gpu_attention


def test_the_shipped_record_is_what_the_benchmark_measured():
    assert json.loads(gpu_attention.OUT.read_text()) == gpu_attention.speeds()


def test_every_row_has_three_kernels():
    by_mask = gpu_attention.speeds()["TFLOP/s"]
    assert by_mask.keys() == {"causal", "window 256"}
    assert all(len(kernels) == 3 for lengths in by_mask.values() for kernels in lengths.values())
