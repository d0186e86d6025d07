r"""The evidence as a function of one number, in the eigenbasis of the kernel.

With $K = Q Λ Q^⊤$ and $A = σ^2 (ρ K + I)$, where ρ = s/σ², each ρ costs a sum over eigenvalues. The constants are
those of generalised least squares, and σ² has the closed form $\hat σ^2 = r^⊤ (ρK + I)^{-1} r / n$. For several tasks
these sums are added. Known noise V whitens kernel and targets first; then σ² = 1 and ρ is the scale.

Notation: as in `targets`; H `[R, Q]` the constants, Z = (H, y) `[F, R, Q + T]`, E eigenvalues above zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearkin.transfer.evidence import fitted_constants

LOWEST, HIGHEST = -6.0, 8.0  # range of log₁₀ ρ, in units of the inverse mean diagonal
DECADE = 4  # grid points for each power of ten
SMALL = 1e-13  # eigenvalues below this fraction of the largest are rounding errors


@dataclass(frozen=True, eq=False)
class Spectrum:
    r"""A task in the eigenbasis of its kernel.

    Attributes:
        values: Λ `[F, E]`.
        seen: $Q^⊤ Z$ `[F, E, Q + T]`.
        rest: $Z^⊤ Z$ of the part of Z outside the eigenvectors `[F, Q + T, Q + T]`.
        rows: R.
        num_constants: Q.
        log_noise: $\sum \log V$ over F, times T; 0 if no noise is known.
    """

    values: Tensor
    seen: Tensor
    rest: Tensor
    rows: int
    num_constants: int
    log_noise: float = 0.0

    @property
    def num_columns(self) -> int:
        """T, the number of target columns."""
        return self.seen.shape[2] - self.num_constants

    @property
    def num_numbers(self) -> int:
        """Number of targets: F R T."""
        return self.seen.shape[0] * self.rows * self.num_columns

    @property
    def level(self) -> float:
        """The mean diagonal of the kernel."""
        return float(self.values.sum(1).mean()) / self.rows

    @property
    def num_bytes(self) -> int:
        """Size in memory: about 24 N for a task of N points and one target."""
        return self.values.nbytes + self.seen.nbytes + self.rest.nbytes

    def under(self, constants: bool, columns: slice) -> "Spectrum":
        """The same kernel with or without its constants, and with some of its T target columns."""
        size = self.num_constants
        chosen = [*range(size if constants else 0), *range(size, self.seen.shape[2])[columns]]
        kept = size if constants else 0
        share = (len(chosen) - kept) / self.num_columns
        rest = self.rest[:, chosen][:, :, chosen]
        return Spectrum(self.values, self.seen[:, :, chosen], rest, self.rows, kept, self.log_noise * share)

    @property
    def num_free(self) -> int:
        """Number of targets minus fitted constants: F (R - Q) T."""
        return self.seen.shape[0] * (self.rows - self.num_constants) * self.num_columns

    def terms(self, ratio: float, restricted: bool = False) -> tuple[float, float]:
        r"""$r^⊤ (ρK + I)^{-1} r$ and $\log |ρK + I|$, summed over columns.

        With `restricted` the constants are integrated out under a flat prior instead of fitted, which adds
        $\log |H^⊤ (ρK + I)^{-1} H|$ to the second term and leaves `num_free` numbers.
        """
        damped = 1 + ratio * self.values
        gram = self.seen.mT @ (self.seen / damped[:, :, None]) + self.rest
        size = self.num_constants
        fit = fitted_constants(gram, size)[1].sum()
        determinant = damped.log().sum()
        if restricted and size:
            determinant = determinant + torch.linalg.slogdet(gram[:, :size, :size]).logabsdet.sum()
        return float(fit), self.num_columns * float(determinant)


def kernel_spectrum(gram: Tensor, basis: Tensor, targets: Tensor, noise: Tensor | None = None) -> Spectrum:
    """The spectrum of a kernel `[R, R]`, with constants `[R, Q]`, targets `[F, R, T]` and known noise `[F, R]`."""
    z, log_noise = _values(basis, targets, noise)
    if noise is not None:
        roots = noise.sqrt()
        gram = gram / (roots[:, :, None] * roots[:, None, :])
    values, vectors = torch.linalg.eigh(gram if gram.dim() == 3 else gram[None])
    rest = torch.zeros(len(z), z.shape[2], z.shape[2]).to(z)
    return Spectrum(values.clamp_min(0), vectors.mT @ z, rest, gram.shape[-1], basis.shape[1], log_noise)


def feature_spectrum(features: Tensor, basis: Tensor, targets: Tensor, noise: Tensor | None = None) -> Spectrum:
    """The same from features `[R, D]` with D < R."""
    z, log_noise = _values(basis, targets, noise)
    if noise is not None:
        features = features / noise.sqrt()[:, :, None]
    vectors, singular, _ = torch.linalg.svd(features if features.dim() == 3 else features[None], full_matrices=False)
    usable = singular > math.sqrt(SMALL) * singular[:, :1]
    seen = (vectors * usable[:, None, :]).mT @ z
    rest = z.mT @ z - seen.mT @ seen
    return Spectrum(singular.square() * usable, seen, rest, features.shape[-2], basis.shape[1], log_noise)


def _values(basis: Tensor, targets: Tensor, noise: Tensor | None) -> tuple[Tensor, float]:
    """Z `[F, R, Q + T]`, divided by the roots of the known noise, and the summed log noise."""
    z = torch.cat([basis.expand(len(targets), -1, -1), targets], 2)
    if noise is None:
        return z, 0.0
    return z / noise.sqrt()[:, :, None], targets.shape[2] * float(noise.log().sum())


def merge_spectra(tasks: Sequence[Spectrum]) -> list[Spectrum]:
    """The same tasks, with those of equal shape in one spectrum, which is faster to evaluate."""
    shapes: dict[tuple[int, ...], list[Spectrum]] = {}
    for task in tasks:
        shapes.setdefault((*task.seen.shape[1:], task.rows, task.num_constants), []).append(task)
    return [
        Spectrum(
            torch.cat([task.values for task in group]),
            torch.cat([task.seen for task in group]),
            torch.cat([task.rest for task in group]),
            group[0].rows,
            group[0].num_constants,
            sum(task.log_noise for task in group),
        )
        for group in shapes.values()
    ]


def mean_level(tasks: Sequence[Spectrum]) -> float:
    """The mean diagonal of all kernels; 1 if it is 0."""
    return sum(len(task.values) * task.level for task in tasks) / sum(len(task.values) for task in tasks) or 1.0


def log_evidence(tasks: Sequence[Spectrum], scale: float, noise: float) -> float:
    """The summed log evidence of tasks at the given hyper-parameters.

    >>> one = kernel_spectrum(torch.ones(1, 1).double(), torch.zeros(1, 0).double(), torch.ones(1, 1, 1).double())
    >>> round(log_evidence([one], scale=1.0, noise=1.0), 6)  # of N(1; 0, 2)
    -1.515512
    """
    terms = [task.terms(scale / noise) for task in tasks]
    count = sum(task.num_numbers for task in tasks)
    total = sum(fit / noise + determinant for fit, determinant in terms) + count * math.log(2 * math.pi * noise)
    return -0.5 * (total + sum(task.log_noise for task in tasks))


@dataclass(frozen=True)
class EvidenceMaximum:
    """Scale and noise of the largest evidence; they may lie at a bound of the search range, or be default values."""

    scale: float
    noise: float
    log_evidence: float
    at_bound: bool = False
    is_default: bool = False


def maximize_evidence(tasks: Sequence[Spectrum], known: bool = False, floor: float = 10**-HIGHEST) -> EvidenceMaximum:
    """The largest evidence over scale and noise, or over the scale alone if noise is known.

    A grid search finds the best of several local maxima, a bounded line search refines it.

    Args:
        tasks: one or more tasks with the same scale and noise.
        known: whether they are whitened by known noise.
        floor: the smallest noise, as a fraction of the function's prior variance; ignored if noise is known.
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
    refined = minimize_scalar(
        loss, bounds=(max(low, middle - step), min(high, middle + step)), method="bounded", options={"xatol": 1e-6}
    )
    decades = float(refined.x) if refined.fun < values[top] else middle
    noise = noise_at(decades)
    at_bound = decades < low + 1e-3 or decades > high - 1e-3
    return EvidenceMaximum(noise * 10**decades / level, noise, -loss(decades), at_bound)
