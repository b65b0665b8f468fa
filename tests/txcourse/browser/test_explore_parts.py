"""Views of positions, writing, experts, tiles, patterns and the whole model in Chromium: they are moved by mouse and
keyboard, and their numbers are Python's."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from exploring import cells, number, said, slide

from txcourse import explore
from txlib.attention import MultiHeadAttention, attention, bigbird, causal, dilated, global_tokens
from txlib.generation import Sampling
from txlib.layers import BlockConfig, MixtureConfig, MixtureOfExperts, Rotary
from txlib.models import Transformer, TransformerConfig

pytestmark = pytest.mark.slow


def vectors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# Rotary ---------------------------------------------------------------------------------------------------------------

QUERY, KEY = vectors(2, 16)


def turned_by_txlib(page) -> float:
    """The page shows what txlib's Rotary makes of both positions; the score."""
    i, j = (number(page.get_by_label(name).input_value()) for name in ("query at position", "key at position"))
    rotation = Rotary(16)
    (query,), (key,) = (
        rotation.turn(x.view(1, 1, 1, 16), torch.tensor([at], dtype=torch.float64))[0, 0]
        for x, at in ((QUERY, i), (KEY, j))
    )
    products = (query * key).view(8, 2).sum(dim=-1)
    shown = torch.tensor([number(row[-1]) for row in cells(page)], dtype=torch.float64)
    assert torch.allclose(shown, products, rtol=0, atol=0.00051)
    score = number(re.search(r"score of (\S+?)\.$", said(page))[1])
    assert score == pytest.approx((query @ key).item(), abs=0.00051)
    assert f"the distance is {j - i:.0f}".replace("-", "−") in said(page)
    return score


def test_rotary_turns_as_txlib_does_and_only_the_distance_counts(shown):
    page = shown(explore.rotary(QUERY, KEY, length=32, start=(12, 9)))
    first = turned_by_txlib(page)
    page.get_by_label("key at position").focus()
    page.keyboard.press("ArrowLeft")
    assert turned_by_txlib(page) != first
    page.keyboard.press("ArrowRight")
    page.get_by_role("checkbox", name="move both together").check()
    query = page.get_by_label("query at position")
    query.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert query.input_value() == "17" and page.get_by_label("key at position").input_value() == "14"
    assert turned_by_txlib(page) == first
    page.keyboard.press("Home")  # the key stops at 0, so the query stops at 3
    assert query.input_value() == "3" and page.get_by_label("key at position").input_value() == "0"
    assert turned_by_txlib(page) == first
    box = page.get_by_label("key at position").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    assert query.input_value() == "31" and turned_by_txlib(page) == first


# Sampling -------------------------------------------------------------------------------------------------------------

VOCAB = 300
NAMES = ["<eos>", *(f"▁{number}" for number in range(1, VOCAB))]
LOGITS = {"flat": 2 * vectors(VOCAB), "peaked": 6 * vectors(VOCAB).flip(0)}
SETTINGS = [  # temperature, top-k, top-p, min-p
    (1.0, None, None, None),
    (0.5, None, None, None),
    (2.0, 20, None, None),
    (1.0, None, 0.9, None),
    (1.5, None, None, 0.1),
    (1.5, 50, 0.6, 0.05),
    (0.1, 3, 0.05, 1.0),
]


@pytest.mark.parametrize("filters_first", [False, True])
def test_sampling_draws_from_what_txlib_draws_from(shown, filters_first):
    page = shown(explore.sampling(LOGITS, NAMES, shown=10))
    page.get_by_label("order").select_option(index=int(filters_first))
    sizes = explore.generation.SIZES[: sum(size < VOCAB for size in explore.generation.SIZES)]
    for prompt, logits in LOGITS.items():
        page.get_by_label("after").select_option(prompt)
        for temperature, k, p, least in SETTINGS:
            slide(page, "temperature", temperature)
            slide(page, "top-k", len(sizes) if k is None else sizes.index(k))
            slide(page, "top-p", 1 if p is None else p)
            slide(page, "min-p", least or 0)
            steps = [Sampling(temperature, k, p, least)]
            if filters_first:
                steps = [Sampling(1.0, k, p, least), Sampling(temperature)]
            changed = logits[None]
            for step in steps:
                changed = step(changed, torch.zeros(1, VOCAB, dtype=torch.bool))
            own, drawn, kept = logits.softmax(dim=0), changed[0].softmax(dim=0), changed[0].isfinite()
            order = own.argsort(descending=True)[:10]
            rows = cells(page)
            assert [row[0] for row in rows] == [*(NAMES[place] for place in order.tolist()), f"{VOCAB - 10} others"]
            for row, place in zip(rows, order.tolist(), strict=False):
                assert number(row[2]) == pytest.approx(100 * own[place].item(), abs=0.06)
                assert (row[3] != "out") == bool(kept[place])
                assert not kept[place] or number(row[3]) == pytest.approx(100 * drawn[place].item(), abs=0.06)
            numbers = re.fullmatch(
                r"(\d+) of 300 tokens can be drawn; the model gave them ([\d.]+) % together\. "
                r"Entropy: ([\d.]+) nats, the model's own ([\d.]+)\.",
                said(page),
            )
            entropies = [torch.special.entr(each).sum().item() for each in (drawn, own)]
            assert int(numbers[1]) == kept.sum()
            assert number(numbers[2]) == pytest.approx(100 * own[kept].sum().item(), abs=0.06)
            assert [number(each) for each in numbers.groups()[2:]] == pytest.approx(entropies, abs=0.006)


