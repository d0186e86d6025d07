r"""H-score: share of the variance of features that lies between classes.

Notation: N samples, D features, C classes, n_c samples of class c.
"""

import numpy as np
import torch
from torch import Tensor

from nearkin.core.lazy import Lazy
from nearkin.distance.baselines.feature_table import Features, FeatureTable
from nearkin.distance.baselines.inputs import classes, one_hot, several

lapack = Lazy("scipy.linalg.lapack")

LEAST_SHRINKAGE = 1e-6  # below it the shrunk covariance may be singular
MOST_SHRINKAGE = 1 - 1e-6  # of a score that is adjusted for chance, which has a limit; at 1 it would be 0 / 0
SMALLEST_NOISE = 1e-7  # relative; with less in the features, squares would lose digits that count


def hscore(features: Features, labels: Tensor, *, shrinkage: bool = False, adjusted: bool = False) -> float:
    r"""The H-score of features for labels; source -> target, larger is better.

    $$H = \mathrm{tr}\left(\mathrm{cov}(f)^+\,\mathrm{cov}(\mathbb E[f \mid y])\right)$$

    (Bao, Li, Huang, Zhang, Zheng, Zamir, Guibas 2019, "An Information-Theoretic Approach to Transferability in Task
    Transfer Learning".) Between 0 and min(D, C − 1); with as many features as samples it is always
    C − 1. With shrinkage (Ibrahim, Ponomareva, Mazumder 2022, "Newer is not always better") it differs there too:

    $$H_\alpha = \mathrm{tr}\left(\Sigma_\alpha^{-1} (1 - \alpha)\,\mathrm{cov}(\mathbb E[f \mid y])\right), \quad
    \Sigma_\alpha = (1 - \alpha)\,\mathrm{cov}(f) + \alpha \frac{\mathrm{tr}\,\mathrm{cov}(f)}{D} I$$

    with α of Ledoit and Wolf (2004). Features that are all constant have score 0.

    Noise has a score that grows with D, so scores of networks of different widths cannot be compared. Adjusted for
    chance, as the Rand index is (Hubert and Arabie 1985), noise has 0 on average and perfect features have 1:

    $$\frac{H - \mathbb E H}{M - \mathbb E H}, \quad \mathbb E H = \frac{C - 1}{N - 1} \sum_k w_k, \quad
    M = \min\left(C - 1, \sum_k w_k\right)$$

    with the expectation over all permutations of the labels. $w_k$ is 1 for every direction of the features, with
    shrinkage the share of its variance in $\Sigma_\alpha$.

    Args:
        features: `[N, D]`.
        labels: classes `[N]`, two or more.
        shrinkage: whether to shrink the covariance.
        adjusted: whether to adjust for chance.

    >>> f, y = torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([0, 0, 1, 1])
    >>> round(hscore(f, y), 9), round(hscore(torch.tensor([[0.0], [1.0], [0.0], [1.0]]), y), 9)
    (1.0, 0.0)
    """
    table = FeatureTable.of(features)
    hot = one_hot(several(classes(labels, len(table))))
    alpha = min(ledoit_wolf(table), MOST_SHRINKAGE if adjusted else 1.0) if shrinkage else 0.0
    if alpha > LEAST_SHRINKAGE:
        score, directions = _shrunk(table, hot, alpha)
    else:
        score, directions = _spectral(table.centred, hot, alpha, max(table.values.shape) * table.noise)
    if not adjusted:
        return score
    free = hot.shape[1] - 1
    chance, most = directions * free / (len(table) - 1), min(float(free), directions)
    return (score - chance) / (most - chance) if most - chance > 1e-9 * most else 0.0


def _shrunk(table: FeatureTable, hot: Tensor, alpha: float) -> tuple[float, float]:
    """H and the sum of w, by a Cholesky factorisation of the Gram matrix; the covariance is shrunk."""
    count, width = table.values.shape
    level = alpha * float(_squares(table).sum()) / count / width  # of the identity in the shrunk covariance
    sums = hot if table.wide else table.centred.T @ hot
    shrunk = table.gram * ((1 - alpha) / count)
    shrunk.diagonal().add_(level)
    factor = torch.linalg.cholesky(shrunk)
    solved = torch.cholesky_solve(sums, factor)
    inverse = float(np.square(lapack.dtrtri(factor.T.numpy())[0]).sum())  # its trace, faster than `cholesky_inverse`
    each = (sums * (table.gram @ solved if table.wide else solved)).sum(0) * (1 - alpha) / count
    return float((each / hot.sum(0)).sum()), len(shrunk) - level * inverse


def _squares(table: FeatureTable) -> Tensor:
    """Squared lengths `[N]` of the centred samples."""
    return table.gram.diagonal() if table.wide else table.centred.square().sum(1)


def _spectral(table: Tensor, hot: Tensor, alpha: float, noise: float) -> tuple[float, float]:
    """H and the sum of w, by the spectrum of the features; also without shrinkage."""
    basis, sigma = _spectrum(table, exact=noise < SMALLEST_NOISE)
    kept = sigma > noise * sigma.max()
    variance = sigma[kept].square() / len(table)
    between = ((basis[:, kept].T @ hot).square() / hot.sum(0)).sum(1)  # class means in units of the deviation
    level = alpha * variance.sum() / table.shape[1]
    share = (1 - alpha) * variance / ((1 - alpha) * variance + level)
    return float((share * between).sum()), float(share.sum())


def _spectrum(table: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Left singular vectors `[N, K]` and singular values `[K]`; if not exact, faster, by the smaller of both products.

    The squares lose half of the digits, which rounding of single precision has lost already.
    """
    if exact:
        basis, sigma, _ = torch.linalg.svd(table, full_matrices=False)
        return basis, sigma
    wide = table.shape[1] > table.shape[0]
    squares, vectors = torch.linalg.eigh(table @ table.T if wide else table.T @ table)
    sigma = squares.clamp_min(0).sqrt()
    return (vectors if wide else table @ vectors / sigma.clamp_min(torch.finfo(sigma.dtype).tiny)), sigma


def ledoit_wolf(features: Features) -> float:
    r"""The weight α in [0, 1] of the identity in the best shrunk covariance of features `[N, D]`.

    $\alpha = \min(1, b^2/d^2)$, $d^2 = \|S - mI\|^2$, $b^2 = \frac{1}{N^2}\sum_n \|x_n x_n^\top - S\|^2$, S the
    covariance, m its mean eigenvalue (Ledoit and Wolf 2004, "A well-conditioned estimator for large-dimensional
    covariance matrices"). It is 0 if the variance is equal in all directions.

    >>> ledoit_wolf(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double())
    0.0
    """
    table = FeatureTable.of(features)
    count, width = table.values.shape
    lengths = _squares(table)
    square = float(table.gram.square().sum()) / count**2  # ‖S‖²
    mean = float(lengths.sum()) / count / width
    away = square - width * mean**2
    spread = (float(lengths.square().sum()) / count - square) / count
    return min(1.0, max(0.0, spread / away)) if away > 1e-14 * square else 0.0
