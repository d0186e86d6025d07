"""LinearizedRegressor and LinearizedClassifier keep scikit-learn's promises, and say what the posterior says."""

import pickle

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import cross_val_score
from torch import nn

import nearkin as nk
from nearkin.core.errors import NearkinError
from nearkin.nets.registry import build
from nearkin.transfer import Hyper, gaussian, linearize
from nearkin.transfer.classify import classify

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return build("mlp?hidden=12", (2,), 2, seed=0)


@pytest.fixture(scope="module")
def x() -> Array:
    return np.random.default_rng(0).normal(size=(40, 2))


@pytest.fixture(scope="module")
def y(x: Array) -> Array:
    return np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.05 * np.random.default_rng(1).normal(size=40)


@pytest.fixture(scope="module")
def names(x: Array) -> NDArray[np.str_]:
    return np.where(x[:, 0] > 0, "right", np.where(x[:, 1] > 0, "above", "below"))


def test_the_regressor_says_what_the_posterior_says(net: nn.Module, x: Array, y: Array) -> None:
    found = nk.LinearizedRegressor(net, noise=0.01, scale=0.5).fit(x, y)
    wanted = gaussian(linearize(net), torch.from_numpy(x), torch.from_numpy(y), Hyper(noise=0.01, scale=0.5))
    mean, variance = wanted.predict(torch.from_numpy(x[:7]), observed=True)
    said, std = found.predict(x[:7], return_std=True)
    assert np.allclose(said, mean[:, 0])
    assert np.allclose(std, variance[:, 0].sqrt())
    assert found.score(x, y) == pytest.approx(r2_score(y, found.predict(x)))


def test_the_classifier_says_what_the_posterior_says(net: nn.Module, x: Array, names: NDArray[np.str_]) -> None:
    found = nk.LinearizedClassifier(net).fit(x, names)
    assert found.classes_.tolist() == ["above", "below", "right"]
    labels = torch.from_numpy(np.searchsorted(found.classes_, names))
    wanted = classify(linearize(net), torch.from_numpy(x), labels)
    assert np.allclose(found.predict_proba(x), wanted.probabilities(torch.from_numpy(x)))
    assert found.score(x, names) == accuracy_score(names, found.predict(x)) > 0.8
    assert set(found.predict(x)) <= set(names)


@pytest.mark.parametrize("method", ["dirichlet", "laplace"])
def test_a_given_temperature_is_taken(net: nn.Module, x: Array, names: NDArray[np.str_], method: str) -> None:
    cold, hot = (
        nk.LinearizedClassifier(net, method=method, scale=0.5, temperature=temperature).fit(x, names)
        for temperature in (1.0, 4.0)
    )
    one, other = cold.predict_proba(x), hot.predict_proba(x)
    assert np.allclose(one**0.25 / (one**0.25).sum(1, keepdims=True), other, atol=1e-6)


def test_values_learn_their_noise_and_scale(net: nn.Module, x: Array, y: Array) -> None:
    found = nk.LinearizedRegressor(net).fit(x[:30], y[:30])
    assert 1e-4 < found.hyper_.noise < 0.1
    assert found.score(x[30:], y[30:]) > 0.7
    assert nk.LinearizedRegressor(net, layers=True).fit(x[:30], y[:30]).hyper_.layers
    drawn = found.sample(x[:5], 2000)
    assert drawn.shape == (2000, 5)
    assert np.allclose(drawn.mean(0), found.predict(x[:5]), atol=0.1)


def test_several_columns_keep_their_shape(net: nn.Module, x: Array, y: Array) -> None:
    found = nk.LinearizedRegressor(net).fit(x, np.stack([y, -2 * y, y**2], 1))
    mean, std = found.predict(x[:4], return_std=True)
    assert mean.shape == std.shape == (4, 3)
    assert found.sample(x[:4], 2).shape == (2, 4, 3)


def test_points_can_be_added(net: nn.Module, x: Array, y: Array, names: NDArray[np.str_]) -> None:
    whole = nk.LinearizedRegressor(net, noise=0.01, scale=0.5).fit(x, y)
    grown = nk.LinearizedRegressor(net, noise=0.01, scale=0.5).partial_fit(x[:25], y[:25]).partial_fit(x[25:], y[25:])
    assert np.allclose(grown.predict(x), whole.predict(x), atol=1e-6)
    for options in ({"alpha": 0.01, "scale": 0.5}, {"method": "laplace", "scale": 0.5}):
        first = nk.LinearizedClassifier(net, **options).partial_fit(x[:25], names[:25], classes=np.unique(names))
        added = first.partial_fit(x[25:], names[25:])
        assert added.classified_.num_points == 40
        both = nk.LinearizedClassifier(net, **options).fit(x, names)
        assert np.array_equal(added.predict(x), both.predict(x))


