"""The record of training on a GPU that lessons 35 and 37 show is the benchmark's."""

import json

import gpu_training


def test_the_shipped_record_is_what_the_benchmark_measured():
    assert json.loads(gpu_training.OUT.read_text()) == gpu_training.gpu_training()
