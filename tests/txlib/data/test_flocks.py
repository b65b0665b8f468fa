"""What is kept of the runs of lesson 23: those that its script makes, and what its score means."""

import flocks
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept = flocks.RUNS.kept()
    assert kept.keys() == {"largest", "clusters"}
    for task, models, sizes in ("largest", "LARGEST", "SIZES"), ("clusters", "CLUSTERS", "READ"):
        assert kept[task].keys() == lesson[models].keys()
        for seeds in kept[task].values():
            assert seeds.keys() == {"0", "1", "2"}
            assert all(len(scores) == len(lesson[sizes]) for scores in seeds.values())


def test_the_score_is_the_density_of_the_mixture(lesson):
    torch.manual_seed(0)
    x, (pi, mean, deviation) = lesson["mixtures"](5, 7)
    deviation = deviation + torch.rand_like(deviation)
    oracle = MixtureSameFamily(Categorical(pi[:, None]), Independent(Normal(mean[:, None], deviation[:, None]), 1))
    expected = oracle.log_prob(x).mean(dim=-1)
    torch.testing.assert_close(lesson["log_likelihood"](x, (pi, mean, deviation)), expected)


def test_points_come_from_their_clouds(lesson):
    torch.manual_seed(0)
    pi, mean = torch.tensor([[0.2, 0.8]]), torch.tensor([[[-9.0, 0.0], [9.0, 3.0]]])
    x = lesson["draw"](pi, mean, torch.full((1, 2, 2), 0.5), 4000)[0]
    left = x[:, 0] < 0
    assert left.float().mean().item() == pytest.approx(0.2, abs=0.03)
    for each, center in (x[left], mean[0, 0]), (x[~left], mean[0, 1]):
        torch.testing.assert_close(each.mean(dim=0), center, rtol=0, atol=0.1)
        torch.testing.assert_close(each.std(dim=0), torch.full((2,), 0.5), rtol=0, atol=0.05)


def test_no_round_of_em_makes_its_points_less_likely(lesson):
    torch.manual_seed(0)
    x, _ = lesson["mixtures"](8, 40)
    clouds, reached = lesson["some_start"](x), []
    for _ in range(6):
        reached.append(lesson["log_likelihood"](x, clouds))
        clouds = lesson["em"](x, clouds, 1)
    assert all((after > before - 1e-2).all() for before, after in zip(reached, reached[1:], strict=False))
