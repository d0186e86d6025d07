"""A family of tasks: growing is pooling from scratch, streams are honest, blends are the integrals they claim to be."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Caution, Event, finish, operation
from nearkin.core.rng import seeded
from nearkin.nets.registry import build
from nearkin.tasks.papers.precipitation import station_tasks
from nearkin.tasks.papers.sinusoids import Sinusoids, sinusoid_tasks
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hierarchy.blend import Mixture
from nearkin.transfer.hierarchy.cached_kernels import CachedKernels
from nearkin.transfer.hierarchy.family import family
from nearkin.transfer.hierarchy.variety import DECADES, variety_of
from nearkin.transfer.hyper import Hyper, Learning
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.marginal_likelihood import learn_pooled
from nearkin.transfer.prepared import Points, summarize_task
from nearkin.transfer.spectrum import merge_spectra

N = 9


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def flat() -> Linearized:
    return linearize(build("mlp?hidden=6", (2,), 1, seed=0))


def task(flat: Linearized, seed: int, hyper: Hyper, size: int = N) -> tuple[Tensor, Tensor]:
    """Points that the process itself gives."""
    x = drawn(seed, size, 2)
    covariance = hyper.scale * flat.kernel(x) + hyper.noise * torch.eye(size).double()
    return x, 1 + torch.linalg.cholesky(covariance) @ drawn(seed + 1000, size)


@pytest.fixture(scope="module")
def tasks(flat: Linearized) -> list[tuple[Tensor, Tensor]]:
    return [task(flat, seed, Hyper(noise=0.1, scale=0.5), N + seed % 3) for seed in range(8)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "how",
    [
        Learning(),
        Learning(mean="zero"),
        Learning(limit=5, seed=3),
        pytest.param(Learning(layers=True), marks=pytest.mark.slow),
    ],
)
def test_growing_is_pooling_from_scratch(flat: Linearized, tasks: list[tuple[Tensor, Tensor]], how: Learning) -> None:
    grown = family(flat, tasks[:3], how)
    for points in tasks[3:6]:
        grown = grown.grown(*points)
    whole, pooled = family(flat, tasks[:6], how), learn_pooled(flat, tasks[:6], how)
    for other in (whole.hyper, pooled):
        assert grown.hyper.mean == other.mean
        assert grown.hyper.noise == pytest.approx(other.noise, rel=1e-9)
        assert grown.hyper.scale == pytest.approx(other.scale, rel=1e-9)
        assert grown.hyper.layers == pytest.approx(other.layers, rel=1e-9)
    assert grown.num_tasks == whole.num_tasks == 6


def test_growing_computes_no_old_kernel(
    flat: Linearized, tasks: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, seen = family(flat, tasks[:5]), []
    kernel = Linearized.kernel

    def watched(self: Linearized, x: Tensor, *rest: object, **more: object) -> object:
        seen.append(len(x))
        return kernel.work(self, x, *rest, **more)

    monkeypatch.setattr(Linearized, "kernel", operation(watched))
    some.grown(*tasks[5])
    assert seen == [len(tasks[5][0])]


def test_adapting_is_the_posterior_under_shared_numbers(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    some, (x, y), new = family(flat, tasks[:5]), tasks[6], drawn(3, 4, 2)
    wanted = gaussian(flat, x, y, learn_pooled(flat, tasks[:5]))
    for said, meant in zip(some.adapted(x, y).predict(new), wanted.predict(new), strict=True):
        assert torch.equal(said, meant)
    others = tasks[5:]
    best = some.log_evidence(tasks[:5])
    assert some.log_evidence(others) == pytest.approx(sum(some.adapted(*one).log_evidence for one in others))
    for factor in (0.7, 1.4):
        hyper = Hyper(noise=factor * some.hyper.noise, scale=some.hyper.scale, mean=some.hyper.mean)
        assert sum(gaussian(flat, *one, hyper).log_evidence for one in tasks[:5]) < best


def test_a_stream_never_looks_ahead(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    given: list[int] = []

    def coming() -> Iterator[Points]:
        for number, points in enumerate(tasks[2:5]):
            given.append(number)
            yield points

    before = family(flat, tasks[:2])
    for number, step in enumerate(before.stream(coming())):
        assert given == list(range(number + 1))
        wanted = learn_pooled(flat, tasks[: 2 + number])
        assert step.posterior.hyper.noise == pytest.approx(wanted.noise, rel=1e-9)
        assert step.posterior.hyper == step.before.hyper
        assert step.after.num_tasks == step.before.num_tasks + 1
    assert step.after.hyper.noise == pytest.approx(learn_pooled(flat, tasks[:5]).noise, rel=1e-9)


def test_what_is_kept_is_small_and_has_a_bound(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    some = family(flat, tasks[:1])
    assert some.num_bytes == 8 * (N * (1 + 1 + 2) + 3 * 3)
    heard: list[Event] = []
    small = finish(family.work(flat, tasks[:6], memory=3 * some.num_bytes), heard.append)
    assert small.num_bytes <= 3 * some.num_bytes
    assert sum(isinstance(event, Caution) and "oldest are removed" in event.text for event in heard) == 1
    assert small.num_tasks == 6
    kept = len(small.summaries)
    latest = learn_pooled(flat, tasks[6 - kept : 6])
    assert small.hyper.noise == pytest.approx(latest.noise, rel=1e-9)
    assert small.grown(*tasks[6]).num_bytes <= 3 * some.num_bytes


def test_merged_tasks_have_the_same_sums(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    how = Learning(mean="constant")
    spectra = [finish(summarize_task(flat, one, how, 0)).spectrum("constant") for one in tasks]
    fewer = merge_spectra(spectra)
    assert len(fewer) == 3
    for ratio in (0.0, 0.3, 1e4):
        one, other = (np.sum([task.terms(ratio) for task in some], 0) for some in (spectra, fewer))
        assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("known", [False, True])
def test_weights_of_a_blend_are_integrals(flat: Linearized, tasks: list[tuple[Tensor, Tensor]], known: bool) -> None:
    """Against the density of the targets, integrated over the size by quadrature."""
    noise = torch.full((N + 2,), 0.2).double()
    given = [(x, y, noise[: len(x)]) if known else (x, y) for x, y in tasks]
    some = family(flat, given, Learning(mean="zero"))
    variety = some.variety
    points = given[0]
    spectrum = finish(summarize_task(flat, points, Learning(mean="zero"), 0)).spectrum("zero")
    values, vectors = np.linalg.eigh(flat.kernel(points[0]).numpy())
    along = vectors.T @ points[1].numpy()

    def density(ratio: float, size: float) -> float:
        level = 0.2 if known else size / (1 + ratio)
        variances = ratio / variety.level * (1.0 if known else level) * values + level
        return math.exp(-0.5 * float((along**2 / variances + np.log(2 * math.pi * variances)).sum()))

    def law(log: float) -> float:
        """Of the logarithm of the size."""
        a, b = variety.shape, variety.rate
        return math.exp(a * math.log(b) - math.lgamma(a) - a * log - b * math.exp(-log))

    wanted = []
    for decades, share in zip(DECADES, variety.shares, strict=True):
        if known:
            wanted.append(share * density(10**decades, 1.0))
            continue
        value, _ = integrate.quad(
            lambda log, r=10**decades: density(r, math.exp(log)) * law(log),
            -12, 12, limit=200, epsabs=0.0, epsrel=1e-9, points=[math.log(variety.rate / variety.shape)],
        )  # fmt: skip
        wanted.append(share * value)
    assert variety.weights(spectrum) == pytest.approx((np.array(wanted) / sum(wanted)).tolist(), rel=1e-5, abs=1e-9)
    assert sum(variety.shares) == pytest.approx(1.0)


def test_one_part_predicts_as_the_conditional_t(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    """The law of one more target given the others, as a ratio of two multivariate t densities."""
    some = family(flat, tasks, Learning(mean="zero"))
    blend, (x, y) = some.blended(*tasks[0]), tasks[0]
    ratio = blend.posteriors[0].hyper.scale * some.variety.level / blend.posteriors[0].hyper.noise
    new = drawn(5, 1, 2)
    alone = Mixture(
        *(one[None] for one in blend.posteriors[0].predict(new, True)), torch.ones(1).double(), blend.freedom
    )
    gram = flat.kernel(torch.cat([x, new])).numpy() * ratio / some.variety.level + np.eye(N + 1)
    shape = some.variety.rate / some.variety.shape / (1 + ratio) * gram
    for value in (-2.0, 0.5, 3.0):
        both = stats.multivariate_t(shape=shape, df=2 * some.variety.shape).logpdf([*y.tolist(), value])
        first = stats.multivariate_t(shape=shape[:N, :N], df=2 * some.variety.shape).logpdf(y.numpy())
        assert float(alone.log_prob(torch.tensor([value]))) == pytest.approx(both - first, rel=1e-9)


def test_constants_are_integrated_out(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    """As under a prior of the constant that is very wide."""
    x, y = tasks[0]
    spectrum = finish(summarize_task(flat, (x, y), Learning(mean="constant"), 0)).spectrum("constant")
    gram = flat.kernel(x).numpy()

    def told(ratio: float) -> float:
        wide = stats.multivariate_normal(cov=ratio * gram + np.eye(N) + 1e8)
        return float(wide.logpdf(y.numpy() - y.numpy().mean()))

    def found(ratio: float) -> float:
        fit, determinant = spectrum.terms(ratio, restricted=True)
        return -0.5 * (fit + determinant)

    for ratio in (0.01, 10.0, 300.0):
        assert found(ratio) - found(1.0) == pytest.approx(told(ratio) - told(1.0), abs=1e-5)
    assert spectrum.num_free == N - 1


@pytest.mark.parametrize("freedom", [3.5, math.inf])
def test_a_mixture_is_what_it_says(freedom: float) -> None:
    centres, squares = (
        torch.tensor([-1.0, 2.0]).double()[:, None, None],
        torch.tensor([0.5, 2.0]).double()[:, None, None],
    )
    found = Mixture(centres, squares, torch.tensor([0.3, 0.7]).double(), freedom)

    def density(value: float) -> float:
        return math.exp(float(found.log_prob(torch.tensor([value]).double())))

    low, high = (float(one) for one in found.interval(0.8))
    assert integrate.quad(density, low, high)[0] == pytest.approx(0.8, abs=1e-6)
    assert integrate.quad(density, -np.inf, low)[0] == pytest.approx(0.1, abs=1e-6)
    assert integrate.quad(density, -np.inf, 0.4)[0] == pytest.approx(float(found.cdf(torch.tensor([0.4]))), abs=1e-6)
    mean = integrate.quad(lambda v: v * density(v), -np.inf, np.inf, limit=200)[0]
    assert float(found.mean) == pytest.approx(mean, abs=1e-5)
    if math.isinf(freedom):
        spread = integrate.quad(lambda v: (v - mean) ** 2 * density(v), -np.inf, np.inf)[0]
        assert float(found.variance) == pytest.approx(spread, rel=1e-5)


def test_sizes_that_differ_are_found_and_used(flat: Linearized) -> None:
    """Tasks a hundred times larger than others: the blend is more probable on new ones than one noise and scale."""
    sizes = [0.01, 0.1, 1.0, 10.0]
    made = [task(flat, seed, Hyper(noise=0.02 * size, scale=size), 15) for seed, size in enumerate(sizes * 5)]
    some = family(flat, made, Learning(mean="constant"))
    assert some.variety.shape < 1.5
    alike = family(flat, [task(flat, seed, Hyper(noise=0.02, scale=1.0), 15) for seed in range(20)])
    assert alike.variety.shape > 3
    shared, own = [], []
    for seed, size in enumerate(sizes):
        x, y = task(flat, 100 + seed, Hyper(noise=0.02 * size, scale=size), 30)
        shared.append(float(some.adapted(x[:15], y[:15]).log_prob(x[15:], y[15:]).mean()))
        own.append(float(some.blended(x[:15], y[:15]).log_prob(x[15:], y[15:]).mean()))
    assert sum(own) / 4 > sum(shared) / 4 + 0.3


def test_empirical_bayes_is_at_a_maximum(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    how = Learning(mean="zero")
    spectra = [finish(summarize_task(flat, one, how, 0)).spectrum("zero") for one in tasks]
    found = variety_of(spectra)
    total = np.array([[t.terms(10**d / found.level) for d in DECADES] for t in spectra])
    counts = np.array([t.num_numbers for t in spectra])[:, None]

    def reached(shape: float, rate: float) -> float:
        """By the density of Student's t in the eigenbasis."""
        ratios = 10.0 ** np.array(DECADES)
        fit, det = total[..., 0] * (1 + ratios), total[..., 1] - counts * np.log1p(ratios)
        lg = np.vectorize(math.lgamma)
        told = lg(shape + counts / 2) - math.lgamma(shape) - counts / 2 * np.log(2 * math.pi * rate) - det / 2
        told = told - (shape + counts / 2) * np.log1p(fit / 2 / rate)
        return float(np.logaddexp.reduce(told + np.log(found.shares), axis=1).sum())

    def doubted(shape: float, rate: float) -> float:
        """With one more task whose sizes are as under a = 1."""
        return reached(shape, rate) + shape * (math.log(shape) - 1 - np.euler_gamma) - math.lgamma(shape)

    assert reached(found.shape, found.rate) == pytest.approx(found.log_evidence, rel=1e-9)
    top = doubted(found.shape, found.rate)
    for one in (0.9, 1.1):
        assert doubted(found.shape * one, found.rate) < top + 1e-3
        assert doubted(found.shape, found.rate * one) < top + 1e-3


