r"""A linear head fitted on frozen features: its loss, and the head itself.

Notation: N samples, D features, R principal axes, K outputs.

The linear probe of Alain and Bengio (2016, "Understanding intermediate layers using linear classifier probes"):

$$\min_{W, b} \frac1N \sum_n -\log p(y_n \mid W f_n + b) + \frac r2 \|W'\|^2$$

W' the weights for features that are centred and scaled to a mean variance of 1, so that one list of ridges r suits
features of any scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.lazy import Lazy
from nearkin.distance.baselines.inputs import canonical_order, centred, classes, rows, several
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.split import split_index

optimize = Lazy("scipy.optimize")

FORMS = ("categorical", "gaussian", "heteroscedastic")
RIDGES = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)
HELD_OUT = 0.2  # of the training samples, to select the ridge
FEWEST = 5  # samples for which some are held out
PATIENCE = 2  # ridges in a row with a higher loss than the best, after which the search ends
STEPS = 200  # of L-BFGS, at most
FOLDS = 5  # of a cross-validation


@dataclass(frozen=True, eq=False)
class Head:
    """A fitted linear head, in float64.

    Attributes:
        weight: `[K, D]`, for unscaled features.
        bias: `[K]`.
        loss: mean loss on the training samples, without the ridge.
        ridge: the selected one.

    >>> Head(torch.tensor([[2.0]]), torch.tensor([1.0]), 0.0, 1.0)(torch.tensor([[3.0]]))
    tensor([[7.]])
    """

    weight: Tensor
    bias: Tensor
    loss: float
    ridge: float

    def __call__(self, features: Tensor) -> Tensor:
        """Outputs `[N, K]` in the features' precision."""
        return F.linear(features, self.weight.to(features), self.bias.to(features))


def fitted_head(
    features_train: Tensor,
    labels_train: Tensor,
    form: Likelihood,
    *,
    num_classes: int | None = None,
    ridges: Sequence[float] = RIDGES,
    seed: int = 0,
) -> Head:
    """Fit a linear head on all samples, with the ridge that has the lowest loss on a held-out fifth of them.

    Ridges are tried from the largest to the smallest until the held-out loss is higher twice in a row. With one ridge,
    fewer than five samples, or one sample per class, nothing is held out and the largest ridge is used. The result does
    not depend on the order of samples. A heteroscedastic loss is unbounded if the features separate all samples; the
    fit with a ridge that is too small then ends after 200 steps.

    Args:
        features_train: `[N, D]`.
        labels_train: classes `[N]`, two or more; or real targets `[N, P]`.
        form: categorical, gaussian or heteroscedastic.
        num_classes: C, if not all classes are present.
        ridges: > 0.
        seed: of the held-out split.

    >>> from nearkin.tasks.likelihood import Gaussian
    >>> f = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> head = fitted_head(f, 2 * f + 1, Gaussian(), ridges=[1.0])  # the ridge equals the variance: half the slope
    >>> [round(float(head.weight), 6), round(float(head.bias), 6)]
    [1.0, 2.5]
    """
    require(len(ridges) >= 1 and min(ridges) > 0, f"ridges must be one number > 0 or more, got {tuple(ridges)}")
    table = rows(features_train)
    y = head_targets(labels_train, len(table), form, num_classes)
    order = canonical_order(table, (several(y) if form.name == "categorical" else y).double())
    table, y = table[order], y[order]
    size = y.shape[1] if y.dim() == 2 else num_classes or int(y.max()) + 1
    start, width, falling = None, form.num_outputs(size), sorted(ridges, reverse=True)
    if len(falling) > 1 and len(table) >= FEWEST:
        learn, judge = split_index(y if y.dim() == 1 else None, len(table), HELD_OUT, seed)
        if len(judge):
            start = _best_head((table[learn], y[learn]), (table[judge], y[judge]), form, width, falling)
    return _Axes.of(table).fitted(y, form, width, start.ridge if start else falling[0], start)


