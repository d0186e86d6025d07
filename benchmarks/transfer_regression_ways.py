"""Baselines of closed-form transfer: predictions with uncertainty from a few points, and their scores."""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from torch import Tensor, nn

from nearkin.core.rng import seeded
from nearkin.nets.heads import features, head_name
from nearkin.transfer.hierarchy.blend import Mixture
from nearkin.transfer.hierarchy.variety import Variety, variety_of
from nearkin.transfer.spectrum import Spectrum, kernel_spectrum, maximize_evidence, merge_spectra

Points: TypeAlias = tuple[Tensor, Tensor]
Score: TypeAlias = list[float]  # root mean square error, mean negative log likelihood, share inside 90 % intervals

LEVEL = 0.9
WIDTH = 1.6448536269514722  # deviations to either side of a Gaussian's 90 % interval
LENGTHS = tuple(float(value) for value in np.geomspace(0.03, 10, 30))
NODE = 0.01  # parts of a mixture lighter than this share of the heaviest are left out, as in the library


def of_normal(mean: Tensor, variance: Tensor, y: Tensor) -> Score:
    mean, variance, y = mean.flatten().double(), variance.flatten().double(), y.flatten().double()
    off = y - mean
    loss = 0.5 * (off.square() / variance + (2 * math.pi * variance).log())
    inside = off.abs() <= WIDTH * variance.sqrt()
    return [float(off.square().mean().sqrt()), float(loss.mean()), float(inside.double().mean())]


def of_mixture(mixture: Mixture, y: Tensor) -> Score:
    column = y.reshape(-1, 1).double()
    inside = (mixture.cdf(column) - 0.5).abs() <= LEVEL / 2
    off = column - mixture.mean
    return [
        float(off.square().mean().sqrt()),
        -float(mixture.log_prob(column).mean()),
        float(inside.double().mean()),
    ]


def sgd_trained(net: nn.Module, x: Tensor, y: Tensor, *, epochs: int, batch: int, rate: float, seed: int) -> nn.Module:
    """Train with the squared error and momentum 0.9, as in the paper."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for some in torch.randperm(len(x), generator=rng).split(batch):
            optimizer.zero_grad()
            (net(x[some]) - y[some]).square().mean().backward()
            optimizer.step()
    return net


def tanh_net(sizes: Sequence[int], seed: int) -> nn.Module:
    with seeded(seed):
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def last_layer(net: nn.Module, train: Points, test: Points, *, epochs: int, batch: int, rate: float) -> Score:
    """The last layer by gradient descent from the source's weights; the variance is that of the residuals."""
    like = next(net.parameters())
    x, new = train[0].to(like), test[0].to(like)
    name = head_name(net, x[:1])
    phi, fresh = features(net, x, name), features(net, new, name)
    head = dict(net.named_modules())[name]
    weights = np.append(head.weight[0].detach().double().numpy(), float(head.bias[0].detach()))
    a, b = (np.hstack([block.detach().double().numpy(), np.ones((len(block), 1))]) for block in (phi, fresh))
    goal, speed, rng = train[1].double().numpy(), np.zeros_like(weights), np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(goal))
        for start in range(0, len(goal), batch):
            some = order[start : start + batch]
            speed = 0.9 * speed + 2 * a[some].T @ (a[some] @ weights - goal[some]) / len(some)
            weights = weights - rate * speed
    variance = max(float(np.mean((a @ weights - goal) ** 2)), 1e-6)
    mean = torch.from_numpy(b @ weights)
    return of_normal(mean, torch.full_like(mean, variance), test[1])


def ridge(train: Points, test: Points) -> Score:
    """Ridge regression on the inputs; penalty and variance come from leave-one-out errors."""
    x, y, new = train[0].numpy(), train[1].numpy(), test[0].numpy()
    model = RidgeCV(np.geomspace(1e-3, 1e3, 13), store_cv_results=True).fit(x, y)
    variance = max(float(np.min(model.cv_results_.mean(axis=0))), 1e-6)
    mean = torch.from_numpy(model.predict(new))
    return of_normal(mean, torch.full_like(mean, variance), test[1])


