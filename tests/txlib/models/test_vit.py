"""The Vision Transformer: patches and their places, against `transformers`, torch's own functions, and by hand."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from oracles import shake
from torch.testing import assert_close

from txlib.attention import Mask, recording, sliding_window
from txlib.layers import BlockConfig
from txlib.layers.patches import LearnedGrid, PatchEmbedding, RotaryGrid, SinusoidalGrid, coordinates
from txlib.models import ViT, ViTConfig, ViTForImageClassification, ViTForImageClassificationWithTeacher
from txlib.models.pretrained import PretrainedError, load_pretrained, save_pretrained
from txlib.models.sizes import VIT, build, count_parameters, from_size

close = {"rtol": 1e-5, "atol": 1e-5}
THEIRS = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 3,
    "encoder_stride": 4,
}
BLOCK = BlockConfig.of_sizes(16, 2, 20, activation="gelu", position="learned")
CONFIG = ViTConfig(12, 4, BLOCK, layers=2, channels=1)
HEADS = [
    "ViTModel",
    "ViTForImageClassification",
    "DeiTModel",
    "DeiTForImageClassification",
    "DeiTForImageClassificationWithTeacher",
]
POSITIONS = ["none", "learned", "sinusoidal", "sinusoidal_concatenated", "rotary", "rotary_half"]


def theirs(head, **changes):
    torch.manual_seed(1)
    kind = transformers.DeiTConfig if head.startswith("DeiT") else transformers.ViTConfig
    config = kind(**{**THEIRS, **changes})
    return shake(getattr(transformers, head)._from_config(config, attn_implementation="eager")).eval()


def pictures(*shape):
    return torch.randn(*shape)


# Against transformers


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "num_channels": 1}])
@torch.no_grad()
def test_every_head(head, changes, tmp_path):
    """There and back, also for pictures of other sizes, whose positions are interpolated."""
    other = theirs(head, num_labels=5, **changes)
    other.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    save_pretrained(ours, tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["model_type"] == other.config.model_type
    back, report = type(other).from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"] and not report["unexpected_keys"]
    labels = {"labels": torch.tensor([4, 0])} if head.endswith("Classification") else {}
    for sides in (12, 12), (20, 20), (8, 16):
        x, more = pictures(2, changes.get("num_channels", 3), *sides), {"interpolate_pos_encoding": sides != (12, 12)}
        mine = ours(x, **labels, **more)
        for model in (other, back.eval()):
            expected = model(x, output_hidden_states=True, **labels, **more)
            hidden = expected.hidden_states[-1]
            hidden = getattr(model, model.base_model_prefix, model).layernorm(hidden)
            assert_close(mine.last_hidden_state, hidden, **close)
            for name in ("logits", "loss", "pooler_output", "distillation_logits"):
                if getattr(mine, name, None) is not None:
                    assert_close(mine[name], expected[name], **close)
    assert load_pretrained(tmp_path / "ours").config == ours.config


@torch.no_grad()
def test_attention_is_theirs(tmp_path):
    other = theirs("ViTModel")
    other.save_pretrained(tmp_path)
    ours, x = load_pretrained(tmp_path), pictures(2, 3, 12, 12)
    with recording(ours) as weights:
        ours(x)
    expected = other(x, output_attentions=True).attentions
    assert len(weights) == len(expected) == 3
    for (one,), two in zip(weights.values(), expected, strict=True):
        assert_close(one, two, **close)


@torch.no_grad()
def test_a_teacher_has_labels_of_its_own(tmp_path):
    other = theirs("DeiTForImageClassificationWithTeacher", num_labels=5)
    other.save_pretrained(tmp_path)
    ours, x = load_pretrained(tmp_path), pictures(3, 3, 12, 12)
    labels, teacher, expected = torch.tensor([0, 4, 2]), torch.tensor([0, 1, 2]), other(x)
    for given in (teacher, None):
        losses = (
            F.cross_entropy(expected.cls_logits, labels),
            F.cross_entropy(expected.distillation_logits, labels if given is None else given),
        )
        assert_close(ours(x, labels=labels, teacher_labels=given).loss, sum(losses) / 2, **close)


def test_settings_refused(tmp_path):
    theirs("ViTForImageClassification").save_pretrained(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    for changes, words in (
        ({"qkv_bias": False}, "qkv_bias=False is not supported"),
        ({"patch_size": [4, 2]}, r"patch_size=\[4, 2\] is not supported, only squares"),
        ({"pooler_act": "gelu"}, "pooler_act='gelu'"),
        ({"pooler_output_size": 8}, "pooler_output_size=8 is not supported, only 16"),
        ({"id2label": {"0": "one"}}, "num_labels=1, a regression"),
        ({"architectures": ["ViTForMaskedImageModeling"]}, "txlib has ViTModel, ViTForImageClassification"),
        ({"image_size": 13}, "height=13 is not divisible by patch_size=4; choose e.g. 12"),
        ({"image_size": 16}, "embeddings.position_embeddings has shape .1, 10, 16., config.json asks for .1, 17, 16."),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**whole, **changes}))
        with pytest.raises(PretrainedError, match=words):
            load_pretrained(tmp_path)


@pytest.mark.parametrize("image_size", [[8, 16], (8, 16)])
@torch.no_grad()
def test_a_picture_that_is_no_square(image_size, tmp_path):
    other = theirs("ViTModel", image_size=image_size)
    other.save_pretrained(tmp_path / "theirs")
    ours, x = load_pretrained(tmp_path / "theirs"), pictures(2, 3, 8, 16)
    assert ours.config.sides == (8, 16) and ours.config.grid == (2, 4)
    assert_close(ours(x).last_hidden_state, other(x).last_hidden_state, **close)
    save_pretrained(ours, tmp_path / "ours")
    again = transformers.ViTModel.from_pretrained(tmp_path / "ours").eval()
    assert_close(ours(x).last_hidden_state, again(x).last_hidden_state, **close)


@pytest.mark.parametrize("position", [each for each in POSITIONS if each != "learned"])
@pytest.mark.parametrize("kind", [ViT, ViTForImageClassification])
@torch.no_grad()
def test_what_their_format_cannot_say_is_saved_in_ours(position, kind, tmp_path):
    model = shake(kind(replace(CONFIG, block=BLOCK.replace(position=position), pool="mean"))).eval()
    save_pretrained(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "txlib"
    again, x = load_pretrained(tmp_path), pictures(2, 1, 12, 12)
    assert again.config == model.config and type(again) is kind
    for one, two in zip(again(x).to_tuple(), model(x).to_tuple(), strict=True):
        assert_close(one, two)


# Patches


def test_patches_are_a_linear_layer_on_unfolded_pixels():
    layer, x = shake(PatchEmbedding(3, 4, 10)), pictures(2, 3, 8, 12)
    unfolded = F.unfold(x, 4, stride=4).mT  # (batch, patches, channels · 4 · 4)
    weight = layer.projection.weight.flatten(1)  # (d_model, channels · 4 · 4)
    assert_close(layer(x), F.linear(unfolded, weight, layer.projection.bias))
    for row in range(2):
        for column in range(3):
            square = x[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            token = F.linear(square.flatten(1), weight, layer.projection.bias)
            assert_close(layer(x)[:, 3 * row + column], token)


# Places


def test_coordinates_cover_the_same_picture():
    row, column = coordinates((2, 3), (2, 3))
    assert row.tolist() == [0, 0, 0, 1, 1, 1] and column.tolist() == [0, 1, 2, 0, 1, 2]
    row, column = coordinates((4, 1), (2, 3))
    assert row.tolist() == [-0.25, 0.25, 0.75, 1.25] and column.tolist() == [1] * 4


@torch.no_grad()
def test_learned_places_are_interpolated_as_a_picture():
    layer = LearnedGrid((4, 4), 1, 6)
    x = torch.zeros(1, 17, 6)
    assert_close(layer(x, (4, 4))[0], layer.weight)
    assert_close(layer.interpolated((4, 4)), layer.weight)
    row, column = coordinates((4, 4), (4, 4))
    layer.weight[1:] = torch.stack([row, column], dim=1).repeat(1, 3)  # a slope stays one, but for the edge
    finer = layer.interpolated((8, 8))[1:].view(8, 8, 6)[2:-2, 2:-2]
    row, column = (each.view(8, 8)[2:-2, 2:-2] for each in coordinates((8, 8), (4, 4)))
    assert_close(finer[..., 0], row, atol=0.1, rtol=0)
    assert_close(finer[..., 1], column, atol=0.1, rtol=0)
    assert_close(layer.interpolated((8, 8))[0], layer.weight[0])


def test_waves_of_rows_and_columns_by_hand():
    added = SinusoidalGrid((2, 3), 1, 8)(torch.zeros(1, 7, 8), (2, 3))[0]
    assert (added[0] == 0).all()
    for row in range(2):
        for column in range(3):
            frequency = [1, 0.01]  # 10000 ** (-2 i / 4)
            expected = [wave(place * f) for place in (row, column) for f in frequency for wave in (math.sin, math.cos)]
            assert_close(added[1 + 3 * row + column], torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_turned_scores_depend_on_rows_and_columns_between(layout):
    turn = RotaryGrid((3, 4), 1, 8, base=100.0, layout=layout)
    q, k = (torch.randn(1, 1, 1, 8).expand(1, 1, 13, 8) for _ in range(2))
    score = (turn(q) @ turn(k).mT)[0, 0]
    assert_close(score[0, 0], (q @ k.mT)[0, 0, 0, 0])  # the special token is not turned
    by_distance = {}
    for i in range(12):
        for j in range(12):
            distance = i // 4 - j // 4, i % 4 - j % 4
            by_distance.setdefault(distance, []).append(score[1 + i, 1 + j])
    for scores in by_distance.values():
        assert_close(torch.stack(scores), scores[0].expand(len(scores)), atol=1e-5, rtol=1e-5)
    firsts = torch.stack([scores[0] for scores in by_distance.values()])
    assert len(firsts) == 35 and firsts.unique().numel() == 35


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_positions_tell_patches_apart(position, pool):
    """Without them, shuffled patches give the same; with them, they don't."""
    model = shake(ViT(replace(CONFIG, block=BLOCK.replace(position=position), pool=pool))).eval()
    x = pictures(1, 1, 12, 12)
    swapped = torch.cat([x[..., 4:8, :], x[..., :4, :], x[..., 8:, :]], dim=2)
    one, two = (model(each).pooler_output for each in (x, swapped))
    assert torch.allclose(one, two, atol=1e-5) == (position == "none")
    assert model(x).last_hidden_state.shape == (1, 9 + (pool == "class"), 16)


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "rotary_half"])
@torch.no_grad()
def test_a_finer_grid_keeps_places(position):
    """Each pixel written four times, patches of the same content in four: places lie half a patch around the old."""
    config = replace(CONFIG, block=BLOCK.replace(position=position), pool="mean")
    model, x = shake(ViT(config)).eval(), pictures(2, 1, 4, 4).repeat(1, 1, 3, 3)  # one patch, nine times
    assert_close(model(x).last_hidden_state.shape, (2, 9, 16))
    finer = model(x.repeat(1, 1, 2, 2), interpolate_pos_encoding=True).last_hidden_state
    plain = model(x).last_hidden_state
    assert finer.shape == (2, 36, 16)
    assert (finer.mean(dim=1) - plain.mean(dim=1)).abs().max() < 0.1 * plain.abs().max()
    assert_close(model(x).last_hidden_state, plain)  # the grid of one call does not stay for the next


