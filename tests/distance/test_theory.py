"""What theory says of the distance: on a convex loss it vanishes between two runs, and settles between two tasks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nearkin as nk
from nearkin.distance import frechet
from nearkin.fisher import FisherDiagonal, diagonal

STEPS = 1600  # of 256 samples


def averaged(x: Tensor, y: Tensor, seed: int, stops: tuple[int, ...]) -> list[nn.Linear]:
    """Softmax regression by SGD from a start of its own; the mean of the second half of its weights at every stop."""
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], int(y.max()) + 1)
    nn.init.normal_(model.weight, std=0.5)
    optimiser = torch.optim.SGD(model.parameters(), 0.2, weight_decay=2e-2)
    path, found = [], []
    for step in range(max(stops)):
        index = torch.randint(len(x), (256,))
        optimiser.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimiser.step()
        path.append(torch.cat([model.weight.detach().flatten(), model.bias.detach()]))
        if step + 1 in stops:
            mean = torch.stack(path[(step + 1) // 2 :]).mean(0)
            made = nn.Linear(x.shape[1], model.out_features)
            with torch.no_grad():
                made.weight.copy_(mean[: made.weight.numel()].view_as(made.weight))
                made.bias.copy_(mean[made.weight.numel() :])
            found.append(made)
    return found


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    task = nk.task("digits")
    (x, y), (x_test, y_test) = task.train.all(), task.test.all()
    return x.flatten(1), y, x_test.flatten(1), y_test


def measured(models: list[nn.Linear], x: Tensor, y: Tensor) -> list[FisherDiagonal]:
    return [diagonal(model, x, y) for model in models]


def test_two_runs_on_one_convex_task_come_together(digits: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Theorem 1: d → 0 like 1/√t; eight times the steps at least halve it, and it ends below 0.02."""
    x, y, x_test, y_test = digits
    stops = (200, STEPS)
    runs = [measured(averaged(x, y, seed, stops), x_test, y_test) for seed in (0, 1)]
    early, late = (frechet(f, g) for f, g in zip(*runs, strict=True))
    assert late < 0.02
    assert late < early / 2


@pytest.mark.soak
def test_two_convex_tasks_settle_at_a_distance(digits: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Theorem 2: the distance of two tasks goes to a constant above zero; two runs agree on it."""
    x, y, x_test, y_test = digits
    odd, odd_test = (y + 3) % 10, (y_test + 3) % 10  # the same images, other answers
    found = []
    for seed in (0, 2):
        (own,) = measured(averaged(x, odd, seed, (STEPS,)), x_test, odd_test)
        (other,) = measured(averaged(x, y, seed + 1, (STEPS,)), x_test, odd_test)
        found.append(frechet(other, own))
    assert min(found) > 0.1
    assert abs(found[0] - found[1]) < 0.02
