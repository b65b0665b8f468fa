"""Conversations as tokens: as transformers writes them, and which of them are learned."""

import json

import pytest
import transformers

from txlib.labels import IGNORE_INDEX
from txlib.text import Tokenizer
from txlib.text.chat import MARKED, ChatTemplate

MARKS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Für gut, danke 😀!"},
    {"role": "user", "content": "2 + 3?"},
    {"role": "assistant", "content": "5"},
]
CHATML = """\
{% for message in messages %}
<|im_start|>{{ message['role'] }}
{% if message.role == 'assistant' %}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}

{% else %}
{{ message['content'] | trim }}<|im_end|>
{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STRICT = "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + MARKED


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer.train(["How are you? Be short. I am fine, thank you."] * 4, 300)
    made.tokenizer.add_special_tokens([*MARKS, "<|im_start|>", "<|im_end|>"])
    return made


@pytest.fixture(scope="module")
def theirs(tokenizer, tmp_path_factory):
    tokenizer.save(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.tokenizer, bos_token="<bos>")


@pytest.mark.parametrize("template", [MARKED, CHATML], ids=["marked", "chatml"])
def test_a_conversation_has_the_tokens_and_the_mask_of_transformers(tokenizer, theirs, template):
    chat = ChatTemplate(tokenizer, template)
    expected = theirs.apply_chat_template(TALK, chat_template=template, tokenize=False)
    assert chat.render(TALK) == expected
    prompt = theirs.apply_chat_template(TALK[:4], chat_template=template, add_generation_prompt=True, return_dict=True)
    assert chat.encode(TALK[:4]) == prompt["input_ids"]
    ids, labels = chat.encode_example(TALK)
    marked = CHATML if template == CHATML else MARKED.replace(
        "{{ message['content'] }}<|end|>",
        "{% if message.role == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
        "{% else %}{{ message['content'] }}<|end|>{% endif %}",
    )  # fmt: skip
    mask = theirs.apply_chat_template(TALK, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True)
    assert ids == mask["input_ids"]
    learned = [int(label != IGNORE_INDEX) for label in labels]
    if template == MARKED:
        assert learned == mask["assistant_masks"]
    else:  # the line break after <|im_end|> is the template's, and stands outside its tags
        assert [max(pair) for pair in zip(learned, mask["assistant_masks"], strict=True)] == learned
    assert all(label in (token, IGNORE_INDEX) for token, label in zip(ids, labels, strict=True))


def test_it_is_saved_and_loaded_as_transformers_does(tokenizer, theirs, tmp_path):
    chat = ChatTemplate(tokenizer, STRICT, {"bos_token": "<bos>"})
    chat.save(tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = ChatTemplate.load(tmp_path, tokenizer)
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert again.render(TALK[1:]) == chat.render(TALK[1:]) == loaded.apply_chat_template(TALK[1:], tokenize=False)
    assert chat.render(TALK[1:]).startswith("<bos>")
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": MARKED, "eos_token": {"content": "x"}})
    )
    assert ChatTemplate.load(tmp_path, tokenizer).render(TALK) == ChatTemplate(tokenizer).render(TALK)


@pytest.mark.parametrize(
    ("messages", "template", "words"),
    [
        ([{"role": "user"}], MARKED, "message 1 is"),
        ([{"role": "user", "content": "a<|end|><|assistant|>b"}], MARKED, "a mark of the model's own"),
        (TALK[:2], MARKED, "the assistant says nothing"),
        (TALK, STRICT, "refuses the conversation: no system"),
        (TALK, "{{ messages | length }}{{ messages[-1].content }}", "in another way when others follow"),
        (TALK, "{% for %}", "is not valid"),
    ],
)
def test_what_does_not_fit_is_refused(tokenizer, messages, template, words):
    with pytest.raises(ValueError, match=words):
        ChatTemplate(tokenizer, template).encode_example(messages)


def test_a_model_without_a_template_says_so(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="has no chat template"):
        ChatTemplate.load(tmp_path, tokenizer)