def head_loss(
    features_train: Tensor,
    labels_train: Tensor,
    features_test: Tensor,
    labels_test: Tensor,
    form: Likelihood,
    *,
    part: Literal["test", "train"] = "test",
    num_classes: int | None = None,
    ridges: Sequence[float] = RIDGES,
    seed: int = 0,
) -> float:
    """Mean loss of a fitted linear head on the test samples; source -> target, smaller is better.

    Args:
        features_train: `[N, D]`.
        labels_train: classes `[N]`, two or more; or real targets `[N, P]`.
        features_test: `[M, D]`.
        labels_test: `[M]` or `[M, P]`.
        form: categorical, gaussian or heteroscedastic.
        part: samples whose loss is returned: `test`, or `train` for those of the fit.
        num_classes: C, if not all classes are present.
        ridges: as in `fitted_head`.
        seed: of the held-out split that selects the ridge.

    >>> from nearkin.tasks.likelihood import Categorical
    >>> f, y = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]).repeat(4, 1), torch.tensor([0, 0, 1, 1]).repeat(4)
    >>> head_loss(f, y, f, y, Categorical()) < 0.1 < head_loss(torch.ones(16, 1), y, f, y, Categorical())
    True
    """
    require(part in ("test", "train"), f"part must be test or train, got {part!r}")
    if num_classes is None and form.name == "categorical" and labels_test.numel():
        num_classes = int(torch.maximum(labels_train.max(), labels_test.max())) + 1
    head = fitted_head(features_train, labels_train, form, num_classes=num_classes, ridges=ridges, seed=seed)
    if part == "train":
        return head.loss
    table = rows(features_test, "test features", 1)
    require(
        table.shape[1] == head.weight.shape[1],
        f"training features have {head.weight.shape[1]} columns, test features {table.shape[1]}; take both from one "
        f"network",
        MismatchError,
    )
    return float(form.loss(head(table), head_targets(labels_test, len(table), form, num_classes)))


def cross_validated_loss(
    features: Tensor,
    labels: Tensor,
    form: Likelihood,
    *,
    num_classes: int | None = None,
    folds: int = FOLDS,
    ridges: Sequence[float] = RIDGES,
    seed: int = 0,
) -> float:
    """Cross-validated mean loss of linear heads; source -> target, smaller is better.

    The ridge is that of `fitted_head`; then the loss on each fold is that of a head fitted on the other folds. Classes
    are spread evenly over folds, and folds do not depend on the order of samples. Needs no test samples.

    Args:
        features: `[N, D]`, two samples or more.
        labels: classes `[N]`, two or more; or real targets `[N, P]`.
        form: categorical, gaussian or heteroscedastic.
        num_classes: C, if not all classes are present.
        folds: 2 or more; leave-one-out if there are fewer samples.
        ridges: as in `fitted_head`.
        seed: of the held-out split that selects the ridge.

    >>> from nearkin.tasks.likelihood import Categorical
    >>> f, y = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]).repeat(4, 1), torch.tensor([0, 0, 1, 1]).repeat(4)
    >>> cross_validated_loss(f, y, Categorical()) < 0.1 < cross_validated_loss(torch.ones(16, 1), y, Categorical())
    True
    """
    require(folds >= 2, f"cross-validation has 2 folds or more, got {folds}")
    whole = fitted_head(features, labels, form, num_classes=num_classes, ridges=ridges, seed=seed)
    table = rows(features)
    y = head_targets(labels, len(table), form, num_classes)
    order = canonical_order(table, y.double())
    order = order[y[order].argsort(stable=True)] if y.dim() == 1 else order
    fold = torch.arange(len(table)) % min(folds, len(table))
    total = 0.0
    for number in range(int(fold.max()) + 1):
        learn, judge = order[fold != number], order[fold == number]
        head = _Axes.of(table[learn]).fitted(y[learn], form, len(whole.bias), whole.ridge, whole)
        total += float(form.loss(head(table[judge]), y[judge])) * len(judge)
    return total / len(table)


def head_targets(labels: Tensor, count: int, form: Likelihood, num_classes: int | None) -> Tensor:
    """Classes `[N]` or real targets `[N, P]`, checked for a likelihood that a linear head can be fitted for."""
    require(form.name in FORMS, f"a linear head is fitted for {', '.join(FORMS)}, not for {form.name}")
    if form.name == "categorical":
        return classes(labels, count, num_classes)
    y = rows(labels, "targets", 1)
    require(len(y) == count, f"targets have {len(y)} rows, expected {count}, one for each sample", MismatchError)
    return y


