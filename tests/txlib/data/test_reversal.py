"""What is kept of the runs of lesson 08: those that its script makes; its nets are of about one size."""

import pytest
import reversal
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    kept, broken = (reversal.RUNS.kept()[part] for part in ("reversed", "broken"))
    assert tuple(kept) == tuple(map(str, lesson["RATES"])) and broken.keys() == reversal.BROKEN.keys()
    assert all(tuple(nets) == lesson["NETS"] for nets in kept.values())
    runs = [seeds for nets in kept.values() for seeds in nets.values()]
    longer = reversal.RUNS.kept()["1,500 steps"]
    assert all(seeds.keys() == {"0", "1", "2"} for seeds in [*runs, *longer.values(), *broken.values()])
    assert all(0 <= share <= 1 for seeds in runs for share in seeds.values())


def test_the_nets_are_of_about_one_size(lesson):
    counts = [sum(weight.numel() for weight in lesson["untrained"](name).parameters()) for name in lesson["NETS"]]
    assert max(counts) == pytest.approx(min(counts), rel=0.15)


def test_post_norm_has_no_last_norm(lesson):
    ours, papers = (lesson["untrained"](name) for name in lesson["NETS"][2:])
    last = {name for name, _ in ours.named_parameters()} - {name for name, _ in papers.named_parameters()}
    assert last == {f"{stack}.norm.{part}" for stack in ("encoder", "decoder") for part in ("weight", "bias")}


def test_all_test_strings_count(lesson):
    class Silent(torch.nn.Module):
        """Writes the end at once: no string is right."""

        def encode(self, input_ids, attention_mask):
            return input_ids

        def decode(self, written, memory, attention_mask):
            return written

        def logits(self, written):
            return torch.nn.functional.one_hot(torch.full_like(written, lesson["EOS"]), 13)

    assert lesson["fraction_right"](Silent()) == 0.0 and len(lesson["test"]) == 500
