"""Likelihoods against torch's distributions, and their metrics against scikit-learn."""

import pytest
import torch
from sklearn.metrics import r2_score
from torch.distributions import Categorical, Independent, Normal

from nearkin.core.errors import OptionError
from nearkin.tasks.likelihood import DISTRIBUTIONS, likelihood

RNG = torch.Generator().manual_seed(0)
F64 = {"dtype": torch.float64, "generator": RNG}
CASES = {
    "categorical": (torch.randn(6, 4, **F64), torch.randint(4, (6,), generator=RNG)),
    "language": (torch.randn(6, 5, 4, **F64), torch.randint(4, (6, 5), generator=RNG)),
    "gaussian": (torch.randn(6, 3, **F64), torch.randn(6, 3, **F64)),
    "heteroscedastic": (torch.randn(6, 6, **F64), torch.randn(6, 3, **F64)),
    "dense": (torch.randn(6, 2, 4, 5, **F64), torch.randn(6, 2, 4, 5, **F64)),
}


def distribution(name: str, outputs: torch.Tensor) -> torch.distributions.Distribution:
    if name in ("categorical", "language"):
        return Independent(Categorical(logits=outputs), outputs.dim() - 2)
    if name == "heteroscedastic":
        mean, log_variance = outputs.chunk(2, -1)
        return Independent(Normal(mean, (0.5 * log_variance).exp()), 1)
    return Independent(Normal(outputs, torch.ones_like(outputs)), outputs.dim() - 1)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_nll_is_minus_the_log_probability(name: str) -> None:
    outputs, targets = CASES[name]
    expected = -distribution(name, outputs).log_prob(targets)
    assert torch.allclose(likelihood(name).nll(outputs, targets), expected, atol=1e-12)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_slope_is_the_gradient_of_nll(name: str, scale: float) -> None:
    outputs, targets = CASES[name]
    free = (scale * outputs).requires_grad_()  # at 30 some log variances are beyond their limit
    (expected,) = torch.autograd.grad(likelihood(name).nll(free, targets).sum(), free)
    found = likelihood(name).slope(free, targets)
    assert not found.requires_grad
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_loss_is_the_mean_over_units(name: str) -> None:
    outputs, targets = CASES[name]
    units = targets.numel() if name in ("dense", "language") else len(targets)
    expected = likelihood(name).nll(outputs, targets).sum() / units
    assert torch.allclose(likelihood(name).loss(outputs, targets), expected, atol=1e-12)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_have_the_models_own_entropy(name: str) -> None:
    outputs = CASES[name][0][:2]
    form = likelihood(name)
    drawn = torch.stack([form.nll(outputs, form.sample(outputs, RNG)) for _ in range(4000)])
    expected = distribution(name, outputs).entropy()
    assert torch.allclose(drawn.mean(0), expected, atol=5 * float(drawn.std(0).max()) / 4000**0.5)


@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "dense"])
def test_r2_agrees_with_scikit_learn_and_adds_up_over_batches(name: str) -> None:
    outputs, targets = CASES[name]
    form = likelihood(name)
    tally = form.tally(outputs[:2], targets[:2]) + form.tally(outputs[2:], targets[2:])
    means = outputs.chunk(2, -1)[0] if name == "heteroscedastic" else outputs
    flat = [value.transpose(0, 1).flatten(1).t().numpy() for value in (targets, means)]
    expected = r2_score(*flat, multioutput="variance_weighted")
    assert form.score(tally) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["categorical", "language"])
def test_accuracy_adds_up_over_batches(name: str) -> None:
    outputs, targets = CASES[name]
    form = likelihood(name)
    tally = form.tally(outputs[:2], targets[:2]) + form.tally(outputs[2:], targets[2:])
    assert form.score(tally) == pytest.approx((outputs.argmax(-1) == targets).double().mean().item())


def test_smoothing_pulls_to_the_uniform() -> None:
    outputs, targets = CASES["categorical"]
    form = likelihood("categorical")
    uniform = -outputs.log_softmax(-1).mean()
    expected = 0.8 * form.loss(outputs, targets) + 0.2 * uniform
    assert torch.allclose(form.loss(outputs, targets, 0.2), expected)


def test_unknown_likelihoods_are_named() -> None:
    with pytest.raises(OptionError, match=r"poisson.*categorical"):
        likelihood("poisson")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_information_is_the_covariance_of_the_score(name: str) -> None:
    """Against an average over the model's own samples, and factor by factor against the product."""
    outputs = CASES[name][0][:1]
    form, size = likelihood(name), outputs.numel()
    free = outputs.expand(40_000, *outputs.shape[1:]).clone().requires_grad_()
    (score,) = torch.autograd.grad(form.nll(free, form.sample(free, RNG)).sum(), free)
    score = score.flatten(1)
    columns = [
        form.information(outputs, unit.view_as(outputs)).flatten() for unit in torch.eye(size, dtype=torch.float64)
    ]
    information = torch.stack(columns, 1)
    assert torch.allclose(score.T @ score / len(score), information, atol=0.05 * float(information.max()))
    factors = torch.stack([factor.flatten() for factor in form.factors(outputs)])
    assert torch.allclose(factors.T @ factors, information, atol=1e-12)


def test_factors_of_certain_predictions_are_finite() -> None:
    outputs = torch.tensor([[400.0, 0.0, -400.0], [0.0, 0.0, 0.0], [-400.0, 0.0, 400.0]])
    factors = torch.stack(list(likelihood("categorical").factors(outputs)))
    assert len(factors) == 2
    assert factors.isfinite().all()
