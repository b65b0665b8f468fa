"""The whole Transformer as a map: each box opens its lessons and its source."""

import inspect
from collections.abc import Mapping
from typing import Any

from matplotlib.patches import Rectangle
from torch import nn

from txcourse.explore.view import View
from txcourse.figures.shapes import PALE, arrow, box
from txlib.attention.functional import attention
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, panels

WIDTH, HEIGHT, STEP, GAP = 130, 24, 34, 16  # of a box, from one to the next, and between groups
ENCODER, DECODER, SHEET = 80, 262, 344  # where the two streams run, and how wide a drawing is
FILLS = {"attention": PALETTE[5], "cross": PALETTE[3], "feed": "#a9d8c8", "norm": PALETTE[4], "plain": PALE}

LESSONS = {  # of each part: what it does, in a sentence, and the lessons that build it
    "embedding": (
        "a learned vector for each token, times √d; source, target and output share one matrix (§3.4).",
        {"01_text": "01 From text to tensors", "08_transformer": "08, section 3.3"},
    ),
    "positions": (
        "where each token stands: added at the bottom as the paper's sinusoids (§3.5), or by rotary turns of queries "
        "and keys inside each self-attention.",
        {"05_positions": "05 Where am I?"},
    ),
    "self-attention": (
        "each position asks all positions of its own text; in the decoder only itself and the earlier ones (§3.2.3).",
        {"03_attention": "03 Attention as a soft lookup", "04_heads": "04 Many heads"},
    ),
    "cross-attention": (
        "queries from the decoder, keys and values from the memory: what do I need from the source? (§3.2.3)",
        {"04_heads": "04 Many heads", "08_transformer": "08, section 2"},
    ),
    "feed-forward": (
        "project up, bend, project down, each position by itself (§3.3).",
        {"06_block": "06 The block", "18_experts": "18 Mixture of experts"},
    ),
    "add": (
        "what a sub-layer says is added to what came in; post-norm normalizes the sum, pre-norm what goes into the "
        "sub-layer (§3.1; Xiong et al. 2020).",
        {"06_block": "06 The block"},
    ),
    "norm": (
        "each vector gets mean 0 and variance 1, times learned weights. With pre-norm, one more stands on top.",
        {"06_block": "06 The block", "16_todays_decoder": "16 RMSNorm"},
    ),
    "stack": ("the same block N times, each with weights of its own (§3.1).", {"08_transformer": "08, section 3.4"}),
    "output": (
        "the embedding, transposed, gives each word of the vocabulary a score; softmax makes probabilities (§3.4).",
        {"08_transformer": "08, section 3.3", "10_gpt": "10 GPT", "11_sampling": "11 Sampling"},
    ),
}


def transformer(models: Mapping[str, Any], title: str = "The whole Transformer") -> View:
    """Encoder and decoder as the paper's figure 1 draws them (Vaswani et al. 2017), drawn from live models: which
    sub-layers a block has, in which order, and where its norms stand. Each box opens its lessons and its source.

    Args:
        models: each a `txlib.models.Transformer`, by name, e.g. one of post-norm and one of pre-norm.
        title: of the picture where no script runs.
    """
    drawings = [_drawn(name, model) for name, model in models.items()]
    parts = {part: _described(part, models) for part in LESSONS}
    data = {"drawings": drawings, "parts": parts}
    return View(_still(drawings, title), "transformer", data, title="The whole Transformer: open a box")


def _described(part: str, models: Mapping[str, Any]) -> dict[str, Any]:
    """What a box opens: a sentence, lessons, parameters of all such parts of each model, and source."""
    what, lessons = LESSONS[part]
    counts = {name: sum(map(_parameters, _modules(part, model))) for name, model in models.items()}
    counted = "; ".join(f"{name} {count:,}" for name, count in counts.items())
    return {
        "title": part,
        "what": what,
        "lessons": list(lessons.items()),
        "parameters": f"Parameters in all of them: {counted}." if any(counts.values()) else "It has no parameters.",
        "code": "\n\n".join(dict.fromkeys(code for model in models.values() for code in _source(part, model))),
    }


