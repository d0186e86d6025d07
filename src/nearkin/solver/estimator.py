"""NearkinClassifier and NearkinRegressor: `solve` with the interface of scikit-learn."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from nearkin.core.budget import Budget
from nearkin.core.device import device as chosen_device
from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Listener, finish
from nearkin.solver.plan import Plan
from nearkin.solver.solution import Solution
from nearkin.solver.solving import solve
from nearkin.tasks.frames import frame_cells, is_frame
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.task import Task
from nearkin.tasks.weights import ClassWeight
from nearkin.zoo.zoo import Zoo

Array = NDArray[Any]
SEEDS = 2**31 - 1


class OneClassError(DataError, ValueError):
    """All samples have the same class; also a ValueError, as scikit-learn requires."""


class OtherImagesError(MismatchError, ValueError):
    """Images have other units than the training images."""


class OtherColumnsError(MismatchError, ValueError):
    """New rows are no DataFrame, unlike the training rows."""


class NoWeightError(DataError, ValueError):
    """All sample weights are 0."""


class NearkinEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the classifier and the regressor: settings, the zoo, and checks of inputs."""

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
        metric: str | None = None,
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
        self.metric = metric

    def _solve(
        self, X: Array, y: Array, sample_weight: Any, class_weight: ClassWeight | None = None, **options: Any
    ) -> Solution:
        """Solve the task of predicting y from X."""
        self._frame = is_frame(X)
        self._bytes = not self._frame and X.ndim > 2 and X.dtype == np.uint8
        task = (_frame_task if self._frame else Task.from_arrays)(
            self.name or _name(X, y), X, y, sample_weight=sample_weight, **options
        )
        plan = Plan(
            class_weight=class_weight,
            metric=self.metric or "",
            budget=Budget(minutes=self.minutes, evaluations=self.evaluations),
            only=tuple(self.only),
            space=self.space,
            seed=_seed(self.random_state),
            device=chosen_device(self.device),
            join=self.join and self.zoo is not None,
        )
        return self._with_zoo(lambda zoo: finish(solve.work(task, zoo, plan=plan), self.listen))

    def _predicted(self, X: Any) -> Prediction:
        check_is_fitted(self)
        if self._frame:
            require(
                is_frame(X),
                f"got {type(X).__name__}, the estimator was fitted on a DataFrame; pass one with the same columns",
                OtherColumnsError,
            )
            return self.solution_.predict(validate_data(self, X, skip_check_array=True, reset=False))
        X = validate_data(self, X, allow_nd=True, reset=False, dtype=_dtype(X) if self._bytes else np.float32)
        require(
            not self._bytes or X.dtype == np.uint8,
            f"got images of {X.dtype}, the estimator was fitted on uint8; pass uint8, or fit it on such images",
            OtherImagesError,
        )
        return self.solution_.predict(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.minutes is not None
        return tags

    def __sklearn_clone__(self) -> "NearkinEstimator":
        """A clone shares the zoo."""
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        """A pickle stores the path of the zoo instead of the open zoo."""
        state = dict(super().__getstate__())
        return {**state, "zoo": str(self.zoo.path) if isinstance(self.zoo, Zoo) else self.zoo}

    def _with_zoo(self, work: Callable[[Zoo], Solution]) -> Solution:
        """Run with the given zoo, or with an empty temporary one."""
        if isinstance(self.zoo, Zoo):
            return work(self.zoo)
        if self.zoo is not None:
            with Zoo(self.zoo) as zoo:
                return work(zoo)
        with tempfile.TemporaryDirectory() as folder, Zoo(Path(folder) / "zoo") as zoo:
            return work(zoo)


class NearkinClassifier(ClassifierMixin, NearkinEstimator):  # type: ignore[misc]
    """Classifier that `nk.solve` selects and trains.

    A fifth of the samples is held out to test the answer (`solution_.metric`), as for any task without a test set.
    Inputs are images `[N, H, W]`, `[N, C, H, W]`, `[N, H, W, C]` or tables `[N, D]`; uint8 images stay uint8. A
    DataFrame may have text, dates, categories and missing cells: its columns are encoded as those of a csv file. A
    clone (`sklearn.clone`) uses the same zoo, and a pickle stores the path of the zoo.

    Args:
        zoo: a `Zoo`, a path, or None to use no related tasks and store nothing.
        minutes: time limit of `fit`; None for reproducible runs, limited by `evaluations`.
        evaluations: cells of each search.
        only: names of the contenders that take part, such as `("kin-search", "svm")` (default: all).
        space: where to search: `nearest`, `full`, or a task's name.
        name: of the task in the zoo (default: made from the data).
        join: whether the task is added to the zoo. Do not use it in cross-validation: a fold in the zoo has seen test
            samples of the next fold.
        random_state: seed; None or a NumPy generator draws a new seed at each fit.
        device: `auto`, `cpu` or `cuda`.
        listen: function that is called with every event.
        metric: metric by which the answer is selected, such as `f1`, `auc`, `mae` (default: accuracy, R² for values).
        class_weight: `balanced`, or weights by class in training (default: all samples count the same).

    Attributes:
        classes_: the labels.
        n_features_in_: columns of a table; for images the length of their first axis, as in scikit-learn.
        solution_: the `Solution`.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> classifier = NearkinClassifier(minutes=None, only=("logistic", "svm")).fit(x, y)
    >>> classifier.score(x, y) > 0.9, classifier.solution_.chosen in ("logistic", "svm")
    (True, True)
    """

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
        metric: str | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
    ) -> None:
        super().__init__(
            zoo, minutes=minutes, evaluations=evaluations, only=only, space=space, name=name, join=join,
            random_state=random_state, device=device, listen=listen, metric=metric,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NearkinClassifier":
        """Solve the task of predicting classes y from X; `sample_weight` `[N]` are weights of samples in training."""
        if _is_mixed(X):
            X, y = validate_data(self, X, skip_check_array=True), column_or_1d(y, warn=True)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(self, X, y, allow_nd=True, dtype=_dtype(X))
        check_classification_targets(y)
        X, y, sample_weight = _weighted(X, y, sample_weight)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        require(
            len(self.classes_) > 1,
            f"got one class, {self.classes_[0]}, a classifier needs two or more; add samples of another class",
            OneClassError,
        )
        weights = self.class_weight
        if isinstance(weights, Mapping):
            weights = {str(label): weight for label, weight in weights.items()}
        names = [str(label) for label in self.classes_]
        self.solution_ = self._solve(X, numbers, sample_weight, weights, classes=names)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes `[N, C]`, in the order of `classes_`."""
        probabilities = self._predicted(X).probabilities
        assert probabilities is not None
        values = probabilities.double().numpy()
        return np.asarray(values / values.sum(1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """The most probable classes `[N]`."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])


class NearkinRegressor(RegressorMixin, NearkinEstimator):  # type: ignore[misc]
    """Regressor that `nk.solve` selects and trains; inputs and settings are those of `NearkinClassifier`.

    Targets are values `[N]` or `[N, K]`; predictions have the same shape and units.

    Attributes:
        n_features_in_: columns of a table; for images the length of their first axis, as in scikit-learn.
        solution_: the `Solution`.

    >>> from sklearn.datasets import load_diabetes
    >>> x, y = load_diabetes(return_X_y=True)
    >>> regressor = NearkinRegressor(minutes=None, only=("logistic",)).fit(x, y)
    >>> regressor.score(x, y) > 0.4, regressor.predict(x[:2]).shape
    (True, (2,))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NearkinRegressor":
        """Solve the task of predicting values y from X; `sample_weight` `[N]` are weights of samples in training."""
        if _is_mixed(X):
            X, y = validate_data(self, X, skip_check_array=True), check_array(y, ensure_2d=False, dtype=np.float64)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(
                self, X, y, allow_nd=True, dtype=_dtype(X), multi_output=True, y_numeric=True, ensure_min_samples=2
            )
        X, y, sample_weight = _weighted(X, y, sample_weight)
        self._flat = y.ndim == 1
        values = y.reshape(len(y), -1).astype(np.float32)
        self.solution_ = self._solve(X, values, sample_weight, likelihood="gaussian")
        return self

    def predict(self, X: Any) -> Array:
        """Values `[N]` or `[N, K]`, in the shape of the training targets."""
        values = self._predicted(X).mean.double().numpy()
        return np.asarray(values[:, 0] if self._flat else values)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _weighted(x: Array, y: Array, sample_weight: Any) -> tuple[Array, Array, Array | None]:
    """Samples with their weights; those of weight 0 are left out."""
    if sample_weight is None:
        return x, y, None
    weights = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
    kept = weights > 0
    require(bool(kept.any()), "all sample weights are 0; give some above 0", NoWeightError)
    return x[kept], y[kept], weights[kept]


def _is_mixed(x: Any) -> bool:
    """Whether inputs are a DataFrame with columns that are no numbers, or with missing cells."""
    return is_frame(x) and (any(kind.kind not in "biuf" for kind in x.dtypes) or bool(x.isna().any(axis=None)))


def _frame_task(
    name: str, frame: Any, y: Array, *, sample_weight: Any, classes: Sequence[str] = (), likelihood: str = "categorical"
) -> Task:
    """A task from a DataFrame and class numbers `[N]` or values `[N, K]`."""
    columns = [f"target {number}" for number in range(y.reshape(len(y), -1).shape[1])]
    targets = dict(zip(columns, y.reshape(len(y), -1).T.tolist(), strict=True))
    repeated = [column for column in columns if column in frame.columns]
    require(not repeated, f"got a column named {', '.join(repeated)}, which is reserved; rename it", OtherColumnsError)
    task = Task.from_frame(name, frame.assign(**targets), columns, likelihood=likelihood, sample_weight=sample_weight)
    return replace(task, classes=tuple(classes)) if classes else task


def _dtype(x: Any) -> Any:
    """Images of uint8 stay uint8; everything else becomes float32."""
    return None if getattr(x, "dtype", None) == np.uint8 and getattr(x, "ndim", 2) > 2 else np.float32


def _seed(state: int | np.random.RandomState | None) -> int:
    """The seed itself; any other random state of scikit-learn draws one."""
    return int(state) if isinstance(state, int | np.integer) else int(check_random_state(state).randint(SEEDS))


def _name(x: Array, y: Array) -> str:
    cells = repr(frame_cells(x, "the inputs")).encode() if is_frame(x) else np.ascontiguousarray(x).tobytes()
    digest = hashlib.sha256(cells + np.ascontiguousarray(y).tobytes()).hexdigest()[:8]
    return f"task-{digest}"
