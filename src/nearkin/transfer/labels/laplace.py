r"""Classes by Laplace's approximation: the softmax likelihood with its Gauss-Newton curvature, in function space.

Every class score is a Gaussian process $f_c ∼ N(m_c, sK)$; the mode of the posterior is found by Newton's method and
the curvature there, $W_n = \mathrm{diag}(π_n) - π_n π_n^⊤$, makes it Gaussian (Rasmussen and Williams, section 3.5).
In weight space this is the generalised Gauss-Newton matrix of the linearized network, $J^⊤ W J + s^{-1} I$: of its
head with `weights="head"`, of all weights else. The mean m is zero, or the source's own outputs where the classes
agree. Scale and temperature are those under which left-out labels are most probable, where a point is left out by
taking its own factor out of the Gaussian posterior; the evidence, which the approximation makes too small for scales at
which scores are free to move, would choose too small a one.

Notation: N points, M new ones, C classes, T the temperature; π `[N, C]` probabilities, K the kernel `[N, N]` without
its scale s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Caution, Note, Progress, Work, operation
from nearkin.core.rng import derived_seed
from nearkin.tasks.split import balanced_index
from nearkin.transfer.classify import checked_labels, checked_points, require_room
from nearkin.transfer.kernel import blocks
from nearkin.transfer.labels.calibration import class_loss, temperature
from nearkin.transfer.labels.classes import LAPLACE, Classes, Start
from nearkin.transfer.labels.dirichlet import MANY, ZERO, countable
from nearkin.transfer.labels.mode import STEPS, Mode, newton
from nearkin.transfer.labels.probabilities import HOWS, How, checked_how, drawn_probabilities
from nearkin.transfer.linearized import Linearized

DECADES = (-1.0, 5.0, 13)  # of the scale, in units of the inverse mean diagonal
WIDTH = 0.5  # of the prior on log T
ROUGH = 1e-6  # relative growth of the objective at which Newton's method ends while scales are compared
BEHIND = 10.0  # log probability of all labels by which a scale is far behind the best: larger ones are left out


@dataclass(frozen=True, eq=False)
class LaplaceClassified:
    """What a linearized network says of classes by Laplace's approximation; made by `laplace`.

    Attributes:
        linearized: the network.
        x: training inputs.
        labels: `[N]`.
        start: the mean, `zero` or `network`.
        scale: s.
        mode: of the posterior.
        heats: the temperature T of either kind of probabilities.
        loss: mean negative log probability of left-out labels; None where none could be left out.
        how: probabilities are taken by default: `mean` or `sampled`.
    """

    linearized: Linearized
    x: Tensor
    labels: Tensor
    start: Start
    scale: float
    mode: Mode
    heats: Mapping[How, float]
    loss: float | None
    how: How

    @property
    def num_classes(self) -> int:
        """C."""
        return self.mode.f.shape[1]

    @property
    def num_points(self) -> int:
        """N."""
        return len(self.x)

    @property
    def log_evidence(self) -> float:
        """Of the labels."""
        return self.mode.log_evidence

    def facts(self) -> dict[str, Any]:
        """What was chosen, as plain JSON values."""
        return {
            "method": "laplace",
            "start": self.start,
            "scale": self.scale,
            "log_evidence": self.log_evidence,
            "temperature": self.heats[self.how],
            "how": self.how,
            "left_out_nll": self.loss,
        }

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the class scores `[M, C]`."""
        mean, covariance = self._moments(x)
        return mean, covariance.diagonal(dim1=1, dim2=2)

    def probabilities(self, x: Tensor, how: How | None = None) -> Tensor:
        """Of the classes `[M, C]`, in float64."""
        how = how or self.how
        checked_how(how)
        return _probabilities(*self._moments(x), how, self.heats[how])

    def sample(self, x: Tensor, count: int, generator: Generator) -> Tensor:
        """Probabilities under scores drawn from the posterior, each new input by itself, `[count, M, C]`."""
        require(count >= 1, f"a sample has one function or more, got count={count}")
        mean, covariance = self._moments(x)
        z = torch.randn(count, *mean.shape, 1, generator=generator, dtype=mean.dtype)
        return ((mean + (_roots(covariance) @ z)[..., 0]) / self.heats["sampled"]).softmax(2)

    def extended(self, x: Tensor, labels: Tensor) -> "LaplaceClassified":
        """The same given further labels: Newton's method goes on from where it was; scale and temperature stay."""
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
        return cross @ self.mode.weights, self.mode.covariances(cross, self.scale * self.linearized.diagonal(x))