def _modules(part: str, model: Any) -> list[nn.Module]:
    """All of a model's modules that are such a part."""
    blocks = [block for stack in (model.encoder, model.decoder) for block in stack.layers]
    if part in ("self-attention", "cross-attention", "feed-forward"):
        modules = [getattr(block, part.replace("-", "_")) for block in blocks]
    elif part == "norm":
        modules = [getattr(block, f"{name}_norm") for block in blocks for name in _sublayers(block)]
        modules += [model.encoder.norm, model.decoder.norm]
    else:
        modules = {"embedding": [model.embedding], "positions": [model.position], "stack": blocks}.get(part, [])
    return [module for module in modules if module is not None]


def _source(part: str, model: Any) -> list[str]:
    """The functions that do it, of the live model."""
    block = model.decoder.layers[0]
    around = block.self_attention
    functions = {
        "positions": [type(model.position)] if model.position else [type(around.rotary).turn] if around.rotary else [],
        "embedding": [type(model.embedding).forward],
        "self-attention": [attention, type(around).forward, type(around).attend],
        "cross-attention": [type(block.cross_attention).forward, type(block).forward],
        "feed-forward": [type(block.feed_forward)],
        "add": [type(block).residual],
        "norm": [type(block.self_attention_norm)],
        "stack": [type(model.decoder).forward],
        "output": [type(model).logits],
    }
    return [inspect.cleandoc("\n" + inspect.getsource(function)) for function in functions[part]]


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _sublayers(block: nn.Module) -> list[str]:
    """Names of a block's sub-layers, in their order: those that have a norm of their own."""
    children = dict(block.named_children())
    return [name for name in children if f"{name}_norm" in children]


def _drawn(name: str, model: Any) -> dict[str, Any]:
    """Boxes, wires, frames and labels of one model; y grows downwards, as in SVG."""
    sheet: dict[str, Any] = {"boxes": [], "wires": [], "frames": [], "labels": []}
    _, memory, above = _column(sheet, model, model.encoder, ENCODER, "source")
    right, top, edge = _column(sheet, model, model.decoder, DECODER, "target, shifted right")
    asks = right["cross-attention"]
    turn = (ENCODER + DECODER) / 2
    path = [[ENCODER, memory], [ENCODER, above - 14], [turn, above - 14], [turn, asks], [DECODER - WIDTH / 2, asks]]
    sheet["wires"].append({"points": path, "color": PALETTE[3], "width": 2.5})
    sheet["labels"].append({"x": ENCODER, "y": above - 20, "text": "memory", "anchor": "middle"})
    logits = edge - GAP - HEIGHT
    _box(sheet, DECODER, logits, "logits, softmax", "output", "plain")
    _wire(sheet, DECODER, top, logits + HEIGHT / 2)
    _wire(sheet, DECODER, logits - HEIGHT / 2, logits - STEP + 4)
    sheet["labels"].append({"x": DECODER, "y": logits - STEP, "text": "next token", "anchor": "middle"})
    shift = 14 + STEP - logits  # so that the highest label is 14 below the edge
    for part in (*sheet["boxes"], *sheet["frames"], *sheet["labels"]):
        part["y"] += shift
    for wire in sheet["wires"]:
        wire["points"] = [[x, y + shift] for x, y in wire["points"]]
    norm_first = model.config.block.norm.placement == "pre"
    rule = "x + sublayer(norm(x))" if norm_first else "norm(x + sublayer(x))"
    return {"name": name, "rule": rule, "width": SHEET, "height": shift + 12, **sheet}


