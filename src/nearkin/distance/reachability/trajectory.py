"""Weights of a network recorded during stochastic gradient descent, as a path."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import TrainingError, require, require_positive
from nearkin.core.rng import Streams
from nearkin.distance.reachability.potentials import NetworkPotential


@dataclass(frozen=True)
class DescentOptions:
    """Plain stochastic gradient descent without momentum.

    Attributes:
        learning_rate: η.
        batch_size: samples of a step, drawn with replacement.
        steps: number of steps.
        every: steps between two recorded points; it divides `steps`.
        decay: weight decay γ.
        seed: seed of the batches.
    """

    learning_rate: float = 0.1
    batch_size: int = 16
    steps: int = 100
    every: int = 1
    decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("learning_rate", self.learning_rate)
        require(min(self.batch_size, self.steps, self.every) >= 1, "batch_size, steps and every must be 1 or more")
        require(self.steps % self.every == 0, f"every ({self.every}) must divide steps ({self.steps})")

    @property
    def duration(self) -> float:
        """Time of the whole path: η for each step."""
        return self.learning_rate * self.steps


def sgd_trajectory(
    model: nn.Module, x: Tensor, y: Tensor, options: DescentOptions | None = None, likelihood: str = "categorical"
) -> Tensor:
    """Weights of a network during training as points `[M + 1, P]`; the network itself is not changed.

    >>> net = nn.Linear(1, 1)
    >>> sgd_trajectory(net, torch.ones(4, 1), torch.ones(4, 1), DescentOptions(steps=6, every=3), "gaussian").shape
    torch.Size([3, 2])
    """
    options = options or DescentOptions()
    rng = Streams(options.seed)["batches"]
    point = NetworkPotential(model, x[:1], y[:1], likelihood).point()
    path = [point]
    for step in range(1, options.steps + 1):
        batch = torch.randint(len(x), (options.batch_size,), generator=rng)
        potential = NetworkPotential(model, x[batch], y[batch], likelihood, options.decay)
        point = point - options.learning_rate * potential.gradient(point)
        if step % options.every == 0:
            path.append(point)
    require(
        bool(point.isfinite().all()),
        f"training diverged; lower the learning rate ({options.learning_rate:g})",
        TrainingError,
    )
    return torch.stack(path)
