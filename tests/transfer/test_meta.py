"""Evidence and posterior mean as functions of the source weights: values, gradients, and a climb."""

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError
from nearkin.nets.registry import build
from nearkin.transfer.gaussian import gaussian
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearize import linearize
from nearkin.transfer.meta import evidence, posterior_mean, source_params

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


def test_bad_input() -> None:
    flat, x, y = linearize(smooth()), drawn(1, N, 2), drawn(2, N)
    with pytest.raises(MismatchError, match="no weight tail"):
        evidence({"tail": torch.ones(1)}, flat, x, y, Hyper())
    with pytest.raises(DataError, match="raise the noise"):
        evidence({}, flat, x.repeat(2, 1), y.repeat(2), Hyper(noise=0.0))
    with pytest.raises(MismatchError, match="targets have shape"):
        evidence({}, flat, x, y[1:], Hyper())
