"""Classes against formulas in dense matrices: the Dirichlet transform, leave-one-out, Laplace's approximation."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Caution, finish
from nearkin.nets.registry import build
from nearkin.transfer import Linearized, closed_form, linearize
from nearkin.transfer.classify import Classified, classify
from nearkin.transfer.labels.calibration import calibration, class_loss, fit_temperature, interval_error
from nearkin.transfer.labels.classes import METHODS, Classes
from nearkin.transfer.labels.dirichlet import LeaveOneOut, dirichlet_targets, left_out
from nearkin.transfer.labels.laplace import LaplaceClassified, laplace
from nearkin.transfer.labels.mode import Mode, newton
from nearkin.transfer.labels.probabilities import class_probabilities, drawn_probabilities

N, M, C = 24, 7, 3


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def flat() -> Linearized:
    return linearize(build("mlp?hidden=8", (2,), C, seed=0))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return drawn(1, N, 2)


@pytest.fixture(scope="module")
def new() -> Tensor:
    return drawn(2, M, 2)


@pytest.fixture(scope="module")
def labels(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.4).long()


def classified(
    flat: Linearized, x: Tensor, labels: Tensor, num_classes: int = C, **options: Any
) -> Classified | LaplaceClassified:
    return closed_form.fit_classes(flat, x, labels, num_classes, Classes(**options))


def near(found: Tensor, wanted: Tensor, bound: float = 1e-6) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= bound * (1 + wanted.abs().max()))


@pytest.mark.parametrize("alpha", [1e-4, 0.01, 1.0])
def test_targets_are_log_normals_with_the_moments_of_the_gammas(alpha: float) -> None:
    targets, noise = dirichlet_targets(torch.tensor([0, 2]), 3, alpha)
    concentrations = alpha + torch.eye(3).double()[[0, 2]]
    assert near((targets + noise / 2).exp(), concentrations)
    assert near(noise.expm1() * (2 * targets + noise).exp(), concentrations)


def test_the_posterior_is_that_of_one_process_a_class(flat: Linearized, x: Tensor, labels: Tensor, new: Tensor) -> None:
    found = classify(flat, x, labels, C, Classes(alpha=0.01, scale=0.5))
    targets, noise = dirichlet_targets(labels, C, 0.01)
    k, cross, own = (0.5 * flat.kernel(*pair) for pair in ((x,), (new, x), (new,)))
    mean, variance = found.scores(new)
    for c in range(C):
        inverse = torch.linalg.inv(k + torch.diag(noise[:, c]))
        assert near(mean[:, c], targets.mean() + cross @ inverse @ (targets[:, c] - targets.mean()))
        assert near(variance[:, c], (own - cross @ inverse @ cross.t()).diagonal())
    assert near(found.probabilities(new, "mean"), (mean / found.temperatures["mean"]).softmax(1))


@pytest.mark.parametrize(("alpha", "scale"), [(1e-4, 10.0), (0.01, 0.5), (3.0, 2.0), (0.1, 1e3)])
def test_left_out_points_are_those_of_a_fit_without_them(
    flat: Linearized, x: Tensor, labels: Tensor, alpha: float, scale: float
) -> None:
    mean, variance = left_out(scale * flat.kernel(x), labels, C, alpha)
    for place in (0, 5, N - 1):
        rest = torch.arange(N) != place
        alone = classify(flat, x[rest], labels[rest], C, Classes(alpha=alpha, scale=scale, temperature=1.0))
        wanted = alone.scores(x[[place]])
        assert near(mean[place], wanted[0][0])
        assert near(variance[place], wanted[1][0])


def test_the_choice_is_the_best_of_its_neighbours(flat: Linearized, x: Tensor, labels: Tensor) -> None:
    found = classify(flat, x, labels).choice
    gram = flat.kernel(x)
    level = float(gram.diagonal().mean())
    judge = LeaveOneOut(gram / level, labels, C)
    a, s = math.log10(found.alpha), math.log10(found.scale * level)
    assert found.loss == pytest.approx(judge.loss(a, s))
    inside = [(a + da, s + ds) for da, ds in ((0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5))]
    inside = [(p, q) for p, q in inside if -4 <= p <= -1 and -1 <= q <= 5]
    assert all(found.loss <= judge.loss(*place) + 1e-12 for place in inside)
    assert found.loss <= min(judge.loss(float(p), float(q)) for p in range(-4, 0) for q in range(-1, 6)) + 1e-12


def test_rounding_of_the_kernel_does_not_matter(x: Tensor, labels: Tensor, new: Tensor) -> None:
    net = build("mlp?hidden=8", (2,), C, seed=0)
    double, single = (classify(linearize(net, dtype=dtype), x, labels) for dtype in (torch.float64, None))
    assert single.choice.loss == pytest.approx(double.choice.loss, rel=1e-4)
    assert near(single.probabilities(new), double.probabilities(new), 1e-3)


def test_what_is_given_is_not_chosen(flat: Linearized, x: Tensor, labels: Tensor) -> None:
    one, other = (classify(flat, x, labels, C, given).choice for given in (Classes(alpha=0.02), Classes(scale=0.3)))
    assert one.alpha == pytest.approx(0.02)
    assert other.scale == pytest.approx(0.3)
    for method in METHODS:
        found = classified(flat, x, labels, method=method, scale=0.3, temperature=1.7, how="sampled")
        assert found.temperatures == {"mean": 1.7, "sampled": 1.7}
        facts = found.facts()
        assert (facts["method"], facts["temperature"], facts["how"]) == (method, 1.7, "sampled")
        assert facts["scale"] == pytest.approx(0.3)
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts


@pytest.mark.parametrize("method", METHODS)
def test_further_labels_give_what_all_at_once_give(flat: Linearized, x: Tensor, labels: Tensor, method) -> None:
    options = {"method": method, "scale": 0.2, "temperature": 1.3, "alpha": 0.01 if method == "dirichlet" else None}
    whole, part = classified(flat, x, labels, **options), classified(flat, x[:15], labels[:15], **options)
    grown = part.extended(x[15:20], labels[15:20]).extended(x[20:], labels[20:])
    assert grown.num_points == N
    for how in ("mean", "sampled"):
        assert near(grown.probabilities(x, how), whole.probabilities(x, how), 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_names_of_classes_do_not_matter(flat: Linearized, x: Tensor, labels: Tensor, new: Tensor, method) -> None:
    order = torch.tensor([2, 0, 1])
    one, other = (classified(flat, x, known, method=method) for known in (labels, order[labels]))
    assert near(one.probabilities(new, "mean"), other.probabilities(new, "mean")[:, order], 1e-3)
    assert near(one.probabilities(new).sum(1), torch.ones(M).double())
    assert bool((one.sample(new, 3, torch.Generator().manual_seed(0)).sum(2) - 1).abs().max() < 1e-9)


def test_sampled_probabilities_are_means_of_softmaxes() -> None:
    mean, variance = drawn(0, 4, 3), drawn(1, 4, 3).square()
    many = (mean + variance.sqrt() * drawn(2, 40_000, 4, 3)).softmax(2).mean(0)
    assert near(class_probabilities(mean, variance, "sampled"), many, 0.03)
    assert near(class_probabilities(mean, torch.zeros(4, 3).double(), "sampled"), mean.softmax(1))
    roots = torch.diag_embed(variance.sqrt())
    assert near(drawn_probabilities(mean, roots, 2.0), class_probabilities(mean, variance, "sampled", 2.0))
    assert near(
        class_probabilities(mean[:1], variance[:1], "sampled"), class_probabilities(mean, variance, "sampled")[:1]
    )


def test_a_temperature_needs_evidence() -> None:
    logits, few = 2 * torch.eye(3).double(), torch.arange(3)
    temperature = fit_temperature(lambda t: (logits / t).softmax(1), few)
    assert 0.7 < temperature < 1 < fit_temperature(lambda t: (logits / t).softmax(1), few, centre=0.3)
    assert 0.7 < temperature < 1  # three points that are right do not make it sure of everything
    assert fit_temperature(lambda t: (logits / t).softmax(1), few, width=math.inf) < 0.1
    wrong = fit_temperature(lambda t: (logits / t).softmax(1).repeat(200, 1), few.roll(1).repeat(200))
    assert wrong > 5


def test_calibration_errors_against_closed_forms() -> None:
    sure = torch.tensor([[0.95, 0.05]]).repeat(4, 1)
    found = calibration(sure, torch.tensor([0, 0, 1, 1]))
    assert found.error == pytest.approx(0.45)
    assert found.bins == (pytest.approx((0.95, 0.5, 4)),)
    z, one = drawn(0, 50_000, 1), torch.ones(50_000, 1).double()
    assert interval_error(0 * z, one, z).error < 0.01
    assert interval_error(0 * z, 1e-12 * one, z).error == pytest.approx(0.5, abs=0.01)


def test_laplace_against_dense_matrices(flat: Linearized, x: Tensor, labels: Tensor, new: Tensor) -> None:
    scale = 0.3
    found = laplace(flat, x, labels, C, Classes(method="laplace", scale=scale))
    k = np.kron(np.eye(C), (scale * flat.kernel(x)).numpy())
    y = torch.nn.functional.one_hot(labels, C).double().t().flatten().numpy()

    def loss(a: np.ndarray) -> tuple[float, np.ndarray]:
        f = k @ a
        p = torch.from_numpy(f.reshape(C, N)).log_softmax(0).numpy().reshape(-1)
        return 0.5 * a @ f - y @ p, k @ (a - y + np.exp(p))

    best = minimize(
        loss, np.zeros(C * N), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    )
    f = k @ best.x
    assert near(found.mode.f, torch.from_numpy(f.reshape(C, N)).t(), 1e-3)
    f = found.mode.f.t().flatten().numpy()
    p = found.mode.f.softmax(1).t().flatten().numpy()
    stacked = np.concatenate([np.diag(part) for part in p.reshape(C, N)])
    w = np.diag(p) - stacked @ stacked.T
    log_lik = float((torch.from_numpy(y.reshape(C, N)).t() * found.mode.f.log_softmax(1)).sum())
    evidence = -0.5 * f @ np.linalg.solve(k + 1e-12 * np.eye(C * N), f) + log_lik
    evidence -= 0.5 * np.linalg.slogdet(np.eye(C * N) + k @ w)[1]
    assert found.log_evidence == pytest.approx(evidence, rel=1e-4)
    cross = np.kron(np.eye(C), (scale * flat.kernel(new, x)).numpy())
    own = np.kron(np.eye(C), (scale * flat.kernel(new)).numpy())
    dense = own - cross @ np.linalg.solve(np.eye(C * N) + w @ k, w @ cross.T)
    _, covariance = found._moments(new)
    wanted = torch.from_numpy(dense.reshape(C, M, C, M)).diagonal(dim1=1, dim2=3).permute(2, 0, 1)
    assert near(covariance, wanted, 1e-5)
    assert near(found.scores(new)[0], torch.from_numpy((cross @ (y - p)).reshape(C, M)).t(), 1e-4)


def without(known: Mode, k: Tensor, labels: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a point's scores where its factor is taken out of the dense Gaussian posterior."""
    size = len(k)
    p = known.f.softmax(1)
    prior = torch.kron(k, torch.eye(C).double())  # point by point
    precision, pull = torch.zeros_like(prior), torch.zeros(size * C).double()
    for n in range(size):
        if n != place:
            w = torch.diag(p[n]) - torch.outer(p[n], p[n])
            own = slice(n * C, (n + 1) * C)
            precision[own, own] = w
            pull[own] = torch.eye(C).double()[labels[n]] - p[n] + w @ known.f[n]
    both = torch.linalg.solve(torch.eye(size * C).double() + prior @ precision, prior)
    own = slice(place * C, (place + 1) * C)
    return (both @ pull)[own], both[own, own]


