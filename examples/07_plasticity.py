"""One model, three tasks in sequence: forgetting with plain training, with L2 to the anchor, and with EWC.

Every task shows the digits with their pixels in another order. The same object that protects the shared weights of
several models protects one model here: elastic weight consolidation (Kirkpatrick et al. 2017).

python examples/07_plasticity.py
"""

import torch
from torch import Tensor, nn

import nearkin as nk

RATE, STEPS = 0.05, 200
WAYS = {
    "plain": None,
    "L2": {"importance": "uniform", "update": "sum"},
    "EWC": {"update": "sum"},
}


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def train(model: nn.Module, x: Tensor, y: Tensor, plasticity: nk.WeightPlasticity | None, seed: int) -> None:
    """SGD with momentum; the third line of plasticity follows every step."""
    rng, optimiser = torch.Generator().manual_seed(seed), torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (64,), generator=rng)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
        if plasticity is not None:
            plasticity.pull(RATE)


def main() -> None:
    digits = nk.task("digits")
    (x, y), (x_test, y_test) = ((part.flatten(1), labels) for part, labels in (digits.train.all(), digits.test.all()))
    orders = [torch.randperm(64, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    for name, options in WAYS.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
        plasticity = None if options is None else nk.WeightPlasticity(model, **options)
        for number, order in enumerate(orders):
            train(model, x[200:, order], y[200:], plasticity, seed=number)
            if plasticity is not None:
                plasticity.anchor(model, x[:200, order], y[:200])
        scores = [accuracy(model, x_test[:, order], y_test) for order in orders]
        print(f"{name:6s} accuracy of the tasks after the last one: {', '.join(f'{score:.3f}' for score in scores)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
