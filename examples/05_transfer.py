"""Transfer without training: five digits from the network of five others, and a stream of curves from one curve's.

python examples/05_transfer.py [FOLDER]
"""

import sys

import torch
from torch import nn

import nearkin as nk
from nearkin.tasks.papers.sinusoids import sinusoid_tasks
from nearkin.transfer import family, linearize


def digits(folder: str) -> None:
    """Closed-form transfer with ten labels for each class, and its baselines."""
    with nk.Zoo(folder) as zoo:
        if "low" not in zoo:
            zoo.add(nk.task("digits?classes=0,1,2,3,4&rest=drop&limit=400", name="low"), trials=1)
        result = zoo.transfer("low", nk.task("digits?classes=5,6,7,8,9&rest=drop", name="high"), shots=10)
    for row in (result.outcome, *result.baselines):
        print(f"{row.name:20s} accuracy {row.metric:.3f}, calibration error {row.ece:.3f}, {row.seconds:.1f} s")


def curves() -> None:
    """Curves of ten points: noise and scale are learned from earlier curves and used for the next one."""
    first, *others = sinusoid_tasks(9, seed=1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    nk.fit(net, first, nk.Recipe.suited(first, epochs=300))
    points = [task.train.all() for task in others]
    known = family(linearize(net), points[:4])
    for task, step in zip(others[4:], known.stream(points[4:]), strict=True):
        x, y = task.test.all()
        mean, variance = step.posterior.predict(x, observed=True)
        inside = ((y - mean).abs() <= 1.645 * variance.sqrt()).double().mean()
        error = (y - mean).square().mean().sqrt() / y.std()
        text = f"error {error:.2f} of the curve's deviation, {inside:.0%} of points in the 90 % interval"
        print(f"after {step.before.num_tasks} curves: {text}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    digits(sys.argv[1] if len(sys.argv) > 1 else "example-zoo")
    curves()