@pytest.mark.parametrize("scale", [0.3, 20.0])
def test_laplace_leaves_points_out_in_closed_form(flat: Linearized, x: Tensor, labels: Tensor, scale: float) -> None:
    k, zero = scale * flat.kernel(x), torch.zeros(N, C).double()
    known = newton(k, labels, zero, zero)
    mean, covariance = known.left_out(k, labels)
    for place in range(N):
        wanted = without(known, k, labels, place)
        assert near(mean[place], wanted[0], 1e-5)
        assert near(covariance[place], wanted[1], 1e-5)


def test_laplace_without_a_point_is_near_a_fit_without_it(flat: Linearized, x: Tensor, labels: Tensor) -> None:
    options = Classes(method="laplace", scale=2.0, temperature=1.0)
    whole = laplace(flat, x, labels, C, options)
    mean, _ = whole.mode.left_out(2.0 * flat.kernel(x), labels)
    refits = []
    for place in range(N):
        rest = torch.arange(N) != place
        refits.append(laplace(flat, x[rest], labels[rest], C, options).scores(x[[place]])[0][0])
    wanted = torch.stack(refits).log_softmax(1)
    near_by, seen = mean.log_softmax(1), whole.mode.f.log_softmax(1)
    assert float((near_by - wanted).abs().mean()) < 0.2 * float((seen - wanted).abs().mean())
    assert class_loss(near_by.exp(), labels) == pytest.approx(class_loss(wanted.exp(), labels), rel=0.1)


