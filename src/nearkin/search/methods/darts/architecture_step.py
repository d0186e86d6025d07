r"""Gradients of the validation loss in the architecture weights.

$L_t(w, \alpha)$ is the training loss and $L_v(w, \alpha)$ the validation loss. First order takes the weights as they
are, $\nabla_\alpha L_v(w, \alpha)$. Second order looks one training step ahead,

$$\nabla_\alpha L_v(w', \alpha) = \partial_\alpha L_v(w', \alpha) - \xi\,\nabla^2_{\alpha w} L_t(w, \alpha)\, v, \qquad
  w' = w - \xi\,(\nabla_w L_t(w, \alpha) + u), \quad v = \nabla_{w'} L_v(w', \alpha)$$

where $u$ is what does not depend on α: momentum and weight decay. The product with the matrix of mixed derivatives is
exact, by differentiating $\nabla_w L_t$ once more; the classical finite difference (DARTS, eq. 8),
$(\nabla_\alpha L_t(w + \varepsilon v, \alpha) - \nabla_\alpha L_t(w - \varepsilon v, \alpha)) / 2\varepsilon$, is there
for comparison: on supernets its error exceeds the correction itself.
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
"""(weights, architecture) → a scalar; must leave running statistics as they are."""

RADIUS = 0.01
"""Length of the finite difference's step, as in DARTS."""


def first_order(validation: Loss, weights: Mapping[str, Tensor], architecture: Mapping[str, Tensor]) -> Tensors:
    r"""$\nabla_\alpha L_v(w, \alpha)$.

    >>> loss = lambda w, a: (w["w"] * a["a"].square()).sum()
    >>> first_order(loss, {"w": torch.tensor([3.0])}, {"a": torch.tensor([2.0])})
    {'a': tensor([12.])}
    """
    return _with_loss(validation, weights, architecture)[1]


def loss_and_gradient(
    validation: Loss, weights: Mapping[str, Tensor], architecture: Mapping[str, Tensor]
) -> tuple[float, Tensors]:
    """The validation loss and its gradient in the architecture."""
    loss, slopes = _with_loss(validation, weights, architecture)
    return float(loss), slopes


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
    r"""The validation loss one training step ahead and its gradient in the architecture.

    Args:
        training: $L_t$.
        validation: $L_v$.
        weights: $w$.
        architecture: $\alpha$.
        rate: $\xi \ge 0$.
        drift: $u$, by the names of the weights; nothing where none is given.
        exact: whether the second derivative is exact, or a finite difference.
        radius: $\varepsilon \|v\|$ of the finite difference.

    >>> training = lambda w, a: (w["w"] * a["a"]).sum()
    >>> validation = lambda w, a: w["w"].square().sum()
    >>> weights, architecture = {"w": torch.tensor([3.0])}, {"a": torch.tensor([2.0])}
    >>> second_order(training, validation, weights, architecture, 0.5)  # (w - a/2)², and -(w - a/2)
    (4.0, {'a': tensor([-2.])})
    """
    require(rate >= 0, f"the rate of the step ahead must be 0 or more, got {rate}")
    held, free = _leaves(weights), _leaves(architecture)
    slopes = _gradients(training(held, free if exact else _detached(architecture)), held, graph=exact)
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


def _with_loss(loss: Loss, weights: Mapping[str, Tensor], architecture: Mapping[str, Tensor]) -> tuple[Tensor, Tensors]:
    free = _leaves(architecture)
    value = loss(_detached(weights), free)
    return value.detach(), _gradients(value, free)


def _mixed(slopes: Tensors, vector: Tensors, free: Tensors) -> Tensors:
    """The gradient of ⟨slopes, vector⟩ in the architecture."""
    moving = [name for name, value in slopes.items() if value.requires_grad]
    if not moving:
        return {name: torch.zeros_like(value) for name, value in free.items()}
    with fixed_weights():
        found = torch.autograd.grad([slopes[name] for name in moving], list(free.values()),
                                    [vector[name] for name in moving], allow_unused=True)  # fmt: skip
    return _filled(found, free)


def _gradients(loss: Tensor, tensors: Tensors, graph: bool = False) -> Tensors:
    return _filled(torch.autograd.grad(loss, list(tensors.values()), create_graph=graph, allow_unused=True), tensors)


def _filled(found: tuple[Tensor | None, ...], tensors: Tensors) -> Tensors:
    """Gradients by name, zero for what the loss does not depend on."""
    return {name: torch.zeros_like(value) if slope is None else slope
            for (name, value), slope in zip(tensors.items(), found, strict=True)}  # fmt: skip


def _detached(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach() for name, value in tensors.items()}


def _leaves(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach().requires_grad_() for name, value in tensors.items()}
