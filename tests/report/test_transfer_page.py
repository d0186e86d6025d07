"""The report of a transfer: one file that fetches nothing and says the same figures as the value it is made of."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from nearkin.report.transfer_page import transfer_page
from nearkin.transfer.outcome import TransferScores, score_classes, score_values
from nearkin.zoo.transfer import Transfer
from report.solutions import HOSTILE
from report.test_solution_page import Outline

NAMES = ("closed form", "linear head", "last layer", "Bayesian last layer", "all weights")
FACTS = {
    "method": "dirichlet", "alpha": 1e-4, "scale": 0.00297652, "temperature": 1.3127, "how": "mean",
    "left_out_nll": 0.3519,
}  # fmt: skip
VALUES = {"noise": 3.21e-8, "scale": 12.5, "layers": {}, "mean": "network", "space": "function"}
ORIGIN = {
    "data": "digits?classes=0,1", "num_train": 1234, "input_shape": [1, 8, 8], "num_outputs": 5, "classes": 5,
    "trial": 1, "trials": 3, "metric_name": "accuracy", "metric": 0.98765, "num_test": 180, "parameters": 20961,
}  # fmt: skip
MADE = {
    "method": "dirichlet", "how": "mean", "weights": "head", "trial": 1, "samples": 2000, "steps": 50, "seed": 7,
    "given": "digits?classes=5,6",
}  # fmt: skip


def said(name: str, ease: float, seed: int, facts: dict[str, Any] | None = None) -> TransferScores:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (179,), generator=rng)
    scores = torch.randn(179, 5, generator=rng) + ease * torch.nn.functional.one_hot(labels, 5)
    return score_classes(name, scores.double().softmax(1), labels, 0.37 * (1 + seed), facts)


def valued(name: str, noise: float, seed: int, facts: dict[str, Any] | None = None) -> TransferScores:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(300, 1, generator=rng).double()
    mean = y + noise * torch.randn(300, 1, generator=rng).double()
    return score_values(name, mean, torch.full((1,), 0.09).double(), y, 0.04, facts)


def classes() -> Transfer:
    mine, *others = (said(name, 3.5 - place, place, FACTS if place == 0 else None) for place, name in enumerate(NAMES))
    return Transfer("low", "high", "lenet", "accuracy", 10, 50, 179, 0.2011, mine, tuple(others), ORIGIN, MADE)


def values() -> Transfer:
    mine, *others = (
        valued(name, 0.2 + 0.2 * k, k, VALUES if k == 0 else None) for k, name in enumerate(NAMES)
    )  # fmt: skip
    made = {**MADE, "given": ""}
    return Transfer("waves", "tide", "mlp", "r2", 60, 60, 300, 0.0, mine, tuple(others), ORIGIN, made)


def alone() -> Transfer:
    """No other way, nothing known of the source, no number of shots; and no better than a guess."""
    return replace(classes(), baselines=(), origin={}, made={}, shots=None, guess=0.99, target="low")


def hostile() -> Transfer:
    """Names that would break a page that did not escape them."""
    one, names = classes(), HOSTILE
    ways = tuple(replace(way, name=name) for way, name in zip(one.baselines, names[2:], strict=True))
    facts = {**FACTS, names[0]: names[1]}
    made, origin = {**MADE, "given": names[3], "weights": list(names)}, {**ORIGIN, "data": names[1]}
    mine = replace(one.outcome, facts=facts)
    return replace(one, source=names[0], target=names[1], network=names[5], baselines=ways, outcome=mine,
                   made=made, origin=origin)  # fmt: skip


CASES: dict[str, Callable[[], Transfer]] = {"classes": classes, "values": values, "alone": alone, "hostile": hostile}


@cache
def page_of(case: str) -> str:
    return transfer_page(CASES[case](), command="nearkin transfer 'a b' --shots 10")


@cache
def outline_of(case: str) -> Outline:
    return Outline(page_of(case))


@pytest.mark.parametrize("case", CASES)
def test_one_file_that_fetches_nothing(case: str) -> None:
    page, outline = page_of(case), outline_of(case)
    assert set(re.findall(r"https?://[^\"\s<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not {"link", "iframe", "object", "embed", "base", "form", "img"} & set(outline.tags)
    assert not re.search(r"@import|url\(", page)
    assert not [key for _, key, _ in outline.attributes if key.startswith("on")]
    own = outline.values("id")
    assert len(own) == len(set(own))
    assert all(link.startswith("#") and link[1:] in own for link in outline.values("href"))
    assert outline.tags.count("script") == 1
    assert outline.tags.count("section") == 6
    assert len(page.encode()) < 200_000
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert ElementTree.fromstring(svg).get("role") == "img"


@pytest.mark.parametrize("case", ["classes", "values", "alone"])
def test_figures_are_those_of_the_value(case: str) -> None:
    found, outline = CASES[case](), outline_of(case)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    ways = [{"name": "closed form", **{key: told[key] for key in ("metric", "nll", "ece")}}, *told["baselines"]]
    rows = outline.tables[0][1:]
    assert [row[0] for row in rows] == [one["name"] for one in ways]
    for row, one in zip(rows, ways, strict=True):
        figures = [float(cell.replace("−", "-")) for cell in row[1:4]]
        assert figures == pytest.approx([one["metric"], one["nll"], one["ece"]], abs=5.1e-4)
    bins = outline.tables[1][1:]
    assert len(bins) == sum(len(one["bins"]) for one in (told, *told["baselines"]))
    if case != "values":
        shown = [(float(row[1]), float(row[2]), int(row[4])) for row in bins]
        wanted = [tuple(one) for way in (told, *told["baselines"]) for one in way["bins"]]
        for mine, theirs in zip(shown, wanted, strict=True):
            assert mine == pytest.approx(theirs, abs=5.1e-4)


def test_classes_in_words() -> None:
    words = outline_of("classes").words
    found = classes()
    assert f"From 50 labels, 10 for each class, the network of “low” reaches accuracy {found.metric:.3f} on" in words
    assert "more than the best other method, linear head, with" in words
    assert "Among them the closed form has rank 1 by accuracy" in words
    for text in ("0.0001", "0.002977", "1.313", "0.3519", "20,961", "1 × 8 × 8", "accuracy 0.988 on 180 test samples"):
        assert text in words
    assert "nearkin transfer 'a b' --shots 10" in words
    asked = "shots=10, weights='head', trial=1, steps=50, seed=7"
    assert f"zoo.transfer('low', nk.task('digits?classes=5,6'), {asked})" in words


def test_values_in_words() -> None:
    words = outline_of("values").words
    assert "From 60 samples the network of “waves” reaches R² 0.9" in words
    assert "Are its intervals right?" in words
    assert re.search(r"Its intervals are too wide: those of 90 % contain \d+(\.\d+)? % of the test values", words)
    for text in ("3.21 × 10⁻⁸", "the network’s own outputs", "function", "zoo.transfer('waves', task, shots=60"):
        assert text in words
    assert "Pseudo-count" not in words
    assert "Method dirichlet" not in words


def test_what_is_missing_is_not_missed() -> None:
    words = outline_of("alone").words
    assert "without training, in 0.4 s; the majority class has 0.990." in words
    assert "No other method was measured for comparison." in words
    assert "The source is the target itself" in words
    assert "The majority class scores as high" in words
    assert "zoo.transfer('low', 'low')" in words


def test_hostile_names_are_text() -> None:
    page, words = page_of("hostile"), outline_of("hostile").words
    assert "<script>alert(1)" not in page
    assert "<img" not in page
    for name in (*HOSTILE[:2], HOSTILE[2], HOSTILE[3]):
        assert name in words


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", ["classes", "values", "hostile"])
def test_it_fits_every_width_and_runs_without_complaint(
    shown: Callable[[Path], Any], case: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(case), "utf-8")
    page = shown(file)
    for width in (320, 390, 768, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("figure svg:visible").count() == page.locator("figure:visible").count() == 2
    overlaps = """[...document.querySelectorAll('figure svg')].filter(one => one.getBoundingClientRect().width)
      .flatMap(svg => { const boxes = [...svg.querySelectorAll('text')].map(one => one.getBoundingClientRect());
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 3 && b.top < a.bottom - 3)); }).length"""
    assert page.evaluate(overlaps) == 0
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(overlaps) == 0
