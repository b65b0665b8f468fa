"""Views of attention in Chromium: they are moved by mouse and keyboard, and their numbers are Python's."""

import pytest
import torch
from exploring import cells, number, said, slide

from txcourse import explore
from txlib.attention import attention_weights

pytestmark = pytest.mark.slow

ANGLE = torch.tensor([0.0, 30.0, 60.0, 90.0, 120.0], dtype=torch.float64).deg2rad()
KEYS = torch.stack([ANGLE.cos(), ANGLE.sin()], dim=-1)  # (key, 2)
VALUES = torch.tensor([1.0, 2.0, 4.0, 3.0, 5.0], dtype=torch.float64)
ENGLISH, GERMAN = ["the", "king", "is", "dead"], ["der", "könig", "ist", "tot", "<eos>"]


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The frame ------------------------------------------------------------------------------------------------------------


def a_lookup():
    names = ["<eos>", "b", "c", "d", "e"]
    return explore.lookup(KEYS, VALUES, torch.tensor([0.6, 0.8], dtype=torch.float64), names=names, scale=4)


def test_a_page_without_scripts_shows_the_picture_alone(shown):
    page = shown(a_lookup(), scripts=False)
    assert page.get_by_role("img").bounding_box()["width"] > 100
    assert page.get_by_role("slider").count() == 0


def test_equal_views_live_side_by_side(shown):
    page = shown(a_lookup(), a_lookup())
    sliders = page.get_by_label("its length")
    first, second = (each.input_value() for each in sliders.all())
    sliders.nth(1).focus()
    page.keyboard.press("Home")
    assert [each.input_value() for each in sliders.all()] == [first, "0"] and first == second


def test_the_picture_stays_for_whoever_listens(shown):
    page = shown(a_lookup())
    assert page.get_by_role("img", name="Left, arrows from one point").count() == 1
    assert page.get_by_role("group", name="Turn the query").count() == 1


def test_keys_stay_with_the_control_that_has_the_focus(shown):
    page = shown(a_lookup())
    page.evaluate("window.heard = 0; document.addEventListener('keydown', () => window.heard++)")
    page.get_by_label("its length").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.heard") == 0


# The views ------------------------------------------------------------------------------------------------------------


def looked_up(page) -> None:
    """What the page shows is what Python makes of the sliders."""
    turn, length, scale = (
        number(page.get_by_label(name).input_value())
        for name in ("direction of the query", "its length", "scores are multiplied by")
    )
    radians = torch.tensor(turn, dtype=torch.float64).deg2rad()
    match = KEYS @ (length * torch.stack([radians.cos(), radians.sin()]))
    soft = (scale * match).softmax(dim=0)
    hard = torch.nn.functional.one_hot((scale * match).argmax(), 5)
    expected = torch.stack([match, scale * match, hard, soft], dim=-1)
    assert [row[2:] for row in cells(page)] == [[f"{each:.2f}".replace("-", "−") for each in row] for row in expected]
    assert f"soft lookup answers {soft @ VALUES:.2f}" in said(page)
    assert f"hard lookup answers {VALUES[match.argmax()]:.1f}" in said(page)


def test_a_query_is_turned_by_keys_and_dragged_by_the_mouse(shown):
    page = shown(a_lookup())
    looked_up(page)
    assert cells(page)[0][0] == "<eos>"
    turn = page.get_by_label("direction of the query")
    before = number(turn.input_value())
    turn.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert number(turn.input_value()) == before + 3
    looked_up(page)

    box = page.locator("circle").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 70, box["y"] + 70, steps=4)
    page.mouse.up()
    assert number(turn.input_value()) < before - 20
    looked_up(page)
    slide(page, "scores are multiplied by", 0)
    assert [row[-1] for row in cells(page)] == ["0.20"] * 5


