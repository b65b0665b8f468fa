"""Perceivers: equal to transformers', invariant without positions, linear in the input; modalities as one array."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from oracles import keep, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib.attention import DenseAttention
from txlib.layers import BlockConfig, fourier_features, grid_positions
from txlib.models import (
    Modalities,
    Perceiver,
    PerceiverClassifier,
    PerceiverClassifierConfig,
    PerceiverConfig,
    PerceiverForMaskedLM,
    PerceiverIO,
    PerceiverIOConfig,
    PerceiverLMConfig,
    pixel_array,
)
from txlib.models.pretrained import PretrainedError, load_pretrained, save_pretrained

transformers = pytest.importorskip("transformers")
theirs_of = pytest.importorskip("transformers.models.perceiver.modeling_perceiver")

BLOCK = BlockConfig.of_sizes(d_model=24, heads=4, d_ff=32, activation="gelu")
DECODER = BlockConfig.of_sizes(d_model=12, heads=2, d_ff=20, activation="gelu")
SMALL = PerceiverConfig(block=BLOCK, d_input=10, latents=5, layers=2, repeats=3, labels=4)
IO = PerceiverIOConfig(block=BLOCK, decoder=DECODER, d_input=10, latents=5, layers=2, repeats=2, outputs=3)
LM = PerceiverLMConfig(block=BLOCK, decoder=DECODER.replace(d_model=10), d_input=10, latents=5, layers=2, max_length=20)
BOTH = PerceiverClassifierConfig(
    block=BLOCK,
    decoder=DECODER,
    d_input=24,
    latents=5,
    layers=2,
    labels=(10, 2),
    vocab_size=262,
    max_length=20,
    d_bytes=16,
    image_size=(4, 6),
    bands=3,
)
THEIRS = {
    "num_latents": 7,
    "d_latents": 24,
    "d_model": 16,
    "num_blocks": 2,
    "num_self_attends_per_block": 3,
    "num_self_attention_heads": 4,
    "num_cross_attention_heads": 2,
    "qk_channels": 8,
    "v_channels": 24,
    "max_position_embeddings": 20,
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def built(model):
    return shake(model).eval()


def language_model(**settings):
    return built(transformers.PerceiverForMaskedLM(transformers.PerceiverConfig(**THEIRS | settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"qk_channels": None, "v_channels": None, "hidden_act": "gelu_new"},
        {"qk_channels": None, "cross_attention_shape_for_attention": "q", "num_blocks": 1},
        {"v_channels": None, "qk_channels": 24, "self_attention_widening_factor": 2},
        {"cross_attention_widening_factor": 3, "num_cross_attention_heads": 8, "max_position_embeddings": 15},
    ],
)
@torch.no_grad()
def test_the_published_language_model_is_read_and_written(settings, tmp_path):
    theirs = language_model(**settings)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    x, mask = torch.randint(6, 262, (3, 15)), keep([15, 9, 4], 15)
    labels = torch.full((3, theirs.config.max_position_embeddings), -100)
    labels[:, 2:8] = 77
    for given in ({}, {"attention_mask": mask}):
        expected = theirs(x, labels=labels, **given)
        out = ours(x, labels=labels[:, :15], **given)
        assert_close(out.logits, expected.logits[:, :15], rtol=1e-5, atol=1e-5)
        assert_close(out.loss, expected.loss)
    save_pretrained(ours, tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["model_type"] == "perceiver"
    back, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert_close(back.eval()(x, mask).logits[:, :15], ours(x, mask).logits, rtol=1e-5, atol=1e-5)
    assert load_pretrained(tmp_path / "ours").config == ours.config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_query_residual": False}, "use_query_residual=False is not supported, only True"),
        ({"v_channels": 16}, "v_channels=16 is not supported beside d_latents=24: they must be equal"),
        ({"num_self_attention_heads": 5}, "qk_channels: a width of 8 is not divisible by the 5 heads of block"),
        ({"cross_attention_shape_for_attention": "v"}, "cross_attention_shape_for_attention='v' is not supported"),
        ({"d_model": None}, "has shape|lacks d_model|NoneType"),
    ],
)
def test_settings_that_mean_something_else_are_refused(changes, words, tmp_path):
    language_model().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(PretrainedError, match=words):
        load_pretrained(tmp_path)


def test_shared_weights_are_the_same_weights_at_each_turn():
    shared = built(Perceiver(SMALL))
    own = Perceiver(replace(SMALL, distinct_cross=3, distinct_blocks=3)).eval()
    state = shared.state_dict()
    for name in own.state_dict().keys() - state.keys():  # later turns: those of the last that has its own
        kind, number, rest = name.removeprefix("encoder.").split(".", 2)
        state[name] = state[f"encoder.{kind}.{1 if kind == 'cross' else int(number) % 2}.{rest}"]
    own.load_state_dict(state)
    x = torch.randn(2, 9, 10)
    assert_close(shared(x).logits, own(x).logits)
    assert (len(shared.encoder.cross), len(shared.encoder.layers)) == (2, 2)
    assert (len(own.encoder.cross), len(own.encoder.layers)) == (3, 6)


def test_turns_by_hand():
    model = built(Perceiver(replace(SMALL, distinct_cross=3, distinct_blocks=2)))
    x, encoder = torch.randn(2, 9, 10), model.encoder
    latents = encoder.latents.expand(2, -1, -1)
    for cross, layers in ((0, (0, 1)), (1, (2, 3)), (2, (2, 3))):
        latents = encoder.cross[cross](latents, x)
        for number in layers:
            latents = encoder.layers[number](latents)
    assert_close(model(x).last_hidden_state, latents)
    assert_close(model(x).logits, latents.sum(1) / 5 @ model.classifier.weight.T + model.classifier.bias)


@torch.no_grad()
def test_without_positions_the_order_does_not_matter():
    model, io, order = built(Perceiver(SMALL)), built(PerceiverIO(IO)), torch.randperm(12)
    x, queries = torch.randn(2, 12, 10), torch.randn(2, 6, 12)
    assert_close(model(x[:, order]).logits, model(x).logits)
    assert_close(io(x[:, order], queries).logits, io(x, queries).logits)
    assert_close(io(x, queries[:, :3]).logits, io(x, queries).logits[:, :3])  # no query sees another
    images, where = torch.randn(2, 5, 3, 4), pixel_array(torch.zeros(2, 0, 3, 4), 2)
    pixels = pixel_array(images)
    read = built(Perceiver(replace(SMALL, d_input=5 + 10))).double()  # in float32 another order rounds otherwise
    together = torch.cat([pixels, where], dim=2)
    assert_close(together, pixel_array(images, 2))
    pixels, where, together = pixels.double(), where.double(), together.double()
    assert_close(read(together[:, order]).logits, read(together).logits)  # positions that go along change nothing
    moved = torch.cat([pixels[:, order], where], dim=2)
    assert (read(moved).logits - read(together).logits).abs().max() > 1e-3  # pixels at other places do


@pytest.mark.parametrize("kind", [Perceiver, PerceiverIO, PerceiverForMaskedLM])
@torch.no_grad()
def test_padding_is_not_read(kind):
    config = {Perceiver: SMALL, PerceiverIO: IO, PerceiverForMaskedLM: LM}[kind]
    model, mask = built(kind(config)), keep([12, 7], 12)
    x = torch.randint(6, 262, (2, 12)) if kind is PerceiverForMaskedLM else torch.randn(2, 12, 10)
    more = {"queries": torch.randn(1, 7, 12)} if kind is PerceiverIO else {}
    padded = model(x, attention_mask=mask, **more).logits
    alone = model(x[1:, :7], **more).logits
    assert_close(padded[1:, :7] if kind is PerceiverForMaskedLM else padded[1:], alone)


def flops(model, *inputs) -> int:
    for module in model.requires_grad_(False).modules():
        if isinstance(module, DenseAttention):
            module.fused = False  # torch does not count the kernel's operations on a CPU
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops()


def test_cost_is_linear_in_the_input_and_each_layers_quadratic_in_the_latents():
    """n inputs cost n · m of attention, m latents m² in each layer (Jaegle et al. 2021, §3.1): counted."""
    model = Perceiver(SMALL)
    counts = [flops(model, torch.randn(1, n, 10)) for n in (100, 200, 400)]
    keys_and_values, scores_and_sums = 2 * 10 * (10 + 10), 2 * 5 * (10 + 10)  # of one input, at one look
    assert counts[1] - counts[0] == 3 * 100 * (keys_and_values + scores_and_sums)
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    for layers in (1, 2):
        costs = [
            flops(Perceiver(replace(SMALL, latents=m, layers=layers)), torch.randn(1, 50, 10)) for m in (10, 20, 30)
        ]
        first, second = (later - before for before, later in pairwise(costs))
        assert second - first == 3 * layers * 2 * (2 * 24 + 2 * 24) * 10**2


def test_queries_cost_what_they_are():
    model = PerceiverIO(IO)
    costs = [flops(model, torch.randn(1, 30, 10), torch.randn(1, queries, 12)) for queries in (10, 20, 30)]
    assert costs[2] - costs[1] == costs[1] - costs[0]


# Positions


@pytest.mark.parametrize(("sizes", "bands"), [((7,), 3), ((4, 6), 5), ((2, 3, 4), 1)])
def test_fourier_features_as_in_transformers(sizes, bands):
    position = grid_positions(*sizes)
    expected = theirs_of.build_linear_positions(sizes).flatten(0, -2)
    assert_close(position, expected)
    assert_close(
        fourier_features(position, bands, sizes),
        theirs_of.generate_fourier_features(expected[None], bands, sizes)[0],
    )


def test_fourier_features_by_their_formula():
    (row,) = fourier_features(torch.tensor([[0.5, -0.25]]), 3, (8, 20)).double()
    place = {0: (0.5, (1, 2.5, 4)), 1: (-0.25, (1, 5.5, 10))}
    waves = [[x * f * torch.pi for f in frequencies] for x, frequencies in place.values()]
    angle = torch.tensor(waves).flatten()
    expected = torch.cat([torch.tensor([0.5, -0.25]), angle.sin(), angle.cos()]).double()
    assert_close(row, expected, rtol=0, atol=1e-5)
    assert len(row) == 2 * (2 * 3 + 1)


def test_bad_positions():
    with pytest.raises(ValueError, match=r"at least one point along each dimension, got sizes=\(3, 0\)"):
        grid_positions(3, 0)
    with pytest.raises(
        ValueError, match=r"max_resolution for each of 2 dimensions, got bands=4, max_resolution=\(8,\)"
    ):
        fourier_features(grid_positions(3, 3), 4, (8,))


# Several modalities


@torch.no_grad()
def test_modalities_as_in_transformers():
    class Given(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.num_channels = width

        def forward(self, x, **others):
            return x, None, x

    theirs = theirs_of.PerceiverMultimodalPreprocessor({"bytes": Given(4), "pixels": Given(6)}, min_padding_size=3)
    ours = Modalities({"bytes": 4, "pixels": 6}, 9)
    for name, vector in theirs.padding.items():
        ours.embedding[name].copy_(vector[0])
    arrays = {"bytes": torch.randn(2, 5, 4), "pixels": torch.randn(2, 7, 6)}
    assert_close(ours(arrays), theirs(arrays)[0])
    assert_close(ours({"pixels": arrays["pixels"]}), theirs(arrays)[0][:, 5:])


@pytest.mark.parametrize("kernel", [1, 3])
@torch.no_grad()
def test_one_model_reads_pixels_bytes_and_both(kernel):
    model = built(PerceiverClassifier(replace(BOTH, byte_kernel=kernel)))
    pixels, text, mask = torch.randn(2, 1, 4, 6), torch.randint(6, 262, (2, 9)), keep([9, 5], 9)
    inputs, real = model.array(pixels, text, mask)
    assert inputs.shape == (2, 4 * 6 + 9, 24) and real.tolist() == [[1] * 24 + row for row in mask.tolist()]
    assert_close(inputs[:, :24, :15], pixel_array(pixels, 3))
    digit, liked = model(pixels, text, mask).logits
    assert digit.shape == (2, 10) and liked.shape == (2, 2)
    for number, logits in enumerate(model(pixels[1:], text[1:, :5]).logits):
        assert_close(logits, (digit, liked)[number][1:])
    changed = model.array(None, text.index_fill(1, torch.tensor([4]), 7), mask)[0] != inputs[:, 24:]
    assert changed.any(dim=2)[0].nonzero()[:, 0].tolist() == list(range(4 - kernel // 2, 5 + kernel // 2))
    assert (model(pixels).logits[0] - digit).abs().max() > 1e-3
    assert (model(input_ids=text, attention_mask=mask).logits[1] - liked).abs().max() > 1e-3


@torch.no_grad()
def test_the_loss_counts_each_answer_that_is_known():
    model = built(PerceiverClassifier(BOTH))
    pixels, text = torch.randn(3, 1, 4, 6), torch.randint(6, 262, (3, 9))
    labels = torch.tensor([[3, 1], [4, -100], [9, -100]])
    out = model(pixels, text, labels=labels)
    known = [
        out.logits[question].log_softmax(-1)[row, label]
        for row in range(3)
        for question, label in enumerate(labels[row].tolist())
        if label >= 0
    ]
    assert len(known) == 4
    assert_close(out.loss, -torch.stack(known).mean())


# Saved, and refused


@pytest.mark.parametrize(
    ("model", "config"),
    [(Perceiver, SMALL), (PerceiverIO, IO), (PerceiverForMaskedLM, LM), (PerceiverClassifier, BOTH)],
)
@torch.no_grad()
def test_own_folders(model, config, tmp_path):
    ours = built(model(config))
    save_pretrained(ours, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "txlib"
    back = load_pretrained(tmp_path)
    assert type(back) is model and back.config == config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)


def config_with(**changes):
    return lambda: replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BLOCK.replace(heads=5), "d_model=24 is not divisible by heads=5; choose e.g. 25"),
        (lambda: BLOCK.replace(value_dim=0), "value_dim=0 must be at least 1"),
        (lambda: BLOCK.replace(position="shaw", value_dim=5), "value_dim=5 beside heads of 6; leave value_dim out"),
        (config_with(latents=0), "latents=0 must be at least 1"),
        (config_with(distinct_cross=0), "distinct_cross=0 must be at least 1"),
        (
            config_with(block=BLOCK.replace(position="learned")),
            "position='learned' acts on the latents, which have no",
        ),
        (config_with(cross=DECODER), "cross.d_model=12 must be block.d_model=24"),
        (lambda: Perceiver(config_with(block=BLOCK.replace(norm_first=False))()), "set norm_first=True"),
        (lambda: replace(LM, d_input=11), "decoder.d_model must be d_input, and outputs None, got 10, 11 and None"),
        (lambda: replace(BOTH, labels=()), r"labels=\(\) must be the number of classes of each question"),
        (lambda: replace(BOTH, byte_kernel=4), "byte_kernel=4 has no middle; choose an odd one, e.g. 5"),
        (lambda: replace(BOTH, outputs=3), r"outputs=3 with labels=\(10, 2\): leave it out"),
        (lambda: replace(BOTH, vocab_size=None, image_size=None), "set vocab_size, image_size or both"),
        (
            lambda: PerceiverClassifier(replace(BOTH, d_input=15)),
            "'pixels' is 15 wide, .* d_input=15; choose at least 16",
        ),
    ],
)
def test_configs_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Perceiver(SMALL)(torch.randn(2, 9, 11)), "the inputs have width 11, this model reads d_input=10"),
        (
            lambda: PerceiverIO(IO)(torch.randn(2, 9, 10), torch.randn(1, 3, 10)),
            "the output queries have width 10, this model's have decoder.d_model=12",
        ),
        (
            lambda: PerceiverForMaskedLM(LM)(torch.randint(6, 262, (1, 21))),
            "the model sees max_length=20 positions at a time, but the sequence reaches 21; ",
        ),
        (lambda: PerceiverForMaskedLM(LM)(torch.tensor([[262]])), "input_ids holds 262, and vocab_size=262"),
        (lambda: Perceiver(SMALL)(torch.randn(2, 9, 10), keep([8], 8)), r"attention_mask has shape \(1, 8\)"),
        (lambda: PerceiverClassifier(BOTH)(), "give arrays of bytes, pixels, got none"),
        (
            lambda: PerceiverClassifier(BOTH)(torch.randn(2, 1, 4, 6), torch.ones(3, 4, dtype=torch.long)),
            "different numbers of examples, {'pixels': 2, 'bytes': 3}; give as many of each",
        ),
        (
            lambda: PerceiverClassifier(BOTH)(
                input_ids=torch.ones(1, 4, dtype=torch.long), attention_mask=keep([3], 3)
            ),
            r"attention_mask has shape \(1, 3\), the tokens \(1, 4\)",
        ),
        (
            lambda: PerceiverClassifier(BOTH)(torch.randn(2, 1, 6, 4)),
            r"pixel_values has shape \(2, 1, 6, 4\), and this model has \(channels, \*image_size\)=\(1, 4, 6\)",
        ),
        (
            lambda: PerceiverClassifier(replace(BOTH, image_size=None))(torch.randn(2, 1, 6, 4)),
            "and this model has image_size=None",
        ),
        (
            lambda: PerceiverClassifier(replace(BOTH, vocab_size=None))(input_ids=torch.ones(2, 3, dtype=torch.long)),
            "this model reads no bytes: vocab_size=None",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_inputs_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