def test_a_sampler_is_set_by_keys_and_begins_where_it_is_told(shown):
    page = shown(explore.sampling(LOGITS, NAMES, start=Sampling(0.5, top_k=5, min_p=0.02)))
    assert said(page).startswith("5 of 300")
    page.get_by_label("top-k").focus()
    page.keyboard.press("ArrowLeft")
    assert said(page).startswith("4 of 300")
    assert page.get_by_label("top-k").get_attribute("aria-valuetext") == "4"
    page.keyboard.press("Home")
    assert "Entropy: 0.00 nats" in said(page)


# Routing --------------------------------------------------------------------------------------------------------------

TEXT = "The orcs have attacked."


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    return {name: MixtureOfExperts(MixtureConfig(d_ff=8, experts=6), 16) for name in ("block 1", "block 2")}


def test_tokens_go_where_the_layer_sends_them(shown, layers):
    tokens = torch.randn(len(TEXT), 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        probabilities = {name: layer.route(tokens).probabilities for name, layer in layers.items()}
        page = shown(explore.routing(probabilities, TEXT, capacity_factor=1.0))
        factors = explore.experts.FACTORS
        for name, k, factor in (("block 1", 1, 1.0), ("block 1", 2, 1.25), ("block 2", 3, 0.5), ("block 2", 1, None)):
            page.get_by_label("router").select_option(name)
            slide(page, "experts per token", k)
            slide(page, "capacity factor", len(factors) if factor is None else factors.index(factor))
            layer = layers[name]
            layer.config = MixtureConfig(d_ff=8, experts=6, top_k=k, capacity_factor=factor)
            routing = layer.route(tokens)
            expected = [[""] * len(TEXT) for _ in range(6)]
            for token, (experts, kept) in enumerate(zip(routing.chosen.tolist(), routing.kept.tolist(), strict=True)):
                for place, (expert, room) in enumerate(zip(experts, kept, strict=True)):
                    expected[expert][token] = str(place + 1) if room else "×"
            assert [row[2:] for row in cells(page)] == expected
            asked = routing.chosen.flatten().bincount(minlength=6)
            takes = [
                f"{took}" if took == asks else f"{took} of {asks}"
                for took, asks in zip(routing.counts.tolist(), asked.tolist(), strict=True)
            ]
            assert [row[1].strip() for row in cells(page)] == takes
            all_of_them = len(TEXT) * k
            lost = f"{round(routing.drop_rate * all_of_them)} of {all_of_them} choices"
            assert factor is None or f"{lost} ({100 * routing.drop_rate:.1f} %) are dropped" in said(page)


def test_capacity_is_lowered_by_keys(shown, layers):
    shares = torch.tensor([[0.9, 0.1]] * 8)
    page = shown(explore.routing({"one": shares}, "abcdefgh", capacity_factor=2.0))
    assert "0 of 8 choices" in said(page)
    page.get_by_label("capacity factor").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert "Room for 4 tokens per expert: 4 of 8 choices (50.0 %) are dropped." in said(page)
    assert cells(page)[0][2:] == ["1"] * 4 + ["×"] * 4


# FlashAttention's tiles -----------------------------------------------------------------------------------------------

Q, K, V = vectors(3, 7, 16)


def walked(size: int, is_causal: bool) -> list[list[list[float]]]:
    """Query, maximum, rescaling, sum and three features of the output so far, of each query, after each step."""
    S, never = Q @ K.T / 4, torch.finfo(torch.float64).min
    S = S.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf) if is_causal else S
    steps = []
    for rows in torch.arange(7).split(size):
        biggest, total, mixed = (
            torch.full((len(rows), 1), never, dtype=S.dtype),
            torch.zeros(len(rows), 1),
            torch.zeros(len(rows), 16),
        )
        for columns in torch.arange(7).split(size):
            if is_causal and columns[0] > rows[-1]:
                break
            tile = S[rows][:, columns]
            greater = torch.maximum(biggest, tile.amax(dim=-1, keepdim=True))
            P, rescale = (tile - greater).exp(), (biggest - greater).exp()
            biggest, total, mixed = (
                greater,
                rescale * total + P.sum(dim=-1, keepdim=True),
                rescale * mixed + P @ V[columns],
            )
            steps.append(torch.cat([rows[:, None], biggest, rescale, total, (mixed / total)[:, :3]], dim=-1).tolist())
    return steps


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("is_causal", [False, True])
def test_each_tile_changes_maximum_sum_and_output_as_the_online_softmax_does(shown, size, is_causal):
    page = shown(explore.flash(Q, K, V))
    page.get_by_label("queries and keys per tile").select_option(str(size))
    page.get_by_label("causal").set_checked(is_causal)
    steps, results = walked(size, is_causal), {}
    assert page.get_by_role("slider", name="step").get_attribute("max") == str(len(steps))
    for place, expected in enumerate(steps):
        rows = [[0.0 if cell == "–" else number(cell) for cell in row] for row in cells(page)]
        assert len(rows) == len(expected)
        for row, numbers in zip(rows, expected, strict=True):
            assert row == pytest.approx(numbers, abs=0.00051)
        results |= {int(row[0]): row[4:] for row in rows}
        assert page.get_by_role("slider", name="step").input_value() == str(place + 1)
        page.get_by_role("button", name="next").click()
    out = attention(Q[None, None], K[None, None], V[None, None], causal() if is_causal else None)[0, 0]
    assert torch.allclose(torch.tensor([results[row] for row in range(7)]), out[:, :3].float(), rtol=0, atol=0.0001)


