"""The default form of the Fréchet distance on four tasks of the digits, in the mean over trials."""

from pathlib import Path

import pytest

import nearkin as nk
from nearkin.distance.fisher_based.forms import DEFAULT

TASKS = {
    "is it 0": "digits?detect=0",
    "is it 6": "digits?detect=6",
    "0-1-2-3-other": "digits?classes=0,1,2,3&rest=other",
    "all ten": "digits",
}
NEAREST = {"is it 0": "is it 6", "is it 6": "is it 0", "0-1-2-3-other": "all ten", "all ten": "0-1-2-3-other"}


@pytest.mark.soak
@pytest.mark.slow
def test_the_default_names_the_expected_neighbours_and_is_asymmetric(tmp_path: Path) -> None:
    """Six trials of a LeNet; benchmarks/paper_tasks.py has MNIST and four networks."""
    with nk.Zoo(tmp_path / "zoo") as zoo:
        for name, data in TASKS.items():
            zoo.add(nk.task(data, name=name), "lenet", trials=6, recipe=nk.Recipe(steps=200, learning_rate=4e-3))
        found = zoo.matrix(samples=500)
    assert found.form == str(DEFAULT)
    assert found.nearest() == NEAREST
    assert float((found.mean - found.mean.T).abs().max()) > 0.02  # all four are on the same images
