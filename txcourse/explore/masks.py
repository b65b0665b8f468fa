"""A view of the mask algebra: rules are joined by clicks, drawn and counted."""

from typing import Any

from txcourse.explore.view import View
from txlib.attention import Mask
from txlib.plots import matrices

FAR = 1024
"""Positions for which the pairs are counted, too, beside those that are drawn."""

RULES = {
    "full",
    "causal",
    "sliding_window",
    "dilated",
    "global_tokens",
    "block_local",
    "strided_keys",
    "summary_columns",
}
"""What the view can say; see the rules of the same names in `txlib.attention`."""


def masks(mask: Mask, length: int = 16) -> View:
    """The mask algebra: rules are chosen, turned round, joined from left to right; the pattern, its pairs, its code.

    Args:
        mask: what it begins with, rules joined one by one: `(sliding_window(2) | global_tokens([0])) & causal()`.
        length: how many positions are drawn at first, 4 to 48.

    Raises:
        ValueError: when the mask holds what the view cannot say.
    """
    if not 4 <= length <= 48:
        raise ValueError(f"the view draws 4 to 48 positions, got length={length}")
    title = "Join rules: who may look at whom?"
    data = {"terms": _terms(mask.to_dict()), "length": length, "far": FAR}
    count = f"{mask.pairs(length)} of {length * length} pairs"
    alt = f"Who may attend to whom among {length} positions: {mask}, {count}"
    still = matrices.mask({f"{mask}\n{count}": mask}, length, title=title, alt=alt)
    return View(still, "masks", data, title=title)


def _terms(mask: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules from left to right, each with the sign that joins it to all before."""
    if mask["kind"] in ("and", "or"):
        first, last = mask["left"], mask["right"]
        if last["kind"] in ("and", "or"):
            first, last = last, first  # the order does not matter
        if last["kind"] in ("and", "or"):
            raise ValueError("the view joins rules one by one, and here two are joined that each join rules")
        return [*_terms(first), {**_terms(last)[0], "sign": "&" if mask["kind"] == "and" else "|"}]
    turned = mask["kind"] == "not"
    rule, *values = (mask["mask"] if turned else mask).items()
    if rule[1] not in RULES:
        raise ValueError(f"the view knows no rule {rule[1]!r}, only {', '.join(sorted(RULES))}")
    return [{"sign": "&", "not": turned, "rule": rule[1], "values": dict(values)}]
