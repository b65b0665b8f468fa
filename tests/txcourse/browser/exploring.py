"""What the tests of views read from a page, and how they move its controls."""


def cells(page) -> list[list[str]]:
    """The texts of the first table's body."""
    return (
        page.locator("tbody")
        .first.locator("tr")
        .evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")
    )


def number(text: str) -> float:
    """The number that a text shows."""
    return float(text.replace("−", "-").replace("∞", "inf").strip("°% "))


def said(page) -> str:
    """What the view says of its state."""
    return page.get_by_role("status").inner_text()


def slide(page, name: str, value: float) -> None:
    """Move a slider to a place."""
    page.get_by_label(name, exact=True).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})) }", value
    )
