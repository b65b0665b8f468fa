"""A learner's guess before an experiment, kept by the browser and shown again next to the result.

Both work without a kernel: their outputs carry a script. Where none may run, they are text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from txcourse.scripts import script_code

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CALL = re.compile(r"(?<![\w.])(predict|predicted)\(\s*[\"']([^\"']*)[\"']")
BAR = "border-left: 3px solid #0072B2; margin: 0; padding: 2px 0 2px 12px"

_asked: dict[str, tuple[str, ...]] = {}  # the options of each question


@dataclass(frozen=True)
class Question:
    """A question with its options; in a notebook, radio buttons."""

    name: str
    text: str
    options: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"Guess: {self.text}", *(f"  - {option}" for option in self.options)])

    def _repr_html_(self) -> str:
        options = "".join(f"<li>{escape(option)}</li>" for option in self.options)
        question = f"<p>Guess: {escape(self.text)}</p><ul>{options}</ul>"
        return f'<div data-guess="{self.name}" style="{BAR}">{question}</div>\n{script()}'


@dataclass(frozen=True)
class Result:
    """The right option of a question, and in a notebook, what the learner chose."""

    name: str
    right: str
    why: str

    def __repr__(self) -> str:
        return f"Right: {self.right}. {self.why}".strip()

    def _repr_html_(self) -> str:
        right = escape(self.right)
        result = f'<span data-guessed="{self.name}" data-right="{right}">Right: {right}.</span>'
        return f'<p role="status" style="{BAR}">{result} {escape(self.why)}</p>\n{script()}'


def predict(name: str, question: str, *options: str) -> Question:
    """Ask for a guess before an experiment.

    Args:
        name: of the guess, in no other lesson: "leak", "deep-residuals".

    Raises:
        ValueError: the name is not made of small letters, digits and hyphens, or there are not two different options.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f'{name!r} can\'t name a guess: use small letters, digits and hyphens, such as "no-mask"')
    if len(options) < 2 or len(set(options)) < len(options):
        raise ValueError(f"the guess {name!r} needs two or more different options, got {', '.join(options) or 'none'}")
    _asked[name] = options
    return Question(name, question, options)


def predicted(name: str, right: str, why: str = "") -> Result:
    """Show the learner's guess next to the result.

    Args:
        name: of the guess, as in `predict`.
        right: the option that turned out to be right.
        why: a sentence to add.

    Raises:
        ValueError: no such question has been asked, or it has no such option.
    """
    if name not in _asked:
        raise ValueError(f"nobody has been asked for the guess {name!r}: first run the cell predict({name!r}, …)")
    if right not in _asked[name]:
        options = ", ".join(map(repr, _asked[name]))
        raise ValueError(f"{right!r} is no option of the guess {name!r}: choose one of {options}")
    return Result(name, right, why)


def mark(names: Iterable[str]) -> str:
    """Return how many guesses a lesson asks for, as HTML; `script` adds how many have been made."""
    names = [*names]
    return f'<span data-guesses="{" ".join(names)}">{len(names)} {"guess" if len(names) == 1 else "guesses"}</span>'


def guesses(cells: Iterable[str], call: str = "predict") -> list[str]:
    """Return the names of the guesses that a notebook's code asks for, or, with "predicted", those that it resolves."""
    return [name for code in cells for function, name in CALL.findall(code) if function == call]


def script() -> str:
    """Return the script of all three: each output of a notebook carries it."""
    return f"<script>\n{script_code('guess')}\n</script>"
