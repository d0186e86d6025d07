"""Simple models: the same as scikit-learn's, valid under any time limit, kept and read without a pickle."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.ensemble import ExtraTreesClassifier, GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC, SVR
from torch import Tensor, nn

from nearkin.core.errors import DataError, OptionError
from nearkin.core.events import Checkpoint, Event, Note, Progress, finish
from nearkin.core.rng import derived_seed
from nearkin.nets.evaluate import evaluate
from nearkin.nets.functional import load
from nearkin.nets.registry import build
from nearkin.nets.solved import Solved
from nearkin.solver.simple import boosting, forest, linear, models, svm
from nearkin.solver.simple.data import FitContext, Sample, evenly, folds_of, standard
from nearkin.solver.simple.models import ALWAYS, SIMPLE, SimpleFit, fit_simple, title
from nearkin.solver.simple.svm import sharpness
from nearkin.tasks.examples import Scaling
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.task import Task
from nearkin.zoo.model_file import loaded, saved

KINDS = tuple(SIMPLE)


@pytest.fixture(autouse=True)
def few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are about being right, not about being good."""
    monkeypatch.setattr(boosting, "ROUNDS", 10)
    monkeypatch.setattr(boosting, "RATES", (0.1, 0.3))
    monkeypatch.setattr(linear, "STRENGTHS", (1.0, 0.1))
    monkeypatch.setattr(forest, "TREES", 30)
    monkeypatch.setattr(forest, "TRIAL_TREES", 10)


def iris(classes: int = 3) -> Task:
    x, y = load_iris(return_X_y=True)
    return Task.from_arrays("iris", x[y < classes].astype(np.float32), y[y < classes])


def digits(count: int = 300) -> Task:
    x, y = load_digits(return_X_y=True)
    images = x.reshape(-1, 1, 8, 8).astype(np.float32)
    return Task.from_arrays("digits", images[:count], y[:count], images[-200:], y[-200:])


def diabetes(likelihood: str = "gaussian") -> Task:
    x, y = load_diabetes(return_X_y=True)
    return Task.from_arrays("diabetes", x.astype(np.float32), y.astype(np.float32), likelihood=likelihood)


def blobs(count: int, classes: int, columns: int = 3, seed: int = 0) -> Task:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    x = torch.randn(count, columns, generator=rng) + y[:, None]
    return Task.from_arrays("blobs", x, y, x, y)


def module(done: SimpleFit, task: Task) -> nn.Module:
    made = build(done.network, task.input_shape, task.num_outputs, seed=0)
    load(made, done.fit.params, done.fit.buffers)
    return made.eval()


def answers(done: SimpleFit, task: Task) -> Tensor:
    with torch.inference_mode():
        return module(done, task)(task.test.all().x)


def context_of(shared_scale: bool, scaled: bool = False) -> FitContext:
    return FitContext("", likelihood("categorical"), 2, shared_scale, 0, scaled=scaled)


def parts(task: Task) -> tuple[np.ndarray, ...]:
    """Standardised training inputs, training targets, and test inputs, as the models see them."""
    (x, y), (x_test, _) = task.train.all(), task.test.all()
    x, x_test = x.flatten(1), x_test.flatten(1)
    mean, std = standard(x, context_of(len(task.input_shape) == 3, scaled=task.train.scaling.mean is not None))
    return ((x - mean) / std).double().numpy(), y.squeeze(-1).numpy(), ((x_test - mean) / std).double().numpy()


