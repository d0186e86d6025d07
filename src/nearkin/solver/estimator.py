"""NearkinClassifier and NearkinRegressor: `solve` behind scikit-learn's interface."""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nearkin.core.budget import Budget
from nearkin.core.device import device as chosen_device
from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Listener, finish
from nearkin.solver.plan import Plan
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.task import Task
from nearkin.zoo.zoo import Zoo

Array = NDArray[Any]
SEEDS = 2**31 - 1


class OneClassError(DataError, ValueError):
    """Samples of one class only: there is nothing to tell apart; a ValueError, as scikit-learn wants it."""


class OtherImagesError(MismatchError, ValueError):
    """Images in other units than those that were learned from."""


class NearkinEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share: settings, the zoo, and checks of inputs."""

    solution_: Solution

    def __init__(
        self,
        zoo: Zoo | str | Path | None = None,
        *,
        minutes: float | None = 5.0,
        evaluations: int | None = None,
        only: Sequence[str] = (),
        space: str = "nearest",
        name: str | None = None,
        join: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        listen: Listener | None = None,
    ) -> None:
        self.zoo = zoo
        self.minutes = minutes
        self.evaluations = evaluations
        self.only = only
        self.space = space
        self.name = name
        self.join = join
        self.random_state = random_state
        self.device = device
        self.listen = listen

    def _solved(self, X: Array, y: Array, **options: Any) -> Solution:
        """The solution of the task of predicting y from X."""
        self._bytes = X.ndim > 2 and X.dtype == np.uint8
        task = Task.from_arrays(self.name or _name(X, y), X, y, **options)
        plan = Plan(
            budget=Budget(minutes=self.minutes, evaluations=self.evaluations),
            only=tuple(self.only),
            space=self.space,
            seed=_seed(self.random_state),
            device=chosen_device(self.device),
            join=self.join and self.zoo is not None,
        )
        return self._beside(lambda zoo: finish(solve.work(task, zoo, plan=plan), self.listen))

    def _predicted(self, X: Any) -> Prediction:
        check_is_fitted(self)
        X = validate_data(self, X, allow_nd=True, reset=False, dtype=_dtype(X) if self._bytes else np.float32)
        require(
            not self._bytes or X.dtype == np.uint8,
            f"it learned from images of bytes, got {X.dtype}; give uint8, or fit it on images as they are here",
            OtherImagesError,
        )
        return self.solution_.predict(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.minutes is not None
        return tags

    def __sklearn_clone__(self) -> "NearkinEstimator":
        """A zoo is shared, not copied."""
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        """An open zoo cannot be pickled; its path can."""
        state = dict(super().__getstate__())
        return {**state, "zoo": str(self.zoo.path) if isinstance(self.zoo, Zoo) else self.zoo}

    def _beside(self, work: Callable[[Zoo], Solution]) -> Solution:
        """The work beside the zoo that was given, or beside an empty one that is forgotten."""
        if isinstance(self.zoo, Zoo):
            return work(self.zoo)
        if self.zoo is not None:
            with Zoo(self.zoo) as zoo:
                return work(zoo)
        with tempfile.TemporaryDirectory() as folder, Zoo(Path(folder) / "zoo") as zoo:
            return work(zoo)


class NearkinClassifier(ClassifierMixin, NearkinEstimator):  # type: ignore[misc]
    """A classifier that is found by `nearkin.solver`: kin, search, contest, choice.

    A fifth of the samples is set aside to measure the answer (`solution_.metric`), as for any task that comes without a
    test part. Images `[N, H, W]`, `[N, C, H, W]`, `[N, H, W, C]` and tables `[N, D]` are taken; images of bytes stay
    bytes. A copy (`sklearn.clone`) works beside the same zoo, and a pickle remembers where that lies.

    Args:
        zoo: a `Zoo`, the path of one, or None for no kin at all; None leaves no trace.
        minutes: of fitting; None together with `evaluations` for runs that are the same every time.
        evaluations: cells of each search.
        only: names of the contenders that take part, such as `("kin-search", "svm")` (default: all).
        space: where to search: `nearest`, `full`, or a task's name.
        name: under which the task joins the zoo (default: made of the data).
        join: whether it joins. Not in a cross-validation: folds that joined would be each other's kin, and a kin that
            has seen the samples of the next fold's test.
        random_state: the one seed; None, or a generator of NumPy, draws one at each fit.
        device: `auto`, `cpu` or `cuda`.
        listen: called with every event.

    Attributes:
        classes_: labels that were seen.
        n_features_in_: columns of a table; of images the length of their first axis, as everywhere in scikit-learn.
        solution_: everything that is known of the answer.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> found = NearkinClassifier(minutes=None, only=("logistic", "svm")).fit(x, y)
    >>> found.score(x, y) > 0.9, found.solution_.chosen in ("logistic", "svm")
    (True, True)
    """

    def fit(self, X: Any, y: Any) -> "NearkinClassifier":
        """Solve the task of telling y from X."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype=_dtype(X))
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        require(
            len(self.classes_) > 1,
            f"a classifier needs two classes or more, got one class, {self.classes_[0]}; add samples of another",
            OneClassError,
        )
        self.solution_ = self._solved(X, numbers, classes=[str(label) for label in self.classes_])
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes `[N, C]`, in the order of `classes_`."""
        probabilities = self._predicted(X).probabilities
        assert probabilities is not None
        found = probabilities.double().numpy()
        return np.asarray(found / found.sum(1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """The most probable classes `[N]`."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])


class NearkinRegressor(RegressorMixin, NearkinEstimator):  # type: ignore[misc]
    """A regressor that is found by `nearkin.solver`; inputs and settings are those of `NearkinClassifier`.

    Targets are values `[N]` or `[N, K]`, and predictions have their shape and units.

    Attributes:
        n_features_in_: columns of a table; of images the length of their first axis, as everywhere in scikit-learn.
        solution_: everything that is known of the answer.

    >>> from sklearn.datasets import load_diabetes
    >>> x, y = load_diabetes(return_X_y=True)
    >>> found = NearkinRegressor(minutes=None, only=("logistic",)).fit(x, y)
    >>> found.score(x, y) > 0.4, found.predict(x[:2]).shape
    (True, (2,))
    """

    def fit(self, X: Any, y: Any) -> "NearkinRegressor":
        """Solve the task of predicting y from X."""
        X, y = validate_data(
            self, X, y, allow_nd=True, dtype=_dtype(X), multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        self._flat = y.ndim == 1
        self.solution_ = self._solved(X, y.reshape(len(y), -1).astype(np.float32), likelihood="gaussian")
        return self

    def predict(self, X: Any) -> Array:
        """Values `[N]` or `[N, K]`, as those that were learned from."""
        found = self._predicted(X).mean.double().numpy()
        return np.asarray(found[:, 0] if self._flat else found)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _dtype(x: Any) -> Any:
    """Bytes of images stay bytes; everything else becomes float32."""
    return None if getattr(x, "dtype", None) == np.uint8 and getattr(x, "ndim", 2) > 2 else np.float32


def _seed(given: int | np.random.RandomState | None) -> int:
    """A seed as it is; anything else that scikit-learn takes draws one."""
    return int(given) if isinstance(given, int | np.integer) else int(check_random_state(given).randint(SEEDS))


def _name(x: Array, y: Array) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(y).tobytes()).hexdigest()[:8]
    return f"task-{digest}"
