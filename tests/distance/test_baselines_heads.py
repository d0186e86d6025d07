"""Linear heads against closed forms and scikit-learn; the gradient they send against autograd on a whole network."""

import copy
import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.distance.baselines import Head, cross_validated_loss, fitted_head, gradient_norm, head_loss
from nearkin.tasks.likelihood import Categorical, Dense, Gaussian, Heteroscedastic, Likelihood

FORMS = [Categorical(), Gaussian(), Heteroscedastic()]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(form: Likelihood, count: int = 60, width: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    f = 3 + normal(count, width, seed=seed) * torch.logspace(0, -1, width, dtype=torch.float64)
    scores = (f - 3) @ normal(width, 3, seed=99) + 0.5 * normal(count, 3, seed=seed + 1)
    return f, scores.argmax(1) if form.name == "categorical" else scores[:, :2]


def standard(f: Tensor) -> Tensor:
    spread = f - f.mean(0)
    return spread / spread.square().mean().sqrt()


@pytest.mark.parametrize("width", [5, 90])
@pytest.mark.parametrize("ridge", [10.0, 0.01])
def test_a_gaussian_head_is_ridge_regression(width: int, ridge: float) -> None:
    f, y = problem(Gaussian(), width=width)
    head = fitted_head(f, y, Gaussian(), ridges=[ridge])
    x = standard(f)
    weight = torch.linalg.solve(x.T @ x / len(f) + ridge * torch.eye(width), x.T @ (y - y.mean(0)) / len(f))
    torch.testing.assert_close(head(f), y.mean(0) + x @ weight, atol=1e-6, rtol=1e-6)
    assert head.loss == pytest.approx(float(Gaussian().loss(head(f), y)), abs=1e-10)


@pytest.mark.parametrize("width", [5, 90])
@pytest.mark.parametrize("ridge", [1.0, 0.001])
def test_a_categorical_head_is_logistic_regression(width: int, ridge: float) -> None:
    f, y = problem(Categorical(), width=width)
    head = fitted_head(f, y, Categorical(), ridges=[ridge])
    reference = LogisticRegression(C=1 / (ridge * len(f)), tol=1e-10, max_iter=5000).fit(standard(f).numpy(), y.numpy())
    expected = torch.from_numpy(reference.predict_proba(standard(f).numpy()))
    torch.testing.assert_close(head(f).softmax(1), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("width", [5, 90])
def test_a_fitted_head_is_a_stationary_point(form: Likelihood, width: int) -> None:
    f, y = problem(form, width=width)
    ridge = 1.0 if width > len(f) and form.name == "heteroscedastic" else 0.1  # below it variances vanish
    head = fitted_head(f, y, form, ridges=[ridge])
    scale = (f - f.mean(0)).square().mean().sqrt()
    weight = (head.weight * scale).requires_grad_()
    bias = (head.bias + head.weight @ f.mean(0)).requires_grad_()
    total = form.loss(standard(f) @ weight.T + bias, y) + 0.5 * ridge * weight.square().sum()
    for gradient in torch.autograd.grad(total, [weight, bias]):
        assert float(gradient.abs().max()) < 2e-4


def test_a_heteroscedastic_head_finds_the_noise() -> None:
    x = normal(4000, 1)
    y = 2 * x + (0.5 * x).exp() * normal(4000, 1, seed=1)  # log variance x
    head = fitted_head(x, y, Heteroscedastic())
    torch.testing.assert_close(head.weight[:, 0], torch.tensor([2.0, 1.0]).double(), atol=0.1, rtol=0)
    torch.testing.assert_close(head.bias, torch.zeros(2).double(), atol=0.1, rtol=0)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_order_of_samples_changes_no_bit_of_the_head(form: Likelihood) -> None:
    f, y = problem(form)
    order = torch.randperm(len(f), generator=torch.Generator().manual_seed(3))
    a, b = fitted_head(f, y, form), fitted_head(f[order], y[order], form)
    assert torch.equal(a.weight, b.weight)
    assert torch.equal(a.bias, b.bias)
    assert (a.loss, a.ridge) == (b.loss, b.ridge)


@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.name)
def test_scale_shift_and_rotation_of_features_do_not_matter(form: Likelihood) -> None:
    f, y = problem(form)
    turn = torch.linalg.qr(normal(5, 5, seed=7)).Q
    moved = 1e3 * f @ turn - 40
    here, there = (fitted_head(x, y, form, ridges=[0.1]) for x in (f, moved))
    torch.testing.assert_close(here(f), there(moved), atol=1e-4, rtol=0)


def test_the_ridge_follows_what_there_is_to_learn() -> None:
    f = normal(200, 20)
    assert fitted_head(f, f @ normal(20, 1, seed=1), Gaussian()).ridge == 0.001
    assert fitted_head(f, normal(200, 1, seed=2), Gaussian()).ridge >= 10
    assert fitted_head(f, f[:, :1], Gaussian(), ridges=[0.3]).ridge == 0.3
    assert fitted_head(f[:4], f[:4, :1], Gaussian()).ridge == 100
    assert fitted_head(f[:9], torch.arange(9), Categorical()).ridge == 100


def test_losses_of_both_parts() -> None:
    form = Categorical()
    (f, y), (g, z) = problem(form), problem(form, 200, seed=5)
    head = fitted_head(f, y, form)
    assert head_loss(f, y, g, z, form) == pytest.approx(float(form.loss(head(g), z)), abs=1e-12)
    assert head_loss(f, y, g, z, form, part="train") == head.loss
    noise = normal(60, 5, seed=8), normal(200, 5, seed=9)
    assert head_loss(f, y, g, z, form) < head_loss(noise[0], y, noise[1], z, form)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_constant_features_give_the_best_constant(form: Likelihood) -> None:
    y = problem(form)[1]
    head = fitted_head(torch.full((60, 3), 7.0), y, form)
    assert float(head.weight.abs().max()) == 0
    if form.name == "categorical":
        torch.testing.assert_close(head.bias.softmax(0), torch.bincount(y) / 60.0, atol=1e-5, rtol=0, check_dtype=False)
    else:
        torch.testing.assert_close(head.bias[:2], y.mean(0), atol=1e-5, rtol=0)
    if form.name == "heteroscedastic":
        torch.testing.assert_close(head.bias[2:], y.var(0, correction=0).log(), atol=1e-5, rtol=0)


def test_a_class_that_only_the_test_part_has_costs_but_does_not_break() -> None:
    f, y = problem(Categorical())
    found = head_loss(f, y, f, torch.full_like(y, 5), Categorical())
    assert math.isfinite(found)
    assert found > head_loss(f, y, f, y, Categorical())
    assert fitted_head(f, y, Categorical(), num_classes=6).bias.shape == (6,)


def test_a_caller_without_gradients_is_no_hindrance() -> None:
    f, y = problem(Categorical())
    with torch.no_grad():
        quiet = fitted_head(f, y, Categorical())
    assert torch.equal(quiet.weight, fitted_head(f, y, Categorical()).weight)


def test_refusals() -> None:
    f, y = problem(Categorical())
    with pytest.raises(OptionError, match="not for dense"):
        fitted_head(f, f, Dense())
    with pytest.raises(OptionError, match="ridges must be"):
        fitted_head(f, y, Categorical(), ridges=[0.0])
    with pytest.raises(DataError, match="all 60 samples are of class 0"):
        fitted_head(f, torch.zeros_like(y), Categorical())
    with pytest.raises(MismatchError, match="take both from one network"):
        head_loss(f, y, f[:, :2], y, Categorical())
    with pytest.raises(OptionError, match="test or train"):
        head_loss(f, y, f, y, Categorical(), part="all")  # type: ignore[arg-type]


def network(seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(), nn.Linear(6, 9, bias=bias)
    ).double()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_is_that_of_a_network_with_the_head_put_in(form: Likelihood, bias: bool) -> None:
    model, (x, y) = network(bias=bias).eval(), problem(form, width=4)
    head = fitted_head(model[:4](x).detach(), y, form, ridges=[0.1])
    whole = copy.deepcopy(model)
    whole[4] = nn.Linear(6, len(head.bias)).double()
    with torch.no_grad():
        whole[4].weight.copy_(head.weight)
        whole[4].bias.copy_(head.bias)
    form.loss(whole(x), y).backward()
    expected = math.sqrt(sum(float(p.grad.square().sum()) for p in whole[:4].parameters()))
    assert gradient_norm(model, x, y, form, head) == pytest.approx(expected, rel=1e-10)
    assert gradient_norm(model, x, y, form, head, batch_size=7) == pytest.approx(expected, rel=1e-10)


def test_nothing_is_left_on_the_network() -> None:
    model, (x, y) = network().train(), problem(Categorical(), width=4)
    model[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    head = Head(normal(3, 6), normal(3), 0.0, 1.0)
    assert gradient_norm(model, x, y, Categorical(), head) > 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, *[True] * 5]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_no_error_no_gradient() -> None:
    model, x = network().eval(), normal(20, 4)
    head = Head(normal(2, 6), normal(2), 0.0, 1.0)
    y = head(model[:4](x)).detach()
    assert gradient_norm(model, x, y, Gaussian(), head) < 1e-12


def test_single_precision_networks() -> None:
    model, (x, y) = network().eval(), problem(Gaussian(), width=4)
    head = fitted_head(model[:4](x).detach(), y, Gaussian())
    exact = gradient_norm(model, x, y, Gaussian(), head)
    assert gradient_norm(model.float(), x.float(), y, Gaussian(), head) == pytest.approx(exact, rel=1e-3)


def test_gradient_refusals() -> None:
    model, (x, y) = network().eval(), problem(Categorical(), width=4)
    with pytest.raises(MismatchError, match="reads 6 features, the fitted one 5"):
        gradient_norm(model, x, y, Categorical(), Head(normal(3, 5), normal(3), 0.0, 1.0))
    with pytest.raises(DataError, match="expected 0 to 1"):
        gradient_norm(model, x, y, Categorical(), Head(normal(2, 6), normal(2), 0.0, 1.0))
    with pytest.raises(MismatchError, match="consists of a head only"):
        gradient_norm(nn.Linear(4, 3).double(), x, y, Categorical(), Head(normal(3, 4), normal(3), 0.0, 1.0))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_cross_validated_loss_does_not_depend_on_the_order_and_is_above_the_training_loss(form: Likelihood) -> None:
    f, y = problem(form)
    order = torch.randperm(len(f), generator=torch.Generator().manual_seed(3))
    one, two = (cross_validated_loss(f[i], y[i], form) for i in (torch.arange(len(f)), order))
    assert one == pytest.approx(two, abs=1e-6)
    assert one > fitted_head(f, y, form).loss


def test_leave_one_out_of_a_gaussian_head_is_that_of_ridge_regression() -> None:
    """One ridge, one fold a sample: every held-out residual against the closed form on the other samples."""
    f, y = problem(Gaussian(), count=12, width=3)
    total = 0.0
    for i in range(12):
        keep = torch.arange(12) != i
        head = fitted_head(f[keep], y[keep], Gaussian(), ridges=[1.0])
        total += float(Gaussian().loss(head(f[i : i + 1]), y[i : i + 1]))
    assert cross_validated_loss(f, y, Gaussian(), folds=12, ridges=[1.0]) == pytest.approx(total / 12, abs=1e-6)


def test_labels_that_features_do_not_tell_cost_more_than_the_constant_answer() -> None:
    f, y = normal(60, 8), torch.arange(60) % 2
    assert cross_validated_loss(f, y, Categorical()) > 0.95 * math.log(2)
    with pytest.raises(OptionError, match="2 folds or more"):
        cross_validated_loss(f, y, Categorical(), folds=1)
