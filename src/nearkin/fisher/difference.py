r"""Products of the Fisher information with a vector by finite differences of a gradient.

Notation: θ the weights, $f_0 = f(θ)$ the outputs of one batch, Λ their information, ε the step.

The divergence of the predictions at θ + εv from those at θ is $\frac12 (f - f_0)^\top Λ (f - f_0)$ to second order in
the outputs. Its gradient g vanishes at θ, and the derivative of g there is F itself (higher orders contribute 0). So
one gradient gives a product:

$$F v ≈ g(θ + εv) / ε, \qquad F v ≈ (g(θ + εv) - g(θ - εv)) / 2ε.$$
"""

import math

import torch
from torch import Tensor

from nearkin.core.types import Params
from nearkin.fisher.linearization import Weighting
from nearkin.fisher.passes import Function, backward_pass, plain_pass

# Default steps relative to ‖θ‖: as small as rounding allows, because a ReLU that switches within a step is an error.
STEPS = {(torch.float32, 1): 3e-5, (torch.float32, 2): 3e-5, (torch.float64, 1): 1e-8, (torch.float64, 2): 1e-7}


def length(params: Params) -> float:
    """Euclidean norm of all values.

    >>> length({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])})
    5.0
    """
    flats = (value.reshape(-1) for value in params.values())
    return math.sqrt(sum(float(value.dot(value)) for value in flats))


class Difference:
    """A `BatchJacobian` by finite differences.

    Args:
        f: the network on this batch.
        params: θ.
        sides: 1 or 2.
        keep: whether $f_0$, and memory for one set of moved weights, are kept between products.
        step: ε relative to ‖θ‖ (default: by dtype and sides, see `STEPS`).
    """

    def __init__(self, f: Function, params: Params, sides: int, keep: bool, step: float | None = None) -> None:
        self.f, self.params, self.sides = f, params, sides
        relative = STEPS[next(iter(params.values())).dtype, sides] if step is None else step
        self.step_length = relative * (length(params) or 1.0)
        self._outputs: Tensor | None = None
        self._outputs = self.base_outputs() if keep else None
        self._buffers = {name: torch.empty_like(value) for name, value in params.items()} if keep else {}

    def push(self, v: Params) -> Tensor:
        """Jv `[N, *out]`, also a finite difference."""
        step = self.step(v)
        if step == 0:
            return torch.zeros_like(self.base_outputs())
        with torch.no_grad():
            ahead = plain_pass(self.f, self._moved(v, step))
            behind = self.base_outputs() if self.sides == 1 else plain_pass(self.f, self._moved(v, -step))
        return (ahead - behind) / (self.sides * step)

    def pull(self, u: Tensor) -> Params:
        r"""$J^\top u$ by name, exact."""
        return backward_pass(self.f, self.params, lambda outputs: u)

    def weighted_product(self, v: Params, weigh: Weighting) -> Params:
        """The product with `weigh(f₀, ·)` as the information: g(θ ± εv) divided by the step."""
        step, base = self.step(v), self.base_outputs()
        if step == 0:
            return {name: torch.zeros_like(value) for name, value in v.items()}

        def cotangent(outputs: Tensor) -> Tensor:
            return weigh(base, (outputs - base) / (self.sides * step))

        ahead = backward_pass(self.f, self._moved(v, step), cotangent)
        if self.sides == 1:
            return ahead
        behind = backward_pass(self.f, self._moved(v, -step), cotangent)
        return {name: ahead[name] - behind[name] for name in ahead}

    def step(self, v: Params) -> float:
        r"""$ε ‖θ‖ / ‖v‖$; 0 for a vector of zeros.

        >>> difference = Difference(lambda p: p["w"], {"w": torch.full((4,), 3.0)}, sides=1, keep=True)
        >>> round(difference.step({"w": torch.ones(4)}), 9)
        9e-05
        """
        norm = length(v)
        return self.step_length / norm if norm != 0 else 0.0

    def base_outputs(self) -> Tensor:
        """$f_0$, the outputs at θ."""
        if self._outputs is not None:
            return self._outputs
        with torch.no_grad():
            return plain_pass(self.f, self.params)

    def _moved(self, v: Params, step: float) -> Params:
        pairs = self.params.items()
        return {name: torch.add(value, v[name], alpha=step, out=self._buffers.get(name)) for name, value in pairs}
