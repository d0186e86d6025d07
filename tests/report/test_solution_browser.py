"""The report in a real browser: it fits a phone and a sheet of paper, runs without a word of complaint, and sorts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearkin.report.solution_page import solution_page
from report.solutions import CASES

SHOWN = ("normal", "hostile", "values")
PAPER = 717  # pixels of A4 within the margins that browsers leave
BEYOND = """[...document.querySelectorAll('header *, main *')].filter(one =>
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll') && !one.closest('svg')).length"""


@pytest.fixture(scope="module", params=SHOWN)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report") / "report.html"
    made.write_text(solution_page(CASES[request.param]()), "utf-8")
    return made


@pytest.fixture
def page(shown: Callable[[Path], Any], file: Path) -> Any:
    return shown(file)


@pytest.mark.thinned(3)
def test_it_fits_every_width(page: Any) -> None:
    for width in (320, 390, 768, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(BEYOND) == 0
        pictures = page.locator("figure svg:visible").count()
        figures = page.locator("figure:visible").count()
        assert pictures == figures


@pytest.mark.thinned(3)
def test_on_a_phone_the_test_column_is_visible(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    edges = "[...document.querySelectorAll('.results tr')].map(row => row.cells[2].getBoundingClientRect().right)"
    assert max(page.evaluate(edges)) <= 390


@pytest.mark.thinned(3)
def test_on_paper_all_is_open_and_nothing_is_cut(page: Any) -> None:
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    closed = page.locator("details:not([open])").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    edges = "[...document.querySelectorAll('table, figure svg')].map(one => one.getBoundingClientRect().right)"
    assert max(page.evaluate(edges)) <= PAPER
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed


@pytest.mark.thinned(3)
def test_the_dark_scheme_is_dark_and_numbers_with_commas_are_sorted(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
    page.locator("th button", has_text="Parameters").first.click()
    column = page.evaluate("[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[6].textContent)")
    counts = [int(cell.replace(",", "")) for cell in column]
    assert counts == sorted(counts)
    assert len(counts) > 4
