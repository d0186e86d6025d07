import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.space import rng
from nearkin.core.errors import OptionError
from nearkin.report.drawing.genotype_drawing import draw_genotype
from nearkin.report.drawing.graph_layout import crossings, heights
from nearkin.report.labels import text_width
from nearkin.report.theme import DARK, LIGHT
from nearkin.search.genotypes.genotype import Chain, Genotype
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.nasbench201 import nasbench201
from nearkin.search.spaces.recurrent_space import RecurrentSpace

SVG = "{http://www.w3.org/2000/svg}"
SPACES: list[Space] = [
    GeneralSpace(),
    GeneralSpace((7,)),
    DartsSpace(),
    DartsSpace(num_nodes=7),
    nasbench201(),
    MobileSpace(),
    RecurrentSpace(),
    RecurrentSpace(12, loose_ends=True),
]
ODD = [
    "normal(0): out = nothing",
    "normal(0): out = 0",
    "normal(0): 1 = nothing; 2 = zero(0); out = concat(1, 2)",
    "normal(0, 1): 2 = a(0) + a(0) + b(0); out = sum(0, 2)",
    "normal(0): 1 = a(0); out = 1 | reduction(0): 1 = zero(0); out = 1",
    "chain: skip",
    "chain: " + "; ".join(["mbconv(kernel=3, expansion=6, activation=hard-swish, squeeze=0.25)"] * 40),
    "recurrent(0): 1 = tanh(0); out = mean(1)",
]


def drawn() -> list[Genotype]:
    generator = rng(0)
    return [space.sample(generator) for space in SPACES for _ in range(3)] + [Genotype.parse(text) for text in ODD]


GENOTYPES = drawn()
GRAPHS = [genotype for genotype in GENOTYPES if not isinstance(genotype, Chain)]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(text: str) -> list[str]:
    return [element.text or "" for element in parsed(text).iter(f"{SVG}text")]


@pytest.mark.parametrize("genotype", GENOTYPES, ids=range(len(GENOTYPES)))
def test_well_formed_self_contained_and_told_in_words(genotype: Genotype) -> None:
    text = draw_genotype(genotype, name="one")
    root = parsed(text)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    words = {element.get("id"): element.text for element in root if element.get("id")}
    assert set(words) == {"one-title", "one-desc"} == set(root.attrib["aria-labelledby"].split())
    assert words["one-desc"] == str(genotype)
    assert words["one-title"]
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "desc", "style", "rect", "path", "polygon", "text")
    }
    assert not re.search(r"url\(|@import|<script|href|<!DOCTYPE", text)
    assert draw_genotype(genotype, name="one") == text


@pytest.mark.parametrize("genotype", GENOTYPES, ids=range(len(GENOTYPES)))
def test_every_operation_that_carries_something_is_a_text(genotype: Genotype) -> None:
    if isinstance(genotype, Chain):
        expected = Counter(
            word for block in genotype.blocks for word in (block.name, *(f"{o} {v}" for o, v in block.options))
        )
    else:
        expected = Counter(name for names in genotype.operations().values() for name in names)
    shown = Counter(texts(draw_genotype(genotype)))
    for name, count in expected.items():
        assert shown[name] == (0 if name in ("zero", "none") else count)


@pytest.mark.parametrize("genotype", GENOTYPES, ids=range(len(GENOTYPES)))
def test_boxes_lie_in_the_picture_apart_from_each_other_and_hold_their_words(genotype: Genotype) -> None:
    root = parsed(draw_genotype(genotype))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = []
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x < x + w <= width
        assert 0 <= y < y + h <= height
        boxes.append((x, y, x + w, y + h))
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes, 2):
        assert c <= e or g <= a or d <= f or h <= b
    for words in root.iter(f"{SVG}text"):
        x, y, size = (float(words.attrib[key]) for key in ("x", "y", "font-size"))
        wide = text_width(words.text or "", size)
        left = x - wide / 2 if words.get("text-anchor") == "middle" else x
        if (words.text or "").endswith(" cell"):
            continue
        assert any(a <= left and left + wide <= c and b < y < d for a, b, c, d in boxes)


@pytest.mark.parametrize("genotype", GRAPHS, ids=range(len(GRAPHS)))
def test_lines_run_through_no_box_but_those_of_their_own_edge(genotype: Genotype) -> None:
    """Level stretches that a line makes through a column meet at most one box: the label of its own edge."""
    root = parsed(draw_genotype(genotype))
    boxes = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height")) for rect in root.iter(f"{SVG}rect")
    ]
    for path in root.iter(f"{SVG}path"):
        met = set()
        places = [tuple(map(float, place)) for place in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.attrib["d"])]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            if y0 == y1:
                inside = [(x, y, w, h) for x, y, w, h in boxes if y < y0 < y + h and x0 < x + w - 0.1 and x + 0.1 < x1]
                met.update(inside)
        assert len(met) <= 1


