"""A conversation with a model that was trained on conversations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from txlib.generation.config import GenerationConfig
from txlib.generation.prompts import end_tokens
from txlib.generation.text_generator import TextGenerator


@runtime_checkable
class Template(Protocol):
    """What a conversation needs of a chat template; see `txlib.text.chat.ChatTemplate`."""

    @property
    def end_id(self) -> int | None: ...
    def encode(self, messages: Sequence[Mapping[str, Any]]) -> list[int]: ...


class Chat:
    """Messages so far, and the model that answers the next one.

    Args:
        generator: the model with its tokenizer.
        template: of the model.
        system: what the model is told before the first message, if its template has a place for that.
    """

    def __init__(self, generator: TextGenerator, template: Template, system: str | None = None):
        self.generator, self.template = generator, template
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]

    def say(self, text: str, config: GenerationConfig | None = None, **options: Any) -> Iterator[str]:
        """Answer a message piece by piece. If the caller stops early, what was written so far is the answer.

        When the conversation no longer fits into the context, the model no longer sees its oldest messages.

        Args:
            options: of `GenerationConfig`, to change some of the config's.

        Raises:
            ValueError: when the message alone does not fit, or the template refuses it; it is not kept then.
        """
        config = GenerationConfig.of(config, options)
        ids = self.prompt([*self.messages, {"role": "user", "content": text}], config.max_new_tokens)
        eos_id = answer_ends(self.template, end_tokens(self.generator.model.config, config.eos_id))
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        for piece in self.generator.stream(ids, config, eos_id=eos_id):
            self.messages[-1]["content"] += piece
            yield piece

    def prompt(self, messages: list[dict[str, str]], max_new_tokens: int) -> list[int]:
        """Return the tokens of a conversation, without its oldest messages if an answer would not fit."""
        context = self.generator.model.config.max_length
        kept = messages[:1] if messages[0]["role"] == "system" else []
        for start in range(len(kept), len(messages), 2):
            ids = self.template.encode([*kept, *messages[start:]])
            if len(ids) + max_new_tokens <= context:
                return ids
        raise ValueError(
            f"the message has {len(ids)} tokens, and with an answer of {max_new_tokens} the context of {context} is "
            "too short; shorten the message, or lower max_new_tokens"
        )


def answer_ends(template: Template, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens that end an answer: a model's, and the template's mark."""
    end = template.end_id
    return ends if end is None or end in ends else (*ends, end)
