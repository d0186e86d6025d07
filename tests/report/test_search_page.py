"""The report of a search: one file that fetches nothing and says the same figures as the value it is made of."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nearkin as nk
from nearkin.report.search_page import search_page
from nearkin.search.genotype_evaluation import GenotypeEvaluation
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.searcher import ScoredGenotype, SearchResult
from nearkin.search.spaces.registry import space
from nearkin.zoo.search import Architecture, SearchDomain
from report.solutions import HOSTILE
from report.test_solution_page import Outline

CELL = Genotype.parse("normal(0): 1 = conv3(0); 2 = identity(0) + max3(1); out = 2")
EPOCHS = (Forgetting(0.0312, 0.0151, 0.0871, 10), Forgetting(-0.0123, 0.0, 0.0455, 9))


def task_named(name: str) -> nk.Task:
    x = torch.zeros(8, 1, 4, 4)
    return nk.Task.from_arrays(name, x, torch.arange(8) % 2, x, torch.arange(8) % 2)


def architecture(forgetting: tuple[Forgetting, ...] = EPOCHS, evaluations: int = 12) -> Architecture:
    history = ((4, 0.25), (8, 0.5), (evaluations, 0.40625)) if evaluations else ((0, 0.3),)
    result = SearchResult(
        ScoredGenotype(CELL, 0.40625), "enas", 3, evaluations, 61.0, "all epochs are done", history, (), forgetting
    )
    done = GenotypeEvaluation(CELL, "test", 0.8765, 0.4, 179, 12345, 67890, 5.0, 20, nn.Identity())
    return Architecture(result, done, SearchDomain(space("general")), Skeleton(channels=4))


def hostile() -> str:
    return search_page(architecture(), task_named(HOSTILE[0]), options={HOSTILE[1]: HOSTILE[2]}, command=HOSTILE[3])


@cache
def page_of(case: str) -> str:
    if case == "hostile":
        return hostile()
    made = architecture() if case == "shared" else architecture((), 0)
    return search_page(made, task_named("four"), options={"epochs": 4}, command="nearkin search four --method enas")


CASES = ("shared", "plain", "hostile")


@pytest.mark.parametrize("case", CASES)
def test_one_file_that_fetches_nothing(case: str) -> None:
    page, outline = page_of(case), Outline(page_of(case))
    assert set(re.findall(r"https?://[^\"\s<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not {"link", "iframe", "object", "embed", "base", "form", "img"} & set(outline.tags)
    own = outline.values("id")
    assert len(own) == len(set(own))
    assert all(link.startswith("#") and link[1:] in own for link in outline.values("href"))
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert ElementTree.fromstring(svg).get("role") == "img"
    if case == "hostile":
        assert "<script>alert(1)" not in page
        assert HOSTILE[0] in outline.words


def test_figures_are_those_of_the_result() -> None:
    outline = Outline(page_of("shared"))
    for text in ("accuracy 0.876 on 179 test samples", "12 architectures measured", "12,345", "67,890", "1 min 1 s"):
        assert text in outline.words
    assert "their error changed by +0.95 points; the largest increase is +8.71 points" in outline.words
    course, forgetting, settings = outline.tables
    assert [row[1] for row in course[1:]] == ["0.250", "0.500", "0.406"]
    assert forgetting[1:] == [
        ["1", "10", "+3.12 points", "+1.51 points", "+8.71 points"],
        ["2", "9", "−1.23 points", "+0.00 points", "+4.55 points"],
    ]
    assert ["epochs", "4"] in settings


def test_sections_without_figures_are_left_out() -> None:
    words = Outline(page_of("plain")).words
    assert "How much was forgotten?" not in words
    assert "The course of the search" not in words
    assert "one supernet" in words


def test_one_epoch_is_a_picture_too() -> None:
    page = search_page(architecture(EPOCHS[:1]), task_named("four"))
    assert page.count("Forgetting by epoch") == 2
    assert search_page(replace(architecture(), domain=SearchDomain(space("darts"))), task_named("four"))


def test_it_fits_every_width(shown: Callable[[Path], Any], tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of("shared"), "utf-8")
    page = shown(file)
    for width in (320, 390, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
