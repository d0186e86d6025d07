r"""Gradients of the validation loss with respect to the architecture weights.

$L_t(w, \alpha)$ is the training loss and $L_v(w, \alpha)$ the validation loss. The first-order gradient uses the
current weights, $\nabla_\alpha L_v(w, \alpha)$. The second-order gradient looks one training step ahead,

$$\nabla_\alpha L_v(w', \alpha) = \partial_\alpha L_v(w', \alpha) - \xi\,\nabla^2_{\alpha w} L_t(w, \alpha)\, v, \qquad
  w' = w - \xi\,(\nabla_w L_t(w, \alpha) + u), \quad v = \nabla_{w'} L_v(w', \alpha)$$

where $u$ is the part of the step that does not depend on α: momentum and weight decay. The product with the matrix of
mixed derivatives is exact: $\nabla_w L_t$ is differentiated again. The finite difference of DARTS (eq. 8),
$(\nabla_\alpha L_t(w + \varepsilon v, \alpha) - \nabla_\alpha L_t(w - \varepsilon v, \alpha)) / 2\varepsilon$, is
available for comparison: on supernets its error is larger than the correction itself.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.state import prefixed
from nearkin.search.supernet.fused.fused_convolution import fixed_weights

Tensors: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Tensors, Tensors], Tensor]
"""(weights, architecture) → a scalar; must not change running statistics."""

RADIUS = 0.01
"""Step length of the finite difference, as in DARTS."""


def first_order(validation: Loss, weights: Mapping[str, Tensor], architecture: Mapping[str, Tensor]) -> Tensors:
    r"""$\nabla_\alpha L_v(w, \alpha)$.

    >>> loss = lambda w, a: (w["w"] * a["a"].square()).sum()
    >>> first_order(loss, {"w": torch.tensor([3.0])}, {"a": torch.tensor([2.0])})
    {'a': tensor([12.])}
    """
    return loss_and_gradient(validation, weights, architecture)[1]


def loss_and_gradient(
    validation: Loss, weights: Mapping[str, Tensor], architecture: Mapping[str, Tensor]
) -> tuple[float, Tensors]:
    """The validation loss and its gradient with respect to the architecture."""
    free = _leaves(architecture)
    loss = validation(_detached(weights), free)
    return float(loss.detach()), _gradients(loss, free)


def second_order(
    training: Loss,
    validation: Loss,
    weights: Mapping[str, Tensor],
    architecture: Mapping[str, Tensor],
    rate: float,
    *,
    drift: Mapping[str, Tensor] | None = None,
    exact: bool = True,
    radius: float = RADIUS,
) -> tuple[float, Tensors]:
    r"""The validation loss after one more training step, and its gradient with respect to the architecture.

    Args:
        training: $L_t$.
        validation: $L_v$.
        weights: $w$.
        architecture: $\alpha$.
        rate: $\xi \ge 0$.
        drift: $u$, by the names of the weights (default: 0).
        exact: whether to use the exact second derivative or a finite difference.
        radius: $\varepsilon \|v\|$ of the finite difference.

    >>> training = lambda w, a: (w["w"] * a["a"]).sum()
    >>> validation = lambda w, a: w["w"].square().sum()
    >>> weights, architecture = {"w": torch.tensor([3.0])}, {"a": torch.tensor([2.0])}
    >>> second_order(training, validation, weights, architecture, 0.5)  # (w - a/2)², and -(w - a/2)
    (4.0, {'a': tensor([-2.])})
    """
    require(rate >= 0, f"the learning rate of the step ahead must be 0 or more, got {rate}")
    start, free = _leaves(weights), _leaves(architecture)
    slopes = _gradients(training(start, free if exact else _detached(architecture)), start, graph=exact)
    ahead = {name: (value - rate * (slopes[name].detach() + (0 if drift is None else drift[name]))).requires_grad_()
             for name, value in _detached(weights).items()}  # fmt: skip
    inside = free if exact else _leaves(architecture)
    loss = validation(ahead, inside)
    both = _gradients(loss, {**prefixed("w", ahead), **prefixed("a", inside)})
    vector = {name: both[f"w/{name}"] for name in ahead}
    direct = {name: both[f"a/{name}"] for name in inside}
    if rate == 0:
        return float(loss.detach()), direct
    mixed = (
        _mixed(slopes, vector, free) if exact else finite_difference(training, weights, architecture, vector, radius)
    )
    return float(loss.detach()), {name: value - rate * mixed[name] for name, value in direct.items()}


def finite_difference(
    training: Loss,
    weights: Mapping[str, Tensor],
    architecture: Mapping[str, Tensor],
    vector: Mapping[str, Tensor],
    radius: float = RADIUS,
) -> Tensors:
    r"""$\nabla^2_{\alpha w} L_t(w, \alpha)\, v$ by a symmetric finite difference with $\varepsilon = r / \|v\|$."""
    length = float(torch.stack([value.norm() for value in vector.values()]).norm())
    if length == 0:
        return {name: torch.zeros_like(value) for name, value in architecture.items()}
    step = radius / length
    sides = [
        first_order(training, {name: value + sign * step * vector[name] for name, value in _detached(weights).items()},
                    architecture)
        for sign in (1, -1)
    ]  # fmt: skip
    return {name: (sides[0][name] - sides[1][name]) / (2 * step) for name in architecture}


def _mixed(slopes: Tensors, vector: Tensors, free: Tensors) -> Tensors:
    """Gradient of ⟨slopes, vector⟩ with respect to the architecture."""
    moving = [name for name, value in slopes.items() if value.requires_grad]
    if not moving:
        return {name: torch.zeros_like(value) for name, value in free.items()}
    with fixed_weights():
        gradients = torch.autograd.grad([slopes[name] for name in moving], list(free.values()),
                                        [vector[name] for name in moving], materialize_grads=True)  # fmt: skip
    return dict(zip(free, gradients, strict=True))


def _gradients(loss: Tensor, tensors: Tensors, graph: bool = False) -> Tensors:
    gradients = torch.autograd.grad(loss, list(tensors.values()), create_graph=graph, materialize_grads=True)
    return dict(zip(tensors, gradients, strict=True))


def _detached(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach() for name, value in tensors.items()}


def _leaves(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach().requires_grad_() for name, value in tensors.items()}