def test_a_class_may_be_named_before_it_is_seen(net: nn.Module, x: Array, names: NDArray[np.str_]) -> None:
    without = names != "below"
    found = nk.LinearizedClassifier(net).partial_fit(x[without], names[without], classes=["above", "below", "right"])
    assert found.predict_proba(x).shape == (40, 3)
    assert "below" not in found.predict(x[without])
    assert "below" in found.partial_fit(x[~without], names[~without]).predict(x[~without])


@pytest.mark.parametrize("kind", ["LinearizedRegressor", "LinearizedClassifier"])
def test_clones_and_pickles(kind: str, net: nn.Module, x: Array, y: Array, names: NDArray[np.str_]) -> None:
    made = getattr(nk, kind)(net, weights="head", random_state=3)
    targets = y if kind == "LinearizedRegressor" else names
    again = clone(made)
    assert again.get_params()["weights"] == "head"
    assert again.get_params().keys() == made.get_params().keys()
    with pytest.raises(NotFittedError):
        made.predict(x)
    fitted = made.fit(x, targets)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), fitted.predict(x))
    assert np.array_equal(again.fit(x, targets).predict(x), fitted.predict(x))
    assert np.array_equal(fitted.sample(x[:3], 2), again.sample(x[:3], 2))
    assert cross_val_score(clone(made), x, targets, cv=2).shape == (2,)


def test_images_are_read_as_the_network_reads_them() -> None:
    net = build("lenet", (1, 12, 12), 3, seed=0)
    x = np.random.default_rng(0).normal(size=(8, 1, 12, 12))
    found = nk.LinearizedClassifier(net, weights="head").fit(x, [0, 1] * 4)
    assert found.predict_proba(x).shape == (8, 2)


def test_bad_input_ends_in_one_line(net: nn.Module, x: Array, y: Array, names: NDArray[np.str_]) -> None:
    broken = x.copy()
    broken[2, 1] = np.nan
    regressor, classifier = nk.LinearizedRegressor(net), nk.LinearizedClassifier(net)
    cases = [
        (lambda: classifier.fit(x, ["one"] * 40), "two classes or more, got one class, one"),
        (lambda: classifier.fit(x[:1], names[:1]), "two classes or more"),
        (lambda: classifier.fit(broken, names), "NaN"),
        (lambda: regressor.fit(broken, y), "NaN"),
        (lambda: regressor.fit(x, np.where(y > 0, np.nan, y)), "NaN"),
        (lambda: regressor.fit(np.ones((5, 3)), np.arange(5.0)), "cannot read inputs of shape"),
        (lambda: classifier.fit(x, names).partial_fit(x[:1], ["beside"]), "is none of the classes above, below, right"),
        (lambda: classifier.fit(x, names).predict(x[:, :1]), "features"),
    ]
    for work, wanted in cases:
        with pytest.raises(ValueError, match=wanted):
            work()
    for work, wanted in (
        (lambda: nk.LinearizedRegressor(net, noise=0.1).fit(x, y), "given together"),
        (lambda: nk.LinearizedRegressor("net").fit(x, y), "an nn.Module, got a str"),
        (lambda: nk.LinearizedClassifier(net, method="exact").fit(x, names), "dirichlet or laplace"),
        (lambda: nk.LinearizedClassifier(net, method="laplace", alpha=0.1).fit(x, names), "of the Dirichlet transform"),
        (lambda: nk.LinearizedClassifier(net, temperature=0.0).fit(x, names), "temperature is a number above 0"),
        (lambda: nk.LinearizedClassifier(net, weights="haed").fit(x, names), "did you mean head"),
    ):
        with pytest.raises(NearkinError, match=wanted) as said:
            work()
        assert "\n" not in str(said.value)


def test_a_family_lends_its_hyper_parameters(net: nn.Module, x: Array, y: Array) -> None:
    shared = Hyper(noise=0.02, scale=0.3, mean="zero", layers={"head": 2.0})
    made = nk.LinearizedRegressor(net, hyper=shared)
    assert clone(made).get_params()["hyper"] == shared
    found = made.fit(x, y)
    assert found.hyper_ is shared
    wanted = gaussian(linearize(net), torch.from_numpy(x), torch.from_numpy(y), shared)
    assert np.allclose(found.predict(x[:5]), wanted.mean(torch.from_numpy(x[:5]))[:, 0])
    assert cross_val_score(made, x, y, cv=2).shape == (2,)
    for options, wanted_words in (
        ({"hyper": shared, "noise": 0.1, "scale": 1.0}, "not both"),
        ({"hyper": shared, "mean": "constant"}, "not both"),
        ({"hyper": {"noise": 0.1}}, "a Hyper, got a dict"),
    ):
        with pytest.raises(NearkinError, match=wanted_words):
            nk.LinearizedRegressor(net, **options).fit(x, y)


