"""NearkinClassifier: `solve` behind scikit-learn's interface."""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nearkin.core.device import device as chosen_device
from nearkin.core.errors import require
from nearkin.core.events import Listener, finish
from nearkin.search.budget import Budget
from nearkin.solve.plan import Plan
from nearkin.solve.solution import Solution
from nearkin.solve.solving import solving
from nearkin.tasks.task import Task
from nearkin.zoo.zoo import Zoo

Array = NDArray[Any]


class NearkinClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is found by `nearkin.solve`: kin, search, contest, choice.

    A fifth of the samples is set aside to measure the answer (`solution_.metric`), as for any task that comes without a
    test part. Images `[N, H, W]`, `[N, C, H, W]`, `[N, H, W, C]` and tables `[N, D]` are taken.

    Args:
        zoo: a `Zoo`, the path of one, or None for no kin at all.
        minutes: of fitting; None together with `evaluations` for runs that are the same every time.
        evaluations: cells of each search.
        only: names of the contenders that take part, such as `("kin-search", "svm")`; all where nothing is said.
        space: where to search: `nearest`, `full`, or a task's name.
        name: under which the task joins the zoo; made of the data where nothing is said.
        random_state: the one seed.
        device: `auto`, `cpu` or `cuda`.
        listen: called with every event.

    Attributes:
        classes_: labels that were seen.
        solution_: everything that is known of the answer.
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
        random_state: int = 0,
        device: str = "auto",
        listen: Listener | None = None,
    ) -> None:
        self.zoo = zoo
        self.minutes = minutes
        self.evaluations = evaluations
        self.only = only
        self.space = space
        self.name = name
        self.random_state = random_state
        self.device = device
        self.listen = listen

    def fit(self, X: Any, y: Any) -> "NearkinClassifier":
        """Solve the task of telling y from X."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype=_dtype(X))
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        require(
            len(self.classes_) > 1,
            f"a classifier needs two classes or more, got one class, {self.classes_[0]!r}; add samples of another",
        )
        task = Task.from_arrays(self.name or _name(X, numbers), X, numbers, classes=[str(one) for one in self.classes_])
        plan = Plan(
            budget=Budget(minutes=self.minutes, evaluations=self.evaluations),
            only=tuple(self.only),
            space=self.space,
            seed=self.random_state,
            device=chosen_device(self.device),
            join=self.zoo is not None,
        )
        self.solution_: Solution = self._beside(lambda zoo: finish(solving(task, zoo, plan), self.listen))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes `[N, C]`, in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, allow_nd=True, reset=False, dtype=_dtype(X))
        probabilities = self.solution_.predict(X).probabilities
        assert probabilities is not None
        found = probabilities.double().numpy()
        return np.asarray(found / found.sum(1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """The most probable classes `[N]`."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def _beside(self, work: Callable[[Zoo], Solution]) -> Solution:
        """The work beside the zoo that was given, or beside an empty one that is forgotten."""
        if isinstance(self.zoo, Zoo):
            return work(self.zoo)
        if self.zoo is not None:
            with Zoo(self.zoo) as zoo:
                return work(zoo)
        with tempfile.TemporaryDirectory() as folder, Zoo(Path(folder) / "zoo") as zoo:
            return work(zoo)


def _dtype(x: Any) -> Any:
    """Bytes of images stay bytes; everything else becomes float32."""
    return None if getattr(x, "dtype", None) == np.uint8 and getattr(x, "ndim", 2) > 2 else np.float32


def _name(x: Array, y: Array) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(y).tobytes()).hexdigest()[:8]
    return f"task-{digest}"
