r"""Classes by closed-form transfer: Dirichlet-transformed targets on the tangent kernel of a linearized network.

Notation: N training points, M new ones, C classes, T the temperature.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Caution, Note, Work, finish
from nearkin.transfer.calibration import temperature
from nearkin.transfer.dirichlet import Choice, choosing, countable, dirichlet_targets, factors_of, left_out
from nearkin.transfer.function_space import FunctionSpace
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.kernel import Prior, blocks
from nearkin.transfer.linearize import Linearized
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.probabilities import HOWS, How, checked_how, class_probabilities
from nearkin.transfer.targets import Layout

NUMBERS = 2**28  # of the classes' Cholesky factors: 2 GiB


@dataclass(frozen=True, eq=False)
class Classified:
    """What a linearized network says of classes, given labels; made by `classify`.

    Attributes:
        posterior: of the class scores, one Gaussian process a class.
        choice: α_ε, the scale, and the loss of left-out labels.
        heats: the temperature T of either kind of probabilities.
        how: probabilities are taken by default: `mean` or `sampled`.
    """

    posterior: Posterior
    choice: Choice
    heats: Mapping[How, float]
    how: How

    @property
    def num_classes(self) -> int:
        """C."""
        return self.posterior.layout.num_targets

    @property
    def num_points(self) -> int:
        """N."""
        return self.posterior.num_points

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the class scores `[M, C]`."""
        return self.posterior.predict(x)

    def probabilities(self, x: Tensor, how: How | None = None) -> Tensor:
        """Of the classes `[M, C]`, in float64."""
        how = how or self.how
        checked_how(how)
        if how == "mean":  # half the work: no variance is needed
            return (self._means(x) / self.heats[how]).softmax(1)
        return class_probabilities(*self.scores(x), how, self.heats[how])

    def _means(self, x: Tensor) -> Tensor:
        """Means of the class scores alone `[M, C]`."""
        solver, x = self.posterior.solver, self.posterior.linearized.inputs(x)
        assert isinstance(solver, FunctionSpace)
        weights = self.posterior.layout.back(solver.weights)
        parts = [solver.prior.kernel(part, solver.x) @ weights for part in blocks(x, self.num_points)]
        return torch.cat(parts) + self.posterior.shift

    def sample(self, x: Tensor, count: int, generator: Generator) -> Tensor:
        """Probabilities under functions drawn from the posterior `[count, M, C]`."""
        return (self.posterior.sample(x, count, generator) / self.heats["sampled"]).softmax(2)

    def extended(self, x: Tensor, labels: Tensor) -> "Classified":
        """The same given further labels, without starting again; α_ε, scale and temperature stay."""
        labels = checked_labels(labels, len(x), self.num_classes)
        targets, noise = dirichlet_targets(labels, self.num_classes, self.choice.alpha)
        require_room(self.num_points + len(x), self.num_classes)
        return replace(self, posterior=self.posterior.extended(x, targets, noise))


def classify(
    linearized: Linearized,
    x: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    *,
    alpha: float | None = None,
    scale: float | None = None,
    heat: float | None = None,
    how: How = "mean",
    seed: int = 0,
) -> Classified:
    """The posterior of a linearized network given labels.

    Args:
        linearized: the network, with `outputs="sum"` or one output: all classes share its kernel.
        x: `[N, *input_shape]`.
        labels: numbers of classes `[N]`, two different ones at least.
        num_classes: C; one more than the largest label if not given.
        alpha: α_ε of the Dirichlet transform; chosen by leave-one-out if None.
        scale: of the kernel; the same.
        heat: temperature of the probabilities; fitted to left-out labels if None.
        how: `mean` takes the softmax of the mean scores, `sampled` the mean of softmaxes of drawn ones.
        seed: of the points that are left out where there are many.

    >>> from nearkin.transfer.linearize import linearize
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> said = classify(linearize(torch.nn.Linear(1, 3)), x, torch.tensor([0, 0, 1, 1]))
    >>> said.probabilities(torch.tensor([[-1.5], [1.5]])).argmax(1)
    tensor([0, 1])
    """
    work = classify_work(linearized, x, labels, num_classes, alpha=alpha, scale=scale, heat=heat, how=how, seed=seed)
    return finish(work)