def test_the_walk_is_stepped_by_keys_and_counts_its_journeys(shown):
    page = shown(explore.flash(Q, K, V, tile=2))
    step = page.get_by_role("slider", name="step")
    step.focus()
    page.keyboard.press("End")
    n, d, tiles = 7, 16, 4
    assert f"{n * d + 2 * n * d * tiles} have been read from slow memory, {n * d} written" in said(page)
    page.keyboard.press("ArrowLeft")
    assert step.input_value() == "15"
    back = page.get_by_role("button", name="back")
    back.focus()
    page.keyboard.press("Enter")
    assert step.input_value() == "14" and "Query 6, keys 2–3." in said(page)


# Patterns -------------------------------------------------------------------------------------------------------------


def drawn(page, length: int) -> torch.Tensor:
    """Which pairs are filled on the page."""
    filled = torch.zeros(length, length, dtype=torch.bool)
    paths = page.locator("svg path").evaluate_all("all => all.slice(1).map(each => each.getAttribute('d'))")
    for key, query in re.findall(r"M(\d+) (\d+)h", "".join(paths)):
        assert not filled[int(query), int(key)], "drawn twice"
        filled[int(query), int(key)] = True
    return filled


def equals(page, mask, length: int, query: int) -> None:
    allowed = mask.dense(length)[0, 0]
    assert torch.equal(drawn(page, length), allowed)
    assert f"{allowed.sum()} of {length**2} pairs" in said(page)
    text = re.search(rf"Query {query} sees (.*)\.$", said(page))[1]
    seen = [int(each) for run in re.findall(r"\d+(?:–\d+)?", text) for each in span(run)]
    assert seen == allowed[query].nonzero()[:, 0].tolist()


def span(run: str) -> range:
    first, _, last = run.partition("–")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("is_causal", [False, True])
def test_longformers_pattern_is_txlibs(shown, is_causal):
    page = shown(explore.patterns(40))
    page.get_by_label("causal").set_checked(is_causal)
    for length, radius, gap, count in ((40, 4, 1, 2), (24, 0, 1, 0), (72, 3, 5, 8), (128, 32, 2, 1)):
        values = {"length": length, "window: radius": radius, "gap (dilation)": gap, "global tokens": count}
        for name, value in {**values, "look at query": 17}.items():
            slide(page, name, value)
        mask = dilated(radius, gap) | global_tokens(range(count)) if count else dilated(radius, gap)
        equals(page, mask & causal() if is_causal else mask, length, 17)