@operation
def laplace(
    linearized: Linearized,
    x: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    options: Classes = LAPLACE,
    *,
    seed: int = 0,
) -> Work[LaplaceClassified]:
    """The posterior of a linearized network given labels, by Laplace's approximation.

    Args:
        linearized: the network, with `outputs="sum"` or one output: all classes share its kernel.
        x: `[N, *input_shape]`.
        labels: numbers of classes `[N]`, two different ones at least.
        num_classes: C; one more than the largest label if not given.
        options: start, scale, temperature and way of probabilities; what is not given is chosen by left-out labels.
        seed: of the points by which the scale is chosen where there are many.

    >>> from nearkin.transfer.linearized import linearize
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> said = laplace(linearize(torch.nn.Linear(1, 3)), x, torch.tensor([0, 0, 1, 1]))
    >>> said.probabilities(torch.tensor([[-1.5], [1.5]])).argmax(1)
    tensor([0, 1])
    """
    require(options.method == "laplace", f"this is Laplace's approximation, got method={options.method!r}")
    x, labels, size = checked_points(linearized, x, labels, num_classes)
    gram = yield from linearized.kernel.work(x)
    mean = _start(linearized, x, size, options.start)
    require(float(gram.diagonal().mean()) > 0, ZERO, DataError)
    scale = options.scale or (yield from _choose(gram, labels, mean, options, seed))
    mode = newton(scale * gram, labels, mean, torch.zeros_like(mean))
    if not mode.converged:
        yield Caution(f"Newton's method did not come to its end in {STEPS} steps; the posterior is a rough one")
    left_out = _left_out(mode, scale * gram, labels)
    heats = dict.fromkeys(HOWS, options.heat or 1.0)
    if options.heat is None and left_out is not None:
        heats = {how: left_out.heat(how) for how in HOWS}
    loss = None if left_out is None else left_out.loss(options.how, heats[options.how])
    yield Note(f"scale {scale:.2e}, temperature {heats[options.how]:.2f}")
    return LaplaceClassified(linearized, x, labels, options.start, scale, mode, heats, loss, options.how)


def _choose(gram: Tensor, labels: Tensor, mean: Tensor, options: Classes, seed: int) -> Work[float]:
    """The scale under which left-out labels are most probable; without a label to leave out, the evidence decides.

    Where there are many points, some of them are tried.
    """
    level, (low, high, count) = float(gram.diagonal().mean()), DECADES
    if len(labels) > MANY:
        index = balanced_index(labels, MANY, derived_seed(seed, "left out"))
        gram, labels, mean = gram[index][:, index], labels[index], mean[index]
    scales = [10**decade / level for decade in torch.linspace(low, high, int(count)).tolist()]
    ranks: list[float] = []
    weights = torch.zeros_like(mean)
    for number, scale in enumerate(scales, 1):
        mode = newton(scale * gram, labels, mean, weights, ROUGH)
        weights, left_out, rank = mode.weights, _left_out(mode, scale * gram, labels), -mode.log_evidence
        if left_out is not None:
            rank = len(labels) * left_out.loss(options.how, options.heat or left_out.heat(options.how))
        yield Progress("scale", number, len(scales), {"loss": rank / len(labels)})
        ranks.append(rank)
        if number > 4 and rank > min(ranks) + BEHIND:
            break
    best: float = scales[ranks.index(min(ranks))]
    if best in (scales[0], scales[-1]):
        yield Caution(f"the best scale, {best:.1e}, is at the edge of what is looked at; give more labels")
    return best


@dataclass(frozen=True, eq=False)
class _LeftOut:
    """Scores of left-out points, means `[N, C]` and covariances `[N, C, C]`, with their labels."""

    mean: Tensor
    covariance: Tensor
    labels: Tensor

    def heat(self, how: How) -> float:
        """The temperature that suits them."""
        if how == "mean":
            return temperature(lambda heat: (self.mean / heat).softmax(1), self.labels, WIDTH)
        roots = _roots(self.covariance)
        return temperature(lambda heat: drawn_probabilities(self.mean, roots, heat), self.labels, WIDTH)

    def loss(self, how: How, heat: float) -> float:
        """Their mean negative log probability."""
        return class_loss(_probabilities(self.mean, self.covariance, how, heat), self.labels)


def _left_out(mode: Mode, covariance: Tensor, labels: Tensor) -> _LeftOut | None:
    """Of the points that leave another of their class behind; None where there are none."""
    counted = countable(labels)
    if not bool(counted.any()):
        return None
    mean, spread = mode.left_out(covariance, labels)
    return _LeftOut(mean[counted], spread[counted], labels[counted])


def _probabilities(mean: Tensor, covariance: Tensor, how: How, heat: float) -> Tensor:
    """Of scores with means `[M, C]` and covariances `[M, C, C]`."""
    return (mean / heat).softmax(1) if how == "mean" else drawn_probabilities(mean, _roots(covariance), heat)


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
