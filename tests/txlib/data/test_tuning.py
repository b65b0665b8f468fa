"""What is kept of the runs of lesson 40, and what its mask, its judge and its adapters do."""

import torch
import tuning


def test_the_shipped_runs_have_three_seeds_each():
    kept = tuning.RUNS.kept()["scores"]
    assert {tuple(seeds) for seeds in kept.values()} == {("0", "1", "2")}
    fractions = ("questions right", "requests obeyed", "answers that end")
    assert all(0 <= run[name] <= 1 for seeds in kept.values() for run in seeds.values() for name in fractions)
    assert min(run["questions right"] for run in kept["full"].values()) > max(
        run["questions right"] for run in kept["no base"].values()
    )


def test_labels_are_the_answer_and_the_end_of_its_line(lesson):
    ids, labels = lesson["encode"]("A new verse?", "He spoke.")
    reply = lesson["tokenizer"].encode(" He spoke.\n")
    assert labels == [-100] * (len(ids) - len(reply)) + reply and ids[-len(reply) :] == reply
    assert lesson["no_end"][0][1][-1] == -100 != lesson["all_tokens"][0][1][0]


def test_held_out_verses_are_not_practiced_and_the_judge_knows_both_kinds(lesson):
    answers = {answer for _, answer in lesson["practice"]} - {"Old", "New"}
    assert not answers & {answer for _, answer in lesson["test"]} - {"Old", "New"}
    assert [lesson["judge"](verse) for verse in ("Thou hast spoken unto him.", "You didn't speak.")] == ["Old", "New"]


def test_an_adapter_begins_as_nothing_and_merges(lesson):
    linear = torch.nn.Linear(5, 3)
    x, layer = torch.randn(2, 5), lesson["LoRA"](linear, rank=2)
    assert torch.equal(layer(x), linear(x))
    torch.nn.init.normal_(layer.B)
    adapted = layer(x)
    assert torch.allclose(layer.merged()(x), adapted, atol=1e-5)