# The model


def test_sizes_are_the_papers():
    """Table 1; and exactly those that torchvision's models have, with a head of 1,000 classes and no pooler."""
    exact = {
        "B/16": 86_567_656,
        "B/32": 88_224_232,
        "L/16": 304_326_632,
        "L/32": 306_535_400,
        "H/14": 632_045_800,
    }
    assert exact.keys() == VIT.keys()
    for name, config in VIT.items():
        d = config.block.d_model
        assert count_parameters(config) - d * (d + 1) + 1000 * (d + 1) == exact[name]
    for name, printed in ("B/16", 86e6), ("L/32", 307e6), ("H/14", 632e6):
        assert count_parameters(VIT[name]) == pytest.approx(printed, rel=0.01)
        assert build(VIT[name]).pooler is not None
    with torch.device("meta"):
        assert isinstance(from_size("vit-B/16"), ViT)


def test_a_head_learns_a_picture():
    torch.manual_seed(0)
    x, labels = pictures(12, 1, 12, 12), torch.arange(12) % 3
    for pool in ("class", "mean"):
        model = ViTForImageClassification(replace(CONFIG, pool=pool), labels=3)
        assert_close(model(x, labels=labels).loss, torch.tensor(3.0).log())  # it starts at zero
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(40):
            loss = model(x, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss < 0.1
        assert all(parameter.grad is None or parameter.requires_grad for parameter in model.parameters())


def test_every_parameter_gets_a_gradient():
    for config in (CONFIG, replace(CONFIG, pool="mean"), replace(CONFIG, distillation=True)):
        model = shake(ViTForImageClassification(config, labels=3))
        model(pictures(2, 1, 12, 12), labels=torch.tensor([0, 2])).loss.backward()
        silent = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert not silent
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.dim() > 1)


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_half_precision_takes_any_pixels(position):
    model, x = (
        shake(ViT(replace(CONFIG, block=BLOCK.replace(position=position)), pooler=False)).eval(),
        pictures(2, 1, 12, 12),
    )
    whole = model(x).last_hidden_state
    half = model.bfloat16()(x).last_hidden_state
    assert half.dtype == torch.bfloat16
    assert (half - whole).abs().max() < 0.1 * whole.abs().max()
    assert model(pictures(2, 1, 8, 16), interpolate_pos_encoding=True).last_hidden_state.dtype == torch.bfloat16


