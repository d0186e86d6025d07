r"""Classes by Laplace's approximation: the softmax likelihood with its Gauss-Newton curvature, in function space.

Every class score is a Gaussian process $f_c ∼ N(m_c, sK)$; the mode of the posterior is found by Newton's method and
the curvature there, $W_n = \mathrm{diag}(π_n) - π_n π_n^⊤$, makes it Gaussian (Rasmussen and Williams, section 3.5).
In weight space this is the generalised Gauss-Newton matrix of the linearized network, $J^⊤ W J + s^{-1} I$: of its
head with `weights="head"`, of all weights else. The mean m is zero, or the source's own outputs where the classes
agree. The scale is the one with the largest evidence.

Notation: N points, M new ones, C classes; π `[N, C]` probabilities, K the kernel `[N, N]` without its scale, and for
each class $E_c = D_c^{1/2} (I + D_c^{1/2} sK D_c^{1/2})^{-1} D_c^{1/2}$ with $D_c = \mathrm{diag}(π_c)$.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Caution, Note, Progress, Work, finish
from nearkin.transfer.cholesky import both, cholesky, log_determinant
from nearkin.transfer.classify import checked_labels, require_room, require_several, require_shared
from nearkin.transfer.kernel import blocks
from nearkin.transfer.linearize import Linearized
from nearkin.transfer.probabilities import How, checked_how, drawn_probabilities

Start: TypeAlias = Literal["zero", "network"]
"""The scores before any label is seen: nothing, or the source's own outputs."""

STEPS = 100
CLOSE = 1e-9  # relative growth of the objective at which Newton's method ends
DECADES = (-3.0, 5.0, 17)  # of the scale, in units of the inverse mean diagonal
TINY = 1e-12  # probabilities below are as good as none


@dataclass(frozen=True, eq=False)
class Mode:
    r"""Where the posterior of the scores is largest.

    Attributes:
        f: scores `[N, C]`.
        weights: $a = (sK)^{-1}(f - m) = y - π$ at the mode, `[N, C]`.
        e: $E_c$ `[C, N, N]`.
        m: the Cholesky factor of $\sum_c E_c$.
        log_evidence: Laplace's approximation of it.
        converged: whether Newton's method came to its end.
    """

    f: Tensor
    weights: Tensor
    e: Tensor
    m: Tensor
    log_evidence: float
    converged: bool


