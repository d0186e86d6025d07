"""The paper's tasks on the official data sets, as far as it may be asserted: in the mean over trials."""

from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.zoo.zoo import Zoo

pytestmark = [pytest.mark.realdata, pytest.mark.soak]

MNIST = {
    "0": "mnist?detect=0&balance&limit=2000&size=14",
    "6": "mnist?detect=6&balance&limit=2000&size=14",
    "0123": "mnist?classes=0,1,2,3&rest=other&balance&limit=2000&size=14",
    "ten": "mnist?limit=2000&size=14",
}
CIFAR = {
    "a": "cifar10?detect=automobile,cat,ship&balance&limit=300&size=16",
    "b": "cifar10?detect=cat,ship,truck&balance&limit=300&size=16",
    "c": "cifar10?classes=bird,frog,horse&rest=other&balance&limit=300&size=16",
    "ten": "cifar10?limit=600&size=16",
}


@pytest.fixture(autouse=True)
def official(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(real_data))


def test_the_four_mnist_tasks_have_the_papers_neighbours(tmp_path: Path) -> None:
    """Two trials of LeNet; `benchmarks/paper_tasks.py`, where each of six trials agrees, has four networks."""
    with Zoo(tmp_path / "zoo") as zoo:
        for name, data in MNIST.items():
            zoo.add(nk.task(data, name=name), "lenet", trials=2, recipe=nk.Recipe(steps=150, learning_rate=4e-3))
        for aggregate in ("layer", "sorted"):
            found = zoo.matrix(reading="model", aggregate=aggregate, samples=500)
            assert found.nearest() == {"0": "6", "6": "0", "0123": "ten", "ten": "0123"}, aggregate


def test_the_four_cifar_tasks_run_at_small_width(tmp_path: Path) -> None:
    with Zoo(tmp_path / "zoo") as zoo:
        for name, data in CIFAR.items():
            zoo.add(nk.task(data, name=name), "resnet18?width=0.0625", trials=1, recipe=nk.Recipe(steps=8))
        found = zoo.matrix(reading="padded", aggregate="weight", samples=60)
        assert not found.reasons
        assert torch.equal(found.trials.diagonal(dim1=1, dim2=2), torch.zeros(1, 4, dtype=torch.float64))
        assert float(found.trials.max()) <= 1
        assert float(found.trials[0][~torch.eye(4, dtype=torch.bool)].min()) > 0
