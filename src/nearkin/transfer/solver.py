"""What the spaces share: a Gaussian process over rows that has been solved."""

from typing import Any, Protocol

from torch import Tensor

from nearkin.core.events import Work
from nearkin.transfer.function_space import FunctionSpace
from nearkin.transfer.iterative.large import Large
from nearkin.transfer.iterative.large_weight import LargeWeight
from nearkin.transfer.weight_space import WeightSpace


class Solver(Protocol):
    """A solved Gaussian process over rows; see `function_space`, `weight_space`, `large` and `large_weight`."""

    @property
    def constants(self) -> Tensor:
        """`[F, Q, T]`, fitted to the targets."""
        ...

    @property
    def weights(self) -> Tensor:
        """`[F, R, T]` of the kernel's rows, or `[F, D, T]` of the features."""
        ...

    @property
    def log_evidence(self) -> float:
        """The log probability of the targets."""
        ...

    @property
    def jitter(self) -> float:
        """What had to be added to the diagonal."""
        ...

    def means(self, x: Tensor) -> Tensor:
        """Means `[F, S, T]` alone, constants left out."""
        ...

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[F, S, T]`, constants left out, and variances `[F, S]`."""
        ...

    def covariance(self, x: Tensor) -> Tensor:
        """`[F, S, S]`."""
        ...

    def extended(self, x: Tensor, noise: Tensor, basis: Tensor, targets: Tensor) -> Work[Any]:
        """The same with further points."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What the solver can be made of again."""
        ...


SPACES: dict[str, type[FunctionSpace] | type[WeightSpace] | type[Large] | type[LargeWeight]] = {
    "function": FunctionSpace,
    "weight": WeightSpace,
    "large": Large,
    "large-weight": LargeWeight,
}