def classify_work(
    linearized: Linearized,
    x: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    *,
    alpha: float | None = None,
    scale: float | None = None,
    heat: float | None = None,
    how: How = "mean",
    seed: int = 0,
) -> Work[Classified]:
    """`classify` as work: progress of the kernel and of the choice; notes tell what was chosen."""
    checked_how(how)
    for name, value in (("alpha", alpha), ("scale", scale), ("heat", heat)):
        require(value is None or (math.isfinite(value) and value > 0), f"{name} is a number above 0, got {value}")
    x = linearized.inputs(x)
    labels = checked_labels(labels, len(x), num_classes).to(x.device)
    size = num_classes or int(labels.max()) + 1
    require_shared(linearized)
    require_several(labels)
    require_room(len(x), size)
    gram = yield from linearized.kernel_work(x)
    choice = yield from choosing(gram, labels, size, alpha, scale, seed)
    targets, noise = dirichlet_targets(labels, size, choice.alpha)
    shift = targets.mean()
    factors, jitter = factors_of(choice.scale * gram, noise)
    if jitter > 0:
        yield Caution(f"the kernel of {len(x):,} points is not positive definite; {jitter:.1e} was added")
    heats = _heats(choice, gram, labels, size) if heat is None else dict.fromkeys(HOWS, heat)
    yield Note(f"alpha {choice.alpha:.1e}, scale {choice.scale:.2e}, temperature {heats[how]:.2f}")
    prior = Prior(linearized, Hyper(noise=0.0, scale=choice.scale, mean="zero"))
    layout = Layout(linearized.outputs, linearized.num_outputs(x), size, apart=True)
    solver = FunctionSpace(
        prior, x, factors, layout.basis(len(x), "zero").to(gram), layout.rows(targets - shift), jitter
    )
    posterior = Posterior(prior, layout, "function", solver, shift.expand(size).clone(), len(x))
    return Classified(posterior, choice, heats, how)


def _heats(choice: Choice, gram: Tensor, labels: Tensor, size: int) -> dict[How, float]:
    """Temperatures of left-out points; 1 where none can be left out."""
    counted = countable(labels)
    if not bool(counted.any()):
        return dict.fromkeys(HOWS, 1.0)
    mean, variance = (one[counted] for one in left_out(choice.scale * gram, labels, size, choice.alpha))

    def fitted(how: How) -> float:
        return temperature(lambda heat: class_probabilities(mean, variance, how, heat), labels[counted])

    return {how: fitted(how) for how in HOWS}


def checked_labels(labels: Tensor, count: int, num_classes: int | None) -> Tensor:
    """Labels `[N]` as whole numbers from 0 to C − 1."""
    require(isinstance(labels, Tensor), f"labels are a tensor [N], got a {type(labels).__name__}", DataError)
    require(
        labels.shape == (count,) and not labels.is_floating_point() and not labels.is_complex(),
        f"labels are whole numbers of shape ({count},), got {labels.dtype} of shape {tuple(labels.shape)}",
        DataError,
    )
    labels = labels.detach().long()
    low, high = int(labels.min()), int(labels.max())
    require(
        low >= 0 and (num_classes is None or high < num_classes),
        f"labels run from {low} to {high}, expected 0 to {'C − 1' if num_classes is None else num_classes - 1}",
        DataError,
    )
    return labels


def require_several(labels: Tensor) -> None:
    """Refuse labels of one class."""
    distinct = len(labels.unique())
    require(
        distinct > 1,
        f"all {len(labels)} labels are of one class, so that there is nothing to tell apart; add samples of another",
        DataError,
    )


def require_shared(linearized: Linearized) -> None:
    """Refuse a kernel that ties classes to the source's outputs."""
    require(
        linearized.outputs != "all",
        "classes share one kernel here; linearize with outputs='sum', or with the number of one output",
        MismatchError,
    )


def require_room(count: int, num_classes: int) -> None:
    """Refuse more than fits into memory."""
    size = num_classes * count**2
    require(
        size <= NUMBERS,
        f"{count:,} points of {num_classes} classes need {8 * size / 2**30:,.1f} GiB; give at most "
        f"{math.isqrt(NUMBERS // num_classes):,} points",
        DataError,
    )
