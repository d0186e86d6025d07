r"""A network linearised at its weights: $f(θ + v) ≈ f(θ) + J v$, with $v ↦ Jv$ and $u ↦ J^\top u$ as functions.

Notation: N samples of one batch, out the shape of one output, θ the weights by name, J the Jacobian
$\partial f / \partial θ$, `[N, *out]` by P.

$J^\top u$ is a backward pass through the kept graph. $Jv$ is one of two things:

* *recorded*: forward-mode differentiation runs once, and the operations that touch a tangent are written down with the
  activations they read. Later products play them back: the network itself is not run again.
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
"""Outputs and Jv, both `[N, *out]`, to the u that is pulled back."""

TOLERANCE = 1e-3  # of a tangent under test: a right one is exact to rounding, a wrong one is wrong altogether


class BatchJacobian(Protocol):
    """What a batch can do at fixed weights, whichever way."""

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
    """One batch at fixed weights.

    Attributes:
        params: θ, leaves of the kept graph.
        outputs: f(θ) `[N, *out]`, with the graph.
        push: v to Jv.
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
    """The same with nothing kept: every call runs the network anew, once.

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
            return self._otherwise(failed).push(v)

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
            return self._otherwise(failed).weighted_product(v, weigh)
        return gradients(outputs, theta, weigh(outputs.detach(), tangent.detach()))

    def _otherwise(self, failed: Exception) -> Linearization:
        """The double backward, if the forward mode failed and the choice was ours."""
        return _fallback(self.f, self.params, self.method, failed)


def linearized(f: Function, params: Params, method: str = "auto") -> Linearization:
    """The network linearised by `jvp` (recorded), `vjp` (double backward), or the first of the two that it allows.

    >>> here = linearized(lambda p: p["w"] ** 2, {"w": torch.tensor([3.0, 5.0])})
    >>> here.push({"w": torch.tensor([1.0, 2.0])}), here.pull(torch.tensor([1.0, 2.0]))
    (tensor([ 6., 20.]), {'w': tensor([ 6., 20.])})
    """
    if method == "vjp":
        return _double_backward(f, params)
    try:
        return _recorded(f, params)
    except Exception as failed:
        return _fallback(f, params, method, failed)


def _fallback(f: Function, params: Params, method: str, failed: Exception) -> Linearization:
    """The double backward where forward mode failed; an error of the network's own comes again in its plain pass."""
    if isinstance(failed, NearkinError):
        raise failed
    if method == "jvp":
        raise MismatchError(f"no forward-mode derivative ({line_of(failed)}); use method='vjp'") from failed
    return _double_backward(f, params)


def _double_backward(f: Function, params: Params) -> Linearization:
    r"""Jv as the derivative of $J^\top u$ in u, with both graphs kept."""
    theta = leaves(params)
    with torch.enable_grad():
        outputs = plain_pass(f, theta)
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = gradients(outputs, theta, u, create_graph=True)
    linear = {name: value for name, value in pulled.items() if value.requires_grad}

    def push(v: Params) -> Tensor:
        if not linear:
            return torch.zeros_like(u)
        along = [v[name] for name in linear]
        return torch.autograd.grad(list(linear.values()), u, along, retain_graph=True, materialize_grads=True)[0]

    here = Linearization(theta, outputs, push)
    try:
        adjoint = _is_adjoint(here)
    except RuntimeError as failed:
        raise MismatchError(f"no second derivative ({line_of(failed)}); use method='difference'") from failed
    require(adjoint, "no second derivative of a part of the network; use method='difference'", MismatchError)
    return here


def _is_adjoint(here: Linearization) -> bool:
    r"""Whether $u^\top (Jv) = (J^\top u)^\top v$; what can be differentiated but once gives zeros instead of errors."""
    rng = Generator().manual_seed(0)
    v, u = _noise(here.params, rng), _noise({"u": here.outputs}, rng)["u"]
    back = here.pull(u)
    across = sum((v[name] * value).sum() for name, value in back.items()) - (u * here.push(v)).sum()
    length = sum(value.square().sum() for value in back.values()) ** 0.5
    return not across.abs() > TOLERANCE * length  # values that are not finite are met, and named, in the products


def _noise(params: Params, rng: Generator) -> Params:
    """Standard normal numbers in the shapes of weights."""
    shaped = params.items()
    return {n: torch.randn(p.shape, generator=rng, dtype=p.dtype).to(p.device) for n, p in shaped}


def _recorded(f: Function, params: Params) -> Linearization:
    """Jv by playing back the recorded tangent, once it has shown that it is the tangent; by new passes if not."""
    theta = leaves(params)
    v = _noise(theta, Generator().manual_seed(0))
    recording = Recording(list(v.values()))
    with torch.enable_grad(), recording:
        outputs, tangent = dual_pass(f, theta, v)
    play = recording.playback(tangent)
    if play is not None and _negates(play([-value for value in v.values()]), tangent):
        return Linearization(theta, outputs, lambda v: play([v[name] for name in theta]))
    passage = RecomputedLinearization(f, params, "jvp")
    return Linearization(theta, outputs, passage.push)


def _negates(played: Tensor, tangent: Tensor) -> bool:
    """Whether −v gives −Jv: what was taken for a constant and depends on v would spoil just that."""
    with torch.no_grad():
        return bool((played + tangent).norm() <= TOLERANCE * tangent.norm())
