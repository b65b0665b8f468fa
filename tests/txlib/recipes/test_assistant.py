"""The assistant's recipe: three stages, each from the one before; what a stage learns from; a model to talk with."""

import io
import json
import multiprocessing
import shutil
import signal
import sys
from functools import partial

import pytest

pytest.importorskip("tokenizers")
import tiny
import torch

import txlib.recipes.assistant as assistant
from txlib.data import shipped
from txlib.data.instructions import exchange, final_answer, sums
from txlib.generation import GenerationConfig
from txlib.models.pretrained import load_pretrained
from txlib.posttraining import check_rewards, rollout_loss, write_answers
from txlib.recipes import run
from txlib.recipes.assistant import Assistant, Instructions, Rewards, answer, nearest, right_share
from txlib.text import load_tokenizer
from txlib.text.chat import ChatTemplate

pytestmark = pytest.mark.slow

RUN = sys.modules["txlib.recipes.run"]
MINI = {"preset": "mini", "steps": 3}
STAGES = ["1-text", "2-instructions", "3-rewards"]


@pytest.fixture(scope="module", autouse=True)
def few_questions():
    with pytest.MonkeyPatch.context() as patch:
        tiny.install(patch)
        yield tiny.few_questions()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run: its folder and result."""
    out = tmp_path_factory.mktemp("runs") / "assistant"
    return out, run(Assistant, out, quiet=True, **MINI)


@pytest.fixture(scope="module")
def made(few_questions):
    """A recipe's tokenizer and untrained model, by the class."""

    def make(kind):
        recipe = kind(preset="mini")
        tokenizer = recipe.make_tokenizer(few_questions)
        torch.manual_seed(0)
        return recipe, tokenizer, recipe.make_model(few_questions, tokenizer)

    return make


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def test_each_stage_begins_with_the_one_before(whole):
    out, result = whole
    for before, name in zip([None, *STAGES], STAGES, strict=False):
        settings = json.loads((out / name / "run" / "settings.json").read_text())
        assert settings["start_from"] == (before and str(out / before)) and settings["steps"] == 3
    assert weights(out) == weights(out / STAGES[-1]) and weights(out / STAGES[1]) != weights(out / STAGES[0])
    assert json.loads((out / "model" / "result.json").read_text()) == result
    assert list(result["stages"]) == ["text", "instructions", "rewards"]
    for stage in result["stages"].values():
        assert list(stage["exact"]) == list(assistant.KINDS) and stage["curve"]["step"] == [1, 2, 3]
        assert "cpu_seconds" in stage
    report = Assistant(preset="mini").report(result, "here")
    assert "instructions " in report and report.endswith("txlib chat --model here")


@tiny.forks
@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_any_stage_it_goes_on_bit_for_bit(whole, stage, tmp_path):
    out = tmp_path / "out"
    for done in STAGES[: STAGES.index(stage)]:
        shutil.copytree(whole[0] / done, out / done)
    train = RUN.train

    def die() -> None:
        RUN.train = lambda *more, out, **options: (tiny.dies_in(3, signal.SIGKILL) if out.name == stage else train)(
            *more, out=out, **options
        )
        run(Assistant, out, quiet=True, **MINI)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and list((out / stage).glob("checkpoints/step-*"))
    assert not (out / stage / "model").exists()
    run(Assistant, out, resume=True, quiet=True)
    assert weights(out) == weights(whole[0])


def test_minutes_are_shared_by_the_stages(tmp_path, monkeypatch):
    asked = {}

    def noted(stage, folder, *, minutes, **options):
        asked[folder.name] = minutes
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "result.json").write_text("{}")
        return {}

    monkeypatch.setattr(RUN, "run", noted)
    monkeypatch.setattr(RUN, "curve", lambda folder: {})
    run(Assistant, tmp_path / "out", preset="mini", minutes=10.0, quiet=True)
    assert list(asked) == STAGES and sum(asked.values()) == pytest.approx(10) and min(asked.values()) >= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "already holds a run; resume it"),
        ({"resume": True, "seed": 3}, "was started with seed=0, not seed=3"),
        ({"extend": True}, "has stages; extend one of them, such as `txlib train assistant-rewards`"),
    ],
)
def test_what_contradicts_a_run_is_refused(whole, options, words):
    with pytest.raises(ValueError, match=words):
        run(Assistant, whole[0], quiet=True, **{**MINI, **options})


def test_the_command_then_a_talk(txlib, tmp_path, whole, monkeypatch):
    status, said, _ = txlib("train", "assistant", "--help")
    assert status == 0 and "in three stages" in said
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 12 + 30?\n"))
    status, said, error = txlib("chat", "--model", whole[0], "--max-new-tokens", 5, "--device", "cpu")
    assert status == 0 and not error


