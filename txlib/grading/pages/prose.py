"""A task's prompt, which is markdown, as HTML that can do no harm: no scripts, no tags of its own, no requests."""

import html
import re
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.DOTALL | re.IGNORECASE)
OUTSIDE = re.compile(r"(https?|mailto):", re.IGNORECASE)  # links that lead somewhere from a page of its own

# What TeX writes with a command, and a reader as one character.
SIGNS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "varepsilon": "ε",
    "theta": "θ",
    "lambda": "λ",
    "mu": "μ",
    "nu": "ν",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "phi": "φ",
    "varphi": "φ",
    "omega": "ω",
    "Gamma": "Γ",
    "Delta": "Δ",
    "Theta": "Θ",
    "Lambda": "Λ",
    "Sigma": "Σ",
    "Phi": "Φ",
    "Omega": "Ω",
    "cdot": "·",
    "times": "×",
    "le": "≤",
    "leq": "≤",
    "ge": "≥",
    "geq": "≥",
    "ne": "≠",
    "neq": "≠",
    "approx": "≈",
    "in": "∈",
    "sum": "∑",
    "prod": "∏",
    "infty": "∞",
    "to": "→",
    "rightarrow": "→",
    "top": "⊤",
    "odot": "⊙",
    "oplus": "⊕",
    "dots": "…",
    "ldots": "…",
    "cdots": "…",
    "pm": "±",
    "mid": "|",
    "nabla": "∇",
    "partial": "∂",
}
FUNCTIONS = {"log", "exp", "max", "min", "sin", "cos", "tanh"}
NAMED = {"text", "mathrm", "mathbf", "mathit", "mathcal", "mathbb", "operatorname", "textbf", "textit"}
SPACES = {",": "\u2009", ":": "\u2009", ";": " ", "!": "", " ": " ", "quad": "  ", "qquad": "   "}


def prose(markdown: str) -> str:
    """Markdown as HTML; hints in `<details>` stay folded, maths becomes plain signs with indices."""
    rest, *folds = FOLD.split(markdown)
    pieces = [_block(rest)]
    for i in range(0, len(folds), 3):
        summary, body, after = folds[i : i + 3]
        pieces.append(f"<details><summary>{_inline(summary)}</summary>{_block(body)}</details>{_block(after)}")
    return "".join(pieces)


def hints(markdown: str) -> list[tuple[str, str]]:
    """Each fold's summary and body, as HTML."""
    return [(_inline(summary), _block(body)) for summary, body in FOLD.findall(markdown)]


def untitled(markdown: str) -> tuple[str, str]:
    """A prompt's first heading without its marks, and the rest; the heading is '' where it begins otherwise."""
    found = re.match(r"\s*#{1,6}[ \t]+([^\n]*)(?:\n|$)", markdown)
    return (found[1].strip(), markdown[found.end() :]) if found else ("", markdown)


def maths(tex: str) -> str:
    """The simple TeX of prompts as HTML: Greek letters, roots, indices. A command it doesn't know stays as it is."""
    return f'<span class="maths">{_Maths(tex.strip()).everything()}</span>'


class _Maths:
    """A reader of TeX, one character after the other."""

    def __init__(self, tex: str):
        self.tokens = re.findall(r"\\[A-Za-z]+|\\.|[^\\]|\\$", tex, re.DOTALL)
        self.place = 0

    def everything(self) -> str:
        return "".join(iter(self._next, None))

    def _next(self) -> str | None:
        if self.place >= len(self.tokens):
            return None
        token = self.tokens[self.place]
        self.place += 1
        if token in "_^":
            tag = "sub" if token == "_" else "sup"
            return f"<{tag}>{self._argument()}</{tag}>"
        if token in "{}":
            return ""
        if token == "-":
            return "−"
        return self._command(token[1:]) if token.startswith("\\") and len(token) > 1 else html.escape(token)

    def _command(self, name: str) -> str:
        if name in SIGNS:
            return SIGNS[name]
        if name in FUNCTIONS:
            return name
        if name in SPACES:
            return SPACES[name]
        if name in ("left", "right", "bigl", "bigr", "big", "Big"):
            return ""
        if name in NAMED:
            return self._argument()
        if name == "sqrt":
            inside = self._argument()
            return f"√{inside}" if re.fullmatch(r"\w(<sub>.*</sub>)?", inside) else f"√({inside})"
        if name in ("frac", "tfrac", "dfrac"):
            above, below = self._argument(), self._argument()
            return f"{_bracketed(above)} / {_bracketed(below)}"
        return html.escape(name if not name.isalpha() else f"\\{name}")

    def _argument(self) -> str:
        """The next group in braces, or the next token."""
        if self.place >= len(self.tokens) or self.tokens[self.place] != "{":
            return self._next() or ""
        start, depth = self.place + 1, 0
        for end in range(self.place, len(self.tokens)):
            depth += {"{": 1, "}": -1}.get(self.tokens[end], 0)
            if not depth:
                break
        else:
            end = len(self.tokens)
        self.place = end + 1
        return _Maths("".join(self.tokens[start:end])).everything()


def _bracketed(part: str) -> str:
    return part if re.fullmatch(r"[\w√]+(<su[bp]>[^<]*</su[bp]>)*", part) else f"({part})"


def _block(markdown: str) -> str:
    return _render(_reader().parse(markdown.strip()))


def _inline(markdown: str) -> str:
    return _render(_reader().parseInline(markdown.strip()))


def _render(tokens: list) -> str:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"  # below the page's own headings
        if token.children:
            _harmless_links(token.children)
    return _reader().renderer.render(tokens, _reader().options, {})


def _harmless_links(tokens: list) -> None:
    """A link out of the page tells nobody where from; one to a neighbouring file, which isn't there, is just words."""
    opened = []
    for token in tokens:
        if token.type == "link_open":
            if OUTSIDE.match(token.attrGet("href") or ""):
                token.attrSet("rel", "noreferrer noopener")
            else:
                token.tag, token.attrs = "span", {}
            opened.append(token.tag)
        elif token.type == "link_close":
            token.tag = opened.pop()


@cache
def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    reader.use(dollarmath_plugin, double_inline=True)
    for kind in ("math_inline", "math_inline_double"):
        reader.add_render_rule(kind, lambda self, tokens, i, options, env: maths(tokens[i].content))
    for kind in ("math_block", "math_block_label"):
        reader.add_render_rule(kind, lambda self, tokens, i, options, env: f"<p>{maths(tokens[i].content)}</p>")
    reader.add_render_rule("image", _no_image)
    return reader


def _no_image(self: Any, tokens: list, i: int, options: object, env: object) -> str:
    return f"[{html.escape(tokens[i].content) or 'picture'}]"
