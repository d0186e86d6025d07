"""Labels and values that arrays may hold: what is a class, what is missing, what does not fit float32."""

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.core.errors import DataError
from nearkin.tasks.task import Task

X = np.random.default_rng(0).normal(size=(6, 2))


@pytest.mark.parametrize("classes", [None, ["no", "yes"]])
def test_labels_between_whole_numbers_are_no_classes(classes):
    y = np.array([0.0, 1.0, 0.5, 1.5, 0.0, 1.0])
    with pytest.raises(DataError, match=r"training label 0.5 of sample 2 is not a whole number.*likelihood=gaussian"):
        Task.from_arrays("t", X, y, likelihood="categorical", classes=classes)


def test_whole_floats_are_classes():
    task = Task.from_arrays("t", X, np.array([0.0, 1.0] * 3), likelihood="categorical", classes=["no", "yes"])
    assert task.train.labels().dtype == torch.int64
    assert Task.from_arrays("t", X, np.array([3.0, 1.0] * 3), likelihood="categorical").classes == ("1", "3")


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan")])
@pytest.mark.parametrize("others", [["a", "b"], [0, 1], [0.0, 1.0]])
def test_missing_labels_are_counted_and_placed(missing, others):
    y = np.array([*others, missing, *others, missing], dtype=object)
    with pytest.raises(DataError, match=r"2 training labels are missing \(None or NaN\), the first in sample 2"):
        Task.from_arrays("t", X, y, likelihood="categorical")


def test_labels_of_mixed_types_are_refused():
    with pytest.raises(DataError, match=r"labels mix types .*'int', 'str'"):
        Task.from_arrays("t", X, np.array(["a", 1, "a", 1, "a", 1], dtype=object))
    with pytest.raises(DataError, match=r"neither text nor numbers.*'dict'"):
        Task.from_arrays("t", X, np.array([{}] * 6, dtype=object))
    with pytest.raises(DataError, match="both be numbers or both be text"):
        Task.from_arrays("t", X, [0, 1] * 3, X, ["a", "b"] * 3)


def test_objects_of_one_type_are_read():
    assert Task.from_arrays("t", X, np.array(["b", "a"] * 3, dtype=object)).classes == ("a", "b")
    assert Task.from_arrays("t", X, np.array([7, 3] * 3, dtype=object)).classes == ("3", "7")
    with pytest.raises(DataError, match="64-bit numbers"):
        Task.from_arrays("t", X, np.array([2**70, 1] * 3, dtype=object))


@pytest.mark.parametrize("label", [-1, 2, 2**62])
def test_class_numbers_outside_the_classes_are_refused(label):
    with pytest.raises(DataError, match="but there are 2 classes"):
        Task.from_arrays("t", X, [0, 1, 0, 1, 0, label], X, [0, 1] * 3, classes=["no", "yes"])


def test_a_finite_value_beyond_float32_is_not_called_infinite():
    x = X.copy()
    x[3, 1] = 1e300
    with pytest.raises(DataError, match=r"the value 1e\+300 in sample 3 is beyond float32"):
        Task.from_arrays("t", x, [0, 1] * 3)
    with pytest.raises(DataError, match=r"training targets: the value -1e\+300 in sample 0 is beyond float32"):
        Task.from_arrays("t", X, np.array([-1e300, 1, 2, 3, 4, 5]))
    x[3, 1] = np.inf
    with pytest.raises(DataError, match="1 values are NaN or infinite, the first in sample 3"):
        Task.from_arrays("t", x, [0, 1] * 3)


def test_a_cell_beyond_float32_is_not_called_missing(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,0\n1e300,1\n3,0\n4,1\n")
    task = nk.task(f"csv:{tmp_path}/t.csv?target=y&test={tmp_path}/t.csv")
    assert task.notes == ("column 'a': beyond float32 (3.4e+38) in 1 of 4 training rows: filled with 3 and marked",)


@pytest.mark.parametrize("shape", [(), (6,), (6, 2, 2, 2, 2), (6, 0), (6, 3, 0)])
def test_inputs_of_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match="inputs"):
        Task.from_arrays("t", np.zeros(shape), [0, 1] * 3)


@pytest.mark.parametrize(("likelihood", "shape"), [("gaussian", (6, 2, 2)), ("dense", (6, 2)), ("gaussian", ())])
def test_targets_must_suit_the_likelihood(likelihood, shape):
    with pytest.raises(DataError, match=r"training targets must be .*got shape"):
        Task.from_arrays("t", X, np.zeros(shape), likelihood=likelihood)


def test_long_doubles_and_complex_numbers_are_refused():
    for dtype in (np.longdouble, np.complex64):
        with pytest.raises(DataError, match="inputs must be numbers"):
            Task.from_arrays("t", X.astype(dtype), [0, 1] * 3)


def test_rgb_repeats_grey_images():
    grey, colour = nk.task("digits?limit=20"), nk.task("digits?limit=20&rgb")
    assert colour.input_shape == (3, 8, 8)
    index = torch.arange(5)
    assert torch.equal(colour.train.inputs.take(index), grey.train.inputs.take(index).expand(-1, 3, -1, -1))
    assert nk.task("digits?limit=20&rgb&grey").input_shape == (3, 8, 8)
    assert nk.task("digits?limit=20&rgb&dense=colour").input_shape == (1, 8, 8)


def test_rgb_of_other_channels_is_refused(tmp_path):
    np.savez(tmp_path / "four.npz", x_train=np.zeros((6, 4, 5, 5), np.uint8), y_train=[0, 1] * 3)
    with pytest.raises(DataError, match="rgb takes images of 1 or 3 channels, got 4"):
        nk.task(f"npz:{tmp_path}/four.npz?rgb")
