r"""A network linearised at its weights: $f(θ + v) ≈ f(θ) + J v$, with $v ↦ Jv$ and $u ↦ J^\top u$ as functions.

Notation: N samples of one batch, out the shape of one output, θ the weights by name, J the Jacobian
$\partial f / \partial θ$, `[N, *out]` by P.

$J^\top u$ is a backward pass through the kept graph. $Jv$ is computed by one of two methods:

* *recorded*: forward-mode differentiation runs once, and the operations on tangents are recorded with the activations
  they read. Later products replay them; the network itself is not run again.
* *double backward*: $J^\top u$ is linear in u, and the transpose of that map is J (Pearlmutter 1994).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, NearkinError, require
from nearkin.core.types import Params
from nearkin.fisher.passes import Function, backward_pass, dual_pass, gradients, leaves, line_of, plain_pass
from nearkin.fisher.recording import Recording

Push: TypeAlias = Callable[[Params], Tensor]
"""v by name to Jv `[N, *out]`."""

Weighting: TypeAlias = Callable[[Tensor, Tensor], Tensor]
r"""From outputs and Jv, both `[N, *out]`, to the vector u of $J^\top u$."""

TOLERANCE = 1e-3  # of a tested tangent: a correct one is exact up to rounding, a wrong one is far off


class BatchJacobian(Protocol):
    """Products with the Jacobian of one batch at fixed weights."""

    def push(self, v: Params) -> Tensor:
        """Jv `[N, *out]`."""
        ...

    def pull(self, u: Tensor) -> Params:
        r"""$J^\top u$ by name, for u `[N, *out]`."""
        ...

    def weighted_product(self, v: Params, weigh: Weighting) -> Params:
        r"""$J^\top u$ with u from the outputs and Jv."""
        ...


@dataclass(frozen=True, eq=False)
class Linearization:
    """A `BatchJacobian` that keeps the graph.

    Attributes:
        params: θ, leaves of the kept graph.
        outputs: f(θ) `[N, *out]`, with the graph.
        push: the function from v to Jv.
    """

    params: Params
    outputs: Tensor
    push: Push

    def pull(self, u: Tensor) -> Params:
        r"""$J^\top u$ by name, for u `[N, *out]`."""
        return gradients(self.outputs, self.params, u, retain_graph=True)

    def weighted_product(self, v: Params, weigh: Weighting) -> Params:
        r"""$J^\top u$ with u from the outputs and Jv."""
        return self.pull(weigh(self.outputs.detach(), self.push(v)))


@dataclass(frozen=True, eq=False)
class RecomputedLinearization:
    """A `BatchJacobian` that keeps nothing: every call runs the network once.

    Attributes:
        f: the network on one batch.
        params: θ.
        method: `auto`, `jvp` or `vjp`.
    """

    f: Function
    params: Params
    method: str = "auto"

    def push(self, v: Params) -> Tensor:
        """Jv `[N, *out]`."""
        if self.method == "vjp":
            return linearized(self.f, self.params, "vjp").push(v)
        try:
            with torch.no_grad():
                return dual_pass(self.f, self.params, v)[1]
        except Exception as failed:
            return _fallback(self.f, self.params, self.method, failed).push(v)

    def pull(self, u: Tensor) -> Params:
        r"""$J^\top u$ by name, for u `[N, *out]`."""
        return backward_pass(self.f, self.params, lambda outputs: u)

    def weighted_product(self, v: Params, weigh: Weighting) -> Params:
        r"""$J^\top u$ with u from the outputs and Jv."""
        if self.method == "vjp":
            return linearized(self.f, self.params, "vjp").weighted_product(v, weigh)
        theta = leaves(self.params)
        try:
            with torch.enable_grad():
                outputs, tangent = dual_pass(self.f, theta, v)
        except Exception as failed:
            return _fallback(self.f, self.params, self.method, failed).weighted_product(v, weigh)
        return gradients(outputs, theta, weigh(outputs.detach(), tangent.detach()))


def linearized(f: Function, params: Params, method: str = "auto") -> Linearization:
    """The network linearised by `jvp` (recorded), `vjp` (double backward), or `auto`: the first of the two that works.

    >>> linear = linearized(lambda p: p["w"] ** 2, {"w": torch.tensor([3.0, 5.0])})
    >>> linear.push({"w": torch.tensor([1.0, 2.0])}), linear.pull(torch.tensor([1.0, 2.0]))
    (tensor([ 6., 20.]), {'w': tensor([ 6., 20.])})
    """
    if method == "vjp":
        return _double_backward(f, params)
    try:
        return _recorded(f, params)
    except Exception as failed:
        return _fallback(f, params, method, failed)


def _fallback(f: Function, params: Params, method: str, failed: Exception) -> Linearization:
    """The double backward, if forward mode failed; an error of the network itself is raised again in the plain pass."""
    if isinstance(failed, NearkinError):
        raise failed
    if method == "jvp":
        raise MismatchError(f"no forward-mode derivative ({line_of(failed)}); use method='vjp'") from failed
    return _double_backward(f, params)


def _double_backward(f: Function, params: Params) -> Linearization:
    r"""Jv as the derivative of $J^\top u$ with respect to u; both graphs are kept."""
    theta = leaves(params)
    with torch.enable_grad():
        outputs = plain_pass(f, theta)
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = gradients(outputs, theta, u, create_graph=True)
    linear = {name: value for name, value in pulled.items() if value.requires_grad}

    def push(v: Params) -> Tensor:
        if not linear:
            return torch.zeros_like(u)
        direction = [v[name] for name in linear]
        return torch.autograd.grad(list(linear.values()), u, direction, retain_graph=True, materialize_grads=True)[0]

    linearization = Linearization(theta, outputs, push)
    try:
        adjoint = _is_adjoint(linearization)
    except RuntimeError as failed:
        raise MismatchError(f"no second derivative ({line_of(failed)}); use method='difference'") from failed
    require(adjoint, "no second derivative of a layer of the network; use method='difference'", MismatchError)
    return linearization


def _is_adjoint(linear: Linearization) -> bool:
    r"""Whether $u^\top (Jv) = (J^\top u)^\top v$; without a second derivative, torch may give zeros and no error."""
    rng = Generator().manual_seed(0)
    v, u = _noise(linear.params, rng), _noise({"u": linear.outputs}, rng)["u"]
    back = linear.pull(u)
    difference = sum((v[name] * value).sum() for name, value in back.items()) - (u * linear.push(v)).sum()
    length = sum(value.square().sum() for value in back.values()) ** 0.5
    return not difference.abs() > TOLERANCE * length  # values that are not finite are reported by the products


def _noise(params: Params, rng: Generator) -> Params:
    """Standard normal numbers in the shapes of weights."""
    return {n: torch.randn(p.shape, generator=rng, dtype=p.dtype).to(p.device) for n, p in params.items()}


def _recorded(f: Function, params: Params) -> Linearization:
    """Jv by replaying the recorded tangent, after a test that it is correct; otherwise by new passes."""
    theta = leaves(params)
    v = _noise(theta, Generator().manual_seed(0))
    recording = Recording(list(v.values()))
    with torch.enable_grad(), recording:
        outputs, tangent = dual_pass(f, theta, v)
    replay = recording.playback(tangent)
    if replay is not None and _is_negative(replay([-value for value in v.values()]), tangent):
        return Linearization(theta, outputs, lambda v: replay([v[name] for name in theta]))
    return Linearization(theta, outputs, RecomputedLinearization(f, params, "jvp").push)


def _is_negative(replayed: Tensor, tangent: Tensor) -> bool:
    """Whether −v gives −Jv; it would not if a recorded constant depended on v."""
    with torch.no_grad():
        return bool((replayed + tangent).norm() <= TOLERANCE * tangent.norm())
