"""Two models that share layers, on digits: plasticity keeps the accuracy of the first one."""

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.search.plasticity.telemetry import reduction

RATE, STEPS = 0.1, 150
Data = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def digits() -> Data:
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


def chain(layers: list[nn.Linear]) -> nn.Sequential:
    return nn.Sequential(*(part for layer in layers[:-1] for part in (layer, nn.ReLU())), layers[-1])


def models(same_data: bool) -> tuple[nn.Module, nn.Module, nn.Module]:
    """A, B and what they share: all four layers of A, between which B has two more; or the first two layers."""
    first = [nn.Linear(64, 100), nn.Linear(100, 100)]
    if not same_data:
        return chain([*first, nn.Linear(100, 10)]), chain([*first, nn.Linear(100, 50), nn.Linear(50, 10)]), chain(first)
    third, last = nn.Linear(100, 100), nn.Linear(100, 10)
    a = chain([*first, third, last])
    return a, chain([*first, third, nn.Linear(100, 100), nn.Linear(100, 100), last]), a


def run(seed: int, data: Data, same_data: bool, with_plasticity: bool) -> tuple[float, float, float]:
    """Accuracy of A before and after the training of B, and that of B; B learns the same digits, or upside down."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    a, b, shared = models(same_data)
    x_b, x_b_test = (x, x_test) if same_data else (x.flip(1), x_test.flip(1))

    def accuracy(model: nn.Module, inputs: Tensor) -> float:
        with torch.no_grad():
            return float((model(inputs).argmax(1) == y_test).double().mean())

    train(a, x[200:], y[200:], seed)
    before, plasticity = accuracy(a, x_test), None
    if with_plasticity:
        plasticity = nk.WeightPlasticity(shared.named_parameters())
        plasticity.anchor(a, x[:200], y[:200])
    train(b, x_b[200:], y[200:], seed + 1, plasticity)
    return before, accuracy(a, x_test), accuracy(b, x_b_test)


def reductions(seeds: range, data: Data, same_data: bool) -> list[float]:
    """Reductions of forgetting in the runs in which A loses more than 0.05 without plasticity."""
    results = []
    for seed in seeds:
        before, after, _ = run(seed, data, same_data, with_plasticity=False)
        _, held, other = run(seed, data, same_data, with_plasticity=True)
        if before - after > 0.05:
            results.append(reduction(before - after, before - held))
        assert other > 0.8
    return results


@pytest.mark.slow
def test_plasticity_prevents_the_forgetting_of_the_same_data(digits: Data) -> None:
    """More than 0.8 of the loss of A is prevented in every run with a loss; 12 runs of 14 seeds had 0.95 to 1.05."""
    values = reductions(range(3), digits, same_data=True)
    assert len(values) >= 2
    assert min(values) > 0.8


@pytest.mark.soak
@pytest.mark.slow
def test_plasticity_prevents_most_of_the_forgetting_of_other_data(digits: Data) -> None:
    """More than 0.8 in the mean; this is harder than the same data, and single runs were 0.76 to 1.0."""
    values = reductions(range(3), digits, same_data=False)
    assert len(values) >= 2
    assert sum(values) / len(values) > 0.8