@dataclass(frozen=True, eq=False)
class LaplaceClassified:
    """What a linearized network says of classes by Laplace's approximation; made by `laplace`.

    Attributes:
        linearized: the network.
        x: training inputs.
        labels: `[N]`.
        start: the mean, `zero` or `network`.
        scale: s.
        how: probabilities are taken: `mean` or `sampled`.
        mode: of the posterior.
        num_classes: C.
    """

    linearized: Linearized
    x: Tensor
    labels: Tensor
    start: Start
    scale: float
    how: How
    mode: Mode
    num_classes: int

    @property
    def num_points(self) -> int:
        """N."""
        return len(self.x)

    @property
    def log_evidence(self) -> float:
        """Of the labels."""
        return self.mode.log_evidence

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the class scores `[M, C]`."""
        mean, covariance = self._moments(x)
        return mean, covariance.diagonal(dim1=1, dim2=2)

    def probabilities(self, x: Tensor, how: How | None = None) -> Tensor:
        """Of the classes `[M, C]`, in float64."""
        how = how or self.how
        checked_how(how)
        mean, covariance = self._moments(x)
        return mean.softmax(1) if how == "mean" else drawn_probabilities(mean, _roots(covariance))

    def sample(self, x: Tensor, count: int, generator: Generator) -> Tensor:
        """Probabilities under scores drawn from the posterior, each new input by itself, `[count, M, C]`."""
        require(count >= 1, f"a sample has one function or more, got count={count}")
        mean, covariance = self._moments(x)
        z = torch.randn(count, *mean.shape, 1, generator=generator, dtype=mean.dtype)
        return (mean + (_roots(covariance) @ z)[..., 0]).softmax(2)

    def extended(self, x: Tensor, labels: Tensor) -> "LaplaceClassified":
        """The same given further labels: Newton's method goes on from what the scores are believed to be."""
        x = self.linearized.inputs(x)
        labels = checked_labels(labels, len(x), self.num_classes)
        require_room(self.num_points + len(x), self.num_classes)
        weights = torch.cat([self.mode.weights, torch.zeros(len(x), self.num_classes).to(self.mode.weights)])
        every, known = torch.cat([self.x, x]), torch.cat([self.labels, labels])
        gram = self.linearized.kernel(every)
        mean = _start(self.linearized, every, self.num_classes, self.start)
        mode = newton(self.scale * gram, known, mean, weights)
        return replace(self, x=every, labels=known, mode=mode)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[M, C]` and covariances `[M, C, C]`."""
        x = self.linearized.inputs(x)
        start = _start(self.linearized, x, self.num_classes, self.start)
        found = [self._block(part) for part in blocks(x, self.num_classes * self.num_points)]
        mean, covariance = (torch.cat(parts) for parts in zip(*found, strict=True))
        return start + mean, covariance

    def _block(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cross = self.scale * self.linearized.kernel(x, self.x)  # [M, N]
        seen = torch.stack([cross @ one for one in self.mode.e])  # [C, M, N]
        shared = torch.linalg.solve_triangular(self.mode.m, seen.mT, upper=False)  # [C, N, M]
        covariance = torch.einsum("cnm,dnm->mcd", shared, shared)
        own = self.scale * self.linearized.diagonal(x)[:, None] - torch.einsum("cmn,mn->mc", seen, cross)
        return cross @ self.mode.weights, covariance + torch.diag_embed(own)


def laplace(
    linearized: Linearized,
    x: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    *,
    start: Start = "zero",
    scale: float | None = None,
    how: How = "mean",
) -> LaplaceClassified:
    """The posterior of a linearized network given labels, by Laplace's approximation.

    Args:
        linearized: the network, with `outputs="sum"` or one output: all classes share its kernel.
        x: `[N, *input_shape]`.
        labels: numbers of classes `[N]`, two different ones at least.
        num_classes: C; one more than the largest label if not given.
        start: `network` begins at the source's own outputs, which must be as many as classes.
        scale: of the kernel; the one with the largest evidence if None.
        how: `mean` takes the softmax of the mean scores, `sampled` the mean of softmaxes of drawn ones.

    >>> from nearkin.transfer.linearize import linearize
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> said = laplace(linearize(torch.nn.Linear(1, 3)), x, torch.tensor([0, 0, 1, 1]))
    >>> said.probabilities(torch.tensor([[-1.5], [1.5]])).argmax(1)
    tensor([0, 1])
    """
    return finish(laplace_work(linearized, x, labels, num_classes, start=start, scale=scale, how=how))


def laplace_work(
    linearized: Linearized,
    x: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    *,
    start: Start = "zero",
    scale: float | None = None,
    how: How = "mean",
) -> Work[LaplaceClassified]:
    """`laplace` as work."""
    checked_how(how)
    require(start in ("zero", "network"), f"start is zero or network, got {start!r}")
    require(scale is None or (math.isfinite(scale) and scale > 0), f"scale is a number above 0, got {scale}")
    x = linearized.inputs(x)
    labels = checked_labels(labels, len(x), num_classes).to(x.device)
    size = num_classes or int(labels.max()) + 1
    require_shared(linearized)
    require_several(labels)
    require_room(len(x), size)
    gram = yield from linearized.kernel_work(x)
    mean = _start(linearized, x, size, start)
    level = float(gram.diagonal().mean())
    low, high, count = DECADES
    scales = [scale] if scale else [10**decade / level for decade in torch.linspace(low, high, int(count)).tolist()]
    best: tuple[Mode, float] | None = None
    weights = torch.zeros(len(x), size).to(gram)
    for number, one in enumerate(scales, 1):
        mode = newton(one * gram, labels, mean, weights)
        yield Progress("scale", number, len(scales), {"log evidence": mode.log_evidence})
        if best is None or mode.log_evidence > best[0].log_evidence:
            best = mode, one
        elif number > 4 and mode.log_evidence < best[0].log_evidence - 10:
            break  # the evidence of a scale has one hill
        weights = mode.weights
    assert best is not None
    if len(scales) > 1 and best[1] in (scales[0], scales[-1]):
        yield Caution(
            f"the evidence is largest at the edge of what is looked at, scale {best[1]:.1e}; give more labels"
        )
    if not best[0].converged:
        yield Caution(f"Newton's method did not come to its end in {STEPS} steps; the posterior is a rough one")
    yield Note(f"scale {best[1]:.2e}, log evidence {best[0].log_evidence:.2f}")
    return LaplaceClassified(linearized, x, labels, start, best[1], how, best[0], size)


def newton(covariance: Tensor, labels: Tensor, mean: Tensor, weights: Tensor) -> Mode:
    """The mode of the scores under the prior `N(mean, covariance)` a class, from weights `[N, C]` on.

    A step that lowers the objective is halved until it does not, so that the way leads up from any start.
    """
    y = F.one_hot(labels, mean.shape[1]).double().to(covariance)

    def objective(a: Tensor) -> float:
        f = mean + covariance @ a
        return float(-0.5 * (a * (f - mean)).sum() + (y * f.log_softmax(1)).sum())

    value, converged = objective(weights), False
    for _ in range(STEPS):
        f = mean + covariance @ weights
        p = f.softmax(1)
        e, m, _ = _curvature(covariance, p)
        b = p * (f - mean) - p * (p * (f - mean)).sum(1, keepdim=True) + y - p
        c = torch.einsum("cnm,mc->nc", e, covariance @ b)
        wanted = b - c + torch.einsum("cnm,mk->nc", e, both(m, c.sum(1, keepdim=True)))
        step, size = wanted - weights, 1.0
        while (new := objective(weights + size * step)) < value and size > 1e-6:
            size /= 2
        if size <= 1e-6:
            converged = True
            break
        weights = weights + size * step
        grown, value = new - value, new
        if grown <= CLOSE * (1 + abs(value)):
            converged = True
            break
    f = mean + covariance @ weights
    e, m, log_b = _curvature(covariance, f.softmax(1))
    evidence = value - 0.5 * (log_b + float(log_determinant(m)))
    return Mode(f, weights, e, m, evidence, converged)


def _curvature(covariance: Tensor, p: Tensor) -> tuple[Tensor, Tensor, float]:
    """$E_c$ `[C, N, N]`, the factor of their sum, and the log determinants of $I + D^{1/2} K D^{1/2}$ together."""
    parts, total = [], 0.0
    for c in range(p.shape[1]):
        root = p[:, c].clamp_min(TINY).sqrt()
        factor, _ = cholesky(torch.eye(len(p)).to(covariance) + root[:, None] * covariance * root)
        parts.append(root[:, None] * torch.cholesky_inverse(factor) * root)
        total += float(log_determinant(factor))
    e = torch.stack(parts)
    m, _ = cholesky(e.sum(0), "the curvature of the labels")
    return e, m, total


def _start(linearized: Linearized, x: Tensor, num_classes: int, start: Start) -> Tensor:
    """The mean of the scores `[N, C]`."""
    if start == "zero":
        return torch.zeros(len(x), num_classes).double().to(x.device)
    found = linearized.mean(x)
    require(
        found.shape[1] == num_classes,
        f"the source has {found.shape[1]} outputs, the labels are of {num_classes} classes; use start='zero'",
        MismatchError,
    )
    return found


def _roots(covariance: Tensor) -> Tensor:
    """Roots `[M, C, C]` of covariances, singular ones too."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    found: Tensor = vectors * values.clamp_min(0).sqrt()[:, None, :]
    return found
