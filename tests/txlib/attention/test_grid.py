"""Attention over pixels: against loops, `unfold`, masks of the algebra; its memory and operations counted."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import Largest, loop_attention, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib.attention import (
    AttentionLayer2d,
    AxialAttention2d,
    BlockSparseAttention,
    LinearAttention,
    Linformer,
    LocalAttention2d,
    NonLocalBlock,
    attention,
    block_local,
    local_operators,
    strided_keys,
    window_2d,
)

sides = st.integers(1, 6)


def images(*shape, channels=6):
    return torch.randn(2, channels, *shape, dtype=torch.float64)


def flops(call, *arguments):
    with FlopCounterMode(display=False) as counter:
        call(*arguments)
    return counter.get_total_flops()


# The attention layer --------------------------------------------------------------------------------------------------


@given(sides, sides, st.sampled_from([1, 2]))
def test_an_attention_layer_is_a_loop_over_pixels(height, width, heads):
    layer, x = shake(AttentionLayer2d(6, 4, 8, heads=heads)).double(), images(height, width)
    out = layer(x)
    assert out.shape == (2, 8, height, width)
    pixels = torch.stack([x[:, :, i, j] for i in range(height) for j in range(width)], dim=1)
    q, k, v = (
        torch.stack(project(pixels).chunk(heads, dim=-1), dim=1) for project in (layer.query, layer.key, layer.value)
    )
    expected, _ = loop_attention(q, k, v)  # (batch, heads, pixels, width of a head)
    for number in range(height * width):
        assert_close(out[:, :, number // width, number % width], expected[:, :, number].flatten(1))


def test_an_attention_layer_takes_any_mechanism_and_mask():
    x, mask = images(5, 7), window_2d(7, 1)
    layer = shake(AttentionLayer2d(6, 4, 4, heads=2)).double()
    sparse = AttentionLayer2d(6, 4, 4, heads=2, mechanism=BlockSparseAttention(block_size=4)).double()
    sparse.load_state_dict(layer.state_dict())
    assert_close(sparse(x, mask), layer(x, mask))
    assert_close(layer(x, mask.dense(35)), layer(x, mask))
    for mechanism in LinearAttention(), Linformer(35, 5):
        assert AttentionLayer2d(6, 4, 8, heads=2, mechanism=mechanism).double()(x).shape == (2, 8, 5, 7)


def test_pixels_may_change_places():
    layer, x = shake(AttentionLayer2d(6, 4, 8)).double(), images(4, 5)
    order = torch.randperm(20)
    mixed = x.flatten(2)[:, :, order].view_as(x)
    assert_close(layer(mixed).flatten(2), layer(x).flatten(2)[:, :, order])


# Along the axes -------------------------------------------------------------------------------------------------------


@given(sides, sides)
def test_axial_attention_is_two_masks(height, width):
    layer, x = shake(AxialAttention2d(6, 4, 8, heads=2)).double(), images(height, width)
    assert_close(layer(x), layer.columns(layer.rows(x, block_local(width)), strided_keys(width)))


def test_axial_attention_costs_rows_and_columns():
    layer = AxialAttention2d(6, 4, 8)
    for height, width in (8, 8), (16, 8), (32, 24):
        pixels = height * width
        projections = 2 * pixels * (6 * (4 + 4 + 8) + 8 * (4 + 4 + 8))
        pairs = pixels * (height + width)
        assert flops(layer, torch.randn(1, 6, height, width)) == projections + 2 * pairs * (4 + 8)


# The non-local block --------------------------------------------------------------------------------------------------

FORMS = ["gaussian", "embedded_gaussian", "dot_product", "concatenation"]


def loop_non_local(block, x):
    """Equations 2 to 6, one pair of positions at a time; x (channels, …), and what is looked at is pooled by hand."""

    def at_each(convolution, image):
        weight = convolution.weight.flatten(1)  # (out, in)
        return [weight @ position + convolution.bias for position in image.flatten(1).T]

    embed = block.form != "gaussian"
    theta = at_each(block.theta, x) if embed else list(x.flatten(1).T)
    phi = at_each(block.phi, x) if embed else list(x.flatten(1).T)
    g = at_each(block.g, x)
    if block.subsample:
        phi, g = (pooled_by_hand(torch.stack(each), x.shape[1:]) for each in (phi, g))
    out = []
    for i, own in enumerate(theta):
        if "gaussian" in block.form:
            f = [math.exp(float(own @ other)) for other in phi]
            total = sum(f)
        elif block.form == "dot_product":
            f, total = [float(own @ other) for other in phi], len(phi)
        else:
            f = [max(0.0, float(block.pair.weight[0] @ torch.cat([own, other]))) for other in phi]
            total = len(phi)
        y = sum(each / total * value for each, value in zip(f, g, strict=True))
        out.append(block.z.weight.flatten(1) @ y + block.z.bias + x.flatten(1)[:, i])
    return torch.stack(out, dim=1).view_as(x)


def pooled_by_hand(positions, shape):
    """The greatest of each 2 × 2 pixels, for each moment of a film."""
    *time, height, width = shape
    image = positions.view(math.prod(time), height, width, -1)
    return [
        moment[i : i + 2, j : j + 2].flatten(0, 1).amax(0)
        for moment in image
        for i in range(0, height, 2)
        for j in range(0, width, 2)
    ]


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (4, 2), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_non_local_block_is_a_loop_over_pairs(form, shape, subsample):
    block = shake(NonLocalBlock(6, form, dims=len(shape), subsample=subsample)).double()
    x = images(*shape)
    assert_close(block(x), torch.stack([loop_non_local(block, each) for each in x]))
    weights = block.weights(x)
    y = weights @ block.pooled(block.g(x)).mT  # what is drawn is what is computed
    assert_close(x + block.z(y.mT.unflatten(-1, shape)), block(x))
    if "gaussian" in form:
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("form", FORMS)
def test_a_new_non_local_block_changes_nothing_and_learns(form):
    for shape in (3, 5), (2, 3, 4):
        block, x = NonLocalBlock(6, form, dims=len(shape)).double(), images(*shape)
        out = block(x)
        assert torch.equal(out, x)
        out.square().sum().backward()
        assert block.z.weight.grad.abs().max() > 0


def test_a_non_local_block_of_the_papers_size():
    """Figure 2: 1024 channels and a bottleneck of 512, four 1 × 1 × 1 convolutions."""
    with torch.device("meta"):
        block = NonLocalBlock(1024, dims=3)
        x = torch.randn(1, 1024, 4, 14, 14)
    assert sum(each.numel() for each in block.parameters()) == 4 * 1024 * 512 + 3 * 512 + 1024
    assert {name for name, _ in NonLocalBlock(8, "gaussian").named_children()} >= {"g", "z"}
    assert sum(each.numel() for each in NonLocalBlock(8, "gaussian").parameters()) == 2 * 8 * 4 + 4 + 8
    n, projections = 4 * 14 * 14, 2 * 4 * 14 * 14 * 4 * 1024 * 512
    assert flops(block, x) == projections + 2 * 2 * n * n * 512
    block.subsample = True
    assert flops(block, x) == projections + 2 * 2 * n * (n // 4) * 512  # §3.3: a quarter of the pairs


def test_the_dot_product_is_linear_and_the_others_are_quadratic():
    for side in 8, 16, 32:
        n, x = side**2, torch.randn(1, 8, side, side)
        projections = 2 * n * 4 * 8 * 4
        assert flops(NonLocalBlock(8, "dot_product"), x) == projections + 2 * 2 * n * 4 * 4
        assert flops(NonLocalBlock(8), x) == projections + 2 * 2 * n * n * 4
    few = torch.randn(1, 64, 2, 2)  # positions than channels: the usual order costs less
    assert flops(NonLocalBlock(64, "dot_product"), few) == 2 * 4 * 4 * 64 * 32 + 2 * 2 * 4 * 4 * 32


# Stand-alone local attention ------------------------------------------------------------------------------------------


def local(dim_x=6, dim_v=8, kernel=3, **options):
    return shake(LocalAttention2d(dim_x, dim_v, kernel, heads=2, **options)).double()


def loop_local(layer, x):
    """The paper's equation, pixel by pixel, before the stride."""
    batch, _, height, width = x.shape
    q, k, v = (each(x).unflatten(1, (layer.heads, -1)).detach() for each in (layer.query, layer.key, layer.value))
    out, reach = torch.zeros_like(v), layer.kernel // 2
    for b in range(batch):
        for head in range(layer.heads):
            for i in range(height):
                for j in range(width):
                    scores, values = [], []
                    for a in range(i - reach, i + reach + 1):
                        for c in range(j - reach, j + reach + 1):
                            real = 0 <= a < height and 0 <= c < width
                            if not real and layer.padding == "real":
                                continue
                            own = q[b, head, :, i, j]
                            score = own @ k[b, head, :, a, c] if real else 0.0
                            if layer.row is not None:
                                row, column = layer.row[a - i + reach, head], layer.column[c - j + reach, head]
                                score = score + own @ torch.cat([row, column])
                            scores.append(float(score))
                            values.append(v[b, head, :, a, c] if real else torch.zeros_like(own))
                    weights = torch.tensor(scores, dtype=x.dtype).softmax(0)
                    out[b, head, :, i, j] = sum(w * each for w, each in zip(weights, values, strict=True))
    return out.flatten(1, 2)


