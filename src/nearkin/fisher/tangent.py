r"""The empirical tangent kernel of a network at its weights, $K(x, x') = J(x) J(x')^⊤$ (Jacot et al. 2018).

The Jacobian is never formed: every layer adds its own contraction (`layer_kernels`), which needs one forward pass and C
backward passes. If the features of all samples do not fit the memory, the kernel is computed by pairs of blocks of
samples. If the kernel itself does not fit, `tangent_product` gives $K u$ without it.

Notation: N and M samples, C outputs (axes behind the first are flattened), P weights, R outputs kept apart.
"""

from collections.abc import Collection
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError, require
from nearkin.core.events import Note, Work, operation
from nearkin.core.types import Params
from nearkin.fisher.gradient_plan import require_evaluation_mode, wanted_names
from nearkin.fisher.jacobian import Jacobian
from nearkin.fisher.tangent_blocks import fill_kernel, require_finite, split_sides
from nearkin.fisher.tangent_features import UnfitError, plain_attention, tangent_plan
from nearkin.nets.functional import outputs_of

Outputs: TypeAlias = Literal["all", "sum"] | int

MEMORY_BYTES = 2 * 2**30


@operation
def tangent_kernel(
    model: nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    outputs: Outputs = "all",
    params: Collection[str] | None = None,
    batch_size: int | None = None,
    memory: int = MEMORY_BYTES,
) -> Work[Tensor]:
    r"""Gram matrix $J(x) J(x)^⊤$ (exactly symmetric), or $J(x) J(x_2)^⊤$.

    Args:
        model: a network in evaluation mode; its output for a sample must not depend on other samples.
        x: `[N, *input_shape]`.
        x2: `[M, *input_shape]`; `x` itself if None.
        outputs: `"all"` for `[N, C, M, C]`; an index c for $K_{cc}$ `[N, M]`; `"sum"` for $\sum_c K_{cc}$ `[N, M]`.
        params: names of the weights to differentiate by (default: those that require gradients).
        batch_size: samples in one forward pass (default: as many as fit the memory).
        memory: bytes for the kernel and all intermediate values.

    >>> net = nn.Linear(2, 1)
    >>> tangent_kernel(net, torch.tensor([[1.0, 0.0], [2.0, 3.0]]), outputs=0)  # x xᵀ + 1
    tensor([[ 2.,  3.],
            [ 3., 14.]])
    """
    names, shape = _checked(model, x, x2, params)
    indices = _output_indices(outputs, shape.numel())
    plan = tangent_plan(model, names, indices, outputs == "sum", x if x2 is None else torch.cat([x, x2]))
    while True:
        try:
            sides = split_sides(plan, x, x2, batch_size, memory)
            yield Note(sides.summary(plan))
            kernel = yield from fill_kernel(plan, sides)
            require_finite(plan, sides, kernel)
        except UnfitError as unfit:
            yield Note(f"no formula for {unfit} on all samples; these weights are left to automatic differentiation")
            plan = plan.without(unfit.names)
            continue
        apart = [len(indices)] if outputs == "all" else []
        return kernel.view(len(x), *apart, len(sides.other), *apart)


def tangent_product(
    model: nn.Module,
    x: Tensor,
    u: Tensor,
    x2: Tensor | None = None,
    outputs: Outputs = "all",
    params: Collection[str] | None = None,
    batch_size: int = 256,
) -> Tensor:
    """The product K(x, x2) u = J(x) (J(x2)ᵀ u), by one reverse and one forward pass; K is never formed.

    Args:
        model: as in `tangent_kernel`, with `x`, `x2` and `params`.
        x: `[N, *input_shape]`.
        u: `[M, C]` for all outputs; `[M]` for one output or their sum, which takes C products.
        x2: `[M, *input_shape]`; `x` itself if None.
        outputs: as in `tangent_kernel`.
        params: as in `tangent_kernel`.
        batch_size: samples in one pass.

    >>> net, x = nn.Linear(2, 1), torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    >>> tangent_product(net, x, torch.tensor([[1.0], [-1.0]]))
    tensor([[ -1.],
            [-11.]])
    """
    names, shape = _checked(model, x, x2, params)
    size, other = shape.numel(), x if x2 is None else x2
    indices = _output_indices(outputs, size)
    wanted = (len(other), size) if outputs == "all" else (len(other),)
    require(tuple(u.shape) == wanted, f"u has shape {tuple(u.shape)}, expected {wanted}", MismatchError)
    theta: Params = {name: value for name, value in model.named_parameters() if name in names}
    with plain_attention():
        left, right = (Jacobian(model, side.detach().split(batch_size), params=theta) for side in (x, other))
        if outputs == "all":
            return left.push(right.pull(u.reshape(-1, *shape))).reshape(len(x), -1)
        total = u.new_zeros(len(x))
        for c in indices:
            column = u[:, None] * torch.eye(size).to(u)[c]
            total += left.push(right.pull(column.reshape(-1, *shape))).reshape(len(x), -1)[:, c]
    return total


def _checked(
    model: nn.Module, x: Tensor, x2: Tensor | None, params: Collection[str] | None
) -> tuple[tuple[str, ...], torch.Size]:
    """Names of the weights, and the shape of one sample's outputs."""
    require_evaluation_mode(model)
    names = wanted_names(model, params)
    for side in (x, x) if x2 is None else (x, x2):
        require(side.dim() > 0 and len(side) > 0, "there are no samples; give one or more", DataError)
        require(
            side.shape[1:] == x.shape[1:],
            f"x and x2 have inputs of shapes {tuple(x.shape[1:])} and {tuple(side.shape[1:])}; give both one shape",
            MismatchError,
        )
    return names, outputs_of(model, x[:1]).shape[1:]


def _output_indices(outputs: Outputs, size: int) -> range:
    """The outputs to differentiate."""
    if outputs in ("all", "sum"):
        return range(size)
    if not isinstance(outputs, int) or not 0 <= outputs < size:
        raise OptionError(f"outputs is 'all', 'sum' or an index from 0 to {size - 1}, got {outputs!r}")
    return range(outputs, outputs + 1)
