"""LinearizedClassifier: classes by closed-form transfer, behind scikit-learn's interface."""

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.events import Listener, finish
from nearkin.fisher.tangent import Outputs
from nearkin.transfer.classify import Classified
from nearkin.transfer.closed_form import classified
from nearkin.transfer.estimator import Array, Estimator, as_tensor
from nearkin.transfer.labels.classes import Classes, Method, Start
from nearkin.transfer.labels.laplace import LaplaceClassified
from nearkin.transfer.labels.probabilities import How
from nearkin.transfer.subset import Weights


class LabelsError(DataError, ValueError):
    """Labels that cannot be learned from; a ValueError, as scikit-learn wants it."""


class LinearizedClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Classes by closed-form transfer: a trained network, linearized, as a Gaussian process.

    Args:
        model: a trained network, of whatever classes; it is copied, not changed.
        weights: that are free to move: `all`, `head`, `norm`, `adapters`, names or a regular expression.
        outputs: `sum` for one kernel of all the network's outputs, or the number of one.
        method: `dirichlet` or `laplace`; this and the next five are explained at `Classes`.
        alpha: of the Dirichlet transform.
        scale: of the kernel.
        heat: temperature of the probabilities.
        start: of the scores, `zero` or `network`.
        how: probabilities are taken, `mean` or `sampled`.
        random_state: the one seed; None, or a generator of NumPy, draws one.
        listen: called with every event.

    Attributes:
        classes_: labels that were seen, in the order of the columns of `predict_proba`.
        classified_: the posterior of the class scores.
        n_features_in_: length of the inputs' second axis.

    >>> net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    >>> x = np.array([[-2.0, 0.0], [-1.0, 0.5], [1.0, 0.0], [2.0, 0.5]])
    >>> found = LinearizedClassifier(net).fit(x, ["left", "left", "right", "right"])
    >>> found.predict([[-1.5, 0.2], [1.5, 0.2]]).tolist(), found.predict_proba(x).shape
    (['left', 'right'], (4, 2))
    """

    _dtype = None  # the noise of classes, log 2 or more, drowns the rounding of a kernel

    classes_: Array
    classified_: Classified | LaplaceClassified

    def __init__(
        self,
        model: nn.Module,
        *,
        weights: Weights = "all",
        outputs: Outputs = "sum",
        method: Method = "dirichlet",
        alpha: float | None = None,
        scale: float | None = None,
        heat: float | None = None,
        start: Start = "zero",
        how: How = "mean",
        random_state: int | np.random.RandomState | None = 0,
        listen: Listener | None = None,
    ) -> None:
        self.model = model
        self.weights = weights
        self.outputs = outputs
        self.method = method
        self.alpha = alpha
        self.scale = scale
        self.heat = heat
        self.start = start
        self.how = how
        self.random_state = random_state
        self.listen = listen

    def fit(self, X: Any, y: Any) -> "LinearizedClassifier":
        """Choose what is not given, and condition on labels `[N]`, numbers or strings."""
        return self._fit(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "LinearizedClassifier":
        """Add points without starting again; the first call chooses, and sees all classes or is told them."""
        if not hasattr(self, "classified_"):
            return self._fit(X, y, classes)
        x, labels = self._points(X, y, reset=False)
        self.classified_ = self.classified_.extended(x, self._numbers(labels))
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
        options = Classes(
            method=self.method, alpha=self.alpha, scale=self.scale, heat=self.heat, start=self.start, how=self.how
        )
        x, labels = self._points(X, y, reset=True)
        seen = np.unique(labels)
        require(
            len(seen) > 1,
            f"a classifier needs labels of two classes or more, got one class, {seen[0]}; add samples of another",
            LabelsError,
        )
        self.classes_ = seen if classes is None else np.unique(classes)
        numbers, size, linearized = self._numbers(labels), len(self.classes_), self._linearize(x)
        self.classified_ = finish(classified.work(linearized, x, numbers, size, options, self._seed()), self.listen)
        return self

    def _points(self, X: Any, y: Any, reset: bool) -> tuple[Tensor, Array]:
        X, y = validate_data(self, X, y, allow_nd=True, reset=reset, dtype=np.float64)
        check_classification_targets(y)
        return as_tensor(X), np.asarray(y)

    def _numbers(self, labels: Array) -> Tensor:
        """Labels as numbers of `classes_`."""
        odd = np.setdiff1d(labels, self.classes_).tolist()
        require(
            not odd,
            f"{', '.join(map(repr, odd[:3]))} is none of the classes {', '.join(map(str, self.classes_[:8]))}; name "
            f"all classes at the first call of partial_fit",
            LabelsError,
        )
        return torch.from_numpy(np.searchsorted(self.classes_, labels))
