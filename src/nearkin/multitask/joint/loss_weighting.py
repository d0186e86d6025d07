r"""Factors of the training losses of several tasks that are trained together.

| weighting | factor of task k |
| --- | --- |
| `uniform` | 1 |
| `given` | as given |
| `uncertainty` | $e^{-s_k}$ with learned log variances: minimises $\sum_k e^{-s_k} L_k + s_k$ (Kendall et al. 2018) |
| `gradient-norm` | learned, so that gradients have like norms (GradNorm, Chen et al. 2018) |

Uncertainty is the form for classification of Kendall et al. up to a factor; at its minimum $e^{s_k} = L_k$. GradNorm
lowers $\sum_k |w_k n_k - \bar G r_k^a|$ in $w$, where $n_k$ is the norm of the gradient of task k, $\bar G$ the mean of
$w_k n_k$, and $r_k$ the loss as a fraction of the first one, over the mean of these fractions. The factors then get
the sum K again. Both learn by Adam from the losses of the same step, and the new factors hold from the next step on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.core.errors import require, require_positive
from nearkin.core.numbers import real_number
from nearkin.core.state import State, copied, prefixed
from nearkin.multitask.multitask_search import MultitaskOptions
from nearkin.search.methods.optimiser_state import load_optimiser, optimiser_tensors

WEIGHTINGS = ("uniform", "given", "uncertainty", "gradient-norm")
LARGEST = 7.0  # of a log variance: a likelihood may be above 1, and its loss then has no minimum
SMALLEST = 1e-3  # of a factor, and of the fraction of a loss


@dataclass(frozen=True, kw_only=True)
class WeightingOptions(MultitaskOptions):
    """Options of the weighted sum of the training losses.

    Attributes:
        weighting: uniform, given, uncertainty or gradient-norm.
        loss_weights: factors of the losses in the order of the tasks, such as "1,0.5"; needs weighting given.
        weighting_rate: learning rate of Adam on learned factors.
        restoring: a of gradient-norm; the larger, the more a task that learns slowly is favoured.
    """

    weighting: str = "uniform"
    loss_weights: str = ""
    weighting_rate: float = 0.025
    restoring: float = 1.5

    def __post_init__(self) -> None:
        require(
            self.weighting in WEIGHTINGS, f"weighting must be one of {', '.join(WEIGHTINGS)}, got {self.weighting!r}"
        )
        require(
            (self.weighting == "given") == bool(self.loss_weights),
            f"got loss_weights {self.loss_weights!r} with weighting {self.weighting}; give both weighting=given and "
            f"loss_weights, such as 1,0.5, or neither",
        )
        require_positive("weighting_rate", self.weighting_rate)
        require(self.restoring >= 0, f"restoring must be 0 or more, got {self.restoring}")

    def given_factors(self, num_tasks: int) -> list[float]:
        """The given factors.

        >>> WeightingOptions(weighting="given", loss_weights="1, 0.5").given_factors(2)
        [1.0, 0.5]
        """
        values = [real_number(text.strip()) for text in self.loss_weights.split(",")]
        factors = [value for value in values if value is not None and 0 < value < float("inf")]
        require(
            len(factors) == len(values) == num_tasks,
            f"loss_weights is {self.loss_weights!r}, expected {num_tasks} numbers above 0, one for each task, such as "
            f"{','.join(['1'] * num_tasks)}",
        )
        return factors


class LossWeighting:
    """Factors of the training losses, which learn from the losses and from the norms of their gradients.

    Args:
        options: kind and learning rate.
        num_tasks: K.

    >>> weighting = LossWeighting(WeightingOptions(weighting="uncertainty"), 2)
    >>> weighting.factors
    [1.0, 1.0]
    """

    def __init__(self, options: WeightingOptions, num_tasks: int) -> None:
        self.options = options
        start = torch.zeros(num_tasks) if options.weighting == "uncertainty" else torch.ones(num_tasks)
        if options.weighting == "given":
            start = torch.tensor(options.given_factors(num_tasks))
        self.values: Tensor = start.double()
        self.first: list[float] = []
        self._adam = torch.optim.Adam([self.values], options.weighting_rate)

    @property
    def factors(self) -> list[float]:
        """Present factors in the order of the tasks."""
        values = (-self.values).exp() if self.options.weighting == "uncertainty" else self.values
        return [float(value) for value in values]

    def update(self, losses: Sequence[float], norms: Sequence[float]) -> None:
        """One step of learned factors; others stay.

        Args:
            losses: training losses without factors.
            norms: norms of their gradients, without factors; used by gradient-norm only.
        """
        if self.options.weighting == "uncertainty":
            self._step(1 - (-self.values).exp() * torch.tensor(losses, dtype=torch.float64))
            self.values.clamp_(-LARGEST, LARGEST)
        elif self.options.weighting == "gradient-norm":
            self.first = self.first or list(losses)
            self._step(self._norm_slope(losses, torch.tensor(norms, dtype=torch.float64)))
            self.values.clamp_(min=SMALLEST)
            self.values.mul_(len(losses) / self.values.sum())

    def _norm_slope(self, losses: Sequence[float], norms: Tensor) -> Tensor:
        fractions = [loss / first if first > 0 else 1.0 for loss, first in zip(losses, self.first, strict=True)]
        left = torch.tensor(fractions, dtype=torch.float64).clamp(min=SMALLEST)
        weighted = self.values * norms
        return torch.sign(weighted - weighted.mean() * (left / left.mean()) ** self.options.restoring) * norms

    def _step(self, slope: Tensor) -> None:
        self.values.grad = slope
        self._adam.step()

    def capture(self) -> State:
        """Copy factors and moments."""
        return State(copied({"values": self.values, **prefixed("adam", optimiser_tensors(self._adam))}),
                     {"first": list(self.first)})  # fmt: skip

    def restore(self, saved: State) -> None:
        """The inverse of `capture`, in place."""
        self.values.copy_(saved.tensors["values"])
        load_optimiser(self._adam, saved.section("adam"))
        self.first = list(saved.facts["first"])