def rbf_own(train: Points, test: Points, noise: np.ndarray | None = None, seed: int = 0) -> Score:
    """A Gaussian process with an RBF kernel, its three numbers by the evidence of the task itself (scikit-learn)."""
    x, y = train[0].numpy(), train[1].numpy()
    shift, size = y.mean(), y.std() or 1.0
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(1.0, (0.02, 20.0)) + WhiteKernel(0.1, (1e-4, 1e1))
    alpha = 1e-9 if noise is None else noise / size**2
    model = GaussianProcessRegressor(kernel, alpha=alpha, n_restarts_optimizer=3, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, (y - shift) / size)
    mean, deviation = model.predict(test[0].numpy(), return_std=True)
    return of_normal(torch.from_numpy(mean * size + shift), torch.from_numpy((deviation * size) ** 2), test[1])


class SharedRbf:
    """The RBF kernel and noise under which some tasks together are most probable, each with a constant of its own."""

    def __init__(self, tasks: Sequence[Points]) -> None:
        fits = [
            (length, maximize_evidence(merge_spectra([_spectrum(points, length) for points in tasks])))
            for length in LENGTHS
        ]
        self.length, self.numbers = max(fits, key=lambda block: block[1].log_evidence)

    def score(self, train: Points, test: Points) -> Score:
        """Predictions of a Gaussian process."""
        return of_normal(*_dense(train, test[0], self.length, self.numbers.scale, self.numbers.noise), test[1])


class BlendedRbf:
    """An RBF kernel with a size and a share of noise for every task, as `Family.blended` has them for a network."""

    def __init__(self, tasks: Sequence[Points]) -> None:
        fits = [(length, variety_of([_spectrum(points, length) for points in tasks])) for length in LENGTHS]
        self.length, self.variety = max(fits, key=lambda block: block[1].log_evidence)

    def score(self, train: Points, test: Points) -> Score:
        """Predictions as a mixture of Student's t."""
        spectrum, shared = _spectrum(train, self.length), self.variety
        weights = shared.weights(spectrum)
        kept = [index for index, weight in enumerate(weights) if weight > NODE * max(weights)]
        mean = [_part(shared, spectrum, index, train, test[0], self.length) for index in kept]
        heavy = torch.tensor([weights[index] for index in kept]).double()
        centres, squares = (torch.stack(some)[:, :, None] for some in zip(*mean, strict=True))
        return of_mixture(Mixture(centres, squares, heavy / heavy.sum(), shared.freedom(spectrum)), test[1])


def _part(
    shared: Variety, spectrum: Spectrum, index: int, train: Points, new: Tensor, length: float
) -> tuple[Tensor, Tensor]:
    hyper = shared.hyper(spectrum, index, "constant")
    return _dense(train, new, length, hyper.scale, hyper.noise)


def _gram(a: Tensor, b: Tensor, length: float) -> Tensor:
    return (-0.5 * (torch.cdist(a, b) / length).square()).exp()


def _spectrum(points: Points, length: float) -> Spectrum:
    x, y = points
    return kernel_spectrum(_gram(x, x, length), torch.ones(len(x), 1).double(), (y - y.mean())[None, :, None])


def _dense(train: Points, new: Tensor, length: float, scale: float, noise: float) -> tuple[Tensor, Tensor]:
    """Means and variances of observations, with a constant by generalised least squares."""
    x, y = train
    factor = torch.linalg.cholesky(scale * _gram(x, x, length) + (noise + 1e-9 * scale) * torch.eye(len(x)).double())
    ones = torch.ones(len(x), 1).double()
    h, r, k = (
        torch.linalg.solve_triangular(factor, block, upper=False)
        for block in (ones, y[:, None] - y.mean(), scale * _gram(x, new, length))
    )
    constant = (h.t() @ r) / (h.t() @ h)
    short = 1 - k.t() @ h
    mean = k.t() @ (r - h @ constant) + constant + y.mean()
    variance = scale - k.square().sum(0) + (short.square() / (h.t() @ h)).flatten() + noise
    return mean.flatten(), variance.clamp_min(1e-9)
