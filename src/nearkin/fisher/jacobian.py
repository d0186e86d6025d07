r"""The Jacobian of a network on data as products Jv and $J^\top u$, without forming it.

Notation: N samples in batches of B, out the shape of one output with C numbers, P weights θ, J the Jacobian of all
outputs with respect to all weights `[N·C, P]`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, reduce
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.difference import Difference
from nearkin.fisher.gradient_plan import require_evaluation_mode, wanted_names
from nearkin.fisher.linearization import BatchJacobian, RecomputedLinearization, Weighting, linearized
from nearkin.fisher.passes import Function, gradients_enabled, plain_pass
from nearkin.fisher.vectors import require_fit
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.examples import Examples

Network: TypeAlias = nn.Module | Callable[[Params, Tensor], Tensor]
Inputs: TypeAlias = Tensor | Examples | Iterable[Tensor | tuple[Tensor, Tensor]]

METHODS = ("auto", "jvp", "vjp", "difference")
BATCH = 128


class JacobianOptions(TypedDict, total=False):
    """Keyword options of `Jacobian` and of everything that is computed with it."""

    params: Params | None
    method: str
    sides: int
    step: float | None
    keep: bool | None


def at_weights(network: Network, params: Params | None = None) -> tuple[Callable[[Params, Tensor], Tensor], Params]:
    """A network as `f(params, x)`, and the weights by which it is differentiated.

    Args:
        network: a module in evaluation mode, or `f(params, x)` itself.
        params: θ by name, some or all of a module's weights (default: those that require gradients).
    """
    if isinstance(network, nn.Module):
        require_evaluation_mode(network)
        own = dict(network.named_parameters())
        selected = {name: own[name] for name in wanted_names(network, params)}
        f = function_of_weights(network)
    else:
        f, selected = network, {}
        require(bool(params), "a function has no weights of its own; give params, its weights by name")
    theta = {name: value.detach().clone() for name, value in (params or selected).items()}
    if selected:
        require_fit(theta, selected, "params")
    for name, value in theta.items():
        supported = value.dtype in (torch.float32, torch.float64)
        require(supported, f"products need float32 or float64, {name} is {value.dtype}; use model.float()")
    return f, theta


def function_of_weights(model: nn.Module) -> Callable[[Params, Tensor], Tensor]:
    """A network as `f(params, x)`, without fused attention, which does not have all derivatives."""

    def f(params: Params, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            outputs: Tensor = functional_call(model, params, (x,))
        return outputs

    return f


def input_batches(x: Inputs) -> Iterator[Tensor]:
    """Batches of inputs `[B, *input_shape]` without labels; a tensor is one batch."""
    if isinstance(x, Tensor):
        yield x
    else:
        for batch in ordered_batches(x, BATCH) if isinstance(x, Examples) else x:
            yield batch if isinstance(batch, Tensor) else batch[0]


class Jacobian:
    r"""The Jacobian J `[N·C, P]` of a network on data, as an operator.

    Args:
        network: a module in evaluation mode, or `f(params, x)`.
        x: inputs `[N, *input_shape]`, examples of a task, or any iterable of batches, with or without labels, that
            gives the same batches each time.
        params: θ by name (default: the parameters of a module that require gradients).
        method: `jvp`, `vjp`, `difference`, or `auto`: jvp if the network has a forward-mode derivative, otherwise vjp.
        sides: 1 or 2, for the finite difference.
        step: length of the finite difference's step relative to ‖θ‖ (default: 3e-5 in float32; in float64 1e-8 for one
            side and 1e-7 for two).
        keep: whether graphs are kept in memory between products (default: True for a tensor, False for batches).

    >>> jacobian = Jacobian(nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> jacobian.push({"weight": torch.tensor([[1.0, 0.0]]), "bias": torch.zeros(1)})
    tensor([[1.],
            [3.]])
    >>> jacobian.pull(torch.tensor([[1.0], [1.0]]))["weight"]
    tensor([[4., 6.]])
    """

    @gradients_enabled()
    def __init__(
        self,
        network: Network,
        x: Inputs,
        *,
        params: Params | None = None,
        method: str = "auto",
        sides: int = 1,
        step: float | None = None,
        keep: bool | None = None,
    ) -> None:
        require(method in METHODS, f"method is one of {', '.join(METHODS)}, got {method!r}")
        require(sides in (1, 2), f"a finite difference has 1 or 2 sides, got {sides}")
        require(
            step is None or (math.isfinite(step) and step > 0), f"a finite difference has a step above 0, got {step}"
        )
        require(step is None or method == "difference", f"step needs method='difference', got method={method!r}")
        self.f, self.params = at_weights(network, params)
        self.method, self.sides, self.step = method, sides, step
        self.inputs = tuple(x) if isinstance(x, Iterator) else x
        self.sizes = [len(batch) for batch in input_batches(self.inputs)]
        require(sum(self.sizes) > 0, "there is no sample to measure on; the data is empty", DataError)
        self._kept: list[BatchJacobian] | None = None
        if keep or (keep is None and isinstance(x, Tensor)):
            self._kept = [self._jacobian(batch, keep=True) for batch in input_batches(self.inputs)]

    @property
    def num_samples(self) -> int:
        """N, the number of samples."""
        return sum(self.sizes)

    @property
    def batchable(self) -> bool:
        """Whether products take several vectors at once under `torch.vmap`."""
        return self._kept is not None and self.method != "difference"

    @cached_property
    def shape(self) -> torch.Size:
        """`[N, *out]`, the shape of all outputs."""
        with torch.no_grad():
            first = plain_pass(self._at(next(input_batches(self.inputs))), self.params)
        return torch.Size([self.num_samples, *first.shape[1:]])

    @gradients_enabled()
    def push(self, v: Params) -> Tensor:
        """Jv `[N, *out]`."""
        require_fit(v, self.params)
        return torch.cat([batch.push(v) for batch in self._jacobians()])

    @gradients_enabled()
    def pull(self, u: Tensor) -> Params:
        r"""$J^\top u$ by name, for u `[N, *out]`."""
        require(
            u.dim() > 0 and len(u) == self.num_samples,
            f"u has shape {tuple(u.shape)} for {self.num_samples} samples; give u the shape of the outputs",
            MismatchError,
        )
        pairs = zip(self._jacobians(), u.split(self.sizes), strict=True)
        return _sum_by_name(batch.pull(cotangent) for batch, cotangent in pairs)

    @gradients_enabled()
    def weighted_product(self, v: Params, weigh: Weighting) -> Params:
        r"""$J^\top u$ by name, where `weigh` computes u `[B, *out]` from the outputs and Jv of each batch."""
        require_fit(v, self.params)
        return _sum_by_name(batch.weighted_product(v, weigh) for batch in self._jacobians())

    def _jacobians(self) -> Iterable[BatchJacobian]:
        if self._kept is not None:
            return self._kept
        return (self._jacobian(batch, keep=False) for batch in input_batches(self.inputs))

    def _jacobian(self, x: Tensor, keep: bool) -> BatchJacobian:
        f = self._at(x)
        if self.method == "difference":
            return Difference(f, self.params, self.sides, keep, self.step)
        return linearized(f, self.params, self.method) if keep else RecomputedLinearization(f, self.params, self.method)

    def _at(self, x: Tensor) -> Function:
        return lambda params: self.f(params, x)


def _sum_by_name(vectors: Iterable[Params]) -> Params:
    return reduce(lambda total, vector: {name: total[name] + vector[name] for name in total}, vectors)
