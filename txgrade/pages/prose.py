"""Renders a task's prompt, which is markdown, as harmless HTML: no scripts, no tags of its own, no requests."""

import html
import re
from functools import cache
from typing import Any
from xml.etree.ElementTree import tostring

from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from txgrade.text import markup

FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.DOTALL | re.IGNORECASE)
CODE = re.compile(r"(`[^`]+`)")
MATHS = re.compile(r"\$([^\s$`](?:[^$`]*[^\s$`])?)\$(?!\d)")
OUTSIDE = re.compile(r"(https?|mailto):", re.IGNORECASE)  # links that lead somewhere from a page of its own
DROPPED = ("href", "style", "class", "id", "xmlns")  # what maths in a page doesn't need


def prose(markdown: str) -> str:
    """Return markdown as HTML; hints in `<details>` stay folded, maths becomes MathML."""
    rest, *folds = FOLD.split(markdown)
    pieces = [_block(rest)]
    for i in range(0, len(folds), 3):
        summary, body, after = folds[i : i + 3]
        pieces.append(f"<details><summary>{_inline(summary)}</summary>{_block(body)}</details>{_block(after)}")
    return "".join(pieces)


def sentence(words: str) -> str:
    """Return one of the author's sentences as HTML: the markdown of a diagnosis, and maths between dollar signs."""
    html_pieces = []
    for i, piece in enumerate(CODE.split(words)):  # text and code by turns
        texts = [piece] if i % 2 else MATHS.split(piece)  # text and TeX by turns
        html_pieces += [maths(text) if j % 2 else markup(text) for j, text in enumerate(texts)]
    return "".join(html_pieces)


def hints(markdown: str) -> list[tuple[str, str]]:
    """Return each fold's summary and body as HTML."""
    return [(_inline(summary), _block(body)) for summary, body in FOLD.findall(markdown)]


def untitled(markdown: str) -> tuple[str, str]:
    """Return a prompt's first heading without its marks, and the rest; '' if it doesn't begin with a heading."""
    match = re.match(r"\s*#{1,6}[ \t]+([^\n]*)(?:\n|$)", markdown)
    return (match[1].strip(), markdown[match.end() :]) if match else ("", markdown)


def maths(tex: str, display: str = "inline") -> str:
    """Return TeX as MathML, which browsers draw by themselves; TeX that can't be read stays as it is."""
    try:
        root = convert_to_element(tex.strip(), display=display)
    except Exception:  # of many kinds: a missing brace, an index without a number
        return f"<code>{html.escape(tex)}</code>"
    for element in root.iter():
        element.text = element.text and html.unescape(element.text)  # tostring() escapes all of it again
        for attribute in DROPPED:
            element.attrib.pop(attribute, None)
    return tostring(root, encoding="unicode")


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
    """Let a link out of the page send no referrer, and turn one to a neighboring file, which isn't there, into text."""
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
        reader.add_render_rule(kind, lambda self, tokens, i, options, env: maths(tokens[i].content, "block"))
    reader.add_render_rule("image", _no_image)
    return reader


def _no_image(self: Any, tokens: list, i: int, options: object, env: object) -> str:
    return f"[{html.escape(tokens[i].content) or 'picture'}]"