class TestAgainstScikitLearn:
    @pytest.mark.parametrize("task", [iris(), iris(2), digits()], ids=["iris", "two classes", "digits"])
    def test_logistic_regression(self, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linear, "STEPS", 1000)
        monkeypatch.setattr(linear, "TOLERANCE", 1e-6)
        done = fit_simple("logistic", task, fixed={"C": 0.1})
        x, y, x_test = parts(task)
        expected = LogisticRegression(C=0.1, tol=1e-8, max_iter=5000).fit(x, y).predict_proba(x_test)
        np.testing.assert_allclose(answers(done, task).softmax(1).numpy(), expected, atol=2e-3)

    def test_logistic_regression_of_very_many_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = iris()
        wanted = answers(fit_simple("logistic", task, fixed={"C": 0.1}), task)
        monkeypatch.setattr(linear, "LBFGS_WEIGHTS", 0)
        said = answers(fit_simple("logistic", task, fixed={"C": 0.1}), task)
        assert not torch.equal(said, wanted)
        np.testing.assert_allclose(said.softmax(1), wanted.softmax(1), atol=5e-3)

    @pytest.mark.parametrize("task", [iris(), iris(2), digits()], ids=["iris", "two classes", "digits"])
    @pytest.mark.parametrize("whole", [True, False], ids=["gram", "no gram"])
    def test_support_vector_machine_one_against_the_rest(
        self, task: Task, whole: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(svm, "GRAM_SAMPLES", 10_000 if whole else 0)
        done = fit_simple("svm", task, fixed={"C": 10.0, "gamma": 0.02, "sharpness": 3.0})
        x, y, x_test = parts(task)
        size = len(task.classes)
        decisions = np.stack(
            [SVC(C=10.0, gamma=0.02).fit(x, y == group).decision_function(x_test) for group in range(size)], 1
        )
        said = answers(done, task).numpy() / 3
        expected = decisions if size > 2 else decisions / 2
        np.testing.assert_allclose(said, expected, atol=5e-3)
        clear = np.sort(expected, 1)[:, -1] - np.sort(expected, 1)[:, -2] > 1e-2
        assert clear.mean() > 0.95
        assert (said.argmax(1) == expected.argmax(1))[clear].all()

    def test_two_classes_agree_with_predict(self) -> None:
        task = blobs(200, 2)
        done = fit_simple("svm", task, fixed={"C": 1.0, "gamma": 0.3})
        x, y, x_test = parts(task)
        assert (
            answers(done, task).argmax(1).numpy() == SVC(gamma=0.3, break_ties=True).fit(x, y).predict(x_test)
        ).all()

    @pytest.mark.parametrize("columns", [16, 64])
    def test_gradient_boosting(self, columns: int) -> None:
        task = digits()
        settings = {"learning_rate": 0.2, "rounds": 7, "leaves": 8, "least": 5, "columns": columns}
        done = fit_simple("boosting", task, fixed=settings)
        x, y = task.train.all()
        model = GradientBoostingClassifier(
            learning_rate=0.2, n_estimators=7, max_leaf_nodes=8, max_depth=None, min_samples_leaf=5,
            max_features=columns, subsample=boosting.SUBSAMPLE, random_state=derived_seed(0, "boosting", 0) % 2**31,
        ).fit(x.flatten(1).numpy(), y.numpy())  # fmt: skip
        expected = model.predict_proba(task.test.all().x.flatten(1).numpy())
        np.testing.assert_allclose(answers(done, task).softmax(1).numpy(), expected, atol=1e-6)

    @pytest.mark.parametrize(
        ("kind", "maker"), [("forest", RandomForestClassifier), ("extra-trees", ExtraTreesClassifier)]
    )
    def test_forests_grown_a_few_trees_at_a_time(self, kind: str, maker: type[RandomForestClassifier]) -> None:
        task = iris()
        done = fit_simple(kind, task, fixed={"trees": 25, "least": 3, "columns": 2})
        seed = derived_seed(0, kind) % 2**31
        model = maker(n_estimators=25, min_samples_leaf=3, max_features=2, random_state=seed)
        x, y = task.train.all()
        expected = model.fit(x.numpy(), y.numpy()).predict_proba(task.test.all().x.numpy())
        np.testing.assert_allclose(answers(done, task).softmax(1).numpy(), (25 * expected + 1 / 3) / 26, atol=1e-6)
        assert done.settings["trees"] == done.settings["steps"] == 25

    def test_ridge_regression(self) -> None:
        task = diabetes()
        done = fit_simple("logistic", task, fixed={"alpha": 5.0})
        x, y, x_test = parts(task)
        expected = Ridge(alpha=5.0).fit(x, y).predict(x_test)
        np.testing.assert_allclose(answers(done, task)[:, 0].numpy(), expected, atol=1e-4)

    def test_ridge_regression_of_more_columns_than_samples(self) -> None:
        x, y = torch.randn(20, 50), torch.randn(20, 2)
        task = Task.from_arrays("wide", x, y, x, y)
        done = fit_simple("logistic", task, fixed={"alpha": 5.0})
        z, y_scaled, z_test = parts(task)
        np.testing.assert_allclose(answers(done, task), Ridge(alpha=5.0).fit(z, y_scaled).predict(z_test), atol=1e-4)

    def test_support_vector_regression(self) -> None:
        task = diabetes()
        done = fit_simple("svm", task, fixed={"C": 1.0, "gamma": 0.1})
        x, y, x_test = parts(task)
        expected = SVR(C=1.0, gamma=0.1).fit(x, y).predict(x_test)
        np.testing.assert_allclose(answers(done, task)[:, 0].numpy(), expected, atol=5e-3)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_learns_classes(self, kind: str) -> None:
        task = iris()
        done = fit_simple(kind, task)
        assert done.fit.scores.metric >= 0.9
        assert done.fit.scores.to_dict() == evaluate(module(done, task), task.test, task.form).to_dict()
        assert done.fit.reached
        assert json.loads(json.dumps(done.settings, allow_nan=False)) == done.settings

    def test_learns_values(self, kind: str) -> None:
        assert fit_simple(kind, diabetes()).fit.scores.metric > 0.25

    def test_learns_values_with_their_noise(self, kind: str) -> None:
        plain, noisy = (fit_simple(kind, diabetes(name)) for name in ("gaussian", "heteroscedastic"))
        assert noisy.fit.scores.metric == pytest.approx(plain.fit.scores.metric, abs=1e-5)
        said = answers(noisy, diabetes("heteroscedastic"))[:, 1]
        assert said.exp().tolist() == pytest.approx([noisy.settings["noise"][0]] * len(said))
        assert 0.2 < noisy.settings["noise"][0] < 1

    @pytest.mark.thinned(2)
    def test_the_same_seed_gives_the_same_model(self, kind: str) -> None:
        first, second = (fit_simple(kind, iris(), seed=4) for _ in range(2))
        assert first.settings == second.settings
        for name, value in {**first.fit.params, **first.fit.buffers}.items():
            assert torch.equal(value, {**second.fit.params, **second.fit.buffers}[name])

    def test_fixed_settings_give_the_model_that_chose_them(self, kind: str) -> None:
        task = iris()
        first = fit_simple(kind, task)
        again = fit_simple(kind, task, fixed=first.settings)
        assert torch.equal(answers(first, task), answers(again, task))

    @pytest.mark.thinned(2)
    def test_the_test_part_only_judges(self, kind: str) -> None:
        task = iris()
        other = Task(
            task.name, task.train, task.test.chosen(torch.arange(3)), task.likelihood, task.classes, task.input_shape
        )
        first, second = fit_simple(kind, task), fit_simple(kind, other)
        assert first.settings == second.settings
        assert torch.equal(answers(first, task), answers(second, task))

    def test_a_file_without_pickles_gives_the_same_answers(self, kind: str, tmp_path: Path) -> None:
        task = iris()
        done = fit_simple(kind, task)
        saved(Solved(task.name, done.network, task.facts(), 0, (done.fit,)), tmp_path / "model.safetensors")
        again = loaded(tmp_path / "model.safetensors")
        with torch.inference_mode():
            assert torch.equal(again.model()(task.test.all().x), answers(done, task))
        assert again.scores_on(task) == done.fit.scores

    def test_tells_where_it_is_and_can_be_stopped(self, kind: str) -> None:
        seen: list[Event] = []
        finish(fit_simple.work(kind, iris()), seen.append)
        steps = [event for event in seen if isinstance(event, Progress)]
        assert {event.stage for event in steps} == {title(kind, "categorical")}
        assert len(steps) > 5
        moments = [event for event in seen if isinstance(event, Checkpoint)]
        assert len(moments) == len(steps)
        state = moments[-1].capture()
        assert (dict(state.tensors), dict(state.facts)) == ({}, {})
        work = fit_simple.work(kind, iris())
        for event in itertools.islice(work, 6):
            assert isinstance(event, Progress | Checkpoint | Note)
        work.close()

    @pytest.mark.thinned(4)
    @pytest.mark.parametrize(
        "task",
        [blobs(10, 2), blobs(4, 4), blobs(2, 2), blobs(9, 4), blobs(26, 13)],
        ids=["ten samples", "one a class", "two samples", "nine of four", "two a class"],
    )
    @pytest.mark.parametrize("seconds", [None, 0.001])
    def test_few_samples_give_a_valid_model(self, kind: str, task: Task, seconds: float | None) -> None:
        done = fit_simple(kind, task, seconds=seconds)
        assert bool(answers(done, task).isfinite().all())

    def test_constant_inputs_give_the_shares_of_the_classes(self, kind: str) -> None:
        x, y = torch.ones(40, 2), torch.tensor([0] * 30 + [1] * 10)
        task = Task.from_arrays("constant", x, y, x, y)
        assert fit_simple(kind, task).fit.scores.metric == 0.75

    @pytest.mark.thinned(2)
    def test_no_time_is_enough_for_a_valid_model_of_fewer_samples_or_steps(self, kind: str) -> None:
        task = blobs(ALWAYS + 500, 3, columns=20)
        free = fit_simple(kind, task, fixed=fit_simple(kind, iris()).settings)
        hasty = fit_simple(kind, task, seconds=1e-3)
        assert free.settings["samples"] == ALWAYS + 500
        assert hasty.settings["samples"] < ALWAYS + 500 or hasty.settings["steps"] < free.settings["steps"]
        assert hasty.fit.scores.metric > 0.5

    def test_text_and_images_as_outputs_are_refused(self, kind: str) -> None:
        x = torch.randn(8, 1, 4, 4)
        with pytest.raises(OptionError, match="use a network"):
            fit_simple(kind, Task.from_arrays("dense", x, x, x, x, likelihood="dense"))

    def test_settings_of_another_kind_are_refused(self, kind: str) -> None:
        with pytest.raises(OptionError, match="lack"):
            fit_simple(kind, iris(), fixed={"depth": 3})

    def test_one_sample_is_refused(self, kind: str) -> None:
        x, y = torch.randn(1, 2), torch.randn(1, 1)
        with pytest.raises(DataError, match="has 1 training sample"):
            fit_simple(kind, Task.from_arrays("one", x, y, x, y))


class TestRefusals:
    def test_an_unknown_kind(self) -> None:
        with pytest.raises(OptionError, match="choose one of logistic, svm, boosting, forest, extra-trees"):
            fit_simple("tree", iris())

    def test_no_time(self) -> None:
        with pytest.raises(OptionError, match="above 0 s"):
            fit_simple("svm", iris(), seconds=0)

    @pytest.mark.parametrize("kind", ["svm", "boosting", "forest"])
    def test_many_classes_one_by_one(self, kind: str) -> None:
        with pytest.raises(OptionError, match="has 201 classes or values"):
            fit_simple(kind, blobs(402, 201))

    def test_more_weights_than_fit_into_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "MOST_WEIGHTS", 8)
        with pytest.raises(OptionError, match="3 x 3 weights"):
            fit_simple("logistic", blobs(30, 3))