@torch.no_grad()
def test_a_model_takes_a_mask():
    model, x = shake(ViT(CONFIG)).eval(), pictures(1, 1, 12, 12)
    assert_close(model(x, mask=sliding_window(99)).last_hidden_state, model(x).last_hidden_state)
    alone = model(x, mask=Mask(lambda query, key: query == key)).last_hidden_state
    changed = x.clone()
    changed[..., :4, :4] += 1  # the first patch
    moved = (model(changed, mask=Mask(lambda query, key: query == key)).last_hidden_state - alone).abs().amax(-1)[0]
    assert (moved > 0).nonzero().flatten().tolist() == [1]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [ViT, ViTForImageClassification])
def test_torch_exports_it(kind):
    for position in ("learned", "rotary"):
        model = shake(kind(replace(CONFIG, block=BLOCK.replace(position=position)))).eval()
        with torch.no_grad():
            exported = torch.export.export(model, (pictures(2, 1, 12, 12),)).module()
            x = pictures(2, 1, 12, 12)
            for one, two in zip(model(x).to_tuple(), exported(x).to_tuple(), strict=True):
                assert_close(one, two)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("shape", "more", "words"),
    [
        ((2, 12, 12, 1), {}, r"channels come first: pixel_values.permute\(0, 3, 1, 2\)"),
        ((2, 3, 12, 12), {}, r"shape \(2, 3, 12, 12\), expected \(batch, channels=1, height, width\)$"),
        ((1, 12, 12), {}, r"one picture is a batch of one: pixel_values\[None\]"),
        ((12, 12), {}, r"shape \(12, 12\), expected \(batch, channels=1, height, width\)$"),
        (
            (2, 1, 16, 12),
            {},
            "16 × 12 pixels, the model takes 12 × 12; resize them, or say interpolate_pos_encoding=True",
        ),
        ((2, 1, 12, 14), {"interpolate_pos_encoding": True}, "width=14 is not divisible by patch_size=4; choose e.g."),
    ],
)
def test_pictures_that_do_not_fit(shape, more, words):
    with pytest.raises(ValueError, match=words):
        ViT(CONFIG)(torch.zeros(shape), **more)


