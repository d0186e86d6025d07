"""Aids in the training of cell networks that are removed afterwards: increasing drop-path and an auxiliary head."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from nearkin.core.rng import derived_seed, seeded
from nearkin.search.networks.cells import CellNetwork
from nearkin.search.networks.operations import convolution
from nearkin.search.networks.skeleton import Skeleton
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.task import Task

AUXILIARY_CHANNELS = 128


class AuxiliaryHead(nn.Module):
    """ReLU, 1x1 convolution, batch norm, ReLU, mean over the map, linear layer: `[N, C, H, W]` to `[N, K]`."""

    def __init__(self, channels: int, num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.ReLU(), *convolution(channels, AUXILIARY_CHANNELS, 1), nn.ReLU())
        self.head = nn.Linear(AUXILIARY_CHANNELS, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        outputs: Tensor = self.head(self.body(x).mean((2, 3)))
        return outputs


class CellNetworkInTraining(nn.Module):
    """A cell network during training: drop-path increases with every step, and an auxiliary head gives extra outputs.

    In training mode with an auxiliary head it returns a pair of outputs, otherwise those of the network. The number of
    steps is a buffer, so a resumed run continues with the same drop-path rate.
    """

    steps: Tensor

    def __init__(self, network: CellNetwork, skeleton: Skeleton, num_outputs: int, total: int, seed: int) -> None:
        super().__init__()
        self.network, self.rate, self.total = network, skeleton.drop_path, total
        with seeded(derived_seed(seed, "auxiliary")):
            self.auxiliary = AuxiliaryHead(network.middle_width, num_outputs) if skeleton.auxiliary else None
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Images to outputs, in training with an auxiliary head to a pair of outputs."""
        if not self.training:
            outputs: Tensor = self.network(x)
            return outputs
        self.network.set_drop_path(self.rate * min(1.0, self.steps.item() / self.total))
        self.steps += 1
        middle, last = self.network.feature_maps(x)
        outputs = self.network.outputs_of(last)
        return outputs if self.auxiliary is None else (outputs, self.auxiliary(middle))


class AuxiliaryLoss:
    """A likelihood whose loss of a pair of outputs is the first loss plus the weighted second loss."""

    def __init__(self, form: Likelihood, weight: float) -> None:
        self._form, self._weight = form, weight

    def loss(
        self,
        outputs: Tensor | tuple[Tensor, Tensor],
        targets: Tensor,
        smoothing: float = 0.0,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Scalar that training minimises."""
        if isinstance(outputs, Tensor):
            return self._form.loss(outputs, targets, smoothing, weights)
        main, second = (self._form.loss(output, targets, smoothing, weights) for output in outputs)
        return main + self._weight * second

    def __getattr__(self, name: str) -> Any:
        return getattr(self._form, name)


@dataclass(frozen=True, eq=False)
class AuxiliaryTask(Task):
    """A task that is trained with an auxiliary loss."""

    weight: float = 0.0

    @classmethod
    def of_task(cls, task: Task, weight: float) -> "AuxiliaryTask":
        """The task with a likelihood that accepts pairs of outputs."""
        values = (task.name, task.train, task.test, task.likelihood, task.classes, task.input_shape, task.source)
        return cls(*values, weight=weight)

    @property
    def form(self) -> Likelihood:
        """Likelihood with the weighted loss of the second output."""
        return cast(Likelihood, AuxiliaryLoss(super().form, self.weight))
