r"""Distances between data sets, from features of one network on both; no labels are used.

Notation: N samples a, M samples b, D features.
"""

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.distance.baselines.inputs import rows

SAME = 1e-12  # squared distances, relative to the largest squared length, below which samples count as equal


def mmd(features_a: Tensor, features_b: Tensor) -> float:
    r"""Squared maximum mean discrepancy, unbiased; symmetric, smaller is nearer.

    $$\frac{\sum_{n \ne n'} k(a_n, a_{n'})}{N(N-1)} + \frac{\sum_{m \ne m'} k(b_m, b_{m'})}{M(M-1)}
    - \frac{2 \sum_{n, m} k(a_n, b_m)}{NM}, \quad k(x, x') = e^{-\|x - x'\|^2/2h^2}$$

    (Gretton, Borgwardt, Rasch, Schölkopf, Smola 2012, "A Kernel Two-Sample Test".) The bandwidth h is the median of
    the distances above 0 between all samples. At most 2; below 0 by chance if the distributions are equal;
    0 if all samples are equal. Holds all (N + M)² distances in memory.

    Args:
        features_a: `[N, D]`.
        features_b: `[M, D]`.

    >>> a = torch.tensor([[0.0], [0.0]])
    >>> round(mmd(a, a + 1), 6), mmd(a, a)  # 2 − 2 e^(−1/2)
    (0.786939, 0.0)
    """
    a, b = _both(features_a, features_b)
    pooled = torch.cat([a, b])
    pooled = pooled - pooled.mean(0)
    length = pooled.square().sum(1)
    apart = (length[:, None] + length - 2 * pooled @ pooled.T).clamp_min_(0)
    apart[apart <= SAME * length.max()] = 0
    positive = apart[apart > 0]
    if not len(positive):
        return 0.0
    kernel = apart.div_(-2 * float(positive.median())).exp_().fill_diagonal_(0)
    n, m = len(a), len(b)
    within = kernel[:n, :n].sum() / (n * (n - 1)) + kernel[n:, n:].sum() / (m * (m - 1))
    return float(within - 2 * kernel[:n, n:].mean())


def fid(features_a: Tensor, features_b: Tensor) -> float:
    r"""Squared Fréchet distance of Gaussians with the features' means and covariances; symmetric, smaller is nearer.

    $$\|\mu_a - \mu_b\|^2 + \mathrm{tr}\left(\Sigma_a + \Sigma_b
    - 2 (\Sigma_a^{1/2} \Sigma_b \Sigma_a^{1/2})^{1/2}\right)$$

    (Heusel, Ramsauer, Unterthiner, Nessler, Hochreiter 2017, "GANs Trained by a Two Time-Scale Update Rule Converge to
    a Local Nash Equilibrium"; the distance: Dowson, Landau 1982.) With $\Sigma = R^\top R$ of a QR decomposition the
    last trace is the sum of singular values of $R_a R_b^\top$, which works with fewer samples than features too.

    Args:
        features_a: `[N, D]`, two samples or more.
        features_b: `[M, D]`, two samples or more.

    >>> a = torch.tensor([[-1.0], [1.0]])
    >>> round(fid(a, a + 3), 9), round(fid(a, 3 * a), 9)  # the difference of means; of deviations, √2 and 3 √2
    (9.0, 8.0)
    """
    a, b = _both(features_a, features_b)
    means = (a.mean(0) - b.mean(0)).square().sum()
    left, right = (torch.linalg.qr(x - x.mean(0), mode="r").R / (len(x) - 1) ** 0.5 for x in (a, b))
    spreads = left.square().sum() + right.square().sum() - 2 * torch.linalg.svdvals(left @ right.T).sum()
    return float(means + spreads.clamp_min(0))


def _both(features_a: Tensor, features_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = rows(features_a, "first features"), rows(features_b, "second features")
    require(
        a.shape[1] == b.shape[1],
        f"the first features have {a.shape[1]} columns, the second {b.shape[1]}; compute both with one network",
        MismatchError,
    )
    return a, b
