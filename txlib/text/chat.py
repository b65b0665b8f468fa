"""Conversations as the tokens of one text: a chat template, and which of its tokens a model learns to write."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from txlib.labels import IGNORE_INDEX
from txlib.models.stored import find_folder, read_json
from txlib.text.tokenizer import Tokenizer

Message = Mapping[str, Any]  # {"role": "user", "content": "…"}
BLOCK = {None: "if true", "end": "endif"}  # instead of transformers' tags around what the assistant writes
TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
MARKED = """\
{%- for message in messages -%}
<|{{ message['role'] }}|>{{ message['content'] }}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
"""The template of models that are trained here: each message between a mark for its role and <|end|>."""


class ChatTemplate:
    """Writes a conversation as the text that a model was trained on, with the marks between messages.

    Args:
        tokenizer: of the model; the marks should be tokens of it.
        template: in Jinja, with the variables that Hugging Face gives it: `messages`, `add_generation_prompt`, and the
            special tokens by name.
        special_tokens: such as {"bos_token": "<s>"}.

    Raises:
        ValueError: when the template is not valid Jinja.
    """

    def __init__(self, tokenizer: Tokenizer, template: str = MARKED, special_tokens: Mapping[str, str] | None = None):
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.tokenizer, self.source, self.special_tokens = tokenizer, template, dict(special_tokens or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        plain = re.sub(r"(?<=%)(-?\s*)(end)?generation(?=\s*-?%)", lambda tag: tag[1] + BLOCK[tag[2]], template)
        try:
            self.template = environment.from_string(plain)
        except TemplateError as error:
            raise ValueError(f"the chat template is not valid: {error}") from None

    @classmethod
    def load(cls, source: str | Path, tokenizer: Tokenizer) -> "ChatTemplate":
        """Return the template in a model's folder or on the hub: `chat_template.jinja`, or in `tokenizer_config.json`.

        Raises:
            ValueError: when there is none, as for a model that was not trained on conversations.
        """
        folder = find_folder(source)
        settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
        if (folder / TEMPLATE).is_file():
            template: Any = (folder / TEMPLATE).read_text(encoding="utf-8")
        else:
            template = settings.get("chat_template")
            if isinstance(template, list):  # several, by name
                template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if not template:
            raise ValueError(
                f"{folder} has no chat template, neither {TEMPLATE} nor in {TOKENIZER_CONFIG}: it may be a model that "
                "only continues texts; ChatTemplate(tokenizer, template) takes one of yours"
            )
        names = {name: value for name, value in settings.items() if name.endswith("_token") and value}
        return cls(tokenizer, template, {name: token_text(value) for name, value in names.items()})

    def save(self, folder: str | Path) -> None:
        """Write `chat_template.jinja` and the special tokens' names, as `load` and `transformers` read them."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TEMPLATE).write_text(self.source, encoding="utf-8")
        path = folder / TOKENIZER_CONFIG
        settings = read_json(path) if path.is_file() else {}
        path.write_text(json.dumps(settings | self.special_tokens, indent=2) + "\n", encoding="utf-8")

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation.

        Args:
            add_generation_prompt: end it with the mark after which the assistant writes.

        Raises:
            ValueError: for a message without role and content, one of a user that holds a special token, or one that
                the template refuses.
        """
        marks = self.tokenizer.special_tokens
        for number, message in enumerate(messages, start=1):
            if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
                raise ValueError(f'message {number} is {message!r:.80}; it must be {{"role": "user", "content": "…"}}')
            if message["role"] == "user" and (mark := next((m for m in marks if m in str(message["content"])), None)):
                raise ValueError(f"message {number} holds {mark!r}, a mark of the model's own; leave it out")
        return self.template.render(
            messages=messages, add_generation_prompt=add_generation_prompt, **self.special_tokens
        )

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt's tokens: the conversation and the mark after which the assistant writes."""
        return self.tokenize(self.render(messages, add_generation_prompt=True))[0]

    def encode_example(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Return a conversation's tokens and labels to train on: the tokens that the assistant writes, the mark that
        ends its message included, and `IGNORE_INDEX` for all others.

        Raises:
            ValueError: when the assistant says nothing, or the template writes a message in another way when others
                follow, so that nobody can say which tokens are whose.
        """
        text = self.render(messages)
        ids, offsets = self.tokenize(text)
        labels = [IGNORE_INDEX] * len(ids)
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:number], add_generation_prompt=True)
            after = self.render(messages[: number + 1])
            if not (text.startswith(after) and after.startswith(before)):
                raise ValueError(
                    f"the chat template writes message {number + 1} in another way when others follow, so its tokens "
                    "can't be told from the others; train on conversations that end there"
                )
            for index, (start, _) in enumerate(offsets):
                if len(before) <= start < len(after):
                    labels[index] = ids[index]
        if set(labels) == {IGNORE_INDEX}:
            raise ValueError(f"the assistant says nothing in {len(messages)} messages; there is nothing to learn")
        return ids, labels

    @cached_property
    def end_id(self) -> int | None:
        """The special token that ends what the assistant says; None where the template has none."""
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        marks = self.tokenizer.special_tokens.values()
        return next((label for label in self.encode_example(talk)[1] if label in marks), None)

    def tokenize(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of rendered text, in which marks are special tokens, and where each stands."""
        self.tokenizer.tokenizer.encode_special_tokens = False
        encoding = self.tokenizer.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets


def refuse(message: str) -> None:
    """Raise the error of a template that calls `raise_exception`."""
    raise ValueError(f"the chat template refuses the conversation: {message}")


def token_text(token: Any) -> str:
    """Return a special token, which a file may hold with its settings."""
    return token["content"] if isinstance(token, Mapping) else token
