"""The Task value: what arrays become, what is refused, and in which words."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from nearkin.core.errors import DataError, NearkinError
from nearkin.tasks.task import Task

RNG = np.random.default_rng(0)


def images(count: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (images(20, 8, 8), (1, 8, 8)),
        (images(20, 8, 9, 3), (3, 8, 9)),
        (images(20, 3, 8, 9), (3, 8, 9)),
        (images(20, 1, 8, 3), (1, 8, 3)),
        (RNG.normal(size=(20, 5)), (5,)),
        (torch.rand(20, 6, 6), (1, 6, 6)),
    ],
)
def test_shapes_of_inputs(array: object, shape: tuple[int, ...]) -> None:
    task = Task.from_arrays("t", array, np.arange(20) % 2)
    assert task.input_shape == shape
    batch = task.train.first(4)
    assert batch.x.shape == (4, *shape)
    assert batch.x.dtype == torch.float32


def test_training_inputs_have_mean_zero_and_deviation_one() -> None:
    x = images(400, 3, 4, 4)
    task = Task.from_arrays("t", x, np.arange(400) % 4, x[:40], np.arange(40) % 4)
    seen = task.train.all().x.transpose(0, 1).flatten(1)
    assert torch.allclose(seen.mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(seen.std(1), torch.ones(3), atol=1e-3)
    raw = torch.from_numpy(x).float() / 255
    assert torch.allclose(task.train.scaling.inverse(task.train.all().x), raw, atol=1e-6)


def test_labels_of_any_kind_become_classes() -> None:
    x = RNG.normal(size=(6, 2))
    assert Task.from_arrays("t", x, np.array(["b", "a", "b", "a", "a", "b"])).classes == ("a", "b")
    assert Task.from_arrays("t", x, np.array([7, 3, 7, 3, 3, 7])).classes == ("3", "7")
    assert Task.from_arrays("t", x, np.array([True, False] * 3)).classes == ("False", "True")
    named = Task.from_arrays("t", x, np.array(["b", "a", "b", "a", "a", "b"]), classes=["b", "a"])
    assert named.classes == ("b", "a")
    full = torch.cat([named.train.labels(), named.test.labels()])
    assert (full == 0).sum() == 3


def test_real_targets_are_values_and_are_scaled() -> None:
    x = RNG.normal(size=(50, 2))
    task = Task.from_arrays("t", x, 1000 + 10 * x[:, 0], x, 1000 + 10 * x[:, 0])
    assert task.likelihood == "gaussian"
    assert task.num_outputs == 1
    y = task.train.all().y
    assert y.shape == (50, 1)
    assert abs(float(y.mean())) < 1e-3
    back = task.train.target_scaling.inverse(y)
    assert torch.allclose(back[:, 0].double(), torch.from_numpy(1000 + 10 * x[:, 0]), atol=1e-2)
    wide = Task.from_arrays("t", x, x, likelihood="heteroscedastic")
    assert wide.num_outputs == 4


def test_without_a_test_part_a_fifth_of_every_class_is_set_aside() -> None:
    task = Task.from_arrays("t", RNG.normal(size=(100, 2)), np.repeat([0, 1], [80, 20]))
    assert torch.bincount(task.test.labels()).tolist() == [16, 4]
    again = Task.from_arrays("t", RNG.normal(size=(100, 2)), np.repeat([0, 1], [80, 20]))
    assert torch.equal(task.test.labels(), again.test.labels())


def test_a_torch_dataset_is_a_task() -> None:
    x, y = torch.rand(40, 1, 6, 6), torch.arange(40) % 4
    task = Task.from_dataset("t", TensorDataset(x, y), TensorDataset(x[:8], y[:8]))
    assert task.classes == ("0", "1", "2", "3")
    seen = task.train.scaling.inverse(task.train.take(torch.tensor([7, 3])).x)
    assert torch.allclose(seen, x[[7, 3]], atol=1e-6)


def test_guess_is_the_commonest_class() -> None:
    x = RNG.normal(size=(10, 2))
    task = Task.from_arrays("t", x, np.array([0] * 7 + [1] * 3), x, np.array([0] * 6 + [1] * 4))
    assert task.majority_baseline() == pytest.approx(0.6)


def test_fingerprints_tell_data_apart() -> None:
    x, y = RNG.normal(size=(30, 2)), np.arange(30) % 3
    task = Task.from_arrays("t", x, y, x, y)
    assert task.fingerprint() == Task.from_arrays("other name", x, y, x, y).fingerprint()
    other = y.copy()
    other[4] = (other[4] + 1) % 3
    assert task.fingerprint() != Task.from_arrays("t", x, other, x, y).fingerprint()
    moved = x.copy()
    moved[3, 0] += 1
    assert task.fingerprint() != Task.from_arrays("t", moved, y, x, y).fingerprint()


X, Y = RNG.normal(size=(8, 2)), np.arange(8) % 2
BAD = X.copy()
BAD[5, 1] = np.nan


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((X, Y[:7]), {}, "8 training inputs but 7 labels"),
        ((X, Y, X, Y[:3]), {}, "8 test inputs but 3 labels"),
        ((X, Y, X), {}, "both x_test and y_test"),
        ((BAD, Y), {}, "1 values are NaN or infinite, the first in sample 5"),
        ((X, np.zeros(8, int)), {}, "needs two or more"),
        ((X, Y), {"classes": ["a", "b", "c"]}, "no training sample of class c"),
        ((X, Y + 5), {"classes": ["a", "b"]}, "labels run from 5 to 6"),
        ((X, np.array(list("abababac"))), {"classes": ["a", "b"]}, "'c'.*not among the classes"),
        ((X, Y, X[:, :1], Y), {}, r"test inputs have shape \(1,\), expected \(2,\)"),
        ((X[:0], Y[:0]), {}, "there is no training sample"),
        ((X[0], Y), {}, "inputs must be a table"),
        ((np.array([["a", "b"]] * 8), Y), {}, "inputs must be numbers"),
        ((X, np.where(Y > 0, np.nan, 1.0)), {}, "training targets: 4 values are NaN"),
        ((X, np.stack([Y, Y], 1)), {}, "one column"),
        (([[1.0], [1.0, 2.0]], [0, 1]), {}, "the same shape"),
        ((X, Y), {"likelihood": "poisson"}, "poisson"),
    ],
)
def test_bad_arrays_get_one_clear_line(arguments: tuple, options: dict, words: str) -> None:
    with pytest.raises(NearkinError, match=words) as caught:
        Task.from_arrays("mine", *arguments, **options)
    assert "\n" not in str(caught.value)


def test_a_class_only_in_the_test_part_is_named() -> None:
    with pytest.raises(DataError, match="no training sample of class 2"):
        Task.from_arrays("t", X, Y, X, np.array([0, 1, 2, 0, 1, 2, 0, 1]))


def test_batches_of_images_with_channels_last_are_laid_channels_first() -> None:
    """Torch 2.13 corrupts the heap in the backward pass of narrow strided convolutions on the other layout."""
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8, 3), dtype=np.uint8)
    task = Task.from_arrays("photos", images, np.arange(20) % 2)
    for batch in (task.train.first(5), task.train.fixed_subset(4), task.test.all()):
        assert batch.x.is_contiguous()


def test_old_names_of_methods_warn_and_work():
    task = Task.from_arrays("toy", torch.arange(20.0)[:, None], torch.arange(20) % 2)
    with pytest.warns(DeprecationWarning, match="fixed_subset"):
        assert torch.equal(task.train.glance(3).x, task.train.fixed_subset(3).x)
    with pytest.warns(DeprecationWarning, match="majority_baseline"):
        assert task.guess() == task.majority_baseline()
