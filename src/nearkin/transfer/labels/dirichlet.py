r"""Classes as Gaussian targets by the Dirichlet transform (Milios et al. 2018), with options chosen by leave-one-out.

A label is an observation of a Dirichlet distribution with concentrations $α_c = α_ε + [c = y]$. These are gamma
variables, which are approximated by log-normal ones: class c has the target and the noise

$$t_c = \log α_c - \tfrac12 σ_c^2, \qquad σ_c^2 = \log(1 + 1/α_c),$$

so every class is a Gaussian process with known noise. All classes share one kernel; its scale s is in units of the
inverse of its mean diagonal. α_ε and s maximise the probability of the training labels, each left out in turn, which
has a closed form; test data is not used. That probability is the mean softmax of sampled scores: the softmax of the
mean hardly depends on the scale, and would not determine the variances.

Notation: N points, C classes, K the kernel `[N, N]`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Progress, Work
from nearkin.core.rng import derived_seed
from nearkin.tasks.split import balanced_index
from nearkin.transfer.cholesky import cholesky, solve_lower
from nearkin.transfer.labels.calibration import class_loss
from nearkin.transfer.labels.probabilities import class_probabilities

ALPHAS = (-1.0, -2.0, -3.0, -4.0)  # grid of log₁₀ α_ε
SCALES = (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # grid of log₁₀ s
USUAL = (-4.0, 2.0)  # both, if no label can be left out
STEP = 0.5  # of the local search
FEW = 256  # largest number of points for the grid
MANY = 512  # largest number of points for the local search
ZERO = "the kernel is zero: no free weight changes any output; free other weights"


@dataclass(frozen=True)
class DirichletChoice:
    """The chosen options.

    Attributes:
        alpha: α_ε.
        scale: factor of the kernel.
        loss: mean negative log probability of left-out labels; None if no label could be left out.
    """

    alpha: float
    scale: float
    loss: float | None


def dirichlet_targets(labels: Tensor, num_classes: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Targets and noise `[N, C]` of labels `[N]`, in float64.

    >>> t, noise = dirichlet_targets(torch.tensor([1]), 2, alpha=1.0)  # concentrations 1 and 2
    >>> [[round(float(v), 4) for v in row] for row in (noise[0], t[0])]
    [[0.6931, 0.4055], [-0.3466, 0.4904]]
    """
    require(math.isfinite(alpha) and alpha > 0, f"alpha is a number above 0, got {alpha}")
    concentrations = alpha + F.one_hot(labels, num_classes).double()
    noise = torch.log1p(1 / concentrations)
    return concentrations.log() - noise / 2, noise


def left_out(gram: Tensor, labels: Tensor, num_classes: int, alpha: float) -> tuple[Tensor, Tensor]:
    r"""Means and variances `[N, C]` of every point's scores from all other points, under a kernel `[N, N]`.

    With $G_c = (K + \mathrm{diag}\,σ_c^2)^{-1}$ and targets about their mean, the score of a point has the mean
    $t_n - [G_c t]_n / [G_c]_{nn}$ and the variance $1 / [G_c]_{nn} - σ_{cn}^2$. The noise of a class is $σ_+^2$ at
    its members m and $σ_-^2$ elsewhere, so one inverse $G = (K + σ_-^2 I)^{-1}$ is enough for all classes:

    $$G_c = G + G_{:m} \Big(\frac{1}{σ_-^2 - σ_+^2} I - G_{mm}\Big)^{-1} G_{m:}$$
    """
    targets, noise = dirichlet_targets(labels, num_classes, alpha)
    shift = targets.mean()
    wide, narrow = (math.log1p(1 / concentration) for concentration in (alpha, alpha + 1))
    factor, _ = cholesky(gram + wide * torch.eye(len(gram)).to(gram))
    inverse = torch.cholesky_inverse(factor)
    weights, precision = inverse @ (targets - shift), inverse.diagonal()[:, None].repeat(1, num_classes)
    for c in range(num_classes):
        members = torch.nonzero(labels == c).flatten()
        across = inverse[members]
        rest = torch.eye(len(members)).to(gram) / (wide - narrow) - across[:, members]
        root = solve_lower(cholesky(rest)[0], across) if len(members) else across
        weights[:, c] += root.t() @ (root @ (targets[:, c] - shift))
        precision[:, c] += root.square().sum(0)
    return targets - weights / precision, (1 / precision - noise).clamp_min(0)


