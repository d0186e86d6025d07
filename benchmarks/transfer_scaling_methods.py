"""Log probabilities of N targets under one linearized network, by nearkin and others; each runs in its own process.

All methods use the same residuals $y - f(θ)$ under $s J J^⊤ + σ^2 I$ with the same s and σ². laplace-torch is the
exception: its marginal likelihood is that at a mode, and these weights are not a mode, so only its determinant is
compared.
"""

import itertools
import math
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.iterative import kernel_products
from nearkin.transfer.linearized import linearize

WIDTHS = (5, 200, 2000, 200, 1)
NOISE, SCALE = 0.04, 1.0
HYPER = Hyper(noise=NOISE, scale=SCALE, mean="network")
NUM_WEIGHTS = sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))
JACOBIANS = 32  # samples whose gradients are written out at once by peers
OURS = {"function, dense": "function", "function, matrix-free": "large", "weight, matrix-free": "large-weight"}


def case(count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The network, inputs `[N, 5]` and targets `[N]`; fewer points are the first of more."""
    torch.manual_seed(0)
    layers = [layer for a, b in itertools.pairwise(WIDTHS) for layer in (nn.Linear(a, b), nn.Tanh())]
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(100_000, 5, generator=rng, dtype=torch.float64)
    y = torch.sin(2 * x[:, 0]) * x[:, 1] + 0.5 * x[:, 2]
    y = y + math.sqrt(NOISE) * torch.randn(len(x), generator=rng, dtype=torch.float64)
    return nn.Sequential(*layers[:-1]).double().eval(), x[:count].clone(), y[:count].clone()


def residuals(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Residuals of the targets after the network's outputs, `[N]`."""
    with torch.no_grad():
        return y - model(x)[:, 0]


def timed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of some work, with its process time and wall time."""
    start, wall = time.process_time(), time.perf_counter()
    result = work()
    return {**result, "cpu": round(time.process_time() - start, 2), "wall": round(time.perf_counter() - wall, 2)}


def ours(name: str, count: int) -> dict[str, Any]:
    """The evidence of one of our spaces; those without a matrix hold no kernel either, however small."""
    model, x, y = case(count)
    if "matrix-free" in name:
        kernel_products.HELD_BYTES = 0

    def work() -> dict[str, Any]:
        result = gaussian(linearize(model, outputs=0), x, y, HYPER, space=OURS.get(name, "auto"))  # type: ignore[arg-type]
        return {"evidence": result.log_evidence, "space": result.space, "steps": getattr(result.solver, "steps", None)}

    return timed(work)


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """Gradients of the output with respect to all weights `[N, P]`, in the dtype of the weights."""
    params = dict(model.named_parameters())

    def output(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (sample[None],))[0, 0]

    rows = x.new_empty(len(x), NUM_WEIGHTS)
    for start in range(0, len(x), JACOBIANS):
        each = torch.vmap(torch.func.grad(output), (None, 0))(params, x[start : start + JACOBIANS])
        rows[start : start + JACOBIANS] = torch.cat([value.detach().flatten(1) for value in each.values()], 1)
    return rows


def gpytorch_features(name: str, count: int) -> dict[str, Any]:
    """GPyTorch with its linear kernel on the Jacobian, in float32, which is its default."""
    import gpytorch

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.LinearKernel()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, x, y = case(count)
    left = residuals(model, x, y).float()

    def work() -> dict[str, Any]:
        features = jacobian(model.float(), x.float())
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        process = Process(features, left, likelihood)
        likelihood.noise, process.covar_module.variance = NOISE, SCALE
        process.train(), likelihood.train()
        with torch.no_grad():
            value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)(process(features), left)
        return {"evidence": float(value) * count}

    return timed(work)


def sklearn_kernel(name: str, count: int) -> dict[str, Any]:
    """scikit-learn's Gaussian process on a kernel that it is given; the kernel is ours, its time counts."""
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Kernel

    class Given(Kernel):  # type: ignore[misc]
        def __init__(self, gram: Any = None) -> None:
            self.gram = gram

        def __call__(self, x: Any, y: Any = None, eval_gradient: bool = False) -> Any:
            return self.gram.copy()  # it writes the noise into what it gets

        def diag(self, x: Any) -> Any:
            return np.diag(self.gram)

        def is_stationary(self) -> bool:
            return False

    model, x, y = case(count)
    left = residuals(model, x, y).numpy()

    def work() -> dict[str, Any]:
        kernel = Given(SCALE * linearize(model, outputs=0).kernel(x).numpy())
        process = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None, copy_X_train=False)
        process.fit(np.arange(count)[:, None], left)
        return {"evidence": float(process.log_marginal_likelihood_value_)}

    return timed(work)


def laplace(name: str, count: int) -> dict[str, Any]:
    """A Laplace approximation around the network's weights, by the library's documented calls."""
    from laplace import FunctionalLaplace, KronLaplace, Laplace
    from torch.utils.data import DataLoader, TensorDataset

    warnings.filterwarnings("ignore")
    model, x, y = case(count)
    data = TensorDataset(x, y[:, None])
    options = {"sigma_noise": math.sqrt(NOISE), "prior_precision": 1 / SCALE}

    def work() -> dict[str, Any]:
        if "functional" in name:
            approximation = FunctionalLaplace(model, "regression", n_subset=count, independent_outputs=False, **options)
            approximation.fit(DataLoader(data, batch_size=JACOBIANS))
        elif "last layer" in name:
            approximation = Laplace(
                model, "regression", subset_of_weights="last_layer", hessian_structure="full", **options
            )
            approximation.fit(DataLoader(data, batch_size=256))
        else:
            approximation = KronLaplace(model, "regression", **options)
            approximation.fit(DataLoader(data, batch_size=256))
        value = float(approximation.log_det_ratio)
        if "functional" in name:  # there it is that of K + σ² I
            value -= count * math.log(NOISE)
        return {"log_determinant": value}

    return timed(work)


def dense_determinant(count: int) -> dict[str, Any]:
    """The log-determinant of I + s J Jᵀ / σ² of the first N points, that laplace-torch is compared with."""
    model, x, _ = case(count)
    gram = SCALE * linearize(model, outputs=0).kernel(x)
    return {"log_determinant": float(torch.logdet(torch.eye(count).to(gram) + gram / NOISE))}


METHODS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "auto": ours,
    **dict.fromkeys(OURS, ours),
    "GPyTorch, Jacobian as features": gpytorch_features,
    "scikit-learn, kernel given": sklearn_kernel,
    "laplace-torch, functional": laplace,
    "laplace-torch, Kronecker": laplace,
    "laplace-torch, last layer": laplace,
}


def needed(name: str, count: int) -> int:
    """Smallest number of bytes that a method needs."""
    if name == "function, dense":
        return 3 * 8 * count**2
    if name == "scikit-learn, kernel given":
        return 4 * 8 * count**2
    if name == "GPyTorch, Jacobian as features":
        return 2 * 4 * NUM_WEIGHTS * count  # it copies them
    if name == "laplace-torch, full":
        return 4 * NUM_WEIGHTS**2
    return 0


def measured(name: str, count: int, limit: float) -> dict[str, Any]:
    """One method at one size; the process is ended where it takes more process time than the limit."""
    spent = math.ceil(time.process_time() + limit)
    resource.setrlimit(resource.RLIMIT_CPU, (spent, spent + 5))
    return METHODS[name](name, count)