@pytest.mark.parametrize("how", ["mean", "sampled"])
def test_laplace_takes_the_scale_that_suits_left_out_labels(flat: Linearized, x: Tensor, labels: Tensor, how) -> None:
    found = laplace(flat, x, labels, C, Classes(method="laplace", how=how))
    for factor in (0.1, 10**-0.5, 10**0.5, 10.0):
        other = laplace(flat, x, labels, C, Classes(method="laplace", how=how, scale=factor * found.scale))
        assert found.loss <= other.loss + 1e-6
    cold = laplace(flat, x, labels, C, Classes(method="laplace", how=how, scale=found.scale, temperature=1.0))
    assert found.loss <= cold.loss + 1e-6


def test_of_many_points_some_choose_the_scale(
    flat: Linearized, x: Tensor, labels: Tensor, new: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearkin.transfer.labels.laplace.MANY", 12)
    found, again = (laplace(flat, x, labels, C, seed=3) for _ in range(2))
    assert found.scale == again.scale
    assert found.num_points == N
    given = laplace(flat, x, labels, C, Classes(method="laplace", scale=found.scale))
    assert near(found.probabilities(new), given.probabilities(new))
    assert found.loss == pytest.approx(given.loss)
    assert found.loss < math.log(C)


def test_labels_at_random_make_laplace_unsure(flat: Linearized, x: Tensor, new: Tensor) -> None:
    found = laplace(flat, x, torch.randint(C, (N,), generator=torch.Generator().manual_seed(3)), C)
    assert found.loss < 1.5 * math.log(C)
    assert float(found.probabilities(new).max(1).values.mean()) < 0.7


def test_laplace_begins_where_the_network_is(flat: Linearized, x: Tensor, labels: Tensor, new: Tensor) -> None:
    known = flat.mean(x).argmax(1)
    known[:2] = torch.tensor([0, 1])
    begun = Classes(method="laplace", start="network", scale=1e-9)
    small = laplace(flat, x, known, C, begun)
    assert near(small.scores(new)[0], flat.mean(new), 1e-5)
    with pytest.raises(MismatchError, match="3 outputs, the labels are of 4 classes"):
        laplace(flat, x, labels, 4, begun)


def test_newton_climbs_from_any_start(flat: Linearized, x: Tensor, labels: Tensor) -> None:
    k, zero = 50 * flat.kernel(x), torch.zeros(N, C).double()
    one, other = newton(k, labels, zero, zero), newton(k, labels, zero, drawn(5, N, C))
    assert one.converged
    assert other.converged
    assert near(one.f, other.f, 1e-2)
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-3)