def test_every_sample_may_have_a_noise_of_its_own(net: nn.Module, x: Array, y: Array) -> None:
    noise = np.where(x[:, 0] > 0, 1e-4, 1.0)
    found = nk.LinearizedRegressor(net).fit(x, y, noise)
    assert found.hyper_.noise == 0
    wanted = gaussian(linearize(net), *map(torch.from_numpy, (x, y)), found.hyper_, torch.from_numpy(noise))
    mean, variance = wanted.predict(torch.from_numpy(x), noise=torch.from_numpy(noise))
    said, std = found.predict(x, return_std=True, noise=noise)
    assert np.allclose(said, mean[:, 0])
    assert np.allclose(std, variance[:, 0].sqrt())
    halves = nk.LinearizedRegressor(net, hyper=found.hyper_).fit(x[:25], y[:25], noise[:25])
    assert np.allclose(halves.partial_fit(x[25:], y[25:], noise[25:]).predict(x), said, atol=1e-6)
    with pytest.raises(NearkinError, match="noise has shape"):
        found.fit(x, y, noise[:3])


def test_constant_values_are_learned_as_such(net: nn.Module, x: Array) -> None:
    found = nk.LinearizedRegressor(net).fit(x, np.full(40, 3.0))
    mean, std = found.predict(x[:5], return_std=True)
    assert np.allclose(mean, 3.0, atol=1e-3)
    assert np.isfinite(std).all()


class MaskedWords(nn.Module):
    """A network with two named inputs: tokens, and weights of the words or their mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.mix(self.norm(self.words(ids))).tanh() * mask[:, :, None]
        return self.head(hidden.sum(1))


class PackedWords(nn.Module):
    """The same network, wrapped by hand: it takes tokens and mask in one row."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids, mask = x.chunk(2, 1)
        return self.network(ids.long(), mask)


def named_inputs(kind: type) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.generic], NDArray[np.int64]]:
    """Named inputs with a mask of whole or real numbers, the same inputs as rows, and classes."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 12, (24, 4))
    mask = rng.integers(0, 4, (24, 4)).astype(kind)
    return {"mask": mask, "ids": ids}, np.concatenate([ids.astype(kind), mask], 1), ids[:, 0] // 6


@pytest.mark.parametrize("kind", [np.int64, np.float32])
@pytest.mark.parametrize("weights", ["head", "norm", "lora?r=2", "all"])
def test_named_inputs_give_the_predictions_of_a_network_wrapped_by_hand(kind: type, weights: str) -> None:
    torch.manual_seed(0)
    net = MaskedWords().eval()
    inputs, rows, labels = named_inputs(kind)
    classifier = nk.LinearizedClassifier(net, weights=weights).fit(inputs, labels)
    wanted = nk.LinearizedClassifier(PackedWords(net), weights=weights).fit(rows, labels)
    assert np.array_equal(classifier.predict_proba(inputs), wanted.predict_proba(rows))
    assert np.array_equal(classifier.predict(inputs), wanted.predict(rows))
    classifier.partial_fit(inputs, labels)
    wanted.partial_fit(rows, labels)
    reversed_order = dict(reversed(inputs.items()))
    assert np.array_equal(classifier.predict_proba(reversed_order), wanted.predict_proba(rows))
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict_proba(inputs), wanted.predict_proba(rows))
    fixed = {"noise": 0.1, "scale": 1.0, "weights": weights}
    mean, std = nk.LinearizedRegressor(net, **fixed).fit(inputs, labels).predict(inputs, return_std=True)
    expected, spread = nk.LinearizedRegressor(PackedWords(net), **fixed).fit(rows, labels).predict(rows, True)
    assert np.array_equal(mean, expected)
    assert np.array_equal(std, spread)


def test_weights_have_the_names_of_the_network_with_named_inputs() -> None:
    inputs, _, labels = named_inputs(np.int64)
    classifier = nk.LinearizedClassifier(MaskedWords(), weights=["mix", r"norm\.b.*"]).fit(inputs, labels)
    free = classifier.classified_.posterior.linearized.names
    assert [name.removeprefix("network.") for name in free] == ["norm.bias", "mix.weight", "mix.bias"]


def test_other_named_inputs_are_refused(net: nn.Module, x: Array, names: NDArray[np.str_]) -> None:
    inputs, _, labels = named_inputs(np.int64)
    classifier = nk.LinearizedClassifier(MaskedWords()).fit(inputs, labels)
    with pytest.raises(ValueError, match="got the inputs ids, expected ids, mask") as caught:
        classifier.predict({"ids": inputs["ids"]})
    assert isinstance(caught.value, NearkinError)
    with pytest.raises(ValueError, match=r"got the inputs ids .*, the network reads one array; give an array"):
        nk.LinearizedClassifier(net).fit(x, names).predict(inputs)
    with pytest.raises(ValueError, match="cannot read tokens"):
        nk.LinearizedClassifier(net).fit(inputs, labels)
