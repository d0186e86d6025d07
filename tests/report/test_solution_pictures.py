"""Pictures of a solution: what they show are the figures of their tables, and all of it can be read."""

import base64
import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from nearkin.report.axes import Scale, scale_around
from nearkin.report.confusion import (
    DARKEST,
    classes_table,
    confusion_picture,
    counts_table,
    opacity,
    worst_confusions,
    worst_table,
)
from nearkin.report.curves import loss_curves, loss_picture, loss_table, search_curves, search_picture
from nearkin.report.kinship import DRAWN, ranking_picture, ranking_table, shown_rows
from nearkin.report.labels import Box, overlap, spread, text_width
from nearkin.report.mistakes import LARGEST, image_bytes
from nearkin.report.model_comparison import comparison_picture, comparison_table, lower_limit, marks
from nearkin.report.reliability import calibration_table, calibration_text, reliability_picture, residual_picture
from nearkin.report.svg import Canvas, png_uri
from nearkin.report.theme import DARK, LIGHT, contrast
from nearkin.report.time_spent import merge_small, time_picture, time_table
from nearkin.run.stages import StageTime
from nearkin.solver.quality import Quality
from nearkin.tasks.metrics import share_interval
from report.solutions import CASES, crowded, of_values, planted

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = [760, 358]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def tips(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}title") if not element.get("id")]


