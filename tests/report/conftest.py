"""Task spaces to draw (points in three dimensions, an asymmetry and noise over trials), and a browser for pages."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nearkin.distance.matrix import DistanceMatrix

Space = Callable[..., DistanceMatrix]


@pytest.fixture(scope="session")
def space() -> Space:
    """`space(size, trials=6, seed=0, gaps=())` with task names, and NaN with a reason for each pair in `gaps`."""

    def make(
        size: int,
        *,
        trials: int = 6,
        seed: int = 0,
        gaps: tuple[tuple[int, int], ...] = (),
        names: tuple[str, ...] | None = None,
    ) -> DistanceMatrix:
        rng = torch.Generator().manual_seed(seed)
        pairs = [f"digits-{a}-vs-{b}" for a in range(10) for b in range(a + 1, 10)]
        tasks = names or tuple(pairs[k % 45] + "'" * (k // 45) for k in range(size))
        points = torch.rand(size, 3, generator=rng, dtype=torch.float64)
        effort = torch.rand(size, generator=rng, dtype=torch.float64) * 0.1
        mean = 0.12 + 0.4 * torch.cdist(points, points) + effort[None] - effort[:, None]
        noise = torch.randn(trials, size, size, generator=rng, dtype=torch.float64) * 0.02
        values = (mean + noise).clamp(0.01, 1)
        values[:, range(size), range(size)] = 0.0
        reasons = {}
        for a, b in gaps:
            values[:, a, b] = math.nan
            reasons[tasks[a], tasks[b]] = f"{tasks[a]} has 3 channels, {tasks[b]} has 1"
        return DistanceMatrix(tasks, "frechet model/layer", values, reasons)

    return make


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A running browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by Playwright (extra dev)")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium)
        yield running
        running.close()


@pytest.fixture
def shown(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """A function that shows a file on a phone; anything that it fetches or complains about fails the test."""
    context = browser.new_context(viewport={"width": 390, "height": 800})
    heard: list[str] = []

    def show(file: Path) -> Any:
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("request", lambda asked: heard.append(asked.url) if asked.url.startswith("http") else None)
        page.goto(file.as_uri())
        return page

    yield show
    context.close()
    assert heard == []
