"""What is kept of the runs of lesson 21: those that its script makes."""

import torch
import wardrobe


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = wardrobe.RUNS.kept()
    assert kept["mixers"].keys() == lesson["mixers"].keys() | {"convolution + non-local"}
    models = {name + how for name in ("convolutional", "ViT") for how in ("", ", augmented")}
    assert kept["few"].keys() == models
    assert kept["transformers"].keys() == {"ViT", "ViT without positions"}
    every = [seeds for part in kept.values() for seeds in part.values()]
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in every)
    assert all(0.1 < run["right"] < 1 for seeds in every for run in seeds.values())


def test_the_lessons_networks_are_those_that_were_run(lesson):
    for name, mixer in lesson["mixers"].items():
        model, run = lesson["network"](mixer), wardrobe.RUNS.kept()["mixers"][name]["0"]
        assert run["parameters"] == sum(each.numel() for each in model.parameters())
        assert run["operations"] == lesson["work"](model.eval())


def test_augmentation_turns_and_moves_whole_pictures(lesson):
    torch.manual_seed(0)
    x = torch.zeros(200, 1, 28, 28)
    x[:, :, 10, 5] = 1.0  # one bright pixel
    place = lesson["augment"](x).flatten(1).argmax(dim=1)  # (pictures,)
    assert set((place // 28).tolist()) == {8, 9, 10, 11, 12}
    assert set((place % 28).tolist()) == {*range(3, 8), *range(20, 25)}
