"""Metrics against scikit-learn and closed forms."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from nearkin.core.errors import OptionError
from nearkin.tasks.metrics import METRICS, TITLES, gain, known_metric, metric_for


def drawn(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(classes)
    logits = torch.randn(200, classes, generator=rng)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_classes_are_those_of_scikit_learn(classes: int) -> None:
    logits, labels = drawn(classes)
    p, y, said = logits.double().softmax(1).numpy(), labels.numpy(), logits.argmax(1).numpy()
    wanted = {
        "accuracy": sk.accuracy_score(y, said),
        "balanced-accuracy": sk.balanced_accuracy_score(y, said),
        "f1": sk.f1_score(y, said, average="macro"),
        "auc": sk.roc_auc_score(y, p[:, 1]) if classes == 2 else sk.roc_auc_score(y, p, multi_class="ovr"),
        "log-loss": sk.log_loss(y, p),
    }
    assert {name for name, metric in METRICS.items() if metric.of_classes} == set(wanted)
    for name, value in wanted.items():
        assert METRICS[name].compute(logits, labels) == pytest.approx(value, rel=1e-9), name


def test_metrics_of_values_are_those_of_scikit_learn() -> None:
    rng = torch.Generator().manual_seed(0)
    y = 100 * torch.randn(80, 2, generator=rng)
    said = y + torch.randn(80, 2, generator=rng)
    wanted = {
        "r2": sk.r2_score(y, said, multioutput="variance_weighted"),
        "mae": sk.mean_absolute_error(y, said),
        "rmse": sk.root_mean_squared_error(y, said),
    }
    assert {name for name, metric in METRICS.items() if not metric.of_classes} == set(wanted)
    for name, value in wanted.items():
        assert METRICS[name].compute(said, y) == pytest.approx(value, rel=1e-4), name


def test_classes_that_do_not_occur_are_left_out() -> None:
    logits, labels = drawn(4)
    some = labels < 2
    values = {name: METRICS[name].compute(logits[some], labels[some]) for name in ("auc", "balanced-accuracy", "f1")}
    assert all(np.isfinite(value) for value in values.values())
    one = torch.zeros(5, dtype=torch.int64)
    assert METRICS["auc"].compute(torch.randn(5, 2), one) == 0.5
    assert METRICS["balanced-accuracy"].compute(torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]]), one) == 0.8


def test_lower_is_better_in_one_place() -> None:
    assert {name for name in METRICS if gain(name, 1.0) < 0} == {"log-loss", "mae", "rmse"}
    assert TITLES.keys() - METRICS.keys() == {"ap50"}, "detection has a title, and no answer is selected by it"


def test_a_metric_that_does_not_fit_is_one_clear_line() -> None:
    with pytest.raises(OptionError, match="unknown metric 'auk'; choose one of accuracy, balanced-accuracy"):
        known_metric("auk")
    with pytest.raises(OptionError, match="metric auc is for classes, 'prices' predicts values; choose one of r2, mae"):
        metric_for("auc", "r2", "prices")
    with pytest.raises(OptionError, match="metric rmse is for values, 'pets' predicts classes; choose one of accuracy"):
        metric_for("rmse", "accuracy", "pets")
