"""Heat map and map as SVG: well formed, self-contained, complete, the same bytes every time, readable in both schemes.

The widths of labels are those of a wide font, see `text_width`.
"""

import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import matplotlib
import numpy as np
import pytest
import torch

from nearkin.core.errors import OptionError
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.heatmap import cell_colour, heatmap
from nearkin.report.labels import Box, overlap, place_labels, text_width
from nearkin.report.nearest_kin import nearest_kin
from nearkin.report.svg import Canvas
from nearkin.report.taskmap import arrows, taskmap
from nearkin.report.theme import DARK, LIGHT, contrast, picture_style, readable_on

Space = Callable[..., DistanceMatrix]
Element = ElementTree.Element
PICTURES = [heatmap, taskmap]
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "a & b $x^2$ \\frac",
    "漢字 \x00\n ]]>",
    "&lt;b&gt;",
)


def parsed(svg: str) -> Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def tips(svg: str) -> list[str]:
    """Tips of shapes, without the title of the picture."""
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}title") if not element.get("id")]


@pytest.mark.parametrize("draw", PICTURES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 12, 13, 30, 60])
def test_well_formed_and_self_contained(draw: Callable[[DistanceMatrix], str], size: int, space: Space) -> None:
    svg = draw(space(size, trials=2))
    root = parsed(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    alternative = {element.get("id"): element.text for element in root if element.get("id")}
    assert all(alternative[name] for name in root.attrib["aria-labelledby"].split())
    assert set(re.findall(r"https?://[^\"\s]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import|<script|javascript:|<!DOCTYPE", svg)
    assert all(link.startswith("data:image/png") for link in re.findall(r'href="([^"]*)"', svg))
    assert len(svg) < 500_000


@pytest.mark.parametrize("draw", PICTURES)
@pytest.mark.parametrize("size", [4, 12, 30])
def test_every_label_is_there(draw: Callable[[DistanceMatrix], str], size: int, space: Space) -> None:
    matrix = space(size, trials=2)
    assert set(matrix.tasks) <= set(texts(draw(matrix)))


@pytest.mark.parametrize("draw", PICTURES)
def test_a_long_name_is_shortened_kept_apart_and_whole_in_its_tip(
    draw: Callable[[DistanceMatrix], str], space: Space
) -> None:
    long = "mnist?classes=0,1,2,3&rest=other&limit=3000&seed=11"
    svg = draw(space(4, trials=2, names=("a", long, long + "2", "b")))
    assert long not in texts(svg)
    assert any(tip.startswith(long) for tip in tips(svg))
    assert len({text for text in texts(svg) if text.startswith("mnist")}) == 2


@pytest.mark.parametrize("draw", PICTURES)
def test_the_same_bytes_whatever_the_reader_has_set(draw: Callable[[DistanceMatrix], str], space: Space) -> None:
    matrix = space(13, gaps=((0, 1),))
    first = draw(matrix)
    with matplotlib.rc_context(
        {"svg.fonttype": "path", "lines.linewidth": 9, "path.sketch": (1, 2, 3), "font.size": 30}
    ):
        assert draw(matrix) == first
        assert matplotlib.rcParams["lines.linewidth"] == 9


@pytest.mark.parametrize("draw", PICTURES)
def test_hostile_names_stay_text(draw: Callable[[DistanceMatrix], str], space: Space) -> None:
    svg = draw(space(5, names=HOSTILE))
    tags = {element.tag.removeprefix(SVG) for element in parsed(svg).iter()}
    assert tags <= {"svg", "title", "desc", "style", "path", "rect", "circle", "polygon", "text", "image"}
    assert "<script" not in svg
    assert "<img" not in svg
    assert "a & b $x^2$ \\frac" in texts(svg)
    assert "漢字 \ufffd ]]>" in texts(svg)


@pytest.mark.parametrize("draw", PICTURES)
def test_too_many_and_no_tasks_are_refused(draw: Callable[[DistanceMatrix], str]) -> None:
    for size, word in ((0, "no task"), (151, "at most 150")):
        matrix = DistanceMatrix(tuple(map(str, range(size))), "frechet", torch.zeros(1, size, size))
        with pytest.raises(OptionError, match=word):
            draw(matrix)


def test_numbers_of_the_heat_map_are_those_of_the_matrix(space: Space) -> None:
    matrix = space(12)
    shown = texts(heatmap(matrix))
    for a, b in itertools.permutations(range(12), 2):
        assert f"{float(matrix.mean[a, b]):.3f}" in shown
        assert f"± {float(matrix.std[a, b]):.3f}" in shown


def test_cells_that_could_not_be_compared_are_a_dash_with_the_reason(space: Space) -> None:
    for size in (4, 20):
        matrix = space(size, gaps=((1, 2), (3, 0)))
        svg = heatmap(matrix)
        assert texts(svg).count("–") == 3  # two cells and the legend
        first, second = matrix.tasks[1], matrix.tasks[2]
        assert f"{first} → {second}: not comparable ({first} has 3 channels, {second} has 1)" in tips(svg)


def test_squares_grow_with_the_deviation() -> None:
    """One trial pair apart by x has deviation x/√2, so sides must be proportional to x."""
    size = 14
    values = torch.full((2, size, size), 0.5, dtype=torch.float64)
    spread = torch.linspace(0.02, 0.2, size, dtype=torch.float64)
    values[1, 0], values[0, 0] = 0.5 + spread, 0.5 - spread
    svg = heatmap(DistanceMatrix(tuple(f"t{k}" for k in range(size)), "frechet", values))
    squares = [r for r in parsed(svg).iter(f"{SVG}rect") if r.get("fill") == "none" and r.get("stroke-width") == "0.8"]
    sides = [float(square.attrib["width"]) for square in squares]
    assert len(sides) == size - 1
    ratios = np.array(sides) / spread[1:].numpy()
    assert np.allclose(ratios, ratios[-1], rtol=0.02)


def test_one_outline_for_every_column_that_has_kin(space: Space) -> None:
    for gaps in ((), ((1, 0), (2, 0), (3, 0))):
        matrix = space(4, gaps=gaps)
        outlined = heatmap(matrix).count('class="nk-s-ink"') - 1  # one in the legend
        assert outlined == sum(kin.source is not None for kin in nearest_kin(matrix)) == 4 - bool(gaps)


def test_cell_colours_are_ordered_by_lightness_and_their_numbers_readable() -> None:
    """Lightness alone must tell near from far: that holds for every kind of colour blindness."""
    colours = [cell_colour(value, 0, 1) for value in np.linspace(0, 1, 101)]
    against_black = [contrast(colour, "#000000") for colour in colours]
    assert all(one > other for one, other in itertools.pairwise(against_black))
    assert min(contrast(colour, readable_on(colour)) for colour in colours) >= 4.5


def test_texts_are_readable_in_both_schemes() -> None:
    assert LIGHT.keys() == DARK.keys()
    for palette in (LIGHT, DARK):
        assert min(contrast(palette[role], palette["paper"]) for role in ("ink", "muted", "kin", "target")) >= 4.5
        assert min(contrast(palette[role], palette["panel"]) for role in ("ink", "muted")) >= 4.5
        assert contrast(palette["arrow"], palette["paper"]) >= 3
    light, dark = picture_style().split("@media screen and (prefers-color-scheme:dark)")
    assert all(f".nk-f-{role}{{fill:{colour}}}" in light for role, colour in LIGHT.items())
    assert all(f".nk-s-{role}{{stroke:{colour}}}" in dark for role, colour in DARK.items())


@pytest.mark.parametrize("width", [760, 358])
@pytest.mark.parametrize("seed", range(4))
def test_no_two_labels_of_thirty_tasks_overlap(width: int, seed: int, space: Space) -> None:
    matrix = space(30, trials=2, seed=seed)
    svg = taskmap(matrix, matrix.tasks[3], width=width)
    boxes = []
    for element in parsed(svg).iter(f"{SVG}text"):
        size, x, y = (float(element.attrib[key]) for key in ("font-size", "x", "y"))
        if "nk-halo" in element.get("class", ""):
            wide = text_width(element.text or "", size, bold=element.get("font-weight") == "700")
            boxes.append(Box(x, y - 0.8 * size, x + wide, y + 0.22 * size))
    assert len(boxes) == 30
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
    assert all(box.left >= 0 and box.right <= width and box.top >= 0 for box in boxes)


def test_labels_of_tasks_at_one_place_are_set_apart() -> None:
    boxes = place_labels(
        np.full((8, 2), 200.0), np.full((8, 2), (80.0, 14.0)), np.full(8, 5.0), Box(0, 0, 400, 400), np.zeros((0, 2))
    )
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))


