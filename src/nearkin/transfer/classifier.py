"""LinearizedClassifier: classes by closed-form transfer, with scikit-learn's interface."""

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import finish
from nearkin.transfer.classify import Classified
from nearkin.transfer.closed_form import fit_classes
from nearkin.transfer.labels.classes import Classes, Method, Start
from nearkin.transfer.labels.laplace import LaplaceClassified
from nearkin.transfer.labels.probabilities import How
from nearkin.transfer.sklearn_base import Array, TransferEstimator, as_tensor


class LabelsError(DataError, ValueError):
    """Labels that cannot be learned from; a ValueError, as scikit-learn requires."""


@dataclass(eq=False, repr=False)
class LinearizedClassifier(ClassifierMixin, TransferEstimator):  # type: ignore[misc]
    """Classes by closed-form transfer: a trained network, linearized, as a Gaussian process.

    Args:
        model: a trained network with any number of outputs; it is copied, not changed.
        weights: the ones that are free to move: `all`, `head`, `norm`, `lora?r=4`, `adapters`, names or a regular
            expression; see `linearize`.
        outputs: `sum` for one kernel of all the network's outputs, or the index of one output.
        method: `dirichlet` or `laplace`; this and the next five are explained in `Classes`.
        alpha: of the Dirichlet transform.
        scale: of the kernel.
        temperature: of the probabilities.
        start: initial scores, `zero` or `network`.
        how: `mean` or `sampled` probabilities.
        random_state: the seed; None or a generator of NumPy draws one.
        listen: called with every event.
        heat: deprecated name of `temperature`.

    Attributes:
        classes_: labels of the training data, in the order of the columns of `predict_proba`.
        classified_: the posterior of the class scores.
        n_features_in_: length of the inputs' second axis.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    >>> x = np.array([[-2.0, 0.0], [-1.0, 0.5], [1.0, 0.0], [2.0, 0.5]])
    >>> classifier = LinearizedClassifier(net).fit(x, ["left", "left", "right", "right"])
    >>> classifier.predict([[-1.5, 0.2], [1.5, 0.2]]).tolist(), classifier.predict_proba(x).shape
    (['left', 'right'], (4, 2))
    """

    _: KW_ONLY
    method: Method = "dirichlet"
    alpha: float | None = None
    scale: float | None = None
    temperature: float | None = None
    start: Start = "zero"
    how: How = "mean"
    heat: float | None = None

    KERNEL_DTYPE: ClassVar[torch.dtype | None] = None  # the noise of classes, log 2 or more, exceeds rounding errors

    def fit(self, X: Any, y: Any) -> "LinearizedClassifier":
        """Choose the options that are None, and condition on labels `[N]`, numbers or strings."""
        return self._fit(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "LinearizedClassifier":
        """Add points to the fit. The first call chooses the options; it needs samples of all classes, or `classes`."""
        if not hasattr(self, "classified_"):
            return self._fit(X, y, classes)
        x, labels = self._points(X, y, reset=False)
        self.classified_: Classified | LaplaceClassified = self.classified_.extended(x, self._numbers(labels))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes `[M, C]`, in the order of `classes_`."""
        x = self._inputs(X)
        return self.classified_.probabilities(x).numpy()

    def predict(self, X: Any) -> Array:
        """The most probable classes `[M]`."""
        numbers = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[numbers])

    def sample(self, X: Any, count: int = 1) -> Array:
        """Class probabilities under scores drawn from the posterior, `[count, M, C]`."""
        x = self._inputs(X)
        return self.classified_.sample(x, count, self._generator()).numpy()

    def _fit(self, X: Any, y: Any, classes: Any) -> "LinearizedClassifier":
        options = Classes(**{option.name: getattr(self, option.name) for option in fields(Classes)}, heat=self.heat)
        x, labels = self._points(X, y, reset=True)
        seen = np.unique(labels)
        require(
            len(seen) > 1,
            f"a classifier needs labels of two classes or more, got one class, {seen[0]}; add samples of another class",
            LabelsError,
        )
        self.classes_: Array = seen if classes is None else np.unique(classes)
        numbers, size, seed = self._numbers(labels), len(self.classes_), self._seed()
        linearized = self._linearize(x, size, seed)
        self.classified_ = finish(fit_classes.work(linearized, x, numbers, size, options, seed), self.listen)
        return self

    def _points(self, X: Any, y: Any, reset: bool) -> tuple[Tensor, Array]:
        X, tokens = self._packed(X, reset)
        X, y = validate_data(self, X, y, allow_nd=True, reset=reset, dtype=np.float64)
        check_classification_targets(y)
        return as_tensor(X, tokens), np.asarray(y)

    def _numbers(self, labels: Array) -> Tensor:
        """Labels as indices into `classes_`."""
        odd = np.setdiff1d(labels, self.classes_).tolist()
        require(
            not odd,
            f"{', '.join(map(repr, odd[:3]))} is none of the classes {', '.join(map(str, self.classes_[:8]))}; give "
            f"all classes to the first call of partial_fit",
            LabelsError,
        )
        return torch.from_numpy(np.searchsorted(self.classes_, labels))
