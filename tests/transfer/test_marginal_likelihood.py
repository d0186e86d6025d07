"""Learned hyper-parameters against grids of the dense evidence, and what must hold of any maximum."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Caution, Note, finish
from nearkin.nets.registry import build
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper, Learning
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.marginal_likelihood import learn, learn_pooled
from nearkin.transfer.spectrum import feature_spectrum, kernel_spectrum, log_evidence

N = 30


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def flat() -> Linearized:
    return linearize(build("mlp?hidden=5", (2,), 1, seed=0))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return drawn(1, N, 2)


def from_prior(flat: Linearized, x: Tensor, hyper: Hyper, seed: int, columns: int = 1) -> Tensor:
    """Targets `[N, K]` that the process itself gives."""
    gram = flat.kernel(x)
    covariance = hyper.scale * gram + hyper.noise * torch.eye(len(gram)).double()
    return torch.linalg.cholesky(covariance) @ drawn(seed, len(gram), columns)


def dense(flat: Linearized, x: Tensor, y: Tensor, hyper: Hyper, noise: Tensor | None = None) -> float:
    return gaussian(flat, x, y, hyper, noise, "function").log_evidence


def surface(flat: Linearized, x: Tensor, y: Tensor, mean: str) -> Callable[[float, float], float]:
    """The log evidence of one target `[N]` as a function of noise and scale, written out."""
    gram, eye = flat.kernel(x).numpy(), np.eye(len(x))
    r = (y - flat.mean(x)[:, 0] if mean == "network" else y).numpy()
    h = np.ones(len(x)) if mean == "constant" else np.zeros(len(x))

    def at(noise: float, scale: float) -> float:
        covariance = scale * gram + noise * eye
        inverse = np.linalg.inv(covariance)
        rest = r - h * (h @ inverse @ r) / max(h @ inverse @ h, 1e-300)
        told = rest @ inverse @ rest + np.linalg.slogdet(covariance)[1] + len(x) * math.log(2 * math.pi)
        return -0.5 * float(told)

    return at


@pytest.mark.parametrize("mean", ["constant", "network", "zero"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_point_of_a_grid_is_higher(flat: Linearized, x: Tensor, mean: str, seed: int) -> None:
    y = 2 + from_prior(flat, x, Hyper(noise=0.1, scale=1.5), seed)[:, 0]
    found, at = learn(flat, x, y, how=Learning(mean=mean)), surface(flat, x, y, mean)
    top = at(found.noise, found.scale)
    assert top == pytest.approx(dense(flat, x, y, found), rel=1e-8)
    for i in range(-12, 13):
        for j in range(-12, 13):
            assert at(found.noise * 10 ** (i / 6), found.scale * 10 ** (j / 6)) <= top + 1e-7


def test_both_hills_of_the_evidence_are_seen(flat: Linearized) -> None:
    """Targets that are all noise, and targets without any: the ends of the range are looked at."""
    x = drawn(5, 200, 2)
    noisy = learn(flat, x, drawn(6, 200), how=Learning(mean="zero"))
    assert noisy.noise == pytest.approx(1.0, rel=0.3)
    assert noisy.scale * float(flat.diagonal(x).mean()) < 0.1
    targets = flat.features(x) @ drawn(7, flat.num_weights)
    clean = learn(flat, x, targets, how=Learning(mean="zero", floor=1e-8))
    assert clean.noise < 1e-6
    assert clean.scale == pytest.approx(1.0, rel=1.0)
    told: list[object] = []
    floored = finish(learn.work(flat, x, targets, how=Learning(mean="zero")), told.append)
    assert floored.noise == pytest.approx(1e-3 * floored.scale * float(flat.diagonal(x).mean()), rel=1e-6)
    assert any(isinstance(event, Caution) and "bound of the search range" in event.text for event in told)


def test_what_was_drawn_is_found_again(flat: Linearized) -> None:
    """Pooled over tasks, hyper-parameters come close to the truth; one task alone is further off on average."""
    truth = Hyper(noise=0.2, scale=0.5, mean="zero")
    tasks = [(x, from_prior(flat, x, truth, 50 + t)) for t in range(40) for x in (drawn(100 + t, 15, 2),)]
    pooled = learn_pooled(flat, tasks, how=Learning(mean="zero"))
    assert pooled.noise == pytest.approx(0.2, rel=0.15)
    assert pooled.scale == pytest.approx(0.5, rel=0.3)
    alone = [learn(flat, x, y, how=Learning(mean="zero")) for x, y in tasks[:10]]
    off = sum(abs(math.log(one.noise / 0.2)) for one in alone) / len(alone)
    assert off > abs(math.log(pooled.noise / 0.2))


def test_the_pool_maximises_the_sum(flat: Linearized, x: Tensor) -> None:
    tasks = [
        (x[:12], 3 + from_prior(flat, x[:12], Hyper(noise=0.1), 1)),
        (x[12:], from_prior(flat, x[12:], Hyper(noise=0.4), 2)),
    ]
    found = learn_pooled(flat, tasks, how=Learning(mean="constant"))
    top = sum(dense(flat, *task, found) for task in tasks)
    for i in range(-2, 3):
        for j in range(-2, 3):
            other = Hyper(noise=found.noise * 2**i, scale=found.scale * 2**j)
            assert sum(dense(flat, *task, other) for task in tasks) <= top + 1e-7
    assert learn_pooled(flat, tasks[:1], how=Learning(mean="constant")) == learn(
        flat, *tasks[0], how=Learning(mean="constant")
    )


@pytest.mark.parametrize("columns", [1, 3])
def test_known_noise_leaves_the_scale(flat: Linearized, x: Tensor, columns: int) -> None:
    noise = 0.1 + drawn(3, N, columns).square()
    y = from_prior(flat, x, Hyper(noise=1e-9, scale=2.0), 4, columns) + noise.sqrt() * drawn(5, N, columns)
    found = learn(flat, x, y, noise=noise, how=Learning(mean="constant"))
    assert found.noise == 0
    top = dense(flat, x, y, found, noise)
    for i in range(-20, 21):
        assert dense(flat, x, y, Hyper(noise=0.0, scale=found.scale * 10 ** (i / 10)), noise) <= top + 1e-7
    assert learn(flat, x, y, noise=noise.mean(1), how=Learning(mean="constant")).noise == 0


def test_noise_beside_known_noise(flat: Linearized) -> None:
    x = drawn(8, 80, 2)
    noise = torch.full((80,), 0.05).double()
    y = from_prior(flat, x, Hyper(noise=0.5), 9)
    found = learn(flat, x, y, noise=noise, how=Learning(extra=True, mean="zero"))
    plain = learn(flat, x, y, how=Learning(mean="zero"))
    assert found.noise + 0.05 == pytest.approx(plain.noise, rel=1e-3)
    assert found.scale == pytest.approx(plain.scale, rel=1e-3)


def test_layers_of_their_own_are_no_worse(flat: Linearized, x: Tensor) -> None:
    truth = Hyper(noise=0.05, scale=1.0, layers={"body.1": 0.0, "head": 4.0})
    parts = flat.layer_kernels(x)
    y = torch.linalg.cholesky(4 * parts["head"] + 0.05 * torch.eye(N).double()) @ drawn(3, N, 4)
    shared, own = (learn(flat, x, y, how=Learning(mean="zero", layers=layers)) for layers in (False, True))
    assert set(own.layers) == set(parts) == set(truth.layers)
    assert dense(flat, x, y, own) >= dense(flat, x, y, shared) + 1.0
    assert own.layers["head"] > 5 * own.layers["body.1"]
    again = learn(flat, x, y, how=Learning(mean="zero", layers=True))
    assert again == own
    for name in own.layers:
        for factor in (0.5, 2.0):
            other = Hyper(
                noise=own.noise, scale=own.scale, layers={**own.layers, name: factor * own.layers[name]}, mean="zero"
            )
            assert dense(flat, x, y, other) <= dense(flat, x, y, own) + 1e-4


def test_evidence_chooses_the_mean(flat: Linearized, x: Tensor) -> None:
    told: list[object] = []
    hyper = Hyper(noise=0.05, scale=0.3)
    about_network = flat.mean(x) * 5 + from_prior(flat, x, hyper, 3)
    twin = linearize(build("mlp?hidden=5", (2,), 1, seed=0))
    with torch.no_grad():
        twin.model.head.weight.mul_(5)
        twin.model.head.bias.mul_(5)
    assert finish(learn.work(twin, x, about_network), told.append).mean == "network"
    assert sum(isinstance(event, Note) and event.text.startswith("mean ") for event in told) == 2
    assert learn(twin, x, 40 + from_prior(flat, x, hyper, 3)).mean == "constant"
    assert learn(twin, x, from_prior(flat, x, hyper, 3, 2)).mean == "constant"  # two targets, one output


def test_the_spectrum_is_the_dense_evidence(flat: Linearized, x: Tensor) -> None:
    y, noise = drawn(3, N, 2), 0.1 + drawn(4, N).square()
    ones = torch.ones(N, 1).double()
    for known in (None, noise[None]):
        by_kernel = kernel_spectrum(flat.kernel(x), ones, y[None], known)
        by_features = feature_spectrum(flat.features(x), ones, y[None], known)
        hyper = Hyper(noise=0.0 if known is not None else 0.3, scale=0.8)
        wanted = dense(flat, x, y, hyper, None if known is None else noise)
        for one in (by_kernel, by_features):
            level = 0.3 if known is None else 1.0
            assert log_evidence([one], 0.8, level) == pytest.approx(wanted, rel=1e-9)


def test_features_or_kernel_give_the_same(flat: Linearized) -> None:
    x = drawn(3, 100, 2)
    y = from_prior(flat, x, Hyper(noise=0.1), 3)
    few, many = learn(flat, x, y), learn(flat, x, y, how=Learning(limit=flat.num_weights - 1))
    assert few.noise == pytest.approx(0.1, rel=0.4)
    told: list[object] = []
    finish(learn.work(flat, x, y, how=Learning(limit=10)), told.append)
    assert any(isinstance(event, Note) and "10 of 100 points" in event.text for event in told)
    assert many.noise > 0
    assert learn(flat, x, y, how=Learning(limit=10, seed=1)) == learn(flat, x, y, how=Learning(limit=10, seed=1))


def test_the_scale_of_targets_carries_over(flat: Linearized, x: Tensor) -> None:
    y = from_prior(flat, x, Hyper(noise=0.1), 1)
    one, other = (
        learn(flat, x, y, how=Learning(mean="constant")),
        learn(flat, x, 1e3 * y + 1e4, how=Learning(mean="constant")),
    )
    assert other.noise == pytest.approx(1e6 * one.noise, rel=1e-3)
    assert other.scale == pytest.approx(1e6 * one.scale, rel=1e-3)


def test_all_outputs_share_the_weights(x: Tensor) -> None:
    flat = linearize(build("mlp?hidden=5", (2,), 2, seed=0), outputs="all")
    y = from_prior(flat, x, Hyper(noise=0.1), 3).view(N, 2) + torch.tensor([1.0, -5.0]).double()
    found = learn(flat, x, y, how=Learning(mean="constant"))
    top = dense(flat, x, y, found)
    for i in range(-3, 4):
        for j in range(-3, 4):
            assert dense(flat, x, y, Hyper(noise=found.noise * 2**i, scale=found.scale * 2**j)) <= top + 1e-7


@pytest.mark.parametrize("targets", ["constant", "zero", "one point"])
def test_nothing_to_learn_is_said(flat: Linearized, x: Tensor, targets: str) -> None:
    told: list[object] = []
    size, value = (1, 3.0) if targets == "one point" else (N, 0.0 if targets == "zero" else 3.0)
    found = finish(learn.work(flat, x[:size], torch.full((size, 2), value)), told.append)
    assert any(isinstance(event, Caution) and "cannot be learned" in event.text for event in told)
    assert found.noise > 0
    assert found.scale > 0


def test_bad_input(flat: Linearized, x: Tensor) -> None:
    y = drawn(1, N)
    with pytest.raises(DataError, match="no task"):
        learn_pooled(flat, [])
    with pytest.raises(OptionError, match="floor is a fraction"):
        learn(flat, x, y, how=Learning(floor=0.0))
    with pytest.raises(OptionError, match="limit is 1 row or more, got 0"):
        Learning(limit=0)
    with pytest.raises(OptionError, match="the seed is -1, expected an integer >= 0"):
        Learning(seed=-1)
    with pytest.raises(OptionError, match="mean is auto"):
        learn(flat, x, y, how=Learning(mean="median"))
    with pytest.raises(MismatchError, match="mean='constant'"):
        learn(flat, x, drawn(1, N, 2), how=Learning(mean="network"))
    with pytest.raises(MismatchError, match="for all or for none"):
        learn_pooled(flat, [(x, y), (x, y, torch.ones(N))])
    with pytest.raises(DataError, match="above 0"):
        learn(flat, x, y, noise=torch.zeros(N))
    with pytest.raises(DataError, match="targets are not finite at sample 2"):
        learn(flat, x, y.index_fill(0, torch.tensor([2]), math.nan))


def test_a_network_may_have_any_layers(x: Tensor) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 1))
    found = learn(linearize(net), x, torch.sin(3 * x[:, 0]), how=Learning(layers=True))
    assert set(found.layers) == {"0", "1", "3"}