def test_ten_thousand_classes_end_soon() -> None:
    done = fit_simple("logistic", blobs(20_000, 10_000, columns=4), seconds=0.2)
    assert done.settings["samples"] < 20_000
    assert done.fit.params["weight"].shape == (10_000, 4)
    assert bool(done.fit.params["weight"].isfinite().all())


def test_too_many_numbers_for_the_memory_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST_NUMBERS", 150)
    notes: list[Event] = []
    assert finish(fit_simple.work("logistic", blobs(90, 3)), notes.append).settings["samples"] == 50
    assert Note("logistic regression uses 50 of 90 training samples") in notes


def test_evenly_drawn_samples_keep_the_shares_and_every_class() -> None:
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 99 + [3])
    index = evenly(labels, 1000, 100, seed=0)
    assert torch.equal(index, index.unique())
    counts = torch.bincount(labels[index], minlength=4)
    assert counts.sum() == 100
    assert (counts - torch.tensor([60, 30, 10, 1])).abs().max() <= 2
    assert counts[3] == 1
    assert len(evenly(None, 1000, 10, seed=0)) == 10
    assert evenly(labels, 1000, 5000, seed=0).tolist() == list(range(1000))


@pytest.mark.parametrize("count", [40, 600])
def test_parts_are_apart_and_every_class_is_learned_from(count: int) -> None:
    y = torch.arange(count) % 7
    y[0] = 7  # a class of one
    sample = Sample(torch.arange(float(count))[:, None], y)
    folds = folds_of(sample, True, seed=0)
    assert len(folds) == (5 if count < 500 else 1)
    for learn, judge in folds:
        assert set(learn.x.flatten().tolist()).isdisjoint(judge.x.flatten().tolist())
        assert len(learn.y) + len(judge.y) == count
        assert learn.y.unique().tolist() == list(range(8))


