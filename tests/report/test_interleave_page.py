"""The report of a search for several tasks: one file that fetches nothing and says the figures of its result."""

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
from nearkin.multitask.evaluation import TasksEvaluation
from nearkin.multitask.multitask_state import RoundRecord
from nearkin.report.drawing.pass_drawing import draw_pass
from nearkin.report.interleave_page import interleave_page
from nearkin.search.genotype_evaluation import GenotypeEvaluation
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.plasticity.telemetry import Forgetting
from nearkin.search.searcher import ScoredGenotype, SearchResult
from nearkin.zoo.interleaving import InterleavedSearch, Interleaving
from report.solutions import HOSTILE
from report.test_solution_page import Outline

CELL = Genotype.parse("normal(0): 1 = conv3(0); 2 = identity(0) + max3(1); out = 2")
OTHER = Genotype.parse("normal(0): 1 = conv3(0); 2 = conv3(0) + conv3(1); out = 2")
FORGETTING = (Forgetting(0.0312, 0.0151, 0.0871, 10), Forgetting(-0.0123, 0.0, 0.0455, 9))
PRECISION = {"mean": 0.3125, "at_50": 0.5, "at_75": 0.25, "small": None, "medium": 0.25, "large": 0.375}
ACTIVE = [0.4, 0.25, 0.1]


def task_named(name: str) -> nk.Task:
    x = torch.zeros(8, 1, 4, 4)
    return nk.Task.from_arrays(name, x, torch.arange(8) % 2, x, torch.arange(8) % 2)


def scenes(name: str) -> nk.Task:
    return nk.Task.from_boxes(name, torch.rand(10, 1, 16, 16), [[[1, 1, 8, 8]]] * 10, [["box"]] * 10)


def rounds(names: list[str], num_rounds: int = 2, epochs: int = 3) -> list[dict[str, Any]]:
    return [
        RoundRecord(epoch, number, name, 1.5 / epoch, 0.2 * epoch + 0.05 * number + 0.02 * k, None).to_dict()
        for epoch in range(1, epochs + 1)
        for number in range(1, num_rounds + 1)
        for k, name in enumerate(names)
    ]


def outcome(names: list[str], genotype: Genotype = CELL, active: list[float] | None = None) -> SearchResult:
    details = {"rounds": rounds(names), "active": ACTIVE if active is None else active, "scales": [1.5] * len(names)}
    return SearchResult(
        ScoredGenotype(genotype, 0.4), "interleave", 24, 0, 61.0, "all epochs are done", (), (), FORGETTING, details
    )


def evaluated(genotypes: list[Genotype], tasks: list[nk.Task]) -> TasksEvaluation:
    return TasksEvaluation({
        task.name: GenotypeEvaluation(
            genotype, "test", 0.875 - 0.125 * at, 0.4, 179, 12345 + at, 67890, 5.0, 20, nn.Identity(),
            PRECISION if task.likelihood == "detection" else {},
        )
        for at, (genotype, task) in enumerate(zip(genotypes, tasks, strict=True))
    })  # fmt: skip


def planted(tasks: list[nk.Task], distances: torch.Tensor | None = None, **how: Any) -> InterleavedSearch:
    """A result with one architecture for all tasks."""
    names = [task.name for task in tasks]
    done = evaluated([CELL] * len(tasks), tasks)
    return InterleavedSearch((outcome(names),), done, tuple(tasks), Interleaving(**how), distances)


def independent() -> InterleavedSearch:
    tasks = [task_named("low"), task_named("high")]
    outcomes = (outcome(["low"], active=[]), outcome(["high"], OTHER, active=[]))
    return InterleavedSearch(
        outcomes, evaluated([CELL, OTHER], tasks), tuple(tasks), Interleaving(method="independent")
    )


DISTANCES = torch.tensor([[0.0, 0.25, 0.5], [0.25, 0.0, 0.125], [0.5, 0.125, 0.0]])