def test_parts_of_a_blend_share_their_kernels(
    flat: Linearized, tasks: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, (x, y), new = family(flat, tasks), tasks[0], drawn(9, 5, 2)
    assert some.variety.shape > 0
    counted: list[int] = []
    kernel = Linearized.kernel

    def watched(self: Linearized, *rest: object, **more: object) -> object:
        counted.append(1)
        return kernel.work(self, *rest, **more)

    monkeypatch.setattr(Linearized, "kernel", operation(watched))
    blend = some.blended(x, y)
    said = blend.at(new)
    assert len(blend.posteriors) > 1
    assert len(counted) <= 4  # of the points for the spectrum, for a part, with the new ones, and these themselves
    monkeypatch.undo()
    for place, part in enumerate(blend.posteriors):
        mean, variance = gaussian(flat, x, y, part.hyper).predict(new, observed=True)
        assert torch.allclose(said.centres[place], mean)
        assert torch.allclose(said.squares[place], variance)


def test_memory_of_kernels_has_a_bound(flat: Linearized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.transfer.hierarchy.cached_kernels.KEPT_BYTES", 8 * 25)
    shared = CachedKernels.of(flat)
    for seed in range(3):
        x = drawn(seed, 4, 2)
        for _ in range(2):
            assert torch.equal(shared.kernel(x), flat.kernel(x))
    assert len(shared.cache) == 1


def curve_source(law: Sinusoids, seed: int) -> nn.Module:
    """A network that has learned one curve."""
    with seeded(seed):
        net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    batch = law.draw(700 + seed, 0)[0].train.all()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (net(batch.x) - batch.y).square().mean().backward()
        optimizer.step()
    return net


@pytest.mark.soak
@pytest.mark.slow
def test_intervals_hold_what_they_promise_on_sinusoids() -> None:
    """Coverage of the 90 % interval with hyper-parameters learned from other curves, on 3 source networks."""
    law, shares, told = Sinusoids(), [], {"pooled": 0.0, "blended": 0.0}
    for seed in range(3):
        pool, judged = sinusoid_tasks(20, 800 + seed, law), sinusoid_tasks(25, 900 + seed, law)
        batches = [task.train.all() for task in pool]
        some = family(linearize(curve_source(law, seed)), [(one.x, one.y) for one in batches])
        for task in judged:
            train, test = task.train.all(), task.test.all()
            said = some.blended(train.x, train.y).at(test.x)
            shares.append(float(((said.cdf(test.y) - 0.5).abs() <= 0.45).double().mean()))
            told["blended"] += float(said.log_prob(test.y).mean()) / 75
            told["pooled"] += float(some.adapted(train.x, train.y).log_prob(test.x, test.y).mean()) / 75
    assert 0.80 < sum(shares) / len(shares) < 0.97
    assert told["blended"] > told["pooled"]


@pytest.mark.realdata
@pytest.mark.slow
def test_rain_of_a_station_by_what_the_others_teach(real_folder: Callable[[str], Path]) -> None:
    """Two months outside of the ten given, at three stations of one climate: most days are inside of the interval."""
    file = real_folder("ushcn_daily") / "state37_RI.txt.gz"
    batches = {task.name: (task.train.all(), task.test.all()) for task in station_tasks(str(file))}
    with seeded(0):
        flat = linearize(nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)))
    for name, (train, test) in batches.items():
        some = family(flat, [(one.x, one.y) for other, (one, _) in batches.items() if other != name])
        said = some.blended(train.x, train.y).at(test.x)
        assert 0.65 < float(((said.cdf(test.y) - 0.5).abs() <= 0.45).double().mean()) <= 1.0
        assert -float(said.log_prob(test.y).mean()) < 2.5


