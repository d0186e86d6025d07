"""Posteriors against formulas in NumPy, GPyTorch, scikit-learn and closed forms; and each space against the others."""

import math
from collections.abc import Callable

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import PairwiseKernel
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Caution, Note, finish
from nearkin.core.state import State
from nearkin.fisher.tangent import Outputs
from nearkin.nets.registry import build
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.posterior import Posterior, restored

N, M, C = 40, 7, 2
HYPER = Hyper(noise=0.05, scale=0.7, mean="constant")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("mlp?hidden=4", (3,), C, seed=0)


@pytest.fixture(scope="module")
def x() -> Tensor:
    return drawn(1, N, 3)


@pytest.fixture(scope="module")
def new() -> Tensor:
    return drawn(2, M, 3)


@pytest.fixture(scope="module")
def y(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1) + 3 + 0.1 * drawn(3, N, 2)


def near(found: Tensor | float, wanted: Tensor | float, bound: float = 1e-6) -> bool:
    found, wanted = (torch.as_tensor(one).double() for one in (found, wanted))
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= bound * wanted.abs().max())


def alike(one: Posterior, other: Posterior, x: Tensor, bound: float) -> bool:
    return (
        near(one.predict(x)[0], other.predict(x)[0], bound)
        and near(one.predict(x)[1], other.predict(x)[1], bound)
        and near(one.log_evidence, other.log_evidence, bound)
        and near(one.covariance(x), other.covariance(x), bound)
    )


