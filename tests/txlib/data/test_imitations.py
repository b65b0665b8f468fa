"""What is kept of the imitated heads of lesson 32: fits on equal terms, three seeds each."""

import imitations
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = imitations.RUNS.kept()
    assert kept.keys() == set(lesson["WAYS"])
    for seeds in kept.values():
        assert seeds.keys() == {"0", "1", "2"}
        assert all(torch.tensor(errors).shape == (4, 4) for errors in seeds.values())


def test_all_ways_have_as_many_parameters(lesson):
    counts = [sum(weight.numel() for weight in lesson["imitator"](way)[0]) for way in lesson["WAYS"]]
    assert counts == [4 * 16_384] * 2


def test_linformer_and_compression_begin_with_the_same_means(lesson):
    q, k, v = torch.randn(3, 1, 4, 256, 32)
    mixed, compressed = (lesson["imitator"](way)[1](q, k, v) for way in ("Linformer", "compressed"))
    torch.testing.assert_close(mixed, compressed)