def _best_head(
    learn: tuple[Tensor, Tensor], judge: tuple[Tensor, Tensor], form: Likelihood, width: int, ridges: Sequence[float]
) -> Head:
    """The head with the lowest loss on held-out samples."""
    axes, heads, losses = _Axes.of(learn[0]), list[Head](), list[float]()
    for ridge in ridges:
        heads.append(axes.fitted(learn[1], form, width, ridge, heads[-1] if heads else None))
        losses.append(float(form.loss(heads[-1](judge[0]), judge[1])))
        best = losses.index(min(losses))
        if len(losses) - best > PATIENCE:
            break
    return heads[best]


@dataclass(frozen=True, eq=False)
class _Axes:
    """Features rotated to their principal axes, centred and scaled by one number.

    There the curvature of a squared loss is diagonal, and weights are scaled by its root: L-BFGS then needs a few
    steps instead of hundreds.
    """

    scores: Tensor  # [N, R]
    power: Tensor  # [R], mean squares of the scores
    rotation: Tensor  # [R, D], from features to scores
    mean: Tensor  # [D]

    @classmethod
    def of(cls, table: Tensor) -> "_Axes":
        spread = centred(table)
        scale = float(spread.square().mean().sqrt()) or 1.0
        spread, wide = spread / scale, spread.shape[1] > len(spread)
        values, vectors = torch.linalg.eigh(spread @ spread.T if wide else spread.T @ spread)
        kept = values > 1e-12 * values[-1].clamp_min(1e-300)
        axes = vectors[:, kept].T
        if wide:
            axes = (axes @ spread) / values[kept].sqrt()[:, None]
        scores = spread @ axes.T
        return cls(scores, scores.square().mean(0), axes / scale, table.mean(0))

    def fitted(self, y: Tensor, form: Likelihood, width: int, ridge: float, start: Head | None = None) -> Head:
        """The head for one ridge; the fit starts from another head if one is given."""
        unit = (self.power + ridge).rsqrt()
        weight, bias = torch.zeros(width, len(unit), dtype=torch.float64), _constant(y, form, width)
        if start is not None:
            back = self.rotation / self.rotation.square().sum(1, keepdim=True)
            weight, bias = start.weight @ back.T / unit, start.bias + start.weight @ self.mean
        scores = self.scores * unit
        weight, bias = _minimised(scores, y, form, weight, bias, ridge * unit.square())
        loss = float(form.loss(F.linear(scores, weight, bias), y))
        weight = weight * unit @ self.rotation
        return Head(weight, bias - weight @ self.mean, loss, ridge)


def _constant(y: Tensor, form: Likelihood, width: int) -> Tensor:
    """The best bias without features, or one near it: the fit starts there."""
    if form.name == "categorical":
        return ((torch.bincount(y, minlength=width).double() + 0.5) / (len(y) + 0.5 * width)).log()
    if form.name == "gaussian":
        return y.mean(0)
    return torch.cat([y.mean(0), y.var(0, correction=0).clamp_min(1e-4).log()])


def _minimised(
    x: Tensor, y: Tensor, form: Likelihood, weight: Tensor, bias: Tensor, penalty: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Weights `[K, R]` and bias `[K]` that minimise the mean loss $+ \frac12 \sum_r p_r w_{kr}^2$, by L-BFGS."""
    width, rank = weight.shape

    def weight_and_bias(flat: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        both = torch.from_numpy(flat).view(width, rank + 1)
        return both[:, :-1], both[:, -1]

    def value(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        w, b = weight_and_bias(flat)
        outputs = F.linear(x, w, b).requires_grad_()
        with torch.enable_grad():
            loss = form.loss(outputs, y)
        (back,) = torch.autograd.grad(loss, outputs)
        slope = torch.cat([back.T @ x + penalty * w, back.sum(0)[:, None]], 1)
        return float(loss.detach() + 0.5 * (penalty * w.square()).sum()), slope.flatten().numpy()

    start = torch.cat([weight, bias[:, None]], 1).flatten().numpy()
    result = optimize.minimize(
        value, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS, "gtol": 1e-6, "ftol": 1e-11}
    )
    return weight_and_bias(result.x)
