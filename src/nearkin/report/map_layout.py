r"""Positions of tasks in the plane whose distances approximate the measured ones.

Notation: K tasks, δ dissimilarities `[K, K]`, X positions `[K, 2]`, w weights (1 where a pair is known, else 0).
Classical scaling gives the initial positions, then SMACOF minimises the stress
$\sum_{a<b} w_{ab} (\delta_{ab} - \|x_a - x_b\|)^2$:
every step is $X \leftarrow V^+ B(X) X$ and never increases it.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, shortest_path

from nearkin.core.errors import MismatchError, require
from nearkin.core.rng import Streams
from nearkin.distance.matrix import DistanceMatrix

Array = NDArray[np.float64]

_STEPS = 1000
_SETTLED = 1e-10
_ROUGH_STEPS = 60
_CLEARLY = 1e-3
_GAP = 0.6


@dataclass(frozen=True, eq=False)
class MapLayout:
    r"""Positions of the tasks of a map.

    Attributes:
        points: `[K, 2]`, centred, the longer axis first.
        stress: Kruskal's stress 1, $\sqrt{\sum w (\delta - d)^2 / \sum w \delta^2}$; 0 if all distances are exact.
        shift: number subtracted from every dissimilarity because a measure has negative values, else 0.
    """

    points: Array
    stress: float
    shift: float = 0.0


def symmetric(matrix: DistanceMatrix) -> tuple[Array, float]:
    """Mean of both directions `[K, K]` (one of them if the other is unknown), and the shift that makes it >= 0.

    >>> import torch
    >>> trials = torch.tensor([[[0.0, 0.2, torch.nan], [0.4, 0.0, 0.3], [torch.nan, torch.nan, 0.0]]]).double()
    >>> symmetric(DistanceMatrix(("a", "b", "c"), "frechet", trials))[0].round(2).tolist()
    [[0.0, 0.3, nan], [0.3, 0.0, 0.3], [nan, 0.3, 0.0]]
    """
    mean = matrix.mean.double().numpy().copy()
    mean[~np.isfinite(mean)] = np.nan
    both = np.where(np.isnan(mean), mean.T, np.where(np.isnan(mean.T), mean, (mean + mean.T) / 2))
    np.fill_diagonal(both, 0.0)
    off = both[~np.eye(len(both), dtype=bool)]
    lowest = float(np.nanmin(off)) if np.isfinite(off).any() else 0.0
    shift = min(0.0, lowest)
    both = both - shift
    np.fill_diagonal(both, 0.0)
    return both, shift


def layout(matrix: DistanceMatrix, *, seed: int = 0, starts: int = 4) -> MapLayout:
    """Positions from the symmetrised mean; pairs that could not be compared are left out."""
    dissimilarity, shift = symmetric(matrix)
    return replace(planar(dissimilarity, seed=seed, starts=starts), shift=shift)


def planar(dissimilarity: Array, *, seed: int = 0, starts: int = 4) -> MapLayout:
    """Positions of least stress for δ `[K, K]`, symmetric, NaN where unknown: the best of several starts.

    >>> square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=float)
    >>> placed = planar(pairwise(square))
    >>> bool(np.allclose(pairwise(placed.points), pairwise(square))), placed.stress < 1e-9
    (True, True)
    """
    require(
        dissimilarity.ndim == 2 and dissimilarity.shape[0] == dissimilarity.shape[1],
        f"dissimilarities have shape {dissimilarity.shape}, expected a square matrix; give one row for each column",
        MismatchError,
    )
    size = len(dissimilarity)
    weights = np.isfinite(dissimilarity) & ~np.eye(size, dtype=bool)
    known = np.where(weights, dissimilarity, 0.0)
    require(
        bool((known >= 0).all()), "got negative dissimilarities, expected all >= 0; shift them first", MismatchError
    )
    num_components, members = connected_components(weights, directed=False)
    points, edge = np.zeros((size, 2)), 0.0
    for component in range(num_components):
        inside = np.flatnonzero(members == component)
        block = np.ix_(inside, inside)
        placed = _upright(_connected(known[block], weights[block], Streams(seed), starts))
        points[inside] = placed + np.array([edge - placed[:, 0].min(), 0.0])
        edge = points[inside, 0].max() + _GAP * max(known.max(), 1e-3)
    errors, scale = (weights * (known - pairwise(points)) ** 2).sum(), (weights * known**2).sum()
    return MapLayout(points - points.mean(0), float(np.sqrt(errors / scale)) if scale else 0.0)


def pairwise(points: Array) -> Array:
    """Euclidean distances `[K, K]` of points `[K, D]`."""
    squares = sum((column[:, None] - column[None]) ** 2 for column in points.T)
    return np.sqrt(np.asarray(squares, dtype=np.float64))


def classical(dissimilarity: Array) -> Array:
    r"""Torgerson's scaling: the leading two eigenvectors of $-\frac12 H \delta^2 H$ times the roots of their values."""
    size = len(dissimilarity)
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * centre @ dissimilarity**2 @ centre)
    leading = np.argsort(-values, kind="stable")[:2]
    points = np.zeros((size, 2))
    points[:, : len(leading)] = vectors[:, leading] * np.sqrt(values[leading].clip(min=0))
    return points


def _connected(known: Array, weights: NDArray[np.bool_], rng: Streams, starts: int) -> Array:
    """Positions of tasks that known pairs connect: short descents from several starts, the best one continued."""
    laplacian = np.diag(weights.sum(1)) - weights.astype(float)
    inverse = np.linalg.pinv(laplacian, rcond=1e-10, hermitian=True)
    best, least = _majorised(classical(_completed(known, weights)), known, weights, inverse, _ROUGH_STEPS)
    for start in range(starts if len(known) > 3 else 0):
        drawn = rng.numpy("layout", start).normal(size=(len(known), 2)) * known.max()
        other, stress = _majorised(drawn, known, weights, inverse, _ROUGH_STEPS)
        if stress < least * (1 - _CLEARLY):
            best, least = other, stress
    return _majorised(best, known, weights, inverse, _STEPS)[0]


def _completed(known: Array, weights: NDArray[np.bool_]) -> Array:
    """Unknown pairs get the length of the shortest path over known ones."""
    lengths = shortest_path(np.where(weights, np.maximum(known, 1e-12), 0.0), directed=False)
    return np.asarray(np.where(weights, known, lengths))


def _majorised(
    points: Array, known: Array, weights: NDArray[np.bool_], inverse: Array, steps: int
) -> tuple[Array, float]:
    """Points after at most `steps` steps of SMACOF, and their raw stress."""
    stress = np.inf
    for _ in range(steps):
        distance = pairwise(points)
        before, stress = stress, float((weights * (known - distance) ** 2).sum())
        if before - stress <= _SETTLED * stress:
            break
        ratio = np.divide(known, distance, out=np.zeros_like(distance), where=distance > 0)
        points = inverse @ (ratio.sum(1)[:, None] * points - ratio @ points)
    return points, stress


def _upright(points: Array) -> Array:
    """Points centred and turned to the principal axes; the farthest point fixes the signs, so the result is unique."""
    centred = points - points.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2]
    turned = centred @ (axes.T if axes.shape == (2, 2) else np.eye(2))
    for axis in range(2):
        extreme = turned[np.argmax(np.abs(turned[:, axis]).round(9)), axis]
        turned[:, axis] *= -1.0 if extreme < 0 else 1.0
    return np.asarray(turned)
