"""What is kept of the runs of lesson 24: those that its script makes, and what its rivals see."""

import arrays
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = arrays.RUNS.kept()
    rivals = {"a linear layer", "a linear layer on sorted values"}
    faster = {f"{name}, rate {arrays.FASTER:g}" for name in ("Fourier features", "two coordinates")}
    assert kept.keys() == lesson["positions"].keys() | rivals | faster
    for lengths in kept.values():
        assert lengths.keys() == set(map(str, arrays.STEPS))
        assert all(seeds.keys() == {"0", "1", "2"} for seeds in lengths.values())
        assert all(5 < right < 100 for seeds in lengths.values() for right in seeds.values())


def test_only_readers_that_know_places_see_moved_pixels(lesson):
    torch.manual_seed(0)
    ink = torch.rand(2, 1, 8, 8)
    moved = ink.flatten(1)[:, torch.randperm(64)].view_as(ink)
    readers = {name: lesson["DigitReader"](place) for name, place in lesson["positions"].items()}
    readers["sorted"] = arrays.linear(arrays.Sorted())
    for name, reader in readers.items():
        for parameter in reader.parameters():
            parameter.data += 0.5 * torch.randn_like(parameter)
        blind = torch.allclose(reader(ink), reader(moved), atol=1e-4)
        assert blind == (name in ("no positions", "sorted"))
        assert not torch.allclose(reader(ink), reader(1 - ink), atol=1e-4)
