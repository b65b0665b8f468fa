"""What is kept of the runs of lesson 06: those that its script makes."""

import block
import torch


def test_the_shipped_runs_are_those_of_the_script(lesson):
    settings, kept = block.settings(lesson), block.RUNS.kept()
    assert {question: [*blocks] for question, blocks in kept.items()} == {
        question: [*blocks] for question, blocks in settings.items()
    }
    for question, blocks in settings.items():
        for setting, options in blocks.items():
            assert [*kept[question][setting]] == [str(lr) for lr in block.RATES]
            for seeds in kept[question][setting].values():
                assert seeds.keys() == {"0", "1", "2"}
                assert all(len(run["loss"]) == 12 for run in seeds.values())
                assert all(len(run["apart"]) == 1 + options.get("blocks", 6) for run in seeds.values())


def test_a_part_that_is_left_out_computes_nothing(lesson):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 32)
    attention, nothing = lesson["pre_norm"], lesson["left_out"]
    whole = lesson["TransformerBlock"](32, 2, 64)
    part = lesson["TwoWirings"](32, 2, 64, (attention, attention))
    part.load_state_dict(whole.state_dict())
    torch.testing.assert_close(part(x), whole(x))
    part.wiring = (nothing, nothing)
    assert torch.equal(part(x), x)
