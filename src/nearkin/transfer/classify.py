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
from nearkin.transfer.labels.calibration import fit_temperature
from nearkin.transfer.labels.classes import DIRICHLET, Classes
from nearkin.transfer.labels.dirichlet import (
    DirichletChoice,
    can_be_left_out,
    choose,
    class_factors,
    dirichlet_targets,
    left_out,
)
from nearkin.transfer.labels.probabilities import HOWS, How, class_probabilities, require_how
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.targets import RowLayout

NUMBERS = 2**28  # in the Cholesky factors of all classes: 2 GiB
PRIORS: Mapping[How, tuple[float, float]] = {"mean": (0.3, 0.35), "sampled": (0.0, 0.25)}
"""Mean and standard deviation of the prior of log T.

The softmax of the mean ignores the variances, so it needs a slightly higher temperature. The value was fitted on MNIST,
CIFAR-10 and MNIST to Fashion-MNIST, see `docs/figures/transfer-classes.md`.
"""


@dataclass(frozen=True, eq=False)
class Classified:
    """The posterior of class scores given labels; returned by `classify`.

    Attributes:
        posterior: of the class scores, one Gaussian process for each class.
        choice: α_ε, the scale, and the loss on left-out labels.
        temperatures: the temperature T for each kind of probabilities.
        how: the default kind of probabilities, `mean` or `sampled`.
    """

    posterior: Posterior
    choice: DirichletChoice
    temperatures: Mapping[How, float]
    how: How

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.posterior.layout.num_targets

    @property
    def num_points(self) -> int:
        """N, the number of training points."""
        return self.posterior.num_points

    def facts(self) -> dict[str, Any]:
        """The chosen options as plain JSON values."""
        return {
            "method": "dirichlet",
            "alpha": self.choice.alpha,
            "scale": self.choice.scale,
            "temperature": self.temperatures[self.how],
            "how": self.how,
            "left_out_nll": self.choice.loss,
        }

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the class scores `[M, C]`."""
        return self.posterior.predict(x)

    def probabilities(self, x: Tensor, how: How | None = None) -> Tensor:
        """Class probabilities `[M, C]` in float64."""
        how = how or self.how
        require_how(how)
        if how == "mean":  # variances are not needed, which saves half the time
            return (self._means(x) / self.temperatures[how]).softmax(1)
        return class_probabilities(*self.scores(x), how, self.temperatures[how])

    def _means(self, x: Tensor) -> Tensor:
        """Means of the class scores `[M, C]`, as one product for all classes."""
        solver, x = self.posterior.solver, self.posterior.linearized.inputs(x)
        assert isinstance(solver, FunctionSpace)
        weights = self.posterior.layout.back(solver.weights)
        means = [solver.prior.kernel(block, solver.x) @ weights for block in blocks(x, self.num_points)]
        return torch.cat(means) + self.posterior.shift

    def sample(self, x: Tensor, count: int, generator: Generator) -> Tensor:
        """Probabilities under functions drawn from the posterior `[count, M, C]`."""
        return (self.posterior.sample(x, count, generator) / self.temperatures["sampled"]).softmax(2)

    def extended(self, x: Tensor, labels: Tensor) -> "Classified":
        """The posterior given further labels, with the same α_ε, scale and temperature."""
        labels = checked_labels(labels, len(x), self.num_classes)
        targets, noise = dirichlet_targets(labels, self.num_classes, self.choice.alpha)
        require_memory(self.num_points + len(x), self.num_classes)
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
        labels: class indices `[N]` of two or more different classes.
        num_classes: C (default: one more than the largest label).
        options: α_ε, scale, temperature and kind of probabilities; options that are None are chosen by leave-one-out.
        seed: of the points that are left out, if there are too many for all.

    >>> from nearkin.transfer.linearized import linearize
    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> posterior = classify(linearize(torch.nn.Linear(1, 3)), x, torch.tensor([0, 0, 1, 1]))
    >>> posterior.probabilities(torch.tensor([[-1.5], [1.5]])).argmax(1)
    tensor([0, 1])
    """
    require(
        options.method == "dirichlet", f"classify is for method='dirichlet', got method={options.method!r}; use laplace"
    )
    x, labels, size = checked_points(linearized, x, labels, num_classes)
    gram = yield from linearized.kernel.work(x)
    choice = yield from choose(gram, labels, size, options.alpha, options.scale, seed)
    targets, noise = dirichlet_targets(labels, size, choice.alpha)
    shift = targets.mean()
    factors, jitter = class_factors(choice.scale * gram, noise)
    if jitter > 0:
        yield Caution(
            f"the kernel of {len(x):,} points is not positive definite; {jitter:.1e} was added to its diagonal"
        )
    temperatures = (
        _fitted_temperatures(choice, gram, labels, size)
        if options.temperature is None
        else dict.fromkeys(HOWS, options.temperature)
    )
    yield Note(f"alpha {choice.alpha:.1e}, scale {choice.scale:.2e}, temperature {temperatures[options.how]:.2f}")
    prior = Prior(linearized, Hyper(noise=0.0, scale=choice.scale, mean="zero"))
    layout = RowLayout(linearized.outputs, linearized.num_outputs(x), size, apart=True)
    solver = FunctionSpace(
        prior, x, factors, layout.basis(len(x), "zero").to(gram), layout.rows(targets - shift), jitter
    )
    posterior = Posterior(prior, layout, "function", solver, shift.expand(size).clone(), len(x))
    return Classified(posterior, choice, temperatures, options.how)


def _fitted_temperatures(choice: DirichletChoice, gram: Tensor, labels: Tensor, size: int) -> dict[How, float]:
    """Temperatures fitted to left-out points; 1 if none can be left out."""
    usable = can_be_left_out(labels)
    if not bool(usable.any()):
        return dict.fromkeys(HOWS, 1.0)
    mean, variance = (moment[usable] for moment in left_out(choice.scale * gram, labels, size, choice.alpha))

    def fitted(how: How) -> float:
        centre, width = PRIORS[how]
        return fit_temperature(lambda t: class_probabilities(mean, variance, how, t), labels[usable], width, centre)

    return {how: fitted(how) for how in HOWS}


def checked_points(
    linearized: Linearized, x: Tensor, labels: Tensor, num_classes: int | None
) -> tuple[Tensor, Tensor, int]:
    """Inputs and labels on the network's device, and C; refused if there is one class, or too little memory."""
    x = linearized.inputs(x)
    labels = checked_labels(labels, len(x), num_classes).to(x.device)
    require(
        linearized.outputs != "all",
        "got outputs='all', but classes share one kernel; linearize with outputs='sum' or the index of one output",
        MismatchError,
    )
    require(
        len(labels.unique()) > 1,
        f"all {len(labels)} labels are of one class, expected two or more; add samples of another class",
        DataError,
    )
    size = num_classes or int(labels.max()) + 1
    require_memory(len(x), size)
    return x, labels, size


def checked_labels(labels: Tensor, count: int, num_classes: int | None) -> Tensor:
    """Labels `[N]` as integers from 0 to C − 1."""
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


def require_memory(count: int, num_classes: int) -> None:
    """Refuse more points than fit into memory."""
    size = num_classes * count**2
    require(
        size <= NUMBERS,
        f"{count:,} points of {num_classes} classes need {8 * size / 2**30:,.1f} GiB; give at most "
        f"{math.isqrt(NUMBERS // num_classes):,} points",
        DataError,
    )
