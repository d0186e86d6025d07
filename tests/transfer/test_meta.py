"""Evidence and posterior mean as functions of the source weights: values, gradients, and a climb."""

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Event, Progress, finish
from nearkin.nets.registry import build
from nearkin.transfer.evidence import dense_log_evidence
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hierarchy.family import family
from nearkin.transfer.hierarchy.meta import evidence, pooled_evidence, posterior_mean, source_params
from nearkin.transfer.hierarchy.meta_learn import MetaLearning, meta_learned
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearized import linearize

N, M = 6, 3


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth(outputs: int = 2) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs))
    with torch.no_grad():
        for number, value in enumerate(net.parameters()):
            value.copy_(drawn(number, *value.shape))
    return net


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("mean", ["constant", "network", "zero"])
def test_values_are_those_of_the_posterior(outputs: str | int, mean: str) -> None:
    flat, x, new = linearize(smooth(), outputs=outputs), drawn(1, N, 2), drawn(2, M, 2)
    y = 4 + drawn(3, N, 1 if outputs == 1 else 2)
    noise = drawn(4, *y.shape).square()
    hyper = Hyper(noise=0.1, scale=0.6, layers={"0": 2.0}, mean=mean)
    said, theta = gaussian(flat, x, y, hyper, noise, "function"), source_params(flat)
    assert float(evidence(theta, flat, x, y, hyper, noise=noise).detach()) == pytest.approx(said.log_evidence, rel=1e-9)
    found = posterior_mean(theta, flat, x, y, new, hyper, noise=noise).detach()
    assert torch.allclose(found, said.mean(new), atol=1e-9)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("mean", ["constant", "network"])
