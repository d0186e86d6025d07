r"""Classes by closed-form transfer: Dirichlet-transformed targets on the tangent kernel of a linearized network.

Notation: N training points, M new ones, C classes, T the temperature.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.transfer.function_space import FunctionSpace
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.kernel import Prior, blocks
from nearkin.transfer.labels.calibration import temperature
from nearkin.transfer.labels.classes import DIRICHLET, Classes
from nearkin.transfer.labels.dirichlet import Choice, choose, countable, dirichlet_targets, factors_of, left_out
from nearkin.transfer.labels.probabilities import HOWS, How, checked_how, class_probabilities
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.targets import Layout

NUMBERS = 2**28  # of the classes' Cholesky factors: 2 GiB
PRIORS: Mapping[How, tuple[float, float]] = {"mean": (0.3, 0.35), "sampled": (0.0, 0.25)}
"""Centre and width of log T before a label is seen.

The softmax of the mean does not know the variances, so it wants to be a little warmer; how much was learned from MNIST,
CIFAR-10 and MNIST to Fashion-MNIST, see `docs/figures/transfer-classes.md`.
"""


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

    def facts(self) -> dict[str, Any]:
        """What was chosen, as plain JSON values."""
        return {
            "method": "dirichlet",
            "alpha": self.choice.alpha,
            "scale": self.choice.scale,
            "temperature": self.heats[self.how],
            "how": self.how,
            "left_out_nll": self.choice.loss,
        }

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


@operation
def classify(
    linearized: Linearized,
    x: Tensor,
    labels: Tensor,
    num_classes: int | None = None,
    options: Classes = DIRICHLET,
    *,
    seed: int = 0,
) -> Work[Classified]:
    """The posterior of a linearized network given labels, by Dirichlet-transformed targets.

    Args:
        linearized: the network, with `outputs="sum"` or one output: all classes share its kernel.
        x: `[N, *input_shape]`.
        labels: numbers of classes `[N]`, two different ones at least.
        num_classes: C; one more than the largest label if not given.
        options: α_ε, scale, temperature and way of probabilities; what is not given is chosen by leave-one-out.
        seed: of the points that are left out where there are many.

    >>> from nearkin.transfer.linearized import linearize
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> said = classify(linearize(torch.nn.Linear(1, 3)), x, torch.tensor([0, 0, 1, 1]))
    >>> said.probabilities(torch.tensor([[-1.5], [1.5]])).argmax(1)
    tensor([0, 1])
    """
    require(options.method == "dirichlet", f"classify is the Dirichlet transform, got method={options.method!r}")
    x, labels, size = checked_points(linearized, x, labels, num_classes)
    gram = yield from linearized.kernel.work(x)
    choice = yield from choose(gram, labels, size, options.alpha, options.scale, seed)
    targets, noise = dirichlet_targets(labels, size, choice.alpha)
    shift = targets.mean()
    factors, jitter = factors_of(choice.scale * gram, noise)
    if jitter > 0:
        yield Caution(f"the kernel of {len(x):,} points is not positive definite; {jitter:.1e} was added")
    heats = _heats(choice, gram, labels, size) if options.heat is None else dict.fromkeys(HOWS, options.heat)
    yield Note(f"alpha {choice.alpha:.1e}, scale {choice.scale:.2e}, temperature {heats[options.how]:.2f}")
    prior = Prior(linearized, Hyper(noise=0.0, scale=choice.scale, mean="zero"))
    layout = Layout(linearized.outputs, linearized.num_outputs(x), size, apart=True)
    solver = FunctionSpace(
        prior, x, factors, layout.basis(len(x), "zero").to(gram), layout.rows(targets - shift), jitter
    )
    posterior = Posterior(prior, layout, "function", solver, shift.expand(size).clone(), len(x))
    return Classified(posterior, choice, heats, options.how)


def _heats(choice: Choice, gram: Tensor, labels: Tensor, size: int) -> dict[How, float]:
    """Temperatures of left-out points; 1 where none can be left out."""
    counted = countable(labels)
    if not bool(counted.any()):
        return dict.fromkeys(HOWS, 1.0)
    mean, variance = (one[counted] for one in left_out(choice.scale * gram, labels, size, choice.alpha))

    def fitted(how: How) -> float:
        centre, width = PRIORS[how]
        return temperature(lambda heat: class_probabilities(mean, variance, how, heat), labels[counted], width, centre)

    return {how: fitted(how) for how in HOWS}


def checked_points(
    linearized: Linearized, x: Tensor, labels: Tensor, num_classes: int | None
) -> tuple[Tensor, Tensor, int]:
    """Inputs and labels where the network is, and C; refused if they cannot be told apart or do not fit."""
    x = linearized.inputs(x)
    labels = checked_labels(labels, len(x), num_classes).to(x.device)
    require(
        linearized.outputs != "all",
        "classes share one kernel here; linearize with outputs='sum', or with the number of one output",
        MismatchError,
    )
    require(
        len(labels.unique()) > 1,
        f"all {len(labels)} labels are of one class, so that there is nothing to tell apart; add samples of another",
        DataError,
    )
    size = num_classes or int(labels.max()) + 1
    require_room(len(x), size)
    return x, labels, size


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


def require_room(count: int, num_classes: int) -> None:
    """Refuse more than fits into memory."""
    size = num_classes * count**2
    require(
        size <= NUMBERS,
        f"{count:,} points of {num_classes} classes need {8 * size / 2**30:,.1f} GiB; give at most "
        f"{math.isqrt(NUMBERS // num_classes):,} points",
        DataError,
    )
