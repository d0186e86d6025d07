"""FisherDiagonal: what is kept of a network's Fisher information."""

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
        labels: whose labels the expectation is over: `observed`, `sampled` or `expected`.
        num_samples: N.

    >>> fisher = FisherDiagonal({"w": torch.tensor([1.0, 3.0])}, "observed", 10)
    >>> fisher.trace(), fisher.unit_trace().values["w"]
    (4.0, tensor([0.2500, 0.7500]))
    """

    values: Params
    labels: str
    num_samples: int

    def trace(self) -> float:
        """Sum over all weights."""
        return float(sum(value.double().sum() for value in self.values.values()))

    def unit_trace(self) -> "FisherDiagonal":
        """The same, scaled to a sum of one; its square root is a point on the unit sphere."""
        total = self.trace()
        require(
            total > 0,
            "the Fisher information is zero everywhere; the network does not depend on its weights here",
            MismatchError,
        )
        scaled = {name: value / total for name, value in self.values.items()}
        return FisherDiagonal(scaled, self.labels, self.num_samples)

    def flat(self) -> Tensor:
        """All values in one vector `[P]`."""
        return torch.cat([value.flatten() for value in self.values.values()])

    def to_state(self) -> State:
        """The form that the zoo keeps."""
        facts = {"labels": self.labels, "num_samples": self.num_samples, "names": list(self.values)}
        return State(self.values, facts)

    @classmethod
    def from_state(cls, state: State) -> "FisherDiagonal":
        """The inverse of `to_state`."""
        facts = state.read(_Facts)
        values = {name: state.tensors[name] for name in facts["names"]}
        return cls(values, facts["labels"], facts["num_samples"])


class _Facts(TypedDict):
    """What is stored beside the values."""

    names: list[str]
    labels: str
    num_samples: int
