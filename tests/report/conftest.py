"""Task spaces to draw: points in three dimensions, distances between them, an asymmetry and noise over trials."""

import math
from collections.abc import Callable

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