def points_of(path: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.attrib["d"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def boxes(svg: str) -> list[Box]:
    """Where texts lie that are set level, as wide as a wide font has them."""
    found = []
    for element in parsed(svg).iter(f"{SVG}text"):
        if "transform" in element.attrib:
            continue
        size, x, y = (float(element.attrib[key]) for key in ("font-size", "x", "y"))
        wide = text_width(element.text or "", size, bold=element.get("font-weight") == "700")
        anchor = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")]
        found.append(Box(x - anchor * wide, y - 0.75 * size, x + (1 - anchor) * wide, y + 0.2 * size))
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [planted, crowded, of_values])
def test_labels_of_the_comparison_do_not_overlap_and_stay_inside(make: object, width: int) -> None:
    solution = make()  # type: ignore[operator]
    svg = comparison_picture(solution, width)
    names = [element for element in parsed(svg).iter(f"{SVG}text") if "nk-halo" in element.get("class", "")]
    assert len(names) == len(marks(solution))
    found = boxes(svg)
    assert not [pair for pair in itertools.combinations(found, 2) if overlap(*pair)]
    assert all(box.left >= -1 and box.right <= width + 1 for box in found)


def test_the_picture_of_the_comparison_shows_what_its_table_says() -> None:
    solution = planted()
    texts_of_marks = set(tips(comparison_picture(solution, 760)))
    rows = comparison_table(solution).rows
    assert len(rows) == len(texts_of_marks)
    for title, test, validation, _, _, interval, parameters, *_ in rows:
        name = title.removeprefix("✔ ").removesuffix(" (chosen)")
        text = f"{name}: test {test} ({interval}), validation {validation}, {parameters} parameters"
        assert text in texts_of_marks


def test_an_outlier_does_not_compress_the_comparison() -> None:
    whole = planted()
    bad = {"lenet": 0.1, "densenet121": 0.3}
    standings = tuple(replace(one, test=bad.get(one.name, one.test)) for one in whole.standings)
    solution = replace(whole, standings=standings)
    rows = marks(solution)
    assert {mark.result.name for mark in rows if mark.value < lower_limit(rows)} == set(bad)
    lowest = min(float(text) for text in texts(comparison_picture(solution, 760)) if re.fullmatch(r"\d\d(\.\d)?", text))
    assert lowest > 80
    written = texts(comparison_picture(solution, 760))
    assert {"LeNet: 10.0 %", "below the axis"} <= set(written)
    assert any(text.startswith("DenseNet") and text.endswith(": 30.0 %") for text in written)
    spread_out = tuple(replace(one, test=0.1 * rank) for rank, one in enumerate(whole.standings))
    rows = marks(replace(whole, standings=spread_out, finals={}))
    assert not [mark for mark in rows if mark.value < lower_limit(rows)]


def test_marks_lie_where_their_figures_are_and_whiskers_are_wilsons() -> None:
    """The chosen mark's ring gives one place, the whisker's ends two heights; a linear scale must map all three."""
    solution = planted()
    root = parsed(comparison_picture(solution, 760))
    one, test = solution.standing, solution.metric
    low, high = share_interval(test, solution.quality.count)
    upright = []
    for path in root.iter(f"{SVG}path"):
        if "nk-s-target" in path.get("class", "") and path.get("stroke-width") == "1.1":
            ends = points_of(path)
            if ends[0][0] == ends[1][0]:
                upright.append(ends)
    ((x, bottom), (_, top)) = upright[0]
    (ring,) = [circle for circle in root.iter(f"{SVG}circle") if "nk-s-target" in circle.get("class", "")]
    middle = float(ring.attrib["cy"])
    assert (middle - bottom) / (top - bottom) == pytest.approx((test - low) / (high - low), abs=0.01)
    ticks = {
        element.text: float(element.attrib["x"])
        for element in root.iter(f"{SVG}text")
        if element.text in ("1 k", "100 k")
    }
    share = (math.log10(one.parameters) - 3) / 2
    assert x == pytest.approx(ticks["1 k"] + share * (ticks["100 k"] - ticks["1 k"]), abs=0.5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ["normal", "crowded"])
def test_the_ranking_shows_the_nearest_and_whose_things_were_used(case: str, width: int) -> None:
    relations = CASES[case]().relations
    for measure, rows in relations.rankings.items():
        svg = ranking_picture(measure, rows, relations, width)
        drawn = shown_rows(rows, relations)
        assert {row["name"] for row in rows[:DRAWN]} <= {row["name"] for row in drawn}
        assert {relations.cells_of, relations.tuned} <= {row["name"] for row in drawn}
        table = ranking_table(measure, rows)
        assert [row[1] for row in table.rows] == [row["name"] for row in rows]
        said = {f"{row[1]}: {row[2]} ± {row[3]}" for row in table.rows}
        assert set(tips(svg)) <= said
        assert len(set(tips(svg))) == len(drawn)
        assert ("limit" in texts(svg)) == (measure == "frechet")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_curve_is_drawn_and_named_apart(width: int) -> None:
    solution = crowded()
    curves = loss_curves(solution)
    svg = loss_picture(curves, width)
    lines = [path for path in parsed(svg).iter(f"{SVG}path") if path.get("stroke-width") in ("1.3", "2.6")]
    assert len(lines) == len(curves) == len(loss_table(curves).rows)
    assert len([one for one in lines if one.get("stroke-width") == "2.6"]) == 1
    assert not [pair for pair in itertools.combinations(boxes(svg), 2) if overlap(*pair)]
    rows = {row[0].removeprefix("✔ ").removesuffix(" (chosen)"): row for row in loss_table(curves).rows}
    for curve in curves:
        assert rows[curve.title][2] == f"{curve.points[0][1]:.4f}"
        assert rows[curve.title][-1] == f"{curve.points[-1][1]:.4f}"


def test_search_curves_are_steps_that_never_fall() -> None:
    svg = search_picture(search_curves(planted()), 760)
    lines = [path for path in parsed(svg).iter(f"{SVG}path") if path.get("stroke-width") in ("1.3", "2.6")]
    assert len(lines) == 3
    for path in lines:
        for (x, y), (after, below) in itertools.pairwise(points_of(path)):
            assert x == after or y == below
            assert after >= x
            assert below <= y


def test_confusions_show_the_counts_of_the_table() -> None:
    quality = CASES["twenty"]().quality
    table = counts_table(quality)
    counts = [cell for row in table.rows for cell in row[1:] if cell != "0"]
    svg = confusion_picture(quality, 760)
    shown_counts = texts(svg)[2 + 2 * len(quality.classes) :]
    assert sorted(shown_counts) == sorted(counts)
    assert sum(map(int, shown_counts)) == quality.count
    assert f"true class 3, answer 3: {table.rows[3][4]}" in tips(svg)


def test_worst_confusions_are_in_order_and_complete() -> None:
    quality = crowded().quality
    assert quality.confusion is not None
    worst = worst_confusions(quality)
    wrong = sum(sum(row) for row in quality.confusion) - sum(row[k] for k, row in enumerate(quality.confusion))
    assert sum(count for _, _, count, _ in worst) == wrong
    assert [count for _, _, count, _ in worst] == sorted((count for _, _, count, _ in worst), reverse=True)
    table = worst_table(quality)
    assert table is not None
    assert "25 most frequent" in table.caption


def test_recall_and_precision_by_class() -> None:
    quality = Quality(0.7, "accuracy", (0.5, 0.9), 10, 0.1, 0.5, ("a", "b", "c"), ((3, 1, 0), (2, 4, 0), (0, 0, 0)))
    table = classes_table(quality)
    assert table is not None
    assert table.rows[0] == ("a", "4", "75 %", "60 %", "b (1)")
    assert table.rows[1] == ("b", "6", "67 %", "80 %", "a (2)")
    assert table.rows[2] == ("c", "0", "–", "–", "–")


def test_numbers_in_the_cells_of_confusions_can_be_read_in_both_schemes() -> None:
    for palette in (LIGHT, DARK):
        for role in ("kin", "target"):
            for share in np.linspace(0, 1, 11):
                full = opacity(round(1000 * share), 1000, 1.0, right=True)
                assert full <= DARKEST
                mixed = [
                    round(full * int(palette[role][k : k + 2], 16) + (1 - full) * int(palette["panel"][k : k + 2], 16))
                    for k in (1, 3, 5)
                ]
                assert contrast(palette["ink"], "#" + "".join(f"{part:02x}" for part in mixed)) >= 4.5


def test_signs_and_links_can_be_read_on_paper_and_panel() -> None:
    for palette in (LIGHT, DARK):
        for role in ("ink", "muted", "kin", "target"):
            assert min(contrast(palette[role], palette[ground]) for ground in ("paper", "panel")) >= 4.5


def test_reliability_shows_the_bins_of_its_table() -> None:
    quality = planted().quality
    told = tips(reliability_picture(quality, 760))
    rows = calibration_table(quality).rows
    assert told == [f"{count} samples: probability {mean}, {right} right" for mean, right, _, count in rows]
    assert sum(int(row[3].replace(",", "")) for row in rows) == quality.count


@pytest.mark.parametrize(
    ("bins", "error", "words"),
    [
        (((0.95, 0.94, 100),), 0.01, "which is little"),
        (((0.9, 0.7, 100),), 0.2, "its probabilities are too high"),
        (((0.6, 0.9, 100),), 0.3, "its probabilities are too low"),
        (((0.5, 0.7, 50), (0.9, 0.7, 50)), 0.2, "some probabilities are too high and others too low"),
    ],
)
def test_calibration_in_words(bins: tuple[tuple[float, float, int], ...], error: float, words: str) -> None:
    quality = Quality(0.9, "accuracy", (0.8, 1.0), 100, 0.1, 0.5, calibration=bins, calibration_error=error)
    assert words in calibration_text(quality)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_answer_is_a_point_of_the_scatter(width: int) -> None:
    quality = of_values().quality
    root = parsed(residual_picture(quality, width))
    (cloud,) = [path for path in root.iter(f"{SVG}path") if path.attrib["d"].count("z") > 20]
    assert cloud.attrib["d"].count("z") == len(quality.residuals)


def test_bars_are_as_long_as_their_stages() -> None:
    stages = [StageTime("a", 10.0), StageTime("b", 5.0, True), StageTime("c", 2.5)]
    svg = time_picture(stages, 760)
    lengths = [float(bar.attrib["width"]) for bar in parsed(svg).iter(f"{SVG}rect")]
    assert lengths[1] / lengths[0] == pytest.approx(0.5, abs=0.01)
    assert lengths[2] / lengths[0] == pytest.approx(0.25, abs=0.01)
    assert "5.0 s (earlier)" in texts(svg)
    assert [row[1:] for row in time_table(stages).rows] == [
        ("10.00", "57 %", "this run"), ("5.00", "29 %", "an earlier run"), ("2.50", "14 %", "this run"),
    ]  # fmt: skip


def test_merging_small_stages_loses_no_second() -> None:
    stages = planted().stages
    assert len(merge_small(stages)) < len(stages)
    assert sum(one.seconds for one in merge_small(stages)) == pytest.approx(sum(one.seconds for one in stages))


def decoded(source: str) -> np.ndarray:
    pixels = imread(io.BytesIO(base64.b64decode(source.partition(",")[2])))
    return (pixels[..., :3] * 255).round().astype(np.uint8)


def test_a_mistake_is_shown_as_it_is() -> None:
    rng = torch.Generator().manual_seed(0)
    colour = torch.randint(0, 256, (3, 5, 7), generator=rng, dtype=torch.uint8)
    assert np.array_equal(decoded(png_uri(image_bytes(colour))), colour.permute(1, 2, 0).numpy())
    grey = colour[:1]
    assert np.array_equal(decoded(png_uri(image_bytes(grey))), grey.expand(3, -1, -1).permute(1, 2, 0).numpy())
    assert np.array_equal(image_bytes(grey.float() / 255), image_bytes(grey))
    assert np.array_equal(image_bytes(grey.float()), image_bytes(grey))


def test_odd_inputs_are_shown_somehow() -> None:
    standard = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert (image_bytes(standard).min(), image_bytes(standard).max()) == (0, 255)
    assert image_bytes(torch.full((1, 3, 3), math.nan)).max() == 0
    assert image_bytes(torch.full((1, 3, 3), -2.0)).shape == (3, 3, 3)
    assert image_bytes(torch.zeros(5, 4, 4)).shape == (4, 4, 3)
    assert image_bytes(torch.zeros(3, 300, 100)).shape == (LARGEST, round(LARGEST / 3), 3)


def test_a_crowd_of_measures_without_spread_is_drawn() -> None:
    relations = planted().relations
    rows = [{"name": "a", "distance": 0.5}, {"name": "b", "distance": 0.5}]
    svg = ranking_picture("leep", rows, replace(relations, rankings={"leep": rows}), 358)
    assert set(tips(svg)) == {"a: 0.500", "b: 0.500"}
    assert ranking_table("leep", rows).heads == ("Rank", "Kin", "Distance")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0.5, 4))
