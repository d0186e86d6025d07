"""`NearkinClassifier` and `NearkinRegressor` as scikit-learn's users know classifiers and regressors."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import nearkin as nk
from nearkin.core.errors import NearkinError
from nearkin.core.events import Event

QUICK = {"minutes": None, "evaluations": 1, "only": ("logistic",)}


def quick(**changes: Any) -> nk.NearkinClassifier:
    """One simple model, the same every time."""
    return nk.NearkinClassifier(**{**QUICK, **changes})


def quick_values(**changes: Any) -> nk.NearkinRegressor:
    """The same for values."""
    return nk.NearkinRegressor(**{**QUICK, **changes})


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    """Digits 0, 1, 2: `[90, 8, 8]` of 0 to 16, and their names."""
    found = load_digits(n_class=3)
    return found.images[:90], np.array(["null", "eins", "zwei"])[found.target[:90]]


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    return x, (x[:, 0] + x[:, 1] > 0).astype(int)


LEFT_OUT = {
    "check_array_api_input",  # wants a setting of the whole process
    "check_sample_weight_equivalence_on_dense_data",  # repeated samples change the validation split
    "check_methods_subset_invariance",  # wants 1e-7; outputs are float32, and rounding depends on the batch size
}
CHECKS = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{number}-{getattr(check, 'func', check).__name__}")
    for given in (quick(only=("svm",)), quick_values())
    for number, (estimator, check) in enumerate(estimator_checks_generator(given, mark=None))
    if getattr(check, "func", check).__name__ not in LEFT_OUT
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learns_own_checks_pass(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_a_prediction_depends_on_its_sample_only(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    for fitted, method in ((quick(only=("svm",)).fit(x, y), "predict_proba"), (quick_values().fit(x, y), "predict")):
        whole = getattr(fitted, method)(x)
        parts = np.concatenate([getattr(fitted, method)(row[None]) for row in x])
        np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)


def test_images_of_floats_and_of_bytes(images: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = images
    floats = quick().fit(x, y)
    assert floats.n_features_in_ == 8
    assert floats.solution_.task["input_shape"] == [1, 8, 8]
    assert floats.score(x, y) > 0.95
    pixels = (x * 15).astype(np.uint8)
    small = quick().fit(pixels, y)
    said = small.predict_proba(pixels)
    assert said.shape == (90, 3)
    assert np.allclose(said.sum(1), 1)
    # the units are scaled away: bytes, and the same values as floats, are one and the same data
    assert np.allclose(said, quick().fit(pixels.astype(np.float32), y).predict_proba(pixels), atol=1e-3)
    with pytest.raises(ValueError, match="got images of float32, the estimator was fitted on uint8"):
        small.predict(x)
    with pytest.raises(NearkinError, match="got inputs of shape"):
        small.predict(pixels[:, :, :7])


def test_labels_come_back_as_they_were_given(images: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = images
    found = quick().fit(x, y)
    assert found.classes_.tolist() == ["eins", "null", "zwei"]
    assert found.predict(x).dtype == y.dtype
    numbered = quick().fit(x, (y == "eins") * 7 - 3)
    assert set(numbered.predict(x).tolist()) == {-3, 4}
    assert np.array_equal(numbered.classes_[numbered.predict_proba(x).argmax(1)], numbered.predict(x))
    assert found.solution_.classes == ("eins", "null", "zwei")


@pytest.mark.parametrize("fitted", [False, True])
def test_copies_and_pickles(table: tuple[np.ndarray, np.ndarray], fitted: bool) -> None:
    x, y = table
    first = quick(only=("svm", "logistic"), name="one")
    if fitted:
        first.fit(x, y).predict(x)  # which builds the model
    assert clone(first).get_params() == first.get_params()
    assert not hasattr(clone(first), "solution_")
    again = pickle.loads(pickle.dumps(first))
    file = io.BytesIO()
    joblib.dump(first, file)
    file.seek(0)
    for other in (again, joblib.load(file)):
        assert other.get_params() == first.get_params()
        if fitted:
            assert np.array_equal(other.predict_proba(x), first.predict_proba(x))
        else:
            with pytest.raises(NotFittedError):
                other.predict(x)


def test_a_network_is_pickled_without_its_code(images: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = images
    found = quick(only=("lenet",)).fit(x, y)
    wanted = found.predict_proba(x)
    held = pickle.dumps(found)
    assert b"nearkin.nets.small" not in held
    assert np.array_equal(pickle.loads(held).predict_proba(x), wanted)


def test_it_works_where_classifiers_work(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    assert cross_val_score(make_pipeline(StandardScaler(), quick()), x, y, cv=2).mean() > 0.8
    search = GridSearchCV(quick(), {"only": [("logistic",), ("svm",)]}, cv=2).fit(x, y)
    assert search.best_params_["only"] in (("logistic",), ("svm",))
    assert search.best_estimator_.solution_.chosen in search.best_params_["only"]
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_fitted_again_it_forgets(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    found = quick().fit(x, y)
    before = found.predict_proba(x)
    found.fit(pandas.DataFrame(x[:, :3], columns=["a", "b", "c"]), np.where(y, "yes", "no"))
    assert (found.n_features_in_, found.feature_names_in_.tolist()) == (3, ["a", "b", "c"])
    assert found.classes_.tolist() == ["no", "yes"]
    del found.feature_names_in_
    assert np.array_equal(found.fit(x, y).predict_proba(x), before)


@pytest.mark.slow
def test_the_task_joins_the_zoo_that_is_named(images: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = images
    path = tmp_path / "zoo"
    heard: list[Event] = []
    found = quick(zoo=path, name="numbers", join=True, listen=heard.append).fit(x, y)
    assert heard
    with nk.Zoo(path) as zoo:
        assert zoo.names() == ["numbers"]
        quick(zoo=zoo).fit(x[:60], y[:60])
        assert zoo.names() == ["numbers"]
        beside = quick(zoo=zoo, join=True)
        assert clone(beside).zoo is zoo
        kin = clone(beside).fit(x[:60], y[:60]).solution_.relations.nearest
        assert set(kin.values()) == {"numbers"}
        assert len(zoo) == 2
        assert pickle.loads(pickle.dumps(beside)).zoo == str(zoo.path)
        with pytest.raises(NearkinError, match="other data; choose another name"):
            quick(zoo=path, name="numbers").fit(x[:50], y[:50])
        assert quick(zoo=path, name="numbers").fit(x, y).solution_.chosen == found.solution_.chosen


def test_without_a_zoo_nothing_is_left(
    table: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    quick().fit(*table)
    assert list(here.iterdir()) == []
    assert list(temporary.iterdir()) == []


def test_seeds_are_what_scikit_learn_takes(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    seeds = [quick(random_state=given).fit(x, y).solution_.seed for given in (3, np.int64(3))]
    assert seeds == [3, 3]
    drawn = [quick(random_state=np.random.RandomState(0)).fit(x, y).solution_.seed for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert quick(random_state=None).fit(x, y).solution_.seed >= 0


def test_what_cannot_be_told_apart_is_refused(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    with pytest.raises(ValueError, match="got one class, cat, a classifier needs two or more; add samples of another"):
        quick().fit(x, np.full(len(x), "cat"))
    with pytest.raises(ValueError, match="continuous"):
        quick().fit(x, x[:, 0])
    with pytest.raises(NearkinError, match="unknown contender 'tree'"):
        quick(only=("tree",)).fit(x, y)


def test_torch_tensors_are_arrays(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    given = torch.from_numpy(x), torch.from_numpy(y)
    assert np.array_equal(quick().fit(*given).predict(given[0]), quick().fit(x, y).predict(x))


class TestValues:
    def test_predictions_have_shape_and_units_of_the_targets(self) -> None:
        x, y = load_diabetes(return_X_y=True)
        flat = quick_values().fit(x, y)
        assert flat.predict(x).shape == y.shape
        assert flat.score(x, y) == pytest.approx(Ridge(1.0).fit(StandardScaler().fit_transform(x), y).score(
            StandardScaler().fit_transform(x), y), abs=0.03)  # fmt: skip
        assert flat.solution_.quality.name == "r2"
        both = quick_values().fit(x, np.stack([y, 1000 - 3 * y], 1)).predict(x)
        assert np.allclose(both[:, 0], flat.predict(x), atol=1e-2)
        assert np.allclose(both[:, 1], 1000 - 3 * both[:, 0], atol=1e-2)

    def test_whole_numbers_are_values_too(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = table
        assert len(np.unique(quick_values().fit(x, y).predict(x))) > 2

    def test_it_works_where_regressors_work(self, images: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = images[0].astype(np.float32), images[0].mean((1, 2))
        assert cross_val_score(quick_values(), x, y, cv=2).mean() > 0.8
        found = quick_values().fit(x, y)
        assert np.array_equal(pickle.loads(pickle.dumps(found)).predict(x), found.predict(x))
        assert clone(found).get_params() == found.get_params()


def test_weights_of_samples_and_classes_reach_the_model() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = np.where(x[:, 0] + 0.8 * rng.normal(size=200) > 1.2, "rare", "usual")
    plain = quick().fit(x, y)
    balanced = quick(class_weight="balanced").fit(x, y)
    given = quick(class_weight={"rare": 9.0, "usual": 1.0}).fit(x, y)
    by_sample = quick().fit(x, y, sample_weight=np.where(y == "rare", 9.0, 1.0))
    rare = [(found.predict(x) == "rare").sum() for found in (plain, balanced, given, by_sample)]
    assert min(rare[1:]) > rare[0]
    assert np.allclose(given.predict_proba(x), by_sample.predict_proba(x), atol=1e-4)
    values = x @ [1.0, 2.0] + rng.normal(size=200)
    first, second = quick_values().fit(x, values), quick_values().fit(x, values, sample_weight=np.arange(1, 201))
    assert not np.allclose(first.predict(x), second.predict(x))


def frame(count: int, seed: int) -> pandas.DataFrame:
    """Rows with text, dates, categories, truth values and missing cells."""
    rng = np.random.default_rng(seed)
    good = rng.random(count) < 0.5
    words = np.where(good, "lovely fine room", "awful dirty room")
    return pandas.DataFrame({
        "age": np.where(rng.random(count) < 0.2, np.nan, rng.normal(40, 9, count)),
        "city": pandas.Categorical(rng.choice(["Oslo", "Rome"], count)),
        "seen": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 300, count), "D"),
        "member": rng.choice(np.array([True, False, None], dtype=object), count),
        "review": [f"{words[i]} number {i % 7}" for i in range(count)],
        "good": good,
    })  # fmt: skip


def test_data_frames_of_any_columns() -> None:
    rows, new = frame(150, 0), frame(40, 1)
    x, labels = rows.drop(columns="good"), np.where(rows["good"], "yes", "no")
    new_x, new_labels = new.drop(columns="good"), np.where(new["good"], "yes", "no")
    weights = np.where(np.arange(150) % 3 == 0, 0.0, 1.0)
    fitted = quick().fit(x, labels, sample_weight=weights)
    assert fitted.score(new_x, new_labels) > 0.9
    assert list(fitted.classes_) == ["no", "yes"]
    assert list(fitted.feature_names_in_) == list(x.columns)
    assert fitted.predict_proba(new_x).shape == (40, 2)
    assert cross_val_score(quick(), x, labels, cv=3).mean() > 0.9
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict(new_x) == fitted.predict(new_x)).all()
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(new_x.drop(columns="city"))
    with pytest.raises(NearkinError, match="fitted on a DataFrame; pass one with the same columns"):
        fitted.predict(new_x.to_numpy())


@pytest.mark.parametrize("targets", [1, 2])
def test_values_from_data_frames_of_any_columns(targets: int) -> None:
    rows, new = frame(150, 0), frame(40, 1)
    y, new_y = (np.stack([100 * part["good"] + 3, 5 - part["good"]], 1)[:, :targets].squeeze() for part in (rows, new))
    fitted = quick_values().fit(rows.drop(columns="good"), y)
    found = fitted.predict(new.drop(columns="good"))
    assert found.shape == new_y.shape
    assert fitted.score(new.drop(columns="good"), new_y) > 0.9
