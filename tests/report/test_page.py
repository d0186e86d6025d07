"""The page: one file that fetches nothing, says the answer first, and keeps hostile names as text."""

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
import torch

from nearkin.core.errors import OptionError
from nearkin.distance.matrix import DistanceMatrix
from nearkin.report.html import render
from nearkin.report.nearest_kin import plain_answer
from nearkin.report.page import map_page

Space = Callable[..., DistanceMatrix]
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "{{ 7 * 7 }}", "' onload='x")
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Outline(HTMLParser):
    """Tags in order, text by tag, attributes; checks that every element is closed in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.cells: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@pytest.mark.parametrize("size", [1, 2, 4, 12, 30, 50])
def test_one_file_that_fetches_nothing(size: int, space: Space) -> None:
    page = map_page(space(size, trials=3))
    outline = Outline(page)
    assert len(page.encode()) < 1_000_000
    assert set(re.findall(r"https?://[^\"\s<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(outline.tags)
    assert not [one for one in outline.attributes if one[1] == "src" or one[1].startswith("on")]
    links = [value for _, key, value in outline.attributes if key == "href"]
    assert all(link.startswith("data:image/png") or link[1:] in outline.ids for link in links)
    assert not re.search(r"@import|url\(", page)
    assert len(outline.ids) == len(set(outline.ids))
    named = [name for _, key, value in outline.attributes if key == "aria-labelledby" for name in value.split()]
    assert set(named) <= set(outline.ids)


def test_the_policy_admits_the_one_script_and_nothing_else(space: Space) -> None:
    page = map_page(space(3))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def test_hostile_names_are_text_everywhere(space: Space) -> None:
    matrix = space(4, names=HOSTILE, gaps=((0, 1),))
    info = {HOSTILE[0]: {"<b>key": "<i>value</i>", "onclick": ["<u>"]}}
    page = map_page(matrix, info, target=HOSTILE[1], title="<h1>", about="<em>", command="<kbd>")
    outline = Outline(page)
    assert outline.tags.count("script") == 1
    assert not {"img", "i", "u", "em", "kbd"} & set(outline.tags)
    assert "49" not in outline.cells
    assert set(HOSTILE) <= set(outline.cells)
    assert "<i>value</i>" in outline.cells
    assert not [one for one in outline.attributes if one[1].startswith("on")]


def test_the_answer_comes_first(space: Space) -> None:
    matrix = space(5)
    for target in (None, matrix.tasks[1]):
        page = map_page(matrix, target=target)
        (said,) = re.findall(r'<p class="answer">(.*?)</p>', page, re.DOTALL)
        assert re.sub(r"<[^>]+>", "", said) == plain_answer(matrix, target)
        assert page.index('class="answer"') < page.index("<h2") < page.index('id="nk-map-title"')


def test_the_figures_behind_the_pictures_are_all_there(space: Space) -> None:
    matrix = space(12, gaps=((3, 5),))
    cells = Outline(map_page(matrix)).cells
    for a in range(12):
        for b in range(12):
            if a != b and (a, b) != (3, 5):
                assert f"{float(matrix.mean[a, b]):.3f}" in cells
                assert f"{float(matrix.std[a, b]):.3f}" in cells
    assert f"{matrix.tasks[3]} has 3 channels, {matrix.tasks[5]} has 1" in cells
    assert "–" in cells


def test_a_large_space_shows_the_nearest_sources_only(space: Space) -> None:
    page = map_page(space(50, trials=2))
    assert "The 10 nearest sources of every target" in page
    assert page.count("<tr") < 50 * 12


def test_the_ranking_of_a_target_is_in_order(space: Space) -> None:
    matrix = space(6)
    page = map_page(matrix, target=matrix.tasks[2])
    table = page[page.index("Kin of ") :].split("</table>")[0]
    named = re.findall(r'<td class="name">([^<]*)</td>', table)
    order = matrix.mean[:, 2].argsort().tolist()
    assert named == [matrix.tasks[k] for k in order if k != 2]


def test_facts_of_tasks_are_columns_and_unknown_ones_dashes(space: Space) -> None:
    matrix = space(3)
    info = {matrix.tasks[0]: {"num_classes": 2, "input_shape": [1, 8, 8], "metric": 0.97531, "cell": None, "own": True}}
    cells = Outline(map_page(matrix, info)).cells
    start = cells.index("Num classes")
    assert cells[start - 1 : start + 5] == ["Task", "Num classes", "Input shape", "Metric", "Cell", "Own"]
    assert cells[start + 5 : start + 11] == [matrix.tasks[0], "2", "1 × 8 × 8", "0.9753", "–", "yes"]
    assert cells[start + 11 : start + 17] == [matrix.tasks[1], "–", "–", "–", "–", "–"]


def test_one_trial_claims_no_spread(space: Space) -> None:
    once, often = map_page(space(4, trials=1)), map_page(space(4, trials=6))
    assert "Every pair was measured in one" in once
    assert "±" in often
    assert "standard deviation" in often
    assert "standard deviation" not in once


def test_the_same_bytes(space: Space) -> None:
    assert map_page(space(13)) == map_page(space(13))


def test_both_schemes_print_and_phones_are_provided_for(space: Space) -> None:
    page = map_page(space(4))
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page
    assert 'name="viewport"' in page
    assert page.count('id="nk-map-narrow-title"') == 1


def test_a_measure_with_negative_values_is_shifted_for_the_map_and_said_so() -> None:
    values = torch.tensor([[[0.0, -0.5, 0.2], [-0.1, 0.0, 0.4], [0.4, 0.3, 0.0]]], dtype=torch.float64)
    page = map_page(DistanceMatrix(("a", "b", "c"), "minus logme", values))
    assert "so\n0.300 was added" in page
    assert "−0.500" in page


def test_unknown_targets_are_refused(space: Space) -> None:
    with pytest.raises(OptionError, match="no task named 'nobody'"):
        map_page(space(3), target="nobody")


def test_other_pages_extend_the_same_frame() -> None:
    with pytest.raises(Exception, match="undefined"):
        render("map.html")
    page = render("base.html")
    assert "--target:" in page
    assert "<main>" in page
