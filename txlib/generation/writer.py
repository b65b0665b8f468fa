"""Text in, text out: a model with its tokenizer."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from txlib.generation.sampling import Decoder, end_tokens, generate, stream

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what the first bytes of a longer character decode to


@runtime_checkable
class Tokenizer(Protocol):
    """Text to tokens and back; see `txlib.text`."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


class Writer:
    """A language model with its tokenizer.

    Args:
        model: decoder-only; its tokens are the tokenizer's.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer

    def write(self, prompts: str | Sequence[str], *, stop: Sequence[str] = (), **options: Any) -> list[str]:
        """Continue each prompt; the new text comes back, up to the first of `stop`.

        Args:
            options: see `txlib.generation.stream`.
        """
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if stop:  # text may end inside a token, which only reading along shows
            return ["".join(self.stream(prompt, stop=stop, **options)) for prompt in prompts]
        return [self.tokenizer.decode(ids) for ids in generate(self.model, self.encode(prompts), **options)]

    def stream(self, prompt: str, *, stop: Sequence[str] = (), **options: Any) -> Iterator[str]:
        """Continue a prompt piece by piece.

        What may yet become a stop text, or the rest of a character, is held back until it is known.
        """
        ids: list[int] = []
        shown = 0
        for (token,) in stream(self.model, self.encode([prompt]), **options):
            assert token is not None  # a step for one prompt is its token, to the end
            ids.append(token)
            ended = token in end_tokens(self.model.config, options.get("eos_id"))
            text = self.tokenizer.decode(ids[:-1] if ended else ids)
            found = min((place for place in (text.find(each) for each in stop) if place >= 0), default=-1)
            safe = found if found >= 0 else len(text) - held_back(text, stop)
            if safe > shown:
                yield text[shown:safe]
                shown = safe
            if found >= 0:
                return
        if ids and len(text) > shown:
            yield text[shown:]

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer.encode(prompt) for prompt in prompts]


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end may yet change, or be the beginning of a stop text."""
    if text.endswith(UNFINISHED):
        return len(text) - len(text.rstrip(UNFINISHED))
    beginnings = (length for each in stop for length in range(1, len(each)) if text.endswith(each[:length]))
    return max(beginnings, default=0)
