"""How BERT reads: in both directions, its input as a sum, and what its heads look at."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Tensor

from txcourse.figures.shapes import arrow, box
from txlib.plots.picture import GRAY, MAX_INCHES, PALETTE, SEQUENTIAL, Picture, drawing, headline, ink, panels

FROM_LEFT, FROM_RIGHT, BOTH_WAYS, CROSS = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[3]
TOKEN, SEGMENT, POSITION = PALETTE[5], PALETTE[4], PALETTE[2]
READ: dict[str, Any] = {"width": 1.0, "head": 11, "gap": 10, "alpha": 0.8}  # an arrow from one circle to another
INCH = 0.48  # inches: the narrowest box of a token
FOUR_TASKS = {  # name → tokens; what a head says at each
    "label, of one text or a pair: do both say the same?": (
        ("[CLS]", "A", "[SEP]", "B", "[SEP]"),
        ("same", "", "", "", ""),
    ),
    "multiple choice: a score for each B": (("[CLS]", "A", "[SEP]", "B₁", "[SEP]"), ("2.3", "", "", "", "")),
    "tags: which words are names?": (("[CLS]", "my", "lord", "Brutus", "[SEP]"), ("", "no", "no", "name", "")),
    "span: where is the answer?": (
        ("[CLS]", "who", "[SEP]", "text", "text", "[SEP]"),
        ("", "", "", "start", "end", ""),
    ),
}


def readers(*, words: int = 4, title: str, alt: str) -> Picture:
    """What GPT, ELMo and BERT are made of: two layers over a few words, with an arrow wherever one vector is read to
    make another (Devlin et al. 2019, figure 3).

    Args:
        words: how many to draw.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        gap = words + 0.4  # from ELMo's one reader to the other
        shares = {"width_ratios": [words, gap + words, words]}
        figure, (gpt, elmo, bert) = panels(3, width=1.0 + 0.53 * (3 * words + gap), height=4.0, gridspec_kw=shares)
        for axes, name in (
            (gpt, "GPT: from the left"),
            (elmo, "ELMo: one from each side, then joined"),
            (bert, "BERT: both ways"),
        ):
            axes.set_title(name, fontweight="normal", fontsize=11, loc="center")
            axes.set(aspect="equal", ylim=(-0.8, 4.5), xlim=(-0.6, words - 0.4 + gap * (axes is elmo)))
            axes.axis("off")
        pairs = [(i, j) for i in range(words) for j in range(words)]
        _stack(gpt, 0, words, [(i, j) for i, j in pairs if i <= j], FROM_LEFT)
        _stack(bert, 0, words, pairs, BOTH_WAYS)
        for left, color, step in ((0, FROM_LEFT, 1), (gap, FROM_RIGHT, -1)):
            _stack(elmo, left, words, [(i, i) for i in range(words)], color)
            for layer in (1, 2):
                for i in range(words - 1):
                    start, end = (i, i + 1) if step == 1 else (i + 1, i)
                    arrow(elmo, (left + start, 1.5 * layer), (left + end, 1.5 * layer), color, **READ)
        middle = (gap + words - 1) / 2
        _node(elmo, middle, 4.1, GRAY, "word 2")
        for left, color in ((0, FROM_LEFT), (gap, FROM_RIGHT)):
            arrow(elmo, (left + 1, 3.0), (middle, 4.1), color, **READ)
        headline(figure, title)
        return Picture(figure, alt)