def test_sharpness_finds_the_temperature_that_labels_were_drawn_with() -> None:
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(4000, 5, generator=rng)
    labels = torch.multinomial((4 * outputs).softmax(1), 1, generator=rng)[:, 0]
    assert sharpness(outputs, labels) == pytest.approx(4, rel=0.15)


def test_pixels_share_one_deviation_and_constant_columns_keep_their_unit() -> None:
    x = torch.tensor([[0.0, 5.0, 0.0], [2.0, 5.0, 4.0]])
    assert standard(x, context_of(shared_scale=False))[1].tolist() == [1.0, 1.0, 2.0]
    assert standard(x, context_of(shared_scale=True))[1].tolist() == pytest.approx([(5 / 3) ** 0.5] * 3)


def test_the_columns_of_a_scaled_table_are_only_centred() -> None:
    x = torch.tensor([[0.0, 5.0], [2.0, 5.0]])
    mean, std = standard(x, context_of(shared_scale=False, scaled=True))
    assert (mean.tolist(), std.tolist()) == ([1.0, 5.0], [1.0, 1.0])


def test_forests_are_for_tables() -> None:
    assert models.simple_models(digits()) == ("logistic", "svm", "boosting")
    assert models.simple_models(iris()) == KINDS


def test_trees_of_very_many_samples_have_a_limited_number_of_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    task = blobs(400, 2)
    wide = fit_simple("forest", task, fixed={"trees": 4, "least": 1, "columns": 2})
    monkeypatch.setattr(forest, "MOST_NUMBERS", 4 * 20 * 7)
    narrow = fit_simple("forest", task, fixed={"trees": 4, "least": 1, "columns": 2})
    assert len(wide.fit.buffers["value"]) > 4 * 20 >= len(narrow.fit.buffers["value"])


