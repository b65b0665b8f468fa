"""The scores of given answers against one forward pass per answer, token by token."""

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib.generation import TextGenerator, score_answers
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

PROMPT, ANSWERS, NEUTRAL = [3, 1, 4], [[5], [2, 6, 5, 1], [2, 6]], [7, 1]


@pytest.fixture
def model():
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(16, 4, 20, position="learned")
    return shake(GPT(GPTConfig(9, block, layers=2, max_length=8)), 0.5).eval()


def sums(model, prompt):
    """The sum of log p of each answer, from the probabilities of one token after another."""
    total = torch.zeros(len(ANSWERS))
    for i, answer in enumerate(ANSWERS):
        for t, token in enumerate(answer):
            p = model(torch.tensor([[*prompt, *answer[:t]]])).logits[0, -1].softmax(-1)
            total[i] += p[token].log().item()
    return total


def test_sum_mean_and_calibrated(model):
    asked, free = sums(model, PROMPT), sums(model, NEUTRAL)
    assert_close(score_answers(model, PROMPT, ANSWERS), asked)
    assert_close(score_answers(model, PROMPT, ANSWERS, score="mean"), asked / torch.tensor([1, 4, 2]))
    assert_close(score_answers(model, PROMPT, ANSWERS, score="calibrated", neutral=NEUTRAL), asked - free)


def test_all_answers_of_one_token_share_the_probability(model):
    scores = score_answers(model, PROMPT, [[token] for token in range(9)])
    assert_close(scores.exp().sum(), torch.tensor(1.0))


def test_text_goes_in(model):
    class Digits:
        def encode(self, text):
            return list(map(int, text))

        def decode(self, ids):
            return "".join(map(str, ids))

    texts = ["".join(map(str, answer)) for answer in ANSWERS]
    found = TextGenerator(model, Digits()).score("314", texts, score="calibrated", neutral="71")
    assert_close(torch.tensor(found), score_answers(model, PROMPT, ANSWERS, score="calibrated", neutral=NEUTRAL))


@pytest.mark.parametrize(
    ("prompt", "answers", "options", "problem"),
    [
        (PROMPT, ANSWERS, {"score": "best"}, "score='best' with no neutral prompt: give score='sum', "),
        (PROMPT, ANSWERS, {"score": "calibrated"}, "'calibrated' with no neutral"),
        (PROMPT, ANSWERS, {"score": "mean", "neutral": NEUTRAL}, "'mean' with a neutral"),
        ([], ANSWERS, {}, r"prompt has 0 tokens, answers \[1, 4, 2\]"),
        (PROMPT, [[5], []], {}, r"prompt has 3 tokens, answers \[1, 0\]"),
        ([1] * 5, ANSWERS, {}, "prompt and longest answer have 9 tokens, the context holds 8"),
    ],
)
def test_what_cannot_be_scored_is_refused(model, prompt, answers, options, problem):
    with pytest.raises(ValueError, match=problem):
        score_answers(model, prompt, answers, **options)
