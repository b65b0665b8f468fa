"""The recipe for pictures: variations by hand, batches, what is measured, and options that are refused."""

import signal
import sys

import pytest
import tiny
import torch
from torch.testing import assert_close

from txlib.data import Pictures, Splits, digits
from txlib.models import ConvNet, ViTForImageClassification
from txlib.models.outputs import Output
from txlib.models.pretrained import load_pretrained
from txlib.models.sizes import forward_flops
from txlib.recipes import run
from txlib.recipes.run import score_table
from txlib.recipes.vision import MODELS, Vision, erase, flip, nearest_label, picture_batches, shift


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(number=6, channels=2, height=11, width=23):
    """Pictures in which all pixels differ, and none is black."""
    return torch.arange(1, 1 + number * channels * height * width).float().view(number, channels, height, width)


def test_shifted_pictures_are_pieces_of_the_old_ones():
    pixels = numbered(200)
    moves = set()
    for old, new in zip(pixels, shift(pixels, chance()), strict=True):
        place = new[0].flatten().nonzero()[0, 0]
        row, column = divmod(int(place), 23)
        was = int((old[0] == new[0, row, column]).flatten().nonzero()[0, 0])
        down, right = row - was // 23, column - was % 23
        expected = torch.zeros_like(old)
        for i in range(11):
            for j in range(23):
                if 0 <= i - down < 11 and 0 <= j - right < 23:
                    expected[:, i, j] = old[:, i - down, j - right]
        assert torch.equal(new, expected)
        moves.add((down, right))
    assert moves == {(down, right) for down in range(-2, 3) for right in range(-2, 3)}


def test_half_of_the_pictures_are_mirrored():
    pixels = numbered(400)
    new = flip(pixels, chance())
    mirrored = (new == pixels.flip(-1)).flatten(1).all(dim=1)
    assert torch.equal(new[~mirrored], pixels[~mirrored])
    assert 150 < mirrored.sum() < 250


def test_what_is_erased_is_a_rectangle_of_noise():
    pixels = numbered(300)
    new, sizes = erase(pixels, chance()), set()
    for old, other in zip(pixels, new, strict=True):
        gone = (old != other).all(dim=0)
        assert torch.equal(gone, (old != other).any(dim=0))  # in all channels
        rows, columns = gone.any(dim=1), gone.any(dim=0)
        assert torch.equal(gone, rows[:, None] & columns[None, :])
        for line in rows, columns:
            places = line.nonzero().flatten()
            assert len(places) == 0 or places[-1] - places[0] + 1 == len(places)
        assert rows.sum() <= 6 and columns.sum() <= 12
        assert ((other[:, gone] >= 0) & (other[:, gone] < 1)).all()
        sizes.add((int(rows.sum()), int(columns.sum())))
    assert len(sizes) > 30


def test_batches_are_the_same_again_and_others_in_each_epoch():
    pictures = digits().train[:50]
    batches = picture_batches(pictures, 16, [shift, erase], seed=3)
    assert [len(batch["labels"]) for batch in batches(0)] == [16, 16, 16, 2]
    for epoch in (0, 1):
        for one, two in zip(batches(epoch), picture_batches(pictures, 16, [shift, erase], seed=3)(epoch), strict=True):
            assert torch.equal(one["pixel_values"], two["pixel_values"])
    first, second = (torch.cat([batch["labels"] for batch in batches(epoch)]) for epoch in (0, 1))
    assert not torch.equal(first, second) and torch.equal(first.sort().values, second.sort().values)
    plain = picture_batches(pictures, 16)(0)
    assert torch.equal(torch.cat([batch["pixel_values"] for batch in plain]), pictures.pixel_values)
    dealt = picture_batches(pictures, 50, seed=1)(0)[0]  # labels stay with their pictures
    for pixels, label in zip(dealt["pixel_values"], dealt["labels"], strict=True):
        place = (pictures.pixel_values == pixels).flatten(1).all(dim=1)
        assert pictures.labels[place].tolist() == [int(label)]


def test_the_most_similar_picture():
    known = Pictures(torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1), torch.tensor([7, 8, 9]), tuple("0123456789"))
    assert nearest_label(torch.tensor([0.9, 0.1, 0.45]).view(3, 1, 1, 1), known).tolist() == [9, 7, 8]