def test_spread_places_keep_apart_in_order_and_within_bounds(wanted: list[float], room: float) -> None:
    found = spread(wanted, room, 0, 130)
    order = sorted(range(len(wanted)), key=lambda k: (wanted[k], k))
    assert all(found[b] - found[a] >= room - 1e-6 for a, b in itertools.pairwise(order))
    assert min(found) >= -1e-9
    assert max(found) <= 130 + 1e-6
    if all(b - a > room for a, b in itertools.pairwise(sorted(wanted))):
        assert found == pytest.approx(wanted)


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 9))
def test_ticks_are_round_few_and_inside(low: float, wide: float, most: int) -> None:
    scale = Scale(low, low + wide, 0, 100)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    assert all(low - 1e-5 * wide - 1e-9 <= tick <= low + wide * (1 + 1e-5) + 1e-9 for tick in ticks)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=9))
def test_logarithmic_scales_hold_all_values_and_have_ticks(values: list[float]) -> None:
    scale = scale_around(values, 0, 100, log=True)
    assert all(0 <= scale(value) <= 100 for value in values)
    assert 1 <= len(scale.ticks(5)) <= 5


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.0], [1.0, 1.0], [math.nan, 0.3]])
def test_scales_of_few_values_have_a_width(values: list[float]) -> None:
    scale = scale_around(values, 0, 100, bounds=(0.0, 1.0))
    assert scale.high > scale.low
    assert scale.ticks()


