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


def test_each_sub_layer_has_the_wiring_of_its_setting(lesson):
    settings = block.settings(lesson)
    torch.manual_seed(0)
    x = torch.randn(2, 5, 32)
    whole = lesson["TransformerBlock"](32, 2, 64)
    attention, network = whole.self_attention, whole.feed_forward
    attended, fed = attention(whole.self_attention_norm(x)), whole.feed_forward_norm
    expected = {
        ("parts", "no attention"): x + network(fed(x)),
        ("parts", "no feed-forward"): x + attended,
        ("residual", "around attention only"): network(fed(x + attended)),
        ("residual", "around feed-forward only"): attended + network(fed(attended)),
        ("residual", "none, and no attention"): network(fed(x)),
    }
    for (question, setting), output in expected.items():
        whole.wiring = settings[question][setting]["wiring"]
        torch.testing.assert_close(whole(x), output)