def input_sum(tokens: Sequence[str], segments: Sequence[int], *, title: str, alt: str) -> Picture:
    """The three embeddings that are added for each token (Devlin et al. 2019, figure 2).

    Args:
        tokens: how they read. segments: 0 or 1 for each.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    rows = [
        ("token", TOKEN, list(tokens)),
        ("segment", SEGMENT, ["AB"[segment] for segment in segments]),
        ("position", POSITION, list(map(str, range(len(tokens))))),
    ]
    wide = [max(1.0, 0.2 * len(token) + 0.3) for token in tokens]
    places = _places(wide, segments, longest=(MAX_INCHES - 1.2) / INCH)
    longest, lines = max(left + width for (_, left), width in zip(places, wide, strict=True)), places[-1][0] + 1
    with drawing():
        figure, (axes,) = panels(width=1.2 + INCH * longest, height=0.6 + 2.1 * lines)
        axes.set(xlim=(-2.2, longest), ylim=(0.65 - 3.3 * lines, 0.6))
        axes.axis("off")
        for level, (name, color, texts) in enumerate(rows):
            for line in range(lines):
                axes.text(-0.25, -level - 3.3 * line, name, ha="right", va="center", color=GRAY)
            for text, width, (line, left) in zip(texts, wide, places, strict=True):
                height = -level - 3.3 * line
                size = width - 0.24, 0.48
                box(axes, left + width / 2, height, *size, text, color, pad=0.06, alpha=0.45, fontsize=9)
                if level:
                    axes.text(left + width / 2, height + 0.5, "+", ha="center", va="center", color=GRAY, fontsize=9)
        headline(figure, title)
        return Picture(figure, alt)


def pretraining(
    losses: Float[Tensor, "step 2"], baselines: Mapping[str, float], *, window: int = 20, title: str, alt: str
) -> Picture:
    """The losses of masked tokens and of the next sentence, a panel each, with that of a baseline as a dashed line.

    Args:
        losses: of each step; each point drawn is the mean of the last `window` of them.
        baselines: name → its loss, for the one task and the other.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    means = losses.unfold(0, window, 1).mean(dim=-1)  # (step - window + 1, 2)
    steps = range(window, len(losses) + 1)
    with drawing():
        figure, all_axes = panels(2, width=MAX_INCHES, height=3.0)
        names = ("masked tokens", "next sentence")
        for axes, name, loss, (baseline, value) in zip(all_axes, names, means.T, baselines.items(), strict=True):
            axes.plot(steps, loss.tolist(), color=PALETTE[0])
            axes.axhline(value, color=PALETTE[1], linestyle=(0, (4, 3)))
            axes.annotate(baseline, (steps[0], value), xytext=(0, 4), textcoords="offset points", color=ink(PALETTE[1]))
            axes.set_title(name, fontweight="normal", fontsize=11)
            axes.set(xlabel="training step", ylabel="loss (nats)")
            axes.margins(y=0.15)
        headline(figure, title)
        return Picture(figure, alt)