def test_shapes_of_the_canvas() -> None:
    canvas = Canvas(50, 50)
    canvas.dots([(10, 10), (20, 30)], 2, fill="kin")
    canvas.line((0, 0), (10, 0), dashed=True, width=2)
    canvas.line((0, 0), (5, 5), (10, 0), stroke="ink")
    canvas.rect((1, 1), (4, 4), fill="target", opacity=0.5, radius=2)
    canvas.circle(3, 4, 5, fill="#123456", tip="a tip")
    root = parsed(canvas.svg("t", "title", "words"))
    cloud, dashed, line = root.iter(f"{SVG}path")
    assert cloud.attrib["d"] == "M12,10l-2,2l-2,-2l2,-2zM22,30l-2,2l-2,-2l2,-2z"
    assert dashed.attrib["stroke-dasharray"]
    assert (dashed.get("class"), dashed.get("fill"), dashed.get("pointer-events")) == ("nk-s-line", "none", "none")
    assert points_of(line) == [(0, 0), (5, 5), (10, 0)]
    (box,), (circle,) = root.iter(f"{SVG}rect"), root.iter(f"{SVG}circle")
    assert (box.get("opacity"), box.get("rx"), box.get("class")) == ("0.5", "2", "nk-f-target")
    assert (circle.get("fill"), circle.get("class"), circle.get("pointer-events")) == ("#123456", None, None)
    assert circle[0].text == "a tip"