@pytest.mark.parametrize("kind", KINDS)
def test_titles_name_the_kind(kind: str) -> None:
    assert title(kind, "categorical") == SIMPLE[kind]
    assert title(kind, "gaussian") != SIMPLE[kind]


class TestWeights:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("values", [False, True], ids=["classes", "values"])
    def test_heavy_samples_count_more(self, kind: str, values: bool) -> None:
        """Half of the samples say the opposite of the other half: the heavy half wins."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(120, 2)).astype(np.float32)
        sign = np.where(np.arange(120) % 2, 1, -1)
        y = (x[:, 0] * sign).astype(np.float32) if values else (x[:, 0] * sign > 0).astype(int)
        weights = np.where(sign > 0, 1.0, 0.01)
        x_test = rng.normal(size=(60, 2)).astype(np.float32)
        y_test = x_test[:, 0] if values else (x_test[:, 0] > 0).astype(int)
        task = Task.from_arrays("two minds", x, y, x_test, y_test, sample_weight=weights)
        fixed = {
            "logistic": {"C": 1.0, "alpha": 1.0}, "svm": {"C": 1.0, "gamma": 0.3},
            "boosting": {"learning_rate": 0.2, "rounds": 20, "leaves": 8, "least": 5, "columns": 2},
        }.get(kind, {"trees": 20, "least": 5, "columns": 2})  # fmt: skip
        score = fit_simple(kind, task, fixed=fixed).fit.scores.metric
        assert score > (0.6 if values else 0.85)


def test_a_feature_that_is_nearly_constant_in_training_does_no_harm() -> None:
    """A unit of a network may be almost always zero for the training samples, and not for new ones."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(200, 8, generator=rng), torch.arange(200) % 2
    x[:, 0] += y
    x[:100, 1] = 1e-6 * torch.rand(100, generator=rng)
    task = Task.from_arrays("units", x[:100], y[:100], x[100:], y[100:])
    plain = replace(
        task, train=replace(task.train, scaling=Scaling()), test=replace(task.test, scaling=Scaling())
    )  # features are not scaled by the task
    assert fit_simple("logistic", plain, features=True).fit.scores.metric > 0.95
    assert fit_simple("logistic", plain).fit.scores.metric < 0.9  # so the test can fail
