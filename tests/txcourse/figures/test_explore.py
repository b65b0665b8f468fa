"""The frame of the views: an output that holds picture, data and code, safe and the same each time it is built."""

import json
from pathlib import Path

import pytest
import torch

from txcourse import explore
from txcourse.explore.view import View, as_json
from txcourse.scripts import script_code
from txlib import plots
from txlib.attention import causal, padding
from txlib.attention.masks import strided_keys
from txlib.generation import Sampling
from txlib.plots.picture import PALETTE

COURSE = Path(__file__).parents[3]
FILES = {path.stem for path in (COURSE / "txcourse" / "explore").glob("*.js")} - {"common", "words"}
CODE = [("common", name) for name in FILES] + [("common", "words", name) for name in ("heads", "all_heads")]


def a_view(data=None, title="A title"):
    still = plots.heatmap(torch.eye(2), title="Still", alt='A <description>, "quoted"')
    return View(still, "lookup", data or {}, title=title)


def html_of(view: plots.Picture) -> str:
    return view._repr_mimebundle_()[0]["text/html"]


def test_the_output_is_the_still_picture_then_one_script():
    view = a_view()
    data, _ = view._repr_mimebundle_()
    still, begin, code = data["text/html"].partition("<script>")
    assert "<figure" in still and "<img" in still and 'alt="A &lt;description&gt;, &quot;quoted&quot;"' in still
    assert not any(control in still for control in ("<input", "<select", "<button"))
    assert code.count("</script>") == 1 and code.rstrip().endswith("</script>")
    assert data["image/png"].startswith(b"\x89PNG")
    assert data["text/plain"] == 'View: A <description>, "quoted"'


def test_the_same_view_has_the_same_bytes_and_another_has_another_place():
    assert html_of(a_view()) == html_of(a_view())
    places = {
        html_of(view).partition('data-explore="')[2][:12]
        for view in (a_view(), a_view({"a": 1}), a_view(title="Another"))
    }
    assert len(places) == 3


def test_tokens_do_not_end_the_script():
    tokens = ["</script><script>alert(1)</script>", "<!--", "<eos>", "ü", "\u2028"]
    html = html_of(a_view({"tokens": tokens}))
    assert html.count("<script>") == html.count("</script>") == 1
    assert "<eos>" not in html and "<!--" not in html
    assert json.loads(as_json(tokens)) == tokens


def test_tensors_are_lists_and_what_has_no_number_is_refused():
    assert as_json({"a": torch.tensor([[1, 2]])}) == '{"a":[[1,2]]}'
    assert as_json(torch.tensor([0.1, 1 / 3])) == "[0.1,0.33333334]"
    assert as_json(torch.tensor([0.1, 1 / 3], dtype=torch.float64)) == "[0.1,0.3333333333333333]"
    with pytest.raises(TypeError, match="numbers, strings, lists, dictionaries and tensors, got set"):
        as_json({1, 2})
    with pytest.raises(ValueError, match="JSON"):
        as_json(torch.tensor(float("nan")))


def test_code_travels_without_its_comments():
    common = script_code("explore/common")
    assert "//" not in [line[:2] for line in common.splitlines()]
    assert f"const COLORS = {json.dumps(PALETTE)}" in common, "JavaScript's palette is not the course's"
    assert "</script" not in common.lower()


def test_each_query_and_each_key_has_a_name():
    one, two, vectors = ["a"], ["a", "b"], torch.eye(2)
    for view in (
        lambda: explore.heads(vectors[None], rows=one, columns=two),
        lambda: explore.all_heads(vectors[None, None], rows=one, columns=two),
        lambda: explore.one_query(vectors, vectors, vectors, rows=one, columns=two),
    ):
        with pytest.raises(ValueError, match="2 queries need a name each, got 1 names: a"):
            view()
    with pytest.raises(ValueError, match="2 keys need a name each, got 1 names: a"):
        explore.lookup(vectors, vectors[0], vectors[0], names=one)
    with pytest.raises(ValueError, match="query='c' is none of the rows: a, b"):
        explore.one_query(vectors, vectors, vectors, rows=two, columns=two, query="c")


def test_a_mask_that_the_view_cannot_say_is_refused():
    pair = causal() | strided_keys(2)
    with pytest.raises(ValueError, match="rules one by one"):
        explore.masks(pair & pair)
    with pytest.raises(ValueError, match="no rule 'padding', only block_local, causal"):
        explore.masks(causal() & padding([3]))
    with pytest.raises(ValueError, match="no rule 'or'"):
        explore.masks(~pair & causal())
    with pytest.raises(ValueError, match="4 to 48 positions, got length=3"):
        explore.masks(causal(), 3)


@pytest.mark.parametrize("place", [0, 1])
def test_a_still_picture_says_where_words_look(place):
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    view = explore.heads(weights[None], rows=["der", "hund"], columns=["the", "dog"])
    assert "der looks most at dog, 0.75" in view.alt


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: explore.flash(*torch.randn(3, 13, 4)), "at most 12 positions in tiles of 1, 2 or 4, got 13"),
        (lambda: explore.flash(*torch.randn(3, 4, 4), tile=3), "got 4 in tiles of 3"),
        (lambda: explore.routing({"one": torch.eye(3)}, "ab"), "one has probabilities for 3 tokens, there are 2"),
        (lambda: explore.routing({"one": torch.eye(2)}, "ab", capacity_factor=1.1), "1.1 is not one of 0.5"),
        (
            lambda: explore.sampling({"a": torch.zeros(9)}, "abcdefghi", start=Sampling(top_k=7)),
            "top_k is one of",
        ),
        (
            lambda: explore.sampling({"a": torch.zeros(9)}, "abcdefghi", start=Sampling(presence_penalty=1.0)),
            "there are no penalties",
        ),
    ],
)
def test_what_a_view_cannot_show_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_lessons_carry_the_code_of_today():
    """An output holds its code: after a change of the JavaScript, `make notebooks` renews the lessons."""
    codes = {"\n".join(script_code(f"explore/{name}") for name in names) for names in CODE}
    found = 0
    for path in sorted((COURSE / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                html = "".join(output.get("data", {}).get("text/html", ()))
                if "data-explore" in html:
                    code = html.partition('"use strict";\n')[2].rpartition("\nexplore(")[0]
                    assert code in codes, f"{path.name}: {cell['source'][-1]} shows an older view; build it anew"
                    found += 1
    assert found >= 5
