r"""The evidence as a function of one number, in the eigenbasis of the kernel.

With $K = Q Λ Q^⊤$ and $A = σ^2 (ρ K + I)$, where ρ = s/σ², each ρ costs a sum over eigenvalues, the constants are
those of generalised least squares, and σ² is had in closed form: $\hat σ^2 = r^⊤ (ρK + I)^{-1} r / n$. Several tasks
share ρ and σ² by adding up. Known noise V whitens kernel and targets first; then σ² = 1 and ρ is the scale itself.

Notation: as in `targets`; H `[R, Q]` the constants, Z = (H, y) `[F, R, Q + T]`, E eigenvalues above zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

LOWEST, HIGHEST = -6.0, 8.0  # decades of ρ in units of the inverse mean diagonal
DECADE = 4  # steps of the grid
SMALL = 1e-13  # eigenvalues below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class Spectrum:
    r"""A task in the eigenbasis of its kernel.

    Attributes:
        values: Λ `[F, E]`.
        seen: $Q^⊤ Z$ `[F, E, Q + T]`.
        rest: $Z^⊤ Z$ of what lies outside the eigenvectors `[F, Q + T, Q + T]`.
        rows: R.
        num_constants: Q.
        log_noise: $\sum \log V$ over F, times T; 0 where no noise is known.
    """

    values: Tensor
    seen: Tensor
    rest: Tensor
    rows: int
    num_constants: int
    log_noise: float = 0.0

    @property
    def num_columns(self) -> int:
        """T."""
        return self.seen.shape[2] - self.num_constants

    @property
    def num_numbers(self) -> int:
        """Of targets: F R T."""
        return self.seen.shape[0] * self.rows * self.num_columns

    @property
    def level(self) -> float:
        """The mean diagonal of the kernel."""
        return float(self.values.sum(1).mean()) / self.rows

    @property
    def num_bytes(self) -> int:
        """What keeping it takes: for a task of N points and one target about 24 N."""
        return sum(part.numel() * part.element_size() for part in (self.values, self.seen, self.rest))

    def under(self, constants: bool, columns: slice) -> "Spectrum":
        """The same kernel with or without its constants, and with some of its T columns of targets."""
        size = self.num_constants
        chosen = [*range(size if constants else 0), *range(size, self.seen.shape[2])[columns]]
        kept = size if constants else 0
        share = (len(chosen) - kept) / self.num_columns
        rest = self.rest[:, chosen][:, :, chosen]
        return Spectrum(self.values, self.seen[:, :, chosen], rest, self.rows, kept, self.log_noise * share)

    @property
    def num_free(self) -> int:
        """Numbers of targets less constants that they decide: F (R - Q) T."""
        return self.seen.shape[0] * (self.rows - self.num_constants) * self.num_columns

    def terms(self, ratio: float, restricted: bool = False) -> tuple[float, float]:
        r"""$r^⊤ (ρK + I)^{-1} r$ and $\log |ρK + I|$, summed over columns.

        With `restricted` the constants are integrated out under a flat prior and not fitted, which adds
        $\log |H^⊤ (ρK + I)^{-1} H|$ to the latter, and leaves `num_free` numbers.
        """
        damped = 1 + ratio * self.values
        gram = self.seen.mT @ (self.seen / damped[:, :, None]) + self.rest
        size = self.num_constants
        hh, hy, yy = gram[:, :size, :size], gram[:, :size, size:], gram[:, size:, size:]
        fit = (yy - hy.mT @ torch.linalg.solve(hh, hy)).diagonal(dim1=1, dim2=2).clamp_min(0).sum()
        determinant = damped.log().sum()
        if restricted and size:
            determinant = determinant + torch.linalg.slogdet(hh).logabsdet.sum()
        return float(fit), self.num_columns * float(determinant)


def of_kernel(gram: Tensor, basis: Tensor, targets: Tensor, noise: Tensor | None = None) -> Spectrum:
    """The spectrum of a kernel `[R, R]`, with constants `[R, Q]`, targets `[F, R, T]` and known noise `[F, R]`."""
    z = torch.cat([basis.expand(len(targets), -1, -1), targets], 2)
    if noise is not None:
        roots = noise.sqrt()
        gram, z = gram / (roots[:, :, None] * roots[:, None, :]), z / roots[:, :, None]
    values, vectors = torch.linalg.eigh(gram if gram.dim() == 3 else gram[None])
    seen = vectors.mT @ z
    return Spectrum(
        values.clamp_min(0),
        seen,
        torch.zeros(len(z), z.shape[2], z.shape[2]).to(z),
        gram.shape[-1],
        basis.shape[1],
        0.0 if noise is None else targets.shape[2] * float(noise.log().sum()),
    )


def of_features(features: Tensor, basis: Tensor, targets: Tensor, noise: Tensor | None = None) -> Spectrum:
    """The same from features `[R, D]`, fewer than rows."""
    z = torch.cat([basis.expand(len(targets), -1, -1), targets], 2)
    if noise is not None:
        roots = noise.sqrt()[:, :, None]
        features, z = features / roots, z / roots
    vectors, singular, _ = torch.linalg.svd(features if features.dim() == 3 else features[None], full_matrices=False)
    kept = singular > math.sqrt(SMALL) * singular[:, :1]
    seen = (vectors * kept[:, None, :]).mT @ z
    return Spectrum(
        singular.square() * kept,
        seen,
        z.mT @ z - seen.mT @ seen,
        features.shape[-2],
        basis.shape[1],
        0.0 if noise is None else targets.shape[2] * float(noise.log().sum()),
    )


def merged(tasks: Sequence[Spectrum]) -> list[Spectrum]:
    """The same tasks, those of one shape side by side in one spectrum, where their sums take one step and not many."""
    shapes: dict[tuple[int, ...], list[Spectrum]] = {}
    for task in tasks:
        shapes.setdefault((*task.seen.shape[1:], task.rows, task.num_constants), []).append(task)
    return [
        some[0]
        if len(some) == 1
        else Spectrum(
            torch.cat([one.values for one in some]),
            torch.cat([one.seen for one in some]),
            torch.cat([one.rest for one in some]),
            some[0].rows,
            some[0].num_constants,
            sum(one.log_noise for one in some),
        )
        for some in shapes.values()
    ]


def mean_level(tasks: Sequence[Spectrum]) -> float:
    """The mean diagonal of all kernels; 1 where it is 0."""
    return sum(len(task.values) * task.level for task in tasks) / sum(len(task.values) for task in tasks) or 1.0


def log_evidence(tasks: Sequence[Spectrum], scale: float, noise: float) -> float:
    """The summed log evidence of some tasks at given hyper-parameters.

    >>> one = of_kernel(torch.ones(1, 1).double(), torch.zeros(1, 0).double(), torch.ones(1, 1, 1).double())
    >>> round(log_evidence([one], scale=1.0, noise=1.0), 6)  # of N(1; 0, 2)
    -1.515512
    """
    found = [task.terms(scale / noise) for task in tasks]
    count = sum(task.num_numbers for task in tasks)
    total = sum(fit / noise + determinant for fit, determinant in found) + count * math.log(2 * math.pi * noise)
    return -0.5 * (total + sum(task.log_noise for task in tasks))


@dataclass(frozen=True)
class Best:
    """Where the evidence is largest; at the bound of what is looked at, or guessed where there is none."""

    scale: float
    noise: float
    log_evidence: float
    at_bound: bool = False
    guessed: bool = False


def best(tasks: Sequence[Spectrum], known: bool = False, floor: float = 10**-HIGHEST) -> Best:
    """The largest evidence over scale and noise, or over the scale alone where noise is known.

    A grid finds the highest of several hills, a bounded line search its top.

    Args:
        tasks: one or more, which share both.
        known: whether they are whitened by known noise.
        floor: the least noise, as a share of the function's prior variance; not where noise is known.
    """
    count = sum(task.num_numbers for task in tasks)
    level = mean_level(tasks)

    def noise_at(decades: float) -> float:
        ratio = 10**decades / level
        return 1.0 if known else max(sum(task.terms(ratio)[0] for task in tasks) / count, 1e-300)

    def loss(decades: float) -> float:
        noise = noise_at(decades)
        return -log_evidence(tasks, noise * 10**decades / level, noise)

    low, high = LOWEST, HIGHEST if known else min(HIGHEST, -math.log10(floor))
    steps = math.ceil((high - low) * DECADE)
    step = (high - low) / steps
    values = [loss(low + number * step) for number in range(steps + 1)]
    top = min(range(len(values)), key=values.__getitem__)
    middle = low + top * step
    found = minimize_scalar(
        loss, bounds=(max(low, middle - step), min(high, middle + step)), method="bounded", options={"xatol": 1e-6}
    )
    decades = float(found.x) if found.fun < values[top] else middle
    noise = noise_at(decades)
    at_bound = decades < low + 1e-3 or decades > high - 1e-3
    return Best(noise * 10**decades / level, noise, -loss(decades), at_bound)