def _column(
    sheet: dict[str, Any], model: Any, stack: Any, x: int | float, reads: str
) -> tuple[dict[str, int | float], int | float, int | float]:
    """One stack from bottom to top: the height of each sub-layer, of the highest box, and of all that is drawn."""
    sheet["labels"].append({"x": x, "y": 4, "text": reads, "anchor": "middle"})
    _wire(sheet, x, -10, -22)
    y = -22 - HEIGHT / 2
    _box(sheet, x, y, "embedding · √d", "embedding", "plain")
    if model.position is not None:
        _wire(sheet, x, y - HEIGHT / 2, y - STEP + HEIGHT / 2)
        y -= STEP
        _box(sheet, x, y, "+ positions", "positions", "plain")
    block, bottom, places = stack.layers[0], y - HEIGHT / 2 - 10, {}
    y = bottom - GAP
    previous = bottom + 10
    for name in _sublayers(block):
        does = name.replace("_", "-")
        fill = {"feed_forward": "feed", "cross_attention": "cross"}.get(name, "attention")
        masked = "causal " if name == "self_attention" and stack is model.decoder else ""
        main = (masked + does, does, fill)
        group = [("norm", "norm", "norm"), main, ("add", "add", "plain")]
        if model.config.block.norm.placement == "post":
            group = [main, ("add & norm", "add", "norm")]
        branch = y + 4  # below the group, where the residual connection leaves
        for text, part, color in group:
            y -= STEP / 2 if text == group[0][0] else STEP
            _wire(sheet, x, previous, y + HEIGHT / 2)
            _box(sheet, x, y, text, part, color)
            previous = y - HEIGHT / 2
            if part == does:
                places[does] = y
        side = x + WIDTH / 2 + 9
        bend = [[x, branch], [side, branch], [side, y], [x + WIDTH / 2, y]]
        sheet["wires"].append({"points": bend, "color": PALETTE[0], "width": 1.5})
        y -= HEIGHT / 2 + GAP
    y -= 14  # room for the number of blocks
    frame_top = y + 4
    sheet["frames"].append({"x": x - WIDTH / 2 - 8, "y": frame_top, "width": WIDTH + 22, "height": bottom - frame_top})
    _box(sheet, x - WIDTH / 2 + 12, frame_top + 13, f"{len(stack.layers)} ×", "stack", "plain", width=34, height=20)
    edge = frame_top
    if not isinstance(stack.norm, nn.Identity):
        y -= STEP / 2
        _wire(sheet, x, previous, y + HEIGHT / 2)
        _box(sheet, x, y, "norm", "norm", "norm")
        previous = edge = y - HEIGHT / 2
    return places, previous, edge


def _box(
    sheet: dict[str, Any],
    x: int | float,
    y: int | float,
    text: str,
    part: str,
    fill: str,
    width: int | float = WIDTH,
    height: int | float = HEIGHT,
) -> None:
    sheet["boxes"].append(
        {"x": x, "y": y, "width": width, "height": height, "text": text, "name": part, "fill": FILLS[fill]}
    )


def _wire(sheet: dict[str, Any], x: int | float, start: int | float, end: int | float) -> None:
    sheet["wires"].append({"points": [[x, start], [x, end]], "color": GRAY, "width": 1.5})


def _still(drawings: list[dict[str, Any]], title: str) -> Picture:
    """The drawings side by side, for where no script runs."""
    highest = max(sheet["height"] for sheet in drawings)
    with drawing():
        figure, all_axes = panels(len(drawings), width=4.4 * len(drawings), height=0.6 + highest / 75)
        for axes, sheet in zip(all_axes, drawings, strict=True):
            axes.set(xlim=(0, SHEET), ylim=(highest, -24), aspect="equal")
            axes.axis("off")
            low = highest - sheet["height"]
            axes.set_title(f"{sheet['name']}: {sheet['rule']}", fontweight="normal", fontsize=11)
            for frame in sheet["frames"]:
                corner, size = (frame["x"], frame["y"] + low), (frame["width"], frame["height"])
                axes.add_patch(Rectangle(corner, *size, facecolor="#f4f4f4", edgecolor="#bdbdbd", zorder=0))
            for wire in sheet["wires"]:
                points = [(x, y + low) for x, y in wire["points"]]
                axes.plot(*zip(*points[:-1], strict=True), color=wire["color"], linewidth=wire["width"])
                arrow(axes, points[-2], points[-1], wire["color"], width=wire["width"], head=8)
            for part in sheet["boxes"]:
                size = part["width"] - 6, part["height"] - 6
                box(axes, part["x"], part["y"] + low, *size, part["text"], part["fill"], pad=3.0, fontsize=9)
            for label in sheet["labels"]:
                axes.text(label["x"], label["y"] + low, label["text"], ha="center", fontsize=9)
        headline(figure, title)
        alt = " ".join(
            f"{sheet['name']}, {sheet['rule']}, from bottom to top and first the encoder: "
            + ", ".join(part["text"] for part in sheet["boxes"])
            + "."
            for sheet in drawings
        )
        return Picture(figure, alt)