class Says(torch.nn.Module):
    """A model that reads its answer off the first pixel."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(3))

    def forward(self, pixel_values):
        logits = self.weight[pixel_values[:, 0, 0, 0].round().long()]
        return type("Said", (Output,), {"logits": logits})()


def test_what_is_measured():
    is_, said = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2]), torch.tensor([0, 2, 2, 1, 1, 1, 0, 2])
    pixels = said.float().view(8, 1, 1, 1)
    names = ("shirt", "coat", "bag")
    train = Pictures(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.tensor([0, 1]), names)
    splits = Splits(train, train, Pictures(pixels, is_, names))
    result = Vision(data="digits").measure(Says(), splits, None, 0.0, lambda items, what: items)
    assert result == {
        "operations": 0,  # it only looks up
        "accuracy": 5 / 8,
        "baseline_accuracy": 4 / 8,
        "confused": ["shirt", "bag"],
        "confused_share": pytest.approx(2 / 3),
    }
    report = Vision(data="digits").report({**result, "data": "digits"}, "nowhere/run")
    table = score_table(result).splitlines()
    assert table[1:3] == ["accuracy           0.625", "baseline accuracy  0.500"] and "most similar" in report
    assert "Most often wrong: shirt, taken for bag, 67% of them" in report


@pytest.mark.parametrize("data", ["digits", "fashion"])
def test_models_fit_the_pictures(data):
    recipe = Vision(data=data, pictures=70)
    splits = recipe.load()
    assert len(splits.train) == 70
    model = recipe.make_model(splits, None)
    assert isinstance(model, ViTForImageClassification)
    batch = recipe.make_batches(splits, None)(0)[0]
    total, count = recipe.loss(model, batch)
    assert count == 70
    assert_close(total / count, torch.tensor(10.0).log())  # a new model's head starts at zero


def test_rivals_compute_about_as_much():
    recipes = {model: Vision(data="digits", model=model) for model in MODELS}
    splits = digits()
    x, costs = torch.zeros(1, 1, 8, 8, device="meta"), {}
    for model, recipe in recipes.items():
        with torch.device("meta"):
            made = recipe.make_model(splits, None)
        costs[model] = forward_flops(made, x)
        if model != "vit":
            assert isinstance(made, ConvNet)
            assert made.config.layers == ("attention" if model == "local" else "convolution",) * 3
            assert made.config.non_local == ((1,) if model == "hybrid" else ())
    for cost in costs.values():
        assert cost == pytest.approx(costs["vit"], rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["conv", "local"])
def test_a_rival_goes_on_and_is_saved(model, tmp_path):
    """Its batch norms have averages that no gradient makes: they resume and load, too."""
    given = {"data": "digits", "model": model, "pictures": 100, "preset": "mini", "quiet": True}
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        whole = run(Vision, tmp_path / "whole", steps=4, **given)
        with pytest.raises(KeyboardInterrupt):
            patch.setattr(sys.modules["txlib.recipes.run"], "train", tiny.dies_in(2, signal.SIGINT))
            run(Vision, tmp_path / "cut", steps=4, **given)
        patch.undo()
        tiny.install(patch)
        again = run(Vision, tmp_path / "cut", resume=True, quiet=True)
    for name in "config.json", "model.safetensors":
        assert (tmp_path / "cut/model" / name).read_bytes() == (tmp_path / "whole/model" / name).read_bytes()
    assert again["accuracy"] == whole["accuracy"]
    test = digits().test
    with torch.no_grad():
        answers = load_pretrained(tmp_path / "cut/model")(test.pixel_values).logits.argmax(dim=-1)
    assert float((answers == test.labels).float().mean()) == pytest.approx(again["accuracy"], abs=0.006)


def test_digits_are_not_mirrored_unless_asked_to():
    assert Vision(data="digits", augment="usual").variations == [shift, erase]
    assert Vision(augment="usual").variations == [shift, flip, erase] and Vision().variations == []
    assert Vision(data="digits", augment="flip").variations == [flip]


def test_runs_that_differ_have_folders_of_their_own():
    assert Vision().folder_name == "fashion-vit-tiny"
    assert Vision(augment="shift,flip", pictures=100, model="conv").folder_name == "fashion-conv-tiny-shift-flip-100"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "cats"}, "data 'cats' is unknown; choose one of digits, fashion, fashion-mnist"),
        ({"model": "mlp"}, "model 'mlp' is unknown; choose one of vit, conv, local, hybrid"),
        ({"preset": "huge"}, "preset 'huge' is unknown; choose one of tiny, small"),
        ({"augment": "shift,blur"}, "augment 'blur' is unknown; choose one of shift, flip, erase"),
        ({"pictures": 0}, "pictures=0 must be at least 1"),
    ],
)
def test_options_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Vision(**options).check()


@pytest.mark.slow
def test_what_batch_norms_have_counted_survives_sharding(monkeypatch, tmp_path):
    tiny.install(monkeypatch)
    options = {**tiny.options(Vision), "model": "conv"}
    result = tiny.run_by_two(Vision, tmp_path / "out", "fsdp", steps=6, **options)
    recipe = Vision(**options)
    validate = recipe.make_validation(recipe.load(), None)
    with torch.no_grad():
        again = validate(load_pretrained(tmp_path / "out" / "model").eval())
    assert again == pytest.approx(result["validation_loss"], rel=1e-5)