def test_big_birds_pattern_is_txlibs_random_blocks_too(shown):
    page = shown(explore.patterns(64))
    page.get_by_role("combobox").select_option("Big Bird")
    assert not page.get_by_label("radius").is_visible() and page.get_by_label("seed").is_visible()
    draws = (
        (64, 4, 2, 3, 2),
        (64, 2, 6, 1, 0),
        (40, 8, 3, 5, 3),
        (72, 16, 6, 3, 1),
        (128, 1, 1, 9, 6),
        (24, 4, 4, 7, 5),
    )
    for seed, (length, block, random, window, count) in enumerate(draws):
        for name, value in (
            ("length", length),
            ("size of a block", {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}[block]),
            ("random blocks", random),
            ("window (blocks)", window // 2),
            ("global blocks", count),
            ("seed", seed),
            ("look at query", 20),
        ):
            slide(page, name, value)
        equals(page, bigbird(block, random, window, count, seed), length, 20)


def test_a_pattern_is_widened_by_keys_and_the_query_stays_inside(shown):
    page = shown(explore.patterns(32, radius=1, global_count=0))
    page.get_by_label("radius").focus()
    page.keyboard.press("ArrowRight")
    equals(page, dilated(2, 1), 32, 16)
    page.get_by_label("look at query").focus()
    page.keyboard.press("End")
    equals(page, dilated(2, 1), 32, 31)
    slide(page, "length", 16)
    equals(page, dilated(2, 1), 16, 15)


# The whole Transformer ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models():
    options = {"paper": {"norm_first": False, "position": "sinusoidal"}, "ours": {"position": "rotary", "bias": False}}
    return {
        name: Transformer(TransformerConfig(50, BlockConfig.of_sizes(d_model=16, heads=2, d_ff=32, **option), 2, 3))
        for name, option in options.items()
    }


def test_every_box_opens_its_lessons_and_its_source(shown, models):
    page = shown(explore.transformer(models))
    lessons = {path.stem for path in (Path(__file__).parents[3] / "notebooks").glob("*.ipynb")}
    boxes = page.get_by_role("button")
    opened = set()
    for place in range(boxes.count()):
        box = boxes.nth(place)
        box.focus()
        page.keyboard.press("Enter" if place % 2 else "Space")
        part = box.get_attribute("aria-label").partition("show ")[2]
        assert said(page).startswith(f"{part}: ") and box.get_attribute("aria-pressed") == "true"
        links = page.get_by_role("link").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert links and all(link.removesuffix(".ipynb") in lessons for link in links)
        assert page.locator("pre").text_content().strip()
        opened.add(part)
    choices = page.get_by_role("combobox").locator("option").all_inner_texts()
    assert opened == set(choices)


def test_a_box_is_opened_by_the_mouse_and_its_source_is_the_librarys(shown, models):
    page = shown(explore.transformer(models))
    page.get_by_role("button", name="cross-attention").first.click()
    assert page.get_by_role("combobox").input_value() == "cross-attention"
    page.get_by_text("its source").click()
    source = page.locator("pre").inner_text()
    assert inspect.cleandoc("\n" + inspect.getsource(MultiHeadAttention.forward)) in source


def test_parts_have_all_of_a_models_parameters(shown, models):
    page = shown(explore.transformer(models))
    counted = dict.fromkeys(models, 0)
    for part in page.get_by_role("combobox").locator("option").all_inner_texts():
        page.get_by_role("combobox").select_option(part)
        if part != "stack":  # made of the others
            for name, count in re.findall(r"(paper|ours) ([\d,]+)", said(page)):
                counted[name] += int(count.replace(",", ""))
    assert counted == {name: sum(each.numel() for each in model.parameters()) for name, model in models.items()}


def test_the_drawing_is_of_the_models(shown, models):
    page = shown(explore.transformer(models))
    named = {
        name: page.get_by_role("group", name=name, exact=True).locator("text").all_text_contents() for name in models
    }
    assert named["paper"].count("add & norm") == 5 and named["paper"].count("+ positions") == 2
    assert named["ours"].count("norm") == named["ours"].count("add") + 2 == 7 and "+ positions" not in named["ours"]
    for texts in named.values():
        assert texts.count("causal self-attention") == texts.count("cross-attention") == 1
        assert "2 ×" in texts and "3 ×" in texts