def test_tasks_that_do_not_vary_do_no_harm(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    constant = (tasks[0][0], torch.full((N,), 3.0))
    some = family(flat, [*tasks, constant])
    assert some.variety.rate > 1e-9
    for x, y in (tasks[1], constant):
        low, high = some.blended(x, y).interval(x)
        assert bool((low < high).all())
        assert bool(low.isfinite().all())
        assert bool(high.isfinite().all())
    alone = family(flat, [constant])
    assert math.isfinite(alone.variety.log_evidence)


def test_one_point_is_enough_to_ask(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    mean, variance = family(flat, tasks).blended(*(one[:1] for one in tasks[0])).predict(drawn(1, 3, 2), observed=True)
    assert bool(mean.isfinite().all())
    assert bool((variance > 0).all())
    mixed = [(tasks[0][0][:1], tasks[0][1][:1]), *tasks[1:]]
    assert family(flat, mixed, Learning(mean="constant")).variety.level > 0
    single = [(x[:1], y[:1]) for x, y in tasks]
    with pytest.raises(DataError, match="one point each"):
        family(flat, single, Learning(mean="constant")).blended(*tasks[0])


def test_two_tasks_that_are_alike_do_not_promise_that_all_are(
    flat: Linearized, tasks: list[tuple[Tensor, Tensor]]
) -> None:
    few, many = (family(flat, tasks[:1] * count, Learning(mean="zero")).variety.shape for count in (2, 40))
    assert few < 8 < many


def test_bad_input(flat: Linearized, tasks: list[tuple[Tensor, Tensor]]) -> None:
    with pytest.raises(DataError, match="no task"):
        family(flat, [])
    with pytest.raises(DataError, match="no task"):
        variety_of([])
    with pytest.raises(OptionError, match="memory is 1 byte or more"):
        family(flat, tasks, memory=0)
    with pytest.raises(OptionError, match="without layers"):
        family(flat, tasks[:2], Learning(layers=True)).blended(*tasks[0])
    with pytest.raises(MismatchError, match="for all or for none"):
        family(flat, tasks[:2]).grown(*tasks[2], torch.ones(len(tasks[2][0])))
    with pytest.raises(OptionError, match="level is a probability"):
        family(flat, tasks[:2]).blended(*tasks[0]).interval(tasks[0][0], 1.0)
