"""A conversation: what the model reads, what is kept, and the command."""

import io

import pytest
import torch

from txlib import save_pretrained
from txlib.generation import Chat, TextGenerator
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.text import Tokenizer
from txlib.text.chat import ChatTemplate

MARKS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer.train(["How are you? Be short."] * 4, 300)
    made.tokenizer.add_special_tokens(MARKS)
    return made


def make_model(tokenizer, max_length=64):
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(16, 2, 32, norm="rms", activation="swiglu", bias=False, position="rotary_half")
    return GPT(GPTConfig(len(tokenizer), block, layers=1, max_length=max_length)).eval()


@pytest.fixture
def chat(tokenizer, monkeypatch):
    """A conversation whose model writes what it is told; what it reads is in `chat.read`."""
    conversation = Chat(TextGenerator(make_model(tokenizer), tokenizer), ChatTemplate(tokenizer), system="Be short.")
    conversation.read, conversation.answers = [], []

    def stream(ids, config=None, *, eos_id=None):
        conversation.read.append("".join(tokenizer.token(token) for token in ids))
        assert eos_id == (tokenizer.mark("<|end|>"),)
        yield from conversation.answers.pop(0)

    monkeypatch.setattr(conversation.generator, "stream", stream)
    return conversation


def test_the_model_reads_all_messages_so_far(chat):
    chat.answers = [["I ", "am."], ["5"]]
    assert "".join(chat.say("How are you?", max_new_tokens=4)) == "I am."
    assert "".join(chat.say("2?", max_new_tokens=4)) == "5"
    read = chat.read[1].replace("▁", " ")
    assert read.startswith("<|system|> Be short.<|end|><|user|> How are you?<|end|><|assistant|> I am.<|end|>")
    assert read.endswith("<|user|> 2?<|end|><|assistant|>")
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 2]


def test_an_answer_that_is_cut_short_is_kept_as_far_as_it_went(chat):
    chat.answers = [["one ", "two ", "three"]]
    pieces = chat.say("count", max_new_tokens=4)
    next(pieces), next(pieces)
    pieces.close()
    assert chat.messages[-1] == {"role": "assistant", "content": "one two "}


def test_the_oldest_messages_are_forgotten_and_the_system_is_not(chat):
    chat.answers = [["ok"]] * 6
    for number in range(6):
        list(chat.say(f"number {number}?", max_new_tokens=4))
    assert chat.read[-1].startswith("<|system|>") and "0" not in chat.read[-1] and "5" in chat.read[-1]
    assert len(chat.messages) == 13
    with pytest.raises(ValueError, match="the context of 64 is too short"):
        list(chat.say("long " * 40, max_new_tokens=4))
    with pytest.raises(ValueError, match="a mark of the model's own"):
        list(chat.say("<|end|>", max_new_tokens=4))
    assert len(chat.messages) == 13


def test_the_command_answers_each_line(tokenizer, txlib, tmp_path, monkeypatch):
    save_pretrained(make_model(tokenizer), tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    options = ("chat", "--model", tmp_path, "--max-new-tokens", 5, "--seed", 1, "--device", "cpu")
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    status, _, error = txlib(*options)
    assert status == 2 and "has no chat template" in error
    ChatTemplate(tokenizer).save(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("How are you?\n\n<|end|>\nBe short.\n"))
    status, said, error = txlib(*options)
    assert status == 0 and len(said.splitlines()) >= 2
    assert error.count("\n") == 1 and "a mark of the model's own" in error
