"""The page on reachability states the figures of `benchmarks/wells.json`, and they lie where theory puts them."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "reachability.md").read_text("utf-8")


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((ROOT / "benchmarks" / "wells.json").read_text())
    return read


def test_density_is_the_stationary_one(figures: dict[str, Any]) -> None:
    distance = figures["double_well_density"]["total_variation"]
    assert distance < 0.02
    assert f"distance of the two is {distance:.3f}" in PAGE.replace("\n", " ")


def test_slopes_of_escape_times(figures: dict[str, Any]) -> None:
    slopes, rows = figures["escape_times"]["slopes"], figures["escape_times"]["rows"]
    assert 0.20 < slopes["simulated"] < 0.28
    assert all(abs(row["simulated"] - row["exact"]) < 3 * row["error"] for row in rows)
    assert all(0.1 > row["kramers"] / row["exact"] - 0.9 > -0.11 for row in rows)
    text = f"{slopes['simulated']:.3f} simulated, {slopes['exact']:.3f} exact and {slopes['kramers']:.3f} for Kramers"
    assert text in PAGE


def test_paths_in_the_curved_well(figures: dict[str, Any]) -> None:
    well = figures["curved_well"]
    assert well["saddle"] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert (well["barrier"], well["straight_barrier"]) == pytest.approx((0.25, 2.25), abs=1e-6)
    actions = well["actions"]
    for action in actions.values():
        assert f"{action:.1f}".replace("-", "−") in PAGE
    assert actions["least action"] < actions["minimum energy path"] < actions["straight line"]


def test_effective_potential_predicts_the_channel(figures: dict[str, Any]) -> None:
    right, distances = figures["channel"]["right"], figures["channel"]["total_variation"]
    assert abs(right["simulated"] - right["effective"]) < 3 * right["error"]
    assert min(abs(right["simulated"] - right[wrong]) for wrong in ("floor", "printed")) > 20 * right["error"]
    assert distances["effective"] < 0.02 < 0.1 < min(distances["floor"], distances["printed"])
    assert f"{right['simulated']:.3f} ± {right['error']:.3f} (standard error)" in PAGE
    assert f"predicts {right['effective']:.3f}" in PAGE
    assert f"would be {right['printed']:.3f}" in PAGE


def test_every_picture_exists() -> None:
    for name in ("double-well-density", "escape-times", "curved-well", "channel"):
        assert f"../images/wells-{name}.svg" in PAGE
        assert (ROOT / "docs" / "images" / f"wells-{name}.svg").read_text().startswith("<svg")
