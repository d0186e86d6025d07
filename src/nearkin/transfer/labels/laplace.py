r"""Classes by Laplace's approximation: the softmax likelihood with its Gauss-Newton curvature, in function space.

Every class score is a Gaussian process $f_c ∼ N(m_c, sK)$. Newton's method finds the mode of the posterior. The
curvature there, $W_n = \mathrm{diag}(π_n) - π_n π_n^⊤$, gives its Gaussian approximation (Rasmussen and Williams,
section 3.5). In weight space this is the generalised Gauss-Newton matrix of the linearized network,
$J^⊤ W J + s^{-1} I$, for the head with `weights="head"` and otherwise for all weights. The mean m is zero, or the
source's outputs if the classes agree. Scale and temperature maximise the probability of left-out labels, where a point
is left out by removing its factor from the Gaussian posterior. The approximate evidence is not used for this: it is too
small for large scales and would select a scale that is too small.

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
from nearkin.transfer.classify import checked_labels, checked_points, require_memory
from nearkin.transfer.kernel import blocks
from nearkin.transfer.labels.calibration import class_loss, fit_temperature
from nearkin.transfer.labels.classes import LAPLACE, Classes, Start
from nearkin.transfer.labels.dirichlet import MANY, ZERO, can_be_left_out
from nearkin.transfer.labels.mode import STEPS, Mode, newton
from nearkin.transfer.labels.probabilities import HOWS, How, drawn_probabilities, require_how
from nearkin.transfer.linearized import Linearized

DECADES = (-1.0, 5.0, 13)  # first, last and number of log₁₀ s, in units of the inverse mean diagonal
WIDTH = 0.5  # of the prior of log T
ROUGH = 1e-6  # tolerance of Newton's method while scales are compared
BEHIND = 10.0  # the search stops at a scale whose log probability is lower than the best by this


@dataclass(frozen=True, eq=False)
class LaplaceClassified:
    """The posterior of class scores by Laplace's approximation; returned by `laplace`.

    Attributes:
        linearized: the network.
        x: training inputs.
        labels: `[N]`.
        start: the mean, `zero` or `network`.
        scale: s.
        mode: of the posterior.
        temperatures: the temperature T for each kind of probabilities.
        loss: mean negative log probability of left-out labels; None if no label could be left out.
        how: the default kind of probabilities, `mean` or `sampled`.
    """

    linearized: Linearized
    x: Tensor
    labels: Tensor
    start: Start
    scale: float
    mode: Mode
    temperatures: Mapping[How, float]
    loss: float | None
    how: How

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.mode.f.shape[1]

    @property
    def num_points(self) -> int:
        """N, the number of training points."""
        return len(self.x)

    @property
    def log_evidence(self) -> float:
        """The approximate log evidence of the labels."""
        return self.mode.log_evidence

    def facts(self) -> dict[str, Any]:
        """The chosen options as plain JSON values."""
        return {
            "method": "laplace",
            "start": self.start,
            "scale": self.scale,
            "log_evidence": self.log_evidence,
            "temperature": self.temperatures[self.how],
            "how": self.how,
            "left_out_nll": self.loss,
        }

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the class scores `[M, C]`."""
        mean, covariance = self._moments(x)
        return mean, covariance.diagonal(dim1=1, dim2=2)

    def probabilities(self, x: Tensor, how: How | None = None) -> Tensor:
        """Class probabilities `[M, C]` in float64."""
        how = how or self.how
        require_how(how)
        return _probabilities(*self._moments(x), how, self.temperatures[how])

    def sample(self, x: Tensor, count: int, generator: Generator) -> Tensor:
        """Probabilities under scores drawn from the posterior, independently for each input, `[count, M, C]`."""
        require(count >= 1, f"count is the number of draws, 1 or more, got {count}")
        mean, covariance = self._moments(x)
        z = torch.randn(count, *mean.shape, 1, generator=generator, dtype=mean.dtype)
        return ((mean + (_roots(covariance) @ z)[..., 0]) / self.temperatures["sampled"]).softmax(2)

    def extended(self, x: Tensor, labels: Tensor) -> "LaplaceClassified":
        """The posterior given further labels: Newton's method starts at the known mode; scale and temperature stay."""
        x = self.linearized.inputs(x)
        labels = checked_labels(labels, len(x), self.num_classes)
        require_memory(self.num_points + len(x), self.num_classes)
        weights = torch.cat([self.mode.weights, torch.zeros(len(x), self.num_classes).to(self.mode.weights)])
        x, labels = torch.cat([self.x, x]), torch.cat([self.labels, labels])
        mean = _prior_mean(self.linearized, x, self.num_classes, self.start)
        mode = newton(self.scale * self.linearized.kernel(x), labels, mean, weights)
        return replace(self, x=x, labels=labels, mode=mode)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[M, C]` and covariances `[M, C, C]`."""
        x = self.linearized.inputs(x)
        means, covariances = [], []
        for block in blocks(x, self.num_classes * self.num_points):
            cross = self.scale * self.linearized.kernel(block, self.x)  # [M, N]
            means.append(cross @ self.mode.weights)
            covariances.append(self.mode.covariances(cross, self.scale * self.linearized.diagonal(block)))
        start = _prior_mean(self.linearized, x, self.num_classes, self.start)
        return start + torch.cat(means), torch.cat(covariances)


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
        labels: class indices `[N]` of two or more different classes.
        num_classes: C (default: one more than the largest label).
        options: start, scale, temperature and kind of probabilities; options that are None are chosen by leave-one-out.
        seed: of the points on which the scale is chosen, if there are too many for all.

    >>> from nearkin.transfer.linearized import linearize
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> posterior = laplace(linearize(torch.nn.Linear(1, 3)), x, torch.tensor([0, 0, 1, 1]))
    >>> posterior.probabilities(torch.tensor([[-1.5], [1.5]])).argmax(1)
    tensor([0, 1])
    """
    require(
        options.method == "laplace", f"laplace is for method='laplace', got method={options.method!r}; use classify"
    )
    x, labels, size = checked_points(linearized, x, labels, num_classes)
    gram = yield from linearized.kernel.work(x)
    mean = _prior_mean(linearized, x, size, options.start)
    require(float(gram.diagonal().mean()) > 0, ZERO, DataError)
    scale = options.scale or (yield from _chosen_scale(gram, labels, mean, options, seed))
    mode = newton(scale * gram, labels, mean, torch.zeros_like(mean))
    if not mode.converged:
        yield Caution(f"Newton's method did not converge in {STEPS} steps; the posterior is inexact")
    left_out = _left_out(mode, scale * gram, labels)
    temperatures = dict.fromkeys(HOWS, options.temperature or 1.0)
    if options.temperature is None and left_out is not None:
        temperatures = {how: left_out.temperature(how) for how in HOWS}
    loss = None if left_out is None else left_out.loss(options.how, temperatures[options.how])
    yield Note(f"scale {scale:.2e}, temperature {temperatures[options.how]:.2f}")
    return LaplaceClassified(linearized, x, labels, options.start, scale, mode, temperatures, loss, options.how)


def _chosen_scale(gram: Tensor, labels: Tensor, mean: Tensor, options: Classes, seed: int) -> Work[float]:
    """The scale of the most probable left-out labels, or of the largest evidence if there are none.

    At most `MANY` points are used.
    """
    level, (low, high, count) = float(gram.diagonal().mean()), DECADES
    if len(labels) > MANY:
        index = balanced_index(labels, MANY, derived_seed(seed, "left out"))
        gram, labels, mean = gram[index][:, index], labels[index], mean[index]
    scales = [10**decade / level for decade in torch.linspace(low, high, int(count)).tolist()]
    losses: list[float] = []
    weights = torch.zeros_like(mean)
    for number, scale in enumerate(scales, 1):
        mode = newton(scale * gram, labels, mean, weights, ROUGH)
        weights, left_out, loss = mode.weights, _left_out(mode, scale * gram, labels), -mode.log_evidence
        if left_out is not None:
            loss = len(labels) * left_out.loss(options.how, options.temperature or left_out.temperature(options.how))
        yield Progress("scale", number, len(scales), {"loss": loss / len(labels)})
        losses.append(loss)
        if number > 4 and loss > min(losses) + BEHIND:
            break
    best: float = scales[losses.index(min(losses))]
    if best in (scales[0], scales[-1]):
        yield Caution(f"the best scale, {best:.1e}, is at a bound of the search range; give more labels")
    return best


@dataclass(frozen=True, eq=False)
class _LeftOut:
    """Scores of left-out points, means `[N, C]` and covariances `[N, C, C]`, with their labels."""

    mean: Tensor
    covariance: Tensor
    labels: Tensor

    def temperature(self, how: How) -> float:
        """The temperature under which the labels are most probable."""
        if how == "mean":
            return fit_temperature(lambda t: (self.mean / t).softmax(1), self.labels, WIDTH)
        roots = _roots(self.covariance)
        return fit_temperature(lambda t: drawn_probabilities(self.mean, roots, t), self.labels, WIDTH)

    def loss(self, how: How, temperature: float) -> float:
        """The mean negative log probability of the labels."""
        return class_loss(_probabilities(self.mean, self.covariance, how, temperature), self.labels)


def _left_out(mode: Mode, covariance: Tensor, labels: Tensor) -> _LeftOut | None:
    """The points of `can_be_left_out`; None if there are none."""
    usable = can_be_left_out(labels)
    if not bool(usable.any()):
        return None
    mean, spread = mode.left_out(covariance, labels)
    return _LeftOut(mean[usable], spread[usable], labels[usable])


def _probabilities(mean: Tensor, covariance: Tensor, how: How, temperature: float) -> Tensor:
    return (
        (mean / temperature).softmax(1) if how == "mean" else drawn_probabilities(mean, _roots(covariance), temperature)
    )


def _prior_mean(linearized: Linearized, x: Tensor, num_classes: int, start: Start) -> Tensor:
    if start == "zero":
        return torch.zeros(len(x), num_classes).double().to(x.device)
    outputs = linearized.mean(x)
    require(
        outputs.shape[1] == num_classes,
        f"the source has {outputs.shape[1]} outputs, the labels are of {num_classes} classes; use start='zero'",
        MismatchError,
    )
    return outputs


def _roots(covariance: Tensor) -> Tensor:
    """Square roots `[M, C, C]` of covariances, which may be singular."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    roots: Tensor = vectors * values.clamp_min(0).sqrt()[:, None, :]
    return roots