def test_nodes_that_nothing_reaches_are_dashed() -> None:
    whole = draw_genotype(Genotype.parse("normal(0): 1 = a(0); 2 = b(1); out = 2"))
    torn = draw_genotype(Genotype.parse("normal(0): 1 = zero(0); 2 = b(1); out = 2"))
    assert whole.count("stroke-dasharray") == 0
    assert torn.count("stroke-dasharray") == 2
    assert draw_genotype(Genotype.parse("chain: a; skip; a")).count("stroke-dasharray") == 1


def test_one_line_for_every_edge_and_output() -> None:
    root = parsed(
        draw_genotype(Genotype.parse("normal(0): 1 = a(0); 2 = zero(0) + b(1); 3 = a(0) + a(2); out = concat(1, 3)"))
    )
    assert len(list(root.iter(f"{SVG}path"))) == 4 + 2
    assert len(list(root.iter(f"{SVG}polygon"))) == 4 + 2


def test_cells_stand_side_by_side_under_their_names() -> None:
    both = draw_genotype(DartsSpace().sample(rng(0)))
    assert [words for words in texts(both) if words.endswith(" cell")] == ["normal cell", "reduction cell"]
    assert "Normal and reduction cell" in both
    where = {
        words.text: (float(words.attrib["x"]), float(words.attrib["y"]))
        for words in parsed(both).iter(f"{SVG}text")
        if (words.text or "").endswith(" cell")
    }
    assert where["normal cell"][0] < where["reduction cell"][0]
    assert where["normal cell"][1] == where["reduction cell"][1]


def test_every_role_has_its_colour_in_both_schemes() -> None:
    light, dark = draw_genotype(GENOTYPES[0]).split("@media screen and (prefers-color-scheme:dark)")
    assert all(f".nk-f-{role}{{fill:{colour}}}" in light for role, colour in LIGHT.items())
    assert all(f".nk-s-{role}{{stroke:{colour}}}" in dark for role, colour in DARK.items())


def test_names_that_would_break_out_of_an_id_are_refused() -> None:
    with pytest.raises(OptionError, match="a drawing must be a name of letters"):
        draw_genotype(GENOTYPES[0], name='"><script>')


@st.composite
def layered(draw: st.DrawFn) -> tuple[list[list[int]], list[tuple[int, int]], list[float]]:
    widths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    numbers = itertools.count()
    columns = [[next(numbers) for _ in range(width)] for width in widths]
    pairs = [(a, b) for one, other in itertools.pairwise(columns) for a in one for b in other]
    links = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return columns, links, draw(st.lists(st.floats(1, 40), min_size=sum(widths), max_size=sum(widths)))


@given(layered(), st.data())
@settings(deadline=None)
def test_items_of_a_column_keep_their_distance_and_lines_cross_no_more_than_before(
    graph: tuple[list[list[int]], list[tuple[int, int]], list[float]], data: st.DataObject
) -> None:
    columns, links, sizes = graph
    bends = data.draw(st.sets(st.integers(0, max(0, len(sizes) - 1))))
    places = heights(columns, links, sizes, bends)
    assert len(places) == len(sizes)
    ordered = [sorted(column, key=places.__getitem__) for column in columns]
    for column in ordered:
        for one, other in itertools.pairwise(column):
            assert places[other] - places[one] >= (sizes[one] + sizes[other]) / 2 - 0.02
    assert crossings(ordered, links) <= crossings(columns, links)


def test_two_lines_that_need_not_cross_do_not() -> None:
    places = heights([[0, 1], [2, 3], [4, 5]], [(0, 3), (1, 2), (2, 4), (3, 5)], [10.0] * 6)
    assert (places[0] < places[1]) == (places[3] < places[2]) == (places[5] < places[4])


def test_blocks_are_coloured_by_kernel_and_expansion() -> None:
    chain = Genotype.parse(
        "chain: mbconv(kernel=3, expansion=3); mbconv(kernel=7, expansion=6); mbconv(kernel=5, expansion=3); skip; a"
    )
    shades = [
        (element.attrib["class"], element.attrib["opacity"])
        for element in parsed(draw_genotype(chain)).iter(f"{SVG}polygon")
        if "opacity" in element.attrib
    ]
    assert shades == [("nk-f-kin", "0.12"), ("nk-f-target", "0.3"), ("nk-f-arrow", "0.12")]
