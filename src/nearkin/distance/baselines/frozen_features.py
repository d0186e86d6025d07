r"""Scores of frozen features in closed form: alignment, leave-one-out ridge, gradient flow, kernel evidence.

Notation: N samples, D features F, P columns of targets Y. Targets are real `[N, P]`, or labels `[N]` of whole numbers,
which stand for the indicators of the classes present; two classes or more.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.distance.baselines.feature_table import Features, FeatureTable
from nearkin.distance.baselines.gaussian_evidence import largest_evidence, of_kernel
from nearkin.distance.baselines.inputs import centred, columns, rows

RIDGES = (*torch.logspace(-10, 2, 49, dtype=torch.float64).tolist(), torch.inf)  # of the largest squared singular value
TIMES = (10.0, 100.0, 1000.0)
ASYMMETRY = 1e-4  # of a kernel, beside its largest entry; single precision stays well below


def cka(features_a: Features, features_b: Features, *, adjusted: bool = False) -> float:
    r"""Linear centred kernel alignment of two sets of features of the same samples; symmetric, larger is more similar.

    $$\frac{\|A^\top B\|^2}{\|A^\top A\|\,\|B^\top B\|}, \quad A, B \text{ centred}$$

    (Kornblith, Norouzi, Lee, Hinton 2019, "Similarity of Neural Network Representations Revisited".) In [0, 1];
    invariant to rotations and to scale; 0 if one side is constant. With labels as B: source -> target.

    Noise has an alignment that grows with D and E. Adjusted for chance, each $\|X^\top Y\|^2$ is reduced by its mean
    over all permutations of the samples of one side, $\|X\|^2 \|Y\|^2 / (N - 1)$; then noise has 0 on average.

    Args:
        features_a: `[N, D]`.
        features_b: `[N, E]`, or labels `[N]`.
        adjusted: whether to adjust for chance.

    >>> a = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> round(cka(a, 3 * a[:, [1, 0]] + 5), 9), cka(a, torch.ones(3, 2))
    (1.0, 0.0)
    """
    a = FeatureTable.of(features_a)
    b = features_b if isinstance(features_b, FeatureTable) else FeatureTable.of(columns(features_b, len(a)))
    joint, one, two = _product_square(a, b), float(a.gram.square().sum()), float(b.gram.square().sum())
    if adjusted:
        trace_a, trace_b = (float(table.gram.diagonal().sum()) for table in (a, b))
        chances = (trace_a * trace_b, trace_a**2, trace_b**2)
        joint, one, two = (
            _above(value, chance / max(len(a) - 1, 1)) for value, chance in zip((joint, one, two), chances, strict=True)
        )
        return joint / math.sqrt(one * two) if min(one, two) > 0 else 0.0
    size = math.sqrt(one * two)
    return min(1.0, joint / size) if size > 0 else 0.0


def _above(value: float, chance: float) -> float:
    """A value less its mean by chance; 0 if the rest is a rounding error."""
    rest = value - chance
    return rest if abs(rest) > 1e-9 * chance else 0.0


def _product_square(a: FeatureTable, b: FeatureTable) -> float:
    r"""$\|A^\top B\|^2$, from the Gram matrices that are there."""
    if a.wide and b.wide:
        return max(0.0, float((a.gram * b.gram).sum()))
    if a.wide or b.wide:
        wide, narrow = (a, b) if a.wide else (b, a)
        return max(0.0, float((narrow.centred * (wide.gram @ narrow.centred)).sum()))
    return float((a.centred.T @ b.centred).square().sum())


def ridge_loo(features: Tensor, targets: Tensor) -> float:
    r"""Leave-one-out squared error of ridge regression, ÷ the targets' variance; source -> target, smaller is better.

    With a free intercept, $s_i = \sigma_i^2/(\sigma_i^2 + \lambda)$ and U, σ of the centred features,

    $$\min_\lambda \sum_n \frac{\|y_n - \hat y_n\|^2}{(1 - h_n)^2} \Big/ \sum_n \|y_n - \bar y\|^2, \quad
    \hat Y = \bar y + U s U^\top Y, \quad h_n = \tfrac1N + \sum_i u_{ni}^2 s_i$$

    (Allen 1974, "The Relationship between Variable Selection and Data Augmentation and a Method for Prediction").
    λ is the best of a list that ends in ∞, so the value never exceeds that of the mean alone, $(N/(N-1))^2$.

    Args:
        features: `[N, D]`.
        targets: `[N, P]`, or labels `[N]`; not constant.

    >>> f = torch.arange(6.0)[:, None]
    >>> ridge_loo(f, 2 * f + 1) < 1e-15, round(ridge_loo(torch.ones(6, 1), f), 9) == 1.44
    (True, True)
    """
    table = rows(features)
    y = _varied(centred(columns(targets, len(table))))
    basis, sigma, _ = torch.linalg.svd(centred(table), full_matrices=False)
    rounding = max(table.shape) * torch.finfo(torch.float64).eps * float(table.norm())  # includes that of the means
    rank = min(int((sigma > rounding).sum()), len(y) - 1)
    basis, share = basis[:, :rank], (sigma[:rank] / sigma[0]).square()
    along = basis.T @ y
    if rank == len(y) - 1:  # the features span all centred targets; residuals are rounding errors
        off, free = torch.zeros_like(y), torch.zeros(len(y), 1, dtype=torch.float64)
    else:
        off, free = y - basis @ along, (1 - 1 / len(y) - basis.square().sum(1, keepdim=True)).clamp_min(0)
    errors = []
    for ridge in RIDGES:
        lost = 1 / (1 + share / ridge)  # 1 − s, without cancellation
        residuals = (off + basis @ (lost[:, None] * along)) / (free + basis.square() @ lost[:, None])
        errors.append(float(residuals.square().sum()))
    return min(errors) / float(y.square().sum())


def gradient_flow(features: Tensor, targets: Tensor, times: float | Sequence[float] = TIMES) -> float:
    r"""Mean squared loss along gradient flow on frozen features, ÷ its start; source -> target, smaller is better.

    The flow of $\frac{1}{2N}\|F w - Y\|^2$ from $w = 0$ leaves $\|e^{-t F F^\top/N} Y\|^2$; with λ, z the eigenvalues
    of $F F^\top$ and Y in its eigenbasis, the area under it up to time T, ÷ T and the loss at 0, is

    $$\sum_i \frac{\|z_i\|^2}{\|Y\|^2} \frac{1 - e^{-r_i}}{r_i}, \quad r_i = \frac{2 \lambda_i T}{N}$$

    (the curve of linear training: Saxe, McClelland, Ganguli 2014, "Exact solutions to the nonlinear dynamics of
    learning in deep linear neural networks"). In (0, 1], the mean over times. Features are not scaled, since their
    scale sets the speed; targets are centred. Time is learning rate times steps.

    Args:
        features: `[N, D]`.
        targets: `[N, P]`, or labels `[N]`; not constant.
        times: one T or several, > 0.

    >>> import math
    >>> f = torch.tensor([[1.0], [-1.0]])
    >>> round(6 * gradient_flow(f, f, 3.0) + math.exp(-6), 12), gradient_flow(torch.zeros(2, 1), f)
    (1.0, 1.0)
    """
    ends = torch.as_tensor(times, dtype=torch.float64).flatten()
    require(len(ends) >= 1 and float(ends.min()) > 0, f"times must be one number > 0 or more, got {times}")
    table = rows(features)
    y = _varied(centred(columns(targets, len(table))))
    wide = table.shape[1] >= len(table)
    values, vectors = torch.linalg.eigh(table @ table.T if wide else table.T @ table)
    kept = values > len(values) * torch.finfo(torch.float64).eps * values[-1].clamp_min(0)
    values, along = values[kept], vectors[:, kept].T @ (y if wide else table.T @ y)
    squares = along.square().sum(1) / (1 if wide else values) / y.square().sum()
    rate = 2 * ends[:, None] * values / len(table)
    return 1 - float(((1 + torch.expm1(-rate) / rate) @ squares).mean())


def kernel_evidence(kernel: Tensor, targets: Tensor) -> float:
    r"""Log evidence ÷ (N P) of a Gaussian process with a given kernel; source -> target, larger is better.

    $$\frac{1}{NP} \max_{s, \sigma^2} \sum_p \log \mathcal N(y_p \mid 0, s K + \sigma^2 I)$$

    (Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", eq. 5.8.) One signal s and one noise σ²
    for all columns. With $K = F F^\top$ and one column it is LogME. Targets are neither centred nor scaled.

    Args:
        kernel: `[N, N]`, symmetric, without negative eigenvalues except for rounding; for example a tangent kernel.
        targets: `[N, P]`, or labels `[N]`.

    >>> import math
    >>> y = torch.tensor([[1.0], [-1.0]])
    >>> round(kernel_evidence(torch.eye(2), y) + 0.5 * math.log(2 * math.pi * math.e), 12)  # unit variance is best
    0.0
    """
    matrix = rows(kernel, "kernel entries")
    require(
        matrix.shape[0] == matrix.shape[1],
        f"the kernel has shape {tuple(matrix.shape)}, expected [N, N]; compute it for one output at a time",
        MismatchError,
    )
    require(
        float((matrix - matrix.T).abs().max()) <= ASYMMETRY * float(matrix.abs().max()),
        "the kernel is not symmetric; give the kernel of one set of samples with itself",
        MismatchError,
    )
    reduced = of_kernel((matrix + matrix.T) / 2, columns(targets, len(matrix)))
    return float(largest_evidence(reduced, shared=True))


def _varied(y: Tensor) -> Tensor:
    require(bool(y.any()), "the targets are constant, expected two values or more; choose other targets", DataError)
    return y
