"""Citations are read as people write them, and none is of a paper that the bibliography lacks."""

from pathlib import Path

import pytest

from txcourse.site.papers import Place, _citations, citations, page, papers

COURSE = Path(__file__).parents[3]
LESSON, LIBRARY = Place("31_sparse", "", "lesson"), Place("txlib.attention.sets", "", "library")


@pytest.fixture(scope="module")
def known():
    return papers(COURSE)


@pytest.fixture(scope="module")
def everything():
    return citations(COURSE)


def cited(text, place, known, before=()):
    return [(each.paper.cite, each.part) for _, each in _citations(text, place, known, list(before))]


VASWANI, BELTAGY, ZAHEER = "Vaswani et al. 2017", "Beltagy et al. 2020", "Zaheer et al. 2020"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a window (Beltagy et al. 2020, §3.1).", [(BELTAGY, "§3.1")]),
        ("Beltagy et al. (2020, section 3.1) have", [(BELTAGY, "§3.1")]),
        ("Beltagy et al.'s (2020) window is wide. Section 3 of this lesson", [(BELTAGY, "")]),
        ("(Zaheer et al. 2020, §2 and appendix D)", [(ZAHEER, "§2"), (ZAHEER, "appendix D")]),
        ("Dao & Gu 2024 and Dao and Gu 2024, §5", [("Dao and Gu 2024", ""), ("Dao and Gu 2024", "§5")]),
        ("(Leviathan et al. 2023, §2; Xiao et al. 2024)", [("Leviathan et al. 2023", "§2"), ("Xiao et al. 2024", "")]),
        (
            "Vaswani et al. 2017, *Attention*, [arXiv:1](https://arxiv.org/abs/1), section 3.2.1 and footnote 4, which "
            "is the argument of our section 4.",
            [(VASWANI, "§3.2.1"), (VASWANI, "footnote 4")],
        ),
        (
            "Vaswani et al. 2017, sections 3.1, 5.1 to 5.4 and table 3.",
            [(VASWANI, "§3.1"), (VASWANI, "§5.1–5.4"), (VASWANI, "table 3")],
        ),
        ("Vaswani et al. 2017, section 4, for the table of section 7.", [(VASWANI, "§4")]),
        ("(see Vaswani et al. 2017) and figure 3 below", [(VASWANI, "")]),
        ("table 3 of Vaswani et al. 2017", [(VASWANI, "table 3")]),
        ("what it costs is in lesson 10, section 10", []),
    ],
)
def test_a_citation_is_read(text, expected, known):
    assert cited(text, LESSON, known) == expected


def test_docstrings_go_on_speaking_of_one_paper(known):
    said = "Inducing points (Lee et al. 2019, §3.1). Scores are divided by √d (§2.2)."
    assert cited(said, LIBRARY, known) == [("Lee et al. 2019", "§3.1"), ("Lee et al. 2019", "§2.2")]
    lee = [paper for paper in known if paper.cite == "Lee et al. 2019"]
    assert cited("As in §3.2.", LIBRARY, known, lee) == [("Lee et al. 2019", "§3.2")]
    assert cited("As in §3.2.", LESSON, known, lee) == []


def test_the_same_words_for_two_papers(known):
    for owner, number in ("13_decoding", "2302.01318"), ("17_checkpoints", "2306.15595"):
        ((_, found),) = _citations("(Chen et al. 2023)", Place(owner, "", "lesson"), known, [])
        assert number in found.paper.link


def test_every_paper_is_in_the_bibliography(everything):
    found, missing = everything
    assert not missing, "add them to docs/papers.toml"
    assert len(found) > 500


def test_where_is_longformer_section_3_1(everything):
    places = [each.place.link for each in everything[0] if (each.paper.cite, each.part) == (BELTAGY, "§3.1")]
    assert "{py:obj}`sliding_window <txlib.attention.sliding_window>`" in places


def test_links_are_those_that_the_lessons_give(known):
    """A lesson's `Name et al. 2020, …, [arXiv:…]` is the paper that the bibliography means."""
    import re

    checked = 0
    for path in sorted((COURSE / "notebooks").glob("*.py")):
        text = re.sub(r"\s*\n#? ?\s*", " ", path.read_text(encoding="utf-8"))
        place = Place(path.stem, "", "lesson")
        spans = sorted(_citations(text, place, known, []), key=lambda each: each[0])
        for (_, end), citation in spans:
            near = re.match(r"[^.;\[]{0,140}\[arXiv:(\d+\.\d+)\]", text[end:])
            if near:
                checked += 1
                assert near[1] in citation.paper.link, (path.name, citation.paper.cite)
    assert checked > 60


def test_the_page_links_each_part(everything):
    text = page(COURSE)
    assert "(paper-vaswani-et-al-2017)=" in text
    assert "- §3.2.3: [04 · 9 Summary](#lesson-04-9), {py:obj}`causal <txlib.attention.causal>`" in text
    assert text.index("**Abnar") < text.index("**van den Oord") < text.index("**Vaswani")
