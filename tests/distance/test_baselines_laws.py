"""What every measure keeps: no order of samples, pure inputs, one precision, and one line for what is no data."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, NearkinError
from nearkin.distance.baselines import (
    cka,
    fid,
    fitted_head,
    gradient_flow,
    head_loss,
    hscore,
    kernel_evidence,
    knn_accuracy,
    knn_r2,
    leep,
    logme,
    logme_regression,
    mmd,
    nce,
    ridge_loo,
)
from nearkin.tasks.likelihood import Categorical, Gaussian, Heteroscedastic

Measure = Callable[[Tensor, Tensor], float]
OTHER = torch.randn(9, 6, generator=torch.Generator().manual_seed(5))
OTHER_LABELS = torch.arange(9) % 3

WITH_LABELS: dict[str, Measure] = {
    "logme": lambda f, y: logme(f, y, 3),
    "hscore": hscore,
    "shrunk hscore": lambda f, y: hscore(f, y, shrinkage=True),
    "cka": cka,
    "ridge_loo": ridge_loo,
    "gradient_flow": gradient_flow,
    "head_loss": lambda f, y: head_loss(f, y, OTHER, OTHER_LABELS, Categorical()),
    "training loss": lambda f, y: fitted_head(f, y, Categorical()).loss,
}
OTHERS: dict[str, Measure] = {
    "leep": lambda f, y: leep(f.double().softmax(1), y, 3),
    "nce": lambda f, y: nce(f.nan_to_num().argmax(1), y),
    "knn": lambda f, y: knn_accuracy(f, y, OTHER, OTHER_LABELS),
    "knn asked": lambda f, y: knn_accuracy(OTHER, OTHER_LABELS, f, y, metric="cosine"),
    "knn_r2": lambda f, y: knn_r2(f, f[:, :2], OTHER, OTHER[:, :2]),
    "logme_regression": lambda f, y: logme_regression(f, f[:, :2] + y[:, None]),
    "kernel_evidence": lambda f, y: kernel_evidence(f.double() @ f.double().T, y),
    "mmd": lambda f, y: mmd(f, OTHER),
    "fid": lambda f, y: fid(f, OTHER),
    "gaussian loss": lambda f, y: head_loss(f[:, 2:], f[:, :2], OTHER[:, 2:], OTHER[:, :2], Gaussian()),
    "heteroscedastic loss": lambda f, y: head_loss(f[:, 2:], f[:, :2], OTHER[:, 2:], OTHER[:, :2], Heteroscedastic()),
}
ALL = {**WITH_LABELS, **OTHERS}


def data(count: int = 24) -> tuple[Tensor, Tensor]:
    y = torch.arange(count) % 3
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(0)) + y[:, None] * torch.arange(6) / 6, y


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_samples_does_not_matter(name: str) -> None:
    f, y = data()
    order = torch.randperm(len(f), generator=torch.Generator().manual_seed(1))
    assert ALL[name](f[order], y[order]) == pytest.approx(ALL[name](f, y), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_inputs_are_left_alone_and_gradients_are_not_followed(name: str) -> None:
    f, y = data()
    kept, leaf = f.clone(), f.clone().requires_grad_()
    found = ALL[name](f, y)
    assert isinstance(found, float)
    assert math.isfinite(found)
    assert torch.equal(f, kept)
    assert ALL[name](leaf, y) == found


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("nce",)])
def test_features_that_are_no_numbers_are_refused_in_one_line(name: str) -> None:
    f, y = data()
    f[3, 1] = torch.nan
    with pytest.raises(DataError, match="NaN or infinite") as refused:
        ALL[name](f, y)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", WITH_LABELS)
def test_one_class_alone_is_refused(name: str) -> None:
    f, _ = data()
    with pytest.raises(DataError, match="expected two classes or more"):
        WITH_LABELS[name](f, torch.ones(len(f), dtype=torch.int64))


def test_one_class_alone_is_certain() -> None:
    f, _ = data()
    y = torch.ones(len(f), dtype=torch.int64)
    assert leep(f.softmax(1), y, 3) == pytest.approx(0, abs=1e-15)
    assert nce(f.argmax(1), y) == 0
    assert knn_accuracy(f, y, f, y) == 1


@pytest.mark.parametrize("name", [*WITH_LABELS, "mmd", "fid", "logme_regression", "kernel_evidence"])
def test_one_sample_is_too_few(name: str) -> None:
    f, y = data()
    with pytest.raises(NearkinError, match="hold 1 samples, expected 2 or more"):
        ALL[name](f[:1], y[:1])


@pytest.mark.parametrize("name", WITH_LABELS)
def test_two_samples_are_enough(name: str) -> None:
    f, y = data()
    assert math.isfinite(WITH_LABELS[name](f[:2], y[:2]))


@pytest.mark.parametrize("name", [*WITH_LABELS, "leep", "knn"])
def test_labels_below_zero_or_too_few_are_refused(name: str) -> None:
    f, y = data()
    with pytest.raises(DataError, match="run from -1 to 1"):
        ALL[name](f, y - 1)
    with pytest.raises(MismatchError, match=r"expected \[24\]"):
        ALL[name](f, y[:-1])


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("logme_regression", "kernel_evidence")])
def test_features_that_are_all_zero_have_a_finite_value(name: str) -> None:
    f, y = data()
    assert math.isfinite(ALL[name](torch.zeros_like(f), y))


def test_labels_may_be_whole_floats_but_not_others() -> None:
    f, y = data()
    assert logme(f, y.float(), 3) == logme(f, y, 3)
    with pytest.raises(DataError, match="not whole numbers"):
        logme(f, y + 0.5, 4)


def test_features_of_images_are_to_be_flattened() -> None:
    with pytest.raises(MismatchError, match="flatten them"):
        logme(torch.ones(4, 2, 2), torch.tensor([0, 1, 0, 1]), 2)


@pytest.mark.parametrize("targets", [torch.ones(24, 2), torch.full((24,), 0.1)])
def test_constant_targets_are_refused(targets: Tensor) -> None:
    for measure in (ridge_loo, gradient_flow):
        with pytest.raises(DataError, match="the targets are constant"):
            measure(data()[0], targets)