def class_factors(gram: Tensor, noise: Tensor) -> tuple[Tensor, float]:
    """Cholesky factors `[C, N, N]` of the kernel with the noise `[N, C]` of each class, and the largest jitter."""
    factors, jitter = torch.empty(noise.shape[1], *gram.shape).to(gram), 0.0
    for c in range(noise.shape[1]):
        factors[c], added = cholesky(gram + torch.diag(noise[:, c]))
        jitter = max(jitter, added)
    return factors, jitter


def choose(
    gram: Tensor, labels: Tensor, num_classes: int, alpha: float | None, scale: float | None, seed: int
) -> Work[DirichletChoice]:
    """The α_ε and the scale under which left-out labels are most probable; given values are kept.

    A grid of whole powers of ten is searched on few points, then a local search refines the best on more points.
    """
    level = float(gram.diagonal().mean())
    require(level > 0, ZERO, DataError)
    alphas = ALPHAS if alpha is None else (math.log10(alpha),)
    scales = SCALES if scale is None else (math.log10(scale * level),)
    points = LeaveOneOut(gram / level, labels, num_classes)
    if not bool(points.usable.any()):
        best = (alphas[0] if alpha else USUAL[0], scales[0] if scale else USUAL[1])
        yield Caution("every class has one label, so none can be left out; alpha and scale have their default values")
        return DirichletChoice(10 ** best[0], 10 ** best[1] / level, None)
    few, losses = points.subset(FEW, seed), {}
    grid = [(a, s) for a in alphas for s in scales]
    for number, candidate in enumerate(grid, 1):
        losses[candidate] = few.loss(*candidate)
        yield Progress("alpha and scale", number, len(grid), {"loss": losses[candidate]})
    best, many = min(losses, key=losses.__getitem__), points.subset(MANY, seed)
    losses = {best: many.loss(*best)}
    while True:
        neighbours = [(best[0], best[1] + d) for d in (STEP, -STEP) if scale is None]
        neighbours += [(best[0] + d, best[1]) for d in (STEP, -STEP) if alpha is None]
        for a, s in neighbours:
            inside = (alpha or ALPHAS[-1] <= a <= ALPHAS[0]) and (scale or SCALES[0] <= s <= SCALES[-1])
            if inside and (a, s) not in losses:
                losses[a, s] = many.loss(a, s)
                yield Progress("alpha and scale, refined", len(losses), None, {"loss": losses[a, s]})
        previous, best = best, min(losses, key=losses.__getitem__)
        if best == previous:
            return DirichletChoice(10 ** best[0], 10 ** best[1] / level, losses[best])


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Points on which α_ε and the scale are chosen.

    Attributes:
        gram: the kernel, with a mean diagonal of 1.
        labels: `[N]`.
        num_classes: C.
    """

    gram: Tensor
    labels: Tensor
    num_classes: int

    @property
    def usable(self) -> Tensor:
        """See `can_be_left_out`."""
        return can_be_left_out(self.labels)

    def subset(self, size: int, seed: int) -> "LeaveOneOut":
        """At most `size` points, balanced over the classes as far as possible."""
        if len(self.labels) <= size:
            return self
        index = balanced_index(self.labels, size, derived_seed(seed, "left out"))
        subset = LeaveOneOut(self.gram[index][:, index], self.labels[index], self.num_classes)
        return subset if bool(subset.usable.any()) else self

    def loss(self, log_alpha: float, log_scale: float) -> float:
        """The mean negative log probability of left-out labels, at log₁₀ α_ε and log₁₀ s."""
        scores = left_out(10**log_scale * self.gram, self.labels, self.num_classes, 10**log_alpha)
        p = class_probabilities(*scores, "sampled")
        return class_loss(p[self.usable], self.labels[self.usable])


def can_be_left_out(labels: Tensor) -> Tensor:
    """Whether the class of a point has another point `[N]`; without one, its label cannot be predicted.

    >>> can_be_left_out(torch.tensor([0, 1, 1]))
    tensor([False,  True,  True])
    """
    return torch.bincount(labels)[labels] > 1
