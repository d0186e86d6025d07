"""Two models that share layers, on digits: plasticity keeps the accuracy of the first one."""

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.search.plasticity.telemetry import reduction

RATE, STEPS = 0.1, 150


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    task = nk.task("digits")
    (x, y), (x_test, y_test) = task.train.all(), task.test.all()
    return x.flatten(1), y, x_test.flatten(1), y_test


def train(model: nn.Module, x: Tensor, y: Tensor, seed: int, plasticity: nk.WeightPlasticity | None = None) -> None:
    rng, optimiser = torch.Generator().manual_seed(seed), torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (64,), generator=rng)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
        if plasticity is not None:
            plasticity.pull(RATE)


def run(seed: int, data: tuple[Tensor, Tensor, Tensor, Tensor], with_plasticity: bool) -> tuple[float, float, float]:
    """Accuracy of A before and after the training of B, and that of B; B learns the digits upside down."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    trunk = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    a, b = (
        nn.Sequential(trunk, nn.Linear(100, 10)),
        nn.Sequential(trunk, nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)),
    )

    def accuracy(model: nn.Module, inputs: Tensor) -> float:
        with torch.no_grad():
            return float((model(inputs).argmax(1) == y_test).double().mean())

    train(a, x[200:], y[200:], seed)
    before, plasticity = accuracy(a, x_test), None
    if with_plasticity:
        plasticity = nk.WeightPlasticity(trunk.named_parameters())
        plasticity.anchor(a, x[:200], y[:200])
    train(b, x[200:].flip(1), y[200:], seed + 1, plasticity)
    return before, accuracy(a, x_test), accuracy(b, x_test.flip(1))


@pytest.mark.slow
def test_plasticity_prevents_most_of_the_forgetting(digits: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Over the runs in which A loses more than 0.05 without it, more than 0.8 of the loss is prevented in the mean.

    B has other data than A, which is harder than two models of the same data; single runs were 0.76 to 1.0.
    """
    reductions = []
    for seed in range(3):
        before, after, _ = run(seed, digits, with_plasticity=False)
        _, held, other = run(seed, digits, with_plasticity=True)
        if before - after > 0.05:
            reductions.append(reduction(before - after, before - held))
        assert other > 0.8
    assert len(reductions) >= 2
    assert sum(reductions) / len(reductions) > 0.8
