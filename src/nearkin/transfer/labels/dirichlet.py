r"""Classes as Gaussian targets by the Dirichlet transform (Milios et al. 2018), and its two numbers by leave-one-out.

A label is an observation of a Dirichlet with concentrations $α_c = α_ε + [c = y]$, which are gamma variables, and
these are matched by log-normal ones: class c has the target and the noise

$$t_c = \log α_c - \tfrac12 σ_c^2, \qquad σ_c^2 = \log(1 + 1/α_c),$$

so that every class is a Gaussian process with known noise; all classes share one kernel, whose scale s is in units of
the inverse of its mean diagonal. Both numbers are chosen by the probability that the labels have when they are left
out, one at a time, which is had in closed form; data to be judged by has no say. That probability is the mean softmax
of drawn scores: the softmax of the mean hardly feels the scale, and would leave the variances to chance.

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
from nearkin.transfer.cholesky import below, cholesky
from nearkin.transfer.labels.calibration import class_loss
from nearkin.transfer.labels.probabilities import class_probabilities

ALPHAS = (-1.0, -2.0, -3.0, -4.0)  # decades of α_ε
SCALES = (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # decades of the scale
USUAL = (-4.0, 2.0)  # where nothing can be left out
STEP = 0.5  # decades of the climb
FEW = 256  # points that the whole grid is tried on
MANY = 512  # points that the climb is made on
ZERO = "the kernel is zero: no weight that is free to move changes any output"


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        alpha: α_ε.
        scale: of the kernel, in its own units.
        loss: mean negative log probability of left-out labels; None where none could be left out.
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
    $t_n - [G_c t]_n / [G_c]_{nn}$ and the variance $1 / [G_c]_{nn} - σ_{cn}^2$. The noise of a class is $σ_-^2$ but at
    its members m, where it is $σ_+^2$, so that one inverse $G = (K + σ_-^2 I)^{-1}$ serves all classes:

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
        root = below(cholesky(rest)[0], across) if len(members) else across
        weights[:, c] += root.t() @ (root @ (targets[:, c] - shift))
        precision[:, c] += root.square().sum(0)
    return targets - weights / precision, (1 / precision - noise).clamp_min(0)


def factors_of(gram: Tensor, noise: Tensor) -> tuple[Tensor, float]:
    """Cholesky factors `[C, N, N]` of the kernel with the noise `[N, C]` of each class, and the jitter they needed."""
    found, jitter = torch.empty(noise.shape[1], *gram.shape).to(gram), 0.0
    for c in range(noise.shape[1]):
        found[c], added = cholesky(gram + torch.diag(noise[:, c]))
        jitter = max(jitter, added)
    return found, jitter


def choose(
    gram: Tensor, labels: Tensor, num_classes: int, alpha: float | None, scale: float | None, seed: int
) -> Work[Choice]:
    """The α_ε and the scale under which left-out labels are most probable; those that are given stay.

    A grid of whole decades is tried on few points, and its best is climbed from in half decades on many.
    """
    level = float(gram.diagonal().mean())
    require(level > 0, ZERO, DataError)
    alphas = ALPHAS if alpha is None else (math.log10(alpha),)
    scales = SCALES if scale is None else (math.log10(scale * level),)
    seen = Judge(gram / level, labels, num_classes)
    if not bool(seen.counted.any()):
        best = (alphas[0] if alpha else USUAL[0], scales[0] if scale else USUAL[1])
        yield Caution("every class has one label, so that none can be left out; alpha and scale are their usual ones")
        return Choice(10 ** best[0], 10 ** best[1] / level, None)
    few, tried = seen.part(FEW, seed), {}
    grid = [(a, s) for a in alphas for s in scales]
    for number, place in enumerate(grid, 1):
        tried[place] = few.loss(*place)
        yield Progress("alpha and scale", number, len(grid), {"loss": tried[place]})
    best, many = min(tried, key=tried.__getitem__), seen.part(MANY, seed)
    known = {best: many.loss(*best)}
    while True:
        around = [(best[0], best[1] + d) for d in (STEP, -STEP) if scale is None]
        around += [(best[0] + d, best[1]) for d in (STEP, -STEP) if alpha is None]
        inside = [
            (a, s)
            for a, s in around
            if (alpha or ALPHAS[-1] <= a <= ALPHAS[0]) and (scale or SCALES[0] <= s <= SCALES[-1])
        ]
        for place in inside:
            if place not in known:
                known[place] = many.loss(*place)
                yield Progress("alpha and scale, closer", len(known), None, {"loss": known[place]})
        nearest = min(known, key=known.__getitem__)
        if nearest == best:
            return Choice(10 ** best[0], 10 ** best[1] / level, known[best])
        best = nearest


@dataclass(frozen=True, eq=False)
class Judge:
    """Points by which α_ε and the scale are judged.

    Attributes:
        gram: the kernel, of mean diagonal 1.
        labels: `[N]`.
        num_classes: C.
    """

    gram: Tensor
    labels: Tensor
    num_classes: int

    @property
    def counted(self) -> Tensor:
        """Points that leave another of their class behind `[N]`."""
        return countable(self.labels)

    def part(self, size: int, seed: int) -> "Judge":
        """At most so many points, as even over the classes as they allow."""
        if len(self.labels) <= size:
            return self
        index = balanced_index(self.labels, size, derived_seed(seed, "left out"))
        some = Judge(self.gram[index][:, index], self.labels[index], self.num_classes)
        return some if bool(some.counted.any()) else self

    def loss(self, log_alpha: float, log_scale: float) -> float:
        """Of left-out labels, for decades of α_ε and of the scale."""
        scores = left_out(10**log_scale * self.gram, self.labels, self.num_classes, 10**log_alpha)
        p = class_probabilities(*scores, "sampled")
        return class_loss(p[self.counted], self.labels[self.counted])


def countable(labels: Tensor) -> Tensor:
    """Whether a point leaves another of its class behind `[N]`; without one, it says nothing of how well it is known.

    >>> countable(torch.tensor([0, 1, 1]))
    tensor([False,  True,  True])
    """
    return torch.bincount(labels)[labels] > 1