def test_a_lone_label_sits_at_its_point_and_does_not_cover_it() -> None:
    (box,) = place_labels(
        np.array([[50.0, 50.0]]), np.array([[30.0, 10.0]]), np.array([5.0]), Box(0, 0, 200, 100), np.zeros((0, 2))
    )
    assert 55 < box.left < 62
    assert box.top < 50 < box.bottom


def test_arrows_point_in_the_nearer_direction(space: Space) -> None:
    for seed in range(5):
        matrix = space(12, seed=seed)
        links = arrows(matrix)
        assert all(matrix.mean[link.source, link.target] <= matrix.mean[link.target, link.source] for link in links)
        pairs = {frozenset((link.source, link.target)) for link in links}
        assert pairs == {frozenset((kin.target, kin.source)) for kin in nearest_kin(matrix)}
        assert len(pairs) == len(links)


def test_an_arrow_needs_an_asymmetry_that_the_trials_bear_out() -> None:
    gap = torch.tensor([0.1, 0.1, -0.19, 0.0], dtype=torch.float64)
    values = torch.full((4, 2, 2), 0.5, dtype=torch.float64)
    values[:, 1, 0] = 0.5 + gap
    noisy = DistanceMatrix(("a", "b"), "frechet", values)
    assert [link.sure for link in arrows(noisy)] == [False]
    values = values.clone()
    values[:, 1, 0] = 0.6 + gap / 100
    steady = DistanceMatrix(("a", "b"), "frechet", values)
    assert [(link.source, link.target, link.sure) for link in arrows(steady)] == [(0, 1, True)]