def textbook(
    k: NDArray[np.float64],
    cross: NDArray[np.float64],
    own: NDArray[np.float64],
    noise: NDArray[np.float64],
    h: NDArray[np.float64],
    h_new: NDArray[np.float64],
    y: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Mean, covariance and log evidence of one column, by inverses."""
    inverse = np.linalg.inv(k + np.diag(noise))
    beta = np.linalg.pinv(h.T @ inverse @ h) @ h.T @ inverse @ y if h.shape[1] else np.zeros(0)
    r = y - h @ beta
    evidence = -0.5 * (r @ inverse @ r + np.linalg.slogdet(k + np.diag(noise))[1] + len(y) * math.log(2 * math.pi))
    return h_new @ beta + cross @ inverse @ r, own - cross @ inverse @ cross.T, evidence


@pytest.mark.parametrize("mean", ["constant", "network", "zero"])
@pytest.mark.parametrize("space", ["function", "weight"])
@pytest.mark.parametrize("known", [None, "points", "targets"])
def test_every_target_against_the_textbook(
    model: nn.Module, x: Tensor, y: Tensor, new: Tensor, mean: str, space: str, known: str | None
) -> None:
    flat, hyper = linearize(model), Hyper(noise=0.05, scale=0.7, mean=mean)
    variances = {None: None, "points": drawn(4, N).square(), "targets": drawn(4, N, 2).square()}[known]
    said = gaussian(flat, x, y, hyper, variances, space)
    found, spread = said.predict(new)
    assert near(said.mean(new), found, 1e-12)
    total = 0.0
    for column in range(2):
        extra = torch.zeros(N, 2).double() if variances is None else variances.reshape(N, -1).expand(N, 2)
        off = flat.mean(x)[:, column] if mean == "network" else torch.zeros(N)
        back = flat.mean(new)[:, column] if mean == "network" else torch.zeros(M)
        size = int(mean == "constant")
        wanted, covariance, evidence = textbook(
            *(0.7 * one.numpy() for one in (flat.kernel(x), flat.kernel(new, x), flat.kernel(new))),
            (0.05 + extra[:, column]).numpy(),
            np.ones((N, size)),
            np.ones((M, size)),
            (y[:, column] - off).numpy(),
        )
        assert near(found[:, column], torch.tensor(wanted) + back)
        assert near(said.covariance(new)[column], torch.tensor(covariance))
        assert near(spread[:, column], torch.tensor(covariance).diagonal())
        total += evidence
    assert said.log_evidence == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("space", ["function", "weight"])
def test_all_outputs_as_one_process(model: nn.Module, x: Tensor, y: Tensor, new: Tensor, space: str) -> None:
    flat, noise = linearize(model, outputs="all"), drawn(4, N, 2).square()
    said = gaussian(flat, x, y, HYPER, noise, space)
    h, h_new = np.tile(np.eye(2), (N, 1)), np.tile(np.eye(2), (M, 1))
    wanted, covariance, evidence = textbook(
        *(0.7 * one.numpy() for one in (flat.kernel(x), flat.kernel(new, x), flat.kernel(new))),
        (0.05 + noise).flatten().numpy(),
        h,
        h_new,
        y.flatten().numpy(),
    )
    assert near(said.mean(new), torch.tensor(wanted).view(M, 2))
    assert near(said.covariance(new), torch.tensor(covariance))
    assert near(said.predict(new)[1], torch.tensor(covariance).diagonal().view(M, 2))
    assert said.log_evidence == pytest.approx(evidence, rel=1e-8)


@settings(max_examples=10, deadline=None)
@given(
    outputs=st.sampled_from(["sum", "all", 0]),
    mean=st.sampled_from(["constant", "network", "zero"]),
    noise=st.floats(1e-3, 10),
    scale=st.floats(0.01, 10),
    layer=st.floats(0.01, 10),
    n=st.integers(2, 60),
)
def test_both_spaces_are_one(outputs: str | int, mean: str, noise: float, scale: float, layer: float, n: int) -> None:
    flat = linearize(build("mlp?hidden=4", (3,), C, seed=1), outputs=outputs)
    x, y = drawn(n, n, 3), 5 + drawn(n + 1, n, 1 if outputs == 0 else 2)
    hyper = Hyper(noise=noise, scale=scale, layers={"head": layer}, mean=mean)
    one, other = (gaussian(flat, x, y, hyper, space=space) for space in ("function", "weight"))
    assert (one.space, other.space) == ("function", "weight")
    assert alike(one, other, drawn(0, 5, 3), 1e-6)


class Exact(gpytorch.models.ExactGP):
    """A GPyTorch model whose kernel is that of a linearized network."""

    def __init__(self, x: Tensor, y: Tensor, kernel: nk.transfer.TangentKernel) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood().double())
        self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(kernel)
        self.double()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


@pytest.mark.parametrize("outputs", [1, "sum"])
def test_gpytorch_says_the_same(model: nn.Module, x: Tensor, y: Tensor, new: Tensor, outputs: Outputs) -> None:
    flat = linearize(model, outputs=outputs)
    exact = Exact(x, y[:, 0], nk.transfer.TangentKernel(flat))
    exact.likelihood.noise, exact.kernel.outputscale = 0.05, 0.7
    said = gaussian(flat, x, y[:, 0], Hyper(noise=0.05, scale=0.7, mean="zero"), space="function")
    exact.train()
    with torch.no_grad():
        evidence = gpytorch.mlls.ExactMarginalLogLikelihood(exact.likelihood, exact)(exact(x), y[:, 0]) * N
        exact.eval()
        with gpytorch.settings.fast_pred_var(False):
            there = exact(new)
            wanted, variance = there.mean, there.variance
    assert said.log_evidence == pytest.approx(float(evidence), rel=1e-6)
    assert near(said.predict(new)[0][:, 0], wanted)
    assert near(said.predict(new)[1][:, 0], variance)


class TestTangentKernel:
    @pytest.mark.parametrize("outputs", [0, "sum", "all"])
    def test_is_the_kernel_of_the_linearized_network(self, model: nn.Module, x: Tensor, new: Tensor, outputs: Outputs):
        flat = linearize(model, outputs=outputs)
        kernel = nk.transfer.TangentKernel(flat)
        assert near(kernel(x).to_dense(), flat.kernel(x))
        assert near(kernel(x, new).to_dense(), flat.kernel(x, new))
        assert kernel(x, new).shape == flat.kernel(x, new).shape
        assert near(kernel(new, diag=True), flat.diagonal(new))
        assert near(kernel(x, diag=True), flat.diagonal(x))  # read off the kernel that is kept

    def test_kept_kernels_are_of_the_same_inputs(self, model: nn.Module, x: Tensor) -> None:
        flat = linearize(model)
        kernel, moved = nk.transfer.TangentKernel(flat), x.clone()
        kernel(moved).to_dense()
        moved += 1
        assert near(kernel(moved).to_dense(), flat.kernel(x + 1))

    def test_learning_scale_and_noise_takes_one_pass_of_the_network(
        self, model: nn.Module, x: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exact, passes = Exact(x, y[:, 0] - 3, nk.transfer.TangentKernel(linearize(model))), []
        kernel = Linearized.kernel
        monkeypatch.setattr(Linearized, "kernel", lambda *given: passes.append(1) or kernel(*given))
        evidence = gpytorch.mlls.ExactMarginalLogLikelihood(exact.likelihood, exact)
        walk = torch.optim.Adam(exact.parameters(), 0.1)
        reached = []
        for _ in range(15):
            walk.zero_grad()
            loss = -evidence(exact(x), y[:, 0] - 3)
            loss.backward()
            walk.step()
            reached.append(float(loss.detach()))
        assert reached[-1] < reached[0]
        assert len(passes) == 1

    def test_images_are_rows_with_a_shape(self) -> None:
        flat = linearize(build("lenet", (1, 8, 8), 2, seed=0))
        images = drawn(1, 3, 1, 8, 8)
        assert near(nk.transfer.TangentKernel(flat, (1, 8, 8))(images.flatten(1)).to_dense(), flat.kernel(images))
        with pytest.raises(MismatchError, match=r"rows \[N, D\], got \[3, 1, 8, 8\].*give input_shape"):
            nk.transfer.TangentKernel(flat)(images).to_dense()


def test_scikit_learn_says_the_same(model: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> None:
    """With the features of the network as inputs of scikit-learn's linear kernel."""
    flat = linearize(model)
    peer = GaussianProcessRegressor(
        PairwiseKernel(metric="linear", pairwise_kernels_kwargs={}), alpha=0.05, optimizer=None
    )
    peer.fit(flat.features(x).numpy(), y[:, 0].numpy())
    mean, deviation = peer.predict(flat.features(new).numpy(), return_std=True)
    said = gaussian(flat, x, y[:, 0], Hyper(noise=0.05, mean="zero"))
    assert near(said.predict(new)[0][:, 0], torch.tensor(mean))
    assert near(said.predict(new)[1][:, 0], torch.tensor(deviation**2))
    assert said.log_evidence == pytest.approx(float(peer.log_marginal_likelihood_value_), rel=1e-8)


def test_a_linear_network_is_bayesian_linear_regression(x: Tensor, y: Tensor, new: Tensor) -> None:
    """Weights have the posterior N((XᵀX/σ² + I/s)⁻¹ Xᵀ r/σ², (XᵀX/σ² + I/s)⁻¹) about the network's own."""
    net = nn.Linear(3, 1, bias=False)
    said = gaussian(linearize(net), x, y[:, 0], Hyper(noise=0.2, scale=2.0, mean="network"))
    precision = x.t() @ x / 0.2 + torch.eye(3).double() / 2.0
    prior = net.weight.detach().double()[0]
    weights = prior + torch.linalg.solve(precision, x.t() @ (y[:, 0] - x @ prior) / 0.2)
    mean, variance = said.predict(new)
    assert near(mean[:, 0], new @ weights)
    assert near(variance[:, 0], (new @ torch.linalg.inv(precision) * new).sum(1))
    assert near(said.step()["weight"][0], weights - prior)


@pytest.mark.parametrize("outputs", ["all", 1, "sum"])
@pytest.mark.parametrize("space", ["function", "weight", "large", "large-weight"])
def test_the_step_of_the_weights_gives_the_mean(
    x: Tensor, y: Tensor, new: Tensor, outputs: str | int, space: str
) -> None:
    flat = linearize(build("mlp?hidden=4", (3,), 1 if outputs == "sum" else C, seed=0), outputs=outputs)
    wanted = y if outputs == "all" else y[:, :1]
    said = gaussian(flat, x, wanted, Hyper(noise=0.1, layers={"head": 3.0}, mean="network"), space=space)
    found = flat.at(said.step(), new)
    found = found if isinstance(outputs, str) else found[:, [outputs]]
    assert near(found, said.mean(new), 1e-9)


@pytest.mark.parametrize("space", ["function", "weight"])
@pytest.mark.parametrize("outputs", ["sum", "all"])
@pytest.mark.parametrize("known", [None, "points", "targets"])
@pytest.mark.parametrize("mean", ["constant", "network"])
def test_more_points_give_what_all_at_once_give(
    model: nn.Module, x: Tensor, y: Tensor, new: Tensor, space: str, outputs: str, known: str | None, mean: str
) -> None:
    flat, hyper = linearize(model, outputs=outputs), Hyper(noise=0.05, mean=mean)
    noise = {None: None, "points": drawn(4, N).square(), "targets": drawn(4, N, 2).square()}[known]

    def part(some: slice) -> Tensor | None:
        return None if noise is None else noise[some]

    said = gaussian(flat, x[:20], y[:20], hyper, part(slice(20)), space)
    for some in (slice(20, 21), slice(21, N)):
        said = said.extended(x[some], y[some], part(some))
    assert said.num_points == N
    assert alike(said, gaussian(flat, x, y, hyper, noise, space), new, 1e-8)


@pytest.mark.parametrize("outputs", ["sum", "all"])
@pytest.mark.parametrize("mean", ["constant", "network"])
@pytest.mark.parametrize("known", [None, "targets"])
def test_leave_one_out_is_a_fit_without_it(
    model: nn.Module, x: Tensor, y: Tensor, outputs: str, mean: str, known: str | None
) -> None:
    flat, hyper = linearize(model, outputs=outputs), Hyper(noise=0.05, mean=mean)
    noise = None if known is None else drawn(4, N, 2).square()
    means, variances = gaussian(flat, x, y, hyper, noise, "function").leave_one_out()
    for i in (0, 17):
        rest = [j for j in range(N) if j != i]
        without = gaussian(flat, x[rest], y[rest], hyper, None if noise is None else noise[rest], "function")
        mean_i, variance_i = without.predict(x[[i]], True, None if noise is None else noise[[i]])
        assert near(means[[i]], mean_i, 1e-8)
        assert near(variances[[i]], variance_i, 1e-8)
    with pytest.raises(OptionError, match="space='function'"):
        gaussian(flat, x, y, hyper, space="weight").leave_one_out()


@pytest.mark.parametrize("space", ["function", "weight", "large"])
def test_a_posterior_survives_its_bytes(model: nn.Module, x: Tensor, y: Tensor, new: Tensor, space: str) -> None:
    flat = linearize(model)
    said = gaussian(flat, x, y, Hyper(noise=0.1, layers={"head": 2.0}), space=space)
    again = restored(flat, State.from_bytes(said.state().to_bytes()))
    assert alike(said, again, new, 1e-13)
    assert (again.hyper, again.space, again.num_points) == (said.hyper, space, N)
    assert near(again.extended(new, y[:M]).mean(new), said.extended(new, y[:M]).mean(new), 1e-6)
    with pytest.raises(MismatchError, match="another network"):
        restored(linearize(build("mlp?hidden=4", (3,), C, seed=9)), said.state())


@pytest.mark.parametrize("outputs", ["sum", "all"])
@pytest.mark.parametrize("known", [None, "targets"])
def test_samples_have_the_moments(
    model: nn.Module, x: Tensor, y: Tensor, new: Tensor, outputs: str, known: str | None
) -> None:
    noise = None if known is None else 5 * drawn(4, N, 2).square()
    said = gaussian(linearize(model, outputs=outputs), x, y, HYPER, noise)
    count = 20_000
    for observed in (False, True):
        found = said.sample(new, count, torch.Generator().manual_seed(5), observed)
        assert found.shape == (count, M, 2)
        mean, variance = said.predict(new, observed)
        assert float(((found.mean(0) - mean) / (variance / count).sqrt()).abs().max()) < 4.5
        assert float((found.var(0) / variance - 1).abs().max()) < 5 * math.sqrt(2 / count)
    joint = found.flatten(1) if outputs == "all" else found[:, :, 0]
    wanted = said.covariance(new) if outputs == "all" else said.covariance(new)[0]
    wanted = wanted + HYPER.noise * torch.eye(len(wanted)).double()
    assert float((torch.cov(joint.t()) - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
    same = [said.sample(new, 2, torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*same)


@pytest.mark.parametrize("outputs", ["sum", "all"])
def test_densities_chain_to_the_evidence(model: nn.Module, x: Tensor, y: Tensor, outputs: str) -> None:
    """log p(y) = log p(y₁) + log p(y₂ | y₁), where no constant is fitted."""
    flat, hyper = linearize(model, outputs=outputs), Hyper(noise=0.1, mean="zero")
    noise = drawn(4, N, 2).square()
    first = gaussian(flat, x[:30], y[:30], hyper, noise[:30])
    whole = gaussian(flat, x, y, hyper, noise)
    told = first.log_prob(x[30:], y[30:], joint=True, noise=noise[30:])
    assert first.log_evidence + float(told) == pytest.approx(whole.log_evidence, rel=1e-8)
    one = first.log_prob(x[30:31], y[30:31], noise=noise[30:31])
    assert one.shape == (1, 2)
    mean, variance = first.predict(x[30:31], observed=True, noise=noise[30:31])
    assert near(one, torch.distributions.Normal(mean, variance.sqrt()).log_prob(y[30:31]), 1e-10)


def test_the_smaller_space_is_taken(model: nn.Module) -> None:
    flat = linearize(model, "head", outputs=0)  # 10 weights
    for n, space in ((8, "function"), (30, "weight")):
        told: list[object] = []
        said = finish(gaussian.work(flat, drawn(1, n, 3), drawn(2, n), HYPER), told.append)
        assert said.space == space
        assert any(isinstance(event, Note) and f"{space} space" in event.text for event in told)


def test_variance_falls_with_points_and_mean_fits_them(model: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> None:
    flat, hyper = linearize(model), Hyper(noise=0.05, mean="zero")
    few, many = gaussian(flat, x[:10], y[:10], hyper), gaussian(flat, x, y, hyper)
    prior = 1.0 * flat.diagonal(new)
    assert bool((many.predict(new)[1] <= few.predict(new)[1] + 1e-12).all())
    assert bool((few.predict(new)[1] <= prior[:, None] + 1e-12).all())
    tight = gaussian(flat, x[:5], y[:5], Hyper(noise=1e-8, mean="zero"), space="function")
    assert near(tight.mean(x[:5]), y[:5], 1e-4)
    assert bool((tight.predict(x[:5])[1] < 1e-6).all())


def never_nan(said: Posterior, x: Tensor) -> bool:
    found = (*said.predict(x), said.covariance(x), torch.tensor(said.log_evidence))
    return all(bool(one.isfinite().all()) for one in found)


def test_duplicates_take_noise_or_jitter(model: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> None:
    flat = linearize(model)
    twice, targets = torch.cat([x[:6], x[:6]]), torch.cat([y[:6], y[:6] + 0.1])
    assert never_nan(gaussian(flat, twice, targets, HYPER), new)
    told: list[object] = []
    said = finish(gaussian.work(flat, twice, targets, Hyper(noise=0.0)), told.append)
    assert said.jitter > 0
    assert any(isinstance(event, Caution) and "not positive definite" in event.text for event in told)
    assert never_nan(said, new)
    assert said.extended(x[:2], y[:2]).jitter > 0


def test_one_point_and_constant_targets(model: nn.Module, x: Tensor, new: Tensor) -> None:
    flat = linearize(model)
    for n in (1, 2, 10):
        said = gaussian(flat, x[:n], torch.full((n, 3), 7.0))
        assert never_nan(said, new)
        assert near(said.mean(x[:n]), torch.full((n, 3), 7.0), 1e-6)
    assert never_nan(gaussian(flat, x[:1], torch.full((1, 2), 7.0)), new)  # a network's mean is at hand
    assert never_nan(gaussian(linearize(model, outputs="all"), x[:1], torch.full((1, 2), 7.0)), new)
    zero = gaussian(flat, x[:4], torch.zeros(4))
    assert never_nan(zero, new)
    assert float(zero.mean(new).abs().max()) == 0.0


def test_a_dead_network_says_the_constant(x: Tensor, y: Tensor, new: Tensor) -> None:
    """Its kernel is zero everywhere."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        net[0].bias.fill_(-1e3)
    said = gaussian(linearize(net), x, y[:, 0])
    assert near(said.mean(new), y[:, 0].mean().expand(M, 1), 1e-9)


@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(model: nn.Module, x: Tensor, y: Tensor, spoil: float) -> None:
    flat = linearize(model)
    bad_x, bad_y, noise = x.clone(), y.clone(), torch.ones(N)
    bad_x[4, 0] = bad_y[4, 1] = noise[4] = spoil
    calls: list[Callable[[], object]] = [
        lambda: gaussian(flat, bad_x, y, HYPER),
        lambda: gaussian(flat, x, bad_y, HYPER),
        lambda: gaussian(flat, x, y, HYPER, noise),
        lambda: gaussian(flat, x, y, HYPER).predict(bad_x),
        lambda: gaussian(flat, x, y, HYPER).extended(bad_x, y),
        lambda: gaussian(flat, x, y, HYPER).extended(x, bad_y),
    ]
    for call in calls:
        with pytest.raises(DataError, match="4"):
            call()


def test_bad_shapes_and_options(model: nn.Module, x: Tensor, y: Tensor) -> None:
    flat: Linearized = linearize(model)
    with pytest.raises(MismatchError, match=r"targets have shape \(39, 2\)"):
        gaussian(flat, x, y[1:], HYPER)
    with pytest.raises(MismatchError, match="noise has shape"):
        gaussian(flat, x, y, HYPER, torch.ones(N, 3))
    with pytest.raises(DataError, match="finite and >= 0"):
        gaussian(flat, x, y, HYPER, -torch.ones(N))
    with pytest.raises(MismatchError, match="outputs='sum'"):
        gaussian(linearize(model, outputs="all"), x, y[:, :1], HYPER)
    with pytest.raises(MismatchError, match="mean='constant'"):
        gaussian(flat, x, y[:, :1], Hyper(mean="network"))
    with pytest.raises(OptionError, match="space is auto"):
        gaussian(flat, x, y, HYPER, space="dual")
    with pytest.raises(OptionError, match="no layer 'tail'"):
        gaussian(flat, x, y, Hyper(layers={"tail": 1.0}))
    with pytest.raises(MismatchError, match="3 columns, the posterior has 2"):
        gaussian(flat, x, y, HYPER).log_prob(x, torch.zeros(N, 3))
    with pytest.raises(MismatchError, match="fit again"):
        gaussian(flat, x, y, HYPER).extended(x, y, torch.ones(N, 2))
    with pytest.raises(DataError, match="above 0"):
        gaussian(flat, x, y, Hyper(noise=0.0), space="weight")
    with pytest.raises(MismatchError, match="weights of its own"):
        gaussian(flat, x, y, HYPER).step()