# What the stages learn from


def test_only_what_the_assistant_says_counts(made, few_questions):
    recipe, tokenizer, model = made(Instructions)
    batch = recipe.make_batches(few_questions, tokenizer)(0)[0]
    model.eval().requires_grad_(False)
    loss, count = recipe.loss(model, batch)
    total, number = 0.0, 0
    user, speaking, end = (tokenizer.mark(name) for name in ("<|user|>", "<|assistant|>", "<|end|>"))
    for row in batch["input_ids"].tolist():
        log_p, speaks = model(torch.tensor([row])).logits[0].log_softmax(-1), False
        for place, token in enumerate(row):
            if speaks:
                total, number = total - float(log_p[place - 1, token]), number + 1
            speaks = (speaks or token == speaking) and token not in (end, user)
    assert (float(loss), int(count)) == (pytest.approx(total, rel=1e-4), number)


def test_the_value_of_the_loss_is_the_reward_that_is_missing(made, few_questions):
    recipe, tokenizer, model = made(Rewards)
    batch = recipe.make_batches(few_questions, tokenizer)(0)[0]
    asked = [
        (prompt[:length], answer[:size])
        for prompt, answer, (length, size) in zip(
            *(batch[name].tolist() for name in ("prompts", "answers", "lengths")), strict=True
        )
    ]
    talks = {
        talk[0]["content"]: talk[1]["content"] for kind in assistant.CHECKED for talk in few_questions.kinds[kind].train
    }
    for prompt, right in asked:
        end = tokenizer.decode(right)
        assert talks[tokenizer.decode(prompt)].endswith(end) and end.startswith((": ", "Yes", "No"))
    begins = {tuple(prompt): right[0] for prompt, right in asked}

    def lucky(prompt, written):
        return float(written[:1] == [begins[tuple(prompt)]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            assistant,
            "write_answers",
            lambda model, prompts, reward, *more, **o: write_answers(model, prompts, lucky, *more, **o),
        )
        loss, answers = recipe.loss(model, batch)
    rollouts = write_answers(
        model, [prompt for prompt, _ in asked], lucky, assistant.POLICY, seed=int(batch["seeds"][0])
    )
    assert float(loss.detach()) == pytest.approx(float((1 - rollouts.rewards).sum())) and int(answers) == len(
        rollouts.rewards
    )
    expected, _ = rollout_loss(assistant.POLICY)(model, rollouts)
    gradients = [torch.autograd.grad(value, list(model.parameters())) for value in (loss, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_rewards_that_never_differ_end_the_run(few_questions, tmp_path, monkeypatch):
    monkeypatch.setattr(assistant, "check_rewards", partial(check_rewards, window=3))
    with pytest.raises(ValueError, match="all answers of the first 3 steps got the reward 0"):
        run(Rewards, tmp_path / "out", preset="mini", steps=5, quiet=True)
    assert not (tmp_path / "out" / "model").exists() and not list((tmp_path / "out").glob("checkpoints/*3"))


# How it is measured


def test_answers_are_those_of_a_conversation_of_its_own(whole):
    model, tokenizer = load_pretrained(whole[0] / "model"), load_tokenizer(whole[0] / "model")
    template = ChatTemplate.load(whole[0] / "model", tokenizer)
    questions = ["What is 1 + 2?", "In German: A much longer question, with many words?", "Hi"]
    together = answer(model, template, questions)
    assert together == [answer(model, template, [question])[0] for question in questions]


def test_the_nearest_question_is_the_baseline():
    known = [exchange(*words) for words in (("the red fox", "rot"), ("the blue sky", "blau"))]
    assert nearest(["a red fox", "blue skies"], known) == ["rot", "blau"]


# The bundled one


def test_the_bundled_assistant_adds_as_its_result_says(txlib, monkeypatch):
    folder = shipped("assistant")
    result = json.loads((folder / "result.json").read_text())
    tokenizer = load_tokenizer(folder)
    asked = sums().test[::40]
    model, template = load_pretrained(folder), ChatTemplate.load(folder, tokenizer)
    answers = answer(model, template, [talk[0]["content"] for talk in asked], GenerationConfig(max_new_tokens=36))
    right = right_share(answers, [talk[1]["content"] for talk in asked])
    assert right == pytest.approx(result["exact"]["sums"], abs=0.15) and right > 0.8
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 27 + 58?\nWhat is 44 + 13?\n"))
    status, said, _ = txlib("chat", "--temperature", 0, "--device", "cpu")
    assert status == 0 and [final_answer(line) for line in said.splitlines()] == ["85", "57"]