def test_arrows_with_one_way_unknown_follow_the_known_way() -> None:
    values = torch.tensor([[[0.0, math.nan], [0.3, 0.0]]], dtype=torch.float64)
    (link,) = arrows(DistanceMatrix(("a", "b"), "frechet", values))
    assert (link.source, link.target, link.sure) == (1, 0, False)


def test_the_target_alone_is_set_off(space: Space) -> None:
    matrix = space(6)
    plain, aimed = taskmap(matrix), taskmap(matrix, matrix.tasks[2])
    assert 'class="nk-f-target' not in plain
    marked = [t.text for t in parsed(aimed).iter(f"{SVG}text") if "nk-f-target" in t.get("class", "")]
    assert marked == [matrix.tasks[2]]
    with pytest.raises(OptionError, match="no task named"):
        taskmap(matrix, "nobody")


def test_halos_show_the_spread_and_only_where_there_is_any(space: Space) -> None:
    assert taskmap(space(5)).count('opacity="0.11"') == 5
    assert taskmap(space(5, trials=1)).count('opacity="0.11"') == 0


def test_text_of_the_canvas_is_kept_word_for_word() -> None:
    canvas = Canvas(50, 50)
    canvas.text(1, 2, "$x_1$ <&> 漢", angle=30)
    canvas.image((0, 0), (10, 10), np.zeros((2, 2, 4), dtype=np.uint8))
    root = parsed(canvas.svg("t", "title", "words"))
    (text,) = root.iter(f"{SVG}text")
    assert (text.text, text.get("x"), text.get("y")) == ("$x_1$ <&> 漢", "1", "2")
    assert text.attrib["transform"].startswith("rotate(-30")
    assert len(list(root.iter(f"{SVG}image"))) == 1


def test_importing_nearkin_loads_no_matplotlib() -> None:
    code = "import sys, nearkin, nearkin.report; sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
