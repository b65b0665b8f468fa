"""The library's source that a lesson opens: on its page, next to each part, the section that builds it."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

BUILT = {  # lesson → how a line of source begins: the label of the section that builds what is there, and what that is
    "02_seq2seq": {
        "hidden = self.query(q)": ("lesson-02-5", "the additive score"),
    },
    "03_attention": {
        "scale = q.shape": ("lesson-03-4", "why divide by √d"),
        "score = (q * scale)": ("lesson-03-3", "a score for each pair"),
        "score = score + bias": ("lesson-05-4", "distances in the score"),
        "allowed = as_dense(": ("lesson-03-5", "what may not be seen"),
        "score = score.masked_fill(": ("lesson-03-5", "hide, then zero"),
    },
    "04_heads": {
        "source = x if memory is None": ("lesson-04-6", "self- or cross-attention"),
        "queries, keys, values = self.project(": ("lesson-04-2", "three projections"),
        "q = self.split(": ("lesson-04-5", "split into heads"),
        "q = self.rotary(": ("lesson-05-5", "turn the queries"),
        "k, v = cache.update(": ("lesson-13", "a cache"),
        "mask = join_masks(": ("lesson-03-5", "what may not be seen"),
        'options["bias"] = position_bias(': ("lesson-05-4", "distances in the score"),
        "out = self.mechanism(": ("lesson-03-3", "attention, in all heads"),
    },
    "05_positions": {
        "return waves(": ("lesson-05-3-b", "hands of a clock"),
        "frequency = self.base": ("lesson-05-3-b", "slower and slower"),
        "frequency = self.scaling(": ("lesson-17", "longer texts"),
        "first, second = x[": ("lesson-05-5", "neighbors make a pair"),
        "first, second = x.chunk(": ("lesson-05-5", "or one of each half"),
        "rotated = first * cos": ("lesson-05-5", "turn each pair"),
    },
    "06_block": {
        "return self.self_attention(": ("lesson-04-5", "all heads at once"),
        "return self.cross_attention(": ("lesson-08-3-4", "a look at the source"),
        'x = self.residual(x, attend_self, "': ("lesson-06-3-5", "the block"),
        "return x if self.feed_forward is None": ("lesson-06-3-3", "the feed-forward network"),
        "x = x + self.added(": ("lesson-06-3-1", "the residual connection"),
        'return getattr(self, f"{name}_norm")(x)': ("lesson-06-3-2", "layer normalization"),
        "out = sublayer(": ("lesson-06-3-5", "pre-norm or post-norm"),
    },
    "08_transformer": {
        "self.embed(input_ids": ("lesson-08-3-3", "the embedding"),
        "past = cache.length": ("lesson-13", "a cache"),
        "mask = together(causal()": ("lesson-08-3-5", "two masks"),
        "hidden = self.decoder(": ("lesson-08-3-4", "blocks with a look"),
    },
}


def put_sources(name: str, notebook: Any, pages: Mapping[str, str]) -> None:
    """Show each source that a lesson opens in two columns, with links to the sections that build its parts.

    Args:
        name: of the lesson, such as "04_heads".
        pages: number of a lesson → its name; parts that other lessons build are left out.
    """
    built = {start: part for start, part in BUILT.get(name, {}).items() if number(part[0]) in pages}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        source = output.get("data", {}).get("text/markdown", "")
        blocks = re.findall(r"```python\n(.*?)\n```", source, re.DOTALL)
        if any(parts(block, built) for block in blocks):
            output.data.pop("text/markdown")
            output.data["text/html"] = "\n".join(two_columns(block, parts(block, built), pages) for block in blocks)


def parts(source: str, built: Mapping[str, tuple[str, str]]) -> list[tuple[int, str, str]]:
    """Return line, label and text of each part, where the first line begins as it should."""
    lines = [line.strip() for line in source.split("\n")]
    matches = []
    for start, (label, text) in built.items():
        matches += [(at, label, text) for at, line in enumerate(lines) if line.startswith(start)][:1]
    return sorted(matches)


def two_columns(source: str, matches: list[tuple[int, str, str]], pages: Mapping[str, str]) -> str:
    """The source, and next to it a link at the height of each part."""
    code = highlight(source, PythonLexer(stripnl=False), HtmlFormatter())
    items = "".join(
        f'<li style="--line: {at}"><a href="{address(label, pages)}">{number(label)}: {escape(text)}</a></li>'
        for at, label, text in matches
    )
    return f'<div class="opened">{code}<ul>{items}</ul></div>'


def address(label: str, pages: Mapping[str, str]) -> str:
    """Where a label leads: "04_heads.html#lesson-04-5"; that of a whole lesson, "lesson-13", to its page."""
    page = f"{pages[number(label)]}.html"
    return f"{page}#{label}" if label.count("-") > 1 else page


def number(label: str) -> str:
    return label.split("-")[1]
