r"""Products with the Fisher information and the Jacobian of a network, without forming either.

$$F v = \frac1N \sum_n J_n^\top Λ_n J_n v$$

Notation: N samples, C numbers in one output, P weights θ, J the Jacobian of all outputs with respect to all weights
`[N·C, P]`, Λ the information of an output `[C, C]` (`Likelihood.information`), F the Fisher information `[P, P]`. F is
also the generalised Gauss-Newton matrix, except for the heteroscedastic likelihood. A vector of weights is a dict by
the names of `model.named_parameters()`, or flat `[P]` in their order (`flat`, `unflat`).

| method | Jv | time, in plain forward and backward passes | memory, ÷ that of a plain pass |
| --- | --- | --- | --- |
| jvp | recorded forward-mode tangent, replayed | 0.9 to 1.4 | 2.7 to 4.5 |
| vjp | double backward through kept graphs | 1.2 (MLP) to 2.3 | |
| difference | none: finite difference of a gradient | 1.0 to 1.1, two-sided 2.0 to 2.2 | 1.0 to 1.1, MLP 3.4 |

The finite difference is not faster than the exact products. It keeps no graph, and it needs no second derivatives. In
float32 its error is 1e-3 to 1.4e-2, in float64 below 1e-7. (Four networks, one thread: `benchmarks/fisher.json`.)
"""

import math
from typing import Unpack, overload

from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.core.types import Params
from nearkin.fisher.jacobian import Inputs, Jacobian, JacobianOptions, Network
from nearkin.fisher.vectors import columnwise, flat, unflat, vmapped_columns
from nearkin.tasks.likelihood import likelihood as likelihood_named

SMALL = 50_000  # weights up to which several products at once are faster (three times at 2,000 weights)


class FisherProduct:
    r"""The Fisher information F `[P, P]` of a network on data, as a function from v to Fv.

    It accepts and returns a dict by name, a flat vector `[P]`, or a matrix `[P, K]`, whose columns are vectors.

    Args:
        network: a module in evaluation mode, or `f(params, x)`.
        x: inputs; see `Jacobian`.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        options: `params`, `method` (`auto`, `jvp`, `vjp` or `difference`), `sides`, `step`, `keep`; see `Jacobian`.

    >>> import torch
    >>> net, x = torch.nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> fisher = FisherProduct(net, x, "gaussian")
    >>> fisher(torch.eye(2)), x.T @ x / 2
    (tensor([[5., 1.],
            [1., 2.]]), tensor([[5., 1.],
            [1., 2.]]))
    """

    def __init__(
        self, network: Network, x: Inputs, likelihood: str = "categorical", **options: Unpack[JacobianOptions]
    ) -> None:
        self.likelihood = likelihood_named(likelihood)
        self.jacobian = Jacobian(network, x, **options)

    @overload
    def __call__(self, v: Params) -> Params: ...
    @overload
    def __call__(self, v: Tensor) -> Tensor: ...
    def __call__(self, v: Params | Tensor) -> Params | Tensor:
        """Fv in the form of v."""
        if isinstance(v, Tensor):
            return self._columns(v)
        return self.jacobian.weighted_product(v, self._checked)

    def _columns(self, matrix: Tensor) -> Tensor:
        """F times `[P]` or `[P, K]`; for a small network several columns at once, because calls dominate the cost."""
        params, small = self.jacobian.params, len(matrix) <= SMALL
        if small and self.jacobian.batchable and matrix.dim() == 2 and matrix.shape[1] > 1:
            products = vmapped_columns(
                lambda v: flat(self.jacobian.weighted_product(unflat(v, params), self._information)), matrix
            )
            if products is not None and _finite(products):
                return products
        return columnwise(lambda v: flat(self(unflat(v, params))), matrix)

    def _information(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        """Λ Jv / N."""
        return self.likelihood.information(outputs, tangent) / self.jacobian.num_samples

    def _checked(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        """The same; an error if it is not finite."""
        u = self._information(outputs, tangent)
        if not _finite(u):
            finite = bool(outputs.isfinite().all())
            values = "changes of the network's outputs along v" if finite else "the network's outputs"
            raise DataError(f"{values} are not all finite; check inputs, weights and v for NaN and infinity")
        return u


def _finite(value: Tensor) -> bool:
    """Whether the sum is finite: faster than a check of every value, and done for every product."""
    return math.isfinite(float(value.sum()))


def fisher_vector_product(
    network: Network, x: Inputs, v: Params, likelihood: str = "categorical", params: Params | None = None
) -> Params:
    """Fv once, by one forward pass with its tangent and one backward pass; arguments as in `FisherProduct`.

    >>> import torch
    >>> net, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[2.0]])
    >>> fisher_vector_product(net, x, {"weight": torch.tensor([[3.0]])}, "gaussian")
    {'weight': tensor([[12.]])}
    """
    return FisherProduct(network, x, likelihood, params=params, keep=False)(v)


def jacobian_product(network: Network, x: Inputs, v: Params, params: Params | None = None) -> Tensor:
    """Jv `[N, *out]` once: the change of the outputs along v; arguments as in `Jacobian`.

    >>> import torch
    >>> jacobian_product(lambda p, x: x * p["w"], torch.tensor([2.0]), {"w": torch.ones(1)}, {"w": torch.zeros(1)})
    tensor([2.])
    """
    return Jacobian(network, x, params=params, keep=False).push(v)


def transposed_product(network: Network, x: Inputs, u: Tensor, params: Params | None = None) -> Params:
    r"""$J^\top u$ by name once, for u `[N, *out]`; arguments as in `Jacobian`.

    >>> import torch
    >>> transposed_product(lambda p, x: x * p["w"], torch.tensor([2.0]), torch.ones(1), {"w": torch.zeros(1)})
    {'w': tensor([2.])}
    """
    return Jacobian(network, x, params=params, keep=False).pull(u)