def test_one_label_a_class_says_so_and_stays_finite(flat: Linearized, x: Tensor, new: Tensor) -> None:
    heard: list[object] = []
    found = finish(classify.work(flat, x[:3], torch.tensor([0, 1, 2])), heard.append)
    assert any(isinstance(event, Caution) and "one label" in event.text for event in heard)
    assert found.choice.loss is None
    other = laplace(flat, x[:3], torch.tensor([0, 1, 2]))
    assert (other.loss, other.temperatures) == (None, {"mean": 1.0, "sampled": 1.0})
    for said in (found, other):
        assert bool(said.probabilities(new).isfinite().all())


def test_duplicates_and_contradictions_stay_finite(flat: Linearized, x: Tensor, new: Tensor) -> None:
    twice = torch.cat([x[:4], x[:4]])
    for labels in (torch.tensor([0, 0, 1, 1, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1, 1, 0, 0])):
        for said in (classify(flat, twice, labels), laplace(flat, twice, labels)):
            assert bool(said.probabilities(new, "sampled").isfinite().all())


@pytest.mark.parametrize("method", METHODS)
def test_bad_labels_are_refused_in_one_line(flat: Linearized, x: Tensor, labels: Tensor, method) -> None:
    broken = x.clone()
    broken[3, 0] = torch.nan
    cases = [
        (flat, x, torch.zeros(N).long(), {}, DataError, "one class"),
        (flat, x[:1], torch.zeros(1).long(), {}, DataError, "one class"),
        (flat, broken, labels, {}, DataError, "not finite at sample 3"),
        (flat, x, labels.double(), {}, DataError, "whole numbers"),
        (flat, x, labels[:5], {}, DataError, r"of shape \(24,\)"),
        (flat, x, labels - 1, {}, DataError, "from -1 to"),
        (flat, x, labels, {"num_classes": 2}, DataError, "expected 0 to 1"),
        (linearize(flat.model, outputs="all"), x, labels, {}, MismatchError, "outputs='sum'"),
    ]
    for who, inputs, given, options, error, wanted in cases:
        with pytest.raises(error, match=wanted) as said:
            classified(who, inputs, given, **options, method=method)
        assert "\n" not in str(said.value)


