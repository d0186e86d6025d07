"""Trainings that one and two processes do: networks in float64, whose results differ by rounding only, and one more."""

import torch
from torch import Tensor, nn

from nearkin.nets.recipe import Recipe
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task

MIXED = "mixed"
"""The case with batch normalisation and dropout, whose result depends on the number of processes."""

CASES = {
    "plain": Recipe(epochs=3, batch_size=24, smoothing=0.1),  # 23 of 150 samples in a batch: shares of 11 and 12
    "stopping": Recipe(
        epochs=6, batch_size=24, optimiser="sgd", learning_rate=0.1, patience=1, clip=0.5, smoothing=0.1
    ),
    "augmented": Recipe(epochs=2, batch_size=40, averaging=0.5, augment="crop=1"),
    MIXED: Recipe(epochs=3, batch_size=24, averaging=0.5),
}


class Double(nn.Module):
    """A small convolutional network in float64, with a weight that no output depends on."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        middle = [nn.BatchNorm2d(6), nn.Dropout(0.2)] if mixed else []
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3), *middle, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 10)
        ).double()
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.double())


def network(case: str) -> Double:
    torch.manual_seed(7)
    return Double(case == MIXED)


def few(limit: int = 150) -> Task:
    return read(f"digits?limit={limit}")
