"""The mask algebra in Chromium: what is clicked together is what the same code gives in Python."""

import re

import pytest
import torch
from exploring import said, slide

from txcourse import explore
from txcourse.explore.masks import FAR, RULES
from txlib import attention
from txlib.attention import block_local, causal, dilated, full, global_tokens, sliding_window
from txlib.attention.masks import strided_keys, summary_columns

pytestmark = pytest.mark.slow


def check(page, length: int, row: int) -> None:
    """Pattern, pairs and keys are those of the code that the page shows."""
    mask = eval(page.locator("code").inner_text(), vars(attention))
    dense = mask.dense(length)[0, 0]
    path = page.locator("path").get_attribute("d")
    drawn = torch.zeros(length, length, dtype=torch.bool)
    for column, line in re.findall(r"M([\d.]+) ([\d.]+)h", path):
        drawn[int(float(line)), int(float(column))] = True
    assert torch.equal(drawn, dense)
    assert said(page).startswith(f"{mask.pairs(length)} of {length**2} pairs")
    assert f"with {FAR} positions {mask.pairs(FAR)}." in said(page)
    keys = dense[row].nonzero()[:, 0].tolist()
    seen = f"{len(keys)} {'key' if len(keys) == 1 else 'keys'}" + (f": {', '.join(map(str, keys))}." if keys else ".")
    assert f"Query {row} sees {seen}" in said(page)


MASKS = [
    full(),
    causal(),
    sliding_window(3),
    dilated(2, 3),
    global_tokens([1, 5]),
    block_local(4, 1),
    strided_keys(3),
    summary_columns(4, 2),
    ~sliding_window(1),
    causal() & (sliding_window(2) | global_tokens([0])),
    ((causal() & block_local(4)) | summary_columns(4, 1)) & ~strided_keys(2),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_mask_is_python_s(shown, mask):
    page = shown(explore.masks(mask, 12))
    assert torch.equal(eval(page.locator("code").inner_text(), vars(attention)).dense(20), mask.dense(20))
    check(page, 12, 6)


def test_every_rule_is_among_the_masks():
    assert {name for mask in MASKS for name in re.findall(r"[a-z_]+", str(mask))} == RULES


def test_rules_are_clicked_together(shown):
    page = shown(explore.masks(sliding_window(2), 12))
    check(page, 12, 6)
    radius = page.get_by_label("radius")
    radius.focus()
    page.keyboard.press("ArrowUp")
    assert page.locator("code").inner_text() == "sliding_window(3)"
    check(page, 12, 6)

    page.get_by_role("button", name="add a rule").press("Enter")
    page.get_by_label("how rule 2 is joined").select_option("|")
    page.get_by_label("rule 2", exact=True).locator("select").last.select_option("global_tokens")
    page.get_by_label("positions", exact=True).first.fill("0, 7")
    check(page, 12, 6)
    page.get_by_role("button", name="add a rule").click()
    page.get_by_role("group", name="rule 3").get_by_label("~ not").check()
    assert page.locator("code").inner_text() == "(sliding_window(3) | global_tokens([0, 7])) & ~causal()"
    check(page, 12, 6)

    slide(page, "look at query", 11)
    check(page, 12, 11)
    page.get_by_label("positions", exact=True).last.focus()
    page.keyboard.press("Home")
    check(page, 4, 3)
    page.get_by_role("button", name="remove rule 1").click()
    assert page.locator("code").inner_text() == "global_tokens([0, 7]) & ~causal()"
    check(page, 4, 3)


def test_no_number_that_a_rule_refuses_reaches_it(shown):
    page = shown(explore.masks(strided_keys(3)))
    for wrong in ("", "0", "-2", "2.5"):
        page.get_by_label("stride").fill(wrong)
        assert page.locator("code").inner_text() == "strided_keys(3)"