def test_options_are_checked_at_birth(flat: Linearized, x: Tensor, labels: Tensor) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "exact"}, "method is dirichlet or laplace, got 'exact'"),
        ({"start": "one"}, "start is zero or network, got 'one'"),
        ({"how": "median"}, "mean or sampled, got 'median'"),
        ({"scale": 0.0}, "scale is a number above 0, got 0.0"),
        ({"alpha": -1.0}, "alpha is a number above 0, got -1.0"),
        ({"temperature": math.nan}, "temperature is a number above 0, got nan"),
        ({"method": "laplace", "alpha": 0.1}, "alpha is of the Dirichlet transform, got alpha=0.1 with method="),
        ({"start": "network"}, "with method='laplace' only"),
    ]
    for options, wanted in cases:
        with pytest.raises(OptionError) as said:
            Classes(**options)
        assert wanted in str(said.value)
        assert "\n" not in str(said.value)
    with pytest.raises(OptionError, match="got method='laplace'"):
        classify(flat, x, labels, C, Classes(method="laplace"))
    with pytest.raises(OptionError, match="got method='dirichlet'"):
        laplace(flat, x, labels, C, Classes())


def test_too_many_points_are_refused_before_any_work(flat: Linearized) -> None:
    with pytest.raises(DataError, match="GiB; give at most"):
        classify(flat, torch.zeros(20_000, 2), torch.arange(20_000) % 3)


def test_a_kernel_of_nothing_is_refused() -> None:
    still = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))
    nn.init.zeros_(still[2].weight)
    with torch.no_grad():
        still[0].bias.fill_(-100.0)
    for method in METHODS:
        with pytest.raises(DataError, match="kernel is zero"):
            classified(linearize(still), drawn(0, 4, 2), torch.tensor([0, 0, 1, 1]), 2, method=method)


def test_class_loss_of_a_certain_mistake_is_finite() -> None:
    assert math.isfinite(class_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))