def head_maps(weights: Float[Tensor, "layer head query key"], *, first: int = 0, title: str, alt: str) -> Picture:
    """All heads of a model as small maps without names: a row per layer, a column per head.

    Args:
        first: the number of the first layer and the first head.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    layers, heads = weights.shape[:2]
    with drawing():
        inch = min(1.1, (MAX_INCHES - 0.8) / heads)
        size = {"width": 0.8 + inch * heads, "height": 0.6 + inch * layers}
        figure, all_axes = panels(layers * heads, columns=heads, **size)
        for number, axes in enumerate(all_axes):
            layer, head = divmod(number, heads)
            axes.imshow(weights[layer, head].numpy(force=True), cmap=SEQUENTIAL, vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if head == 0:
                axes.set_ylabel(f"layer {first + layer}")
            if layer == 0:
                axes.set_title(f"head {first + head}" if heads < 8 else f"{first + head}", fontsize=10, loc="center")
        headline(figure, title)
        return Picture(figure, alt)


def task_heads(tasks: Mapping[str, tuple[Sequence[str], Sequence[str]]] = FOUR_TASKS) -> Picture:
    """One encoder and a head for each task: what goes in, and at which places the head reads (Devlin et al. 2019,
    figure 4).

    Args:
        tasks: name → (the tokens, what the head says at each; "" where it does not look).
    """
    with drawing():
        down = -(-len(tasks) // 2)
        figure, all_axes = panels(len(tasks), width=MAX_INCHES, height=0.4 + 2.4 * down, columns=2)
        for axes, (name, (tokens, answers)) in zip(all_axes, tasks.items(), strict=True):
            places = [1.25 * i for i in range(len(tokens))]
            axes.set(xlim=(-0.8, 1.25 * 5 + 0.8), ylim=(-0.5, 3.7))
            axes.axis("off")
            axes.set_title(name, fontweight="normal", fontsize=11)
            box(axes, places[-1] / 2, 1.4, places[-1] + 0.9, 0.5, "the pre-trained encoder", TOKEN, alpha=0.45)
            for x, token, answer in zip(places, tokens, answers, strict=True):
                box(axes, x, 0.0, 0.96, 0.46, token, fontsize=8.5)
                arrow(axes, (x, 0.3), (x, 1.05))
                if answer:
                    arrow(axes, (x, 1.75), (x, 2.05))
                    box(axes, x, 2.3, 0.96, 0.36, "linear", SEGMENT, alpha=0.7, fontsize=8.5)
                    arrow(axes, (x, 2.55), (x, 2.9))
                    box(axes, x, 3.2, 0.96, 0.46, answer, fontsize=8.5)
        headline(figure, "The same encoder for every task: only the orange layer is new")
        return Picture(
            figure,
            alt="Small drawings of tokens that go up into one wide box, the pre-trained encoder, with an orange box, "
            "linear, above it. For a label and for a choice's score, an answer comes out above [CLS] only; for tags "
            "above every word; for spans above two words of the text, its start and its end.",
        )


def architectures(
    words: Sequence[str] = ("das", "ist", "gut"), written: Sequence[str] = ("that", "is", "good")
) -> Picture:
    """Encoder, decoder and encoder–decoder side by side: which vector reads which.

    Args:
        words: what is read. written: what the encoder–decoder writes; the decoder goes on from `words` with it.
    """
    n, m = len(words), len(written)
    with drawing():
        shares = {"width_ratios": [n, n + m, n + m]}
        figure, (encoder, decoder, both) = panels(3, width=MAX_INCHES, height=3.4, gridspec_kw=shares)
        for axes, name, width in (
            (encoder, "encoder: BERT", n),
            (decoder, "decoder: GPT", n + m),
            (both, "encoder–decoder: T5", n + m),
        ):
            axes.set_title(name, fontweight="normal", fontsize=11, loc="center")
            axes.set(aspect="equal", ylim=(-0.8, 3.4), xlim=(-0.6, width - 0.4))
            axes.axis("off")
        sees_all = [(i, j) for i in range(n) for j in range(n)]
        _layer(encoder, words, sees_all, BOTH_WAYS)
        _layer(decoder, [*words, *written], [(i, j) for i in range(n + m) for j in range(n + m) if i <= j], FROM_LEFT)
        _layer(both, words, sees_all, BOTH_WAYS)
        _layer(both, written, [(i, j) for i in range(m) for j in range(m) if i <= j], FROM_LEFT, left=n)
        for j in range(n, n + m):
            arrow(both, (j, 1.5), (j, 3.0), FROM_LEFT, **READ)
            for i in range(n):
                arrow(both, (i, 1.5), (j, 3.0), CROSS, **READ)
            _node(both, j, 3.0, CROSS)
        headline(figure, "Three architectures differ in which token reads which")
        return Picture(
            figure,
            alt=f"Three networks. Encoder: {n} words, each reads all of them. Decoder: {n + m} words, each reads "
            "itself and those to its left. Encoder–decoder: the encoder's words read each other; those written read "
            "what is to their left and, one layer higher, all outputs of the encoder.",
        )


def _layer(axes: Axes, words: Sequence[str], read: Sequence[tuple[int, int]], color: str, left: int = 0) -> None:
    """One layer above a row of words; j reads i for each (i, j)."""
    for i, j in read:
        arrow(axes, (left + i, 0), (left + j, 1.5), color, **READ)
    for i, word in enumerate(words):
        axes.text(left + i, -0.5, word, ha="center", va="center", fontsize=9, color=GRAY)
        for layer in range(2):
            _node(axes, left + i, 1.5 * layer, color if layer else GRAY)


def _places(wide: Sequence[float], segments: Sequence[int], *, longest: float) -> list[tuple[int, float]]:
    """The line and the left edge of each box; what is too long for one line has a new one for each segment."""
    places, line, left = [], 0, 0.0
    for number, width in enumerate(wide):
        other = number > 0 and segments[number] != segments[number - 1]
        if left + width > longest or (other and sum(wide) > longest):
            line, left = line + 1, 0.0
        places.append((line, left))
        left += width
    return places


def _stack(axes: Axes, left: int | float, words: int, read: Sequence[tuple[int, int]], color: str) -> None:
    """Two layers above a row of words; layer k + 1 at j reads layer k at i for each (i, j)."""
    for layer in range(2):
        for i, j in read:
            arrow(axes, (left + i, 1.5 * layer), (left + j, 1.5 * (layer + 1)), color, **READ)
    for i in range(words):
        axes.text(left + i, -0.5, f"word {i + 1}", ha="center", va="center", fontsize=9, color=GRAY)
        for layer in range(3):
            _node(axes, left + i, 1.5 * layer, color if layer else GRAY)


def _node(axes: Axes, x: int | float, y: int | float, color: str, name: str = "") -> None:
    axes.add_patch(Circle((x, y), 0.2, facecolor="white", edgecolor=color, linewidth=1.8, zorder=3))
    if name:
        axes.text(x + 0.35, y, name, ha="left", va="center", fontsize=9, color=GRAY)