def test_the_arithmetic_of_one_query(shown):
    q, k, v = double(4, 6), 2 * double(5, 6, seed=1), double(5, 3, seed=2)
    allowed = torch.ones(4, 5, dtype=torch.bool)
    allowed[1, 0] = False
    page = shown(explore.one_query(q, k, v, rows=ENGLISH, columns=GERMAN, mask=allowed, query="king"))

    def check(query: int, key: int, hidden: list[int], entry: int, scale: float) -> None:
        seen = allowed.clone()
        seen[:, hidden] = False
        match = k @ q[query]
        masked = (match * scale).masked_fill(~seen[query], -torch.inf)
        weight = masked.softmax(dim=0)
        value = v[:, entry]
        expected = [match, match * scale, masked, (masked - masked.max()).exp(), weight, value, weight * value]
        shown_rows = [[number(text) for text in row[1:]] for row in cells(page)]
        assert torch.allclose(
            torch.tensor(shown_rows, dtype=torch.float64), torch.stack(expected, dim=-1), rtol=0, atol=0.005001
        )
        assert f"the 6 products add up to {match[key]:.2f}".replace("-", "−") in said(page)
        assert f"Entry {entry} of the mixture is {weight @ value:.2f}".replace("-", "−") in said(page)
        if scale != 1:
            given = attention_weights(q[None, None], k[None, None], seen[None, None])[0, 0, query]
            assert torch.allclose(weight, given)

    best = int(attention_weights(q[None, None], k[None, None], allowed[None, None])[0, 0, 1].argmax())
    check(1, best, [], 0, 6**-0.5)
    page.get_by_label("hide “<eos>”").check()
    page.get_by_label("query", exact=True).select_option("dead")
    page.get_by_label("key", exact=True).select_option("ist")
    check(3, 2, [4], 0, 6**-0.5)
    page.get_by_label("entry of v").focus()
    page.keyboard.press("End")
    page.get_by_label("divide by √d_k").press("Space")
    check(3, 2, [4], 2, 1)
    for word in GERMAN:
        page.get_by_label(f"hide “{word}”").check()
    assert {row[5] for row in cells(page)} == {"0.00"}, "who may see nothing gets nothing"


@pytest.mark.parametrize("view", [explore.heads, explore.all_heads])
def test_weights_of_each_head_are_python_s(shown, view):
    weights = (3 * double(3, 2, 4, 5)).softmax(dim=-1)
    page = shown(view(weights, rows=ENGLISH, columns=GERMAN, first=1))

    def check(layer: int, head: int) -> None:
        expected = [[f"{weight:.2f}" for weight in row] for row in weights[layer, head].tolist()]
        assert [[f"{int(text) / 100:.2f}" for text in row[1:]] for row in cells(page)] == expected
        lines = page.locator("line").evaluate_all("lines => lines.map(line => +line.getAttribute('stroke-opacity'))")
        assert lines == [float(weight) for row in expected for weight in row]
        assert said(page).startswith(f"Layer {layer + 1}, head {head + 1}.")

    check(0, 0)
    page.get_by_label("layer", exact=True).focus()
    page.keyboard.press("ArrowDown")
    page.get_by_label("head", exact=True).select_option("2")
    check(1, 1)
    page.get_by_label("the lines of").select_option("king")
    best = weights[1, 1, 1].max(dim=0)
    assert f"The strongest of “king”: “{GERMAN[best.indices]}” {best.values:.2f}" in said(page)
    assert (
        page.locator("line").evaluate_all("lines => lines.filter(line => +line.getAttribute('stroke-opacity')).length")
        <= 5
    )
    page.locator("svg text", has_text="king").click()
    assert page.get_by_label("the lines of").input_value() == "all words"
    if view is explore.all_heads:
        page.locator("image").nth(2 * 2).click()
        check(2, 0)


def test_words_that_stand_twice_are_told_apart(shown):
    words = ["the", "orcs", "the"]
    page = shown(explore.heads(torch.eye(3)[None], rows=words, columns=words))
    assert page.get_by_label("the lines of").locator("option").all_inner_texts() == [
        "all words",
        "the",
        "orcs",
        "the (2)",
    ]


def test_numbers_can_be_read_on_every_shade(shown):
    """A contrast of 4.5 at least (WCAG 2.2, 1.4.3)."""
    names = [str(each) for each in range(51)]
    page = shown(explore.heads(torch.linspace(0, 1, 51)[None, None], rows=["a"], columns=names))
    colors = page.locator("td").evaluate_all(
        "cells => cells.map(getComputedStyle).map(({ color, backgroundColor }) => "
        "[color, backgroundColor].map(text => text.match(/[0-9]+/g).map(Number)))"
    )
    share = torch.tensor(colors, dtype=torch.float64)[..., :3] / 255  # (cell, 2, 3)
    linear = torch.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    luminance = linear @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64) + 0.05
    assert (luminance.amax(dim=-1) / luminance.amin(dim=-1)).min() >= 4.5
