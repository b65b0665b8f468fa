"""Generated sets: what they say of themselves is true; mixtures against torch, loops and what EM promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from txlib.data import (
    Mixture,
    clustered_points,
    digits,
    fit_mixture,
    largest_numbers,
    pad_sets,
    point_clouds,
    random_mixtures,
)

SIZES = st.tuples(st.integers(1, 4), st.integers(0, 5)).map(lambda both: (both[0], sum(both)))


def rows(batch):
    """The elements of each set, without padding."""
    return [row[real == 1] for row, real in zip(batch["inputs"], batch["attention_mask"], strict=True)]


def is_padded_at_the_end(batch, sizes):
    real = batch["attention_mask"]
    assert not batch["inputs"][real == 0].any()
    assert (real.diff(dim=1) <= 0).all() and real[:, 0].all()
    assert sizes[0] <= real.sum(dim=1).min() and real.sum(dim=1).max() == real.shape[1] <= sizes[1]


@given(st.integers(1, 20), SIZES, st.integers(0, 100))
def test_the_largest_number_is_the_label(count, sizes, seed):
    batch = largest_numbers(count, sizes=sizes, seed=seed)
    is_padded_at_the_end(batch, sizes)
    for row, label in zip(rows(batch), batch["labels"], strict=True):
        numbers = [round(100 * float(each)) for each in row]
        assert max(numbers) == round(100 * float(label)) and min(numbers) >= 1 and max(numbers) <= 100


def test_all_sizes_and_numbers_come():
    batch = largest_numbers(5000)
    assert set(batch["attention_mask"].sum(dim=1).tolist()) == set(range(1, 11))
    assert set((100 * torch.cat(rows(batch))).round().int().flatten().tolist()) == set(range(1, 101))


def test_the_same_seed_gives_the_same_sets_and_another_gives_others():
    for make in largest_numbers, lambda count, seed: clustered_points(count, seed=seed)[0]:
        assert torch.equal(make(4, seed=3)["inputs"], make(4, seed=3)["inputs"])
        one, other = make(4, seed=3)["inputs"], make(4, seed=4)["inputs"]
        assert one.shape != other.shape or not torch.equal(one, other)


def test_points_come_from_their_mixtures():
    batch, mixture = clustered_points(6, clusters=3, sizes=(3000, 4000), seed=1)
    is_padded_at_the_end(batch, (3000, 4000))
    assert mixture.weights.shape == (6, 3) and mixture.means.abs().max() <= 4
    for number, points in enumerate(rows(batch)):
        weights, means = mixture.weights[number], mixture.means[number]
        mean = weights @ means
        assert_close(points.mean(dim=0), mean, atol=0.25, rtol=0)
        assert_close(points.var(dim=0), weights @ (means - mean) ** 2 + 0.09, atol=0.7, rtol=0.1)


# Mixtures


def any_mixture():
    weights = torch.rand(2, 3, dtype=torch.float64) + 0.1
    means, deviations = torch.randn(2, 2, 3, 2, dtype=torch.float64)
    return Mixture(weights / weights.sum(dim=1, keepdim=True), means, deviations.abs() + 0.2)


def test_the_likelihood_is_that_of_torchs_mixture():
    mixture, points = any_mixture(), torch.randn(2, 7, 2, dtype=torch.float64)
    theirs = MixtureSameFamily(
        Categorical(mixture.weights), Independent(Normal(mixture.means, mixture.deviations), 1)
    ).log_prob(points.transpose(0, 1))  # (elements, batch)
    assert_close(mixture.log_likelihood(points), theirs.sum(dim=0))
    real = torch.tensor([[1] * 7, [1] * 3 + [0] * 4])
    assert_close(mixture.log_likelihood(points, real)[1], theirs[:3, 1].sum())


def test_a_step_of_em_is_its_formulas():
    mixture, points = any_mixture(), torch.randn(2, 7, 2, dtype=torch.float64)
    real = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    better = mixture.improved(points, real)
    for b, size in enumerate([7, 5]):
        share = torch.zeros(size, 3, dtype=torch.float64)
        for i in range(size):
            for j in range(3):
                density = float(mixture.weights[b, j])
                for axis in range(2):
                    mean, width = float(mixture.means[b, j, axis]), float(mixture.deviations[b, j, axis])
                    z = (float(points[b, i, axis]) - mean) / width
                    density *= math.exp(-z * z / 2) / (width * math.sqrt(2 * math.pi))
                share[i, j] = density
            share[i] /= share[i].sum()
        assert_close(mixture.responsibilities(points)[b, :size], share)
        for j in range(3):
            count = sum(share[i, j] for i in range(size))
            mean = sum(share[i, j] * points[b, i] for i in range(size)) / count
            variance = sum(share[i, j] * (points[b, i] - mean) ** 2 for i in range(size)) / count
            assert_close(better.weights[b, j], count / size)
            assert_close(better.means[b, j], mean)
            assert_close(better.deviations[b, j], variance.sqrt())


def test_no_step_of_em_makes_a_set_less_likely():
    batch, _ = clustered_points(8, sizes=(20, 40), seed=2)
    points, real = batch["inputs"].double(), batch["attention_mask"]
    mixture = random_mixtures(8)
    mixture = Mixture(mixture.weights.double(), mixture.means.double(), 3 * torch.ones(8, 4, 2).double())
    likelihood = mixture.log_likelihood(points, real)
    for _ in range(15):
        mixture = mixture.improved(points, real)
        before, likelihood = likelihood, mixture.log_likelihood(points, real)
        wide = (mixture.deviations > 0.02).all(dim=-1).all(dim=-1)  # where the least width does not interfere
        assert (likelihood >= before - 1e-6)[wide].all()


def test_fitting_finds_what_made_the_points():
    mixture = Mixture(
        torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[[-3.0, 0], [0, 3], [3, -1]]]), torch.full((1, 3, 2), 0.3)
    )
    points = mixture.draw(2000, torch.Generator().manual_seed(0))
    found = fit_mixture(points, clusters=3, starts=3)
    order = found.means[0, :, 0].argsort()
    assert_close(found.means[0, order], mixture.means[0], atol=0.05, rtol=0)
    assert_close(found.weights[0, order], mixture.weights[0], atol=0.05, rtol=0)
    assert_close(found.deviations[0, order], mixture.deviations[0], atol=0.05, rtol=0)
    assert found.log_likelihood(points) > mixture.log_likelihood(points)  # it fits these very points


def test_fitting_leaves_padding_out():
    batch, _ = clustered_points(2, clusters=2, sizes=(30, 60), seed=5)
    real = torch.ones_like(batch["attention_mask"])
    real[1, 25:] = 0
    points = batch["inputs"].masked_fill(real[..., None] == 0, 100.0)
    found = fit_mixture(points, real, clusters=2, starts=2)
    assert found.means.abs().max() < 10 and found.deviations.max() < 10


def test_a_models_numbers_are_read_as_a_mixture():
    logits = torch.randn(2, 3, 5)
    mixture = Mixture.from_logits(logits)
    assert_close(mixture.weights, logits[..., 0].softmax(-1))
    assert_close(mixture.means, logits[..., 1:3])
    assert_close(mixture.deviations, (1 + logits[..., 3:].exp()).log() + 0.01)


# Pictures as points


def test_points_stand_where_a_picture_is_bright():
    picture = torch.zeros(1, 1, 4, 8)
    picture[0, 0, 0, 7], picture[0, 0, 3, 2] = 0.75, 0.25  # up on the right; down, left of the middle
    (points,) = rows(point_clouds(picture, sizes=(4000, 4000)))
    above = points[:, 1] > 0
    assert above.float().mean() == pytest.approx(0.75, abs=0.03)
    for some, (left, right, low, high) in (above, (0.75, 1, 0.5, 1)), (~above, (-0.5, -0.25, -1, -0.5)):
        x, y = points[some].T
        assert left <= x.min() and x.max() <= right and low <= y.min() and y.max() <= high
        assert x.mean() == pytest.approx((left + right) / 2, abs=0.02)


def test_digits_become_clouds_of_their_brightness():
    pictures = digits().test[:5].pixel_values
    batch = point_clouds(pictures, sizes=(20_000, 20_000))
    columns = ((batch["inputs"][..., 0] + 1) * 4).long().clamp(max=7)
    lines = ((1 - batch["inputs"][..., 1]) * 4).long().clamp(max=7)
    for picture, column, line in zip(pictures, columns, lines, strict=True):
        share = torch.bincount(8 * line + column, minlength=64).view(8, 8) / 20_000
        assert_close(share, picture[0] / picture.sum(), atol=0.01, rtol=0)


# Different sizes


def test_sets_are_padded_and_marked():
    sets = [torch.randn(size, 2) for size in (3, 1, 4)]
    inputs, mask = pad_sets(sets)
    assert inputs.shape == (3, 4, 2) and mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    for row, real, each in zip(inputs, mask, sets, strict=True):
        assert torch.equal(row[real == 1], each) and not row[real == 0].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pad_sets([]), "no sets to put together"),
        (lambda: pad_sets([torch.ones(2, 3), torch.ones(0, 3)]), "set 1 is empty; leave it out"),
        (lambda: pad_sets([torch.ones(2, 3), torch.ones(2, 2)]), r"set 1 has shape \(2, 2\), expected .* \(any, 3\)"),
        (lambda: largest_numbers(3, sizes=(0, 4)), r"sizes=\(0, 4\) must be"),
        (lambda: largest_numbers(3, sizes=(5, 4)), r"sizes=\(5, 4\) must be"),
        (lambda: largest_numbers(0), "count=0 must be at least 1"),
        (lambda: point_clouds(torch.ones(2, 3, 8, 8)), r"shape \(2, 3, 8, 8\), expected \(batch, 1, height, width\)"),
        (lambda: point_clouds(torch.stack([torch.ones(1, 8, 8), torch.zeros(1, 8, 8)])), "picture 1 is black"),
        (lambda: Mixture.from_logits(torch.ones(1, 2, 4)), r"1 \+ 2 · axes numbers, got 4"),
        (lambda: fit_mixture(torch.ones(1, 4, 2), starts=0), "starts=0 and clusters=4 must be at least 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
