"""Text in, text out: a model with its tokenizer."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from txlib.generation.config import GenerationConfig
from txlib.generation.decoding import generate, stream
from txlib.generation.prompts import Decoder, end_tokens
from txlib.generation.scoring import score_answers

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what the first bytes of a longer character decode to


@runtime_checkable
class Tokenizer(Protocol):
    """Text to tokens and back; see `txlib.text`."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


class TextPieces:
    """Tokens in, text out, piece by piece, up to the first of `stop_strings`.

    Text that may yet become a stop string, or the rest of a character, is held back until that is decided.

    Args:
        ends: tokens that end a text and are not shown.
    """

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int], stop_strings: Sequence[str] = ()):
        self.tokenizer, self.ends, self.stop_strings = tokenizer, ends, stop_strings
        self.ids: list[int] = []
        self.text, self.shown, self.stopped = "", 0, False

    def add(self, token: int) -> str:
        """Return what can be shown after one more token."""
        self.ids.append(token)
        self.text = self.tokenizer.decode(self.ids[:-1] if token in self.ends else self.ids)
        stop = min((start for start in map(self.text.find, self.stop_strings) if start >= 0), default=None)
        self.stopped = stop is not None
        return self.show(len(self.text) - held_back(self.text, self.stop_strings) if stop is None else stop)

    def rest(self) -> str:
        """Return what has been held back, now that the text has ended."""
        return "" if self.stopped else self.show(len(self.text))

    def show(self, end: int) -> str:
        """Return what is new before this place."""
        start, self.shown = self.shown, max(self.shown, end)
        return self.text[start:end]


class TextGenerator:
    """A language model with its tokenizer.

    Args:
        model: decoder-only; its tokens are the tokenizer's.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer

    def generate(
        self,
        prompts: str | Sequence[str],
        config: GenerationConfig | None = None,
        *,
        stop_strings: Sequence[str] = (),
        **options: Any,
    ) -> list[str]:
        """Return the new text of each prompt, up to the first of `stop_strings`.

        Args:
            options: of `GenerationConfig`, to change some of the config's.
        """
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if stop_strings:  # a text may end inside a token, which is only noticed while it is written
            pieces = (self.stream(prompt, config, stop_strings=stop_strings, **options) for prompt in prompts)
            return ["".join(text) for text in pieces]
        return [
            self.tokenizer.decode(ids) for ids in generate(self.model, self.encode(prompts), config=config, **options)
        ]

    def stream(
        self,
        prompt: str | Sequence[int],
        config: GenerationConfig | None = None,
        *,
        stop_strings: Sequence[str] = (),
        **options: Any,
    ) -> Iterator[str]:
        """Continue a prompt, a text or its tokens, piece by piece, see `TextPieces`; arguments as in `generate`."""
        config = GenerationConfig.of(config, options)
        ends = end_tokens(self.model.config, config.eos_id)
        prompts = self.encode([prompt]) if isinstance(prompt, str) else [prompt]
        pieces = TextPieces(self.tokenizer, ends, stop_strings)
        for (token,) in stream(self.model, prompts, config=config):
            assert token is not None  # a step for one prompt is its token, to the end
            if piece := pieces.add(token):
                yield piece
            if pieces.stopped:
                return
        if piece := pieces.rest():
            yield piece

    def score(
        self, prompt: str, answers: Sequence[str], *, score: str = "sum", neutral: str | None = None
    ) -> list[float]:
        """Return the score of each answer after the prompt, as `score_answers` does. A space before it is its own."""
        (tokens,) = self.encode([prompt])
        before = None if neutral is None else self.encode([neutral])[0]
        return score_answers(self.model, tokens, self.encode(answers), score=score, neutral=before).tolist()

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer.encode(prompt) for prompt in prompts]


def held_back(text: str, stop_strings: Sequence[str]) -> int:
    """Return how many characters at the end may yet change, or be the beginning of a stop string."""
    if text.endswith(UNFINISHED):
        return len(text) - len(text.rstrip(UNFINISHED))
    prefixes = (stop[:length] for stop in stop_strings for length in range(1, len(stop)))
    return max((len(prefix) for prefix in prefixes if text.endswith(prefix)), default=0)