@pytest.mark.parametrize("weights", ["all", "head"])
def test_gradients_are_finite_differences(outputs: str | int, mean: str, weights: str) -> None:
    flat, x, new = linearize(smooth(), weights, outputs), drawn(1, N, 2), drawn(2, M, 2)
    y, hyper = drawn(3, N, 1 if outputs == 1 else 2), Hyper(noise=0.1, scale=0.6, mean=mean)
    theta = source_params(flat)
    names = list(theta)
    values = [
        *theta.values(),
        torch.tensor(-1.5).double().requires_grad_(),
        torch.tensor(0.3).double().requires_grad_(),
    ]

    def told(*some: Tensor) -> tuple[Tensor, Tensor]:
        params = dict(zip(names, some[:-2], strict=True))
        logs = {"log_noise": some[-2], "log_scale": some[-1]}
        return evidence(params, flat, x, y, hyper, **logs), posterior_mean(params, flat, x, y, new, hyper, **logs)

    assert torch.autograd.gradcheck(told, values, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_weights_below_a_free_head_are_learned_too() -> None:
    flat = linearize(smooth(), "head")
    theta = source_params(flat)
    evidence(theta, flat, drawn(1, N, 2), drawn(2, N), Hyper()).backward()
    assert float(theta["0.weight"].grad.abs().max()) > 0


def test_source_weights_climb_the_evidence_of_tasks() -> None:
    """Sines of one frequency: features learned on some tasks raise the evidence of others."""
    with torch.no_grad():
        flat = linearize(build("mlp?hidden=12", (1,), 1, seed=0), "head")
    tasks = []
    for seed in range(8):
        x = 4 * torch.rand(12, 1, generator=torch.Generator().manual_seed(seed)).double() - 2
        amplitude, phase = drawn(seed, 2)
        tasks.append((x, amplitude * torch.sin(3 * x[:, 0] + phase)))
    hyper = Hyper(noise=0.01, mean="zero")
    theta = source_params(flat)
    optimizer = torch.optim.Adam(theta.values(), lr=0.03)

    def total(some: list[tuple[Tensor, Tensor]]) -> Tensor:
        return torch.stack([evidence(theta, flat, x, y, hyper) for x, y in some]).sum()

    before = float(total(tasks[4:]).detach())
    for _ in range(40):
        optimizer.zero_grad()
        (-total(tasks[:4])).backward()
        optimizer.step()
    assert float(total(tasks[4:]).detach()) > before + 10


def curved() -> nn.Module:
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    with torch.no_grad():
        for number, value in enumerate(net.parameters()):
            value.copy_(0.5 * drawn(number, *value.shape))
    return net


def sines(count: int, first: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Curves of one frequency and different sizes."""
    made = []
    for seed in range(first, first + count):
        x = 4 * torch.rand(8, 1, generator=torch.Generator().manual_seed(seed)).double() - 2
        size, phase = drawn(seed, 2)
        made.append((x, (0.3 * size).exp() * (torch.sin(3 * x[:, 0] + phase) + 0.01 * drawn(seed + 900, 8))))
    return made


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
@pytest.mark.parametrize("known", [False, True])
def test_a_pool_is_the_sum_of_its_tasks(outputs: str | int, known: bool) -> None:
    flat, hyper = linearize(smooth(), outputs=outputs), Hyper(noise=0.1, scale=0.6, mean="network")
    tasks = [(drawn(s, 4 + s, 2), drawn(s + 9, 4 + s, 1 if outputs == 1 else 2), None) for s in range(3)]
    if known:
        tasks = [(x, y, 0.1 + drawn(1, *y.shape).square()) for x, y, _ in tasks]
    if outputs == "sum":
        hyper = Hyper(noise=0.1, scale=0.6, mean="constant")
    wanted = sum(float(evidence({}, flat, x, y, hyper, noise=noise)) for x, y, noise in tasks)
    assert float(pooled_evidence({}, flat, tasks, hyper)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("shape", [0.5, 3.0, 1e7])
def test_a_size_integrated_out_is_a_multivariate_t(shape: float) -> None:
    a = drawn(1, N, N)
    covariance, y = a @ a.t() + 0.1 * torch.eye(N).double(), drawn(2, N)
    none = torch.zeros(N, 0).double()
    found = float(dense_log_evidence(covariance[None], none, y[None, :, None], shape))
    wanted = stats.multivariate_t(shape=covariance.numpy(), df=2 * shape).logpdf(y.numpy())
    assert found == pytest.approx(wanted, rel=1e-5)
    if shape > 1e6:  # sizes that are all alike
        assert found == pytest.approx(float(dense_log_evidence(covariance[None], none, y[None, :, None])), rel=1e-5)


@pytest.mark.soak
@pytest.mark.slow
def test_learned_source_weights_suit_tasks_that_they_have_not_seen() -> None:
    flat, tasks, others = linearize(curved()), sines(16), sines(8, 50)
    climb = MetaLearning(steps=60, rate=0.03, sizes=False)
    found = meta_learned(flat, tasks, climb)
    assert found.names == flat.names
    assert torch.equal(flat.params["0.weight"], dict(curved().named_parameters())["0.weight"].double())
    before, after = (family(one, tasks) for one in (flat, found))
    assert after.log_evidence(tasks) > before.log_evidence(tasks) + 16
    assert after.log_evidence(others) > before.log_evidence(others) + 8


def test_climbs_repeat() -> None:
    flat, tasks = linearize(curved()), sines(5)
    climb = MetaLearning(steps=3, tasks=2, seed=4)
    first = meta_learned(flat, tasks, climb).fingerprint
    assert first == meta_learned(flat, tasks, climb).fingerprint
    assert first != meta_learned(flat, tasks, MetaLearning(steps=3, tasks=2, seed=5)).fingerprint


def test_known_noise_stays_known_while_weights_climb() -> None:
    flat = linearize(curved())
    tasks = [(x, y / y.std(), torch.full((8,), 0.01)) for x, y in sines(4)]
    heard: list[Event] = []
    finish(meta_learned.work(flat, tasks, MetaLearning(steps=15, tasks=0)), heard.append)
    told = [event.values["log evidence"] for event in heard if isinstance(event, Progress) and event.stage == "steps"]
    assert len(told) == 15
    assert told[-1] > told[0]


def test_bad_climbs() -> None:
    flat = linearize(smooth(1))
    with pytest.raises(DataError, match="no task"):
        meta_learned(flat, [])
    for options, words in (({"steps": 0}, "steps is 1"), ({"rate": 0.0}, "rate is above 0"), ({"tasks": -1}, "or 0")):
        with pytest.raises(OptionError, match=words):
            MetaLearning(**options)


def test_bad_input() -> None:
    flat, x, y = linearize(smooth()), drawn(1, N, 2), drawn(2, N)
    with pytest.raises(MismatchError, match="no weight tail"):
        evidence({"tail": torch.ones(1)}, flat, x, y, Hyper())
    with pytest.raises(DataError, match="raise the noise"):
        evidence({}, flat, x.repeat(2, 1), y.repeat(2), Hyper(noise=0.0))
    with pytest.raises(MismatchError, match="targets have shape"):
        evidence({}, flat, x, y[1:], Hyper())
