"""Weights of training samples and of classes, from data to loss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight
from torch import nn

import nearkin as nk
from nearkin.core.errors import DataError, OptionError
from nearkin.nets.training_loop import fit
from nearkin.tasks.derive import class_weighted, held_out, limited, resplit
from nearkin.tasks.likelihood import DISTRIBUTIONS, likelihood
from nearkin.tasks.packed import packed, unpacked
from nearkin.tasks.task import Task
from nearkin.tasks.weights import checked_class_weight


def toy(weights: Any = None, count: int = 40) -> Task:
    x = torch.arange(count * 2.0).view(count, 2)
    y = torch.arange(count) % 4 // 3  # a quarter is class 1
    return Task.from_arrays("toy", x, y, x, y, sample_weight=weights, standardise=False)


def test_weights_have_mean_1_follow_their_samples_and_leave_the_test_set() -> None:
    weights = np.arange(1.0, 41.0)
    task = toy(weights)
    assert task.train.weights is not None
    assert float(task.train.weights.mean()) == pytest.approx(1)
    for examples in (limited(task, 12).train, held_out(task, 0.5, seed=0).train):
        assert examples.weights is not None
        row = (examples.all().x[:, 0] / 2).long()
        torch.testing.assert_close(examples.weights, (torch.from_numpy(weights)[row] / weights.mean()).float())
    joined = resplit(task, 3)
    assert joined.train.weights is not None
    assert task.test.weights is joined.test.weights is None
    split = Task.from_arrays("split", torch.randn(20, 2), torch.arange(20) % 2, sample_weight=np.ones(20))
    assert split.test.weights is None


def test_samples_of_weight_0_are_left_out() -> None:
    weights = np.ones(40)
    weights[:10] = 0
    assert toy(weights).train.all().x[:, 0].tolist() == [2.0 * row for row in range(10, 40)]
    weights[3::4] = 0
    with pytest.raises(DataError, match="no training sample of class 1"):
        toy(weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"weights of shape \[3\], expected \[40\]"),
        (np.full(40, np.nan), "the weight of sample 0 is nan"),
        (-np.ones(40), "the weight of sample 0 is -1"),
        (np.zeros(40), "all sample weights are 0"),
        (["a"] * 40, "must be numbers"),
    ],
)
def test_wrong_weights_are_one_clear_error(weights: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        toy(weights)


def test_weights_change_the_fingerprint_and_are_stored() -> None:
    plain, weighted = toy(), toy(np.arange(1.0, 41.0))
    assert plain.fingerprint() != weighted.fingerprint()
    again = unpacked("toy", weighted.facts(), packed(weighted))
    assert again.fingerprint() == weighted.fingerprint()


def test_class_weights_are_those_of_scikit_learn_times_own_weights() -> None:
    own = np.random.default_rng(0).uniform(0.5, 2, 40)
    for weight in ("balanced", {"1": 7.0}):
        task = class_weighted(toy(own), weight)
        labels = task.train.labels().numpy()
        wanted = own * compute_sample_weight(weight if weight == "balanced" else {0: 1.0, 1: 7.0}, labels)
        assert task.train.weights is not None
        np.testing.assert_allclose(task.train.weights, wanted / wanted.mean(), rtol=1e-5)


def test_class_weights_that_fit_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match="class_weight names 'yes', the classes are 0, 1"):
        class_weighted(toy(), {"yes": 2.0})
    values = Task.from_arrays("values", torch.randn(8, 2), torch.randn(8, 1))
    with pytest.raises(DataError, match="class_weight needs a task with classes"):
        class_weighted(values, "balanced")
    for wrong in ("equal", "yes=0", {}, {"yes": -1.0}, 3):
        with pytest.raises(OptionError, match="class_weight must be balanced, or weights above 0"):
            checked_class_weight(wrong)


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name != "language"])
def test_a_weighted_loss_is_that_of_repeated_samples(name: str) -> None:
    form, rng = likelihood(name), torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 4, generator=rng) if name != "dense" else torch.randn(4, 2, 3, 3, generator=rng)
    targets = (
        torch.tensor([0, 1, 2, 3])
        if name == "categorical"
        else torch.randn((4, 2) if name == "heteroscedastic" else outputs.shape, generator=rng)
    )
    counts = torch.tensor([1, 3, 0, 2])
    repeated = form.loss(outputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0))
    weights = counts / counts.float().mean()
    assert form.loss(outputs, targets, weights=weights).item() == pytest.approx(repeated.item(), rel=1e-5)


def test_training_with_weights_is_training_with_repeated_samples() -> None:
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    y, counts = torch.arange(12) % 2, torch.tensor([1, 3] * 6)
    recipe = nk.Recipe(steps=20, batch_size=64, optimiser="sgd", learning_rate=0.1)
    models = []
    for inputs, labels, weights in (
        (x, y, counts),
        (x.repeat_interleave(counts, 0), y.repeat_interleave(counts), None),
    ):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        fit(model, Task.from_arrays("t", inputs, labels, x, y, sample_weight=weights, standardise=False), recipe)
        models.append(model)
    torch.testing.assert_close(models[0].weight, models[1].weight)


def test_a_column_of_weights_of_a_csv_file_and_of_a_frame(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"a": np.arange(20) * 0.5, "w": [1.0, 2.0] * 10, "y": [0.5 * k for k in range(19)] + [None]}
    )
    file = tmp_path / "table.csv"
    frame.to_csv(file, index=False)
    tasks = [
        nk.task(f"csv:{file}?target=y&weight=w"),
        Task.from_frame("f", frame, "y", sample_weight="w"),
        Task.from_frame("f", frame.drop(columns="w"), "y", sample_weight=frame["w"].to_numpy()),
    ]
    for task in tasks:
        assert task.input_shape == (1,)
        assert task.train.weights is not None
        rows = task.train.inputs.take(torch.arange(len(task.train)))[:, 0].mul(2).round().long()
        ratio = task.train.weights / task.train.weights.min()
        torch.testing.assert_close(ratio, 1.0 + rows % 2)
    with pytest.raises(OptionError, match="has no column 'z' to weight"):
        nk.task(f"csv:{file}?target=y&weight=z")
    with pytest.raises(DataError, match="is the target and the weight"):
        nk.task(f"csv:{file}?target=y&weight=y")
    with pytest.raises(DataError, match=r"weights of shape \[3\], expected \[20\]"):
        Task.from_frame("f", frame, "y", sample_weight=[1, 2, 3])


def test_examples_check_the_number_of_weights() -> None:
    with pytest.raises(DataError, match="40 inputs but 3 weights"):
        replace(toy().train, weights=torch.ones(3))
