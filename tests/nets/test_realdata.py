"""The official data sets, read and trained on for at most an epoch; the figures are those of any textbook."""

from pathlib import Path

import pytest
import torch

import nearkin as nk

pytestmark = pytest.mark.realdata

CASES = [
    ("mnist", "lenet", (1, 28, 28), 60_000, 10_000, 10, 0.95),
    ("fashion", "lenet", (1, 28, 28), 60_000, 10_000, 10, 0.78),
    ("cifar10?limit=5000", "resnet18?width=0.125", (3, 32, 32), 5_000, 3_000, 10, 0.25),
    ("cifar100?labels=coarse&limit=5000", "lenet", (3, 32, 32), 5_000, 3_000, 20, 0.09),
    ("cifar100", "lenet", (3, 32, 32), 15_000, 3_000, 100, 0.04),
]


@pytest.mark.soak
@pytest.mark.parametrize(("data", "network", "shape", "train", "test", "classes", "metric"), CASES)
def test_at_most_one_epoch(
    real_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: str,
    network: str,
    shape: tuple[int, ...],
    train: int,
    test: int,
    classes: int,
    metric: float,
) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    task = nk.task(data)
    assert (task.input_shape, len(task.train), len(task.test), len(task.classes)) == (shape, train, test, classes)
    part = nk.Recipe(steps=250, batch_size=128) if train == 60_000 else nk.Recipe(epochs=1, batch_size=128)
    done = nk.fit(nk.build(network, shape, classes, 0), task, part)
    assert done.scores.metric > metric


def test_scaling_has_the_published_moments(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))
    for data, means, stds in (
        ("mnist", [0.1307], [0.3081]),
        ("fashion", [0.2860], [0.3530]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ):
        scaling = nk.task(data).train.scaling
        assert scaling.mean.tolist() == pytest.approx(means, abs=0.006)
        assert scaling.std.tolist() == pytest.approx(stds, abs=0.006)


@pytest.mark.soak
def test_penn_treebank_beats_its_unigram(real_data: Path) -> None:
    task = nk.task(f"text:{real_data / 'ptb'}?length=20&vocabulary=1000&limit=12000")
    model = nk.build("recurrent?hidden=64&embedding=64", task.input_shape, task.num_outputs, 0)
    done = nk.fit(model, task, nk.Recipe(epochs=1, batch_size=32, learning_rate=5e-3, clip=1.0))
    counts = torch.bincount(task.train.labels().flatten(), minlength=len(task.classes)).double() + 1
    unigram = -(counts / counts.sum()).log()[task.test.labels().flatten()].mean()
    assert done.scores.loss < unigram - 0.2