@pytest.mark.parametrize("options", [{}, {"relative": False}, {"grouped": True}], ids=str)
@pytest.mark.parametrize("padding", ["real", "zeros"])
@pytest.mark.parametrize("height, width, kernel", [(3, 4, 3), (2, 1, 5), (4, 4, 1)])
@torch.no_grad()
def test_local_attention_is_a_loop_over_neighborhoods(height, width, kernel, padding, options):
    layer, x = local(kernel=kernel, padding=padding, **options), images(height, width)
    assert_close(layer(x), loop_local(layer, x))


def test_local_attention_is_a_mask():
    """SDPA, and block-sparse attention, with `window_2d`: there the relative positions are a bias of all pairs."""
    for kernel in 3, 7:
        layer, x = local(kernel=kernel), images(6, 5)
        q, k, v = (each.flatten(3).mT for each in layer.project(x))  # (batch, heads, pixels, width)
        pixel, mask = torch.arange(30), window_2d(5, kernel // 2)
        down, across = (
            (each[None, :] - each[:, None] + kernel // 2).clamp(0, kernel - 1) for each in (pixel // 5, pixel % 5)
        )
        relative = torch.cat([layer.row[down], layer.column[across]], dim=-1)  # (query, key, heads, width)
        bias = torch.einsum("bhqd,qkhd->bhqk", q, relative)
        expected = attention(q, k, v, mask, bias=bias, scale=1.0)
        hidden = bias.masked_fill(~mask.dense(30), float("-inf"))
        assert_close(F.scaled_dot_product_attention(q, k, v, hidden, scale=1.0), expected)
        assert_close(layer(x), expected.mT.flatten(1, 2).unflatten(-1, (6, 5)))
        plain = local(kernel=kernel, relative=False)
        q, k, v = (each.flatten(3).mT for each in plain.project(x))
        sparse = BlockSparseAttention(block_size=8)(q * q.shape[-1] ** 0.5, k, v, mask)
        assert_close(plain(x), sparse.mT.flatten(1, 2).unflatten(-1, (6, 5)))


def test_local_attention_is_unfold():
    """With zeros beyond the image: every neighborhood written out."""
    layer, x = local(kernel=5, padding="zeros"), images(6, 7)
    q, k, v = layer.project(x)
    k, v = (F.unfold(each.flatten(1, 2), 5, padding=2).view(2, 2, 4, 25, 6, 7) for each in (k, v))
    relative = torch.cat([layer.row.repeat_interleave(5, 0), layer.column.repeat(5, 1, 1)], dim=-1)  # (25, heads, 4)
    scores = torch.einsum("bhdyx,bhdoyx->bhoyx", q, k + relative.permute(1, 2, 0)[None, :, :, :, None, None])
    expected = torch.einsum("bhoyx,bhdoyx->bhdyx", scores.softmax(2), v).flatten(1, 2)
    assert_close(layer(x), expected)
    assert_close(layer.weights(x).flatten(2, 3), scores.softmax(2))


@pytest.mark.parametrize("height, width", [(6, 4), (7, 5), (1, 1)])
@pytest.mark.parametrize("stride", [2, 3])
@torch.no_grad()
def test_a_stride_gives_the_shape_of_a_convolution_and_the_mean_of_what_is_there(height, width, stride):
    x, layer = images(height, width), local(stride=stride)
    rows, columns = F.conv2d(x, torch.randn(8, 6, 3, 3).double(), stride=stride, padding=1).shape[2:]
    full = loop_local(layer, x)
    expected = [
        [full[:, :, stride * i : stride * (i + 1), stride * j : stride * (j + 1)].mean((2, 3)) for j in range(columns)]
        for i in range(rows)
    ]
    assert_close(layer(x), torch.stack([torch.stack(row, dim=-1) for row in expected], dim=-2))


@pytest.mark.parametrize("padding", ["real", "zeros"])
def test_local_attention_learns(padding):
    layer, x = local(padding=padding), images(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(layer, x[:1], fast_mode=True)
    names = [name for name, _ in layer.named_parameters()]
    expected = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])

    q, k, v = layer.project(x)  # again, by operations whose derivatives are torch's
    k, v = (F.unfold(each.flatten(1, 2), 3, padding=1).view(2, 2, 4, 9, 3, 4) for each in (k, v))
    relative = torch.cat([layer.row.repeat_interleave(3, 0), layer.column.repeat(3, 1, 1)], dim=-1)
    scores = torch.einsum("bhdyx,bhdoyx->bhoyx", q, k + relative.permute(1, 2, 0)[None, :, :, :, None, None])
    if padding == "real":
        ones = F.unfold(torch.ones(1, 1, 3, 4).double(), 3, padding=1).view(9, 3, 4)
        scores = scores.masked_fill(ones == 0, float("-inf"))
    out = torch.einsum("bhoyx,bhdoyx->bhdyx", scores.softmax(2), v)
    for name, one, other in zip(
        ["x", *names], expected, torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]), strict=True
    ):
        assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", ["local_scores", "local_average", "local_spread"])