@pytest.mark.usefixtures("unchecked")
def test_pixels_are_floats():
    with pytest.raises(ValueError, match="pixel_values are torch.uint8; make them floats, e.g. pixel_values / 255"):
        ViT(CONFIG)(torch.zeros(1, 1, 12, 12, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 30, "patch_size": 4}, "height=30 is not divisible by patch_size=4; choose e.g. 32"),
        ({"image_size": (12, 10)}, "width=10 is not divisible by patch_size=4; choose e.g. 8"),
        ({"patch_size": 0}, "patch_size=0 must be at least 1"),
        ({"channels": 0}, "channels=0 must be at least 1"),
        ({"pool": "max"}, "pool='max' must be 'class' or 'mean'"),
        ({"pool": "mean", "distillation": True}, "distillation adds a token to the class token"),
        ({"block": BLOCK.replace(position="alibi")}, "position='alibi' does not know rows and columns; choose one of"),
        ({"block": BLOCK.replace(position=None)}, "position=None does not know rows and columns"),
    ],
)
def test_configs_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (
            BlockConfig.of_sizes(18, 3, 20, position="sinusoidal"),
            "2-D sinusoidal positions need d_model to be a multiple of 4",
        ),
        (
            BlockConfig.of_sizes(18, 3, 20, position="rotary"),
            "2-D rotary positions need d_model / heads to be a multiple of 4, got",
        ),
    ],
)
def test_widths_for_two_axes(block, words):
    with pytest.raises(ValueError, match=words):
        ViT(replace(CONFIG, block=block))


def test_a_teacher_needs_a_token():
    with pytest.raises(ValueError, match=r"a token to learn from them: ViTConfig\(distillation=True\)"):
        ViTForImageClassificationWithTeacher(CONFIG)
