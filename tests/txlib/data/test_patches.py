"""What is kept of the runs of lesson 21: those that its script makes, and what its pictures show."""

import patches
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept, rivals = patches.RUNS.kept(), lesson["rivals"].keys()
    rates = kept.pop("rates")
    assert rates.keys() == rivals
    assert all(by_rate.keys() == set(map(str, patches.RATES)) for by_rate in rates.values())
    assert kept["longer, fast"].keys() == kept["few, fast"].keys() == {"ViT", "two layers"}
    assert kept["short"].keys() == {"ViT", "convolutional", "ViT without positions"}
    assert kept["few"].keys() == {name + how for name in rivals for how in ("", ", augmented")}
    assert kept["longer"].keys() == kept["twins"].keys() - {"ViT, one layer", "ViT without positions"} == rivals
    every = [seeds for part in kept.values() for seeds in part.values()]
    every += [seeds for by_rate in rates.values() for seeds in by_rate.values()]
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in every)
    assert all(0.1 < run["right"] < 1 for seeds in every for run in seeds.values())


def test_augmentation_turns_and_moves_whole_pictures(lesson):
    torch.manual_seed(0)
    x = torch.zeros(200, 1, 28, 28)
    x[:, :, 10, 5] = 1.0  # one bright pixel
    place = lesson["augment"](x).flatten(1).argmax(dim=1)  # (pictures,)
    assert set((place // 28).tolist()) == {8, 9, 10, 11, 12}
    assert set((place % 28).tolist()) == {*range(3, 8), *range(20, 25)}


def test_a_corner_has_one_twin_whose_brightness_is_the_answer(lesson):
    torch.manual_seed(0)
    x, bright = lesson["twins"](40)
    cut = (x * 0.4 + 0.4).unfold(2, 4, 4).unfold(3, 4, 4).reshape(40, 49, 16)
    scale = cut.amax(dim=-1, keepdim=True)  # 1 if bright, 0.5 if dim, up to noise
    shape = (cut / scale > 0.5).float()  # (pictures, places, pixels): the symbol
    alike = (shape == shape[:, :1]).all(dim=-1)
    assert (alike.sum(dim=1) == 2).all()
    twin = alike[:, 1:].float().argmax(dim=1) + 1
    assert ((scale[torch.arange(40), twin, 0] > 0.8).long() == bright).all()
