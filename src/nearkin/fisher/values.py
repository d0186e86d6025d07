"""FisherDiagonal: the diagonal Fisher information of a network, and that of several tasks together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.state import State
from nearkin.core.types import Params


@dataclass(frozen=True, eq=False)
class FisherDiagonal:
    r"""$F_i = \frac1N \sum_n \mathbb{E}\left[(\partial_i \log p(y_n \mid x_n))^2\right]$ for every weight.

    Attributes:
        values: by the names of `model.named_parameters()`, in their shapes.
        labels: the labels over which the expectation is taken: `observed`, `sampled` or `expected`.
        num_samples: N.

    >>> fisher = FisherDiagonal({"w": torch.tensor([1.0, 3.0])}, "observed", 10)
    >>> fisher.trace(), fisher.unit_trace().values["w"]
    (4.0, tensor([0.2500, 0.7500]))
    >>> fisher
    FisherDiagonal(1 tensor, 2 weights, observed labels, 10 samples, trace 4)
    """

    values: Params
    labels: str
    num_samples: int

    def __repr__(self) -> str:
        """One line with sizes, labels and trace."""
        count, weights = len(self.values), sum(value.numel() for value in self.values.values())
        sizes = f"{count:,} tensor{'s' * (count != 1)}, {weights:,} weights"
        return f"FisherDiagonal({sizes}, {self.labels} labels, {self.num_samples:,} samples, trace {self.trace():.4g})"

    def trace(self) -> float:
        """Sum over all weights."""
        return float(sum(value.double().sum() for value in self.values.values()))

    def unit_trace(self) -> "FisherDiagonal":
        """The same scaled to a trace of one; its square root is a point on the unit sphere."""
        total = self.trace()
        require(
            total > 0,
            "the Fisher information is zero everywhere: the outputs do not depend on the weights; check the network",
            MismatchError,
        )
        scaled = {name: value / total for name, value in self.values.items()}
        return FisherDiagonal(scaled, self.labels, self.num_samples)

    def flat(self) -> Tensor:
        """All values in one vector `[P]`."""
        return torch.cat([value.flatten() for value in self.values.values()])

    def to_state(self) -> State:
        """The state that is stored in a zoo."""
        facts = {"labels": self.labels, "num_samples": self.num_samples, "names": list(self.values)}
        return State(self.values, facts)

    @classmethod
    def from_state(cls, state: State) -> "FisherDiagonal":
        """The inverse of `to_state`."""
        facts = state.read(_DiagonalFacts)
        values = {name: state.tensors[name] for name in facts["names"]}
        return cls(values, facts["labels"], facts["num_samples"])


class _DiagonalFacts(TypedDict):
    """The stored values that are not tensors."""

    names: list[str]
    labels: str
    num_samples: int


WEIGHTINGS = ("samples", "tasks")


def multitask_fisher(fishers: Sequence[FisherDiagonal], weighting: str = "samples") -> FisherDiagonal:
    r"""The Fisher information of several tasks that share one network, $\sum_t \pi_t F_t$ (Maddox et al. 2019, C.2).

    With $\pi_t = N_t / \sum_s N_s$ it is the Fisher information of the samples of all tasks together. With
    $\pi_t = 1/T$ it is the paper's expectation over tasks, in which all tasks have equal weight.

    Args:
        fishers: diagonals of the same parameters with the same kind of labels, one per task. If the heads differ,
            measure the shared parameters with `diagonal(..., names=...)`.
        weighting: `samples` or `tasks`.

    >>> small = FisherDiagonal({"w": torch.tensor([1.0, 3.0])}, "observed", 10)
    >>> large = FisherDiagonal({"w": torch.tensor([5.0, 3.0])}, "observed", 30)
    >>> multitask_fisher([small, large]).values["w"], multitask_fisher([small, large], "tasks").values["w"]
    (tensor([4., 3.]), tensor([3., 3.]))
    >>> multitask_fisher([small, large]).num_samples
    40
    """
    require(len(fishers) > 0, "there are no Fisher diagonals to combine; give one or more")
    require(weighting in WEIGHTINGS, f"weighting is one of {', '.join(WEIGHTINGS)}, got {weighting!r}")
    first, total = fishers[0], sum(fisher.num_samples for fisher in fishers)
    shapes = {name: value.shape for name, value in first.values.items()}
    for number, fisher in enumerate(fishers):
        require(
            {name: value.shape for name, value in fisher.values.items()} == shapes,
            f"the Fisher diagonal {number} has other parameters than the first one; measure the shared parameters of "
            f"one network with diagonal(..., names=...)",
            MismatchError,
        )
        require(
            fisher.labels == first.labels,
            f"the Fisher diagonal {number} has {fisher.labels} labels, the first one has {first.labels}; use one kind",
            MismatchError,
        )
    require(weighting == "tasks" or total > 0, "the Fisher diagonals have no samples; use weighting='tasks'")
    shares = [1 / len(fishers) if weighting == "tasks" else fisher.num_samples / total for fisher in fishers]
    values = {
        name: torch.stack([share * fisher.values[name] for share, fisher in zip(shares, fishers, strict=True)]).sum(0)
        for name in shapes
    }
    return FisherDiagonal(values, first.labels, total)