def test_the_operators_are_well_formed(name):
    """Schema, shapes without values, derivatives, and derivatives of these; the layer is compiled below."""
    image = torch.randn(1, 2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    other = torch.randn(1, 2, 9, 3, 4, dtype=torch.float64, requires_grad=True)
    arguments = (image.detach().clone().requires_grad_() if name == "local_scores" else other, image, 3)
    operator = getattr(torch.ops.txlib, name)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, arguments, test_utils=checks)
    assert torch.autograd.gradcheck(operator, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(operator, arguments, fast_mode=True)


@pytest.mark.parametrize("kernel", [3, 7])
def test_no_neighborhood_is_written_out(kernel):
    """The largest tensor is that of the scores, k² for each pixel and head, or a framed image; `unfold` makes k² times
    an image. Forward and backward, also inside the operators."""
    heads, channels, side = 2, 32, 20
    layer, x = LocalAttention2d(channels, channels, kernel, heads=heads), torch.randn(1, channels, side, side)
    limit = max(heads * kernel**2 * side**2, channels * (side + kernel - 1) ** 2)
    q, k, v = layer.project(x)
    weights = layer.scores(q, k).softmax(2)
    with Largest() as mode:
        layer(x).sum().backward()
        local_operators.local_scores(q, k, kernel)
        local_operators.local_average(weights, v, kernel)
        local_operators.local_spread(weights, q, kernel)
    assert mode.largest <= limit
    with Largest() as unfolding:
        F.unfold(k.flatten(1, 2), kernel, padding=kernel // 2)
    assert unfolding.largest == channels * kernel**2 * side**2 > 7 * mode.largest


def test_local_attention_in_16_bits():
    layer, x = LocalAttention2d(16, 16, 5, heads=2, stride=2), torch.randn(2, 16, 6, 7)
    exact = layer(x)
    wanted = torch.autograd.grad(exact.square().sum(), [*layer.parameters()])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    for one, other in zip(
        [out, *torch.autograd.grad(out.float().square().sum(), [*layer.parameters()])], [exact, *wanted], strict=True
    ):
        assert (one - other).abs().max() < 0.05 * other.abs().max()


@pytest.mark.usefixtures("unchecked")
def test_local_attention_compiles_whole():
    layer, x = LocalAttention2d(8, 8, 3, heads=2, stride=2), torch.randn(2, 8, 5, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert all(each.grad is not None for each in layer.parameters())


def test_local_attention_is_linear_in_pixels():
    layer = LocalAttention2d(16, 32, 7, heads=4)
    for side in 8, 16, 32:
        pixels, x = side**2, torch.randn(1, 16, side, side)
        projections, pairs, relative = 3 * 16 * 32, 2 * 49 * 32, 7 * 32
        assert flops(layer, x) == 2 * pixels * (projections + pairs + relative)
        out = layer(x).sum()
        expected = 2 * pixels * (2 * projections + 2 * pairs + 2 * relative) - 2 * pixels * projections
        assert flops(out.backward) == expected  # twice the forward pass; nobody asks for the image's own derivative


def test_local_attention_against_a_convolution():
    """Ramachandran et al. 2019, §2.2: parameters do not grow with the neighborhood's area, and are three matrices
    against the convolution's nine."""
    width = 64
    convolution = 9 * width**2
    for kernel in 3, 7, 11:
        layer = LocalAttention2d(width, width, kernel, heads=8)
        count = sum(each.numel() for each in layer.parameters())
        assert count == 3 * width**2 + kernel * width < convolution / 2
        assert kernel > 7 or flops(layer, torch.randn(1, width, 8, 8)) < 64 * 2 * convolution
    grouped = LocalAttention2d(width, width, 7, heads=8, grouped=True)
    assert sum(each.numel() for each in grouped.parameters()) == 3 * width**2 // 8 + 7 * width


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: LocalAttention2d(8, 8, 4), "kernel=4 has no pixel in the middle; choose an odd one, e.g. 5"),
        (lambda: LocalAttention2d(8, 8, 0), "kernel=0 .*e.g. 1"),
        (lambda: LocalAttention2d(8, 12, 3), "dim_v=12 is not divisible by heads=8; choose e.g. 16"),
        (lambda: LocalAttention2d(8, 24, 3), "heads of 3 channels, .* choose e.g. dim_v=32"),
        (lambda: LocalAttention2d(9, 16, 3, grouped=True), "dim_x=9 is not divisible by heads=8"),
        (lambda: LocalAttention2d(8, 16, 3, stride=0), "stride=0 must be at least 1"),
        (lambda: LocalAttention2d(8, 16, 3, padding="same"), "padding='same' is unknown; choose 'real' or 'zeros'"),
        (lambda: AttentionLayer2d(8, 0, 8), "dim_k=0 must be at least 1"),
        (lambda: AttentionLayer2d(8, 4, 6, heads=4), "dim_v=6 is not divisible by heads=4; choose e.g. 8"),
        (lambda: AttentionLayer2d(8, 4, 4, heads=0), "heads=0 must be at least 1"),
        (lambda: NonLocalBlock(8, "softmax"), "form='softmax' is unknown; choose one of gaussian, embedded_gaussian"),
        (lambda: NonLocalBlock(8, dims=1), "dims=1 is unknown; choose 2 for images, 3 for videos"),
        (lambda: NonLocalBlock(8, bottleneck=0), "bottleneck=0 must be at least 1"),
    ],
)
def test_wrong_values_are_refused(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


LAYERS = {
    "attention": lambda channels: AttentionLayer2d(channels, 4, 4),
    "axial": lambda channels: AxialAttention2d(channels, 4, 4),
    "non-local": lambda channels: NonLocalBlock(channels, bottleneck=2),
    "local": lambda channels: LocalAttention2d(channels, 4, 3, heads=2),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(
    "shape, channels, words",
    [
        ((2, 5, 7, 3), 3, r"shape \(2, 5, 7, 3\), .*: its channels stand last, write x.permute\(0, 3, 1, 2\)"),
        ((2, 4, 5, 7), 3, r"expected \(batch, 3 channels, height, width\): it has 4 channels"),
        ((3, 5, 7), 3, r"shape \(3, 5, 7\), .*: write x\[None\] for a batch of one"),
        ((2, 5, 7), 1, r"shape \(2, 5, 7\), .*: write x\[:, None\]$"),
        ((5, 7), 3, r"shape \(5, 7\), expected \(batch, 3 channels, height, width\)$"),
    ],
)
def test_wrong_images_are_refused(make, shape, channels, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make(channels)(torch.randn(shape))


def test_whole_numbers_are_refused(unchecked):
    with pytest.raises(ValueError, match="x holds torch.uint8, expected floats: write e.g. x / 255"):
        AttentionLayer2d(3, 4, 4)(torch.zeros(2, 3, 5, 7, dtype=torch.uint8))


def test_wrong_films_are_refused(unchecked):
    with pytest.raises(
        ValueError, match=r"expected \(batch, 3 channels, time, height, width\).*permute\(0, 4, 1, 2, 3"
    ):
        NonLocalBlock(3, dims=3)(torch.randn(2, 4, 5, 6, 3))
