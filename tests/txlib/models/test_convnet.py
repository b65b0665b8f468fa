"""Networks of convolutions and local attention: counted by hand, against a plain torch network, trained, saved."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from oracles import shake
from torch import nn
from torch.testing import assert_close

from txlib import load_pretrained, save_pretrained
from txlib.attention import LocalAttention2d, NonLocalBlock
from txlib.models import ConvNet, ConvNetConfig
from txlib.models.sizes import forward_flops, parameters

SMALL = ConvNetConfig(widths=(8, 16), blocks=(1, 2), neighborhood=3, heads=2)
CONFIGS = {
    "convolution": SMALL,
    "attention": replace(SMALL, spatial="attention"),
    "both": replace(SMALL, spatial=("convolution", "attention"), non_local=(0, 1), form="dot_product", subsample=True),
    "large stem": replace(SMALL, stem="large", channels=3, expansion=4, kernel=5),
}


def images(config, batch=2, side=12):
    return torch.randn(batch, config.channels, side, side)


def plain(model, x):
    """The network by torch's functions alone, its layers by name."""
    state, config = model.state_dict(), model.config

    def normed(name, x):
        weight, bias, mean, var = (
            state[f"{name}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")
        )
        shape = (1, -1, 1, 1)
        return (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt() * weight.view(shape) + bias.view(shape)

    large = config.stem == "large"
    x = F.conv2d(x, state["stem.weight"], stride=2 if large else 1, padding=3 if large else 1)
    x = normed("stem_norm", x).clamp(min=0)
    if large:
        x = F.max_pool2d(x, 3, 2, padding=1)
    for stage, blocks in enumerate(config.blocks):
        for number in range(blocks):
            name, stride = f"stages.{stage}.{number}", 2 if stage and not number else 1
            y = normed(f"{name}.down_norm", F.conv2d(x, state[f"{name}.down_proj.weight"])).clamp(min=0)
            if config.layers[stage] == "convolution":
                y = F.conv2d(y, state[f"{name}.spatial.weight"], stride=stride, padding=config.kernel // 2)
            else:
                y = model.get_submodule(f"{name}.spatial")(y)  # held against loops in test_grid
            y = normed(f"{name}.spatial_norm", y).clamp(min=0)
            y = normed(f"{name}.up_norm", F.conv2d(y, state[f"{name}.up_proj.weight"]))
            if f"{name}.shortcut.0.weight" in state:
                x = normed(f"{name}.shortcut.1", F.conv2d(x, state[f"{name}.shortcut.0.weight"], stride=stride))
            x = (x + y).clamp(min=0)
        if stage in config.non_local:
            x = model.get_submodule(f"stages.{stage}.{blocks}")(x)
    return x.mean((2, 3)) @ state["classifier.weight"].T + state["classifier.bias"]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_network_is_its_layers(config):
    model = shake(ConvNet(config), 0.1)
    model(images(config, 8))  # running means and variances of some images
    model.eval()
    x, labels = images(config), torch.tensor([3, 7])
    out = model(x, labels)
    assert_close(out.logits, plain(model, x))
    assert_close(out.loss, F.cross_entropy(plain(model, x), labels))
    assert model(x).loss is None
    assert_close(model(torch.cat([x, x + 1])).logits[:2], out.logits)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_network_learns_and_is_saved(config, tmp_path):
    model, x, labels = ConvNet(config), images(config, 6), torch.arange(6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        loss = model(x, labels).loss
        loss.backward()
        assert all(each.grad is not None for each in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    save_pretrained(model.eval(), tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == config
    assert_close(again(x).logits, model(x).logits, rtol=0, atol=0)
    state = again.state_dict()
    assert {int(each) for name, each in state.items() if name.endswith("num_batches_tracked")} == {0}
    again.load_state_dict({name: each.clone() for name, each in model.state_dict().items()})


def test_new_non_local_blocks_change_nothing():
    plain_net, x = ConvNet(SMALL).eval(), images(SMALL)
    hybrid = ConvNet(replace(SMALL, non_local=(0, 1))).eval()
    kept = hybrid.load_state_dict(plain_net.state_dict(), strict=False)
    assert all(name.startswith(("stages.0.1.", "stages.1.2.")) for name in kept.missing_keys) and kept.missing_keys
    assert torch.equal(hybrid(x).logits, plain_net(x).logits)
    assert [type(each).__name__ for each in hybrid.stages[1]] == ["Bottleneck", "Bottleneck", "NonLocalBlock"]


def by_hand(width, pixels, stride, k, heads=None):
    """Parameters and operations of what stands between the 1 × 1 convolutions, on so many pixels."""
    if heads is None:
        return 9 * width**2, 2 * 9 * width**2 * pixels // stride**2
    return 3 * width**2 + k * width, 2 * (3 * width**2 + 2 * k**2 * width + k * width) * pixels


@pytest.mark.parametrize("width, k", [(16, 3), (64, 7), (24, 5)])
def test_parameters_and_operations_by_hand(width, k):
    config = ConvNetConfig(widths=(width, width), blocks=(1, 1), neighborhood=k, heads=4)
    counts = {}
    for spatial, heads in ("convolution", None), ("attention", 4):
        model = ConvNet(replace(config, spatial=spatial)).eval()
        wide, pixels = 2 * width, 16 * 16
        stages = [by_hand(width, pixels, stride, k, heads) for stride in (1, 2)]
        ends = (width + wide) * width, (wide + wide) * width  # down_proj and up_proj of each stage
        learned = 9 * width + sum(ends) + width * wide + wide**2 + 10 * wide + 10  # + stem, shortcuts, classifier
        norms = 2 * (width + 2 * (2 * width + wide) + 2 * wide)
        assert parameters(model) == learned + norms + sum(count for count, _ in stages)
        products = pixels * (9 * width + ends[0] + width * wide + wide * width)
        products += pixels // 4 * (width * wide + wide**2) + 10 * wide
        found = forward_flops(model, torch.randn(1, 1, 16, 16))
        assert found == 2 * products + sum(count for _, count in stages)
        assert forward_flops(model.to("meta"), torch.empty(3, 1, 16, 16, device="meta")) == 3 * found
        counts[spatial] = parameters(model), by_hand(width, pixels, 1, k, heads)[1]
    fewer = [counts["attention"][each] < counts["convolution"][each] for each in (0, 1)]
    assert fewer == [True, 6 * width > 2 * k**2 + k]  # as `ConvNetConfig` says


def test_counting_leaves_a_model_as_it_was():
    model = ConvNet(SMALL).train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    forward_flops(model, images(SMALL))
    assert model.training and all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    forward_flops(model.eval(), images(SMALL))
    assert not model.training


def test_stages_hold_what_they_are_told():
    model = ConvNet(CONFIGS["both"])
    kinds = [[type(block.spatial) for block in stage if not isinstance(block, NonLocalBlock)] for stage in model.stages]
    assert kinds == [[nn.Conv2d], [LocalAttention2d, LocalAttention2d]]
    assert model.features(images(SMALL, side=13)).shape == (2, 32, 7, 7)
    assert ConvNet(CONFIGS["large stem"]).features(torch.randn(2, 3, 32, 32)).shape == (2, 64, 4, 4)


@pytest.mark.usefixtures("unchecked")
def test_a_network_is_exported():
    model = shake(ConvNet(CONFIGS["both"]), 0.1).eval()
    with torch.no_grad():
        exported = torch.export.export(model, (images(SMALL),)).module()
        x = images(SMALL)
        assert_close(exported(x).logits, model(x).logits)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"neighborhood": 4}, "neighborhood=4 has no middle; choose an odd one, e.g. 5"),
        ({"kernel": 2}, "kernel=2 has no middle"),
        ({"blocks": (1,)}, r"widths=\(8, 16\), blocks=\(1,\) and spatial='convolution' must name one for each stage"),
        ({"spatial": ("attention",)}, r"spatial=\('attention',\) must name one for each stage"),
        ({"spatial": "dense"}, "spatial='dense' must be 'convolution' or 'attention'"),
        ({"widths": (8, 0)}, r"widths=\(8, 0\) and blocks=\(1, 2\) must be at least 1"),
        ({"non_local": (2,)}, r"non_local=\(2,\) names a stage that is not there; there are 0 to 1"),
        ({"stem": "tiny"}, "stem='tiny' must be 'small' or 'large'"),
        ({"labels": 0}, "labels=0 must be at least 1"),
    ],
)
def test_wrong_configs_are_refused(values, words, unchecked):
    with pytest.raises(ValueError, match=words):
        replace(SMALL, **values)


def test_wrong_networks_and_images_are_refused(unchecked):
    with pytest.raises(ValueError, match="dim_v=8 is not divisible by heads=3"):
        ConvNet(replace(SMALL, spatial="attention", heads=3))
    with pytest.raises(ValueError, match="form='sum' is unknown"):
        ConvNet(replace(SMALL, non_local=(0,), form="sum"))
    with pytest.raises(TypeError, match="config={} is no ConvNetConfig"):
        ConvNet({})
    model = ConvNet(SMALL)
    cases = [
        (
            (2, 28, 28),
            r"pixel_values has shape \(2, 28, 28\), expected \(batch, 1 channels, .*: write pixel_values\[:, N",
        ),
        ((2, 28, 28, 1), r"channels stand last, write pixel_values.permute\(0, 3, 1, 2\)"),
        ((2, 3, 28, 28), "it has 3 channels"),
    ]
    for shape, words in cases:
        with pytest.raises(ValueError, match=words):
            model(torch.randn(shape))
    with pytest.raises(
        ValueError, match="pixel_values holds torch.uint8, expected floats: write e.g. pixel_values / 2"
    ):
        model(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(ValueError, match="a label is 10, but the 10 classes are 0 to 9"):
        model(images(SMALL), torch.tensor([0, 10]))
