r"""Potentials U(w) with their derivatives: analytic wells, and the loss of a network with weight decay.

The weights follow $\dot w = -\nabla U(w) + \sqrt{2D}\,n(t)$. A point is a vector `[P]`; a set of points is `[K, P]`.

Notation: P coordinates or weights, K points.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.jacobian import at_weights, function_of_weights
from nearkin.fisher.spectra import Estimate, trace
from nearkin.fisher.vectors import columnwise, flat, require_fit, unflat
from nearkin.nets.functional import with_batch_statistics
from nearkin.tasks.likelihood import likelihood as likelihood_named

DENSE_LIMIT = 2000  # coordinates of a Hessian that is formed
EXACT_LAPLACIAN = 16  # coordinates up to which the Laplacian is computed exactly


class Potential(Protocol):
    """A potential and its derivatives at one point `[P]` or at each of several points `[K, P]`.

    The results are differentiable if the points require gradients.
    """

    def value(self, w: Tensor) -> Tensor:
        """U, `[]` or `[K]`."""

    def gradient(self, w: Tensor) -> Tensor:
        """∇U, in the shape of w."""

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        """∇²U v, for v in the shape of w."""


class AutodiffPotential:
    """A potential that is a differentiable function.

    Args:
        function: maps `[K, P]` to `[K]` and `[P]` to `[]`.

    >>> bowl = AutodiffPotential(lambda w: w.square().sum(-1) / 2)
    >>> w = torch.tensor([3.0, 4.0])
    >>> bowl.value(w), bowl.gradient(w), bowl.hessian_product(w, torch.ones(2))
    (tensor(12.5000), tensor([3., 4.]), tensor([1., 1.]))
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def value(self, w: Tensor) -> Tensor:
        """U, `[]` or `[K]`."""
        return self.function(w)

    def gradient(self, w: Tensor) -> Tensor:
        """∇U, in the shape of w."""
        keep = w.requires_grad
        with torch.enable_grad():
            point = w if keep else w.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.value(point).sum(), point, create_graph=keep)
        return slope

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        """∇²U v, for v in the shape of w."""
        keep = w.requires_grad
        with torch.enable_grad():
            point = w if keep else w.detach().requires_grad_()
            along = (self.gradient(point) * v).sum()
            if not along.requires_grad:  # the gradient is constant
                return torch.zeros_like(w)
            (product,) = torch.autograd.grad(along, point, create_graph=keep, materialize_grads=True)
        return product


class PointwisePotential(AutodiffPotential):
    """A potential of which one point is computed after the other, so that the graph of one point is in memory.

    Args:
        function: maps `[P]` to `[]`.
    """

    def value(self, w: Tensor) -> Tensor:
        """U, `[]` or `[K]`."""
        return self.function(w) if w.dim() == 1 else torch.stack([self.function(point) for point in w])

    def gradient(self, w: Tensor) -> Tensor:
        """∇U, in the shape of w."""
        return super().gradient(w) if w.dim() == 1 else torch.stack([self.gradient(point) for point in w])

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        """∇²U v, for v in the shape of w."""
        if w.dim() == 1:
            return super().hessian_product(w, v)
        return torch.stack([self.hessian_product(point, vector) for point, vector in zip(w, v, strict=True)])


class NetworkPotential(PointwisePotential):
    r"""Mean loss of a network with weight decay, $U(w) = L(w) + \frac{\gamma}{2}\|w - w_0\|^2$, as a potential.

    A point is the flat vector of all weights that require gradients. Buffers keep the values that the network has.

    Args:
        model: the network, in evaluation mode.
        x: inputs `[N, *input_shape]`.
        y: targets.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        decay: γ.
        centre: w₀ by name (default: 0).
        batch_statistics: whether batch normalisation uses the statistics of x at every point, instead of the running
            statistics of the network, which belong to its own weights only.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> potential = NetworkPotential(net, torch.ones(2, 1), torch.ones(2, 1), "gaussian", decay=0.5)
    >>> potential.gradient(torch.tensor([3.0]))
    tensor([3.5000])
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        likelihood: str = "categorical",
        decay: float = 0.0,
        centre: Params | None = None,
        batch_statistics: bool = False,
    ) -> None:
        require(len(x) > 0, "there is no sample to measure on; the data is empty", DataError)
        require(len(x) == len(y), f"{len(x)} inputs but {len(y)} targets; give one target per input", DataError)
        require(decay >= 0, f"decay must be >= 0, got {decay}")
        forward, weights = at_weights(model)
        if batch_statistics:
            forward = function_of_weights(with_batch_statistics(model))
        form = likelihood_named(likelihood)
        self.weights = weights
        origin = torch.zeros_like(flat(weights)) if centre is None else self.point(centre)

        def potential(w: Tensor) -> Tensor:
            loss = form.nll(forward(unflat(w, weights), x), y).mean()
            return loss + decay / 2 * (w - origin).square().sum()

        super().__init__(potential)

    def point(self, params: Params | None = None) -> Tensor:
        """Weights by name as a point `[P]` (default: those of the network)."""
        if params is None:
            return flat(self.weights)
        values = {name: value.detach() for name, value in params.items() if name in self.weights}
        require_fit(values, self.weights, "params")
        return flat({name: values[name] for name in self.weights})

    def params(self, w: Tensor) -> Params:
        """A point `[P]` as weights by name."""
        return unflat(w, self.weights)


def hessian(potential: Potential, w: Tensor) -> Tensor:
    """∇²U at w, `[P, P]`, from P products.

    >>> hessian(AutodiffPotential(lambda w: w.prod(-1)), torch.ones(2))
    tensor([[0., 1.],
            [1., 0.]])
    """
    require_point(w)
    require(
        len(w) <= DENSE_LIMIT,
        f"the Hessian of {len(w):,} weights is not formed, the limit is {DENSE_LIMIT:,}; use a smaller network",
    )
    matrix = columnwise(lambda v: potential.hessian_product(w, v), torch.eye(len(w)).to(w))
    return (matrix + matrix.T) / 2


def laplacian(potential: Potential, w: Tensor, rng: Generator | None = None, probes: int = 16) -> Estimate:
    """∇²U at w, the trace of the Hessian: exact up to 16 coordinates or without `rng`, otherwise by Hutchinson.

    >>> laplacian(AutodiffPotential(lambda w: w.pow(4).sum(-1)), torch.ones(3))
    Estimate(value=36.0, error=0.0)
    """
    require_point(w)
    if rng is None or len(w) <= EXACT_LAPLACIAN:
        return Estimate(float(hessian(potential, w).trace()), 0.0)
    product = lambda block: columnwise(lambda v: potential.hessian_product(w, v), block)  # noqa: E731
    return trace(product, len(w), rng, probes, dtype=w.dtype)


def require_point(w: Tensor) -> None:
    """Raise an error unless w is a finite vector `[P]`."""
    require(w.dim() == 1 and len(w) > 0, f"a point is a vector [P], got shape {tuple(w.shape)}", MismatchError)
    require(bool(w.isfinite().all()), "the point has values that are NaN or infinite; check the weights", DataError)