@cache
def result_of(case: str) -> InterleavedSearch:
    three = [task_named(name) for name in ("low", "high", "third")]
    match case:
        case "near":
            return planted(three, DISTANCES, order="near", options={"every": 4})
        case "detection":
            return planted([task_named("digits"), scenes("scenes")], options={"transfer": "none"})
        case "independent":
            return independent()
        case "hostile":
            return planted([task_named(name) for name in HOSTILE[:4]], torch.rand(4, 4), order="near")
        case _:
            return planted([task_named(f"task {number}") for number in range(7)], num_rounds=20)


@cache
def page_of(case: str) -> str:
    return interleave_page(result_of(case), command=HOSTILE[4] if case == "hostile" else "nearkin interleave low high")


CASES = ("near", "detection", "independent", "hostile", "many")


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
    outline = Outline(page_of("near"))
    assert "it has accuracy 0.875 on “low”, 0.750 on “high” and 0.625 on “third”" in outline.words
    assert "after 1 min 1 s of search and 15 s of training" in outline.words
    assert "disagreed on 25 % of the pairs of augmentation sets, and at least on 10 %" in outline.words
    assert "their error changed by +0.95 points; the largest increase is +8.71 points" in outline.words
    results, course, active, pairs, forgetting, settings = outline.tables
    assert results[1][:4] == ["low", "accuracy", "0.875", "0.500"]
    assert results[2][5:7] == ["12,346", "67,890"]
    assert course[1] == ["low", "1", "1", "0.250", "1.500", "–"]
    assert len(course) == 1 + 3 * 2 * 3
    assert active[1:] == [["1", "40 %"], ["5", "25 %"], ["9", "10 %"]], "transfer in every fourth pass"
    assert len(pairs) == 1 + 6
    assert len(forgetting) == 3
    assert ["every", "4"] in settings


def test_the_loop_of_the_order_is_measured() -> None:
    words = Outline(page_of("near")).words
    assert "low → high → third → low" in words
    assert "along this loop is 0.875" in words


def test_a_detector_has_its_average_precision() -> None:
    outline = Outline(page_of("detection"))
    table = next(table for table in outline.tables if table[0][1] == "IoU .5 to .95")
    assert table[1:] == [["scenes", "0.312", "0.500", "0.250", "–", "0.250", "0.375"]]
    assert "it has 0.875 (accuracy) on “digits” and 0.750 (average precision at IoU 0.5) on “scenes”" in outline.words
    assert "as nothing is transferred" in outline.words
    assert "transfer to the next task" not in page_of("detection")
    assert page_of("detection").count("Active pairs by pass") == 0


def test_independent_searches_have_a_cell_for_each_task() -> None:
    page, words = page_of("independent"), Outline(page_of("independent")).words
    assert "Each task has an architecture of its own" in words
    assert str(CELL) in words
    assert str(OTHER) in words
    assert page.count("<h3>") == 2
    assert "One pass:" not in page
    assert result_of("independent").to_dict()["forgetting"]["epochs"][0]["architectures"] == 20


def test_sections_without_figures_are_left_out() -> None:
    one = result_of("near")
    bare = replace(one.outcomes[0], forgetting=(), details={})
    words = Outline(interleave_page(replace(one, outcomes=(bare,), distances=None))).words
    for title in ("How much was forgotten?", "The course of the search", "Is anything transferred?", "Why this order?"):
        assert title not in words


def test_rounds_that_are_not_drawn_are_named() -> None:
    assert "Only the first and the last round are drawn." in Outline(page_of("many")).words
    assert "are drawn" not in Outline(page_of("near")).words


def test_a_pass_without_transfer_has_no_arrows_between_turns() -> None:
    with_transfer, without = (draw_pass(["low", "high"], 2, 600, transfer=way) for way in (True, False))
    assert with_transfer.count("<path") - without.count("<path") >= 3
    assert "from the encoder" not in without


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES)
def test_it_fits_every_width(case: str, shown: Callable[[Path], Any], tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(case), "utf-8")
    page = shown(file)
    for width in (320, 390, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
